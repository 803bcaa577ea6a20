//! The outcome of one run: the types from which every form of a report is made.
//!
//! [`RunReport`] is also the schema of `--json`: its fields, documented here, are the file's.
//! [`SCHEMA_VERSION`] grows when a field changes its meaning or is removed. New fields do not change it.

use std::fs;
use std::time::{Duration, SystemTime};

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use crate::engine::{Arrivals, CommandRecord, Outcome, Record, Slice};
use crate::load::{Ceiling, Load};
use crate::observe::{Bottleneck, Sample, Seen, ServerUse};
use crate::output;
use crate::process;
use crate::workload::Workload;

pub mod csv;
pub mod hlog;
pub mod memtier;
pub mod text;

/// Version of the JSON.
pub const SCHEMA_VERSION: u32 = 1;

/// The report of one run.
#[derive(Debug, Clone, Serialize)]
pub struct RunReport {
    /// The name of the schema: `braid-bench/run`.
    pub schema: &'static str,
    /// The version of the schema: [`SCHEMA_VERSION`].
    pub schema_version: u32,
    /// The machine, the program and the date of the run.
    pub origin: Origin,
    /// The server's address, or the command that started it.
    pub server: String,
    /// The server's name and version.
    pub server_version: String,
    /// The workload that was sent.
    pub workload: Workload,
    /// `closed`, or the shape of the arrivals of a rate.
    pub arrivals: String,
    /// Worker threads of the client.
    pub threads: usize,
    /// Duration of the time that counted, in seconds.
    pub measured_seconds: f64,
    /// Requests a second on schedule; null in a closed loop.
    pub offered_rate: Option<f64>,
    /// Requests a second that were answered.
    pub achieved_rate: f64,
    /// Requests sent.
    pub sent: u64,
    /// Requests answered without an error.
    pub done: u64,
    /// Requests that were due and could not be sent.
    pub unsent: u64,
    /// Requests that were sent and never answered.
    pub unanswered: u64,
    /// Requests that an error answered, or a reply with errors in it.
    ///
    /// EXEC's reply may contain errors.
    pub errors: u64,
    /// The count of each error text, including those inside other replies.
    pub error_texts: std::collections::BTreeMap<String, u64>,
    /// Replies that were null: reads that found nothing.
    pub nulls: u64,
    /// Transactions repeated because a watched key had changed.
    pub conflicts: u64,
    /// Connections opened again.
    pub reconnects: u64,
    /// Bytes sent, warm-up included.
    pub bytes_sent: u64,
    /// Bytes received, warm-up included.
    pub bytes_received: u64,
    /// Bytes of a request and its replies together.
    pub bytes_per_request: f64,
    /// Time from when a request was due to its last reply.
    pub response_time_us: Percentiles,
    /// Time from when a request was sent to its last reply.
    pub service_time_us: Percentiles,
    /// The client's own lateness.
    pub schedule_slip_us: Percentiles,
    /// Time from a message's due time to its arrival at a consumer; null without consumers.
    pub delivery_time_us: Option<Percentiles>,
    /// Messages that consumers counted by their bytes.
    pub delivered: u64,
    /// Messages that those consumers should have received and did not.
    pub lost: u64,
    /// Command by command.
    pub commands: Vec<CommandReport>,
    /// Second by second.
    pub seconds: Vec<SecondReport>,
    /// Processor time of the client for one request, in microseconds.
    pub client_cpu_us_per_request: f64,
    /// The busiest worker's processor time over the time that counted.
    pub client_busy: f64,
    /// Requests a second that the client's threads could send if each had a core.
    ///
    /// It follows from their processor time against a null server.
    pub client_ceiling_rate: Option<f64>,
    /// Whether the client was the limit. All figures are then lower bounds.
    pub client_limited: bool,
    /// The figures that show the client's limit, in words.
    pub client_limit_reason: Option<String>,
    /// Whether client and server may run on the same cores.
    pub shares_cores: bool,
    /// The server's use of the machine.
    pub server_use: ServerUse,
    /// Processor time of the server for one request, in microseconds.
    pub server_cpu_us_per_request: Option<f64>,
    /// The most resident bytes of the server at the end of any second.
    ///
    /// Connections' buffers are included. It is null where the server is not on this machine.
    pub server_peak_bytes: Option<u64>,
    /// The limit that kept the rate from being higher.
    pub bottleneck: Bottleneck,
}

