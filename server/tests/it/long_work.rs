//! Commands whose work grows with their data: none of them runs long on an I/O thread.

use std::collections::BTreeSet;

use crate::support::{
    Client, Reply, Server,
    crowd::{ask, await_clients, figure, n_elements, until},
};
use braid_server::command::{Registered, TABLE, Work};

/// The number of elements of a large value.
const N_LARGE: usize = 40_000;

/// Every type of value in the cases, by the key that a case names.
const KEYS: [&str; 15] = [
    "set",
    "set2",
    "hash",
    "zset",
    "list",
    "stream",
    "geo",
    "bytes",
    "text",
    "text2",
    "hll",
    "long-list",
    "long-set",
    "long-hash",
    "long-zset",
];

/// A row of the table, and a command of it whose work grows with its keys.
const CASES: &[(&str, &str)] = &[
    ("get", "GET bytes"),
    ("set", "SET bytes x GET"),
    ("getset", "GETSET bytes x"),
    ("getdel", "GETDEL bytes"),
    ("getex", "GETEX bytes PERSIST"),
    ("mget", "MGET set bytes text"),
    ("append", "APPEND shared x"),
    ("setrange", "SETRANGE text 8000000 x"),
    ("setbit", "SETBIT text 64000000 1"),
    ("bitfield", "BITFIELD text SET u8 64000000 1"),
    ("getrange", "GETRANGE bytes 0 -1"),
    ("substr", "SUBSTR bytes 0 -1"),
    ("lcs", "LCS text text2 LEN"),
    ("digest", "DIGEST bytes"),
    ("delex", "DELEX bytes IFDEQ 0123456789abcdef"),
    ("bitcount", "BITCOUNT bytes"),
    ("bitpos", "BITPOS bytes 1 0 -1"),
    ("bitop", "BITOP NOT stored bytes"),
    ("pfcount", "PFCOUNT hll hll hll hll hll hll hll hll hll hll hll hll hll hll hll hll hll hll"),
    ("pfmerge", "PFMERGE stored hll hll hll hll hll hll hll hll hll hll hll hll hll hll hll hll hll hll"),
    ("smembers", "SMEMBERS set"),
    ("spop", "SPOP set 50000"),
    ("srandmember", "SRANDMEMBER set 50000"),
    ("srandmember", "SRANDMEMBER long-set"),
    ("spop", "SPOP long-set"),
    ("hrandfield", "HRANDFIELD long-hash"),
    ("hgetall", "HGETALL long-hash"),
    ("zrandmember", "ZRANDMEMBER long-zset"),
    ("zpopmin", "ZPOPMIN long-zset"),
    ("zpopmax", "ZPOPMAX long-zset"),
    ("zmpop", "ZMPOP 2 missing long-zset MIN"),
    ("bzmpop", "BZMPOP 0 2 missing long-zset MIN"),
    ("zrange", "ZRANGE long-zset 0 0"),
    ("lrange", "LRANGE long-list 0 0"),
    ("sinter", "SINTER set set2"),
    ("sintercard", "SINTERCARD 2 set set2"),
    ("sunioncard", "SUNIONCARD 2 set set2"),
    ("sdiffcard", "SDIFFCARD 2 set set2"),
    ("sinterstore", "SINTERSTORE stored set set2"),
    ("sunion", "SUNION set set2"),
    ("sunionstore", "SUNIONSTORE stored set set2"),
    ("sdiff", "SDIFF set set2"),
    ("sdiffstore", "SDIFFSTORE stored set set2"),
    ("sscan", "SSCAN set 0 COUNT 100000"),
    ("hget", "HGET long-fields field"),
    ("hmget", "HMGET long-fields missing field"),
    ("hgetall", "HGETALL hash"),
    ("hkeys", "HKEYS hash"),
    ("hvals", "HVALS hash"),
    ("hrandfield", "HRANDFIELD hash 50000"),
    ("hlen", "HLEN expired"),
    ("hscan", "HSCAN hash 0 COUNT 100000"),
    ("lpop", "LPOP list 50000"),
    ("lpop", "LPOP long-list"),
    ("rpop", "RPOP list 50000"),
    ("rpop", "RPOP long-list"),
    ("lmove", "LMOVE long-list stored LEFT LEFT"),
    ("lmovem", "LMOVEM long-list stored LEFT LEFT"),
    ("lmovem", "LMOVEM list stored LEFT LEFT COUNT 50000 OBO"),
    ("rpoplpush", "RPOPLPUSH long-list stored"),
    ("blmove", "BLMOVE long-list stored LEFT LEFT 0"),
    ("blmovem", "BLMOVEM long-list stored LEFT LEFT 0"),
    ("blmovem", "BLMOVEM list stored LEFT LEFT 0 COUNT 50000 BULK"),
    ("brpoplpush", "BRPOPLPUSH long-list stored 0"),
    ("blpop", "BLPOP missing long-list 0"),
    ("brpop", "BRPOP missing long-list 0"),
    ("bzpopmin", "BZPOPMIN missing long-zset 0"),
    ("bzpopmax", "BZPOPMAX missing long-zset 0"),
    ("lmpop", "LMPOP 2 missing list LEFT COUNT 50000"),
    ("lmpop", "LMPOP 2 missing long-list LEFT"),
    ("blmpop", "BLMPOP 0 2 missing long-list LEFT"),
    ("blmpop", "BLMPOP 0 2 missing list LEFT COUNT 50000"),
    ("lrange", "LRANGE list 0 -1"),
    ("lindex", "LINDEX pieces 30000"),
    ("lindex", "LINDEX long-elements 1"),
    ("lset", "LSET pieces 30000 x"),
    ("linsert", "LINSERT list BEFORE missing x"),
    ("lrem", "LREM list 0 missing"),
    ("ltrim", "LTRIM list 0 0"),
    ("lpos", "LPOS list missing"),
    ("zrange", "ZRANGE zset 0 -1"),
    ("zrevrange", "ZREVRANGE zset 0 -1"),
    ("zrangebyscore", "ZRANGEBYSCORE zset -inf +inf"),
    ("zrevrangebyscore", "ZREVRANGEBYSCORE zset +inf -inf"),
    ("zrangebylex", "ZRANGEBYLEX zset - +"),
    ("zrevrangebylex", "ZREVRANGEBYLEX zset + -"),
    ("zrangestore", "ZRANGESTORE stored zset 0 -1"),
    ("zremrangebyrank", "ZREMRANGEBYRANK zset 0 -1"),
    ("zremrangebyscore", "ZREMRANGEBYSCORE zset -inf +inf"),
    ("zremrangebylex", "ZREMRANGEBYLEX zset - +"),
    ("zpopmin", "ZPOPMIN zset 50000"),
    ("zpopmax", "ZPOPMAX zset 50000"),
    ("zmpop", "ZMPOP 2 missing zset MIN COUNT 50000"),
    ("bzmpop", "BZMPOP 0 2 missing zset MIN COUNT 50000"),
    ("zunion", "ZUNION 2 zset set"),
    ("zunionstore", "ZUNIONSTORE stored 2 zset set"),
    ("zinter", "ZINTER 2 zset set"),
    ("zintercard", "ZINTERCARD 2 zset set"),
    ("zinterstore", "ZINTERSTORE stored 2 zset set"),
    ("zdiff", "ZDIFF 2 zset set"),
    ("zdiffstore", "ZDIFFSTORE stored 2 zset set"),
    ("zrandmember", "ZRANDMEMBER zset 50000"),
    ("zscan", "ZSCAN zset 0 COUNT 100000"),
    ("geosearch", "GEOSEARCH geo FROMLONLAT 0 0 BYRADIUS 5000 KM"),
    ("geosearchstore", "GEOSEARCHSTORE stored geo FROMLONLAT 0 0 BYBOX 5000 5000 KM"),
    ("georadius", "GEORADIUS geo 0 0 5000 KM"),
    ("georadius_ro", "GEORADIUS_RO geo 0 0 5000 KM"),
    ("georadiusbymember", "GEORADIUSBYMEMBER geo member-1 5000 KM"),
    ("georadiusbymember_ro", "GEORADIUSBYMEMBER_RO geo member-1 5000 KM"),
    ("xadd", "XADD stream MAXLEN 1 999999-1 f v"),
    ("xtrim", "XTRIM stream MAXLEN 1"),
    ("xrange", "XRANGE stream - +"),
    ("xrevrange", "XREVRANGE stream + -"),
    ("xread", "XREAD STREAMS stream 0"),
    ("xreadgroup", "XREADGROUP GROUP group reader STREAMS stream 0"),
    ("xreadgroup", "XREADGROUP GROUP group other CLAIM 0 STREAMS stream >"),
    ("xpending", "XPENDING stream group IDLE 0 - + 50000"),
    ("xautoclaim", "XAUTOCLAIM stream group other 0 0 COUNT 50000"),
    ("xinfo|stream", "XINFO STREAM stream FULL COUNT 0"),
    ("xinfo|groups", "XINFO GROUPS groups"),
    ("xinfo|consumers", "XINFO CONSUMERS groups group-1"),
    ("xgroup|destroy", "XGROUP DESTROY stream group"),
    ("xgroup|delconsumer", "XGROUP DELCONSUMER stream group reader"),
    ("xdelex", "XDELEX groups DELREF IDS 2 1-1 2-1"),
    ("xackdel", "XACKDEL groups group-1 DELREF IDS 2 1-1 2-1"),
    ("sort", "SORT list"),
    ("sort_ro", "SORT_RO list"),
    ("copy", "COPY set stored REPLACE"),
    ("dump", "DUMP set"),
    ("debug|digest-value", "DEBUG DIGEST-VALUE set"),
];

