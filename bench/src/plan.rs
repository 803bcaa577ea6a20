//! `braid-bench plan`: from a workload and its growth to cores, memory, network and instances, month by
//! month.
//!
//! Everything is measured on the given server. The measurements are the rate that it takes within the target,
//! the processor time of a request and the bytes on the wire. The memory of growing populations and the
//! throughput against connections or threads complete them.

use std::collections::BTreeSet;
use std::ops::Range;
use std::process::ExitCode;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use braid_bench::model::memory::{self, Class, MemorySample};
use braid_bench::model::search::{self, Found};

use crate::client::Client;
use crate::endpoint::{Endpoint, EndpointOptions};
use crate::error::BenchError;
use crate::load::{Load, PaceOptions};
use crate::max::{SearchSummary, WARMUP, WINDOW};
use crate::measure::measure;
use crate::observe::Observer;
use crate::output;
use crate::pages;
use crate::quantity::{bytes, thousands};
use crate::report::{RunReport, SCHEMA_VERSION};
use crate::table::Table;
use crate::workload::{Compiled, Population, Workload};

mod capacity;
mod options;
mod plan_report;
mod words;

pub use self::options::Options;
pub use self::plan_report::PlanReport;

use self::capacity::{Instance, Month, Needs};
use self::plan_report::{Counted, Memory, NoLaw, Scaling, buffers_bytes};
use self::words::Findings;

/// The time for which the rate found is measured.
const FINAL: Duration = Duration::from_secs(5);
/// The longest wait for memory to settle, and the pause between two samples.
const SETTLING: Duration = Duration::from_secs(4);
const SAMPLE_EVERY: Duration = Duration::from_millis(250);
/// The share of change between two samples below which memory is at rest.
const AT_REST: f64 = 0.0005;
/// Connections at which throughput is measured for the law.
const CONNECTIONS: [u32; 6] = [1, 2, 4, 8, 16, 32];
/// The placeholder for the count of threads in a command line to spawn.
const THREADS: &str = "{threads}";
/// The fewest counts for the law, which has three parameters.
const LEAST_COUNTS: usize = 3;

/// All measurements of a plan.
struct Measurements {
    n_threads: Option<u32>,
    found: Found,
    memory: Option<Memory>,
    scaling: Result<Scaling, NoLaw>,
    run: RunReport,
}

