//! The requests whose waits the bars measure, in a closed loop or by a schedule.
//!
//! In a closed loop each of many connections has one outstanding request and sends the next when it is
//! answered. A stall of the server then delays one request of every connection, as it delays patient clients.
//!
//! By a schedule, requests are due whatever the server does, like those of independent users, and their waits
//! begin at that time. A stall then delays all requests that fall due during it.
//!
//! One thread of the engine serves all connections, so that the load leaves the machine's cores to the
//! server.

use std::net::SocketAddr;
use std::time::Duration;

use hdrhistogram::Histogram;

use crate::engine::{Limit, LoadTarget, Record, Shape};
use crate::error::BenchError;
use crate::load::Load;
use crate::workload::{Command, Keys, Workload};

/// The interval at which an independent client would ask on each connection.
///
/// See [`Latencies::percentile_millis_any_moment`].
const ARRIVAL_INTERVAL: Duration = Duration::from_millis(1);

/// The request that each connection repeats.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Request {
    /// GET of one key.
    Get,
    /// MGET of this many keys.
    Mget(usize),
    /// A transaction in one write: MULTI, this many commands and EXEC.
    ///
    /// The commands are SET and GET in turns, each of one key.
    Exec(usize),
}

impl Request {
    /// Returns the name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Get => "GET",
            Self::Mget(_) => "MGET",
            Self::Exec(_) => "EXEC",
        }
    }

    /// Makes the command, which sets values of `value_bytes`.
    fn command(self, value_bytes: usize) -> Command {
        match self {
            Self::Get => Command::of(&["GET", "{key}"]),
            Self::Mget(n_keys) => Command::of(&["MGET", &format!("{{key*{n_keys}}}")]),
            Self::Exec(n_commands) => {
                let set = ["SET", "{key}", &format!("{{value:{value_bytes}}}")].map(str::to_owned).to_vec();
                let get = ["GET", "{key}"].map(str::to_owned).to_vec();
                let transaction = [set, get].into_iter().cycle().take(n_commands).collect();
                Command { transaction, ..Command::default() }
            }
        }
    }

    /// The length in bytes of all replies to it, with values of `value_bytes`.
    ///
    /// It assumes that every key has a value. No other reply has this length, whether an error, a short reply
    /// or one with a null for a value.
    fn n_reply_bytes(self, value_bytes: usize) -> usize {
        let value = format!("${value_bytes}\r\n\r\n").len() + value_bytes;
        let array = |n_elements: usize| format!("*{n_elements}\r\n").len();
        match self {
            Self::Get => value,
            Self::Mget(n_keys) => array(n_keys) + n_keys * value,
            Self::Exec(n_commands) => {
                let n_gets = n_commands / 2;
                let done = (n_commands - n_gets) * "+OK\r\n".len() + n_gets * value;
                "+OK\r\n".len() + n_commands * "+QUEUED\r\n".len() + array(n_commands) + done
            }
        }
    }
}

/// Whether a key may be missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Misses {
    /// Keys may be missing.
    Allowed,
    /// All keys are loaded, so a missing key is a wrong answer.
    Wrong,
}

/// A load of one kind of request.
#[derive(Debug, Clone, Copy)]
pub struct RequestLoad {
    /// The request of the load.
    pub request: Request,
    /// Requests a second over all connections, as from independent users; `None` in a closed loop.
    pub rate: Option<f64>,
    /// The number of connections.
    pub n_connections: usize,
    /// The number of keys.
    ///
    /// Keys are picked at random from the first `n_keys`, with the names of
    /// [`preload::name`](super::preload::name).
    pub n_keys: u64,
    /// The size of all values, including those that EXEC sets.
    pub value_bytes: usize,
    /// Whether keys may be missing.
    pub misses: Misses,
}

impl RequestLoad {
    /// Runs the load to its end.
    ///
    /// The replies to the last requests are included, so that the slowest count.
    ///
    /// # Errors
    /// When a connection breaks, or a reply is wrong or does not arrive.
    pub fn run(&self, address: SocketAddr, limit: Limit) -> Result<Latencies, BenchError> {
        let load = Load::new(&self.workload(), 1, Vec::new())?.until(limit);
        let record = load.run(&LoadTarget::plain(address), &mut |_| {})?.record;
        match self.fault(&record) {
            None => Ok(Latencies::of(record.response())),
            Some(reply) => Err(BenchError::WrongReply { request: self.request.name().to_owned(), reply }),
        }
    }

    fn workload(&self) -> Workload {
        Workload {
            connections: self.n_connections,
            rate: self.rate,
            arrivals: self.rate.map(|_| Shape::Poisson.to_string()),
            keys: Keys { count: self.n_keys, ..Keys::default() },
            commands: vec![self.request.command(self.value_bytes)],
            ..Workload::default()
        }
    }

    /// Returns the fault of the replies, if they had one.
    fn fault(&self, record: &Record) -> Option<String> {
        let expected = record.n_done() * self.request.n_reply_bytes(self.value_bytes) as u64;
        if let Some(text) = record.errors.keys().next() {
            Some(text.clone())
        } else if record.n_unanswered + record.n_reconnects > 0 {
            let Record { n_unanswered, n_reconnects, .. } = record;
            Some(format!("{n_unanswered} requests had none, and {n_reconnects} connections broke"))
        } else if self.misses == Misses::Wrong && record.n_bytes_received != expected {
            Some(format!("{} bytes instead of {expected}", record.n_bytes_received))
        } else {
            None
        }
    }
}

