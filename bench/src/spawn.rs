//! Starting and ending servers, each with its own port and scratch directory.

use std::fs::{self, File};
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::ops::Range;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::client::Client;
use crate::error::{BenchError, Doing};

/// A shell line that raises the limit of open files and becomes the given command.
///
/// It raises the limit as far as it may. The process keeps its id through `exec`, so the child process is the
/// server itself.
const RAISE_LIMIT_AND_EXEC: &str =
    "ulimit -n 65536 2>/dev/null || ulimit -n \"$(ulimit -Hn)\" 2>/dev/null; exec \"$@\"";
/// A shell line that ends the server and removes its directory when its input ends.
///
/// The input also ends when this program dies without cleaning up.
const WATCH: &str = "read -r _; kill -9 \"$1\" 2>/dev/null; rm -rf \"$2\"";
/// The environment variable of a program that was restarted under a raised limit.
const RESTARTED: &str = "BRAID_BENCH_RESTARTED";

/// The longest wait for a server to answer its first PING.
const START_PATIENCE: Duration = Duration::from_secs(15);
/// The ports of servers, below the ports that the system assigns to connections.
///
/// A client may connect to such an assigned port before its server listens. It may then be assigned that very
/// port, and be connected to itself.
const PORTS: Range<u16> = 16384..32768;
/// Ports of [`PORTS`] that have been tried so far.
static N_TRIED: AtomicU32 = AtomicU32::new(0);
/// Servers started so far; each has its own scratch directory.
static N_STARTED: AtomicU32 = AtomicU32::new(0);

/// A running server.
///
/// Dropping it kills the process and removes its directory. If this program is killed, the watchdog does
/// both.
#[derive(Debug)]
pub struct Server {
    child: Child,
    watchdog: Option<Child>,
    address: SocketAddr,
    scratch: PathBuf,
}

impl Server {
    /// Starts `binary` without persistence and with additional `arguments`, and waits until it answers PING.
    ///
    /// # Errors
    /// When the program cannot be started, ends at once or does not answer.
    pub fn start(binary: &Path, arguments: &[String]) -> Result<Self, BenchError> {
        let port = free_port()?;
        let scratch = scratch_directory()?;
        let child = spawn(binary, port, &scratch, arguments)?;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let mut server = Self { child, watchdog: None, address, scratch };
        server.watchdog = Some(watch(&server)?);
        server.wait_until_ready(binary)?;
        Ok(server)
    }

    /// Returns the address at which the server listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the id of the server's process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    fn wait_until_ready(&mut self, binary: &Path) -> Result<(), BenchError> {
        let began = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().doing("wait for a server")? {
                return Err(self.not_started(binary, format!("it ended with {status}")));
            }
            if Client::connect(self.address).and_then(|mut client| client.call(&[b"PING"])).is_ok() {
                return Ok(());
            }
            if began.elapsed() > START_PATIENCE {
                return Err(self.not_started(binary, format!("no PONG for {START_PATIENCE:?}")));
            }
            thread::sleep(Duration::from_millis(10));
        }
    }

    fn not_started(&self, binary: &Path, why: String) -> BenchError {
        let log = fs::read_to_string(log_path(&self.scratch)).unwrap_or_default();
        let lines: Vec<_> = log.trim().lines().collect();
        let log = lines[lines.len().saturating_sub(3)..].join(" | ");
        BenchError::NotStarted { binary: binary.display().to_string(), why, log }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // An error of `kill` means that the server has ended, which is the goal, or a failure without a
        // remedy here. The watchdog is killed before the server is waited for. Until then no other process
        // can have the server's id.
        let _ = self.child.kill();
        if let Some(watchdog) = &mut self.watchdog {
            let _ = watchdog.kill();
            let _ = watchdog.wait();
        }
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(&self.scratch);
    }
}

/// Restarts this program with the most open files allowed, unless that has been done.
///
/// # Errors
/// When the shell cannot be run; otherwise it does not return if it restarts.
pub fn restart_with_raised_limit() -> Result<(), BenchError> {
    if std::env::var_os(RESTARTED).is_some() {
        return Ok(());
    }
    let program = std::env::current_exe().doing("find this program")?;
    let error = through_shell(&program).args(std::env::args_os().skip(1)).env(RESTARTED, "1").exec();
    Err(error).doing("restart with more open files")
}

fn spawn(binary: &Path, port: u16, scratch: &Path, arguments: &[String]) -> Result<Child, BenchError> {
    let log = File::create(log_path(scratch)).doing("create a server's log")?;
    let errors = log.try_clone().doing("share a server's log")?;
    through_shell(binary)
        .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"])
        .arg("--dir")
        .arg(scratch)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(log)
        .stderr(errors)
        .spawn()
        .doing(format!("run {}", binary.display()))
}

fn watch(server: &Server) -> Result<Child, BenchError> {
    Command::new("sh")
        .args(["-c", WATCH, "sh", &server.pid().to_string()])
        .arg(&server.scratch)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .process_group(0)
        .spawn()
        .doing("watch over a server")
}

fn through_shell(program: &Path) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", RAISE_LIMIT_AND_EXEC, "sh"]).arg(program);
    command
}

fn log_path(scratch: &Path) -> PathBuf {
    scratch.join("log")
}

/// Returns a port on which no program listens now.
///
/// # Errors
/// When all are taken.
pub fn free_port() -> Result<u16, BenchError> {
    let n_ports = u32::from(PORTS.end - PORTS.start);
    // Programs that run at the same time begin at different ports.
    let first = std::process::id().wrapping_mul(31) % n_ports;
    let mut candidates = (0..n_ports).map(|_| {
        let nth = (first + N_TRIED.fetch_add(1, Ordering::Relaxed)) % n_ports;
        PORTS.start + nth as u16
    });
    let is_free = |&port: &u16| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok();
    candidates.find(is_free).ok_or_else(|| BenchError::Machine(format!("no port of {PORTS:?} is free")))
}

fn scratch_directory() -> Result<PathBuf, BenchError> {
    let n_started = N_STARTED.fetch_add(1, Ordering::Relaxed);
    let path = std::env::temp_dir().join(format!("braid-bench-{}-{n_started}", std::process::id()));
    match fs::create_dir_all(&path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            Err(error).doing(format!("create {}", path.display()))
        }
        _ => Ok(path),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_below_those_of_connections_and_differ() {
        let ports: Vec<_> = (0..20).map(|_| free_port().expect("a port is free")).collect();
        assert!(ports.iter().all(|port| PORTS.contains(port)), "{ports:?}");
        assert!(ports.windows(2).all(|pair| pair[0] != pair[1]), "{ports:?}");
    }

    #[test]
    fn a_program_that_ends_at_once_is_reported_with_its_words() {
        let error = Server::start(Path::new("/bin/false"), &[]).expect_err("false is no server");
        assert!(error.to_string().contains("it ended with exit status: 1"), "{error}");
        let error =
            Server::start(Path::new("/nonexistent/server"), &[]).expect_err("there is no such program");
        assert!(error.to_string().contains("not found"), "{error}");
    }
}
