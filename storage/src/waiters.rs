//! Waiting nodes: a line for each key, first come first served.
//!
//! The shard keeps the lines; that a key with a line was written is told through the shard's sink, and the end of the unit that
//! wrote it serves the line before the shard is let go. What a waiter is, and when it can be served, is not known here; only what kind of value it waits for, so that
//! a write looks at none that wait for another.

use std::{
    any::Any,
    collections::{BTreeMap, HashMap},
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

/// The keys that a waiter may write when it is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// The keys that it waits for.
    Own,
    /// Another key as well.
    Further,
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

/// The lines of a shard.
#[derive(Default)]
pub(crate) struct Waiters {
    lines: HashMap<Box<[u8]>, Vec<Line>>,
}

/// The waiters of a key in one database.
struct Line {
    db: Db,
    /// The sink has a change of the key that wakes the line: one is enough.
    is_woken: bool,
    /// Those of them that reach for a [further key](Reach::Further).
    reaching: BTreeMap<Ticket, Waiter>,
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
    pub(crate) fn enter(
        &mut self,
        db: Db,
        key: &[u8],
        (awaits, reach): (Awaits, Reach),
        ticket: Ticket,
        waiter: Waiter,
    ) {
        let lines = self.lines.entry(Box::from(key)).or_default();
        let at = lines.iter().position(|line| line.db == db).unwrap_or_else(|| {
            lines.push(Line { db, is_woken: false, reaching: BTreeMap::new(), by_awaited: SmallVec::new() });
            lines.len() - 1
        });
        if reach == Reach::Further {
            lines[at].reaching.insert(ticket, Arc::clone(&waiter));
        }
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
        lines[at].reaching.remove(&ticket);
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

    /// Those that wait for a key in any database and reach for a further one.
    pub(crate) fn reaching(&self, key: &[u8]) -> impl Iterator<Item = &Waiter> {
        self.lines.get(key).into_iter().flatten().flat_map(|line| line.reaching.values())
    }

    /// Says whether somebody waits for a key and is not to be woken already.
    pub(crate) fn wake(&mut self, db: Db, key: &[u8]) -> bool {
        match self.line_mut(db, key) {
            Some(line) => !std::mem::replace(&mut line.is_woken, true),
            None => false,
        }
    }

    /// Notes that the waking of a key's line is under way: from here on, it can be woken again.
    pub(crate) fn told(&mut self, db: Db, key: &[u8]) {
        if let Some(line) = self.line_mut(db, key) {
            line.is_woken = false;
        }
    }

    /// The keys of a database that somebody waits for.
    pub(crate) fn keys_in(&self, db: Db) -> Vec<Box<[u8]>> {
        let in_db = self.lines.iter().filter(|(_, lines)| lines.iter().any(|line| line.db == db));
        in_db.map(|(key, _)| key.clone()).collect()
    }

    /// The keys of all databases that somebody waits for.
    pub(crate) fn keys(&self) -> impl Iterator<Item = (Db, Box<[u8]>)> {
        self.lines.iter().flat_map(|(key, lines)| lines.iter().map(|line| (line.db, key.clone())))
    }

    fn line_mut(&mut self, db: Db, key: &[u8]) -> Option<&mut Line> {
        self.lines.get_mut(key)?.iter_mut().find(|line| line.db == db)
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
        waiters.enter(Db(0), b"k", (LIST, Reach::Own), tickets[0], waiter("first"));
        waiters.enter(Db(0), b"k", (LIST, Reach::Own), tickets[1], waiter("second"));
        waiters.enter(Db(1), b"k", (LIST, Reach::Further), tickets[1], waiter("second"));
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
            let reach = if name == "e" { Reach::Further } else { Reach::Own };
            waiters.enter(Db(0), b"k", (awaits, reach), Ticket::next(), waiter(name));
        }
        assert_eq!(names(&waiters, Db(0), b"k", Some(Kind::List)), ["a", "b", "d", "e"]);
        assert_eq!(names(&waiters, Db(0), b"k", Some(Kind::SortedSet)), ["b", "c", "d"]);
        assert_eq!(names(&waiters, Db(0), b"k", None), ["b", "d"]);
        assert!(waiters.is_awaited_unpinned(Db(0), b"k"));
        assert!(!waiters.is_awaited_unpinned(Db(1), b"k"));
        assert_eq!(waiters.reaching(b"k").count(), 1);
    }

    #[test]
    fn a_line_is_woken_once_until_it_is_told() {
        let mut waiters = Waiters::default();
        waiters.enter(Db(0), b"a", (LIST, Reach::Own), Ticket::next(), waiter("one"));
        waiters.enter(Db(2), b"a", (LIST, Reach::Own), Ticket::next(), waiter("one"));
        assert!(!waiters.wake(Db(0), b"b") && !waiters.wake(Db(1), b"a"));
        assert!(waiters.wake(Db(0), b"a") && !waiters.wake(Db(0), b"a"));
        waiters.told(Db(0), b"a");
        assert!(waiters.wake(Db(0), b"a"), "it can be woken again");
        assert_eq!(waiters.keys_in(Db(2)), [Box::from(&b"a"[..])]);
        assert!(waiters.keys_in(Db(1)).is_empty());
    }
}
