//! The function `string.gsub`.

use mlua::{Function, Lua, LuaString, MultiValue, Table, Value};

use super::{Captured, Failure, Found, Matches, VALUES, batch};
use crate::library::arguments::{Arguments, type_name};
use crate::library::c_numbers::write_general;
use crate::library::meter::{MAX_STRING_BYTES, Meter, Work};
use crate::library::raised::{function, load_hidden, rethrow};

/// The loop in Lua that calls a script's function or reads its table.
///
/// It does so for each match. In Lua these calls cost least, and an error keeps its value. The loop takes the
/// matches' positions in batches.
///
/// It returns true and the type if a result has a wrong type. If the pattern is wrong, it returns false and
/// the complaint. Otherwise it returns false, nil, the result and the count of matches.
const DRIVER: &str = "
    local _, batch, concat, type = ...
    return function(subject, pattern, limit, replacement, is_table)
        local pieces, n_pieces, copied, n, at = {}, 0, 1, 0, 0
        repeat
            local found = {batch(subject, pattern, at, limit - n, is_table)}
            local count, width, fault = found[2], found[3], found[4]
            at = found[1]
            local base = 5
            for i = 1, count do
                local from, to = found[base + 2], found[base + 3]
                local result
                if is_table then
                    result = replacement[to and sub(subject, from, to) or from]
                elseif width == 1 then
                    result = replacement(to and sub(subject, from, to) or from)
                else
                    result = replacement(values(subject, found, base + 2, width))
                end
                if result then
                    local kind = type(result)
                    if kind ~= 'string' and kind ~= 'number' then
                        return true, kind
                    end
                    local start = found[base]
                    if start > copied then
                        n_pieces = n_pieces + 1
                        pieces[n_pieces] = sub(subject, copied, start - 1)
                    end
                    n_pieces = n_pieces + 1
                    pieces[n_pieces] = result
                    copied = found[base + 1] + 1
                end
                n = n + 1
                base = base + 2 * width + 2
            end
            if fault then
                return false, fault
            end
        until count == 0 or n == limit or at > #subject
        pieces[n_pieces + 1] = sub(subject, copied)
        return false, nil, concat(pieces), n
    end
";

/// Makes the function.
pub(super) fn gsub(lua: &Lua) -> mlua::Result<Function> {
    let globals = lua.globals();
    let (string, table): (Table, Table) = (globals.get("string")?, globals.get("table")?);
    let protected_call: Function = globals.get("pcall")?;
    let type_of: Function = globals.get("type")?;
    let (sub, concat): (Function, Function) = (string.get("sub")?, table.get("concat")?);
    let batch = function(lua, |lua, arguments| batch(lua, arguments, true))?;
    let driver: Function =
        load_hidden(lua, &format!("{VALUES}{DRIVER}"))?.call((sub, batch, concat, type_of))?;
    function(lua, move |lua, arguments| Call::new(lua, arguments)?.run(lua, &protected_call, &driver))
}

/// The arguments of a call of `gsub`.
struct Call {
    subject: LuaString,
    pattern: LuaString,
    replacement: Value,
    limit: usize,
}

impl Call {
    fn new(lua: &Lua, mut arguments: Arguments) -> Result<Self, Failure> {
        let subject = arguments.string(lua, 1)?;
        let pattern = arguments.string(lua, 2)?;
        let everywhere = subject.as_bytes().len() as i64 + 1;
        let limit =
            if arguments.is_absent(4) { everywhere } else { i64::from(arguments.integer(lua, 4)? as i32) };
        let limit = limit.max(0) as usize;
        let replacement = match arguments.take(3) {
            text @ (Value::Integer(_) | Value::Number(_) | Value::String(_)) => Value::String(
                lua.coerce_string(text)?.unwrap_or_else(|| unreachable!("a string or a number has a text")),
            ),
            callable @ (Value::Table(_) | Value::Function(_)) => callable,
            _ => return Err(Failure::argument(3, "string/function/table expected")),
        };
        Ok(Self { subject, pattern, replacement, limit })
    }

    fn run(
        &self,
        lua: &Lua,
        protected_call: &Function,
        driver: &Function,
    ) -> Result<(LuaString, usize), Failure> {
        match &self.replacement {
            Value::String(text) => self.by_text(lua, &text.as_bytes()),
            Value::Table(table) if table.metatable().is_none() => self.by_plain_table(lua, table),
            _ => self.by_driver(lua, protected_call, driver),
        }
    }

