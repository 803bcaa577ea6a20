//! Braid against redis-server: the same load on both in turns, round by round, so that whatever else the machine does
//! falls on both alike.
//!
//! A [`Bar`] is one row of [`BARS`] and one function in a module of its own. It starts the servers it needs, and gives
//! [`Contest::rounds`] a function that measures one side once.

use std::fs;
use std::iter;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use clap::Args;
use clap::builder::PossibleValuesParser;

use crate::error::{BenchError, Doing};
use crate::process;
use crate::spawn::Server;

mod client;
mod cpu;
mod cpu_types;
mod expiry;
mod fan_out;
mod hot_key;
mod keys;
mod latency;
mod load;
mod long_work;
mod memory;
mod memory_types;
mod redis_benchmark;
mod report;
mod resp;
mod slow;
mod threads;
mod values;

use self::redis_benchmark::RedisBenchmark;
pub use self::report::figure;
use self::report::{BarReport, Measure, Report};

/// Keys that most bars load.
const N_KEYS: u64 = 1_000_000;
/// The value of each of them: 32 bytes.
const VALUE: &[u8] = b"vvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvv";
/// Connections of every load, here and in redis-benchmark.
const N_CONNECTIONS: usize = 50;

/// Something that is measured, with the figures it is to reach.
struct Bar {
    name: &'static str,
    run: fn(&Contest, &str) -> Result<Vec<Measure>, BenchError>,
}

const BARS: &[Bar] = &[
    Bar { name: "cpu-p64", run: |contest, bar| cpu::run(contest, bar, 64, 0.22) },
    Bar { name: "cpu-p16", run: |contest, bar| cpu::run(contest, bar, 16, 0.46) },
    Bar { name: "cpu-p1", run: |contest, bar| cpu::run(contest, bar, 1, 0.92) },
    Bar { name: "threads-8", run: threads::run },
    Bar { name: "memory-fresh", run: memory::fresh },
    Bar { name: "memory-idle", run: memory::idle },
    Bar { name: "memory-key", run: |contest, bar| memory::per_key(contest, bar, &[]) },
    Bar { name: "memory-key-ttl", run: |contest, bar| memory::per_key(contest, bar, &[b"EX", b"100000"]) },
    Bar { name: "hot-key", run: hot_key::run },
    Bar { name: "slow-keys", run: slow::keys },
    Bar { name: "slow-mget", run: slow::mget },
    Bar { name: "expiry", run: expiry::run },
    Bar { name: "fan-out", run: fan_out::run },
    Bar { name: "long-work", run: long_work::run },
];

/// Bars that measure the same of many commands or types, and can be chosen together.
struct Family {
    name: &'static str,
    bars: &'static [Bar],
}

/// They follow [`BARS`].
const FAMILIES: &[Family] = &[
    Family { name: "cpu-types", bars: cpu_types::BARS },
    Family { name: "memory-types", bars: memory_types::BARS },
    Family { name: "slow-types", bars: slow::TYPES },
];

/// All names that `--only` takes.
fn names() -> impl Iterator<Item = &'static str> {
    let of_family = |family: &'static Family| iter::once(family.name).chain(names_of(family.bars));
    names_of(BARS).chain(FAMILIES.iter().flat_map(of_family))
}

fn names_of(bars: &'static [Bar]) -> impl Iterator<Item = &'static str> {
    bars.iter().map(|bar| bar.name)
}

/// Options of `braid-bench compare` when no server is named.
#[derive(Debug, Args)]
#[group(id = "bars")]
pub struct Options {
    /// Braid's server; by default the braid-server beside this program.
    #[arg(long, value_name = "PATH")]
    braid: Option<PathBuf>,
    /// The server to compare with.
    #[arg(long, value_name = "PATH", default_value = "redis-server")]
    redis: PathBuf,
    /// The redis-benchmark to load with.
    #[arg(long, value_name = "PATH", default_value = "redis-benchmark")]
    redis_benchmark: PathBuf,
    /// Braid's --io-threads; by default the machine's cores.
    #[arg(long, value_name = "N")]
    io_threads: Option<usize>,
    /// How often each side is measured; bars over memory, slow commands and expiry take at most 3 [default: 5, quick: 2].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub rounds: Option<u64>,
    /// Requests of one redis-benchmark run; without pipelining a quarter of it [default: 1000000, quick: 300000].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1000..))]
    requests: Option<u64>,
    /// Measures only these bars, or families of bars.
    #[arg(long, value_name = "NAME,NAME", value_delimiter = ',', value_parser = PossibleValuesParser::new(names()))]
    only: Vec<String>,
    /// Writes every round's figures to a file.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Measures shortly: less than three minutes, and less surely. Families of bars are left out unless they are asked for.
    #[arg(long)]
    quick: bool,
}

impl Options {
    /// The bars to measure, in the order of their tables.
    fn bars(&self) -> impl Iterator<Item = &'static Bar> {
        let is_named = |name: &str| self.only.iter().any(|only| only == name);
        let all = self.only.is_empty();
        let alone = BARS.iter().filter(move |bar| all || is_named(bar.name));
        let of_family = move |family: &'static Family| {
            let whole = is_named(family.name) || (all && !self.quick);
            family.bars.iter().filter(move |bar| whole || is_named(bar.name))
        };
        alone.chain(FAMILIES.iter().flat_map(of_family))
    }
}

