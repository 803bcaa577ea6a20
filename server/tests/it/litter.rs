//! Files that processes leave when they end during a write, and their removal at the next start.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use crate::support::{
    Server,
    crowd::{ask, figure, until},
    home::Home,
};

/// Returns the number of a process that has ended.
fn number_of_the_dead() -> u32 {
    let mut process = Command::new("true").stdin(Stdio::null()).spawn().expect("it is everywhere");
    assert!(process.wait().expect("it is this test's own").success());
    process.id()
}

fn names_in(folder: &Path) -> BTreeSet<String> {
    let listed = fs::read_dir(folder).expect("it is there");
    listed.map(|file| file.expect("it can be listed").file_name().into_string().expect("UTF-8")).collect()
}

fn contents_of(parts: &[PathBuf]) -> Vec<Vec<u8>> {
    let parts =
        parts.iter().filter(|path| path.extension().is_some_and(|kind| kind == "aof" || kind == "rdb"));
    parts.map(|path| fs::read(path).expect("it is still there")).collect()
}

/// Unfinished snapshots, bases and increments used to stay for ever, some for each kill.
#[test]
fn what_a_killed_server_was_writing_is_removed_at_the_next_start() {
    for appendonly in ["yes", "no"] {
        let home = Home::new();
        home.serve(&[]).stop();
        let folder = home.path().join("appendonlydir");
        let before = names_in(&folder);
        let (dead, alive) = (number_of_the_dead(), std::process::id());
        let litter = [
            (home.path().to_owned(), format!("temp-{dead}.rdb")),
            (home.path().to_owned(), format!("temp-1700000000.{dead}.rdb")),
            (home.path().to_owned(), format!("temp-rewriteaof-bg-{dead}.aof")),
            (folder.clone(), format!("temp-rewriteaof-{dead}.rdb")),
            (folder.clone(), "temp-appendonly.aof.manifest".to_owned()),
            (folder.clone(), "temp-appendonly.aof.incr.aof".to_owned()),
            (folder.clone(), "appendonly.aof.8.base.rdb".to_owned()),
            (folder.clone(), "appendonly.aof.9.base.aof".to_owned()),
            (folder.clone(), "appendonly.aof.9.incr.aof".to_owned()),
        ];
        let kept = [
            (home.path().to_owned(), format!("temp-{alive}.rdb")),
            (home.path().to_owned(), "temp-backup.rdb".to_owned()),
            (home.path().to_owned(), format!("temp-{dead}.rdb.gz")),
            (folder.clone(), format!("temp-rewriteaof-{alive}.rdb")),
            (folder.clone(), "appendonly.aof.7.incr.aof".to_owned()),
            (folder.clone(), "appendonly.aof.8.base.rdb.bak".to_owned()),
            (folder.clone(), "other.aof.1.incr.aof".to_owned()),
            (folder.clone(), "temp-other.aof.manifest".to_owned()),
        ];
        for (folder, name) in litter.iter().chain(&kept) {
            fs::write(folder.join(name), "left over").expect("the folder is the test's own");
        }
        // An operator may want to return to this copy.
        let copy = "file appendonly.aof.7.incr.aof seq 7 type i\n";
        fs::write(folder.join("appendonly.aof.manifest.old"), copy).expect("the folder is the test's own");
        let server = home.serve(&["--appendonly", appendonly]);
        until("the rest is gone, and said to be", || {
            litter.iter().all(|(folder, name)| !folder.join(name).exists() && server.log().contains(name))
        });
        for (folder, name) in &kept {
            assert!(folder.join(name).exists(), "{name} is gone, appendonly {appendonly}");
        }
        assert!(before.is_subset(&names_in(&folder)), "{before:?}");
    }
}

/// Returns a folder in which a server has logged a key, and the path of the manifest.
fn with_a_key() -> (Home, PathBuf) {
    let home = Home::new();
    let server = home.serve(&[]);
    assert_eq!(ask(&mut server.connect(), "SET key value"), "+OK");
    server.stop();
    let manifest = home.path().join("appendonlydir/appendonly.aof.manifest");
    (home, manifest)
}

/// A manifest may be lost. Then the parts are all that is left of the data. The first start used to write
/// over them, and the second to remove them.
#[test]
fn without_a_manifest_no_part_of_an_append_only_file_is_touched() {
    let (home, manifest) = with_a_key();
    let parts = home.parts("");
    let (lost, contents) = (fs::read(&manifest).expect("it is there"), contents_of(&parts));
    fs::remove_file(&manifest).expect("it is there");
    home.serve(&["--appendonly", "no"]).stop();
    for _ in 0..2 {
        let server = home.serve(&[]);
        assert_eq!(ask(&mut server.connect(), "DBSIZE"), ":0");
        server.stop();
    }
    let server = home.serve(&["--appendonly", "no"]);
    let mut client = server.connect();
    fs::remove_file(&manifest).expect("the server has made one");
    assert_eq!(ask(&mut client, "CONFIG SET appendonly yes"), "+OK");
    until("it has its base", || figure(&mut client, "aof_rewrites") == 1);
    server.stop();
    // As an operator would who has found it.
    fs::write(&manifest, lost).expect("the folder is the test's own");
    assert_eq!(contents_of(&parts), contents);
    assert_eq!(ask(&mut home.serve(&[]).connect(), "GET key"), "\"value\"");
}

#[test]
fn parts_that_no_manifest_names_are_told() {
    let (home, manifest) = with_a_key();
    fs::remove_file(manifest).expect("it is there");
    let log = home.serve(&[]).log();
    for told in ["appendonly.aof.1.incr.aof", "no appendonly.aof.manifest that names them"] {
        assert!(log.contains(told), "{told}: {log}");
    }
}

/// The other server has its snapshot in the same folder, under another name. Its process may be invisible
/// from here.
#[test]
fn what_another_server_is_writing_is_left_to_it() {
    let first = Server::start(&["--save", "", "--rdb-key-save-delay", "10000000"]);
    let dir = first.scratch().to_str().expect("it is UTF-8");
    let mut client = first.connect();
    assert_eq!(ask(&mut client, "DEBUG POPULATE 10"), "+OK");
    assert_eq!(ask(&mut client, "BGSAVE"), "+Background saving started");
    let temporary = first.scratch().join(format!("temp-{}.rdb", first.pid()));
    until("it is being written", || temporary.exists());
    let second = Server::start(&["--dir", dir, "--dbfilename", "second.rdb"]);
    assert_eq!(ask(&mut second.connect(), "PING"), "+PONG");
    assert!(temporary.exists());
    assert_eq!(ask(&mut client, "CONFIG SET rdb-key-save-delay 0"), "+OK");
    until("it is complete", || figure(&mut client, "rdb_saves") == 1);
    assert!(first.scratch().join("dump.rdb").exists());
}