/// Rows without a case of one line. Their tests are elsewhere in this file, or there is a reason for having
/// none.
const OTHERS: [(&str, &str); 4] = [
    ("restore", "a_large_payload_is_restored_elsewhere"),
    ("pfselftest", "a_self_test_is_long"),
    ("debug|digest", "runs over the whole keyspace, whatever its size"),
    ("debug|populate", "runs over the whole keyspace, whatever its size"),
];

fn grows(command: &Registered) -> bool {
    matches!(command.spec.work, Work::Grows { .. } | Work::Refused { .. })
}

fn add(client: &mut Client, name: &str, key: &str, n: usize, element: impl Fn(usize) -> Vec<String>) {
    for first in (0..n).step_by(500) {
        let elements = (first..n.min(first + 500)).flat_map(&element);
        let argv: Vec<String> = [name.to_owned(), key.to_owned()].into_iter().chain(elements).collect();
        let reply = client.command(&argv);
        assert!(!reply.is_error(), "{reply}");
    }
}

/// Makes the values of the cases, with `n` elements, under keys that begin with `prefix`.
fn make(client: &mut Client, prefix: &str, n: usize) {
    let key = |name: &str| format!("{prefix}:{name}");
    add(client, "SADD", &key("set"), n, |nth| vec![format!("member-{nth}")]);
    add(client, "SADD", &key("set2"), n, |nth| vec![format!("member-{}", nth + n / 2)]);
    add(client, "HSET", &key("hash"), n, |nth| vec![format!("field-{nth}"), nth.to_string()]);
    add(client, "ZADD", &key("zset"), n, |nth| vec!["1".to_owned(), format!("member-{nth}")]);
    add(client, "RPUSH", &key("list"), n, |nth| vec![nth.to_string()]);
    add(client, "GEOADD", &key("geo"), n, |nth| {
        vec![format!("{}.{nth}", nth % 9), "1".to_owned(), format!("member-{nth}")]
    });
    for nth in 0..n {
        let id = format!("{}-1", nth + 1);
        client.send(&["XADD", &key("stream"), &id, "field", "value"]);
    }
    (0..n).for_each(|_| assert!(!client.receive().is_error()));
    ask(client, &format!("XGROUP CREATE {} group 0", key("stream")));
    client.command(&["XREADGROUP", "GROUP", "group", "reader", "STREAMS", &key("stream"), ">"]);
    let long = |n: usize| "x".repeat(n);
    client.command(&["SET", &key("bytes"), &long(n * 70)]);
    client.command(&["RPUSH", &key("long-list"), &long(n * 70), "short", &long(n * 70)]);
    client.command(&["SADD", &key("long-set"), &long(n * 70), &long(n * 70 + 1)]);
    client.command(&["HSET", &key("long-hash"), &long(n * 70), "value"]);
    client.command(&["ZADD", &key("long-zset"), "1", &long(n * 70), "2", "short", "3", &long(n * 70 + 1)]);
    client.command(&["SET", &key("text"), &long(n / 10)]);
    client.command(&["SET", &key("text2"), &"y".repeat(n / 10)]);
    add(client, "PFADD", &key("hll"), n / 2, |nth| vec![nth.to_string()]);
}

