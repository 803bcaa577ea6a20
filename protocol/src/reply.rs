//! The reply writer: turns the shapes of RESP3 into bytes of the client's version.
//!
//! Handlers name the shape (`map`, `double`, `null`). Its form in RESP2 (a flat array, a bulk string, `$-1`)
//! is decided here and nowhere else.

use crate::number::{self, LongDouble};
use crate::request::write_header;

/// The version of the protocol that a client speaks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Resp {
    /// The default of every connection.
    #[default]
    V2,
    /// After `HELLO 3`.
    V3,
}

/// Appends one client's replies to its output.
#[derive(Debug)]
pub struct Reply<'a> {
    out: &'a mut Vec<u8>,
    version: Resp,
    /// The limit of the output in bytes. Longer output is never sent.
    limit: usize,
}

/// An open aggregate whose number of elements is not known yet. [`Reply::close`] must close it.
#[must_use = "the reply is torn until its open aggregate is closed"]
#[derive(Debug)]
pub struct Later {
    at: usize,
    sigil: u8,
    n_values_each: usize,
}

impl<'a> Reply<'a> {
    /// Appends to `out` in `version`.
    #[inline]
    pub fn new(out: &'a mut Vec<u8>, version: Resp) -> Self {
        Reply { out, version, limit: usize::MAX }
    }

    /// Limits the output to a number of bytes, including earlier replies.
    ///
    /// Bytes beyond the limit are not refused. The writer of a long reply asks [`Reply::is_over_limit`] and
    /// stops, because the client is closed without an answer.
    pub fn with_limit(mut self, bytes: usize) -> Self {
        self.limit = bytes;
        self
    }

    /// Whether the output is longer than its limit. Such output is not sent, so it need not be complete.
    #[inline]
    pub fn is_over_limit(&self) -> bool {
        self.out.len() > self.limit
    }

    /// Whether there is a limit.
    pub fn is_limited(&self) -> bool {
        self.limit != usize::MAX
    }

    /// The number of bytes that may be written before the output reaches its limit.
    pub fn room(&self) -> usize {
        self.limit.saturating_sub(self.out.len())
    }

    /// Truncates the output to one byte over the limit, so that it stays over.
    pub fn cut(&mut self) {
        self.out.truncate(self.limit.saturating_add(1));
    }

    /// The version in which replies are written.
    #[inline]
    pub fn version(&self) -> Resp {
        self.version
    }

    /// Sets the version of later replies: HELLO may come within a transaction.
    pub fn set_version(&mut self, version: Resp) {
        self.version = version;
    }

    /// The length of the output, including earlier replies: a mark for [`Reply::truncate`].
    #[inline]
    pub fn written_bytes(&self) -> usize {
        self.out.len()
    }

    /// The bytes written since [`Reply::written_bytes`] returned `bytes`.
    pub fn written_since(&self, bytes: usize) -> &[u8] {
        &self.out[bytes..]
    }

    /// Removes everything since [`Reply::written_bytes`] returned `bytes`.
    pub fn truncate(&mut self, bytes: usize) {
        self.out.truncate(bytes);
    }

    /// `+OK`.
    #[inline]
    pub fn ok(&mut self) {
        self.out.extend_from_slice(b"+OK\r\n");
    }

    /// A short text without line ends, such as a type's name.
    #[inline]
    pub fn simple(&mut self, text: &str) {
        debug_assert!(!text.contains(['\r', '\n']), "a simple string is one line");
        self.line(b'+', text.as_bytes());
    }

    /// An error: `-` and the text, which begins with its code (`ERR …`).
    ///
    /// Line ends would tear the reply. So they are trimmed at both ends and replaced by spaces within.
    #[cold]
    pub fn error(&mut self, text: impl AsRef<[u8]>) {
        let text = text.as_ref();
        let start = text.iter().position(|&byte| !is_line_end(byte)).unwrap_or(text.len());
        let end = text.iter().rposition(|&byte| !is_line_end(byte)).map_or(start, |last| last + 1);
        self.out.reserve(end - start + 3);
        self.out.push(b'-');
        self.out.extend(text[start..end].iter().map(|&byte| if is_line_end(byte) { b' ' } else { byte }));
        self.out.extend_from_slice(b"\r\n");
    }

