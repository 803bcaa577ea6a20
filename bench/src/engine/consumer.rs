//! Connections that wait for messages of the load: subscribers, and workers in blocking commands.

use std::net::Shutdown;
use std::os::fd::AsRawFd;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use std::{io, io::Read, io::Write};

use braid_protocol::value::{ReplySkipper, Value};
use hdrhistogram::Histogram;
use memchr::memmem;
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token};
use socket2::Socket;

use super::recorder::histogram;
use super::settings::{Limit, LoadTarget};
use crate::client::Client;
use crate::error::{BenchError, Doing};
use crate::workload::{Compiled, Generator, Moment, NOW_MARKER};

const BUFFER_BYTES: usize = 256 * 1024;
const NOW_DIGITS: usize = 16;
/// The time between two checks for the end when nothing arrives.
const TURN: Duration = Duration::from_millis(20);
/// The longest time without another counted message after the load. Messages that arrive later are lost.
const PATIENCE: Duration = Duration::from_secs(5);

/// All consumers of a load, on one thread.
#[derive(Debug)]
pub(super) struct Consumers {
    poll: Poll,
    consumers: Vec<ConsumerConnection>,
}

#[derive(Debug)]
struct ConsumerConnection {
    stream: Socket,
    /// The request that is sent again after each reply; empty for a subscriber.
    request: Vec<u8>,
    skipper: ReplySkipper,
    partial: Vec<u8>,
    counted: Option<CountedBytes>,
}

/// The bytes received on a connection whose messages are counted by their bytes.
#[derive(Debug)]
struct CountedBytes {
    /// The size of a message.
    message_bytes: u64,
    n_bytes: u64,
}

impl CountedBytes {
    fn n_messages(&self) -> u64 {
        self.n_bytes / self.message_bytes
    }
}

/// The messages that arrived at the consumers.
#[derive(Debug)]
pub(super) struct Deliveries {
    /// The delivery times of the messages that were read.
    pub(super) delivery: Histogram<u64>,
    /// Messages that were counted by their bytes.
    pub(super) n_counted: u64,
    /// Messages that should have arrived at the consumers that count bytes.
    pub(super) n_due: u64,
}

impl Consumers {
    /// Opens the connections. Subscribers are subscribed when this returns.
    pub(super) fn connect(target: &LoadTarget, compiled: &Arc<Compiled>) -> Result<Self, BenchError> {
        let poll = Poll::new().doing("create a poll")?;
        let mut generator = Generator::new(compiled, 0, 1);
        let mut consumers = Vec::new();
        for (group, consumer) in compiled.workload().consumers.iter().enumerate() {
            for connection in 0..consumer.connections {
                let mut request = Vec::new();
                generator.append_consumer(group, Moment { due_nanos: 0, connection }, &mut request);
                let token = Token(consumers.len());
                let mut connected =
                    ConsumerConnection::connect(target, request, consumer.repeat, &poll, token)?;
                connected.counted = consumer.message_bytes.map(|message_bytes| CountedBytes {
                    message_bytes,
                    n_bytes: connected.partial.len() as u64,
                });
                consumers.push(connected);
            }
        }
        Ok(Self { poll, consumers })
    }

