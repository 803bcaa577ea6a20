//! The threads' statistics, which INFO adds up.

use std::{
    collections::VecDeque,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
};

use arc_swap::ArcSwap;
use crossbeam_utils::CachePadded;

use crate::{
    catalog::CommandId,
    config::Config,
    telemetry::{command_log::Thresholds, latency::LatencyHistogram, splits::Splits},
};

/// The number of different first words of error replies that a thread counts.
const ERROR_CODES_MAX: usize = 128;

/// A number that one thread counts and others read.
#[derive(Debug, Default)]
pub struct Count(AtomicU64);

impl Count {
    /// Adds. Only the owning thread may: there is no read-modify-write, so two threads would lose counts.
    #[inline(always)]
    pub fn add(&self, n: u64) {
        self.0.store(self.0.load(Ordering::Relaxed) + n, Ordering::Relaxed);
    }

    /// Subtracts from the count.
    #[inline(always)]
    pub fn sub(&self, n: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_sub(n), Ordering::Relaxed);
    }

    /// Raises the count to `n`, if it is less.
    pub fn raise_to(&self, n: u64) {
        if self.get() < n {
            self.0.store(n, Ordering::Relaxed);
        }
    }

    /// The count.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Starts over.
    pub fn reset(&self) {
        self.0.store(0, Ordering::Relaxed);
    }
}

/// The number of calls of a command, and their results.
#[derive(Debug, Default)]
pub struct CommandCounts {
    /// The number of runs.
    pub calls: Count,
    /// Nanoseconds: see [`ThreadStats::took`].
    pub nanos: Count,
    /// The number of refusals before a run.
    pub rejected: Count,
    /// The number of runs that ended in an error.
    pub failed: Count,
}

/// The statistics of one thread, on cache lines of its own.
#[derive(Debug, Default)]
pub struct ThreadStats {
    /// The commands' counts, by command number.
    pub commands: Box<[CommandCounts]>,
    /// The commands' latencies on this thread, by command number.
    pub latencies: Box<[OnceLock<LatencyHistogram>]>,
    /// Whether latencies are recorded (`latency-tracking`). Each thread has its own copy, which changes with
    /// CONFIG SET.
    pub tracks_latency: AtomicBool,
    /// The division of the commands' time.
    pub splits: Splits,
    /// Whether it is recorded (`latency-split`). This is a copy, too.
    pub splits_latency: AtomicBool,
    /// The thresholds of slow and large commands. These are copies, too.
    pub thresholds: Thresholds,
    /// The maximum of bytes that the thread's scripts, or its functions, may have in Lua.
    pub lua_memory_limit: AtomicUsize,
    /// The bytes of waiting replies above which a client is closed (`client-output-buffer-limit`). This is a
    /// copy, too.
    pub output_limit: AtomicUsize,
    /// The number of commands that the slow log has taken.
    pub slow_commands: Count,
    /// Their microseconds in all.
    pub slow_micros: Count,
    /// The microseconds of the longest.
    pub slow_micros_max: Count,
    /// The number of connections that became clients.
    pub connections: Count,
    /// The number of connections refused because of `maxclients`.
    pub refused: Count,
    /// The number of bytes read.
    pub bytes_in: Count,
    /// The number of bytes written.
    pub bytes_out: Count,
    /// The number of bytes written to replicas, which are not in `bytes_out`.
    pub replica_bytes_out: Count,
    /// The number of reads.
    pub reads: Count,
    /// The number of writes.
    pub writes: Count,
    /// The number of looked-up keys that were found.
    pub hits: Count,
    /// The number of looked-up keys that were not found.
    pub misses: Count,
    /// The number of changes to keys: Redis's `dirty`. It is never reset.
    pub changes: Count,
    /// The number of evicted keys.
    pub evicted: Count,
    /// The number of clients closed because all together used too much memory.
    pub evicted_clients: Count,
    /// The number of error replies.
    pub errors: Count,
    /// The number of commands that found their shard held and waited.
    pub delegated: Count,
    /// The number of commands that were kept until the end of a pause.
    pub postponed: Count,
    /// The number of offloaded commands with pinned values that wait for their work. It is as of the thread's
    /// last check.
    pub offloaded_waiting: AtomicU64,
    /// The number of commands expected to be long that ran on threads without sockets.
    pub offloaded: Count,
    /// The number of connections handed over to another thread.
    pub handed_over: Count,
    /// The number of TLS handshakes that succeeded.
    pub handshakes: Count,
    /// The number of TLS handshakes that failed.
    pub failed_handshakes: Count,
    /// The number of wrong passwords.
    pub failed_auths: Count,
    /// The number of commands that their users may not run.
    pub denied_commands: Count,
    /// The number of commands on keys that their users may not use.
    pub denied_keys: Count,
    /// Commands that were refused because of a database.
    pub denied_databases: Count,
    /// The number of commands on channels that their users may not use.
    pub denied_channels: Count,
    /// The number of certificates that name no enabled user.
    pub denied_certificates: Count,
    /// The number of turns of its event loop.
    pub turns: Count,
    /// The time with work in its event loop, in nanoseconds, as of its last cron. Waiting for a processor
    /// counts.
    pub busy_nanos: Count,
    /// The time for which it has searched expired keys, in nanoseconds.
    pub expiry_nanos: Count,
    /// How often it has stopped before it had searched everything.
    pub expiry_caps: Count,
    /// The expired part of recently visited keys with a deadline, in millionths.
    pub stale_millionths: AtomicU64,
    /// The number of clients closed because of `client-query-buffer-limit`.
    pub input_limit_closes: Count,
    /// The number of clients closed because of `client-output-buffer-limit`.
    pub output_limit_closes: Count,
    /// Error replies by their first word. The list is replaced when a word is new. Only the owning thread
    /// does that.
    pub by_error: ArcSwap<Vec<(Box<str>, Arc<Count>)>>,
}

