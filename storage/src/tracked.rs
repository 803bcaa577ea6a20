//! Keys that clients keep copies of: who is to be told when one changes.
//!
//! As in Redis, a key is known here by its name alone, whatever its database, and a change ends what is known of it: who reads the
//! key again is remembered again.

use std::collections::HashMap;

use smallvec::SmallVec;

use crate::shard::Readers;

/// A client that has read a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reader {
    /// Who passes word on to it, by number.
    pub listener: u32,
    /// Its own number.
    pub client: u64,
}

/// What a call has added to what is remembered, or has removed from it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Remembered {
    /// Keys.
    pub n_keys: u64,
    /// Pairs of a key and a reader.
    pub n_readers: u64,
}

/// The keys of a shard that clients have read since they last changed.
#[derive(Debug, Default)]
pub(crate) struct Tracked {
    readers: HashMap<Box<[u8]>, Readers>,
}

impl Tracked {
    /// Whether there is nothing to remember.
    pub(crate) fn is_empty(&self) -> bool {
        self.readers.is_empty()
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

    /// Takes those who have read a key: it has changed.
    pub(crate) fn take_readers(&mut self, key: &[u8]) -> Readers {
        self.readers.remove(key).unwrap_or_default()
    }

    /// Takes some key and those who have read it.
    pub(crate) fn take_any(&mut self) -> Option<(Box<[u8]>, Readers)> {
        let key = self.readers.keys().next()?.clone();
        self.readers.remove_entry(&key)
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
    fn readers_are_remembered_once_and_until_the_key_changes() {
        let mut tracked = Tracked::default();
        assert_eq!(tracked.remember(b"k", ONE), Remembered { n_keys: 1, n_readers: 1 });
        assert_eq!(tracked.remember(b"k", ONE), Remembered::default());
        assert_eq!(tracked.remember(b"k", OTHER), Remembered { n_keys: 0, n_readers: 1 });
        assert!(tracked.take_readers(b"l").is_empty());
        assert_eq!(tracked.take_readers(b"k")[..], [ONE, OTHER]);
        assert!(tracked.take_readers(b"k").is_empty() && tracked.is_empty());
    }

    #[test]
    fn all_readers_can_be_taken_or_forgotten() {
        let mut tracked = Tracked::default();
        tracked.remember(b"k", ONE);
        let (key, readers) = tracked.take_any().expect("there is one");
        assert_eq!((&*key, &readers[..]), (&b"k"[..], &[ONE][..]));
        assert!(tracked.take_any().is_none());
        tracked.remember(b"k", ONE);
        tracked.remember(b"k", OTHER);
        assert_eq!(tracked.forget_readers(), Remembered { n_keys: 1, n_readers: 2 });
        assert!(tracked.is_empty());
    }
}
