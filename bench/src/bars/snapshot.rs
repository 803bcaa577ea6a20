//! BGSAVE of two million keys during a load, and loading its file.

use std::thread;
use std::time::{Duration, Instant};

use super::beside::beside;
use super::contest::{Contest, N_CONNECTIONS, Side};
use crate::bars::measures::{Measure, Target, Unit};
use crate::client::{Client, wrong_reply};
use crate::engine;
use crate::error::{BenchError, Doing};
use crate::load::Load;
use crate::process;
use crate::spawn::Server;
use crate::workload::{Command, Keys, Population, Workload};

const N_KEYS: u64 = 2_000_000;
/// The pipelining at which throughput is measured.
const PIPELINE: usize = 16;
/// The time for which the load runs before the measurement.
const WARMUP: Duration = Duration::from_secs(1);
/// The time between two queries of the save's progress and of resident memory.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// The longest wait for a snapshot.
const PATIENCE: Duration = Duration::from_secs(60);

/// The requests of the load on [`N_CONNECTIONS`] connections: random keys, with values of 100 bytes.
#[derive(Clone, Copy)]
enum Requests {
    /// Equal numbers of GETs and SETs.
    Mixed,
    /// SETs alone, the worst case for a server that must keep the earlier values.
    Set,
}

impl Requests {
    fn load(self, pipeline: usize) -> Result<Load, BenchError> {
        let get = Command { read: true, ..Command::of(&["GET", "{key}"]) };
        let set = Command::of(&["SET", "{key}", "{value:100}"]);
        let fill = ["SET", "{key}", "{value:100}"].map(str::to_owned).to_vec();
        let workload = Workload {
            connections: N_CONNECTIONS,
            pipeline,
            keys: Keys { count: N_KEYS, ..Keys::default() },
            preload: vec![Population { count: None, requests: vec![fill] }],
            commands: match self {
                Self::Mixed => vec![get, set],
                Self::Set => vec![set],
            },
            ..Workload::default()
        };
        Load::new(&workload, 1, Vec::new())
    }
}

/// The cost of a snapshot during a load.
struct Taken {
    per_second_before: f64,
    per_second: f64,
    seconds: f64,
    /// The most resident memory meanwhile over the resident memory before.
    ///
    /// Of a child's pages, only its private ones count.
    resident: f64,
}

impl Taken {
    fn lost_percent(&self) -> f64 {
        100.0 * (1.0 - self.per_second / self.per_second_before)
    }
}

/// Measures commands a second before BGSAVE and during it.
pub(super) fn throughput(contest: &Contest, bar: &str) -> Result<Vec<Measure>, BenchError> {
    let measures = vec![
        Measure::new("lost, GET and SET", Unit::Percent, Target::value(25.0)),
        Measure::new("before", Unit::PerSecond, Target::NONE),
        Measure::new("meanwhile", Unit::PerSecond, Target::NONE),
        Measure::new("lost, SET alone", Unit::Percent, Target::NONE),
    ];
    contest.rounds(bar, contest.n_rounds, measures, |side| {
        let mixed = take_beside(contest, side, Requests::Mixed)?;
        let set = take_beside(contest, side, Requests::Set)?;
        Ok(vec![mixed.lost_percent(), mixed.per_second_before, mixed.per_second, set.lost_percent()])
    })
}

/// Measures resident memory during BGSAVE over that before.
pub(super) fn memory(contest: &Contest, bar: &str) -> Result<Vec<Measure>, BenchError> {
    let measures = vec![
        Measure::new("most resident, GET and SET", Unit::Times, Target::value(1.1)),
        Measure::new("most resident, SET alone", Unit::Times, Target::NONE),
    ];
    contest.rounds(bar, contest.few_rounds(), measures, |side| {
        let mixed = take_beside(contest, side, Requests::Mixed)?;
        Ok(vec![mixed.resident, take_beside(contest, side, Requests::Set)?.resident])
    })
}

/// Measures the seconds until the file is complete.
pub(super) fn time(contest: &Contest, bar: &str) -> Result<Vec<Measure>, BenchError> {
    let measures = vec![
        Measure::new("BGSAVE, GET and SET", Unit::Seconds, Target::ratio(1.0)),
        Measure::new("SAVE, no load", Unit::Seconds, Target::NONE),
    ];
    contest.rounds(bar, contest.few_rounds(), measures, |side| {
        let beside = take_beside(contest, side, Requests::Mixed)?;
        let server = contest.start(side, &[])?;
        fill(&server)?;
        Ok(vec![beside.seconds, save(&server)?.as_secs_f64()])
    })
}

/// Measures the waits of requests during BGSAVE and without it.
///
/// Each connection has one request at a time.
pub(super) fn latency(contest: &Contest, bar: &str) -> Result<Vec<Measure>, BenchError> {
    let measures = vec![
        Measure::new("p99.9 added", Unit::Millis, Target::value(1.0)),
        Measure::new("p99.9 before", Unit::Millis, Target::NONE),
        Measure::new("p99.9 meanwhile", Unit::Millis, Target::NONE),
        Measure::new("max meanwhile", Unit::Millis, Target::NONE),
    ];
    contest.rounds(bar, contest.n_rounds, measures, |side| {
        let server = contest.start(side, &[])?;
        fill(&server)?;
        let load = Requests::Mixed.load(1)?;
        let target = engine::LoadTarget::plain(server.address());
        load.lasting(Duration::ZERO, WARMUP).run(&target, &mut |_| {})?;
        let before = load.lasting(Duration::ZERO, contest.load_time()).run(&target, &mut |_| {})?;
        let (_, meanwhile) = beside(&load, &server, |client| {
            call(client, &["BGSAVE"])?;
            wait_until_saved(client, || Ok(()))
        })?;
        let millis = |outcome: &engine::Outcome, percent| {
            outcome.record.response().value_at_percentile(percent) as f64 / 1e6
        };
        let (p_before, p_meanwhile) = (millis(&before, 99.9), millis(&meanwhile, 99.9));
        Ok(vec![p_meanwhile - p_before, p_before, p_meanwhile, millis(&meanwhile, 100.0)])
    })
}

