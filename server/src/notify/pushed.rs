//! What connections are sent that did not ask for it: bytes that may be for many of them.

use std::sync::Arc;

/// Bytes of at least this length are shared by the connections that they are for; shorter ones are copied to
/// each.
const SHARED_BYTES: usize = 2048;

/// Bytes for one connection or more.
#[derive(Debug)]
pub enum Shareable {
    /// They are copied to each.
    Copied(Vec<u8>),
    /// All have the same.
    Shared(Arc<[u8]>),
}

impl Shareable {
    /// Bytes as they are sent.
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

/// What one connection is sent: a head of its own kind, and the rest that others are sent, too.
#[derive(Clone, Copy)]
pub struct Given<'a> {
    /// What depends on the connection's dialect, or on why it is sent the rest.
    pub head: &'a [u8],
    /// What does not.
    pub rest: &'a Shareable,
}

impl<'a> Given<'a> {
    /// Something that is the same for all.
    pub fn whole(rest: &'a Shareable) -> Self {
        Given { head: b"", rest }
    }

    /// Something for this connection alone.
    pub fn told(head: &'a [u8]) -> Self {
        const NOTHING: &Shareable = &Shareable::Copied(Vec::new());
        Given { head, rest: NOTHING }
    }

    /// How many bytes it is.
    pub fn n_bytes(&self) -> usize {
        self.head.len() + self.rest.bytes().len()
    }
}
