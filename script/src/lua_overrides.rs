//! Functions of Lua's own libraries that scripts get in another form.
//!
//! The originals would see past a front (`prelude.lua`), catch the end of a run, or work without end.
//!
//! Lua calls each of them as it would call the original, and most then run the original. So complaints name
//! the function as the script does, and have the position of its caller.

use std::ffi::c_int;
use std::rc::Rc;

use braid_protocol::number;
use mlua::{Function, IntoLuaMulti, Lua, Table, Value, ffi, lua_CFunction};

use crate::bridge;
use crate::run_state::Run;
use crate::stack::{Kind, Stack};

/// The values that the functions of this module own.
pub(crate) struct Parts<'a> {
    pub run: &'a Rc<Run>,
    /// The table of each front.
    pub behind: &'a Table,
    /// A function that turns an error into the value that scripts may see.
    ///
    /// If the run is ending, it continues the end instead.
    pub visible: Function,
    /// The functions of `prelude.lua` that call scripts' functions for long.
    pub safe: &'a Table,
}

// The own values of all functions, and the further ones of some.
const RUN: c_int = bridge::RUN;
/// The original function, or its version in Lua.
const ORIGINAL: c_int = Stack::own(2);
const BEHIND: c_int = Stack::own(3);
const VISIBLE: c_int = Stack::own(4);
const OTHER: c_int = Stack::own(5);
const N_OWN: c_int = 5;

/// The longest shift or sort without a question to the host.
const LONG: c_int = 100_000;

const READONLY: &[u8] = b"Attempt to modify a readonly table";

/// Defines the functions in C that call the functions of this module.
macro_rules! callable {
    ($($name:ident)*) => {
        mod callable {
            use std::ffi::c_int;

            use mlua::lua_State;

            use crate::stack::Stack;

            $(
                /// # Safety
                ///
                /// Lua calls it, in protected mode, as a closure that this module has made.
                pub unsafe extern "C-unwind" fn $name(state: *mut lua_State) -> c_int {
                    // SAFETY: the caller's promise; no frame down to here owns anything when an error is
                    // raised.
                    crate::lua_overrides::$name(unsafe { Stack::new(state) })
                }
            )*
        }
    };
}

callable! {
    getmetatable setmetatable next pairs rawget rawset insert remove sort unpack refuse_write
    pcall xpcall handle resume wrap resume_wrapped load in_lua tonumber
}

/// Replaces the originals, which are globals of `lua`, in `world` and in the libraries.
pub(crate) fn install(lua: &Lua, world: &Table, parts: &Parts<'_>) -> mlua::Result<()> {
    let globals = lua.globals();
    let close = |original: &Value, other: &Value, function| {
        let own = (bridge::address(parts.run), original, parts.behind, &parts.visible, other);
        closure(lua, own, function)
    };
    let next = close(&globals.raw_get("next")?, &Value::Nil, callable::next)?;
    let functions: [(&str, lua_CFunction); 11] = [
        ("getmetatable", callable::getmetatable),
        ("setmetatable", callable::setmetatable),
        ("rawget", callable::rawget),
        ("rawset", callable::rawset),
        ("unpack", callable::unpack),
        ("pcall", callable::pcall),
        ("xpcall", callable::xpcall),
        ("next", callable::next),
        ("load", callable::load),
        ("tonumber", callable::tonumber),
        ("collectgarbage", callable::in_lua),
    ];
    for (name, function) in functions {
        let in_lua: Value = parts.safe.raw_get(name)?;
        let original = if in_lua.is_nil() { globals.raw_get(name)? } else { in_lua };
        world.raw_set(name, close(&original, &Value::Nil, function)?)?;
    }
    world.raw_set("pairs", close(&globals.raw_get("next")?, &Value::Function(next), callable::pairs)?)?;
    let table: Table = globals.raw_get("table")?;
    table.raw_set("insert", close(&Value::Nil, &Value::Nil, callable::insert)?)?;
    table.raw_set("remove", close(&Value::Nil, &Value::Nil, callable::remove)?)?;
    table.raw_set("sort", close(&table.raw_get("sort")?, &parts.safe.raw_get("sort")?, callable::sort)?)?;
    let coroutine: Table = globals.raw_get("coroutine")?;
    let resume: Value = coroutine.raw_get("resume")?;
    coroutine.raw_set("resume", close(&resume, &Value::Nil, callable::resume)?)?;
    coroutine.raw_set("wrap", close(&coroutine.raw_get("create")?, &resume, callable::wrap)?)
}

