//! The table `redis`, which scripts also find as `server`.

use std::rc::Rc;

use braid_protocol::Resp;
use mlua::{Function, Lua, MultiValue, Table, Value};
use sha1::{Digest, Sha1};

use crate::bridge;
use crate::convert;
use crate::engine_settings::{Flavour, Version};
use crate::errors;
use crate::host::LogLevel;
use crate::lua_value;
use crate::natives::with_run;
use crate::raise;
use crate::run_state::Run;

const REPL_NONE: u8 = 0;
const REPL_AOF: u8 = 1;
const REPL_REPLICA: u8 = 2;
const REPL_ALL: u8 = REPL_AOF | REPL_REPLICA;

/// Makes the table's contents.
pub(crate) fn table(lua: &Lua, run: &Rc<Run>, version: &Version, flavour: Flavour) -> mlua::Result<Table> {
    let table = lua.create_table()?;
    log_and_version(lua, run, &table, version)?;
    constants(&table)?;
    let set = |name, function: mlua::Result<Function>| table.raw_set(name, function?);
    bridge::install(lua, run, &table)?;
    set("setresp", with_run(lua, run, |_, run, args| setresp(run, &args)))?;
    set("set_repl", with_run(lua, run, |_, run, args| set_repl(run, &args)))?;
    set("sha1hex", with_run(lua, run, |lua, run, args| sha1hex(lua, run, &args)))?;
    set("error_reply", with_run(lua, run, |lua, _, args| error_reply(lua, &args)))?;
    set("status_reply", with_run(lua, run, |lua, _, args| status_reply(lua, &args)))?;
    if flavour == Flavour::Functions {
        return Ok(table);
    }
    set("replicate_commands", with_run(lua, run, |_, _, _| Ok(Value::Boolean(true))))?;
    set("breakpoint", with_run(lua, run, |_, _, _| Ok(Value::Boolean(false))))?;
    set("debug", with_run(lua, run, |_, _, _| Ok(Value::Nil)))?;
    Ok(table)
}

/// Adds the entries that libraries also see while they load.
pub(crate) fn log_and_version(
    lua: &Lua,
    run: &Rc<Run>,
    table: &Table,
    version: &Version,
) -> mlua::Result<()> {
    table.raw_set("log", with_run(lua, run, |_, run, args| log(run, &args))?)?;
    for (level, name) in ["LOG_DEBUG", "LOG_VERBOSE", "LOG_NOTICE", "LOG_WARNING"].iter().enumerate() {
        table.raw_set(*name, level)?;
    }
    table.raw_set("REDIS_VERSION", version.text.as_str())?;
    table.raw_set("REDIS_VERSION_NUM", version.number)
}

fn constants(table: &Table) -> mlua::Result<()> {
    for (name, value) in [
        ("REPL_NONE", REPL_NONE),
        ("REPL_AOF", REPL_AOF),
        ("REPL_SLAVE", REPL_REPLICA),
        ("REPL_REPLICA", REPL_REPLICA),
        ("REPL_ALL", REPL_ALL),
    ] {
        table.raw_set(name, value)?;
    }
    Ok(())
}

fn log(run: &Run, args: &MultiValue) -> mlua::Result<Value> {
    if args.len() < 2 {
        return Err(raise::object("ERR redis.log() requires two arguments or more."));
    }
    let level = match args[0] {
        Value::Integer(_) | Value::Number(_) => integer(&args[0]),
        Value::String(ref text) if is_numeric(&text.as_bytes()) => integer(&args[0]),
        _ => return Err(raise::object("ERR First argument must be a number (log level).")),
    };
    let level = match level {
        0 => LogLevel::Debug,
        1 => LogLevel::Verbose,
        2 => LogLevel::Notice,
        3 => LogLevel::Warning,
        _ => return Err(raise::object("ERR Invalid debug level.")),
    };
    let words: Vec<Vec<u8>> = args.iter().skip(1).filter_map(lua_value::tolstring).collect();
    run.ask(|host| {
        host.log(level, &words.join(&b' '));
        Ok(Value::Nil)
    })
}

fn setresp(run: &Run, args: &MultiValue) -> mlua::Result<Value> {
    if args.len() != 1 {
        return Err(raise::object("ERR redis.setresp() requires one argument."));
    }
    run.resp.set(match integer(&args[0]) {
        2 => Resp::V2,
        3 => Resp::V3,
        _ => return Err(raise::object("ERR RESP version must be 2 or 3.")),
    });
    Ok(Value::Nil)
}

fn set_repl(run: &Run, args: &MultiValue) -> mlua::Result<Value> {
    if args.len() != 1 {
        return Err(raise::object("ERR redis.set_repl() requires two arguments."));
    }
    let flags = integer(&args[0]);
    if flags & !i64::from(REPL_ALL) != 0 {
        return Err(raise::object(
            "ERR Invalid replication flags. Use REPL_AOF, REPL_REPLICA, REPL_ALL or REPL_NONE.",
        ));
    }
    run.ask(|host| {
        host.set_replication(flags as u8);
        Ok(Value::Nil)
    })
}

fn sha1hex(lua: &Lua, run: &Run, args: &MultiValue) -> mlua::Result<Value> {
    if args.len() != 1 {
        return Err(raise::object("ERR wrong number of arguments"));
    }
    let text = lua_value::tolstring(&args[0]).unwrap_or_default();
    run.work_through(text.len()).map_err(raise::stop)?;
    let digest = Sha1::digest(text);
    let hex: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    lua.create_string(hex).map(Value::String)
}

fn error_reply(lua: &Lua, args: &MultiValue) -> mlua::Result<Value> {
    let Some(text) = one_text(args) else { return wrong_arguments(lua) };
    let text = lua_value::until_zero(&text);
    if text.starts_with(b"-") { coded(lua, text) } else { coded(lua, &[b"-", text].concat()) }
}

fn coded(lua: &Lua, text: &[u8]) -> mlua::Result<Value> {
    let (code, message) = convert::coded(text);
    errors::table(lua, &[code, b" ", message].concat()).map(Value::Table)
}

fn status_reply(lua: &Lua, args: &MultiValue) -> mlua::Result<Value> {
    let Some(text) = one_text(args) else { return wrong_arguments(lua) };
    let table = lua.create_table_with_capacity(0, 1)?;
    table.raw_set("ok", lua.create_string(text)?)?;
    Ok(Value::Table(table))
}

fn wrong_arguments(lua: &Lua) -> mlua::Result<Value> {
    errors::table(lua, b"ERR wrong number or type of arguments").map(Value::Table)
}

fn one_text(args: &MultiValue) -> Option<Vec<u8>> {
    match args.front() {
        Some(Value::String(text)) if args.len() == 1 => Some(text.as_bytes().to_vec()),
        _ => None,
    }
}

fn is_numeric(text: &[u8]) -> bool {
    std::str::from_utf8(text).is_ok_and(|text| text.trim().parse::<f64>().is_ok())
}

/// The number that `lua_tonumber` returns, as an integer; 0 if there is none.
fn integer(value: &Value) -> i64 {
    match value {
        Value::Integer(integer) => *integer,
        Value::Number(number) => *number as i64,
        Value::String(text) => std::str::from_utf8(&text.as_bytes())
            .ok()
            .and_then(|text| text.trim().parse::<f64>().ok())
            .map_or(0, |number| number as i64),
        _ => 0,
    }
}
