//! The source of the table: every command of Redis 7.0.15 on keys, by family. Each row has a way to write it
//! and a way to compare replies.
//!
//! `form.rs` explains the notation, and `pools.rs` contains its words. Commands that wait have a tiny
//! timeout. They are mostly sent between MULTI and EXEC, where they do not wait.

use super::same::{
    MILLIS, SECONDS,
    Same::{self, *},
};

/// Commands on one type of value, or of one purpose.
pub struct Family {
    /// Its name, which is also the name of its pool of keys.
    pub name: &'static str,
    pub rows: &'static [Row],
}

/// One way to write a command.
pub struct Row {
    pub form: &'static str,
    pub same: Same,
    /// The commands that must follow.
    pub follow_up: FollowUp,
    /// Whether it may wait.
    pub waits: bool,
    /// It must not be queued for EXEC: later versions alone might then refuse the result.
    pub is_never_queued: bool,
    /// Its words must not be altered: the result might be chance.
    pub is_fragile: bool,
}

/// The commands that follow a command. Without them, chance or a change in later versions would leave a
/// difference.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum FollowUp {
    None,
    /// Deletes its key, from which it has taken a random element.
    Delete,
    /// Makes all consumers of a group. Since 7.2 they are made when they ask, before only when they receive
    /// an entry.
    MakeConsumers,
    /// Makes a deleted consumer again, for the same reason.
    MakeConsumer,
}

impl Row {
    const fn then(self, follow_up: FollowUp) -> Row {
        Row { follow_up, is_fragile: true, ..self }
    }

    const fn waits(self) -> Row {
        Row { waits: true, is_fragile: true, ..self }
    }

    const fn never_queued(self) -> Row {
        Row { is_never_queued: true, is_fragile: true, ..self }
    }

    const fn fragile(self) -> Row {
        Row { is_fragile: true, ..self }
    }
}

const fn row(form: &'static str, same: Same) -> Row {
    Row {
        form,
        same,
        follow_up: FollowUp::None,
        waits: false,
        is_never_queued: false,
        is_fragile: matches!(same, Same::Cursor(_)),
    }
}

/// All families. The first row of each is a command that the others need.
pub const FAMILIES: &[Family] = &[
    Family { name: "string", rows: STRING },
    Family { name: "keys", rows: KEYS },
    Family { name: "transactions", rows: TRANSACTIONS },
    Family { name: "connection", rows: CONNECTION },
    Family { name: "bits", rows: BITS },
    Family { name: "list", rows: LIST },
    Family { name: "set", rows: SET },
    Family { name: "hash", rows: HASH },
    Family { name: "zset", rows: ZSET },
    Family { name: "hll", rows: HLL },
    Family { name: "geo", rows: GEO },
    Family { name: "stream", rows: STREAM },
    Family { name: "sort", rows: SORT },
];

const STRING: &[Row] = &[
    row("GET key", Letter),
    row("GET key", Letter),
    row("SET key value", Letter),
    row("SET key value", Letter),
    row("SET key value <[NX|XX] [GET] [EX secs|PX millis|EXAT at|PXAT atmillis|KEEPTTL]>", Letter),
    row("SET key value <[NX] [XX] [GET] [EX secs] [PX millis] [KEEPTTL]>", Letter),
    row("SETNX key value", Letter),
    row("SETEX key secs value", Letter),
    row("PSETEX key millis value", Letter),
    row("GETSET key value", Letter),
    row("GETDEL key", Letter),
    row("GETEX key [EX secs|PX millis|EXAT at|PXAT atmillis|PERSIST]", Letter),
    row("GETEX key <[EX secs] [PERSIST]>", Letter),
    row("MGET key+", Letter),
    row("MSET (key value)+", Letter),
    row("MSETNX (key value)+", Letter),
    row("APPEND key value", Letter),
    row("STRLEN key", Letter),
    row("GETRANGE key index index", Letter),
    row("SUBSTR key index index", Letter),
    row("SETRANGE key offset value", Letter),
    row("INCR key", Letter),
    row("DECR key", Letter),
    row("INCRBY key amount", Letter),
    row("DECRBY key amount", Letter),
    row("INCRBYFLOAT key float", Letter),
    row("LCS key key [LEN|<IDX [MINMATCHLEN int] [WITHMATCHLEN]>]", Letter),
    row("LCS key key <[LEN] [IDX]>", Letter),
];

