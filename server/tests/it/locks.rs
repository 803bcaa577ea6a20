//! Locks made of strings: they lose no update, for any number of threads and shards.

use std::{
    collections::HashSet,
    sync::atomic::{AtomicUsize, Ordering},
};

use crate::support::{
    Client, Reply, Server,
    crowd::{ask, crowd, everywhere, figure, tell, until},
};

const N_CLIENTS: usize = 6;

/// Increments a counter in two steps. Another client could interfere between them.
fn increment_in_two_steps(client: &mut Client, key: &str) {
    let count = match client.command(&["GET", key]) {
        Reply::Nil => 0,
        reply => reply.text().expect("a counter is text").parse::<u64>().expect("a counter is a number"),
    };
    assert_eq!(ask(client, &format!("SET {key} {}", count + 1)), "+OK");
}

#[test]
fn a_lock_by_set_nx_px_loses_no_update() {
    const ROUNDS: usize = 40;
    everywhere(|server| {
        crowd(server, N_CLIENTS, |id, client| {
            for round in 0..ROUNDS {
                let token = format!("token-{id}-{round}");
                while ask(client, &format!("SET lock {token} NX PX 60000")) != "+OK" {}
                increment_in_two_steps(client, "counter");
                if round % 2 == 0 {
                    assert_eq!(ask(client, &format!("DELEX lock IFEQ other-{token}")), ":0");
                    assert_eq!(ask(client, &format!("DELEX lock IFEQ {token}")), ":1");
                } else {
                    // Refused SETs of others change nothing, so the transaction runs.
                    assert_eq!(ask(client, "WATCH lock"), "+OK");
                    assert_eq!(ask(client, "GET lock"), format!("\"{token}\""));
                    assert_eq!(ask(client, "MULTI"), "+OK");
                    assert_eq!(ask(client, "DEL lock"), "+QUEUED");
                    assert_eq!(ask(client, "EXEC"), "[:1]");
                }
            }
        });
        let total = format!("\"{}\"", N_CLIENTS * ROUNDS);
        assert_eq!(ask(&mut server.connect(), "GET counter"), total);
    });
}

/// The lock of Redis's manual before `SET NX PX`: the key contains the time until which it is held. Here a
/// holder that crashes leaves a time that has passed.
#[test]
fn a_lock_by_getset_of_times_loses_no_update() {
    const ROUNDS: usize = 40;
    const PASSED: &str = "1";
    let is_over = |reply: &Reply| match reply {
        Reply::Nil => true,
        time => time.text().as_deref() == Some(PASSED),
    };
    everywhere(|server| {
        crowd(server, N_CLIENTS, |id, client| {
            for round in 0..ROUNDS {
                let time = format!("99{id}{round:03}");
                loop {
                    if ask(client, &format!("SETNX lock {time}")) == ":1" {
                        break;
                    }
                    let seen = client.command(&["GET", "lock"]);
                    if is_over(&seen) && is_over(&client.command(&["GETSET", "lock", &time])) {
                        break;
                    }
                }
                increment_in_two_steps(client, "counter");
                if round % 2 == 0 {
                    assert_eq!(ask(client, "DEL lock"), ":1");
                } else {
                    assert_eq!(ask(client, &format!("SET lock {PASSED}")), "+OK");
                }
            }
        });
        let total = format!("\"{}\"", N_CLIENTS * ROUNDS);
        assert_eq!(ask(&mut server.connect(), "GET counter"), total);
    });
}

