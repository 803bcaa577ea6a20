//! The saver: the thread that writes snapshots.
//!
//! ```text
//! cut     its node takes all shards for a moment, and each begins to save (`Task::Cut`)
//! walk    shard by shard, 50 µs a hold, by the I/O threads (`WalkStep`): the saver compresses,
//!         sums and writes the results of each step with nothing held, and early values before them
//! end     the file is synced and renamed, and then its folder is synced
//! ```
//!
//! It waits for no shard: one that another thread holds is tried again after the others. `snapshot.rs` of
//! `braid_storage` explains how a shard keeps its values of the cut. After any failure the walk continues to
//! its end, so that no shard is left saving. Its results are then discarded.

use std::{
    cell::Cell,
    collections::VecDeque,
    fs::{self, File},
    io::{self, Write},
    os::unix::fs::FileExt,
    path::Path,
    sync::{
        Arc,
        atomic::{
            Ordering::{Acquire, Relaxed},
            fence,
        },
        mpsc::{Receiver, RecvTimeoutError},
    },
    time::Duration,
};

use braid_journal::{
    aof_file::Base,
    disk::Folder,
    faults::{LogFolder, Operation},
    store::{self, Aof},
};
use braid_protocol::reply::Reply;
use braid_storage::{
    entry::{EntryBox, db::Db},
    keyspace::shard::saving::{Form, Uses},
    memory::{allocator, reclaim},
    observers::{
        record,
        snapshot::{FlushedPart, Parts, PinnedPart, SaveStep},
    },
    sync::{
        coordinator::{Held, Route, Weight, Worker},
        executor::Node,
    },
    table::hash::ShardId,
};
use mio::{Events, Poll};

use super::{copies::place_of, snapshot_output::Snapshot};
use crate::{
    catalog::CommandError,
    client::{
        id::{ClientId, Endpoint, Origin},
        node::{Cut, Job, LogCut, Task},
        record::ClientRecord,
        session::{LogBegun, Reloading, SaveOrder, Session},
    },
    clock::Instant,
    command,
    config::Config,
    durability::Durability,
    log, notice,
    persist::{self, Loaded, Purpose, SnapshotPlace, litter},
    replication::full_copy::FullCopy,
    run::unit,
    saving::replay::{FoundAof, ReplayError, Then, UNFINISHED, replay},
    scripting::functions::Existing,
    shared::{
        mail::Mail,
        saves::{PendingSave, WalkStep},
        server::Server,
        thread_state::ThreadState,
    },
    warning,
};

/// The most steps in progress. The saver writes the results of one while threads take the next.
const STEPS_MAX: usize = 4;
/// If no step has ended after this time, the saver writes early values.
const STEP_PATIENCE: Duration = Duration::from_millis(2);
/// The nice value of the saver, so that other threads get a core first. At 12 the clients of a busy server
/// hardly notice a snapshot. At 5, one in a thousand requests waits a millisecond or two longer. At 15, a
/// snapshot takes longer than Redis's where all cores are busy.
const NICENESS: i32 = 12;
/// Bytes of early values that are written at once.
const EARLY_BYTES_AT_ONCE: usize = 256 << 10;
/// Bytes of early values above which the saver does not rest. Clients then write so fast that an early end
/// serves them best.
const EARLY_BYTES_FEW: usize = 16 << 10;
/// Bytes of early values above which the saver only writes early values.
const EARLY_BYTES_MANY: usize = 1 << 20;
/// Bytes of early values at which writes are held back, until less than [`EARLY_BYTES_MANY`] is left.
const EARLY_BYTES_MAX: usize = 8 << 20;
/// The time of work after which the saver rests. No thread waits longer for its core.
const WORK_TIME: Duration = Duration::from_micros(200);
/// A rest is this many times as long as the work before it.
const REST_TIMES: u32 = 1;
/// Work beyond this is not counted. It may have been a wait for the disk.
const MOST_WORK_TIME: Duration = Duration::from_micros(500);
/// How long the saver waits when other threads hold all shards that are left.
pub(super) const BUSY_REST: Duration = Duration::from_micros(200);
/// How often the saver checks the save points.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// The length of one sleep where `rdb-key-save-delay` is configured.
const REST_SLICE: Duration = Duration::from_millis(10);
/// How often a shard may panic while a snapshot is given up.
const PANICS_MAX: u32 = 100;
/// Seconds after a failure during which the save points are ignored.
const RETRY_SECONDS: u64 = 5;

/// Takes snapshots until the server stops.
pub fn run_saver(server: &'static Server, index: usize, poll: Poll) {
    // If this fails, the saver competes for cores like other threads. No report is needed.
    let _: Result<(), rustix::io::Errno> = rustix::process::setpriority_process(None, NICENESS);
    let mut saver = Saver::new(server, index, poll);
    while !server.stopping.load(Relaxed) {
        saver.turn();
    }
}

pub(super) struct Saver {
    pub(super) server: &'static Server,
    pub(super) worker: Worker<Job>,
    poll: Poll,
    events: Events,
    /// The node that takes all shards. Absent while it does.
    node: Option<Box<Node<Job>>>,
    /// The commands that wait for a snapshot, in order.
    orders: VecDeque<PendingSave>,
    /// The order in progress.
    fulfilling: Option<SaveOrder>,
    /// The round of the last order to end the server.
    ending_in: u64,
    /// The copy for replicas that it makes.
    copying: Option<Arc<FullCopy>>,
    /// The length to which the history of the change stream was last limited, in bytes.
    pub(super) history_bytes: u64,
    /// It writes the base of the log. The base is useless once the log is turned off.
    writes_base: bool,
    /// The delay of rewrites after failures, in minutes, as last reported to the server log.
    told_limit: Option<u64>,
    /// Whether superfluous files of the append-only file were kept at the last check.
    keeps_history: bool,
    /// Whether entries may be marked as saved although they are not. A snapshot that panicked again and again
    /// was not brought to its end.
    has_stale_marks: bool,
    /// Whether the append-only file still lacks a data set that was loaded at run time.
    owes_rewrite: bool,
    /// An append-only file that was begun for a CONFIG SET that takes effect next.
    begun: Option<Begun>,
}

/// An append-only file without records.
struct Begun {
    aof: Aof<LogFolder>,
    /// The session for which it was begun shares this until its command has run.
    wanted: Arc<()>,
}

/// The snapshot to which a walk writes, and the representation of uses in it. If absent, the walk makes the
/// shards give up.
type Destination<'a, W> = Option<(&'a mut Snapshot<W>, &'a Uses)>;

/// The reason why there is no snapshot.
pub(super) enum Failure {
    /// The file could not be written.
    Io(&'static str, io::Error),
    /// The server stops, or must be saved anew before it does.
    GivenUp,
}

impl Saver {
    fn new(server: &'static Server, index: usize, poll: Poll) -> Self {
        server.keyspace.early().limit(EARLY_BYTES_MAX, || server.hold_writes());
        let origin = Origin { thread: index, slot: 0 };
        let users = server.accounts.users();
        let nowhere = || Endpoint::Unix(String::new());
        let record = Arc::new(ClientRecord::new(
            ClientId(0),
            origin,
            nowhere(),
            nowhere(),
            -1,
            0,
            users.default_user(),
        ));
        Self {
            server,
            worker: Worker::new(Arc::clone(&server.engine), Weight::Heavy, ThreadState::new(index, server)),
            poll,
            events: Events::with_capacity(4),
            node: Some(Node::new(Job::new(Session::new(record, origin)))),
            orders: VecDeque::new(),
            fulfilling: None,
            ending_in: 0,
            copying: None,
            history_bytes: 0,
            writes_base: false,
            told_limit: None,
            keeps_history: false,
            has_stale_marks: false,
            owes_rewrite: false,
            begun: None,
        }
    }

