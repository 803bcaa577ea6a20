//! One connection: the requests under way on it, and the bytes in both directions.

use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;

use braid_protocol::number::parse_u64;
use braid_protocol::request::write_request;
use braid_protocol::value::ReplySkipper;
use memchr::{memchr, memchr2_iter};
use mio::unix::SourceFd;
use mio::{Interest, Registry, Token};
use socket2::Socket;

use super::settings::LoadTarget;
use crate::error::{BenchError, Doing};
use crate::workload::Issued;

/// A connection and its batch of unanswered requests.
#[derive(Debug)]
pub(super) struct Connection {
    stream: Socket,
    output: Vec<u8>,
    n_written: usize,
    /// The reply that has arrived in part.
    partial: Vec<u8>,
    skipper: ReplySkipper,
    /// Greeting requests that have no reply yet.
    n_greetings: u32,
    /// Requests sent since the connection was opened.
    pub(super) n_requests: u64,
    pub(super) batch: Batch,
}

/// Requests that were sent together.
#[derive(Debug, Default)]
pub(super) struct Batch {
    pub(super) requests: Vec<Issued>,
    /// Requests answered.
    n_answered: usize,
    /// Outstanding replies to the request that is being answered.
    n_replies: u32,
    /// Whether one of the batch's replies was an error.
    failed: bool,
    /// The time at which the batch was due, in nanoseconds since the run began.
    pub(super) due_nanos: u64,
    /// The time at which the batch was sent, in nanoseconds since the run began.
    pub(super) sent_nanos: u64,
    /// The current stage of a watched transaction.
    pub(super) stage: usize,
}

/// A reply, by its type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reply<'a> {
    /// The reply is an error or contains errors.
    ///
    /// A failed command in a transaction leaves such an error in EXEC's reply.
    Error(Errors<'a>),
    Null,
    Other,
}

impl<'a> Reply<'a> {
    #[inline]
    fn of(bytes: &'a [u8]) -> Self {
        match bytes {
            [b'-' | b'!', ..] => Self::Error(Errors(bytes)),
            [b'_', ..] | [b'$' | b'*', b'-', ..] => Self::Null,
            [b'*' | b'%' | b'~' | b'|', ..] if holds_errors(bytes) => Self::Error(Errors(bytes)),
            _ => Self::Other,
        }
    }
}

/// The texts of all errors in a whole reply, at any depth, without their markers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Errors<'a>(&'a [u8]);

impl<'a> Iterator for Errors<'a> {
    type Item = &'a [u8];

    /// Finds the next error.
    ///
    /// Nested values follow each other on the wire, so the search steps from value to value by their first
    /// lines. The reply is known to be whole, so every line ends and every string has its bytes.
    fn next(&mut self) -> Option<&'a [u8]> {
        loop {
            let (head, behind) = self.0.split_at(memchr(b'\n', self.0)? + 1);
            let (sigil, line) = (head[0], &head[1..head.len() - 2]);
            let n_bytes = match sigil {
                b'$' | b'=' | b'!' => parse_u64(line).map(|n_bytes| n_bytes as usize),
                _ => None,
            };
            // A null has no length, and no bytes.
            self.0 = n_bytes.map_or(behind, |n_bytes| &behind[n_bytes + b"\r\n".len()..]);
            if matches!(sigil, b'-' | b'!') {
                return Some(n_bytes.map_or(line, |n_bytes| &behind[..n_bytes]));
            }
        }
    }
}

/// Whether an aggregate contains an error.
///
/// Most aggregates have no line that begins as an error does. Searching for one is much quicker than stepping
/// over each value.
fn holds_errors(reply: &[u8]) -> bool {
    memchr2_iter(b'-', b'!', reply).any(|at| at > 0 && reply[at - 1] == b'\n')
        && Errors(reply).next().is_some()
}

/// A request that has had its last reply.
#[derive(Debug, Clone, Copy)]
pub(super) struct Answered {
    pub(super) command: usize,
    pub(super) failed: bool,
}

