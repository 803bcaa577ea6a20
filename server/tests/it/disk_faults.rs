//! The effects of a full, broken or slow disk on clients and on the next server's data.
//!
//! `DEBUG AOF-FAIL` makes operations fail or wait, so nothing here depends on timing.

use std::fs::{self, OpenOptions};

use crate::support::{
    Client,
    crowd::{ask, figure, until},
    home::{Home, until_accepted, until_refused},
};

/// Makes operations on the append-only file fail or wait from now on.
fn fail(client: &mut Client, operation: &str, fault: &str) {
    assert_eq!(ask(client, &format!("DEBUG AOF-FAIL {operation} {fault} 1 1000000")), "+OK");
}

/// Makes one operation fail: the `nth` of its kind from now on.
fn fail_once(client: &mut Client, operation: &str, nth: usize) {
    assert_eq!(ask(client, &format!("DEBUG AOF-FAIL {operation} EIO {nth} 1")), "+OK");
}

fn info(client: &mut Client, field: &str) -> String {
    let info = client.command(&["INFO", "persistence"]).text().expect("it is text");
    let found = info.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':').map(str::to_owned));
    found.unwrap_or_else(|| panic!("there is no {field}"))
}

/// Waits until a rewrite has ended and is counted. This happens a moment after writes are accepted again.
fn await_rewrite(client: &mut Client) {
    until("it is rewritten", || figure(client, "aof_rewrite_in_progress") == 0);
}

#[test]
fn a_full_disk_refuses_writes_loses_nothing_and_goes_on_by_itself() {
    for fsync in ["always", "everysec", "no"] {
        for goes_on in [false, true] {
            let home = Home::new();
            let args = ["--appendfsync", fsync, "--io-threads", "2"];
            let server = home.serve(&args);
            let (mut control, mut writer) = (server.connect(), server.connect());
            assert_eq!(ask(&mut control, "SET before 1"), "+OK");
            fail(&mut control, "RESERVE", "ENOSPC");
            fail(&mut control, "WRITE", "ENOSPC");
            writer.send(&["SET", "later", "1"]);
            until_refused(&mut control);
            assert_eq!(ask(&mut control, "GET before"), "\"1\"");
            let refusal = ask(&mut control, "EVAL return(redis.call('INCR','refused')) 0");
            assert!(refusal.contains("MISCONF"), "{refusal}");
            let was_told = writer.has_reply();
            if !goes_on {
                assert!(!was_told, "what is not in the file is not acknowledged");
                home.found_after_kill(server, &args, &["later"]);
                continue;
            }
            fail(&mut control, "RESERVE", "NONE");
            fail(&mut control, "WRITE", "NONE");
            until_accepted(&mut control);
            assert_eq!(writer.receive().to_string(), "+OK");
            home.found_after_kill(server, &args, &[]);
        }
    }
}

#[test]
fn what_is_on_its_way_when_the_disk_fills_up_has_room() {
    for fsync in ["always", "everysec", "no"] {
        let home = Home::new();
        let args = ["--appendfsync", fsync];
        let server = home.serve(&args);
        let mut control = server.connect();
        fail(&mut control, "RESERVE", "ENOSPC");
        assert_eq!(ask(&mut control, "SET before 1"), "+OK");
        until_refused(&mut control);
        fail(&mut control, "RESERVE", "NONE");
        // Nothing waits to be written, and the server still notices the space.
        until_accepted(&mut control);
        assert_eq!(ask(&mut control, "SET later 1"), "+OK");
        home.found_after_kill(server, &args, &[]);
    }
}

#[test]
fn what_could_not_be_synced_is_acknowledged_only_when_a_new_base_has_it() {
    for goes_on in [false, true] {
        let home = Home::new();
        let args = ["--appendfsync", "always", "--io-threads", "2"];
        let server = home.serve(&args);
        let (mut control, mut writer) = (server.connect(), server.connect());
        assert_eq!(ask(&mut control, "SET before 1"), "+OK");
        fail(&mut control, "BASE", "HOLD");
        // A second sync would succeed, because the system reports a failure only once.
        fail_once(&mut control, "SYNC", 1);
        writer.send(&["SET", "later", "1"]);
        until_refused(&mut control);
        until("the base is being written", || figure(&mut control, "aof_rewrite_in_progress") == 1);
        assert_eq!(ask(&mut control, "GET before"), "\"1\"");
        until("there is a new increment", || home.parts(".incr.aof").len() == 2);
        assert!(!writer.has_reply(), "what may be lost is not acknowledged");
        assert!(ask(&mut control, "SET refused 1").starts_with("-MISCONF"));
        if !goes_on {
            home.found_after_kill(server, &args, &["later"]);
            continue;
        }
        fail(&mut control, "BASE", "NONE");
        assert_eq!(writer.receive().to_string(), "+OK");
        until_accepted(&mut control);
        await_rewrite(&mut control);
        assert_eq!(figure(&mut control, "aof_rewrites"), 1);
        assert_eq!((home.parts(".1.incr.aof").len(), home.parts(".2.incr.aof").len()), (0, 1));
        assert_eq!(ask(&mut writer, "INCR counter"), ":1");
        home.found_after_kill(server, &args, &[]);
    }
}