/// Copies the values of a prefix to the keys that the cases use.
fn lay_out(client: &mut Client, prefix: &str, line: &str) {
    let is_named =
        |name: &str| line.split(' ').any(|word| word == name || word == "shared" && name == "bytes");
    for name in KEYS.into_iter().filter(|name| is_named(name)) {
        assert_eq!(ask(client, &format!("COPY {prefix}:{name} {name} REPLACE")), ":1", "{name}");
    }
    // Two keys share one blob, so a command that changes it must copy it.
    ask(client, "COPY bytes shared REPLACE");
    ask(client, "DEL stored");
}

/// Makes many groups and consumers, and a list in tiny pieces. Also a hash whose fields have all expired
/// except one.
fn make_rest(client: &mut Client, n: usize) {
    ask(client, "XADD groups 1-1 f v");
    ask(client, "XADD groups 2-1 f v");
    for nth in 0..n / 8 {
        client.send(&["XGROUP", "CREATE", "groups", &format!("group-{nth}"), "0"]);
    }
    (0..n / 8).for_each(|_| drop(client.receive()));
    for nth in 0..n / 8 {
        client.send(&["XGROUP", "CREATECONSUMER", "groups", "group-1", &format!("consumer-{nth}")]);
    }
    (0..n / 8).for_each(|_| drop(client.receive()));
    ask(client, "CONFIG SET list-max-listpack-size 1");
    add(client, "RPUSH", "pieces", n, |nth| vec![nth.to_string()]);
    ask(client, "CONFIG SET list-max-listpack-size -2");
    add(client, "HSET", "expired", n, |nth| vec![nth.to_string(), "v".to_owned()]);
    for first in (1..n).step_by(500) {
        let fields: Vec<String> = (first..n.min(first + 500)).map(|nth| nth.to_string()).collect();
        let head = ["HPEXPIRE", "expired", "1000000", "FIELDS"].map(str::to_owned);
        let argv: Vec<String> = head.into_iter().chain([fields.len().to_string()]).chain(fields).collect();
        assert!(!client.command(&argv).is_error());
    }
    let long = "x".repeat(n * 70);
    client.command(&["RPUSH", "long-elements", "short", &long, "short"]);
    client.command(&["HSET", "long-fields", "field", &long]);
    ask(client, "DEBUG SET-ACTIVE-EXPIRE 0");
    ask(client, "DEBUG ADVANCE-TIME 2000000");
}