/// A run and its report.
#[derive(Debug)]
pub struct Measured {
    /// The report.
    pub report: RunReport,
    /// The histograms of its times.
    pub outcome: Outcome,
}

/// The machine, the program and the date of a report.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Origin {
    /// Version of this program.
    pub tool_version: String,
    /// The revision from which it was built.
    pub tool_revision: String,
    /// Its command line.
    pub command_line: String,
    /// The date and time, in UTC.
    pub date: String,
    /// The machine's processor.
    pub processor: String,
    /// The machine's kernel.
    pub kernel: String,
    /// The number of the machine's cores.
    pub n_cores: usize,
    /// The machine's memory in bytes.
    pub memory_bytes: u64,
    /// Threads that wanted a core over the minute before.
    pub load_average: f64,
}

/// Times in microseconds; all zero where nothing was measured.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Percentiles {
    pub mean: f64,
    pub p50: f64,
    pub p90: f64,
    pub p99: f64,
    pub p99_9: f64,
    pub p99_99: f64,
    pub max: f64,
}

/// One command of a run.
#[derive(Debug, Clone, Serialize)]
pub struct CommandReport {
    /// The command's name.
    pub name: String,
    /// Requests answered without an error.
    pub done: u64,
    /// Requests that an error answered, or a reply with errors in it.
    ///
    /// EXEC's reply may contain errors.
    pub errors: u64,
    /// Replies that were null.
    pub nulls: u64,
    /// Requests answered a second.
    pub rate: f64,
    /// Response times, errors left out.
    pub response_time_us: Percentiles,
}

/// One second of a run.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct SecondReport {
    /// The number of the second since the run began, from 0.
    pub second: u64,
    /// Requests answered in this second.
    pub done: u64,
    /// Error replies in this second.
    pub errors: u64,
    /// Median response time.
    pub p50_us: f64,
    /// 99th percentile of the response times.
    pub p99_us: f64,
    /// The longest response time.
    pub max_us: f64,
    /// The client's processor time in this second, in cores.
    pub client_cpu: f64,
    /// The server's processor time, if it runs on this machine.
    pub server_cpu: Option<f64>,
}

impl Percentiles {
    /// Reads the percentiles of a histogram of nanoseconds.
    pub fn of(nanos: &Histogram<u64>) -> Self {
        let at = |percentile| micros(nanos.value_at_percentile(percentile));
        Self {
            mean: nanos.mean() / 1e3,
            p50: at(50.0),
            p90: at(90.0),
            p99: at(99.0),
            p99_9: at(99.9),
            p99_99: at(99.99),
            max: micros(nanos.max()),
        }
    }
}

fn micros(nanos: u64) -> f64 {
    nanos as f64 / 1e3
}

impl Origin {
    /// Describes this program, this machine and the current time.
    pub fn here() -> Self {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let field = |text: &str, name: &str| {
            text.lines()
                .find_map(|line| {
                    line.strip_prefix(name)?
                        .trim_start()
                        .strip_prefix(':')
                        .map(|value| value.trim().to_owned())
                })
                .unwrap_or_default()
        };
        let kilobytes = field(&read("/proc/meminfo"), "MemTotal");
        Self {
            tool_version: env!("CARGO_PKG_VERSION").to_owned(),
            tool_revision: env!("BRAID_BENCH_REVISION").to_owned(),
            command_line: told(std::env::args()),
            date: humantime::format_rfc3339_seconds(SystemTime::now()).to_string(),
            processor: field(&read("/proc/cpuinfo"), "model name"),
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            n_cores: std::thread::available_parallelism().map_or(1, usize::from),
            memory_bytes: kilobytes.trim_end_matches("kB").trim().parse::<u64>().unwrap_or(0) * 1024,
            load_average: process::load_average().unwrap_or(0.0),
        }
    }
}

/// A command line in the form that may be shown, without its password.
fn told(arguments: impl Iterator<Item = String>) -> String {
    let mut words = Vec::new();
    let mut is_secret = false;
    for argument in arguments {
        let word = match argument.as_str() {
            _ if is_secret => String::from("***"),
            "-a" | "--password" => argument.clone(),
            _ if argument.starts_with("--password=") => String::from("--password=***"),
            _ if argument.starts_with("-a") => String::from("-a***"),
            _ => argument.clone(),
        };
        is_secret = !is_secret && matches!(argument.as_str(), "-a" | "--password");
        words.push(word);
    }
    words.join(" ")
}

