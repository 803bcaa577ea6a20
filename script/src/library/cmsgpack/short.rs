//! `cmsgpack.unpack` of short data, as scripts keep it in fields and arguments: its values go straight to Lua's own stack (see
//! [`crate::stack`]). What is long, deep or wrong is left to [`unpack`](super::unpack), which can be ended, and says what is wrong.

use std::ffi::c_int;

use mlua::{Function, Lua, ffi, lua_State};

use super::unpack::{Item, Reader, refusal_of_key};
use crate::library::builder::{self, Kind, Part};
use crate::stack::Stack;

/// Longer data is not short: nobody is asked meanwhile whether to go on.
const SHORT_BYTES: usize = 4096;

/// How deep tables nest at most.
const MAX_DEPTH: usize = 16;

/// The own value of the function for all other data, which finds it as the first of the one that runs in its place.
const OF_OTHERS: c_int = 1;
/// That function.
const OTHERS: c_int = Stack::own(2);

/// Makes the function. Where it does not do, `others` runs in its place, as if it had been called itself: errors name its caller.
pub(super) fn unpack(lua: &Lua, others: Function) -> mlua::Result<Function> {
    // SAFETY: the closure owns nothing; the function's own values are on the stack.
    let function: Option<Function> = unsafe {
        lua.exec_raw(others, |state| {
            let stack = Stack::new(state);
            // One value of its own is what mlua gives a function.
            if stack.push_own_of(1, OF_OTHERS) && !stack.push_own_of(1, OF_OTHERS + 1) {
                stack.insert(1);
                ffi::lua_pushcclosure(state, called, 2);
            } else {
                stack.cut(0);
            }
        })?
    };
    function.ok_or_else(|| mlua::Error::runtime("a function of mlua has other values of its own than one"))
}

/// # Safety
///
/// Lua calls it, in protected mode, as a closure that [`unpack`] has made.
unsafe extern "C-unwind" fn called(state: *mut lua_State) -> c_int {
    // SAFETY: the caller's promise; no frame down to here owns anything when something raises.
    let stack = unsafe { Stack::new(state) };
    let n_arguments = stack.len();
    if n_arguments == 1
        && let Some(data) = stack.text(1).filter(|data| data.len() <= SHORT_BYTES)
        && put_all(stack, data).is_some()
    {
        return stack.len() - n_arguments;
    }
    stack.cut(n_arguments);
    stack.call_in_place(OTHERS)
}

/// Puts all values of the data on the stack, unless something is unusual. Raises.
fn put_all(stack: Stack<'_>, data: &[u8]) -> Option<()> {
    let mut reader = Reader { rest: data };
    while !reader.rest.is_empty() {
        put_next(stack, &mut reader, MAX_DEPTH)?;
    }
    Some(())
}

/// Puts the next value on the stack. Raises.
fn put_next(stack: Stack<'_>, reader: &mut Reader<'_>, depth: usize) -> Option<()> {
    // A table, a key and a value. An error that there is no room is for the others, too.
    if !stack.has_room(3) {
        return None;
    }
    // What an item holds lies in the data, and the error is gone before anything raises.
    match reader.item().ok()? {
        Item::Value(part) => builder::push(stack, &part),
        Item::Table(kind, n_values) => {
            let depth = depth.checked_sub(1)?;
            builder::push(stack, &Part::Open);
            match kind {
                Kind::Array => {
                    for n in 1..=n_values {
                        put_next(stack, reader, depth)?;
                        stack.set_element(-2, n as c_int);
                    }
                }
                Kind::Map => {
                    for _ in 0..n_values / 2 {
                        put_key(stack, reader, depth)?;
                        put_next(stack, reader, depth)?;
                        stack.set(-3);
                    }
                }
            }
        }
    }
    Some(())
}

/// Puts the next value on the stack, unless it cannot be a key. Raises.
fn put_key(stack: Stack<'_>, reader: &mut Reader<'_>, depth: usize) -> Option<()> {
    let mut ahead = Reader { rest: reader.rest };
    if let Item::Value(part) = ahead.item().ok()?
        && refusal_of_key(&part).is_some()
    {
        return None;
    }
    put_next(stack, reader, depth)
}
