//! The state that the figures of one report are read from.

use std::{
    cell::OnceCell,
    collections::HashSet,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use arc_swap::Guard;
use braid_journal::{aof_file::AofFile, faults::LogFolder};
use nix::sys::resource::UsageWho;

use super::{memory_figures::MemoryFigures, metric::Figure};
use crate::{
    client::{footprint::Part, node::Parked, record::ClientRecord},
    clock::processor_micros,
    config::Config,
    durability::aof_host::AofHost,
    shared::{loading::LoadingProgress, server::Server},
    telemetry::stats::Rates,
};

/// The state that one report reads once, so that its figures agree.
///
/// Parts that cost something are read when a row first needs them.
pub struct Readings<'s> {
    /// The server.
    pub server: &'s Server,
    /// The configuration.
    pub config: Guard<Arc<Config>>,
    /// The time in microseconds of Unix time.
    pub unix_micros: u64,
    /// The time for which the server has run.
    pub uptime: Duration,
    clients: OnceCell<Vec<Arc<ClientRecord>>>,
    waits: OnceCell<Vec<Arc<Parked>>>,
    memory: OnceCell<MemoryFigures>,
    loading: OnceCell<Option<LoadingProgress>>,
    saving: OnceCell<Saving>,
    rates: OnceCell<Rates>,
    exceeded: OnceCell<[Duration; 2]>,
    processor: OnceCell<Processor>,
}

impl<'s> Readings<'s> {
    /// Begins a report.
    pub fn new(server: &'s Server) -> Self {
        Self {
            server,
            config: server.config.load(),
            unix_micros: server.clock.unix_micros(),
            uptime: server.uptime(),
            clients: OnceCell::new(),
            waits: OnceCell::new(),
            memory: OnceCell::new(),
            loading: OnceCell::new(),
            saving: OnceCell::new(),
            rates: OnceCell::new(),
            exceeded: OnceCell::new(),
            processor: OnceCell::new(),
        }
    }

    /// A setting as CONFIG GET prints it.
    pub(super) fn setting(&self, name: &str) -> String {
        let is = |pattern: &[u8], text: &[u8]| pattern == text;
        let found = self.config.get(&[name.as_bytes()], is);
        found.first().map(|(_, value)| String::from_utf8_lossy(value).into_owned()).unwrap_or_default()
    }

    fn clients(&self) -> &[Arc<ClientRecord>] {
        self.clients.get_or_init(|| self.server.clients.all())
    }

    /// The number of clients that are meant.
    pub(super) fn n_clients(&self, is_meant: impl Fn(&ClientRecord) -> bool) -> usize {
        self.clients().iter().filter(|client| is_meant(client)).count()
    }

    /// The maximum of a part of the clients' memory.
    pub(super) fn most_of_a_client(&self, part: Part) -> u64 {
        self.clients().iter().map(|client| client.footprint.of(part)).max().unwrap_or_default()
    }

    /// The waits of blocked clients.
    fn waits(&self) -> impl Iterator<Item = &Arc<Parked>> {
        let loaded = || self.clients().iter().filter_map(|client| client.waiting.load_full()).collect();
        let waits = self.waits.get_or_init(loaded).iter();
        waits.filter(|wait| wait.is_visible() && !wait.is_claimed())
    }

    /// The number of clients that wait for keys up to a timeout.
    pub(super) fn n_with_timeout(&self) -> usize {
        self.waits().filter(|wait| wait.wait.deadline.is_some()).count()
    }

    /// The number of keys for which blocked clients wait, counting only waits that are meant.
    pub(super) fn n_awaited(&self, is_meant: impl Fn(&Parked) -> bool) -> usize {
        let waits = self.waits().filter(|wait| is_meant(wait));
        waits.flat_map(|wait| wait.keys()).map(|key| (key.db, &key.bytes)).collect::<HashSet<_>>().len()
    }

    /// The use of memory.
    pub(super) fn memory(&self) -> &MemoryFigures {
        self.memory.get_or_init(|| MemoryFigures::read(self.server))
    }

