//! Snapshots: the data of a shard at one moment, written while the shard goes on changing, without a copy of
//! the process.
//!
//! ```text
//! cut    all shards are held for a moment: each begins to save ([`Saving::new`])
//! walk   step by step, under a hold each, by positions: what is passed is encoded, or, if it is large, shared and pinned
//! change what has not been passed is encoded before it is changed, and marked; what comes into being is marked, too
//! ```
//!
//! **An unsaved entry has its value of the cut.** An entry is *unsaved* if the walk has not passed its
//! position and it is not marked. Code that changes, replaces or removes an entry first calls
//! [`Ledger::before_change`](crate::observers::ledger::Ledger). So the value goes to the snapshot before it
//! changes, and exactly once: then the entry is marked, or gone. A key of the cut is either passed unchanged,
//! or was saved before its first change. A key that came later is marked, or lies where the walk has been.
//!
//! The mark is a bit of the entry, so it goes with the entry through splits and merges of the table, and
//! costs no memory. The walk clears it when it passes. So no entry is marked when no snapshot runs, and code
//! that makes entries need not know of any of this.
//!
//! Early values are passed on in chunks, so that they are written soon, and not only when the walk comes to
//! their shard: see [`Early`]. A database that is flushed in the middle is passed to the walk whole, and so
//! are large values that are removed: they have no other owner any more.

use std::{collections::HashMap, sync::Arc};

pub use copy_before_write::Early;

use crate::{
    entry::{EntryBox, EntryRef, db::Db, lru::Access, time::Millis},
    table::{
        Detached, Position,
        hash::{Place, Router},
    },
};

mod copy_before_write;

/// A shard that has not yet given all that it held at the cut.
pub(crate) struct Saving {
    /// The progress of the walk in the first database.
    first: TableSaving,
    /// The progress in others, by present number, if the walk has come to them or they have been swapped or
    /// flushed. In a database that is not here nothing is passed.
    others: HashMap<Db, TableSaving>,
    /// The place of the table, among those of the shard, that the walk has come to.
    nth: usize,
    /// Early values that fill no chunk yet.
    chunk: Encoded,
    /// The destination of full chunks.
    early: Arc<Early>,
    /// Values that were removed before their turn, and are not encoded.
    kept: Parts,
    format: &'static Format,
    /// The uses of keys, if the snapshot contains them.
    uses: Option<Arc<Access>>,
    /// Whether the snapshot is given up: the walk goes on only to clear the marks.
    is_given_up: bool,
}

/// The progress of the walk through a database.
#[derive(Clone, Copy)]
struct TableSaving {
    /// The database's number at the cut.
    was: Db,
    /// All entries before this are passed; `None`: all are.
    passed: Option<Position>,
}

impl TableSaving {
    fn not_begun(db: Db) -> Self {
        Self { was: db, passed: Some(Position::START) }
    }
}

/// The functions that write entries. They are injected, because they know the types' own files, which use
/// this one.
pub(crate) struct Format {
    /// Adds an entry, with its use if that is included. Returns false, and adds nothing, if all of it has
    /// expired.
    pub(crate) encode: fn(&mut Vec<u8>, EntryRef<'_>, Option<&Access>, Millis) -> bool,
    /// Whether the encoding of an entry takes long.
    pub(crate) is_large: fn(EntryRef<'_>) -> bool,
}

/// Parts of a snapshot from one or more steps.
#[derive(Default)]
pub struct Parts {
    /// Entries in the format of the file, by the number that their database had at the cut.
    pub encoded: Vec<Encoded>,
    /// Large values that stay in place: their keys are pinned.
    pub pinned: Vec<PinnedPart>,
    /// Large values that have been removed.
    pub removed: Vec<(Db, EntryBox)>,
    /// Databases that have been flushed.
    pub flushed: Vec<FlushedPart>,
    /// Memory for more parts.
    spare: Vec<u8>,
}

/// Entries of one database in the format of the file.
#[derive(Default)]
pub struct Encoded {
    /// The number that the database had at the cut.
    pub db: Db,
    /// The entries, one after the other.
    pub bytes: Vec<u8>,
    /// The number of entries.
    pub n_keys: u64,
}

/// A large value that must be encoded without the hold.
pub struct PinnedPart {
    /// The number that the database had at the cut.
    pub db: Db,
    /// The number that the database had when the key was pinned.
    pub pinned_in: Db,
    /// The value, with its key.
    pub entry: EntryBox,
}

/// A database that was flushed before all of it was saved.
pub struct FlushedPart {
    /// The number that the database had at the cut.
    db: Db,
    entries: Detached,
    /// The entries before this are saved.
    passed: Position,
    router: Router,
}

/// The result of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SaveStep {
    /// The shard has more.
    More,
    /// The shard is finished.
    Done,
}

impl Parts {
    /// Encodes an entry, unless all of it has expired.
    fn encode(&mut self, db: Db, entry: EntryRef<'_>, now: Millis, format: &Format, uses: Option<&Access>) {
        let part = match self.encoded.last_mut() {
            Some(last) if last.db == db => last,
            _ => {
                let bytes = std::mem::take(&mut self.spare);
                self.encoded.push(Encoded { db, bytes, n_keys: 0 });
                self.encoded.last_mut().expect("it was added just now")
            }
        };
        part.add(entry, now, format, uses);
    }

