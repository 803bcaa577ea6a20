//! A blocking connection for setting up, asking and checking, never for load.
//!
//! It keeps replies, or counts their contents only.

use std::fmt::Debug;
use std::io::{Read, Write};
use std::ops::Range;
use std::time::Duration;

use braid_protocol::request::write_request;
use braid_protocol::value::{ReplyParser, Value};
use socket2::Socket;

use crate::address::Address;
use crate::error::{BenchError, Doing};
use crate::reply_counter::{Kind, Outline, ReplyCounter};

/// The longest wait for a reply.
const PATIENCE: Duration = Duration::from_secs(60);
/// The most bytes that one read takes. A reply that is kept may make the buffer larger.
const BUFFER_BYTES: usize = 256 * 1024;

/// A blocking RESP2 connection.
#[derive(Debug)]
pub struct Client {
    stream: Socket,
    parser: ReplyParser,
    counter: ReplyCounter,
    buffer: Vec<u8>,
    /// The bytes of `buffer` that are received and not yet taken.
    unread: Range<usize>,
}

impl Client {
    /// Connects to a server, within a minute.
    ///
    /// # Errors
    /// When no server listens there.
    pub fn connect(address: impl Into<Address>) -> Result<Self, BenchError> {
        let address = address.into();
        let stream = address.connect(Some(PATIENCE)).doing(format!("connect to {address}"))?;
        stream.set_read_timeout(Some(PATIENCE)).doing("set a read timeout")?;
        stream.set_write_timeout(Some(PATIENCE)).doing("set a write timeout")?;
        Ok(Self {
            stream,
            parser: ReplyParser::default(),
            counter: ReplyCounter::default(),
            buffer: vec![0; BUFFER_BYTES],
            unread: 0..0,
        })
    }

    /// Connects and sends the greeting of every connection of a load: HELLO, AUTH, SELECT.
    ///
    /// # Errors
    /// As [`Client::connect`], and when the server refuses one of them.
    pub fn greet(address: &Address, greeting: &[Vec<String>]) -> Result<Self, BenchError> {
        let mut client = Self::connect(address.clone())?;
        for request in greeting {
            client.call(request)?;
        }
        Ok(client)
    }

    /// Returns the socket, and the bytes that are received and not yet taken.
    pub fn into_parts(self) -> (Socket, Vec<u8>) {
        (self.stream, self.buffer[self.unread].to_vec())
    }

    /// Sends requests that are already encoded.
    ///
    /// # Errors
    /// When the connection breaks or the server does not read for a minute.
    pub fn send(&mut self, requests: &[u8]) -> Result<(), BenchError> {
        self.stream.write_all(requests).doing("send a request")
    }

    /// Waits for the next reply, which may be an error.
    ///
    /// # Errors
    /// When the connection breaks, the reply is malformed, or nothing arrives for a minute.
    pub fn receive(&mut self) -> Result<Value, BenchError> {
        loop {
            if let Some((value, n_bytes)) = self.parser.parse(&self.buffer[self.unread.clone()])? {
                self.unread.start += n_bytes;
                return Ok(value);
            }
            self.read()?;
        }
    }

    /// Waits for the next reply and counts its values without keeping it.
    ///
    /// The reply may be an error. The connection speaks RESP2.
    ///
    /// # Errors
    /// As [`Client::receive`].
    pub fn receive_outline(&mut self) -> Result<Outline, BenchError> {
        loop {
            let mut input = &self.buffer[self.unread.clone()];
            let outline = self.counter.next(&mut input)?;
            self.unread.start = self.unread.end - input.len();
            if let Some(outline) = outline {
                return Ok(outline);
            }
            self.read()?;
        }
    }

    /// Receives more bytes after the unread ones.
    fn read(&mut self) -> Result<(), BenchError> {
        if self.unread.start > 0 {
            self.buffer.copy_within(self.unread.clone(), 0);
            self.unread = 0..self.unread.len();
        }
        if self.unread.end == self.buffer.len() {
            self.buffer.resize(2 * self.buffer.len(), 0);
        }
        let n_bytes = self.stream.read(&mut self.buffer[self.unread.end..]).doing("receive a reply")?;
        if n_bytes == 0 {
            return Err(BenchError::Malformed("the server closed the connection"));
        }
        self.unread.end += n_bytes;
        Ok(())
    }

