//! Commands that visit the shards one after the other, a little in each turn.

use std::time::{Duration, Instant};

use braid_storage::{Remembered, coordinator::Route, executor::Node};

use super::IoThread;
use crate::{
    client::{
        node::{Job, Task},
        sweep::SweepProgress,
    },
    observe::hearers,
    run::{command_lookup, gates, job, step, unit},
    shared::server::Server,
};

/// The time for the sweeps in one turn of the loop.
const SWEEP_BUDGET: Duration = Duration::from_micros(100);

/// The time for forgetting readers of keys in one turn of the loop.
const EVICTION_BUDGET: Duration = Duration::from_micros(500);

/// The number of keys whose readers are forgotten under one hold.
const EVICTION_KEYS: usize = 64;

/// The time for forgetting clients that no longer track, in one turn of the loop.
const FORGETTING_BUDGET: Duration = Duration::from_micros(100);

/// The number of keys at which a client is forgotten under one hold.
const FORGETTING_KEYS: usize = 64;

/// The end of a sweep's share in a turn.
enum Swept {
    Done,
    OutOfTime,
    Held(braid_storage::ShardId),
}

impl IoThread {
    /// Does a turn's share of each sweep under way.
    pub(super) fn step_sweeps(&mut self) {
        let began = Instant::now();
        for _ in 0..self.sweeps.len() {
            let Some(mut node) = self.sweeps.pop_front() else { return };
            if node.job.session.record.is_killed() {
                node.job.task = Task::Idle;
                self.take_back(node);
                continue;
            }
            let step_began = Instant::now();
            let swept = self.step_sweep(&mut node, began);
            if let Task::Sweep(sweep) = &mut node.job.task {
                sweep.worked += step_began.elapsed();
            }
            match swept {
                Swept::Done => self.take_back(node),
                Swept::OutOfTime => self.sweeps.push_back(node),
                Swept::Held(shard) => {
                    node.set_route(Route::one(shard));
                    self.worker.submit(node);
                }
            }
            if began.elapsed() > SWEEP_BUDGET {
                return;
            }
        }
    }

    /// Forgets the readers of keys while more keys are remembered than `tracking-table-max-keys`. The readers
    /// are told to read again.
    ///
    /// A shard that remembers a key keeps the limit with its own remembered keys. Here all shards have their
    /// turns.
    pub(super) fn limit_tracking(&mut self, server: &Server) {
        let Some(limit) = server.trackers.max_keys() else { return };
        if server.trackers.n_keys() <= limit {
            return;
        }
        let began = Instant::now();
        let n_shards = server.keyspace.router().n_shards();
        for _ in 0..n_shards {
            let n_over = server.trackers.n_keys().saturating_sub(limit) as usize;
            if n_over == 0 || began.elapsed() > EVICTION_BUDGET {
                return;
            }
            self.limited_at = (self.limited_at + 1) % n_shards;
            let shard = braid_storage::ShardId(self.limited_at as u16);
            // A held shard has its turn in the next round. The readers of a key are told when the shard is
            // released.
            let _ = self.worker.with_shard(shard, |shard, _| {
                let n_most = n_over.min(EVICTION_KEYS);
                (0..n_most).take_while(|_| shard.evict_readers()).count()
            });
        }
    }

    /// Makes shards forget clients that no longer track, for a share of this turn.
    pub(super) fn step_forgetting(&mut self) {
        self.is_forgetting = false;
        if self.forgetting.is_empty() {
            return;
        }
        let server = self.server();
        let began = Instant::now();
        let mut gets_on = false;
        for _ in 0..self.forgetting.len() {
            let Some(leftover) = self.forgetting.pop_front() else { return };
            let mut from = 0;
            while let Some(id) = leftover.shards.first_from(from) {
                let forgotten = self.worker.with_shard(id, |shard, _| match leftover.reader {
                    Some(reader) => shard.forget_reader(reader, FORGETTING_KEYS),
                    None => {
                        // A client that begins to track prefixes holds all shards.
                        if server.trackers.n_prefixes() == 0 {
                            shard.hear_all(hearers::PREFIXES, false);
                        }
                        (Remembered::default(), true)
                    }
                });
                match forgotten {
                    Some(Ok((forgotten, was_all))) => {
                        server.trackers.forgot(forgotten);
                        gets_on = true;
                        if was_all {
                            leftover.shards.remove(id);
                        }
                    }
                    // It is held, so the others come first.
                    Some(Err(_)) | None => from = usize::from(id.0) + 1,
                }
                if began.elapsed() > FORGETTING_BUDGET {
                    self.forgetting.push_front(leftover);
                    self.is_forgetting = gets_on;
                    return;
                }
            }
            if leftover.shards.first_from(0).is_some() {
                self.forgetting.push_back(leftover);
            }
        }
        self.is_forgetting = gets_on && !self.forgetting.is_empty();
    }

    fn step_sweep(&mut self, node: &mut Node<Job>, began: Instant) -> Swept {
        let server = self.server();
        let now = server.clock.now();
        let command = command_lookup::row(node.job.commands[0].command);
        let Task::Sweep(sweep) = &mut node.job.task else { unreachable!("only sweeps are stepped") };
        while let Some(shard) = sweep.shard_to_visit(&server.keyspace) {
            let session = &node.job.session;
            let step = self.worker.with_shards(&[shard], |held, thread| {
                if gates::is_replaying(server) {
                    step::refuse(&gates::LOADING, session, sweep.fail(), thread);
                    return SweepProgress::Done;
                }
                let shard = held.shard(shard);
                let now = shard.start_at(now, || server.clock.now());
                shard.go_to(sweep.db);
                let step = step::step_sweep(command, sweep, shard);
                // It may have removed expired keys.
                unit::end(held, thread, now);
                step
            });
            match step {
                Some(Ok(SweepProgress::Done)) => return Swept::Done,
                Some(Ok(SweepProgress::More)) if began.elapsed() > SWEEP_BUDGET => return Swept::OutOfTime,
                Some(Ok(SweepProgress::More)) => {}
                None => return Swept::Held(shard),
                Some(Err(_)) => {
                    let resp = sweep.resp;
                    job::write_panic_error(sweep.fail(), resp, Some(command), &self.worker.thread);
                    return Swept::Done;
                }
            }
        }
        Swept::Done
    }
}
