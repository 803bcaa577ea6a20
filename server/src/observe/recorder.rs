//! Keeps changes for DEBUG CHANGES, so that tests see that observers hear of each once and in order.

use braid_storage::{Change, Db, Event, Hearer};
use crossbeam_queue::SegQueue;

use crate::{io::ThreadState, observe};

/// What it hears by.
pub const HEARER: Hearer = observe::hearer("recorder");

/// How many changes are kept at the most: what comes after them is not.
const RECORDED_MAX: usize = 100_000;

/// A change that was recorded.
pub struct Recorded {
    /// The database.
    pub db: Db,
    /// What happened.
    pub event: Event,
    /// The key, if it happened to one.
    pub key: Option<Box<[u8]>>,
}

/// The changes of all threads. Those of a key are in the order in which they were made.
#[derive(Default)]
pub struct Recorder(SegQueue<Recorded>);

impl Recorder {
    /// Takes what was recorded since the last call.
    pub fn take(&self) -> Vec<Recorded> {
        std::iter::from_fn(|| self.0.pop()).collect()
    }
}

/// Records changes while DEBUG RECORD-CHANGES is on.
pub fn tell(changes: &[Change], thread: &ThreadState) {
    let server = thread.server();
    if !server.records_changes.load(std::sync::atomic::Ordering::Relaxed) {
        return;
    }
    let Recorder(recorded) = &server.recorder;
    for change in changes {
        if recorded.len() < RECORDED_MAX {
            recorded.push(Recorded { db: change.db, event: change.event, key: change.key.clone() });
        }
    }
}
