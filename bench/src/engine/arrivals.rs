//! The times at which requests are due.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use rand::SeedableRng;
use rand::rngs::SmallRng;
use rand_distr::{Distribution, Exp1};

use crate::error::BenchError;

/// The rule that says when requests are sent.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Arrivals {
    /// A request is sent when the one before has been answered.
    Closed,
    /// Requests are sent by a schedule, whatever the server does.
    Open {
        /// Requests a second over all connections, on average.
        rate: f64,
        /// The spread of the requests over time.
        shape: Shape,
    },
}

impl Arrivals {
    /// Requests a second on schedule; `None` in a closed loop.
    pub fn rate(self) -> Option<f64> {
        match self {
            Self::Closed => None,
            Self::Open { rate, .. } => Some(rate),
        }
    }
}

/// The spread of an open loop's arrivals over time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Shape {
    /// Arrivals at even distances; connections take turns.
    #[default]
    Constant,
    /// Arrivals independent of each other, as those of many separate users. Distances are exponential.
    Poisson,
    /// Arrivals as in `Poisson`, all in the first part of each period.
    Bursty {
        /// The part of a period with arrivals.
        on: Duration,
        /// The part of a period without arrivals.
        off: Duration,
    },
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Constant => f.write_str("constant"),
            Self::Poisson => f.write_str("poisson"),
            Self::Bursty { on, off } => {
                write!(f, "bursty:{}/{}", humantime::format_duration(*on), humantime::format_duration(*off))
            }
        }
    }
}

impl FromStr for Shape {
    type Err = BenchError;

    fn from_str(text: &str) -> Result<Self, BenchError> {
        let wrong = || BenchError::Workload {
            place: format!("arrivals = {text:?}"),
            why: String::from("it is constant, poisson, or bursty:ON/OFF as in bursty:100ms/900ms"),
        };
        match text {
            "constant" => Ok(Self::Constant),
            "poisson" => Ok(Self::Poisson),
            _ => {
                let (on, off) =
                    text.strip_prefix("bursty:").and_then(|times| times.split_once('/')).ok_or_else(wrong)?;
                let parse = |time| humantime::parse_duration(time).map_err(|_| wrong());
                let (on, off) = (parse(on)?, parse(off)?);
                if on.is_zero() { Err(wrong()) } else { Ok(Self::Bursty { on, off }) }
            }
        }
    }
}

/// One connection's schedule.
#[derive(Debug, Clone)]
pub(super) struct Schedule {
    shape: Shape,
    random: SmallRng,
    /// Mean distance of two batches, in nanoseconds of the time in which requests arrive.
    distance: f64,
    /// The time of the next batch, on the same scale.
    at: f64,
}

impl Schedule {
    /// Makes the schedule of connection `index` of `n_connections`.
    ///
    /// The connections share `rate` requests a second, in batches of `batch`.
    pub(super) fn new(
        shape: Shape,
        rate: f64,
        batch: usize,
        index: usize,
        n_connections: usize,
        seed: u64,
    ) -> Self {
        let share_on = match shape {
            Shape::Bursty { on, off } => on.as_secs_f64() / (on + off).as_secs_f64(),
            Shape::Constant | Shape::Poisson => 1.0,
        };
        let distance = 1e9 * batch as f64 * n_connections as f64 * share_on / rate;
        let seed = seed ^ (index as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let mut schedule = Self { shape, random: SmallRng::seed_from_u64(seed), distance, at: 0.0 };
        schedule.at = match shape {
            Shape::Constant => distance * index as f64 / n_connections as f64,
            Shape::Poisson | Shape::Bursty { .. } => schedule.gap(),
        };
        schedule
    }

    /// Returns when the next batch is due, in nanoseconds since the run began.
    pub(super) fn due(&self) -> u64 {
        match self.shape {
            Shape::Constant | Shape::Poisson => self.at as u64,
            Shape::Bursty { on, off } => {
                let on_nanos = on.as_nanos() as f64;
                let n_periods = (self.at / on_nanos).floor();
                (self.at + n_periods * off.as_nanos() as f64) as u64
            }
        }
    }

    /// Advances to the batch after it.
    pub(super) fn advance(&mut self) {
        self.at += self.gap();
    }

    fn gap(&mut self) -> f64 {
        match self.shape {
            Shape::Constant => self.distance,
            Shape::Poisson | Shape::Bursty { .. } => {
                let gap: f64 = Exp1.sample(&mut self.random);
                self.distance * gap
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns when requests of all connections are due in the first `seconds`.
    fn due(shape: Shape, rate: f64, n_connections: usize, seconds: u64) -> Vec<u64> {
        let mut all: Vec<_> = (0..n_connections)
            .flat_map(|index| {
                let mut schedule = Schedule::new(shape, rate, 1, index, n_connections, 7);
                std::iter::from_fn(move || {
                    let due = schedule.due();
                    schedule.advance();
                    (due < seconds * 1_000_000_000).then_some(due)
                })
            })
            .collect();
        all.sort_unstable();
        all
    }

    #[test]
    fn a_constant_rate_is_even_over_all_connections() {
        let due = due(Shape::Constant, 1000.0, 8, 2);
        assert_eq!(due.len(), 2000);
        assert!(due.windows(2).all(|pair| (999_000..=1_001_000).contains(&(pair[1] - pair[0]))));
    }

    #[test]
    fn poisson_gaps_vary_as_much_as_they_last() {
        let due = due(Shape::Poisson, 1000.0, 8, 20);
        assert!((due.len() as f64 / 20_000.0 - 1.0).abs() < 0.05, "{}", due.len());
        let gaps: Vec<_> = due.windows(2).map(|pair| (pair[1] - pair[0]) as f64).collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let deviation = (gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64).sqrt();
        assert!((deviation / mean - 1.0).abs() < 0.05, "{deviation} of {mean}");
    }

    #[test]
    fn bursts_keep_the_rate_and_their_pauses() {
        let shape = "bursty:100ms/400ms".parse().expect("it is a shape");
        let due = due(shape, 1000.0, 4, 20);
        assert!((due.len() as f64 / 20_000.0 - 1.0).abs() < 0.05, "{}", due.len());
        assert!(due.iter().all(|due| due % 500_000_000 <= 100_000_000));
    }

    #[test]
    fn batches_are_as_many_times_rarer() {
        let schedule = |batch| Schedule::new(Shape::Constant, 1000.0, batch, 0, 1, 0).distance;
        assert_eq!(schedule(16), 16.0 * schedule(1));
    }

    #[test]
    fn shapes_that_make_no_sense_are_refused() {
        for text in ["even", "bursty", "bursty:1s", "bursty:0s/1s", "bursty:1/2"] {
            assert!(text.parse::<Shape>().is_err(), "{text}");
        }
    }
}