fn server() -> Server {
    Server::start(&["--io-threads", "1", "--enable-debug-command", "yes"])
}

/// Returns how many commands were offloaded while `run` ran.
fn n_offloaded(client: &mut Client, run: impl FnOnce(&mut Client)) -> usize {
    let before = figure(client, "commands_offloaded");
    run(client);
    figure(client, "commands_offloaded") - before
}

fn run(client: &mut Client, line: &str) {
    let reply = client.command(&line.split(' ').collect::<Vec<_>>());
    assert!(!reply.is_error(), "{line}: {reply}");
}

fn run_in_multi(client: &mut Client, line: &str) {
    ask(client, "MULTI");
    ask(client, "PING");
    assert_eq!(ask(client, line), "+QUEUED", "{line}");
    match client.command(&["EXEC"]) {
        Reply::Array(replies) => assert!(!replies[1].is_error(), "{line}: {}", replies[1]),
        other => panic!("{line}: {other}"),
    }
}

#[test]
fn every_row_whose_work_grows_has_a_case() {
    let named: BTreeSet<&str> =
        CASES.iter().map(|(name, _)| *name).chain(OTHERS.iter().map(|(name, _)| *name)).collect();
    let growing: BTreeSet<&str> =
        TABLE.all().iter().filter(|command| grows(command)).map(|command| command.full_name).collect();
    assert_eq!(named, growing);
}

