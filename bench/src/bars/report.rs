//! What was measured, and how it is told: rows of a table, and the same as JSON.

use std::fmt;

use serde::Serialize;

/// What a figure counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum Unit {
    /// Microseconds.
    #[serde(rename = "us")]
    Micros,
    /// Milliseconds.
    #[serde(rename = "ms")]
    Millis,
    /// Seconds.
    #[serde(rename = "s")]
    Seconds,
    /// 1,048,576 bytes.
    MiB,
    /// Bytes.
    #[serde(rename = "B")]
    Bytes,
    /// Events a second.
    #[serde(rename = "/s")]
    PerSecond,
    /// One figure over another of the same server.
    #[serde(rename = "x")]
    Times,
}

impl fmt::Display for Unit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Micros => "µs",
            Self::Millis => "ms",
            Self::Seconds => "s",
            Self::MiB => "MiB",
            Self::Bytes => "B",
            Self::PerSecond => "/s",
            Self::Times => "x",
        })
    }
}

/// What a figure is to reach. All that is given must hold.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Target {
    /// Bound on Braid's own figure.
    pub value_at_most: Option<f64>,
    /// Bound on Braid's figure over the other's.
    pub ratio_at_most: Option<f64>,
}

impl Target {
    /// Nothing to reach: the figure is there to be read.
    pub const NONE: Self = Self { value_at_most: None, ratio_at_most: None };

    /// Bounds Braid's own figure.
    pub const fn value(at_most: f64) -> Self {
        Self { value_at_most: Some(at_most), ratio_at_most: None }
    }

    /// Bounds Braid's figure over the other's.
    pub const fn ratio(at_most: f64) -> Self {
        Self { value_at_most: None, ratio_at_most: Some(at_most) }
    }

    /// Bounds the ratio as well.
    pub const fn and_ratio(self, at_most: f64) -> Self {
        Self { ratio_at_most: Some(at_most), ..self }
    }

    fn verdict(self, value: f64, ratio: f64) -> Verdict {
        let bounds = [(self.value_at_most, value), (self.ratio_at_most, ratio)];
        if bounds.iter().all(|(bound, _)| bound.is_none()) {
            return Verdict::None;
        }
        // Written so that a figure that is no number misses.
        let met = bounds.iter().all(|&(bound, figure)| bound.is_none_or(|bound| figure <= bound));
        if met { Verdict::Met } else { Verdict::Missed }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = self.value_at_most.map(|bound| format!("≤ {bound}"));
        let ratio = self.ratio_at_most.map(|bound| format!("ratio ≤ {bound}"));
        let parts: Vec<_> = value.into_iter().chain(ratio).collect();
        f.pad(&parts.join(", "))
    }
}

/// Whether a target was reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// It was.
    Met,
    /// It was not.
    Missed,
    /// There is none.
    None,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Met => "met",
            Self::Missed => "MISSED",
            Self::None => "",
        })
    }
}

/// One figure, as both sides gave it in every round.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Measure {
    /// What the figure is of.
    pub name: String,
    /// What it counts.
    pub unit: Unit,
    /// Braid's figures, one a round.
    pub braid: Vec<f64>,
    /// The other's.
    pub redis: Vec<f64>,
    /// What is to be reached.
    pub target: Target,
}

impl Measure {
    /// Begins a figure that has no round yet.
    pub fn new(name: impl Into<String>, unit: Unit, target: Target) -> Self {
        Self { name: name.into(), unit, braid: Vec::new(), redis: Vec::new(), target }
    }

    /// Adds one round.
    pub fn push(&mut self, [braid, redis]: [f64; 2]) {
        self.braid.push(braid);
        self.redis.push(redis);
    }