impl Batch {
    /// Empties the batch for the requests that the caller adds next.
    pub(super) fn reset(&mut self, due_nanos: u64, sent_nanos: u64) {
        self.requests.clear();
        self.n_answered = 0;
        self.failed = false;
        self.due_nanos = due_nanos;
        self.sent_nanos = sent_nanos;
        self.stage = 0;
    }

    /// Adds a request.
    pub(super) fn push(&mut self, issued: Issued) {
        if self.n_answered == self.requests.len() {
            self.n_replies = issued.n_replies;
        }
        self.requests.push(issued);
    }

    /// Requests without an answer.
    pub(super) fn n_waiting(&self) -> usize {
        self.requests.len() - self.n_answered
    }

    /// Whether any of the replies was an error.
    pub(super) fn failed(&self) -> bool {
        self.failed
    }

    /// Counts one reply. Returns the request if this was its last reply.
    #[inline]
    fn take(&mut self, reply: Reply<'_>) -> Option<Answered> {
        self.failed |= matches!(reply, Reply::Error(_));
        self.n_replies -= 1;
        if self.n_replies > 0 {
            return None;
        }
        let answered = Answered { command: self.requests[self.n_answered].command, failed: self.failed };
        self.n_answered += 1;
        if let Some(next) = self.requests.get(self.n_answered) {
            self.n_replies = next.n_replies;
            self.failed = false;
        }
        Some(answered)
    }
}

impl Connection {
    /// Connects and waits until the connection is made.
    pub(super) fn open(target: &LoadTarget, registry: &Registry, token: Token) -> Result<Self, BenchError> {
        let stream = target.address.connect(None).doing(format!("connect to {}", target.address))?;
        stream.set_nonblocking(true).doing("set O_NONBLOCK")?;
        let mut connection = Self {
            stream,
            output: Vec::new(),
            n_written: 0,
            partial: Vec::new(),
            skipper: ReplySkipper::default(),
            n_greetings: 0,
            n_requests: 0,
            batch: Batch::default(),
        };
        connection.begin(target, registry, token).doing("register a connection")?;
        Ok(connection)
    }

    /// Closes the connection by a reset and begins to open another.
    ///
    /// A reset leaves no port in a waiting state. The call does not wait for the new connection.
    pub(super) fn reopen(
        &mut self,
        target: &LoadTarget,
        registry: &Registry,
        token: Token,
    ) -> io::Result<()> {
        let _ = self.stream.set_linger(Some(std::time::Duration::ZERO));
        registry.deregister(&mut SourceFd(&self.stream.as_raw_fd()))?;
        self.stream = target.address.begin_to_connect()?;
        self.output.clear();
        self.partial.clear();
        self.skipper = ReplySkipper::default();
        self.n_written = 0;
        self.n_requests = 0;
        self.begin(target, registry, token)
    }

    fn begin(&mut self, target: &LoadTarget, registry: &Registry, token: Token) -> io::Result<()> {
        let stream = self.stream.as_raw_fd();
        registry.register(&mut SourceFd(&stream), token, Interest::READABLE | Interest::WRITABLE)?;
        target.greeting.iter().for_each(|request| write_request(&mut self.output, request));
        self.n_greetings = target.greeting.len() as u32;
        Ok(())
    }

    /// Returns the buffer and the batch to which requests are appended for [`Connection::flush`].
    pub(super) fn output(&mut self) -> (&mut Vec<u8>, &mut Batch) {
        (&mut self.output, &mut self.batch)
    }

    /// Whether the connection waits for a reply.
    pub(super) fn is_waiting(&self) -> bool {
        self.n_greetings > 0 || self.batch.n_waiting() > 0
    }

    /// Sends as much as the socket takes, and returns the number of bytes. An event announces when it takes
    /// more.
    pub(super) fn flush(&mut self) -> io::Result<u64> {
        let mut n_sent = 0;
        while self.n_written < self.output.len() {
            match self.stream.write(&self.output[self.n_written..]) {
                Ok(n_bytes) => {
                    self.n_written += n_bytes;
                    n_sent += n_bytes as u64;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // `NotConnected` means that the connection is still being made.
                Err(error)
                    if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::NotConnected) =>
                {
                    return Ok(n_sent);
                }
                Err(error) => return Err(error),
            }
        }
        self.output.clear();
        self.n_written = 0;
        Ok(n_sent)
    }

