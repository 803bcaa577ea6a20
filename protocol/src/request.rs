//! The request parser: finds the arguments of commands in a client's bytes, without copying them.
//!
//! A request is `*N` followed by N bulk strings, or one line of words (an inline command, as typed into
//! telnet). The parser returns ranges of bytes that the caller owns. So a request that is complete in the
//! buffer costs no copy and no allocation.
//!
//! Of an incomplete request little is kept. Up to `RESTART_LIMIT` arguments, the parser forgets them and
//! starts over at the next call. It skips strings by their length, so that costs nanoseconds even for long
//! strings. With more arguments it keeps ranges and position on the heap and continues where it stopped.
//! Either way a call takes time proportional to the new bytes, plus a constant. Nothing is allocated for
//! announced numbers and lengths before the bytes have arrived.
//!
//! Like Redis, the parser does not check the two bytes that end a string, nor the byte after the `\r` of a
//! header.

use std::borrow::Cow;
use std::fmt;
use std::ops::Range;

use memchr::memchr;

use crate::{bytes::is_same, number};

/// The longest inline command or header line, without its end (PROTO_INLINE_MAX_SIZE).
pub const MAX_LINE_BYTES: usize = 64 * 1024;
/// The most arguments of a request: Redis's limit since 7.0.
pub const MAX_ARGS: u32 = i32::MAX as u32;
/// The most arguments of a request before authentication.
pub const MAX_UNAUTHENTICATED_ARGS: u32 = 10;
/// The longest argument before authentication, in bytes.
pub const MAX_UNAUTHENTICATED_BULK_BYTES: u64 = 16384;
/// The most bytes of a request: arguments are ranges of 32 bits.
pub const MAX_REQUEST_BYTES: usize = u32::MAX as usize;

/// The most arguments of an incomplete request that is parsed anew with more bytes.
const RESTART_LIMIT: usize = 16;

/// One argument of a request: a range relative to the request's first byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arg {
    /// The offset of the argument.
    pub start: u32,
    /// The length of the argument.
    pub len: u32,
}

impl Arg {
    /// The range as indices.
    #[inline]
    pub fn range(self) -> Range<usize> {
        self.start as usize..self.start as usize + self.len as usize
    }

    /// The bytes of the argument in `request`.
    ///
    /// # Panics
    ///
    /// If `request` is shorter than the argument's range.
    #[inline]
    pub fn of(self, request: &[u8]) -> &[u8] {
        &request[self.range()]
    }
}

/// The words of one command, the name first.
///
/// They lie in the buffer in which they arrived, or where a script has put them.
#[derive(Clone, Copy)]
pub struct Words<'a> {
    bytes: &'a [u8],
    ranges: &'a [Arg],
}

impl<'a> Words<'a> {
    /// The words at `ranges` of `bytes`.
    #[inline]
    pub fn new(bytes: &'a [u8], ranges: &'a [Arg]) -> Self {
        Self { bytes, ranges }
    }

    /// The number of words, including the name.
    #[inline]
    pub fn len(self) -> usize {
        self.ranges.len()
    }

    /// Whether there are no words.
    #[inline]
    pub fn is_empty(self) -> bool {
        self.ranges.is_empty()
    }

    /// The word at `index`.
    #[inline]
    pub fn get(self, index: usize) -> &'a [u8] {
        self.ranges[index].of(self.bytes)
    }

    /// The words from index `n` on.
    ///
    /// # Panics
    /// If there are fewer than `n`.
    #[inline]
    pub fn from(self, n: usize) -> Self {
        Self { bytes: self.bytes, ranges: &self.ranges[n..] }
    }

    /// The offset of the word at `index` in the bytes.
    #[inline]
    pub fn offset(self, index: usize) -> usize {
        self.ranges[index].start as usize
    }

    /// All words.
    #[inline]
    pub fn iter(self) -> impl ExactSizeIterator<Item = &'a [u8]> {
        self.ranges.iter().map(move |range| range.of(self.bytes))
    }

    /// The most bytes that the request can have.
    ///
    /// It has exactly this many if it is alone in its buffer.
    #[inline]
    pub fn most_bytes(self) -> usize {
        self.bytes.len()
    }

    /// The length of the words as a request of the protocol, in bytes.
    pub fn request_bytes(self) -> usize {
        // A sigil, a length in decimal, and an end of line.
        let header = |n: usize| 3 + n.checked_ilog10().unwrap_or(0) as usize + 1;
        header(self.len()) + self.iter().map(|word| header(word.len()) + word.len() + 2).sum::<usize>()
    }

    /// The request's bytes, and the ranges of the words in them.
    #[inline]
    pub fn parts(self) -> (&'a [u8], &'a [Arg]) {
        (self.bytes, self.ranges)
    }
}

