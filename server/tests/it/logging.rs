//! The records of units: each effect once, in order, and repeatable at any time. Where possible this includes
//! redis-server 7.0. (`differential/replay.rs` replays the records of random commands there.)

use std::collections::BTreeSet;

use crate::support::{
    Client, Dice, Reply, Server,
    crowd::{ask, figure, fill_set, laid_out, tell, until},
    dice::seed,
};

fn list(reply: Reply) -> Vec<Reply> {
    match reply {
        Reply::Array(items) => items,
        other => panic!("not a list: {other:?}"),
    }
}

/// Returns the records since the last call: the commands of each unit with their databases.
fn logged(client: &mut Client) -> Vec<Vec<String>> {
    let word = |word: &Reply| match word.integer() {
        Some(db) => db.to_string(),
        None => word.text().expect("a word"),
    };
    let command = |command: Reply| {
        list(command).iter().map(word).collect::<Vec<_>>().join(" ").escape_debug().to_string()
    };
    let units = list(client.command(&["DEBUG", "LOGGED"]));
    units.into_iter().map(|unit| list(unit).into_iter().map(command).collect()).collect()
}

fn recording() -> (Server, Client) {
    let server = laid_out((2, 16));
    let mut client = server.connect();
    assert_eq!(ask(&mut client, "DEBUG RECORD-LOG 1"), "+OK");
    (server, client)
}

