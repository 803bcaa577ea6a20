//! Snapshots: what a shard held at one moment, written while the shard goes on changing, without a copy of
//! the process.
//!
//! ```text
//! cut    all shards are held for a moment: each begins to save ([`Saving::new`])
//! walk   step by step, under a hold each, by positions: what is passed is encoded, or, if it is large, shared and pinned
//! change what has not been passed is encoded before it is changed, and marked; what comes into being is marked, too
//! ```
//!
//! **An unsaved entry has its value of the cut.** An entry is *unsaved* if the walk has not passed its
//! position and it is not marked. Whatever changes, replaces or removes an entry asks first
//! ([`Ledger::before_change`](crate::ledger::Ledger)), so the value goes to the snapshot before it is
//! another, and exactly once: then the entry is marked, or gone. A key of the cut is either passed as it was,
//! or was saved before its first change; a key that came later is marked, or lies where the walk has been.
//!
//! The mark is a bit of the entry, so it goes with the entry through splits and merges of the table, and
//! costs no memory. The walk clears it when it passes: when no snapshot runs no entry is marked, and entries
//! that are made need not know of any of this.
//!
//! What is saved early is handed on in chunks, so that it is written soon, and not only when the walk comes
//! to its shard: see [`Early`]. A database that is flushed in the middle is handed to the walk as it is, and
//! so are large values that are removed: nobody else has them any more.

use std::{collections::HashMap, sync::Arc};

pub use copy_before_write::Early;

use crate::{
    Db,
    entry::{EntryBox, EntryRef},
    hash::{Place, Router},
    lru::Access,
    table::{Detached, Position},
    time::Millis,
};

mod copy_before_write;

/// A shard that has not yet given all that it held at the cut.
pub(crate) struct Saving {
    /// How far the walk has come in the first database.
    first: TableSaving,
    /// The same of others, as they are numbered now, if the walk has come to them or they have been swapped
    /// or flushed. Of one that is not here nothing is passed.
    others: HashMap<Db, TableSaving>,
    /// The place of the table, among those of the shard, that the walk has come to.
    nth: usize,
    /// What was saved before its turn, and is no full chunk yet.
    chunk: Encoded,
    /// Where full chunks go.
    early: Arc<Early>,
    /// What was removed before its turn, and is not encoded.
    kept: Parts,
    format: &'static Format,
    /// Tells how keys were used, if the snapshot is to.
    uses: Option<Arc<Access>>,
    /// Nobody wants it any more: the walk goes on only to clear the marks.
    is_given_up: bool,
}

/// How far the walk through a database has come.
#[derive(Clone, Copy)]
struct TableSaving {
    /// The database's number at the cut.
    was: Db,
    /// What lies before has been passed; `None`: all has.
    passed: Option<Position>,
}

impl TableSaving {
    fn not_begun(db: Db) -> Self {
        Self { was: db, passed: Some(Position::START) }
    }
}

