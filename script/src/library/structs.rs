//! The global `struct`: numbers and strings to and from C's structures.
//!
//! A format is a list of options:
//! - `<` and `>` set the order of bytes, and `!n` sets the alignment;
//! - `b h l T i n` and their capitals are integers;
//! - `f` and `d` are floating-point numbers;
//! - `s` and `cn` are strings;
//! - `x` is a byte of padding.
//!
//! A format ends at its first zero byte.

use mlua::{Lua, LuaString, MultiValue, Value};

use super::arguments::Arguments;
use super::c_numbers::truncate;
use super::meter::{Meter, Work};
use super::raised::{Failure, function};

/// The size of the largest integer in bytes.
const MAX_INTEGER_BYTES: usize = 32;

/// The most values that `unpack` returns.
///
/// mlua holds them in a stack that Lua limits to 8000.
const MAX_RESULTS: usize = 4000;

/// Makes the table.
pub(super) fn install(lua: &Lua) -> mlua::Result<()> {
    let table = lua.create_table()?;
    table.raw_set("pack", function(lua, pack)?)?;
    table.raw_set("unpack", function(lua, unpack)?)?;
    table.raw_set("size", function(lua, size)?)?;
    lua.globals().raw_set("struct", table)
}

#[derive(Clone, Copy, PartialEq)]
enum ByteOrder {
    Big,
    Little,
}

/// A reader of a format's options.
struct Format<'a> {
    rest: &'a [u8],
    order: ByteOrder,
    alignment: usize,
}

impl<'a> Format<'a> {
    fn new(text: &'a [u8]) -> Self {
        let length = memchr::memchr(0, text).unwrap_or(text.len());
        Self { rest: &text[..length], order: ByteOrder::Little, alignment: 1 }
    }

    /// Returns the next option with the number of bytes that it takes.
    ///
    /// The number is 0 if it depends on the value, or if the option takes none.
    fn next(&mut self) -> Result<Option<(u8, usize)>, Failure> {
        let Some((&option, rest)) = self.rest.split_first() else { return Ok(None) };
        self.rest = rest;
        let n_bytes = match option {
            b'b' | b'B' | b'x' => 1,
            b'h' | b'H' => 2,
            b'f' => 4,
            b'l' | b'L' | b'T' | b'd' => 8,
            b'c' => self.number(1)?,
            b'i' | b'I' => self.integer_bytes()?,
            _ => 0,
        };
        Ok(Some((option, n_bytes)))
    }

    fn integer_bytes(&mut self) -> Result<usize, Failure> {
        let n_bytes = self.number(4)?;
        if n_bytes > MAX_INTEGER_BYTES {
            let text = format!("integral size {n_bytes} is larger than limit of {MAX_INTEGER_BYTES}");
            return Err(Failure::text(text));
        }
        Ok(n_bytes)
    }

    /// Reads the number that follows, or returns `default`. The number must fit into an `int`.
    fn number(&mut self, default: usize) -> Result<usize, Failure> {
        let n_digits = self.rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
        let (digits, rest) = self.rest.split_at(n_digits);
        self.rest = rest;
        if digits.is_empty() {
            return Ok(default);
        }
        let number = digits
            .iter()
            .try_fold(0_i32, |number, digit| number.checked_mul(10)?.checked_add(i32::from(digit - b'0')));
        number.map(|number| number as usize).ok_or_else(|| Failure::fixed("integral size overflow"))
    }

    /// Returns the number of bytes of padding that an option needs at `position`.
    fn padding(&self, position: usize, option: u8, n_bytes: usize) -> usize {
        if n_bytes == 0 || option == b'c' {
            return 0;
        }
        let mask = n_bytes.min(self.alignment) - 1;
        // The length of an integer need not be a power of two. The mask then has the same effect as in Redis.
        (mask + 1).wrapping_sub(position & mask) & mask
    }

    /// Executes an option that takes no value.
    fn control(&mut self, option: u8) -> Result<(), Failure> {
        match option {
            b' ' => {}
            b'>' => self.order = ByteOrder::Big,
            b'<' => self.order = ByteOrder::Little,
            b'!' => {
                let alignment = self.number(8)?;
                if !alignment.is_power_of_two() {
                    return Err(Failure::text(format!("alignment {alignment} is not a power of 2")));
                }
                self.alignment = alignment;
            }
            _ => return Err(invalid_option(option)),
        }
        Ok(())
    }

    /// Turns bytes in the machine's order into the format's, or back.
    fn reorder<'b>(&self, bytes: &'b mut [u8]) -> &'b [u8] {
        if self.order == ByteOrder::Big {
            bytes.reverse();
        }
        bytes
    }
}

fn invalid_option(option: u8) -> Failure {
    let text = [b"invalid format option '".as_slice(), &[option], b"'"].concat();
    Failure::Argument { number: 1, text: text.into() }
}

