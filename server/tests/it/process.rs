//! The server as a process: in the background, under systemd, with the system's log, after faults.

use std::{
    fs,
    os::{
        linux::net::SocketAddrExt as _,
        unix::{
            net::{SocketAddr, UnixDatagram},
            process::ExitStatusExt as _,
        },
    },
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use crate::support::{
    Client, PATIENCE, Port,
    crowd::{ask, until},
};

const SERVER: &str = env!("CARGO_BIN_EXE_braid-server");

/// A directory of one test, which is removed with this value.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Scratch {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
        fs::create_dir_all(&path).expect("the build's scratch space is writable");
        Scratch(path)
    }

    fn path(&self, name: &str) -> String {
        self.0.join(name).to_str().expect("the build's folder has a plain name").to_owned()
    }

    fn read(&self, name: &str) -> String {
        fs::read_to_string(self.0.join(name)).unwrap_or_default()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // A leftover is in the build's scratch space and does no harm.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A process that is ended when this value is dropped, also when a test panics.
struct Process(u32);

impl Drop for Process {
    fn drop(&mut self) {
        // It has mostly ended already.
        let _ = Command::new("kill").arg(self.0.to_string()).stderr(Stdio::null()).status();
    }
}

/// Returns the command of a server with a log in its scratch space.
fn command(scratch: &Scratch, port: &Port, args: &[&str]) -> Command {
    let mut command = Command::new(SERVER);
    command
        .args(["--port", &port.number().to_string(), "--dir", &scratch.path(""), "--save", ""])
        .args(["--logfile", &scratch.path("log"), "--io-threads", "1"])
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .env_remove("NOTIFY_SOCKET");
    command
}

fn await_end(mut child: Child) {
    until("it ends", || child.try_wait().expect("the process is this test's own").is_some());
    assert!(child.wait().expect("it has ended").success());
}

fn connect(port: &Port) -> Client {
    until("it listens", || std::net::TcpStream::connect(("127.0.0.1", port.number())).is_ok());
    Client::connect(port.number())
}

fn info(client: &mut Client, field: &str) -> String {
    let info = client.command(&["INFO", "server"]).text().expect("it answers text");
    let found = info.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    found.unwrap_or_else(|| panic!("{field} in {info}")).to_owned()
}

#[test]
fn a_daemon_goes_to_the_background_and_serves_with_all_its_threads() {
    let scratch = Scratch::new("daemon");
    let port = Port::claim();
    let args = ["--daemonize", "yes", "--pidfile", &scratch.path("pid"), "--io-threads", "3"];
    let child = command(&scratch, &port, &args).spawn().expect("the server can be run");
    let foreground = child.id();
    // The command ends at once, as scripts expect.
    await_end(child);
    let mut client = connect(&port);
    let pid = info(&mut client, "process_id").parse().expect("it is a number");
    let _daemon = Process(pid);
    assert_ne!(pid, foreground);
    assert_eq!(scratch.read("pid"), format!("{pid}\n"));
    let mut others: Vec<Client> = (0..10).map(|_| Client::connect(port.number())).collect();
    for (n, other) in others.iter_mut().enumerate() {
        assert_eq!(ask(other, &format!("SET k{n} v")), "+OK");
    }
    assert_eq!(ask(&mut client, "DBSIZE"), ":10");
    // It has a session of its own, and its standard streams lead nowhere.
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).expect("it runs");
    let fields: Vec<&str> = stat.rsplit_once(')').expect("its name").1.split_whitespace().collect();
    assert_eq!(fields[3], pid.to_string(), "the session in {stat}");
    for stream in 0..3 {
        let leads_to = fs::read_link(format!("/proc/{pid}/fd/{stream}")).expect("it is open");
        assert_eq!(leads_to, Path::new("/dev/null"));
    }
    assert!(scratch.read("log").contains(&format!("pid={pid}, just started")));
    client.send(&["SHUTDOWN", "NOSAVE"]);
    until("it says that it ends", || scratch.read("log").contains("Braid is now ready to exit"));
    assert!(!Path::new(&scratch.path("pid")).exists(), "it has taken its file away before");
}

