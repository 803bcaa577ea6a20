//! The names that a script finds, and the protection of the tables that scripts share.
//!
//! A front (see `prelude.lua`) replaces the state's own table of globals. Reads of names that do not exist
//! and all writes are errors, as in Redis. The libraries are fronts too.
//!
//! Of Lua's functions, scripts have only those in the lists here. Functions that could crash Lua, see past a
//! front, catch the end of a run or work without end are replaced.

use std::rc::Rc;

use mlua::chunk::ChunkMode;
use mlua::{FromLua, Function, Lua, LuaOptions, LuaString, MultiValue, StdLib, Table, Value};

use crate::bytecode;
use crate::errors;
use crate::library;
use crate::lua_overrides::{self, Parts};
use crate::lua_value::{kind, tolstring};
use crate::natives::{unlimited, with_run};
use crate::raise;
use crate::run_state::Run;
use crate::{random, strings};

/// Lua's global functions that scripts get unchanged. `lua_overrides.rs` has the others.
const PLAIN: &[&str] = &["assert", "error", "gcinfo", "ipairs", "rawequal", "select", "tostring", "type"];
/// The tables that scripts share.
const LIBRARIES: &[&str] =
    &["string", "table", "math", "coroutine", "os", "cjson", "cmsgpack", "struct", "bit"];

/// The longest source that is compiled.
pub(crate) const MAX_SOURCE_BYTES: usize = 64 * 1024 * 1024;

/// The world of a flavour's scripts.
pub(crate) struct Sandbox {
    /// The function that is called with an error that the script does not catch.
    pub handler: Function,
    /// The table of globals that the front shows.
    pub world: Table,
    /// The metatable of the globals' front.
    shown: Table,
    /// The globals of a library that is loading.
    loading: Table,
}

/// A state with the libraries that scripts have.
pub(crate) fn state() -> mlua::Result<Lua> {
    Lua::new_with(StdLib::TABLE | StdLib::STRING | StdLib::MATH | StdLib::OS, LuaOptions::default())
}

/// Builds the world. `redis` is the table of that name.
///
/// `loading` is the table of that name that a library sees while it loads.
pub(crate) fn build(lua: &Lua, run: &Rc<Run>, redis: Table, loading: Table) -> mlua::Result<Sandbox> {
    let original = lua.globals();
    let world = lua.create_table()?;
    let (native, behind) = (native(lua, run)?, lua.create_table()?);
    let chunk = lua.load(include_str!("prelude.lua")).set_name(errors::PRELUDE).set_mode(ChunkMode::Text);
    let (safe, front, handler): (Table, Function, Function) =
        chunk.into_function()?.call((&native, &behind))?;

    for name in PLAIN {
        world.raw_set(*name, original.raw_get::<Value>(*name)?)?;
    }
    let visible = native.raw_get("visible")?;
    lua_overrides::install(lua, &world, &Parts { run, behind: &behind, visible, safe: &safe })?;
    world.raw_set("loadstring", native.raw_get::<Function>("compile")?)?;
    world.raw_set("_VERSION", original.raw_get::<Value>("_VERSION")?)?;

    let os: Table = original.raw_get("os")?;
    let clock: Function = os.raw_get("clock")?;
    os.clear()?;
    os.raw_set("clock", clock)?;
    random::install(lua, run, &original.raw_get("math")?)?;
    let string: Table = original.raw_get("string")?;
    string.raw_remove("dump")?;
    strings::install(lua, run, &string)?;
    install_libraries(lua)?;

    for name in LIBRARIES {
        if let Value::Table(library) = original.raw_get(*name)? {
            world.raw_set(*name, front.call::<Table>(library)?)?;
        }
    }
    let redis: Table = front.call(redis)?;
    world.raw_set("redis", &redis)?;
    world.raw_set("server", redis)?;
    lock_strings(lua, &string, &world, &front)?;
    let shown = global_front(lua, &world, &front)?;
    let loading = loading_world(lua, &front, loading)?;
    Ok(Sandbox { handler, world, shown, loading })
}

/// Sets the functions of Redis's own libraries.
///
/// Those on patterns go into `string`. The others go into tables of their own, which become fronts by their
/// names in [`LIBRARIES`].
fn install_libraries(lua: &Lua) -> mlua::Result<()> {
    library::install_all(lua)
}

/// Directs methods of strings to the library, and shows scripts a front of the metatable.
fn lock_strings(lua: &Lua, string: &Table, world: &Table, front: &Function) -> mlua::Result<()> {
    let shown = lua.create_table()?;
    shown.raw_set("__index", world.raw_get::<Table>("string")?)?;
    let metatable = lua.create_table()?;
    metatable.raw_set("__index", string)?;
    metatable.raw_set("__metatable", front.call::<Table>(shown)?)?;
    lua.set_type_metatable::<LuaString>(Some(metatable));
    Ok(())
}

impl Sandbox {
    /// Connects a script directly to the globals if it cannot assign to any.
    ///
    /// Other scripts find the globals through their front.
    pub fn shorten_way_to_globals(&self, script: &Function) -> mlua::Result<()> {
        if !bytecode::may_set_globals(&script.dump(true)) {
            script.set_environment(self.world.clone())?;
        }
        Ok(())
    }

    /// Shows the world of loading libraries, or that of scripts and functions.
    pub fn show(&self, world: World) -> mlua::Result<()> {
        let table = match world {
            World::Running => &self.world,
            World::Loading => &self.loading,
        };
        self.shown.raw_set("__index", table)
    }
}

/// The names that Lua code finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum World {
    /// The names for scripts and functions.
    Running,
    /// The names for a library that loads.
    Loading,
}

