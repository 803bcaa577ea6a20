//! The parts of an I/O thread: the state of each, without the loop that uses it.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
};

use braid_journal::intake::Ticket;
use braid_protocol::request::Limits;

use crate::{
    client::{
        id::ClientId,
        session::{AwaitSync, SyncAnswer},
    },
    clock::{Instant, Steady},
    command::Registered,
    config::Config,
    net::{eviction::Eviction, expiry::Expiry},
    notify::{notifications::ConnectionSlot, tracking_table::Leftover},
    replication::replicas::Replicas,
    shared::{client_limit::clients_limit, server::Server, thread_scaling::Sampler},
    sockets::tls::Ciphertext,
};

/// The connections whose commands wait for keys with a deadline, for the end of a pause, or for a time.
///
/// The nodes are in the connections' [states](crate::client::state::ConnectionState).
#[derive(Default)]
pub(super) struct Waits {
    /// The deadlines of commands that wait for keys, with the slots of their connections.
    pub(super) deadlines: BTreeSet<(Steady, usize)>,
    /// The slots of connections that CLIENT PAUSE holds back, in the order of their commands' arrival.
    pub(super) postponed: BTreeMap<u64, usize>,
    /// The number of commands that were ever held back.
    pub(super) n_postponed: u64,
    /// Connections that wait for a time.
    pub(super) resting: Vec<Rest>,
}

/// The rest of a connection.
pub(super) struct Rest {
    pub(super) slot: usize,
    /// The end, in milliseconds of uptime.
    pub(super) until: u64,
    pub(super) began: Instant,
    /// The command for whose work the rest stands.
    pub(super) works_on: Option<&'static Registered>,
}

impl Waits {
    /// The first deadline of a command that waits for keys.
    pub(super) fn first_deadline(&self) -> Option<Steady> {
        self.deadlines.first().map(|&(deadline, _)| deadline)
    }

    /// Whether a pause holds commands back.
    pub(super) fn has_postponed(&self) -> bool {
        !self.postponed.is_empty()
    }

    /// The number of connections that wait.
    #[cfg(test)]
    pub(super) fn n_waiting(&self) -> usize {
        self.deadlines.len() + self.postponed.len() + self.resting.len()
    }

    /// Forgets a command that a pause has held back. Its connection has closed.
    pub(super) fn forget_postponed(&mut self, nth: u64) {
        self.postponed.remove(&nth);
    }
}

/// The connections that wait for the log, or for copies of their writes.
#[derive(Default)]
pub(super) struct LogWaits {
    /// The slots of connections whose replies wait for the log.
    pub(super) replies: Vec<usize>,
    /// Clients whose WAITAOF waits for the disk.
    pub(super) syncs: Vec<SyncWaiting>,
    /// Clients whose WAIT or WAITAOF waits for replicas.
    pub(super) replicas: Vec<SyncWaiting>,
    /// The synced position when the clients that wait for the disk were last checked.
    pub(super) synced_seen: Option<Ticket>,
    /// The number of acknowledgements when the clients that wait for replicas were last checked.
    pub(super) acks_seen: u64,
    /// Whether all of them must be checked, wherever the synced position is.
    pub(super) must_check_all: bool,
}

/// A client that waits until its writes are on disk or on replicas. Its state is
/// [`ConnectionState::AwaitsSync`](crate::client::state::ConnectionState::AwaitsSync).
pub(super) struct SyncWaiting {
    pub(super) slot: usize,
    pub(super) ticket: Ticket,
    /// The offset that replicas must have. It is known once the ticket is in the change stream.
    pub(super) target: Option<u64>,
    pub(super) wanted: AwaitSync,
    /// The end of the wait, in milliseconds of uptime.
    pub(super) until: u64,
}

impl SyncWaiting {
    /// The number of replicas, or of their disks, that have the writes.
    pub(super) fn n_replicas(&self, replicas: &Replicas) -> u64 {
        let is_on_disk = self.wanted.answers == SyncAnswer::Disks;
        self.target.map_or(0, |target| replicas.n_with(target, is_on_disk))
    }
}

impl LogWaits {
    /// Adds a connection whose replies wait for the log.
    pub(super) fn add_replies(&mut self, slot: usize) {
        self.replies.push(slot);
    }

