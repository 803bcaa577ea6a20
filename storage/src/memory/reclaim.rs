//! Reclamation: values that take too long to free while a shard is held.
//!
//! Large values wait as garbage, and are freed in steps that are short enough for a thread that serves
//! sockets. Every thread frees some in each of its turns, and more when much waits. So threads without other
//! work free it, a client that makes very much of it is slowed down, and no heavy work delays it. Bytes in
//! one piece cannot be freed in steps. Very long ones are left to threads without sockets.

use std::{
    cell::Cell,
    sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
};

use crossbeam_queue::SegQueue;

use crate::{
    entry::EntryBox,
    memory::{
        allocator,
        teardown::{Rubble, free_pieces},
    },
    table::{Detached, TakenTables, retired_bytes},
};

/// An entry of at least this size is not freed under the hold: that may take a system call.
pub(crate) const LARGE_BYTES: usize = 64 * 1024;

/// The pieces of a value, or entries of a flushed table, that one step frees; fewer if they are long: some 4
/// MiB of those. That takes tenths of a millisecond, since most are in no cache.
const STEP_COST: usize = 1024;

/// Cost of a flushed table itself, in entries.
const TABLE_COST: usize = 4;

/// Bytes in one piece of at least this size take too long to free for a thread that serves sockets.
const VERY_LARGE_BYTES: usize = 1 << 20;

/// The garbage that is freed in steps.
static GARBAGE: SegQueue<Garbage> = SegQueue::new();

/// Bytes in one piece that wait for a thread without sockets, because they take long to free, each with its
/// size.
static LARGE_GARBAGE: SegQueue<(LargeBlock, usize)> = SegQueue::new();

/// The bytes in [`LARGE_GARBAGE`].
static N_LARGE_BYTES: AtomicUsize = AtomicUsize::new(0);

/// The number of entries, values and flushed tables that are given up and not freed yet.
static N_PENDING: AtomicUsize = AtomicUsize::new(0);

/// The amount of garbage above which threads with sockets take more time for it, so that a client that makes
/// much is slowed down.
const FLOOD_BYTES: usize = 256 << 20;

/// The bytes of the garbage that is freed in steps.
static N_BYTES: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// The bytes that the thread has left to be freed later.
    static LEFT: Cell<usize> = const { Cell::new(0) };
}

/// A thread with sockets frees no more than this in one piece: some milliseconds.
const HELPED_MAX_BYTES: usize = 16 << 20;

/// The number of entries that were freed in this way, and the number when counting started over.
static N_RECLAIMED: AtomicU64 = AtomicU64::new(0);
static N_RECLAIMED_BEFORE: AtomicU64 = AtomicU64::new(0);

/// A value that is freed in steps.
enum Garbage {
    /// An entry and its bytes.
    Entry(EntryBox, usize),
    /// The rest of an entry and its bytes.
    Rubble(Box<dyn Rubble>, usize),
    /// A flushed database and its bytes.
    Table(Detached, usize),
    /// Flushed databases and their bytes: the one that is being freed, and those that are still whole.
    Tables(Option<Detached>, TakenTables, usize),
}

/// Bytes in one piece.
enum LargeBlock {
    Entry(EntryBox),
    /// Bytes that are no entry of their own.
    Part(Box<dyn Send>),
}

impl Garbage {
    /// Leaves the garbage to [`reclaim`].
    fn leave(self) {
        let bytes = self.bytes();
        N_PENDING.fetch_add(1, Relaxed);
        N_BYTES.fetch_add(bytes, Relaxed);
        LEFT.set(LEFT.get() + bytes);
        GARBAGE.push(self);
    }

    /// Frees a piece of the garbage, and puts the rest back.
    fn step(self) {
        let bytes = self.bytes();
        let (counted, left) = (allocator::counted_bytes(), LEFT.get());
        let rest = self.free_some();
        // The freed bytes, and the bytes that count as garbage of their own now.
        let freed = usize::try_from(counted - allocator::counted_bytes()).unwrap_or(0);
        let gone = (freed + (LEFT.get() - left)).min(bytes);
        match rest {
            Some(rest) => {
                N_BYTES.fetch_sub(gone, Relaxed);
                GARBAGE.push(rest.with_bytes(bytes - gone));
            }
            None => {
                N_BYTES.fetch_sub(bytes, Relaxed);
                N_PENDING.fetch_sub(1, Relaxed);
            }
        }
    }

