//! The safety of data when the system's own calls fail. `strace` makes them fail or wait in a running server.
//!
//! `disk_faults.rs` has the same faults from within the server, at every step and without a tracer. These
//! tests show one thing more: the server finds an error of the system itself where it expects it.
//! `make crash` requires them (`BRAID_REQUIRE_STRACE=1`). Otherwise they print a note and pass where strace
//! is missing or may not trace.

use std::{
    fs,
    io::{BufRead, BufReader, Write},
    os::unix::net::UnixStream,
    path::Path,
    process::{Child, ChildStderr, Command, Stdio},
};

use crate::support::{
    Server,
    crowd::{ask, figure, until},
    home::{Home, until_accepted, until_refused},
    reference::leave_out,
};
use rustix::process::{Pid, Signal, kill_process};

/// If this is 1, the tests fail where nothing can be traced.
const REQUIRE_STRACE: &str = "BRAID_REQUIRE_STRACE";

/// Calls of a server that fail until this is dropped.
struct Fault {
    tracer: Child,
    /// The tracer's output about each thread that begins or ends. The tracer would end with the reading end
    /// of this pipe.
    _says: BufReader<ChildStderr>,
}

impl Fault {
    /// Makes calls of the server fail or wait from now on. `calls` and `what` are strace's names of the calls
    /// and of the fault. Returns `None` if nothing can be traced here.
    ///
    /// # Panics
    /// If nothing can be traced, although it must be possible.
    fn begin(server: &Server, calls: &str, what: &str) -> Option<Fault> {
        Fault::begin_told(server, calls, what, Path::new("/dev/null"))
    }

    /// Does the same, and writes each call to a file, after its thread's number.
    fn begin_told(server: &Server, calls: &str, what: &str, told: &Path) -> Option<Fault> {
        match Fault::try_begin(server, calls, what, told) {
            Ok(fault) => Some(fault),
            Err(why) => {
                leave_out("faults of the system", &why, REQUIRE_STRACE);
                None
            }
        }
    }

    fn try_begin(server: &Server, calls: &str, what: &str, told: &Path) -> Result<Fault, String> {
        let mut tracer = Command::new("strace")
            .args(["-f", "-e", &format!("trace={calls}"), "-o"])
            .arg(told)
            .args(["-e", &format!("inject={calls}:{what}"), "-p", &server.pid().to_string()])
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| format!("strace cannot be run (apt-get install strace): {error}"))?;
        let mut said = String::new();
        let mut says = BufReader::new(tracer.stderr.take().expect("it is piped"));
        says.read_line(&mut said).expect("it is text");
        // The drop ends a tracer that is not attached.
        let fault = Fault { tracer, _says: says };
        if said.contains("attached") { Ok(fault) } else { Err(format!("strace may not trace here: {said}")) }
    }
}

impl Drop for Fault {
    /// Detaches strace from the server, which continues by itself. The server must not have been killed: then
    /// strace would wait for threads that wait for strace.
    fn drop(&mut self) {
        // At this signal strace detaches and then ends.
        let tracer = Pid::from_child(&self.tracer);
        kill_process(tracer, Signal::TERM).expect("it has not been waited for");
        until("strace has let go of the server", || {
            self.tracer.try_wait().expect("it can be asked").is_some()
        });
    }
}

#[test]
fn what_cannot_be_written_to_the_log_is_refused_until_it_can() {
    for (fsync, error) in [("always", "ENOSPC"), ("everysec", "ENOSPC"), ("no", "ENOSPC"), ("always", "EIO")]
    {
        let home = Home::new();
        let server = home.serve(&["--appendfsync", fsync, "--io-threads", "2"]);
        let (mut control, mut writer) = (server.connect(), server.connect());
        assert_eq!(ask(&mut control, "SET before 1"), "+OK");
        let Some(broken) = Fault::begin(&server, "pwrite64,fallocate", &format!("error={error}")) else {
            return;
        };
        writer.send(&["SET", "later", "1"]);
        until_refused(&mut control);
        assert_eq!(ask(&mut control, "GET before"), "\"1\"");
        drop(broken);
        until_accepted(&mut control);
        assert_eq!(writer.receive().to_string(), "+OK");
        home.found_after_kill(server, &["--appendfsync", fsync], &[]);
    }
}

#[test]
fn what_the_disk_has_failed_to_sync_is_not_acknowledged_before_it_is_safe() {
    for (fsync, goes_on) in [("always", false), ("always", true), ("everysec", true)] {
        let home = Home::new();
        let server = home.serve(&["--appendfsync", fsync, "--io-threads", "2"]);
        let (mut control, mut writer) = (server.connect(), server.connect());
        assert_eq!(ask(&mut control, "SET before 1"), "+OK");
        assert_eq!(ask(&mut control, "WAITAOF 1 0 0"), "[:1 :0]");
        let Some(broken) = Fault::begin(&server, "fdatasync", "error=EIO") else { return };
        writer.send(&["SET", "later", "1"]);
        until_refused(&mut control);
        assert_eq!(ask(&mut control, "GET before"), "\"1\"");
        assert_eq!(writer.has_reply(), fsync == "everysec", "under always it waits until it is safe");
        drop(broken);
        if goes_on {
            until_accepted(&mut control);
            assert_eq!(writer.receive().to_string(), "+OK");
            assert_eq!(ask(&mut control, "WAITAOF 1 0 0"), "[:1 :0]");
            home.found_after_kill(server, &["--appendfsync", fsync], &[]);
        } else {
            home.found_after_kill(server, &["--appendfsync", fsync], &["later"]);
        }
    }
}

