//! The append-only file: confirmed data is there after the server was killed, whatever else happens
//! meanwhile.

use std::{
    fs::{self, OpenOptions},
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
};

use crate::support::{
    Client, Server,
    crowd::{ask, figure, until},
    dice::{Dice, seed},
    home::Home,
    reference::has_reference,
};
use braid_protocol::request::write_request;

const N_CLIENTS: usize = 4;
const N_ACCOUNTS: usize = 8;

/// Counts and moves sums between accounts until the server is gone. Returns the last count.
fn work(client: &mut Client, nth: usize, n_done: &AtomicUsize) -> i64 {
    let (counter, mut counted) = (format!("counter:{nth}"), 0);
    loop {
        let Ok(reply) = client.try_command(&["INCR", &counter]) else { return counted };
        counted = reply.integer().expect("it counts");
        let from = format!("account:{}", counted as usize % N_ACCOUNTS);
        let to = format!("account:{}", (counted as usize + nth + 1) % N_ACCOUNTS);
        for words in [&["MULTI"][..], &["DECRBY", &from, "5"], &["INCRBY", &to, "5"], &["EXEC"]] {
            if client.try_command(words).is_err() {
                return counted;
            }
        }
        n_done.fetch_add(1, Ordering::Relaxed);
    }
}

/// Lets clients write, kills the server meanwhile, and checks the data of the next one.
fn kill_under_writes(home: &Home, args: &[&str], rewrites: bool) {
    let server = home.serve(args);
    let before: Vec<i64> = counters(&mut server.connect());
    let (n_done, is_over) = (AtomicUsize::new(0), AtomicBool::new(false));
    let counted: Vec<i64> = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..N_CLIENTS)
            .map(|nth| {
                let (mut client, n_done) = (server.connect(), &n_done);
                scope.spawn(move || work(&mut client, nth, n_done))
            })
            .collect();
        if rewrites {
            let (mut client, is_over) = (server.connect(), &is_over);
            scope.spawn(move || {
                while !is_over.load(Ordering::Relaxed) && client.try_command(&["BGREWRITEAOF"]).is_ok() {}
            });
        }
        until("clients have done something", || n_done.load(Ordering::Relaxed) > 200);
        if rewrites {
            let mut client = server.connect();
            until("it is rewritten", || figure(&mut client, "aof_rewrites") > 2);
        }
        is_over.store(true, Ordering::Relaxed);
        server.stop();
        clients.into_iter().map(|client| client.join().expect("it ends with the server")).collect()
    });
    let server = home.serve(args);
    let mut client = server.connect();
    for ((nth, after), (counted, before)) in
        counters(&mut client).into_iter().enumerate().zip(counted.into_iter().zip(before))
    {
        // One more may have run without a reply.
        let (least, most) = (counted.max(before), counted.max(before) + 1);
        // Under `everysec` no reply waits for its record during a sync.
        let least = if args.contains(&"everysec") { before } else { least };
        assert!(
            (least..=most).contains(&after),
            "client {nth} has counted to {counted}, and {after} is there"
        );
    }
    let accounts = (0..N_ACCOUNTS).map(|nth| number(&mut client, &format!("account:{nth}")));
    assert_eq!(accounts.sum::<i64>(), 0, "a transaction was torn");
    server.stop();
}

fn number(client: &mut Client, key: &str) -> i64 {
    client.command(&["GET", key]).text().map_or(0, |text| text.parse().expect("a number was written"))
}

fn counters(client: &mut Client) -> Vec<i64> {
    (0..N_CLIENTS).map(|nth| number(client, &format!("counter:{nth}"))).collect()
}

#[test]
fn what_was_answered_outlives_a_kill() {
    for fsync in ["everysec", "always", "no"] {
        for (threads, shards) in [("1", "1"), ("4", "64")] {
            let home = Home::new();
            let args = ["--appendfsync", fsync, "--io-threads", threads, "--shards", shards];
            for _ in 0..3 {
                kill_under_writes(&home, &args, false);
            }
        }
    }
}

#[test]
fn what_was_answered_outlives_a_kill_while_the_file_is_rewritten() {
    for fsync in ["everysec", "always", "no"] {
        let home = Home::new();
        for _ in 0..3 {
            kill_under_writes(&home, &["--appendfsync", fsync, "--io-threads", "4"], true);
        }
        // A base that no manifest named before the kill gives its place to the next.
        assert!((1..=2).contains(&home.parts(".base.rdb").len()));
        assert!(home.parts(".rdb").iter().all(|path| !path.to_string_lossy().contains("temp-")));
    }
}

#[test]
fn all_that_was_done_is_there_again() {
    let home = Home::new();
    let server = home.serve(&[]);
    let mut client = server.connect();
    ask(&mut client, "SET text value PX 100000000");
    ask(&mut client, "RPUSH list a b c");
    ask(&mut client, "LPOP list");
    ask(&mut client, "SET gone value PX 5");
    ask(&mut client, "DEBUG ADVANCE-TIME 10");
    ask(&mut client, "RPUSH gone again");
    ask(&mut client, "SELECT 9");
    ask(&mut client, "ZADD sorted 1 a 2 b");
    ask(&mut client, "XADD stream * field value");
    ask(&mut client, "XGROUP CREATE stream group 0");
    ask(&mut client, "XREADGROUP GROUP group me STREAMS stream >");
    client.command(&["EVAL", "redis.call('HSET', 'hash', 'f', 'v') redis.call('SADD', 'set', 1, 2)", "0"]);
    client.command(&[
        "FUNCTION",
        "LOAD",
        "#!lua name=lib\nredis.register_function('f', function() return 7 end)",
    ]);
    let (digest, list) = (ask(&mut client, "DEBUG DIGEST"), ask(&mut client, "FUNCTION LIST"));
    let mut waiting = server.connect();
    waiting.send(&["BLPOP", "queue", "0"]);
    until("it waits", || figure(&mut client, "blocked_clients") == 1);
    ask(&mut client, "SELECT 0");
    ask(&mut client, "RPUSH queue served");
    assert_eq!(waiting.receive().to_string(), "[\"queue\" \"served\"]");
    server.stop();
    for rewrites in [true, false] {
        let server = home.serve(&[]);
        let mut client = server.connect();
        assert_eq!(ask(&mut client, "DEBUG DIGEST"), digest);
        assert_eq!(ask(&mut client, "FUNCTION LIST"), list);
        assert_eq!(ask(&mut client, "EXISTS queue"), ":0");
        assert_eq!(ask(&mut client, "DEBUG LOADAOF"), "+OK");
        assert_eq!(ask(&mut client, "DEBUG DIGEST"), digest);
        assert_eq!(ask(&mut client, "FUNCTION LIST"), list);
        if rewrites {
            ask(&mut client, "BGREWRITEAOF");
            until("it is rewritten", || figure(&mut client, "aof_rewrites") == 1);
            assert_eq!((home.parts(".base.rdb").len(), home.parts(".incr.aof").len()), (1, 1));
        }
        server.stop();
    }
}