#[test]
fn each_element_is_popped_once() {
    const ELEMENTS: usize = 300;
    everywhere(|server| {
        let all: Vec<String> = (0..ELEMENTS).map(|n| format!("e{n}")).collect();
        assert_eq!(ask(&mut server.connect(), &format!("SET list {}", all.join(","))), "+OK");
        let popped = crowd(server, N_CLIENTS, |_, client| {
            let mut popped = Vec::new();
            loop {
                assert_eq!(ask(client, "WATCH list"), "+OK");
                let list = client.command(&["GET", "list"]).text().expect("the list is text");
                if list.is_empty() {
                    return popped;
                }
                let (head, rest) = list.split_once(',').unwrap_or((&list, ""));
                client.send(&["MULTI"]);
                client.send(&["SET", "list", rest]);
                client.send(&["INCR", "popped"]);
                client.send(&["EXEC"]);
                for expected in ["+OK", "+QUEUED", "+QUEUED"] {
                    assert_eq!(client.receive().to_string(), expected);
                }
                match client.receive() {
                    Reply::Array(replies) => {
                        assert_eq!(replies.len(), 2);
                        popped.push(head.to_owned());
                    }
                    aborted => assert_eq!(aborted, Reply::NilArray),
                }
            }
        });
        let mut popped: Vec<String> = popped.into_iter().flatten().collect();
        popped.sort_by_key(|element| element[1..].parse::<usize>().expect("elements are numbered"));
        assert_eq!(popped, all);
        assert_eq!(ask(&mut server.connect(), "GET popped"), format!("\"{ELEMENTS}\""));
    });
}

#[test]
fn pipelined_increments_sum_up() {
    const PIPELINES: usize = 10;
    const DEPTH: usize = 100;
    everywhere(|server| {
        crowd(server, N_CLIENTS, |id, client| {
            let mut last = 0;
            for _ in 0..PIPELINES {
                for n in 0..DEPTH {
                    tell(client, "INCR shared");
                    tell(client, &format!("INCRBY {} 2", ["x", "y", "z"][n % 3]));
                    tell(client, &format!("INCR own{id}"));
                }
                for _ in 0..DEPTH {
                    let count = client.receive().integer().expect("INCR answers a number");
                    assert!(count > last, "{count} came after {last}");
                    last = count;
                    client.receive();
                    client.receive();
                }
            }
        });
        let mut client = server.connect();
        assert_eq!(ask(&mut client, "GET shared"), format!("\"{}\"", N_CLIENTS * PIPELINES * DEPTH));
        let sum: i64 = ["x", "y", "z"]
            .map(|key| {
                client.command(&["GET", key]).text().expect("a number").parse::<i64>().expect("a number")
            })
            .iter()
            .sum();
        assert_eq!(sum, (2 * N_CLIENTS * PIPELINES * DEPTH) as i64);
        for id in 0..N_CLIENTS {
            assert_eq!(ask(&mut client, &format!("GET own{id}")), format!("\"{}\"", PIPELINES * DEPTH));
        }
    });
}

#[test]
fn msetnx_sets_all_or_nothing() {
    const ROUNDS: usize = 100;
    everywhere(|server| {
        // Each client needs two keys of a ring. Each of its neighbours needs one of them, too.
        let won = crowd(server, N_CLIENTS, |id, client| {
            let mut won = HashSet::new();
            for round in 0..ROUNDS {
                let (own, next) = (format!("{round}-{id}"), format!("{round}-{}", (id + 1) % N_CLIENTS));
                let order = if round % 2 == 0 { [&own, &next] } else { [&next, &own] };
                let reply = ask(client, &format!("MSETNX {} {id} {} {id}", order[0], order[1]));
                if reply == ":1" {
                    won.insert(round);
                } else {
                    assert_eq!(reply, ":0");
                }
                let Reply::Array(seen) = client.command(&["MGET", &own, &next]) else {
                    panic!("MGET answers an array")
                };
                let is_mine = |value: &Reply| value.text() == Some(id.to_string());
                let n_mine = seen.iter().filter(|value| is_mine(value)).count();
                assert_eq!(n_mine, if won.contains(&round) { 2 } else { 0 });
                assert!(n_mine == 2 || seen.iter().any(|value| *value != Reply::Nil), "refused for nothing");
            }
            won
        });
        for round in 0..ROUNDS {
            let winners = won.iter().filter(|won| won.contains(&round)).count();
            assert!((1..=N_CLIENTS / 2).contains(&winners));
        }
    });
}

