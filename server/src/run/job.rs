//! The work of a node.

use std::sync::Arc;

use braid_protocol::reply::Reply;
use braid_storage::{
    entry::key::Key,
    keyspace::shard::Shard,
    observers::record,
    sync::{
        coordinator::{self, Held, Next, Panic, Route, Weight},
        executor::Node,
    },
};

use crate::{
    catalog::{CommandError, Flags, Words},
    client::{
        node::{Cut, Delegated, Job, LogCut, Task},
        session::Session,
        sweep::SweepProgress,
        waits::Wait,
    },
    clock::Instant,
    command::{self, Method, Registered, Run},
    observe::{events, invalidations},
    run::{
        blocking,
        budget::Budget,
        command_lookup, finish, gates, logging, offload,
        route::{self, Needs},
        script_prediction, step,
        timing::{self, Span},
        unit::{self, UnitEnd},
    },
    shared::{mail::Mail, server::Server, thread_state::ThreadState},
    telemetry::split::Phase,
    warning, warning_later,
};

impl Job {
    /// The number of remaining commands that are under way together.
    ///
    /// Scripts run one by one: the needs of one do not concern the others.
    fn n_together(&self) -> usize {
        let n_left = self.commands.len() - self.n_run;
        if n_left > 1 && self.next_is_script() { 1 } else { n_left }
    }

    fn next_is_script(&self) -> bool {
        self.commands
            .get(self.n_run)
            .is_some_and(|next| matches!(command_lookup::row(next.command).spec.run, Run::Script(_)))
    }

    /// The commands that are under way.
    fn together(&self) -> impl Iterator<Item = (Delegated, Words<'_>)> + Clone {
        self.commands_from(self.n_run).take(self.n_together())
    }

    /// The needs of the commands that are under way.
    pub fn needs(&self, server: &Server) -> Needs {
        let mut needs = Needs::default();
        for (delegated, words) in self.together() {
            needs.add(server, &self.session, command_lookup::row(delegated.command), words);
        }
        needs
    }

    /// The route of the commands that are under way. A heavy-work thread finds the route of heavy work
    /// itself.
    pub fn route(&self, server: &Server) -> Route {
        let is_heavy = self.together().any(|(delegated, words)| {
            // A sweep that a pause held back comes here, and runs with all shards held.
            let command = command_lookup::row(delegated.command);
            matches!(command.spec.run, Run::EachShard { .. })
                || route::is_heavy(server, &self.session, command, words)
        });
        if is_heavy {
            return Route::default().with_weight(Weight::Heavy);
        }
        self.needs(server).route(server)
    }

    /// Runs the commands, each as a unit, with their shards held.
    ///
    /// It asks for more shards if a command turns out to need them. It yields between two commands when the
    /// thread owes its time to others.
    fn run_commands(&mut self, held: &mut Held<'_, Job>, thread: &mut ThreadState) -> Next {
        let first = self.n_run;
        let commands = self.commands[first..].iter().map(|next| command_lookup::row(next.command));
        let is_watched = !self.is_timed && timing::may_be_long(commands, self.requests.n_bytes());
        let span = is_watched.then(|| Span::begin(thread));
        self.pass(Phase::Shards);
        let next = self.run_in_turn(held, thread);
        self.pass(Phase::Run);
        if let Some(span) = span {
            let taken = span.end(thread);
            self.note_together(first..self.n_run, taken, thread);
        }
        next
    }

    /// Records the time since the last moment, if the node is followed.
    pub(super) fn pass(&mut self, phase: Phase) {
        if let Some(split) = &mut self.split {
            split.pass(phase, Instant::now());
        }
    }