    /// Receives the available bytes; `None` when the socket is empty.
    pub(super) fn receive(&mut self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        loop {
            return match self.stream.read(buffer) {
                Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(n_bytes) => Ok(Some(n_bytes)),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error)
                    if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::NotConnected) =>
                {
                    Ok(None)
                }
                Err(error) => Err(error),
            };
        }
    }

    /// Takes the replies in `received`.
    ///
    /// `note` sees each reply. It also sees the request if this was the request's last reply.
    #[inline]
    pub(super) fn accept(
        &mut self,
        received: &[u8],
        mut note: impl FnMut(Reply<'_>, Option<Answered>),
    ) -> Result<(), BenchError> {
        if self.partial.is_empty() {
            let n_bytes = self.take_replies(received, &mut note)?;
            self.partial.extend_from_slice(&received[n_bytes..]);
            return Ok(());
        }
        let mut partial = std::mem::take(&mut self.partial);
        partial.extend_from_slice(received);
        let n_bytes = self.take_replies(&partial, &mut note)?;
        partial.drain(..n_bytes);
        self.partial = partial;
        Ok(())
    }

    /// Takes whole replies, and returns their length in bytes.
    fn take_replies(
        &mut self,
        input: &[u8],
        note: &mut impl FnMut(Reply<'_>, Option<Answered>),
    ) -> Result<usize, BenchError> {
        let mut at = 0;
        while at < input.len() {
            let rest = &input[at..];
            let Some(n_bytes) = self.skipper.skip(rest)? else { break };
            at += n_bytes;
            // A message of RESP3 answers no request.
            if rest[0] == b'>' {
                continue;
            }
            let reply = Reply::of(&rest[..n_bytes]);
            if self.n_greetings > 0 {
                self.n_greetings -= 1;
                if let Reply::Error(mut errors) = reply {
                    let text = errors.next().unwrap_or_default();
                    return Err(BenchError::WrongReply {
                        request: String::from("the greeting of a connection"),
                        reply: String::from_utf8_lossy(text).into_owned(),
                    });
                }
            } else if self.batch.n_waiting() == 0 {
                return Err(BenchError::Malformed("a reply that nothing asked for"));
            } else {
                note(reply, self.batch.take(reply));
            }
        }
        Ok(at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn errors(reply: &[u8]) -> Vec<String> {
        match Reply::of(reply) {
            Reply::Error(errors) => errors.map(|text| String::from_utf8_lossy(text).into_owned()).collect(),
            Reply::Null | Reply::Other => Vec::new(),
        }
    }

    #[test]
    fn errors_are_found_at_any_depth_and_in_either_version() {
        assert_eq!(errors(b"-ERR no\r\n"), ["ERR no"]);
        assert_eq!(errors(b"!7\r\nERR\r\nno\r\n"), ["ERR\r\nno"]);
        assert_eq!(errors(b"*3\r\n+OK\r\n-ERR a\r\n*2\r\n$-1\r\n-ERR b\r\n"), ["ERR a", "ERR b"]);
        assert_eq!(errors(b"%1\r\n+key\r\n~2\r\n!5\r\nERR a\r\n_\r\n"), ["ERR a"]);
        assert_eq!(errors(b"|1\r\n+ttl\r\n:1\r\n-ERR a\r\n"), ["ERR a"]);
    }

    #[test]
    fn what_only_looks_like_an_error_is_none() {
        for reply in [
            &b"*2\r\n$2\r\n-5\r\n:-5\r\n"[..],
            b"*1\r\n$7\r\na\r\n-ERR\r\n",
            b"*2\r\n$0\r\n\r\n=7\r\ntxt:\n!x\r\n",
            b"*0\r\n",
            b"$4\r\n-ERR\r\n",
        ] {
            assert_eq!(Reply::of(reply), Reply::Other, "{}", reply.escape_ascii());
        }
        for reply in [&b"$-1\r\n"[..], b"*-1\r\n", b"_\r\n"] {
            assert_eq!(Reply::of(reply), Reply::Null);
        }
    }
}
