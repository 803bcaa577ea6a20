//! Replies as they arrive, in RESP2 and RESP3. Even the kinds of null are distinct.

use std::fmt;
use std::io::{self, BufRead, Error, ErrorKind};

/// One reply in its wire form.
#[derive(Clone, Debug, PartialEq)]
pub enum Reply {
    /// `+`
    Status(Vec<u8>),
    /// `-`, and RESP3's `!`
    Error(Vec<u8>),
    /// `:`
    Integer(i64),
    /// `$`
    Bulk(Vec<u8>),
    /// `$-1`
    Nil,
    /// `*-1`
    NilArray,
    /// `_`, the one null of RESP3
    Null,
    /// `*`
    Array(Vec<Reply>),
    /// `,` with its text
    Double(Vec<u8>),
    /// `#`
    Boolean(bool),
    /// `(`
    BigNumber(Vec<u8>),
    /// `=` with the three letters of its format
    Verbatim(Vec<u8>, Vec<u8>),
    /// `%`
    Map(Vec<(Reply, Reply)>),
    /// `~`
    Set(Vec<Reply>),
    /// `>`
    Push(Vec<Reply>),
    /// `|`, and the reply that it belongs to
    Attribute(Vec<(Reply, Reply)>, Box<Reply>),
}

impl Reply {
    /// Reads one whole reply.
    ///
    /// # Errors
    /// The errors of the input (`UnexpectedEof` if the server closed), and `InvalidData` for bytes that are
    /// not RESP.
    pub fn read(input: &mut impl BufRead) -> io::Result<Reply> {
        let line = read_line(input)?;
        let Some((&kind, rest)) = line.split_first() else {
            return Err(malformed(&line));
        };
        Ok(match kind {
            b'+' => Reply::Status(rest.to_vec()),
            b'-' => Reply::Error(rest.to_vec()),
            b':' => Reply::Integer(number(rest)?),
            b',' => Reply::Double(rest.to_vec()),
            b'(' => Reply::BigNumber(rest.to_vec()),
            b'_' if rest.is_empty() => Reply::Null,
            b'#' if rest == b"t" => Reply::Boolean(true),
            b'#' if rest == b"f" => Reply::Boolean(false),
            b'$' if rest == b"-1" => Reply::Nil,
            b'*' if rest == b"-1" => Reply::NilArray,
            b'$' => Reply::Bulk(read_bulk(input, rest)?),
            b'!' => Reply::Error(read_bulk(input, rest)?),
            b'=' => verbatim(read_bulk(input, rest)?)?,
            b'*' => Reply::Array(read_many(input, rest)?),
            b'~' => Reply::Set(read_many(input, rest)?),
            b'>' => Reply::Push(read_many(input, rest)?),
            b'%' => Reply::Map(read_pairs(input, rest)?),
            b'|' => Reply::Attribute(read_pairs(input, rest)?, Box::new(Reply::read(input)?)),
            _ => return Err(malformed(&line)),
        })
    }

    /// Returns the text of a status, an error, a bulk or verbatim string. Invalid UTF-8 is replaced. Other
    /// kinds have no text: `None`.
    pub fn text(&self) -> Option<String> {
        match self {
            Reply::Status(text) | Reply::Error(text) | Reply::Bulk(text) | Reply::Verbatim(_, text) => {
                Some(String::from_utf8_lossy(text).into_owned())
            }
            _ => None,
        }
    }

    /// Returns the value of an integer reply.
    pub fn integer(&self) -> Option<i64> {
        match self {
            Reply::Integer(value) => Some(*value),
            _ => None,
        }
    }

    /// Whether this is an error reply.
    pub fn is_error(&self) -> bool {
        matches!(self, Reply::Error(_))
    }
}

/// Writes a reply in the notation of the transcripts.
impl fmt::Display for Reply {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_reply(self, out, 0)
    }
}

/// The most characters of a collection that is written on one line.
const WIDTH: usize = 100;

fn write_reply(reply: &Reply, out: &mut impl fmt::Write, depth: usize) -> fmt::Result {
    match reply {
        Reply::Status(text) if depth == 0 && plain(text) => write!(out, "+{}", String::from_utf8_lossy(text)),
        Reply::Status(text) if word(text) => write!(out, "+{}", String::from_utf8_lossy(text)),
        Reply::Status(text) => write!(out, "+{}", quoted(text)),
        Reply::Error(text) if plain(text) => write!(out, "-{}", String::from_utf8_lossy(text)),
        Reply::Error(text) => write!(out, "-{}", quoted(text)),
        Reply::Integer(value) => write!(out, ":{value}"),
        Reply::Bulk(text) => out.write_str(&quoted(text)),
        Reply::Nil | Reply::Null => out.write_str("(nil)"),
        Reply::NilArray => out.write_str("(nil-array)"),
        Reply::Double(text) => write!(out, ",{}", String::from_utf8_lossy(text)),
        Reply::Boolean(value) => out.write_str(if *value { "#t" } else { "#f" }),
        Reply::BigNumber(digits) => write!(out, "({})", String::from_utf8_lossy(digits)),
        Reply::Verbatim(format, text) => {
            write!(out, "={} {}", String::from_utf8_lossy(format), quoted(text))
        }
        Reply::Array(items) => write_items("[", "]", items.iter().map(|item| vec![item]), out, depth),
        Reply::Set(items) => write_items("~[", "]", items.iter().map(|item| vec![item]), out, depth),
        Reply::Push(items) => write_items(">[", "]", items.iter().map(|item| vec![item]), out, depth),
        Reply::Map(pairs) => {
            write_items("{", "}", pairs.iter().map(|(name, value)| vec![name, value]), out, depth)
        }
        Reply::Attribute(pairs, reply) => {
            write_items("|{", "}", pairs.iter().map(|(name, value)| vec![name, value]), out, depth)?;
            out.write_char(' ')?;
            write_reply(reply, out, depth)
        }
    }
}

