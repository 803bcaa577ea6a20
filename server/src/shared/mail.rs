//! What threads ask of each other.

use std::sync::Arc;

use braid_storage::executor::Node;

use super::saves::WalkStep;
use crate::{
    client::{
        connection::Connection,
        node::{Job, Parked},
        record::ClientRecord,
    },
    sockets::stream::Accepted,
};

/// What a thread is asked to do by another.
pub enum Mail {
    /// Serve a connection that was accepted elsewhere.
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
    /// Look again at what was held back by a pause, and at whether the server stops.
    Resume,
    /// Look again at clients that wait for a queue of notifications to empty.
    Room,
    /// Take a step of the walk of a snapshot for the saver.
    WalkStep(Box<WalkStep>),
}
