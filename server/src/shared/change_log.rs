//! The changes that DEBUG RECORD-CHANGES keeps.

use braid_storage::{entry::db::Db, observers::event::Event};
use crossbeam_queue::SegQueue;

/// A recorded change.
pub struct Recorded {
    /// The database.
    pub db: Db,
    /// The event.
    pub event: Event,
    /// The key, if the event concerns one.
    pub key: Option<Box<[u8]>>,
}

/// The changes of all threads. Those of a key are in the order in which they were made.
#[derive(Default)]
pub struct RecordedChanges(pub SegQueue<Recorded>);

impl RecordedChanges {
    /// Takes the changes recorded since the last call.
    pub fn take(&self) -> Vec<Recorded> {
        std::iter::from_fn(|| self.0.pop()).collect()
    }
}
