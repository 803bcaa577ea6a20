//! Errors that Lua code raises or passes on.
//!
//! An error has two forms: the value that a script sees, and the text that the client reads.

use mlua::{Error, Lua, Table, Value};

use crate::library;
use crate::lua_value::{kind, tolstring, until_zero};
use crate::outcome::Stop;
use crate::raise::{NO_MEMORY, Raised, stop};
use crate::run_state::{Position, Run};

/// The name of the chunk with our Lua code. No position in it is ever shown.
pub(crate) const PRELUDE: &str = "=[braid]";
const PRELUDE_PLACE: &str = "[braid]:";

/// The end of a run, or an error in the form that scripts see.
enum Shape {
    Stop(Stop),
    /// A table with the field `err`.
    Table(Vec<u8>),
    Text(Vec<u8>),
}

/// The innermost error, and the position at which it was raised.
fn shape(error: &Error) -> Shape {
    let (mut error, mut traceback) = (error, "");
    while let Error::CallbackError { traceback: inner, cause } = error {
        (error, traceback) = (cause, inner);
    }
    match (error.downcast_ref::<Raised>(), error) {
        (Some(Raised::Stop(stop)), _) => Shape::Stop(*stop),
        (Some(Raised::Object(text)), _) => Shape::Table(text.clone()),
        (Some(Raised::Text(text)), _) => Shape::Text(placed(traceback, text)),
        (Some(Raised::Bare(text)), _) => Shape::Text(text.clone()),
        (None, Error::MemoryError(_)) => Shape::Text(NO_MEMORY.into()),
        (None, Error::RuntimeError(text)) => Shape::Text(untraced(traceback, text)),
        (None, other) => Shape::Text(placed(traceback, other.to_string().as_bytes())),
    }
}

/// The text of a runtime error without its trace, and with a position in front.
///
/// An error of Lua code that ran within a function of this crate carries a trace at its end and its position
/// in front.
fn untraced(traceback: &str, text: &str) -> Vec<u8> {
    match text.split_once("\nstack traceback:\n") {
        Some((text, _)) => text.into(),
        None => placed(traceback, text.as_bytes()),
    }
}

fn placed(traceback: &str, text: &[u8]) -> Vec<u8> {
    [place(traceback).as_bytes(), text].concat()
}

/// The caller's position, from the trace of the function that raised: `user_script:1: `.
///
/// It is empty if no Lua code called the function.
fn place(traceback: &str) -> String {
    let callers: Vec<&str> = traceback.lines().skip(2).map(str::trim_start).collect();
    // This crate's Lua code is called by a function of this crate in C.
    let n_ours = callers.iter().take_while(|line| line.starts_with(PRELUDE_PLACE)).count();
    let n_ours = n_ours + usize::from(n_ours > 0);
    let Some(caller) = callers.get(n_ours) else { return String::new() };
    match caller.split_once(": in ") {
        Some((place, _)) if place != "[C]" && place.contains(':') => format!("{place}: "),
        _ => String::new(),
    }
}

/// Turns an error that Lua code has caught into the value that scripts see.
///
/// # Errors
///
/// If the host has ended the run. That error continues outward.
pub(crate) fn visible(lua: &Lua, run: &Run, error: Value) -> mlua::Result<Value> {
    if let Some(ended) = run.stop.get() {
        return Err(stop(ended));
    }
    match error {
        Value::Error(error) => match library_value(lua, &error)? {
            Some(value) => Ok(value),
            None => match shape(&error) {
                Shape::Stop(ended) => Err(stop(ended)),
                Shape::Table(text) => Ok(Value::Table(table(lua, &text)?)),
                Shape::Text(text) => Ok(Value::String(lua.create_string(text)?)),
            },
        },
        Value::String(text) if text.as_bytes().starts_with(PRELUDE_PLACE.as_bytes()) => {
            Ok(Value::String(lua.create_string(unplaced(&text.as_bytes()))?))
        }
        other => Ok(other),
    }
}

/// The value that a library has thrown.
fn library_value(lua: &Lua, error: &Error) -> mlua::Result<Option<Value>> {
    let mut error = error;
    while let Error::CallbackError { cause, .. } = error {
        error = cause;
    }
    library::thrown_value(lua, error)
}

/// The text of an error of Lua's own functions, without a position in the prelude.
fn unplaced(text: &[u8]) -> &[u8] {
    let rest = text.strip_prefix(PRELUDE_PLACE.as_bytes()).unwrap_or(text);
    let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
    rest[digits..].strip_prefix(b": ").unwrap_or(text)
}

