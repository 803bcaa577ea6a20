//! The code of each run and each command of a script.
//!
//! It is the function that begins a run, and `redis.call`, `redis.pcall` and `redis.acl_check_cmd`. All work
//! on Lua's own stack, see [`crate::stack`].

use std::cell::Cell;
use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::rc::Rc;

use braid_protocol::{Reply, Words, number};
use mlua::{Function, LightUserData, Lua, Table, Value, ffi, lua_State};

use crate::convert::{self, Unreadable, Writer};
use crate::outcome::{Ended, Stop};
use crate::run_state::{Request, Run};
use crate::stack::{self, Kept, Kind, Stack};

/// Begins the runs of a state.
pub(crate) struct Bridge {
    lua: Lua,
    /// The state of `lua`.
    state: *mut lua_State,
    /// The function [`begin`], kept in Lua.
    begin: Kept,
    /// The function that is called where a run raises an error, with the error.
    handler: Kept,
    /// The error that a run has raised, until [`Bridge::run`] reads it.
    raised: Kept,
    lent: [Lent; 2],
}

/// A function that a bridge can run.
#[derive(Debug)]
pub(crate) struct Runnable {
    function: Kept,
    takes: Takes,
}

/// How a function gets its keys and arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Takes {
    /// As the globals KEYS and ARGV.
    Globals,
    /// As its own arguments.
    Arguments,
}

/// One of the lists that a run gets, KEYS or ARGV.
#[derive(Clone, Copy)]
pub(crate) enum InputList<'a> {
    /// The run gets no list.
    Nil,
    /// The list in a table of its own.
    Fresh(&'a [&'a [u8]]),
    /// The list in a table that several runs share.
    ///
    /// The run only reads elements, so it gets the table of earlier runs.
    Lent(&'a [&'a [u8]]),
}

/// The lists that a run gets.
#[derive(Clone, Copy)]
pub(crate) struct Given<'a> {
    pub keys: InputList<'a>,
    pub argv: InputList<'a>,
}

/// A run, as [`begin`] receives it.
struct Entry<'a, 'r> {
    function: &'a Runnable,
    given: Given<'a>,
    /// The reply to which its value is written; `None` if the value is not wanted.
    reply: Option<&'a mut Reply<'r>>,
    /// The states of the shared tables of KEYS and ARGV.
    lent: &'a [Lent; 2],
    ended: Ended,
}

/// The state of a table that runs share.
#[derive(Default)]
struct Lent {
    /// The number of elements that may be set. Those after them are nil.
    n_elements: Cell<c_int>,
    /// The value of the list's global.
    shown: Cell<Shown>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Shown {
    #[default]
    Nil,
    Lent,
    Fresh,
}

/// The longest list that is lent, in elements.
///
/// Each of its texts has at most [`LENT_TEXT_MAX_BYTES`]. The table that runs share stays in memory.
const LENT_MAX: usize = 64;
const LENT_TEXT_MAX_BYTES: usize = 256;

// The own values of `begin`. The names of `convert::FIELDS` follow them.
pub(crate) const RUN: c_int = Stack::own(1);
const WORLD: c_int = Stack::own(2);
/// The names of the lists' globals. The own value after each name is the table that is lent.
const LISTS: [c_int; 2] = [Stack::own(3), Stack::own(5)];
const N_OWN: c_int = 6;

impl Bridge {
    /// Makes the bridge of a state.
    ///
    /// `world` has the globals of the functions that it will run. `handler` is called with the errors that
    /// they raise.
    pub fn new(lua: &Lua, run: &Rc<Run>, world: &Table, handler: &Function) -> mlua::Result<Self> {
        let state = lua.exec_raw_lua(|lua| lua.state());
        let mut kept = None;
        let [keys, argv] = [lua.create_table()?, lua.create_table()?];
        let own = (handler, address(run), world, "KEYS", keys, "ARGV", argv);
        // SAFETY: the closure owns nothing. `luaL_checkstack` makes room on the stack for the fields' names.
        unsafe {
            lua.exec_raw::<()>(own, |state| {
                ffi::luaL_checkstack(state, convert::FIELDS.len() as c_int, ptr::null());
                let stack = Stack::new(state);
                convert::FIELDS.iter().for_each(|name| stack.push_text(name.as_bytes()));
                ffi::lua_pushcclosure(state, begin, N_OWN + convert::FIELDS.len() as c_int);
                stack.push_boolean(false);
                kept = Some([stack::keep(state), stack::keep(state), stack::keep(state)]);
            })?;
        }
        let [raised, begin, handler] = kept.ok_or_else(|| mlua::Error::runtime("the state keeps nothing"))?;
        Ok(Bridge { lua: lua.clone(), state, begin, handler, raised, lent: Default::default() })
    }