#[test]
fn a_failed_sync_under_everysec_is_mended_by_itself() {
    let home = Home::new();
    let args = ["--appendfsync", "everysec"];
    let server = home.serve(&args);
    let mut control = server.connect();
    assert_eq!(ask(&mut control, "SET before 1"), "+OK");
    fail(&mut control, "BASE", "HOLD");
    fail_once(&mut control, "SYNC", 1);
    assert_eq!(ask(&mut control, "SET later 1"), "+OK");
    until_refused(&mut control);
    assert_eq!(ask(&mut control, "MGET before later"), "[\"1\" \"1\"]");
    fail(&mut control, "BASE", "NONE");
    until_accepted(&mut control);
    await_rewrite(&mut control);
    assert_eq!((figure(&mut control, "aof_rewrites"), home.parts(".1.incr.aof").len()), (1, 0));
    home.found_after_kill(server, &args, &[]);
}

/// The old increment's sync fails at the beginning of a rewrite. A success of the next increment must not
/// count for it.
#[test]
fn a_sync_that_fails_where_a_rewrite_begins_is_mended_by_itself() {
    let home = Home::new();
    let args = ["--appendfsync", "no"];
    let server = home.serve(&args);
    let mut control = server.connect();
    assert_eq!(ask(&mut control, "SET before 1"), "+OK");
    fail_once(&mut control, "SYNC", 1);
    ask(&mut control, "BGREWRITEAOF");
    until_refused(&mut control);
    until_accepted(&mut control);
    await_rewrite(&mut control);
    assert_eq!((figure(&mut control, "aof_rewrites"), home.parts(".1.incr.aof").len()), (1, 0));
    assert_eq!(ask(&mut control, "SET later 1"), "+OK");
    home.found_after_kill(server, &args, &[]);
}

#[test]
fn a_sync_that_fails_after_the_cut_of_a_rewrite_is_not_mended_by_its_base() {
    let home = Home::new();
    let args = ["--appendfsync", "always"];
    let server = home.serve(&args);
    let (mut control, mut writer) = (server.connect(), server.connect());
    assert_eq!(ask(&mut control, "SET before 1"), "+OK");
    fail(&mut control, "BASE", "HOLD");
    ask(&mut control, "BGREWRITEAOF");
    until("there is a new increment", || home.parts(".incr.aof").len() == 2);
    // The syncs for the cut are over.
    assert_eq!(ask(&mut control, "INCR counter"), ":1");
    fail_once(&mut control, "SYNC", 1);
    writer.send(&["SET", "later", "1"]);
    until_refused(&mut control);
    fail(&mut control, "BASE", "NONE");
    assert_eq!(writer.receive().to_string(), "+OK");
    until_accepted(&mut control);
    await_rewrite(&mut control);
    assert_eq!(figure(&mut control, "aof_rewrites"), 2, "the first base lacks what was lost");
    home.found_after_kill(server, &args, &[]);
}

#[test]
fn while_a_sync_takes_long_only_those_wait_who_asked_for_it() {
    for (threads, shards) in [("1", "1"), ("4", "64")] {
        let home = Home::new();
        let args = ["--appendfsync", "always", "--io-threads", threads, "--shards", shards];
        let server = home.serve(&args);
        let (mut control, mut writer, mut reader) = (server.connect(), server.connect(), server.connect());
        assert_eq!(ask(&mut control, "MSET before 1 later 0"), "+OK");
        fail(&mut control, "SYNC", "HOLD");
        writer.send(&["SET", "later", "1"]);
        until("it has run", || ask(&mut control, "INFO commandstats").contains("cmdstat_set:calls=1,"));
        reader.send(&["GET", "later"]);
        for _ in 0..100 {
            assert_eq!(ask(&mut control, "GET before"), "\"1\"");
        }
        assert!(!writer.has_reply() && !reader.has_reply());
        fail(&mut control, "SYNC", "NONE");
        assert_eq!(writer.receive().to_string(), "+OK");
        assert_eq!(reader.receive().to_string(), "\"1\"");
        home.found_after_kill(server, &args, &[]);
    }
}