/// The table that stands for an error.
pub(crate) fn table(lua: &Lua, text: &[u8]) -> mlua::Result<Table> {
    let table = lua.create_table_with_capacity(0, 1)?;
    table.raw_set("err", lua.create_string(text)?)?;
    Ok(table)
}

/// The failure of a run.
#[derive(Debug)]
pub(crate) struct RunFailure {
    /// The text with its code.
    pub text: Vec<u8>,
    /// Whether a command has failed, whose error has been counted already.
    pub is_counted: bool,
}

/// Reads the error that ended a script.
///
/// # Errors
///
/// If the host has ended the run.
pub(crate) fn failure(lua: &Lua, error: &Value, position: Option<&Position>) -> Result<RunFailure, Stop> {
    if let Value::Error(inner) = error
        && let Ok(Some(thrown)) = library_value(lua, inner)
    {
        return failure(lua, &thrown, position);
    }
    let uncounted = |text: &[u8]| RunFailure { text: until_zero(text).into(), is_counted: false };
    let general = |text: &[u8]| uncounted(&[b"ERR ", text].concat());
    Ok(match error {
        Value::Error(error) => match shape(error) {
            Shape::Stop(stop) => return Err(stop),
            Shape::Table(text) => uncounted(&text),
            Shape::Text(text) => general(&text),
        },
        Value::Table(table) => fields(table),
        Value::String(text) if text.as_bytes().starts_with(PRELUDE_PLACE.as_bytes()) => {
            let place = position
                .map_or(String::new(), |at| format!("{}:{}: ", at.source.trim_start_matches('@'), at.line));
            general(&[place.as_bytes(), unplaced(&text.as_bytes())].concat())
        }
        other => general(&shown(other)),
    })
}

/// Reads the table that stands for an error. A script may have made it, so the text may be missing.
fn fields(table: &Table) -> RunFailure {
    let text = match table.raw_get::<Value>("err") {
        Ok(text @ (Value::String(_) | Value::Integer(_) | Value::Number(_))) => shown(&text),
        _ => b"ERR unknown error".to_vec(),
    };
    let is_counted = matches!(table.raw_get("ignore_error_stats_update"), Ok(Value::Boolean(true)));
    RunFailure { text: until_zero(&text).into(), is_counted }
}

/// The text that `tostring` makes of a value.
fn shown(value: &Value) -> Vec<u8> {
    match value {
        Value::Nil => b"nil".to_vec(),
        Value::Boolean(value) => value.to_string().into_bytes(),
        other => tolstring(other).unwrap_or_else(|| {
            let pointer = other.to_pointer();
            let address = if pointer.is_null() { "(nil)".to_owned() } else { format!("{pointer:p}") };
            format!("{}: {address}", kind(other)).into_bytes()
        }),
    }
}

/// Notes the script's innermost position when the host ended the run.
///
/// Only the script's own lines count.
#[cold]
pub(crate) fn note_end(lua: &Lua, run: &Run) {
    const DEEPEST: usize = 64;
    let place = |level| {
        let frame = lua.inspect_stack(level, |frame| {
            let source = frame.source().source.map(|name| name.into_owned()).unwrap_or_default();
            (source, frame.current_line())
        });
        let (source, line) = frame?;
        source.starts_with("@user_").then(|| Position { source, line: line.map_or(-1, |line| line as i64) })
    };
    run.ended_at.set((0..DEEPEST).find_map(place));
}

/// Notes the position at which the error being handled was raised.
///
/// That is the position of the function that raised it, or of its caller if it is not Lua code.
pub(crate) fn locate(lua: &Lua, run: &Run) {
    // The level above this function is the handler, which is this crate's Lua code too.
    let mut level = 2;
    let frame = |level| {
        lua.inspect_stack(level, |frame| {
            let source = frame.source();
            let name = source.source.map(|name| name.into_owned()).unwrap_or_default();
            (name, source.what == "C", frame.current_line())
        })
    };
    if matches!(frame(level), Some((_, true, _))) {
        level += 1;
    }
    let is_ours = |level| matches!(frame(level), Some((source, ..)) if source == PRELUDE);
    if is_ours(level) {
        // This crate's Lua code is called by a function of this crate in C.
        level = 1 + (level..).find(|level| !is_ours(*level)).unwrap_or(level);
    }
    *run.position.borrow_mut() =
        frame(level).map(|(source, _, line)| Position { source, line: line.map_or(-1, |line| line as i64) });
}