/// How entries are written. Types' own files know that, which use what uses this.
pub(crate) struct Format {
    /// Adds an entry, with how it was used if that is told; returns false if all of it has expired, and
    /// nothing is added.
    pub(crate) encode: fn(&mut Vec<u8>, EntryRef<'_>, Option<&Access>, Millis) -> bool,
    /// Whether that takes long.
    pub(crate) is_large: fn(EntryRef<'_>) -> bool,
}

/// Parts of a snapshot, as one step or more have given them.
#[derive(Default)]
pub struct Parts {
    /// Entries as the file has them, by the number that their database had at the cut.
    pub encoded: Vec<Encoded>,
    /// Large values that stay where they are: their keys are pinned.
    pub pinned: Vec<PinnedPart>,
    /// Large values that have been removed.
    pub removed: Vec<(Db, EntryBox)>,
    /// Databases that have been flushed.
    pub flushed: Vec<FlushedPart>,
    /// Memory for more.
    spare: Vec<u8>,
}

/// Entries of one database as the file has them.
#[derive(Default)]
pub struct Encoded {
    /// The number that the database had at the cut.
    pub db: Db,
    /// The entries, one after the other.
    pub bytes: Vec<u8>,
    /// How many there are.
    pub n_keys: u64,
}

/// A large value that is to be encoded without the hold.
pub struct PinnedPart {
    /// The number that the database had at the cut.
    pub db: Db,
    /// The number that it had when the key was pinned.
    pub pinned_in: Db,
    /// The value, with its key.
    pub entry: EntryBox,
}

/// A database that was flushed before all of it was saved.
pub struct FlushedPart {
    /// The number that it had at the cut.
    db: Db,
    entries: Detached,
    /// What lies before is saved.
    passed: Position,
    router: Router,
}

/// What has become of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SaveStep {
    /// The shard has more.
    More,
    /// It has given all.
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

    /// Has what is encoded next be put into memory that has been used before.
    pub fn reuse(&mut self, mut bytes: Vec<u8>) {
        bytes.clear();
        self.spare = bytes;
    }

    /// How many keys there are, but for those of flushed databases.
    pub fn n_keys(&self) -> u64 {
        let encoded: u64 = self.encoded.iter().map(|part| part.n_keys).sum();
        encoded + (self.pinned.len() + self.removed.len()) as u64
    }

    /// How many bytes are encoded.
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

    /// The next entry that is not saved; those that are, are freed on the way.
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
            crate::reclaim::free(entry);
        }
    }
}

impl Saving {
    /// Begins to save what all databases hold.
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

    /// Whether an entry has its value of the cut, which nobody has yet.
    #[inline]
    pub(crate) fn is_unsaved(&self, db: Db, place: Place, entry: EntryRef<'_>) -> bool {
        self.is_ahead(db, place) && !entry.in_snapshot()
    }

    /// Whether the walk has yet to come to a place.
    #[inline]
    pub(crate) fn is_ahead(&self, db: Db, place: Place) -> bool {
        self.of(db).passed.is_some_and(|passed| !passed.has_passed(place))
    }

    /// Whether that is so of an entry, and it takes long to save it.
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

    /// Saves an entry that was removed; gives it back if it is to be freed.
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

    /// Marks an entry that has just been changed or made: what it holds now is not for the snapshot.
    pub(crate) fn mark(&self, db: Db, place: Place, entry: EntryRef<'_>) {
        if self.is_ahead(db, place) {
            entry.set_in_snapshot(true);
        }
    }

    /// Keeps what a database held that is flushed, unless all of it is saved.
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

    /// Follows a swap of two databases. The walk goes back to the first of their tables: what has come there
    /// it may not have passed.
    pub(crate) fn swap(&mut self, a: Db, b: Db, first_place: Option<usize>) {
        let (of_a, of_b) = (self.of(a), self.of(b));
        *self.of_mut(a) = of_b;
        *self.of_mut(b) = of_a;
        self.go_back(first_place.unwrap_or(usize::MAX));
    }

    /// Has the walk go back to a place: other tables stand there from now on.
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

    /// Has nothing more be encoded.
    pub(crate) fn give_up(&mut self) {
        self.is_given_up = true;
        self.chunk = Encoded::default();
        self.kept = Parts::default();
    }

    /// The place of the table that the walk has come to.
    pub(crate) fn nth(&self) -> usize {
        self.nth
    }

    /// How far the walk is in the database of that table, and the number that this had at the cut; none if
    /// all of it is passed.
    pub(crate) fn stands_at(&self, db: Db) -> Option<(Db, Position)> {
        let TableSaving { was, passed } = self.of(db);
        Some((was, passed?))
    }

    /// Has the walk go on to the next table.
    pub(crate) fn go_on(&mut self) {
        self.nth += 1;
    }

    /// Passes an entry, which is of a database that had this number: it is saved, unless it is marked, and
    /// not marked any more. One that is large is left to `large`.
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

    /// Notes how far the walk has come in a database.
    pub(crate) fn pass(&mut self, db: Db, to: Option<Position>) {
        self.of_mut(db).passed = to;
    }

    /// Hands out what was saved early and is still here.
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
