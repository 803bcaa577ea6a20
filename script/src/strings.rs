//! The functions on strings that can make long strings of short ones.

use std::rc::Rc;

use mlua::{Lua, MultiValue, Table, Value};

use crate::bridge;
use crate::lua_value::{self, kind};
use crate::natives::with_run;
use crate::raise;
use crate::run_state::Run;

/// The longest string that is made.
const MAX_STRING_BYTES: usize = 1 << 30;

/// Replaces the functions in `string`.
pub(crate) fn install(lua: &Lua, run: &Rc<Run>, string: &Table) -> mlua::Result<()> {
    string.raw_set("rep", with_run(lua, run, |lua, run, args| rep(lua, run, &args))?)?;
    bridge::count_bytes(lua, run, string, &["reverse", "upper", "lower", "sub", "format"])
}

fn rep(lua: &Lua, run: &Run, args: &MultiValue) -> mlua::Result<Value> {
    let complaint = |position, expected, value: Option<&Value>| {
        let got = value.map_or("no value", kind);
        raise::called_with(lua, position, &format!("{expected} expected, got {got}"))
    };
    let text = args.front().and_then(lua_value::tolstring);
    let text = text.ok_or_else(|| complaint(1, "string", args.front()))?;
    let n = args.get(1).and_then(|value| lua.coerce_number(value.clone()).ok().flatten());
    let n = n.ok_or_else(|| complaint(2, "number", args.get(1)))?;
    let n = (lua_value::truncated(n) as i32).max(0) as usize;
    let bytes = text.len().saturating_mul(n);
    if bytes > MAX_STRING_BYTES || run.is_full(lua, bytes) {
        return Err(raise::no_memory());
    }
    run.work_through(bytes).map_err(raise::stop)?;
    lua.create_string(if bytes == 0 { Vec::new() } else { text.repeat(n) }).map(Value::String)
}
