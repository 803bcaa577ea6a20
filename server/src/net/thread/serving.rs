//! Runs the commands of a batch, in place on idle shards, otherwise with a node.

use std::{cell::Cell, hint::cold_path, ops::Range, sync::atomic::Ordering};

use braid_protocol::{reply::Reply, request::ProtocolError, value::skip_reply};
use braid_storage::{
    entry::{db::Db, key::Key, time::Millis},
    keyspace::shard::Shard,
    memory::allocator,
    sync::{
        coordinator::{Route, Weight},
        executor::Node,
    },
};

use super::{
    IoThread,
    batch::{InputFor, ParsedCommand, Turn},
    splitting,
};
use crate::{
    access::Context,
    catalog::{Args, CommandError, Denial, Flags, Words},
    client::{
        connection::{Closing, Connection},
        footprint::Part,
        node::{Job, Task},
        record::ClientRecord,
        session::{SaveOrder, Session, SessionRequest, TimeAccounting},
    },
    clock::Instant,
    command::{self, BeginSweep, Call, Found, Look, Method, Registered, Run, TABLE, Work},
    run::{
        budget::Budget,
        command_lookup, finish,
        gates::{self, Admission},
        job, logging, offload,
        route::{self, Needs},
        step,
        timing::{self, Taken},
        unit::{self, Unit, UnitEnd},
    },
    shared::{server::Server, thread_state::ThreadState},
    verbose, warning_seldom,
};

/// The way in which the run of a batch ended.
enum BatchEnd {
    /// All commands ran.
    Ran,
    /// A command is under way elsewhere. The input continues at this offset.
    Parked(usize),
    /// The last command has run, but its reply or the next command waits. The input continues at this offset.
    Paused(usize),
    /// The connection closes, and no later command of it runs.
    Closed,
}

/// The reason why commands stopped running in place, one directly after the other.
#[derive(Clone, Copy, PartialEq, Eq)]
enum GroupEnd {
    No,
    /// Each command may need work before or after it. The shard is observed, the client tracks keys, or there
    /// are monitoring clients, a pause or killed clients.
    ByObservers,
    /// The next command is too much work for a hold.
    ByLongWork,
    /// The replies have reached the limit of a turn.
    ByLongReplies,
}

/// The decision of the gates about a command.
enum Gate {
    /// The command runs.
    Open(&'static Registered),
    /// The command has its reply: it is refused, or queued for EXEC.
    Answered,
    /// The command ends the batch.
    Shut(BatchEnd),
}

/// The size of a request that is moved, not copied, and runs on a heavy-work thread.
///
/// Such a request is the first of its input, because all input before it has run when its last bytes arrive.
const LONG_REQUEST_BYTES: usize = 4 << 20;

/// The bytes of replies after which a connection has had its share of a turn.
///
/// About this much is copied in a tenth of a millisecond.
const TURN_REPLY_BYTES: usize = 1 << 20;

/// The position at which a batch continues.
enum Next {
    /// At this command of the batch.
    Command(usize),
    /// Later: a command is under way elsewhere. The input after it starts here.
    Parked { input_from: usize },
}

impl IoThread {
    /// Runs the complete requests of `input`, and returns how many bytes are done.
    pub(super) fn serve(
        &mut self,
        connection: &mut Connection,
        input: &mut [u8],
        out: &mut Vec<u8>,
    ) -> usize {
        let server = self.server();
        let mut began = Instant::now();
        let (now, uptime_millis) = server.clock.times_at(began);
        connection.record.active_at.store(uptime_millis, Ordering::Relaxed);
        if self.serving.woke_at.is_some() {
            self.begin_split(connection, began);
        }
        self.serving.budget = Budget::of_batch();
        let mut batch = self.serving.batch.take().unwrap_or_default();
        let mut done = 0;
        loop {
            let parsed = batch.parse(server, connection, input, done);
            let ended = if batch.commands.is_empty() {
                BatchEnd::Ran
            } else {
                batch.prefetch(server, connection);
                let turn = Turn { server, batch: &batch, input, now };
                self.run_timed(connection, turn, &mut began, out)
            };
            match (ended, parsed) {
                (BatchEnd::Parked(at) | BatchEnd::Paused(at), parsed) => {
                    // Requests that were parsed from `at` on are parsed again.
                    if parsed != Ok(at) {
                        connection.parser.rewind();
                    }
                    done = at;
                    break;
                }
                (BatchEnd::Closed, _) => {
                    connection.close(Closing::AfterReplies);
                    done = input.len();
                    break;
                }
                (BatchEnd::Ran, Ok(end)) if end == done => break,
                // Later requests do not run: the client is closed before it receives any of these replies.
                (BatchEnd::Ran, Ok(_)) if out.len() > self.output_limit(connection) => {
                    connection.close(Closing::AfterReplies);
                    done = input.len();
                    break;
                }
                (BatchEnd::Ran, Ok(end))
                    if out.len() > TURN_REPLY_BYTES || self.serving.budget.is_spent() =>
                {
                    done = end;
                    connection.is_behind = done < input.len();
                    break;
                }
                (BatchEnd::Ran, Ok(end)) => {
                    done = end;
                    // Usually this was all the input.
                    if done == input.len() {
                        break;
                    }
                }
                (BatchEnd::Ran, Err(error)) => {
                    report_protocol_error(connection, error, out, &self.worker.thread);
                    done = input.len();
                    break;
                }
            }
        }
        if connection.link.is_some() {
            // A replica's first command ends its batch.
            connection.is_behind = done < input.len();
        }
        if let Some(node) = connection.state.node_mut() {
            let session = &mut node.job.session;
            session.publish(None);
            if session.n_commands > 0 {
                session.count_commands();
            }
        }
        self.serving.batch = Some(batch);
        done
    }

