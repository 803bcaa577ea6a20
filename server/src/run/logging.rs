//! What a unit did goes into the log: at its end, under its holds, before anybody is told of it.

use braid_storage::record;

use crate::shared::thread_state::ThreadState;

/// Logs what the unit that ends has done, if anything is to be logged.
pub fn log_unit(thread: &ThreadState) {
    if !thread.server().journal.is_on() {
        return;
    }
    record::with(|record| {
        debug_assert!(
            !record.is_empty() || !record.has_changes(),
            "a unit has changed something, and the log has not been told"
        );
        if !record.is_empty() {
            thread.server().journal.note(record);
        }
    });
    record::clear();
}
