//! The arguments of a library's function.
//!
//! They are converted and refused as Lua's auxiliary library does.

use std::borrow::Cow;

use mlua::{FromLuaMulti, Lua, LuaString, MultiValue, Value};

use super::c_numbers::truncate;
use super::raised::Failure;

/// The arguments of a call, numbered from 1.
#[derive(Debug)]
pub(super) struct Arguments(MultiValue);

impl FromLuaMulti for Arguments {
    fn from_lua_multi(values: MultiValue, _: &Lua) -> mlua::Result<Self> {
        Ok(Self(values))
    }
}

impl Arguments {
    /// Returns the number of arguments.
    pub(super) fn count(&self) -> usize {
        self.0.len()
    }

    /// Returns an argument, or `None` where the call had fewer.
    pub(super) fn get(&self, number: usize) -> Option<&Value> {
        self.0.get(number - 1)
    }

    /// Whether an argument is there and neither nil nor false.
    pub(super) fn is_true(&self, number: usize) -> bool {
        !matches!(self.get(number), None | Some(Value::Nil | Value::Boolean(false)))
    }

    /// Whether an argument is missing or nil.
    pub(super) fn is_absent(&self, number: usize) -> bool {
        matches!(self.get(number), None | Some(Value::Nil))
    }

    /// Appends a nil if `number` is the first missing argument.
    ///
    /// The refusal of that argument then names nil as its type.
    pub(super) fn end_with_nil(&mut self, number: usize) {
        if number == self.0.len() + 1 {
            self.0.push_back(Value::Nil);
        }
    }

    /// Takes out an argument, and leaves nil in its place.
    pub(super) fn take(&mut self, number: usize) -> Value {
        self.0.get_mut(number - 1).map_or(Value::Nil, |value| std::mem::replace(value, Value::Nil))
    }

    /// Takes out an argument that must be a string or a number.
    pub(super) fn string(&mut self, lua: &Lua, number: usize) -> Result<LuaString, Failure> {
        match self.take(number) {
            Value::String(text) => Ok(text),
            value @ (Value::Integer(_) | Value::Number(_)) => {
                let text = lua.coerce_string(value)?;
                Ok(text.unwrap_or_else(|| unreachable!("a number has a text")))
            }
            other => {
                if let Some(place) = self.0.get_mut(number - 1) {
                    *place = other;
                }
                Err(self.wrong_type(number, "string"))
            }
        }
    }

    /// Returns an argument that must be a number, or a string that reads as one.
    pub(super) fn number(&self, lua: &Lua, number: usize) -> Result<f64, Failure> {
        self.as_number(lua, number)?.ok_or_else(|| self.wrong_type(number, "number"))
    }

    /// Returns an argument as a number. A string counts if it reads as a number.
    pub(super) fn as_number(&self, lua: &Lua, number: usize) -> Result<Option<f64>, Failure> {
        match self.get(number) {
            Some(text @ Value::String(_)) => Ok(lua.coerce_number(text.clone())?),
            other => Ok(other.and_then(as_number)),
        }
    }

    /// Returns a number's integral part, converted as C does on this processor.
    pub(super) fn integer(&self, lua: &Lua, number: usize) -> Result<i64, Failure> {
        self.number(lua, number).map(truncate)
    }

    /// Like [`integer`](Self::integer), with a `default` for a missing argument or nil.
    pub(super) fn integer_or(&self, lua: &Lua, number: usize, default: i64) -> Result<i64, Failure> {
        if self.is_absent(number) { Ok(default) } else { self.integer(lua, number) }
    }

    /// The refusal of an argument that is not of the type `expected`.
    #[cold]
    pub(super) fn wrong_type(&self, number: usize, expected: &str) -> Failure {
        let found = self.get(number).map_or("no value", type_name);
        Failure::Argument {
            number,
            text: Cow::Owned(format!("{expected} expected, got {found}").into_bytes()),
        }
    }
}

/// Returns the number in a value. mlua keeps whole numbers as integers.
pub(super) fn as_number(value: &Value) -> Option<f64> {
    match value {
        Value::Integer(value) => Some(*value as f64),
        Value::Number(value) => Some(*value),
        _ => None,
    }
}

/// Returns Lua's name of a value's type.
pub(super) fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Nil => "nil",
        Value::Boolean(_) => "boolean",
        Value::Integer(_) | Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Table(_) => "table",
        Value::Function(_) => "function",
        Value::Thread(_) => "thread",
        _ => "userdata",
    }
}
