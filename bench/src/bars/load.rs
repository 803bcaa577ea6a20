//! A closed-loop load: each of many connections has one request outstanding and sends the next when it is answered.
//!
//! One thread serves all connections, so that the load leaves the machine's cores to the server. A stall of the
//! server is seen once by every connection, which is what as many patient clients would see.

use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token};

use crate::bars::histogram::Latencies;
use crate::bars::keys;
use crate::bars::resp::{self, Kind, Reply, ReplyCounter};
use crate::error::{BenchError, Doing};

/// How long a request may go unanswered before the load gives up.
const PATIENCE: Duration = Duration::from_secs(60);
/// How often the load looks at the clock and at its stop flag when nothing is answered.
const TURN: Duration = Duration::from_millis(5);
const BUFFER_BYTES: usize = 64 * 1024;

/// What each connection asks for, over and over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Request {
    /// GET of one key.
    Get,
    /// MGET of so many keys.
    Mget(usize),
    /// MULTI, so many commands (SET and GET in turns, each of one key) and EXEC, in one write.
    Exec(usize),
}

impl Request {
    /// As it reads in a report.
    pub fn name(self) -> &'static str {
        match self {
            Self::Get => "GET",
            Self::Mget(_) => "MGET",
            Self::Exec(_) => "EXEC",
        }
    }

    fn append(self, keys: &mut KeyPicker, value: &[u8], out: &mut Vec<u8>) {
        match self {
            Self::Get => resp::append_request(out, &[b"GET", &keys.pick()]),
            Self::Mget(n_keys) => {
                resp::append_header(out, 1 + n_keys);
                resp::append_argument(out, b"MGET");
                (0..n_keys).for_each(|_| resp::append_argument(out, &keys.pick()));
            }
            Self::Exec(n_commands) => {
                resp::append_request(out, &[b"MULTI"]);
                for index in 0..n_commands {
                    match index % 2 {
                        0 => resp::append_request(out, &[b"SET", &keys.pick(), value]),
                        _ => resp::append_request(out, &[b"GET", &keys.pick()]),
                    }
                }
                resp::append_request(out, &[b"EXEC"]);
            }
        }
    }

    fn n_replies(self) -> usize {
        match self {
            Self::Get | Self::Mget(_) => 1,
            Self::Exec(n_commands) => n_commands + 2,
        }
    }

    /// Whether `reply` is right as this request's reply number `index`.
    fn accepts(self, index: usize, reply: &Reply, misses: Misses) -> bool {
        let hit = misses == Misses::Allowed || (reply.n_nulls == 0 && reply.kind != Kind::Null);
        let shape = match self {
            Self::Get => matches!(reply.kind, Kind::Bulk | Kind::Null),
            Self::Mget(n_keys) => reply.kind == Kind::Array(n_keys as u64),
            Self::Exec(n_commands) if index == n_commands + 1 => reply.kind == Kind::Array(n_commands as u64),
            Self::Exec(_) => reply.kind == Kind::Status,
        };
        hit && shape && reply.n_errors == 0
    }
}

/// Whether a key may turn out to be missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Misses {
    /// It may.
    Allowed,
    /// All keys are loaded, so that would be a wrong answer.
    Wrong,
}

/// A load to run.
#[derive(Debug, Clone, Copy)]
pub struct Load {
    /// What is asked for.
    pub request: Request,
    /// How many connections ask.
    pub n_connections: usize,
    /// Keys are picked at random from the first so many.
    pub n_keys: u64,
    /// Size of the values that EXEC sets.
    pub value_bytes: usize,
    /// Whether keys may be missing.
    pub misses: Misses,
}

/// When a load ends.
#[derive(Debug, Clone, Copy)]
pub enum Until<'a> {
    /// After this time.
    Elapsed(Duration),
    /// When someone sets this flag.
    Told(&'a AtomicBool),
}

