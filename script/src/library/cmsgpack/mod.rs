//! The global `cmsgpack`: MessagePack to and from Lua's values.
//!
//! It is the format's older form, without types for bytes, times and extensions.

mod pack;
#[expect(unsafe_code, reason = "makes short values on Lua's own stack")]
mod short;
mod unpack;

use mlua::Lua;

use super::raised::function;
use super::tables::Crossing;

/// Makes the table.
pub(super) fn install(lua: &Lua) -> mlua::Result<()> {
    let crossing = Crossing::new(lua)?;
    let table = lua.create_table()?;
    table.raw_set("pack", function(lua, move |lua, arguments| pack::pack(lua, arguments, &crossing))?)?;
    table.raw_set("unpack", short::unpack(lua, function(lua, unpack::unpack)?)?)?;
    table.raw_set("unpack_one", function(lua, unpack::unpack_one)?)?;
    table.raw_set("unpack_limit", function(lua, unpack::unpack_limit)?)?;
    table.raw_set("_NAME", "cmsgpack")?;
    table.raw_set("_VERSION", "lua-cmsgpack 0.4.0")?;
    table.raw_set("_COPYRIGHT", "Copyright (C) 2012, Salvatore Sanfilippo")?;
    table.raw_set("_DESCRIPTION", "MessagePack C implementation for Lua")?;
    lua.globals().raw_set("cmsgpack", table)
}
