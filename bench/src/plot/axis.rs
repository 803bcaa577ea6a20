//! The conversion of values to places, and the ticks of an axis.

use super::{Axis, AxisUnit, Scale, byte_unit, digits};

/// A line of the grid, with or without a label.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Tick {
    pub value: f64,
    /// The label; empty for a minor tick.
    pub label: String,
}

/// Whether an axis extends to the next round value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    Rounded,
    Exact,
}

/// The values that an axis shows, their ticks and their places.
#[derive(Debug, Clone)]
pub(super) struct Projection {
    pub ticks: Vec<Tick>,
    scale: Scale,
    /// The ends, in units of the scale.
    domain: (f64, f64),
    range: (f64, f64),
}

impl Projection {
    /// Takes the domain from the values that must be shown.
    ///
    /// An axis without values shows 0 to 1, or 1 to 10.
    pub fn new(axis: &Axis, values: &[f64], end: End) -> Self {
        let shown = values.iter().copied().filter(|&value| is_shown(axis.scale, value));
        let (low, high) =
            shown.fold((f64::INFINITY, 0.0_f64), |(low, high), value| (low.min(value), high.max(value)));
        let (low, high, ticks) = match axis.scale {
            Scale::Linear => linear(axis.unit, high, end),
            Scale::Log if low.is_finite() => log(axis.unit, low, high, end),
            Scale::Log => log(axis.unit, 1.0, 10.0, end),
            Scale::Percentile => percentiles(high),
        };
        let domain = (transform(axis.scale, low), transform(axis.scale, high));
        Self { ticks, scale: axis.scale, domain, range: (0.0, 1.0) }
    }

    /// Puts the ends of the domain at these places.
    pub fn between(self, first: f64, last: f64) -> Self {
        Self { range: (first, last), ..self }
    }

    /// Drops the labels that would overlap the one before.
    pub fn thinned(mut self, letter: f64) -> Self {
        let mut free = f64::NEG_INFINITY;
        for place in 0..self.ticks.len() {
            let center = self.place(self.ticks[place].value);
            let label = &mut self.ticks[place].label;
            let half = label.chars().count() as f64 * letter / 2.0;
            if half > 0.0 && center - half < free {
                label.clear();
            } else if half > 0.0 {
                free = center + half + letter;
            }
        }
        self
    }

    /// Whether a value has a place.
    pub fn shows(&self, value: f64) -> bool {
        let place = transform(self.scale, value);
        is_shown(self.scale, value) && place >= self.domain.0 - 1e-9 && place <= self.domain.1 + 1e-9
    }

    /// The place of a value. For a value that is not shown, it lies beyond the ends.
    pub fn place(&self, value: f64) -> f64 {
        let share = (transform(self.scale, value) - self.domain.0) / (self.domain.1 - self.domain.0);
        let share = if share.is_nan() { 0.0 } else { share.clamp(-10.0, 10.0) };
        self.range.0 + share * (self.range.1 - self.range.0)
    }
}

fn is_shown(scale: Scale, value: f64) -> bool {
    value.is_finite()
        && match scale {
            Scale::Linear => value >= 0.0,
            Scale::Log => value > 0.0,
            Scale::Percentile => (0.0..100.0).contains(&value),
        }
}

fn transform(scale: Scale, value: f64) -> f64 {
    match scale {
        Scale::Linear => value,
        Scale::Log => value.log10(),
        Scale::Percentile => -(1.0 - value / 100.0).log10(),
    }
}

fn linear(unit: AxisUnit, high: f64, end: End) -> (f64, f64, Vec<Tick>) {
    let high = if high > 0.0 { high } else { 1.0 };
    // Bytes are round in their own unit, not in thousands.
    let divisor = if unit == AxisUnit::Bytes { byte_unit(high).0 } else { 1.0 };
    // Labels below each other leave room for fewer steps than labels beside each other.
    let n_most = if end == End::Rounded { 4.5 } else { 6.0 };
    let step = nice(high / divisor / n_most) * divisor;
    let n_steps = match end {
        End::Rounded => (high / step - 1e-9).ceil(),
        End::Exact => (high / step + 1e-9).floor(),
    };
    let end = if end == End::Rounded { n_steps * step } else { high };
    let ticks = (0..=n_steps as usize)
        .map(|place| place as f64 * step)
        .map(|value| Tick {
            value,
            label: if value == 0.0 { "0".to_owned() } else { label(unit, value, end) },
        })
        .collect();
    (0.0, end, ticks)
}