#[test]
fn a_torn_end_is_dropped_and_damage_is_refused() {
    let home = Home::new();
    let server = home.serve(&[]);
    let mut client = server.connect();
    ask(&mut client, "SET first 1");
    ask(&mut client, "MULTI");
    ask(&mut client, "SET second 1");
    ask(&mut client, "SET third 1");
    ask(&mut client, "EXEC");
    server.stop();
    let increment = home.parts(".incr.aof").pop().expect("there is one");
    let whole = fs::read(&increment).expect("it can be read");
    let file = OpenOptions::new().write(true).open(&increment).expect("it can be written");
    file.set_len(whole.len() as u64 - 3).expect("it can be cut");
    let refusal = home.refusal(&["--aof-load-truncated", "no"]);
    assert!(refusal.contains("ends in the middle of what begins at byte"), "{refusal}");
    // Twice: dropped data must not come back.
    for _ in 0..2 {
        let server = home.serve(&[]);
        let mut client = server.connect();
        assert_eq!(ask(&mut client, "EXISTS first second third"), ":1");
        ask(&mut client, "SET fourth 1");
        server.stop();
    }
    let at = whole.len() / 2 - 10;
    // A later frame says that it was synced.
    let server = home.serve(&[]);
    let mut client = server.connect();
    ask(&mut client, "CONFIG SET appendfsync always");
    ask(&mut client, "SET fifth 1");
    ask(&mut client, "SET sixth 1");
    server.stop();
    let mut longer = fs::read(&increment).expect("it can be read");
    longer[at] ^= 4;
    fs::write(&increment, &longer).expect("it can be written");
    let refusal = home.refusal(&[]);
    assert!(refusal.contains("is damaged at byte"), "{refusal}");
}

/// It used to be taken for a torn end if no later frame called it safe.
#[test]
fn damage_in_a_file_that_was_closed_is_refused_however_it_was_synced() {
    for fsync in ["no", "everysec", "always"] {
        let home = Home::new();
        let args = ["--appendfsync", fsync];
        let mut server = home.serve(&args);
        let mut client = server.connect();
        for n in 0..100 {
            assert_eq!(ask(&mut client, &format!("RPUSH list element-{n}")), format!(":{}", n + 1));
        }
        client.send(&["SHUTDOWN"]);
        assert!(server.await_end().success());
        let increment = home.parts(".incr.aof").pop().expect("there is one");
        let mut whole = fs::read(&increment).expect("it can be read");
        let element = b"element-50";
        let at = whole.windows(element.len()).position(|window| window == element).expect("it is there");
        whole[at] ^= 1;
        fs::write(&increment, &whole).expect("it can be written");
        let refusal = home.try_serve(&args).err().unwrap_or_else(|| panic!("{fsync}: it has started"));
        assert!(refusal.contains("is damaged at byte"), "{fsync}: {refusal}");
        assert_eq!(fs::read(&increment).expect("it can be read"), whole, "it is left alone");
    }
}

/// A base of commands has pending entries that were deleted or trimmed. The figures of the stream stay as
/// they were.
#[test]
fn pending_entries_that_are_gone_are_in_a_base_of_commands() {
    let home = Home::new();
    let server = home.serve(&["--aof-use-rdb-preamble", "no"]);
    let mut client = server.connect();
    for (nth, harm) in [
        "XTRIM stream MAXLEN 0",
        "XTRIM stream MAXLEN 2",
        "XTRIM stream MAXLEN 5",
        "XDEL stream 2-1 4-1",
        "XDEL stream 8-1",
        "XTRIM stream MAXLEN 6;XDEL stream 4-1",
    ]
    .into_iter()
    .enumerate()
    {
        ask(&mut client, "DEL stream");
        (1..=8).for_each(|n| drop(ask(&mut client, &format!("XADD stream {n}-1 field value"))));
        ask(&mut client, "XGROUP CREATE stream group 0");
        ask(&mut client, "XREADGROUP GROUP group reader COUNT 5 STREAMS stream >");
        harm.split(';').for_each(|harm| drop(ask(&mut client, harm)));
        ask(&mut client, "BGREWRITEAOF");
        until("it is rewritten", || figure(&mut client, "aof_rewrites") == nth + 1);
        let mut look = || {
            let pending = ask(&mut client, "XPENDING stream group");
            assert!(pending.starts_with("[:5 "), "{pending}");
            let whole = ask(&mut client, "XINFO STREAM stream");
            // The layout of the entries in memory may change.
            let known = ["length", "last-generated-id", "max-deleted-entry-id", "entries-added"];
            let words: Vec<&str> = whole.split_whitespace().collect();
            let told = known.map(|name| {
                let at = words.iter().position(|word| *word == format!("\"{name}\"")).expect("it is told");
                words[at + 1].to_owned()
            });
            let group = ask(&mut client, "XINFO GROUPS stream");
            (pending, told, group, ask(&mut client, "XRANGE stream - +"))
        };
        let before = look();
        assert_eq!(ask(&mut server.connect(), "DEBUG LOADAOF"), "+OK");
        assert_eq!(look(), before, "{harm}");
    }
}

/// A stop of the server waits for a script that has written half of its data. If the script takes too long,
/// none of its writes are there afterwards. It used to be cut off, with half of it logged.
#[test]
fn a_script_that_runs_when_the_server_stops_is_there_whole_or_not_at_all() {
    const HALF: &str =
        "redis.call('SET', 'first', 1) for n = 1, tonumber(ARGV[1]) do end redis.call('SET', 'second', 1)";
    for (n_turns, threshold, is_there) in [("300000000", "60000", true), ("1000000000000", "10", false)] {
        for in_transaction in [false, true] {
            let home = Home::new();
            let mut server = home.serve(&["--busy-reply-threshold", "10"]);
            let (mut caller, mut control) = (server.connect(), server.connect());
            if in_transaction {
                caller.send(&["MULTI"]);
                caller.send(&["SET", "before", "1"]);
            }
            caller.send(&["EVAL", HALF, "0", n_turns]);
            if in_transaction {
                caller.send(&["SET", "behind", "1"]);
                caller.send(&["EXEC"]);
            }
            until("it runs", || ask(&mut control, "GET first").starts_with("-BUSY"));
            assert!(ask(&mut control, "SHUTDOWN").starts_with("-BUSY"), "it would wait");
            assert_eq!(ask(&mut control, &format!("CONFIG SET busy-reply-threshold {threshold}")), "+OK");
            control.send(&["SHUTDOWN", "NOSAVE"]);
            assert!(server.await_end().success());
            let server = home.serve(&[]);
            let n = if is_there { 2 + 2 * usize::from(in_transaction) } else { 0 };
            assert_eq!(ask(&mut server.connect(), "EXISTS first second before behind"), format!(":{n}"));
        }
    }
}

#[test]
fn it_begins_with_the_snapshot_that_is_there() {
    let home = Home::new();
    let path = home.path().to_str().expect("it is UTF-8");
    let server = Server::start(&["--dir", path]);
    let mut client = server.connect();
    ask(&mut client, "SET key value");
    ask(&mut client, "SAVE");
    server.stop();
    for _ in 0..2 {
        let server = home.serve(&[]);
        let mut client = server.connect();
        assert_eq!(ask(&mut client, "GET key"), "\"value\"");
        ask(&mut client, "INCR starts");
        server.stop();
    }
    let server = home.serve(&[]);
    assert_eq!(ask(&mut server.connect(), "GET starts"), "\"2\"");
}

