//! Snapshots: the file has the data of one moment, whatever happens meanwhile. Clients can still read and
//! write everything.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    path::Path,
    process::Command,
    sync::atomic::{AtomicBool, Ordering},
};

use crate::support::{
    Client, Server,
    crowd::{ask, crowd, figure, fill_set, laid_out, until},
};
use braid_storage::{
    entry::time::Millis,
    keyspace::Keyspace,
    rdb::file::{Item, SnapshotReader},
    table::hash::{HashTags, KeyHasher, Router},
    types::kinds::n_elements,
};

const LAYOUTS: [(usize, usize); 3] = [(1, 1), (2, 16), (4, 1024)];

/// The bytes of a string, or the number of elements of another value.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Held {
    Text(Vec<u8>),
    Elements(usize),
}

impl Held {
    fn number(&self) -> i64 {
        match self {
            Held::Text(text) => String::from_utf8_lossy(text).parse().expect("a number was written"),
            Held::Elements(_) => panic!("it is no string"),
        }
    }
}

/// Writes something for the n-th time.
type Writer<'a> = &'a (dyn Fn(&mut Client, usize) + Sync);

type Contents = BTreeMap<(u32, String), Held>;

/// Returns the contents of a file. Each key must be there once.
fn contents(path: &Path) -> Contents {
    let router = Router::new(KeyHasher::random(), 0, HashTags::Ignored);
    let (keyspace, _) = Keyspace::new(router, 16);
    let file = File::open(path).expect("there is a snapshot");
    let mut reader = SnapshotReader::new(file, None, true).expect("it is one");
    let (mut contents, mut db) = (Contents::new(), 0);
    loop {
        match reader.next_item().expect("the snapshot is whole") {
            Item::Select(selected) => db = selected as u32,
            Item::Entry(raw) => {
                let made = raw.build(&keyspace, Millis(0), None).expect("it is a value");
                let entry = made.into_entry().expect("it has not expired");
                let held = match entry.as_ref().bytes().filter(|_| n_elements(entry.as_ref()).is_none()) {
                    Some(text) => Held::Text(text.to_vec()),
                    None => Held::Elements(n_elements(entry.as_ref()).expect("it has elements")),
                };
                let key = (db, String::from_utf8_lossy(&raw.key).into_owned());
                assert_eq!(contents.insert(key.clone(), held), None, "{key:?} comes twice");
            }
            Item::End { .. } => return contents,
            _ => {}
        }
    }
}

/// Takes snapshots while others write until they are told to stop, and checks each snapshot.
fn while_written(server: &Server, n_snapshots: usize, writers: &[Writer<'_>], check: impl Fn(Contents)) {
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for writer in writers {
            scope.spawn(|| {
                let mut client = server.connect();
                let mut n = 0;
                while !is_over.load(Ordering::Relaxed) {
                    writer(&mut client, n);
                    n += 1;
                }
            });
        }
        // A check that fails ends the writers, too.
        let checked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let mut client = server.connect();
            for _ in 0..n_snapshots {
                assert_eq!(ask(&mut client, "SAVE"), "+OK");
                check(contents(&server.scratch().join("dump.rdb")));
            }
        }));
        is_over.store(true, Ordering::Relaxed);
        if let Err(panic) = checked {
            std::panic::resume_unwind(panic);
        }
    });
}

const N_ACCOUNTS: usize = 60;

/// Moves an amount from one account to another, which may be in another database.
fn transfer(client: &mut Client, n: usize) {
    let (from, to) = (n * 7 % N_ACCOUNTS, (n * 13 + 1) % N_ACCOUNTS);
    let (from_db, to_db) = (from % 3, to % 3);
    for line in [
        "MULTI",
        &format!("SELECT {from_db}"),
        &format!("DECRBY account:{from} 5"),
        &format!("SELECT {to_db}"),
        &format!("INCRBY account:{to} 5"),
        "EXEC",
    ] {
        ask(client, line);
    }
}

#[test]
fn a_snapshot_has_all_of_a_transaction_or_nothing() {
    for layout in LAYOUTS {
        let server = laid_out(layout);
        let mut client = server.connect();
        for account in 0..N_ACCOUNTS {
            ask(&mut client, &format!("SELECT {}", account % 3));
            ask(&mut client, &format!("SET account:{account} 100"));
        }
        for filler in 0..1000 {
            ask(&mut client, &format!("SET filler:{filler} 0"));
        }
        let write_filler = |client: &mut Client, n: usize| {
            let key = n * 31 % 1000;
            ask(
                client,
                &["SELECT 2".to_owned(), format!("GET filler:{key}"), format!("SET filler:{key} 0 KEEPTTL")]
                    [n % 3],
            );
        };
        while_written(&server, 6, &[&transfer, &transfer, &write_filler], |contents| {
            let accounts = contents.iter().filter(|((_, key), _)| key.starts_with("account"));
            let amounts: Vec<i64> = accounts.map(|(_, held)| held.number()).collect();
            assert_eq!(amounts.len(), N_ACCOUNTS, "{layout:?}");
            assert_eq!(amounts.iter().sum::<i64>(), 100 * N_ACCOUNTS as i64, "{layout:?}");
            assert_eq!(contents.len(), N_ACCOUNTS + 1000, "{layout:?}");
        });
    }
}

