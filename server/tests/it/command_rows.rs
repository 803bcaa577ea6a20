//! COMMAND describes commands as Redis does.

use std::collections::BTreeMap;

use crate::support::{Reply, Server};

/// Redis's answers, one command in each line.
const ROWS: &str = include_str!("command_rows.txt");

/// Adds a command and its subcommands, in the form of the list.
fn add_row(row: &Reply, rows: &mut BTreeMap<String, String>) {
    let Reply::Array(fields) = row else { panic!("no row: {row:?}") };
    let text = |at: usize| fields[at].text().expect("a word");
    let number = |at: usize| fields[at].integer().expect("a number").to_string();
    let words = |at: usize| {
        let (Reply::Array(words) | Reply::Set(words)) = &fields[at] else { panic!("no words: {row:?}") };
        let mut words: Vec<String> = words.iter().map(|word| word.text().expect("a word")).collect();
        words.sort();
        words
    };
    let numbers = [1, 3, 4, 5].map(number);
    let line = [vec![text(0)], numbers.to_vec(), words(2), words(6)].concat().join(" ");
    rows.insert(text(0), line);
    let Some(Reply::Array(subcommands)) = fields.get(9) else { return };
    subcommands.iter().for_each(|row| add_row(row, rows));
}

#[test]
fn arity_keys_flags_and_categories_are_those_of_redis() {
    let server = Server::start(&[]);
    let Reply::Array(all) = server.connect().command(&["COMMAND"]) else { panic!("COMMAND answers rows") };
    let mut rows = BTreeMap::new();
    all.iter().for_each(|row| add_row(row, &mut rows));
    let expected = ROWS.lines().filter(|line| !line.starts_with('#'));
    let differing: Vec<String> = expected
        .filter_map(|line| {
            let name = line.split(' ').next().expect("a name");
            let row = rows.get(name).map_or("missing", String::as_str);
            (row != line).then(|| format!("here  {row}\nRedis {line}"))
        })
        .collect();
    assert!(differing.is_empty(), "{}", differing.join("\n"));
    assert!(rows.len() > 350, "only {} rows", rows.len());
}