    /// Runs a batch, and records its time and its commands.
    ///
    /// `began` is the start of the batch on entry, and its end on return.
    #[inline(always)]
    fn run_timed(
        &mut self,
        connection: &mut Connection,
        turn: Turn<'_>,
        began: &mut Instant,
        out: &mut Vec<u8>,
    ) -> BatchEnd {
        let batch = turn.batch;
        let accounted_nanos = self.worker.thread.accounted_nanos.get();
        self.serving.budget.renew();
        let long = match batch.commands[0].n_bytes() {
            LONG_REQUEST_BYTES.. => self.run_long_request(connection, turn, out),
            _ => None,
        };
        let ended = match long {
            Some(ended) => ended,
            None => self.run_batch(connection, turn, out),
        };
        let ended_at = Instant::now();
        self.serving.ended_at = Some(ended_at);
        if let Some(split) = &mut connection.split {
            cold_path();
            splitting::ran(split, &batch.commands[0], ended_at);
        }
        let elapsed = ended_at - std::mem::replace(began, ended_at);
        let parked_at = if let BatchEnd::Parked(at) | BatchEnd::Paused(at) = ended { Some(at) } else { None };
        let n_begun = batch.n_begun(parked_at);
        let stats = self.worker.thread.stats();
        let nanos = elapsed.as_nanos() as u64;
        batch.share_out_time(nanos, stats, n_begun);
        if nanos >= stats.thresholds.together_nanos.load(Ordering::Relaxed) {
            self.note_long_batch(connection, turn, n_begun, nanos, accounted_nanos);
        }
        connection.record.count_commands(batch.count(n_begun));
        ended
    }

    /// Attributes the time of a long batch to one of its first commands.
    #[cold]
    fn note_long_batch(
        &self,
        connection: &Connection,
        turn: Turn<'_>,
        n_begun: usize,
        nanos: u64,
        accounted_nanos: u64,
    ) {
        let thread = &self.worker.thread;
        let rest_nanos = nanos.saturating_sub(thread.accounted_nanos.get() - accounted_nanos);
        if rest_nanos >= thread.stats().thresholds.together_nanos.load(Ordering::Relaxed) {
            let measured = turn.batch.measured(n_begun).filter_map(|parsed| parsed.known(turn));
            timing::note_longest(measured, &connection.record, Taken { nanos, rest_nanos }, thread);
        }
    }

    fn run_batch(&mut self, connection: &mut Connection, turn: Turn<'_>, out: &mut Vec<u8>) -> BatchEnd {
        let Turn { batch, now, .. } = turn;
        connection.state.ready().job.now = now;
        let mut index = 0;
        // The last command that ran on one shard. It changes nothing that admits the next command like it.
        let mut before: Option<&ParsedCommand> = None;
        while let Some(parsed) = batch.commands.get(index) {
            let start = out.len();
            let is_admitted = before.take().is_some_and(|before| parsed.is_like(before))
                && self.admits_another(connection, turn, parsed);
            let command = match parsed.found {
                Found::Command(command) if is_admitted => command,
                _ => match self.pass_gates(connection, turn, index, out) {
                    Gate::Open(command) => command,
                    Gate::Answered => {
                        batch.leave_unmeasured(index);
                        index += 1;
                        continue;
                    }
                    Gate::Shut(ended) => return ended,
                },
            };
            connection.record.ran(command.id);
            if let Run::Shard(_) = command.spec.run {
                before = Some(parsed);
            }
            match self.run_command(connection, turn, index, command, out) {
                Next::Parked { input_from } => return BatchEnd::Parked(input_from),
                Next::Command(next) => index = next,
            }
            // Other commands may have run with this one, or none may have run.
            let end = batch.commands[..index].last().map_or(parsed.start, |last| last.end);
            if let Some(ended) = self.after_command(connection, command, end, out, start) {
                if let BatchEnd::Parked(_) = ended {
                    batch.leave_unmeasured(index - 1);
                }
                return ended;
            }
            if (out.len() > TURN_REPLY_BYTES || self.serving.budget.is_spent())
                && index < batch.commands.len()
            {
                cold_path();
                connection.is_behind = true;
                return BatchEnd::Paused(end);
            }
        }
        BatchEnd::Ran
    }

    /// Whether a command like the one before it may run in the same way.
    ///
    /// This is a function of its own because equal commands in a row do not come here.
    #[inline(never)]
    fn admits_another(&self, connection: &Connection, turn: Turn<'_>, parsed: &ParsedCommand) -> bool {
        let Some(node) = connection.state.node() else { return false };
        let session = &node.job.session;
        turn.server.attention.is_idle(session.rights_as_of)
            // The previous command may have been admitted with rights that were looked up again later, under
            // its hold.
            && session.admitted_as_of == session.rights_as_of
            && parsed.is_allowed(session, turn)
    }

