//! Random numbers for commands that choose: RANDOMKEY, SPOP and similar commands. An attacker gains nothing
//! by guessing them.

use std::{
    cell::Cell,
    hash::{BuildHasher, RandomState},
};

use braid_storage::table::hash::KeyHasher;

thread_local! {
    /// Each thread has its own sequence, from a start that the operating system has chosen.
    static STATE: Cell<u64> = Cell::new(RandomState::new().hash_one(0u64));
}

#[cfg(test)]
thread_local! {
    /// Whether a test has chosen the start.
    static IS_SEEDED: Cell<bool> = const { Cell::new(false) };
}

const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// Makes this thread's random numbers repeat those of any other thread with this seed.
#[cfg(test)]
pub fn seed(seed: u64) {
    STATE.set(seed);
    IS_SEEDED.set(true);
}

/// Returns a hasher with a key that nobody can guess.
pub fn key_hasher() -> KeyHasher {
    #[cfg(test)]
    if IS_SEEDED.get() {
        return KeyHasher::with_key(random(), random());
    }
    KeyHasher::random()
}

/// Returns a random number, by SplitMix64 (Steele, Lea and Flood, 2014).
pub fn random() -> u64 {
    let state = STATE.get().wrapping_add(STEP);
    STATE.set(state);
    mixed(state)
}

/// Returns the next values of [`random`] on this thread, in order.
pub fn coming() -> impl Iterator<Item = u64> {
    let mut state = STATE.get();
    std::iter::repeat_with(move || {
        state = state.wrapping_add(STEP);
        mixed(state)
    })
}

fn mixed(state: u64) -> u64 {
    let mixed = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ mixed >> 31
}

/// Returns a random index below `n`, which must not be 0.
pub fn random_below(n: usize) -> usize {
    ((u128::from(random()) * n as u128) >> 64) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_is_told_before() {
        let told: Vec<u64> = coming().take(3).collect();
        assert_eq!(told, [random(), random(), random()]);
    }
}
