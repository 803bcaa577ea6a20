//! What the status page shows, as JSON: totals and levels, of which the page makes rates, and what takes looking back: percentiles
//! of the last seconds.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use super::{json::Json, login::Sight};
use crate::{
    command::{TABLE, info_text},
    shared::server::{BRAID_VERSION, Server},
    telemetry::{command_log::LogOf, hot_keys::Report, latency::Latencies},
};

/// Percentiles are of about so long.
const WINDOW: Duration = Duration::from_secs(10);
/// What was recorded is kept for so often within that.
const A_SAMPLE: Duration = Duration::from_secs(1);
/// So many entries of the slow log are shown.
const SLOW_SHOWN: usize = 12;
/// So many commands are shown, those that have taken the most time.
const COMMANDS_SHOWN: usize = 12;
/// Words longer than this are cut: a page is to be read.
const WORD_MAX_BYTES: usize = 80;
/// The percentiles that are shown.
const PERCENTS: [(&str, f64); 4] = [("p50", 50.0), ("p90", 90.0), ("p99", 99.0), ("p999", 99.9)];

/// What is kept from one look to the next.
#[derive(Debug, Default)]
pub struct Snapshots {
    /// The oldest first, and no two closer together than [`A_SAMPLE`].
    recorded: VecDeque<(Instant, Latencies)>,
}

impl Snapshots {
    /// The state of now.
    pub fn take(&mut self, server: &Server, sight: Sight) -> String {
        let recent = self.recent(server, Instant::now());
        let mut json = Json::default();
        json.object(|json| {
            json.name("version").string(BRAID_VERSION);
            json.name("now_ms").integer(server.clock.unix_micros() / 1000);
            figures(server, json);
            json.name("latency_us");
            match &recent {
                Some(recent) => json.object(|json| {
                    for (name, percent) in PERCENTS {
                        json.name(name).number(recent.percentile_nanos(percent) as f64 / 1000.0);
                    }
                }),
                None => json.null(),
            }
            json.name("threads").array(|json| threads(server, json));
            json.name("commands").array(|json| commands(server, json));
            json.name("slow_log");
            match sight.slow_log {
                true => json.array(|json| slow_log(server, json)),
                false => json.null(),
            }
            json.name("hot_keys");
            match server.hot_key_report().filter(|_| sight.hot_keys) {
                Some(report) => json.object(|json| hot_keys(&report, json)),
                None => json.null(),
            }
            json.name("may_see_hot_keys").boolean(sight.hot_keys);
        });
        json.finish()
    }

    /// What was recorded lately, if commands have run.
    fn recent(&mut self, server: &Server, now: Instant) -> Option<Latencies> {
        let all = server.latencies(TABLE.all().iter().map(|command| command.id))?;
        // The last one that is old enough is where the window begins.
        while self.recorded.get(1).is_some_and(|(at, _)| now.duration_since(*at) >= WINDOW) {
            self.recorded.pop_front();
        }
        let recent = match self.recorded.front() {
            Some((_, before)) => all.since(before),
            None => Some(all.clone()),
        };
        if self.recorded.back().is_none_or(|(at, _)| now.duration_since(*at) >= A_SAMPLE) {
            self.recorded.push_back((now, all));
        }
        recent
    }
}

/// Fields of INFO that the page shows, by their names there. What is no number is left out.
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

fn figures(server: &Server, json: &mut Json) {
    let sections: [&[u8]; 6] = [b"server", b"clients", b"memory", b"stats", b"cpu", b"debug"];
    let info = info_text(&TABLE, server, sections.into_iter());
    for line in info.lines() {
        let Some((field, value)) = line.split_once(':').filter(|(field, _)| FIELDS.contains(field)) else {
            continue;
        };
        if let Ok(value) = value.parse::<f64>() {
            json.name(field).number(value);
        }
    }
    let databases = server.keyspace.databases();
    json.name("keys").integer(databases.iter().map(|(_, counts)| counts.n_keys).sum());
    json.name("keys_expiring").integer(databases.iter().map(|(_, counts)| counts.n_deadlines).sum());
}

fn threads(server: &Server, json: &mut Json) {
    for peer in server.io_threads() {
        json.object(|json| {
            json.name("connections").integer(peer.n_connections().into());
            json.name("busy_us").integer(peer.stats.busy_nanos.get() / 1000);
            let calls = peer.stats.commands.iter().map(|counts| counts.calls.get());
            json.name("commands").integer(calls.sum());
        });
    }
}

fn commands(server: &Server, json: &mut Json) {
    let counted = TABLE.all().iter().map(|command| {
        let sum = |of: fn(&crate::telemetry::stats::CommandCounts) -> u64| {
            server.counts_of(command.id).map(of).sum::<u64>()
        };
        (command, sum(|counts| counts.calls.get()), sum(|counts| counts.nanos.get()))
    });
    let mut counted: Vec<_> = counted.filter(|(_, calls, _)| *calls > 0).collect();
    counted.sort_by_key(|(_, _, nanos)| std::cmp::Reverse(*nanos));
    for (command, calls, nanos) in counted.into_iter().take(COMMANDS_SHOWN) {
        json.object(|json| {
            json.name("name").string(command.full_name);
            json.name("calls").integer(calls);
            json.name("us").number(nanos as f64 / 1000.0);
        });
    }
}

fn slow_log(server: &Server, json: &mut Json) {
    for entry in server.command_log.newest(LogOf::Slow, SLOW_SHOWN) {
        json.object(|json| {
            json.name("id").integer(entry.id);
            json.name("at").integer(entry.what.unix_seconds);
            json.name("us").integer(entry.what.amount);
            json.name("client").string(&entry.what.peer);
            json.name("words").array(|json| entry.what.words.iter().for_each(|word| shown(word, json)));
        });
    }
}

fn hot_keys(report: &Report, json: &mut Json) {
    json.name("active").boolean(report.is_active);
    json.name("sample").integer(report.asked.sample.into());
    json.name("duration_ms").integer(report.meanwhile.unix_millis);
    json.name("all_us").integer(report.meanwhile.command_micros);
    json.name("all_bytes").integer(report.meanwhile.net_bytes);
    for (name, is_asked, keys) in
        [("by_ns", report.asked.time, &report.by_nanos), ("by_bytes", report.asked.bytes, &report.by_bytes)]
    {
        json.name(name);
        match is_asked {
            true => json.array(|json| {
                for (key, weight) in keys {
                    json.array(|json| {
                        shown(key, json);
                        json.integer(*weight);
                    });
                }
            }),
            false => json.null(),
        }
    }
}

fn shown(word: &[u8], json: &mut Json) {
    match word.len() > WORD_MAX_BYTES {
        true => json.string(&format!("{}…", String::from_utf8_lossy(&word[..WORD_MAX_BYTES]))),
        false => json.bytes(word),
    }
}
