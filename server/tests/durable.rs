//! The append-only file: what a client was told is there after the server was killed, whatever goes on meanwhile.

mod support;

use std::{
    fs::{self, OpenOptions},
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
};

use support::{
    Client, Server,
    crowd::{ask, figure, until},
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
                until("it is rewritten", || figure(&mut client, "aof_rewrite_in_progress") == 0);
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

/// What waits for the disk and what does not, while each write takes seconds.
#[test]
fn under_always_only_reads_of_what_is_not_on_disk_wait_for_it() {
    for (threads, shards) in [("1", "1"), ("4", "64")] {
        let home = Home::new();
        let server = home.serve(&["--appendfsync", "always", "--io-threads", threads, "--shards", shards]);
        let (mut writer, mut reader) = (server.connect(), server.connect());
        let mut control = server.connect();
        ask(&mut control, "MSET written before other before");
        ask(&mut control, "RPUSH list ten x");
        // From when on it is noted which keys change is not told; until then all reads wait.
        ask(&mut control, "DEBUG AOF-FLUSH-SLEEP 700000");
        until("reads of other keys leave", || {
            writer.send(&["SET", "written", "now"]);
            let writes = figure(&mut control, "aof_buffer_length") > 0;
            assert_eq!(ask(&mut reader, "GET other"), "\"before\"");
            let waits = figure(&mut control, "aof_buffer_length") > 0;
            assert_eq!(writer.receive().to_string(), "+OK");
            writes && waits
        });
        ask(&mut control, "DEBUG AOF-FLUSH-SLEEP 0");
        ask(&mut writer, "SET written before");
        ask(&mut control, "DEBUG AOF-FLUSH-SLEEP 700000");
        for words in [
            &["GET", "written"][..],
            &["MGET", "other", "written"],
            &["KEYS", "*"],
            &["SORT", "list", "BY", "nosort", "GET", "writ*"],
            &["EVAL", "return redis.call('GET', KEYS[1])", "1", "written"],
            &["SETNX", "written", "never"],
        ] {
            writer.send(&["APPEND", "written", "."]);
            until("it is under way", || figure(&mut control, "aof_buffer_length") > 0);
            reader.send(words);
            assert_eq!(ask(&mut control, "LLEN list"), ":2");
            let reply = reader.receive().to_string();
            // What was told is written, and nothing more has come.
            assert_eq!(
                figure(&mut control, "aof_buffer_length"),
                0,
                "{words:?} was answered with {reply} too early"
            );
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
