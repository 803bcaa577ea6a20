//! The settings of a load: the server, when to send, and when to end.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use super::arrivals::Arrivals;
use crate::address::Address;

/// The server to load.
#[derive(Debug, Clone)]
pub struct LoadTarget {
    /// The address at which it listens.
    pub address: Address,
    /// The requests that each connection sends first: AUTH, HELLO, SELECT.
    pub greeting: Vec<Vec<String>>,
}

impl LoadTarget {
    /// A server whose connections send no greeting.
    pub fn plain(address: impl Into<Address>) -> Self {
        Self { address: address.into(), greeting: Vec::new() }
    }
}

/// The schedule, the end and the threads of a load.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The rule that says when requests are sent.
    pub arrivals: Arrivals,
    /// The end of the load.
    pub limit: Limit,
    /// Worker threads; connections are divided between them.
    pub n_threads: usize,
    /// Cores that the workers may use; all cores if none is named.
    pub cpus: Vec<usize>,
}

/// The end of a load.
#[derive(Debug, Clone)]
pub enum Limit {
    /// The load ends after a time.
    Time {
        /// The time before requests count.
        warmup: Duration,
        /// The time during which requests count.
        measured: Duration,
    },
    /// The load ends after this many requests, all of which count.
    Requests(u64),
    /// The load ends when this flag is set. All requests before that count.
    Told(Arc<AtomicBool>),
}
