//! COMMAND and COMMAND DOCS tell of commands as Redis 8.2 and Valkey 9.1 do.
//!
//! `conformance/command-facts` writes the facts from these two servers. A fact that both tell must be told
//! here, unless it is in [`OWN`]. Where they differ, one of them is followed. Commands that Braid does not
//! have are not compared: `docs/differences.md` lists them.

use std::collections::{BTreeMap, BTreeSet};

use crate::support::{Reply, Resp, Server};

/// A fact in each line: the servers that tell it, the command, the name of the fact, its value.
const FACTS: &str = include_str!("command_facts.txt");

/// The facts that differ here, with the reason.
const OWN: &[(&str, &str, &str)] = &[
    ("client|list", "arguments", "they name PRIMARY, which Valkey takes without telling so"),
    ("memory|malloc-stats", "flags", "Redis has none, and Valkey `loading`"),
    ("memory|purge", "flags", "Redis has none, and Valkey `loading`"),
    ("msetex", "since", "Redis 8.4 had it first"),
    ("set", "arguments", "they have the conditions of Redis 8.4"),
    ("xread", "arguments", "MAXCOUNT and MAXSIZE of Redis 8.10"),
    ("xreadgroup", "arguments", "CLAIM, MAXCOUNT and MAXSIZE of later versions"),
    ("zinter", "arguments", "COUNT of Redis 8.8"),
    ("zinterstore", "arguments", "COUNT of Redis 8.8"),
    ("zunion", "arguments", "COUNT of Redis 8.8"),
    ("zunionstore", "arguments", "COUNT of Redis 8.8"),
];

/// The facts of a command: each name with its values.
type CommandFacts = BTreeMap<String, BTreeSet<String>>;

/// The facts of all commands, subcommands included.
#[derive(Default)]
struct AllFacts(BTreeMap<String, CommandFacts>);

impl AllFacts {
    fn add(&mut self, command: &str, fact: &str, value: String) {
        let of_command = self.0.entry(command.to_ascii_lowercase()).or_default();
        of_command.entry(fact.to_owned()).or_default().insert(value);
    }

    /// Adds a row of COMMAND, with its subcommands.
    fn add_row(&mut self, row: &Reply) {
        let Reply::Array(fields) = row else { panic!("no row: {row}") };
        let name = text(&fields[0]);
        let keys: Vec<String> = fields[3..6].iter().map(text).collect();
        self.add(&name, "arity", text(&fields[1]));
        self.add(&name, "keys", keys.join(" "));
        for (fact, at) in [("flags", 2), ("categories", 6), ("tips", 7)] {
            self.add(&name, fact, sorted(&fields[at]).join(" "));
        }
        for (index, spec) in items(&fields[8]).iter().enumerate() {
            self.add(&name, &format!("key-spec-{index}"), key_spec(spec));
        }
        items(&fields[9]).iter().for_each(|row| self.add_row(row));
    }

    /// Adds commands of COMMAND DOCS, with their subcommands.
    fn add_docs(&mut self, docs: &Reply) {
        let Reply::Map(commands) = docs else { panic!("no map: {docs}") };
        for (name, told) in commands {
            let name = text(name);
            for (fact, field) in
                [("group", "group"), ("since", "since"), ("deprecated-since", "deprecated_since")]
            {
                if let Some(value) = field_of(told, field) {
                    // Releases of Valkey are told by that name.
                    self.add(&name, fact, text(value).trim_start_matches("valkey ").to_owned());
                }
            }
            let flags = field_of(told, "doc_flags").map(sorted).unwrap_or_default();
            self.add(&name, "doc-flags", flags.join(" "));
            for entry in field_of(told, "history").map(items).unwrap_or_default() {
                let version = text(&items(entry)[0]);
                self.add(&name, "history", version.trim_start_matches("valkey ").to_owned());
            }
            self.add(&name, "arguments", field_of(told, "arguments").map(tree).unwrap_or_default());
            if let Some(subcommands) = field_of(told, "subcommands") {
                self.add_docs(subcommands);
            }
        }
    }
}

fn text(reply: &Reply) -> String {
    reply.text().or_else(|| reply.integer().map(|number| number.to_string())).expect("a word or a number")
}

fn items(reply: &Reply) -> &[Reply] {
    match reply {
        Reply::Array(items) | Reply::Set(items) => items,
        other => panic!("no collection: {other}"),
    }
}

fn sorted(reply: &Reply) -> Vec<String> {
    let mut words: Vec<String> = items(reply).iter().map(text).collect();
    words.sort();
    words
}

