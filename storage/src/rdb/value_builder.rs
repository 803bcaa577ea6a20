//! The making of values by their types' own operations, member by member. So they are stored as the settings
//! say, in whatever form they come.

use std::{cell::Cell, sync::Arc};

use crate::{
    entry::{
        EntryBox,
        db::Db,
        time::{Deadline, Millis},
    },
    keyspace::{published::Published, tear_guard::Marks},
    observers::{event::Event, ledger::Ledger},
    table::{
        Table,
        hash::{KeyHasher, Router},
    },
    types::{
        sorted_set::Gathered,
        stream::Entries,
        thresholds::Thresholds,
        value::{ValueMut, ValueType},
    },
};

/// The attributes of a value that is made outside the keyspace for a key.
pub struct Making<'a> {
    /// The key.
    pub key: &'a [u8],
    /// Keys the tables of large values.
    pub hasher: KeyHasher,
    /// The sizes up to which values are packed.
    pub thresholds: &'a Thresholds,
    /// The time when it is made.
    pub now: Millis,
    /// The key's deadline, if it is known beforehand: then a string need not be made again for it.
    pub deadline: Option<Deadline>,
    /// The parts of the value before these bytes.
    pub onto: Cell<Option<Unfinished>>,
    /// Whether further parts follow.
    pub is_part: bool,
}

/// A value of which some parts are made.
pub enum Unfinished {
    /// An entry with the elements so far.
    Entry(EntryBox),
    /// The members of a sorted set, which are sorted when all are there.
    Members(Gathered),
    /// The entries of a stream, whose other state stands after them.
    Nodes(Entries),
}

/// The result of well-formed bytes.
pub enum Made {
    /// An entry.
    Entry(EntryBox),
    /// Nothing: all fields had expired.
    Over,
    /// Nothing: there is no element. Versions of Redis with faults have written such values.
    Empty,
    /// A part of an entry, as it was asked for.
    Part(Unfinished),
}

impl Made {
    /// The entry, if there is one.
    pub fn into_entry(self) -> Option<EntryBox> {
        match self {
            Made::Entry(entry) => Some(entry),
            Made::Over | Made::Empty | Made::Part(_) => None,
        }
    }
}

impl Making<'_> {
    /// Makes an entry of the value that `fill` fills.
    pub fn make<T: ValueType>(&self, fill: impl FnOnce(&mut ValueMut<'_, T>) -> Option<()>) -> Option<Made> {
        self.make_then(fill, |_| ())
    }

    /// Makes an entry of the value that `fill` fills and `expire` then reduces. To `fill` nothing has
    /// expired, so that a repeated part is noticed in any case.
    pub fn make_then<T: ValueType>(
        &self,
        fill: impl FnOnce(&mut ValueMut<'_, T>) -> Option<()>,
        expire: impl FnOnce(&mut ValueMut<'_, T>),
    ) -> Option<Made> {
        let mut bench = Bench::of_thread(self.hasher);
        let Bench { table, ledger } = &mut *bench;
        let place = table.router().place(self.key);
        let mut marks = Marks::default();
        let so_far = match self.onto.take() {
            Some(Unfinished::Entry(entry)) => entry,
            Some(Unfinished::Members(_) | Unfinished::Nodes(_)) => {
                unreachable!("sorted sets and streams are made otherwise")
            }
            None => T::empty(self.key),
        };
        let slot = table.insert(so_far, place);
        let at = (Db::default(), Millis(0));
        let mut value = ValueMut::<T>::new(slot, ledger, &mut marks, self.thresholds, at, Event::Made);
        fill(&mut value)?;
        if T::is_empty(value.entry()) {
            drop(value);
            bench.put_back();
            return Some(Made::Empty);
        }
        if !self.is_part {
            value.set_now(self.now);
            expire(&mut value);
        }
        drop(value);
        let made = table.find_mut(self.key, place).map(|slot| slot.remove());
        bench.put_back();
        Some(match made {
            None => Made::Over,
            Some(entry) if self.is_part => Made::Part(Unfinished::Entry(entry)),
            Some(entry) => Made::Entry(entry),
        })
    }
}

/// A table and a ledger without observers, for one value at a time. A thread keeps its own from one value to
/// the next: making them takes longer than making a small value.
struct Bench {
    table: Table,
    ledger: Ledger,
}

thread_local! {
    static BENCH: Cell<Option<Box<Bench>>> = const { Cell::new(None) };
}

impl Bench {
    fn of_thread(hasher: KeyHasher) -> Box<Self> {
        let router = Router::unsharded(hasher);
        let kept = BENCH.take().filter(|bench| *bench.table.router() == router);
        kept.unwrap_or_else(|| {
            let ledger = Ledger::new(Arc::new(Published::new()));
            Box::new(Self { table: Table::alone(router), ledger })
        })
    }

    /// Keeps it for the next value, unless it is not empty.
    fn put_back(self: Box<Self>) {
        if self.table.is_empty() && self.ledger.fields.is_empty() {
            BENCH.set(Some(self));
        }
    }
}
