//! `braid-bench redis-benchmark`: the options, tests and output of redis-benchmark 7.0.
//!
//! Scripts work unchanged. The requests are the same; the engine sends them. TLS and cluster mode are not
//! supported, and refused by name.

use std::fmt::Write as _;
use std::io::{self, Read};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use braid_protocol::Value;
use clap::Args;
use hdrhistogram::Histogram;

use crate::client::Client;
use crate::endpoint::{Endpoint, greeting};
use crate::engine::{self, Arrivals, Limit, LoadTarget, Plan};
use crate::error::{BenchError, Doing};
use crate::output;
use crate::workload::{Command, Compiled, Keys, Size, Workload};

mod idle;
mod uri;

use self::uri::Uri;

/// The placeholder that redis-benchmark replaces by a random number.
const RANDOM: &str = "__rand_int__";
/// The bounds of redis-benchmark's histograms, in microseconds: from 10 to 3 seconds.
const FINEST_MICROS: u64 = 10;
const LONGEST_MICROS: u64 = 3_000_000;
/// redis-benchmark's own bound on threads.
const MOST_THREADS: usize = 500;
/// redis-benchmark's own bound on the size of values.
const MOST_DATA_BYTES: usize = 1 << 30;
const NO_TLS: &str = "TLS is not supported: connections are plain TCP or Unix sockets";
const NO_CLUSTER: &str =
    "cluster mode is not supported: name one node, and keys of its slots, without --cluster";
const CSV_HEAD: &str = "\"test\",\"rps\",\"avg_latency_ms\",\"min_latency_ms\",\"p50_latency_ms\",\"p95_latency_ms\",\
    \"p99_latency_ms\",\"max_latency_ms\"";

/// Options of `braid-bench redis-benchmark`.
#[derive(Debug, Args)]
#[command(
    disable_help_flag = true,
    disable_version_flag = true,
    version = concat!(env!("CARGO_PKG_VERSION"), ", with the options and output of redis-benchmark 7.0")
)]
pub struct Options {
    /// Print help.
    #[arg(long, action = clap::ArgAction::HelpLong)]
    help: Option<bool>,
    /// Print version.
    #[arg(short = 'v', long, action = clap::ArgAction::Version)]
    version: Option<bool>,
    /// Server hostname.
    #[arg(short = 'h', value_name = "HOSTNAME", default_value = "127.0.0.1")]
    host: String,
    /// Server port.
    #[arg(short = 'p', value_name = "PORT", default_value_t = 6379)]
    port: u16,
    /// Server socket, instead of hostname and port.
    #[arg(short = 's', value_name = "SOCKET")]
    socket: Option<PathBuf>,
    /// Server URI, redis://[[user]:password@][host][:port][/db]; it takes precedence over the options.
    #[arg(short = 'u', value_name = "URI")]
    uri: Option<Uri>,
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
    /// Number of threads; 0 means a single one, as without this option.
    #[arg(long, value_name = "NUM")]
    threads: Option<usize>,
    /// 1 = keep alive, 0 = reconnect after each request.
    #[arg(short = 'k', value_name = "BOOLEAN", default_value_t = 1)]
    keep_alive: u8,
    /// Replaces __rand_int__ by random numbers below this.
    #[arg(short = 'r', value_name = "KEYSPACELEN", allow_negative_numbers = true)]
    random: Option<i64>,
    /// Seed of random numbers, as in redis-benchmark 7.2 and later.
    #[arg(long, value_name = "NUM", allow_negative_numbers = true)]
    seed: Option<i64>,
    /// Requests in a pipeline.
    #[arg(short = 'P', value_name = "NUMREQ", default_value_t = 1)]
    pipeline: usize,
    /// Quiet: one line a test.
    #[arg(short = 'q')]
    quiet: bool,
    /// Accepted and ignored; times are always shown to the microsecond.
    #[arg(long, value_name = "PLACES")]
    precision: Option<u32>,
    /// Output in CSV.
    #[arg(long)]
    csv: bool,
    /// Runs the tests for ever.
    #[arg(short = 'l')]
    forever: bool,
    /// Idle mode: opens the connections and waits.
    #[arg(short = 'I')]
    idle: bool,
    /// Has no effect, as in redis-benchmark: the first error ends it anyway.
    #[arg(short = 'e', hide = true)]
    show_errors: bool,
    /// Runs only these tests.
    #[arg(short = 't', value_name = "TESTS")]
    tests: Option<String>,
    /// Reads the last argument from standard input.
    #[arg(short = 'x')]
    last_from_input: bool,
    /// Sends CLIENT TRACKING on first.
    #[arg(long)]
    enable_tracking: bool,
    #[command(flatten)]
    unsupported: Unsupported,
    /// A command to send instead of the tests.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<String>,
}