fn field_of<'r>(map: &'r Reply, name: &str) -> Option<&'r Reply> {
    let Reply::Map(fields) = map else { panic!("no map: {map}") };
    fields.iter().find(|(field, _)| field.text().as_deref() == Some(name)).map(|(_, value)| value)
}

/// Writes arguments as `command_facts.txt` has them.
fn tree(arguments: &Reply) -> String {
    let one = |argument: &Reply| {
        let field = |name| field_of(argument, name).map(text).unwrap_or_default();
        let mut shown = format!("{}:{}", field("name"), field("type"));
        let flags = field_of(argument, "flags").map(sorted).unwrap_or_default();
        for (flag, sign) in [("optional", "?"), ("multiple", "+"), ("multiple_token", "*")] {
            shown += if flags.iter().any(|set| set == flag) { sign } else { "" };
        }
        let signs = [('@', "since"), ('!', "deprecated_since"), ('#', "key_spec_index"), ('=', "token")];
        for (sign, name) in signs {
            if field_of(argument, name).is_some() {
                shown += &format!("{sign}{}", field(name));
            }
        }
        field_of(argument, "arguments").map_or(shown.clone(), |parts| format!("{shown}({})", tree(parts)))
    };
    items(arguments).iter().map(one).collect::<Vec<_>>().join(" ")
}

/// Writes a key specification as `command_facts.txt` has it.
fn key_spec(spec: &Reply) -> String {
    let mut words = vec![sorted(field_of(spec, "flags").expect("it has flags")).join(",")];
    for part in ["begin_search", "find_keys"] {
        let part = field_of(spec, part).expect("it has both parts");
        words.push(field_of(part, "type").map(text).expect("it has a type"));
        let Some(Reply::Map(fields)) = field_of(part, "spec") else { panic!("no specification: {part}") };
        words.extend(fields.iter().map(|(_, value)| text(value)));
    }
    words.join(" ")
}

/// A fact that Redis or Valkey tells.
struct Told<'f> {
    family: &'f str,
    command: &'f str,
    fact: &'f str,
    value: &'f str,
}

fn told() -> impl Iterator<Item = Told<'static>> {
    FACTS.lines().filter(|line| !line.starts_with('#')).map(|line| {
        let mut words = line.splitn(4, ' ');
        let mut word = || words.next().expect("a line has a command and a fact");
        let (family, command, fact) = (word(), word(), word());
        Told { family, command, fact, value: words.next().unwrap_or_default() }
    })
}

#[test]
fn facts_about_commands_are_those_of_redis_or_valkey() {
    let server = Server::start(&[]);
    let mut client = server.connect();
    client.hello(Resp::Three).expect("a new server answers");
    let mut here = AllFacts::default();
    let Reply::Array(rows) = client.command(&["COMMAND"]) else { panic!("COMMAND answers rows") };
    rows.iter().for_each(|row| here.add_row(row));
    here.add_docs(&client.command(&["COMMAND", "DOCS"]));
    // What each of the two tells of a fact.
    let mut expected: BTreeMap<(&str, &str), BTreeMap<&str, BTreeSet<&str>>> = BTreeMap::new();
    for Told { family, command, fact, value } in told() {
        let families: &[&str] = if family == "both" { &["redis", "valkey"] } else { &[family] };
        for family in families {
            expected.entry((command, fact)).or_default().entry(family).or_default().insert(value);
        }
    }
    let (mut differing, mut unused) = (Vec::new(), OWN.to_vec());
    let mut n_compared = 0;
    for ((command, fact), by_family) in &expected {
        let Some(facts) = here.0.get(*command) else { continue };
        n_compared += 1;
        let empty = BTreeSet::new();
        let found: BTreeSet<&str> = facts.get(*fact).unwrap_or(&empty).iter().map(String::as_str).collect();
        let agrees = match *fact {
            // Changes of both are told.
            "history" => by_family.values().all(|versions| versions.is_subset(&found)),
            _ => by_family.values().any(|values| *values == found),
        };
        if !agrees {
            let known = unused.iter().position(|(name, own, _)| (name, own) == (command, fact));
            match known {
                Some(at) => drop(unused.remove(at)),
                None => differing.push(format!("{command} {fact}\n  here  {found:?}\n  there {by_family:?}")),
            }
        }
    }
    assert!(differing.is_empty(), "{} facts differ\n{}", differing.len(), differing.join("\n"));
    assert!(unused.is_empty(), "these do not differ any more: {unused:?}");
    assert!(n_compared > 2500, "only {n_compared} facts are compared");
}