#[test]
fn the_single_file_of_an_older_server_is_taken_over() {
    let home = Home::new();
    let commands = "*3\r\n$5\r\nRPUSH\r\n$4\r\nlist\r\n$3\r\nfoo\r\n*3\r\n$8\r\nEXPIREAT\r\n$4\r\nlist\r\n$4\r\n1000\r\n\
                    *3\r\n$5\r\nRPUSH\r\n$4\r\nlist\r\n$3\r\nbar\r\n*3\r\n$3\r\nSET\r\n$3\r\nkey\r\n$1\r\n1\r\n";
    fs::write(home.path().join("appendonly.aof"), commands).expect("it can be written");
    for _ in 0..2 {
        let server = home.serve(&[]);
        let mut client = server.connect();
        // The list had expired, with everything that was added to it.
        assert_eq!(ask(&mut client, "EXISTS list key"), ":1");
        ask(&mut client, "INCR key");
        server.stop();
    }
    let server = home.serve(&[]);
    assert_eq!(ask(&mut server.connect(), "GET key"), "\"3\"");
}

/// Commands of all kinds: on one key and on several, across databases, in transactions and scripts. Some use
/// values that are too large for an I/O thread.
fn all_kinds(dice: &mut Dice) -> Vec<Vec<String>> {
    let mut said: Vec<Vec<String>> = Vec::new();
    let mut say = |line: String| said.push(line.split(' ').map(str::to_owned).collect());
    let large = "x".repeat(600_000);
    for nth in 0..3000 {
        let (a, b) = (dice.roll(200), dice.roll(200));
        match dice.roll(24) {
            0..4 => say(format!("SET s{a} {nth}")),
            4 => say(format!("HSET h{a} f{b} {nth} g{nth} v")),
            5 => say(format!("RPUSH l{a} {nth} {b}")),
            6 => say(format!("ZADD z{a} {b} m{nth}")),
            7 => say(format!("SADD t{a} m{b}")),
            8 => say(format!("XADD x{a} {}-1 f v", nth + 1)),
            9 => say(format!("INCRBY n{a} {b}")),
            10 => say(format!("DEL s{a} s{b} h{b}")),
            11 => say(format!("MSET s{a} 1 s{b} 2")),
            12 => say(format!("RENAME l{a} l{b}")),
            13 => say(format!("SUNIONSTORE t{a} t{b} t{a}")),
            14 => say(format!("SELECT {}", dice.roll(3))),
            15 => say(format!("PEXPIREAT s{a} 9999999999999")),
            16 => say(format!("MOVE n{a} 2")),
            17 if nth % 7 == 0 => say(format!("SWAPDB 0 {}", 1 + dice.roll(2))),
            18 if nth % 40 == 0 => say("FLUSHDB".to_owned()),
            19 => {
                for line in [
                    "MULTI",
                    &format!("INCR n{a}"),
                    &format!("SELECT {}", dice.roll(3)),
                    &format!("SET s{b} 1"),
                    "EXEC",
                ] {
                    say(line.to_owned());
                }
            }
            20 if nth % 5 == 0 => {
                say(format!("APPEND large{} {large}", a % 3));
                say(format!("SETRANGE large{} 2000000 {nth}", b % 3));
                // Redis logs this verbatim. For clients, only other threads read such a value.
                say(format!("SET large{} {nth} GET", (a + b) % 5));
            }
            21 => said_script(&mut say, a, b),
            _ => say(format!(
                "LPUSH long {}",
                (0..100).map(|n| (n * nth).to_string()).collect::<Vec<_>>().join(" ")
            )),
        }
    }
    say("LTRIM long 5 -100".to_owned());
    said
}

fn said_script(say: &mut impl FnMut(String), a: usize, b: usize) {
    say(format!(
        "EVAL return{{redis.call('SET',KEYS[1],ARGV[1]),redis.call('INCR',KEYS[2])}} 2 s{a} n{b} {a}"
    ));
}

/// A file of Redis, without frames, has the effect of its commands, for any number of shards.
#[test]
fn commands_of_all_kinds_come_to_the_same_when_they_are_loaded() {
    let seed = seed();
    println!("BRAID_SEED={seed}");
    let commands = all_kinds(&mut Dice(seed));
    let server = Server::start(&[]);
    let mut client = server.connect();
    let mut bytes = Vec::new();
    for words in &commands {
        let reply = client.command(words);
        let may_fail = ["RENAME", "MOVE", "EVAL", "INCR", "INCRBY"].contains(&&*words[0]);
        assert!(may_fail || !reply.is_error(), "{words:?}: {reply}");
        write_request(&mut bytes, words);
    }
    let expected = ask(&mut client, "DEBUG DIGEST");
    for shards in ["1", "1024"] {
        let home = Home::new();
        let folder = home.path().join("appendonlydir");
        fs::create_dir(&folder).expect("the folder is the test's own");
        fs::write(folder.join("appendonly.aof.1.incr.aof"), &bytes).expect("the folder is the test's own");
        fs::write(folder.join("appendonly.aof.manifest"), "file appendonly.aof.1.incr.aof seq 1 type i\n")
            .expect("the folder is the test's own");
        let loaded = home.serve(&["--shards", shards]);
        assert_eq!(ask(&mut loaded.connect(), "DEBUG DIGEST"), expected);
    }
}

#[test]
fn redis_server_goes_on_with_it_and_braid_with_what_that_adds() {
    if !has_reference("redis_server_goes_on_with_it_and_braid_with_what_that_adds") {
        return;
    }
    let home = Home::new();
    let server = home.serve(&[]);
    let mut client = server.connect();
    ask(&mut client, "SET key 1");
    ask(&mut client, "BGREWRITEAOF");
    until("it is rewritten", || figure(&mut client, "aof_rewrites") == 1);
    ask(&mut client, "INCR key");
    server.stop();
    let path = home.path().to_str().expect("it is UTF-8");
    let redis = Server::start_program(
        "redis-server",
        &["--dir", path, "--appendonly", "yes", "--appendfsync", "always"],
    );
    assert_eq!(ask(&mut redis.connect(), "INCR key"), ":3");
    redis.stop();
    let server = home.serve(&[]);
    assert_eq!(ask(&mut server.connect(), "INCR key"), ":4");
}

