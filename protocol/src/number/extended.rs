//! The 80-bit extended float of INCRBYFLOAT, in software.
//!
//! Redis reads the operands of INCRBYFLOAT and HINCRBYFLOAT with `strtold` and adds them as `long double`. It
//! prints the sum with `%.17Lf` and trims trailing zeros. On x86 that is a float with a mantissa of 64 bits,
//! which is why 0.1 + 0.2 prints as 0.3. Other platforms have another `long double`. This type gives the same
//! results on all of them. Reading, adding and printing are exact, then rounded once, half to even.

use super::wide::{Unrounded, Wide, rounds_up};

/// The length from which a text is not an extended float, in bytes.
///
/// Redis copies such texts to a buffer of this size.
const TEXT_BYTES_LIMIT: usize = 5 * 1024;
const PRECISION: u32 = 64;
/// The exponent of the last bit of the smallest value, which is subnormal.
const LEAST_EXPONENT: i64 = -16445;
/// The power of two below which all values are.
const EXPONENT_LIMIT: i64 = 16384;
/// The factor by which `%.17Lf` scales.
const TEN_17: u128 = 100_000_000_000_000_000;

/// A float like the x87 `long double`: sign, 15 exponent bits, 64 mantissa bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LongDouble {
    negative: bool,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// `mantissa × 2^exponent`.
    ///
    /// The mantissa's top bit is set unless the exponent is the least one.
    Finite {
        mantissa: u64,
        exponent: i32,
    },
    Infinite,
    NotANumber,
}

impl LongDouble {
    /// Zero.
    pub const ZERO: LongDouble =
        LongDouble { negative: false, kind: Kind::Finite { mantissa: 0, exponent: LEAST_EXPONENT as i32 } };

    /// Parses the whole of `text` as C's `strtold` does.
    ///
    /// Decimals with or without point and exponent are accepted. So are hexadecimal floats, and `inf` and
    /// `infinity` in any case. The empty text, spaces and `nan` are refused, as are finite texts that
    /// overflow, and texts other than zero that round to zero. Texts of 5120 bytes or more are refused, too.
    pub fn parse(text: &[u8]) -> Option<Self> {
        if text.len() >= TEXT_BYTES_LIMIT {
            return None;
        }
        let (negative, numeral) = Numeral::scan(text)?;
        let unrounded = match numeral {
            Numeral::Infinity => return Some(LongDouble { negative, kind: Kind::Infinite }),
            Numeral::Hexadecimal { unrounded } => unrounded,
            Numeral::Decimal(decimal) => decimal.to_binary()?,
        };
        let value = LongDouble::round(negative, unrounded);
        let lost = value.is_zero() && unrounded.bits != 0;
        (value.is_finite() && !lost).then_some(value)
    }

    /// The exact value of a double.
    pub fn from_f64(value: f64) -> Self {
        let negative = value.is_sign_negative();
        if value.is_nan() {
            return LongDouble { negative, kind: Kind::NotANumber };
        }
        if value.is_infinite() {
            return LongDouble { negative, kind: Kind::Infinite };
        }
        let bits = value.to_bits();
        let (fraction, exponent) = (bits & ((1 << 52) - 1), (bits >> 52 & 0x7ff) as i32);
        // A subnormal double has no leading bit. Its exponent is that of the smallest normal ones.
        let (mantissa, exponent) =
            if exponent == 0 { (fraction, -1074) } else { (fraction | 1 << 52, exponent - 1075) };
        if mantissa == 0 {
            return LongDouble { negative, ..LongDouble::ZERO };
        }
        let shift = mantissa.leading_zeros();
        let kind = Kind::Finite { mantissa: mantissa << shift, exponent: exponent - shift as i32 };
        LongDouble { negative, kind }
    }

    /// Whether the value is neither infinite nor NaN.
    pub fn is_finite(self) -> bool {
        matches!(self.kind, Kind::Finite { .. })
    }

    /// Whether the value is less than another. Zero is not less than its negative, nor the other way round.
    pub fn is_less_than(self, other: Self) -> bool {
        match (self.kind, other.kind) {
            (Kind::Infinite, Kind::Infinite) => self.negative && !other.negative,
            // Both are multiples of the least value, and so is the difference: it is not rounded to zero.
            _ => {
                let difference = self + -other;
                let is_number = difference.kind != Kind::NotANumber;
                is_number && difference.negative && !difference.is_zero()
            }
        }
    }

