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

use braid_protocol::{Reply, Resp, number};
use mlua::{Lua, LuaString, Table, Value};

use crate::errors;

/// The deepest nesting of a reply, in both directions.
const MAX_DEPTH: usize = 128;

/// Whether a reply is an error.
pub(crate) fn is_error(reply: &[u8]) -> bool {
    matches!(reply.first(), Some(b'-' | b'!'))
}

/// The text of an error reply with its code, as a script reads it.
pub(crate) fn error_text(reply: &[u8]) -> Vec<u8> {
    let mut input = Input { rest: reply };
    with_code(input.line().unwrap_or_default())
}

/// A text that starts with `-CODE`, or one without a code, which gets `ERR`.
pub(crate) fn with_code(text: &[u8]) -> Vec<u8> {
    let (code, message) = match text.strip_prefix(b"-") {
        Some(text) => match text.iter().position(|&byte| byte == b' ') {
            Some(space) => (&text[..space], &text[space + 1..]),
            None => (&b"ERR"[..], text),
        },
        None => (&b"ERR"[..], text),
    };
    [code, b" ", message.trim_ascii_line_ends()].concat()
}

trait TrimLineEnds {
    fn trim_ascii_line_ends(&self) -> &[u8];
}

impl TrimLineEnds for [u8] {
    fn trim_ascii_line_ends(&self) -> &[u8] {
        let is_other = |byte: &u8| !matches!(byte, b'\r' | b'\n');
        let start = self.iter().position(is_other).unwrap_or(self.len());
        let end = self.iter().rposition(is_other).map_or(start, |last| last + 1);
        &self[start..end]
    }
}

/// Turns a command's reply into a Lua value.
///
/// # Errors
///
/// If the bytes are no reply, or one nested too deep.
pub(crate) fn to_lua(lua: &Lua, reply: &[u8]) -> mlua::Result<Value> {
    Input { rest: reply }.value(lua, 0)
}

/// A reply that is being read.
struct Input<'a> {
    rest: &'a [u8],
}

impl<'a> Input<'a> {
    fn value(&mut self, lua: &Lua, depth: usize) -> mlua::Result<Value> {
        if depth > MAX_DEPTH {
            return Err(errors::text("reached lua stack limit"));
        }
        let (&sigil, rest) = self.rest.split_first().ok_or_else(malformed)?;
        if sigil == b'-' {
            return Ok(Value::Table(errors::table(lua, &error_text(self.rest_of_line()?), true)?));
        }
        self.rest = rest;
        match sigil {
            b'$' => self.bulk(lua),
            b':' => Ok(Value::Number(self.integer()? as f64)),
            b'*' | b'>' => self.array(lua, depth),
            b'+' => self.status(lua),
            b'_' => self.line().map(|_| Value::Nil),
            b'#' => Ok(Value::Boolean(self.line()? == b"t")),
            b',' => self.double(lua),
            b'(' => self.big_number(lua),
            b'%' => self.map(lua, depth),
            b'~' => self.set(lua, depth),
            b'=' => self.verbatim(lua),
            b'|' => self.attribute(lua, depth),
            _ => Err(malformed()),
        }
    }

