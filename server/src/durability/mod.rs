//! The records of units and their consumers: the AOF, and the log that DEBUG keeps.

pub mod aof_host;
pub mod last_writes;
pub mod record_log;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use braid_journal::{
    aof_file::{AofFile, SyncPolicy},
    disk::Folder,
    faults::{Faults, Faulty, LogFolder},
    history::ReplicationId,
    intake::{Kind, Ticket, Writer},
    store::Aof,
};
use crossbeam_utils::sync::Unparker;

use self::{aof_host::AofHost, last_writes::LastWrites, record_log::RecordLog};
use crate::{
    config::{AppendFsync, Config},
    telemetry::latency_monitor::LatencyMonitor,
};

/// Stands for a ticket where a connection waits for room: its next command is long, and [too
/// much](Durability::is_full) is unwritten.
pub const ROOM: Ticket = Ticket::MAX;

/// The unwritten bytes from which on replies wait although a sync is in progress: this many, or under
/// `maxmemory` this part of it, within limits.
const BEHIND_MAX: usize = 64 << 20;
const BEHIND_LEAST: usize = 1 << 20;
const BEHIND_PART: u64 = 8;

/// The records of units and their consumers.
///
/// Recording begins and ends with all shards held. So a unit that holds any shard is recorded from its
/// beginning to its end, or not at all.
pub struct Durability {
    is_recording: AtomicBool,
    /// Whether records are kept for replicas.
    is_followed: AtomicBool,
    /// The change stream and its file.
    pub aof: AofFile<LogFolder, AofHost>,
    /// The units that DEBUG LOGGED shows.
    pub record_log: RecordLog,
    /// The last changes of keys.
    pub last_writes: LastWrites,
    /// The bytes that long commands in progress may add.
    promised_bytes: AtomicUsize,
}

impl Durability {
    /// No recording yet, for `n_threads` threads. `syncer` is the thread that syncs the file.
    pub fn new(n_threads: usize, syncer: Unparker, latency_monitor: Arc<LatencyMonitor>) -> Self {
        Self {
            is_recording: AtomicBool::new(false),
            is_followed: AtomicBool::new(false),
            aof: AofFile::new(n_threads, AofHost::new(syncer, latency_monitor)),
            record_log: RecordLog::default(),
            last_writes: LastWrites::default(),
            promised_bytes: AtomicUsize::new(0),
        }
    }

    /// Whether changes are recorded.
    #[inline]
    pub fn is_recording(&self) -> bool {
        self.is_recording.load(Ordering::Relaxed)
    }

    /// Applies the configuration.
    pub fn configure(&self, config: &Config) {
        self.aof.set_policy(match config.appendfsync {
            AppendFsync::Always => SyncPolicy::Always,
            AppendFsync::Everysec => SyncPolicy::EverySecond,
            AppendFsync::No => SyncPolicy::Never,
        });
        self.aof.keep_history(config.aof_disable_auto_gc);
        self.aof.log_time(config.aof_timestamp_enabled);
        self.aof.set_behind_max(config.maxmemory.map_or(BEHIND_MAX, |maxmemory| {
            let part = usize::try_from(maxmemory / BEHIND_PART).unwrap_or(usize::MAX);
            part.clamp(BEHIND_LEAST, BEHIND_MAX)
        }));
        self.aof.host().configure(config);
        self.wake_syncer();
    }

    /// Keeps records for DEBUG LOGGED, or ends that. All shards are held, and have begun or ceased to record.
    pub fn keep_records(&self, keeps: bool) {
        self.record_log.turn(keeps);
        self.is_recording.store(keeps || self.fills_stream(), Ordering::Relaxed);
    }

    /// Whether units add their records to the change stream: the AOF or replicas get them.
    #[inline]
    pub fn fills_stream(&self) -> bool {
        self.aof.is_writing() || self.is_followed()
    }

    /// Whether records are kept for replicas.
    #[inline]
    pub fn is_followed(&self) -> bool {
        self.is_followed.load(Ordering::Relaxed)
    }

    /// Begins to keep records for replicas. All shards are held, and have begun to record.
    pub fn begin_following(&self) {
        self.is_followed.store(true, Ordering::Relaxed);
        self.is_recording.store(true, Ordering::Relaxed);
    }

    /// Keeps no records for replicas any more. All shards are held. Returns whether units are recorded all
    /// the same.
    pub fn end_following(&self) -> bool {
        let keeps = self.record_log.is_on() || self.aof.is_writing();
        self.is_followed.store(false, Ordering::Relaxed);
        self.is_recording.store(keeps, Ordering::Relaxed);
        keeps
    }

    /// Opens a file whose parts have `n_bytes`. All shards are held, and have begun to record. See
    /// [`AofFile::begin`].
    pub fn begin(
        &self,
        aof: Aof<LogFolder>,
        n_bytes: u64,
        history: Option<ReplicationId>,
        writer: &mut Writer,
    ) {
        self.aof.begin(aof, n_bytes, history, writer);
        self.has_begun();
    }

