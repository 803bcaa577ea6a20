//! What a connection leaves with a shard that someone else holds: its session, the commands, and room for the reply.

use std::{sync::Arc, time::Instant};

use braid_protocol::reply::Reply;
use braid_storage::{
    Key, Routed, Shard,
    coordinator::{self, Held, Next, Panic, Route, Weight},
    executor::Node,
    time::Millis,
};

use crate::{
    command::{self, Budget, CommandError, Flags, Method, Registered, Requests, Run, Step, Sweep, Words},
    io::{Mail, ThreadState},
    monitor,
    run::{
        blocking::{self, Parked, Wait},
        offload::{self, Offload},
        route::{self, Needs},
        step,
        unit::{self, Ended, Unit},
    },
    server::Server,
    session::Session,
    tracking, warning, warning_later,
};

/// The most input and output space that a node keeps between uses, in bytes.
const KEPT_BYTES: usize = 4096;

/// What is to be done with the shards.
#[derive(Default)]
pub enum Task {
    /// Nothing: the node is with its connection.
    #[default]
    Idle,
    /// Run the commands.
    Commands,
    /// Go on with a sweep.
    Sweep(Box<Sweep>),
    /// Nothing but wait until every command that ran before has ended; the reply is written already.
    Barrier,
    /// Let go of what a closed connection watched and was subscribed to.
    Goodbye,
    /// Wait for keys: the node goes to those who may claim it, not home.
    Wait(Arc<Parked>),
    /// The command is served, or has given up, but still stands in lines of keys.
    MustWithdraw(Arc<Parked>),
    /// Leave those lines; then the node goes on with its connection.
    Withdraw(Arc<Parked>),
    /// Pin the values of the next command, which is too much for a hold.
    Pin,
    /// Run it on the pinned values, with nothing held: the node stays with its heavy-work thread.
    Offloaded(Box<Offload>),
    /// Store its result and unpin the values.
    Unpin(Box<Offload>),
}

/// A command in a node.
#[derive(Clone, Copy)]
pub struct Delegated {
    /// Which.
    pub command: &'static Registered,
    /// Where its first key lives, if it has one.
    pub routed: Option<Routed>,
}

/// The work in a node.
pub struct Job {
    /// The client. With the node while it is under way; nobody else has it then.
    pub session: Session,
    /// What to do.
    pub task: Task,
    /// The commands' words.
    pub requests: Requests,
    /// The commands.
    pub commands: Vec<Delegated>,
    /// Where the keys of a single command live, in order, if that was found out before.
    pub routed: Vec<Routed>,
    /// Whether the time of each is measured where it runs; else they have had their share of that of the batch they were read in.
    pub is_timed: bool,
    /// How many of them have run; the others were held back by CLIENT PAUSE.
    pub n_run: usize,
    /// Monitoring clients have been shown the command that runs next: it began to wait for keys after that.
    pub was_shown: bool,
    /// The command that runs next has been counted: it was offloaded, and is done again.
    pub was_counted: bool,
    /// The replies.
    pub reply: Vec<u8>,
    /// How much of them belongs to commands that have ended.
    pub n_replied_bytes: usize,
    /// The time of the connection's last read.
    pub now: Millis,
}

impl Job {
    /// A connection's job, with nothing to do.
    pub fn new(session: Session) -> Self {
        Self {
            session,
            task: Task::Idle,
            requests: Requests::default(),
            commands: Vec::new(),
            routed: Vec::new(),
            is_timed: false,
            n_run: 0,
            was_shown: false,
            was_counted: false,
            reply: Vec::new(),
            n_replied_bytes: 0,
            now: Millis(0),
        }
    }

    /// Copies a command in.
    pub fn push(&mut self, command: &'static Registered, words: Words<'_>, routed: Option<Routed>) {
        self.requests.push(words);
        self.commands.push(Delegated { command, routed });
    }

    /// Adds a command whose bytes [`Requests::adopt`] brings next: there it begins at `start`.
    pub fn push_without_bytes(
        &mut self,
        command: &'static Registered,
        words: Words<'_>,
        routed: Option<Routed>,
        start: usize,
    ) {
        self.requests.push_without_bytes(words, start);
        self.commands.push(Delegated { command, routed });
    }

