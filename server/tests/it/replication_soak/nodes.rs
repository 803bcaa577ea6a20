//! The servers of a soak: their settings, their folders, and what INFO says of them.

use std::{
    collections::HashMap,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use super::wires::Wire;
use crate::support::{
    Client, Dice, Server,
    crowd::{ask, until},
};

/// The number of servers.
pub const N_NODES: usize = 3;

/// The settings of a server at its start.
#[derive(Clone, Debug)]
pub struct Settings {
    pub appendonly: bool,
    pub is_always: bool,
    fixed: Vec<(&'static str, &'static str)>,
}

/// Directives with the values to choose from.
const CHOICES: &[(&str, &[&str])] = &[
    ("--repl-diskless-sync", &["yes", "no"]),
    ("--repl-diskless-load", &["disabled", "swapdb", "flush-before-load"]),
    ("--repl-backlog-size", &["16kb", "64kb", "1mb", "64mb"]),
    ("--io-threads", &["1", "2", "3", "4"]),
    ("--shards", &["1", "16", "1024"]),
    ("--auto-aof-rewrite-min-size", &["64kb", "1mb", "64mb"]),
    ("--hash-max-listpack-entries", &["4", "128"]),
    ("--set-max-intset-entries", &["4", "512"]),
    ("--set-max-listpack-entries", &["4", "128"]),
    ("--zset-max-listpack-entries", &["4", "128"]),
    ("--list-max-listpack-size", &["3", "-2"]),
    ("--stream-node-max-entries", &["4", "100"]),
];

impl Settings {
    pub fn choose(dice: &mut Dice) -> Settings {
        let (appendonly, is_always) = (dice.percent(60), dice.percent(40));
        let fixed = CHOICES.iter().map(|(name, values)| (*name, *dice.pick(values))).collect();
        Settings { appendonly, is_always, fixed }
    }
}

/// A server with its folder, over all of its lives.
pub struct Node {
    pub index: usize,
    pub settings: Settings,
    folder: PathBuf,
    server: Option<Server>,
    /// The server that it follows, unless it is the primary.
    pub upstream: Option<usize>,
    /// Whether it has been seen with all that its primary had since its last start or change of role.
    pub is_settled: bool,
    /// The rewrites of the file after which it is whole. None if there is no file.
    pub whole_after: Option<u64>,
    /// The sums of figures over its earlier lives, and the figures of the present one.
    sums: HashMap<&'static str, u64>,
    present: HashMap<&'static str, u64>,
}

/// The figures that are summed up.
const SUMMED: [&str; 5] =
    ["sync_full", "sync_partial_ok", "unexpected_error_replies", "total_commands_processed", "aof_rewrites"];

impl Node {
    pub fn new(index: usize, folder: &Path, dice: &mut Dice) -> Node {
        let folder = folder.join(format!("node{index}"));
        fs::create_dir_all(&folder).expect("the scratch space is writable");
        Node {
            index,
            settings: Settings::choose(dice),
            folder,
            server: None,
            upstream: None,
            is_settled: false,
            whole_after: None,
            sums: HashMap::new(),
            present: HashMap::new(),
        }
    }

    fn log_path(&self) -> PathBuf {
        self.folder.join("server.log")
    }

    /// Returns all that it has logged.
    pub fn log(&self) -> String {
        String::from_utf8_lossy(&fs::read(self.log_path()).unwrap_or_default()).into_owned()
    }

    /// Starts it with the data of its folder, behind a wire if it follows another.
    pub fn start(&mut self, upstream: Option<(usize, &Wire)>) {
        let (folder, log) = (self.folder.to_string_lossy().into_owned(), self.log_path());
        let log = log.to_string_lossy().into_owned();
        let yes_no = |is_on: bool| if is_on { "yes" } else { "no" };
        let mut args = vec!["--dir", &folder, "--logfile", &log];
        args.extend(["--appendonly", yes_no(self.settings.appendonly)]);
        args.extend(["--appendfsync", if self.settings.is_always { "always" } else { "everysec" }]);
        args.extend(["--repl-diskless-sync-delay", "0", "--repl-ping-replica-period", "1"]);
        args.extend(self.settings.fixed.iter().flat_map(|(name, value)| [*name, *value]));
        let port = upstream.map(|(_, wire)| wire.port().to_string());
        if let Some(port) = &port {
            args.extend(["--replicaof", "127.0.0.1", port]);
        }
        let server = Server::try_start(&args);
        self.server =
            Some(server.unwrap_or_else(|why| panic!("node {}: {why}\n{}", self.index, self.tail())));
        self.upstream = upstream.map(|(index, _)| index);
        self.is_settled = upstream.is_none();
        self.whole_after = self.settings.appendonly.then_some(0);
    }

    fn tail(&self) -> String {
        let log = self.log();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(20)..].join("\n")
    }

    pub fn port(&self) -> u16 {
        self.server.as_ref().map_or(0, Server::port)
    }

    /// Opens a connection to it.
    ///
    /// # Panics
    /// If it has ended by itself.
    pub fn connect(&mut self) -> Client {
        let server = self.server.as_mut().expect("it runs");
        assert!(!server.has_ended(), "node {} has ended:\n{}", self.index, self.tail());
        server.connect()
    }

    /// Asks it one thing, again if it is loading a copy.
    pub fn ask(&mut self, line: &str) -> String {
        let mut reply = String::new();
        until(line, || {
            reply = ask(&mut self.connect(), line);
            !reply.starts_with("-LOADING")
        });
        reply
    }

    /// Returns what INFO says.
    pub fn info(&mut self) -> Info {
        let text = self.connect().command(&["INFO", "everything"]).text().expect("INFO answers text");
        let info = Info::parse(&text);
        for name in SUMMED {
            self.present.insert(name, info.number(name));
        }
        info
    }

    /// Returns the sum of a figure over all lives, as far as it was seen.
    pub fn sum(&self, name: &str) -> u64 {
        self.sums.get(name).copied().unwrap_or(0) + self.present.get(name).copied().unwrap_or(0)
    }

    fn close_sums(&mut self) {
        for (name, n) in self.present.drain() {
            *self.sums.entry(name).or_default() += n;
        }
    }

    pub fn kill(&mut self) {
        self.info();
        self.server.take().expect("it runs").stop();
        self.close_sums();
    }

    /// Ends it as an operator does, who wants all data to be there at the next start.
    pub fn terminate(&mut self) {
        self.info();
        if !self.settings.appendonly {
            self.connect().send(&["SHUTDOWN", "SAVE"]);
        } else {
            self.signal("-TERM");
        }
        let status = self.server.take().expect("it runs").await_end();
        assert!(status.success(), "node {}: {status}\n{}", self.index, self.tail());
        self.close_sums();
    }

    /// Stops the process, or lets it go on, or ends it.
    pub fn signal(&self, signal: &str) {
        let pid = self.server.as_ref().expect("it runs").pid().to_string();
        let status = Command::new("kill").args([signal, &pid]).status();
        assert!(status.expect("there is such a program").success());
    }
}

/// The figures that INFO has of a server.
#[derive(Clone, Debug, Default)]
pub struct Info(HashMap<String, String>);

impl Info {
    fn parse(text: &str) -> Info {
        let pairs = text.lines().filter_map(|line| line.split_once(':'));
        Info(pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect())
    }

    pub fn text(&self, name: &str) -> &str {
        self.0.get(name).map_or("", String::as_str)
    }

    pub fn number(&self, name: &str) -> u64 {
        self.text(name).parse().unwrap_or(0)
    }

    /// The history that it has.
    pub fn id(&self) -> &str {
        self.text("master_replid")
    }

    pub fn is_up(&self) -> bool {
        self.text("master_link_status") == "up"
    }

    /// The end of what it has, whatever its role. 0 if it has the place in no history.
    pub fn offset(&self) -> u64 {
        self.number(if self.is_replica() { "slave_repl_offset" } else { "master_repl_offset" })
    }

    pub fn is_replica(&self) -> bool {
        self.text("role") == "slave"
    }
}
