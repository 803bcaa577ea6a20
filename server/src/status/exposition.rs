//! Metrics in the text format of Prometheus.
//!
//! Most are [rows](metrics) with a metric; the others have labels. The names are those of redis_exporter, so
//! that existing boards and alerts fit. Names that Prometheus's own rules reject are left out, or have no
//! type. Braid's own figures begin with `braid_`.

use std::{collections::BTreeMap, fmt::Write as _};

use braid_storage::{entry::db::Db, keyspace::DatabaseCounts};

use crate::{
    catalog::Group,
    command::TABLE,
    metrics::{
        self, Figure,
        MetricType::{self, Counter, Gauge, Histogram, Summary},
        Prometheus, Readings,
    },
    replication::replicas::ReplicaReport,
    shared::server::{BRAID_VERSION, Peer, Server},
    telemetry::{command_log::LogOf, split::Phase, stats::CommandCounts},
};

/// Returns all metrics.
pub fn text(server: &Server) -> String {
    let mut text = Exposition::default();
    text.family("redis_up", Gauge, "Whether the server answers.");
    text.sample("redis_up", &[], 1);
    let now = Readings::new(server);
    let of_primary = [("master_host", "master_host"), ("master_port", "master_port")];
    let primary = of_primary.map(|(label, field)| (label, metrics::named(field).value(&now).to_string()));
    let primary = [(primary[0].0, primary[0].1.as_str()), (primary[1].0, primary[1].1.as_str())];
    for (row, &Prometheus { name, kind, help, names_primary, .. }) in metrics::shown() {
        match row.value(&now).as_number() {
            Figure::Absent => {}
            value => {
                text.family(name, kind, help);
                text.sample(name, if names_primary { &primary } else { &[] }, value);
            }
        }
    }
    instance(&now, &mut text);
    replicas(&now, &mut text);
    keyspace(server, &mut text);
    commands(server, &mut text);
    errors(server, &mut text);
    slow_log(server, &mut text);
    latencies(server, &mut text);
    split(server, &mut text);
    threads(server, &mut text);
    text.0
}

/// Families of metrics, with their samples.
#[derive(Default)]
struct Exposition(String);

impl Exposition {
    fn family(&mut self, name: &str, kind: MetricType, help: &str) {
        write!(self.0, "# HELP {name} {help}\n# TYPE {name} {}\n", kind.word())
            .expect("a string takes whatever is written");
    }

    fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: impl std::fmt::Display) {
        self.0.push_str(name);
        for (nth, (label, text)) in labels.iter().enumerate() {
            self.0.push(if nth == 0 { '{' } else { ',' });
            self.0.push_str(label);
            self.0.push_str("=\"");
            for letter in text.chars() {
                match letter {
                    '\n' => self.0.push_str("\\n"),
                    '"' | '\\' => self.0.extend(['\\', letter]),
                    _ => self.0.push(letter),
                }
            }
            self.0.push('"');
        }
        if !labels.is_empty() {
            self.0.push('}');
        }
        writeln!(self.0, " {value}").expect("a string takes whatever is written");
    }
}

/// The fields of INFO that are labels of the server.
const LABELS: &[&str] = &[
    "master_replid",
    "maxmemory_policy",
    "os",
    "process_id",
    "redis_build_id",
    "redis_mode",
    "redis_version",
    "role",
    "run_id",
    "tcp_port",
];

fn instance(now: &Readings<'_>, text: &mut Exposition) {
    let values: Vec<String> =
        LABELS.iter().map(|label| metrics::named(label).value(now).to_string()).collect();
    let labels: Vec<(&str, &str)> = LABELS.iter().copied().zip(values.iter().map(String::as_str)).collect();
    text.family("redis_instance_info", Gauge, "What the server is.");
    text.sample("redis_instance_info", &labels, 1);
    text.family("braid_build_info", Gauge, "Braid's version.");
    text.sample("braid_build_info", &[("version", BRAID_VERSION)], 1);
    text.family("redis_start_time_seconds", Gauge, "When the server began, in Unix time.");
    text.sample("redis_start_time_seconds", &[], now.server.clock.started().0 / 1000);
}