/// Runs the lines of cases on the values of a prefix, alone and in MULTI. Returns the lines that
/// `n_offloaded` finds wrong.
fn wrong_cases<'c>(
    client: &mut Client,
    prefix: &str,
    lines: impl Iterator<Item = &'c str>,
    is_wrong: fn(usize) -> bool,
) -> Vec<String> {
    let mut found = Vec::new();
    for line in lines {
        for (how, run) in [("alone", run as fn(&mut Client, &str)), ("in MULTI", run_in_multi)] {
            lay_out(client, prefix, line);
            if is_wrong(n_offloaded(client, |client| run(client, line))) {
                found.push(format!("{line} {how}"));
            }
        }
    }
    found
}

#[test]
fn no_command_over_a_large_value_runs_on_a_thread_that_serves_sockets() {
    let server = server();
    let mut client = server.connect();
    make(&mut client, "large", N_LARGE);
    make_rest(&mut client, N_LARGE);
    let lines = CASES.iter().map(|(_, line)| *line);
    let found = wrong_cases(&mut client, "large", lines, |n_offloaded| n_offloaded == 0);
    assert!(found.is_empty(), "These ran where sockets are served:\n{}", found.join("\n"));
}

#[test]
fn the_same_commands_over_small_values_run_where_they_are_read() {
    let server = server();
    let mut client = server.connect();
    make(&mut client, "small", 300);
    let named_otherwise = ["expired", "pieces", "groups", "shared", "8000000", "64000000", "hll hll"];
    let is_small = |line: &&str| !named_otherwise.iter().any(|word| line.contains(word));
    let lines = CASES.iter().map(|(_, line)| *line).filter(is_small);
    let found = wrong_cases(&mut client, "small", lines, |n_offloaded| n_offloaded != 0);
    assert!(found.is_empty(), "These were offloaded for nothing:\n{}", found.join("\n"));
}

/// A few elements used to be copied on I/O threads, however long they were.
#[test]
fn a_few_long_elements_are_read_elsewhere() {
    let server = server();
    let mut client = server.connect();
    make_rest(&mut client, N_LARGE);
    let lines =
        [("LINDEX long-elements 1", 1), ("LINDEX long-elements 0", 0), ("LRANGE long-elements 0 2", 1)];
    let lines = lines.into_iter().chain([("LRANGE long-elements 2 2", 0), ("HGET long-fields field", 1)]);
    for (line, n) in lines.chain([("HGET long-fields missing", 0), ("HMGET long-fields field field", 1)]) {
        assert_eq!(n_offloaded(&mut client, |client| run(client, line)), n, "{line}");
    }
    let long = "x".repeat(N_LARGE * 70);
    assert_eq!(client.command(&["HGET", "long-fields", "field"]).text(), Some(long.clone()));
    assert_eq!(client.command(&["LINDEX", "long-elements", "-2"]).text(), Some(long));
}

#[test]
fn a_self_test_is_long() {
    let server = server();
    let mut client = server.connect();
    assert_eq!(n_offloaded(&mut client, |client| run(client, "PFSELFTEST")), 1);
    assert_eq!(n_offloaded(&mut client, |client| run_in_multi(client, "PFSELFTEST")), 1);
}

