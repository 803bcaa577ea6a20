//! The cost of encrypted connections, and the waits while many of them are made.

use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use braid_protocol::Value;

use super::contest::{Contest, N_KEYS, Side, VALUE, load_keys};
use super::cpu;
use crate::bars::measures::{Measure, Target, Unit};
use crate::client::Client;
use crate::engine;
use crate::error::{BenchError, Doing};
use crate::prober::Prober;
use crate::spawn::{self, Server};

/// The number of handshakes during the PINGs.
const N_HANDSHAKES: f64 = 5000.0;
/// The number of clients that make handshakes, each one after the other.
const N_SHAKERS: usize = 4;
/// The longest duration of the handshakes, in seconds.
const PATIENCE: &str = "60";
/// The pause between two PINGs.
const PACE: Duration = Duration::from_millis(1);
/// The time between two queries of the server's count of connections.
const POLL_EVERY: Duration = Duration::from_millis(20);

/// Measures the processor time of a GET over TLS.
pub(super) fn cpu(
    contest: &Contest,
    bar: &str,
    pipeline: u32,
    target: f64,
) -> Result<Vec<Measure>, BenchError> {
    let certificate = Certificate::make(bar)?;
    let start = |side: Side| certificate.start(contest, side).map_err(|error| error.on_side(side.name()));
    let servers = [start(Side::Braid)?, start(Side::Redis)?];
    servers.iter().try_for_each(|(server, _)| load_keys(server, VALUE))?;
    let measures = vec![
        Measure::new("CPU/GET", Unit::Micros, Target::ratio(target)),
        Measure::new("GET", Unit::PerSecond, Target::NONE),
    ];
    let n_keys = N_KEYS.to_string();
    contest.rounds(bar, contest.n_rounds, measures, |side| {
        let (server, port) = side.of(&servers);
        // redis-benchmark uses the last of the ports that it is given.
        let arguments = ["-p", &port.to_string(), "--tls", "--insecure", "-r", &n_keys, "-t", "get"];
        let n_requests = contest.n_requests(pipeline);
        let get = cpu::per_command(&contest.redis_benchmark, server, pipeline, n_requests, &arguments)?;
        Ok(vec![get.micros, get.per_second])
    })
}

/// Measures the longest wait of a plain connection's PING while others make full handshakes.
pub(super) fn handshakes(contest: &Contest, bar: &str) -> Result<Vec<Measure>, BenchError> {
    let measures = vec![
        Measure::new("PING max", Unit::Millis, Target::value(20.0)),
        Measure::new("PING max before", Unit::Millis, Target::NONE),
        Measure::new("handshakes", Unit::PerSecond, Target::NONE),
    ];
    let certificate = Certificate::make(bar)?;
    contest.rounds(bar, contest.few_rounds(), measures, |side| {
        let (server, port) = certificate.start(contest, side)?;
        let (before, ()) = longest_ping(&server, || {
            thread::sleep(Duration::from_secs(1));
            Ok(())
        })?;
        let (longest, per_second) = longest_ping(&server, || shake_hands(&server, port))?;
        Ok(vec![millis(longest), millis(before), per_second])
    })
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// Sends PING during a task, and returns the longest wait and the task's result.
fn longest_ping<T>(
    server: &Server,
    what: impl FnOnce() -> Result<T, BenchError>,
) -> Result<(Duration, T), BenchError> {
    let is_answer = |reply: &Value| *reply == Value::Simple(b"PONG".to_vec());
    let prober = Prober { n_connections: 4, pace: PACE, question: &|_| vec![b"PING".to_vec()], is_answer };
    let target = engine::LoadTarget::plain(server.address());
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let asking = scope.spawn(|| prober.longest_wait(&target, &is_over, || Ok(())));
        let done = what();
        is_over.store(true, Ordering::SeqCst);
        let longest = asking.join().expect("a prober does not panic");
        Ok((longest?, done?))
    })
}

/// Makes the handshakes, and returns the number a second.
fn shake_hands(server: &Server, port: u16) -> Result<f64, BenchError> {
    let mut client = Client::connect(server.address())?;
    let n_before = client.info_figure("total_connections_received")?;
    let began = Instant::now();
    let address = SocketAddr::from((server.address().ip(), port)).to_string();
    let mut shakers = (0..N_SHAKERS).map(|_| Shaker::start(&address)).collect::<Result<Vec<_>, _>>()?;
    loop {
        thread::sleep(POLL_EVERY);
        shakers.iter_mut().try_for_each(Shaker::check)?;
        let n_made = client.info_figure("total_connections_received")? - n_before;
        if n_made >= N_HANDSHAKES {
            return Ok(n_made / began.elapsed().as_secs_f64());
        }
    }
}

/// A client of OpenSSL's that connects repeatedly, without a session to resume.
///
/// It ends by itself when a handshake fails. It speaks TLS 1.2. With 1.3 it closes a connection before it has
/// read the session tickets, which resets the connection. To a server that still writes the tickets, the
/// handshake has failed.
struct Shaker(Child);

impl Shaker {
    fn start(address: &str) -> Result<Self, BenchError> {
        let arguments = ["s_time", "-connect", address, "-new", "-tls1_2", "-time", PATIENCE];
        let child = Command::new("openssl")
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        child.doing("run openssl s_time").map(Self)
    }

    fn check(&mut self) -> Result<(), BenchError> {
        match self.0.try_wait().doing("wait for openssl s_time")? {
            None => Ok(()),
            Some(status) => {
                let why = format!(
                    "openssl s_time ended with {status} before there were {N_HANDSHAKES} handshakes: one failed, or \
                     {PATIENCE} s have passed"
                );
                Err(BenchError::Machine(why))
            }
        }
    }
}

impl Drop for Shaker {
    fn drop(&mut self) {
        // A client that has already ended is no failure.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A self-signed certificate of a key on P-256, and its folder.
struct Certificate {
    folder: PathBuf,
}

impl Certificate {
    fn make(bar: &str) -> Result<Self, BenchError> {
        let folder = std::env::temp_dir().join(format!("braid-bench-{}-{bar}", std::process::id()));
        fs::create_dir_all(&folder).doing(format!("create {}", folder.display()))?;
        let made = Self { folder };
        let output = Command::new("openssl")
            .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"])
            .args(["-days", "30", "-subj", "/CN=localhost"])
            .args(["-keyout", &made.path("key.pem"), "-out", &made.path("certificate.pem")])
            .stdin(Stdio::null())
            .output()
            .doing("run openssl, which makes the certificate")?;
        if output.status.success() {
            return Ok(made);
        }
        let why = String::from_utf8_lossy(&output.stderr);
        Err(BenchError::Machine(format!("openssl made no certificate: {}", why.trim().replace('\n', " "))))
    }

    fn path(&self, file: &str) -> String {
        self.folder.join(file).display().to_string()
    }

    /// Starts a server with a second port, for TLS; clients need no certificate.
    fn start(&self, contest: &Contest, side: Side) -> Result<(Server, u16), BenchError> {
        let port = spawn::free_port()?;
        let (certificate, key) = (self.path("certificate.pem"), self.path("key.pem"));
        let files =
            ["--tls-cert-file", &certificate, "--tls-key-file", &key, "--tls-ca-cert-file", &certificate];
        let further = ["--tls-port", &port.to_string(), "--tls-auth-clients", "no"];
        Ok((contest.start(side, &[&files[..], &further].concat())?, port))
    }
}

impl Drop for Certificate {
    fn drop(&mut self) {
        // A scratch folder that cannot be removed is no failure of the measurement.
        let _ = fs::remove_dir_all(&self.folder);
    }
}
