//! The libraries that scripts find in their state besides Lua's own: patterns, JSON, MessagePack, structures and bits.
//!
//! They answer byte for byte what redis-server 7.0 answers, its error texts too. They are safe code: what they read is
//! checked against the bytes that are there, depths are bounded, and long loops ask [`checkpoint`] whether to go on.
//!
//! An error of these functions leaves Rust as a [`Raised`]: mlua shows it to a script as a userdata. The engine's `pcall`,
//! `xpcall` and `coroutine.resume` must therefore turn it into the value that [`thrown_value`] returns.

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
pub use raised::{Raised, thrown_value};

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
