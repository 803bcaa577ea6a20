//! The append-only file: what a client was told is there after the server was killed, whatever goes on meanwhile.

mod support;

use std::{
    fs::{self, OpenOptions},
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
};

use braid_protocol::request::write_request;
use support::{
    Client, Server,
    crowd::{ask, figure, until},
    dice::{Dice, seed},
    home::Home,
    reference::has_reference,
};

const N_CLIENTS: usize = 4;
const N_ACCOUNTS: usize = 8;

/// Counts and moves sums between accounts until the server is gone; says how far it has counted.
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

/// Has clients write, and kills the server in the middle; then looks at what the next one has.
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
        // One more may have been done and not answered.
        let (least, most) = (counted.max(before), counted.max(before) + 1);
        // While a sync is under way `everysec` does not wait until what it answers is written.
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
        // One that was not named in the manifest before the kill gives its place to the next.
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
    // Twice: what was dropped must not come back.
    for _ in 0..2 {
        let server = home.serve(&[]);
        let mut client = server.connect();
        assert_eq!(ask(&mut client, "EXISTS first second third"), ":1");
        ask(&mut client, "SET fourth 1");
        server.stop();
    }
    let at = whole.len() / 2 - 10;
    // Behind it stands that it was synced.
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
        // The list had expired, with all that came to it.
        assert_eq!(ask(&mut client, "EXISTS list key"), ":1");
        ask(&mut client, "INCR key");
        server.stop();
    }
    let server = home.serve(&[]);
    assert_eq!(ask(&mut server.connect(), "GET key"), "\"3\"");
}

/// Commands of all kinds: on one key and on several, over databases, in transactions, in scripts, and on values that are too large for a thread
/// that serves sockets.
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
                // Redis logs this as it stands, and it reads what clients are given by other threads only.
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

/// A file of Redis's, without frames, comes to what its commands come to, over however many shards.
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
                // Turned on again before it has ended it would just go on.
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

/// What waits for the disk and what does not, while a write does not come to its end.
#[test]
fn under_always_only_reads_of_what_is_not_on_disk_wait_for_it() {
    for (threads, shards) in [("1", "1"), ("4", "64")] {
        let home = Home::new();
        let server = home.serve(&["--appendfsync", "always", "--io-threads", threads, "--shards", shards]);
        let (mut writer, mut reader) = (server.connect(), server.connect());
        let mut control = server.connect();
        ask(&mut control, "MSET written before other before");
        ask(&mut control, "RPUSH list ten x");
        // From when on it is noted which keys change is not told: until then all reads wait.
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
        // It has written nothing.
        assert_eq!(ask(&mut client, "WAITAOF 1 0 0"), "[:1 :0]");
        // No replica ever has it: the time passes.
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
        // Whoever waits leaves, or is told that nothing is logged any more.
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

/// Waits until a server that was just started says that it loads.
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
    // Their time was over long ago, but for what comes next.
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
    // Where the machine loads all that too fast to be asked meanwhile, there is nothing to see.
    if let Some(reply) = ask_while_loading(&mut client, &words) {
        assert!(reply.contains("LOADING"), "{reply}");
    }
    until("it is loaded", || !ask(&mut client, "DBSIZE").contains("LOADING"));
    assert_eq!(ask(&mut client, "DBSIZE"), format!(":{N_KEYS}"));
    // The same by DEBUG LOADAOF, when the time has come to all shards.
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
    assert_eq!(fs::read(&increment).expect("it can be read"), bytes);
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
