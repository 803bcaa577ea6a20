//! Replies as clients read them: parsed into values, or skipped without building any.
//!
//! Finding a reply's end needs no stack. It is a count of the values still to come, which an aggregate
//! raises. So the parser first finds the end, resumably, and builds the tree once all bytes are there. An
//! announced length therefore never makes it allocate more than the received bytes justify.

use std::fmt;

use memchr::memchr;

use crate::number;

/// The longest accepted string: 512 MiB, Redis's own limit.
pub const MAX_BULK_BYTES: u64 = 512 * 1024 * 1024;
/// The deepest accepted nesting of aggregates.
pub const MAX_DEPTH: usize = 128;
/// The most values in one reply, at all depths.
pub const MAX_VALUES: u64 = u32::MAX as u64;

/// A reply of either version of the protocol.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// `+`: a line of text.
    Simple(Vec<u8>),
    /// `-` or `!`: an error's text, code included.
    Error(Vec<u8>),
    /// `:`: an integer.
    Integer(i64),
    /// `$`: a string of bytes.
    Bulk(Vec<u8>),
    /// `_`: RESP3's null.
    Null,
    /// `$-1`: RESP2's null in place of a value.
    NullBulk,
    /// `*-1`: RESP2's null in place of an array.
    NullArray,
    /// `*`: an array.
    Array(Vec<Value>),
    /// `%`: pairs, in the order sent.
    Map(Vec<(Value, Value)>),
    /// `~`: a set.
    Set(Vec<Value>),
    /// `>`: a message that answers no request.
    Push(Vec<Value>),
    /// `,`: a double.
    Double(f64),
    /// `#t` or `#f`: a boolean.
    Boolean(bool),
    /// `(`: an integer of any size, in decimal.
    BigNumber(Vec<u8>),
    /// `=`: text, with a format of three letters.
    Verbatim([u8; 3], Vec<u8>),
    /// `|`: pairs that describe the next value, and that value.
    Attribute(Vec<(Value, Value)>, Box<Value>),
}

impl Value {
    /// Whether this is one of the three nulls.
    pub fn is_null(&self) -> bool {
        matches!(self, Value::Null | Value::NullBulk | Value::NullArray)
    }

    /// The bytes of a string, a line or a verbatim text.
    pub fn as_bytes(&self) -> Option<&[u8]> {
        match self {
            Value::Simple(bytes) | Value::Bulk(bytes) | Value::Verbatim(_, bytes) => Some(bytes),
            _ => None,
        }
    }

    /// The elements of an array, a set or a message.
    pub fn as_array(&self) -> Option<&[Value]> {
        match self {
            Value::Array(values) | Value::Set(values) | Value::Push(values) => Some(values),
            _ => None,
        }
    }
}

/// An error in a reply. The connection cannot be used any further.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplyError {
    /// No reply starts with this byte.
    UnknownType(u8),
    /// A number, length, boolean or verbatim text is malformed.
    ///
    /// So is a line that does not end in `\r\n`.
    Malformed,
    /// A string is longer than [`MAX_BULK_BYTES`].
    TooLong,
    /// The reply has more than [`MAX_VALUES`] values.
    TooManyValues,
    /// Aggregates nest deeper than [`MAX_DEPTH`].
    TooDeep,
}

impl fmt::Display for ReplyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ReplyError::UnknownType(byte) => write!(f, "no reply starts with '{}'", byte.escape_ascii()),
            ReplyError::Malformed => f.write_str("malformed reply"),
            ReplyError::TooLong => f.write_str("string too long"),
            ReplyError::TooManyValues => f.write_str("too many values in a reply"),
            ReplyError::TooDeep => f.write_str("reply nested too deep"),
        }
    }
}

impl std::error::Error for ReplyError {}

/// Parses the reply at the start of `input`, and returns the value and its length.
///
/// `None` if the reply is incomplete. For bytes that arrive in pieces use a [`ReplyParser`], which does not
/// start over.
///
/// # Errors
///
/// If the bytes are not a reply, or the reply exceeds a limit of this module.
pub fn parse_reply(input: &[u8]) -> Result<Option<(Value, usize)>, ReplyError> {
    ReplyParser::default().parse(input)
}

/// Returns the length of the reply at the start of `input`.
///
/// `None` if it is incomplete or not a reply. This allocates nothing. For bytes that arrive in pieces use a
/// [`ReplySkipper`], which does not start over.
pub fn skip_reply(input: &[u8]) -> Option<usize> {
    ReplySkipper::default().skip(input).ok().flatten()
}

/// A parser for one server's replies, one after the other.
#[derive(Debug, Default)]
pub struct ReplyParser {
    skipper: ReplySkipper,
}

