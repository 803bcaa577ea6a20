//! A state with the libraries, as an engine makes it.

use braid_script::library;
use mlua::{Function, Lua, LuaOptions, StdLib, Value};

/// The engine's treatment of errors in `pcall`: an error of a library is a value.
const PROTECTED_CALL: &str = "
    local pcall, thrown = ...
    local function outcome(succeeded, ...)
        if succeeded then
            return true, ...
        end
        return false, thrown((...))
    end
    return function(...)
        return outcome(pcall(...))
    end
";

/// Makes a state.
pub fn state() -> Lua {
    make_state().expect("a state")
}

fn make_state() -> mlua::Result<Lua> {
    let lua = Lua::new_with(StdLib::TABLE | StdLib::STRING | StdLib::MATH, LuaOptions::default())?;
    library::install_all(&lua)?;
    let thrown = lua.create_function(|lua, value: Value| match value {
        Value::Error(error) => Ok(library::thrown_value(lua, &error)?.unwrap_or(Value::Error(error))),
        other => Ok(other),
    })?;
    let pcall: Function = lua.globals().get("pcall")?;
    let pcall: Function = lua.load(PROTECTED_CALL).set_name("=pcall").call((pcall, thrown))?;
    lua.globals().set("pcall", pcall)?;
    Ok(lua)
}

/// Returns the string that a script returns, or its error's text.
pub fn run(script: &str) -> Vec<u8> {
    evaluate(&state(), script)
}

/// Like [`run`], in an existing state.
pub fn evaluate(lua: &Lua, script: &str) -> Vec<u8> {
    match lua.load(script).set_name("@user_script").eval::<mlua::LuaString>() {
        Ok(text) => text.as_bytes().to_vec(),
        Err(error) => error.to_string().into_bytes(),
    }
}
