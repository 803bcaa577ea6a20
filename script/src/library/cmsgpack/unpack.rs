//! `cmsgpack.unpack`, `unpack_one` and `unpack_limit`.

use std::borrow::Cow;

use mlua::{Lua, MultiValue, Value};

use crate::library::arguments::Arguments;
use crate::library::builder::{Builder, MAX_DEPTH, Part, TableKind};
use crate::library::meter::{Meter, Work};
use crate::library::raised::Failure;

/// The most values that one call returns. Lua's stack has room for 8000.
const MAX_VALUES: usize = 7998;

/// The most strings and tables among them. mlua holds those in such a stack of its own.
const MAX_HELD: usize = 4000;

const TOO_MANY_VALUES: &str =
    "stack overflow (too many return values at once; use unpack_one or unpack_limit instead.)";

/// Returns all values of argument 1.
pub(super) fn unpack(lua: &Lua, arguments: Arguments) -> Result<MultiValue, Failure> {
    unpack_some(lua, arguments, 0, 0)
}

/// Returns the offset of the next value, and one value of argument 1.
///
/// Argument 2 is the offset of that value.
pub(super) fn unpack_one(lua: &Lua, arguments: Arguments) -> Result<MultiValue, Failure> {
    let offset = arguments.integer_or(lua, 2, 0)?;
    unpack_some(lua, arguments, 1, offset)
}

/// Returns the offset of the next value, and up to `n` values of argument 1.
///
/// Argument 2 is `n`, and argument 3 is the offset of the first value.
pub(super) fn unpack_limit(lua: &Lua, arguments: Arguments) -> Result<MultiValue, Failure> {
    let limit = arguments.integer(lua, 2)?;
    let offset = arguments.integer_or(lua, 3, 0)?;
    unpack_some(lua, arguments, limit, offset)
}

/// Returns the offset of the next value, and up to `limit` values from `offset` on.
///
/// If both are 0, it returns all values and no offset.
fn unpack_some(lua: &Lua, mut arguments: Arguments, limit: i64, offset: i64) -> Result<MultiValue, Failure> {
    let data = arguments.string(lua, 1)?;
    let data = data.as_bytes();
    let (length, shown_offset) = (data.len() as i32, offset as i32);
    if offset < 0 || limit < 0 {
        // Redis shows the length as the limit too.
        let text = format!("Invalid request to unpack with offset of {shown_offset} and limit of {length}.");
        return Err(Failure::text(text));
    }
    let Some(rest) = data.get(offset as usize..) else {
        return Err(Failure::text(format!(
            "Start offset {shown_offset} greater than input length {length}."
        )));
    };
    let is_all = limit == 0 && offset == 0;
    let limit = if is_all { i64::from(i32::MAX) } else { limit };
    let mut unpacker = Unpacker {
        lua,
        data: Reader { rest },
        builder: Builder::new(),
        levels: Vec::new(),
        meter: Meter::new(lua),
    };
    unpacker.values(limit)?;
    let n_left = unpacker.data.rest.len();
    let mut values = unpacker.builder.finish(lua)?;
    if !is_all {
        let next = if n_left == 0 { -1 } else { (data.len() - n_left) as i64 };
        values.push_front(Value::Integer(next));
    }
    Ok(values)
}

/// The meaning of a value's first bytes.
pub(super) enum PackedItem<'a> {
    /// A value that is no table.
    Value(Part<'a>),
    /// A table, with the number of values that follow, keys included.
    Table(TableKind, usize),
}

/// A table that is being read.
struct UnreadTable {
    kind: TableKind,
    /// The number of values that it still needs. An announced count allocates nothing.
    n_left: usize,
    /// The reason why the last key is not allowed. Lua complains when the key's value is assigned.
    bad_key: Option<&'static str>,
}

struct Unpacker<'a> {
    lua: &'a Lua,
    data: Reader<'a>,
    builder: Builder<'a>,
    levels: Vec<UnreadTable>,
    meter: Meter<'a>,
}

impl<'a> Unpacker<'a> {
    fn values(&mut self, limit: i64) -> Result<(), Failure> {
        let (mut n_values, mut n_held) = (0, 0);
        while !self.data.rest.is_empty() && (n_values as i64) < limit {
            n_held += usize::from(self.value()?);
            if n_values == MAX_VALUES || n_held > MAX_HELD {
                return Err(Failure::fixed(TOO_MANY_VALUES));
            }
            n_values += 1;
        }
        Ok(())
    }

    /// Reads one value with its contents. Returns whether mlua will hold it in a stack of its own.
    fn value(&mut self) -> Result<bool, Failure> {
        loop {
            self.meter.spend(1)?;
            let part = match self.data.item()? {
                PackedItem::Value(part) => part,
                PackedItem::Table(kind, n_values) => {
                    self.open(kind, n_values)?;
                    if n_values > 0 {
                        continue;
                    }
                    self.levels.pop();
                    Part::Close
                }
            };
            if let Part::Text(text) = &part {
                self.meter.spend((text.len() / 16) as u32)?;
            }
            if let Some(is_held) = self.put(part)? {
                return Ok(is_held);
            }
        }
    }