    /// The commands from `nth` on, with their words.
    pub fn commands_from(&self, nth: usize) -> impl Iterator<Item = (Delegated, Words<'_>)> + Clone {
        self.commands[nth..].iter().copied().zip(self.requests.iter_from(nth))
    }

    /// The command that runs next.
    pub fn next_command(&self) -> (&'static Registered, Words<'_>) {
        (self.commands[self.n_run].command, self.requests.get(self.n_run))
    }

    /// Puts others in place of some of the last words of the command that runs next.
    pub fn replace_last_words(&mut self, words: Vec<Option<Vec<u8>>>) {
        self.requests.replace_last_words(self.n_run, words);
    }

    /// What the commands that have not run yet need.
    pub fn needs(&self, server: &Server) -> Needs {
        let mut needs = Needs::default();
        for (delegated, words) in self.commands_from(self.n_run) {
            needs.add(server, &self.session, delegated.command, words);
        }
        needs
    }

    /// The route of the commands that have not run yet. That of heavy work is found by the thread that does it.
    pub fn route(&self, server: &Server) -> Route {
        let is_heavy = self.commands_from(self.n_run).any(|(delegated, words)| {
            // Held back by a pause, a sweep comes here, and runs with all shards held.
            matches!(delegated.command.spec.run, Run::EachShard { .. })
                || route::is_heavy(&self.session, delegated.command, words)
        });
        if is_heavy {
            Route::default().with_weight(Weight::Heavy)
        } else {
            Route::new(self.needs(server).shards(server))
        }
    }

    /// Runs the commands, each as a unit, with the shards they need held. Asks for more shards, if it turns out that a command needs
    /// them, and yields between two commands when the thread owes its time to others.
    fn run_commands(&mut self, held: &mut Held<'_, Job>, thread: &mut ThreadState) -> Next {
        prefetch_node(self, held);
        let budget = Budget::new();
        while self.n_run < self.commands.len() {
            self.n_replied_bytes = self.reply.len();
            let began = self.is_timed.then(Instant::now);
            let command = self.commands[self.n_run].command;
            match self.run_next(unit::run, &budget, held, thread) {
                Ended::Ran if thread.serves_sockets() => {
                    if !command.has(Flags::FAST) {
                        thread.worked_long();
                    }
                    self.ran(began, thread);
                }
                Ended::Ran => {
                    self.ran(began, thread);
                    thread.stats().offloaded.add(1);
                    // The commands after it may be short: they do not wait for heavy work.
                    return Next::Home;
                }
                Ended::Killed => self.n_run = self.commands.len(),
                // Its thread keeps it until the pause ends.
                Ended::Paused => return Next::Home,
                Ended::Waits(wait) => {
                    self.wait(*wait, held, thread);
                    return Next::Home;
                }
                Ended::Needs(route) => return Next::Again(route),
                Ended::TooLong(Method::Pinned) => {
                    return Next::Again(offload::send(self, thread.server()));
                }
                Ended::TooLong(Method::Held) => {
                    return Next::Again(Route::new(held.ids().into()).with_weight(Weight::Heavy));
                }
            }
            if self.n_run < self.commands.len() && !held.may_go_on(thread) {
                return Next::Yield;
            }
        }
        Next::Home
    }

    /// Runs the command that has waited, now that a key holds what it waited for. If it cannot run here, its thread sends it on
    /// its way again.
    pub fn run_served(&mut self, held: &mut Held<'_, Job>, thread: &mut ThreadState) {
        self.n_replied_bytes = self.reply.len();
        let began = self.is_timed.then(Instant::now);
        match self.run_next(unit::run_served, &Budget::new(), held, thread) {
            Ended::Ran => self.ran(began, thread),
            Ended::Killed => self.n_run = self.commands.len(),
            Ended::Paused | Ended::Waits(_) | Ended::Needs(_) | Ended::TooLong(_) => {}
        }
    }