    /// Appends the value as `%.17Lf` prints it, without trailing zeros.
    ///
    /// Nor does it have a trailing point, or a sign if it prints as zero.
    pub fn write(self, out: &mut Vec<u8>) {
        let (mantissa, exponent) = match self.kind {
            Kind::Finite { mantissa, exponent } => (mantissa, exponent),
            Kind::Infinite => {
                return out.extend_from_slice(if self.negative { b"-inf" } else { b"inf" });
            }
            Kind::NotANumber => return out.extend_from_slice(b"nan"),
        };
        if exponent >= 0 {
            if self.negative {
                out.push(b'-');
            }
            return write_whole(out, mantissa, exponent.unsigned_abs());
        }
        let scaled = scale_to_17_digits(mantissa, exponent.unsigned_abs());
        if scaled == 0 {
            return out.push(b'0');
        }
        if self.negative {
            out.push(b'-');
        }
        // A negative exponent bounds the whole part by the mantissa, or one more if the fraction rounds up.
        let whole = scaled / TEN_17;
        out.extend_from_slice(itoa::Buffer::new().format(whole).as_bytes());
        write_fraction(out, (scaled % TEN_17) as u64);
    }

    fn is_zero(self) -> bool {
        matches!(self.kind, Kind::Finite { mantissa: 0, .. })
    }

    fn round(negative: bool, unrounded: Unrounded) -> Self {
        if unrounded.bits == 0 {
            return LongDouble { negative, ..LongDouble::ZERO };
        }
        let (mantissa, exponent) = unrounded.round(PRECISION, LEAST_EXPONENT);
        if mantissa == 0 {
            return LongDouble { negative, ..LongDouble::ZERO };
        }
        let shift = i64::from(mantissa.leading_zeros()).min(exponent - LEAST_EXPONENT);
        let (mantissa, exponent) = (mantissa << shift, exponent - shift);
        if exponent + i64::from(PRECISION) > EXPONENT_LIMIT {
            return LongDouble { negative, kind: Kind::Infinite };
        }
        LongDouble { negative, kind: Kind::Finite { mantissa, exponent: exponent as i32 } }
    }
}

impl std::ops::Add for LongDouble {
    type Output = LongDouble;

    fn add(self, other: LongDouble) -> LongDouble {
        let (one, two) = match (self.kind, other.kind) {
            (Kind::Finite { mantissa, exponent }, Kind::Finite { mantissa: m, exponent: e }) => {
                ((exponent, mantissa, self.negative), (e, m, other.negative))
            }
            (Kind::NotANumber, _) | (_, Kind::Finite { .. }) => return self,
            (Kind::Infinite, Kind::Infinite) if self.negative != other.negative => {
                return LongDouble { negative: false, kind: Kind::NotANumber };
            }
            _ => return other,
        };
        // Mantissas are normalized or have the least exponent. So the order of (exponent, mantissa) is the
        // order of magnitudes.
        let (high, low) = if (one.0, one.1) >= (two.0, two.1) { (one, two) } else { (two, one) };
        // 62 bits below the mantissa receive shifted bits of the lower one, and two bits above it the carry.
        let high_bits = u128::from(high.1) << 62;
        let low_bits = u128::from(low.1) << 62;
        let distance = high.0.abs_diff(low.0);
        let aligned = low_bits.checked_shr(distance).unwrap_or(0);
        let more = aligned.checked_shl(distance).unwrap_or(0) != low_bits;
        let bits = if high.2 == low.2 { high_bits + aligned } else { high_bits - aligned - u128::from(more) };
        // Equal magnitudes of opposite sign give a positive zero.
        let negative = high.2 && (bits != 0 || low.2);
        LongDouble::round(negative, Unrounded { bits, exponent: i64::from(high.0) - 62, more })
    }
}

impl std::ops::Neg for LongDouble {
    type Output = LongDouble;

    fn neg(self) -> LongDouble {
        LongDouble { negative: !self.negative, ..self }
    }
}

impl From<f64> for LongDouble {
    fn from(value: f64) -> Self {
        let negative = value.is_sign_negative();
        if value.is_nan() {
            return LongDouble { negative: false, kind: Kind::NotANumber };
        }
        if value.is_infinite() {
            return LongDouble { negative, kind: Kind::Infinite };
        }
        let fraction = value.to_bits() & ((1 << 52) - 1);
        let (mantissa, exponent) = match value.to_bits() >> 52 & 0x7ff {
            0 => (fraction, -1074),
            biased => (fraction | 1 << 52, biased as i64 - 1075),
        };
        LongDouble::round(negative, Unrounded { bits: u128::from(mantissa), exponent, more: false })
    }
}