    fn open(&mut self, kind: TableKind, n_values: usize) -> Result<(), Failure> {
        if self.builder.depth() == MAX_DEPTH {
            return Err(Failure::fixed(match kind {
                TableKind::Array => "stack overflow (in function mp_decode_to_lua_array)",
                TableKind::Map => TOO_MANY_VALUES,
            }));
        }
        self.builder.open(self.lua, kind)?;
        self.levels.push(UnreadTable { kind, n_left: n_values, bad_key: None });
        Ok(())
    }

    /// Puts a value into its table, and closes tables that are complete.
    ///
    /// For a value outside of all tables, it returns whether mlua will hold the value.
    fn put(&mut self, mut part: Part<'a>) -> Result<Option<bool>, Failure> {
        loop {
            if let Some(level) = self.levels.last_mut() {
                let is_key = level.kind == TableKind::Map && level.n_left.is_multiple_of(2);
                level.n_left -= 1;
                if is_key {
                    level.bad_key = refusal_of_key(&part);
                } else if let Some(text) = level.bad_key {
                    return Err(Failure::Bare(text));
                }
            }
            let is_held = matches!(part, Part::Text(_) | Part::Close);
            match part {
                Part::Close => self.builder.close(self.lua)?,
                other => self.builder.push(self.lua, other)?,
            }
            match self.levels.last() {
                None => return Ok(Some(is_held)),
                Some(level) if level.n_left > 0 => return Ok(None),
                Some(_) => self.levels.pop(),
            };
            part = Part::Close;
        }
    }
}

/// The data that is not read yet.
pub(super) struct Reader<'a> {
    pub rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Reads a value's first bytes, or all of it if it is no table.
    pub fn item(&mut self) -> Result<PackedItem<'a>, Failure> {
        let tag = self.take(1)?[0];
        Ok(match tag {
            0..=0x7f | 0xe0..=0xff => whole(i64::from(tag as i8)),
            0x80..=0x8f => PackedItem::Table(TableKind::Map, 2 * usize::from(tag & 0xf)),
            0x90..=0x9f => PackedItem::Table(TableKind::Array, usize::from(tag & 0xf)),
            0xa0..=0xbf => text(self.take(usize::from(tag & 0x1f))?),
            0xc0 => PackedItem::Value(Part::Nil),
            0xc2 | 0xc3 => PackedItem::Value(Part::Boolean(tag == 0xc3)),
            0xca => PackedItem::Value(Part::Number(f64::from(f32::from_bits(self.unsigned(4)? as u32)))),
            0xcb => PackedItem::Value(Part::Number(f64::from_bits(self.unsigned(8)?))),
            0xcc => whole(self.unsigned(1)? as i64),
            0xcd => whole(self.unsigned(2)? as i64),
            0xce => whole(self.unsigned(4)? as i64),
            // Lua's integers have a sign, so the largest values become negative.
            0xcf | 0xd3 => whole(self.unsigned(8)? as i64),
            0xd0 => whole(i64::from(self.unsigned(1)? as i8)),
            0xd1 => whole(i64::from(self.unsigned(2)? as i16)),
            0xd2 => whole(i64::from(self.unsigned(4)? as i32)),
            0xd9 => self.string(1)?,
            0xda => self.string(2)?,
            0xdb => self.string(4)?,
            0xdc => PackedItem::Table(TableKind::Array, self.unsigned(2)? as usize),
            0xdd => PackedItem::Table(TableKind::Array, self.unsigned(4)? as usize),
            0xde => PackedItem::Table(TableKind::Map, 2 * self.unsigned(2)? as usize),
            0xdf => PackedItem::Table(TableKind::Map, 2 * self.unsigned(4)? as usize),
            0xc1 | 0xc4..=0xc9 | 0xd4..=0xd8 => return Err(Failure::fixed("Bad data format in input.")),
        })
    }

    /// Takes the next bytes of the data.
    fn take(&mut self, n_bytes: usize) -> Result<&'a [u8], Failure> {
        let missing = || Failure::fixed("Missing bytes in input.");
        let (taken, rest) = self.rest.split_at_checked(n_bytes).ok_or_else(missing)?;
        self.rest = rest;
        Ok(taken)
    }

    fn unsigned(&mut self, n_bytes: usize) -> Result<u64, Failure> {
        Ok(self.take(n_bytes)?.iter().fold(0, |number, byte| number << 8 | u64::from(*byte)))
    }

    /// Reads a string after its length, which has `n_bytes`.
    fn string(&mut self, n_bytes: usize) -> Result<PackedItem<'a>, Failure> {
        let length = self.unsigned(n_bytes)? as usize;
        self.take(length).map(text)
    }
}

fn whole<'a>(value: i64) -> PackedItem<'a> {
    PackedItem::Value(Part::Number(value as f64))
}

fn text(text: &[u8]) -> PackedItem<'_> {
    PackedItem::Value(Part::Text(Cow::Borrowed(text)))
}

pub(super) fn refusal_of_key(key: &Part<'_>) -> Option<&'static str> {
    match key {
        Part::Nil => Some("table index is nil"),
        Part::Number(value) if value.is_nan() => Some("table index is NaN"),
        _ => None,
    }
}