impl ThreadStats {
    /// Creates empty statistics for `n_commands` commands.
    pub fn new(n_commands: usize) -> Self {
        Self {
            commands: (0..n_commands).map(|_| CommandCounts::default()).collect(),
            latencies: (0..n_commands).map(|_| OnceLock::new()).collect(),
            output_limit: AtomicUsize::new(usize::MAX),
            ..Self::default()
        }
    }

    /// Applies the settings of which each thread has a copy.
    pub fn configure(&self, config: &Config) {
        self.tracks_latency.store(config.latency_tracking, Ordering::Relaxed);
        let limit = config.client_output_buffer_limit.normal.hard();
        self.output_limit.store(limit as usize, Ordering::Relaxed);
        if !self.splits_latency.swap(config.latency_split, Ordering::Relaxed) {
            // Recording begins now, or there are no records.
            self.splits.reset();
        }
        self.thresholds.configure(config);
        self.lua_memory_limit.store(config.lua_memory_limit, Ordering::Relaxed);
    }

    /// Counts a command that has run, and that its reply is an error.
    #[inline(always)]
    pub fn ran(&self, command: CommandId, has_failed: bool) {
        let counts = &self.commands[command.index()];
        counts.calls.add(1);
        if has_failed {
            counts.failed.add(1);
        }
    }

    /// Takes back the count of a command that ran in vain and runs again.
    pub fn ran_in_vain(&self, command: CommandId) {
        self.commands[command.index()].calls.sub(1);
    }

    /// Records that a command ran `n` times, for `nanos` each time.
    ///
    /// Commands that run where they were read are measured a batch at a time, and share its time evenly.
    #[inline]
    pub fn took(&self, command: CommandId, nanos: u64, n: u64) {
        self.commands[command.index()].nanos.add(nanos * n);
        if self.tracks_latency.load(Ordering::Relaxed) {
            self.latencies[command.index()].get_or_init(LatencyHistogram::default).record(nanos, n);
        }
    }

    /// Counts an error reply by the first word of its text.
    #[cold]
    pub fn error(&self, text: &str) {
        self.errors.add(1);
        let code = text.split(' ').next().unwrap_or_default();
        let by_error = self.by_error.load();
        match by_error.iter().find(|(known, _)| **known == *code) {
            Some((_, count)) => count.add(1),
            // Scripts may invent codes, and an exporter must not be flooded with them.
            None if by_error.len() < ERROR_CODES_MAX => {
                let mut more: Vec<_> = Vec::clone(&by_error);
                let count = Arc::new(Count::default());
                count.add(1);
                more.push((code.into(), count));
                self.by_error.store(Arc::new(more));
            }
            None => {}
        }
    }

