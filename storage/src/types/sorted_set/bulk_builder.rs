//! New sorted sets, collected member by member: results that are stored in a key or only sent.

use super::{
    Iter, LARGE, PACKED,
    large::Large,
    members::ranked,
    small::{self, ZeroSign},
};
use crate::{
    entry::{Encoding, EntryBox, Kind},
    table::{Table, hash::Router},
    types::{packed, thresholds::Thresholds},
};

/// Collects members in any order.
pub struct Gathered {
    table: Table,
}

impl Gathered {
    /// Nothing yet. `router` says how keys are hashed.
    pub fn new(router: &Router) -> Self {
        Self::in_table(Table::alone(Router::unsharded(router.hasher())))
    }

    /// Nothing yet, to be collected in an empty table.
    pub(super) fn in_table(table: Table) -> Self {
        Gathered { table }
    }

    /// Sets a member's score to that of `score`, which gets the member's previous score.
    pub fn put(&mut self, member: &[u8], score: impl FnOnce(Option<f64>) -> f64) {
        let place = self.table.router().place(member);
        match self.table.find_mut(member, place) {
            Some(mut slot) => {
                let score = score(Some(ranked(slot.entry()).score));
                let stays = slot.try_overwrite(Encoding::default(), &score.to_ne_bytes());
                debug_assert!(stays, "a score is as long as any other");
            }
            None => {
                self.table.insert(EntryBox::string(member, &score(None).to_ne_bytes()), place);
            }
        }
    }

    /// Adds a member that has not been given a score before; returns whether it had not.
    pub(crate) fn insert(&mut self, member: &[u8], score: f64) -> bool {
        let mut is_new = true;
        self.put(member, |old| {
            is_new = old.is_none();
            score
        });
        is_new
    }

    /// Puts the collected members in order.
    pub fn sort(self) -> Sorted {
        Sorted(self.into_large())
    }

    pub(super) fn into_large(self) -> Large {
        Large::of(self.table)
    }
}

/// The collected members, in order.
pub struct Sorted(pub(super) Large);

impl Sorted {
    /// The number of members.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are no members.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All members, in order.
    pub fn iter(&self) -> Iter<'_> {
        Iter::of_large(&self.0, 0..self.0.len())
    }

    /// An entry of a key that holds the set, packed if it is small; none if there are no members.
    pub fn into_entry(self, key: &[u8], thresholds: &Thresholds) -> Option<EntryBox> {
        self.into_entry_with(ZeroSign::Dropped, key, thresholds)
    }

    /// Like [`Self::into_entry`]. A large set keeps the sign of zeros in any case.
    pub(crate) fn into_entry_with(
        self,
        zero_sign: ZeroSign,
        key: &[u8],
        thresholds: &Thresholds,
    ) -> Option<EntryBox> {
        if self.is_empty() {
            return None;
        }
        Some(match self.pack(zero_sign, thresholds) {
            Some(packed) => EntryBox::with_bytes(Kind::SortedSet, PACKED, key, &packed, None),
            None => EntryBox::with_object(Kind::SortedSet, LARGE, key, self.0, None),
        })
    }

    /// The set packed, if it is small enough.
    fn pack(&self, zero_sign: ZeroSign, thresholds: &Thresholds) -> Option<Vec<u8>> {
        if self.len() > thresholds.zset_max_listpack_entries() {
            return None;
        }
        let value_bytes_max = thresholds.zset_max_listpack_value();
        let mut buffer = packed::EMPTY.to_vec();
        for element in self.0.iter(0..self.len()) {
            let fits = packed::has_room(packed::Packed::new(&buffer), element.member.len());
            if element.member.len() > value_bytes_max || !fits {
                return None;
            }
            small::push(&mut buffer, element.member, element.score, zero_sign);
        }
        Some(buffer)
    }
}
