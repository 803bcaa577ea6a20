//! The clients of a soak, and what they remember of their commands.

use std::{
    collections::{BTreeSet, VecDeque},
    io,
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicU16, AtomicUsize, Ordering::SeqCst},
    },
    thread,
    time::{Duration, Instant},
};

use super::{commands::Commands, markers::Markers, nodes::N_NODES};
use crate::support::{Client, Dice, Reply, values::Argv};

/// The number of clients that write at the primary.
pub const N_WRITERS: usize = 4;
/// The number of clients that send the same commands to any server.
pub const N_WANDERERS: usize = 1;
/// The commands that a client remembers.
const N_REMEMBERED: usize = 30_000;

/// The beginnings of replies to commands that have changed nothing.
const NOISE: [&str; 4] = ["-READONLY", "-WRONGTYPE", "-ERR", "[]"];

/// A command that was sent.
struct SentCommand {
    at: Instant,
    node: usize,
    argv: Argv,
    reply: String,
}

/// The state that clients and the leader of the soak share.
pub struct SoakShared {
    pub markers: Markers,
    /// The primary, and the port of each server: 0 while it does not run.
    pub primary: AtomicUsize,
    pub ports: [AtomicU16; N_NODES],
    /// Whether clients must rest, and how many do.
    pub must_rest: AtomicBool,
    pub n_resting: AtomicUsize,
    pub is_over: AtomicBool,
    pub n_done: AtomicUsize,
    histories: Vec<Mutex<VecDeque<SentCommand>>>,
    begun: Instant,
}

impl SoakShared {
    pub fn new() -> SoakShared {
        let n = N_WRITERS + N_WANDERERS;
        SoakShared {
            markers: Markers::default(),
            primary: AtomicUsize::new(0),
            ports: Default::default(),
            must_rest: AtomicBool::new(true),
            n_resting: AtomicUsize::new(0),
            is_over: AtomicBool::new(false),
            n_done: AtomicUsize::new(0),
            histories: (0..n).map(|_| Mutex::default()).collect(),
            begun: Instant::now(),
        }
    }

    /// Returns the last commands with a word that may have changed something, or all commands if there is
    /// none.
    pub fn history(&self, word: Option<&[u8]>, n: usize) -> Vec<String> {
        let mut lines = Vec::new();
        for (client, history) in self.histories.iter().enumerate() {
            let history = history.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            for sent in history.iter() {
                let is_noise = word.is_some() && NOISE.iter().any(|noise| sent.reply.starts_with(noise));
                if !is_noise && word.is_none_or(|word| sent.argv.iter().any(|one| one == word)) {
                    lines.push((sent.at, self.line(client, sent)));
                }
            }
        }
        lines.sort();
        let skipped = lines.len().saturating_sub(n);
        lines.into_iter().skip(skipped).map(|(_, line)| line).collect()
    }

    fn line(&self, client: usize, sent: &SentCommand) -> String {
        let words: Vec<String> = sent.argv.iter().map(|word| word.escape_ascii().to_string()).collect();
        let at = sent.at.duration_since(self.begun).as_micros();
        format!(
            "{at:>10} client {client} node {}: {:.200} -> {:.200}",
            sent.node,
            words.join(" "),
            sent.reply
        )
    }

    /// The time since the beginning, as in the histories.
    pub fn now(&self) -> u128 {
        self.begun.elapsed().as_micros()
    }
}

/// One client.
pub struct Writer<'s> {
    pub shared: &'s SoakShared,
    pub nth: usize,
    pub commands: Commands,
    client: Option<(usize, Client)>,
    n_markers: usize,
}

/// A connection has ended, as it may at any time here.
struct ConnectionEnd;

