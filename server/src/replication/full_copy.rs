//! A full copy for one or more replicas: a snapshot of one moment, and the place of that moment in the
//! stream.

use std::sync::{Arc, Mutex, MutexGuard};

use braid_journal::follower::Follower;

use super::{
    copy_payload::CopyPayload,
    lineage::ReplicationId,
    replicas::{Replica, ReplicaState},
};
use crate::{client::id::ClientId, warning};

/// A full copy.
pub struct FullCopy {
    /// The replicas that get it.
    pub replicas: Vec<Arc<Replica>>,
    /// The history to which it belongs, and its offset there.
    pub id: ReplicationId,
    /// See `id`.
    pub offset: u64,
    /// The mark at the end of a copy without a length.
    pub mark: ReplicationId,
    /// Whether replicas that can do without the length get it marked.
    pub is_marked: bool,
    /// The snapshot.
    pub payload: CopyPayload,
    /// The place of the stream after it, which does not change.
    pub start: CopyStart,
}

/// The place in the stream after a full copy.
pub struct CopyStart(Mutex<Follower>);

impl CopyStart {
    /// The place of a follower.
    pub fn at(follower: Follower) -> Self {
        Self(Mutex::new(follower))
    }

    /// The follower at the place. It may move to a spool, as the stream grows.
    pub fn follower(&self) -> MutexGuard<'_, Follower> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl FullCopy {
    /// Whether it is for a client.
    pub fn is_for(&self, client: ClientId) -> bool {
        self.replicas.iter().any(|replica| replica.client == client)
    }

    /// The number of its replicas that are still there.
    pub fn n_taking(&self) -> usize {
        self.replicas.iter().filter(|replica| replica.state() != ReplicaState::Gone).count()
    }

    /// Tells the server log how many replicas take a marked copy that has been made.
    pub fn tell_end(&self) {
        match self.n_taking() {
            _ if !self.is_marked => {}
            0 => warning!("Diskless rdb transfer, last replica dropped, killing fork child."),
            n => warning!("Diskless rdb transfer, done reading from pipe, {n} replicas still up."),
        }
    }
}
