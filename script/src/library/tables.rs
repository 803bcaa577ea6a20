//! Makes Lua tables of many values, and reads them, with few crossings between Rust and Lua.
//!
//! Each crossing is protected against Lua's errors and costs as much as many assignments in Lua, so values cross in batches. mlua
//! holds the values in a stack that Lua limits to 8000, so only so many are held at once.

use std::fmt::Write;

use mlua::{Function, Lua, MultiValue, Table, Value};

use super::raised::load_hidden;

/// How many elements, or keys with values, cross at once.
const BATCH: usize = 16;

/// From this depth on only a few values a level are held.
const DEEP: usize = 32;

/// How deep tables may nest where a script raises the limits: a level holds up to three values.
pub(super) const MAX_DEPTH: usize = 1500;

/// What a table that is being made consists of.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Kind {
    /// Values with the keys 1, 2, 3, …
    Array,
    /// Keys and values in turn.
    Map,
}

/// The parts in Lua.
pub(super) struct Crossing {
    append: Function,
    put: Function,
    next: Function,
    next_batch: Function,
}

impl Crossing {
    pub(super) fn new(lua: &Lua) -> mlua::Result<Self> {
        let next: Function = lua.globals().get("next")?;
        Ok(Self {
            append: load_hidden(lua, &filling_source(|index| format!("t[at + {index}] = v{index}")))?,
            put: load_hidden(lua, &filling_source(|index| format!("t[k{index}] = v{index}")))?,
            next_batch: load_hidden(lua, &next_batch_source())?.call(&next)?,
            next,
        })
    }
}

/// The source of a function that assigns up to a batch of values to a table, which it makes if there is none. It is written out,
/// because a loop over arguments costs more than the assignments.
fn filling_source(assignment: impl Fn(usize) -> String) -> String {
    let is_map = assignment(1).starts_with("t[k");
    let names: Vec<String> = (1..=BATCH)
        .map(|index| if is_map { format!("k{index}, v{index}") } else { format!("v{index}") })
        .collect();
    let mut source = format!("local t, at, n, {} = ...\nt = t or {{}}\n", names.join(", "));
    for index in 1..=BATCH {
        write!(source, "{}\nif n == {index} then return t end\n", assignment(index)).expect("strings grow");
    }
    source
}

/// The source of what returns up to a batch of keys and values after a key.
fn next_batch_source() -> String {
    let mut source = String::from("local next = ...\nreturn function(t, k0)\n");
    for index in 1..=BATCH {
        let returned: Vec<String> = (1..index).map(|index| format!("k{index}, v{index}")).collect();
        write!(
            source,
            "local k{index}, v{index} = next(t, k{})\nif k{index} == nil then return {} end\n",
            index - 1,
            returned.join(", ")
        )
        .expect("strings grow");
    }
    let returned: Vec<String> = (1..=BATCH).map(|index| format!("k{index}, v{index}")).collect();
    write!(source, "return {}\nend\n", returned.join(", ")).expect("strings grow");
    source
}

struct Level {
    kind: Kind,
    /// Made when the first values are assigned.
    table: Option<Table>,
    /// How many elements were assigned.
    n_assigned: usize,
    /// Where the level's values begin among the pending ones.
    start: usize,
}

/// Makes nested tables of values that come in order.
pub(super) struct Builder<'a> {
    crossing: &'a Crossing,
    levels: Vec<Level>,
    /// What was pushed and is not yet assigned, of all levels.
    pending: Vec<Value>,
}

impl<'a> Builder<'a> {
    pub(super) fn new(crossing: &'a Crossing) -> Self {
        Self { crossing, levels: Vec::new(), pending: Vec::new() }
    }

    /// Returns how many tables are open.
    pub(super) fn depth(&self) -> usize {
        self.levels.len()
    }

    /// Begins a table within the one that was begun last.
    pub(super) fn open(&mut self, lua: &Lua, kind: Kind) -> mlua::Result<()> {
        if self.depth() >= DEEP {
            self.assign(lua)?;
        }
        self.levels.push(Level { kind, table: None, n_assigned: 0, start: self.pending.len() });
        Ok(())
    }

    /// Adds a value, or a key, to the table that was begun last.
    pub(super) fn push(&mut self, lua: &Lua, value: Value) -> mlua::Result<()> {
        self.pending.push(value);
        let level = self.levels.last().expect("a table is open");
        let width = if level.kind == Kind::Map { 2 } else { 1 };
        if self.pending.len() - level.start == BATCH * width { self.assign(lua) } else { Ok(()) }
    }

