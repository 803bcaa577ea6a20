//! The waits of GETs of other keys while one client repeats a long script.
//!
//! The script works on one key.

use std::ops::Range;
use std::time::{Duration, Instant};

use super::contest::{Contest, N_KEYS, VALUE};
use super::loaded_script::{RunBy, Script, bulk, expect};
use super::slow::{self, SlowRequest};
use crate::bars::measures::{Measure, Target, Unit};
use crate::client::Client;
use crate::engine::{self, Limit, Record};
use crate::error::BenchError;
use crate::load::Load;
use crate::reply_counter::Kind;
use crate::spawn::Server;
use crate::workload::{Command, Keys, Workload};

const LONG: &str = include_str!("../../scripts/long.lua");
/// The expressions for the script's key: declared, and undeclared.
const DECLARED: &str = "KEYS[1]";
const UNDECLARED: &str = "ARGV[2]";
const KEY: &str = "counted";
/// GETs a second. The rate is low, so that no GET waits for a core.
const RATE: f64 = 1000.0;
/// Connections that send the GETs in turns, each one a second.
///
/// A GET that waits for the script then does not delay the next one.
const N_GETTERS: usize = 1000;

/// The range of the script's duration on either server when nothing else runs.
const LASTING: Range<Duration> = Duration::from_millis(200)..Duration::from_millis(300);
const AIM: Duration = Duration::from_millis(250);
/// The number to which the script counts in the first try.
const FIRST_TRY: u64 = 10_000;
/// Runs of a try. The shortest counts, because other work on the machine makes a run longer, never shorter.
const N_ALIKE: usize = 3;
/// The most tries.
const N_TRIES: usize = 30;

/// The source of the script's key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Naming {
    Declared,
    Undeclared,
}

impl Naming {
    fn text(self) -> String {
        match self {
            Self::Declared => LONG.to_owned(),
            Self::Undeclared => LONG.replace(&format!("key = {DECLARED}"), &format!("key = {UNDECLARED}")),
        }
    }

    /// Returns the arguments that make it count `n_times`, given in digits.
    fn arguments(self, n_times: &str) -> [&str; 3] {
        match self {
            Self::Declared => ["1", KEY, n_times],
            Self::Undeclared => ["0", n_times, KEY],
        }
    }
}

/// Measures GETs of a million keys during the script, with its key declared and not declared.
///
/// The keys are in all shards, so few of them are in the one that the script holds.
pub(super) fn run(contest: &Contest, bar: &str) -> Result<Vec<Measure>, BenchError> {
    let servers = contest.start_both_loaded(VALUE)?;
    let mut all = Vec::new();
    for naming in [Naming::Declared, Naming::Undeclared] {
        let measures = contest.rounds(bar, contest.few_rounds(), measures(naming), |side| {
            run_once(contest, side.of(&servers), naming)
        })?;
        all.extend(measures);
    }
    Ok(all)
}

fn measures(naming: Naming) -> Vec<Measure> {
    let measure = |name: &str, target| match naming {
        Naming::Declared => Measure::new(name, Unit::Millis, target),
        Naming::Undeclared => Measure::new(format!("undeclared {name}"), Unit::Millis, target),
    };
    vec![
        measure("GET p50", Target::NONE),
        measure("GET p99", Target::value(5.0)),
        measure("GET max", Target::NONE),
        measure("a run", Target::NONE),
    ]
}

/// Measures once. The machine's speed changes, so each round calibrates the script again.
fn run_once(contest: &Contest, server: &Server, naming: Naming) -> Result<Vec<f64>, BenchError> {
    let script = calibrate(server, naming)?;
    let mut figures = slow::run_beside(server, &script, || waits_of_gets(contest, server))?;
    if let Some(last) = figures.last_mut() {
        *last = 1e3 / *last;
    }
    Ok(figures)
}

