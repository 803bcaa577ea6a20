//! The waits of short requests while one client sends only slow ones.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Instant;

use braid_protocol::request::write_request;

use super::contest::{Bar, Contest, N_KEYS, VALUE, on_both};
use super::latency;
use crate::bars::measures::{Measure, Target, Unit};
use crate::bars::preload;
use crate::bars::requests::Request;
use crate::bars::values::{self, Filling, ValueType};
use crate::client::{Client, wrong_reply};
use crate::error::BenchError;
use crate::reply_counter::Kind;
use crate::spawn::Server;

/// Bars of commands over one value of a million members, or two of half a million.
///
/// The short requests are about other keys.
pub(super) const TYPES: &[Bar] = &[
    Bar { name: "slow-smembers", run: smembers },
    Bar { name: "slow-lrange", run: lrange },
    Bar { name: "slow-hgetall", run: hgetall },
    Bar { name: "slow-sort", run: sort },
    Bar { name: "slow-zunionstore", run: zunionstore },
];

const REQUESTS: [Request; 3] = [Request::Get, Request::Mget(10), Request::Exec(4)];
const N_MGET_KEYS: u64 = 100_000;
const N_MEMBERS: u64 = 1_000_000;

/// A slow request, and its expected reply.
pub(super) struct SlowRequest {
    name: &'static str,
    encoded: Vec<u8>,
    /// The expected reply, without null elements.
    reply: Kind,
}

impl SlowRequest {
    pub(super) fn new(name: &'static str, argv: &[&str], reply: Kind) -> Self {
        let mut encoded = Vec::new();
        write_request(&mut encoded, argv);
        Self { name, encoded, reply }
    }

    /// Sends the request and checks its whole reply.
    pub(super) fn ask(&self, client: &mut Client) -> Result<(), BenchError> {
        client.send(&self.encoded)?;
        let reply = client.receive_outline()?;
        if reply.kind != self.reply || reply.n_nulls + reply.n_errors > 0 {
            return Err(wrong_reply(&[self.name], &reply));
        }
        Ok(())
    }
}

/// Measures `KEYS *` of a million keys.
pub(super) fn keys(contest: &Contest, bar: &str) -> Result<Vec<Measure>, BenchError> {
    let slow = SlowRequest::new("KEYS", &["KEYS", "*"], Kind::Array(N_KEYS));
    let target = Target::value(10.0).and_ratio(0.1);
    let servers = contest.start_both_loaded(VALUE)?;
    run(contest, bar, contest.few_rounds(), &servers, &slow, [target; 2])
}

/// Measures MGET of a hundred thousand keys, spread over the million.
///
/// By a schedule, each round must reach the target, because a round that does not contains a stall.
pub(super) fn mget(contest: &Contest, bar: &str) -> Result<Vec<Measure>, BenchError> {
    let mut argv = vec!["MGET".to_owned()];
    argv.extend((0..N_MGET_KEYS).map(|index| preload::name(index * (N_KEYS / N_MGET_KEYS))));
    let mut encoded = Vec::new();
    write_request(&mut encoded, &argv);
    let slow = SlowRequest { name: "MGET 100000", encoded, reply: Kind::Array(N_MGET_KEYS) };
    let target = Target::ratio(0.333);
    let servers = contest.start_both_loaded(VALUE)?;
    run(contest, bar, contest.n_rounds, &servers, &slow, [target.in_each_round(), target])
}

fn smembers(contest: &Contest, bar: &str) -> Result<Vec<Measure>, BenchError> {
    let slow = SlowRequest::new("SMEMBERS", &["SMEMBERS", "slow:0"], Kind::Array(N_MEMBERS));
    over_values(contest, bar, ValueType::Set, 1, &slow)
}

fn lrange(contest: &Contest, bar: &str) -> Result<Vec<Measure>, BenchError> {
    let slow = SlowRequest::new("LRANGE", &["LRANGE", "slow:0", "0", "-1"], Kind::Array(N_MEMBERS));
    over_values(contest, bar, ValueType::List, 1, &slow)
}

fn hgetall(contest: &Contest, bar: &str) -> Result<Vec<Measure>, BenchError> {
    let slow = SlowRequest::new("HGETALL", &["HGETALL", "slow:0"], Kind::Array(2 * N_MEMBERS));
    over_values(contest, bar, ValueType::Hash, 1, &slow)
}

