//! Values between Lua and RESP, as Redis converts them.
//!
//! | RESP | Lua | | Lua | RESP |
//! |---|---|---|---|---|
//! | integer | number | | number | integer, truncated |
//! | bulk string | string | | string | bulk string |
//! | status | `{ok=}` | | `{ok=}` | status |
//! | error | `{err=}` | | `{err=}` | error |
//! | array | table | | table | array, up to the first nil |
//! | null of RESP2 | false | | nil, false | null |
//! | null of RESP3 | nil | | true | 1 |
//! | boolean | boolean | | boolean after `setresp(3)` | boolean |
//! | double | `{double=}` | | `{double=}` | double |
//! | big number | `{big_number=}` | | `{big_number=}` | big number |
//! | map | `{map={}}` | | `{map={}}` | map |
//! | set | `{set={[x]=true}}` | | `{set={[x]=...}}` | set of the keys |
//! | verbatim string | `{verbatim_string={format=,string=}}` | | the same | verbatim string |

use std::ffi::c_int;

use braid_protocol::{Reply, Resp, number};

use crate::lua_value::{truncated, until_zero};
use crate::outcome::Ended;
use crate::run_state::Run;
use crate::stack::{Kind, Stack};

/// The deepest nesting of a reply, in both directions.
const MAX_DEPTH: usize = 128;
/// The most values that one level of nesting puts on the stack.
const PER_LEVEL: c_int = 10;

/// Whether a reply is an error.
pub(crate) fn is_error(reply: &[u8]) -> bool {
    reply.first() == Some(&b'-')
}

/// Splits an error's text into its code and its message.
///
/// A text that starts with `-CODE` has a code. Any other gets `ERR`.
pub(crate) fn coded(text: &[u8]) -> (&[u8], &[u8]) {
    let (code, message) = match text.strip_prefix(b"-") {
        Some(text) => match text.iter().position(|&byte| byte == b' ') {
            Some(space) => (&text[..space], &text[space + 1..]),
            None => (&b"ERR"[..], text),
        },
        None => (&b"ERR"[..], text),
    };
    (code, without_line_ends(message))
}

fn without_line_ends(text: &[u8]) -> &[u8] {
    let start = text.iter().position(is_no_line_end).unwrap_or(text.len());
    let end = text.iter().rposition(is_no_line_end).map_or(start, |last| last + 1);
    &text[start..end]
}

fn is_no_line_end(byte: &u8) -> bool {
    !matches!(byte, b'\r' | b'\n')
}

/// Puts the table that stands for an error on the stack. Raises.
pub(crate) fn push_error(stack: Stack<'_>, (code, message): (&[u8], &[u8]), is_counted: bool) {
    stack.push_table(0, 2);
    stack.push_text(b"err");
    stack.push_text(code);
    stack.push_text(b" ");
    stack.push_text(message);
    stack.join(3);
    stack.set(-3);
    if is_counted {
        stack.push_text(b"ignore_error_stats_update");
        stack.push_boolean(true);
        stack.set(-3);
    }
}

/// The reason why bytes are not read as a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unreadable {
    /// They are no reply.
    Malformed,
    /// They are nested too deeply.
    TooDeep,
}

/// Puts a command's reply on the stack as a Lua value. Raises.
///
/// # Errors
///
/// If the bytes are no reply, or one nested too deeply. The values on the stack then have no meaning.
pub(crate) fn push(stack: Stack<'_>, reply: &[u8]) -> Result<(), Unreadable> {
    ReplyReader { stack, rest: reply }.value(0)
}

/// A reply that is being read.
struct ReplyReader<'a, 'l> {
    stack: Stack<'l>,
    rest: &'a [u8],
}