/// Every command that writes: the data before, the command, and its record. `FAR` stands for a point in time
/// in milliseconds, `FARS` for the same in seconds, a star for any word.
const FORMS: &[(&str, &str, &[&str])] = &[
    // Strings.
    ("", "SET k v", &["SET k v"]),
    ("", "SET k v NX GET", &["SET k v"]),
    ("", "SET k v PXAT FAR", &["SET k v PXAT FAR"]),
    ("", "SET k v EX 100", &["SET k v PXAT *"]),
    ("SET k v PXAT FAR", "SET k w KEEPTTL", &["SET k w PXAT FAR"]),
    ("", "SETEX k 100 v", &["SET k v PXAT *"]),
    ("", "PSETEX k 100000 v", &["SET k v PXAT *"]),
    ("", "SETNX k v", &["SETNX k v"]),
    ("SET k v", "GETSET k w", &["SET k w"]),
    ("SET k v", "GETDEL k", &["DEL k"]),
    ("SET k v", "GETEX k EXAT FARS", &["PEXPIREAT k FAR"]),
    ("SET k v PXAT FAR", "GETEX k PERSIST", &["PERSIST k"]),
    ("SET k v", "GETEX k PXAT 1", &["DEL k"]),
    ("SET k v", "DELEX k IFEQ v", &["DEL k"]),
    ("SET k v", "DELIFEQ k v", &["DEL k"]),
    ("", "MSET k v l w", &["MSET k v l w"]),
    ("", "MSETNX k v l w", &["MSETNX k v l w"]),
    ("", "MSETEX 2 k v l w PXAT FAR", &["SET k v PXAT FAR", "SET l w PXAT FAR"]),
    ("", "APPEND k v", &["APPEND k v"]),
    ("", "SETRANGE k 2 v", &["SETRANGE k 2 v"]),
    ("", "INCR k", &["INCR k"]),
    ("", "DECR k", &["DECR k"]),
    ("", "INCRBY k 2", &["INCRBY k 2"]),
    ("", "DECRBY k 2", &["DECRBY k 2"]),
    ("SET k 1", "INCRBYFLOAT k 0.5", &["SET k 1.5 KEEPTTL"]),
    ("SET k 1", "INCREX k BYINT 2 EX 100", &["SET k 3 PXAT *"]),
    ("SET k 1 PXAT FAR", "INCREX k BYFLOAT 0.5", &["SET k 1.5 PXAT FAR"]),
    ("SET k 1 PXAT FAR", "INCREX k PERSIST", &["SET k 2"]),
    ("SET k 1", "INCREX k EXAT 1", &["DEL k"]),
    ("", "SETBIT k 1 1", &["SETBIT k 1 1"]),
    ("", "BITFIELD k SET u8 0 1", &["BITFIELD k SET u8 0 1"]),
    ("SET k v", "BITOP NOT l k", &["BITOP NOT l k"]),
    ("SET k abc;SET m a", "BITOP ONE l k k m", &["SET l *"]),
    ("SET l v", "BITOP DIFF l none none", &["DEL l"]),
    ("", "PFADD k a", &["PFADD k a"]),
    ("PFADD k a", "PFMERGE l k", &["PFMERGE l k"]),
    ("PFADD k a", "PFDEBUG TODENSE k", &["PFDEBUG TODENSE k"]),
    ("", "DEBUG POPULATE 2 k", &["SET k:0 value:0", "SET k:1 value:1"]),
    // Keys.
    ("SET k v", "DEL k", &["DEL k"]),
    ("SET k v", "UNLINK k", &["UNLINK k"]),
    ("SET k v", "EXPIRE k 100", &["PEXPIREAT k *"]),
    ("SET k v", "PEXPIRE k 100000 NX", &["PEXPIREAT k *"]),
    ("SET k v", "EXPIREAT k FARS", &["PEXPIREAT k FAR"]),
    ("SET k v", "PEXPIREAT k FAR", &["PEXPIREAT k FAR"]),
    ("SET k v", "EXPIRE k -1", &["DEL k"]),
    ("SET k v PXAT FAR", "PERSIST k", &["PERSIST k"]),
    ("SET k v", "RENAME k l", &["RENAME k l"]),
    ("SET k v", "RENAMENX k l", &["RENAMENX k l"]),
    ("SET k v", "COPY k l", &["COPY k l"]),
    ("SET k v", "MOVE k 1", &["MOVE k 1"]),
    ("SET k v", "SWAPDB 0 1", &["SWAPDB 0 1"]),
    ("SET k v", "FLUSHDB", &["FLUSHDB"]),
    ("SET k v", "FLUSHALL ASYNC", &["FLUSHALL ASYNC"]),
    ("RPUSH k 2 1", "SORT k STORE l", &["DEL l", "RPUSH l 1 2"]),
    // Lists.
    ("", "RPUSH k a", &["RPUSH k a"]),
    ("", "LPUSH k a", &["LPUSH k a"]),
    ("RPUSH k a", "RPUSHX k b", &["RPUSHX k b"]),
    ("RPUSH k a", "LPUSHX k b", &["LPUSHX k b"]),
    ("RPUSH k a b", "LPOP k", &["LPOP k"]),
    ("RPUSH k a b", "RPOP k 2", &["RPOP k 2"]),
    ("RPUSH k a b", "LSET k 0 c", &["LSET k 0 c"]),
    ("RPUSH k a b", "LINSERT k BEFORE a c", &["LINSERT k BEFORE a c"]),
    ("RPUSH k a b", "LREM k 0 a", &["LREM k 0 a"]),
    ("RPUSH k a b", "LTRIM k 1 1", &["LTRIM k 1 1"]),
    ("RPUSH k a b", "RPOPLPUSH k l", &["RPOPLPUSH k l"]),
    ("RPUSH k a b", "LMOVE k l LEFT RIGHT", &["LMOVE k l LEFT RIGHT"]),
    ("RPUSH l a b c", "LMPOP 2 k l RIGHT COUNT 2", &["RPOP l 2"]),
    ("RPUSH l a b c", "BLMPOP 1 2 k l LEFT COUNT 2", &["LPOP l 2"]),
    ("RPUSH l a b", "BLPOP k l 1", &["LPOP l"]),
    ("RPUSH l a b", "BRPOP k l 1", &["RPOP l"]),
    ("RPUSH k a b", "BLMOVE k l LEFT RIGHT 1", &["LMOVE k l LEFT RIGHT"]),
    ("RPUSH k a b", "LMOVEM k l LEFT RIGHT", &["LMOVE k l LEFT RIGHT"]),
    ("RPUSH k a b c", "LMOVEM k l LEFT LEFT COUNT 2 OBO", &["LPUSH l a b", "LPOP k 2"]),
    ("RPUSH k a b c", "LMOVEM k l RIGHT LEFT EXACTLY 2 BULK", &["LPUSH l c b", "RPOP k 2"]),
    ("RPUSH k a b c", "BLMOVEM k l LEFT RIGHT 1 COUNT 9 BULK", &["RPUSH l a b c", "LPOP k 3"]),
    ("RPUSH k a b c", "LMOVEM k k LEFT RIGHT COUNT 2 OBO", &["RPUSH k a b", "LPOP k 2"]),
    ("RPUSH k a b c", "LMOVEM k k RIGHT RIGHT COUNT 2 OBO", &["LSET k -2 c", "LSET k -1 b"]),
    ("RPUSH k a b", "BRPOPLPUSH k l 1", &["RPOPLPUSH k l"]),
    // Sets.
    ("", "SADD k a", &["SADD k a"]),
    ("SADD k a b", "SREM k a", &["SREM k a"]),
    ("SADD k a b", "SMOVE k l a", &["SMOVE k l a"]),
    ("SADD k a", "SPOP k", &["SREM k a"]),
    ("SADD k a b", "SPOP k 1", &["SREM k *"]),
    ("SADD k a b", "SPOP k 5", &["DEL k"]),
    ("SADD k a", "SUNIONSTORE l k", &["SUNIONSTORE l k"]),
    ("SADD k a", "SINTERSTORE l k", &["SINTERSTORE l k"]),
    ("SADD k a", "SDIFFSTORE l k", &["SDIFFSTORE l k"]),
    // Hashes.
    ("", "HSET k f v", &["HSET k f v"]),
    ("", "HMSET k f v", &["HMSET k f v"]),
    ("", "HSETNX k f v", &["HSETNX k f v"]),
    ("HSET k f v", "HDEL k f", &["HDEL k f"]),
    ("", "HINCRBY k f 1", &["HINCRBY k f 1"]),
    ("HSET k f 1", "HINCRBYFLOAT k f 0.5", &["HSET k f 1.5"]),
    (
        "HSETEX k PXAT FAR FIELDS 1 f 1",
        "HINCRBYFLOAT k f 0.5",
        &["HSET k f 1.5", "HPEXPIREAT k FAR FIELDS 1 f"],
    ),
    ("HSET k f v", "HEXPIRE k 100 FIELDS 2 f g", &["HPEXPIREAT k * FIELDS 1 f", "HDEL k g"]),
    ("HSET k f v", "HPEXPIRE k 100000 FIELDS 1 f", &["HPEXPIREAT k * FIELDS 1 f"]),
    ("HSET k f v", "HEXPIREAT k FARS FIELDS 1 f", &["HPEXPIREAT k FAR FIELDS 1 f"]),
    ("HSET k f v g w", "HPEXPIREAT k 1 FIELDS 1 f", &["HDEL k f"]),
    ("HSETEX k PXAT FAR FIELDS 1 f v", "HPERSIST k FIELDS 1 f", &["HPERSIST k FIELDS 1 f"]),
    ("HSET k f v", "HGETEX k PXAT FAR FIELDS 1 f", &["HPEXPIREAT k FAR FIELDS 1 f"]),
    ("", "HSETEX k EX 100 FIELDS 1 f v", &["HSET k f v", "HPEXPIREAT k * FIELDS 1 f"]),
    ("HSET k f v g w", "HGETDEL k FIELDS 1 f", &["HDEL k f"]),
    // Sorted sets.
    ("", "ZADD k 1 a", &["ZADD k 1 a"]),
    ("", "ZINCRBY k 1 a", &["ZINCRBY k 1 a"]),
    ("ZADD k 1 a", "ZREM k a", &["ZREM k a"]),
    ("ZADD k 1 a", "ZREMRANGEBYRANK k 0 0", &["ZREMRANGEBYRANK k 0 0"]),
    ("ZADD k 1 a", "ZREMRANGEBYSCORE k 0 1", &["ZREMRANGEBYSCORE k 0 1"]),
    ("ZADD k 1 a", "ZREMRANGEBYLEX k - +", &["ZREMRANGEBYLEX k - +"]),
    ("ZADD k 1 a", "ZUNIONSTORE l 1 k", &["ZUNIONSTORE l 1 k"]),
    ("ZADD k 1 a", "ZINTERSTORE l 1 k", &["ZINTERSTORE l 1 k"]),
    ("ZADD k 1 a", "ZUNIONSTORE l 1 k AGGREGATE SUM", &["ZUNIONSTORE l 1 k AGGREGATE SUM"]),
    ("ZADD k 1 a 2.5 b", "ZUNIONSTORE l 2 k k AGGREGATE COUNT", &["DEL l", "ZADD l 2 a 2 b"]),
    ("ZADD k 1 a", "ZUNIONSTORE l 3 k k k", &["DEL l", "ZADD l 3 a"]),
    ("ZADD k 1 a", "ZINTERSTORE l 3 k k k AGGREGATE MAX", &["ZINTERSTORE l 3 k k k AGGREGATE MAX"]),
    ("ZADD k 1 a;SET l v", "ZINTERSTORE l 1 none AGGREGATE COUNT", &["DEL l"]),
    ("ZADD k 1 a", "ZDIFFSTORE l 1 k", &["ZDIFFSTORE l 1 k"]),
    ("ZADD k 1 a", "ZRANGESTORE l k 0 -1", &["ZRANGESTORE l k 0 -1"]),
    ("ZADD k 1 a", "ZPOPMIN k", &["ZPOPMIN k"]),
    ("ZADD k 1 a", "ZPOPMAX k", &["ZPOPMAX k"]),
    ("ZADD l 1 a 2 b", "ZMPOP 2 k l MIN", &["ZPOPMIN l 1"]),
    ("ZADD l 1 a 2 b", "BZMPOP 1 2 k l MAX COUNT 2", &["ZPOPMAX l 2"]),
    ("ZADD l 1 a 2 b", "BZPOPMIN k l 1", &["ZPOPMIN l"]),
    ("ZADD l 1 a 2 b", "BZPOPMAX k l 1", &["ZPOPMAX l"]),
    ("", "GEOADD k 13 38 a", &["GEOADD k 13 38 a"]),
    (
        "GEOADD k 13 38 a;SET other v",
        "GEORADIUS k 13 38 1 km STOREDIST other STORE l",
        &["DEL l", "ZADD l 3479065152021743 a"],
    ),
    ("GEOADD k 13 38 a", "GEORADIUSBYMEMBER k a 1 km STOREDIST l", &["DEL l", "ZADD l 0 a"]),
    ("GEOADD k 13 38 a;SET l v", "GEORADIUS k 14 38 1 km STORE l", &["DEL l"]),
    (
        "GEOADD k 13 38 a",
        "GEOSEARCHSTORE l k FROMMEMBER a BYRADIUS 1 km",
        &["DEL l", "ZADD l 3479065152021743 a"],
    ),
    (
        "GEOADD k 13 38 a",
        "GEOSEARCHSTORE l k BYPOLYGON 3 12 37 16 37 12 39",
        &["DEL l", "ZADD l 3479065152021743 a"],
    ),
    // Streams.
    ("", "XADD k * f v", &["XADD k * f v"]),
    ("XADD k 1-1 f v", "XADD k MAXLEN ~ 1 LIMIT 0 2-1 f v", &["XADD k 2-1 f v"]),
    ("XADD k 1-1 f v", "XADD k MAXLEN 1 2-* f v", &["XADD k 2-0 f v", "XTRIM k MAXLEN = 1"]),
    // Valkey and Redis 7.0 do not know these. An operator who returns to them must not have used them.
    (
        "XADD k 1-1 f v;XGROUP CREATE k g 0;XREADGROUP GROUP g c STREAMS k >",
        "XADD k MAXLEN = 1 DELREF 2-* f v",
        &["XADD k MAXLEN = 1 DELREF 2-0 f v"],
    ),
    ("XADD k 1-1 f v", "XTRIM k MAXLEN = 0 ACKED", &["XTRIM k MAXLEN = 0 ACKED"]),
    ("XADD k 1-1 f v", "XTRIM k MINID 5", &["XTRIM k MAXLEN = 0"]),
    ("XADD k 1-1 f v", "XDEL k 1-1", &["XDEL k 1-1"]),
    ("XADD k 1-1 f v", "XDELEX k IDS 1 1-1", &["XDELEX k IDS 1 1-1"]),
    ("XADD k 1-1 f v", "XSETID k 5-5", &["XSETID k 5-5"]),
    ("XADD k 1-1 f v", "XGROUP CREATE k g 0", &["XGROUP CREATE k g 0"]),
    ("XGROUP CREATE k g 0 MKSTREAM", "XGROUP SETID k g 5", &["XGROUP SETID k g 5"]),
    ("XGROUP CREATE k g 0 MKSTREAM", "XGROUP DESTROY k g", &["XGROUP DESTROY k g"]),
    ("XGROUP CREATE k g 0 MKSTREAM", "XGROUP CREATECONSUMER k g c", &["XGROUP CREATECONSUMER k g c"]),
    (
        "XGROUP CREATE k g 0 MKSTREAM;XGROUP CREATECONSUMER k g c",
        "XGROUP DELCONSUMER k g c",
        &["XGROUP DELCONSUMER k g c"],
    ),
    (
        "XADD k 1-1 f v;XGROUP CREATE k g 0",
        "XREADGROUP GROUP g c STREAMS k >",
        &[
            "XCLAIM k g c 0 1-1 TIME * RETRYCOUNT 1 FORCE JUSTID LASTID 1-1",
            "XGROUP SETID k g 1-1 ENTRIESREAD 1",
        ],
    ),
    (
        "XADD k 1-1 f v;XGROUP CREATE k g 0",
        "XREADGROUP GROUP g c NOACK STREAMS k >",
        &["XGROUP CREATECONSUMER k g c", "XGROUP SETID k g 1-1 ENTRIESREAD 1"],
    ),
    (
        "XGROUP CREATE k g $ MKSTREAM",
        "XREADGROUP GROUP g c BLOCK 1 STREAMS k >",
        &["XGROUP CREATECONSUMER k g c"],
    ),
    (
        "XADD k 1-1 f v;XGROUP CREATE k g 0;XREADGROUP GROUP g c STREAMS k >",
        "XACK k g 1-1",
        &["XACK k g 1-1"],
    ),
    (
        "XADD k 1-1 f v;XGROUP CREATE k g 0;XREADGROUP GROUP g c STREAMS k >",
        "XACKDEL k g IDS 1 1-1",
        &["XACKDEL k g IDS 1 1-1"],
    ),
    (
        "XADD k 1-1 f v;XGROUP CREATE k g 0;XREADGROUP GROUP g c STREAMS k >",
        "XCLAIM k g d 0 1-1",
        &["XCLAIM k g d 0 1-1 TIME * RETRYCOUNT 2 FORCE JUSTID LASTID 1-1"],
    ),
    (
        "XADD k 1-1 f v;XADD k 2-1 f v;XGROUP CREATE k g 0;XREADGROUP GROUP g c COUNT 1 STREAMS k >",
        "XREADGROUP GROUP g d CLAIM 0 STREAMS k >",
        &[
            "XCLAIM k g d 0 1-1 TIME * RETRYCOUNT 2 FORCE JUSTID LASTID 2-1",
            "XCLAIM k g d 0 2-1 TIME * RETRYCOUNT 1 FORCE JUSTID LASTID 2-1",
            "XGROUP SETID k g 2-1 ENTRIESREAD 2",
        ],
    ),
    (
        "XADD k 1-1 f v;XGROUP CREATE k g 0;XREADGROUP GROUP g c STREAMS k >",
        "XNACK k g FAIL IDS 1 1-1",
        &["XNACK k g FAIL IDS 1 1-1"],
    ),
    (
        "XADD k 1-1 f v;XADD k 2-1 f v;XGROUP CREATE k g 0;XREADGROUP GROUP g c STREAMS k >;XDEL k 1-1",
        "XAUTOCLAIM k g d 0 0",
        &["XCLAIM k g d 0 2-1 TIME * RETRYCOUNT 2 FORCE JUSTID LASTID 2-1", "XACK k g 1-1"],
    ),
];

