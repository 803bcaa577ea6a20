//! Sends the same random commands to Braid and to redis-server 7.0, which must answer alike. It does so with
//! Redis 8.2 and Valkey 9.1, too, but for the known differences between the three.
//!
//! An episode is the sequence of commands that two clients, in RESP2 and RESP3, send to an empty server. A
//! grammar (`differential/families.rs`) makes a thousand commands with valid and invalid arguments on few
//! keys. So types clash, the other client's writes break transactions, and values outgrow their encodings. In
//! between, all stored data is compared. When the servers differ, the episode is reduced to the steps that
//! matter, and its seed is printed.
//!
//! The episodes are always the same by default. `make compat-fuzz` searches with others. Known faults of
//! the servers themselves, and differences between them, are named in `differential/oracle.rs`.
//!
//! | variable | is |
//! |---|---|
//! | `BRAID_DIFF_SEED` | the seed of the first episode, 1 if not set; the next ones follow it |
//! | `BRAID_DIFF_COMMANDS` | the approximate number of commands |
//! | `BRAID_DIFF_SECONDS` | the duration, in place of a number of commands |
//! | `BRAID_DIFF_FAMILY` | the family of most commands |
//! | `BRAID_DIFF_FAILURES` | the number of differences after which the test fails, 1 if not set |
//! | `BRAID_DIFF_ORACLE` | the server to compare with, if not the redis-server of the PATH |
//! | `BRAID_COMPAT_SERVER` | a program to test in Braid's place: `redis-server` tests the table itself |
//! | `BRAID_REQUIRE_REDIS` | if 1, the test fails without a redis-server 7.0. Otherwise it prints a note and passes |

mod episode;
mod families;
pub mod form;
mod oracle;
mod pair;
pub mod pools;
mod replay;
mod rights;
mod same;
mod shrink;
mod step;
pub mod table;

use std::{
    collections::BTreeMap,
    rc::Rc,
    str::FromStr,
    time::{Duration, Instant},
};

use crate::support::{Reply, Server};
use episode::{Episode, N_ROWS};
use oracle::Oracle;
use pair::Pair;
use same::{MILLIS, Same};
use shrink::shrink;
use step::{Difference, Step};
use table::{Missing, Table};

/// The default number of commands of a test.
const N_COMMANDS: u64 = 600_000;

/// The number of rows after which all stored data is compared.
const INSPECTION_ROWS: usize = 250;

/// The number of databases that the clients use.
const N_DBS: usize = 3;

#[test]
fn many_shards_answer_as_redis_does() {
    compare(&["--io-threads", "2"]);
}

#[test]
fn one_shard_answers_as_redis_does() {
    compare(&["--io-threads", "1", "--shards", "1"]);
}

/// Reads a number from the environment.
fn variable<T: FromStr>(name: &str) -> Option<T> {
    let value = std::env::var(name).ok()?;
    Some(value.parse().unwrap_or_else(|_| panic!("{name} is no number: {value}")))
}

/// The point at which a test has done enough.
enum Extent {
    Commands(u64),
    Until(Instant),
}

impl Extent {
    fn of_environment() -> Extent {
        match variable("BRAID_DIFF_SECONDS") {
            Some(seconds) => Extent::Until(Instant::now() + Duration::from_secs(seconds)),
            None => Extent::Commands(variable("BRAID_DIFF_COMMANDS").unwrap_or(N_COMMANDS)),
        }
    }

    fn is_reached(&self, n_commands: u64) -> bool {
        match self {
            Extent::Commands(n) => n_commands >= *n,
            Extent::Until(deadline) => Instant::now() >= *deadline,
        }
    }
}

/// Plays episodes until there are enough commands or differences.
fn compare(args: &[&str]) {
    let Some(oracle) = Oracle::of_environment() else { return };
    // With redis-server in Braid's place nothing may differ. A difference is chance, and the table must say
    // so.
    let mut pair = match Server::compat_program() {
        Some(program) => Pair::start(&program, &[], oracle.clone()),
        None => Pair::start(env!("CARGO_BIN_EXE_braid-server"), args, oracle.clone()),
    };
    let [ours, theirs] = pair.commands();
    let (table, missing) = Table::common(&ours, &theirs);
    check_missing(&missing);
    let table = Rc::new(table);
    let extent = Extent::of_environment();
    let n_wanted = variable("BRAID_DIFF_FAILURES").unwrap_or(1);
    let first_seed = variable("BRAID_DIFF_SEED").unwrap_or(1);
    println!("{:?}, seed {first_seed}, {}", oracle.release, args.join(" "));
    // Reports by the command that was answered differently.
    let mut reports: BTreeMap<String, String> = BTreeMap::new();
    let (mut n_commands, mut seed) = (0, first_seed);
    while !extent.is_reached(n_commands) && reports.len() < n_wanted {
        let mut steps = Vec::new();
        if let Err(difference) = play_episode(&mut pair, seed, &table, &mut steps) {
            let (command, report) = report(&mut pair, &oracle, seed, steps, difference);
            reports.entry(command).or_insert(report);
        }
        n_commands += N_ROWS as u64;
        seed += 1;
    }
    println!("{n_commands} commands in {} episodes", seed - first_seed);
    assert!(reports.is_empty(), "{}", reports.into_values().collect::<Vec<_>>().join("\n"));
}

/// Checks that Braid has every command of the table. Otherwise the comparison would shrink unnoticed.
fn check_missing(missing: &Missing) {
    assert!(missing.families.is_empty(), "Braid must have the families {:?}", missing.families);
    assert!(missing.commands.is_empty(), "Braid must have {:?}", missing.commands);
}