/// Measures the seconds from starting a server with a snapshot until it answers.
pub(super) fn loading(contest: &Contest, bar: &str) -> Result<Vec<Measure>, BenchError> {
    start_with(contest, bar, &[], 0.5, |server| save(server).map(drop))
}

/// Measures the same with an append-only file that has a command for each key.
pub(super) fn log_loading(contest: &Contest, bar: &str) -> Result<Vec<Measure>, BenchError> {
    let arguments = ["--appendonly", "yes", "--auto-aof-rewrite-percentage", "0"];
    start_with(contest, bar, &arguments, 0.556, |_| Ok(()))
}

/// Starts a server with the files of an earlier one.
///
/// `keep` makes the earlier server save them.
fn start_with(
    contest: &Contest,
    bar: &str,
    arguments: &[&str],
    at_most: f64,
    keep: impl Fn(&Server) -> Result<(), BenchError>,
) -> Result<Vec<Measure>, BenchError> {
    let measures = vec![Measure::new("start with 2M keys", Unit::Seconds, Target::ratio(at_most))];
    let folder = std::env::temp_dir().join(format!("braid-bench-{}-{bar}", std::process::id()));
    std::fs::create_dir_all(&folder).doing(format!("create {}", folder.display()))?;
    let path = folder.display().to_string();
    let measured = contest.rounds(bar, contest.few_rounds(), measures, |side| {
        let path = format!("{path}/{}", side.name());
        // The files of the last round are removed.
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).doing(format!("create {path}"))?;
        let arguments = [&["--dir", &path], arguments].concat();
        let server = contest.start(side, &arguments)?;
        fill(&server)?;
        keep(&server)?;
        drop(server);
        let began = Instant::now();
        let server = contest.start(side, &arguments)?;
        let took = began.elapsed();
        match Client::connect(server.address())?.dbsize()? {
            N_KEYS => Ok(vec![took.as_secs_f64()]),
            n_keys => Err(wrong_reply(&["DBSIZE"], &n_keys)),
        }
    });
    // A scratch folder that cannot be removed is no failure of the measurement.
    let _ = std::fs::remove_dir_all(&folder);
    measured
}

fn fill(server: &Server) -> Result<(), BenchError> {
    Requests::Set.load(1)?.preload(&engine::LoadTarget::plain(server.address()))
}

/// Runs SAVE, and returns its duration.
fn save(server: &Server) -> Result<Duration, BenchError> {
    let began = Instant::now();
    call(&mut Client::connect(server.address())?, &["SAVE"])?;
    Ok(began.elapsed())
}

/// Starts a server with all keys, and takes a snapshot during a load.
fn take_beside(contest: &Contest, side: Side, requests: Requests) -> Result<Taken, BenchError> {
    let server = contest.start(side, &[])?;
    fill(&server)?;
    let load = requests.load(PIPELINE)?;
    let pid = server.pid();
    let (taken, _) = beside(&load, &server, |client| {
        thread::sleep(WARMUP);
        let per_second_before = rate(client, || {
            thread::sleep(contest.load_time() / 2);
            Ok(())
        })?;
        let resident_before = process::resident_bytes(pid)?;
        let mut most = resident_before;
        let mut asking = Client::connect(server.address())?;
        let began = Instant::now();
        let per_second = rate(client, || {
            call(&mut asking, &["BGSAVE"])?;
            wait_until_saved(&mut asking, || {
                most = most.max(process::resident_bytes_with_children(pid)?);
                Ok(())
            })
        })?;
        let seconds = began.elapsed().as_secs_f64();
        let resident = most as f64 / resident_before as f64;
        Ok(Taken { per_second_before, per_second, seconds, resident })
    })?;
    Ok(taken)
}

/// Returns the commands a second during a task, as the server counts them.
fn rate(client: &mut Client, what: impl FnOnce() -> Result<(), BenchError>) -> Result<f64, BenchError> {
    let (n_before, began) = (client.info_figure("total_commands_processed")?, Instant::now());
    what()?;
    let n_commands = client.info_figure("total_commands_processed")? - n_before;
    Ok(n_commands / began.elapsed().as_secs_f64())
}

fn wait_until_saved(
    client: &mut Client,
    mut look: impl FnMut() -> Result<(), BenchError>,
) -> Result<(), BenchError> {
    let began = Instant::now();
    while client.info_figure("rdb_bgsave_in_progress")? > 0.0 {
        if began.elapsed() > PATIENCE {
            return Err(BenchError::Machine(format!("a snapshot takes longer than {PATIENCE:?}")));
        }
        look()?;
        thread::sleep(LOOK_EVERY);
    }
    Ok(())
}

fn call(client: &mut Client, argv: &[&str]) -> Result<(), BenchError> {
    client.call(argv).map(drop)
}
