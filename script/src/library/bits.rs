//! The global `bit`: operations on numbers of 32 bits.

use mlua::{Lua, LuaString, Value};

use super::arguments::Arguments;
use super::meter::{Meter, Work};
use super::raised::{Failure, function};

/// A function that joins two numbers.
type Join = fn(u32, u32) -> u32;

/// A function that makes another number of one.
type Change = fn(u32) -> u32;

const JOINS: [(&str, Join); 3] = [("band", |a, b| a & b), ("bor", |a, b| a | b), ("bxor", |a, b| a ^ b)];

/// The functions that shift a number.
///
/// The second number is the distance, of which the lowest five bits count.
const SHIFTS: [(&str, Join); 5] = [
    ("lshift", |bits, places| bits << (places & 31)),
    ("rshift", |bits, places| bits >> (places & 31)),
    ("arshift", |bits, places| (bits as i32 >> (places & 31)) as u32),
    ("rol", |bits, places| bits.rotate_left(places & 31)),
    ("ror", |bits, places| bits.rotate_right(places & 31)),
];

const CHANGES: [(&str, Change); 3] =
    [("tobit", |bits| bits), ("bnot", |bits| !bits), ("bswap", u32::swap_bytes)];

/// Makes the table.
pub(super) fn install(lua: &Lua) -> mlua::Result<()> {
    let table = lua.create_table()?;
    for (name, join) in JOINS {
        table.raw_set(name, function(lua, move |lua, arguments| join_all(lua, &arguments, join))?)?;
    }
    for (name, shift) in SHIFTS {
        let shift = move |lua: &Lua, arguments: Arguments| {
            Ok(signed(shift(bits(lua, &arguments, 1)?, bits(lua, &arguments, 2)?)))
        };
        table.raw_set(name, function(lua, shift)?)?;
    }
    for (name, change) in CHANGES {
        let change = move |lua: &Lua, arguments: Arguments| Ok(signed(change(bits(lua, &arguments, 1)?)));
        table.raw_set(name, function(lua, change)?)?;
    }
    table.raw_set("tohex", function(lua, to_hexadecimal)?)?;
    lua.globals().raw_set("bit", table)
}

/// The number as scripts see it, which is signed.
fn signed(bits: u32) -> Value {
    Value::Integer(i64::from(bits as i32))
}

/// Returns the lowest 32 bits of a number; 0 for NaN and infinity.
///
/// The number is rounded to the nearest integer, and then to the even one.
fn low_bits(value: f64) -> u32 {
    // At this magnitude, 1.5 times 2 to the power of 52, a double's last place is worth one.
    const SHIFTER: f64 = 6_755_399_441_055_744.0;
    (value + SHIFTER).to_bits() as u32
}

fn bits(lua: &Lua, arguments: &Arguments, number: usize) -> Result<u32, Failure> {
    arguments.number(lua, number).map(low_bits)
}

/// Joins all arguments.
///
/// After the first they are read from the last to the second. If several of these are wrong, the last one is
/// refused.
fn join_all(lua: &Lua, arguments: &Arguments, join: Join) -> Result<Value, Failure> {
    let mut meter = Meter::new(lua);
    let mut sum = bits(lua, arguments, 1)?;
    for number in (2..=arguments.count()).rev() {
        meter.spend(1)?;
        sum = join(sum, bits(lua, arguments, number)?);
    }
    Ok(signed(sum))
}

/// Writes hexadecimal digits. Argument 2 is their number, at most 8.
///
/// A negative number asks for capitals.
fn to_hexadecimal(lua: &Lua, arguments: Arguments) -> Result<LuaString, Failure> {
    let value = bits(lua, &arguments, 1)?;
    let wanted = if arguments.count() < 2 { 8 } else { bits(lua, &arguments, 2)? as i32 };
    let digits = if wanted < 0 { format!("{value:08X}") } else { format!("{value:08x}") };
    // The smallest number has no positive counterpart.
    let shown = wanted.unsigned_abs().min(8) as usize;
    Ok(lua.create_string(&digits[8 - shown..])?)
}
