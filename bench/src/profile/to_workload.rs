//! The conversion of a profile to a workload.

use super::{Profile, Sizes, TypeProfile};
use crate::workload::{Command, Expiry, Keys, Population, Size, Values, Workload};

/// The most elements of a filled collection.
///
/// Longer ones are rare and would make the file long.
const MAX_ELEMENTS: u64 = 128;
/// A server's approximate overhead for an element and for a key.
///
/// It is subtracted from MEMORY USAGE to guess the elements' sizes.
const ELEMENT_OVERHEAD: f64 = 16.0;
const KEY_OVERHEAD: f64 = 80.0;
/// The class of keys for a command without a known type.
const STRING: &str = "string";

/// Commands as templates: name, type of its key, whether it only reads, and the arguments after the key.
const COMMANDS: &[(&str, &str, bool, &[&str])] = &[
    ("get", STRING, true, &[]),
    ("set", STRING, false, &["{value}", "{expire}"]),
    ("setex", STRING, false, &["{ttl}", "{value}"]),
    ("setnx", STRING, false, &["{value}"]),
    ("getset", STRING, false, &["{value}"]),
    ("strlen", STRING, true, &[]),
    ("append", STRING, false, &["{value:8}"]),
    ("exists", STRING, true, &[]),
    ("ttl", STRING, true, &[]),
    ("pttl", STRING, true, &[]),
    ("type", STRING, true, &[]),
    ("expire", STRING, false, &["{ttl}"]),
    ("hget", "hash", true, &["field:1"]),
    ("hmget", "hash", true, &["field:1", "field:2"]),
    ("hgetall", "hash", true, &[]),
    ("hlen", "hash", true, &[]),
    ("hexists", "hash", true, &["field:1"]),
    ("hset", "hash", false, &["field:1", "{element}"]),
    ("hmset", "hash", false, &["field:1", "{element}"]),
    ("hdel", "hash", false, &["field:2"]),
    ("lpush", "list", false, &["{element}"]),
    ("rpush", "list", false, &["{element}"]),
    ("lpop", "list", false, &[]),
    ("rpop", "list", false, &[]),
    ("llen", "list", true, &[]),
    ("lrange", "list", true, &["0", "9"]),
    ("ltrim", "list", false, &["0", "99"]),
    ("sadd", "set", false, &["{element}"]),
    ("srem", "set", false, &["{element}"]),
    ("spop", "set", false, &[]),
    ("sismember", "set", true, &["{element}"]),
    ("smembers", "set", true, &[]),
    ("scard", "set", true, &[]),
    ("srandmember", "set", true, &[]),
    ("zadd", "zset", false, &["{int:1:1000000}", "{element}"]),
    ("zincrby", "zset", false, &["1", "{element}"]),
    ("zrem", "zset", false, &["{element}"]),
    ("zscore", "zset", true, &["{element}"]),
    ("zrank", "zset", true, &["{element}"]),
    ("zrevrank", "zset", true, &["{element}"]),
    ("zcard", "zset", true, &[]),
    ("zrange", "zset", true, &["0", "9"]),
    ("zrevrange", "zset", true, &["0", "9"]),
    ("zrangebyscore", "zset", true, &["1", "1000000", "LIMIT", "0", "10"]),
    ("xadd", "stream", false, &["MAXLEN", "~", "1000", "*", "field", "{element}"]),
    ("xlen", "stream", true, &[]),
    ("xrange", "stream", true, &["-", "+", "COUNT", "10"]),
    ("xrevrange", "stream", true, &["+", "-", "COUNT", "10"]),
    ("incr", "counter", false, &[]),
    ("incrby", "counter", false, &["1"]),
    ("decr", "counter", false, &[]),
];

impl Profile {
    /// Returns the workload as TOML, with its assumptions in comments.
    pub(super) fn toml(&self) -> String {
        let workload = self.workload();
        let mut text = String::from(
            "# From a running server: sizes, times to live and rates of calls as sampled there, names and values made up.\n\
             # Assumed: keys are asked for evenly (set keys.pattern if you know better), elements of a collection are of\n\
             # one size, and no requests are pipelined.\n",
        );
        let unknown: Vec<_> =
            self.calls_per_second.iter().filter(|(name, _)| template(name).is_none()).collect();
        if !unknown.is_empty() {
            let told: Vec<_> = unknown.iter().map(|(name, rate)| format!("{name} ({rate:.1})")).collect();
            text += &format!("# Left out, with their calls a second: {}\n", told.join(", "));
        }
        text + "\n" + &workload.to_toml()
    }

