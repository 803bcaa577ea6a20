//! The cost of checking which keys a user may read.

use braid_protocol::Value;

use super::contest::{Contest, N_KEYS, VALUE, load_keys};
use super::cpu;
use crate::bars::measures::{Measure, Target, Unit};
use crate::client::{Client, wrong_reply};
use crate::error::BenchError;

const PIPELINE: u32 = 64;
const NAMES: [&str; 2] = ["restricted", "unrestricted"];
const PASSWORD: &str = "secret";
/// The patterns of both users. Of the three, the last matches the keys.
const PATTERNS: [&[&str]; 2] = [&["~user:*", "~session:*", "~key:*"], &["~*"]];

/// Compares GETs of a user with three key patterns with those of an unrestricted user.
///
/// Both columns are Braid. The first is the user with patterns.
pub(super) fn restricted(contest: &Contest, bar: &str) -> Result<Vec<Measure>, BenchError> {
    let server = contest.start_braid(contest.n_io_threads, &[])?;
    load_keys(&server, VALUE)?;
    let mut client = Client::connect(server.address())?;
    let password = format!(">{PASSWORD}");
    for (name, patterns) in NAMES.into_iter().zip(PATTERNS) {
        let user = ["ACL", "SETUSER", name, "on", &password, "+@all"];
        client.call(&[&user[..], patterns].concat())?;
    }
    check(&mut client)?;
    let measures = vec![
        Measure::new("CPU/GET (restricted over not)", Unit::Micros, Target::ratio(1.15)),
        Measure::new("GET", Unit::PerSecond, Target::NONE),
    ];
    let n_keys = N_KEYS.to_string();
    contest.rounds_named(NAMES, bar, contest.n_rounds, measures, |side| {
        let user = side.of(&NAMES);
        let arguments = ["--user", user, "-a", PASSWORD, "-r", &n_keys, "-t", "get"];
        let n_requests = contest.n_requests(PIPELINE);
        let get = cpu::per_command(&contest.redis_benchmark, &server, PIPELINE, n_requests, &arguments)?;
        Ok(vec![get.micros, get.per_second])
    })
}

/// Checks that only one of the users may read every key.
fn check(client: &mut Client) -> Result<(), BenchError> {
    for (name, may_read) in NAMES.into_iter().zip([false, true]) {
        let argv = ["ACL", "DRYRUN", name, "GET", "other:key"];
        let reply = client.call(&argv)?;
        if (reply == Value::Simple(b"OK".to_vec())) != may_read {
            return Err(wrong_reply(&argv, &reply));
        }
    }
    Ok(())
}