/// Measures the server and prints the plan.
///
/// # Errors
/// When the server cannot be loaded, holds keys already or keeps the target at no rate, or a file cannot be
/// written.
pub fn run(options: &Options) -> Result<ExitCode, BenchError> {
    let load = options.load.windows(&PaceOptions::default(), WARMUP, WINDOW)?;
    let over_threads = match options.thread_counts()? {
        Some(counts) => Some(options.measure_threads(&load, &counts)?),
        None => None,
    };
    let n_threads = over_threads.as_ref().map(|(best, _)| *best);
    let server = n_threads.map_or_else(|| options.endpoint.clone(), |n| options.with_threads(n));
    let endpoint = server.open(load.workload().protocol)?;
    let observer = Observer::new(&endpoint);
    observer.pin(&options.load.server_cpus)?;
    refuse_keys(&endpoint)?;
    eprintln!("memory of growing populations");
    let memory = options.memory(&load, &endpoint, &observer)?;
    let scaling = match over_threads {
        Some((_, scaling)) => scaling,
        None => measure_connections(&load, &endpoint)?,
    };
    let slo = options.search.slo();
    eprintln!("the highest rate within {slo}");
    let found = options.search.search(&load, &endpoint)?;
    if found.limit == search::LimitedBy::Lowest {
        let lowest = thousands(found.rate.high);
        let why = format!("there is nothing to plan with: not even {lowest} requests a second keep {slo}");
        return Err(BenchError::Machine(why));
    }
    let safe = load.at_rate(Some(found.rate.low.max(1.0))).lasting(WARMUP, FINAL);
    let measured = measure(&safe, &endpoint, &observer, Some(load.calibrate()?))?;
    let run = measured.report.clone();
    let plan = options.plan(load.workload(), Measurements { n_threads, found, memory, scaling, run });
    let summary = SearchSummary { found: &plan.found, slo: &slo };
    let (months, words) = (month_table(&plan.months), plan.words.join("\n"));
    output::print(format_args!("{summary}\n{months}\n{words}\n"))?;
    if let Some(path) = &options.json {
        output::write(path, output::json(&plan).as_bytes())?;
    }
    if let Some(path) = &options.html {
        output::write(path, pages::plan(&plan, &slo, &measured).as_bytes())?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Refuses a server with keys. They would be counted as the plan's, and overwritten.
fn refuse_keys(endpoint: &Endpoint) -> Result<(), BenchError> {
    let mut client = Client::greet(&endpoint.target.address, &endpoint.target.greeting)?;
    match client.dbsize()? {
        0 => Ok(()),
        _ => {
            Err(BenchError::Machine(format!("{} holds keys: a plan measures an empty server", endpoint.name)))
        }
    }
}

/// The number of a population's keys when all populations have `n_keys` together.
///
/// It is capped by the number of keys that there are.
fn share_of(population: &Population, workload: &Workload, n_keys: u64) -> u64 {
    let count = |population: &Population| population.count.unwrap_or(workload.keys.count);
    let total: u64 = workload.preload.iter().map(count).sum();
    (u128::from(count(population)) * u128::from(n_keys.min(total)) / u128::from(total.max(1))) as u64
}

impl Options {
    /// Loads each population in steps, and then the rest of the workload's keys.
    ///
    /// The populations are loaded one after the other, so that the bytes a key of each can be fitted. The
    /// result is `None` where the server's memory is not known or there is no population.
    fn memory(
        &self,
        load: &Load,
        endpoint: &Endpoint,
        observer: &Observer,
    ) -> Result<Option<Memory>, BenchError> {
        let workload = load.workload();
        let mut loaded: Vec<(Class, u64)> = Vec::new();
        let mut samples = vec![sample(&loaded, observer)];
        for (place, population) in workload.preload.iter().enumerate() {
            loaded.push((class(population, workload, place), 0));
            for level in memory::populations(share_of(population, workload, self.fit_keys)) {
                load_keys(load, endpoint, population, loaded[place].1..level)?;
                loaded[place].1 = level;
                samples.push(sample(&loaded, observer));
            }
        }
        for (population, (_, n_loaded)) in workload.preload.iter().zip(&loaded) {
            load_keys(
                load,
                endpoint,
                population,
                *n_loaded..population.count.unwrap_or(workload.keys.count),
            )?;
        }
        let samples: Option<Vec<_>> = samples.into_iter().collect();
        let fitted = samples.and_then(|samples| memory::fit(&samples).ok().map(|fit| (samples, fit)));
        Ok(fitted.map(|(samples, fit)| {
            let now = fit.forecast(self.keys_now(workload));
            Memory { samples, fit, now }
        }))
    }

    fn keys_now(&self, workload: &Workload) -> u64 {
        let count = |population: &Population| population.count.unwrap_or(workload.keys.count);
        self.keys_now.unwrap_or_else(|| workload.preload.iter().map(count).sum())
    }

    /// Returns the counts of threads to measure, if the command line takes one.
    fn thread_counts(&self) -> Result<Option<Vec<u32>>, BenchError> {
        if !self.endpoint.contains(THREADS) {
            return Ok(None);
        }
        let counts: BTreeSet<_> = self.thread_counts.iter().copied().collect();
        if counts.len() < LEAST_COUNTS {
            let why = format!(
                "--thread-counts: the scalability law is fitted over {LEAST_COUNTS} different counts or more"
            );
            return Err(BenchError::Machine(why));
        }
        Ok(Some(counts.into_iter().collect()))
    }

    /// Starts a server for each count and measures it. Returns the count with the highest throughput, and the
    /// law.
    fn measure_threads(
        &self,
        load: &Load,
        counts: &[u32],
    ) -> Result<(u32, Result<Scaling, NoLaw>), BenchError> {
        eprintln!("throughput against {}", Counted::Threads);
        let mut points = Vec::new();
        let mut best = (0, 0.0);
        for &n_threads in counts {
            let endpoint = self.with_threads(n_threads).open(load.workload().protocol)?;
            load.preload(&endpoint.target)?;
            let measured = throughputs(load, &endpoint, Counted::Threads, n_threads)?;
            let sum: f64 = measured.iter().map(|point| point.1).sum();
            if sum > best.1 {
                best = (n_threads, sum);
            }
            points.extend(measured);
        }
        Ok((best.0, Scaling::fit(Counted::Threads, points)))
    }

    fn with_threads(&self, n_threads: u32) -> EndpointOptions {
        self.endpoint.with(THREADS, &n_threads.to_string())
    }

    fn plan(&self, workload: &Workload, measured: Measurements) -> PlanReport {
        let Measurements { n_threads, found, memory, scaling, run } = measured;
        let months = self.months(workload, &found, memory.as_ref(), &run);
        let keys_at_end = months.last().map_or(self.keys_now(workload), |month| month.needs.n_keys);
        let findings = Findings {
            options: self,
            months: &months,
            found: &found,
            n_threads,
            memory: memory.as_ref(),
            scaling: &scaling,
            run: &run,
        };
        PlanReport {
            schema: "braid-bench/plan",
            schema_version: SCHEMA_VERSION,
            words: findings.sentences(),
            found,
            threads: n_threads,
            memory,
            buffers_bytes: buffers_bytes(&run),
            scaling: scaling.ok(),
            months,
            keys_at_end,
            run,
        }
    }

    /// Computes each month's needs and the instances that meet them.
    fn months(
        &self,
        workload: &Workload,
        found: &Found,
        memory: Option<&Memory>,
        run: &RunReport,
    ) -> Vec<Month> {
        let left = 1.0 - self.headroom;
        let instance = Instance {
            rate: found.rate.low * left,
            memory_bytes: self.instance_memory.unwrap_or(run.origin.memory_bytes) as f64 * left,
        };
        let cpu_seconds = run.server_cpu_us_per_request.unwrap_or(0.0) / 1e6;
        let keys_now = self.keys_now(workload);
        let buffers = buffers_bytes(run).unwrap_or(0) as f64;
        let rate_now = self.rate_now.or(workload.rate).unwrap_or(instance.rate);
        let needs = |month: u32| {
            let grown = (1.0 + self.growth).powi(month as i32);
            let n_keys = (keys_now as f64 * grown) as u64;
            let data = memory.map_or(0.0, |memory| memory.fit.forecast(n_keys).worst_bytes);
            let rate = rate_now * grown;
            Needs {
                rate,
                n_keys,
                cores: rate * cpu_seconds / left,
                memory_bytes: data * (1.0 + self.snapshot) + buffers,
                network_bits: rate * run.bytes_per_request * 8.0,
            }
        };
        (0..=self.months).map(|month| Month::new(month, needs(month), &instance, self.redundancy)).collect()
    }
}

/// Loads the keys of a population whose numbers are in `keys`.
fn load_keys(
    load: &Load,
    endpoint: &Endpoint,
    population: &Population,
    keys: Range<u64>,
) -> Result<(), BenchError> {
    if keys.is_empty() {
        return Ok(());
    }
    let part = Arc::new(Compiled::preload(load.workload(), population, keys)?);
    load.load_population(&endpoint.target, &part)
}

/// Samples the memory of the loaded keys, if it is known.
fn sample(loaded: &[(Class, u64)], observer: &Observer) -> Option<MemorySample> {
    let resident_bytes = settled(observer)?;
    let n_keys: u64 = loaded.iter().map(|keys| keys.1).sum();
    eprintln!("{:>12} keys  {}", thousands(n_keys as f64), bytes(resident_bytes as f64));
    Some(MemorySample { keys: loaded.to_vec(), resident_bytes, used_bytes: observer.sample().used_bytes() })
}

/// The class of a population's keys. The type follows from the command that makes them.
fn class(population: &Population, workload: &Workload, place: usize) -> Class {
    let command = population.requests.first().and_then(|request| request.first());
    let kind = match command.map(|name| name.to_ascii_uppercase()).as_deref() {
        Some("SET" | "SETEX" | "APPEND" | "INCRBY") => String::from("string"),
        Some("HSET" | "HMSET") => String::from("hash"),
        Some("RPUSH" | "LPUSH") => String::from("list"),
        Some("SADD") => String::from("set"),
        Some("ZADD") => String::from("sorted set"),
        Some("XADD") => String::from("stream"),
        _ => format!("key of population {place}"),
    };
    Class::new(kind, workload.values.size.mean().round() as u64)
}

/// Returns the resident bytes once they have settled, or after a while.
///
/// They are `None` where they are unknown.
fn settled(observer: &Observer) -> Option<u64> {
    let began = Instant::now();
    let mut last = observer.sample().resident_bytes?;
    loop {
        thread::sleep(SAMPLE_EVERY);
        let now = observer.sample().resident_bytes?;
        let change = (now as f64 - last as f64).abs() / last.max(1) as f64;
        last = now;
        if change < AT_REST || began.elapsed() > SETTLING {
            return Some(now);
        }
    }
}

/// Measures the throughput of a closed loop, twice.
fn throughputs(
    load: &Load,
    endpoint: &Endpoint,
    counted: Counted,
    count: u32,
) -> Result<Vec<(f64, f64)>, BenchError> {
    (0..2)
        .map(|_| {
            let outcome = load.at_rate(None).run(&endpoint.target, &mut |_| {})?;
            let rate = outcome.achieved_rate();
            eprintln!("{:>16}  {} a second", counted.counting(count), thousands(rate));
            Ok((f64::from(count), rate))
        })
        .collect()
}

fn measure_connections(load: &Load, endpoint: &Endpoint) -> Result<Result<Scaling, NoLaw>, BenchError> {
    let mut points = Vec::new();
    eprintln!("throughput against {}", Counted::Connections);
    for connections in CONNECTIONS {
        let workload = Workload { connections: connections as usize, ..load.workload().clone() };
        let some = Load::new(&workload, load.plan.n_threads, load.plan.cpus.clone())?;
        points.extend(throughputs(&some, endpoint, Counted::Connections, connections)?);
    }
    Ok(Scaling::fit(Counted::Connections, points))
}

fn month_table(months: &[Month]) -> Table {
    let mut table = Table::new(["month", "rate", "keys", "cores", "memory", "Mbit/s", "instances"]);
    for month in months {
        let Needs { rate, n_keys, cores, memory_bytes, network_bits } = month.needs;
        table.push([
            month.month.to_string(),
            thousands(rate),
            thousands(n_keys as f64),
            format!("{cores:.1}"),
            bytes(memory_bytes),
            format!("{:.0}", network_bits / 1e6),
            month.n_instances.to_string(),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use braid_bench::model::stats::Estimate;
    use clap::{Args as _, Command, FromArgMatches as _};

    use super::*;
    use crate::null_server::NullServer;

    fn options(arguments: &[&str]) -> Options {
        let command = Options::augment_args(Command::new("plan"));
        let matches = command.get_matches_from(["plan"].iter().chain(arguments));
        Options::from_arg_matches(&matches).expect("the arguments are right")
    }

    #[test]
    fn threads_are_counted_where_the_command_line_says_so() {
        let spawn = ["--spawn", "server --threads {threads}", "--thread-counts"];
        let counts = |counts| options(&[&spawn[..], &[counts]].concat()).thread_counts();
        assert_eq!(counts("4,1,2,2").expect("they suffice"), Some(vec![1, 2, 4]));
        let error = counts("1,2,2").expect_err("they are too few").to_string();
        assert!(error.contains("3 different counts or more"), "{error}");
        let without = options(&["--spawn", "server --threads 2", "--thread-counts", "1"]);
        assert_eq!(without.thread_counts().expect("nothing is counted"), None);
    }

    #[test]
    fn buffers_seen_in_the_run_are_needed_in_every_month() {
        let server = NullServer::start(None).expect("loopback can be listened on");
        let endpoint = Endpoint::at(&server.address().to_string()).expect("it is an address");
        let load = Load::new(&Workload { connections: 1, ..Workload::default() }, 1, Vec::new());
        let load = load.expect("it makes sense").lasting(Duration::ZERO, Duration::from_millis(10));
        let measured = measure(&load, &endpoint, &Observer::new(&endpoint), None);
        let mut run = measured.expect("the null server answers").report;
        let rate = Estimate { value: 100.0, low: 90.0, high: 110.0 };
        let found =
            Found { rate, limit: search::LimitedBy::Server, breach: None, knee: None, steps: Vec::new() };
        let memory_bytes = |run: &RunReport| {
            let months = options(&["--months", "1"]).months(load.workload(), &found, None, run);
            months.iter().map(|month| month.needs.memory_bytes).collect::<Vec<_>>()
        };
        assert_eq!(memory_bytes(&run), [0.0, 0.0]);
        (run.server_use.resident_bytes_before, run.server_peak_bytes) = (Some(1000), Some(1500));
        assert_eq!(memory_bytes(&run), [500.0, 500.0]);
    }

    #[test]
    fn one_is_not_many() {
        assert_eq!(Counted::Threads.counting(1), "1 thread");
        assert_eq!(Counted::Connections.counting(32), "32 connections");
    }
}
