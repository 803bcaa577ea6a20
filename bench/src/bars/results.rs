//! The results of a comparison, as a table and as JSON.

use std::fmt;

use serde::Serialize;

use crate::bars::measures::{Measure, Summary, Verdict};
use crate::quantity::three_digits;
use crate::table::Table;

/// A bar's outcome.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct BarReport {
    /// The bar's name.
    pub bar: String,
    /// The duration of the bar, in seconds.
    pub seconds: f64,
    /// The measures of the bar.
    pub measures: Vec<Measure>,
    /// The reason why it could not be measured, if it could not.
    pub failed: Option<String>,
}

/// All results of one comparison.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// The output of `--version` of each program.
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
    /// Whether every bar ran and no target was missed.
    pub fn is_met(&self) -> bool {
        self.bars.iter().all(|bar| {
            bar.failed.is_none()
                && bar.measures.iter().all(|measure| measure.summary().verdict != Verdict::Missed)
        })
    }

    /// Returns the report as JSON, with every round's figures and a summary for each measure.
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
        let mut table =
            Table::left(["bar", "measure", "braid", "redis", "ratio", "(min..max)", "target", ""]);
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

fn cells(bar: &str, measure: &Measure) -> [String; 8] {
    let Summary { braid, redis, ratio, ratio_min, ratio_max, verdict, .. } = measure.summary();
    let unit = measure.unit;
    let (ratio, range) = if unit.is_compared() {
        (three_digits(ratio), format!("({}..{})", three_digits(ratio_min), three_digits(ratio_max)))
    } else {
        Default::default()
    };
    [
        bar.to_owned(),
        measure.name.clone(),
        unit.shown(braid),
        unit.shown(redis),
        ratio,
        range,
        measure.target.to_string(),
        verdict.to_string(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bars::measures::{Target, Unit};

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
        let mut lost = Measure::new("lost", Unit::Count, Target::value(0.0).in_each_round());
        lost.push([0.0, 0.0]);
        report.bars[0].measures.push(lost);
        let text = report.to_string();
        let line = text.lines().find(|line| line.contains("lost")).expect("a row for each measure");
        let words: Vec<_> = line.split_whitespace().collect();
        assert_eq!(words.join(" "), "cpu lost 0 0 ≤ 0 in each round met");
        let mut share = Measure::new("share", Unit::Percent, Target::NONE);
        share.push([12.5, 0.0]);
        report.bars[0].measures.push(share);
        let text = report.to_string();
        let line = text.lines().find(|line| line.contains("share")).expect("a row for each measure");
        let words: Vec<_> = line.split_whitespace().collect();
        assert_eq!(words.join(" "), "cpu share 12.5 % 0.00 %");
        report.bars.push(bar(Some("no server".into())));
        assert!(!report.is_met());
        assert!(report.to_string().contains("cpu: not measured: no server"), "{report}");
    }
}