    /// Sums the rounds up.
    pub fn summary(&self) -> Summary {
        let ratios: Vec<f64> =
            self.braid.iter().zip(&self.redis).map(|(braid, redis)| braid / redis).collect();
        let (braid, ratio) = (median(&self.braid), median(&ratios));
        Summary {
            braid,
            redis: median(&self.redis),
            ratio,
            ratio_min: ratios.iter().copied().fold(f64::NAN, f64::min),
            ratio_max: ratios.iter().copied().fold(f64::NAN, f64::max),
            verdict: self.target.verdict(braid, ratio),
        }
    }
}

/// The rounds of a figure, summed up.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Summary {
    /// Median of Braid's figures.
    pub braid: f64,
    /// Median of the other's.
    pub redis: f64,
    /// Median of the rounds' ratios, which is not the ratio of the medians.
    pub ratio: f64,
    /// Smallest ratio of a round.
    pub ratio_min: f64,
    /// Largest ratio of a round.
    pub ratio_max: f64,
    /// Whether the target is reached by the medians.
    pub verdict: Verdict,
}

/// The middle figure, or the mean of the two in the middle; not a number when there is none.
pub fn median(figures: &[f64]) -> f64 {
    let mut sorted = figures.to_vec();
    sorted.sort_by(f64::total_cmp);
    match (sorted.len() / 2, sorted.len() % 2) {
        (0, 0) => f64::NAN,
        (middle, 0) => f64::midpoint(sorted[middle - 1], sorted[middle]),
        (middle, _) => sorted[middle],
    }
}

/// A bar's outcome.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct BarReport {
    /// The bar's name.
    pub bar: String,
    /// How long it took.
    pub seconds: f64,
    /// What was measured.
    pub measures: Vec<Measure>,
    /// Why it could not be measured, if so.
    pub failed: Option<String>,
}

/// Everything that one comparison found.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// Each program with its `--version`.
    pub programs: Vec<String>,
    /// Cores of the machine.
    pub n_cores: usize,
    /// The machine's load average before the first bar.
    pub load_average: f64,
    /// Braid's `--io-threads`.
    pub n_io_threads: usize,
    /// The bars, in the order of running.
    pub bars: Vec<BarReport>,
}

impl Report {
    /// True when every bar ran and no target was missed.
    pub fn is_met(&self) -> bool {
        self.bars.iter().all(|bar| {
            bar.failed.is_none()
                && bar.measures.iter().all(|measure| measure.summary().verdict != Verdict::Missed)
        })
    }

    /// The report as JSON: every round's figures, and beside each measure its summary.
    pub fn json(&self) -> serde_json::Value {
        let mut report = serde_json::to_value(self).expect("a report has only string keys");
        for (bar, bar_json) in self.bars.iter().zip(elements_of(&mut report, "bars")) {
            for (measure, json) in bar.measures.iter().zip(elements_of(bar_json, "measures")) {
                json["summary"] =
                    serde_json::to_value(measure.summary()).expect("a summary has only string keys");
            }
        }
        report
    }
}

fn elements_of<'a>(
    json: &'a mut serde_json::Value,
    key: &str,
) -> impl Iterator<Item = &'a mut serde_json::Value> {
    json[key].as_array_mut().into_iter().flatten()
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut table = Table::new(["bar", "measure", "braid", "redis", "ratio", "(min..max)", "target", ""]);
        for bar in &self.bars {
            for measure in &bar.measures {
                table.push(cells(&bar.bar, measure));
            }
        }
        write!(f, "{table}")?;
        for bar in &self.bars {
            if let Some(why) = &bar.failed {
                writeln!(f, "{}: not measured: {why}", bar.bar)?;
            }
        }
        if self.load_average > self.n_cores as f64 / 2.0 {
            let Self { load_average, n_cores, .. } = self;
            writeln!(f, "The machine was busy (load {load_average} on {n_cores} cores): expect noise.")?;
        }
        Ok(())
    }
}

fn cells(bar: &str, measure: &Measure) -> [String; N_COLUMNS] {
    let Summary { braid, redis, ratio, ratio_min, ratio_max, verdict } = measure.summary();
    let unit = measure.unit;
    [
        bar.to_owned(),
        measure.name.clone(),
        format!("{} {unit}", figure(braid)),
        format!("{} {unit}", figure(redis)),
        figure(ratio),
        format!("({}..{})", figure(ratio_min), figure(ratio_max)),
        measure.target.to_string(),
        verdict.to_string(),
    ]
}