/// The replicas, and the primary if this server is a replica itself.
fn replicas(now: &Readings<'_>, text: &mut Exposition) {
    if now.server.replica.is_on() {
        let fields = [
            ("master_host", "master_host"),
            ("master_port", "master_port"),
            ("read_only", "slave_read_only"),
        ];
        let values = fields.map(|(_, field)| metrics::named(field).value(now).to_string());
        let labels: Vec<_> =
            fields.iter().zip(&values).map(|(&(label, _), value)| (label, value.as_str())).collect();
        text.family("redis_slave_info", Gauge, "Whose replica the server is.");
        text.sample("redis_slave_info", &labels, 1);
    }
    let reports = now.server.replication.replicas.reports(now.server.clock.uptime_millis());
    // While a replica comes again, its old link may still be there. No two samples may have the same labels.
    let reports: BTreeMap<_, _> =
        reports.iter().map(|report| ((&report.host, report.port, report.state), report)).collect();
    if reports.is_empty() {
        return;
    }
    let families: [ReplicaRow; 2] = [
        ("redis_connected_slave_offset_bytes", "How far a replica has come.", |report| report.offset),
        ("redis_connected_slave_lag_seconds", "How long ago a replica has said that.", |report| {
            report.lag_seconds
        }),
    ];
    for (name, help, read) in families {
        text.family(name, Gauge, help);
        for report in reports.values() {
            let port = report.port.to_string();
            let labels =
                [("slave_ip", report.host.as_str()), ("slave_port", &port), ("slave_state", report.state)];
            text.sample(name, &labels, read(report));
        }
    }
}

/// A metric of each replica: its name, its help text and its value.
type ReplicaRow = (&'static str, &'static str, fn(&ReplicaReport) -> u64);

fn keyspace(server: &Server, text: &mut Exposition) {
    let mut shown = server.keyspace.databases();
    if shown.first().is_none_or(|(db, _)| db.0 > 0) {
        shown.insert(0, (Db(0), DatabaseCounts::default()));
    }
    text.family("redis_db_keys", Gauge, "Keys of a database.");
    for (db, counts) in &shown {
        text.sample("redis_db_keys", &[("db", &format!("db{}", db.0))], counts.n_keys);
    }
    text.family("redis_db_keys_expiring", Gauge, "Keys of a database that have a time to live.");
    for (db, counts) in &shown {
        text.sample("redis_db_keys_expiring", &[("db", &format!("db{}", db.0))], counts.n_deadlines);
    }
}

/// A metric of each command: its name, its help text, its count and its unit.
type CommandRow = (&'static str, &'static str, fn(&CommandCounts) -> u64, f64);

const OF_COMMANDS: [CommandRow; 4] = [
    ("redis_commands_total", "How often a command has run.", |counts| counts.calls.get(), 1.0),
    (
        "redis_commands_duration_seconds_total",
        "For how long a command has run.",
        |counts| counts.nanos.get(),
        1e-9,
    ),
    (
        "redis_commands_failed_calls_total",
        "How often a command has ended in an error.",
        |counts| counts.failed.get(),
        1.0,
    ),
    (
        "redis_commands_rejected_calls_total",
        "How often a command was refused before it ran.",
        |counts| counts.rejected.get(),
        1.0,
    ),
];

fn commands(server: &Server, text: &mut Exposition) {
    let rows = TABLE.all().iter().filter_map(|command| {
        let sums = OF_COMMANDS.map(|(_, _, count, _)| {
            command.counted().flat_map(|row| server.counts_of(row.id)).map(count).sum::<u64>()
        });
        (sums[0] + sums[2] + sums[3] > 0).then_some((command.full_name, sums))
    });
    let rows: Vec<_> = rows.collect();
    for (nth, (name, help, _, unit)) in OF_COMMANDS.into_iter().enumerate() {
        text.family(name, Counter, help);
        for (command, sums) in &rows {
            text.sample(name, &[("cmd", command)], sums[nth] as f64 * unit);
        }
    }
}

fn errors(server: &Server, text: &mut Exposition) {
    text.family("redis_errors_total", Counter, "Error replies by their first word.");
    for (code, count) in server.error_counts() {
        text.sample("redis_errors_total", &[("err", &code)], count);
    }
}

fn slow_log(server: &Server, text: &mut Exposition) {
    text.family("redis_slowlog_length", Gauge, "Entries of the slow log.");
    text.sample("redis_slowlog_length", &[], server.command_log.len(LogOf::Slow));
    let last = server.command_log.newest(LogOf::Slow, 1);
    let last = last.first().map(|entry| (entry.id, entry.what.amount)).unwrap_or_default();
    text.family("redis_slowlog_last_id", Gauge, "The number of the newest entry of the slow log.");
    text.sample("redis_slowlog_last_id", &[], last.0);
    let name = "redis_last_slow_execution_duration_seconds";
    text.family(name, Gauge, "How long the newest command of the slow log took.");
    text.sample(name, &[], last.1 as f64 / 1e6);
}