    /// Reuses memory for the entries that are encoded next.
    pub fn reuse(&mut self, mut bytes: Vec<u8>) {
        bytes.clear();
        self.spare = bytes;
    }

    /// The number of keys, without those of flushed databases.
    pub fn n_keys(&self) -> u64 {
        let encoded: u64 = self.encoded.iter().map(|part| part.n_keys).sum();
        encoded + (self.pinned.len() + self.removed.len()) as u64
    }

    /// The number of encoded bytes.
    pub fn n_bytes(&self) -> usize {
        self.encoded.iter().map(|part| part.bytes.len()).sum()
    }
}

impl Encoded {
    /// Adds an entry, unless all of it has expired.
    fn add(&mut self, entry: EntryRef<'_>, now: Millis, format: &Format, uses: Option<&Access>) {
        self.n_keys += u64::from((format.encode)(&mut self.bytes, entry, uses, now));
    }
}

impl FlushedPart {
    /// The number that the database had at the cut.
    pub fn db(&self) -> Db {
        self.db
    }
}

impl Iterator for FlushedPart {
    type Item = EntryBox;

    /// Returns the next entry that is not saved; frees the saved ones on the way.
    fn next(&mut self) -> Option<EntryBox> {
        loop {
            let entry = self.entries.next()?;
            let is_saved = {
                let entry = entry.as_ref();
                entry.in_snapshot() || self.passed.has_passed(self.router.place(entry.key()))
            };
            if !is_saved {
                return Some(entry);
            }
            crate::memory::reclaim::free(entry);
        }
    }
}

impl Saving {
    /// Begins to save the contents of all databases.
    pub(crate) fn new(format: &'static Format, uses: Option<Arc<Access>>, early: Arc<Early>) -> Self {
        Self {
            first: TableSaving::not_begun(Db(0)),
            others: HashMap::new(),
            nth: 0,
            chunk: Encoded::default(),
            early,
            kept: Parts::default(),
            format,
            uses,
            is_given_up: false,
        }
    }

    /// Whether an entry has its value of the cut, and that is not saved yet.
    #[inline]
    pub(crate) fn is_unsaved(&self, db: Db, place: Place, entry: EntryRef<'_>) -> bool {
        self.is_ahead(db, place) && !entry.in_snapshot()
    }

    /// Whether the walk has yet to come to a place.
    #[inline]
    pub(crate) fn is_ahead(&self, db: Db, place: Place) -> bool {
        self.of(db).passed.is_some_and(|passed| !passed.has_passed(place))
    }

    /// Whether an entry is unsaved, and saving it takes long.
    pub(crate) fn is_large_unsaved(&self, db: Db, place: Place, entry: EntryRef<'_>) -> bool {
        !self.is_given_up && (self.format.is_large)(entry) && self.is_unsaved(db, place, entry)
    }

    /// Saves an entry before it is changed.
    pub(crate) fn save_early(&mut self, db: Db, place: Place, entry: EntryRef<'_>, now: Millis) {
        if self.is_unsaved(db, place, entry) {
            if !self.is_given_up {
                self.encode_early(self.of(db).was, entry, now);
            }
            entry.set_in_snapshot(true);
        }
    }

    fn encode_early(&mut self, was: Db, entry: EntryRef<'_>, now: Millis) {
        if self.chunk.db != was || self.chunk.bytes.capacity() == 0 {
            let chunk = self.early.exchange(std::mem::take(&mut self.chunk));
            self.chunk = Encoded { db: was, ..chunk };
        }
        self.chunk.add(entry, now, self.format, self.uses.as_deref());
        if Early::is_full(&self.chunk) {
            let chunk = self.early.exchange(std::mem::take(&mut self.chunk));
            self.chunk = Encoded { db: was, ..chunk };
        }
    }

