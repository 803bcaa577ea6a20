//! The logs of slow commands and of large requests and replies: SLOWLOG and COMMANDLOG.
//!
//! Each thread has a ring for each log. Its lock is taken only to add an entry and to read, so commands that
//! are not logged take no lock. Entries are numbered across threads without gaps. So the newest `n` entries
//! are those with the last `n` numbers, in whichever rings they are.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use crossbeam_utils::CachePadded;

use crate::config::Config;

/// The threshold below which each command is timed alone.
///
/// Commands that run a batch at a time may reach it.
const TIMED_ALONE_BELOW: Duration = Duration::from_millis(5);

/// One of the three logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogOf {
    /// Commands that took long, in microseconds.
    Slow,
    /// Commands with large requests, in bytes.
    LargeRequests,
    /// Commands with large replies, in bytes.
    LargeReplies,
}

/// A logged command.
#[derive(Debug)]
pub struct CommandLogEntry {
    /// The entry's number.
    pub id: u64,
    /// The contents of the entry.
    pub what: Noted,
}

/// The contents of an entry.
#[derive(Debug)]
pub struct Noted {
    /// The end of the command, in seconds of Unix time.
    pub unix_seconds: u64,
    /// The duration in microseconds, or the number of bytes.
    pub amount: u64,
    /// The command, as it is shown.
    pub words: Vec<Box<[u8]>>,
    /// The client's address.
    pub peer: String,
    /// The client's name.
    pub name: String,
}

/// The logs.
#[derive(Debug)]
pub struct CommandLog([EntryRings; 3]);

/// One thread's part of a log, the oldest entry first.
type Ring = VecDeque<Arc<CommandLogEntry>>;

#[derive(Debug)]
struct EntryRings {
    next_id: AtomicU64,
    /// The number of the first kept entry. Earlier ones are gone, even if a ring still has them.
    first_kept: AtomicU64,
    rings: Box<[CachePadded<Mutex<Ring>>]>,
}

impl CommandLog {
    /// Creates empty logs of `n_threads` threads.
    pub fn new(n_threads: usize) -> Self {
        let log = || EntryRings {
            next_id: AtomicU64::new(0),
            first_kept: AtomicU64::new(0),
            rings: (0..n_threads).map(|_| CachePadded::default()).collect(),
        };
        Self([log(), log(), log()])
    }

    /// Adds the newest entry of all threads, and removes entries beyond the length.
    pub fn add(&self, log: LogOf, thread: usize, max_len: usize, what: Noted) {
        let log = self.log(log);
        let mut ring = lock(&log.rings[thread]);
        let id = log.next_id.fetch_add(1, Ordering::Relaxed);
        ring.push_back(Arc::new(CommandLogEntry { id, what }));
        log.first_kept.fetch_max((id + 1).saturating_sub(max_len as u64), Ordering::Relaxed);
        log.drop_old(&mut ring);
    }

    /// The newest entries, newest first.
    pub fn newest(&self, log: LogOf, count: usize) -> Vec<Arc<CommandLogEntry>> {
        let log = self.log(log);
        let mut entries = Vec::new();
        for ring in &log.rings {
            let mut ring = lock(ring);
            log.drop_old(&mut ring);
            entries.extend(ring.iter().cloned());
        }
        // A thread may have added one while other rings were read.
        let first_kept = log.first_kept.load(Ordering::Relaxed);
        entries.retain(|entry| entry.id >= first_kept);
        entries.sort_unstable_by_key(|entry| std::cmp::Reverse(entry.id));
        entries.truncate(count);
        entries
    }

    /// The number of entries.
    pub fn len(&self, log: LogOf) -> usize {
        self.newest(log, usize::MAX).len()
    }

    /// Forgets all entries.
    pub fn reset(&self, log: LogOf) {
        let log = self.log(log);
        log.first_kept.fetch_max(log.next_id.load(Ordering::Relaxed), Ordering::Relaxed);
        log.rings.iter().for_each(|ring| log.drop_old(&mut lock(ring)));
    }

    fn log(&self, log: LogOf) -> &EntryRings {
        &self.0[log as usize]
    }
}

impl EntryRings {
    fn drop_old(&self, ring: &mut Ring) {
        let first_kept = self.first_kept.load(Ordering::Relaxed);
        while ring.front().is_some_and(|entry| entry.id < first_kept) {
            ring.pop_front();
        }
    }
}

fn lock(ring: &Mutex<Ring>) -> MutexGuard<'_, Ring> {
    ring.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// The configured thresholds of slow and large commands. Each thread has its own copy, which changes with
