//! The AOF as the first consumer of the change stream: which thread writes, when it syncs, which replies
//! wait.
//!
//! ```text
//! unit    adds its record to its thread's batch and takes a ticket, under its holds
//! thread  publishes the batch at the end of its turn; merges and writes everything published, unless another
//!         thread does so at that moment
//! syncer  a thread of its own: syncs the file, and writes whenever other threads must not wait for the disk,
//!         under `SyncPolicy::Always` and during a sync
//! reply   leaves when its ticket is reached: written, or under `SyncPolicy::Always` synced
//! ```

use std::{
    io,
    ops::ControlFlow,
    sync::{
        atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering, fence},
        mpsc::{Receiver, SyncSender, sync_channel},
    },
    time::Duration,
};

use crossbeam_queue::SegQueue;
use crossbeam_utils::CachePadded;

use crate::{
    disk::{Disk, DiskFile},
    history::ReplicationId,
    intake::{Ticket, Writer},
    store::Aof,
    stream::{ChangeStream, Cursor, Held, Lsn, PieceKind, Turn},
};

/// When the file is synced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SyncPolicy {
    /// Before a reply leaves.
    Always,
    /// Once a second.
    #[default]
    EverySecond,
    /// When the system does it.
    Never,
}

/// The surroundings of the file: a clock, and the receivers of news. All methods are called by any thread.
pub trait Host: Sync {
    /// The time since a fixed moment, by a clock that is never set.
    fn now(&self) -> Duration;

    /// The time of the wall clock, in seconds since 1970.
    fn unix_seconds(&self) -> u64;

    /// Wakes the syncer: it calls [`AofFile::do_chores`] and [`AofFile::sync_if_due`].
    fn wake_syncer(&self);

    /// Whether [`Host::took`] needs to be told.
    fn is_timed(&self) -> bool {
        false
    }

    /// Learns how long an operation of the disk took.
    fn took(&self, _operation: Timed, _time: Duration) {}

    /// Learns of a change that an operator wants to know.
    fn tell(&self, _news: News<'_>) {}

    /// Runs before each write. Tests let it wait.
    fn before_write(&self) {}
}

/// An operation of the disk that is timed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Timed {
    /// Commands were appended.
    Write,
    /// The file was synced while replies waited for it.
    SyncAlways,
    /// A new base was named.
    Rename,
}

