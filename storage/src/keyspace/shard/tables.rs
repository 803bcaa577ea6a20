//! A shard's tables, by database.

use std::{hint::cold_path, sync::Arc};

use crate::{
    entry::db::Db,
    table::{Counts, Known, NumberedTables, Roots, Table, TakenTables, hash::Router},
};

/// The tables of one shard.
///
/// The first database's lies in the shard itself: its cache line is fetched together with the shard's word.
/// Those of other databases are created with their first key.
#[repr(C)]
pub(crate) struct Tables {
    first: Table,
    others: Box<NumberedTables>,
}

impl Tables {
    /// Makes tables that are found by the element `at` of `roots` and of `known`.
    pub(crate) fn new(roots: &Roots, known: &Arc<[Known]>, at: usize) -> Self {
        let others = NumberedTables::new(Arc::clone(known), at, roots.clone());
        Self { first: roots.table(at), others: Box::new(others) }
    }

    /// The table of a database, if it has had a key here.
    #[inline(always)]
    pub(super) fn get(&self, db: Db) -> Option<&Table> {
        if db.0 == 0 {
            return Some(&self.first);
        }
        cold_path();
        self.others.get(db.0)
    }

    /// The counts of a database's table. The database has had a key here.
    #[inline(always)]
    pub(super) fn counts(&self, db: Db) -> &Counts {
        self.get(db).expect("a table stays while its shard is held").counts()
    }

    /// Like [`get`](Self::get), mutable. Only [`or_make`](Self::or_make) returns one to which keys may be
    /// added.
    #[inline(always)]
    pub(super) fn get_mut(&mut self, db: Db) -> Option<&mut Table> {
        if db.0 == 0 {
            return Some(&mut self.first);
        }
        cold_path();
        self.others.get_mut(db.0)
    }

    /// Returns the table of a database, to add a key to. `empty_stay` says whether tables keep their
    /// [places](Self::nth).
    #[inline(always)]
    pub(super) fn or_make(&mut self, db: Db, empty_stay: bool) -> &mut Table {
        if db.0 == 0 {
            return &mut self.first;
        }
        cold_path();
        self.others.or_make(db.0, empty_stay)
    }

    /// The router that computes the places of keys.
    #[inline]
    pub(super) fn router(&self) -> &Router {
        self.first.router()
    }

    /// The number of tables. Some may be empty.
    pub(super) fn len(&self) -> usize {
        1 + self.others.len()
    }

    /// Returns a table by its place: first the first database's, then others in the order of their creation.
    pub(super) fn nth(&self, nth: usize) -> Option<(Db, &Table)> {
        match nth.checked_sub(1) {
            None => Some((Db(0), &self.first)),
            Some(nth) => self.others.nth(nth).map(|(number, table)| (Db(number), table)),
        }
    }

    /// The tables that have keys.
    pub(super) fn with_keys(&self) -> impl Iterator<Item = (Db, &Table)> {
        (0..self.len()).filter_map(|nth| self.nth(nth)).filter(|(_, table)| !table.is_empty())
    }

    /// The place of a database's table.
    pub(super) fn place_of(&self, db: Db) -> Option<usize> {
        if db.0 == 0 { Some(0) } else { self.others.place_of(db.0).map(|nth| nth + 1) }
    }

    /// Swaps the contents of two databases. The tables keep their places.
    pub(super) fn swap(&mut self, a: Db, b: Db, empty_stay: bool) {
        let holds_keys = |db| self.get(db).is_some_and(|table| !table.is_empty());
        if !holds_keys(a) && !holds_keys(b) {
            return;
        }
        let (low, high) = (a.min(b), a.max(b));
        if low.0 == 0 {
            self.first.swap_contents(self.others.or_make(high.0, empty_stay));
        } else {
            self.others.swap_contents(low.0, high.0, empty_stay);
        }
    }

    /// Takes over the contents of another shard's tables, which are empty afterwards. There must be none
    /// here.
    pub(super) fn adopt(&mut self, other: &mut Tables) {
        self.first.swap_contents(&mut other.first);
        self.others.swap(&mut other.others);
    }

    /// Takes out the tables of all databases but the first.
    pub(super) fn take_others(&mut self) -> TakenTables {
        self.others.take()
    }

    /// Drops tables that are empty.
    pub(super) fn drop_empty(&mut self) {
        self.others.drop_empty();
    }
}