/// Appends `mantissa × 2^shift`.
fn write_whole(out: &mut Vec<u8>, mantissa: u64, shift: u32) {
    if shift <= 64 {
        out.extend_from_slice(itoa::Buffer::new().format(u128::from(mantissa) << shift).as_bytes());
        return;
    }
    let mut whole = Wide::new(mantissa);
    whole.shift_left(u64::from(shift));
    out.extend_from_slice(whole.into_decimal().as_bytes());
}

/// Rounds `mantissa × 10^17 / 2^drop` to an integer. The product has at most 121 bits.
fn scale_to_17_digits(mantissa: u64, drop: u32) -> u128 {
    let scaled = u128::from(mantissa) * TEN_17;
    let kept = scaled.checked_shr(drop).unwrap_or(0);
    let rest = scaled ^ kept.checked_shl(drop).unwrap_or(0);
    kept + u128::from(rounds_up(kept, rest, drop, false))
}

/// Appends the point and the digits of `fraction`, without trailing zeros.
///
/// There are 17 digits before the zeros are removed. Zero appends nothing.
fn write_fraction(out: &mut Vec<u8>, mut fraction: u64) {
    if fraction == 0 {
        return;
    }
    let mut digits = [b'.'; 18];
    for digit in digits[1..].iter_mut().rev() {
        *digit = b'0' + (fraction % 10) as u8;
        fraction /= 10;
    }
    let n_kept = digits.iter().rposition(|&digit| digit != b'0').map_or(0, |last| last + 1);
    out.extend_from_slice(&digits[..n_kept]);
}

/// A number's text, split by the grammar of C's `strtod`.
pub(super) enum Numeral<'a> {
    Infinity,
    Decimal(Decimal<'a>),
    Hexadecimal { unrounded: Unrounded },
}

impl<'a> Numeral<'a> {
    /// Reads the whole of `text`, and returns whether it has a `-`, and the rest.
    pub(super) fn scan(text: &'a [u8]) -> Option<(bool, Self)> {
        let (negative, text) = match text {
            [b'-', rest @ ..] => (true, rest),
            [b'+', rest @ ..] => (false, rest),
            _ => (false, text),
        };
        let numeral = match text {
            [b'0', b'x' | b'X', rest @ ..] => scan_hexadecimal(rest)?,
            _ if text.eq_ignore_ascii_case(b"inf") || text.eq_ignore_ascii_case(b"infinity") => {
                Numeral::Infinity
            }
            _ => {
                let (whole, fraction, exponent) = parts(text, u8::is_ascii_digit, b'e')?;
                Numeral::Decimal(Decimal { whole, fraction, exponent })
            }
        };
        Some((negative, numeral))
    }
}

/// The digits before and after the point, and their power of ten.
pub(super) struct Decimal<'a> {
    whole: &'a [u8],
    fraction: &'a [u8],
    exponent: i64,
}

impl Decimal<'_> {
    /// The binary value.
    ///
    /// `None` if it is far beyond the range of an extended float.
    fn to_binary(&self) -> Option<Unrounded> {
        let mut digits: Vec<u8> =
            self.whole.iter().chain(self.fraction).skip_while(|&&d| d == b'0').copied().collect();
        let mut exponent = self.exponent.saturating_sub(self.fraction.len() as i64);
        while digits.last() == Some(&b'0') {
            digits.pop();
            exponent += 1;
        }
        if digits.is_empty() {
            return Some(Unrounded { bits: 0, exponent: 0, more: false });
        }
        // The largest value has 4933 digits before the point, the smallest 4950 zeros after it.
        let magnitude = exponent.saturating_add(digits.len() as i64);
        if !(-4960..=4940).contains(&magnitude) {
            return None;
        }
        Some(if digits.len() <= 19 && (-18..=18).contains(&exponent) {
            short_to_binary(group(&digits), exponent as i32)
        } else {
            long_to_binary(&digits, exponent)
        })
    }
}

/// Computes `digits × 10^exponent` with 128-bit arithmetic.
///
/// Ten to the eighteenth has 60 bits, so the quotient has 67 or more.
fn short_to_binary(digits: u64, exponent: i32) -> Unrounded {
    let power = 10u128.pow(exponent.unsigned_abs());
    if exponent >= 0 {
        return Unrounded { bits: u128::from(digits) * power, exponent: 0, more: false };
    }
    let shift = u128::from(digits).leading_zeros();
    let dividend = u128::from(digits) << shift;
    Unrounded { bits: dividend / power, exponent: -i64::from(shift), more: dividend % power != 0 }
}

