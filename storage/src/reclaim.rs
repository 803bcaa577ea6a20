//! Memory that is too much to free while a shard is held.

use crossbeam_queue::SegQueue;

use crate::{entry::EntryBox, table::Detached};

/// An entry of at least so many bytes is not freed under the hold: that may take a system call.
pub(crate) const LARGE_BYTES: usize = 64 * 1024;

/// How many entries of a flushed table are freed at a time.
const STEP_ENTRIES: usize = 4096;

/// An entry of at least so many bytes takes too long to be freed by a thread that serves sockets.
const VERY_LARGE_BYTES: usize = 1 << 20;

/// What waits to be freed.
static GARBAGE: SegQueue<Garbage> = SegQueue::new();

/// Entries that wait to be freed by a thread that has nothing better to do.
static LARGE_GARBAGE: SegQueue<EntryBox> = SegQueue::new();

enum Garbage {
    Entry(EntryBox),
    Table(Detached),
    Value(Box<dyn Send>),
}

/// Frees an entry, now or, if it is large, by and by.
#[inline]
pub(crate) fn free(entry: EntryBox) {
    let bytes = entry.as_ref().allocated_bytes();
    if bytes >= VERY_LARGE_BYTES {
        LARGE_GARBAGE.push(entry);
    } else if bytes >= LARGE_BYTES {
        GARBAGE.push(Garbage::Entry(entry));
    }
}

/// Gives up an entry that may share its value with another, which then may be changed at once.
pub fn release(entry: EntryBox) {
    if entry.as_ref().is_pinned() {
        // Only a reference goes.
        drop(entry);
    } else {
        free(entry);
    }
}

/// Frees a flushed table by and by.
pub(crate) fn free_table(table: Detached) {
    GARBAGE.push(Garbage::Table(table));
}

/// Frees a part of a value that holds so many bytes, now or, if they are many, by and by.
pub(crate) fn free_value(value: impl Send + 'static, bytes: usize) {
    if bytes >= LARGE_BYTES {
        GARBAGE.push(Garbage::Value(Box::new(value)));
    }
}

/// Does one bounded piece of freeing; says whether there may be more. To be called with no shard held.
pub fn reclaim() -> bool {
    match GARBAGE.pop() {
        None => false,
        Some(Garbage::Entry(entry)) => {
            drop(entry);
            true
        }
        Some(Garbage::Value(value)) => {
            drop(value);
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

/// Frees one of the largest entries, however long that takes; says whether there was one. To be called with no shard held, by
/// a thread that nobody waits for.
pub fn reclaim_large() -> bool {
    LARGE_GARBAGE.pop().is_some()
}

/// Whether anything waits for [`reclaim_large`].
pub fn has_large_garbage() -> bool {
    !LARGE_GARBAGE.is_empty()
}

/// Whether anything waits to be freed.
pub fn has_garbage() -> bool {
    !GARBAGE.is_empty()
}
