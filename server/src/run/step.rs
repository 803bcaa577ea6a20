//! The inner step: one command's handler, its reply and its statistics.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::atomic::Ordering,
};

use braid_protocol::reply::Reply;
use braid_storage::{
    entry::key::Key,
    keyspace::shard::Shard,
    observers::record,
    table::hash::Routed,
    types::sorted_set::{self, End},
};

use crate::{
    access::Context,
    catalog::{CommandError, Denial, Flags, MembersAt, Outcome, Words},
    client::{
        session::{Replies, Session},
        sweep::{Sweep, SweepProgress},
    },
    command::{self, Call, GaveUp, Log, Registered, Run, ShardAccess, TABLE},
    observe::invalidations,
    random,
    run::{
        finish::{FinishedCommand, Measured},
        gates, logging, script, serve, transaction,
    },
    shared::thread_state::ThreadState,
    warning,
};

/// Runs a command, with its shards held, and records its changes for the log.
pub fn execute(
    call: &mut Call<'_, '_>,
    command: &'static Registered,
    words: Words<'_>,
    first: Option<Routed>,
    reply: &mut Reply<'_>,
) -> Outcome {
    if call.server.durability.aof.holds_back_reads() {
        logging::await_what_was_read(call, command, words);
    }
    let is_logged = match &call.access {
        ShardAccess::Detached(shard) => shard.is_logged(),
        ShardAccess::None | ShardAccess::Held(_) => call.server.durability.is_recording(),
    };
    if !is_logged {
        return run(call, command, words, first, reply);
    }
    let (mark, db) = (record::Mark::here(), call.session.db);
    let outcome = run(call, command, words, first, reply);
    let log = &command.spec.log;
    let is_told = mark.has_changes() || outcome.is_ok() && matches!(log, Log::Always);
    if is_told && !mark.has_words() {
        match log {
            Log::As(log_as) => log_as(call, command.spec, words),
            Log::PlainOr(_, log_as) if !log.is_verbatim(words.len()) => log_as(call, command.spec, words),
            Log::Verbatim | Log::Always | Log::PlainOr(..) => record::add(db, words.iter()),
            Log::Given => debug_assert!(
                false,
                "'{}' has changed something, and has not told the log in which words",
                command.full_name
            ),
        }
    }
    outcome
}

fn run(
    call: &mut Call<'_, '_>,
    command: &'static Registered,
    words: Words<'_>,
    first: Option<Routed>,
    reply: &mut Reply<'_>,
) -> Outcome {
    let server = call.server;
    let args = command.args(words, server.keyspace.router(), first);
    match command.spec.run {
        Run::Session(run)
        | Run::Transaction(run)
        | Run::InParts(run)
        | Run::Own(run)
        | Run::Everything(run)
        | Run::Barrier(run) => {
            if call.is_part() && !command.spec.keys.are_some() {
                // It may send messages, or change the observers of keys. So earlier changes are announced
                // first.
                tell_so_far(call);
                let outcome = run(call, args, reply);
                set_author(call);
                return outcome;
            }
            run(call, args, reply)
        }
        Run::Shard(run) => {
            let mut key_first = args;
            let key = key_first.key()?;
            run(call.shard_of(&key), args, reply)
        }
        Run::Queue => transaction::exec(call, command, reply),
        Run::Script(from) => script::run(call, command, from, args, reply),
        Run::EachShard { begin, .. } => {
            let mut sweep = begin(call, args)?.with_limit(reply.room()).under_one_hold();
            run_sweep_whole(call, command, &mut sweep);
            sweep.take_reply().iter().for_each(|piece| reply.raw(piece));
            Ok(())
        }
        Run::Container => Err(CommandError::Arity(command.full_name)),
    }
}

#[cold]
fn tell_so_far(call: &mut Call<'_, '_>) {
    if let Some(held) = call.access.held()
        && gates::is_observed(held)
    {
        serve::tell_observers_so_far(held, call.thread);
    }
}

/// Names the author of later changes, in case shards are observed only now.
#[cold]
fn set_author(call: &mut Call<'_, '_>) {
    if let Some(held) = call.access.held()
        && gates::is_observed(held)
    {
        invalidations::set_author(held, call.session.record.id);
    }
}

/// Runs a sweep from start to end with all shards held, between MULTI and EXEC.
fn run_sweep_whole(call: &mut Call<'_, '_>, command: &'static Registered, sweep: &mut Sweep) {
    let now = call.now;
    let held = call.access.expect_held();
    loop {
        let Some(id) = sweep.shard_to_visit(&call.server.keyspace) else { return };
        let shard = held.shard(id);
        shard.begin(sweep.db, now);
        if step_sweep(command, sweep, shard) == SweepProgress::Done {
            return;
        }
    }
}

/// Does one bounded piece of a sweep on its current shard.
pub fn step_sweep(command: &'static Registered, sweep: &mut Sweep, shard: &mut Shard) -> SweepProgress {
    let Run::EachShard { step, .. } = command.spec.run else {
        unreachable!("only commands that visit shards in turn are swept")
    };
    step(sweep, shard)
}

