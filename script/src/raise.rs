//! Errors that functions of this crate raise in Lua.
//!
//! A function raises by returning an error. The script cannot see it as such: `pcall` and its like are this
//! crate's own, and hand it to [`visible`](crate::errors::visible). So no script can catch the end of a
//! run.

use std::fmt;

use mlua::{Error, Lua};

use crate::outcome::Stop;

/// Lua's complaint when its memory limit is reached.
pub(crate) const NO_MEMORY: &str = "not enough memory";

/// An error that a function of this crate raises.
#[derive(Debug)]
pub(crate) enum Raised {
    /// The host has ended the run.
    Stop(Stop),
    /// A misuse that Redis raises as a table: its text with its code.
    Object(Vec<u8>),
    /// Any other error. The caller's position comes before its text.
    Text(Vec<u8>),
    /// The same without a position.
    Bare(Vec<u8>),
}

impl fmt::Display for Raised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Raised::Stop(stop) => stop.fmt(f),
            Raised::Object(text) | Raised::Text(text) | Raised::Bare(text) => {
                f.write_str(&String::from_utf8_lossy(text))
            }
        }
    }
}

impl std::error::Error for Raised {}

/// The error of a run that the host has ended.
pub(crate) fn stop(stop: Stop) -> Error {
    Error::external(Raised::Stop(stop))
}

/// An error with the caller's position before its text, as `luaL_error` raises it.
pub(crate) fn text(text: impl Into<Vec<u8>>) -> Error {
    Error::external(Raised::Text(text.into()))
}

/// An error that a script sees as a table with the field `err`.
///
/// The functions of the table `redis` raise such errors.
pub(crate) fn object(text: impl Into<Vec<u8>>) -> Error {
    Error::external(Raised::Object(text.into()))
}

/// The error of a state without memory.
pub(crate) fn no_memory() -> Error {
    Error::external(Raised::Bare(NO_MEMORY.into()))
}

/// A complaint about an argument, in Lua's words.
pub(crate) fn bad_argument(position: usize, function: &str, complaint: &str) -> Error {
    text(format!("bad argument #{position} to '{function}' ({complaint})"))
}

/// A complaint about an argument of the running function.
///
/// A method's first argument does not count, and a function without a name is `?`, both as in Lua.
pub(crate) fn called_with(lua: &Lua, position: usize, complaint: &str) -> Error {
    let (name, is_method) = lua
        .inspect_stack(0, |frame| {
            let names = frame.names();
            (names.name.map(|name| name.into_owned()), names.name_what == Some("method"))
        })
        .unwrap_or_default();
    let name = name.unwrap_or_else(|| "?".to_owned());
    if is_method && position == 1 {
        return text(format!("calling '{name}' on bad self ({complaint})"));
    }
    bad_argument(position - usize::from(is_method), &name, complaint)
}
