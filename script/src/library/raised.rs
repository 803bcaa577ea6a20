//! The errors of a library's functions, in the form that Lua's auxiliary library gives them.

use std::borrow::Cow;
use std::fmt;

use mlua::{Error, Function, IntoLuaMulti, Lua, RegistryKey, Value};

use super::arguments::Arguments;

/// An error that a script must see as a Lua value, not as mlua's userdata.
#[derive(Debug)]
pub enum RaisedValue {
    /// A text, complete with its position.
    Text(Vec<u8>),
    /// Any value that was thrown by a function that a library had called.
    Value(RegistryKey),
}

impl fmt::Display for RaisedValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => String::from_utf8_lossy(text).fmt(f),
            Self::Value(_) => f.write_str("an error value"),
        }
    }
}

impl std::error::Error for RaisedValue {}

/// Returns the value that a script must see for `error`.
///
/// It is `None` if no library raised the error.
///
/// # Errors
/// That of making a string, when memory is short.
pub fn thrown_value(lua: &Lua, error: &Error) -> mlua::Result<Option<Value>> {
    match error.downcast_ref::<RaisedValue>() {
        Some(RaisedValue::Text(text)) => lua.create_string(text).map(|text| Some(Value::String(text))),
        Some(RaisedValue::Value(key)) => lua.registry_value(key).map(Some),
        None => Ok(None),
    }
}

/// Returns an error that passes `value` on unchanged.
///
/// The value was thrown by a function that a library had called.
pub(super) fn rethrow(lua: &Lua, value: Value) -> Error {
    match value {
        Value::Error(error) => *error,
        Value::String(text) => Error::external(RaisedValue::Text(unhidden(&text.as_bytes()))),
        other => match lua.create_registry_value(other) {
            Ok(key) => Error::external(RaisedValue::Value(key)),
            Err(error) => error,
        },
    }
}

/// An error's text as if a library's part in Lua were a function in C.
///
/// For a function that is called in C, Lua knows neither position nor name.
fn unhidden(text: &[u8]) -> Vec<u8> {
    let place = text.strip_prefix(HIDDEN_CHUNK.trim_start_matches('=').as_bytes());
    let complaint = place.and_then(|rest| rest.strip_prefix(b":")).and_then(|rest| {
        let n_digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
        rest[n_digits..].strip_prefix(b": ")
    });
    let Some(complaint) = complaint else { return text.to_vec() };
    String::from_utf8_lossy(complaint).replace("to 'replacement' (", "to '?' (").into_bytes()
}

/// The reason why a library's function fails.
#[derive(Debug)]
pub(super) enum Failure {
    /// Argument `number` is wrong. The text, in parentheses, explains it.
    Argument { number: usize, text: Cow<'static, [u8]> },
    /// Any other reason, shown with the caller's position.
    Plain(Cow<'static, [u8]>),
    /// Any other reason, shown without a position.
    Bare(&'static str),
    /// An error of Lua itself: out of memory, killed, thrown by a script's function.
    Lua(Error),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Lua(error)
    }
}

impl Failure {
    /// Argument `number` is wrong for a fixed reason.
    pub(super) fn argument(number: usize, text: &'static str) -> Self {
        Self::Argument { number, text: Cow::Borrowed(text.as_bytes()) }
    }

    /// A failure with a text made at run time.
    pub(super) fn text(text: String) -> Self {
        Self::Plain(Cow::Owned(text.into_bytes()))
    }

    /// A failure with a fixed text.
    pub(super) fn fixed(text: &'static str) -> Self {
        Self::Plain(Cow::Borrowed(text.as_bytes()))
    }

    /// The failure to store more than a state can hold.
    pub(super) fn memory() -> Self {
        Self::Lua(Error::MemoryError("not enough memory".to_owned()))
    }

    #[cold]
    fn raise(self, lua: &Lua, level: usize) -> Error {
        let text = match self {
            Self::Argument { number, text } => positioned(lua, level, &argument_text(lua, number, &text)),
            Self::Plain(text) => positioned(lua, level, &text),
            Self::Bare(text) => text.as_bytes().to_vec(),
            Self::Lua(error) => return error,
        };
        Error::external(RaisedValue::Text(text))
    }
}

/// Makes a Lua function of `body`, which runs with its arguments unconverted.
pub(super) fn function<F, R>(lua: &Lua, body: F) -> mlua::Result<Function>
where
    F: Fn(&Lua, Arguments) -> Result<R, Failure> + 'static,
    R: IntoLuaMulti,
{
    function_at(lua, 1, body)
}

/// Makes a function like [`function`], for calls by a library's part in Lua.
///
/// An error's position is that of the function `level` calls up, where 1 is the caller.
pub(super) fn function_at<F, R>(lua: &Lua, level: usize, body: F) -> mlua::Result<Function>
where
    F: Fn(&Lua, Arguments) -> Result<R, Failure> + 'static,
    R: IntoLuaMulti,
{
    lua.create_function(move |lua, arguments: Arguments| {
        body(lua, arguments).map_err(|failure| failure.raise(lua, level))
    })
}

/// The complaint about an argument, as Lua words it.
///
/// It has the name by which the script called the function. A method's object does not count.
fn argument_text(lua: &Lua, number: usize, text: &[u8]) -> Vec<u8> {
    let (name, is_method) = called_name(lua);
    let mut out = match (is_method, number) {
        (true, 1) => format!("calling '{name}' on bad self ("),
        (true, _) => format!("bad argument #{} to '{name}' (", number as i64 - 1),
        (false, _) => format!("bad argument #{number} to '{name}' ("),
    }
    .into_bytes();
    out.extend_from_slice(text);
    out.push(b')');
    out
}

/// Returns the name by which the running function was called.
///
/// The second result is whether it was called as a method.
fn called_name(lua: &Lua) -> (String, bool) {
    lua.inspect_stack(0, |frame| {
        let names = frame.names();
        let is_method = names.name_what == Some("method");
        (names.name.map_or_else(|| "?".to_owned(), Cow::into_owned), is_method)
    })
    .unwrap_or_else(|| ("?".to_owned(), false))
}

/// Puts the position of the function `level` calls up before `text`.
///
/// A function that is not at a line of a script adds nothing.
fn positioned(lua: &Lua, level: usize, text: &[u8]) -> Vec<u8> {
    let place = lua.inspect_stack(level, |frame| {
        let line = frame.current_line().filter(|line| *line > 0)?;
        let chunk = frame.source().short_src.filter(|name| name != HIDDEN_CHUNK.trim_start_matches('='))?;
        Some(format!("{chunk}:{line}: "))
    });
    let mut out = place.flatten().unwrap_or_default().into_bytes();
    out.extend_from_slice(text);
    out
}

/// The name of the chunks of libraries that are written in Lua. No error's position names them.
const HIDDEN_CHUNK: &str = "=(library)";

/// Compiles a part of a library that is written in Lua.
pub(super) fn load_hidden(lua: &Lua, source: &str) -> mlua::Result<Function> {
    lua.load(source).set_name(HIDDEN_CHUNK).into_function()
}