/// Writes a label. Labels of one axis share a unit: 0.5 M beside 1 M, not 500 k.
fn label(unit: AxisUnit, value: f64, high: f64) -> String {
    let (divisor, suffix) = match unit {
        AxisUnit::Bytes => {
            let (divisor, name) = byte_unit(high);
            return format!("{} {name}", digits(value / divisor));
        }
        AxisUnit::Count if high >= 1e9 => (1e9, " G"),
        AxisUnit::Count if high >= 1e6 => (1e6, " M"),
        AxisUnit::Count if high >= 1e4 => (1e3, " k"),
        AxisUnit::Micros if high >= 2e6 => (1e6, " s"),
        AxisUnit::Micros if high >= 2e3 => (1e3, " ms"),
        AxisUnit::Count | AxisUnit::Micros | AxisUnit::Seconds | AxisUnit::Percent => {
            return unit.format(value);
        }
    };
    format!("{}{suffix}", digits(value / divisor))
}

/// The least of 1, 2 and 5 times a power of ten not below `step`.
fn nice(step: f64) -> f64 {
    let power = 10.0_f64.powf(step.log10().floor());
    [1.0, 2.0, 5.0, 10.0]
        .map(|digit| digit * power)
        .into_iter()
        .find(|&nice| nice >= step * 0.999)
        .unwrap_or(step)
}

fn log(unit: AxisUnit, low: f64, high: f64, end: End) -> (f64, f64, Vec<Tick>) {
    let round: Vec<f64> =
        (-12..=24).flat_map(|power| [1.0, 2.0, 5.0].map(|digit| digit * 10.0_f64.powi(power))).collect();
    let below = || round.iter().copied().rfind(|&value| value <= low * 1.001).unwrap_or(low);
    let above = || round.iter().copied().find(|&value| value >= high * 0.999).unwrap_or(high);
    let (low, high) = match end {
        End::Rounded if below() < above() => (below(), above()),
        End::Exact if low < high => (low, high),
        // A single value is centred in a decade.
        End::Rounded | End::Exact => (low / 3.2, high * 3.2),
    };
    let decades = (high / low).log10();
    let inside = |value: &f64| *value >= low * 0.999 && *value <= high * 1.001;
    let ticks = if decades < 0.7 {
        // The range is less than a factor of five, so even steps are clearer than powers.
        let step = nice((high - low) / 4.0);
        let first = (low / step - 1e-9).ceil() as u64;
        let values = (first..).map(|place| place as f64 * step).take_while(inside);
        values.map(|value| Tick { value, label: unit.format(value) }).collect()
    } else {
        let every = (decades / 6.0).ceil().max(1.0) as i32;
        (-12..=24)
            .flat_map(|power| (1..10).map(move |digit| (power, digit)))
            .map(|(power, digit)| (power, digit, f64::from(digit) * 10.0_f64.powi(power)))
            .filter(|(_, digit, value)| inside(value) && (*digit == 1 || decades <= 4.5))
            .map(|(power, digit, value)| {
                let is_labelled =
                    (digit == 1 && power % every == 0) || (decades < 2.0 && [2, 5].contains(&digit));
                Tick { value, label: if is_labelled { unit.format(value) } else { String::new() } }
            })
            .collect()
    };
    (low, high, ticks)
}