    fn run_in_turn(&mut self, held: &mut Held<'_, Job>, thread: &mut ThreadState) -> Next {
        prefetch_node(self, held);
        let budget = Budget::of_batch();
        while self.n_run < self.commands.len() {
            self.n_replied_bytes = self.reply.len();
            let span = self.is_timed.then(|| Span::begin(thread));
            let command = command_lookup::row(self.commands[self.n_run].command);
            match self.run_next(false, &budget, held, thread) {
                UnitEnd::Ran if thread.serves_sockets() => {
                    if !command.has(Flags::FAST) {
                        thread.worked_long();
                    }
                    self.ran(span, thread);
                    if self.next_is_script() {
                        return Next::GoOn(self.route(thread.server()));
                    }
                }
                UnitEnd::Ran => {
                    self.ran(span, thread);
                    thread.stats().offloaded.add(1);
                    // The commands after it may be short, so they do not wait for heavy work.
                    return Next::Home;
                }
                UnitEnd::Killed => self.n_run = self.commands.len(),
                // Its thread keeps it until the pause ends.
                UnitEnd::Paused => {
                    self.split = None;
                    return Next::Home;
                }
                UnitEnd::Waits(wait) => {
                    self.wait(*wait, held, thread);
                    return Next::Home;
                }
                UnitEnd::Needs(route) => return Next::Again(self.after_giving_up(route)),
                UnitEnd::BetweenParts => {
                    let weight = if thread.serves_sockets() { Weight::Light } else { Weight::Heavy };
                    let server = thread.server();
                    return Next::GoOn(self.needs(server).route(server).with_weight(weight));
                }
                UnitEnd::TooLong(Method::Pinned) => {
                    return Next::Again(offload::send(self, thread.server()));
                }
                UnitEnd::TooLong(Method::Held) => {
                    return Next::Again(Route::new(held.ids().into()).with_weight(Weight::Heavy));
                }
            }
            if self.n_run < self.commands.len() && (budget.is_spent() || !held.may_go_on(thread)) {
                return Next::Yield;
            }
        }
        Next::Home
    }

    /// The route on which the next command runs again. A command that keeps needing more shards finally takes
    /// the lane.
    fn after_giving_up(&mut self, route: Route) -> Route {
        const PATIENT_RUNS: u8 = 3;
        self.n_given_up = self.n_given_up.saturating_add(1);
        if self.n_given_up > PATIENT_RUNS { route.through_lane() } else { route }
    }

    /// Ends the wait of the commands that are under way with an error. Returns false if they must keep
    /// waiting.
    pub(super) fn refuse(&mut self, error: &CommandError, thread: &ThreadState) -> bool {
        match &mut self.task {
            // A barrier has its reply and stops waiting, unless shards still have events to announce.
            Task::Barrier => events::is_settled(thread.server()),
            Task::Sweep(sweep) => {
                step::refuse(error, &self.session, sweep.fail(), thread);
                true
            }
            Task::Commands => self.refuse_commands(error, thread),
            _ => false,
        }
    }

    fn refuse_commands(&mut self, error: &CommandError, thread: &ThreadState) -> bool {
        if self.next_runs_queue() {
            // EXEC must end its transaction and release its watched keys, and needs no more shards than that
            // takes.
            return self.session.exec_refusal.replace(error.clone()).is_none();
        }
        let may_run_anyway =
            |(delegated, _): (Delegated, _)| command_lookup::row(delegated.command).has(Flags::ALLOW_BUSY);
        if self.session.is_between_parts() || self.together().any(may_run_anyway) {
            return false;
        }
        for _ in 0..self.n_together() {
            let start = self.reply.len();
            step::refuse(error, &self.session, &mut self.reply, thread);
            self.session.drop_unwanted(start, &mut self.reply);
            self.count();
            self.n_run += 1;
        }
        true
    }

    fn next_runs_queue(&self) -> bool {
        self.commands.get(self.n_run).is_some_and(|next| command_lookup::row(next.command).runs_queue())
    }

    /// Makes the next command wait, with the shards of its keys held.
    fn wait(&mut self, mut wait: Wait, held: &mut Held<'_, Job>, thread: &ThreadState) {
        if wait.is_visible() {
            // A command that could not be served where it was claimed keeps its deadline.
            wait.deadline = self.gives_up_at.or(wait.deadline);
            self.gives_up_at = wait.deadline;
        }
        // The duration of the wait is its client's choice.
        self.split = None;
        // For its client, a command that waits for permission to write has not begun, so it is shown when it
        // runs.
        if wait.is_visible() && !std::mem::replace(&mut self.was_shown, true) {
            let (command, words) = command_lookup::next(self);
            finish::show(command.spec.flags, words, &self.session, thread);
        }
        if wait.is_visible() {
            self.note_reads_of(self.n_run, held, thread);
        }
        blocking::park(self, wait, held);
    }

