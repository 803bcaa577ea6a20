//! `braid-bench run`: one workload against one server.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, SystemTime};

use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};

use crate::endpoint::{Endpoint, EndpointOptions};
use crate::engine::{Limit, Outcome, Slice};
use crate::error::BenchError;
use crate::load::{Ceiling, Load, LoadOptions};
use crate::observe::{self, Observer};
use crate::pages;
use crate::process::CpuSample;
use crate::report::text::{thousands, time};
use crate::report::{self, RunReport, Surroundings, csv, hlog, memtier};

/// Options of `braid-bench run`.
#[derive(Debug, Args)]
pub struct Options {
    #[command(flatten)]
    endpoint: EndpointOptions,
    #[command(flatten)]
    load: LoadOptions,
    /// Writes the report as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Writes seconds, commands and the total as CSV.
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
    /// Writes the response times of each second as an HdrHistogram log.
    #[arg(long, value_name = "FILE")]
    hlog: Option<PathBuf>,
    /// Writes the JSON that memtier_benchmark would write.
    #[arg(long, value_name = "FILE")]
    memtier_json: Option<PathBuf>,
    /// Writes a page with percentiles and the run over time.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

/// Runs the workload and prints the table. Exits with 1 when a request failed.
///
/// # Errors
/// When the server cannot be loaded or a file cannot be written.
pub fn run(options: &Options) -> Result<ExitCode, BenchError> {
    let load = options.load.load()?;
    let endpoint = options.endpoint.open(load.workload().protocol)?;
    let observer = Observer::new(&endpoint);
    observer.pin(&options.load.server_cpus)?;
    let ceiling = load.calibrate()?;
    load.preload(&endpoint.target)?;
    let start = SystemTime::now();
    let measured = measure(&load, &endpoint, &observer, Some(ceiling))?;
    let Measured { report, outcome } = &measured;
    report::tell(report)?;
    let files = [
        (&options.json, report.json().into_bytes()),
        (&options.csv, csv::csv(report).into_bytes()),
        (&options.hlog, hlog::hlog(outcome, start)),
        (&options.memtier_json, report::json(&memtier::memtier(report, start)).into_bytes()),
        (&options.html, pages::run(&measured).into_bytes()),
    ];
    for (path, text) in files {
        if let Some(path) = path {
            report::write(path, &text)?;
        }
    }
    let is_clean = report.errors == 0 && report.unanswered == 0;
    Ok(if is_clean { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// A run and its report.
#[derive(Debug)]
pub struct Measured {
    /// What was found.
    pub report: RunReport,
    /// The histograms behind it.
    pub outcome: Outcome,
}

/// Runs a load once with a live line, looks at the server before and after, and puts the report together.
///
/// # Errors
/// When the server cannot be loaded.
pub fn measure(
    load: &Load,
    endpoint: &Endpoint,
    observer: &Observer,
    ceiling: Option<Ceiling>,
) -> Result<Measured, BenchError> {
    let before = observer.sample();
    let mut live = Live::new(load, observer);
    let outcome = load.run(&endpoint.target, &mut |slice| live.show(slice))?;
    let seen = live.finish();
    let after = observer.sample();
    let server_use = after.since(&before);
    let around = Surroundings {
        server: &endpoint.name,
        load,
        before: &before,
        bottleneck: observe::bottleneck(&outcome, &server_use, load.workload()),
        server_use,
        seen: &seen,
        ceiling,
        shares_cores: observer.shares_cores(&load.plan.cpus),
    };
    let report = RunReport::new(&outcome, around);
    Ok(Measured { report, outcome })
}

/// The line that shows each second as it passes.
struct Live<'a> {
    bar: ProgressBar,
    observer: &'a Observer,
    last: Option<CpuSample>,
    seen: Seen,
}

/// What was seen of the server second by second, if it runs here.
#[derive(Debug, Default)]
pub struct Seen {
    /// Its processor time in each second, in cores.
    pub cpu: Vec<f64>,
    /// The most resident bytes.
    pub peak_bytes: Option<u64>,
}

impl<'a> Live<'a> {
    fn new(load: &Load, observer: &'a Observer) -> Self {
        let n_seconds = match load.plan.limit {
            Limit::Time { warmup, measured } => (warmup + measured).as_secs(),
            Limit::Requests(_) | Limit::Told(_) => 0,
        };
        let bar = ProgressBar::new(n_seconds);
        let style =
            ProgressStyle::with_template("{bar:20} {pos}/{len} s  {msg}").expect("the template is right");
        bar.set_style(style);
        bar.enable_steady_tick(Duration::from_secs(1));
        Self { bar, observer, last: observer.cpu(), seen: Seen::default() }
    }

    fn show(&mut self, slice: &Slice) {
        let now = self.observer.cpu();
        let used = now.zip(self.last).map(|(now, last)| now.since(last).as_secs_f64());
        self.last = now;
        self.seen.cpu.extend(used);
        self.seen.peak_bytes = self.seen.peak_bytes.max(self.observer.resident_bytes());
        let percentile = |percentile| time(slice.response.value_at_percentile(percentile) as f64 / 1e3);
        self.bar.set_position(slice.second + 1);
        self.bar.set_message(format!(
            "{} a second  p50 {}  p99 {}  {} errors",
            thousands(slice.n_done as f64),
            percentile(50.0),
            percentile(99.0),
            slice.n_errors
        ));
    }

    /// Removes the line, and returns what was seen meanwhile.
    fn finish(self) -> Seen {
        self.bar.finish_and_clear();
        self.seen
    }
}
