//! A report as a table for people.

use std::fmt::{self, Write};

use braid_bench::model::stats::Estimate;

use super::{Percentiles, RunReport};
use crate::observe::BottleneckKind;

/// Rows of cells, each column as wide as its widest; the first is aligned left, the others right.
#[derive(Debug, Default)]
pub struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// Begins with the heads of the columns.
    pub fn new<S: Into<String>>(heads: impl IntoIterator<Item = S>) -> Self {
        let mut table = Self::default();
        table.push(heads);
        table
    }

    /// Adds a row.
    pub fn push<S: Into<String>>(&mut self, cells: impl IntoIterator<Item = S>) {
        self.rows.push(cells.into_iter().map(Into::into).collect());
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let n_columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| {
            self.rows
                .iter()
                .filter_map(|row| row.get(column))
                .map(|cell| cell.chars().count())
                .max()
                .unwrap_or(0)
        };
        let widths: Vec<_> = (0..n_columns).map(width).collect();
        for row in &self.rows {
            let padded = row.iter().zip(&widths).enumerate().map(|(column, (cell, &width))| match column {
                0 => format!("{cell:width$}"),
                _ => format!("{cell:>width$}"),
            });
            writeln!(f, "{}", padded.collect::<Vec<_>>().join("  ").trim_end())?;
        }
        Ok(())
    }
}

/// A time in the unit that suits it.
pub fn time(micros: f64) -> String {
    match micros {
        _ if micros < 1e3 => format!("{micros:.0} µs"),
        _ if micros < 1e5 => format!("{:.2} ms", micros / 1e3),
        _ if micros < 1e6 => format!("{:.0} ms", micros / 1e3),
        _ => format!("{:.2} s", micros / 1e6),
    }
}

/// A number with its thousands apart.
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

/// An interval of rates; one that nothing bounds above is open.
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

fn row(name: &str, count: String, times: &Percentiles) -> Vec<String> {
    // Where nothing was measured, no time is zero.
    let told = |micros| if times.max > 0.0 { time(micros) } else { String::from("-") };
    let times = [times.mean, times.p50, times.p90, times.p99, times.p99_9, times.max].map(told);
    [name.to_owned(), count].into_iter().chain(times).collect()
}

impl fmt::Display for RunReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { workload, .. } = self;
        let loop_kind = match self.offered_rate {
            None => String::from("closed loop"),
            Some(rate) => format!("open loop, {} a second, {}", thousands(rate), self.arrivals),
        };
        writeln!(
            f,
            "{}: {loop_kind}, {} connections, pipeline {}, {} on {}",
            workload.name, workload.connections, workload.pipeline, self.server_version, self.server
        )?;
        writeln!(f)?;
        let mut table = Table::new(["", "a second", "mean", "p50", "p90", "p99", "p99.9", "max"]);
        if self.commands.len() > 1 {
            for command in &self.commands {
                table.push(row(&command.name, thousands(command.rate), &command.response_time_us));
            }
        }
        table.push(row("response time", thousands(self.achieved_rate), &self.response_time_us));
        table.push(row("service time", String::new(), &self.service_time_us));
        if self.offered_rate.is_some() {
            table.push(row("schedule slip", String::new(), &self.schedule_slip_us));
        }
        if let Some(delivery) = &self.delivery_time_us {
            table.push(row("delivery time", String::new(), delivery));
        }
        writeln!(f, "{table}")?;
        writeln!(f, "{}", self.counts())?;
        writeln!(f, "{}", self.usage())?;
        for (text, n_times) in &self.error_texts {
            writeln!(f, "error {n_times} times: {text}")?;
        }
        if self.shares_cores {
            writeln!(
                f,
                "client and server share cores: each slows the other (--client-cpus, --server-cpus keep them apart)"
            )?;
        }
        if let Some(reason) = &self.client_limit_reason {
            writeln!(f, "CLIENT LIMITED: a lower bound ({reason})")?;
        } else if self.bottleneck.kind != BottleneckKind::None {
            writeln!(f, "limit: {} ({})", self.bottleneck.kind, self.bottleneck.why)?;
        }
        Ok(())
    }
}

impl RunReport {
    fn counts(&self) -> String {
        let mut line = format!("{} sent, {} done", thousands(self.sent as f64), thousands(self.done as f64));
        let rare = [
            (self.nulls, "null replies"),
            (self.conflicts, "conflicts"),
            (self.reconnects, "reconnects"),
            (self.errors, "errors"),
            (self.unanswered, "unanswered"),
            (self.unsent, "unsent"),
        ];
        for (count, what) in rare {
            if count > 0 {
                let _ = write!(line, ", {} {what}", thousands(count as f64));
            }
        }
        line
    }

    fn usage(&self) -> String {
        let mut line = format!("client {:.2} µs of CPU a request", self.client_cpu_us_per_request);
        if let Some(ceiling) = self.client_ceiling_rate {
            let _ = write!(line, ", by itself {} a second", thousands(ceiling));
        }
        let server = &self.server_use;
        if let Some(cores) = server.cpu_cores {
            let _ = write!(line, "; server {cores:.2} cores");
            if let Some(micros) = self.server_cpu_us_per_request {
                let _ = write!(line, ", {micros:.2} µs a request");
            }
        }
        if let Some(bytes_after) = server.resident_bytes_after {
            let _ = write!(line, ", {} resident", bytes(bytes_after as f64));
        }
        line
    }
}

impl fmt::Display for BottleneckKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Client => "the client",
            Self::Evictions => "evictions",
            Self::HotKey => "a hot key",
            Self::OneCore => "one core of the server",
            Self::AllCores => "all cores",
            Self::Network => "the network",
            Self::Memory => "memory",
            Self::RoundTrips => "round trips",
            Self::Unknown => "unknown",
            Self::None => "none",
        })
    }
}

#[cfg(test)]
mod tests {
    use hdrhistogram::Histogram;

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
    fn what_was_not_measured_has_no_times() {
        let mut nanos = Histogram::new(3).expect("three digits are allowed");
        assert_eq!(row("GET", String::from("0"), &Percentiles::of(&nanos))[2..], ["-"; 6]);
        nanos.record(2_000_000).expect("it grows");
        assert_eq!(row("GET", String::from("1"), &Percentiles::of(&nanos))[2..], ["2.00 ms"; 6]);
    }

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let mut table = Table::new(["a", "b"]);
        table.push(["long", "1"]);
        table.push(["x", "µµ"]);
        assert_eq!(table.to_string(), "a      b\nlong   1\nx     µµ\n");
    }
}
