//! How long short requests wait while one client sends nothing but slow ones.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Instant;

use super::{Contest, N_KEYS, VALUE, latency};
use crate::client::{Client, wrong};
use crate::error::BenchError;
use crate::keys;
use crate::load::Request;
use crate::report::{Measure, Target, Unit};
use crate::resp::{self, Kind};
use crate::spawn::Server;

const REQUESTS: [Request; 3] = [Request::Get, Request::Mget(10), Request::Exec(4)];
const N_MGET_KEYS: u64 = 100_000;

/// A request that takes long, and what its reply must be.
struct SlowRequest {
    name: &'static str,
    encoded: Vec<u8>,
    /// Elements of the reply, none of them null.
    n_elements: u64,
}

/// `KEYS *` of a million keys.
pub(super) fn keys(contest: &Contest, bar: &str) -> Result<Vec<Measure>, BenchError> {
    let mut encoded = Vec::new();
    resp::append_request(&mut encoded, &[b"KEYS", b"*"]);
    let slow = SlowRequest { name: "KEYS", encoded, n_elements: N_KEYS };
    run(contest, bar, &slow, Target::value(10.0).and_ratio(0.1))
}

/// MGET of a hundred thousand keys, spread over the million.
pub(super) fn mget(contest: &Contest, bar: &str) -> Result<Vec<Measure>, BenchError> {
    let mut encoded = Vec::new();
    resp::append_header(&mut encoded, 1 + N_MGET_KEYS as usize);
    resp::append_argument(&mut encoded, b"MGET");
    (0..N_MGET_KEYS)
        .for_each(|index| resp::append_argument(&mut encoded, &keys::name(index * (N_KEYS / N_MGET_KEYS))));
    let slow = SlowRequest { name: "MGET 100000", encoded, n_elements: N_MGET_KEYS };
    run(contest, bar, &slow, Target::ratio(0.333))
}

fn run(contest: &Contest, bar: &str, slow: &SlowRequest, target: Target) -> Result<Vec<Measure>, BenchError> {
    let servers = contest.start_both_loaded(VALUE)?;
    let mut measures = latency::measures(&REQUESTS, target);
    // Waiting less because the slow client starves would be no success: show how it fares.
    measures.push(Measure::new(slow.name, Unit::PerSecond, Target::NONE));
    contest.rounds(bar, contest.few_rounds(), measures, |side| run_beside(contest, side.of(&servers), slow))
}

/// Runs the loads while another connection repeats the slow request.
fn run_beside(contest: &Contest, server: &Server, slow: &SlowRequest) -> Result<Vec<f64>, BenchError> {
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let repeating = scope.spawn(|| repeat(server.address(), slow, &stop));
        let loads = latency::percentiles(contest, server, &REQUESTS);
        stop.store(true, Ordering::Relaxed);
        let per_second = repeating.join().expect("the slow client does not panic")?;
        let mut figures = loads?;
        figures.push(per_second);
        Ok(figures)
    })
}

/// Sends the slow request again as soon as its whole reply is read and checked, until told to stop. Returns how many
/// were answered a second.
fn repeat(address: SocketAddr, slow: &SlowRequest, stop: &AtomicBool) -> Result<f64, BenchError> {
    let mut client = Client::connect(address)?;
    let began = Instant::now();
    let mut n_answered = 0_u32;
    while !stop.load(Ordering::Relaxed) {
        client.send(&slow.encoded)?;
        let reply = client.receive()?;
        if reply.kind != Kind::Array(slow.n_elements) || reply.n_nulls + reply.n_errors > 0 {
            return Err(wrong(&[slow.name.as_bytes()], &reply));
        }
        n_answered += 1;
    }
    Ok(f64::from(n_answered) / began.elapsed().as_secs_f64())
}
