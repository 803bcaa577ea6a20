//! The waits of requests, in a closed loop and by a schedule.

use std::time::Duration;

use super::contest::{Contest, N_CONNECTIONS, N_KEYS, VALUE};
use crate::bars::measures::{Measure, Target, Unit};
use crate::bars::requests::{Latencies, Misses, Request, RequestLoad};
use crate::engine::Limit;
use crate::error::BenchError;
use crate::spawn::Server;

/// Requests a second by a schedule.
///
/// A server that stalls for half of the time can still answer them all in the other half.
const RATE: f64 = 5000.0;

fn measure(request: Request, percentile: &str, target: Target) -> Measure {
    Measure::new(format!("{} {percentile}", request.name()), Unit::Millis, target)
}

/// Returns the measures of [`percentiles`].
///
/// The target is on the 99th percentile of requests at any moment.
pub(super) fn measures(requests: &[Request], p99_any_moment: Target) -> Vec<Measure> {
    let of_request = |&request: &Request| {
        [
            measure(request, "p50", Target::NONE),
            measure(request, "p99", Target::NONE),
            measure(request, "p99.9", Target::NONE),
            measure(request, "p99 any moment", p99_any_moment),
        ]
    };
    requests.iter().flat_map(of_request).collect()
}

/// Returns the measures of [`percentiles_on_schedule`].
pub(super) fn measures_on_schedule(requests: &[Request], p99: Target) -> Vec<Measure> {
    let of_request = |&request: &Request| {
        [measure(request, "on schedule p50", Target::NONE), measure(request, "on schedule p99", p99)]
    };
    requests.iter().flat_map(of_request).collect()
}

/// Runs a load of each of `requests` in turn, [`RATE`] a second, over the loaded keys.
///
/// A request's wait begins when it is due.
pub(super) fn percentiles_on_schedule(
    contest: &Contest,
    server: &Server,
    requests: &[Request],
) -> Result<Vec<f64>, BenchError> {
    figures(contest, server, requests, Some(RATE), |latencies| {
        [50.0, 99.0].map(|percent| latencies.percentile_millis(percent)).to_vec()
    })
}

/// Runs a closed loop of each of `requests` in turn over the loaded keys.
pub(super) fn percentiles(
    contest: &Contest,
    server: &Server,
    requests: &[Request],
) -> Result<Vec<f64>, BenchError> {
    figures(contest, server, requests, None, |latencies| {
        let percentiles = [50.0, 99.0, 99.9].map(|percent| latencies.percentile_millis(percent));
        [&percentiles[..], &[latencies.percentile_millis_any_moment(99.0)]].concat()
    })
}

/// Runs a load of each of `requests` in turn, and computes figures of each.
///
/// The requests are about the loaded keys.
fn figures(
    contest: &Contest,
    server: &Server,
    requests: &[Request],
    rate: Option<f64>,
    of: impl Fn(&Latencies) -> Vec<f64>,
) -> Result<Vec<f64>, BenchError> {
    let limit = Limit::Time { warmup: Duration::ZERO, measured: contest.load_time() };
    let mut figures = Vec::new();
    for &request in requests {
        let load = RequestLoad {
            request,
            rate,
            n_connections: N_CONNECTIONS,
            n_keys: N_KEYS,
            value_bytes: VALUE.len(),
            misses: Misses::Wrong,
        };
        figures.extend(of(&load.run(server.address(), limit.clone())?));
    }
    Ok(figures)
}
