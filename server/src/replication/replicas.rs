//! The replicas of this server, as all threads see them.

use std::sync::{
    Arc, Mutex, MutexGuard,
    atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering},
};

use braid_journal::stream::Lsn;

use crate::{client::id::ClientId, log};

/// The state of a replica's link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ReplicaState {
    /// It has not asked for data yet.
    Handshake,
    /// It waits for the beginning of a full copy.
    AwaitsCopy,
    /// Its full copy is being made. It may get the part that is there.
    AwaitsCopyEnd,
    /// It is given a full copy that is complete.
    Copies,
    /// It has the copy, and has not said so yet. The stream begins after that.
    MustAck,
    /// It is given the change stream.
    Online,
    /// Its link has ended.
    Gone,
}

impl ReplicaState {
    const ALL: [Self; 7] = [
        Self::Handshake,
        Self::AwaitsCopy,
        Self::AwaitsCopyEnd,
        Self::Copies,
        Self::MustAck,
        Self::Online,
        Self::Gone,
    ];

    /// The word for it in INFO.
    pub fn word(self) -> &'static str {
        match self {
            Self::Handshake | Self::AwaitsCopy | Self::AwaitsCopyEnd => "wait_bgsave",
            Self::Copies => "send_bulk",
            Self::MustAck | Self::Online | Self::Gone => "online",
        }
    }
}

/// The part of the data that a copy has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CopyFilter {
    /// Everything.
    #[default]
    None,
    /// Functions only.
    Functions,
    /// Nothing.
    Everything,
}

/// A replica's description of itself (REPLCONF).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReplicaSaid {
    /// The port at which it serves clients; 0 if it has not said.
    pub port: u16,
    /// The address or name at which it serves clients, if that is another than the peer's.
    pub host: Option<String>,
    /// Whether a copy may come with a mark at its end in place of its length.
    pub takes_marked_end: bool,
    /// Whether it understands that the ID changes while it goes on.
    pub takes_new_id: bool,
    /// Its version, if it is a Valkey from 8.0 on or another server that says it.
    pub version: Option<[u32; 3]>,
    /// Whether it is a Braid.
    pub is_braid: bool,
    /// Whether it wants a copy and no stream.
    pub wants_copy_only: bool,
    /// The part of the data that it wants.
    pub filter: CopyFilter,
}

/// A replica.
pub struct Replica {
    /// The client that it is.
    pub client: ClientId,
    /// Its address, as its connection shows it.
    pub address: String,
    said: Mutex<ReplicaSaid>,
    state: AtomicU8,
    /// The offset up to which it has the stream, and has it on its disk.
    acked: AtomicU64,
    acked_on_disk: AtomicU64,
    /// The time of its last acknowledgement, in milliseconds of uptime.
    acked_at: AtomicU64,
    /// The time at which it asked for a copy, in milliseconds of uptime.
    asked_at: AtomicU64,
    /// The place from which on the change stream is kept for it; the largest number if it is not.
    kept_from: AtomicU64,
}

impl Replica {
    /// A client that begins to speak as a replica.
    pub fn new(client: ClientId, address: String) -> Self {
        Self {
            client,
            address,
            said: Mutex::default(),
            state: AtomicU8::new(ReplicaState::Handshake as u8),
            acked: AtomicU64::new(0),
            acked_on_disk: AtomicU64::new(0),
            acked_at: AtomicU64::new(0),
            asked_at: AtomicU64::new(0),
            kept_from: AtomicU64::new(u64::MAX),
        }
    }

    /// Its description of itself.
    pub fn said(&self) -> MutexGuard<'_, ReplicaSaid> {
        self.said.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// The state of its link.
    pub fn state(&self) -> ReplicaState {
        ReplicaState::ALL[usize::from(self.state.load(Ordering::Relaxed))]
    }

    /// Changes the state of its link.
    pub fn set_state(&self, state: ReplicaState) {
        self.state.store(state as u8, Ordering::Relaxed);
    }

    /// Notes that it waits for a copy.
    pub fn await_copy(&self, uptime_millis: u64) {
        self.asked_at.store(uptime_millis, Ordering::Relaxed);
        self.set_state(ReplicaState::AwaitsCopy);
    }

    /// The time at which it asked for a copy, in milliseconds of uptime.
    pub fn asked_at(&self) -> u64 {
        self.asked_at.load(Ordering::Relaxed)
    }

    /// Notes from where on the change stream is kept for it.
    pub fn keep_from(&self, place: Option<Lsn>) {
        self.kept_from.store(place.map_or(u64::MAX, |place| place.0), Ordering::Relaxed);
    }

    /// The place from which on the change stream is kept for it.
    pub fn kept_from(&self) -> Option<Lsn> {
        Some(Lsn(self.kept_from.load(Ordering::Relaxed))).filter(|place| place.0 != u64::MAX)
    }

    /// Notes an acknowledgement.
    pub fn ack(&self, offset: u64, on_disk: Option<u64>, uptime_millis: u64) {
        self.acked.fetch_max(offset, Ordering::Relaxed);
        if let Some(on_disk) = on_disk {
            self.acked_on_disk.fetch_max(on_disk, Ordering::Relaxed);
        }
        self.seen(uptime_millis);
        if self.state() == ReplicaState::MustAck {
            self.set_state(ReplicaState::Online);
        }
    }

    /// Notes that it is alive.
    pub fn seen(&self, uptime_millis: u64) {
        self.acked_at.store(uptime_millis, Ordering::Relaxed);
    }

    /// Notes that it was sent something. While it gets a copy, it is alive as long as it takes that.
    pub fn was_fed(&self, uptime_millis: u64) {
        if self.state() <= ReplicaState::MustAck {
            self.seen(uptime_millis);
        }
    }

