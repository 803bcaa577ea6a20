//! Observers: what hears of every change of a key, however the command came to run.
//!
//! A unit's changes are taken from its shards' sinks when it ends, under its holds, and each observer is told
//! of them once, in the order in which they were made (`run/serve.rs`). An observer is a file here and a line
//! in [`OBSERVERS`]. One that wants all changes, and not only those of keys that somebody waits for or
//! tracks, has a [hearer](hearers) hear on the shards.

pub mod events;
pub mod hearers;
pub mod invalidations;
pub mod monitor;
pub mod recorder;
pub mod secrets;

use braid_storage::Change;

use crate::shared::thread_state::ThreadState;

/// One who is told of changes.
pub struct Observer {
    /// Its name.
    pub name: &'static str,
    /// Hears of what a unit changed, in order, while the unit's shards are held: it must not block, lock or
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
