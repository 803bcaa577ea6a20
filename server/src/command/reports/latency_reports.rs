//! LATENCY: slow events (the latency monitor), and the latencies of commands.

use std::fmt::Write;

use braid_protocol::reply::Reply;

use crate::{
    catalog::{Args, Arity, CommandError, Flags, Group, Outcome},
    command::{Call, CommandSpec, Registered, Run, help::help, table::introspection},
    config::{AnnounceAs, Config},
    telemetry::latency_monitor::{
        AOF_FSYNC_ALWAYS, AOF_RENAME, AOF_WRITE, COMMAND, EVICTION_CYCLE, EVICTION_DEL, EXPIRE_CYCLE,
        FAST_COMMAND, LOOP, Sample, Series,
    },
};

const ANY_TIME: Flags = Flags::LOADING.and(Flags::STALE);
const ADMIN: CommandSpec = CommandSpec {
    flags: ANY_TIME.and(Flags::ADMIN).and(Flags::NOSCRIPT),
    group: Group::Server,
    ..CommandSpec::ROW
};
const SPECIAL: &[&str] = &["nondeterministic_output", "request_policy:all_nodes", "response_policy:special"];

pub(in crate::command) const COMMANDS: &[CommandSpec] = &[CommandSpec {
    name: "latency",
    arity: Arity::AtLeast(2),
    since: "2.8.13",
    group: Group::Server,
    summary: "A container for latency diagnostics commands.",
    complexity: "Depends on subcommand.",
    subcommands: LATENCY,
    ..CommandSpec::ROW
}];

const LATENCY: &[CommandSpec] = &[
    CommandSpec {
        name: "doctor",
        arity: Arity::Exactly(2),
        run: Run::Session(latency_doctor),
        since: "2.8.13",
        summary: "Returns a report about latency in words.",
        tips: SPECIAL,
        ..ADMIN
    },
    CommandSpec {
        name: "graph",
        arity: Arity::Exactly(3),
        run: Run::Session(latency_graph),
        since: "2.8.13",
        syntax: "event",
        summary: "Returns a graph of an event's latency.",
        tips: SPECIAL,
        ..ADMIN
    },
    CommandSpec {
        run: Run::Session(latency_help),
        since: "2.8.13",
        group: Group::Server,
        ..CommandSpec::HELP
    },
    CommandSpec {
        name: "histogram",
        arity: Arity::AtLeast(2),
        run: Run::Session(latency_histogram),
        since: "7.0.0",
        syntax: "[command [command ...]]",
        summary: "Returns the cumulative distribution of latencies of commands.",
        complexity: "O(N) where N is the number of commands with latency information being retrieved.",
        tips: SPECIAL,
        ..ADMIN
    },
    CommandSpec {
        name: "history",
        arity: Arity::Exactly(3),
        run: Run::Session(latency_history),
        since: "2.8.13",
        syntax: "event",
        summary: "Returns when an event took long, and how long.",
        tips: SPECIAL,
        ..ADMIN
    },
    CommandSpec {
        name: "latest",
        arity: Arity::Exactly(2),
        run: Run::Session(latency_latest),
        since: "2.8.13",
        summary: "Returns each event's latest latency.",
        tips: SPECIAL,
        ..ADMIN
    },
    CommandSpec {
        name: "reset",
        arity: Arity::AtLeast(2),
        run: Run::Session(latency_reset),
        since: "2.8.13",
        syntax: "[event [event ...]]",
        summary: "Forgets the latencies of events, or of all.",
        tips: &["request_policy:all_nodes", "response_policy:agg_sum"],
        ..ADMIN
    },
];

const LATENCY_HELP: &[&str] = &[
    "DOCTOR",
    "    Return a human readable latency analysis report.",
    "GRAPH <event>",
    "    Return an ASCII latency graph for the <event> class.",
    "HISTORY <event>",
    "    Return time-latency samples for the <event> class.",
    "LATEST",
    "    Return the latest latency samples for all events.",
    "RESET [<event> ...]",
    "    Reset latency data of one or more <event> classes.",
    "    (default: reset all data for all event classes)",
    "HISTOGRAM [COMMAND ...]",
    "    Return a cumulative distribution of latencies in the format of a histogram for the specified command names.",
    "    If no commands are specified then all histograms are replied.",
];

