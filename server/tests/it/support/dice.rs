//! Random numbers that a seed repeats.

/// Returns the seed of a test's choices: `BRAID_SEED`, or a constant.
///
/// # Panics
/// When `BRAID_SEED` is no number.
pub fn seed() -> u64 {
    std::env::var("BRAID_SEED").map_or(1, |seed| seed.parse().expect("BRAID_SEED is a number"))
}

/// A small generator of random numbers. The seed alone repeats a run's choices.
#[derive(Clone, Debug)]
pub struct Dice(pub u64);

impl Dice {
    /// Returns a number from 0 to `sides` - 1.
    pub fn roll(&mut self, sides: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % sides as u64) as usize
    }

    /// Returns true in `chance` of a hundred cases.
    pub fn percent(&mut self, chance: usize) -> bool {
        self.roll(100) < chance
    }

    /// Returns one of these elements.
    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.roll(from.len())]
    }
}