    /// An integer.
    #[inline]
    pub fn integer(&mut self, value: i64) {
        match value {
            0 => self.out.extend_from_slice(b":0\r\n"),
            1 => self.out.extend_from_slice(b":1\r\n"),
            _ => self.line(b':', itoa::Buffer::new().format(value).as_bytes()),
        }
    }

    /// A string of bytes.
    #[inline]
    pub fn bulk(&mut self, bytes: &[u8]) {
        self.out.reserve(bytes.len() + 32);
        write_header(self.out, b'$', bytes.len());
        self.out.extend_from_slice(bytes);
        self.out.extend_from_slice(b"\r\n");
    }

    /// The header of a string whose `len` bytes the caller sends from elsewhere.
    ///
    /// [`Reply::bulk_end`] follows those bytes.
    #[inline]
    pub fn bulk_header(&mut self, len: usize) {
        write_header(self.out, b'$', len);
    }

    /// The end of a string that [`Reply::bulk_header`] has announced.
    #[inline]
    pub fn bulk_end(&mut self) {
        self.out.extend_from_slice(b"\r\n");
    }

    /// An integer as a string of bytes.
    #[inline]
    pub fn bulk_integer(&mut self, value: i64) {
        self.bulk(itoa::Buffer::new().format(value).as_bytes());
    }

    /// A null in place of a value.
    #[inline]
    pub fn null(&mut self) {
        match self.version {
            Resp::V2 => self.out.extend_from_slice(b"$-1\r\n"),
            Resp::V3 => self.out.extend_from_slice(b"_\r\n"),
        }
    }

    /// A null in place of an array.
    #[inline]
    pub fn null_array(&mut self) {
        match self.version {
            Resp::V2 => self.out.extend_from_slice(b"*-1\r\n"),
            Resp::V3 => self.out.extend_from_slice(b"_\r\n"),
        }
    }

    /// An array of the next `n` values.
    #[inline]
    pub fn array(&mut self, n: usize) {
        write_header(self.out, b'*', n);
    }

    /// A map of the next `n` pairs; in RESP2 an array of `2 * n` values.
    #[inline]
    pub fn map(&mut self, n: usize) {
        self.aggregate(b'%', n, 2);
    }

    /// An array of the next `n` pairs, each of which begins with [`Reply::pair`].
    ///
    /// In RESP2 it is a flat array of `2 * n` values.
    #[inline]
    pub fn pairs(&mut self, n: usize) {
        match self.version {
            Resp::V2 => self.array(2 * n),
            Resp::V3 => self.array(n),
        }
    }

    /// The start of a pair of values among [`Reply::pairs`].
    #[inline]
    pub fn pair(&mut self) {
        if self.version == Resp::V3 {
            self.array(2);
        }
    }

    /// The start of a pair of values within [`Reply::nested_map_later`].
    #[inline]
    pub fn nested_pair(&mut self) {
        if self.version == Resp::V2 {
            self.array(2);
        }
    }

    /// A set of the next `n` values; in RESP2 an array.
    #[inline]
    pub fn set(&mut self, n: usize) {
        self.aggregate(b'~', n, 1);
    }

    /// A message of the next `n` values that answers no request; in RESP2 an array.
    #[inline]
    pub fn push(&mut self, n: usize) {
        self.aggregate(b'>', n, 1);
    }

    /// An attribute of `n` pairs, which describe the value after them.
    ///
    /// RESP2 has no attributes. Returns whether the caller must write the pairs.
    #[must_use = "in RESP2 the attribute's pairs must not be written"]
    pub fn attribute(&mut self, n: usize) -> bool {
        if self.version == Resp::V3 {
            write_header(self.out, b'|', n);
        }
        self.version == Resp::V3
    }

    /// A double in its shortest text; in RESP2 a string of bytes.
    pub fn double(&mut self, value: f64) {
        self.number(|out| number::write_f64(out, value));
    }

    /// An extended float with up to 17 decimals; in RESP2 a string of bytes.
    pub fn long_double(&mut self, value: LongDouble) {
        self.number(|out| value.write(out));
    }