#[test]
fn systemd_hears_that_the_server_is_ready_and_that_it_stops() {
    for (supervised, is_file) in [("systemd", true), ("auto", true), ("systemd", false)] {
        let scratch = Scratch::new(&format!("{supervised}-{}", u8::from(is_file)));
        // In some containers it is an abstract name, without a file.
        let (socket, systemd) = if is_file {
            let socket = scratch.path("notify");
            let systemd = UnixDatagram::bind(&socket).expect("the folder is writable");
            (socket, systemd)
        } else {
            let name = format!("braid-notify-{}-{supervised}", std::process::id());
            let address = SocketAddr::from_abstract_name(&name).expect("it is short");
            (format!("@{name}"), UnixDatagram::bind_addr(&address).expect("nobody else has it"))
        };
        systemd.set_read_timeout(Some(PATIENCE)).expect("it is a socket");
        let heard = || {
            let mut said = [0; 1000];
            let n = systemd.recv(&mut said).expect("the server says something");
            String::from_utf8(said[..n].to_vec()).expect("it is text")
        };
        let port = Port::claim();
        // A supervised server does not go to the background.
        let args = ["--supervised", supervised, "--daemonize", "yes"];
        let mut command = command(&scratch, &port, &args);
        let child = command.env("NOTIFY_SOCKET", &socket).spawn().expect("the server can be run");
        let server = Process(child.id());
        let said = heard();
        assert!(said.lines().any(|line| line == "READY=1"), "{said}");
        // The server is ready by then.
        let mut client = Client::connect(port.number());
        assert_eq!(ask(&mut client, "PING"), "+PONG");
        assert_eq!(info(&mut client, "process_supervised"), "systemd");
        assert_eq!(info(&mut client, "process_id"), server.0.to_string());
        client.send(&["SHUTDOWN", "NOSAVE"]);
        let said = heard();
        assert!(said.lines().any(|line| line == "STOPPING=1"), "{said}");
        await_end(child);
    }
}

#[test]
fn a_server_that_nobody_supervises_says_so_and_serves() {
    let scratch = Scratch::new("unsupervised");
    let port = Port::claim();
    let args = ["--supervised", "systemd", "--syslog-enabled", "yes", "--syslog-ident", "unheard"];
    let args = [&args[..], &["--bind", "127.0.0.1", "127.0.0.2"]].concat();
    let child = command(&scratch, &port, &args).spawn().expect("the server can be run");
    let _server = Process(child.id());
    let mut client = connect(&port);
    assert_eq!(info(&mut client, "process_supervised"), "no");
    assert!(scratch.read("log").contains("no systemd waits for this process"), "{}", scratch.read("log"));
    // With or without the system's log, its file has all lines.
    assert_eq!(
        scratch.read("log").matches("Ready to accept connections").count(),
        1,
        "once for both addresses"
    );
    client.send(&["SHUTDOWN", "NOSAVE"]);
    await_end(child);
}

#[test]
fn help_that_nobody_reads_to_its_end_is_no_failure() {
    for question in ["--help", "--version"] {
        let (reader, writer) = std::io::pipe().expect("there are descriptors");
        drop(reader);
        let asked = Command::new(SERVER).arg(question).stdout(writer).output().expect("it runs");
        let said = String::from_utf8_lossy(&asked.stderr);
        assert!(asked.status.success() && said.is_empty(), "{question}: {said}");
    }
}

