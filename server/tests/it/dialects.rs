//! Files of Redis and Valkey: loaded, checked, written in the format of either, and converted.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
    sync::atomic::{AtomicU32, Ordering},
};

use crate::support::{Server, values::Side};

/// A small file of Valkey 9.1.2, with every type in the databases 0 and 9.
const VALKEY: &[u8] = include_bytes!("../../../storage/src/rdb/tests/files/valkey-9.snapshot");

/// One of Redis 8.2.3.
const REDIS: &[u8] = include_bytes!("../../../storage/src/rdb/tests/files/redis-8.snapshot");

/// The deadline of the fields `a` and `c` of the hash `fields` in these files.
const FIELD_DEADLINE: &str = "4102444800001";

/// A directory of a test, removed at its end.
struct ScratchFolder(PathBuf);

impl ScratchFolder {
    fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("dialects-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        fs::create_dir_all(&path).expect("the build's scratch space is writable");
        Self(path)
    }

    /// A directory with this snapshot.
    fn with_file(bytes: &[u8]) -> Self {
        let directory = Self::new();
        fs::write(directory.path("dump.rdb"), bytes).expect("the directory is the test's own");
        directory
    }

    fn path(&self, name: &str) -> String {
        self.0.join(name).to_str().expect("the path is text").to_owned()
    }

    fn read(&self, name: &str) -> Vec<u8> {
        fs::read(self.path(name)).expect("the file is there")
    }

    fn start(&self, args: &[&str]) -> Side {
        let dir = self.0.to_str().expect("the path is text");
        Side::of(Server::start_program(env!("CARGO_BIN_EXE_braid-server"), &[&["--dir", dir], args].concat()))
    }

    /// Returns the log of a server that does not start here.
    fn refusal(&self, args: &[&str]) -> String {
        let dir = self.0.to_str().expect("the path is text");
        let output = run(&[&["--port", "0", "--unixsocket", "s", "--dir", dir], args].concat());
        assert_eq!(output.status.code(), Some(1));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }
}

