//! Who is connected: what CLIENT LIST, INFO and CLIENT KILL see of other threads' connections.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicBool, AtomicI32, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering},
};

use arc_swap::{ArcSwap, ArcSwapOption};
use dashmap::DashMap;

use crate::{
    access::{User, UserName},
    catalog::CommandId,
    client::{
        footprint::{Footprint, NAME_BYTES, Part},
        id::{ClientId, Endpoint, Origin},
        node::Parked,
    },
    notify::{
        subscriptions::{Subscriptions, TopicKind},
        tracking_table::Mode,
    },
};

/// What a client can be sent without asking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Listens {
    /// What is published (SUBSCRIBE and its kin).
    ToTopics = 1,
    /// The commands that run (MONITOR).
    ToCommands = 2,
    /// That keys have changed (CLIENT TRACKING).
    ToChanges = 4,
}

/// What others may know about a client.
///
/// Its own thread stores the numbers once a batch, relaxed, on lines that nobody else writes; readers see
/// each number at a moment of its own.
#[derive(Debug)]
pub struct ClientRecord {
    /// The client's number.
    pub id: ClientId,
    /// The thread that serves it, or will when what was handed over has arrived.
    pub thread: AtomicUsize,
    /// Its place there.
    pub place: AtomicUsize,
    /// The peer.
    pub peer: Endpoint,
    /// Our end.
    pub local: Endpoint,
    /// The socket's file descriptor.
    pub fd: i32,
    /// When it connected, in milliseconds of uptime.
    pub connected_at: u64,
    /// When its last command was read, in milliseconds of uptime.
    pub active_at: AtomicU64,
    /// `SELECT`ed.
    pub db: AtomicU32,
    /// 2 or 3.
    pub resp: AtomicU8,
    /// Commands queued since MULTI, or -1.
    pub queued: AtomicI32,
    /// Keys watched.
    pub watched: AtomicU32,
    /// Whether one of them has been written: the transaction will not take place.
    pub is_watch_lost: Arc<AtomicBool>,
    /// How much it is subscribed to, by [`TopicKind`].
    pub subscriptions: [AtomicU32; TopicKind::ALL.len()],
    /// SUBSCRIBE and its kin.
    pub topics: Subscriptions,
    /// In which way it keeps copies of keys (CLIENT TRACKING).
    pub tracking: ArcSwapOption<Mode>,
    /// The client to which its invalidations are redirected was found to be gone.
    pub has_lost_redirect: AtomicBool,
    /// What it is sent without asking: a bit for each [`Listens`].
    listens: AtomicU8,
    /// The memory that it takes.
    pub footprint: Footprint,
    /// It was closed for taking so much (`maxmemory-clients`) and has not left yet, or 0.
    pub leaving_bytes: AtomicU64,
    /// Pieces in which its replies wait for the socket.
    pub output_pieces: AtomicU32,
    /// Bytes read from it.
    bytes_in: AtomicU64,
    /// Bytes written to it.
    bytes_out: AtomicU64,
    /// Commands of it that have run.
    n_commands: AtomicU64,
    /// A command of it waits for more than a shard: for the end of a pause, or for time to pass.
    pub blocked: AtomicBool,
    /// The command of it that waits for keys, for CLIENT UNBLOCK.
    pub waiting: ArcSwapOption<Parked>,
    /// Whether its WAIT or WAITAOF waits, and how CLIENT UNBLOCK ends it, as a number of [`SyncWait`].
    sync_wait: AtomicU8,
    /// CLIENT NO-EVICT.
    pub no_evict: AtomicBool,
    /// CLIENT NO-TOUCH.
    pub no_touch: AtomicBool,
    /// Set by CLIENT KILL: looked at under the hold, so that nothing of a killed client runs after the reply
    /// to KILL.
    pub killed: AtomicBool,
    /// The reply to its last command says that it leaves: what comes after that does not reach it.
    pub leaves: AtomicBool,
    last_command: AtomicU32,
    /// The user that it is.
    pub user: ArcSwap<Identity>,
    /// What the client said of itself; changed and read rarely.
    pub said: Mutex<ClientSaid>,
}

/// What a client says of itself.
#[derive(Clone, Debug, Default)]
pub struct ClientSaid {
    /// CLIENT SETNAME.
    pub name: String,
    /// CLIENT SETINFO LIB-NAME.
    pub lib_name: String,
    /// CLIENT SETINFO LIB-VER.
    pub lib_ver: String,
}