/// Three significant digits, or all before the point.
pub fn figure(value: f64) -> String {
    let magnitude = if value == 0.0 { 0.0 } else { value.abs().log10().floor() };
    let n_decimals = (2.0 - magnitude).clamp(0.0, 4.0) as usize;
    format!("{value:.n_decimals$}")
}

const N_COLUMNS: usize = 8;

struct Table {
    rows: Vec<[String; N_COLUMNS]>,
}

impl Table {
    fn new(heads: [&str; N_COLUMNS]) -> Self {
        Self { rows: vec![heads.map(str::to_owned)] }
    }

    fn push(&mut self, row: [String; N_COLUMNS]) {
        self.rows.push(row);
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width =
            |column: usize| self.rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
        let widths: [usize; N_COLUMNS] = std::array::from_fn(width);
        for row in &self.rows {
            let padded: Vec<_> =
                row.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}")).collect();
            writeln!(f, "{}", padded.join("  ").trim_end())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_of_odd_even_and_no_figures() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 3.0, 2.0]), 2.5);
        assert_eq!(median(&[7.0]), 7.0);
        assert!(median(&[]).is_nan());
    }

    #[test]
    fn the_ratio_is_taken_round_by_round() {
        let mut measure = Measure::new("cpu", Unit::Micros, Target::ratio(0.6));
        for round in [[1.0, 2.0], [4.0, 4.0], [1.0, 4.0]] {
            measure.push(round);
        }
        let summary = measure.summary();
        assert_eq!((summary.braid, summary.redis), (1.0, 4.0));
        assert_eq!((summary.ratio, summary.ratio_min, summary.ratio_max), (0.5, 0.25, 1.0));
        assert_eq!(summary.verdict, Verdict::Met);
    }

    #[test]
    fn a_target_is_met_when_all_its_bounds_hold() {
        let both = Target::value(10.0).and_ratio(0.1);
        assert_eq!(both.verdict(10.0, 0.1), Verdict::Met);
        assert_eq!(both.verdict(10.1, 0.1), Verdict::Missed);
        assert_eq!(both.verdict(1.0, 0.2), Verdict::Missed);
        assert_eq!(both.verdict(f64::NAN, 0.1), Verdict::Missed);
        assert_eq!(Target::NONE.verdict(1e9, 1e9), Verdict::None);
        assert_eq!(both.to_string(), "≤ 10, ratio ≤ 0.1");
    }

    #[test]
    fn figures_have_three_digits() {
        let figures = [0.0, 0.1234, 1.234, 12.34, 123.4, 12345.6].map(figure);
        assert_eq!(figures, ["0.00", "0.123", "1.23", "12.3", "123", "12346"]);
    }

    #[test]
    fn the_table_shows_what_failed_and_json_keeps_the_rounds() {
        let mut measure = Measure::new("GET", Unit::Micros, Target::NONE);
        measure.push([1.0, 2.0]);
        let bar =
            |failed| BarReport { bar: "cpu".into(), seconds: 1.0, measures: vec![measure.clone()], failed };
        let mut report = Report {
            programs: Vec::new(),
            n_cores: 2,
            load_average: 0.0,
            n_io_threads: 2,
            bars: vec![bar(None)],
        };
        assert!(report.is_met());
        assert!(report.to_string().contains("1.00 µs"), "{report}");
        assert_eq!(report.json()["bars"][0]["measures"][0]["braid"][0], 1.0);
        assert_eq!(report.json()["bars"][0]["measures"][0]["summary"]["ratio"], 0.5);
        report.bars.push(bar(Some("no server".into())));
        assert!(!report.is_met());
        assert!(report.to_string().contains("cpu: not measured: no server"), "{report}");
    }
}
