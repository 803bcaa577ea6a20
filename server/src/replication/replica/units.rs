//! The stream of the primary, cut into units.

use std::ops::Range;

use braid_protocol::{
    number::parse_i64,
    request::{Arg, Limits, Parse, RequestParser},
};

use crate::catalog::{Requests, Words};

/// Bytes of the input buffer that are kept for the next input.
const KEPT_BYTES: usize = 1 << 20;

/// A unit of the stream, and the offset of its end.
pub struct StreamUnit<'s> {
    /// Its contents.
    pub content: UnitContent<'s>,
    /// Its bytes, with what came before it and is no command.
    pub bytes: &'s [u8],
    /// The offset of its last byte.
    pub end: i64,
}

/// The content of a unit.
pub enum UnitContent<'s> {
    /// One command.
    One(Words<'s>),
    /// The commands between MULTI and EXEC.
    Queue(&'s Requests),
    /// The primary asks how far this replica is.
    GetAck,
    /// The primary shows that it is alive.
    Ping,
}

/// Cuts the stream into units. A unit that is not complete has no effect.
pub struct UnitReader {
    buffer: Vec<u8>,
    /// The bytes of the buffer that belong to units before the one under way.
    n_past: usize,
    /// The bytes of the buffer that were parsed.
    n_parsed: usize,
    parser: RequestParser,
    args: Vec<Arg>,
    /// The commands since MULTI.
    queue: Option<Requests>,
    /// The last queue that was complete.
    complete: Requests,
    /// The offset of the last parsed byte.
    offset: i64,
}

/// A part of the stream that is no command, or no unit.
#[derive(Debug, PartialEq, Eq)]
pub struct BadStream(pub String);

impl UnitReader {
    /// Begins after the byte at `offset`.
    pub fn new(offset: i64) -> Self {
        let limits = Limits { max_bulk_bytes: u64::MAX, authenticated: true };
        Self {
            buffer: Vec::new(),
            n_past: 0,
            n_parsed: 0,
            parser: RequestParser::new(limits),
            args: Vec::new(),
            queue: None,
            complete: Requests::default(),
            offset,
        }
    }

    /// Adds bytes of the stream.
    pub fn feed(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// Forgets the bytes of the units before the one under way.
    fn forget_parsed(&mut self) {
        self.buffer.drain(..self.n_past);
        self.n_parsed -= self.n_past;
        self.n_past = 0;
        if self.buffer.len() < KEPT_BYTES {
            // One command may have been very long.
            self.buffer.shrink_to(2 * KEPT_BYTES);
        }
    }

    /// Returns the next unit, if all of it is there.
    ///
    /// # Errors
    /// If the bytes are no command, or MULTI and EXEC do not match.
    pub fn next_unit(&mut self) -> Result<Option<StreamUnit<'_>>, BadStream> {
        // The last transaction may have been long, and the next one may be far away.
        self.complete = Requests::default();
        let Some(parsed) = self.parse_unit()? else {
            self.forget_parsed();
            return Ok(None);
        };
        let start = std::mem::replace(&mut self.n_past, self.n_parsed);
        let content = match parsed {
            ParsedUnit::One(bytes) => UnitContent::One(Words::new(&self.buffer[bytes], &self.args)),
            ParsedUnit::Queue => UnitContent::Queue(&self.complete),
            ParsedUnit::GetAck => UnitContent::GetAck,
            ParsedUnit::Ping => UnitContent::Ping,
        };
        Ok(Some(StreamUnit { content, bytes: &self.buffer[start..self.n_parsed], end: self.offset }))
    }

    fn parse_unit(&mut self) -> Result<Option<ParsedUnit>, BadStream> {
        loop {
            let Some(bytes) = self.parse_command()? else { return Ok(None) };
            let words = Words::new(&self.buffer[bytes.clone()], &self.args);
            let is = |name: &[u8]| words.get(0).eq_ignore_ascii_case(name);
            match &mut self.queue {
                None if is(b"MULTI") => self.queue = Some(Requests::default()),
                Some(_) if is(b"MULTI") => {
                    return Err(BadStream("the stream has MULTI within a transaction".to_owned()));
                }
                Some(_) if is(b"EXEC") => {
                    self.complete = self.queue.take().unwrap_or_default();
                    return Ok(Some(ParsedUnit::Queue));
                }
                None if is(b"EXEC") => {
                    return Err(BadStream("the stream has EXEC without MULTI".to_owned()));
                }
                Some(queue) => queue.push(words),
                None if is(b"PING") => return Ok(Some(ParsedUnit::Ping)),
                // No other option comes from a primary.
                None if is(b"REPLCONF") => return Ok(Some(ParsedUnit::GetAck)),
                None => return Ok(Some(ParsedUnit::One(bytes))),
            }
        }
    }

    /// Parses a command. Returns its place in the buffer; its words are in `args`.
    fn parse_command(&mut self) -> Result<Option<Range<usize>>, BadStream> {
        loop {
            self.args.clear();
            let start = self.n_parsed;
            match self.parser.parse(&mut self.buffer[start..], &mut self.args) {
                Ok(Parse::Incomplete { .. }) => return Ok(None),
                // An empty line keeps the link alive, and counts.
                Ok(Parse::Empty { consumed }) => self.count(consumed),
                Ok(Parse::Request { consumed }) => {
                    self.count(consumed);
                    return Ok(Some(start..start + consumed));
                }
                Err(error) => {
                    let text = String::from_utf8_lossy(&error.text()).into_owned();
                    return Err(BadStream(format!("the stream is damaged: {text}")));
                }
            }
        }
    }

    fn count(&mut self, n_bytes: usize) {
        self.n_parsed += n_bytes;
        self.offset += n_bytes as i64;
    }
}

/// A unit in the reader's own memory.
enum ParsedUnit {
    One(Range<usize>),
    Queue,
    GetAck,
    Ping,
}

/// Whether a command selects a database.
pub fn selects(words: Words<'_>) -> bool {
    words.len() == 2 && words.get(0).eq_ignore_ascii_case(b"SELECT")
}

/// Whether a command is only a sign of life.
pub fn is_idle(words: Words<'_>) -> bool {
    [&b"PING"[..], b"REPLCONF"].iter().any(|name| words.get(0).eq_ignore_ascii_case(name))
}

/// Whether a command says a deadline as a duration. Primaries before Redis 7 send such commands.
pub fn says_duration(words: Words<'_>) -> bool {
    const ALWAYS: [&[u8]; 6] = [b"EXPIRE", b"PEXPIRE", b"SETEX", b"PSETEX", b"HEXPIRE", b"HPEXPIRE"];
    let name = words.get(0);
    let is = |word: &[u8], other: &[u8]| word.eq_ignore_ascii_case(other);
    let has = |from: usize, option: &[u8]| words.iter().skip(from).any(|word| is(word, option));
    ALWAYS.iter().any(|always| is(name, always))
        || is(name, b"SET") && (has(3, b"EX") || has(3, b"PX"))
        || is(name, b"GETEX") && (has(2, b"EX") || has(2, b"PX"))
        || is(name, b"RESTORE") && words.len() > 3 && parse_i64(words.get(2)) != Some(0) && !has(4, b"ABSTTL")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replication::replica::greeting::request;

    /// The units of a stream in words, each with its end, fed in pieces of `n` bytes.
    fn units(stream: &[u8], n: usize) -> (Vec<(String, i64)>, Option<BadStream>) {
        let mut reader = UnitReader::new(100);
        let (mut units, mut n_bytes) = (Vec::new(), 0);
        let text = |words: Words<'_>| {
            let words: Vec<_> = words.iter().map(|word| String::from_utf8_lossy(word).into_owned()).collect();
            words.join(" ")
        };
        for piece in stream.chunks(n) {
            reader.feed(piece);
            loop {
                match reader.next_unit() {
                    Ok(None) => break,
                    Err(bad) => return (units, Some(bad)),
                    Ok(Some(StreamUnit { content, bytes, end })) => {
                        assert!(stream[..(end - 100) as usize].ends_with(bytes));
                        n_bytes += bytes.len();
                        assert_eq!(100 + n_bytes as i64, end, "no byte belongs to no unit");
                        let content = match content {
                            UnitContent::One(words) => text(words),
                            UnitContent::Queue(queue) => {
                                queue.iter_from(0).map(text).collect::<Vec<_>>().join("; ")
                            }
                            UnitContent::GetAck => "(getack)".to_owned(),
                            UnitContent::Ping => "(ping)".to_owned(),
                        };
                        units.push((content, end));
                    }
                }
            }
        }
        (units, None)
    }

    #[test]
    fn units_and_their_ends_are_the_same_however_the_stream_is_cut() {
        let parts: [&[&[u8]]; 9] = [
            &[b"SELECT", b"3"],
            &[b"set", b"k", b"v\r\n"],
            &[b"multi"],
            &[b"INCR", b"n"],
            &[b"SELECT", b"4"],
            &[b"DEL", b"k"],
            &[b"EXEC"],
            &[b"REPLCONF", b"GETACK", b"*"],
            &[b"PING"],
        ];
        let bytes: Vec<Vec<u8>> = parts.iter().map(|words| request(words)).collect();
        let end = |n: usize| 100 + bytes[..n].concat().len() as i64;
        let stream = [bytes.concat(), b"\n\n".to_vec(), request(&[b"DEL", b"a"])].concat();
        let expected = [
            ("SELECT 3".to_owned(), end(1)),
            ("set k v\r\n".to_owned(), end(2)),
            ("INCR n; SELECT 4; DEL k".to_owned(), end(7)),
            ("(getack)".to_owned(), end(8)),
            ("(ping)".to_owned(), end(9)),
            ("DEL a".to_owned(), 100 + stream.len() as i64),
        ];
        for n in 1..=stream.len() {
            assert_eq!(units(&stream, n), (expected.to_vec(), None), "{n}");
        }
    }

    #[test]
    fn half_a_transaction_is_no_unit() {
        let whole = [request(&[b"DEL", b"a"]), request(&[b"MULTI"]), request(&[b"DEL", b"b"])].concat();
        let (units, _) = units(&whole, 1000);
        assert_eq!(units.len(), 1);
        assert_eq!(units[0].1, 100 + request(&[b"DEL", b"a"]).len() as i64);
    }

    #[test]
    fn a_damaged_stream_is_told_from_an_incomplete_one() {
        for (stream, expected) in [
            (&b"*1\r\n+x\r\n"[..], "expected '$'"),
            (b"*x\r\n", "invalid multibulk length"),
            (b"*1\r\n$4\r\nEXEC\r\n", "EXEC without MULTI"),
            (b"*1\r\n$5\r\nMULTI\r\n*1\r\n$5\r\nMULTI\r\n", "MULTI within"),
        ] {
            let (_, bad) = units(stream, 3);
            assert!(bad.as_ref().is_some_and(|bad| bad.0.contains(expected)), "{expected}: {bad:?}");
        }
    }

    #[test]
    fn durations_are_told_from_deadlines() {
        let says = |line: &str| {
            let words: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
            let mut bytes = request(&words);
            let mut args = Vec::new();
            let parsed = RequestParser::default().parse(&mut bytes, &mut args);
            assert!(matches!(parsed, Ok(Parse::Request { .. })));
            says_duration(Words::new(&bytes, &args))
        };
        for line in ["expire k 1", "SETEX k 1 v", "SET k v PX 5", "getex k ex 1", "RESTORE k 5 p"] {
            assert!(says(line), "{line}");
        }
        for line in
            ["PEXPIREAT k 1", "SET k EX", "SET k v PXAT 5", "RESTORE k 0 p", "RESTORE k 5 p ABSTTL", "DEL ex"]
        {
            assert!(!says(line), "{line}");
        }
    }

    #[test]
    fn the_memory_of_long_commands_is_given_back_at_once() {
        let mut reader = UnitReader::new(0);
        let value = vec![b'x'; 8 << 20];
        for words in [&[&b"SET"[..], b"a", &value][..], &[b"MULTI"], &[b"SET", b"a", &value], &[b"EXEC"]] {
            reader.feed(&request(words));
        }
        while reader.next_unit().expect("it is sound").is_some() {}
        assert!(reader.buffer.capacity() <= 2 * KEPT_BYTES);
        assert!(reader.complete.is_empty());
    }
}
