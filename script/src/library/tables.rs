//! Reads of Lua tables with many values, with few crossings between Rust and Lua.
//!
//! Each crossing is protected against Lua's errors, and costs as much as reading many values in Lua. So
//! values cross in batches. mlua holds the values in a stack that Lua limits to 8000, so the number held at
//! once is limited.

use std::fmt::Write;

use mlua::{Function, Lua, MultiValue, Table, Value};

use super::raised::load_hidden;

/// The number of keys with values that cross at once.
const BATCH: usize = 16;

/// The depth from which on only a few values of each level are held.
const DEEP: usize = 32;

/// The parts in Lua.
pub(super) struct Crossing {
    next: Function,
    next_batch: Function,
}

impl Crossing {
    pub(super) fn new(lua: &Lua) -> mlua::Result<Self> {
        let next: Function = lua.globals().get("next")?;
        Ok(Self { next_batch: load_hidden(lua, &next_batch_source())?.call(&next)?, next })
    }
}

/// The source of a function that returns a batch of pairs after a key.
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

/// The keys and values of one table, in Lua's order.
pub(super) struct Pairs {
    batch: std::vec::IntoIter<Value>,
    /// The last key that was read, unless all were.
    last: Option<Value>,
}

impl Pairs {
    /// Begins after the values that were already read.
    ///
    /// These are none, or the table's first keys and values in turn.
    pub(super) fn after(read: Vec<Value>, is_all: bool) -> Self {
        let last = match read.len() {
            _ if is_all => None,
            0 => Some(Value::Nil),
            length => Some(read[length - 2].clone()),
        };
        Self { batch: read.into_iter(), last }
    }

    /// Returns the next key with its value. Deep in nested tables it reads no more than these.
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

/// The number of pairs that [`scan`] collects. A table without more need not be read again.
pub(super) const COLLECTED: usize = BATCH;

/// Shows a table's keys to `visit`, which returns whether to continue.
///
/// Returns the first pairs, and whether these are all.
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
