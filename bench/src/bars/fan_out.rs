//! What it costs to deliver messages to a hundred subscribers while two clients publish as fast as they are answered, and how long
//! a stranger waits meanwhile.

use std::io::{ErrorKind, Read};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use braid_protocol::request::write_request;
use mio::{Events, Interest, Poll, Token};

use super::contest::Contest;
use crate::bars::measures::{Measure, Target, Unit};
use crate::client::Client;
use crate::error::{BenchError, Doing};
use crate::process::{self, CpuSample};
use crate::spawn::Server;

const N_SUBSCRIBERS: usize = 100;
const N_PUBLISHERS: usize = 2;
/// Messages that a publisher sends before it reads the replies.
const PIPELINES: [usize; 2] = [1, 16];
const PAYLOAD: &[u8] = &[b'm'; 64];
/// A message as a subscriber gets it.
const MESSAGE_BYTES: u64 =
    "*3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$64\r\n\r\n".len() as u64 + PAYLOAD.len() as u64;
/// How often a stranger sends PING, and how often memory is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// How long messages may fail to arrive after the last was published; what comes later counts as lost.
const PATIENCE: Duration = Duration::from_secs(5);

/// Two publishers, a hundred subscribers that read, and a client that sends PING. First the publishers wait for the answer to each
/// message, then to 16 at once: those press harder than messages can be delivered.
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

/// What [`fan_out`] returns.
fn measures(pipeline: usize) -> Vec<Measure> {
    let measure = |name: &str, unit, target| {
        let name = if pipeline == 1 { name.to_owned() } else { format!("P{pipeline} {name}") };
        Measure::new(name, unit, target)
    };
    vec![
        measure("CPU/delivery", Unit::Micros, Target::ratio(0.5)),
        measure("PING max", Unit::Millis, Target::value(50.0)),
        measure("resident", Unit::MiB, Target::value(200.0)),
        measure("lost", Unit::Times, Target::value(0.0)),
        measure("deliveries", Unit::PerSecond, Target::NONE),
    ]
}

/// What the threads of a round tell each other.
#[derive(Default)]
struct Shared {
    publishers_are_done: AtomicBool,
    is_over: AtomicBool,
    n_published: AtomicU64,
}

fn fan_out(server: &Server, pipeline: usize) -> Result<Vec<f64>, BenchError> {
    let address = server.address();
    let subscribers = (0..N_SUBSCRIBERS).map(|_| subscribe(address)).collect::<Result<Vec<_>, _>>()?;
    let shared = Shared::default();
    let before = CpuSample::of(server.pid())?;
    let began = Instant::now();
    let (n_received, watched) = thread::scope(|scope| {
        let reading = scope.spawn(|| read_all(subscribers, &shared));
        let watching = scope.spawn(|| watch(server, &shared));
        let publishing: Vec<_> =
            (0..N_PUBLISHERS).map(|_| scope.spawn(|| publish(address, pipeline, &shared))).collect();
        let published: Result<Vec<()>, BenchError> =
            publishing.into_iter().map(|thread| thread.join().expect("a publisher does not panic")).collect();
        shared.publishers_are_done.store(true, Ordering::SeqCst);
        let n_received = reading.join().expect("a reader does not panic");
        shared.is_over.store(true, Ordering::SeqCst);
        let watched = watching.join().expect("a watcher does not panic");
        published.and(n_received).and_then(|n_received| Ok((n_received, watched?)))
    })?;
    let elapsed = began.elapsed().as_secs_f64();
    // The scheduler books a thread's time when it leaves the processor: let the server come to rest.
    thread::sleep(Duration::from_millis(20));
    let used = CpuSample::of(server.pid())?.since(before).as_secs_f64();
    let n_due = shared.n_published.load(Ordering::SeqCst) * N_SUBSCRIBERS as u64;
    Ok(vec![
        used * 1e6 / n_received.max(1) as f64,
        watched.longest_ping.as_secs_f64() * 1e3,
        watched.most_resident_bytes as f64 / f64::from(1 << 20),
        n_due.saturating_sub(n_received) as f64,
        n_received as f64 / elapsed,
    ])
}

