//! A server process for one test.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::net::{TcpListener, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU16, AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::{Client, PATIENCE, Reply};

/// The variable that names the program to test in Braid's place, such as `redis-server`.
const COMPAT_SERVER: &str = "BRAID_COMPAT_SERVER";

/// The most attempts at a port, which a process that is no test may take.
const PORT_ATTEMPTS: usize = 5;

/// A running server. It ends when this value is dropped, also when a test panics.
pub struct Server {
    child: Child,
    port: Port,
    scratch: PathBuf,
}

/// A TCP port that no other test takes. The claim lasts as long as this value, even without a listener.
pub struct Port {
    number: u16,
    /// The UDP port of the same number. Nobody needs it, and only one process can have it.
    _claim: UdpSocket,
}

impl Port {
    /// The first port. All are below the ports of the kernel's outgoing connections, which could take one of
    /// these otherwise.
    const FIRST: u16 = 10_000;
    const N_PORTS: u16 = 20_000;

    /// Claims a port without a listener.
    ///
    /// # Panics
    /// When there is none.
    pub fn claim() -> Port {
        static N_TRIED: AtomicU16 = AtomicU16::new(0);
        // Processes begin at different places, so they rarely collide.
        let begin = (std::process::id() % u32::from(Port::N_PORTS)) * 101 % u32::from(Port::N_PORTS);
        let tried = (0..Port::N_PORTS).map(|_| {
            let nth = u32::from(N_TRIED.fetch_add(1, Ordering::Relaxed) % Port::N_PORTS);
            Port::FIRST + ((begin + nth) % u32::from(Port::N_PORTS)) as u16
        });
        let mut claimed = tried.filter_map(|number| {
            let claim = UdpSocket::bind(("127.0.0.1", number)).ok()?;
            TcpListener::bind(("0.0.0.0", number)).ok()?;
            Some(Port { number, _claim: claim })
        });
        claimed.next().expect("one of the ports is free")
    }

    /// Returns its number.
    pub fn number(&self) -> u16 {
        self.number
    }
}

/// The state for which a test waits when a server starts.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ready {
    /// It answers anything.
    Answering,
    /// It has loaded its data.
    Serving,
}

impl Server {
    /// Returns the server to test in Braid's place, if there is one.
    pub fn compat_program() -> Option<String> {
        std::env::var(COMPAT_SERVER).ok().filter(|program| !program.is_empty())
    }

    /// Starts a server on a free port and waits until it answers. It has a directory of its own. `args`
    /// follow the arguments of every test and may override them.
    ///
    /// # Panics
    /// When it does not start. The message contains the end of its output.
    pub fn start(args: &[&str]) -> Server {
        let braid = || env!("CARGO_BIN_EXE_braid-server").to_owned();
        Server::start_program(&Server::compat_program().unwrap_or_else(braid), args)
    }

    /// Like [`Server::start`], but starts this program.
    ///
    /// # Panics
    /// When it does not start. The message contains the end of its output.
    pub fn start_program(program: &str, args: &[&str]) -> Server {
        Server::start_until(program, args, Ready::Serving)
    }

    /// Like [`Server::start`], but waits only until the server answers, even if it is still loading.
    ///
    /// # Panics
    /// When it does not start. The message contains the end of its output.
    pub fn start_loading(args: &[&str]) -> Server {
        Server::start_until(env!("CARGO_BIN_EXE_braid-server"), args, Ready::Answering)
    }

    /// Like [`Server::start`] for Braid, which may refuse to start.
    ///
    /// # Errors
    /// The reason why it did not start, with the end of its output.
    pub fn try_start(args: &[&str]) -> Result<Server, String> {
        Server::try_until(env!("CARGO_BIN_EXE_braid-server"), args, Ready::Serving)
    }

    /// Like [`Server::start`] for Braid, with more variables in its environment.
    ///
    /// # Panics
    /// When it does not start. The message contains the end of its output.
    pub fn start_with(variables: &[(&str, &OsStr)], args: &[&str]) -> Server {
        let program = env!("CARGO_BIN_EXE_braid-server");
        Server::try_with(variables, program, args, Ready::Serving).unwrap_or_else(|why| panic!("{why}"))
    }

    fn start_until(program: &str, args: &[&str], ready: Ready) -> Server {
        Server::try_until(program, args, ready).unwrap_or_else(|why| panic!("{why}"))
    }

    fn try_until(program: &str, args: &[&str], ready: Ready) -> Result<Server, String> {
        Server::try_with(&[], program, args, ready)
    }

    fn try_with(
        variables: &[(&str, &OsStr)],
        program: &str,
        args: &[&str],
        ready: Ready,
    ) -> Result<Server, String> {
        for _ in 0..PORT_ATTEMPTS {
            let mut server = Server::spawn(variables, program, args);
            match server.await_ready(ready) {
                Ok(()) => return Ok(server),
                Err(Unready::PortTaken) => continue,
                Err(Unready::Failed(why)) => {
                    return Err(format!("the server did not start: {why}\n{}", server.log_tail()));
                }
            }
        }
        Err(format!("no free port in {PORT_ATTEMPTS} attempts"))
    }