/// Starts a server and makes it end by a fault. Returns the signal that ended it, and its log.
fn fault(name: &str, args: &[&str], harm: impl FnOnce(&mut Client, u32)) -> (Option<i32>, String) {
    let scratch = Scratch::new(name);
    let port = Port::claim();
    let args = [&["--enable-debug-command", "yes"], args].concat();
    let mut child =
        command(&scratch, &port, &args).stderr(Stdio::null()).spawn().expect("the server can be run");
    let _process = Process(child.id());
    harm(&mut connect(&port), child.id());
    until("it ends", || child.try_wait().expect("the process is this test's own").is_some());
    (child.wait().expect("it has ended").signal(), scratch.read("log"))
}

fn segfault(client: &mut Client, _: u32) {
    client.send(&["DEBUG", "SEGFAULT"]);
    client.await_close().expect("it is closed");
}

fn send(signal: &str, pid: u32) {
    let sent = Command::new("kill").args([&format!("-{signal}"), &pid.to_string()]).status();
    assert!(sent.expect("there is a kill").success());
}

const SEGV: i32 = 11;
const ABRT: i32 = 6;

#[test]
fn the_log_tells_where_a_fault_was_and_the_process_ends_by_its_signal() {
    let (signal, log) = fault("segfault", &[], segfault);
    assert_eq!(signal, Some(SEGV));
    for told in ["crashed by signal: 11 (SIGSEGV)", "Thread: io-0", "STACK TRACE", "REPORT END"] {
        assert!(log.contains(told), "{told} in {log}");
    }
    assert!(log.contains("debug_segfault at "), "the stack has the command in {log}");
    // The outermost call shows that this is the whole stack of the thread. The innermost one shows that the
    // report itself is left out.
    assert!(log.contains("start_thread") && !log.contains("on_fault"), "{log}");
}

#[test]
fn a_panic_that_ends_the_process_is_reported_with_its_place() {
    let (signal, log) = fault("panic", &[], |client, _| {
        client.send(&["DEBUG", "PANIC-AFTER-CHANGE", "key"]);
        client.await_close().expect("it is closed");
    });
    assert_eq!(signal, Some(ABRT));
    assert!(log.contains("crashed by signal: 6 (SIGABRT)") && log.contains("run_transaction"), "{log}");
}

#[test]
fn a_signal_of_a_fault_that_another_process_sends_is_reported_too() {
    let (signal, log) = fault("sent", &[], |_, pid| send("ABRT", pid));
    assert_eq!(signal, Some(ABRT));
    assert!(log.contains("crashed by signal: 6 (SIGABRT)") && log.contains("STACK TRACE"), "{log}");
}

#[test]
fn further_faults_do_not_cut_the_report_off() {
    let (signal, log) = fault("further", &[], |_, pid| (0..3).for_each(|_| send("SEGV", pid)));
    assert_eq!(signal, Some(SEGV));
    assert_eq!(log.matches("crashed by signal").count(), 1, "{log}");
    assert!(log.contains("REPORT END"), "{log}");
}

#[test]
fn nothing_is_reported_where_that_is_not_wanted() {
    let switch_off = |client: &mut Client, pid| {
        assert_eq!(ask(client, "CONFIG SET crash-log-enabled no"), "+OK");
        segfault(client, pid);
    };
    for (signal, log) in [
        fault("unreported", &["--crash-log-enabled", "no"], segfault),
        fault("unreported-any-more", &[], switch_off),
    ] {
        assert_eq!(signal, Some(SEGV));
        assert!(!log.contains("crashed by signal") && !log.contains("STACK TRACE"), "{log}");
    }
}