impl ReplyParser {
    /// Parses the reply at the start of `input`, and returns the value and its length.
    ///
    /// `None` if the reply is incomplete: the caller then calls again with the same bytes and more after
    /// them.
    ///
    /// # Errors
    ///
    /// If the bytes are not a reply, or the reply exceeds a limit of this module. The parser must not be used
    /// after an error.
    pub fn parse(&mut self, input: &[u8]) -> Result<Option<(Value, usize)>, ReplyError> {
        let Some(consumed) = self.skipper.skip(input)? else { return Ok(None) };
        let mut reader = Reader { input: &input[..consumed], at: 0 };
        let value = reader.value(MAX_DEPTH)?;
        debug_assert_eq!(reader.at, consumed, "the skipper and the reader agree on a reply's end");
        Ok(Some((value, consumed)))
    }
}

/// Finds where one server's replies end, one after the other.
#[derive(Debug)]
pub struct ReplySkipper {
    /// The offset up to which everything has been read.
    at: usize,
    /// The number of values still to come, including the one at `at`.
    n_pending: u64,
    /// The offset before which the line at `at` has no end.
    searched: usize,
}

impl Default for ReplySkipper {
    fn default() -> Self {
        ReplySkipper { at: 0, n_pending: 1, searched: 0 }
    }
}

impl ReplySkipper {
    /// Returns the length of the reply at the start of `input`.
    ///
    /// `None` if the reply is incomplete: the caller then calls again with the same bytes and more after
    /// them. The time is proportional to the number of new values, not to their bytes.
    ///
    /// # Errors
    ///
    /// If the bytes are not a reply. Depth, booleans, doubles and verbatim formats are not checked.
    pub fn skip(&mut self, input: &[u8]) -> Result<Option<usize>, ReplyError> {
        while self.n_pending > 0 {
            let rest = input.get(self.at..).unwrap_or_default();
            let Some((head, line)) = self.head(rest)? else { return Ok(None) };
            let bytes = match head {
                Head::Line => line,
                Head::Values(n) => {
                    self.n_pending = self.n_pending.saturating_add(n);
                    line
                }
                Head::Bytes(len) => line + len + 2,
            };
            if bytes > rest.len() {
                return Ok(None);
            }
            if self.n_pending > MAX_VALUES {
                return Err(ReplyError::TooManyValues);
            }
            if matches!(head, Head::Bytes(_)) && rest[bytes - 2..bytes] != *b"\r\n" {
                return Err(ReplyError::Malformed);
            }
            self.at += bytes;
            self.n_pending -= 1;
            self.searched = self.at;
        }
        let consumed = self.at;
        *self = ReplySkipper::default();
        Ok(Some(consumed))
    }

    /// Reads the first line of `rest`, and returns its announcement and its length.
    #[inline]
    fn head(&mut self, rest: &[u8]) -> Result<Option<(Head, usize)>, ReplyError> {
        let Some(&sigil) = rest.first() else { return Ok(None) };
        let from = (self.searched - self.at.min(self.searched)).min(rest.len());
        let Some(end) = memchr(b'\n', &rest[from..]).map(|i| from + i) else {
            self.searched = self.at + rest.len();
            return if is_sigil(sigil) { Ok(None) } else { Err(ReplyError::UnknownType(sigil)) };
        };
        let text = rest[1.min(end)..end].strip_suffix(b"\r").ok_or(ReplyError::Malformed)?;
        Ok(Some((Head::read(sigil, text)?, end + 1)))
    }
}

/// The announcement in the first line of a value.
#[derive(Clone, Copy)]
enum Head {
    /// The line is the value.
    Line,
    /// This many values belong to it, or follow as its own.
    Values(u64),
    /// A string of this length and `\r\n` follow.
    Bytes(usize),
}

impl Head {
    #[inline]
    fn read(sigil: u8, text: &[u8]) -> Result<Self, ReplyError> {
        match sigil {
            b':' => number::parse_i64(text.strip_prefix(b"+").unwrap_or(text))
                .map(|_| Head::Line)
                .ok_or(ReplyError::Malformed),
            b'+' | b'-' | b',' | b'#' | b'(' => Ok(Head::Line),
            b'_' if text.is_empty() => Ok(Head::Line),
            b'$' | b'*' if text == b"-1" => Ok(Head::Line),
            b'$' | b'=' | b'!' => {
                let len = count(text)?;
                if len > MAX_BULK_BYTES { Err(ReplyError::TooLong) } else { Ok(Head::Bytes(len as usize)) }
            }
            b'*' | b'~' | b'>' => count(text).map(Head::Values),
            b'%' => pairs(text).map(Head::Values),
            // An attribute is not a value of its own: the one that it describes follows.
            b'|' => pairs(text).map(|n| Head::Values(n + 1)),
            _ if is_sigil(sigil) => Err(ReplyError::Malformed),
            _ => Err(ReplyError::UnknownType(sigil)),
        }
    }
}

