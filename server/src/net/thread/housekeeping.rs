//! The work that nobody requests: expiry, eviction, freeing, timeouts, and the figures of the thread.

use std::{sync::atomic::Ordering, time::Duration};

use braid_storage::{memory::reclaim, table::flush_retired};

use super::IoThread;
use crate::{
    clock::Instant, net::eviction::Eviction, net::own_expiry::expire_own_keys, run::timing,
    shared::server::Server, telemetry::latency_monitor::EXPIRE_CYCLE,
};

/// The time for freeing large values and flushed databases in one turn of the loop.
const RECLAIM_BUDGET: Duration = Duration::from_micros(200);
/// The same when very much garbage waits. It slows down a client that makes much garbage.
const FLOODED_BUDGET: Duration = Duration::from_millis(2);
/// The rounds of the cron without a read after which a thread returns memory.
const IDLE_CRONS: u32 = 5;
/// The interval at which the thread checks timeouts, expiry and the configuration.
const CRON_INTERVAL: Duration = Duration::from_millis(100);

impl IoThread {
    /// Does a turn's share of housekeeping, and a round of the cron if that is due.
    #[inline(always)]
    pub(super) fn keep_house(&mut self) {
        self.step_expiry();
        let is_due = Eviction::is_due(self.server());
        if is_due && self.housekeeping.eviction.make_room(&mut self.worker, 0) {
            // Eviction may take long. Another thread on this core, such as a client on the same machine,
            // should not wait for a time slice to end.
            std::thread::yield_now();
        }
        self.reclaim();
        self.worker.thread.collect_lua(RECLAIM_BUDGET);
        if self.turn_ended >= self.housekeeping.next_cron {
            self.worker.thread.leave_to_others();
            self.cron();
        }
    }

    /// Does a turn's share of expiry.
    fn step_expiry(&mut self) {
        if self.housekeeping.expiry.is_behind() {
            if self.server().holds_expiry() {
                return self.housekeeping.expiry.end_cycle();
            }
            let nanos = self.housekeeping.expiry.step(&mut self.worker).as_nanos() as u64;
            self.worker.thread.stats().expiry_nanos.add(nanos);
            timing::note_event(EXPIRE_CYCLE, nanos, &self.worker.thread);
        }
    }

    fn cron(&mut self) {
        self.housekeeping.next_cron = Instant::now() + CRON_INTERVAL;
        let server = self.server();
        if server.debug.pauses_cron.load(Ordering::Relaxed) {
            return;
        }
        server.follow_clock();
        let is_paused = server.is_paused();
        if self.waits.has_postponed() && !is_paused {
            self.resume_postponed();
        }
        self.wake_resting(server);
        self.log_waits.check_all();
        self.close_idle(server);
        self.close_overdue();
        self.tend_replicas();
        self.end_overdue_handshakes();
        if server.debug.active_expire.load(Ordering::Relaxed)
            && !server.holds_expiry()
            && !server.loading.is_on()
        {
            self.housekeeping.expiry.begin_cycle();
        }
        self.share_out_connections(server);
        if self.worker.thread.index == 0 {
            server.measure_memory();
            server.limit_clients(&self.worker.thread);
            server.measure_first_thread();
            server.sample_rates();
            server.end_hot_keys_in_time();
            if server.debug.active_expire.load(Ordering::Relaxed) {
                expire_own_keys(server, &mut self.worker);
            }
        }
        // The first thread accepts connections, but a script may occupy it.
        if self.worker.thread.index == 0 || server.is_kept_by_script(0) {
            self.accepting = server.listening.tokens();
        }
        flush_retired();
        self.give_back_memory(server);
    }

    /// Returns memory once the thread has had nothing to read for a time.
    fn give_back_memory(&mut self, server: &Server) {
        let purges = server.purges.load(Ordering::Relaxed);
        if std::mem::replace(&mut self.housekeeping.purges_seen, purges) != purges {
            (server.process.return_freed_memory)();
        }
        let n_reads = self.worker.thread.stats().reads.get();
        if std::mem::replace(&mut self.housekeeping.n_reads_seen, n_reads) != n_reads {
            self.housekeeping.n_idle_crons = 0;
            return;
        }
        self.housekeeping.n_idle_crons = self.housekeeping.n_idle_crons.saturating_add(1);
        if self.housekeeping.n_idle_crons == IDLE_CRONS {
            (server.process.return_freed_memory)();
        }
    }

    /// Frees garbage that was too large for a hold, for a share of this turn.
    fn reclaim(&mut self) {
        if reclaim::wants_idle_threads() {
            self.worker.thread.wake_heavy = true;
            self.worker.thread.send_wakes();
            reclaim::help_reclaim_large();
        }
        if !reclaim::has_garbage() {
            return;
        }
        let budget = if reclaim::is_flooded() { FLOODED_BUDGET } else { RECLAIM_BUDGET };
        let began = Instant::now();
        while reclaim::reclaim() && began.elapsed() < budget {}
    }
}