    fn line(&mut self) -> mlua::Result<&'a [u8]> {
        let end = self.rest.iter().position(|&byte| byte == b'\r').ok_or_else(malformed)?;
        let line = &self.rest[..end];
        self.rest = self.rest.get(end + 2..).ok_or_else(malformed)?;
        Ok(line)
    }

    fn rest_of_line(&mut self) -> mlua::Result<&'a [u8]> {
        let start = self.rest;
        self.line()?;
        Ok(start)
    }

    fn integer(&mut self) -> mlua::Result<i64> {
        number::parse_i64(self.line()?).ok_or_else(malformed)
    }

    /// A length; nothing for the null of RESP2.
    fn length(&mut self) -> mlua::Result<Option<usize>> {
        Ok(usize::try_from(self.integer()?).ok())
    }

    fn bytes(&mut self, length: usize) -> mlua::Result<&'a [u8]> {
        let (bytes, rest) = self.rest.split_at_checked(length).ok_or_else(malformed)?;
        self.rest = rest.get(2..).ok_or_else(malformed)?;
        Ok(bytes)
    }

    fn bulk(&mut self, lua: &Lua) -> mlua::Result<Value> {
        match self.length()? {
            Some(length) => Ok(Value::String(lua.create_string(self.bytes(length)?)?)),
            None => Ok(Value::Boolean(false)),
        }
    }

    fn status(&mut self, lua: &Lua) -> mlua::Result<Value> {
        let text = lua.create_string(self.line()?)?;
        single(lua, "ok", Value::String(text))
    }

    fn double(&mut self, lua: &Lua) -> mlua::Result<Value> {
        let text = self.line()?;
        let value = number::parse_f64(text).unwrap_or(f64::NAN);
        single(lua, "double", Value::Number(value))
    }

    fn big_number(&mut self, lua: &Lua) -> mlua::Result<Value> {
        let text = lua.create_string(self.line()?)?;
        single(lua, "big_number", Value::String(text))
    }

    fn array(&mut self, lua: &Lua, depth: usize) -> mlua::Result<Value> {
        let Some(length) = self.length()? else { return Ok(Value::Boolean(false)) };
        // Each value takes at least three bytes, so an announced length cannot ask for more than has come.
        let table = lua.create_table_with_capacity(length.min(self.rest.len() / 3), 0)?;
        for index in 1..=length {
            let value = self.value(lua, depth + 1)?;
            table.raw_set(index, value)?;
        }
        Ok(Value::Table(table))
    }

    fn map(&mut self, lua: &Lua, depth: usize) -> mlua::Result<Value> {
        let length = self.length()?.unwrap_or(0);
        let map = lua.create_table_with_capacity(0, length.min(self.rest.len() / 6))?;
        for _ in 0..length {
            let key = self.value(lua, depth + 1)?;
            let value = self.value(lua, depth + 1)?;
            map.raw_set(key, value)?;
        }
        single(lua, "map", Value::Table(map))
    }

    fn set(&mut self, lua: &Lua, depth: usize) -> mlua::Result<Value> {
        let length = self.length()?.unwrap_or(0);
        let set = lua.create_table_with_capacity(0, length.min(self.rest.len() / 3))?;
        for _ in 0..length {
            set.raw_set(self.value(lua, depth + 1)?, true)?;
        }
        single(lua, "set", Value::Table(set))
    }

    fn verbatim(&mut self, lua: &Lua) -> mlua::Result<Value> {
        let length = self.length()?.ok_or_else(malformed)?;
        let bytes = self.bytes(length)?;
        let (format, text) = bytes.split_at_checked(4).ok_or_else(malformed)?;
        let table = lua.create_table_with_capacity(0, 2)?;
        table.raw_set("format", lua.create_string(&format[..3])?)?;
        table.raw_set("string", lua.create_string(text)?)?;
        single(lua, "verbatim_string", Value::Table(table))
    }

    /// What is said about the next value is left out.
    fn attribute(&mut self, lua: &Lua, depth: usize) -> mlua::Result<Value> {
        for _ in 0..2 * self.length()?.unwrap_or(0) {
            self.value(lua, depth + 1)?;
        }
        self.value(lua, depth + 1)
    }
}

#[cold]
fn malformed() -> mlua::Error {
    errors::text("the command's reply is malformed")
}

fn single(lua: &Lua, field: &str, value: Value) -> mlua::Result<Value> {
    let table = lua.create_table_with_capacity(0, 1)?;
    table.raw_set(field, value)?;
    Ok(Value::Table(table))
}

/// The names of the fields that make a table another reply than an array, interned once.
#[derive(Debug)]
pub(crate) struct Fields {
    err: LuaString,
    ok: LuaString,
    double: LuaString,
    map: LuaString,
    set: LuaString,
    big_number: LuaString,
    verbatim: LuaString,
}

impl Fields {
    pub fn new(lua: &Lua) -> mlua::Result<Self> {
        Ok(Fields {
            err: lua.create_string("err")?,
            ok: lua.create_string("ok")?,
            double: lua.create_string("double")?,
            map: lua.create_string("map")?,
            set: lua.create_string("set")?,
            big_number: lua.create_string("big_number")?,
            verbatim: lua.create_string("verbatim_string")?,
        })
    }
}

/// Writes what a script returns.
pub(crate) struct Writer<'a, 'b> {
    pub fields: &'a Fields,
    pub reply: &'a mut Reply<'b>,
    /// The version that the script has chosen: it decides about booleans.
    pub script: Resp,
    /// Whether the last error written has been counted already.
    pub is_counted: bool,
}

impl Writer<'_, '_> {
    /// Writes `value`. Answers whether it is an error.
    pub fn value(&mut self, value: &Value) -> mlua::Result<bool> {
        match value {
            Value::Table(table) if matches!(self.table(table, 0)?, Kind::Error) => return Ok(true),
            Value::Table(_) => {}
            other => self.scalar(other),
        }
        Ok(false)
    }

