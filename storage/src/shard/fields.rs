//! Deadlines of hash fields: the shard's deadline index of hashes, and how their fields expire.
//!
//! Each hash that has fields with deadlines stands once in the deadline index, with the earliest of them, so expiry finds what is due
//! without looking at anything else. The deadline index follows every change: guards compare the hash's next deadline before and after,
//! and whatever puts in or takes out whole entries says so.

use std::sync::atomic::Ordering::Relaxed;

use super::{Key, Ledger, Shard};
use crate::{
    Db,
    entry::EntryRef,
    event::Event,
    hash::{Place, Routed},
    hashes::{self, HashType},
    time::{Deadline, Millis},
};

/// How many expired fields of a hash are removed at a time on the way to something else.
const ON_THE_WAY: usize = 1024;

/// Whether an entry's time is over: its own, or that of all its fields.
#[inline(always)]
pub fn has_expired(entry: EntryRef<'_>, now: Millis) -> bool {
    entry.deadline().is_some_and(|deadline| deadline.has_passed(now)) || hashes::is_over(entry, now)
}

impl Ledger {
    /// Notes that the next deadline of the fields of a hash is another, or that the hash has come or gone.
    #[inline(always)]
    pub(super) fn fields_moved(
        &mut self,
        db: Db,
        place: Place,
        before: Option<Deadline>,
        after: Option<Deadline>,
    ) {
        if before != after {
            self.reschedule_fields(db, place, before, after);
        }
    }

    #[cold]
    fn reschedule_fields(&mut self, db: Db, place: Place, before: Option<Deadline>, after: Option<Deadline>) {
        self.fields.reschedule((db, place), before, after);
        self.publish_fields();
    }

    /// Notes that hashes that were in database `from` are in database `to(from)`, or nowhere.
    pub(super) fn fields_changed_dbs(&mut self, to: impl Fn(Db) -> Option<Db>) {
        self.fields.replan(|(db, place)| Some((to(db)?, place)));
        self.publish_fields();
    }

    fn publish_fields(&self) {
        self.published.other_bytes.store(self.fields.allocated_bytes() as u64, Relaxed);
        let next = self.fields.first().map_or(u64::MAX, |deadline| deadline.0.0);
        self.published.next_field_deadline.store(next, Relaxed);
    }
}

impl Shard {
    /// Removes fields whose deadline has passed, at most `n_max`, from hashes of all databases; says how many. A hash that is over
    /// goes as a whole and counts as one.
    pub fn expire_fields(&mut self, now: Millis, n_max: usize) -> usize {
        let mut n_expired = 0;
        while n_expired < n_max
            && let Some((deadline, (db, place))) = self.ledger.fields.due(now)
        {
            self.begin(db, now);
            let now = self.now;
            let Some(mut hash) = self.hash_at(place, deadline) else {
                // Of two hashes at one place, the other is left, without a line of its own.
                self.ledger.fields_moved(db, place, Some(deadline), None);
                continue;
            };
            if hash.entry().is_pinned() {
                // Somebody reads it without a hold, so nobody may change it.
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

    /// Removes the expired fields of a hash, unless they are very many; they are not seen in either case.
    pub fn expire_fields_of(&mut self, key: &Key<'_>) {
        if !self.access.keeps_expired() {
            self.remove_expired_fields(key);
        }
    }

    /// Does it, whoever asks.
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
    fn hash_at(&mut self, place: Place, deadline: Deadline) -> Option<super::ValueMut<'_, HashType>> {
        self.value_at(place, Event::HExpired, |entry| hashes::next_deadline(entry) == Some(deadline))
    }
}

#[cfg(test)]
impl Shard {
    /// Panics unless the deadline index lists just the hashes whose fields have deadlines, and the published numbers are right.
    pub(crate) fn check_fields(&self) {
        let dbs = (0..self.tables.len()).map(|index| Db(index as u16));
        let mut expected = Vec::new();
        for db in dbs {
            let table = &self.tables[db];
            table.check_invariants();
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
