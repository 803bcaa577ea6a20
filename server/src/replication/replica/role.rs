//! Whether this server is a replica, and the state of its link to the primary.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicI64, AtomicU8, AtomicU32, AtomicU64, Ordering},
};

use arc_swap::ArcSwapOption;
use braid_journal::{history::ReplicationId, stream::Lsn};
use crossbeam_utils::sync::Unparker;

use crate::config::{Config, PrimaryAddress};

/// A place in a history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamPlace {
    /// The history's ID.
    pub id: ReplicationId,
    /// The bytes of the stream up to this place.
    pub offset: i64,
}

/// The state of the link to the primary.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LinkState {
    /// There is no primary.
    #[default]
    None,
    /// The link must be made, now or in a moment.
    Connect,
    /// The socket is being connected.
    Connecting,
    /// The two servers introduce themselves.
    Handshake,
    /// A copy of the primary's data arrives.
    Copying,
    /// The stream is applied.
    Connected,
}

impl LinkState {
    const ALL: [LinkState; 6] = [
        LinkState::None,
        LinkState::Connect,
        LinkState::Connecting,
        LinkState::Handshake,
        LinkState::Copying,
        LinkState::Connected,
    ];

    /// The word for it in the reply to ROLE.
    pub fn word(self) -> &'static str {
        match self {
            LinkState::None => "none",
            LinkState::Connect => "connect",
            LinkState::Connecting => "connecting",
            LinkState::Handshake => "handshake",
            LinkState::Copying => "sync",
            LinkState::Connected => "connected",
        }
    }
}

/// The progress of a copy. Its total length is 0 while that is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyProgress {
    /// The length of the copy in bytes.
    pub total_bytes: u64,
    /// The bytes that have arrived.
    pub read_bytes: u64,
    /// The time of the last bytes, in milliseconds of uptime.
    pub last_io: u64,
}

/// Whose replica this server is, and how far its data is.
///
/// REPLICAOF writes the role, with the lock of CONFIG SET. Only the link's thread writes the rest.
#[derive(Default)]
pub struct ReplicaRole {
    /// Whether it is a replica.
    is_on: AtomicBool,
    /// Copies of settings that the gates read.
    is_read_only: AtomicBool,
    serves_stale: AtomicBool,
    /// Copies of settings that Sentinel learns from INFO.
    priority: AtomicU32,
    is_announced: AtomicBool,
    primary: ArcSwapOption<PrimaryAddress>,
    /// The number of changes of the role. Work for an earlier one has no effect any more.
    generation: AtomicU64,
    state: AtomicU8,
    /// Whether the data has a place in the present history, so that a primary may go on from there.
    has_history: AtomicBool,
    /// The end of the last unit that was applied.
    applied: AtomicI64,
    /// The bytes of the stream that have arrived.
    read: AtomicI64,
    /// The time of the last bytes from the primary, in milliseconds of uptime.
    last_io: AtomicU64,
    /// The time when the link went down, in milliseconds of uptime plus one. 0 if it never was up.
    down_since: AtomicU64,
    copy_total_bytes: AtomicU64,
    copy_read_bytes: AtomicU64,
    /// Whether a copy is loaded while the old data is served.
    is_loading_aside: AtomicBool,
    /// The number of error replies to the primary's commands.
    pub n_unexpected_errors: AtomicU64,
    /// The bytes that the link has read and written.
    pub link_bytes_in: AtomicU64,
    /// See `link_bytes_in`.
    pub link_bytes_out: AtomicU64,
    /// The number of times that the saver has rewritten the AOF after a copy.
    pub n_logs_rewritten: AtomicU64,
    /// Wakes the link's thread.
    wake: Option<Unparker>,
}

impl ReplicaRole {
    /// Creates the role that a configuration asks for. `wake` wakes the link's thread.
    pub fn new(config: &Config, wake: Unparker) -> Self {
        let role = Self { wake: Some(wake), ..Self::default() };
        role.configure(config);
        role.set_primary(config.replicaof.clone());
        role
    }

    /// Takes over the settings that gates read.
    pub fn configure(&self, config: &Config) {
        self.is_read_only.store(config.replica_read_only, Ordering::Relaxed);
        self.serves_stale.store(config.replica_serve_stale_data, Ordering::Relaxed);
        self.priority.store(config.replica_priority, Ordering::Relaxed);
        self.is_announced.store(config.replica_announced, Ordering::Relaxed);
    }

    /// Whether this server is a replica.
    #[inline]
    pub fn is_on(&self) -> bool {
        // SeqCst: pairs with the store in `set_primary`, for `Server::settle_expiry`.
        self.is_on.load(Ordering::SeqCst)
    }

    /// Whether writes of clients are refused.
    pub fn refuses_writes(&self) -> bool {
        self.is_on() && self.is_read_only.load(Ordering::Relaxed)
    }

    /// The order in which Sentinel promotes it.
    pub fn priority(&self) -> u32 {
        self.priority.load(Ordering::Relaxed)
    }

    /// Whether Sentinel lists it.
    pub fn is_announced(&self) -> bool {
        self.is_announced.load(Ordering::Relaxed)
    }

    /// Whether commands are refused because the data may be stale.
    pub fn is_cut_off(&self) -> bool {
        self.is_on() && !self.serves_stale.load(Ordering::Relaxed) && self.state() != LinkState::Connected
    }

