//! The promises of the command table to its readers.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use braid_server::{
    catalog::{Arity, Flags, KeysAt, MembersAt},
    command::{Registered, Run, TABLE, Work},
};

use super::{Exceptions, excepting, none, source::texts};

fn each(judge: impl Fn(&'static Registered) -> Option<String>) -> Vec<String> {
    let found =
        TABLE.all().iter().filter_map(|command| Some(format!("{}: {}", command.full_name, judge(command)?)));
    found.collect()
}

#[test]
fn names_are_unique_and_lowercase() {
    let mut seen = HashSet::new();
    let mut found = Vec::new();
    for command in TABLE.all() {
        let name = command.full_name;
        if !seen.insert(name) {
            found.push(format!("{name} stands twice"));
        }
        let is_plain =
            |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-_|".contains(&byte);
        if command.spec.name.is_empty() || !name.bytes().all(is_plain) {
            found.push(format!("{name:?} is no plain lowercase name"));
        }
    }
    none("A command has one row and one name:", found);
}

#[test]
fn rows_say_what_their_commands_are() {
    let found = each(|command| {
        let spec = command.spec;
        let lacks = [
            ("a summary that is a sentence", spec.summary.ends_with('.')),
            ("a version", !spec.since.is_empty()),
            ("a complexity", !spec.complexity.is_empty()),
            ("subcommands, being a container", !command.is_container() || !spec.subcommands.is_empty()),
        ];
        lacks.iter().find(|(_, holds)| !holds).map(|(what, _)| format!("has not {what}"))
    });
    none("A row is complete:", found);
}

#[test]
fn members_that_are_fetched_ahead_are_where_the_syntax_has_them() {
    let found = each(|command| {
        let mut depth = 0;
        let needed: Vec<&str> = (command.spec.syntax.split(' '))
            .filter(|word| {
                let is_needed = depth == 0 && !word.starts_with('[');
                depth += word.matches('[').count();
                depth -= word.matches(']').count();
                is_needed
            })
            .collect();
        let is_member = |word: &&str| word.starts_with("member") || *word == "field";
        let on_one_shard = matches!(command.spec.run, Run::Shard(_));
        let first = needed.iter().position(is_member).filter(|_| on_one_shard && needed[0] == "key");
        let fetched = match command.spec.members {
            Some(MembersAt::Words { first, .. }) => Some(first as usize - 1),
            _ => None,
        };
        let agrees = match fetched {
            // If all members are optional, the syntax shows none that is required.
            Some(_) => fetched == first || command.spec.syntax == "key [member [member ...]]",
            None => first != Some(1),
        };
        (!agrees).then(|| format!("has its first member at {first:?}, fetches from {fetched:?} on"))
    });
    none("Members are fetched from where they are:", found);
}

/// Commands with keys that are neither READONLY nor WRITE, as in Redis.
const NEITHER: Exceptions = &[
    ("watch", "flags", "Redis gives it neither: it may run on a replica, and reads no value"),
    ("eval", "flags", "it does what its script does"),
    ("evalsha", "flags", "it does what its script does"),
    ("fcall", "flags", "it does what its script does"),
    ("debug|digest-value", "flags", "DEBUG is one administrative command in Redis"),
    ("debug|object", "flags", "DEBUG is one administrative command in Redis"),
    ("debug|panic-after-change", "flags", "DEBUG is one administrative command in Redis"),
    ("debug|panic-before-change", "flags", "DEBUG is one administrative command in Redis"),
];

#[test]
fn commands_with_keys_either_read_or_write() {
    let mut found = Vec::new();
    // A channel is declared like a key because of its shard, and has no value to read or write.
    let has_keys = |command: &Registered| command.spec.keys.are_some();
    for command in TABLE.all().iter().filter(|command| has_keys(command)) {
        let [reads, writes] = [Flags::READONLY, Flags::WRITE].map(|flag| command.has(flag));
        if reads == writes {
            let text = format!("{}: readonly {reads}, write {writes}", command.full_name);
            found.push((command.full_name.to_owned(), "flags".to_owned(), text));
        }
    }
    none("Exactly one of READONLY and WRITE:", excepting(NEITHER, found));
}

/// Returns the fewest words of a well-formed command.
fn fewest(arity: Arity) -> i64 {
    match arity {
        Arity::Exactly(n) | Arity::AtLeast(n) => i64::from(n),
    }
}

/// Rows whose key or channel is optional.
const OPTIONAL_KEYS: Exceptions = &[
    (
        "debug|object",
        "keys",
        "DEBUG's subcommands count their arguments themselves, after saying who may use them",
    ),
    ("debug|digest-value", "keys", "it may be asked for no value"),
    ("debug|panic-after-change", "keys", "as DEBUG OBJECT"),
    ("debug|panic-before-change", "keys", "as DEBUG OBJECT"),
    ("pfmerge", "keys", "it may be told no source, which leaves its destination as it is"),
    ("unsubscribe", "keys", "without channels it ends the subscriptions to all"),
    ("sunsubscribe", "keys", "as UNSUBSCRIBE"),
    ("pubsub|numsub", "keys", "it may be asked for no channel"),
    ("pubsub|shardnumsub", "keys", "as PUBSUB NUMSUB"),
];

#[test]
fn keys_lie_within_the_arity() {
    let mut found = Vec::new();
    for command in TABLE.all() {
        let n_words = fewest(command.spec.arity);
        for keys in command.spec.keys.0 {
            let fits = match keys.at {
                KeysAt::Range { first, last, step } => {
                    let last = i64::from(last);
                    let last = if last < 0 { n_words + last } else { last };
                    first > 0
                        && step > 0
                        && i64::from(first) < n_words
                        && last < n_words
                        && last >= i64::from(first)
                }
                KeysAt::Counted { count, step } => count > 0 && step > 0 && i64::from(count) < n_words,
                KeysAt::InData => true,
                KeysAt::Behind { word, from } | KeysAt::LastBehind { word, from } => {
                    from > 0 && word.bytes().all(|b| b.is_ascii_uppercase())
                }
                KeysAt::HalfBehind { from, .. } => from > 0 && i64::from(from) < n_words,
            };
            if !fits {
                let text = format!("{}: {:?} of at least {n_words} words", command.full_name, keys.at);
                found.push((command.full_name.to_owned(), "keys".to_owned(), text));
            }
        }
    }
    none("Every well-formed command has its keys:", excepting(OPTIONAL_KEYS, found));
}

#[test]
fn commands_on_one_shard_have_their_only_key_first() {
    let found = each(|command| {
        if !matches!(command.spec.run, Run::Shard(_)) {
            return None;
        }
        let first_only = KeysAt::Range { first: 1, last: 1, step: 1 };
        let [keys] = command.spec.keys.0 else {
            return Some(format!("{} kinds of keys", command.spec.keys.0.len()));
        };
        let holds = keys.at == first_only && command.first_is_key && command.parent.is_none();
        (!holds).then(|| format!("{:?}, subcommand: {}", keys.at, command.parent.is_some()))
    });
    none("An I/O thread routes by word 1 whatever runs on one shard:", found);
}

#[test]
fn commands_run_where_their_keys_are() {
    let found = each(|command| {
        let has_keys = !command.spec.keys.0.is_empty();
        match command.spec.run {
            // Long work without keys is a transaction so that a heavy-work thread runs it.
            Run::Transaction(_) if !has_keys && !matches!(command.spec.work, Work::Grows { .. }) => {
                Some("holds no shard".to_owned())
            }
            // Other commands wait for the client's watched keys as long as these are held.
            Run::Own(_) if matches!(command.spec.work, Work::Grows { .. }) => {
                Some("is long, and holds what its client watches".to_owned())
            }
            // It holds the keys that it leaves, and may name them.
            Run::Own(_) if command.has(Flags::LEAVES) => None,
            Run::Session(_)
            | Run::Barrier(_)
            | Run::Container
            | Run::Everything(_)
            | Run::EachShard { .. }
            | Run::Own(_)
                if has_keys =>
            {
                Some("declares keys whose shards are not what it holds".to_owned())
            }
            _ => None,
        }
    });
    none("Keys and the way a command runs agree:", found);
}

/// Commands that share a file of transcripts, because each has little output.
const SHARED_FILES: &[(&str, &[&str])] = &[
    (
        "server",
        &[
            "time",
            "lastsave",
            "role",
            "wait",
            "lolwut",
            "save",
            "bgsave",
            "bgrewriteaof",
            "replicaof",
            "slaveof",
        ],
    ),
    ("client-kill", &["client|kill"]),
];

/// Commands that no transcript sends.
const UNSENT: Exceptions = &[
    ("shutdown", "transcript", "ends the server that plays the transcripts"),
    ("debug|panic-after-change", "transcript", "ends the server that plays the transcripts"),
    ("debug|segfault", "transcript", "ends the server that plays the transcripts"),
    ("debug|advance-time", "transcript", "the transcripts' own `@advance` is this command"),
];

#[test]
fn every_command_has_a_transcript() {
    let mut sent: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (path, text) in texts() {
        let Some(file) = path.strip_prefix("server/tests/it/transcripts/") else { continue };
        let file = file.trim_end_matches(".txt").to_owned();
        for line in text.lines() {
            sent.entry(file.clone()).or_default().extend(sent_by(line));
        }
    }
    assert!(sent.len() > 50, "the search has missed the transcripts: {} files", sent.len());
    let mut found = Vec::new();
    for command in TABLE.all() {
        let name = command.full_name;
        let top = name.split('|').next().expect("it has a name");
        let own =
            |file: &str| file == top || file.strip_prefix(top).is_some_and(|rest| rest.starts_with('-'));
        let shared = |file: &str| SHARED_FILES.iter().any(|(of, names)| *of == file && names.contains(&name));
        let mut files = sent.iter().filter(|(file, _)| own(file) || shared(file));
        if !files.any(|(_, names)| names.contains(name)) {
            found.push((name.to_owned(), "transcript".to_owned(), name.to_owned()));
        }
    }
    none(
        "No file server/tests/it/transcripts/<command>.txt, nor <command>-<topic>.txt, sends these:",
        excepting(UNSENT, found),
    );
}

/// Returns the names of the command that a line of a transcript sends. There are two: with and without the
/// second word.
fn sent_by(line: &str) -> Vec<String> {
    let line = line.strip_prefix("@send ").unwrap_or(line).trim_start_matches(|c: char| c.is_ascii_digit());
    let Some(command) = line.strip_prefix("> ") else { return Vec::new() };
    let mut words = command.split_whitespace().map(str::to_ascii_lowercase);
    let Some(name) = words.next() else { return Vec::new() };
    let with_second = words.next().map(|second| format!("{name}|{second}"));
    [name].into_iter().chain(with_second).collect()
}