/// Two databases with different contents are swapped again and again. The snapshot has both, in one order or
/// the other.
#[test]
fn databases_that_are_swapped_meanwhile_are_whole() {
    let server = laid_out((2, 16));
    let mut client = server.connect();
    for n in 0..1000 {
        ask(&mut client, "SELECT 0");
        ask(&mut client, &format!("SET key:{n} 1"));
        ask(&mut client, "SELECT 1");
        ask(&mut client, &format!("SET key:{n} 2"));
    }
    let swap = |client: &mut Client, _: usize| {
        ask(client, "SWAPDB 0 1");
    };
    while_written(&server, 8, &[&swap], |contents| {
        let of_db = |db: u32| {
            let held: Vec<i64> = (0..1000).map(|n| contents[&(db, format!("key:{n}"))].number()).collect();
            assert!(held.iter().all(|number| *number == held[0]), "database {db} is of one moment");
            held[0]
        };
        assert_eq!(of_db(0) + of_db(1), 3);
        assert_eq!(contents.len(), 2000);
    });
}

/// A database is flushed and filled anew in one transaction.
#[test]
fn a_database_that_is_flushed_meanwhile_is_of_one_moment() {
    for layout in LAYOUTS {
        let server = laid_out(layout);
        let mut client = server.connect();
        ask(&mut client, "SET key:0 0");
        let refill = |client: &mut Client, n: usize| {
            ask(client, "MULTI");
            ask(client, "FLUSHALL");
            for key in 0..300 {
                ask(client, &format!("SET key:{key} {n}"));
            }
            ask(client, "EXEC");
        };
        refill(&mut client, 0);
        while_written(&server, 6, &[&refill], |contents| {
            assert_eq!(contents.len(), 300, "{layout:?}");
            let round = contents[&(0, "key:0".to_owned())].number();
            assert!(contents.values().all(|held| held.number() == round), "{layout:?}");
        });
    }
}

/// The file is a pipe that nobody reads, so early values cannot be written.
#[test]
fn writes_wait_while_too_much_was_saved_early_and_reads_do_not() {
    const N_KEYS: usize = 400;
    for layout in LAYOUTS {
        let server = laid_out(layout);
        let (mut client, mut writer) = (server.connect(), server.connect());
        ask(&mut client, "CONFIG SET stop-writes-on-bgsave-error no rdbcompression no");
        let (old, new) = ("o".repeat(50_000), "n".repeat(100));
        for n in 0..N_KEYS {
            ask(&mut client, &format!("SET key:{n} {old}"));
        }
        let path = server.scratch().join(format!("temp-{}.rdb", server.pid()));
        let made = Command::new("mkfifo").arg(&path).status().expect("mkfifo can be run");
        assert!(made.success());
        assert_eq!(ask(&mut client, "BGSAVE"), "+Background saving started");
        // This succeeds when the saver opens it, which is after the cut.
        let mut pipe = File::open(&path).expect("the pipe is there");
        for n in 0..N_KEYS {
            writer.send(&["SET", &format!("key:{n}"), &new]);
        }
        until("writes are held back", || ask(&mut client, "INFO clients").contains("blocked_clients:1"));
        let n_written =
            (0..N_KEYS).filter(|n| ask(&mut client, &format!("STRLEN key:{n}")) == ":100").count();
        assert!((150..N_KEYS).contains(&n_written), "8 MiB are 168 old values, but {n_written} were saved");
        let file = std::io::copy(&mut pipe, &mut std::io::sink()).expect("the pipe can be read");
        assert!(file > 0);
        assert!((0..N_KEYS).all(|_| writer.receive().to_string() == "+OK"), "all writes go on");
        until("the snapshot is over", || figure(&mut client, "rdb_bgsave_in_progress") == 0);
        // A pipe cannot be synced, so that snapshot has failed. The next one succeeds.
        let _ = fs::remove_file(&path);
        assert_eq!(ask(&mut client, "SAVE"), "+OK");
        let contents = contents(&server.scratch().join("dump.rdb"));
        assert!(
            contents.len() == N_KEYS && contents.values().all(|held| *held == Held::Text(new.clone().into()))
        );
    }
}

/// The snapshot fails, and leaves no mark that would keep a key from the next one.
#[test]
fn a_panic_while_a_snapshot_is_taken_ends_that_and_nothing_else() {
    for layout in LAYOUTS {
        let server = laid_out(layout);
        let mut client = server.connect();
        ask(&mut client, "CONFIG SET stop-writes-on-bgsave-error no");
        for n in 0..1000 {
            ask(&mut client, &format!("SET key:{n} old"));
        }
        fill_set(&mut client, "large", 5000);
        assert_eq!(ask(&mut client, "DEBUG PANIC-WHILE-SAVING"), "+OK");
        assert!(ask(&mut client, "SAVE").starts_with("-ERR"));
        for n in 0..1000 {
            assert_eq!(ask(&mut client, &format!("SET key:{n} 7")), "+OK");
        }
        assert_eq!(ask(&mut client, "SADD large more"), ":1");
        assert_eq!(ask(&mut client, "SAVE"), "+OK");
        let contents = contents(&server.scratch().join("dump.rdb"));
        assert_eq!(contents.len(), 1001, "{layout:?}");
        let n_new = contents.values().filter(|held| **held == Held::Text(b"7".to_vec())).count();
        assert_eq!(n_new, 1000, "{layout:?}");
    }
}

