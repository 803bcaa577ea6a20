//! The simulated time of a thread.

use std::{
    cell::Cell,
    time::{Duration, Instant},
};

thread_local! {
    static NOW: Cell<Option<(Instant, Duration)>> = const { Cell::new(None) };
}

/// The Unix time at which simulated time begins.
const BEGIN: Duration = Duration::from_secs(1_700_000_000);

/// Begins to simulate the time of this thread. It stands still until [`pass`].
pub fn begin() {
    NOW.set(Some((Instant::now(), Duration::ZERO)));
}

/// Lets time pass.
pub fn pass(duration: Duration) {
    let (start, passed) = NOW.get().expect("the time of this thread is simulated");
    NOW.set(Some((start, passed + duration)));
}

/// The monotonic clock, if it is simulated.
pub(super) fn instant() -> Option<Instant> {
    NOW.get().map(|(start, passed)| start + passed)
}

/// The wall clock, if it is simulated.
pub(super) fn unix_time() -> Option<Duration> {
    NOW.get().map(|(_, passed)| BEGIN + passed)
}