/// The limits for a client's requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The longest argument in bytes (`proto-max-bulk-len`).
    pub max_bulk_bytes: u64,
    /// Whether the client is free of the tight limits before authentication.
    pub authenticated: bool,
}

impl Default for Limits {
    fn default() -> Self {
        Limits { max_bulk_bytes: 512 * 1024 * 1024, authenticated: true }
    }
}

impl Limits {
    fn longest_bulk(self) -> u64 {
        if self.authenticated {
            self.max_bulk_bytes
        } else {
            self.max_bulk_bytes.min(MAX_UNAUTHENTICATED_BULK_BYTES)
        }
    }
}

/// The outcome of one call of [`RequestParser::parse`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parse {
    /// A request is complete and its arguments, at least one, have been appended.
    Request {
        /// The length of the request. The next request starts after it.
        consumed: usize,
    },
    /// The request continues after the end of the input.
    Incomplete {
        /// The least number of missing bytes: for a long string all of them.
        wanted: usize,
    },
    /// A request without arguments (`*0`, `*-1`, a blank line), to which there is no reply.
    Empty {
        /// The number of bytes to skip.
        consumed: usize,
    },
}

/// An error in a request. The connection cannot be used any further.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProtocolError {
    /// The text after `*` is not a number, or too large a number.
    InvalidMultibulkLength,
    /// The text after `$` is not a number, is negative, or exceeds the longest argument.
    InvalidBulkLength,
    /// An argument starts with this byte instead of `$`.
    ExpectedDollar(u8),
    /// A line that starts with `*` does not end.
    TooBigMultibulkCount,
    /// The line that announces an argument does not end.
    TooBigBulkCount,
    /// An inline command does not end.
    TooBigInline,
    /// A quote in an inline command is not closed, or text touches its closing quote.
    UnbalancedQuotes,
    /// Too many arguments before authentication.
    UnauthenticatedMultibulkLength,
    /// Too long an argument before authentication.
    UnauthenticatedBulkLength,
    /// The request is longer than [`MAX_REQUEST_BYTES`].
    TooBigRequest,
}

impl ProtocolError {
    /// The text that Redis sends after `-ERR Protocol error: `.
    ///
    /// It is not always UTF-8, because it may quote a byte of the client.
    pub fn text(self) -> Cow<'static, [u8]> {
        let text: &'static str = match self {
            ProtocolError::InvalidMultibulkLength => "invalid multibulk length",
            ProtocolError::InvalidBulkLength => "invalid bulk length",
            ProtocolError::ExpectedDollar(byte) => {
                return [b"expected '$', got '", &[byte][..], b"'"].concat().into();
            }
            ProtocolError::TooBigMultibulkCount => "too big mbulk count string",
            ProtocolError::TooBigBulkCount => "too big bulk count string",
            ProtocolError::TooBigInline => "too big inline request",
            ProtocolError::UnbalancedQuotes => "unbalanced quotes in request",
            ProtocolError::UnauthenticatedMultibulkLength => "unauthenticated multibulk length",
            ProtocolError::UnauthenticatedBulkLength => "unauthenticated bulk length",
            ProtocolError::TooBigRequest => "too big request",
        };
        text.as_bytes().into()
    }
}

impl fmt::Display for ProtocolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&String::from_utf8_lossy(&self.text()))
    }
}

impl std::error::Error for ProtocolError {}

/// A parser for one client's requests, one after the other.
#[derive(Debug, Default)]
pub struct RequestParser {
    limits: Limits,
    /// The start of a line without an end, and the offset of its search.
    ///
    /// Both are zero between requests.
    line_start: u32,
    searched: u32,
    partial: Option<Box<Partial>>,
    /// The number of parsed bytes of an incomplete request.
    parsed: u32,
}

/// The beginning of a request, with which other requests are expected to begin too.
///
/// A pipeline mostly repeats one command.
#[derive(Clone, Copy, Debug)]
pub struct Pattern {
    /// The offsets of the request and of its second argument in the input.
    start: usize,
    second_at: usize,
    first: Arg,
    second: Arg,
    n_further: u32,
}

