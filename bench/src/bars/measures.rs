//! Figures of both sides, round by round, and their comparison with the targets.

use std::fmt;

use braid_bench::model::stats;
use serde::Serialize;

use crate::quantity::three_digits;

/// The unit of a figure.
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
    /// A bare number: the ratio of two figures of the same server.
    #[serde(rename = "x")]
    Times,
    /// A number of things. It may be zero, so the two sides are not compared by their ratio.
    #[serde(rename = "")]
    Count,
    /// A share in percent, which may be zero too.
    #[serde(rename = "%")]
    Percent,
}

impl Unit {
    /// Whether the ratio of the two sides is meaningful.
    pub fn is_compared(self) -> bool {
        !matches!(self, Self::Percent | Self::Count)
    }

    /// Writes a figure for people.
    pub fn shown(self, figure: f64) -> String {
        match self {
            Self::Count => figure.to_string(),
            _ => format!("{} {self}", three_digits(figure)),
        }
    }
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
            Self::Count => "",
            Self::Percent => "%",
        })
    }
}

/// The figures of a measure to which its bounds apply.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Judged {
    /// The medians of all rounds.
    #[default]
    Medians,
    /// The figures of each round; the worst decides.
    EachRound,
}

/// The bounds of a figure. All given bounds must hold.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Target {
    /// Bound on Braid's own figure.
    pub value_at_most: Option<f64>,
    /// Bound on Braid's figure over the other side's.
    pub ratio_at_most: Option<f64>,
    /// Bound on Braid's figure minus the other side's, in the figure's own unit.
    pub difference_at_most: Option<f64>,
    /// The figures to which the bounds apply.
    pub judged: Judged,
}

impl Target {
    /// No target: the figure is only shown.
    pub const NONE: Self =
        Self { value_at_most: None, ratio_at_most: None, difference_at_most: None, judged: Judged::Medians };

    /// Bounds Braid's own figure.
    pub const fn value(at_most: f64) -> Self {
        Self { value_at_most: Some(at_most), ..Self::NONE }
    }

    /// Bounds Braid's figure over the other side's.
    pub const fn ratio(at_most: f64) -> Self {
        Self { ratio_at_most: Some(at_most), ..Self::NONE }
    }

    /// Bounds Braid's figure minus the other side's.
    pub const fn difference(at_most: f64) -> Self {
        Self { difference_at_most: Some(at_most), ..Self::NONE }
    }

    /// Bounds the ratio as well.
    pub const fn and_ratio(self, at_most: f64) -> Self {
        Self { ratio_at_most: Some(at_most), ..self }
    }

    /// Bounds every round instead of the medians.
    pub const fn in_each_round(self) -> Self {
        Self { judged: Judged::EachRound, ..self }
    }

    fn has_bounds(self) -> bool {
        self.value_at_most.is_some() || self.ratio_at_most.is_some() || self.difference_at_most.is_some()
    }

    /// Whether a figure, its ratio and its difference are within the bounds.
    ///
    /// A figure that is no number is not.
    fn holds(self, value: f64, ratio: f64, difference: f64) -> bool {
        let within = |bound: Option<f64>, figure: f64| bound.is_none_or(|bound| figure <= bound);
        within(self.value_at_most, value)
            && within(self.ratio_at_most, ratio)
            && within(self.difference_at_most, difference)
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = self.value_at_most.map(|bound| format!("≤ {bound}"));
        let ratio = self.ratio_at_most.map(|bound| format!("ratio ≤ {bound}"));
        let difference = self.difference_at_most.map(|bound| format!("difference ≤ {bound}"));
        let parts: Vec<_> = value.into_iter().chain(ratio).chain(difference).collect();
        let each = if self.has_bounds() && self.judged == Judged::EachRound { " in each round" } else { "" };
        f.pad(&format!("{}{each}", parts.join(", ")))
    }
}

/// Whether a target was reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// The target was reached.
    Met,
    /// The target was missed.
    Missed,
    /// There is no target.
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

