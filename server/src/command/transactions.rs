//! MULTI, EXEC, DISCARD, WATCH, UNWATCH.

use braid_protocol::reply::Reply;
use braid_storage::{ShardId, coordinator::Held, shard::WatchedKey, time::Millis};

use super::{Args, Arity, Call, CommandError, CommandSpec, Flags, Group, KeyUse, Keys, Outcome, Run, Words};
use crate::{
    monitor,
    run::{blocking::Waiting, node::Job, step},
    session::{Queue, Watch},
    tracking,
};

/// Runs between MULTI and EXEC instead of being queued, and in every state of the server.
const CONTROL: Flags = Flags::NOSCRIPT
    .and(Flags::LOADING)
    .and(Flags::STALE)
    .and(Flags::FAST)
    .and(Flags::ALLOW_BUSY)
    .and(Flags::IMMEDIATE);

pub(super) const COMMANDS: &[CommandSpec] = &[
    CommandSpec {
        name: "multi",
        arity: Arity::Exactly(1),
        flags: CONTROL.and(Flags::PARSE_STOP),
        run: Run::Session(multi),
        since: "1.2.0",
        group: Group::Transactions,
        summary: "Starts a transaction.",
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "exec",
        arity: Arity::Exactly(1),
        flags: Flags::NOSCRIPT
            .and(Flags::LOADING)
            .and(Flags::STALE)
            .and(Flags::SKIP_SLOWLOG)
            .and(Flags::IMMEDIATE)
            .and(Flags::PARSE_STOP)
            .and(Flags::RUNS_QUEUE),
        run: Run::Own(exec),
        since: "1.2.0",
        group: Group::Transactions,
        summary: "Executes all commands in a transaction.",
        complexity: "Depends on commands in the transaction",
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "discard",
        arity: Arity::Exactly(1),
        flags: CONTROL.and(Flags::PARSE_STOP),
        run: Run::Own(discard),
        since: "2.0.0",
        group: Group::Transactions,
        summary: "Discards a transaction.",
        complexity: "O(N), when N is the number of queued commands",
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "watch",
        arity: Arity::AtLeast(2),
        flags: CONTROL,
        keys: Keys(&Keys::all(KeyUse::Look)),
        run: Run::Transaction(watch),
        since: "2.2.0",
        group: Group::Transactions,
        syntax: "key [key ...]",
        summary: "Monitors changes to keys to determine the execution of a transaction.",
        complexity: "O(1) for every key.",
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "unwatch",
        arity: Arity::Exactly(1),
        flags: Flags::NOSCRIPT.and(Flags::LOADING).and(Flags::STALE).and(Flags::FAST).and(Flags::ALLOW_BUSY),
        run: Run::Own(unwatch),
        since: "2.2.0",
        group: Group::Transactions,
        summary: "Forgets about watched keys of a transaction.",
        ..CommandSpec::ROW
    },
];

fn multi(call: &mut Call<'_, '_>, _: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    if call.session.queue.is_some() {
        return Err(CommandError::text("ERR MULTI calls can not be nested"));
    }
    call.session.queue = Some(Queue::default());
    reply.ok();
    Ok(())
}

fn discard(call: &mut Call<'_, '_>, _: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    if call.session.queue.take().is_none() {
        return Err(CommandError::text("ERR DISCARD without MULTI"));
    }
    forget_own_watches(call);
    reply.ok();
    Ok(())
}

fn unwatch(call: &mut Call<'_, '_>, _: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    // Queued, it runs within EXEC, which has let go of what was watched.
    forget_own_watches(call);
    reply.ok();
    Ok(())
}

fn watch(call: &mut Call<'_, '_>, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    if call.session.queue.is_some() {
        return Err(CommandError::text("ERR WATCH inside MULTI is not allowed"));
    }
    let db = call.session.db;
    while !args.is_empty() {
        let key = args.key()?;
        let known =
            call.session.watched.iter().any(|watch| watch.key.db == db && *watch.key.bytes == *key.bytes);
        if !known {
            let stamp = call.shard_of(&key).watch(&key);
            let key = WatchedKey { db, bytes: key.bytes.into(), routed: key.routed };
            call.session.watched.push(Watch { key, stamp });
        }
    }
    reply.ok();
    Ok(())
}

/// Runs the queue, or says why not. Whatever it says, the transaction is over and nothing is watched any more.
fn exec(call: &mut Call<'_, '_>, _: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let queue = call.session.queue.take();
    if let Some(refusal) = call.session.exec_refusal.take() {
        forget_own_watches(call);
        let why = refusal.wire_text();
        let why = why.strip_prefix("ERR ").unwrap_or(&why);
        return Err(CommandError::owned(format!("EXECABORT Transaction discarded because of: {why}")));
    }
    let Some(queue) = queue else {
        return Err(CommandError::text("ERR EXEC without MULTI"));
    };
    let unchanged = watches_hold(call);
    forget_own_watches(call);
    if queue.refused {
        return Err(CommandError::text("EXECABORT Transaction discarded because of previous errors."));
    }
    if !unchanged {
        reply.null_array();
        return Ok(());
    }
    // What was found out is where the keys of all its commands live; each of them looks for its own.
    call.routed = &[];
    // Nothing may come between its commands, so none of them waits.
    call.waiting = Waiting::MayNot;
    call.n_in_transaction = Some(queue.len());
    call.lift_limits();
    reply.array(queue.len());
    for (command, words) in queue.iter() {
        run_queued(call, command, words, reply);
        if reply.is_over_limit() {
            // The others run all the same: it is a transaction.
            reply.cut();
        }
    }
    Ok(())
}

/// Runs one command of a transaction. An error is its reply and stops nothing.
fn run_queued(
    call: &mut Call<'_, '_>,
    command: &'static super::Registered,
    words: Words<'_>,
    reply: &mut Reply<'_>,
) {
    let start = reply.written_bytes();
    let outcome = step::execute(call, command, words, None, reply);
    monitor::observe(call.session, command, words, call.thread);
    if call.session.tracking.is_some() {
        tracking::note_reads(call, command, words);
    }
    let counts = &call.stats.commands[command.id];
    counts.calls.add(1);
    if let Err(error) = outcome {
        counts.failed.add(1);
        call.stats.error(&error.wire_text());
        reply.truncate(start);
        error.write(reply);
    }
    // HELLO may have changed the dialect for the commands after it.
    reply.set_version(call.session.resp);
}

/// Whether no watched key has been written since it was watched. A key that has expired meanwhile has.
fn watches_hold(call: &mut Call<'_, '_>) -> bool {
    let watched = std::mem::take(&mut call.session.watched);
    let hold = watched.iter().all(|watch| {
        let key = watch.key.key();
        !call.shard_in(&key, watch.key.db).is_written_since(&watch.key, watch.stamp)
    });
    call.session.watched = watched;
    hold
}

fn forget_own_watches(call: &mut Call<'_, '_>) {
    let watched = std::mem::take(&mut call.session.watched);
    if let Some(held) = call.held.as_mut().filter(|_| !watched.is_empty()) {
        forget_watches(held, &watched, call.now);
    }
}

/// Lets go of watched keys, with their shards held.
pub(crate) fn forget_watches(held: &mut Held<'_, Job>, watched: &[Watch], now: Millis) {
    for watch in watched {
        let shard = held.shard(watch.key.routed.shard);
        shard.begin(watch.key.db, now);
        shard.unwatch(&watch.key);
    }
}

/// The shards of watched keys.
pub(crate) fn watched_routes(watched: &[Watch]) -> impl Iterator<Item = ShardId> {
    watched.iter().map(|watch| watch.key.routed.shard)
}