impl<'s> Writer<'s> {
    /// Makes a client that sends commands of these names.
    pub fn new(shared: &'s SoakShared, nth: usize, names: &BTreeSet<String>, dice: Dice) -> Writer<'s> {
        let commands = Commands::new(names, dice);
        Writer { shared, nth, commands, client: None, n_markers: 0 }
    }

    /// Writes until the soak is over.
    pub fn work(&mut self) {
        while !self.shared.is_over.load(SeqCst) {
            if self.shared.must_rest.load(SeqCst) {
                self.rest();
            } else if self.step().is_err() {
                self.client = None;
            }
        }
    }

    fn rest(&mut self) {
        // A connection may watch keys, or have begun a transaction.
        self.client = None;
        self.shared.n_resting.fetch_add(1, SeqCst);
        while self.shared.must_rest.load(SeqCst) && !self.shared.is_over.load(SeqCst) {
            thread::sleep(Duration::from_millis(1));
        }
        self.shared.n_resting.fetch_sub(1, SeqCst);
    }

    fn connect(&mut self) -> Result<(), ConnectionEnd> {
        let node = match self.nth {
            0..N_WRITERS => self.shared.primary.load(SeqCst),
            _ => self.commands.dice().roll(N_NODES),
        };
        let port = self.shared.ports[node].load(SeqCst);
        match Client::try_connect(port) {
            Ok(client) if port != 0 => {
                self.client = Some((node, client));
                Ok(())
            }
            _ => {
                thread::sleep(Duration::from_millis(2));
                Err(ConnectionEnd)
            }
        }
    }

    fn step(&mut self) -> Result<(), ConnectionEnd> {
        if self.client.is_none() {
            self.connect()?;
        }
        let is_writer = self.nth < N_WRITERS;
        match self.commands.dice().roll(1000) {
            0..10 if is_writer => self.mark(),
            10..13 => self.send_large(),
            13..16 if !is_writer => Err(ConnectionEnd),
            _ => {
                for argv in self.commands.next() {
                    let is_dump = argv[0] == b"DUMP";
                    let reply = self.send(argv)?;
                    if let (true, Reply::Bulk(payload)) = (is_dump, reply) {
                        self.commands.keep(payload);
                    }
                }
                Ok(())
            }
        }
    }

    /// Writes a key that no one else writes, and asks how many replicas have it.
    fn mark(&mut self) -> Result<(), ConnectionEnd> {
        let epoch = self.shared.markers.epoch();
        let key = format!("marker:{}:{}", self.nth, self.n_markers);
        self.n_markers += 1;
        let words = |words: &[&str]| words.iter().map(|word| word.as_bytes().to_vec()).collect::<Argv>();
        let db = super::markers::DB.to_string();
        self.send(words(&["SELECT", &db]))?;
        let is_written = !self.send(words(&["SET", &key, "1"]))?.is_error();
        let n = if self.commands.dice().percent(50) { "1" } else { "2" };
        let reply = self.send(words(&["WAIT", n, "100"]))?;
        if let (true, Reply::Integer(n_replicas @ 1..)) = (is_written, reply) {
            self.shared.markers.note(key, n_replicas as usize, epoch);
        }
        let db = self.commands.dice().roll(3).to_string();
        self.send(words(&["SELECT", &db]))?;
        Ok(())
    }

    /// Sends a value that does not fit into a socket's buffers.
    fn send_large(&mut self) -> Result<(), ConnectionEnd> {
        let digit = b'0' + self.commands.dice().roll(10) as u8;
        let value = vec![digit; 20_000 + self.commands.dice().roll(200_000)];
        let command = *self.commands.dice().pick(&["SET", "RPUSH"]);
        let key = format!("large:{}", self.commands.dice().roll(3));
        self.send(vec![command.as_bytes().to_vec(), key.clone().into_bytes(), value])?;
        if self.commands.dice().percent(50) {
            self.send(vec![b"DEL".to_vec(), key.into_bytes()])?;
        }
        Ok(())
    }

    fn send(&mut self, argv: Argv) -> Result<Reply, ConnectionEnd> {
        let (node, client) = self.client.as_mut().ok_or(ConnectionEnd)?;
        let at = Instant::now();
        let reply = client.try_command(&argv);
        let text = match &reply {
            Ok(reply) => reply.to_string(),
            Err(error) => error.to_string(),
        };
        {
            let mut history = self.shared.histories[self.nth].lock().expect("nobody panics with it");
            if history.len() == N_REMEMBERED {
                history.pop_front();
            }
            let argv = argv.iter().map(|word| word[..word.len().min(200)].to_vec()).collect();
            history.push_back(SentCommand { at, node: *node, argv, reply: text.chars().take(200).collect() });
        }
        self.shared.n_done.fetch_add(1, SeqCst);
        match reply {
            Ok(reply) => {
                let is_refused = ["-READONLY", "-LOADING", "-MASTERDOWN", "-UNBLOCKED"];
                if is_refused.iter().any(|refusal| text.starts_with(refusal)) {
                    // The role has moved, or the data is not there yet.
                    if self.nth < N_WRITERS {
                        thread::sleep(Duration::from_millis(1));
                        return Err(ConnectionEnd);
                    }
                }
                Ok(reply)
            }
            Err(error) if error.kind() == io::ErrorKind::TimedOut => {
                let words: Vec<String> = argv.iter().map(|word| word.escape_ascii().to_string()).collect();
                panic!("node {node} does not answer {:.300}", words.join(" "))
            }
            Err(error) if error.kind() == io::ErrorKind::InvalidData => panic!("node {node}: {error}"),
            Err(_) => Err(ConnectionEnd),
        }
    }
}
