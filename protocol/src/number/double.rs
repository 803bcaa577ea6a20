//! Doubles: scores, and `,` in RESP3.

use super::extended::Numeral;

/// Parses a double as Redis reads a score or a float argument.
///
/// The grammar is that of C's `strtod`, and the whole text must match. Decimals with or without point and
/// exponent are accepted. So are hexadecimal floats, and `inf` and `infinity` in any case. The empty text,
/// spaces and `nan` are refused, as are finite texts that overflow, and texts other than zero that round to
/// zero.
pub fn parse_f64(text: &[u8]) -> Option<f64> {
    // Most scores and bounds are whole numbers. As a double one is rounded exactly as its digits would be.
    if let Some(whole) = super::parse_i64(text) {
        return Some(whole as f64);
    }
    let Ok(value) = str::from_utf8(text).ok()?.parse::<f64>() else {
        return parse_hexadecimal(text);
    };
    // The digits are read again only for results to which a finite, non-zero text may have been rounded.
    if value.is_nan() || value.is_infinite() && text.iter().any(u8::is_ascii_digit) {
        return None;
    }
    if value == 0.0 && text.iter().take_while(|b| !matches!(b, b'e' | b'E')).any(|b| matches!(b, b'1'..=b'9'))
    {
        return None;
    }
    Some(value)
}

/// Appends `value` in the fewest digits that read back as the same double.
///
/// The layout is that of Redis 7.2 and later. Whole numbers up to 2^62 are printed in full. Other values have
/// an exponent (`1e+20`, `1.5e-9`) in two cases:
///
/// - They are whole and a multiple of 10^8.
/// - The place of their last digit is below 10^-6, and their magnitude is less than 10^-3, or 10^4 or more.
///
/// Redis 7.0 prints 17 digits instead (`0.10000000000000001`), which clients read as the same double.
pub fn write_f64(out: &mut Vec<u8>, value: f64) {
    if value.is_nan() {
        out.extend_from_slice(b"nan");
    } else if value.is_infinite() {
        out.extend_from_slice(if value < 0.0 { b"-inf" } else { b"inf" });
    } else if value == 0.0 {
        out.extend_from_slice(if value.is_sign_negative() { b"-0" } else { b"0" });
    } else if let Some(whole) = as_whole(value) {
        super::write_i64(out, whole);
    } else {
        if value < 0.0 {
            out.push(b'-');
        }
        Shortest::of(value.abs()).lay_out(out);
    }
}

/// Calls `with` with the text that [`write_f64`] appends.
///
/// Only the text of a number that is not whole is allocated.
pub fn format_f64<R>(value: f64, with: impl FnOnce(&[u8]) -> R) -> R {
    match as_whole(value) {
        Some(whole) => super::format_i64(whole, with),
        None => {
            let mut text = Vec::with_capacity(32);
            write_f64(&mut text, value);
            with(&text)
        }
    }
}

/// The integer whose text a double has, if there is one.
#[inline]
fn as_whole(value: f64) -> Option<i64> {
    const WHOLE_LIMIT: f64 = (1u64 << 62) as f64;
    let whole = value as i64;
    let is_whole = value.abs() <= WHOLE_LIMIT && whole as f64 == value;
    (is_whole && (whole != 0 || value.is_sign_positive())).then_some(whole)
}

fn parse_hexadecimal(text: &[u8]) -> Option<f64> {
    let (negative, numeral) = Numeral::scan(text)?;
    let Numeral::Hexadecimal { unrounded } = numeral else { return None };
    let (mantissa, exponent) = unrounded.round(53, -1074);
    let n_bits = i64::from(u64::BITS - mantissa.leading_zeros());
    if n_bits + exponent > 1024 || mantissa == 0 && unrounded.bits != 0 {
        return None;
    }
    // Both factors are exact. So is their product: it has at most 53 bits and the exponent is in range. There
    // are two steps, because 2^exponent alone may be subnormal or too large.
    let half = (exponent / 2) as i32;
    let value = mantissa as f64 * 2f64.powi(half) * 2f64.powi(exponent as i32 - half);
    Some(if negative { -value } else { value })
}

/// The digits of a positive double, and the power of ten that scales them.
struct Shortest {
    digits: [u8; 20],
    n_digits: usize,
    exponent: i32,
}

impl Shortest {
    fn of(value: f64) -> Self {
        let mut shortest = Shortest { digits: [0; 20], n_digits: 0, exponent: 0 };
        let mut buffer = zmij::Buffer::new();
        let text = buffer.format_finite(value).as_bytes();
        let (mantissa, exponent) = match text.iter().position(|&b| b == b'e') {
            Some(e) => (&text[..e], signed(&text[e + 1..])),
            None => (text, 0),
        };
        shortest.exponent = exponent;
        let mut after_point = false;
        for &byte in mantissa {
            if byte == b'.' {
                after_point = true;
                continue;
            }
            shortest.exponent -= i32::from(after_point);
            if shortest.n_digits > 0 || byte != b'0' {
                shortest.digits[shortest.n_digits] = byte;
                shortest.n_digits += 1;
            }
        }
        while shortest.digits[shortest.n_digits - 1] == b'0' {
            shortest.n_digits -= 1;
            shortest.exponent += 1;
        }
        shortest
    }

