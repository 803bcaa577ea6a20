//! `braid-bench plan`: from a workload and its growth to cores, memory, network and instances, month by month.
//!
//! Everything is measured on the server at hand: the rate it takes within the target, the processor time of a request, the
//! bytes on the wire, the memory of growing populations, and throughput against connections or threads.

use std::ops::Range;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use braid_bench::model::memory::{self, Class, Forecast, MemorySample};
use braid_bench::model::search::Found;
use braid_bench::model::usl;
use clap::Args;
use serde::Serialize;

use crate::client::Client;
use crate::endpoint::{Endpoint, EndpointOptions};
use crate::error::BenchError;
use crate::load::{Load, LoadOptions};
use crate::max::{SearchOptions, Told, WARMUP, WINDOW};
use crate::observe::Observer;
use crate::pages;
use crate::report::text::{Table, bytes, thousands};
use crate::report::{self, RunReport, SCHEMA_VERSION};
use crate::run;
use crate::workload::{Compiled, Population, Workload};

mod capacity;

use self::capacity::{Instance, Month, Needs};

/// How long the rate found is measured.
const FINAL: Duration = Duration::from_secs(5);
/// How long memory may take to come to rest after a population, and how often it is looked at.
const SETTLING: Duration = Duration::from_secs(4);
const LOOK: Duration = Duration::from_millis(250);
/// Memory that changes by less than this share from one look to the next is at rest.
const AT_REST: f64 = 0.0005;
/// Connections at which throughput is measured for the law.
const CONNECTIONS: [usize; 6] = [1, 2, 4, 8, 16, 32];
/// What a command line to spawn says where the count of threads goes.
const THREADS: &str = "{threads}";

/// What the law is fitted over then.
const THREADS_COUNTED: &str = "threads";
/// More threads than this no instance is planned with.
const MOST_THREADS: u32 = 256;

