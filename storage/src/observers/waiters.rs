//! Waiting nodes: a line for each key, first come first served.
//!
//! The shard keeps the lines. Its sink reports that a key with a line was written. The end of the unit that
//! wrote it serves the line before the shard is released. This file does not know the type of a waiter, only
//! the state for which it waits. So a write looks at no waiter that waits for another state. Of those that
//! wait for the same state, it looks at one that cannot be served.

use std::{
    any::Any,
    cmp::Reverse,
    collections::{BTreeMap, BinaryHeap, HashMap},
    ops::Bound,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use crate::{
    entry::{Kind, db::Db},
    types::stream::id::StreamId,
};

/// A waiting node. It may stand in the lines of several keys, in several shards.
pub type Waiter = Arc<dyn Any + Send + Sync>;

/// The state of a key that serves a waiter. Waiters for the same state of a key are served alike.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Awaits {
    /// A value of this type.
    Kind(Kind),
    /// That the key is no longer pinned.
    Unpinning,
    /// A list of at least this many elements.
    Elements(usize),
    /// Entries of a stream after this one.
    EntriesAfter(StreamId),
    /// Entries that were not delivered yet to this group of a stream; or that there is no such group.
    Group(Arc<[u8]>),
    /// The same, or entries that were handed back to the group.
    GroupOrHandedBack(Arc<[u8]>),
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

/// The state of a key, for those that wait for it.
pub(crate) struct Holds<'a> {
    pub(crate) kind: Option<Kind>,
    /// If it is a list: how many elements it has.
    pub(crate) n_elements: &'a dyn Fn() -> usize,
    /// If it is a stream: its last entry that was not deleted.
    pub(crate) last: Option<StreamId>,
    /// The last entry that was delivered to a group of the stream.
    pub(crate) delivered: &'a dyn Fn(&[u8]) -> Option<StreamId>,
    /// Whether a group of the stream has entries that were handed back.
    pub(crate) has_handed_back: &'a dyn Fn(&[u8]) -> bool,
    pub(crate) is_pinned: bool,
}

impl Holds<'_> {
    /// Whether the key can serve a waiter.
    fn serves(&self, awaits: &Awaits) -> bool {
        match awaits {
            Awaits::Kind(wanted) => self.kind == Some(*wanted),
            Awaits::Unpinning => !self.is_pinned,
            Awaits::Elements(n) => self.kind == Some(Kind::List) && (self.n_elements)() >= *n,
            Awaits::EntriesAfter(id) => self.last.is_some_and(|last| last > *id),
            // Nodes that read as a group are told that the group, or the stream, is gone.
            Awaits::Group(name) => self.has_undelivered(name),
            Awaits::GroupOrHandedBack(name) => self.has_undelivered(name) || (self.has_handed_back)(name),
        }
    }

    /// Whether a group has yet to get entries of the stream, or is missing.
    fn has_undelivered(&self, group: &[u8]) -> bool {
        (self.delivered)(group).is_none_or(|delivered| self.last.is_some_and(|last| last > delivered))
    }
}

/// The rest of a pass over a key's line: the first waiter of each group that waits for the same.
#[derive(Default)]
pub struct Turns {
    /// The number of groups that were looked at.
    pub n_looks: usize,
    firsts: BinaryHeap<Reverse<(Ticket, Awaits)>>,
}

/// The lines of a shard.
#[derive(Default)]
pub(crate) struct Waiters {
    /// None before a node waits here. Most shards of most servers have none, and there are many shards.
    lines: Option<Box<Lines>>,
}

/// The lines of each key.
type Lines = HashMap<Box<[u8]>, Vec<Line>>;

/// The waiters of a key in one database.
struct Line {
    db: Db,
    /// The sink has a change of the key that wakes the line: one is enough.
    is_woken: bool,
    /// The waiters that reach for a [further key](Reach::Further).
    reaching: BTreeMap<Ticket, Waiter>,
    /// The waiters by awaited state; none of the maps is empty.
    by_awaited: BTreeMap<Awaits, BTreeMap<Ticket, Waiter>>,
}

impl Waiters {
    /// Whether no node waits here.
    #[inline(always)]
    pub(crate) fn is_empty(&self) -> bool {
        self.lines.as_ref().is_none_or(|lines| lines.is_empty())
    }

    /// Puts a waiter into a key's line.
    pub(crate) fn enter(
        &mut self,
        db: Db,
        key: &[u8],
        (awaits, reach): (Awaits, Reach),
        ticket: Ticket,
        waiter: Waiter,
    ) {
        let lines = self.lines.get_or_insert_default().entry(Box::from(key)).or_default();
        let at = lines.iter().position(|line| line.db == db).unwrap_or_else(|| {
            lines.push(Line { db, is_woken: false, reaching: BTreeMap::new(), by_awaited: BTreeMap::new() });
            lines.len() - 1
        });
        if reach == Reach::Further {
            lines[at].reaching.insert(ticket, Arc::clone(&waiter));
        }
        lines[at].by_awaited.entry(awaits).or_default().insert(ticket, waiter);
    }