/// Signals of a closed terminal, a log rotation, a profiler or a timer used to end the server. It ended at
/// once, without a snapshot.
#[test]
fn signals_that_ask_for_no_end_are_survived() {
    let scratch = Scratch::new("signals");
    let port = Port::claim();
    let mut server = command(&scratch, &port, &[]).spawn().expect("it can be run");
    let _ended = Process(server.id());
    let mut client = connect(&port);
    assert_eq!(ask(&mut client, "SET key value"), "+OK");
    let named =
        ["HUP", "USR1", "USR2", "PIPE", "ALRM", "STKFLT", "CHLD", "CONT", "URG", "XCPU", "XFSZ", "VTALRM"];
    let others = ["PROF", "WINCH", "IO", "PWR", "34", "50", "64"];
    for signal in named.into_iter().chain(others) {
        let sent = Command::new("kill").args([&format!("-{signal}"), &server.id().to_string()]).status();
        assert!(sent.expect("kill is everywhere").success(), "{signal}");
        assert_eq!(ask(&mut client, "GET key"), "\"value\"", "{signal}");
    }
    client.send(&["SHUTDOWN", "NOSAVE"]);
    assert!(server.wait().expect("it is this test's own").success());
}

/// As in Redis, a supervisor may send SIGTERM twice, and nothing is lost. A second Ctrl-C ends the server at
/// once, and the log reports that nothing was saved.
#[test]
fn a_second_signal_ends_the_last_snapshot_only_if_it_is_sigint() {
    for (first, second, is_saved) in
        [("TERM", "TERM", true), ("INT", "TERM", true), ("INT", "INT", false), ("TERM", "INT", false)]
    {
        let scratch = Scratch::new(&format!("{first}-{second}"));
        let port = Port::claim();
        let args = ["--save", "3600 1000", "--rdb-key-save-delay", "10000000"];
        let mut server = command(&scratch, &port, &args).spawn().expect("it can be run");
        let _ended = Process(server.id());
        let mut client = connect(&port);
        (0..10).for_each(|n| assert_eq!(ask(&mut client, &format!("SET k{n} v")), "+OK"));
        let number = server.id().to_string();
        let send = |signal: &str| {
            let sent = Command::new("kill").args([&format!("-{signal}"), &number]).status();
            assert!(sent.expect("kill is everywhere").success());
        };
        send(first);
        let temporary = scratch.path(&format!("temp-{number}.rdb"));
        until("it saves", || Path::new(&temporary).exists());
        send(second);
        if is_saved {
            until("it has heard of both", || scratch.read("log").matches("scheduling shutdown").count() == 2);
            assert_eq!(ask(&mut client, "CONFIG SET rdb-key-save-delay 0"), "+OK");
        }
        let status = server.wait().expect("it is this test's own");
        assert_eq!(status.code(), Some(i32::from(!is_saved)), "{first}, {second}");
        assert_eq!(Path::new(&scratch.path("dump.rdb")).exists(), is_saved, "{first}, {second}");
        assert!(!Path::new(&temporary).exists());
    }
}

/// A server with ten keys whose snapshot lasts as long as the test wants.
struct Ending {
    scratch: Scratch,
    port: Port,
    server: Child,
    _ended: Process,
    client: Client,
    other: Client,
}

impl Ending {
    fn new(name: &str, save: &str) -> Self {
        let scratch = Scratch::new(name);
        let port = Port::claim();
        let args = ["--save", save, "--rdb-key-save-delay", "10000000"];
        let server = command(&scratch, &port, &args).spawn().expect("it can be run");
        let ended = Process(server.id());
        let [mut client, other] = [connect(&port), connect(&port)];
        (0..10).for_each(|n| assert_eq!(ask(&mut client, &format!("SET k{n} v")), "+OK"));
        Ending { scratch, port, server, _ended: ended, client, other }
    }

    fn send(&self, signal: &str) {
        send(signal, self.server.id());
    }

    fn until_it_saves(&self) {
        let temporary = self.scratch.path(&format!("temp-{}.rdb", self.server.id()));
        until("it saves", || Path::new(&temporary).exists());
    }

    fn let_it_save(&mut self) {
        assert_eq!(ask(&mut self.client, "CONFIG SET rdb-key-save-delay 0"), "+OK");
    }

    /// Returns its exit code, and whether it has left a snapshot.
    fn end(mut self) -> (Option<i32>, bool) {
        let status = self.server.wait().expect("it is this test's own");
        (status.code(), Path::new(&self.scratch.path("dump.rdb")).exists())
    }
}

