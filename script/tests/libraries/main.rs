//! Comparison of the libraries' answers with those of redis-server 7.0.
//!
//! Fixed cases have their answers written down. Thousands of cases are generated. For those redis-server is
//! asked too, where it is installed.

mod cases;
mod fixed;
mod guards;
mod ours;
mod random;
mod redis;

use random::Random;

/// The number of cases in one script.
const CASES_A_SCRIPT: usize = 25;

/// Returns the number in an environment variable.
///
/// `BRAID_SEED` makes other choices, `BRAID_CASES` makes more or fewer cases.
fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|value| value.parse().unwrap_or_else(|_| panic!("{name} is not a number")))
}

/// Compares `n_cases` expressions of `generate`, and reports the one with two answers.
fn compare(seed: u64, n_cases: usize, generate: fn(&mut Random) -> String) {
    let Some(mut redis) = redis::Redis::start() else { return };
    let mut random = Random::new(seed ^ variable("BRAID_SEED").unwrap_or(0));
    let n_cases = variable("BRAID_CASES").map_or(n_cases, |n_cases| n_cases as usize);
    for _ in 0..n_cases / CASES_A_SCRIPT {
        let expressions: Vec<String> = (0..CASES_A_SCRIPT).map(|_| generate(&mut random)).collect();
        let script = cases::script(&expressions);
        let (ours, theirs) = (ours::run(&script), redis.eval(&script));
        if ours != theirs {
            report(&expressions, &ours, &theirs);
        }
    }
}

fn report(expressions: &[String], ours: &[u8], theirs: &[u8]) {
    let lines = |answer: &[u8]| -> Vec<String> {
        answer.split(|byte| *byte == b'\n').map(|line| String::from_utf8_lossy(line).into_owned()).collect()
    };
    let (ours, theirs) = (lines(ours), lines(theirs));
    let differing: Vec<String> = expressions
        .iter()
        .enumerate()
        .filter(|(index, _)| ours.get(*index) != theirs.get(*index))
        .map(|(index, text)| {
            format!("{text}\n  ours:   {:?}\n  theirs: {:?}", ours.get(index), theirs.get(index))
        })
        .collect();
    panic!("{}", differing.join("\n"));
}

#[test]
fn patterns_agree_with_redis() {
    compare(1, 5000, cases::pattern);
}
#[test]
fn structures_agree_with_redis() {
    compare(6, 5000, cases::structure);
}

#[test]
fn bits_agree_with_redis() {
    compare(7, 3000, cases::bits);
}
#[test]
fn json_decoding_agrees_with_redis() {
    compare(2, 4000, cases::json_decode);
}
#[test]
fn json_encoding_agrees_with_redis() {
    compare(3, 3000, cases::json_encode);
}
#[test]
fn message_packing_agrees_with_redis() {
    compare(4, 3000, cases::pack);
}
#[test]
fn message_unpacking_agrees_with_redis() {
    compare(5, 4000, cases::unpack);
}