const KEYS: &[Row] = &[
    row("DEL key+", Letter),
    row("UNLINK key+", Letter),
    row("EXISTS key+", Letter),
    row("TOUCH key+", Letter),
    row("TYPE key", Letter),
    row("RENAME key key", Letter),
    row("RENAMENX key key", Letter),
    row("COPY key key <[DB db] [REPLACE]>", Letter),
    row("MOVE key db", Letter),
    row("EXPIRE key secs [NX|XX|GT|LT]", Letter),
    row("PEXPIRE key millis [NX|XX|GT|LT]", Letter),
    row("EXPIREAT key at [NX|XX|GT|LT]", Letter),
    row("PEXPIREAT key atmillis <[NX] [XX] [GT] [LT]>", Letter),
    row("TTL key", Near(SECONDS)),
    row("PTTL key", Near(MILLIS)),
    row("EXPIRETIME key", Near(SECONDS)),
    row("PEXPIRETIME key", Near(MILLIS)),
    row("PERSIST key", Letter),
    row("KEYS glob", AnyOrder),
    row("RANDOMKEY", Random),
    row("SCAN 0 <[MATCH glob] [COUNT (1|5|1000)] [TYPE kind]>", Cursor(1)),
    row("SCAN ('abc'|1X|18446744073709551616)", Letter).fragile(),
    row("SCAN 0 <[MATCH glob] [COUNT (0|-1|X)] word>", Letter).fragile(),
    row("OBJECT ENCODING key", Encoding),
    row("OBJECT FREQ key", Letter),
    // Redis shares small integers, which have been idle since its start.
    row("OBJECT IDLETIME key", Near(3_600)),
    row("OBJECT REFCOUNT key", Random),
    // An expired key counts until a command meets it, and the servers meet it at different commands.
    row("DBSIZE", Near(4)),
    row("FLUSHDB [ASYNC|SYNC]", Letter),
    row("SWAPDB db db", Letter),
    row("SELECT db", Letter),
    row("SELECT 0", Letter),
    row("SELECT 0", Letter),
    row("SELECT 0", Letter),
];

const TRANSACTIONS: &[Row] = &[
    row("MULTI", Letter),
    row("MULTI", Letter),
    row("EXEC", Letter),
    row("EXEC", Letter),
    row("DISCARD", Letter),
    row("WATCH key+", Letter),
    row("WATCH key+", Letter),
    row("UNWATCH", Letter),
];

const CONNECTION: &[Row] = &[
    row("PING [value]", Letter),
    row("ECHO value", Letter),
    row("CLIENT SETNAME name", Letter),
    row("CLIENT GETNAME", Letter),
    row("CLIENT ID", Random),
    row("CLIENT INFO", Random),
    row("CLIENT GETREDIR", Letter),
    row("CLIENT UNBLOCK 0 [TIMEOUT|ERROR|word]", Letter),
    row("CLIENT NO-EVICT (ON|OFF|word)", Letter),
    row("HELLO (2|3)", Random).fragile(),
    row("HELLO (1|4|'abc'|2 word|3 SETNAME|3 AUTH 'default'|3 SETNAME name)", Random).fragile(),
    row("AUTH value", Letter),
    row("AUTH 'default' value", Letter),
    row("RESET", Letter),
    row("WAIT 0 0", Letter).fragile(),
    row("COMMAND GETKEYS command", LetterOr(NO_KEYS)).never_queued(),
    row("COMMAND GETKEYSANDFLAGS command", LetterOr(NO_KEYS)).never_queued(),
];

