//! The log: whether changes are recorded, and what becomes of the records.
//!
//! ```text
//! unit     adds its record to its thread's batch and takes a ticket, under its holds
//! thread   publishes the batch at the end of its turn, and merges and writes what all have published, if nobody else does just then
//! log      a thread of its own syncs the file, and writes while I/O threads must not: under `appendfsync always`, and behind a sync
//! reply    leaves once its ticket is reached: it is written, or under `always` synced
//! ```

use std::{
    io,
    ops::ControlFlow,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering, fence},
        mpsc::{Receiver, SyncSender, sync_channel},
    },
    thread,
    time::{Duration, Instant},
};

use braid_journal::{
    baton::Baton,
    disk::{DiskFile, Folder},
    faults::{Faults, Faulty, LogFolder},
    intake::{Intake, Kind, Merged, Pen, Stream, Ticket, Writer},
    store::Aof,
};
use braid_protocol::request::write_words;
use braid_storage::{Db, record::Record};
use crossbeam_queue::SegQueue;
use crossbeam_utils::{CachePadded, sync::Unparker};

use crate::{
    clock::Clock,
    config::{AppendFsync, Config},
    durability::last_writes::LastWrites,
    notice,
    telemetry::latency_monitor::{
        AOF_FSYNC_ALWAYS, AOF_RENAME, AOF_WRITE, AOF_WRITE_ACTIVE_CHILD, AOF_WRITE_ALONE, LatencyMonitor,
        Sample,
    },
    warning,
};

/// A command as it was logged, with its database.
pub type LoggedCommand = (Db, Vec<Box<[u8]>>);

/// The log of what units have done.
///
/// It is turned on and off with all shards held, so a unit that holds any finds it on from its beginning to
/// its end, or off.
pub struct Journal {
    is_on: AtomicBool,
    /// Whether records are kept for DEBUG LOGGED.
    keeps: AtomicBool,
    /// The units that were kept.
    kept: SegQueue<Vec<LoggedCommand>>,
    /// Whether units write to an append-only file.
    is_writing: AtomicBool,
    /// See [`Journal::has_file`].
    has_file: AtomicBool,
    intake: Intake,
    /// See [`Journal::n_delayed`].
    n_delayed: AtomicU64,
    /// How much memory has what is merged and not written.
    merged_bytes: AtomicUsize,
    /// How many bytes long commands that are under way will add.
    promised_bytes: AtomicUsize,
    /// From how many bytes on that wait to be written replies wait, too.
    behind_max: AtomicUsize,
    /// The last ticket that is in the file, and the last that is on disk.
    written: CachePadded<AtomicU64>,
    synced: CachePadded<AtomicU64>,
    /// From which ticket on the thread that syncs is to be woken: it gathers.
    gathers_to: CachePadded<AtomicU64>,
    /// A sync is under way that I/O threads must not wait for.
    is_syncing: AtomicBool,
    /// `appendfsync`, where all threads look at it.
    fsync: AtomicU8,
    /// Nothing is synced meanwhile: a snapshot is written, and `no-appendfsync-on-rewrite` is set.
    skips_syncs: AtomicBool,
    /// What a rewrite has made superfluous stays (`aof-disable-auto-gc`).
    keeps_history: AtomicBool,
    /// Which reads wait.
    pub last_writes: LastWrites,
    /// How long each write takes longer, in microseconds: tests look at what waits for it.
    write_delay_micros: AtomicU64,
    /// What fails, or waits: tests look at what comes of it.
    faults: Arc<Faults>,
    /// `aof-timestamp-enabled`.
    tells_time: AtomicBool,
    /// `latency-monitor-threshold` in nanoseconds, or the greatest number.
    latency_nanos: AtomicU64,
    latency_monitor: Arc<LatencyMonitor>,
    /// A snapshot is taken, or the file is rewritten.
    is_beside_snapshot: AtomicBool,
    /// Writing has failed, and has not succeeded since.
    has_failed_to_write: AtomicBool,
    /// A sync has failed: what was on its way is not known of, and nothing more is promised of this file.
    has_lost: AtomicBool,
    /// How long the increment is that is written to, in bytes.
    n_bytes: AtomicU64,
    /// How long the base and the increments before it are together.
    n_bytes_before: AtomicU64,
    /// How long all was when it was last rewritten, or at the start.
    n_bytes_rewritten: AtomicU64,
    /// There is no base yet.
    needs_base: AtomicBool,
    /// How many cuts have been passed.
    n_cuts: AtomicU64,
    /// Whether a new increment could be begun at the last.
    is_cut: AtomicBool,
    file: Baton<LogFile>,
    chores: SegQueue<Chore>,
    thread: Unparker,
}

