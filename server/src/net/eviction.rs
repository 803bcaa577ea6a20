//! Eviction: removes keys while more memory is in use than `maxmemory` allows.
//!
//! A thread makes room before it runs a command that does more than read, with nothing held. It tries a
//! random shard, draws some keys there, and keeps the best of all drawn keys in a pool, as Redis does. The
//! best key of the pool is removed. The pool's data about a key may be out of date, so the key is looked up
//! again under its shard's hold. Each removal is a unit of its own: observers learn of it, and waiting nodes
//! are served.
//!
//! The allocating client pays: a writer evicts until there is room. That would take long after `maxmemory`
//! was lowered or a large value has arrived. Then all threads continue it in each of their turns, and writers
//! are served meanwhile, as in Redis. Room for a large transaction is made before it runs, because it adds
//! all its data at once.

use std::time::Duration;

use braid_storage::{
    entry::{db::Db, key::Key, time::Millis},
    keyspace::shard::{
        Shard,
        eviction::{EvictionOrder, EvictionPolicy},
    },
    memory::allocator::{heed_limit, is_above_limit},
    sync::coordinator::{Held, Worker},
    table::hash::ShardId,
};

use crate::{
    client::node::Job,
    clock::Instant,
    config::MaxmemoryPolicy,
    random::{random, random_below},
    run::{timing, unit},
    shared::{server::Server, thread_state::ThreadState},
    telemetry::latency_monitor::{EVICTION_CYCLE, EVICTION_DEL},
};

/// The number of candidates that a thread remembers.
const POOL_KEYS: usize = 16;

/// The number of keys after which the thread reads the clock.
const CLOCK_EVERY: u32 = 8;

/// The number of held shards in a row after which the thread gives up.
const BUSY_MAX: usize = 16;

/// A key that may be evicted.
struct Candidate {
    score: u64,
    db: Db,
    shard: ShardId,
    key: Box<[u8]>,
}

impl Candidate {
    /// Removes the key if it still exists, and returns whether it did. Its shard is held.
    fn evict(&self, held: &mut Held<'_, Job>, thread: &mut ThreadState, now: Millis) -> bool {
        // The last snapshot has the key already, so it would exist again after a restart.
        if thread.server().saves.has_last_cut() {
            return false;
        }
        let began = timing::event_begins(thread);
        let routed = thread.server().keyspace.router().route(&self.key);
        let shard = held.shard(self.shard);
        shard.begin(self.db, now);
        let is_evicted = shard.evict(&Key { bytes: &self.key, routed });
        if is_evicted {
            thread.stats().evicted.add(1);
        }
        unit::end(held, thread, now);
        timing::event_ends(EVICTION_DEL, began, thread);
        is_evicted
    }
}

/// The result of an attempt to remove a key.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Attempt {
    Evicted,
    /// Others hold the shards that were tried.
    Busy,
    /// No key may be evicted.
    Nothing,
}

/// The additional eviction time for each MiB that a command will take.
const EACH_WANTED_MIB: Duration = Duration::from_millis(1);
const MIB: f64 = 1048576.0;

/// The interval at which an evicting thread has the resident memory measured.
///
/// Freed space may not fit the new keys.
const MEASURE_EVERY: Duration = Duration::from_millis(3);

/// A thread's part in eviction.
#[derive(Default)]
pub struct Eviction {
    /// Candidates, the best one last.
    pool: Vec<Candidate>,
    /// The policy by which they were chosen.
    policy: Option<EvictionPolicy>,
    /// The time at which it last had the memory measured.
    measured_at: Option<Instant>,
}

/// Returns how keys are chosen under a policy, or none under `noeviction`.
fn choice(policy: MaxmemoryPolicy) -> Option<EvictionPolicy> {
    let (order, volatile_only) = match policy {
        MaxmemoryPolicy::AllkeysLru | MaxmemoryPolicy::AllkeysLrm => (EvictionOrder::LeastRecent, false),
        MaxmemoryPolicy::AllkeysLfu => (EvictionOrder::LeastFrequent, false),
        MaxmemoryPolicy::AllkeysRandom => (EvictionOrder::Random, false),
        MaxmemoryPolicy::VolatileLru | MaxmemoryPolicy::VolatileLrm => (EvictionOrder::LeastRecent, true),
        MaxmemoryPolicy::VolatileLfu => (EvictionOrder::LeastFrequent, true),
        MaxmemoryPolicy::VolatileRandom => (EvictionOrder::Random, true),
        MaxmemoryPolicy::VolatileTtl => (EvictionOrder::EarliestDeadline, true),
        MaxmemoryPolicy::Noeviction => return None,
    };
    Some(EvictionPolicy { order, volatile_only })
}

/// Returns how long a thread evicts at a time under a `maxmemory-eviction-tenacity`, as in Redis.
///
/// It is half a millisecond at 10, the default, and 15 % more with each further step. At 100 it evicts until
/// there is room. A writer makes room for itself in a small part of that.
fn budget(tenacity: u32) -> Duration {
    const EACH_STEP: f64 = 1.15;
    match tenacity {
        0..=10 => Duration::from_micros(50) * tenacity,
        11..100 => Duration::from_micros(500).mul_f64(EACH_STEP.powi(tenacity as i32 - 10)),
        _ => Duration::MAX,
    }
}

impl Eviction {
    /// Removes keys until there is room for `wanted` more bytes or its time is over.
    ///
    /// Nothing is held.
    ///
    /// Returns whether threads should continue eviction.
    #[cold]
    pub fn make_room(&mut self, worker: &mut Worker<Job>, wanted: usize) -> bool {
        let began = timing::event_begins(&worker.thread);
        let must_go_on = self.evict(worker, wanted);
        timing::event_ends(EVICTION_CYCLE, began, &worker.thread);
        must_go_on
    }

