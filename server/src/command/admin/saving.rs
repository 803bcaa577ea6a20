//! Snapshots and the AOF: SAVE, BGSAVE, BGREWRITEAOF, and the waits of WAIT and WAITAOF.

use std::sync::atomic::Ordering;

use braid_protocol::reply::Reply;

use super::row_flags::{ABOUT_SERVER, ANY_TIME, SAVING};
use crate::{
    catalog::{Args, Arity, Categories, CommandError, Flags, Group, Outcome},
    client::session::{AwaitSync, Replies, SaveOrder, SessionRequest, SyncAnswer},
    command::{Call, CommandSpec, Run, connections::client::timeout_millis},
    notice,
    shared::saves::Cancelled,
};

pub(super) const WAIT: CommandSpec = CommandSpec {
    name: "wait",
    arity: Arity::Exactly(3),
    flags: Flags::BLOCKING,
    run: Run::Session(wait),
    since: "3.0.0",
    group: Group::Generic,
    syntax: "numreplicas timeout",
    summary: "Blocks until the connection's writes have reached so many replicas.",
    categories: Some(Categories::CONNECTION),
    tips: &["request_policy:all_shards", "response_policy:agg_min"],
    ..CommandSpec::ROW
};

pub(super) const WAITAOF: CommandSpec = CommandSpec {
    name: "waitaof",
    arity: Arity::Exactly(4),
    flags: Flags::BLOCKING,
    run: Run::Session(wait_aof),
    since: "7.2.0",
    group: Group::Generic,
    syntax: "numlocal numreplicas timeout",
    summary: "Blocks until the connection's writes are on disk, here and on so many replicas.",
    categories: Some(Categories::CONNECTION),
    tips: &["request_policy:all_shards", "response_policy:agg_min"],
    ..CommandSpec::ROW
};

pub(super) const LASTSAVE: CommandSpec = CommandSpec {
    name: "lastsave",
    arity: Arity::Exactly(1),
    flags: ANY_TIME.and(Flags::FAST),
    run: Run::Session(last_save),
    since: "1.0.0",
    group: Group::Server,
    summary: "Returns the time of the last save to disk; before the first, that of the server's start.",
    categories: ABOUT_SERVER,
    tips: &["nondeterministic_output"],
    ..CommandSpec::ROW
};

pub(super) const SAVE: CommandSpec = CommandSpec {
    name: "save",
    arity: Arity::Exactly(1),
    flags: SAVING.and(Flags::NO_MULTI),
    run: Run::Session(save),
    since: "1.0.0",
    group: Group::Server,
    summary: "Saves the keyspace to disk, and answers when that is done.",
    complexity: "O(N) where N is the total number of keys in all databases",
    ..CommandSpec::ROW
};

pub(super) const BGSAVE: CommandSpec = CommandSpec {
    name: "bgsave",
    arity: Arity::AtLeast(1),
    flags: SAVING,
    run: Run::Session(background_save),
    since: "1.0.0",
    group: Group::Server,
    syntax: "[SCHEDULE | CANCEL]",
    summary: "Saves the keyspace to disk in the background, or cancels that.",
    ..CommandSpec::ROW
};

pub(super) const BGREWRITEAOF: CommandSpec = CommandSpec {
    name: "bgrewriteaof",
    arity: Arity::Exactly(1),
    flags: SAVING,
    run: Run::Session(rewrite),
    since: "1.0.0",
    group: Group::Server,
    summary: "Rewrites the append-only file in the background: it becomes as short as what is there allows.",
    ..CommandSpec::ROW
};

fn last_save(call: &mut Call<'_, '_>, _: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    reply.integer(call.server.saves.saved_at.load(Ordering::Relaxed) as i64);
    Ok(())
}

const IS_SAVING: CommandError = CommandError::text("ERR Background save already in progress");

/// Leaves the reply to the saver, unless a snapshot is under way.
fn save(call: &mut Call<'_, '_>, _: Args<'_>, _: &mut Reply<'_>) -> Outcome {
    if call.server.saves.is_under_way.load(Ordering::Relaxed) {
        return Err(IS_SAVING);
    }
    ask_saver(call, SaveOrder::Save)
}

/// Abandons the background snapshot, and saves a flushed keyspace if there are save points.
///
/// Returns whether the saver replies to the command after that. The save of a transaction or script follows
/// its end.
pub(in crate::command) fn save_flushed(call: &Call<'_, '_>) -> bool {
    let server = call.server;
    server.saves.note_flush();
    if server.config.load().save.is_empty() {
        return false;
    }
    if call.is_part() {
        // The cut must wait until the shards are released.
        server.order_save(SaveOrder::SaveFlushed, None);
        return false;
    }
    let is_answered = call.session.replies == Replies::On;
    call.session.ask(SessionRequest::Save { order: SaveOrder::SaveFlushed, is_answered });
    true
}

/// Leaves the reply to the saver. This fails in scripts and transactions.
pub(super) fn ask_saver(call: &mut Call<'_, '_>, order: SaveOrder) -> Outcome {
    if call.is_part() {
        return Err(CommandError::text("ERR Command not allowed inside a transaction"));
    }
    let is_answered = call.session.replies == Replies::On;
    call.session.ask(SessionRequest::Save { order, is_answered });
    Ok(())
}

