//! The keys that tracking clients have read, and the clients to tell when one changes.
//!
//! As in Redis, a key is known here by its name alone, whatever its database. A change ends the record of the
//! key. A client that reads the key again is recorded again.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use smallvec::SmallVec;

/// A client that has read a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Reader {
    /// The number of the listener that passes notifications to it.
    pub listener: u32,
    /// The number under which it is remembered.
    pub number: u64,
}

/// Clients that have read a key.
pub type Readers = SmallVec<[Reader; 2]>;

/// The amount that a call has added to the record, or has removed from it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Remembered {
    /// The number of keys.
    pub n_keys: u64,
    /// The number of pairs of a key and a reader.
    pub n_readers: u64,
}

impl std::ops::AddAssign for Remembered {
    fn add_assign(&mut self, more: Self) {
        self.n_keys += more.n_keys;
        self.n_readers += more.n_readers;
    }
}

/// The number of readers of a key above which they are found by their hash.
const FEW: usize = 8;

/// The readers of a key.
#[derive(Debug)]
enum ReadBy {
    Few(Readers),
    Many(HashSet<Reader>),
}

impl ReadBy {
    /// Adds a reader that is not among them.
    fn add(&mut self, reader: Reader) {
        match self {
            ReadBy::Few(few) if few.len() < FEW => few.push(reader),
            ReadBy::Few(few) => *self = ReadBy::Many(few.drain(..).chain([reader]).collect()),
            ReadBy::Many(many) => drop(many.insert(reader)),
        }
    }

    fn remove(&mut self, Reader { listener, number }: Reader) {
        match self {
            ReadBy::Few(few) => few.retain(|reader| reader.number != number),
            ReadBy::Many(many) => drop(many.remove(&Reader { listener, number })),
        }
    }

    fn len(&self) -> usize {
        match self {
            ReadBy::Few(few) => few.len(),
            ReadBy::Many(many) => many.len(),
        }
    }

    fn into_readers(self) -> Readers {
        match self {
            ReadBy::Few(few) => few,
            ReadBy::Many(many) => many.into_iter().collect(),
        }
    }
}

/// A key that a client has read.
#[derive(Debug)]
struct ReadKey {
    readers: ReadBy,
    /// Its place in `order`.
    place: usize,
}

/// The keys of a shard that clients have read since they last changed.
///
/// Each key knows its readers and each reader its keys. So a change costs no more than the key has readers,
/// and a reader that leaves costs no more than it has read.
#[derive(Debug, Default)]
pub(crate) struct Tracked {
    keys: HashMap<Arc<[u8]>, ReadKey>,
    /// The same keys, from which one is chosen without a search.
    order: Vec<Arc<[u8]>>,
    by_reader: HashMap<u64, HashSet<Arc<[u8]>>>,
    /// Chooses the key where any will do.
    n_taken: usize,
}

impl Tracked {
    /// Whether there is nothing to remember.
    pub(crate) fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// Remembers that a client has read a key.
    pub(crate) fn remember(&mut self, key: &[u8], reader: Reader) -> Remembered {
        let own = self.by_reader.entry(reader.number).or_default();
        if own.contains(key) {
            return Remembered::default();
        }
        if let Some((name, _)) = self.keys.get_key_value(key) {
            own.insert(Arc::clone(name));
            self.keys.get_mut(key).expect("it was there just now").readers.add(reader);
            return Remembered { n_keys: 0, n_readers: 1 };
        }
        let name: Arc<[u8]> = key.into();
        own.insert(Arc::clone(&name));
        let readers = ReadBy::Few(SmallVec::from_slice(&[reader]));
        self.keys.insert(Arc::clone(&name), ReadKey { readers, place: self.order.len() });
        self.order.push(name);
        Remembered { n_keys: 1, n_readers: 1 }
    }

    /// Takes the readers of a key that has changed.
    pub(crate) fn take_readers(&mut self, key: &[u8]) -> Readers {
        let Some(&ReadKey { place, .. }) = self.keys.get(key) else { return Readers::new() };
        let readers = self.remove_key(key, place).into_readers();
        for reader in &readers {
            if let Some(own) = self.by_reader.get_mut(&reader.number) {
                own.remove(key);
                if own.is_empty() {
                    self.by_reader.remove(&reader.number);
                }
            }
        }
        readers
    }

