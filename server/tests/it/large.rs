//! Large values: commands read them without holds, and no client can tell. This holds for any number of
//! threads and shards.

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::support::{
    Reply,
    crowd::{ask, crowd, everywhere, fill_set, n_elements},
};

const N_MEMBERS: usize = 12_000;

#[test]
fn what_moves_between_large_sets_is_always_in_one_of_them() {
    const N_MOVERS: usize = 3;
    const ROUNDS: usize = 25;
    everywhere(|server| {
        let mut client = server.connect();
        fill_set(&mut client, "left", N_MEMBERS);
        fill_set(&mut client, "right", 6000);
        // In both: the union has the left one's members, and the intersection changes.
        ask(&mut client, "SDIFFSTORE right right left");
        fill_set(&mut client, "right", 0);
        let n_moved = AtomicUsize::new(0);
        crowd(server, N_MOVERS + 3, |id, client| {
            for round in 0..ROUNDS {
                match id {
                    0 => assert_eq!(n_elements(&client.command(&["SUNION", "left", "right"])), N_MEMBERS),
                    1 => {
                        let stored = ask(client, "SUNIONSTORE all left right");
                        assert_eq!(stored, format!(":{N_MEMBERS}"));
                    }
                    2 => assert_eq!(ask(client, "SINTERCARD 2 left right"), ":0"),
                    _ => {
                        for nth in 0..20 {
                            let member = format!("member-{}", (id * 1000 + round * 20 + nth) % N_MEMBERS);
                            let moved = ask(client, &format!("SMOVE left right {member}"));
                            n_moved.fetch_add((moved == ":1") as usize, Ordering::Relaxed);
                            if nth % 2 == 0 {
                                assert_eq!(ask(client, &format!("SMOVE right left {member}")), ":1");
                            }
                        }
                    }
                }
            }
        });
        assert!(n_moved.load(Ordering::Relaxed) > 0);
        assert_eq!(ask(&mut client, "SCARD all"), format!(":{N_MEMBERS}"));
        let n_right = n_elements(&client.command(&["SMEMBERS", "right"]));
        let n_left = n_elements(&client.command(&["SMEMBERS", "left"]));
        assert_eq!(n_left + n_right, N_MEMBERS);
    });
}

#[test]
fn writers_wait_for_readers_and_lose_nothing() {
    const ROUNDS: usize = 60;
    everywhere(|server| {
        let mut client = server.connect();
        fill_set(&mut client, "set", N_MEMBERS);
        crowd(server, 6, |id, client| {
            for round in 0..ROUNDS {
                if id < 3 {
                    // Either both members of a pair are there or none: pairs are added and removed in one
                    // transaction.
                    let n = n_elements(&client.command(&["SMEMBERS", "set"]));
                    assert_eq!((n - N_MEMBERS) % 2, 0, "a transaction seen half done");
                } else {
                    for command in
                        ["MULTI", &format!("SADD set a-{id}-{round}"), &format!("SADD set b-{id}-{round}")]
                    {
                        ask(client, command);
                    }
                    assert_eq!(ask(client, "EXEC"), "[:1 :1]");
                }
            }
        });
        assert_eq!(ask(&mut client, "SCARD set"), format!(":{}", N_MEMBERS + 3 * ROUNDS * 2));
    });
}

/// Elements of a list, fields of a hash and members of a sorted set change in pairs. A client that reads them
/// all sees whole pairs.
#[test]
fn large_reads_of_every_type_see_whole_transactions() {
    const ROUNDS: usize = 25;
    everywhere(|server| {
        let mut client = server.connect();
        for first in (0..N_MEMBERS).step_by(1000) {
            let numbers = || (first..first + 1000).map(|n| n.to_string());
            let command = |name: &str, key: &str| vec![name.to_owned(), key.to_owned()];
            client.command(&[command("RPUSH", "list"), numbers().collect()].concat());
            client.command(
                &[command("HSET", "hash"), numbers().flat_map(|n| [n.clone(), n]).collect()].concat(),
            );
            client.command(
                &[command("ZADD", "zset"), numbers().flat_map(|n| [n.clone(), n]).collect()].concat(),
            );
        }
        crowd(server, 6, |id, client| {
            for round in 0..ROUNDS {
                match id {
                    0 => {
                        assert!(n_elements(&client.command(&["LRANGE", "list", "0", "-1"])).is_multiple_of(2))
                    }
                    1 => assert!(n_elements(&client.command(&["HKEYS", "hash"])).is_multiple_of(2)),
                    2 => {
                        let stored = ask(client, "ZUNIONSTORE stored 2 zset set WEIGHTS 1 2");
                        assert!(stored[1..].parse::<usize>().expect("a count").is_multiple_of(2));
                        let n = n_elements(&client.command(&["ZRANGE", "zset", "0", "-1"]));
                        assert!(n.is_multiple_of(2), "{n}");
                    }
                    _ => {
                        let pair = [format!("a-{id}-{round}"), format!("b-{id}-{round}")];
                        ask(client, "MULTI");
                        for one in &pair {
                            ask(client, &format!("LPUSH list {one}"));
                            ask(client, &format!("HSET hash {one} x"));
                            ask(client, &format!("ZADD zset 1 {one}"));
                        }
                        assert_eq!(ask(client, "EXEC").matches(':').count(), 6);
                    }
                }
            }
        });
        let n = N_MEMBERS + 3 * 2 * ROUNDS;
        for command in ["LLEN list", "HLEN hash", "ZCARD zset"] {
            assert_eq!(ask(&mut client, command), format!(":{n}"));
        }
    });
}