impl Pattern {
    /// The pattern of a request that starts at `start` of the input.
    ///
    /// `None` if it is an inline command or has fewer than two arguments.
    #[inline]
    pub fn of(input: &[u8], start: usize, args: &[Arg]) -> Option<Self> {
        let [first, second, further @ ..] = args else { return None };
        (input[start] == b'*').then_some(Self {
            start,
            second_at: start + second.start as usize,
            first: *first,
            second: *second,
            n_further: further.len() as u32,
        })
    }

    /// Whether a request begins as this one of `input` does.
    #[inline(always)]
    fn begins(&self, request: &[u8], input: &[u8]) -> bool {
        let beginning = &input[self.start..self.second_at];
        request.get(..beginning.len()).is_some_and(|other| is_same(other, beginning))
    }
}

/// The parsed part of an incomplete request with many arguments.
#[derive(Debug)]
struct Partial {
    args: Vec<Arg>,
    cursor: Cursor,
}

/// The offset of a request's next argument, and the number of arguments to come.
#[derive(Clone, Copy, Debug)]
struct Cursor {
    at: usize,
    n_remaining: u32,
}

/// The start and length of a string.
struct Announced {
    start: usize,
    len: usize,
}

impl RequestParser {
    /// Creates a parser at the start of a request.
    pub fn new(limits: Limits) -> Self {
        RequestParser { limits, ..RequestParser::default() }
    }

    /// The limits in force.
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// Sets the limits from the next request on. Callers use it only between requests.
    pub fn set_limits(&mut self, limits: Limits) {
        self.limits = limits;
    }

    /// Lifts the limits that hold before authentication, or imposes them again.
    pub fn set_authenticated(&mut self, authenticated: bool) {
        self.limits.authenticated = authenticated;
    }

    /// Forgets the incomplete request: the next bytes begin a request that was already complete.
    ///
    /// A caller uses this if it has parsed ahead and returns to run the parsed requests later.
    pub fn rewind(&mut self) {
        self.partial = None;
        self.finish_lines();
    }

    /// Whether heap memory is kept for an incomplete request.
    pub fn holds_memory(&self) -> bool {
        self.partial.is_some()
    }

    /// The number of parsed bytes of an incomplete request.
    ///
    /// These are all bytes up to the first one of the argument that is incomplete. The number has a meaning
    /// only after [`Parse::Incomplete`].
    pub fn parsed_bytes(&self) -> usize {
        self.parsed as usize
    }

    /// Parses the request that starts at the first byte of `input`.
    ///
    /// The arguments of a complete request are appended to `args`. Otherwise `args` is left unchanged. After
    /// [`Parse::Incomplete`] the caller calls again with the same bytes and more after them.
    ///
    /// Quotes and escapes of an inline command are resolved **in place**, so that its arguments, too, are
    /// ranges of `input`. Hence the bytes of a complete request cannot be parsed a second time.
    ///
    /// # Errors
    ///
    /// The limits and the texts are those of Redis. The parser must not be used after an error.
    #[inline]
    pub fn parse(&mut self, input: &mut [u8], args: &mut Vec<Arg>) -> Result<Parse, ProtocolError> {
        match input.first() {
            Some(b'*') if self.partial.is_none() => self.multibulk(input, args),
            Some(b'*') => self.resume(input, args),
            Some(_) => self.inline(input, args),
            None => Ok(Parse::Incomplete { wanted: 1 }),
        }
    }

    /// Parses the request at `at`, if it begins like an earlier one.
    ///
    /// The earlier one is in the same input. The compared bytes reach up to the second argument, so that has
    /// the same length in both. Returns the length of the request.
    ///
    /// If the request begins differently, is incomplete or has an error, this does nothing.
    /// [`RequestParser::parse`] then finds the reason. The parser must be at the start of a request.
    #[inline]
    pub fn parse_alike(
        &mut self,
        pattern: &Pattern,
        input: &[u8],
        at: usize,
        args: &mut Vec<Arg>,
    ) -> Option<usize> {
        debug_assert!(
            self.partial.is_none(),
            "the earlier request was complete, and so is what lies between"
        );
        let request = &input[at..];
        let second_end = pattern.second.start as usize + pattern.second.len as usize + 2;
        if second_end > request.len() || !pattern.begins(request, input) {
            return None;
        }
        let first = args.len();
        args.extend_from_slice(&[pattern.first, pattern.second]);
        let mut cursor = Cursor { at: second_end, n_remaining: pattern.n_further };
        if pattern.n_further > 0 && self.bulks(request, &mut cursor, args) != Ok(None) {
            args.truncate(first);
            return None;
        }
        Some(cursor.at)
    }