#[test]
fn it_is_turned_on_and_off_while_clients_write() {
    for fsync in ["always", "no"] {
        let home = Home::new();
        let args = ["--appendfsync", fsync, "--io-threads", "4"];
        let server = home.serve(&[&args[..], &["--appendonly", "no"]].concat());
        let n_done = AtomicUsize::new(0);
        let counted: Vec<i64> = std::thread::scope(|scope| {
            let clients: Vec<_> = (0..N_CLIENTS)
                .map(|nth| {
                    let (mut client, n_done) = (server.connect(), &n_done);
                    scope.spawn(move || work(&mut client, nth, n_done))
                })
                .collect();
            let mut client = server.connect();
            for wanted in ["yes", "no", "yes", "no", "yes"] {
                assert_eq!(ask(&mut client, &format!("CONFIG SET appendonly {wanted}")), "+OK");
                // If it is turned on again before it has ended, it simply continues.
                until("it has begun or ended", || {
                    let persistence = ask(&mut client, "INFO persistence");
                    persistence.contains("aof_current_size") == (wanted == "yes")
                        && persistence.contains("aof_rewrite_in_progress:0")
                });
                let before = n_done.load(Ordering::Relaxed);
                until("clients go on", || n_done.load(Ordering::Relaxed) > before + 20);
            }
            assert_eq!(figure(&mut client, "aof_rewrites"), 3);
            server.stop();
            clients.into_iter().map(|client| client.join().expect("it ends with the server")).collect()
        });
        let server = home.serve(&args);
        let mut client = server.connect();
        for (after, counted) in counters(&mut client).into_iter().zip(counted) {
            assert!((counted..=counted + 1).contains(&after), "{counted} were counted, and {after} is there");
        }
        let accounts = (0..N_ACCOUNTS).map(|nth| number(&mut client, &format!("account:{nth}")));
        assert_eq!(accounts.sum::<i64>(), 0, "a transaction was torn");
        assert_eq!((home.parts(".base.rdb").len(), home.parts(".incr.aof").len()), (1, 1));
    }
}

/// Replies that wait for the disk and others that do not, while a write does not end.
#[test]
fn under_always_only_reads_of_what_is_not_on_disk_wait_for_it() {
    for (threads, shards) in [("1", "1"), ("4", "64")] {
        let home = Home::new();
        let server = home.serve(&["--appendfsync", "always", "--io-threads", threads, "--shards", shards]);
        let (mut writer, mut reader) = (server.connect(), server.connect());
        let mut control = server.connect();
        ask(&mut control, "MSET written before other before");
        ask(&mut control, "RPUSH list ten x");
        // The write may end before the others have read.
        until("reads of other keys do not wait", || {
            ask(&mut control, "DEBUG AOF-FLUSH-SLEEP 100000");
            writer.send(&["SET", "written", "now"]);
            let has_begun = (0..1000).any(|_| figure(&mut control, "aof_buffer_length") > 0);
            assert_eq!(ask(&mut reader, "GET other"), "\"before\"");
            let is_under_way = has_begun && figure(&mut control, "aof_buffer_length") > 0;
            ask(&mut control, "DEBUG AOF-FLUSH-SLEEP 0");
            assert_eq!(writer.receive().to_string(), "+OK");
            is_under_way
        });
        for words in [
            &["GET", "written"][..],
            &["MGET", "other", "written"],
            &["KEYS", "*"],
            &["DBSIZE"],
            &["SORT", "list", "BY", "nosort", "GET", "writ*"],
            &["EVAL", "return redis.call('GET', KEYS[1])", "1", "written"],
            &["SETNX", "written", "never"],
        ] {
            ask(&mut control, "DEBUG AOF-FLUSH-SLEEP 60000000");
            writer.send(&["APPEND", "written", "."]);
            until("it is under way", || figure(&mut control, "aof_buffer_length") > 0);
            reader.send(words);
            let name = format!("cmd={}", words[0].to_lowercase());
            until("it has run", || ask(&mut control, "CLIENT LIST").contains(&name));
            assert_eq!(ask(&mut control, "LLEN list"), ":2");
            assert!(!reader.has_reply(), "{words:?} did not wait");
            ask(&mut control, "DEBUG AOF-FLUSH-SLEEP 0");
            reader.receive();
            writer.receive();
        }
        server.stop();
    }
}

#[test]
fn waitaof_answers_when_what_the_client_has_written_is_on_disk() {
    let home = Home::new();
    for threads in ["1", "4"] {
        let server = home.serve(&["--appendfsync", "everysec", "--io-threads", threads]);
        let (mut client, mut control) = (server.connect(), server.connect());
        // This client has written nothing.
        assert_eq!(ask(&mut client, "WAITAOF 1 0 0"), "[:1 :0]");
        // No replica ever confirms it, so the timeout passes.
        ask(&mut client, "SET key 1");
        assert_eq!(ask(&mut client, "WAITAOF 0 1 10"), "[:0 :0]");
        ask(&mut control, "DEBUG AOF-FLUSH-SLEEP 100000");
        for words in [&["SET", "key", "2"][..], &["EVAL", "return redis.call('INCR', KEYS[1])", "1", "key"]] {
            client.send(words);
            client.send(&["WAITAOF", "1", "0", "0"]);
            client.receive();
            assert_eq!(client.receive().to_string(), "[:1 :0]");
            assert_eq!(figure(&mut control, "aof_buffer_length"), 0);
        }
        // A waiting client leaves, or is told that logging has ended.
        let mut leaves = server.connect();
        ask(&mut leaves, "SET key 3");
        leaves.send(&["WAITAOF", "1", "1", "0"]);
        until("it waits", || figure(&mut control, "blocked_clients") == 1);
        drop(leaves);
        until("it has left", || figure(&mut control, "connected_clients") == 2);
        client.send(&["WAITAOF", "1", "1", "0"]);
        until("it waits", || figure(&mut control, "blocked_clients") == 1);
        ask(&mut control, "CONFIG SET appendonly no");
        assert!(client.receive().to_string().contains("appendonly is disabled"));
        server.stop();
    }
}

/// Waits until a server that was just started reports that it is loading.
fn ask_while_loading(client: &mut Client, words: &[&str]) -> Option<String> {
    loop {
        let is_loading = client.command(&["GET", "key"]).to_string().contains("LOADING");
        let reply = client.command(words).to_string();
        let still_is = client.command(&["GET", "key"]).to_string().contains("LOADING");
        if is_loading && still_is {
            return Some(reply);
        }
        if !still_is {
            return None;
        }
    }
}

#[test]
fn what_clients_look_at_while_it_is_loaded_loses_nothing() {
    const N_KEYS: usize = 60_000;
    let home = Home::new();
    // Their deadlines passed long ago, but the next commands change them.
    let mut commands = Vec::new();
    for nth in 0..N_KEYS {
        let key = format!("key:{nth}");
        write_request(&mut commands, &["SET", &key, "value", "PXAT", "1000"]);
        write_request(&mut commands, &["PERSIST", &key]);
    }
    fs::write(home.path().join("appendonly.aof"), commands).expect("it can be written");
    let server = home.serve(&["--shards", "4"]);
    let mut client = server.connect();
    let watched: Vec<String> = (0..100).map(|nth| format!("key:{nth}")).collect();
    let words: Vec<&str> = ["WATCH"].into_iter().chain(watched.iter().map(String::as_str)).collect();
    // A machine may load all this too fast to be asked meanwhile. Then there is nothing to check.
    if let Some(reply) = ask_while_loading(&mut client, &words) {
        assert!(reply.contains("LOADING"), "{reply}");
    }
    until("it is loaded", || !ask(&mut client, "DBSIZE").contains("LOADING"));
    assert_eq!(ask(&mut client, "DBSIZE"), format!(":{N_KEYS}"));
    // DEBUG LOADAOF does the same, when all shards know the time.
    assert_eq!(ask(&mut client, "DEBUG LOADAOF"), "+OK");
    assert_eq!(ask(&mut client, "DBSIZE"), format!(":{N_KEYS}"));
}

