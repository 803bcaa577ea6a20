//! Observers: they learn of every change to a key, in whichever way the command ran.
//!
//! When a unit ends, its changes are taken from its shards' sinks, under its holds. Each observer is told of
//! them once, in the order in which they were made (`run/serve.rs`). An observer is a file here and a line in
//! [`OBSERVERS`]. An observer of all changes, and not only of keys with waiting nodes or tracking clients,
//! has a [hearer](hearers) on the shards.

pub mod events;
pub mod hearers;
pub mod invalidations;
pub mod monitor;
pub mod recorder;
pub mod secrets;

use braid_storage::observers::ledger::Change;

use crate::shared::thread_state::ThreadState;

/// An observer of changes.
pub struct Observer {
    /// Its name.
    pub name: &'static str,
    /// Receives the changes of a unit in order, while the unit's shards are held. It must not block, lock or
    /// call the system.
    pub tell: fn(&[Change], &ThreadState),
}

/// All observers, in the order in which they are told.
pub const OBSERVERS: &[Observer] = &[
    Observer { name: "tracking", tell: invalidations::tell },
    Observer { name: "events", tell: events::tell },
    Observer { name: "recorder", tell: recorder::tell },
];

/// Tells all observers of changes.
pub fn tell(changes: &[Change], thread: &ThreadState) {
    OBSERVERS.iter().for_each(|observer| (observer.tell)(changes, thread));
}