/// Some clients move one value between keys while others read. There is always exactly one of it.
fn exactly_one(server: &Server, push: &[&[&str]], look: &[&str]) {
    const PUSHES: usize = 400;
    let pushing = AtomicUsize::new(2);
    crowd(server, 4, |id, client| {
        if id < 2 {
            for nth in 0..PUSHES {
                let transaction = push[(nth + id) % push.len()];
                transaction.iter().for_each(|line| tell(client, line));
                for _ in transaction {
                    client.receive();
                }
            }
            pushing.fetch_sub(1, Ordering::SeqCst);
            return;
        }
        loop {
            let last_look = pushing.load(Ordering::SeqCst) == 0;
            look.iter().for_each(|line| tell(client, line));
            let replies: Vec<String> = look.iter().map(|_| client.receive().to_string()).collect();
            let seen = replies.last().expect("the last line reads the value");
            assert_eq!(seen.matches("\"value\"").count(), 1, "{replies:?} to {look:?}");
            if last_look {
                return;
            }
        }
    });
}

#[test]
fn renaming_to_and_fro_neither_loses_nor_doubles_a_value() {
    everywhere(|server| {
        assert_eq!(ask(&mut server.connect(), "SET ping value"), "+OK");
        exactly_one(
            server,
            &[&["RENAME ping pong"], &["RENAME pong ping"], &["RENAMENX ping pong"]],
            &["MGET ping pong"],
        );
    });
}

#[test]
fn copying_to_and_fro_neither_loses_nor_doubles_a_value() {
    everywhere(|server| {
        assert_eq!(ask(&mut server.connect(), "SET ping value"), "+OK");
        let push: [&[&str]; 2] = [
            &["MULTI", "COPY ping pong", "DEL ping", "EXEC"],
            &["MULTI", "COPY pong ping", "DEL pong", "EXEC"],
        ];
        // COPY refuses a missing source, and DEL then has nothing to delete.
        exactly_one(server, &push, &["MGET ping pong"]);
    });
}

#[test]
fn moving_to_and_fro_neither_loses_nor_doubles_a_value() {
    everywhere(|server| {
        assert_eq!(ask(&mut server.connect(), "SET ball value"), "+OK");
        let push: [&[&str]; 2] = [&["SELECT 0", "MOVE ball 1"], &["SELECT 1", "MOVE ball 0"]];
        let look = ["MULTI", "SELECT 0", "GET ball", "SELECT 1", "GET ball", "EXEC"];
        exactly_one(server, &push, &look);
    });
}

/// WATCH of many keys takes their shards part by part. So do the commands that end it.
#[test]
fn watching_thousands_of_keys_misses_no_write() {
    const N_KEYS: usize = 3000;
    let keys: Vec<String> = (0..N_KEYS).map(|nth| format!("key:{nth}")).collect();
    everywhere(|server| {
        let (mut client, mut other) = (server.connect(), server.connect());
        for n_watched in [256, 257, 700, N_KEYS] {
            let watch = format!("WATCH {}", keys[..n_watched].join(" "));
            for written in [0, 255, n_watched - 1] {
                assert_eq!(ask(&mut client, &watch), "+OK");
                assert_eq!(ask(&mut other, &format!("SET key:{written} v")), "+OK");
                for (command, reply) in [("MULTI", "+OK"), ("PING", "+QUEUED"), ("EXEC", "(nil-array)")] {
                    assert_eq!(ask(&mut client, command), reply, "key:{written} of {n_watched}");
                }
            }
            for end in ["UNWATCH", "DISCARD", "RESET"] {
                assert_eq!(ask(&mut client, &watch), "+OK");
                assert_eq!(ask(&mut client, &watch), "+OK", "what is watched already counts once");
                if end == "DISCARD" {
                    assert_eq!(ask(&mut client, "MULTI"), "+OK");
                }
                let listed = ask(&mut other, "CLIENT LIST");
                assert!(listed.contains(&format!(" watch={n_watched} ")), "{listed}");
                assert_eq!(ask(&mut client, end), if end == "RESET" { "+RESET" } else { "+OK" });
                assert!(!ask(&mut other, "CLIENT LIST").contains(&format!(" watch={n_watched} ")));
                let pairs: String = keys[..n_watched].iter().map(|key| format!(" {key} w")).collect();
                assert_eq!(ask(&mut other, &format!("MSET{pairs}")), "+OK");
                for (command, reply) in [("MULTI", "+OK"), ("PING", "+QUEUED"), ("EXEC", "[+PONG]")] {
                    assert_eq!(ask(&mut client, command), reply, "{n_watched} watched until {end}");
                }
            }
        }
    });
}

