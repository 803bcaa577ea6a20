//! `cmsgpack.unpack`, `unpack_one` and `unpack_limit`.

use mlua::{Lua, MultiValue, Value};

use crate::library::arguments::Arguments;
use crate::library::meter::{Meter, Work};
use crate::library::raised::Failure;
use crate::library::tables::{Builder, Crossing, Kind, MAX_DEPTH};

/// How many values one call returns: Lua's stack has room for 8000.
const MAX_VALUES: usize = 7998;

/// How many of them may be strings and tables, which mlua holds in such a stack of its own.
const MAX_HELD: usize = 4000;

const TOO_MANY_VALUES: &str =
    "stack overflow (too many return values at once; use unpack_one or unpack_limit instead.)";

/// Returns all values of argument 1.
pub(super) fn unpack(lua: &Lua, arguments: Arguments, crossing: &Crossing) -> Result<MultiValue, Failure> {
    unpack_some(lua, arguments, 0, 0, crossing)
}

/// Returns one value of argument 1, from the offset of argument 2 on, after the offset of the next.
pub(super) fn unpack_one(
    lua: &Lua,
    arguments: Arguments,
    crossing: &Crossing,
) -> Result<MultiValue, Failure> {
    let offset = arguments.integer_or(lua, 2, 0)?;
    unpack_some(lua, arguments, 1, offset, crossing)
}

/// Returns as many values of argument 1 as argument 2 says, from the offset of argument 3 on, after the offset of the next.
pub(super) fn unpack_limit(
    lua: &Lua,
    arguments: Arguments,
    crossing: &Crossing,
) -> Result<MultiValue, Failure> {
    let limit = arguments.integer(lua, 2)?;
    let offset = arguments.integer_or(lua, 3, 0)?;
    unpack_some(lua, arguments, limit, offset, crossing)
}

/// Returns up to `limit` values from `offset` on. If both are 0, all are returned, and no offset with them.
fn unpack_some(
    lua: &Lua,
    mut arguments: Arguments,
    limit: i64,
    offset: i64,
    crossing: &Crossing,
) -> Result<MultiValue, Failure> {
    let data = arguments.string(lua, 1)?;
    let data = data.as_bytes();
    let (length, shown_offset) = (data.len() as i32, offset as i32);
    if offset < 0 || limit < 0 {
        // Redis names the length here too.
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
    let mut unpacker =
        Unpacker { lua, rest, builder: Builder::new(crossing), levels: Vec::new(), meter: Meter::new(lua) };
    let mut values = unpacker.values(limit)?;
    if !is_all {
        let next = if unpacker.rest.is_empty() { -1 } else { (data.len() - unpacker.rest.len()) as i64 };
        values.insert(0, Value::Integer(next));
    }
    Ok(MultiValue::from_vec(values))
}

/// What a value's first bytes say.
enum Item<'a> {
    Value(Value),
    String(&'a [u8]),
    /// A table with so many values to come, keys counted.
    Table(Kind, usize),
}

/// A table that is being read.
struct Level {
    kind: Kind,
    /// How many values it still needs. An announced count allocates nothing.
    n_left: usize,
    /// Why the last key cannot be one. Lua says so when the key's value is assigned.
    bad_key: Option<&'static str>,
}

struct Unpacker<'a> {
    lua: &'a Lua,
    rest: &'a [u8],
    builder: Builder<'a>,
    levels: Vec<Level>,
    meter: Meter<'a>,
}

impl<'a> Unpacker<'a> {
    fn values(&mut self, limit: i64) -> Result<Vec<Value>, Failure> {
        let mut values = Vec::new();
        let mut n_held = 0;
        while !self.rest.is_empty() && (values.len() as i64) < limit {
            let value = self.value()?;
            n_held += usize::from(matches!(value, Value::String(_) | Value::Table(_)));
            if values.len() == MAX_VALUES || n_held > MAX_HELD {
                return Err(Failure::fixed(TOO_MANY_VALUES));
            }
            values.push(value);
        }
        Ok(values)
    }