#[test]
fn reads_leave_when_the_file_was_begun_and_nothing_written_since() {
    let home = Home::new();
    let server = home.serve(&["--appendfsync", "always", "--appendonly", "no"]);
    let mut client = server.connect();
    ask(&mut client, "SET key value");
    ask(&mut client, "CONFIG SET appendonly yes");
    until("it has a base", || figure(&mut client, "aof_rewrites") == 1);
    assert_eq!(ask(&mut client, "GET key"), "\"value\"");
    assert_eq!(ask(&mut client, "KEYS *"), "[\"key\"]");
}

#[test]
fn loading_again_serves_nobody_with_what_was_and_refuses_where_there_is_nothing() {
    let home = Home::new();
    let server = home.serve(&[]);
    let (mut client, mut waiting) = (server.connect(), server.connect());
    ask(&mut client, "RPUSH queue old");
    ask(&mut client, "LPOP queue");
    waiting.send(&["BLPOP", "queue", "0"]);
    until("it waits", || figure(&mut client, "blocked_clients") == 1);
    assert_eq!(ask(&mut client, "DEBUG LOADAOF"), "+OK");
    ask(&mut client, "RPUSH queue new");
    assert_eq!(waiting.receive().to_string(), "[\"queue\" \"new\"]");
    ask(&mut client, "SET key value");
    fs::rename(home.path().join("appendonlydir"), home.path().join("moved")).expect("it can be moved");
    assert!(ask(&mut client, "DEBUG LOADAOF").contains("Error trying to load"));
    assert_eq!(ask(&mut client, "GET key"), "\"value\"");
}

#[test]
fn a_damaged_file_that_is_loaded_again_stays_as_it_is() {
    let home = Home::new();
    let server = home.serve(&["--appendfsync", "always"]);
    let mut client = server.connect();
    for nth in 0..100 {
        ask(&mut client, &format!("SET key:{nth} value"));
    }
    let increment = home.parts(".incr.aof").pop().expect("there is one");
    let mut bytes = fs::read(&increment).expect("it can be read");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 4;
    fs::write(&increment, &bytes).expect("it can be written");
    assert!(client.try_command(&["DEBUG", "LOADAOF"]).is_err(), "the process ends");
    server.stop();
    // It was closed before it was loaded again.
    assert!(fs::read(&increment).expect("it can be read").starts_with(&bytes));
    assert!(home.refusal(&[]).contains("is damaged at byte"));
}

#[test]
fn the_server_does_not_stop_before_the_file_has_its_base() {
    let home = Home::new();
    let server = home.serve(&["--appendonly", "no", "--rdb-key-save-delay", "100000000"]);
    let mut client = server.connect();
    ask(&mut client, "SET key value");
    ask(&mut client, "CONFIG SET appendonly yes");
    until("it is begun", || ask(&mut client, "INFO persistence").contains("aof_current_size"));
    ask(&mut client, "SET other value");
    assert_eq!(ask(&mut client, "WAITAOF 1 0 10"), "[:0 :0]");
    assert!(ask(&mut client, "SHUTDOWN").contains("Errors trying to SHUTDOWN"));
    ask(&mut client, "CONFIG SET rdb-key-save-delay 0");
    until("it has a base", || figure(&mut client, "aof_rewrites") == 1);
    assert_eq!(ask(&mut client, "WAITAOF 1 0 0"), "[:1 :0]");
    server.stop();
    let server = home.serve(&[]);
    assert_eq!(ask(&mut server.connect(), "DBSIZE"), ":2");
}

#[test]
fn the_folder_stays_where_it_was_and_memory_is_given_back() {
    let home = Home::new();
    let server = home.serve(&[]);
    let mut client = server.connect();
    fs::create_dir(home.path().join("elsewhere")).expect("it can be made");
    let elsewhere = home.path().join("elsewhere");
    client.command(&["CONFIG", "SET", "dir", elsewhere.to_str().expect("it is UTF-8")]);
    client.command(&["SET", "large", &"x".repeat(20_000_000)]);
    ask(&mut client, "DEL large");
    ask(&mut client, "BGREWRITEAOF");
    until("it is rewritten", || figure(&mut client, "aof_rewrites") == 1);
    assert!(!elsewhere.join("appendonlydir").exists());
    until("memory is given back", || figure(&mut client, "used_memory") < 15_000_000);
}

#[test]
fn a_second_server_leaves_the_folder_alone_as_long_as_the_first_lives() {
    let home = Home::new();
    let first = home.serve(&[]);
    ask(&mut first.connect(), "SET key first");
    let refusal = home.refusal(&[]);
    let folder = home.path().join("appendonlydir");
    assert!(refusal.contains(folder.to_str().expect("it is UTF-8")), "{refusal}");
    assert!(refusal.contains("another server that is running has its append-only file there"), "{refusal}");
    // A file with another name belongs to another server.
    drop(home.serve(&["--appendfilename", "other.aof"]));
    // A server without a log may work there until it would write.
    let second = home.serve(&["--appendonly", "no"]);
    let mut client = second.connect();
    let files = || home.parts("").len();
    let n_files = files();
    assert!(ask(&mut client, "CONFIG SET appendonly yes").contains("Unable to turn on AOF"));
    ask(&mut client, "BGREWRITEAOF");
    until("it is refused", || ask(&mut client, "INFO persistence").contains("aof_last_bgrewrite_status:err"));
    assert_eq!(files(), n_files);
    // A killed server holds nothing, nor does one that logs no more.
    first.stop();
    assert_eq!(ask(&mut client, "CONFIG SET appendonly yes"), "+OK");
    assert!(home.refusal(&[]).contains("another server"));
    until("it has its base", || figure(&mut client, "aof_rewrites") == 1);
    assert_eq!(ask(&mut client, "DEBUG LOADAOF"), "+OK");
    assert!(home.refusal(&[]).contains("another server"));
    // A server keeps its file until its records are on disk. A client that waits for the end is answered
    // then.
    ask(&mut client, "DEBUG AOF-FAIL SYNC HOLD 1 1000000");
    let mut off = second.connect();
    off.send(&["CONFIG", "SET", "appendonly", "no"]);
    until("it logs no more", || ask(&mut client, "WAITAOF 1 0 1").contains("appendonly is disabled"));
    assert!(!off.has_reply());
    assert!(ask(&mut client, "INFO persistence").contains("aof_current_size"));
    assert!(home.refusal(&[]).contains("another server"));
    ask(&mut client, "DEBUG AOF-FAIL SYNC NONE 1 1");
    assert_eq!(off.receive().to_string(), "+OK");
    assert!(!ask(&mut client, "INFO persistence").contains("aof_current_size"));
    let third = home.serve(&[]);
    assert_eq!(ask(&mut third.connect(), "EXISTS key"), ":0", "the second had nothing, and logged that");
}

