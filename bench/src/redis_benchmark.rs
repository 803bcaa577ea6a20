//! `braid-bench redis-benchmark`: the options, tests and output of redis-benchmark 7.0, so that scripts move over.
//!
//! The requests are the same; the load is ours. TLS, Unix sockets, cluster mode and idle mode are not there.

use std::fmt::Write as _;
use std::io::Read;
use std::process::ExitCode;
use std::sync::Arc;

use clap::Args;
use hdrhistogram::Histogram;

use crate::client::Client;
use crate::endpoint::{Endpoint, greeting};
use crate::engine::{self, Arrivals, Limit, Plan, Target};
use crate::error::{BenchError, Doing};
use crate::report;
use crate::workload::{Command, Compiled, Keys, Size, Workload};

/// What redis-benchmark puts a random number for.
const RANDOM: &str = "__rand_int__";
/// Its histograms: microseconds, from 10 to 3 seconds.
const FINEST_MICROS: u64 = 10;
const LONGEST_MICROS: u64 = 3_000_000;
const CSV_HEAD: &str = "\"test\",\"rps\",\"avg_latency_ms\",\"min_latency_ms\",\"p50_latency_ms\",\"p95_latency_ms\",\
    \"p99_latency_ms\",\"max_latency_ms\"";

/// Options of `braid-bench redis-benchmark`.
#[derive(Debug, Args)]
#[command(disable_help_flag = true)]
pub struct Options {
    /// Print help.
    #[arg(long, action = clap::ArgAction::HelpLong)]
    help: Option<bool>,
    /// Server hostname.
    #[arg(short = 'h', value_name = "HOSTNAME", default_value = "127.0.0.1")]
    host: String,
    /// Server port.
    #[arg(short = 'p', value_name = "PORT", default_value_t = 6379)]
    port: u16,
    /// Password to authenticate with.
    #[arg(short = 'a', value_name = "PASSWORD")]
    password: Option<String>,
    /// User of the password.
    #[arg(long, value_name = "USERNAME", requires = "password")]
    user: Option<String>,
    /// Number of parallel connections.
    #[arg(short = 'c', value_name = "CLIENTS", default_value_t = 50)]
    clients: usize,
    /// Total number of requests of each test.
    #[arg(short = 'n', value_name = "REQUESTS", default_value_t = 100_000)]
    requests: u64,
    /// Data size of values in bytes.
    #[arg(short = 'd', value_name = "SIZE", default_value_t = 3)]
    data_bytes: usize,
    /// Selects this database.
    #[arg(long = "dbnum", value_name = "DB", default_value_t = 0)]
    db: u32,
    /// Speaks RESP3.
    #[arg(short = '3')]
    resp3: bool,
    /// Number of threads.
    #[arg(long, value_name = "NUM")]
    threads: Option<usize>,
    /// 1 = keep alive, 0 = reconnect after each request.
    #[arg(short = 'k', value_name = "BOOLEAN", default_value_t = 1)]
    keep_alive: u8,
    /// Puts random numbers below this for __rand_int__.
    #[arg(short = 'r', value_name = "KEYSPACELEN")]
    random: Option<u64>,
    /// Pipelines so many requests.
    #[arg(short = 'P', value_name = "NUMREQ", default_value_t = 1)]
    pipeline: usize,
    /// Quiet: one line a test.
    #[arg(short = 'q')]
    quiet: bool,
    /// Is accepted; times are always shown to the microsecond.
    #[arg(long, value_name = "PLACES")]
    precision: Option<u32>,
    /// Output in CSV.
    #[arg(long)]
    csv: bool,
    /// Runs the tests for ever.
    #[arg(short = 'l')]
    forever: bool,
    /// Runs only these tests.
    #[arg(short = 't', value_name = "TESTS")]
    tests: Option<String>,
    /// Reads the last argument from standard input.
    #[arg(short = 'x')]
    last_from_input: bool,
    /// Sends CLIENT TRACKING on first.
    #[arg(long)]
    enable_tracking: bool,
    /// A command to send instead of the tests.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<String>,
}

/// One of redis-benchmark's tests.
#[derive(Debug, Clone, PartialEq)]
struct Test {
    title: String,
    command: Command,
}