/// Options of redis-benchmark for features that are missing here: known, so that they are refused by meaning.
#[derive(Debug, Args)]
struct Unsupported {
    #[arg(long, hide = true)]
    cluster: bool,
    #[arg(long, hide = true)]
    tls: bool,
    #[arg(long, hide = true)]
    insecure: bool,
    #[arg(long, hide = true)]
    sni: Option<String>,
    #[arg(long, hide = true)]
    cacert: Option<PathBuf>,
    #[arg(long, hide = true)]
    cacertdir: Option<PathBuf>,
    #[arg(long, hide = true)]
    cert: Option<PathBuf>,
    #[arg(long, hide = true)]
    key: Option<PathBuf>,
    #[arg(long, hide = true)]
    tls_ciphers: Option<String>,
    #[arg(long, hide = true)]
    tls_ciphersuites: Option<String>,
}

impl Unsupported {
    fn refuse(&self) -> Result<(), BenchError> {
        let Self { cluster, tls, insecure, sni, cacert, cacertdir, cert, key, tls_ciphers, tls_ciphersuites } =
            self;
        let files = [cacert, cacertdir, cert, key];
        let texts = [sni, tls_ciphers, tls_ciphersuites];
        let wants_tls = *tls
            || *insecure
            || files.iter().any(|option| option.is_some())
            || texts.iter().any(|option| option.is_some());
        match (cluster, wants_tls) {
            (true, _) => Err(BenchError::Machine(NO_CLUSTER.to_owned())),
            (_, true) => Err(BenchError::Machine(NO_TLS.to_owned())),
            _ => Ok(()),
        }
    }
}

/// One of redis-benchmark's tests.
#[derive(Debug, Clone, PartialEq)]
struct Test {
    title: String,
    command: Command,
}

/// The tests: the names that select them, the title, and the command, with `DATA` for the payload.
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

/// Runs the tests and prints their results, or holds idle connections.
///
/// Like redis-benchmark, it exits with 1 when the server cannot be reached, and at the first test that an
/// error answered.
///
/// # Errors
/// When an argument makes no sense or requests a missing feature.
pub fn run(options: &Options) -> Result<ExitCode, BenchError> {
    options.unsupported.refuse()?;
    let tests = options.tests()?;
    options.warn();
    let done = options.target().and_then(|target| {
        if options.idle { options.hold_idle(&target) } else { options.run_tests(&target, &tests) }
    });
    done.or_else(|error| {
        eprintln!("{}", complaint(error)?);
        Ok(ExitCode::FAILURE)
    })
}

/// Returns redis-benchmark's message for a server's error.
///
/// # Errors
/// The same error, if the server did not cause it.
fn complaint(error: BenchError) -> Result<String, BenchError> {
    match error {
        BenchError::Io { doing, source } if doing.starts_with(CONNECTING) => {
            Ok(format!("Could not connect to Redis at {}: {}", &doing[CONNECTING.len()..], plain(&source)))
        }
        BenchError::Io { source, .. } => Ok(format!("Error: {}", plain(&source))),
        BenchError::WrongReply { reply, .. } => Ok(format!("Error from server: {reply}")),
        other => Err(other),
    }
}

/// The start of [`BenchError::Io`]'s `doing` when a server cannot be reached.
const CONNECTING: &str = "connect to ";

/// Writes an error of the system without its number.
fn plain(error: &io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or(&text).to_owned()
}

/// The result of a test.
#[derive(Debug)]
struct TestResult {
    title: String,
    n_done: u64,
    seconds: f64,
    micros: Histogram<u64>,
    error: Option<String>,
}

