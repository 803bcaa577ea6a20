//! The event loop of a thread: reads, runs, writes.

use std::{
    cell::Cell,
    collections::{BTreeSet, VecDeque},
    io::{self, Read},
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use braid_protocol::{
    reply::Reply,
    request::{Arg, Limits, Parse, Pattern, ProtocolError, RequestParser},
};
use braid_storage::{
    Routed,
    coordinator::{Route, Weight, Worker},
    executor::Node,
    table::flush_retired,
    time::Millis,
};
use mio::{Events, Poll, Token, event::Event};
use slab::Slab;

use crate::{
    blocking::{self, GaveUp, Parked, Waiting},
    clients::ClientRecord,
    command::{Args, Call, CommandError, Flags, Found, Registered, Run, Step, Sweep, TABLE, Words},
    config::Config,
    dispatch::{self, Admission, Needs},
    io::{
        Mail, ThreadState,
        connection::{Backlog, Connection},
        listener::Listening,
        stream::Accepted,
    },
    job::{self, Delegated, Job, Origin, Task},
    server::Server,
    session::{Counts, Replies, Request, Session},
    stats::ThreadStats,
    verbose, warning,
};

/// The token of the thread's own wake-ups.
pub const WAKER: Token = Token(usize::MAX);
/// How much is read from a socket at a time.
const READ_BYTES: usize = 64 * 1024;
/// How many commands are parsed ahead, prefetched together and then run.
const BATCH: usize = 32;
/// How long the sweeps of one turn of the loop may take.
const SWEEP_BUDGET: Duration = Duration::from_micros(100);
/// How long freeing large values and flushed databases may take in one turn of the loop.
const RECLAIM_BUDGET: Duration = Duration::from_micros(200);
/// After so many rounds of the cron without a read a thread gives memory back.
const IDLE_CRONS: u32 = 5;
/// How often the thread looks after timeouts, expiry and the configuration.
const CRON_INTERVAL: Duration = Duration::from_millis(100);

/// A thread that serves sockets.
pub struct IoThread {
    worker: Worker<Job>,
    poll: Poll,
    /// A connection is taken out while it is being served. It keeps its place until its node is back, so a node never
    /// comes back to a stranger.
    connections: Slab<Option<Box<Connection>>>,
    buffer: Box<[u8]>,
    batch: Batch,
    /// Replies of the connection that is being served; kept for its space.
    out: Vec<u8>,
    /// Connections with more to read than one turn's share.
    again: Vec<usize>,
    /// Commands that visit shards in turn.
    sweeps: VecDeque<Box<Node<Job>>>,
    /// Commands that CLIENT PAUSE holds back.
    // A node is linked by its address, so it keeps its box wherever it is.
    #[allow(clippy::vec_box)]
    postponed: Vec<Box<Node<Job>>>,
    /// When commands that wait for keys give up, and the connections' places.
    deadlines: BTreeSet<(Millis, usize)>,
    /// Connections that are held back for a while.
    resting: Vec<Resting>,
    expiry: super::expiry::Expiry,
    next_cron: Instant,
    /// When the last commands of this turn ended, if any ran.
    served_at: Option<Instant>,
    /// How many times in a row the cron has found that nothing had been read since the time before.
    n_idle_crons: u32,
    n_reads_seen: u64,
    config: Arc<Config>,
    config_seen: u64,
    limits: Limits,
}

/// A connection that is held back.
struct Resting {
    /// Until then, in milliseconds of uptime.
    until: u64,
    began: Instant,
    /// The command that this stands for the work of.
    works_on: Option<&'static Registered>,
    node: Box<Node<Job>>,
}

/// Commands parsed ahead.
#[derive(Default)]
struct Batch {
    words: Vec<Arg>,
    commands: Vec<Parsed>,
    /// Where the first keys of the commands live, of those that have one.
    keys: Vec<Routed>,
    /// Commands whose time is not measured with the batch, a bit each: they do not run, or not here.
    unmeasured: Cell<u32>,
}

/// What an earlier request was like: mostly a pipeline repeats one command.
struct Last {
    command: &'static Registered,
    /// Where in the input its name starts.
    name_at: usize,
    pattern: Option<Pattern>,
}

impl Last {
    fn name<'a>(&self, input: &'a [u8]) -> &'a [u8] {
        &input[self.name_at..self.name_at + self.command.spec.name.len()]
    }
}

/// The last first key, in the input: a pipeline that repeats a key as well finds it once.
#[derive(Clone, Copy)]
struct LastKey {
    at: usize,
    len: usize,
    lives: Routed,
}

impl LastKey {
    #[inline]
    fn is(&self, input: &[u8], key: &[u8]) -> bool {
        let before = &input[self.at..self.at + self.len];
        // Most keys that differ do so in the last byte.
        before.last() == key.last() && before == key
    }
}

/// A parsed command.
struct Parsed {
    found: Found,
    /// Where in the input it lies.
    start: usize,
    end: usize,
    first_word: usize,
    n_words: usize,
    /// Where its first key lives, if its first argument is one.
    routed: Option<Routed>,
}

impl Batch {
    fn clear(&mut self) {
        self.words.clear();
        self.commands.clear();
        self.keys.clear();
        self.unmeasured.set(0);
    }

    /// Has a command not share the batch's time.
    #[cold]
    fn leave_unmeasured(&self, index: usize) {
        self.unmeasured.set(self.unmeasured.get() | 1 << index);
    }

    /// Shares out the batch's time among its commands. Those from `end` of the input on are left out, too.
    fn share_out_time(&self, elapsed: Duration, stats: &ThreadStats, end: Option<usize>) {
        let n_begun = end.map_or(self.commands.len(), |end| {
            self.commands.iter().take_while(|parsed| parsed.start < end).count()
        });
        let begun = &self.commands[..n_begun];
        let unmeasured = self.unmeasured.get();
        let n_not = if unmeasured == 0 { 0 } else { n_bits(unmeasured, 0..n_begun) };
        let n_measured = (n_begun - n_not) as u64;
        let Some(share) = (elapsed.as_nanos() as u64).checked_div(n_measured) else { return };
        let mut first = 0;
        for run in begun.chunk_by(|a, b| a.found.is_same(&b.found)) {
            let not = if unmeasured == 0 { 0 } else { n_bits(unmeasured, first..first + run.len()) };
            first += run.len();
            if let Found::Command(command) = run[0].found
                && run.len() > not
            {
                stats.took(command, share, (run.len() - not) as u64);
            }
        }
    }

    fn words_of<'a>(&'a self, parsed: &Parsed, input: &'a [u8]) -> Words<'a> {
        let ranges = &self.words[parsed.first_word..parsed.first_word + parsed.n_words];
        Words::new(&input[parsed.start..parsed.end], ranges)
    }
}