/// Later versions take a command without arguments for one to examine.
const NO_KEYS: &[&str] = &[
    "ERR The command has no key arguments",
    "ERR Invalid number of arguments specified for command",
    "ERR Invalid command specified",
];

/// Since 7.2 a range is checked even without a key.
const BIT_RANGE: Same = LetterOr(&["ERR value is not an integer or out of range", "ERR syntax error"]);

const BITS: &[Row] = &[
    row("SETBIT key bit bitvalue", Letter),
    row("GETBIT key bit", Letter),
    row("BITCOUNT key [index index [BYTE|BIT|word]]", BIT_RANGE),
    row("BITPOS key bitvalue [index [index [BYTE|BIT|word]]]", BIT_RANGE),
    row("BITOP (AND|OR|XOR) key key+", Letter),
    row("BITOP NOT key key+", Letter),
    row("BITFIELD key fieldop+", Letter),
    row("BITFIELD key SET bittype bitoffset amount OVERFLOW FAIL fieldop+", Letter),
    row("BITFIELD_RO key (GET bittype bitoffset)+", Letter),
    row("BITFIELD_RO key fieldop+", Letter),
    row("SET key value", Letter),
    row("GET key", Letter),
];

/// Since 7.2 the smallest number is invalid, because it has no positive counterpart.
const RANK: Same =
    LetterOr(&["ERR value is out of range, value must between -9223372036854775807 and 9223372036854775807"]);

const LIST: &[Row] = &[
    row("LPUSH key value+", Letter),
    row("RPUSH key value+", Letter),
    row("RPUSH key value+", Letter),
    row("LPUSHX key value+", Letter),
    row("RPUSHX key value+", Letter),
    row("LPOP key [count]", Letter),
    row("RPOP key [count]", Letter),
    row("LLEN key", Letter),
    row("LINDEX key index", Letter),
    row("LSET key index value", Letter),
    row("LRANGE key index index", Letter),
    row("LTRIM key index index", Letter),
    row("LREM key count value", Letter),
    row("LINSERT key (BEFORE|AFTER|word) value value", Letter),
    row("LPOS key value <[RANK int] [COUNT int] [MAXLEN int]>", RANK),
    row("LMOVE key key (LEFT|RIGHT) (LEFT|RIGHT|word)", Letter),
    row("RPOPLPUSH key key", Letter),
    row("LMPOP #(key+) (LEFT|RIGHT) [COUNT count]", Letter),
    row("BLPOP key+ timeout", Letter).waits(),
    row("BRPOP key+ timeout", Letter).waits(),
    row("BLMOVE key key (LEFT|RIGHT) (LEFT|RIGHT) timeout", Letter).waits(),
    row("BRPOPLPUSH key key timeout", Letter).waits(),
    row("BLMPOP timeout #(key+) (LEFT|RIGHT) [COUNT count]", Letter).waits(),
];

const SET: &[Row] = &[
    row("SADD key member+", Letter),
    row("SADD key member+", Letter),
    row("SADD key member+", Letter),
    row("SREM key member+", Letter),
    row("SISMEMBER key member", Letter),
    row("SMISMEMBER key member+", Letter),
    row("SMEMBERS key", AnyOrder),
    row("SCARD key", Letter),
    row("SPOP key [count]", Random).then(FollowUp::Delete),
    row("SRANDMEMBER key [count]", Random),
    row("SMOVE key key member", Letter),
    row("SINTER key+", AnyOrder),
    row("SUNION key+", AnyOrder),
    row("SDIFF key+", AnyOrder),
    row("SINTERSTORE key key+", Letter),
    row("SUNIONSTORE key key+", Letter),
    row("SDIFFSTORE key key+", Letter),
    row("SINTERCARD #(key+) [LIMIT int]", Letter),
    row("SSCAN key 0 <[MATCH glob] [COUNT (1|5|1000)]>", Cursor(2)),
    row("SSCAN key ('abc'|0 COUNT 0|0 word)", Letter).fragile(),
];

