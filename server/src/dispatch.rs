//! From a parsed command to its handler: the gates, the route, and the answer.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::atomic::Ordering,
    time::Instant,
};

use braid_protocol::reply::Reply;
use braid_storage::{
    Key, Routed, Router, Shard, ShardId,
    coordinator::{Held, Route, put_in_order},
};
use smallvec::SmallVec;

use crate::{
    aside,
    blocking::{self, Waiting},
    clients::Listens,
    command::{
        self, Args, Call, CommandError, Flags, Found, Outcome, Registered, Run, Step, Sweep, Words, shown,
    },
    io::ThreadState,
    job::{Delegated, Job},
    monitor,
    pubsub::TopicKind,
    server::Server,
    session::{Replies, Session},
    tracking, warning,
};

/// Above so many keys a command counts as slow and goes to a heavy-work thread: some 200 µs of expected work.
pub const HEAVY_KEYS: usize = 2000;

/// What is to become of an admitted command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// It runs now.
    Run,
    /// It waits for EXEC.
    Queue,
    /// It waits for the end of a pause.
    Postpone,
}

/// The gates, in the order in which users can observe them.
pub fn admit(
    server: &Server,
    session: &Session,
    found: &Found,
    words: Words<'_>,
) -> Result<(&'static Registered, Admission), CommandError> {
    let command = known(found, words)?;
    admit_arity(command, words)?;
    admit_authenticated(command, session)?;
    admit_in_transaction(command, session)?;
    admit_listener(command, session)?;
    admit_memory(command, server, session)?;
    // Before the pause, which would have it run when it ends: it is EXEC that is held back.
    if session.queue.is_some() && !command.has(Flags::IMMEDIATE) {
        return Ok((command, Admission::Queue));
    }
    if server.attention.load(Ordering::Relaxed) != 0 && server.holds_back(command, session) {
        return Ok((command, Admission::Postpone));
    }
    Ok((command, Admission::Run))
}