    /// Remembers the keys read by a command that waits or has waited.
    fn note_reads_of(&self, nth: usize, held: &mut Held<'_, Job>, thread: &ThreadState) {
        if self.session.tracking.is_some()
            && let Some((delegated, words)) = self.commands_from(nth).next()
            && let command = command_lookup::row(delegated.command)
            && command.reads_its_keys()
        {
            invalidations::note_reads(thread.server(), held, &self.session, command.spec.keys, words);
        }
    }
}

impl Job {
    fn run_task(&mut self, held: &mut Held<'_, Job>, thread: &mut ThreadState) -> Next {
        match &mut self.task {
            Task::Barrier => events::settle(thread.server(), held),
            Task::Cut(cut) => make_cut(cut, held, thread),
            Task::Idle | Task::Wait(_) | Task::MustWithdraw(_) | Task::Offloaded(_) => {}
            Task::MakeRoom(room) => room.make(),
            Task::Pin => offload::pin(self, held, thread),
            Task::Unpin(_) => return offload::unpin(self, held, thread).map_or(Next::Home, Next::Again),
            Task::Commands => return self.run_commands(held, thread),
            Task::Withdraw(parked) => {
                let all = parked.leave_lines(held, self.now);
                debug_assert!(all, "the route is over all lines");
                if let Some(served) = self.n_run.checked_sub(1) {
                    self.note_reads_of(served, held, thread);
                }
            }
            Task::Sweep(sweep) if gates::is_replaying(thread.server()) => {
                step::refuse(&gates::LOADING, &self.session, sweep.fail(), thread);
            }
            Task::Sweep(sweep) => {
                let shard = held.shard(held.ids()[0]);
                self.now = shard.start_at(self.now, || thread.server().clock.now());
                shard.go_to(sweep.db);
                // A sweep that ends here is finished by its thread, which sees that the cursor has ended.
                let _: SweepProgress =
                    step::step_sweep(command_lookup::row(self.commands[0].command), sweep, shard);
                let _: usize = unit::end(held, thread, self.now);
            }
            Task::Goodbye(farewell) => {
                gates::start(held, self.now, &self.session, thread.server());
                command::unwatch_keys(farewell.now(), &self.session.record.is_watch_lost, held, self.now);
                farewell.watched.truncate(farewell.watched.len() - farewell.n_watched);
                if farewell.meets_events {
                    events::settle(thread.server(), held);
                }
                for (kind, name) in farewell.channels.drain(..) {
                    command::leave_channel(thread.server(), held, kind, &name, self.session.origin.thread);
                }
            }
        }
        Next::Home
    }
}

/// Makes all shards begin to save their contents of this moment.
fn make_cut(cut: &mut Cut, held: &mut Held<'_, Job>, thread: &ThreadState) {
    let server = thread.server();
    if cut.is_last {
        server.hold_writes_for_end();
    }
    for index in 0..held.ids().len() {
        let id = held.ids()[index];
        let shard = held.shard(id);
        cut.has_field_deadlines |= shard.has_field_deadlines();
        shard.begin_snapshot(cut.uses.clone(), cut.form, Arc::clone(server.keyspace.early()));
    }
    cut.libraries = server.functions.known().libraries().map(|library| library.code.clone()).collect();
    match &mut cut.log {
        LogCut::None => {}
        LogCut::Made => server.durability.add_cut(&mut thread.log.borrow_mut()),
        LogCut::Begun(aof) => {
            for index in 0..held.ids().len() {
                let id = held.ids()[index];
                held.shard(id).hear_all(record::LOG, true);
            }
            let (aof, history) = (aof.take().expect("it begins once"), server.shared_history());
            server.durability.begin_aside(*aof, history, &mut thread.log.borrow_mut());
        }
        LogCut::Marked { mark, id } => {
            if !server.durability.is_followed() {
                for index in 0..held.ids().len() {
                    let id = held.ids()[index];
                    held.shard(id).hear_all(record::LOG, true);
                }
                server.durability.begin_following();
                server.tell_history(None, thread);
            }
            *id = server.shared_history();
            *mark = server.durability.add_mark(&mut thread.log.borrow_mut());
        }
    }
    cut.n_changes = server.sum(|stats| &stats.changes);
}

