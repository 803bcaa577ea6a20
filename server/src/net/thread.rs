//! The event loop of an I/O thread: it reads, runs and writes.

mod batch;
mod connections;
mod handover;
mod handshakes;
mod leaving;
mod log_acks;
mod memory_accounting;
mod push_delivery;
mod serving;
mod splitting;
mod subscribers;
mod sweeps;
mod waiting;

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    hint::cold_path,
    io,
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use braid_journal::intake::Ticket;
use braid_protocol::request::Limits;
use braid_storage::{
    coordinator::{Weight, Worker},
    executor::Node,
    table::flush_retired,
};
use mio::{Events, Poll, Token};
use slab::Slab;

use self::{
    batch::{Batch, InputFor},
    handshakes::Handshakes,
    subscribers::{GIVING_REST_MAX, Giving, Subscribers},
};
use crate::{
    client::{
        connection::{BacklogPiece, Connection, TURN_BYTES},
        node::{Job, Task, empty},
        session::{AwaitSync, Replies, SessionRequest},
    },
    clock::Steady,
    command::Registered,
    config::Config,
    net::{eviction::Eviction, welcome},
    notify::tracking_table::Leftover,
    run::{
        budget::Budget,
        command_lookup,
        finish::{self, FinishedCommand, Times},
        timing,
    },
    shared::{
        client_limit::clients_limit, mail::Mail, server::Server, thread_scaling::Sampler,
        thread_state::ThreadState,
    },
    sockets::{listening::Listening, tls::Ciphertext},
    telemetry::latency_monitor::{EXPIRE_CYCLE, LOOP},
};

/// The token of the thread's own wake-ups.
pub const WAKER: Token = Token(usize::MAX);
/// The bytes that are read from a socket at a time.
const READ_BYTES: usize = 64 * 1024;
/// The time for freeing large values and flushed databases in one turn of the loop.
const RECLAIM_BUDGET: Duration = Duration::from_micros(200);
/// The same when very much garbage waits. It slows down a client that makes much garbage.
const FLOODED_BUDGET: Duration = Duration::from_millis(2);
/// The rounds of the cron without a read after which a thread returns memory.
const IDLE_CRONS: u32 = 5;
/// The interval at which the thread checks timeouts, expiry and the configuration.
const CRON_INTERVAL: Duration = Duration::from_millis(100);

/// The maximum of finished nodes that are taken back before sockets are served. Each may be a reply to write.
const FINISHED_AT_A_TIME: usize = 64;

