//! A server that does nothing, against which a load runs at the client's own limit.
//!
//! It answers each request as an empty server would, in the fewest correct bytes, and forgets it. A published
//! message reaches every subscriber, whatever the channel.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use braid_protocol::request::write_request;
use braid_protocol::{Arg, Parse, RequestParser};
use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token, Waker};

use crate::error::{BenchError, Doing};

const BUFFER_BYTES: usize = 256 * 1024;
const LISTENER: Token = Token(usize::MAX);
const WAKER: Token = Token(usize::MAX - 1);

/// The times at which the server does not answer at all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stall {
    /// The time from the start of one stall to the start of the next.
    pub every: Duration,
    /// The duration of a stall.
    pub lasts: Duration,
}

/// A running null server, on a thread of this process. Dropping it ends it.
#[derive(Debug)]
pub struct NullServer {
    address: SocketAddr,
    waker: Arc<Waker>,
    ended: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl NullServer {
    /// Starts a server on a free port of 127.0.0.1.
    ///
    /// # Errors
    /// When the system refuses a socket or a thread.
    pub fn start(stall: Option<Stall>) -> Result<Self, BenchError> {
        Self::start_on(0, stall)
    }

    /// Starts a server on a port of 127.0.0.1; 0 means any free port.
    ///
    /// # Errors
    /// As [`NullServer::start`], and when the port is taken.
    pub fn start_on(port: u16, stall: Option<Stall>) -> Result<Self, BenchError> {
        let poll = Poll::new().doing("create a poll")?;
        let waker = Arc::new(Waker::new(poll.registry(), WAKER).doing("create a waker")?);
        let mut listener =
            TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, port))).doing("listen")?;
        let address = listener.local_addr().doing("listen")?;
        poll.registry().register(&mut listener, LISTENER, Interest::READABLE).doing("listen")?;
        let ended = Arc::new(AtomicBool::new(false));
        let serving = Serving { poll, listener, sessions: Vec::new(), ended: ended.clone(), stall };
        let thread = thread::Builder::new()
            .name(String::from("null-server"))
            .spawn(move || serving.run())
            .doing("start a thread")?;
        Ok(Self { address, waker, ended, thread: Some(thread) })
    }

    /// Returns the address at which it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves until the process is ended.
    pub fn serve_for_ever(mut self) {
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for NullServer {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        // A waker whose poll is gone wakes nothing.
        let _ = self.waker.wake();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Serving {
    poll: Poll,
    listener: TcpListener,
    sessions: Vec<Option<Session>>,
    ended: Arc<AtomicBool>,
    stall: Option<Stall>,
}

impl Serving {
    fn run(mut self) {
        let mut events = Events::with_capacity(1024);
        let mut buffer = vec![0; BUFFER_BYTES];
        let start = Instant::now();
        while !self.ended.load(Ordering::Relaxed) {
            // Interrupted polls are tried again; nothing else can fail on a poll of our own.
            let _ = self.poll.poll(&mut events, None);
            if let Some(Stall { every, lasts }) = self.stall {
                let into_period =
                    Duration::from_nanos((start.elapsed().as_nanos() % every.as_nanos()) as u64);
                thread::sleep(lasts.saturating_sub(into_period));
            }
            for event in &events {
                match event.token() {
                    LISTENER => self.accept(),
                    WAKER => {}
                    Token(index) => self.serve(index, &mut buffer),
                }
            }
        }
    }

    fn serve(&mut self, index: usize, buffer: &mut [u8]) {
        let Some(session) = &mut self.sessions[index] else { return };
        let served = session.serve(buffer);
        let published = std::mem::take(&mut session.published);
        if served.is_err() {
            self.sessions[index] = None;
        }
        if published.is_empty() {
            return;
        }
        for free in &mut self.sessions {
            if let Some(subscriber) = free.as_mut().filter(|session| session.is_subscribed) {
                subscriber.output.extend_from_slice(&published);
                if subscriber.flush().is_err() {
                    *free = None;
                }
            }
        }
    }

    fn accept(&mut self) {
        while let Ok((mut stream, _)) = self.listener.accept() {
            let index = self.sessions.iter().position(Option::is_none).unwrap_or(self.sessions.len());
            let interest = Interest::READABLE | Interest::WRITABLE;
            let is_ready = stream.set_nodelay(true).is_ok()
                && self.poll.registry().register(&mut stream, Token(index), interest).is_ok();
            let session = is_ready.then(|| Session::new(stream));
            match self.sessions.get_mut(index) {
                Some(free) => *free = session,
                None => self.sessions.push(session),
            }
        }
    }
}

struct Session {
    stream: TcpStream,
    parser: RequestParser,
    args: Vec<Arg>,
    /// A request that has arrived in part.
    partial: Vec<u8>,
    output: Vec<u8>,
    n_written: usize,
    /// Commands since MULTI.
    queued: Option<u32>,
    is_subscribed: bool,
    /// Messages for subscribers, as these receive them.
    published: Vec<u8>,
    null: &'static [u8],
}

impl Session {
    fn new(stream: TcpStream) -> Self {
        Self {
            stream,
            parser: RequestParser::default(),
            args: Vec::new(),
            partial: Vec::new(),
            output: Vec::new(),
            n_written: 0,
            queued: None,
            is_subscribed: false,
            published: Vec::new(),
            null: b"$-1\r\n",
        }
    }

    /// Answers all requests that have arrived. An error ends the session.
    fn serve(&mut self, buffer: &mut [u8]) -> io::Result<()> {
        self.flush()?;
        loop {
            match self.stream.read(buffer) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(n_bytes) => {
                    self.answer_all(&mut buffer[..n_bytes])?;
                    self.flush()?;
                    if n_bytes < BUFFER_BYTES {
                        return Ok(());
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        while self.n_written < self.output.len() {
            match self.stream.write(&self.output[self.n_written..]) {
                Ok(n_bytes) => self.n_written += n_bytes,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.output.clear();
        self.n_written = 0;
        Ok(())
    }

    fn answer_all(&mut self, received: &mut [u8]) -> io::Result<()> {
        if self.partial.is_empty() {
            let n_bytes = self.answer_whole(received)?;
            self.partial.extend_from_slice(&received[n_bytes..]);
            return Ok(());
        }
        let mut partial = std::mem::take(&mut self.partial);
        partial.extend_from_slice(received);
        let n_bytes = self.answer_whole(&mut partial)?;
        partial.drain(..n_bytes);
        self.partial = partial;
        Ok(())
    }

    /// Answers the whole requests, and returns their length in bytes.
    fn answer_whole(&mut self, input: &mut [u8]) -> io::Result<usize> {
        let mut at = 0;
        while at < input.len() {
            let mut args = std::mem::take(&mut self.args);
            args.clear();
            match self.parser.parse(&mut input[at..], &mut args).map_err(|_| io::ErrorKind::InvalidData)? {
                Parse::Incomplete { .. } => break,
                Parse::Empty { consumed } => at += consumed,
                Parse::Request { consumed } => {
                    self.answer(&input[at..], &args);
                    at += consumed;
                }
            }
            self.args = args;
        }
        Ok(at)
    }

    fn answer(&mut self, request: &[u8], args: &[Arg]) {
        let mut name = [0; 16];
        let given = args[0].of(request);
        let length = given.len().min(name.len());
        name[..length].copy_from_slice(&given[..length]);
        name.make_ascii_uppercase();
        let name = &name[..length];
        if let Some(n_queued) = &mut self.queued
            && !matches!(name, b"EXEC" | b"DISCARD")
        {
            *n_queued += 1;
            return self.output.extend_from_slice(b"+QUEUED\r\n");
        }
        match name {
            b"GET" | b"HGET" | b"LPOP" | b"RPOP" | b"SPOP" | b"ZSCORE" | b"ZRANK" | b"ZREVRANK"
            | b"GETDEL" | b"LINDEX" | b"GETSET" | b"RANDOMKEY" => self.output.extend_from_slice(self.null),
            b"SET" | b"MSET" | b"SETEX" | b"PSETEX" | b"SELECT" | b"AUTH" | b"FLUSHALL" | b"FLUSHDB"
            | b"LTRIM" | b"LSET" | b"WATCH" | b"UNWATCH" | b"HMSET" | b"CLIENT" | b"DISCARD" | b"RENAME" => {
                self.queued = None;
                self.output.extend_from_slice(b"+OK\r\n");
            }
            b"PING" => self.output.extend_from_slice(b"+PONG\r\n"),
            b"MULTI" => {
                self.queued = Some(0);
                self.output.extend_from_slice(b"+OK\r\n");
            }
            b"EXEC" => {
                let n_queued = self.queued.take().unwrap_or(0);
                self.array(n_queued as usize, b":0\r\n");
            }
            b"MGET" | b"HMGET" => {
                let n_keys = args.len() - if name == b"MGET" { 1 } else { 2 };
                self.array(n_keys, self.null);
            }
            b"SUBSCRIBE" | b"PSUBSCRIBE" => {
                self.is_subscribed = true;
                self.output.extend_from_slice(b"*3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n");
            }
            b"PUBLISH" if args.len() > 2 => {
                write_request(&mut self.published, &[b"message", &b"c"[..], args[2].of(request)]);
                self.output.extend_from_slice(b":1\r\n");
            }
            b"HELLO" => {
                self.null =
                    if args.get(1).is_some_and(|arg| arg.of(request) == b"3") { b"_\r\n" } else { self.null };
                self.output.extend_from_slice(b"*0\r\n");
            }
            b"INFO" => self.output.extend_from_slice(b"$0\r\n\r\n"),
            b"HGETALL" | b"SMEMBERS" | b"LRANGE" | b"ZRANGE" | b"ZREVRANGE" | b"ZRANGEBYSCORE"
            | b"XRANGE" | b"XREVRANGE" | b"HKEYS" | b"HVALS" | b"KEYS" | b"CONFIG" => {
                self.output.extend_from_slice(b"*0\r\n");
            }
            b"XADD" => self.output.extend_from_slice(b"$3\r\n1-1\r\n"),
            b"ZINCRBY" | b"INCRBYFLOAT" => self.output.extend_from_slice(b"$1\r\n1\r\n"),
            b"INCR" | b"DECR" | b"INCRBY" | b"LPUSH" | b"RPUSH" | b"SADD" | b"HSET" | b"ZADD" => {
                self.output.extend_from_slice(b":1\r\n");
            }
            _ => self.output.extend_from_slice(b":0\r\n"),
        }
    }

    fn array(&mut self, n_elements: usize, element: &[u8]) {
        // A write to a Vec does not fail.
        let _ = write!(self.output, "*{n_elements}\r\n");
        (0..n_elements).for_each(|_| self.output.extend_from_slice(element));
    }
}

#[cfg(test)]
mod tests {
    use braid_protocol::Value;

    use super::*;
    use crate::client::Client;

    #[test]
    fn replies_have_the_shapes_that_requests_ask_for() {
        let server = NullServer::start(None).expect("loopback can be listened on");
        let mut client = Client::connect(server.address()).expect("it listens");
        let mut call =
            |request: &str| client.call(&request.split(' ').collect::<Vec<_>>()).expect("nothing is refused");
        assert_eq!(call("set k v"), Value::Simple(b"OK".to_vec()));
        assert_eq!(call("GET k"), Value::NullBulk);
        assert_eq!(call("MGET a b"), Value::Array(vec![Value::NullBulk; 2]));
        assert_eq!(call("MULTI"), Value::Simple(b"OK".to_vec()));
        assert_eq!(call("INCR n"), Value::Simple(b"QUEUED".to_vec()));
        assert_eq!(call("EXEC"), Value::Array(vec![Value::Integer(0)]));
        assert_eq!(call("HELLO 3"), Value::Array(Vec::new()));
        assert_eq!(call("GET k"), Value::Null);
    }

    #[test]
    fn requests_may_arrive_in_pieces() {
        let server = NullServer::start(None).expect("loopback can be listened on");
        let mut client = Client::connect(server.address()).expect("it listens");
        for piece in ["*1\r\n$4\r\nPI", "NG\r\n*1\r\n$4\r\nPING\r\n"] {
            client.send(piece.as_bytes()).expect("it reads");
        }
        for _ in 0..2 {
            assert_eq!(client.receive().expect("it answers"), Value::Simple(b"PONG".to_vec()));
        }
    }
}