/// Cuts the end off the last write.
fn tear(home: &Home) {
    let has_end = |bytes: &[u8]| bytes.windows(4).any(|word| word == b"torn");
    let mut parts = home.parts(".incr.aof");
    parts.retain(|path| has_end(&fs::read(path).expect("it can be read")));
    let path = parts.pop().expect("it was written");
    let file = OpenOptions::new().write(true).open(&path).expect("it can be written");
    let text = fs::read(&path).expect("it can be read");
    file.set_len(text.len() as u64 - 3).expect("it can be cut");
}

/// Each step of a rewrite fails in turn. Later writes go to files that are valid, even if their end is torn.
#[test]
fn a_rewrite_that_fails_leaves_files_that_hold() {
    // Before the end of the snapshot: the new increment, then the manifest. After it: the base's name, then
    // the manifest.
    let steps = [
        (false, "CREATE", 1),
        (false, "SYNC", 2),
        (false, "SYNC-FOLDER", 1),
        (false, "CREATE", 2),
        (false, "RENAME", 1),
        (false, "SYNC-FOLDER", 2),
        (true, "BASE", 1),
        (true, "RENAME", 1),
        (true, "SYNC-FOLDER", 1),
        (true, "CREATE", 1),
        (true, "WRITE", 1),
        (true, "SYNC", 1),
        (true, "RENAME", 2),
        (true, "SYNC-FOLDER", 2),
    ];
    for (is_late, operation, nth) in steps {
        let home = Home::new();
        let args = ["--appendfsync", "no"];
        let server = home.serve(&args);
        let mut control = server.connect();
        assert_eq!(ask(&mut control, "SET before 1"), "+OK");
        fail(&mut control, "BASE", "HOLD");
        if !is_late {
            fail_once(&mut control, operation, nth);
        }
        ask(&mut control, "BGREWRITEAOF");
        if is_late {
            let manifest = home.path().join("appendonlydir").join("appendonly.aof.manifest");
            until("the new increment is named", || {
                fs::read_to_string(&manifest).is_ok_and(|text| text.contains(".2.incr.aof"))
            });
            // A record is written to it, so all work of the cut is done.
            assert_eq!(ask(&mut control, "INCR counter"), ":1");
            fail_once(&mut control, operation, nth);
        }
        if operation != "BASE" {
            fail(&mut control, "BASE", "NONE");
        }
        await_rewrite(&mut control);
        let step = format!("{operation} {nth}, late: {is_late}");
        assert_eq!(info(&mut control, "aof_last_bgrewrite_status"), "err", "{step}");
        assert_eq!(ask(&mut control, "SET later 1"), "+OK", "{step}");
        assert_eq!(ask(&mut control, "SET torn 1"), "+OK", "{step}");
        server.stop();
        tear(&home);
        for _ in 0..2 {
            let server = home.serve(&args);
            let mut control = server.connect();
            assert_eq!(ask(&mut control, "MGET before later torn"), "[\"1\" \"1\" (nil)]", "{step}");
            server.stop();
        }
        let server = home.serve(&args);
        let mut control = server.connect();
        ask(&mut control, "BGREWRITEAOF");
        until("it is rewritten", || figure(&mut control, "aof_rewrites") == 1);
        home.found_after_kill(server, &args, &[]);
    }
}

/// Writes units, each in a frame of its own.
fn write_units(home: &Home) {
    let server = home.serve(&["--appendfsync", "always"]);
    let mut client = server.connect();
    assert_eq!(ask(&mut client, "SET a 11111"), "+OK");
    for line in ["MULTI", "SET b 22222", "SET c 33333", "EXEC"] {
        ask(&mut client, line);
    }
    assert_eq!(ask(&mut client, "SET d 44444"), "+OK");
    server.stop();
}