impl Drop for ScratchFolder {
    fn drop(&mut self) {
        // A leftover is in the build's scratch space and does no harm.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Runs Braid to its end.
fn run(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_braid-server")).args(args).output().expect("the program runs")
}

/// Returns what a run printed. Its exit code must be this.
fn printed(args: &[&str], code: i32) -> String {
    let output = run(args);
    let text = [&output.stdout[..], &output.stderr].concat();
    let text = String::from_utf8_lossy(&text).into_owned();
    assert_eq!(output.status.code(), Some(code), "{text}");
    text
}

/// Asserts that a server has the data of the small files.
fn assert_loaded(side: &mut Side) {
    for db in ["0", "9"] {
        side.ask(&["SELECT", db]);
        assert_eq!(side.ask(&["DBSIZE"]).to_string(), ":11");
        assert_eq!(side.ask(&["GET", "number"]).to_string(), "\"-70000\"");
        assert_eq!(side.ask(&["PEXPIRETIME", "mortal"]).to_string(), format!(":410244480000{db}"));
        let times = side.ask(&["HPEXPIRETIME", "fields", "FIELDS", "3", "a", "b", "c"]).to_string();
        assert_eq!(times, format!("[:{FIELD_DEADLINE} :-1 :{FIELD_DEADLINE}]"));
        assert_eq!(side.ask(&["XLEN", "stream"]).to_string(), ":2");
        let pending = side.ask(&["XPENDING", "stream", "group"]).to_string();
        assert!(pending.contains("\"anne\"") && pending.starts_with("[:1"), "{pending}");
    }
    assert_eq!(side.ask(&["FCALL", "of_file", "0"]).to_string(), "\"here\"");
    side.ask(&["SELECT", "0"]);
}

#[test]
fn a_snapshot_of_valkey_is_loaded_and_written_in_each_format() {
    let directory = ScratchFolder::with_file(VALKEY);
    let checked = printed(&["--check-rdb", &directory.path("dump.rdb")], 0);
    assert!(checked.contains("is valid: RDB version 80 of Valkey, 977 bytes, checksum right"), "{checked}");
    let mut side = directory.start(&[]);
    assert_loaded(&mut side);
    for (format, head) in
        [("valkey-9", &b"VALKEY080"[..]), ("redis-7.4", b"REDIS0012"), ("auto", b"REDIS0012")]
    {
        assert_eq!(side.ask(&["CONFIG", "SET", "rdb-write-format", format]).to_string(), "+OK");
        assert_eq!(side.ask(&["SAVE"]).to_string(), "+OK");
        assert_eq!(&directory.read("dump.rdb")[..9], head);
        assert_eq!(side.ask(&["DEBUG", "RELOAD"]).to_string(), "+OK");
        assert_loaded(&mut side);
        // A payload of any format is restored.
        let payload = side.dump("fields");
        assert_eq!(side.restore("fields", &payload).to_string(), "+OK");
        assert_loaded(&mut side);
    }
    let written = directory.read("dump.rdb");
    side.ask(&["CONFIG", "SET", "rdb-write-format", "redis-7.0"]);
    assert!(side.ask(&["SAVE"]).is_error());
    let told = "the key 'fields' of database 0: fields of the hash have deadlines, which the format redis-7.0 cannot hold";
    let other = told.replace("database 0", "database 9");
    let log = side.server.log_tail();
    assert!(log.contains(told) || log.contains(&other), "{log}");
    assert_eq!(directory.read("dump.rdb"), written);
    let refused = side.ask(&["DUMP", "fields"]).to_string();
    assert!(
        refused.contains("The key 'fields' cannot be dumped: fields of the hash have deadlines"),
        "{refused}"
    );
    // Inside of a transaction, too, and the others of it run.
    side.ask(&["MULTI"]);
    side.ask(&["DUMP", "fields"]);
    side.ask(&["DEL", "fields"]);
    let both = side.ask(&["EXEC"]).to_string();
    assert!(both.contains("cannot be dumped") && both.contains(":1"), "{both}");
    side.ask(&["SELECT", "9"]);
    side.ask(&["DEL", "fields"]);
    assert_eq!(side.ask(&["SAVE"]).to_string(), "+OK");
    assert_eq!(&directory.read("dump.rdb")[..9], b"REDIS0010");
}

#[test]
fn an_append_only_file_with_a_base_of_valkey_is_loaded_and_is_valid() {
    for format in ["auto", "valkey-9"] {
        let directory = ScratchFolder::new();
        let folder = directory.0.join("appendonlydir");
        fs::create_dir(&folder).expect("the directory is the test's own");
        let add =
            |name: &str, bytes: &[u8]| fs::write(folder.join(name), bytes).expect("it is the test's own");
        add("appendonly.aof.1.base.rdb", VALKEY);
        add(
            "appendonly.aof.1.incr.aof",
            b"*2\r\n$6\r\nSELECT\r\n$1\r\n9\r\n*3\r\n$3\r\nSET\r\n$4\r\ntext\r\n$3\r\nnew\r\n",
        );
        add(
            "appendonly.aof.manifest",
            b"file appendonly.aof.1.base.rdb seq 1 type b\nfile appendonly.aof.1.incr.aof seq 1 type i\n",
        );
        let manifest = directory.path("appendonlydir/appendonly.aof.manifest");
        let checked = printed(&["--check-aof", &manifest], 0);
        assert!(checked.contains("(RDB format)") && !checked.contains("--fix"), "{checked}");
        // The file by itself, as Redis before 7 had it.
        let whole = printed(&["--check-aof", &directory.path("appendonlydir/appendonly.aof.1.base.rdb")], 0);
        assert!(whole.contains("is valid") && !whole.contains("--fix"), "{whole}");
        let mut side = directory.start(&["--appendonly", "yes", "--rdb-write-format", format]);
        assert_loaded(&mut side);
        side.ask(&["SELECT", "9"]);
        assert_eq!(side.ask(&["GET", "text"]).to_string(), "\"new\"");
        assert_eq!(side.ask(&["DEBUG", "LOADAOF"]).to_string(), "+OK");
        assert_loaded(&mut side);
    }
}

/// A file of these records, without a checksum.
fn of_records(head: &str, records: &[&[u8]]) -> Vec<u8> {
    [head.as_bytes(), &records.concat(), b"\xff\0\0\0\0\0\0\0\0"].concat()
}

#[test]
fn data_of_modules_ends_the_start_or_is_left_out_and_counted() {
    // An empty record of the search module, and a value of another.
    let empty = b"\xf7\x81\x7e\xdf\xe2\x9d\xd7\xb1\xd0\x00\x02\x02\x02\x00\x00";
    let value = b"\x07\x03doc\x81\x7e\xdf\xe2\x9d\xd7\xb1\xd0\x00\x05\x04name\x02\x01\x00";
    let text = b"\x00\x01k\x01v";
    let directory = ScratchFolder::with_file(&of_records("REDIS0010", &[empty, text]));
    let mut side = directory.start(&[]);
    assert_eq!(side.ask(&["GET", "k"]).to_string(), "\"v\"");
    let log = side.server.log_tail();
    assert_eq!(log.matches("The file has an empty record of the module 'ft_index0'").count(), 1, "{log}");
    drop(side);

    let directory = ScratchFolder::with_file(&of_records("REDIS0010", &[empty, value, text]));
    let log = directory.refusal(&[]);
    let told = "key 'doc': it holds data of the module 'ft_index0', and modules are not supported: 'rdb-skip-module-data yes' leaves such data out";
    assert!(log.contains(told), "{log}");
    let checked = printed(&["--check-rdb", &directory.path("dump.rdb")], 0);
    assert!(checked.contains("    ft_index0: 1 keys"), "{checked}");
    let mut side = directory.start(&["--rdb-skip-module-data", "yes"]);
    assert_eq!(side.ask(&["DBSIZE"]).to_string(), ":1");
    let log = side.server.log_tail();
    assert!(log.contains("The key 'doc' is left out"), "{log}");
    assert!(log.contains("Data of modules was left out 1 times"), "{log}");
    let info = side.ask(&["INFO", "persistence"]).text().expect("it is a text");
    assert!(info.contains("rdb_last_load_module_data_skipped:1"), "{info}");
}

#[test]
fn a_snapshot_is_converted_without_a_server() {
    let directory = ScratchFolder::with_file(REDIS);
    let (from, to) = (directory.path("dump.rdb"), directory.path("new.rdb"));
    let told = printed(&["--convert-rdb", &from, &to, "--to", "valkey-9"], 0);
    assert!(told.contains("has the 22 keys of") && told.contains("in the format valkey-9"), "{told}");
    assert_eq!(&directory.read("new.rdb")[..9], b"VALKEY080");
    let mut side = directory.start(&["--dbfilename", "new.rdb"]);
    assert_loaded(&mut side);
    drop(side);
    // An existing file stays as it is.
    let before = directory.read("new.rdb");
    let told = printed(&["--convert-rdb", &from, &to, "--to", "redis-7.4"], 1);
    assert!(
        told.contains("new.rdb cannot be written: it is there already, and nothing is overwritten"),
        "{told}"
    );
    assert_eq!(directory.read("new.rdb"), before);
    // And back.
    printed(&["--convert-rdb", &to, &directory.path("back.rdb"), "--to", "redis-7.4"], 0);
    let mut side = directory.start(&["--dbfilename", "back.rdb"]);
    assert_loaded(&mut side);
}

#[test]
fn a_conversion_that_fails_says_why_and_leaves_nothing() {
    let mut damaged = VALKEY.to_vec();
    damaged[300] ^= 1;
    let appended = [VALKEY, b"*1\r\n$4\r\nPING\r\n"].concat();
    for (bytes, format, told) in [
        (
            VALKEY,
            "redis-7.0",
            "key 'fields': fields of the hash have deadlines, which the format redis-7.0 cannot hold",
        ),
        (&damaged, "valkey-9", "at byte "),
        (&VALKEY[..500], "valkey-9", "the file ends in the middle of a record"),
        (&appended, "valkey-9", "at byte 977: the file goes on after the snapshot"),
        (b"hello, world", "valkey-9", "at byte 0: this is no RDB file"),
    ] {
        let directory = ScratchFolder::with_file(bytes);
        let (from, to) = (directory.path("dump.rdb"), directory.path("new.rdb"));
        let said = printed(&["--convert-rdb", &from, &to, "--to", format], 1);
        assert!(said.contains(&format!("{from} cannot be converted: ")) && said.contains(told), "{said}");
        let names: Vec<_> = fs::read_dir(&directory.0).expect("it is there").collect();
        assert_eq!(names.len(), 1, "{names:?}");
    }
}

/// The log has the names that clients used, and commands' own names where the server has written them.
#[test]
fn a_log_that_was_written_while_commands_had_other_names_is_loaded() {
    let directory = ScratchFolder::new();
    let renamed = [
        "--appendonly",
        "yes",
        "--rename-command",
        "SET",
        "PUT",
        "--rename-command",
        "PEXPIREAT",
        "",
        "--rename-command",
        "HPEXPIREAT",
        "later",
        "--rename-command",
        "XTRIM",
        "trim",
        "--rename-command",
        "FUNCTION",
        "library",
        "--rename-command",
        "DEL",
        "",
    ];
    let mut side = directory.start(&renamed);
    side.ask(&["PUT", "k", "v"]);
    side.ask(&["PUT", "gone", "v"]);
    assert_eq!(side.ask(&["EXPIREAT", "k", "4102444800"]).to_string(), ":1");
    assert_eq!(side.ask(&["EXPIRE", "gone", "-1"]).to_string(), ":1");
    side.ask(&["HSET", "h", "f", "v"]);
    assert_eq!(side.ask(&["HEXPIREAT", "h", "4102444800", "FIELDS", "1", "f"]).to_string(), "[:1]");
    for nth in 1..9 {
        side.ask(&["XADD", "s", "MAXLEN", "3", &format!("{nth}-0"), "f", "v"]);
    }
    let library = "#!lua name=lib\nredis.register_function('f', function() return 'here' end)";
    assert_eq!(side.ask(&["library", "LOAD", library]).to_string(), "\"lib\"");
    for is_restarted in [false, true] {
        if is_restarted {
            drop(side);
            side = directory.start(&renamed);
        } else {
            assert_eq!(side.ask(&["DEBUG", "LOADAOF"]).to_string(), "+OK");
        }
        assert_eq!(side.ask(&["GET", "k"]).to_string(), "\"v\"");
        assert_eq!(side.ask(&["EXPIRETIME", "k"]).to_string(), ":4102444800");
        assert_eq!(side.ask(&["EXISTS", "gone"]).to_string(), ":0");
        assert_eq!(side.ask(&["HEXPIRETIME", "h", "FIELDS", "1", "f"]).to_string(), "[:4102444800]");
        assert_eq!(side.ask(&["XLEN", "s"]).to_string(), ":3");
        assert_eq!(side.ask(&["FCALL", "f", "0"]).to_string(), "\"here\"");
    }
}

/// All of a later version may be known. Only a type that is not ends the start.
#[test]
fn a_file_of_a_later_version_is_read_by_its_types() {
    let directory = ScratchFolder::with_file(&of_records("REDIS0044", &[b"\x00\x01k\x01v"]));
    let mut side = directory.start(&[]);
    assert_eq!(side.ask(&["GET", "k"]).to_string(), "\"v\"");
    let log = side.server.log_tail();
    assert!(log.contains("dump.rdb has RDB version 44, a later one than is known"), "{log}");
    drop(side);
    let directory = ScratchFolder::with_file(&of_records("REDIS0044", &[b"\x2a\x03key\x01v"]));
    let log = directory.refusal(&[]);
    assert!(log.contains("at byte 9, key 'key': values of type 42 are not known to this version"), "{log}");
}