    /// Fulfils an order or does work that is due. Without either, waits.
    fn turn(&mut self) {
        self.read_orders();
        if let Some(order) = self.orders.pop_front() {
            return self.fulfil(order);
        }
        let saves = &self.server.saves;
        if saves.take_scheduled() || self.is_due() {
            saves.enter();
            let _: bool = self.save();
            return;
        }
        if self.serve_replicas() {
            return;
        }
        if self.server.durability.notes_writes_wrongly() {
            self.with_log(Durability::note_writes);
        }
        let config = self.server.config.load();
        let (is_wanted, keeps_history) = (config.appendonly, config.aof_disable_auto_gc);
        if std::mem::replace(&mut self.keeps_history, keeps_history) && !keeps_history {
            self.tidy();
        }
        match (is_wanted, self.server.durability.aof.is_writing()) {
            _ if self.server.loading.is_on() => {}
            (false, true) => return self.end_log(),
            (true, false) if self.begun.is_some() || self.may_rewrite() => return self.begin_log(),
            (false, false) if self.is_begun_in_vain() => self.give_up_begun(),
            // The command for which it was begun runs in a moment.
            (false, false) if self.begun.is_some() => {}
            (_, is_writing) if self.is_rewrite_due() => {
                return self.rewrite(if is_writing { LogCut::Made } else { LogCut::None });
            }
            _ => {}
        }
        self.sleep(LOOK_EVERY, true);
    }

    /// Whether to rewrite the append-only file. Either a client has asked for it, or the file has grown.
    fn is_rewrite_due(&mut self) -> bool {
        let (server, saves) = (self.server, &self.server.saves);
        // The request stays until the rewrite is reported as in progress.
        if saves.is_rewrite_scheduled.load(Relaxed) {
            return true;
        }
        if !server.durability.aof.is_writing() {
            return false;
        }
        let config = server.config.load();
        let (n_bytes, n_bytes_before) = server.durability.aof.sizes();
        let growth = (n_bytes.saturating_mul(100) / n_bytes_before.max(1)).saturating_sub(100);
        let has_grown = config.auto_aof_rewrite_percentage > 0
            && n_bytes > config.auto_aof_rewrite_min_size
            && growth >= config.auto_aof_rewrite_percentage;
        if has_grown && self.may_rewrite() {
            notice!("Starting automatic rewriting of AOF on {growth}% growth");
            return true;
        }
        // After a loss, writes are refused until a rewrite has repaired it.
        (server.durability.aof.has_lost() || self.owes_rewrite) && self.has_rested(RETRY_SECONDS)
    }

    /// Whether a rewrite may begin. After a failure it waits for a while, and after several for longer.
    fn may_rewrite(&mut self) -> bool {
        let minutes = self.server.saves.rewrite_limit();
        let may_rewrite = self.has_rested(minutes.map_or(RETRY_SECONDS, |minutes| minutes * 60));
        if let Some(minutes) = minutes
            && !may_rewrite
            && self.told_limit.replace(minutes) != Some(minutes)
        {
            warning!(
                "Background AOF rewrite has repeatedly failed and triggered the limit, will retry in {minutes} minutes"
            );
        }
        may_rewrite
    }

    /// Whether this much time has passed since a failed rewrite began. Also true if the last one has not
    /// failed.
    fn has_rested(&self, seconds: u64) -> bool {
        let (server, saves) = (self.server, &self.server.saves);
        let since = server.clock.uptime_millis().saturating_sub(saves.rewrite_began_at.load(Relaxed));
        !saves.has_rewrite_failed.load(Relaxed) || since > seconds * 1000
    }

    /// Begins to log, as CONFIG SET has asked.
    fn begin_log(&mut self) {
        let begun = match self.begun.take() {
            Some(begun) => Some(begun.aof),
            None => self.open_log(),
        };
        match begun {
            Some(aof) => self.rewrite(LogCut::Begun(Some(Box::new(aof)))),
            None => self.server.saves.count_failed_rewrite(),
        }
    }

    /// Opens an append-only file to be begun, unless the disk refuses.
    fn open_log(&self) -> Option<Aof<LogFolder>> {
        let (server, config) = (self.server, self.server.config.load_full());
        let opened = Folder::locked(server.log_folder.clone(), &config.appendfilename).and_then(|folder| {
            let before = store::manifest_in(&folder, &config.appendfilename);
            let before = before.map_err(|error| io::Error::other(format!("its manifest: {error:?}")))?;
            let mut aof = Aof::begin_aside(server.durability.folder(folder), &config.appendfilename, before)?;
            match aof.reserve() {
                Ok(()) => Ok(aof),
                Err(error) => {
                    give_up(aof);
                    Err(error)
                }
            }
        });
        let report = |error: &io::Error| {
            warning!("The append-only file in {} cannot be begun: {error}", server.log_folder.display());
            server.saves.rewrite_began_at.store(server.clock.uptime_millis(), Relaxed);
            server.saves.has_rewrite_failed.store(true, Relaxed);
        };
        opened.inspect_err(report).ok()
    }

    /// Begins an append-only file for a CONFIG SET. The command runs afterwards and finds the result in its
    /// session.
    fn begin_log_for(&mut self, node: Option<(Box<Node<Job>>, bool)>) {
        self.server.saves.note_fulfilled();
        let Some((mut node, _)) = node else { return };
        let server = self.server;
        let begun = if server.config.load().appendonly {
            // Another client has turned it on first.
            LogBegun::Ready(Arc::default())
        } else {
            if server.durability.aof.is_writing() {
                self.end_log();
            }
            if self.begun.is_none() {
                self.begun = self.open_log().map(|aof| Begun { aof, wanted: Arc::default() });
            }
            let wanted = self.begun.as_ref().map(|begun| Arc::clone(&begun.wanted));
            wanted.map_or(LogBegun::Failed, LogBegun::Ready)
        };
        let session = &mut node.job.session;
        session.log_begun = Some(begun);
        let origin = session.origin.thread;
        self.worker.thread.send_home(origin, node);
        self.worker.thread.send_wakes();
    }

    /// Whether an append-only file was begun for a command that has ended without turning it on.
    fn is_begun_in_vain(&self) -> bool {
        let is_over = self.begun.as_ref().is_some_and(|begun| Arc::strong_count(&begun.wanted) == 1);
        // Acquire pairs with the Release in the drop of the other `Arc`. The configuration has changed before
        // that drop.
        fence(Acquire);
        is_over && !self.server.config.load().appendonly
    }

    /// Removes an append-only file that was begun. It is unwanted, or its manifest is about to change.
    fn give_up_begun(&mut self) {
        if let Some(begun) = self.begun.take() {
            give_up(begun.aof);
        }
    }