    /// Ends the table that was begun last, and returns it.
    pub(super) fn close(&mut self, lua: &Lua) -> mlua::Result<Value> {
        self.assign(lua)?;
        let level = self.levels.pop().expect("a table is open");
        match level.table {
            Some(table) => Ok(Value::Table(table)),
            None => lua.create_table().map(Value::Table),
        }
    }

    /// Assigns what is pending for the last table, except a key without its value.
    fn assign(&mut self, _: &Lua) -> mlua::Result<()> {
        let Some(level) = self.levels.last_mut() else { return Ok(()) };
        let n_pending = self.pending.len() - level.start;
        let (function, width) = match level.kind {
            Kind::Array => (&self.crossing.append, 1),
            Kind::Map => (&self.crossing.put, 2),
        };
        let count = n_pending / width;
        if count == 0 {
            return Ok(());
        }
        let mut arguments = Vec::with_capacity(3 + count * width);
        arguments.push(level.table.take().map_or(Value::Nil, Value::Table));
        arguments.push(Value::Integer(level.n_assigned as i64));
        arguments.push(Value::Integer(count as i64));
        arguments.extend(self.pending.drain(level.start..level.start + count * width));
        level.table = Some(function.call(MultiValue::from_vec(arguments))?);
        level.n_assigned += count;
        Ok(())
    }
}

/// Returns the keys and values of one table, in Lua's order.
pub(super) struct Pairs {
    batch: std::vec::IntoIter<Value>,
    /// The last key that was read, unless all were.
    last: Option<Value>,
}

impl Pairs {
    /// Begins after what was read already, which is nothing or the table's first keys and values in turn.
    pub(super) fn after(read: Vec<Value>, is_all: bool) -> Self {
        let last = match read.len() {
            _ if is_all => None,
            0 => Some(Value::Nil),
            length => Some(read[length - 2].clone()),
        };
        Self { batch: read.into_iter(), last }
    }

    /// Returns the next key with its value. At a great `depth` of nesting no more than these are read.
    pub(super) fn next(
        &mut self,
        crossing: &Crossing,
        table: &Table,
        depth: usize,
    ) -> mlua::Result<Option<(Value, Value)>> {
        if let (Some(key), Some(value)) = (self.batch.next(), self.batch.next()) {
            return Ok(Some((key, value)));
        }
        let Some(last) = self.last.take() else { return Ok(None) };
        let (function, wanted) =
            if depth < DEEP { (&crossing.next_batch, BATCH) } else { (&crossing.next, 1) };
        let mut batch = function.call::<MultiValue>((table, last))?.into_vec();
        batch.truncate(batch.len() / 2 * 2);
        if batch.len() == 2 * wanted {
            self.last = Some(batch[batch.len() - 2].clone());
        }
        self.batch = batch.into_iter();
        Ok(self.batch.next().zip(self.batch.next()))
    }
}

/// How many pairs [`scan`] collects: a table that has no more need not be read again.
pub(super) const COLLECTED: usize = BATCH;

/// Shows a table's keys to `visit`, which returns whether to go on; returns the first pairs of them and whether these are all.
///
/// # Errors
/// That of `visit`.
pub(super) fn scan<E: From<mlua::Error>>(
    table: &Table,
    depth: usize,
    mut visit: impl FnMut(&Value) -> Result<bool, E>,
) -> Result<(Vec<Value>, bool), E> {
    let most = if depth < DEEP { 2 * COLLECTED } else { 0 };
    let mut read = Vec::new();
    let (mut is_all, mut stop) = (true, None);
    let outcome = table.for_each(|key: Value, value: Value| {
        match visit(&key) {
            Ok(true) => {}
            Ok(false) if read.len() < most => {}
            other => {
                stop = Some(other);
                return Err(mlua::Error::StackError);
            }
        }
        if read.len() < most {
            read.extend([key, value]);
        } else {
            is_all = false;
        }
        Ok(())
    });
    match (stop, outcome) {
        (Some(Err(error)), _) => Err(error),
        (Some(Ok(_)), _) => Ok((read, false)),
        (None, Err(error)) => Err(error.into()),
        (None, Ok(())) => Ok((read, is_all)),
    }
}
