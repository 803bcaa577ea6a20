//! A redis-server with which replies are compared.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

/// A running redis-server. It ends when this is dropped.
pub struct Redis {
    process: Child,
    stream: BufReader<UnixStream>,
    /// The folder of its socket.
    pub folder: PathBuf,
}

impl Redis {
    /// Starts a server, or returns `None` if none is installed.
    ///
    /// `BRAID_REQUIRE_REDIS` makes that a failure.
    pub fn start() -> Option<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name =
            format!("braid-libraries-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&folder).expect("a folder for redis-server");
        let socket = folder.join("socket");
        let process = Command::new("redis-server")
            .args(["--port", "0", "--save", "", "--dir"])
            .arg(&folder)
            .arg("--unixsocket")
            .arg(&socket)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn();
        let mut process = match process {
            Ok(process) => process,
            Err(error) if std::env::var_os("BRAID_REQUIRE_REDIS").is_some() => {
                panic!("redis-server: {error}")
            }
            Err(_) => return None,
        };
        wait_until_ready(&mut process);
        let stream = UnixStream::connect(&socket).expect("redis-server accepts");
        Some(Self { process, stream: BufReader::new(stream), folder })
    }

    /// Returns the string that a script returns, or its error's text.
    pub fn eval(&mut self, script: &str) -> Vec<u8> {
        let head = format!("*3\r\n$4\r\nEVAL\r\n${}\r\n", script.len());
        let stream = self.stream.get_mut();
        stream.write_all(head.as_bytes()).expect("redis-server reads");
        stream.write_all(script.as_bytes()).expect("redis-server reads");
        stream.write_all(b"\r\n$1\r\n0\r\n").expect("redis-server reads");
        self.read_reply()
    }

    fn read_reply(&mut self) -> Vec<u8> {
        let mut line = Vec::new();
        self.stream.read_until(b'\n', &mut line).expect("redis-server answers");
        assert!(!line.is_empty(), "redis-server has ended");
        let Some(length) = line.strip_prefix(b"$") else { return line };
        let length: usize = String::from_utf8_lossy(length).trim().parse().expect("a length");
        let mut reply = vec![0; length + 2];
        self.stream.read_exact(&mut reply).expect("redis-server answers");
        reply.truncate(length);
        reply
    }
}

fn wait_until_ready(process: &mut Child) {
    let log = process.stdout.take().expect("its log is a pipe");
    let mut lines = BufReader::new(log);
    let mut line = String::new();
    while !line.contains("ready to accept") {
        line.clear();
        assert!(lines.read_line(&mut line).expect("a log of text") > 0, "redis-server did not start");
    }
    // The server's later log lines need a reader.
    std::thread::spawn(move || std::io::copy(&mut lines, &mut std::io::sink()));
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}