/// A supervisor's signal, or another client, used to end the server meanwhile. It ended with success, but
/// with nothing saved.
#[test]
fn an_end_that_saves_nothing_waits_for_what_is_being_saved() {
    for (save, first) in [("", "SHUTDOWN SAVE"), ("", "SAVE"), ("3600 1000", "SHUTDOWN")] {
        for second in ["SIGTERM", "SHUTDOWN NOSAVE"] {
            let mut ending = Ending::new("waits", save);
            ending.other.send(&first.split(' ').collect::<Vec<_>>());
            ending.until_it_saves();
            match second {
                "SIGTERM" => {
                    ending.send("TERM");
                    until("it has heard", || ending.scratch.read("log").contains("scheduling shutdown"));
                }
                _ => {
                    let mut third = connect(&ending.port);
                    third.send(&["SHUTDOWN", "NOSAVE"]);
                    let n_orders = if first == "SAVE" { 1 } else { 2 };
                    let log = || ending.scratch.read("log");
                    until("it has heard", || log().matches("User requested shutdown").count() == n_orders);
                }
            }
            ending.let_it_save();
            if first == "SAVE" {
                assert_eq!(ending.other.receive().to_string(), "+OK", "{first}, {second}");
            }
            assert_eq!(ending.end(), (Some(0), true), "{first}, {second}");
        }
    }
}

/// After a refused signal or a called-off end, the next SIGINT used to end the server at once.
#[test]
fn a_signal_insists_on_the_end_that_a_signal_has_begun_and_on_no_other() {
    let mut ending = Ending::new("insists", "3600 1000");
    ending.send("TERM");
    ending.until_it_saves();
    assert_eq!(ask(&mut ending.client, "SHUTDOWN ABORT"), "+OK");
    until("it goes on", || ending.scratch.read("log").contains("Shutdown manually aborted"));
    ending.other.send(&["SHUTDOWN"]);
    ending.until_it_saves();
    ending.send("INT");
    until("it has heard", || ending.scratch.read("log").matches("scheduling shutdown").count() == 2);
    ending.let_it_save();
    assert_eq!(ending.end(), (Some(0), true));
}

/// The new request used to be dropped together with the aborted end, and the server continued.
#[test]
fn an_end_that_is_asked_for_after_an_abort_comes() {
    for second in ["SIGTERM", "SHUTDOWN"] {
        let mut ending = Ending::new("after-abort", "3600 1000");
        ending.other.send(&["SHUTDOWN"]);
        ending.until_it_saves();
        let mut third = connect(&ending.port);
        // One directly after the other, so that the saver sees both at once.
        third.send(&["SHUTDOWN", "ABORT"]);
        match second {
            "SIGTERM" => {
                assert_eq!(third.receive().to_string(), "+OK");
                ending.send("TERM");
            }
            _ => third.send(&["SHUTDOWN"]),
        }
        assert!(ending.other.receive().to_string().starts_with("-ERR Errors trying to SHUTDOWN"));
        ending.let_it_save();
        assert_eq!(ending.end(), (Some(0), true), "{second}");
    }
}

/// Runs a server that soon ends, or does not start. Returns its exit code and its output.
fn run(scratch: &Scratch, args: &[&str]) -> (Option<i32>, String) {
    let mut child = Command::new(SERVER)
        .args(args)
        .args(["--port", "0", "--unixsocket", &scratch.path("socket"), "--save", ""])
        .current_dir(&scratch.0)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it can be run");
    let _ended = Process(child.id());
    until("it ends", || child.try_wait().expect("the process is this test's own").is_some());
    let output = child.wait_with_output().expect("it has ended");
    let text = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8_lossy(&text).into_owned())
}