    /// Queues or offloads the first command of a batch, which is very long, if possible.
    ///
    /// The caller of [`IoThread::serve`] passes the input to [its new owner](InputFor).
    #[cold]
    fn run_long_request(
        &mut self,
        connection: &mut Connection,
        turn: Turn<'_>,
        out: &mut Vec<u8>,
    ) -> Option<BatchEnd> {
        let Turn { server, batch, now, .. } = turn;
        let parsed = &batch.commands[0];
        let words = turn.words(parsed);
        if server.durability.is_full() {
            let slot = connection.state.ready().job.session.origin.slot;
            self.await_room_in_log(slot, connection);
            return Some(BatchEnd::Paused(parsed.start));
        }
        // The request itself is counted already. The value is a second copy of it until the command has
        // ended.
        let n_more = words.iter().map(<[u8]>::len).sum::<usize>();
        if self.own.config.maxmemory.is_some() && server.memory.room() < n_more as i64 {
            self.housekeeping.eviction.make_room(&mut self.worker, n_more);
        }
        let node = connection.state.ready();
        // Deadlines count from now. The command's shards may have no time yet, or the time of their last use.
        node.job.now = now;
        let session = &mut node.job.session;
        if !gates::renew(server, session) {
            return Some(BatchEnd::Closed);
        }
        match gates::admit(server, session, &parsed.found, words) {
            Ok((command, Admission::Queue)) => {
                connection.record.ran(command.id);
                batch.leave_unmeasured(0);
                let queue = session.queue.as_mut().expect("queueing is admitted in MULTI only");
                queue.push_without_bytes(command.id, words, parsed.start);
                self.serving.input_for = InputFor::Queue;
                let start = out.len();
                Reply::new(out, session.resp).simple("QUEUED");
                session.drop_unwanted(start, out);
                Some(BatchEnd::Paused(parsed.end))
            }
            Ok((command, Admission::Run))
                if matches!(
                    command.spec.run,
                    Run::Shard(_) | Run::Transaction(_) | Run::InParts(_) | Run::Script(_)
                ) =>
            {
                connection.record.ran(command.id);
                batch.leave_unmeasured(0);
                self.worker.thread.stats().delegated.add(1);
                let mut node = connection.state.depart();
                node.job.is_timed = true;
                node.job.push_without_bytes(command.id, words, parsed.routed, parsed.start);
                self.serving.input_for = InputFor::Node(node);
                Some(BatchEnd::Parked(parsed.end))
            }
            _ => None,
        }
    }

    /// Whether the input that has been served belongs to another owner than its connection.
    pub(super) fn has_moved_input(&self) -> bool {
        !matches!(self.serving.input_for, InputFor::Connection)
    }

    /// Passes the input to its owner, and returns the part that the connection keeps.
    pub(super) fn give_input(
        &mut self,
        connection: &mut Connection,
        mut input: Vec<u8>,
        consumed: usize,
    ) -> Vec<u8> {
        let input_for = std::mem::take(&mut self.serving.input_for);
        if let InputFor::Connection = input_for {
            input.drain(..consumed);
            return input;
        }
        let rest = input[consumed..].to_vec();
        match input_for {
            InputFor::Connection => {}
            InputFor::Queue => {
                let session = connection.state.node_mut().map(|node| &mut node.job.session);
                let queue = session.and_then(|session| session.queue.as_mut());
                queue.expect("the request has just been queued").adopt(input);
            }
            InputFor::Node(mut node) => {
                if self.server().durability.aof.is_writing() {
                    connection.promised = consumed;
                    self.server().durability.promise(consumed);
                }
                node.job.requests.adopt(input);
                let route = offload::send_long_request(&mut node.job, self.server());
                node.set_route(route);
                self.worker.submit(node);
            }
        }
        rest
    }

    /// Evicts keys if a command must wait for eviction.
    fn make_room_for(&mut self, found: &Found, session: &Session, server: &Server) {
        // A request was counted when it arrived. A transaction adds the data of all its commands at once.
        let wanted = match found {
            Found::Command(command) => gates::brought_by_exec(server, command, session),
            _ => 0,
        };
        // A command that only reads would wait because of other clients' writes. Threads continue that
        // eviction at the end of each turn.
        let reads = || matches!(found, Found::Command(command) if command.has(Flags::READONLY));
        let is_due = allocator::is_above_limit() && !reads();
        if is_due || wanted > 0 && server.memory.room() < wanted as i64 {
            self.housekeeping.eviction.make_room(&mut self.worker, wanted);
        }
    }

    /// Passes a command through the gates, and handles a command that does not run now.
    #[inline(never)]
    fn pass_gates(
        &mut self,
        connection: &mut Connection,
        turn: Turn<'_>,
        index: usize,
        out: &mut Vec<u8>,
    ) -> Gate {
        let Turn { server, batch, .. } = turn;
        let parsed = &batch.commands[index];
        let words = turn.words(parsed);
        let node = connection.state.ready();
        let session = &mut node.job.session;
        if !gates::renew(server, session) {
            return Gate::Shut(BatchEnd::Closed);
        }
        self.make_room_for(&parsed.found, session, server);
        let (command, admission) = match gates::admit(server, session, &parsed.found, words) {
            Ok(admitted) => admitted,
            Err(refusal) => {
                match parsed.found {
                    Found::Command(refused) => connection.record.ran(refused.id),
                    Found::Unknown | Found::UnknownSubcommand(_) => connection.record.named_no_command(),
                }
                if let CommandError::Denied(denial) = refusal {
                    self.note_denial(session, denial, words);
                }
                match parsed.found {
                    Found::Command(exec) if exec.runs_queue() => {
                        session.exec_refusal = Some(refusal);
                        (exec, Admission::Run)
                    }
                    Found::Unknown if is_cross_protocol(words) => {
                        report_cross_protocol(connection);
                        return Gate::Shut(BatchEnd::Closed);
                    }
                    _ => {
                        self.refuse(session, &parsed.found, &refusal, out);
                        return Gate::Answered;
                    }
                }
            }
        };
        match admission {
            Admission::Run => Gate::Open(command),
            Admission::Queue => {
                connection.record.ran(command.id);
                let queue = session.queue.as_mut().expect("queueing is admitted in MULTI only");
                command_lookup::enqueue(queue, command, words);
                let start = out.len();
                Reply::new(out, session.resp).simple("QUEUED");
                session.drop_unwanted(start, out);
                Gate::Answered
            }
            Admission::Postpone => {
                connection.record.ran(command.id);
                let node = detach(connection, turn, index..index + 1, true);
                self.postpone(connection, node);
                Gate::Shut(BatchEnd::Parked(parsed.end))
            }
        }
    }

