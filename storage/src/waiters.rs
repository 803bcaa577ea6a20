//! Waiting nodes: a line for each key, first come first served.
//!
//! The shard keeps the lines and notes which of their keys were written; the thread that runs commands on it serves them before it
//! lets the shard go. What a waiter is, and when it can be served, is not known here; only what kind of value it waits for, so that
//! a write looks at none that wait for another.

use std::{
    any::Any,
    collections::{BTreeMap, HashMap, VecDeque},
    ops::Bound,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use smallvec::SmallVec;

use crate::{Db, entry::Kind};

/// One who waits. It may stand in the lines of several keys, in several shards.
pub type Waiter = Arc<dyn Any + Send + Sync>;

/// What a waiter waits for at a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Awaits {
    /// A value of this type.
    Kind(Kind),
    /// Something that only the waiter can tell.
    Other,
    /// That the key is no longer pinned.
    Unpinning,
}

impl Awaits {
    /// Whether a waiter may be served by a key that holds a value of a kind, or none.
    fn may_be_met_by(self, kind: Option<Kind>) -> bool {
        match self {
            Awaits::Kind(wanted) => kind == Some(wanted),
            Awaits::Other | Awaits::Unpinning => true,
        }
    }
}

/// A waiter's rank in all lines in which it stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticket(u64);

/// Counts the tickets. All threads write it, but only for commands that begin to wait.
static TICKETS: AtomicU64 = AtomicU64::new(0);

impl Ticket {
    /// The next one. It is drawn under the holds of all shards in whose lines the waiter will stand.
    pub fn next() -> Ticket {
        Ticket(TICKETS.fetch_add(1, Relaxed))
    }
}

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

/// The waiters of a key in one database.
struct Line {
    db: Db,
    /// The key is among the ready ones.
    is_ready: bool,
    /// By what they wait for; none of them is empty.
    by_awaited: SmallVec<[(Awaits, BTreeMap<Ticket, Waiter>); 1]>,
}

impl Waiters {
    /// Whether nobody waits here.
    #[inline(always)]
    pub(crate) fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    /// Puts one into a key's line.
    pub(crate) fn enter(&mut self, db: Db, key: &[u8], awaits: Awaits, ticket: Ticket, waiter: Waiter) {
        let lines = self.lines.entry(Box::from(key)).or_default();
        let at = lines.iter().position(|line| line.db == db).unwrap_or_else(|| {
            lines.push(Line { db, is_ready: false, by_awaited: SmallVec::new() });
            lines.len() - 1
        });
        let line = &mut lines[at].by_awaited;
        match line.iter_mut().find(|(awaited, _)| *awaited == awaits) {
            Some((_, waiters)) => drop(waiters.insert(ticket, waiter)),
            None => line.push((awaits, BTreeMap::from([(ticket, waiter)]))),
        }
    }

    /// Takes one out of a key's line, if it stands there.
    pub(crate) fn leave(&mut self, db: Db, key: &[u8], awaits: Awaits, ticket: Ticket) {
        let Some(lines) = self.lines.get_mut(key) else { return };
        let Some(at) = lines.iter().position(|line| line.db == db) else { return };
        let line = &mut lines[at].by_awaited;
        let Some(of) = line.iter().position(|(awaited, _)| *awaited == awaits) else { return };
        line[of].1.remove(&ticket);
        if line[of].1.is_empty() {
            line.swap_remove(of);
        }
        if line.is_empty() {
            lines.swap_remove(at);
        }
        if lines.is_empty() {
            self.lines.remove(key);
        }
    }

    fn line(&self, db: Db, key: &[u8]) -> Option<&Line> {
        self.lines.get(key)?.iter().find(|line| line.db == db)
    }

    /// The next one in a key's line that may be served by a value of a kind, after a ticket; the lowest tickets come first.
    pub(crate) fn next(
        &self,
        db: Db,
        key: &[u8],
        kind: Option<Kind>,
        after: Option<Ticket>,
    ) -> Option<(Ticket, &Waiter)> {
        let range = (after.map_or(Bound::Unbounded, Bound::Excluded), Bound::Unbounded);
        let line = self.line(db, key)?.by_awaited.iter();
        let candidates = line.filter(|(awaits, _)| awaits.may_be_met_by(kind));
        let firsts = candidates.filter_map(|(_, waiters)| waiters.range(range).next());
        firsts.min_by_key(|(ticket, _)| **ticket).map(|(ticket, waiter)| (*ticket, waiter))
    }

