//! Large hashes: a table of entries from names to values, which carry the fields' deadlines, and the deadline
//! index of those.

use std::collections::HashSet;

use super::{Field, Found, Inserted, deadline_after};
use crate::{
    entry::{
        Encoding, EntryBox, EntryRef, Kind, Object,
        time::{Deadline, Expiry, Millis},
    },
    memory::{reclaim, teardown::Rubble},
    table::{Position, Table, deadline_index::DeadlineIndex, hash::Place},
};

/// The fields of a large hash.
pub(super) struct FieldTable {
    entries: Table,
    /// The fields with a deadline, by deadline.
    deadline_index: DeadlineIndex<Place>,
}

impl Object for FieldTable {
    fn allocated_bytes(&self) -> usize {
        self.entries.allocated_bytes() + self.deadline_index.allocated_bytes()
    }

    fn duplicate(&self) -> Self {
        let mut entries = Table::alone(*self.entries.router());
        for entry in self.entries.iter() {
            let place = entries.router().place(entry.key());
            entries.insert(entry.duplicate(entry.key()), place);
        }
        Self { entries, deadline_index: self.deadline_index.clone() }
    }

    fn demolish(mut self) -> Box<dyn Rubble> {
        let deadlines: Box<dyn Rubble> = self.deadline_index.demolish();
        Box::new(vec![deadlines, Box::new(self.entries.detach())])
    }
}

impl FieldTable {
    /// A table of these fields; `entries` is an empty one.
    pub fn of_fields<'f>(entries: Table, fields: impl Iterator<Item = Field<'f>>) -> Self {
        let mut table = Self { entries, deadline_index: DeadlineIndex::default() };
        for field in fields {
            field.name.with_text(|name| {
                field.value.with_text(|value| {
                    let place = table.entries.router().place(name);
                    table.insert(name, value, field.deadline, place);
                })
            });
        }
        table
    }

    /// The table of the fields.
    pub fn entries(&self) -> &Table {
        &self.entries
    }

    #[inline]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// A field, expired or not.
    #[inline]
    pub fn find(&self, name: &[u8]) -> Option<Field<'_>> {
        self.entries.find(name, self.entries.router().place(name)).map(Field::of_entry)
    }

    /// All fields, expired ones included.
    pub fn iter(&self) -> impl Iterator<Item = Field<'_>> {
        self.entries.iter().map(Field::of_entry)
    }

    /// See [`Table::scan`]; visits expired fields, too.
    pub fn scan(
        &self,
        from: Position,
        n_buckets: usize,
        visit: &mut dyn FnMut(Field<'_>),
    ) -> Option<Position> {
        self.entries.scan(from, n_buckets, &mut |entry| visit(Field::of_entry(entry)))
    }

    /// A random field, expired or not, nearly as likely as any other.
    pub fn sample(&self, random: u64) -> Option<Field<'_>> {
        self.entries.sample(random).map(Field::of_entry)
    }

    /// Visits `n` different fields, expired or not, by drawing until they differ: `n` is much below the
    /// number of fields.
    pub fn choose_few<'a>(
        &'a self,
        n: usize,
        random: &mut dyn FnMut() -> u64,
        visit: &mut dyn FnMut(Field<'a>),
    ) {
        let mut chosen: HashSet<&[u8]> = HashSet::with_capacity(n);
        while chosen.len() < n {
            let entry = self.entries.sample(random()).expect("there are more than n");
            if chosen.insert(entry.key()) {
                visit(Field::of_entry(entry));
            }
        }
    }

    /// The earliest deadline.
    #[inline]
    pub fn first_deadline(&self) -> Option<Deadline> {
        self.deadline_index.first()
    }

    /// The latest deadline, unless there is a field without one.
    pub fn last_deadline(&self) -> Option<Deadline> {
        if self.entries.n_deadlines() < self.entries.len() { None } else { self.deadline_index.last() }
    }

    /// The number of expired fields; takes time in proportion to that.
    #[inline]
    pub fn n_expired(&self, now: Millis) -> usize {
        if self.deadline_index.is_empty() { 0 } else { self.deadline_index.n_due(now) }
    }

    /// Sets a field.
    pub fn set(&mut self, name: &[u8], value: &[u8], expiry: Expiry, now: Millis) -> Inserted {
        let place = self.entries.router().place(name);
        let Some(mut slot) = self.entries.find_mut(name, place) else {
            self.insert(name, value, deadline_after(expiry, None), place);
            return Inserted::New;
        };
        let old = slot.entry().deadline();
        let found = Found::of(old, now);
        let deadline = deadline_after(expiry, old.filter(|_| found == Found::Live));
        if deadline != old || !slot.try_overwrite(Encoding::default(), value) {
            if slot.entry().allocated_bytes() >= reclaim::LARGE_BYTES {
                reclaim::free(slot.replace(entry_of(name, value, deadline)));
            } else {
                slot.modify(|entry| {
                    entry.set_bytes(value);
                    if deadline != old {
                        entry.set_deadline(deadline);
                    }
                });
            }
        }
        self.deadline_index.reschedule(place, old, deadline);
        found.inserted()
    }

    /// Removes a field; returns the state in which it was, if it was there.
    pub fn remove(&mut self, name: &[u8], now: Millis) -> Option<Found> {
        let place = self.entries.router().place(name);
        let entry = self.entries.find_mut(name, place)?.remove();
        let deadline = entry.as_ref().deadline();
        self.deadline_index.reschedule(place, deadline, None);
        reclaim::free(entry);
        Some(Found::of(deadline, now))
    }

    /// Sets another deadline for an existing field, or none.
    pub fn set_deadline(&mut self, name: &[u8], deadline: Option<Deadline>) {
        let place = self.entries.router().place(name);
        let Some(mut slot) = self.entries.find_mut(name, place) else { return };
        let old = slot.entry().deadline();
        slot.set_deadline(deadline);
        self.deadline_index.reschedule(place, old, deadline);
    }

    /// Removes up to `n_max` fields whose deadline has passed, the earliest first. Returns how many, and
    /// calls `lost` with each name.
    pub fn expire(&mut self, now: Millis, n_max: usize, mut lost: impl FnMut(&[u8])) -> usize {
        let mut n_expired = 0;
        while n_expired < n_max
            && let Some((deadline, place)) = self.deadline_index.due(now)
        {
            let is_it = |entry: EntryRef<'_>| entry.deadline() == Some(deadline);
            while let Some(slot) = self.entries.find_mut_at(place, is_it) {
                lost(slot.entry().key());
                reclaim::free(slot.remove());
                n_expired += 1;
            }
            self.deadline_index.reschedule(place, Some(deadline), None);
        }
        n_expired
    }

    /// Adds a field that is not there.
    fn insert(&mut self, name: &[u8], value: &[u8], deadline: Option<Deadline>, place: Place) {
        self.entries.insert(entry_of(name, value, deadline), place);
        self.deadline_index.reschedule(place, None, deadline);
    }

    /// Panics unless the deadline index lists exactly the fields with deadlines; for tests.
    #[cfg(test)]
    pub fn check_invariants(&self) {
        self.entries.check_invariants();
        let mut expected: Vec<_> = self
            .entries
            .iter()
            .filter_map(|entry| Some((entry.deadline()?, self.entries.router().place(entry.key()))))
            .collect();
        expected.sort();
        assert_eq!(self.deadline_index.iter().collect::<Vec<_>>(), expected);
    }
}

fn entry_of(name: &[u8], value: &[u8], deadline: Option<Deadline>) -> EntryBox {
    EntryBox::with_bytes(Kind::String, Encoding::default(), name, value, deadline)
}