    /// Runs an admitted command in its place, and perhaps commands after it.
    #[inline(always)]
    fn run_command(
        &mut self,
        connection: &mut Connection,
        turn: Turn<'_>,
        index: usize,
        command: &'static Registered,
        out: &mut Vec<u8>,
    ) -> Next {
        let Turn { server, batch, now, .. } = turn;
        let parsed = &batch.commands[index];
        match command.spec.run {
            Run::Shard(_) => self.run_alike(connection, turn, index, out),
            Run::Session(_) if route::adds_up_much(server, command) => {
                let mut node = detach(connection, turn, index..index + 1, true);
                node.set_route(Route::default().with_weight(Weight::Heavy));
                self.worker.submit(node);
                Next::Parked { input_from: parsed.end }
            }
            Run::Session(_) | Run::Container => {
                // CLIENT LIST shows its own client as of the previous command.
                connection.record.count_commands(batch.count(index));
                if self.run_on_session(connection, turn, command, parsed, out) {
                    return Next::Command(index + 1);
                }
                // The last snapshot would lack the effects of this command.
                cold_path();
                let node = detach(connection, turn, index..index + 1, true);
                self.postpone(connection, node);
                Next::Parked { input_from: parsed.end }
            }
            Run::Transaction(_)
            | Run::InParts(_)
            | Run::Script(_)
            | Run::Own(_)
            | Run::Queue
            | Run::Everything(_) => {
                let n_left = self.run_transaction(connection, turn, command, index, out);
                if n_left == 0 {
                    return Next::Command(index + 1);
                }
                Next::Parked { input_from: batch.commands[index + n_left - 1].end }
            }
            Run::EachShard { begin, .. } => self.begin_sweep(connection, turn, index, begin, out),
            Run::Barrier(_) if command::turns_log_on(turn.words(parsed), server) => {
                let node = detach(connection, turn, index..index + 1, true);
                self.submit_commands(node);
                Next::Parked { input_from: parsed.end }
            }
            Run::Barrier(_) => {
                self.run_barrier(server, connection, command, turn.words(parsed), now);
                Next::Parked { input_from: parsed.end }
            }
        }
    }

    /// Runs a command that needs no shard. Returns false if it must run again later.
    #[inline(never)]
    fn run_on_session(
        &self,
        connection: &mut Connection,
        turn: Turn<'_>,
        command: &'static Registered,
        parsed: &ParsedCommand,
        out: &mut Vec<u8>,
    ) -> bool {
        // CLIENT LIST shows its own client while its command is in the buffer.
        connection.record.footprint.set(Part::Input, turn.input.len());
        let session = &mut connection.state.ready().job.session;
        let (words, thread) = (turn.words(parsed), &self.worker.thread);
        let mut call = Call::of_session(&TABLE, turn.server, session, turn.now, thread);
        step::answer(&mut call, command, words, parsed.routed, out, thread);
        call.gave_up.is_none()
    }

    /// Logs a command that the client's user may not run.
    #[cold]
    fn note_denial(&self, session: &Session, denial: Denial, words: Words<'_>) {
        session.publish(None);
        let context = if session.queue.is_some() { Context::Multi } else { Context::Toplevel };
        command::note_denial(session, denial, words, context, &TABLE, &self.worker.thread);
    }

    /// Replies with the reason why a command does not run.
    ///
    /// EXEC will refuse if the command was to be queued.
    #[cold]
    fn refuse(&self, session: &mut Session, found: &Found, refusal: &CommandError, out: &mut Vec<u8>) {
        let start = out.len();
        if let Some(queue) = &mut session.queue {
            queue.refused = true;
        }
        if let Found::Command(command) = found {
            self.worker.thread.stats().commands[command.id.index()].rejected.add(1);
        }
        step::refuse(refusal, session, out, &self.worker.thread);
        session.drop_unwanted(start, out);
    }

