//! Commands on the whole server: INFO, CONFIG, DEBUG, SHUTDOWN and related ones.

use std::{
    f64::consts::TAU,
    fs,
    io::{self, Write},
    path::Path,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use braid_journal::{
    disk::read_regular,
    faults::{Fault, Operation},
};
use braid_protocol::{
    number,
    reply::{Reply, Resp},
};
use braid_storage::{
    Event, Expiry, Key, Shard, StorageError, encoding_name,
    glob::{Case, glob_match},
    record,
};
use nix::sys::signal::{Signal, raise};

use super::{
    Call, CommandSpec, Run, Work, acl,
    client::timeout_millis,
    digest::{debug_digest, debug_digest_value},
    help::{help, misused},
    scripting::{BUSY_FUNCTION, BUSY_SCRIPT, busy_programs},
    work,
};
use crate::{
    catalog::{
        Args, Arity, Categories, CommandError, Deprecation, Flags, Group, KeySpec, KeyUse, Keys, KeysAt,
        Outcome, Words, shown,
    },
    client::session::{
        AwaitSync, LogBegun, Reloading, Replies, SaveOrder, SessionRequest, SyncAnswer, TimeAccounting,
    },
    command::info,
    config::{self, Appended, Config, REDIS_VERSION, ShutdownOptions},
    log,
    observe::{events, hearers},
    process::descriptors::room_for_clients,
    shared::{change_log::Recorded, server::Server},
    sockets::certificates::{self, Certificates},
    warning, warning_later,
};

const ANY_TIME: Flags = Flags::LOADING.and(Flags::STALE);
const ADMIN: Flags = ANY_TIME.and(Flags::ADMIN).and(Flags::NOSCRIPT);
const DEBUGGING: Flags = ADMIN.and(Flags::DEBUGGING);
const SAVING: Flags = Flags::ADMIN.and(Flags::NOSCRIPT).and(Flags::NO_ASYNC_LOADING);
const REPLICATING: Flags = SAVING.and(Flags::STALE);
const ABOUT_SERVER: Option<Categories> = Some(Categories::ADMIN.and(Categories::DANGEROUS));

pub(super) const COMMANDS: &[CommandSpec] = &[
    CommandSpec {
        name: "info",
        arity: Arity::AtLeast(1),
        flags: ANY_TIME.and(Flags::DANGEROUS).and(Flags::WHOLE_KEYSPACE).and(Flags::ADDS_UP_TABLES),
        run: Run::Session(print_info),
        since: "1.0.0",
        group: Group::Server,
        syntax: "[section [section ...]]",
        summary: "Returns information and statistics about the server.",
        tips: &["nondeterministic_output", "request_policy:all_shards", "response_policy:special"],
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "config",
        arity: Arity::AtLeast(2),
        since: "2.0.0",
        group: Group::Server,
        summary: "A container for server configuration commands.",
        complexity: "Depends on subcommand.",
        subcommands: CONFIG,
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "time",
        arity: Arity::Exactly(1),
        flags: ANY_TIME.and(Flags::FAST),
        run: Run::Session(time),
        since: "2.6.0",
        group: Group::Server,
        summary: "Returns the server time.",
        tips: &["nondeterministic_output"],
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "lolwut",
        arity: Arity::AtLeast(1),
        flags: Flags::READONLY.and(Flags::FAST),
        run: Run::Session(lolwut),
        since: "5.0.0",
        group: Group::Server,
        syntax: "[VERSION version] [columns [rows]]",
        summary: "Displays computer art and the server's version.",
        complexity: "O(N) where N is the number of characters of the picture",
        categories: Some(Categories::NONE),
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "shutdown",
        arity: Arity::AtLeast(1),
        flags: ADMIN.and(Flags::NO_MULTI).and(Flags::ALLOW_BUSY),
        run: Run::Session(shutdown),
        since: "1.0.0",
        group: Group::Server,
        syntax: "[NOSAVE | SAVE] [NOW] [FORCE] [ABORT]",
        summary: "Shuts down the server.",
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "debug",
        arity: Arity::AtLeast(2),
        flags: DEBUGGING,
        run: Run::Session(debug_unknown),
        since: "1.0.0",
        group: Group::Server,
        summary: "A container for debugging commands.",
        complexity: "Depends on subcommand.",
        subcommands: DEBUG,
        ..CommandSpec::ROW
    },
    CommandSpec {
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
    },
    CommandSpec {
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
    },
    CommandSpec {
        name: "role",
        arity: Arity::Exactly(1),
        flags: ANY_TIME.and(Flags::NOSCRIPT).and(Flags::FAST),
        run: Run::Session(role),
        since: "2.8.12",
        group: Group::Server,
        summary: "Returns the replication role.",
        categories: ABOUT_SERVER,
        ..CommandSpec::ROW
    },
    CommandSpec {
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
    },
    CommandSpec {
        name: "save",
        arity: Arity::Exactly(1),
        flags: SAVING.and(Flags::NO_MULTI),
        run: Run::Session(save),
        since: "1.0.0",
        group: Group::Server,
        summary: "Saves the keyspace to disk, and answers when that is done.",
        complexity: "O(N) where N is the total number of keys in all databases",
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "bgsave",
        arity: Arity::AtLeast(1),
        flags: SAVING,
        run: Run::Session(background_save),
        since: "1.0.0",
        group: Group::Server,
        syntax: "[SCHEDULE]",
        summary: "Saves the keyspace to disk in the background.",
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "bgrewriteaof",
        arity: Arity::Exactly(1),
        flags: SAVING,
        run: Run::Session(rewrite),
        since: "1.0.0",
        group: Group::Server,
        summary: "Rewrites the append-only file in the background: it becomes as short as what is there allows.",
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "replicaof",
        arity: Arity::Exactly(3),
        flags: REPLICATING,
        run: Run::Session(replica_of),
        since: "5.0.0",
        group: Group::Server,
        syntax: "<host port | NO ONE>",
        summary: "Makes the server a replica of another, once that exists, or a master.",
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "slaveof",
        arity: Arity::Exactly(3),
        flags: REPLICATING.and(Flags::DEPRECATED),
        run: Run::Session(replica_of),
        since: "1.0.0",
        group: Group::Server,
        syntax: "<host port | NO ONE>",
        summary: "Makes the server a replica of another, once that exists, or a master.",
        deprecated: Some(Deprecation { since: "5.0.0", replaced_by: "`REPLICAOF`" }),
        ..CommandSpec::ROW
    },
];

fn print_info(call: &mut Call<'_, '_>, args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let asked: Vec<&[u8]> = args.rest().collect();
    let text = info::text(call.table, call.server, asked.iter().copied());
    reply.verbatim(b"txt", text.as_bytes());
    Ok(())
}

fn time(call: &mut Call<'_, '_>, _: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let micros = call.server.clock.unix_micros() as i64;
    reply.array(2);
    reply.bulk_integer(micros / 1_000_000);
    reply.bulk_integer(micros % 1_000_000);
    Ok(())
}

fn role(_: &mut Call<'_, '_>, _: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    reply.array(3);
    reply.bulk(b"master");
    reply.integer(0);
    reply.array(0);
    Ok(())
}

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

fn debug_reload(call: &mut Call<'_, '_>, mut args: Args<'_>, _: &mut Reply<'_>) -> Outcome {
    debug_args(args, args.remaining())?;
    let mut how = Reloading { saves: true, flushes: true, merges: false };
    while !args.is_empty() {
        if args.tag("NOSAVE") {
            how.saves = false;
        } else if args.tag("NOFLUSH") {
            how.flushes = false;
        } else if args.tag("MERGE") {
            how.merges = true;
        } else {
            return Err(CommandError::text(
                "ERR DEBUG RELOAD only supports the MERGE, NOFLUSH and NOSAVE options.",
            ));
        }
    }
    ask_saver(call, SaveOrder::Reload(how))
}

fn debug_load_log(call: &mut Call<'_, '_>, args: Args<'_>, _: &mut Reply<'_>) -> Outcome {
    debug_args(args, 0)?;
    ask_saver(call, SaveOrder::LoadLog)
}

/// Abandons the background snapshot, and saves a flushed keyspace if there are save points.
///
/// Returns whether the saver replies to the command after that. The save of a transaction or script follows
/// its end.
pub(super) fn save_flushed(call: &Call<'_, '_>) -> bool {
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
fn ask_saver(call: &mut Call<'_, '_>, order: SaveOrder) -> Outcome {
    if call.is_part() {
        return Err(CommandError::text("ERR Command not allowed inside a transaction"));
    }
    let is_answered = call.session.replies == Replies::On;
    call.session.ask(SessionRequest::Save { order, is_answered });
    Ok(())
}

fn background_save(call: &mut Call<'_, '_>, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    args.tag("SCHEDULE");
    args.finish()?;
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

fn replica_of(_: &mut Call<'_, '_>, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let host = args.next()?;
    let port = args.next()?;
    if host.eq_ignore_ascii_case(b"no") && port.eq_ignore_ascii_case(b"one") {
        // The server is a master and stays one.
        reply.ok();
        return Ok(());
    }
    match number::parse_i64(port) {
        Some(0..=65_535) => {
            Err(CommandError::text("ERR this server cannot be a replica: replication is not supported yet"))
        }
        _ => Err(CommandError::text("ERR Invalid master port")),
    }
}

/// Waits as Redis does when there are too few replicas.
///
/// It waits until the timeout, or forever if that is 0. Nothing may wait inside a transaction.
fn wait(call: &mut Call<'_, '_>, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let n_replicas = args.int()?;
    let timeout = timeout_millis(args.next()?, call.now)?;
    match u64::try_from(n_replicas) {
        Ok(n_replicas @ 1..) if !call.is_part() => {
            await_sync(call, SyncAnswer::Replicas, (false, n_replicas), timeout);
        }
        _ => reply.integer(0),
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
        write_synced(reply, synced == Some(call.server.durability.last_ticket()));
        return Ok(());
    }
    await_sync(call, SyncAnswer::Disks, (n_local > 0, n_replicas), timeout);
    Ok(())
}

/// The error of WAITAOF without an AOF.
pub(crate) const NOT_LOGGED: &str =
    "ERR WAITAOF cannot be used when numlocal is set but appendonly is disabled.";

/// Writes the numbers of disks that have the writes: local ones and replicas'.
///
/// There are no replicas.
pub(crate) fn write_synced(reply: &mut Reply<'_>, is_synced: bool) {
    reply.array(2);
    reply.integer(i64::from(is_synced));
    reply.integer(0);
}

/// Cancels a shutdown that waits for its snapshot.
fn abort_shutdown(call: &mut Call<'_, '_>, reply: &mut Reply<'_>) -> Outcome {
    if !call.server.saves.ending.abort() {
        return Err(CommandError::text("ERR No shutdown in progress."));
    }
    call.server.saver().wake_if_asleep();
    reply.ok();
    Ok(())
}

/// Replies only if it does not stop the server.
fn shutdown(call: &mut Call<'_, '_>, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let [mut save, mut nosave, mut force, mut abort] = [false; 4];
    let n_options = args.remaining();
    while !args.is_empty() {
        if args.tag("SAVE") {
            save = true;
        } else if args.tag("NOSAVE") {
            nosave = true;
        } else if args.tag("FORCE") {
            force = true;
        } else if args.tag("ABORT") {
            abort = true;
        } else if !args.tag("NOW") {
            return Err(CommandError::Syntax);
        }
    }
    if (abort && n_options > 1) || (save && nosave) {
        return Err(CommandError::Syntax);
    }
    if abort {
        return abort_shutdown(call, reply);
    }
    if !nosave && let Some(program) = busy_programs(call).first() {
        // The shutdown would wait for a script that may never end.
        return Err(CommandError::text(if program.is_function() { BUSY_FUNCTION } else { BUSY_SCRIPT }));
    }
    warning!("User requested shutdown...");
    if !call.server.may_stop(force) {
        return Err(CommandError::text("ERR Errors trying to SHUTDOWN. Check logs."));
    }
    match call.server.order_at_shutdown(ShutdownOptions { save, nosave, now: false, force }) {
        Some(order) => ask_saver(call, order),
        None => {
            call.session.closing = true;
            call.server.stop();
            Ok(())
        }
    }
}

fn lolwut(call: &mut Call<'_, '_>, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    if args.remaining() >= 2 && args.tag("VERSION") {
        args.int()?;
    }
    // As in Redis, VERSION without a number is ignored.
    args.tag("VERSION");
    let mut size = |default: i64, most: i64| -> Result<usize, CommandError> {
        let n = if args.is_empty() { default } else { args.int()? };
        Ok(n.clamp(1, most) as usize)
    };
    let (columns, rows) = (size(64, 400)?, size(11, 100)?);
    let turns = 2.0 + (call.server.clock.unix_micros() / 1000 % 60) as f64 / 20.0;
    let picture = braid(columns, rows, turns);
    reply.verbatim(b"txt", format!("{picture}\nRedis ver. {REDIS_VERSION}\n").as_bytes());
    Ok(())
}

/// Draws three strands that wind around each other `turns` times. Nearer ones are drawn heavier, and last.
fn braid(columns: usize, rows: usize, turns: f64) -> String {
    let mut picture = vec![vec![' '; columns]; rows];
    for column in 0..columns {
        let angle = column as f64 / columns as f64 * TAU * turns;
        let mut strands = [0.0, 1.0, 2.0].map(|strand| {
            let phase = angle + strand / 3.0 * TAU;
            (phase.sin(), (2.0 * phase).cos())
        });
        strands.sort_by(|(_, near), (_, other)| near.total_cmp(other));
        for (height, near) in strands {
            let middle = ((height + 1.0) / 2.0 * (rows - 1) as f64).round() as usize;
            let ink = match near {
                0.4.. => '#',
                -0.4.. => 'o',
                _ => '.',
            };
            for line in picture.iter_mut().take(middle + 2).skip(middle.saturating_sub(1)) {
                line[column] = ink;
            }
        }
    }
    let lines = picture.into_iter().map(|line| line.into_iter().collect::<String>());
    lines.map(|line| format!("{}\n", line.trim_end())).collect()
}

const CONFIG_ROW: CommandSpec = CommandSpec { flags: ADMIN, group: Group::Server, ..CommandSpec::ROW };

const CONFIG: &[CommandSpec] = &[
    CommandSpec {
        name: "get",
        arity: Arity::AtLeast(3),
        run: Run::Session(config_get),
        since: "2.0.0",
        syntax: "parameter [parameter ...]",
        summary: "Returns the effective values of configuration parameters.",
        complexity: "O(N) when N is the number of configuration parameters provided",
        ..CONFIG_ROW
    },
    CommandSpec { run: Run::Session(config_help), since: "5.0.0", group: Group::Server, ..CommandSpec::HELP },
    CommandSpec {
        name: "resetstat",
        arity: Arity::Exactly(2),
        run: Run::Session(config_resetstat),
        since: "2.0.0",
        summary: "Resets the server's statistics.",
        ..CONFIG_ROW
    },
    CommandSpec {
        name: "rewrite",
        arity: Arity::Exactly(2),
        flags: ADMIN.and(Flags::USES_FILES),
        run: Run::Session(config_rewrite),
        since: "2.8.0",
        summary: "Persists the effective configuration to file.",
        ..CONFIG_ROW
    },
    CommandSpec {
        name: "set",
        arity: Arity::AtLeast(4),
        flags: ADMIN.and(Flags::USES_FILES).and(Flags::SECRET_DIRECTIVES),
        run: Run::Barrier(config_set),
        since: "2.0.0",
        syntax: "parameter value [parameter value ...]",
        summary: "Sets configuration parameters in-flight.",
        complexity: "O(N) when N is the number of configuration parameters provided",
        tips: &["request_policy:all_nodes", "response_policy:all_succeeded"],
        ..CONFIG_ROW
    },
];

const CONFIG_HELP: &[&str] = &[
    "GET <pattern> [<pattern> ...]",
    "    Return the parameters that match, and their values.",
    "SET <directive> <value> [<directive> <value> ...]",
    "    Change parameters, all or none.",
    "RESETSTAT",
    "    Start the statistics of INFO over.",
    "REWRITE",
    "    Write the configuration that holds to the configuration file.",
];

fn config_help(_: &mut Call<'_, '_>, _: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    help(reply, "CONFIG", CONFIG_HELP)
}

fn config_get(call: &mut Call<'_, '_>, args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let patterns: Vec<&[u8]> = args.rest().collect();
    let found = call.config().get(&patterns, matches);
    reply.map(found.len());
    for (name, value) in found {
        // A parameter that is named exactly is returned in the client's spelling.
        let asked = patterns.iter().find(|pattern| pattern.eq_ignore_ascii_case(name.as_bytes()));
        reply.bulk(asked.copied().unwrap_or(name.as_bytes()));
        reply.bulk(&value);
    }
    Ok(())
}

fn matches(pattern: &[u8], text: &[u8]) -> bool {
    glob_match(pattern, text, Case::Insensitive)
}

fn config_set(call: &mut Call<'_, '_>, args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let words: Vec<&[u8]> = args.rest().collect();
    let (pairs, []) = words.as_chunks::<2>() else { return Err(CommandError::Syntax) };
    let pairs: Vec<(&[u8], &[u8])> = pairs.iter().map(|&[name, value]| (name, value)).collect();
    let server = call.server;
    let _writer = server.config_writer.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let mut config = Config::clone(&server.config.load());
    let refused = |error| CommandError::owned(format!("ERR {error}"));
    let changed = config.set(&pairs, call.session.record.peer.asker()).map_err(refused)?;
    config.check_at_run_time(&changed).map_err(refused)?;
    // While this value exists, the new AOF is kept.
    let log_begun = call.session.log_begun.take();
    if let (Some(LogBegun::Failed), true) = (&log_begun, config.appendonly) {
        return Err(CommandError::text(
            "ERR CONFIG SET failed (possibly related to argument 'appendonly') - Unable to turn on AOF. Check server logs.",
        ));
    }
    for directive in changed.iter().filter(|directive| !directive.has_effect()) {
        warning_later!("CONFIG SET: '{}' has no effect yet", directive.name);
    }
    find_descriptors(&config, server)?;
    let tls = read_certificates(&config, &pairs)?;
    // Certificates are in place before the first client that needs them can connect.
    let tls_before = tls.map(|tls| server.tls.swap(tls));
    if let Err(error) = listen_where(&config, server) {
        if let Some(before) = tls_before {
            server.tls.store(before);
        }
        return Err(error);
    }
    log::configure(&config);
    let password = config.requirepass.clone();
    let has_changed = password != server.config.load().requirepass;
    let (did_log, logs) = (server.config.load().appendonly, config.appendonly);
    server.set_config(config);
    call.renew_definitions();
    if has_changed {
        server.set_default_password(password.as_deref(), call.table, call.session, call.thread);
    }
    if let Some(held) = call.access.held() {
        events::settle(server, held);
    }
    server.limit_clients(call.thread);
    reply.ok();
    // The reply, or that of EXEC, waits until the change stream is on disk and the AOF's directory is free.
    if !logs && (did_log || server.durability.aof.has_file()) {
        call.session.ask(SessionRequest::Save { order: SaveOrder::EndLog, is_answered: false });
    }
    Ok(())
}

/// Whether a CONFIG SET with these words turns the AOF on.
///
/// The AOF is then begun before the command runs. Within a transaction it is begun afterwards, as in Redis.
pub(crate) fn turns_log_on(words: Words<'_>, server: &Server) -> bool {
    let is_set = |word: &[u8], name: &[u8]| word.eq_ignore_ascii_case(name);
    words.len() > 3
        && is_set(words.get(0), b"config")
        && is_set(words.get(1), b"set")
        && (2..words.len() - 1)
            .step_by(2)
            .any(|at| is_set(words.get(at), b"appendonly") && is_set(words.get(at + 1), b"yes"))
        && !server.config.load().appendonly
}

/// Ensures descriptors for as many clients as a new configuration admits.
fn find_descriptors(new: &Config, server: &Server) -> Outcome {
    if new.maxclients <= server.config.load().maxclients {
        return Ok(());
    }
    let n_possible = room_for_clients(new.maxclients, server.threads.len(), new);
    if n_possible < new.maxclients {
        return Err(CommandError::owned(format!(
            "ERR CONFIG SET failed (possibly related to argument 'maxclients') - The operating system is not able to handle the \
             specified number of clients, try with {n_possible}"
        )));
    }
    Ok(())
}

/// Reads certificates and keys if a CONFIG SET names a TLS directive.
///
/// It does so even if the value is the present one, as the files may have changed. Returns the replacement of
/// the present certificates, if there is one.
fn read_certificates(
    new: &Config,
    pairs: &[(&[u8], &[u8])],
) -> Result<Option<Option<Arc<Certificates>>>, CommandError> {
    let name = |(name, _): &(&[u8], &[u8])| name.to_ascii_lowercase();
    let Some(name) = pairs.iter().map(name).find(|name| name.starts_with(b"tls-")) else { return Ok(None) };
    if new.tls_port == 0 && !new.metrics_tls {
        return Ok(Some(None));
    }
    let read = certificates::read(new).map(|rules| Some(Some(rules)));
    read.map_err(|why| {
        let name = String::from_utf8_lossy(&name);
        warning_later!("Failed to configure TLS: {why}");
        CommandError::owned(format!(
            "ERR CONFIG SET failed (possibly related to argument '{name}') - Unable to update TLS configuration. {why}"
        ))
    })
}

/// Listens on the addresses of a new configuration.
///
/// It is the last step that may fail, so after a failure nothing has changed.
fn listen_where(new: &Config, server: &Server) -> Outcome {
    let old = server.config.load();
    let (name, why) = if old.port != new.port {
        ("port", "Unable to listen on this port. Check server logs.")
    } else if old.tls_port != new.tls_port {
        ("tls-port", "Unable to listen on this port. Check server logs.")
    } else if old.bind != new.bind {
        ("bind", "Failed to bind to specified addresses.")
    } else {
        return Ok(());
    };
    server.listening.change(new).map_err(|error| {
        warning_later!("{error}");
        CommandError::owned(format!("ERR CONFIG SET failed (possibly related to argument '{name}') - {why}"))
    })
}

fn config_resetstat(call: &mut Call<'_, '_>, _: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    for peer in &call.server.threads {
        peer.stats.reset();
    }
    call.server.keyspace.reset_stats();
    braid_storage::reset_reclaimed();
    reply.ok();
    Ok(())
}

fn config_rewrite(call: &mut Call<'_, '_>, _: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    rewrite_config(call, Appended::Changed, reply)
}

fn rewrite_config(call: &Call<'_, '_>, appended: Appended, reply: &mut Reply<'_>) -> Outcome {
    let server = call.server;
    let _writer = server.config_writer.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let mut config = Config::clone(&server.config.load());
    config.set_users(&acl::user_lines(server, &config, call.table));
    let path = config.file().ok_or(CommandError::text("ERR The server is running without a config file"))?;
    if let Err(error) = rewrite_file(path, &config, appended) {
        warning_later!("CONFIG REWRITE failed: {error}");
        return Err(CommandError::owned(format!("ERR Rewriting config file: {error}")));
    }
    warning_later!("CONFIG REWRITE executed with success.");
    reply.ok();
    Ok(())
}

/// Replaces a file atomically.
///
/// Readers, even after a crash, see the whole old or the whole new file.
fn rewrite_file(path: &Path, config: &Config, appended: Appended) -> io::Result<()> {
    let original = match read_regular(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
        read => read?,
    };
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(format!(".{}.tmp", std::process::id()));
    let temporary = Path::new(&temporary);
    let written = write_whole(temporary, &config.rewrite(&original, appended)).and_then(|()| {
        if let Ok(old) = fs::metadata(path) {
            fs::set_permissions(temporary, old.permissions())?;
        }
        fs::rename(temporary, path)
    });
    if written.is_err() {
        // A partial file is useless.
        let _ = fs::remove_file(temporary);
    }
    written
}

fn write_whole(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = fs::File::create(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

/// The key of a DEBUG subcommand, if it has one.
const DEBUG_KEY: KeysAt = KeysAt::Range { first: 2, last: 2, step: 1 };
const LOOKS: Keys = Keys(&[KeySpec { at: DEBUG_KEY, used: KeyUse::Look }]);
const DIGESTS: Keys =
    Keys(&[KeySpec { at: KeysAt::Range { first: 2, last: -1, step: 1 }, used: KeyUse::Read }]);
const OVERWRITES: Keys = Keys(&[KeySpec { at: DEBUG_KEY, used: KeyUse::Overwrite }]);

/// Base of DEBUG's subcommands. Each checks its number of arguments, because Redis knows DEBUG as one
/// command.
const DEBUG_ROW: CommandSpec =
    CommandSpec { arity: Arity::AtLeast(2), flags: DEBUGGING, group: Group::Server, ..CommandSpec::ROW };

const DEBUG: &[CommandSpec] = &[
    CommandSpec {
        name: "advance-time",
        run: Run::Session(debug_advance_time),
        since: "braid 0.1",
        syntax: "milliseconds",
        summary: "Lets time pass for keys' expiry, without waiting.",
        ..DEBUG_ROW
    },
    CommandSpec {
        name: "config-rewrite-force-all",
        run: Run::Session(debug_config_rewrite_force_all),
        summary: "Rewrites the configuration file with a line for every directive.",
        ..DEBUG_ROW
    },
    CommandSpec {
        name: "digest",
        run: Run::Everything(debug_digest),
        work: Work::held(work::everything),
        summary: "Returns a digest of all keys and values.",
        complexity: "O(N) where N is the size of the data",
        ..DEBUG_ROW
    },
    CommandSpec {
        name: "digest-value",
        keys: DIGESTS,
        run: Run::Transaction(debug_digest_value),
        work: Work::pinned(work::all_keys),
        syntax: "[key [key ...]]",
        summary: "Returns a digest of each key's value.",
        complexity: "O(N) where N is the size of the values",
        ..DEBUG_ROW
    },
    CommandSpec {
        name: "error",
        run: Run::Session(debug_error),
        syntax: "message",
        summary: "Returns an error.",
        ..DEBUG_ROW
    },
    CommandSpec {
        name: "help",
        run: Run::Session(debug_help),
        summary: "Returns helpful text about the different subcommands.",
        ..DEBUG_ROW
    },
    CommandSpec {
        name: "aof-fail",
        run: Run::Session(debug_aof_fail),
        syntax: "operation fault first count",
        summary: "Has the next operations of a kind on the append-only file fail or wait.",
        ..DEBUG_ROW
    },
    CommandSpec {
        name: "aof-flush-sleep",
        run: Run::Session(debug_aof_flush_sleep),
        syntax: "microseconds",
        summary: "Has each write to the append-only file take so much longer.",
        ..DEBUG_ROW
    },
    CommandSpec {
        name: "give-up-saving",
        run: Run::Session(debug_give_up_saving),
        summary: "Has the snapshot or the rewriting that is under way fail.",
        ..DEBUG_ROW
    },
    CommandSpec {
        name: "changes",
        run: Run::Session(debug_changes),
        summary: "Returns the changes of keys that were recorded since the last call.",
        ..DEBUG_ROW
    },
    CommandSpec {
        name: "logged",
        run: Run::Session(debug_logged),
        summary: "Returns what units have logged since the last call: of each the commands, of each of those its database and its words.",
        ..DEBUG_ROW
    },
    CommandSpec {
        name: "record-log",
        run: Run::Everything(debug_record_log),
        syntax: "on",
        summary: "Keeps what units log for DEBUG LOGGED, or no more.",
        ..DEBUG_ROW
    },
    CommandSpec {
        name: "record-changes",
        run: Run::Everything(debug_record_changes),
        syntax: "on",
        summary: "Records all changes of keys for DEBUG CHANGES, or no more.",
        ..DEBUG_ROW
    },
    CommandSpec {
        name: "hold-heavy",
        run: Run::Session(debug_hold_heavy),
        since: "braid 0.1",
        syntax: "<0 | 1>",
        summary: "Has heavy-work threads begin nothing new, as if they were busy, or go on.",
        ..DEBUG_ROW
    },
    CommandSpec {
        name: "hold-offloaded",
        run: Run::Session(debug_hold_offloaded),
        syntax: "on",
        summary: "Has offloaded work wait, its values being pinned, or go on.",
        ..DEBUG_ROW
    },
    CommandSpec {
        name: "io-threads-in-use",
        run: Run::Session(debug_io_threads_in_use),
        syntax: "count",
        summary: "Has so many threads serve connections, until the load asks for more or fewer.",
        ..DEBUG_ROW
    },
    CommandSpec {
        name: "log",
        run: Run::Session(debug_log),
        syntax: "message",
        summary: "Writes a line to the server's log.",
        ..DEBUG_ROW
    },
    CommandSpec {
        name: "object",
        keys: LOOKS,
        run: Run::Transaction(debug_object),
        syntax: "key",
        summary: "Describes how a key's value is stored.",
        ..DEBUG_ROW
    },
    CommandSpec {
        name: "observed-shards",
        run: Run::Everything(debug_observed_shards),
        since: "braid 0.1",
        summary: "Counts the shards in which somebody waits for keys, has pinned some, or hears of changes.",
        ..DEBUG_ROW
    },
    CommandSpec {
        name: "panic-after-change",
        keys: OVERWRITES,
        run: Run::Transaction(debug_panic_after_change),
        since: "braid 0.1",
        syntax: "key",
        summary: "Fails in the middle of a change, which stops the server.",
        ..DEBUG_ROW
    },
    CommandSpec {
        name: "panic-before-change",
        keys: OVERWRITES,
        run: Run::Transaction(debug_panic_before_change),
        since: "braid 0.1",
        syntax: "key",
        summary: "Fails before anything is changed, which the server survives.",
        ..DEBUG_ROW
    },
    CommandSpec {
        name: "panic-while-pinning",
        run: Run::Session(debug_panic_while_pinning),
        since: "braid 0.1",
        summary: "Has the next command whose work is offloaded fail when it pins its values, which the server survives.",
        ..DEBUG_ROW
    },
    CommandSpec {
        name: "panic-while-unpinning",
        run: Run::Session(debug_panic_while_unpinning),
        since: "braid 0.1",
        summary: "Has the next command whose work is offloaded fail before it stores its result, which the server survives.",
        ..DEBUG_ROW
    },
    CommandSpec {
        name: "panic-while-saving",
        run: Run::Session(debug_panic_while_saving),
        since: "braid 0.1",
        syntax: "[steps]",
        summary: "Has the next steps of a snapshot fail, which the server survives.",
        ..DEBUG_ROW
    },
    CommandSpec {
        name: "panic-without-keys",
        run: Run::Session(debug_panic_without_keys),
        since: "braid 0.1",
        summary: "Fails in a command that holds nothing, which the server survives.",
        ..DEBUG_ROW
    },
    CommandSpec {
        name: "pause-cron",
        run: Run::Session(debug_pause_cron),
        syntax: "<0 | 1>",
        summary: "Stops what the threads do ten times a second, timeouts and limits among it, and has them go on.",
        ..DEBUG_ROW
    },
    CommandSpec {
        name: "populate",
        flags: DEBUGGING.and(Flags::WRITE),
        run: Run::Everything(debug_populate),
        work: Work::held(work::everything),
        syntax: "count [prefix [size]]",
        summary: "Makes so many keys with strings, all at once.",
        ..DEBUG_ROW
    },
    CommandSpec {
        name: "protocol",
        run: Run::Session(debug_protocol),
        syntax: "type",
        summary: "Returns an example of a type of reply.",
        ..DEBUG_ROW
    },
    CommandSpec {
        name: "reload",
        flags: DEBUGGING.and(Flags::NO_MULTI),
        run: Run::Session(debug_reload),
        syntax: "[MERGE] [NOFLUSH] [NOSAVE]",
        summary: "Saves the keyspace and loads it again, in place of what is there or in addition to that.",
        ..DEBUG_ROW
    },
    CommandSpec {
        name: "loadaof",
        flags: DEBUGGING.and(Flags::NO_MULTI),
        run: Run::Session(debug_load_log),
        summary: "Loads the append-only file in place of what is there.",
        ..DEBUG_ROW
    },
    CommandSpec {
        name: "quicklist-packed-threshold",
        run: Run::Session(debug_quicklist_packed_threshold),
        syntax: "size",
        summary: "Accepted for test suites; no list has elements in nodes of their own, which this would be the size of.",
        ..DEBUG_ROW
    },
    CommandSpec {
        name: "replybuffer",
        run: Run::Session(debug_reply_buffer),
        syntax: "<RESIZING <0 | 1> | PEAK-RESET-TIME time>",
        summary: "Accepted for test suites; replies are composed in buffers of the threads, which no client makes larger.",
        ..DEBUG_ROW
    },
    CommandSpec {
        name: "segfault",
        run: Run::Session(debug_segfault),
        summary: "Has the server end as it would where it accesses memory that is not its own, with a report in its log.",
        ..DEBUG_ROW
    },
    CommandSpec {
        name: "set-active-expire",
        run: Run::Session(debug_set_active_expire),
        syntax: "<0 | 1>",
        summary: "Turns the expiry of keys that nobody asks for off and on.",
        ..DEBUG_ROW
    },
    CommandSpec {
        name: "set-disable-deny-scripts",
        run: Run::Session(debug_set_disable_deny_scripts),
        syntax: "<0 | 1>",
        summary: "Lets scripts run commands that are not for them, and stops that.",
        ..DEBUG_ROW
    },
    CommandSpec {
        name: "set-skip-checksum-validation",
        run: Run::Session(debug_set_skip_checksum_validation),
        syntax: "<0 | 1>",
        summary: "Has the checksums of RDB files and RESTORE's payloads not be compared, or compared again.",
        ..DEBUG_ROW
    },
    CommandSpec {
        name: "sleep",
        run: Run::Session(debug_sleep),
        syntax: "seconds",
        summary: "Holds back this connection, and no other, for so long.",
        ..DEBUG_ROW
    },
];

const DEBUG_HELP: &[&str] = &[
    "ADVANCE-TIME <milliseconds>",
    "    Let so much time pass for the expiry of keys.",
    "AOF-FAIL <CREATE|WRITE|RESERVE|SYNC|RENAME|SYNC-FOLDER|BASE> <NONE|HOLD|ENOSPC|EDQUOT|EIO|EROFS> <first> <count>",
    "    Have <count> operations of a kind on the append-only file fail, from the <first> that comes on, or wait until another fault is set.",
    "AOF-FLUSH-SLEEP <microseconds>",
    "    Have each write to the append-only file take so much longer.",
    "CONFIG-REWRITE-FORCE-ALL",
    "    Rewrite the configuration file with a line for every directive.",
    "DIGEST",
    "    Return a digest of all that is stored. Everybody else waits meanwhile.",
    "DIGEST-VALUE [<key> ...]",
    "    Return digests of the values of keys.",
    "ERROR <string>",
    "    Return an error with <string> as message.",
    "CHANGES",
    "    Return the changes of keys that were recorded since the last call: database, event and key of each.",
    "LOGGED",
    "    Return what units have logged since the last call.",
    "RECORD-LOG <0|1>",
    "    Keep what units log for DEBUG LOGGED, or no more.",
    "RECORD-CHANGES <0|1>",
    "    Record all changes of keys for DEBUG CHANGES, or no more.",
    "GIVE-UP-SAVING",
    "    Have the snapshot or the rewriting that is under way fail.",
    "HOLD-HEAVY <0|1>",
    "    Have heavy-work threads begin nothing new, as if they were busy, or go on.",
    "HOLD-OFFLOADED <0|1>",
    "    Have offloaded work wait, its values being pinned, or go on.",
    "IO-THREADS-IN-USE <count>",
    "    Have <count> threads serve connections, until the load asks for more or fewer.",
    "LOADAOF",
    "    Load the append-only file in place of what is there.",
    "LOG <message>",
    "    Write <message> to the server's log.",
    "OBJECT <key>",
    "    Describe how the value of <key> is stored.",
    "OBSERVED-SHARDS",
    "    Count the shards in which somebody waits for keys, has pinned some, or hears of changes.",
    "PANIC-AFTER-CHANGE <key>",
    "    Fail in the middle of a change: the server logs it and stops.",
    "PANIC-BEFORE-CHANGE <key>",
    "    Fail before anything is changed: the client gets an error.",
    "PANIC-WHILE-PINNING",
    "    Have the next command whose work is offloaded fail when it pins its values: its client gets an error.",
    "PANIC-WHILE-UNPINNING",
    "    Have the next command whose work is offloaded fail before it stores its result: its client gets an error.",
    "PANIC-WITHOUT-KEYS",
    "    Fail in a command that holds no key: the client gets an error.",
    "PAUSE-CRON <0|1>",
    "    Stop what the threads do ten times a second, or have them go on.",
    "POPULATE <count> [<prefix>] [<size>]",
    "    Make <count> string keys named <prefix>:<number>, of <size> bytes if that is given.",
    "    Keys that are there already stay. Everybody else waits meanwhile.",
    "PROTOCOL <type>",
    "    Return an example of a type: string, integer, double, bignum, null, array,",
    "    set, map, attrib, push, verbatim, true, false.",
    "QUICKLIST-PACKED-THRESHOLD <size>",
    "    Accepted for test suites, without effect: lists have no nodes for single elements.",
    "REPLYBUFFER <option> <value>",
    "    Accepted for test suites, without effect: no client has a buffer for replies.",
    "SEGFAULT",
    "    End as at an access to memory that is not the server's own: the log tells where.",
    "SET-ACTIVE-EXPIRE <0|1>",
    "    Turn the expiry of keys that nobody asks for off and on.",
    "SET-SKIP-CHECKSUM-VALIDATION <0|1>",
    "    Have the checksums of RDB files and RESTORE's payloads not be compared, or compared again.",
    "SLEEP <seconds>",
    "    Hold back this connection for <seconds>; others are served meanwhile.",
    "    Decimals are allowed.",
];

/// Fails unless there are `n` arguments.
pub(super) fn debug_args(args: Args<'_>, n: usize) -> Outcome {
    if args.remaining() == n {
        return Ok(());
    }
    Err(misused("DEBUG", args))
}

/// Reads the only argument, which turns something on unless it is 0.
fn debug_switch(mut args: Args<'_>) -> Result<bool, CommandError> {
    debug_args(args, 1)?;
    Ok(args.int()? != 0)
}

/// An unknown subcommand, which fails with any number of arguments.
fn debug_unknown(_: &mut Call<'_, '_>, args: Args<'_>, _: &mut Reply<'_>) -> Outcome {
    debug_args(args, usize::MAX)
}

fn debug_help(_: &mut Call<'_, '_>, args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    debug_args(args, 0)?;
    help(reply, "DEBUG", DEBUG_HELP)
}

fn debug_sleep(call: &mut Call<'_, '_>, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    debug_args(args, 1)?;
    let seconds = number::parse_f64(args.next()?).ok_or(CommandError::NotFloat)?;
    // The conversion saturates, and converts NaN to 0.
    let millis = (seconds * 1000.0) as u64;
    if millis > 0 {
        call.session.ask(SessionRequest::Sleep { millis, counts: TimeAccounting::AsWork });
    }
    reply.ok();
    Ok(())
}

fn debug_advance_time(call: &mut Call<'_, '_>, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    debug_args(args, 1)?;
    call.server.clock.advance(args.int()?);
    reply.ok();
    Ok(())
}

fn debug_set_active_expire(call: &mut Call<'_, '_>, args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let on = debug_switch(args)?;
    call.server.debug.active_expire.store(on, Ordering::Relaxed);
    reply.ok();
    Ok(())
}

fn debug_pause_cron(call: &mut Call<'_, '_>, args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let on = debug_switch(args)?;
    call.server.debug.pauses_cron.store(on, Ordering::Relaxed);
    reply.ok();
    Ok(())
}

fn debug_reply_buffer(_: &mut Call<'_, '_>, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    debug_args(args, 2)?;
    let given = args;
    if args.tag("RESIZING") {
        args.int()?;
    } else if !args.tag("PEAK-RESET-TIME") {
        return Err(misused("DEBUG", given));
    }
    reply.ok();
    Ok(())
}

fn debug_set_disable_deny_scripts(call: &mut Call<'_, '_>, args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let on = debug_switch(args)?;
    call.server.debug.allows_all_in_scripts.store(on, Ordering::Relaxed);
    reply.ok();
    Ok(())
}

fn debug_set_skip_checksum_validation(
    call: &mut Call<'_, '_>,
    mut args: Args<'_>,
    reply: &mut Reply<'_>,
) -> Outcome {
    debug_args(args, 1)?;
    // As in Redis, an invalid number counts as 0.
    let skips = number::parse_i64(args.next()?).is_some_and(|number| number != 0);
    call.server.debug.skips_checksums.store(skips, Ordering::Relaxed);
    reply.ok();
    Ok(())
}

fn debug_hold_heavy(call: &mut Call<'_, '_>, args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let on = debug_switch(args)?;
    call.server.debug.holds_heavy.store(on, Ordering::Relaxed);
    call.server.wake_heavy();
    reply.ok();
    Ok(())
}

fn debug_record_changes(call: &mut Call<'_, '_>, args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let on = debug_switch(args)?;
    call.server.debug.records_changes.store(on, Ordering::Relaxed);
    call.each_shard(call.session.db, |shard| shard.hear_all(hearers::RECORDER, on));
    reply.ok();
    Ok(())
}

fn debug_record_log(call: &mut Call<'_, '_>, args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let on = debug_switch(args)?;
    let is_logged = on || call.server.durability.aof.is_writing();
    call.each_shard(call.session.db, |shard| shard.hear_all(record::LOG, is_logged));
    call.server.durability.keep_records(on);
    reply.ok();
    Ok(())
}

fn debug_logged(call: &mut Call<'_, '_>, args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    debug_args(args, 0)?;
    let units = call.server.durability.record_log.take();
    reply.array(units.len());
    for unit in units {
        reply.array(unit.len());
        for (db, words) in unit {
            reply.array(1 + words.len());
            reply.integer(db.0.into());
            words.iter().for_each(|word| reply.bulk(word));
        }
    }
    Ok(())
}

fn debug_changes(call: &mut Call<'_, '_>, args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    debug_args(args, 0)?;
    let recorded = call.server.debug.recorder.take();
    reply.array(recorded.len());
    for Recorded { db, event, key } in recorded {
        let key = key.as_deref().map_or(String::new(), |key| format!(" {}", shown(key)));
        reply.bulk(format!("{} {}{key}", db.0, event.name()).as_bytes());
    }
    Ok(())
}

fn debug_aof_fail(call: &mut Call<'_, '_>, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    debug_args(args, 4)?;
    let operation = Operation::named(args.next()?).ok_or(CommandError::Syntax)?;
    let fault = Fault::named(args.next()?).ok_or(CommandError::Syntax)?;
    let first = args.int()?.max(1) as u64;
    call.server.durability.faults().plan(
        operation,
        fault,
        first..first.saturating_add(args.int()?.max(0) as u64),
    );
    reply.ok();
    Ok(())
}

fn debug_aof_flush_sleep(call: &mut Call<'_, '_>, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    debug_args(args, 1)?;
    call.server.durability.delay_writes(Duration::from_micros(args.int()?.max(0) as u64));
    reply.ok();
    Ok(())
}

fn debug_give_up_saving(call: &mut Call<'_, '_>, args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    debug_args(args, 0)?;
    let saves = &call.server.saves;
    // A rewrite that was just requested may not have begun.
    let will_rewrite = saves.is_rewrite_scheduled.load(Ordering::Relaxed)
        || call.server.config.load().appendonly && !call.server.durability.aof.is_writing();
    let is_under_way = [&saves.is_under_way, &saves.is_rewriting].iter().any(|is| is.load(Ordering::Relaxed));
    if !is_under_way && !will_rewrite {
        return Err(CommandError::text("ERR nothing is being saved"));
    }
    saves.is_given_up.store(true, Ordering::Relaxed);
    reply.ok();
    Ok(())
}

fn debug_hold_offloaded(call: &mut Call<'_, '_>, args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let on = debug_switch(args)?;
    call.server.debug.holds_offloaded.store(on, Ordering::Relaxed);
    call.server.wake_heavy();
    reply.ok();
    Ok(())
}

fn debug_io_threads_in_use(call: &mut Call<'_, '_>, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    debug_args(args, 1)?;
    let n = usize::try_from(args.int()?).unwrap_or(0);
    if n == 0 || n > call.server.io_threads().len() {
        return Err(CommandError::text("ERR count must be between 1 and io-threads"));
    }
    call.server.spread.use_some(n);
    reply.ok();
    Ok(())
}

fn debug_config_rewrite_force_all(call: &mut Call<'_, '_>, args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    debug_args(args, 0)?;
    rewrite_config(call, Appended::All, reply)
}

/// The largest element of a packed node that Redis accepts: almost 4 GiB.
const PACKED_THRESHOLD_MAX: u64 = (1 << 32) - (1 << 20);

fn debug_quicklist_packed_threshold(
    _: &mut Call<'_, '_>,
    mut args: Args<'_>,
    reply: &mut Reply<'_>,
) -> Outcome {
    debug_args(args, 1)?;
    config::memory(args.next()?).filter(|&bytes| bytes <= PACKED_THRESHOLD_MAX).ok_or(CommandError::text(
        "ERR argument must be a memory value bigger than 1 and smaller than 4gb",
    ))?;
    reply.ok();
    Ok(())
}

fn debug_populate(call: &mut Call<'_, '_>, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    debug_args(args, args.remaining().clamp(1, 3))?;
    let n_keys = positive(args.next()?)?;
    let prefix = if args.is_empty() { b"key".as_slice() } else { args.next()? };
    let size = if args.is_empty() { None } else { Some(positive(args.next()?)?).filter(|&size| size > 0) };
    if size.is_some_and(|size| size > call.server.config.load().proto_max_bulk_len as u64) {
        return Err(StorageError::TooLong.into());
    }
    for number in 0..n_keys {
        let bytes = [prefix, format!(":{number}").as_bytes()].concat();
        let key = Key { bytes: &bytes, routed: args.router().route(&bytes) };
        let shard = call.shard_of(&key);
        if shard.peek(&key).is_none() {
            let mut value = format!("value:{number}").into_bytes();
            if let Some(size) = size {
                value.resize(size as usize, 0);
            }
            shard.put_string(&key, &value, Expiry::Clear, Event::Populated);
        }
    }
    reply.ok();
    Ok(())
}

fn positive(word: &[u8]) -> Result<u64, CommandError> {
    number::parse_i64(word)
        .and_then(|number| u64::try_from(number).ok())
        .ok_or(CommandError::text("ERR value is out of range, must be positive"))
}

fn debug_error(_: &mut Call<'_, '_>, mut args: Args<'_>, _: &mut Reply<'_>) -> Outcome {
    debug_args(args, 1)?;
    Err(CommandError::owned(String::from_utf8_lossy(args.next()?).into_owned()))
}

fn debug_log(_: &mut Call<'_, '_>, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    debug_args(args, 1)?;
    // Escaped, so that the client's text cannot look like further lines of the server log.
    warning_later!("DEBUG LOG: {}", args.next()?.escape_ascii());
    reply.ok();
    Ok(())
}

fn debug_segfault(_: &mut Call<'_, '_>, args: Args<'_>, _: &mut Reply<'_>) -> Outcome {
    debug_args(args, 0)?;
    raise(Signal::SIGSEGV).map_err(|_| CommandError::text("ERR the system has refused to send the signal"))
}

fn debug_object(call: &mut Call<'_, '_>, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    debug_args(args, 1)?;
    let key = args.key()?;
    let shard = call.shard_of(&key);
    let now = shard.now();
    let entry = shard.peek(&key).ok_or(CommandError::NoSuchKey)?;
    let text = format!(
        "Value at:{:p} refcount:1 encoding:{} serializedlength:{} lru:{} lru_seconds_idle:{}",
        entry.key().as_ptr(),
        encoding_name(entry),
        entry.bytes().map_or_else(|| entry.allocated_bytes(), <[u8]>::len),
        entry.access_clock().bits(),
        braid_storage::lru::idle_seconds(entry, now),
    );
    reply.simple(&text);
    Ok(())
}

fn debug_observed_shards(call: &mut Call<'_, '_>, args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    debug_args(args, 0)?;
    let held = call.access.expect_held();
    let ids = held.ids().to_vec();
    reply.integer(ids.into_iter().filter(|&id| held.shard(id).has_observers()).count() as i64);
    Ok(())
}

fn debug_panic_before_change(call: &mut Call<'_, '_>, mut args: Args<'_>, _: &mut Reply<'_>) -> Outcome {
    debug_args(args, 1)?;
    let key = args.key()?;
    call.shard_of(&key).peek(&key);
    panic!("DEBUG PANIC-BEFORE-CHANGE");
}

fn debug_panic_while_pinning(call: &mut Call<'_, '_>, args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    debug_args(args, 0)?;
    call.server.debug.panics_while_pinning.store(true, Ordering::Relaxed);
    reply.ok();
    Ok(())
}

fn debug_panic_while_saving(call: &mut Call<'_, '_>, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    debug_args(args, args.remaining().min(1))?;
    let n_steps = if args.is_empty() { 1 } else { args.int()? };
    call.server.debug.panics_while_saving.store(u32::try_from(n_steps).unwrap_or(0), Ordering::Relaxed);
    reply.ok();
    Ok(())
}

fn debug_panic_while_unpinning(call: &mut Call<'_, '_>, args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    debug_args(args, 0)?;
    call.server.debug.panics_while_unpinning.store(true, Ordering::Relaxed);
    reply.ok();
    Ok(())
}

fn debug_panic_without_keys(_: &mut Call<'_, '_>, args: Args<'_>, _: &mut Reply<'_>) -> Outcome {
    debug_args(args, 0)?;
    panic!("DEBUG PANIC-WITHOUT-KEYS");
}

fn debug_panic_after_change(call: &mut Call<'_, '_>, mut args: Args<'_>, _: &mut Reply<'_>) -> Outcome {
    debug_args(args, 1)?;
    let key = args.key()?;
    tear(call.shard_of(&key), &key);
    panic!("DEBUG PANIC-AFTER-CHANGE");
}

fn tear(shard: &mut Shard, key: &Key<'_>) {
    shard.put_string(key, b"", Expiry::Keep, Event::Set);
}

#[expect(clippy::approx_constant, reason = "clients' tests expect these three digits")]
fn debug_protocol(_: &mut Call<'_, '_>, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    debug_args(args, 1)?;
    match &args.next()?.to_ascii_lowercase()[..] {
        b"string" => reply.bulk(b"Hello World"),
        b"integer" => reply.integer(12_345),
        b"double" => reply.double(3.141),
        b"null" => reply.null(),
        b"bignum" => reply.big_number("1234567999999999999999999999999999999"),
        b"array" => {
            reply.array(3);
            (0..3).for_each(|n| reply.integer(n));
        }
        b"set" => {
            reply.set(3);
            (0..3).for_each(|n| reply.integer(n));
        }
        b"map" => {
            reply.map(3);
            for n in 0..3 {
                reply.integer(n);
                reply.boolean(n == 1);
            }
        }
        b"attrib" => {
            if reply.attribute(1) {
                reply.bulk(b"key-popularity");
                reply.array(2);
                reply.bulk(b"key:123");
                reply.integer(90);
            }
            reply.bulk(b"Some real reply following the attribute");
        }
        b"push" if reply.version() == Resp::V2 => {
            return Err(CommandError::text("ERR RESP2 is not supported by this command"));
        }
        b"push" => {
            reply.push(2);
            reply.bulk(b"server-cpu-usage");
            reply.integer(42);
            reply.bulk(b"Some real reply following the push reply");
        }
        b"verbatim" => reply.verbatim(b"txt", b"This is a verbatim\nstring"),
        b"true" => reply.boolean(true),
        b"false" => reply.boolean(false),
        _ => {
            return Err(CommandError::text(
                "ERR Wrong protocol type name. Please use one of the following: \
                 string|integer|double|bignum|null|array|set|map|attrib|push|verbatim|true|false",
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_braid_fills_its_frame() {
        for (columns, rows) in [(64, 11), (1, 1), (3, 2)] {
            let picture = braid(columns, rows, 2.5);
            assert_eq!(picture.lines().count(), rows);
            assert!(picture.lines().all(|line| line.len() <= columns));
            assert!(picture.contains(['#', 'o', '.']));
        }
    }
}
