//! The builder of Lua tables from values that come in order.
//!
//! The builder first notes the values, and then makes them together on Lua's own stack (see
//! [`crate::stack`]). A crossing between Rust and Lua for each value, protected against Lua's errors, costs
//! many times the value. Large data is made piece by piece.

use std::borrow::Cow;
use std::ffi::c_int;

use mlua::{Lua, MultiValue, Table};

use crate::stack::Stack;

/// The deepest nesting of tables, where a script raises the limits.
///
/// A level holds up to two values, and Lua's stack has room for 8000.
pub(super) const MAX_DEPTH: usize = 1500;

/// The number of noted parts after which they are made.
const PIECE: usize = 1024;

/// The contents of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TableKind {
    /// Values with the keys 1, 2, 3, …
    Array,
    /// Keys and values in turn.
    Map,
}

/// A value, or the beginning or the end of a table.
#[derive(Debug)]
pub(super) enum Part<'a> {
    Nil,
    /// The value that stands for JSON's null.
    Null,
    Boolean(bool),
    Number(f64),
    Text(Cow<'a, [u8]>),
    Open,
    Close,
}

/// The destination of a complete value.
#[derive(Clone, Copy, Debug)]
enum To {
    /// The value stays on the stack.
    ///
    /// It is a key, is in no table, or is a table that has only begun.
    Stack,
    /// This element of the table below it.
    Element(c_int),
    /// The key below it, in the table below that.
    Key,
}

/// A table that is open.
struct OpenTable {
    kind: TableKind,
    /// The number of its values, and of a map also of its keys.
    n_values: usize,
}

/// A builder of successive values, tables among them.
pub(super) struct Builder<'a> {
    levels: Vec<OpenTable>,
    /// The parts that are noted and not made yet.
    parts: Vec<(Part<'a>, To)>,
    /// The table that keeps the stack's values between two pieces.
    kept: Option<Table>,
    n_kept: c_int,
}

impl<'a> Builder<'a> {
    pub(super) fn new() -> Self {
        Self { levels: Vec::new(), parts: Vec::with_capacity(32), kept: None, n_kept: 0 }
    }

    /// The number of open tables.
    pub(super) fn depth(&self) -> usize {
        self.levels.len()
    }

    /// Begins a table, within the one that was begun last.
    pub(super) fn open(&mut self, lua: &Lua, kind: TableKind) -> mlua::Result<()> {
        self.levels.push(OpenTable { kind, n_values: 0 });
        self.write(lua, Part::Open, To::Stack)
    }

    /// Ends the table that was begun last.
    pub(super) fn close(&mut self, lua: &Lua) -> mlua::Result<()> {
        self.levels.pop();
        self.push(lua, Part::Close)
    }

    /// Adds a value, or a key, to the table that was begun last. A key is neither nil nor NaN.
    pub(super) fn push(&mut self, lua: &Lua, part: Part<'a>) -> mlua::Result<()> {
        let to = match self.levels.last_mut() {
            None => To::Stack,
            Some(level) => {
                level.n_values += 1;
                match level.kind {
                    TableKind::Array => To::Element(c_int::try_from(level.n_values).map_err(|_| too_many())?),
                    TableKind::Map if level.n_values.is_multiple_of(2) => To::Key,
                    TableKind::Map => To::Stack,
                }
            }
        };
        self.write(lua, part, to)
    }

    /// Makes the remaining parts, and returns the values that are in no table.
    pub(super) fn finish(mut self, lua: &Lua) -> mlua::Result<MultiValue> {
        self.make(lua, true)
    }

    fn write(&mut self, lua: &Lua, part: Part<'a>, to: To) -> mlua::Result<()> {
        self.parts.push((part, to));
        if self.parts.len() == PIECE { self.make(lua, false).map(drop) } else { Ok(()) }
    }

    fn make(&mut self, lua: &Lua, is_last: bool) -> mlua::Result<MultiValue> {
        if !is_last && self.kept.is_none() {
            self.kept = Some(lua.create_table()?);
        }
        let (parts, n_kept) = (&self.parts[..], &mut self.n_kept);
        // SAFETY: the closure owns nothing, and neither do the functions that it calls. The table, or nil, is
        // its only argument.
        let made = unsafe {
            lua.exec_raw::<MultiValue>(self.kept.as_ref(), |state| {
                let stack = Stack::new(state);
                take_back(stack, *n_kept);
                parts.iter().for_each(|(part, to)| put(stack, part, *to));
                if is_last {
                    stack.remove(KEPT);
                } else {
                    *n_kept = keep(stack, *n_kept);
                }
            })
        };
        self.parts.clear();
        made
    }
}

#[cold]
fn too_many() -> mlua::Error {
    mlua::Error::MemoryError("not enough memory".to_owned())
}

/// The index of the table that keeps the stack's values.
const KEPT: c_int = 1;

/// Puts the values back that [`keep`] has kept.
fn take_back(stack: Stack<'_>, n_kept: c_int) {
    stack.reserve(n_kept);
    for n in 1..=n_kept {
        stack.push_element(KEPT, n);
    }
}

/// Stores the stack's values in the table, in place of earlier ones. Returns their number.
fn keep(stack: Stack<'_>, n_before: c_int) -> c_int {
    let n_kept = stack.len() - KEPT;
    for n in n_kept + 1..=n_before {
        stack.push_nil();
        stack.set_element(KEPT, n);
    }
    (1..=n_kept).rev().for_each(|n| stack.set_element(KEPT, n));
    stack.cut(0);
    n_kept
}

fn put(stack: Stack<'_>, part: &Part<'_>, to: To) {
    stack.reserve(4);
    push(stack, part);
    match to {
        To::Stack => {}
        To::Element(n) => stack.set_element(-2, n),
        To::Key => stack.set(-3),
    }
}

/// Puts a value, or the table that it begins, on the stack. Raises.
pub(super) fn push(stack: Stack<'_>, part: &Part<'_>) {
    match part {
        Part::Nil => stack.push_nil(),
        Part::Null => stack.push_null(),
        Part::Boolean(value) => stack.push_boolean(*value),
        Part::Number(value) => stack.push_number(*value),
        Part::Text(text) => stack.push_text(text),
        Part::Open => stack.push_table(0, 0),
        Part::Close => {}
    }
}