    /// Runs the command at `first` of the batch, and the similar commands after it.
    ///
    /// Commands in a row on the same shard run under one hold, or are delegated to the shard's holder.
    fn run_alike(
        &mut self,
        connection: &mut Connection,
        turn: Turn<'_>,
        first: usize,
        out: &mut Vec<u8>,
    ) -> Next {
        let Turn { server, batch, .. } = turn;
        let session = &mut connection.state.ready().job.session;
        let commands = &batch.commands[..];
        // Commands that run here change neither.
        let (is_restricted, rights_as_of) = (session.rights.is_some(), session.rights_as_of);
        let n_before = out.len();
        let budget = &self.serving.budget;
        let (next, n_kept) = (Cell::new(first), Cell::new(n_before));
        let run = InPlace { turn, budget, rights_as_of, next, n_kept };
        let (held, group) = loop {
            let begin = run.next.get();
            let leader = &commands[begin];
            let routed = leader.routed.expect("a command on one shard has its key first");
            let follows = |parsed: &&ParsedCommand| parsed.follows(leader, routed, session, turn);
            let end = begin + 1 + commands[begin + 1..].iter().take_while(follows).count();
            let held = self
                .worker
                .with_shard(routed.shard, |shard, thread| run.group(begin..end, session, shard, out, thread));
            if let Some(Ok(GroupEnd::No)) = held
                && let Some(behind) = commands.get(end)
                // The admission of one command holds for the next one, except for its keys.
                && behind.is_like(leader)
                && server.attention.is_idle(rights_as_of)
                && (!is_restricted || behind.is_allowed(session, turn))
            {
                continue;
            }
            break (held, begin..end);
        };
        // No partial reply of a failed command is sent.
        out.truncate(run.n_kept.get());
        let next = run.next.get();
        self.note_sizes(&connection.record, turn, first..next, &out[n_before..]);
        match held {
            Some(Ok(GroupEnd::No | GroupEnd::ByLongReplies)) => Next::Command(next),
            // Observers request notices about this command's replies, not about earlier replies.
            Some(Ok(GroupEnd::ByObservers)) if next > first => Next::Command(next),
            Some(Ok(GroupEnd::ByObservers)) => self.run_group_of_units(connection, turn, group, out),
            Some(Ok(GroupEnd::ByLongWork)) => self.leave_group(connection, turn, next..group.end, true),
            Some(Err(_)) => {
                let failed = commands[next].command();
                job::answer_panic(out, session, Some(failed), &self.worker.thread);
                Next::Command(next + 1)
            }
            // These commands only wait for their turn. Their share of the batch's time suffices, so the clock
            // is not read.
            None => self.leave_group(connection, turn, group, false),
        }
    }

    /// Records the large requests and replies of commands that ran directly after one another.
    #[inline(always)]
    fn note_sizes(&self, client: &ClientRecord, turn: Turn<'_>, ran: Range<usize>, replies: &[u8]) {
        let commands = &turn.batch.commands[ran];
        let (Some(first), Some(last)) = (commands.first(), commands.last()) else { return };
        let n_bytes = last.end - first.start + replies.len();
        if n_bytes >= self.worker.thread.stats().thresholds.either_bytes.load(Ordering::Relaxed) {
            cold_path();
            note_sizes_of_each(client, turn, commands, replies, &self.worker.thread);
        }
    }

    /// Runs commands on one shard under one hold, each as a complete unit.
    #[inline(never)]
    fn run_group_of_units(
        &mut self,
        connection: &mut Connection,
        turn: Turn<'_>,
        group: Range<usize>,
        out: &mut Vec<u8>,
    ) -> Next {
        let node = connection.state.ready();
        let session = &mut node.job.session;
        let leader = &turn.batch.commands[group.start];
        let routed = leader.routed.expect("a command on one shard has its key first");
        // A notification to the client has its place between the replies to two of its commands.
        let group = if session.record.is_listener() { group.start..group.start + 1 } else { group };
        let budget = &self.serving.budget;
        let next = Cell::new(group.start);
        let n_kept = Cell::new(out.len());
        let held = self.worker.with_shards(&[routed.shard], |held, thread| {
            if leader.reaches_for_members() {
                fetch_members(
                    held.shard(routed.shard),
                    turn,
                    &turn.batch.commands[group.clone()],
                    session.db,
                );
            }
            for parsed in &turn.batch.commands[group.clone()] {
                let unit = Unit {
                    command: parsed.command(),
                    words: turn.words(parsed),
                    first: parsed.routed,
                    routed: &[],
                    is_fetched: false,
                    sampled: turn.now,
                    was_shown: false,
                    is_in_place: true,
                    is_served: false,
                    wants_lane: false,
                    budget,
                };
                match unit::run(&unit, session, held, out, thread) {
                    UnitEnd::Ran => {}
                    ended => return ended,
                }
                next.set(next.get() + 1);
                n_kept.set(out.len());
                // A request of the command is served before the next command runs.
                let is_over = out.len() > TURN_REPLY_BYTES || budget.is_spent();
                if session.closing || session.request.get().is_some() || is_over {
                    break;
                }
            }
            UnitEnd::Ran
        });
        match held {
            Some(Ok(UnitEnd::Ran)) => {
                self.has_notifications_for(session);
                Next::Command(next.get())
            }
            Some(Ok(UnitEnd::Killed)) => {
                session.closing = true;
                Next::Command(group.end)
            }
            // The gate holds the next command back.
            Some(Ok(UnitEnd::Paused)) => Next::Command(next.get()),
            Some(Ok(UnitEnd::Waits(_) | UnitEnd::Needs(_) | UnitEnd::BetweenParts | UnitEnd::TooLong(_))) => {
                self.leave_group(connection, turn, next.get()..group.end, true)
            }
            Some(Err(_)) => {
                out.truncate(n_kept.get());
                let failed = turn.batch.commands[next.get()].command();
                job::answer_panic(out, session, Some(failed), &self.worker.thread);
                Next::Command(next.get() + 1)
            }
            None => self.leave_group(connection, turn, next.get()..group.end, false),
        }
    }

    /// Makes a listening client's connection read its notifications before the next commands run.
    ///
    /// They are the notifications of its last commands.
    fn has_notifications_for(&self, session: &mut Session) {
        let own = &self.server().threads[self.worker.thread.index];
        if session.record.is_listener() && !own.notifications.is_empty() {
            session.ask(SessionRequest::ReadNotifications);
        }
    }

