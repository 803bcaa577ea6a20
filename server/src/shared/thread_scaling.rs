//! The number of threads that connections are spread over: as many as the load needs.
//!
//! Two half idle threads spend more on the same commands than one. Cache lines move between their caches,
//! each finds shards held by the other, and both fall asleep after most reads. So the threads' cron hands
//! connections over from thread to thread, while nothing of them is under way.
//!
//! A busy thread gets help, and the help stays if it was useful. Other programs, or a limit of the container,
//! may leave the threads together no more processor time than before. Then more threads would only take it
//! from each other. So help is rarely tried where no processor is idle: a load generator on the same machine
//! is such a program.

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use crate::clock::Instant;

/// The share of a processor above which threads get help.
const BUSY: f64 = 0.9;
/// The load that threads should have.
const WANTED: f64 = 0.65;
/// A thread is removed from use if the others would be no busier than this.
const SPARE: f64 = 0.6;
/// The share of waiting above which there are too many threads.
///
/// It is the waiting time for processors divided by the processor time.
const WAITING: f64 = 0.15;
/// The shortest sample that counts. Shorter ones, such as the first, prove nothing.
const SAMPLE_MIN: Duration = Duration::from_millis(50);
/// The number of agreeing samples in a row after which threads are added or removed. A shorter load is not
/// worth the handover.
const N_AGREEING: u32 = 3;
/// The sample after the start of help by which it is judged. Connections must have moved, and the first
/// sample covers the time before and after.
const N_TRIAL_SAMPLES: u32 = 3;
/// The factor of the threads' total processor time from which help is useful.
const USEFUL: f64 = 1.1;
/// The number of idle processors in the whole machine at which help comes at once.
const ROOM: f64 = 0.5;
/// The interval of trials where other programs use all processors. There help could only take some from them.
const RARELY: Duration = Duration::from_secs(10);
/// The rest after a useless trial, first and longest. It doubles from the one to the other.
const REST: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(4));

/// Processor time of threads, in nanoseconds, or in processors.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Time<T> {
    /// The time that they used.
    pub had: T,
    /// The time that they could have used. It is the used time plus the wait for a processor.
    pub wanted: T,
}

/// The number of I/O threads that serve connections. They are the first ones.
pub struct Spread {
    n_threads: usize,
    n_in_use: AtomicUsize,
}

/// Estimates, sample by sample, how many threads are needed. Only the first thread has it.
pub struct Sampler {
    at: Instant,
    /// The time of all threads by then.
    time: Time<u64>,
    /// The machine's total idle time by then, in nanoseconds, if the system reports it.
    idle: Option<u64>,
    /// The number of consecutive samples that found too few threads, and too many.
    n_short: u32,
    n_spare: u32,
    trial: Option<Trial>,
    /// The time for which a useless trial prevents others.
    rest: Duration,
    no_trial_before: Instant,
    /// The start of the last trial, or of the sampling.
    tried_at: Instant,
}

/// A trial of more threads.
struct Trial {
    n_before: usize,
    /// The used and wanted time with the threads before.
    before: Time<f64>,
    n_samples: u32,
}

impl Spread {
    /// Begins with one thread in use.
    pub fn new(n_threads: usize) -> Self {
        Self { n_threads, n_in_use: AtomicUsize::new(1) }
    }

    /// The number of threads that serve connections.
    pub fn n_in_use(&self) -> usize {
        self.n_in_use.load(Ordering::Relaxed)
    }

    /// Makes all threads serve connections.
    pub fn use_all(&self) {
        self.use_some(self.n_threads);
    }

    /// Makes `n` threads serve connections, at least one.
    pub fn use_some(&self, n: usize) {
        self.n_in_use.store(n.clamp(1, self.n_threads), Ordering::Relaxed);
    }
}

impl Sampler {
    /// Begins now.
    pub fn new(now: Instant) -> Self {
        Self {
            at: now,
            time: Time::default(),
            idle: None,
            n_short: 0,
            n_spare: 0,
            trial: None,
            rest: REST.0,
            no_trial_before: now,
            tried_at: now,
        }
    }

    /// Updates the estimate. `time` is that of all threads since they began, `idle` that of idle processors.
    ///
    /// If the server does other work `beside` its clients, a processor is kept for that. Help comes only
    /// where there is room.
    pub fn adapt(&mut self, spread: &Spread, time: Time<u64>, idle: Option<u64>, beside: bool, now: Instant) {
        let elapsed = now - self.at;
        if elapsed < SAMPLE_MIN {
            return;
        }
        let nanos = elapsed.as_nanos() as f64;
        let lately = Time {
            had: time.had.saturating_sub(self.time.had) as f64 / nanos,
            wanted: time.wanted.saturating_sub(self.time.wanted) as f64 / nanos,
        };
        let idle_lately =
            idle.zip(self.idle).map(|(idle, before)| idle.saturating_sub(before) as f64 / nanos);
        (self.at, self.time, self.idle) = (now, time, idle);
        let n_kept = if beside { 1.0 } else { 0.0 };
        let is_room = idle_lately.is_none_or(|idle| idle >= ROOM + n_kept);
        let may_try = is_room || !beside && now >= self.tried_at + RARELY;
        spread.use_some(self.n_to_use(spread.n_in_use(), spread.n_threads, lately, may_try));
    }

