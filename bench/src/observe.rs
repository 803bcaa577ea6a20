//! The server seen from outside, through INFO and, on this machine, through /proc.
//!
//! From both follows the limit of a load.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use braid_protocol::Value;
use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use serde::Serialize;

use crate::client::Client;
use crate::endpoint::Endpoint;
use crate::engine::{LoadTarget, Outcome};
use crate::error::{BenchError, Doing};
use crate::process::{self, CpuSample};
use crate::workload::Workload;

/// The share of a core, or of all cores, that counts as fully used.
const SATURATED: f64 = 0.9;
/// The share of a core from which a thread counts as working.
const WORKING: f64 = 0.05;
/// A key that takes this share of requests is hot.
const HOT_SHARE: f64 = 0.1;
/// The answered share of the offered requests from which an open loop kept up.
const KEPT_UP: f64 = 0.99;

/// Samples one server.
#[derive(Debug)]
pub struct Observer {
    target: LoadTarget,
    /// The server's process, if it runs here.
    pid: Option<u32>,
}

/// A server and its machine at one moment.
#[derive(Debug, Clone)]
pub struct Sample {
    at: Instant,
    /// INFO's fields; empty where there is no INFO.
    pub info: BTreeMap<String, String>,
    threads: BTreeMap<u32, Duration>,
    cpu: Option<CpuSample>,
    /// Resident bytes, from /proc or from INFO.
    pub resident_bytes: Option<u64>,
    machine: Option<MachineTime>,
}

/// The ticks of all cores of this machine so far.
#[derive(Debug, Clone, Copy)]
struct MachineTime {
    total: u64,
    idle: u64,
}

/// The server's use of the machine between two samples.
#[derive(Debug, Clone, Serialize)]
pub struct ServerUse {
    /// Processor time of all its threads, in seconds.
    pub cpu_seconds: Option<f64>,
    /// Processor time of all its threads in each second: 1 is one core.
    pub cpu_cores: Option<f64>,
    /// Processor time of its busiest thread in each second, if it runs on this machine.
    pub busiest_thread: Option<f64>,
    /// Threads that did a noticeable part of the work.
    pub n_working_threads: usize,
    /// The used share of all cores of this machine, if the server runs here.
    pub machine_busy: Option<f64>,
    /// Resident bytes before.
    pub resident_bytes_before: Option<u64>,
    /// Resident bytes after.
    pub resident_bytes_after: Option<u64>,
    /// Keys evicted meanwhile.
    pub evicted_keys: u64,
    /// Keys expired meanwhile.
    pub expired_keys: u64,
    /// Share of reads that found their key, as the server counts them.
    pub hit_share: Option<f64>,
    /// `used_memory` over `maxmemory`, where there is a limit.
    pub memory_full: Option<f64>,
}

/// The limit that keeps the rate from being higher.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Bottleneck {
    /// The kind of the limit.
    pub kind: BottleneckKind,
    /// The figure that shows it, in words.
    pub why: String,
}

/// The resources that may run out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum BottleneckKind {
    /// The load generator; the figures are a lower bound.
    Client,
    /// The server's memory limit; it evicts keys to make room.
    Evictions,
    /// A thread that serves one key.
    HotKey,
    /// One thread of the server.
    OneCore,
    /// All cores of the machine.
    AllCores,
    /// A network interface.
    Network,
    /// The server's memory.
    Memory,
    /// Each connection waits for its replies. More connections or deeper pipelines would send more requests.
    RoundTrips,
    /// Unknown, because the server does not report its use.
    Unknown,
    /// No limit: all offered requests were answered.
    None,
}

/// Samples of the server second by second, if it runs here.
#[derive(Debug, Default)]
pub struct Seen {
    /// Its processor time in each second, in cores.
    pub cpu: Vec<f64>,
    /// The most resident bytes.
    pub peak_bytes: Option<u64>,
}

impl Observer {
    /// Makes an observer of an endpoint's server.
    pub fn new(endpoint: &Endpoint) -> Self {
        let target = endpoint.target.clone();
        let pid = endpoint.spawned_pid().or_else(|| local_pid(&target));
        Self { target, pid }
    }

    /// Takes a sample.
    pub fn sample(&self) -> Sample {
        let info = info(&self.target).unwrap_or_default();
        let resident_bytes = match self.pid {
            Some(pid) => process::resident_bytes(pid).ok(),
            None => number(&info, "used_memory_rss"),
        };
        Sample {
            at: Instant::now(),
            info,
            threads: self.pid.and_then(|pid| process::thread_times(pid).ok()).unwrap_or_default(),
            cpu: self.cpu(),
            resident_bytes,
            machine: self.pid.and_then(|_| machine_time()),
        }
    }

    /// The server's resident bytes, if it runs here.
    pub fn resident_bytes(&self) -> Option<u64> {
        process::resident_bytes(self.pid?).ok()
    }

    /// The server's processor time, if it runs here.
    pub fn cpu(&self) -> Option<CpuSample> {
        CpuSample::of(self.pid?).ok()
    }