/// The function that refuses writes to fronts.
pub(crate) fn refusal(lua: &Lua) -> mlua::Result<Function> {
    // SAFETY: the function owns nothing, and has no own values.
    unsafe { lua.exec_raw((), |state| ffi::lua_pushcclosure(state, callable::refuse_write, 0)) }
}

fn closure(lua: &Lua, own: impl IntoLuaMulti, function: lua_CFunction) -> mlua::Result<Function> {
    // SAFETY: the closure owns nothing; the function's own values are on the stack.
    unsafe { lua.exec_raw(own, |state| ffi::lua_pushcclosure(state, function, N_OWN)) }
}

/// Calls the version in Lua in place of the running function.
fn in_lua(stack: Stack<'_>) -> c_int {
    stack.push(ORIGINAL);
    stack.insert(1);
    stack.call_for_all(stack.len() - 1);
    stack.len()
}

/// Converts a decimal integer directly, and leaves all other arguments to the original.
///
/// Lua reads a text twice, each time by `strtod`. Nearly all texts that scripts convert are integers.
fn tonumber(stack: Stack<'_>) -> c_int {
    if stack.len() == 1
        && let Some(integer) = stack.text(1).and_then(number::parse_i64)
    {
        stack.push_number(integer as f64);
        return 1;
    }
    stack.call_in_place(ORIGINAL)
}

// Tables and their fronts.

/// Whether a value is a front. If so, puts its table on the stack.
fn push_behind(stack: Stack<'_>, index: c_int) -> bool {
    if stack.kind(index) != Kind::Table || !stack.push_metatable(index) {
        return false;
    }
    stack.pop(1);
    stack.push(index);
    let is_front = stack.replace_by_field(BEHIND) == Kind::Table;
    if !is_front {
        stack.pop(1);
    }
    is_front
}

/// Replaces a front by its table, which the original function only reads.
fn see_behind(stack: Stack<'_>) -> c_int {
    if push_behind(stack, 1) {
        stack.replace(1);
    }
    stack.call_in_place(ORIGINAL)
}

fn rawget(stack: Stack<'_>) -> c_int {
    see_behind(stack)
}

fn next(stack: Stack<'_>) -> c_int {
    see_behind(stack)
}

/// A front's pairs need the `next` that knows fronts. For other tables the original is enough.
fn pairs(stack: Stack<'_>) -> c_int {
    stack.check(1, Kind::Table);
    stack.cut(1);
    let is_front = push_behind(stack, 1);
    stack.cut(1);
    stack.push(if is_front { OTHER } else { ORIGINAL });
    stack.push(1);
    stack.push_nil();
    3
}

/// Refuses a call that would change a front. The error has no position, as in Redis.
fn refuse(stack: Stack<'_>) -> ! {
    stack.push_text(READONLY);
    stack.raise()
}

/// Refuses an assignment to a front's field.
fn refuse_write(stack: Stack<'_>) -> c_int {
    stack.raise_text(READONLY)
}

fn rawset(stack: Stack<'_>) -> c_int {
    if stack.len() >= 3 && push_behind(stack, 1) {
        refuse(stack);
    }
    stack.call_in_place(ORIGINAL)
}

fn setmetatable(stack: Stack<'_>) -> c_int {
    let may_be_set = stack.len() >= 2 && matches!(stack.kind(2), Kind::Nil | Kind::Table);
    if may_be_set && push_behind(stack, 1) {
        refuse(stack);
    }
    stack.call_in_place(ORIGINAL)
}

fn getmetatable(stack: Stack<'_>) -> c_int {
    let is_front = push_behind(stack, 1);
    stack.cut(stack.len() - c_int::from(is_front));
    let n_results = stack.call_in_place(ORIGINAL);
    // A front's own metatable would show how it works. That of the globals names a front to show instead.
    if is_front && !push_behind(stack, -1) {
        stack.push_nil();
        return 1;
    }
    stack.cut(stack.len() - c_int::from(is_front));
    n_results
}

/// Asks the host sometimes whether a shift may continue.
fn may_shift(stack: Stack<'_>, at: c_int) {
    if at % LONG == 0 && bridge::run_of(stack).question(|host| host.interrupt()).is_err() {
        bridge::raise_end(stack);
    }
}

fn insert(stack: Stack<'_>) -> c_int {
    stack.check(1, Kind::Table);
    let end = stack.length(1).wrapping_add(1);
    let position = match stack.len() {
        2 => end,
        3 => stack.check_integer(2),
        _ => stack.raise_text(b"wrong number of arguments to 'insert'"),
    };
    if push_behind(stack, 1) {
        refuse(stack);
    }
    let mut at = end.max(position);
    while at > position {
        may_shift(stack, at);
        stack.push_element(1, at.wrapping_sub(1));
        stack.set_element(1, at);
        at -= 1;
    }
    stack.set_element(1, position);
    0
}

