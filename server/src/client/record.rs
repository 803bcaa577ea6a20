//! The connected clients, as CLIENT LIST, INFO and CLIENT KILL see those of other threads.

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

/// A kind of notification that a client can receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Listens {
    /// Published messages (SUBSCRIBE and similar commands).
    ToTopics = 1,
    /// The commands that run (MONITOR).
    ToCommands = 2,
    /// Changes to keys (CLIENT TRACKING).
    ToChanges = 4,
    /// The change stream (PSYNC).
    ToStream = 8,
}

/// The data about a client that other threads may see.
///
/// Its own thread stores the numbers once a batch, relaxed, on cache lines that no other thread writes.
/// Readers see each number at a moment of its own.
#[derive(Debug)]
pub struct ClientRecord {
    /// The client's number.
    pub id: ClientId,
    /// The thread that serves it, or will serve it after a handover.
    pub thread: AtomicUsize,
    /// Its slot there.
    pub place: AtomicUsize,
    /// The peer.
    pub peer: Endpoint,
    /// The server's end.
    pub local: Endpoint,
    /// The socket's file descriptor.
    pub fd: i32,
    /// The time of its connection, in milliseconds of uptime.
    pub connected_at: u64,
    /// The time at which its last command was read, in milliseconds of uptime.
    pub active_at: AtomicU64,
    /// The selected database.
    pub db: AtomicU32,
    /// The RESP version: 2 or 3.
    pub resp: AtomicU8,
    /// The number of commands queued since MULTI, or -1.
    pub queued: AtomicI32,
    /// The number of watched keys.
    pub watched: AtomicU32,
    /// Whether a watched key has been written, so that the transaction will not take place.
    pub is_watch_lost: Arc<AtomicBool>,
    /// The number of its subscriptions, by [`TopicKind`].
    pub subscriptions: [AtomicU32; TopicKind::ALL.len()],
    /// The subscriptions themselves.
    pub topics: Subscriptions,
    /// The mode of its tracking (CLIENT TRACKING).
    pub tracking: ArcSwapOption<Mode>,
    /// Whether the client to which its invalidations are redirected was found to be gone.
    pub has_lost_redirect: AtomicBool,
    /// The notifications that it receives: one bit for each [`Listens`].
    listens: AtomicU8,
    /// The memory that it uses.
    pub footprint: Footprint,
    /// The memory for which it was closed (`maxmemory-clients`) until it leaves, or 0.
    pub leaving_bytes: AtomicU64,
    /// The number of pieces in which its replies wait for the socket.
    pub output_pieces: AtomicU32,
    /// The number of bytes read from it.
    bytes_in: AtomicU64,
    /// The number of bytes written to it.
    bytes_out: AtomicU64,
    /// The number of its commands that have run.
    n_commands: AtomicU64,
    /// Whether a command of it waits for the end of a pause, or for a time to pass.
    pub blocked: AtomicBool,
    /// Its command that waits for keys, for CLIENT UNBLOCK.
    pub waiting: ArcSwapOption<Parked>,
    /// The state of its WAIT or WAITAOF, as a number of [`SyncWait`]. CLIENT UNBLOCK may end it.
    sync_wait: AtomicU8,
    /// Whether it is this server's own connection to its primary.
    pub is_primary: AtomicBool,
    /// CLIENT NO-EVICT.
    pub no_evict: AtomicBool,
    /// CLIENT NO-TOUCH.
    pub no_touch: AtomicBool,
    /// Set by CLIENT KILL. It is checked under the hold, so that nothing of a killed client runs after the
    /// reply to KILL.
    pub killed: AtomicBool,
    /// Whether the reply to its last command says that it leaves. Later notifications do not reach it.
    pub leaves: AtomicBool,
    last_command: AtomicU32,
    /// Its user.
    pub user: ArcSwap<Identity>,
    /// The client's description of itself. It is changed and read rarely.
    pub said: Mutex<ClientSaid>,
}

/// A client's description of itself.
#[derive(Clone, Debug, Default)]
pub struct ClientSaid {
    /// CLIENT SETNAME.
    pub name: String,
    /// CLIENT SETINFO LIB-NAME.
    pub lib_name: String,
    /// CLIENT SETINFO LIB-VER.
    pub lib_ver: String,
    /// CLIENT CAPA REDIRECT.
    pub handles_redirects: bool,
}

/// The state of a client's WAIT or WAITAOF.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyncWait {
    /// It does not wait.
    None,
    /// It waits.
    UnderWay,
    /// CLIENT UNBLOCK ends the wait as if its time were up.
    TimesOut,
    /// CLIENT UNBLOCK ends the wait with an error.
    Fails,
    /// A change of the server's role ends the wait with an error, and the connection.
    RoleChanged,
}

/// The identity of a client's user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The user's name.
    pub name: UserName,
    /// The number, which changes if the user is deleted and created again.
    pub serial: u64,
}

impl SyncWait {
    fn of(number: u8) -> Self {
        let all =
            [SyncWait::None, SyncWait::UnderWay, SyncWait::TimesOut, SyncWait::Fails, SyncWait::RoleChanged];
        all.into_iter().find(|&wait| wait as u8 == number).expect("it is stored as one of these")
    }
}

impl From<&User> for Identity {
    fn from(user: &User) -> Self {
        Self { name: Arc::clone(user.name()), serial: user.serial() }
    }
}

