//! The look-ups of keys that count as hits and misses, command by command. INFO `keyspace_hits` and
//! `keyspace_misses` must be those of redis-server.

use crate::support::{
    Client, Server,
    crowd::{ask, laid_out},
    reference::{REFERENCE, has_reference},
};

/// Hits and misses.
type Counts = (u64, u64);

/// The data before each command.
const KEYS: &[&str] = &[
    "SET str hello",
    "SET num 10",
    "RPUSH list c a b",
    "HSET hash f 1 g 2",
    "SADD set 1 2 3",
    "SADD set2 2 3 4",
    "ZADD zset 1 a 2 b",
    "ZADD zset2 1 a 2 c",
    "PFADD hll a b",
    "GEOADD geo 13 38 p 15 37 q",
    "XADD stream 1-1 f v",
    "XADD stream 2-1 f v",
    "XGROUP CREATE stream g 0",
    "XREADGROUP GROUP g me COUNT 1 STREAMS stream >",
    "SET volatile x EX 1000",
    "SET w_1 5",
    "SET w_2 4",
    "SET w_3 3",
    "HSET h_1 f 5",
    "XGROUP CREATE stream last $",
];

/// Commands on a key K, with an existing key. The counts are those for the existing and for a missing key. A
/// key with a `*` in it is a pattern.
const LOOKUPS: &[(&str, &str, [Counts; 2])] = &[
    ("APPEND K x", "str", [(0, 0), (0, 0)]),
    ("DECR K", "num", [(0, 0), (0, 0)]),
    ("DECRBY K 2", "num", [(0, 0), (0, 0)]),
    ("GETDEL K", "str", [(1, 0), (0, 1)]),
    ("GETEX K", "str", [(1, 0), (0, 1)]),
    ("GETEX K EX 100", "str", [(1, 0), (0, 1)]),
    ("GETSET K x", "str", [(1, 0), (0, 1)]),
    ("INCR K", "num", [(0, 0), (0, 0)]),
    ("INCRBY K 2", "num", [(0, 0), (0, 0)]),
    ("INCRBYFLOAT K 2", "num", [(0, 0), (0, 0)]),
    ("INCRBYFLOAT K 2", "str", [(0, 0), (0, 0)]),
    ("MSET K 1 num 2", "str", [(0, 0), (0, 0)]),
    ("MSETNX K 1 other 2", "str", [(0, 0), (0, 0)]),
    ("PSETEX K 1000 v", "str", [(0, 0), (0, 0)]),
    ("SETEX K 1000 v", "str", [(0, 0), (0, 0)]),
    ("SETNX K v", "str", [(0, 0), (0, 0)]),
    ("SET K v", "str", [(0, 0), (0, 0)]),
    ("SET K v XX", "str", [(0, 0), (0, 0)]),
    ("SET K v GET", "str", [(1, 0), (0, 1)]),
    ("SETRANGE K 0 x", "str", [(0, 0), (0, 0)]),
    ("SETRANGE K 0 x", "list", [(0, 0), (0, 0)]),
    ("SETRANGE K 0 ", "str", [(0, 0), (0, 0)]),
    ("BITFIELD K SET u8 0 1", "str", [(0, 0), (0, 0)]),
    ("BITFIELD K GET u8 0", "str", [(1, 0), (0, 1)]),
    ("BITOP AND K str num", "str", [(2, 0), (2, 0)]),
    ("BITOP AND other K num", "str", [(2, 0), (1, 1)]),
    ("SETBIT K 1 1", "str", [(0, 0), (0, 0)]),
    ("PFADD K a", "hll", [(0, 0), (0, 0)]),
    ("PFCOUNT K", "hll", [(1, 0), (0, 1)]),
    ("PFMERGE K hll", "hll", [(2, 0), (1, 1)]),
    ("PFMERGE hll K", "hll", [(2, 0), (1, 1)]),
    ("LPUSH K x", "list", [(0, 0), (0, 0)]),
    ("LPUSHX K x", "list", [(0, 0), (0, 0)]),
    ("RPUSH K x", "list", [(0, 0), (0, 0)]),
    ("RPUSHX K x", "list", [(0, 0), (0, 0)]),
    ("LPOP K", "list", [(0, 0), (0, 0)]),
    ("RPOP K 2", "list", [(0, 0), (0, 0)]),
    ("LMPOP 2 K list LEFT", "list", [(0, 0), (0, 0)]),
    ("BLMPOP 0.01 1 K LEFT", "list", [(0, 0), (0, 0)]),
    ("BLPOP K 0.01", "list", [(0, 0), (0, 0)]),
    ("BRPOP other K 0.01", "list", [(0, 0), (0, 0)]),
    ("LMOVE K list LEFT RIGHT", "list", [(0, 0), (0, 0)]),
    ("BLMOVE K other LEFT LEFT 0.01", "list", [(0, 0), (0, 0)]),
    ("RPOPLPUSH K other", "list", [(0, 0), (0, 0)]),
    ("BRPOPLPUSH K other 0.01", "list", [(0, 0), (0, 0)]),
    ("LINSERT K BEFORE a x", "list", [(0, 0), (0, 0)]),
    ("LREM K 0 a", "list", [(0, 0), (0, 0)]),
    ("LSET K 0 x", "list", [(0, 0), (0, 0)]),
    ("LTRIM K 0 1", "list", [(0, 0), (0, 0)]),
    ("HDEL K f", "hash", [(0, 0), (0, 0)]),
    ("HINCRBY K f 1", "hash", [(0, 0), (0, 0)]),
    ("HINCRBYFLOAT K f 1", "hash", [(0, 0), (0, 0)]),
    ("HSET K f 1", "hash", [(0, 0), (0, 0)]),
    ("HMSET K f 1", "hash", [(0, 0), (0, 0)]),
    ("HSETNX K f 1", "hash", [(0, 0), (0, 0)]),
    ("SADD K 9", "set", [(0, 0), (0, 0)]),
    ("SREM K 1", "set", [(0, 0), (0, 0)]),
    ("SPOP K", "set", [(0, 0), (0, 0)]),
    ("SPOP K 2", "set", [(0, 0), (0, 0)]),
    ("SPOP K 100", "set", [(1, 0), (0, 0)]),
    ("SMOVE K set2 1", "set", [(0, 0), (0, 0)]),
    ("SDIFFSTORE K set set2", "set", [(2, 0), (2, 0)]),
    ("SDIFFSTORE other K set2", "set", [(2, 0), (1, 1)]),
    ("SINTERSTORE other K set2", "set", [(2, 0), (1, 1)]),
    ("SUNIONSTORE other K set2", "set", [(2, 0), (1, 1)]),
    ("ZADD K 1 a", "zset", [(0, 0), (0, 0)]),
    ("ZINCRBY K 1 a", "zset", [(0, 0), (0, 0)]),
    ("ZREM K a", "zset", [(0, 0), (0, 0)]),
    ("ZPOPMIN K", "zset", [(0, 0), (0, 0)]),
    ("ZPOPMAX K 2", "zset", [(0, 0), (0, 0)]),
    ("ZMPOP 2 other K MIN", "zset", [(0, 0), (0, 0)]),
    ("BZPOPMIN K 0.01", "zset", [(0, 0), (0, 0)]),
    ("BZPOPMAX other K 0.01", "zset", [(0, 0), (0, 0)]),
    ("BZMPOP 0.01 1 K MIN", "zset", [(0, 0), (0, 0)]),
    ("ZREMRANGEBYRANK K 0 0", "zset", [(0, 0), (0, 0)]),
    ("ZREMRANGEBYSCORE K 0 1", "zset", [(0, 0), (0, 0)]),
    ("ZREMRANGEBYLEX K - +", "zset", [(0, 0), (0, 0)]),
    ("ZRANGESTORE K zset 0 -1", "zset", [(1, 0), (1, 0)]),
    ("ZRANGESTORE other K 0 -1", "zset", [(1, 0), (0, 1)]),
    ("ZUNIONSTORE other 2 K zset", "zset", [(2, 0), (1, 1)]),
    ("ZINTERSTORE other 2 K zset", "zset", [(2, 0), (1, 1)]),
    ("ZDIFFSTORE other 2 K zset", "zset", [(2, 0), (1, 1)]),
    ("GEOADD K 13 38 p", "geo", [(0, 0), (0, 0)]),
    ("GEOSEARCHSTORE other K FROMLONLAT 13 38 BYRADIUS 100 km", "geo", [(1, 0), (0, 1)]),
    ("GEORADIUS K 13 38 100 km STORE other", "geo", [(1, 0), (0, 1)]),
    ("GEORADIUSBYMEMBER K p 100 km STOREDIST other", "geo", [(1, 0), (0, 1)]),
    ("XADD K * f v", "stream", [(0, 0), (0, 0)]),
    ("XDEL K 1-1", "stream", [(0, 0), (0, 0)]),
    ("XTRIM K MAXLEN 1", "stream", [(0, 0), (0, 0)]),
    ("XSETID K 9-9", "stream", [(0, 0), (0, 0)]),
    ("XGROUP CREATE K g2 0 MKSTREAM", "stream", [(0, 0), (0, 0)]),
    ("XGROUP DESTROY K g", "stream", [(0, 0), (0, 0)]),
    ("XGROUP SETID K g 0", "stream", [(0, 0), (0, 0)]),
    ("XGROUP CREATECONSUMER K g c", "stream", [(0, 0), (0, 0)]),
    ("XGROUP DELCONSUMER K g me", "stream", [(0, 0), (0, 0)]),
    ("XREADGROUP GROUP g me STREAMS K >", "stream", [(2, 0), (0, 1)]),
    ("XREADGROUP GROUP g me STREAMS K 0", "stream", [(2, 0), (0, 1)]),
    ("XREADGROUP GROUP last me BLOCK 1 STREAMS K >", "stream", [(2, 0), (0, 1)]),
    ("XREAD BLOCK 1 STREAMS K $", "stream", [(2, 0), (0, 2)]),
    ("XACK K g 1-1", "stream", [(1, 0), (0, 1)]),
    ("XCLAIM K g me 0 1-1", "stream", [(1, 0), (0, 1)]),
    ("XAUTOCLAIM K g me 0 0", "stream", [(1, 0), (0, 1)]),
    ("COPY K other", "str", [(1, 0), (0, 1)]),
    ("COPY K num", "str", [(1, 0), (0, 1)]),
    ("COPY K num REPLACE", "str", [(1, 0), (0, 1)]),
    ("DEL K num", "str", [(0, 0), (0, 0)]),
    ("UNLINK K num", "str", [(0, 0), (0, 0)]),
    ("EXPIRE K 100", "str", [(0, 0), (0, 0)]),
    ("EXPIRE K 100 XX", "str", [(0, 0), (0, 0)]),
    ("EXPIRE K -1", "str", [(0, 0), (0, 0)]),
    ("PEXPIREAT K 9999999999000", "str", [(0, 0), (0, 0)]),
    ("PERSIST K", "str", [(0, 0), (0, 0)]),
    ("MOVE K 1", "str", [(0, 0), (0, 0)]),
    ("RENAME K other", "str", [(0, 0), (0, 0)]),
    ("RENAMENX K num", "str", [(0, 0), (0, 0)]),
    ("SORT K ALPHA STORE other", "list", [(1, 0), (0, 1)]),
    ("SORT set BY w_* GET K STORE other", "w_*", [(7, 0), (4, 3)]),
    ("SORT set BY K->f STORE other", "h_*", [(2, 2), (1, 3)]),
    ("TOUCH K num", "str", [(2, 0), (1, 1)]),
    ("MEMORY USAGE K", "str", [(0, 0), (0, 0)]),
];

