//! The two sides: an engine, and a redis-server.
//!
//! The engine's host sends its commands to the same server, so both see the same data.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use braid_protocol::{Reply, Resp, Words, skip_reply};
use braid_script::{Engine, Flavour, Handle, Host, LogLevel, Settings, Stop, UnknownCommand, Version};
use sha1::{Digest, Sha1};

use super::redis::Redis;

/// A script with its keys, arguments and client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    pub source: String,
    pub keys: Vec<Vec<u8>>,
    pub argv: Vec<Vec<u8>>,
    /// The version of the client's replies.
    pub resp: Resp,
    /// Whether the engine keeps the compiled script for a later run of the same source.
    pub is_kept: bool,
}

/// One connection to the server.
struct Client {
    stream: BufReader<UnixStream>,
}

/// A time that no script takes.
const PATIENCE: Duration = Duration::from_secs(60);

impl Client {
    fn new(server: &Redis, resp: Resp) -> Self {
        let stream = UnixStream::connect(server.folder.join("socket")).expect("the server accepts");
        stream.set_read_timeout(Some(PATIENCE)).expect("a time can be set");
        let mut client = Client { stream: BufReader::new(stream) };
        if resp == Resp::V3 {
            client.ask(&[b"HELLO", b"3"]);
        }
        client
    }

    /// Asks the server, which must be alive.
    fn ask(&mut self, args: &[&[u8]]) -> Vec<u8> {
        self.try_to_ask(args).expect("the server lives")
    }

    /// Asks the server. Returns `None` if it has ended.
    fn try_to_ask(&mut self, args: &[&[u8]]) -> Option<Vec<u8>> {
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
                return Some(reply);
            }
            let available = self.stream.fill_buf();
            let available = match available {
                Ok(available) => available,
                Err(error) if error.kind() == ErrorKind::ConnectionReset => return None,
                Err(error) => panic!("{error} after {}", String::from_utf8_lossy(&request)),
            };
            if available.is_empty() {
                return None;
            }
            let length = available.len();
            reply.extend_from_slice(available);
            self.stream.consume(length);
        }
    }
}

/// A host that runs scripts' commands on the server.
struct Forward {
    v2: Client,
    v3: Client,
}

impl Forward {
    /// Whether a command takes this number of arguments, according to the table of commands.
    ///
    /// redis-server checks nothing else before it runs a script's command. The command itself may then find
    /// the arguments too few.
    fn may_count(&mut self, args: &[&[u8]]) -> bool {
        let info = self.v2.ask(&[b"COMMAND", b"INFO", args[0]]);
        let info = String::from_utf8_lossy(&info);
        let arity = info.split("\r\n").find_map(|line| line.strip_prefix(':')?.parse().ok());
        let has_subcommands = info.contains('|');
        arity.is_some_and(|arity: isize| {
            let n_args = args.len() as isize;
            !has_subcommands && if arity < 0 { n_args >= -arity } else { n_args == arity }
        })
    }
}

impl Host for Forward {
    fn call(&mut self, words: Words<'_>, resp: Resp, reply: &mut Vec<u8>) -> Result<(), Stop> {
        let args: &[&[u8]] = &words.iter().collect::<Vec<_>>();
        let client = if resp == Resp::V3 { &mut self.v3 } else { &mut self.v2 };
        let answer = client.ask(args);
        let is_unknown = [&b"-ERR unknown command"[..], b"-ERR unknown subcommand '"];
        if is_unknown.iter().any(|text| answer.starts_with(text)) {
            reply.extend_from_slice(b"-ERR Unknown Redis command called from script\r\n");
        } else if answer.starts_with(b"-ERR wrong number of arguments for") && !self.may_count(args) {
            reply.extend_from_slice(b"-ERR Wrong number of args calling Redis command from script\r\n");
        } else {
            reply.extend_from_slice(&answer);
        }
        Ok(())
    }

    fn log(&mut self, _: LogLevel, _: &[u8]) {}