/// Returns the integer that C makes of a number.
///
/// It is signed if the number is negative, otherwise unsigned.
fn to_unsigned(value: f64) -> u64 {
    const HALF: f64 = 9_223_372_036_854_775_808.0;
    if value >= HALF { truncate(value - HALF) as u64 ^ 1 << 63 } else { truncate(value) as u64 }
}

fn pack(lua: &Lua, mut arguments: Arguments) -> Result<LuaString, Failure> {
    let format = arguments.string(lua, 1)?;
    let format = format.as_bytes();
    let mut packer = StructPacker { format: Format::new(&format), out: Vec::new(), argument: 2 };
    let mut meter = Meter::new(lua);
    while let Some((option, n_bytes)) = packer.format.next()? {
        let before = packer.out.len();
        packer.pad(option, n_bytes);
        packer.push(lua, &mut arguments, option, n_bytes)?;
        meter.spend(1 + (packer.out.len() - before) as u32 / 16)?;
    }
    Ok(lua.create_string(packer.out)?)
}

struct StructPacker<'a> {
    format: Format<'a>,
    out: Vec<u8>,
    /// The next argument to pack.
    argument: usize,
}

impl StructPacker<'_> {
    fn pad(&mut self, option: u8, n_bytes: usize) {
        let padding = self.format.padding(self.out.len(), option, n_bytes);
        self.out.resize(self.out.len() + padding, 0);
    }

    fn push(
        &mut self,
        lua: &Lua,
        arguments: &mut Arguments,
        option: u8,
        n_bytes: usize,
    ) -> Result<(), Failure> {
        match option {
            b'b' | b'B' | b'h' | b'H' | b'l' | b'L' | b'T' | b'i' | b'I' => {
                let value = to_unsigned(self.number(lua, arguments)?);
                self.push_integer(value, n_bytes);
            }
            b'x' => self.out.push(0),
            b'f' => {
                let mut bytes = (self.number(lua, arguments)? as f32).to_le_bytes();
                self.out.extend_from_slice(self.format.reorder(&mut bytes));
            }
            b'd' => {
                let mut bytes = self.number(lua, arguments)?.to_le_bytes();
                self.out.extend_from_slice(self.format.reorder(&mut bytes));
            }
            b'c' | b's' => self.push_string(lua, arguments, option, n_bytes)?,
            _ => self.format.control(option)?,
        }
        Ok(())
    }

    fn number(&mut self, lua: &Lua, arguments: &mut Arguments) -> Result<f64, Failure> {
        arguments.end_with_nil(self.argument);
        self.argument += 1;
        arguments.number(lua, self.argument - 1)
    }

    fn push_integer(&mut self, value: u64, n_bytes: usize) {
        let mut bytes = [0; MAX_INTEGER_BYTES];
        bytes[..8].copy_from_slice(&value.to_le_bytes());
        let bytes = self.format.reorder(&mut bytes[..n_bytes]);
        self.out.extend_from_slice(bytes);
    }

    fn push_string(
        &mut self,
        lua: &Lua,
        arguments: &mut Arguments,
        option: u8,
        n_bytes: usize,
    ) -> Result<(), Failure> {
        arguments.end_with_nil(self.argument);
        let text = arguments.string(lua, self.argument)?;
        self.argument += 1;
        let text = text.as_bytes();
        let wanted = if n_bytes == 0 { text.len() } else { n_bytes };
        let wanted =
            text.get(..wanted).ok_or_else(|| Failure::argument(self.argument, "string too short"))?;
        self.out.extend_from_slice(wanted);
        self.out.resize(self.out.len() + usize::from(option == b's'), 0);
        Ok(())
    }
}

fn unpack(lua: &Lua, mut arguments: Arguments) -> Result<MultiValue, Failure> {
    let format = arguments.string(lua, 1)?;
    let data = arguments.string(lua, 2)?;
    let first = arguments.integer_or(lua, 3, 1)?;
    if first == 0 {
        return Err(Failure::argument(3, "offset must be 1 or greater"));
    }
    let (format, data) = (format.as_bytes(), data.as_bytes());
    let position = (first as usize).wrapping_sub(1);
    let mut unpacker =
        StructUnpacker { format: Format::new(&format), data: &data, position, results: Vec::new() };
    let mut meter = Meter::new(lua);
    while let Some((option, n_bytes)) = unpacker.format.next()? {
        let before = unpacker.position;
        unpacker.read(lua, option, n_bytes)?;
        meter.spend(1 + (unpacker.position.saturating_sub(before) / 16) as u32)?;
    }
    unpacker.results.push(Value::Integer(unpacker.position.wrapping_add(1) as i64));
    Ok(MultiValue::from_vec(unpacker.results))
}

