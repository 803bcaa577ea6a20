//! The event loop of an I/O thread: it reads, runs and writes.

mod batch;
mod connections;
mod forgetting;
mod handover;
mod handshakes;
mod housekeeping;
mod leaving;
mod log_acks;
mod memory_accounting;
mod own_config;
mod parts;
mod push_delivery;
mod replica_links;
mod returning;
mod serving;
#[cfg(test)]
mod simulation;
mod slots;
mod splitting;
mod subscribers;
mod sweeps;
mod waiting;

use std::{
    collections::VecDeque,
    io,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use braid_storage::{
    memory::{allocator, reclaim},
    sync::{
        coordinator::{Weight, Worker},
        executor::Node,
    },
};
use mio::Token;

use self::{
    batch::Serving,
    parts::{Buffers, Forgetting, Handshakes, Housekeeping, LogWaits, OwnConfig, Waits},
    slots::Slots,
    subscribers::{GIVING_REST_MAX, Giving, Subscribers},
};
use crate::{
    client::{id::ClientId, node::Job},
    clock::Instant,
    net::{eviction::Eviction, welcome},
    run::timing,
    shared::{mail::Mail, server::Server, thread_state::ThreadState},
    sockets::{
        listening::Listening,
        poller::{Poller, WAKER},
        tls::Ciphertext,
    },
    telemetry::latency_monitor::LOOP,
};

/// The bytes that are read from a socket at a time.
const READ_BYTES: usize = 64 * 1024;

/// The maximum of finished nodes that are taken back before sockets are served. Each may be a reply to write.
const FINISHED_AT_A_TIME: usize = 64;

/// A thread that serves sockets.
pub struct IoThread {
    worker: Worker<Job>,
    poller: Poller,
    connections: Slots,
    buffers: Buffers,
    serving: Serving,
    /// Listening sockets at which connections may wait.
    accepting: Vec<Token>,
    /// Connections with more to read, run or write than one turn's share.
    again: Vec<usize>,
    /// Nodes whose work is done and that have not been taken back yet.
    finished: VecDeque<Box<Node<Job>>>,
    /// Commands that visit the shards one after the other.
    sweeps: VecDeque<Box<Node<Job>>>,
    /// The TLS handshakes that are under way.
    handshakes: Handshakes,
    /// Connections whose commands wait for keys, for the end of a pause, or for a time.
    waits: Waits,
    /// Connections that wait for the log.
    log_waits: LogWaits,
    /// The slots of replicas.
    links: Vec<(usize, ClientId)>,
    /// The subscriptions of this thread's clients.
    subscribers: Subscribers,
    /// The position in this thread's queue of notifications, and its waiting connections.
    giving: Giving,
    /// The clients and keys of CLIENT TRACKING that the shards have still to forget.
    forgetting: Forgetting,
    housekeeping: Housekeeping,
    own: OwnConfig,
    /// The time at which the last turn ended.
    turn_ended: Instant,
}

impl IoThread {
    /// Creates the thread's loop. `poller` already reports its waker.
    pub fn new(server: &'static Server, index: usize, poller: Poller) -> Self {
        let state = ThreadState::new(index, server);
        Self {
            worker: Worker::new(Arc::clone(&server.engine), Weight::Light, state),
            poller,
            connections: Slots::default(),
            buffers: Buffers {
                input: vec![0; READ_BYTES].into_boxed_slice(),
                ciphertext: Ciphertext::default(),
                replies: Vec::new(),
            },
            serving: Serving::default(),
            accepting: Vec::new(),
            again: Vec::new(),
            finished: VecDeque::new(),
            sweeps: VecDeque::new(),
            handshakes: Handshakes::default(),
            waits: Waits::default(),
            log_waits: LogWaits::default(),
            links: Vec::new(),
            subscribers: Subscribers::default(),
            giving: Giving::default(),
            forgetting: Forgetting::default(),
            housekeeping: Housekeeping::new(index, server.io_threads().len()),
            own: OwnConfig::new(server),
            turn_ended: Instant::now(),
        }
    }

    fn server(&self) -> &'static Server {
        self.worker.thread.server()
    }

    /// Serves until the server stops.
    ///
    /// # Errors
    /// If the system's event queue fails, which ends the thread.
    pub fn run(&mut self) -> io::Result<()> {
        while !self.server().stopping.load(Ordering::Relaxed) {
            let timeout = self.prepare_to_wait();
            self.turn(timeout)?;
        }
        // Without this, later records of other threads could not be written.
        self.worker.thread.publish_log();
        Ok(())
    }

    /// Waits for events, and serves them and all other work of one turn.
    ///
    /// # Errors
    /// If the system's event queue fails.
    #[inline(always)]
    fn turn(&mut self, timeout: Duration) -> io::Result<()> {
        let polled = self.poller.wait(timeout);
        self.server().threads[self.worker.thread.index].inbox.awake();
        polled?;
        let woke_at = timing::event_begins(&self.worker.thread);
        let stats = self.worker.thread.stats();
        self.serving.begin_turn(stats.splits_latency.load(Ordering::Relaxed));
        self.heed_config();
        self.worker.thread.renew_budget();
        stats.turns.add(1);
        self.read_mail();
        self.take_finished();
        self.take_injected();
        self.serve_ready();
        self.accept();
        // This comes after the commands of the events, whose replies may wait for notifications. It comes
        // before the writes.
        let gave_from = self.give_out();
        for slot in std::mem::take(&mut self.again) {
            self.go_on(slot);
        }
        if let Some(began) = gave_from {
            self.rest_from_giving(began);
        }
        self.step_handshakes();
        self.take_finished();
        self.step_sweeps();
        self.limit_tracking(self.server());
        self.step_forgetting();
        self.end_overdue_waits();
        // The time after the last served commands is exact enough.
        self.turn_ended = self.serving.ended_at.take().unwrap_or_else(Instant::now);
        self.keep_house();
        self.step_log();
        timing::event_ends(LOOP, woke_at, &self.worker.thread);
        Ok(())
    }

    /// Takes up work that other threads have left, and leaves a part of it again if there is more to do here.
    #[inline(always)]
    fn take_injected(&mut self) {
        self.worker.thread.comes_back(true);
        self.worker.take_injected();
        self.worker.thread.comes_back(false);
        if self.worker.thread.keeps_one && (self.has_work_left() || !self.may_leave_notifications()) {
            self.worker.thread.leave_to_others();
        }
    }

    /// Serves the sockets that have reported events.
    #[inline(always)]
    fn serve_ready(&mut self) {
        let mut at = 0;
        while let Some(event) = self.poller.event(at) {
            at += 1;
            match event.token {
                WAKER => {}
                token if Listening::owns(token) => {
                    if !self.accepting.contains(&token) {
                        self.accepting.push(token);
                    }
                }
                Token(slot) => {
                    self.on_event(slot, &event);
                    if !self.worker.engine().injector_is_empty() {
                        self.worker.take_injected();
                    }
                }
            }
        }
    }

    /// Announces that the thread will wait, and returns for how long: not at all if there is work to do.
    #[inline(always)]
    fn prepare_to_wait(&mut self) -> Duration {
        let peer = &self.server().threads[self.worker.thread.index];
        // Commands that hold nothing may have sent something.
        self.worker.thread.send_wakes();
        let may_sleep = !self.has_work_left()
            && peer.inbox.may_sleep(|| {
                peer.mail.is_empty()
                    && self.may_leave_notifications()
                    && !self.may_release_replies()
                    && !self.may_feed_replicas()
                    && !self.has_new_acks()
                    && self.worker.engine().injector_is_empty()
            });
        if !may_sleep {
            return Duration::ZERO;
        }
        allocator::settle_before_sleep();
        self.time_to_sleep(self.turn_ended)
    }

    /// Whether there is work to do that no wake-up announces.
    fn has_work_left(&self) -> bool {
        !self.again.is_empty()
            || !self.accepting.is_empty()
            || !self.sweeps.is_empty()
            || !self.finished.is_empty()
            || self.handshakes.are_waiting()
            || self.forgetting.gets_on()
            || self.housekeeping.expiry.is_behind()
            || self.worker.thread.owes_collection.get()
            || Eviction::is_due(self.server())
            || reclaim::has_garbage()
            || self.worker.thread.has_unpublished()
    }

    /// The time until the cron, or until the first waiting command gives up.
    fn time_to_sleep(&self, now: Instant) -> Duration {
        let mut to_cron = self.housekeeping.next_cron.saturating_duration_since(now);
        if !self.server().threads[self.worker.thread.index].notifications.is_empty() {
            to_cron = to_cron.min(GIVING_REST_MAX);
        }
        match self.waits.first_deadline() {
            None => to_cron,
            Some(deadline) => {
                let millis = deadline.0.saturating_sub(self.server().clock.steady().0);
                to_cron.min(Duration::from_millis(millis))
            }
        }
    }

    fn read_mail(&mut self) {
        let server = self.server();
        let peer = &server.threads[self.worker.thread.index];
        while let Some(mail) = peer.mail.pop() {
            self.worker.thread.leave_to_others();
            match mail {
                Mail::Serve(accepted) => self.welcome(*accepted),
                Mail::Adopt(connection) => self.adopt(connection),
                Mail::Close(record) => self.close_killed(record),
                Mail::Waits(parked) => self.note_wait(parked),
                Mail::GaveUp(node, parked) => self.withdraw(node, parked),
                Mail::SyncWaits => self.log_waits.check_all(),
                Mail::Resume => self.resume_postponed(),
                Mail::Room => self.release_held_back(),
                Mail::Copy(copy) => self.begin_copies(&copy),
                Mail::WalkStep(mut step) => {
                    step.take(&mut self.worker);
                    server.give_step_back(step);
                }
            }
        }
    }

    /// Takes back nodes whose work is done, oldest first. A node that finishes again meanwhile has its turn
    /// later.
    fn take_finished(&mut self) {
        if self.finished.is_empty() {
            let server = self.server();
            let mut nodes = server.threads[self.worker.thread.index].inbox.take();
            // Usually there are none.
            let Some(first) = nodes.next() else { return };
            self.finished.push_back(first);
            self.finished.extend(nodes);
        }
        for _ in 0..FINISHED_AT_A_TIME {
            let Some(node) = self.finished.pop_front() else { return };
            self.worker.thread.leave_to_others();
            self.take_back(node);
        }
    }

    /// Accepts a turn's share of the waiting connections.
    fn accept(&mut self) {
        let server = self.server();
        let stats = self.worker.thread.stats();
        self.accepting
            .retain(|&token| server.listening.accept(token, |accepted| welcome(server, stats, accepted)));
    }
}
