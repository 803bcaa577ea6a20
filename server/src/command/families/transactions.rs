//! MULTI, EXEC, DISCARD, WATCH and UNWATCH.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use braid_protocol::reply::Reply;
use braid_storage::{
    entry::{key::WatchedKey, time::Millis},
    sync::coordinator::Held,
    table::hash::ShardId,
};

use crate::{
    catalog::{Args, Arity, CommandError, Flags, Group, KeyUse, Keys, Outcome},
    client::{
        node::Job,
        session::{Queue, Session},
        watches::Watch,
    },
    command::{Call, CommandSpec, GaveUp, PART_KEYS, Run},
};

/// Flags of commands that run at once between MULTI and EXEC.
///
/// They also run in every state of the server.
const CONTROL: Flags = Flags::NOSCRIPT
    .and(Flags::LOADING)
    .and(Flags::STALE)
    .and(Flags::FAST)
    .and(Flags::ALLOW_BUSY)
    .and(Flags::IMMEDIATE);

pub(in crate::command) const COMMANDS: &[CommandSpec] = &[
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
            .and(Flags::PARSE_STOP),
        run: Run::Queue,
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
        run: Run::InParts(watch),
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
    if call.session.queue.is_none() {
        return Err(CommandError::text("ERR DISCARD without MULTI"));
    }
    if forget_own_watches_in_parts(call) {
        call.session.queue = None;
        reply.ok();
    }
    Ok(())
}

fn unwatch(call: &mut Call<'_, '_>, _: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    // In a transaction it runs within EXEC, which has already ended the client's watches.
    if forget_own_watches_in_parts(call) {
        reply.ok();
    }
    Ok(())
}

fn watch(call: &mut Call<'_, '_>, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    if call.session.queue.is_some() {
        return Err(CommandError::text("ERR WATCH inside MULTI is not allowed"));
    }
    let db = call.session.db;
    args = args.skip(call.session.n_keys_done);
    for _ in 0..PART_KEYS.min(args.remaining()) {
        let key = args.key()?;
        if !call.session.watched.has(db, &key) {
            let written = Arc::clone(&call.session.record.is_watch_lost);
            let shard = call.shard_of(&key);
            let stamp = shard.watch(&key, &written);
            let had_expired = shard.is_kept_expired(&key);
            let key = WatchedKey { db, bytes: key.bytes.into(), routed: key.routed };
            call.session.watched.add(Watch { key, stamp, had_expired });
        }
    }
    if args.is_empty() {
        call.session.n_keys_done = 0;
        reply.ok();
    } else {
        // Watching a key earlier than the others only notices more writes.
        call.session.n_keys_done += PART_KEYS;
        call.gave_up = Some(GaveUp::BetweenParts);
    }
    Ok(())
}

/// Ends some of the client's watches. Returns whether none are left; if not, the command runs again.
pub(crate) fn forget_own_watches_in_parts(call: &mut Call<'_, '_>) -> bool {
    let Some(held) = call.access.held() else { return true };
    let written = &call.session.record.is_watch_lost;
    let part = call.session.watched.take_last(PART_KEYS);
    unwatch_keys(&part, written, held, call.now);
    let is_last = call.session.watched.is_empty();
    if is_last {
        written.store(false, Ordering::Relaxed);
        call.session.n_keys_done = 0;
    } else {
        call.session.n_keys_done += part.len();
        call.gave_up = Some(GaveUp::BetweenParts);
    }
    is_last
}

/// Ends all watches of the client.
pub(crate) fn forget_own_watches(call: &mut Call<'_, '_>) {
    if let Some(held) = call.access.held() {
        forget_watches(call.session, held, call.now);
    }
}

/// Ends all watches of a client, under the holds of their shards.
fn forget_watches(session: &mut Session, held: &mut Held<'_, Job>, now: Millis) {
    let watched = std::mem::take(&mut session.watched);
    if watched.is_empty() {
        return;
    }
    let written = &session.record.is_watch_lost;
    unwatch_keys(&watched, written, held, now);
    written.store(false, Ordering::Relaxed);
}

/// Removes watches from held shards, so that these no longer report writes to the client.
pub(crate) fn unwatch_keys(
    watched: &[Watch],
    written: &Arc<AtomicBool>,
    held: &mut Held<'_, Job>,
    now: Millis,
) {
    for watch in watched {
        let shard = held.shard(watch.key.routed.shard);
        shard.begin(watch.key.db, now);
        shard.unwatch(&watch.key, written);
    }
}

/// Returns the shards of watched keys.
pub(crate) fn watched_routes(watched: &[Watch]) -> impl Iterator<Item = ShardId> {
    watched.iter().map(|watch| watch.key.routed.shard)
}
