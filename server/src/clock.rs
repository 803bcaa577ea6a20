//! Wall time that neither jumps nor stands still when the system clock is set.

use std::{
    sync::atomic::{AtomicI64, Ordering},
    time::{Instant, SystemTime, UNIX_EPOCH},
};

use braid_storage::time::Millis;
use nix::sys::{
    resource::{UsageWho, getrusage},
    time::TimeValLike,
};

/// How far time can be advanced: some 140,000 years, which still can be counted in microseconds.
const MAX_ADVANCED_MILLIS: i64 = 1 << 52;

/// The monotonic clock plus an offset.
///
/// Deadlines are wall time, but a step of the system clock must not freeze or fire every TTL at once; so the
/// offset is read once, at start.
#[derive(Debug)]
pub struct Clock {
    start: Instant,
    /// Unix time at `start`, in microseconds.
    start_unix_micros: u64,
    /// What DEBUG ADVANCE-TIME has added, in milliseconds: tests expire keys without waiting.
    advanced_millis: AtomicI64,
}

impl Clock {
    /// Starts the clock at the system's time.
    pub fn start() -> Self {
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self {
            start: Instant::now(),
            start_unix_micros: unix.as_micros() as u64,
            advanced_millis: AtomicI64::new(0),
        }
    }

    /// Seconds of Unix time by the system's clock, which may jump: what people read on their own.
    pub fn system_seconds() -> u64 {
        SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
    }

    /// The clock's two times at a moment that was read before: unix time, and milliseconds of uptime.
    #[inline]
    pub fn times_at(&self, moment: Instant) -> (Millis, u64) {
        let uptime = moment.saturating_duration_since(self.start);
        let advanced = self.advanced_millis.load(Ordering::Relaxed).max(0) as u64;
        let unix = (self.start_unix_micros + uptime.as_micros() as u64) / 1000 + advanced;
        (Millis(unix), uptime.as_millis() as u64)
    }

    /// Seconds of Unix time.
    pub fn unix_seconds(&self) -> u64 {
        self.unix_micros() / 1_000_000
    }

    /// Unix time in microseconds.
    pub fn unix_micros(&self) -> u64 {
        let advanced = self.advanced_millis.load(Ordering::Relaxed).max(0) as u64;
        self.start_unix_micros + self.start.elapsed().as_micros() as u64 + advanced * 1000
    }

    /// Unix time in milliseconds.
    pub fn now(&self) -> Millis {
        Millis(self.unix_micros() / 1000)
    }

    /// Unix time at the start.
    pub fn started(&self) -> Millis {
        Millis(self.start_unix_micros / 1000)
    }

    /// Milliseconds since the clock was started, not moved by [`Clock::advance`].
    pub fn uptime_millis(&self) -> u64 {
        self.start.elapsed().as_millis() as u64
    }

    /// Lets `millis` pass at once.
    pub fn advance(&self, millis: i64) {
        let add = |advanced: i64| Some(advanced.saturating_add(millis.max(0)).min(MAX_ADVANCED_MILLIS));
        let _ = self.advanced_millis.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
    }
}

/// The processor time that a thread or a process has had in the program and in the system, in microseconds.
pub fn processor_micros(of: UsageWho) -> [u64; 2] {
    // It fails only for a `UsageWho` that the system does not know.
    let Ok(usage) = getrusage(of) else { return [0; 2] };
    [usage.user_time(), usage.system_time()].map(|time| time.num_microseconds() as u64)
}
