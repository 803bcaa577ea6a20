//! `math.random` and `math.randomseed` as in Redis: the same seed gives the same numbers on every machine. Numbers go on from run to
//! run, as in Redis since 7.0.

use std::rc::Rc;

use mlua::{Lua, MultiValue, Table, Value};

use crate::api::with_run;
use crate::convert;
use crate::errors;
use crate::host::Run;
use crate::sandbox::kind;

const MULTIPLIER: u64 = 0x5_DEEC_E66D;
const INCREMENT: u64 = 0xB;
const MASK: u64 = (1 << 48) - 1;
/// The lowest 16 bits of a seeded state.
const SEED_LOW: u64 = 0x330E;
/// The state before any seed, from which redis-server starts too.
const UNSEEDED: u64 = 0x1234_ABCD_330E;
/// Numbers are below this one.
const RANGE: u64 = i32::MAX as u64;

/// The state of the generator of `lrand48`: 48 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Random(u64);

impl Default for Random {
    fn default() -> Self {
        Random(UNSEEDED)
    }
}

impl Random {
    pub fn seeded(seed: i32) -> Self {
        Random(u64::from(seed as u32) << 16 | SEED_LOW)
    }

    /// The generator's next state, and its number in `0..1`.
    fn next(self) -> (Self, f64) {
        let state = self.0.wrapping_mul(MULTIPLIER).wrapping_add(INCREMENT) & MASK;
        let bits = state >> 17;
        (Random(state), (bits % RANGE) as f64 / RANGE as f64)
    }
}

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
        _ => return Err(errors::text("wrong number of arguments")),
    };
    if low > high {
        return Err(errors::called_with(lua, args.len(), "interval is empty"));
    }
    // How many there are wraps around, as in Redis.
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
        .ok_or_else(|| errors::called_with(lua, position, &format!("number expected, got {}", got())))?;
    Ok(convert::truncated(number) as i32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_lrand48() {
        let (mut random, mut numbers) = (Random::seeded(0), Vec::new());
        for _ in 0..3 {
            let (next, unit) = random.next();
            random = next;
            numbers.push((unit * 1000.0) as u32);
        }
        // The first numbers of `drand48` from seed 0 are 0.1708280, 0.7499019, 0.0963717.
        assert_eq!(numbers, [170, 749, 96]);
    }
}
