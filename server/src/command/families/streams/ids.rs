//! IDs of stream entries as text.

use braid_protocol::{
    number::{IntegerText, parse_i64},
    reply::Reply,
};
use braid_storage::types::stream::{NewId, StreamId};
use smallvec::SmallVec;

use crate::catalog::{Args, CommandError};

/// The error for a text that is no ID.
const INVALID_ID: CommandError =
    CommandError::text("ERR Invalid stream ID specified as stream command argument");

/// Greatest length of an ID's text, in bytes.
const ID_MAX_BYTES: usize = 127;

/// IDs in a command, usually few.
pub(super) type Ids = SmallVec<[StreamId; 8]>;

/// An ID whose second number may be missing or automatic.
struct IdParts {
    ms: u64,
    seq: Seq,
}

enum Seq {
    Given(u64),
    Missing,
    /// An automatic number, `*`.
    Auto,
}

/// Reads `ms`, `ms-seq` or `ms-*`.
fn parts(text: &[u8]) -> Option<IdParts> {
    if text.len() > ID_MAX_BYTES {
        return None;
    }
    // As in Redis, where a zero byte ends the text.
    let text = text.split(|&byte| byte == 0).next().unwrap_or_default();
    let Some(dash) = text.iter().position(|&byte| byte == b'-') else {
        return Some(IdParts { ms: unsigned(text)?, seq: Seq::Missing });
    };
    let (ms, seq) = (unsigned(&text[..dash])?, &text[dash + 1..]);
    let seq = if seq == b"*" { Seq::Auto } else { Seq::Given(unsigned(seq)?) };
    Some(IdParts { ms, seq })
}

/// Reads a number as Redis does here.
///
/// A text that is no canonical integer is read as C's `strtoull` does, with leading blanks, zeros and signs.
fn unsigned(text: &[u8]) -> Option<u64> {
    if let Some(value) = parse_i64(text) {
        return u64::try_from(value).ok();
    }
    let blanks = text.iter().take_while(|byte| byte.is_ascii_whitespace() || **byte == 0x0b).count();
    let (is_negated, digits) = match &text[blanks..] {
        [b'-', digits @ ..] => (true, digits),
        [b'+', digits @ ..] | digits => (false, digits),
    };
    let mut value = (!digits.is_empty()).then_some(0u64)?;
    for digit in digits {
        let digit = digit.is_ascii_digit().then(|| u64::from(digit - b'0'))?;
        value = value.checked_mul(10)?.checked_add(digit)?;
    }
    Some(if is_negated { value.wrapping_neg() } else { value })
}

/// Reads an ID. A missing second number becomes `missing_seq`.
fn id_with(text: &[u8], missing_seq: u64) -> Result<StreamId, CommandError> {
    match parts(text).ok_or(INVALID_ID)? {
        IdParts { ms, seq: Seq::Given(seq) } => Ok(StreamId::new(ms, seq)),
        IdParts { ms, seq: Seq::Missing } => Ok(StreamId::new(ms, missing_seq)),
        IdParts { seq: Seq::Auto, .. } => Err(INVALID_ID),
    }
}

/// Reads an ID. A missing second number becomes 0.
pub(super) fn id(text: &[u8]) -> Result<StreamId, CommandError> {
    id_with(text, 0)
}

/// Reads an ID, or `-` and `+` for the ends.
pub(super) fn id_or_end(text: &[u8], missing_seq: u64) -> Result<StreamId, CommandError> {
    match text {
        b"-" => Ok(StreamId::MIN),
        b"+" => Ok(StreamId::MAX),
        _ => id_with(text, missing_seq),
    }
}

/// Reads the ID of a new entry, except `*`, which the caller handles.
pub(super) fn new_id(text: &[u8]) -> Result<NewId, CommandError> {
    match parts(text).ok_or(INVALID_ID)? {
        IdParts { ms, seq: Seq::Given(seq) } => Ok(NewId::Given(StreamId::new(ms, seq))),
        IdParts { ms, seq: Seq::Missing } => Ok(NewId::Given(StreamId::new(ms, 0))),
        IdParts { ms, seq: Seq::Auto } => Ok(NewId::AutoSeq { ms }),
    }
}

/// Reads the start of a range. A `(` before it excludes the ID itself.
pub(super) fn range_start(text: &[u8]) -> Result<StreamId, CommandError> {
    match text {
        [b'(', bound @ ..] if !bound.is_empty() => {
            id_with(bound, 0)?.next().ok_or(CommandError::text("ERR invalid start ID for the interval"))
        }
        _ => id_or_end(text, 0),
    }
}

/// Reads the end of a range. A `(` before it excludes the ID itself.
pub(super) fn range_end(text: &[u8]) -> Result<StreamId, CommandError> {
    match text {
        [b'(', bound @ ..] if !bound.is_empty() => id_with(bound, u64::MAX)?
            .previous()
            .ok_or(CommandError::text("ERR invalid end ID for the interval")),
        _ => id_or_end(text, u64::MAX),
    }
}

/// Takes the remaining arguments as IDs.
pub(super) fn ids(args: Args<'_>) -> Result<Ids, CommandError> {
    args.rest().map(id).collect()
}

/// Writes an ID.
pub(super) fn write_id(reply: &mut Reply<'_>, id: StreamId) {
    let (mut ms, mut seq) = (IntegerText::default(), IntegerText::default());
    let mut text = SmallVec::<[u8; 48]>::new();
    text.extend_from_slice(ms.format_unsigned(id.ms));
    text.push(b'-');
    text.extend_from_slice(seq.format_unsigned(id.seq));
    reply.bulk(&text);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_read_as_redis_reads_them() {
        for (text, expected) in [
            ("0", Some((0, 0))),
            ("5-7", Some((5, 7))),
            ("18446744073709551615-18446744073709551615", Some((u64::MAX, u64::MAX))),
            ("18446744073709551616", None),
            ("007-+8", Some((7, 8))),
            (" 7-\t8", Some((7, 8))),
            ("5--3", None),
            ("5--03", Some((5, u64::MAX - 2))),
            ("-5", None),
            ("5-", None),
            ("-", None),
            ("+", None),
            ("", None),
            ("5-*", None),
            ("5-7-8", None),
            ("5\0x-7", Some((5, 0))),
            ("5x", None),
            ("--", None),
        ] {
            let expected = expected.map(|(ms, seq)| StreamId::new(ms, seq));
            assert_eq!(id(text.as_bytes()).ok(), expected, "{text:?}");
        }
        assert!(id(&[b'0'; 127]).is_ok());
        assert!(id(&[b'0'; 128]).is_err());
    }

    #[test]
    fn bounds_may_be_exclusive_unless_they_are_ends() {
        assert_eq!(range_start(b"(5"), Ok(StreamId::new(5, 1)));
        assert_eq!(range_end(b"(5"), Ok(StreamId::new(5, u64::MAX - 1)));
        assert_eq!(range_end(b"5"), Ok(StreamId::new(5, u64::MAX)));
        assert_eq!(range_end(b"(5-0"), Ok(StreamId::new(4, u64::MAX)));
        assert!(range_start(b"(18446744073709551615-18446744073709551615").is_err());
        assert!(range_end(b"(0-0").is_err());
        assert!(range_start(b"(-").is_err());
        assert!(range_end(b"(+").is_err());
        assert!(range_start(b"(").is_err());
    }
}
