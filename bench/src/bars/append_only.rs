//! The cost of the append-only file, and the waits on a slow disk.

use std::fs::File;
use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::contest::{Contest, Side, VALUE, load_keys};
use super::cpu;
use super::requests::{Misses, Request, RequestLoad};
use crate::bars::measures::{Measure, Target, Unit};
use crate::client::Client;
use crate::engine::Limit;
use crate::error::{BenchError, Doing};
use crate::null_server::NullServer;
use crate::spawn::Server;

/// The number of keys, which are set at random.
const N_KEYS: &str = "100000";
const PIPELINE: u32 = 16;
/// The additional time of each write to a slow file.
const SLOW: Duration = Duration::from_millis(2500);
/// The number of writes over which the disk's own time is measured.
const N_DISK_WRITES: u32 = 200;

/// Measures the processor time of a SET, 16 in a pipeline.
pub(super) fn cpu(
    contest: &Contest,
    bar: &str,
    fsync: &str,
    target: f64,
) -> Result<Vec<Measure>, BenchError> {
    let measures = vec![
        Measure::new("CPU/SET", Unit::Micros, Target::ratio(target)),
        Measure::new("SET", Unit::PerSecond, Target::NONE),
    ];
    contest.rounds(bar, contest.n_rounds, measures, |side| {
        let server = start(contest, side, fsync, &[])?;
        let (n_requests, arguments) = (contest.n_requests(PIPELINE), ["-r", N_KEYS, "-d", "32", "-t", "set"]);
        let set = cpu::per_command(&contest.redis_benchmark, &server, PIPELINE, n_requests, &arguments)?;
        Ok(vec![set.micros, set.per_second])
    })
}

/// Measures the time from one SET to the next under `always`.
///
/// The time of the disk is a part of it, and so is that of the load. The load's own part is measured with a
/// server that does nothing, because redis-benchmark gets no replies faster.
pub(super) fn rate(contest: &Contest, bar: &str) -> Result<Vec<Measure>, BenchError> {
    let measures = vec![
        Measure::new("50 clients, a SET", Unit::Micros, Target::ratio(0.769)),
        Measure::new("500 clients, a SET", Unit::Micros, Target::ratio(0.5)),
        Measure::new("disk: write and sync", Unit::Micros, Target::NONE),
        Measure::new("load alone, 50 clients", Unit::Micros, Target::NONE),
        Measure::new("load alone, 500 clients", Unit::Micros, Target::NONE),
    ];
    let idle = NullServer::start(None)?;
    contest.rounds(bar, contest.n_rounds, measures, |side| {
        let server = start(contest, side, "always", &[])?;
        let n_requests = contest.n_requests(1).to_string();
        let micros = |address, n_clients: &str| -> Result<f64, BenchError> {
            let arguments = ["-c", n_clients, "-n", &n_requests, "-r", N_KEYS, "-d", "32", "-t", "set"];
            let throughput = contest.redis_benchmark.run(address, &arguments)?;
            Ok(1e6 / throughput.per_second)
        };
        let (of_server, of_load) = (server.address(), idle.address());
        Ok(vec![
            micros(of_server, "50")?,
            micros(of_server, "500")?,
            disk_micros()?,
            micros(of_load, "50")?,
            micros(of_load, "500")?,
        ])
    })
}

/// Measures the waits of GETs of other keys while each write to the file takes seconds.
pub(super) fn slow_disk(contest: &Contest, bar: &str) -> Result<Vec<Measure>, BenchError> {
    let measures = vec![
        Measure::new("GET p99", Unit::Millis, Target::value(5.0)),
        Measure::new("GET max", Unit::Millis, Target::NONE),
    ];
    let gets = RequestLoad {
        request: Request::Get,
        rate: None,
        n_connections: 16,
        n_keys: 100_000,
        value_bytes: VALUE.len(),
        misses: Misses::Wrong,
    };
    contest.rounds(bar, contest.few_rounds(), measures, |side| {
        let server = start(contest, side, "always", &["--enable-debug-command", "yes"])?;
        load_keys(&server, VALUE)?;
        let mut writer = Client::connect(server.address())?;
        writer.call(&["DEBUG", "AOF-FLUSH-SLEEP", &SLOW.as_micros().to_string()])?;
        let is_over = Arc::new(AtomicBool::new(false));
        let limit = Limit::Told(Arc::clone(&is_over));
        thread::scope(|scope| {
            let running = scope.spawn(|| gets.run(server.address(), limit));
            let written = (0..2).try_for_each(|_| writer.call(&["SET", "written", "value"]).map(drop));
            is_over.store(true, Ordering::Relaxed);
            let latencies = running.join().expect("a load does not panic")?;
            written?;
            Ok(vec![latencies.percentile_millis_any_moment(99.0), latencies.max_millis()])
        })
    })
}

/// Starts a server with an append-only file that is not rewritten.
fn start(contest: &Contest, side: Side, fsync: &str, further: &[&str]) -> Result<Server, BenchError> {
    let logs = ["--appendonly", "yes", "--appendfsync", fsync, "--auto-aof-rewrite-percentage", "0"];
    contest.start(side, &[&logs[..], further].concat())
}

/// Measures the disk's time for appending 100 bytes and syncing them, without any server.
fn disk_micros() -> Result<f64, BenchError> {
    let path = std::env::temp_dir().join(format!("braid-bench-{}-disk", std::process::id()));
    let doing = || format!("write to {}", path.display());
    let mut file = File::create(&path).doing(doing())?;
    let began = Instant::now();
    for _ in 0..N_DISK_WRITES {
        file.write_all(&[b'x'; 100]).doing(doing())?;
        file.sync_data().doing(doing())?;
    }
    let took = began.elapsed();
    // A scratch file that cannot be removed is no failure of the measurement.
    let _ = std::fs::remove_file(&path);
    Ok(took.as_secs_f64() * 1e6 / f64::from(N_DISK_WRITES))
}
