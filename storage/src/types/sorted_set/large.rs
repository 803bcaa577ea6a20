//! Large sorted sets: a table from members to scores, and the order of its entries.
//!
//! **Memory**, beyond a member's bytes and the 8 of its score: 8 for the entry's header and the rounding to
//! its class, 10.6 for the slot in the table, 9.4 in the tree. That is 28 bytes for a member of 16 bytes,
//! whose entry takes 32 without rounding.

use std::ops::Range;

use smallvec::SmallVec;

use super::{
    Added,
    members::{Members, ranked},
    order::{Cut, Point, Ranked},
    tree::{Tree, Walk},
};
use crate::{
    entry::{Encoding, EntryBox, EntryHandle, EntryRef, Object},
    memory::teardown::Rubble,
    table::{PREFETCH_MAX, Position, Table, hash::Place, prefetch},
};

/// Both parts always have the same entries, and the table never moves one: scores are overwritten where they
/// are.
pub(super) struct Large {
    table: Table,
    tree: Tree,
}

impl Large {
    /// Puts the entries of a table, which are members with their scores, in order.
    pub(super) fn of(table: Table) -> Self {
        let mut sorted: Vec<(Ranked<'_>, EntryHandle)> =
            table.iter().map(|entry| (ranked(entry), EntryHandle::of(entry, 0))).collect();
        sorted.sort_unstable_by(|(one, _), (other, _)| one.order(*other));
        let handles = sorted.into_iter().map(|(_, handle)| handle).collect();
        let tree = Tree::of(handles, Members::new(&table));
        Large { table, tree }
    }

    #[inline]
    pub(super) fn len(&self) -> usize {
        self.tree.len()
    }

    /// The table of the members.
    pub(super) fn table(&self) -> &Table {
        &self.table
    }

    #[inline]
    fn members(&self) -> Members<'_> {
        Members::new(&self.table)
    }

