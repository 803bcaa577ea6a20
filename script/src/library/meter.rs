//! Counts the steps of long loops.

use mlua::Lua;

use super::checkpoint;

/// How many steps pass between two questions whether to go on.
const INTERVAL: u32 = 10_000;

/// Something that is told how much work a loop does, and may end it.
pub(super) trait Work {
    /// Why the work must end.
    type Stop;

    /// Notes `steps` more; from time to time it asks whether to go on.
    fn spend(&mut self, steps: u32) -> Result<(), Self::Stop>;
}

/// Counts the steps of one call of a library's function and asks [`checkpoint`] after every [`INTERVAL`].
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
