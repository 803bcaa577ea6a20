//! The text of INFO.
//!
//! Fields have the names and the order of Redis 7.4. Fields of missing features are omitted, unless
//! monitoring agents read them. Their values are then those of a server without the feature. Most fields are
//! rows of [`metrics`].

use std::fmt::Write;

use crate::{
    catalog::Group,
    command::CommandTable,
    config::short_decimal,
    log,
    metrics::{self, Figure, Metric, Readings},
    shared::{announced::AnnouncedServer, server::Server},
    telemetry::split::Phase,
};

/// The requests that show a section.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shown {
    /// `INFO` without arguments.
    ByDefault,
    /// `INFO all`.
    WithAll,
    /// `INFO everything`, and by default, because any client may read about modules.
    WithModules,
    /// Its name only.
    ByName,
}

struct Section {
    name: &'static str,
    title: &'static str,
    shown: Shown,
    fields: SectionFields,
}

/// The fields of a section.
#[derive(Clone, Copy)]
enum SectionFields {
    /// Each has a row.
    Rows(&'static [Metric]),
    /// Their number varies.
    Written(fn(&Server, &mut Text<'_>)),
    /// The number of lines between two groups of rows varies.
    RowsAround(&'static [Metric], fn(&Server, &mut Text<'_>), &'static [Metric]),
}

use SectionFields::{Rows, RowsAround, Written};

const SECTIONS: &[Section] = &[
    section("server", "Server", Shown::ByDefault, Rows(metrics::SERVER)),
    section("tls", "TLS", Shown::ByDefault, Rows(metrics::TLS)),
    section("clients", "Clients", Shown::ByDefault, Rows(metrics::CLIENTS)),
    section("memory", "Memory", Shown::ByDefault, Rows(metrics::MEMORY)),
    section("persistence", "Persistence", Shown::ByDefault, Rows(metrics::PERSISTENCE)),
    section("threads", "Threads", Shown::ByDefault, Written(threads_section)),
    section("stats", "Stats", Shown::ByDefault, Rows(metrics::STATS)),
    section(
        "replication",
        "Replication",
        Shown::ByDefault,
        RowsAround(metrics::REPLICATION, replicas, metrics::STREAM),
    ),
    section("cpu", "CPU", Shown::ByDefault, Rows(metrics::CPU)),
    section("modules", "Modules", Shown::WithModules, Rows(&[])),
    section("commandstats", "Commandstats", Shown::WithAll, Written(commandstats_section)),
    section("errorstats", "Errorstats", Shown::ByDefault, Written(errorstats_section)),
    section("latencystats", "Latencystats", Shown::WithAll, Written(latencystats_section)),
    section("cluster", "Cluster", Shown::ByDefault, Rows(metrics::CLUSTER)),
    section("keyspace", "Keyspace", Shown::ByDefault, Written(keyspace_section)),
    section("latencysplit", "Latencysplit", Shown::ByName, Written(latencysplit_section)),
    section("debug", "Debug", Shown::ByName, Rows(metrics::DEBUG)),
];

const fn section(name: &'static str, title: &'static str, shown: Shown, fields: SectionFields) -> Section {
    Section { name, title, shown, fields }
}

/// Returns the named sections in a fixed order; without names, the default ones.
pub fn text<'a>(
    table: &CommandTable,
    server: &Server,
    asked: impl ExactSizeIterator<Item = &'a [u8]> + Clone,
) -> String {
    let mut text = Text { table, written: String::with_capacity(4096) };
    let now = Readings::new(server);
    for section in SECTIONS {
        let wanted = if asked.len() == 0 {
            asks_for(b"default", section)
        } else {
            asked.clone().any(|name| asks_for(name, section))
        };
        if wanted {
            text.begin(section.title);
            match section.fields {
                Rows(rows) => rows.iter().for_each(|row| text.row(row, &now)),
                Written(write) => write(server, &mut text),
                RowsAround(head, write, rest) => {
                    head.iter().for_each(|row| text.row(row, &now));
                    write(server, &mut text);
                    rest.iter().for_each(|row| text.row(row, &now));
                }
            }
        }
    }
    text.written
}

fn asks_for(name: &[u8], section: &Section) -> bool {
    match &name.to_ascii_lowercase()[..] {
        b"default" => matches!(section.shown, Shown::ByDefault | Shown::WithModules),
        b"all" => matches!(section.shown, Shown::ByDefault | Shown::WithAll),
        b"everything" => section.shown != Shown::ByName,
        name => name == section.name.as_bytes(),
    }
}

/// Writes sections and fields.
struct Text<'t> {
    table: &'t CommandTable,
    written: String,
}

impl Text<'_> {
    fn begin(&mut self, title: &str) {
        if !self.written.is_empty() {
            self.written.push_str("\r\n");
        }
        self.line(format_args!("# {title}"));
    }

    fn row(&mut self, row: &Metric, now: &Readings<'_>) {
        let Some(field) = row.field else { return };
        match row.value(now) {
            Figure::Absent => {}
            Figure::Bytes(bytes) => {
                self.line(format_args!("{field}:{bytes}"));
                self.line(format_args!("{field}_human:{}", human(bytes)));
            }
            figure => self.line(format_args!("{field}:{figure}")),
        }
    }

    fn line(&mut self, line: std::fmt::Arguments<'_>) {
        write!(self.written, "{line}\r\n").expect("a string takes whatever is written");
    }
}