    /// Saves an entry that was removed; returns it if it must be freed.
    pub(crate) fn keep_removed(
        &mut self,
        db: Db,
        place: Place,
        entry: EntryBox,
        now: Millis,
    ) -> Option<EntryBox> {
        if self.is_unsaved(db, place, entry.as_ref()) && !self.is_given_up {
            let was = self.of(db).was;
            if (self.format.is_large)(entry.as_ref()) {
                self.kept.removed.push((was, entry));
                return None;
            }
            self.encode_early(was, entry.as_ref(), now);
        }
        entry.as_ref().set_in_snapshot(false);
        Some(entry)
    }

    /// Marks an entry that was just changed or made: its present value is not for the snapshot.
    pub(crate) fn mark(&self, db: Db, place: Place, entry: EntryRef<'_>) {
        if self.is_ahead(db, place) {
            entry.set_in_snapshot(true);
        }
    }

    /// Keeps the contents of a flushed database, unless all of it is saved.
    pub(crate) fn keep_flushed(&mut self, db: Db, entries: Detached, router: Router) -> Option<Detached> {
        let TableSaving { was, passed } = self.of(db);
        self.pass(db, None);
        match passed {
            Some(passed) if !self.is_given_up => {
                self.kept.flushed.push(FlushedPart { db: was, entries, passed, router });
                None
            }
            _ => Some(entries),
        }
    }

    /// Follows a swap of two databases. The walk goes back to the first of their tables, because it may not
    /// have passed the entries that came there.
    pub(crate) fn swap(&mut self, a: Db, b: Db, first_place: Option<usize>) {
        let (of_a, of_b) = (self.of(a), self.of(b));
        *self.of_mut(a) = of_b;
        *self.of_mut(b) = of_a;
        self.go_back(first_place.unwrap_or(usize::MAX));
    }

    /// Moves the walk back to a place that has another table from now on.
    pub(crate) fn go_back(&mut self, to: usize) {
        self.nth = self.nth.min(to);
    }

    #[inline]
    fn of(&self, db: Db) -> TableSaving {
        match db {
            Db(0) => self.first,
            db => self.others.get(&db).copied().unwrap_or(TableSaving::not_begun(db)),
        }
    }

    fn of_mut(&mut self, db: Db) -> &mut TableSaving {
        match db {
            Db(0) => &mut self.first,
            db => self.others.entry(db).or_insert(TableSaving::not_begun(db)),
        }
    }

    /// Stops the encoding of further entries.
    pub(crate) fn give_up(&mut self) {
        self.is_given_up = true;
        self.chunk = Encoded::default();
        self.kept = Parts::default();
    }

    /// The place of the table that the walk has come to.
    pub(crate) fn nth(&self) -> usize {
        self.nth
    }

    /// The position of the walk in the database of that table, and the database's number at the cut. None if
    /// all of it is passed.
    pub(crate) fn stands_at(&self, db: Db) -> Option<(Db, Position)> {
        let TableSaving { was, passed } = self.of(db);
        Some((was, passed?))
    }

    /// Moves the walk on to the next table.
    pub(crate) fn go_on(&mut self) {
        self.nth += 1;
    }

    /// Passes an entry of a database that had the number `was`. Saves it unless it is marked, and clears the
    /// mark. A large one is left to `large`.
    pub(crate) fn pass_entry(
        &self,
        was: Db,
        entry: EntryRef<'_>,
        now: Millis,
        to: &mut Parts,
        large: impl FnOnce(&mut Parts),
    ) {
        if entry.in_snapshot() || self.is_given_up {
            entry.set_in_snapshot(false);
        } else if (self.format.is_large)(entry) {
            large(to);
        } else {
            to.encode(was, entry, now, self.format, self.uses.as_deref());
        }
    }

    /// Records the progress of the walk in a database.
    pub(crate) fn pass(&mut self, db: Db, to: Option<Position>) {
        self.of_mut(db).passed = to;
    }

    /// Hands out the early values that are still here.
    pub(crate) fn take_early(&mut self, to: &mut Parts) {
        if !self.chunk.bytes.is_empty() {
            to.encoded.push(std::mem::take(&mut self.chunk));
        }
        to.removed.append(&mut self.kept.removed);
        to.flushed.append(&mut self.kept.flushed);
    }
}

#[cfg(test)]
mod tests;
