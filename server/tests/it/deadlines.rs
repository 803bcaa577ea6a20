//! Keys that expire while many clients read them.

use std::{
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    thread,
};

use crate::support::{
    Reply,
    crowd::{Meeting, ask, crowd, laid_out, tell, until},
};

/// More and fewer threads than cores, with one shard and many.
const LAYOUTS: [(usize, usize); 4] = [(1, 16), (2, 1), (2, 1024), (8, 1024)];

// Time is advanced by a millisecond more than a key's lifetime: at its deadline a key still lives, as in
// Redis.

/// After one client has seen a key expired, no client sees it alive. The same holds for any other key with
/// the same deadline.
#[test]
fn after_one_client_has_seen_an_expiry_every_client_sees_it() {
    const ROUNDS: usize = 12;
    const N_CLIENTS: usize = 6;
    for layout in LAYOUTS {
        let server = laid_out(layout);
        let seen_expired: Vec<AtomicBool> = (0..ROUNDS).map(|_| AtomicBool::new(false)).collect();
        let start = Meeting::of(N_CLIENTS);
        crowd(&server, N_CLIENTS, |id, client| {
            for (round, seen_expired) in seen_expired.iter().enumerate() {
                let keys: Vec<String> = (0..4).map(|n| format!("{round}-{n}")).collect();
                if id == 0 {
                    let time = client.command(&["TIME"]);
                    let Reply::Array(time) = time else { panic!("TIME answers an array") };
                    let part = |n: usize| time[n].text().expect("digits").parse::<u64>().expect("digits");
                    let deadline = part(0) * 1000 + part(1) / 1000 + 10;
                    // All keys are set at once. A key that is set in the millisecond of its deadline is gone
                    // at once, but one that was set earlier lives in that millisecond.
                    let values = keys.iter().map(|key| format!(" {key} v")).collect::<String>();
                    assert_eq!(ask(client, &format!("MSETEX {}{values} PXAT {deadline}", keys.len())), ":1");
                }
                start.wait();
                loop {
                    let must_be_gone = seen_expired.load(Ordering::SeqCst);
                    let key = &keys[id % keys.len()];
                    let is_gone = match id % 3 {
                        0 => ask(client, &format!("GET {key}")) == "(nil)",
                        1 => ask(client, &format!("MGET {key} {key}")) == "[(nil) (nil)]",
                        _ => ask(client, &format!("EXISTS {key}")) == ":0",
                    };
                    assert!(is_gone || !must_be_gone, "{key} came back to life");
                    if is_gone {
                        seen_expired.store(true, Ordering::SeqCst);
                        break;
                    }
                }
            }
        });
    }
}

/// A shard without a time yet used to count from 1970. Elsewhere the count began when the shard or the client
/// was last busy.
#[test]
fn a_very_long_value_lives_as_long_as_it_is_told_to() {
    let long = "x".repeat(5 << 20);
    for layout in LAYOUTS {
        for argv in [&["SET", "key", &long, "EX", "100"][..], &["SETEX", "key", "100", &long]] {
            let server = laid_out(layout);
            let mut client = server.connect();
            assert_eq!(client.command(argv).to_string(), "+OK");
            let left = ask(&mut client, "PTTL key");
            let millis: i64 = left.trim_start_matches(':').parse().expect("a number");
            assert!((1..=100_000).contains(&millis), "{} in {layout:?}: {left}", argv[0]);
        }
    }
}

#[test]
fn time_that_was_advanced_has_passed_for_everyone() {
    for layout in LAYOUTS {
        let server = laid_out(layout);
        let mut control = server.connect();
        let round = AtomicUsize::new(0);
        let over = AtomicBool::new(false);
        for n in 0..100 {
            assert_eq!(ask(&mut control, &format!("SET {n} v PX {}", 1000 * (n + 1) + 500)), "+OK");
        }
        thread::scope(|scope| {
            let watching: Vec<_> = (0..4)
                .map(|id| {
                    let mut client = server.connect();
                    let (round, over) = (&round, &over);
                    scope.spawn(move || {
                        let mut n = id;
                        while !over.load(Ordering::SeqCst) {
                            let n_gone = round.load(Ordering::SeqCst);
                            n = (n + 7) % 100;
                            let reply = ask(&mut client, &format!("GET {n}"));
                            assert!(n >= n_gone || reply == "(nil)", "{n} lives after {n_gone} steps");
                        }
                    })
                })
                .collect();
            assert_eq!(ask(&mut control, "DEBUG ADVANCE-TIME 501"), "+OK");
            for n in 0..100 {
                assert_eq!(ask(&mut control, "DEBUG ADVANCE-TIME 1000"), "+OK");
                round.store(n + 1, Ordering::SeqCst);
            }
            over.store(true, Ordering::SeqCst);
            watching.into_iter().for_each(|client| client.join().expect("no key came back"));
        });
    }
}