/// A command that was refused under the hold and run again used to count its look-ups twice.
#[test]
fn what_is_read_elsewhere_counts_its_look_ups_once() {
    let server = server();
    let mut client = server.connect();
    make_rest(&mut client, N_LARGE);
    ask(&mut client, "SET short v");
    ask(&mut client, "RPUSH list v");
    client.command(&["SET", "long", &"x".repeat(N_LARGE * 70)]);
    for nth in 0..3 {
        client.command(&["SET", &format!("part{nth}"), &"x".repeat(N_LARGE * 10)]);
    }
    for (line, n_hits, n_misses) in [
        ("GET long", 1, 0),
        ("MGET short long missing list short long", 5, 1),
        ("MGET part0 part1 part2 missing", 3, 1),
        ("HGET long-fields field", 1, 0),
        ("HMGET long-fields field missing", 1, 0),
        ("LINDEX long-elements 1", 1, 0),
        ("LRANGE long-elements 0 -1", 1, 0),
    ] {
        assert_eq!(ask(&mut client, "CONFIG RESETSTAT"), "+OK");
        assert_eq!(n_offloaded(&mut client, |client| run(client, line)), 1, "{line}");
        let info = client.command(&["INFO", "stats"]).text().expect("INFO answers text");
        let counts = format!("keyspace_hits:{n_hits}\r\nkeyspace_misses:{n_misses}\r\n");
        assert!(info.contains(&counts), "{line}: {info}");
    }
}

#[test]
fn a_refused_mget_takes_back_only_the_look_ups_that_it_made() {
    let server = server();
    let mut client = server.connect();
    for nth in 0..8 {
        client.command(&["SET", &format!("part{nth}"), &"x".repeat(400_000)]);
    }
    let mut limited = server.connect();
    assert_eq!(
        client.command(&["CONFIG", "SET", "client-output-buffer-limit", "normal 1500000 0 0"]).to_string(),
        "+OK"
    );
    assert_eq!(ask(&mut client, "CONFIG RESETSTAT"), "+OK");
    // It is refused at the third key, because it is long. It ends at the fourth, because its reply exceeds
    // the limit.
    limited.send(&["MGET", "part0", "part1", "part2", "part3", "part4", "part5", "part6", "part7"]);
    // The reply exceeds the limit.
    assert_eq!(limited.await_close().expect("the connection ends"), None);
    let info = client.command(&["INFO", "stats"]).text().expect("INFO answers text");
    let hits = info.lines().find_map(|line| line.strip_prefix("keyspace_hits:")).expect("a field of INFO");
    assert!(hits.parse::<u64>().expect("a number") <= 8, "{hits}");
}

#[test]
fn a_large_payload_is_restored_elsewhere() {
    let server = server();
    let mut client = server.connect();
    add(&mut client, "SADD", "set", N_LARGE, |nth| vec![format!("member-{nth}")]);
    let Reply::Bulk(payload) = client.command(&["DUMP", "set"]) else { panic!("there is a value") };
    let argv: [&[u8]; 4] = [b"RESTORE", b"restored", b"0", &payload];
    let n = n_offloaded(&mut client, |client| assert_eq!(client.command(&argv).to_string(), "+OK"));
    assert_eq!(n, 1);
    assert_eq!(ask(&mut client, "SCARD restored"), format!(":{N_LARGE}"));
}

/// Copying a very long argument takes as long as copying a value of that size.
#[test]
fn a_very_long_argument_is_stored_elsewhere() {
    let server = server();
    let mut client = server.connect();
    let long = "x".repeat(9 << 20);
    let len = format!(":{}", long.len());
    let cases: [(&[&str], &str); 7] = [
        (&["SET", "string", &long], "STRLEN string"),
        (&["SET", "volatile", &long, "EX", "100", "NX"], "STRLEN volatile"),
        (&["MSET", "first", &long, "second", "x"], "STRLEN first"),
        (&["GETSET", "string", &long], "STRLEN string"),
        (&["APPEND", "appended", &long], "STRLEN appended"),
        (&["HSET", "hash", "field", &long], "HSTRLEN hash field"),
        (&["SETEX", "volatile", "100", &long], "STRLEN volatile"),
    ];
    for (argv, asked) in cases {
        let n = n_offloaded(&mut client, |client| {
            client.send(argv);
            client.send(&["PING"]);
            assert!(!client.receive().is_error(), "{}", argv[0]);
            assert_eq!(client.receive().to_string(), "+PONG", "{}", argv[0]);
        });
        assert!(n > 0, "{} ran where sockets are served", argv[0]);
        assert_eq!(ask(&mut client, asked), len, "{}", argv[0]);
        let n = n_offloaded(&mut client, |client| {
            ["MULTI", "PING"].iter().for_each(|name| client.send(&[name]));
            client.send(argv);
            ["PING", "EXEC"].iter().for_each(|name| client.send(&[name]));
            let replies: Vec<_> = (0..5).map(|_| client.receive()).collect();
            assert!(replies[..4].iter().all(|reply| !reply.is_error()));
            assert_eq!(n_elements(&replies[4]), 3, "{}", argv[0]);
        });
        assert!(n > 0, "{} in MULTI ran where sockets are served", argv[0]);
    }
}

