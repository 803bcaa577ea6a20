//! `cmsgpack.unpack` of short data, as scripts keep it in fields and arguments.
//!
//! Its values go straight to Lua's own stack (see [`crate::stack`]). Data that is long, deep or wrong is left
//! to [`unpack`](super::unpack). That function can be ended, and its errors say more.

use std::ffi::c_int;

use mlua::{Function, Lua, ffi, lua_State};

use super::unpack::{PackedItem, Reader, refusal_of_key};
use crate::library::builder::{self, Part, TableKind};
use crate::stack::Stack;

/// The longest data that is short. Meanwhile the host is not asked whether to continue.
const SHORT_BYTES: usize = 4096;

/// The greatest depth to which tables nest.
const MAX_DEPTH: usize = 16;

/// The index of the one own value of the function for all other data.
///
/// That function finds it at the same index when it runs in place of [`called`].
const OF_OTHERS: c_int = 1;
/// The function for all other data.
const OTHERS: c_int = Stack::own(2);

/// Makes the function. For other data, `others` runs in its place.
///
/// `others` runs as if it had been called itself: errors name its caller.
pub(super) fn unpack(lua: &Lua, others: Function) -> mlua::Result<Function> {
    // SAFETY: the closure owns nothing; the function's own values are on the stack.
    let function: Option<Function> = unsafe {
        lua.exec_raw(others, |state| {
            let stack = Stack::new(state);
            // mlua gives a function exactly one own value.
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
    // SAFETY: the caller's promise; no frame down to here owns anything when an error is raised.
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

/// Puts all values of the data on the stack. Raises.
///
/// Returns `None` if something is unusual.
fn put_all(stack: Stack<'_>, data: &[u8]) -> Option<()> {
    let mut reader = Reader { rest: data };
    while !reader.rest.is_empty() {
        put_next(stack, &mut reader, MAX_DEPTH)?;
    }
    Some(())
}

/// Puts the next value on the stack. Raises.
fn put_next(stack: Stack<'_>, reader: &mut Reader<'_>, depth: usize) -> Option<()> {
    // Room for a table, a key and a value. Without room, `others` raises the error.
    if !stack.has_room(3) {
        return None;
    }
    // An item only borrows from the data, and an error is dropped before anything raises.
    match reader.item().ok()? {
        PackedItem::Value(part) => builder::push(stack, &part),
        PackedItem::Table(kind, n_values) => {
            let depth = depth.checked_sub(1)?;
            builder::push(stack, &Part::Open);
            match kind {
                TableKind::Array => {
                    for n in 1..=n_values {
                        put_next(stack, reader, depth)?;
                        stack.set_element(-2, n as c_int);
                    }
                }
                TableKind::Map => {
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

/// Puts the next value on the stack, unless it is not allowed as a key. Raises.
fn put_key(stack: Stack<'_>, reader: &mut Reader<'_>, depth: usize) -> Option<()> {
    let mut ahead = Reader { rest: reader.rest };
    if let PackedItem::Value(part) = ahead.item().ok()?
        && refusal_of_key(&part).is_some()
    {
        return None;
    }
    put_next(stack, reader, depth)
}
