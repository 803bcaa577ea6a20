//! Braid against redis-server under the same load, in turns, round by round.
//!
//! Other work on the machine then disturbs both equally. A [`Bar`] is one row of [`BARS`] and one function in
//! a module of its own. It starts the servers that it needs, and passes [`Contest::rounds`] a function that
//! measures one side once.

use std::iter;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use clap::Args;
use clap::builder::PossibleValuesParser;

use crate::error::{BenchError, Doing};
use crate::output;
use crate::process;

mod access;
mod append_only;
mod beside;
mod contest;
mod cpu;
mod cpu_types;
mod durability;
mod events;
mod expiry;
mod fan_out;
mod hit_ratio;
mod hot_key;
mod latency;
mod loaded_script;
mod long_work;
mod measures;
mod memory_limit;
mod memory_types;
mod one_client;
mod operations;
mod preload;
mod redis_benchmark_program;
mod requests;
mod resident;
mod results;
mod scrapes;
mod script_cpu;
mod script_open;
mod script_others;
mod scripts;
mod slow;
mod snapshot;
mod threads;
mod tls;
mod values;

use self::contest::{Bar, Contest, n_cores};
use self::redis_benchmark_program::RedisBenchmark;
use self::results::Report;

const BARS: &[Bar] = &[
    Bar { name: "cpu-p64", run: |contest, bar| cpu::run(contest, bar, 64, 0.21) },
    Bar { name: "cpu-p16", run: |contest, bar| cpu::run(contest, bar, 16, 0.40) },
    Bar { name: "cpu-p1", run: |contest, bar| cpu::run(contest, bar, 1, 0.90) },
    Bar { name: "threads-8", run: threads::run },
    Bar { name: "memory-fresh", run: resident::fresh },
    Bar { name: "memory-idle", run: resident::idle },
    Bar { name: "memory-key", run: |contest, bar| resident::per_key(contest, bar, &[]) },
    Bar { name: "memory-key-ttl", run: |contest, bar| resident::per_key(contest, bar, &["EX", "100000"]) },
    Bar { name: "hot-key", run: hot_key::run },
    Bar { name: "slow-keys", run: slow::keys },
    Bar { name: "slow-mget", run: slow::mget },
    Bar { name: "expiry", run: expiry::run },
    Bar { name: "fan-out", run: fan_out::run },
    Bar { name: "long-work", run: long_work::run },
    Bar { name: "one-client", run: one_client::run },
];

/// Bars that measure many commands or types alike, and can be chosen together.
struct Family {
    name: &'static str,
    bars: &'static [Bar],
}

/// The families. They come after [`BARS`].
const FAMILIES: &[Family] = &[
    Family { name: "cpu-types", bars: cpu_types::BARS },
    Family { name: "memory-types", bars: memory_types::BARS },
    Family { name: "slow-types", bars: slow::TYPES },
    Family { name: "scripts", bars: scripts::BARS },
    Family { name: "durability", bars: durability::BARS },
    Family { name: "operations", bars: operations::BARS },
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
    /// Rounds: how often each side is measured. Bars with long rounds take at most 3, with --quick 1
    /// [default: 5, quick: 2].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub rounds: Option<u64>,
    /// Requests of one redis-benchmark run; a quarter of them without pipelining [default: 1000000, quick:
    /// 300000].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1000..))]
    requests: Option<u64>,
    /// Measures only these bars, or families of bars.
    #[arg(long, value_name = "NAME,NAME", value_delimiter = ',', value_parser = PossibleValuesParser::new(names()))]
    only: Vec<String>,
    /// Writes every round's figures to a file.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Measures for a short time, which is less precise. Families of bars are left out unless --only names
    /// them.
    #[arg(long)]
    quick: bool,
}

impl Options {
    /// Returns the bars to measure, in the order of their tables.
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

    /// Returns the programs, the durations and the number of rounds.
    fn contest(&self) -> Result<Contest, BenchError> {
        let quick = self.quick;
        Ok(Contest {
            braid: find_braid(self.braid.as_deref())?,
            redis: self.redis.clone(),
            redis_benchmark: RedisBenchmark::new(&self.redis_benchmark),
            n_io_threads: self.io_threads.unwrap_or_else(n_cores),
            n_rounds: self.rounds.unwrap_or(if quick { 2 } else { 5 }),
            n_requests: self.requests.unwrap_or(if quick { 300_000 } else { 1_000_000 }),
            quick,
        })
    }
}

/// Runs the comparison and prints its table.
///
/// With `gate`, a target that is missed, or a bar that could not be measured, exits with 1.
///
/// # Errors
/// When there is no Braid to measure or the report cannot be written. A failed bar is part of the report.
pub fn run(options: &Options, gate: bool) -> Result<ExitCode, BenchError> {
    let contest = options.contest()?;
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
    output::print(&report)?;
    if let Some(path) = &options.json {
        output::write(path, output::json(&report.json()).as_bytes())?;
    }
    Ok(if gate && !report.is_met() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
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

/// Returns the first line of a program's `--version`.
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
