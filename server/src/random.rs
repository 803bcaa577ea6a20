//! Random numbers for commands that choose: RANDOMKEY, SPOP and their kin. To guess them is of no use.

use std::{
    cell::Cell,
    hash::{BuildHasher, RandomState},
};

thread_local! {
    /// Each thread goes its own way from a start that the operating system has chosen.
    static STATE: Cell<u64> = Cell::new(RandomState::new().hash_one(0u64));
}

/// A random number, by SplitMix64 (Steele, Lea and Flood, 2014).
pub fn random() -> u64 {
    let state = STATE.get().wrapping_add(0x9e37_79b9_7f4a_7c15);
    STATE.set(state);
    let mixed = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ mixed >> 31
}

/// A random index below `n`, which must not be 0.
pub fn random_below(n: usize) -> usize {
    ((u128::from(random()) * n as u128) >> 64) as usize
}
