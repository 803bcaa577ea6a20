//! Numbers as Lua 5.1 reads and writes them.

use std::io::Write;

/// The longest text of a number in bytes: sign, 14 digits, point, exponent.
const TEXT_BYTES: usize = 24;

/// The digits of a number in a text: C's `%.14g`.
const DIGITS: usize = 14;

/// Returns the number that a text stands for, as `tonumber` does.
///
/// The number is decimal or hexadecimal. Blanks around it are allowed.
pub(super) fn parse(text: &[u8]) -> Option<f64> {
    let text = text.trim_ascii();
    let is_negative = text.first() == Some(&b'-');
    let digits = text.strip_prefix(b"-").or(text.strip_prefix(b"+")).unwrap_or(text);
    if let Some(hex) = digits.strip_prefix(b"0x").or(digits.strip_prefix(b"0X")) {
        let value = u64::from_str_radix(std::str::from_utf8(hex).ok()?, 16).ok()? as f64;
        return (!hex.starts_with(b"+")).then_some(if is_negative { -value } else { value });
    }
    let is_decimal = |byte: &u8| matches!(byte, b'0'..=b'9' | b'.' | b'e' | b'E' | b'+' | b'-');
    if !text.iter().all(is_decimal) {
        return None; // Rust reads more texts as numbers, such as "inf". Keys are not made of those.
    }
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// Writes a number as `tostring` and `..` do.
pub(super) fn write(number: f64, into: &mut impl Extend<u8>) {
    let is_short_integer = number == number.trunc() && number.abs() < 1e14;
    if is_short_integer && !(number == 0.0 && number.is_sign_negative()) {
        return write_integer(number as i64, into);
    }
    if !number.is_finite() {
        let text: &[u8] = match number {
            f64::INFINITY => b"inf",
            f64::NEG_INFINITY => b"-inf",
            _ => b"-nan",
        };
        return into.extend(text.iter().copied());
    }
    write_general(number, into);
}

/// Writes an integer in decimal.
pub(super) fn write_integer(number: i64, into: &mut impl Extend<u8>) {
    let mut text = [0; TEXT_BYTES];
    let mut at = text.len();
    let mut rest = number.unsigned_abs();
    loop {
        at -= 1;
        text[at] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    if number < 0 {
        at -= 1;
        text[at] = b'-';
    }
    into.extend(text[at..].iter().copied());
}

/// Writes a number as C's `%.14g`, without zeros at the end.
///
/// It chooses the shorter of both notations.
fn write_general(number: f64, into: &mut impl Extend<u8>) {
    let mut buffer = [0; TEXT_BYTES];
    let mut room = &mut buffer[..];
    write!(room, "{number:.*e}", DIGITS - 1).expect("14 digits, a sign and an exponent have room");
    let n_left = room.len();
    let text = &buffer[..TEXT_BYTES - n_left];
    let at = text.iter().position(|byte| *byte == b'e').expect("the notation has an exponent");
    let exponent: i32 =
        std::str::from_utf8(&text[at + 1..]).ok().and_then(|text| text.parse().ok()).unwrap_or(0);
    let mantissa = &text[..at];
    if text[0] == b'-' {
        into.extend([b'-']);
    }
    let digits = mantissa.iter().copied().filter(u8::is_ascii_digit);
    let n_digits = DIGITS - digits.clone().rev().take_while(|digit| *digit == b'0').count();
    let n_digits = n_digits.max(1);
    let digits = digits.take(n_digits);
    if (-4..DIGITS as i32).contains(&exponent) {
        write_plain(digits, n_digits, exponent, into);
    } else {
        write_scientific(digits, exponent, into);
    }
}

fn write_plain(digits: impl Iterator<Item = u8>, n_digits: usize, exponent: i32, into: &mut impl Extend<u8>) {
    if exponent < 0 {
        into.extend(*b"0.");
        into.extend(std::iter::repeat_n(b'0', (-exponent - 1) as usize));
        return into.extend(digits);
    }
    let n_whole = exponent as usize + 1;
    for (at, digit) in digits.enumerate() {
        if at == n_whole {
            into.extend([b'.']);
        }
        into.extend([digit]);
    }
    into.extend(std::iter::repeat_n(b'0', n_whole.saturating_sub(n_digits)));
}

fn write_scientific(digits: impl Iterator<Item = u8>, exponent: i32, into: &mut impl Extend<u8>) {
    for (at, digit) in digits.enumerate() {
        if at == 1 {
            into.extend([b'.']);
        }
        into.extend([digit]);
    }
    into.extend([b'e', if exponent < 0 { b'-' } else { b'+' }]);
    if exponent.abs() < 10 {
        into.extend([b'0']);
    }
    write_integer(i64::from(exponent.abs()), into);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(number: f64) -> String {
        let mut text = Vec::new();
        write(number, &mut text);
        String::from_utf8(text).unwrap()
    }

    #[test]
    fn numbers_are_written_as_lua_writes_them() {
        // From `redis-cli EVAL 'return tostring(…)' 0`.
        let expected = [
            (0.0, "0"),
            (-0.0, "-0"),
            (42.0, "42"),
            (-7.0, "-7"),
            (0.1, "0.1"),
            (1.5, "1.5"),
            (1e13, "10000000000000"),
            (1e14, "1e+14"),
            (1e100, "1e+100"),
            (1e-5, "1e-05"),
            (0.0001, "0.0001"),
            (1.0 / 3.0, "0.33333333333333"),
            (123456789012345.0, "1.2345678901234e+14"),
            (99999999999999.9, "1e+14"),
            (100.25, "100.25"),
            (f64::INFINITY, "inf"),
        ];
        for (number, expected) in expected {
            assert_eq!(text(number), expected);
        }
    }

    #[test]
    fn texts_are_read_as_lua_reads_them() {
        assert_eq!(parse(b" 10 "), Some(10.0));
        assert_eq!(parse(b"0x10"), Some(16.0));
        assert_eq!(parse(b"-0x10"), Some(-16.0));
        assert_eq!(parse(b"1e2"), Some(100.0));
        assert_eq!(parse(b"5."), Some(5.0));
        for text in ["", "x", "inf", "nan", "0x", "1 2", "--1", "0x+1"] {
            assert_eq!(parse(text.as_bytes()), None, "{text}");
        }
    }
}