struct StructUnpacker<'a> {
    format: Format<'a>,
    data: &'a [u8],
    position: usize,
    results: Vec<Value>,
}

impl<'a> StructUnpacker<'a> {
    /// Returns the next `n_bytes` of the data, and does not advance.
    fn peek(&self, n_bytes: usize) -> Result<&'a [u8], Failure> {
        let end = self.position.checked_add(n_bytes);
        let bytes = end.and_then(|end| self.data.get(self.position..end));
        bytes.ok_or_else(|| Failure::argument(2, "data string too short"))
    }

    fn read(&mut self, lua: &Lua, option: u8, n_bytes: usize) -> Result<(), Failure> {
        self.position = self.position.wrapping_add(self.format.padding(self.position, option, n_bytes));
        let bytes = self.peek(n_bytes)?;
        if self.results.len() == MAX_RESULTS {
            return Err(Failure::fixed("stack overflow (too many results)"));
        }
        let (value, n_read) = match option {
            b'b' | b'B' | b'h' | b'H' | b'l' | b'L' | b'T' | b'i' | b'I' => {
                (self.integer(option, bytes), n_bytes)
            }
            b'f' | b'd' => (self.float(bytes), n_bytes),
            b'c' => {
                let bytes = if n_bytes == 0 { self.announced(lua)? } else { bytes };
                (Value::String(lua.create_string(bytes)?), bytes.len())
            }
            b's' => {
                let rest = &self.data[self.position..];
                let length =
                    memchr::memchr(0, rest).ok_or_else(|| Failure::fixed("unfinished string in data"))?;
                (Value::String(lua.create_string(&rest[..length])?), length + 1)
            }
            b'x' => {
                self.position += 1;
                return Ok(());
            }
            _ => return self.format.control(option),
        };
        self.results.push(value);
        self.position += n_read;
        Ok(())
    }

    /// Returns the bytes that follow. Their length is the last result, which is removed.
    fn announced(&mut self, lua: &Lua) -> Result<&'a [u8], Failure> {
        let length = match self.results.last() {
            Some(value @ (Value::Integer(_) | Value::Number(_) | Value::String(_))) => {
                lua.coerce_number(value.clone())?
            }
            _ => None,
        };
        let length = length.ok_or_else(|| Failure::fixed("format 'c0' needs a previous size"))?;
        self.results.pop();
        self.peek(to_unsigned(length) as usize)
    }

    fn integer(&self, option: u8, bytes: &[u8]) -> Value {
        let join = |value: u64, byte: &u8| value << 8 | u64::from(*byte);
        let value = match self.format.order {
            ByteOrder::Big => bytes.iter().fold(0, join),
            ByteOrder::Little => bytes.iter().rev().fold(0, join),
        };
        if option.is_ascii_uppercase() {
            Value::Number(value as f64)
        } else {
            Value::Number(extend_sign(value, bytes.len()) as f64)
        }
    }

    fn float(&self, bytes: &[u8]) -> Value {
        let mut ordered = [0; 8];
        let ordered = &mut ordered[..bytes.len()];
        ordered.copy_from_slice(bytes);
        Value::Number(match *self.format.reorder(ordered) {
            [a, b, c, d] => f64::from(f32::from_le_bytes([a, b, c, d])),
            [a, b, c, d, e, f, g, h] => f64::from_le_bytes([a, b, c, d, e, f, g, h]),
            _ => unreachable!("a floating-point number has 4 or 8 bytes"),
        })
    }
}

/// Extends an integer of `n_bytes` by its sign, which is its highest bit.
///
/// For more than eight bytes that bit's number is taken modulo 64, as the processor's shift does in Redis.
fn extend_sign(value: u64, n_bytes: usize) -> i64 {
    let mask = u64::MAX.wrapping_shl((n_bytes as u32 * 8).wrapping_sub(1));
    if value & mask != 0 { (value | mask) as i64 } else { value as i64 }
}

fn size(lua: &Lua, mut arguments: Arguments) -> Result<i64, Failure> {
    let format = arguments.string(lua, 1)?;
    let format = format.as_bytes();
    let mut format = Format::new(&format);
    let mut meter = Meter::new(lua);
    let mut position = 0_usize;
    while let Some((option, n_bytes)) = format.next()? {
        meter.spend(1)?;
        position += format.padding(position, option, n_bytes);
        match option {
            b's' => return Err(Failure::argument(1, "option 's' has no fixed size")),
            b'c' if n_bytes == 0 => return Err(Failure::argument(1, "option 'c0' has no fixed size")),
            letter if letter.is_ascii_alphanumeric() => {}
            control => format.control(control)?,
        }
        position = position.saturating_add(n_bytes);
    }
    Ok(position as i64)
}