    /// Makes a function ready to be run.
    pub fn keep(&self, function: &Function, takes: Takes) -> mlua::Result<Runnable> {
        let mut kept = None;
        // SAFETY: the closure owns nothing, and the function is on the stack.
        unsafe { self.lua.exec_raw::<()>(function, |state| kept = Some(stack::keep(state)))? };
        let function = kept.ok_or_else(|| mlua::Error::runtime("the state keeps nothing"))?;
        Ok(Runnable { function, takes })
    }

    /// Frees a function.
    pub fn forget(&self, runnable: Runnable) {
        // SAFETY: the state lives as long as `lua`, and has kept the function.
        unsafe { stack::let_go(self.state, runnable.function) }
    }

    /// Runs a function, and writes its value to `reply` if there is one.
    ///
    /// # Errors
    ///
    /// The value that it raised. If the host has ended the run, [`Run::stop`] says so, and this result has no
    /// meaning.
    pub fn run(
        &self,
        function: &Runnable,
        given: Given<'_>,
        reply: Option<&mut Reply<'_>>,
    ) -> Result<Ended, Value> {
        let mut entry = Entry { function, given, reply, lent: &self.lent, ended: Ended::Value };
        // SAFETY: the state lives as long as `lua`. It is not running, because its engine is borrowed. An
        // idle state has room for these three values. Only `begin` receives the entry, which outlives the
        // call. To replace a kept value raises nothing.
        let is_well = unsafe {
            let handler = ffi::lua_gettop(self.state) + 1;
            ffi::lua_rawgeti(self.state, ffi::LUA_REGISTRYINDEX, self.handler.place());
            ffi::lua_rawgeti(self.state, ffi::LUA_REGISTRYINDEX, self.begin.place());
            ffi::lua_pushlightuserdata(self.state, (&raw mut entry).cast());
            let is_well = ffi::lua_pcall(self.state, 1, 0, handler) == ffi::LUA_OK;
            let stack = Stack::new(self.state);
            // Nil would leave the key free for other values.
            let has_value = !is_well && stack.kind(-1) != Kind::Nil;
            if has_value {
                stack.replace_kept(self.raised);
            }
            ffi::lua_settop(self.state, handler - 1);
            (is_well, has_value)
        };
        match is_well {
            (true, _) => Ok(entry.ended),
            (false, true) => Err(self.take_raised()),
            (false, false) => Err(Value::Nil),
        }
    }