#[test]
fn a_watched_key_that_expires_before_exec_aborts_it() {
    for layout in LAYOUTS {
        let server = laid_out(layout);
        let ready = Meeting::of(5);
        let advanced = Meeting::of(5);
        crowd(&server, 5, |id, client| {
            for round in 0..20 {
                if id == 0 {
                    ready.wait();
                    assert_eq!(ask(client, "DEBUG ADVANCE-TIME 60001"), "+OK");
                    advanced.wait();
                    continue;
                }
                let (dies, lives, out) = (format!("dies{id}"), format!("lives{id}"), format!("out{id}"));
                assert_eq!(ask(client, &format!("SET {dies} v PX 60000")), "+OK");
                assert_eq!(ask(client, &format!("SET {lives} v PX 600000000")), "+OK");
                let watches = [&dies, &lives][round % 2];
                assert_eq!(ask(client, &format!("WATCH {watches}")), "+OK");
                assert_eq!(ask(client, "MULTI"), "+OK");
                assert_eq!(ask(client, &format!("INCR {out}")), "+QUEUED");
                ready.wait();
                advanced.wait();
                let expected =
                    if watches == &dies { "(nil-array)".to_owned() } else { format!("[:{}]", round / 2 + 1) };
                assert_eq!(ask(client, "EXEC"), expected);
            }
        });
    }
}

#[test]
fn keys_expire_without_being_asked_for() {
    for layout in LAYOUTS {
        let server = laid_out(layout);
        crowd(&server, 3, |id, client| {
            assert_eq!(ask(client, &format!("SELECT {id}")), "+OK");
            for n in 0..1000 {
                tell(client, &format!("SET short{n} v PX {}", 1 + n % 50));
            }
            for n in 0..10 {
                tell(client, &format!("SET long{n} v EX 10000"));
            }
            (0..1010).for_each(|_| assert_eq!(client.receive().to_string(), "+OK"));
            until("only keys that live on are counted", || ask(client, "DBSIZE") == ":10");
        });
        let mut client = server.connect();
        assert_eq!(ask(&mut client, "DEBUG ADVANCE-TIME 10000000"), "+OK");
        for db in 0..3 {
            assert_eq!(ask(&mut client, &format!("SELECT {db}")), "+OK");
            until("the database is empty", || ask(&mut client, "DBSIZE") == ":0");
        }
        let info = client.command(&["INFO", "stats"]).text().expect("INFO answers text");
        assert!(info.contains("\r\nexpired_keys:3030\r\n"), "{info}");
    }
}

