//! `math.random` and `math.randomseed` as in Redis.
//!
//! Their numbers continue from run to run, as in Redis since 7.0.

use std::rc::Rc;

use mlua::{Lua, MultiValue, Table, Value};

use crate::generator::Random;
use crate::lua_value::{self, kind};
use crate::natives::with_run;
use crate::raise;
use crate::run_state::Run;

/// Replaces both functions in `math`.
pub(crate) fn install(lua: &Lua, run: &Rc<Run>, math: &Table) -> mlua::Result<()> {
    math.raw_set("random", with_run(lua, run, |lua, run, args| random(lua, run, &args))?)?;
    math.raw_set("randomseed", with_run(lua, run, |lua, run, args| seed(lua, run, &args))?)
}

fn random(lua: &Lua, run: &Run, args: &MultiValue) -> mlua::Result<Value> {
    let (next, unit) = run.random.get().next();
    run.random.set(next);
    let (low, high) = match args.len() {
        0 => return Ok(Value::Number(unit)),
        1 => (1, integer(lua, args, 1)?),
        2 => (integer(lua, args, 1)?, integer(lua, args, 2)?),
        _ => return Err(raise::text("wrong number of arguments")),
    };
    if low > high {
        return Err(raise::called_with(lua, args.len(), "interval is empty"));
    }
    // The size of the interval wraps around, as in Redis.
    let n = high.wrapping_sub(low).wrapping_add(1);
    Ok(Value::Number((unit * f64::from(n)).floor() + f64::from(low)))
}

fn seed(lua: &Lua, run: &Run, args: &MultiValue) -> mlua::Result<Value> {
    run.random.set(Random::seeded(integer(lua, args, 1)?));
    Ok(Value::Nil)
}

/// An argument as C's `int`.
fn integer(lua: &Lua, args: &MultiValue, position: usize) -> mlua::Result<i32> {
    let value = args.get(position - 1);
    let number = value.and_then(|value| lua.coerce_number(value.clone()).ok().flatten());
    let got = || value.map_or("no value", kind);
    let number = number
        .ok_or_else(|| raise::called_with(lua, position, &format!("number expected, got {}", got())))?;
    Ok(lua_value::truncated(number) as i32)
}
