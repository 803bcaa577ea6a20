//! Replication: the identity of this server's data, its replicas, and the copies that they get.
//!
//! ```text
//! PSYNC   from a place in the stream's history: the link follows from there
//!         otherwise: the link waits for a full copy
//! saver   marks the stream at a cut and writes the snapshot of that moment to a `CopyPayload`, for all links that wait
//! link    belongs to a connection: sends the payload, and then what the change stream has after the mark
//! spooler writes what slow links have still to send to files, and frees it from memory
//! ```

pub mod copy_payload;
pub mod failover;
pub mod full_copy;
pub mod lineage;
pub mod own_keys;
pub mod replica;
pub mod replica_link;
pub mod replicas;
pub mod spooler;
pub mod turns;

use std::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicBool, AtomicU64},
};

use braid_journal::spool::Spools;

use self::{failover::Failover, lineage::Lineage, own_keys::OwnKeys, replicas::Replicas};

/// The server's part in replication.
pub struct Replication {
    lineage: Mutex<Lineage>,
    /// The replicas.
    pub replicas: Replicas,
    /// The part of the change stream that is in files, for slow replicas.
    pub spools: Spools,
    /// The failover under way.
    pub failover: Failover,
    /// The keys that clients have written while this server is a replica.
    pub own_keys: OwnKeys,
    /// The number of replicas that were given a full copy.
    pub n_full: AtomicU64,
    /// The number of replicas that went on where they were.
    pub n_partial: AtomicU64,
    /// Whether the data at the start had a place in a history.
    pub is_resumed: AtomicBool,
    /// The number of replicas that could not go on where they were, although they asked for it.
    pub n_partial_refused: AtomicU64,
}

impl Replication {
    /// Replication of a server whose data nobody else has.
    pub fn new() -> Self {
        Self {
            lineage: Mutex::new(Lineage::default()),
            replicas: Replicas::default(),
            spools: Spools::default(),
            failover: Failover::default(),
            own_keys: OwnKeys::default(),
            n_full: AtomicU64::new(0),
            n_partial: AtomicU64::new(0),
            n_partial_refused: AtomicU64::new(0),
            is_resumed: AtomicBool::new(false),
        }
    }

    /// The identity of the data.
    pub fn lineage(&self) -> MutexGuard<'_, Lineage> {
        self.lineage.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Default for Replication {
    fn default() -> Self {
        Self::new()
    }
}
