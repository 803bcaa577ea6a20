//! Lua's own stack, for the code that runs at each command of a script.
//!
//! A reference to a value that mlua keeps costs as much as the command.
//!
//! Lua raises an error by a jump over the frames between. Rust frames among them are not unwound. So the
//! functions that Lua calls are written in two parts. One owns memory, and does nothing that raises. The
//! other puts values on the stack, and owns nothing.

use std::ffi::{c_int, c_void};
use std::marker::PhantomData;
use std::{ptr, slice};

use mlua::ffi;
use mlua::{lua_CFunction, lua_State};

/// The stack of a function that Lua calls.
///
/// Values have indices. Positive indices count from the lowest value, which is 1. Negative indices count from
/// the topmost, which is -1.
#[derive(Clone, Copy)]
pub(crate) struct Stack<'l> {
    state: *mut lua_State,
    _of_call: PhantomData<&'l ()>,
}

/// The type of a value, as far as this crate distinguishes types.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Nil,
    Boolean,
    Number,
    Text,
    Table,
    Function,
    Other,
}

impl Kind {
    fn of(tag: c_int) -> Self {
        match tag {
            ffi::LUA_TNIL => Kind::Nil,
            ffi::LUA_TBOOLEAN => Kind::Boolean,
            ffi::LUA_TNUMBER => Kind::Number,
            ffi::LUA_TSTRING => Kind::Text,
            ffi::LUA_TTABLE => Kind::Table,
            ffi::LUA_TFUNCTION => Kind::Function,
            _ => Kind::Other,
        }
    }
}

/// A value in Lua's registry, which the collector does not free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kept(c_int);

impl Kept {
    /// Its key in the registry.
    pub fn place(self) -> ffi::lua_Integer {
        self.0.into()
    }
}

impl<'l> Stack<'l> {
    /// The stack of a state.
    ///
    /// # Safety
    ///
    /// `'l` is no longer than the call of a function that Lua runs in protected mode. As long as it lasts:
    /// - an index names a value, or is the one after the topmost where a value may be missing;
    /// - a text is read only while it is on the stack, in an upvalue, or in a table that is in one of these;
    /// - where a method says that it raises, no frame down to Lua's has anything to drop.
    pub unsafe fn new(state: *mut lua_State) -> Self {
        Stack { state, _of_call: PhantomData }
    }

    /// The index of the running function's own value `n`, from 1.
    pub const fn own(n: c_int) -> c_int {
        ffi::lua_upvalueindex(n)
    }

    /// The number of values.
    pub fn len(self) -> c_int {
        // SAFETY: reads the state; see `new`.
        unsafe { ffi::lua_gettop(self.state) }
    }

    /// Drops all values above the lowest `n`.
    pub fn cut(self, n: c_int) {
        // SAFETY: `n` values are there; see `new`.
        unsafe { ffi::lua_settop(self.state, n) }
    }

    /// Drops the topmost `n` values.
    pub fn pop(self, n: c_int) {
        self.cut(-n - 1);
    }

    /// The type of a value.
    pub fn kind(self, index: c_int) -> Kind {
        // SAFETY: the index is valid; see `new`.
        Kind::of(unsafe { ffi::lua_type(self.state, index) })
    }

