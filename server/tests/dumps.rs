//! What Braid dumps, redis-server 7.0 restores, and the other way round: every type, in every form.

mod support;

use support::{
    reference::{REFERENCE, has_reference},
    values::{Side, every_form},
};

#[test]
fn values_go_to_redis_and_come_from_there() {
    if !has_reference("dumps") {
        return;
    }
    let mut sides = [Side::start(env!("CARGO_BIN_EXE_braid-server")), Side::start(REFERENCE)];
    for commands in every_form() {
        let shown: String = String::from_utf8_lossy(&commands[0].join(&b' ')).chars().take(80).collect();
        for side in &mut sides {
            side.ask(&["FLUSHALL"]);
            for argv in &commands {
                let reply = side.client.command(argv);
                assert!(!reply.is_error(), "{shown}: {reply}");
            }
        }
        for (from, to) in [(0, 1), (1, 0)] {
            let payload = sides[from].dump("made");
            assert_eq!(sides[to].restore("restored", &payload).to_string(), "+OK", "{shown}");
            let (expected, found) = (sides[from].contents("made"), sides[to].contents("restored"));
            assert!(expected == found, "{shown}:\n{expected}\nis restored as\n{found}");
            let (expected, found) = (sides[to].encoding("made"), sides[to].encoding("restored"));
            assert_eq!(expected, found, "{shown}");
            // And back again.
            let payload = sides[to].dump("restored");
            assert_eq!(sides[from].restore("back", &payload).to_string(), "+OK", "{shown}");
            assert!(sides[from].contents("made") == sides[from].contents("back"), "{shown} comes back");
        }
    }
}

/// A large set's zeros have signs, which those of a small set lack. The highest member is dumped first.
#[test]
fn a_restored_sorted_set_keeps_the_sign_of_zero() {
    let mut programs = vec![env!("CARGO_BIN_EXE_braid-server")];
    programs.extend(has_reference("dumps").then_some(REFERENCE));
    for program in programs {
        let mut side = Side::start(program);
        let long = "x".repeat(65);
        let numbers: Vec<String> = (-128..0).map(|number| number.to_string()).collect();
        let many = numbers.iter().flat_map(|number| [&number[..], &number[..]]);
        let by_length = vec!["ZADD", "made", "-1", &long, "-0", "z", "0", "y"];
        let by_number: Vec<&str> =
            ["ZADD", "made"].into_iter().chain(many).chain(["-0", "z", "0", "y"]).collect();
        for (add, encoding, score) in [
            (by_length, "skiplist", "-0"),
            (by_number, "skiplist", "-0"),
            (vec!["ZADD", "made", "-0", "z", "0", "y"], "listpack", "0"),
        ] {
            side.ask(&["FLUSHALL"]);
            side.ask(&add);
            let payload = side.dump("made");
            assert_eq!(side.restore("restored", &payload).to_string(), "+OK");
            for key in ["made", "restored"] {
                assert_eq!(side.encoding(key).text().as_deref(), Some(encoding), "{program}");
                for (member, score) in [("z", score), ("y", "0")] {
                    let found = side.ask(&["ZSCORE", key, member]).text();
                    assert_eq!(found.as_deref(), Some(score), "{member} of {key} in {program}");
                }
            }
            assert_eq!(side.dump("restored").len(), payload.len(), "{program}");
        }
    }
}

/// Redis 7.0 has no deadlines of fields: it refuses what it would not understand.
#[test]
fn redis_refuses_hashes_whose_fields_have_deadlines() {
    if !has_reference("dumps") {
        return;
    }
    let [mut braid, mut redis] = [env!("CARGO_BIN_EXE_braid-server"), REFERENCE].map(Side::start);
    braid.ask(&["HSET", "made", "f", "v"]);
    braid.ask(&["HPEXPIRE", "made", "1000000", "FIELDS", "1", "f"]);
    let payload = braid.dump("made");
    let refused = redis.restore("restored", &payload).to_string();
    assert_eq!(refused, "-ERR DUMP payload version or checksum are wrong");
    assert_eq!(braid.restore("restored", &payload).to_string(), "+OK");
    braid.ask(&["HPERSIST", "made", "FIELDS", "1", "f"]);
    let payload = braid.dump("made");
    assert_eq!(redis.restore("restored", &payload).to_string(), "+OK");
}
