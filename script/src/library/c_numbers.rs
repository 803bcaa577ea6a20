//! Numbers as C reads, prints and converts them.

/// Returns `value` without its fraction.
///
/// A value that does not fit, or NaN, becomes the smallest integer, as on x86-64.
pub(super) fn truncate(value: f64) -> i64 {
    const LIMIT: f64 = 9_223_372_036_854_775_808.0;
    if (-LIMIT..LIMIT).contains(&value) { value as i64 } else { i64::MIN }
}

/// Returns `value` without its fraction, like [`truncate`], in 32 bits.
pub(super) fn truncate_32(value: f64) -> i32 {
    const LIMIT: f64 = 2_147_483_648.0;
    if value > -LIMIT - 1.0 && value < LIMIT { value as i32 } else { i32::MIN }
}

/// Appends `value` with at most `precision` significant digits, as C's `%.*g` does.
pub(super) fn write_general(out: &mut Vec<u8>, value: f64, precision: usize) {
    if !write_integer(out, value, precision) {
        write_rounded(out, value, precision);
    }
}

/// Appends a whole number with at most `precision` digits. Returns false for any other.
fn write_integer(out: &mut Vec<u8>, value: f64, precision: usize) -> bool {
    const POWERS: [u64; 15] = {
        let mut powers = [1; 15];
        let mut at = 1;
        while at < 15 {
            powers[at] = powers[at - 1] * 10;
            at += 1;
        }
        powers
    };
    let whole = value as i64;
    let fits =
        whole.unsigned_abs() < POWERS[precision.min(14)] && (whole as f64).to_bits() == value.to_bits();
    if fits {
        braid_protocol::number::write_i64(out, whole);
    }
    fits
}

fn write_rounded(out: &mut Vec<u8>, value: f64, precision: usize) {
    if value.is_sign_negative() {
        out.push(b'-');
    }
    if value.is_nan() {
        return out.extend_from_slice(b"nan");
    }
    if value.is_infinite() {
        return out.extend_from_slice(b"inf");
    }
    let scientific = format!("{:.*e}", precision - 1, value.abs());
    let (digits, exponent) = scientific.split_once('e').expect("the format has an exponent");
    let exponent: i32 = exponent.parse().expect("the exponent is a number");
    let digits: Vec<u8> = digits.bytes().filter(|byte| *byte != b'.').collect();
    let used = digits.iter().rposition(|digit| *digit != b'0').map_or(1, |last| last + 1);
    write_digits(out, &digits[..used], exponent, precision);
}

/// Appends `0.d₁d₂d₃…` times ten to the power of `exponent + 1`.
///
/// It uses the shorter of C's two forms.
fn write_digits(out: &mut Vec<u8>, digits: &[u8], exponent: i32, precision: usize) {
    if exponent < -4 || exponent >= precision as i32 {
        out.push(digits[0]);
        write_fraction(out, &digits[1..]);
        out.extend_from_slice(
            format!("e{}{:02}", if exponent < 0 { '-' } else { '+' }, exponent.abs()).as_bytes(),
        );
    } else if exponent < 0 {
        out.extend_from_slice(b"0.");
        out.resize(out.len() + (-exponent - 1) as usize, b'0');
        out.extend_from_slice(digits);
    } else {
        let whole = exponent as usize + 1;
        out.extend_from_slice(&digits[..whole.min(digits.len())]);
        out.resize(out.len() + whole.saturating_sub(digits.len()), b'0');
        write_fraction(out, digits.get(whole..).unwrap_or_default());
    }
}

fn write_fraction(out: &mut Vec<u8>, digits: &[u8]) {
    if !digits.is_empty() {
        out.push(b'.');
        out.extend_from_slice(digits);
    }
}

/// Reads a number at the start of `text` as C's `strtod` does.
///
/// C also reads infinity, NaN and hexadecimal digits. Returns the number with its length, or `None` if there
/// is no number. No space is skipped.
pub(super) fn read_prefix(text: &[u8]) -> Option<(f64, usize)> {
    let sign_length = usize::from(matches!(text.first(), Some(b'+' | b'-')));
    let unsigned = &text[sign_length..];
    let (magnitude, length) = read_hexadecimal(unsigned)
        .or_else(|| read_decimal(unsigned))
        .or_else(|| read_infinity(unsigned))
        .or_else(|| read_nan(unsigned))?;
    let value = if text[0] == b'-' { -magnitude } else { magnitude };
    Some((value, sign_length + length))
}

fn count_digits(text: &[u8]) -> usize {
    text.iter().take_while(|byte| byte.is_ascii_digit()).count()
}

fn read_decimal(text: &[u8]) -> Option<(f64, usize)> {
    let whole = count_digits(text);
    let mut length = whole;
    if text.get(whole) == Some(&b'.') {
        let fraction = count_digits(&text[whole + 1..]);
        if whole + fraction == 0 {
            return None;
        }
        length += 1 + fraction;
    }
    if length == 0 {
        return None;
    }
    length += exponent_length(&text[length..], b'e');
    let digits = std::str::from_utf8(&text[..length]).expect("digits, a point and an exponent are ASCII");
    Some((digits.parse().expect("it was checked to be a number"), length))
}