    #[inline]
    fn find(&self, member: &[u8]) -> Option<EntryRef<'_>> {
        self.table.find(member, self.table.router().place(member))
    }

    pub(super) fn score(&self, member: &[u8]) -> Option<f64> {
        self.find(member).map(|entry| ranked(entry).score)
    }

    /// The rank and the score of a member.
    pub(super) fn rank(&self, member: &[u8]) -> Option<(usize, f64)> {
        let element = ranked(self.find(member)?);
        Some((self.rank_of(Cut::Before(Point::Element(element))), element.score))
    }

    /// The number of elements before a place.
    pub(super) fn rank_of(&self, cut: Cut<'_>) -> usize {
        self.tree.rank(cut, self.members())
    }

    /// The element of a rank.
    pub(super) fn get(&self, rank: usize) -> Ranked<'_> {
        self.members().at(self.tree.get(rank))
    }

    /// The elements of some ranks.
    pub(super) fn iter(&self, ranks: Range<usize>) -> Iter<'_> {
        Iter { members: self.members(), walk: self.tree.walk(ranks) }
    }

    /// Fetches the memory that a removal of some ranks touches, [`PREFETCH_MAX`] elements at most.
    pub(super) fn prefetch(&self, ranks: Range<usize>) {
        self.tree.walk(ranks.clone()).for_each(|handle| prefetch::for_read(handle.address()));
        let places: SmallVec<[Place; PREFETCH_MAX]> =
            self.iter(ranks).map(|element| self.table.router().place(element.member)).collect();
        self.table.prefetch(&places);
    }

    /// As [`Table::scan`].
    pub(super) fn scan<'a>(
        &'a self,
        from: Position,
        n_buckets: usize,
        visit: &mut dyn FnMut(Ranked<'_>),
    ) -> Option<Position> {
        self.table.scan(from, n_buckets, &mut |entry| visit(ranked(entry)))
    }

    /// Adds a member, or gives it another score, if `judge`, which is told the score that it has, says so.
    pub(super) fn add(&mut self, member: &[u8], judge: impl FnOnce(Option<f64>) -> Added) -> Added {
        let place = self.table.router().place(member);
        let (old, verdict) = match self.table.find(member, place) {
            Some(entry) => (Some(EntryHandle::of(entry, 0)), judge(Some(ranked(entry).score))),
            None => (None, judge(None)),
        };
        match (old, verdict) {
            (None, Added::New(score)) => {
                let entry = EntryBox::string(member, &score.to_ne_bytes());
                let entry = self.table.insert(entry, place).into_entry();
                let handle = EntryHandle::of(entry, 0);
                self.tree.insert(handle, Members::new(&self.table));
            }
            (Some(handle), Added::Updated(score)) => {
                self.tree.remove(handle, Members::new(&self.table));
                let mut slot = self.table.find_mut(member, place).expect("the member was found just now");
                let stays = slot.try_overwrite(Encoding::default(), &score.to_ne_bytes());
                assert!(stays, "a score is as long as any other, so it is overwritten where it is");
                self.tree.insert(handle, Members::new(&self.table));
            }
            _ => {}
        }
        verdict
    }

    /// Removes a member; returns whether it was there.
    pub(super) fn remove(&mut self, member: &[u8]) -> bool {
        let place = self.table.router().place(member);
        let Some(entry) = self.table.find(member, place) else { return false };
        let handle = EntryHandle::of(entry, 0);
        self.tree.remove(handle, Members::new(&self.table));
        self.remove_from_table(member, place);
        true
    }

    /// Removes the elements of some ranks.
    pub(super) fn remove_ranks(&mut self, ranks: Range<usize>) {
        for _ in ranks.clone() {
            let handle = self.tree.remove_rank(ranks.start, Members::new(&self.table));
            let member: SmallVec<[u8; 64]> = SmallVec::from_slice(self.members().at(handle).member);
            let place = self.table.router().place(&member);
            self.remove_from_table(&member, place);
        }
    }

    fn remove_from_table(&mut self, member: &[u8], place: Place) {
        self.table.find_mut(member, place).expect("the tree had the member").remove();
    }

    /// Panics unless all invariants hold. Returns the number of leaves.
    #[cfg(test)]
    pub(super) fn check(&self) -> usize {
        self.table.check_invariants();
        assert_eq!(self.table.len(), self.tree.len());
        self.tree.check(self.members())
    }

    /// How many different marks there are, leaf by leaf.
    #[cfg(test)]
    pub(super) fn n_marks(&self) -> usize {
        self.tree.n_marks()
    }

    /// The bytes of the tree alone.
    #[cfg(test)]
    pub(super) fn tree_bytes(&self) -> usize {
        self.tree.allocated_bytes()
    }
}

impl Object for Large {
    fn allocated_bytes(&self) -> usize {
        self.table.allocated_bytes() + self.tree.allocated_bytes()
    }

    fn duplicate(&self) -> Self {
        let mut table = Table::alone(*self.table.router());
        for entry in self.members().table().iter() {
            table.insert(entry.duplicate(entry.key()), self.table.router().place(entry.key()));
        }
        Large::of(table)
    }

    fn demolish(mut self) -> Box<dyn Rubble> {
        let entries: Box<dyn Rubble> = Box::new(self.table.detach());
        Box::new(vec![entries, self.tree.demolish()])
    }
}

/// The elements of some ranks, from both ends.
#[derive(Clone)]
pub(super) struct Iter<'a> {
    members: Members<'a>,
    walk: Walk<'a>,
}

impl<'a> Iterator for Iter<'a> {
    type Item = Ranked<'a>;

    #[inline]
    fn next(&mut self) -> Option<Ranked<'a>> {
        self.walk.next().map(|handle| self.members.at(handle))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.walk.size_hint()
    }
}

impl DoubleEndedIterator for Iter<'_> {
    #[inline]
    fn next_back(&mut self) -> Option<Self::Item> {
        self.walk.next_back().map(|handle| self.members.at(handle))
    }
}

impl ExactSizeIterator for Iter<'_> {}