/// Measures SORT for the ten smallest of a million numbers.
fn sort(contest: &Contest, bar: &str) -> Result<Vec<Measure>, BenchError> {
    let slow = SlowRequest::new("SORT", &["SORT", "slow:0", "LIMIT", "0", "10"], Kind::Array(10));
    over_values(contest, bar, ValueType::List, 1, &slow)
}

/// Measures the union of two sorted sets that share no member.
fn zunionstore(contest: &Contest, bar: &str) -> Result<Vec<Measure>, BenchError> {
    let argv = ["ZUNIONSTORE", "slow:union", "2", "slow:0", "slow:1"];
    let slow = SlowRequest::new("ZUNIONSTORE", &argv, Kind::Integer(N_MEMBERS as i64));
    over_values(contest, bar, ValueType::SortedSet, 2, &slow)
}

/// Runs the loads during a command over `n_values` values with a million members together.
///
/// The values are named `slow:0` and so on.
fn over_values(
    contest: &Contest,
    bar: &str,
    value_type: ValueType,
    n_values: u64,
    slow: &SlowRequest,
) -> Result<Vec<Measure>, BenchError> {
    let servers = contest.start_both_loaded(VALUE)?;
    let filling = Filling {
        value_type,
        n_keys: n_values,
        n_members: N_MEMBERS / n_values,
        key: |index| format!("slow:{index}"),
        member: move |index| member(value_type, index),
    };
    on_both(&servers, |server| {
        filling.fill(server.address())?;
        // A command that the server does not know fails here, before the loads.
        slow.ask(&mut Client::connect(server.address())?)
    })?;
    run(contest, bar, contest.few_rounds(), &servers, slow, [Target::ratio(0.1); 2])
}

/// Returns a member. Elements of lists are numbers, so that SORT takes them.
fn member(value_type: ValueType, index: u64) -> Vec<u8> {
    match value_type {
        ValueType::List => values::scrambled(index).to_string().into_bytes(),
        _ => values::eight_bytes(b'm', index).to_vec(),
    }
}

/// Runs the loads during `slow`.
///
/// The targets are on their 99th percentiles, by a schedule and, in a closed loop, at any moment.
fn run(
    contest: &Contest,
    bar: &str,
    n_rounds: u64,
    servers: &[Server; 2],
    slow: &SlowRequest,
    [p99, p99_any_moment]: [Target; 2],
) -> Result<Vec<Measure>, BenchError> {
    let mut measures = latency::measures(&REQUESTS, p99_any_moment);
    measures.extend(latency::measures_on_schedule(&REQUESTS, p99));
    // Shorter waits would be no success if the slow client starved, so its rate is shown.
    measures.push(Measure::new(slow.name, Unit::PerSecond, Target::NONE));
    contest.rounds(bar, n_rounds, measures, |side| {
        let server = side.of(servers);
        run_beside(server, slow, || {
            let mut figures = latency::percentiles(contest, server, &REQUESTS)?;
            figures.extend(latency::percentiles_on_schedule(contest, server, &REQUESTS)?);
            Ok(figures)
        })
    })
}

/// Runs `loads` while another connection repeats the slow request.
///
/// Returns their figures, and the slow requests answered a second.
pub(super) fn run_beside(
    server: &Server,
    slow: &SlowRequest,
    loads: impl FnOnce() -> Result<Vec<f64>, BenchError>,
) -> Result<Vec<f64>, BenchError> {
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let repeating = scope.spawn(|| repeat(server.address(), slow, &stop));
        let loads = loads();
        stop.store(true, Ordering::Relaxed);
        let per_second = repeating.join().expect("the slow client does not panic")?;
        let mut figures = loads?;
        figures.push(per_second);
        Ok(figures)
    })
}

/// Repeats the slow request until `stop` is set, and returns the requests answered a second.
///
/// Each is sent as soon as the whole reply before it is read and checked.
fn repeat(address: SocketAddr, slow: &SlowRequest, stop: &AtomicBool) -> Result<f64, BenchError> {
    let mut client = Client::connect(address)?;
    let began = Instant::now();
    let mut n_answered = 0_u32;
    while !stop.load(Ordering::Relaxed) {
        slow.ask(&mut client)?;
        n_answered += 1;
    }
    Ok(f64::from(n_answered) / began.elapsed().as_secs_f64())
}