    #[cold]
    fn take_raised(&self) -> Value {
        let raised = self.raised;
        // SAFETY: the closure owns nothing.
        let value = unsafe {
            self.lua.exec_raw((), |state| {
                let stack = Stack::new(state);
                stack.push_kept(raised);
                stack.push_boolean(false);
                stack.replace_kept(raised);
            })
        };
        value.unwrap_or_else(|error| Value::Error(Box::new(error)))
    }
}

/// A run's address, for functions that live as long as the state.
///
/// The run lives as long too, because it is part of the state's data.
pub(crate) fn address(run: &Rc<Run>) -> LightUserData {
    LightUserData(Rc::as_ptr(run).cast_mut().cast())
}

/// The run whose address is the first own value of the running function.
///
/// All functions of this module and of `lua_overrides.rs` have it there.
pub(crate) fn run_of(stack: Stack<'_>) -> &Run {
    // SAFETY: nothing else is there, see `address`. All of a run can be changed through a shared reference.
    unsafe { &*stack.address(RUN).cast() }
}

/// Begins a run: sets or passes its lists, calls its function and writes the value.
///
/// # Safety
///
/// Lua calls it in protected mode, with the address of an [`Entry`] as its only argument.
unsafe extern "C-unwind" fn begin(state: *mut lua_State) -> c_int {
    // SAFETY: the caller's promise; no frame down to here owns anything when an error is raised.
    let stack = unsafe { Stack::new(state) };
    // SAFETY: `Bridge::run` passes the address of an entry, which nothing else uses until this returns.
    let entry = unsafe { &mut *stack.address(1).cast::<Entry<'_, '_>>() };
    stack.push_kept(entry.function.function);
    let Given { keys, argv } = entry.given;
    match entry.function.takes {
        Takes::Globals => {
            let [of_keys, of_argv] = entry.lent;
            set_list(stack, LISTS[0], of_keys, keys);
            set_list(stack, LISTS[1], of_argv, argv);
            stack.call(0);
        }
        Takes::Arguments => {
            push_list(stack, keys);
            push_list(stack, argv);
            stack.call(2);
        }
    }
    if let Some(reply) = entry.reply.as_deref_mut() {
        let run = run_of(stack);
        let mut writer =
            Writer { stack, run, own: N_OWN, reply, script: run.resp.get(), is_counted: false, n_values: 0 };
        // A panic must not pass Lua's frames.
        match catch_unwind(AssertUnwindSafe(|| writer.value())) {
            Ok(ended) => entry.ended = ended,
            Err(panic) => run.note_panic(panic),
        }
    }
    0
}

/// Sets a list's global.
fn set_list(stack: Stack<'_>, name: c_int, lent: &Lent, list: InputList<'_>) {
    let own = name - 1;
    let is_short = |text: &&[u8]| text.len() <= LENT_TEXT_MAX_BYTES;
    match list {
        InputList::Lent(texts) if texts.len() <= LENT_MAX && texts.iter().all(is_short) => {
            let n_elements = texts.len() as c_int;
            let n_before = lent.n_elements.replace(lent.n_elements.get().max(n_elements));
            push_elements(stack, own, texts);
            for n in n_elements + 1..=n_before {
                stack.push_nil();
                stack.set_element(own, n);
            }
            lent.n_elements.set(n_elements);
            if lent.shown.replace(Shown::Lent) != Shown::Lent {
                stack.push(name);
                stack.push(own);
                stack.set(WORLD);
            }
        }
        // A script that does not name the list cannot see the values left by another, and those are few.
        InputList::Nil if lent.shown.get() != Shown::Fresh => {}
        _ => {
            lent.shown.set(if matches!(list, InputList::Nil) { Shown::Nil } else { Shown::Fresh });
            stack.push(name);
            push_list(stack, list);
            stack.set(WORLD);
        }
    }
}

fn push_list(stack: Stack<'_>, list: InputList<'_>) {
    match list {
        InputList::Nil => stack.push_nil(),
        InputList::Fresh(texts) | InputList::Lent(texts) => {
            stack.push_table(texts.len(), 0);
            push_elements(stack, -2, texts);
        }
    }
}

/// Sets a table's first elements. `table` is its index while a value is on top.
fn push_elements(stack: Stack<'_>, table: c_int, texts: &[&[u8]]) {
    for (n, text) in (1..).zip(texts) {
        stack.push_text(text);
        stack.set_element(table, n);
    }
}

/// Sets `redis.call`, `redis.pcall` and `redis.acl_check_cmd`.
pub(crate) fn install(lua: &Lua, run: &Rc<Run>, redis: &Table) -> mlua::Result<()> {
    let functions: [(&str, mlua::lua_CFunction); 3] =
        [("call", call), ("pcall", pcall), ("acl_check_cmd", acl_check_cmd)];
    for (name, function) in functions {
        // SAFETY: the closure owns nothing; the function's own value is on the stack.
        let function: Function =
            unsafe { lua.exec_raw(address(run), |state| ffi::lua_pushcclosure(state, function, 1))? };
        redis.raw_set(name, function)?;
    }
    Ok(())
}

/// Replaces functions of Lua that read whole texts by the same functions, counted.
///
/// A loop of few instructions can keep them busy for long.
pub(crate) fn count_bytes(lua: &Lua, run: &Rc<Run>, library: &Table, names: &[&str]) -> mlua::Result<()> {
    for name in names {
        let original: Function = library.raw_get(*name)?;
        // SAFETY: the closure owns nothing; the run's address and the function are on the stack. The function
        // stays among the closure's own values, so its code is not freed.
        let counted: Function = unsafe {
            lua.exec_raw((address(run), original), |state| ffi::lua_pushcclosure(state, counted, 2))?
        };
        library.raw_set(*name, counted)?;
    }
    Ok(())
}

/// A function of Lua that is counted.
///
/// # Safety
///
/// Lua calls it, in protected mode, as a closure that [`count_bytes`] has made.
unsafe extern "C-unwind" fn counted(state: *mut lua_State) -> c_int {
    // SAFETY: as in `call`.
    let stack = unsafe { Stack::new(state) };
    let n_bytes = (1..=stack.len()).filter_map(|index| stack.text(index)).map(<[u8]>::len).sum();
    if run_of(stack).work_through(n_bytes).is_err() {
        raise_end(stack);
    }
    stack.call_in_place(Stack::own(2))
}

/// The treatment of an error: `redis.call` raises it, `redis.pcall` returns it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Errors {
    Raised,
    Returned,
}

/// The function `redis.call`.
///
/// # Safety
///
/// Lua calls it, in protected mode, as a closure that [`install`] has made.
unsafe extern "C-unwind" fn call(state: *mut lua_State) -> c_int {
    // SAFETY: the caller's promise; no frame down to here owns anything when an error is raised.
    command(unsafe { Stack::new(state) }, Errors::Raised)
}

