//! DEBUG: orders for tests.

use std::{sync::atomic::Ordering, time::Duration};

use braid_journal::faults::{Fault, Operation};
use braid_protocol::{
    number,
    reply::{Reply, Resp},
};
use braid_storage::{
    entry::{db::Db, key::Key, lru, time::Expiry},
    error::StorageError,
    keyspace::shard::Shard,
    observers::{event::Event, record},
    types::kinds::encoding_name,
};
use nix::sys::signal::{Signal, raise};

use super::{
    config_command::rewrite_config,
    digest::{debug_digest, debug_digest_value},
    row_flags::DEBUGGING,
    saving::ask_saver,
};
use crate::{
    catalog::{Args, Arity, CommandError, Flags, Group, KeySpec, KeyUse, Keys, KeysAt, Outcome, shown},
    client::session::{Reloading, SaveOrder, SessionRequest, TimeAccounting},
    command::{
        Call, CommandSpec, Log, Run, Work,
        help::{help, misused},
        work,
    },
    config::{self, Appended},
    observe::hearers,
    shared::change_log::Recorded,
    warning_later,
};

pub(super) const DEBUG: CommandSpec = CommandSpec {
    name: "debug",
    arity: Arity::AtLeast(2),
    flags: DEBUGGING,
    run: Run::Session(debug_unknown),
    since: "1.0.0",
    group: Group::Server,
    summary: "A container for debugging commands.",
    complexity: "Depends on subcommand.",
    subcommands: SUBCOMMANDS,
    ..CommandSpec::ROW
};

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

const SUBCOMMANDS: &[CommandSpec] = &[
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
        name: "htstats",
        flags: DEBUGGING.and(Flags::ADDS_UP_TABLES),
        run: Run::Session(debug_htstats),
        syntax: "database",
        summary: "Tells the size of a database's tables.",
        complexity: "O(N) where N is the number of segments of all tables",
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
        log: Log::Given,
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
        name: "replicate",
        run: Run::Session(debug_replicate),
        syntax: "command [argument [argument ...]]",
        summary: "Sends a command to the replicas.",
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
    "HTSTATS <dbid>",
    "    Return the size of a database's tables.",
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
    "REPLICATE <command> [<argument> ...]",
    "    Send a command to the replicas, which need not know it.",
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
/// Subcommands of Redis and Valkey about parts that this server does not have, with the reason.
const ABSENT: &[(&str, &str)] = &[
    ("DICT-RESIZING", "tables grow and shrink a segment at a time, and cannot be held back"),
    ("HASHTABLE-CAN-ABORT-SHRINK", "tables shrink a segment at a time"),
    ("HTSTATS-KEY", "DEBUG OBJECT and MEMORY USAGE tell the size of a value"),
    ("LISTPACK", "DEBUG OBJECT tells the encoding of a value, and DUMP its elements"),
    ("QUICKLIST", "DEBUG OBJECT tells the encoding of a value, and DUMP its elements"),
    ("MALLCTL", "the allocator is not jemalloc. MEMORY MALLOC-STATS has its figures"),
    ("MALLCTL-STR", "the allocator is not jemalloc. MEMORY MALLOC-STATS has its figures"),
    ("PAUSE-AFTER-FORK", "the server does not fork"),
    ("SDSLEN", "MEMORY USAGE tells the size of a key and its value"),
    ("STRUCTSIZE", "MEMORY STATS tells what memory is used for"),
];

fn debug_unknown(_: &mut Call<'_, '_>, mut args: Args<'_>, _: &mut Reply<'_>) -> Outcome {
    if let Some((name, why)) = ABSENT.iter().find(|(name, _)| args.tag(name)) {
        return Err(CommandError::owned(format!("ERR DEBUG {name} is not available: {why}")));
    }
    debug_args(args, usize::MAX)
}

fn debug_help(_: &mut Call<'_, '_>, args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    debug_args(args, 0)?;
    help(reply, "DEBUG", DEBUG_HELP)
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

fn debug_replicate(call: &mut Call<'_, '_>, args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    debug_args(args, args.remaining().max(1))?;
    let words: Vec<&[u8]> = args.rest().collect();
    call.thread.log_for_replicas(&words);
    reply.ok();
    Ok(())
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
    let kinds = [&saves.is_under_way, &saves.is_rewriting, &saves.is_copying];
    let is_under_way = kinds.iter().any(|is| is.load(Ordering::Relaxed));
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
            // Other servers make other values, or have no such command.
            shard.log(&[b"SET", &bytes, &value]);
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

/// Answers in the outline of Redis, with the figures that these tables have.
fn debug_htstats(call: &mut Call<'_, '_>, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    debug_args(args, 1)?;
    let n_databases = call.server.config.load().databases;
    let number = u32::try_from(args.int()?).ok().filter(|number| (*number as usize) < n_databases);
    let db = Db(number.ok_or(CommandError::text("ERR Out of range database"))?);
    let keyspace = &call.server.keyspace;
    let bytes = keyspace.table_bytes().get(&db).copied().unwrap_or_default();
    let found = keyspace.databases().into_iter().find(|(of, _)| *of == db);
    let counts = found.map(|(_, counts)| counts).unwrap_or_default();
    let text = format!(
        "[Dictionary HT]\nHash table 0 stats (main hash table):\n number of elements: {}\n bytes of the table: {bytes}\n\
         [Expires HT]\nHash table 0 stats (main hash table):\n number of elements: {}\n",
        counts.n_keys, counts.n_deadlines
    );
    reply.verbatim(b"txt", text.as_bytes());
    Ok(())
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
    let entry = shard.inspect_stored(&key).ok_or(CommandError::NoSuchKey)?;
    let text = format!(
        "Value at:{:p} refcount:1 encoding:{} serializedlength:{} lru:{} lru_seconds_idle:{}",
        entry.key().as_ptr(),
        encoding_name(entry),
        entry.bytes().map_or_else(|| entry.allocated_bytes(), <[u8]>::len),
        entry.access_clock().bits(),
        lru::idle_seconds(entry, now),
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