/// Returns the number of pages that a thread of the server has been given so far.
fn n_pages_given(server: &Server, thread: &str) -> usize {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", server.pid())).expect("Linux tells");
    let stats = tasks.map(|task| {
        let stat = task.expect("Linux tells").path().join("stat");
        std::fs::read_to_string(stat).expect("the server's threads stay")
    });
    let name = format!("({thread})");
    let stat = stats.into_iter().find(|stat| stat.contains(&name)).expect("there is such a thread");
    let (_, fields) = stat.rsplit_once(')').expect("the name is in parentheses");
    fields.split_whitespace().nth(7).expect("the eighth after it").parse().expect("a number")
}

/// A page of new memory must be found and cleared before it can be written. On some machines this takes
/// milliseconds for a huge page.
#[test]
fn room_for_a_very_long_argument_is_made_elsewhere() {
    let server = server();
    let mut client = server.connect();
    assert_eq!(ask(&mut client, "PING"), "+PONG");
    let long: String = (0..8 << 20).map(|nth| format!("{:08}", nth % 99_999_989)).collect();
    let before = n_pages_given(&server, "io-0");
    assert_eq!(client.command(&["SET", "long", &long]).to_string(), "+OK");
    let n = n_pages_given(&server, "io-0") - before;
    assert!(n < long.len() / 4096 / 4, "{n} pages");
    assert_eq!(client.command(&["GET", "long"]).text(), Some(long));
}

#[test]
fn a_client_may_leave_while_room_is_made_for_it() {
    let server = server();
    let mut control = server.connect();
    assert_eq!(ask(&mut control, "DEBUG HOLD-HEAVY 1"), "+OK");
    let mut client = server.connect();
    assert_eq!(ask(&mut client, "CLIENT SETNAME sender"), "+OK");
    client.send_raw(b"*3\r\n$3\r\nSET\r\n$4\r\nlong\r\n$99999999\r\n");
    client.send_raw(&vec![b'x'; 512 * 1024]);
    let mut is_reading = || {
        let list = control.command(&["CLIENT", "LIST"]).text().expect("a list");
        let sender = list.lines().find(|line| line.contains("name=sender")).expect("it is connected");
        let field = |name: &str| {
            let text = sender.split(name).nth(1).and_then(|rest| rest.split(' ').next()).expect("a field");
            text.parse::<usize>().expect("a number")
        };
        field("qbuf=") + field("argv-mem=") < 256 * 1024
    };
    until("what has come was read", || !is_reading());
    drop(client);
    assert_eq!(ask(&mut control, "DEBUG HOLD-HEAVY 0"), "+OK");
    await_clients(&mut control, 1);
    assert_eq!(ask(&mut control, "EXISTS long"), ":0");
}