/// The function `redis.pcall`.
///
/// # Safety
///
/// As for [`call`].
unsafe extern "C-unwind" fn pcall(state: *mut lua_State) -> c_int {
    // SAFETY: as in `call`.
    command(unsafe { Stack::new(state) }, Errors::Returned)
}

/// The function `redis.acl_check_cmd`.
///
/// # Safety
///
/// As for [`call`].
unsafe extern "C-unwind" fn acl_check_cmd(state: *mut lua_State) -> c_int {
    // SAFETY: as in `call`.
    let stack = unsafe { Stack::new(state) };
    let run = run_of(stack);
    let answer = with_words(stack, run, |words| run.question(|host| Ok(host.acl_check(words))));
    match answer {
        Ok(Ok(Ok(may))) => stack.push_boolean(may),
        Ok(Ok(Err(_))) => {
            raise_object(stack, (b"ERR", b"Invalid command passed to redis.acl_check_cmd()"));
        }
        Ok(Err(_)) => raise_end(stack),
        Err(complaint) => raise_object(stack, (b"ERR", complaint)),
    }
    1
}

fn command(stack: Stack<'_>, errors: Errors) -> c_int {
    let run = run_of(stack);
    match with_words(stack, run, |words| ask(run, words)) {
        Ok(Ok(())) => {}
        Ok(Err(_)) => raise_end(stack),
        Err(complaint) => {
            convert::push_error(stack, (b"ERR", complaint), false);
            if errors == Errors::Raised {
                stack.raise();
            }
            return 1;
        }
    }
    stack.cut(0);
    // SAFETY: nothing changes the buffer before the next command, which starts only after this function has
    // returned.
    let reply: &[u8] = unsafe { &*run.reply.as_ptr() };
    match convert::push(stack, reply) {
        Ok(()) if errors == Errors::Raised && convert::is_error(reply) => stack.raise(),
        Ok(()) => 1,
        Err(Unreadable::TooDeep) => stack.raise_text(b"reached lua stack limit"),
        Err(Unreadable::Malformed) => stack.raise_text(b"the command's reply is malformed"),
    }
}

/// Asks the host to run a command. The run's buffer then has its reply.
fn ask(run: &Run, words: Words<'_>) -> Result<(), Stop> {
    let mut reply = run.emptied_reply();
    run.question(|host| host.call(words, run.resp.get(), &mut reply))
}

fn raise_object(stack: Stack<'_>, error: (&[u8], &[u8])) -> ! {
    convert::push_error(stack, error, false);
    stack.raise()
}

/// Raises an error after the run has ended, which nothing can catch.
///
/// The error's value does not matter.
#[cold]
pub(crate) fn raise_end(stack: Stack<'_>) -> ! {
    stack.push_nil();
    stack.raise()
}

/// Calls `with` with the arguments as words, or returns the complaint about them.
fn with_words<R>(stack: Stack<'_>, run: &Run, with: impl FnOnce(Words<'_>) -> R) -> Result<R, &'static [u8]> {
    let mut request = run.request.borrow_mut();
    let read = match stack.len() {
        0 => Err(&b"Please specify at least one argument for this redis lib call"[..]),
        n => (1..=n).try_for_each(|index| add_word(stack, index, &mut request)),
    };
    let answer = read.map(|()| with(request.words()));
    request.clear();
    answer
}

/// Adds an argument to a request, or returns the complaint about it.
#[inline]
fn add_word(stack: Stack<'_>, index: c_int, request: &mut Request) -> Result<(), &'static [u8]> {
    let is_added = if let Some(text) = stack.text(index) {
        request.add(|bytes| bytes.extend_from_slice(text))
    } else if let Some(number) = stack.number(index) {
        request.add(|bytes| write_number(bytes, number))
    } else {
        return Err(b"Lua redis lib command arguments must be strings or integers");
    };
    if is_added { Ok(()) } else { Err(b"a command of a script is longer than 4 GiB") }
}

/// Writes a number as Redis does in an argument since 7.2.
///
/// An integer up to 2^62 is written in full, and 0 without a sign. Any other number has the fewest digits
/// that read back as the same.
fn write_number(bytes: &mut Vec<u8>, number: f64) {
    const MAX: f64 = (1u64 << 62) as f64;
    let integer = number as i64;
    if integer as f64 == number && number.abs() <= MAX {
        return number::format_i64(integer, |text| bytes.extend_from_slice(text));
    }
    if number.is_nan() && number.is_sign_negative() {
        bytes.push(b'-');
    }
    number::write_f64(bytes, number);
}
