//! HOTKEYS: the keys that use the most time and the most bytes.

use std::time::Duration;

use braid_protocol::{number::parse_i64, reply::Reply};

use crate::{
    catalog::{Args, Arity, CommandError, Flags, Group, Outcome},
    command::{Call, CommandSpec, Run, help::help},
    telemetry::hot_keys::{HotKeysOptions, Report},
};

const ADMIN: CommandSpec = CommandSpec {
    flags: Flags::ADMIN.and(Flags::NOSCRIPT),
    group: Group::Server,
    since: "8.6.0",
    ..CommandSpec::ROW
};

pub(in crate::command) const COMMANDS: &[CommandSpec] = &[CommandSpec {
    name: "hotkeys",
    arity: Arity::AtLeast(2),
    since: "8.6.0",
    group: Group::Server,
    summary: "A container for commands about the keys that cost the most.",
    complexity: "Depends on subcommand.",
    subcommands: HOTKEYS,
    ..CommandSpec::ROW
}];

const HOTKEYS: &[CommandSpec] = &[
    CommandSpec {
        name: "get",
        arity: Arity::Exactly(2),
        run: Run::Session(get),
        summary: "Returns the keys that cost the most, and what the server did while they were tracked.",
        complexity: "O(K*T) where K is the number of keys that are told apart and T the number of threads",
        tips: &["nondeterministic_output"],
        ..ADMIN
    },
    CommandSpec { run: Run::Session(show_help), since: "8.6.1", group: Group::Server, ..CommandSpec::HELP },
    CommandSpec {
        name: "reset",
        arity: Arity::Exactly(2),
        run: Run::Session(reset),
        summary: "Forgets which keys cost the most.",
        ..ADMIN
    },
    CommandSpec {
        name: "start",
        arity: Arity::AtLeast(2),
        run: Run::Session(start),
        syntax: "METRICS count [CPU] [NET] [COUNT k] [DURATION seconds] [SAMPLE ratio] [SLOTS count slot [slot ...]]",
        summary: "Begins to track what keys cost.",
        ..ADMIN
    },
    CommandSpec {
        name: "stop",
        arity: Arity::Exactly(2),
        run: Run::Session(stop),
        summary: "Ends the tracking of what keys cost, and keeps what was found.",
        ..ADMIN
    },
];

const HELP: &[&str] = &[
    "GET",
    "    Return the hottest keys of the current tracking, or of the last one.",
    "RESET",
    "    Forget what was found. Tracking must have stopped.",
    "START METRICS <count> [CPU] [NET] [COUNT <k>] [DURATION <seconds>] [SAMPLE <ratio>]",
    "    Start tracking keys by processor time (CPU) or bytes of the network (NET).",
    "STOP",
    "    Stop tracking, and keep what was found.",
];

/// Number of metrics.
const N_METRICS: i64 = 2;
/// Default number of keys for each metric in HOTKEYS GET.
const DEFAULT_COUNT: usize = 10;
/// The longest duration that START accepts, in seconds, as in Redis.
const DURATION_MAX_SECONDS: i64 = 1_000_000;

const SLOTS_WITHOUT_CLUSTER: CommandError =
    CommandError::text("ERR SLOTS parameter cannot be used in non-cluster mode");
const NO_METRICS: CommandError = CommandError::text("ERR METRICS parameter is required");
const METRICS_COUNT: CommandError = CommandError::text("ERR METRICS count must be > 0 and <= 2");

fn show_help(_: &mut Call<'_, '_>, _: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    help(reply, "HOTKEYS", HELP)
}

fn start(call: &mut Call<'_, '_>, args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    call.server.end_hot_keys_in_time();
    if call.server.hot_keys.is_active() {
        return Err(IN_PROGRESS);
    }
    let asked = asked(args)?;
    if !call.server.track_hot_keys(asked) {
        return Err(IN_PROGRESS);
    }
    reply.ok();
    Ok(())
}

const IN_PROGRESS: CommandError = CommandError::text("ERR hotkey tracking session already in progress");

fn stop(call: &mut Call<'_, '_>, _: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    call.server.end_hot_keys_in_time();
    if call.server.end_hot_keys() {
        reply.ok()
    } else {
        reply.null()
    }
    Ok(())
}

fn reset(call: &mut Call<'_, '_>, _: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    call.server.end_hot_keys_in_time();
    call.server
        .hot_keys
        .reset()
        .map_err(|_| CommandError::text("ERR hotkey tracking session in progress, stop tracking first"))?;
    reply.ok();
    Ok(())
}

fn get(call: &mut Call<'_, '_>, _: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    call.server.end_hot_keys_in_time();
    match call.server.hot_key_report() {
        Some(report) => write(&report, reply),
        None => reply.null(),
    }
    Ok(())
}

