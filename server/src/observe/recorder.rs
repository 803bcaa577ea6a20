//! Keeps changes for DEBUG CHANGES.
//!
//! So tests can check that observers learn of each once and in order.

use braid_storage::observers::ledger::Change;

use crate::shared::{
    change_log::{Recorded, RecordedChanges},
    thread_state::ThreadState,
};

/// The maximum of kept changes. Later ones are dropped.
const RECORDED_MAX: usize = 100_000;

/// Records changes while DEBUG RECORD-CHANGES is on.
pub fn tell(changes: &[Change], thread: &ThreadState) {
    let server = thread.server();
    if !server.debug.records_changes.load(std::sync::atomic::Ordering::Relaxed) {
        return;
    }
    let RecordedChanges(recorded) = &server.debug.recorder;
    for change in changes {
        if recorded.len() < RECORDED_MAX {
            recorded.push(Recorded { db: change.db, event: change.event, key: change.key.clone() });
        }
    }
}
