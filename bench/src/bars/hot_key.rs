//! The cost of writes by all clients to the same key.

use super::contest::{Contest, N_KEYS};
use super::cpu;
use crate::bars::measures::{Measure, Target, Unit};
use crate::error::BenchError;
use crate::spawn::Server;

/// Compares INCR of one key with INCR of a million, with and without pipelining.
pub(super) fn run(contest: &Contest, bar: &str) -> Result<Vec<Measure>, BenchError> {
    let servers = contest.start_both_loaded("1")?;
    // The keys exist before the loads, so that both loads only change values.
    let mut all = Vec::new();
    for pipeline in [1, 16] {
        let measures = contest.rounds(bar, contest.n_rounds, measures(pipeline), |side| {
            hot_and_spread(contest, side.of(&servers), pipeline)
        })?;
        all.extend(measures);
    }
    Ok(all)
}

fn measures(pipeline: u32) -> Vec<Measure> {
    let measure = |name, unit, target| Measure::new(format!("P{pipeline} {name}"), unit, target);
    vec![
        measure("CPU hot/spread", Unit::Times, Target::value(1.5)),
        measure("CPU/INCR hot", Unit::Micros, Target::NONE),
        measure("CPU/INCR spread", Unit::Micros, Target::NONE),
    ]
}

fn hot_and_spread(contest: &Contest, server: &Server, pipeline: u32) -> Result<Vec<f64>, BenchError> {
    let n_keys = N_KEYS.to_string();
    let cost = |arguments: &[&str]| {
        let n_requests = contest.n_requests(pipeline);
        cpu::per_command(&contest.redis_benchmark, server, pipeline, n_requests, arguments)
    };
    let hot = cost(&["incr", "counter"])?.micros;
    let spread = cost(&["-r", &n_keys, "incr", "key:__rand_int__"])?.micros;
    Ok(vec![hot / spread, hot, spread])
}
