//! `string.find`, `match`, `gmatch` and `gsub`, in place of Lua's own functions.
//!
//! Lua's own cannot be stopped, and use the machine's stack without bound.

mod class;
mod matcher;
mod replace;

use mlua::{Function, Lua, MultiValue, Table, Value, Variadic};

use self::matcher::{Captured, Fault, Matcher};
use super::arguments::Arguments;
use super::meter::{Meter, Work};
use super::raised::{Failure, function, function_at, load_hidden};

/// Replaces the functions in the global `string`.
pub(super) fn install(lua: &Lua) -> mlua::Result<()> {
    let string: Table = lua.globals().get("string")?;
    string.raw_set("find", function(lua, find)?)?;
    string.raw_set("match", function(lua, first_match)?)?;
    let gmatch = gmatch(lua)?;
    string.raw_set("gfind", &gmatch)?;
    string.raw_set("gmatch", gmatch)?;
    string.raw_set("gsub", replace::gsub(lua)?)
}

impl From<Fault<mlua::Error>> for Failure {
    fn from(fault: Fault<mlua::Error>) -> Self {
        match fault {
            Fault::Pattern(text) => Self::fixed(text),
            Fault::Stopped(error) => Self::Lua(error),
        }
    }
}

/// Returns the index from 0 at which a search begins, for the argument `init`.
///
/// `init` counts from 1, and from the end if it is negative.
fn start_index(init: i64, length: usize) -> usize {
    let length = length as i64;
    let position = if init < 0 { init.saturating_add(length + 1) } else { init };
    (position - 1).clamp(0, length) as usize
}

/// The first value of a reply, and the others.
type Reply = (Value, Variadic<Value>);

fn nil() -> Reply {
    (Value::Nil, Variadic::new())
}

/// A match of a pattern.
struct Found<'a> {
    subject: &'a [u8],
    matcher: &'a Matcher<'a>,
    start: usize,
    end: usize,
}

impl Found<'_> {
    /// Returns the match's value `index`, from 0.
    fn value(&self, lua: &Lua, index: usize) -> Result<Value, Failure> {
        match self.matcher.value(index, self.start, self.end)? {
            Captured::Bytes(from, to) => Ok(Value::String(lua.create_string(&self.subject[from..to])?)),
            Captured::Position(position) => Ok(Value::Integer(position as i64)),
        }
    }

    /// The reply of `match`: the captures, or the whole match.
    fn values(&self, lua: &Lua) -> Result<Reply, Failure> {
        let first = self.value(lua, 0)?;
        let others = (1..self.matcher.n_values()).map(|index| self.value(lua, index));
        Ok((first, others.collect::<Result<_, _>>()?))
    }

    /// The reply of `find`: first and last position, and the captures.
    fn positions(&self, lua: &Lua) -> Result<Reply, Failure> {
        let last = Value::Integer(self.end as i64);
        let captures = (0..self.matcher.n_captures()).map(|index| self.value(lua, index));
        let others = std::iter::once(Ok(last)).chain(captures).collect::<Result<_, _>>()?;
        Ok((Value::Integer(self.start as i64 + 1), others))
    }
}

fn find(lua: &Lua, arguments: Arguments) -> Result<Reply, Failure> {
    search(lua, arguments, true)
}

fn first_match(lua: &Lua, arguments: Arguments) -> Result<Reply, Failure> {
    search(lua, arguments, false)
}

