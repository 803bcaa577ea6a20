//! The content of a `workload.toml`, field by field.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::keys::Keys;
use super::size::Size;

/// A description of a load.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Workload {
    /// The workload's name in reports.
    pub name: String,
    /// One sentence about the workload.
    pub summary: String,
    /// The seed of random choices. The same seed makes the same requests.
    pub seed: u64,
    /// Connections that send commands.
    pub connections: usize,
    /// Requests that a connection sends at once. It sends the next ones when all are answered.
    pub pipeline: usize,
    /// Version of RESP: 2 or 3.
    pub protocol: u8,
    /// The number of requests after which a connection is closed and opened again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reconnect_after: Option<u64>,
    /// The duration of the measurement.
    #[serde(with = "humantime_serde")]
    pub duration: Duration,
    /// The time for which the load runs before the measurement.
    #[serde(with = "humantime_serde")]
    pub warmup: Duration,
    /// Requests a second over all connections; without it, each connection sends after its reply.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate: Option<f64>,
    /// The spread of a rate's requests: `constant`, `poisson`, or `bursty:ON/OFF` as in `bursty:100ms/900ms`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub arrivals: Option<String>,
    /// The share of commands marked `read`, from 0 to 1, which overrides their weights.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub read_share: Option<f64>,
    /// Keys to load before the run, so that reads hit.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub preload: Vec<Population>,
    /// The keys.
    pub keys: Keys,
    /// The values.
    pub values: Values,
    /// Times to live, for `{ttl}` and `{expire}`.
    pub expiry: Expiry,
    /// The commands; GET and SET where there are none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub commands: Vec<Command>,
    /// Connections that wait for messages from the commands.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub consumers: Vec<Consumer>,
}

impl Default for Workload {
    fn default() -> Self {
        Self {
            name: String::from("custom"),
            summary: String::new(),
            seed: 1,
            connections: 50,
            pipeline: 1,
            protocol: 2,
            reconnect_after: None,
            duration: Duration::from_secs(10),
            warmup: Duration::from_secs(1),
            rate: None,
            arrivals: None,
            read_share: None,
            preload: Vec::new(),
            keys: Keys::default(),
            values: Values::default(),
            expiry: Expiry::default(),
            commands: Vec::new(),
            consumers: Vec::new(),
        }
    }
}

/// The values of a workload.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Values {
    /// Bytes of a value.
    pub size: Size,
}

impl Default for Values {
    fn default() -> Self {
        Self { size: Size::Fixed(32) }
    }
}

/// Times to live.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Expiry {
    /// The share of requests with `{expire}` that carry a time to live, 0 to 1.
    pub share: f64,
    /// Seconds to live.
    pub seconds: Size,
}

impl Default for Expiry {
    fn default() -> Self {
        Self { share: 1.0, seconds: Size::Fixed(3600) }
    }
}

/// Keys of one kind.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Population {
    /// The number of keys; by default all of the workload's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub count: Option<u64>,
    /// The requests sent for each key; the first `{key}` is its name.
    pub requests: Vec<Vec<String>>,
}

/// One kind of request, and its frequency.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Command {
    /// The command's name in reports; by default its first argument.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The frequency of the command, relative to the weights of the others.
    pub weight: f64,
    /// Whether the command only reads, for `read_share`.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub read: bool,
    /// Whether the request is sent as a line of words, as from a terminal, without placeholders.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub inline: bool,
    /// The request.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub args: Vec<String>,
    /// Requests to send between MULTI and EXEC, instead of `args`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub transaction: Vec<Vec<String>>,
    /// Keys to WATCH before the transaction.
    ///
    /// The transaction is sent once `reads` are answered. It is sent again from the start while EXEC finds a
    /// watched key changed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub watch: Vec<String>,
    /// Requests between WATCH and MULTI.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub reads: Vec<Vec<String>>,
}

impl Default for Command {
    fn default() -> Self {
        Self {
            name: None,
            weight: 1.0,
            read: false,
            inline: false,
            args: Vec::new(),
            transaction: Vec::new(),
            watch: Vec::new(),
            reads: Vec::new(),
        }
    }
}

impl Command {
    /// Makes a command of one request with weight 1.
    pub fn of(args: &[&str]) -> Self {
        Self { args: args.iter().map(|&arg| arg.to_owned()).collect(), ..Self::default() }
    }

    /// Returns the command's name in reports.
    pub fn title(&self) -> String {
        let first = |args: &[String]| args.first().map_or_else(String::new, |name| name.to_ascii_uppercase());
        match &self.name {
            Some(name) => name.clone(),
            None if !self.watch.is_empty() => String::from("WATCH..EXEC"),
            None if self.args.is_empty() => String::from("MULTI..EXEC"),
            None => first(&self.args),
        }
    }
}

/// Connections that wait: each sends `args` and counts the messages that it receives.
///
/// The time from a message's `{now}` to its arrival is the delivery time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Consumer {
    /// The number of connections.
    pub connections: usize,
    /// The request of each connection; `{connection}` is its number, from 0.
    pub args: Vec<String>,
    /// Whether the request is sent again after each reply, as for BLPOP. A subscriber sends it once.
    #[serde(default)]
    pub repeat: bool,
    /// The size of a message in bytes, for messages that are counted and not read.
    ///
    /// Each request of the load must reach each of these connections as one message of that size. Counting
    /// them by their bytes costs the client least. The load then ends when all messages have arrived, or none
    /// has for five seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message_bytes: Option<u64>,
}

impl Workload {
    /// Returns the workload as TOML.
    pub fn to_toml(&self) -> String {
        toml::to_string_pretty(self).expect("a workload has only string keys")
    }

    /// Returns the commands with their weights, adjusted for `read_share`.
    pub(super) fn weighted_commands(&self) -> Vec<Command> {
        let mut commands = self.commands.clone();
        let mut read_share = self.read_share;
        if commands.is_empty() {
            let get = Command { read: true, ..Command::of(&["GET", "{key}"]) };
            commands = vec![get, Command::of(&["SET", "{key}", "{value}"])];
            read_share = read_share.or(Some(0.9));
        }
        if let Some(share) = read_share {
            let total = |read| commands.iter().filter(|c| c.read == read).map(|c| c.weight).sum::<f64>();
            let (reads, writes) = (total(true), total(false));
            for command in &mut commands {
                command.weight *= if command.read { share / reads } else { (1.0 - share) / writes };
            }
        }
        commands
    }
}
