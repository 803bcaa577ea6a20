//! The function `cjson.encode`.

use mlua::{Lua, LuaString, Table, Value};

use super::settings::{InvalidNumbers, Settings};
use crate::library::arguments::{Arguments, as_number, type_name};
use crate::library::builder::MAX_DEPTH;
use crate::library::c_numbers::{truncate_32, write_general};
use crate::library::meter::{MAX_STRING_BYTES, Meter, Work};
use crate::library::raised::Failure;
use crate::library::tables::{Crossing, Pairs, scan};

/// Returns the JSON of argument 1.
pub(super) fn encode(
    lua: &Lua,
    mut arguments: Arguments,
    settings: Settings,
    crossing: &Crossing,
) -> Result<LuaString, Failure> {
    if arguments.count() != 1 {
        return Err(Failure::argument(1, "expected 1 argument"));
    }
    let mut encoder =
        Encoder { crossing, settings, out: Vec::new(), levels: Vec::new(), meter: Meter::new(lua) };
    encoder.run(arguments.take(1))?;
    Ok(lua.create_string(encoder.out)?)
}

/// A table that is being written.
struct UnwrittenTable {
    table: Table,
    rest: Rest,
    is_first: bool,
}

/// The part of a table that is not written yet.
enum Rest {
    /// The keys and values of an array that were all read with its keys.
    Read(std::vec::IntoIter<Value>),
    Elements {
        next: i32,
        last: i32,
    },
    Members(Pairs),
}

struct Encoder<'a> {
    crossing: &'a Crossing,
    settings: Settings,
    out: Vec<u8>,
    levels: Vec<UnwrittenTable>,
    meter: Meter<'a>,
}

impl Encoder<'_> {
    fn run(&mut self, value: Value) -> Result<(), Failure> {
        self.value(value)?;
        loop {
            let depth = self.levels.len();
            let Some(level) = self.levels.last_mut() else { return Ok(()) };
            let comma = if std::mem::take(&mut level.is_first) { "" } else { "," };
            match &mut level.rest {
                Rest::Elements { next, last } if *next <= *last => {
                    *next += 1;
                    let element = level.table.raw_get(*next - 1)?;
                    self.out.extend_from_slice(comma.as_bytes());
                    self.value(element)?;
                }
                Rest::Elements { .. } => self.end(b']'),
                Rest::Read(values) => match values.nth(1) {
                    Some(element) => {
                        self.out.extend_from_slice(comma.as_bytes());
                        self.value(element)?;
                    }
                    None => self.end(b']'),
                },
                Rest::Members(pairs) => match pairs.next(self.crossing, &level.table, depth)? {
                    Some((key, value)) => {
                        self.out.extend_from_slice(comma.as_bytes());
                        self.key(&key)?;
                        self.value(value)?;
                    }
                    None => self.end(b'}'),
                },
            }
        }
    }

    fn end(&mut self, bracket: u8) {
        self.out.push(bracket);
        self.levels.pop();
    }

    fn value(&mut self, value: Value) -> Result<(), Failure> {
        self.meter.spend(1)?;
        match value {
            Value::String(text) => self.string(&text.as_bytes())?,
            Value::Integer(value) => self.number(value as f64)?,
            Value::Number(value) => self.number(value)?,
            Value::Boolean(true) => self.out.extend_from_slice(b"true"),
            Value::Boolean(false) => self.out.extend_from_slice(b"false"),
            Value::Table(table) => self.begin(table)?,
            Value::Nil => self.out.extend_from_slice(b"null"),
            Value::LightUserData(address) if address.0.is_null() => self.out.extend_from_slice(b"null"),
            other => return Err(refusal(&other, "type not supported")),
        }
        if self.out.len() > MAX_STRING_BYTES { Err(Failure::memory()) } else { Ok(()) }
    }

    fn key(&mut self, key: &Value) -> Result<(), Failure> {
        match (key, as_number(key)) {
            (Value::String(text), _) => self.string(&text.as_bytes())?,
            (_, Some(value)) => {
                self.out.push(b'"');
                self.number(value)?;
                self.out.push(b'"');
            }
            (other, None) => return Err(refusal(other, "table key must be a number or string")),
        }
        self.out.push(b':');
        Ok(())
    }

    fn string(&mut self, text: &[u8]) -> Result<(), Failure> {
        self.meter.spend((text.len() / 4) as u32)?;
        self.out.reserve(text.len() + 2);
        self.out.push(b'"');
        let mut plain_from = 0;
        for (at, byte) in text.iter().enumerate() {
            if NEEDS_ESCAPE[usize::from(*byte)] {
                self.out.extend_from_slice(&text[plain_from..at]);
                push_escaped(&mut self.out, *byte);
                plain_from = at + 1;
            }
        }
        self.out.extend_from_slice(&text[plain_from..]);
        self.out.push(b'"');
        Ok(())
    }

    fn number(&mut self, value: f64) -> Result<(), Failure> {
        match self.settings.encoded_invalid {
            _ if value.is_finite() => write_general(&mut self.out, value, self.settings.precision as usize),
            InvalidNumbers::Refused => return Err(refusal(&Value::Number(value), "must not be NaN or Inf")),
            InvalidNumbers::Written if value.is_nan() => self.out.extend_from_slice(b"nan"),
            InvalidNumbers::Written => write_general(&mut self.out, value, self.settings.precision as usize),
            InvalidNumbers::Null => self.out.extend_from_slice(b"null"),
        }
        Ok(())
    }

    fn begin(&mut self, table: Table) -> Result<(), Failure> {
        let depth = self.levels.len() + 1;
        if depth > MAX_DEPTH.min(self.settings.encode_max_depth as usize) {
            return Err(Failure::text(format!("Cannot serialise, excessive nesting ({depth})")));
        }
        let mut indices = Indices::default();
        let meter = &mut self.meter;
        let (read, is_all) = scan(&table, depth, |key| {
            meter.spend(1)?;
            Ok::<_, Failure>(indices.add(key))
        })?;
        let (bracket, rest) = match indices.last(&self.settings)? {
            Some(last) if is_all && is_in_order(&read, last) => (b'[', Rest::Read(read.into_iter())),
            Some(last) => (b'[', Rest::Elements { next: 1, last }),
            None => (b'{', Rest::Members(Pairs::after(read, is_all))),
        };
        self.out.push(bracket);
        self.levels.push(UnwrittenTable { table, rest, is_first: true });
        Ok(())
    }
}

