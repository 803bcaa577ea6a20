//! SLOWLOG and COMMANDLOG: commands that took long, or had a large request or reply.

use braid_protocol::{number::parse_i64, reply::Reply};

use crate::{
    catalog::{Args, Arity, CommandError, Flags, Group, Outcome},
    command::{
        Call, CommandSpec, Run,
        help::{help, misused},
    },
    telemetry::command_log::LogOf,
};

const ANY_TIME: Flags = Flags::LOADING.and(Flags::STALE);
const ADMIN: CommandSpec =
    CommandSpec { flags: ANY_TIME.and(Flags::ADMIN), group: Group::Server, ..CommandSpec::ROW };

pub(in crate::command) const COMMANDS: &[CommandSpec] = &[
    CommandSpec {
        name: "slowlog",
        arity: Arity::AtLeast(2),
        since: "2.2.12",
        group: Group::Server,
        summary: "A container for commands about the slow log.",
        complexity: "Depends on subcommand.",
        subcommands: SLOWLOG,
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "commandlog",
        arity: Arity::AtLeast(2),
        since: "valkey 8.1.0",
        group: Group::Server,
        summary: "A container for commands about the logs of slow commands, large requests and large replies.",
        complexity: "Depends on subcommand.",
        subcommands: COMMANDLOG,
        ..CommandSpec::ROW
    },
];

const GET: CommandSpec = CommandSpec {
    name: "get",
    complexity: "O(N) where N is the number of entries returned",
    tips: &["request_policy:all_nodes", "nondeterministic_output"],
    ..ADMIN
};
const HELP: CommandSpec = CommandSpec { group: Group::Server, ..CommandSpec::HELP };
const LEN: CommandSpec = CommandSpec {
    name: "len",
    complexity: "O(N) where N is the number of entries",
    tips: &["request_policy:all_nodes", "response_policy:agg_sum", "nondeterministic_output"],
    ..ADMIN
};
const RESET: CommandSpec = CommandSpec {
    name: "reset",
    complexity: "O(N) where N is the number of entries",
    tips: &["request_policy:all_nodes", "response_policy:all_succeeded"],
    ..ADMIN
};

const SLOWLOG: &[CommandSpec] = &[
    CommandSpec {
        arity: Arity::AtLeast(2),
        run: Run::Session(slowlog_get),
        since: "2.2.12",
        syntax: "[count]",
        summary: "Returns the newest entries of the slow log.",
        ..GET
    },
    CommandSpec { run: Run::Session(slowlog_help), since: "6.2.0", ..HELP },
    CommandSpec {
        arity: Arity::Exactly(2),
        run: Run::Session(slowlog_len),
        since: "2.2.12",
        summary: "Returns how many entries the slow log has.",
        ..LEN
    },
    CommandSpec {
        arity: Arity::Exactly(2),
        run: Run::Session(slowlog_reset),
        since: "2.2.12",
        summary: "Clears all entries from the slow log.",
        ..RESET
    },
];

const SLOWLOG_HELP: &[&str] = &[
    "GET [<count>]",
    "    Return top <count> entries from the slowlog (default: 10, -1 mean all).",
    "    Entries are made of:",
    "    id, timestamp, time in microseconds, arguments array, client IP and port,",
    "    client name",
    "LEN",
    "    Return the length of the slowlog.",
    "RESET",
    "    Reset the slowlog.",
];

const COMMANDLOG: &[CommandSpec] = &[
    CommandSpec {
        arity: Arity::Exactly(4),
        run: Run::Session(commandlog_get),
        since: "valkey 8.1.0",
        syntax: "count <SLOW | LARGE-REQUEST | LARGE-REPLY>",
        summary: "Returns the newest entries of a log of commands.",
        ..GET
    },
    CommandSpec { run: Run::Session(commandlog_help), since: "valkey 8.1.0", ..HELP },
    CommandSpec {
        arity: Arity::Exactly(3),
        run: Run::Session(commandlog_len),
        since: "valkey 8.1.0",
        syntax: "<SLOW | LARGE-REQUEST | LARGE-REPLY>",
        summary: "Returns how many entries a log of commands has.",
        ..LEN
    },
    CommandSpec {
        arity: Arity::Exactly(3),
        run: Run::Session(commandlog_reset),
        since: "valkey 8.1.0",
        syntax: "<SLOW | LARGE-REQUEST | LARGE-REPLY>",
        summary: "Clears all entries from a log of commands.",
        ..RESET
    },
];