    fn evict(&mut self, worker: &mut Worker<Job>, wanted: usize) -> bool {
        let server = worker.thread.server();
        let config = server.config.load();
        let policy = choice(config.maxmemory_policy);
        if self.policy != policy {
            self.policy = policy;
            self.pool.clear();
        }
        let wanted = wanted as i64;
        let budget = budget(config.maxmemory_eviction_tenacity)
            .saturating_add(EACH_WANTED_MIB.mul_f64(wanted as f64 / MIB));
        let began = Instant::now();
        if self.measured_at.is_none_or(|measured| began - measured > MEASURE_EVERY) {
            self.measured_at = Some(began);
            server.measure_memory();
        }
        for n_evicted in 1.. {
            let room = server.memory.room();
            if room >= wanted {
                heed_limit();
                server.memory.is_exhausted.set(false);
                server.memory.note_exceeding(false, server.started);
                return false;
            }
            // Nothing may change under CLIENT PAUSE, and loaded data must equal the saved data.
            if server.keeps_all() || server.loading.is_on() {
                return false;
            }
            let attempt = policy
                .map_or(Attempt::Nothing, |policy| self.evict_one(worker, policy, config.maxmemory_samples));
            if attempt == Attempt::Nothing {
                server.memory.is_exhausted.set(room < 0);
                server.memory.note_exceeding(room < 0, server.started);
                return false;
            }
            let is_due = n_evicted % CLOCK_EVERY == 0 || attempt == Attempt::Busy;
            if is_due && (attempt == Attempt::Busy || began.elapsed() > budget) {
                break;
            }
        }
        server.memory.is_exhausted.set(false);
        let is_exceeded = server.memory.room() < 0;
        server.memory.note_exceeding(is_exceeded, server.started);
        is_exceeded
    }

    /// Whether there is eviction to do in this turn of the thread's loop.
    pub fn is_due(server: &Server) -> bool {
        is_above_limit() && !server.memory.is_exhausted.get() && !server.loading.is_on()
    }

    fn evict_one(&mut self, worker: &mut Worker<Job>, policy: EvictionPolicy, n_samples: usize) -> Attempt {
        let n_samples = if policy.order == EvictionOrder::Random { 1 } else { n_samples };
        for _ in 0..BUSY_MAX {
            let Some(id) = shard_with_victims(worker.thread.server(), policy) else {
                return Attempt::Nothing;
            };
            match self.draw(worker, id, policy, n_samples) {
                Some(true) => return Attempt::Evicted,
                Some(false) => {}
                None => continue,
            }
            while let Some(best) = self.pool.pop() {
                if remove(worker, &best) {
                    return Attempt::Evicted;
                }
            }
        }
        Attempt::Busy
    }

    /// Draws keys of a shard. If the pool's best key is in this shard, removes it and returns true.
    ///
    /// Returns nothing if others hold the shard.
    fn draw(
        &mut self,
        worker: &mut Worker<Job>,
        id: ShardId,
        policy: EvictionPolicy,
        n_samples: usize,
    ) -> Option<bool> {
        let drawn = worker.with_shards(&[id], |held, thread| {
            let shard = held.shard(id);
            let now = started(shard, thread.server());
            shard.go_to(Db::default());
            shard.sample_victims(policy, n_samples, random, |db, key, score| self.offer(score, db, id, key));
            let best = self.pool.pop_if(|best| best.shard == id);
            best.is_some_and(|best| best.evict(held, thread, now))
        });
        drawn?.ok()
    }

    /// Keeps a key in the pool if it is among the best.
    fn offer(&mut self, score: u64, db: Db, shard: ShardId, key: &[u8]) {
        let at = self.pool.partition_point(|known| known.score <= score);
        if self.pool.len() == POOL_KEYS {
            if at == 0 {
                return;
            }
            self.pool.remove(0);
            self.pool.insert(at - 1, Candidate { score, db, shard, key: key.into() });
        } else {
            self.pool.insert(at, Candidate { score, db, shard, key: key.into() });
        }
    }
}

/// Removes a key if it still exists and its shard is idle.
fn remove(worker: &mut Worker<Job>, candidate: &Candidate) -> bool {
    let removed = worker.with_shards(&[candidate.shard], |held, thread| {
        let now = started(held.shard(candidate.shard), thread.server());
        candidate.evict(held, thread, now)
    });
    matches!(removed, Some(Ok(true)))
}

/// Starts a shard, and returns its time.
fn started(shard: &mut Shard, server: &Server) -> Millis {
    let now = || server.clock.now();
    shard.start_at(now(), now)
}

/// Returns the first shard, from a random one on, that has keys to evict.
fn shard_with_victims(server: &Server, policy: EvictionPolicy) -> Option<ShardId> {
    let keyspace = &server.keyspace;
    let n_shards = server.engine.n_shards();
    let first = random_below(n_shards);
    let ids = (first..n_shards).chain(0..first).map(|index| ShardId(index as u16));
    let has_victims = |id: &ShardId| keyspace.has_in(*id, |counts| policy.n_victims(counts));
    ids.into_iter().find(has_victims)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tenacity_is_that_of_redis() {
        assert_eq!(budget(0), Duration::ZERO);
        assert_eq!(budget(1), Duration::from_micros(50));
        assert_eq!(budget(10), Duration::from_micros(500));
        assert_eq!(budget(20).as_micros(), 2022);
        // About two minutes.
        assert!((110..130).contains(&budget(99).as_secs()));
        assert_eq!(budget(100), Duration::MAX);
    }
}