/// The second server used to start, and both wrote to one file.
#[test]
fn a_second_server_is_kept_out_also_if_the_lock_was_deleted() {
    let home = Home::new();
    let args = ["--auto-aof-rewrite-percentage", "0"];
    let lock = home.path().join("appendonlydir").join("appendonly.aof.lock");
    let is_kept_out = || {
        let why = home.try_serve(&args).err().expect("the second is not let in");
        assert!(why.contains("another server that is running"), "{why}");
    };
    for nth in 0..2 {
        let first = home.serve(&args);
        let mut client = first.connect();
        // With a file that was begun or found.
        fs::remove_file(&lock).expect("it is there");
        is_kept_out();
        assert_eq!(ask(&mut client, "INCR key"), format!(":{}", 2 * nth + 1));
        // With a file that a rewrite has begun.
        ask(&mut client, "BGREWRITEAOF");
        until("it is rewritten", || figure(&mut client, "aof_rewrites") == 1);
        fs::remove_file(&lock).expect("the refused server has made one");
        is_kept_out();
        let second = home.serve(&["--appendonly", "no"]);
        assert!(ask(&mut second.connect(), "CONFIG SET appendonly yes").contains("Unable to turn on AOF"));
        // A file with another name belongs to another server.
        drop(home.serve(&["--appendfilename", "other.aof"]));
        assert_eq!(ask(&mut client, "INCR key"), format!(":{}", 2 * nth + 2));
        assert_eq!(ask(&mut client, "CONFIG SET appendonly no"), "+OK");
        assert_eq!(ask(&mut client, "CONFIG SET appendonly yes"), "+OK");
        until("it has its base", || figure(&mut client, "aof_rewrite_in_progress") == 0);
    }
}

#[test]
fn what_is_written_after_the_file_was_turned_off_is_not_in_it() {
    for (beside_snapshot, in_transaction) in [(false, false), (true, false), (true, true)] {
        let home = Home::new();
        let server = home.serve(&["--rdb-key-save-delay", "100000000", "--io-threads", "2"]);
        let mut client = server.connect();
        ask(&mut client, "SET before value");
        if beside_snapshot {
            ask(&mut client, "BGSAVE");
            until("it saves", || figure(&mut client, "rdb_bgsave_in_progress") == 1);
        }
        if in_transaction {
            ask(&mut client, "MULTI");
            ask(&mut client, "CONFIG SET appendonly no");
            assert_eq!(ask(&mut client, "EXEC"), "[+OK]");
        } else {
            assert_eq!(ask(&mut client, "CONFIG SET appendonly no"), "+OK");
        }
        assert!(!ask(&mut client, "INFO persistence").contains("aof_current_size"));
        ask(&mut client, "SET after value");
        assert_eq!(ask(&mut client, "DEBUG LOADAOF"), "+OK");
        assert_eq!(ask(&mut client, "KEYS *"), "[\"before\"]");
    }
}

#[test]
fn what_was_written_before_the_file_was_turned_on_is_not_repeated_in_it() {
    let home = Home::new();
    let server = home.serve(&["--appendonly", "no", "--io-threads", "1"]);
    let mut client = server.connect();
    ask(&mut client, "DEBUG POPULATE 10");
    ask(&mut client, "FLUSHALL");
    assert_eq!(ask(&mut client, "CONFIG SET appendonly yes"), "+OK");
    until("it has a base", || figure(&mut client, "aof_rewrites") == 1);
    ask(&mut client, "SET after value");
    assert_eq!(ask(&mut client, "DEBUG LOADAOF"), "+OK");
    assert_eq!(ask(&mut client, "KEYS *"), "[\"after\"]");
}

#[test]
fn a_file_that_was_turned_off_while_it_began_has_not_failed() {
    let home = Home::new();
    let server = home.serve(&["--appendonly", "no", "--rdb-key-save-delay", "100000000"]);
    let mut client = server.connect();
    ask(&mut client, "SET key value");
    for _ in 0..4 {
        assert_eq!(ask(&mut client, "CONFIG SET appendonly yes"), "+OK");
        until("it is begun", || figure(&mut client, "aof_rewrite_in_progress") == 1);
        assert_eq!(ask(&mut client, "CONFIG SET appendonly no"), "+OK");
    }
    assert!(ask(&mut client, "INFO persistence").contains("aof_last_bgrewrite_status:ok"));
    assert_eq!(ask(&mut client, "CONFIG SET rdb-key-save-delay 0"), "+OK");
    ask(&mut client, "MULTI");
    ask(&mut client, "CONFIG SET appendonly yes");
    ask(&mut client, "SET other value");
    assert_eq!(ask(&mut client, "EXEC"), "[+OK +OK]");
    // If those were failures, the next attempt would be minutes later.
    until("it has a base", || figure(&mut client, "aof_rewrites") == 1);
    server.stop();
    assert_eq!(ask(&mut home.serve(&[]).connect(), "DBSIZE"), ":2");
}

#[test]
fn a_file_that_is_turned_on_after_a_failure_is_there_when_that_is_answered() {
    let home = Home::new();
    let (one, other) = (home.serve(&[]), home.serve(&["--appendonly", "no"]));
    let (mut with, mut without) = (one.connect(), other.connect());
    for nth in 0..800 {
        // Changing the addresses takes a while, in which the file could be given up.
        let bind = ["127.0.0.1", "127.0.0.1 -::1"][nth / 2 % 2];
        assert!(ask(&mut without, "CONFIG SET appendonly yes").contains("Unable to turn on AOF"));
        assert_eq!(ask(&mut with, "CONFIG SET appendonly no"), "+OK");
        let words = ["CONFIG", "SET", "appendonly", "yes", "bind", bind];
        assert_eq!(without.command(&words).to_string(), "+OK");
        (with, without) = (without, with);
    }
}

#[test]
fn pending_entries_that_are_given_up_after_they_were_deleted_are_logged() {
    let home = Home::new();
    let server = home.serve(&[]);
    let mut client = server.connect();
    for words in [
        "XADD stream 1-1 field value",
        "XADD stream 2-1 field value",
        "XGROUP CREATE stream group 0",
        "XREADGROUP GROUP group consumer STREAMS stream >",
        "XDEL stream 2-1",
    ] {
        ask(&mut client, words);
    }
    assert_eq!(ask(&mut client, "XDELEX stream DELREF IDS 1 2-1"), "[:-1]");
    let pending = ask(&mut client, "XPENDING stream group");
    assert!(pending.starts_with("[:1 \"1-1\""), "{pending}");
    assert_eq!(ask(&mut client, "DEBUG LOADAOF"), "+OK");
    assert_eq!(ask(&mut client, "XPENDING stream group"), pending);
}

#[test]
fn under_always_nothing_waits_in_vain_from_the_start_on() {
    for _ in 0..5 {
        let home = Home::new();
        let server = home.serve(&["--appendfsync", "always", "--io-threads", "2"]);
        let (mut control, mut writer) = (server.connect(), server.connect());
        // The first read may wait until all initial records are on disk.
        assert_eq!(ask(&mut control, "GET other"), "(nil)");
        assert_eq!(ask(&mut control, "DEBUG AOF-FAIL SYNC HOLD 1 1000000"), "+OK");
        writer.send(&["SET", "key", "value"]);
        until("it has run", || ask(&mut control, "INFO commandstats").contains("cmdstat_set:calls=1,"));
        for words in ["PING", "GET other", "CLIENT ID", "DEBUG AOF-FAIL SYNC NONE 1 1"] {
            control.send(&words.split(' ').collect::<Vec<_>>());
            until(words, || control.has_reply());
            control.receive();
        }
        assert_eq!(writer.receive().to_string(), "+OK");
    }
}