fn latency_help(_: &mut Call<'_, '_>, _: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    help(reply, "LATENCY", LATENCY_HELP)
}

fn latency_history(call: &mut Call<'_, '_>, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let samples = call.server.latency_monitor.of(args.next()?).unwrap_or_default().samples;
    reply.array(samples.len());
    for Sample { unix_seconds, millis } in samples {
        reply.array(2);
        reply.integer(unix_seconds as i64);
        reply.integer(millis as i64);
    }
    Ok(())
}

fn latency_latest(call: &mut Call<'_, '_>, _: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let all = call.server.latency_monitor.all();
    let has_sums = call.config().announce_as == AnnounceAs::Valkey91;
    reply.array(all.len());
    for (event, series) in all {
        let latest = latest(&series);
        reply.array(if has_sums { 6 } else { 4 });
        reply.bulk(event.as_bytes());
        reply.integer(latest.unix_seconds as i64);
        reply.integer(latest.millis as i64);
        reply.integer(series.max as i64);
        if has_sums {
            reply.integer(series.sum as i64);
            reply.integer(series.n_events as i64);
        }
    }
    Ok(())
}

fn latest(series: &Series) -> Sample {
    *series.samples.back().expect("an event is kept with its first sample")
}

fn latency_reset(call: &mut Call<'_, '_>, args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let named: Vec<&[u8]> = args.rest().collect();
    let is_meant = |event: &str| named.is_empty() || named.contains(&event.as_bytes());
    reply.integer(call.server.latency_monitor.forget(is_meant) as i64);
    Ok(())
}

fn latency_graph(call: &mut Call<'_, '_>, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let event = args.next()?;
    let name = String::from_utf8_lossy(event);
    let series = call
        .server
        .latency_monitor
        .of(event)
        .ok_or_else(|| CommandError::owned(format!("ERR No samples available for event '{name}'")))?;
    let now = call.server.clock.unix_micros() / 1_000_000;
    reply.verbatim(b"txt", graph(&name, &series, now).as_bytes());
    Ok(())
}

fn latency_doctor(call: &mut Call<'_, '_>, _: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let all = call.server.latency_monitor.all();
    let now = call.server.clock.unix_micros() / 1_000_000;
    let events: Vec<(&str, Series)> = all.into_iter().collect();
    reply.verbatim(b"txt", report(&events, now, &call.server.config.load()).as_bytes());
    Ok(())
}

/// Width of a graph. Further events are drawn below.
const GRAPH_COLUMNS: usize = 80;
/// Height of a graph, in lines.
const GRAPH_ROWS: usize = 4;
/// Characters for one third, two thirds and a whole line.
const GRAPH_STEPS: [char; 3] = ['_', 'o', '#'];

/// Draws the samples as Redis does, each above its age.
fn graph(event: &str, series: &Series, now: u64) -> String {
    let millis = || series.samples.iter().map(|sample| sample.millis);
    let (low, high) = (millis().min().unwrap_or(0), millis().max().unwrap_or(0));
    let mut text = format!("{event} - high {high} ms, low {low} ms (all time high {} ms)\n", series.max);
    text.push_str(&"-".repeat(GRAPH_COLUMNS));
    text.push('\n');
    let samples: Vec<Sample> = series.samples.iter().copied().collect();
    for (nth, part) in samples.chunks(GRAPH_COLUMNS).enumerate() {
        if nth > 0 {
            text.push('\n');
        }
        draw(part, low, high, now, &mut text);
    }
    text
}