fn search(lua: &Lua, mut arguments: Arguments, is_find: bool) -> Result<Reply, Failure> {
    let subject = arguments.string(lua, 1)?;
    let pattern = arguments.string(lua, 2)?;
    let init = arguments.integer_or(lua, 3, 1)?;
    let (subject, pattern) = (subject.as_bytes(), pattern.as_bytes());
    let from = start_index(init, subject.len());
    if is_find && (arguments.is_true(4) || !has_specials(&pattern)) {
        return find_plain(lua, &subject, &pattern, from);
    }
    let mut matcher = Matcher::new(&subject, &pattern);
    let mut meter = Meter::new(lua);
    let found = if matcher.take_anchor() {
        matcher.match_at(from, &mut meter)?.map(|end| (from, end))
    } else {
        matcher.search(from, &mut meter)?
    };
    let Some((start, end)) = found else { return Ok(nil()) };
    let found = Found { subject: &subject, matcher: &matcher, start, end };
    if is_find { found.positions(lua) } else { found.values(lua) }
}

/// Whether a pattern has special bytes before its end, which is its first zero byte.
fn has_specials(pattern: &[u8]) -> bool {
    pattern.iter().take_while(|byte| **byte != 0).any(|byte| class::is_special(*byte))
}

fn find_plain(lua: &Lua, subject: &[u8], text: &[u8], from: usize) -> Result<Reply, Failure> {
    let rest = &subject[from..];
    Meter::new(lua).spend((rest.len() / 16) as u32)?;
    // The preparation of the searcher is worth its cost in long subjects only.
    let found = match text {
        [byte] => memchr::memchr(*byte, rest),
        [] => Some(0),
        _ if rest.len() < 64 => rest.windows(text.len()).position(|window| window == text),
        _ => memchr::memmem::find(rest, text),
    };
    Ok(found.map_or_else(nil, |ahead| {
        let start = from + ahead;
        (Value::Integer(start as i64 + 1), Variadic::from(vec![Value::Integer((start + text.len()) as i64)]))
    }))
}

/// The most matches that cross into Lua at once.
const BATCH: usize = 16;

/// The beginning of both parts in Lua: a function that makes a match's values.
///
/// It makes them from their positions, of which the first is at `at` in `found`.
const VALUES: &str = "
    local sub = ...
    local function values(subject, found, at, width)
        local from, to = found[at], found[at + 1]
        local value = to and sub(subject, from, to) or from
        if width == 1 then
            return value
        end
        return value, values(subject, found, at + 2, width - 1)
    end
";

/// The iterator of `gmatch`, which takes the matches' positions in batches.
///
/// It cuts the strings in Lua, because that costs less than their crossing. `batch` returns four values
/// first:
/// - the position at which the next batch begins;
/// - the number of matches;
/// - the number of values of each match;
/// - a text, if the pattern proved to be wrong.
///
/// After these come the start and the end of each match and of each of its values. A value that is a position
/// has no end.
const GMATCH: &str = "
    local _, batch, raise = ...
    return function(subject, pattern)
        local found, at, index, count, width = nil, 0, 0, 0, 0
        return function()
            if index == count then
                found = {batch(subject, pattern, at)}
                index, count, width = 0, found[2], found[3]
                if count == 0 then
                    if found[4] then
                        raise(found[4])
                    end
                    return
                end
                at = found[1]
            end
            local base = 7 + index * (2 * width + 2)
            index = index + 1
            if width == 1 then
                local from, to = found[base], found[base + 1]
                return to and sub(subject, from, to) or from
            end
            return values(subject, found, base, width)
        end
    end
";

fn gmatch(lua: &Lua) -> mlua::Result<Function> {
    let batch = function(lua, |lua, arguments| batch(lua, arguments, false))?;
    // Two calls up is the loop. Between them is the iterator.
    let raise = function_at(lua, 2, |lua, mut arguments| -> Result<(), Failure> {
        let text = arguments.string(lua, 1)?;
        Err(Failure::Plain(text.as_bytes().to_vec().into()))
    })?;
    let sub: Function = lua.globals().get::<Table>("string")?.get("sub")?;
    let iterator: Function = load_hidden(lua, &format!("{VALUES}{GMATCH}"))?.call((sub, batch, raise))?;
    function(lua, move |lua, mut arguments| {
        let subject = arguments.string(lua, 1)?;
        let pattern = arguments.string(lua, 2)?;
        Ok(iterator.call::<Function>((subject, pattern))?)
    })
}

