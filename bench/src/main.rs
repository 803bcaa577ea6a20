//! Load generator and comparisons for Redis-compatible servers.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::{Parser, Subcommand};

mod client;
mod compare;
mod error;
mod histogram;
mod keys;
mod load;
mod process;
mod redis_benchmark;
mod report;
mod resp;
mod spawn;
mod values;

/// Measures Redis-compatible servers.
#[derive(Debug, Parser)]
#[command(version, about)]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// Measures Braid against redis-server under the same loads, in turns, and says which targets are met.
    Compare(compare::Options),
}

fn main() -> ExitCode {
    let Task::Compare(options) = Arguments::parse().task;
    match compare::run(&options) {
        Ok(exit) => exit,
        Err(error) => {
            eprintln!("braid-bench: {error}");
            ExitCode::from(2)
        }
    }
}
