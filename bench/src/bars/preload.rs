//! The keys that all loads share, and loading them.
//!
//! They have the names that redis-benchmark and workloads use (`key:000000000042`), so redis-benchmark's GETs
//! find them.

use std::net::SocketAddr;
use std::sync::Arc;

use crate::client::Client;
use crate::engine::LoadTarget;
use crate::error::BenchError;
use crate::load;
use crate::workload::{Compiled, Keys, Population, Workload};

/// Connections that load keys. There are several, so that every thread of a server allocates its share.
const N_LOADERS: usize = 8;

/// Returns the name of key `index`: 16 bytes.
pub fn name(index: u64) -> String {
    format!("key:{index:012}")
}

/// Sets keys `0..n_keys` to `value`, and checks DBSIZE.
///
/// Each SET has the further arguments `options`.
///
/// # Errors
/// When a SET is refused or DBSIZE disagrees.
pub fn load(address: SocketAddr, n_keys: u64, value: &str, options: &[&str]) -> Result<(), BenchError> {
    for_each_key(address, n_keys, &[&["SET", "{key}", value], options].concat())?;
    let found = Client::connect(address)?.dbsize()?;
    if found == n_keys {
        return Ok(());
    }
    Err(BenchError::WrongReply {
        request: format!("DBSIZE after {n_keys} SETs"),
        reply: format!("{found} keys"),
    })
}

/// Sets the same `deadline` for keys `0..n_keys`, in ms of the Unix epoch.
///
/// # Errors
/// When a PEXPIREAT is refused.
pub fn expire_at(address: SocketAddr, n_keys: u64, deadline: u64) -> Result<(), BenchError> {
    for_each_key(address, n_keys, &["PEXPIREAT", "{key}", &deadline.to_string()])
}

fn for_each_key(address: SocketAddr, n_keys: u64, request: &[&str]) -> Result<(), BenchError> {
    let request = request.iter().map(|&argument| argument.to_owned()).collect();
    let population = Population { count: None, requests: vec![request] };
    let keys = Keys { count: n_keys, ..Keys::default() };
    let workload = Workload { connections: N_LOADERS, keys, ..Workload::default() };
    send(address, Compiled::preload(&workload, &population, 0..n_keys)?)
}

/// Sends requests `0..n_requests`, each of which `write` appends by its number.
///
/// # Errors
/// When a reply is an error, or a connection breaks.
pub fn pipeline(
    address: SocketAddr,
    n_requests: u64,
    write: impl Fn(u64, &mut Vec<u8>) + Send + Sync + 'static,
) -> Result<(), BenchError> {
    send(address, Compiled::written(N_LOADERS, n_requests, write)?)
}

fn send(address: SocketAddr, requests: Compiled) -> Result<(), BenchError> {
    load::send_sequence(&LoadTarget::plain(address), &Arc::new(requests), 1, &[])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_redis_benchmark() {
        assert_eq!(name(0), "key:000000000000");
        assert_eq!(name(999_999), "key:000000999999");
    }
}
