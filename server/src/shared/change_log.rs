//! The changes that DEBUG RECORD-CHANGES keeps.

use braid_storage::{Db, Event};
use crossbeam_queue::SegQueue;

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
pub struct Recorder(pub SegQueue<Recorded>);

impl Recorder {
    /// Takes what was recorded since the last call.
    pub fn take(&self) -> Vec<Recorded> {
        std::iter::from_fn(|| self.0.pop()).collect()
    }
}
