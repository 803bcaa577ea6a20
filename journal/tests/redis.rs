//! redis-server 7.0 and redis-check-aof read the files that Braid writes.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    path::{Path, PathBuf},
    process::{Child, Command, Output},
};

use braid_journal::{disk::Folder, store::Aof, stream::Lsn};
use braid_protocol::request::write_request;

const NAME: &str = "appendonly.aof";

/// Whether a program of Redis 7.0 is installed.
///
/// Without it the test prints that and passes, unless `BRAID_REQUIRE_REDIS` is 1.
fn has(program: &str) -> bool {
    let output = Command::new(program).arg("--version").output();
    let is_there =
        output.as_ref().is_ok_and(|output| String::from_utf8_lossy(&output.stdout).contains("7.0."));
    assert!(
        is_there || std::env::var("BRAID_REQUIRE_REDIS").as_deref() != Ok("1"),
        "there is no {program} 7.0: {output:?}"
    );
    if !is_there {
        writeln!(std::io::stderr(), "journal: nothing is compared, there is no {program} 7.0")
            .expect("standard error is open");
    }
    is_there
}

/// A folder, with that of an AOF in it, that is removed after the test.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("the folder can be made");
        Scratch(path)
    }

    fn folder(&self) -> Folder {
        Folder::new(self.0.join("appendonlydir")).expect("the folder can be made")
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Three units in two increments, one of them a transaction. The space reserved ahead was never released.
fn write(folder: &Folder) {
    let mut aof = Aof::open(folder.clone(), NAME, None).expect("the disk is well");
    aof.reserve().expect("there is room");
    let (mut units, mut ends) = (Vec::new(), Vec::new());
    write_request(&mut units, &["SELECT", "0"]);
    write_request(&mut units, &["SET", "a", "1"]);
    ends.push(units.len());
    for command in [&["MULTI"][..], &["INCR", "a"], &["SET", "b", &"#".repeat(20_000)], &["EXEC"]] {
        write_request(&mut units, command);
    }
    ends.push(units.len());
    aof.append(&units, &ends, Lsn(0)).expect("there is room");
    aof.begin_rewrite().expect("the disk is well");
    aof.reserve().expect("there is room");
    let mut last = Vec::new();
    write_request(&mut last, &["SELECT", "0"]);
    write_request(&mut last, &["INCR", "a"]);
    aof.append(&last, &[last.len()], Lsn(0)).expect("there is room");
    // The process ends here as if it were killed.
    aof.current().sync_all().expect("the disk is well");
}

fn check(folder: &Folder, name: &str) -> String {
    let Output { stdout, stderr, .. } = Command::new("redis-check-aof")
        .arg(folder.path_of(name.as_bytes()))
        .output()
        .expect("it was there a moment ago");
    format!("{}{}", String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr))
}

#[test]
fn redis_check_aof_finds_nothing_wrong() {
    if !has("redis-server") {
        return;
    }
    let scratch = Scratch::new("check");
    write(&scratch.folder());
    let told = check(&scratch.folder(), "appendonly.aof.manifest");
    assert!(told.contains("All AOF files and manifest are valid"), "{told}");
}

struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn redis_server_loads_it() {
    if !has("redis-server") {
        return;
    }
    let scratch = Scratch::new("load");
    write(&scratch.folder());
    let port =
        TcpListener::bind("127.0.0.1:0").and_then(|taken| taken.local_addr()).expect("a port is free").port();
    let server = Command::new("redis-server")
        .args(["--appendonly", "yes", "--save", "", "--port", &port.to_string(), "--dir"])
        .arg(&scratch.0)
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("it was there a moment ago");
    let mut server = Server(server);
    let log = BufReader::new(server.0.stdout.take().expect("it is piped"));
    let is_ready =
        log.lines().any(|line| line.expect("a log is text").contains("Ready to accept connections"));
    assert!(is_ready, "redis-server has ended rather than load the file");
    let mut client = TcpStream::connect(("127.0.0.1", port)).expect("it is ready");
    let mut asked = Vec::new();
    write_request(&mut asked, &["MGET", "a"]);
    write_request(&mut asked, &["STRLEN", "b"]);
    let expected = b"*1\r\n$1\r\n3\r\n:20000\r\n";
    let mut answer = vec![0; expected.len()];
    client.write_all(&asked).and_then(|()| client.read_exact(&mut answer)).expect("it answers");
    assert_eq!(String::from_utf8_lossy(&answer), String::from_utf8_lossy(expected));
}
