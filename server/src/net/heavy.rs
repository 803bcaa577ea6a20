//! Heavy-work threads: they run what takes long, so that no socket waits behind it.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use braid_storage::{
    coordinator::{Weight, Worker},
    table::flush_retired,
};
use crossbeam_utils::sync::Parker;

use super::certificate_watch::CertificateWatch;
use crate::{
    run::offload,
    shared::{
        server::{SPARE_THREADS, Server},
        thread_state::ThreadState,
    },
};

/// How long a heavy-work thread sleeps at most between rounds of returning memory to the system.
const HOUSEKEEPING: Duration = Duration::from_secs(1);

/// How often a spare thread looks whether the others are stuck, while work waits.
const SPARE_LOOKS_EVERY: Duration = Duration::from_millis(20);

/// How long what programs have left in Lua is collected before heavy work is looked for.
const COLLECTS_FOR: Duration = Duration::from_millis(2);

/// How many steps of freeing are done before heavy work is looked for.
const STEPS_AT_A_TIME: usize = 16;

/// Runs heavy work until the server stops. At normal priority: a niced holder of shards is preempted for
/// seconds.
pub fn run_heavy(server: &'static Server, index: usize, parker: &Parker) {
    let engine = Arc::clone(&server.engine);
    let n_regular = server.heavy.len() - SPARE_THREADS;
    let spare = (index - server.io_threads().len()).checked_sub(n_regular);
    let mut worker = Worker::new(engine, Weight::Heavy, ThreadState::new(index, server));
    let mut certificates = (index == server.io_threads().len()).then(CertificateWatch::new);
    while !server.stopping.load(Ordering::Relaxed) {
        worker.thread.renew_budget();
        // While a log is loaded nobody is served who could wait behind that.
        if !worker.is_reserved()
            && let Some(share) = server.loading.take_share()
        {
            share(&mut worker);
            continue;
        }
        let may_begin = worker.is_reserved() || !server.holds_heavy.load(Ordering::Relaxed);
        // Those that stand in begin where others are stuck.
        let may_begin =
            may_begin && spare.is_none_or(|nth| worker.is_reserved() || nth < server.n_stuck_heavy());
        // Large garbage must not pile up: each command may make as much again.
        while braid_storage::has_much_large_garbage() && braid_storage::reclaim_large() {}
        let worked = may_begin && worker.take_heavy();
        // A long record is written before the next one is made.
        if worked && server.durability.is_full() && server.durability.aof.advance() {
            server.wake_who_awaits_log();
        }
        while !server.holds_offloaded.load(Ordering::Relaxed)
            && !worker.is_reserved()
            && let Some(mut node) = worker.thread.offloaded.pop_front()
        {
            offload::work(&mut node, &mut worker.thread);
            worker.submit(node);
        }
        worker
            .thread
            .stats()
            .offloaded_waiting
            .store(worker.thread.offloaded.len() as u64, Ordering::Relaxed);
        if worker.is_reserved() {
            // Its job may hold shards when it comes: nothing else is begun here. Whoever brings it, or stops
            // the server, unparks.
            flush_retired();
            if !worked {
                braid_storage::settle_before_sleep();
                parker.park();
            }
            continue;
        }
        worker.thread.collect_lua(COLLECTS_FOR);
        let worked = worked || worker.thread.owes_collection.get();
        if spare.is_some() {
            flush_retired();
            if !worked && server.engine.heavy_is_empty() && worker.thread.offloaded.is_empty() {
                // Who brings heavy work unparks all.
                braid_storage::settle_before_sleep();
                parker.park();
            } else if !worked {
                parker.park_timeout(SPARE_LOOKS_EVERY);
            }
            continue;
        }
        // By turns, so that neither keeps the other waiting for long.
        if let Some(certificates) = &mut certificates {
            certificates.look(server);
        }
        let has_freed = !server.holds_heavy.load(Ordering::Relaxed) && free_some();
        // What tables gave up meanwhile is freed here or nowhere: others' flushes do not reach it.
        flush_retired();
        if has_freed {
            // Whoever wants this core has something more urgent to do.
            std::thread::yield_now();
        } else if !worked {
            braid_storage::settle_before_sleep();
            parker.park_timeout(HOUSEKEEPING);
            (server.process.return_freed_memory)();
        }
    }
}

/// Frees some of what waits to be freed, for a few milliseconds but for very many bytes in one piece; says
/// whether there was anything.
fn free_some() -> bool {
    let n_steps = (0..STEPS_AT_A_TIME).take_while(|_| braid_storage::reclaim()).count();
    braid_storage::reclaim_large() || n_steps > 0
}
