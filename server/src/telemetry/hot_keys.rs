//! Which keys cost the most: HOTKEYS.
//!
//! While keys are tracked, [`Server::attention`](crate::shared::server::Server::attention) is raised, so
//! every command runs as a unit and is looked at ([`crate::run`]). A command that is sampled is added to its
//! thread's own summaries, behind a lock that only HOTKEYS GET and the status page contend for. Summaries of
//! all threads are merged when they are asked for.

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

/// Of a longer key nobody would want to read the name; and what is kept of keys has to be bounded.
const KEY_MAX_BYTES: usize = 4096;

/// What HOTKEYS START asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    /// Time is tracked.
    pub time: bool,
    /// Bytes are tracked.
    pub bytes: bool,
    /// How many keys are shown of each.
    pub count: usize,
    /// After this it ends by itself.
    pub duration: Option<Duration>,
    /// One of so many commands is looked at.
    pub sample: u32,
}

/// What the server had done at a moment, to tell how much of it was done meanwhile.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// The moment, in milliseconds of Unix time.
    pub unix_millis: u64,
    /// The same by the clock that nobody sets.
    pub steady: Steady,
    /// For how long commands have run, in microseconds.
    pub command_micros: u64,
    /// Bytes read and written.
    pub net_bytes: u64,
    /// Processor time spent in the program and in the system, in microseconds.
    pub processor_micros: [u64; 2],
}

impl Totals {
    /// Returns the difference of two totals; the steady time of the result is the duration.
    fn since(self, began: Totals) -> Totals {
        let micros = |mode: usize| self.processor_micros[mode].saturating_sub(began.processor_micros[mode]);
        let millis = self.steady.0.saturating_sub(began.steady.0);
        Totals {
            unix_millis: millis,
            steady: Steady(millis),
            // CONFIG RESETSTAT may have come between.
            command_micros: self.command_micros.saturating_sub(began.command_micros),
            net_bytes: self.net_bytes.saturating_sub(began.net_bytes),
            processor_micros: [micros(0), micros(1)],
        }
    }
}

/// What was found.
#[derive(Debug)]
pub struct Report {
    /// What was asked for.
    pub asked: Asked,
    /// Whether tracking goes on.
    pub is_active: bool,
    /// When it began, in milliseconds of Unix time.
    pub began_unix_millis: u64,
    /// What the server has done meanwhile, and for how many milliseconds.
    pub meanwhile: Totals,
    /// The keys with the most time, in nanoseconds, the first first.
    pub by_nanos: Vec<Weighed>,
    /// The keys with the most bytes.
    pub by_bytes: Vec<Weighed>,
}

/// Why nothing begins or is forgotten: keys are being tracked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InProgress;

/// The tracking of hot keys.
#[derive(Debug)]
pub struct HotKeys {
    is_active: AtomicBool,
    tracking: Mutex<Option<Tracking>>,
    threads: Box<[CachePadded<OfThread>]>,
}

#[derive(Debug)]
struct Tracking {
    asked: Asked,
    began: Totals,
    ended: Option<Totals>,
}

impl Tracking {
    fn is_over(&self, now: Steady) -> bool {
        let millis = u128::from(now.0.saturating_sub(self.began.steady.0));
        self.asked.duration.is_some_and(|duration| millis >= duration.as_millis())
    }
}

/// What one thread has found.
#[derive(Debug, Default)]
struct OfThread {
    /// One of so many commands is looked at, and after how many the next one is. Only the thread itself
    /// counts down.
    sample: AtomicU32,
    n_to_skip: AtomicU32,
    found: Mutex<Found>,
}

#[derive(Debug, Default)]
struct Found {
    by_nanos: TopKeys,
    by_bytes: TopKeys,
}

/// A sampled command.
#[derive(Clone, Copy, Debug)]
pub struct Cost {
    /// How long it took.
    pub nanos: u64,
    /// How many bytes its request and its reply have.
    pub bytes: u64,
}

impl HotKeys {
    /// Nothing is tracked on so many threads.
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

    /// Begins. The caller raises the attention if that succeeds.
    pub fn start(&self, asked: Asked, began: Totals) -> Result<(), InProgress> {
        let mut tracking = lock(&self.tracking);
        if self.is_active() {
            return Err(InProgress);
        }
        self.forget_found();
        for thread in &self.threads {
            thread.sample.store(asked.sample, Ordering::Relaxed);
            thread.n_to_skip.store(0, Ordering::Relaxed);
        }
        *tracking = Some(Tracking { asked, began, ended: None });
        self.is_active.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Ends; what was found stays. Returns false if nothing was under way; if not, the caller lowers the
    /// attention.
    pub fn stop(&self, ended: Totals) -> bool {
        self.end(ended, |_| true)
    }

    /// Whether the time is over for which keys were to be tracked.
    pub fn is_over(&self, now: Steady) -> bool {
        self.is_active() && lock(&self.tracking).as_ref().is_some_and(|tracking| tracking.is_over(now))
    }

    /// Ends, likewise, if the time is over.
    pub fn stop_if_over(&self, now: Totals) -> bool {
        self.end(now, |tracking| tracking.is_over(now.steady))
    }

    fn end(&self, now: Totals, if_so: impl Fn(&Tracking) -> bool) -> bool {
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

    /// Forgets what was found.
    pub fn reset(&self) -> Result<(), InProgress> {
        let mut tracking = lock(&self.tracking);
        if self.is_active() {
            return Err(InProgress);
        }
        *tracking = None;
        self.forget_found();
        Ok(())
    }

    /// What was found, if keys are tracked or were.
    pub fn report(&self, now: Totals) -> Option<Report> {
        let tracking = lock(&self.tracking);
        let Tracking { asked, began, ended } = tracking.as_ref()?;
        // Each thread is kept waiting for its own part only.
        let all = |of: fn(&Found) -> &TopKeys| {
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

    /// Whether the thread looks at the next command. Samples are as far apart as chance has it, so that no
    /// pattern of commands goes unseen.
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
            *lock(&thread.found) = Found::default();
        }
    }
}

fn lock<T>(what: &Mutex<T>) -> MutexGuard<'_, T> {
    what.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(sample: u32) -> Asked {
        Asked { time: true, bytes: true, count: 10, duration: None, sample }
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
        let for_a_second = Asked { duration: Some(Duration::from_secs(1)), ..asked(1) };
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