    /// Whether somebody waits until a key is no longer pinned.
    pub(crate) fn is_awaited_unpinned(&self, db: Db, key: &[u8]) -> bool {
        let mut line = self.line(db, key).into_iter().flat_map(|line| &line.by_awaited);
        line.any(|(awaits, _)| *awaits == Awaits::Unpinning)
    }

    /// Those that wait for a key in any database.
    pub(crate) fn everywhere(&self, key: &[u8]) -> impl Iterator<Item = &Waiter> {
        let lines = self.lines.get(key).into_iter().flatten();
        lines.flat_map(|line| &line.by_awaited).flat_map(|(_, waiters)| waiters.values())
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

    fn names(waiters: &Waiters, db: Db, key: &[u8], kind: Option<Kind>) -> Vec<&'static str> {
        let mut after = None;
        let name = || {
            let (ticket, waiter) = waiters.next(db, key, kind, after)?;
            after = Some(ticket);
            Some(*waiter.downcast_ref::<&'static str>().expect("a name"))
        };
        std::iter::from_fn(name).collect()
    }

    fn waiter(name: &'static str) -> Waiter {
        Arc::new(name)
    }

    const LIST: Awaits = Awaits::Kind(Kind::List);

    #[test]
    fn lines_keep_their_order_and_go_when_they_are_empty() {
        let mut waiters = Waiters::default();
        let tickets = [Ticket::next(), Ticket::next()];
        waiters.enter(Db(0), b"k", LIST, tickets[0], waiter("first"));
        waiters.enter(Db(0), b"k", LIST, tickets[1], waiter("second"));
        waiters.enter(Db(1), b"k", LIST, tickets[1], waiter("second"));
        let lists = |waiters: &Waiters, db| names(waiters, db, b"k", Some(Kind::List));
        assert_eq!(lists(&waiters, Db(0)), ["first", "second"]);
        assert_eq!(lists(&waiters, Db(1)), ["second"]);
        waiters.leave(Db(0), b"k", LIST, tickets[0]);
        waiters.leave(Db(0), b"k", LIST, tickets[0]);
        waiters.leave(Db(0), b"other", LIST, tickets[0]);
        assert_eq!(lists(&waiters, Db(0)), ["second"]);
        waiters.leave(Db(0), b"k", LIST, tickets[1]);
        assert!(!waiters.is_empty());
        waiters.leave(Db(1), b"k", LIST, tickets[1]);
        assert!(waiters.is_empty());
    }

    #[test]
    fn only_those_come_up_that_a_value_may_serve() {
        let mut waiters = Waiters::default();
        let awaits = [LIST, Awaits::Unpinning, Awaits::Kind(Kind::SortedSet), Awaits::Other, LIST];
        for (awaits, name) in awaits.into_iter().zip(["a", "b", "c", "d", "e"]) {
            waiters.enter(Db(0), b"k", awaits, Ticket::next(), waiter(name));
        }
        assert_eq!(names(&waiters, Db(0), b"k", Some(Kind::List)), ["a", "b", "d", "e"]);
        assert_eq!(names(&waiters, Db(0), b"k", Some(Kind::SortedSet)), ["b", "c", "d"]);
        assert_eq!(names(&waiters, Db(0), b"k", None), ["b", "d"]);
        assert!(waiters.is_awaited_unpinned(Db(0), b"k"));
        assert!(!waiters.is_awaited_unpinned(Db(1), b"k"));
        assert_eq!(waiters.everywhere(b"k").count(), 5);
    }

    #[test]
    fn a_key_is_ready_once_and_in_the_order_of_writes() {
        let mut waiters = Waiters::default();
        for key in [b"a", b"b"] {
            waiters.enter(Db(0), key, LIST, Ticket::next(), waiter("one"));
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