    /// Stops logging, as CONFIG SET has asked.
    fn end_log(&mut self) {
        let server = self.server;
        let last = Cell::new(0);
        let all = server.engine.all_shards();
        let end = |held: &mut Held<'_, Job>, _: &mut ThreadState| {
            // Replicas may get later records, which the file does not need.
            last.set(server.durability.last_ticket());
            let keeps = server.durability.end();
            for &id in all.iter() {
                held.shard(id).hear_all(record::LOG, keeps);
            }
        };
        while self.worker.with_shards(&all, end).is_none() {
            std::thread::sleep(BUSY_REST);
        }
        // Threads publish their records at the end of their turns.
        while !server.durability.aof.is_written_up_to(last.get()) && !server.stopping.load(Relaxed) {
            std::thread::sleep(BUSY_REST);
        }
        if !server.durability.aof.close() {
            warning!("The append-only file may lack the last writes");
        }
        server.wake_who_awaits_log();
    }

    /// Rewrites the append-only file: the present data becomes its base. If nothing is logged, the base is
    /// the whole file.
    fn rewrite(&mut self, log: LogCut) {
        let (server, saves) = (self.server, &self.server.saves);
        let began = Instant::now();
        let begins = matches!(log, LogCut::Begun(_));
        saves.rewrite_began_at.store(server.clock.uptime_millis(), Relaxed);
        saves.is_rewriting.store(true, Relaxed);
        // As in Redis, this rewrite fulfils the request.
        saves.is_rewrite_scheduled.store(false, Relaxed);
        self.writes_base = !matches!(log, LogCut::None);
        if !self.writes_base {
            self.give_up_begun();
        }
        self.begin_snapshot();
        let written = self.write_base(log);
        server.durability.end_snapshot();
        saves.rewrite_took_seconds.store(began.elapsed().as_secs() as i64, Relaxed);
        // A rewrite given up because the file was turned off has not failed, so the next may begin at once.
        let has_failed = match &written {
            Ok(()) => false,
            Err(Failure::GivenUp) => {
                !self.writes_base || server.config.load().appendonly || saves.is_given_up.load(Relaxed)
            }
            Err(Failure::Io(..)) => true,
        };
        saves.has_rewrite_failed.store(has_failed, Relaxed);
        self.writes_base = false;
        match written {
            Ok(()) => {
                saves.n_rewritten.fetch_add(1, Relaxed);
                saves.n_rewrites_failed.store(0, Relaxed);
                self.told_limit = None;
                self.owes_rewrite = false;
                notice!(
                    "Background AOF rewrite finished successfully in {:.3} seconds",
                    began.elapsed().as_secs_f64()
                );
            }
            Err(failure) => {
                match failure {
                    Failure::GivenUp => warning!("Rewriting the append-only file was given up"),
                    Failure::Io(what, error) => {
                        warning!("Rewriting the append-only file failed while {what}: {error}");
                    }
                }
                if has_failed {
                    saves.count_failed_rewrite();
                }
                if begins {
                    self.end_log();
                }
            }
        }
        saves.is_given_up.store(false, Relaxed);
        saves.is_rewriting.store(false, Relaxed);
        // After a failed sync, replies wait for the base.
        server.wake_who_awaits_log();
    }

    /// Tells the log that a snapshot is being written. The log syncs nothing meanwhile if
    /// `no-appendfsync-on-rewrite` is set.
    pub(super) fn begin_snapshot(&self) {
        self.server.durability.begin_snapshot(self.server.config.load().no_appendfsync_on_rewrite);
    }

    /// Writes a base and makes the manifest name it.
    fn write_base(&mut self, log: LogCut) -> Result<(), Failure> {
        let server = self.server;
        let config = server.config.load_full();
        let uses =
            if config.maxmemory_policy.is_by_use() { Uses::told(&server.keyspace) } else { Uses::left_out() };
        let n_cuts = server.durability.aof.n_cuts();
        let is_cut_here = !matches!(log, LogCut::Made);
        let is_logged = !matches!(log, LogCut::None);
        let form = if config.aof_use_rdb_preamble { Form::Snapshot } else { Form::Commands };
        let Some(cut) = self.cut(uses.clone(), form, log) else { return Err(Failure::GivenUp) };
        let folder = server.log_folder.clone();
        let name = format!("{UNFINISHED}{}.rdb", std::process::id());
        let path = folder.join(&name);
        // The log has locked the folder, or nobody may have it locked.
        let files =
            if is_logged { Ok(Folder::at(folder)) } else { Folder::locked(folder, &config.appendfilename) };
        let files = files.map(|folder| server.durability.folder(folder));
        let files = files.map_err(|error| Failure::Io("opening its folder", error));
        let created = files
            .and_then(|files| Ok((files, create_file(&path, Purpose::Base, &cut, None, &config, server)?)));
        let written = self.check_marks().and(created).and_then(|(mut files, mut snapshot)| {
            self.walk(Some((&mut snapshot, &uses)))?;
            let is_well = server.durability.faults().check(Operation::Base);
            is_well.map_err(|error| Failure::Io("writing", error))?;
            let n_bytes = finish_file(snapshot)?;
            // The thread that syncs is working on the cut, if it has not passed it.
            let was_cut = loop {
                match server.durability.aof.was_cut(n_cuts) {
                    _ if is_cut_here => break true,
                    Some(was_cut) => break was_cut,
                    None if server.stopping.load(Relaxed) => break false,
                    None => std::thread::sleep(BUSY_REST),
                }
            };
            if !was_cut {
                return Err(Failure::GivenUp);
            }
            let is_snapshot = form == Form::Snapshot;
            let ended = match is_logged {
                true => {
                    let base = Base { written_as: name.clone().into_bytes(), n_bytes, is_snapshot };
                    self.await_log(&server.durability.aof.order_end_of_rewrite(base))?
                }
                false => {
                    let name_of_all = &config.appendfilename;
                    let replaced = store::replace(&mut files, name_of_all, name.as_bytes(), is_snapshot);
                    replaced.map(|()| self.tidy())
                }
            };
            ended.map_err(|error| Failure::Io("naming it in the manifest", error))
        });
        if written.is_err() {
            self.give_up_walk();
            let _ = fs::remove_file(&path);
        }
        written
    }

    /// Waits for the result of work of the thread that syncs, unless the server stops.
    fn await_log(&self, told: &Receiver<io::Result<()>>) -> Result<io::Result<()>, Failure> {
        loop {
            match told.recv_timeout(LOOK_EVERY) {
                Ok(ended) => return Ok(ended),
                Err(RecvTimeoutError::Timeout) if !self.server.stopping.load(Relaxed) => {}
                Err(_) => return Err(Failure::GivenUp),
            }
        }
    }

    /// Removes superfluous files of the append-only file, if the configuration allows it.
    fn tidy(&mut self) {
        self.give_up_begun();
        let (server, config) = (self.server, self.server.config.load());
        if server.durability.aof.is_writing() {
            return server.durability.aof.order_tidying();
        }
        let folder = server.log_folder.clone();
        if config.aof_disable_auto_gc || !folder.is_dir() {
            return;
        }
        let removed = Folder::new(folder)
            .and_then(|mut folder| store::remove_history(&mut folder, &config.appendfilename));
        if let Err(error) = removed {
            warning!("What the append-only file needs no more cannot be removed: {error}");
        }
    }