fn counted(client: &mut Client) -> Counts {
    let info = client.command(&["INFO", "stats"]).text().expect("INFO answers text");
    let field = |name: &str| {
        let line = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.and_then(|number| number.parse().ok()).unwrap_or_else(|| panic!("no {name} in {info}"))
    };
    (field("keyspace_hits"), field("keyspace_misses"))
}

fn assert_counts_lookups_as_redis_does(server: &Server, shown: &str) {
    let mut client = server.connect();
    for (command, key, expected) in LOOKUPS {
        let missing = if key.contains('*') { format!("no_{key}") } else { "none".to_owned() };
        for (key, expected) in [*key, &missing].into_iter().zip(expected) {
            ask(&mut client, "FLUSHALL");
            KEYS.iter().for_each(|line| _ = ask(&mut client, line));
            ask(&mut client, "CONFIG RESETSTAT");
            let words = command.split(' ').map(|word| match word {
                "K" => key.to_owned(),
                "K->f" => format!("{key}->f"),
                word => word.to_owned(),
            });
            client.command(&words.collect::<Vec<_>>());
            assert_eq!(counted(&mut client), *expected, "hits and misses of {command} on {key}, {shown}");
        }
    }
}

#[test]
fn commands_count_hits_and_misses_as_redis_does() {
    for layout in [(1, 1), (8, 1024)] {
        assert_counts_lookups_as_redis_does(&laid_out(layout), &format!("{layout:?}"));
    }
}

#[test]
fn redis_counts_hits_and_misses_as_this_says() {
    if has_reference("lookups") {
        assert_counts_lookups_as_redis_does(&Server::start_program(REFERENCE, &[]), REFERENCE);
    }
}
