//! A blocking connection that reads whole replies: for setting up, asking and checking, never for load.

use std::io::{Read, Write};
use std::time::Duration;

use braid_protocol::request::write_request;
use braid_protocol::value::{ReplyParser, Value};
use socket2::Socket;

use crate::address::Address;
use crate::error::{BenchError, Doing};

/// How long a reply may fail to arrive.
const PATIENCE: Duration = Duration::from_secs(60);
const READ_BYTES: usize = 64 * 1024;

/// A blocking RESP2 connection.
#[derive(Debug)]
pub struct Client {
    stream: Socket,
    parser: ReplyParser,
    /// What is received and not yet parsed.
    input: Vec<u8>,
}

impl Client {
    /// Connects.
    ///
    /// # Errors
    /// When nobody listens there.
    pub fn connect(address: impl Into<Address>) -> Result<Self, BenchError> {
        let address = address.into();
        let stream = address.connect(Some(PATIENCE)).doing(format!("connect to {address}"))?;
        stream.set_read_timeout(Some(PATIENCE)).doing("set a read timeout")?;
        stream.set_write_timeout(Some(PATIENCE)).doing("set a write timeout")?;
        Ok(Self { stream, parser: ReplyParser::default(), input: Vec::new() })
    }

    /// Connects and does what every connection of the load does first: HELLO, AUTH, SELECT.
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

    /// Gives up the socket, and what is received and not yet parsed.
    pub fn into_parts(self) -> (Socket, Vec<u8>) {
        (self.stream, self.input)
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
            if let Some((value, n_bytes)) = self.parser.parse(&self.input)? {
                self.input.drain(..n_bytes);
                return Ok(value);
            }
            let n_received = self.input.len();
            self.input.resize(n_received + READ_BYTES, 0);
            let n_bytes = self.stream.read(&mut self.input[n_received..]).doing("receive a reply")?;
            self.input.truncate(n_received + n_bytes);
            if n_bytes == 0 {
                return Err(BenchError::Malformed("the server closed the connection"));
            }
        }
    }

    /// Sends one request and waits for its reply; an error reply is an error.
    ///
    /// # Errors
    /// As [`Client::receive`], and for an error reply.
    pub fn call<A: AsRef<[u8]>>(&mut self, argv: &[A]) -> Result<Value, BenchError> {
        let mut request = Vec::new();
        write_request(&mut request, argv);
        self.send(&request)?;
        match self.receive()? {
            Value::Error(text) => Err(BenchError::WrongReply {
                request: argv
                    .iter()
                    .map(|a| String::from_utf8_lossy(a.as_ref()))
                    .collect::<Vec<_>>()
                    .join(" "),
                reply: String::from_utf8_lossy(&text).into_owned(),
            }),
            value => Ok(value),
        }
    }
}
