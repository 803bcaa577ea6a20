//! Who waits for keys: a line for each key, first come first served.
//!
//! The shard keeps the lines and notes which of their keys were written; who runs commands on it serves them before it lets the
//! shard go. What a waiter is, and when it can be served, is not known here.

use std::{
    any::Any,
    collections::{HashMap, VecDeque},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use crate::Db;

/// One who waits. It may stand in the lines of several keys, in several shards.
pub type Waiter = Arc<dyn Any + Send + Sync>;

/// A key that was written while somebody waits for it.
#[derive(Debug)]
pub struct ReadyKey {
    /// Its database.
    pub db: Db,
    /// The key itself.
    pub bytes: Box<[u8]>,
    /// Its place among all keys that became ready, in whatever shard.
    order: u64,
}

/// Counts the keys that became ready. All threads write it, but only for keys that somebody waits for.
static ORDER: AtomicU64 = AtomicU64::new(0);

/// The lines of a shard.
#[derive(Default)]
pub(crate) struct Waiters {
    lines: HashMap<Box<[u8]>, Vec<Line>>,
    /// In the order in which they became ready.
    ready: VecDeque<ReadyKey>,
}

/// Who waits for a key in one database.
struct Line {
    db: Db,
    /// The key is among the ready ones.
    is_ready: bool,
    waiters: VecDeque<Waiter>,
}

impl Waiters {
    /// Whether nobody waits here.
    #[inline(always)]
    pub(crate) fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    /// Puts one at the end of a key's line.
    pub(crate) fn enter(&mut self, db: Db, key: &[u8], waiter: Waiter) {
        let lines = self.lines.entry(Box::from(key)).or_default();
        match lines.iter_mut().find(|line| line.db == db) {
            Some(line) => line.waiters.push_back(waiter),
            None => lines.push(Line { db, is_ready: false, waiters: VecDeque::from([waiter]) }),
        }
    }

    /// Takes one out of a key's line, if it stands there.
    pub(crate) fn leave(&mut self, db: Db, key: &[u8], waiter: &Waiter) {
        let Some(lines) = self.lines.get_mut(key) else { return };
        if let Some(line) = lines.iter_mut().find(|line| line.db == db) {
            line.waiters.retain(|other| !Arc::ptr_eq(other, waiter));
        }
        lines.retain(|line| !line.waiters.is_empty());
        if lines.is_empty() {
            self.lines.remove(key);
        }
    }

    /// The one at a place of a key's line; those who came first are at the lowest places.
    pub(crate) fn at(&self, db: Db, key: &[u8], place: usize) -> Option<&Waiter> {
        self.lines.get(key)?.iter().find(|line| line.db == db)?.waiters.get(place)
    }

    /// Those who wait for a key in any database.
    pub(crate) fn everywhere(&self, key: &[u8]) -> impl Iterator<Item = (Db, &Waiter)> {
        let lines = self.lines.get(key).into_iter().flatten();
        lines.flat_map(|line| line.waiters.iter().map(move |waiter| (line.db, waiter)))
    }

    /// Notes that a key was written, if somebody waits for it.
    #[cold]
    pub(crate) fn note(&mut self, db: Db, key: &[u8]) {
        let lines = self.lines.get_mut(key).into_iter().flatten();
        for line in lines.filter(|line| line.db == db && !line.is_ready) {
            line.is_ready = true;
            self.ready.push_back(ReadyKey { db, bytes: Box::from(key), order: ORDER.fetch_add(1, Relaxed) });
        }
    }

    /// Notes that all keys of a database may have been written.
    pub(crate) fn note_all(&mut self, db: Db) {
        let keys: Vec<Box<[u8]>> = self.lines.keys().cloned().collect();
        keys.iter().for_each(|key| self.note(db, key));
    }

    /// The rank of the key that has been ready for longest.
    #[inline]
    pub(crate) fn first_ready(&self) -> Option<u64> {
        self.ready.front().map(|ready| ready.order)
    }

    /// Takes the key that has been ready for longest.
    pub(crate) fn take_ready(&mut self) -> Option<ReadyKey> {
        let ready = self.ready.pop_front()?;
        let lines = self.lines.get_mut(&ready.bytes).into_iter().flatten();
        lines.filter(|line| line.db == ready.db).for_each(|line| line.is_ready = false);
        Some(ready)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(waiters: &Waiters, db: Db, key: &[u8]) -> Vec<&'static str> {
        let name = |place| Some(*waiters.at(db, key, place)?.downcast_ref::<&'static str>().expect("a name"));
        (0..).map_while(name).collect()
    }

    fn waiter(name: &'static str) -> Waiter {
        Arc::new(name)
    }

    #[test]
    fn lines_keep_their_order_and_go_when_they_are_empty() {
        let mut waiters = Waiters::default();
        let (first, second) = (waiter("first"), waiter("second"));
        waiters.enter(Db(0), b"k", first.clone());
        waiters.enter(Db(0), b"k", second.clone());
        waiters.enter(Db(1), b"k", second.clone());
        assert_eq!(names(&waiters, Db(0), b"k"), ["first", "second"]);
        assert_eq!(names(&waiters, Db(1), b"k"), ["second"]);
        waiters.leave(Db(0), b"k", &first);
        waiters.leave(Db(0), b"k", &first);
        waiters.leave(Db(0), b"other", &first);
        assert_eq!(names(&waiters, Db(0), b"k"), ["second"]);
        waiters.leave(Db(0), b"k", &second);
        assert!(!waiters.is_empty());
        waiters.leave(Db(1), b"k", &second);
        assert!(waiters.is_empty());
    }

    #[test]
    fn a_key_is_ready_once_and_in_the_order_of_writes() {
        let mut waiters = Waiters::default();
        for key in [b"a", b"b"] {
            waiters.enter(Db(0), key, waiter("one"));
        }
        for key in [b"b", b"x", b"a", b"b"] {
            waiters.note(Db(0), key);
        }
        waiters.note(Db(1), b"a");
        let first = waiters.first_ready().expect("ready");
        let keys: Vec<_> = std::iter::from_fn(|| waiters.take_ready()).map(|ready| ready.bytes[0]).collect();
        assert_eq!(keys, *b"ba");
        waiters.note(Db(0), b"a");
        assert!(waiters.first_ready() > Some(first), "it can become ready again");
    }
}