#[test]
fn client_unblock_ends_wait_and_waitaof() {
    const N_WAITING: usize = 200;
    for threads in ["1", "4"] {
        let home = Home::new();
        let server = home.serve(&["--appendfsync", "everysec", "--io-threads", threads]);
        let mut control = server.connect();
        assert_eq!(ask(&mut control, "DEBUG AOF-FAIL SYNC HOLD 1 1000000"), "+OK");
        for (line, timed_out) in
            [("WAIT 1 0", ":0"), ("WAITAOF 1 0 0", "[:0 :0]"), ("WAITAOF 1 1 0", "[:0 :0]")]
        {
            for (how, reply) in [
                ("", timed_out),
                (" TIMEOUT", timed_out),
                (" ERROR", "-UNBLOCKED client unblocked via CLIENT UNBLOCK"),
            ] {
                let mut waiting = server.connect();
                let id = ask(&mut waiting, "CLIENT ID").replace(':', "");
                assert_eq!(ask(&mut control, &format!("CLIENT UNBLOCK {id}{how}")), ":0");
                ask(&mut waiting, "SET key value");
                waiting.send(&line.split(' ').collect::<Vec<_>>());
                waiting.send(&["PING"]);
                until("it waits", || figure(&mut control, "blocked_clients") == 1);
                assert_eq!(ask(&mut control, &format!("CLIENT UNBLOCK {id}{how}")), ":1");
                assert_eq!(waiting.receive().to_string(), reply, "{line}{how}");
                assert_eq!(waiting.receive().to_string(), "+PONG");
                assert_eq!(ask(&mut control, &format!("CLIENT UNBLOCK {id}{how}")), ":0");
            }
        }
        // A script cannot wait, and receives the present number.
        assert_eq!(ask(&mut control, "EVAL return{redis.pcall('WAIT',1,0)} 0"), "[:0]");
        // Clients that are killed or leave while they wait leave nothing.
        let mut waiting: Vec<Client> = (0..N_WAITING).map(|_| server.connect()).collect();
        for (nth, client) in waiting.iter_mut().enumerate() {
            ask(client, &format!("SET key:{nth} value"));
            client.send(if nth % 2 == 0 {
                &["WAITAOF", "1", "0", "0"]
            } else {
                &["WAIT", "1", "0", "0"][..3]
            });
        }
        until("they wait", || figure(&mut control, "blocked_clients") == N_WAITING);
        waiting.truncate(N_WAITING / 2);
        until("half have left", || figure(&mut control, "connected_clients") == N_WAITING / 2 + 1);
        let killed = ask(&mut control, "CLIENT KILL TYPE normal SKIPME yes");
        assert_eq!(killed, format!(":{}", N_WAITING / 2));
        until("all have left", || figure(&mut control, "connected_clients") == 1);
        assert_eq!(figure(&mut control, "blocked_clients"), 0);
        ask(&mut control, "DEBUG AOF-FAIL SYNC NONE 1 1");
    }
}

#[test]
fn client_reply_skip_drops_the_reply_of_a_command_that_waits() {
    let home = Home::new();
    let server = home.serve(&["--appendfsync", "everysec"]);
    let mut client = server.connect();
    for words in [
        &["CLIENT", "REPLY", "SKIP"][..],
        &["WAITAOF", "1", "0", "0"],
        &["CLIENT", "REPLY", "SKIP"],
        &["WAIT", "1", "1"],
    ] {
        client.send(words);
    }
    assert_eq!(ask(&mut client, "PING"), "+PONG");
}

#[test]
fn the_latency_monitor_hears_of_a_slow_disk() {
    let home = Home::new();
    let server = home.serve(&["--appendfsync", "no", "--latency-monitor-threshold", "20"]);
    let mut client = server.connect();
    let latest = |client: &mut Client| ask(client, "LATENCY LATEST");
    assert!(!latest(&mut client).contains("aof"));
    ask(&mut client, "DEBUG AOF-FLUSH-SLEEP 30000");
    ask(&mut client, "SET key value");
    until("it is heard of", || latest(&mut client).contains("\"aof-write-alone\""));
    assert!(latest(&mut client).contains("\"aof-write\"") && !latest(&mut client).contains("child"));
    ask(&mut client, "CONFIG SET rdb-key-save-delay 100000000");
    ask(&mut client, "BGSAVE");
    until("a snapshot is taken", || figure(&mut client, "current_save_keys_total") == 1);
    ask(&mut client, "SET key value");
    until("it is heard of", || latest(&mut client).contains("\"aof-write-active-child\""));
    ask(&mut client, "DEBUG AOF-FLUSH-SLEEP 0");
    ask(&mut client, "DEBUG GIVE-UP-SAVING");
    ask(&mut client, "CONFIG SET rdb-key-save-delay 0 latency-monitor-threshold 1 appendfsync always");
    // Held until more than the threshold has passed.
    ask(&mut client, "DEBUG AOF-FAIL SYNC HOLD 1 1");
    let mut writer = server.connect();
    writer.send(&["SET", "key", "value"]);
    until("it is being synced", || figure(&mut client, "aof_pending_bio_fsync") == 1);
    ask(&mut client, "DEBUG SLEEP 0.01");
    ask(&mut client, "DEBUG AOF-FAIL SYNC NONE 1 1");
    writer.receive();
    until("it is heard of", || latest(&mut client).contains("\"aof-fsync-always\""));
    ask(&mut client, "DEBUG AOF-FAIL RENAME HOLD 1 1");
    ask(&mut client, "BGREWRITEAOF");
    let named = || home.parts(".manifest").iter().any(|path| path.to_string_lossy().contains("temp-"));
    until("the base is to get its name", || named() || home.parts(".rdb").len() == 2);
    ask(&mut client, "DEBUG AOF-FAIL RENAME NONE 1 1");
    until("it is rewritten", || figure(&mut client, "aof_rewrites") == 1);
    assert!(ask(&mut client, "LATENCY DOCTOR").contains("waits for the disk"));
}

/// As in redis-server, consumers were last seen when the file was loaded.
#[test]
fn consumers_of_a_file_that_is_loaded_were_seen_just_then() {
    for preamble in ["yes", "no"] {
        let home = Home::new();
        let args = ["--aof-use-rdb-preamble", preamble];
        let server = home.serve(&args);
        let mut client = server.connect();
        ask(&mut client, "XADD stream 1-1 field value");
        ask(&mut client, "XGROUP CREATE stream group 0");
        ask(&mut client, "XREADGROUP GROUP group reader STREAMS stream >");
        ask(&mut client, "XGROUP CREATECONSUMER stream group idler");
        assert_eq!(ask(&mut client, "WAITAOF 1 0 0"), "[:1 :0]");
        for rewrites in [false, true] {
            if rewrites {
                ask(&mut client, "BGREWRITEAOF");
                until("it is rewritten", || figure(&mut client, "aof_rewrites") == 1);
            }
            assert_eq!(ask(&mut client, "DEBUG LOADAOF"), "+OK");
            let consumers = ask(&mut client, "XINFO CONSUMERS stream group");
            let numbers =
                consumers.split(|c: char| !c.is_ascii_digit()).filter_map(|word| word.parse::<u64>().ok());
            assert!(consumers.contains("reader"), "{consumers}");
            assert!(numbers.max().is_some_and(|most| most < 600_000), "{consumers}");
        }
        server.stop();
    }
}