    /// Sends encoded requests and waits for their replies. No reply may be an error or contain one.
    ///
    /// # Errors
    /// As [`Client::receive`], and for an error reply. That error names the requests by `name`.
    pub fn call_encoded(&mut self, name: &str, requests: &[u8], n_replies: usize) -> Result<(), BenchError> {
        self.send(requests)?;
        for _ in 0..n_replies {
            let outline = self.receive_outline()?;
            if matches!(outline.kind, Kind::Error(_)) || outline.n_errors > 0 {
                return Err(wrong_reply(&[name], &outline));
            }
        }
        Ok(())
    }

    /// Sends one request and waits for its reply.
    ///
    /// # Errors
    /// As [`Client::receive`], and for an error reply.
    pub fn call<A: AsRef<[u8]>>(&mut self, argv: &[A]) -> Result<Value, BenchError> {
        let mut request = Vec::new();
        write_request(&mut request, argv);
        self.send(&request)?;
        match self.receive()? {
            Value::Error(text) => Err(wrong_reply(argv, &Text(&text))),
            value => Ok(value),
        }
    }

    /// Asks the server for the number of its keys.
    ///
    /// # Errors
    /// As [`Client::call`], and when the answer is no number.
    pub fn dbsize(&mut self) -> Result<u64, BenchError> {
        match self.call(&["DBSIZE"])? {
            Value::Integer(n_keys) => Ok(n_keys.max(0) as u64),
            other => Err(wrong_reply(&["DBSIZE"], &other)),
        }
    }

    /// Asks INFO for a figure.
    ///
    /// # Errors
    /// As [`Client::call`], and when INFO has no such figure or it is no number.
    pub fn info_figure(&mut self, name: &str) -> Result<f64, BenchError> {
        let argv = ["INFO", "everything"];
        let reply = self.call(&argv)?;
        let found = match &reply {
            Value::Bulk(text) => String::from_utf8_lossy(text)
                .lines()
                .find_map(|line| line.strip_prefix(name)?.strip_prefix(':')?.trim().parse().ok()),
            _ => None,
        };
        found.ok_or_else(|| wrong_reply(&argv, &reply))
    }
}

/// The error for a reply of an unexpected type or content.
pub fn wrong_reply<A: AsRef<[u8]>>(argv: &[A], reply: &impl Debug) -> BenchError {
    const SHOWN: usize = 8;
    let shown = argv.iter().take(SHOWN).map(|argument| String::from_utf8_lossy(argument.as_ref()));
    let mut words: Vec<_> = shown.collect();
    if argv.len() > SHOWN {
        words.push(format!("… ({} words)", argv.len()).into());
    }
    BenchError::WrongReply { request: words.join(" "), reply: format!("{reply:?}") }
}

/// The text of an error, as it reads in a message.
struct Text<'a>(&'a [u8]);

impl Debug for Text<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&String::from_utf8_lossy(self.0))
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::net::TcpListener;
    use std::thread;

    use super::*;

    #[test]
    fn kept_and_counted_replies_share_one_stream() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("loopback can be listened on");
        let address = listener.local_addr().expect("it listens");
        let long = vec![b'x'; 2 * BUFFER_BYTES];
        let mut stream = b"*2\r\n:1\r\n$-1\r\n+OK\r\n".to_vec();
        for _ in 0..2 {
            write!(stream, "${}\r\n", long.len()).expect("a Vec takes every write");
            stream.extend_from_slice(&long);
            stream.extend_from_slice(b"\r\n");
        }
        stream.extend_from_slice(b":7\r\n");
        let serving = thread::spawn(move || {
            listener.accept().expect("a client connects").0.write_all(&stream).expect("the client reads");
        });
        let mut client = Client::connect(address).expect("it listens");
        let outline = client.receive_outline().expect("it is a reply");
        assert_eq!((outline.kind, outline.n_nulls), (Kind::Array(2), 1));
        assert_eq!(client.receive().expect("it is a reply"), Value::Simple(b"OK".to_vec()));
        assert_eq!(client.receive().expect("it is a reply"), Value::Bulk(long));
        assert_eq!(client.receive_outline().expect("it is a reply").kind, Kind::Bulk);
        assert_eq!(client.receive().expect("it is a reply"), Value::Integer(7));
        serving.join().expect("the server does not panic");
    }
}