impl Options {
    /// Warns about ignored options, as redis-benchmark does.
    fn warn(&self) {
        if self.show_errors {
            eprintln!(
                "WARNING: -e option has no effect. We now immediately exit on error to avoid false results."
            );
        }
        if self.threads > Some(MOST_THREADS) {
            eprintln!("WARNING: Too many threads, limiting threads to {MOST_THREADS}.");
        }
        if self.tests.is_some() && !self.command.is_empty() {
            eprintln!("WARNING: Option -t is ignored.");
        }
    }

    /// The server, and the requests that each connection sends first.
    fn target(&self) -> Result<LoadTarget, BenchError> {
        let uri = self.uri.clone().unwrap_or_default();
        let mut target = match &self.socket {
            Some(path) => Endpoint::unix(path).target,
            None => {
                let host = uri.host.as_deref().unwrap_or(&self.host);
                Endpoint::on(host, uri.port.unwrap_or(self.port))?.target
            }
        };
        let user = uri.user.as_deref().or(self.user.as_deref());
        let password = uri.password.as_deref().or(self.password.as_deref());
        let protocol = if self.resp3 { 3 } else { 2 };
        target.greeting = greeting(user, password, uri.db.unwrap_or(self.db), protocol);
        if self.enable_tracking {
            target.greeting.push(["CLIENT", "TRACKING", "on"].map(str::to_owned).to_vec());
        }
        Ok(target)
    }

    fn hold_idle(&self, target: &LoadTarget) -> Result<ExitCode, BenchError> {
        let n_connections = self.n_connections();
        output::print(format_args!(
            "Creating {n_connections} idle connections and waiting forever (Ctrl+C when done)\n"
        ))?;
        idle::hold(&target.address, n_connections, &mut |n_open| {
            output::print(format_args!("clients: {n_open}\r"))
        })?;
        Ok(ExitCode::SUCCESS)
    }

    fn run_tests(&self, target: &LoadTarget, tests: &[Test]) -> Result<ExitCode, BenchError> {
        let configuration = host_configuration(target)?;
        if self.csv {
            output::print(format_args!("{CSV_HEAD}\n"))?;
        }
        loop {
            for test in tests {
                let result = self.measure(target, test)?;
                if let Some(error) = &result.error {
                    eprintln!("Error from server: {error}");
                    return Ok(ExitCode::FAILURE);
                }
                output::print(self.render(&result, &configuration))?;
            }
            if self.quiet && !self.csv {
                output::print("\n")?;
            }
            if !self.forever {
                return Ok(ExitCode::SUCCESS);
            }
        }
    }

    /// The number of connections, at least one.
    fn n_connections(&self) -> usize {
        self.clients.max(1)
    }

    fn data_bytes(&self) -> usize {
        self.data_bytes.clamp(1, MOST_DATA_BYTES)
    }