    /// Takes a waiter out of a key's line, if it stands there.
    pub(crate) fn leave(&mut self, db: Db, key: &[u8], awaits: &Awaits, ticket: Ticket) {
        let Some(all) = &mut self.lines else { return };
        let Some(lines) = all.get_mut(key) else { return };
        let Some(at) = lines.iter().position(|line| line.db == db) else { return };
        lines[at].reaching.remove(&ticket);
        let line = &mut lines[at].by_awaited;
        let Some(alike) = line.get_mut(awaits) else { return };
        alike.remove(&ticket);
        if alike.is_empty() {
            line.remove(awaits);
        }
        if line.is_empty() {
            lines.swap_remove(at);
        }
        if lines.is_empty() {
            all.remove(key);
        }
    }

    /// The lines of a key, one for each database.
    fn of(&self, key: &[u8]) -> &[Line] {
        self.lines.as_ref().and_then(|lines| lines.get(key)).map_or(&[], Vec::as_slice)
    }

    fn line(&self, db: Db, key: &[u8]) -> Option<&Line> {
        self.of(key).iter().find(|line| line.db == db)
    }

    /// The waiters in a key's line that the key can serve.
    pub(crate) fn turns(&self, db: Db, key: &[u8], holds: &Holds<'_>) -> Turns {
        let Some(Line { by_awaited, .. }) = self.line(db, key) else { return Turns::default() };
        // Waiters for later entries are not even looked at.
        let (entries, groups) = (Awaits::EntriesAfter(StreamId::MIN), Awaits::Group(Arc::default()));
        let last = holds.last.unwrap_or(StreamId::MIN);
        let of_entries = by_awaited.range(&entries..&Awaits::EntriesAfter(last));
        let others = by_awaited.range(..&entries).chain(by_awaited.range(&groups..));
        let mut n_looks = 0;
        let others = others.inspect(|_| n_looks += 1).filter(|(awaits, _)| holds.serves(awaits));
        let firsts = others
            .chain(of_entries)
            .filter_map(|(awaits, alike)| Some(Reverse((*alike.first_key_value()?.0, awaits.clone()))))
            .collect();
        Turns { n_looks, firsts }
    }

    /// The next waiter whose turn it is and that the key can still serve, in order of arrival.
    pub(crate) fn next(&self, db: Db, key: &[u8], holds: &Holds<'_>, turns: &mut Turns) -> Option<Waiter> {
        while let Some(Reverse((ticket, awaits))) = turns.firsts.pop() {
            // If the key cannot serve this one, it cannot serve any that waits for the same state.
            let alike = self.line(db, key)?.by_awaited.get(&awaits).filter(|_| holds.serves(&awaits));
            let Some(alike) = alike else { continue };
            let waiter = alike.get(&ticket);
            if let Some((behind, _)) = alike.range((Bound::Excluded(ticket), Bound::Unbounded)).next() {
                turns.firsts.push(Reverse((*behind, awaits)));
            }
            // It may have been served already, because it waits for several keys.
            if waiter.is_some() {
                return waiter.cloned();
            }
        }
        None
    }

    /// Whether a node waits until a key is no longer pinned.
    pub(crate) fn is_awaited_unpinned(&self, db: Db, key: &[u8]) -> bool {
        self.line(db, key).is_some_and(|line| line.by_awaited.contains_key(&Awaits::Unpinning))
    }

    /// The waiters for a key in any database that reach for a further one.
    pub(crate) fn reaching(&self, key: &[u8]) -> impl Iterator<Item = &Waiter> {
        self.of(key).iter().flat_map(|line| line.reaching.values())
    }

    /// Returns whether a waiter for a key must be woken and is not being woken already.
    pub(crate) fn wake(&mut self, db: Db, key: &[u8]) -> bool {
        match self.line_mut(db, key) {
            Some(line) => !std::mem::replace(&mut line.is_woken, true),
            None => false,
        }
    }

    /// Records that the line of a key is being woken: from here on, it can be woken again.
    pub(crate) fn told(&mut self, db: Db, key: &[u8]) {
        if let Some(line) = self.line_mut(db, key) {
            line.is_woken = false;
        }
    }

    /// The keys of a database for which nodes wait.
    pub(crate) fn keys_in(&self, db: Db) -> Vec<Box<[u8]>> {
        self.keys().filter(|(of, _)| *of == db).map(|(_, key)| key).collect()
    }

    /// The keys of all databases for which nodes wait.
    pub(crate) fn keys(&self) -> impl Iterator<Item = (Db, Box<[u8]>)> {
        let lines = self.lines.iter().flat_map(|lines| &**lines);
        lines.flat_map(|(key, lines)| lines.iter().map(|line| (line.db, key.clone())))
    }

    fn line_mut(&mut self, db: Db, key: &[u8]) -> Option<&mut Line> {
        self.lines.as_mut()?.get_mut(key)?.iter_mut().find(|line| line.db == db)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(waiters: &Waiters, db: Db, key: &[u8], kind: Option<Kind>) -> Vec<&'static str> {
        served(
            waiters,
            db,
            key,
            &Holds {
                kind,
                n_elements: &|| 0,
                has_handed_back: &|_| false,
                delivered: &|_| None,
                last: None,
                is_pinned: true,
            },
        )
    }