fn known(found: &Found, words: Words<'_>) -> Result<&'static Registered, CommandError> {
    match found {
        Found::Command(command) => Ok(command),
        Found::Unknown => Err(unknown_command(words)),
        Found::UnknownSubcommand(container) => Err(unknown_subcommand(container, words)),
    }
}

#[cold]
fn unknown_command(words: Words<'_>) -> CommandError {
    let mut beginning = String::new();
    for word in words.iter().skip(1) {
        if beginning.len() >= 128 {
            break;
        }
        beginning.push_str(&format!("'{}' ", shown(&word[..word.len().min(128 - beginning.len())])));
    }
    let name = words.get(0);
    let name = shown(&name[..name.len().min(128)]);
    CommandError::owned(format!("ERR unknown command '{name}', with args beginning with: {beginning}"))
}

#[cold]
fn unknown_subcommand(container: &Registered, words: Words<'_>) -> CommandError {
    let sub = words.get(1);
    let sub = shown(&sub[..sub.len().min(128)]);
    let container = container.spec.name.to_ascii_uppercase();
    CommandError::owned(format!("ERR unknown subcommand '{sub}'. Try {container} HELP."))
}

fn admit_arity(command: &'static Registered, words: Words<'_>) -> Result<(), CommandError> {
    if command.spec.arity.admits(words.len()) { Ok(()) } else { Err(CommandError::Arity(command.full_name)) }
}

fn admit_authenticated(command: &Registered, session: &Session) -> Result<(), CommandError> {
    if session.authenticated || command.has(Flags::NO_AUTH) {
        Ok(())
    } else {
        Err(CommandError::text("NOAUTH Authentication required."))
    }
}

fn admit_in_transaction(command: &Registered, session: &Session) -> Result<(), CommandError> {
    if session.queue.is_some() && command.has(Flags::NO_MULTI) {
        Err(CommandError::text("ERR Command not allowed inside a transaction"))
    } else {
        Ok(())
    }
}

/// A subscriber in RESP2 could not tell the reply from a message. To Redis, who looks on is a replica.
fn admit_listener(command: &Registered, session: &Session) -> Result<(), CommandError> {
    let is_about_keys =
        || [Flags::READONLY, Flags::WRITE, Flags::MAY_REPLICATE].map(|flag| command.has(flag));
    if session.record.listens(Listens::ToCommands) && is_about_keys().contains(&true) {
        return Err(CommandError::text("ERR Replica can't interact with the keyspace"));
    }
    if !command::is_confined(session) || command.has(Flags::WHILE_SUBSCRIBED) {
        return Ok(());
    }
    Err(CommandError::owned(format!(
        "ERR Can't execute '{}': only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / RESET are allowed in this context",
        command.full_name
    )))
}

/// When memory is short, queueing is refused, too: a queue is memory. EXEC is if it would run what is.
fn admit_memory(command: &Registered, server: &Server, session: &Session) -> Result<(), CommandError> {
    if !server.memory_short.load(Ordering::Relaxed) {
        return Ok(());
    }
    let denied = command.has(Flags::DENYOOM)
        || match &session.queue {
            Some(queue) if is_exec(command) => queue.iter().any(|(queued, _)| queued.has(Flags::DENYOOM)),
            Some(_) => !command.has(Flags::IMMEDIATE),
            None => false,
        };
    if denied {
        Err(CommandError::text("OOM command not allowed when used memory > 'maxmemory'."))
    } else {
        Ok(())
    }
}

/// Whether a command is EXEC: its route and its refusal depend on the session's transaction.
pub fn is_exec(command: &Registered) -> bool {
    command.spec.name == "exec"
}

/// What commands need to have held together.
#[derive(Default)]
pub struct Needs {
    /// Where their keys live, in the order in which the commands name them.
    pub keys: SmallVec<[Routed; 12]>,
    others: SmallVec<[ShardId; 6]>,
    everything: bool,
}

impl Needs {
    /// The shards of some keys.
    pub fn of_keys(keys: &[Routed]) -> Self {
        Self { keys: keys.into(), ..Self::default() }
    }

    /// Adds what a command needs.
    pub fn add(&mut self, server: &Server, session: &Session, command: &Registered, words: Words<'_>) {
        match command.spec.run {
            Run::Session(_) | Run::Container => self.everything |= command.has(Flags::WHOLE_KEYSPACE),
            Run::Everything(_) | Run::Barrier(_) | Run::EachShard { .. } => self.everything = true,
            Run::Transaction(_) if roams(command, words) => self.everything = true,
            Run::Shard(_) | Run::Transaction(_) => self.add_keys(server, command, words),
            Run::Own(_) => {
                self.others.extend(command::watched_routes(&session.watched));
                if command.has(Flags::LEAVES) {
                    self.add_what_is_left(server, session, command, words);
                }
                if let Some(queue) = session.queue.as_ref().filter(|_| is_exec(command)) {
                    for (queued, words) in queue.iter() {
                        self.add(server, session, queued, words);
                    }
                }
            }
        }
    }

    fn add_keys(&mut self, server: &Server, command: &Registered, words: Words<'_>) {
        let router = server.keyspace.router();
        let get = |at| words.get(at);
        command.spec.keys.positions(words.len(), get, |at, _| self.keys.push(router.route(words.get(at))));
    }

    /// Adds what a command needs that ends subscriptions: those that it names, or all.
    fn add_what_is_left(
        &mut self,
        server: &Server,
        session: &Session,
        command: &Registered,
        words: Words<'_>,
    ) {
        let Some(own) = &session.subscriptions else { return };
        if words.len() > 1 && !command.spec.keys.0.is_empty() {
            return self.add_keys(server, command, words);
        }
        self.others.extend(command::subscribed_routes(server, own));
        // Who publishes anywhere looks at the patterns.
        self.everything |= own.n_of(TopicKind::Pattern) > 0;
    }

    /// The shards, in the order in which they are taken.
    pub fn shards(&self, server: &Server) -> SmallVec<[ShardId; 6]> {
        if self.everything {
            return server.engine.all_shards();
        }
        let mut shards: SmallVec<[ShardId; 6]> = self.keys.iter().map(|key| key.shard).collect();
        shards.extend_from_slice(&self.others);
        put_in_order(&mut shards);
        shards
    }
}

/// Whether a command reaches for keys that it does not name, or that only its handler can tell from others.
fn roams(command: &Registered, words: Words<'_>) -> bool {
    command.spec.roams.is_some_and(|roams| roams(words)) || command.spec.keys.are_ambiguous(words)
}

/// Whether a command is expected to take so long that no socket should wait behind it.
pub fn is_heavy(session: &Session, command: &Registered, words: Words<'_>) -> bool {
    words.len() > HEAVY_KEYS
        || roams(command, words)
        || (is_exec(command)
            && session.queue.as_ref().is_some_and(|queue| {
                queue.len() > HEAVY_KEYS
                    || queue.iter().any(|(queued, words)| {
                        words.len() > HEAVY_KEYS || matches!(queued.spec.run, Run::EachShard { .. })
                    })
            }))
}

/// The arguments of a command, behind its name.
pub fn args<'w>(
    command: &Registered,
    words: Words<'w>,
    router: &'w Router,
    first: Option<Routed>,
) -> Args<'w> {
    let args = Args::new(words, router, first);
    if command.parent.is_some() { args.after_subcommand() } else { args }
}