fn draw(samples: &[Sample], low: u64, high: u64, now: u64, text: &mut String) {
    let n_steps = GRAPH_STEPS.len() * GRAPH_ROWS;
    let range = (high - low).max(1);
    let step = |sample: &Sample| {
        let step = (sample.millis - low) as u128 * n_steps as u128 / u128::from(range);
        (step as usize).min(n_steps - 1)
    };
    for row in (0..GRAPH_ROWS).rev() {
        text.extend(samples.iter().map(|sample| match step(sample).checked_sub(row * GRAPH_STEPS.len()) {
            None => ' ',
            Some(step) => GRAPH_STEPS.get(step).copied().unwrap_or('|'),
        }));
        text.push('\n');
    }
    text.push_str(&" ".repeat(samples.len()));
    text.push('\n');
    let labels: Vec<String> =
        samples.iter().map(|sample| age(now.saturating_sub(sample.unix_seconds))).collect();
    for line in 0..labels.iter().map(String::len).max().unwrap_or(0) {
        text.extend(labels.iter().map(|label| label.chars().nth(line).unwrap_or(' ')));
        text.push('\n');
    }
}

/// Abbreviates a number of seconds.
fn age(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m", seconds / 60),
        3600..86_400 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}

/// Returns the text of LATENCY DOCTOR, in Redis's words where they fit.
fn report(events: &[(&str, Series)], now: u64, config: &Config) -> String {
    if events.is_empty() && config.latency_monitor_threshold.is_none() {
        return "I'm sorry, Dave, I can't do that. Latency monitoring is disabled in this Redis instance. You may use \
                \"CONFIG SET latency-monitor-threshold <milliseconds>.\" in order to enable it. If we weren't in a deep space \
                mission I'd suggest to take a look at https://redis.io/topics/latency-monitor.\n"
            .to_owned();
    }
    if events.is_empty() {
        return "Dave, no latency spike was observed during the lifetime of this Redis instance, not in the slightest bit. I \
                honestly think you ought to sit down calmly, take a stress pill, and think things over.\n"
            .to_owned();
    }
    let mut text = "Dave, I have observed latency spikes in this Redis instance. You don't mind talking about it, do you \
                    Dave?\n\n"
        .to_owned();
    for (nth, (event, series)) in events.iter().enumerate() {
        let line = describe(event, series, now);
        writeln!(text, "{}. {line}", nth + 1).expect("a string takes whatever is written");
    }
    text.push_str("\nI have a few advices for you:\n\n");
    let has = |event: &str| events.iter().any(|(name, _)| *name == event);
    let advices = [
        (has(COMMAND), command_advice(config)),
        (has(FAST_COMMAND) || has(LOOP), SCHEDULER_ADVICE.to_owned()),
        (has(EXPIRE_CYCLE), EXPIRE_ADVICE.to_owned()),
        (has(EVICTION_CYCLE) || has(EVICTION_DEL), EVICTION_ADVICE.to_owned()),
        (has(AOF_WRITE) || has(AOF_FSYNC_ALWAYS) || has(AOF_RENAME), DISK_ADVICE.to_owned()),
        (has(AOF_FSYNC_ALWAYS), FSYNC_ADVICE.to_owned()),
    ];
    text.extend(advices.into_iter().filter(|(is_due, _)| *is_due).map(|(_, advice)| advice));
    text
}

fn describe(event: &str, series: &Series, now: u64) -> String {
    let n_samples = series.samples.len() as u64;
    let millis = || series.samples.iter().map(|sample| sample.millis);
    let average = millis().sum::<u64>() / n_samples;
    let deviation = millis().map(|millis| millis.abs_diff(average)).sum::<u64>() / n_samples;
    let oldest = series.samples.front().map_or(now, |sample| sample.unix_seconds);
    let period = now.saturating_sub(oldest).max(1) as f64 / n_samples as f64;
    format!(
        "{event}: {n_samples} latency spikes (average {average}ms, mean deviation {deviation}ms, period {period:.2} sec). Worst \
         all time event {}ms.",
        series.max
    )
}