/// The matches of a pattern from left to right, none over another.
struct Matches<'a> {
    matcher: Matcher<'a>,
    length: usize,
    /// The position at which the next match may begin. It is beyond the subject when all were found.
    at: usize,
    is_anchored: bool,
}

impl<'a> Matches<'a> {
    /// Begins at `at`. Only `gsub` knows anchors. In `gmatch` a `^` stands for itself.
    fn new(subject: &'a [u8], pattern: &'a [u8], at: usize, knows_anchor: bool) -> Self {
        let mut matcher = Matcher::new(subject, pattern);
        let is_anchored = knows_anchor && matcher.take_anchor();
        Self { matcher, length: subject.len(), at, is_anchored }
    }

    fn next<W: Work>(&mut self, work: &mut W) -> Result<Option<(usize, usize)>, Fault<W::Stop>> {
        if self.at > self.length {
            return Ok(None);
        }
        let found = if self.is_anchored {
            self.matcher.match_at(self.at, work)?.map(|end| (self.at, end))
        } else {
            self.matcher.search(self.at, work)?
        };
        self.at = match found {
            Some((start, end)) if !self.is_anchored => end + usize::from(start == end),
            _ => self.length + 1,
        };
        Ok(found)
    }
}

/// Finds up to a batch of matches of argument 2, the pattern, in argument 1.
///
/// Argument 3 is the position at which the search begins. Argument 4 is the most matches. If argument 5 is
/// true, a match's first value is enough.
fn batch(lua: &Lua, mut arguments: Arguments, knows_anchor: bool) -> Result<MultiValue, Failure> {
    let at = arguments.integer_or(lua, 3, 0)? as usize;
    let limit = BATCH.min(arguments.integer_or(lua, 4, i64::MAX)?.max(0) as usize);
    let n_wanted = if arguments.is_true(5) { 1 } else { usize::MAX };
    let (subject, pattern) = (arguments.string(lua, 1)?, arguments.string(lua, 2)?);
    let (subject, pattern) = (subject.as_bytes(), pattern.as_bytes());
    let mut matches = Matches::new(&subject, &pattern, at, knows_anchor);
    let mut meter = Meter::new(lua);
    let mut out = vec![Value::Nil; 4];
    let (mut count, mut width) = (0, 1);
    while count < limit {
        match push_places(&mut matches, n_wanted, &mut meter, &mut out) {
            Ok(Some(n_values)) => (count, width) = (count + 1, n_values),
            Ok(None) => break,
            Err(Fault::Stopped(error)) => return Err(Failure::Lua(error)),
            Err(Fault::Pattern(text)) => {
                out[3] = Value::String(lua.create_string(text)?);
                break;
            }
        }
    }
    out[0] = whole(matches.at);
    out[1] = whole(count);
    out[2] = whole(width);
    Ok(MultiValue::from_vec(out))
}

fn whole(number: usize) -> Value {
    Value::Integer(number as i64)
}

/// Appends the positions of the next match, and of at most `n_wanted` of its values.
///
/// Returns the number of those values, or `None` if there is no match.
fn push_places(
    matches: &mut Matches<'_>,
    n_wanted: usize,
    meter: &mut Meter<'_>,
    out: &mut Vec<Value>,
) -> Result<Option<usize>, Fault<mlua::Error>> {
    let Some((start, end)) = matches.next(meter)? else { return Ok(None) };
    let n_values = n_wanted.min(matches.matcher.n_values());
    out.extend([whole(start + 1), whole(end)]);
    for index in 0..n_values {
        out.extend(match matches.matcher.value(index, start, end)? {
            Captured::Bytes(from, to) => [whole(from + 1), whole(to)],
            Captured::Position(position) => [whole(position), Value::Boolean(false)],
        });
    }
    Ok(Some(n_values))
}