/// Returns how many of these units a server has. They must be the first ones, and whole.
fn n_units(client: &mut Client) -> usize {
    let values = ask(client, "MGET a b c d");
    let whole = [
        "[(nil) (nil) (nil) (nil)]",
        "[\"11111\" (nil) (nil) (nil)]",
        "[\"11111\" \"22222\" \"33333\" (nil)]",
        "[\"11111\" \"22222\" \"33333\" \"44444\"]",
    ];
    let found = whole.iter().position(|known| *known == values);
    let n_units = found.unwrap_or_else(|| panic!("{values} is served"));
    assert_eq!(ask(client, "DBSIZE"), format!(":{}", [0, 1, 3, 4][n_units]));
    n_units
}

/// The distance between the offsets under test. `BRAID_STRIDE=1` tests them all.
fn stride() -> usize {
    std::env::var("BRAID_STRIDE").map_or(7, |stride| stride.parse().expect("BRAID_STRIDE is a number"))
}

#[test]
fn a_file_that_is_torn_anywhere_loses_whole_units_and_no_more_at_the_second_start() {
    let home = Home::new();
    write_units(&home);
    let path = home.parts(".incr.aof").pop().expect("there is one");
    let whole = fs::read(&path).expect("it can be read");
    for n_bytes in (1..whole.len()).rev().step_by(stride()) {
        fs::write(&path, &whole[..n_bytes]).expect("it can be written");
        let server = home.serve(&[]);
        let n_found = n_units(&mut server.connect());
        assert!(n_found < 3);
        assert_eq!(ask(&mut server.connect(), "INCR e"), ":1");
        server.stop();
        let server = home.serve(&[]);
        let mut client = server.connect();
        assert_eq!(ask(&mut client, "GETDEL e"), "\"1\"", "torn at {n_bytes}");
        assert_eq!(n_units(&mut client), n_found, "torn at {n_bytes}");
        server.stop();
    }
}

#[test]
fn a_flipped_bit_is_refused_or_costs_whole_units_and_is_never_served() {
    let home = Home::new();
    write_units(&home);
    let path = home.parts(".incr.aof").pop().expect("there is one");
    let whole = fs::read(&path).expect("it can be read");
    let (mut n_refused, mut n_served) = (0, 0);
    for at in (0..whole.len()).step_by(stride()) {
        let mut flipped = whole.clone();
        flipped[at] ^= 1 << (at % 8);
        fs::write(&path, &flipped).expect("it can be written");
        match home.try_serve(&[]) {
            Err(why) => {
                n_refused += 1;
                assert!(why.contains("append") || why.contains("AOF"), "at {at}: {why}");
                assert!(home.check().is_err(), "at {at}");
            }
            Ok(server) => {
                n_served += 1;
                n_units(&mut server.connect());
                server.stop();
            }
        }
    }
    assert!(n_refused > 0, "{n_served} were served");
}

