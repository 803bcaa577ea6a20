//! Braid's keyspace: tables, entries, expiry and stamps, and the executors and the coordinator that run work
//! on them.
//!
//! Terms: see `docs/glossary.md`.

mod allocator;
mod as_commands;
pub mod bits;
mod channels;
pub mod coordinator;
mod db;
mod deadline_index;
mod digest;
pub mod entry;
mod error;
mod event;
pub mod executor;
pub mod geo;
pub mod glob;
pub mod hash;
pub mod hashes;
pub mod hll;
mod key;
pub mod keyspace;
mod kinds;
mod ledger;
pub mod list;
pub mod lru;
pub mod packed;
mod pins;
pub mod prefetch;
mod published;
pub mod rdb;
mod read_tracking;
mod reclaim;
pub mod record;
pub mod set;
pub mod shard;
mod siphash;
mod snapshot;
pub mod sorted_set;
mod stamps;
pub mod stream;
pub mod string;
mod sync;
pub mod table;
mod tear_guard;
mod teardown;
pub mod thresholds;
pub mod time;
mod value;
mod waiters;
mod work;

pub use allocator::{
    Allocator, allocated_bytes, collapse, data_bytes, heed_limit, is_above_limit, return_large_blocks,
    set_limit, settle_before_sleep, take_most_allocated,
};
pub use channels::{Audience, ChannelKind};
pub use db::Db;
pub use digest::Digest;
pub use entry::class_bytes;
pub use error::StorageError;
pub use event::{Event, EventClass};
pub use hash::{KeyHasher, Routed, Router, ShardId};
pub use hashes::{HashMut, HashRef, HashType};
pub use key::{Key, WatchedKey};
pub use keyspace::{DatabaseCounts, Keyspace};
pub use kinds::{digest_of, encoding_name, has_expired, n_elements, type_name};
pub use ledger::{Change, Effect, Hearer, MISSES};
pub use list::{ListEnd, ListMut, ListRef, ListType};
pub use read_tracking::{Reader, Readers, Remembered};
pub use reclaim::{
    discard_bytes, garbage_bytes, has_garbage, has_much_large_garbage, help_reclaim_large, is_flooded,
    n_garbage, n_reclaimed, reclaim, reclaim_large, release, reset_reclaimed, wants_idle_threads,
};
pub use set::{SetMut, SetRef, SetType};
pub use shard::{
    Lookups, Shard,
    eviction::{EvictionOrder, EvictionPolicy},
    expiry::{ExpiryCursor, ExpiryStep},
    loading::Twice,
    saving::{Form, Uses},
};
pub use snapshot::{Early, Encoded, FlushedPart, Parts, PinnedPart, SaveStep};
pub use sorted_set::{SortedSetMut, SortedSetRef, SortedSetType};
pub use stamps::Stamp;
pub use string::{StringMut, StringOrigin};
pub use table::{Cursor, Lasting, Position};
pub use teardown::Rubble;
pub use time::Expiry;
pub use value::{ValueMut, ValueRef, ValueType};
pub use waiters::{Awaits, Reach, Ticket, Turns, Waiter};
pub use work::{BYTES_PER_ELEMENT, WORK_MAX, WORK_MAX_BYTES};
