//! The server around its AOF: clock, server log, latency monitor, and the faults that tests plan.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use braid_journal::{
    aof_file::{Host, News, Timed},
    faults::Faults,
};
use crossbeam_utils::sync::Unparker;

use crate::{
    clock::{Clock, Instant},
    config::Config,
    notice,
    telemetry::latency_monitor::{
        AOF_FSYNC_ALWAYS, AOF_RENAME, AOF_WRITE, AOF_WRITE_ACTIVE_CHILD, AOF_WRITE_ALONE, LatencyMonitor,
        Sample,
    },
    warning,
};

/// The surroundings of the AOF.
pub struct AofHost {
    /// Wakes the thread that syncs.
    pub syncer: Unparker,
    /// The planned faults of the disk.
    pub faults: Arc<Faults>,
    started: Instant,
    /// `latency-monitor-threshold` in nanoseconds, or the greatest number.
    latency_nanos: AtomicU64,
    latency_monitor: Arc<LatencyMonitor>,
    /// A snapshot is taken, or the file is rewritten.
    is_beside_snapshot: AtomicBool,
    /// The additional time of each write, in microseconds. Tests watch its consequences.
    write_delay_micros: AtomicU64,
}

impl AofHost {
    /// Surroundings without faults or a threshold.
    pub fn new(syncer: Unparker, latency_monitor: Arc<LatencyMonitor>) -> Self {
        Self {
            syncer,
            faults: Arc::default(),
            started: Instant::now(),
            latency_nanos: AtomicU64::new(u64::MAX),
            latency_monitor,
            is_beside_snapshot: AtomicBool::new(false),
            write_delay_micros: AtomicU64::new(0),
        }
    }

    /// Applies the configuration.
    pub fn configure(&self, config: &Config) {
        let latency = config.latency_monitor_threshold.map_or(u64::MAX, |time| time.as_nanos() as u64);
        self.latency_nanos.store(latency, Ordering::Relaxed);
    }

    /// Notes whether a snapshot is taken. The latency monitor tells these writes apart.
    pub fn set_beside_snapshot(&self, is_beside: bool) {
        self.is_beside_snapshot.store(is_beside, Ordering::Relaxed);
    }

    /// Makes each write take longer.
    pub fn delay_writes(&self, time: Duration) {
        self.write_delay_micros.store(time.as_micros() as u64, Ordering::Relaxed);
    }
}

impl Host for AofHost {
    fn now(&self) -> Duration {
        self.started.elapsed()
    }

    fn unix_seconds(&self) -> u64 {
        Clock::system_seconds()
    }

    fn wake_syncer(&self) {
        self.syncer.unpark();
    }

    fn is_timed(&self) -> bool {
        self.latency_nanos.load(Ordering::Relaxed) != u64::MAX
    }

    fn took(&self, operation: Timed, time: Duration) {
        if time.as_nanos() < u128::from(self.latency_nanos.load(Ordering::Relaxed)) {
            return;
        }
        let sample = Sample { unix_seconds: Clock::system_seconds(), millis: time.as_millis() as u64 };
        let events: &[&'static str] = match operation {
            Timed::Write if self.is_beside_snapshot.load(Ordering::Relaxed) => {
                &[AOF_WRITE, AOF_WRITE_ACTIVE_CHILD]
            }
            Timed::Write => &[AOF_WRITE, AOF_WRITE_ALONE],
            Timed::SyncAlways => &[AOF_FSYNC_ALWAYS],
            Timed::Rename => &[AOF_RENAME],
        };
        events.iter().for_each(|event| self.latency_monitor.add(event, sample));
    }

    fn tell(&self, news: News<'_>) {
        match news {
            News::WriteFails(error) => warning!(
                "Writing to the append-only file has failed: {error}. Writes are refused until that is possible again"
            ),
            News::WritesAgain => notice!("Writing to the append-only file has succeeded again"),
            News::SyncFailed(error) => warning!(
                "Syncing the append-only file has failed: {error}. What was written since the last sync may be lost. \
                 Writes are refused until it has been rewritten"
            ),
            News::WholeAgain => {
                notice!("The append-only file has been rewritten: what a failed sync may have lost is in it");
            }
            News::CutFailed(error) => {
                warning!("Beginning a new increment of the append-only file has failed: {error}");
            }
            News::HistoryStays(error) => {
                warning!("What the append-only file needs no more cannot be removed: {error}");
            }
            News::RemovedAside(name) => notice!("Removing the temp incr aof file {}", name.escape_ascii()),
            News::CloseFailed(error) => warning!("Closing the append-only file has failed: {error}"),
        }
    }

    /// Waits for the planned delay, or until it is shortened.
    fn before_write(&self) {
        let began = Instant::now();
        let delay = || Duration::from_micros(self.write_delay_micros.load(Ordering::Relaxed));
        while began.elapsed() < delay() {
            thread::sleep(Duration::from_millis(1).min(delay()));
        }
    }
}
