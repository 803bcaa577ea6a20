//! The record of the unit under way, for the log: the commands that repeat the unit's effect.
//!
//! A unit runs on one thread, whatever shards it holds and whatever handlers do its work, so its record
//! belongs to that thread. Shards that [`LOG`] hears count their changes here, and record keys that expired
//! or were evicted. Some handlers would not have the same effect again, and record other words
//! ([`Shard::log`](crate::keyspace::shard::Shard::log)). The caller of a handler adds the words of all
//! others. It takes the record at the unit's end, before the shards are released.

use std::cell::RefCell;

use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::{
    entry::{self, Pinned, db::Db},
    observers::{event::Event, ledger::Hearer},
};

/// The hearer for which changes are recorded. It is not told of them.
pub const LOG: Hearer = Hearer::new(5);

/// Words in one buffer, one after the other.
#[derive(Default)]
struct Commands {
    bytes: Vec<u8>,
    /// The end of each word in `bytes`.
    ends: Vec<usize>,
    /// Long words, by number, that are shared with the request in which they came. They take nothing of
    /// `bytes`.
    shared: Vec<(usize, Pinned)>,
    /// For each command its database and the end of its words in `ends`.
    commands: Vec<(Db, usize)>,
}

impl Commands {
    fn add<'w>(&mut self, db: Db, words: impl IntoIterator<Item = &'w [u8]>) {
        for word in words {
            match entry::offered_blob(word) {
                Some(blob) => self.shared.push((self.ends.len(), blob)),
                None => self.bytes.extend_from_slice(word),
            }
            self.ends.push(self.bytes.len());
        }
        self.commands.push((db, self.ends.len()));
    }

    fn iter(&self) -> impl Iterator<Item = Recorded<'_>> {
        let mut first = 0usize;
        self.commands.iter().map(move |&(db, end)| {
            let from = first.checked_sub(1).map_or(0, |before| self.ends[before]);
            let words = first..end;
            first = end;
            Recorded { db, of: self, from, words: (words.start, words.end) }
        })
    }

    fn truncate(&mut self, n_commands: usize) {
        self.commands.truncate(n_commands);
        self.ends.truncate(self.commands.last().map_or(0, |&(_, end)| end));
        self.bytes.truncate(self.ends.last().copied().unwrap_or(0));
        self.shared.retain(|&(nth, _)| nth < self.ends.len());
    }

    fn clear(&mut self) {
        const KEPT_BYTES: usize = 64 << 10;
        self.truncate(0);
        if self.bytes.capacity() > KEPT_BYTES {
            *self = Self::default();
        }
    }
}

/// One command of a record, or one removed key or field.
#[derive(Clone, Copy)]
pub struct Recorded<'r> {
    /// The database of the command.
    pub db: Db,
    of: &'r Commands,
    /// The start of the first word in the bytes.
    from: usize,
    /// The number of the first word, and of the first that belongs to the next command.
    words: (usize, usize),
}

impl<'r> Recorded<'r> {
    /// The number of words.
    pub fn n_words(self) -> usize {
        self.words.1 - self.words.0
    }

    /// The words of the command.
    pub fn words(self) -> impl Iterator<Item = &'r [u8]> {
        let Commands { bytes, ends, shared, .. } = self.of;
        let mut from = self.from;
        (self.words.0..self.words.1).map(move |nth| {
            let end = ends[nth];
            let own = &bytes[std::mem::replace(&mut from, end)..end];
            let blob = shared.iter().find(|(shared, _)| *shared == nth);
            blob.map_or(own, |(_, blob)| blob)
        })
    }
}

/// The effect of a unit.
#[derive(Default)]
pub struct Record {
    /// Keys, and keys with fields, that were removed because they expired or memory was short.
    gone: Commands,
    commands: Commands,
    /// The number of changes for which a command must account.
    n_changes: u64,
    /// The places of the keys that were changed. A unit without effect may leave some.
    touched: Vec<u64>,
    /// Whether whole databases were changed.
    touches_all: bool,
}

/// The keys that a unit has changed.
#[derive(Clone, Copy, Debug)]
pub enum Touched<'r> {
    /// The keys of these places, and perhaps none of them.
    Places(&'r [u64]),
    /// Perhaps all.
    All,
}

/// The place of a key for a record of last changes: a hash, so other keys may have the same.
pub fn place_of(db: Db, key: &[u8]) -> u64 {
    xxh3_64_with_seed(key, u64::from(db.0))
}

impl Record {
    /// Whether there is nothing to log.
    pub fn is_empty(&self) -> bool {
        self.gone.commands.is_empty() && self.commands.commands.is_empty()
    }

    /// Whether something was changed for which a command must account.
    pub fn has_changes(&self) -> bool {
        self.n_changes > 0
    }

    /// Whether a command has changed something, and has recorded no words.
    pub fn lacks_words(&self) -> bool {
        self.n_changes > 0 && self.commands.commands.is_empty()
    }

