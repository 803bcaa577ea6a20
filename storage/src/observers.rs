//! Observers of a shard: the events of writes, the ledger that learns of them all, and the parts that it
//! tells.

pub mod channels;
pub mod event;
pub mod ledger;
pub mod read_tracking;
pub mod record;
pub mod snapshot;
pub mod stamps;
pub mod waiters;
