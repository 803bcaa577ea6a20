//! Lua's values as C code reads them: type names, texts and integers.

use mlua::Value;

use crate::decimal;

/// The type of a value, in Lua's words.
pub(crate) fn kind(value: &Value) -> &'static str {
    match value {
        Value::Integer(_) => "number",
        Value::LightUserData(_) => "userdata",
        other => other.type_name(),
    }
}

/// The text of a string or a number, as `lua_tolstring` returns it.
pub(crate) fn tolstring(value: &Value) -> Option<Vec<u8>> {
    match value {
        Value::String(text) => Some(text.as_bytes().to_vec()),
        Value::Integer(integer) => Some(decimal::general(*integer as f64, 14).into_bytes()),
        Value::Number(number) => Some(decimal::general(*number, 14).into_bytes()),
        _ => None,
    }
}

/// A number as C converts it to a 64-bit integer: without its fraction.
///
/// A number that does not fit becomes the smallest integer.
pub(crate) fn truncated(number: f64) -> i64 {
    if (-9_223_372_036_854_775_808.0..9_223_372_036_854_775_808.0).contains(&number) {
        number as i64
    } else {
        i64::MIN
    }
}

/// The text up to its first zero byte, where C ends it.
pub(crate) fn until_zero(text: &[u8]) -> &[u8] {
    text.split(|&byte| byte == 0).next().unwrap_or_default()
}