/// Runs a command, with the shards it needs held.
pub fn execute(
    call: &mut Call<'_, '_>,
    command: &'static Registered,
    words: Words<'_>,
    first: Option<Routed>,
    reply: &mut Reply<'_>,
) -> Outcome {
    let server = call.server;
    let args = args(command, words, server.keyspace.router(), first);
    match command.spec.run {
        Run::Session(run)
        | Run::Transaction(run)
        | Run::Own(run)
        | Run::Everything(run)
        | Run::Barrier(run) => run(call, args, reply),
        Run::Shard(run) => {
            let mut key_first = args;
            let key = key_first.key()?;
            run(call.shard_of(&key), args, reply)
        }
        Run::EachShard { begin, .. } => {
            let mut sweep = begin(call, args)?.with_limit(reply.room());
            run_sweep_whole(call, command, &mut sweep);
            sweep.take_reply().iter().for_each(|piece| reply.raw(piece));
            Ok(())
        }
        Run::Container => Err(CommandError::Arity(command.full_name)),
    }
}

/// Runs a sweep from start to end, all shards being held: between MULTI and EXEC.
fn run_sweep_whole(call: &mut Call<'_, '_>, command: &'static Registered, sweep: &mut Sweep) {
    let now = call.now;
    let held = call.held.as_mut().expect("a sweep in a transaction holds all shards");
    loop {
        let Some(id) = sweep.shard_to_visit(&call.server.keyspace) else { return };
        let shard = held.shard(id);
        shard.begin(sweep.db, now);
        if step_sweep(command, sweep, shard) == Step::Done {
            return;
        }
    }
}

/// Does one bounded piece of a sweep on the shard where it stands.
pub fn step_sweep(command: &'static Registered, sweep: &mut Sweep, shard: &mut Shard) -> Step {
    let Run::EachShard { step, .. } = command.spec.run else {
        unreachable!("only commands that visit shards in turn are swept")
    };
    step(sweep, shard)
}

/// Runs the commands of a node, with the shards they need held. Gives the route over more, if it turns out that a command needs
/// them.
pub fn run_delegated(job: &mut Job, held: &mut Held<'_, Job>, thread: &mut ThreadState) -> Option<Route> {
    let server = thread.server();
    prefetch_delegated(job, held);
    loop {
        let Job {
            session,
            bytes,
            ranges,
            commands,
            routed,
            n_run,
            has_waited,
            reply,
            n_replied_bytes,
            now,
            is_timed,
            ..
        } = job;
        if *n_run == commands.len() {
            return None;
        }
        let (delegated, words) = Job::command_at(bytes, ranges, commands, *n_run);
        let attention = server.attention.load(Ordering::Relaxed) != 0;
        if attention && session.record.is_killed() {
            *n_run = commands.len();
            return None;
        }
        if attention && server.holds_back(delegated.command, session) {
            return None;
        }
        let time = time_under_hold(held, *now, session);
        let needs_care = blocking::needs_care(held);
        if needs_care {
            tracking::set_author(held, session.record.id);
            let command = delegated.command;
            if let Some(key) = aside::pinned_key(server, session, command, words, held) {
                aside::wait_for_unpinning(job, key, held, time);
                return None;
            }
            if let Some(route) = blocking::further_shards(server, session, command, words, held) {
                return Some(route);
            }
        }
        let mut call = Call {
            held: Some(held),
            routed,
            waiting: Waiting::May,
            is_resumed: *has_waited,
            ..Call::of_session(server, session, time, thread)
        };
        *n_replied_bytes = reply.len();
        let began = is_timed.then(Instant::now);
        answer(&mut call, delegated.command, words, delegated.routed, reply, thread);
        if call.is_too_much {
            return Some(aside::send(job, server));
        }
        if attention && matches!(call.waiting, Waiting::Asked(_)) {
            monitor::observe(&call, delegated.command, words);
        }
        if let Waiting::Asked(wait) = call.waiting {
            blocking::park(job, *wait, held, time);
            return None;
        }
        // Who is closed without an answer runs nothing more.
        *n_run = if session.is_over_limit { commands.len() } else { *n_run + 1 };
        if let Some(began) = began {
            thread.stats().took(delegated.command, began.elapsed().as_nanos() as u64, 1);
        }
        if needs_care || session.tracking.is_some() {
            tracking::announce(held, thread);
        }
        blocking::serve_ready(held, thread, time);
    }
}

