//! A shard's published numbers, which its holder stores and any thread reads.

use std::sync::atomic::{AtomicU64, Ordering};

/// Numbers that a shard's holder stores and any thread reads, each at its own moment. They have a cache line
/// to themselves. Other threads do not write the line after it: the count of references is in front.
#[derive(Debug)]
#[repr(align(64))]
pub struct Published {
    /// Keys that were removed because their deadline had passed.
    pub(crate) expired: AtomicU64,
    /// Fields of hashes that were removed because their deadline had passed, one by one.
    pub(crate) expired_fields: AtomicU64,
    /// The earliest deadline of a field in any database, in milliseconds; the greatest number if there is
    /// none.
    pub(crate) next_field_deadline: AtomicU64,
    /// Bytes that the shard keeps outside of its tables.
    pub(crate) other_bytes: AtomicU64,
    /// Watched keys, in all databases.
    pub(crate) watched_keys: AtomicU64,
}

impl Published {
    pub(crate) fn new() -> Self {
        Self {
            expired: AtomicU64::new(0),
            expired_fields: AtomicU64::new(0),
            next_field_deadline: AtomicU64::new(u64::MAX),
            other_bytes: AtomicU64::new(0),
            watched_keys: AtomicU64::new(0),
        }
    }
}

/// Counts `n` more. Only the shard's holder may: there is no read-modify-write.
#[inline(always)]
pub(crate) fn count(counter: &AtomicU64, n: u64) {
    counter.store(counter.load(Ordering::Relaxed) + n, Ordering::Relaxed);
}
