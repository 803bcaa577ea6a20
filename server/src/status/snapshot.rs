//! The data of the status page, as JSON.
//!
//! It has totals and levels, from which the page computes rates, and percentiles of the last seconds, which
//! need earlier records.

use std::{collections::VecDeque, time::Duration};

use serde_json::{Map, Value, json};

use super::login::Sight;
use crate::{
    clock::Instant,
    command::TABLE,
    metrics::{self, Figure, Readings},
    shared::server::{BRAID_VERSION, Peer, Server},
    telemetry::{
        command_log::LogOf, hot_keys::Report, latency::Latencies, stats::CommandCounts, top_keys::Weighed,
    },
};

/// The approximate time that percentiles cover.
const WINDOW: Duration = Duration::from_secs(10);
/// The interval between kept records within that time.
const A_SAMPLE: Duration = Duration::from_secs(1);
/// The number of entries of the slow log that are shown.
const SLOW_SHOWN: usize = 12;
/// The number of commands that are shown, those with the most time.
const COMMANDS_SHOWN: usize = 12;
/// The length above which words are cut, so that the page stays readable.
const WORD_MAX_BYTES: usize = 80;
/// The percentiles that are shown.
const PERCENTS: [(&str, f64); 4] = [("p50", 50.0), ("p90", 90.0), ("p99", 99.0), ("p999", 99.9)];

/// The data that is kept from one request to the next.
#[derive(Debug, Default)]
pub struct Snapshots {
    /// The records, oldest first, and no two closer together than [`A_SAMPLE`].
    recorded: VecDeque<(Instant, Latencies)>,
}

impl Snapshots {
    /// Returns the current state.
    pub fn take(&mut self, server: &Server, sight: Sight) -> String {
        let recent = self.recent(server, Instant::now());
        let latency = recent.map(|recent| {
            let percentile = |percent| recent.percentile_nanos(percent) as f64 / 1000.0;
            PERCENTS.map(|(name, percent)| (name.to_owned(), json!(percentile(percent))))
        });
        let hot_keys_report = server.hot_key_report().filter(|_| sight.hot_keys);
        let mut state = figures(server);
        state.extend([
            ("version".to_owned(), json!(BRAID_VERSION)),
            ("now_ms".to_owned(), json!(server.clock.unix_micros() / 1000)),
            ("latency_us".to_owned(), latency.map(Map::from_iter).into()),
            ("threads".to_owned(), threads(server)),
            ("replication".to_owned(), replication(server)),
            ("commands".to_owned(), commands(server)),
            ("slow_log".to_owned(), sight.slow_log.then(|| slow_log(server)).into()),
            ("hot_keys".to_owned(), hot_keys_report.as_ref().map(hot_keys).into()),
            ("may_see_hot_keys".to_owned(), json!(sight.hot_keys)),
        ]);
        Value::Object(state).to_string()
    }

    /// The latencies of the last seconds, if commands have run.
    fn recent(&mut self, server: &Server, now: Instant) -> Option<Latencies> {
        let all = server.latencies(TABLE.all().iter().map(|command| command.id))?;
        // The window begins at the last record that is old enough.
        while self.recorded.get(1).is_some_and(|(at, _)| now - *at >= WINDOW) {
            self.recorded.pop_front();
        }
        let recent = match self.recorded.front() {
            Some((_, before)) => all.since(before),
            None => Some(all.clone()),
        };
        if self.recorded.back().is_none_or(|(at, _)| now - *at >= A_SAMPLE) {
            self.recorded.push_back((now, all));
        }
        recent
    }
}

/// The fields of INFO that the page shows, by their names there.
const FIELDS: &[&str] = &[
    "uptime_in_seconds",
    "process_id",
    "tcp_port",
    "io_threads",
    "io_threads_in_use",
    "shards",
    "connected_clients",
    "maxclients",
    "blocked_clients",
    "pubsub_clients",
    "used_memory",
    "used_memory_rss",
    "used_memory_peak",
    "used_memory_dataset",
    "maxmemory",
    "mem_fragmentation_ratio",
    "total_commands_processed",
    "total_connections_received",
    "total_net_input_bytes",
    "total_net_output_bytes",
    "rejected_connections",
    "expired_keys",
    "evicted_keys",
    "keyspace_hits",
    "keyspace_misses",
    "total_error_replies",
    "used_cpu_user",
    "used_cpu_sys",
];