    /// Returns how many threads to use from now on.
    ///
    /// `may_try` says whether more may be tried, in view of other programs' use of the processors.
    fn n_to_use(&mut self, n_in_use: usize, n_threads: usize, lately: Time<f64>, may_try: bool) -> usize {
        if let Some(trial) = &mut self.trial {
            trial.n_samples += 1;
            if trial.n_samples < N_TRIAL_SAMPLES {
                return n_in_use;
            }
            let Trial { n_before, before, .. } = *trial;
            self.trial = None;
            // With far less work than before, nothing is known.
            if lately.wanted > before.wanted / 2.0 {
                if lately.had < before.had * USEFUL {
                    self.no_trial_before = self.at + self.rest;
                    self.rest = (2 * self.rest).min(REST.1);
                    return n_before;
                }
                self.rest = REST.0;
            }
        }
        let n_needed = n_needed(n_in_use, lately).min(n_threads);
        self.n_short = if n_needed > n_in_use { self.n_short + 1 } else { 0 };
        self.n_spare = if n_needed < n_in_use { self.n_spare + 1 } else { 0 };
        if self.n_short >= N_AGREEING && may_try && self.at >= self.no_trial_before {
            self.n_short = 0;
            self.tried_at = self.at;
            self.trial = Some(Trial { n_before: n_in_use, before: lately, n_samples: 0 });
            return n_needed;
        }
        if self.n_spare >= N_AGREEING {
            self.n_spare = 0;
            return n_needed;
        }
        n_in_use
    }
}

/// Returns how many threads are needed.
///
/// Together `n_in_use` threads used and wanted this many processors.
fn n_needed(n_in_use: usize, Time { had, wanted }: Time<f64>) -> usize {
    let n_others = (n_in_use - 1) as f64;
    let do_wait = wanted - had > WAITING * had;
    if do_wait && had <= n_others {
        return (had.ceil() as usize).max(1);
    }
    let is_short = wanted > BUSY * n_in_use as f64;
    if is_short || wanted < SPARE * n_others { ((wanted / WANTED).ceil() as usize).max(1) } else { n_in_use }
}

/// Returns the total idle time of the machine's processors, in nanoseconds.
///
/// It is `None` if the system does not report it.
pub fn idle_time_of_the_machine() -> Option<u64> {
    idle_time_in(&std::fs::read_to_string("/proc/uptime").ok()?)
}

/// Reads the idle time from `/proc/uptime`: the second of its numbers, in seconds.
fn idle_time_in(uptime: &str) -> Option<u64> {
    let seconds = uptime.split_ascii_whitespace().nth(1)?.parse::<f64>().ok()?;
    Some((seconds * 1e9) as u64)
}

