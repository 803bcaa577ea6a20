//! Scripts whose keys depend on data: whether all succeed, how evenly, and how many take the lane.

use std::net::SocketAddr;

use braid_protocol::Value;
use braid_protocol::request::write_request;

use super::contest::{Contest, N_CONNECTIONS, Side};
use super::loaded_script::{RunBy, Script, bulk};
use crate::bars::measures::{Measure, Target, Unit};
use crate::bars::preload;
use crate::client::{Client, wrong_reply};
use crate::engine::{self, Limit, Record};
use crate::error::BenchError;
use crate::load::Load;
use crate::observe;
use crate::spawn::Server;
use crate::workload::{Command, Keys, Workload};

const HAND_OVER: &str = include_str!("../../scripts/hand_over.lua");
const N_RUNS: u64 = 100_000;
const N_ACCOUNTS: u64 = 1000;

/// Measures runs that read a key's name from another key, and write both.
///
/// There are a thousand keys.
pub(super) fn run(contest: &Contest, bar: &str) -> Result<Vec<Measure>, BenchError> {
    let servers = contest.start_both(&[])?;
    let measures = vec![
        Measure::new("failed", Unit::Count, Target::value(0.0).in_each_round()),
        Measure::new("longest/median", Unit::Times, Target::value(100.0).in_each_round()),
        Measure::new("median run", Unit::Millis, Target::NONE),
        Measure::new("longest run", Unit::Millis, Target::NONE),
        Measure::new("runs with the lane", Unit::Percent, Target::NONE),
        Measure::new("runs", Unit::PerSecond, Target::NONE),
    ];
    contest.rounds(bar, contest.n_rounds, measures, |side| run_once(side.of(&servers), side))
}

fn run_once(server: &Server, side: Side) -> Result<Vec<f64>, BenchError> {
    let address = server.address();
    let mut client = Client::connect(address)?;
    let script = Script::load(&mut client, HAND_OVER, RunBy::Digest)?;
    fill(address)?;
    script.expect(&mut client, &["0", &preload::name(0)], &bulk(preload::name(heir_of(0))))?;
    fill(address)?;
    let load = Load::new(&workload(&script), 1, Vec::new())?.until(Limit::Requests(N_RUNS));
    let n_lane_runs_before = n_lane_runs(server, side)?;
    let outcome = load.run(&engine::LoadTarget::plain(address), &mut |_| {})?;
    let n_lane_runs = n_lane_runs(server, side)? - n_lane_runs_before;
    let record = &outcome.record;
    let n_failed = n_failed(record);
    audit(&Ledger::read(&mut client)?, record.n_done())?;
    let response = record.response();
    let (median, longest) = (response.value_at_quantile(0.5) as f64, response.max() as f64);
    Ok(vec![
        n_failed as f64,
        longest / median,
        median / 1e6,
        longest / 1e6,
        100.0 * n_lane_runs as f64 / N_RUNS as f64,
        outcome.achieved_rate(),
    ])
}

fn workload(script: &Script) -> Workload {
    Workload {
        connections: N_CONNECTIONS,
        keys: Keys { count: N_ACCOUNTS, ..Keys::default() },
        commands: vec![Command::of(&script.request(&["0", "{key}"]))],
        ..Workload::default()
    }
}

/// Returns the number of runs with a wrong result. The first error is printed.
fn n_failed(record: &Record) -> u64 {
    if let Some(text) = record.errors.keys().next() {
        eprintln!("  a run failed: {text}");
    }
    N_RUNS.saturating_sub(record.n_done())
        + record.commands.iter().map(|command| command.n_nulls).sum::<u64>()
}

/// Returns the number of operations that had the lane, which only Braid has.
fn n_lane_runs(server: &Server, side: Side) -> Result<u64, BenchError> {
    let info = observe::info(&engine::LoadTarget::plain(server.address()))?;
    match (side, info.get("lane_runs").map(|field| field.parse())) {
        (_, Some(Ok(n_lane_runs))) => Ok(n_lane_runs),
        (Side::Redis, None) => Ok(0),
        (_, field) => Err(wrong_reply(&["INFO"], &format!("lane_runs: {field:?}"))),
    }
}

