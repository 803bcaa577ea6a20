//! What becomes of data when the system's own calls fail: `strace` has them fail, or wait, in a server that runs.
//!
//! `disk_faults.rs` has the same faults from within the server, at every step and without a tracer. These are for what that cannot show: that
//! an error of the system itself comes out where it is looked for. `make crash` requires them (`BRAID_REQUIRE_STRACE=1`); else they say so
//! and pass where there is no strace, or where it may not trace.

mod support;

use std::{
    fs,
    io::{BufRead, BufReader, Write as _},
    process::{Child, Command, Stdio},
};

use rustix::process::{Pid, Signal, kill_process};
use support::{
    Client, Server,
    crowd::{ask, figure, until},
    home::Home,
};

/// Set to 1: where nothing can be traced the tests fail.
const REQUIRE_STRACE: &str = "BRAID_REQUIRE_STRACE";

/// Calls of a server that fail, until this is dropped.
struct Fault(Child);

impl Fault {
    /// Has calls of the server fail or wait from now on: strace's names of the calls, and what it does to them. `None` if nothing can be traced
    /// here.
    ///
    /// # Panics
    /// In that case, if it has to be possible.
    fn begin(server: &Server, calls: &str, what: &str) -> Option<Fault> {
        let begun = Fault::try_begin(server, calls, what);
        let Err(why) = begun else { return begun.ok() };
        assert!(std::env::var(REQUIRE_STRACE).as_deref() != Ok("1"), "{why}");
        writeln!(std::io::stderr(), "nothing is tested: {why}").expect("standard error is open");
        None
    }

    fn try_begin(server: &Server, calls: &str, what: &str) -> Result<Fault, String> {
        let mut tracer = Command::new("strace")
            .args(["-f", "-o", "/dev/null", "-e", &format!("trace={calls}")])
            .args(["-e", &format!("inject={calls}:{what}"), "-p", &server.pid().to_string()])
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| format!("strace cannot be run (apt-get install strace): {error}"))?;
        let mut said = String::new();
        let errors = tracer.stderr.take().expect("it is piped");
        BufReader::new(errors).read_line(&mut said).expect("it is text");
        // Dropped if it has not attached itself.
        let fault = Fault(tracer);
        if said.contains("attached") { Ok(fault) } else { Err(format!("strace may not trace here: {said}")) }
    }
}

impl Drop for Fault {
    /// Has strace let go of the server, which goes on by itself.
    fn drop(&mut self) {
        // It ends at this signal when it has detached itself; killed, it would leave the server stopped.
        let tracer = Pid::from_child(&self.0);
        kill_process(tracer, Signal::TERM).expect("it has not been waited for");
        self.0.wait().expect("it ends");
    }
}

fn until_refused(client: &mut Client) {
    until("writes are refused", || ask(client, "PING").starts_with("-MISCONF"));
}

fn until_accepted(client: &mut Client) {
    until("writes are accepted again", || ask(client, "PING") == "+PONG");
}

/// Kills the server; has the next two find what is promised.
fn found_after_kill(home: &Home, server: Server, fsync: &str, promised: &[&str]) {
    server.stop();
    home.check_after_kill();
    for _ in 0..2 {
        let server = home.serve(&["--appendfsync", fsync]);
        let mut client = server.connect();
        for key in promised {
            assert_eq!(ask(&mut client, &format!("GET {key}")), "\"1\"", "{key} is lost, {fsync}");
        }
        assert_eq!(ask(&mut client, "EXISTS refused"), ":0", "{fsync}");
        server.stop();
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
        assert!(ask(&mut control, "SET refused 1").starts_with("-MISCONF"));
        assert_eq!(ask(&mut control, "GET before"), "\"1\"");
        drop(broken);
        until_accepted(&mut control);
        assert_eq!(writer.receive().to_string(), "+OK");
        found_after_kill(&home, server, fsync, &["before", "later"]);
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
        assert!(ask(&mut control, "SET refused 1").starts_with("-MISCONF"));
        assert_eq!(ask(&mut control, "GET before"), "\"1\"");
        assert_eq!(writer.has_reply(), fsync == "everysec", "under always it waits until it is safe");
        drop(broken);
        if goes_on {
            until_accepted(&mut control);
            assert_eq!(writer.receive().to_string(), "+OK");
            assert_eq!(ask(&mut control, "WAITAOF 1 0 0"), "[:1 :0]");
            found_after_kill(&home, server, fsync, &["before", "later"]);
        } else {
            found_after_kill(&home, server, fsync, &["before"]);
        }
    }
}

#[test]
fn a_server_that_is_killed_while_a_sync_takes_long_has_what_was_acknowledged() {
    let home = Home::new();
    let server = home.serve(&["--appendfsync", "always"]);
    let (mut control, mut writer) = (server.connect(), server.connect());
    assert_eq!(ask(&mut control, "SET before 1"), "+OK");
    let Some(slow) = Fault::begin(&server, "fdatasync", "delay_enter=500000") else { return };
    writer.send(&["SET", "later", "1"]);
    until("it has run", || figure_of_calls(&mut control, "set") == 2);
    for _ in 0..100 {
        assert_eq!(ask(&mut control, "GET before"), "\"1\"");
    }
    let promised: &[&str] = if writer.has_reply() { &["before", "later"] } else { &["before"] };
    drop(slow);
    found_after_kill(&home, server, "always", promised);
}

fn figure_of_calls(client: &mut Client, command: &str) -> usize {
    let stats = client.command(&["INFO", "commandstats"]).text().expect("it is text");
    let prefix = format!("cmdstat_{command}:calls=");
    let calls = stats.lines().find_map(|line| line.strip_prefix(&prefix)?.split(',').next());
    calls.map_or(0, |calls| calls.parse().expect("it is a number"))
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
        found_after_kill(&home, server, "always", &["before", "later"]);
    }
}
