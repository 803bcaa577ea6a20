//! The server's processor time for a command of redis-benchmark.

use std::thread;
use std::time::Duration;

use super::contest::{Contest, N_CONNECTIONS, N_KEYS, VALUE};
use crate::bars::measures::{Measure, Target, Unit};
use crate::bars::redis_benchmark_program::RedisBenchmark;
use crate::error::BenchError;
use crate::process::CpuSample;
use crate::spawn::Server;

/// Measures SET and GET of a million keys at one pipelining.
pub(super) fn run(
    contest: &Contest,
    bar: &str,
    pipeline: u32,
    target: f64,
) -> Result<Vec<Measure>, BenchError> {
    let servers = contest.start_both_loaded(VALUE)?;
    contest.rounds(bar, contest.n_rounds, measures(Target::ratio(target)), |side| {
        set_and_get(contest, side.of(&servers), pipeline)
    })
}

/// Returns the measures of [`set_and_get`]. The target is on both commands together.
pub(super) fn measures(target: Target) -> Vec<Measure> {
    vec![
        Measure::new("CPU/command", Unit::Micros, target),
        Measure::new("CPU/SET", Unit::Micros, Target::NONE),
        Measure::new("CPU/GET", Unit::Micros, Target::NONE),
        Measure::new("SET", Unit::PerSecond, Target::NONE),
        Measure::new("GET", Unit::PerSecond, Target::NONE),
    ]
}

/// Runs redis-benchmark's SET and GET tests, one after the other, over the loaded keys.
pub(super) fn set_and_get(contest: &Contest, server: &Server, pipeline: u32) -> Result<Vec<f64>, BenchError> {
    let n_keys = N_KEYS.to_string();
    let test = |name| {
        let arguments = ["-r", &n_keys, "-d", "32", "-t", name];
        per_command(&contest.redis_benchmark, server, pipeline, contest.n_requests(pipeline), &arguments)
    };
    let (set, get) = (test("set")?, test("get")?);
    Ok(vec![f64::midpoint(set.micros, get.micros), set.micros, get.micros, set.per_second, get.per_second])
}

/// The cost and the rate of one run of redis-benchmark.
#[derive(Debug, Clone, Copy)]
pub(super) struct PerCommand {
    /// The server's processor time for one command, in microseconds.
    pub(super) micros: f64,
    /// Commands a second.
    pub(super) per_second: f64,
}

/// Runs redis-benchmark with `arguments` and divides the server's processor time by the requests.
pub(super) fn per_command(
    redis_benchmark: &RedisBenchmark,
    server: &Server,
    pipeline: u32,
    n_requests: u64,
    arguments: &[&str],
) -> Result<PerCommand, BenchError> {
    let (pipeline, requests) = (pipeline.to_string(), n_requests.to_string());
    let connections = N_CONNECTIONS.to_string();
    let mut all = vec!["-c", &connections, "-P", &pipeline, "-n", &requests];
    all.extend(arguments);
    let before = CpuSample::of(server.pid())?;
    let throughput = redis_benchmark.run(server.address(), &all)?;
    // The scheduler accounts a thread's time when it leaves the processor, so the server must come to rest.
    thread::sleep(Duration::from_millis(20));
    let used = CpuSample::of(server.pid())?.since(before);
    Ok(PerCommand { micros: used.as_secs_f64() * 1e6 / n_requests as f64, per_second: throughput.per_second })
}
