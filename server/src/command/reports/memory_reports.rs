//! MEMORY: reports on the server's memory and on the size of a key.

use std::sync::atomic::Ordering;

use braid_protocol::reply::Reply;

use crate::{
    catalog::{Args, Arity, CommandError, Flags, Group, KeySpec, KeyUse, Keys, KeysAt, Outcome},
    command::{Call, CommandSpec, Run, help::help},
    metrics::{Excess, MemoryFigures},
};

const ROW: CommandSpec = CommandSpec { since: "4.0.0", group: Group::Server, ..CommandSpec::ROW };
const SPECIAL: &[&str] = &["nondeterministic_output", "request_policy:all_shards", "response_policy:special"];

pub(in crate::command) const COMMANDS: &[CommandSpec] = &[CommandSpec {
    name: "memory",
    arity: Arity::AtLeast(2),
    summary: "A container for commands about memory.",
    complexity: "Depends on subcommand.",
    subcommands: MEMORY,
    ..ROW
}];

const MEMORY: &[CommandSpec] = &[
    CommandSpec {
        name: "doctor",
        arity: Arity::Exactly(2),
        flags: Flags::ADDS_UP_TABLES,
        run: Run::Session(memory_doctor),
        summary: "Returns a report about memory in words.",
        tips: SPECIAL,
        ..ROW
    },
    CommandSpec {
        run: Run::Session(memory_help),
        summary: "Lists the subcommands.",
        since: "4.0.0",
        group: Group::Server,
        ..CommandSpec::HELP
    },
    CommandSpec {
        name: "malloc-stats",
        arity: Arity::Exactly(2),
        run: Run::Session(memory_malloc_stats),
        summary: "Returns what the allocator tells of itself.",
        tips: SPECIAL,
        ..ROW
    },
    CommandSpec {
        name: "purge",
        arity: Arity::Exactly(2),
        run: Run::Session(memory_purge),
        summary: "Has the allocator give back what is free.",
        tips: &["request_policy:all_shards", "response_policy:all_succeeded"],
        ..ROW
    },
    CommandSpec {
        name: "stats",
        arity: Arity::Exactly(2),
        flags: Flags::ADDS_UP_TABLES,
        run: Run::Session(memory_stats),
        summary: "Returns what memory is used for.",
        complexity: "O(N) where N is the number of segments of all tables",
        tips: SPECIAL,
        ..ROW
    },
    CommandSpec {
        name: "usage",
        arity: Arity::AtLeast(3),
        flags: Flags::READONLY,
        keys: SECOND_LOOKED_AT,
        run: Run::Transaction(memory_usage),
        syntax: "key [SAMPLES count]",
        summary: "Returns the bytes of memory that a key and its value take.",
        ..ROW
    },
];

/// The key after the subcommand.
const SECOND_LOOKED_AT: Keys =
    Keys(&[KeySpec { at: KeysAt::Range { first: 2, last: 2, step: 1 }, used: KeyUse::Look }]);

const MEMORY_HELP: &[&str] = &[
    "DOCTOR",
    "    Return memory problems reports.",
    "MALLOC-STATS",
    "    Return internal statistics report from the memory allocator.",
    "PURGE",
    "    Attempt to purge dirty pages for reclamation by the allocator.",
    "STATS",
    "    Return information about the memory usage of the server.",
    "USAGE <key> [SAMPLES <count>]",
    "    Return memory in bytes used by <key> and its value. It is counted, not",
    "    estimated, so <count> makes no difference.",
];

fn memory_help(_: &mut Call<'_, '_>, _: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    help(reply, "MEMORY", MEMORY_HELP)
}

fn memory_purge(call: &mut Call<'_, '_>, _: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    // Each other thread returns its own memory within 100 ms.
    call.server.purges.fetch_add(1, Ordering::Relaxed);
    (call.server.process.return_freed_memory)();
    reply.ok();
    Ok(())
}

fn memory_malloc_stats(call: &mut Call<'_, '_>, _: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    reply.verbatim(b"txt", (call.server.process.allocator_stats)().as_bytes());
    Ok(())
}