    /// Takes messages until `ended` holds the number of answered requests, and then the outstanding ones.
    pub(super) fn run(
        &mut self,
        start: Instant,
        ended: &OnceLock<u64>,
        limit: &Limit,
    ) -> Result<Deliveries, BenchError> {
        let mut delivery = histogram();
        if self.consumers.is_empty() {
            return Ok(Deliveries { delivery, n_counted: 0, n_due: 0 });
        }
        let counts_from = match limit {
            Limit::Time { warmup, .. } => warmup.as_nanos() as u64,
            Limit::Requests(_) | Limit::Told(_) => 0,
        };
        let mut events = Events::with_capacity(1024);
        let mut buffer = vec![0; BUFFER_BYTES];
        let mut deliver = |due| {
            let now = start.elapsed().as_nanos() as u64;
            if due >= counts_from {
                delivery.saturating_record(now.saturating_sub(due));
            }
        };
        let mut arrived_at = Instant::now();
        let mut n_counted = self.n_counted();
        while ended
            .get()
            .is_none_or(|&n_requests| n_counted < self.n_due(n_requests) && arrived_at.elapsed() < PATIENCE)
        {
            match self.poll.poll(&mut events, Some(TURN)) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                polled => polled.doing("poll")?,
            }
            for event in &events {
                self.consumers[event.token().0].serve(&mut buffer, &mut deliver)?;
            }
            let n_now = self.n_counted();
            if n_now > n_counted || ended.get().is_none() {
                (n_counted, arrived_at) = (n_now, Instant::now());
            }
        }
        // Messages that have arrived by now count too.
        self.consumers.iter_mut().try_for_each(|consumer| consumer.serve(&mut buffer, &mut deliver))?;
        for consumer in &self.consumers {
            // The server may have closed it first.
            let _ = consumer.stream.shutdown(Shutdown::Both);
        }
        let n_due = self.n_due(ended.get().copied().unwrap_or(0));
        Ok(Deliveries { delivery, n_counted: self.n_counted(), n_due })
    }

    /// Messages that were counted by their bytes.
    fn n_counted(&self) -> u64 {
        self.counted().map(CountedBytes::n_messages).sum()
    }

    /// Messages that are due after `n_requests` at the consumers that count bytes.
    fn n_due(&self, n_requests: u64) -> u64 {
        n_requests * self.counted().count() as u64
    }

    fn counted(&self) -> impl Iterator<Item = &CountedBytes> {
        self.consumers.iter().filter_map(|consumer| consumer.counted.as_ref())
    }
}

impl ConsumerConnection {
    fn connect(
        target: &LoadTarget,
        request: Vec<u8>,
        repeat: bool,
        poll: &Poll,
        token: Token,
    ) -> Result<Self, BenchError> {
        let mut client = Client::greet(&target.address, &target.greeting)?;
        client.send(&request)?;
        if !repeat && let Value::Error(text) = client.receive()? {
            return Err(refused(&text));
        }
        let (stream, partial) = client.into_parts();
        stream.set_nonblocking(true).doing("set O_NONBLOCK")?;
        poll.registry()
            .register(&mut SourceFd(&stream.as_raw_fd()), token, Interest::READABLE)
            .doing("register a connection")?;
        let request = if repeat { request } else { Vec::new() };
        Ok(Self { stream, request, skipper: ReplySkipper::default(), partial, counted: None })
    }

    /// Takes the available messages; `deliver` gets the moment in each.
    fn serve(&mut self, buffer: &mut [u8], deliver: &mut dyn FnMut(u64)) -> Result<(), BenchError> {
        loop {
            let n_bytes = match self.stream.read(buffer) {
                // Messages that a closed connection does not get are counted as lost.
                Ok(0) if self.counted.is_some() => return Ok(()),
                Ok(0) => return Err(BenchError::Malformed("the server closed a consumer's connection")),
                Ok(n_bytes) => n_bytes,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if self.counted.is_some() && error.kind() == io::ErrorKind::ConnectionReset => {
                    return Ok(());
                }
                Err(error) => return Err(error).doing("receive a message"),
            };
            if let Some(counted) = &mut self.counted {
                counted.n_bytes += n_bytes as u64;
            } else {
                self.partial.extend_from_slice(&buffer[..n_bytes]);
                self.take_messages(deliver)?;
            }
        }
    }

    fn take_messages(&mut self, deliver: &mut dyn FnMut(u64)) -> Result<(), BenchError> {
        let mut at = 0;
        while let Some(n_bytes) = self.skipper.skip(&self.partial[at..])? {
            let message = &self.partial[at..at + n_bytes];
            at += n_bytes;
            if message[0] == b'-' {
                return Err(refused(&message[1..]));
            }
            memmem::find_iter(message, NOW_MARKER)
                .filter_map(|found| moment(&message[found..]))
                .for_each(&mut *deliver);
            if !self.request.is_empty() {
                // A request is a few bytes and nothing else is under way: the socket takes it whole.
                self.stream.write_all(&self.request).doing("send a request")?;
            }
        }
        self.partial.drain(..at);
        Ok(())
    }
}

/// Reads the moment after a marker.
fn moment(text: &[u8]) -> Option<u64> {
    let digits = text.get(NOW_MARKER.len()..NOW_MARKER.len() + NOW_DIGITS)?;
    u64::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
}

fn refused(text: &[u8]) -> BenchError {
    BenchError::WrongReply {
        request: String::from("a consumer's request"),
        reply: String::from_utf8_lossy(text).trim_end().to_owned(),
    }
}
