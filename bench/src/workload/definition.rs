//! The content of a `workload.toml`, field by field.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::keys::Keys;
use super::size::Size;

/// A load, described.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Workload {
    /// What it is called in reports.
    pub name: String,
    /// One sentence about it.
    pub summary: String,
    /// Where random choices start: the same seed makes the same requests.
    pub seed: u64,
    /// Connections that send commands.
    pub connections: usize,
    /// Requests that a connection sends at once; it sends the next when all are answered.
    pub pipeline: usize,
    /// Version of RESP: 2 or 3.
    pub protocol: u8,
    /// Requests after which a connection is closed and opened anew.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reconnect_after: Option<u64>,
    /// How long to measure.
    #[serde(with = "humantime_serde")]
    pub duration: Duration,
    /// How long to run before that.
    #[serde(with = "humantime_serde")]
    pub warmup: Duration,
    /// Requests a second over all connections; without it each connection sends when it has been answered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate: Option<f64>,
    /// When requests are due where there is a rate: `constant`, `poisson`, or `bursty:ON/OFF` as in
    /// `bursty:100ms/900ms`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub arrivals: Option<String>,
    /// The share of commands marked `read`, from 0 to 1, over their weights.
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
    /// What is sent; GET and SET where there are none.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub commands: Vec<Command>,
    /// Connections that wait for what the commands send them.
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

/// The values.
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
    /// The share of requests with `{expire}` that carry one, from 0 to 1.
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
    /// How many keys; by default all that there are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub count: Option<u64>,
    /// What is sent for each, the first `{key}` being its name.
    pub requests: Vec<Vec<String>>,
}

/// One kind of request and how often it is sent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Command {
    /// What it is called in reports; by default its first argument.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// How often it is sent, against the weights of the others.
    pub weight: f64,
    /// Whether it only reads, for `read_share`.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub read: bool,
    /// Whether it is sent as a line of words, as from a terminal, without placeholders.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub inline: bool,
    /// The request.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub args: Vec<String>,
    /// Instead of `args`: requests to send between MULTI and EXEC.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub transaction: Vec<Vec<String>>,
    /// Keys to WATCH before the transaction, which is sent once `reads` are answered, and again from the
    /// start while EXEC finds a watched key changed.
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
    /// One request of weight 1.
    pub fn of(args: &[&str]) -> Self {
        Self { args: args.iter().map(|&arg| arg.to_owned()).collect(), ..Self::default() }
    }

    /// As it is called in reports.
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

/// Connections that wait: each sends `args` and counts what it receives.
///
/// The time from a message's `{now}` to its arrival is the delivery time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Consumer {
    /// How many.
    pub connections: usize,
    /// What each sends; `{connection}` is its number, from 0.
    pub args: Vec<String>,
    /// Whether it sends the request again after each reply, as for BLPOP; a subscriber sends it once.
    #[serde(default)]
    pub repeat: bool,
    /// Bytes of a message, where each request of the load reaches each of these connections as one message of
    /// that size. They are counted by their bytes and not read, which costs the client least. The load then
    /// ends when all messages have arrived, or none has for five seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message_bytes: Option<u64>,
}

impl Workload {
    /// As TOML.
    pub fn to_toml(&self) -> String {
        toml::to_string_pretty(self).expect("a workload has only string keys")
    }

    /// The commands with their weights, `read_share` taken into account.
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
