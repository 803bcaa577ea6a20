//! The keys that all loads share, and loading them.
//!
//! They are named as redis-benchmark names its own (`key:000000000042`), so that its GETs hit what is loaded here.

use std::net::SocketAddr;

use braid_protocol::request::write_request;

use crate::bars::client::{Client, wrong};
use crate::bars::resp::{self, Kind};
use crate::error::BenchError;

/// Connections that load keys: several, so that every thread of a server allocates its share.
const N_LOADERS: usize = 8;
/// Requests that one connection sends before it reads their replies, which fit the socket's buffers.
const BATCH: u64 = 500;

/// The name of key `index`: 16 bytes.
pub fn name(index: u64) -> [u8; 16] {
    let mut name = *b"key:000000000000";
    write_digits(&mut name[4..], index);
    name
}

/// Writes the last digits of `number`, as many as there is room for.
pub fn write_digits(out: &mut [u8], number: u64) {
    let mut rest = number;
    for digit in out.iter_mut().rev() {
        *digit = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
}

/// Sets keys `0..n_keys` to `value`, each SET with the further arguments `options`, and checks DBSIZE.
///
/// # Errors
/// When a SET is refused or DBSIZE disagrees.
pub fn load(address: SocketAddr, n_keys: u64, value: &[u8], options: &[&[u8]]) -> Result<(), BenchError> {
    pipeline(address, n_keys, |index, out| {
        resp::append_header(out, 3 + options.len());
        for argument in [&b"SET"[..], &name(index), value].iter().chain(options) {
            resp::append_argument(out, argument);
        }
    })?;
    let found = Client::connect(address)?.dbsize()?;
    if found == n_keys {
        return Ok(());
    }
    Err(BenchError::WrongReply {
        request: format!("DBSIZE after {n_keys} SETs"),
        reply: format!("{found} keys"),
    })
}

/// Lets keys `0..n_keys` expire at the same `deadline`, in ms of the Unix epoch.
///
/// # Errors
/// When a PEXPIREAT is refused.
pub fn expire_at(address: SocketAddr, n_keys: u64, deadline: u64) -> Result<(), BenchError> {
    let deadline = deadline.to_string();
    pipeline(address, n_keys, |index, out| {
        write_request(out, &[&b"PEXPIREAT"[..], &name(index), deadline.as_bytes()]);
    })
}

/// Sends requests `0..n_requests` over several connections, pipelined; no reply may be an error.
///
/// # Errors
/// When one is, or a connection breaks.
pub fn pipeline(
    address: SocketAddr,
    n_requests: u64,
    append: impl Fn(u64, &mut Vec<u8>),
) -> Result<(), BenchError> {
    let mut loaders =
        (0..N_LOADERS).map(|_| Client::connect(address)).collect::<Result<Vec<_>, BenchError>>()?;
    let mut requests = Vec::new();
    let mut next = 0;
    while next < n_requests {
        let mut n_sent = [0; N_LOADERS];
        for (loader, n_sent) in loaders.iter_mut().zip(&mut n_sent) {
            *n_sent = BATCH.min(n_requests - next);
            requests.clear();
            (next..next + *n_sent).for_each(|index| append(index, &mut requests));
            loader.send(&requests)?;
            next += *n_sent;
        }
        for (loader, n_sent) in loaders.iter_mut().zip(n_sent) {
            expect_no_errors(loader, n_sent)?;
        }
    }
    Ok(())
}

fn expect_no_errors(loader: &mut Client, n_replies: u64) -> Result<(), BenchError> {
    for _ in 0..n_replies {
        let reply = loader.receive()?;
        if matches!(reply.kind, Kind::Error(_)) {
            return Err(wrong(&[b"a request of the load phase"], &reply));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_redis_benchmark() {
        assert_eq!(&name(0), b"key:000000000000");
        assert_eq!(&name(999_999), b"key:000000999999");
    }
}
