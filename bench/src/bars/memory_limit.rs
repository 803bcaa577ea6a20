//! A server's memory under `maxmemory`, and the waits while it evicts.

use std::thread;
use std::time::{Duration, Instant};

use super::beside::beside;
use super::contest::{Contest, Side};
use crate::bars::measures::{Measure, Target, Unit};
use crate::client::Client;
use crate::engine::{self, Record};
use crate::error::BenchError;
use crate::load::Load;
use crate::process;
use crate::spawn::Server;
use crate::workload::{Command, Expiry, Keys, Population, Size, Values, Workload};

const MIB: f64 = 1024.0 * 1024.0;
const LIMIT: &str = "200mb";
/// The bound on resident memory under that limit: 1.05 times the limit and 16 MiB.
const MOST_RESIDENT_MIB: f64 = 226.0;
/// Connections that write.
///
/// They are few, so that a GET waits for the server and not for the requests of other connections.
const N_WRITERS: usize = 8;
/// Keys that are written. Together they would take about eight times the limit.
const N_WRITTEN_KEYS: u64 = 100_000;
/// Keys that are set first: they take about one and a half times the limit.
const N_FILLING_KEYS: u64 = 20_000;
/// The range of value sizes in bytes, spread evenly over the logarithms.
const VALUE_BYTES: [f64; 2] = [16.0, 150_000.0];
/// The number of different sizes.
const N_SIZES: u32 = 64;
/// The time between two samples of memory.
const SAMPLE_EVERY: Duration = Duration::from_millis(20);

/// The number of keys before the limit is halved: 400 MiB of values.
const N_HALVED_KEYS: u64 = 400 * 1024;
const HALVED_VALUE_BYTES: u64 = 1024;
/// GETs a second meanwhile.
///
/// The rate is low because each GET may evict for a while before it is answered, and none must wait for
/// another.
const GETS_PER_SECOND: f64 = 1000.0;
/// Connections that send the GETs in turns. A waiting GET does not delay the next one.
const N_GETTERS: usize = 100;
/// The time between two queries of the used memory.
const POLL_EVERY: Duration = Duration::from_millis(2);
/// The longest wait for the server to come below the limit.
const PATIENCE: Duration = Duration::from_secs(60);

/// A policy of eviction, and the number of its rounds. All policies together take minutes.
struct Policy {
    name: &'static str,
    is_in_each_round: bool,
}

impl Policy {
    const ALL: [Self; 7] = [
        Self { name: "allkeys-lru", is_in_each_round: true },
        Self::once("allkeys-lfu"),
        Self::once("allkeys-random"),
        Self::once("volatile-lru"),
        Self::once("volatile-lfu"),
        Self::once("volatile-random"),
        Self::once("volatile-ttl"),
    ];

    const fn once(name: &'static str) -> Self {
        Self { name, is_in_each_round: false }
    }

    /// Makes a workload of writes of random keys, with one GET in ten requests.
    ///
    /// Where only keys with a deadline are evicted, all keys have one. No deadline passes before the end.
    fn workload(&self) -> Workload {
        let set: &[&str] = if self.name.starts_with("volatile") {
            &["SET", "{key}", "{value}", "EX", "{ttl}"]
        } else {
            &["SET", "{key}", "{value}"]
        };
        Workload {
            connections: N_WRITERS,
            keys: Keys { count: N_WRITTEN_KEYS, ..Keys::default() },
            values: Values { size: mixed_sizes() },
            expiry: Expiry { seconds: Size::Range { min: 10_000, max: 1_000_000 }, ..Expiry::default() },
            preload: vec![Population {
                count: Some(N_FILLING_KEYS),
                requests: vec![set.iter().map(|&argument| argument.to_owned()).collect()],
            }],
            commands: vec![
                Command { weight: 9.0, ..Command::of(set) },
                Command { read: true, ..Command::of(&["GET", "{key}"]) },
            ],
            ..Workload::default()
        }
    }
}

/// Measures resident memory and the waits of GETs during writes to a full server.
///
/// The written values have all sizes.
pub(super) fn under_writes(contest: &Contest, bar: &str) -> Result<Vec<Measure>, BenchError> {
    let mut all = Vec::new();
    for policy in Policy::ALL {
        let name = policy.name;
        let measures = vec![
            Measure::new(format!("most resident, {name}"), Unit::MiB, Target::value(MOST_RESIDENT_MIB)),
            Measure::new(format!("GET p99.9, {name}"), Unit::Millis, Target::value(2.0)),
        ];
        let n_rounds = if policy.is_in_each_round { contest.few_rounds() } else { 1 };
        all.extend(contest.rounds(bar, n_rounds, measures, |side| write_once(contest, side, &policy))?);
    }
    Ok(all)
}