/// The tests: the names that select them, the title, and the command, in which `DATA` is the payload.
const TESTS: &[(&[&str], &str, &str)] = &[
    (&["ping_inline", "ping"], "PING_INLINE", "PING"),
    (&["ping_mbulk", "ping"], "PING_MBULK", "PING"),
    (&["set"], "SET", "SET key:__rand_int__ DATA"),
    (&["get"], "GET", "GET key:__rand_int__"),
    (&["incr"], "INCR", "INCR counter:__rand_int__"),
    (&["lpush"], "LPUSH", "LPUSH mylist DATA"),
    (&["rpush"], "RPUSH", "RPUSH mylist DATA"),
    (&["lpop"], "LPOP", "LPOP mylist"),
    (&["rpop"], "RPOP", "RPOP mylist"),
    (&["sadd"], "SADD", "SADD myset element:__rand_int__"),
    (&["hset"], "HSET", "HSET myhash element:__rand_int__ DATA"),
    (&["spop"], "SPOP", "SPOP myset"),
    (&["zadd"], "ZADD", "ZADD myzset SCORE element:__rand_int__"),
    (&["zpopmin"], "ZPOPMIN", "ZPOPMIN myzset"),
    (
        &["lrange", "lrange_100", "lrange_300", "lrange_500", "lrange_600"],
        "LPUSH (needed to benchmark LRANGE)",
        "LPUSH mylist DATA",
    ),
    (&["lrange", "lrange_100"], "LRANGE_100 (first 100 elements)", "LRANGE mylist 0 99"),
    (&["lrange", "lrange_300"], "LRANGE_300 (first 300 elements)", "LRANGE mylist 0 299"),
    (&["lrange", "lrange_500"], "LRANGE_500 (first 500 elements)", "LRANGE mylist 0 499"),
    (&["lrange", "lrange_600"], "LRANGE_600 (first 600 elements)", "LRANGE mylist 0 599"),
    (&["mset"], "MSET (10 keys)", "MSET"),
];

/// Runs the tests and prints their results. Exits with 1 at the first test that an error answered.
///
/// # Errors
/// When the server cannot be reached or an argument makes no sense.
pub fn run(options: &Options) -> Result<ExitCode, BenchError> {
    let tests = options.tests()?;
    let mut target = Endpoint::at(&format!("{}:{}", options.host, options.port))?.target;
    let protocol = if options.resp3 { 3 } else { 2 };
    target.greeting = greeting(options.user.as_deref(), options.password.as_deref(), options.db, protocol);
    if options.enable_tracking {
        target.greeting.push(["CLIENT", "TRACKING", "on"].map(str::to_owned).to_vec());
    }
    let configuration = if options.quiet || options.csv { Vec::new() } else { host_configuration(&target)? };
    if options.csv {
        report::tell(format_args!("{CSV_HEAD}\n"))?;
    }
    loop {
        for test in &tests {
            let result = options.measure(&target, test)?;
            if let Some(error) = &result.error {
                eprintln!("Error from server: {error}");
                return Ok(ExitCode::FAILURE);
            }
            report::tell(options.render(&result, &configuration))?;
        }
        if options.quiet && !options.csv {
            report::tell("\n")?;
        }
        if !options.forever {
            return Ok(ExitCode::SUCCESS);
        }
    }
}

/// What a test found.
#[derive(Debug)]
struct TestResult {
    title: String,
    n_done: u64,
    seconds: f64,
    micros: Histogram<u64>,
    error: Option<String>,
}

impl Options {
    fn tests(&self) -> Result<Vec<Test>, BenchError> {
        if self.command.is_empty() {
            let wanted = self.tests.as_ref().map(|names| names.to_ascii_lowercase());
            let is_wanted = |names: &[&str]| {
                wanted
                    .as_ref()
                    .is_none_or(|wanted| wanted.split(',').any(|name| names.contains(&name.trim())))
            };
            return Ok(TESTS
                .iter()
                .filter(|(names, ..)| is_wanted(names))
                .map(|test| self.test(test))
                .collect());
        }
        let mut args = self.command.clone();
        if self.last_from_input {
            let mut last = String::new();
            std::io::stdin().read_to_string(&mut last).doing("read standard input")?;
            args.push(last);
        }
        let title = args.join(" ");
        let args = args.iter().map(|arg| self.template(arg)).collect();
        Ok(vec![Test { title, command: Command { args, ..Command::default() } }])
    }

    fn test(&self, (_, title, words): &(&[&str], &str, &str)) -> Test {
        let data = "x".repeat(self.data_bytes);
        let score = if self.random.is_some() { RANDOM } else { "0" };
        let mut args: Vec<_> = words
            .split(' ')
            .map(|word| match word {
                "DATA" => data.clone(),
                "SCORE" => self.template(score),
                word => self.template(word),
            })
            .collect();
        if *words == "MSET" {
            let pair = [self.template("key:__rand_int__"), data];
            args.extend(std::iter::repeat_n(pair, 10).flatten());
        }
        let inline = *title == "PING_INLINE";
        Test { title: (*title).to_owned(), command: Command { args, inline, ..Command::default() } }
    }