    /// Sleeps for at most this time, until a node comes home or an order arrives. A save or rewrite that is
    /// scheduled while a snapshot is in progress waits for its end.
    pub(super) fn sleep(&mut self, most: Duration, is_idle: bool) {
        let peer = &self.server.threads[self.worker.thread.index];
        let saves = &self.server.saves;
        let may_sleep = peer.inbox.may_sleep(|| {
            let is_asked = saves.is_scheduled() || saves.is_rewrite_scheduled.load(Relaxed);
            !saves.has_next_order() && saves.taken.is_empty() && !(is_idle && is_asked)
        });
        let timeout = if may_sleep { most } else { Duration::ZERO };
        allocator::settle_before_sleep();
        if let Err(error) = self.poll.poll(&mut self.events, Some(timeout))
            && error.kind() != io::ErrorKind::Interrupted
        {
            warning!("The thread that saves cannot wait for events: {error}");
        }
        peer.inbox.awake();
        for node in peer.inbox.take() {
            self.node = Some(node);
        }
    }

    pub(super) fn read_orders(&mut self) {
        while let Some(order) = self.server.saves.next_order() {
            self.orders.push_back(order);
        }
    }

    /// Whether a save point is reached.
    fn is_due(&self) -> bool {
        let (saves, config) = (&self.server.saves, self.server.config.load());
        let now = self.server.clock.steady();
        let since = now.seconds_since(&saves.saved_steady);
        let may_try =
            !saves.has_failed.load(Relaxed) || now.seconds_since(&saves.tried_steady) > RETRY_SECONDS;
        let n_changes = self.server.n_unsaved_changes();
        if self.server.loading.is_on() {
            return false;
        }
        let reached = config.save.iter().find(|point| n_changes >= point.changes && since > point.seconds);
        if let Some(point) = reached.filter(|_| may_try) {
            notice!("{} changes in {} seconds. Saving...", point.changes, point.seconds);
            return true;
        }
        false
    }

    /// Fulfils the order of a command.
    fn fulfil(&mut self, PendingSave { what, round, node }: PendingSave) {
        let refusal = match what {
            SaveOrder::BeginLog => return self.begin_log_for(node),
            SaveOrder::EndLog => {
                // Another client may have turned it on again.
                if self.server.durability.aof.is_writing() && !self.server.config.load().appendonly {
                    self.end_log();
                }
                if self.is_begun_in_vain() {
                    self.give_up_begun();
                }
                None
            }
            SaveOrder::LoadLog => self.load_log().err().map(|why| {
                warning!("DEBUG LOADAOF: {why}");
                "ERR Error trying to load the AOF files, check server logs."
            }),
            SaveOrder::SaveFlushed => return self.save_flushed(node),
            SaveOrder::RewriteCopied => {
                if let Err(why) = self.rewrite_after_load() {
                    warning!("After a copy of the primary's data, {why}");
                }
                self.server.replica.n_logs_rewritten.fetch_add(1, Relaxed);
                None
            }
            SaveOrder::Shutdown | SaveOrder::ForcedShutdown | SaveOrder::Stop => {
                return self.end_server(what, round, node);
            }
            _ => self.save_for(what),
        };
        self.answer(node, refusal);
    }

    /// Saves the data and ends the server. If the server does not end, it continues normally.
    fn end_server(&mut self, what: SaveOrder, round: u64, node: Option<(Box<Node<Job>>, bool)>) {
        let server = self.server;
        let ending = &server.saves.ending;
        ending.ask_still(round);
        self.ending_in = round;
        // This comes before the snapshot: it would lack what replicas are sent until they have everything.
        if server.awaits_replicas_at_end() {
            self.hold_writes_for_end();
            self.await_replicas(round);
        }
        let is_saved =
            !ending.is_called_off(round) && (what == SaveOrder::Stop || self.save_for(what).is_none());
        if server.stopping.load(Relaxed) {
            return;
        }
        server.tell_of_replicas_at_end();
        // As in Redis there is no reply then: the connection ends with the process.
        if (is_saved || what == SaveOrder::ForcedShutdown) && ending.decide(round) {
            return server.stop();
        }
        self.read_orders();
        let is_another = |order: &PendingSave| order.what.is_shutdown() && order.round == round;
        let others = if ending.is_called_off(round) {
            notice!("Shutdown manually aborted.");
            let (others, orders) = std::mem::take(&mut self.orders).into_iter().partition(is_another);
            self.orders = orders;
            others
        } else {
            warning!("Error trying to save the DB, can't exit.");
            warning!("Errors trying to shut down the server. Check the logs for more information.");
            VecDeque::new()
        };
        if !self.orders.iter().any(is_another) {
            ending.refused(round);
        }
        server.let_writes_go_on(&mut self.worker.thread);
        let nodes = std::iter::once(node).chain(others.into_iter().map(|order| order.node));
        nodes.for_each(|node| self.answer(node, Some("ERR Errors trying to SHUTDOWN. Check logs.")));
    }

    /// Holds writes back until the end, unless the last snapshot does. Replicas would lack them.
    fn hold_writes_for_end(&mut self) {
        let server = self.server;
        let all = server.engine.all_shards();
        let hold = |_: &mut Held<'_, Job>, _: &mut ThreadState| server.hold_writes_for_end();
        while self.worker.with_shards(&all, hold).is_none() {
            std::thread::sleep(BUSY_REST);
        }
    }

    /// Takes one snapshot for all clients that have flushed everything by now.
    fn save_flushed(&mut self, node: Option<(Box<Node<Job>>, bool)>) {
        self.read_orders();
        let flushed = self.take_orders(SaveOrder::SaveFlushed);
        // A save scheduled before the cut is fulfilled by it, too.
        let _: bool = self.server.saves.take_scheduled();
        // As in Redis, only INFO and the server log report whether this succeeds.
        let _: Option<&str> = self.save_for(SaveOrder::SaveFlushed);
        self.answer(node, None);
        flushed.into_iter().for_each(|order| self.answer(order.node, None));
    }

    /// Answers a command that has waited for the saver.
    fn answer(&mut self, node: Option<(Box<Node<Job>>, bool)>, refusal: Option<&'static str>) {
        self.server.saves.note_fulfilled();
        let Some((mut node, is_answered)) = node else { return };
        let Job { session, reply, .. } = &mut node.job;
        let start = reply.len();
        match refusal {
            Some(error) => CommandError::text(error).write(&mut Reply::new(reply, session.resp)),
            None => Reply::new(reply, session.resp).ok(),
        }
        if !is_answered {
            reply.truncate(start);
        }
        let origin = session.origin.thread;
        // The client may at once read the memory in use, or limit it by that figure.
        allocator::settle_before_sleep();
        self.worker.thread.send_home(origin, node);
        self.worker.thread.send_wakes();
    }

