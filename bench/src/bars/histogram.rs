//! Latencies, kept to three significant digits.

use std::time::Duration;

use hdrhistogram::Histogram;

/// Longer than any reply is waited for.
const LONGEST: Duration = Duration::from_secs(600);

/// How often, on each connection, an independent client would ask: see [`Latencies::percentile_millis_any_moment`].
const ARRIVAL_INTERVAL: Duration = Duration::from_millis(1);

/// The latencies of one load.
#[derive(Debug)]
pub struct Latencies {
    /// One a request.
    nanos: Histogram<u64>,
    /// One a request, and one a millisecond for those that would have been sent while it waited.
    nanos_any_moment: Histogram<u64>,
}

impl Default for Latencies {
    fn default() -> Self {
        let nanos = Histogram::new_with_bounds(1_000, LONGEST.as_nanos() as u64, 3)
            .expect("the bounds are in order and three digits are allowed");
        Self { nanos_any_moment: nanos.clone(), nanos }
    }
}

impl Latencies {
    /// Adds one latency; what is longer than ten minutes counts as ten minutes.
    pub fn record(&mut self, latency: Duration) {
        let nanos = latency.min(LONGEST).as_nanos() as u64;
        self.nanos.record(nanos).expect("it is no longer than the longest");
        self.nanos_any_moment
            .record_correct(nanos, ARRIVAL_INTERVAL.as_nanos() as u64)
            .expect("it is no longer than the longest");
    }

    /// The latency that `percent` of all do not exceed, in milliseconds.
    pub fn percentile_millis(&self, percent: f64) -> f64 {
        self.nanos.value_at_percentile(percent) as f64 / 1e6
    }

    /// The same for requests that arrive every millisecond, whether or not the one before is answered.
    ///
    /// A connection that waits for its reply asks nothing meanwhile, so a stall of half a second, in which each
    /// connection would have asked hundreds of times, counts once; a server that stalls most of the time still has a
    /// small share of slow requests, and whether that is above or below one in a hundred is chance. Filling in the
    /// requests that were not sent makes the percentile one of time (Tene, "How NOT to Measure Latency").
    pub fn percentile_millis_any_moment(&self, percent: f64) -> f64 {
        self.nanos_any_moment.value_at_percentile(percent) as f64 / 1e6
    }

    /// The longest latency, in milliseconds.
    pub fn max_millis(&self) -> f64 {
        self.nanos.max() as f64 / 1e6
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_within_a_thousandth_and_a_rank() {
        let mut latencies = Latencies::default();
        (1..=1000).for_each(|millis| latencies.record(Duration::from_millis(millis)));
        for (percent, millis) in [(50.0, 500.0), (99.0, 990.0), (99.9, 999.0)] {
            let found = latencies.percentile_millis(percent);
            assert!((found / millis - 1.0).abs() < 0.002, "p{percent} is {found}");
        }
        assert!((latencies.max_millis() / 1000.0 - 1.0).abs() < 0.001);
    }

    #[test]
    fn a_stall_weighs_as_long_as_it_lasts() {
        let mut latencies = Latencies::default();
        (0..1000).for_each(|_| latencies.record(Duration::from_micros(100)));
        latencies.record(Duration::from_secs(1));
        assert!(latencies.percentile_millis(99.0) < 0.11);
        assert!(latencies.percentile_millis_any_moment(99.0) > 900.0);
    }
}