fn write_items<'a>(
    open: &str,
    close: &str,
    rows: impl Iterator<Item = Vec<&'a Reply>>,
    out: &mut impl fmt::Write,
    depth: usize,
) -> fmt::Result {
    let mut lines = Vec::new();
    for row in rows {
        let mut line = String::new();
        for item in row {
            if !line.is_empty() {
                line.push(' ');
            }
            write_reply(item, &mut line, depth + 1)?;
        }
        lines.push(line);
    }
    // An error extends to the end of its line, so it cannot share one.
    let n_chars: usize = lines.iter().map(|line| line.len() + 1).sum();
    let one_line =
        n_chars < WIDTH && !lines.iter().any(|line| line.starts_with('-') || line.contains(['\n']));
    if one_line {
        return write!(out, "{open}{}{close}", lines.join(" "));
    }
    writeln!(out, "{open}")?;
    for line in &lines {
        writeln!(out, "{}{line}", "  ".repeat(depth + 1))?;
    }
    write!(out, "{}{close}", "  ".repeat(depth))
}

/// Whether a text can stand unquoted up to the end of its line.
fn plain(text: &[u8]) -> bool {
    text.iter().all(|byte| (b' '..=b'~').contains(byte))
        && !text.starts_with(b"\"")
        && !text.starts_with(b" ")
        && !text.ends_with(b" ")
}

fn word(text: &[u8]) -> bool {
    !text.is_empty() && text.iter().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(byte))
}

/// Quotes a text as redis-cli does.
fn quoted(text: &[u8]) -> String {
    let mut out = String::from("\"");
    for &byte in text {
        match byte {
            b'"' => out.push_str("\\\""),
            b'\\' => out.push_str("\\\\"),
            b'\n' => out.push_str("\\n"),
            b'\r' => out.push_str("\\r"),
            b'\t' => out.push_str("\\t"),
            b' '..=b'~' => out.push(byte as char),
            _ => out.push_str(&format!("\\x{byte:02x}")),
        }
    }
    out.push('"');
    out
}

fn read_line(input: &mut impl BufRead) -> io::Result<Vec<u8>> {
    let mut line = Vec::new();
    input.read_until(b'\n', &mut line)?;
    if line.is_empty() {
        return Err(Error::new(ErrorKind::UnexpectedEof, "the server closed the connection"));
    }
    if !line.ends_with(b"\r\n") {
        return Err(malformed(&line));
    }
    line.truncate(line.len() - 2);
    Ok(line)
}

fn read_bulk(input: &mut impl BufRead, length: &[u8]) -> io::Result<Vec<u8>> {
    let mut text = vec![0; count(length)? + 2];
    input.read_exact(&mut text)?;
    if !text.ends_with(b"\r\n") {
        return Err(malformed(&text));
    }
    text.truncate(text.len() - 2);
    Ok(text)
}

fn verbatim(text: Vec<u8>) -> io::Result<Reply> {
    match (text.get(..3), text.get(3), text.get(4..)) {
        (Some(format), Some(b':'), Some(rest)) => Ok(Reply::Verbatim(format.to_vec(), rest.to_vec())),
        _ => Err(malformed(&text)),
    }
}

fn read_many(input: &mut impl BufRead, length: &[u8]) -> io::Result<Vec<Reply>> {
    (0..count(length)?).map(|_| Reply::read(input)).collect()
}

fn read_pairs(input: &mut impl BufRead, length: &[u8]) -> io::Result<Vec<(Reply, Reply)>> {
    (0..count(length)?).map(|_| Ok((Reply::read(input)?, Reply::read(input)?))).collect()
}

fn count(text: &[u8]) -> io::Result<usize> {
    usize::try_from(number(text)?).map_err(|_| malformed(text))
}

fn number(text: &[u8]) -> io::Result<i64> {
    std::str::from_utf8(text).ok().and_then(|text| text.parse().ok()).ok_or_else(|| malformed(text))
}

fn malformed(bytes: &[u8]) -> Error {
    Error::new(ErrorKind::InvalidData, format!("not RESP: {}", quoted(bytes)))
}
