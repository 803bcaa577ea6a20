//! DEBUG DIGEST and DIGEST-VALUE: equal for equal data, whatever its order of arrival and encoding.

use crate::support::{Client, crowd::laid_out};

fn run(client: &mut Client, commands: &[&str]) {
    for command in commands {
        let reply = client.command(&command.split(' ').collect::<Vec<_>>()).to_string();
        assert!(!reply.starts_with('-'), "{command}: {reply}");
    }
}

fn value_digest(client: &mut Client, key: &str) -> String {
    client.command(&["DEBUG", "DIGEST-VALUE", key]).to_string()
}

/// Commands that make a value.
type Way = &'static [&'static str];

/// Ways to the same value, and ways to different ones.
const VALUES: &[(&[Way], &[Way])] = &[
    (
        &[&["SET k 1234"], &["SET k 12", "APPEND k 34"], &["SET k x", "SET k 1234"]],
        &[&["SET k 1235"], &["SET k 1234 EX 1000"], &["SADD k 1234"], &["RPUSH k 1234"]],
    ),
    (
        &[
            &["SADD k 1 2 a"],
            &["SADD k a", "SADD k 2 1"],
            &["CONFIG SET set-max-listpack-entries 1", "SADD k 2 a 1"],
        ],
        &[&["SADD k 1 2"], &["SADD k 12 a"], &["RPUSH k 1 2 a"]],
    ),
    (
        &[&["HSET k a 1 b 2"], &["CONFIG SET hash-max-listpack-entries 1", "HSET k b 2 a 1"]],
        &[&["HSET k a 2 b 1"], &["HSET k a 1 b 2", "HEXPIRE k 1000 FIELDS 1 a"], &["HSET k a1 b2 x y"]],
    ),
    (
        &[&["ZADD k 1 a 2.5 b"], &["CONFIG SET zset-max-listpack-entries 1", "ZADD k 2.5 b 1 a"]],
        &[&["ZADD k 1 b 2.5 a"], &["ZADD k 1 a"]],
    ),
    (
        &[&["RPUSH k a 7 b"], &["LPUSH k b 7 a"], &["CONFIG SET list-max-listpack-size 1", "RPUSH k a 7 b"]],
        &[&["RPUSH k b 7 a"], &["RPUSH k a7 b"]],
    ),
    (
        &[
            &["XADD k 1-1 f v", "XADD k 2-1 f w"],
            &["CONFIG SET stream-node-max-entries 1", "XADD k 1-1 f v", "XADD k 2-1 f w"],
        ],
        &[
            &["XADD k 1-1 f v", "XADD k 2-2 f w"],
            &["XADD k 1-1 f v", "XADD k 2-1 f w", "XGROUP CREATE k g 0"],
            &["XADD k 1-1 fv x", "XADD k 2-1 f w"],
        ],
    ),
];

const RESET: &[&str] = &[
    "FLUSHALL",
    "CONFIG SET set-max-listpack-entries 128 hash-max-listpack-entries 128 zset-max-listpack-entries 128",
    "CONFIG SET list-max-listpack-size 128 stream-node-max-entries 100",
];

#[test]
fn equal_values_have_equal_digests_and_others_have_not() {
    let server = laid_out((2, 16));
    let mut client = server.connect();
    for (equal, others) in VALUES {
        let digests = |client: &mut Client, ways: &[&[&str]]| -> Vec<String> {
            let of = |client: &mut Client, way: &[&str]| {
                run(client, RESET);
                run(client, way);
                value_digest(client, "k")
            };
            ways.iter().map(|way| of(client, way)).collect()
        };
        let equal_digests = digests(&mut client, equal);
        assert!(
            equal_digests.iter().all(|digest| *digest == equal_digests[0]),
            "{equal:?}: {equal_digests:?}"
        );
        let mut all = digests(&mut client, others);
        all.push(equal_digests[0].clone());
        all.sort();
        all.dedup();
        assert_eq!(all.len(), others.len() + 1, "{others:?}");
    }
}

#[test]
fn the_digest_of_all_is_that_of_its_keys_wherever_they_lie() {
    let digests: Vec<String> = [(1, 1), (8, 1024)]
        .map(|layout| {
            let server = laid_out(layout);
            let mut client = server.connect();
            let mut digest = || client.command(&["DEBUG", "DIGEST"]).to_string();
            let empty = digest();
            let mut client = server.connect();
            run(&mut client, &["DEBUG POPULATE 1000", "SELECT 3", "SADD k a b c", "SET expires soon PX 100"]);
            run(&mut client, &["DEBUG ADVANCE-TIME 1000"]);
            let full = digest();
            run(&mut client, &["SMOVE k l a"]);
            assert_ne!(digest(), full);
            run(&mut client, &["SMOVE l k a"]);
            assert_eq!(digest(), full);
            run(&mut client, &["SWAPDB 3 4"]);
            assert_ne!(digest(), full);
            run(&mut client, &["FLUSHALL"]);
            assert_eq!(digest(), empty);
            full
        })
        .into();
    assert_eq!(digests[0], digests[1]);
}