    /// Returns the port on which it listens, at 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port.number
    }

    /// Returns the process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns its working directory, which is empty at the start and removed at the end.
    pub fn scratch(&self) -> &Path {
        &self.scratch
    }

    /// Opens a new connection to it.
    ///
    /// # Panics
    /// When the connection is refused.
    pub fn connect(&self) -> Client {
        Client::connect(self.port())
    }

    /// Whether the process has ended by itself.
    pub fn has_ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    /// Waits until the process has ended by itself. Returns its exit status.
    ///
    /// # Panics
    /// When it runs for longer than a server may take to stop.
    pub fn await_end(&mut self) -> ExitStatus {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait().expect("the process is this test's own") {
                return status;
            }
            assert!(Instant::now() < deadline, "the server does not end:\n{}", self.log_tail());
            thread::sleep(Duration::from_millis(2));
        }
    }

    /// Kills the process, even while clients use it.
    pub fn kill(&mut self) {
        self.end();
    }

    /// Kills the process and waits for its end.
    pub fn stop(mut self) {
        self.end();
    }

    /// Returns the last lines of the server's output.
    pub fn log_tail(&self) -> String {
        let log = self.log();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(20)..].join("\n")
    }

    /// Returns everything that the server has logged so far.
    pub fn log(&self) -> String {
        let log = fs::read(self.log_path()).unwrap_or_default();
        String::from_utf8_lossy(&log).into_owned()
    }

    fn log_path(&self) -> PathBuf {
        self.scratch.join("server.log")
    }

    fn spawn(variables: &[(&str, &OsStr)], program: &str, args: &[&str]) -> Server {
        let scratch = new_scratch();
        let port = Port::claim();
        let log = File::create(scratch.join("server.log")).expect("the scratch directory is writable");
        let child = Command::new(program)
            .envs(variables.iter().copied())
            .args(["--port", &port.number.to_string(), "--bind", "127.0.0.1"])
            .args(["--save", "", "--appendonly", "no", "--enable-debug-command", "yes"])
            .arg("--dir")
            .arg(&scratch)
            .args(every_thread(program))
            .args(args)
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a file handle can be cloned"))
            .stderr(log)
            .spawn()
            .unwrap_or_else(|error| panic!("{program}: {error}"));
        Server { child, port, scratch }
    }

    /// Waits until the server answers. A successful connection is the only sign that it listens.
    fn await_ready(&mut self, ready: Ready) -> Result<(), Unready> {
        let deadline = Instant::now() + PATIENCE;
        let mut pause = Duration::from_millis(1);
        while Instant::now() < deadline {
            if self.has_ended() {
                return Err(self.why_it_ended());
            }
            match self.answers(ready) {
                Ok(true) => return Ok(()),
                Ok(false) => return Err(Unready::PortTaken),
                Err(_) => thread::sleep(pause),
            }
            pause = (pause * 2).min(Duration::from_millis(50));
        }
        Err(Unready::Failed(format!("no answer on port {} within {PATIENCE:?}", self.port())))
    }

    /// Whether this process answers on the port, and not one that took the port in between.
    fn answers(&self, ready: Ready) -> io::Result<bool> {
        let mut client = Client::try_connect(self.port())?;
        let answer = client.try_command(&["PING"])?;
        if ready == Ready::Serving && answer.to_string().starts_with("-LOADING") {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let Reply::Bulk(info) = client.try_command(&["INFO", "server"])? else {
            return Ok(true); // It wants a password first.
        };
        let info = String::from_utf8_lossy(&info);
        let pid = info.lines().find_map(|line| line.strip_prefix("process_id:"));
        Ok(pid.is_none_or(|pid| pid.trim() == self.pid().to_string()))
    }

    fn why_it_ended(&self) -> Unready {
        let log = self.log_tail();
        if log.contains("ddress already in use") {
            Unready::PortTaken
        } else {
            Unready::Failed("it ended at once".to_owned())
        }
    }

    fn end(&mut self) {
        // Both fail only for a process that has ended and was waited for.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end();
        // A leftover directory is in the build's scratch space and does no harm.
        let _ = fs::remove_dir_all(&self.scratch);
    }
}

enum Unready {
    PortTaken,
    Failed(String),
}

/// Makes all of Braid's threads serve connections. These threads may disturb each other, however few
/// connections a test has.
fn every_thread(program: &str) -> &'static [&'static str] {
    let is_braid = program == env!("CARGO_BIN_EXE_braid-server");
    if is_braid { &["--io-threads-always-active", "yes"] } else { &[] }
}

fn new_scratch() -> PathBuf {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let name = format!("server-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    fs::create_dir_all(&path).expect("the build's scratch space is writable");
    path
}
