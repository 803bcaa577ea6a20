//! Observers: what hears of every change of a key, however the command came to run.
//!
//! A unit's changes are taken from its shards' sinks when it ends, under its holds, and each observer is told of them once, in the
//! order in which they were made (`run/serve.rs`). An observer is a file here and a line in [`OBSERVERS`]. One that wants all
//! changes, and not only those of keys that somebody waits for or tracks, has its [`Hearer`] hear on the shards.

pub mod invalidations;
pub mod monitor;
pub mod recorder;

use braid_storage::{Change, Hearer};

use crate::shared::thread_state::ThreadState;

/// One who is told of changes.
pub struct Observer {
    /// Its name.
    pub name: &'static str,
    /// Hears of what a unit changed, in order, while the unit's shards are held: it must not block, lock or call the system.
    pub tell: fn(&[Change], &ThreadState),
}

/// All observers, in the order in which they are told.
pub const OBSERVERS: &[Observer] = &[
    Observer { name: "tracking", tell: invalidations::tell },
    Observer { name: "recorder", tell: recorder::tell },
];

/// What work on a shard of its own hears by, to store its result with the same events.
pub const TRANSFER: Hearer = Hearer::new(7);

/// What an observer hears of all changes by.
///
/// # Panics
/// If there is no observer of that name; in a constant, when that is compiled.
pub const fn hearer(name: &str) -> Hearer {
    let mut number = 0;
    while !is_same(OBSERVERS[number].name, name) {
        number += 1;
    }
    Hearer::new(number as u8)
}

const fn is_same(a: &str, b: &str) -> bool {
    let (a, b) = (a.as_bytes(), b.as_bytes());
    let mut at = 0;
    while at < a.len() && at < b.len() && a[at] == b[at] {
        at += 1;
    }
    a.len() == b.len() && at == a.len()
}

/// Tells all observers of changes.
pub fn tell(changes: &[Change], thread: &ThreadState) {
    OBSERVERS.iter().for_each(|observer| (observer.tell)(changes, thread));
}