/// How it stands with a client's WAIT or WAITAOF.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyncWait {
    /// It does not wait.
    None,
    /// It waits.
    UnderWay,
    /// CLIENT UNBLOCK ends it as if its time were up.
    TimesOut,
    /// CLIENT UNBLOCK ends it with an error.
    Fails,
}

/// Which user a client is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The name.
    pub name: UserName,
    /// The number, by which it is another one if the user was deleted and made again.
    pub serial: u64,
}

impl SyncWait {
    fn of(number: u8) -> Self {
        let all = [SyncWait::None, SyncWait::UnderWay, SyncWait::TimesOut, SyncWait::Fails];
        all.into_iter().find(|&wait| wait as u8 == number).expect("it is stored as one of these")
    }
}

impl From<&User> for Identity {
    fn from(user: &User) -> Self {
        Self { name: Arc::clone(user.name()), serial: user.serial() }
    }
}

impl ClientRecord {
    /// Makes the record of a client that just connected.
    pub fn new(
        id: ClientId,
        origin: Origin,
        peer: Endpoint,
        local: Endpoint,
        fd: i32,
        uptime_millis: u64,
        user: &User,
    ) -> Self {
        Self {
            id,
            thread: AtomicUsize::new(origin.thread),
            place: AtomicUsize::new(origin.slot),
            peer,
            local,
            fd,
            connected_at: uptime_millis,
            active_at: AtomicU64::new(uptime_millis),
            db: AtomicU32::new(0),
            resp: AtomicU8::new(2),
            queued: AtomicI32::new(-1),
            watched: AtomicU32::new(0),
            is_watch_lost: Arc::default(),
            subscriptions: Default::default(),
            topics: Subscriptions::default(),
            tracking: ArcSwapOption::empty(),
            has_lost_redirect: AtomicBool::new(false),
            listens: AtomicU8::new(0),
            footprint: Footprint::default(),
            leaving_bytes: AtomicU64::new(0),
            output_pieces: AtomicU32::new(0),
            bytes_in: AtomicU64::new(0),
            bytes_out: AtomicU64::new(0),
            n_commands: AtomicU64::new(0),
            blocked: AtomicBool::new(false),
            waiting: ArcSwapOption::empty(),
            sync_wait: AtomicU8::new(SyncWait::None as u8),
            no_evict: AtomicBool::new(false),
            no_touch: AtomicBool::new(false),
            killed: AtomicBool::new(false),
            leaves: AtomicBool::new(false),
            last_command: AtomicU32::new(u32::MAX),
            user: ArcSwap::from_pointee(Identity::from(user)),
            said: Mutex::default(),
        }
    }