    /// Delegates commands of one shard to its holder. With `is_timed` each is timed by itself, and not with
    /// the batch.
    #[inline(never)]
    fn leave_group(
        &mut self,
        connection: &mut Connection,
        turn: Turn<'_>,
        group: Range<usize>,
        is_timed: bool,
    ) -> Next {
        let commands = &turn.batch.commands[group.clone()];
        self.worker.thread.stats().delegated.add(commands.len() as u64);
        let mut node = detach(connection, turn, group, is_timed);
        let routed = commands[0].routed.expect("a command on one shard has its key first");
        node.set_route(Route::one(routed.shard));
        splitting::follow(&mut node, connection);
        self.worker.submit(node);
        Next::Parked { input_from: commands[commands.len() - 1].end }
    }

    /// Runs a command over several shards if all are idle. Otherwise leaves it to the coordinator.
    ///
    /// A script that is left takes the scripts after it along. Returns how many commands were left.
    #[inline(never)]
    fn run_transaction(
        &mut self,
        connection: &mut Connection,
        turn: Turn<'_>,
        command: &'static Registered,
        index: usize,
        out: &mut Vec<u8>,
    ) -> usize {
        let Turn { server, batch, now, .. } = turn;
        let parsed = &batch.commands[index];
        let (words, first) = (turn.words(parsed), parsed.routed);
        let node = connection.state.ready();
        let session = &mut node.job.session;
        let mut route = Route::default().with_weight(Weight::Heavy);
        let ahead = batch.keys_of(index);
        let mut needs = Needs::of_keys(ahead);
        let expected = needs.foresee(server, command, words);
        if !expected.is_long && !route::is_heavy_beside(server, session, command, words) {
            if ahead.is_empty() {
                needs.add_unforeseen(server, session, command, words);
            }
            if let Some(unfetched @ [_, _, ..]) = needs.keys.get(ahead.len()..) {
                // A script or a transaction would look them up one after the other.
                for &key in unfetched {
                    server.engine.prefetch(key.shard);
                    server.keyspace.prefetch_root(session.db, key);
                }
                server.keyspace.prefetch(session.db, unfetched);
            }
            let shards = needs.shards(server);
            let start = out.len();
            let budget = &self.serving.budget;
            let held = self.worker.with_shards(&shards, |held, thread| {
                let unit = Unit {
                    command,
                    words,
                    first,
                    routed: &needs.keys,
                    is_fetched: !ahead.is_empty(),
                    sampled: now,
                    was_shown: false,
                    is_in_place: true,
                    is_served: false,
                    wants_lane: expected.wants_lane,
                    budget,
                };
                unit::run(&unit, session, held, out, thread)
            });
            route = match held {
                Some(Ok(UnitEnd::Ran)) => {
                    self.has_notifications_for(session);
                    return 0;
                }
                Some(Ok(UnitEnd::Killed)) => {
                    session.closing = true;
                    return 0;
                }
                Some(Err(_)) => {
                    out.truncate(start);
                    job::answer_panic(out, session, Some(command), &self.worker.thread);
                    return 0;
                }
                Some(Ok(UnitEnd::Needs(further))) => further,
                // The thread that continues the command determines its next part.
                Some(Ok(UnitEnd::BetweenParts)) => Route::default().with_weight(Weight::Heavy),
                Some(Ok(UnitEnd::TooLong(Method::Held))) => Route::new(shards).with_weight(Weight::Heavy),
                // The node handles a shard that is held, a pause and a wait.
                Some(Ok(UnitEnd::Paused | UnitEnd::Waits(_) | UnitEnd::TooLong(_))) => Route::new(shards),
                None => needs.route(server),
            };
        }
        let n_left = n_scripts_together(turn, index, command, session);
        self.worker.thread.stats().delegated.add(n_left as u64);
        let mut node = detach(connection, turn, index..index + n_left, true);
        node.set_route(route);
        splitting::follow(&mut node, connection);
        self.worker.submit(node);
        n_left
    }

    /// Runs a command whose reply waits until all earlier commands have ended.
    #[inline(never)]
    fn run_barrier(
        &mut self,
        server: &Server,
        connection: &mut Connection,
        command: &'static Registered,
        words: Words<'_>,
        now: Millis,
    ) {
        let mut node = connection.state.depart();
        let Job { session, reply, .. } = &mut node.job;
        let mut call = Call::of_session(&TABLE, server, session, now, &self.worker.thread);
        step::answer(&mut call, command, words, None, reply, &self.worker.thread);
        node.job.task = Task::Barrier;
        node.set_route(Route::new(server.engine.all_shards()));
        self.worker.submit(node);
    }

    /// Starts a command that visits the shards one after the other.
    #[inline(never)]
    fn begin_sweep(
        &mut self,
        connection: &mut Connection,
        turn: Turn<'_>,
        index: usize,
        begin: BeginSweep,
        out: &mut Vec<u8>,
    ) -> Next {
        let Turn { server, batch, now, .. } = turn;
        let parsed = &batch.commands[index];
        let Found::Command(command) = parsed.found else {
            unreachable!("only a known command visits shards")
        };
        let session = &mut connection.state.ready().job.session;
        let args = command.args(turn.words(parsed), server.keyspace.router(), None);
        let stats = self.worker.thread.stats();
        let mut call = Call::of_session(&TABLE, server, session, now, &self.worker.thread);
        match step::survive(command, || begin(&mut call, args)) {
            Ok(sweep) => {
                finish::show(command.spec.flags, turn.words(parsed), session, &self.worker.thread);
                batch.leave_unmeasured(index);
                let sweep = sweep.with_limit(stats.output_limit.load(Ordering::Relaxed));
                stats.ran(command.id, false);
                session.n_commands += 1;
                let mut node = connection.state.depart();
                node.job.push(command.id, turn.words(parsed), None);
                node.job.task = Task::Sweep(Box::new(sweep));
                self.sweeps.push_back(node);
                Next::Parked { input_from: parsed.end }
            }
            Err(error) => {
                step::conclude(command, Err(error), out.len(), session, out, &self.worker.thread);
                Next::Command(index + 1)
            }
        }
    }