/// It used to start, and logged nothing anywhere.
#[test]
fn a_log_file_that_cannot_be_opened_ends_the_start() {
    let scratch = Scratch::new("no-log");
    fs::create_dir(scratch.path("folder")).expect("the folder is the test's own");
    for place in [scratch.path("missing/log"), scratch.path("folder"), "missing/log".to_owned()] {
        for checks in [&[][..], &["--check-config"], &["--daemonize", "yes"]] {
            let (code, text) = run(&scratch, &[&["--logfile", &place], checks].concat());
            assert_eq!(code, Some(1), "{place}, {checks:?}: {text}");
            assert!(text.contains("Can't open the log file"), "{text}");
        }
    }
    let (code, text) = run(&scratch, &["--logfile", &scratch.path("log"), "--check-config"]);
    assert_eq!(code, Some(0), "{text}");
    assert!(!Path::new(&scratch.path("log")).exists(), "a check leaves nothing");
}

/// Its first lines used to be in the folder of the start, and the others in `dir`.
#[test]
fn a_relative_log_file_is_one_file_in_the_folder_of_the_server() {
    let scratch = Scratch::new("relative-log");
    let port = Port::claim();
    fs::create_dir(scratch.path("data")).expect("the folder is the test's own");
    let mut server = Command::new(SERVER)
        .args(["--port", &port.number().to_string(), "--save", "", "--io-threads", "1"])
        .args(["--logfile", "log", "--dir", &scratch.path("data")])
        .current_dir(&scratch.0)
        .stdout(Stdio::null())
        .spawn()
        .expect("it can be run");
    let _ended = Process(server.id());
    connect(&port).send(&["SHUTDOWN", "NOSAVE"]);
    assert!(server.wait().expect("it is this test's own").success());
    let log = scratch.read("data/log");
    for line in ["Braid is starting", "Ready to accept connections", "bye bye"] {
        assert!(log.contains(line), "{line}: {log}");
    }
    assert!(!Path::new(&scratch.path("log")).exists());
}

/// It used to serve data of its own, or without the requested promise. Only a line of the log reported that.
#[test]
fn what_is_not_there_and_changes_what_is_safe_ends_the_start() {
    let scratch = Scratch::new("missing");
    for words in [&["--cluster-enabled", "yes"][..], &["--loadmodule", "/usr/lib/module.so"]] {
        let line = format!("{}\n", words.join(" ").trim_start_matches("--"));
        fs::write(scratch.path("conf"), line).expect("the folder is the test's own");
        for args in [words, &[&scratch.path("conf")[..]], &[words, &["--check-config"]].concat()] {
            let (code, text) = run(&scratch, args);
            assert_eq!(code, Some(1), "{args:?}: {text}");
            assert!(text.contains("support"), "{args:?}: {text}");
        }
    }
    for words in [["--preload-file", "rdb:x"], ["--import-mode", "yes"], ["--rdma-port", "6380"]] {
        let (code, text) = run(&scratch, &words);
        let name = words[0].trim_start_matches("--");
        assert_eq!(code, Some(1), "{words:?}: {text}");
        assert!(text.contains(&format!("Fatal error: '{name}' is set, and ")), "{words:?}: {text}");
    }
    // A value that requests nothing does not end the start, nor does one that a later line revokes.
    for words in [
        &["--replicaof", "no", "one"][..],
        &["--replicaof", "no one"],
        &["--cluster-enabled", "no"],
        &["--min-replicas-to-write", "0"],
        &["--cluster-enabled", "yes", "--cluster-enabled", "no"],
    ] {
        let (code, text) = run(&scratch, &[words, &["--check-config"]].concat());
        assert_eq!(code, Some(0), "{words:?}: {text}");
    }
    let port = Port::claim();
    let mut server = command(&scratch, &port, &[]).spawn().expect("it can be run");
    let _ended = Process(server.id());
    let mut client = connect(&port);
    for line in ["import-mode yes", "replicaof \"127.0.0.1 6379\"", "cluster-enabled yes"] {
        let refused = ask(&mut client, &format!("CONFIG SET {line}"));
        assert!(refused.starts_with("-ERR"), "{line}: {refused}");
    }
    client.send(&["SHUTDOWN", "NOSAVE"]);
    assert!(server.wait().expect("it is this test's own").success());
}

