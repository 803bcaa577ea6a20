//! The bounds of one call of a library's function.
//!
//! Its loops ask whether to continue, and its string has a largest size.

use mlua::Lua;

/// The question that a state's long loops ask: whether to continue.
///
/// It is set with [`mlua::Lua::set_app_data`]. An error ends the loop, and the call with it.
#[derive(Clone, Copy)]
pub struct Checkpoint(pub fn(lua: &Lua, steps: u32) -> mlua::Result<()>);

/// Asks the state's [`Checkpoint`], if it has one. Long loops call it after about 10,000 `steps` each time.
///
/// A step is a byte, a node or an attempt at a character: some nanoseconds.
///
/// # Errors
/// The checkpoint's error.
pub fn checkpoint(lua: &Lua, steps: u32) -> mlua::Result<()> {
    let checkpoint = lua.app_data_ref::<Checkpoint>().map(|checkpoint| *checkpoint);
    checkpoint.map_or(Ok(()), |Checkpoint(ask)| ask(lua, steps))
}

/// The largest size of a string that a library makes.
///
/// It is the default memory limit of a state. The string's source can be much smaller: tables may share
/// parts.
pub(super) const MAX_STRING_BYTES: usize = 1 << 30;

/// The steps between two questions whether to continue.
const INTERVAL: u32 = 10_000;

/// The counter of a loop's work, which may end the loop.
pub(super) trait Work {
    /// The reason why the work must end.
    type Stop;

    /// Notes `steps` more. It sometimes asks whether to continue.
    fn spend(&mut self, steps: u32) -> Result<(), Self::Stop>;
}

/// The count of the steps of one call of a library's function.
///
/// It asks [`checkpoint`] after every [`INTERVAL`].
pub(super) struct Meter<'lua> {
    lua: &'lua Lua,
    steps: u32,
}

impl<'lua> Meter<'lua> {
    pub(super) fn new(lua: &'lua Lua) -> Self {
        Self { lua, steps: 0 }
    }

    #[cold]
    fn ask(&mut self) -> mlua::Result<()> {
        checkpoint(self.lua, std::mem::take(&mut self.steps))
    }
}

impl Work for Meter<'_> {
    type Stop = mlua::Error;

    #[inline]
    fn spend(&mut self, steps: u32) -> mlua::Result<()> {
        self.steps = self.steps.saturating_add(steps);
        if self.steps >= INTERVAL { self.ask() } else { Ok(()) }
    }
}