/// A thread that serves sockets.
pub struct IoThread {
    worker: Worker<Job>,
    poll: Poll,
    /// A connection is taken out while it is served. It keeps its slot until its node is back, so a node
    /// never returns to another connection.
    connections: Slab<Option<Box<Connection>>>,
    buffer: Box<[u8]>,
    /// The buffers that connections with TLS read into and write from. They are empty until there is such a
    /// connection.
    ciphertext: Ciphertext,
    /// The TLS handshakes that are under way.
    handshakes: Handshakes,
    /// Kept for its space, and taken out while a connection is served.
    batch: Option<Box<Batch>>,
    /// The rest of the batch's budget.
    budget: Budget,
    /// The owner of the input that is being served.
    input_for: InputFor,
    /// Replies of the connection that is being served. Kept for its space.
    out: Vec<u8>,
    /// Listening sockets at which connections may wait.
    accepting: Vec<Token>,
    /// Connections with more to read than one turn's share.
    again: Vec<usize>,
    /// Nodes whose work is done and that have not been taken back yet.
    finished: VecDeque<Box<Node<Job>>>,
    /// Commands that visit the shards one after the other.
    sweeps: VecDeque<Box<Node<Job>>>,
    /// Commands that CLIENT PAUSE holds back, in the order of their arrival.
    postponed: BTreeMap<u64, Box<Node<Job>>>,
    /// The number of commands that were ever held back.
    n_postponed: u64,
    /// The deadlines of commands that wait for keys, with the slots of their connections.
    deadlines: BTreeSet<(Steady, usize)>,
    /// The subscriptions of this thread's clients.
    subscribers: Subscribers,
    /// State of clients that no longer track, which shards have not forgotten yet.
    forgetting: VecDeque<Leftover>,
    /// Whether the last turn has made progress with that. If not, the shards are held, and the next round of
    /// the cron tries again.
    is_forgetting: bool,
    /// The shard at which the search for keys to forget continues.
    limited_at: usize,
    /// The position in this thread's queue of notifications, and its waiting connections and nodes.
    giving: Giving,
    /// The slots of connections whose replies wait for the log.
    awaiting_log: Vec<usize>,
    /// Connections that are held back for a time.
    resting: Vec<Resting>,
    /// Clients whose WAITAOF waits for the disk.
    awaiting_sync: Vec<AwaitingSync>,
    /// Clients whose WAIT or WAITAOF waits for replicas. There are none, so they wait until their timeout.
    awaiting_replicas: Vec<AwaitingSync>,
    /// The synced position when the clients that wait for the disk were last checked.
    synced_seen: Option<Ticket>,
    /// Whether all of them must be checked, wherever the synced position is.
    must_look_at_waits: bool,
    expiry: super::expiry::Expiry,
    eviction: Eviction,
    next_cron: Instant,
    sampler: Sampler,
    /// The time at which the last commands of this turn ended, if any ran.
    served_at: Option<Instant>,
    /// The time at which this turn began, if latencies are divided into their parts.
    woke_at: Option<Instant>,
    /// How many consecutive rounds of the cron have found no read since the round before.
    n_idle_crons: u32,
    n_reads_seen: u64,
    purges_seen: u64,
    config: Arc<Config>,
    config_seen: u64,
    /// The memory in bytes that all clients together may use (`maxmemory-clients`).
    clients_limit: u64,
    /// Whether an output limit may have changed since connections were last compared with it.
    may_be_over: bool,
    limits: Limits,
}

/// A connection that is held back.
pub(super) struct Resting {
    /// The end of the rest, in milliseconds of uptime.
    until: u64,
    began: Instant,
    /// The command for whose work the rest stands.
    works_on: Option<&'static Registered>,
    node: Box<Node<Job>>,
}

/// A client that waits until its writes are on disk.
pub(super) struct AwaitingSync {
    ticket: Ticket,
    wanted: AwaitSync,
    /// The end of the wait, in milliseconds of uptime.
    until: u64,
    node: Box<Node<Job>>,
}

