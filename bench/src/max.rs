//! `braid-bench max`: the highest rate at which a server keeps a latency target.

use std::fmt;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use braid_bench::model::search::{
    self, Bounds, Breach, Found, LimitedBy, Probe, Slo, Step, Window, WindowVerdict,
};
use clap::Args;
use hdrhistogram::Histogram;
use serde::Serialize;

use crate::endpoint::{Endpoint, EndpointOptions};
use crate::error::BenchError;
use crate::load::{Load, LoadOptions, PaceOptions};
use crate::measure::measure;
use crate::observe::Observer;
use crate::output;
use crate::pages;
use crate::quantity::{interval, thousands, time};
use crate::report::{Measured, RunReport, SCHEMA_VERSION};
use crate::table::Table;

/// The time for which each rate is measured.
pub const WINDOW: Duration = Duration::from_secs(1);
/// The time for which each rate runs before [`WINDOW`] begins.
pub const WARMUP: Duration = Duration::from_millis(300);
/// The time for which the rate found is measured for the report.
const FINAL: Duration = Duration::from_secs(5);
/// The number of repetitions of a window in which the client was the limit.
///
/// Another program on the machine may have slowed the client.
const N_AGAIN: u32 = 2;
/// Percentiles that every window records, whatever the target.
const PERCENTILES: [f64; 5] = [50.0, 90.0, 99.0, 99.9, 100.0];

/// Options of `braid-bench max`.
#[derive(Debug, Args)]
pub struct Options {
    #[command(flatten)]
    endpoint: EndpointOptions,
    #[command(flatten)]
    load: LoadOptions,
    #[command(flatten)]
    search: SearchOptions,
    /// Writes the result and every window as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Writes a page with the curve and a run at the rate found.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

/// Options of a search.
#[derive(Debug, Clone, Args)]
pub struct SearchOptions {
    /// The target: percentiles of the response time, as in p99=1ms,p99.9=5ms.
    #[arg(long, value_name = "TARGET", default_value = "p99=1ms")]
    slo: Slo,
    /// How many requests of a window may fail.
    #[arg(long, value_name = "N", default_value_t = 0)]
    errors: u64,
    /// The rate to begin with.
    #[arg(long, value_name = "RATE", default_value_t = 1000.0)]
    start: f64,
    /// The highest rate to try.
    #[arg(long, value_name = "RATE", default_value_t = 1e8)]
    highest: f64,
    /// How often the search is repeated for the interval.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(2..))]
    rounds: u32,
}

/// The result of a search, as it is written.
#[derive(Debug, Serialize)]
struct MaxReport<'a> {
    schema: &'static str,
    schema_version: u32,
    slo: &'a Slo,
    found: &'a Found,
    /// A run at the interval's lower end.
    run: &'a RunReport,
}

/// Searches, and prints the result.
///
/// # Errors
/// When the server cannot be loaded or a file cannot be written.
pub fn run(options: &Options) -> Result<ExitCode, BenchError> {
    let load = options.load.windows(&PaceOptions::default(), WARMUP, WINDOW)?;
    let endpoint = options.endpoint.open(load.workload().protocol)?;
    let observer = Observer::new(&endpoint);
    observer.pin(&options.load.server_cpus)?;
    let ceiling = load.calibrate()?;
    load.preload(&endpoint.target)?;
    let slo = options.search.slo();
    let found = options.search.search(&load, &endpoint)?;
    let safe = load.at_rate(Some(found.rate.low.max(1.0))).lasting(WARMUP, FINAL);
    let measured = measure(&safe, &endpoint, &observer, Some(ceiling))?;
    let summary = SearchSummary { found: &found, slo: &slo };
    output::print(format_args!(
        "{summary}\nAt {} a second:\n{}",
        thousands(found.rate.low),
        measured.report
    ))?;
    let Measured { report, .. } = &measured;
    if let Some(path) = &options.json {
        let schema = "braid-bench/max";
        let json =
            MaxReport { schema, schema_version: SCHEMA_VERSION, slo: &slo, found: &found, run: report };
        output::write(path, output::json(&json).as_bytes())?;
    }
    if let Some(path) = &options.html {
        output::write(path, pages::max(&found, &slo, &measured).as_bytes())?;
    }
    Ok(ExitCode::SUCCESS)
}

impl SearchOptions {
    /// The target, including the allowed failures.
    pub fn slo(&self) -> Slo {
        self.slo.clone().with_max_errors(self.errors)
    }

    /// Searches a server that is loaded with its keys.
    ///
    /// Every window is reported on standard error.
    ///
    /// # Errors
    /// When the server cannot be loaded, or the bounds are the wrong way round.
    pub fn search(&self, load: &Load, endpoint: &Endpoint) -> Result<Found, BenchError> {
        let default = Bounds::default();
        let lowest = default.lowest.min(self.start);
        let bounds =
            Bounds { start: self.start, lowest, highest: self.highest, n_rounds: self.rounds, ..default };
        if !(self.start > 0.0 && self.start <= self.highest) {
            return Err(BenchError::Machine(String::from("--start is above 0 and not above --highest")));
        }
        let slo = self.slo();
        let mut percentiles = PERCENTILES.to_vec();
        percentiles.extend(slo.targets().iter().map(|target| target.0));
        percentiles.sort_by(f64::total_cmp);
        percentiles.dedup();
        let mut server = SearchedServer { load, endpoint, percentiles };
        search::search(&mut server, &slo, &bounds, &mut |step| eprintln!("{}", step_line(step)))
    }
}