/// Runs a load to its end, the replies to the last requests included, so that the slowest are not left out.
///
/// # Errors
/// When a connection breaks, a reply is wrong, or none arrives for a minute.
pub fn run(address: SocketAddr, load: &Load, until: Until<'_>) -> Result<Latencies, BenchError> {
    ClosedLoop::connect(address, load)?.run(until)
}

struct ClosedLoop {
    poll: Poll,
    connections: Vec<Connection>,
    driver: Driver,
}

/// What all connections share.
struct Driver {
    load: Load,
    keys: KeyPicker,
    value: Vec<u8>,
    buffer: Vec<u8>,
    latencies: Latencies,
    n_outstanding: usize,
    stopping: bool,
}

struct Connection {
    stream: TcpStream,
    counter: ReplyCounter,
    /// The request under way; kept for its allocation when it is sent.
    request: Vec<u8>,
    /// Bytes of `request` that the socket has not taken yet.
    n_unsent: usize,
    /// Replies that have arrived to the request under way.
    n_replies: usize,
    sent_at: Instant,
}

impl ClosedLoop {
    fn connect(address: SocketAddr, load: &Load) -> Result<Self, BenchError> {
        let poll = Poll::new().doing("create a poll")?;
        let connections = (0..load.n_connections)
            .map(|index| Connection::open(address, &poll, Token(index)))
            .collect::<Result<_, _>>()?;
        let driver = Driver {
            load: *load,
            keys: KeyPicker::new(load.n_keys),
            value: vec![b'w'; load.value_bytes],
            buffer: vec![0; BUFFER_BYTES],
            latencies: Latencies::default(),
            n_outstanding: 0,
            stopping: false,
        };
        Ok(Self { poll, connections, driver })
    }

    fn run(mut self, until: Until<'_>) -> Result<Latencies, BenchError> {
        let began = Instant::now();
        let mut answered_at = began;
        let mut events = Events::with_capacity(self.connections.len());
        self.connections.iter_mut().try_for_each(|connection| self.driver.start_request(connection))?;
        while self.driver.n_outstanding > 0 {
            match self.poll.poll(&mut events, Some(TURN)) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                polled => polled.doing("poll")?,
            }
            self.driver.stopping = match until {
                Until::Elapsed(duration) => began.elapsed() >= duration,
                Until::Told(stop) => stop.load(Ordering::Relaxed),
            };
            for event in &events {
                self.driver.turn(&mut self.connections[event.token().0])?;
                answered_at = Instant::now();
            }
            if answered_at.elapsed() > PATIENCE {
                return Err(self.driver.wrong(format!("nothing for {PATIENCE:?}")));
            }
        }
        Ok(self.driver.latencies)
    }
}

impl Driver {
    /// Does what an event on a connection asks for.
    fn turn(&mut self, connection: &mut Connection) -> Result<(), BenchError> {
        connection.send_rest()?;
        // The event is an edge: read until the socket is empty, or until the request is answered, when nothing more is
        // due before the next request.
        while connection.is_waiting(self.load.request) {
            let n_bytes = match connection.stream.read(&mut self.buffer) {
                Ok(0) => return Err(self.wrong("a closed connection".to_owned())),
                Ok(n_bytes) => n_bytes,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error).doing("receive a reply"),
            };
            self.count(connection, n_bytes)?;
        }
        Ok(())
    }

    fn count(&mut self, connection: &mut Connection, n_bytes: usize) -> Result<(), BenchError> {
        let mut input = &self.buffer[..n_bytes];
        let Load { request, misses, .. } = self.load;
        while let Some(reply) = connection.counter.next(&mut input)? {
            if !connection.is_waiting(request) || !request.accepts(connection.n_replies, &reply, misses) {
                return Err(self.wrong(format!("{reply:?}")));
            }
            connection.n_replies += 1;
        }
        if connection.is_waiting(request) {
            return Ok(());
        }
        self.latencies.record(connection.sent_at.elapsed());
        self.n_outstanding -= 1;
        if self.stopping { Ok(()) } else { self.start_request(connection) }
    }

    fn start_request(&mut self, connection: &mut Connection) -> Result<(), BenchError> {
        connection.request.clear();
        self.load.request.append(&mut self.keys, &self.value, &mut connection.request);
        connection.n_unsent = connection.request.len();
        connection.n_replies = 0;
        connection.sent_at = Instant::now();
        self.n_outstanding += 1;
        connection.send_rest()
    }

    fn wrong(&self, reply: String) -> BenchError {
        BenchError::WrongReply { request: self.load.request.name().to_owned(), reply }
    }
}