    fn with_bytes(self, bytes: usize) -> Garbage {
        match self {
            Garbage::Entry(entry, _) => Garbage::Entry(entry, bytes),
            Garbage::Rubble(rubble, _) => Garbage::Rubble(rubble, bytes),
            Garbage::Table(table, _) => Garbage::Table(table, bytes),
            Garbage::Tables(table, others, _) => Garbage::Tables(table, others, bytes),
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Garbage::Entry(_, bytes)
            | Garbage::Rubble(_, bytes)
            | Garbage::Table(_, bytes)
            | Garbage::Tables(_, _, bytes) => *bytes,
        }
    }

    /// Frees a piece; returns the rest, if there is one.
    fn free_some(self) -> Option<Garbage> {
        match self {
            Garbage::Entry(entry, bytes) => {
                let rubble = entry.demolish().ok().and_then(|(shell, rubble)| {
                    let shell_bytes = shell.allocated_bytes();
                    free_piece(shell, shell_bytes);
                    rubble
                });
                N_RECLAIMED.fetch_add(1, Relaxed);
                rubble.map(|rubble| Garbage::Rubble(rubble, bytes))
            }
            Garbage::Rubble(mut rubble, bytes) => {
                let is_left = rubble.free_some(STEP_COST) >= STEP_COST;
                is_left.then_some(Garbage::Rubble(rubble, bytes))
            }
            Garbage::Table(mut table, bytes) => {
                free_entries(&mut table, STEP_COST);
                (table.len() > 0).then_some(Garbage::Table(table, bytes))
            }
            Garbage::Tables(mut table, mut others, bytes) => {
                let mut n_left = STEP_COST;
                while n_left > 0 {
                    let Some(current) = &mut table else {
                        match others.detach_one() {
                            Some((_, next)) => table = Some(next),
                            None => return None,
                        }
                        continue;
                    };
                    // A table costs as much as some entries.
                    n_left = n_left.saturating_sub(free_entries(current, n_left) + TABLE_COST);
                    if current.len() == 0 {
                        table = None;
                    }
                }
                Some(Garbage::Tables(table, others, bytes))
            }
        }
    }
}

/// Frees some entries of a flushed table; returns their cost.
fn free_entries(table: &mut Detached, cost_max: usize) -> usize {
    let mut n_freed = 0;
    let cost = free_pieces(table, cost_max, |entry| {
        let bytes = entry.as_ref().allocated_bytes();
        if bytes >= LARGE_BYTES && (bytes >= VERY_LARGE_BYTES || entry.as_ref().is_object()) {
            // It counts when it is freed.
            leave(entry, bytes);
            return 0;
        }
        n_freed += 1;
        bytes
    });
    N_RECLAIMED.fetch_add(n_freed, Relaxed);
    cost
}

impl LargeBlock {
    /// Leaves the bytes to [`reclaim_large`].
    #[cold]
    fn leave(self, n_bytes: usize) {
        N_PENDING.fetch_add(1, Relaxed);
        N_LARGE_BYTES.fetch_add(n_bytes, Relaxed);
        LEFT.set(LEFT.get() + n_bytes);
        LARGE_GARBAGE.push((self, n_bytes));
    }

    fn free(self, n_bytes: usize) {
        // The allocator counts it as freed at once, and the system may take its time.
        N_LARGE_BYTES.fetch_sub(n_bytes, Relaxed);
        match self {
            LargeBlock::Entry(entry) => {
                drop(entry);
                N_RECLAIMED.fetch_add(1, Relaxed);
            }
            LargeBlock::Part(part) => drop(part),
        }
        N_PENDING.fetch_sub(1, Relaxed);
    }
}

/// Frees an entry, now or, if it is large, in steps.
#[inline]
pub(crate) fn free(entry: EntryBox) {
    let bytes = entry.as_ref().allocated_bytes();
    if bytes >= LARGE_BYTES {
        leave(entry, bytes);
    }
}

#[cold]
fn leave(entry: EntryBox, bytes: usize) {
    if bytes >= VERY_LARGE_BYTES && !entry.as_ref().is_object() {
        LargeBlock::Entry(entry).leave(bytes);
    } else {
        Garbage::Entry(entry, bytes).leave();
    }
}

/// Gives up an entry that may share its value with another, which then may be changed at once.
pub fn release(entry: EntryBox) {
    if entry.as_ref().is_pinned() {
        // Only a reference goes, and the key.
        let key_bytes = entry.as_ref().key().len();
        if key_bytes < VERY_LARGE_BYTES {
            drop(entry);
        } else {
            LargeBlock::Entry(entry).leave(key_bytes);
        }
    } else {
        free(entry);
    }
}

