//! The loading of a data set, and its progress.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use braid_storage::sync::coordinator::Worker;
use crossbeam_queue::SegQueue;

use crate::{client::node::Job, clock::Clock, clock::Instant, shared::attention::Attention};

/// The bytes read after which clients should not wait for a reply any longer. Redis serves its sockets at
/// this point, too.
const BRIEF_BYTES: u64 = 2 << 20;
/// The time after which the same applies, however little was read.
const BRIEF_MILLIS: u64 = 1000;

/// The loading of a data set. Commands without permission to run meanwhile are refused.
#[derive(Debug, Default)]
pub struct Loading {
    is_on: AtomicBool,
    /// Whether logged commands are run again.
    is_replay: AtomicBool,
    /// The start: Unix time in seconds, and milliseconds of uptime.
    began: AtomicU64,
    began_uptime: AtomicU64,
    /// The bytes of the file, and the bytes read.
    total_bytes: AtomicU64,
    loaded_bytes: AtomicU64,
    /// The figures of the last loading.
    keys_loaded: AtomicU64,
    keys_expired: AtomicU64,
    module_data_skipped: AtomicU64,
    /// Shares of the work for threads that wait for heavy work.
    shares: SegQueue<Share>,
}

/// A share of the work of loading.
pub type Share = Box<dyn FnOnce(&mut Worker<Job>) + Send>;

/// The progress of loading.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LoadingProgress {
    /// The start: Unix time in seconds.
    pub began: u64,
    /// The bytes of the file.
    pub total_bytes: u64,
    /// The bytes read.
    pub loaded_bytes: u64,
    /// The part that was read, in percent.
    pub percent: f64,
    /// The remaining seconds, if the rest is as fast as the part that is done. Before anything is done it is
    /// one, as in Redis.
    pub eta_seconds: u64,
}

impl Loading {
    /// Begins to load a file of `total_bytes`. From now on other commands are refused.
    pub fn begin(&self, total_bytes: u64, clock: &Clock, attention: &Attention) {
        self.began.store(clock.now().0 / 1000, Ordering::Relaxed);
        self.began_uptime.store(clock.uptime_millis(), Ordering::Relaxed);
        self.total_bytes.store(total_bytes, Ordering::Relaxed);
        self.note(0);
        if !self.is_on.swap(true, Ordering::Relaxed) {
            attention.raise();
        }
    }

    /// Records that logged commands are run again, at a time when nothing has expired.
    pub fn begin_replay(&self) {
        self.is_replay.store(true, Ordering::Relaxed);
    }

    /// Whether a data set is loaded in that way.
    pub fn is_replay(&self) -> bool {
        self.is_replay.load(Ordering::Relaxed)
    }

    /// Ends the loading.
    pub fn end(&self, attention: &Attention) {
        self.is_replay.store(false, Ordering::Relaxed);
        if self.is_on.swap(false, Ordering::Relaxed) {
            attention.lower();
        }
    }

    /// Leaves a share to the first thread that takes it. The caller must wake the threads that wait for heavy
    /// work.
    pub fn share(&self, share: Share) {
        self.shares.push(share);
    }

    /// Takes a share that no other thread has taken.
    pub fn take_share(&self) -> Option<Share> {
        self.shares.pop()
    }

    /// The progress of loading, while it is under way.
    pub fn progress(&self, clock: &Clock) -> Option<LoadingProgress> {
        if !self.is_on() {
            return None;
        }
        let number = |number: &AtomicU64| number.load(Ordering::Relaxed);
        let (total_bytes, loaded_bytes) = (number(&self.total_bytes), number(&self.loaded_bytes));
        let passed_millis = clock.uptime_millis().saturating_sub(number(&self.began_uptime));
        let rest = total_bytes.saturating_sub(loaded_bytes);
        let eta_seconds = match passed_millis.saturating_mul(loaded_bytes) {
            0 => 1,
            _ => (u128::from(passed_millis) * u128::from(rest) / u128::from(loaded_bytes) / 1000) as u64,
        };
        Some(LoadingProgress {
            began: number(&self.began),
            total_bytes,
            loaded_bytes,
            percent: 100.0 * loaded_bytes as f64 / total_bytes.max(1) as f64,
            eta_seconds,
        })
    }

    /// Whether loading has only begun, and may be over in a moment.
    pub fn is_brief(&self, uptime_millis: u64) -> bool {
        self.is_on()
            && self.loaded_bytes.load(Ordering::Relaxed) < BRIEF_BYTES
            && uptime_millis.saturating_sub(self.began_uptime.load(Ordering::Relaxed)) < BRIEF_MILLIS
    }

    /// Records how many bytes were read.
    pub fn note(&self, loaded_bytes: u64) {
        self.loaded_bytes.store(loaded_bytes, Ordering::Relaxed);
    }

    /// Records how many keys were loaded, how many others had expired, and how much data of modules was left
    /// out.
    pub fn note_loaded(&self, n_keys: u64, n_expired: u64, n_modules: u64) {
        self.module_data_skipped.store(n_modules, Ordering::Relaxed);
        self.keys_loaded.store(n_keys, Ordering::Relaxed);
        self.keys_expired.store(n_expired, Ordering::Relaxed);
    }

    /// The number of values, records and metadata of modules that the last loading left out.
    pub fn module_data_skipped(&self) -> u64 {
        self.module_data_skipped.load(Ordering::Relaxed)
    }

    /// The number of keys loaded last, and of others that had expired.
    pub fn last(&self) -> (u64, u64) {
        (self.keys_loaded.load(Ordering::Relaxed), self.keys_expired.load(Ordering::Relaxed))
    }

    /// Whether a data set is being loaded.
    #[inline]
    pub fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Relaxed)
    }
}

/// A timer for messages about long work, once a second.
pub struct EverySecond(Instant);

impl Default for EverySecond {
    fn default() -> Self {
        Self(Instant::now())
    }
}

impl EverySecond {
    /// Whether another second has passed.
    pub fn has_passed(&mut self) -> bool {
        let now = Instant::now();
        let has_passed = (now - self.0).as_secs() > 0;
        if has_passed {
            self.0 = now;
        }
        has_passed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loading_is_brief_until_much_is_read_or_it_lasts_or_ends() {
        let (loading, clock, attention) = (Loading::default(), Clock::start(), Attention::default());
        assert!(!loading.is_brief(0), "nothing is loaded");
        loading.begin(1 << 30, &clock, &attention);
        let began = loading.began_uptime.load(Ordering::Relaxed);
        loading.note(BRIEF_BYTES - 1);
        assert!(loading.is_brief(began + BRIEF_MILLIS - 1));
        assert!(!loading.is_brief(began + BRIEF_MILLIS));
        loading.note(BRIEF_BYTES);
        assert!(!loading.is_brief(began));
        loading.note(0);
        loading.end(&attention);
        assert!(!loading.is_brief(began));
    }
}