impl Connection {
    fn open(address: SocketAddr, poll: &Poll, token: Token) -> Result<Self, BenchError> {
        let stream = std::net::TcpStream::connect(address).doing(format!("connect to {address}"))?;
        stream.set_nodelay(true).doing("set TCP_NODELAY")?;
        stream.set_nonblocking(true).doing("set O_NONBLOCK")?;
        let mut stream = TcpStream::from_std(stream);
        poll.registry()
            .register(&mut stream, token, Interest::READABLE | Interest::WRITABLE)
            .doing("register a connection")?;
        Ok(Self {
            stream,
            counter: ReplyCounter::default(),
            request: Vec::new(),
            n_unsent: 0,
            n_replies: 0,
            sent_at: Instant::now(),
        })
    }

    fn is_waiting(&self, request: Request) -> bool {
        self.n_replies < request.n_replies()
    }

    /// Sends what the socket takes; an event brings us back for the rest.
    fn send_rest(&mut self) -> Result<(), BenchError> {
        while self.n_unsent > 0 {
            match self.stream.write(&self.request[self.request.len() - self.n_unsent..]) {
                Ok(n_bytes) => self.n_unsent -= n_bytes,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error).doing("send a request"),
            }
        }
        Ok(())
    }
}

/// Picks keys at random, the same ones in every run.
struct KeyPicker {
    random: fastrand::Rng,
    n_keys: u64,
}

impl KeyPicker {
    fn new(n_keys: u64) -> Self {
        Self { random: fastrand::Rng::with_seed(0x5eed), n_keys }
    }

    fn pick(&mut self) -> [u8; 16] {
        keys::name(self.random.u64(..self.n_keys))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reply(kind: Kind) -> Reply {
        Reply { kind, n_nulls: 0, n_errors: 0, n_bytes: 0 }
    }

    #[test]
    fn an_exec_is_answered_by_its_commands_and_an_array() {
        let exec = Request::Exec(4);
        let mut out = Vec::new();
        exec.append(&mut KeyPicker::new(10), b"v", &mut out);
        assert_eq!(out.iter().filter(|&&byte| byte == b'*').count(), exec.n_replies());
        assert!(exec.accepts(0, &reply(Kind::Status), Misses::Wrong));
        assert!(exec.accepts(5, &reply(Kind::Array(4)), Misses::Wrong));
        assert!(!exec.accepts(5, &reply(Kind::Null), Misses::Allowed));
        assert!(!exec.accepts(5, &Reply { n_errors: 1, ..reply(Kind::Array(4)) }, Misses::Wrong));
    }

    #[test]
    fn a_miss_is_wrong_where_all_keys_are_loaded() {
        assert!(Request::Get.accepts(0, &reply(Kind::Null), Misses::Allowed));
        assert!(!Request::Get.accepts(0, &reply(Kind::Null), Misses::Wrong));
        let short = Reply { n_nulls: 1, ..reply(Kind::Array(10)) };
        assert!(!Request::Mget(10).accepts(0, &short, Misses::Wrong));
        assert!(!Request::Mget(10).accepts(0, &reply(Kind::Error("ERR".into())), Misses::Allowed));
    }
}
