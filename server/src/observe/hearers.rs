//! Who hears of all changes on a shard, whatever the key. Each has a number of its own; 5 and 6 are storage's
//! ([`braid_storage::record::LOG`], [`braid_storage::MISSES`]).

use braid_storage::Hearer;

/// Tracking clients that hear of prefixes.
pub const PREFIXES: Hearer = Hearer::new(0);

/// Keyspace events.
pub const EVENTS: Hearer = Hearer::new(1);

/// What DEBUG RECORD-CHANGES keeps.
pub const RECORDER: Hearer = Hearer::new(2);

/// Work on a shard of its own, whose result is stored with the same events.
pub const TRANSFER: Hearer = Hearer::new(7);
