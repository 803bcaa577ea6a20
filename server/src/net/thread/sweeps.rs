//! Commands that visit the shards one after the other, a little in each turn.

use std::time::Duration;

use braid_storage::{
    sync::{coordinator::Route, executor::Node},
    table::hash::ShardId,
};

use super::IoThread;
use crate::{
    client::{
        node::{Job, Task},
        sweep::SweepProgress,
    },
    clock::Instant,
    run::{command_lookup, gates, job, step, unit},
};

/// The time for the sweeps in one turn of the loop.
const SWEEP_BUDGET: Duration = Duration::from_micros(100);

/// The end of a sweep's share in a turn.
enum Swept {
    Done,
    OutOfTime,
    Held(ShardId),
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
