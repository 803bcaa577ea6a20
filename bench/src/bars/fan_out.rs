//! The cost of delivering messages to a hundred subscribers, and another client's waits meanwhile.
//!
//! Two clients publish as fast as they are answered. The waits are those of another client's PING.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use braid_protocol::Value;

use super::contest::Contest;
use crate::bars::measures::{Measure, Target, Unit};
use crate::engine::{self, Limit, Outcome};
use crate::error::BenchError;
use crate::load::Load;
use crate::prober::Prober;
use crate::process::{self, CpuSample};
use crate::spawn::Server;
use crate::workload::{Command, Consumer, Workload};

const N_SUBSCRIBERS: usize = 100;
const N_PUBLISHERS: usize = 2;
/// The numbers of messages that a publisher sends before it reads the replies.
const PIPELINES: [usize; 2] = [1, 16];
const PAYLOAD_BYTES: u64 = 64;
/// The size of a message as a subscriber receives it.
const MESSAGE_BYTES: u64 = "*3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$64\r\n\r\n".len() as u64 + PAYLOAD_BYTES;
/// The time for which messages are published.
const PUBLISHING: Duration = Duration::from_secs(2);
/// The pause between two PINGs, and between two samples of memory.
const PACE: Duration = Duration::from_millis(5);

/// Runs two publishers, a hundred subscribers that read, and a client that sends PING.
///
/// First the publishers wait for the answer to each message, then for those to 16 at once. The second load is
/// higher than the rate at which messages can be delivered.
pub(super) fn run(contest: &Contest, bar: &str) -> Result<Vec<Measure>, BenchError> {
    let mut all = Vec::new();
    for pipeline in PIPELINES {
        let measures = contest.rounds(bar, contest.few_rounds(), measures(pipeline), |side| {
            fan_out(&contest.start(side, &[])?, pipeline)
        })?;
        all.extend(measures);
    }
    Ok(all)
}

/// Returns the measures of [`fan_out`].
fn measures(pipeline: usize) -> Vec<Measure> {
    let measure = |name: &str, unit, target| {
        let name = if pipeline == 1 { name.to_owned() } else { format!("P{pipeline} {name}") };
        Measure::new(name, unit, target)
    };
    vec![
        measure("CPU/delivery", Unit::Micros, Target::ratio(0.5)),
        measure("PING max", Unit::Millis, Target::value(50.0)),
        measure("resident", Unit::MiB, Target::value(200.0)),
        measure("lost", Unit::Count, Target::value(0.0).in_each_round()),
        measure("deliveries", Unit::PerSecond, Target::NONE),
    ]
}

fn fan_out(server: &Server, pipeline: usize) -> Result<Vec<f64>, BenchError> {
    let target = engine::LoadTarget::plain(server.address());
    let limit = Limit::Time { warmup: Duration::ZERO, measured: PUBLISHING };
    let load = Load::new(&workload(pipeline), 1, Vec::new())?.until(limit);
    let is_over = AtomicBool::new(false);
    let before = CpuSample::of(server.pid())?;
    let began = Instant::now();
    let (outcome, elapsed, watched) = thread::scope(|scope| {
        let watching = scope.spawn(|| watch(server, &target, &is_over));
        let outcome = load.run(&target, &mut |_| {});
        let elapsed = began.elapsed();
        is_over.store(true, Ordering::SeqCst);
        (outcome, elapsed, watching.join().expect("a prober does not panic"))
    });
    let (outcome, watched) = (checked(outcome?)?, watched?);
    // The scheduler accounts a thread's time when it leaves the processor, so the server must come to rest.
    thread::sleep(Duration::from_millis(20));
    let used = CpuSample::of(server.pid())?.since(before).as_secs_f64();
    Ok(vec![
        used * 1e6 / outcome.n_delivered.max(1) as f64,
        watched.longest_ping.as_secs_f64() * 1e3,
        watched.most_resident_bytes as f64 / f64::from(1 << 20),
        outcome.n_lost as f64,
        outcome.n_delivered as f64 / elapsed.as_secs_f64(),
    ])
}

/// Returns the publishers and subscribers of one channel.
fn workload(pipeline: usize) -> Workload {
    let payload = format!("{{value:{PAYLOAD_BYTES}}}");
    let subscribers = Consumer {
        connections: N_SUBSCRIBERS,
        args: ["SUBSCRIBE", "c"].map(str::to_owned).to_vec(),
        repeat: false,
        message_bytes: Some(MESSAGE_BYTES),
    };
    Workload {
        connections: N_PUBLISHERS,
        pipeline,
        commands: vec![Command::of(&["PUBLISH", "c", &payload])],
        consumers: vec![subscribers],
        ..Workload::default()
    }
}

/// Fails if a publisher was refused or cut off, because its figures would mislead.
fn checked(outcome: Outcome) -> Result<Outcome, BenchError> {
    let record = &outcome.record;
    let reply = match record.errors.keys().next() {
        Some(text) => text.clone(),
        None if record.n_unanswered > 0 => format!("{} had no reply", record.n_unanswered),
        None => return Ok(outcome),
    };
    Err(BenchError::WrongReply { request: "PUBLISH".to_owned(), reply })
}

/// The observations of the client that sends PING.
struct Watched {
    longest_ping: Duration,
    most_resident_bytes: u64,
}

/// Sends PING and samples the server's memory until all messages are delivered.
fn watch(server: &Server, target: &engine::LoadTarget, is_over: &AtomicBool) -> Result<Watched, BenchError> {
    let is_answer = |reply: &Value| *reply == Value::Simple(b"PONG".to_vec());
    let prober = Prober { n_connections: 1, pace: PACE, question: &|_| vec![b"PING".to_vec()], is_answer };
    let mut most_resident_bytes = 0;
    let longest_ping = prober.longest_wait(target, is_over, || {
        most_resident_bytes = process::resident_bytes(server.pid())?.max(most_resident_bytes);
        Ok(())
    })?;
    Ok(Watched { longest_ping, most_resident_bytes })
}
