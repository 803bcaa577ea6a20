//! The floors of the server crate: a file uses only its own floor and lower ones.

use std::collections::BTreeMap;

use super::{
    modules::Uses,
    none,
    source::{Source, sources},
};

/// A floor's name and its parts: `config` is `server/src/config.rs` and all files in `server/src/config/`.
type Floor = (&'static str, &'static [&'static str]);

/// The floors, lowest first. Each file belongs to one.
const FLOORS: &[Floor] = &[
    ("config", &["config", "clock", "log", "random"]),
    ("catalog", &["catalog"]),
    ("access", &["access"]),
    (
        "client",
        &[
            "client",
            "sockets",
            "notify",
            "telemetry",
            "replication/failover",
            "replication/full_copy",
            "replication/lineage",
            "replication/own_keys",
            "replication/replica_link",
            "replication/copy_payload",
            "replication/replicas",
        ],
    ),
    (
        "shared",
        &[
            "shared",
            "scripting",
            "process",
            "durability",
            "metrics",
            "replication/mod",
            "replication/turns",
            "replication/replica/mod",
            "replication/replica/role",
            "replication/replica/payload",
            "replication/replica/greeting",
            "replication/replica/units",
        ],
    ),
    ("observe", &["observe"]),
    ("persist", &["persist"]),
    ("command", &["command"]),
    ("run", &["run"]),
    (
        "net",
        &[
            "net",
            "saving",
            "replication/spooler",
            "replication/replica/applying",
            "replication/replica/channel",
            "replication/replica/copying",
            "replication/replica/link",
        ],
    ),
    ("status", &["status"]),
    ("boot", &["boot", "crash", "lib", "main"]),
];

/// Faults in the places of files.
type Findings = Vec<String>;

/// Returns the floor of each file, by its number from below.
fn levels(floors: &[Floor], files: &[&str], found: &mut Findings) -> BTreeMap<String, usize> {
    let mut levels = BTreeMap::new();
    for file in files {
        let inner = file.strip_prefix("server/src/").expect("it is one of the server's");
        let lies_in = |part: &&str| {
            inner.strip_prefix(*part).is_some_and(|rest| rest == ".rs" || rest.starts_with('/'))
        };
        let of_file: Vec<usize> =
            (0..floors.len()).filter(|&level| floors[level].1.iter().any(lies_in)).collect();
        match of_file.as_slice() {
            [level] => {
                levels.insert((*file).to_owned(), *level);
            }
            [] => found.push(format!("{file} lies on no floor")),
            several => {
                let names: Vec<&str> = several.iter().map(|&level| floors[level].0).collect();
                found.push(format!("{file} lies on several floors: {}", names.join(", ")));
            }
        }
    }
    levels
}

/// The root of the crate. A file that uses a name of it uses a macro of the log. All other names there are
/// reexported.
const ROOT: &str = "server/src/lib.rs";

/// Finds every file on no floor or several, and every use of a higher floor.
fn upward(floors: &[Floor], sources: &[Source]) -> Findings {
    let mut found = Vec::new();
    let files: Vec<&str> = sources.iter().map(|source| source.path.as_str()).collect();
    let levels = levels(floors, &files, &mut found);
    for (file, used) in Uses::of(sources).0 {
        for other in used.into_iter().filter(|other| other != ROOT) {
            if let (Some(&from), Some(&to)) = (levels.get(&file), levels.get(&other))
                && from < to
            {
                found.push(format!("{file} ({}) uses {other} ({})", floors[from].0, floors[to].0));
            }
        }
    }
    found
}

/// Returns the parts of floors that do not exist (any more).
fn unused(floors: &[Floor], sources: &[Source]) -> Vec<String> {
    let is_there = |part: &str| {
        let begins = [format!("server/src/{part}.rs"), format!("server/src/{part}/")];
        sources.iter().any(|source| begins.iter().any(|begin| source.path.starts_with(begin)))
    };
    // A floor's own folder may still be empty.
    let named = floors.iter().flat_map(|(name, parts)| parts.iter().filter(move |part| *part != name));
    named
        .filter(|part| !is_there(part))
        .map(|part| format!("{part}: the floors name it, and it is not there"))
        .collect()
}

#[test]
fn the_server_uses_its_own_floor_and_those_below() {
    let sources = sources("server/src");
    let found = upward(FLOORS, &sources).into_iter();
    let found = found.chain(unused(FLOORS, &sources)).collect();
    none("No file of the server uses a floor above its own:", found);
}

/// The search itself: one that finds nothing would enforce no floor.
mod search {
    use super::*;
    use crate::source::lines;

    const FLOORS: &[Floor] =
        &[("low", &["low", "tool"]), ("high", &["high"]), ("top", &["lib", "low/attic"])];

    fn source(path: &str, text: &str) -> Source {
        Source { path: format!("server/src/{path}"), lines: lines(text) }
    }

    fn texts(sources: &[Source]) -> Vec<String> {
        upward(FLOORS, sources)
    }

    #[test]
    fn a_use_of_a_floor_above_is_found() {
        let sources = [
            source("lib.rs", "mod low; mod tool; mod high;"),
            source("low.rs", "mod inner; use crate::tool::f;"),
            source("low/inner.rs", "fn f() { crate::high::g(); crate::shout!(); }"),
            source("tool.rs", "#[cfg(test)]\nmod tests { use crate::high::g; }"),
            source("high.rs", "use crate::low::inner::f;"),
        ];
        assert_eq!(texts(&sources), ["server/src/low/inner.rs (low) uses server/src/high.rs (high)"]);
    }

    #[test]
    fn a_file_lies_on_one_floor() {
        let sources = [source("lib.rs", ""), source("lower.rs", ""), source("low/attic.rs", "")];
        let expected = [
            "server/src/lower.rs lies on no floor",
            "server/src/low/attic.rs lies on several floors: low, top",
        ];
        assert_eq!(texts(&sources), expected);
    }
}
