//! The libraries that scripts find in their state besides Lua's own: patterns, JSON, MessagePack, structures and bits.
//!
//! They answer byte for byte what redis-server 7.0 answers, its error texts too. They are safe code: what they read is
//! checked against the bytes that are there, depths are bounded, and long loops ask [`checkpoint`] whether to go on.
//!
//! An error of these functions leaves Rust as a [`Raised`]: mlua shows it to a script as a userdata. The engine's `pcall`,
//! `xpcall` and `coroutine.resume` must therefore turn it into the value that [`thrown_value`] returns.

mod arguments;
mod bits;
#[allow(unsafe_code)]
mod builder;
mod cjson;
mod cmsgpack;
mod meter;
mod number;
mod pattern;
mod raised;
mod structs;
mod tables;

pub use raised::{Raised, thrown_value};

/// The bytes that a string made by a library may have: what a state may hold by default. What it is made of can be much smaller, such as
/// tables that share parts.
const MAX_STRING_BYTES: usize = 1 << 30;

/// Makes the libraries' tables in `lua`'s globals, and replaces `find`, `match`, `gmatch` and `gsub` in `string`.
///
/// The globals `string`, `table`, `pcall`, `next` and `type` must still be Lua's own.
pub fn install_all(lua: &mlua::Lua) -> mlua::Result<()> {
    pattern::install(lua)?;
    cjson::install(lua)?;
    cmsgpack::install(lua)?;
    structs::install(lua)?;
    bits::install(lua)
}

/// What a state's long loops ask whether to go on, set with [`mlua::Lua::set_app_data`]. An error ends the loop, and the call with it.
#[derive(Clone, Copy)]
pub struct Checkpoint(pub fn(lua: &mlua::Lua, steps: u32) -> mlua::Result<()>);

/// Is called by long loops after about every 10,000 of their `steps`; asks the state's [`Checkpoint`], if it has one.
///
/// A step is a byte, a node or an attempt at a character: some nanoseconds.
///
/// # Errors
/// What the checkpoint returns.
pub fn checkpoint(lua: &mlua::Lua, steps: u32) -> mlua::Result<()> {
    let checkpoint = lua.app_data_ref::<Checkpoint>().map(|checkpoint| *checkpoint);
    checkpoint.map_or(Ok(()), |Checkpoint(ask)| ask(lua, steps))
}
