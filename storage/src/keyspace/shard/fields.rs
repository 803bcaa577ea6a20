//! Deadlines of hash fields: the shard's deadline index of hashes, and how their fields expire.
//!
//! Each hash that has fields with deadlines stands once in the deadline index, with the earliest of them. So
//! expiry finds the expired fields without a visit to anything else. The deadline index follows every change:
//! guards compare the hash's next deadline before and after, and code that puts in or takes out whole entries
//! reports it.

use super::Shard;
use crate::{
    entry::{
        key::Key,
        time::{Deadline, Millis},
    },
    observers::event::Event,
    table::hash::{Place, Routed},
    types::{
        hashes::{self, HashType},
        value::ValueMut,
    },
};

/// The expired fields of a hash that one access removes at most.
const ON_THE_WAY: usize = 1024;

impl Shard {
    /// Removes up to `n_max` fields whose deadline has passed, from hashes of all databases. Returns how
    /// many. A hash whose fields have all expired goes as a whole and counts as one.
    pub fn expire_fields(&mut self, now: Millis, n_max: usize) -> usize {
        let mut n_expired = 0;
        while n_expired < n_max
            && let Some((deadline, (db, place))) = self.ledger.fields.due(now)
        {
            self.begin(db, now);
            let now = self.now;
            let Some(mut hash) = self.hash_at(place, deadline) else {
                // Of two hashes at one place, the other is left, without an item of its own in the index.
                self.ledger.reschedule_fields(db, place, Some(deadline), None);
                continue;
            };
            if hash.entry().is_pinned() {
                // It is read without a hold, so nothing may change it.
                break;
            }
            if hashes::is_over(hash.entry(), now) {
                let bytes = hash.entry().key().to_vec();
                drop(hash);
                self.expire(&Key { bytes: &bytes, routed: Routed { shard: self.id, place } });
                n_expired += 1;
            } else {
                n_expired += hash.expire(n_max - n_expired);
            }
        }
        n_expired
    }

    /// Removes the expired fields of a hash, unless there are very many. They are not seen in either case.
    pub fn expire_fields_of(&mut self, key: &Key<'_>) {
        if !self.access.keeps_expired() {
            self.remove_expired_fields(key);
        }
    }

    /// Removes the expired fields of a hash, also where expired ones are kept.
    pub(super) fn remove_expired_fields(&mut self, key: &Key<'_>) {
        let now = self.now;
        if self.ledger.fields.due(now).is_none() {
            return;
        }
        let next = self.peek(key).filter(|entry| !entry.is_pinned()).and_then(hashes::next_deadline);
        if let Some(deadline) = next.filter(|deadline| deadline.has_passed(now))
            && let Some(mut hash) = self.hash_at(key.routed.place, deadline)
        {
            hash.expire(ON_THE_WAY);
        }
    }

    /// The hash at a place of the command's database whose next field expires then.
    fn hash_at(&mut self, place: Place, deadline: Deadline) -> Option<ValueMut<'_, HashType>> {
        self.value_at(place, Event::HExpired, |entry| hashes::next_deadline(entry) == Some(deadline))
    }
}

#[cfg(test)]
impl Shard {
    /// Panics unless the deadline index lists just the hashes whose fields have deadlines, and the published
    /// numbers are right.
    pub(crate) fn check_fields(&self) {
        use std::sync::atomic::Ordering::Relaxed;

        let mut expected = Vec::new();
        for (db, table) in self.tables.with_keys() {
            table.check_invariants();
            let n_partly = table.iter().filter(|entry| hashes::next_deadline(*entry).is_some()).count();
            assert_eq!(table.counts().n_partly(), n_partly);
            expected.extend(table.iter().filter_map(|entry| {
                Some((hashes::next_deadline(entry)?, (db, table.router().place(entry.key()))))
            }));
        }
        expected.sort();
        assert_eq!(self.ledger.fields.iter().collect::<Vec<_>>(), expected);
        let published = &self.ledger.published;
        assert_eq!(published.other_bytes.load(Relaxed), self.ledger.fields.allocated_bytes() as u64);
        let next = expected.first().map_or(u64::MAX, |(deadline, _)| deadline.0.0);
        assert_eq!(published.next_field_deadline.load(Relaxed), next);
    }
}
