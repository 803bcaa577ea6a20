//! Numbers as C's `printf` prints them with `%g`.

/// Prints `value` with up to `digits` significant digits, as `%.{digits}g` does.
pub(crate) fn general(value: f64, digits: usize) -> String {
    if !value.is_finite() {
        return special(value);
    }
    let scientific = format!("{:.*e}", digits - 1, value);
    let (mantissa, exponent) = scientific.split_once('e').expect("the format has an exponent");
    let exponent: i32 = exponent.parse().expect("the exponent is an integer");
    if exponent < -4 || exponent >= digits as i32 {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{}e{sign}{:02}", trimmed(mantissa), exponent.abs());
    }
    let decimals = (digits as i32 - 1 - exponent) as usize;
    trimmed(&format!("{value:.decimals$}")).to_owned()
}

fn special(value: f64) -> String {
    let sign = if value.is_sign_negative() { "-" } else { "" };
    format!("{sign}{}", if value.is_nan() { "nan" } else { "inf" })
}

/// The text without zeros at the end of its decimals.
fn trimmed(text: &str) -> &str {
    if !text.contains('.') {
        return text;
    }
    text.trim_end_matches('0').trim_end_matches('.')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_print_as_in_c() {
        for (value, digits, text) in [
            (0.0, 14, "0"),
            (-0.0, 14, "-0"),
            (3.0, 14, "3"),
            (0.1, 17, "0.10000000000000001"),
            (0.1, 14, "0.1"),
            (1e14, 14, "1e+14"),
            (1e15, 17, "1000000000000000"),
            (1e20, 17, "1e+20"),
            (1e-5, 14, "1e-05"),
            (0.0001, 14, "0.0001"),
            (1.5e300, 17, "1.5000000000000001e+300"),
            (99999999999999.9, 14, "1e+14"),
            (f64::INFINITY, 14, "inf"),
            (f64::NEG_INFINITY, 14, "-inf"),
            (f64::NAN, 14, "nan"),
        ] {
            assert_eq!(general(value, digits), text);
        }
    }
}