/// A change that an operator wants to know.
#[derive(Debug)]
pub enum News<'a> {
    /// A write has failed, after one that succeeded. Writes of clients should be refused until it succeeds.
    WriteFails(&'a io::Error),
    /// A write has succeeded, after one that failed.
    WritesAgain,
    /// A sync has failed: data since the last sync may be lost, and only a rewrite makes up for that.
    SyncFailed(&'a io::Error),
    /// A rewrite has made up for a failed sync.
    WholeAgain,
    /// No new increment could be begun at a cut.
    CutFailed(&'a io::Error),
    /// Files that are no longer needed could not be removed.
    HistoryStays(&'a io::Error),
    /// An increment that never got a base was removed.
    RemovedAside(&'a [u8]),
    /// The file could not be closed properly.
    CloseFailed(&'a io::Error),
}

/// The time after which a sync counts as delayed, as in Redis.
const DELAYED: Duration = Duration::from_secs(2);

/// The interval of syncs under [`SyncPolicy::EverySecond`].
const SYNC_EVERY: Duration = Duration::from_secs(1);

/// The AOF of a change stream, which may be open or closed.
///
/// It is opened and closed with all shards held. So a unit that holds any shard finds it open from its
/// beginning to its end, or closed.
pub struct AofFile<D: Disk, H> {
    stream: ChangeStream<FileState<D>>,
    host: H,
    /// See [`AofFile::is_writing`].
    is_writing: AtomicBool,
    /// See [`AofFile::has_file`].
    has_file: AtomicBool,
    /// The last ticket that is in the file, and the last that is on disk.
    written: CachePadded<AtomicU64>,
    synced: CachePadded<AtomicU64>,
    /// See [`AofFile::synced_place`].
    synced_place: AtomicU64,
    /// The ticket from which on the syncer is woken while it [gathers](AofFile::gather).
    gathers_to: CachePadded<AtomicU64>,
    /// A sync is in progress that other threads must not wait for.
    is_syncing: AtomicBool,
    /// The [`SyncPolicy`], as a number.
    policy: AtomicU8,
    /// Nothing is synced during a snapshot (`no-appendfsync-on-rewrite`).
    skips_syncs: AtomicBool,
    /// Files that a rewrite has made superfluous stay (`aof-disable-auto-gc`).
    keeps_history: AtomicBool,
    /// The time is logged before frames (`aof-timestamp-enabled`).
    tells_time: AtomicBool,
    /// The memory of the pieces that are merged and not written, in bytes.
    merged_bytes: AtomicUsize,
    /// The unwritten bytes from which on replies wait although a sync is in progress.
    behind_max: AtomicUsize,
    /// See [`AofFile::n_delayed`].
    n_delayed: AtomicU64,
    /// Writing has failed, and has not succeeded since.
    has_failed_to_write: AtomicBool,
    /// A sync has failed: nothing more is promised of this file.
    has_lost: AtomicBool,
    /// The length of the current increment, in bytes.
    n_bytes: AtomicU64,
    /// The length of the base and of the increments before the current one, in bytes.
    n_bytes_before: AtomicU64,
    /// The length of all files at the last rewrite, or at the start, in bytes.
    n_bytes_rewritten: AtomicU64,
    /// The file has no base yet.
    needs_base: AtomicBool,
    /// The number of passed cuts.
    n_cuts: AtomicU64,
    /// Whether a new increment was begun at the last cut.
    is_cut: AtomicBool,
    chores: SegQueue<Chore>,
}

/// Work that another thread orders from the syncer.
///
/// The saver could do it, but every writer waits for the baton, and the saver has a lower priority than they
/// have.
enum Chore {
    EndRewrite(Base, SyncSender<io::Result<()>>),
    Tidy,
}

/// A synced file that contains everything logged before the last cut.
pub struct Base {
    /// Its present name.
    pub written_as: Vec<u8>,
    /// Its length in bytes.
    pub n_bytes: u64,
    /// Whether it is a snapshot, and not commands.
    pub is_snapshot: bool,
}

/// The part of the file that the thread with the baton works with.
pub struct FileState<D: Disk> {
    open: Option<OpenFile<D>>,
    /// The number of files so far. A sync may end when its file is closed and another one is open.
    n_files: u64,
    synced_at: Duration,
    /// The duration of the last sync, and the number of tickets that it covered.
    sync_took: Duration,
    n_synced: u64,
}

/// An open file.
struct OpenFile<D: Disk> {
    aof: Aof<D>,
    /// The place of the first piece that is not written.
    cursor: Cursor,
    /// The last ticket that was appended. A file without a base does not count as written up to there.
    appended: Ticket,
    /// The pieces before the next cut are in the base of the file.
    skips_to_cut: bool,
    /// The history to which the stream belongs, if another server may know it.
    history: Option<ReplicationId>,
    /// All data was replaced, and the file has no base with that yet. Its data is of no history until then.
    awaits_base: Option<AwaitedBase>,
}

/// The state of the base with replaced data.
#[derive(Clone, Copy, PartialEq, Eq)]
enum AwaitedBase {
    /// The next base has it.
    Next,
    /// The base that is being written has it.
    Begun,
}

/// Whether this thread may do work that waits for the disk: pass a cut, or begin an increment anew.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Waiting {
    IsForThis,
    IsForSyncer,
}

impl<D: Disk, H: Host> AofFile<D, H> {
    /// The closed file of a stream of `n_threads` threads.
    pub fn new(n_threads: usize, host: H) -> Self {
        let (synced_at, sync_took) = (host.now(), Duration::ZERO);
        let state = FileState { open: None, n_files: 0, synced_at, sync_took, n_synced: 0 };
        Self {
            stream: ChangeStream::new(n_threads, state),
            host,
            is_writing: AtomicBool::new(false),
            has_file: AtomicBool::new(false),
            written: CachePadded::default(),
            synced: CachePadded::default(),
            synced_place: AtomicU64::new(0),
            gathers_to: CachePadded::default(),
            is_syncing: AtomicBool::new(false),
            policy: AtomicU8::new(SyncPolicy::default() as u8),
            skips_syncs: AtomicBool::new(false),
            keeps_history: AtomicBool::new(false),
            tells_time: AtomicBool::new(false),
            merged_bytes: AtomicUsize::new(0),
            behind_max: AtomicUsize::new(usize::MAX),
            n_delayed: AtomicU64::new(0),
            has_failed_to_write: AtomicBool::new(false),
            has_lost: AtomicBool::new(false),
            n_bytes: AtomicU64::new(0),
            n_bytes_before: AtomicU64::new(0),
            n_bytes_rewritten: AtomicU64::new(0),
            needs_base: AtomicBool::new(false),
            n_cuts: AtomicU64::new(0),
            is_cut: AtomicBool::new(false),
            chores: SegQueue::new(),
        }
    }

    /// The stream whose records the file gets.
    pub fn stream(&self) -> &ChangeStream<FileState<D>> {
        &self.stream
    }

    /// The surroundings.
    pub fn host(&self) -> &H {
        &self.host
    }

    /// Sets when the file is synced.
    pub fn set_policy(&self, policy: SyncPolicy) {
        self.policy.store(policy as u8, Ordering::Relaxed);
    }

    /// Sets whether superfluous files stay after a rewrite.
    pub fn keep_history(&self, keeps: bool) {
        self.keeps_history.store(keeps, Ordering::Relaxed);
    }

    /// Sets whether the time is logged.
    pub fn log_time(&self, tells: bool) {
        self.tells_time.store(tells, Ordering::Relaxed);
    }

    /// Sets whether syncs are skipped, which they are during a snapshot if the operator wishes that.
    pub fn skip_syncs(&self, skips: bool) {
        self.skips_syncs.store(skips, Ordering::Relaxed);
    }

    /// Sets the number of unwritten bytes from which on replies wait although a sync is in progress.
    pub fn set_behind_max(&self, n_bytes: usize) {
        self.behind_max.store(n_bytes, Ordering::Relaxed);
    }

    /// Whether units write to the file.
    #[inline]
    pub fn is_writing(&self) -> bool {
        self.is_writing.load(Ordering::Relaxed)
    }

    /// Whether there is a file. It outlives [`is_writing`](Self::is_writing): its end is synced first, and
    /// only then may another server have its folder.
    pub fn has_file(&self) -> bool {
        // Acquire pairs with the Release in `close`: the folder's lock is released before anyone learns of
        // the end.
        self.has_file.load(Ordering::Acquire)
    }

    /// Whether writes should be refused: a write has failed and none has succeeded since, or a sync has
    /// failed.
    pub fn has_failed(&self) -> bool {
        self.has_failed_to_write.load(Ordering::Relaxed) || self.has_lost()
    }

    /// Whether a sync has failed, so that only a rewrite makes the file whole again.
    pub fn has_lost(&self) -> bool {
        self.has_lost.load(Ordering::Relaxed)
    }

    /// The length of all files, now and at the last rewrite or the start, in bytes.
    pub fn sizes(&self) -> (u64, u64) {
        let now = self.n_bytes_before.load(Ordering::Relaxed) + self.n_bytes.load(Ordering::Relaxed);
        (now, self.n_bytes_rewritten.load(Ordering::Relaxed))
    }

    /// Whether a sync is in progress.
    pub fn is_syncing(&self) -> bool {
        self.is_syncing.load(Ordering::Relaxed)
    }

    /// The memory of the records that are published and not written, in bytes.
    pub fn unwritten_bytes(&self) -> usize {
        self.stream.intake().unmerged_bytes() + self.merged_bytes.load(Ordering::Relaxed)
    }

    /// Whether logged commands count only once the file has its base.
    pub fn needs_base(&self) -> bool {
        self.is_writing() && self.needs_base.load(Ordering::Relaxed)
    }

    /// Whether so much is unwritten that replies wait although a sync is in progress.
    pub fn is_far_behind(&self) -> bool {
        self.unwritten_bytes() >= self.behind_max()
    }

    /// The number of unwritten bytes from which on replies wait although a sync is in progress.
    pub fn behind_max(&self) -> usize {
        self.behind_max.load(Ordering::Relaxed)
    }

    /// The number of syncs that took more than [two seconds](DELAYED).
    pub fn n_delayed(&self) -> u64 {
        self.n_delayed.load(Ordering::Relaxed)
    }

    /// Opens the file, whose parts have `n_bytes`. All shards are held, and have begun to record.
    ///
    /// `writer` is the calling thread's. Records that are in the intake already are in the file or nowhere.
    /// `history` is that of the stream, if another server may know it.
    pub fn begin(&self, aof: Aof<D>, n_bytes: u64, history: Option<ReplicationId>, writer: &mut Writer) {
        self.stream.add_cut(writer);
        self.n_bytes.store(aof.increment_bytes(), Ordering::Relaxed);
        self.n_bytes_before.store(n_bytes.saturating_sub(aof.increment_bytes()), Ordering::Relaxed);
        self.n_bytes_rewritten.store(n_bytes, Ordering::Relaxed);
        let mut held = self.stream.take();
        let cursor = held.merger.cursor();
        let (appended, skips_to_cut, awaits_base) = (0, true, None);
        held.consumer.open = Some(OpenFile { aof, cursor, appended, skips_to_cut, history, awaits_base });
        held.consumer.n_files += 1;
        drop(held);
        self.has_file.store(true, Ordering::Relaxed);
        self.is_writing.store(true, Ordering::Relaxed);
    }

    /// Opens a file that has no base yet. Its base begins at the same moment.
    pub fn begin_aside(&self, aof: Aof<D>, history: Option<ReplicationId>, writer: &mut Writer) {
        self.needs_base.store(true, Ordering::Relaxed);
        self.begin(aof, 0, history, writer);
    }

    /// Ends the writing of units. All shards are held. After that the file must be [closed](Self::close).
    pub fn end(&self) {
        self.is_writing.store(false, Ordering::Relaxed);
    }

    /// Writes everything published. Returns whether the file has everything up to a ticket, or no more can be
    /// written.
    pub fn is_written_up_to(&self, last: Ticket) -> bool {
        let mut held = self.stream.take();
        self.write(&mut held, Waiting::IsForThis);
        let appended = held.consumer.open.as_ref().map_or(Ticket::MAX, |open| open.appended);
        self.has_failed() || appended >= last
    }

    fn policy(&self) -> SyncPolicy {
        const ALWAYS: u8 = SyncPolicy::Always as u8;
        const NEVER: u8 = SyncPolicy::Never as u8;
        match self.policy.load(Ordering::Relaxed) {
            ALWAYS => SyncPolicy::Always,
            NEVER => SyncPolicy::Never,
            _ => SyncPolicy::EverySecond,
        }
    }

    /// Whether the policy is [`SyncPolicy::Always`], though syncs may be skipped at the moment.
    pub fn is_always(&self) -> bool {
        self.policy() == SyncPolicy::Always
    }

    fn syncs_always(&self) -> bool {
        self.is_always() && !self.skips_syncs.load(Ordering::Relaxed)
    }

    /// Whether data must be on disk before a reply may show it.
    #[inline]
    pub fn holds_back_reads(&self) -> bool {
        self.is_writing() && self.syncs_always()
    }

    /// The last ticket whose replies may leave.
    pub fn reached(&self) -> Ticket {
        if !self.is_writing() {
            return Ticket::MAX;
        }
        // Acquire pairs with the Release of the stores: synced data is on disk.
        if self.syncs_always() {
            return self.synced.load(Ordering::Acquire);
        }
        // As in Redis, a slow disk delays only clients that asked for that, unless too much is unwritten.
        let is_slow = self.is_syncing.load(Ordering::Relaxed)
            && !self.has_failed()
            && self.policy() == SyncPolicy::EverySecond;
        if is_slow && !self.is_far_behind() {
            return Ticket::MAX;
        }
        // Acquire pairs with the Release of the stores, as above.
        self.written.load(Ordering::Acquire)
    }

    /// The last ticket that is on disk, if the file is open. Until the file has a base that is none.
    pub fn synced(&self) -> Option<Ticket> {
        if self.needs_base() {
            return Some(0);
        }
        // Acquire pairs with the Release of the stores, as in `reached`.
        self.is_writing().then(|| self.synced.load(Ordering::Acquire))
    }

    /// The place of the history up to which the file is on disk; 0 if it is of none.
    pub fn synced_place(&self) -> Lsn {
        Lsn(self.synced_place.load(Ordering::Relaxed))
    }

    /// Wakes the syncer if something is published and not written.
    pub fn poke_if_behind(&self) {
        if !self.is_writing() || !self.stream.intake().has_published() {
            return;
        }
        // Pairs with the fence in `gather`. Either this thread finds that the syncer gathers no more, or the
        // syncer finds the published records.
        fence(Ordering::SeqCst);
        if self.stream.intake().last_ticket() >= self.gathers_to.load(Ordering::Relaxed) {
            self.host.wake_syncer();
        }
    }

    /// The time for which the syncer lets other threads add to its next sync, if it should. It is woken as
    /// soon as there is as much as the last time.
    ///
    /// Clients whose replies have just left mostly send again at once. A sync costs the same for one client
    /// as for all of them, and each has to wait for it in any case. A single client waits for nobody.
    pub fn gather(&self, has_advanced: bool) -> Option<Duration> {
        const LEAST: Duration = Duration::from_micros(100);
        const MOST: Duration = Duration::from_millis(2);
        if !self.syncs_always() {
            self.gathers_to.store(0, Ordering::Relaxed);
            return None;
        }
        let time = has_advanced.then(|| {
            let held = self.stream.take();
            let gathers_to = held.merger.merged() + held.consumer.n_synced;
            self.gathers_to.store(gathers_to, Ordering::Relaxed);
            (held.consumer.sync_took * 3).clamp(LEAST, MOST)
        });
        if time.is_none() {
            self.gathers_to.store(0, Ordering::Relaxed);
        }
        // Pairs with the fence in `poke_if_behind`.
        fence(Ordering::SeqCst);
        let intake = self.stream.intake();
        let is_enough = intake.last_ticket() >= self.gathers_to.load(Ordering::Relaxed);
        if is_enough && intake.has_published() { Some(Duration::ZERO) } else { time }
    }

    /// Merges and writes everything published, unless another thread does so at that moment or must. Threads
    /// that serve sockets call this at the end of their turns. Returns whether more is written than before,
    /// or in the stream for its subscribers.
    pub fn advance(&self) -> bool {
        if self.holds_back_reads() {
            self.poke_if_behind();
            return false;
        }
        let mut has_written = false;
        if !self.stream.intake().has_published() {
            return false;
        }
        self.stream.run(|held| {
            // It is set with the baton. A write to a file that is being synced waits for the sync.
            if self.is_syncing.load(Ordering::Relaxed) {
                has_written |= held.merger.has_subscribers() && self.merge(held);
                return ControlFlow::Break(());
            }
            has_written |= self.write(held, Waiting::IsForSyncer);
            ControlFlow::Continue(())
        });
        has_written
    }

    /// Merges everything published. Returns whether there was something.
    fn merge(&self, held: &mut Held<FileState<D>>) -> bool {
        let mut has_merged = false;
        while held.merger.merge(self.stream.intake()) {
            has_merged = true;
        }
        if let Some(open) = &held.consumer.open {
            self.merged_bytes.store(held.merger.allocated_behind(&open.cursor), Ordering::Relaxed);
        }
        has_merged
    }

    /// Merges and writes everything published. Returns whether more is written than before, or in the stream
    /// for its subscribers.
    fn write(&self, held: &mut Held<FileState<D>>, waiting: Waiting) -> bool {
        let Held { merger, consumer } = held;
        let Some(open) = &mut consumer.open else {
            if merger.has_subscribers() {
                return self.merge(held);
            }
            merger.discard(self.stream.intake());
            return false;
        };
        let end = merger.end();
        let before = self.written.load(Ordering::Relaxed);
        let mut can_go_on = self.prepare(&mut open.aof, waiting);
        loop {
            self.merged_bytes.store(merger.allocated_behind(&open.cursor), Ordering::Relaxed);
            while can_go_on && open.cursor.peek().is_some() {
                can_go_on = self.consume(open, waiting).is_continue();
                self.merged_bytes.store(merger.allocated_behind(&open.cursor), Ordering::Relaxed);
            }
            // A file that is stuck must not make the other consumers wait.
            if !(can_go_on || merger.has_subscribers()) || !merger.merge(self.stream.intake()) {
                break;
            }
        }
        self.written.load(Ordering::Relaxed) != before || merger.has_subscribers() && merger.end() != end
    }

    /// Writes or passes the next piece, unless the disk refuses it or another thread must do so.
    fn consume(&self, open: &mut OpenFile<D>, waiting: Waiting) -> ControlFlow<()> {
        let Some(piece) = open.cursor.peek() else { return ControlFlow::Break(()) };
        let (aof, last) = (&mut open.aof, piece.last);
        if open.skips_to_cut {
            match &piece.kind {
                PieceKind::Cut if open.history.is_some() && !self.prepare(aof, waiting) => {
                    return ControlFlow::Break(());
                }
                PieceKind::Cut => {
                    self.tell_history(aof, open.history, piece.start)?;
                    open.skips_to_cut = false;
                    // Replies wait for nothing before the cut any more.
                    open.appended = last;
                    self.note_written(aof, last);
                }
                PieceKind::Turn(turn) => open.history = turn.id,
                _ => {}
            }
            open.cursor.pass();
            return ControlFlow::Continue(());
        }
        // A cut before this piece may have left the manifest in doubt.
        let is_prepared = |aof: &mut Aof<D>| match self.prepare(aof, waiting) {
            true => ControlFlow::Continue(()),
            false => ControlFlow::Break(()),
        };
        match &piece.kind {
            PieceKind::Units => {
                is_prepared(aof)?;
                self.append(aof, |aof| aof.append(&piece.bytes, piece.ends(), piece.start))?;
            }
            PieceKind::Apart(part) => {
                if !part.ends.is_empty() {
                    is_prepared(aof)?;
                    self.append(aof, |aof| aof.append_own(part))?;
                }
            }
            PieceKind::Mark(_) => {}
            PieceKind::Turn(turn) => {
                is_prepared(aof)?;
                let (turn, at) = (turn.clone(), piece.start);
                self.turn(open, &turn, at)?;
            }
            PieceKind::Cut if waiting == Waiting::IsForThis => {
                self.cut(aof);
                if let Some(awaited) = &mut open.awaits_base {
                    *awaited = AwaitedBase::Begun;
                }
            }
            PieceKind::Cut => {
                self.host.wake_syncer();
                return ControlFlow::Break(());
            }
        }
        self.pass(open, last)
    }

    /// Passes a piece. If what the stream has at its end is not in the file, the file tells how far that has
    /// come: otherwise a server that begins again from the file would be behind its replicas. The next piece
    /// does so, or a frame of its own.
    fn pass(&self, open: &mut OpenFile<D>, last: Ticket) -> ControlFlow<()> {
        let mut after = open.cursor.clone();
        after.pass();
        let is_told = open.aof.history().is_none_or(|(_, place)| place == after.lsn())
            // A place that lags behind is no fault, and nothing may be appended now.
            || open.aof.must_begin_anew();
        if !is_told && open.cursor.is_at_last() {
            self.append(&mut open.aof, |aof| aof.advance(after.lsn()))?;
        }
        let tells_later = !is_told && !open.cursor.is_at_last();
        (open.cursor, open.appended) = (after, last);
        if !tells_later {
            self.note_written(&open.aof, last);
        }
        ControlFlow::Continue(())
    }

    /// Notes in the file that the history has become another one.
    fn turn(&self, open: &mut OpenFile<D>, turn: &Turn, at: Lsn) -> ControlFlow<()> {
        let is_replaced = turn.jump.is_some() || open.awaits_base.is_some();
        let id = turn.id.filter(|_| !is_replaced);
        self.tell_history(&mut open.aof, id, at)?;
        open.history = turn.id;
        // The places of another history say nothing about this one.
        self.synced_place.store(0, Ordering::Relaxed);
        if turn.jump.is_some() {
            open.awaits_base = Some(AwaitedBase::Next);
        }
        ControlFlow::Continue(())
    }

    /// Writes to the file to which history the data belongs. A file of none writes nothing, and reserves
    /// nothing for that.
    fn tell_history(&self, aof: &mut Aof<D>, id: Option<ReplicationId>, at: Lsn) -> ControlFlow<()> {
        match id.is_none() && aof.history().is_none() {
            true => ControlFlow::Continue(()),
            false => self.append(aof, |aof| aof.tell_history(id, at)),
        }
    }

    /// Prepares the file for the next append. Returns whether it is ready.
    fn prepare(&self, aof: &mut Aof<D>, waiting: Waiting) -> bool {
        aof.tell_time(self.tells_time.load(Ordering::Relaxed).then(|| self.host.unix_seconds()));
        if !aof.must_begin_anew() {
            return true;
        }
        if waiting == Waiting::IsForSyncer {
            self.host.wake_syncer();
            return false;
        }
        self.judge(aof.begin_anew())
    }

    /// Appends something.
    fn append(
        &self,
        aof: &mut Aof<D>,
        append: impl FnOnce(&mut Aof<D>) -> io::Result<()>,
    ) -> ControlFlow<()> {
        let began = self.begins();
        self.host.before_write();
        // Records in progress mostly fit into the space that was reserved before, even if the disk is full.
        let reserved = aof.reserve();
        let appended = append(aof);
        self.note_time(Timed::Write, began);
        if !self.judge(appended) {
            return ControlFlow::Break(());
        }
        self.judge(reserved);
        self.n_bytes.store(aof.increment_bytes(), Ordering::Relaxed);
        ControlFlow::Continue(())
    }

    /// Notes that everything up to a ticket is in the file. After a failed sync, the content of the new
    /// increment counts once there is a base: no manifest names the increment before that.
    fn note_written(&self, aof: &Aof<D>, appended: Ticket) {
        if !(aof.is_aside() && self.has_lost()) {
            // Release pairs with the Acquire of `reached`.
            self.written.store(appended, Ordering::Release);
        }
    }

    /// Checks whether the disk has space again, if no unwritten piece would show that.
    fn retry(&self, open: &mut OpenFile<D>) {
        let is_idle = open.cursor.peek().is_none();
        if is_idle && self.has_failed() && !self.has_lost() && !open.aof.must_begin_anew() {
            self.judge(open.aof.reserve());
        }
    }

    /// The work of the syncer: writes everything that other threads may not write, and syncs if it is time.
    /// Returns whether replies may leave that could not before.
    pub fn sync_if_due(&self) -> bool {
        if !self.is_writing() {
            return false;
        }
        let mut held = self.stream.take();
        let mut has_advanced = self.write(&mut held, Waiting::IsForThis);
        let (written, n_files) = (self.written.load(Ordering::Relaxed), held.consumer.n_files);
        let FileState { open: Some(open), synced_at, .. } = &mut held.consumer else { return false };
        self.retry(open);
        let is_due = match self.policy() {
            _ if self.skips_syncs.load(Ordering::Relaxed) => false,
            SyncPolicy::Never => false,
            SyncPolicy::Always => true,
            SyncPolicy::EverySecond => self.host.now().saturating_sub(*synced_at) >= SYNC_EVERY,
        };
        // After a failed sync the data may be lost, and another sync would not tell.
        if !is_due || written == self.synced.load(Ordering::Relaxed) || self.has_lost() {
            drop(held);
            // Another thread may have published meanwhile and found the baton taken.
            return self.advance() || has_advanced;
        }
        let (current, offset, history) = (open.aof.current(), open.aof.offset(), open.aof.history());
        self.is_syncing.store(true, Ordering::Relaxed);
        let began = self.host.now();
        *synced_at = began;
        drop(held);
        let synced = current.sync();
        let mut held = self.stream.take();
        held.consumer.sync_took = self.host.now().saturating_sub(began);
        held.consumer.n_synced = written - self.synced.load(Ordering::Relaxed);
        if self.is_always() {
            self.host.took(Timed::SyncAlways, held.consumer.sync_took);
        }
        self.n_delayed.fetch_add(u64::from(held.consumer.sync_took > DELAYED), Ordering::Relaxed);
        self.is_syncing.store(false, Ordering::Relaxed);
        let is_same = held.consumer.n_files == n_files;
        if let Some(open) = held.consumer.open.as_mut().filter(|_| is_same) {
            match synced {
                Ok(()) => {
                    open.aof.note_safe(offset);
                    // Release pairs with the Acquire of `reached`.
                    self.synced.store(written, Ordering::Release);
                    // The history may have become another one meanwhile.
                    let id = |history: Option<(ReplicationId, Lsn)>| history.map(|(id, _)| id);
                    let place = history.filter(|_| id(history) == id(open.aof.history()));
                    self.synced_place.store(place.map_or(0, |(_, place)| place.0), Ordering::Relaxed);
                    has_advanced = true;
                }
                Err(error) => {
                    open.aof.note_lost();
                    self.note_lost(&error);
                }
            }
        }
        has_advanced |= self.write(&mut held, Waiting::IsForThis);
        drop(held);
        self.advance() || has_advanced
    }

    /// Goes on with a new increment: later records are not in the base that is being written.
    fn cut(&self, aof: &mut Aof<D>) {
        let n_bytes = aof.increment_bytes();
        // As with a sync, only clients that asked for that wait.
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
            Err(error) => self.host.tell(News::CutFailed(&error)),
        }
        // Release pairs with the Acquire of `n_cuts`.
        self.n_cuts.fetch_add(1, Ordering::Release);
    }

    /// The number of passed cuts.
    pub fn n_cuts(&self) -> u64 {
        // Acquire pairs with the Release of `cut`.
        self.n_cuts.load(Ordering::Acquire)
    }

    /// Whether a new increment was begun at the cut after `n_before` others, if the file has passed that.
    pub fn was_cut(&self, n_before: u64) -> Option<bool> {
        (self.n_cuts() > n_before).then(|| self.is_cut.load(Ordering::Relaxed))
    }

    /// Orders that a file becomes the base of everything written since the cut. The result is sent; after an
    /// error of the disk the files hold as before.
    pub fn order_end_of_rewrite(&self, base: Base) -> Receiver<io::Result<()>> {
        let (tell, told) = sync_channel(1);
        self.order(Chore::EndRewrite(base, tell));
        told
    }

    /// Orders that superfluous files are removed, unless they are kept.
    pub fn order_tidying(&self) {
        self.order(Chore::Tidy);
    }

    fn order(&self, chore: Chore) {
        self.chores.push(chore);
        self.host.wake_syncer();
    }

    /// Does the work that was ordered from the syncer. After that the syncer must check for published
    /// records.
    pub fn do_chores(&self) {
        while let Some(chore) = self.chores.pop() {
            match chore {
                Chore::EndRewrite(base, tell) => {
                    let ended = self.end_rewrite(&base);
                    // When the server stops, the saver does not wait for it.
                    let _ = tell.send(ended);
                }
                Chore::Tidy => {
                    if let Some(open) = &mut self.stream.take().consumer.open {
                        self.remove_history(&mut open.aof);
                    }
                }
            }
        }
    }

    fn end_rewrite(&self, base: &Base) -> io::Result<()> {
        let mut held = self.stream.take();
        let Some(open) = &mut held.consumer.open else { return Ok(()) };
        let OpenFile { aof, appended, .. } = open;
        let began = self.begins();
        // As with a sync, only clients that asked for that wait.
        self.is_syncing.store(true, Ordering::Relaxed);
        let ended = aof.end_rewrite(&base.written_as, base.is_snapshot);
        self.note_time(Timed::Rename, began);
        if ended.is_ok() {
            self.remove_history(aof);
        }
        self.is_syncing.store(false, Ordering::Relaxed);
        ended?;
        self.n_bytes_before.store(base.n_bytes, Ordering::Relaxed);
        self.n_bytes_rewritten.store(base.n_bytes + aof.increment_bytes(), Ordering::Relaxed);
        self.needs_base.store(false, Ordering::Relaxed);
        // The new base has everything that may have been lost, unless that was lost since the cut.
        if !aof.is_lost() && self.has_lost.swap(false, Ordering::Relaxed) {
            self.note_written(aof, *appended);
            self.host.tell(News::WholeAgain);
        }
        if open.awaits_base == Some(AwaitedBase::Begun) {
            // If this fails, the file is of no history until the next base.
            let (id, at) = (open.history, open.cursor.lsn());
            if self.tell_history(&mut open.aof, id, at).is_continue() {
                open.awaits_base = None;
            }
        }
        Ok(())
    }

    fn remove_history(&self, aof: &mut Aof<D>) {
        if self.keeps_history.load(Ordering::Relaxed) {
            return;
        }
        if let Err(error) = aof.remove_history() {
            self.host.tell(News::HistoryStays(&error));
        }
    }

    /// Notes the result of an attempt to write. Returns whether it has succeeded.
    fn judge(&self, result: io::Result<()>) -> bool {
        let Err(error) = result else {
            if self.has_failed_to_write.swap(false, Ordering::Relaxed) {
                self.host.tell(News::WritesAgain);
            }
            return true;
        };
        if !self.has_failed_to_write.swap(true, Ordering::Relaxed) {
            self.host.tell(News::WriteFails(&error));
            // The syncer tries again at intervals. If each failure woke it, it would never rest.
            self.host.wake_syncer();
        }
        false
    }

    fn note_lost(&self, error: &io::Error) {
        if !self.has_lost.swap(true, Ordering::Relaxed) {
            self.host.tell(News::SyncFailed(error));
        }
    }

    /// The beginning of a timed operation, if times are wanted.
    fn begins(&self) -> Option<Duration> {
        self.host.is_timed().then(|| self.host.now())
    }

    fn note_time(&self, operation: Timed, began: Option<Duration>) {
        if let Some(began) = began {
            self.host.took(operation, self.host.now().saturating_sub(began));
        }
    }

    /// Writes and syncs everything published, and closes the file. A file without a base is removed. Returns
    /// whether everything has succeeded, if there was a file.
    pub fn close(&self) -> bool {
        let mut held = self.stream.take();
        self.write(&mut held, Waiting::IsForThis);
        let is_whole = !held.consumer.has_unwritten() && !self.has_lost();
        self.end();
        self.merged_bytes.store(0, Ordering::Relaxed);
        let Some(OpenFile { aof, .. }) = held.consumer.open.take() else { return true };
        drop(held);
        let closed = match self.needs_base.swap(false, Ordering::Relaxed) {
            true => aof
                .give_up_aside()
                .map(|names| names.iter().for_each(|name| self.host.tell(News::RemovedAside(name)))),
            false => aof.close(),
        };
        // Release pairs with the Acquire in `has_file`.
        self.has_file.store(false, Ordering::Release);
        if let Err(error) = &closed {
            self.host.tell(News::CloseFailed(error));
        }
        // The next file begins anew.
        self.has_lost.store(false, Ordering::Relaxed);
        self.has_failed_to_write.store(false, Ordering::Relaxed);
        closed.is_ok() && is_whole
    }
}

impl<D: Disk> FileState<D> {
    /// Whether a piece is merged and not written.
    fn has_unwritten(&self) -> bool {
        self.open.as_ref().is_some_and(|open| open.cursor.peek().is_some())
    }
}

#[cfg(test)]
mod history_tests;
#[cfg(test)]
mod tests;