fn background_save(call: &mut Call<'_, '_>, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let is_cancel = !args.tag("SCHEDULE") && args.tag("CANCEL");
    args.finish()?;
    if is_cancel {
        return cancel(call, reply);
    }
    let saves = &call.server.saves;
    if call.is_part() && !saves.is_under_way.load(Ordering::Relaxed) {
        saves.schedule();
        reply.simple("Background saving scheduled");
        return Ok(());
    }
    if !saves.begin() {
        return Err(IS_SAVING);
    }
    call.server.saver().wake_if_asleep();
    reply.simple("Background saving started");
    Ok(())
}

/// Cancels the snapshot that is taken in the background, or the scheduled one.
///
/// The one in progress leaves no file, and its end is no failure (Valkey 8.1).
fn cancel(call: &mut Call<'_, '_>, reply: &mut Reply<'_>) -> Outcome {
    let Some(cancelled) = call.server.saves.cancel() else {
        return Err(CommandError::text("ERR Background saving is currently not in progress or scheduled"));
    };
    call.server.saver().wake_if_asleep();
    match cancelled {
        Cancelled::UnderWay => {
            notice!("Background saving will be aborted due to user request");
            reply.simple("Background saving cancelled");
        }
        Cancelled::Scheduled => {
            notice!("Scheduled background saving will be cancelled due to user request");
            reply.simple("Scheduled background saving cancelled");
        }
    }
    Ok(())
}

fn rewrite(call: &mut Call<'_, '_>, _: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let (server, saves) = (call.server, &call.server.saves);
    let is_saving = saves.is_under_way.load(Ordering::Relaxed);
    let must_wait = call.is_part() || is_saving;
    if !saves.schedule_rewrite(must_wait) {
        return Err(CommandError::text("ERR Background append only file rewriting already in progress"));
    }
    server.saver().wake_if_asleep();
    reply.simple(match must_wait {
        true => "Background append only file rewriting scheduled",
        false => "Background append only file rewriting started",
    });
    Ok(())
}

/// Waits until so many replicas have the client's writes, or until the timeout, or forever if that is 0.
///
/// Nothing may wait inside a transaction.
fn wait(call: &mut Call<'_, '_>, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    if call.server.replica.is_on() {
        return Err(CommandError::text(
            "ERR WAIT cannot be used with replica instances. Please also note that since Redis 4.0 if a replica is configured to \
             be writable (which is not the default) writes to replicas are just local and are not propagated.",
        ));
    }
    let n_replicas = args.int()?;
    let timeout = timeout_millis(args.next()?, call.now)?;
    match u64::try_from(n_replicas) {
        Ok(n_replicas @ 1..) if !call.is_part() => {
            await_sync(call, SyncAnswer::Replicas, (false, n_replicas), timeout);
        }
        _ => reply.integer(call.server.n_replicas_with_all(false) as i64),
    }
    Ok(())
}

/// Delays the reply until the connection's writes are on disk.
///
/// They must be on the local disk if `is_local` is true, and on `n_replicas` replicas.
fn await_sync(call: &Call<'_, '_>, answers: SyncAnswer, (is_local, n_replicas): (bool, u64), timeout: u64) {
    let millis = if timeout == 0 { u64::MAX } else { timeout };
    let is_answered = call.session.replies == Replies::On;
    call.session.ask(SessionRequest::AwaitSync(AwaitSync {
        answers,
        is_answered,
        is_local,
        n_replicas,
        millis,
    }));
}

fn wait_aof(call: &mut Call<'_, '_>, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    if call.server.replica.is_on() {
        return Err(CommandError::text(
            "ERR WAITAOF cannot be used with replica instances. Please also note that writes to replicas are just local and are \
             not propagated.",
        ));
    }
    let n_local = args.int()?;
    if !(0..=1).contains(&n_local) {
        return Err(CommandError::text("ERR value is out of range, value must between 0 and 1"));
    }
    let n_replicas = u64::try_from(args.int()?)
        .map_err(|_| CommandError::text("ERR value is out of range, must be positive"))?;
    let timeout = timeout_millis(args.next()?, call.now)?;
    let synced = call.server.durability.aof.synced();
    if n_local > 0 && synced.is_none() {
        return Err(CommandError::text(NOT_LOGGED));
    }
    if call.is_part() {
        // The transaction's own writes are recorded when it ends.
        let n_replicas = call.server.n_replicas_with_all(true);
        write_synced(reply, synced == Some(call.server.durability.last_ticket()), n_replicas);
        return Ok(());
    }
    await_sync(call, SyncAnswer::Disks, (n_local > 0, n_replicas), timeout);
    Ok(())
}

/// The error of WAITAOF without an AOF.
pub(crate) const NOT_LOGGED: &str =
    "ERR WAITAOF cannot be used when numlocal is set but appendonly is disabled.";

/// Writes the numbers of disks that have the writes: local ones and replicas'.
pub(crate) fn write_synced(reply: &mut Reply<'_>, is_synced: bool, n_replicas: u64) {
    reply.array(2);
    reply.integer(i64::from(is_synced));
    reply.integer(n_replicas as i64);
}
