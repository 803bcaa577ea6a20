//! The cost of more threads than cores: Braid with eight threads against Braid with two.

use super::contest::{Contest, VALUE, load_keys};
use super::{cpu, latency};
use crate::bars::measures::{Measure, Target};
use crate::bars::requests::Request;
use crate::error::BenchError;

const REQUESTS: [Request; 2] = [Request::Get, Request::Mget(10)];

const NAMES: [&str; 2] = ["8 threads", "2 threads"];

/// Measures both settings. Both columns are Braid: eight threads in the first, two in the second.
pub(super) fn run(contest: &Contest, bar: &str) -> Result<Vec<Measure>, BenchError> {
    let servers = [contest.start_braid(8, &[])?, contest.start_braid(2, &[])?];
    servers.iter().try_for_each(|server| load_keys(server, VALUE))?;
    let processor =
        contest.rounds_named(NAMES, bar, contest.n_rounds, cpu::measures(Target::ratio(1.4)), |side| {
            cpu::set_and_get(contest, side.of(&servers), 16)
        })?;
    let waits = contest.rounds_named(
        NAMES,
        bar,
        contest.few_rounds(),
        latency::measures(&REQUESTS, Target::NONE),
        |side| latency::percentiles(contest, side.of(&servers), &REQUESTS),
    )?;
    let named = |measure: Measure| Measure { name: format!("{} (8 over 2)", measure.name), ..measure };
    Ok(processor.into_iter().chain(waits).map(named).collect())
}
