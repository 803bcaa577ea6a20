//! The conditions of a write: NX, XX, and the comparisons of Redis 8.4.

use xxhash_rust::xxh3::xxh3_64;

use crate::catalog::{Args, CommandError};

/// The condition on a key's current value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::command) enum Condition<'a> {
    /// No condition.
    #[default]
    None,
    /// NX: the key does not exist.
    Missing,
    /// XX: the key exists.
    Present,
    /// IFEQ: the value is this string.
    Equal(&'a [u8]),
    /// IFNE: the value is not this string.
    NotEqual(&'a [u8]),
    /// IFDEQ: the value has this digest.
    DigestEqual(&'a [u8]),
    /// IFDNE: the value does not have this digest.
    DigestNotEqual(&'a [u8]),
}

impl<'a> Condition<'a> {
    /// Takes the next argument if it is NX or XX. They exclude every other condition.
    pub(in crate::command) fn take_presence(&mut self, args: &mut Args<'a>) -> Result<bool, CommandError> {
        let taken = if args.tag("NX") {
            Condition::Missing
        } else if args.tag("XX") {
            Condition::Present
        } else {
            return Ok(false);
        };
        if *self != Condition::None && *self != taken {
            return Err(CommandError::Syntax);
        }
        *self = taken;
        Ok(true)
    }

    /// Takes the next two arguments if they are a comparison. It excludes every other condition.
    pub(in crate::command) fn take_comparison(&mut self, args: &mut Args<'a>) -> Result<bool, CommandError> {
        let comparison: fn(&'a [u8]) -> Self = if args.tag("IFEQ") {
            Condition::Equal
        } else if args.tag("IFNE") {
            Condition::NotEqual
        } else if args.tag("IFDEQ") {
            Condition::DigestEqual
        } else if args.tag("IFDNE") {
            Condition::DigestNotEqual
        } else {
            return Ok(false);
        };
        if *self != Condition::None {
            return Err(CommandError::Syntax);
        }
        *self = comparison(args.next()?);
        Ok(true)
    }

    /// Whether it needs the value, and not only the key's existence.
    pub(in crate::command) fn compares(self) -> bool {
        !matches!(self, Condition::None | Condition::Missing | Condition::Present)
    }

    /// Whether it is true of a key with this value, or without one. A missing value differs from every value.
    ///
    /// # Errors
    /// If a digest does not have 16 characters.
    pub(in crate::command) fn holds(self, value: Option<&[u8]>) -> Result<bool, CommandError> {
        Ok(match self {
            Condition::None => true,
            Condition::Missing => value.is_none(),
            Condition::Present => value.is_some(),
            Condition::Equal(other) => value == Some(other),
            Condition::NotEqual(other) => value != Some(other),
            Condition::DigestEqual(other) => value.map_or(Ok(false), |value| has_digest(value, other))?,
            Condition::DigestNotEqual(other) => !value.map_or(Ok(false), |value| has_digest(value, other))?,
        })
    }
}

/// Returns a string's digest: the 64 bits of XXH3 in 16 hexadecimal digits.
pub(in crate::command) fn digest(value: &[u8]) -> String {
    format!("{:016x}", xxh3_64(value))
}

/// Whether a value has this digest, given in either case.
///
/// As in Redis, only the digest's length is checked. With other characters than digits it matches no value.
fn has_digest(value: &[u8], other: &[u8]) -> Result<bool, CommandError> {
    if other.len() != 16 {
        return Err(CommandError::text("ERR The digest must be exactly 16 hexadecimal characters"));
    }
    Ok(digest(value).as_bytes().eq_ignore_ascii_case(other))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_are_those_of_redis() {
        assert_eq!(digest(b""), "2d06800538d394c2");
        assert_eq!(digest(b"hello"), "9555e8555c62dcfd");
        assert_eq!(digest(b"v8"), "0cc76dbb41381419");
    }

    #[test]
    fn a_missing_value_equals_nothing_and_differs_from_everything() {
        for (condition, holds) in [
            (Condition::None, true),
            (Condition::Missing, true),
            (Condition::Present, false),
            (Condition::Equal(b""), false),
            (Condition::NotEqual(b""), true),
            (Condition::DigestEqual(b"short"), false),
            (Condition::DigestNotEqual(b"short"), true),
        ] {
            assert_eq!(condition.holds(None), Ok(holds), "{condition:?}");
        }
    }

    #[test]
    fn digests_compare_in_either_case() {
        let upper = digest(b"hello").to_ascii_uppercase();
        assert_eq!(Condition::DigestEqual(upper.as_bytes()).holds(Some(b"hello")), Ok(true));
        assert_eq!(Condition::DigestNotEqual(upper.as_bytes()).holds(Some(b"hello")), Ok(false));
        assert_eq!(Condition::DigestNotEqual(b"zzzzzzzzzzzzzzzz").holds(Some(b"hello")), Ok(true));
        assert!(Condition::DigestEqual(b"short").holds(Some(b"hello")).is_err());
    }
}