/// Reads the arguments of START.
fn asked(mut args: Args<'_>) -> Result<HotKeysOptions, CommandError> {
    let (time, bytes) = metrics(&mut args)?;
    let mut asked = HotKeysOptions { time, bytes, count: DEFAULT_COUNT, duration: None, sample: 1 };
    while !args.is_empty() {
        // A last word that needs a value is no option.
        let has_value = args.remaining() > 1;
        if has_value && args.tag("count") {
            let count = in_range(&mut args, 1, 64, "ERR COUNT must be between 1 and 64")?;
            asked.count = count as usize;
        } else if has_value && args.tag("duration") {
            let refusal = "ERR DURATION must be between 1 and 1000000";
            let seconds = in_range(&mut args, 1, DURATION_MAX_SECONDS, refusal)?;
            asked.duration = Some(Duration::from_secs(seconds as u64));
        } else if has_value && args.tag("sample") {
            let most = i32::MAX.into();
            let sample = in_range(&mut args, 1, most, "ERR SAMPLE ratio must be positive")?;
            asked.sample = sample as u32;
        } else if has_value && args.tag("slots") {
            return Err(SLOTS_WITHOUT_CLUSTER);
        } else {
            return Err(CommandError::Syntax);
        }
    }
    Ok(asked)
}

/// Reads the requested metrics: time, bytes. Unknown names are reserved for later versions.
fn metrics(args: &mut Args<'_>) -> Result<(bool, bool), CommandError> {
    if args.remaining() < 2 || !args.tag("metrics") {
        return Err(NO_METRICS);
    }
    let n_metrics = parse_i64(args.next()?).filter(|n| (1..=N_METRICS).contains(n)).ok_or(METRICS_COUNT)?;
    let (mut time, mut bytes) = (false, false);
    for _ in 0..n_metrics {
        if args.is_empty() {
            return Err(CommandError::text(
                "ERR METRICS count does not match number of metric types provided",
            ));
        }
        if args.tag("cpu") {
            if std::mem::replace(&mut time, true) {
                return Err(CommandError::text("ERR METRICS CPU defined more than once!"));
            }
        } else if args.tag("net") {
            if std::mem::replace(&mut bytes, true) {
                return Err(CommandError::text("ERR METRICS NET defined more than once!"));
            }
        } else {
            args.next()?;
        }
    }
    if !time && !bytes {
        return Err(CommandError::text("ERR METRICS no valid metrics passed. Supported: CPU|NET"));
    }
    Ok((time, bytes))
}

fn in_range(args: &mut Args<'_>, least: i64, most: i64, refusal: &'static str) -> Result<i64, CommandError> {
    let value = parse_i64(args.next()?).filter(|value| (least..=most).contains(value));
    value.ok_or(CommandError::text(refusal))
}

/// Writes a list with one report.
fn write(report: &Report, reply: &mut Reply<'_>) {
    let Report { asked, meanwhile, .. } = report;
    reply.array(1);
    let n_of_time = if asked.time { 3 } else { 0 };
    let n_of_bytes = if asked.bytes { 2 } else { 0 };
    reply.map(7 + n_of_time + n_of_bytes);
    let mut field = |name: &str, value: u64| {
        reply.bulk(name.as_bytes());
        reply.integer(value as i64);
    };
    field("tracking-active", report.is_active.into());
    field("sample-ratio", asked.sample.into());
    reply.bulk(b"selected-slots");
    reply.array(1);
    reply.array(2);
    reply.integer(0);
    reply.integer(16383);
    let mut field = |name: &str, value: u64| {
        reply.bulk(name.as_bytes());
        reply.integer(value as i64);
    };
    field("all-commands-all-slots-us", meanwhile.command_micros);
    field("net-bytes-all-commands-all-slots", meanwhile.net_bytes);
    field("collection-start-time-unix-ms", report.began_unix_millis);
    field("collection-duration-ms", meanwhile.unix_millis);
    if asked.time {
        let [user, system] = meanwhile.processor_micros;
        field("total-cpu-time-user-ms", user / 1000);
        field("total-cpu-time-sys-ms", system / 1000);
    }
    if asked.bytes {
        field("total-net-bytes", meanwhile.net_bytes);
    }
    if asked.time {
        let by_micros = report.by_nanos.iter().map(|(key, nanos)| (&key[..], nanos / 1000));
        write_keys("by-cpu-time-us", by_micros, reply);
    }
    if asked.bytes {
        let by_bytes = report.by_bytes.iter().map(|(key, bytes)| (&key[..], *bytes));
        write_keys("by-net-bytes", by_bytes, reply);
    }
}

fn write_keys<'k>(name: &str, keys: impl Iterator<Item = (&'k [u8], u64)>, reply: &mut Reply<'_>) {
    let keys: Vec<_> = keys.filter(|(_, weight)| *weight > 0).collect();
    reply.bulk(name.as_bytes());
    reply.array(2 * keys.len());
    for (key, weight) in keys {
        reply.bulk(key);
        reply.integer(weight as i64);
    }
}
