//! The settings of a load: the server, when to send, and when to end.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use super::arrivals::Arrivals;
use crate::address::Address;

/// The server to load.
#[derive(Debug, Clone)]
pub struct Target {
    /// Where the server listens.
    pub address: Address,
    /// What each connection sends first: AUTH, HELLO, SELECT.
    pub greeting: Vec<Vec<String>>,
}

impl Target {
    /// A server that connections greet with nothing.
    pub fn plain(address: impl Into<Address>) -> Self {
        Self { address: address.into(), greeting: Vec::new() }
    }
}

/// How to load it.
#[derive(Debug, Clone)]
pub struct Plan {
    /// When requests are sent.
    pub arrivals: Arrivals,
    /// When the load ends.
    pub limit: Limit,
    /// Worker threads; connections are divided between them.
    pub n_threads: usize,
    /// Cores that the workers may use; all where there are none named.
    pub cpus: Vec<usize>,
}

/// When a load ends.
#[derive(Debug, Clone)]
pub enum Limit {
    /// After a time.
    Time {
        /// Before anything counts.
        warmup: Duration,
        /// While it counts.
        measured: Duration,
    },
    /// After this many requests, all of which count.
    Requests(u64),
    /// When this flag is set; all requests before that count.
    Told(Arc<AtomicBool>),
}
