//! `braid-server --check-aof`: its reports about append-only files, and its cuts.

use std::{
    fs,
    io::Write,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use crate::support::{
    Server,
    crowd::{figure, until},
    reference::has_reference,
};
use braid_journal::{disk::Folder, store::Aof, stream::Lsn};
use braid_protocol::request::write_request;

const NAME: &str = "appendonly.aof";
const INCREMENT: &str = "appendonly.aof.1.incr.aof";

/// A folder that outlives the servers in it. It belongs to an idle server.
struct AofFolder(Server);

impl AofFolder {
    fn new() -> AofFolder {
        AofFolder(Server::start(&[]))
    }

    fn folder(&self) -> PathBuf {
        self.0.scratch().join("appendonlydir")
    }

    fn manifest(&self) -> PathBuf {
        self.folder().join("appendonly.aof.manifest")
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder().join(name)
    }

    /// Writes a file of commands beside a manifest that names only this file.
    fn with_commands(bytes: &[u8]) -> AofFolder {
        let home = AofFolder::new();
        home.write(INCREMENT, bytes);
        home.write("appendonly.aof.manifest", format!("file {INCREMENT} seq 1 type i\n").as_bytes());
        home
    }

    /// Writes four frames, of which the first two are known to be on disk. Returns the offset of each.
    fn with_frames() -> (AofFolder, Vec<usize>) {
        let home = AofFolder::new();
        fs::create_dir_all(home.folder()).expect("it can be made");
        let mut aof = Aof::open(Folder::new(home.folder()).expect("it is there"), NAME, None)
            .expect("the disk is well");
        let mut starts = Vec::new();
        for nth in 0..4 {
            starts.push(aof.increment_bytes() as usize);
            let unit = request(&["SET", &format!("key:{nth}"), "value"]);
            aof.append(&unit, &[unit.len()], Lsn(0)).expect("there is room");
            if nth < 2 {
                let offset = aof.offset();
                aof.note_safe(offset);
            }
        }
        (home, starts)
    }

    fn write(&self, name: &str, bytes: &[u8]) {
        fs::create_dir_all(self.folder()).expect("it can be made");
        fs::write(self.path(name), bytes).expect("it can be written");
    }

    /// Changes a byte of the increment.
    fn flip(&self, at: usize) {
        let mut bytes = fs::read(self.path(INCREMENT)).expect("it is there");
        bytes[at] ^= 1;
        self.write(INCREMENT, &bytes);
    }

    fn n_bytes(&self) -> usize {
        fs::metadata(self.path(INCREMENT)).expect("it is there").len() as usize
    }

    /// Returns which of the keys a server finds.
    fn keys(&self) -> Vec<bool> {
        let dir = self.0.scratch().to_str().expect("it is UTF-8");
        let server = Server::start(&["--dir", dir, "--appendonly", "yes", "--aof-load-truncated", "no"]);
        let mut client = server.connect();
        (0..4).map(|nth| client.command(&["GET", &format!("key:{nth}")]).text().is_some()).collect()
    }
}

fn request(words: &[&str]) -> Vec<u8> {
    let mut request = Vec::new();
    write_request(&mut request, words);
    request
}

/// Runs a checking program. Returns whether it has succeeded, and its output.
fn run(program: impl AsRef<std::ffi::OsStr>, words: &[&str], path: &Path, answer: &str) -> (bool, String) {
    let mut child = Command::new(program)
        .args(words)
        .arg(path)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it can be run");
    // It may have ended before it asks.
    let _ = child.stdin.take().expect("it is piped").write_all(answer.as_bytes());
    let output = child.wait_with_output().expect("it ends");
    let said =
        [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
    (output.status.success(), said)
}

fn check(words: &[&str], path: &Path, answer: &str) -> (bool, String) {
    run(env!("CARGO_BIN_EXE_braid-server"), &[&["--check-aof"], words].concat(), path, answer)
}

#[track_caller]
fn assert_says((succeeds, said): &(bool, String), expected: bool, parts: &[&str]) {
    assert_eq!(*succeeds, expected, "{said}");
    for part in parts {
        assert!(said.contains(part), "{part:?} is missing in:\n{said}");
    }
}

#[test]
fn a_whole_file_is_valid() {
    let (home, _) = AofFolder::with_frames();
    let valid = "INCR AOF appendonly.aof.1.incr.aof is valid\nAll AOF files and manifest are valid\n";
    assert_says(&check(&[], &home.manifest(), ""), true, &[valid]);
    assert_says(&check(&["--fix"], &home.manifest(), ""), true, &[valid]);
    assert_says(&check(&[], &home.path(INCREMENT), ""), true, &["Start checking Old-Style AOF", "is valid"]);
}

#[test]
fn a_torn_frame_is_told_and_cut_off_when_that_is_wanted() {
    let (home, starts) = AofFolder::with_frames();
    let torn = home.n_bytes() - 3;
    let bytes = fs::read(home.path(INCREMENT)).expect("it is there");
    home.write(INCREMENT, &bytes[..torn]);
    let told = format!("is torn: what begins at byte {} of {torn}", starts[3]);
    let lost = format!("loses the {} bytes from there on", torn - starts[3]);
    assert_says(&check(&[], &home.manifest(), "y\n"), false, &[&told, &lost, "is not valid. Use the --fix"]);
    assert_says(
        &check(&["--fix"], &home.manifest(), "n\n"),
        false,
        &["Continue? [y/N]", "Nothing was changed"],
    );
    assert_says(&check(&["--fix"], &home.manifest(), ""), false, &["Nothing was changed"]);
    assert_eq!(home.n_bytes(), torn);
    assert_says(&check(&["--fix"], &home.manifest(), "y\n"), true, &["Successfully truncated AOF"]);
    assert_eq!(home.n_bytes(), starts[3]);
    assert_eq!(home.keys(), [true, true, true, false]);
}

#[test]
fn whole_frames_behind_damage_are_cut_off_only_if_that_is_said_in_words() {
    let (home, starts) = AofFolder::with_frames();
    let n_bytes = home.n_bytes();
    home.flip(starts[2] - 3);
    let damaged = format!("is damaged at byte {}: a frame is not what it says it is", starts[1]);
    let behind = format!("2 whole frames with 70 bytes of commands. The first begins at byte {}.", starts[2]);
    assert_says(&check(&[], &home.manifest(), ""), false, &[&damaged, &behind]);
    for answer in ["y\n", "yes\n", "\n"] {
        assert_says(
            &check(&["--fix"], &home.manifest(), answer),
            false,
            &["type 'lose them'", "Nothing was"],
        );
        assert_eq!(home.n_bytes(), n_bytes);
    }
    assert_says(&check(&["--fix"], &home.manifest(), "lose them\n"), true, &["Successfully truncated AOF"]);
    assert_eq!(home.n_bytes(), starts[1]);
    assert_eq!(home.keys(), [true, false, false, false]);
}

#[test]
fn what_a_server_refuses_to_load_it_says_how_to_repair() {
    let (home, starts) = AofFolder::with_frames();
    home.flip(starts[2] - 3);
    let output = Command::new(env!("CARGO_BIN_EXE_braid-server"))
        .args(["--port", "0", "--unixsocket", "braid.sock", "--appendonly", "yes", "--dir"])
        .arg(home.0.scratch())
        .output()
        .expect("it can be run");
    let log = String::from_utf8_lossy(&output.stdout).into_owned();
    let advice = format!("braid-server --check-aof --fix {}", home.manifest().display());
    assert!(!output.status.success() && log.contains(&advice), "{log}");
}

#[test]
fn what_a_server_writes_to_is_checked_and_not_cut() {
    let (home, starts) = AofFolder::with_frames();
    let dir = home.0.scratch().to_str().expect("it is UTF-8");
    let server = Server::start(&["--dir", dir, "--appendonly", "yes"]);
    assert_eq!(server.connect().command(&["SET", "key:4", "value"]).to_string(), "+OK");
    until("it is written", || home.n_bytes() > starts[3] + 50);
    let n_bytes = home.n_bytes();
    assert_says(&check(&[], &home.manifest(), ""), true, &["All AOF files and manifest are valid"]);
    for words in [&["--fix"][..], &["--truncate-to-timestamp", "1"]] {
        assert_says(
            &check(words, &home.manifest(), "y\n"),
            false,
            &["Cannot repair", "another server that is running"],
        );
    }
    assert_eq!(home.n_bytes(), n_bytes);
    drop(server);
    assert_says(&check(&["--fix"], &home.manifest(), ""), true, &["are valid"]);
}

#[test]
fn only_the_last_file_is_cut() {
    let home = AofFolder::new();
    let set = request(&["SET", "a", "1"]);
    home.write("base.aof", &[&set[..], &request(&["MULTI"]), &set].concat());
    home.write(INCREMENT, &set);
    let manifest = format!("file base.aof seq 1 type b\nfile {INCREMENT} seq 1 type i\n");
    home.write("appendonly.aof.manifest", manifest.as_bytes());
    let refused = "Failed to truncate AOF base.aof because it is not the last file";
    assert_says(&check(&["--fix"], &home.manifest(), "y\n"), false, &["(RESP format)", refused]);
    assert_eq!(fs::read(home.path("base.aof")).expect("it is there").len(), 2 * set.len() + 15);
}

#[test]
fn what_was_written_after_a_time_is_cut_off() {
    let commands = [0, 1, 2].map(|nth| request(&["SET", &format!("key:{nth}"), "value"]));
    let file: Vec<u8> =
        [b"#TS:100\r\n", &commands[0][..], b"#TS:101\r\n", &commands[1], b"#TS:103\r\n", &commands[2]]
            .concat();
    let home = AofFolder::with_commands(&file);
    let until = |seconds| check(&["--truncate-to-timestamp", seconds], &home.manifest(), "");
    assert_says(&until("103"), true, &["Truncate nothing in AOF"]);
    assert_says(
        &until("102"),
        true,
        &["Successfully truncated AOF appendonly.aof.1.incr.aof to timestamp 102"],
    );
    assert_says(&until("99"), false, &["has nothing before timestamp 99, aborting"]);
    assert_eq!(home.keys(), [true, true, false, false]);
}

#[test]
fn what_is_missing_or_no_manifest_is_named() {
    let home = AofFolder::with_commands(b"");
    assert_says(&check(&[], &home.manifest(), ""), true, &["INCR AOF appendonly.aof.1.incr.aof is empty"]);
    fs::remove_file(home.path(INCREMENT)).expect("it is there");
    assert_says(&check(&[], &home.manifest(), ""), false, &["Cannot open file", INCREMENT]);
    home.write("appendonly.aof.manifest", b"file a seq 0 type b\n");
    assert_says(&check(&[], &home.manifest(), ""), false, &["line 1", "Invalid AOF manifest file format"]);
    assert_says(&check(&[], &home.path("none"), ""), false, &["Cannot open file"]);
}

#[test]
fn under_the_name_of_redis_check_aof_it_is_that() {
    let (home, _) = AofFolder::with_frames();
    let named = home.0.scratch().join("redis-check-aof");
    symlink(env!("CARGO_BIN_EXE_braid-server"), &named).expect("it can be made");
    assert_says(&run(&named, &[], &home.manifest(), ""), true, &["All AOF files and manifest are valid"]);
    assert_says(&run(&named, &["--help", "x"], &home.manifest(), ""), false, &["Usage:"]);
}

/// Returns the figures of the line about the whole part of a file. The line number is left out, because other
/// lines count there.
fn figures(said: &str) -> Option<&str> {
    let line = said.lines().find(|line| line.starts_with("AOF analyzed:"))?;
    Some(line.split_once("size=")?.1.split_once(", ok_up_to_line")?.0)
}

#[test]
fn of_files_without_frames_it_says_what_redis_check_aof_says() {
    if !has_reference("redis-check-aof") {
        return;
    }
    let set = request(&["SET", "a", "1"]);
    let (multi, exec) = (request(&["MULTI"]), request(&["EXEC"]));
    let transaction = [&multi[..], &set, &exec].concat();
    let mut files = vec![
        [&set[..], b"#TS:1\r\n", &transaction, &set].concat(),
        [&set[..], b"!!!"].concat(),
        [&set[..], b"*1\r\n$3\r\nabcde\r\n"].concat(),
        [&set[..], b"*1\r\n+3\r\nabc\r\n", &set].concat(),
        b"# nothing else\r\n".to_vec(),
    ];
    files.extend((1..transaction.len()).map(|n_bytes| [&set[..], &transaction[..n_bytes]].concat()));
    for file in files {
        let home = AofFolder::with_commands(&file);
        let (ours, theirs) =
            (check(&[], &home.manifest(), ""), run("redis-check-aof", &[], &home.manifest(), ""));
        let shown = String::from_utf8_lossy(&file);
        assert_eq!(
            (ours.0, figures(&ours.1)),
            (theirs.0, figures(&theirs.1)),
            "{shown:?}\n{ours:?}\n{theirs:?}"
        );
        assert_eq!(ours.1.lines().last(), theirs.1.lines().last(), "{shown:?}");
    }
}

#[test]
fn a_server_tells_the_time_in_the_first_line_of_an_increment() {
    let home = AofFolder::new();
    let dir = home.0.scratch().to_str().expect("it is UTF-8");
    for (nth, at_start) in ["no", "yes"].into_iter().enumerate() {
        let server =
            Server::start(&["--dir", dir, "--appendonly", "yes", "--aof-timestamp-enabled", at_start]);
        let mut client = server.connect();
        if nth == 0 {
            assert_eq!(
                client.command(&["CONFIG", "SET", "aof-timestamp-enabled", "yes"]).text().as_deref(),
                Some("OK")
            );
        }
        assert_eq!(client.command(&["SET", &format!("key:{nth}"), "value"]).text().as_deref(), Some("OK"));
        let file = fs::read_to_string(home.path(INCREMENT)).expect("it is text");
        let seconds = file
            .strip_prefix("#TS:")
            .and_then(|file| file.split_once("\r\n"))
            .expect("the time comes first")
            .0;
        let seconds: u64 = seconds.parse().expect("it is a number");
        let (now, before) = ((seconds + 10_000).to_string(), (seconds - 1).to_string());
        server.stop();
        let until = |time: &str| check(&["--truncate-to-timestamp", time], &home.manifest(), "");
        assert_says(&until(&now), true, &["Truncate nothing"]);
        assert_says(&until(&before), false, &["has nothing before timestamp"]);
    }
    assert_eq!(home.keys(), [true, true, false, false]);
}

/// The second start used to find it torn again and refused it. By then an increment came after it.
#[test]
fn a_torn_file_of_an_older_server_is_loaded_by_every_start() {
    let home = AofFolder::new();
    let file = [request(&["SET", "key:0", "value"]), request(&["SET", "key:1", "value"])].concat();
    fs::write(home.0.scratch().join(NAME), &file[..file.len() - 1]).expect("it can be written");
    let dir = home.0.scratch().to_str().expect("it is UTF-8");
    let server = Server::start(&["--dir", dir, "--appendonly", "yes"]);
    assert_eq!(server.connect().command(&["SET", "key:2", "value"]).text().as_deref(), Some("OK"));
    server.stop();
    assert_eq!(home.keys(), [true, false, true, false]);
}

#[test]
fn a_damaged_base_of_commands_is_told_and_not_cut() {
    let home = AofFolder::new();
    let dir = home.0.scratch().to_str().expect("it is UTF-8");
    let server = Server::start(&["--dir", dir, "--appendonly", "yes", "--aof-use-rdb-preamble", "no"]);
    let mut client = server.connect();
    client.command(&["SET", "key:0", "value"]);
    client.command(&["BGREWRITEAOF"]);
    until("it is rewritten", || figure(&mut client, "aof_rewrites") > 0);
    server.stop();
    assert_says(&check(&[], &home.manifest(), ""), true, &["BASE AOF (RESP format)", "All AOF files"]);
    let base = home.path("appendonly.aof.2.base.aof");
    let mut bytes = fs::read(&base).expect("it was written");
    let n_bytes = bytes.len();
    bytes[n_bytes - 4] ^= 1;
    fs::write(&base, bytes).expect("there is room");
    let refused = "because it is not the last file";
    assert_says(
        &check(&["--fix"], &home.manifest(), "y\n"),
        false,
        &["appendonly.aof.2.base.aof is", refused],
    );
    let output = Command::new(env!("CARGO_BIN_EXE_braid-server"))
        .args(["--port", "0", "--unixsocket", "braid.sock", "--appendonly", "yes", "--dir", dir])
        .output()
        .expect("it can be run");
    assert!(!output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}