    /// Makes the next turn check all clients that wait for copies.
    pub(super) fn check_all(&mut self) {
        self.must_check_all = true;
    }

    /// The number of connections that wait.
    #[cfg(test)]
    pub(super) fn n_waiting(&self) -> usize {
        self.replies.len() + self.syncs.len() + self.replicas.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.replies.is_empty() && self.syncs.is_empty() && self.replicas.is_empty()
    }
}

/// The state of clients that no longer track, which shards have not forgotten yet.
#[derive(Default)]
pub(super) struct Forgetting {
    pub(super) queue: VecDeque<Leftover>,
    /// Whether the last turn has made progress. If not, the shards are held, and the next round of the cron
    /// tries again.
    pub(super) gets_on: bool,
    /// The shard at which the search for keys to forget continues.
    pub(super) limited_at: usize,
}

impl Forgetting {
    /// Adds a client that no longer tracks.
    pub(super) fn add(&mut self, leftover: Leftover) {
        self.queue.push_back(leftover);
    }

    /// Whether another turn would make progress.
    pub(super) fn gets_on(&self) -> bool {
        self.gets_on
    }
}

/// The TLS handshakes that are under way on a thread.
#[derive(Default)]
pub(super) struct Handshakes {
    /// Handshakes that can continue, in order. A slot may belong to another connection by then.
    pub(super) queue: VecDeque<ConnectionSlot>,
    /// All handshakes, with the time at which they must have ended.
    pub(super) deadlines: VecDeque<(Instant, ConnectionSlot, ClientId)>,
}

impl Handshakes {
    /// Whether a handshake can continue at once.
    pub(super) fn are_waiting(&self) -> bool {
        !self.queue.is_empty()
    }
}

/// The state of a thread's housekeeping.
pub(super) struct Housekeeping {
    pub(super) expiry: Expiry,
    pub(super) eviction: Eviction,
    /// The time of the next round of the cron.
    pub(super) next_cron: Instant,
    pub(super) sampler: Sampler,
    /// How many consecutive rounds of the cron have found no read since the round before.
    pub(super) n_idle_crons: u32,
    pub(super) n_reads_seen: u64,
    pub(super) purges_seen: u64,
    /// The time of the last PING to replicas, in milliseconds of uptime. Only the first thread sends it.
    pub(super) pinged_at: u64,
}

impl Housekeeping {
    /// The state at the start of thread `index` of `n_threads`.
    pub(super) fn new(index: usize, n_threads: usize) -> Self {
        let now = Instant::now();
        Self {
            expiry: Expiry::new(index, n_threads),
            eviction: Eviction::default(),
            next_cron: now,
            sampler: Sampler::new(now),
            n_idle_crons: 0,
            n_reads_seen: 0,
            purges_seen: 0,
            pinged_at: 0,
        }
    }
}

/// The configuration as a thread has last read it.
pub(super) struct OwnConfig {
    pub(super) config: Arc<Config>,
    /// The number of changes that it has read.
    pub(super) n_changes_seen: u64,
    /// The parser's limits for a client that has authenticated.
    pub(super) limits: Limits,
    /// The memory in bytes that all clients together may use (`maxmemory-clients`).
    pub(super) clients_limit: u64,
    /// Whether an output limit may have changed since connections were last compared with it.
    pub(super) may_be_over: bool,
}

impl OwnConfig {
    pub(super) fn new(server: &Server) -> Self {
        let config = server.config.load_full();
        Self {
            limits: limits(&config),
            clients_limit: clients_limit(&config),
            config,
            n_changes_seen: 0,
            may_be_over: false,
        }
    }
}

/// The parser's limits.
pub(super) fn limits(config: &Config) -> Limits {
    Limits { max_bulk_bytes: config.proto_max_bulk_len as u64, authenticated: true }
}

/// Buffers that a thread lends to the connection that it serves.
pub(super) struct Buffers {
    pub(super) input: Box<[u8]>,
    /// The buffers that connections with TLS read into and write from. They are empty until there is such a
    /// connection.
    pub(super) ciphertext: Ciphertext,
    /// Replies of the connection that is being served. Kept for its space.
    pub(super) replies: Vec<u8>,
}