    /// A number whose text `write` appends.
    #[inline]
    fn number(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        match self.version {
            Resp::V2 => {
                // The text's length is known once it is printed. The text is short, so it then changes places
                // with the header.
                let start = self.out.len();
                write(self.out);
                let text_bytes = self.out.len() - start;
                write_header(self.out, b'$', text_bytes);
                self.out[start..].rotate_left(text_bytes);
                self.out.extend_from_slice(b"\r\n");
            }
            Resp::V3 => {
                self.out.push(b',');
                write(self.out);
                self.out.extend_from_slice(b"\r\n");
            }
        }
    }

    /// A boolean; in RESP2 the integer 1 or 0.
    #[inline]
    pub fn boolean(&mut self, value: bool) {
        match self.version {
            Resp::V2 => self.integer(i64::from(value)),
            Resp::V3 => self.out.extend_from_slice(if value { b"#t\r\n" } else { b"#f\r\n" }),
        }
    }

    /// An integer of any size, given in decimal; in RESP2 a string of bytes.
    pub fn big_number(&mut self, decimal: impl AsRef<[u8]>) {
        match self.version {
            Resp::V2 => self.bulk(decimal.as_ref()),
            Resp::V3 => self.line(b'(', decimal.as_ref()),
        }
    }

    /// Text for people, with a format of three letters (`txt`, `mkd`).
    ///
    /// In RESP2 it is a string of bytes.
    pub fn verbatim(&mut self, format: &[u8; 3], text: &[u8]) {
        if self.version == Resp::V2 {
            return self.bulk(text);
        }
        self.out.reserve(text.len() + 32);
        write_header(self.out, b'=', text.len() + 4);
        self.out.extend_from_slice(format);
        self.out.push(b':');
        self.out.extend_from_slice(text);
        self.out.extend_from_slice(b"\r\n");
    }

    /// Bytes that already are replies in this version.
    #[inline]
    pub fn raw(&mut self, bytes: &[u8]) {
        self.out.extend_from_slice(bytes);
    }

    /// Opens an array whose length becomes known later.
    pub fn array_later(&mut self) -> Later {
        self.later(b'*', 1)
    }

    /// Opens a map whose number of pairs becomes known later.
    pub fn map_later(&mut self) -> Later {
        match self.version {
            Resp::V2 => self.later(b'*', 2),
            Resp::V3 => self.later(b'%', 1),
        }
    }

    /// Opens a map whose number of pairs becomes known later.
    ///
    /// Each pair begins with [`Reply::nested_pair`]. In RESP2 it is an array of arrays of two.
    pub fn nested_map_later(&mut self) -> Later {
        match self.version {
            Resp::V2 => self.later(b'*', 1),
            Resp::V3 => self.later(b'%', 1),
        }
    }

    /// Opens a set whose size becomes known later.
    pub fn set_later(&mut self) -> Later {
        match self.version {
            Resp::V2 => self.later(b'*', 1),
            Resp::V3 => self.later(b'~', 1),
        }
    }

    /// Closes an aggregate of `n` elements, or of `n` pairs in a map.
    ///
    /// The last aggregate that was opened is closed first. The header is inserted before the elements, which
    /// moves their bytes once.
    pub fn close(&mut self, later: Later, n: usize) {
        debug_assert!(
            later.at <= self.out.len(),
            "what was written since the aggregate was opened is still there"
        );
        let end = self.out.len();
        write_header(self.out, later.sigil, n * later.n_values_each);
        let header_bytes = self.out.len() - end;
        self.out[later.at..].rotate_right(header_bytes);
    }

    fn later(&self, sigil: u8, n_values_each: usize) -> Later {
        Later { at: self.out.len(), sigil, n_values_each }
    }

    #[inline]
    fn aggregate(&mut self, sigil: u8, n: usize, n_values_each: usize) {
        match self.version {
            Resp::V2 => write_header(self.out, b'*', n * n_values_each),
            Resp::V3 => write_header(self.out, sigil, n),
        }
    }

    #[inline]
    fn line(&mut self, sigil: u8, text: &[u8]) {
        self.out.reserve(text.len() + 3);
        self.out.push(sigil);
        self.out.extend_from_slice(text);
        self.out.extend_from_slice(b"\r\n");
    }
}

fn is_line_end(byte: u8) -> bool {
    matches!(byte, b'\r' | b'\n')
}