    /// The progress of loading, while it is under way.
    pub(super) fn loading(&self) -> Option<&LoadingProgress> {
        self.loading.get_or_init(|| self.server.loading.progress(&self.server.clock)).as_ref()
    }

    /// The state of saving.
    pub(super) fn saving(&self) -> &Saving {
        self.saving.get_or_init(|| Saving::read(self.server, &self.config))
    }

    /// A figure of the AOF's file; absent without a file.
    pub(super) fn of_aof_file<T: Into<Figure>>(
        &self,
        figure: impl FnOnce(&AofFile<LogFolder, AofHost>) -> T,
    ) -> Figure {
        self.saving().has_aof_file.then(|| figure(&self.server.durability.aof)).into()
    }

    /// The recent rates.
    pub(super) fn rates(&self) -> Rates {
        *self.rates.get_or_init(|| self.server.rates())
    }

    /// For how long memory has been above its limit: now, and in all.
    pub(super) fn exceeded(&self) -> [Duration; 2] {
        *self.exceeded.get_or_init(|| self.server.memory.exceeded(self.server.started))
    }

    /// The processor time in use.
    pub(super) fn processor(&self) -> &Processor {
        self.processor.get_or_init(|| Processor {
            process: processor_micros(UsageWho::RUSAGE_SELF),
            children: processor_micros(UsageWho::RUSAGE_CHILDREN),
            first_thread: self.server.threads[0]
                .micros_by_mode
                .each_ref()
                .map(|micros| micros.load(Ordering::Relaxed)),
        })
    }
}

/// Processor time in user mode and in system mode, in microseconds.
pub(super) struct Processor {
    pub(super) process: [u64; 2],
    pub(super) children: [u64; 2],
    pub(super) first_thread: [u64; 2],
}

/// The state of snapshots and of the AOF's rewrites.
pub(super) struct Saving {
    /// Whether a snapshot is under way.
    pub(super) is_under_way: bool,
    /// Whether the AOF is being rewritten, or begins to be.
    pub(super) is_rewriting: bool,
    /// Whether the AOF will be rewritten after the current snapshot, or when it can be.
    pub(super) is_rewrite_scheduled: bool,
    has_aof_file: bool,
}

impl Saving {
    fn read(server: &Server, config: &Config) -> Self {
        let (saves, aof) = (&server.saves, &server.durability.aof);
        let is_under_way = saves.is_under_way.load(Ordering::Relaxed);
        // An AOF that was requested and is not written is about to begin, or has failed to.
        let is_missing = config.appendonly && !aof.is_writing() && !server.loading.is_on();
        let has_failed = saves.has_rewrite_failed.load(Ordering::Relaxed);
        // It begins in a moment, unless a snapshot comes first.
        let will_begin = is_missing && !has_failed;
        // Its first rewrite is tried again.
        let is_put_off = is_missing && has_failed;
        let is_scheduled = saves.is_rewrite_scheduled.load(Ordering::Relaxed) || will_begin;
        let begins = is_scheduled && !is_under_way;
        Self {
            is_under_way,
            is_rewriting: saves.is_rewriting.load(Ordering::Relaxed) || begins,
            is_rewrite_scheduled: is_scheduled && is_under_way || is_put_off,
            has_aof_file: aof.has_file(),
        }
    }

    /// A count of the current snapshot; 0 if there is none.
    pub(super) fn of_current(&self, count: &AtomicU64) -> u64 {
        if self.is_under_way { count.load(Ordering::Relaxed) } else { 0 }
    }
}

/// The seconds since a time in milliseconds of uptime, while work is under way; -1 otherwise.
pub(super) fn seconds_since(now: &Readings<'_>, is_under_way: bool, began_at: &AtomicU64) -> i64 {
    let began_at = began_at.load(Ordering::Relaxed);
    let so_far = now.server.clock.uptime_millis().saturating_sub(began_at) / 1000;
    if is_under_way { so_far as i64 } else { -1 }
}