/// All shards used to be held together, with 50,000 keys for tens of milliseconds. No client was served
/// meanwhile.
#[test]
fn watching_many_keys_holds_a_part_of_them_at_a_time() {
    let server = Server::start(&["--io-threads", "2"]);
    let (mut client, mut other) = (server.connect(), server.connect());
    let keys: String = (0..1000).map(|nth| format!(" key:{nth}")).collect();
    assert_eq!(ask(&mut other, "DEBUG HOLD-HEAVY 1"), "+OK");
    let n_before = figure(&mut other, "commands_delegated");
    tell(&mut client, &format!("WATCH{keys}"));
    until("the first part is watched", || figure(&mut other, "commands_delegated") > n_before);
    assert_eq!(ask(&mut other, "SET key:0 v"), "+OK");
    assert_eq!(ask(&mut other, "DEBUG HOLD-HEAVY 0"), "+OK");
    assert_eq!(client.receive().to_string(), "+OK");
    for (command, reply) in [("MULTI", "+OK"), ("PING", "+QUEUED"), ("EXEC", "(nil-array)")] {
        assert_eq!(ask(&mut client, command), reply, "key:0 was watched before it was written");
    }
}

/// If WATCH were refused between two parts, some keys would stay watched. If DISCARD were, a transaction
/// would run although a watched key was written.
#[test]
fn what_has_begun_part_by_part_is_not_refused_half_way() {
    let server = Server::start(&["--io-threads", "2"]);
    let (mut client, mut other) = (server.connect(), server.connect());
    let keys: String = (0..1000).map(|nth| format!(" key:{nth}")).collect();
    let mut cut = |client: &mut Client, command: &str| {
        let name = command.split(' ').next().expect("a name").to_lowercase();
        let n_before = figure(&mut other, "commands_delegated");
        assert_eq!(ask(&mut other, "DEBUG HOLD-HEAVY 1"), "+OK");
        tell(client, command);
        until("a part is done", || figure(&mut other, "commands_delegated") > n_before);
        assert_eq!(ask(&mut other, &format!("ACL SETUSER default -{name}")), "+OK");
        assert_eq!(ask(&mut other, "DEBUG HOLD-HEAVY 0"), "+OK");
        let reply = client.receive().to_string();
        let next = ask(client, command);
        assert!(next.starts_with("-NOPERM"), "{command} after its right is gone: {next}");
        assert_eq!(ask(&mut other, &format!("ACL SETUSER default +{name}")), "+OK");
        (reply, ask(&mut other, "CLIENT LIST"))
    };
    let (reply, listed) = cut(&mut client, &format!("WATCH{keys}"));
    assert!(reply == "+OK" && listed.contains(" watch=1000 "), "{reply}, {listed}");
    assert_eq!(ask(&mut client, "MULTI"), "+OK");
    let (reply, listed) = cut(&mut client, "DISCARD");
    assert!(
        reply == "+OK" && !listed.contains(" watch=1000 ") && !listed.contains(" multi=0 "),
        "{reply}, {listed}"
    );
}