/// The latencies of one load.
#[derive(Debug)]
pub struct Latencies {
    /// One latency for each request, in nanoseconds.
    nanos: Histogram<u64>,
    /// The latencies of all requests, and of those that were not sent.
    ///
    /// A waiting connection would have sent one in each millisecond.
    nanos_any_moment: Histogram<u64>,
}

impl Latencies {
    fn of(nanos: Histogram<u64>) -> Self {
        let nanos_any_moment = nanos.clone_correct(ARRIVAL_INTERVAL.as_nanos() as u64);
        Self { nanos, nanos_any_moment }
    }

    /// Returns the latency in milliseconds that `percent` of all requests do not exceed.
    pub fn percentile_millis(&self, percent: f64) -> f64 {
        self.nanos.value_at_percentile(percent) as f64 / 1e6
    }

    /// Returns the same for requests that arrive every millisecond.
    ///
    /// They arrive whether or not the one before is answered. A connection that waits for its reply sends
    /// nothing meanwhile. So a stall of half a second counts once, although each connection would have asked
    /// hundreds of times in it. A server that stalls most of the time still has a small share of slow
    /// requests. Whether that share is above or below one in a hundred is chance. Adding the requests that
    /// were not sent makes the percentile one of time (Tene, "How NOT to Measure Latency").
    pub fn percentile_millis_any_moment(&self, percent: f64) -> f64 {
        self.nanos_any_moment.value_at_percentile(percent) as f64 / 1e6
    }

    /// The longest latency, in milliseconds.
    pub fn max_millis(&self) -> f64 {
        self.nanos.max() as f64 / 1e6
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::TcpListener;
    use std::thread;

    use super::*;
    use crate::bars::preload;
    use crate::workload::{Compiled, Generator, Moment};

    fn load(request: Request, misses: Misses) -> RequestLoad {
        RequestLoad { request, rate: None, n_connections: 1, n_keys: 10, value_bytes: 3, misses }
    }

    /// Asks once a server that gives the same `reply` to every request.
    fn ask_once(load: &RequestLoad, reply: &'static [u8]) -> Result<Latencies, BenchError> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("loopback can be listened on");
        let address = listener.local_addr().expect("it listens");
        let serving = thread::spawn(move || {
            let mut connection = listener.accept().expect("a load connects").0;
            let n_bytes = connection.read(&mut [0; 4096]).expect("a request is sent");
            assert!(n_bytes > 0);
            connection.write_all(reply).expect("the load reads");
        });
        let latencies = load.run(address, Limit::Requests(1));
        serving.join().expect("the server does not panic");
        latencies
    }

    #[test]
    fn whole_replies_are_right() {
        for (request, reply) in [
            (Request::Get, &b"$3\r\nabc\r\n"[..]),
            (Request::Mget(2), b"*2\r\n$3\r\nabc\r\n$3\r\nabc\r\n"),
            (Request::Exec(2), b"+OK\r\n+QUEUED\r\n+QUEUED\r\n*2\r\n+OK\r\n$3\r\nabc\r\n"),
        ] {
            let latencies = ask_once(&load(request, Misses::Wrong), reply).expect("it is right");
            assert!(latencies.max_millis() > 0.0, "{request:?}");
        }
    }

    #[test]
    fn a_miss_is_wrong_where_all_keys_are_loaded() {
        assert!(ask_once(&load(Request::Get, Misses::Allowed), b"$-1\r\n").is_ok());
        assert!(ask_once(&load(Request::Get, Misses::Wrong), b"$-1\r\n").is_err());
        let short = b"*2\r\n$3\r\nabc\r\n$-1\r\n";
        assert!(ask_once(&load(Request::Mget(2), Misses::Allowed), short).is_ok());
        assert!(ask_once(&load(Request::Mget(2), Misses::Wrong), short).is_err());
        assert!(ask_once(&load(Request::Get, Misses::Allowed), b"-ERR no\r\n").is_err());
        let failed = b"+OK\r\n+QUEUED\r\n+QUEUED\r\n*2\r\n+OK\r\n-WRONGTYPE no\r\n";
        assert!(ask_once(&load(Request::Exec(2), Misses::Allowed), failed).is_err());
    }

    #[test]
    fn keys_are_those_that_are_loaded() {
        let compiled = Compiled::new(&load(Request::Get, Misses::Wrong).workload()).expect("it makes sense");
        let mut generator = Generator::new(&std::sync::Arc::new(compiled), 0, 1);
        let mut request = Vec::new();
        generator.append(Moment::default(), &mut request);
        let is_asked = |index| memchr::memmem::find(&request, preload::name(index).as_bytes()).is_some();
        assert_eq!((0..10).filter(|&index| is_asked(index)).count(), 1, "{}", request.escape_ascii());
    }

    #[test]
    fn a_stall_weighs_as_long_as_it_lasts() {
        let mut nanos = Histogram::new_with_bounds(100, 600_000_000_000, 3).expect("the bounds are in order");
        nanos.record_n(100_000, 1000).expect("in bounds");
        nanos.record(1_000_000_000).expect("in bounds");
        let latencies = Latencies::of(nanos);
        assert!(latencies.percentile_millis(99.0) < 0.11);
        assert!(latencies.percentile_millis_any_moment(99.0) > 900.0);
        assert!((latencies.max_millis() / 1000.0 - 1.0).abs() < 0.001);
    }
}