/// How many of the bits in a range are set.
#[cold]
fn n_bits(bits: u32, range: std::ops::Range<usize>) -> usize {
    range.filter(|index| bits >> index & 1 == 1).count()
}

/// What the commands of a batch have in common.
#[derive(Clone, Copy)]
struct Turn<'a> {
    server: &'a Server,
    batch: &'a Batch,
    input: &'a [u8],
    /// The time of the read.
    now: Millis,
}

impl<'a> Turn<'a> {
    fn words(self, parsed: &Parsed) -> Words<'a> {
        self.batch.words_of(parsed, self.input)
    }
}

/// How the running of a batch ended.
enum Ended {
    /// All commands ran.
    Ran,
    /// A command is under way elsewhere; the input goes on at this offset.
    Parked(usize),
    /// The connection closes; nothing more of it runs.
    Closed,
}

impl IoThread {
    /// Makes the thread's loop; `poll` already reports its waker.
    pub fn new(server: &'static Server, index: usize, poll: Poll) -> Self {
        let state = ThreadState::new(index, server);
        let config = server.config.load_full();
        Self {
            worker: Worker::new(Arc::clone(&server.engine), Weight::Light, state),
            poll,
            connections: Slab::new(),
            buffer: vec![0; READ_BYTES].into_boxed_slice(),
            batch: Batch::default(),
            out: Vec::new(),
            again: Vec::new(),
            sweeps: VecDeque::new(),
            postponed: Vec::new(),
            deadlines: BTreeSet::new(),
            resting: Vec::new(),
            expiry: super::expiry::Expiry::new(index, server.io_threads().len()),
            next_cron: Instant::now(),
            served_at: None,
            n_idle_crons: 0,
            n_reads_seen: 0,
            limits: limits(&config),
            config,
            config_seen: 0,
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
        while !self.server().stopping.load(Ordering::Relaxed) {
            self.wait(&mut events, now)?;
            self.worker.thread.renew_budget();
            self.read_mail();
            self.take_finished();
            self.worker.take_injected();
            for event in &events {
                match event.token() {
                    WAKER => {}
                    token if Listening::owns(token) => {
                        let server = self.server();
                        server.listening.accept(token, server, self.worker.thread.stats());
                    }
                    Token(slot) => {
                        self.on_event(slot, event);
                        if !self.worker.engine().injector_is_empty() {
                            self.worker.take_injected();
                        }
                    }
                }
            }
            for slot in std::mem::take(&mut self.again) {
                self.go_on(slot);
            }
            self.take_finished();
            self.step_sweeps();
            self.step_expiry();
            self.reclaim();
            self.end_overdue_waits();
            // A turn that has served somebody knows the time well enough.
            now = self.served_at.take().unwrap_or_else(Instant::now);
            if now >= self.next_cron {
                self.cron();
            }
        }
        Ok(())
    }

    /// Waits for events, or only collects them if there is something to do.
    fn wait(&mut self, events: &mut Events, now: Instant) -> io::Result<()> {
        let peer = &self.server().threads[self.worker.thread.index];
        let busy = !self.again.is_empty()
            || !self.sweeps.is_empty()
            || self.expiry.is_behind()
            || braid_storage::has_garbage();
        let may_sleep = !busy
            && peer.inbox.may_sleep(|| peer.mail.is_empty() && self.worker.engine().injector_is_empty());
        let timeout = if may_sleep { self.time_to_sleep(now) } else { Duration::ZERO };
        let polled = self.poll.poll(events, Some(timeout));
        self.server().threads[self.worker.thread.index].inbox.awake();
        match polled {
            Err(error) if error.kind() != io::ErrorKind::Interrupted => Err(error),
            _ => Ok(()),
        }
    }

    /// Until the cron, or until the first command that waits for keys gives up.
    fn time_to_sleep(&self, now: Instant) -> Duration {
        let to_cron = self.next_cron.saturating_duration_since(now);
        match self.deadlines.first() {
            None => to_cron,
            Some((deadline, _)) => {
                let millis = deadline.0.saturating_sub(self.server().clock.now().0);
                to_cron.min(Duration::from_millis(millis))
            }
        }
    }

    fn read_mail(&mut self) {
        let server = self.server();
        let peer = &server.threads[self.worker.thread.index];
        while let Some(mail) = peer.mail.pop() {
            match mail {
                Mail::Serve(accepted) => self.welcome(*accepted),
                Mail::Close(id) => {
                    let killed = self.connections.iter().find_map(|(slot, connection)| {
                        connection.as_ref().filter(|connection| connection.record.id == id).map(|_| slot)
                    });
                    if let Some(slot) = killed {
                        self.drop_connection(slot);
                    }
                    self.resume_postponed();
                }
                Mail::Waits(parked) => self.note_wait(parked),
                Mail::GaveUp(node, parked) => self.withdraw(node, parked),
                Mail::Resume => self.resume_postponed(),
            }
        }
    }

    /// Begins to serve a connection.
    fn welcome(&mut self, mut accepted: Accepted) {
        let server = self.server();
        let entry = self.connections.vacant_entry();
        let slot = entry.key();
        if let Err(error) = accepted.stream.register(self.poll.registry(), Token(slot)) {
            warning!("Registering a client's socket: {error}");
            server.threads[self.worker.thread.index].n_connections.fetch_sub(1, Ordering::Relaxed);
            return;
        }
        let record = Arc::new(ClientRecord::new(
            server.clients.next_id(),
            self.worker.thread.index,
            accepted.peer,
            accepted.local,
            accepted.stream.fd(),
            server.clock.uptime_millis(),
        ));
        server.clients.add(Arc::clone(&record));
        // Not the thread's copy: CONFIG SET has changed the password for whoever connects after its reply.
        let authenticated = server.config.load().requirepass.is_none();
        let session = Session::new(Arc::clone(&record), authenticated);
        let origin = Origin { thread: self.worker.thread.index, slot };
        entry.insert(Some(Box::new(Connection {
            stream: accepted.stream,
            node: Some(Node::new(Job::new(session, origin))),
            parser: RequestParser::new(Limits { authenticated, ..self.limits }),
            unread: Vec::new(),
            wanted: 0,
            backlog: Backlog::default(),
            writable: true,
            readable: true,
            peer_closed: false,
            closing: false,
            is_lost: false,
            record,
            waiting: None,
            over_soft_limit_since: None,
        })));
        self.go_on(slot);
    }

    fn on_event(&mut self, slot: usize, event: &Event) {
        let Some(Some(connection)) = self.connections.get_mut(slot) else { return };
        connection.readable |= event.is_readable();
        connection.writable |= event.is_writable();
        connection.peer_closed |= event.is_read_closed();
        let may_have_left = connection.peer_closed && connection.is_parked();
        let waits = connection.waiting.is_some();
        let may_read = (event.is_readable() || event.is_read_closed()) && !connection.is_parked();
        if may_read || connection.can_write() {
            self.go_on(slot);
        }
        if may_have_left && waits {
            self.end_wait(slot, GaveUp::Left);
        } else if may_have_left {
            self.forget_postponed(slot);
        }
    }

    /// Notes that a command of a connection waits for keys, unless it has been claimed meanwhile.
    fn note_wait(&mut self, parked: Arc<Parked>) {
        let slot = parked.origin.slot;
        if parked.is_claimed() {
            return;
        }
        let connection = self.connections[slot].as_mut().expect("a connection is in its place while parked");
        if let Some(deadline) = parked.deadline() {
            self.deadlines.insert((deadline, slot));
        }
        connection.record.blocked.store(true, Ordering::Relaxed);
        connection.record.waiting.store(Some(Arc::clone(&parked)));
        connection.waiting = Some(parked);
        if connection.closing || connection.peer_closed || connection.record.is_killed() {
            self.end_wait(slot, GaveUp::Left);
        }
    }

    /// Ends the wait of a connection's command, if nobody serves it just now.
    fn end_wait(&mut self, slot: usize, why: GaveUp) {
        let waiting = self.connections[slot].as_ref().and_then(|connection| connection.waiting.clone());
        let claimed = waiting.and_then(|parked| Some((parked.claim()?, parked)));
        if let Some((mut node, parked)) = claimed {
            parked.give_up(&mut node, why, self.worker.thread.stats());
            self.withdraw(node, parked);
        }
    }

    /// Has a command that has waited leave the lines it stands in.
    fn withdraw(&mut self, mut node: Box<Node<Job>>, parked: Arc<Parked>) {
        node.set_route(parked.route());
        node.job.task = Task::Withdraw(parked);
        self.worker.submit(node);
    }

    /// Ends the waits whose time is up.
    fn end_overdue_waits(&mut self) {
        if self.deadlines.is_empty() {
            return;
        }
        let now = self.server().clock.now();
        while let Some(&(deadline, slot)) = self.deadlines.first()
            && deadline <= now
        {
            self.deadlines.pop_first();
            self.end_wait(slot, GaveUp::TimedOut);
        }
    }

    /// Forgets that a command of a connection waited: its node is back.
    fn forget_wait(&mut self, slot: usize) {
        let Some(connection) = self.connections[slot].as_mut() else { return };
        let Some(parked) = connection.waiting.take() else { return };
        connection.record.waiting.store(None);
        if let Some(deadline) = parked.deadline() {
            self.deadlines.remove(&(deadline, slot));
        }
    }

    /// Closes a connection whose client has left while a pause held its command back: as in Redis, the command is not run.
    fn forget_postponed(&mut self, slot: usize) {
        let place = self.postponed.iter().position(|node| node.job.origin.slot == slot);
        if let (Some(place), Some(connection)) = (place, self.connections[slot].as_mut()) {
            connection.node = Some(self.postponed.swap_remove(place));
            self.drop_connection(slot);
        }
    }

    /// Takes back the nodes whose work is done.
    fn take_finished(&mut self) {
        let server = self.server();
        for node in server.threads[self.worker.thread.index].inbox.take() {
            self.take_back(node);
        }
    }

    fn take_back(&mut self, mut node: Box<Node<Job>>) {
        match &mut node.job.task {
            Task::Goodbye => return,
            Task::MustWithdraw(parked) => {
                let parked = Arc::clone(parked);
                self.withdraw(node, parked);
                return;
            }
            Task::Withdraw(_) => {
                self.forget_wait(node.job.origin.slot);
                node.job.task = Task::Commands;
                if node.job.n_run < node.job.commands.len() && !node.job.session.record.is_killed() {
                    // It could not be served where it was claimed.
                    self.submit_commands(node);
                    return;
                }
            }
            Task::Wait(_) | Task::Pin | Task::Aside(_) | Task::Unpin(_) => {
                unreachable!("the node is elsewhere until this is done")
            }
            Task::Sweep(sweep) if !sweep.is_complete() => {
                self.sweeps.push_back(node);
                return;
            }
            Task::Sweep(sweep) => {
                if sweep.is_over_limit() {
                    node.job.session.exceed_limit();
                }
                let pieces = sweep.take_reply();
                let took = sweep.worked.as_nanos() as u64;
                self.worker.thread.stats().took(node.job.commands[0].command, took, 1);
                let wanted = node.job.session.replies == Replies::On;
                dispatch::drop_unwanted(&mut node.job.session, 0, &mut Vec::new());
                if let Some(connection) = self.connections[node.job.origin.slot].as_mut().filter(|_| wanted) {
                    pieces.into_iter().for_each(|piece| connection.backlog.push_piece(piece));
                }
            }
            Task::Commands if node.job.n_run < node.job.commands.len() => {
                // A pause holds the rest back, or one of them has panicked.
                if self.server().attention.load(Ordering::Relaxed) != 0 {
                    self.postpone(node);
                } else {
                    self.submit_commands(node);
                }
                return;
            }
            Task::Commands | Task::Barrier | Task::Idle => {}
        }
        if let Some(Request::Sleep { millis, .. }) = node.job.session.request.take() {
            node.job.task = Task::Idle;
            self.rest(node, millis, None);
            return;
        }
        let slot = node.job.origin.slot;
        let mut replies = std::mem::take(&mut node.job.reply);
        node.job.clear();
        let connection = self.connections[slot].as_mut().expect("a connection is in its place while parked");
        connection.closing |= node.job.session.closing;
        if connection.record.blocked.load(Ordering::Relaxed) {
            connection.record.blocked.store(false, Ordering::Relaxed);
        }
        connection.parser.set_authenticated(node.job.session.authenticated);
        connection.node = Some(node);
        std::mem::swap(&mut self.out, &mut replies);
        job::empty(&mut replies);
        self.go_on(slot);
    }

    /// Keeps a node until the end of a pause.
    fn postpone(&mut self, node: Box<Node<Job>>) {
        node.job.session.record.blocked.store(true, Ordering::Relaxed);
        self.postponed.push(node);
    }

    /// Keeps a node for so long.
    fn rest(&mut self, node: Box<Node<Job>>, millis: u64, works_on: Option<&'static Registered>) {
        node.job.session.record.blocked.store(true, Ordering::Relaxed);
        let until = self.server().clock.uptime_millis().saturating_add(millis);
        self.resting.push(Resting { until, began: Instant::now(), works_on, node });
    }

    /// Runs again what a pause held back; it may be held back again.
    fn resume_postponed(&mut self) {
        for node in std::mem::take(&mut self.postponed) {
            if node.job.session.record.is_killed() {
                let slot = node.job.origin.slot;
                if let Some(connection) = self.connections[slot].as_mut() {
                    connection.node = Some(node);
                }
                self.drop_connection(slot);
                continue;
            }
            self.submit_commands(node);
        }
    }

    /// Serves a connection for its turn: what it had read before, what its socket has now, and the replies.
    ///
    /// `self.out` may already hold replies of it.
    fn go_on(&mut self, slot: usize) {
        let Some(mut connection) = self.connections.get_mut(slot).and_then(Option::take) else { return };
        let mut out = std::mem::take(&mut self.out);
        let read = self.run_unread(&mut connection, &mut out).and_then(|()| {
            if connection.readable && !connection.is_parked() && !connection.closing {
                self.read(&mut connection, &mut out)
            } else {
                Ok(())
            }
        });
        if connection.is_lost {
            out.clear();
        }
        let must_close = self.is_over_hard_limit(&connection, out.len());
        let written = read.and_then(|()| match must_close {
            true => Err(io::ErrorKind::OutOfMemory.into()),
            false => connection.write(&mut out),
        });
        out.clear();
        self.out = out;
        let alive = match written {
            Ok(written) => {
                self.worker.thread.stats().bytes_out.add(written.n_bytes);
                self.worker.thread.stats().writes.add(written.n_writes);
                !connection.record.is_killed() && !self.is_over_soft_limit(&mut connection)
            }
            Err(_) => false,
        };
        if !alive {
            connection.closing = true;
            connection.is_lost = true;
            connection.backlog = Backlog::default();
        }
        self.keep_or_close(slot, connection);
    }

    /// Puts a connection back in its place, or closes it if it is to be closed and nothing of it is under way.
    fn keep_or_close(&mut self, slot: usize, connection: Box<Connection>) {
        let done = connection.closing && connection.backlog.is_empty();
        if done && !connection.is_parked() {
            self.connections[slot] = Some(connection);
            self.drop_connection(slot);
            return;
        }
        let can_read = connection.readable && !connection.is_parked() && !connection.closing;
        if can_read || connection.can_write() {
            self.again.push(slot);
        }
        self.connections[slot] = Some(connection);
    }

    /// Closes a connection at once, or, if a command of it is under way, as soon as that comes back.
    fn drop_connection(&mut self, slot: usize) {
        let Some(Some(connection)) = self.connections.get_mut(slot) else { return };
        connection.closing = true;
        connection.backlog = Backlog::default();
        if connection.is_parked() {
            self.end_wait(slot, GaveUp::Left);
            return;
        }
        let Some(connection) = self.connections.remove(slot) else { return };
        let server = self.server();
        let record = &connection.record;
        verbose!("Client closed connection id={} addr={}", record.id.0, record.peer);
        server.clients.remove(record.id);
        server.threads[self.worker.thread.index].n_connections.fetch_sub(1, Ordering::Relaxed);
        // A CLIENT KILL that has found the record but not marked it yet must not count it.
        if record.killed.swap(true, Ordering::Relaxed) {
            server.killed_client_left();
        }
        let mut node = connection.node.expect("checked above");
        if !node.job.session.watched.is_empty() {
            let shards = crate::command::watched_routes(&node.job.session.watched).collect();
            node.job.clear();
            node.job.task = Task::Goodbye;
            node.set_route(Route::new(shards));
            self.worker.submit(node);
        }
    }

    fn run_unread(&mut self, connection: &mut Connection, out: &mut Vec<u8>) -> io::Result<()> {
        if connection.unread.is_empty() || connection.is_parked() || connection.closing {
            return Ok(());
        }
        let mut unread = std::mem::take(&mut connection.unread);
        let consumed = self.serve(connection, &mut unread, out);
        unread.drain(..consumed);
        job_keep(&mut unread);
        connection.unread = unread;
        self.check_input(connection)
    }

    /// Reads once, and runs what has become complete.
    fn read(&mut self, connection: &mut Connection, out: &mut Vec<u8>) -> io::Result<()> {
        let room = READ_BYTES.min(self.buffer.len());
        let n = loop {
            match connection.stream.read(&mut self.buffer[..room]) {
                Ok(n) => break n,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    connection.readable = false;
                    // An event of the connection that had this slot before may have said so.
                    connection.peer_closed = false;
                    return Ok(());
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        };
        if n == 0 {
            connection.readable = false;
            connection.peer_closed = true;
            connection.closing = true;
            return Ok(());
        }
        // A read that did not fill the buffer has emptied the socket, unless the end of the stream is still to come.
        connection.readable = n == room || connection.peer_closed;
        let stats = self.worker.thread.stats();
        stats.bytes_in.add(n as u64);
        stats.reads.add(1);
        if connection.unread.is_empty() {
            let mut buffer = std::mem::take(&mut self.buffer);
            let consumed = self.serve(connection, &mut buffer[..n], out);
            connection.unread.extend_from_slice(&buffer[consumed..n]);
            self.buffer = buffer;
        } else {
            connection.unread.extend_from_slice(&self.buffer[..n]);
            if n >= connection.wanted {
                return self.run_unread(connection, out);
            }
            connection.wanted -= n;
        }
        self.check_input(connection)
    }

    fn check_input(&mut self, connection: &mut Connection) -> io::Result<()> {
        let n_bytes = connection.unread.len();
        connection.record.input_bytes.store(n_bytes as u64, Ordering::Relaxed);
        if n_bytes <= self.config.client_query_buffer_limit {
            return Ok(());
        }
        self.worker.thread.stats().input_limit_closes.add(1);
        warning!(
            "Closing client that reached max query buffer length: id={} addr={} qbuf={n_bytes}",
            connection.record.id.0,
            connection.record.peer
        );
        Err(io::ErrorKind::OutOfMemory.into())
    }

    /// Whether more replies wait for a client than `client-output-buffer-limit` allows, with `n_new` bytes that its socket has not
    /// been offered yet.
    fn is_over_hard_limit(&self, connection: &Connection, n_new: usize) -> bool {
        let stats = self.worker.thread.stats();
        let limit = stats.output_limit.load(Ordering::Relaxed);
        let is_cut = || connection.node.as_ref().is_some_and(|node| node.job.session.is_over_limit);
        let is_over = n_new + connection.backlog.n_bytes > limit || connection.closing && is_cut();
        if is_over {
            self.report_over_limit(connection);
        }
        is_over
    }

    /// Whether a client has been reading its replies too slowly for too long.
    fn is_over_soft_limit(&mut self, connection: &mut Connection) -> bool {
        let limit = self.config.client_output_buffer_limit.normal;
        let is_over = limit.soft_bytes != 0 && connection.backlog.n_bytes as u64 > limit.soft_bytes;
        if !is_over {
            connection.over_soft_limit_since = None;
            return false;
        }
        let now = self.server().clock.uptime_millis();
        let since = *connection.over_soft_limit_since.get_or_insert(now);
        let is_overdue = now - since > limit.soft_time.as_millis() as u64;
        if is_overdue {
            self.report_over_limit(connection);
        }
        is_overdue
    }

    #[cold]
    fn report_over_limit(&self, connection: &Connection) {
        self.worker.thread.stats().output_limit_closes.add(1);
        warning!(
            "Client id={} addr={} scheduled to be closed ASAP for overcoming of output buffer limits.",
            connection.record.id.0,
            connection.record.peer
        );
    }

    /// Runs the complete requests of `input`; returns how many bytes are done with.
    fn serve(&mut self, connection: &mut Connection, input: &mut [u8], out: &mut Vec<u8>) -> usize {
        let server = self.server();
        let mut began = Instant::now();
        let (now, uptime_millis) = server.clock.times_at(began);
        connection.record.active_at.store(uptime_millis, Ordering::Relaxed);
        let output_limit = self.worker.thread.stats().output_limit.load(Ordering::Relaxed);
        let mut batch = std::mem::take(&mut self.batch);
        let mut done = 0;
        loop {
            let parsed = self.parse(connection, &mut batch, input, done);
            let ended = if batch.commands.is_empty() {
                Ended::Ran
            } else {
                self.prefetch(server, connection, &batch);
                let turn = Turn { server, batch: &batch, input, now };
                let ended = self.run_batch(connection, turn, out);
                let ended_at = Instant::now();
                self.served_at = Some(ended_at);
                let elapsed = ended_at - std::mem::replace(&mut began, ended_at);
                let parked_at = if let Ended::Parked(at) = ended { Some(at) } else { None };
                batch.share_out_time(elapsed, self.worker.thread.stats(), parked_at);
                ended
            };
            match (ended, parsed) {
                (Ended::Parked(at), parsed) => {
                    // What was parsed ahead of `at` is parsed again, from there.
                    if parsed != Ok(at) {
                        connection.parser.rewind();
                    }
                    done = at;
                    break;
                }
                (Ended::Closed, _) => {
                    connection.closing = true;
                    done = input.len();
                    break;
                }
                (Ended::Ran, Ok(end)) if end == done => break,
                // What follows does not run: the client is closed before it gets any of this.
                (Ended::Ran, Ok(_)) if out.len() > output_limit => {
                    connection.closing = true;
                    done = input.len();
                    break;
                }
                (Ended::Ran, Ok(end)) => done = end,
                (Ended::Ran, Err(error)) => {
                    report_protocol_error(connection, error, out, &self.worker.thread);
                    done = input.len();
                    break;
                }
            }
        }
        if let Some(node) = &connection.node {
            node.job.session.publish();
        }
        self.batch = batch;
        done
    }

    /// Parses up to a batch of requests from `from` on; returns where the input goes on.
    fn parse(
        &mut self,
        connection: &mut Connection,
        batch: &mut Batch,
        input: &mut [u8],
        from: usize,
    ) -> Result<usize, ProtocolError> {
        batch.clear();
        let engine = self.worker.engine();
        let keyspace = &self.worker.thread.server().keyspace;
        let db = connection.node.as_ref().map(|node| node.job.session.db).unwrap_or_default();
        let (mut last, mut last_key): (Option<Last>, Option<LastKey>) = (None, None);
        let mut at = from;
        while batch.commands.len() < BATCH && at < input.len() {
            // The quotes of an inline command are resolved where it lies, so it must not be parsed twice: it gets a
            // batch of its own, because what comes behind a command that must wait is parsed again.
            let inline = input[at] != b'*';
            if inline && !batch.commands.is_empty() {
                break;
            }
            let first_word = batch.words.len();
            let alike = last.as_ref().and_then(|last| {
                let consumed =
                    connection.parser.parse_alike(last.pattern.as_ref()?, input, at, &mut batch.words)?;
                Some((consumed, Found::Command(last.command)))
            });
            let is_alike = alike.is_some();
            let (consumed, found) = match alike {
                Some(alike) => alike,
                None => match connection.parser.parse(&mut input[at..], &mut batch.words)? {
                    Parse::Request { consumed } => {
                        let words = Words::new(&input[at..at + consumed], &batch.words[first_word..]);
                        // Comparing the name is cheaper than finding it.
                        let found = match &last {
                            Some(last) if last.name(input) == words.get(0) => Found::Command(last.command),
                            _ => TABLE.find(words),
                        };
                        (consumed, found)
                    }
                    Parse::Empty { consumed } => {
                        at += consumed;
                        continue;
                    }
                    Parse::Incomplete { wanted } => {
                        connection.wanted = wanted;
                        break;
                    }
                },
            };
            let words = Words::new(&input[at..at + consumed], &batch.words[first_word..]);
            let mut stop = inline;
            let mut routed = None;
            if let Found::Command(command) = found {
                stop |= command.has(Flags::PARSE_STOP);
                if command.first_is_key && words.len() > 1 {
                    let key = words.get(1);
                    let lives = last_key.filter(|last| last.is(input, key)).map(|last| last.lives);
                    let lives = lives.unwrap_or_else(|| {
                        let lives = keyspace.router().route(key);
                        engine.prefetch(lives.shard);
                        keyspace.prefetch_root(db, lives);
                        batch.keys.push(lives);
                        lives
                    });
                    last_key = Some(LastKey { at: at + words.offset(1), len: key.len(), lives });
                    routed = Some(lives);
                }
                if !is_alike {
                    // A subcommand's name is not the word that would be compared.
                    let is_whole = command.parent.is_none() && !command.has_subcommands();
                    last = is_whole.then(|| Last {
                        command,
                        name_at: at + words.offset(0),
                        pattern: Pattern::of(input, at, &batch.words[first_word..]),
                    });
                }
            }
            let n_words = words.len();
            batch.commands.push(Parsed { found, start: at, end: at + consumed, first_word, n_words, routed });
            at += consumed;
            if stop {
                break;
            }
        }
        Ok(at)
    }

    /// Fetches what the commands of a batch will need behind the tables' roots, so that its memory latencies overlap. A
    /// single command would only be delayed by it.
    fn prefetch(&self, server: &Server, connection: &Connection, batch: &Batch) {
        if batch.keys.len() > 1
            && let Some(node) = &connection.node
        {
            server.keyspace.prefetch(node.job.session.db, &batch.keys);
        }
    }

    fn run_batch(&mut self, connection: &mut Connection, turn: Turn<'_>, out: &mut Vec<u8>) -> Ended {
        let Turn { server, batch, now, .. } = turn;
        let mut index = 0;
        // The last command that ran on one shard, which changes nothing of what admits the next one like it.
        let mut before: Option<&Parsed> = None;
        while let Some(parsed) = batch.commands.get(index) {
            let start = out.len();
            let node = connection.node.as_mut().expect("a parked connection runs nothing");
            node.job.now = now;
            let session = &mut node.job.session;
            let attention = server.attention.load(Ordering::Relaxed) != 0;
            if attention && session.record.is_killed() {
                return Ended::Closed;
            }
            let words = turn.words(parsed);
            let admitted = match (&parsed.found, before.take()) {
                (Found::Command(command), Some(before)) if parsed.is_like(before) && !attention => {
                    Ok((*command, Admission::Run))
                }
                _ => dispatch::admit(server, session, &parsed.found, words),
            };
            let (command, admission) = match admitted {
                Ok(admitted) => admitted,
                Err(refusal) => match parsed.found {
                    Found::Command(exec) if dispatch::is_exec(exec) => {
                        session.exec_refusal = Some(refusal);
                        (exec, Admission::Run)
                    }
                    Found::Unknown if is_cross_protocol(words) => {
                        warning!(
                            "Possible SECURITY ATTACK detected. It looks like somebody is sending POST or Host: commands. \
                             Connection from {} aborted.",
                            connection.record.peer
                        );
                        return Ended::Closed;
                    }
                    _ => {
                        self.refuse(session, &parsed.found, &refusal, out);
                        batch.leave_unmeasured(index);
                        index += 1;
                        continue;
                    }
                },
            };
            connection.record.ran(command);
            let next = match (admission, command.spec.run) {
                (Admission::Queue, _) => {
                    let start = out.len();
                    session.queue.as_mut().expect("queueing is admitted in MULTI only").push(command, words);
                    Reply::new(out, session.resp).simple("QUEUED");
                    dispatch::drop_unwanted(session, start, out);
                    batch.leave_unmeasured(index);
                    Next::Command(index + 1)
                }
                (Admission::Postpone, _) => {
                    batch.leave_unmeasured(index);
                    node.job.is_timed = true;
                    node.job.push(command, words, parsed.routed);
                    node.job.task = Task::Commands;
                    self.postpone(connection.node.take().expect("here a moment ago"));
                    Next::Parked { input_from: parsed.end }
                }
                (Admission::Run, Run::Shard(_)) => {
                    before = Some(parsed);
                    self.run_group(connection, turn, index, out)
                }
                (Admission::Run, Run::Session(_) | Run::Container) => {
                    // CLIENT LIST shows its own client while its command is in the buffer.
                    connection.record.input_bytes.store(turn.input.len() as u64, Ordering::Relaxed);
                    let mut call = Call::of_session(server, session, now, self.worker.thread.stats());
                    dispatch::answer(&mut call, command, words, parsed.routed, out, &self.worker.thread);
                    Next::Command(index + 1)
                }
                (Admission::Run, Run::Transaction(_) | Run::Watched(_) | Run::Everything(_)) => {
                    if self.run_transaction(connection, turn, command, parsed, out) {
                        Next::Command(index + 1)
                    } else {
                        batch.leave_unmeasured(index);
                        Next::Parked { input_from: parsed.end }
                    }
                }
                (Admission::Run, Run::EachShard { begin, .. }) => {
                    let args = Args::new(words, server.keyspace.router(), None);
                    let stats = self.worker.thread.stats();
                    let mut call = Call::of_session(server, session, now, stats);
                    match dispatch::survive(command, || begin(&mut call, args)) {
                        Ok(sweep) => {
                            batch.leave_unmeasured(index);
                            let limit = stats.output_limit.load(Ordering::Relaxed);
                            self.start_sweep(connection, command, sweep.with_limit(limit));
                            Next::Parked { input_from: parsed.end }
                        }
                        Err(error) => {
                            dispatch::conclude(command, Err(error), start, session, out, &self.worker.thread);
                            Next::Command(index + 1)
                        }
                    }
                }
                (Admission::Run, Run::Barrier(_)) => {
                    self.run_barrier(server, connection, command, words, now);
                    Next::Parked { input_from: parsed.end }
                }
            };
            match next {
                Next::Parked { input_from } => return Ended::Parked(input_from),
                Next::Command(next) => index = next,
            }
            if let Some(ended) = self.after_command(connection, command, parsed.end, out, start) {
                if let Ended::Parked(_) = ended {
                    batch.leave_unmeasured(index - 1);
                }
                return ended;
            }
        }
        Ended::Ran
    }

    /// Answers why a command does not run, and has EXEC refuse if it was to be queued.
    #[cold]
    fn refuse(&self, session: &mut Session, found: &Found, refusal: &CommandError, out: &mut Vec<u8>) {
        let start = out.len();
        if let Some(queue) = &mut session.queue {
            queue.refused = true;
        }
        if let Found::Command(command) = found {
            self.worker.thread.stats().commands[command.id].rejected.add(1);
        }
        dispatch::refuse(refusal, session, out, &self.worker.thread);
        dispatch::drop_unwanted(session, start, out);
    }

    /// Sends a command on its way over the shards.
    fn start_sweep(&mut self, connection: &mut Connection, command: &'static Registered, sweep: Sweep) {
        let mut node = connection.node.take().expect("a parked connection runs nothing");
        self.worker.thread.stats().commands[command.id].calls.add(1);
        node.job.commands.push(Delegated { command, n_words: 0, routed: None });
        node.job.task = Task::Sweep(Box::new(sweep));
        self.sweeps.push_back(node);
    }

    /// Runs a command whose reply waits until all that ran before it has ended.
    fn run_barrier(
        &mut self,
        server: &Server,
        connection: &mut Connection,
        command: &'static Registered,
        words: Words<'_>,
        now: Millis,
    ) {
        let mut node = connection.node.take().expect("a parked connection runs nothing");
        let Job { session, reply, .. } = &mut node.job;
        let stats = self.worker.thread.stats();
        let mut call = Call::of_session(server, session, now, stats);
        dispatch::answer(&mut call, command, words, None, reply, &self.worker.thread);
        node.job.task = Task::Barrier;
        node.set_route(Route::new(server.engine.all_shards()));
        self.worker.submit(node);
    }

    /// Runs the command at `first` of the batch, and those behind it that go to the same shard, under one hold; or leaves
    /// them with the shard's holder.
    fn run_group(
        &mut self,
        connection: &mut Connection,
        turn: Turn<'_>,
        first: usize,
        out: &mut Vec<u8>,
    ) -> Next {
        let Turn { server, batch, now, .. } = turn;
        let node = connection.node.as_mut().expect("a parked connection runs nothing");
        let session = &mut node.job.session;
        let leader = &batch.commands[first];
        let routed = leader.routed.expect("a command on one shard has its key first");
        let follows = |parsed: &&Parsed| parsed.follows(leader, routed, session, turn);
        let end = first + 1 + batch.commands[first + 1..].iter().take_while(follows).count();
        let next = Cell::new(first);
        let n_kept = Cell::new(out.len());
        let held = self.worker.with_shard(routed.shard, |shard, thread| {
            if shard.needs_care() {
                return Stopped::ByCare;
            }
            for parsed in &batch.commands[first..end] {
                let (Found::Command(command), Some(routed)) = (&parsed.found, parsed.routed) else {
                    unreachable!("a group is made of known commands on a key")
                };
                let Run::Shard(run) = command.spec.run else {
                    unreachable!("a group is made of commands on one shard")
                };
                if server.attention.load(Ordering::Relaxed) != 0
                    && (session.record.is_killed() || server.holds_back(command, session))
                {
                    return Stopped::ByAttention;
                }
                let now = shard.start().max(now);
                if session.no_touch {
                    shard.leave_untouched();
                }
                shard.begin(session.db, now);
                let start = out.len();
                let args = Args::new(turn.words(parsed), server.keyspace.router(), Some(routed));
                let outcome = run(shard, args, &mut Reply::new(out, session.resp));
                if matches!(&outcome, Err(error) if error.is_too_much()) {
                    out.truncate(start);
                    return Stopped::ByCare;
                }
                dispatch::conclude(command, outcome, start, session, out, thread);
                next.set(next.get() + 1);
                n_kept.set(out.len());
            }
            Stopped::No
        });
        let is_timed = matches!(held, Some(Ok(Stopped::ByCare)));
        match held {
            Some(Ok(Stopped::No)) => Next::Command(end),
            Some(Ok(Stopped::ByAttention)) if session.record.is_killed() => {
                session.closing = true;
                Next::Command(end)
            }
            // A pause began: at the gate the next of them is held back.
            Some(Ok(Stopped::ByAttention)) => Next::Command(next.get()),
            Some(Err(_)) => {
                out.truncate(n_kept.get());
                let Found::Command(failed) = batch.commands[next.get()].found else {
                    unreachable!("a group is made of known commands")
                };
                job::write_panic_error(out, session.resp, Some(failed), &self.worker.thread);
                Next::Command(next.get() + 1)
            }
            Some(Ok(Stopped::ByCare)) | None => {
                for parsed in &batch.commands[next.get()..end] {
                    let Found::Command(command) = parsed.found else {
                        unreachable!("a group is made of known commands")
                    };
                    node.job.push(command, turn.words(parsed), parsed.routed);
                }
                self.worker.thread.stats().delegated.add((end - next.get()) as u64);
                // Nobody asks the clock for what only waits for its turn: it has its share of the time here.
                node.job.is_timed = is_timed;
                if node.job.is_timed {
                    (next.get()..end).for_each(|index| batch.leave_unmeasured(index));
                }
                node.job.task = Task::Commands;
                node.set_route(Route::one(routed.shard));
                self.worker.submit(connection.node.take().expect("here a moment ago"));
                Next::Parked { input_from: batch.commands[end - 1].end }
            }
        }
    }

    /// Runs a command over several shards, if all are idle, or leaves it to the coordinator and returns false.
    fn run_transaction(
        &mut self,
        connection: &mut Connection,
        turn: Turn<'_>,
        command: &'static Registered,
        parsed: &Parsed,
        out: &mut Vec<u8>,
    ) -> bool {
        let Turn { server, now, .. } = turn;
        let (words, first) = (turn.words(parsed), parsed.routed);
        let node = connection.node.as_mut().expect("a parked connection runs nothing");
        let session = &mut node.job.session;
        let mut route = Route::default().with_weight(Weight::Heavy);
        if !dispatch::is_heavy(session, command, words) {
            let mut needs = Needs::default();
            needs.add(server, session, command, words);
            let shards = needs.shards(server);
            let start = out.len();
            let held = self.worker.with_shards(&shards, |held, thread| {
                if server.attention.load(Ordering::Relaxed) != 0
                    && (session.record.is_killed() || server.holds_back(command, session))
                {
                    return false;
                }
                if blocking::needs_care(held) {
                    return false;
                }
                let now = dispatch::time_under_hold(held, now, session);
                let mut call = Call {
                    held: Some(held),
                    routed: &needs.keys,
                    waiting: Waiting::May,
                    ..Call::of_session(server, session, now, thread.stats())
                };
                dispatch::answer(&mut call, command, words, first, out, thread);
                !call.must_run_again()
            });
            match held {
                Some(Ok(true)) => return true,
                Some(Err(_)) => {
                    out.truncate(start);
                    job::write_panic_error(out, session.resp, Some(command), &self.worker.thread);
                    return true;
                }
                // Held by someone else, held back by a pause, or concerned with waiting: all that is the node's business.
                Some(Ok(false)) | None => {}
            }
            route = Route::new(shards);
        }
        node.job.is_timed = true;
        node.job.push(command, words, first);
        self.worker.thread.stats().delegated.add(1);
        node.job.task = Task::Commands;
        node.set_route(route);
        self.worker.submit(connection.node.take().expect("here a moment ago"));
        false
    }

    /// Does what a command has asked of its connection. Its reply, from `start` on, waits as long as the connection.
    fn after_command(
        &mut self,
        connection: &mut Connection,
        command: &'static Registered,
        input_from: usize,
        out: &mut Vec<u8>,
        start: usize,
    ) -> Option<Ended> {
        let node = connection.node.as_mut().expect("the command ran here");
        let session = &mut node.job.session;
        if session.closing {
            return Some(Ended::Closed);
        }
        if connection.parser.limits().authenticated != session.authenticated {
            connection.parser.set_authenticated(session.authenticated);
        }
        let Request::Sleep { millis, counts } = session.request.take()?;
        let mut node = connection.node.take().expect("the command ran here");
        node.job.reply.extend_from_slice(&out[start..]);
        out.truncate(start);
        self.rest(node, millis, (counts == Counts::AsWork).then_some(command));
        Some(Ended::Parked(input_from))
    }

    /// Sends the commands of a node that was held back on their way again.
    fn submit_commands(&mut self, mut node: Box<Node<Job>>) {
        let server = self.server();
        // It begins now: time has passed since it was read.
        node.job.now = server.clock.now();
        node.set_route(node.job.route(server));
        self.worker.submit(node);
    }

    /// Gives each sweep under way a share of this turn.
    fn step_sweeps(&mut self) {
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
        let command = node.job.commands[0].command;
        let Task::Sweep(sweep) = &mut node.job.task else { unreachable!("only sweeps are stepped") };
        while let Some(shard) = sweep.shard_to_visit(&server.keyspace) {
            let step = self.worker.with_shard(shard, |shard, _| {
                shard.start();
                shard.begin(sweep.db, now);
                dispatch::step_sweep(command, sweep, shard)
            });
            match step {
                Some(Ok(Step::Done)) => return Swept::Done,
                Some(Ok(Step::More)) if began.elapsed() > SWEEP_BUDGET => return Swept::OutOfTime,
                Some(Ok(Step::More)) => {}
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

    /// Gives expiry a share of this turn.
    fn step_expiry(&mut self) {
        if self.expiry.is_behind() {
            if self.server().is_paused() {
                return self.expiry.end_cycle();
            }
            self.expiry.step(&mut self.worker);
        }
    }

    fn cron(&mut self) {
        self.next_cron = Instant::now() + CRON_INTERVAL;
        let server = self.server();
        let changes = server.config_changes.load(Ordering::Relaxed);
        if changes != self.config_seen {
            self.config_seen = changes;
            self.config = server.config.load_full();
            self.limits = limits(&self.config);
            for (_, connection) in &mut self.connections {
                if let Some(connection) = connection
                    && !connection.parser.holds_memory()
                {
                    let authenticated = connection.parser.limits().authenticated;
                    connection.parser.set_limits(Limits { authenticated, ..self.limits });
                }
            }
        }
        let is_paused = server.is_paused();
        if !self.postponed.is_empty() && !is_paused {
            self.resume_postponed();
        }
        self.wake_resting(server);
        self.close_idle(server);
        self.close_overdue();
        if server.active_expire.load(Ordering::Relaxed) && !is_paused {
            self.expiry.begin_cycle();
        }
        if self.worker.thread.index == 0 {
            server.measure_memory();
            server.sample_rates();
            server.listening.accept_everywhere(server, self.worker.thread.stats());
        }
        flush_retired();
        self.give_back_memory(server);
    }

    /// Gives memory back once the thread has had nothing to read for a while.
    fn give_back_memory(&mut self, server: &Server) {
        let n_reads = self.worker.thread.stats().reads.get();
        if std::mem::replace(&mut self.n_reads_seen, n_reads) != n_reads {
            self.n_idle_crons = 0;
            return;
        }
        self.n_idle_crons = self.n_idle_crons.saturating_add(1);
        if self.n_idle_crons == IDLE_CRONS {
            (server.return_freed_memory)();
        }
    }

    /// Frees what was too much to free under a hold, for a share of this turn.
    fn reclaim(&mut self) {
        if braid_storage::has_large_garbage() {
            self.worker.thread.wake_heavy = true;
            self.worker.thread.send_wakes();
        }
        if !braid_storage::has_garbage() {
            return;
        }
        let began = Instant::now();
        while braid_storage::reclaim() && began.elapsed() < RECLAIM_BUDGET {}
    }

    /// Goes on with connections whose rest is over, and with those whose client is gone.
    fn wake_resting(&mut self, server: &Server) {
        let now = server.clock.uptime_millis();
        let is_gone = |node: &Node<Job>| {
            let connection = self.connections.get(node.job.origin.slot).and_then(Option::as_ref);
            connection.is_none_or(|connection| connection.closing || connection.peer_closed)
        };
        let is_over = |resting: &mut Resting| resting.until <= now || is_gone(&resting.node);
        let over: Vec<Resting> = self.resting.extract_if(.., is_over).collect();
        for Resting { began, works_on, node, .. } in over {
            if let Some(command) = works_on {
                self.worker.thread.stats().took(command, began.elapsed().as_nanos() as u64, 1);
            }
            self.take_back(node);
        }
    }

    /// Closes connections that have been silent for longer than `timeout`.
    fn close_idle(&mut self, server: &Server) {
        let Some(timeout) = self.config.timeout else { return };
        let now = server.clock.uptime_millis();
        let is_idle = |connection: &Connection| {
            !connection.is_parked()
                && now.saturating_sub(connection.record.active_at.load(Ordering::Relaxed))
                    > timeout.as_millis() as u64
        };
        let idle: Vec<usize> = self
            .connections
            .iter()
            .filter(|(_, connection)| connection.as_ref().is_some_and(|connection| is_idle(connection)))
            .map(|(slot, _)| slot)
            .collect();
        for slot in idle {
            self.drop_connection(slot);
        }
    }

    /// Closes connections that have been over the soft output limit for too long: who neither reads nor asks for more
    /// is met nowhere else.
    fn close_overdue(&mut self) {
        if self.config.client_output_buffer_limit.normal.soft_bytes == 0 {
            return;
        }
        for slot in 0..self.connections.capacity() {
            let Some(mut connection) = self.connections.get_mut(slot).and_then(Option::take) else {
                continue;
            };
            let must_close = !connection.backlog.is_empty() && self.is_over_soft_limit(&mut connection);
            self.connections[slot] = Some(connection);
            if must_close {
                self.drop_connection(slot);
            }
        }
    }
}

/// How the share of a sweep in a turn ended.
enum Swept {
    Done,
    OutOfTime,
    Held(braid_storage::ShardId),
}

/// What kept commands from running in place.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stopped {
    No,
    /// A pause, or CLIENT KILL.
    ByAttention,
    /// Somebody waits for keys in the shard or has pinned some, or it is too much work: the coordinator's way looks after that.
    ByCare,
}

/// Where a batch goes on.
enum Next {
    /// With this command of it.
    Command(usize),
    /// Not now: a command is under way elsewhere. The input behind it starts here.
    Parked { input_from: usize },
}

impl Parsed {
    /// Whether the command may run under the hold of `leader`, which was admitted and lives there.
    fn follows(&self, leader: &Parsed, lives: Routed, session: &Session, turn: Turn<'_>) -> bool {
        let (Found::Command(command), Some(routed)) = (&self.found, self.routed) else { return false };
        routed.shard == lives.shard
            && (self.is_like(leader)
                || matches!(command.spec.run, Run::Shard(_))
                    && matches!(
                        dispatch::admit(turn.server, session, &self.found, turn.words(self)),
                        Ok((_, Admission::Run))
                    ))
    }

    /// Whether it is the same command with as many words, so that it is admitted if the other one is.
    #[inline]
    fn is_like(&self, other: &Parsed) -> bool {
        self.found.is_same(&other.found) && self.n_words == other.n_words
    }
}

/// The parser's limits.
fn limits(config: &Config) -> Limits {
    Limits { max_bulk_bytes: config.proto_max_bulk_len as u64, authenticated: true }
}

/// Gives back the space of a large buffer that has become almost empty.
fn job_keep(buffer: &mut Vec<u8>) {
    if buffer.is_empty() {
        *buffer = Vec::new();
    } else if buffer.capacity() > 4 * buffer.len().max(READ_BYTES) {
        buffer.shrink_to(2 * buffer.len());
    }
}

/// Answers what cannot be parsed, and closes.
fn report_protocol_error(
    connection: &mut Connection,
    error: ProtocolError,
    out: &mut Vec<u8>,
    thread: &ThreadState,
) {
    connection.closing = true;
    let Some(node) = &connection.node else { return };
    verbose!("Protocol error ({error}) from client: id={}", connection.record.id.0);
    thread.stats().error("ERR");
    let text = [b"ERR Protocol error: ", &error.text()[..]].concat();
    Reply::new(out, node.job.session.resp).error(text);
}

/// Whether a web browser was made to talk to the server: such a connection is closed at once.
fn is_cross_protocol(words: Words<'_>) -> bool {
    let name = words.get(0);
    name.eq_ignore_ascii_case(b"post") || name.eq_ignore_ascii_case(b"host:")
}
