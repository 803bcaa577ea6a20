//! The registration of functions: the table `redis` that a library sees while it loads.
//!
//! The library finds `redis.register_function`, `redis.log` and a few constants there, and nothing else, as
//! in Redis.

use std::rc::Rc;

use mlua::{Lua, MultiValue, Table, Value};

use crate::api;
use crate::engine_settings::Version;
use crate::functions::Registered;
use crate::run_state::Run;
use crate::shebang::{Flags, INVALID_NAME, valid_name};
use crate::{lua_value, natives, raise};

/// The table `redis` as a library sees it while it loads.
pub(crate) fn loading_table(lua: &Lua, run: &Rc<Run>, version: &Version) -> mlua::Result<Table> {
    let table = lua.create_table()?;
    api::log_and_version(lua, run, &table, version)?;
    let register = natives::with_run(lua, run, |_, run, args| register(run, &args))?;
    table.raw_set("register_function", register)?;
    Ok(table)
}

fn register(run: &Run, args: &MultiValue) -> mlua::Result<Value> {
    let mut registered = run.registered.borrow_mut();
    let Some(registered) = registered.as_mut() else {
        return Err(raise::object("ERR redis.register_function can only be called on FUNCTION LOAD command"));
    };
    let function = read(args).map_err(|complaint| raise::object(format!("ERR {complaint}")))?;
    if registered.iter().any(|known| known.name == function.name) {
        return Err(raise::object("ERR Function already exists in the library"));
    }
    registered.push(function);
    Ok(Value::Nil)
}

fn read(args: &MultiValue) -> Result<Registered, &'static str> {
    match args.iter().collect::<Vec<_>>()[..] {
        [Value::Table(named)] => read_named(named),
        [_] => Err(
            "calling redis.register_function with a single argument is only applicable to Lua table (representing named arguments).",
        ),
        [name, callback] => read_positional(name, callback),
        _ => Err("wrong number of arguments to redis.register_function"),
    }
}

fn read_positional(name: &Value, callback: &Value) -> Result<Registered, &'static str> {
    let name =
        lua_value::tolstring(name).ok_or("first argument to redis.register_function must be a string")?;
    let Value::Function(callback) = callback else {
        return Err("second argument to redis.register_function must be a function");
    };
    let name = valid_name(&name).ok_or(INVALID_NAME)?;
    Ok(Registered { name, callback: callback.clone(), flags: Flags::default(), description: None })
}

fn read_named(named: &Table) -> Result<Registered, &'static str> {
    let (mut name, mut callback, mut flags, mut description) = (None, None, Flags::default(), None);
    for pair in named.pairs::<Value, Value>() {
        let (key, value) = pair.map_err(|_| "unknown argument given to redis.register_function")?;
        let key = lua_value::tolstring(&key)
            .ok_or("named argument key given to redis.register_function is not a string")?;
        match key.as_slice() {
            b"function_name" => {
                name = Some(
                    lua_value::tolstring(&value)
                        .ok_or("function_name argument given to redis.register_function must be a string")?,
                );
            }
            b"description" => {
                description = Some(
                    lua_value::tolstring(&value)
                        .ok_or("description argument given to redis.register_function must be a string")?,
                );
            }
            b"callback" => match value {
                Value::Function(function) => callback = Some(function),
                _ => return Err("callback argument given to redis.register_function must be a function"),
            },
            b"flags" => flags = read_flags(&value)?,
            _ => return Err("unknown argument given to redis.register_function"),
        }
    }
    let name = name.ok_or("redis.register_function must get a function name argument")?;
    let callback = callback.ok_or("redis.register_function must get a callback argument")?;
    let name = valid_name(&name).ok_or(INVALID_NAME)?;
    Ok(Registered { name, callback, flags, description })
}

fn read_flags(value: &Value) -> Result<Flags, &'static str> {
    let Value::Table(list) = value else {
        return Err("flags argument to redis.register_function must be a table representing function flags");
    };
    let mut flags = Flags::default();
    for name in list.sequence_values::<Value>() {
        let Ok(Value::String(name)) = name else { return Err("unknown flag given") };
        flags = flags.and(Flags::named(&name.as_bytes()).ok_or("unknown flag given")?);
    }
    Ok(flags)
}