    /// CONFIG RESETSTAT.
    pub fn reset(&self) {
        for command in &self.commands {
            command.calls.reset();
            command.nanos.reset();
            command.rejected.reset();
            command.failed.reset();
        }
        self.latencies.iter().filter_map(OnceLock::get).for_each(LatencyHistogram::reset);
        self.splits.reset();
        for count in [
            &self.slow_commands,
            &self.slow_micros,
            &self.slow_micros_max,
            &self.connections,
            &self.refused,
            &self.bytes_in,
            &self.bytes_out,
            &self.replica_bytes_out,
            &self.reads,
            &self.writes,
            &self.hits,
            &self.misses,
            &self.evicted,
            &self.evicted_clients,
            &self.errors,
            &self.delegated,
            &self.postponed,
            &self.offloaded,
            &self.handed_over,
            &self.handshakes,
            &self.failed_handshakes,
            &self.failed_auths,
            &self.denied_commands,
            &self.denied_keys,
            &self.denied_databases,
            &self.denied_channels,
            &self.denied_certificates,
            &self.turns,
            &self.busy_nanos,
            &self.expiry_nanos,
            &self.expiry_caps,
            &self.input_limit_closes,
            &self.output_limit_closes,
        ] {
            count.reset();
        }
        self.by_error.load().iter().for_each(|(_, count)| count.reset());
    }
}

/// Rates per second, averaged over the last samples.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rates {
    /// The number of commands.
    pub commands: u64,
    /// The number of bytes read.
    pub bytes_in: u64,
    /// The number of bytes written.
    pub bytes_out: u64,
    /// The number of bytes that came from the primary.
    pub replica_bytes_in: u64,
    /// The number of bytes written to replicas and to the primary.
    pub replica_bytes_out: u64,
    /// The number of turns of event loops.
    pub turns: u64,
    /// The time for which those had work, in nanoseconds.
    pub busy_nanos: u64,
}

/// Turns periodically sampled totals into rates.
#[derive(Debug, Default)]
pub struct RateSampler {
    /// The times in milliseconds, and the totals at those times, oldest first.
    samples: VecDeque<(u64, Rates)>,
}

impl RateSampler {
    /// The number of samples in the average, as in Redis.
    const N_SAMPLES: usize = 16;

    /// Records the totals at a time.
    pub fn note(&mut self, now_millis: u64, totals: Rates) {
        // Totals that have shrunk were reset.
        if self.samples.back().is_some_and(|(_, last)| last.commands > totals.commands) {
            self.samples.clear();
        }
        if self.samples.len() > Self::N_SAMPLES {
            self.samples.pop_front();
        }
        self.samples.push_back((now_millis, totals));
    }

    /// The rates between the oldest sample and the newest.
    pub fn rates(&self) -> Rates {
        let (Some((from, old)), Some((to, new))) = (self.samples.front(), self.samples.back()) else {
            return Rates::default();
        };
        let a_second = |old: u64, new: u64| new.saturating_sub(old) * 1000 / (to - from).max(1);
        Rates {
            commands: a_second(old.commands, new.commands),
            bytes_in: a_second(old.bytes_in, new.bytes_in),
            bytes_out: a_second(old.bytes_out, new.bytes_out),
            replica_bytes_in: a_second(old.replica_bytes_in, new.replica_bytes_in),
            replica_bytes_out: a_second(old.replica_bytes_out, new.replica_bytes_out),
            turns: a_second(old.turns, new.turns),
            busy_nanos: a_second(old.busy_nanos, new.busy_nanos),
        }
    }
}

/// A thread's statistics on cache lines of their own.
pub type PaddedStats = CachePadded<ThreadStats>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_averages_over_the_last_samples() {
        let mut sampler = RateSampler::default();
        assert_eq!(sampler.rates(), Rates::default());
        for second in 0..100 {
            let totals = Rates { commands: second * second, bytes_in: second * 7, ..Rates::default() };
            sampler.note(second * 1000, totals);
        }
        // From 83² to 99² in 16 seconds.
        let expected = Rates { commands: (99 * 99 - 83 * 83) / 16, bytes_in: 7, ..Rates::default() };
        assert_eq!(sampler.rates(), expected);
        sampler.note(100_000, Rates::default());
        assert_eq!(sampler.rates(), Rates::default());
    }
}