    /// An argument as a template. Without `-r` the placeholder stays as it is, as in redis-benchmark.
    fn template(&self, argument: &str) -> String {
        let escaped = argument.replace('{', "{{").replace('}', "}}");
        if self.random.is_some() { escaped.replace(RANDOM, "{key}") } else { escaped }
    }

    fn workload(&self, test: &Test) -> Workload {
        Workload {
            connections: self.clients,
            pipeline: self.pipeline,
            reconnect_after: (self.keep_alive == 0).then_some(1),
            keys: Keys {
                count: self.random.unwrap_or(1).max(1),
                prefix: String::new(),
                size: Size::Fixed(12),
                ..Keys::default()
            },
            commands: vec![test.command.clone()],
            ..Workload::default()
        }
    }

    fn measure(&self, target: &Target, test: &Test) -> Result<TestResult, BenchError> {
        let compiled = Arc::new(Compiled::new(&self.workload(test))?);
        let plan = Plan {
            arrivals: Arrivals::Closed,
            limit: Limit::Requests(self.requests),
            n_threads: self.threads.unwrap_or(1),
            cpus: Vec::new(),
        };
        let outcome = engine::run(target, &compiled, &plan, &mut |_| {})?;
        let mut micros = Histogram::new_with_bounds(FINEST_MICROS, LONGEST_MICROS, 3)
            .expect("the bounds are in order and three digits are allowed");
        for value in outcome.record.response().iter_recorded() {
            micros.saturating_record_n(value.value_iterated_to() / 1000, value.count_at_value());
        }
        Ok(TestResult {
            title: test.title.clone(),
            n_done: outcome.record.n_done(),
            seconds: outcome.measured.as_secs_f64(),
            micros,
            error: outcome.record.errors.into_keys().next(),
        })
    }

    fn render(&self, result: &TestResult, configuration: &[String]) -> String {
        let per_second = result.n_done as f64 / result.seconds;
        let millis = |micros: u64| micros as f64 / 1e3;
        let at = |percentile| millis(result.micros.value_at_percentile(percentile));
        let (min, max) = (millis(result.micros.min()), millis(result.micros.max()));
        let times = [result.micros.mean() / 1e3, min, at(50.0), at(95.0), at(99.0), max];
        if self.csv {
            let times = times.map(|time| format!("\"{time:.3}\"")).join(",");
            return format!("\"{}\",\"{per_second:.2}\",{times}\n", result.title.replace('"', "\\\""));
        }
        if self.quiet {
            return format!(
                "{}: {per_second:.2} requests per second, p50={:.3} msec\n",
                result.title, times[2]
            );
        }
        let mut text = self.heading(result, configuration);
        text += &distribution(&result.micros);
        let _ = writeln!(text, "Summary:\n  throughput summary: {per_second:.2} requests per second");
        text += "  latency summary (msec):\n";
        let heads = ["avg", "min", "p50", "p95", "p99", "max"].map(|head| format!("{head:>9}")).join(" ");
        let times = times.map(|time| format!("{time:9.3}")).join(" ");
        let _ = writeln!(text, "    {heads}\n    {times}");
        text
    }

    fn heading(&self, result: &TestResult, configuration: &[String]) -> String {
        let mut text = format!("====== {} ======\n", result.title);
        let _ = writeln!(text, "  {} requests completed in {:.2} seconds", result.n_done, result.seconds);
        let _ = writeln!(text, "  {} parallel clients\n  {} bytes payload", self.clients, self.data_bytes);
        let _ = writeln!(text, "  keep alive: {}", self.keep_alive);
        configuration.iter().for_each(|line| text += line);
        match self.threads {
            None => text += "  multi-thread: no\n\n",
            Some(n_threads) => {
                let _ = writeln!(text, "  multi-thread: yes\n  threads: {n_threads}\n");
            }
        }
        text
    }
}

/// The two lists of percentiles: by halving distances to the end, and by steps of a tenth of a millisecond.
fn distribution(micros: &Histogram<u64>) -> String {
    let mut text = String::from("Latency by percentile distribution:\n");
    let mut n_below = 0;
    let mut last = None;
    for step in micros.iter_quantiles(1) {
        n_below += step.count_since_last_iteration();
        if last != Some(n_below) || n_below == micros.len() {
            let value = micros.highest_equivalent(step.value_iterated_to()) as f64 / 1e3;
            let percentile = step.quantile_iterated_to() * 100.0;
            let _ =
                writeln!(text, "{percentile:3.3}% <= {value:.3} milliseconds (cumulative count {n_below})");
        }
        last = Some(n_below);
    }
    text += "\nCumulative distribution of latencies:\n";
    (n_below, last) = (0, None);
    for step in micros.iter_linear(100) {
        n_below += step.count_since_last_iteration();
        if last != Some(n_below) {
            let value = micros.highest_equivalent(step.value_iterated_to()) as f64 / 1e3;
            let percentile = n_below as f64 / micros.len() as f64 * 100.0;
            let _ =
                writeln!(text, "{percentile:3.3}% <= {value:.3} milliseconds (cumulative count {n_below})");
        }
        last = Some(n_below);
    }
    text + "\n"
}