    /// The bytes of a text; none of another value.
    pub fn text(self, index: c_int) -> Option<&'l [u8]> {
        if self.kind(index) != Kind::Text {
            return None;
        }
        let mut len = 0;
        // SAFETY: a text is not converted, so nothing raises. Its bytes stay in place while the text is held;
        // see `new`.
        unsafe {
            let bytes = ffi::lua_tolstring(self.state, index, &mut len);
            Some(slice::from_raw_parts(bytes.cast(), len))
        }
    }

    /// A number; none of another value.
    pub fn number(self, index: c_int) -> Option<f64> {
        // SAFETY: the index is valid; see `new`.
        (self.kind(index) == Kind::Number).then(|| unsafe { ffi::lua_tonumber(self.state, index) })
    }

    /// Whether a value is neither nil nor false.
    pub fn is_true(self, index: c_int) -> bool {
        // SAFETY: the index is valid; see `new`.
        unsafe { ffi::lua_toboolean(self.state, index) != 0 }
    }

    /// The address that is the value of a light userdata.
    pub fn address(self, index: c_int) -> *mut c_void {
        // SAFETY: the index is valid; see `new`.
        unsafe { ffi::lua_touserdata(self.state, index) }
    }

    /// Removes a value, and moves the values above it down.
    pub fn remove(self, index: c_int) {
        // SAFETY: the index is valid; see `new`.
        unsafe { ffi::lua_remove(self.state, index) }
    }

    /// Puts a copy of a value on the stack.
    pub fn push(self, index: c_int) {
        // SAFETY: the index is valid; see `new`. Every call has room for 20 values, and `reserve` makes more.
        unsafe { ffi::lua_pushvalue(self.state, index) }
    }

    /// Puts a kept value on the stack.
    pub fn push_kept(self, kept: Kept) {
        self.push_element(ffi::LUA_REGISTRYINDEX, kept.0);
    }

    /// Puts element `n` of a table on the stack. Returns its type.
    pub fn push_element(self, table: c_int, n: c_int) -> Kind {
        // SAFETY: the value is a table; see `new`.
        Kind::of(unsafe { ffi::lua_rawgeti(self.state, table, n as ffi::lua_Integer) })
    }

    /// Replaces the key on top, which is not nil, by its value in a table.
    ///
    /// Returns the value's type.
    pub fn replace_by_field(self, table: c_int) -> Kind {
        // SAFETY: the value is a table; see `new`.
        Kind::of(unsafe { ffi::lua_rawget(self.state, table) })
    }

    /// Replaces the key on top by the value that the script's own code would find.
    ///
    /// Metamethods count. Returns the value's type. Raises.
    pub fn replace_by_value(self, table: c_int) -> Kind {
        // SAFETY: it may raise; see `new`.
        unsafe { ffi::lua_gettable(self.state, table) };
        self.kind(-1)
    }

    /// The number of a table's elements, as `#` counts them.
    pub fn length(self, table: c_int) -> c_int {
        // SAFETY: the value is a table; see `new`.
        unsafe { ffi::lua_objlen(self.state, table) as c_int }
    }

    /// Puts a value's metatable on the stack, if it has one.
    pub fn push_metatable(self, index: c_int) -> bool {
        // SAFETY: the index is valid, and there is room, as `push` says; see `new`.
        unsafe { ffi::lua_getmetatable(self.state, index) != 0 }
    }

    /// Replaces the key on top by the table's next pair, if there is one.
    ///
    /// Otherwise it drops the key. The key nil asks for the first pair.
    pub fn next(self, table: c_int) -> bool {
        // SAFETY: the value is a table, and the key is its own, so that nothing raises; see `new`.
        unsafe { ffi::lua_next(self.state, table) != 0 }
    }

    /// Moves the value on top to an index, before the value there.
    pub fn insert(self, index: c_int) {
        // SAFETY: the index is valid; see `new`.
        unsafe { ffi::lua_insert(self.state, index) }
    }

    /// Moves the value on top to an index, in place of the value there.
    pub fn replace(self, index: c_int) {
        // SAFETY: the index is valid; see `new`.
        unsafe { ffi::lua_replace(self.state, index) }
    }

    /// Puts nil on the stack.
    pub fn push_nil(self) {
        // SAFETY: there is room, as `push` says.
        unsafe { ffi::lua_pushnil(self.state) }
    }

    /// Puts the light userdata that stands for null on the stack.
    pub fn push_null(self) {
        // SAFETY: there is room, as `push` says.
        unsafe { ffi::lua_pushlightuserdata(self.state, ptr::null_mut()) }
    }

    /// Puts a boolean on the stack.
    pub fn push_boolean(self, value: bool) {
        // SAFETY: there is room, as `push` says.
        unsafe { ffi::lua_pushboolean(self.state, value.into()) }
    }

    /// Puts a number on the stack.
    pub fn push_number(self, value: f64) {
        // SAFETY: there is room, as `push` says.
        unsafe { ffi::lua_pushnumber(self.state, value) }
    }

    /// Makes room for `n` more values. Raises.
    pub fn reserve(self, n: c_int) {
        if !self.has_room(n) {
            self.raise_text(b"stack overflow");
        }
    }

    /// Makes room for `n` more values. Returns false if those are too many.
    ///
    /// Raises where there is no memory for them.
    pub fn has_room(self, n: c_int) -> bool {
        // SAFETY: it may raise; see `new`.
        unsafe { ffi::lua_checkstack(self.state, n) != 0 }
    }

    /// Puts a text on the stack. Raises.
    pub fn push_text(self, text: &[u8]) {
        // SAFETY: the bytes are read here only; it may raise; see `new`.
        unsafe { ffi::lua_pushlstring_(self.state, text.as_ptr().cast(), text.len()) };
    }

    /// Puts a new table on the stack, with room for elements and fields. Raises.
    pub fn push_table(self, n_elements: usize, n_fields: usize) {
        // Beyond this, room is made when it is needed.
        const ROOM_MAX: usize = 1 << 24;
        let [elements, fields] = [n_elements, n_fields].map(|n| n.min(ROOM_MAX) as c_int);
        // SAFETY: it may raise; see `new`.
        unsafe { ffi::lua_createtable(self.state, elements, fields) };
    }

    /// Sets a table's field, and drops key and value.
    ///
    /// The key is below the top, and the value is on top. Raises.
    pub fn set(self, table: c_int) {
        // SAFETY: the value is a table; it may raise; see `new`.
        unsafe { ffi::lua_rawset(self.state, table) };
    }

    /// Sets element `n` of a table to the value on top, and drops the value.
    ///
    /// Raises, unless the element is there.
    pub fn set_element(self, table: c_int, n: c_int) {
        // SAFETY: the value is a table; it may raise; see `new`.
        unsafe { ffi::lua_rawseti(self.state, table, n as ffi::lua_Integer) };
    }

    /// Replaces a kept value by the one on top, and drops that from the stack.
    pub fn replace_kept(self, kept: Kept) {
        self.set_element(ffi::LUA_REGISTRYINDEX, kept.0);
    }

    /// Joins the topmost `n` texts to one. Raises.
    pub fn join(self, n: c_int) {
        // SAFETY: the values are there; it may raise; see `new`.
        unsafe { ffi::lua_concat(self.state, n) };
    }

    /// Raises the value on top. Does not return.
    pub fn raise(self) -> ! {
        // SAFETY: it raises; see `new`.
        unsafe { ffi::lua_error(self.state) }
    }

    /// Puts the caller's position on the stack, as it comes before an error: `user_script:1: `.
    ///
    /// Raises.
    pub fn push_place(self) {
        // SAFETY: puts a text on the stack, and may raise; see `new`.
        unsafe { ffi::luaL_where(self.state, 1) }
    }

    /// Raises an error with the caller's position in front. Does not return.
    pub fn raise_text(self, text: &[u8]) -> ! {
        self.push_place();
        self.push_text(text);
        self.join(2);
        self.raise()
    }

    /// Whether an argument is nil or missing.
    pub fn is_absent(self, argument: c_int) -> bool {
        // SAFETY: for a missing argument Lua returns `LUA_TNONE`; see `new`.
        unsafe { ffi::lua_type(self.state, argument) <= ffi::LUA_TNIL }
    }

    /// Raises Lua's complaint unless an argument has this kind, a table or a function.
    pub fn check(self, argument: c_int, kind: Kind) {
        let tag = if kind == Kind::Table { ffi::LUA_TTABLE } else { ffi::LUA_TFUNCTION };
        // SAFETY: it may raise; see `new`.
        unsafe { ffi::luaL_checktype(self.state, argument, tag) }
    }

    /// Raises Lua's complaint unless an argument is a text or a number.
    pub fn check_text(self, argument: c_int) {
        // SAFETY: it may raise; see `new`.
        unsafe { ffi::luaL_checklstring(self.state, argument, ptr::null_mut()) };
    }

    /// An argument as C's `int`. Raises Lua's complaint if it is none.
    pub fn check_integer(self, argument: c_int) -> c_int {
        // SAFETY: it may raise; see `new`.
        unsafe { ffi::luaL_checkinteger(self.state, argument) as c_int }
    }

    /// Calls the function below the topmost `n_arguments` values.
    ///
    /// Replaces all of them by its one result. Raises.
    pub fn call(self, n_arguments: c_int) {
        // SAFETY: function and arguments are there; it may raise; see `new`.
        unsafe { ffi::lua_call(self.state, n_arguments, 1) }
    }

    /// Calls the function below the topmost `n_arguments` values for all its results.
    ///
    /// Replaces all of them by the results. Raises.
    pub fn call_for_all(self, n_arguments: c_int) {
        // SAFETY: function and arguments are there; it may raise; see `new`.
        unsafe { ffi::lua_call(self.state, n_arguments, ffi::LUA_MULTRET) }
    }

    /// Runs a function in C as if Lua had called it in this one's place.
    ///
    /// The function has no own values, or the present one begins with the same. Raises. Returns the number of
    /// results on top, or 0 if the value is no function in C.
    pub fn call_in_place(self, function: c_int) -> c_int {
        // SAFETY: the function finds its arguments as the present one has found them; it may raise; see
        // `new`.
        unsafe { ffi::lua_tocfunction(self.state, function).map_or(0, |function| function(self.state)) }
    }

    /// Puts own value `n`, from 1, of a function in C on the stack.
    ///
    /// Returns false if the function has fewer.
    pub fn push_own_of(self, function: c_int, n: c_int) -> bool {
        // SAFETY: the value is a function, and there is room, as `push` says; see `new`.
        unsafe { !ffi::lua_getupvalue(self.state, function, n).is_null() }
    }

    /// Replaces the topmost `n` values by a function that owns them.
    ///
    /// Raises.
    pub fn close(self, function: lua_CFunction, n: c_int) {
        // SAFETY: the values are there; it may raise; see `new`.
        unsafe { ffi::lua_pushcclosure(self.state, function, n) }
    }
}

/// Keeps the value on top of a state's stack, and drops it from the stack.
///
/// # Safety
///
/// As for [`Stack::new`]; it raises.
pub(crate) unsafe fn keep(state: *mut lua_State) -> Kept {
    // SAFETY: the caller's promise.
    Kept(unsafe { ffi::luaL_ref(state, ffi::LUA_REGISTRYINDEX) })
}

/// Frees a kept value.
///
/// # Safety
///
/// The state lives, and it is the one that keeps the value.
pub(crate) unsafe fn let_go(state: *mut lua_State, kept: Kept) {
    // SAFETY: the caller's promise; nothing raises, because the registry has the key already.
    unsafe { ffi::luaL_unref(state, ffi::LUA_REGISTRYINDEX, kept.0) }
}