/// Returns the length of an exponent at the start of `text`.
///
/// It is 0 if there are no digits.
fn exponent_length(text: &[u8], letter: u8) -> usize {
    if text.first().map(u8::to_ascii_lowercase) != Some(letter) {
        return 0;
    }
    let sign = usize::from(matches!(text.get(1), Some(b'+' | b'-')));
    match count_digits(&text[1 + sign..]) {
        0 => 0,
        digits => 1 + sign + digits,
    }
}

fn starts_with_word(text: &[u8], word: &[u8]) -> bool {
    text.get(..word.len()).is_some_and(|start| start.eq_ignore_ascii_case(word))
}

fn read_infinity(text: &[u8]) -> Option<(f64, usize)> {
    let words: [&[u8]; 2] = [b"infinity", b"inf"];
    let word = words.into_iter().find(|word| starts_with_word(text, word))?;
    Some((f64::INFINITY, word.len()))
}

/// Reads `nan` or `nan(…)`, where letters, digits and underscores may stand in the parentheses.
fn read_nan(text: &[u8]) -> Option<(f64, usize)> {
    if !starts_with_word(text, b"nan") {
        return None;
    }
    let payload = match text.get(3) {
        Some(b'(') => {
            text[4..].iter().take_while(|byte| byte.is_ascii_alphanumeric() || **byte == b'_').count()
        }
        _ => return Some((f64::NAN, 3)),
    };
    let closed = text.get(4 + payload) == Some(&b')');
    Some((f64::NAN, if closed { 5 + payload } else { 3 }))
}

fn read_hexadecimal(text: &[u8]) -> Option<(f64, usize)> {
    if !starts_with_word(text, b"0x") {
        return None;
    }
    let mut mantissa = Mantissa::default();
    let mut at = 2 + mantissa.read(&text[2..], 0);
    if text.get(at) == Some(&b'.') {
        at += 1 + mantissa.read(&text[at + 1..], 4);
    }
    if mantissa.n_digits == 0 {
        return None;
    }
    let exponent_bytes = exponent_length(&text[at..], b'p');
    let exponent = read_exponent(&text[at..at + exponent_bytes]);
    Some((mantissa.scale(exponent), at + exponent_bytes))
}

/// Returns the number in `p+12`, limited to a million in either direction.
///
/// Larger exponents result in zero or infinity only.
fn read_exponent(text: &[u8]) -> i64 {
    let magnitude = text
        .iter()
        .filter(|byte| byte.is_ascii_digit())
        .fold(0, |sum: i64, digit| (sum * 10 + i64::from(digit - b'0')).min(1_000_000));
    if text.get(1) == Some(&b'-') { -magnitude } else { magnitude }
}

/// The digits of a hexadecimal number: up to 64 bits.
///
/// The last bit also stands for all digits that were dropped.
#[derive(Default)]
struct Mantissa {
    bits: u64,
    exponent: i64,
    n_digits: usize,
}

impl Mantissa {
    /// Takes the digits at the start of `text`, and returns their count.
    ///
    /// Each digit divides the number by 2 to the power of `shift`.
    fn read(&mut self, text: &[u8], shift: i64) -> usize {
        let digits = text.iter().map_while(|byte| (*byte as char).to_digit(16));
        let count = digits.map(|digit| self.push(u64::from(digit), shift)).count();
        self.n_digits += count;
        count
    }

    fn push(&mut self, digit: u64, shift: i64) {
        if self.bits >> 60 == 0 {
            self.bits = self.bits << 4 | digit;
            self.exponent -= shift;
        } else {
            self.bits |= u64::from(digit != 0);
            self.exponent += 4 - shift;
        }
    }

    /// Returns the number times 2 to the power of `exponent`.
    ///
    /// It is rounded once: to the nearest, and then to the even one.
    fn scale(self, exponent: i64) -> f64 {
        if self.bits == 0 {
            return 0.0;
        }
        let exponent = self.exponent.saturating_add(exponent);
        let highest = 63 - i64::from(self.bits.leading_zeros()) + exponent;
        // The weight of a double's last place. A double has 53 places, and none below that of the smallest
        // subnormal number.
        let last = (highest - 52).max(-1074);
        let dropped = (last - exponent).clamp(0, 70) as u32;
        let bits = u128::from(self.bits);
        let (whole, rest) = (bits >> dropped, bits & ((1 << dropped) - 1));
        let half = (1 << dropped) >> 1;
        let rounds_up = dropped > 0 && (rest > half || rest == half && whole & 1 == 1);
        power_of_two((whole + u128::from(rounds_up)) as f64, exponent + i64::from(dropped))
    }
}

/// Returns `value` times 2 to the power of `exponent`.
///
/// It is exact if the result has a place for each bit of `value`.
fn power_of_two(value: f64, exponent: i64) -> f64 {
    let exponent = exponent.clamp(-2200, 2200) as i32;
    value * 2f64.powi(exponent / 2) * 2f64.powi(exponent - exponent / 2)
}
