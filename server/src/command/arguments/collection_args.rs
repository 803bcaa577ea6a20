//! Shared parts of commands on members: writing members, random samples and scans.

use braid_protocol::{number, reply::Reply};
use braid_storage::{
    glob::{self, Case, glob_match},
    table::Position,
    types::packed::Element,
};

use crate::catalog::{Args, CommandError, Outcome};

/// The longest reply with repeatable random members, in bytes.
///
/// It applies to clients without a limit of their own.
///
/// Nothing else limits the number of members that it can request.
const SAMPLES_MAX_BYTES: usize = 512 << 20;

/// The least bytes of a member in a reply.
const REPLIED_MEMBER_MIN_BYTES: u64 = 6;

/// Writes `n` independent random members: `begin` writes the header, and `write` one member.
pub(in crate::command) fn write_samples(
    n: u64,
    reply: &mut Reply<'_>,
    begin: impl FnOnce(&mut Reply<'_>),
    mut write: impl FnMut(&mut Reply<'_>),
) -> Outcome {
    const TOO_MANY: CommandError = CommandError::text("ERR value is out of range");
    let is_limited = reply.is_limited();
    if !is_limited && n.saturating_mul(REPLIED_MEMBER_MIN_BYTES) > SAMPLES_MAX_BYTES as u64 {
        return Err(TOO_MANY);
    }
    let start = reply.written_bytes();
    begin(reply);
    for _ in 0..n {
        write(reply);
        if reply.is_over_limit() {
            break;
        }
        if !is_limited && reply.written_bytes() - start > SAMPLES_MAX_BYTES {
            reply.truncate(start);
            return Err(TOO_MANY);
        }
    }
    Ok(())
}

/// Takes an integer of at least `min`. Every other argument gives the same error.
pub(in crate::command) fn at_least(
    min: usize,
    args: &mut Args<'_>,
    error: &'static str,
) -> Result<usize, CommandError> {
    read_count(args.next()?).filter(|&given| given >= min).ok_or(CommandError::text(error))
}

/// Reads an integer that is not negative.
pub(in crate::command) fn read_count(text: &[u8]) -> Option<usize> {
    number::parse_i64(text).and_then(|count| usize::try_from(count).ok())
}

/// Returns the approximate length of an element in bytes.
#[inline]
pub(in crate::command) fn n_bytes(element: Element<'_>) -> usize {
    match element {
        Element::Integer(_) => size_of::<i64>(),
        Element::Text(text) => text.len(),
    }
}

/// Writes an element, a member, or the name or value of a field.
#[inline]
pub(in crate::command) fn write_element(element: Element<'_>, reply: &mut Reply<'_>) {
    if reply.is_over_limit() {
        return;
    }
    match element {
        Element::Integer(value) => reply.bulk_integer(value),
        Element::Text(text) => reply.bulk(text),
    }
}

/// Writes the position for the next scan, if any, and the `n_found` texts in `found`.
///
/// The position comes first, but it is known only after the texts.
pub(in crate::command) fn write_scanned(
    next: Option<Position>,
    n_found: usize,
    found: &[u8],
    reply: &mut Reply<'_>,
) {
    reply.array(2);
    reply.bulk_integer(next.map_or(0, Position::encode) as i64);
    reply.array(n_found);
    reply.raw(found);
}

/// The options MATCH and COUNT.
pub(in crate::command) struct ScanOptions<'a> {
    /// The pattern of MATCH, unless all members match it.
    pattern: Option<&'a [u8]>,
    count: usize,
}

impl<'a> ScanOptions<'a> {
    pub fn read(args: Args<'a>) -> Result<Self, CommandError> {
        Self::read_among(args, |_| false)
    }

    /// Reads the options. `take_other` may take others among them.
    pub fn read_among(
        mut args: Args<'a>,
        mut take_other: impl FnMut(&mut Args<'a>) -> bool,
    ) -> Result<Self, CommandError> {
        let mut options = ScanOptions { pattern: None, count: 10 };
        while !args.is_empty() {
            if args.tag("COUNT") {
                let count = usize::try_from(args.int()?).ok().filter(|&n| n > 0);
                options.count = count.ok_or(CommandError::Syntax)?;
            } else if args.tag("MATCH") {
                options.pattern = Some(args.next()?).filter(|pattern| !glob::matches_everything(pattern));
            } else if !take_other(&mut args) {
                return Err(CommandError::Syntax);
            }
        }
        Ok(options)
    }

    /// Whether the reply must contain a member.
    pub fn wants(&self, member: Element<'_>) -> bool {
        let matches = |pattern: &[u8]| member.with_text(|text| glob_match(pattern, text, Case::Sensitive));
        self.pattern.is_none_or(matches)
    }

    /// Returns the value of COUNT.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Visits entries from a position onwards, up to a limit.
    ///
    /// The limit is COUNT entries, or ten times as many buckets.
    ///
    /// `step` visits a bucket, counts its entries and returns the next position. The result is the position
    /// for the next scan.
    pub fn visit(
        &self,
        from: Option<Position>,
        mut step: impl FnMut(Position, &mut usize) -> Option<Position>,
    ) -> Option<Position> {
        let (mut next, mut n_visited, mut n_steps) = (from, 0, 0);
        while let Some(from) = next
            && n_visited < self.count
            && n_steps < self.count.saturating_mul(10)
        {
            next = step(from, &mut n_visited);
            n_steps += 1;
        }
        next
    }
}
