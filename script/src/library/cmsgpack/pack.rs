//! The function `cmsgpack.pack`.

use mlua::{Lua, LuaString, Table, Value};

use crate::library::arguments::{Arguments, as_number};
use crate::library::c_numbers::{truncate, truncate_32};
use crate::library::meter::{MAX_STRING_BYTES, Meter, Work};
use crate::library::raised::Failure;
use crate::library::tables::{Crossing, Pairs, scan};

/// The number of enclosing tables from which on a table is written as nil.
const MAX_NESTING: usize = 16;

/// The most values that one call writes. In Redis each takes two of the 8000 places of Lua's stack.
const MAX_ARGUMENTS: usize = 4000;

/// Returns the arguments as MessagePack, one after the other.
pub(super) fn pack(lua: &Lua, mut arguments: Arguments, crossing: &Crossing) -> Result<LuaString, Failure> {
    match arguments.count() {
        0 => return Err(Failure::argument(0, "MessagePack pack needs input.")),
        count if count > MAX_ARGUMENTS => {
            return Err(Failure::argument(0, "Too many arguments for MessagePack pack."));
        }
        _ => {}
    }
    let mut packer = Packer { crossing, out: Vec::new(), meter: Meter::new(lua) };
    for number in 1..=arguments.count() {
        packer.value(&arguments.take(number), 0)?;
    }
    Ok(lua.create_string(packer.out)?)
}

struct Packer<'a> {
    crossing: &'a Crossing,
    out: Vec<u8>,
    meter: Meter<'a>,
}

impl Packer<'_> {
    /// Appends a value. Its recursion is at most as deep as tables may nest.
    fn value(&mut self, value: &Value, depth: usize) -> Result<(), Failure> {
        self.meter.spend(1)?;
        match value {
            Value::String(text) => self.string(&text.as_bytes())?,
            Value::Boolean(value) => self.out.push(if *value { 0xc3 } else { 0xc2 }),
            Value::Integer(value) => self.integer(*value),
            Value::Number(value) => self.number(*value),
            Value::Table(table) if depth < MAX_NESTING => self.table(table, depth)?,
            _ => self.out.push(0xc0),
        }
        if self.out.len() > MAX_STRING_BYTES { Err(Failure::memory()) } else { Ok(()) }
    }

    fn string(&mut self, text: &[u8]) -> Result<(), Failure> {
        self.meter.spend((text.len() / 16) as u32)?;
        match text.len() {
            length @ 0..32 => self.out.push(0xa0 | length as u8),
            length @ 32..=0xff => self.out.extend_from_slice(&[0xd9, length as u8]),
            length => self.length(0xda, length),
        }
        self.out.extend_from_slice(text);
        Ok(())
    }

    /// Appends a length and its tag.
    ///
    /// The length has two bytes with the tag `short`, or four with the next tag.
    fn length(&mut self, short: u8, length: usize) {
        if length <= 0xffff {
            self.out.push(short);
            self.out.extend_from_slice(&(length as u16).to_be_bytes());
        } else {
            self.out.push(short + 1);
            self.out.extend_from_slice(&(length as u32).to_be_bytes());
        }
    }

    /// Appends a number, as an integer if it is one.
    ///
    /// Any other number takes four bytes if these hold it exactly, otherwise eight.
    fn number(&mut self, value: f64) {
        let whole = truncate(value);
        if value.is_finite() && whole as f64 == value {
            self.integer(whole);
        } else if f64::from(value as f32) == value {
            self.out.push(0xca);
            self.out.extend_from_slice(&(value as f32).to_be_bytes());
        } else {
            self.out.push(0xcb);
            self.out.extend_from_slice(&value.to_be_bytes());
        }
    }

    /// Appends an integer in the shortest form. One that is not negative gets a form without a sign.
    fn integer(&mut self, value: i64) {
        let bytes = value.to_be_bytes();
        let (tag, n_bytes) = match value {
            -32..=127 => return self.out.push(value as u8),
            128..=0xff => (0xcc, 1),
            0x100..=0xffff => (0xcd, 2),
            0x1_0000..=0xffff_ffff => (0xce, 4),
            0x1_0000_0000.. => (0xcf, 8),
            -0x80..-32 => (0xd0, 1),
            -0x8000..-0x80 => (0xd1, 2),
            -0x8000_0000..-0x8000 => (0xd2, 4),
            ..-0x8000_0000 => (0xd3, 8),
        };
        self.out.push(tag);
        self.out.extend_from_slice(&bytes[8 - n_bytes..]);
    }

    fn table(&mut self, table: &Table, depth: usize) -> Result<(), Failure> {
        let (mut n_keys, mut last, mut is_array) = (0_usize, 0_i32, true);
        let meter = &mut self.meter;
        let (read, is_all) = scan(table, depth, |key| {
            n_keys += 1;
            match as_index(key) {
                Some(index) => last = last.max(index),
                None => is_array = false,
            }
            meter.spend(1)?;
            Ok::<_, Failure>(true)
        })?;
        if is_array && last as usize == n_keys {
            self.array(table, n_keys, depth)
        } else {
            self.map(table, n_keys, Pairs::after(read, is_all), depth)
        }
    }

    fn array(&mut self, table: &Table, n_elements: usize, depth: usize) -> Result<(), Failure> {
        match n_elements {
            0..16 => self.out.push(0x90 | n_elements as u8),
            _ => self.length(0xdc, n_elements),
        }
        (1..=n_elements).try_for_each(|index| self.value(&table.raw_get(index)?, depth + 1))
    }

    fn map(&mut self, table: &Table, n_keys: usize, mut pairs: Pairs, depth: usize) -> Result<(), Failure> {
        match n_keys {
            0..16 => self.out.push(0x80 | n_keys as u8),
            _ => self.length(0xde, n_keys),
        }
        while let Some((key, value)) = pairs.next(self.crossing, table, depth)? {
            self.value(&key, depth + 1)?;
            self.value(&value, depth + 1)?;
        }
        Ok(())
    }
}

/// Returns the index that a key is, if it may be an array's index.
fn as_index(key: &Value) -> Option<i32> {
    let number = as_number(key)?;
    let index = truncate_32(number);
    (f64::from(index) == number && index > 0).then_some(index)
}