    fn remove_key(&mut self, key: &[u8], place: usize) -> ReadBy {
        self.order.swap_remove(place);
        if let Some(moved) = self.order.get(place) {
            self.keys.get_mut(moved).expect("both have the same keys").place = place;
        }
        self.keys.remove(key).expect("the caller has found it").readers
    }

    /// Forgets up to `n_max` keys that a client has read, without a notification. Returns how much that was,
    /// and whether it was all.
    pub(crate) fn forget_reader(&mut self, reader: Reader, n_max: usize) -> (Remembered, bool) {
        let mut forgotten = Remembered::default();
        let Some(mut own) = self.by_reader.remove(&reader.number) else { return (forgotten, true) };
        let some: Vec<Arc<[u8]>> = if own.len() <= n_max {
            own.drain().collect()
        } else {
            own.extract_if(|_| true).take(n_max).collect()
        };
        for key in some {
            let known = self.keys.get_mut(&key).expect("it is forgotten with its readers");
            known.readers.remove(reader);
            forgotten.n_readers += 1;
            if known.readers.len() == 0 {
                let place = known.place;
                self.remove_key(&key, place);
                forgotten.n_keys += 1;
            }
        }
        let was_all = own.is_empty();
        if !was_all {
            self.by_reader.insert(reader.number, own);
        }
        (forgotten, was_all)
    }

    /// Takes some key and its readers.
    pub(crate) fn take_any(&mut self) -> Option<(Box<[u8]>, Readers)> {
        // Odd steps of a fixed size reach all places, and not the newest key each time.
        self.n_taken = self.n_taken.wrapping_add(0x9e37_79b9);
        let key = Arc::clone(self.order.get(self.n_taken.checked_rem(self.order.len())?)?);
        let readers = self.take_readers(&key);
        Some(((&*key).into(), readers))
    }

    /// Forgets all readers, without a notification.
    pub(crate) fn forget_readers(&mut self) -> Remembered {
        let n_readers = self.keys.values().map(|key| key.readers.len() as u64).sum();
        let n_keys = self.keys.len() as u64;
        self.keys = HashMap::new();
        self.order = Vec::new();
        self.by_reader = HashMap::new();
        Remembered { n_keys, n_readers }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: Reader = Reader { listener: 0, number: 1 };
    const OTHER: Reader = Reader { listener: 1, number: 2 };

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

    #[test]
    fn a_reader_that_leaves_takes_its_marks_along_in_bounded_steps() {
        const N: usize = 1000;
        let mut tracked = Tracked::default();
        let key = |n: usize| format!("key:{n}").into_bytes();
        for n in 0..N {
            tracked.remember(&key(n), ONE);
            if n % 10 == 0 {
                tracked.remember(&key(n), OTHER);
            }
        }
        assert_eq!(tracked.take_readers(&key(1)).len(), 1);
        let mut forgotten = Remembered::default();
        let mut n_steps = 1;
        loop {
            let (some, was_all) = tracked.forget_reader(ONE, 100);
            assert!(some.n_readers <= 100);
            forgotten += some;
            if was_all {
                break;
            }
            n_steps += 1;
        }
        assert_eq!(n_steps, 10);
        assert_eq!(forgotten, Remembered { n_keys: 899, n_readers: 999 });
        assert_eq!(tracked.forget_reader(ONE, 100), (Remembered::default(), true));
        assert_eq!(tracked.forget_reader(OTHER, N), (Remembered { n_keys: 100, n_readers: 100 }, true));
        assert!(tracked.is_empty() && tracked.order.is_empty() && tracked.by_reader.is_empty());
    }

    #[test]
    fn many_readers_of_one_key_come_and_leave() {
        let mut tracked = Tracked::default();
        let readers = (0..10_000).map(|number| Reader { listener: 0, number });
        for reader in readers.clone() {
            assert_eq!(tracked.remember(b"k", reader).n_readers, 1);
            assert_eq!(tracked.remember(b"k", reader).n_readers, 0);
        }
        for reader in readers.skip(1) {
            assert_eq!(tracked.forget_reader(reader, 1), (Remembered { n_keys: 0, n_readers: 1 }, true));
        }
        assert_eq!(tracked.take_readers(b"k").len(), 1);
        assert!(tracked.is_empty());
    }
}