/// Sends GETs at [`RATE`].
///
/// Their waits begin when they are due, so a stall counts for all GETs that fall due during it.
fn waits_of_gets(contest: &Contest, server: &Server) -> Result<Vec<f64>, BenchError> {
    let workload = Workload {
        connections: N_GETTERS,
        rate: Some(RATE),
        keys: Keys { count: N_KEYS, ..Keys::default() },
        commands: vec![Command::of(&["GET", "{key}"])],
        ..Workload::default()
    };
    let limit = Limit::Time { warmup: Duration::ZERO, measured: contest.load_time() };
    let load = Load::new(&workload, 1, Vec::new())?.until(limit);
    let record = load.run(&engine::LoadTarget::plain(server.address()), &mut |_| {})?.record;
    if let Some(reply) = fault(&record) {
        return Err(BenchError::WrongReply { request: "GET".to_owned(), reply });
    }
    let response = record.response();
    let waits = [response.value_at_quantile(0.5), response.value_at_quantile(0.99), response.max()];
    Ok(waits.map(|nanos| nanos as f64 / 1e6).to_vec())
}

/// Returns the fault of the replies, if they had one.
///
/// All keys are loaded. A GET that was never sent was due while its connection waited for the one before,
/// whose wait counts.
fn fault(record: &Record) -> Option<String> {
    let Record { n_unanswered, n_reconnects, .. } = record;
    let n_nulls: u64 = record.commands.iter().map(|command| command.n_nulls).sum();
    match record.errors.keys().next() {
        Some(text) => Some(text.clone()),
        None if n_unanswered + n_reconnects + n_nulls == 0 => None,
        None => Some(format!(
            "{n_nulls} replies were null, {n_unanswered} requests had none, and {n_reconnects} connections broke"
        )),
    }
}

/// Returns a request for a run whose duration on this server is within [`LASTING`].
fn calibrate(server: &Server, naming: Naming) -> Result<SlowRequest, BenchError> {
    let mut client = Client::connect(server.address())?;
    let script = Script::load(&mut client, &naming.text(), RunBy::Digest)?;
    let mut n_times = FIRST_TRY;
    for _ in 0..N_TRIES {
        let digits = n_times.to_string();
        let request = script.request(&naming.arguments(&digits));
        let slow = SlowRequest::new("a run", &request, Kind::Integer(n_times as i64));
        let mut took = Duration::MAX;
        for _ in 0..N_ALIKE {
            client.call(&["DEL", KEY])?;
            let began = Instant::now();
            slow.ask(&mut client)?;
            took = took.min(began.elapsed());
            expect(&mut client, &["GET", KEY], &bulk(digits.as_str()))?;
        }
        if LASTING.contains(&took) {
            return Ok(slow);
        }
        n_times = next_try(n_times, took);
    }
    Err(BenchError::Machine(format!("no run of a script lasted {LASTING:?} in {N_TRIES} tries")))
}

/// Returns the next number to count to, after a run of this duration.
///
/// A short run says little, so the number grows at most eight times.
fn next_try(n_times: u64, took: Duration) -> u64 {
    let factor = AIM.as_secs_f64() / took.as_secs_f64().max(1e-9);
    (n_times as f64 * factor.min(8.0)).ceil() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_null_is_wrong_because_all_keys_are_loaded() {
        let mut record = Record::new(["GET"].into_iter());
        record.commands[0].n_done = 3;
        assert_eq!(fault(&record), None);
        record.commands[0].n_nulls = 1;
        assert!(fault(&record).is_some_and(|text| text.starts_with("1 replies were null")));
        record.errors.insert("ERR no".to_owned(), 1);
        assert_eq!(fault(&record).as_deref(), Some("ERR no"));
    }

    #[test]
    fn tries_come_to_last_as_long_as_they_shall() {
        // The duration on a server that counts to 3000 in a millisecond.
        let took = |n_times: u64| Duration::from_micros(n_times / 3);
        let mut n_times = FIRST_TRY;
        let n_tries = (1..=N_TRIES).find(|_| {
            let is_reached = LASTING.contains(&took(n_times));
            n_times = if is_reached { n_times } else { next_try(n_times, took(n_times)) };
            is_reached
        });
        assert!(n_tries.is_some_and(|n_tries| n_tries < 10), "{n_tries:?}");
        assert!(next_try(1, Duration::from_secs(10)) > 0);
    }

    #[test]
    fn only_the_declared_key_is_among_keys() {
        let [declared, undeclared] = [Naming::Declared, Naming::Undeclared].map(Naming::text);
        assert!(declared.contains("local key = KEYS[1]\n"));
        assert!(undeclared.contains("local key = ARGV[2]\n"));
        assert_eq!(Naming::Undeclared.arguments("7"), ["0", "7", KEY]);
    }
}
