//! `braid-bench compare`: two or more servers under the same workload, in turns, round by round.
//!
//! Other work on the machine disturbs all of them equally. So ratios within a round vary less than figures,
//! and their spread over the rounds shows how precise they are. The first server is the reference.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use braid_bench::model::stats::{self, Estimate};
use clap::Args;
use serde::{Deserialize, Serialize};

use crate::bars;
use crate::endpoint::Endpoint;
use crate::error::{BenchError, Doing};
use crate::load::{Load, LoadOptions, PaceOptions};
use crate::measure::measure;
use crate::observe::Observer;
use crate::output;
use crate::quantity::{percent, thousands, three_digits};
use crate::report::{Origin, RunReport, SCHEMA_VERSION};
use crate::table::Table;

mod verify;

use self::verify::Verified;

/// The time for which a round measures each server. Before it, the server is under load for [`WARMUP`].
const WINDOW: Duration = Duration::from_secs(3);
const WARMUP: Duration = Duration::from_millis(500);
const N_ROUNDS: u64 = 5;

/// Options of `braid-bench compare`.
#[derive(Debug, Args)]
pub struct Options {
    /// Servers as HOST:PORT or PORT; the first is the reference.
    #[arg(value_name = "SERVER")]
    servers: Vec<String>,
    /// Starts this server for the comparison, words quoted as in a shell; servers that are named come first.
    #[arg(long, value_name = "COMMAND")]
    spawn: Vec<String>,
    /// Exits with 1 when a target is missed. Between named servers, exits with 1 when a server is worse than
    /// the reference by more than --max-regress and the noise. With a file that --json has written, the same
    /// comparison in it takes the place of the reference.
    #[arg(long, value_name = "BASELINE", num_args = 0..=1)]
    gate: Option<Option<PathBuf>>,
    /// Largest regression of a figure that is allowed.
    #[arg(long, value_name = "PERCENT", default_value = "5%", value_parser = percent)]
    max_regress: f64,
    #[command(flatten)]
    load: LoadOptions,
    #[command(flatten)]
    pace: PaceOptions,
    #[command(flatten)]
    bars: bars::Options,
}

/// A comparison, in its written form.
#[derive(Debug, Serialize)]
struct Comparison {
    schema: &'static str,
    schema_version: u32,
    origin: Origin,
    workload: String,
    /// The servers, the reference first.
    servers: Vec<String>,
    rounds: u64,
    verified: Vec<Verified>,
    measures: Vec<ComparedFigure>,
    /// Whether the client held any of the runs back. Ratios of throughput are then too close to 1.
    client_limited: bool,
}

/// One figure of all servers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct ComparedFigure {
    name: String,
    higher_is_better: bool,
    /// The figures of each server, one a round.
    figures: Vec<Vec<f64>>,
    /// The ratio of each server but the reference.
    ratios: Vec<Option<Ratio>>,
}

/// A server's figure over the reference's, with its interval.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
struct Ratio {
    value: f64,
    low: f64,
    high: f64,
}

impl From<Estimate> for Ratio {
    fn from(Estimate { value, low, high }: Estimate) -> Self {
        Self { value, low, high }
    }
}

/// The parts of an earlier comparison with which this one is compared.
#[derive(Debug, Deserialize)]
struct Baseline {
    workload: String,
    measures: Vec<ComparedFigure>,
}

/// A figure of a run.
struct RunFigure {
    name: &'static str,
    higher_is_better: bool,
    of: fn(&RunReport) -> Option<f64>,
}

const FIGURES: &[RunFigure] = &[
    RunFigure { name: "throughput (/s)", higher_is_better: true, of: |run| Some(run.achieved_rate) },
    RunFigure { name: "p50 (µs)", higher_is_better: false, of: |run| Some(run.response_time_us.p50) },
    RunFigure { name: "p99 (µs)", higher_is_better: false, of: |run| Some(run.response_time_us.p99) },
    RunFigure { name: "p99.9 (µs)", higher_is_better: false, of: |run| Some(run.response_time_us.p99_9) },
    RunFigure {
        name: "CPU a request (µs)",
        higher_is_better: false,
        of: |run| run.server_cpu_us_per_request,
    },
    RunFigure {
        name: "resident (MiB)",
        higher_is_better: false,
        of: |run| run.server_use.resident_bytes_after.map(|bytes| bytes as f64 / 1_048_576.0),
    },
];

