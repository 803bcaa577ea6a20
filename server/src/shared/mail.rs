//! The requests of threads to each other.

use std::sync::Arc;

use braid_storage::sync::executor::Node;

use super::saves::WalkStep;
use crate::{
    client::{
        connection::Connection,
        node::{Job, Parked},
        record::ClientRecord,
    },
    replication::full_copy::FullCopy,
    sockets::stream::Accepted,
};

/// A request of one thread to another.
pub enum Mail {
    /// Serve a connection that another thread has accepted.
    Serve(Box<Accepted>),
    /// Serve a connection that another thread has served so far.
    Adopt(Box<Connection>),
    /// Close a client's connection (CLIENT KILL).
    Close(Arc<ClientRecord>),
    /// A command of a connection waits for keys.
    Waits(Arc<Parked>),
    /// CLIENT UNBLOCK has claimed a command that waited.
    GaveUp(Box<Node<Job>>, Arc<Parked>),
    /// CLIENT UNBLOCK has ended a WAIT or WAITAOF.
    SyncWaits,
    /// Check commands held back by a pause again, and whether the server stops.
    Resume,
    /// Check clients again that wait for a queue of notifications to empty.
    Room,
    /// Begin a full copy for the links that wait for one.
    Copy(Arc<FullCopy>),
    /// Take a step of the walk of a snapshot for the saver.
    WalkStep(Box<WalkStep>),
}