    fn scalar(&mut self, value: &Value) {
        match value {
            Value::String(text) => self.reply.bulk(&text.as_bytes()),
            Value::Integer(integer) => self.reply.integer(*integer),
            Value::Number(number) => self.reply.integer(truncated(*number)),
            Value::Boolean(value) if self.script == Resp::V3 => self.reply.boolean(*value),
            Value::Boolean(true) => self.reply.integer(1),
            _ => self.reply.null(),
        }
    }

    fn nested(&mut self, value: &Value, depth: usize) -> mlua::Result<()> {
        match value {
            Value::Table(_) if depth > MAX_DEPTH => self.reply.error("ERR reached lua stack limit"),
            Value::Table(table) => {
                self.table(table, depth)?;
            }
            other => self.scalar(other),
        }
        Ok(())
    }

    fn table(&mut self, table: &Table, depth: usize) -> mlua::Result<Kind> {
        let fields = self.fields;
        if let Value::String(_) = table.raw_get(&fields.err)? {
            let error = errors::fields(table);
            self.is_counted = error.is_counted;
            self.reply.error(error.text);
            return Ok(Kind::Error);
        }
        if let Value::String(text) = table.raw_get(&fields.ok)? {
            status(self.reply, &text.as_bytes());
        } else if let Some(value) = as_number(&table.raw_get(&fields.double)?) {
            self.reply.double(value);
        } else if let Value::String(text) = table.raw_get(&fields.big_number)? {
            self.reply.big_number(&String::from_utf8_lossy(&one_line(&text.as_bytes())));
        } else if let Some((format, text)) = verbatim(&table.raw_get(&fields.verbatim)?) {
            self.reply.verbatim(&format, &text.as_bytes());
        } else if let Value::Table(map) = table.raw_get(&fields.map)? {
            self.map(&map, depth)?;
        } else if let Value::Table(set) = table.raw_get(&fields.set)? {
            self.set(&set, depth)?;
        } else {
            self.array(table, depth)?;
        }
        Ok(Kind::Other)
    }

    fn array(&mut self, table: &Table, depth: usize) -> mlua::Result<()> {
        let array = self.reply.array_later();
        let mut length = 0;
        loop {
            let value: Value = table.raw_get(length + 1)?;
            if value.is_nil() || self.reply.is_over_limit() {
                break;
            }
            self.nested(&value, depth + 1)?;
            length += 1;
        }
        self.reply.close(array, length);
        Ok(())
    }

    fn map(&mut self, map: &Table, depth: usize) -> mlua::Result<()> {
        let later = self.reply.map_later();
        let mut length = 0;
        for pair in map.pairs::<Value, Value>() {
            let (key, value) = pair?;
            self.nested(&key, depth + 1)?;
            self.nested(&value, depth + 1)?;
            length += 1;
        }
        self.reply.close(later, length);
        Ok(())
    }

    fn set(&mut self, set: &Table, depth: usize) -> mlua::Result<()> {
        let later = self.reply.set_later();
        let mut length = 0;
        for pair in set.pairs::<Value, Value>() {
            self.nested(&pair?.0, depth + 1)?;
            length += 1;
        }
        self.reply.close(later, length);
        Ok(())
    }
}

/// What a table was written as.
enum Kind {
    Error,
    Other,
}

/// A number as C's conversion to a 64-bit integer gives it: without decimals, and the smallest integer where it does not fit.
fn truncated(number: f64) -> i64 {
    if (-9_223_372_036_854_775_808.0..9_223_372_036_854_775_808.0).contains(&number) {
        number as i64
    } else {
        i64::MIN
    }
}

fn as_number(value: &Value) -> Option<f64> {
    match value {
        Value::Integer(integer) => Some(*integer as f64),
        Value::Number(number) => Some(*number),
        _ => None,
    }
}

fn verbatim(value: &Value) -> Option<([u8; 3], LuaString)> {
    let Value::Table(table) = value else { return None };
    let (Ok(Value::String(format)), Ok(Value::String(text))) =
        (table.raw_get("format"), table.raw_get("string"))
    else {
        return None;
    };
    // A shorter format is padded with spaces, a longer one is cut.
    let mut letters = *b"   ";
    letters.iter_mut().zip(&*format.as_bytes()).for_each(|(letter, byte)| *letter = *byte);
    Some((letters, text))
}

/// Line ends would tear a reply of one line, so they become spaces.
fn one_line(text: &[u8]) -> Vec<u8> {
    text.iter().map(|&byte| if matches!(byte, b'\r' | b'\n') { b' ' } else { byte }).collect()
}

fn status(reply: &mut Reply<'_>, text: &[u8]) {
    reply.raw(b"+");
    reply.raw(&one_line(text));
    reply.raw(b"\r\n");
}