impl CommandReport {
    fn of(command: &CommandRecord, measured: Duration) -> Self {
        Self {
            name: command.title.clone(),
            done: command.n_done,
            errors: command.n_errors,
            nulls: command.n_nulls,
            rate: command.n_done_in_time as f64 / measured.as_secs_f64(),
            response_time_us: Percentiles::of(&command.response),
        }
    }
}

impl SecondReport {
    /// Reports a slice, with the server's processor time in it.
    pub fn of(slice: &Slice, server_cpu: Option<f64>) -> Self {
        Self {
            second: slice.second,
            done: slice.n_done,
            errors: slice.n_errors,
            p50_us: micros(slice.response.value_at_percentile(50.0)),
            p99_us: micros(slice.response.value_at_percentile(99.0)),
            max_us: micros(slice.response.max()),
            client_cpu: slice.cpu.as_secs_f64(),
            server_cpu,
        }
    }
}

/// The context of an outcome in a report.
#[derive(Debug)]
pub struct Surroundings<'a> {
    /// The server's address or command.
    pub server: &'a str,
    /// The load of the run.
    pub load: &'a Load,
    /// A sample of the server before the run.
    pub before: &'a Sample,
    /// The server's use of the machine.
    pub server_use: ServerUse,
    /// The limit of the rate.
    pub bottleneck: Bottleneck,
    /// The samples of the server second by second.
    pub seen: &'a Seen,
    /// The client's own limit, if it was measured.
    pub ceiling: Option<Ceiling>,
    /// Whether client and server may run on the same cores.
    pub shares_cores: bool,
}

impl RunReport {
    /// Makes a report of an outcome.
    pub fn new(outcome: &Outcome, around: Surroundings<'_>) -> Self {
        let Surroundings { load, server_use, bottleneck, ceiling, shares_cores, .. } = around;
        let record = &outcome.record;
        let cpu: Duration = outcome.workers.iter().map(|worker| worker.cpu).sum();
        let limit = outcome.client_limit();
        let workload = load.workload();
        Self {
            schema: "braid-bench/run",
            schema_version: SCHEMA_VERSION,
            origin: Origin::here(),
            server: around.server.to_owned(),
            server_version: around.before.server_version(),
            workload: workload.clone(),
            arrivals: match load.plan.arrivals {
                Arrivals::Closed => String::from("closed"),
                Arrivals::Open { shape, .. } => shape.to_string(),
            },
            threads: outcome.workers.len(),
            measured_seconds: outcome.measured.as_secs_f64(),
            offered_rate: outcome.offered,
            achieved_rate: outcome.achieved_rate(),
            sent: record.n_sent,
            done: record.n_done(),
            unsent: record.n_unsent,
            unanswered: record.n_unanswered,
            errors: record.n_errors(),
            error_texts: record.errors.clone(),
            nulls: record.commands.iter().map(|command| command.n_nulls).sum(),
            conflicts: record.n_conflicts,
            reconnects: record.n_reconnects,
            bytes_sent: record.n_bytes_sent,
            bytes_received: record.n_bytes_received,
            bytes_per_request: (record.n_bytes_sent + record.n_bytes_received) as f64
                / record.n_answered.max(1) as f64,
            response_time_us: Percentiles::of(&record.response()),
            service_time_us: Percentiles::of(&record.service),
            schedule_slip_us: Percentiles::of(&record.slip),
            delivered: outcome.n_delivered,
            lost: outcome.n_lost,
            delivery_time_us: (!outcome.delivery.is_empty()).then(|| Percentiles::of(&outcome.delivery)),
            commands: record
                .commands
                .iter()
                .map(|command| CommandReport::of(command, outcome.measured))
                .collect(),
            seconds: outcome
                .slices
                .iter()
                .enumerate()
                .map(|(index, slice)| SecondReport::of(slice, around.seen.cpu.get(index).copied()))
                .collect(),
            client_cpu_us_per_request: micros_per_request(cpu, record),
            client_busy: outcome
                .workers
                .iter()
                .map(|worker| worker.cpu.as_secs_f64() / worker.wall.as_secs_f64())
                .fold(0.0, f64::max),
            client_ceiling_rate: ceiling.map(|ceiling| ceiling.rate),
            client_limited: limit.is_some(),
            client_limit_reason: limit,
            shares_cores,
            server_cpu_us_per_request: server_use
                .cpu_seconds
                .map(|seconds| seconds * 1e6 / record.n_answered.max(1) as f64),
            server_use,
            server_peak_bytes: around.seen.peak_bytes,
            bottleneck,
        }
    }

