//! `braid-bench run`: one workload against one server.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::SystemTime;

use clap::Args;

use crate::endpoint::EndpointOptions;
use crate::error::BenchError;
use crate::load::{LoadOptions, PaceOptions};
use crate::measure::measure;
use crate::observe::Observer;
use crate::output;
use crate::pages;
use crate::report::{Measured, csv, hlog, memtier};

/// Options of `braid-bench run`.
#[derive(Debug, Args)]
pub struct Options {
    #[command(flatten)]
    endpoint: EndpointOptions,
    #[command(flatten)]
    load: LoadOptions,
    #[command(flatten)]
    pace: PaceOptions,
    /// Writes the report as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Writes seconds, commands and the total as CSV.
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
    /// Writes the response times of each second as an HdrHistogram log.
    #[arg(long, value_name = "FILE")]
    hlog: Option<PathBuf>,
    /// Writes the JSON that memtier_benchmark would write.
    #[arg(long, value_name = "FILE")]
    memtier_json: Option<PathBuf>,
    /// Writes a page with percentiles and the run over time.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

/// Runs the workload and prints the table. Exits with 1 when a request failed.
///
/// # Errors
/// When the server cannot be loaded or a file cannot be written.
pub fn run(options: &Options) -> Result<ExitCode, BenchError> {
    let load = options.load.load(&options.pace)?;
    let endpoint = options.endpoint.open(load.workload().protocol)?;
    let observer = Observer::new(&endpoint);
    observer.pin(&options.load.server_cpus)?;
    let ceiling = load.calibrate()?;
    load.preload(&endpoint.target)?;
    let start = SystemTime::now();
    let measured = measure(&load, &endpoint, &observer, Some(ceiling))?;
    let Measured { report, outcome } = &measured;
    output::print(report)?;
    let files = [
        (&options.json, report.json().into_bytes()),
        (&options.csv, csv::csv(report).into_bytes()),
        (&options.hlog, hlog::hlog(outcome, start)),
        (&options.memtier_json, output::json(&memtier::memtier(report, start)).into_bytes()),
        (&options.html, pages::run(&measured).into_bytes()),
    ];
    for (path, text) in files {
        if let Some(path) = path {
            output::write(path, &text)?;
        }
    }
    let is_clean = report.errors == 0 && report.unanswered == 0;
    Ok(if is_clean { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
