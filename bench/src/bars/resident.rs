//! Resident memory of a server: fresh, with idle connections, and for each key.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::thread;
use std::time::Duration;

use super::contest::{Contest, N_KEYS, VALUE};
use crate::bars::measures::{Measure, Target, Unit};
use crate::bars::preload;
use crate::client::Client;
use crate::error::{BenchError, Doing};
use crate::process;
use crate::spawn::Server;

const MIB: f64 = 1024.0 * 1024.0;
const N_IDLE: usize = 10_000;
/// Connections opened before the server is given time to accept them.
///
/// They are fewer than a listen queue holds, because the kernel retries only a second after the queue was
/// full.
const N_WAITING: usize = 100;
/// An upper bound on open files besides the idle connections.
const N_OTHER_FILES: u64 = 200;

/// Measures a server with a thousand keys.
pub(super) fn fresh(contest: &Contest, bar: &str) -> Result<Vec<Measure>, BenchError> {
    let measures = vec![Measure::new("RSS, 1000 keys", Unit::MiB, Target::value(12.0))];
    contest.rounds(bar, contest.few_rounds(), measures, |side| {
        let server = contest.start(side, &[])?;
        preload::load(server.address(), 1000, "a value", &[])?;
        Ok(vec![settled_bytes(&server)? / MIB])
    })
}

/// Measures ten thousand connections: first silent ones, then after one PING on each.
pub(super) fn idle(contest: &Contest, bar: &str) -> Result<Vec<Measure>, BenchError> {
    let limit = process::open_files_limit()?;
    if limit < N_IDLE as u64 + N_OTHER_FILES {
        let why = format!("{N_IDLE} connections need more than the {limit} open files this system allows");
        return Err(BenchError::Machine(why));
    }
    let measures = vec![
        Measure::new("10000 silent connections", Unit::MiB, Target::value(60.0)),
        Measure::new("after a PING each", Unit::MiB, Target::NONE),
    ];
    contest.rounds(bar, contest.few_rounds(), measures, |side| {
        idle_once(&contest.start(side, &["--maxclients", "20000"])?)
    })
}

fn idle_once(server: &Server) -> Result<Vec<f64>, BenchError> {
    let before = settled_bytes(server)?;
    let mut connections = Vec::with_capacity(N_IDLE);
    while connections.len() < N_IDLE {
        for _ in 0..N_WAITING {
            connections.push(TcpStream::connect(server.address()).doing("open an idle connection")?);
        }
        // Connections are accepted in order. When a later one is served, all of these have been accepted.
        Client::connect(server.address())?.call(&[b"PING"])?;
    }
    let silent = settled_bytes(server)?;
    connections.iter_mut().try_for_each(ping)?;
    // Servers may keep a connection's buffers for a while after a request.
    thread::sleep(Duration::from_secs(3));
    let served = settled_bytes(server)?;
    Ok(vec![(silent - before) / MIB, (served - before) / MIB])
}

fn ping(connection: &mut TcpStream) -> Result<(), BenchError> {
    let mut reply = [0; b"+PONG\r\n".len()];
    connection
        .set_read_timeout(Some(Duration::from_secs(10)))
        .and_then(|()| connection.write_all(b"PING\r\n"))
        .and_then(|()| connection.read_exact(&mut reply))
        .doing("PING on an idle connection")
}

/// Measures a million keys of 16 bytes with values of 32, each set with `options`.
pub(super) fn per_key(contest: &Contest, bar: &str, options: &[&str]) -> Result<Vec<Measure>, BenchError> {
    let measures = vec![Measure::new("RSS/key", Unit::Bytes, Target::ratio(0.6))];
    contest.rounds(bar, contest.few_rounds(), measures, |side| {
        let server = contest.start(side, &[])?;
        let before = settled_bytes(&server)?;
        preload::load(server.address(), N_KEYS, VALUE, options)?;
        Ok(vec![(settled_bytes(&server)? - before) / N_KEYS as f64])
    })
}

/// Returns the resident bytes once the server has released its unused memory.
///
/// That is when they have stayed the same for two seconds, or after ten.
pub(super) fn settled_bytes(server: &Server) -> Result<f64, BenchError> {
    let mut bytes = process::resident_bytes(server.pid())?;
    let mut n_same = 0;
    for _ in 0..20 {
        thread::sleep(Duration::from_millis(500));
        let now = process::resident_bytes(server.pid())?;
        n_same = if now == bytes { n_same + 1 } else { 0 };
        bytes = now;
        if n_same == 4 {
            break;
        }
    }
    Ok(bytes as f64)
}
