//! The keys with the highest cost: HOTKEYS.
//!
//! While keys are tracked, [`Server::attention`](crate::shared::server::Server::attention) is raised. So
//! every command runs as a unit and passes the sampling ([`crate::run`]). A sampled command is added to its
//! thread's own summaries. Their lock is contended only by HOTKEYS GET and the status page. The summaries of
//! all threads are merged on request.

use std::{
    sync::{
        Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::Duration,
};

use crossbeam_utils::CachePadded;

use crate::{
    clock::Steady,
    random::random_below,
    telemetry::top_keys::{TopKeys, Weighed, heaviest},
};

/// The maximum length of a tracked key. No one wants to read a longer name, and the kept memory must be
/// bounded.
const KEY_MAX_BYTES: usize = 4096;

/// The options of HOTKEYS START.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HotKeysOptions {
    /// Whether time is tracked.
    pub time: bool,
    /// Whether bytes are tracked.
    pub bytes: bool,
    /// The number of keys that are shown of each.
    pub count: usize,
    /// The time after which tracking ends on its own.
    pub duration: Option<Duration>,
    /// The sampling ratio: one of this many commands is sampled.
    pub sample: u32,
}

/// The server's totals at a moment, from which later totals are subtracted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// The moment, in milliseconds of Unix time.
    pub unix_millis: u64,
    /// The same by the steady clock.
    pub steady: Steady,
    /// The time for which commands have run, in microseconds.
    pub command_micros: u64,
    /// The number of bytes read and written.
    pub net_bytes: u64,
    /// Processor time in user mode and in system mode, in microseconds.
    pub processor_micros: [u64; 2],
}

impl Totals {
    /// Returns the difference of two totals. The steady time of the result is the duration.
    fn since(self, began: Totals) -> Totals {
        let micros = |mode: usize| self.processor_micros[mode].saturating_sub(began.processor_micros[mode]);
        let millis = self.steady.0.saturating_sub(began.steady.0);
        Totals {
            unix_millis: millis,
            steady: Steady(millis),
            // CONFIG RESETSTAT may have come in between.
            command_micros: self.command_micros.saturating_sub(began.command_micros),
            net_bytes: self.net_bytes.saturating_sub(began.net_bytes),
            processor_micros: [micros(0), micros(1)],
        }
    }
}

/// The results of tracking.
#[derive(Debug)]
pub struct Report {
    /// The options of the request.
    pub asked: HotKeysOptions,
    /// Whether tracking continues.
    pub is_active: bool,
    /// The start, in milliseconds of Unix time.
    pub began_unix_millis: u64,
    /// The server's totals since then, with the duration in milliseconds.
    pub meanwhile: Totals,
    /// The keys with the most time, in nanoseconds, largest first.
    pub by_nanos: Vec<Weighed>,
    /// The keys with the most bytes.
    pub by_bytes: Vec<Weighed>,
}

/// The error of a start or a reset while keys are being tracked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InProgress;

/// The tracking of hot keys.
#[derive(Debug)]
pub struct HotKeys {
    is_active: AtomicBool,
    tracking: Mutex<Option<TrackingRun>>,
    threads: Box<[CachePadded<OfThread>]>,
}

#[derive(Debug)]
struct TrackingRun {
    asked: HotKeysOptions,
    began: Totals,
    ended: Option<Totals>,
}

impl TrackingRun {
    fn is_over(&self, now: Steady) -> bool {
        let millis = u128::from(now.0.saturating_sub(self.began.steady.0));
        self.asked.duration.is_some_and(|duration| millis >= duration.as_millis())
    }
}

/// The results of one thread.
#[derive(Debug, Default)]
struct OfThread {
    /// The sampling ratio, and the number of commands to skip before the next sample. Only the thread itself
    /// counts down.
    sample: AtomicU32,
    n_to_skip: AtomicU32,
    found: Mutex<KeyRankings>,
}

#[derive(Debug, Default)]
struct KeyRankings {
    by_nanos: TopKeys,
    by_bytes: TopKeys,
}

/// The cost of a sampled command.
#[derive(Clone, Copy, Debug)]
pub struct Cost {
    /// The duration.
    pub nanos: u64,
    /// The total length of its request and its reply.
    pub bytes: u64,
}

impl HotKeys {
    /// Creates the state for `n_threads` threads, without tracking.
    pub fn new(n_threads: usize) -> Self {
        Self {
            is_active: AtomicBool::new(false),
            tracking: Mutex::default(),
            threads: (0..n_threads).map(|_| CachePadded::default()).collect(),
        }
    }

    /// Whether keys are tracked.
    #[inline]
    pub fn is_active(&self) -> bool {
        self.is_active.load(Ordering::Relaxed)
    }