/// This includes panics while the snapshot is given up, or a key is unpinned.
#[test]
fn panics_while_a_snapshot_is_given_up_are_survived() {
    for n_panics in [2, 3, 20] {
        let server = Server::start(&["--shards", "4"]);
        let mut client = server.connect();
        ask(&mut client, "CONFIG SET stop-writes-on-bgsave-error no");
        for n in 0..1000 {
            ask(&mut client, &format!("SET key:{n} old"));
        }
        for n in 0..4 {
            fill_set(&mut client, &format!("large:{n}"), 5000);
        }
        assert_eq!(ask(&mut client, &format!("DEBUG PANIC-WHILE-SAVING {n_panics}")), "+OK");
        assert!(ask(&mut client, "SAVE").starts_with("-ERR"), "{n_panics}");
        for n in 0..4 {
            assert_eq!(ask(&mut client, &format!("SADD large:{n} more")), ":1");
        }
        assert_eq!(ask(&mut client, "SAVE"), "+OK", "{n_panics}");
        assert_eq!(contents(&server.scratch().join("dump.rdb")).len(), 1004);
    }
    // If the panics never end, data is served, and no snapshot is taken that would lack keys.
    let server = Server::start(&["--shards", "4"]);
    let mut client = server.connect();
    ask(&mut client, "CONFIG SET stop-writes-on-bgsave-error no");
    ask(&mut client, "SET key value");
    ask(&mut client, "DEBUG PANIC-WHILE-SAVING 1000000");
    assert!(ask(&mut client, "SAVE").starts_with("-ERR"));
    ask(&mut client, "DEBUG PANIC-WHILE-SAVING 0");
    assert!(ask(&mut client, "SAVE").starts_with("-ERR"));
    assert_eq!(ask(&mut client, "APPEND key s"), ":6");
    assert!(!server.scratch().join("dump.rdb").exists());
}

/// As in Redis, flushed data does not come back.
#[test]
fn flushall_saves_where_there_are_save_points() {
    let server = Server::start(&["--io-threads", "2"]);
    let dump = server.scratch().join("dump.rdb");
    let mut client = server.connect();
    ask(&mut client, "SET key value");
    assert_eq!(ask(&mut client, "FLUSHALL"), "+OK");
    assert!(!dump.exists());
    assert_eq!(figure(&mut client, "rdb_changes_since_last_save"), 2);
    client.command(&["CONFIG", "SET", "save", "3600 100000"]);
    ask(&mut client, "SET key value");
    assert_eq!(ask(&mut client, "FLUSHALL"), "+OK");
    assert_eq!(figure(&mut client, "rdb_changes_since_last_save"), 0);
    assert!(contents(&dump).is_empty());
    // A snapshot in progress is given up.
    ask(&mut client, "SET key value");
    ask(&mut client, "CONFIG SET rdb-key-save-delay 100000000");
    ask(&mut client, "BGSAVE");
    until("it is under way", || figure(&mut client, "current_save_keys_total") == 1);
    assert_eq!(ask(&mut client, "FLUSHALL"), "+OK");
    assert_eq!(figure(&mut client, "rdb_bgsave_in_progress"), 0);
    assert!(contents(&dump).is_empty());
    ask(&mut client, "CONFIG SET rdb-key-save-delay 0");
    // Many at once, with replies that nobody wants, and where nothing can wait.
    let n_saves = figure(&mut client, "rdb_saves");
    crowd(&server, 20, |_, client| assert_eq!(ask(client, "FLUSHALL"), "+OK"));
    assert!(figure(&mut client, "rdb_saves") > n_saves);
    client.send(&["CLIENT", "REPLY", "SKIP"]);
    client.send(&["FLUSHALL"]);
    assert_eq!(ask(&mut client, "PING"), "+PONG");
    for (line, reply) in [
        ("MULTI", "+OK"),
        ("SET key value", "+QUEUED"),
        ("FLUSHALL", "+QUEUED"),
        ("EXEC", "[+OK +OK]"),
        ("EVAL return(redis.call('flushall')) 0", "+OK"),
    ] {
        assert_eq!(ask(&mut client, line), reply);
    }
    until("that is saved, too", || figure(&mut client, "rdb_changes_since_last_save") == 0);
    // If it fails, the reply is the same, as in Redis.
    client.command(&["CONFIG", "SET", "dbfilename", "folder"]);
    std::fs::create_dir(server.scratch().join("folder")).expect("it can be made");
    assert_eq!(ask(&mut client, "FLUSHALL"), "+OK");
}

