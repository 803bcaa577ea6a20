//! A full copy for one or more replicas: a snapshot of one moment, and the place of that moment in the
//! stream.

use braid_journal::follower::Follower;

use super::{copy_payload::CopyPayload, lineage::ReplicationId};
use crate::client::id::ClientId;

/// A full copy.
pub struct FullCopy {
    /// The replicas that get it.
    pub clients: Vec<ClientId>,
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
    /// The stream after it.
    pub start: Follower,
}