/// Prefetches the members that commands on one key use, as the first command does.
///
/// So the commands do not wait for each member in turn.
pub fn prefetch_members<'w>(
    shard: &mut Shard,
    key: &Key<'_>,
    commands: impl Iterator<Item = (&'static Registered, Words<'w>)> + Clone,
) {
    let Some(first) = commands.clone().next().and_then(|(command, _)| command.spec.members) else { return };
    let alike = commands.clone().filter(|(command, _)| command.spec.members == Some(first));
    // A single member would only be delayed by it.
    match first {
        MembersAt::Words { .. } => {
            let named = commands.flat_map(|(command, words)| {
                command.spec.members.map(|members| members.named(words)).into_iter().flatten()
            });
            if named.clone().nth(1).is_some() {
                shard.prefetch_members(key, named);
            }
        }
        _ if alike.clone().nth(1).is_none() => {}
        MembersAt::Draw => shard.prefetch_draws(key, random::coming().take(alike.count())),
        MembersAt::Lowest => prefetch_end(shard, key, End::Lowest, alike.count()),
        MembersAt::Highest => prefetch_end(shard, key, End::Highest, alike.count()),
    }
}

fn prefetch_end(shard: &Shard, key: &Key<'_>, end: End, n: usize) {
    if let Some(entry) = shard.glance(shard.db(), key) {
        sorted_set::prefetch_end(entry, end, n);
    }
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
    // An offloaded command counts when its result has been stored.
    let is_offloaded = matches!(call.access, ShardAccess::Detached(_));
    let measured = match is_offloaded {
        true => Measured::begin_offloaded(thread),
        false => Measured::begin(command, call.session, thread),
    };
    let mut reply = Reply::new(out, call.session.resp).with_limit(limit);
    let outcome = if let ShardAccess::None = call.access {
        let outcome = survive(command, || execute(call, command, words, first, &mut reply));
        // No end of a unit would do this here.
        logging::log_unit(thread);
        outcome
    } else {
        // The caller catches a panic of work on shards while it still holds them.
        execute(call, command, words, first, &mut reply)
    };
    if matches!(&outcome, Err(error) if error.is_too_much()) {
        call.gave_up = Some(GaveUp::TooMuch);
    }
    if call.must_run_again() {
        return out.truncate(start);
    }
    if call.session.tracking.is_some() {
        if let Some(held) = call.access.held().filter(|_| command.reads_its_keys()) {
            invalidations::note_reads(call.server, held, call.session, command.spec.keys, words);
        }
        end_caching(call.session, command);
    }
    conclude(command, outcome, start, call.session, out, thread);
    let (reply_bytes, was_shown) = (out.len() - start, call.was_shown);
    match is_offloaded {
        true => measured.end_offloaded(command, words, reply_bytes, thread),
        false => {
            measured.finish(
                &FinishedCommand { command, words, session: call.session, reply_bytes, was_shown },
                thread,
            );
        }
    }
    if out.len() > limit {
        *out = Vec::new();
        call.session.exceed_limit();
    }
}

/// Ends the effect of CLIENT CACHING after the command or transaction to which it applied.
#[cold]
fn end_caching(session: &mut Session, command: &Registered) {
    let keeps_caching = command.parent.is_some_and(|parent| parent.flags.has(Flags::KEEPS_CACHING));
    if let Some(tracking) = &mut session.tracking
        && session.queue.is_none()
        && !keeps_caching
    {
        tracking.is_caching = false;
    }
}

/// Turns a panic of a command that holds nothing into its error. It can tear nothing but its own client's
/// session.
pub fn survive<T>(
    command: &Registered,
    run: impl FnOnce() -> Result<T, CommandError>,
) -> Result<T, CommandError> {
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|_| {
        warning!("'{}' panicked; its client gets an error", command.full_name);
        Err(CommandError::Internal(command.full_name))
    })
}

/// Counts a command that ran, writes its error, and drops an unwanted reply.
#[inline(always)]
pub fn conclude(
    command: &'static Registered,
    outcome: Outcome,
    start: usize,
    session: &mut Session,
    out: &mut Vec<u8>,
    thread: &ThreadState,
) {
    thread.stats().ran(command.id, outcome.is_err());
    if let Err(error) = outcome {
        out.truncate(start);
        refuse(&error, session, out, thread);
    }
    if session.replies != Replies::On {
        // Subscriptions are confirmed like later messages, which are sent whatever replies are wanted.
        let start = if command.has(Flags::PUBSUB.and(Flags::WHILE_SUBSCRIBED)) { out.len() } else { start };
        session.drop_unwanted(start, out);
    }
}

/// Replies to a command that its user has lost the right to it.
#[cold]
pub fn refuse_denied(
    command: &'static Registered,
    denial: Denial,
    words: Words<'_>,
    session: &mut Session,
    out: &mut Vec<u8>,
    thread: &ThreadState,
) {
    let start = out.len();
    command::note_denial(session, denial, words, Context::Toplevel, &TABLE, thread);
    thread.stats().commands[command.id.index()].rejected.add(1);
    refuse(&CommandError::Denied(denial), session, out, thread);
    session.drop_unwanted(start, out);
}

/// Writes an error reply and counts it.
#[cold]
pub fn refuse(error: &CommandError, session: &Session, out: &mut Vec<u8>, thread: &ThreadState) {
    thread.stats().error(&error.wire_text());
    error.write(&mut Reply::new(out, session.resp));
}