/// As in Redis, the file stays as it was, whether its writing has begun or not.
#[test]
fn flushall_gives_up_the_snapshot_that_was_begun_before() {
    let server = Server::start(&["--io-threads", "2", "--save", ""]);
    let dump = server.scratch().join("dump.rdb");
    let mut client = server.connect();
    ask(&mut client, "CONFIG SET rdb-key-save-delay 100000000");
    for is_begun in [true, false, false, false, false, false] {
        ask(&mut client, "MSET a 1 b 2");
        if is_begun {
            ask(&mut client, "BGSAVE");
            until("it is under way", || figure(&mut client, "current_save_keys_total") == 2);
            assert_eq!(ask(&mut client, "FLUSHALL"), "+OK");
        } else {
            client.send(&["BGSAVE"]);
            client.send(&["FLUSHALL"]);
            assert_eq!(client.receive().to_string(), "+Background saving started");
            assert_eq!(client.receive().to_string(), "+OK");
        }
        until("it has ended", || figure(&mut client, "rdb_bgsave_in_progress") == 0);
        assert!(!dump.exists());
    }
    assert_eq!(figure(&mut client, "rdb_changes_since_last_save"), 24);
    assert!(ask(&mut client, "INFO persistence").contains("rdb_last_bgsave_status:ok"));
    // Data that was flushed within a transaction is not there after the next start either.
    client.command(&["CONFIG", "SET", "save", "3600 100000"]);
    for words in ["SET key value", "BGSAVE", "MULTI", "FLUSHALL", "EXEC"] {
        client.send(&words.split(' ').collect::<Vec<_>>());
    }
    for _ in 0..5 {
        client.receive();
    }
    until("that is saved", || figure(&mut client, "rdb_changes_since_last_save") == 0);
    until("it has ended", || figure(&mut client, "rdb_bgsave_in_progress") == 0);
    assert!(contents(&dump).is_empty());
    assert_eq!(figure(&mut client, "rdb_saves"), 1, "nothing is left of the one before");
    ask(&mut client, "CONFIG SET rdb-key-save-delay 0");
    // A snapshot for which a client waits is taken.
    client.command(&["CONFIG", "SET", "save", ""]);
    ask(&mut client, "SET key value");
    ask(&mut client, "FLUSHALL");
    ask(&mut client, "SET key other");
    assert_eq!(ask(&mut client, "SAVE"), "+OK");
    assert_eq!(contents(&dump).len(), 1);
}

#[test]
fn debug_reload_adds_to_what_is_there_if_wanted() {
    for layout in LAYOUTS {
        let server = laid_out(layout);
        let mut client = server.connect();
        for line in ["SET both old", "SET saved 1", "HSET hash f v", "SELECT 3", "SET third 1", "SELECT 0"] {
            ask(&mut client, line);
        }
        assert_eq!(ask(&mut client, "SAVE"), "+OK");
        for line in ["SET both new", "DEL saved", "DEL hash", "SET own 1"] {
            ask(&mut client, line);
        }
        let mut watching = server.connect();
        for line in ["WATCH both", "MULTI", "PING"] {
            ask(&mut watching, line);
        }
        assert!(
            ask(&mut client, "DEBUG RELOAD NOSAVE NOFLUSH").contains("Error trying to load the RDB dump")
        );
        assert_eq!(ask(&mut client, "EXISTS both saved hash own"), ":2");
        assert_eq!(ask(&mut client, "GET both"), "\"new\"");
        assert_eq!(ask(&mut client, "debug reload merge noflush nosave"), "+OK");
        assert_eq!(ask(&mut client, "MGET both saved own"), "[\"old\" \"1\" \"1\"]");
        assert_eq!(ask(&mut client, "HGET hash f"), "\"v\"");
        assert!(!ask(&mut watching, "EXEC").contains("PONG"));
        ask(&mut client, "SELECT 3");
        assert_eq!(ask(&mut client, "DBSIZE"), ":1");
        ask(&mut client, "SELECT 0");
        assert_eq!(ask(&mut client, "DEBUG RELOAD NOFLUSH MERGE"), "+OK");
        assert_eq!(ask(&mut client, "DBSIZE"), ":4");
        assert!(ask(&mut client, "DEBUG RELOAD NOFLUSHES").contains("only supports"));
    }
}

/// Large values are encoded without the hold. A command that would change one waits, or has it saved before.
#[test]
fn large_values_are_those_of_the_cut() {
    const N_MEMBERS: usize = 20_000;
    for layout in LAYOUTS {
        let server = laid_out(layout);
        let mut client = server.connect();
        for key in ["set:1", "set:2"] {
            fill_set(&mut client, key, N_MEMBERS);
        }
        for n in 0..3000 {
            ask(&mut client, &format!("RPUSH list {n}"));
        }
        // Each exchange leaves the number of elements as it was.
        let exchange = |client: &mut Client, n: usize| {
            for line in ["MULTI", &format!("SADD set:1 new{n}"), &format!("SREM set:1 new{n}"), "EXEC"] {
                ask(client, line);
            }
        };
        let rotate = |client: &mut Client, n: usize| {
            ask(client, ["LMOVE list list LEFT RIGHT", "COPY set:2 copy REPLACE", "UNLINK copy"][n % 3]);
        };
        while_written(&server, 6, &[&exchange, &rotate], |mut contents| {
            contents.remove(&(0, "copy".to_owned()));
            let expected = [("list", 3000), ("set:1", N_MEMBERS), ("set:2", N_MEMBERS)];
            let expected = expected.map(|(key, n)| ((0, key.to_owned()), Held::Elements(n)));
            assert_eq!(contents, Contents::from(expected), "{layout:?}");
        });
        assert_eq!(ask(&mut client, "SADD set:1 x"), ":1", "nothing is left pinned");
    }
}

/// Commands that write nothing, although they may be replicated or run others. They continue while writes are
/// refused.
const HARMLESS: &[(&str, &str)] = &[
    ("PUBLISH channel message", ":0"),
    ("EVAL return(1) 0", ":1"),
    ("EVAL return(redis.call('get',KEYS[1])) 1 key", "\"1\""),
    ("PFCOUNT missing", ":0"),
];