fn percentiles(high: f64) -> (f64, f64, Vec<Tick>) {
    const LABELLED: [f64; 7] = [50.0, 90.0, 99.0, 99.9, 99.99, 99.999, 99.9999];
    let high = if high > 0.0 { high } else { 99.0 };
    let shown = LABELLED.into_iter().filter(|&percentile| percentile <= high);
    let written = |percentile: f64| format!("p{percentile}");
    (0.0, high, shown.map(|value| Tick { value, label: written(value) }).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(axis: &Axis, values: &[f64], end: End) -> Vec<String> {
        let ticks = Projection::new(axis, values, end).ticks.into_iter();
        ticks.map(|tick| tick.label).filter(|label| !label.is_empty()).collect()
    }

    #[test]
    fn linear_ticks_are_round_in_the_unit_of_the_axis() {
        let rate = Axis::linear("", AxisUnit::Count);
        assert_eq!(labels(&rate, &[930_000.0], End::Rounded), ["0", "0.5 M", "1 M"]);
        assert_eq!(labels(&rate, &[1.4e6], End::Rounded), ["0", "0.5 M", "1 M", "1.5 M"]);
        assert_eq!(labels(&rate, &[4.2e6], End::Rounded), ["0", "1 M", "2 M", "3 M", "4 M", "5 M"]);
        assert_eq!(labels(&rate, &[4.2e6], End::Exact), ["0", "1 M", "2 M", "3 M", "4 M"]);
        let memory = Axis::linear("", AxisUnit::Bytes);
        let mib = 1024.0 * 1024.0;
        assert_eq!(
            labels(&memory, &[350.0 * mib], End::Rounded),
            ["0", "100 MiB", "200 MiB", "300 MiB", "400 MiB"]
        );
        let time = Axis::linear("", AxisUnit::Micros);
        assert_eq!(labels(&time, &[3100.0], End::Rounded), ["0", "1 ms", "2 ms", "3 ms", "4 ms"]);
    }

    #[test]
    fn logarithmic_ticks_are_decades_or_finer_where_those_are_few() {
        let time = Axis::log("", AxisUnit::Micros);
        assert_eq!(labels(&time, &[60.0, 80_000.0], End::Rounded), ["100 µs", "1 ms", "10 ms", "100 ms"]);
        assert_eq!(
            labels(&time, &[60.0, 900.0], End::Rounded),
            ["50 µs", "100 µs", "200 µs", "500 µs", "1 ms"]
        );
        assert_eq!(labels(&time, &[110.0, 180.0], End::Rounded), ["100 µs", "150 µs", "200 µs"]);
        assert_eq!(labels(&time, &[0.0, -3.0], End::Rounded), ["1 µs", "2 µs", "5 µs", "10 µs"]);
        assert!(labels(&time, &[1e-6, 1e15], End::Rounded).len() <= 7);
    }

    #[test]
    fn percentiles_are_nines() {
        let axis = Axis::percentiles("");
        assert_eq!(labels(&axis, &[0.0, 99.95, 100.0], End::Exact), ["p50", "p90", "p99", "p99.9"]);
        let projection = Projection::new(&axis, &[0.0, 99.9], End::Exact).between(0.0, 300.0);
        assert!((projection.place(99.0) - 200.0).abs() < 1e-6 && !projection.shows(100.0));
    }

    #[test]
    fn labels_never_touch() {
        let projection = Projection::new(&Axis::percentiles(""), &[0.0, 99.999], End::Exact);
        let projection = projection.between(0.0, 200.0).thinned(9.0);
        let labelled: Vec<&Tick> = projection.ticks.iter().filter(|tick| !tick.label.is_empty()).collect();
        assert!(labelled.len() >= 3);
        for pair in labelled.windows(2) {
            let room = projection.place(pair[1].value) - projection.place(pair[0].value);
            assert!(room > 9.0 * (pair[0].label.len() + pair[1].label.len()) as f64 / 2.0);
        }
    }

    #[test]
    fn one_value_has_a_place_inside() {
        for axis in [Axis::log("", AxisUnit::Count), Axis::linear("", AxisUnit::Count)] {
            for value in [1.0, 1234.5, 1e9] {
                let projection = Projection::new(&axis, &[value], End::Rounded);
                assert!(projection.shows(value) && (0.0..=1.0).contains(&projection.place(value)));
            }
        }
    }
}