    fn workload(&self) -> Workload {
        let default = Workload::default();
        let strings = self.types.get(STRING).cloned().unwrap_or_default();
        let rate: f64 = self
            .calls_per_second
            .iter()
            .filter(|(name, _)| template(name).is_some())
            .map(|(_, rate)| rate)
            .sum();
        Workload {
            name: String::from("profile"),
            summary: String::from("What a running server was seen to do."),
            connections: (self.connections as usize).max(1),
            protocol: if self.resp3_connections * 2 > self.connections { 3 } else { 2 },
            rate: (rate > 0.0).then_some(rate),
            arrivals: Some(String::from("poisson")),
            keys: Keys {
                count: (self.n_keys.round() as u64).max(1),
                prefix: String::new(),
                size: self.name_size(),
                ..default.keys
            },
            values: Values { size: strings.lengths.size().unwrap_or(default.values.size) },
            expiry: self.expiry(),
            preload: self.types.iter().map(|(kind, of_type)| of_type.population(kind)).collect(),
            commands: self.commands(),
            ..Workload::default()
        }
    }

    /// The size in bytes of a key's name after its type.
    fn name_size(&self) -> Size {
        let longest_type = self.types.keys().map(|kind| kind.len() + 1).max().unwrap_or(0) as u64;
        let mut shorter = Sizes::default();
        self.key_bytes
            .0
            .iter()
            .for_each(|(&size, &weight)| shorter.add(size.saturating_sub(longest_type), weight));
        shorter.size().unwrap_or(Size::Fixed(12))
    }

    fn expiry(&self) -> Expiry {
        let mut seconds = Sizes::default();
        self.types.values().for_each(|of_type| seconds.merge(&of_type.ttl_seconds));
        let strings = self.types.get(STRING);
        let share = strings.map_or(0.0, |strings| strings.n_expiring / strings.n_keys.max(1.0));
        Expiry { share: share.min(1.0), seconds: seconds.size().unwrap_or(Size::Fixed(3600)) }
    }

    fn commands(&self) -> Vec<Command> {
        let command = |(name, &rate): (&String, &f64)| {
            let (kind, is_read, rest) = template(name)?;
            let of_type = self.types.get(kind);
            let n_keys = of_type.map_or(1000.0, |of_type| of_type.n_keys.round().max(1.0));
            let element = of_type.map_or(16, |of_type| of_type.element_bytes(kind));
            let mut args = vec![name.to_ascii_uppercase(), format!("{kind}:{{key%{n_keys}}}")];
            args.extend(rest.iter().map(|arg| arg.replace("{element}", &format!("{{value:{element}}}"))));
            Some(Command { weight: (rate * 10.0).round() / 10.0, read: is_read, args, ..Command::default() })
        };
        self.calls_per_second.iter().filter_map(command).collect()
    }
}