    fn multibulk(&mut self, input: &[u8], args: &mut Vec<Arg>) -> Result<Parse, ProtocolError> {
        let (n_remaining, at) = match quick_header(input, b'*') {
            Some((n, bytes)) if n > 0 && (n <= MAX_UNAUTHENTICATED_ARGS || self.limits.authenticated) => {
                (n, bytes)
            }
            _ => match self.multibulk_header(input)? {
                Some((0, consumed)) => {
                    self.finish_lines();
                    return Ok(Parse::Empty { consumed });
                }
                Some(header) => header,
                None => {
                    self.parsed = 0;
                    return Ok(Parse::Incomplete { wanted: 1 });
                }
            },
        };
        let first = args.len();
        let mut cursor = Cursor { at, n_remaining };
        match self.bulks(input, &mut cursor, args) {
            Ok(None) => {
                self.finish_lines();
                Ok(Parse::Request { consumed: cursor.at })
            }
            Ok(Some(wanted)) => {
                self.put_aside(first, cursor, args);
                Ok(Parse::Incomplete { wanted })
            }
            Err(error) => {
                args.truncate(first);
                Err(error)
            }
        }
    }

    /// Moves the arguments of an incomplete request from `first` on out of `args`.
    ///
    /// Only more than [`RESTART_LIMIT`] arguments are kept.
    #[cold]
    fn put_aside(&mut self, first: usize, cursor: Cursor, args: &mut Vec<Arg>) {
        if args.len() - first > RESTART_LIMIT {
            self.partial = Some(Box::new(Partial { args: args[first..].to_vec(), cursor }));
        }
        args.truncate(first);
    }

    #[cold]
    fn resume(&mut self, input: &[u8], args: &mut Vec<Arg>) -> Result<Parse, ProtocolError> {
        let mut partial = self.partial.take().expect("an incomplete request has been put aside");
        match self.bulks(input, &mut partial.cursor, &mut partial.args)? {
            None => {
                args.extend_from_slice(&partial.args);
                self.finish_lines();
                Ok(Parse::Request { consumed: partial.cursor.at })
            }
            Some(wanted) => {
                self.partial = Some(partial);
                Ok(Parse::Incomplete { wanted })
            }
        }
    }

    /// Reads arguments until none remains, or until the input ends.
    ///
    /// In the second case it returns the least number of missing bytes.
    #[inline]
    fn bulks(
        &mut self,
        input: &[u8],
        cursor: &mut Cursor,
        args: &mut Vec<Arg>,
    ) -> Result<Option<usize>, ProtocolError> {
        let longest = self.limits.longest_bulk();
        while cursor.n_remaining > 0 {
            let Announced { start, len } = match quick_header(&input[cursor.at..], b'$') {
                Some((len, bytes)) if u64::from(len) <= longest => {
                    Announced { start: cursor.at + bytes, len: len as usize }
                }
                _ => match self.bulk_header(input, cursor.at)? {
                    Some(announced) => announced,
                    None => {
                        self.parsed = cursor.at as u32;
                        return Ok(Some(1));
                    }
                },
            };
            let next = start + len + 2;
            if next > input.len().min(MAX_REQUEST_BYTES) {
                self.parsed = start as u32;
                return missing(next, input.len()).map(Some);
            }
            args.push(Arg { start: start as u32, len: len as u32 });
            cursor.at = next;
            cursor.n_remaining -= 1;
        }
        Ok(None)
    }

    /// Reads any `*` line: the number of arguments and the offset of the first.
    ///
    /// A negative number counts as zero.
    #[cold]
    fn multibulk_header(&mut self, input: &[u8]) -> Result<Option<(u32, usize)>, ProtocolError> {
        let Some(end) = self.header_end(input, 0, ProtocolError::TooBigMultibulkCount)? else {
            return Ok(None);
        };
        let n = number::parse_i64(&input[1..end]).ok_or(ProtocolError::InvalidMultibulkLength)?;
        if n > i64::from(MAX_ARGS) {
            return Err(ProtocolError::InvalidMultibulkLength);
        }
        if n > i64::from(MAX_UNAUTHENTICATED_ARGS) && !self.limits.authenticated {
            return Err(ProtocolError::UnauthenticatedMultibulkLength);
        }
        Ok(Some((n.max(0) as u32, end + 2)))
    }