/// Fetches the members that a node's commands name of the first one's key.
fn prefetch_delegated(job: &Job, held: &mut Held<'_, Job>) {
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
    prefetch_members(shard, &key, commands.map(|(delegated, words)| (delegated.command, words)));
}

/// Fetches the members that commands on one key name, so that the commands do not wait for each in turn.
pub fn prefetch_members<'w>(
    shard: &mut Shard,
    key: &Key<'_>,
    commands: impl Iterator<Item = (&'static Registered, Words<'w>)> + Clone,
) {
    let named = commands.flat_map(|(command, words)| {
        command.spec.members.map(|members| members.of(words)).into_iter().flatten()
    });
    // A single one would only be delayed by it.
    if named.clone().nth(1).is_some() {
        shard.prefetch_members(key, named);
    }
}

/// Starts a command or a transaction on the shards it holds, and gives its time: no shard's time ever goes back.
///
/// Storing it back is what `Shard::begin` does for each shard that is touched.
pub fn time_under_hold(
    held: &mut Held<'_, Job>,
    sampled: braid_storage::time::Millis,
    session: &Session,
) -> braid_storage::time::Millis {
    let mut time = sampled;
    for index in 0..held.ids().len() {
        let id = held.ids()[index];
        let shard = held.shard(id);
        time = time.max(shard.start());
        if session.no_touch {
            shard.leave_untouched();
        }
    }
    time
}

/// Runs a command and writes its reply or its error.
pub fn answer(
    call: &mut Call<'_, '_>,
    command: &'static Registered,
    words: Words<'_>,
    first: Option<Routed>,
    out: &mut Vec<u8>,
    thread: &ThreadState,
) {
    let start = out.len();
    let limit = thread.stats().output_limit.load(Ordering::Relaxed);
    let mut reply = Reply::new(out, call.session.resp).with_limit(limit);
    let outcome = if call.held.is_some() || call.aside.is_some() {
        // Whoever runs work on shards catches what it panics with, while it still holds them.
        execute(call, command, words, first, &mut reply)
    } else {
        survive(command, || execute(call, command, words, first, &mut reply))
    };
    call.is_too_much = matches!(&outcome, Err(error) if error.is_too_much());
    if call.must_run_again() {
        return out.truncate(start);
    }
    if call.session.tracking.is_some() {
        tracking::note_reads(call, command, words);
        tracking::end_caching(call.session, command);
    }
    if call.server.attention.load(Ordering::Relaxed) != 0 {
        monitor::observe(call, command, words);
    }
    conclude(command, outcome, start, call.session, out, thread);
    if out.len() > limit {
        *out = Vec::new();
        call.session.exceed_limit();
    }
}

/// Turns a panic of a command that holds nothing into its error: it has nothing to tear but its own client's session.
pub fn survive<T>(
    command: &Registered,
    run: impl FnOnce() -> Result<T, CommandError>,
) -> Result<T, CommandError> {
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|_| {
        warning!("'{}' panicked; its client gets an error", command.full_name);
        Err(CommandError::Internal(command.full_name))
    })
}

/// Counts a command that ran, turns an error into its reply, and drops a reply that nobody wants.
#[inline(always)]
pub fn conclude(
    command: &'static Registered,
    outcome: Outcome,
    start: usize,
    session: &mut Session,
    out: &mut Vec<u8>,
    thread: &ThreadState,
) {
    let counts = &thread.stats().commands[command.id];
    counts.calls.add(1);
    if let Err(error) = outcome {
        out.truncate(start);
        counts.failed.add(1);
        refuse(&error, session, out, thread);
    }
    if session.replies != Replies::On {
        // Subscriptions are confirmed like the messages that follow, which are sent whatever replies are wanted.
        let start = if command.has(Flags::PUBSUB.and(Flags::WHILE_SUBSCRIBED)) { out.len() } else { start };
        drop_unwanted(session, start, out);
    }
}

/// Writes an error reply and counts it.
#[cold]
pub fn refuse(error: &CommandError, session: &Session, out: &mut Vec<u8>, thread: &ThreadState) {
    thread.stats().error(&error.wire_text());
    error.write(&mut Reply::new(out, session.resp));
}

/// CLIENT REPLY OFF and SKIP.
#[cold]
pub fn drop_unwanted(session: &mut Session, start: usize, out: &mut Vec<u8>) {
    match session.replies {
        Replies::On => {}
        Replies::Off => out.truncate(start),
        Replies::SkipNext => {
            out.truncate(start);
            session.replies = Replies::Skipping;
        }
        Replies::Skipping => {
            out.truncate(start);
            session.replies = Replies::On;
        }
    }
}
