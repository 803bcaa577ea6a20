//! Two servers in turns: the programs, the durations and the number of rounds.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::bars::measures::Measure;
use crate::bars::preload;
use crate::bars::redis_benchmark_program::RedisBenchmark;
use crate::bars::results::BarReport;
use crate::error::BenchError;
use crate::spawn::Server;

/// The number of keys that most bars load.
pub(super) const N_KEYS: u64 = 1_000_000;
/// The value of each of these keys: 32 bytes.
pub(super) const VALUE: &str = "vvvvvvvvvvvvvvvvvvvvvvvvvvvvvvvv";
/// The number of connections of every load, here and in redis-benchmark.
pub(super) const N_CONNECTIONS: usize = 50;

/// A measurement, with the targets of its figures.
pub(super) struct Bar {
    pub(super) name: &'static str,
    pub(super) run: fn(&Contest, &str) -> Result<Vec<Measure>, BenchError>,
}

/// One of the two servers.
///
/// For bars that compare Braid with itself, it is one of the two settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    Braid,
    Redis,
}

impl Side {
    pub(super) const BOTH: [Self; 2] = [Self::Braid, Self::Redis];

    pub(super) fn of<T>(self, both: &[T; 2]) -> &T {
        &both[self as usize]
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Braid => "Braid",
            Self::Redis => "redis-server",
        }
    }
}

/// The programs, the durations and the number of rounds.
pub(super) struct Contest {
    pub(super) braid: PathBuf,
    pub(super) redis: PathBuf,
    pub(super) redis_benchmark: RedisBenchmark,
    pub(super) n_io_threads: usize,
    pub(super) n_rounds: u64,
    pub(super) n_requests: u64,
    pub(super) quick: bool,
}

impl Contest {
    pub(super) fn measure(&self, bar: &Bar) -> BarReport {
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

    /// Measures both sides in turns.
    ///
    /// `run` measures one side once and returns one figure for each of `measures`.
    pub(super) fn rounds(
        &self,
        bar: &str,
        n_rounds: u64,
        measures: Vec<Measure>,
        run: impl FnMut(Side) -> Result<Vec<f64>, BenchError>,
    ) -> Result<Vec<Measure>, BenchError> {
        self.rounds_named(Side::BOTH.map(Side::name), bar, n_rounds, measures, run)
    }

    /// Measures like [`Contest::rounds`], for sides other than Braid and redis-server.
    pub(super) fn rounds_named(
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

    /// Returns the number of rounds for a bar with long rounds whose figures repeat well.
    pub(super) fn few_rounds(&self) -> u64 {
        self.n_rounds.min(if self.quick { 1 } else { 3 })
    }

    /// Returns the requests of one redis-benchmark run at this pipelining.
    ///
    /// Without pipelining, each request costs several times more.
    pub(super) fn n_requests(&self, pipeline: u32) -> u64 {
        if pipeline == 1 { self.n_requests / 4 } else { self.n_requests }
    }

    /// Returns the duration of a load by this program.
    pub(super) fn load_time(&self) -> Duration {
        Duration::from_secs(if self.quick { 2 } else { 6 })
    }

    pub(super) fn start(&self, side: Side, arguments: &[&str]) -> Result<Server, BenchError> {
        match side {
            Side::Braid => self.start_braid(self.n_io_threads, arguments),
            Side::Redis => Server::start(&self.redis, &owned(arguments)),
        }
    }

    pub(super) fn start_braid(&self, n_io_threads: usize, arguments: &[&str]) -> Result<Server, BenchError> {
        let mut all = vec!["--io-threads".to_owned(), n_io_threads.to_string()];
        all.extend(owned(arguments));
        Server::start(&self.braid, &all)
    }

    pub(super) fn start_both(&self, arguments: &[&str]) -> Result<[Server; 2], BenchError> {
        let start = |side: Side| self.start(side, arguments).map_err(|error| error.on_side(side.name()));
        Ok([start(Side::Braid)?, start(Side::Redis)?])
    }

    /// Starts both servers and loads each with the keys.
    pub(super) fn start_both_loaded(&self, value: &str) -> Result<[Server; 2], BenchError> {
        let servers = self.start_both(&[])?;
        on_both(&servers, |server| load_keys(server, value))?;
        Ok(servers)
    }
}

/// Runs a task on each server in turn.
pub(super) fn on_both(
    servers: &[Server; 2],
    mut what: impl FnMut(&Server) -> Result<(), BenchError>,
) -> Result<(), BenchError> {
    Side::BOTH
        .into_iter()
        .try_for_each(|side| what(side.of(servers)).map_err(|error| error.on_side(side.name())))
}

pub(super) fn load_keys(server: &Server, value: &str) -> Result<(), BenchError> {
    preload::load(server.address(), N_KEYS, value, &[])
}

fn owned(arguments: &[&str]) -> Vec<String> {
    arguments.iter().map(|&argument| argument.to_owned()).collect()
}

fn progress(measures: &[Measure], figures: &[f64]) -> String {
    let told: Vec<_> = measures
        .iter()
        .zip(figures)
        .map(|(measure, &figure)| format!("{} {}", measure.name, measure.unit.shown(figure)))
        .collect();
    told.join(", ")
}

pub(super) fn n_cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}
