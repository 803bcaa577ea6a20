//! The options of `braid-bench plan`.

use std::path::PathBuf;

use clap::Args;

use crate::endpoint::EndpointOptions;
use crate::load::LoadOptions;
use crate::max::SearchOptions;
use crate::quantity::percent;

/// Options of `braid-bench plan`.
#[derive(Debug, Args)]
pub struct Options {
    #[command(flatten)]
    pub(super) endpoint: EndpointOptions,
    #[command(flatten)]
    pub(super) load: LoadOptions,
    #[command(flatten)]
    pub(super) search: SearchOptions,
    /// Requests a second today; by default the workload's rate, or the planned capacity of one instance.
    #[arg(long, value_name = "RATE")]
    pub(super) rate_now: Option<f64>,
    /// Keys today; by default the workload's.
    #[arg(long, value_name = "N")]
    pub(super) keys_now: Option<u64>,
    /// Monthly growth of rate and keys.
    #[arg(long, value_name = "PERCENT", default_value = "5%", value_parser = percent)]
    pub(super) growth: f64,
    /// Months to look ahead.
    #[arg(long, value_name = "N", default_value_t = 12)]
    pub(super) months: u32,
    /// Share of an instance's rate and memory that stays free.
    #[arg(long, value_name = "PERCENT", default_value = "30%", value_parser = percent)]
    pub(super) headroom: f64,
    /// Copies of each instance, as replicas, beside it.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(super) redundancy: u64,
    /// Memory of an instance in bytes; by default this machine's.
    #[arg(long, value_name = "BYTES")]
    pub(super) instance_memory: Option<u64>,
    /// Instances there are today, copies not counted.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(super) instances: u64,
    /// Additional memory while a snapshot is written, as a share of the data.
    #[arg(long, value_name = "PERCENT", default_value = "50%", value_parser = percent)]
    pub(super) snapshot: f64,
    /// Keys of the largest population that is loaded to measure memory.
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    pub(super) fit_keys: u64,
    /// With {threads} in --spawn: throughput is measured at these counts instead of counts of connections,
    /// and all else with the count of the highest throughput.
    #[arg(long, value_name = "N,N", value_delimiter = ',', default_values_t = [1, 2, 3, 4],
        value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) thread_counts: Vec<u32>,
    /// Writes the plan and all measurements as JSON.
    #[arg(long, value_name = "FILE")]
    pub(super) json: Option<PathBuf>,
    /// Writes the plan as a page.
    #[arg(long, value_name = "FILE")]
    pub(super) html: Option<PathBuf>,
}
