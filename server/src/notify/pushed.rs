//! Pushed output: bytes that a client did not request, shareable between clients.

use std::sync::Arc;

/// The length from which bytes are shared by their connections. Shorter ones are copied to each.
const SHARED_BYTES: usize = 2048;

/// Bytes for one or more connections.
#[derive(Debug)]
pub enum Shareable {
    /// Bytes that are copied to each connection.
    Copied(Vec<u8>),
    /// Bytes that all connections share.
    Shared(Arc<[u8]>),
}

impl Shareable {
    /// Makes bytes shareable in the form that suits their length.
    pub fn new(bytes: Vec<u8>) -> Self {
        if bytes.len() < SHARED_BYTES { Shareable::Copied(bytes) } else { Shareable::Shared(bytes.into()) }
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        match self {
            Shareable::Copied(bytes) => bytes,
            Shareable::Shared(bytes) => bytes,
        }
    }
}

/// The output to one connection: its own head, and the rest, which others receive, too.
#[derive(Clone, Copy)]
pub struct Given<'a> {
    /// The part that depends on the connection's RESP version, or on the notification's reason.
    pub head: &'a [u8],
    /// The part that does not depend on them.
    pub rest: &'a Shareable,
}

impl<'a> Given<'a> {
    /// Creates output that is the same for all connections.
    pub fn whole(rest: &'a Shareable) -> Self {
        Given { head: b"", rest }
    }

    /// Creates output for this connection alone.
    pub fn told(head: &'a [u8]) -> Self {
        const NOTHING: &Shareable = &Shareable::Copied(Vec::new());
        Given { head, rest: NOTHING }
    }

    /// The length in bytes.
    pub fn n_bytes(&self) -> usize {
        self.head.len() + self.rest.bytes().len()
    }
}