    /// Adds a command.
    pub fn add<'w>(&mut self, db: Db, words: impl IntoIterator<Item = &'w [u8]>) {
        self.commands.add(db, words);
    }

    /// Empties the record after it has been logged.
    pub fn clear(&mut self) {
        self.gone.clear();
        self.commands.clear();
        self.n_changes = 0;
        self.touched.clear();
        self.touched.shrink_to(KEPT_PLACES);
        self.touches_all = false;
    }

    /// The keys that expired or were evicted, and fields of hashes after the names of their keys. For the
    /// commands of the unit they were gone already.
    pub fn gone(&self) -> impl Iterator<Item = Recorded<'_>> {
        self.gone.iter()
    }

    /// The commands, in order.
    pub fn commands(&self) -> impl Iterator<Item = Recorded<'_>> {
        self.commands.iter()
    }

    /// The keys that were changed.
    pub fn touched(&self) -> Touched<'_> {
        if self.touches_all { Touched::All } else { Touched::Places(&self.touched) }
    }

    /// The number of commands and of removed keys and fields.
    pub fn len(&self) -> usize {
        self.gone.commands.len() + self.commands.commands.len()
    }

    /// Appends another record.
    pub fn append(&mut self, mut other: Record) {
        if self.is_empty() {
            // It may be long.
            std::mem::swap(&mut self.gone, &mut other.gone);
            std::mem::swap(&mut self.commands, &mut other.commands);
        }
        other.gone().for_each(|gone| self.gone.add(gone.db, gone.words()));
        other.commands().for_each(|command| self.commands.add(command.db, command.words()));
        self.n_changes += other.n_changes;
        self.touched.extend_from_slice(&other.touched);
        self.touches_all |= other.touches_all;
    }
}

thread_local! {
    static RECORD: RefCell<Record> = RefCell::default();
}

/// A position in a thread's record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    n_commands: usize,
    n_changes: u64,
}

impl Mark {
    /// The present end of the record.
    pub fn here() -> Mark {
        with(|record| Mark { n_commands: record.commands.commands.len(), n_changes: record.n_changes })
    }

    /// Whether a change was made since for which a command must account.
    pub fn has_changes(self) -> bool {
        with(|record| record.n_changes != self.n_changes)
    }

    /// Whether words were recorded since.
    pub fn has_words(self) -> bool {
        with(|record| record.commands.commands.len() != self.n_commands)
    }

    /// Removes the words since then, for a unit without effect. Removed keys stay recorded.
    pub fn rewind(self) {
        with(|record| {
            record.commands.truncate(self.n_commands);
            record.n_changes = self.n_changes;
        });
    }
}

/// Adds a command to the record of the unit under way on this thread.
pub fn add<'w>(db: Db, words: impl IntoIterator<Item = &'w [u8]>) {
    with(|record| record.add(db, words));
}

/// Calls `work` with this thread's record, which must not be used in any other way meanwhile.
pub fn with<R>(work: impl FnOnce(&mut Record) -> R) -> R {
    RECORD.with_borrow_mut(work)
}

/// Takes this thread's record, to continue it elsewhere.
pub fn take() -> Record {
    with(std::mem::take)
}

/// The room that is kept for the places of the next unit.
const KEPT_PLACES: usize = 1024;

/// Empties this thread's record after it has been logged.
pub fn clear() {
    with(Record::clear);
}

/// Notes that a key was changed.
#[cold]
pub(crate) fn changed(db: Db, key: &[u8], event: Event) {
    with(|record| {
        match event {
            Event::Flushed | Event::Swapped => record.touches_all = true,
            _ => record.touched.push(place_of(db, key)),
        }
        match event {
            Event::Expired | Event::Evicted => record.gone.add(db, [key]),
            // Its fields were noted one by one. The other events leave the value unchanged.
            Event::HExpired
            | Event::Unpinned
            | Event::Forgotten
            | Event::KeyMiss
            | Event::New
            | Event::Overwritten
            | Event::TypeChanged
            | Event::Made => {}
            _ => record.n_changes += 1,
        }
    });
}

/// Notes that a key has gone because the deadlines of all its parts had passed.
pub(crate) fn lost_key(db: Db, key: &[u8]) {
    with(|record| record.gone.add(db, [key]));
}

/// Notes that a field of a hash has gone because its deadline had passed.
pub(crate) fn lost_field(db: Db, key: &[u8], field: &[u8]) {
    with(|record| record.gone.add(db, [key, field]));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(recorded: Recorded<'_>) -> (Db, Vec<Vec<u8>>) {
        (recorded.db, recorded.words().map(<[u8]>::to_vec).collect())
    }

    #[test]
    fn what_was_given_since_a_mark_is_taken_back_and_the_rest_stays() {
        add(Db(0), [&b"SET"[..], b"k", b""]);
        let mark = Mark::here();
        add(Db(3), [&b"DEL"[..], b"key"]);
        changed(Db(3), b"key", Event::Del);
        changed(Db(3), b"other", Event::Expired);
        lost_field(Db(1), b"hash", b"field");
        assert!(mark.has_changes() && mark.has_words());
        mark.rewind();
        assert!(!mark.has_changes() && !mark.has_words());
        let record = take();
        assert_eq!(record.len(), 3);
        assert_eq!(
            record.commands().map(told).collect::<Vec<_>>(),
            [(Db(0), vec![b"SET".to_vec(), b"k".to_vec(), b"".to_vec()])]
        );
        assert_eq!(
            record.gone().map(told).collect::<Vec<_>>(),
            [(Db(3), vec![b"other".to_vec()]), (Db(1), vec![b"hash".to_vec(), b"field".to_vec()])]
        );
        assert!(with(|record| record.is_empty()));
    }
}