/// One figure of both sides, in every round.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Measure {
    /// The name of the figure.
    pub name: String,
    /// The unit of the figure.
    pub unit: Unit,
    /// Braid's figures, one a round.
    pub braid: Vec<f64>,
    /// The other side's figures, one a round.
    pub redis: Vec<f64>,
    /// The target of the figure.
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

    /// Summarizes the rounds.
    pub fn summary(&self) -> Summary {
        let ratios: Vec<f64> = self.rounds().map(|(braid, redis)| braid / redis).collect();
        let differences: Vec<f64> = self.rounds().map(|(braid, redis)| braid - redis).collect();
        let mut summary = Summary {
            braid: middle(&self.braid),
            redis: middle(&self.redis),
            ratio: middle(&ratios),
            ratio_min: ratios.iter().copied().fold(f64::NAN, f64::min),
            ratio_max: ratios.iter().copied().fold(f64::NAN, f64::max),
            difference: middle(&differences),
            verdict: Verdict::None,
        };
        if self.target.has_bounds() {
            summary.verdict = if self.is_met(&summary) { Verdict::Met } else { Verdict::Missed };
        }
        summary
    }

    fn is_met(&self, medians: &Summary) -> bool {
        match self.target.judged {
            Judged::Medians => self.target.holds(medians.braid, medians.ratio, medians.difference),
            Judged::EachRound => {
                let holds = |(braid, redis)| self.target.holds(braid, braid / redis, braid - redis);
                !self.braid.is_empty() && self.rounds().all(holds)
            }
        }
    }

    /// Both figures of each round.
    fn rounds(&self) -> impl Iterator<Item = (f64, f64)> {
        self.braid.iter().copied().zip(self.redis.iter().copied())
    }
}

/// The median; not a number if there is no figure.
fn middle(figures: &[f64]) -> f64 {
    stats::median(figures).unwrap_or(f64::NAN)
}

/// The summary of a figure's rounds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Summary {
    /// Median of Braid's figures.
    pub braid: f64,
    /// Median of the other side's figures.
    pub redis: f64,
    /// Median of the rounds' ratios, which is not the ratio of the medians.
    pub ratio: f64,
    /// Smallest ratio of a round.
    pub ratio_min: f64,
    /// Largest ratio of a round.
    pub ratio_max: f64,
    /// Median of the rounds' differences, Braid's figure minus the other side's.
    pub difference: f64,
    /// Whether the target is reached.
    pub verdict: Verdict,
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let verdict = |target, value, ratio: f64| {
            let mut measure = Measure::new("wait", Unit::Millis, target);
            measure.push([value, value / ratio]);
            measure.summary().verdict
        };
        let both = Target::value(10.0).and_ratio(0.125);
        assert_eq!(verdict(both, 10.0, 0.125), Verdict::Met);
        assert_eq!(verdict(both, 10.1, 0.125), Verdict::Missed);
        assert_eq!(verdict(both, 1.0, 0.25), Verdict::Missed);
        assert_eq!(verdict(both, f64::NAN, 0.125), Verdict::Missed);
        assert_eq!(verdict(Target::NONE, 1e9, 1e9), Verdict::None);
        assert_eq!(both.to_string(), "≤ 10, ratio ≤ 0.125");
    }

    #[test]
    fn a_difference_is_bounded_in_the_unit_of_its_figure() {
        let verdict = |rounds: &[[f64; 2]]| {
            let mut measure = Measure::new("misses", Unit::Percent, Target::difference(0.25));
            rounds.iter().for_each(|&round| measure.push(round));
            measure.summary().verdict
        };
        assert_eq!(verdict(&[[20.25, 20.0]]), Verdict::Met);
        assert_eq!(verdict(&[[20.5, 20.0]]), Verdict::Missed);
        assert_eq!(verdict(&[[20.5, 20.0], [0.0, 9.0], [0.0, 0.0]]), Verdict::Met);
        assert_eq!(verdict(&[]), Verdict::Missed);
        assert_eq!(Target::difference(0.25).to_string(), "difference ≤ 0.25");
    }

    #[test]
    fn one_bad_round_misses_a_target_of_each_round() {
        let verdict = |target, rounds: &[[f64; 2]]| {
            let mut measure = Measure::new("wait", Unit::Millis, target);
            rounds.iter().for_each(|&round| measure.push(round));
            measure.summary().verdict
        };
        let rounds = [[1.0, 4.0], [1.0, 4.0], [2.0, 4.0], [1.0, 4.0], [1.0, 4.0]];
        let target = Target::ratio(0.333);
        assert_eq!(verdict(target, &rounds), Verdict::Met);
        assert_eq!(verdict(target.in_each_round(), &rounds), Verdict::Missed);
        assert_eq!(verdict(target.in_each_round(), &rounds[..2]), Verdict::Met);
        assert_eq!(verdict(target.in_each_round(), &[[0.0, 0.0]]), Verdict::Missed);
        assert_eq!(verdict(target.in_each_round(), &[]), Verdict::Missed);
        assert_eq!(target.in_each_round().to_string(), "ratio ≤ 0.333 in each round");
    }
}