    /// Opens a file that has no base yet. See [`AofFile::begin_aside`].
    pub fn begin_aside(&self, aof: Aof<LogFolder>, history: Option<ReplicationId>, writer: &mut Writer) {
        self.aof.begin_aside(aof, history, writer);
        self.has_begun();
    }

    fn has_begun(&self) {
        self.is_recording.store(true, Ordering::Relaxed);
        // From the first change on: until the table knows the changed keys, all reads wait.
        self.note_writes();
        self.wake_syncer();
    }

    /// Ends the recording for the file. All shards are held. After that the file must be
    /// [closed](AofFile::close). Returns whether units are recorded all the same.
    pub fn end(&self) -> bool {
        let keeps = self.record_log.is_on() || self.is_followed();
        self.aof.end();
        self.is_recording.store(keeps, Ordering::Relaxed);
        keeps
    }

    /// Notes that a snapshot begins. Until its end nothing is synced if `skips_syncs`.
    pub fn begin_snapshot(&self, skips_syncs: bool) {
        self.aof.host().set_beside_snapshot(true);
        self.aof.skip_syncs(skips_syncs);
        self.wake_syncer();
    }

    /// Notes that a snapshot has ended. Everything written is synced.
    pub fn end_snapshot(&self) {
        self.aof.host().set_beside_snapshot(false);
        self.aof.skip_syncs(false);
        self.wake_syncer();
    }

    /// A folder for the AOF.
    pub fn folder(&self, folder: Folder) -> LogFolder {
        Faulty::new(folder, &self.aof.host().faults)
    }

    /// The faults of the disk that tests plan.
    pub fn faults(&self) -> &Faults {
        &self.aof.host().faults
    }

    /// Makes each write take longer, for tests.
    pub fn delay_writes(&self, time: Duration) {
        self.aof.host().delay_writes(time);
    }

    /// Adds a record to a thread's batch and returns its ticket. The shards that it is about are held.
    pub fn add(&self, writer: &mut Writer, build: impl FnOnce(&mut Vec<u8>) -> Kind) -> Ticket {
        self.aof.stream().add(writer, build)
    }

    /// Cuts the stream for a snapshot that begins now. All shards are held.
    pub fn add_cut(&self, writer: &mut Writer) {
        self.aof.stream().add_cut(writer);
    }

    /// Marks the place in the stream where replicas begin that get a snapshot of this moment. All shards are
    /// held. Returns the mark's ticket.
    pub fn add_mark(&self, writer: &mut Writer) -> Ticket {
        self.aof.stream().add_mark(writer)
    }

    /// Hands a thread's batch over to the merger. A thread must [advance](AofFile::advance) the file after
    /// that.
    pub fn publish(&self, writer: &mut Writer) {
        self.aof.stream().publish(writer);
    }

    /// The last ticket that was taken.
    pub fn last_ticket(&self) -> Ticket {
        self.aof.stream().intake().last_ticket()
    }

    /// Wakes the thread that syncs the file.
    pub fn wake_syncer(&self) {
        self.aof.host().syncer.unpark();
    }

    /// Whether so much waits to be written, or is about to, that no long command may begin.
    ///
    /// A single one adds more than all short commands do. While the disk refuses writes, this is false:
    /// commands then end with their error.
    pub fn is_full(&self) -> bool {
        let n_bytes = self.aof.unwritten_bytes() + self.promised_bytes.load(Ordering::Relaxed);
        self.aof.is_writing() && n_bytes >= self.aof.behind_max() && !self.aof.has_failed()
    }

    /// Notes that a long command begins that may add `n_bytes`.
    pub fn promise(&self, n_bytes: usize) {
        self.promised_bytes.fetch_add(n_bytes, Ordering::Relaxed);
    }

    /// Notes that it has ended.
    pub fn redeem(&self, n_bytes: usize) {
        self.promised_bytes.fetch_sub(n_bytes, Ordering::Relaxed);
    }

    /// Whether the wait for a ticket, or for [`ROOM`], is over. `reached` is the present answer of
    /// [`AofFile::reached`].
    pub fn is_over(&self, ticket: Ticket, reached: Ticket) -> bool {
        if ticket == ROOM { !self.is_full() } else { ticket <= reached }
    }

    /// Whether changed keys must be noted.
    fn wants_last_writes(&self) -> bool {
        self.aof.is_writing() && self.aof.is_always()
    }

    /// Whether changed keys are noted needlessly, or are not noted and must be.
    pub fn notes_writes_wrongly(&self) -> bool {
        self.last_writes.is_on() != self.wants_last_writes()
    }

    /// Begins or ends the noting of changed keys, as needed. All shards are held.
    pub fn note_writes(&self) {
        self.last_writes.turn(self.wants_last_writes(), self.last_ticket());
    }
}