    fn lay_out(&self, out: &mut Vec<u8>) {
        let digits = &self.digits[..self.n_digits];
        let n_digits = self.n_digits as i32;
        let magnitude = self.exponent + n_digits - 1;
        if self.exponent >= 0 && magnitude < n_digits + 7 {
            out.extend_from_slice(digits);
            out.extend(std::iter::repeat_n(b'0', self.exponent as usize));
        } else if self.exponent < 0 && (self.exponent > -7 || magnitude.abs() < 4) {
            match usize::try_from(magnitude + 1) {
                Ok(point @ 1..) => {
                    out.extend_from_slice(&digits[..point]);
                    out.push(b'.');
                    out.extend_from_slice(&digits[point..]);
                }
                _ => {
                    out.extend_from_slice(b"0.");
                    out.extend(std::iter::repeat_n(b'0', (-magnitude - 1) as usize));
                    out.extend_from_slice(digits);
                }
            }
        } else {
            out.push(digits[0]);
            if n_digits > 1 {
                out.push(b'.');
                out.extend_from_slice(&digits[1..]);
            }
            out.extend_from_slice(if magnitude < 0 { b"e-" } else { b"e+" });
            super::write_i64(out, i64::from(magnitude.abs()));
        }
    }
}

/// Parses the exponent of a printed double.
fn signed(text: &[u8]) -> i32 {
    let text = text.strip_prefix(b"+").unwrap_or(text);
    let exponent = super::parse_i64(text).expect("an exponent is a short integer");
    exponent as i32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn printed(value: f64) -> String {
        let mut out = Vec::new();
        write_f64(&mut out, value);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn doubles_read_as_strtod_reads_them() {
        let table: &[(&str, f64)] = &[
            ("3", 3.0),
            ("3.0e3", 3000.0),
            ("-2.5", -2.5),
            ("+5", 5.0),
            ("5.", 5.0),
            (".5", 0.5),
            ("1E2", 100.0),
            ("007", 7.0),
            ("inf", f64::INFINITY),
            ("+inf", f64::INFINITY),
            ("-Infinity", f64::NEG_INFINITY),
            ("0x10", 16.0),
            ("-0x1p3", -8.0),
            ("0X.8P-1", 0.25),
            ("0x1.fffffffffffff8p0", 2.0),
            ("0x1.00000000000008p0", 1.0),
            ("0x1.000000000000080000000000000000000000001p0", 1.0 + f64::EPSILON),
            ("0x1p-1074", 5e-324),
            ("0x1.fffffffffffffp1023", f64::MAX),
            ("1e-320", 1e-320),
            ("0e999999999999", 0.0),
            ("0x0p99999999999", 0.0),
        ];
        for (text, value) in table {
            assert_eq!(parse_f64(text.as_bytes()), Some(*value), "{text}");
        }
        // Whole numbers that are not doubles are rounded to the nearest one, and a tie to the even one.
        for whole in
            [(1 << 53) + 1, (1 << 53) + 3, 1_000_000_000_000_000_003, i64::MAX, i64::MAX - 511, i64::MIN]
        {
            let text = whole.to_string();
            assert_eq!(parse_f64(text.as_bytes()), text.parse().ok(), "{text}");
        }
        assert!(parse_f64(b"-0").unwrap().is_sign_negative());
    }

    #[test]
    fn what_is_no_double_is_refused() {
        let refused = [
            "",
            " 1",
            "1 ",
            ".",
            "e5",
            "1e",
            "1e+",
            "nan",
            "NaN",
            "-nan",
            "0x",
            "0x.",
            "0x1p",
            "1e400",
            "-1e400",
            "1e-400",
            "0x1p1024",
            "0x1p-1076",
            "1_0",
            "1,5",
            "infinit",
            "--1",
            "\u{661}",
            "0x1g",
        ];
        for text in refused {
            assert_eq!(parse_f64(text.as_bytes()), None, "{text:?}");
        }
        assert_eq!(parse_f64(b"1\0"), None);
        assert_eq!(parse_f64(b"\xff"), None);
    }

    #[test]
    fn doubles_print_their_shortest_digits() {
        let table: &[(f64, &str)] = &[
            (3.0, "3"),
            (0.1, "0.1"),
            (-0.25, "-0.25"),
            (0.1 + 0.2, "0.30000000000000004"),
            (123456789.125, "123456789.125"),
            (1e16, "10000000000000000"),
            (1e17, "100000000000000000"),
            (-1e17, "-100000000000000000"),
            (1e20, "1e+20"),
            (1.5e21, "1.5e+21"),
            (1.2345678901234567e20, "123456789012345670000"),
            (1.2345678901234567e25, "1.2345678901234566e+25"),
            (1e-5, "0.00001"),
            (1e-7, "1e-7"),
            (1.5e-9, "1.5e-9"),
            (0.000123456789, "1.23456789e-4"),
            (0.00123456789, "0.00123456789"),
            (12345.678901234, "1.2345678901234e+4"),
            (1234.5678901234, "1234.5678901234"),
            (5e-324, "5e-324"),
            (f64::MAX, "1.7976931348623157e+308"),
            (0.0, "0"),
            (-0.0, "-0"),
            (f64::INFINITY, "inf"),
            (f64::NEG_INFINITY, "-inf"),
            (f64::NAN, "nan"),
        ];
        for (value, text) in table {
            assert_eq!(&printed(*value), text);
            assert_eq!(format_f64(*value, <[u8]>::to_vec), text.as_bytes());
        }
    }

    #[test]
    fn every_printed_double_reads_back() {
        let mut bits = 0x9e37_79b9_7f4a_7c15u64;
        for _ in 0..200_000 {
            bits = bits.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let value = f64::from_bits(bits ^ bits >> 31);
            if value.is_finite() {
                assert_eq!(parse_f64(printed(value).as_bytes()).map(f64::to_bits), Some(value.to_bits()));
            }
        }
    }
}