    /// Serves the request that a command has made to its connection.
    ///
    /// The reply, from `start` on, waits as long as the connection does.
    fn after_command(
        &mut self,
        connection: &mut Connection,
        command: &'static Registered,
        input_from: usize,
        out: &mut Vec<u8>,
        start: usize,
    ) -> Option<BatchEnd> {
        let node = connection.state.ready();
        let session = &mut node.job.session;
        // The thread must know of its subscriptions before the connection can close.
        if session.closing && session.request.get() != Some(SessionRequest::ReadNotifications) {
            return Some(BatchEnd::Closed);
        }
        if connection.parser.limits().authenticated != session.authenticated {
            cold_path();
            connection.parser.set_authenticated(session.authenticated);
        }
        let request = session.request.take()?;
        if session.link.is_some() {
            self.follow(connection);
        }
        if request == SessionRequest::Follow {
            // Replies to later commands must not reach the replica.
            return Some(BatchEnd::Paused(input_from));
        }
        if request == SessionRequest::AwaitRoom
            || request == SessionRequest::ReadNotifications && self.has_read_notifications()
        {
            return self.hold_for_room(connection).then_some(BatchEnd::Paused(input_from));
        }
        let mut node = connection.state.depart();
        node.job.reply.extend_from_slice(&out[start..]);
        out.truncate(start);
        // The reply leaves with the node, and still waits for the log.
        node.job.ticket = node.job.ticket.max(self.worker.thread.ticket.get());
        if let SessionRequest::Save { order, is_answered } = request {
            node.job.session.ask(SessionRequest::ReadNotifications);
            node.job.session.n_commands += 1;
            self.server().order_save(order, Some((node, is_answered)));
            return Some(BatchEnd::Parked(input_from));
        }
        if let SessionRequest::AwaitSync(wanted) = request {
            node.job.session.ask(SessionRequest::ReadNotifications);
            node.job.session.n_commands += 1;
            let ticket = connection.last_ticket.max(self.worker.thread.ticket.get());
            self.await_sync(connection, node, wanted, ticket);
            return Some(BatchEnd::Parked(input_from));
        }
        let SessionRequest::Sleep { millis, counts } = request else {
            self.give_back_after_notifications(connection, node);
            return Some(BatchEnd::Paused(input_from));
        };
        node.job.session.ask(SessionRequest::ReadNotifications);
        // The batch does not count this command.
        node.job.session.n_commands += 1;
        self.rest(connection, node, millis, (counts == TimeAccounting::AsWork).then_some(command));
        Some(BatchEnd::Parked(input_from))
    }

    /// Submits the commands of a node that was held back.
    pub(super) fn submit_commands(&mut self, mut node: Box<Node<Job>>) {
        let server = self.server();
        let (command, words) = command_lookup::next(&node.job);
        // The saver sends the node back to this function.
        if matches!(command.spec.run, Run::Barrier(_))
            && node.job.session.log_begun.is_none()
            && command::turns_log_on(words, server)
        {
            return server.order_save(SaveOrder::BeginLog, Some((node, true)));
        }
        // The command begins now: time has passed since it was read.
        node.job.now = server.clock.now();
        node.set_route(node.job.route(server));
        self.worker.submit(node);
    }
}

/// A run of commands on one shard, directly one after the other under one hold.
struct InPlace<'a> {
    turn: Turn<'a>,
    budget: &'a Budget,
    /// The version of the rights with which they were admitted.
    rights_as_of: u64,
    /// The command that runs next.
    next: Cell<usize>,
    /// The length of the replies to commands that have ended.
    n_kept: Cell<usize>,
}

impl InPlace<'_> {
    /// Runs a group of commands, as far as they may run like this.
    #[inline(always)]
    fn group(
        &self,
        group: Range<usize>,
        session: &mut Session,
        shard: &mut Shard,
        out: &mut Vec<u8>,
        thread: &ThreadState,
    ) -> GroupEnd {
        let Turn { server, batch, now, .. } = self.turn;
        let commands = &batch.commands[group];
        // Checked once for all of them: a thread that changes one of these takes the shard for a moment
        // afterwards.
        let is_logged = shard.is_only_logged();
        if shard.has_observers() != is_logged
            || session.tracking.is_some()
            || !server.attention.is_idle(self.rights_as_of)
            || is_logged && !are_verbatim(commands)
        {
            cold_path();
            return GroupEnd::ByObservers;
        }
        if commands[0].reaches_for_members() {
            fetch_members(shard, self.turn, commands, session.db);
        }
        let is_saving = shard.is_saving();
        for parsed in commands {
            let (Found::Command(command), Some(routed)) = (&parsed.found, parsed.routed) else {
                unreachable!("a group is made of known commands on a key")
            };
            let Run::Shard(run) = command.spec.run else {
                unreachable!("a group is made of commands on one shard")
            };
            shard.start_at(now, || server.clock.now());
            if session.no_touch {
                cold_path();
                shard.leave_untouched();
            }
            if is_saving {
                cold_path();
                shard.refuse_unsaved();
            }
            shard.go_to(session.db);
            if let Work::Grows { .. } = command.spec.work
                && !is_short(self.budget, shard, self.turn, parsed)
            {
                return GroupEnd::ByLongWork;
            }
            let start = out.len();
            let words = self.turn.words(parsed);
            let args = Args::new(words, server.keyspace.router(), Some(routed));
            let outcome = run(shard, args, &mut Reply::new(out, session.resp));
            if matches!(&outcome, Err(error) if error.is_too_much()) {
                cold_path();
                out.truncate(start);
                return GroupEnd::ByLongWork;
            }
            step::conclude(command, outcome, start, session, out, thread);
            if is_logged {
                logging::ran_in_place(session.db, command, words, thread);
            }
            self.next.set(self.next.get() + 1);
            self.n_kept.set(out.len());
            if out.len() > TURN_REPLY_BYTES {
                cold_path();
                return GroupEnd::ByLongReplies;
            }
        }
        GroupEnd::No
    }
}