impl<'a> ReplyReader<'a, '_> {
    fn value(&mut self, depth: usize) -> Result<(), Unreadable> {
        let whole = self.rest;
        let (&sigil, rest) = whole.split_first().ok_or(Unreadable::Malformed)?;
        self.rest = rest;
        let stack = self.stack;
        match sigil {
            b'$' => match self.length()? {
                Some(length) => stack.push_text(self.bytes(length)?),
                None => stack.push_boolean(false),
            },
            b':' => stack.push_number(self.integer()? as f64),
            b'+' => {
                let text = self.line()?;
                self.push_single(b"ok", |stack| stack.push_text(text));
            }
            b'-' => {
                let n_bytes = 1 + self.line()?.len();
                push_error(stack, coded(&whole[..n_bytes]), true);
            }
            b'_' => {
                self.line()?;
                stack.push_nil();
            }
            b'#' => stack.push_boolean(self.line()? == b"t"),
            b',' => {
                let value = number::parse_f64(self.line()?).unwrap_or(f64::NAN);
                self.push_single(b"double", |stack| stack.push_number(value));
            }
            b'(' => {
                let text = self.line()?;
                self.push_single(b"big_number", |stack| stack.push_text(text));
            }
            b'=' => self.verbatim()?,
            _ => return self.nested(sigil, depth),
        }
        Ok(())
    }

    fn nested(&mut self, sigil: u8, depth: usize) -> Result<(), Unreadable> {
        if depth >= MAX_DEPTH {
            return Err(Unreadable::TooDeep);
        }
        self.stack.reserve(PER_LEVEL);
        match sigil {
            b'*' | b'>' => self.array(depth),
            b'%' => self.map(depth),
            b'~' => self.set(depth),
            b'|' => self.attribute(depth),
            _ => Err(Unreadable::Malformed),
        }
    }

    fn line(&mut self) -> Result<&'a [u8], Unreadable> {
        let end = self.rest.iter().position(|&byte| byte == b'\r').ok_or(Unreadable::Malformed)?;
        let line = &self.rest[..end];
        self.rest = self.rest.get(end + 2..).ok_or(Unreadable::Malformed)?;
        Ok(line)
    }

    fn integer(&mut self) -> Result<i64, Unreadable> {
        number::parse_i64(self.line()?).ok_or(Unreadable::Malformed)
    }

    /// A length; `None` for the null of RESP2.
    fn length(&mut self) -> Result<Option<usize>, Unreadable> {
        Ok(usize::try_from(self.integer()?).ok())
    }

    fn bytes(&mut self, length: usize) -> Result<&'a [u8], Unreadable> {
        let (bytes, rest) = self.rest.split_at_checked(length).ok_or(Unreadable::Malformed)?;
        self.rest = rest.get(2..).ok_or(Unreadable::Malformed)?;
        Ok(bytes)
    }

    fn array(&mut self, depth: usize) -> Result<(), Unreadable> {
        let Some(length) = self.length()? else {
            self.stack.push_boolean(false);
            return Ok(());
        };
        // Each value takes at least three bytes. So an announced length cannot ask for more than has arrived.
        self.stack.push_table(length.min(self.rest.len() / 3), 0);
        for n in 1..=length {
            self.value(depth + 1)?;
            self.stack.set_element(-2, c_int::try_from(n).map_err(|_| Unreadable::Malformed)?);
        }
        Ok(())
    }

    fn map(&mut self, depth: usize) -> Result<(), Unreadable> {
        let length = self.length()?.unwrap_or(0);
        self.begin_single(b"map", length.min(self.rest.len() / 6));
        for _ in 0..length {
            self.value(depth + 1)?;
            self.value(depth + 1)?;
            self.set_pair()?;
        }
        self.stack.set(-3);
        Ok(())
    }

    fn set(&mut self, depth: usize) -> Result<(), Unreadable> {
        let length = self.length()?.unwrap_or(0);
        self.begin_single(b"set", length.min(self.rest.len() / 3));
        for _ in 0..length {
            self.value(depth + 1)?;
            self.stack.push_boolean(true);
            self.set_pair()?;
        }
        self.stack.set(-3);
        Ok(())
    }

    /// Sets the key and the value on top in the table below them.
    ///
    /// Nil and NaN cannot be keys.
    fn set_pair(&mut self) -> Result<(), Unreadable> {
        if self.stack.kind(-2) == Kind::Nil || self.stack.number(-2).is_some_and(f64::is_nan) {
            return Err(Unreadable::Malformed);
        }
        self.stack.set(-3);
        Ok(())
    }

    fn verbatim(&mut self) -> Result<(), Unreadable> {
        let length = self.length()?.ok_or(Unreadable::Malformed)?;
        let (format, text) = self.bytes(length)?.split_at_checked(4).ok_or(Unreadable::Malformed)?;
        self.begin_single(b"verbatim_string", 2);
        for (name, text) in [(&b"format"[..], &format[..3]), (b"string", text)] {
            self.stack.push_text(name);
            self.stack.push_text(text);
            self.stack.set(-3);
        }
        self.stack.set(-3);
        Ok(())
    }

    /// Skips the attributes of the next value, and reads the value.
    fn attribute(&mut self, depth: usize) -> Result<(), Unreadable> {
        for _ in 0..2 * self.length()?.unwrap_or(0) {
            self.value(depth + 1)?;
            self.stack.pop(1);
        }
        self.value(depth + 1)
    }

    /// Puts a table with one field on the stack.
    fn push_single(&self, field: &[u8], push: impl FnOnce(Stack<'_>)) {
        self.stack.push_table(0, 1);
        self.stack.push_text(field);
        push(self.stack);
        self.stack.set(-3);
    }

    /// Puts a table, its one field's name, and that field's table on the stack.
    ///
    /// [`Stack::set`] then sets the field, and leaves the outer table on the stack.
    fn begin_single(&self, field: &[u8], n_fields: usize) {
        self.stack.push_table(0, 1);
        self.stack.push_text(field);
        self.stack.push_table(0, n_fields);
    }
}