/// The file cannot be renamed, because a folder has its name.
#[test]
fn a_snapshot_that_fails_keeps_writers_from_going_on_unless_they_may() {
    let server = Server::start(&["--save", "3600 1000000"]);
    let mut client = server.connect();
    assert_eq!(ask(&mut client, "SET key 1"), "+OK");
    let place = server.scratch().join("dump.rdb");
    fs::create_dir(&place).unwrap();
    // Only the client that waits for it is told.
    assert_eq!(ask(&mut client, "SAVE"), "-ERR");
    assert_eq!(ask(&mut client, "PING"), "+PONG");
    assert_eq!(ask(&mut client, "BGSAVE"), "+Background saving started");
    until("that has failed, too", || {
        ask(&mut client, "INFO persistence").contains("rdb_last_bgsave_status:err")
    });
    assert_eq!(
        fs::read_dir(server.scratch())
            .unwrap()
            .filter(|entry| { entry.as_ref().unwrap().file_name().to_string_lossy().starts_with("temp") })
            .count(),
        0,
        "no temporary file stays"
    );
    for line in ["SET key 2", "PING", "EVAL redis.call('set',KEYS[1],3) 1 key"] {
        assert!(ask(&mut client, line).contains("MISCONF Redis is configured to save RDB"), "{line}");
    }
    assert!(
        ask(&mut client, "EVAL return(redis.call('incr','other')) 0").contains("MISCONF Redis is configured")
    );
    assert_eq!(ask(&mut client, "GET key"), "\"1\"");
    for (line, reply) in HARMLESS {
        assert_eq!(ask(&mut client, line), *reply, "{line}");
    }
    assert_eq!(ask(&mut client, "MULTI"), "+OK");
    for (line, _) in HARMLESS {
        assert_eq!(ask(&mut client, line), "+QUEUED");
    }
    assert!(ask(&mut client, "EXEC").starts_with("[:0 :1 "));
    assert_eq!(ask(&mut client, "MULTI"), "+OK");
    assert!(ask(&mut client, "SET key 2").contains("MISCONF"));
    assert!(ask(&mut client, "EXEC").contains("EXECABORT"));
    assert!(ask(&mut client, "INFO persistence").contains("rdb_last_bgsave_status:err"));
    assert_eq!(ask(&mut client, "CONFIG SET stop-writes-on-bgsave-error no"), "+OK");
    assert_eq!(ask(&mut client, "SET key 2"), "+OK");
    assert_eq!(ask(&mut client, "CONFIG SET stop-writes-on-bgsave-error yes"), "+OK");
    assert!(ask(&mut client, "SET key 3").contains("MISCONF"));
    // The next snapshot is whole, and writers may continue.
    fs::remove_dir(&place).unwrap();
    assert_eq!(ask(&mut client, "SAVE"), "+OK");
    assert_eq!(ask(&mut client, "SET key 4"), "+OK");
    assert_eq!(contents(&place), Contents::from([((0, "key".to_owned()), Held::Text(b"2".to_vec()))]));
}

#[test]
fn a_save_point_that_is_reached_saves() {
    let server = Server::start(&["--save", "1 3"]);
    let mut client = server.connect();
    let last = figure(&mut client, "rdb_last_save_time");
    for n in 0..3 {
        assert_eq!(figure(&mut client, "rdb_changes_since_last_save"), n);
        assert_eq!(ask(&mut client, &format!("SET key:{n} 1")), "+OK");
    }
    until("the save point is reached", || figure(&mut client, "rdb_saves") == 1);
    assert_eq!(figure(&mut client, "rdb_changes_since_last_save"), 0);
    assert!(figure(&mut client, "rdb_last_save_time") > last);
    assert_eq!(ask(&mut client, "LASTSAVE"), format!(":{}", figure(&mut client, "rdb_last_save_time")));
    assert_eq!(contents(&server.scratch().join("dump.rdb")).len(), 3);
}

#[test]
fn whoever_stops_the_server_saves_what_save_points_are_for() {
    let file = |server: &Server| server.scratch().join("dump.rdb");
    for (points, how, is_saved) in [
        ("3600 1000", "SHUTDOWN", true),
        ("3600 1000", "SHUTDOWN NOSAVE", false),
        ("", "SHUTDOWN", false),
        ("", "SHUTDOWN SAVE", true),
        ("3600 1000", "TERM", true),
        ("", "TERM", false),
        ("3600 1000", "INT", true),
    ] {
        let mut server = Server::start(&["--save", points]);
        let mut client = server.connect();
        assert_eq!(ask(&mut client, "SET key 1"), "+OK");
        match how {
            "TERM" | "INT" => {
                let pid = server.pid().to_string();
                let sent = Command::new("kill").args([&format!("-{how}"), &pid]).status();
                assert!(sent.expect("kill is everywhere").success());
            }
            command => {
                client.send(&command.split(' ').collect::<Vec<_>>());
                // A client would take a reply for a refusal.
                assert_eq!(client.await_close().expect("it is closed"), None, "{how}");
            }
        }
        assert!(server.await_end().success(), "{how}");
        assert_eq!(file(&server).exists(), is_saved, "{points:?}, {how}");
        if is_saved {
            assert_eq!(contents(&file(&server)).len(), 1);
        }
    }
    // A server that cannot save continues, unless the end is forced.
    let mut server = Server::start(&["--save", "3600 1000"]);
    let mut client = server.connect();
    fs::create_dir(file(&server)).unwrap();
    assert_eq!(ask(&mut client, "SHUTDOWN"), "-ERR Errors trying to SHUTDOWN. Check logs.");
    assert_eq!(ask(&mut client, "GET key"), "(nil)");
    client.send(&["SHUTDOWN", "FORCE"]);
    assert!(server.await_end().success());
}