/// Takes the node of a connection, to run these commands of the batch elsewhere.
///
/// With `is_timed` each is timed by itself, and not with the batch.
fn detach(
    connection: &mut Connection,
    turn: Turn<'_>,
    group: Range<usize>,
    is_timed: bool,
) -> Box<Node<Job>> {
    let mut node = connection.state.depart();
    for parsed in &turn.batch.commands[group.clone()] {
        node.job.push(parsed.command().id, turn.words(parsed), parsed.routed);
    }
    node.job.is_timed = is_timed;
    if is_timed {
        group.for_each(|index| turn.batch.leave_unmeasured(index));
    }
    node.job.task = Task::Commands;
    node
}

/// Whether commands are logged in their own words if they change anything.
#[cold]
fn are_verbatim(commands: &[ParsedCommand]) -> bool {
    commands.iter().all(|parsed| parsed.command().spec.log.is_verbatim(parsed.n_words))
}

/// Whether a command is short enough to run here. Its work grows with the value of its key.
///
/// This is a function of its own, out of the way of commands that need no such check.
#[inline(never)]
fn is_short(budget: &Budget, shard: &Shard, turn: Turn<'_>, parsed: &ParsedCommand) -> bool {
    let mut look = Look::at_shard(shard);
    let router = turn.server.keyspace.router();
    budget.admits(&mut look, router, None, parsed.command(), turn.words(parsed), parsed.routed)
}

/// Finds the commands in a row that have large requests or replies. Each has one reply, or none has.
#[inline(never)]
fn note_sizes_of_each(
    client: &ClientRecord,
    turn: Turn<'_>,
    commands: &[ParsedCommand],
    replies: &[u8],
    thread: &ThreadState,
) {
    let mut at = 0;
    for parsed in commands {
        let reply_bytes = skip_reply(&replies[at..]).unwrap_or(0);
        at += reply_bytes;
        timing::note_sizes(parsed.command(), client, turn.words(parsed), reply_bytes, thread);
    }
}

/// The total size of scripts in a row that are left to the coordinator together. They are copied.
const TOGETHER_MAX_BYTES: usize = 64 * 1024;

/// How many commands of the batch, from `index` on, are left to the coordinator together.
///
/// Scripts in a row are left together, and any other command alone.
fn n_scripts_together(turn: Turn<'_>, index: usize, command: &Registered, session: &Session) -> usize {
    let Turn { server, batch, .. } = turn;
    if !matches!(command.spec.run, Run::Script(_)) || session.record.is_listener() {
        return 1;
    }
    let start = batch.commands[index].start;
    let follows = |parsed: &&ParsedCommand| {
        parsed.end - start <= TOGETHER_MAX_BYTES
            && matches!(parsed.found, Found::Command(command) if matches!(command.spec.run, Run::Script(_)))
            && matches!(
                gates::admit(server, session, &parsed.found, turn.words(parsed)),
                Ok((_, Admission::Run))
            )
    };
    1 + batch.commands[index + 1..].iter().take_while(follows).count()
}

/// Prefetches the members that commands of one run use in the first command's key.
///
/// This is a function of its own, out of the way of commands that use no members.
#[inline(never)]
fn fetch_members(shard: &mut Shard, turn: Turn<'_>, group: &[ParsedCommand], db: Db) {
    let leader = &group[0];
    let routed = leader.routed.expect("a command on one shard has its key first");
    shard.begin(db, turn.now);
    let key = Key { bytes: turn.words(leader).get(1), routed };
    let on_key = group.iter().take_while(|parsed| parsed.routed == Some(routed));
    step::prefetch_members(shard, &key, on_key.filter_map(|parsed| parsed.known(turn)));
}

/// Replies to input that cannot be parsed, and closes the connection.
fn report_protocol_error(
    connection: &mut Connection,
    error: ProtocolError,
    out: &mut Vec<u8>,
    thread: &ThreadState,
) {
    connection.close(Closing::AfterReplies);
    let Some(node) = connection.state.node() else { return };
    verbose!("Protocol error ({error}) from client: id={}", connection.record.id.0);
    thread.stats().error("ERR");
    let text = [b"ERR Protocol error: ", &error.text()[..]].concat();
    Reply::new(out, node.job.session.resp).error(text);
}

/// Whether a web browser was made to talk to the server. Such a connection is closed at once.
fn is_cross_protocol(words: Words<'_>) -> bool {
    let name = words.get(0);
    name.eq_ignore_ascii_case(b"post") || name.eq_ignore_ascii_case(b"host:")
}

#[cold]
fn report_cross_protocol(connection: &Connection) {
    warning_seldom!(
        "Possible SECURITY ATTACK detected. It looks like somebody is sending POST or Host: commands. \
         Connection from {} aborted.",
        connection.record.peer
    );
}