fn is_sigil(byte: u8) -> bool {
    b"+-:$*_,#(!=%~>|".contains(&byte)
}

fn count(text: &[u8]) -> Result<u64, ReplyError> {
    number::parse_u64(text).ok_or(ReplyError::Malformed)
}

/// The number of values in an announced number of pairs.
fn pairs(text: &[u8]) -> Result<u64, ReplyError> {
    let n = count(text)?;
    if n > MAX_VALUES { Err(ReplyError::TooManyValues) } else { Ok(n * 2) }
}

/// Builds values from a reply that is known to be complete.
struct Reader<'a> {
    input: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn value(&mut self, depth: usize) -> Result<Value, ReplyError> {
        let (sigil, text) = self.line();
        Ok(match sigil {
            b'+' => Value::Simple(text.to_vec()),
            b'-' => Value::Error(text.to_vec()),
            b':' => Value::Integer(
                number::parse_i64(text.strip_prefix(b"+").unwrap_or(text)).ok_or(ReplyError::Malformed)?,
            ),
            b'_' => Value::Null,
            b'$' if text == b"-1" => Value::NullBulk,
            b'*' if text == b"-1" => Value::NullArray,
            b'$' => Value::Bulk(self.bytes(text)?.to_vec()),
            b'!' => Value::Error(self.bytes(text)?.to_vec()),
            b'=' => match self.bytes(text)? {
                [a, b, c, b':', rest @ ..] => Value::Verbatim([*a, *b, *c], rest.to_vec()),
                _ => return Err(ReplyError::Malformed),
            },
            b',' => Value::Double(double(text)?),
            b'#' => Value::Boolean(match text {
                b"t" => true,
                b"f" => false,
                _ => return Err(ReplyError::Malformed),
            }),
            b'(' => Value::BigNumber(big_number(text)?.to_vec()),
            b'*' => Value::Array(self.values(text, depth)?),
            b'~' => Value::Set(self.values(text, depth)?),
            b'>' => Value::Push(self.values(text, depth)?),
            b'%' => Value::Map(self.pairs(text, depth)?),
            b'|' => {
                let about = self.pairs(text, depth)?;
                Value::Attribute(about, Box::new(self.value(below(depth)?)?))
            }
            _ => return Err(ReplyError::UnknownType(sigil)),
        })
    }

    /// Returns the next line's first byte and the rest. The skipper has seen its end.
    fn line(&mut self) -> (u8, &'a [u8]) {
        let rest = &self.input[self.at..];
        let end = memchr(b'\n', rest).expect("a complete reply's lines end");
        self.at += end + 1;
        (rest[0], &rest[1..end - 1])
    }

    fn bytes(&mut self, len: &[u8]) -> Result<&'a [u8], ReplyError> {
        let len = count(len)? as usize;
        let bytes = &self.input[self.at..self.at + len];
        self.at += len + 2;
        Ok(bytes)
    }

    /// Reads an aggregate's elements. All of them have arrived, which justifies the capacity.
    fn values(&mut self, n: &[u8], depth: usize) -> Result<Vec<Value>, ReplyError> {
        let (n, depth) = (count(n)? as usize, below(depth)?);
        let mut values = Vec::with_capacity(n);
        for _ in 0..n {
            values.push(self.value(depth)?);
        }
        Ok(values)
    }

    fn pairs(&mut self, n: &[u8], depth: usize) -> Result<Vec<(Value, Value)>, ReplyError> {
        let (n, depth) = (count(n)? as usize, below(depth)?);
        let mut pairs = Vec::with_capacity(n);
        for _ in 0..n {
            let key = self.value(depth)?;
            pairs.push((key, self.value(depth)?));
        }
        Ok(pairs)
    }
}

fn below(depth: usize) -> Result<usize, ReplyError> {
    depth.checked_sub(1).ok_or(ReplyError::TooDeep)
}

/// Parses a double. A server may send `nan`, although a client may not.
fn double(text: &[u8]) -> Result<f64, ReplyError> {
    let is_nan = text.eq_ignore_ascii_case(b"nan") || text.eq_ignore_ascii_case(b"-nan");
    if is_nan { Ok(f64::NAN) } else { number::parse_f64(text).ok_or(ReplyError::Malformed) }
}

fn big_number(text: &[u8]) -> Result<&[u8], ReplyError> {
    let digits = text.strip_prefix(b"-").or_else(|| text.strip_prefix(b"+")).unwrap_or(text);
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return Err(ReplyError::Malformed);
    }
    Ok(text)
}