#[test]
fn config_set_says_that_the_file_cannot_be_begun_and_keeps_nobody_waiting() {
    const REFUSAL: &str = "-ERR CONFIG SET failed (possibly related to argument 'appendonly') - Unable to turn on AOF. Check \
                           server logs.";
    let home = Home::new();
    let server = home.serve(&["--appendonly", "no", "--io-threads", "1"]);
    let (mut control, mut other) = (server.connect(), server.connect());
    ask(&mut control, "SET before 1");
    for (operation, fault) in [
        ("CREATE", "EROFS"),
        ("WRITE", "ENOSPC"),
        ("RESERVE", "ENOSPC"),
        ("SYNC", "EIO"),
        ("SYNC-FOLDER", "EIO"),
    ] {
        fail(&mut control, operation, fault);
        let reply = ask(&mut control, "CONFIG SET maxclients 321 appendonly yes");
        assert_eq!(reply, REFUSAL, "{operation}");
        assert_eq!(info(&mut control, "aof_last_bgrewrite_status"), "err");
        assert_eq!(ask(&mut control, "CONFIG GET appendonly"), "[\"appendonly\" \"no\"]");
        assert!(!ask(&mut control, "CONFIG GET maxclients").contains("321"));
        fail(&mut control, operation, "NONE");
    }
    // While the disk is slow, the same thread serves other clients.
    fail(&mut control, "CREATE", "HOLD");
    for leaves in [true, false] {
        let mut asking = server.connect();
        asking.send(&["CONFIG", "SET", "appendonly", "yes"]);
        until("it waits", || ask(&mut control, "CLIENT LIST").contains("cmd=config|set"));
        assert_eq!(ask(&mut other, "INCR before"), if leaves { ":2" } else { ":3" });
        assert!(!asking.has_reply());
        if leaves {
            assert_eq!(ask(&mut control, "CLIENT KILL TYPE normal SKIPME yes"), ":2");
            other = server.connect();
            // Held once more, so that the file is seen before it is removed.
            fail(&mut control, "SYNC", "HOLD");
            fail(&mut control, "CREATE", "NONE");
            until("the file is begun", || !home.parts(".incr.aof").is_empty());
            fail(&mut control, "SYNC", "NONE");
            until("what was begun for nobody is removed", || home.parts(".incr.aof").is_empty());
            assert_eq!(ask(&mut control, "CONFIG GET appendonly"), "[\"appendonly\" \"no\"]");
            fail(&mut control, "CREATE", "HOLD");
        } else {
            fail(&mut control, "CREATE", "NONE");
            assert_eq!(asking.receive().to_string(), "+OK");
        }
    }
    until("it has its base", || figure(&mut control, "aof_rewrites") == 1);
    assert_eq!(ask(&mut control, "CONFIG SET appendonly no"), "+OK");
    until("it has ended", || !ask(&mut control, "INFO persistence").contains("aof_current_size"));
    // As in Redis, the file is begun at the end of a transaction that turns it on.
    for (words, reply) in [("MULTI", "+OK"), ("CONFIG SET appendonly yes", "+QUEUED"), ("EXEC", "[+OK]")] {
        assert_eq!(ask(&mut control, words), reply);
    }
    until("it has its base", || figure(&mut control, "aof_rewrites") == 2);
    server.stop();
    assert_eq!(ask(&mut home.serve(&[]).connect(), "GET before"), "\"3\"");
}

#[test]
fn config_set_begins_the_file_while_a_snapshot_is_taken_and_in_the_place_of_one_that_is_rewritten() {
    let home = Home::new();
    let server = home.serve(&["--appendonly", "no", "--rdb-key-save-delay", "100000000"]);
    let mut client = server.connect();
    ask(&mut client, "SET key value");
    assert!(ask(&mut client, "BGSAVE").starts_with('+'));
    until("it is under way", || figure(&mut client, "rdb_bgsave_in_progress") == 1);
    assert_eq!(ask(&mut client, "CONFIG SET appendonly yes"), "+OK");
    assert_eq!(ask(&mut client, "CONFIG SET appendonly no"), "+OK");
    ask(&mut client, "DEBUG GIVE-UP-SAVING");
    until("it is over", || figure(&mut client, "rdb_bgsave_in_progress") == 0);
    assert!(ask(&mut client, "BGREWRITEAOF").starts_with('+'));
    until("it is under way", || figure(&mut client, "aof_rewrite_in_progress") == 1);
    assert_eq!(ask(&mut client, "CONFIG SET appendonly yes"), "+OK");
    ask(&mut client, "CONFIG SET rdb-key-save-delay 0");
    until("it has its base", || figure(&mut client, "aof_rewrites") == 1);
    ask(&mut client, "SET other value");
    assert_eq!(ask(&mut client, "WAITAOF 1 0 0"), "[:1 :0]");
    server.stop();
    assert_eq!(ask(&mut home.serve(&[]).connect(), "DBSIZE"), ":2");
}

/// The file is scheduled or in progress for any observer that waits for it. Between a failed attempt and the
/// next one it used to be neither.
#[test]
fn a_file_that_could_not_begin_is_scheduled_until_it_does() {
    let home = Home::new();
    let server = home.serve(&["--appendonly", "no"]);
    let mut client = server.connect();
    ask(&mut client, "SET key value");
    let scheduled = |client: &mut Client| figure(client, "aof_rewrite_scheduled");
    assert_eq!(scheduled(&mut client), 0);
    fail(&mut client, "BASE", "ENOSPC");
    assert_eq!(ask(&mut client, "CONFIG SET appendonly yes"), "+OK");
    until("it has failed", || info(&mut client, "aof_last_bgrewrite_status") == "err");
    await_rewrite(&mut client);
    assert_eq!((scheduled(&mut client), figure(&mut client, "aof_enabled")), (1, 1));
    fail(&mut client, "BASE", "NONE");
    assert!(ask(&mut client, "BGREWRITEAOF").starts_with('+'));
    until("it has its base", || figure(&mut client, "aof_rewrites") > 0);
    until("it has begun", || {
        scheduled(&mut client) == 0 && figure(&mut client, "aof_rewrite_in_progress") == 0
    });
    assert_eq!(ask(&mut client, "WAITAOF 1 0 0"), "[:1 :0]");
}