/// Loaded data equals the saved data: types, deadlines, databases and functions.
#[test]
fn what_is_saved_is_there_after_the_next_start_and_after_a_reload() {
    for layout in LAYOUTS {
        let server = laid_out(layout);
        let mut client = server.connect();
        for line in [
            "SET string value",
            "SET passing value PX 100000000",
            "RPUSH list a b c",
            "SADD set 1 2 3",
            "SADD words a b c",
            "ZADD sorted 1 a 2.5 b",
            "HSET hash f v g w",
            "HSET fields f v g w",
            "HEXPIRE fields 100000 FIELDS 1 f",
            "XADD stream 1-1 f v",
            "XGROUP CREATE stream group 0",
            "XREADGROUP GROUP group me STREAMS stream >",
            "PFADD hll a b c",
        ] {
            assert!(!ask(&mut client, line).starts_with('-'), "{line}");
        }
        fill_set(&mut client, "large", 3000);
        let library = "#!lua name=lib\nredis.register_function('f', function() return 7 end)";
        assert_eq!(client.command(&["FUNCTION", "LOAD", library]).text().as_deref(), Some("lib"));
        ask(&mut client, "SELECT 9");
        ask(&mut client, "SET elsewhere 1");
        let digest = ask(&mut client, "DEBUG DIGEST");
        let mut others = server.connect();
        ask(&mut others, "WATCH string");
        assert_eq!(ask(&mut client, "DEBUG RELOAD"), "+OK");
        assert_eq!(ask(&mut client, "DEBUG DIGEST"), digest, "{layout:?}");
        assert_eq!(ask(&mut client, "FCALL f 0"), ":7");
        for line in ["MULTI", "PING"] {
            ask(&mut others, line);
        }
        assert_eq!(ask(&mut others, "EXEC"), "(nil-array)", "what is loaded is a change");
        // Writes after a save are lost with NOSAVE.
        ask(&mut client, "SET later 1");
        assert_eq!(ask(&mut client, "DEBUG RELOAD NOSAVE"), "+OK");
        assert_eq!(ask(&mut client, "DEBUG DIGEST"), digest);
        assert_eq!(ask(&mut client, "SAVE"), "+OK");
        let folder = server.scratch().display().to_string();
        let next = Server::start(&["--dir", &folder, "--shards", "64"]);
        let mut client = next.connect();
        assert_eq!(ask(&mut client, "DEBUG DIGEST"), digest, "{layout:?}");
        assert_eq!(ask(&mut client, "FCALL f 0"), ":7");
    }
}

#[test]
fn snapshots_go_where_the_directory_is_now() {
    let server = Server::start(&["--enable-protected-configs", "yes"]);
    let mut client = server.connect();
    let folder = server.scratch().join("elsewhere");
    fs::create_dir(&folder).unwrap();
    ask(&mut client, "SET key 1");
    assert_eq!(ask(&mut client, &format!("CONFIG SET dir {} dbfilename other.rdb", folder.display())), "+OK");
    assert_eq!(ask(&mut client, "SAVE"), "+OK");
    assert_eq!(contents(&folder.join("other.rdb")).len(), 1);
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 1, "no temporary file stays");
    ask(&mut client, "SET key 2");
    assert_eq!(ask(&mut client, "DEBUG RELOAD NOSAVE"), "+OK");
    assert_eq!(ask(&mut client, "GET key"), "\"1\"");
}

/// One snapshot is taken at a time, and SHUTDOWN does not wait for an older one.
#[test]
fn one_snapshot_is_taken_at_a_time() {
    let mut server = Server::start(&["--save", "", "--rdb-key-save-delay", "10000000"]);
    let (mut client, mut saver) = (server.connect(), server.connect());
    for n in 0..10 {
        ask(&mut client, &format!("SET key:{n} 1"));
    }
    saver.send(&["SAVE"]);
    until("a snapshot is under way", || figure(&mut client, "rdb_bgsave_in_progress") == 1);
    for line in ["SAVE", "BGSAVE", "BGSAVE SCHEDULE"] {
        assert_eq!(ask(&mut client, line), "-ERR Background save already in progress");
    }
    until("it has begun", || figure(&mut client, "current_save_keys_total") == 10);
    // Writers continue.
    assert_eq!(ask(&mut client, "SET key:1 2"), "+OK");
    assert_eq!(ask(&mut client, "CONFIG SET rdb-key-save-delay 0"), "+OK");
    assert_eq!(saver.receive().to_string(), "+OK");
    assert_eq!(contents(&server.scratch().join("dump.rdb"))[&(0, "key:1".to_owned())].number(), 1);
    // Within a transaction it is scheduled for later.
    for line in ["MULTI", "BGSAVE"] {
        ask(&mut client, line);
    }
    assert!(ask(&mut client, "EXEC").contains("Background saving scheduled"));
    until("that is done as well", || figure(&mut client, "rdb_saves") == 2);
    assert_eq!(contents(&server.scratch().join("dump.rdb"))[&(0, "key:1".to_owned())].number(), 2);
    // A client that has left makes no difference.
    ask(&mut client, "CONFIG SET rdb-key-save-delay 10000000");
    saver.send(&["SAVE"]);
    until("a snapshot is under way", || figure(&mut client, "rdb_bgsave_in_progress") == 1);
    drop(saver);
    ask(&mut client, "SET key:1 3");
    client.send(&["SHUTDOWN", "SAVE"]);
    ask(&mut server.connect(), "CONFIG SET rdb-key-save-delay 0");
    assert!(server.await_end().success());
    assert_eq!(contents(&server.scratch().join("dump.rdb"))[&(0, "key:1".to_owned())].number(), 3);
}