/// The names of the fields that make a table another reply than an array.
///
/// A function that writes replies has them as its own values.
pub(crate) const FIELDS: [&str; 10] = [
    "err",
    "ok",
    "double",
    "big_number",
    "verbatim_string",
    "map",
    "set",
    "format",
    "string",
    "ignore_error_stats_update",
];

/// The positions in [`FIELDS`].
#[derive(Clone, Copy)]
enum ReplyField {
    Err,
    Ok,
    Double,
    BigNumber,
    Verbatim,
    Map,
    Set,
    Format,
    String,
    IsCounted,
}

/// A writer of the values that scripts return.
pub(crate) struct Writer<'a, 'b, 'l> {
    /// The stack with the value.
    pub stack: Stack<'l>,
    /// The run, which is sometimes asked whether to continue.
    ///
    /// A table that contains itself twice has no end.
    pub run: &'a Run,
    /// The number of the running function's own values before [`FIELDS`].
    pub own: c_int,
    pub reply: &'a mut Reply<'b>,
    /// The version that the script has chosen, which decides about booleans.
    pub script: Resp,
    /// Whether the last error written has been counted already.
    pub is_counted: bool,
    /// The number of values written.
    pub n_values: u32,
}

/// The number of values between two questions whether to continue.
const VALUES_PER_INTERRUPT: u32 = 10_000;

