//! The settings of a load: the server, when to send, and when to end.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use super::arrivals::Arrivals;
use crate::address::Address;

/// The server to load.
#[derive(Debug, Clone)]
pub struct Target {
    /// The address at which it listens.
    pub address: Address,
    /// The requests that each connection sends first: AUTH, HELLO, SELECT.
    pub greeting: Vec<Vec<String>>,
}

impl Target {
    /// A server whose connections send no greeting.
    pub fn plain(address: impl Into<Address>) -> Self {
        Self { address: address.into(), greeting: Vec::new() }
    }
}

/// The schedule, the end and the threads of a load.
#[derive(Debug, Clone)]
pub struct Plan {
    /// When requests are sent.
    pub arrivals: Arrivals,
    /// When the load ends.
    pub limit: Limit,
    /// Worker threads; connections are divided between them.
    pub n_threads: usize,
    /// Cores that the workers may use; all cores if none is named.
    pub cpus: Vec<usize>,
}

/// When a load ends.
#[derive(Debug, Clone)]
pub enum Limit {
    /// After a time.
    Time {
        /// The time before requests count.
        warmup: Duration,
        /// The time during which requests count.
        measured: Duration,
    },
    /// After this many requests, all of which count.
    Requests(u64),
    /// When this flag is set; all requests before that count.
    Told(Arc<AtomicBool>),
}