    fn run_next(
        &mut self,
        run: impl FnOnce(&Unit<'_>, &mut Session, &mut Held<'_, Job>, &mut Vec<u8>, &mut ThreadState) -> Ended,
        budget: &Budget,
        held: &mut Held<'_, Job>,
        thread: &mut ThreadState,
    ) -> Ended {
        let Job { session, requests, commands, routed, n_run, was_shown, reply, now, .. } = self;
        let (delegated, words) = (commands[*n_run], requests.get(*n_run));
        let unit = Unit {
            command: delegated.command,
            words,
            first: delegated.routed,
            routed,
            is_fetched: false,
            sampled: *now,
            was_shown: *was_shown,
            budget,
        };
        run(&unit, session, held, reply, thread)
    }

    /// Counts the command that has just run.
    fn ran(&mut self, began: Option<Instant>, thread: &ThreadState) {
        if let Some(began) = began {
            let command = self.commands[self.n_run].command;
            thread.stats().took(command, began.elapsed().as_nanos() as u64, 1);
        }
        if std::mem::take(&mut self.was_counted) {
            thread.stats().commands[self.commands[self.n_run].command.id].calls.sub(1);
        }
        self.was_shown = false;
        // A client that is closed without an answer runs nothing more.
        self.n_run = if self.session.is_over_limit { self.commands.len() } else { self.n_run + 1 };
    }

    /// Has the next command wait, with the shards of the keys it waits for held.
    fn wait(&mut self, wait: Wait, held: &mut Held<'_, Job>, thread: &ThreadState) {
        // A command that waits until it may write has not begun for its client, so it is shown when it runs.
        if wait.is_visible() && !std::mem::replace(&mut self.was_shown, true) {
            let (command, words) = self.next_command();
            monitor::observe(&self.session, command, words, thread);
        }
        blocking::park(self, wait, held);
    }

    /// Forgets the commands; keeps a little of the space.
    pub fn clear(&mut self) {
        self.task = Task::Idle;
        self.is_timed = false;
        self.n_run = 0;
        self.was_shown = false;
        self.was_counted = false;
        self.n_replied_bytes = 0;
        self.requests.clear(KEPT_BYTES);
        empty(&mut self.commands);
        empty(&mut self.routed);
        empty(&mut self.reply);
    }
}

/// Empties a buffer, and gives back its space if that is large.
pub fn empty<T>(buffer: &mut Vec<T>) {
    if buffer.capacity() * size_of::<T>() > KEPT_BYTES {
        *buffer = Vec::new();
    } else {
        buffer.clear();
    }
}

impl coordinator::Job for Job {
    type Shard = Shard;
    type Thread = ThreadState;

    fn prepare(node: &mut Node<Self>, thread: &mut ThreadState) {
        let needs = node.job.needs(thread.server());
        if node.job.commands.len() == 1 {
            node.job.routed = needs.keys.to_vec();
        }
        node.set_route(Route::new(needs.shards(thread.server())).with_weight(Weight::Heavy));
    }

    fn run(&mut self, held: &mut Held<'_, Self>, thread: &mut ThreadState) -> Next {
        if !matches!(self.task, Task::Commands) {
            thread.worked_long();
        }
        match &mut self.task {
            Task::Idle | Task::Barrier | Task::Wait(_) | Task::MustWithdraw(_) | Task::Offloaded(_) => {}
            Task::Pin => offload::pin(self, held, thread),
            Task::Unpin(_) => return offload::unpin(self, held, thread).map_or(Next::Home, Next::Again),
            Task::Commands => return self.run_commands(held, thread),
            Task::Withdraw(parked) => {
                let all = parked.leave_lines(held, self.now);
                debug_assert!(all, "the route is over all lines");
            }
            Task::Sweep(sweep) => {
                let shard = held.shard(held.ids()[0]);
                shard.start();
                shard.begin(sweep.db, self.now);
                // A sweep that is done here is finished by its thread, which sees that the cursor has ended.
                let _: Step = step::step_sweep(self.commands[0].command, sweep, shard);
                unit::end(held, thread, self.now);
            }
            Task::Goodbye => {
                unit::start(held, self.now, &self.session);
                let watched = std::mem::take(&mut self.session.watched);
                command::forget_watches(held, &watched, self.now);
                let own = self.session.subscriptions.take();
                for (kind, name) in own.iter().flat_map(|own| own.channels()) {
                    command::leave_channel(thread.server(), held, kind, name, self.session.origin.thread);
                }
            }
        }
        Next::Home
    }