fn figures(server: &Server) -> Map<String, Value> {
    let now = Readings::new(server);
    let shown = |field: &&str| ((*field).to_owned(), number(metrics::named(field).value(&now)));
    let mut figures: Map<String, Value> = FIELDS.iter().map(shown).collect();
    let databases = server.keyspace.databases();
    let n_keys: u64 = databases.iter().map(|(_, counts)| counts.n_keys).sum();
    let n_expiring: u64 = databases.iter().map(|(_, counts)| counts.n_deadlines).sum();
    figures.insert("keys".to_owned(), json!(n_keys));
    figures.insert("keys_expiring".to_owned(), json!(n_expiring));
    figures
}

/// A figure as a number, with the decimals that INFO prints.
fn number(figure: Figure) -> Value {
    match figure.as_number() {
        Figure::Unsigned(number) | Figure::Bytes(number) => json!(number),
        Figure::Signed(number) => json!(number),
        Figure::Micros(micros) => json!(micros as f64 / 1e6),
        Figure::Decimal(number) => json!((number * 100.0).round() / 100.0),
        _ => Value::Null,
    }
}

fn threads(server: &Server) -> Value {
    let of = |peer: &Peer| {
        json!({
            "connections": peer.n_connections(),
            "busy_us": peer.stats.busy_nanos.get() / 1000,
            "commands": peer.stats.commands.iter().map(|counts| counts.calls.get()).sum::<u64>(),
        })
    };
    server.io_threads().iter().map(|peer| of(peer)).collect()
}

/// The replicas, and the link to the primary if there is one.
fn replication(server: &Server) -> Value {
    let now = Readings::new(server);
    let field = |name: &str| metrics::named(name).value(&now);
    let offset = field("master_repl_offset");
    let replicas = server.replication.replicas.reports(server.clock.uptime_millis());
    let replicas: Vec<_> = replicas
        .into_iter()
        .map(|replica| {
            json!({
                "address": format!("{}:{}", replica.host, replica.port),
                "state": replica.state,
                "offset": replica.offset,
                "lag_s": replica.lag_seconds,
            })
        })
        .collect();
    let link = server.replica.primary().map(|primary| {
        json!({
            "address": primary.to_string(),
            "state": server.replica.state().word(),
            "last_io_s": number(field("master_last_io_seconds_ago")),
            "copied_bytes": number(field("master_sync_read_bytes")),
        })
    });
    let spool_bytes = number(field("repl_spool_bytes"));
    json!({ "offset": number(offset), "primary": link, "replicas": replicas, "spool_bytes": spool_bytes })
}

fn commands(server: &Server) -> Value {
    let counted = TABLE.all().iter().map(|command| {
        let sum = |of: fn(&CommandCounts) -> u64| server.counts_of(command.id).map(of).sum::<u64>();
        (command, sum(|counts| counts.calls.get()), sum(|counts| counts.nanos.get()))
    });
    let mut counted: Vec<_> = counted.filter(|(_, calls, _)| *calls > 0).collect();
    counted.sort_by_key(|(_, _, nanos)| std::cmp::Reverse(*nanos));
    let most = counted.into_iter().take(COMMANDS_SHOWN);
    most.map(|(command, calls, nanos)| {
        json!({ "name": command.full_name, "calls": calls, "us": nanos as f64 / 1000.0 })
    })
    .collect()
}

fn slow_log(server: &Server) -> Value {
    let entries = server.command_log.newest(LogOf::Slow, SLOW_SHOWN);
    entries
        .into_iter()
        .map(|entry| {
            json!({
                "id": entry.id,
                "at": entry.what.unix_seconds,
                "us": entry.what.amount,
                "client": entry.what.peer,
                "words": entry.what.words.iter().map(|word| shown(word)).collect::<Vec<_>>(),
            })
        })
        .collect()
}

fn hot_keys(report: &Report) -> Value {
    let weighed = |is_asked: bool, keys: &[Weighed]| {
        is_asked.then(|| keys.iter().map(|(key, weight)| json!([shown(key), weight])).collect::<Vec<_>>())
    };
    json!({
        "active": report.is_active,
        "sample": report.asked.sample,
        "duration_ms": report.meanwhile.unix_millis,
        "all_us": report.meanwhile.command_micros,
        "all_bytes": report.meanwhile.net_bytes,
        "by_ns": weighed(report.asked.time, &report.by_nanos),
        "by_bytes": weighed(report.asked.bytes, &report.by_bytes),
    })
}

/// A word as text, cut if it is long.
fn shown(word: &[u8]) -> String {
    match word.len() > WORD_MAX_BYTES {
        true => format!("{}…", String::from_utf8_lossy(&word[..WORD_MAX_BYTES])),
        false => String::from_utf8_lossy(word).into_owned(),
    }
}
