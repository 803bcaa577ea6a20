//! Braid's keyspace: tables, entries, expiry and stamps, and the executors and the coordinator that run work
//! on them.

pub mod access;
mod allocator;
pub mod bits;
mod channels;
pub mod coordinator;
mod deadline_index;
pub mod entry;
mod event;
pub mod executor;
pub mod geo;
pub mod glob;
pub mod hash;
pub mod hashes;
pub mod hll;
mod ids;
pub mod keyspace;
pub mod list;
pub mod packed;
pub mod prefetch;
pub mod rdb;
mod reclaim;
pub mod set;
pub mod shard;
mod siphash;
pub mod sorted_set;
mod stamps;
pub mod stream;
pub mod string;
mod sync;
pub mod table;
pub mod thresholds;
pub mod time;
mod tracked;
mod waiters;

pub use allocator::Allocator;
pub use channels::{Audience, ChannelKind};
pub use entry::class_bytes;
pub use event::{Event, EventClass};
pub use hash::{Routed, Router, ShardId};
pub use hashes::{HashMut, HashRef, HashType};
pub use ids::Db;
pub use keyspace::Keyspace;
pub use list::{ListEnd, ListMut, ListRef, ListType};
pub use reclaim::{
    discard_bytes, has_garbage, has_large_garbage, help_reclaim_large, n_garbage, n_reclaimed, reclaim,
    reclaim_large, release, reset_reclaimed,
};
pub use set::{SetMut, SetRef, SetType};
pub use shard::{
    Change, Effect, Expiry, Hearer, Key, Readers, Shard, ValueMut, ValueRef, ValueType, has_expired,
};
pub use sorted_set::{SortedSetMut, SortedSetRef, SortedSetType};
pub use stamps::Stamp;
pub use string::{StringMut, StringOrigin};
pub use table::{Cursor, Position};
pub use tracked::{Reader, Remembered};
pub use waiters::{Awaits, Ticket, Waiter};

/// Why the keyspace refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StorageError {
    /// The key holds a value of another type.
    WrongType,
    /// A string would become longer than it may be.
    TooLong,
    /// The work would take longer than a shard may be held: see [`Shard::whole_string`].
    TooMuch,
}

/// How a value is stored, in OBJECT ENCODING's words: as Redis would store it.
pub fn encoding_name(entry: entry::EntryRef<'_>) -> &'static str {
    match entry.kind() {
        entry::Kind::String => string::encoding_name(entry),
        entry::Kind::Set => set::encoding_name(entry),
        entry::Kind::List => list::encoding_name(entry),
        entry::Kind::Hash => hashes::encoding_name(entry),
        entry::Kind::SortedSet => sorted_set::encoding_name(entry),
        entry::Kind::Stream => stream::ENCODING_NAME,
    }
}
