//! How clients are named: by their numbers, by their addresses, and by where they are served.

use std::net::SocketAddr;

use crate::config::Asker;

/// A client's number: never used twice.
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
    /// Where from is asked who has this end of a connection.
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

/// Where a connection is served: its session comes back there from wherever it was.
#[derive(Clone, Copy, Debug)]
pub struct Origin {
    /// The thread.
    pub thread: usize,
    /// The connection's place there.
    pub slot: usize,
}