/// The work of a transaction adds up. Its commands may use another database, or values that earlier ones have
/// made.
#[test]
fn a_transaction_of_many_short_commands_is_long() {
    let server = server();
    let mut client = server.connect();
    ask(&mut client, "SELECT 3");
    add(&mut client, "SADD", "set", 3000, |nth| vec![format!("member-{nth}")]);
    ask(&mut client, "SELECT 0");
    let exec = |client: &mut Client, lines: &[&str]| {
        n_offloaded(client, |client| {
            ask(client, "MULTI");
            lines.iter().for_each(|line| assert_eq!(ask(client, line), "+QUEUED"));
            assert!(!client.command(&["EXEC"]).is_error());
        })
    };
    assert_eq!(exec(&mut client, &["SELECT 3", "SMEMBERS set", "SELECT 0"]), 0);
    assert_eq!(exec(&mut client, &["SELECT 3", "SMEMBERS set", "SMEMBERS set", "SELECT 0"]), 1);
    assert_eq!(
        exec(&mut client, &["SELECT 3", "RENAME set other", "SMEMBERS other", "SMEMBERS other", "SELECT 0"]),
        1
    );
}

/// Each command is short, but together they would keep the thread's other clients waiting.
#[test]
fn a_pipeline_of_short_commands_is_not_run_at_one_go() {
    let server = server();
    let mut client = server.connect();
    add(&mut client, "RPUSH", "list", 4000, |nth| vec![nth.to_string()]);
    let n = n_offloaded(&mut client, |client| {
        (0..32).for_each(|_| client.send(&["LRANGE", "list", "0", "-1"]));
        for _ in 0..32 {
            let Reply::Array(elements) = client.receive() else { panic!("a list") };
            assert_eq!(elements.len(), 4000);
        }
    });
    assert!(n > 0);
}

/// A client that asks for more elements than there are need not ask again, as in Redis. (A client that asks
/// for exactly this number may have to: the rest is empty, but has not been visited.)
#[test]
fn a_scan_visits_as_many_elements_as_it_was_told_to() {
    let server = server();
    let mut client = server.connect();
    add(&mut client, "SADD", "set", 2000, |nth| vec![nth.to_string(), "x".to_owned()]);
    add(&mut client, "HSET", "hash", 2000, |nth| vec![nth.to_string(), "x".to_owned()]);
    add(&mut client, "ZADD", "zset", 2000, |nth| vec!["1".to_owned(), nth.to_string()]);
    for (line, n_each) in [
        ("SSCAN set 0 COUNT 3000", 1),
        ("HSCAN hash 0 COUNT 2500", 2),
        ("HSCAN hash 0 COUNT 2500 NOVALUES", 1),
        ("ZSCAN zset 0 COUNT 2500", 2),
        ("ZSCAN zset 0 COUNT 2500 NOSCORES", 1),
    ] {
        let Reply::Array(parts) = client.command(&line.split(' ').collect::<Vec<_>>()) else {
            panic!("{line}")
        };
        assert_eq!(parts[0].to_string(), "\"0\"", "{line}");
        assert_eq!(
            n_elements(&parts[1]),
            if n_each == 1 && line.starts_with('S') { 2001 } else { 2000 * n_each }
        );
    }
}

#[test]
fn failed_passwords_are_counted() {
    let server = Server::start(&["--requirepass", "secret"]);
    let mut client = server.connect();
    for _ in 0..3 {
        assert!(client.command(&["AUTH", "wrong"]).is_error());
    }
    assert_eq!(ask(&mut client, "AUTH secret"), "+OK");
    let info = client.command(&["INFO", "stats"]).text().expect("INFO answers text");
    assert!(info.contains("acl_access_denied_auth:3\r\n"), "{info}");
}

/// A transaction's queue is input that is kept. A client that fills it beyond the limit is closed.
#[test]
fn a_queue_counts_against_the_query_buffer_limit() {
    let server = Server::start(&["--client-query-buffer-limit", "1mb"]);
    let mut client = server.connect();
    ask(&mut client, "MULTI");
    let value = "x".repeat(100_000);
    let mut n_queued = 0;
    while let Ok(reply) = client.try_command(&["SET", "key", &value]) {
        assert_eq!(reply.to_string(), "+QUEUED");
        n_queued += 1;
        assert!(n_queued < 20, "the queue has no bound");
    }
    assert!(n_queued >= 8, "{n_queued} of a tenth of the limit each");
    assert_eq!(ask(&mut server.connect(), "EXISTS key"), ":0");
}