/// The settings that redis-benchmark shows of a server.
fn host_configuration(target: &Target) -> Result<Vec<String>, BenchError> {
    let mut client = Client::greet(target.address, &target.greeting)?;
    let mut ask = |name: &str| {
        let reply = client.call(&["CONFIG", "GET", name]).ok()?;
        let value = reply.as_array()?.get(1)?.as_bytes()?;
        Some(String::from_utf8_lossy(value).into_owned())
    };
    let (save, append) = (ask("save"), ask("appendonly"));
    Ok(match save.zip(append) {
        None => Vec::new(),
        Some((save, append)) => vec![
            format!("  host configuration \"save\": {save}\n"),
            format!("  host configuration \"appendonly\": {append}\n"),
        ],
    })
}

#[cfg(test)]
mod tests {
    use clap::{Args as _, Command as ClapCommand, FromArgMatches as _};

    use super::*;

    fn options(arguments: &str) -> Options {
        let arguments = ["redis-benchmark"].into_iter().chain(arguments.split_whitespace());
        let command = Options::augment_args(ClapCommand::new("redis-benchmark"));
        let matches = command.try_get_matches_from(arguments).expect("the arguments are right");
        Options::from_arg_matches(&matches).expect("the arguments are right")
    }

    fn titles(arguments: &str) -> Vec<String> {
        options(arguments).tests().expect("nothing is read").into_iter().map(|test| test.title).collect()
    }

    #[test]
    fn tests_are_chosen_by_redis_benchmarks_names() {
        assert_eq!(titles("").len(), 20);
        assert_eq!(titles("-t ping,SET"), ["PING_INLINE", "PING_MBULK", "SET"]);
        let lrange = ["LPUSH (needed to benchmark LRANGE)", "LRANGE_300 (first 300 elements)"];
        assert_eq!(titles("-t lrange_300"), lrange);
        assert_eq!(titles("-q -n 5 lpush list -1 __rand_int__"), ["lpush list -1 __rand_int__"]);
    }

    #[test]
    fn every_test_makes_a_workload() {
        for arguments in ["", "-r 1000 -P 16 -d 100", "-r 10 eval {}return{} 0"] {
            let options = options(arguments);
            for test in options.tests().expect("nothing is read") {
                assert!(Compiled::new(&options.workload(&test)).is_ok(), "{}", test.title);
            }
        }
    }

    fn result() -> TestResult {
        let mut micros =
            Histogram::new_with_bounds(FINEST_MICROS, LONGEST_MICROS, 3).expect("as in the program");
        micros.record_n(100, 3).expect("in bounds");
        micros.record(250).expect("in bounds");
        TestResult { title: String::from("SET"), n_done: 4, seconds: 0.002, micros, error: None }
    }

    #[test]
    fn a_line_and_a_row_read_as_redis_benchmarks() {
        assert_eq!(
            options("-q").render(&result(), &[]),
            "SET: 2000.00 requests per second, p50=0.103 msec\n"
        );
        let row = "\"SET\",\"2000.00\",\"0.138\",\"0.096\",\"0.103\",\"0.255\",\"0.255\",\"0.255\"\n";
        assert_eq!(options("--csv").render(&result(), &[]), row);
    }

    #[test]
    fn the_long_form_reads_as_redis_benchmarks() {
        let expected = "====== SET ======\n  4 requests completed in 0.00 seconds\n  50 parallel clients\n  \
            3 bytes payload\n  keep alive: 1\n  multi-thread: no\n\nLatency by percentile distribution:\n\
            0.000% <= 0.103 milliseconds (cumulative count 3)\n\
            87.500% <= 0.255 milliseconds (cumulative count 4)\n\
            100.000% <= 0.255 milliseconds (cumulative count 4)\n\n\
            Cumulative distribution of latencies:\n75.000% <= 0.103 milliseconds (cumulative count 3)\n\
            100.000% <= 0.303 milliseconds (cumulative count 4)\n\nSummary:\n  \
            throughput summary: 2000.00 requests per second\n  latency summary (msec):\n          \
            avg       min       p50       p95       p99       max\n        \
            0.138     0.096     0.103     0.255     0.255     0.255\n";
        assert_eq!(options("").render(&result(), &[]), expected);
    }
}