    /// Returns the report as JSON.
    pub fn json(&self) -> String {
        output::json(self)
    }
}

/// Processor time of the client for a request that counts, in microseconds.
///
/// Errors are included because they cost the same.
fn micros_per_request(cpu: Duration, record: &Record) -> f64 {
    cpu.as_secs_f64() * 1e6 / (record.n_done() + record.n_errors()).max(1) as f64
}

#[cfg(test)]
mod tests {
    use std::str;

    use hdrhistogram::serialization::interval_log::{IntervalLogIterator, LogEntry};
    use serde_json::Value;

    use super::*;
    use crate::endpoint::Endpoint;
    use crate::null_server::NullServer;
    use crate::observe::Observer;

    /// Makes a report of a second against the null server.
    fn measured() -> Measured {
        let server = NullServer::start(None).expect("loopback can be listened on");
        let endpoint = Endpoint::at(&server.address().to_string()).expect("it is an address");
        let workload = Workload { connections: 4, pipeline: 2, rate: Some(500.0), ..Workload::default() };
        let load = Load::new(&workload, 2, Vec::new()).expect("the workload makes sense");
        let load = load.lasting(Duration::ZERO, Duration::from_secs(1));
        crate::measure::measure(&load, &endpoint, &Observer::new(&endpoint), None)
            .expect("the null server answers")
    }

    #[test]
    fn every_form_of_a_report_tells_the_same() {
        let Measured { report, outcome } = measured();
        let json: Value = serde_json::from_str(&report.json()).expect("it is JSON");
        assert_eq!((&json["schema"], &json["schema_version"]), (&"braid-bench/run".into(), &1.into()));
        assert_eq!(json["offered_rate"], 500.0);
        assert_eq!(
            json["sent"].as_u64().zip(json["unsent"].as_u64()).map(|(sent, unsent)| sent + unsent),
            Some(500)
        );
        for times in ["response_time_us", "service_time_us", "schedule_slip_us"] {
            let quantiles = ["p50", "p90", "p99", "p99_9", "max"].map(|name| json[times][name].as_f64());
            assert!(quantiles.iter().all(Option::is_some) && quantiles.is_sorted(), "{times}: {quantiles:?}");
        }
        let rates: f64 = report.commands.iter().map(|command| command.rate).sum();
        assert!((rates - report.achieved_rate).abs() < 1e-6, "{rates} of {}", report.achieved_rate);
        let done = json["done"].as_u64().expect("it is a count");
        let table = csv::csv(&report);
        assert!(
            table.lines().last().expect("it has rows").starts_with(&format!("total,all,{done},0,")),
            "{table}"
        );
        let columns = |line: &str| line.split(',').count();
        assert!(
            table.lines().all(|line| columns(line) == columns(table.lines().next().expect("it has a head")))
        );
        let memtier = memtier::memtier(&report, SystemTime::UNIX_EPOCH);
        assert_eq!(memtier["ALL STATS"]["Totals"]["Count"], done);
        assert_eq!(memtier["ALL STATS"]["Gets"]["Count"], report.commands[0].done);
        let log = hlog::hlog(&outcome, SystemTime::UNIX_EPOCH);
        let intervals =
            IntervalLogIterator::new(&log).filter(|entry| matches!(entry, Ok(LogEntry::Interval(_)))).count();
        assert_eq!(intervals, report.seconds.len(), "{:?}", str::from_utf8(&log));
        assert!(report.to_string().contains("open loop, 500 a second, constant, 4 connections, pipeline 2"));
    }

    #[test]
    fn requests_that_fail_cost_the_client_too() {
        let mut record = Record::new(["GET"].into_iter());
        record.commands[0].n_errors = 4;
        assert_eq!(micros_per_request(Duration::from_micros(40), &record), 10.0);
        record.commands[0].n_done = 6;
        assert_eq!(micros_per_request(Duration::from_micros(40), &record), 4.0);
    }

    #[test]
    fn a_password_is_not_told() {
        let line = |words: &str| told(words.split(' ').map(str::to_owned));
        assert_eq!(line("run -a secret -p 1"), "run -a *** -p 1");
        assert_eq!(
            line("run --password=secret -asecret --password secret"),
            "run --password=*** -a*** --password ***"
        );
        assert_eq!(line("run --arrivals poisson"), "run --arrivals poisson");
    }
}
