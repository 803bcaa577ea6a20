//! The cost of announcing each SET, with a subscribed client and without.

use std::thread;
use std::time::Duration;

use super::contest::{Contest, N_CONNECTIONS, N_KEYS, VALUE, load_keys, on_both};
use super::cpu;
use crate::bars::measures::{Measure, Target, Unit};
use crate::engine::{self, Limit};
use crate::error::BenchError;
use crate::load::Load;
use crate::process::CpuSample;
use crate::spawn::Server;
use crate::workload::{Command, Consumer, Keys, Workload};

const PIPELINE: u32 = 16;
const NAMES: [&str; 2] = ["announced", "not announced"];
/// The setting that announces all events, by their keys and by their names.
const ANNOUNCED: [&str; 2] = ["--notify-keyspace-events", "KEA"];
const PATTERN: &str = "__keyevent@*";
/// The bytes that the subscriber receives for a SET.
const MESSAGE_BYTES: u64 =
    "*4\r\n$8\r\npmessage\r\n$12\r\n__keyevent@*\r\n$18\r\n__keyevent@0__:set\r\n$16\r\nkey:000000000000\r\n"
        .len() as u64;

/// Measures SETs of a million keys while one subscriber receives an event for each.
pub(super) fn heard(contest: &Contest, bar: &str) -> Result<Vec<Measure>, BenchError> {
    let servers = contest.start_both(&ANNOUNCED)?;
    on_both(&servers, |server| load_keys(server, VALUE))?;
    let measures = vec![
        Measure::new("CPU/SET", Unit::Micros, Target::ratio(0.6)),
        Measure::new("SET", Unit::PerSecond, Target::NONE),
        Measure::new("lost", Unit::Count, Target::value(0.0).in_each_round()),
    ];
    contest.rounds(bar, contest.n_rounds, measures, |side| set_heard(contest, side.of(&servers)))
}

fn set_heard(contest: &Contest, server: &Server) -> Result<Vec<f64>, BenchError> {
    let subscriber = Consumer {
        connections: 1,
        args: ["PSUBSCRIBE", PATTERN].map(str::to_owned).to_vec(),
        repeat: false,
        message_bytes: Some(MESSAGE_BYTES),
    };
    let workload = Workload {
        connections: N_CONNECTIONS,
        pipeline: PIPELINE as usize,
        keys: Keys { count: N_KEYS, ..Keys::default() },
        commands: vec![Command::of(&["SET", "{key}", "{value:32}"])],
        consumers: vec![subscriber],
        ..Workload::default()
    };
    let n_requests = contest.n_requests(PIPELINE);
    let load = Load::new(&workload, 1, Vec::new())?.until(Limit::Requests(n_requests));
    let before = CpuSample::of(server.pid())?;
    let outcome = load.run(&engine::LoadTarget::plain(server.address()), &mut |_| {})?;
    // The scheduler accounts a thread's time when it leaves the processor, so the server must come to rest.
    thread::sleep(Duration::from_millis(20));
    let used = CpuSample::of(server.pid())?.since(before).as_secs_f64();
    if let Some(reply) = outcome.record.errors.keys().next() {
        return Err(BenchError::WrongReply { request: "SET".to_owned(), reply: reply.clone() });
    }
    Ok(vec![
        used * 1e6 / n_requests as f64,
        n_requests as f64 / outcome.measured.as_secs_f64(),
        outcome.n_lost as f64,
    ])
}

/// Measures SETs with events that no client receives.
///
/// Both columns are Braid: it announces events in the first, and none in the second.
pub(super) fn unheard(contest: &Contest, bar: &str) -> Result<Vec<Measure>, BenchError> {
    let start = |arguments| contest.start_braid(contest.n_io_threads, arguments);
    let servers = [start(&ANNOUNCED)?, start(&[])?];
    servers.iter().try_for_each(|server| load_keys(server, VALUE))?;
    let measures = vec![
        Measure::new("CPU/SET (announced over not)", Unit::Micros, Target::ratio(1.02)),
        Measure::new("SET", Unit::PerSecond, Target::NONE),
    ];
    let n_keys = N_KEYS.to_string();
    contest.rounds_named(NAMES, bar, contest.n_rounds, measures, |side| {
        let (server, n_requests) = (side.of(&servers), contest.n_requests(PIPELINE));
        let arguments = ["-r", &n_keys, "-d", "32", "-t", "set"];
        let set = cpu::per_command(&contest.redis_benchmark, server, PIPELINE, n_requests, &arguments)?;
        Ok(vec![set.micros, set.per_second])
    })
}
