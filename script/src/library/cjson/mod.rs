//! The global `cjson`: JSON to and from Lua's values.
//!
//! A table is an array if all its keys are whole numbers from 1 on and it is not too sparse. An empty table
//! is an object. Null is `cjson.null`, a light userdata without an address.

mod decode;
mod encode;
mod settings;
mod tokens;

use std::cell::Cell;
use std::rc::Rc;

use mlua::{Lua, Table, Value};

use self::settings::Settings;
use super::raised::function;
use super::tables::Crossing;

/// Makes the table.
pub(super) fn install(lua: &Lua) -> mlua::Result<()> {
    let module = module(lua, &Rc::new(Crossing::new(lua)?))?;
    lua.globals().raw_set("cjson", module)
}

/// Makes a table of the functions, which has settings of its own.
fn module(lua: &Lua, crossing: &Rc<Crossing>) -> mlua::Result<Table> {
    let settings = Rc::new(Cell::new(Settings::default()));
    let table = lua.create_table()?;
    let (own, shared) = (settings.clone(), crossing.clone());
    table.raw_set(
        "encode",
        function(lua, move |lua, arguments| encode::encode(lua, arguments, own.get(), &shared))?,
    )?;
    let own = settings.clone();
    table
        .raw_set("decode", function(lua, move |lua, arguments| decode::decode(lua, arguments, own.get()))?)?;
    settings::install(lua, &table, &settings)?;
    let shared = crossing.clone();
    table.raw_set("new", function(lua, move |lua, _| Ok(module(lua, &shared)?))?)?;
    table.raw_set("null", Value::NULL)?;
    table.raw_set("_NAME", "cjson")?;
    table.raw_set("_VERSION", "2.1.0")?;
    Ok(table)
}
