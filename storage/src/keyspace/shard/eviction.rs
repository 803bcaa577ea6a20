//! Eviction: the choice of keys to remove for lack of memory, and their removal.

use super::Shard;
use crate::{
    entry::{EntryRef, db::Db, key::Key, lru::idle_seconds},
    observers::event::Event,
    table::{Counts, Table},
};

/// The order in which keys are removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EvictionOrder {
    /// The keys that have not been used for longest.
    LeastRecent,
    /// The keys that are used least.
    LeastFrequent,
    /// The keys with the earliest deadline.
    EarliestDeadline,
    /// Any key.
    Random,
}

/// The choice of keys to remove.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EvictionPolicy {
    /// The order of removal.
    pub order: EvictionOrder,
    /// Only keys that have a deadline may go.
    pub volatile_only: bool,
}

impl EvictionPolicy {
    /// The number of keys of a table that may go.
    pub fn n_victims(&self, counts: &Counts) -> usize {
        if self.volatile_only { counts.n_deadlines() } else { counts.len() }
    }

    fn draw<'t>(&self, table: &'t Table, random: u64) -> Option<EntryRef<'t>> {
        if self.volatile_only { table.sample_deadline(random) } else { table.sample(random) }
    }
}

/// The number of databases from which keys are drawn at a time.
const DATABASES_A_DRAW: usize = 16;

impl Shard {
    /// Draws random keys, at the command's time, from each of the databases, or from some if there are many.
    /// Offers each that may be removed with a score: the higher, the sooner it should go.
    pub fn sample_victims(
        &mut self,
        policy: EvictionPolicy,
        n_samples: usize,
        mut random: impl FnMut() -> u64,
        mut offer: impl FnMut(Db, &[u8], u64),
    ) {
        let n_tables = self.tables.len();
        let first = (random() % n_tables as u64) as usize;
        let tables = (first..n_tables).chain(0..first).filter_map(|nth| self.tables.nth(nth));
        let with_victims = tables.filter(|(_, table)| policy.n_victims(table.counts()) > 0);
        for (db, table) in with_victims.take(DATABASES_A_DRAW) {
            let drawn = std::iter::repeat_with(|| policy.draw(table, random())).take(n_samples);
            for entry in drawn.map_while(|drawn| drawn) {
                if !self.pinned.contains(db, entry.key()) {
                    offer(db, entry.key(), self.score(entry, policy.order));
                }
            }
        }
    }

    fn score(&self, entry: EntryRef<'_>, order: EvictionOrder) -> u64 {
        match order {
            EvictionOrder::LeastRecent => idle_seconds(entry, self.now),
            EvictionOrder::LeastFrequent => u64::from(255 - self.access.frequency(entry, self.now)),
            EvictionOrder::EarliestDeadline => entry.deadline().map_or(0, |deadline| u64::MAX - deadline.0.0),
            EvictionOrder::Random => 0,
        }
    }

    /// Removes a key of the command's database to make room, if it exists and is not pinned. Returns whether
    /// it did. An expired one is removed as expired.
    pub fn evict(&mut self, key: &Key<'_>) -> bool {
        if self.pinned.contains(self.db, key.bytes) {
            return false;
        }
        let n_expired = self.ledger.published.expired.load(std::sync::atomic::Ordering::Relaxed);
        self.remove(key, Event::Evicted)
            || self.ledger.published.expired.load(std::sync::atomic::Ordering::Relaxed) != n_expired
    }
}
