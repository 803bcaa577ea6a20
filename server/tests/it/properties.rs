//! Properties that hold for any input, tried with some inputs. The fuzz targets of `server/fuzz` try others.

mod records;
mod users;

use proptest::{collection::vec, prelude::*, sample::select};

/// Whole rules, and the beginnings of rules.
const RULES: &[&str] = &[
    "",
    "on",
    "off",
    "nopass",
    "resetpass",
    ">",
    "<",
    "#",
    "!",
    "~",
    "%R~",
    "%W~",
    "%RW~",
    "%~",
    "%",
    "&",
    "+",
    "-",
    "+@",
    "-@",
    "+get",
    "-get",
    "+@all",
    "-@all",
    "+@read",
    "-@dangerous",
    "+config",
    "-config|set",
    "+config|get",
    "+select|0",
    "-select|1",
    "+config|get|x",
    "allkeys",
    "resetkeys",
    "~*",
    "allchannels",
    "resetchannels",
    "&*",
    "allcommands",
    "nocommands",
    "reset",
    "clearselectors",
    "sanitize-payload",
    "skip-sanitize-payload",
    "(",
    ")",
    "(~a +get)",
    "(%R~a* &b)",
    "()",
    "(resetkeys",
    "user",
    "#9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
    "!9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
];

/// The ends of rules.
const ENDS: &[&str] = &[
    "", "", "", "*", "a", "get", "[a-", "?", "\\", "|", "\"", "'", " ", "\t", "\0", "é", "(", ")", "%", "~b",
    "@",
];

fn rule() -> impl Strategy<Value = String> {
    (select(RULES), vec(select(ENDS), 0..3)).prop_map(|(begin, ends)| begin.to_owned() + &ends.concat())
}

fn line() -> impl Strategy<Value = String> {
    let name = select(&["bob", "default", "al", "a\"b", "", "\0"][..]);
    (name, vec(rule(), 0..8)).prop_map(|(name, rules)| format!("user {name} {}", rules.join(" ")))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn rules_are_refused_or_read_back_as_they_are_written(rules in vec(rule(), 0..12)) {
        users::check_rules(rules.join("\n").as_bytes());
    }

    #[test]
    fn any_bytes_are_refused_or_read_back_as_they_are_written(text in vec(any::<u8>(), 0..60)) {
        users::check_rules(&text);
        users::check_file(&text);
    }

    #[test]
    fn files_of_users_are_refused_or_read_back_as_they_are_written(lines in vec(line(), 0..6)) {
        users::check_file(lines.join("\n").as_bytes());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn changed_records_bring_no_plaintext_and_no_panic(version in 0..2u8, changes in vec(any::<u8>(), 4..24)) {
        records::check(&[&[version], &changes[..]].concat());
    }

    #[test]
    fn garbage_brings_no_plaintext_and_no_panic(version in 2..4u8, begins in select(vec![vec![], vec![22, 3, 1], vec![23, 3, 3], vec![21, 3, 3, 0, 2], vec![20, 3, 3, 0, 1]]), rest in vec(any::<u8>(), 1..300)) {
        records::check(&[&[version], &begins[..], &rest[..]].concat());
    }
}

#[test]
fn what_nobody_changes_comes_through() {
    for version in 0..2 {
        records::check(&[version]);
    }
}