/// Whether `read` has exactly the keys from 1 to `last`, in order.
///
/// Its items are keys and values in turn.
fn is_in_order(read: &[Value], last: i32) -> bool {
    let keys = read.iter().step_by(2).enumerate();
    read.len() == 2 * last as usize && { keys }
        .all(|(at, key)| matches!(key, Value::Integer(key) if *key == at as i64 + 1))
}

/// The facts of a table's keys that show whether it is an array.
#[derive(Default)]
struct Indices {
    count: i32,
    last: i32,
    has_others: bool,
}

impl Indices {
    /// Adds a key. Returns whether further keys still matter.
    fn add(&mut self, key: &Value) -> bool {
        match as_number(key).filter(|index| *index >= 1.0 && index.floor() == *index) {
            Some(index) => {
                self.count += 1;
                if index > f64::from(self.last) {
                    self.last = truncate_32(index);
                }
            }
            None => self.has_others = true,
        }
        !self.has_others
    }

    /// Returns the array's last index, or `None` if the table is no array.
    fn last(&self, settings: &Settings) -> Result<Option<i32>, Failure> {
        if self.has_others {
            return Ok(None);
        }
        let ratio = settings.sparse_ratio;
        // The product wraps as an `int` does. With an immense ratio Redis takes arrays that are not sparse
        // for sparse ones.
        let is_sparse =
            ratio > 0 && self.last > self.count.wrapping_mul(ratio) && self.last > settings.sparse_safe;
        match (is_sparse, settings.converts_sparse) {
            (true, false) => Err(Failure::fixed("Cannot serialise table: excessively sparse array")),
            (true, true) => Ok(None),
            (false, _) => Ok((self.last > 0).then_some(self.last)),
        }
    }
}

#[cold]
fn refusal(value: &Value, reason: &str) -> Failure {
    Failure::text(format!("Cannot serialise {}: {reason}", type_name(value)))
}

/// The bytes that must be escaped in a string.
const NEEDS_ESCAPE: [bool; 256] = {
    let mut table = [false; 256];
    let mut byte = 0;
    while byte < 256 {
        table[byte] = byte < 32
            || byte == 127
            || byte == b'"' as usize
            || byte == b'\\' as usize
            || byte == b'/' as usize;
        byte += 1;
    }
    table
};

fn push_escaped(out: &mut Vec<u8>, byte: u8) {
    let letter = match byte {
        8 => b'b',
        b'\t' => b't',
        b'\n' => b'n',
        12 => b'f',
        b'\r' => b'r',
        b'"' | b'\\' | b'/' => byte,
        _ => return out.extend_from_slice(format!("\\u{byte:04x}").as_bytes()),
    };
    out.extend_from_slice(&[b'\\', letter]);
}