/// Returns the account that receives from the given one.
///
/// Each account has one heir, is the heir of one, and is never its own heir.
fn heir_of(account: u64) -> u64 {
    (account * 7 + 3) % N_ACCOUNTS
}

/// Makes the accounts, which have neither given nor received.
fn fill(address: SocketAddr) -> Result<(), BenchError> {
    preload::pipeline(address, N_ACCOUNTS, |account, out| {
        let [account, heir] = [account, heir_of(account)].map(preload::name);
        write_request(out, &["HSET", &account, "heir", &heir, "given", "0", "got", "0"]);
    })
}

/// The amounts that each account has given and received.
struct Ledger {
    given: Vec<u64>,
    got: Vec<u64>,
}

impl Ledger {
    fn read(client: &mut Client) -> Result<Self, BenchError> {
        let mut ledger = Self { given: Vec::new(), got: Vec::new() };
        for account in 0..N_ACCOUNTS {
            let request = ["HMGET", &preload::name(account), "given", "got"];
            let reply = client.call(&request)?;
            let [given, got] = amounts(&reply).ok_or_else(|| wrong_reply(&request, &reply))?;
            ledger.given.push(given);
            ledger.got.push(got);
        }
        Ok(ledger)
    }
}

fn amounts(reply: &Value) -> Option<[u64; 2]> {
    let Value::Array(fields) = reply else { return None };
    let number = |field: &Value| std::str::from_utf8(field.as_bytes()?).ok()?.parse().ok();
    match fields.as_slice() {
        [given, got] => Some([number(given)?, number(got)?]),
        _ => None,
    }
}

/// Checks that one amount was given for each run, and that each heir received its own.
fn audit(ledger: &Ledger, n_runs: u64) -> Result<(), BenchError> {
    let n_given: u64 = ledger.given.iter().sum();
    let has_got = |(account, given): (u64, &u64)| ledger.got[heir_of(account) as usize] == *given;
    let n_wronged = (0..).zip(&ledger.given).filter(|&pair| !has_got(pair)).count();
    if n_given == n_runs && n_wronged == 0 {
        return Ok(());
    }
    Err(BenchError::WrongReply {
        request: format!("{n_runs} runs"),
        reply: format!("{n_given} were given, and {n_wronged} heirs did not get what was given to them"),
    })
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn each_account_is_the_heir_of_one_other() {
        let heirs: HashSet<_> = (0..N_ACCOUNTS).map(heir_of).collect();
        assert_eq!(heirs, (0..N_ACCOUNTS).collect());
        assert!((0..N_ACCOUNTS).all(|account| heir_of(account) != account));
    }

    #[test]
    fn an_audit_finds_what_was_lost_or_came_to_another() {
        let ledger = |got_by: u64, n_got| {
            let mut ledger =
                Ledger { given: vec![0; N_ACCOUNTS as usize], got: vec![0; N_ACCOUNTS as usize] };
            ledger.given[5] = 2;
            ledger.got[got_by as usize] = n_got;
            ledger
        };
        assert!(audit(&ledger(heir_of(5), 2), 2).is_ok());
        assert!(audit(&ledger(heir_of(5), 2), 3).is_err());
        assert!(audit(&ledger(heir_of(5), 1), 2).is_err());
        let error = audit(&ledger(5, 2), 2).expect_err("another has it").to_string();
        assert!(error.contains("2 heirs"), "{error}");
    }

    #[test]
    fn an_amount_that_is_missing_is_noticed() {
        let reply = |fields: &[&str]| Value::Array(fields.iter().map(|&field| bulk(field)).collect());
        assert_eq!(amounts(&reply(&["3", "4"])), Some([3, 4]));
        assert_eq!(amounts(&Value::Array(vec![bulk("3"), Value::NullBulk])), None);
        assert_eq!(amounts(&reply(&["3", "x"])), None);
    }
}