impl Writer<'_, '_, '_> {
    /// Writes the value on top. Raises.
    pub fn value(&mut self) -> Ended {
        match self.stack.kind(-1) {
            Kind::Table if self.table(0) == Written::Error => Ended::Error { is_counted: self.is_counted },
            Kind::Table => Ended::Value,
            kind => {
                self.scalar(kind);
                Ended::Value
            }
        }
    }

    /// Writes the value on top, which has this kind and is no table.
    fn scalar(&mut self, kind: Kind) {
        let stack = self.stack;
        match kind {
            Kind::Text => self.reply.bulk(stack.text(-1).unwrap_or_default()),
            Kind::Number => self.reply.integer(truncated(stack.number(-1).unwrap_or_default())),
            Kind::Boolean if self.script == Resp::V3 => self.reply.boolean(stack.is_true(-1)),
            Kind::Boolean if stack.is_true(-1) => self.reply.integer(1),
            _ => self.reply.null(),
        }
    }

    /// Whether the run continues. The host may end it while a long value is written.
    fn may_go_on(&mut self) -> bool {
        self.n_values = self.n_values.wrapping_add(1);
        if self.n_values.is_multiple_of(VALUES_PER_INTERRUPT) {
            return self.run.question(|host| host.interrupt()).is_ok();
        }
        !self.run.is_ending()
    }

    /// Writes the value on top, which has this kind, and leaves it there.
    fn nested(&mut self, kind: Kind, depth: usize) {
        match kind {
            Kind::Table if depth > MAX_DEPTH => self.reply.error("ERR reached lua stack limit"),
            Kind::Table => {
                self.table(depth);
            }
            kind => self.scalar(kind),
        }
    }

    /// Puts a field of the table at `table` on the stack.
    fn push_field(&self, table: c_int, field: ReplyField) -> Kind {
        self.stack.push(Stack::own(self.own + 1 + field as c_int));
        self.stack.replace_by_field(table)
    }

    fn table(&mut self, depth: usize) -> Written {
        self.stack.reserve(PER_LEVEL);
        let stack = self.stack;
        let table = stack.len();
        let written = self.table_at(table, depth);
        stack.cut(table);
        written
    }

    fn table_at(&mut self, table: c_int, depth: usize) -> Written {
        const OTHERS: [ReplyField; 6] = [
            ReplyField::Ok,
            ReplyField::Double,
            ReplyField::BigNumber,
            ReplyField::Verbatim,
            ReplyField::Map,
            ReplyField::Set,
        ];
        let stack = self.stack;
        if self.push_field(table, ReplyField::Err) == Kind::Text {
            write_error(self.reply, stack.text(-1).unwrap_or_default());
            let kind = self.push_field(table, ReplyField::IsCounted);
            self.is_counted = kind == Kind::Boolean && stack.is_true(-1);
            return Written::Error;
        }
        for field in OTHERS {
            stack.cut(table);
            let kind = self.push_field(table, field);
            if kind != Kind::Nil && self.field(field, kind, table + 1, depth) {
                return Written::Other;
            }
        }
        stack.cut(table);
        self.array(table, depth);
        Written::Other
    }

    /// Writes a table as the reply that one of its fields selects.
    ///
    /// Returns false if the field's value has the wrong type.
    fn field(&mut self, field: ReplyField, kind: Kind, at: c_int, depth: usize) -> bool {
        let stack = self.stack;
        match (field, kind) {
            (ReplyField::Ok, Kind::Text) => status(self.reply, stack.text(-1).unwrap_or_default()),
            (ReplyField::Double, Kind::Number) => self.reply.double(stack.number(-1).unwrap_or_default()),
            (ReplyField::BigNumber, Kind::Text) => {
                self.reply.big_number(one_line(stack.text(-1).unwrap_or_default()));
            }
            (ReplyField::Verbatim, Kind::Table) => return self.verbatim(at),
            (ReplyField::Map, Kind::Table) => self.map(at, depth),
            (ReplyField::Set, Kind::Table) => self.set(at, depth),
            _ => return false,
        }
        true
    }

    /// Writes a verbatim string, if both its fields are texts.
    fn verbatim(&mut self, table: c_int) -> bool {
        self.push_field(table, ReplyField::Format);
        self.push_field(table, ReplyField::String);
        let (Some(format), Some(text)) = (self.stack.text(-2), self.stack.text(-1)) else { return false };
        // A shorter format is padded with spaces, a longer one is cut.
        let mut letters = *b"   ";
        letters.iter_mut().zip(format).for_each(|(letter, &byte)| *letter = byte);
        self.reply.verbatim(&letters, text);
        true
    }

    fn array(&mut self, table: c_int, depth: usize) {
        let array = self.reply.array_later();
        let mut length = 0;
        loop {
            let kind = self.stack.push_element(table, length + 1);
            if kind == Kind::Nil || self.reply.is_over_limit() || !self.may_go_on() {
                break;
            }
            self.nested(kind, depth + 1);
            self.stack.pop(1);
            length += 1;
        }
        self.reply.close(array, length as usize);
    }

    fn map(&mut self, map: c_int, depth: usize) {
        let later = self.reply.map_later();
        let mut length = 0;
        self.stack.push_nil();
        while self.may_go_on() && self.stack.next(map) {
            self.stack.push(-2);
            self.nested(self.stack.kind(-1), depth + 1);
            self.stack.pop(1);
            self.nested(self.stack.kind(-1), depth + 1);
            self.stack.pop(1);
            length += 1;
        }
        self.reply.close(later, length);
    }

    fn set(&mut self, set: c_int, depth: usize) {
        let later = self.reply.set_later();
        let mut length = 0;
        self.stack.push_nil();
        while self.may_go_on() && self.stack.next(set) {
            self.stack.pop(1);
            self.nested(self.stack.kind(-1), depth + 1);
            length += 1;
        }
        self.reply.close(later, length);
    }
}

/// The form in which a table was written.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Written {
    Error,
    Other,
}

/// Replaces line ends by spaces. They would break a reply of one line.
fn one_line(text: &[u8]) -> Vec<u8> {
    text.iter().map(|byte| if is_no_line_end(byte) { *byte } else { b' ' }).collect()
}

fn status(reply: &mut Reply<'_>, text: &[u8]) {
    reply.raw(b"+");
    reply.raw(&one_line(until_zero(text)));
    reply.raw(b"\r\n");
}

/// Writes an error. Line ends at the end of its text are dropped.
#[cold]
pub(crate) fn write_error(reply: &mut Reply<'_>, text: &[u8]) {
    let text = until_zero(text);
    let end = text.iter().rposition(is_no_line_end).map_or(0, |last| last + 1);
    reply.raw(b"-");
    reply.raw(&one_line(&text[..end]));
    reply.raw(b"\r\n");
}
