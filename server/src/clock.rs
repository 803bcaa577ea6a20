//! The two clocks: wall time and the time since the start. Only wall time may be set.
//!
//! A point in time, such as a key's deadline, is wall time, as in Redis. A wait uses the other clock
//! ([`Steady`]). It neither hangs when the system's clock is set back, nor ends early when that is set
//! forward.

#[cfg(test)]
pub mod simulated;

use std::{
    ops::{Add, AddAssign, Sub},
    sync::atomic::{AtomicI64, AtomicU64, Ordering},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use braid_storage::entry::time::Millis;
use nix::sys::{
    resource::{UsageWho, getrusage},
    time::TimeValLike,
};

/// The maximum by which time can be advanced, about 140,000 years. It can still be counted in microseconds.
const MAX_ADVANCED_MILLIS: i64 = 1 << 52;

/// The difference from the system's clock that is corrected, in microseconds. Reading two clocks takes less.
const HEEDED_MICROS: u64 = 1000;
/// The difference that counts as a set clock rather than drift.
const STEP_MICROS: u64 = 1_000_000;
/// The number of attempts to read both clocks without an interruption.
const READINGS: usize = 5;

/// A reading of the system's monotonic clock.
///
/// It does the same as [`std::time::Instant`]. All of the server reads this one, so that a test can simulate
/// the time of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Instant(std::time::Instant);

impl Instant {
    /// Reads the clock.
    #[inline(always)]
    pub fn now() -> Self {
        #[cfg(test)]
        if let Some(simulated) = simulated::instant() {
            return Self(simulated);
        }
        Self(std::time::Instant::now())
    }

    /// The time that has passed since.
    #[inline]
    pub fn elapsed(self) -> Duration {
        Self::now() - self
    }

    /// The time since an earlier reading, or zero if that is later.
    #[inline]
    pub fn saturating_duration_since(self, earlier: Self) -> Duration {
        self.0.saturating_duration_since(earlier.0)
    }
}

impl Sub for Instant {
    type Output = Duration;

    #[inline]
    fn sub(self, earlier: Self) -> Duration {
        self.0 - earlier.0
    }
}

impl Add<Duration> for Instant {
    type Output = Self;

    fn add(self, duration: Duration) -> Self {
        Self(self.0 + duration)
    }
}

impl AddAssign<Duration> for Instant {
    fn add_assign(&mut self, duration: Duration) {
        *self = *self + duration;
    }
}

/// Reads the system's clock: the time since the beginning of 1970, or zero before that.
fn unix_time() -> Duration {
    #[cfg(test)]
    if let Some(simulated) = simulated::unix_time() {
        return simulated;
    }
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// A point in time by the steady clock, in milliseconds since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Steady(pub u64);

impl Steady {
    /// Returns the point in time `millis` milliseconds later.
    pub fn after(self, millis: u64) -> Steady {
        Steady(self.0.saturating_add(millis))
    }

    /// Returns the whole seconds that have passed since a stored point in time.
    pub fn seconds_since(self, stored: &AtomicU64) -> u64 {
        self.0.saturating_sub(stored.load(Ordering::Relaxed)) / 1000
    }
}

/// The number of microseconds by which the system's clock was set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockStep(pub i64);

/// The monotonic clock plus an offset, which follows the system's clock ([`Clock::follow`]).
///
/// One reading samples both times.
#[derive(Debug)]
pub struct Clock {
    start: Instant,
    /// Unix time of `start`, in microseconds, by the system's clock as it is now.
    start_unix_micros: AtomicU64,
    /// The time added by DEBUG ADVANCE-TIME, in milliseconds. Tests expire keys with it without waiting.
    advanced_millis: AtomicI64,
}

impl Clock {
    /// Starts the clock at the system's time.
    pub fn start() -> Self {
        let unix = unix_time();
        Self {
            start: Instant::now(),
            start_unix_micros: AtomicU64::new(unix.as_micros() as u64),
            advanced_millis: AtomicI64::new(0),
        }
    }

    /// Reads the system's clock, and follows it from here on.
    ///
    /// Returns by how much it was set, if it was. If several threads call this, one receives the step.
    pub fn follow(&self) -> Option<ClockStep> {
        for _ in 0..READINGS {
            let before = self.start.elapsed();
            let unix = unix_time();
            let took = self.start.elapsed() - before;
            if took.as_micros() < u128::from(HEEDED_MICROS) / 2 {
                return self.heed((before + took / 2).as_micros() as u64, unix.as_micros() as u64);
            }
        }
        // The thread hardly runs, so the next call is as good.
        None
    }

    /// Applies a reading of both clocks: microseconds since the start, and of Unix time.
    fn heed(&self, since_start: u64, unix: u64) -> Option<ClockStep> {
        let known = self.start_unix_micros.load(Ordering::Relaxed);
        let found = unix.saturating_sub(since_start);
        if found.abs_diff(known) < HEEDED_MICROS {
            return None;
        }
        let is_first = self
            .start_unix_micros
            .compare_exchange(known, found, Ordering::Relaxed, Ordering::Relaxed)
            .is_ok();
        (is_first && found.abs_diff(known) >= STEP_MICROS).then(|| ClockStep(found as i64 - known as i64))
    }

    /// The time by the steady clock. [`Clock::advance`] moves it, too.
    pub fn steady(&self) -> Steady {
        Steady(self.uptime_millis() + self.advanced_millis())
    }

    fn advanced_millis(&self) -> u64 {
        self.advanced_millis.load(Ordering::Relaxed).max(0) as u64
    }

    /// Seconds of Unix time by the system's clock, which may jump. For times that people read on their own.
    pub fn system_seconds() -> u64 {
        unix_time().as_secs()
    }

    /// The clock's two times at an earlier moment: Unix time, and milliseconds of uptime.
    #[inline]
    pub fn times_at(&self, moment: Instant) -> (Millis, u64) {
        let uptime = moment.saturating_duration_since(self.start);
        let start_unix_micros = self.start_unix_micros.load(Ordering::Relaxed);
        let unix = (start_unix_micros + uptime.as_micros() as u64) / 1000 + self.advanced_millis();
        (Millis(unix), uptime.as_millis() as u64)
    }

    /// Seconds of Unix time.
    pub fn unix_seconds(&self) -> u64 {
        self.unix_micros() / 1_000_000
    }

    /// Unix time in microseconds.
    pub fn unix_micros(&self) -> u64 {
        let start_unix_micros = self.start_unix_micros.load(Ordering::Relaxed);
        start_unix_micros + self.start.elapsed().as_micros() as u64 + self.advanced_millis() * 1000
    }

    /// Unix time in milliseconds.
    pub fn now(&self) -> Millis {
        Millis(self.unix_micros() / 1000)
    }

    /// Returns the time of the start, in Unix time. It follows the system's current clock.
    pub fn started(&self) -> Millis {
        Millis(self.start_unix_micros.load(Ordering::Relaxed) / 1000)
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

/// Returns the processor time of a thread or a process, in microseconds.
///
/// The two numbers are for user mode and system mode.
pub fn processor_micros(of: UsageWho) -> [u64; 2] {
    // It fails only for a `UsageWho` that the system does not know.
    let Ok(usage) = getrusage(of) else { return [0; 2] };
    [usage.user_time(), usage.system_time()].map(|time| time.num_microseconds() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000;

    /// Creates a clock that was started `unix` microseconds after the epoch.
    fn started_at(unix: u64) -> Clock {
        let clock = Clock::start();
        clock.start_unix_micros.store(unix, Ordering::Relaxed);
        clock
    }

    #[test]
    fn a_clock_that_is_set_is_followed_and_told_of_once() {
        let clock = started_at(1000 * SECOND);
        assert_eq!(clock.heed(5 * SECOND, 1005 * SECOND), None);
        assert_eq!(clock.heed(6 * SECOND, 8206 * SECOND), Some(ClockStep(7200 * SECOND as i64)));
        assert_eq!(clock.started(), Millis(8200 * 1000));
        assert_eq!(clock.heed(7 * SECOND, 8207 * SECOND), None, "that is known");
        assert_eq!(clock.heed(8 * SECOND, 1008 * SECOND), Some(ClockStep(-7200 * SECOND as i64)));
        assert_eq!(clock.started(), Millis(1000 * 1000));
    }

    #[test]
    fn a_clock_that_drifts_is_followed_without_a_word() {
        let clock = started_at(1000 * SECOND);
        assert_eq!(clock.heed(5 * SECOND, 1005 * SECOND + 300), None);
        assert_eq!(clock.started(), Millis(1000 * 1000), "the readings are not as exact as that");
        assert_eq!(clock.heed(5 * SECOND, 1005 * SECOND + 2000), None);
        assert_eq!(clock.started(), Millis(1000 * 1000 + 2));
    }

    #[test]
    fn what_is_set_back_does_not_move_what_waits() {
        let clock = started_at(1 << 50);
        let before = clock.steady();
        clock.heed(0, SECOND);
        assert!(clock.steady() >= before && clock.steady() < before.after(60_000));
        assert!(clock.now() < Millis(100_000), "and wall time is what was set");
    }

    #[test]
    fn a_clock_from_before_the_epoch_begins_there() {
        let clock = started_at(1000 * SECOND);
        clock.heed(5 * SECOND, 0);
        assert_eq!(clock.started(), Millis(0));
    }
}