/// Commands that are in progress when DEBUG LOADAOF begins meet partly loaded data. It contains keys whose
/// deadline has passed, and which the next commands prolong.
#[test]
fn what_is_on_its_way_when_the_file_is_loaded_again_loses_nothing() {
    const N_KEYS: usize = 20_000;
    let home = Home::new();
    let mut commands = Vec::new();
    for nth in 0..N_KEYS {
        write_request(&mut commands, &["SET", &format!("key:{nth}"), "value", "PXAT", "1000"]);
    }
    for nth in 0..N_KEYS {
        write_request(&mut commands, &["PERSIST", &format!("key:{nth}")]);
    }
    fs::write(home.path().join("appendonly.aof"), commands).expect("it can be written");
    let server = home.serve(&["--shards", "4", "--io-threads", "2"]);
    let mut control = server.connect();
    until("it is loaded", || !ask(&mut control, "DBSIZE").contains("LOADING"));
    let many: Vec<String> = (0..3000).map(|nth| format!("key:{nth}")).collect();
    let exists: Vec<&str> = ["EXISTS"].into_iter().chain(many.iter().map(String::as_str)).collect();
    let mset: Vec<&str> =
        ["MSET"].into_iter().chain(many.iter().flat_map(|key| [key.as_str(), "new"])).collect();
    for _ in 0..3 {
        ask(&mut control, "DEBUG HOLD-HEAVY 1");
        let mut clients: Vec<Client> = (0..4).map(|_| server.connect()).collect();
        clients[0].send(&exists);
        clients[1].send(&mset);
        clients[2].send(&["MULTI"]);
        clients[2].send(&exists);
        clients[2].send(&["EXEC"]);
        clients[3].send(&["DEBUG", "LOADAOF"]);
        until("it is being loaded", || figure(&mut control, "loading") == 1 || clients[3].has_reply());
        ask(&mut control, "DEBUG HOLD-HEAVY 0");
        for client in &mut clients[..2] {
            let reply = client.receive().to_string();
            assert!(["-LOADING", ":3000", "+OK"].iter().any(|wanted| reply.starts_with(wanted)), "{reply}");
        }
        let replies: Vec<String> = (0..3).map(|_| clients[2].receive().to_string()).collect();
        let is_refused = replies[2].starts_with("-EXECABORT")
            && replies[1..].iter().any(|reply| reply.contains("LOADING"));
        assert!(is_refused || replies[2] == "[:3000]", "{replies:?}");
        assert_eq!(clients[3].receive().to_string(), "+OK");
        assert_eq!(ask(&mut control, "DBSIZE"), format!(":{N_KEYS}"));
        assert_eq!(ask(&mut clients[2], "PING"), "+PONG");
    }
}

/// Replies wait even if they come after pushed output.
#[test]
fn under_always_the_replies_of_a_listening_client_wait_for_the_disk() {
    let home = Home::new();
    let server = home.serve(&["--appendfsync", "always", "--io-threads", "1"]);
    let (mut control, mut client) = (server.connect(), server.connect());
    ask(&mut client, "HELLO 3");
    ask(&mut client, "CLIENT TRACKING on BCAST");
    ask(&mut control, "DEBUG AOF-FAIL SYNC HOLD 1 1000000");
    client.send(&["SET", "key", "value"]);
    until("it has run", || ask(&mut control, "INFO commandstats").contains("cmdstat_set:calls=1,"));
    for _ in 0..20 {
        ask(&mut control, "PING");
    }
    let early = client.has_reply().then(|| client.receive().to_string());
    assert!(early.as_deref() != Some("+OK"), "it was answered before it was on disk");
    // FLUSHALL waits only for the disk and the snapshot.
    let mut flushing = server.connect();
    control.command(&["CONFIG", "SET", "save", "3600 100000"]);
    flushing.send(&["FLUSHALL"]);
    until("it has saved", || figure(&mut control, "rdb_saves") == 1);
    for _ in 0..20 {
        ask(&mut control, "PING");
    }
    assert!(!flushing.has_reply(), "it was answered before it was on disk");
    ask(&mut control, "DEBUG AOF-FAIL SYNC NONE 1 1");
    assert_eq!(flushing.receive().to_string(), "+OK");
}

/// The server used to serve another file's data set while the log continued the previous one. The next server
/// had a mix of both.
#[test]
fn what_debug_reload_has_loaded_is_in_the_append_only_file_or_that_is_said() {
    for fails in [false, true] {
        let home = Home::new();
        let server = home.serve(&[]);
        let mut client = server.connect();
        assert_eq!(ask(&mut client, "SET saved 1"), "+OK");
        assert_eq!(ask(&mut client, "SAVE"), "+OK");
        assert_eq!(ask(&mut client, "MSET saved 2 later 1"), "+OK");
        if fails {
            assert_eq!(ask(&mut client, "DEBUG AOF-FAIL BASE ENOSPC 1 1"), "+OK");
        }
        let reply = ask(&mut client, "DEBUG RELOAD NOSAVE");
        assert_eq!(reply == "+OK", !fails, "{reply}");
        assert_eq!(ask(&mut client, "MGET saved later"), "[\"1\" (nil)]");
        until("the file has it", || figure(&mut client, "aof_rewrites") == 1);
        assert_eq!(ask(&mut client, "INCR counter"), ":1");
        server.stop();
        let server = home.serve(&[]);
        assert_eq!(ask(&mut server.connect(), "MGET saved later counter"), "[\"1\" (nil) \"1\"]");
    }
}

/// When EXEC is answered, logging has ended, and another server may have the files.
#[test]
fn a_transaction_that_turns_the_file_off_is_answered_when_it_is_off() {
    for _ in 0..20 {
        let home = Home::new();
        let server = home.serve(&["--io-threads", "2"]);
        let mut client = server.connect();
        for line in ["SET before 1", "MULTI", "INCR counter", "CONFIG SET appendonly no", "INCR counter"] {
            assert!(!ask(&mut client, line).starts_with('-'), "{line}");
        }
        assert_eq!(ask(&mut client, "EXEC"), "[:1 +OK :2]");
        assert_eq!(
            ask(&mut client, "WAITAOF 1 0 0"),
            "-ERR WAITAOF cannot be used when numlocal is set but appendonly is disabled."
        );
        let next = home.serve(&[]);
        assert_eq!(ask(&mut next.connect(), "GET before"), "\"1\"");
        assert_eq!(ask(&mut client, "SET after 1"), "+OK");
        next.stop();
        let last = home.serve(&[]);
        assert_eq!(ask(&mut last.connect(), "EXISTS after"), ":0");
    }
}