/// Makes the globals as scripts see them, and returns their metatable.
///
/// Reads of unknown names are errors, and so are writes.
fn global_front(lua: &Lua, world: &Table, front: &Function) -> mlua::Result<Table> {
    let missing = refuse_unknown(lua, world)?;
    let shown = lua.create_table()?;
    shown.raw_set("__index", missing)?;
    let metatable = lua.create_table()?;
    metatable.raw_set("__metatable", front.call::<Table>(shown)?)?;
    let globals: Table = front.call((world, &metatable))?;
    world.raw_set("_G", &globals)?;
    lua.set_globals(globals)?;
    Ok(metatable)
}

/// The globals of a library that loads: `redis` alone.
fn loading_world(lua: &Lua, front: &Function, redis: Table) -> mlua::Result<Table> {
    refuse_unknown(lua, &redis)?;
    let redis: Table = front.call(redis)?;
    let world = lua.create_table()?;
    world.raw_set("redis", &redis)?;
    world.raw_set("server", redis)?;
    refuse_unknown(lua, &world)?;
    Ok(world)
}

/// Turns reads of names that `table` does not have into errors.
fn refuse_unknown(lua: &Lua, table: &Table) -> mlua::Result<Function> {
    let missing = lua.create_function(|_, (_, name): (Value, Value)| unknown(&name))?;
    let metatable = lua.create_table()?;
    metatable.raw_set("__index", &missing)?;
    table.set_metatable(Some(metatable))?;
    Ok(missing)
}

fn unknown(name: &Value) -> mlua::Result<()> {
    let name = tolstring(name)
        .ok_or_else(|| raise::text("Second argument to luaProtectedTableError must be a string or number"))?;
    let text = [b"Script attempted to access nonexistent global variable '", name.as_slice(), b"'"];
    Err(raise::text(text.concat()))
}

/// The functions in Rust that the prelude needs.
fn native(lua: &Lua, run: &Rc<Run>) -> mlua::Result<Table> {
    let native = lua.create_table()?;
    let set = |name, function: mlua::Result<Function>| native.raw_set(name, function?);
    set("refuse", lua_overrides::refusal(lua))?;
    set("visible", with_run(lua, run, |lua, run, args| errors::visible(lua, run, first(args))))?;
    set(
        "locate",
        with_run(lua, run, |lua, run, _| {
            errors::locate(lua, run);
            Ok(Value::Nil)
        }),
    )?;
    let shared = Rc::clone(run);
    set(
        "compile",
        lua.create_function(move |lua, args: MultiValue| unlimited(lua, &shared, || compile(lua, &args))),
    )?;
    set(
        "bad_argument",
        lua.create_function(|_, (position, function, complaint): (usize, String, String)| {
            Err::<(), _>(raise::bad_argument(position, &function, &complaint))
        }),
    )?;
    set("fail", lua.create_function(|_, text: LuaString| Err::<(), _>(raise::text(&*text.as_bytes()))))?;
    set("kind", lua.create_function(|_, value: Value| Ok(kind(&value))))?;
    set("concat", with_run(lua, run, |lua, _, args| concat(lua, first(args))))?;
    Ok(native)
}

/// The pieces of a source in one string.
fn concat(lua: &Lua, pieces: Value) -> mlua::Result<Value> {
    let mut whole = Vec::new();
    for piece in Table::from_lua(pieces, lua)?.sequence_values::<LuaString>() {
        whole.extend_from_slice(&piece?.as_bytes());
    }
    lua.create_string(whole).map(Value::String)
}

/// Compiles source that a script has made: `loadstring`.
///
/// Returns nil and the error's text if the source is wrong.
fn compile(lua: &Lua, args: &MultiValue) -> mlua::Result<(Value, Value)> {
    let source = text_argument(lua, args, 1)?;
    let is_named = args.get(1).is_some_and(|name| !name.is_nil());
    let name = if is_named { text_argument(lua, args, 2)? } else { source.clone() };
    match chunk(lua, &source, &name) {
        Ok(function) => Ok((Value::Function(function), Value::Nil)),
        Err(error) => Ok((Value::Nil, Value::String(lua.create_string(syntax(&error))?))),
    }
}

fn text_argument(lua: &Lua, args: &MultiValue, position: usize) -> mlua::Result<Vec<u8>> {
    let value = args.get(position - 1);
    value.and_then(tolstring).ok_or_else(|| {
        let got = value.map_or("no value", kind);
        raise::called_with(lua, position, &format!("string expected, got {got}"))
    })
}

/// Compiles `source` to a function.
///
/// The collector is stopped meanwhile, because the parser of Lua 5.1.5 does not keep the chunk's name alive.
pub(crate) fn chunk(lua: &Lua, source: &[u8], name: &[u8]) -> mlua::Result<Function> {
    if source.len() > MAX_SOURCE_BYTES {
        return Err(mlua::Error::runtime("source too long"));
    }
    // For C a name ends at its first zero byte.
    let name = name.split(|&byte| byte == 0).next().unwrap_or_default();
    let name = String::from_utf8_lossy(name).into_owned();
    lua.gc_stop();
    let compiled = lua.load(source).set_name(name).set_mode(ChunkMode::Text).into_function();
    lua.gc_restart();
    compiled
}

/// The complaint about a source.
pub(crate) fn syntax(error: &mlua::Error) -> String {
    match error {
        mlua::Error::SyntaxError { message, .. } => message.clone(),
        mlua::Error::RuntimeError(message) => message.clone(),
        mlua::Error::MemoryError(_) => raise::NO_MEMORY.to_owned(),
        other => other.to_string(),
    }
}

fn first(mut args: MultiValue) -> Value {
    args.pop_front().unwrap_or(Value::Nil)
}
