//! MEMORY: reports on the server's memory and on the size of a key.

use std::{collections::HashMap, sync::atomic::Ordering};

use braid_protocol::reply::Reply;
use braid_storage::{DatabaseCounts, Db};

use super::{Call, CommandSpec, Run, help::help};
use crate::{
    catalog::{Args, Arity, CommandError, Flags, Group, KeySpec, KeyUse, Keys, KeysAt, Outcome},
    process::system::own_bytes,
    shared::{
        memory::{Memory, resident_bytes},
        server::Server,
    },
};

const ROW: CommandSpec = CommandSpec { since: "4.0.0", group: Group::Server, ..CommandSpec::ROW };
const SPECIAL: &[&str] = &["nondeterministic_output", "request_policy:all_shards", "response_policy:special"];

pub(super) const COMMANDS: &[CommandSpec] = &[CommandSpec {
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
        name: "help",
        arity: Arity::Exactly(2),
        flags: Flags::LOADING.and(Flags::STALE),
        run: Run::Session(memory_help),
        summary: "Lists the subcommands.",
        ..ROW
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

/// The uses of memory, in bytes.
pub(super) struct Figures {
    /// Resident memory of the process when it began to serve.
    pub(super) startup: u64,
    /// Memory of clients.
    pub(super) of_clients: u64,
    /// Queued notifications for subscribers, monitoring clients and tracking clients.
    pub(super) notifications: u64,
    /// The tables of each database, without their entries.
    tables: HashMap<Db, u64>,
    /// The counts of all databases with keys.
    databases: Vec<(Db, DatabaseCounts)>,
    /// The texts of scripts, and then of libraries.
    pub(super) scripts: u64,
    pub(super) functions: u64,
    /// Lua's memory for scripts and for functions, in this order.
    pub(super) in_lua: [u64; 2],
    /// Keys and values.
    pub(super) dataset: u64,
    /// The whole data set, tables included, which eviction can free.
    pub(super) data: u64,
    /// Bytes that wait to be written to the AOF.
    pub(super) unwritten: u64,
    /// Bytes that do not count against `maxmemory`.
    pub(super) uncounted: u64,
    /// Memory in use.
    used: u64,
    /// Greatest memory in use so far.
    pub(super) peak: u64,
    /// Resident memory of the process.
    pub(super) resident: u64,
    /// The part of resident memory without a file, which belongs to the allocator.
    ///
    /// The allocator does not report how much of its pages is in use.
    pub(super) own: u64,
}

impl Figures {
    /// Reads the figures, each at its own moment.
    pub(super) fn read(server: &Server) -> Self {
        let keyspace = &server.keyspace;
        let (databases, tables) = (keyspace.databases(), keyspace.table_bytes());
        let used_by_databases: u64 = databases.iter().map(|(_, counts)| counts.used_bytes).sum();
        let in_lua = |of_functions| -> u64 {
            server.threads.iter().map(|peer| peer.program.lua_bytes(of_functions)).sum()
        };
        let figures = Figures {
            startup: server.memory.startup.load(Ordering::Relaxed),
            of_clients: server.client_bytes(),
            notifications: server.notification_bytes(),
            dataset: (used_by_databases + keyspace.other_bytes()).saturating_sub(tables.values().sum()),
            tables,
            databases,
            data: braid_storage::data_bytes(),
            unwritten: server.durability.aof.unwritten_bytes() as u64,
            uncounted: server.memory.uncounted(),
            scripts: server.scripts.known().n_bytes() as u64,
            functions: server.functions.known().n_bytes() as u64,
            in_lua: [in_lua(false), in_lua(true)],
            used: Memory::used(),
            peak: server.memory.peak.load(Ordering::Relaxed),
            resident: resident_bytes(),
            own: own_bytes(),
        };
        Figures { peak: figures.peak.max(figures.used), ..figures }
    }

    fn n_keys(&self) -> u64 {
        self.databases.iter().map(|(_, counts)| counts.n_keys).sum()
    }

    /// Returns the memory in use that is no key or value.
    pub(super) fn overhead(&self) -> u64 {
        self.used.saturating_sub(self.dataset)
    }

    /// Returns the server's own bytes: those in use that are neither data nor clients'.
    pub(super) fn of_server(&self) -> u64 {
        self.used.saturating_sub(self.data).saturating_sub(self.of_clients)
    }

    /// Returns the memory in use.
    pub(super) fn used(&self) -> u64 {
        self.used
    }

    /// Returns the share of the data set in the memory added since the start.
    ///
    /// The unit is percent.
    pub(super) fn dataset_percent(&self) -> f64 {
        percent(self.dataset, self.used.saturating_sub(self.startup))
    }

    /// Returns the memory in use relative to its peak, in percent.
    pub(super) fn peak_percent(&self) -> f64 {
        percent(self.used(), self.peak)
    }

    /// Returns the memory beyond the counted memory, as pairs of a ratio and bytes.
    ///
    /// The pairs are: in the allocator, in the allocator's unused pages (none are known), outside of the
    /// allocator, and in total.
    pub(super) fn overheads(&self) -> [(f64, i64); 4] {
        let pair = |more: u64, less: u64| (more as f64 / less.max(1) as f64, more as i64 - less as i64);
        [
            pair(self.own, self.used()),
            pair(self.own, self.own),
            pair(self.resident, self.own),
            pair(self.resident, self.used()),
        ]
    }
}

fn percent(part: u64, whole: u64) -> f64 {
    part as f64 * 100.0 / whole.max(1) as f64
}

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
    let figures = Figures::read(server);
    let added = figures.used() - figures.startup;
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
        ("total.allocated", figures.used()),
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

/// Writes the memory of the allocator and the process beyond the counted memory.
///
/// Returns the number of figures.
fn write_allocator(figures: &Figures, reply: &mut Reply<'_>) -> usize {
    let allocator = [
        ("allocator.allocated", figures.used()),
        ("allocator.active", figures.own),
        ("allocator.resident", figures.own),
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
    for ((ratio_name, bytes_name), (ratio, bytes)) in names.into_iter().zip(figures.overheads()) {
        reply.bulk(ratio_name.as_bytes());
        reply.double(ratio);
        reply.bulk(bytes_name.as_bytes());
        reply.integer(bytes);
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
    let figures = Figures::read(server);
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

fn issues(figures: &Figures, n_clients: u64, n_scripts: usize) -> Vec<&'static str> {
    let [in_allocator, _, outside, total] = figures.overheads();
    let is_much = |(ratio, bytes): (f64, i64), most: f64| ratio > most && bytes > ISSUE_BYTES;
    let found = [
        (
            figures.peak as f64 > figures.used() as f64 * 1.5,
            "Peak memory: In the past this instance used more than 150% the memory that is currently using. Threads give free \
             memory back when they are idle; please try the MEMORY PURGE command if they are not.",
        ),
        (
            is_much(total, 1.4),
            "High total RSS: This instance has a memory fragmentation and RSS overhead greater than 1.4: the process occupies much \
             more than keys, values, tables and buffers take. This is due to a large peak of memory in use, or to a workload that \
             causes the allocator to fragment memory a lot.",
        ),
        (
            is_much(in_allocator, 1.1),
            "High allocator fragmentation: The allocator has more than 1.1 times what is in use of the system.",
        ),
        (
            is_much(outside, 1.1),
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
