//! A blocking connection: for setting up, for looking, and for the one slow client of a bar.
//!
//! It is not [`crate::client::Client`] because it keeps no replies: see [`resp`](crate::bars::resp).

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use braid_protocol::request::write_request;

use crate::bars::resp::{Kind, Reply, ReplyCounter};
use crate::error::{BenchError, Doing};

/// How long a reply may fail to arrive. No request of a bar takes a tenth of it on a working server.
const PATIENCE: Duration = Duration::from_secs(60);
const BUFFER_BYTES: usize = 256 * 1024;

/// A blocking RESP2 connection.
#[derive(Debug)]
pub struct Client {
    stream: TcpStream,
    counter: ReplyCounter,
    buffer: Vec<u8>,
    /// Where the bytes lie in `buffer` that are received and not yet counted.
    unread: std::ops::Range<usize>,
}

impl Client {
    /// Connects.
    ///
    /// # Errors
    /// When the server does not listen there.
    pub fn connect(address: SocketAddr) -> Result<Self, BenchError> {
        let stream = TcpStream::connect_timeout(&address, PATIENCE).doing(format!("connect to {address}"))?;
        stream.set_nodelay(true).doing("set TCP_NODELAY")?;
        stream.set_read_timeout(Some(PATIENCE)).doing("set a read timeout")?;
        stream.set_write_timeout(Some(PATIENCE)).doing("set a write timeout")?;
        Ok(Self { stream, counter: ReplyCounter::default(), buffer: vec![0; BUFFER_BYTES], unread: 0..0 })
    }

    /// Sends requests that are already encoded.
    ///
    /// # Errors
    /// When the connection breaks or the server does not read for a minute.
    pub fn send(&mut self, requests: &[u8]) -> Result<(), BenchError> {
        self.stream.write_all(requests).doing("send a request")
    }

    /// Waits for the next reply.
    ///
    /// # Errors
    /// When the connection breaks, the reply is malformed, or nothing arrives for a minute.
    pub fn receive(&mut self) -> Result<Reply, BenchError> {
        loop {
            let mut input = &self.buffer[self.unread.clone()];
            let reply = self.counter.next(&mut input)?;
            self.unread.start = self.unread.end - input.len();
            if let Some(reply) = reply {
                return Ok(reply);
            }
            let n_bytes = self.stream.read(&mut self.buffer).doing("receive a reply")?;
            if n_bytes == 0 {
                return Err(BenchError::Malformed("the server closed the connection"));
            }
            self.unread = 0..n_bytes;
        }
    }

    /// Sends one request and waits for its reply; an error reply is an error.
    ///
    /// # Errors
    /// As [`Client::receive`], and for an error reply.
    pub fn call(&mut self, argv: &[&[u8]]) -> Result<Reply, BenchError> {
        let mut request = Vec::new();
        write_request(&mut request, argv);
        self.send(&request)?;
        let reply = self.receive()?;
        match reply.kind {
            Kind::Error(_) => Err(wrong(argv, &reply)),
            _ => Ok(reply),
        }
    }

    /// Asks for the number of keys.
    ///
    /// # Errors
    /// As [`Client::call`], and when the answer is no number.
    pub fn dbsize(&mut self) -> Result<u64, BenchError> {
        let reply = self.call(&[b"DBSIZE"])?;
        match reply.kind {
            Kind::Integer(n_keys) => Ok(n_keys.max(0) as u64),
            _ => Err(wrong(&[b"DBSIZE"], &reply)),
        }
    }
}

/// The error for a reply that is not what the request asked for.
pub fn wrong(argv: &[&[u8]], reply: &Reply) -> BenchError {
    let request: Vec<_> = argv.iter().map(|argument| String::from_utf8_lossy(argument)).collect();
    BenchError::WrongReply { request: request.join(" "), reply: format!("{reply:?}") }
}