    /// Starts tracking. The caller raises the attention if that succeeds.
    pub fn start(&self, asked: HotKeysOptions, began: Totals) -> Result<(), InProgress> {
        let mut tracking = lock(&self.tracking);
        if self.is_active() {
            return Err(InProgress);
        }
        self.forget_found();
        for thread in &self.threads {
            thread.sample.store(asked.sample, Ordering::Relaxed);
            thread.n_to_skip.store(0, Ordering::Relaxed);
        }
        *tracking = Some(TrackingRun { asked, began, ended: None });
        self.is_active.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Stops tracking and keeps the results. Returns false if none was under way; otherwise the caller lowers
    /// the attention.
    pub fn stop(&self, ended: Totals) -> bool {
        self.end(ended, |_| true)
    }

    /// Whether the time for tracking is over.
    pub fn is_over(&self, now: Steady) -> bool {
        self.is_active() && lock(&self.tracking).as_ref().is_some_and(|tracking| tracking.is_over(now))
    }

    /// Stops tracking in the same way if its time is over.
    pub fn stop_if_over(&self, now: Totals) -> bool {
        self.end(now, |tracking| tracking.is_over(now.steady))
    }

    fn end(&self, now: Totals, if_so: impl Fn(&TrackingRun) -> bool) -> bool {
        let mut tracking = lock(&self.tracking);
        match tracking.as_mut() {
            Some(tracking) if tracking.ended.is_none() && if_so(tracking) => {
                tracking.ended = Some(now);
                self.is_active.store(false, Ordering::Relaxed);
                true
            }
            _ => false,
        }
    }

    /// Forgets the results.
    pub fn reset(&self) -> Result<(), InProgress> {
        let mut tracking = lock(&self.tracking);
        if self.is_active() {
            return Err(InProgress);
        }
        *tracking = None;
        self.forget_found();
        Ok(())
    }

    /// The results, if keys are or were tracked.
    pub fn report(&self, now: Totals) -> Option<Report> {
        let tracking = lock(&self.tracking);
        let TrackingRun { asked, began, ended } = tracking.as_ref()?;
        // Each thread waits only while its own part is read.
        let all = |of: fn(&KeyRankings) -> &TopKeys| {
            let of_threads = self.threads.iter();
            of_threads.flat_map(move |thread| of(&lock(&thread.found)).iter().collect::<Vec<_>>())
        };
        Some(Report {
            is_active: ended.is_none(),
            began_unix_millis: began.unix_millis,
            meanwhile: ended.unwrap_or(now).since(*began),
            by_nanos: heaviest(all(|found| &found.by_nanos), asked.count),
            by_bytes: heaviest(all(|found| &found.by_bytes), asked.count),
            asked: asked.clone(),
        })
    }

    /// Whether the thread samples the next command. The distances between samples are random, so that every
    /// pattern of commands is seen.
    pub fn samples_next(&self, thread: usize) -> bool {
        let OfThread { sample, n_to_skip, .. } = &*self.threads[thread];
        match n_to_skip.load(Ordering::Relaxed).checked_sub(1) {
            Some(left) => {
                n_to_skip.store(left, Ordering::Relaxed);
                false
            }
            None => {
                let sample = sample.load(Ordering::Relaxed).max(1);
                // From 0 to 2 (sample - 1), and sample - 1 on average.
                n_to_skip.store(random_below(2 * sample as usize - 1) as u32, Ordering::Relaxed);
                true
            }
        }
    }

    /// Adds the cost of a command, in even shares, to its keys.
    pub fn add<'k>(&self, thread: usize, keys: impl ExactSizeIterator<Item = &'k [u8]>, cost: Cost) {
        let n_keys = keys.len() as u64;
        let mut found = lock(&self.threads[thread].found);
        for key in keys.filter(|key| key.len() <= KEY_MAX_BYTES) {
            found.by_nanos.add(key, cost.nanos / n_keys);
            found.by_bytes.add(key, cost.bytes / n_keys);
        }
    }

    fn forget_found(&self) {
        for thread in &self.threads {
            *lock(&thread.found) = KeyRankings::default();
        }
    }
}

fn lock<T>(what: &Mutex<T>) -> MutexGuard<'_, T> {
    what.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(sample: u32) -> HotKeysOptions {
        HotKeysOptions { time: true, bytes: true, count: 10, duration: None, sample }
    }

    #[test]
    fn one_of_so_many_commands_is_sampled() {
        let hot_keys = HotKeys::new(1);
        for sample in [1, 2, 100] {
            hot_keys.start(asked(sample), Totals::default()).unwrap();
            let n_sampled = (0..100_000).filter(|_| hot_keys.samples_next(0)).count() as u32;
            let expected = 100_000 / sample;
            assert!(n_sampled.abs_diff(expected) <= expected / 5, "{n_sampled} of one in {sample}");
            assert!(hot_keys.stop(Totals::default()));
        }
    }

    #[test]
    fn it_ends_by_itself_and_keeps_what_it_has_found() {
        let hot_keys = HotKeys::new(2);
        let for_a_second = HotKeysOptions { duration: Some(Duration::from_secs(1)), ..asked(1) };
        let at = |millis| Totals {
            unix_millis: millis,
            steady: Steady(millis),
            net_bytes: millis,
            ..Totals::default()
        };
        hot_keys.start(for_a_second.clone(), at(500)).unwrap();
        assert_eq!(hot_keys.start(for_a_second, at(500)), Err(InProgress));
        assert_eq!(hot_keys.reset(), Err(InProgress));
        let keys: [&[u8]; 2] = [b"a", b"b"];
        hot_keys.add(1, keys.into_iter(), Cost { nanos: 10, bytes: 8 });
        assert!(!hot_keys.is_over(Steady(1499)) && !hot_keys.stop_if_over(at(1499)));
        assert!(
            hot_keys.is_over(Steady(1500)) && hot_keys.stop_if_over(at(1600)) && !hot_keys.stop(at(1700))
        );
        let report = hot_keys.report(at(9000)).unwrap();
        assert_eq!((report.is_active, report.began_unix_millis), (false, 500));
        assert_eq!(report.meanwhile, at(1100));
        assert_eq!(report.by_bytes, [(b"a"[..].into(), 4), (b"b"[..].into(), 4)]);
        hot_keys.reset().unwrap();
        assert!(hot_keys.report(at(9000)).is_none());
    }
}