fn command_advice(config: &Config) -> String {
    let threshold = config.latency_monitor_threshold.unwrap_or_default();
    let to_set = format!("CONFIG SET slowlog-log-slower-than {}", threshold.as_micros());
    let first = match config.slowlog_log_slower_than {
        None => format!(
            "- There are latency issues with potentially slow commands you are using. Try to enable the Slow Log Redis feature \
             using the command '{to_set}'. If the Slow log is disabled Redis is not able to log slow commands execution for \
             you.\n"
        ),
        Some(slow) if slow > threshold => format!(
            "- Your current Slow Log configuration only logs events that are slower than your configured latency monitor \
             threshold. Please use '{to_set}'.\n"
        ),
        Some(_) => String::new(),
    };
    first
        + "- Check your Slow Log to understand what are the commands you are running which are too slow to execute. Please check \
           https://redis.io/commands/slowlog for more information.\n"
}

const SCHEDULER_ADVICE: &str = "- Threads wait for processor time although their work is short. You should try to:\n  \
    1) Lower the system load.\n  \
    2) Use a computer / VM just for this server if you are running other software in the same system, or set io-threads to the \
    number of processors that are free.\n  \
    3) Check if you have a \"noisy neighbour\" problem.\n  \
    4) Check with 'redis-cli --intrinsic-latency 100' what is the intrinsic latency in your system.\n";

const EXPIRE_ADVICE: &str = "- Keys expire many at a time. Spread their deadlines.\n";

const DISK_ADVICE: &str = "- The append-only file waits for the disk. Put it on a disk of its own, or a faster one, and look for other programs that \
    write to this one.\n";

const FSYNC_ADVICE: &str = "- Every write waits for the disk: consider 'appendfsync everysec', with which a second of writes may be lost when the machine \
    stops.\n";

const EVICTION_ADVICE: &str = "- Removing keys to make room takes long. Lower maxmemory-eviction-tenacity, and write fewer large values at a time.\n";

/// Replies for all commands, or for the named ones.
///
/// Unknown names are skipped, and a container stands for its subcommands.
fn latency_histogram(call: &mut Call<'_, '_>, args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let mut commands: Vec<&'static Registered> = Vec::new();
    for name in args.rest() {
        let Some(command) = introspection::named(call.table, name) else { continue };
        commands.push(command);
        commands.extend(command.subcommands());
    }
    if args.is_empty() {
        commands.extend(call.table.all());
    }
    let histograms = reply.map_later();
    let mut n_histograms = 0;
    for command in commands {
        let Some(latencies) = call.server.latencies(command.counted().map(|row| row.id)) else { continue };
        n_histograms += 1;
        reply.bulk(command.full_name.as_bytes());
        reply.map(2);
        reply.bulk(b"calls");
        reply.integer(latencies.n_calls() as i64);
        reply.bulk(b"histogram_usec");
        let pairs = latencies.cumulative();
        reply.map(pairs.len());
        for (micros, n_calls) in pairs {
            reply.integer(micros as i64);
            reply.integer(n_calls as i64);
        }
    }
    reply.close(histograms, n_histograms);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series(samples: &[(u64, u64)]) -> Series {
        let samples = samples.iter().map(|&(unix_seconds, millis)| Sample { unix_seconds, millis });
        Series { samples: samples.collect(), max: 900, sum: 900, n_events: 1 }
    }

    #[test]
    fn a_graph_is_drawn_as_by_redis() {
        let drawn = graph("command", &series(&[(0, 10), (5000, 20), (86_390, 130), (86_399, 70)]), 86_400);
        let lines: Vec<&str> = drawn.lines().collect();
        assert_eq!(lines[0], "command - high 130 ms, low 10 ms (all time high 900 ms)");
        assert_eq!(lines[1], "-".repeat(80));
        assert_eq!(&lines[2..], ["  # ", "  |_", "  ||", "_o||", "    ", "1211", "d20s", " hs "]);
    }

    #[test]
    fn a_report_tells_how_often_and_how_long() {
        let config = Config::new(1, "/".into());
        assert!(report(&[], 0, &config).starts_with("I'm sorry, Dave"));
        let text = report(&[(COMMAND, series(&[(100, 10), (110, 30)]))], 120, &config);
        let line = "1. command: 2 latency spikes (average 20ms, mean deviation 10ms, period 10.00 sec). Worst all time event 900ms.";
        assert!(text.contains(line), "{text}");
        assert!(text.contains("slowlog-log-slower-than"), "{text}");
    }
}