    fn by_text(&self, lua: &Lua, text: &[u8]) -> Result<(LuaString, usize), Failure> {
        let is_plain = !text.contains(&b'%');
        self.replace(lua, |out, found| {
            if is_plain {
                out.extend_from_slice(text);
                Ok(())
            } else {
                expand(out, text, found)
            }
        })
    }

    fn by_plain_table(&self, lua: &Lua, table: &Table) -> Result<(LuaString, usize), Failure> {
        self.replace(lua, |out, found| {
            let result: Value = table.raw_get(found.value(lua, 0)?)?;
            push_result(out, &result, &found.subject[found.start..found.end])
        })
    }

    /// Replaces each match by the bytes that `replace` appends.
    fn replace(
        &self,
        lua: &Lua,
        mut replace: impl FnMut(&mut Vec<u8>, &Found<'_>) -> Result<(), Failure>,
    ) -> Result<(LuaString, usize), Failure> {
        let (subject, pattern) = (self.subject.as_bytes(), self.pattern.as_bytes());
        let mut matches = Matches::new(&subject, &pattern, 0, true);
        let mut meter = Meter::new(lua);
        let mut out = Vec::with_capacity(subject.len());
        let (mut n_matches, mut copied) = (0, 0);
        while n_matches < self.limit {
            let Some((start, end)) = matches.next(&mut meter)? else { break };
            out.extend_from_slice(&subject[copied..start]);
            let before = out.len();
            replace(&mut out, &Found { subject: &subject, matcher: &matches.matcher, start, end })?;
            meter.spend((out.len() - before) as u32 >> 4)?;
            if out.len() > MAX_STRING_BYTES {
                return Err(Failure::memory());
            }
            n_matches += 1;
            copied = end;
        }
        out.extend_from_slice(&subject[copied..]);
        Ok((lua.create_string(out)?, n_matches))
    }

    fn by_driver(
        &self,
        lua: &Lua,
        protected_call: &Function,
        driver: &Function,
    ) -> Result<(LuaString, usize), Failure> {
        let is_table = matches!(self.replacement, Value::Table(_));
        let arguments = (driver, &self.subject, &self.pattern, self.limit, &self.replacement, is_table);
        let (succeeded, mut outcome): (bool, MultiValue) = protected_call.call(arguments)?;
        let mut next = || outcome.pop_front().unwrap_or(Value::Nil);
        match (succeeded, next(), next(), next(), next()) {
            (false, error, ..) => Err(Failure::Lua(rethrow(lua, error))),
            (_, Value::Boolean(true), kind, ..) => Err(invalid_value(&kind.to_string()?)),
            (_, _, Value::Nil, Value::String(text), n) => Ok((text, n.as_usize().unwrap_or_default())),
            (_, _, fault, ..) => Err(Failure::text(fault.to_string()?)),
        }
    }
}

#[cold]
fn invalid_value(type_name: &str) -> Failure {
    Failure::text(format!("invalid replacement value (a {type_name})"))
}

/// Appends the result of a table or a function for the match `kept`.
///
/// The match stays if the result is nil or false.
fn push_result(out: &mut Vec<u8>, result: &Value, kept: &[u8]) -> Result<(), Failure> {
    match result {
        Value::Nil | Value::Boolean(false) => out.extend_from_slice(kept),
        Value::String(text) => out.extend_from_slice(&text.as_bytes()),
        Value::Integer(value) => write_general(out, *value as f64, 14),
        Value::Number(value) => write_general(out, *value, 14),
        other => return Err(invalid_value(type_name(other))),
    }
    Ok(())
}

/// Appends the replacement `text`, in which `%0` is the match and `%1` its first capture.
///
/// A `%` at the end stands for a zero byte.
fn expand(out: &mut Vec<u8>, text: &[u8], found: &Found<'_>) -> Result<(), Failure> {
    let mut rest = text;
    while let Some(percent) = memchr::memchr(b'%', rest) {
        out.extend_from_slice(&rest[..percent]);
        match rest.get(percent + 1).copied().unwrap_or(0) {
            b'0' => out.extend_from_slice(&found.subject[found.start..found.end]),
            digit @ b'1'..=b'9' => push_capture(out, usize::from(digit - b'1'), found)?,
            other => out.push(other),
        }
        rest = rest.get(percent + 2..).unwrap_or_default();
    }
    out.extend_from_slice(rest);
    Ok(())
}

fn push_capture(out: &mut Vec<u8>, index: usize, found: &Found<'_>) -> Result<(), Failure> {
    match found.matcher.value(index, found.start, found.end)? {
        Captured::Bytes(from, to) => out.extend_from_slice(&found.subject[from..to]),
        Captured::Position(position) => write_general(out, position as f64, 14),
    }
    Ok(())
}