#[test]
fn a_pipeline_keeps_its_order_around_a_large_read() {
    everywhere(|server| {
        let mut client = server.connect();
        fill_set(&mut client, "set", N_MEMBERS);
        for _ in 0..20 {
            for argv in [
                &["SADD", "set", "new"][..],
                &["SMEMBERS", "set"],
                &["SREM", "set", "new"],
                &["SMEMBERS", "set"],
                &["SCARD", "set"],
            ] {
                client.send(argv);
            }
            assert_eq!(client.receive(), Reply::Integer(1));
            assert_eq!(n_elements(&client.receive()), N_MEMBERS + 1);
            assert_eq!(client.receive(), Reply::Integer(1));
            assert_eq!(n_elements(&client.receive()), N_MEMBERS);
            assert_eq!(client.receive(), Reply::Integer(N_MEMBERS as i64));
        }
    });
}

#[test]
fn a_store_starts_over_when_its_sources_are_flushed_away() {
    everywhere(|server| {
        crowd(server, 3, |id, client| {
            for _ in 0..15 {
                if id == 0 {
                    ask(client, "FLUSHALL");
                    fill_set(client, "source", N_MEMBERS);
                } else {
                    let stored = ask(client, &format!("SUNIONSTORE stored-{id} source"));
                    let n: usize = stored[1..].parse().expect("a count");
                    assert!(n <= N_MEMBERS && n.is_multiple_of(1000), "{n} members");
                }
            }
        });
    });
}

#[test]
fn a_large_store_moves_the_stamp_of_its_destination() {
    everywhere(|server| {
        let (mut client, mut other) = (server.connect(), server.connect());
        fill_set(&mut client, "source", N_MEMBERS);
        ask(&mut client, "WATCH stored");
        assert_eq!(ask(&mut other, "SUNIONSTORE stored source"), format!(":{N_MEMBERS}"));
        ask(&mut client, "MULTI");
        ask(&mut client, "PING");
        assert_eq!(ask(&mut client, "EXEC"), "(nil-array)");
    });
}

/// RESTORE of a large value is offloaded. The key gets the use figures given to RESTORE.
#[test]
fn a_large_restored_value_was_used_as_restore_says() {
    everywhere(|server| {
        let mut client = server.connect();
        fill_set(&mut client, "source", 3 * N_MEMBERS);
        let Reply::Bulk(payload) = client.command(&["DUMP", "source"]) else { panic!("there is a value") };
        assert!(payload.len() > 1 << 18, "its restoring is offloaded");
        let mut used = |ttl: &str, options: &str, asked: &str| {
            let argv: [&[u8]; 5] = [b"RESTORE", b"restored", ttl.as_bytes(), &payload, b"REPLACE"];
            let options = options.split_ascii_whitespace().map(str::as_bytes);
            let reply = client.command(&argv.into_iter().chain(options).collect::<Vec<_>>());
            assert_eq!(reply.to_string(), "+OK");
            client.command(&["OBJECT", asked, "restored"]).integer()
        };
        assert!(used("0", "IDLETIME 1000", "IDLETIME") >= Some(1000));
        assert!(used("0", "", "IDLETIME").is_some_and(|seconds| seconds < 1000));
        assert!(used("100000", "IDLETIME 1000", "IDLETIME") >= Some(1000));
        assert_eq!(used("1", "ABSTTL", "IDLETIME"), None, "its time is over");
        // Without decay, because a minute may end in between.
        ask(&mut server.connect(), "CONFIG SET maxmemory-policy allkeys-lfu lfu-decay-time 0");
        assert_eq!(used("0", "FREQ 200", "FREQ"), Some(200));
        assert_eq!(used("0", "", "FREQ"), Some(5));
    });
}
