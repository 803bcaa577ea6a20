//! Quantities as people write and read them.

use braid_bench::model::stats::Estimate;

/// A time in the unit that suits it.
pub fn time(micros: f64) -> String {
    match micros {
        _ if micros < 1e3 => format!("{micros:.0} µs"),
        _ if micros < 1e5 => format!("{:.2} ms", micros / 1e3),
        _ if micros < 1e6 => format!("{:.0} ms", micros / 1e3),
        _ => format!("{:.2} s", micros / 1e6),
    }
}

/// A number with a comma between its thousands.
pub fn thousands(number: f64) -> String {
    let digits = format!("{number:.0}");
    let mut apart = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index) % 3 == 0 && digit.is_ascii_digit() {
            apart.push(',');
        }
        apart.push(digit);
    }
    apart
}

/// An interval of rates; without an upper bound it is open.
pub fn interval(rate: Estimate) -> String {
    match rate.high.is_finite() {
        true => format!("{}..{}", thousands(rate.low), thousands(rate.high)),
        false => format!("{} or more", thousands(rate.low)),
    }
}

/// A size in the unit that suits it.
pub fn bytes(bytes: f64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let unit = UNITS.iter().enumerate().rev().find(|(power, _)| bytes >= 1024_f64.powi(*power as i32));
    let (power, unit) = unit.unwrap_or((0, &"B"));
    let value = bytes / 1024_f64.powi(power as i32);
    if power == 0 { format!("{value:.0} {unit}") } else { format!("{value:.1} {unit}") }
}

/// Three significant digits, or all before the point.
pub fn three_digits(value: f64) -> String {
    let magnitude = if value == 0.0 { 0.0 } else { value.abs().log10().floor() };
    let n_decimals = (2.0 - magnitude).clamp(0.0, 4.0) as usize;
    format!("{value:.n_decimals$}")
}

/// Reads `5%` as 0.05.
pub fn percent(text: &str) -> Result<f64, String> {
    let number = text.strip_suffix('%').unwrap_or(text).trim();
    let share = number.parse::<f64>().map_err(|_| format!("{text} is no percentage"))? / 100.0;
    if share >= 0.0 { Ok(share) } else { Err(String::from("it is not negative")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_told_in_units_that_suit_them() {
        assert_eq!(
            [12.0, 1234.0, 123_456.0, 2_500_000.0].map(time),
            ["12 µs", "1.23 ms", "123 ms", "2.50 s"]
        );
        assert_eq!([0.0, 999.0, 1000.0, 1_234_567.0].map(thousands), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!(
            [0.0, 512.0, 2048.0, 3.5 * 1024.0 * 1024.0].map(bytes),
            ["0 B", "512 B", "2.0 KiB", "3.5 MiB"]
        );
    }

    #[test]
    fn figures_have_three_digits() {
        let figures = [0.0, 0.1234, 1.234, 12.34, 123.4, 12345.6].map(three_digits);
        assert_eq!(figures, ["0.00", "0.123", "1.23", "12.3", "123", "12346"]);
    }

    #[test]
    fn percentages_are_read() {
        assert_eq!(percent("5%"), Ok(0.05));
        assert_eq!(percent("0.5"), Ok(0.005));
        assert!(percent("-1%").is_err() && percent("x").is_err());
    }
}