const COMMANDLOG_HELP: &[&str] = &[
    "GET <count> <type>",
    "    Return top <count> entries of the specified <type> from the commandlog (-1 mean all).",
    "    Entries are made of:",
    "    id, timestamp,",
    "        time in microseconds for type of slow,",
    "        or size in bytes for type of large-request,",
    "        or size in bytes for type of large-reply",
    "    arguments array, client IP and port,",
    "    client name",
    "LEN <type>",
    "    Return the length of the specified type of commandlog.",
    "RESET <type>",
    "    Reset the specified type of commandlog.",
];

/// Default number of entries that SLOWLOG GET returns.
const DEFAULT_COUNT: usize = 10;

fn slowlog_help(_: &mut Call<'_, '_>, _: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    help(reply, "SLOWLOG", SLOWLOG_HELP)
}

fn slowlog_get(call: &mut Call<'_, '_>, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    if args.remaining() > 1 {
        return Err(misused("SLOWLOG", args));
    }
    let count = if args.is_empty() { DEFAULT_COUNT } else { count(args.next()?)? };
    write_newest(call, LogOf::Slow, count, reply)
}

fn slowlog_len(call: &mut Call<'_, '_>, _: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    write_len(call, LogOf::Slow, reply)
}

fn slowlog_reset(call: &mut Call<'_, '_>, _: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    reset(call, LogOf::Slow, reply)
}

fn commandlog_help(_: &mut Call<'_, '_>, _: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    help(reply, "COMMANDLOG", COMMANDLOG_HELP)
}

fn commandlog_get(call: &mut Call<'_, '_>, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let count = count(args.next()?)?;
    write_newest(call, log_of(args.next()?)?, count, reply)
}

fn commandlog_len(call: &mut Call<'_, '_>, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    write_len(call, log_of(args.next()?)?, reply)
}

fn commandlog_reset(call: &mut Call<'_, '_>, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    reset(call, log_of(args.next()?)?, reply)
}

/// Reads a number of entries; -1 means all.
fn count(word: &[u8]) -> Result<usize, CommandError> {
    match parse_i64(word) {
        Some(-1) => Ok(usize::MAX),
        Some(count @ 0..) => Ok(count as usize),
        _ => Err(CommandError::text("ERR count should be greater than or equal to -1")),
    }
}

fn log_of(word: &[u8]) -> Result<LogOf, CommandError> {
    let logs = [
        ("slow", LogOf::Slow),
        ("large-request", LogOf::LargeRequests),
        ("large-reply", LogOf::LargeReplies),
    ];
    let named = logs.into_iter().find(|(name, _)| name.as_bytes().eq_ignore_ascii_case(word));
    named.map(|(_, log)| log).ok_or(CommandError::text(
        "ERR type should be one of the following: slow, large-request, large-reply",
    ))
}

fn write_newest(call: &Call<'_, '_>, log: LogOf, count: usize, reply: &mut Reply<'_>) -> Outcome {
    let entries = call.server.command_log.newest(log, count);
    reply.array(entries.len());
    for entry in entries {
        let what = &entry.what;
        reply.array(6);
        reply.integer(entry.id as i64);
        reply.integer(what.unix_seconds as i64);
        reply.integer(what.amount as i64);
        reply.array(what.words.len());
        what.words.iter().for_each(|word| reply.bulk(word));
        reply.bulk(what.peer.as_bytes());
        reply.bulk(what.name.as_bytes());
    }
    Ok(())
}

fn write_len(call: &Call<'_, '_>, log: LogOf, reply: &mut Reply<'_>) -> Outcome {
    reply.integer(call.server.command_log.len(log) as i64);
    Ok(())
}

fn reset(call: &Call<'_, '_>, log: LogOf, reply: &mut Reply<'_>) -> Outcome {
    call.server.command_log.reset(log);
    reply.ok();
    Ok(())
}
