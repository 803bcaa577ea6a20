//! Eviction: the choice of keys to remove so that there is room, and their removal.

use super::Shard;
use crate::{Db, Key, access::idle_seconds, entry::EntryRef, event::Event};

/// Which keys go first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EvictionOrder {
    /// Those that have not been used for longest.
    LeastRecent,
    /// Those that are used least.
    LeastFrequent,
    /// Those whose time is over soonest.
    EarliestDeadline,
    /// Any.
    Random,
}

/// How to choose keys to remove.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EvictionPolicy {
    /// Which go first.
    pub order: EvictionOrder,
    /// Only keys that have a deadline may go.
    pub volatile_only: bool,
}

impl Shard {
    /// Draws keys of a database by chance, at the command's time, and offers each that may be removed with a score: the higher, the
    /// sooner it should go.
    pub fn sample_victims(
        &mut self,
        db: Db,
        policy: EvictionPolicy,
        n_samples: usize,
        mut random: impl FnMut() -> u64,
        mut offer: impl FnMut(&[u8], u64),
    ) {
        for _ in 0..n_samples {
            let table = &self.tables[db];
            let sampled = match policy.volatile_only {
                true => table.sample_deadline(random()),
                false => table.sample(random()),
            };
            let Some(entry) = sampled else { return };
            if !self.pinned.contains(db, entry.key()) {
                offer(entry.key(), self.score(entry, policy.order));
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

    /// Removes a key of the command's database to make room, if it is there, and not pinned; says whether it was. One whose time is over
    /// goes as that.
    pub fn evict(&mut self, key: &Key<'_>) -> bool {
        if self.pinned.contains(self.db, key.bytes) {
            return false;
        }
        let n_expired = self.ledger.published.expired.load(std::sync::atomic::Ordering::Relaxed);
        self.remove(key, Event::Evicted)
            || self.ledger.published.expired.load(std::sync::atomic::Ordering::Relaxed) != n_expired
    }
}
