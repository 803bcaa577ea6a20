//! A plan, and its measurements.

use std::fmt;

use braid_bench::model::memory::{self, Forecast, MemorySample};
use braid_bench::model::search::Found;
use braid_bench::model::usl;
use serde::Serialize;

use super::capacity::Month;
use crate::report::RunReport;

/// A plan, as it is written.
#[derive(Debug, Serialize)]
pub struct PlanReport {
    /// The name of the schema: `braid-bench/plan`.
    pub schema: &'static str,
    /// Version of the JSON.
    pub schema_version: u32,
    /// The plan in words.
    pub words: Vec<String>,
    /// The rate that one instance takes.
    pub found: Found,
    /// Threads of the measured server, if threads were counted: the count of the highest throughput.
    pub threads: Option<u32>,
    /// Memory by population.
    pub memory: Option<Memory>,
    /// Memory of the run beyond the keys': the connections' buffers, and the run's own writes.
    pub buffers_bytes: Option<u64>,
    /// Throughput by count; `None` where it follows no law.
    pub scaling: Option<Scaling>,
    /// Month by month, today first.
    pub months: Vec<Month>,
    /// Keys in the last month.
    pub keys_at_end: u64,
    /// A run at the lower end of the rate found.
    pub run: RunReport,
}

/// Memory as measured and fitted.
#[derive(Debug, Serialize)]
pub struct Memory {
    /// The measured samples.
    pub samples: Vec<MemorySample>,
    /// The regression.
    pub fit: memory::MemoryFit,
    /// The memory of today's keys.
    pub now: Forecast,
}

/// Throughput as measured and fitted.
#[derive(Debug, Serialize)]
pub struct Scaling {
    /// The kind of count.
    pub counted: Counted,
    /// Counts and requests a second.
    pub points: Vec<(f64, f64)>,
    /// The law.
    pub fit: usl::UslFit,
}

/// The count over which a law was fitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Counted {
    /// The load's connections, on one server.
    Connections,
    /// The server's threads, as its command line says.
    Threads,
}

/// The error for measurements that follow no law.
#[derive(Debug, thiserror::Error)]
#[error("Throughput against {counted} gives no law: {why}")]
pub struct NoLaw {
    /// The kind of count.
    pub counted: Counted,
    /// The reason why the law cannot be fitted.
    pub why: usl::UslError,
}

impl Scaling {
    /// Fits the law to counts and requests a second.
    pub fn fit(counted: Counted, points: Vec<(f64, f64)>) -> Result<Self, NoLaw> {
        match usl::fit(&points) {
            Ok(fit) => Ok(Self { counted, points, fit }),
            Err(why) => Err(NoLaw { counted, why }),
        }
    }
}

impl Counted {
    /// Writes the count with its noun, in words.
    pub fn counting(self, count: u32) -> String {
        let noun = self.to_string();
        if count == 1 { format!("1 {}", noun.trim_end_matches('s')) } else { format!("{count} {noun}") }
    }
}

impl fmt::Display for Counted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Connections => "connections",
            Self::Threads => "threads",
        })
    }
}

/// Returns the server's peak memory during the run beyond its memory before.
pub fn buffers_bytes(run: &RunReport) -> Option<u64> {
    let before = run.server_use.resident_bytes_before?;
    Some(run.server_peak_bytes?.saturating_sub(before))
}