    /// Reads one value with all that is in it.
    fn value(&mut self) -> Result<Value, Failure> {
        loop {
            self.meter.spend(1)?;
            let value = match self.item()? {
                Item::Value(value) => value,
                Item::String(text) => {
                    self.meter.spend((text.len() / 16) as u32)?;
                    Value::String(self.lua.create_string(text)?)
                }
                Item::Table(kind, n_values) => {
                    self.open(kind, n_values)?;
                    if n_values > 0 {
                        continue;
                    }
                    self.close()?
                }
            };
            if let Some(value) = self.put(value)? {
                return Ok(value);
            }
        }
    }

    fn open(&mut self, kind: Kind, n_values: usize) -> Result<(), Failure> {
        if self.builder.depth() == MAX_DEPTH {
            return Err(Failure::fixed(match kind {
                Kind::Array => "stack overflow (in function mp_decode_to_lua_array)",
                Kind::Map => TOO_MANY_VALUES,
            }));
        }
        self.builder.open(self.lua, kind)?;
        self.levels.push(Level { kind, n_left: n_values, bad_key: None });
        Ok(())
    }

    fn close(&mut self) -> Result<Value, Failure> {
        self.levels.pop();
        Ok(self.builder.close(self.lua)?)
    }

    /// Puts a value into its table, and closes tables that are complete. Returns a value that is in none.
    fn put(&mut self, mut value: Value) -> Result<Option<Value>, Failure> {
        while let Some(level) = self.levels.last_mut() {
            let is_key = level.kind == Kind::Map && level.n_left.is_multiple_of(2);
            level.n_left -= 1;
            let is_complete = level.n_left == 0;
            if is_key {
                level.bad_key = refusal_of_key(&value);
            } else if let Some(text) = level.bad_key {
                return Err(Failure::Bare(text));
            }
            self.builder.push(self.lua, value)?;
            if !is_complete {
                return Ok(None);
            }
            value = self.close()?;
        }
        Ok(Some(value))
    }

    /// Reads a value's first bytes, and all of it that is no table's contents.
    fn item(&mut self) -> Result<Item<'a>, Failure> {
        let tag = self.take(1)?[0];
        Ok(match tag {
            0..=0x7f | 0xe0..=0xff => whole(i64::from(tag as i8)),
            0x80..=0x8f => Item::Table(Kind::Map, 2 * usize::from(tag & 0xf)),
            0x90..=0x9f => Item::Table(Kind::Array, usize::from(tag & 0xf)),
            0xa0..=0xbf => Item::String(self.take(usize::from(tag & 0x1f))?),
            0xc0 => Item::Value(Value::Nil),
            0xc2 | 0xc3 => Item::Value(Value::Boolean(tag == 0xc3)),
            0xca => Item::Value(Value::Number(f64::from(f32::from_bits(self.unsigned(4)? as u32)))),
            0xcb => Item::Value(Value::Number(f64::from_bits(self.unsigned(8)?))),
            0xcc => whole(self.unsigned(1)? as i64),
            0xcd => whole(self.unsigned(2)? as i64),
            0xce => whole(self.unsigned(4)? as i64),
            // Lua's integers have a sign, so the largest become negative.
            0xcf | 0xd3 => whole(self.unsigned(8)? as i64),
            0xd0 => whole(i64::from(self.unsigned(1)? as i8)),
            0xd1 => whole(i64::from(self.unsigned(2)? as i16)),
            0xd2 => whole(i64::from(self.unsigned(4)? as i32)),
            0xd9 => self.string(1)?,
            0xda => self.string(2)?,
            0xdb => self.string(4)?,
            0xdc => Item::Table(Kind::Array, self.unsigned(2)? as usize),
            0xdd => Item::Table(Kind::Array, self.unsigned(4)? as usize),
            0xde => Item::Table(Kind::Map, 2 * self.unsigned(2)? as usize),
            0xdf => Item::Table(Kind::Map, 2 * self.unsigned(4)? as usize),
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

    /// Reads a string with a length of `n_bytes` before it.
    fn string(&mut self, n_bytes: usize) -> Result<Item<'a>, Failure> {
        let length = self.unsigned(n_bytes)? as usize;
        self.take(length).map(Item::String)
    }
}

fn whole(value: i64) -> Item<'static> {
    Item::Value(Value::Integer(value))
}

fn refusal_of_key(key: &Value) -> Option<&'static str> {
    match key {
        Value::Nil => Some("table index is nil"),
        Value::Number(value) if value.is_nan() => Some("table index is NaN"),
        _ => None,
    }
}
