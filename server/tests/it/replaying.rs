//! Several threads load an append-only file. Each key's commands run in order, and a command that reaches
//! further runs between all others.

use std::fs;

use crate::support::{
    Client,
    crowd::{ask, figure},
    dice::{Dice, seed},
    encode,
    home::Home,
};

const N_KEYS: usize = 400;
/// The number of commands on single keys in a row. One thread alone would run fewer.
const N_IN_A_ROW: usize = 4000;
const N_ROWS: usize = 12;

/// Returns a command on one key. The effect of most depends on the present value.
fn on_keys(dice: &mut Dice) -> Vec<String> {
    let key = |dice: &mut Dice, of: &str| format!("{of}:{}", dice.roll(N_KEYS));
    let number = dice.roll(1000).to_string();
    match dice.roll(14) {
        0 => vec!["SET".to_owned(), key(dice, "text"), number],
        1..=3 => vec!["APPEND".to_owned(), key(dice, "text"), number],
        4 => vec!["INCRBY".to_owned(), key(dice, "count"), number],
        5 => vec!["HSET".to_owned(), key(dice, "hash"), (dice.roll(20)).to_string(), number],
        6 => vec!["RPUSH".to_owned(), key(dice, "list"), number],
        7 => vec!["LPOP".to_owned(), key(dice, "list")],
        8 => vec!["ZINCRBY".to_owned(), key(dice, "zset"), number, dice.roll(20).to_string()],
        9 => vec!["SADD".to_owned(), key(dice, "set"), number],
        10 => vec!["SPOP".to_owned(), key(dice, "set")],
        11 => vec!["XADD".to_owned(), key(dice, "stream"), "*".to_owned(), "n".to_owned(), number],
        12 => vec!["DEL".to_owned(), key(dice, "text")],
        _ => vec!["MSET".to_owned(), key(dice, "text"), number],
    }
}

/// Returns commands that reach further. At another place in the order, each would have another effect.
fn reaching_further(dice: &mut Dice) -> Vec<String> {
    let lines = [
        "SELECT 3",
        "SELECT 0",
        "MOVE text:7 3",
        "SWAPDB 0 3",
        "COPY text:1 text:2 DB 3 REPLACE",
        "SUNIONSTORE set:1 set:2 set:3",
        "LMOVE list:1 list:2 LEFT RIGHT",
        "ZRANGESTORE zset:9 zset:8 0 -1",
        "SORT list:3 STORE list:4",
        "DEL text:11 list:11 set:11",
        "MSET text:12 some text:13 thing",
        "MULTI",
        "APPEND text:5 in",
        "APPEND text:6 in",
        "EXEC",
    ];
    let mut chosen: Vec<String> = lines.into_iter().map(str::to_owned).collect();
    chosen.push(
        "EVAL return{redis.call('append','text:8','a'),redis.call('append','text:9','b')} 0".to_owned(),
    );
    if dice.percent(20) {
        chosen.push("FLUSHDB".to_owned());
    }
    chosen
}

/// Sends commands in one piece, and reads their replies.
fn send(client: &mut Client, commands: &[Vec<String>]) {
    let mut out = Vec::new();
    commands.iter().for_each(|words| encode(words, &mut out));
    client.send_raw(&out);
    for _ in commands {
        client.receive();
    }
}

fn split(line: &str) -> Vec<String> {
    line.split(' ').map(str::to_owned).collect()
}

#[test]
fn a_loaded_log_gives_what_the_commands_gave_in_their_order() {
    for shards in ["1", "16", "1024"] {
        let home = Home::new();
        let args = ["--shards", shards, "--auto-aof-rewrite-percentage", "0", "--appendfsync", "no"];
        let server = home.serve(&args);
        let mut client = server.connect();
        let mut dice = Dice(seed());
        for _ in 0..N_ROWS {
            let row: Vec<_> = (0..N_IN_A_ROW).map(|_| on_keys(&mut dice)).collect();
            send(&mut client, &row);
            let further: Vec<_> = reaching_further(&mut dice).iter().map(|line| split(line)).collect();
            send(&mut client, &further);
        }
        let digest = ask(&mut client, "DEBUG DIGEST");
        assert_ne!(digest, format!("+{}", "0".repeat(40)), "something is there");
        server.stop();
        for _ in 0..3 {
            let server = home.serve(&args);
            assert_eq!(ask(&mut server.connect(), "DEBUG DIGEST"), digest, "{shards} shards");
            server.stop();
        }
    }
}