/// As in Valkey 8.1 (`tests/integration/rdb.tcl`): no file is written, and that is no failure.
#[test]
fn a_snapshot_in_the_background_can_be_cancelled() {
    const NONE: &str = "-ERR Background saving is currently not in progress or scheduled";
    let server = Server::start(&["--save", "", "--rdb-key-save-delay", "10000000"]);
    let (mut client, mut saver) = (server.connect(), server.connect());
    ask(&mut client, "MSET a 1 b 2 c 3");
    for _ in 0..2 {
        assert_eq!(ask(&mut client, "BGSAVE"), "+Background saving started");
        assert_eq!(ask(&mut client, "BGSAVE CANCEL"), "+Background saving cancelled");
        until("it has ended", || figure(&mut client, "rdb_bgsave_in_progress") == 0);
        assert_eq!(ask(&mut client, "BGSAVE CANCEL"), NONE);
    }
    let has = |name: &str| server.scratch().join(name).exists();
    assert!(!has("dump.rdb") && !has(&format!("temp-{}.rdb", server.pid())));
    assert_eq!(figure(&mut client, "rdb_saves"), 0);
    assert!(ask(&mut client, "INFO persistence").contains("rdb_last_bgsave_status:ok"));
    // A snapshot for which a client waits is not in the background. A scheduled one has not begun.
    saver.send(&["SAVE"]);
    until("a snapshot is under way", || figure(&mut client, "rdb_bgsave_in_progress") == 1);
    assert_eq!(ask(&mut client, "BGSAVE CANCEL"), NONE);
    ask(&mut client, "CONFIG SET rdb-key-save-delay 0");
    assert_eq!(saver.receive().to_string(), "+OK");
    for line in ["MULTI", "BGSAVE", "BGSAVE CANCEL"] {
        ask(&mut client, line);
    }
    assert_eq!(
        ask(&mut client, "EXEC"),
        "[+\"Background saving scheduled\" +\"Scheduled background saving cancelled\"]"
    );
    // The next one is taken.
    assert_eq!(ask(&mut client, "BGSAVE"), "+Background saving started");
    until("it is done", || figure(&mut client, "rdb_saves") == 2);
    until("it has ended", || figure(&mut client, "rdb_bgsave_in_progress") == 0);
    assert_eq!(contents(&server.scratch().join("dump.rdb")).len(), 3);
}

/// As Valkey 9.1.2 answers without a cluster: SAFE concerns its nodes, and FAILOVER needs one.
#[test]
fn a_shutdown_may_be_safe_and_fails_over_in_a_cluster_only() {
    let mut server = Server::start(&["--save", "", "--shutdown-on-sigterm", "safe failover"]);
    let mut client = server.connect();
    for line in ["SHUTDOWN FAILOVER", "SHUTDOWN SAFE FAILOVER", "SHUTDOWN FAILOVER NOW FORCE NOSAVE"] {
        let refusal = "-ERR SHUTDOWN FAILOVER is only supported in cluster mode.";
        assert_eq!(ask(&mut client, line), refusal, "{line}");
    }
    for line in ["SHUTDOWN ABORT SAFE", "SHUTDOWN ABORT FAILOVER", "SHUTDOWN FAILOVER SAVE NOSAVE"] {
        assert_eq!(ask(&mut client, line), "-ERR syntax error", "{line}");
    }
    let options = ["CONFIG", "GET", "shutdown-on-sigterm"];
    assert!(client.command(&options).to_string().contains("safe failover"));
    client.send(&["SHUTDOWN", "SAFE", "NOSAVE"]);
    assert!(server.await_end().success());
}

/// Two rewrites that were requested at once used to be both reported as started. This happened if the first
/// had not begun by then.
#[test]
fn a_rewrite_is_in_progress_as_soon_as_it_is_answered() {
    let server = Server::start(&["--save", "", "--rdb-key-save-delay", "10000000"]);
    let mut client = server.connect();
    ask(&mut client, "SET key 1");
    for n_done in 1..=10 {
        client.send(&["BGREWRITEAOF"]);
        client.send(&["BGREWRITEAOF"]);
        assert_eq!(client.receive().to_string(), "+Background append only file rewriting started");
        assert!(client.receive().to_string().contains("already in progress"));
        assert_eq!(figure(&mut client, "aof_rewrite_in_progress"), 1);
        ask(&mut client, "CONFIG SET rdb-key-save-delay 0");
        until("it is done", || figure(&mut client, "aof_rewrites") == n_done);
        until("it has ended", || figure(&mut client, "aof_rewrite_in_progress") == 0);
        ask(&mut client, "CONFIG SET rdb-key-save-delay 10000000");
    }
}