fn long_to_binary(digits: &[u8], exponent: i64) -> Unrounded {
    let mut value = Wide::new(0);
    for chunk in digits.chunks(18) {
        value.multiply_add(10u64.pow(chunk.len() as u32), group(chunk));
    }
    let power = exponent.unsigned_abs() as u32;
    if exponent >= 0 {
        value.multiply_by_power_of_ten(power);
        value.top()
    } else {
        value.quotient(Wide::power_of_ten(power))
    }
}

/// Reads at most 19 digits.
fn group(digits: &[u8]) -> u64 {
    digits.iter().fold(0, |value, digit| value * 10 + u64::from(digit - b'0'))
}

fn scan_hexadecimal<'a>(text: &[u8]) -> Option<Numeral<'a>> {
    let (whole, fraction, exponent) = parts(text, u8::is_ascii_hexdigit, b'p')?;
    let mut unrounded = Unrounded { bits: 0, exponent, more: false };
    for (i, &digit) in whole.iter().chain(fraction).enumerate() {
        let nibble = (digit as char).to_digit(16).expect("the scan admits hexadecimal digits only");
        let after_point = i >= whole.len();
        let full = unrounded.bits >> 124 != 0;
        if full {
            unrounded.more |= nibble != 0;
        } else {
            unrounded.bits = unrounded.bits << 4 | u128::from(nibble);
        }
        unrounded.exponent += 4 * (i64::from(full) - i64::from(after_point));
    }
    if unrounded.bits == 0 {
        unrounded.exponent = 0;
    }
    Some(Numeral::Hexadecimal { unrounded })
}

/// Splits `digits [. digits] [marker [sign] digits]`. The mantissa has at least one digit.
fn parts(text: &[u8], is_digit: fn(&u8) -> bool, marker: u8) -> Option<(&[u8], &[u8], i64)> {
    let (whole, rest) = split_digits(text, is_digit);
    let (fraction, rest) = match rest {
        [b'.', rest @ ..] => split_digits(rest, is_digit),
        _ => (&[][..], rest),
    };
    if whole.is_empty() && fraction.is_empty() {
        return None;
    }
    let exponent = match rest {
        [] => 0,
        [byte, rest @ ..] if byte.eq_ignore_ascii_case(&marker) => scan_exponent(rest)?,
        _ => return None,
    };
    Some((whole, fraction, exponent))
}

/// Parses an exponent.
///
/// Beyond a billion its digits do not matter, because no mantissa is long enough to compensate.
fn scan_exponent(text: &[u8]) -> Option<i64> {
    let (negative, digits) = match text {
        [b'-', rest @ ..] => (true, rest),
        [b'+', rest @ ..] => (false, rest),
        _ => (false, text),
    };
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let magnitude =
        digits.iter().fold(0i64, |value, digit| (value * 10 + i64::from(digit - b'0')).min(1 << 40));
    Some(if negative { -magnitude } else { magnitude })
}