const HASH: &[Row] = &[
    row("HSET key (field value)+", Letter),
    row("HSET key (field value)+", Letter),
    row("HMSET key (field value)+", Letter),
    row("HSETNX key field value", Letter),
    row("HGET key field", Letter),
    row("HMGET key field+", Letter),
    row("HGETALL key", AnyOrderPairs),
    row("HKEYS key", AnyOrder),
    row("HVALS key", AnyOrder),
    row("HLEN key", Letter),
    row("HSTRLEN key field", Letter),
    row("HEXISTS key field", Letter),
    row("HDEL key field+", Letter),
    row("HINCRBY key field amount", Letter),
    row("HINCRBYFLOAT key field float", Letter),
    row("HRANDFIELD key [count [WITHVALUES]]", Random),
    row("HSCAN key 0 <[MATCH glob] [COUNT (1|5|1000)]>", Cursor(2)),
    row("HSCAN key ('abc'|0 COUNT 0|0 word)", Letter).fragile(),
];

const ZSET: &[Row] = &[
    row("ZADD key (score member)+", Letter),
    row("ZADD key (score member)+", Letter),
    row("ZADD key <[NX|XX] [GT|LT] [CH]> (score member)+", Letter),
    row("ZADD key <[NX] [XX] [GT] [LT] [CH] [INCR]> score member", Numbers),
    row("ZADD key INCR (score member)+", Numbers),
    row("ZADD lexkey (0 member)+", Letter).fragile(),
    row("ZADD lexkey (0 member)+", Letter).fragile(),
    row("ZINCRBY key score member", Numbers),
    row("ZREM key member+", Letter),
    row("ZREM lexkey member+", Letter).fragile(),
    row("ZSCORE key member", Numbers),
    row("ZMSCORE key member+", Numbers),
    row("ZCARD key", Letter),
    row("ZCOUNT key bound bound", Letter),
    row("ZLEXCOUNT lexkey lexbound lexbound", Letter).fragile(),
    // Since 7.2 they accept WITHSCORE.
    row("ZRANK key member", Letter).fragile(),
    row("ZREVRANK key member", Letter).fragile(),
    row("ZRANGE key index index <[REV] [WITHSCORES] [LIMIT index index]>", Numbers),
    row("ZRANGE key bound bound <BYSCORE [REV] [WITHSCORES] [LIMIT index index]>", Numbers),
    row("ZRANGE lexkey lexbound lexbound <BYLEX [REV] [WITHSCORES] [LIMIT index index]>", Letter).fragile(),
    row("ZRANGESTORE key key index index <[REV] [WITHSCORES] [LIMIT index index]>", Letter),
    row("ZRANGESTORE key key bound bound <BYSCORE [REV] [LIMIT index index]>", Letter),
    row("ZREVRANGE key index index [WITHSCORES|word]", Numbers),
    row("ZRANGEBYSCORE key bound bound <[WITHSCORES] [LIMIT index index]>", Numbers),
    row("ZREVRANGEBYSCORE key bound bound <[WITHSCORES] [LIMIT index index]>", Numbers),
    row("ZRANGEBYLEX lexkey lexbound lexbound [LIMIT index index]", Letter).fragile(),
    row("ZREVRANGEBYLEX lexkey lexbound lexbound [LIMIT index index]", Letter).fragile(),
    row("ZREMRANGEBYRANK key index index", Letter),
    row("ZREMRANGEBYSCORE key bound bound", Letter),
    row("ZREMRANGEBYLEX lexkey lexbound lexbound", Letter).fragile(),
    row("ZPOPMIN key [count]", Numbers),
    row("ZPOPMAX key [count]", Numbers),
    row("ZMPOP #(key+) (MIN|MAX) [COUNT count]", Numbers),
    row("BZPOPMIN key+ timeout", Numbers).waits(),
    row("BZPOPMAX key+ timeout", Numbers).waits(),
    row("BZMPOP timeout #(key+) (MIN|MAX) [COUNT count]", Numbers).waits(),
    row("ZUNION zinputs <[AGGREGATE (SUM|MIN|MAX|AVG)] [WITHSCORES]>", Numbers),
    row("ZINTER zinputs <[AGGREGATE (SUM|MIN|MAX|AVG)] [WITHSCORES]>", Numbers),
    row("ZDIFF #(key+) [WITHSCORES]", Numbers),
    row("ZUNIONSTORE key zinputs [AGGREGATE (SUM|MIN|MAX)]", Letter),
    row("ZINTERSTORE key zinputs [AGGREGATE (SUM|MIN|MAX)]", Letter),
    row("ZDIFFSTORE key #(key+)", Letter),
    row("ZINTERCARD #(key+) [LIMIT int]", Letter),
    row("ZRANDMEMBER key [count [WITHSCORES]]", Random),
    row("ZSCAN key 0 <[MATCH glob] [COUNT (1|5|1000)]>", Cursor(2)),
];