    /// Whether it is time for an empty line, which the caller then sends.
    pub fn is_newline_due(&self, uptime_millis: u64, interval_millis: u64) -> bool {
        let is_due = self.silent_for(uptime_millis) >= interval_millis;
        if is_due {
            self.seen(uptime_millis);
        }
        is_due
    }

    /// The offset up to which it has the stream.
    pub fn acked(&self) -> u64 {
        self.acked.load(Ordering::Relaxed)
    }

    /// The offset up to which it has the stream on its disk.
    pub fn acked_on_disk(&self) -> u64 {
        self.acked_on_disk.load(Ordering::Relaxed)
    }

    /// Milliseconds since its last acknowledgement.
    pub fn silent_for(&self, uptime_millis: u64) -> u64 {
        uptime_millis.saturating_sub(self.acked_at.load(Ordering::Relaxed))
    }

    /// The address or name at which it serves clients.
    pub fn host(&self) -> String {
        self.said().host.clone().unwrap_or_else(|| self.address.clone())
    }

    /// Its address for the log.
    pub fn name(&self) -> String {
        let port = self.said().port;
        match port {
            0 => format!("client id #{}", self.client.0),
            port => format!("{}:{port}", log::shown(self.host().as_bytes())),
        }
    }
}

/// The facts about a replica that INFO and the metrics tell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaReport {
    /// The address or name at which it serves clients.
    pub host: String,
    /// The port at which it serves clients; 0 if it has not said.
    pub port: u16,
    /// The word for its state.
    pub state: &'static str,
    /// The offset up to which it has the stream.
    pub offset: u64,
    /// Seconds since its last acknowledgement; 0 before it follows the stream.
    pub lag_seconds: u64,
}

/// All replicas that have asked for data.
#[derive(Default)]
pub struct Replicas {
    list: Mutex<Vec<Arc<Replica>>>,
    /// The number of acknowledgements.
    n_acks: AtomicU64,
    /// Whether fewer than `min-replicas-to-write` are well.
    is_short: AtomicBool,
    /// Whether the end of the server waits for replicas.
    waits_at_end: AtomicBool,
    /// The time until which it does, in milliseconds of uptime; 0 as long as it does not.
    ends_at: AtomicU64,
    /// The last time at which there was a replica, in milliseconds of uptime.
    seen_at: AtomicU64,
}

impl Replicas {
    /// Adds a replica.
    pub fn add(&self, replica: Arc<Replica>) {
        self.list.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).push(replica);
    }

    /// The present replicas, in the order in which they asked.
    pub fn all(&self) -> Vec<Arc<Replica>> {
        let mut list = self.list.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        list.retain(|replica| replica.state() != ReplicaState::Gone);
        list.clone()
    }

    /// Reports on the present replicas, in the order in which they asked.
    pub fn reports(&self, uptime_millis: u64) -> Vec<ReplicaReport> {
        let report = |replica: &Arc<Replica>| {
            let is_online = replica.state() == ReplicaState::Online;
            ReplicaReport {
                host: replica.host(),
                port: replica.said().port,
                state: replica.state().word(),
                offset: replica.acked(),
                lag_seconds: if is_online { replica.silent_for(uptime_millis) / 1000 } else { 0 },
            }
        };
        self.all().iter().map(report).collect()
    }

    /// The place from which on the change stream is kept for some replica.
    pub fn kept_from(&self) -> Option<Lsn> {
        self.all().iter().filter_map(|replica| replica.kept_from()).min()
    }

    /// The number of replicas that have the stream up to an offset, or have it on their disks.
    pub fn n_with(&self, offset: u64, on_disk: bool) -> u64 {
        let has = |replica: &Arc<Replica>| {
            let acked = if on_disk { replica.acked_on_disk() } else { replica.acked() };
            replica.state() == ReplicaState::Online && acked >= offset
        };
        self.all().iter().filter(|replica| has(replica)).count() as u64
    }

    /// Notes whether the end of the server waits for replicas that are behind.
    pub fn await_at_end(&self, waits: bool) {
        self.waits_at_end.store(waits, Ordering::Relaxed);
    }

    /// Whether the end of the server waits for replicas that are behind.
    pub fn are_awaited_at_end(&self) -> bool {
        self.waits_at_end.load(Ordering::Relaxed)
    }

    /// Notes the time until which the end of the server waits for replicas, in milliseconds of uptime.
    pub fn set_end(&self, at: Option<u64>) {
        self.ends_at.store(at.unwrap_or(0), Ordering::Relaxed);
    }

    /// The time until which the end of the server waits for replicas, if it does.
    pub fn ends_at(&self) -> Option<u64> {
        Some(self.ends_at.load(Ordering::Relaxed)).filter(|&at| at > 0)
    }

    /// Counts an acknowledgement.
    pub fn count_ack(&self) {
        self.n_acks.fetch_add(1, Ordering::Relaxed);
    }

    /// The number of acknowledgements.
    pub fn n_acks(&self) -> u64 {
        self.n_acks.load(Ordering::Relaxed)
    }

    /// Whether too few replicas are well for writes.
    pub fn is_short(&self) -> bool {
        self.is_short.load(Ordering::Relaxed)
    }

    /// Notes whether too few replicas are well. Returns whether that has changed.
    pub fn set_short(&self, is_short: bool) -> bool {
        self.is_short.swap(is_short, Ordering::Relaxed) != is_short
    }

    /// Milliseconds for which there has been no replica.
    pub fn absent_for(&self, uptime_millis: u64) -> u64 {
        if !self.all().is_empty() {
            self.seen_at.store(uptime_millis, Ordering::Relaxed);
        }
        uptime_millis.saturating_sub(self.seen_at.load(Ordering::Relaxed))
    }
}
