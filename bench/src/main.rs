//! Load generator and comparisons for Redis-compatible servers.

#![forbid(unsafe_code)]

use std::process::ExitCode;
use std::time::Duration;

use braid_bench::{address, client, engine, error, null_server, reply_counter, workload};
use clap::{Parser, Subcommand};

mod bars;
mod compare;
mod endpoint;
mod load;
mod max;
mod measure;
mod observe;
mod output;
mod pages;
mod plan;
mod prober;
mod process;
mod profile;
mod quantity;
mod redis_benchmark;
mod report;
mod run;
mod spawn;
mod table;

use crate::error::BenchError;
use crate::null_server::{NullServer, Stall};
use crate::workload::{NAMED, Workload};

/// Measures Redis-compatible servers.
#[derive(Debug, Parser)]
#[command(version, about)]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// Runs one workload against a server.
    Run(Box<run::Options>),
    /// Compares servers under one workload, in turns; without servers, measures Braid against redis-server
    /// and its targets.
    Compare(Box<compare::Options>),
    /// Finds the highest rate at which a server keeps a latency target.
    Max(Box<max::Options>),
    /// Plans cores, memory, network and instances from measurements of an empty server.
    Plan(Box<plan::Options>),
    /// Makes a workload from the keys and the command statistics of a running server, without MONITOR.
    Profile(Box<profile::Options>),
    /// Runs redis-benchmark's tests, with its options and its output.
    RedisBenchmark(Box<redis_benchmark::Options>),
    /// Lists the named workloads, or prints one of them as TOML.
    Workloads {
        /// The one to print.
        name: Option<String>,
    },
    /// Runs a server that does nothing: the rate of a client against it is the client's own limit.
    NullServer {
        /// The port; 0 is any that is free.
        #[arg(short, long, value_name = "PORT", default_value_t = 0)]
        port: u16,
        /// For how long it does not answer in each second.
        #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
        stall: Option<Duration>,
    },
}

fn main() -> ExitCode {
    let done = match Arguments::parse().task {
        Task::Run(options) => spawn::restart_with_raised_limit().and_then(|()| run::run(&options)),
        Task::Compare(options) => spawn::restart_with_raised_limit().and_then(|()| compare::run(&options)),
        Task::Max(options) => spawn::restart_with_raised_limit().and_then(|()| max::run(&options)),
        Task::Plan(options) => spawn::restart_with_raised_limit().and_then(|()| plan::run(&options)),
        Task::Profile(options) => profile::run(&options),
        Task::RedisBenchmark(options) => {
            spawn::restart_with_raised_limit().and_then(|()| redis_benchmark::run(&options))
        }
        Task::Workloads { name } => workloads(name.as_deref()),
        Task::NullServer { port, stall } => serve_nothing(port, stall),
    };
    done.unwrap_or_else(|error| {
        eprintln!("braid-bench: {error}");
        ExitCode::from(2)
    })
}

fn workloads(name: Option<&str>) -> Result<ExitCode, BenchError> {
    for (known, text) in NAMED {
        match name {
            None => output::print(format_args!("{known:16}{}\n", Workload::parse(known, text)?.summary))?,
            Some(name) if name == *known => output::print(text)?,
            Some(_) => {}
        }
    }
    if let Some(name) = name {
        Workload::named_or_file(name)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn serve_nothing(port: u16, stall: Option<Duration>) -> Result<ExitCode, BenchError> {
    let stall = stall.map(|lasts| Stall { every: Duration::from_secs(1), lasts });
    let server = NullServer::start_on(port, stall)?;
    output::print(format_args!("listening on {}\n", server.address()))?;
    server.serve_for_ever();
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    #[test]
    fn the_command_line_is_sound() {
        super::Arguments::command().debug_assert();
    }

    /// The README repeats the program's help. `BRAID_DOCS_CORRECT=1` writes it.
    #[test]
    fn the_readme_has_the_help_of_the_program() {
        const PATH: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/README.md");
        const MARKS: [&str; 2] = ["<!-- braid-bench --help -->\n", "<!-- /braid-bench --help -->"];
        let help = super::Arguments::command().bin_name("braid-bench").render_help().to_string();
        let expected = format!("```\n{}\n```\n", help.trim_end());
        let text = std::fs::read_to_string(PATH).expect("there is a README.md");
        let (before, rest) = text.split_once(MARKS[0]).expect("the mark where the help begins");
        let (part, after) = rest.split_once(MARKS[1]).expect("the mark where the help ends");
        if part != expected && std::env::var_os("BRAID_DOCS_CORRECT").is_some() {
            let text = [before, MARKS[0], &expected, MARKS[1], after].concat();
            return std::fs::write(PATH, text).expect("README.md can be written");
        }
        assert_eq!(part, expected, "BRAID_DOCS_CORRECT=1 writes it");
    }
}
