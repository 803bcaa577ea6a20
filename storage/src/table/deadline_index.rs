//! The deadline index: places of entries ordered by deadline.
//!
//! A deadline index lists places, not keys: 16 bytes each, by which the listed table finds its entry. Two
//! entries may share all 64 bits of their place *and* the millisecond of their deadline. They then share a
//! line of the deadline index, and the first of them to leave removes the line. Look-ups see the other one
//! expire like any other, but active expiry does not remove it. With a keyed hash that takes more entries
//! than fit in memory.

use std::collections::BTreeSet;

use crate::{
    entry::time::{Deadline, Millis},
    memory::teardown::{Pieces, Rubble},
};

/// The cost of a line: a node of the tree has room for 11 and is about two thirds full.
const LINE_BYTES_PERCENT: usize = 160;

/// Places `P` of entries that expire, ordered by deadline. Empty ones own nothing.
#[derive(Clone, Debug)]
pub(crate) struct DeadlineIndex<P> {
    lines: BTreeSet<(Deadline, P)>,
}

impl<P> Default for DeadlineIndex<P> {
    fn default() -> Self {
        Self { lines: BTreeSet::new() }
    }
}

impl<P: Copy + Ord> DeadlineIndex<P> {
    /// Whether nothing is listed.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    /// The listed places, the earliest deadline first.
    #[cfg(test)]
    pub fn iter(&self) -> impl Iterator<Item = (Deadline, P)> {
        self.lines.iter().copied()
    }

    /// The earliest deadline.
    #[inline]
    pub fn first(&self) -> Option<Deadline> {
        self.lines.first().map(|&(deadline, _)| deadline)
    }

    /// The latest deadline.
    pub fn last(&self) -> Option<Deadline> {
        self.lines.last().map(|&(deadline, _)| deadline)
    }

    /// The place with the earliest deadline, if that has passed.
    pub fn due(&self, now: Millis) -> Option<(Deadline, P)> {
        self.lines.first().copied().filter(|(deadline, _)| deadline.has_passed(now))
    }

    /// Returns the number of deadlines that have passed; takes time in proportion to that.
    pub fn n_due(&self, now: Millis) -> usize {
        self.lines.iter().take_while(|(deadline, _)| deadline.has_passed(now)).count()
    }

    /// Records that the entry at a place has another deadline, its first one, or none any more.
    #[inline]
    pub fn reschedule(&mut self, place: P, before: Option<Deadline>, after: Option<Deadline>) {
        if before == after {
            return;
        }
        if let Some(before) = before {
            self.lines.remove(&(before, place));
        }
        if let Some(after) = after {
            self.lines.insert((after, place));
        }
    }

    /// Removes the places for which `plan` returns none, and moves the rest.
    pub fn replan(&mut self, mut plan: impl FnMut(P) -> Option<P>) {
        let lines = std::mem::take(&mut self.lines);
        self.lines =
            lines.into_iter().filter_map(|(deadline, place)| Some((deadline, plan(place)?))).collect();
    }

    /// Takes the index apart, to be freed in steps.
    pub fn demolish(self) -> Box<dyn Rubble>
    where
        P: Send + 'static,
    {
        Pieces::small(self.lines.into_iter())
    }

    /// Returns about the number of bytes that the deadline index owns.
    #[inline]
    pub fn allocated_bytes(&self) -> usize {
        self.lines.len() * size_of::<(Deadline, P)>() * LINE_BYTES_PERCENT / 100
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_in_order_and_follow_their_entries() {
        let mut deadline_index = DeadlineIndex::default();
        for (place, at) in [(1, 30), (2, 10), (3, 20)] {
            deadline_index.reschedule(place, None, Some(Deadline::at(at)));
        }
        assert_eq!(deadline_index.due(Millis(10)), None);
        assert_eq!(deadline_index.due(Millis(11)), Some((Deadline::at(10), 2)));
        assert_eq!([10, 20, 21, 31].map(|now| deadline_index.n_due(Millis(now))), [0, 1, 2, 3]);
        deadline_index.reschedule(2, Some(Deadline::at(10)), Some(Deadline::at(40)));
        deadline_index.reschedule(3, Some(Deadline::at(20)), None);
        assert_eq!(
            (deadline_index.first(), deadline_index.last()),
            (Some(Deadline::at(30)), Some(Deadline::at(40)))
        );
        deadline_index.replan(|place| (place == 1).then_some(7));
        assert_eq!(deadline_index.iter().collect::<Vec<_>>(), [(Deadline::at(30), 7)]);
    }
}