/// A point in time after the end of any test, in milliseconds.
const FAR: u64 = 4_000_000_000_000;

fn told(text: &str) -> String {
    text.replace("FARS", &(FAR / 1000).to_string()).replace("FAR", &FAR.to_string())
}

fn fits(form: &str, logged: &str) -> bool {
    let (form, logged): (Vec<_>, Vec<_>) = (form.split(' ').collect(), logged.split(' ').collect());
    form.len() == logged.len() && form.iter().zip(&logged).all(|(form, word)| *form == "*" || form == word)
}

#[test]
fn each_command_that_writes_is_logged_in_words_that_do_the_same_again() {
    let (server, mut client) = recording();
    for (before, command, expected) in FORMS {
        ask(&mut client, "FLUSHALL");
        for command in before.split(';').filter(|command| !command.is_empty()) {
            let reply = ask(&mut client, &told(command));
            assert!(!reply.starts_with('-'), "{command}: {reply}");
        }
        // RESTORE's payload is no text.
        logged(&mut client);
        let reply = ask(&mut client, &told(command));
        assert!(!reply.starts_with('-'), "{command}: {reply}");
        let units = logged(&mut client);
        assert_eq!(units.len(), 1, "{command} logged {units:?}");
        let expected: Vec<String> = expected.iter().map(|form| format!("0 {}", told(form))).collect();
        let fit = units[0].len() == expected.len()
            && units[0].iter().zip(&expected).all(|(logged, form)| fits(form, logged));
        assert!(fit, "{command} logged {:?}, and not {expected:?}", units[0]);
    }
    let names = client.command(&["COMMAND", "LIST", "FILTERBY", "ACLCAT", "write"]);
    let writing: BTreeSet<String> = list(names).iter().filter_map(Reply::text).collect();
    let tried: BTreeSet<String> = FORMS
        .iter()
        .flat_map(|(_, command, _)| {
            let words: Vec<String> = command.split(' ').take(2).map(str::to_ascii_lowercase).collect();
            [words[0].clone(), words.join("|")]
        })
        .collect();
    // These have tests of their own below.
    let not_here = ["restore", "function|delete", "function|flush", "function|load", "function|restore"];
    let missing: Vec<&String> =
        writing.difference(&tried).filter(|name| !not_here.contains(&name.as_str())).collect();
    assert!(missing.is_empty(), "nobody has said how these are logged: {missing:?}");
    drop(server);
}