    /// Reads any `$` line.
    #[cold]
    fn bulk_header(&mut self, input: &[u8], at: usize) -> Result<Option<Announced>, ProtocolError> {
        let Some(end) = self.header_end(input, at, ProtocolError::TooBigBulkCount)? else { return Ok(None) };
        if input[at] != b'$' {
            return Err(ProtocolError::ExpectedDollar(input[at]));
        }
        let len = number::parse_u64(&input[at + 1..end]).ok_or(ProtocolError::InvalidBulkLength)?;
        if len > self.limits.max_bulk_bytes {
            return Err(ProtocolError::InvalidBulkLength);
        }
        if len > self.limits.longest_bulk() {
            return Err(ProtocolError::UnauthenticatedBulkLength);
        }
        if len > MAX_REQUEST_BYTES as u64 {
            return Err(ProtocolError::TooBigRequest);
        }
        Ok(Some(Announced { start: end + 2, len: len as usize }))
    }

    /// Finds the `\r` of the line at `at`, if the byte after it has arrived.
    fn header_end(
        &mut self,
        input: &[u8],
        at: usize,
        too_big: ProtocolError,
    ) -> Result<Option<usize>, ProtocolError> {
        Ok(self.line_end(input, at, b'\r', too_big)?.filter(|end| end + 2 <= input.len()))
    }

    /// Finds the first `terminator` of the line at `at`, and stores the search's position.
    fn line_end(
        &mut self,
        input: &[u8],
        at: usize,
        terminator: u8,
        too_big: ProtocolError,
    ) -> Result<Option<usize>, ProtocolError> {
        let window = &input[..input.len().min(at + MAX_LINE_BYTES + 1)];
        let from = if self.line_start as usize == at { at.max(self.searched as usize) } else { at };
        if let Some(i) = window.get(from..).and_then(|unsearched| memchr(terminator, unsearched)) {
            return Ok(Some(from + i));
        }
        if window.len() > at + MAX_LINE_BYTES {
            return Err(too_big);
        }
        if window.len() > MAX_REQUEST_BYTES {
            return Err(ProtocolError::TooBigRequest);
        }
        (self.line_start, self.searched) = (at as u32, window.len() as u32);
        Ok(None)
    }

    #[inline]
    fn finish_lines(&mut self) {
        (self.line_start, self.searched) = (0, 0);
    }

    #[cold]
    fn inline(&mut self, input: &mut [u8], args: &mut Vec<Arg>) -> Result<Parse, ProtocolError> {
        let Some(newline) = self.line_end(input, 0, b'\n', ProtocolError::TooBigInline)? else {
            self.parsed = 0;
            return Ok(Parse::Incomplete { wanted: 1 });
        };
        self.finish_lines();
        let consumed = newline + 1;
        let line = &mut input[..newline];
        let first = args.len();
        if let Err(error) = split_words(line, args) {
            args.truncate(first);
            return Err(error);
        }
        Ok(if args.len() == first { Parse::Empty { consumed } } else { Parse::Request { consumed } })
    }
}

/// Reads `<sigil>N\r.` with N of one to eight digits: the number and the header's length.
///
/// Everything else (errors, incomplete headers, long numbers) is left to the complete readers.
#[inline]
fn quick_header(input: &[u8], sigil: u8) -> Option<(u32, usize)> {
    // No request ends with a header of fewer than six bytes. So one check covers headers of one and two
    // digits.
    let head = input.first_chunk::<6>()?;
    let first = head[1].wrapping_sub(b'0');
    if head[0] != sigil || first > 9 {
        return None;
    }
    if head[2] == b'\r' {
        return Some((u32::from(first), 4));
    }
    let second = head[2].wrapping_sub(b'0');
    if first == 0 || second > 9 {
        return None;
    }
    let value = u32::from(first) * 10 + u32::from(second);
    if head[3] == b'\r' { Some((value, 5)) } else { longer_header(input, value) }
}

/// Continues with the third digit of a header.
#[inline]
fn longer_header(input: &[u8], mut value: u32) -> Option<(u32, usize)> {
    for at in 3..10 {
        let digit = input.get(at)?.wrapping_sub(b'0');
        if digit > 9 {
            return (digit == b'\r'.wrapping_sub(b'0') && input.len() >= at + 2).then_some((value, at + 2));
        }
        value = value * 10 + u32::from(digit);
    }
    None
}

/// The number of missing bytes of a request that ends at `end` or later.
#[cold]
fn missing(end: usize, available: usize) -> Result<usize, ProtocolError> {
    if end > MAX_REQUEST_BYTES { Err(ProtocolError::TooBigRequest) } else { Ok(end - available) }
}

