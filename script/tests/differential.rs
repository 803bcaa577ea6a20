//! The same scripts in the engine and in a real redis-server, whose replies must agree byte for byte.
//!
//! The host of the engine sends its commands to the same server, so both see the same data. Without a redis-server installed the test
//! says so and passes.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};

use braid_protocol::{Reply, Resp, skip_reply};
use braid_script::{Engine, Flavour, Host, LogLevel, Settings, Stop, UnknownCommand, Version};
use sha1::{Digest, Sha1};

/// One connection to the server.
struct Client {
    stream: BufReader<TcpStream>,
}

impl Client {
    fn new(port: u16, resp: Resp) -> Self {
        let stream = loop {
            if let Ok(stream) = TcpStream::connect(("127.0.0.1", port)) {
                break stream;
            }
            std::thread::yield_now();
        };
        let mut client = Client { stream: BufReader::new(stream) };
        if resp == Resp::V3 {
            client.ask(&[b"HELLO", b"3"]);
        }
        client
    }

    fn ask(&mut self, args: &[&[u8]]) -> Vec<u8> {
        let mut request = format!("*{}\r\n", args.len()).into_bytes();
        for arg in args {
            request.extend_from_slice(format!("${}\r\n", arg.len()).as_bytes());
            request.extend_from_slice(arg);
            request.extend_from_slice(b"\r\n");
        }
        self.stream.get_mut().write_all(&request).expect("the server reads");
        let mut reply = Vec::new();
        loop {
            if let Some(length) = skip_reply(&reply) {
                assert_eq!(length, reply.len());
                return reply;
            }
            let available = self.stream.fill_buf().expect("the server answers");
            assert!(
                !available.is_empty(),
                "the server has closed after {:?}",
                String::from_utf8_lossy(&request)
            );
            let length = available.len();
            reply.extend_from_slice(available);
            self.stream.consume(length);
        }
    }
}

/// Runs the commands of scripts on the server.
struct Forward {
    v2: Client,
    v3: Client,
}

impl Host for Forward {
    fn call(&mut self, args: &[&[u8]], resp: Resp, reply: &mut Vec<u8>) -> Result<(), Stop> {
        let client = if resp == Resp::V3 { &mut self.v3 } else { &mut self.v2 };
        let answer = client.ask(args);
        if answer.starts_with(b"-ERR unknown command") {
            reply.extend_from_slice(b"-ERR Unknown Redis command called from script\r\n");
        } else if answer.starts_with(b"-ERR wrong number of arguments for") {
            reply.extend_from_slice(b"-ERR Wrong number of args calling Redis command from script\r\n");
        } else {
            reply.extend_from_slice(&answer);
        }
        Ok(())
    }

    fn log(&mut self, _: LogLevel, _: &[u8]) {}

    fn acl_check(&mut self, args: &[&[u8]]) -> Result<bool, UnknownCommand> {
        let name = String::from_utf8_lossy(args[0]).to_lowercase();
        if ["get", "set"].contains(&name.as_str()) { Ok(true) } else { Err(UnknownCommand) }
    }

    fn set_replication(&mut self, _: u8) {}

    fn interrupt(&mut self) -> Result<(), Stop> {
        Ok(())
    }
}

/// A server of its own, which ends with the test.
struct Server {
    process: Child,
    port: u16,
}

impl Server {
    fn start() -> Option<Self> {
        let free = std::net::TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let port = 10_000 + free.local_addr().expect("it is bound").port() % 10_000;
        let process = Command::new("redis-server")
            .args(["--save", "", "--port", &port.to_string(), "--loglevel", "warning"])
            .current_dir(std::env::temp_dir())
            .stdout(Stdio::piped())
            .spawn()
            .ok()?;
        Some(Server { process, port })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let mut rest = String::new();
        let _ = self.process.stdout.take().map(|mut out| out.read_to_string(&mut rest));
        let _ = self.process.wait();
    }
}

/// The two sides.
struct Pair {
    engine: Engine,
    host: Forward,
    v2: Client,
    v3: Client,
}

impl Pair {
    fn new(server: &Server) -> Self {
        let version = Version { text: "7.0.15".into(), number: 0x0007_000f };
        Pair {
            engine: Engine::new(&Settings {
                flavour: Flavour::Scripts,
                memory_limit: 256 << 20,
                seed: None,
                version,
            }),
            host: Forward { v2: Client::new(server.port, Resp::V2), v3: Client::new(server.port, Resp::V3) },
            v2: Client::new(server.port, Resp::V2),
            v3: Client::new(server.port, Resp::V3),
        }
    }

    fn engine_reply(&mut self, source: &str, resp: Resp) -> Vec<u8> {
        let digest: String = Sha1::digest(source).iter().map(|byte| format!("{byte:02x}")).collect();
        let mut out = Vec::new();
        let mut reply = Reply::new(&mut out, resp);
        match self.engine.compile(source.as_bytes(), &digest) {
            Ok(handle) => {
                let keys: [&[u8]; 2] = [b"k1", b"k2"];
                let argv: [&[u8]; 2] = [b"a1", b"10"];
                let ended = self.engine.run(handle, &keys, &argv, &mut self.host, &mut reply);
                ended.expect("nothing stops the run");
                self.engine.forget(handle);
            }
            Err(error) => reply.error(error.to_string()),
        }
        out
    }

    fn server_reply(&mut self, source: &str, resp: Resp) -> Vec<u8> {
        let client = if resp == Resp::V3 { &mut self.v3 } else { &mut self.v2 };
        client.ask(&[b"EVAL", source.as_bytes(), b"2", b"k1", b"k2", b"a1", b"10"])
    }

    /// The replies of both sides to `source`, each on an empty database.
    fn replies(&mut self, source: &str, resp: Resp) -> (String, String) {
        self.v2.ask(&[b"FLUSHALL"]);
        let engine = self.engine_reply(source, resp);
        self.v2.ask(&[b"FLUSHALL"]);
        let server = self.server_reply(source, resp);
        (engine.escape_ascii().to_string(), server.escape_ascii().to_string())
    }
}

/// Scripts, separated by lines of `--`.
const SCRIPTS: &str = include_str!("differential.lua");

#[test]
fn scripts_reply_as_in_redis() {
    let Some(server) = Server::start() else {
        eprintln!("redis-server is not installed: nothing is compared");
        return;
    };
    let mut pair = Pair::new(&server);
    let mut differences = Vec::new();
    let mut n_scripts = 0;
    for source in SCRIPTS.split("\n--\n").map(str::trim).filter(|source| !source.is_empty()) {
        for resp in [Resp::V2, Resp::V3] {
            n_scripts += 1;
            let (engine, server) = pair.replies(source, resp);
            if engine != server {
                differences.push(format!("{source}\n  engine {engine}\n  server {server}"));
            }
        }
    }
    assert!(n_scripts > 100, "the scripts are read");
    assert!(
        differences.is_empty(),
        "{} of {n_scripts} differ:\n{}",
        differences.len(),
        differences.join("\n")
    );
}