    /// Returns the number of threads if `--threads` sets it above 0.
    fn n_threads(&self) -> Option<usize> {
        self.threads.map(|n_threads| n_threads.min(MOST_THREADS)).filter(|&n_threads| n_threads > 0)
    }

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
        let mut last = None;
        if self.last_from_input {
            let mut read = String::new();
            io::stdin().read_to_string(&mut read).doing("read standard input")?;
            last = Some(read);
        }
        Ok(vec![self.test_of_command(last)])
    }

    /// Makes a test of the given command, with its last argument from standard input if requested.
    ///
    /// An argument from standard input is not part of the title.
    fn test_of_command(&self, last: Option<String>) -> Test {
        let title = self.command.join(" ");
        let args = self.command.iter().chain(&last).map(|arg| self.template(arg)).collect();
        Test { title, command: Command { args, ..Command::default() } }
    }

    fn test(&self, (_, title, words): &(&[&str], &str, &str)) -> Test {
        let data = "x".repeat(self.data_bytes());
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

    /// Returns an argument as a template. Without `-r` the placeholder stays as it is, as in redis-benchmark.
    fn template(&self, argument: &str) -> String {
        let escaped = argument.replace('{', "{{").replace('}', "}}");
        if self.random.is_some() { escaped.replace(RANDOM, "{key}") } else { escaped }
    }

    fn workload(&self, test: &Test) -> Workload {
        Workload {
            seed: self.seed.map_or(Workload::default().seed, |seed| seed as u64),
            connections: self.n_connections(),
            pipeline: self.pipeline.max(1),
            reconnect_after: (self.keep_alive == 0).then_some(1),
            keys: Keys {
                count: self.random.map_or(1, |below| below.max(1) as u64),
                prefix: String::new(),
                size: Size::Fixed(12),
                ..Keys::default()
            },
            commands: vec![test.command.clone()],
            ..Workload::default()
        }
    }

    fn measure(&self, target: &LoadTarget, test: &Test) -> Result<TestResult, BenchError> {
        let compiled = Arc::new(Compiled::new(&self.workload(test))?);
        let plan = Plan {
            arrivals: Arrivals::Closed,
            limit: Limit::Requests(self.requests),
            n_threads: self.n_threads().unwrap_or(1),
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
        let _ = writeln!(text, "  {} parallel clients\n  {} bytes payload", self.clients, self.data_bytes());
        let _ = writeln!(text, "  keep alive: {}", self.keep_alive);
        configuration.iter().for_each(|line| text += line);
        match self.n_threads() {
            None => text += "  multi-thread: no\n\n",
            Some(n_threads) => {
                let _ = writeln!(text, "  multi-thread: yes\n  threads: {n_threads}\n");
            }
        }
        text
    }
}

/// Writes the two lists of percentiles.
///
/// One goes by halving distances to the end, the other by steps of a tenth of a millisecond.
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

/// Returns the settings of a server that redis-benchmark shows.
fn host_configuration(target: &LoadTarget) -> Result<Vec<String>, BenchError> {
    let mut client = Client::greet(&target.address, &target.greeting)?;
    let mut ask = |name: &str| setting(&client.call(&["CONFIG", "GET", name]).ok()?);
    let (save, append) = (ask("save"), ask("appendonly"));
    Ok(match save.zip(append) {
        None => {
            eprintln!("WARNING: Could not fetch server CONFIG");
            Vec::new()
        }
        Some((save, append)) => vec![
            format!("  host configuration \"save\": {save}\n"),
            format!("  host configuration \"appendonly\": {append}\n"),
        ],
    })
}

/// Returns the value in a reply to CONFIG GET, in either version of RESP.
fn setting(reply: &Value) -> Option<String> {
    let value = match reply {
        Value::Map(pairs) => &pairs.first()?.1,
        reply => reply.as_array()?.get(1)?,
    };
    Some(String::from_utf8_lossy(value.as_bytes()?).into_owned())
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::net::{Shutdown, SocketAddr, TcpStream};
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixListener;
    use std::path::Path;
    use std::thread;

    use clap::{Args as _, FromArgMatches as _};
    use socket2::SockRef;

    use super::*;
    use crate::null_server::NullServer;

    fn options(arguments: &str) -> Options {
        let arguments = ["redis-benchmark"].into_iter().chain(arguments.split_whitespace());
        let command = Options::augment_args(clap::Command::new("redis-benchmark"));
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
    fn an_argument_from_standard_input_is_sent_and_not_shown() {
        let test = options("-x set key").test_of_command(Some(String::from("a{b}\nc")));
        assert_eq!((test.title.as_str(), test.command.args.len()), ("set key", 3));
        assert_eq!(test.command.args[2], "a{{b}}\nc");
    }

    #[test]
    fn a_setting_is_read_in_both_versions_of_the_protocol() {
        let [name, value] = ["save", "900 1"].map(|text| Value::Bulk(text.as_bytes().to_vec()));
        let found = Some(String::from("900 1"));
        assert_eq!(setting(&Value::Array(vec![name.clone(), value.clone()])), found);
        assert_eq!(setting(&Value::Map(vec![(name, value)])), found);
        assert_eq!(setting(&Value::Array(Vec::new())), None);
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

    /// Forwards connections on a Unix socket to `address`, until they are closed.
    fn relay(path: &Path, address: SocketAddr, n_connections: usize) -> thread::JoinHandle<()> {
        let listener = UnixListener::bind(path).expect("the directory is our own");
        thread::spawn(move || {
            let connections: Vec<_> = (0..n_connections)
                .flat_map(|_| {
                    let client = listener.accept().expect("it listens").0;
                    let server = TcpStream::connect(address).expect("the server listens");
                    let [mut from_client, mut from_server] = [
                        client.try_clone().expect("a socket").into(),
                        server.try_clone().expect("a socket").into(),
                    ]
                    .map(|socket: OwnedFd| File::from(socket));
                    let [mut to_client, mut to_server] =
                        [OwnedFd::from(client), OwnedFd::from(server)].map(File::from);
                    let asking = thread::spawn(move || {
                        let _ = io::copy(&mut from_client, &mut to_server);
                        let _ = SockRef::from(&to_server).shutdown(Shutdown::Both);
                    });
                    let answering = thread::spawn(move || {
                        let _ = io::copy(&mut from_server, &mut to_client);
                    });
                    [asking, answering]
                })
                .collect();
            connections.into_iter().for_each(|thread| thread.join().expect("copying does not panic"));
        })
    }

    #[test]
    fn a_unix_socket_is_loaded_like_a_port() {
        let server = NullServer::start(None).expect("loopback can be listened on");
        let scratch = std::env::temp_dir().join(format!("braid-bench-unix-{}", std::process::id()));
        std::fs::create_dir_all(&scratch).expect("scratch space is there");
        let socket = scratch.join("socket");
        let serving = relay(&socket, server.address(), 3);
        let options = options(&format!("-s {} -u redis://elsewhere:1 -c 3 -n 300 -t get", socket.display()));
        let target = options.target().expect("a socket needs no look-up");
        let test = &options.tests().expect("nothing is read")[0];
        let result = options.measure(&target, test).expect("the socket is served");
        assert_eq!((result.n_done, result.error), (300, None));
        serving.join().expect("the relay does not panic");
        std::fs::remove_dir_all(&scratch).expect("it is our own");
    }

    #[test]
    fn a_uri_names_the_server_before_the_options_do() {
        let target = |arguments: &str| options(arguments).target().expect("it is an address");
        let named = target("-p 1 --dbnum 2 -u redis://u:p@127.0.0.1:7/3");
        assert_eq!(named.address.to_string(), "127.0.0.1:7");
        assert_eq!(named.greeting, [vec!["AUTH", "u", "p"], vec!["SELECT", "3"]]);
        let rest = target("-p 8 -a secret --dbnum 2 -u redis://");
        assert_eq!(rest.address.to_string(), "127.0.0.1:8");
        assert_eq!(rest.greeting, [vec!["AUTH", "secret"], vec!["SELECT", "2"]]);
    }

    #[test]
    fn what_is_not_there_is_refused_by_name() {
        for arguments in ["--tls", "--cacert file", "--insecure -t get", "--sni host", "--tls-ciphers a:b"] {
            let error = run(&options(arguments)).expect_err(arguments).to_string();
            assert!(error.contains("TLS is not supported"), "{arguments}: {error}");
        }
        let error = run(&options("--cluster")).expect_err("there is no cluster mode").to_string();
        assert!(error.contains("cluster mode is not supported"), "{error}");
    }

    #[test]
    fn figures_beyond_the_bounds_are_brought_within_as_redis_benchmark_does() {
        let options = options("-c 0 -d 0 -P 0 -r -5 --threads 0");
        let workload = options.workload(&options.tests().expect("nothing is read")[2]);
        assert_eq!((workload.connections, workload.pipeline, workload.keys.count), (1, 1, 1));
        assert_eq!((options.data_bytes(), options.n_threads()), (1, None));
        assert!(options.heading(&result(), &[]).contains("1 bytes payload"));
    }

    #[test]
    fn a_server_that_does_not_do_as_it_should_is_told_in_redis_benchmarks_words() {
        let said = |error| complaint(error).expect("it is the server's");
        let refused = io::Error::from_raw_os_error(111);
        let error = Err::<(), _>(refused).doing("connect to 127.0.0.1:1").expect_err("it is one");
        assert_eq!(said(error), "Could not connect to Redis at 127.0.0.1:1: Connection refused");
        let closed = io::Error::new(io::ErrorKind::UnexpectedEof, "Server closed the connection");
        let error = Err::<(), _>(closed).doing("hold a connection").expect_err("it is one");
        assert_eq!(said(error), "Error: Server closed the connection");
        let (request, reply) = (String::from("SELECT 99"), String::from("ERR DB index is out of range"));
        assert_eq!(
            said(BenchError::WrongReply { request, reply }),
            "Error from server: ERR DB index is out of range"
        );
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
