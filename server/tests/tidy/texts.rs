//! Texts in the tree besides code: forbidden marks, manifests, and directives.

use std::collections::BTreeSet;

use super::{
    none,
    source::{Line, lines, root, sources, texts},
};

/// Words for unfinished work, put together here so that this file does not contain them.
const UNDONE: &[&str] = &[
    concat!("TO", "DO"),
    concat!("FIX", "ME"),
    concat!("to", "do!("),
    concat!("unimple", "mented!("),
    concat!("#[ig", "nore"),
];

/// Folders of particular machines.
const MACHINE_PATHS: &[&str] =
    &[concat!("/wo", "rk/"), concat!("/ho", "me/"), concat!("/ro", "ot/"), concat!("/us", "r/local/")];

fn containing(words: &[&str], skip: impl Fn(&str) -> bool) -> Vec<String> {
    let mut found = Vec::new();
    for (path, text) in texts().into_iter().filter(|(path, _)| !skip(path)) {
        for (number, line) in text.lines().enumerate() {
            let words = words.iter().filter(|word| line.contains(*word));
            found.extend(words.map(|word| format!("{path}:{}: {word}", number + 1)));
        }
    }
    found
}

#[test]
fn nothing_is_left_to_be_done() {
    none("What is not done is not in the tree:", containing(UNDONE, |path| path == "Cargo.lock"));
}

#[test]
fn no_folder_of_any_machine_is_named() {
    none("The project is at home on every machine:", containing(MACHINE_PATHS, |path| path == "Cargo.lock"));
}

#[test]
fn dependencies_say_what_they_are_for() {
    let mut found = Vec::new();
    let manifests = texts().into_iter().filter(|(path, _)| path.ends_with("Cargo.toml"));
    for (path, text) in manifests {
        let mut in_dependencies = false;
        let mut before = "";
        for line in text.lines() {
            if line.starts_with('[') {
                // A workspace's list only shows where its own crates are.
                in_dependencies = line.ends_with("dependencies]") && !line.starts_with("[workspace");
            } else if in_dependencies && line.contains('=') && !line.starts_with([' ', '#']) {
                let name = line.split(['=', '.', ' ']).next().unwrap_or(line);
                let is_own = name.starts_with("braid-");
                if !is_own && !before.starts_with('#') {
                    found.push(format!("{path}: {name}"));
                }
            }
            before = line;
        }
    }
    none("A line above each dependency says why it is there:", found);
}

/// Returns the fields of the settings whose rows are marked as `live` or `reserved`.
fn announced(word: &str) -> BTreeSet<String> {
    let rows =
        std::fs::read_to_string(root().join("server/src/config/directives.rs")).expect("the directives");
    let mark = format!("{word} ");
    let field = |line: &Line| {
        let (field, _) = line.code.trim().strip_prefix(&mark)?.split_once(": ")?;
        Some(field.to_owned())
    };
    lines(&rows).iter().filter_map(field).collect()
}

/// Returns the fields of the settings that have an effect. INFO's output of a setting is no effect.
fn read_fields(among: &BTreeSet<String>) -> BTreeSet<String> {
    let is_inner =
        |path: &str| path.starts_with("server/src/config/") && !path.ends_with("/configuration.rs");
    let readers = sources("server/src")
        .into_iter()
        .filter(|source| !is_inner(&source.path) && !source.path.starts_with("server/src/metrics/"));
    let code: Vec<String> = readers.map(|source| source.joined()).collect();
    let is_read = |field: &&String| {
        ["config.", "load().", "settings."].iter().any(|owner| {
            let access = format!("{owner}{field}");
            code.iter().any(|code| {
                code.match_indices(&access).any(|(at, _)| {
                    let after = code[at + access.len()..].chars().next().unwrap_or(' ');
                    !after.is_alphanumeric() && after != '_'
                })
            })
        })
    };
    among.iter().filter(is_read).cloned().collect()
}

#[test]
fn directives_say_truly_whether_they_have_an_effect() {
    let (live, reserved) = (announced("live"), announced("reserved"));
    assert!(live.len() > 20, "the search has missed the table: {live:?}");
    let acted_on = read_fields(&live);
    let unread = live.difference(&acted_on).map(|field| format!("{field} is `live`, and nothing reads it"));
    let read = read_fields(&reserved);
    let read = read.iter().map(|field| format!("{field} is `reserved`, and something reads it"));
    none("--check-config must not lie:", unread.chain(read).collect());
}