impl ClientRecord {
    /// Creates the record of a client that just connected.
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
            is_primary: AtomicBool::new(false),
            no_evict: AtomicBool::new(false),
            no_touch: AtomicBool::new(false),
            killed: AtomicBool::new(false),
            leaves: AtomicBool::new(false),
            last_command: AtomicU32::new(u32::MAX),
            user: ArcSwap::from_pointee(Identity::from(user)),
            said: Mutex::default(),
        }
    }

    /// The client's description of itself.
    pub fn said(&self) -> ClientSaid {
        self.said.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).clone()
    }

    /// Changes the client's description of itself.
    pub fn say(&self, change: impl FnOnce(&mut ClientSaid)) {
        let mut said = self.said.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        change(&mut said);
        let n_bytes = [&said.name, &said.lib_name, &said.lib_ver].map(|text| text.len()).iter().sum();
        self.footprint.set(Part::Names, n_bytes);
    }

    /// Records that its WAIT or WAITAOF waits from now on.
    pub fn begin_sync_wait(&self) {
        self.sync_wait.store(SyncWait::UnderWay as u8, Ordering::Relaxed);
    }

    /// Records that it no longer waits, and returns the state before.
    pub fn end_sync_wait(&self) -> SyncWait {
        SyncWait::of(self.sync_wait.swap(SyncWait::None as u8, Ordering::Relaxed))
    }

    /// Makes its wait end in a given way.
    ///
    /// Returns false if it does not wait, or another thread already ends the wait. Its thread must check it
    /// afterwards.
    pub fn unblock_sync_wait(&self, how: SyncWait) -> bool {
        let [from, to] = [SyncWait::UnderWay, how].map(|wait| wait as u8);
        self.sync_wait.compare_exchange(from, to, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// Whether another client or the server ends its wait.
    pub fn is_sync_wait_over(&self) -> bool {
        let wait = SyncWait::of(self.sync_wait.load(Ordering::Relaxed));
        matches!(wait, SyncWait::TimesOut | SyncWait::Fails | SyncWait::RoleChanged)
    }

    /// Counts `n_bytes` read from it.
    ///
    /// This and the similar functions are for the client's thread alone. They use no read-modify-write, so
    /// two threads would lose counts.
    #[inline]
    pub fn count_read(&self, n_bytes: usize) {
        add(&self.bytes_in, n_bytes as u64);
    }

    /// Counts `n_bytes` written to it.
    #[inline]
    pub fn count_written(&self, n_bytes: u64) {
        add(&self.bytes_out, n_bytes);
    }

    /// Counts `n` commands of it that have run.
    #[inline]
    pub fn count_commands(&self, n: u64) {
        add(&self.n_commands, n);
    }

    /// The bytes read, the bytes written and the commands run.
    pub fn totals(&self) -> [u64; 3] {
        [&self.bytes_in, &self.bytes_out, &self.n_commands].map(|total| total.load(Ordering::Relaxed))
    }

    /// Records the last command.
    #[inline]
    pub fn ran(&self, command: CommandId) {
        self.last_command.store(u32::from(command.0), Ordering::Relaxed);
    }

    /// Records that its last command does not exist.
    pub fn named_no_command(&self) {
        self.last_command.store(u32::MAX, Ordering::Relaxed);
    }

    /// The last command, which may have been refused; none if it does not exist.
    pub fn last_command(&self) -> Option<CommandId> {
        u16::try_from(self.last_command.load(Ordering::Relaxed)).ok().map(CommandId)
    }

    /// The number of its subscriptions of a kind.
    pub fn n_subscribed(&self, kind: TopicKind) -> u32 {
        self.subscriptions[kind as usize].load(Ordering::Relaxed)
    }

    /// Records the mode of its tracking.
    pub fn set_tracking(&self, mode: Option<Arc<Mode>>) {
        let prefixes = mode.iter().flat_map(|mode| &mode.prefixes);
        self.footprint.set(Part::Prefixes, prefixes.map(|prefix| NAME_BYTES + prefix.len()).sum());
        self.tracking.store(mode);
    }

    /// Records whether it receives a kind of notification.
    pub fn set_listens(&self, to: Listens, does: bool) {
        let others = self.listens.load(Ordering::Relaxed) & !(to as u8);
        self.listens.store(others | if does { to as u8 } else { 0 }, Ordering::Relaxed);
    }

    /// Whether it receives a kind of notification.
    #[inline]
    pub fn listens(&self, to: Listens) -> bool {
        self.listens.load(Ordering::Relaxed) & to as u8 != 0
    }

    /// Whether it may be silent for long because it only listens.
    pub fn only_listens(&self) -> bool {
        [Listens::ToTopics, Listens::ToCommands, Listens::ToStream].into_iter().any(|kind| self.listens(kind))
    }

    /// Whether it receives notifications. Its thread knows listeners by this.
    #[inline]
    pub fn is_listener(&self) -> bool {
        self.listens.load(Ordering::Relaxed) != 0
    }

    /// Whether CLIENT KILL has marked it.
    #[inline]
    pub fn is_killed(&self) -> bool {
        self.killed.load(Ordering::Relaxed)
    }
}

/// Adds to a number that only one thread changes.
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
    /// Returns the next client number.
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

    /// The number of connected clients.
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
