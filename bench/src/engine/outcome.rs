//! What a load found, and whether the client was its limit.

use std::time::Duration;

use hdrhistogram::Histogram;

use super::recorder::Record;

/// One second of a load.
#[derive(Debug, Clone)]
pub struct Slice {
    /// Which second since the run began, counted from 0.
    pub second: u64,
    /// Requests answered in it.
    pub n_done: u64,
    /// Replies in it that were errors.
    pub n_errors: u64,
    /// Response times of those answered in it, in nanoseconds.
    pub response: Histogram<u64>,
    /// The workers' processor time in it.
    pub cpu: Duration,
}

/// What one load found.
#[derive(Debug)]
pub struct Outcome {
    /// Requests a second on schedule; nothing in a closed loop.
    pub offered: Option<f64>,
    /// How long it counted.
    pub measured: Duration,
    /// All that was counted.
    pub record: Record,
    /// From due to arrival at a consumer, in nanoseconds; empty without consumers.
    pub delivery: Histogram<u64>,
    /// Messages that consumers counted by their bytes.
    pub n_delivered: u64,
    /// How many more of those should have arrived.
    pub n_lost: u64,
    /// The whole seconds in which it counted.
    pub slices: Vec<Slice>,
    /// What each worker used while it counted.
    pub workers: Vec<WorkerUse>,
}

/// What a worker thread used of the machine.
#[derive(Debug, Clone, Copy)]
pub struct WorkerUse {
    /// Its processor time.
    pub cpu: Duration,
    /// How long it wanted a core and had none.
    pub starved: Duration,
    /// How long it was counting.
    pub wall: Duration,
}

/// The share of a core at which a worker has nothing in reserve.
const BUSY_SHARE: f64 = 0.9;
/// The share of time without a core that spoils figures.
const STARVED_SHARE: f64 = 0.2;
/// A slip below this is the precision of timers.
const SLIP_NANOS: u64 = 500_000;

impl Outcome {
    /// Requests answered a second.
    pub fn achieved_rate(&self) -> f64 {
        self.record.n_done_in_time() as f64 / self.measured.as_secs_f64()
    }

    /// Why the figures are a lower bound, if the client was the limit.
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