    fn caught(held: &mut Held<'_, Self>, panic: &Panic) {
        let what = panic
            .downcast_ref::<&str>()
            .copied()
            .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
            .unwrap_or("no message");
        let torn = (0..held.ids().len()).any(|index| {
            let id = held.ids()[index];
            held.shard(id).is_torn()
        });
        if torn {
            warning!(
                "A command panicked after it had begun to change its shard ({what}). The shard may be torn: stopping \
                 rather than serve it"
            );
            std::process::abort();
        }
        warning_later!("A command panicked before it changed anything ({what}); its client gets an error");
    }

    fn panicked(&mut self, thread: &mut ThreadState) {
        match &mut self.task {
            Task::Sweep(sweep) => {
                let failed = self.commands.first().map(|delegated| delegated.command);
                write_panic_error(sweep.fail(), self.session.resp, failed, thread);
            }
            // The commands behind it run when the node is back.
            _ => {
                let failed = self.commands.get(self.n_run).map(|delegated| delegated.command);
                self.reply.truncate(self.n_replied_bytes);
                answer_panic(&mut self.reply, &mut self.session, failed, thread);
                self.n_run += 1;
            }
        }
    }

    #[inline(always)]
    fn leave(shard: &mut Shard, thread: &mut ThreadState) {
        let lookups = shard.take_lookups();
        let stats = thread.stats();
        stats.hits.add(u64::from(lookups.n_hits));
        stats.misses.add(u64::from(lookups.n_misses));
        if shard.has_observers() {
            tracking::announce_before_leaving(shard, thread);
        }
    }

    fn finish(mut node: Box<Node<Self>>, thread: &mut ThreadState) {
        thread.charge(&node.job.session);
        let origin = node.job.session.origin.thread;
        match &node.job.task {
            Task::Wait(parked) => {
                let parked = Arc::clone(parked);
                node.job.task = Task::Commands;
                // First the node: once its thread knows of the wait, it may claim it.
                parked.hand_in(node);
                thread.send_mail(origin, Mail::Waits(parked));
            }
            Task::Offloaded(_) => thread.offloaded.push_back(node),
            _ => thread.send_home(origin, node),
        }
    }

    fn may_drain(thread: &mut ThreadState) -> bool {
        thread.may_drain()
    }

    fn handed_off(thread: &mut ThreadState) {
        thread.wake_someone = true;
    }

    fn heavy_waits(thread: &mut ThreadState) {
        thread.wake_heavy = true;
    }

    fn released(thread: &mut ThreadState) {
        thread.end_drain();
        thread.send_wakes();
    }
}

/// Fetches the members that a node's commands name of the first one's key.
fn prefetch_node(job: &Job, held: &mut Held<'_, Job>) {
    let Some(Delegated { command, routed: Some(routed), .. }) = job.commands.get(job.n_run).copied() else {
        return;
    };
    if command.spec.members.is_none() {
        return;
    }
    let shard = held.shard(routed.shard);
    shard.begin(job.session.db, job.now);
    let key = Key { bytes: job.next_command().1.get(1), routed };
    let commands = job.commands_from(job.n_run).take_while(|(delegated, _)| delegated.routed == Some(routed));
    step::prefetch_members(shard, &key, commands.map(|(delegated, words)| (delegated.command, words)));
}

/// Answers a command that has panicked, if its client wants replies.
pub fn answer_panic(
    out: &mut Vec<u8>,
    session: &mut Session,
    command: Option<&'static Registered>,
    thread: &ThreadState,
) {
    let start = out.len();
    write_panic_error(out, session.resp, command, thread);
    step::drop_unwanted(session, start, out);
}

/// Writes the error that the client of a panicked command gets.
pub fn write_panic_error(
    out: &mut Vec<u8>,
    resp: braid_protocol::reply::Resp,
    command: Option<&'static Registered>,
    thread: &ThreadState,
) {
    let error = CommandError::Internal(command.map_or("?", |command| command.full_name));
    thread.stats().error("ERR");
    error.write(&mut Reply::new(out, resp));
}

/// The engine that runs jobs.
pub type Engine = Arc<coordinator::Engine<Job>>;