/// Puts a FIFO, a socket, a link to a device or a folder in a file's place.
fn put(kind: &str, path: &str) {
    // Removes the file of an earlier case.
    let _ = fs::remove_file(path);
    let made = match kind {
        "fifo" => Command::new("mkfifo").arg(path).status().is_ok_and(|status| status.success()),
        "socket" => std::os::unix::net::UnixListener::bind(path).is_ok(),
        "device" => std::os::unix::fs::symlink("/dev/zero", path).is_ok(),
        _ => fs::create_dir(path).is_ok(),
    };
    assert!(made, "no {kind} at {path}");
}

/// The start used to wait for a writer of the FIFO.
#[test]
fn what_is_no_file_in_the_place_of_one_ends_the_start() {
    for kind in ["fifo", "socket", "device", "folder"] {
        let scratch = Scratch::new(&format!("no-file-{kind}"));
        fs::create_dir(scratch.path("appendonlydir")).expect("the folder is the test's own");
        let dir = scratch.path("");
        let log = ["--appendonly", "yes", "--dir", &dir];
        let manifest = scratch.path("appendonlydir/appendonly.aof.manifest");
        let refused = |args: &[&str], why: &str| {
            let (code, text) = run(&scratch, args);
            assert_eq!(code, Some(1), "{kind}, {args:?}: {text}");
            assert!(text.contains(why), "{kind}, {args:?}: {text}");
            assert!(!text.contains("DB loaded"), "{kind}, {args:?}: {text}");
        };
        for (part, line) in [
            ("appendonly.aof.1.base.rdb", "file appendonly.aof.1.base.rdb seq 1 type b"),
            ("appendonly.aof.1.incr.aof", "file appendonly.aof.1.incr.aof seq 1 type i"),
        ] {
            fs::write(&manifest, format!("{line}\n")).expect("the folder is the test's own");
            put(kind, &scratch.path(&format!("appendonlydir/{part}")));
            refused(&log, &format!("{part} cannot be used: it is no regular file"));
        }
        put(kind, &manifest);
        refused(&log, "its manifest: it is no regular file");
        let checked = Command::new(SERVER).args(["--check-aof", &manifest]).output().expect("it can be run");
        assert!(!checked.status.success(), "{checked:?}");

        put(kind, &scratch.path("users"));
        refused(&["--aclfile", &scratch.path("users")], "users': it is no regular file");
        put(kind, &scratch.path("cert"));
        let tls = ["--tls-port", "1", "--tls-cert-file", &scratch.path("cert"), "--tls-key-file", "key"];
        refused(&tls, "cert: it is no regular file");

        put(kind, &scratch.path("dump.rdb"));
        // A pipe with a writer is a snapshot like any other.
        let why = if kind == "fifo" {
            "dump.rdb failed at byte 0"
        } else {
            "dump.rdb failed: it is no regular file"
        };
        refused(&["--dir", &dir], why);
        fs::remove_dir_all(scratch.path("appendonlydir")).expect("the folder is the test's own");
        refused(&log, "it is no regular file");
    }
}

/// A shell that has the lines in a variable, or decrypts them, passes them through a pipe.
#[test]
fn a_configuration_may_come_from_a_pipe() {
    let scratch = Scratch::new("piped");
    put("fifo", &scratch.path("conf"));
    let (path, text) = (scratch.path("conf"), "maxclients 77\n");
    let writer = std::thread::spawn(move || fs::write(path, text));
    let (code, text) = run(&scratch, &[&scratch.path("conf"), "--check-config"]);
    writer.join().expect("it does not panic").expect("the server reads it");
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("maxclients 77"), "{text}");
}