fn template(name: &str) -> Option<(&'static str, bool, &'static [&'static str])> {
    COMMANDS.iter().find(|(known, ..)| *known == name).map(|&(_, kind, is_read, rest)| (kind, is_read, rest))
}

impl Sizes {
    fn size(&self) -> Option<Size> {
        let weights: Vec<_> = self.0.iter().map(|(&size, weight)| (size, weight.round().max(1.0))).collect();
        match weights.as_slice() {
            [] => None,
            [(size, _)] => Some(Size::Fixed(*size)),
            _ => Some(Size::Weighted(weights)),
        }
    }
}

impl TypeProfile {
    fn n_elements(&self) -> u64 {
        (self.lengths.mean().round() as u64).clamp(1, MAX_ELEMENTS)
    }

    /// An element's share of the memory, without the server's overhead.
    fn element_bytes(&self, kind: &str) -> u64 {
        let n_elements = self.lengths.mean().max(1.0);
        let each = (self.memory_bytes / self.n_keys.max(1.0) - KEY_OVERHEAD) / n_elements - ELEMENT_OVERHEAD;
        // A field's name is an element too.
        let each = if kind == "hash" { each - "field:1".len() as f64 } else { each };
        (each.round() as i64).max(4) as u64
    }

    fn population(&self, kind: &str) -> Population {
        let n_elements = self.n_elements();
        let value = format!("{{value:{}}}", self.element_bytes(kind));
        let key = format!("{kind}:{{key}}");
        let request = |name: &str, elements: Vec<String>| {
            [name.to_owned(), key.clone()].into_iter().chain(elements).collect::<Vec<_>>()
        };
        let pairs = |first: &dyn Fn(u64) -> String| {
            (1..=n_elements).flat_map(|index| [first(index), value.clone()]).collect::<Vec<_>>()
        };
        let repeated = || vec![format!("{}*{n_elements}}}", value.trim_end_matches('}'))];
        let mut requests = vec![match kind {
            STRING => request("SET", vec![String::from("{value}"), String::from("{expire}")]),
            "hash" => request("HSET", pairs(&|index| format!("field:{index}"))),
            "list" => request("RPUSH", repeated()),
            "set" => request("SADD", repeated()),
            "zset" => request("ZADD", pairs(&|index| index.to_string())),
            _ => request("XADD", vec![String::from("*"), String::from("field"), value.clone()]),
        }];
        if kind != STRING && self.n_expiring * 2.0 > self.n_keys {
            requests.push(["EXPIRE", &format!("{kind}:{{same}}"), "{ttl}"].map(str::to_owned).to_vec());
        }
        Population { count: Some((self.n_keys.round() as u64).max(1)), requests }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::workload::Compiled;

    fn sizes(sizes: &[(u64, f64)]) -> Sizes {
        let mut all = Sizes::default();
        sizes.iter().for_each(|&(size, weight)| all.add(size, weight));
        all
    }

    /// A profile of strings and hashes, with some known commands and one unknown.
    pub(in crate::profile) fn profile() -> Profile {
        let strings = TypeProfile {
            n_keys: 800.0,
            n_expiring: 400.0,
            ttl_seconds: sizes(&[(64, 400.0)]),
            lengths: sizes(&[(32, 600.0), (1024, 200.0)]),
            memory_bytes: 300_000.0,
        };
        let hashes = TypeProfile {
            n_keys: 200.0,
            n_expiring: 200.0,
            ttl_seconds: sizes(&[(512, 200.0)]),
            lengths: sizes(&[(4, 200.0)]),
            memory_bytes: 200.0 * 400.0,
        };
        let types = [(STRING, strings), ("hash", hashes)].map(|(kind, of_type)| (kind.to_owned(), of_type));
        let calls =
            [("get", 900.0), ("hset", 100.0), ("memory", 1.0)].map(|(name, rate)| (name.to_owned(), rate));
        Profile {
            n_keys: 1000.0,
            key_bytes: sizes(&[(20, 1000.0)]),
            types: types.into(),
            calls_per_second: calls.into(),
            connections: 10,
            resp3_connections: 0,
        }
    }

    #[test]
    fn the_workload_has_the_populations_and_the_calls() {
        let text = profile().toml();
        assert!(text.contains("Left out, with their calls a second: memory (1.0)"), "{text}");
        let workload = Workload::parse("p.toml", &text).expect("it is a workload");
        assert_eq!((workload.keys.count, workload.connections, workload.rate), (1000, 10, Some(1000.0)));
        assert_eq!(workload.expiry.share, 0.5);
        let counts: Vec<_> = workload.preload.iter().map(|population| population.count).collect();
        assert_eq!(counts, [Some(200), Some(800)]);
        let hash = &workload.preload[0].requests[0];
        // Four fields with values of (400 - 80) / 4 - 16 - 7 bytes.
        assert_eq!((hash.len(), hash[3].as_str()), (2 + 8, "{value:57}"));
        assert_eq!(workload.commands[0].args, ["GET", "string:{key%800}"]);
        assert_eq!(workload.commands[1].args, ["HSET", "hash:{key%200}", "field:1", "{value:57}"]);
    }

    #[test]
    fn every_command_known_makes_a_request() {
        let mut profile = profile();
        profile.calls_per_second = COMMANDS.iter().map(|(name, ..)| ((*name).to_owned(), 1.0)).collect();
        let workload = Workload::parse("p.toml", &profile.toml()).expect("it is a workload");
        assert_eq!(workload.commands.len(), COMMANDS.len());
        assert!(Compiled::new(&workload).is_ok());
    }

    #[test]
    fn an_idle_empty_server_makes_a_workload_too() {
        assert!(Workload::parse("p.toml", &Profile::default().toml()).is_ok());
    }
}