fn write_once(contest: &Contest, side: Side, policy: &Policy) -> Result<Vec<f64>, BenchError> {
    let server = contest.start(side, &["--maxmemory", LIMIT, "--maxmemory-policy", policy.name])?;
    let load = Load::new(&policy.workload(), 1, Vec::new())?;
    load.preload(&engine::LoadTarget::plain(server.address()))?;
    let (mut most, mut resident) = (0, 0);
    let ((n_evicted, used), outcome) = beside(&load, &server, |client| {
        let n_evicted_before = client.info_figure("evicted_keys")?;
        let began = Instant::now();
        while began.elapsed() < contest.load_time() {
            resident = process::resident_bytes(server.pid())?;
            most = resident.max(most);
            thread::sleep(SAMPLE_EVERY);
        }
        let n_evicted = client.info_figure("evicted_keys")? - n_evicted_before;
        Ok((n_evicted, client.info_figure("used_memory")?))
    })?;
    let n_sets = outcome.record.commands[0].n_done as f64;
    let in_the_end =
        format!("{:.0} MiB used and {:.0} resident in the end", used / MIB, resident as f64 / MIB);
    eprintln!("  {}: {n_sets} SETs, {n_evicted} keys evicted, {in_the_end}", policy.name);
    if n_evicted < n_sets / 2.0 {
        let reply = format!("{n_evicted} keys were evicted: the server was not full");
        return Err(BenchError::WrongReply { request: format!("{n_sets} SETs"), reply });
    }
    Ok(vec![most as f64 / MIB, millis(&outcome.record, 1, 99.9)])
}

/// Returns sizes at equal distances of their logarithms, all equally frequent.
fn mixed_sizes() -> Size {
    let [least, most] = VALUE_BYTES;
    let size = |nth| least * (most / least).powf(f64::from(nth) / f64::from(N_SIZES - 1));
    Size::Weighted((0..N_SIZES).map(|nth| (size(nth).round() as u64, 1.0)).collect())
}

/// The response time, in milliseconds, that `percent` of a command's requests do not exceed.
fn millis(record: &Record, command: usize, percent: f64) -> f64 {
    record.commands[command].response.value_at_percentile(percent) as f64 / 1e6
}

/// Measures the waits of GETs, and the time of the eviction, after the limit is lowered.
///
/// The new limit is half of the used memory.
pub(super) fn halving(contest: &Contest, bar: &str) -> Result<Vec<Measure>, BenchError> {
    let measures = vec![
        Measure::new("GET max", Unit::Millis, Target::value(5.0)),
        Measure::new("GET max before", Unit::Millis, Target::NONE),
        Measure::new("evicting 1 GB", Unit::Seconds, Target::value(2.0)),
    ];
    contest.rounds(bar, contest.few_rounds(), measures, |side| {
        let server = contest.start(side, &["--maxmemory-policy", "allkeys-lru"])?;
        let target = engine::LoadTarget::plain(server.address());
        let gets = gets()?;
        gets.preload(&target)?;
        let before = gets.lasting(Duration::ZERO, contest.load_time() / 2).run(&target, &mut |_| {})?;
        let (seconds_per_gigabyte, meanwhile) = beside(&gets, &server, |client| halve(client, &server))?;
        Ok(vec![millis(&meanwhile.record, 0, 100.0), millis(&before.record, 0, 100.0), seconds_per_gigabyte])
    })
}

fn gets() -> Result<Load, BenchError> {
    let set = ["SET", "{key}", "{value}"].map(str::to_owned).to_vec();
    let workload = Workload {
        connections: N_GETTERS,
        rate: Some(GETS_PER_SECOND),
        keys: Keys { count: N_HALVED_KEYS, ..Keys::default() },
        values: Values { size: Size::Fixed(HALVED_VALUE_BYTES) },
        preload: vec![Population { count: None, requests: vec![set] }],
        commands: vec![Command::of(&["GET", "{key}"])],
        ..Workload::default()
    };
    Load::new(&workload, 1, Vec::new())
}

/// Halves the limit, and waits until the server is below it.
///
/// Returns the seconds for each gigabyte that the server has evicted.
fn halve(client: &mut Client, server: &Server) -> Result<f64, BenchError> {
    let mut looking = Client::connect(server.address())?;
    let used_before = looking.info_figure("used_memory")?;
    let limit = (used_before / 2.0).floor();
    let began = Instant::now();
    client.call(&["CONFIG", "SET", "maxmemory", &limit.to_string()])?;
    loop {
        let (used, took) = (looking.info_figure("used_memory")?, began.elapsed());
        if used <= limit {
            return Ok(took.as_secs_f64() / ((used_before - used) / 1e9));
        }
        if took > PATIENCE {
            let why = format!("{used} bytes are used {PATIENCE:?} after the limit became {limit}");
            return Err(BenchError::Machine(why));
        }
        thread::sleep(POLL_EVERY);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_reach_from_the_least_to_the_most() {
        let Size::Weighted(sizes) = mixed_sizes() else { panic!("they are weighted") };
        assert_eq!((sizes[0].0, sizes[N_SIZES as usize - 1].0), (16, 150_000));
        assert!(sizes.windows(2).all(|pair| pair[0].0 < pair[1].0));
    }

    #[test]
    fn all_loads_make_sense() {
        for policy in Policy::ALL {
            Load::new(&policy.workload(), 1, Vec::new()).unwrap_or_else(|error| panic!("{error}"));
        }
        gets().unwrap_or_else(|error| panic!("{error}"));
    }
}
