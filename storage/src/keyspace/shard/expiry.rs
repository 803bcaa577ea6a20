//! Expiry of keys: the removal of those whose deadline has passed, on access and actively.

use super::Shard;
use crate::{
    entry::{EntryBox, db::Db, key::Key, time::Millis},
    keyspace::published::count,
    memory::reclaim,
    observers::event::Event,
    table::{Lasting, Position},
    types::kinds,
};

/// The position of the expiry cycle in a shard.
#[derive(Clone, Copy, Debug, Default)]
pub struct ExpiryCursor {
    /// The place of a table. By the next step another table may have it; then some keys are passed over until
    /// the next round.
    nth: usize,
    position: Position,
}

/// The number of tables without deadlines that one step passes.
const TABLES_A_STEP: usize = 64;

/// The result of one step of expiry.
#[derive(Clone, Copy, Debug)]
pub struct ExpiryStep {
    /// Keys with a deadline in the visited part of the databases.
    pub n_seen: u64,
    /// Keys that were removed.
    pub n_expired: u64,
    /// Keys that were visited and have a deadline that has not passed, and their database.
    pub met: Option<(Db, Lasting)>,
    /// Whether the shard has more to visit.
    pub more: bool,
}

impl Shard {
    /// Removes expired keys, from the cursor on, in no more than `n_buckets` buckets.
    pub fn expire_some(&mut self, cursor: &mut ExpiryCursor, now: Millis, n_buckets: usize) -> ExpiryStep {
        let mut step = ExpiryStep { n_seen: 0, n_expired: 0, met: None, more: true };
        let last = self.tables.len().min(cursor.nth + TABLES_A_STEP);
        let has_deadlines =
            |&nth: &usize| self.tables.nth(nth).is_some_and(|(_, table)| table.n_deadlines() > 0);
        let found = (cursor.nth..last).find(has_deadlines);
        let nth = found.unwrap_or(last);
        if nth != cursor.nth {
            *cursor = ExpiryCursor { nth, position: Position::START };
        }
        let mut position = None;
        if let Some((db, _)) = found.and_then(|nth| self.tables.nth(nth)) {
            self.begin(db, now);
            self.marks.tear();
            let now = self.now;
            let table = self.tables.get_mut(db).expect("it stands there");
            let n_deadlines = table.n_deadlines();
            let n_buckets_all = (table.len() / 6).max(1);
            let mut expired = Vec::new();
            let mut lasting = Lasting::default();
            position = table.expire_step(cursor.position, now, n_buckets, &mut expired, &mut lasting);
            step.met = Some((db, lasting));
            step.n_expired = expired.len() as u64;
            step.n_seen =
                ((n_deadlines * n_buckets.min(n_buckets_all) / n_buckets_all) as u64).max(step.n_expired);
            if step.n_expired > 0 {
                for entry in expired {
                    if let Some(fields) = kinds::next_deadline(entry.as_ref()) {
                        let place = self.tables.router().place(entry.as_ref().key());
                        self.ledger.fields_moved(db, place, Some(fields), None, || self.tables.counts(db));
                    }
                    self.expired(entry);
                }
            }
        }
        match position {
            Some(position) => cursor.position = position,
            None => {
                let nth = if found.is_some() { nth + 1 } else { nth };
                *cursor = ExpiryCursor { nth, position: Position::START };
                step.more = nth < self.tables.len();
            }
        }
        step
    }

    /// Removes keys of the database that a scan met after their deadline, unless expired keys are kept.
    pub fn expire_met(&mut self, keys: &[Box<[u8]>]) {
        for bytes in keys {
            let routed = self.tables.router().route(bytes);
            self.expire_unless_kept(&Key { bytes, routed });
        }
    }

    /// Removes a key whose deadline has passed, for a command that only reads.
    #[cold]
    pub(super) fn expire_unless_kept(&mut self, key: &Key<'_>) {
        if !self.access.keeps_expired() {
            self.expire(key);
        }
    }

    /// Removes a key whose deadline has passed.
    #[cold]
    pub(super) fn expire(&mut self, key: &Key<'_>) {
        if let Some(entry) = self.remove_entry(key) {
            self.expired(entry);
        }
    }

    /// Announces the removal of an entry whose deadline had passed, or the deadlines of all its parts. In the
    /// second case, as in Redis, its parts have expired, and the key was removed because it had become empty.
    fn expired(&mut self, entry: EntryBox) {
        let is_whole = entry.as_ref().deadline().is_some_and(|deadline| deadline.has_passed(self.now));
        let published = &self.ledger.published;
        if is_whole {
            count(&published.expired, 1);
        } else {
            count(&published.expired_fields, kinds::n_elements(entry.as_ref()).unwrap_or(0) as u64);
        }
        if self.ledger.is_observed {
            let key = entry.as_ref().key();
            if is_whole {
                self.ledger.announce_expired(self.db, key, Event::Expired);
            } else {
                self.ledger.announce_over(self.db, key);
            }
        }
        reclaim::free(entry);
    }
}