    /// Restricts all threads of the server to some cores.
    ///
    /// # Errors
    /// When it does not run here or belongs to another user.
    pub fn pin(&self, cpus: &[usize]) -> Result<(), BenchError> {
        if cpus.is_empty() {
            return Ok(());
        }
        let Some(pid) = self.pid else {
            return Err(BenchError::Machine(String::from(
                "--server-cpus: the server does not run on this machine",
            )));
        };
        let mut set = CpuSet::new();
        cpus.iter().for_each(|&cpu| set.set(cpu));
        for thread in process::thread_times(pid)?.into_keys() {
            sched_setaffinity(Pid::from_raw(thread as i32), &set)
                .map_err(io::Error::from)
                .doing("keep the server on its cores")?;
        }
        Ok(())
    }

    /// Whether the server may run on a core that the client's threads may use too.
    ///
    /// It is `false` if the server runs elsewhere.
    pub fn shares_cores(&self, client_cpus: &[usize]) -> bool {
        let Some(pid) = self.pid else { return false };
        let (Ok(server), Ok(client)) =
            (sched_getaffinity(Pid::from_raw(pid as i32)), sched_getaffinity(None))
        else {
            return true;
        };
        let may_client =
            |cpu| if client_cpus.is_empty() { client.is_set(cpu) } else { client_cpus.contains(&cpu) };
        (0..CpuSet::MAX_CPU).any(|cpu| server.is_set(cpu) && may_client(cpu))
    }
}

impl Sample {
    /// Returns the server's use since `earlier`.
    pub fn since(&self, earlier: &Self) -> ServerUse {
        let seconds = (self.at - earlier.at).as_secs_f64();
        let counted = |field| {
            let value = |sample: &Self| number::<u64>(&sample.info, field).unwrap_or(0);
            value(self).saturating_sub(value(earlier))
        };
        let reported = |sample: &Self| {
            let part = |field| number::<f64>(&sample.info, field);
            Some(part("used_cpu_user")? + part("used_cpu_sys")?)
        };
        let cpu_seconds = match (self.cpu, earlier.cpu) {
            (Some(now), Some(then)) => Some(now.since(then).as_secs_f64()),
            _ => reported(self).zip(reported(earlier)).map(|(now, then)| now - then),
        };
        let (hits, misses) = (counted("keyspace_hits") as f64, counted("keyspace_misses") as f64);
        let shares = self.threads.iter().map(|(thread, time)| {
            let earlier = earlier.threads.get(thread).copied().unwrap_or_default();
            time.saturating_sub(earlier).as_secs_f64() / seconds
        });
        ServerUse {
            cpu_seconds,
            cpu_cores: cpu_seconds.map(|cpu| cpu / seconds),
            busiest_thread: shares.clone().reduce(f64::max),
            n_working_threads: shares.filter(|&share| share > WORKING).count(),
            machine_busy: self.machine.zip(earlier.machine).map(|(now, then)| {
                let total = (now.total - then.total).max(1) as f64;
                1.0 - (now.idle - then.idle) as f64 / total
            }),
            resident_bytes_before: earlier.resident_bytes,
            resident_bytes_after: self.resident_bytes,
            evicted_keys: counted("evicted_keys"),
            expired_keys: counted("expired_keys"),
            hit_share: (hits + misses > 0.0).then(|| hits / (hits + misses)),
            memory_full: self.memory_full(),
        }
    }

    /// The server's name and version, as far as INFO tells.
    pub fn server_version(&self) -> String {
        let known = [
            ("braid_version", "Braid"),
            ("dragonfly_version", "Dragonfly"),
            ("valkey_version", "Valkey"),
            ("redis_version", "Redis"),
        ];
        known
            .iter()
            .find_map(|(field, name)| self.info.get(*field).map(|version| format!("{name} {version}")))
            .unwrap_or_else(|| String::from("unknown"))
    }

    /// The bytes that the server has allocated, as it reports them.
    pub fn used_bytes(&self) -> Option<u64> {
        number(&self.info, "used_memory")
    }

    fn memory_full(&self) -> Option<f64> {
        let limit = number::<f64>(&self.info, "maxmemory").filter(|&limit| limit > 0.0)?;
        Some(number::<f64>(&self.info, "used_memory")? / limit)
    }
}

impl fmt::Display for BottleneckKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Client => "the client",
            Self::Evictions => "evictions",
            Self::HotKey => "a hot key",
            Self::OneCore => "one core of the server",
            Self::AllCores => "all cores",
            Self::Network => "the network",
            Self::Memory => "memory",
            Self::RoundTrips => "round trips",
            Self::Unknown => "unknown",
            Self::None => "none",
        })
    }
}