/// What is asked of the thread that syncs. The saver would do it itself, but whoever writes waits for the
/// baton, and for a core the saver waits longer than anybody.
enum Chore {
    EndRewrite(Base, SyncSender<io::Result<()>>),
    Tidy,
}

/// A file that has all that was logged before the last cut, and is synced.
pub struct Base {
    /// Its name so far.
    pub written_as: Vec<u8>,
    /// How long it is.
    pub n_bytes: u64,
    /// Whether it is a snapshot, and not commands.
    pub is_snapshot: bool,
}

/// Stands for a ticket where a connection waits for room: its next command is long and the log [is
/// full](Journal::is_full).
pub const ROOM: Ticket = Ticket::MAX;

/// The units that were kept at the most: what comes after them is not.
const KEPT_MAX: usize = 1_000_000;

/// While a sync is under way replies do not wait to be written, unless so many bytes of memory do, or under
/// `maxmemory` a part of that, within limits.
const BEHIND_MAX: usize = 64 << 20;
const BEHIND_LEAST: usize = 1 << 20;
const BEHIND_PART: u64 = 8;

/// A sync that takes longer is counted, as in Redis.
const DELAYS_FROM: Duration = Duration::from_secs(2);

/// So many records are merged before they are written, and so many bytes.
const MERGED_AT_A_TIME: usize = 16 << 10;
const MERGED_BYTES: usize = 1 << 20;

/// How often `appendfsync everysec` syncs.
const SYNC_EVERY: Duration = Duration::from_secs(1);

/// What whoever has the pen works with.
struct LogFile {
    pen: Pen,
    /// Merged, and not written.
    units: Units,
    aof: Option<Aof<LogFolder>>,
    /// How many files there were before: a sync may end when its file is closed, and another is written to.
    n_files: u64,
    /// The last ticket that was appended. Where the file counts only once it has its base, it is not said to
    /// be written until then.
    appended: Ticket,
    /// What comes before the next cut was logged before the file was begun, and is in its base.
    skips_to_cut: bool,
    synced_at: Instant,
    /// How long the last sync took, and how many tickets it was about.
    sync_took: Duration,
    n_synced: u64,
}

/// Who makes a cut, or begins an increment anew: it takes a while.
#[derive(Clone, Copy)]
enum Cutting {
    IsForThis,
    IsForAnother,
}

/// Units that are to be appended.
#[derive(Default)]
struct Units {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl Stream for Units {
    fn select(&mut self, db: u32) {
        let db = db.to_string();
        write_words(&mut self.bytes, 2, [&b"SELECT"[..], db.as_bytes()].into_iter());
    }

    fn append(&mut self, commands: &[u8]) {
        self.bytes.extend_from_slice(commands);
        self.ends.push(self.bytes.len());
    }
}

impl Journal {
    /// The log of so many threads, which is off. `thread` is that which syncs.
    pub fn new(n_threads: usize, thread: Unparker, latency_monitor: Arc<LatencyMonitor>) -> Self {
        let intake = Intake::new(n_threads);
        let pen = Pen::new(&intake);
        Self {
            is_on: AtomicBool::new(false),
            keeps: AtomicBool::new(false),
            kept: SegQueue::new(),
            is_writing: AtomicBool::new(false),
            has_file: AtomicBool::new(false),
            intake,
            n_delayed: AtomicU64::new(0),
            merged_bytes: AtomicUsize::new(0),
            promised_bytes: AtomicUsize::new(0),
            behind_max: AtomicUsize::new(BEHIND_MAX),
            written: CachePadded::default(),
            synced: CachePadded::default(),
            gathers_to: CachePadded::default(),
            is_syncing: AtomicBool::new(false),
            fsync: AtomicU8::new(AppendFsync::default() as u8),
            skips_syncs: AtomicBool::new(false),
            keeps_history: AtomicBool::new(false),
            last_writes: LastWrites::default(),
            write_delay_micros: AtomicU64::new(0),
            faults: Arc::default(),
            tells_time: AtomicBool::new(false),
            latency_nanos: AtomicU64::new(u64::MAX),
            latency_monitor,
            is_beside_snapshot: AtomicBool::new(false),
            has_failed_to_write: AtomicBool::new(false),
            has_lost: AtomicBool::new(false),
            n_bytes: AtomicU64::new(0),
            n_bytes_before: AtomicU64::new(0),
            n_bytes_rewritten: AtomicU64::new(0),
            needs_base: AtomicBool::new(false),
            n_cuts: AtomicU64::new(0),
            is_cut: AtomicBool::new(false),
            file: Baton::new(LogFile {
                pen,
                units: Units::default(),
                aof: None,
                n_files: 0,
                appended: 0,
                skips_to_cut: false,
                synced_at: Instant::now(),
                sync_took: Duration::ZERO,
                n_synced: 0,
            }),
            chores: SegQueue::new(),
            thread,
        }
    }

