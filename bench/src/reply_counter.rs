//! Counts the contents of RESP2 replies without keeping them.
//!
//! A reply to `KEYS *` of a million keys is 24 MB. Keeping all of it costs a client page faults and
//! allocations in the middle of a measurement. The counter here works on any piece of a reply and remembers
//! only its position. It still counts the elements, nulls and errors.

use crate::error::BenchError;

/// The shape of one whole reply, without its content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outline {
    /// The outermost value.
    pub kind: Kind,
    /// Null elements anywhere inside an array.
    pub n_nulls: u64,
    /// Errors anywhere inside an array.
    pub n_errors: u64,
    /// The size on the wire.
    pub n_bytes: u64,
}

/// The outermost value of a reply. Unneeded text is not kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    /// `+OK` and the like.
    Status,
    /// An error, with its text.
    Error(String),
    /// An integer.
    Integer(i64),
    /// A bulk string.
    Bulk,
    /// A null, of either kind.
    Null,
    /// An array of this many elements.
    Array(u64),
}

/// Counts the values in a stream of replies, which may be cut anywhere.
#[derive(Debug, Default)]
pub struct ReplyCounter {
    /// The received part of a line. A line that arrives whole is never copied here.
    line: Vec<u8>,
    /// Remaining bytes of a bulk string, including its CRLF.
    skip: u64,
    /// Missing elements of each array that is open, outermost first.
    open: Vec<u64>,
    /// The current reply; it is set once its first line is read.
    reply: Option<Outline>,
    /// Bytes of the current reply so far.
    n_bytes: u64,
}

impl ReplyCounter {
    /// Takes from `input` up to the end of one reply. `None` means that `input` is used up first.
    ///
    /// # Errors
    /// [`BenchError::Malformed`] for input that is not RESP2; the stream is lost then.
    pub fn next(&mut self, input: &mut &[u8]) -> Result<Option<Outline>, BenchError> {
        while !input.is_empty() {
            let finished = if self.skip > 0 { self.skip_bulk(input) } else { self.take_line(input)? };
            if finished && self.close_value() {
                let reply = self.reply.take().map(|reply| Outline { n_bytes: self.n_bytes, ..reply });
                self.n_bytes = 0;
                return Ok(reply);
            }
        }
        Ok(None)
    }

    /// Skips the bytes of a bulk string; true when its end was in `input`.
    fn skip_bulk(&mut self, input: &mut &[u8]) -> bool {
        let n_bytes = self.skip.min(input.len() as u64);
        self.consume(input, n_bytes as usize);
        self.skip -= n_bytes;
        self.skip == 0
    }

    /// Reads one line, or its part in `input`; true when that ends a value.
    fn take_line(&mut self, input: &mut &[u8]) -> Result<bool, BenchError> {
        let Some(newline) = input.iter().position(|&byte| byte == b'\n') else {
            self.line.extend_from_slice(input);
            self.consume(input, input.len());
            return Ok(false);
        };
        let whole = *input;
        self.consume(input, newline + 1);
        if self.line.is_empty() {
            return self.read_line(&whole[..newline]);
        }
        let mut line = std::mem::take(&mut self.line);
        line.extend_from_slice(&whole[..newline]);
        self.read_line(&line)
    }

    fn consume(&mut self, input: &mut &[u8], n_bytes: usize) {
        *input = &input[n_bytes..];
        self.n_bytes += n_bytes as u64;
    }

    /// Handles one line without its newline; true when it is a value of its own.
    fn read_line(&mut self, line: &[u8]) -> Result<bool, BenchError> {
        let line = line.strip_suffix(b"\r").ok_or(BenchError::Malformed("a line ends without CR"))?;
        let (&marker, text) = line.split_first().ok_or(BenchError::Malformed("an empty line"))?;
        let (kind, finished) = match marker {
            b'+' => (Kind::Status, true),
            b'-' => (Kind::Error(String::from_utf8_lossy(text).into_owned()), true),
            b':' => (Kind::Integer(number(text)?), true),
            b'$' => match number(text)? {
                -1 => (Kind::Null, true),
                n_bytes => {
                    self.skip = length(n_bytes)? + 2;
                    (Kind::Bulk, false)
                }
            },
            b'*' => match number(text)? {
                -1 => (Kind::Null, true),
                0 => (Kind::Array(0), true),
                n_elements => {
                    let n_elements = length(n_elements)?;
                    self.open.push(n_elements);
                    (Kind::Array(n_elements), false)
                }
            },
            _ => return Err(BenchError::Malformed("an unknown type")),
        };
        self.note(kind);
        Ok(finished)
    }

