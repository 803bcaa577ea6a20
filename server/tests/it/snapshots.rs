//! Files from which a server starts: those of redis-server 7.0, Braid's own, and damaged ones.

use std::{
    fs::{self, File},
    io::Write,
    path::{Path, PathBuf},
    process::{Command, Output},
    sync::atomic::{AtomicU32, Ordering},
};

use crate::support::{
    Client, Server,
    crowd::{figure, until},
    reference::{REFERENCE, has_reference},
    values::{Argv, Side, every_form},
};
use braid_storage::{
    entry::{
        EntryBox,
        db::Db,
        time::{Deadline, Millis},
    },
    rdb::{
        WriteFormat,
        file::{SnapshotOptions, SnapshotWriter, encode_entry},
    },
};

/// A directory of a test, removed at its end.
struct Directory(PathBuf);

impl Directory {
    fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("snapshots-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        fs::create_dir_all(&path).expect("the build's scratch space is writable");
        Self(path)
    }

    fn file(&self) -> PathBuf {
        self.0.join("dump.rdb")
    }

    fn with_file(bytes: &[u8]) -> Self {
        let directory = Self::new();
        fs::write(directory.file(), bytes).expect("the directory is the test's own");
        directory
    }

    fn name(&self) -> &str {
        self.0.to_str().expect("the path is text")
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        // A leftover is in the build's scratch space and does no harm.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Starts a program in a directory.
fn start_in(program: &str, directory: &Directory, args: &[&str]) -> Side {
    Side::of(Server::start_program(program, &[&["--dir", directory.name()], args].concat()))
}

fn braid() -> &'static str {
    env!("CARGO_BIN_EXE_braid-server")
}

/// Runs Braid to its end.
fn run(args: &[&str]) -> Output {
    Command::new(braid()).args(args).output().expect("the program runs")
}

/// Returns the commands that make a value, under another key than `made`.
fn of_key(commands: &[Argv], key: &str) -> Vec<Argv> {
    let renamed = |word: &Vec<u8>| if word == b"made" { key.as_bytes().to_vec() } else { word.clone() };
    commands.iter().map(|argv| argv.iter().map(renamed).collect()).collect()
}

fn key(nth: usize) -> String {
    format!("a key with a longish name, number {nth}")
}

/// Makes values of every form, in two databases in turn, some of them with deadlines.
fn fill(side: &mut Side) -> usize {
    let forms = every_form();
    for (nth, commands) in forms.iter().enumerate() {
        side.ask(&["SELECT", if nth % 2 == 0 { "0" } else { "9" }]);
        for argv in of_key(commands, &key(nth)) {
            let reply = side.client.command(&argv);
            assert!(!reply.is_error(), "{nth}: {reply}");
        }
        if nth % 5 == 0 {
            side.ask(&["PEXPIREAT", &key(nth), "9999999999999"]);
        }
    }
    let library = "#!lua name=lib\nredis.register_function('of_file', function() return 'here' end)";
    assert_eq!(side.ask(&["FUNCTION", "LOAD", library]).to_string(), "\"lib\"");
    forms.len()
}

fn assert_same(expected: &mut Side, found: &mut Side, n: usize) {
    assert_same_but(&[], expected, found, n);
}

/// Compares all data except some fields of XINFO.
fn assert_same_but(names: &[&[u8]], expected: &mut Side, found: &mut Side, n: usize) {
    for nth in 0..n {
        for side in [&mut *expected, &mut *found] {
            side.ask(&["SELECT", if nth % 2 == 0 { "0" } else { "9" }]);
        }
        let key = key(nth);
        let (there, here) = (expected.contents_without(&key, names), found.contents_without(&key, names));
        assert!(there == here, "{nth}: {here} and not {there}");
        assert_eq!(expected.ask(&["PEXPIRETIME", &key]), found.ask(&["PEXPIRETIME", &key]), "{nth}");
    }
    for side in [expected, found] {
        assert_eq!(side.ask(&["FCALL", "of_file", "0"]).to_string(), "\"here\"");
    }
}

#[test]
fn files_of_redis_are_loaded() {
    if !has_reference("snapshots") {
        return;
    }
    for args in [
        &["--maxmemory-policy", "allkeys-lru"][..],
        &["--rdbcompression", "no", "--rdbchecksum", "no", "--maxmemory-policy", "allkeys-lfu"],
        &[
            "--hash-max-listpack-entries",
            "0",
            "--zset-max-listpack-entries",
            "0",
            "--set-max-intset-entries",
            "0",
        ],
    ] {
        let directory = Directory::new();
        let mut redis = start_in(REFERENCE, &directory, args);
        let n = fill(&mut redis);
        assert_eq!(redis.ask(&["SAVE"]).to_string(), "+OK");
        let mut braid = start_in(braid(), &directory, args);
        assert_same(&mut redis, &mut braid, n);
        for side in [&mut redis, &mut braid] {
            side.ask(&["SELECT", "0"]);
        }
        let sizes = [&mut redis, &mut braid].map(|side| side.ask(&["DBSIZE"]));
        assert_eq!(sizes[0], sizes[1]);
        let log = braid.server.log_tail();
        assert!(log.contains("Loading RDB produced by version 7.0."), "{log}");
        assert!(
            log.contains(&format!(
                "Done loading RDB, keys loaded: {n}, keys expired: 0, empty keys skipped: 0."
            )),
            "{log}"
        );
    }
}

/// Under an LFU policy a file contains how often keys are used.
#[test]
fn how_keys_were_used_comes_along() {
    if !has_reference("snapshots") {
        return;
    }
    let directory = Directory::new();
    let args = ["--maxmemory-policy", "allkeys-lfu"];
    let mut redis = start_in(REFERENCE, &directory, &args);
    redis.ask(&["SET", "k", "v"]);
    let payload = redis.dump("k");
    redis.client.command(&[&b"RESTORE"[..], b"used", b"0", &payload, b"FREQ", b"77"]);
    redis.ask(&["SAVE"]);
    let mut braid = start_in(self::braid(), &directory, &args);
    assert_eq!(braid.ask(&["OBJECT", "FREQ", "used"]).to_string(), ":77");
    assert_eq!(braid.ask(&["OBJECT", "FREQ", "k"]), redis.ask(&["OBJECT", "FREQ", "k"]));
}

/// Returns an entry of a file. It is DUMP's payload of a value, with the key after the type.
fn entry_of(payload: &[u8], key: &str) -> Vec<u8> {
    let value = &payload[..payload.len() - 10];
    assert!(key.len() < 64, "its length is one byte");
    [
        &[252][..],
        &9_999_999_999_999u64.to_le_bytes(),
        &value[..1],
        &[key.len() as u8],
        key.as_bytes(),
        &value[1..],
    ]
    .concat()
}

#[test]
fn our_files_are_loaded_by_redis() {
    if !has_reference("snapshots") {
        return;
    }
    let mut braid = Side::start(braid());
    let n = fill(&mut braid);
    for options in [(true, true), (false, true), (true, false)] {
        let (checksum, compress) = options;
        let options =
            SnapshotOptions { format: WriteFormat::Auto, has_field_deadlines: false, checksum, compress };
        let mut writer = SnapshotWriter::new(Vec::new(), options);
        writer.aux(b"redis-ver", b"7.4.0").unwrap();
        writer
            .write_library(
                b"#!lua name=lib\nredis.register_function('of_file', function() return 'here' end)",
            )
            .unwrap();
        for db in [0, 9] {
            writer.select(Db(db)).unwrap();
            writer.sizes(n as u64 / 2, n as u64 / 2).unwrap();
            braid.ask(&["SELECT", &db.to_string()]);
            for nth in (db as usize % 2..n).step_by(2) {
                braid.ask(&["PEXPIREAT", &key(nth), "9999999999999"]);
                writer.entries(&entry_of(&braid.dump(&key(nth)), &key(nth))).unwrap();
            }
        }
        let directory = Directory::with_file(&writer.finish().unwrap().0);
        let mut redis = start_in(REFERENCE, &directory, &[]);
        assert_same(&mut braid, &mut redis, n);
        let mut again = start_in(self::braid(), &directory, &[]);
        assert_same(&mut braid, &mut again, n);
    }
}

/// Returns a file with entries of strings, each in a database.
fn strings(entries: &[(u32, &str, Option<u64>)]) -> Vec<u8> {
    let options = SnapshotOptions {
        format: WriteFormat::Auto,
        has_field_deadlines: false,
        checksum: true,
        compress: true,
    };
    let mut writer = SnapshotWriter::new(Vec::new(), options);
    for &(db, key, deadline) in entries {
        writer.select(Db(db)).unwrap();
        let mut entry = EntryBox::string(key.as_bytes(), format!("value of {key}").as_bytes());
        entry.set_deadline(deadline.map(Deadline::at));
        let mut encoded = Vec::new();
        encode_entry(&mut encoded, entry.as_ref(), None, Millis(0));
        writer.entries(&encoded).unwrap();
    }
    writer.finish().unwrap().0
}

#[test]
fn keys_that_have_expired_are_left_out_and_counted() {
    let directory = Directory::with_file(&strings(&[
        (0, "past", Some(1)),
        (0, "future", Some(9_999_999_999_999)),
        (1, "ever", None),
    ]));
    let mut side = start_in(braid(), &directory, &[]);
    assert_eq!(side.ask(&["GET", "future"]).to_string(), "\"value of future\"");
    assert_eq!(side.ask(&["DBSIZE"]).to_string(), ":1");
    let info = side.ask(&["INFO"]).text().expect("INFO is text");
    for line in [
        "rdb_last_load_keys_expired:1",
        "rdb_last_load_keys_loaded:2",
        "loading:0",
        "db0:keys=1,expires=1,",
        "db1:keys=1,expires=0,",
    ] {
        assert!(info.contains(line), "{line}: {info}");
    }
    assert!(!info.contains("loading_start_time"));
}

#[test]
fn many_keys_are_loaded_over_all_layouts() {
    let names: Vec<String> = (0..50_000).map(|nth| format!("key:{nth}")).collect();
    let entries: Vec<_> = names.iter().zip(0u32..).map(|(name, nth)| (nth % 3, &name[..], None)).collect();
    let directory = Directory::with_file(&strings(&entries));
    for (shards, io_threads) in [("1", "1"), ("2", "4"), ("1024", "2")] {
        let mut side = start_in(braid(), &directory, &["--shards", shards, "--io-threads", io_threads]);
        for (db, n) in [("0", 16_667), ("1", 16_667), ("2", 16_666)] {
            side.ask(&["SELECT", db]);
            assert_eq!(side.ask(&["DBSIZE"]).to_string(), format!(":{n}"));
        }
        for (db, name, _) in entries.iter().step_by(97) {
            side.ask(&["SELECT", &db.to_string()]);
            assert_eq!(side.ask(&["GET", name]).to_string(), format!("\"value of {name}\""));
        }
        side.ask(&["SELECT", "0"]);
        assert_eq!(side.ask(&["SET", "key:0", "new"]).to_string(), "+OK");
        assert_eq!(side.ask(&["GET", "key:0"]).to_string(), "\"new\"");
    }
}

/// Returns the log of a server that fails to start from a file. Its exit code must be 1.
fn refusal(bytes: &[u8], args: &[&str]) -> String {
    let directory = Directory::with_file(bytes);
    let output =
        run(&[&["--port", "0", "--unixsocket", "braid.sock", "--dir", directory.name()], args].concat());
    assert_eq!(output.status.code(), Some(1));
    let log = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(log.contains("braid-server --check-rdb") && log.contains("dump.rdb"), "{log}");
    assert!(!log.contains("Ready to accept connections"), "{log}");
    log
}

#[test]
fn what_cannot_be_loaded_ends_the_start_and_is_named() {
    let right = strings(&[(0, "a", None), (12, "b", None)]);
    let log = refusal(&right, &["--databases", "12"]);
    let expected = "dump.rdb failed at byte 25: it has keys in database 12, and there are 12 databases: set 'databases' to 13 or more";
    assert!(log.contains(expected), "{log}");
    let mut damaged = right.clone();
    damaged[20] ^= 1;
    let log = refusal(&damaged, &[]);
    assert!(log.contains("failed at byte 42: CRC error: the checksum is "), "{log}");
    let log = refusal(&right[..40], &[]);
    assert!(log.contains("the file ends in the middle of a record"), "{log}");
    let log = refusal(b"hello, world", &[]);
    assert!(log.contains("failed at byte 0: this is no RDB file"), "{log}");
    let log = refusal(&strings(&[(0, "a", None), (3, "twice", None), (3, "twice", None)]), &[]);
    assert!(log.contains(": database 3 has the key 'twice' twice"), "{log}");
    // A set with a repeated member: its bytes are well formed, so only building it finds the fault.
    let twice = [&b"REDIS0010\xfe\x00\x02\x03bad\x02\x01m\x01m\xff"[..], &[0; 8]].concat();
    let log = refusal(&twice, &[]);
    let why = "the value is not well formed: Duplicate set members detected, at byte 3 of the value";
    assert!(log.contains(&format!("failed at byte 11, key 'bad': {why}")), "{log}");
    assert!(log.contains("Terminating server after rdb file reading failure."), "{log}");
    // Files without an end or a beginning.
    assert!(refusal(b"", &[]).contains("this is no RDB file"));
}

/// Faulty versions of Redis have written such values. Redis skips them, too, and reports the first ten.
#[test]
fn values_with_nothing_in_them_are_skipped_and_told() {
    let mut bytes = b"REDIS0010\xfe\x00\x00\x04text\x01v".to_vec();
    for nth in 10..22 {
        bytes.extend_from_slice(format!("\x02\x07empty{nth}\0").as_bytes());
    }
    bytes.extend_from_slice(&[&[0xff][..], &[0; 8]].concat());
    let directory = Directory::with_file(&bytes);
    let mut side = start_in(braid(), &directory, &["--sanitize-dump-payload", "yes"]);
    assert_eq!(side.ask(&["DBSIZE"]).to_string(), ":1");
    let log = side.server.log_tail();
    assert!(log.contains("keys loaded: 1, keys expired: 0, empty keys skipped: 12."), "{log}");
    assert_eq!(log.matches("skipping empty key: empty").count(), 10, "{log}");
    let checked = run(&["--check-rdb", directory.file().to_str().expect("the path is text")]);
    let told = String::from_utf8_lossy(&checked.stdout).into_owned();
    assert!(told.contains("keys with nothing in them, which are skipped: 12"), "{told}");
    // They are absent from the next file.
    assert_eq!(side.ask(&["DEBUG", "RELOAD"]).to_string(), "+OK");
    let log = side.server.log_tail();
    assert_eq!(log.matches("skipping empty key").count(), 10, "{log}");
}

#[test]
fn a_file_with_a_wrong_checksum_is_loaded_again_if_debug_says_so() {
    let directory = Directory::with_file(&strings(&[(0, "a", None)]));
    let mut side = start_in(braid(), &directory, &[]);
    let mut wrong = fs::read(directory.file()).expect("it is there");
    *wrong.last_mut().expect("it has an end") ^= 1;
    fs::write(directory.file(), wrong).expect("the directory is the test's own");
    assert!(side.ask(&["DEBUG", "RELOAD", "NOSAVE"]).is_error());
    side.ask(&["DEBUG", "SET-SKIP-CHECKSUM-VALIDATION", "1"]);
    assert_eq!(side.ask(&["DEBUG", "RELOAD", "NOSAVE"]).to_string(), "+OK");
    assert_eq!(side.ask(&["GET", "a"]).to_string(), "\"value of a\"");
    side.ask(&["DEBUG", "SET-SKIP-CHECKSUM-VALIDATION", "0"]);
    assert!(side.ask(&["DEBUG", "RELOAD", "NOSAVE"]).is_error());
    assert_eq!(side.ask(&["GET", "a"]).to_string(), "\"value of a\"");
}

#[test]
fn checksums_are_not_compared_where_that_is_said() {
    let mut wrong = strings(&[(0, "a", None)]);
    *wrong.last_mut().expect("it has an end") ^= 1;
    refusal(&wrong, &[]);
    let directory = Directory::with_file(&wrong);
    let mut side = start_in(braid(), &directory, &["--rdbchecksum", "no"]);
    assert_eq!(side.ask(&["GET", "a"]).to_string(), "\"value of a\"");
}

#[test]
fn a_file_can_be_named_otherwise_and_none_is_no_fault() {
    let directory = Directory::with_file(&strings(&[(0, "a", None)]));
    let mut side = start_in(braid(), &directory, &["--dbfilename", "other.rdb"]);
    assert_eq!(side.ask(&["DBSIZE"]).to_string(), ":0");
    fs::rename(directory.file(), directory.0.join("other.rdb")).expect("the directory is the test's own");
    let mut side = start_in(braid(), &directory, &["--dbfilename", "other.rdb"]);
    assert_eq!(side.ask(&["DBSIZE"]).to_string(), ":1");
    let mut side = start_in(braid(), &directory, &[]);
    assert_eq!(side.ask(&["DBSIZE"]).to_string(), ":0");
}

/// Makes a pipe in place of a file, with an end for writing. The server loads for as long as the test wants.
fn pipe() -> (Directory, File) {
    let directory = Directory::new();
    let made = Command::new("mkfifo").arg(directory.file()).status().expect("there is mkfifo");
    assert!(made.success());
    // The pipe has no reader yet. Opening it only for writing would wait for one.
    let pipe = File::options().read(true).write(true).open(directory.file()).expect("it is there");
    (directory, pipe)
}

/// Starts a server that loads the data written into the pipe.
fn loading(directory: &Directory) -> Server {
    Server::start_loading(&["--dir", directory.name()])
}

#[test]
fn while_it_loads_commands_on_data_are_refused() {
    let (directory, mut pipe) = pipe();
    let server = loading(&directory);
    let bytes = strings(&[(0, "a", None), (1, "b", None)]);
    pipe.write_all(&bytes[..20]).expect("the server reads it");
    let mut client = server.connect();
    let mut ask = |argv: &[&str]| client.command(argv).to_string();
    let refused = "-LOADING Redis is loading the dataset in memory";
    for argv in [
        &["GET", "a"][..],
        &["SET", "a", "b"],
        &["PING"],
        &["DBSIZE"],
        &["FLUSHALL"],
        &["EVAL", "return 1", "0"],
        &["BLPOP", "a", "0"],
        &["KEYS", "*"],
    ] {
        assert_eq!(ask(argv), refused, "{argv:?}");
    }
    assert_eq!(ask(&["MULTI"]), "+OK");
    assert_eq!(ask(&["GET", "a"]), refused);
    assert_eq!(ask(&["EXEC"]), "-EXECABORT Transaction discarded because of previous errors.");
    assert_eq!(ask(&["SELECT", "1"]), "+OK");
    assert_eq!(ask(&["CONFIG", "SET", "timeout", "0"]), "+OK");
    assert_eq!(ask(&["PUBLISH", "channel", "message"]), ":0");
    assert_eq!(ask(&["CLIENT", "KILL", "ID", "12345"]), ":0");
    let info = client.command(&["INFO", "persistence"]).text().expect("INFO is text");
    for field in [
        "loading:1",
        "loading_start_time:",
        "loading_total_bytes:0",
        "loading_loaded_bytes:0",
        "loading_loaded_perc:",
        "loading_eta_seconds:1",
    ] {
        assert!(info.contains(field), "{field}: {info}");
    }
    let mut subscriber = server.connect();
    subscriber.send(&["SUBSCRIBE", "channel"]);
    assert!(subscriber.receive().to_string().contains("subscribe"));
    pipe.write_all(&bytes[20..]).expect("the server reads it");
    drop(pipe);
    await_loaded(&mut client);
    assert_eq!(client.command(&["GET", "b"]).to_string(), "\"value of b\"");
    assert_eq!(client.command(&["PUBLISH", "channel", "message"]).to_string(), ":1");
    assert!(server.log_tail().contains("Ready to accept connections"));
}

/// Sends commands until the reply is no refusal any more.
fn await_loaded(client: &mut Client) {
    while client.command(&["PING"]).to_string().starts_with("-LOADING") {
        std::thread::yield_now();
    }
}

#[test]
fn a_server_can_be_stopped_while_it_loads() {
    let (directory, pipe) = pipe();
    let mut server = loading(&directory);
    let mut client = server.connect();
    client.send(&["SHUTDOWN", "NOSAVE"]);
    assert!(client.await_close().is_ok());
    drop(pipe);
    assert!(server.await_end().success(), "{}", server.log_tail());
}

/// Partly loaded data must not replace the file that is being loaded.
#[test]
fn a_server_that_is_stopped_while_it_loads_saves_nothing() {
    for how in ["SHUTDOWN", "SHUTDOWN SAVE", "SHUTDOWN FORCE", "TERM"] {
        let (directory, pipe) = pipe();
        let options = ["--dir", directory.name(), "--save", "3600 1"];
        let mut server = Server::start_loading(&options);
        let mut client = server.connect();
        assert!(client.command(&["PING"]).to_string().starts_with("-LOADING"));
        match how {
            "TERM" => {
                let sent = Command::new("kill").args(["-TERM", &server.pid().to_string()]).status();
                assert!(sent.expect("kill is everywhere").success());
            }
            command => client.send(&command.split(' ').collect::<Vec<_>>()),
        }
        assert!(client.await_close().is_ok());
        drop(pipe);
        assert!(server.await_end().success(), "{how}: {}", server.log_tail());
        let metadata = std::fs::symlink_metadata(directory.file()).expect("it is where it was");
        assert!(!metadata.is_file(), "{how}: it is the pipe still");
    }
}

#[test]
fn a_file_is_checked_without_a_server() {
    let mut bytes = strings(&[(0, "a", Some(1)), (0, "b", None), (3, "c", Some(9_999_999_999_999))]);
    let directory = Directory::with_file(&bytes);
    let path = directory.file();
    let path = path.to_str().expect("the path is text");
    let output = run(&["--check-rdb", path]);
    assert!(output.status.success());
    let report = String::from_utf8_lossy(&output.stdout).into_owned();
    let n_bytes = bytes.len();
    assert_eq!(
        report,
        format!(
            "{path} is valid: RDB version 10, {n_bytes} bytes, checksum right\n  libraries of functions: 0\n  \
             db0: 2 keys, 1 with a deadline, 1 of those expired, 22 bytes of values\n    string: 2\n  \
             db3: 1 keys, 1 with a deadline, 0 of those expired, 11 bytes of values\n    string: 1\n"
        )
    );
    bytes[30] ^= 0x40;
    fs::write(path, &bytes).expect("the directory is the test's own");
    let output = run(&["--check-rdb", path]);
    assert_eq!(output.status.code(), Some(1));
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(error.starts_with(&format!("{path} is not valid: at byte ")), "{error}");
    assert_eq!(run(&["--check-rdb"]).status.code(), Some(1));
    let missing = run(&["--check-rdb", "/nonexistent.rdb"]);
    assert_eq!(missing.status.code(), Some(1));
    assert!(
        String::from_utf8_lossy(&missing.stderr).contains("/nonexistent.rdb cannot be read: No such file")
    );
}

/// Copies a directory's append-only file.
fn copy_of_log(directory: &Directory) -> Directory {
    let copy = Directory::new();
    fs::create_dir(copy.0.join("appendonlydir")).expect("the directory is the test's own");
    for file in fs::read_dir(directory.0.join("appendonlydir")).expect("it is there") {
        let file = file.expect("it can be listed");
        fs::copy(file.path(), copy.0.join("appendonlydir").join(file.file_name())).expect("there is room");
    }
    copy
}

/// Rewrites the append-only file.
fn rewrite_log(side: &mut Side) {
    let n_before = figure(&mut side.client, "aof_rewrites");
    side.ask(&["BGREWRITEAOF"]);
    until("it is rewritten", || figure(&mut side.client, "aof_rewrites") > n_before);
}

#[test]
fn a_base_of_commands_is_loaded_here_and_by_redis() {
    let directory = Directory::new();
    let mut side = start_in(braid(), &directory, &["--appendonly", "yes", "--aof-use-rdb-preamble", "no"]);
    let n = fill(&mut side);
    rewrite_log(&mut side);
    let base = fs::read(directory.0.join("appendonlydir/appendonly.aof.2.base.aof")).expect("it was written");
    assert!(base.windows(3).any(|bytes| bytes == b"SET"));
    let has_redis = has_reference("a base of commands");
    for program in [braid(), REFERENCE].iter().take(1 + usize::from(has_redis)) {
        let copy = copy_of_log(&directory);
        let mut found = start_in(program, &copy, &["--appendonly", "yes"]);
        // The time when a consumer was made differs, and nodes are filled anew.
        assert_same_but(&[b"seen-time", b"radix-tree-keys"], &mut side, &mut found, n);
        assert_eq!(found.ask(&["SELECT", "0"]).to_string(), side.ask(&["SELECT", "0"]).to_string());
        assert_eq!(found.ask(&["DBSIZE"]), side.ask(&["DBSIZE"]), "{program}");
    }
}

#[test]
fn a_base_of_commands_has_the_deadlines_of_fields() {
    let directory = Directory::new();
    let args = ["--appendonly", "yes", "--aof-use-rdb-preamble", "no"];
    let mut side = start_in(braid(), &directory, &args);
    let fields: Vec<String> = (0..200).flat_map(|nth| [format!("field:{nth}"), nth.to_string()]).collect();
    let fields: Vec<&str> = fields.iter().map(String::as_str).collect();
    side.ask(&[&["HSET", "hash"], &fields[..]].concat());
    side.ask(&["HPEXPIREAT", "hash", "9999999999999", "FIELDS", "2", "field:3", "field:100"]);
    side.ask(&["HSET", "kept", "a", "1", "over", "2"]);
    side.ask(&["HPEXPIRE", "kept", "1000", "FIELDS", "1", "over"]);
    side.ask(&["DEBUG", "ADVANCE-TIME", "2000"]);
    rewrite_log(&mut side);
    let copy = copy_of_log(&directory);
    let mut found = start_in(braid(), &copy, &args);
    let asked = ["HPEXPIRETIME", "hash", "FIELDS", "3", "field:3", "field:4", "field:100"];
    assert_eq!(found.ask(&asked).to_string(), side.ask(&asked).to_string());
    assert_eq!(found.contents("hash"), side.contents("hash"));
    assert_eq!(found.ask(&["HGETALL", "kept"]).to_string(), side.ask(&["HGETALL", "kept"]).to_string());
}

/// Redis omits these entries when it loads its own files.
#[test]
fn a_base_of_commands_has_entries_that_are_pending_and_were_deleted() {
    let directory = Directory::new();
    let args = ["--appendonly", "yes", "--aof-use-rdb-preamble", "no"];
    let mut side = start_in(braid(), &directory, &args);
    for command in [
        "XADD s 1-1 a b",
        "XADD s 2-1 a b",
        "XADD s 3-1 a b",
        "XGROUP CREATE s g 0",
        "XREADGROUP GROUP g alice STREAMS s >",
        "XDEL s 1-1 3-1",
        "XADD t 5-1 a b",
        "XGROUP CREATE t g 0",
        "XREADGROUP GROUP g bob STREAMS t >",
        "XDEL t 5-1",
        "XGROUP CREATE u g $ MKSTREAM",
    ] {
        let reply = side.ask(&command.split(' ').collect::<Vec<_>>());
        assert!(!reply.is_error(), "{command}: {reply}");
    }
    rewrite_log(&mut side);
    let copy = copy_of_log(&directory);
    let mut found = start_in(braid(), &copy, &args);
    for key in ["s", "t", "u"] {
        let names = [&b"seen-time"[..]];
        assert_eq!(found.contents_without(key, &names), side.contents_without(key, &names));
        let pending = ["XPENDING", key, "g"];
        assert_eq!(found.ask(&pending).to_string(), side.ask(&pending).to_string());
    }
}