/// Splits an inline command into words and resolves its quotes in place.
///
/// A word never grows.
fn split_words(line: &mut [u8], args: &mut Vec<Arg>) -> Result<(), ProtocolError> {
    let mut at = 0;
    loop {
        while line.get(at).copied().is_some_and(is_space) {
            at += 1;
        }
        if at == line.len() {
            return Ok(());
        }
        let mut word = Word { line, read: at, written: at };
        word.resolve()?;
        args.push(Arg { start: at as u32, len: (word.written - at) as u32 });
        at = word.read;
    }
}

/// One word of an inline command, whose quotes and escapes are removed in place.
struct Word<'a> {
    line: &'a mut [u8],
    read: usize,
    written: usize,
}

impl Word<'_> {
    fn resolve(&mut self) -> Result<(), ProtocolError> {
        while let Some(byte) = self.peek(0) {
            match byte {
                b' ' | b'\t' | b'\r' | b'\n' => break,
                b'"' => return self.quoted(b'"'),
                b'\'' => return self.quoted(b'\''),
                _ => self.write(byte, 1),
            }
        }
        Ok(())
    }

    /// Reads up to the closing quote, which ends the word.
    fn quoted(&mut self, quote: u8) -> Result<(), ProtocolError> {
        self.read += 1;
        while let Some(byte) = self.peek(0) {
            match (byte, self.peek(1)) {
                (b'\\', Some(b'\'')) if quote == b'\'' => self.write(b'\'', 2),
                (b'\\', Some(next)) if quote == b'"' => self.escaped(next),
                _ if byte == quote => {
                    self.read += 1;
                    let ends = self.peek(0).is_none_or(is_space);
                    return if ends { Ok(()) } else { Err(ProtocolError::UnbalancedQuotes) };
                }
                _ => self.write(byte, 1),
            }
        }
        Err(ProtocolError::UnbalancedQuotes)
    }

    /// Resolves a backslash followed by `next` between double quotes.
    fn escaped(&mut self, next: u8) {
        let nibble = |ahead| self.peek(ahead).and_then(|digit| (digit as char).to_digit(16));
        if let (b'x', Some(high), Some(low)) = (next, nibble(2), nibble(3)) {
            return self.write((high * 16 + low) as u8, 4);
        }
        let byte = match next {
            b'n' => b'\n',
            b'r' => b'\r',
            b't' => b'\t',
            b'b' => 0x08,
            b'a' => 0x07,
            _ => next,
        };
        self.write(byte, 2);
    }

    fn peek(&self, ahead: usize) -> Option<u8> {
        self.line.get(self.read + ahead).copied()
    }

    /// Appends `byte`, which stands for the next `n_read` bytes of the line.
    fn write(&mut self, byte: u8, n_read: usize) {
        self.line[self.written] = byte;
        self.written += 1;
        self.read += n_read;
    }
}

/// C's `isspace`.
fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | 0x0b | 0x0c | b'\r')
}

/// Appends a request of bulk strings, as clients send it.
pub fn write_request<A: AsRef<[u8]>>(out: &mut Vec<u8>, args: &[A]) {
    write_words(out, args.len(), args.iter().map(AsRef::as_ref));
}

/// Appends a request of `n` bulk strings, as clients send it.
pub fn write_words<'w>(out: &mut Vec<u8>, n: usize, words: impl Iterator<Item = &'w [u8]>) {
    write_header(out, b'*', n);
    for arg in words {
        out.reserve(arg.len() + 16);
        write_header(out, b'$', arg.len());
        out.extend_from_slice(arg);
        out.extend_from_slice(b"\r\n");
    }
}

/// Appends a line of a sigil and a count.
#[inline(always)]
pub(crate) fn write_header(out: &mut Vec<u8>, sigil: u8, n: usize) {
    if n < 10 {
        out.extend_from_slice(&[sigil, b'0' + n as u8, b'\r', b'\n']);
    } else if n < 100 {
        out.extend_from_slice(&[sigil, b'0' + (n / 10) as u8, b'0' + (n % 10) as u8, b'\r', b'\n']);
    } else {
        write_long_header(out, sigil, n);
    }
}

#[inline(never)]
fn write_long_header(out: &mut Vec<u8>, sigil: u8, n: usize) {
    out.push(sigil);
    out.extend_from_slice(itoa::Buffer::new().format(n).as_bytes());
    out.extend_from_slice(b"\r\n");
}