/// Names the limit that kept the rate of `outcome` from being higher.
pub fn bottleneck(outcome: &Outcome, server: &ServerUse, workload: &Workload) -> Bottleneck {
    let found = |kind, why| Bottleneck { kind, why };
    let kept_up = outcome.offered.is_some_and(|offered| outcome.achieved_rate() >= KEPT_UP * offered);
    if let Some(why) = outcome.client_limit() {
        return found(BottleneckKind::Client, why);
    }
    if server.evicted_keys > 0 {
        return found(BottleneckKind::Evictions, format!("{} keys were evicted", server.evicted_keys));
    }
    if let Some(full) = server.memory_full.filter(|&full| full > 0.98) {
        return found(BottleneckKind::Memory, format!("{:.0} % of maxmemory is in use", full * 100.0));
    }
    if kept_up {
        return found(BottleneckKind::None, String::from("what was offered was answered"));
    }
    if let Some(share) = network_share(outcome, server) {
        return found(BottleneckKind::Network, format!("{:.0} % of the fastest interface", share * 100.0));
    }
    let hottest = workload.keys.pattern.hottest_share(workload.keys.count);
    match (server.busiest_thread.or(server.cpu_cores.filter(|&cores| cores < 1.1)), server.machine_busy) {
        (Some(busy), _) if busy > SATURATED && hottest > HOT_SHARE && server.n_working_threads > 1 => found(
            BottleneckKind::HotKey,
            format!(
                "one key takes {:.0} % of requests and one thread ran {:.0} % of the time",
                hottest * 100.0,
                busy * 100.0
            ),
        ),
        (_, Some(busy)) if busy > 0.95 => found(
            BottleneckKind::AllCores,
            format!("the machine's cores were in use {:.0} % of the time", busy * 100.0),
        ),
        (Some(busy), _) if busy > SATURATED => found(
            BottleneckKind::OneCore,
            format!("one thread of the server ran {:.0} % of the time", busy * 100.0),
        ),
        (None, _) if server.cpu_cores.is_none() => {
            found(BottleneckKind::Unknown, String::from("the server tells no processor time"))
        }
        _ => found(
            BottleneckKind::RoundTrips,
            String::from("no core was used up: more connections or deeper pipelines ask for more"),
        ),
    }
}

/// The share of the fastest network interface that a load took.
///
/// It is `None` unless the load went over the network and took most of it.
fn network_share(outcome: &Outcome, server: &ServerUse) -> Option<f64> {
    if server.machine_busy.is_some() {
        return None;
    }
    let megabits = fs::read_dir("/sys/class/net")
        .ok()?
        .filter_map(|interface| {
            fs::read_to_string(interface.ok()?.path().join("speed")).ok()?.trim().parse::<f64>().ok()
        })
        .fold(0.0, f64::max);
    let bytes = outcome.record.n_bytes_sent.max(outcome.record.n_bytes_received) as f64;
    let share = bytes * 8.0 / outcome.measured.as_secs_f64() / (megabits * 1e6);
    (megabits > 0.0 && share > 0.8).then_some(share)
}

/// Returns INFO's fields of all sections, `everything` where the server knows that.
///
/// # Errors
/// When the server cannot be asked.
pub fn info(target: &LoadTarget) -> Result<BTreeMap<String, String>, BenchError> {
    let mut client = Client::greet(&target.address, &target.greeting)?;
    let reply = client.call(&["INFO", "everything"]).or_else(|_| client.call(&["INFO"]))?;
    Ok(parse_info(&reply))
}

fn parse_info(reply: &Value) -> BTreeMap<String, String> {
    let text = String::from_utf8_lossy(reply.as_bytes().unwrap_or_default()).into_owned();
    let field =
        |line: &str| line.split_once(':').map(|(name, value)| (name.to_owned(), value.trim().to_owned()));
    text.lines().filter(|line| !line.starts_with('#')).filter_map(field).collect()
}

fn number<T: std::str::FromStr>(info: &BTreeMap<String, String>, field: &str) -> Option<T> {
    info.get(field)?.parse().ok()
}

/// Returns the process that INFO names, if it is the server and runs here.
fn local_pid(target: &LoadTarget) -> Option<u32> {
    if !target.address.is_local() {
        return None;
    }
    let info = info(target).ok()?;
    let pid = number(&info, "process_id")?;
    // Through a forwarded port, or in a container, the number means another process or none. A process's name
    // is cut to 15 bytes, and INFO's path is right only where the server was started by a path.
    let running = fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
    let named = Path::new(info.get("executable")?).file_name()?.to_str()?;
    named.starts_with(running.trim_end()).then_some(pid)
}

/// Reads the first line of `/proc/stat`: user, nice, system, idle, iowait and so on.
fn machine_time() -> Option<MachineTime> {
    let text = fs::read_to_string("/proc/stat").ok()?;
    let ticks: Vec<u64> =
        text.lines().next()?.split_whitespace().skip(1).filter_map(|n| n.parse().ok()).collect();
    Some(MachineTime { total: ticks.iter().take(8).sum(), idle: ticks.get(3)? + ticks.get(4)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn info_is_read_without_its_headings() {
        let reply =
            Value::Bulk(b"# Server\r\nredis_version:7.0.15\r\n\r\n# CPU\r\nused_cpu_user:1.5\r\n".to_vec());
        let info = parse_info(&reply);
        assert_eq!(info.len(), 2);
        assert_eq!(number(&info, "used_cpu_user"), Some(1.5));
    }

    #[test]
    fn this_machine_has_a_time() {
        let time = machine_time().expect("/proc is mounted");
        assert!(time.total > time.idle && time.idle > 0);
    }
}