    fn served(waiters: &Waiters, db: Db, key: &[u8], holds: &Holds<'_>) -> Vec<&'static str> {
        let mut turns = waiters.turns(db, key, holds);
        let next = || waiters.next(db, key, holds, &mut turns);
        std::iter::from_fn(next).map(|waiter| *waiter.downcast_ref().expect("a name")).collect()
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
        waiters.leave(Db(0), b"k", &LIST, tickets[0]);
        waiters.leave(Db(0), b"k", &LIST, tickets[0]);
        waiters.leave(Db(0), b"other", &LIST, tickets[0]);
        assert_eq!(lists(&waiters, Db(0)), ["second"]);
        waiters.leave(Db(0), b"k", &LIST, tickets[1]);
        assert!(!waiters.is_empty());
        waiters.leave(Db(1), b"k", &LIST, tickets[1]);
        assert!(waiters.is_empty());
    }

    #[test]
    fn only_those_come_up_that_a_value_may_serve() {
        let mut waiters = Waiters::default();
        let id = |seq| StreamId { ms: 0, seq };
        let group = Awaits::Group(Arc::from(&b"g"[..]));
        let awaits = [
            (LIST, "a"),
            (Awaits::Unpinning, "b"),
            (Awaits::EntriesAfter(id(5)), "c"),
            (Awaits::Kind(Kind::SortedSet), "d"),
            (group, "e"),
            (Awaits::EntriesAfter(id(3)), "f"),
            (LIST, "g"),
        ];
        for (awaits, name) in awaits {
            let reach = if name == "g" { Reach::Further } else { Reach::Own };
            waiters.enter(Db(0), b"k", (awaits, reach), Ticket::next(), waiter(name));
        }
        assert_eq!(names(&waiters, Db(0), b"k", Some(Kind::List)), ["a", "e", "g"]);
        assert_eq!(names(&waiters, Db(0), b"k", Some(Kind::SortedSet)), ["d", "e"]);
        assert_eq!(names(&waiters, Db(0), b"k", None), ["e"]);
        let unpinned = Holds {
            kind: None,
            n_elements: &|| 0,
            has_handed_back: &|_| false,
            delivered: &|_| None,
            last: None,
            is_pinned: false,
        };
        assert_eq!(served(&waiters, Db(0), b"k", &unpinned), ["b", "e"]);
        let delivered = |_: &[u8]| Some(id(5));
        let up_to = |seq| {
            let (kind, last) = (Some(Kind::Stream), Some(id(seq)));
            served(
                &waiters,
                Db(0),
                b"k",
                &Holds {
                    kind,
                    n_elements: &|| 0,
                    has_handed_back: &|_| false,
                    last,
                    delivered: &delivered,
                    is_pinned: true,
                },
            )
        };
        assert!(up_to(3).is_empty());
        assert_eq!(up_to(5), ["f"]);
        assert_eq!(up_to(6), ["c", "e", "f"]);
        assert!(waiters.is_awaited_unpinned(Db(0), b"k"));
        assert!(!waiters.is_awaited_unpinned(Db(1), b"k"));
        assert_eq!(waiters.reaching(b"k").count(), 1);
    }

    #[test]
    fn waiters_whom_a_value_cannot_serve_are_not_looked_at_one_by_one() {
        let mut waiters = Waiters::default();
        let group = Awaits::Group(Arc::from(&b"g"[..]));
        for seq in 1..=100 {
            let later = Awaits::EntriesAfter(StreamId { ms: 1000, seq });
            for awaits in [later, group.clone(), LIST] {
                waiters.enter(Db(0), b"k", (awaits, Reach::Own), Ticket::next(), waiter("one"));
            }
        }
        let last = Some(StreamId { ms: 1, seq: 1 });
        let (kind, delivered) = (Some(Kind::Stream), |_: &[u8]| last);
        let turns = waiters.turns(
            Db(0),
            b"k",
            &Holds {
                kind,
                n_elements: &|| 0,
                has_handed_back: &|_| false,
                last,
                delivered: &delivered,
                is_pinned: false,
            },
        );
        assert_eq!((turns.n_looks, turns.firsts.len()), (2, 0), "the group and the lists, once each");
        let holds = Holds {
            kind,
            n_elements: &|| 0,
            has_handed_back: &|_| false,
            last,
            delivered: &|_| Some(StreamId::MIN),
            is_pinned: false,
        };
        let mut turns = waiters.turns(Db(0), b"k", &holds);
        assert!(waiters.next(Db(0), b"k", &holds, &mut turns).is_some());
        // The first has taken all that there was for the group.
        let holds = Holds {
            kind,
            n_elements: &|| 0,
            has_handed_back: &|_| false,
            last,
            delivered: &delivered,
            is_pinned: false,
        };
        assert!(waiters.next(Db(0), b"k", &holds, &mut turns).is_none());
        assert!(turns.firsts.is_empty());
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