const HLL: &[Row] = &[
    row("PFADD key member+", Letter),
    row("PFADD key member+", Letter),
    row("PFADD key", Letter),
    row("PFCOUNT key+", Letter),
    row("PFMERGE key key+", Letter),
    row("SET key value", Letter),
    row("DEL key", Letter),
];

const GEO: &[Row] = &[
    row("GEOADD key <[NX|XX] [CH]> place+", Letter).fragile(),
    row("GEOADD key place+", Letter).fragile(),
    row("GEOADD key place+", Letter).fragile(),
    row("GEODIST key town town [unit]", Letter),
    row("GEOPOS key town+", Numbers),
    row("GEOHASH key town+", Letter),
    row(
        "GEOSEARCH key <(FROMMEMBER town|FROMLONLAT longitude latitude) (BYRADIUS radius unit|BYBOX radius radius unit)>",
        AnyOrder,
    ),
    row(
        "GEOSEARCH key <(FROMMEMBER town|FROMLONLAT longitude latitude) (BYRADIUS radius unit|BYBOX radius radius unit) (ASC|DESC) [COUNT count] [WITHCOORD] [WITHDIST] [WITHHASH]>",
        Numbers,
    ),
    row(
        "GEOSEARCH key <[FROMMEMBER town] [FROMLONLAT longitude latitude] [BYRADIUS radius unit] [BYBOX radius radius unit] (ASC|DESC)>",
        Letter,
    ),
    row("GEOSEARCH key <FROMMEMBER town BYRADIUS radius unit COUNT count ANY>", Random),
    row(
        "GEOSEARCHSTORE key key <(FROMMEMBER town|FROMLONLAT longitude latitude) (BYRADIUS radius unit|BYBOX radius radius unit) (ASC|DESC) [COUNT count] [STOREDIST]>",
        Letter,
    ),
    row(
        "GEORADIUS key longitude latitude radius unit <(ASC|DESC) [COUNT count] [WITHCOORD] [WITHDIST] [WITHHASH]>",
        Numbers,
    ),
    row(
        "GEORADIUS key longitude latitude radius unit <(ASC|DESC) [COUNT count] [STORE key] [STOREDIST distkey]>",
        Letter,
    ),
    row("GEORADIUS_RO key longitude latitude radius unit (ASC|DESC) [WITHDIST|STORE key]", Numbers),
    row("GEORADIUSBYMEMBER key town radius unit <(ASC|DESC) [COUNT count] [WITHCOORD] [WITHDIST]>", Numbers),
    row("GEORADIUSBYMEMBER key town radius unit (ASC|DESC) (STORE key|STOREDIST distkey)", Letter),
    row("GEORADIUSBYMEMBER_RO key town radius unit (ASC|DESC)", Letter),
    row("ZREM key town+", Letter),
];

