//! How long the requests of a closed loop wait.

use std::time::Duration;

use super::contest::{Contest, N_CONNECTIONS, N_KEYS, VALUE};
use crate::bars::measures::{Measure, Target, Unit};
use crate::bars::requests::{ClosedLoop, Misses, Request};
use crate::engine::Limit;
use crate::error::BenchError;
use crate::spawn::Server;

/// What [`percentiles`] returns. The targets are on the 99th percentiles of each request: `p99` on that of all requests sent,
/// `p99_any_moment` on that of requests at any moment.
pub(super) fn measures(requests: &[Request], p99: Target, p99_any_moment: Target) -> Vec<Measure> {
    let of_request = |request: &Request| {
        let measure = |percentile, target| {
            Measure::new(format!("{} {percentile}", request.name()), Unit::Millis, target)
        };
        [
            measure("p50", Target::NONE),
            measure("p99", p99),
            measure("p99.9", Target::NONE),
            measure("p99 any moment", p99_any_moment),
        ]
    };
    requests.iter().flat_map(of_request).collect()
}

/// Runs a load of each of `requests` in turn over the loaded keys.
pub(super) fn percentiles(
    contest: &Contest,
    server: &Server,
    requests: &[Request],
) -> Result<Vec<f64>, BenchError> {
    let limit = Limit::Time { warmup: Duration::ZERO, measured: contest.load_time() };
    let mut figures = Vec::new();
    for &request in requests {
        let load = ClosedLoop {
            request,
            n_connections: N_CONNECTIONS,
            n_keys: N_KEYS,
            value_bytes: VALUE.len(),
            misses: Misses::Wrong,
        };
        let latencies = load.run(server.address(), limit.clone())?;
        figures.extend([50.0, 99.0, 99.9].map(|percent| latencies.percentile_millis(percent)));
        figures.push(latencies.percentile_millis_any_moment(99.0));
    }
    Ok(figures)
}