impl coordinator::Job for Job {
    type Shard = Shard;
    type Thread = ThreadState;

    fn prepare(node: &mut Node<Self>, thread: &mut ThreadState) {
        for (delegated, words) in node.job.together() {
            script_prediction::prepare(thread.server(), command_lookup::row(delegated.command), words);
        }
        node.job.requests.prepare_handover();
        let needs = node.job.needs(thread.server());
        if node.job.commands.len() == 1 {
            node.job.routed = needs.keys.to_vec();
        }
        node.set_route(needs.route(thread.server()).with_weight(Weight::Heavy));
    }

    fn run(&mut self, held: &mut Held<'_, Self>, thread: &mut ThreadState) -> Next {
        if !matches!(self.task, Task::Commands) {
            thread.worked_long();
        }
        let (ticket, next) = thread.ticket_of(|thread| self.run_task(held, thread));
        self.ticket = self.ticket.max(ticket);
        next
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
                let failed = self.commands.first().map(|delegated| command_lookup::row(delegated.command));
                write_panic_error(sweep.fail(), self.session.resp, failed, thread);
            }
            // The commands after it run when the node is back.
            _ => {
                let failed =
                    self.commands.get(self.n_run).map(|delegated| command_lookup::row(delegated.command));
                self.reply.truncate(self.n_replied_bytes);
                answer_panic(&mut self.reply, &mut self.session, failed, thread);
                self.count();
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
        stats.changes.add(u64::from(shard.take_changed()));
        if shard.has_observers() {
            // The unit's changes are logged before any other thread sees them, whatever becomes of the unit.
            logging::log_unit(thread);
            if shard.is_only_logged() {
                return;
            }
            invalidations::announce_before_leaving(shard, thread);
        }
    }

    fn finish(mut node: Box<Node<Self>>, thread: &mut ThreadState) {
        thread.charge(&node.job.session);
        let origin = node.job.session.origin.thread;
        match &node.job.task {
            Task::Wait(parked) => {
                let parked = Arc::clone(parked);
                node.job.task = Task::Commands;
                // The node comes first: once its thread knows of the wait, it may claim the node.
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
        thread.handed_off();
    }

    fn heavy_waits(thread: &mut ThreadState) {
        thread.wake_heavy = true;
    }

    fn released(thread: &mut ThreadState) {
        thread.end_drain();
        thread.send_wakes();
    }
}

/// Prefetches the members that a node's commands use in the first command's key.
fn prefetch_node(job: &Job, held: &mut Held<'_, Job>) {
    let Some(Delegated { command, routed: Some(routed), .. }) = job.commands.get(job.n_run).copied() else {
        return;
    };
    if command_lookup::row(command).spec.members.is_none() {
        return;
    }
    let shard = held.shard(routed.shard);
    shard.begin(job.session.db, job.now);
    let key = Key { bytes: job.next_command().1.get(1), routed };
    let commands = job.commands_from(job.n_run).take_while(|(delegated, _)| delegated.routed == Some(routed));
    step::prefetch_members(
        shard,
        &key,
        commands.map(|(delegated, words)| (command_lookup::row(delegated.command), words)),
    );
}

/// Writes the reply to a command that has panicked, if its client wants replies.
pub fn answer_panic(
    out: &mut Vec<u8>,
    session: &mut Session,
    command: Option<&'static Registered>,
    thread: &ThreadState,
) {
    let start = out.len();
    write_panic_error(out, session.resp, command, thread);
    session.drop_unwanted(start, out);
}

/// Writes the error that the client of a panicked command receives.
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