/// Three conditions used to be taken for a file that cannot be appended to. These are a full folder, one
/// without write permission, and a lack of descriptors. Then all writes were refused until a rewrite
/// succeeded.
#[test]
fn a_rewrite_that_cannot_make_its_files_keeps_nobody_from_writing() {
    let faults = ["EROFS", "ENOSPC", "EDQUOT", "EIO"];
    let steps = [("CREATE", 1), ("CREATE", 2), ("RENAME", 1), ("SYNC-FOLDER", 1), ("BASE", 1)];
    for (operation, first) in steps {
        for fault in faults {
            let home = Home::new();
            let args = ["--appendfsync", "everysec"];
            let server = home.serve(&args);
            let mut client = server.connect();
            let step = format!("{operation} {first} {fault}");
            assert_eq!(ask(&mut client, "SET before 1"), "+OK");
            let planned = ask(&mut client, &format!("DEBUG AOF-FAIL {operation} {fault} {first} 1000000"));
            assert_eq!(planned, "+OK");
            for n_failed in 1..=2 {
                ask(&mut client, "BGREWRITEAOF");
                until("it has failed", || {
                    figure(&mut client, "aof_rewrites_consecutive_failures") == n_failed
                });
                await_rewrite(&mut client);
                assert_eq!(info(&mut client, "aof_last_bgrewrite_status"), "err", "{step}");
                assert_eq!(info(&mut client, "aof_last_write_status"), "ok", "{step}");
                assert_eq!(ask(&mut client, "INCR later"), format!(":{n_failed}"), "{step}");
                assert_eq!(ask(&mut client, "PING"), "+PONG", "{step}");
            }
            assert_eq!(ask(&mut client, "SET later 1"), "+OK", "{step}");
            if fault == "EIO" {
                fail(&mut client, operation, "NONE");
                ask(&mut client, "BGREWRITEAOF");
                until("it is rewritten", || figure(&mut client, "aof_rewrites") == 1);
                assert_eq!(info(&mut client, "aof_last_bgrewrite_status"), "ok", "{step}");
            }
            home.found_after_kill(server, &args, &[]);
        }
    }
}

/// An open file accepts appends even if its folder has moved. No new folder is made in its place, because it
/// would lack the other parts.
#[test]
fn a_rewrite_in_a_folder_that_was_moved_keeps_nobody_from_writing() {
    let home = Home::new();
    let server = home.serve(&[]);
    let mut client = server.connect();
    assert_eq!(ask(&mut client, "SET before 1"), "+OK");
    let (folder, moved) = (home.path().join("appendonlydir"), home.path().join("moved"));
    fs::rename(&folder, &moved).expect("the folder is the test's own");
    ask(&mut client, "BGREWRITEAOF");
    until("it has failed", || figure(&mut client, "aof_rewrites_consecutive_failures") == 1);
    await_rewrite(&mut client);
    assert_eq!(info(&mut client, "aof_last_bgrewrite_status"), "err");
    assert_eq!(ask(&mut client, "SET later 1"), "+OK");
    assert!(!folder.exists(), "it is made anew");
    fs::rename(&moved, &folder).expect("the folder is the test's own");
    ask(&mut client, "BGREWRITEAOF");
    until("it is rewritten", || figure(&mut client, "aof_rewrites") == 1);
    home.found_after_kill(server, &[], &[]);
}

/// The first line must contain the time, so the file is made anew. Where that is impossible, the time comes
/// after the first line.
#[test]
fn timestamps_in_a_folder_where_nothing_can_be_made_keep_nobody_from_writing() {
    let home = Home::new();
    let server = home.serve(&[]);
    let mut client = server.connect();
    fail(&mut client, "CREATE", "EROFS");
    assert_eq!(ask(&mut client, "CONFIG SET aof-timestamp-enabled yes"), "+OK");
    assert_eq!(ask(&mut client, "SET before 1"), "+OK");
    assert_eq!(ask(&mut client, "SET later 1"), "+OK");
    assert_eq!(ask(&mut client, "PING"), "+PONG");
    home.found_after_kill(server, &[], &[]);
}
