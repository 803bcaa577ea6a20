//! Functions in Rust that Lua calls through mlua.
//!
//! They have the present run, and no memory limit.

use std::rc::Rc;

use mlua::{Function, Lua, MultiValue, Value};

use crate::run_state::Run;

/// A function for Lua that knows the present run.
///
/// Memory is not limited while it runs, because Rust cannot continue where an allocation fails. A function
/// that needs much memory asks [`Run::is_full`] first.
pub(crate) fn with_run<F>(lua: &Lua, run: &Rc<Run>, function: F) -> mlua::Result<Function>
where
    F: Fn(&Lua, &Run, MultiValue) -> mlua::Result<Value> + 'static,
{
    let run = Rc::clone(run);
    lua.create_function(move |lua, args: MultiValue| unlimited(lua, &run, || function(lua, &run, args)))
}

/// Runs `work` without a memory limit.
pub(crate) fn unlimited<R>(lua: &Lua, run: &Run, work: impl FnOnce() -> R) -> R {
    let _unlimited = Unlimited::new(lua, run);
    work()
}

/// Lifts the memory limit until it is dropped.
struct Unlimited<'a> {
    lua: &'a Lua,
    limit: usize,
}

impl<'a> Unlimited<'a> {
    fn new(lua: &'a Lua, run: &Run) -> Self {
        let limit = run.memory_limit.get();
        if limit != 0 {
            let _ = lua.set_memory_limit(0);
        }
        Unlimited { lua, limit }
    }
}

impl Drop for Unlimited<'_> {
    fn drop(&mut self) {
        if self.limit != 0 {
            let _ = self.lua.set_memory_limit(self.limit);
        }
    }
}
