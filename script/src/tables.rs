//! What `prelude.lua` needs of Rust for the functions on tables that it replaces.

use std::rc::Rc;

use mlua::{Lua, Table, Value};

use crate::api::unlimited;
use crate::errors;
use crate::host::Run;
use crate::sandbox::kind;

/// Adds the functions to `native`.
pub(crate) fn install(lua: &Lua, run: &Rc<Run>, native: &Table) -> mlua::Result<()> {
    native.raw_set(
        "number",
        lua.create_function(|_, (value, position, name): (Value, usize, String)| {
            checked(&value, position, &name)
        })?,
    )?;
    let run = Rc::clone(run);
    native.raw_set(
        "concat",
        lua.create_function(move |lua, pieces: Table| unlimited(lua, &run, || concat(lua, &pieces)))?,
    )
}

/// The number that an argument stands for, or the error about it.
pub(crate) fn checked(value: &Value, position: usize, function: &str) -> mlua::Result<f64> {
    let complaint = || format!("number expected, got {}", kind(value));
    number(value).ok_or_else(|| errors::bad_argument(position, function, &complaint()))
}

/// The number that a value stands for.
pub(crate) fn number(value: &Value) -> Option<f64> {
    match value {
        Value::Integer(integer) => Some(*integer as f64),
        Value::Number(number) => Some(*number),
        Value::String(text) => std::str::from_utf8(&text.as_bytes()).ok()?.trim().parse().ok(),
        _ => None,
    }
}

/// The pieces of a source in one string.
fn concat(lua: &Lua, pieces: &Table) -> mlua::Result<mlua::LuaString> {
    let mut whole = Vec::new();
    for piece in pieces.sequence_values::<mlua::LuaString>() {
        whole.extend_from_slice(&piece?.as_bytes());
    }
    lua.create_string(whole)
}
