//! Workloads as data: which commands a load sends, over which keys, with which values, on how many connections.
//!
//! A [`Workload`] is what a `workload.toml` says. [`Compiled`] is the same made ready, and a [`Generator`] draws requests
//! from it.
//!
//! ```toml
//! connections = 50
//! read_share = 0.9                        # of the commands marked `read`; without it the weights hold as they are
//! keys = { count = 1_000_000, pattern = { zipf = { exponent = 0.99 } } }
//! values = { size = { log_normal = { mean = 400, sigma = 0.8 } } }
//!
//! [[preload]]                             # sent once for each key before the run
//! requests = [["SET", "{key}", "{value}"]]
//!
//! [[commands]]
//! args = ["GET", "{key}"]
//! read = true
//!
//! [[commands]]
//! args = ["SET", "{key}", "{value}", "{expire}"]
//! ```

use std::path::Path;
use std::time::Duration;
use std::{fs, io};

use serde::{Deserialize, Serialize};

use crate::error::{BenchError, Doing};

mod generator;
mod keys;
mod named;
mod size;
mod template;

pub use self::generator::{Compiled, Generator, Issued, Moment};
pub use self::keys::Pattern;
pub use self::named::NAMED;
pub use self::size::Size;
pub use self::template::NOW_MARKER;

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
    /// When requests are due where there is a rate: `constant`, `poisson`, or `bursty:ON/OFF` as in `bursty:100ms/900ms`.
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

/// The key space.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Keys {
    /// How many keys there are.
    pub count: u64,
    /// What each key begins with.
    pub prefix: String,
    /// Bytes of a key, the prefix included; digits fill it up. Each key has its own size, the same in every run. A size too
    /// small for prefix and number is raised.
    pub size: Size,
    /// Which keys are asked for how often.
    pub pattern: Pattern,
}

impl Default for Keys {
    fn default() -> Self {
        Self {
            count: 100_000,
            prefix: String::from("key:"),
            size: Size::Fixed(16),
            pattern: Pattern::Uniform,
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
    /// Keys to WATCH before the transaction, which is sent once `reads` are answered, and again from the start while EXEC
    /// finds a watched key changed.
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
}

impl Workload {
    /// Finds a workload by the name it ships under, or reads it from a file.
    ///
    /// # Errors
    /// When there is neither, or the file is no workload; the error names the line or the field.
    pub fn named_or_file(name: &str) -> Result<Self, BenchError> {
        if let Some((_, text)) = NAMED.iter().find(|(known, _)| *known == name) {
            return Self::parse(name, text);
        }
        let text = match fs::read_to_string(Path::new(name)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let known: Vec<_> = NAMED.iter().map(|(known, _)| *known).collect();
                return Err(wrong(
                    name,
                    format!("there is no such file; named ones are {}", known.join(", ")),
                ));
            }
            read => read.doing(format!("read {name}"))?,
        };
        Self::parse(name, &text)
    }

    /// Reads a workload from TOML. `name` is what it is called if the text does not say.
    ///
    /// # Errors
    /// When the text is no workload; the error names the line or the field.
    pub fn parse(name: &str, text: &str) -> Result<Self, BenchError> {
        let mut workload: Self = toml::from_str(text).map_err(|error| wrong(name, error.to_string()))?;
        if workload.name == Self::default().name {
            name.clone_into(&mut workload.name);
        }
        Compiled::new(&workload)?;
        Ok(workload)
    }

    /// As TOML.
    pub fn to_toml(&self) -> String {
        toml::to_string_pretty(self).expect("a workload has only string keys")
    }

    /// The commands with their weights, `read_share` taken into account.
    fn weighted_commands(&self) -> Vec<Command> {
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

/// The error for a field that makes no sense.
fn wrong(place: impl Into<String>, why: impl Into<String>) -> BenchError {
    BenchError::Workload { place: place.into(), why: why.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(text: &str) -> String {
        Workload::parse("w.toml", text).expect_err("it is no workload").to_string()
    }

    #[test]
    fn all_named_workloads_compile_and_say_what_they_are() {
        for (name, text) in NAMED {
            let workload = Workload::parse(name, text).unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(&workload.name, name);
            assert!(!workload.summary.is_empty(), "{name}");
        }
    }

    #[test]
    fn what_is_written_reads_back_the_same() {
        for (name, text) in NAMED {
            let workload = Workload::parse(name, text).expect("it is one of ours");
            assert_eq!(
                Workload::parse(name, &workload.to_toml()).expect("it is one of ours"),
                workload,
                "{name}"
            );
        }
    }

    #[test]
    fn errors_name_the_place() {
        let unknown = error("connections = 5\nkeyss = 3\n");
        assert!(unknown.contains("line 2") && unknown.contains("keyss"), "{unknown}");
        let inner = error("[keys]\npattern = { zipf = { exponnent = 1 } }\n");
        assert!(inner.contains("line 2") && inner.contains("exponnent"), "{inner}");
        let placeholder = error("[[commands]]\nargs = [\"GET\", \"{kee}\"]\n");
        assert!(
            placeholder.contains("commands[0].args[1]") && placeholder.contains("{kee}"),
            "{placeholder}"
        );
        let size = error("values = { size = { range = { min = 9, max = 3 } } }");
        assert!(size.contains("values.size"), "{size}");
    }

    #[test]
    fn the_read_share_rules_over_weights() {
        let workload = Workload {
            read_share: Some(0.75),
            commands: vec![
                Command { read: true, weight: 3.0, ..Command::of(&["GET", "{key}"]) },
                Command { read: true, weight: 1.0, ..Command::of(&["TTL", "{key}"]) },
                Command { weight: 9.0, ..Command::of(&["DEL", "{key}"]) },
            ],
            ..Workload::default()
        };
        let weights: Vec<_> = workload.weighted_commands().iter().map(|command| command.weight).collect();
        assert_eq!(weights, [0.5625, 0.1875, 0.25]);
    }
}