const STREAM: &[Row] = &[
    row("XADD key newid (field value)+", Letter),
    row("XADD key newid (field value)+", Letter),
    row("XADD key newid (field value)+", Letter),
    row("XADD key [NOMKSTREAM] [MAXLEN [=] threshold|MINID [=] id] newid (field value)+", Letter),
    row("XLEN key", Letter),
    row("XRANGE key idfrom idto [COUNT count]", Letter),
    row("XREVRANGE key idto idfrom [COUNT count]", Letter),
    row("XDEL key id+", Letter),
    row("XTRIM key (MAXLEN [=|~] threshold|MINID [=|~] id) [LIMIT int]", Letter),
    row("XREAD [COUNT count] STREAMS streams", Letter).fragile(),
    row("XREAD [COUNT count] BLOCK 10 STREAMS streams", Letter).waits(),
    row("XSETID key setid [ENTRIESADDED int] [MAXDELETEDID id]", Letter).never_queued(),
    row("XGROUP CREATE key group groupid <[MKSTREAM] [ENTRIESREAD entriesread]>", Letter)
        .then(FollowUp::MakeConsumers),
    row("XGROUP CREATE key group 0 MKSTREAM", Letter).then(FollowUp::MakeConsumers),
    row("XGROUP CREATE key group 0 MKSTREAM", Letter).then(FollowUp::MakeConsumers),
    row("XGROUP CREATE key group 0 MKSTREAM", Letter).then(FollowUp::MakeConsumers),
    row("XGROUP SETID key group groupid [ENTRIESREAD entriesread]", Letter),
    row("XGROUP DESTROY key group", Letter),
    row("XGROUP CREATECONSUMER key group consumer", Letter),
    row("XGROUP DELCONSUMER key group consumer", Letter).then(FollowUp::MakeConsumer),
    row("XREADGROUP GROUP group consumer <[COUNT count] [NOACK]> STREAMS streams", Letter).fragile(),
    row("XREADGROUP GROUP group consumer [COUNT count] STREAMS key groupnews", Letter).fragile(),
    row("XREADGROUP GROUP group consumer [COUNT count] STREAMS key groupnews", Letter).fragile(),
    row("XACK key group id+", Letter),
    row("XPENDING key group", Letter),
    row("XPENDING key group [IDLE idle] idfrom idto count [consumer]", Pending),
    row(
        "XCLAIM key group consumer idle id+ <[IDLE idle] [RETRYCOUNT count] [FORCE] [JUSTID] [LASTID id]>",
        Letter,
    )
    .fragile(),
    row("XAUTOCLAIM key group consumer idle idfrom <[COUNT count] [JUSTID]>", Letter).fragile(),
    row("XINFO STREAM key", Clocks),
    row("XINFO STREAM key FULL [COUNT count]", Clocks),
    row("XINFO GROUPS key", Clocks),
    row("XINFO CONSUMERS key group", Clocks),
];

/// SORT by texts only, for the reason in `oracle.rs`.
const SORT: &[Row] = &[
    row("SORT key <[LIMIT index index] [ASC|DESC] ALPHA [GET get] [GET get]>", Letter),
    row("RPUSH key (int+|member+)", Letter),
    row("SADD key (int+|member+)", Letter),
    row("SORT key <BY by ALPHA>", AnyOrder).fragile(),
    row("SORT key <BY 'nosort' [GET get]>", AnyOrder).fragile(),
    row("SORT key <[LIMIT index index] [ASC|DESC] ALPHA STORE key>", Letter),
    row("SORT_RO key <[LIMIT index index] [ASC|DESC] ALPHA [STORE key]>", Letter),
    row("MSET (sortweight value)+", Letter),
    row("HSET 'sorthash' (field value)+", Letter),
    row("DEL key", Letter),
];