    /// Whether changes are recorded.
    #[inline]
    pub fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Relaxed)
    }

    /// Whether units write to an append-only file.
    #[inline]
    pub fn is_writing(&self) -> bool {
        self.is_writing.load(Ordering::Relaxed)
    }

    /// Whether there is an append-only file: for longer than units write to it, as what they wrote is then
    /// synced, and only after that may another server have its folder.
    pub fn has_file(&self) -> bool {
        // Acquire pairs with the Release in `close`: the folder's lock is let go before anybody hears of the
        // end.
        self.has_file.load(Ordering::Acquire)
    }

    /// Whether writing has failed, and has not succeeded since, or a sync has: writes are refused.
    pub fn has_failed(&self) -> bool {
        self.has_failed_to_write.load(Ordering::Relaxed) || self.has_lost()
    }

    /// Whether a sync has failed, so that only a rewrite makes the file whole again.
    pub fn has_lost(&self) -> bool {
        self.has_lost.load(Ordering::Relaxed)
    }

    /// How long all files are together, in bytes, and how long they were when they were last rewritten, or at
    /// the start.
    pub fn sizes(&self) -> (u64, u64) {
        let now = self.n_bytes_before.load(Ordering::Relaxed) + self.n_bytes.load(Ordering::Relaxed);
        (now, self.n_bytes_rewritten.load(Ordering::Relaxed))
    }

    /// Whether a sync is under way.
    pub fn is_syncing(&self) -> bool {
        self.is_syncing.load(Ordering::Relaxed)
    }

    /// How much memory has what waits to be written.
    pub fn unwritten_bytes(&self) -> usize {
        self.intake.unmerged_bytes() + self.merged_bytes.load(Ordering::Relaxed)
    }

    /// Whether what is logged counts only once its base is there.
    pub fn needs_base(&self) -> bool {
        self.is_writing() && self.needs_base.load(Ordering::Relaxed)
    }

    /// Whether so much is unwritten that nobody may add to it who does not wait.
    pub fn is_far_behind(&self) -> bool {
        self.unwritten_bytes() >= self.behind_max.load(Ordering::Relaxed)
    }

    /// Whether so much waits to be written, or is about to, that no long command may begin: each would add
    /// what is more than all others do. It is not full while the disk refuses writes: commands then run into
    /// their error.
    pub fn is_full(&self) -> bool {
        let n_bytes = self.unwritten_bytes() + self.promised_bytes.load(Ordering::Relaxed);
        self.is_writing() && n_bytes >= self.behind_max.load(Ordering::Relaxed) && !self.has_failed()
    }

    /// Notes that a long command begins that may add so many bytes.
    pub fn promise(&self, n_bytes: usize) {
        self.promised_bytes.fetch_add(n_bytes, Ordering::Relaxed);
    }

    /// Notes that it has ended.
    pub fn redeem(&self, n_bytes: usize) {
        self.promised_bytes.fetch_sub(n_bytes, Ordering::Relaxed);
    }

    /// How often a sync has kept writes waiting for seconds.
    pub fn n_delayed(&self) -> u64 {
        self.n_delayed.load(Ordering::Relaxed)
    }

    /// Keeps records for DEBUG LOGGED, or does no more. All shards are held, and have begun or ceased to
    /// record.
    pub fn keep(&self, keeps: bool) {
        self.keeps.store(keeps, Ordering::Relaxed);
        self.is_on.store(keeps || self.is_writing(), Ordering::Relaxed);
        self.take_kept();
    }

    /// The units that were kept since the last call. Those that share a shard are in the order in which they
    /// ran.
    pub fn take_kept(&self) -> Vec<Vec<LoggedCommand>> {
        std::iter::from_fn(|| self.kept.pop()).collect()
    }

    /// Whether records are kept.
    pub fn keeps(&self) -> bool {
        self.keeps.load(Ordering::Relaxed)
    }

    /// Keeps a unit's record, if it is to.
    pub fn note(&self, record: &Record) {
        if self.keeps() && self.kept.len() < KEPT_MAX {
            self.kept.push(commands_of(record));
        }
    }

    /// Writes to a file from now on, whose parts have so many bytes. All shards are held, and have begun to
    /// record. `log` is the calling thread's: what others have logged before, and not published, is in the
    /// file or nowhere.
    pub fn begin(&self, aof: Aof<LogFolder>, n_bytes: u64, log: &mut Writer) {
        self.add_cut(log);
        self.n_bytes.store(aof.increment_bytes(), Ordering::Relaxed);
        self.n_bytes_before.store(n_bytes.saturating_sub(aof.increment_bytes()), Ordering::Relaxed);
        self.n_bytes_rewritten.store(n_bytes, Ordering::Relaxed);
        let mut file = self.file.take();
        file.aof = Some(aof);
        file.n_files += 1;
        file.skips_to_cut = true;
        drop(file);
        self.has_file.store(true, Ordering::Relaxed);
        self.is_writing.store(true, Ordering::Relaxed);
        self.is_on.store(true, Ordering::Relaxed);
        // From the first change on: until it is known which keys have changed, all reads wait.
        self.note_writes();
        self.thread.unpark();
    }

    /// The same for a file that has no base yet: that begins at the same moment.
    pub fn begin_aside(&self, aof: Aof<LogFolder>, log: &mut Writer) {
        self.needs_base.store(true, Ordering::Relaxed);
        self.begin(aof, 0, log);
    }

    /// Logs nothing more to a file. All shards are held; says whether they are to record all the same. Then
    /// the file is to be [closed](Journal::close).
    pub fn end(&self) -> bool {
        let keeps = self.keeps();
        self.is_writing.store(false, Ordering::Relaxed);
        self.is_on.store(keeps, Ordering::Relaxed);
        keeps
    }

    /// Has what was published be written; says whether that is all that was logged, or no more can be
    /// written.
    pub fn is_all_written(&self) -> bool {
        let mut file = self.file.take();
        self.write(&mut file, Cutting::IsForThis);
        self.has_failed() || file.pen.merged() == self.intake.last_ticket()
    }

    /// Takes over what the configuration says.
    pub fn configure(&self, config: &Config) {
        self.fsync.store(config.appendfsync as u8, Ordering::Relaxed);
        self.keeps_history.store(config.aof_disable_auto_gc, Ordering::Relaxed);
        self.tells_time.store(config.aof_timestamp_enabled, Ordering::Relaxed);
        let latency = config.latency_monitor_threshold.map_or(u64::MAX, |time| time.as_nanos() as u64);
        self.latency_nanos.store(latency, Ordering::Relaxed);
        let behind_max = config.maxmemory.map_or(BEHIND_MAX, |maxmemory| {
            let part = usize::try_from(maxmemory / BEHIND_PART).unwrap_or(usize::MAX);
            part.clamp(BEHIND_LEAST, BEHIND_MAX)
        });
        self.behind_max.store(behind_max, Ordering::Relaxed);
        self.thread.unpark();
    }

    /// Notes that a snapshot is taken from now on. Nothing is synced meanwhile if that is wanted.
    pub fn begin_snapshot(&self, skips_syncs: bool) {
        self.is_beside_snapshot.store(true, Ordering::Relaxed);
        self.skips_syncs.store(skips_syncs, Ordering::Relaxed);
        self.thread.unpark();
    }

    /// Notes that none is taken any more: all that was written is synced.
    pub fn end_snapshot(&self) {
        self.is_beside_snapshot.store(false, Ordering::Relaxed);
        self.skips_syncs.store(false, Ordering::Relaxed);
        self.thread.unpark();
    }

    /// Tells the latency monitor how long something took, if that is over its threshold.
    fn note_latency(&self, events: &[&'static str], took: Duration) {
        if took.as_nanos() >= u128::from(self.latency_nanos.load(Ordering::Relaxed)) {
            let sample = Sample { unix_seconds: Clock::system_seconds(), millis: took.as_millis() as u64 };
            events.iter().for_each(|event| self.latency_monitor.add(event, sample));
        }
    }

    /// When something begins whose time the latency monitor may want.
    fn latency_begins(&self) -> Option<Instant> {
        (self.latency_nanos.load(Ordering::Relaxed) != u64::MAX).then(Instant::now)
    }

    /// Has each write take so much longer.
    pub fn delay_writes(&self, micros: u64) {
        self.write_delay_micros.store(micros, Ordering::Relaxed);
    }

    /// Waits for as long as each write is to take longer, or until it is not to any more.
    fn delay_write(&self) {
        let began = Instant::now();
        let delay = || Duration::from_micros(self.write_delay_micros.load(Ordering::Relaxed));
        while began.elapsed() < delay() {
            thread::sleep(Duration::from_millis(1).min(delay()));
        }
    }

    /// A folder for the append-only file.
    pub fn folder(&self, folder: Folder) -> LogFolder {
        Faulty::new(folder, &self.faults)
    }

    /// What fails.
    pub fn faults(&self) -> &Faults {
        &self.faults
    }

    fn syncs_always(&self) -> bool {
        self.syncs_at_all_times() && !self.skips_syncs.load(Ordering::Relaxed)
    }

    fn syncs_at_all_times(&self) -> bool {
        self.fsync.load(Ordering::Relaxed) == AppendFsync::Always as u8
    }

    /// Adds a record to a thread's batch; gives its ticket. The shards are held that it is about.
    pub fn add(&self, log: &mut Writer, build: impl FnOnce(&mut Vec<u8>) -> Kind) -> Ticket {
        log.add(&self.intake, build)
    }

    /// Gives a thread's batch to those who merge. Somebody must [advance](Journal::advance) the log after
    /// that.
    pub fn publish(&self, log: &mut Writer) {
        log.publish(&self.intake);
        self.file.announce();
    }

    /// Whether what was read may not be told before it is on disk.
    #[inline]
    pub fn holds_back_reads(&self) -> bool {
        self.is_writing() && self.syncs_always()
    }

    /// The last ticket that was taken.
    pub fn last_ticket(&self) -> Ticket {
        self.intake.last_ticket()
    }

    /// Whether it is to be noted which keys change, and is not, or the other way round.
    pub fn notes_writes_wrongly(&self) -> bool {
        self.last_writes.is_on() != (self.is_writing() && self.syncs_at_all_times())
    }

    /// Notes which keys change, or none, as it is to be. All shards are held.
    pub fn note_writes(&self) {
        self.last_writes.turn(self.is_writing() && self.syncs_at_all_times(), self.last_ticket());
    }

    /// Whether what waits for a ticket, or for [`ROOM`], waits no more; `reached` was asked for just now.
    pub fn is_over(&self, ticket: Ticket, reached: Ticket) -> bool {
        if ticket == ROOM { !self.is_full() } else { ticket <= reached }
    }

    /// The last ticket whose replies may leave.
    pub fn reached(&self) -> Ticket {
        if !self.is_writing() {
            return Ticket::MAX;
        }
        // Acquire pairs with the Release where these are stored: what has been synced is on disk.
        if self.syncs_always() {
            return self.synced.load(Ordering::Acquire);
        }
        // As in Redis, a slow disk keeps nobody waiting who does not ask for it, unless too much has come
        // together.
        let is_slow = self.is_syncing.load(Ordering::Relaxed)
            && !self.has_failed()
            && self.fsync.load(Ordering::Relaxed) == AppendFsync::Everysec as u8;
        if is_slow && !self.is_far_behind() {
            return Ticket::MAX;
        }
        // Acquire pairs with the Release where it is stored, as above.
        self.written.load(Ordering::Acquire)
    }

    /// The last ticket that is on disk; none if nothing is logged. Before the file has a base it counts for
    /// nothing.
    pub fn synced(&self) -> Option<Ticket> {
        if self.needs_base() {
            return Some(0);
        }
        // Acquire pairs with the Release where it is stored, as in `reached`.
        self.is_writing().then(|| self.synced.load(Ordering::Acquire))
    }

    /// Has the thread that syncs look.
    pub fn poke(&self) {
        self.thread.unpark();
    }

    /// Has the thread that syncs look, if something is published that is not written.
    pub fn poke_if_behind(&self) {
        if !self.is_writing() || !self.intake.has_published() {
            return;
        }
        // Pairs with the fence in `gather`: either this finds that it gathers no more, or that finds what was
        // published.
        fence(Ordering::SeqCst);
        if self.intake.last_ticket() >= self.gathers_to.load(Ordering::Relaxed) {
            self.thread.unpark();
        }
    }

    /// For how long the thread that syncs lets others add to what it syncs next; none if it need not wait for
    /// that. It is woken once there is as much as the last time.
    ///
    /// Those whose replies have just left mostly come back at once. A sync costs the same for one as for all
    /// of them, and while each has to wait for it anyway, to wait for the others costs little. Whoever is
    /// alone waits for nobody.
    pub fn gather(&self, has_advanced: bool) -> Option<Duration> {
        const LEAST: Duration = Duration::from_micros(100);
        const MOST: Duration = Duration::from_millis(2);
        if !self.syncs_always() {
            self.gathers_to.store(0, Ordering::Relaxed);
            return None;
        }
        let time = has_advanced.then(|| {
            let file = self.file.take();
            self.gathers_to.store(file.pen.merged() + file.n_synced, Ordering::Relaxed);
            (file.sync_took * 3).clamp(LEAST, MOST)
        });
        if time.is_none() {
            self.gathers_to.store(0, Ordering::Relaxed);
        }
        // Pairs with the fence in `poke_if_behind`.
        fence(Ordering::SeqCst);
        let is_enough = self.intake.last_ticket() >= self.gathers_to.load(Ordering::Relaxed);
        if is_enough && self.intake.has_published() { Some(Duration::ZERO) } else { time }
    }

    /// Merges and writes what was published, unless somebody else does just now or must: a thread that serves
    /// sockets does this at the end of its turns. Says whether more is written than before.
    pub fn advance(&self) -> bool {
        if self.syncs_always() {
            self.poke_if_behind();
            return false;
        }
        let mut has_written = false;
        if !self.intake.has_published() {
            return false;
        }
        self.file.run(|file| {
            // It is set with the baton: whoever writes to a file that is being synced waits for that.
            if self.is_syncing.load(Ordering::Relaxed) {
                return ControlFlow::Break(());
            }
            has_written |= self.write(file, Cutting::IsForAnother);
            ControlFlow::Continue(())
        });
        has_written
    }

    /// Merges and writes what was published, up to a cut if another thread must make that; says whether more
    /// is written than before.
    fn write(&self, file: &mut LogFile, cutting: Cutting) -> bool {
        let LogFile { pen, units, aof: Some(aof), appended, skips_to_cut, .. } = file else { return false };
        let before = self.written.load(Ordering::Relaxed);
        aof.tell_time(self.tells_time.load(Ordering::Relaxed).then(Clock::system_seconds));
        if aof.must_begin_anew() {
            match cutting {
                Cutting::IsForAnother => {
                    self.thread.unpark();
                    return false;
                }
                Cutting::IsForThis if !self.judge(aof.begin_anew()) => return false,
                Cutting::IsForThis => {}
            }
        }
        if *skips_to_cut {
            if !pen.skip_to_cut(&self.intake) {
                return false;
            }
            *skips_to_cut = false;
            // Nothing of what came before is waited for any more.
            *appended = pen.merged();
            self.note_written(aof, *appended);
        }
        loop {
            let mut merged = Merged::All;
            if units.ends.is_empty() {
                let (mut n_left, mut n_bytes) = (MERGED_AT_A_TIME, 0);
                merged = pen.merge(&self.intake, units, |n_more| {
                    n_left -= 1;
                    n_bytes += n_more;
                    n_left > 0 && n_bytes < MERGED_BYTES
                });
                let room = if units.bytes.is_empty() { 0 } else { units.bytes.capacity() };
                self.merged_bytes.store(room, Ordering::Relaxed);
            }
            let is_long = units.ends.is_empty() && merged == Merged::UpToLong;
            if units.ends.is_empty() && !is_long {
                match cutting {
                    _ if merged != Merged::UpToCut => break,
                    Cutting::IsForAnother => {
                        self.thread.unpark();
                        break;
                    }
                    Cutting::IsForThis => self.cut(aof),
                }
                pen.pass_cut(&self.intake);
                *appended = pen.merged();
                self.note_written(aof, *appended);
                continue;
            }
            let began = self.latency_begins();
            self.delay_write();
            // What is on its way mostly fits into what was reserved before, though there is no more.
            let reserved = aof.reserve();
            let appended_all = match is_long {
                true => aof.append_long(pen.long(&self.intake)),
                false => aof.append(&units.bytes, &units.ends),
            };
            if let Some(began) = began {
                let is_beside = self.is_beside_snapshot.load(Ordering::Relaxed);
                let kind = if is_beside { AOF_WRITE_ACTIVE_CHILD } else { AOF_WRITE_ALONE };
                self.note_latency(&[AOF_WRITE, kind], began.elapsed());
            }
            if let Err(error) = appended_all {
                self.judge(Err(error));
                break;
            }
            self.judge(reserved);
            if is_long {
                pen.pass_long(&self.intake);
            }
            units.clear();
            self.merged_bytes.store(0, Ordering::Relaxed);
            *appended = pen.merged();
            self.note_written(aof, *appended);
            self.n_bytes.store(aof.increment_bytes(), Ordering::Relaxed);
        }
        self.written.load(Ordering::Relaxed) != before
    }

    /// Notes that all up to a ticket is in the file. After a sync has failed, what the new increment gets
    /// counts once there is a base: before that no manifest names it.
    fn note_written(&self, aof: &Aof<LogFolder>, appended: Ticket) {
        if !(aof.is_aside() && self.has_lost()) {
            // Release pairs with the Acquire of `reached`.
            self.written.store(appended, Ordering::Release);
        }
    }

    /// Looks whether there is room again, where nothing waits to be written that would show it.
    fn retry(&self, file: &mut LogFile) {
        if file.has_merged(&self.intake) {
            return;
        }
        let LogFile { aof: Some(aof), .. } = file else { return };
        if self.has_failed() && !self.has_lost() && !aof.must_begin_anew() {
            self.judge(aof.reserve());
        }
    }

    /// What the thread that syncs does when it looks: writes what others may not write, and syncs if it is
    /// time. Says whether replies may leave that could not before.
    pub fn sync_if_due(&self) -> bool {
        if !self.is_writing() {
            return false;
        }
        let mut file = self.file.take();
        let mut has_advanced = self.write(&mut file, Cutting::IsForThis);
        self.retry(&mut file);
        let (written, n_files) = (self.written.load(Ordering::Relaxed), file.n_files);
        let LogFile { aof: Some(aof), synced_at, .. } = &mut *file else { return false };
        let is_due = match self.fsync.load(Ordering::Relaxed) {
            _ if self.skips_syncs.load(Ordering::Relaxed) => false,
            fsync if fsync == AppendFsync::No as u8 => false,
            fsync if fsync == AppendFsync::Always as u8 => true,
            _ => synced_at.elapsed() >= SYNC_EVERY,
        };
        // What a failed sync was about may be lost, and to ask again is no answer.
        if !is_due || written == self.synced.load(Ordering::Relaxed) || self.has_lost.load(Ordering::Relaxed)
        {
            drop(file);
            // Somebody may have published something meanwhile, and found the lock taken.
            return self.advance() || has_advanced;
        }
        let (current, offset) = (aof.current(), aof.offset());
        self.is_syncing.store(true, Ordering::Relaxed);
        let began = Instant::now();
        *synced_at = began;
        drop(file);
        let synced = current.sync();
        let mut file = self.file.take();
        file.sync_took = began.elapsed();
        if self.syncs_at_all_times() {
            self.note_latency(&[AOF_FSYNC_ALWAYS], file.sync_took);
        }
        self.n_delayed.fetch_add(u64::from(file.sync_took > DELAYS_FROM), Ordering::Relaxed);
        file.n_synced = written - self.synced.load(Ordering::Relaxed);
        self.is_syncing.store(false, Ordering::Relaxed);
        let is_same = file.n_files == n_files;
        if let Some(aof) = file.aof.as_mut().filter(|_| is_same) {
            match synced {
                Ok(()) => {
                    aof.note_safe(offset);
                    // Release pairs with the Acquire of `reached`.
                    self.synced.store(written, Ordering::Release);
                    has_advanced = true;
                }
                Err(error) => {
                    aof.note_lost();
                    self.note_lost(&error);
                }
            }
        }
        has_advanced |= self.write(&mut file, Cutting::IsForThis);
        drop(file);
        self.advance() || has_advanced
    }

    /// Goes on with a new increment: what comes next is not in the base that is being written.
    fn cut(&self, aof: &mut Aof<LogFolder>) {
        let n_bytes = aof.increment_bytes();
        // As with a sync, nobody waits for this who does not ask for it.
        self.is_syncing.store(true, Ordering::Relaxed);
        let cut = aof.begin_rewrite();
        self.is_syncing.store(false, Ordering::Relaxed);
        self.is_cut.store(cut.is_ok(), Ordering::Relaxed);
        match cut {
            Ok(()) => {
                self.n_bytes_before.fetch_add(n_bytes, Ordering::Relaxed);
                self.n_bytes.store(aof.increment_bytes(), Ordering::Relaxed);
            }
            Err(error) if aof.is_lost() && !self.has_lost() => self.note_lost(&error),
            Err(error) => warning!("Beginning a new increment of the append-only file has failed: {error}"),
        }
        // Release pairs with the Acquire of `was_cut`.
        self.n_cuts.fetch_add(1, Ordering::Release);
    }

    /// Adds a cut to a thread's batch: what is in a snapshot that begins now is before it, and what is not is
    /// behind. All shards are held.
    pub fn add_cut(&self, log: &mut Writer) {
        log.add(&self.intake, |_| Kind::Cut);
    }

    /// How many cuts have been passed.
    pub fn n_cuts(&self) -> u64 {
        // Acquire pairs with the Release of `cut`.
        self.n_cuts.load(Ordering::Acquire)
    }

    /// Whether a new increment was begun at the cut behind `n_before` others; none if that is still to come.
    pub fn was_cut(&self, n_before: u64) -> Option<bool> {
        (self.n_cuts() > n_before).then(|| self.is_cut.load(Ordering::Relaxed))
    }

    /// Has a file be the base of what was written since the cut. What becomes of that is sent; of an error
    /// the disk's, and the files hold as before.
    pub fn order_end_of_rewrite(&self, base: Base) -> Receiver<io::Result<()>> {
        let (tell, told) = sync_channel(1);
        self.order(Chore::EndRewrite(base, tell));
        told
    }

    /// Has what nothing needs any more be removed, if there is anything and that is wanted.
    pub fn order_tidying(&self) {
        self.order(Chore::Tidy);
    }

    fn order(&self, chore: Chore) {
        self.chores.push(chore);
        self.thread.unpark();
    }

    /// Does what was asked of the thread that syncs. It must look after that what has been published.
    pub fn do_chores(&self) {
        while let Some(chore) = self.chores.pop() {
            match chore {
                Chore::EndRewrite(base, tell) => {
                    let ended = self.end_rewrite(&base);
                    // The saver does not wait for it when the server stops.
                    let _ = tell.send(ended);
                }
                Chore::Tidy => {
                    if let Some(aof) = &mut self.file.take().aof {
                        self.remove_history(aof);
                    }
                }
            }
        }
    }

    fn end_rewrite(&self, base: &Base) -> io::Result<()> {
        let mut file = self.file.take();
        let LogFile { aof: Some(aof), appended, .. } = &mut *file else { return Ok(()) };
        let began = self.latency_begins();
        // As with a sync, nobody waits for this who does not ask for it.
        self.is_syncing.store(true, Ordering::Relaxed);
        let ended = aof.end_rewrite(&base.written_as, base.is_snapshot);
        if let Some(began) = began {
            self.note_latency(&[AOF_RENAME], began.elapsed());
        }
        if ended.is_ok() {
            self.remove_history(aof);
        }
        self.is_syncing.store(false, Ordering::Relaxed);
        ended?;
        self.n_bytes_before.store(base.n_bytes, Ordering::Relaxed);
        self.n_bytes_rewritten.store(base.n_bytes + aof.increment_bytes(), Ordering::Relaxed);
        self.needs_base.store(false, Ordering::Relaxed);
        // All that may have been lost is in the new base, unless that was lost since the cut.
        if !aof.is_lost() && self.has_lost.swap(false, Ordering::Relaxed) {
            self.note_written(aof, *appended);
            notice!("The append-only file has been rewritten: what a failed sync may have lost is in it");
        }
        Ok(())
    }

    fn remove_history(&self, aof: &mut Aof<LogFolder>) {
        if self.keeps_history.load(Ordering::Relaxed) {
            return;
        }
        if let Err(error) = aof.remove_history() {
            warning!("What the append-only file needs no more cannot be removed: {error}");
        }
    }

    /// Notes what has become of an attempt to write; says whether it has succeeded.
    fn judge(&self, result: io::Result<()>) -> bool {
        let Err(error) = result else {
            if self.has_failed_to_write.swap(false, Ordering::Relaxed) {
                notice!("Writing to the append-only file has succeeded again");
            }
            return true;
        };
        if !self.has_failed_to_write.swap(true, Ordering::Relaxed) {
            warning!(
                "Writing to the append-only file has failed: {error}. Writes are refused until that is possible again"
            );
            // It tries again from time to time: each failure waking it would keep it busy.
            self.thread.unpark();
        }
        false
    }

    /// Notes that a sync has failed: only a rewrite can make up for that.
    fn note_lost(&self, error: &io::Error) {
        if !self.has_lost.swap(true, Ordering::Relaxed) {
            warning!(
                "Syncing the append-only file has failed: {error}. What was written since the last sync may be lost. Writes are refused until \
                 it has been rewritten"
            );
        }
    }

    /// Writes and syncs all that was published, and closes the file: nothing more is logged. What has no base
    /// yet is removed. Says whether it has succeeded, if there is one.
    pub fn close(&self) -> bool {
        let mut file = self.file.take();
        self.write(&mut file, Cutting::IsForThis);
        let is_whole = !file.has_merged(&self.intake) && !self.has_lost.load(Ordering::Relaxed);
        self.end();
        file.units.clear();
        self.merged_bytes.store(0, Ordering::Relaxed);
        let Some(aof) = file.aof.take() else { return true };
        drop(file);
        let closed = match self.needs_base.swap(false, Ordering::Relaxed) {
            true => aof.give_up_aside().map(|names| {
                for name in names {
                    notice!("Removing the temp incr aof file {}", name.escape_ascii());
                }
            }),
            false => aof.close(),
        };
        // Release pairs with the Acquire in `has_file`.
        self.has_file.store(false, Ordering::Release);
        if let Err(error) = &closed {
            warning!("Closing the append-only file has failed: {error}");
        }
        // The next file begins anew.
        self.has_lost.store(false, Ordering::Relaxed);
        self.has_failed_to_write.store(false, Ordering::Relaxed);
        closed.is_ok() && is_whole
    }
}

impl LogFile {
    /// Whether something was merged, or come to, that is not written.
    fn has_merged(&mut self, intake: &Intake) -> bool {
        !self.units.ends.is_empty() || self.pen.is_at_long(intake)
    }
}

impl Units {
    fn clear(&mut self) {
        const KEPT_BYTES: usize = 1 << 20;
        self.ends.clear();
        self.bytes.clear();
        if self.bytes.capacity() > KEPT_BYTES {
            self.bytes = Vec::new();
        }
    }
}

fn commands_of(record: &Record) -> Vec<LoggedCommand> {
    let gone = record.gone().map(|gone| {
        let name: &[u8] = if gone.n_words() == 1 { b"DEL" } else { b"HDEL" };
        (gone.db, std::iter::once(name).chain(gone.words()).map(Box::from).collect())
    });
    let commands = record.commands().map(|command| (command.db, command.words().map(Box::from).collect()));
    gone.chain(commands).collect()
}