fn split_digits(text: &[u8], is_digit: fn(&u8) -> bool) -> (&[u8], &[u8]) {
    text.split_at(text.iter().position(|byte| !is_digit(byte)).unwrap_or(text.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn printed(value: LongDouble) -> String {
        let mut out = Vec::new();
        value.write(&mut out);
        String::from_utf8(out).unwrap()
    }

    fn parse(text: &str) -> LongDouble {
        LongDouble::parse(text.as_bytes()).unwrap_or_else(|| panic!("{text} is an extended float"))
    }

    #[test]
    fn doubles_are_taken_over_exactly() {
        for value in [0.0, 1.0, -2.5, 0.1, 1e17, f64::MAX, f64::MIN_POSITIVE, 5e-324, -1.7976931348623157e308]
        {
            let written = format!("{value:.1100}");
            assert_eq!(LongDouble::from_f64(value), parse(&written), "{value}");
        }
        assert_eq!(printed(LongDouble::from_f64(13.361389338970184)), "13.36138933897018433");
        assert_eq!(printed(LongDouble::from_f64(-0.0)), "0");
        assert_eq!(printed(LongDouble::from_f64(f64::NEG_INFINITY)), "-inf");
        assert_eq!(printed(LongDouble::from_f64(f64::NAN)), "nan");
    }

    /// Two operands, and the reply of redis-server 7.0 to `SET k <first>`, `INCRBYFLOAT k <second>`.
    const SUMS: &[(&str, &str, &str)] = &[
        ("0.1", "0.2", "0.3"),
        ("3.0e3", "200", "3200"),
        ("5.0e3", "200", "5200"),
        ("10.50", "0.1", "10.6"),
        ("1", "-0.7", "0.3"),
        ("0.1", "-0.1", "0"),
        ("-0", "-0", "0"),
        ("1e20", "0.5", "100000000000000000000"),
        ("9223372036854775807", "1", "9223372036854775808"),
        ("18446744073709551615", "1", "18446744073709551616"),
        ("18446744073709551616", "1", "18446744073709551616"),
        ("1.23456789012345678901234", "0", "1.23456789012345679"),
        ("3.3333333333333333333", "3.3333333333333333333", "6.66666666666666667"),
        ("0.00000000000000001", "0", "0.00000000000000001"),
        ("0.000000000000000005", "0", "0"),
        ("-0.000000000000000001", "0", "0"),
        ("0x10", "0x.8", "16.5"),
        ("0x1p-3", "1", "1.125"),
        ("1e-4940", "1", "1"),
        ("99999999999999999999.5", "0.5", "100000000000000000000"),
        ("100.000000000000000005", "1", "101.00000000000000001"),
        ("1.1", "2.2", "3.3"),
        ("1e17", "0.1", "100000000000000000.1015625"),
        ("-5.", "+.25", "-4.75"),
        ("4.99999999999999999999", "0", "5"),
        ("123456789.123456789", "987654321.987654321", "1111111111.11111110995989293"),
    ];

    #[test]
    fn sums_are_those_of_redis() {
        for (value, increment, sum) in SUMS {
            assert_eq!(printed(parse(value) + parse(increment)), *sum, "{value} + {increment}");
            assert_eq!(printed(parse(increment) + parse(value)), *sum, "{increment} + {value}");
        }
    }

    #[test]
    fn the_largest_and_the_smallest_values_read_and_print() {
        let largest = printed(parse("1.18973149535723176502e4932"));
        assert_eq!(largest.len(), 4933);
        assert!(largest.starts_with("118973149535723176502"), "{largest}");
        assert_eq!(printed(parse(&largest)), largest);
        assert_eq!(printed(parse("1e-4950")), "0");
        assert_eq!(parse("0x1p-16445"), parse("3.6451995318824746025e-4951"));
        assert_eq!(printed(parse("-1e-30")), "0");
        let long = format!("0.{}1", "0".repeat(4000));
        assert_eq!(parse(&long), parse("1e-4001"));
    }

    #[test]
    fn what_is_no_extended_float_is_refused() {
        for text in [
            "",
            " 1",
            "1 ",
            ".",
            "nan",
            "1e",
            "0x",
            "1e5000",
            "-1e5000",
            "1e-5000",
            "0x1p-16447",
            "abc",
            "1e+",
        ] {
            assert_eq!(LongDouble::parse(text.as_bytes()), None, "{text:?}");
        }
        assert_eq!(LongDouble::parse("1".repeat(5120).as_bytes()), None);
        assert_eq!(LongDouble::parse("0".repeat(5119).as_bytes()), Some(LongDouble::ZERO));
    }

    #[test]
    fn values_are_compared() {
        let ascending = [
            "-inf",
            "-1e4932",
            "-2.5",
            "-1e-4940",
            "0",
            "3.6e-4951",
            "1e-4940",
            "2.5",
            "2.6",
            "1e4932",
            "inf",
        ];
        for (at, low) in ascending.iter().enumerate() {
            for (other, high) in ascending.iter().enumerate() {
                assert_eq!(parse(low).is_less_than(parse(high)), at < other, "{low} and {high}");
            }
        }
        assert!(!parse("-0").is_less_than(parse("0")) && !parse("0").is_less_than(parse("-0")));
    }

    #[test]
    fn sums_out_of_range_are_not_finite() {
        let largest = parse("1.18973149535723176502e4932");
        assert!(!(largest + largest).is_finite());
        assert!((largest + parse("1")).is_finite());
        assert!(!(parse("inf") + parse("-inf")).is_finite());
        assert!(!(parse("1") + parse("inf")).is_finite());
        assert_eq!(printed(parse("-inf") + parse("1")), "-inf");
        assert_eq!(printed(parse("inf") + parse("-inf")), "nan");
    }

    #[test]
    fn doubles_convert_exactly() {
        assert_eq!(printed(LongDouble::from(0.1)), "0.10000000000000001");
        assert_eq!(printed(LongDouble::from(-13.361389338970184)), "-13.36138933897018433");
        assert_eq!(printed(LongDouble::from(1e22)), "10000000000000000000000");
        assert_eq!(LongDouble::from(5e-324), parse("0x1p-1074"));
        assert!(!LongDouble::from(f64::INFINITY).is_finite());
        assert!(!LongDouble::from(f64::NAN).is_finite());
    }
}
