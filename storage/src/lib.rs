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
pub mod prefetch;
mod reclaim;
pub mod shard;
mod stamps;
mod sync;
pub mod table;
pub mod time;

pub use hash::{Routed, Router, ShardId};
pub use ids::Db;
pub use keyspace::Keyspace;
pub use reclaim::{has_garbage, reclaim};
pub use shard::{Expiry, Key, Shard, StringMut, StringOrigin};
pub use stamps::Stamp;
pub use table::Cursor;

/// Why the keyspace refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StorageError {
    /// The key holds a value of another type.
    WrongType,
    /// A string would become longer than it may be.
    TooLong,
}