/// Options of `braid-bench plan`.
#[derive(Debug, Args)]
pub struct Options {
    #[command(flatten)]
    endpoint: EndpointOptions,
    #[command(flatten)]
    load: LoadOptions,
    #[command(flatten)]
    search: SearchOptions,
    /// Requests a second today; by default the workload's rate, or what one instance takes.
    #[arg(long, value_name = "RATE")]
    rate_now: Option<f64>,
    /// Keys today; by default the workload's.
    #[arg(long, value_name = "N")]
    keys_now: Option<u64>,
    /// By how much rate and keys grow each month.
    #[arg(long, value_name = "PERCENT", default_value = "5%", value_parser = crate::compare::percent)]
    growth: f64,
    /// Months to look ahead.
    #[arg(long, value_name = "N", default_value_t = 12)]
    months: u32,
    /// What is to be left free of an instance's rate and memory.
    #[arg(long, value_name = "PERCENT", default_value = "30%", value_parser = crate::compare::percent)]
    headroom: f64,
    /// Copies of each instance, as replicas, beside it.
    #[arg(long, value_name = "N", default_value_t = 1)]
    redundancy: u64,
    /// Memory of an instance in bytes; by default this machine's.
    #[arg(long, value_name = "BYTES")]
    instance_memory: Option<u64>,
    /// Instances there are today, copies not counted.
    #[arg(long, value_name = "N", default_value_t = 1)]
    instances: u64,
    /// Memory that a snapshot takes on top while it is written, as a share of the data.
    #[arg(long, value_name = "PERCENT", default_value = "50%", value_parser = crate::compare::percent)]
    snapshot: f64,
    /// Keys of the largest population that is loaded to measure memory.
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    fit_keys: u64,
    /// With {threads} in --spawn: throughput is measured at these counts instead of counts of connections.
    #[arg(long, value_name = "N,N", value_delimiter = ',', default_values_t = [1, 2, 3, 4])]
    thread_counts: Vec<u32>,
    /// Writes the plan and all measurements as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Writes the plan as a page.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

/// A plan, as it is written.
#[derive(Debug, Serialize)]
pub struct PlanReport {
    /// `braid-bench/plan`.
    pub schema: &'static str,
    /// Version of the JSON.
    pub schema_version: u32,
    /// The plan in words.
    pub words: Vec<String>,
    /// The rate one instance takes.
    pub found: Found,
    /// Memory by population.
    pub memory: Option<Memory>,
    /// Throughput by count.
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
    /// What was measured.
    pub samples: Vec<MemorySample>,
    /// The regression.
    pub fit: memory::Fit,
    /// The memory of today's keys.
    pub now: Forecast,
}

/// Throughput as measured and fitted.
#[derive(Debug, Serialize)]
pub struct Scaling {
    /// What was counted: connections or threads.
    pub counted: String,
    /// Counts and requests a second.
    pub points: Vec<(f64, f64)>,
    /// The law.
    pub fit: usl::Fit,
}

/// Measures the server and prints the plan.
///
/// # Errors
/// When the server cannot be loaded, holds keys already, or a file cannot be written.
pub fn run(options: &Options) -> Result<ExitCode, BenchError> {
    let load = options.load.windows(WARMUP, WINDOW)?;
    let scaling_of_threads = options.scaling_of_threads(&load)?;
    let endpoint = options.endpoint.with(THREADS, &options.most_threads()).open(load.workload().protocol)?;
    let observer = Observer::new(&endpoint);
    observer.pin(&options.load.server_cpus)?;
    refuse_keys(&endpoint)?;
    eprintln!("memory of growing populations");
    let memory = options.memory(&load, &endpoint, &observer)?;
    let scaling = match scaling_of_threads {
        Some(scaling) => Some(scaling),
        None => scaling_of_connections(&load, &endpoint)?,
    };
    eprintln!("the highest rate within {}", options.search.slo());
    let found = options.search.search(&load, &endpoint)?;
    let safe = load.at_rate(Some(found.rate.low.max(1.0))).lasting(WARMUP, FINAL);
    let measured = run::measure(&safe, &endpoint, &observer, Some(load.calibrate()?))?;
    let plan = options.plan(load.workload(), found, memory, scaling, measured.report.clone());
    let slo = options.search.slo();
    let told = Told { found: &plan.found, slo: &slo };
    let (months, words) = (month_table(&plan.months), plan.words.join("\n"));
    report::tell(format_args!("{told}\n{months}\n{words}\n"))?;
    if let Some(path) = &options.json {
        report::write(path, report::json(&plan).as_bytes())?;
    }
    if let Some(path) = &options.html {
        report::write(path, pages::plan(&plan, &slo, &measured).as_bytes())?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Keys of somebody else would be counted in, and written over.
fn refuse_keys(endpoint: &Endpoint) -> Result<(), BenchError> {
    let mut client = Client::greet(&endpoint.target.address, &endpoint.target.greeting)?;
    match client.call(&["DBSIZE"])? {
        braid_protocol::Value::Integer(0) => Ok(()),
        _ => {
            Err(BenchError::Machine(format!("{} holds keys: a plan measures an empty server", endpoint.name)))
        }
    }
}

/// The keys that a population has when all have `n_keys` together, or all that there are if those are fewer.
fn share_of(population: &Population, workload: &Workload, n_keys: u64) -> u64 {
    let count = |population: &Population| population.count.unwrap_or(workload.keys.count);
    let total: u64 = workload.preload.iter().map(count).sum();
    (u128::from(count(population)) * u128::from(n_keys.min(total)) / u128::from(total.max(1))) as u64
}

impl Options {
    fn most_threads(&self) -> String {
        self.thread_counts.iter().max().copied().unwrap_or(1).to_string()
    }

    /// Loads each population in steps, one after the other, so that each one's bytes a key can be told; then the rest of
    /// the workload's keys. Nothing where the server's memory is not known or there is no population.
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

    /// How many threads give `rate` with head-room, by the law.
    fn threads_needed(&self, fit: &usl::Fit, rate: f64) -> String {
        let enough = |&n: &u32| fit.at(f64::from(n)).value * (1.0 - self.headroom) >= rate;
        match (1..=MOST_THREADS).find(enough) {
            None => format!("No count of threads up to {MOST_THREADS} gives an instance what it needs then."),
            Some(n_threads) => {
                let extrapolated = fit.at(f64::from(n_threads)).extrapolated;
                let how = if extrapolated { ", by extrapolation" } else { "" };
                let noun = if n_threads == 1 { "thread gives" } else { "threads give" };
                format!("{n_threads} {noun} an instance what it needs then{how}.")
            }
        }
    }

    fn scaling_of_threads(&self, load: &Load) -> Result<Option<Scaling>, BenchError> {
        if !self.endpoint.contains(THREADS) {
            return Ok(None);
        }
        let mut points = Vec::new();
        for &n_threads in &self.thread_counts {
            let endpoint =
                self.endpoint.with(THREADS, &n_threads.to_string()).open(load.workload().protocol)?;
            load.preload(&endpoint.target)?;
            points.extend(throughputs(load, &endpoint, f64::from(n_threads))?);
        }
        Ok(usl::fit(&points).ok().map(|fit| Scaling { counted: String::from(THREADS_COUNTED), points, fit }))
    }

    fn plan(
        &self,
        workload: &Workload,
        found: Found,
        memory: Option<Memory>,
        scaling: Option<Scaling>,
        run: RunReport,
    ) -> PlanReport {
        let instance = Instance {
            rate: found.rate.low * (1.0 - self.headroom),
            memory_bytes: self.instance_memory.unwrap_or(run.origin.memory_bytes) as f64
                * (1.0 - self.headroom),
        };
        let cpu_seconds = run.server_cpu_us_per_request.unwrap_or(0.0) / 1e6;
        let keys_now = self.keys_now(workload);
        let rate_now = self.rate_now.or(workload.rate).unwrap_or(instance.rate);
        let needs = |month: u32| {
            let grown = (1.0 + self.growth).powi(month as i32);
            let n_keys = (keys_now as f64 * grown) as u64;
            let data = memory.as_ref().map_or(0.0, |memory| memory.fit.forecast(n_keys).worst_bytes);
            let rate = rate_now * grown;
            Needs {
                rate,
                n_keys,
                cores: rate * cpu_seconds / (1.0 - self.headroom),
                memory_bytes: data * (1.0 + self.snapshot),
                network_bits: rate * run.bytes_per_request * 8.0,
            }
        };
        let months: Vec<_> = (0..=self.months)
            .map(|month| Month::new(month, needs(month), &instance, self.redundancy))
            .collect();
        let keys_at_end = months.last().map_or(keys_now, |month| month.needs.n_keys);
        let words = self.words(&months, &found, memory.as_ref(), scaling.as_ref(), &run);
        let schema = "braid-bench/plan";
        PlanReport {
            schema,
            schema_version: SCHEMA_VERSION,
            words,
            found,
            memory,
            scaling,
            months,
            keys_at_end,
            run,
        }
    }

    fn words(
        &self,
        months: &[Month],
        found: &Found,
        memory: Option<&Memory>,
        scaling: Option<&Scaling>,
        run: &RunReport,
    ) -> Vec<String> {
        let percent = |share: f64| format!("{:.0} %", share * 100.0);
        let (now, end) = (&months[0], &months[months.len() - 1]);
        let mut words = vec![format!(
            "Today {} requests a second over {} keys need {:.1} cores, {} of memory and {:.0} Mbit/s: {} with {} kept free.",
            thousands(now.needs.rate),
            thousands(now.needs.n_keys as f64),
            now.needs.cores,
            bytes(now.needs.memory_bytes),
            now.needs.network_bits / 1e6,
            instances(now, self.redundancy),
            percent(self.headroom),
        )];
        words.push(format!(
            "In {} months of {} growth it is {} requests a second over {} keys: {:.1} cores, {} of memory, {:.0} Mbit/s, {}.",
            end.month,
            percent(self.growth),
            thousands(end.needs.rate),
            thousands(end.needs.n_keys as f64),
            end.needs.cores,
            bytes(end.needs.memory_bytes),
            end.needs.network_bits / 1e6,
            instances(end, self.redundancy),
        ));
        words.push(match months.iter().find(|month| month.n_instances > self.instances) {
            Some(month) if month.month == 0 => {
                format!(
                    "What there is ({}) does not suffice today: {} is too little.",
                    self.instances, month.short_of
                )
            }
            Some(month) => {
                format!(
                    "What there is ({}) runs out in month {}: {} is too little then.",
                    self.instances, month.month, month.short_of
                )
            }
            None => format!("What there is ({}) suffices for all {} months.", self.instances, self.months),
        });
        let bound = if found.is_lower_bound() { " (a lower bound: the client was the limit)" } else { "" };
        words.push(format!(
            "An instance takes {} requests a second within {}{bound}; {} is what the plan counts on.",
            thousands(found.rate.low),
            self.search.slo(),
            thousands(found.rate.low * (1.0 - self.headroom)),
        ));
        if let Some(memory) = memory {
            let each: Vec<_> = memory
                .fit
                .per_key
                .iter()
                .map(|(class, bytes)| {
                    format!("{:.0} B ({:.0}..{:.0}) a {class}", bytes.value, bytes.low, bytes.high)
                })
                .collect();
            words.push(format!(
                "Memory is {} and {}; measured up to {} keys. A snapshot is taken to need {} on top, and tables to be at \
                 their worst.",
                bytes(memory.fit.base.value),
                each.join(", "),
                thousands(memory.fit.most_keys),
                percent(self.snapshot),
            ));
            if memory.now.extrapolation > 1.0 {
                words.push(format!(
                    "Memory is extrapolated {:.1} times beyond what was measured.",
                    memory.now.extrapolation
                ));
            }
        }
        if let Some(Scaling { counted, fit, .. }) = scaling {
            let peak = match fit.peak() {
                Some(peak) => format!(
                    "most at {:.0} {counted}{}",
                    peak.n.value,
                    if peak.extrapolated { ", an extrapolation" } else { "" }
                ),
                None => String::from("no peak in sight"),
            };
            words.push(format!(
                "Against {counted}, throughput follows contention {:.3} and coherency {:.5} (R² {:.2}): {peak}.",
                fit.sigma.value, fit.kappa.value, fit.r2
            ));
            if counted == THREADS_COUNTED {
                words.push(self.threads_needed(fit, end.needs.rate / end.n_instances as f64));
            }
        }
        if run.shares_cores {
            words.push(String::from(
                "Client and server shared cores while this was measured; on its own machine the server takes more.",
            ));
        }
        words
    }
}

fn instances(month: &Month, redundancy: u64) -> String {
    let noun = if month.n_instances == 1 { "instance" } else { "instances" };
    let n_copies = month.n_instances * redundancy;
    let copies = if n_copies == 1 { "copy" } else { "copies" };
    format!("{} {noun} and {n_copies} {copies}", month.n_instances)
}

/// Loads those keys of a population whose numbers are in `keys`.
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

/// The memory of what is loaded, if it is known.
fn sample(loaded: &[(Class, u64)], observer: &Observer) -> Option<MemorySample> {
    let resident_bytes = settled(observer)?;
    let n_keys: u64 = loaded.iter().map(|keys| keys.1).sum();
    eprintln!("{:>12} keys  {}", thousands(n_keys as f64), bytes(resident_bytes as f64));
    Some(MemorySample { keys: loaded.to_vec(), resident_bytes, used_bytes: observer.sample().used_bytes() })
}

/// What a population's keys are: the command that makes them says the type.
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

/// Resident bytes once they have come to rest, or after a while; `None` where they are not known.
fn settled(observer: &Observer) -> Option<u64> {
    let began = Instant::now();
    let mut last = observer.sample().resident_bytes?;
    loop {
        thread::sleep(LOOK);
        let now = observer.sample().resident_bytes?;
        let change = (now as f64 - last as f64).abs() / last.max(1) as f64;
        last = now;
        if change < AT_REST || began.elapsed() > SETTLING {
            return Some(now);
        }
    }
}

/// Throughput of a closed loop, twice.
fn throughputs(load: &Load, endpoint: &Endpoint, count: f64) -> Result<Vec<(f64, f64)>, BenchError> {
    (0..2)
        .map(|_| {
            let outcome = load.at_rate(None).run(&endpoint.target, &mut |_| {})?;
            eprintln!("{count:>12} : {} a second", thousands(outcome.achieved_rate()));
            Ok((count, outcome.achieved_rate()))
        })
        .collect()
}

fn scaling_of_connections(load: &Load, endpoint: &Endpoint) -> Result<Option<Scaling>, BenchError> {
    let mut points = Vec::new();
    eprintln!("throughput against connections");
    for connections in CONNECTIONS {
        let workload = Workload { connections, ..load.workload().clone() };
        let some = Load::new(&workload, load.plan.n_threads, load.plan.cpus.clone())?;
        points.extend(throughputs(&some, endpoint, connections as f64)?);
    }
    Ok(usl::fit(&points).ok().map(|fit| Scaling { counted: String::from("connections"), points, fit }))
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