#[test]
fn what_changes_nothing_is_not_logged() {
    let (_server, mut client) = recording();
    for command in ["SET k 1", "XADD s 1-1 f v", "XGROUP CREATE s g $", "XGROUP CREATECONSUMER s g c"] {
        ask(&mut client, command);
    }
    logged(&mut client);
    for command in [
        "GET k",
        "SETNX k 2",
        "SET k 2 NX",
        "DEL missing",
        "EXPIRE missing 100",
        "LPOP missing",
        "BLPOP missing 0.01",
        "SPOP missing 3",
        "PERSIST k",
        "GETEX k",
        "INCR s",
        "XREADGROUP GROUP g c STREAMS s >",
        "XINFO STREAM s",
        "EVAL \"return redis.call('GET', KEYS[1])\" 1 k",
        "MULTI",
        "GET k",
        "EXEC",
        "CONFIG SET timeout 0",
        "PUBLISH channel message",
    ] {
        ask(&mut client, command);
    }
    assert_eq!(logged(&mut client), Vec::<Vec<String>>::new());
}

#[test]
fn restore_is_logged_with_a_point_in_time() {
    let (_server, mut client) = recording();
    ask(&mut client, "SET k value");
    let Reply::Bulk(payload) = client.command(&["DUMP", "k"]) else { panic!("no payload") };
    ask(&mut client, "DEL k");
    logged(&mut client);
    let restore: [&[u8]; 5] = [b"RESTORE", b"k", b"100000", &payload, b"REPLACE"];
    assert_eq!(client.command(&restore).to_string(), "+OK");
    let deadline = client.command(&["PEXPIRETIME", "k"]).integer().expect("a point in time");
    let units = list(client.command(&["DEBUG", "LOGGED"]));
    let words = list(list(units.into_iter().next().expect("a unit")).remove(0));
    let deadline = deadline.to_string();
    let expected: [&[u8]; 6] = [b"RESTORE", b"k", deadline.as_bytes(), &payload, b"REPLACE", b"ABSTTL"];
    for (word, expected) in words[1..].iter().zip(expected) {
        assert_eq!(*word, Reply::Bulk(expected.to_vec()));
    }
}

