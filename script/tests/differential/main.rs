//! Comparison of the engine with a real redis-server: replies must agree byte for byte.
//!
//! The scripts are those of `written.lua`, and generated ones (`sessions.rs`). Without a redis-server
//! installed the tests pass and compare nothing, unless `BRAID_REQUIRE_REDIS` is set.

#[expect(dead_code, reason = "the test of the libraries has more use for it")]
#[path = "../libraries/cases.rs"]
mod cases;
mod commands;
mod generator;
mod known;
mod parts;
#[path = "../libraries/random.rs"]
mod random;
#[expect(dead_code, reason = "the test of the libraries has more use for it")]
#[path = "../libraries/redis.rs"]
mod redis;
mod results;
mod sessions;
mod shrink;
mod sides;
mod statements;

use braid_protocol::Resp;
use sides::{Pair, Run};

/// The scripts, separated by lines of `--`.
const SCRIPTS: &str = include_str!("written.lua");

#[test]
fn scripts_reply_as_in_redis() {
    let Some(mut pair) = Pair::start() else { return };
    let mut differences = Vec::new();
    let mut n_scripts = 0;
    for source in SCRIPTS.split("\n--\n").map(str::trim).filter(|source| !source.is_empty()) {
        for resp in [Resp::V2, Resp::V3] {
            n_scripts += 1;
            let [keys, argv] = [["k1", "k2"], ["a1", "10"]].map(|texts| texts.map(Vec::from).to_vec());
            let run = Run { source: source.to_owned(), keys, argv, resp, is_kept: false };
            let (ours, theirs) = pair.replies(&run).expect("no script ends redis-server");
            if ours != theirs {
                let [ours, theirs] = [ours, theirs].map(|reply| reply.escape_ascii().to_string());
                differences.push(format!("{source}\n  engine {ours}\n  server {theirs}"));
            }
        }
    }
    assert!(n_scripts > 100, "the scripts are read");
    assert!(
        differences.is_empty(),
        "{} of {n_scripts} differ:\n{}",
        differences.len(),
        differences.join("\n")
    );
}