fn memory_stats(call: &mut Call<'_, '_>, _: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let server = call.server;
    let figures = MemoryFigures::read(server);
    let added = figures.used - figures.startup;
    let n_keys = figures.n_keys();
    let stats = reply.map_later();
    let mut n_stats = 0;
    let mut count = |reply: &mut Reply<'_>, name: &str, bytes: u64| {
        reply.bulk(name.as_bytes());
        reply.integer(bytes as i64);
        n_stats += 1;
    };
    for (name, bytes) in [
        ("peak.allocated", figures.peak),
        ("total.allocated", figures.used),
        ("startup.allocated", figures.startup),
        ("replication.backlog", 0),
        ("clients.slaves", 0),
        ("clients.normal", figures.of_clients),
        ("clients.notifications", figures.notifications),
        ("cluster.links", 0),
        ("aof.buffer", figures.unwritten),
        ("lua.caches", figures.scripts),
        ("functions.caches", figures.functions),
        ("script.VMs", figures.in_lua.iter().sum()),
        ("class.data", figures.data),
        ("class.clients", figures.of_clients),
        ("class.server", figures.of_server()),
        ("uncounted", figures.uncounted),
    ] {
        count(reply, name, bytes);
    }
    for (db, _) in &figures.databases {
        reply.bulk(format!("db.{}", db.0).as_bytes());
        reply.map(2);
        reply.bulk(b"overhead.hashtable.main");
        reply.integer(figures.tables.get(db).copied().unwrap_or(0) as i64);
        reply.bulk(b"overhead.hashtable.expires");
        // A deadline is part of its entry.
        reply.integer(0);
    }
    for (name, bytes) in [
        ("overhead.db.hashtable.lut", figures.tables.values().sum()),
        // Tables grow a segment at a time, without a second table.
        ("overhead.db.hashtable.rehashing", 0),
        ("db.dict.rehashing.count", 0),
        ("overhead.total", figures.overhead()),
        ("keys.count", n_keys),
        ("keys.bytes-per-key", added.checked_div(n_keys).unwrap_or(0)),
        ("dataset.bytes", figures.dataset),
    ] {
        count(reply, name, bytes);
    }
    let mut share = |name: &str, share: f64| {
        reply.bulk(name.as_bytes());
        reply.double(share);
        n_stats += 1;
    };
    share("dataset.percentage", figures.dataset_percent());
    share("peak.percentage", figures.peak_percent());
    n_stats += write_allocator(&figures, reply);
    reply.close(stats, n_stats + figures.databases.len());
    Ok(())
}

/// Writes what the allocator and the process have beyond what is counted; returns how many figures that is.
fn write_allocator(figures: &MemoryFigures, reply: &mut Reply<'_>) -> usize {
    let allocator = [
        ("allocator.allocated", figures.used),
        ("allocator.active", figures.own),
        ("allocator.resident", figures.own),
        // No page is only marked as free.
        ("allocator.muzzy", 0),
    ];
    for (name, bytes) in allocator {
        reply.bulk(name.as_bytes());
        reply.integer(bytes as i64);
    }
    let names = [
        ("allocator-fragmentation.ratio", "allocator-fragmentation.bytes"),
        ("allocator-rss.ratio", "allocator-rss.bytes"),
        ("rss-overhead.ratio", "rss-overhead.bytes"),
        ("fragmentation", "fragmentation.bytes"),
    ];
    let excesses = [figures.in_allocator(), figures.in_pages(), figures.outside(), figures.in_all()];
    for ((ratio_name, bytes_name), excess) in names.into_iter().zip(excesses) {
        reply.bulk(ratio_name.as_bytes());
        reply.double(excess.ratio());
        reply.bulk(bytes_name.as_bytes());
        reply.integer(excess.bytes());
    }
    allocator.len() + 2 * names.len()
}