#[test]
fn while_the_disk_syncs_for_a_minute_only_those_wait_who_asked_for_it() {
    let home = Home::new();
    let args = ["--appendfsync", "always", "--io-threads", "2"];
    let server = home.serve(&args);
    let (mut control, mut writer, mut reader) = (server.connect(), server.connect(), server.connect());
    assert_eq!(ask(&mut control, "SET before 1"), "+OK");
    let Some(slow) = Fault::begin(&server, "fdatasync", "delay_enter=60000000") else { return };
    writer.send(&["SET", "later", "1"]);
    until("it has run", || ask(&mut control, "INFO commandstats").contains("cmdstat_set:calls=2,"));
    reader.send(&["GET", "later"]);
    for _ in 0..100 {
        assert_eq!(ask(&mut control, "GET before"), "\"1\"");
    }
    assert!(!writer.has_reply() && !reader.has_reply());
    drop(slow);
    assert_eq!(writer.receive().to_string(), "+OK");
    assert_eq!(reader.receive().to_string(), "\"1\"");
    home.found_after_kill(server, &args, &[]);
}

#[test]
fn a_rewrite_or_snapshot_that_the_system_fails_leaves_the_files_of_before() {
    for calls in ["fsync", "rename,renameat,renameat2"] {
        let home = Home::new();
        let server = home.serve(&["--appendfsync", "always"]);
        let mut control = server.connect();
        assert_eq!(ask(&mut control, "SET before 1"), "+OK");
        assert_eq!(ask(&mut control, "SAVE"), "+OK");
        let dump = fs::read(home.path().join("dump.rdb")).expect("it was saved");
        assert_eq!(ask(&mut control, "SET later 1"), "+OK");
        let Some(broken) = Fault::begin(&server, calls, "error=EIO") else { return };
        assert!(ask(&mut control, "SAVE").starts_with("-ERR"), "{calls}");
        assert_eq!(fs::read(home.path().join("dump.rdb")).expect("it is there"), dump, "{calls}");
        ask(&mut control, "BGREWRITEAOF");
        until("the rewrite has failed", || {
            let info = ask(&mut control, "INFO persistence");
            info.contains("aof_rewrite_in_progress:0") && info.contains("aof_last_bgrewrite_status:err")
        });
        drop(broken);
        assert_eq!(ask(&mut control, "SAVE"), "+OK", "{calls}");
        ask(&mut control, "BGREWRITEAOF");
        until("it is rewritten", || figure(&mut control, "aof_rewrites") == 1);
        until_accepted(&mut control);
        home.found_after_kill(server, &["--appendfsync", "always"], &[]);
    }
}

/// The thread that names files in the manifest keeps all writers from the log meanwhile. The saver has the
/// lowest priority and would have to wait for a core that they use, so it is not the saver.
#[test]
fn the_files_of_a_rewrite_are_named_by_the_thread_that_syncs() {
    let home = Home::new();
    let server = home.serve(&["--appendfsync", "everysec"]);
    let mut control = server.connect();
    assert_eq!(ask(&mut control, "SET key 1"), "+OK");
    let told = home.path().join("calls");
    let calls = "rename,renameat,renameat2,unlink,unlinkat";
    let Some(traced) = Fault::begin_told(&server, calls, "delay_enter=1", &told) else { return };
    ask(&mut control, "BGREWRITEAOF");
    until("it is rewritten", || figure(&mut control, "aof_rewrites") == 1);
    drop(traced);
    let told = fs::read_to_string(told).expect("strace has written it");
    let callers: Vec<String> = told
        .lines()
        .filter(|line| line.contains("appendonly.aof"))
        .filter_map(|line| line.split_whitespace().next())
        .map(|thread| fs::read_to_string(format!("/proc/{}/task/{thread}/comm", server.pid())))
        .map(|name| name.expect("the thread is there").trim().to_owned())
        .collect();
    // At the cut and at the end a manifest is replaced, and the base gets its name. The old files are
    // removed, and then their names.
    assert!(callers.len() >= 5, "{told}");
    assert!(callers.iter().all(|name| name == "log"), "{callers:?}\n{told}");
}

/// On a slow file system any user used to be able to connect too early. The socket lacked its mode for a
/// while (CVE-2023-45145).
#[test]
fn a_unix_socket_has_its_mode_before_anybody_can_connect() {
    let home = Home::new();
    let (told, socket) = (home.path().join("calls"), home.path().join("socket"));
    let calls = "trace=bind,listen,/chmod";
    let traced = Command::new("strace")
        .args(["-f", "-e", calls, "-o"])
        .arg(&told)
        .arg(env!("CARGO_BIN_EXE_braid-server"))
        .args(["--port", "0", "--save", "", "--unixsocketperm", "700", "--dir"])
        .arg(home.path())
        .arg("--unixsocket")
        .arg(&socket)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let mut traced = match traced {
        Ok(traced) => traced,
        Err(error) => return leave_out("faults of the system", &error.to_string(), REQUIRE_STRACE),
    };
    let mut has_ended = false;
    until("it serves, or cannot be traced", || {
        has_ended = traced.try_wait().expect("it is this test's own").is_some();
        has_ended || UnixStream::connect(&socket).is_ok()
    });
    if has_ended {
        return leave_out("faults of the system", "strace may not trace here", REQUIRE_STRACE);
    }
    let mut client = UnixStream::connect(&socket).expect("it serves");
    client.write_all(b"SHUTDOWN NOSAVE\r\n").expect("it is read");
    assert!(traced.wait().expect("it is this test's own").success());
    let told = fs::read_to_string(told).expect("strace has written it");
    let at = |what: &str| told.find(what).unwrap_or_else(|| panic!("{what}: {told}"));
    let bound = at("sun_path");
    let (mode, listens) = (at("chmod"), bound + told[bound..].find("listen(").expect("it listens"));
    assert!(bound < mode && mode < listens, "{told}");
}