/// Bytes as Redis abbreviates them.
fn human(bytes: u64) -> String {
    if bytes < 1024 {
        return format!("{bytes}B");
    }
    let mut value = bytes as f64 / 1024.0;
    let mut units = "KMGTPE".chars();
    let mut unit = units.next().unwrap_or_default();
    while value >= 1024.0 {
        value /= 1024.0;
        unit = units.next().unwrap_or_default();
    }
    format!("{value:.2}{unit}")
}

fn commandstats_section(server: &Server, text: &mut Text<'_>) {
    for command in text.table.all() {
        let counts = || command.counted().flat_map(|row| server.counts_of(row.id));
        let calls: u64 = counts().map(|counts| counts.calls.get()).sum();
        let nanos: u64 = counts().map(|counts| counts.nanos.get()).sum();
        let rejected: u64 = counts().map(|counts| counts.rejected.get()).sum();
        let failed: u64 = counts().map(|counts| counts.failed.get()).sum();
        if calls + rejected + failed == 0 {
            continue;
        }
        let micros = nanos as f64 / 1000.0;
        text.line(format_args!(
            "cmdstat_{}:calls={calls},usec={micros:.0},usec_per_call={:.2},rejected_calls={rejected},failed_calls={failed}",
            command.full_name,
            micros / calls.max(1) as f64,
        ));
    }
}

fn latencystats_section(server: &Server, text: &mut Text<'_>) {
    for command in text.table.all() {
        let Some(latencies) = server.latencies(command.counted().map(|row| row.id)) else { continue };
        let percentiles: Vec<String> = server
            .percentiles(&latencies)
            .into_iter()
            .map(|(percent, micros)| format!("p{}={micros:.3}", short_decimal(percent)))
            .collect();
        text.line(format_args!("latency_percentiles_usec_{}:{}", command.full_name, percentiles.join(",")));
    }
}

/// Where the time of commands goes: a line for each family and phase.
fn latencysplit_section(server: &Server, text: &mut Text<'_>) {
    let is_recorded = server.config.load().latency_split;
    text.line(format_args!("latency_split:{}", if is_recorded { "yes" } else { "no" }));
    for family in Group::ALL {
        for phase in Phase::ALL {
            let Some(latencies) = server.split(family, phase) else { continue };
            let percentiles: String = server
                .percentiles(&latencies)
                .into_iter()
                .map(|(percent, micros)| format!(",p{}={micros:.3}", short_decimal(percent)))
                .collect();
            let (family, phase) = (family.name(), phase.name());
            text.line(format_args!(
                "latency_split_usec_{family}_{phase}:reads={}{percentiles}",
                latencies.n_calls()
            ));
        }
    }
}

/// The connections of each I/O thread, and its reads and writes.
fn threads_section(server: &Server, text: &mut Text<'_>) {
    for (index, peer) in server.io_threads().iter().enumerate() {
        let (reads, writes) = (peer.stats.reads.get(), peer.stats.writes.get());
        text.line(format_args!(
            "io_thread_{index}:clients={},reads={reads},writes={writes}",
            peer.n_connections()
        ));
    }
}

fn errorstats_section(server: &Server, text: &mut Text<'_>) {
    for (code, count) in server.error_counts() {
        text.line(format_args!("errorstat_{code}:count={count}"));
    }
}

/// A line for each replica.
fn replicas(server: &Server, text: &mut Text<'_>) {
    let now = server.clock.uptime_millis();
    for (nth, replica) in server.replication.replicas.reports(now).iter().enumerate() {
        text.line(format_args!(
            "slave{nth}:ip={},port={},state={},offset={},lag={}",
            log::shown(replica.host.as_bytes()),
            replica.port,
            replica.state,
            replica.offset,
            replica.lag_seconds,
        ));
    }
}

fn keyspace_section(server: &Server, text: &mut Text<'_>) {
    // The hashes of which fields have deadlines.
    let partly = match AnnouncedServer::of(&server.config.load()).valkey_version {
        Some(_) => "keys_with_volatile_items",
        None => "subexpiry",
    };
    let databases = server.keyspace.databases();
    let average_ttls = server.average_ttls.of_those(|db| {
        let found = databases.binary_search_by_key(&db, |&(db, _)| db);
        found.is_ok_and(|at| databases[at].1.n_deadlines > 0)
    });
    for (db, counts) in databases {
        text.line(format_args!(
            "db{}:keys={},expires={},avg_ttl={},{partly}={}",
            db.0,
            counts.n_keys,
            counts.n_deadlines,
            average_ttls.get(&db).unwrap_or(&0),
            counts.n_partly,
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_abbreviated_as_redis_does() {
        let cases =
            [(0, "0B"), (1023, "1023B"), (1024, "1.00K"), (1_064_512, "1.02M"), (25_274_793_984, "23.54G")];
        for (bytes, text) in cases {
            assert_eq!(human(bytes), text);
        }
    }

    #[test]
    fn words_stand_for_groups_of_sections() {
        let shown = |name: &str| {
            let asked = SECTIONS.iter().filter(|section| asks_for(name.as_bytes(), section));
            asked.map(|section| section.name).collect::<Vec<_>>()
        };
        assert_eq!(shown("SERVER"), ["server"]);
        assert_eq!(shown("nosuch"), [""; 0]);
        assert!(!shown("default").contains(&"commandstats") && shown("default").contains(&"modules"));
        assert!(shown("all").contains(&"commandstats") && !shown("all").contains(&"modules"));
        assert_eq!(shown("everything").len(), SECTIONS.len() - 2);
    }
}
