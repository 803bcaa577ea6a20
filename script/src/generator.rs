//! The generator of `lrand48`, which Redis uses.
//!
//! The same seed returns the same numbers on every machine.

const MULTIPLIER: u64 = 0x5_DEEC_E66D;
const INCREMENT: u64 = 0xB;
const MASK: u64 = (1 << 48) - 1;
/// The lowest 16 bits of a seeded state.
const SEED_LOW: u64 = 0x330E;
/// The state before any seed, from which redis-server starts too.
const UNSEEDED: u64 = 0x1234_ABCD_330E;
/// Numbers are below this one.
const RANGE: u64 = i32::MAX as u64;

/// The state of the generator of `lrand48`: 48 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Random(u64);

impl Default for Random {
    fn default() -> Self {
        Random(UNSEEDED)
    }
}

impl Random {
    /// The state after `math.randomseed(seed)`.
    pub fn seeded(seed: i32) -> Self {
        Random(u64::from(seed as u32) << 16 | SEED_LOW)
    }

    /// The generator's next state, and its number from 0 to below 1.
    pub fn next(self) -> (Self, f64) {
        let state = self.0.wrapping_mul(MULTIPLIER).wrapping_add(INCREMENT) & MASK;
        let bits = state >> 17;
        (Random(state), (bits % RANGE) as f64 / RANGE as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_lrand48() {
        let (mut random, mut numbers) = (Random::seeded(0), Vec::new());
        for _ in 0..3 {
            let (next, unit) = random.next();
            random = next;
            numbers.push((unit * 1000.0) as u32);
        }
        // The first numbers of `drand48` from seed 0 are 0.1708280, 0.7499019, 0.0963717.
        assert_eq!(numbers, [170, 749, 96]);
    }
}