/// Small and large hashes, with and without permanent fields.
#[test]
fn fields_expire_without_being_asked_for() {
    const N_HASHES: usize = 50;
    const N_FIELDS: usize = 3000;
    for layout in LAYOUTS {
        let server = laid_out(layout);
        crowd(&server, 3, |id, client| {
            assert_eq!(ask(client, &format!("SELECT {id}")), "+OK");
            for n in 0..N_HASHES {
                assert_eq!(ask(client, &format!("HSET h{n} stays 1 a 1 b 1")), ":3");
                assert_eq!(ask(client, &format!("HPEXPIRE h{n} {} FIELDS 2 a b", 1 + n % 50)), "[:1 :1]");
                assert_eq!(ask(client, &format!("HSETEX over{n} PX {} FIELDS 2 a 1 b 1", 1 + n % 50)), ":1");
            }
            let fields: String = (0..N_FIELDS).map(|n| format!(" {n} v")).collect();
            assert_eq!(ask(client, &format!("HSETEX large PX 1 FIELDS {N_FIELDS}{fields}")), ":1");
            ask(client, "HSET large stays 1");
            until("hashes without fields are no keys", || {
                ask(client, "DBSIZE") == format!(":{}", N_HASHES + 1)
            });
            assert_eq!(ask(client, "HGETALL h7"), ask(client, "HGETALL h8"));
        });
        let mut client = server.connect();
        // Fields that were removed one by one. A hash without permanent fields is removed as a whole.
        let n_at_least = 3 * 2 * N_HASHES;
        until("expired fields are removed", || {
            let info = client.command(&["INFO", "stats"]).text().expect("INFO answers text").to_owned();
            let n_expired = info.lines().find_map(|line| line.strip_prefix("expired_subkeys:"));
            n_expired.expect("INFO counts fields").parse::<usize>().expect("digits") >= n_at_least
        });
        assert_eq!(ask(&mut client, "HLEN large"), ":1");
    }
}

/// If PERSIST comes first, the key lives. If the deadline comes first, PERSIST finds nothing.
#[test]
fn persist_and_the_deadline_agree_on_who_came_first() {
    for layout in LAYOUTS {
        let server = laid_out(layout);
        let start = Meeting::of(2);
        let set = Meeting::of(2);
        crowd(&server, 2, |id, client| {
            for round in 0..60 {
                if id == 0 {
                    assert_eq!(ask(client, &format!("SET {round} v PX 60000")), "+OK");
                }
                start.wait();
                let reply = if id == 0 {
                    ask(client, "DEBUG ADVANCE-TIME 60001")
                } else {
                    ask(client, &format!("PERSIST {round}"))
                };
                set.wait();
                if id == 1 {
                    let lives = reply == ":1";
                    assert_eq!(ask(client, &format!("EXISTS {round}")), if lives { ":1" } else { ":0" });
                    assert_eq!(ask(client, &format!("PTTL {round}")), if lives { ":-1" } else { ":-2" });
                }
            }
        });
    }
}

/// An expired key has no deadline to keep: a value that is set afterwards lives on.
#[test]
fn set_keepttl_keeps_no_deadline_that_has_passed() {
    for layout in LAYOUTS {
        let server = laid_out(layout);
        let n_rounds = 20;
        let start = Meeting::of(4);
        let done = Meeting::of(4);
        crowd(&server, 4, |id, client| {
            for round in 0..n_rounds {
                if id == 0 {
                    assert_eq!(ask(client, "SET key first PX 60000"), "+OK");
                }
                start.wait();
                if id == 0 {
                    assert_eq!(ask(client, "DEBUG ADVANCE-TIME 60001"), "+OK");
                    assert_eq!(ask(client, &format!("SET key last{round} KEEPTTL")), "+OK");
                    assert_eq!(ask(client, "PTTL key"), ":-1");
                } else {
                    for _ in 0..10 {
                        assert_eq!(ask(client, &format!("SET key other{id} KEEPTTL")), "+OK");
                        let left = client.command(&["PTTL", "key"]).integer().expect("PTTL answers a number");
                        assert!((-2..=60_000).contains(&left), "{left}");
                    }
                }
                done.wait();
                if id == 0 {
                    assert_eq!(ask(client, "EXISTS key"), ":1");
                    assert_eq!(ask(client, "PTTL key"), ":-1");
                }
            }
        });
    }
}

/// Advances time by the largest argument, and again. Time stops at its upper bound, and the server continues
/// to serve.
#[test]
fn time_advanced_beyond_all_bounds_stops_nobody() {
    let server = laid_out((2, 16));
    let mut client = server.connect();
    for _ in 0..3 {
        assert_eq!(ask(&mut client, "DEBUG ADVANCE-TIME 9223372036854775807"), "+OK");
        assert_eq!(ask(&mut client, "SET key value"), "+OK");
        assert_eq!(ask(&mut client, "GET key"), "\"value\"");
        assert!(ask(&mut client, "TIME").starts_with('['));
    }
    // Every thread still serves.
    crowd(&server, 4, |_, client| assert_eq!(ask(client, "GET key"), "\"value\""));
}