fn remove(stack: Stack<'_>) -> c_int {
    stack.check(1, Kind::Table);
    let end = stack.length(1);
    let position = if stack.is_absent(2) { end } else { stack.check_integer(2) };
    if !(1..=end).contains(&position) {
        return 0;
    }
    stack.push_element(1, position);
    for at in position..end {
        may_shift(stack, at);
        stack.push_element(1, at + 1);
        stack.set_element(1, at);
    }
    stack.push_nil();
    stack.set_element(1, end);
    1
}

fn sort(stack: Stack<'_>) -> c_int {
    if stack.kind(1) != Kind::Table || stack.length(1) <= LONG {
        return stack.call_in_place(ORIGINAL);
    }
    if !stack.is_absent(2) {
        stack.check(2, Kind::Function);
    }
    stack.cut(2);
    stack.push(OTHER);
    stack.insert(1);
    stack.call_for_all(2);
    0
}

fn unpack(stack: Stack<'_>) -> c_int {
    stack.check(1, Kind::Table);
    let first = if stack.is_absent(2) { 1 } else { stack.check_integer(2) };
    let last = if stack.is_absent(3) { stack.length(1) } else { stack.check_integer(3) };
    if first > last {
        return 0;
    }
    let n = last.wrapping_sub(first).wrapping_add(1);
    if n <= 0 || !stack.has_room(n) {
        stack.raise_text(b"too many results to unpack");
    }
    (first..=last).for_each(|at| {
        stack.push_element(1, at);
    });
    n
}

// Errors.

/// Replaces the error on top by the value that the script may see.
fn make_visible(stack: Stack<'_>) {
    stack.push(VISIBLE);
    stack.insert(-2);
    stack.call(1);
}

/// `pcall` as in Redis: an error table with a text becomes that text.
///
/// For a table without a text, the value in the text's place follows the table.
fn pcall(stack: Stack<'_>) -> c_int {
    let n_results = stack.call_in_place(ORIGINAL);
    if stack.is_true(1) {
        return n_results;
    }
    make_visible(stack);
    if stack.kind(2) == Kind::Table {
        stack.push_text(b"err");
        if matches!(stack.replace_by_value(2), Kind::Text | Kind::Number) {
            stack.replace(2);
        }
    }
    stack.len()
}

fn xpcall(stack: Stack<'_>) -> c_int {
    if stack.kind(2) == Kind::Function {
        stack.push(RUN);
        stack.push(2);
        stack.push_nil();
        stack.push(VISIBLE);
        stack.push_nil();
        stack.close(callable::handle, N_OWN);
        stack.replace(2);
    }
    let n_results = stack.call_in_place(ORIGINAL);
    if !stack.is_true(1) {
        make_visible(stack);
    }
    n_results
}

/// Calls the script's handler with an error.
///
/// The error that ends a run passes unchanged: an error in the handler would hide it.
fn handle(stack: Stack<'_>) -> c_int {
    if !bridge::run_of(stack).is_ending() {
        make_visible(stack);
        stack.push(ORIGINAL);
        stack.insert(-2);
        stack.call(1);
    }
    1
}

fn resume(stack: Stack<'_>) -> c_int {
    let n_results = stack.call_in_place(ORIGINAL);
    if !stack.is_true(-n_results) {
        make_visible(stack);
    }
    n_results
}

fn wrap(stack: Stack<'_>) -> c_int {
    stack.call_in_place(ORIGINAL);
    // The function that resumes it has the coroutine as its own value 3, where others have the fronts'
    // tables.
    let coroutine = stack.len();
    stack.push(RUN);
    stack.push(OTHER);
    stack.push(coroutine);
    stack.push(VISIBLE);
    stack.push_nil();
    stack.close(callable::resume_wrapped, N_OWN);
    1
}

fn resume_wrapped(stack: Stack<'_>) -> c_int {
    stack.push(BEHIND);
    stack.insert(1);
    let n_results = stack.call_in_place(ORIGINAL);
    if stack.is_true(-n_results) {
        return n_results - 1;
    }
    make_visible(stack);
    if matches!(stack.kind(-1), Kind::Text | Kind::Number) {
        stack.push_place();
        stack.insert(-2);
        stack.join(2);
    }
    stack.raise()
}

fn load(stack: Stack<'_>) -> c_int {
    if !stack.is_absent(2) {
        stack.check_text(2);
    }
    stack.check(1, Kind::Function);
    stack.cut(2);
    in_lua(stack)
}