/// CONFIG SET.
#[derive(Debug)]
pub struct Thresholds {
    /// The shortest time that is logged as slow, in nanoseconds; `u64::MAX` for none.
    pub slow_nanos: AtomicU64,
    /// The shortest time that the latency monitor records.
    pub latency_nanos: AtomicU64,
    /// The shortest time that is recorded for commands that are timed together. It is `u64::MAX` if each is
    /// timed alone.
    pub together_nanos: AtomicU64,
    /// Whether each command is timed alone.
    pub times_each: AtomicBool,
    /// The total bytes of request and reply from which one of them can be large.
    pub either_bytes: AtomicUsize,
    /// The size of the smallest request that is logged, in bytes.
    pub request_bytes: AtomicUsize,
    /// The size of the smallest reply that is logged, in bytes.
    pub reply_bytes: AtomicUsize,
}

impl Default for Thresholds {
    fn default() -> Self {
        Self {
            slow_nanos: AtomicU64::new(u64::MAX),
            latency_nanos: AtomicU64::new(u64::MAX),
            together_nanos: AtomicU64::new(u64::MAX),
            times_each: AtomicBool::new(false),
            either_bytes: AtomicUsize::new(usize::MAX),
            request_bytes: AtomicUsize::new(usize::MAX),
            reply_bytes: AtomicUsize::new(usize::MAX),
        }
    }
}

impl Thresholds {
    /// Applies the configuration.
    pub fn configure(&self, config: &Config) {
        let nanos = |time: Option<Duration>| {
            time.map_or(u64::MAX, |time| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
        };
        // A log without room accepts no entry.
        let slow = nanos(config.slowlog_log_slower_than.filter(|_| config.slowlog_max_len > 0));
        let latency = nanos(config.latency_monitor_threshold);
        let times_each = times_each(config);
        let together = if times_each { u64::MAX } else { slow.min(latency) };
        let request = config.commandlog_request_larger_than;
        let request = request.filter(|_| config.commandlog_large_request_max_len > 0);
        let reply = config.commandlog_reply_larger_than;
        let reply = reply.filter(|_| config.commandlog_large_reply_max_len > 0);
        self.slow_nanos.store(slow, Ordering::Relaxed);
        self.latency_nanos.store(latency, Ordering::Relaxed);
        self.together_nanos.store(together, Ordering::Relaxed);
        self.times_each.store(times_each, Ordering::Relaxed);
        let (request, reply) = (request.unwrap_or(usize::MAX), reply.unwrap_or(usize::MAX));
        self.either_bytes.store(request.min(reply), Ordering::Relaxed);
        self.request_bytes.store(request, Ordering::Relaxed);
        self.reply_bytes.store(reply, Ordering::Relaxed);
    }
}

/// Whether a configuration requires each command's own time.
pub fn times_each(config: &Config) -> bool {
    let slow = config.slowlog_log_slower_than.filter(|_| config.slowlog_max_len > 0);
    [slow, config.latency_monitor_threshold].into_iter().flatten().any(|time| time < TIMED_ALONE_BELOW)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noted(amount: u64) -> Noted {
        Noted { unix_seconds: 0, amount, words: Vec::new(), peer: String::new(), name: String::new() }
    }

    fn amounts(log: &CommandLog, count: usize) -> Vec<u64> {
        log.newest(LogOf::Slow, count).iter().map(|entry| entry.what.amount).collect()
    }

    #[test]
    fn the_newest_of_all_threads_are_kept() {
        let log = CommandLog::new(3);
        for amount in 0..10 {
            log.add(LogOf::Slow, amount as usize % 3, 4, noted(amount));
        }
        assert_eq!(amounts(&log, usize::MAX), [9, 8, 7, 6]);
        assert_eq!(amounts(&log, 2), [9, 8]);
        assert_eq!((log.len(LogOf::Slow), log.len(LogOf::LargeReplies)), (4, 0));
        // A longer log brings nothing back, and a shorter one is cut with the next entry.
        log.add(LogOf::Slow, 0, 10, noted(10));
        assert_eq!(log.len(LogOf::Slow), 5);
        log.add(LogOf::Slow, 0, 2, noted(11));
        assert_eq!(amounts(&log, usize::MAX), [11, 10]);
    }

    #[test]
    fn a_reset_forgets_entries_and_keeps_numbers() {
        let log = CommandLog::new(2);
        (0..2).for_each(|thread| log.add(LogOf::Slow, thread, 8, noted(0)));
        log.reset(LogOf::Slow);
        assert_eq!(log.len(LogOf::Slow), 0);
        log.add(LogOf::Slow, 1, 8, noted(1));
        assert_eq!(log.newest(LogOf::Slow, 1)[0].id, 2);
    }
}
