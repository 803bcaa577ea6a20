//! `braid-bench profile`: a workload from a running server, without MONITOR and without reading a value.
//!
//! Keys are sampled with SCAN and queried for their type, size and time to live. The rates of commands come
//! from INFO's command statistics over some time. Names and values stay on the server: a [`Profile`] holds
//! only counts and rounded sizes. So profiles of several servers can be collected and merged. The frequency
//! of requests for each key cannot be seen from outside; the workload assumes an even spread.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use braid_protocol::Value;
use clap::Args;
use serde::{Deserialize, Serialize};

use crate::client::Client;
use crate::endpoint::EndpointOptions;
use crate::engine::LoadTarget;
use crate::error::{BenchError, Doing};
use crate::observe;
use crate::output;

mod to_workload;

/// Options of `braid-bench profile`.
#[derive(Debug, Args)]
pub struct Options {
    #[command(flatten)]
    endpoint: EndpointOptions,
    /// How long calls are counted.
    #[arg(short, long, value_name = "TIME", default_value = "10s", value_parser = humantime::parse_duration)]
    duration: Duration,
    /// How many keys to sample.
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    sample: u64,
    /// Writes the workload here instead of printing it.
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Writes the profile itself, for --merge.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Makes one workload of profiles in files, without asking a server.
    #[arg(long, value_name = "FILE", num_args = 1..)]
    merge: Vec<PathBuf>,
}

/// The statistics of one or more servers.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
struct Profile {
    /// The number of all keys, sampled or not.
    n_keys: f64,
    /// Key lengths in bytes, and the number of keys of each length.
    key_bytes: Sizes,
    /// Keys by type, as TYPE names it.
    types: BTreeMap<String, TypeProfile>,
    /// Calls a second, by command in lower case.
    calls_per_second: BTreeMap<String, f64>,
    connections: u64,
    /// Connections that speak RESP3.
    resp3_connections: u64,
}

/// Keys of one type. Counts are scaled from the sample to all keys.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
struct TypeProfile {
    n_keys: f64,
    n_expiring: f64,
    /// Seconds to live of the keys that expire.
    ttl_seconds: Sizes,
    /// The bytes of a string, or the elements of any other type.
    lengths: Sizes,
    /// Memory in bytes, as MEMORY USAGE reports it.
    memory_bytes: f64,
}

/// Rounded sizes, and the number of each.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
struct Sizes(BTreeMap<u64, f64>);

impl Sizes {
    fn add(&mut self, size: u64, weight: f64) {
        *self.0.entry(rounded(size)).or_default() += weight;
    }

    fn merge(&mut self, other: &Self) {
        other.0.iter().for_each(|(&size, &weight)| self.add(size, weight));
    }

    fn mean(&self) -> f64 {
        let total: f64 = self.0.values().sum();
        self.0.iter().map(|(&size, weight)| size as f64 * weight).sum::<f64>() / total.max(f64::MIN_POSITIVE)
    }
}

/// Rounds to three binary digits. Sizes are distinguished only as far as they matter.
fn rounded(size: u64) -> u64 {
    let n_dropped = (64 - size.leading_zeros()).saturating_sub(3);
    let half = (1 << n_dropped) >> 1;
    ((size + half) >> n_dropped) << n_dropped
}

/// Profiles a server, or merges profiles, and writes the workload.
///
/// # Errors
/// When the server cannot be asked or a file cannot be read or written.
pub fn run(options: &Options) -> Result<ExitCode, BenchError> {
    let profile = if options.merge.is_empty() {
        let endpoint = options.endpoint.open(2)?;
        Profile::of(&endpoint.target, options.sample, options.duration)?
    } else {
        let mut merged = Profile::default();
        for path in &options.merge {
            let text = fs::read_to_string(path).doing(format!("read {}", path.display()))?;
            let profile = serde_json::from_str(&text)
                .map_err(|error| BenchError::Machine(format!("{} is no profile: {error}", path.display())))?;
            merged.merge(&profile);
        }
        merged
    };
    if let Some(path) = &options.json {
        output::write(path, output::json(&profile).as_bytes())?;
    }
    let text = profile.toml();
    match &options.output {
        Some(path) => output::write(path, text.as_bytes())?,
        None => output::print(text)?,
    }
    Ok(ExitCode::SUCCESS)
}

impl Profile {
    fn of(target: &LoadTarget, n_samples: u64, duration: Duration) -> Result<Self, BenchError> {
        let mut client = Client::greet(&target.address, &target.greeting)?;
        let mut profile = Self::default();
        profile.sample_keys(&mut client, n_samples)?;
        profile.count_connections(&mut client);
        let before = calls(target)?;
        thread::sleep(duration);
        for (command, n_calls) in calls(target)? {
            let n_new = n_calls.saturating_sub(before.get(&command).copied().unwrap_or(0));
            // INFO and the greeting are this program's own commands.
            if n_new > 0 && !matches!(command.as_str(), "info" | "auth" | "hello" | "select") {
                profile.calls_per_second.insert(command, n_new as f64 / duration.as_secs_f64());
            }
        }
        Ok(profile)
    }

    fn sample_keys(&mut self, client: &mut Client, n_samples: u64) -> Result<(), BenchError> {
        let Value::Integer(n_keys) = client.call(&["DBSIZE"])? else { return Ok(()) };
        let mut n_seen = 0_u64;
        let mut cursor = b"0".to_vec();
        loop {
            let Value::Array(reply) = client.call(&[b"SCAN", cursor.as_slice(), b"COUNT", b"200"])? else {
                return Err(BenchError::Malformed("SCAN answers an array"));
            };
            let (next, keys) = match reply.as_slice() {
                [Value::Bulk(next), Value::Array(keys)] => (next, keys),
                _ => return Err(BenchError::Malformed("SCAN answers a cursor and keys")),
            };
            for key in keys.iter().filter_map(Value::as_bytes) {
                n_seen += u64::from(self.sample_key(client, key)?);
            }
            cursor.clone_from(next);
            if cursor == b"0" || n_seen >= n_samples {
                break;
            }
        }
        self.scale(n_keys.max(0) as f64 / n_seen.max(1) as f64);
        Ok(())
    }

