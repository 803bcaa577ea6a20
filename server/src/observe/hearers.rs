//! The hearers of all changes on a shard, whatever the key.
//!
//! Each has a number of its own. The numbers 5 and 6 belong to storage
//! ([`braid_storage::observers::record::LOG`], [`braid_storage::observers::ledger::MISSES`]).

use braid_storage::observers::ledger::Hearer;

/// Clients that track prefixes.
pub const PREFIXES: Hearer = Hearer::new(0);

/// Keyspace events.
pub const EVENTS: Hearer = Hearer::new(1);

/// The recorder of DEBUG RECORD-CHANGES.
pub const RECORDER: Hearer = Hearer::new(2);

/// Work on a separate shard, whose result is stored with the same events.
pub const TRANSFER: Hearer = Hearer::new(7);