    fn acl_check(&mut self, words: Words<'_>) -> Result<bool, UnknownCommand> {
        let info = self.v2.ask(&[b"COMMAND", b"INFO", words.get(0)]);
        if info == b"*1\r\n$-1\r\n" { Err(UnknownCommand) } else { Ok(true) }
    }

    fn set_replication(&mut self, _: u8) {}

    fn interrupt(&mut self) -> Result<(), Stop> {
        Ok(())
    }
}

/// The two sides.
pub struct Pair {
    engine: Engine,
    /// The compiled scripts that the engine keeps, by source.
    kept: HashMap<String, Handle>,
    host: Forward,
    v2: Client,
    v3: Client,
    /// The server, which must outlive its clients.
    _server: Redis,
}

impl Pair {
    /// Starts both sides. Returns `None` if no redis-server is installed.
    pub fn start() -> Option<Self> {
        let server = Redis::start()?;
        let connect = |resp| Client::new(&server, resp);
        Some(Pair {
            engine: engine(),
            kept: HashMap::new(),
            host: Forward { v2: connect(Resp::V2), v3: connect(Resp::V3) },
            v2: connect(Resp::V2),
            v3: connect(Resp::V3),
            _server: server,
        })
    }

    /// Begins anew: with another engine, and with another Lua state in the server.
    pub fn reset(&mut self) {
        self.engine = engine();
        self.kept.clear();
        self.v2.ask(&[b"SCRIPT", b"FLUSH", b"SYNC"]);
        // The server's `math.random` continues from the earlier state.
        let start = Run {
            source: "math.randomseed(0)".into(),
            keys: Vec::new(),
            argv: Vec::new(),
            resp: Resp::V2,
            is_kept: false,
        };
        self.replies(&start);
    }

    /// The replies of both sides, each on an empty database.
    ///
    /// If the script has ended redis-server, there is nothing to compare, and both sides begin anew.
    pub fn replies(&mut self, run: &Run) -> Option<(Vec<u8>, Vec<u8>)> {
        self.v2.ask(&[b"FLUSHALL"]);
        let Some(theirs) = self.server_reply(run) else {
            *self = Pair::start().expect("redis-server was there");
            return None;
        };
        self.v2.ask(&[b"FLUSHALL"]);
        Some((self.engine_reply(run), theirs))
    }

    fn engine_reply(&mut self, run: &Run) -> Vec<u8> {
        let mut out = Vec::new();
        let mut reply = Reply::new(&mut out, run.resp);
        let handle = match self.kept.get(&run.source) {
            Some(handle) => *handle,
            None => {
                let digest: String =
                    Sha1::digest(&run.source).iter().map(|byte| format!("{byte:02x}")).collect();
                match self.engine.compile(run.source.as_bytes(), &digest) {
                    Ok(handle) => handle,
                    Err(error) => {
                        reply.error(error.to_string());
                        return out;
                    }
                }
            }
        };
        let [keys, argv] = [slices(&run.keys), slices(&run.argv)];
        let ended = self.engine.run(handle, &keys, &argv, &mut self.host, &mut reply);
        ended.expect("nothing stops the run");
        if run.is_kept {
            self.kept.insert(run.source.clone(), handle);
        } else {
            self.kept.remove(&run.source);
            self.engine.forget(handle);
        }
        out
    }

    fn server_reply(&mut self, run: &Run) -> Option<Vec<u8>> {
        let client = if run.resp == Resp::V3 { &mut self.v3 } else { &mut self.v2 };
        let n_keys = run.keys.len().to_string();
        let mut args: Vec<&[u8]> = vec![b"EVAL", run.source.as_bytes(), n_keys.as_bytes()];
        args.extend(slices(&run.keys));
        args.extend(slices(&run.argv));
        client.try_to_ask(&args)
    }
}

fn slices(texts: &[Vec<u8>]) -> Vec<&[u8]> {
    texts.iter().map(Vec::as_slice).collect()
}

fn engine() -> Engine {
    let version = Version { text: "7.0.15".into(), number: 0x0007_000f };
    Engine::new(&Settings { flavour: Flavour::Scripts, memory_limit: 256 << 20, seed: None, version })
}
