//! The settings that scripts may change.

use std::cell::Cell;
use std::rc::Rc;

use mlua::{Lua, MultiValue, Table, Value};

use crate::library::arguments::Arguments;
use crate::library::raised::{Failure, function};

/// The treatment of NaN and infinity, which JSON does not have.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum InvalidNumbers {
    Refused,
    Written,
    Null,
}

/// The settings of one table of functions.
#[derive(Clone, Copy)]
pub(super) struct Settings {
    /// Whether an array that is too sparse becomes an object. Otherwise it is refused.
    pub(super) converts_sparse: bool,
    /// The ratio beyond which an array is too sparse, or 0 to allow all.
    ///
    /// It is that of the last index to the count of elements.
    pub(super) sparse_ratio: i32,
    /// The largest last index up to which no array is too sparse.
    pub(super) sparse_safe: i32,
    pub(super) encode_max_depth: i32,
    pub(super) decode_max_depth: i32,
    /// The number of significant digits that are written.
    pub(super) precision: i32,
    /// A setting without an effect that a script could see: buffers are not kept.
    keeps_buffer: bool,
    pub(super) encoded_invalid: InvalidNumbers,
    /// Whether to read infinity, NaN, hexadecimal digits, leading zeros and pluses.
    pub(super) decodes_invalid: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            converts_sparse: false,
            sparse_ratio: 2,
            sparse_safe: 10,
            encode_max_depth: 1000,
            decode_max_depth: 1000,
            precision: 14,
            keeps_buffer: true,
            encoded_invalid: InvalidNumbers::Refused,
            decodes_invalid: true,
        }
    }
}

/// A function that changes settings and returns them.
///
/// The table has the number of its arguments.
type Configure = fn(&Lua, &mut Arguments, &mut Settings) -> Result<MultiValue, Failure>;

const FUNCTIONS: [(&str, usize, Configure); 7] = [
    ("encode_sparse_array", 3, sparse_array),
    ("encode_max_depth", 1, |lua, arguments, settings| {
        one(integer(lua, arguments, 1, &mut settings.encode_max_depth, 1, i32::MAX)?)
    }),
    ("decode_max_depth", 1, |lua, arguments, settings| {
        one(integer(lua, arguments, 1, &mut settings.decode_max_depth, 1, i32::MAX)?)
    }),
    ("encode_number_precision", 1, |lua, arguments, settings| {
        one(integer(lua, arguments, 1, &mut settings.precision, 1, 14)?)
    }),
    ("encode_keep_buffer", 1, |lua, arguments, settings| {
        one(switch(lua, arguments, &mut settings.keeps_buffer)?)
    }),
    ("encode_invalid_numbers", 1, encode_invalid_numbers),
    ("decode_invalid_numbers", 1, |lua, arguments, settings| {
        one(switch(lua, arguments, &mut settings.decodes_invalid)?)
    }),
];

/// Adds the functions to the library's table.
pub(super) fn install(lua: &Lua, table: &Table, settings: &Rc<Cell<Settings>>) -> mlua::Result<()> {
    for (name, n_arguments, configure) in FUNCTIONS {
        let settings = settings.clone();
        let body = move |lua: &Lua, mut arguments: Arguments| {
            if arguments.count() > n_arguments {
                return Err(Failure::argument(n_arguments + 1, "found too many arguments"));
            }
            let mut changed = settings.get();
            let outcome = configure(lua, &mut arguments, &mut changed);
            settings.set(changed);
            outcome
        };
        table.raw_set(name, function(lua, body)?)?;
    }
    Ok(())
}

fn one(value: Value) -> Result<MultiValue, Failure> {
    Ok(MultiValue::from_vec(vec![value]))
}

fn sparse_array(
    lua: &Lua,
    arguments: &mut Arguments,
    settings: &mut Settings,
) -> Result<MultiValue, Failure> {
    let converts = switch(lua, arguments, &mut settings.converts_sparse)?;
    let ratio = integer(lua, arguments, 2, &mut settings.sparse_ratio, 0, i32::MAX)?;
    let safe = integer(lua, arguments, 3, &mut settings.sparse_safe, 0, i32::MAX)?;
    Ok(MultiValue::from_vec(vec![converts, ratio, safe]))
}

/// Sets a number to an argument that is present, and returns it.
///
/// A refusal always names the first argument.
fn integer(
    lua: &Lua,
    arguments: &Arguments,
    number: usize,
    setting: &mut i32,
    min: i32,
    max: i32,
) -> Result<Value, Failure> {
    if !arguments.is_absent(number) {
        let value = arguments.integer(lua, number)? as i32;
        if !(min..=max).contains(&value) {
            let text = format!("expected integer between {min} and {max}");
            return Err(Failure::Argument { number: 1, text: text.into_bytes().into() });
        }
        *setting = value;
    }
    Ok(Value::Integer(i64::from(*setting)))
}

/// Sets a switch to argument 1, if that is present, and returns it.
fn switch(lua: &Lua, arguments: &mut Arguments, setting: &mut bool) -> Result<Value, Failure> {
    if let Some(choice) = choice(lua, arguments, &["off", "on"])? {
        *setting = choice == 1;
    }
    Ok(Value::Boolean(*setting))
}

/// Returns the index of argument 1 among the names, or `None` if it is absent.
///
/// False and true are the first two.
fn choice(lua: &Lua, arguments: &mut Arguments, names: &[&str]) -> Result<Option<usize>, Failure> {
    match arguments.get(1) {
        None | Some(Value::Nil) => return Ok(None),
        Some(Value::Boolean(value)) => return Ok(Some(usize::from(*value))),
        _ => {}
    }
    let text = arguments.string(lua, 1)?;
    let text = text.as_bytes();
    let text = text.split(|byte| *byte == 0).next().unwrap_or_default();
    let found = names.iter().position(|name| name.as_bytes() == text);
    let refusal = || [b"invalid option '".as_slice(), text, b"'"].concat();
    found.map(Some).ok_or_else(|| Failure::Argument { number: 1, text: refusal().into() })
}

fn encode_invalid_numbers(
    lua: &Lua,
    arguments: &mut Arguments,
    settings: &mut Settings,
) -> Result<MultiValue, Failure> {
    const CHOICES: [InvalidNumbers; 3] =
        [InvalidNumbers::Refused, InvalidNumbers::Written, InvalidNumbers::Null];
    if let Some(choice) = choice(lua, arguments, &["off", "on", "null"])? {
        settings.encoded_invalid = CHOICES[choice];
    }
    one(match settings.encoded_invalid {
        InvalidNumbers::Null => Value::String(lua.create_string("null")?),
        other => Value::Boolean(other == InvalidNumbers::Written),
    })
}