/// Save points count elements and not keys, as in Redis. A loader that fills few keys used to be saved only
/// once an hour, and one SWAPDB counted for each shard.
#[test]
fn changes_are_counted_by_elements() {
    let server = Server::start(&["--io-threads", "2"]);
    let mut client = server.connect();
    let mut last = 0;
    let mut counts = |line: &str| {
        ask(&mut client, line);
        let all = figure(&mut client, "rdb_changes_since_last_save");
        all - std::mem::replace(&mut last, all)
    };
    for (line, n) in [
        ("RPUSH list 1 2 3 4 5", 5),
        ("LPOP list 2", 2),
        ("LTRIM list 1 1", 2),
        ("LREM list 0 none", 0),
        ("SADD set 1 2 3 4 5 6 7 8", 8),
        ("SADD set 1 2", 0),
        ("SREM set 1 2 none", 2),
        ("SPOP set 2", 2),
        ("SPOP set 100", 4),
        ("HSET hash a 1 b 2 c 3", 3),
        ("HDEL hash a b none", 2),
        ("ZADD sorted 1 a 2 b 3 c 4 d", 4),
        ("ZADD sorted 1 a 3 b", 1),
        ("ZREMRANGEBYRANK sorted 0 1", 2),
        ("ZPOPMIN sorted 9", 2),
        ("XADD stream 1-1 a b", 1),
        ("XADD stream 1-2 a b", 1),
        ("XGROUP CREATE stream group 0", 1),
        ("XREADGROUP GROUP group one STREAMS stream >", 2),
        ("XACK stream group 1-1 1-2", 2),
        ("XTRIM stream MAXLEN 0", 2),
        ("MSET a 1 b 2 c 3", 3),
        ("SWAPDB 1 2", 1),
        ("FLUSHALL", 6),
    ] {
        let counted = counts(line);
        if line.starts_with("XREADGROUP") {
            assert!(counted > 0, "{line}");
        } else {
            assert_eq!(counted, n, "{line}");
        }
    }
}

/// Every write that the last snapshot would lack waits, in whichever way it runs. Reads are answered. CLIENT
/// UNPAUSE does not end this.
#[test]
fn from_the_cut_of_the_last_snapshot_on_nothing_that_writes_is_answered() {
    let commands: [&[&[&str]]; 12] = [
        &[&["SET", "plain", "1"]],
        &[&["MULTI"], &["INCR", "queued"], &["EXEC"]],
        &[&["EVAL", "return redis.call('INCR', KEYS[1])", "1", "scripted"]],
        &[&["EVAL", "return redis.call('INCR', 'undeclared')", "0"]],
        &[&["SUNIONSTORE", "stored", "large"]],
        &[&["RPUSH", "list", "1"]],
        &[&["GETDEL", "key"]],
        &[&["FLUSHDB"]],
        &[&["SWAPDB", "0", "1"]],
        &[&["PUBLISH", "channel", "message"]],
        &[&["FUNCTION", "LOAD", "#!lua name=late\nredis.register_function('f', function() return 1 end)"]],
        &[&["MULTI"], &["FUNCTION", "FLUSH"], &["EXEC"]],
    ];
    for (layout, aborts) in LAYOUTS.into_iter().zip([true, false].into_iter().cycle()) {
        let (threads, shards) = (layout.0.to_string(), layout.1.to_string());
        let args = ["--save", "3600 1000000", "--io-threads", &threads, "--shards", &shards];
        let mut server = Server::start(&args);
        let mut control = server.connect();
        assert_eq!(ask(&mut control, "SET key value"), "+OK");
        fill_set(&mut control, "large", 3000);
        let mut waiting: Vec<Client> = commands.iter().map(|_| server.connect()).collect();
        let mut popper = server.connect();
        popper.send(&["BLPOP", "list", "0"]);
        until("it waits", || figure(&mut control, "blocked_clients") == 1);
        assert_eq!(ask(&mut control, "CONFIG SET rdb-key-save-delay 10000000"), "+OK");
        let mut ending = server.connect();
        ending.send(&["SHUTDOWN"]);
        until("the last snapshot is cut", || figure(&mut control, "current_save_keys_total") == 2);
        for (client, lines) in waiting.iter_mut().zip(&commands) {
            for (nth, line) in lines.iter().enumerate() {
                client.send(line);
                if nth + 1 < lines.len() {
                    client.receive();
                }
            }
        }
        until("all are held back", || figure(&mut control, "blocked_clients") > commands.len());
        assert_eq!(ask(&mut control, "CLIENT UNPAUSE"), "+OK");
        assert_eq!(ask(&mut control, "GET key"), "\"value\"");
        assert_eq!(ask(&mut control, "EXISTS plain queued scripted undeclared stored list"), ":0");
        assert_eq!(ask(&mut control, "FUNCTION LIST"), "[]");
        assert!(waiting.iter_mut().all(|client| !client.has_reply()) && !popper.has_reply());
        if aborts {
            assert_eq!(ask(&mut control, "SHUTDOWN ABORT"), "+OK");
            assert_eq!(ending.receive().to_string(), "-ERR Errors trying to SHUTDOWN. Check logs.");
            for client in &mut waiting {
                let reply = client.receive();
                assert!(!reply.is_error(), "{reply}");
            }
            assert_eq!(ask(&mut control, "SHUTDOWN ABORT"), "-ERR No shutdown in progress.");
            assert_eq!(ask(&mut control, "SET after 1"), "+OK");
            assert_eq!(ask(&mut control, "FUNCTION FLUSH"), "+OK");
        } else {
            assert_eq!(ask(&mut control, "CONFIG SET rdb-key-save-delay 0"), "+OK");
            assert!(server.await_end().success(), "{}", server.log_tail());
            for client in waiting.iter_mut().chain([&mut popper, &mut ending]) {
                assert!(client.await_close().is_ok_and(|left| left.is_none()), "it is answered");
            }
            assert_eq!(contents(&server.scratch().join("dump.rdb")).len(), 2);
        }
    }
}
