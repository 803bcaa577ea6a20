//! Active expiry: removes keys whose deadline has passed although nobody asks for them.

use std::time::{Duration, Instant};

use braid_storage::{ShardId, coordinator::Worker, shard::ExpiryCursor};

use crate::{blocking, job::Job};

/// What a thread spends on looking for expired keys in a cycle of 100 ms, whatever it finds.
const SEARCH_BUDGET: Duration = Duration::from_micros(2500);
/// What it spends in a cycle while it finds many: a quarter of a core, as Redis does at effort 1.
const REMOVAL_BUDGET: Duration = Duration::from_millis(25);
/// How long one turn of the loop may take: commands wait no longer than this.
const TURN_BUDGET: Duration = Duration::from_micros(250);
/// How many buckets are looked at under one hold.
const STEP_BUCKETS: usize = 16;

/// A thread's share of expiry: every n-th shard.
pub struct Expiry {
    first: usize,
    stride: usize,
    /// The shard it stands at.
    shard: usize,
    at: ExpiryCursor,
    /// The cycle under way.
    cycle: Option<Cycle>,
}

#[derive(Default)]
struct Cycle {
    spent: Duration,
    n_seen: u64,
    n_expired: u64,
    /// Shards passed since the cycle began: one round is enough.
    n_shards: usize,
}

impl Cycle {
    /// Redis's rule: more than a tenth of what is looked at has expired, so there is more to gain.
    fn is_fruitful(&self) -> bool {
        self.n_expired * 10 > self.n_seen
    }
}

impl Expiry {
    /// The share of thread `index` of `n_threads`.
    pub fn new(index: usize, n_threads: usize) -> Self {
        Self { first: index, stride: n_threads, shard: index, at: ExpiryCursor::default(), cycle: None }
    }

    /// Begins a cycle.
    pub fn begin_cycle(&mut self) {
        self.cycle = Some(Cycle::default());
    }

    /// Whether the cycle under way has more to do.
    pub fn is_behind(&self) -> bool {
        self.cycle.is_some()
    }

    /// Does one turn's share.
    pub fn step(&mut self, worker: &mut Worker<Job>) {
        let Some(mut cycle) = self.cycle.take() else { return };
        let began = Instant::now();
        let now = worker.thread.server().clock.now();
        let n_shards = worker.engine().n_shards();
        while began.elapsed() < TURN_BUDGET {
            if self.shard >= n_shards {
                self.shard = self.first;
            }
            if self.first >= n_shards || cycle.n_shards * self.stride > n_shards {
                return;
            }
            let id = ShardId(self.shard as u16);
            let at = &mut self.at;
            let more = worker.thread.server().keyspace.n_deadlines_in(id) > 0
                && worker
                    .with_shards(&[id], |held, thread| {
                        let shard = held.shard(id);
                        shard.start();
                        let step = shard.expire_some(at, now, STEP_BUCKETS);
                        cycle.n_seen += step.n_seen;
                        cycle.n_expired += step.n_expired;
                        blocking::serve_ready(held, thread, now);
                        step.more
                    })
                    // A held shard has its turn in the next cycle.
                    .is_some_and(|step| step.unwrap_or(false));
            if !more {
                self.at = ExpiryCursor::default();
                self.shard += self.stride;
                cycle.n_shards += 1;
            }
        }
        cycle.spent += began.elapsed();
        let budget = if cycle.is_fruitful() { REMOVAL_BUDGET } else { SEARCH_BUDGET };
        if cycle.spent < budget {
            self.cycle = Some(cycle);
        }
    }
}
