//! The outcome of a load, and whether the client was its limit.

use std::time::Duration;

use hdrhistogram::Histogram;

use super::recorder::Record;

/// One second of a load.
#[derive(Debug, Clone)]
pub struct Slice {
    /// The number of the second since the run began, from 0.
    pub second: u64,
    /// Requests answered in it.
    pub n_done: u64,
    /// Replies in it that were errors.
    pub n_errors: u64,
    /// Response times of the requests answered in it, in nanoseconds.
    pub response: Histogram<u64>,
    /// The workers' processor time in it.
    pub cpu: Duration,
}

/// The outcome of one load.
#[derive(Debug)]
pub struct Outcome {
    /// Requests a second on schedule; `None` in a closed loop.
    pub offered: Option<f64>,
    /// The time during which requests counted.
    pub measured: Duration,
    /// All counts and histograms.
    pub record: Record,
    /// Time from due to arrival at a consumer, in nanoseconds; empty without consumers.
    pub delivery: Histogram<u64>,
    /// Messages that consumers counted by their bytes.
    pub n_delivered: u64,
    /// Messages that those consumers should have received and did not.
    pub n_lost: u64,
    /// The whole seconds of the time that counted.
    pub slices: Vec<Slice>,
    /// The use of the machine by each worker while requests counted.
    pub workers: Vec<WorkerUse>,
}

/// A worker thread's use of the machine.
#[derive(Debug, Clone, Copy)]
pub struct WorkerUse {
    /// Its processor time.
    pub cpu: Duration,
    /// The time for which it wanted a core and had none.
    pub starved: Duration,
    /// The time for which it counted.
    pub wall: Duration,
}

/// The share of a core at which a worker has nothing in reserve.
const BUSY_SHARE: f64 = 0.9;
/// The share of time without a core that spoils figures.
const STARVED_SHARE: f64 = 0.2;
/// The limit in nanoseconds below which a slip is only the precision of timers.
const SLIP_NANOS: u64 = 500_000;

impl Outcome {
    /// Requests answered a second.
    pub fn achieved_rate(&self) -> f64 {
        self.record.n_done_in_time() as f64 / self.measured.as_secs_f64()
    }

    /// Returns why the figures are a lower bound, if the client was the limit.
    pub fn client_limit(&self) -> Option<String> {
        let share = |time: Duration, of: &WorkerUse| time.as_secs_f64() / of.wall.as_secs_f64();
        let most = |figure: fn(&WorkerUse) -> Duration| {
            self.workers.iter().map(|worker| share(figure(worker), worker)).fold(0.0, f64::max)
        };
        let (busy, starved) = (most(|worker| worker.cpu), most(|worker| worker.starved));
        let slip = self.record.slip.value_at_percentile(99.0);
        let is_late = slip > SLIP_NANOS && slip * 4 > self.record.response().value_at_percentile(99.0);
        if busy > BUSY_SHARE {
            Some(format!("a load thread ran {:.0} % of the time", busy * 100.0))
        } else if starved > STARVED_SHARE {
            Some(format!("a load thread waited for a core {:.0} % of the time", starved * 100.0))
        } else if self.offered.is_some() && is_late {
            Some(format!("requests left {:.1} ms late (99th percentile)", slip as f64 / 1e6))
        } else {
            None
        }
    }
}