/// Compares the servers and prints a table.
///
/// # Errors
/// When a server cannot be reached, started or loaded, or a file cannot be read or written.
pub fn run(options: &Options) -> Result<ExitCode, BenchError> {
    if options.servers.is_empty() && options.spawn.is_empty() {
        return bars::run(&options.bars, options.gate.is_some());
    }
    let load = options.load.windows(&options.pace, WARMUP, WINDOW)?;
    let baseline =
        options.gate.as_ref().and_then(Option::as_ref).map(|path| Baseline::read(path)).transpose()?;
    if baseline.as_ref().is_some_and(|baseline| baseline.workload != load.workload().to_toml()) {
        return Err(BenchError::Machine(String::from("the baseline is of another workload")));
    }
    let endpoints = options.endpoints()?;
    let comparison = compare(&load, &endpoints, options)?;
    output::print(&comparison)?;
    if let Some(path) = &options.bars.json {
        output::write(path, output::json(&comparison).as_bytes())?;
    }
    if options.gate.is_none() {
        return Ok(ExitCode::SUCCESS);
    }
    let mut is_passed = comparison.verified.iter().all(|verified| verified.n_different == 0);
    for regress in comparison.regressions(baseline.as_ref(), options.max_regress) {
        output::print(format_args!("regressed: {regress}\n"))?;
        is_passed = false;
    }
    Ok(if is_passed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

impl Options {
    fn endpoints(&self) -> Result<Vec<Endpoint>, BenchError> {
        let named = self.servers.iter().map(|address| Endpoint::at(address));
        let spawned = self.spawn.iter().map(|command| Endpoint::spawn(command));
        let endpoints = named.chain(spawned).collect::<Result<Vec<_>, _>>()?;
        if endpoints.len() < 2 {
            return Err(BenchError::Machine(String::from("a comparison needs two servers")));
        }
        Ok(endpoints)
    }
}

fn compare(load: &Load, endpoints: &[Endpoint], options: &Options) -> Result<Comparison, BenchError> {
    let observers: Vec<_> = endpoints.iter().map(Observer::new).collect();
    for (endpoint, observer) in endpoints.iter().zip(&observers) {
        observer.pin(&options.load.server_cpus)?;
        load.preload(&endpoint.target)?;
    }
    let verified = endpoints[1..]
        .iter()
        .map(|endpoint| verify::verify(load, &endpoints[0], endpoint))
        .collect::<Result<_, _>>()?;
    let n_rounds = options.bars.rounds.unwrap_or(N_ROUNDS);
    let mut runs: Vec<Vec<RunReport>> = endpoints.iter().map(|_| Vec::new()).collect();
    for round in 0..n_rounds as usize {
        // The servers take turns at being first, so that none always follows the same one.
        for turn in 0..endpoints.len() {
            let server = (round + turn) % endpoints.len();
            let run = measure(load, &endpoints[server], &observers[server], None)?.report;
            eprintln!(
                "round {}/{n_rounds} {}: {} a second",
                round + 1,
                run.server,
                thousands(run.achieved_rate)
            );
            runs[server].push(run);
        }
    }
    Ok(Comparison {
        schema: "braid-bench/compare",
        schema_version: SCHEMA_VERSION,
        origin: Origin::here(),
        workload: load.workload().to_toml(),
        servers: endpoints.iter().map(|endpoint| endpoint.name.clone()).collect(),
        rounds: n_rounds,
        verified,
        measures: FIGURES.iter().filter_map(|figure| ComparedFigure::of(figure, &runs)).collect(),
        client_limited: runs.iter().flatten().any(|run| run.client_limited),
    })
}

impl ComparedFigure {
    /// Collects a figure; `None` where a server does not report it.
    fn of(figure: &RunFigure, runs: &[Vec<RunReport>]) -> Option<Self> {
        let of_server = |runs: &Vec<RunReport>| runs.iter().map(figure.of).collect::<Option<Vec<_>>>();
        let figures = runs.iter().map(of_server).collect::<Option<Vec<_>>>()?;
        Some(Self::new(figure.name, figure.higher_is_better, figures))
    }

    fn new(name: &str, higher_is_better: bool, figures: Vec<Vec<f64>>) -> Self {
        let ratio = |server: &Vec<f64>| {
            let pairs: Vec<_> = server.iter().copied().zip(figures[0].iter().copied()).collect();
            stats::ratio(&pairs).map(Ratio::from)
        };
        let ratios = figures[1..].iter().map(ratio).collect();
        Self { name: name.to_owned(), higher_is_better, ratios, figures }
    }
}

impl Baseline {
    fn read(path: &Path) -> Result<Self, BenchError> {
        let text = fs::read_to_string(path).doing(format!("read {}", path.display()))?;
        serde_json::from_str(&text)
            .map_err(|error| BenchError::Machine(format!("{} is no comparison: {error}", path.display())))
    }
}

impl Comparison {
    /// Returns the figures that are worse than before, beyond the bound and the noise.
    ///
    /// The comparison is with the reference, or with the baseline if there is one.
    fn regressions(&self, baseline: Option<&Baseline>, max_regress: f64) -> Vec<String> {
        let mut found = Vec::new();
        for measure in &self.measures {
            for (index, now) in measure.ratios.iter().enumerate() {
                let then = match baseline {
                    None => Some(Ratio { value: 1.0, low: 1.0, high: 1.0 }),
                    Some(baseline) => baseline
                        .measures
                        .iter()
                        .find(|earlier| earlier.name == measure.name)
                        .and_then(|earlier| *earlier.ratios.get(index)?),
                };
                let Some((now, then)) = now.zip(then) else { continue };
                let (worse, least) = worsening(now, then, measure.higher_is_better);
                if least > max_regress.ln_1p() {
                    let (server, name) = (&self.servers[index + 1], &measure.name);
                    found.push(format!("{name} of {server} by {:.1} %", worse.exp_m1() * 100.0));
                }
            }
        }
        found
    }
}

/// Returns how much worse `now` is than `then`, as a logarithm.
///
/// The second figure is the least such value, given the noise of both.
fn worsening(now: Ratio, then: Ratio, higher_is_better: bool) -> (f64, f64) {
    let sign = if higher_is_better { -1.0 } else { 1.0 };
    let half = |ratio: Ratio| (ratio.high / ratio.low).ln() / 2.0;
    let worse = sign * (now.value / then.value).ln();
    (worse, worse - half(now).hypot(half(then)))
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut heads = vec![String::new()];
        heads.push(self.servers[0].clone());
        for server in &self.servers[1..] {
            heads.extend([server.clone(), String::from("ratio"), String::from("interval")]);
        }
        let mut table = Table::new(heads);
        for measure in &self.measures {
            let median = |figures: &[f64]| three_digits(stats::median(figures).unwrap_or(f64::NAN));
            let mut cells = vec![measure.name.clone(), median(&measure.figures[0])];
            for (figures, ratio) in measure.figures[1..].iter().zip(&measure.ratios) {
                cells.push(median(figures));
                match ratio {
                    Some(Ratio { value, low, high }) => {
                        cells.extend([format!("{value:.3}"), format!("{low:.3}..{high:.3}")]);
                    }
                    None => cells.extend([String::from("-"), String::from("-")]),
                }
            }
            table.push(cells);
        }
        writeln!(f, "{table}")?;
        writeln!(f, "medians of {} rounds; ratios to the first server, with intervals of 95 %", self.rounds)?;
        for (verified, server) in self.verified.iter().zip(&self.servers[1..]) {
            writeln!(f, "{server}: {verified}")?;
        }
        if self.client_limited {
            writeln!(f, "CLIENT LIMITED: ratios of throughput are closer to 1 than the servers'")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn comparison(measures: Vec<ComparedFigure>) -> Comparison {
        Comparison {
            schema: "braid-bench/compare",
            schema_version: SCHEMA_VERSION,
            origin: Origin::here(),
            workload: String::new(),
            servers: vec![String::from("a"), String::from("b")],
            rounds: 4,
            verified: Vec::new(),
            measures,
            client_limited: false,
        }
    }

    fn throughput(of_b: [f64; 4]) -> ComparedFigure {
        ComparedFigure::new("throughput", true, vec![vec![100.0, 101.0, 99.0, 100.0], of_b.to_vec()])
    }

    #[test]
    fn what_is_worse_beyond_the_noise_is_a_regression() {
        let slower = comparison(vec![throughput([90.0, 91.0, 89.0, 90.0])]);
        assert_eq!(slower.regressions(None, 0.05), ["throughput of b by 11.1 %"]);
        assert!(slower.regressions(None, 0.15).is_empty());
        let noisy = comparison(vec![throughput([70.0, 115.0, 60.0, 125.0])]);
        assert!(noisy.regressions(None, 0.05).is_empty());
        let faster = comparison(vec![throughput([110.0, 111.0, 109.0, 110.0])]);
        assert!(faster.regressions(None, 0.0).is_empty());
    }

    #[test]
    fn a_baseline_is_another_reference() {
        let slower = comparison(vec![throughput([90.0, 91.0, 89.0, 90.0])]);
        let written = output::json(&slower);
        let baseline: Baseline = serde_json::from_str(&written).expect("it reads what it writes");
        assert!(slower.regressions(Some(&baseline), 0.05).is_empty());
        let slower_still = comparison(vec![throughput([80.0, 81.0, 79.0, 80.0])]);
        assert_eq!(slower_still.regressions(Some(&baseline), 0.05).len(), 1);
    }
}
