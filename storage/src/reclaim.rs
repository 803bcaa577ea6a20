//! Memory that is too much to free while a shard is held.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

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

/// What takes so long to free that it waits for a thread without sockets.
static LARGE_GARBAGE: SegQueue<(Garbage, usize)> = SegQueue::new();

/// The bytes in there.
static N_LARGE_BYTES: AtomicUsize = AtomicUsize::new(0);

/// When so many bytes wait, threads with sockets help, so that who makes garbage is slowed down by it.
const FLOOD_BYTES: usize = 256 << 20;

/// A thread with sockets frees no more than this at a time: some milliseconds.
const HELPED_MAX_BYTES: usize = 16 << 20;

/// How many entries and values have been freed so, and how many had been when counting started over.
static N_RECLAIMED: AtomicU64 = AtomicU64::new(0);
static N_RECLAIMED_BEFORE: AtomicU64 = AtomicU64::new(0);

enum Garbage {
    Entry(EntryBox),
    Table(Detached),
    Value(Box<dyn Send>),
}

impl Garbage {
    /// Leaves it to [`reclaim_large`].
    #[cold]
    fn leave(self, n_bytes: usize) {
        N_LARGE_BYTES.fetch_add(n_bytes, Ordering::Relaxed);
        LARGE_GARBAGE.push((self, n_bytes));
    }
}

/// Frees an entry, now or, if it is large, by and by.
#[inline]
pub(crate) fn free(entry: EntryBox) {
    let bytes = entry.as_ref().allocated_bytes();
    if bytes >= VERY_LARGE_BYTES {
        Garbage::Entry(entry).leave(bytes);
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

/// Frees bytes, now or, if they are many, later.
pub fn discard_bytes(bytes: Vec<u8>) {
    let capacity = bytes.capacity();
    if capacity >= VERY_LARGE_BYTES {
        Garbage::Value(Box::new(bytes)).leave(capacity);
    }
}

/// Does one bounded piece of freeing; says whether there may be more. To be called with no shard held.
pub fn reclaim() -> bool {
    let n_freed = match GARBAGE.pop() {
        None => return false,
        Some(Garbage::Entry(entry)) => {
            drop(entry);
            1
        }
        Some(Garbage::Value(value)) => {
            drop(value);
            1
        }
        Some(Garbage::Table(mut table)) => {
            let before = table.len();
            if table.free_some(STEP_ENTRIES) {
                let n_freed = before - table.len();
                GARBAGE.push(Garbage::Table(table));
                n_freed
            } else {
                before
            }
        }
    };
    N_RECLAIMED.fetch_add(n_freed as u64, Ordering::Relaxed);
    true
}

/// Frees one of the largest values, however long that takes; says whether there was one. To be called with no shard held, by
/// a thread that nobody waits for.
pub fn reclaim_large() -> bool {
    let Some((garbage, n_bytes)) = LARGE_GARBAGE.pop() else { return false };
    N_LARGE_BYTES.fetch_sub(n_bytes, Ordering::Relaxed);
    drop(garbage);
    N_RECLAIMED.fetch_add(1, Ordering::Relaxed);
    true
}

/// Frees one of the large values that is not too large for a thread with sockets, if so much waits that those who make it are to be
/// slowed down. To be called with no shard held.
pub fn help_reclaim_large() {
    if N_LARGE_BYTES.load(Ordering::Relaxed) < FLOOD_BYTES {
        return;
    }
    match LARGE_GARBAGE.pop() {
        Some((garbage, n_bytes)) if n_bytes > HELPED_MAX_BYTES => LARGE_GARBAGE.push((garbage, n_bytes)),
        Some((garbage, n_bytes)) => {
            N_LARGE_BYTES.fetch_sub(n_bytes, Ordering::Relaxed);
            drop(garbage);
            N_RECLAIMED.fetch_add(1, Ordering::Relaxed);
        }
        None => {}
    }
}

/// How many entries and values have been freed by and by since the start, or since [`reset_reclaimed`].
pub fn n_reclaimed() -> u64 {
    N_RECLAIMED.load(Ordering::Relaxed) - N_RECLAIMED_BEFORE.load(Ordering::Relaxed)
}

/// Starts [`n_reclaimed`] over.
pub fn reset_reclaimed() {
    N_RECLAIMED_BEFORE.store(N_RECLAIMED.load(Ordering::Relaxed), Ordering::Relaxed);
}

/// How many entries, values and flushed tables wait to be freed.
pub fn n_garbage() -> usize {
    GARBAGE.len() + LARGE_GARBAGE.len()
}

/// Whether anything waits for [`reclaim_large`].
pub fn has_large_garbage() -> bool {
    !LARGE_GARBAGE.is_empty()
}

/// Whether anything waits to be freed.
pub fn has_garbage() -> bool {
    !GARBAGE.is_empty()
}