/// Plays one episode. `steps` receives the steps that were played, up to the first difference.
fn play_episode(
    pair: &mut Pair,
    seed: u64,
    table: &Rc<Table>,
    steps: &mut Vec<Step>,
) -> Result<(), Difference> {
    let focus = std::env::var("BRAID_DIFF_FAMILY").ok();
    let mut episode = Episode::new(seed, table, focus.as_deref(), pair.avoided_in_transactions());
    pair.reset();
    play(pair, steps, episode.settings())?;
    for _ in 0..N_ROWS / INSPECTION_ROWS {
        let mut rows = Vec::new();
        (0..INSPECTION_ROWS).for_each(|_| episode.next(&mut rows));
        play(pair, steps, rows)?;
        if pair.has_parted() {
            break;
        }
        inspect(pair, steps)?;
    }
    Ok(())
}

/// Plays further steps and appends them to those before.
fn play(pair: &mut Pair, steps: &mut Vec<Step>, further: Vec<Step>) -> Result<Vec<Reply>, Difference> {
    let n_before = steps.len();
    let outcome = pair.play(&further);
    steps.extend(further);
    outcome.map_err(|difference| {
        let at = n_before + difference.at;
        steps.truncate(at + 1);
        Difference { at, ..difference }
    })
}

/// Compares all stored data.
fn inspect(pair: &mut Pair, steps: &mut Vec<Step>) -> Result<(), Difference> {
    for db in 0..N_DBS {
        let select = Step::inspect(&[b"SELECT", db.to_string().as_bytes()], Same::Letter);
        let all = Step::inspect(&[b"KEYS", b"*"], Same::AnyOrder);
        let replies = play(pair, steps, vec![select, all])?;
        let Some(Reply::Array(keys)) = replies.last() else { unreachable!("KEYS answers with an array") };
        let keys: Vec<&[u8]> = keys.iter().filter_map(bulk).collect();
        let types = keys.iter().map(|key| Step::inspect(&[b"TYPE", key], Same::Letter)).collect();
        let types = play(pair, steps, types)?;
        let mut contents = Vec::new();
        for (key, kind) in keys.iter().zip(types) {
            let is_packed_by_now = matches!(kind.text().as_deref(), Some("list" | "set" | "zset"));
            let encoding = if is_packed_by_now { Same::Encoding } else { Same::Letter };
            contents.push(Step::inspect(&[b"OBJECT", b"ENCODING", key], encoding));
            contents.push(Step::inspect(&[b"PTTL", key], Same::Near(MILLIS)));
            contents.extend(content(key, &kind));
        }
        play(pair, steps, contents)?;
    }
    play(pair, steps, vec![Step::inspect(&[b"SELECT", b"0"], Same::Letter)]).map(drop)
}

fn bulk(reply: &Reply) -> Option<&[u8]> {
    match reply {
        Reply::Bulk(bytes) => Some(bytes),
        _ => None,
    }
}

/// Returns the steps that read all of a value.
fn content(key: &[u8], kind: &Reply) -> Vec<Step> {
    match kind.text().as_deref() {
        Some("string") => vec![Step::inspect(&[b"GET", key], Same::Letter)],
        Some("list") => vec![Step::inspect(&[b"LRANGE", key, b"0", b"-1"], Same::Letter)],
        Some("set") => vec![Step::inspect(&[b"SMEMBERS", key], Same::AnyOrder)],
        Some("hash") => vec![Step::inspect(&[b"HGETALL", key], Same::Letter)],
        Some("zset") => vec![Step::inspect(&[b"ZRANGE", key, b"0", b"-1", b"WITHSCORES"], Same::Letter)],
        Some("stream") => vec![
            Step::inspect(&[b"XRANGE", key, b"-", b"+"], Same::Letter),
            Step::inspect(&[b"XINFO", b"STREAM", key, b"FULL"], Same::Clocks),
        ],
        _ => Vec::new(),
    }
}

/// Describes the command with different replies, and the shortest known way to it.
fn report(
    pair: &mut Pair,
    oracle: &Oracle,
    seed: u64,
    steps: Vec<Step>,
    difference: Difference,
) -> (String, String) {
    let last = steps[steps.len().saturating_sub(30)..].to_vec();
    let (heading, steps, difference) = match shrink(pair, steps) {
        Some((steps, difference)) => ("What leads there", steps, difference),
        None => ("It did not happen again. The last steps before it", last, difference),
    };
    let command = steps.last().map_or(String::new(), Step::name);
    let steps: Vec<String> = steps.iter().map(|step| format!("  {}", step.text())).collect();
    let theirs = &oracle.program;
    let report = format!(
        "Braid and {theirs} differ. {heading}:\n{}\nBraid answers:\n{}\n{theirs} answers:\n{}\n{}\
         To repeat it: BRAID_DIFF_SEED={seed} cargo test -p braid-server --test differential\n",
        steps.join("\n"),
        excerpt(&difference.ours, &difference.theirs),
        excerpt(&difference.theirs, &difference.ours),
        pair.last_words(),
    );
    (command, report)
}

/// Returns the lines of a reply around the first that another one lacks.
fn excerpt(reply: &str, other: &str) -> String {
    const N_LINES: usize = 40;
    let differs = reply.lines().zip(other.lines()).position(|(line, other)| line != other).unwrap_or(0);
    let lines: Vec<&str> = reply.lines().collect();
    let first = differs.saturating_sub(N_LINES / 2).min(lines.len());
    let last = (first + N_LINES).min(lines.len());
    lines[first..last].join("\n")
}
