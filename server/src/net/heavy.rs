//! Heavy-work threads: they run long work, so that no socket waits for it.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use braid_storage::{
    memory::{allocator, reclaim},
    sync::coordinator::{Weight, Worker},
    table::flush_retired,
};
use crossbeam_utils::sync::Parker;

use super::certificate_watch::CertificateWatch;
use crate::{
    client::node::Job,
    run::offload,
    shared::{
        server::{SPARE_THREADS, Server},
        thread_state::ThreadState,
    },
};

/// The longest sleep of a heavy-work thread between rounds of returning memory to the system.
const HOUSEKEEPING: Duration = Duration::from_secs(1);

/// The interval at which a spare thread checks for stuck threads, while work waits.
const SPARE_LOOKS_EVERY: Duration = Duration::from_millis(20);

/// The time for collecting the garbage of Lua programs before heavy work is looked for.
const COLLECTS_FOR: Duration = Duration::from_millis(2);

/// The number of freeing steps before heavy work is looked for.
const STEPS_AT_A_TIME: usize = 16;

/// Runs heavy work until the server stops.
///
/// It runs at normal priority: a holder of shards at lower priority is preempted for seconds.
pub fn run_heavy(server: &'static Server, index: usize, parker: &Parker) {
    let mut thread = HeavyThread::new(server, index);
    while !server.stopping.load(Ordering::Relaxed) {
        match thread.turn() {
            Sleep::No => {}
            Sleep::UntilWoken => {
                allocator::settle_before_sleep();
                parker.park();
            }
            Sleep::AtMost(SPARE_LOOKS_EVERY) => parker.park_timeout(SPARE_LOOKS_EVERY),
            Sleep::AtMost(time) => {
                allocator::settle_before_sleep();
                parker.park_timeout(time);
                (server.process.return_freed_memory)();
            }
        }
    }
}

/// A heavy-work thread.
pub(super) struct HeavyThread {
    worker: Worker<Job>,
    /// Its number among the spare threads, if it is one.
    spare: Option<usize>,
    /// The watch over the certificates' files, which the first of these threads keeps.
    certificates: Option<CertificateWatch>,
}

/// The sleep of a heavy-work thread after a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sleep {
    /// There is more to do.
    No,
    /// Until another thread brings work.
    UntilWoken,
    /// The same, but no longer than this.
    AtMost(Duration),
}

impl HeavyThread {
    /// Creates a thread that has run nothing yet.
    pub(super) fn new(server: &'static Server, index: usize) -> Self {
        let n_regular = server.heavy.len() - SPARE_THREADS;
        let nth = index - server.io_threads().len();
        Self {
            worker: Worker::new(Arc::clone(&server.engine), Weight::Heavy, ThreadState::new(index, server)),
            spare: nth.checked_sub(n_regular),
            certificates: (nth == 0).then(CertificateWatch::new),
        }
    }

    /// Takes up some work.
    pub(super) fn turn(&mut self) -> Sleep {
        let worker = &mut self.worker;
        let server = worker.thread.server();
        worker.thread.renew_budget();
        // While a log is loaded no client is served that could wait for that work.
        if !worker.is_reserved()
            && let Some(share) = server.loading.take_share()
        {
            share(worker);
            return Sleep::No;
        }
        let may_begin = worker.is_reserved() || !server.debug.holds_heavy.load(Ordering::Relaxed);
        // Spare threads begin work when others are stuck.
        let may_begin =
            may_begin && self.spare.is_none_or(|nth| worker.is_reserved() || nth < server.n_stuck_heavy());
        // Large garbage must not pile up: each command may produce as much again.
        while reclaim::has_much_large_garbage() && reclaim::reclaim_large() {}
        let worked = may_begin && worker.take_heavy();
        // A long record is written before the next one is made.
        if worked && server.durability.is_full() && server.durability.aof.advance() {
            server.wake_who_awaits_log();
        }
        self.work_offloaded();
        let worker = &mut self.worker;
        if worker.is_reserved() {
            // Its job may hold shards when it arrives, so nothing else begins here. The thread that brings
            // it, or stops the server, unparks this one.
            flush_retired();
            return if worked { Sleep::No } else { Sleep::UntilWoken };
        }
        worker.thread.collect_lua(COLLECTS_FOR);
        let worked = worked || worker.thread.owes_collection.get();
        if self.spare.is_none() {
            return self.keep_house(worked);
        }
        flush_retired();
        if worked {
            Sleep::No
        } else if server.engine.heavy_is_empty() && self.worker.thread.offloaded.is_empty() {
            // A thread that brings heavy work unparks all.
            Sleep::UntilWoken
        } else {
            Sleep::AtMost(SPARE_LOOKS_EVERY)
        }
    }

    /// Runs offloaded commands on their pinned values.
    fn work_offloaded(&mut self) {
        let worker = &mut self.worker;
        let server = worker.thread.server();
        while !server.debug.holds_offloaded.load(Ordering::Relaxed)
            && !worker.is_reserved()
            && let Some(mut node) = worker.thread.offloaded.pop_front()
        {
            offload::work(&mut node, &mut worker.thread);
            worker.submit(node);
        }
        let n_waiting = worker.thread.offloaded.len() as u64;
        worker.thread.stats().offloaded_waiting.store(n_waiting, Ordering::Relaxed);
    }

    /// Frees garbage, in turns with the work so that neither delays the other for long.
    fn keep_house(&mut self, worked: bool) -> Sleep {
        let server = self.worker.thread.server();
        if let Some(certificates) = &mut self.certificates {
            certificates.look(server);
        }
        let has_freed = !server.debug.holds_heavy.load(Ordering::Relaxed) && free_some();
        // Memory that tables gave up meanwhile is freed here or never: other threads' flushes do not reach
        // it.
        flush_retired();
        if has_freed {
            // Any other thread that wants this core has more urgent work.
            std::thread::yield_now();
        }
        if has_freed || worked { Sleep::No } else { Sleep::AtMost(HOUSEKEEPING) }
    }
}

/// Frees some garbage, and returns whether there was any.
///
/// It takes a few milliseconds, or longer for very many bytes in one piece.
fn free_some() -> bool {
    let n_steps = (0..STEPS_AT_A_TIME).take_while(|_| reclaim::reclaim()).count();
    reclaim::reclaim_large() || n_steps > 0
}