    /// Saves, and does the work that follows. Returns the error text if this fails.
    fn save_for(&mut self, what: SaveOrder) -> Option<&'static str> {
        self.server.saves.set_awaited(true);
        self.server.saves.is_under_way.store(true, Relaxed);
        self.fulfilling = Some(what);
        let must_save = !matches!(what, SaveOrder::Reload(Reloading { saves: false, .. }));
        let is_saved = !must_save || self.save();
        self.fulfilling = None;
        self.server.saves.set_awaited(false);
        match what {
            SaveOrder::SaveFlushed => None,
            SaveOrder::Save | SaveOrder::Shutdown | SaveOrder::ForcedShutdown if is_saved => None,
            SaveOrder::Save | SaveOrder::Shutdown | SaveOrder::ForcedShutdown => Some("ERR"),
            SaveOrder::Reload(how) if is_saved => self.reload(how).err().map(|why| {
                warning!("DEBUG RELOAD: {why}");
                "ERR Error trying to load the RDB dump, check server logs."
            }),
            SaveOrder::Reload(_) => Some("ERR"),
            SaveOrder::Stop
            | SaveOrder::LoadLog
            | SaveOrder::RewriteCopied
            | SaveOrder::BeginLog
            | SaveOrder::EndLog => {
                unreachable!("it saves nothing")
            }
        }
    }

    /// Replaces all data with the contents of the append-only file. A snapshot in progress keeps the data
    /// from before.
    fn load_log(&mut self) -> Result<(), String> {
        self.give_up_begun();
        let (server, config) = (self.server, self.server.config.load_full());
        let then = if server.durability.aof.is_writing() { Then::Log } else { Then::LogNothing };
        let look = |look: fn(&Path, &Path, &str) -> _| {
            let found: Result<FoundAof, ReplayError> =
                look(&config.dir, &server.log_folder, &config.appendfilename);
            found.map_err(|error| error.to_string())
        };
        let found = look(FoundAof::look_again)?;
        if then == Then::Log && found.is_new() {
            return Err("there is no append-only file".to_owned());
        }
        // Commands before the end of the log are in it, and later ones are refused.
        server.loading.begin_replay();
        server.loading.begin(found.n_bytes(), &server.clock, &server.attention);
        self.part_with_replicas();
        self.end_log();
        let found = look(FoundAof::look).inspect_err(|_| server.loading.end(&server.attention))?;
        self.on_all_shards(|held, _| {
            for &id in server.engine.all_shards().iter() {
                held.shard(id).flush_all();
            }
        });
        let emptied = command::replace_libraries(server, &[]).map_err(|why| why.to_string());
        let replayed = emptied
            .and_then(|()| replay(server, &mut self.worker, found, then).map_err(|error| error.to_string()));
        server.loading.end(&server.attention);
        if let Err(why) = replayed {
            // The data is incomplete: it must be neither served nor written over the files.
            warning!("DEBUG LOADAOF: {why}. Exiting");
            std::process::exit(1);
        }
        self.on_all_shards(|held, thread| {
            if then == Then::LogNothing {
                // The file does not have what came while there was none.
                server.forget_place(thread);
            }
            for &id in server.engine.all_shards().iter() {
                held.shard(id).announce_contents();
            }
        });
        // The loaded data is in a file.
        server.saves.n_changes_saved.store(server.sum(|stats| &stats.changes), Relaxed);
        Ok(())
    }

    /// Loads the snapshot on disk. It replaces all data or is added to it.
    fn reload(&mut self, how: Reloading) -> Result<(), String> {
        let (server, saves) = (self.server, &self.server.saves);
        saves.is_under_way.store(false, Relaxed);
        let config = server.config.load_full();
        let name = config.dir.join(config.dbfilename.clone().unwrap_or_default());
        let mut loaded =
            persist::load(server, &name, server.clock.now()).map_err(|error| error.to_string())?;
        let libraries = std::mem::take(&mut loaded.libraries);
        self.part_with_replicas();
        if !how.flushes {
            return self.add_loaded(loaded, &libraries, how);
        }
        self.install(loaded);
        command::replace_libraries(server, &libraries).map_err(|why| why.to_string())?;
        self.rewrite_after_load()
    }

    /// Rewrites the append-only file, if there is one. This is done before a client learns of a load, because
    /// the load was not logged. If that fails it is tried again, as the file's contents differ from the data.
    fn rewrite_after_load(&mut self) -> Result<(), String> {
        if !self.server.durability.aof.is_writing() {
            return Ok(());
        }
        self.owes_rewrite = true;
        self.rewrite(LogCut::Made);
        match self.owes_rewrite && self.server.durability.aof.is_writing() {
            true => {
                Err("the append-only file does not have what was loaded, and is to be rewritten".to_owned())
            }
            false => Ok(()),
        }
    }

    /// Adds loaded data to the present data. Fails if a key or library exists in both and must stay.
    fn add_loaded(
        &mut self,
        mut loaded: Loaded,
        libraries: &[Vec<u8>],
        how: Reloading,
    ) -> Result<(), String> {
        let server = self.server;
        let router = server.keyspace.router();
        if !how.merges {
            let mut twice = None;
            self.on_all_shards(|held, _| twice = loaded.key_that_is_there(held, router));
            if let Some(key) = twice {
                return Err(format!("the key '{}' is there already", log::shown(&key)));
            }
        }
        let existing = if how.merges { Existing::Replace } else { Existing::Keep };
        command::add_libraries(server, libraries, existing)?;
        for &id in server.engine.all_shards().iter() {
            loop {
                let now = server.clock.now();
                let merged = self.worker.with_shards(&[id], |held, thread| {
                    let shard = held.shard(id);
                    shard.start_at(now, || server.clock.now());
                    shard.go_to(Db::default());
                    loaded.merge_into(shard, router);
                    // The log begins anew from all data.
                    record::clear();
                    unit::end(held, thread, now);
                });
                match merged {
                    Some(Ok(())) => break,
                    Some(Err(_)) => panic!("a shard panicked while it was loaded: it may be torn"),
                    None => std::thread::sleep(BUSY_REST),
                }
            }
        }
        self.rewrite_after_load()
    }

    /// Replaces all data with loaded data.
    fn install(&mut self, mut loaded: Loaded) {
        let server = self.server;
        self.on_all_shards(|held, thread| {
            server.forget_place(thread);
            loaded.install(held);
        });
    }

    /// Does something with the log while no other thread holds a shard.
    fn with_log(&mut self, work: impl Fn(&Durability)) {
        let server = self.server;
        let all = server.engine.all_shards();
        while self.worker.with_shards(&all, |_, _| work(&server.durability)).is_none() {
            std::thread::sleep(BUSY_REST);
        }
    }

    /// Does something under the holds of all shards that replaces their data.
    pub(super) fn on_all_shards(&mut self, mut work: impl FnMut(&mut Held<'_, Job>, &ThreadState)) {
        let server = self.server;
        let all = server.engine.all_shards();
        loop {
            let now = server.clock.now();
            let installed = self.worker.with_shards(&all, |held, thread| {
                for &id in all.iter() {
                    held.shard(id).start_at(now, || server.clock.now());
                    held.shard(id).go_to(Db::default());
                }
                work(held, thread);
                // No command does this: the log begins anew from the loaded data.
                record::clear();
                unit::end(held, thread, now);
            });
            match installed {
                Some(Ok(())) => return,
                Some(Err(_)) => panic!("a shard panicked while it was loaded: it may be torn"),
                None => std::thread::sleep(BUSY_REST),
            }
        }
    }

    /// Takes a snapshot. Returns whether it is on disk.
    fn save(&mut self) -> bool {
        let server = self.server;
        let (saves, config) = (&server.saves, server.config.load_full());
        let began = Instant::now();
        saves.tried_steady.store(server.clock.steady().0, Relaxed);
        saves.began_at.store(server.clock.uptime_millis(), Relaxed);
        saves.n_keys_written.store(0, Relaxed);
        self.begin_snapshot();
        let uses =
            if config.maxmemory_policy.is_by_use() { Uses::told(&server.keyspace) } else { Uses::left_out() };
        let Some((cut, place)) = self.cut_with_place(uses.clone()) else {
            server.durability.end_snapshot();
            saves.is_under_way.store(false, Relaxed);
            return false;
        };
        let databases = server.keyspace.databases();
        saves.n_keys.store(databases.iter().map(|(_, counts)| counts.n_keys).sum(), Relaxed);
        let name = config.dir.join(config.dbfilename.clone().unwrap_or_default());
        let path = config.dir.join(format!("temp-{}.rdb", std::process::id()));
        let written = self
            .check_marks()
            .and_then(|()| create_file(&path, Purpose::Snapshot, &cut, place.as_ref(), &config, server))
            .and_then(|mut snapshot| {
                self.walk(Some((&mut snapshot, &uses)))?;
                if self.would_bring_back() || self.is_cancelled() {
                    return Err(Failure::GivenUp);
                }
                let n_bytes = finish_file(snapshot)?;
                install_file(&path, &name, &config.dir)?;
                Ok(n_bytes)
            });
        if written.is_err() {
            self.give_up_walk();
            let _ = fs::remove_file(&path);
        }
        server.durability.end_snapshot();
        let is_saved = written.is_ok();
        // As in Redis, a failure is reported only to the client that waits, if there is one.
        let is_noted = is_saved || matches!(written, Err(Failure::Io(..))) && self.fulfilling.is_none();
        match written {
            Ok(n_bytes) => {
                notice!("DB saved on disk: {n_bytes} bytes in {:.3} seconds", began.elapsed().as_secs_f64());
                saves.saved_at.store(server.clock.unix_seconds(), Relaxed);
                saves.saved_steady.store(server.clock.steady().0, Relaxed);
                saves.n_changes_saved.store(cut.n_changes, Relaxed);
                saves.n_saved.fetch_add(1, Relaxed);
            }
            Err(Failure::GivenUp) => {}
            Err(Failure::Io(what, error)) => {
                warning!("Saving the DB to {} failed while {what}: {error}", name.display());
            }
        }
        saves.took_seconds.store(began.elapsed().as_secs() as i64, Relaxed);
        saves.leave();
        if is_noted {
            server.note_saved(is_saved);
        }
        is_saved
    }

    /// Makes the cut of a snapshot, and finds its place in the history, if another server may know that.
    /// Returns `None` if the server stops meanwhile.
    fn cut_with_place(&mut self, uses: Uses) -> Option<(Box<Cut>, Option<SnapshotPlace>)> {
        let durability = &self.server.durability;
        if !durability.is_followed() {
            return Some((self.cut(uses, Form::Snapshot, LogCut::None)?, None));
        }
        let cursor = durability.aof.stream().subscribe();
        let cut = self.cut(uses, Form::Snapshot, LogCut::Marked { mark: 0, id: None })?;
        let Some(start) = self.find_mark(cursor, &cut) else {
            self.give_up_walk();
            return None;
        };
        let place = place_of(&cut, &start);
        Some((cut, place))
    }

    /// Makes all shards begin to save at one moment. Returns `None` if the server stops meanwhile.
    pub(super) fn cut(&mut self, uses: Uses, form: Form, log: LogCut) -> Option<Box<Cut>> {
        let mut node = self.node.take().expect("it is here between two cuts");
        node.job.now = self.server.clock.now();
        node.job.task = Task::Cut(Box::new(Cut { is_last: self.is_last(), ..Cut::new(uses, form, log) }));
        node.set_route(Route::new(self.server.engine.all_shards()));
        self.worker.submit(node);
        loop {
            if let Some(node) = &mut self.node {
                let Task::Cut(cut) = std::mem::take(&mut node.job.task) else {
                    unreachable!("it was sent to cut")
                };
                return Some(cut);
            }
            if self.server.stopping.load(Relaxed) {
                return None;
            }
            self.sleep(LOOK_EVERY, false);
        }
    }

    /// Leaves no shard saving: the next snapshot begins from nothing.
    pub(super) fn give_up_walk(&mut self) {
        let _ = self.walk::<io::Sink>(None);
    }

    /// Visits all shards until none has more to give. Writes their results, or makes them give up if `to` is
    /// `None`.
    pub(super) fn walk<W: Write>(&mut self, mut to: Destination<'_, W>) -> Result<(), Failure> {
        let is_hurried = to.is_none() || self.is_last();
        let mut pace = Throttle::new(is_hurried);
        let mut walk = Walk::new(self.server, to.is_none());
        let ended = self.walk_on(&mut walk, &mut to, &mut pace);
        // Whatever has failed, the steps of other threads come back here with the values that they have
        // pinned.
        while walk.n_under_way() > 0 && !self.server.stopping.load(Relaxed) {
            match self.server.saves.taken.pop() {
                Some(mut step) => {
                    walk.idle.push_back(step.thread);
                    let _: Result<(), Failure> = self.take_parts::<W>(&mut step.parts, &mut None);
                }
                None => self.sleep(LOOK_EVERY, false),
            }
        }
        ended?;
        // No shard has more to give, so this loop ends.
        while self.server.keyspace.early().n_bytes() > 0 {
            self.take_early(&mut to, &mut pace)?;
        }
        self.server.keyspace.early().clear();
        self.server.let_writes_go(&mut self.worker.thread);
        Ok(())
    }

    fn walk_on<W: Write>(
        &mut self,
        walk: &mut Walk,
        to: &mut Destination<'_, W>,
        pace: &mut Throttle,
    ) -> Result<(), Failure> {
        while !walk.is_over() {
            self.take_early(to, pace)?;
            let step = if pace.is_hurried { self.step_here(walk) } else { self.step_of_others(walk) };
            if let Some(mut step) = step {
                let n_keys = step.parts.n_keys();
                let written = self.take_parts(&mut step.parts, to);
                walk.spare.push(step);
                written?;
                if walk.n_panics > 0 && to.is_some() {
                    return Err(Failure::Io("going through the keys", io::Error::other("a shard panicked")));
                }
                if to.is_some() {
                    self.rest_after(n_keys);
                    if self.server.keyspace.early().n_bytes() < EARLY_BYTES_FEW {
                        pace.rest();
                    }
                }
            } else if !walk.is_over() {
                self.sleep(STEP_PATIENCE, false);
                pace.was_resting();
            }
            if to.is_some() && self.is_outdated() {
                return Err(Failure::GivenUp);
            }
        }
        Ok(())
    }

    /// Takes a step on this thread.
    fn step_here(&mut self, walk: &mut Walk) -> Option<Box<WalkStep>> {
        let mut step = walk.next_step()?;
        step.take(&mut self.worker);
        self.end_step(walk, &mut step);
        Some(step)
    }

    /// Sends steps to I/O threads, and returns a step that has ended. A thread takes a step between two
    /// turns. This thread can be preempted at any time by others that want its core. If it held a shard then,
    /// all others would wait for it.
    fn step_of_others(&mut self, walk: &mut Walk) -> Option<Box<WalkStep>> {
        let taken = self.server.saves.taken.pop().map(|mut step| {
            walk.idle.push_back(step.thread);
            self.end_step(walk, &mut step);
            step
        });
        let is_delayed = self.server.config.load().rdb_key_save_delay.is_some();
        let n_in_use = self.server.spread.n_in_use();
        let n_max = if is_delayed { 1 } else { STEPS_MAX };
        while (taken.is_none() || !is_delayed)
            && walk.n_under_way() < n_max
            // A thread without connections is asleep and would first have to get a core.
            && let Some(at) = walk.idle.iter().position(|&thread| thread < n_in_use)
            && let Some(mut step) = walk.next_step()
        {
            let thread = walk.idle.remove(at).expect("it was found there");
            step.thread = thread;
            self.worker.thread.send_mail(thread, Mail::WalkStep(step));
        }
        self.worker.thread.send_wakes();
        taken
    }

    /// Handles the result of a step.
    fn end_step(&mut self, walk: &mut Walk, step: &mut WalkStep) {
        let id = step.shard;
        let ended = step.ended.take();
        if ended.is_some() {
            walk.n_held = 0;
        }
        match ended {
            None => {
                walk.left.push_back(id);
                walk.n_held += 1;
                if walk.n_held >= walk.left.len() {
                    walk.n_held = 0;
                    std::thread::sleep(BUSY_REST);
                }
            }
            Some(Ok(SaveStep::More)) => walk.left.push_front(id),
            Some(Ok(SaveStep::Done)) => {}
            Some(Err(_)) => {
                walk.n_panics += 1;
                // The walk continues from where it stands to clear the marks.
                if walk.gives_up && walk.n_panics <= PANICS_MAX {
                    walk.left.push_front(id);
                } else if walk.gives_up {
                    self.abandon(id);
                }
            }
        }
    }

    /// Ends the saving of a shard that panics again and again. Its entries keep their marks, so a later
    /// snapshot would lack keys and none can be taken.
    fn abandon(&mut self, id: ShardId) {
        warning!(
            "A shard panics whenever it is saved. What it holds is served, and no snapshot can be taken any more: restart the server"
        );
        self.has_stale_marks = true;
        while self.worker.with_shards(&[id], |held, _| held.shard(id).abandon_snapshot()).is_none() {
            std::thread::sleep(BUSY_REST);
        }
    }

    /// Refuses to take a snapshot that would lack keys.
    pub(super) fn check_marks(&self) -> Result<(), Failure> {
        let why = || io::Error::other("a shard could not be brought to the end of the last snapshot");
        if self.has_stale_marks { Err(Failure::Io("beginning", why())) } else { Ok(()) }
    }

    /// Writes early values: a part if there are few. While new ones keep the queue above
    /// [`EARLY_BYTES_MANY`], it writes more.
    fn take_early<W: Write>(
        &mut self,
        to: &mut Destination<'_, W>,
        pace: &mut Throttle,
    ) -> Result<(), Failure> {
        let early = self.server.keyspace.early();
        let mut n_bytes = 0;
        while n_bytes < EARLY_BYTES_AT_ONCE
            && let Some(part) = early.take()
        {
            if let Some((snapshot, _)) = to {
                let written = snapshot.add(part.db, &part.bytes, part.n_keys);
                written.map_err(|error| Failure::Io("writing", error))?;
            }
            if to.is_some() && self.is_outdated() {
                return Err(Failure::GivenUp);
            }
            n_bytes += part.bytes.len();
            let _: Option<Vec<u8>> = early.give_back(part.bytes);
            if early.n_bytes() >= EARLY_BYTES_MANY {
                n_bytes = 0;
            } else {
                self.server.let_writes_go(&mut self.worker.thread);
                if early.n_bytes() < EARLY_BYTES_FEW {
                    pace.rest();
                }
            }
        }
        // Writes may have been held back just when the last value was taken.
        self.server.let_writes_go(&mut self.worker.thread);
        Ok(())
    }

    /// Whether nobody needs the snapshot in progress any more. SHUTDOWN does not wait for an older snapshot,
    /// unless a client waits for that one.
    fn is_outdated(&mut self) -> bool {
        self.read_orders();
        // Loading the append-only file does not wait for a snapshot for which no client waits.
        if self.fulfilling.is_none()
            && !self.server.saves.is_rewriting.load(Relaxed)
            && let Some(order) = self.orders.pop_front_if(|order| order.what == SaveOrder::LoadLog)
        {
            self.fulfil(order);
        }
        let (server, saves) = (self.server, &self.server.saves);
        let is_rewriting = saves.is_rewriting.load(Relaxed);
        let is_wanted = server.config.load().appendonly;
        // A rewrite that writes the base of the ending log is given up first.
        if !self.writes_base || is_wanted {
            self.take_orders(SaveOrder::EndLog).into_iter().for_each(|order| self.fulfil(order));
        }
        let mut begins_log = self.orders.iter().any(|order| order.what == SaveOrder::BeginLog);
        if begins_log && (!is_rewriting || is_wanted) {
            self.take_orders(SaveOrder::BeginLog).into_iter().for_each(|order| self.fulfil(order));
            begins_log = false;
        }
        server.stopping.load(Relaxed)
            || saves.is_given_up.load(Relaxed)
            // As in Redis, the rewrite in progress becomes the base of the log that begins.
            || begins_log
            || self.would_bring_back()
            || self.is_cancelled()
            || self.has_lost_replicas()
            || self.writes_base && !server.config.load().appendonly
            || self.is_last() && saves.ending.is_called_off(self.ending_in)
            || self.fulfilling.is_none() && self.orders.iter().any(|order| order.what.is_shutdown())
    }

    /// Whether the server ends with the snapshot in progress.
    fn is_last(&self) -> bool {
        self.fulfilling.is_some_and(SaveOrder::is_shutdown)
    }

    /// Takes all orders of this kind out of their turn.
    fn take_orders(&mut self, what: SaveOrder) -> VecDeque<PendingSave> {
        let orders = std::mem::take(&mut self.orders);
        let (taken, others) = orders.into_iter().partition(|order| order.what == what);
        self.orders = others;
        taken
    }

    /// Whether the snapshot in progress would bring back flushed data. False if a client waits for it.
    fn would_bring_back(&self) -> bool {
        let saves = &self.server.saves;
        // The stream tells replicas of the flush.
        saves.is_flushed()
            && self.fulfilling.is_none()
            && self.copying.is_none()
            && !saves.is_rewriting.load(Relaxed)
    }

    /// Notes the copy for replicas that it makes from now on.
    pub(super) fn begin_copying(&mut self, copy: &Arc<FullCopy>) {
        self.copying = Some(Arc::clone(copy));
        self.server.saves.is_copying.store(true, Relaxed);
    }

    /// Notes the end of a copy.
    pub(super) fn end_copying(&mut self) {
        self.copying = None;
        self.server.saves.is_copying.store(false, Relaxed);
    }

    /// Whether no replica waits for the copy in progress any more.
    fn has_lost_replicas(&self) -> bool {
        self.copying.as_ref().is_some_and(|copy| copy.n_taking() == 0)
    }

    /// Whether a client has cancelled the snapshot in progress. False if a client waits for it.
    fn is_cancelled(&self) -> bool {
        let saves = &self.server.saves;
        saves.is_cancelled() && self.fulfilling.is_none() && !saves.is_rewriting.load(Relaxed)
    }

    /// Rests for the configured delay of this many keys, unless the configuration changes meanwhile.
    fn rest_after(&mut self, n_keys: u64) {
        let began = Instant::now();
        while let Some(delay) = self.server.config.load().rdb_key_save_delay
            && began.elapsed() < delay.saturating_mul(n_keys.min(u32::MAX.into()) as u32)
            && self.server.keyspace.early().n_bytes() < EARLY_BYTES_MANY
            && !self.is_outdated()
        {
            self.sleep(delay.min(REST_SLICE), false);
        }
    }

    /// Writes the results of a step and unpins values. Keeps memory to be used again.
    fn take_parts<W: Write>(
        &mut self,
        parts: &mut Parts,
        to: &mut Destination<'_, W>,
    ) -> Result<(), Failure> {
        let Parts { encoded, pinned, removed, flushed, .. } = std::mem::take(parts);
        let mut result = Ok(());
        // Whatever fails, pinned values must be unpinned, or their writers would wait for ever.
        let mut write = |write: &mut dyn FnMut(&mut Snapshot<W>, &Uses) -> io::Result<()>| {
            if let Some((snapshot, uses)) = to
                && result.is_ok()
            {
                result = write(snapshot, uses);
            }
        };
        for part in encoded {
            write(&mut |snapshot, _| snapshot.add(part.db, &part.bytes, part.n_keys));
            if let Some(memory) = self.server.keyspace.early().give_back(part.bytes) {
                parts.reuse(memory);
            }
        }
        for (db, entry) in removed {
            write(&mut |snapshot, uses| snapshot.add_entry(db, &entry, uses));
            reclaim::release(entry);
        }
        for part in flushed {
            let db = part.db();
            FlushedPart::for_each(part, |entry| {
                write(&mut |snapshot, uses| snapshot.add_entry(db, &entry, uses));
                reclaim::release(entry);
            });
        }
        for PinnedPart { db, pinned_in, entry } in pinned {
            write(&mut |snapshot, uses| snapshot.add_entry(db, &entry, uses));
            self.unpin(pinned_in, entry);
        }
        result.map_err(|error| Failure::Io("writing", error))
    }

    /// Allows writes to a key again.
    fn unpin(&mut self, db: Db, entry: EntryBox) {
        let key: Box<[u8]> = entry.as_ref().key().into();
        let id = self.server.keyspace.router().route(&key).shard;
        let (mut shared, mut is_unpinned, mut n_panics) = (Some(entry), false, 0);
        while n_panics < PANICS_MAX {
            let now = self.server.clock.now();
            let ended = self.worker.with_shards(&[id], |held, thread| {
                let shard = held.shard(id);
                shard.start_at(now, || self.server.clock.now());
                shard.go_to(db);
                // A value that is no longer shared is changed in place.
                if let Some(entry) = shared.take() {
                    reclaim::release(entry);
                }
                self.server.panic_while_saving();
                // Others may have pinned it, too, so it is unpinned once.
                if !std::mem::replace(&mut is_unpinned, true) {
                    shard.unpin(&key);
                }
                unit::end(held, thread, now);
            });
            match ended {
                Some(Ok(())) => return,
                Some(Err(_)) => n_panics += 1,
                None => std::thread::sleep(BUSY_REST),
            }
        }
        warning!(
            "A shard panics whenever a key is unpinned that was saved: commands that would write it wait"
        );
    }
}