/// Returns the calling thread's time, in nanoseconds; `None` if the system does not report it.
pub fn time_of_this_thread() -> Option<Time<u64>> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    let mut numbers = text.split_ascii_whitespace().map(str::parse::<u64>);
    let (had, waited) = (numbers.next()?.ok()?, numbers.next()?.ok()?);
    Some(Time { had, wanted: had + waited })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_are_added_when_busy_and_done_without_when_idle() {
        for (n_in_use, had, wanted, n) in [
            (1, 0.0, 0.0, 1),
            (1, 0.88, 0.89, 1),
            (1, 0.94, 0.95, 2),
            (1, 1.0, 2.0, 4),
            (2, 1.7, 1.7, 2),
            (2, 0.61, 0.61, 2),
            (2, 0.59, 0.59, 1),
            (8, 0.0, 0.0, 1),
            (8, 4.1, 4.1, 7),
            (8, 4.3, 4.3, 8),
            // Other programs have the processors: fewer threads would get as much.
            (2, 0.93, 1.3, 1),
            (8, 1.9, 7.5, 2),
            (2, 1.4, 1.8, 2),
        ] {
            assert_eq!(n_needed(n_in_use, Time { had, wanted }), n, "{n_in_use} threads: {had}, {wanted}");
        }
    }

    #[test]
    fn no_number_that_it_arrives_at_makes_it_change_again() {
        for n_in_use in 1..=16 {
            for hundredths in 0..1600 {
                let wanted = f64::from(hundredths) / 100.0;
                let time = Time { had: wanted, wanted };
                let n = n_needed(n_in_use, time);
                assert_eq!(n_needed(n, time), n, "{n_in_use} threads, {wanted} processors");
            }
        }
    }

    /// Returns the threads in use after each sample of 100 ms.
    ///
    /// `load` returns the used and wanted processors for a number of threads in use.
    fn in_use(n_threads: usize, n_samples: u32, load: impl Fn(u32, usize) -> (f64, f64)) -> Vec<usize> {
        in_use_beside(n_threads, n_samples, (1.0, false), load)
    }

    /// Does [`in_use`] with `n_idle` idle processors, whatever the threads use.
    ///
    /// The server works beside its clients or not.
    fn in_use_beside(
        n_threads: usize,
        n_samples: u32,
        (n_idle, beside): (f64, bool),
        load: impl Fn(u32, usize) -> (f64, f64),
    ) -> Vec<usize> {
        let spread = Spread::new(n_threads);
        let mut now = Instant::now();
        let mut sampler = Sampler::new(now);
        let mut time = Time::default();
        let sample = |nth| {
            let (had, wanted) = load(nth, spread.n_in_use());
            now += Duration::from_millis(100);
            time.had += (had * 1e8) as u64;
            time.wanted += (wanted * 1e8) as u64;
            let idle = f64::from(nth) * n_idle * 1e8;
            sampler.adapt(&spread, time, Some(idle as u64), beside, now);
            spread.n_in_use()
        };
        (0..n_samples).map(sample).collect()
    }

    #[test]
    fn help_comes_after_a_while_and_stays_if_it_gets_processor_time() {
        // The threads can use up to four processors.
        let use_up = |_, n: usize| (n.min(4) as f64, n.min(4) as f64);
        let used = in_use(8, 18, use_up);
        assert_eq!(used, [1, 1, 2, 2, 2, 2, 2, 4, 4, 4, 4, 4, 7, 7, 7, 4, 4, 4]);
        let short = |nth, _| if nth == 0 || nth == 2 || nth == 3 { (1.0, 1.0) } else { (0.0, 0.0) };
        assert_eq!(in_use(2, 6, short), [1; 6]);
        let then_nothing = |nth, n: usize| if nth < 9 { (n as f64, n as f64) } else { (0.0, 0.0) };
        assert_eq!(in_use(2, 13, then_nothing), [1, 1, 2, 2, 2, 2, 2, 2, 2, 2, 2, 1, 1]);
    }

    #[test]
    fn help_goes_where_the_threads_only_wait_for_each_other() {
        // There is one processor, and there are two threads.
        let one = |_, n: usize| (1.0, n as f64);
        let used = in_use(2, 100, one);
        assert_eq!(used[..7], [1, 1, 2, 2, 2, 1, 1]);
        let n_trials = used.windows(2).filter(|pair| pair[0] < pair[1]).count();
        assert_eq!(n_trials, 4, "they become rare: {used:?}");
    }

    #[test]
    fn help_comes_rarely_where_other_programs_use_all_processors() {
        let grows = |used: &[usize]| used.windows(2).filter(|pair| pair[0] < pair[1]).count();
        // Help would be useless, and is not tried soon.
        let used = in_use_beside(2, 250, (0.1, false), |_, n| (1.0, n as f64));
        assert_eq!(used[..99], [1; 99]);
        assert_eq!(grows(&used), 2, "{used:?}");
        // It takes as much as it can from the others, and stays.
        let used = in_use_beside(2, 250, (0.0, false), |_, n| (if n == 2 { 1.3 } else { 1.0 }, n as f64));
        assert_eq!((grows(&used), used[249]), (1, 2), "{used:?}");
    }

    #[test]
    fn help_comes_beside_a_snapshot_only_where_there_is_room_for_both() {
        let use_up = |_, n: usize| (n as f64, n as f64);
        for n_idle in [0.0, 1.0] {
            assert_eq!(in_use_beside(2, 250, (n_idle, true), use_up), [1; 250], "{n_idle} idle");
        }
        assert_eq!(in_use_beside(2, 4, (1.5, true), use_up), [1, 1, 2, 2]);
    }

    #[test]
    fn idle_time_of_the_machine_is_read_in_nanoseconds() {
        assert_eq!(idle_time_in("84723.24 81264.50\n"), Some(81_264_500_000_000));
        assert_eq!(idle_time_in("84723.24"), None);
        assert_eq!(idle_time_in("84723.24 x"), None);
    }

    #[test]
    fn the_time_of_this_thread_goes_on() {
        let Some(begin) = time_of_this_thread() else { return };
        assert!(begin.wanted >= begin.had);
        while time_of_this_thread().expect("the system told before").had == begin.had {}
    }
}