#[test]
fn a_command_that_cannot_be_run_is_named_with_its_place_behind_many_that_can() {
    let home = Home::new();
    let args = ["--auto-aof-rewrite-percentage", "0", "--aof-use-rdb-preamble", "no"];
    home.serve(&args).stop();
    let path = home.parts(".incr.aof").pop().expect("there is one");
    let mut log = Vec::new();
    for nth in 0..20_000 {
        encode(&["APPEND", &format!("key:{}", nth % 1000), "x"], &mut log);
    }
    let at = log.len();
    encode(&["NOSUCHCOMMAND", "key:1"], &mut log);
    encode(&["APPEND", "key:1", "y"], &mut log);
    fs::write(&path, &log).expect("it can be written");
    let refusal = home.refusal(&args);
    assert!(refusal.contains(&format!("at byte {at}: Unknown command 'NOSUCHCOMMAND'")), "{refusal}");
    // Without it everything is loaded, and failed commands are reported.
    log.truncate(at);
    encode(&["HSET", "key:1", "field", "value"], &mut log);
    fs::write(&path, &log).expect("it can be written");
    let server = home.serve(&args);
    let mut client = server.connect();
    assert_eq!(ask(&mut client, "STRLEN key:1"), ":20");
    assert_eq!(ask(&mut client, "DBSIZE"), ":1000");
    let told = "1 of 20001 commands of the append-only file have failed";
    assert!(server.log_tail().contains(told), "{}", server.log_tail());
}

/// With `panic` a failed command ends the start, as it ends redis-server. Otherwise it is counted.
#[test]
fn a_failed_command_ends_the_start_if_that_is_wanted() {
    let (home, _) = home_with(&["SET key 1", "LPUSH key x"]);
    let why = home.refusal(&["--propagation-error-behavior", "panic"]);
    assert!(why.contains("1 of 2 commands of the append-only file have failed"), "{why}");
    assert!(why.contains("'propagation-error-behavior' is 'panic'"), "{why}");
    for behavior in ["ignore", "panic-on-replicas"] {
        let server = home.serve(&["--propagation-error-behavior", behavior]);
        assert_eq!(figure(&mut server.connect(), "unexpected_error_replies"), 1, "{behavior}");
        server.stop();
    }
}

/// Returns a home whose append-only file has these commands. Also returns the length of the file before the
/// last one.
fn home_with(commands: &[&str]) -> (Home, usize) {
    let home = Home::new();
    home.serve(&[]).stop();
    let path = home.parts(".incr.aof").pop().expect("there is one");
    let (mut log, mut at) = (Vec::new(), 0);
    for line in commands {
        at = log.len();
        encode(&line.split(' ').collect::<Vec<_>>(), &mut log);
    }
    fs::write(path, log).expect("it can be written");
    (home, at)
}

/// SHUTDOWN used to end the start with code 0, and CLIENT PAUSE to hold all clients back. After a failed
/// SELECT everything was written to another database.
#[test]
fn a_command_that_no_append_only_file_has_ends_the_start_and_is_named() {
    for (line, name) in [
        ("SHUTDOWN NOSAVE", "'shutdown'"),
        ("shutdown", "'shutdown'"),
        ("CLIENT PAUSE 100000", "'client|pause'"),
        ("CONFIG SET maxmemory 1", "'config|set'"),
        ("DEBUG SLEEP 1", "'debug|sleep'"),
        ("DEBUG SEGFAULT", "'debug|segfault'"),
        ("SUBSCRIBE channel", "'subscribe'"),
        ("MONITOR", "'monitor'"),
        ("QUIT", "'quit'"),
        ("RESET", "'reset'"),
        ("HELLO 3", "'hello'"),
        ("AUTH password", "'auth'"),
        ("ACL SETUSER default off", "'acl|setuser'"),
        ("SAVE", "'save'"),
        ("BGSAVE", "'bgsave'"),
        ("BGREWRITEAOF", "'bgrewriteaof'"),
        ("WATCH key", "'watch'"),
        ("SELECT 16", "SELECT of a database beyond 'databases'"),
    ] {
        let (home, at) = home_with(&["SET key 1", line]);
        let why = home.try_serve(&[]).err().unwrap_or_else(|| panic!("it starts with {line}"));
        let told = format!("at byte {at}: {name}");
        assert!(why.contains(&told) && why.contains("appendonly.aof.1.incr.aof"), "{line}: {why}");
    }
    // It ends like any failed start.
    let (home, _) = home_with(&["SHUTDOWN NOSAVE"]);
    home.refusal(&[]);
}

#[test]
fn all_that_servers_log_is_loaded_and_what_does_no_harm_too() {
    let (home, _) = home_with(&[
        "SELECT 1",
        "MULTI",
        "SET key 1",
        "EXEC",
        "SELECT 0",
        "EVAL redis.call('incr','by-eval') 0",
        "SCRIPT LOAD redis.call('incr','by-evalsha')",
        "EVALSHA d888fb394323c14639cfd8de7b59eb80f3fe0bbb 0",
        "FUNCTION DELETE nosuch",
        "PUBLISH channel message",
        "SPUBLISH channel message",
        "PFCOUNT key",
        "RPUSH list a b",
        "BRPOPLPUSH list other 0",
        "BLPOP nosuch 0",
        "WAIT 1 0",
        "PING",
        "DEBUG POPULATE 3",
        "INCR last",
    ]);
    let server = home.serve(&[]);
    let mut client = server.connect();
    assert_eq!(ask(&mut client, "MGET by-eval last"), "[\"1\" \"1\"]");
    assert_eq!(ask(&mut client, "LRANGE other 0 -1"), "[\"b\"]");
    assert_eq!(ask(&mut client, "DBSIZE"), ":8");
}
