//! The global `cmsgpack`: MessagePack to and from Lua's values.
//!
//! It is the format's older form: no types for bytes, times and extensions.

mod pack;
mod unpack;

use std::rc::Rc;

use mlua::Lua;

use super::raised::function;
use super::tables::Crossing;

/// Makes the table.
pub(super) fn install(lua: &Lua) -> mlua::Result<()> {
    let crossing = Rc::new(Crossing::new(lua)?);
    let table = lua.create_table()?;
    let shared = crossing.clone();
    table.raw_set("pack", function(lua, move |lua, arguments| pack::pack(lua, arguments, &shared))?)?;
    let shared = crossing.clone();
    table.raw_set("unpack", function(lua, move |lua, arguments| unpack::unpack(lua, arguments, &shared))?)?;
    let shared = crossing.clone();
    table.raw_set(
        "unpack_one",
        function(lua, move |lua, arguments| unpack::unpack_one(lua, arguments, &shared))?,
    )?;
    table.raw_set(
        "unpack_limit",
        function(lua, move |lua, arguments| unpack::unpack_limit(lua, arguments, &crossing))?,
    )?;
    table.raw_set("_NAME", "cmsgpack")?;
    table.raw_set("_VERSION", "lua-cmsgpack 0.4.0")?;
    table.raw_set("_COPYRIGHT", "Copyright (C) 2012, Salvatore Sanfilippo")?;
    table.raw_set("_DESCRIPTION", "MessagePack C implementation for Lua")?;
    lua.globals().raw_set("cmsgpack", table)
}