    /// Adds one key to the counts; `false` if it is gone.
    fn sample_key(&mut self, client: &mut Client, key: &[u8]) -> Result<bool, BenchError> {
        let kind = client.call(&[b"TYPE", key])?;
        let kind = String::from_utf8_lossy(kind.as_bytes().unwrap_or_default()).into_owned();
        let length: &[u8] = match kind.as_str() {
            "string" => b"STRLEN",
            "hash" => b"HLEN",
            "list" => b"LLEN",
            "set" => b"SCARD",
            "zset" => b"ZCARD",
            "stream" => b"XLEN",
            _ => return Ok(false),
        };
        let mut ask = |request: &[&[u8]]| match client.call(request) {
            Ok(Value::Integer(number)) => Some(number.max(0) as u64),
            // A key may change its type or disappear between two questions, and not every server knows
            // MEMORY.
            _ => None,
        };
        let length = ask(&[length, key]).unwrap_or(0);
        let memory = ask(&[b"MEMORY", b"USAGE", key]).unwrap_or(0);
        let ttl = ask(&[b"TTL", key]).filter(|&seconds| seconds > 0);
        self.n_keys += 1.0;
        self.key_bytes.add(key.len() as u64, 1.0);
        let of_type = self.types.entry(kind).or_default();
        of_type.n_keys += 1.0;
        of_type.memory_bytes += memory as f64;
        of_type.lengths.add(length, 1.0);
        if let Some(seconds) = ttl {
            of_type.n_expiring += 1.0;
            of_type.ttl_seconds.add(seconds, 1.0);
        }
        Ok(true)
    }

    fn count_connections(&mut self, client: &mut Client) {
        // A server without CLIENT LIST reports no connections.
        let Ok(list) = client.call(&["CLIENT", "LIST"]) else { return };
        let text = String::from_utf8_lossy(list.as_bytes().unwrap_or_default()).into_owned();
        let others: Vec<_> = text.lines().filter(|line| !line.contains("cmd=client")).collect();
        self.connections = others.len() as u64;
        self.resp3_connections = others.iter().filter(|line| line.contains("resp=3")).count() as u64;
    }

    /// Scales the counts from the sample to all keys.
    fn scale(&mut self, factor: f64) {
        let scale = |sizes: &mut Sizes| sizes.0.values_mut().for_each(|weight| *weight *= factor);
        self.n_keys *= factor;
        scale(&mut self.key_bytes);
        for of_type in self.types.values_mut() {
            of_type.n_keys *= factor;
            of_type.n_expiring *= factor;
            of_type.memory_bytes *= factor;
            scale(&mut of_type.ttl_seconds);
            scale(&mut of_type.lengths);
        }
    }

    /// Adds another server's profile.
    fn merge(&mut self, other: &Self) {
        self.n_keys += other.n_keys;
        self.key_bytes.merge(&other.key_bytes);
        self.connections += other.connections;
        self.resp3_connections += other.resp3_connections;
        for (command, rate) in &other.calls_per_second {
            *self.calls_per_second.entry(command.clone()).or_default() += rate;
        }
        for (kind, theirs) in &other.types {
            let ours = self.types.entry(kind.clone()).or_default();
            ours.n_keys += theirs.n_keys;
            ours.n_expiring += theirs.n_expiring;
            ours.memory_bytes += theirs.memory_bytes;
            ours.ttl_seconds.merge(&theirs.ttl_seconds);
            ours.lengths.merge(&theirs.lengths);
        }
    }
}

/// Reads the calls of each command so far: `cmdstat_get:calls=21,usec=175,…`.
///
/// Subcommands count as their command.
fn calls(target: &LoadTarget) -> Result<BTreeMap<String, u64>, BenchError> {
    let mut calls = BTreeMap::new();
    for (field, value) in observe::info(target)? {
        let Some(command) = field.strip_prefix("cmdstat_") else { continue };
        let command = command.split('|').next().unwrap_or(command);
        let n_calls = value.split(',').find_map(|part| part.strip_prefix("calls=")?.parse::<u64>().ok());
        *calls.entry(command.to_owned()).or_default() += n_calls.unwrap_or(0);
    }
    Ok(calls)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_rounded_to_three_binary_digits() {
        assert_eq!([0, 1, 7, 9, 100, 1000, 1 << 40].map(rounded), [0, 1, 7, 10, 96, 1024, 1 << 40]);
        assert!((1..100_000).all(|size| (rounded(size) as f64 / size as f64 - 1.0).abs() <= 0.126));
    }

    #[test]
    fn merging_adds_what_is_there() {
        let mut profile = to_workload::tests::profile();
        profile.merge(&to_workload::tests::profile());
        assert_eq!((profile.n_keys, profile.connections), (2000.0, 20));
        assert_eq!(profile.types["string"].n_keys, 1600.0);
        assert_eq!(profile.calls_per_second["get"], 1800.0);
        assert_eq!(profile.key_bytes.0[&20], 2000.0);
    }

    #[test]
    fn scaling_leaves_shares_as_they_are() {
        let mut profile = to_workload::tests::profile();
        let mean = profile.types["string"].lengths.mean();
        profile.scale(10.0);
        assert_eq!(profile.types["string"].n_keys, 8000.0);
        assert_eq!(profile.types["string"].lengths.mean(), mean);
    }
}
