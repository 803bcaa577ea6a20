//! Commands that visit the shards in turn, a little in each turn of the loop.

use std::time::{Duration, Instant};

use braid_storage::{coordinator::Route, executor::Node};

use super::IoThread;
use crate::{
    command::Step,
    run::{
        node::{self, Job, Task},
        step, unit,
    },
    server::Server,
};

/// How long the sweeps of one turn of the loop may take.
const SWEEP_BUDGET: Duration = Duration::from_micros(100);

/// How long forgetting who has read keys may take in one round of the cron.
const EVICTION_BUDGET: Duration = Duration::from_micros(500);

/// Of how many keys readers are forgotten under one hold.
const EVICTION_KEYS: usize = 64;

/// How the share of a sweep in a turn ended.
enum Swept {
    Done,
    OutOfTime,
    Held(braid_storage::ShardId),
}

impl IoThread {
    /// Gives each sweep under way a share of this turn.
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

    /// Forgets who has read keys, which tells them to read again, while more are remembered than `tracking-table-max-keys`.
    pub(super) fn limit_tracking(&mut self, server: &Server) {
        let Some(limit) = self.config.tracking_table_max_keys else { return };
        if self.worker.thread.index != 0 || server.trackers.n_keys() <= limit as u64 {
            return;
        }
        let began = Instant::now();
        for index in 0..server.keyspace.router().n_shards() {
            let n_over = server.trackers.n_keys().saturating_sub(limit as u64) as usize;
            if n_over == 0 || began.elapsed() > EVICTION_BUDGET {
                return;
            }
            let shard = braid_storage::ShardId(index as u16);
            // A held shard has its turn in the next round. Who has read a key is told when the shard is let go.
            let _ = self.worker.with_shard(shard, |shard, _| {
                let n_most = n_over.min(EVICTION_KEYS);
                (0..n_most).take_while(|_| shard.evict_readers()).count()
            });
        }
    }

    fn step_sweep(&mut self, node: &mut Node<Job>, began: Instant) -> Swept {
        let server = self.server();
        let now = server.clock.now();
        let command = node.job.commands[0].command;
        let Task::Sweep(sweep) = &mut node.job.task else { unreachable!("only sweeps are stepped") };
        while let Some(shard) = sweep.shard_to_visit(&server.keyspace) {
            let step = self.worker.with_shards(&[shard], |held, thread| {
                let shard = held.shard(shard);
                shard.start();
                shard.begin(sweep.db, now);
                let step = step::step_sweep(command, sweep, shard);
                // It may have removed keys that had expired.
                unit::end(held, thread, now);
                step
            });
            match step {
                Some(Ok(Step::Done)) => return Swept::Done,
                Some(Ok(Step::More)) if began.elapsed() > SWEEP_BUDGET => return Swept::OutOfTime,
                Some(Ok(Step::More)) => {}
                None => return Swept::Held(shard),
                Some(Err(_)) => {
                    let resp = sweep.resp;
                    node::write_panic_error(sweep.fail(), resp, Some(command), &self.worker.thread);
                    return Swept::Done;
                }
            }
        }
        Swept::Done
    }
}
