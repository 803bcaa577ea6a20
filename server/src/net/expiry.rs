//! Active expiry: removes expired keys and fields of hashes although no command uses them.

use std::{collections::BTreeMap, sync::atomic::Ordering, time::Duration};

use braid_storage::{
    entry::{db::Db, time::Millis},
    keyspace::shard::expiry::ExpiryCursor,
    sync::coordinator::Worker,
    table::{Counts, Lasting, hash::ShardId},
};

use crate::{client::node::Job, clock::Instant, run::unit, shared::thread_state::ThreadState};

/// The time per cycle of 100 ms for searching expired keys, with or without success.
///
/// It is one turn: more turns in a row would delay more than one command in a hundred. A million keys are
/// visited within half a minute.
const SEARCH_BUDGET: Duration = TURN_BUDGET;
/// The time per cycle while it finds many. It is a quarter of a core, as in Redis at effort 1.
const REMOVAL_BUDGET: Duration = Duration::from_millis(25);
/// The time for expiry in one turn of the loop. Commands wait no longer than this.
const TURN_BUDGET: Duration = Duration::from_micros(250);
/// The number of buckets that are visited under one hold.
const STEP_BUCKETS: usize = 16;

/// The number of hash fields that are removed under one hold.
const STEP_FIELDS: usize = 64;
/// The number of removed fields in a shard's hashes after which the next shard follows.
const VISIT_FIELDS: usize = 64 * 1024;

/// A thread's share of expiry: every n-th shard.
pub struct Expiry {
    first: usize,
    stride: usize,
    /// The current shard.
    shard: usize,
    visit: Visit,
    /// The cycle under way.
    cycle: Option<Cycle>,
}

/// The progress in a shard.
#[derive(Default)]
struct Visit {
    keys: ExpiryCursor,
    keys_are_done: bool,
    n_fields: usize,
}

#[derive(Default)]
struct Cycle {
    spent: Duration,
    n_seen: u64,
    n_expired: u64,
    /// Shards passed since the cycle began. One round is enough.
    n_shards: usize,
    /// The keys with a deadline that the cycle has met, by database.
    met: BTreeMap<Db, Lasting>,
}

impl Cycle {
    /// Whether more can be gained. By Redis's rule, more than a tenth of the visited keys has expired.
    fn is_fruitful(&self) -> bool {
        self.n_expired * 10 > self.n_seen
    }
}

impl Cycle {
    /// Records which share of the visited keys had expired, and the lifetimes of the others.
    ///
    /// Both are averages over the last cycles, as in Redis.
    fn tell(&self, thread: &ThreadState) {
        if !self.met.is_empty() {
            thread.server().average_ttls.follow(&self.met);
        }
        let stats = thread.stats();
        let now = (self.n_expired * 1_000_000).checked_div(self.n_seen).unwrap_or(0);
        let before = stats.stale_millionths.load(Ordering::Relaxed);
        stats.stale_millionths.store((now + 19 * before) / 20, Ordering::Relaxed);
    }
}

impl Expiry {
    /// The share of thread `index` of `n_threads`.
    pub fn new(index: usize, n_threads: usize) -> Self {
        Self { first: index, stride: n_threads, shard: index, visit: Visit::default(), cycle: None }
    }

    /// Begins a cycle.
    pub fn begin_cycle(&mut self) {
        self.cycle = Some(Cycle::default());
    }

    /// Cancels the cycle under way.
    pub fn end_cycle(&mut self) {
        self.cycle = None;
    }

    /// Whether the cycle under way has more work.
    pub fn is_behind(&self) -> bool {
        self.cycle.is_some()
    }

    /// Does one turn's share, and returns how long it took.
    pub fn step(&mut self, worker: &mut Worker<Job>) -> Duration {
        let Some(mut cycle) = self.cycle.take() else { return Duration::ZERO };
        let began = Instant::now();
        let now = worker.thread.server().clock.now();
        let n_shards = worker.engine().n_shards();
        while began.elapsed() < TURN_BUDGET {
            if self.shard >= n_shards {
                self.shard = self.first;
            }
            if self.first >= n_shards || cycle.n_shards * self.stride > n_shards {
                cycle.tell(&worker.thread);
                return began.elapsed();
            }
            let id = ShardId(self.shard as u16);
            let more = self.visit.step(worker, id, now, &mut cycle);
            if !more {
                self.visit = Visit::default();
                self.shard += self.stride;
                cycle.n_shards += 1;
            }
        }
        let took = began.elapsed();
        cycle.spent += took;
        let budget = if cycle.is_fruitful() { REMOVAL_BUDGET } else { SEARCH_BUDGET };
        if cycle.spent < budget {
            self.cycle = Some(cycle);
        } else {
            worker.thread.stats().expiry_caps.add(1);
            cycle.tell(&worker.thread);
        }
        took
    }
}

impl Visit {
    /// Does one piece of work under the shard's hold. Returns whether there may be more.
    fn step(&mut self, worker: &mut Worker<Job>, id: ShardId, now: Millis, cycle: &mut Cycle) -> bool {
        let keyspace = &worker.thread.server().keyspace;
        let has_keys = !self.keys_are_done && keyspace.has_in(id, Counts::n_deadlines);
        let has_fields = self.n_fields < VISIT_FIELDS && keyspace.has_due_fields_in(id, now);
        if !has_keys && !has_fields {
            return false;
        }
        let stepped = worker.with_shards(&[id], |held, thread| {
            // Checked under the hold: nothing expires once CLIENT PAUSE has answered, nor while the
            // append-only file is loaded, nor on a replica.
            if thread.server().holds_expiry() || thread.server().loading.is_on() {
                return;
            }
            let shard = held.shard(id);
            let now = shard.start_at(now, || thread.server().clock.now());
            if has_fields {
                let n_expired = shard.expire_fields(now, STEP_FIELDS);
                // Fields that cannot be removed now have their turn in the next cycle.
                self.n_fields += if n_expired == 0 { VISIT_FIELDS } else { n_expired };
                cycle.n_seen += n_expired as u64;
                cycle.n_expired += n_expired as u64;
            }
            if has_keys {
                let step = shard.expire_some(&mut self.keys, now, STEP_BUCKETS);
                self.keys_are_done = !step.more;
                cycle.n_seen += step.n_seen;
                cycle.n_expired += step.n_expired;
                if let Some((db, lasting)) = step.met {
                    cycle.met.entry(db).or_default().join(lasting);
                }
            }
            unit::end(held, thread, now);
        });
        // A held shard has its turn in the next cycle.
        stepped.is_some_and(|step| step.is_ok())
    }
}