#[test]
fn a_transaction_and_a_script_are_logged_as_what_they_ran() {
    let (_server, mut client) = recording();
    for command in
        ["MULTI", "SET a 1", "GET a", "INCRBYFLOAT a 1", "SELECT 2", "LPUSH a x", "SELECT 0", "EXEC"]
    {
        ask(&mut client, command);
    }
    client.command(&[
        "EVAL",
        "redis.call('SET', 'b', ARGV[1]); redis.call('SELECT', 1); redis.call('SADD', 's', 'm'); \
         redis.call('SPOP', 's'); return redis.call('GET', 'b')",
        "1",
        "b",
        "2",
    ]);
    let units = logged(&mut client);
    assert_eq!(
        units,
        [
            vec!["0 SET a 1", "0 SET a 2 KEEPTTL", "2 LPUSH a x"],
            vec!["0 SET b 2", "1 SADD s m", "1 SREM s m"],
        ]
    );
}

#[test]
fn who_is_served_after_a_wait_is_logged_behind_what_served_him() {
    let (server, mut client) = recording();
    let mut waiting = server.connect();
    tell(&mut waiting, "BLMOVE source target LEFT RIGHT 0");
    until("it waits", || ask(&mut client, "INFO clients").contains("blocked_clients:1"));
    ask(&mut client, "RPUSH source a b");
    waiting.receive();
    assert_eq!(logged(&mut client), [["0 RPUSH source a b"], ["0 LMOVE source target LEFT RIGHT"]]);
}