/// The server as the search sees it.
struct SearchedServer<'a> {
    load: &'a Load,
    endpoint: &'a Endpoint,
    percentiles: Vec<f64>,
}

impl Probe for SearchedServer<'_> {
    type Error = BenchError;

    fn measure(&mut self, rate: f64) -> Result<Window, BenchError> {
        let load = self.load.at_rate(Some(rate));
        let mut outcome = load.run(&self.endpoint.target, &mut |_| {})?;
        for _ in 0..N_AGAIN {
            if outcome.client_limit().is_none() {
                break;
            }
            outcome = load.run(&self.endpoint.target, &mut |_| {})?;
        }
        Ok(Window {
            offered: rate,
            achieved: outcome.achieved_rate(),
            errors: outcome.record.n_errors() + outcome.record.n_unanswered,
            unsent: outcome.record.n_unsent,
            client_limited: outcome.client_limit().is_some(),
            percentiles_us: percentiles_us(&outcome.record.response(), &self.percentiles),
        })
    }
}

/// Percentiles in microseconds; none where nothing was answered.
///
/// An empty histogram would report zero, the best of all times.
fn percentiles_us(nanos: &Histogram<u64>, percentiles: &[f64]) -> Vec<(f64, f64)> {
    let percentile = |&at: &f64| (at, nanos.value_at_percentile(at) as f64 / 1e3);
    if nanos.is_empty() { Vec::new() } else { percentiles.iter().map(percentile).collect() }
}

fn step_line(step: &Step) -> String {
    let median = step.window.percentile_us(50.0).map_or_else(|| String::from("-"), time);
    let p99 = step.window.percentile_us(99.0).map_or_else(|| String::from("-"), time);
    let verdict = match step.verdict {
        WindowVerdict::Kept => String::from("kept"),
        WindowVerdict::Broken(breach) => format!("missed: {}", words(breach)),
        WindowVerdict::ClientLimited => String::from("missed, and the client was the limit"),
    };
    format!("{:>12} a second  p50 {median:>8}  p99 {p99:>8}  {verdict}", thousands(step.rate))
}

/// A breach in words.
fn words(breach: Breach) -> String {
    match breach {
        Breach::Errors => String::from("requests failed"),
        Breach::Unsent => String::from("requests could not be sent"),
        Breach::Behind => String::from("fewer were answered than offered"),
        Breach::Latency { percentile } => format!("p{percentile} is beyond the target"),
        Breach::Unmeasured { percentile } => format!("p{percentile} was not measured"),
    }
}

/// The result of a search, in words.
pub struct SearchSummary<'a> {
    /// The result.
    pub found: &'a Found,
    /// The target of the search.
    pub slo: &'a Slo,
}

impl fmt::Display for SearchSummary<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { found, slo } = self;
        let rate = found.rate;
        match found.limit {
            LimitedBy::Server => writeln!(
                f,
                "{} a second keep {slo} ({} with 95 % confidence)",
                thousands(rate.value),
                interval(rate)
            )?,
            LimitedBy::Client => {
                writeln!(f, "CLIENT LIMITED: a lower bound of {} a second keep {slo}", thousands(rate.low))?;
            }
            LimitedBy::Highest => writeln!(f, "at least {} a second keep {slo}", thousands(rate.low))?,
            LimitedBy::Lowest => {
                writeln!(f, "no rate keeps {slo}: not even {} a second", thousands(rate.high))?
            }
        }
        if let Some(breach) = found.breach {
            writeln!(f, "above that, {}", words(breach))?;
        }
        if let Some(knee) = found.knee {
            let (rate, median) = (thousands(knee.rate.value), time(knee.median_us));
            writeln!(f, "knee: {rate} a second, where the median is {median}")?;
        }
        let mut table = Table::new(["offered", "p50", "p99"]);
        let p99 = found.curve(99.0);
        for (point, p99) in found.curve(50.0).iter().zip(p99) {
            if point.rate <= rate.value * 1.15 {
                let times = [point, &p99].map(|point| time(point.response_us.value));
                table.push([vec![thousands(point.rate)], times.to_vec()].concat());
            }
        }
        write!(f, "\n{table}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_without_an_answer_has_no_times() {
        let mut nanos = Histogram::new(3).expect("three digits are allowed");
        assert_eq!(percentiles_us(&nanos, &PERCENTILES), []);
        nanos.record(2_000).expect("it grows");
        assert_eq!(percentiles_us(&nanos, &PERCENTILES).len(), PERCENTILES.len());
    }
}
