//! The libraries of scripts in addition to Lua's own: patterns, JSON, MessagePack, structures and bits.
//!
//! They return the same bytes as redis-server 7.0, error texts included. Unsafe code exists only where Lua's
//! own stack is used. All reads are checked against the bytes that are there. Depths are bounded, and long
//! loops ask [`checkpoint`] whether to continue.
//!
//! An error of these functions leaves Rust as a [`RaisedValue`], which mlua shows to a script as a userdata.
//! The engine's `pcall`, `xpcall` and `coroutine.resume` must therefore turn it into the value that
//! [`thrown_value`] returns.

mod arguments;
mod bits;
#[expect(unsafe_code, reason = "makes tables on Lua's own stack")]
mod builder;
mod c_numbers;
mod cjson;
mod cmsgpack;
mod meter;
mod pattern;
mod raised;
mod structs;
mod tables;

pub use meter::{Checkpoint, checkpoint};
pub use raised::{RaisedValue, thrown_value};

/// Makes the libraries' tables in `lua`'s globals, and replaces functions in `string`.
///
/// Those are `find`, `match`, `gmatch` and `gsub`. The globals `string`, `table`, `pcall`, `next` and `type`
/// must still be Lua's own.
pub fn install_all(lua: &mlua::Lua) -> mlua::Result<()> {
    pattern::install(lua)?;
    cjson::install(lua)?;
    cmsgpack::install(lua)?;
    structs::install(lua)?;
    bits::install(lua)
}
