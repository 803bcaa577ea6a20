//! The latency monitor: events that took longer than `latency-monitor-threshold`, by kind.
//!
//! The lock is taken only for an event over the threshold, and by LATENCY.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Mutex, MutexGuard},
};

/// A command without the flag of fast commands.
pub const COMMAND: &str = "command";
/// A command of constant or logarithmic time.
pub const FAST_COMMAND: &str = "fast-command";
/// A thread's turn at removing expired keys.
pub const EXPIRE_CYCLE: &str = "expire-cycle";
/// A thread's turn at evicting keys.
pub const EVICTION_CYCLE: &str = "eviction-cycle";
/// The eviction of one key.
pub const EVICTION_DEL: &str = "eviction-del";
/// A turn of an I/O thread's loop, during which its clients have waited.
pub const LOOP: &str = "loop";

/// A write to the append-only file.
pub const AOF_WRITE: &str = "aof-write";
/// The same while a snapshot is taken or the file is rewritten.
pub const AOF_WRITE_ACTIVE_CHILD: &str = "aof-write-active-child";
/// The same at other times.
pub const AOF_WRITE_ALONE: &str = "aof-write-alone";
/// A sync of the append-only file for which replies wait.
pub const AOF_FSYNC_ALWAYS: &str = "aof-fsync-always";
/// The renaming of a new base, and its entry in the manifest.
pub const AOF_RENAME: &str = "aof-rename";

/// The number of samples of an event that are kept, as in Redis.
const N_SAMPLES: usize = 160;

/// The longest duration of an event within a second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// The second.
    pub unix_seconds: u64,
    /// The duration in milliseconds.
    pub millis: u64,
}

/// The samples of an event.
#[derive(Clone, Debug, Default)]
pub struct Series {
    /// The samples, oldest first. There is at least one.
    pub samples: VecDeque<Sample>,
    /// The longest duration ever, in milliseconds.
    pub max: u64,
    /// The durations of all events together, in milliseconds.
    pub sum: u64,
    /// The number of events.
    pub n_events: u64,
}

impl Series {
    fn add(&mut self, sample: Sample) {
        self.max = self.max.max(sample.millis);
        self.sum += sample.millis;
        self.n_events += 1;
        match self.samples.back_mut().filter(|last| last.unix_seconds == sample.unix_seconds) {
            Some(last) => last.millis = last.millis.max(sample.millis),
            None => {
                if self.samples.len() == N_SAMPLES {
                    self.samples.pop_front();
                }
                self.samples.push_back(sample);
            }
        }
    }
}

/// The events, by name.
pub type AllSeries = BTreeMap<&'static str, Series>;

/// The events that took long.
#[derive(Debug, Default)]
pub struct LatencyMonitor(Mutex<AllSeries>);

impl LatencyMonitor {
    /// Adds a sample of an event.
    pub fn add(&self, event: &'static str, sample: Sample) {
        self.lock().entry(event).or_default().add(sample);
    }

    /// All series.
    pub fn all(&self) -> AllSeries {
        self.lock().clone()
    }

    /// The series of an event.
    pub fn of(&self, event: &[u8]) -> Option<Series> {
        let events = self.lock();
        events.iter().find(|(name, _)| name.as_bytes() == event).map(|(_, series)| series.clone())
    }

    /// Forgets the events that `meant` selects, and returns how many there were.
    pub fn forget(&self, meant: impl Fn(&str) -> bool) -> usize {
        let mut events = self.lock();
        let n_before = events.len();
        events.retain(|name, _| !meant(name));
        n_before - events.len()
    }

    fn lock(&self) -> MutexGuard<'_, AllSeries> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_has_one_sample_and_an_event_has_the_last_of_them() {
        let monitor = LatencyMonitor::default();
        for (unix_seconds, millis) in [(1, 30), (1, 70), (1, 50), (2, 40)] {
            monitor.add(COMMAND, Sample { unix_seconds, millis });
        }
        let series = monitor.of(b"command").unwrap();
        assert_eq!((series.max, series.sum, series.n_events), (70, 190, 4));
        assert_eq!(series.samples.iter().map(|sample| sample.millis).collect::<Vec<_>>(), [70, 40]);
        (3..500).for_each(|unix_seconds| monitor.add(COMMAND, Sample { unix_seconds, millis: 1 }));
        let series = monitor.of(b"command").unwrap();
        assert_eq!((series.samples.len(), series.max), (N_SAMPLES, 70));
        assert_eq!(series.samples.back().unwrap().unix_seconds, 499);
        assert_eq!(monitor.forget(|name| name == LOOP), 0);
        assert_eq!(monitor.forget(|_| true), 1);
        assert!(monitor.of(b"command").is_none() && monitor.all().is_empty());
    }
}
