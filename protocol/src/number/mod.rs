//! The text grammar of numbers, as Redis reads and prints integers and floats.
//!
//! Three kinds of number reach a client: 64-bit integers, doubles (scores, `,` in RESP3) and the 80-bit
//! extended floats of INCRBYFLOAT and HINCRBYFLOAT ([`LongDouble`]).

mod double;
mod extended;
mod wide;

pub use double::{format_f64, parse_f64, write_f64};
pub use extended::LongDouble;

/// The most bytes of an `i64` as text: `-9223372036854775808`.
pub const MAX_I64_TEXT_BYTES: usize = 20;

/// Parses an integer in the only form in which [`write_i64`] prints it.
///
/// It has no sign but a leading `-`, no leading zeros, no spaces, and is not `-0`. So an accepted string can
/// be stored as an integer and printed again without losing a byte.
#[inline]
pub fn parse_i64(text: &[u8]) -> Option<i64> {
    match text {
        [b'-', digits @ ..] => {
            let magnitude = parse_u64(digits)?;
            if magnitude == 0 || magnitude > i64::MIN.unsigned_abs() {
                return None;
            }
            Some((magnitude as i64).wrapping_neg())
        }
        _ => i64::try_from(parse_u64(text)?).ok(),
    }
}

/// Parses an unsigned integer: digits only, without leading zeros.
#[inline]
pub fn parse_u64(text: &[u8]) -> Option<u64> {
    match text {
        [only @ b'0'..=b'9'] => return Some((only - b'0').into()),
        [b'1'..=b'9', ..] => {}
        _ => return None,
    }
    // 19 digits cannot overflow. Only a twentieth needs the checked step.
    let (safe, last) = text.split_at(text.len().min(19));
    let mut value = 0u64;
    for &byte in safe {
        value = value * 10 + u64::from(digit(byte)?);
    }
    match last {
        [] => Some(value),
        [byte] => value.checked_mul(10)?.checked_add(u64::from(digit(*byte)?)),
        _ => None,
    }
}

/// Appends `value` in decimal.
#[inline]
pub fn write_i64(out: &mut Vec<u8>, value: i64) {
    if (0..10).contains(&value) {
        out.push(b'0' + value as u8);
    } else {
        out.extend_from_slice(itoa::Buffer::new().format(value).as_bytes());
    }
}

/// An integer's text, on the stack.
pub struct IntegerText(itoa::Buffer);

impl IntegerText {
    /// Prints `value` and returns the text.
    #[inline]
    pub fn format(&mut self, value: i64) -> &[u8] {
        self.0.format(value).as_bytes()
    }

    /// Prints an unsigned `value`, which may exceed an `i64`, and returns the text.
    #[inline]
    pub fn format_unsigned(&mut self, value: u64) -> &[u8] {
        self.0.format(value).as_bytes()
    }
}

impl Default for IntegerText {
    fn default() -> Self {
        IntegerText(itoa::Buffer::new())
    }
}

/// Calls `with` with the decimal text of `value`, which lives on the stack.
#[inline]
pub fn format_i64<R>(value: i64, with: impl FnOnce(&[u8]) -> R) -> R {
    with(IntegerText::default().format(value))
}

#[inline]
fn digit(byte: u8) -> Option<u8> {
    let digit = byte.wrapping_sub(b'0');
    (digit <= 9).then_some(digit)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn printed(value: i64) -> Vec<u8> {
        let mut out = Vec::new();
        write_i64(&mut out, value);
        assert_eq!(format_i64(value, <[u8]>::to_vec), out);
        out
    }

    #[test]
    fn integers_read_back_as_printed() {
        for value in [0, 1, -1, 9, 10, 99, 100, i64::MAX, i64::MIN, i64::MAX - 1, i64::MIN + 1, 1 << 53] {
            assert_eq!(printed(value), value.to_string().into_bytes());
            assert_eq!(parse_i64(&printed(value)), Some(value));
        }
    }

    #[test]
    fn only_the_canonical_form_is_an_integer() {
        let refused = [
            "",
            "-",
            "+1",
            "01",
            "-01",
            "00",
            "-0",
            " 1",
            "1 ",
            "1a",
            "0x1",
            "1.0",
            "--1",
            "9223372036854775808",
            "-9223372036854775809",
            "99999999999999999999",
            "100000000000000000000",
            "18446744073709551616",
        ];
        for text in refused {
            assert_eq!(parse_i64(text.as_bytes()), None, "{text:?}");
        }
        assert_eq!(parse_i64(b"1\0"), None);
    }

    #[test]
    fn unsigned_integers_use_all_64_bits() {
        assert_eq!(parse_u64(b"18446744073709551615"), Some(u64::MAX));
        assert_eq!(parse_u64(b"18446744073709551616"), None);
        assert_eq!(parse_u64(b"-1"), None);
        assert_eq!(parse_u64(b"0"), Some(0));
    }
}
