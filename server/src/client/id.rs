//! The names of clients: their numbers, their addresses, and the places where they are served.

use std::net::SocketAddr;

use crate::config::Asker;

/// A client's number, which is never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClientId(pub u64);

/// One end of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// TCP.
    Inet(SocketAddr),
    /// A Unix socket's path.
    Unix(String),
}

impl Endpoint {
    /// The IP address, if it has one.
    pub fn ip(&self) -> Option<String> {
        match self {
            Endpoint::Inet(address) => Some(address.ip().to_string()),
            Endpoint::Unix(_) => None,
        }
    }

    /// Whether the peer is local or remote.
    pub fn asker(&self) -> Asker {
        match self {
            Endpoint::Inet(address) if !address.ip().is_loopback() => Asker::Remote,
            Endpoint::Inet(_) | Endpoint::Unix(_) => Asker::Local,
        }
    }
}

impl std::fmt::Display for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Endpoint::Inet(address) => write!(f, "{address}"),
            Endpoint::Unix(path) => write!(f, "{path}:0"),
        }
    }
}

/// The place where a connection is served. Its session returns there from any other place.
#[derive(Clone, Copy, Debug)]
pub struct Origin {
    /// The thread.
    pub thread: usize,
    /// The connection's slot there.
    pub slot: usize,
}