impl IoThread {
    /// Creates the thread's loop. `poll` already reports its waker.
    pub fn new(server: &'static Server, index: usize, poll: Poll) -> Self {
        let state = ThreadState::new(index, server);
        let config = server.config.load_full();
        Self {
            worker: Worker::new(Arc::clone(&server.engine), Weight::Light, state),
            poll,
            connections: Slab::new(),
            buffer: vec![0; READ_BYTES].into_boxed_slice(),
            ciphertext: Ciphertext::default(),
            handshakes: Handshakes::default(),
            batch: None,
            budget: Budget::of_batch(),
            input_for: InputFor::Connection,
            out: Vec::new(),
            accepting: Vec::new(),
            again: Vec::new(),
            finished: VecDeque::new(),
            sweeps: VecDeque::new(),
            postponed: BTreeMap::new(),
            n_postponed: 0,
            deadlines: BTreeSet::new(),
            subscribers: Subscribers::default(),
            forgetting: VecDeque::new(),
            is_forgetting: false,
            limited_at: 0,
            giving: Giving::default(),
            awaiting_log: Vec::new(),
            awaiting_sync: Vec::new(),
            awaiting_replicas: Vec::new(),
            synced_seen: None,
            must_look_at_waits: false,
            resting: Vec::new(),
            expiry: super::expiry::Expiry::new(index, server.io_threads().len()),
            eviction: Eviction::default(),
            next_cron: Instant::now(),
            sampler: Sampler::new(Instant::now()),
            served_at: None,
            woke_at: None,
            n_idle_crons: 0,
            n_reads_seen: 0,
            purges_seen: 0,
            limits: limits(&config),
            clients_limit: clients_limit(&config),
            config,
            config_seen: 0,
            may_be_over: false,
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
        let mut events = Events::with_capacity(1024);
        let mut now = Instant::now();
        let stats = self.worker.thread.stats();
        while !self.server().stopping.load(Ordering::Relaxed) {
            self.wait(&mut events, now)?;
            let woke_at = timing::event_begins(&self.worker.thread);
            self.woke_at = stats.splits_latency.load(Ordering::Relaxed).then(Instant::now);
            self.heed_config();
            self.worker.thread.renew_budget();
            stats.turns.add(1);
            self.read_mail();
            self.take_finished();
            self.worker.thread.comes_back(true);
            self.worker.take_injected();
            self.worker.thread.comes_back(false);
            if self.worker.thread.keeps_one && (self.has_work_left() || !self.may_leave_notifications()) {
                self.worker.thread.leave_to_others();
            }
            for event in &events {
                match event.token() {
                    WAKER => {}
                    token if Listening::owns(token) => {
                        if !self.accepting.contains(&token) {
                            self.accepting.push(token);
                        }
                    }
                    Token(slot) => {
                        self.on_event(slot, event);
                        if !self.worker.engine().injector_is_empty() {
                            self.worker.take_injected();
                        }
                    }
                }
            }
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
            self.step_expiry();
            if Eviction::is_due(self.server()) && self.eviction.make_room(&mut self.worker, 0) {
                // Eviction may take long. Another thread on this core, such as a client on the same machine,
                // should not wait for a time slice to end.
                std::thread::yield_now();
            }
            self.limit_tracking(self.server());
            self.step_forgetting();
            self.reclaim();
            self.worker.thread.collect_lua(RECLAIM_BUDGET);
            self.end_overdue_waits();
            // The time after the last served commands is exact enough.
            now = self.served_at.take().unwrap_or_else(Instant::now);
            if now >= self.next_cron {
                self.worker.thread.leave_to_others();
                self.cron();
            }
            self.step_log();
            timing::event_ends(LOOP, woke_at, &self.worker.thread);
        }
        // Without this, later records of other threads could not be written.
        self.worker.thread.publish_log();
        Ok(())
    }

    /// Waits for events, or only collects them if there is work to do.
    fn wait(&mut self, events: &mut Events, now: Instant) -> io::Result<()> {
        let peer = &self.server().threads[self.worker.thread.index];
        // Commands that hold nothing may have sent something.
        self.worker.thread.send_wakes();
        let may_sleep = !self.has_work_left()
            && peer.inbox.may_sleep(|| {
                peer.mail.is_empty()
                    && self.may_leave_notifications()
                    && !self.may_release_replies()
                    && self.worker.engine().injector_is_empty()
            });
        let timeout = if may_sleep { self.time_to_sleep(now) } else { Duration::ZERO };
        if may_sleep {
            braid_storage::settle_before_sleep();
        }
        let polled = self.poll.poll(events, Some(timeout));
        self.server().threads[self.worker.thread.index].inbox.awake();
        match polled {
            Err(error) if error.kind() != io::ErrorKind::Interrupted => Err(error),
            _ => Ok(()),
        }
    }

    /// Whether there is work to do that no wake-up announces.
    fn has_work_left(&self) -> bool {
        !self.again.is_empty()
            || !self.accepting.is_empty()
            || !self.sweeps.is_empty()
            || !self.finished.is_empty()
            || self.handshakes.are_waiting()
            || self.is_forgetting
            || self.expiry.is_behind()
            || self.worker.thread.owes_collection.get()
            || Eviction::is_due(self.server())
            || braid_storage::has_garbage()
            || self.worker.thread.has_unpublished()
    }

    /// The time until the cron, or until the first waiting command gives up.
    fn time_to_sleep(&self, now: Instant) -> Duration {
        let mut to_cron = self.next_cron.saturating_duration_since(now);
        if !self.server().threads[self.worker.thread.index].notifications.is_empty() {
            to_cron = to_cron.min(GIVING_REST_MAX);
        }
        match self.deadlines.first() {
            None => to_cron,
            Some((deadline, _)) => {
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
                Mail::SyncWaits => self.must_look_at_waits = true,
                Mail::Resume => self.resume_postponed(),
                Mail::Room => self.release_held_back(),
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

    fn take_back(&mut self, mut node: Box<Node<Job>>) {
        if node.job.reply.len() >= TURN_BYTES && node.job.n_run < node.job.commands.len() {
            self.send_ahead(&mut node.job);
        }
        match &mut node.job.task {
            Task::Goodbye(_) => return self.go_on_leaving(node),
            Task::MustWithdraw(parked) => {
                let parked = Arc::clone(parked);
                self.withdraw(node, parked);
                return;
            }
            Task::Withdraw(_) => {
                self.forget_wait(node.job.session.origin.slot);
                node.job.task = Task::Commands;
                if node.job.n_run < node.job.commands.len() && !node.job.session.record.is_killed() {
                    // The node could not be served where it was claimed.
                    self.submit_commands(node);
                    return;
                }
            }
            Task::Wait(_) | Task::Pin | Task::Offloaded(_) | Task::Unpin(_) | Task::Cut(_) => {
                unreachable!("the node is elsewhere until this is done")
            }
            Task::Sweep(sweep) if !sweep.is_complete() => {
                self.sweeps.push_back(node);
                return;
            }
            Task::Sweep(_) => self.conclude_sweep(&mut node),
            Task::Commands if node.job.n_run < node.job.commands.len() => {
                // A pause holds the rest back, a command has panicked, or a command was offloaded.
                let (next, words) = command_lookup::next(&node.job);
                let server = self.server();
                if server.holds_back(next.spec.flags, || {
                    command_lookup::may_write(server, &node.job.session, next, words)
                }) {
                    let slot = node.job.session.origin.slot;
                    let nth = self.postpone(node);
                    if let Some(connection) = self.connections[slot].as_mut() {
                        connection.postponed = Some(nth);
                    }
                } else {
                    self.submit_commands(node);
                }
                return;
            }
            Task::MakeRoom(_) => self.take_room(&mut node),
            Task::Commands | Task::Barrier | Task::Idle => {}
        }
        self.comply(node);
    }

    /// Adds the reply of a sweep over all shards to the output of its connection.
    fn conclude_sweep(&mut self, node: &mut Node<Job>) {
        let Task::Sweep(sweep) = &mut node.job.task else { unreachable!("it is a sweep's node") };
        if sweep.is_over_limit() {
            node.job.session.exceed_limit();
        }
        let durability = &self.worker.thread.server().durability;
        if durability.aof.holds_back_reads() {
            // The sweep has read data that others have written meanwhile.
            node.job.ticket = node.job.ticket.max(durability.last_ticket());
        }
        let pieces = sweep.take_reply();
        let took = sweep.worked.as_nanos() as u64;
        self.worker.thread.stats().took(node.job.commands[0].command, took, 1);
        self.finish_sweep(node, took, pieces.iter().map(Vec::len).sum());
        let wanted = node.job.session.replies == Replies::On;
        node.job.session.drop_unwanted(0, &mut Vec::new());
        if let Some(connection) = self.connections[node.job.session.origin.slot].as_mut().filter(|_| wanted) {
            pieces.into_iter().for_each(|piece| connection.backlog.push_piece(BacklogPiece::Own(piece)));
        }
    }

    /// Serves the request of a node after its work, then returns it to its connection.
    fn comply(&mut self, mut node: Box<Node<Job>>) {
        match node.job.session.request.take() {
            Some(SessionRequest::Sleep { millis, .. }) => {
                // The command may have made this request as well.
                node.job.session.ask(SessionRequest::ReadNotifications);
                node.job.task = Task::Idle;
                self.rest(node, millis, None);
            }
            Some(SessionRequest::AwaitSync(wanted)) => {
                node.job.session.ask(SessionRequest::ReadNotifications);
                node.job.task = Task::Idle;
                let slot = node.job.session.origin.slot;
                let connection =
                    self.connections[slot].as_mut().expect("a connection is in its place while parked");
                let last = connection.last_ticket;
                connection.begin_sync_wait(&node);
                self.again.push(slot);
                let ticket = last.max(node.job.ticket);
                self.await_sync(node, wanted, ticket);
            }
            Some(SessionRequest::Save { order, is_answered }) => {
                node.job.session.ask(SessionRequest::ReadNotifications);
                node.job.task = Task::Idle;
                self.server().order_save(order, Some((node, is_answered)));
            }
            Some(SessionRequest::ReadNotifications) if !self.has_read_notifications() => {
                self.give_back_after_notifications(node)
            }
            Some(SessionRequest::ReadNotifications | SessionRequest::AwaitRoom) | None => {
                self.give_back(node)
            }
        }
    }

    /// Sends a large part of the replies early, while more commands are under way.
    ///
    /// The client has these replies sooner. A client that has left is noticed before the rest is computed,
    /// which then does not run.
    fn send_ahead(&mut self, job: &mut Job) {
        let durability = &self.server().durability;
        if durability.aof.is_writing() && job.ticket > durability.aof.reached() {
            return;
        }
        let slot = job.session.origin.slot;
        std::mem::swap(&mut self.out, &mut job.reply);
        empty(&mut job.reply);
        self.go_on(slot);
        let connection = self.connections[slot].as_ref().expect("a connection is in its place while parked");
        if connection.is_lost {
            job.n_run = job.commands.len();
        }
    }

    /// Returns a node to its connection, which continues with the replies in it.
    fn give_back(&mut self, mut node: Box<Node<Job>>) {
        let slot = node.job.session.origin.slot;
        let mut replies = std::mem::take(&mut node.job.reply);
        let part = node.job.split.take();
        let ticket = node.job.ticket;
        node.job.clear();
        let connection = self.connections[slot].as_mut().expect("a connection is in its place while parked");
        connection.last_ticket = connection.last_ticket.max(ticket);
        if connection.split.is_some() {
            splitting::take_back(connection, part);
        }
        connection.closing |= node.job.session.closing;
        if connection.record.blocked.load(Ordering::Relaxed) {
            connection.record.blocked.store(false, Ordering::Relaxed);
        }
        connection.parser.set_authenticated(node.job.session.authenticated);
        connection.awaits_sync = false;
        node.job.session.publish(None);
        node.job.session.log_begun = None;
        node.job.session.count_commands();
        connection.node = Some(node);
        connection.n_under_way = 0;
        let durability = &self.worker.thread.server().durability;
        if connection.promised > 0 {
            durability.redeem(std::mem::take(&mut connection.promised));
            self.worker.thread.server().wake_who_awaits_log();
        }
        // A sweep's replies are already in the backlog.
        let is_answered = !(replies.is_empty() && connection.backlog.is_empty());
        if durability.aof.is_writing() && is_answered && ticket > durability.aof.reached() {
            connection.ticket = ticket;
            self.awaiting_log.push(slot);
        }
        if let Some(held_back) = connection.held_back.take() {
            let version = connection.version();
            held_back.in_dialect(version).for_each(|part| replies.extend_from_slice(part));
        }
        std::mem::swap(&mut self.out, &mut replies);
        empty(&mut replies);
        self.await_room(slot);
        self.go_on(slot);
    }

    /// Ends a command that has visited the shards one after the other.
    fn finish_sweep(&self, node: &Node<Job>, nanos: u64, reply_bytes: usize) {
        let (command, words) = command_lookup::next(&node.job);
        // MONITOR showed the command when it began.
        let was_shown = true;
        let ran = FinishedCommand { command, words, session: &node.job.session, reply_bytes, was_shown };
        finish::tell(&ran, Times { alone: Some(nanos), ..Times::default() }, &self.worker.thread);
    }

    /// Does a turn's share of expiry.
    fn step_expiry(&mut self) {
        if self.expiry.is_behind() {
            if self.server().is_paused() {
                return self.expiry.end_cycle();
            }
            let nanos = self.expiry.step(&mut self.worker).as_nanos() as u64;
            self.worker.thread.stats().expiry_nanos.add(nanos);
            timing::note_event(EXPIRE_CYCLE, nanos, &self.worker.thread);
        }
    }

    /// Applies a changed configuration at the beginning of a turn. So it holds for all commands that are sent
    /// after the reply to CONFIG SET.
    fn heed_config(&mut self) {
        let server = self.server();
        // Acquire pairs with the Release in `Server::set_config`.
        let changes = server.config_changes.load(Ordering::Acquire);
        if changes == self.config_seen {
            return;
        }
        cold_path();
        self.config_seen = changes;
        self.config = server.config.load_full();
        self.limits = limits(&self.config);
        self.clients_limit = clients_limit(&self.config);
        self.may_be_over = true;
        for (_, connection) in &mut self.connections {
            if let Some(connection) = connection
                && !connection.parser.holds_memory()
            {
                let authenticated = connection.parser.limits().authenticated;
                connection.parser.set_limits(Limits { authenticated, ..self.limits });
            }
        }
    }

    /// Accepts a turn's share of the waiting connections.
    fn accept(&mut self) {
        let server = self.server();
        let stats = self.worker.thread.stats();
        self.accepting
            .retain(|&token| server.listening.accept(token, |accepted| welcome(server, stats, accepted)));
    }

    fn cron(&mut self) {
        self.next_cron = Instant::now() + CRON_INTERVAL;
        let server = self.server();
        if server.debug.pauses_cron.load(Ordering::Relaxed) {
            return;
        }
        server.follow_clock();
        let is_paused = server.is_paused();
        if !self.postponed.is_empty() && !is_paused {
            self.resume_postponed();
        }
        self.wake_resting(server);
        self.must_look_at_waits = true;
        self.close_idle(server);
        self.close_overdue();
        self.end_overdue_handshakes();
        if server.debug.active_expire.load(Ordering::Relaxed) && !is_paused && !server.loading.is_on() {
            self.expiry.begin_cycle();
        }
        self.share_out_connections(server);
        if self.worker.thread.index == 0 {
            server.measure_memory();
            server.limit_clients(&self.worker.thread);
            server.measure_first_thread();
            server.sample_rates();
            server.end_hot_keys_in_time();
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
        if std::mem::replace(&mut self.purges_seen, purges) != purges {
            (server.process.return_freed_memory)();
        }
        let n_reads = self.worker.thread.stats().reads.get();
        if std::mem::replace(&mut self.n_reads_seen, n_reads) != n_reads {
            self.n_idle_crons = 0;
            return;
        }
        self.n_idle_crons = self.n_idle_crons.saturating_add(1);
        if self.n_idle_crons == IDLE_CRONS {
            (server.process.return_freed_memory)();
        }
    }

    /// Frees garbage that was too large for a hold, for a share of this turn.
    fn reclaim(&mut self) {
        if braid_storage::wants_idle_threads() {
            self.worker.thread.wake_heavy = true;
            self.worker.thread.send_wakes();
            braid_storage::help_reclaim_large();
        }
        if !braid_storage::has_garbage() {
            return;
        }
        let budget = if braid_storage::is_flooded() { FLOODED_BUDGET } else { RECLAIM_BUDGET };
        let began = Instant::now();
        while braid_storage::reclaim() && began.elapsed() < budget {}
    }
}

/// The parser's limits.
fn limits(config: &Config) -> Limits {
    Limits { max_bulk_bytes: config.proto_max_bulk_len as u64, authenticated: true }
}