#[test]
fn what_has_expired_is_logged_before_what_met_it() {
    let (_server, mut client) = recording();
    ask(&mut client, "DEBUG SET-ACTIVE-EXPIRE 0");
    for command in ["SET k 5 PX 1", "HSET h f 5 g 6", "HPEXPIRE h 1 FIELDS 1 f"] {
        ask(&mut client, command);
    }
    until("both are over", || ask(&mut client, "EXISTS k") == ":0" && ask(&mut client, "HLEN h") == ":1");
    let before = logged(&mut client);
    assert!(before.contains(&vec!["0 DEL k".to_owned()]), "{before:?}");
    // A read does not remove fields, or their removal was logged above.
    ask(&mut client, "HINCRBY h f 1");
    let all: Vec<String> = before.into_iter().chain(logged(&mut client)).flatten().collect();
    let lost = all.iter().position(|command| command == "0 HDEL h f").expect("the field was lost");
    let counted = all.iter().position(|command| command == "0 HINCRBY h f 1").expect("it was counted");
    assert!(lost < counted, "{all:?}");
}

#[test]
fn what_is_evicted_is_logged_as_removed() {
    let (_server, mut client) = recording();
    for nth in 0..50 {
        client.command(&["SET", &format!("k{nth}"), &"v".repeat(100_000)]);
    }
    logged(&mut client);
    ask(&mut client, "CONFIG SET maxmemory-policy allkeys-random");
    ask(&mut client, "CONFIG SET maxmemory 1mb");
    until("something is evicted", || figure(&mut client, "evicted_keys") > 0);
    ask(&mut client, "CONFIG SET maxmemory 0");
    let left: BTreeSet<String> =
        list(client.command(&["KEYS", "*"])).iter().filter_map(Reply::text).collect();
    let removed: BTreeSet<String> = logged(&mut client).into_iter().flatten().collect();
    let expected: BTreeSet<String> = (0..50)
        .map(|nth| format!("k{nth}"))
        .filter(|key| !left.contains(key))
        .map(|key| format!("0 DEL {key}"))
        .collect();
    assert_eq!(removed, expected);
}

