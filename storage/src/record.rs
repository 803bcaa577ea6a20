//! What the unit under way has done, in words that do it again: what the log gets of it.
//!
//! A unit runs on one thread, whatever shards it holds and whatever handlers do its work, so its record is
//! that thread's. Shards on which [`LOG`] hears count their changes here and note what has gone by itself.
//! Handlers whose words would not do the same again give other ones ([`Shard::log`](crate::Shard::log)); who
//! runs a handler adds the words of all others, and takes the record at the unit's end, before the shards are
//! let go.

use std::cell::RefCell;

use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::{
    Db,
    entry::{self, Pinned},
    event::Event,
    ledger::Hearer,
};

/// One for whom changes are recorded. It is not told of them.
pub const LOG: Hearer = Hearer::new(5);

/// Words, laid one behind the other.
#[derive(Default)]
struct Commands {
    bytes: Vec<u8>,
    /// Where each word ends in `bytes`.
    ends: Vec<usize>,
    /// Long words that are shared with the request in which they came, by their numbers: they take nothing of
    /// `bytes`.
    shared: Vec<(usize, Pinned)>,
    /// Of each command its database and where its words end in `ends`.
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

/// One command of a record, or one thing that has gone.
#[derive(Clone, Copy)]
pub struct Recorded<'r> {
    /// Its database.
    pub db: Db,
    of: &'r Commands,
    /// Where the first word begins in its bytes.
    from: usize,
    /// The number of the first word, and of the first that belongs to the next command.
    words: (usize, usize),
}

impl<'r> Recorded<'r> {
    /// How many words it has.
    pub fn n_words(self) -> usize {
        self.words.1 - self.words.0
    }

    /// Its words.
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

/// What a unit has done.
#[derive(Default)]
pub struct Record {
    /// What has gone because its time was over or memory was short: keys, and keys with fields.
    gone: Commands,
    commands: Commands,
    /// How many changes were made that a command must account for.
    n_changes: u64,
    /// The places of the keys that were changed; a unit that has done nothing after all may leave some.
    touched: Vec<u64>,
    /// Whole databases were changed.
    touches_all: bool,
}

/// Which keys a unit has changed.
#[derive(Clone, Copy, Debug)]
pub enum Touched<'r> {
    /// Those of these places, and perhaps none of them.
    Places(&'r [u64]),
    /// Perhaps all.
    All,
}

/// The place of a key for whoever wants to know its last change: a hash, so that others may have the same.
pub fn place_of(db: Db, key: &[u8]) -> u64 {
    xxh3_64_with_seed(key, u64::from(db.0))
}

impl Record {
    /// Whether nothing is to be logged.
    pub fn is_empty(&self) -> bool {
        self.gone.commands.is_empty() && self.commands.commands.is_empty()
    }

    /// Whether something was changed for which a command must account.
    pub fn has_changes(&self) -> bool {
        self.n_changes > 0
    }

    /// Whether a command has changed something, and has given no words.
    pub fn lacks_words(&self) -> bool {
        self.n_changes > 0 && self.commands.commands.is_empty()
    }

    /// Adds a command.
    pub fn add<'w>(&mut self, db: Db, words: impl IntoIterator<Item = &'w [u8]>) {
        self.commands.add(db, words);
    }

    /// Forgets all: it has been logged.
    pub fn clear(&mut self) {
        self.gone.clear();
        self.commands.clear();
        self.n_changes = 0;
        self.touched.clear();
        self.touched.shrink_to(KEPT_PLACES);
        self.touches_all = false;
    }

    /// Keys, and fields of hashes behind the names of their keys, that went by themselves. They were gone
    /// already for whatever the commands did.
    pub fn gone(&self) -> impl Iterator<Item = Recorded<'_>> {
        self.gone.iter()
    }

    /// The commands, in order.
    pub fn commands(&self) -> impl Iterator<Item = Recorded<'_>> {
        self.commands.iter()
    }

    /// Which keys were changed.
    pub fn touched(&self) -> Touched<'_> {
        if self.touches_all { Touched::All } else { Touched::Places(&self.touched) }
    }

    /// How many commands there are, and things that have gone.
    pub fn len(&self) -> usize {
        self.gone.commands.len() + self.commands.commands.len()
    }

    /// Adds what another record has.
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

/// How far a thread's record has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    n_commands: usize,
    n_changes: u64,
}

impl Mark {
    /// Where the record is now.
    pub fn here() -> Mark {
        with(|record| Mark { n_commands: record.commands.commands.len(), n_changes: record.n_changes })
    }

    /// Whether something was changed since, for which a command must account.
    pub fn has_changes(self) -> bool {
        with(|record| record.n_changes != self.n_changes)
    }

    /// Whether words were given since.
    pub fn has_words(self) -> bool {
        with(|record| record.commands.commands.len() != self.n_commands)
    }

    /// Takes back what was given since, by a unit that has done nothing after all. What has gone stays gone.
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

/// Does something with this thread's record, which must not be reached for meanwhile.
pub fn with<R>(work: impl FnOnce(&mut Record) -> R) -> R {
    RECORD.with_borrow_mut(work)
}

/// Takes this thread's record, to go on with it elsewhere.
pub fn take() -> Record {
    with(std::mem::take)
}

/// The room for so many places is kept for the next unit.
const KEPT_PLACES: usize = 1024;

/// Empties this thread's record: it has been logged.
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
            // Its fields were noted one by one; the others leave the value what it was.
            Event::HExpired
            | Event::Unpinned
            | Event::Forgotten
            | Event::KeyMiss
            | Event::New
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
