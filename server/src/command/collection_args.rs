//! What commands on the members of one value share: how a member is written, how many come again, and what
//! follows a cursor.

use braid_protocol::reply::Reply;
use braid_storage::{
    Position,
    glob::{self, Case, glob_match},
    packed::Element,
};

use crate::catalog::{Args, CommandError, Outcome};

/// The longest reply of members that may come again, to a client that has no limit of its own: nothing else
/// bounds how many of them it can ask for.
const SAMPLES_MAX_BYTES: usize = 512 << 20;

/// The least bytes of a member in a reply.
const REPLIED_MEMBER_MIN_BYTES: u64 = 6;

/// Writes `n` random members, each independent of the others: `begin` what stands before them, and `write`
/// one of them.
pub(super) fn write_samples(
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

/// How many bytes an element has, nearly.
#[inline]
pub(super) fn n_bytes(element: Element<'_>) -> usize {
    match element {
        Element::Integer(_) => size_of::<i64>(),
        Element::Text(text) => text.len(),
    }
}

/// Writes an element of a list, a member, or the name or value of a field.
#[inline]
pub(super) fn write_element(element: Element<'_>, reply: &mut Reply<'_>) {
    if reply.is_over_limit() {
        return;
    }
    match element {
        Element::Integer(value) => reply.bulk_integer(value),
        Element::Text(text) => reply.bulk(text),
    }
}

/// Writes where a scan is to go on, if anywhere, and the `n_found` texts that it has written to `found`: the
/// one is known only when the others have been visited.
pub(super) fn write_scanned(next: Option<Position>, n_found: usize, found: &[u8], reply: &mut Reply<'_>) {
    reply.array(2);
    reply.bulk_integer(next.map_or(0, Position::encode) as i64);
    reply.array(n_found);
    reply.raw(found);
}

/// MATCH and COUNT.
pub(super) struct ScanOptions<'a> {
    /// MATCH, unless all members match.
    pattern: Option<&'a [u8]>,
    count: usize,
}

impl<'a> ScanOptions<'a> {
    pub fn read(args: Args<'a>) -> Result<Self, CommandError> {
        Self::read_among(args, |_| false)
    }

    /// Reads them where `take_other` may take others.
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

    /// Whether a member is to be in the reply.
    pub fn wants(&self, member: Element<'_>) -> bool {
        let matches = |pattern: &[u8]| member.with_text(|text| glob_match(pattern, text, Case::Sensitive));
        self.pattern.is_none_or(matches)
    }

    /// COUNT.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Visits from a position on until COUNT entries have been visited, or ten times as many buckets. `step`
    /// visits a bucket and counts the entries; the result is where to go on.
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