fn latencies(server: &Server, text: &mut Exposition) {
    let name = "redis_latency_percentiles_usec";
    text.family(name, Summary, "How long a command takes, in microseconds, by percentiles since the start.");
    for command in TABLE.all() {
        let Some(latencies) = server.latencies(command.counted().map(|row| row.id)) else { continue };
        let full_name = command.full_name;
        for (percent, micros) in server.percentiles(&latencies) {
            text.sample(name, &[("cmd", full_name), ("quantile", &(percent / 100.0).to_string())], micros);
        }
        let counts = || command.counted().flat_map(|row| server.counts_of(row.id));
        let micros: u64 = counts().map(|counts| counts.nanos.get()).sum::<u64>() / 1000;
        text.sample(&format!("{name}_sum"), &[("cmd", full_name)], micros);
        text.sample(&format!("{name}_count"), &[("cmd", full_name)], latencies.n_calls());
    }
    let name = "braid_command_duration_seconds";
    text.family(name, Histogram, "How long commands take, of all kinds.");
    let all = server.latencies(TABLE.all().iter().map(|command| command.id));
    let n_calls = all.as_ref().map_or(0, |all| all.n_calls());
    for (seconds, n_calls) in all.iter().flat_map(|all| all.in_octaves()) {
        text.sample(&format!("{name}_bucket"), &[("le", &seconds.to_string())], n_calls);
    }
    text.sample(&format!("{name}_bucket"), &[("le", "+Inf")], n_calls);
    let nanos = server.threads.iter().flat_map(|peer| &peer.stats.commands).map(|counts| counts.nanos.get());
    text.sample(&format!("{name}_sum"), &[], nanos.sum::<u64>() as f64 / 1e9);
    text.sample(&format!("{name}_count"), &[], n_calls);
}

/// Writes the division of commands' time, if it is recorded.
fn split(server: &Server, text: &mut Exposition) {
    if !server.config.load().latency_split {
        return;
    }
    let name = "braid_latency_split_seconds";
    text.family(
        name,
        Summary,
        "Where the time of commands goes, by the family of the first of what is read at once, and by phase.",
    );
    for family in Group::ALL {
        for phase in Phase::ALL {
            let Some(latencies) = server.split(family, phase) else { continue };
            let labels = [("family", family.name()), ("phase", phase.name())];
            for (percent, micros) in server.percentiles(&latencies) {
                let quantile = (percent / 100.0).to_string();
                text.sample(name, &[labels[0], labels[1], ("quantile", &quantile)], micros / 1e6);
            }
            text.sample(&format!("{name}_count"), &labels, latencies.n_calls());
        }
    }
}

/// A metric of each I/O thread.
type ThreadRow = (&'static str, MetricType, &'static str, fn(&Peer) -> f64);

const OF_THREADS: [ThreadRow; 6] = [
    ("braid_thread_connections", Gauge, "Connections of a thread.", |peer| peer.n_connections().into()),
    ("braid_thread_busy_seconds_total", Counter, "For how long a thread had something to do.", |peer| {
        peer.stats.busy_nanos.get() as f64 / 1e9
    }),
    ("braid_thread_turns_total", Counter, "Turns of a thread's event loop.", |peer| {
        peer.stats.turns.get() as f64
    }),
    ("braid_thread_commands_total", Counter, "Commands that a thread has run.", |peer| {
        peer.stats.commands.iter().map(|counts| counts.calls.get()).sum::<u64>() as f64
    }),
    ("braid_thread_net_input_bytes_total", Counter, "Bytes that a thread has received.", |peer| {
        peer.stats.bytes_in.get() as f64
    }),
    ("braid_thread_net_output_bytes_total", Counter, "Bytes that a thread has sent.", |peer| {
        peer.stats.bytes_out.get() as f64
    }),
];

fn threads(server: &Server, text: &mut Exposition) {
    for (name, kind, help, read) in OF_THREADS {
        text.family(name, kind, help);
        for (nth, peer) in server.io_threads().iter().enumerate() {
            text.sample(name, &[("thread", &format!("io-{nth}"))], read(peer));
        }
    }
}