#[test]
fn a_data_set_that_is_loaded_is_no_change() {
    let (_server, mut client) = recording();
    ask(&mut client, "SET k v");
    assert_eq!(ask(&mut client, "DEBUG RELOAD"), "+OK");
    ask(&mut client, "APPEND k w");
    assert_eq!(logged(&mut client), [["0 SET k v"], ["0 APPEND k w"]]);
    assert_eq!(ask(&mut client, "GET k"), "\"vw\"");
}

#[test]
fn work_that_began_before_the_log_was_on_is_logged_if_it_is_stored_after() {
    let server = laid_out((2, 16));
    let (mut client, mut other) = (server.connect(), server.connect());
    fill_set(&mut client, "large", 10_000);
    ask(&mut client, "DEBUG HOLD-OFFLOADED 1");
    tell(&mut other, "SUNIONSTORE copy large");
    until("it has pinned its keys", || figure(&mut client, "offloaded_waiting") > 0);
    assert_eq!(ask(&mut client, "DEBUG RECORD-LOG 1"), "+OK");
    ask(&mut client, "DEBUG HOLD-OFFLOADED 0");
    assert_eq!(other.receive().to_string(), ":10000");
    assert_eq!(logged(&mut client), [["0 SUNIONSTORE copy large"]]);
}

#[test]
fn libraries_are_logged() {
    let (_server, mut client) = recording();
    let code = "#!lua name=lib\nredis.register_function('f', function() return 1 end)";
    client.command(&["FUNCTION", "LOAD", code]);
    client.command(&["FUNCTION", "DELETE", "lib"]);
    client.command(&["FUNCTION", "DELETE", "lib"]);
    client.command(&["FUNCTION", "FLUSH"]);
    let load = format!("0 FUNCTION LOAD REPLACE {code}").escape_debug().to_string();
    assert_eq!(logged(&mut client), [[load.as_str()], ["0 FUNCTION DELETE lib"], ["0 FUNCTION FLUSH"]]);
}