/// A connection that is subscribed, with the answer read.
fn subscribe(address: SocketAddr) -> Result<TcpStream, BenchError> {
    let mut stream = TcpStream::connect(address).doing("connect a subscriber")?;
    let mut request = Vec::new();
    write_request(&mut request, &[&b"SUBSCRIBE"[..], b"c"]);
    std::io::Write::write_all(&mut stream, &request).doing("subscribe")?;
    let mut answer = [0; "*3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n".len()];
    stream.read_exact(&mut answer).doing("subscribe")?;
    stream.set_nonblocking(true).doing("set a socket non-blocking")?;
    Ok(stream)
}

/// Publishes for two seconds.
fn publish(address: SocketAddr, pipeline: usize, shared: &Shared) -> Result<(), BenchError> {
    let mut client = Client::connect(address)?;
    let mut requests = Vec::new();
    (0..pipeline).for_each(|_| write_request(&mut requests, &[&b"PUBLISH"[..], b"c", PAYLOAD]));
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(2) {
        client.send(&requests)?;
        for _ in 0..pipeline {
            client.receive()?;
        }
        shared.n_published.fetch_add(pipeline as u64, Ordering::SeqCst);
    }
    Ok(())
}

/// Reads what the subscribers are sent until they have everything or nothing more comes; returns the number of messages.
fn read_all(subscribers: Vec<TcpStream>, shared: &Shared) -> Result<u64, BenchError> {
    let mut poll = Poll::new().doing("make an event queue")?;
    let mut streams: Vec<_> = subscribers.into_iter().map(mio::net::TcpStream::from_std).collect();
    for (nth, stream) in streams.iter_mut().enumerate() {
        poll.registry().register(stream, Token(nth), Interest::READABLE).doing("watch a subscriber")?;
    }
    let mut events = Events::with_capacity(N_SUBSCRIBERS);
    let mut buffer = vec![0; 256 * 1024];
    let mut n_bytes = vec![0u64; streams.len()];
    let mut read_at = Instant::now();
    loop {
        poll.poll(&mut events, Some(Duration::from_millis(50))).doing("wait for messages")?;
        for event in &events {
            let Token(nth) = event.token();
            loop {
                match streams[nth].read(&mut buffer) {
                    Ok(0) => break,
                    Ok(n) => {
                        n_bytes[nth] += n as u64;
                        read_at = Instant::now();
                    }
                    Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                    // A subscriber that is cut off gets no more: its messages count as lost.
                    Err(_) => break,
                }
            }
        }
        let n_received: u64 = n_bytes.iter().map(|n| n / MESSAGE_BYTES).sum();
        let is_done = shared.publishers_are_done.load(Ordering::SeqCst);
        let n_due = shared.n_published.load(Ordering::SeqCst) * streams.len() as u64;
        if is_done && (n_received >= n_due || read_at.elapsed() > PATIENCE) {
            return Ok(n_received);
        }
    }
}

/// What a stranger sees.
#[derive(Default)]
struct Watched {
    longest_ping: Duration,
    most_resident_bytes: u64,
}

/// Sends PING and looks at the server's memory until all is delivered.
fn watch(server: &Server, shared: &Shared) -> Result<Watched, BenchError> {
    let mut client = Client::connect(server.address())?;
    let mut watched = Watched::default();
    while !shared.is_over.load(Ordering::SeqCst) {
        let began = Instant::now();
        client.call(&[b"PING"])?;
        watched.longest_ping = watched.longest_ping.max(began.elapsed());
        watched.most_resident_bytes = watched.most_resident_bytes.max(process::resident_bytes(server.pid())?);
        thread::sleep(LOOK_EVERY);
    }
    Ok(watched)
}