    /// What the client said of itself.
    pub fn said(&self) -> ClientSaid {
        self.said.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).clone()
    }

    /// Changes what the client says of itself.
    pub fn say(&self, change: impl FnOnce(&mut ClientSaid)) {
        let mut said = self.said.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        change(&mut said);
        let n_bytes = [&said.name, &said.lib_name, &said.lib_ver].map(|text| text.len()).iter().sum();
        self.footprint.set(Part::Names, n_bytes);
    }

    /// Notes that its WAIT or WAITAOF waits from now on.
    pub fn begin_sync_wait(&self) {
        self.sync_wait.store(SyncWait::UnderWay as u8, Ordering::Relaxed);
    }

    /// Notes that it waits no longer; says how it stood.
    pub fn end_sync_wait(&self) -> SyncWait {
        SyncWait::of(self.sync_wait.swap(SyncWait::None as u8, Ordering::Relaxed))
    }

    /// Has it end like this; returns false if it does not wait, or somebody else has it end. Its thread is to
    /// look at it then.
    pub fn unblock_sync_wait(&self, how: SyncWait) -> bool {
        let [from, to] = [SyncWait::UnderWay, how].map(|wait| wait as u8);
        self.sync_wait.compare_exchange(from, to, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// Whether CLIENT UNBLOCK has it end.
    pub fn is_sync_wait_over(&self) -> bool {
        let wait = SyncWait::of(self.sync_wait.load(Ordering::Relaxed));
        matches!(wait, SyncWait::TimesOut | SyncWait::Fails)
    }

    /// Notes that so many bytes were read from it. This and its like are for the client's thread alone: there
    /// is no read-modify-write, so two would lose counts.
    #[inline]
    pub fn count_read(&self, n_bytes: usize) {
        add(&self.bytes_in, n_bytes as u64);
    }

    /// Notes that so many bytes were written to it.
    #[inline]
    pub fn count_written(&self, n_bytes: u64) {
        add(&self.bytes_out, n_bytes);
    }

    /// Notes that so many commands of it have run.
    #[inline]
    pub fn count_commands(&self, n: u64) {
        add(&self.n_commands, n);
    }

    /// The bytes read, the bytes written and the commands run.
    pub fn totals(&self) -> [u64; 3] {
        [&self.bytes_in, &self.bytes_out, &self.n_commands].map(|total| total.load(Ordering::Relaxed))
    }

    /// Notes the last command.
    #[inline]
    pub fn ran(&self, command: CommandId) {
        self.last_command.store(u32::from(command.0), Ordering::Relaxed);
    }

    /// Notes that its last command was none that there is.
    pub fn named_no_command(&self) {
        self.last_command.store(u32::MAX, Ordering::Relaxed);
    }

    /// The last command, which may have been refused; none if there is no such command.
    pub fn last_command(&self) -> Option<CommandId> {
        u16::try_from(self.last_command.load(Ordering::Relaxed)).ok().map(CommandId)
    }

    /// How much of a kind it is subscribed to.
    pub fn n_subscribed(&self, kind: TopicKind) -> u32 {
        self.subscriptions[kind as usize].load(Ordering::Relaxed)
    }

    /// Notes in which way it keeps copies of keys.
    pub fn set_tracking(&self, mode: Option<Arc<Mode>>) {
        let prefixes = mode.iter().flat_map(|mode| &mode.prefixes);
        self.footprint.set(Part::Prefixes, prefixes.map(|prefix| NAME_BYTES + prefix.len()).sum());
        self.tracking.store(mode);
    }

    /// Notes whether it is sent something without asking.
    pub fn set_listens(&self, to: Listens, does: bool) {
        let others = self.listens.load(Ordering::Relaxed) & !(to as u8);
        self.listens.store(others | if does { to as u8 } else { 0 }, Ordering::Relaxed);
    }

    /// Whether it is sent something without asking.
    #[inline]
    pub fn listens(&self, to: Listens) -> bool {
        self.listens.load(Ordering::Relaxed) & to as u8 != 0
    }

    /// Whether it may be silent for long because it is there to listen.
    pub fn only_listens(&self) -> bool {
        self.listens(Listens::ToTopics) || self.listens(Listens::ToCommands)
    }

    /// Whether it is sent what it has not asked for: its thread knows it by that.
    #[inline]
    pub fn is_listener(&self) -> bool {
        self.listens.load(Ordering::Relaxed) != 0
    }

    /// Whether CLIENT KILL has hit it.
    #[inline]
    pub fn is_killed(&self) -> bool {
        self.killed.load(Ordering::Relaxed)
    }
}

/// Adds to a number that one thread counts.
#[inline]
fn add(total: &AtomicU64, n: u64) {
    total.store(total.load(Ordering::Relaxed) + n, Ordering::Relaxed);
}

/// All connected clients.
#[derive(Default)]
pub struct Clients {
    by_id: DashMap<ClientId, Arc<ClientRecord>>,
    last_id: AtomicU64,
    connected: AtomicU64,
}

impl Clients {
    /// Gives out the next number.
    pub fn next_id(&self) -> ClientId {
        ClientId(self.last_id.fetch_add(1, Ordering::Relaxed) + 1)
    }

    /// Adds a client.
    pub fn add(&self, record: Arc<ClientRecord>) {
        self.connected.fetch_add(1, Ordering::Relaxed);
        self.by_id.insert(record.id, record);
    }

    /// Removes a client.
    pub fn remove(&self, id: ClientId) {
        if self.by_id.remove(&id).is_some() {
            self.connected.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// How many are connected.
    pub fn count(&self) -> u64 {
        self.connected.load(Ordering::Relaxed)
    }

    /// One client.
    pub fn get(&self, id: ClientId) -> Option<Arc<ClientRecord>> {
        self.by_id.get(&id).map(|record| Arc::clone(&record))
    }

    /// All clients, oldest first.
    pub fn all(&self) -> Vec<Arc<ClientRecord>> {
        let mut all: Vec<_> = self.by_id.iter().map(|entry| Arc::clone(&entry)).collect();
        all.sort_unstable_by_key(|record| record.id);
        all
    }
}