    /// The primary.
    pub fn primary(&self) -> Option<Arc<PrimaryAddress>> {
        self.primary.load_full()
    }

    /// The number of changes of the role.
    pub fn generation(&self) -> u64 {
        // Acquire pairs with the Release in `set_primary`.
        self.generation.load(Ordering::Acquire)
    }

    /// Changes the role. The link's thread learns of it by the generation.
    pub fn set_primary(&self, primary: Option<PrimaryAddress>) {
        let state = if primary.is_some() { LinkState::Connect } else { LinkState::None };
        self.state.store(state as u8, Ordering::Relaxed);
        self.down_since.store(0, Ordering::Relaxed);
        let is_on = primary.is_some();
        self.primary.store(primary.map(Arc::new));
        // SeqCst: pairs with the load in `is_on`.
        self.is_on.store(is_on, Ordering::SeqCst);
        // Release pairs with the Acquire in `generation`.
        self.generation.fetch_add(1, Ordering::Release);
    }

    /// Wakes the link's thread.
    pub fn wake_link(&self) {
        if let Some(wake) = &self.wake {
            wake.unpark();
        }
    }

    /// The state of the link.
    pub fn state(&self) -> LinkState {
        LinkState::ALL[usize::from(self.state.load(Ordering::Relaxed))]
    }

    /// Records the state of the link, for the role of a generation.
    pub fn note_state(&self, state: LinkState, generation: u64, uptime_millis: u64) {
        if self.generation() != generation {
            return;
        }
        let before = self.state.swap(state as u8, Ordering::Relaxed);
        if before == LinkState::Connected as u8 && state != LinkState::Connected {
            self.down_since.store(uptime_millis + 1, Ordering::Relaxed);
        }
        // The role may have changed between the two lines above.
        if self.generation() != generation {
            let state = if self.is_on() { LinkState::Connect } else { LinkState::None };
            self.state.store(state as u8, Ordering::Relaxed);
        }
    }

    /// Whether the data has a place in the present history, so that a primary may go on from there.
    pub fn has_history(&self) -> bool {
        self.has_history.load(Ordering::Relaxed)
    }

    /// Records whether the data has a place in the present history.
    pub fn set_has_history(&self, has: bool) {
        self.has_history.store(has, Ordering::Relaxed);
    }

    /// Records that the data is that of a place in the present history.
    pub fn note_place(&self, place: Lsn) {
        self.note_read(place.0 as i64);
        self.note_applied(place.0 as i64);
        self.set_has_history(true);
    }

    /// The end of the last unit that was applied.
    pub fn applied(&self) -> i64 {
        self.applied.load(Ordering::Relaxed)
    }

    /// Records the end of the last unit that was applied.
    pub fn note_applied(&self, offset: i64) {
        self.applied.store(offset, Ordering::Relaxed);
    }

    /// The bytes of the stream that have arrived.
    pub fn read(&self) -> i64 {
        self.read.load(Ordering::Relaxed)
    }

    /// Records the bytes of the stream that have arrived.
    pub fn note_read(&self, offset: i64) {
        self.read.store(offset, Ordering::Relaxed);
    }

    /// Records that bytes came from the primary.
    pub fn note_io(&self, uptime_millis: u64) {
        self.last_io.store(uptime_millis, Ordering::Relaxed);
    }

    /// The time of the last bytes from the primary, in milliseconds of uptime.
    pub fn last_io(&self) -> u64 {
        self.last_io.load(Ordering::Relaxed)
    }

    /// The time when the link went down, in milliseconds of uptime. `None` if it has not been up.
    pub fn down_since(&self) -> Option<u64> {
        self.down_since.load(Ordering::Relaxed).checked_sub(1)
    }

    /// Records the progress of a copy.
    pub fn note_copied(&self, total_bytes: u64, read_bytes: u64) {
        self.copy_total_bytes.store(total_bytes, Ordering::Relaxed);
        self.copy_read_bytes.store(read_bytes, Ordering::Relaxed);
    }

    /// The progress of the copy that arrives, if one does.
    pub fn copy(&self) -> Option<CopyProgress> {
        (self.state() == LinkState::Copying).then(|| CopyProgress {
            total_bytes: self.copy_total_bytes.load(Ordering::Relaxed),
            read_bytes: self.copy_read_bytes.load(Ordering::Relaxed),
            last_io: self.last_io(),
        })
    }

    /// Records whether a copy is loaded while the old data is served.
    pub fn set_loading_aside(&self, is_loading: bool) {
        self.is_loading_aside.store(is_loading, Ordering::Relaxed);
    }

    /// Whether a copy is loaded while the old data is served.
    pub fn is_loading_aside(&self) -> bool {
        self.is_loading_aside.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn primary() -> Option<PrimaryAddress> {
        Some(PrimaryAddress { host: b"a".to_vec(), port: 1 })
    }

    #[test]
    fn a_link_of_an_earlier_role_changes_no_state() {
        let role = ReplicaRole::default();
        role.set_primary(primary());
        let generation = role.generation();
        role.note_state(LinkState::Connected, generation, 5);
        role.note_state(LinkState::Connect, generation, 9);
        assert_eq!(role.down_since(), Some(9));
        role.set_primary(None);
        role.note_state(LinkState::Connected, generation, 10);
        assert_eq!(role.state(), LinkState::None);
    }
}