/// Removes an append-only file to which nothing was logged.
fn give_up(aof: Aof<LogFolder>) {
    if let Err(error) = aof.give_up_aside() {
        warning!("An append-only file that is not wanted any more cannot be removed: {error}");
    }
}

/// The progress of the walk through the shards.
struct Walk {
    /// The shards with more to give, except those with a step in progress.
    left: VecDeque<ShardId>,
    gives_up: bool,
    /// I/O threads without a step in progress.
    idle: VecDeque<usize>,
    n_threads: usize,
    /// Steps that can be used again.
    #[expect(clippy::vec_box, reason = "they are sent in their boxes")]
    spare: Vec<Box<WalkStep>>,
    /// How many shards in a row were held by others.
    n_held: usize,
    n_panics: u32,
}

impl Walk {
    fn new(server: &Server, gives_up: bool) -> Self {
        let n_threads = server.io_threads().len();
        Self {
            left: server.engine.all_shards().iter().copied().collect(),
            gives_up,
            idle: (0..n_threads).collect(),
            n_threads,
            spare: Vec::new(),
            n_held: 0,
            n_panics: 0,
        }
    }

    /// Returns the number of steps that other threads were asked to take.
    fn n_under_way(&self) -> usize {
        self.n_threads - self.idle.len()
    }

