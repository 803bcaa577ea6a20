//! Families of commands on keys and their values, channels, transactions and scripts.

pub(super) mod bitmaps;
pub(super) mod dump;
pub(super) mod field_expiry;
pub(super) mod geo;
pub(super) mod hashes;
pub(super) mod hyperloglog;
pub(super) mod increx;
pub(super) mod keys;
pub(super) mod lcs;
pub(super) mod libraries;
pub(super) mod lists;
pub(super) mod lmovem;
mod pops;
pub(super) mod pubsub;
pub(super) mod scripting;
pub(super) mod sets;
pub(super) mod sort;
pub(super) mod sorted_sets;
pub(super) mod streams;
pub(super) mod strings;
pub(super) mod stubs;
pub(super) mod transactions;
