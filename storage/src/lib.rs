//! Braid's keyspace: tables, entries, expiry and stamps, and the executors and the coordinator that run work
//! on them.

pub mod access;
pub mod coordinator;
pub mod entry;
pub mod executor;
pub mod glob;
pub mod hash;
mod ids;
pub mod keyspace;
pub mod packed;
pub mod prefetch;
mod reclaim;
pub mod shard;
mod stamps;
pub mod string;
mod sync;
pub mod table;
pub mod thresholds;
pub mod time;
mod waiters;

pub use hash::{Routed, Router, ShardId};
pub use ids::Db;
pub use keyspace::Keyspace;
pub use reclaim::{has_garbage, has_large_garbage, reclaim, reclaim_large};
pub use shard::{Expiry, Key, Shard, ValueMut, ValueRef, ValueType};
pub use stamps::Stamp;
pub use string::{StringMut, StringOrigin};
pub use table::Cursor;
pub use waiters::{ReadyKey, Waiter};

/// Why the keyspace refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StorageError {
    /// The key holds a value of another type.
    WrongType,
    /// A string would become longer than it may be.
    TooLong,
    /// The work would take longer than a shard may be held: see [`Shard::expect_work`].
    TooMuch,
}

/// How a value is stored, in OBJECT ENCODING's words: as Redis would store it.
pub fn encoding_name(entry: entry::EntryRef<'_>) -> &'static str {
    match entry.kind() {
        entry::Kind::String => string::encoding_name(entry),
        kind => unreachable!("no operation makes a {kind:?}"),
    }
}