    /// Records the first value as the reply's kind, and counts later nulls and errors.
    fn note(&mut self, kind: Kind) {
        match &mut self.reply {
            None => self.reply = Some(Outline { kind, n_nulls: 0, n_errors: 0, n_bytes: 0 }),
            Some(reply) => match kind {
                Kind::Null => reply.n_nulls += 1,
                Kind::Error(_) => reply.n_errors += 1,
                _ => {}
            },
        }
    }

    /// Counts a finished value towards the enclosing arrays; true when the outermost is complete.
    fn close_value(&mut self) -> bool {
        while let Some(missing) = self.open.last_mut() {
            *missing -= 1;
            if *missing > 0 {
                return false;
            }
            self.open.pop();
        }
        true
    }
}

fn number(text: &[u8]) -> Result<i64, BenchError> {
    std::str::from_utf8(text)
        .ok()
        .and_then(|text| text.parse().ok())
        .ok_or(BenchError::Malformed("a number that is none"))
}

fn length(number: i64) -> Result<u64, BenchError> {
    u64::try_from(number).map_err(|_| BenchError::Malformed("a negative length"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const STREAM: &[u8] = b"+OK\r\n:42\r\n-ERR no\r\n$3\r\na\r\n\r\n$-1\r\n$0\r\n\r\n*0\r\n*-1\r\n\
        *4\r\n$1\r\nx\r\n$-1\r\n*2\r\n:1\r\n-WRONGTYPE\r\n+QUEUED\r\n+PONG\r\n";

    fn kinds(replies: &[Outline]) -> Vec<Kind> {
        replies.iter().map(|reply| reply.kind.clone()).collect()
    }

    fn count(counter: &mut ReplyCounter, mut input: &[u8]) -> Vec<Outline> {
        std::iter::from_fn(|| counter.next(&mut input).expect("the stream is RESP2")).collect()
    }

    #[test]
    fn counts_every_kind_of_reply() {
        let replies = count(&mut ReplyCounter::default(), STREAM);
        let expected = vec![
            Kind::Status,
            Kind::Integer(42),
            Kind::Error("ERR no".into()),
            Kind::Bulk,
            Kind::Null,
            Kind::Bulk,
            Kind::Array(0),
            Kind::Null,
            Kind::Array(4),
            Kind::Status,
        ];
        assert_eq!(kinds(&replies), expected);
        assert_eq!((replies[8].n_nulls, replies[8].n_errors), (1, 1));
        assert_eq!(replies.iter().map(|reply| reply.n_bytes).sum::<u64>(), STREAM.len() as u64);
    }

    #[test]
    fn a_stream_cut_anywhere_counts_alike() {
        let whole = count(&mut ReplyCounter::default(), STREAM);
        for first in 0..STREAM.len() {
            for second in first..STREAM.len() {
                let mut counter = ReplyCounter::default();
                let mut replies = count(&mut counter, &STREAM[..first]);
                replies.extend(count(&mut counter, &STREAM[first..second]));
                replies.extend(count(&mut counter, &STREAM[second..]));
                assert_eq!(replies, whole, "cut at {first} and {second}");
            }
        }
    }

    #[test]
    fn refuses_what_is_not_resp2() {
        for input in [&b"hello\r\n"[..], b"\r\n", b":x\r\n", b"$-2\r\n", b"*-7\r\n", b"+OK\n"] {
            assert!(ReplyCounter::default().next(&mut &input[..]).is_err(), "{input:?}");
        }
    }
}
