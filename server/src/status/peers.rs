//! A connection of the metrics port: its request, its answer, and its time limits.

use std::{
    io::{self, Read, Write},
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use crate::clock::Instant;

use mio::net::TcpStream;
use rustls::{ServerConfig, ServerConnection};

use super::http::{Answer, HEAD_MAX_BYTES, HttpRequest, ParsedRequest, parse};

/// The time in which a request must arrive, including a TLS handshake.
///
/// It starts with the connection or with the end of the last answer.
///
/// A connection may be idle for the same time.
const REQUEST_MAX: Duration = Duration::from_secs(10);
/// The time in which an answer must be read.
const ANSWER_MAX: Duration = Duration::from_secs(10);
/// The number of requests in a row after which other connections have their turn.
const REQUESTS_A_TURN: usize = 8;
/// The size of the pieces in which a request is read.
const PIECE_BYTES: usize = 2048;

/// A connection.
pub struct HttpConnection {
    socket: TcpStream,
    tls: Option<Box<ServerConnection>>,
    visitor: Visitor,
    input: Vec<u8>,
    answer: Vec<u8>,
    n_sent: usize,
    /// The time until which the answer waits.
    rests_until: Option<Instant>,
    closes: bool,
    /// The time at which it is closed if nothing has happened.
    due: Instant,
}

/// A client of the port.
#[derive(Clone, Copy, Debug)]
pub struct Visitor {
    /// Its address.
    pub from: SocketAddr,
    /// The address of this host to which it has connected, if the system reports it.
    pub to: Option<IpAddr>,
    /// The number of wrong passwords in a row.
    pub n_failures: u32,
}

/// The state of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stays {
    /// It waits for its client, or for a moment.
    Open,
    /// It is closed.
    Closed,
}

/// A source of answers, with the time for which each must wait.
pub trait Answers {
    /// Answers a request of a visitor, and sets the visitor's count of failures.
    fn answer(&mut self, request: &HttpRequest, visitor: &mut Visitor) -> (Answer, Duration);
}

impl HttpConnection {
    /// Creates a connection that was just accepted.
    ///
    /// # Errors
    /// If there can be no TLS session.
    pub fn new(
        socket: TcpStream,
        address: SocketAddr,
        tls: Option<Arc<ServerConfig>>,
        now: Instant,
    ) -> io::Result<Self> {
        let to = socket.local_addr().ok().map(|address| address.ip().to_canonical());
        let tls = tls.map(ServerConnection::new).transpose().map_err(io::Error::other)?.map(Box::new);
        Ok(Self {
            socket,
            tls,
            visitor: Visitor { from: address, to, n_failures: 0 },
            input: Vec::new(),
            answer: Vec::new(),
            n_sent: 0,
            rests_until: None,
            closes: false,
            due: now + REQUEST_MAX,
        })
    }

    /// The socket, for registration.
    pub fn socket(&mut self) -> &mut TcpStream {
        &mut self.socket
    }

    /// The time of the next action, whether or not its client does anything.
    pub fn due(&self) -> Instant {
        self.rests_until.unwrap_or(self.due)
    }

    /// Does all that is possible now.
    pub fn go_on(&mut self, now: Instant, site: &mut impl Answers) -> Stays {
        match self.try_to_go_on(now, site) {
            Ok(stays) => stays,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                if self.rests_until.is_none() && now >= self.due { Stays::Closed } else { Stays::Open }
            }
            Err(_) => {
                // An alert may say why there is no TLS session. A client that does not read it does without.
                let _ = self.flush();
                Stays::Closed
            }
        }
    }

    fn try_to_go_on(&mut self, now: Instant, site: &mut impl Answers) -> io::Result<Stays> {
        let mut n_requests = 0;
        loop {
            if self.rests_until.take_if(|until| now >= *until).is_some() {
                self.due = now + ANSWER_MAX;
            }
            if self.rests_until.is_some() {
                return Ok(Stays::Open);
            }
            self.send(now)?;
            if self.closes {
                return Ok(Stays::Closed);
            }
            match parse(&self.input) {
                ParsedRequest::Incomplete => match self.receive()? {
                    0 => return Ok(Stays::Closed),
                    _ => continue,
                },
                ParsedRequest::Request(..) if n_requests == REQUESTS_A_TURN => {
                    self.rests_until = Some(now);
                    return Ok(Stays::Open);
                }
                ParsedRequest::Request(request, n_bytes) => {
                    n_requests += 1;
                    self.input.drain(..n_bytes);
                    self.closes = !request.keeps_alive;
                    let (answer, rest) = site.answer(&request, &mut self.visitor);
                    answer.write(request.wants_head_only, request.keeps_alive, &mut self.answer);
                    self.rests_until = (rest > Duration::ZERO).then(|| now + rest);
                }
                ParsedRequest::Refused(code) => {
                    self.closes = true;
                    Answer::text(code, "Braid has /, /metrics and /healthz here, for GET.").write(
                        false,
                        false,
                        &mut self.answer,
                    );
                }
            }
            self.due = now + ANSWER_MAX;
        }
    }

    /// Sends the rest of the answer.
    fn send(&mut self, now: Instant) -> io::Result<()> {
        self.flush()?;
        if self.answer.is_empty() {
            return Ok(());
        }
        while self.n_sent < self.answer.len() {
            let rest = &self.answer[self.n_sent..];
            self.n_sent += match &mut self.tls {
                None => retried(|| self.socket.write(rest))?,
                Some(tls) => tls.writer().write(rest)?,
            };
            self.flush()?;
        }
        self.answer = Vec::new();
        self.n_sent = 0;
        self.due = now + REQUEST_MAX;
        if self.closes
            && let Some(tls) = &mut self.tls
        {
            tls.send_close_notify();
            self.flush()?;
        }
        Ok(())
    }

    /// Sends the output of TLS.
    fn flush(&mut self) -> io::Result<()> {
        let Some(tls) = &mut self.tls else { return Ok(()) };
        while tls.wants_write() {
            retried(|| tls.write_tls(&mut self.socket))?;
        }
        Ok(())
    }

    /// Receives more of a request, and returns its length. It is 0 if there will be no more.
    fn receive(&mut self) -> io::Result<usize> {
        debug_assert!(self.input.len() < HEAD_MAX_BYTES, "a longer head is refused");
        let mut piece = [0; PIECE_BYTES];
        let n_bytes = loop {
            let Some(tls) = &mut self.tls else { break retried(|| self.socket.read(&mut piece))? };
            match tls.reader().read(&mut piece) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                read => break read?,
            }
            if retried(|| tls.read_tls(&mut self.socket))? == 0 {
                break 0;
            }
            tls.process_new_packets().map_err(io::Error::other)?;
            self.flush()?;
        };
        self.input.extend_from_slice(&piece[..n_bytes]);
        Ok(n_bytes)
    }
}

/// Repeats an operation that a signal has interrupted.
fn retried<T>(mut attempt: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match attempt() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}