    fn is_over(&self) -> bool {
        self.left.is_empty() && self.n_under_way() == 0
    }

    /// Prepares a step of the next shard.
    fn next_step(&mut self) -> Option<Box<WalkStep>> {
        let shard = self.left.pop_front()?;
        let mut step = self.spare.pop().unwrap_or_else(WalkStep::new);
        (step.shard, step.gives_up) = (shard, self.gives_up);
        Some(step)
    }
}

/// Keeps the saver from taking a core that other threads want. It rests after some work, but not while cores
/// are idle.
struct Throttle {
    /// It does not rest at all: the server stops, or there is nothing to write.
    is_hurried: bool,
    began: Instant,
    /// The system's count of runnable threads: `0.20 0.18 0.12 1/80 11206`.
    load: Option<File>,
    n_cores: usize,
}

impl Throttle {
    fn new(is_hurried: bool) -> Self {
        Self {
            is_hurried,
            began: Instant::now(),
            load: File::open("/proc/loadavg").ok(),
            n_cores: std::thread::available_parallelism().map_or(1, usize::from),
        }
    }

    /// Notes that there was nothing to do until now.
    fn was_resting(&mut self) {
        self.began = Instant::now();
    }

    /// Rests, if it is time to.
    fn rest(&mut self) {
        let worked = self.began.elapsed();
        if self.is_hurried || worked < WORK_TIME {
            return;
        }
        if self.are_cores_short() {
            std::thread::sleep(worked.min(MOST_WORK_TIME) * REST_TIMES);
        }
        self.began = Instant::now();
    }