/// Frees a flushed table of this size in steps.
pub(crate) fn free_table(table: Detached, bytes: usize) {
    Garbage::Table(table, bytes).leave();
}

/// Frees flushed tables of this size in steps.
pub(crate) fn free_tables(tables: TakenTables, bytes: usize) {
    if !tables.is_empty() {
        Garbage::Tables(None, tables, bytes).leave();
    }
}

/// Frees a part of a value that holds `bytes`: now, or, if they are many, in steps as the result of
/// `demolish`. Returns the bytes that it has freed at once.
pub(crate) fn free_part<T>(part: T, bytes: usize, demolish: impl FnOnce(T) -> Box<dyn Rubble>) -> usize {
    if bytes < LARGE_BYTES {
        return bytes;
    }
    Garbage::Rubble(demolish(part), bytes).leave();
    0
}

/// Frees a part of a value whose `bytes` are in one piece, now or, if they are very many, later. Returns the
/// bytes that it has freed at once.
pub(crate) fn free_piece(part: impl Send + 'static, bytes: usize) -> usize {
    if bytes < VERY_LARGE_BYTES {
        return bytes;
    }
    LargeBlock::Part(Box::new(part)).leave(bytes);
    0
}

/// Frees bytes, now or, if they are many, later.
pub fn discard_bytes(bytes: Vec<u8>) {
    let capacity = bytes.capacity();
    free_piece(bytes, capacity);
}

/// The entries of a table that was part of a value: their values are bytes.
impl Rubble for Detached {
    fn free_some(&mut self, max: usize) -> usize {
        free_pieces(self, max, |entry| {
            let bytes = entry.as_ref().allocated_bytes();
            free_piece(entry, bytes)
        })
    }
}

/// Frees one bounded piece; returns whether there may be more. Call it with no shard held.
pub fn reclaim() -> bool {
    match GARBAGE.pop() {
        Some(garbage) => {
            garbage.step();
            true
        }
        None => false,
    }
}

/// Frees one of the longest values, however long that takes; returns whether there was one. Call it with no
/// shard held, on a thread for which no client waits.
pub fn reclaim_large() -> bool {
    let Some((bytes, n_bytes)) = LARGE_GARBAGE.pop() else { return false };
    bytes.free(n_bytes);
    true
}

/// Whether so much waits in long pieces that it should be freed before more is made.
pub fn has_much_large_garbage() -> bool {
    const MUCH_BYTES: usize = 32 << 20;
    N_LARGE_BYTES.load(Relaxed) >= MUCH_BYTES
}

/// Frees a long value, unless it is too long for a thread with sockets. Does so only if so much waits that
/// the clients that make it must be slowed down. Call it with no shard held.
pub fn help_reclaim_large() {
    if N_LARGE_BYTES.load(Relaxed) < FLOOD_BYTES {
        return;
    }
    match LARGE_GARBAGE.pop() {
        Some((bytes, n_bytes)) if n_bytes > HELPED_MAX_BYTES => LARGE_GARBAGE.push((bytes, n_bytes)),
        Some((bytes, n_bytes)) => bytes.free(n_bytes),
        None => {}
    }
}

/// Whether so much waits for [`reclaim`] that threads with sockets should take more time for it than usual.
pub fn is_flooded() -> bool {
    N_BYTES.load(Relaxed) >= FLOOD_BYTES
}

/// The number of entries that were freed in steps since the start, or since [`reset_reclaimed`].
pub fn n_reclaimed() -> u64 {
    N_RECLAIMED.load(Relaxed) - N_RECLAIMED_BEFORE.load(Relaxed)
}

/// Starts [`n_reclaimed`] over.
pub fn reset_reclaimed() {
    N_RECLAIMED_BEFORE.store(N_RECLAIMED.load(Relaxed), Relaxed);
}

/// The bytes of all garbage.
pub fn garbage_bytes() -> u64 {
    (N_BYTES.load(Relaxed) + N_LARGE_BYTES.load(Relaxed) + retired_bytes()) as u64
}

/// The number of entries, parts of values and flushed tables that wait to be freed.
pub fn n_garbage() -> usize {
    N_PENDING.load(Relaxed)
}

/// Whether the garbage is worth waking a thread without sockets.
pub fn wants_idle_threads() -> bool {
    !LARGE_GARBAGE.is_empty() || (N_BYTES.load(Relaxed) >= VERY_LARGE_BYTES && has_garbage())
}

/// Whether anything waits to be freed in steps.
pub fn has_garbage() -> bool {
    !GARBAGE.is_empty()
}