#[test]
fn work_on_large_values_is_logged_when_it_is_stored() {
    let (_server, mut client) = recording();
    for chunk in 0..20 {
        let members: Vec<String> = (0..500).map(|nth| (chunk * 500 + nth).to_string()).collect();
        let command: Vec<&str> =
            ["SADD", "large"].into_iter().chain(members.iter().map(String::as_str)).collect();
        client.command(&command);
    }
    logged(&mut client);
    assert_eq!(ask(&mut client, "SUNIONSTORE copy large"), ":10000");
    assert_eq!(ask(&mut client, "SORT large STORE sorted"), ":10000");
    let units = logged(&mut client);
    assert_eq!(units[0], ["0 SUNIONSTORE copy large"]);
    assert_eq!(units[1][0], "0 DEL sorted");
    let n_stored: usize = units[1][1..].iter().map(|command| command.split(' ').count() - 3).sum();
    assert_eq!((n_stored, units.len()), (10_000, 2));
}

/// Plays random commands of one client, none of which fails.
fn play(client: &mut Client, dice: &mut Dice, n_commands: usize) {
    for nth in 0..n_commands {
        let (a, b) = (dice.roll(12), dice.roll(12));
        let command = match dice.roll(16) {
            0 => format!("INCR n{a}"),
            1 => format!("APPEND s{a} {nth}"),
            2 => format!("RPUSH l{a} {nth}"),
            3 => format!("LMPOP 2 l{a} l{b} LEFT COUNT 2"),
            4 => format!("BLMOVE l{a} l{b} LEFT RIGHT 0.001"),
            5 => format!("SADD m{a} {nth} {b}"),
            6 => format!("SPOP m{a} 2"),
            7 => format!("SMOVE m{a} m{b} {b}"),
            8 => format!("SET s{a} {nth} EX 1000"),
            9 => format!("XADD x{a} MAXLEN ~ 10 * f {nth}"),
            10 => format!("RENAMENX l{a} l{b}"),
            11 => format!("SUNIONSTORE m{a} m{a} m{b}"),
            12 => format!("ZADD z{a} {nth} {b}"),
            13 => format!("BZPOPMIN z{a} z{b} 0.001"),
            14 => {
                // Its keys are not declared, so it may be given up and run again.
                let script = "redis.call('INCR', 'n' .. ARGV[1]); local taken = redis.call('SPOP', 'm' .. ARGV[2]); \
                              if taken then redis.call('RPUSH', 'l' .. ARGV[1], taken) end";
                let reply = client.command(&["EVAL", script, "0", &a.to_string(), &b.to_string()]);
                assert!(!reply.is_error(), "{reply}");
                continue;
            }
            _ => {
                for command in
                    ["MULTI", &format!("INCR n{a}"), &format!("SPOP m{b}"), &format!("DECR n{b}"), "EXEC"]
                {
                    ask(client, command);
                }
                continue;
            }
        };
        let reply = ask(client, &command);
        assert!(!reply.starts_with('-') || reply.contains("no such key"), "{command}: {reply}");
    }
}

#[test]
fn what_many_threads_log_does_the_same_again() {
    for layout in [(2, 1), (4, 16), (4, 1024)] {
        let server = laid_out(layout);
        let mut client = server.connect();
        assert_eq!(ask(&mut client, "DEBUG RECORD-LOG 1"), "+OK");
        let seed = seed();
        println!("seed {seed}");
        std::thread::scope(|scope| {
            for nth in 0..6 {
                let mut client = server.connect();
                scope.spawn(move || play(&mut client, &mut Dice(seed + nth), 1500));
            }
        });
        let other = laid_out(layout);
        let mut replayer = other.connect();
        let units = list(client.command(&["DEBUG", "LOGGED"]));
        assert!(units.len() > 3000, "hardly anything was logged: {}", units.len());
        for unit in units {
            for command in list(unit) {
                let words: Vec<Vec<u8>> = list(command)[1..]
                    .iter()
                    .map(|word| match word {
                        Reply::Bulk(bytes) => bytes.clone(),
                        other => panic!("not a word: {other}"),
                    })
                    .collect();
                let reply = replayer.command(&words);
                assert!(!reply.is_error(), "{reply}");
            }
        }
        let digests = [&mut client, &mut replayer].map(|client| ask(client, "DEBUG DIGEST"));
        assert_eq!(digests[0], digests[1]);
        assert_ne!(digests[0], "+0000000000000000000000000000000000000000", "there is something to compare");
    }
}