/// Data set size below which MEMORY DOCTOR has nothing to report.
const EMPTY_BYTES: u64 = 5 << 20;
/// Least overhead that is an issue.
const ISSUE_BYTES: i64 = 10 << 20;
/// Average bytes in the buffers of a client above which clients are an issue.
const CLIENT_BYTES: u64 = 200 << 10;
/// Number of scripts above which scripts are an issue.
const MANY_SCRIPTS: usize = 1000;

/// Replies in Redis's words.
fn memory_doctor(call: &mut Call<'_, '_>, _: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let server = call.server;
    let figures = MemoryFigures::read(server);
    let issues = issues(&figures, server.clients.count(), server.scripts.known().len());
    let text = if figures.dataset < EMPTY_BYTES {
        "Hi Sam, this instance is empty or is using very little memory, my issues detector can't be used in these \
         conditions. Please, leave for your mission on Earth and fill it with some data. The new Sam and I will be back to our \
         programming as soon as I finished rebooting.\n"
            .to_owned()
    } else if issues.is_empty() {
        "Hi Sam, I can't find any memory issue in your instance. I can only account for what occurs on this base.\n"
            .to_owned()
    } else {
        let lines: String = issues.iter().map(|issue| format!(" * {issue}\n\n")).collect();
        format!(
            "Sam, I detected a few issues in this Redis instance memory implants:\n\n{lines}I'm here to keep you safe, Sam. I \
             want to help you.\n"
        )
    };
    reply.verbatim(b"txt", text.as_bytes());
    Ok(())
}

fn issues(figures: &MemoryFigures, n_clients: u64, n_scripts: usize) -> Vec<&'static str> {
    let is_much = |excess: Excess, most: f64| excess.ratio() > most && excess.bytes() > ISSUE_BYTES;
    let found = [
        (
            figures.peak as f64 > figures.used as f64 * 1.5,
            "Peak memory: In the past this instance used more than 150% the memory that is currently using. Threads give free \
             memory back when they are idle; please try the MEMORY PURGE command if they are not.",
        ),
        (
            is_much(figures.in_all(), 1.4),
            "High total RSS: This instance has a memory fragmentation and RSS overhead greater than 1.4: the process occupies much \
             more than keys, values, tables and buffers take. This is due to a large peak of memory in use, or to a workload that \
             causes the allocator to fragment memory a lot.",
        ),
        (
            is_much(figures.in_allocator(), 1.1),
            "High allocator fragmentation: The allocator has more than 1.1 times what is in use of the system.",
        ),
        (
            is_much(figures.outside(), 1.1),
            "High process RSS overhead: More than a tenth of what the process occupies is of files, its code among them.",
        ),
        (
            figures.of_clients / n_clients.max(1) > CLIENT_BYTES,
            "Big client buffers: The clients' buffers in this instance are greater than 200K per client (on average): clients do not \
             read fast enough what they are sent, or send very large sequences of commands. Please use the CLIENT LIST command in \
             order to find them.",
        ),
        (
            n_scripts > MANY_SCRIPTS,
            "Many scripts: There seem to be many cached scripts in this instance (more than 1000). This may be because scripts are \
             generated and `EVAL`ed, instead of being parameterized (with KEYS and ARGV), `SCRIPT LOAD`ed and `EVALSHA`ed.",
        ),
    ];
    found.into_iter().filter(|(is_found, _)| *is_found).map(|(_, issue)| issue).collect()
}

/// A key's share of the table, in bytes.
///
/// A bucket of 64 bytes has seven slots, some of which are free.
const SLOT_BYTES: usize = 12;

fn memory_usage(call: &mut Call<'_, '_>, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let key = args.key()?;
    while !args.is_empty() {
        // Nothing is estimated, so no samples are needed.
        if !args.tag("SAMPLES") || args.int()? < 0 {
            return Err(CommandError::Syntax);
        }
    }
    match call.shard_of(&key).inspect(&key) {
        Some(entry) => reply.integer((entry.allocated_bytes() + SLOT_BYTES) as i64),
        None => reply.null(),
    }
    Ok(())
}
