//! Memory that is too much to free while a shard is held.

use crossbeam_queue::SegQueue;

use crate::{entry::EntryBox, table::Detached};

/// An entry of at least so many bytes is not freed under the hold: that may take a system call.
pub(crate) const LARGE_BYTES: usize = 64 * 1024;

/// How many entries of a flushed table are freed at a time.
const STEP_ENTRIES: usize = 4096;

/// What waits to be freed.
static GARBAGE: SegQueue<Garbage> = SegQueue::new();

enum Garbage {
    Entry(EntryBox),
    Table(Detached),
}

/// Frees an entry, now or, if it is large, by and by.
#[inline]
pub(crate) fn free(entry: EntryBox) {
    if entry.as_ref().allocated_bytes() >= LARGE_BYTES {
        GARBAGE.push(Garbage::Entry(entry));
    }
}

/// Frees a flushed table by and by.
pub(crate) fn free_table(table: Detached) {
    GARBAGE.push(Garbage::Table(table));
}

/// Does one bounded piece of freeing; says whether there may be more. To be called with no shard held.
pub fn reclaim() -> bool {
    match GARBAGE.pop() {
        None => false,
        Some(Garbage::Entry(entry)) => {
            drop(entry);
            true
        }
        Some(Garbage::Table(mut table)) => {
            if table.free_some(STEP_ENTRIES) {
                GARBAGE.push(Garbage::Table(table));
            }
            true
        }
    }
}

/// Whether anything waits to be freed.
pub fn has_garbage() -> bool {
    !GARBAGE.is_empty()
}
