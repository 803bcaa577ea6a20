//! Libraries: loading one runs its code once, which registers functions; FCALL calls them later.
//!
//! While a library loads it sees nothing but `redis.register_function`, `redis.log` and a few constants, as in Redis. Its functions
//! see the whole world, without KEYS and ARGV, which they get as arguments.

use std::fmt;
use std::rc::Rc;

use mlua::{Function, Lua, MultiValue, Table, Value};

use crate::api::{self, Version};
use crate::engine::Handle;
use crate::errors;
use crate::host::{Run, Stop};
use crate::shebang::{Flags, INVALID_NAME, valid_name};

/// A function of a library that has been loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FunctionSpec {
    /// The name that FCALL uses.
    pub name: String,
    /// What the engine calls.
    pub handle: Handle,
    /// Where and when it may run.
    pub flags: Flags,
    /// What FUNCTION LIST says about it.
    pub description: Option<Vec<u8>>,
}

/// Why a library is not loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LoadError {
    /// The source is no Lua.
    Compile(String),
    /// The code failed while it ran: the error's text with its code.
    Run(Vec<u8>),
    /// The code registers nothing.
    Empty,
    /// The host ended the run.
    Stopped(Stop),
}

impl LoadError {
    /// The text of the error reply, code included.
    pub fn text(&self) -> Vec<u8> {
        match self {
            LoadError::Compile(complaint) => {
                format!("ERR Error compiling function: {complaint}").into_bytes()
            }
            LoadError::Run(text) => [b"ERR Error registering functions: ", text.as_slice()].concat(),
            LoadError::Empty => b"ERR No functions registered".to_vec(),
            LoadError::Stopped(Stop::TimeOver) => {
                b"ERR Error registering functions: ERR FUNCTION LOAD timeout".to_vec()
            }
            LoadError::Stopped(stop) => format!("ERR Error registering functions: {stop}").into_bytes(),
        }
    }
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&String::from_utf8_lossy(&self.text()))
    }
}

impl std::error::Error for LoadError {}

/// A function as its library has registered it.
#[derive(Debug)]
pub(crate) struct Registered {
    pub name: String,
    pub callback: Function,
    pub flags: Flags,
    pub description: Option<Vec<u8>>,
}

/// The table `redis` as a library sees it while it loads.
pub(crate) fn loading_table(lua: &Lua, run: &Rc<Run>, version: &Version) -> mlua::Result<Table> {
    let table = lua.create_table()?;
    api::log_and_version(lua, run, &table, version)?;
    let register = api::with_run(lua, run, |_, run, args| register(run, &args))?;
    table.raw_set("register_function", register)?;
    Ok(table)
}

fn register(run: &Run, args: &MultiValue) -> mlua::Result<Value> {
    let mut registered = run.registered.borrow_mut();
    let Some(registered) = registered.as_mut() else {
        return Err(errors::object(
            "ERR redis.register_function can only be called on FUNCTION LOAD command",
        ));
    };
    let function = read(args).map_err(|complaint| errors::object(format!("ERR {complaint}")))?;
    if registered.iter().any(|known| known.name == function.name) {
        return Err(errors::object("ERR Function already exists in the library"));
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
    let name = errors::tolstring(name).ok_or("first argument to redis.register_function must be a string")?;
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
        let key = errors::tolstring(&key)
            .ok_or("named argument key given to redis.register_function is not a string")?;
        match key.as_slice() {
            b"function_name" => {
                name = Some(
                    errors::tolstring(&value)
                        .ok_or("function_name argument given to redis.register_function must be a string")?,
                );
            }
            b"description" => {
                description = Some(
                    errors::tolstring(&value)
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