    /// Whether more threads are runnable than there are cores, this thread included. If the count is unknown,
    /// the answer is yes.
    fn are_cores_short(&self) -> bool {
        let mut text = [0; 64];
        let n_running = self.load.as_ref().and_then(|load| {
            let n = load.read_at(&mut text, 0).ok()?;
            let field = std::str::from_utf8(&text[..n]).ok()?.split(' ').nth(3)?;
            field.split('/').next()?.parse::<usize>().ok()
        });
        n_running.is_none_or(|n_running| n_running > self.n_cores)
    }
}

/// Begins a file.
fn create_file(
    path: &Path,
    purpose: Purpose,
    cut: &Cut,
    place: Option<&SnapshotPlace>,
    config: &Config,
    server: &'static Server,
) -> Result<Snapshot<File>, Failure> {
    let begin = || {
        let file = File::create(path)?;
        litter::lock(&file);
        Snapshot::begin(file, purpose, cut, place, config, server)
    };
    begin().map_err(|error| Failure::Io("opening its temporary file", error))
}

/// Ends a file and syncs it. Returns its length in bytes.
fn finish_file(snapshot: Snapshot<File>) -> Result<u64, Failure> {
    let (file, n_bytes) = snapshot.finish().map_err(|error| Failure::Io("writing", error))?;
    file.sync_all().map_err(|error| Failure::Io("syncing its temporary file", error))?;
    Ok(n_bytes)
}

/// Replaces the file that is loaded at the start with a finished one.
fn install_file(path: &Path, name: &Path, folder: &Path) -> Result<(), Failure> {
    let fail = |what| move |error| Failure::Io(what, error);
    fs::rename(path, name).map_err(fail("renaming its temporary file"))?;
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(fail("syncing its folder"))
}