/// Runs the comparison and prints its table. With `gate`, a target that is missed, or a bar that could not be measured, exits
/// with 1.
///
/// # Errors
/// When there is no Braid to measure or the report cannot be written. A bar that fails is part of the report.
pub fn run(options: &Options, gate: bool) -> Result<ExitCode, BenchError> {
    let contest = Contest::new(options)?;
    let mut report = Report {
        programs: [&contest.braid, &contest.redis].map(|binary| version(binary)).into(),
        n_cores: n_cores(),
        load_average: process::load_average()?,
        n_io_threads: contest.n_io_threads,
        bars: Vec::new(),
    };
    for bar in options.bars() {
        report.bars.push(contest.measure(bar));
    }
    print!("{report}");
    if let Some(path) = &options.json {
        fs::write(path, format!("{:#}\n", report.json())).doing(format!("write {}", path.display()))?;
    }
    Ok(if gate && !report.is_met() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Which of the two servers; for bars that hold Braid against itself, which of the two settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Side {
    Braid,
    Redis,
}

impl Side {
    const BOTH: [Self; 2] = [Self::Braid, Self::Redis];

    fn of<T>(self, both: &[T; 2]) -> &T {
        &both[self as usize]
    }

    fn name(self) -> &'static str {
        match self {
            Self::Braid => "Braid",
            Self::Redis => "redis-server",
        }
    }
}

/// Who is measured, and how long.
struct Contest {
    braid: PathBuf,
    redis: PathBuf,
    redis_benchmark: RedisBenchmark,
    n_io_threads: usize,
    n_rounds: u64,
    n_requests: u64,
    quick: bool,
}

impl Contest {
    fn new(options: &Options) -> Result<Self, BenchError> {
        let quick = options.quick;
        Ok(Self {
            braid: find_braid(options.braid.as_deref())?,
            redis: options.redis.clone(),
            redis_benchmark: RedisBenchmark::new(&options.redis_benchmark),
            n_io_threads: options.io_threads.unwrap_or_else(n_cores),
            n_rounds: options.rounds.unwrap_or(if quick { 2 } else { 5 }),
            n_requests: options.requests.unwrap_or(if quick { 300_000 } else { 1_000_000 }),
            quick,
        })
    }

    fn measure(&self, bar: &Bar) -> BarReport {
        let began = Instant::now();
        let (measures, failed) = match (bar.run)(self, bar.name) {
            Ok(measures) => (measures, None),
            Err(error) => (Vec::new(), Some(error.to_string())),
        };
        let seconds = began.elapsed().as_secs_f64();
        let outcome = failed.as_deref().map_or(String::from("done"), |why| format!("not measured: {why}"));
        eprintln!("{} {outcome} ({seconds:.0} s)", bar.name);
        BarReport { bar: bar.name.to_owned(), seconds, measures, failed }
    }

    /// Measures both sides in turns. `run` measures one side once and returns one figure for each of `measures`.
    fn rounds(
        &self,
        bar: &str,
        n_rounds: u64,
        measures: Vec<Measure>,
        run: impl FnMut(Side) -> Result<Vec<f64>, BenchError>,
    ) -> Result<Vec<Measure>, BenchError> {
        self.rounds_named(Side::BOTH.map(Side::name), bar, n_rounds, measures, run)
    }

    /// As [`Contest::rounds`], for sides that are not Braid and redis-server.
    fn rounds_named(
        &self,
        names: [&'static str; 2],
        bar: &str,
        n_rounds: u64,
        mut measures: Vec<Measure>,
        mut run: impl FnMut(Side) -> Result<Vec<f64>, BenchError>,
    ) -> Result<Vec<Measure>, BenchError> {
        for round in 1..=n_rounds {
            let mut figures = [Vec::new(), Vec::new()];
            for side in Side::BOTH {
                let name = side.of(&names);
                let side_figures = run(side).map_err(|error| error.on_side(name))?;
                eprintln!("{bar} {round}/{n_rounds} {name}: {}", progress(&measures, &side_figures));
                figures[side as usize] = side_figures;
            }
            let [braid, redis] = figures;
            for (measure, round) in measures.iter_mut().zip(braid.into_iter().zip(redis)) {
                measure.push(round.into());
            }
        }
        Ok(measures)
    }

    /// Rounds for a bar whose rounds are long and whose figures repeat well.
    fn few_rounds(&self) -> u64 {
        self.n_rounds.min(if self.quick { 1 } else { 3 })
    }

    /// Requests of one redis-benchmark run at this pipelining: without any, each request costs several times as much.
    fn n_requests(&self, pipeline: u32) -> u64 {
        if pipeline == 1 { self.n_requests / 4 } else { self.n_requests }
    }

    /// How long a load of our own runs.
    fn load_time(&self) -> Duration {
        Duration::from_secs(if self.quick { 2 } else { 6 })
    }

    fn start(&self, side: Side, arguments: &[&str]) -> Result<Server, BenchError> {
        match side {
            Side::Braid => self.start_braid(self.n_io_threads, arguments),
            Side::Redis => Server::start(&self.redis, &owned(arguments)),
        }
    }

    fn start_braid(&self, n_io_threads: usize, arguments: &[&str]) -> Result<Server, BenchError> {
        let mut all = vec!["--io-threads".to_owned(), n_io_threads.to_string()];
        all.extend(owned(arguments));
        Server::start(&self.braid, &all)
    }

    fn start_both(&self, arguments: &[&str]) -> Result<[Server; 2], BenchError> {
        let start = |side: Side| self.start(side, arguments).map_err(|error| error.on_side(side.name()));
        Ok([start(Side::Braid)?, start(Side::Redis)?])
    }

    /// Starts both servers and loads each with the keys.
    fn start_both_loaded(&self, value: &[u8]) -> Result<[Server; 2], BenchError> {
        let servers = self.start_both(&[])?;
        on_both(&servers, |server| load(server, value))?;
        Ok(servers)
    }
}

/// Does something with each server in turn.
fn on_both(
    servers: &[Server; 2],
    mut what: impl FnMut(&Server) -> Result<(), BenchError>,
) -> Result<(), BenchError> {
    Side::BOTH
        .into_iter()
        .try_for_each(|side| what(side.of(servers)).map_err(|error| error.on_side(side.name())))
}

fn load(server: &Server, value: &[u8]) -> Result<(), BenchError> {
    keys::load(server.address(), N_KEYS, value, &[])
}

fn owned(arguments: &[&str]) -> Vec<String> {
    arguments.iter().map(|&argument| argument.to_owned()).collect()
}

fn progress(measures: &[Measure], figures: &[f64]) -> String {
    let told: Vec<_> = measures
        .iter()
        .zip(figures)
        .map(|(measure, &figure)| format!("{} {} {}", measure.name, report::figure(figure), measure.unit))
        .collect();
    told.join(", ")
}

fn n_cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

fn find_braid(given: Option<&Path>) -> Result<PathBuf, BenchError> {
    if let Some(path) = given {
        return Ok(path.to_owned());
    }
    let beside = std::env::current_exe().doing("find this program")?.with_file_name("braid-server");
    if beside.exists() {
        return Ok(beside);
    }
    Err(BenchError::Machine(format!("there is no {}; name one with --braid", beside.display())))
}

/// The first line that a program prints about itself.
fn version(binary: &Path) -> String {
    let printed = Command::new(binary).arg("--version").output();
    let first_line = printed
        .ok()
        .and_then(|output| String::from_utf8_lossy(&output.stdout).lines().next().map(str::to_owned));
    format!("{}: {}", binary.display(), first_line.unwrap_or_else(|| "unknown version".to_owned()))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use clap::{Args as _, Command, FromArgMatches as _};

    use super::*;

    fn chosen(arguments: &[&str]) -> Vec<&'static str> {
        let matches = Options::augment_args(Command::new("compare"))
            .try_get_matches_from(["compare"].iter().chain(arguments))
            .expect("the arguments are right");
        let options = Options::from_arg_matches(&matches).expect("the arguments are right");
        options.bars().map(|bar| bar.name).collect()
    }

    #[test]
    fn no_two_bars_or_families_share_a_name() {
        let mut seen = HashSet::new();
        assert!(names().all(|name| seen.insert(name)));
    }

    #[test]
    fn families_are_chosen_whole_and_by_bar() {
        assert_eq!(chosen(&["--only", "slow-types"]), names_of(slow::TYPES).collect::<Vec<_>>());
        assert_eq!(chosen(&["--quick", "--only", "cpu-mset,expiry"]), ["expiry", "cpu-mset"]);
        assert_eq!(chosen(&["--quick"]), names_of(BARS).collect::<Vec<_>>());
        assert_eq!(chosen(&[]).len() + FAMILIES.len(), names().count());
    }
}
