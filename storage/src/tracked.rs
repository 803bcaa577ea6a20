//! Keys that clients keep copies of: who is to be told when one changes.
//!
//! As in Redis, a key is known here by its name alone, whatever its database, and a change ends what is known of it: who reads the
//! key again is remembered again.

use std::{
    collections::HashMap,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

use smallvec::SmallVec;

/// Counts the changes. All threads write it, but only for keys that somebody keeps copies of.
static CHANGES: AtomicU64 = AtomicU64::new(0);

/// A client that has read a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reader {
    /// Who passes word on to it, by number.
    pub listener: u32,
    /// Its own number.
    pub client: u64,
}

/// A key that has changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The key.
    pub key: Box<[u8]>,
    /// The client whose command has changed it; 0 if it was no client's.
    pub author: u64,
    /// Its place among all keys that changed, in whatever shard.
    pub order: u64,
    /// Those who have read it since it last changed.
    pub readers: SmallVec<[Reader; 2]>,
}

/// What a call has added to what is remembered, or has removed from it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Remembered {
    /// Keys.
    pub n_keys: u64,
    /// Pairs of a key and a reader.
    pub n_readers: u64,
}

/// The keys of a shard that clients have read, and those that have changed since somebody was last told.
#[derive(Debug, Default)]
pub(crate) struct Tracked {
    readers: HashMap<Box<[u8]>, SmallVec<[Reader; 2]>>,
    /// Whether all changes are of interest, whoever has read the key.
    pub(crate) hears_all: bool,
    /// The client whose command is under way; 0 if it is no client's.
    pub(crate) author: u64,
    changes: Vec<Change>,
}

impl Tracked {
    /// Whether there is nothing to remember and nobody to tell.
    pub(crate) fn is_empty(&self) -> bool {
        self.readers.is_empty() && self.changes.is_empty() && !self.hears_all
    }

    /// Remembers that a client has read a key.
    pub(crate) fn remember(&mut self, key: &[u8], reader: Reader) -> Remembered {
        if let Some(readers) = self.readers.get_mut(key) {
            let is_new = !readers.contains(&reader);
            if is_new {
                readers.push(reader);
            }
            return Remembered { n_keys: 0, n_readers: is_new.into() };
        }
        self.readers.insert(key.into(), SmallVec::from_slice(&[reader]));
        Remembered { n_keys: 1, n_readers: 1 }
    }

    /// Notes that a key has changed.
    pub(crate) fn note(&mut self, key: &[u8]) {
        let readers = self.readers.remove(key);
        if readers.is_some() || self.hears_all {
            let readers = readers.unwrap_or_default();
            let order = CHANGES.fetch_add(1, Relaxed);
            self.changes.push(Change { key: key.into(), author: self.author, order, readers });
        }
    }

    /// Forgets a key as if it had changed; says whether there was one.
    pub(crate) fn evict(&mut self) -> bool {
        let Some(key) = self.readers.keys().next().cloned() else { return false };
        let author = std::mem::take(&mut self.author);
        self.note(&key);
        self.author = author;
        true
    }

    /// Takes what has changed since the last call.
    pub(crate) fn take_changes(&mut self) -> Vec<Change> {
        std::mem::take(&mut self.changes)
    }

    /// Forgets who has read what, with no word to anybody.
    pub(crate) fn forget_readers(&mut self) -> Remembered {
        let forgotten = std::mem::take(&mut self.readers);
        let n_readers = forgotten.values().map(|readers| readers.len() as u64).sum();
        Remembered { n_keys: forgotten.len() as u64, n_readers }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: Reader = Reader { listener: 0, client: 1 };
    const OTHER: Reader = Reader { listener: 1, client: 2 };

    #[test]
    fn a_change_is_told_once_to_each_reader() {
        let mut tracked = Tracked { author: 7, ..Tracked::default() };
        assert_eq!(tracked.remember(b"k", ONE), Remembered { n_keys: 1, n_readers: 1 });
        assert_eq!(tracked.remember(b"k", ONE), Remembered::default());
        assert_eq!(tracked.remember(b"k", OTHER), Remembered { n_keys: 0, n_readers: 1 });
        tracked.note(b"l");
        tracked.note(b"k");
        tracked.note(b"k");
        let readers = SmallVec::from_slice(&[ONE, OTHER]);
        let changes = tracked.take_changes();
        assert_eq!(changes, [Change { key: b"k"[..].into(), author: 7, order: changes[0].order, readers }]);
        assert!(tracked.is_empty());
    }

    #[test]
    fn who_hears_all_hears_of_keys_that_nobody_has_read() {
        let mut tracked = Tracked { hears_all: true, ..Tracked::default() };
        tracked.note(b"k");
        assert_eq!(tracked.take_changes().len(), 1);
        assert!(!tracked.is_empty());
    }

    #[test]
    fn what_is_evicted_counts_as_changed_by_nobody() {
        let mut tracked = Tracked { author: 7, ..Tracked::default() };
        tracked.remember(b"k", ONE);
        assert!(tracked.evict() && !tracked.evict());
        assert_eq!(tracked.take_changes()[0].author, 0);
        tracked.remember(b"k", ONE);
        tracked.remember(b"k", OTHER);
        assert_eq!(tracked.forget_readers(), Remembered { n_keys: 1, n_readers: 2 });
        assert!(tracked.take_changes().is_empty());
    }
}
