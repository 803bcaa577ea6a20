//! redis-server 7.0 restores Braid's dumps and Braid restores its dumps: every type, in every form.

use crate::support::{
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
            // Back to the first server.
            let payload = sides[to].dump("restored");
            assert_eq!(sides[from].restore("back", &payload).to_string(), "+OK", "{shown}");
            assert!(sides[from].contents("made") == sides[from].contents("back"), "{shown} comes back");
        }
    }
}

/// The zeros of a large set have signs, and those of a small set do not. The highest member is dumped first.
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

/// Redis 7.0 has no deadlines of fields, so it refuses such payloads.
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

/// The log names the fault of a payload, its key and its place, if details are logged.
#[test]
fn a_payload_that_is_refused_is_explained_in_the_log() {
    let mut side = Side::of(crate::support::Server::start_program(
        env!("CARGO_BIN_EXE_braid-server"),
        &["--loglevel", "verbose"],
    ));
    let right = {
        side.ask(&["SADD", "made", "a", "b"]);
        side.dump("made")
    };
    let mut wrong = right.clone();
    *wrong.last_mut().expect("it has a footer") ^= 1;
    assert!(side.restore("summed", &wrong).is_error());
    side.ask(&["DEBUG", "SET-SKIP-CHECKSUM-VALIDATION", "1"]);
    assert_eq!(side.restore("summed", &wrong).to_string(), "+OK");
    side.ask(&["SELECT", "3"]);
    let value = b"\x10\x0a\x0a\0\0\0\x01\0\x81a\x02\xff\x0a\0sum-sum-";
    assert_eq!(side.restore("a\nkey", value).to_string(), "-ERR Bad data format");
    let long = "k".repeat(100_000);
    for commands in [&["MULTI"][..], &["RESTORE", &long, "0", "\x02\0\x0a\0sum-sum-"], &["EXEC"]] {
        side.ask(commands);
    }
    side.ask(&["EVAL", "return redis.pcall('RESTORE', KEYS[1], 0, 'no')", "1", "scripted"]);
    let log = || side.server.log_tail();
    crate::support::crowd::until("the lines are there", || log().contains("'scripted'"));
    let log = log();
    for line in [
        "RESTORE refuses a payload for key 'summed' of database 0: the checksum is ",
        "RESTORE refuses a payload for key 'a\\nkey' of database 3: Hash listpack integrity check failed, at byte 1 of 22",
        &format!("'{}…' of database 3: there is nothing in it, at byte 2 of 12", &long[..128]),
        "RESTORE refuses a payload for key 'scripted' of database 3: it is too short",
    ] {
        assert!(log.contains(line), "{line}\n{log}");
    }
}
