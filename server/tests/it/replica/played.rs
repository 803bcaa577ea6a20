//! A primary that a test plays: it accepts a link, answers the handshake, and sends copies and a stream.

use std::{
    io::{self, BufRead, BufReader, Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
};

use crate::support::{
    Client, PATIENCE, Server,
    crowd::{ask, until},
    encode,
};

/// The name of the history of a played primary.
pub const ID: &str = "0123456789abcdef0123456789abcdef01234567";
/// The mark at the end of a copy of unknown length.
pub const MARK: &str = "fedcba9876543210fedcba9876543210fedcba98";

/// A primary without a server.
pub struct Primary {
    listener: TcpListener,
}

/// A link of a replica to a played primary.
pub struct Link {
    stream: BufReader<TcpStream>,
}

impl Primary {
    pub fn new() -> Primary {
        Primary { listener: TcpListener::bind("127.0.0.1:0").expect("a port is free") }
    }

    pub fn port(&self) -> u16 {
        self.listener.local_addr().expect("it listens").port()
    }

    /// Makes a server its replica.
    pub fn adopt(&self, client: &mut Client) {
        assert_eq!(ask(client, &format!("REPLICAOF 127.0.0.1 {}", self.port())), "+OK");
    }

    /// Accepts the next link.
    pub fn accept(&self) -> Link {
        let (stream, _) = self.listener.accept().expect("a replica connects");
        stream.set_read_timeout(Some(PATIENCE)).expect("it is open");
        Link { stream: BufReader::new(stream) }
    }

    /// Accepts a link and answers up to PSYNC. Returns the words of PSYNC, too.
    pub fn greet(&self) -> (Link, String) {
        let mut link = self.accept();
        let words = link.greet();
        (link, words)
    }

    /// Starts a server that is its replica and has a copy with some keys. Its stream is at offset 0.
    pub fn replica(&self, args: &[&str], keys: &[(&str, &str)]) -> (Server, Client, Link) {
        let server = Server::start(args);
        let mut client = server.connect();
        self.adopt(&mut client);
        let (mut link, words) = self.greet();
        assert_eq!(words, "PSYNC ? -1");
        link.copy(&snapshot(keys), 0);
        until_up(&mut client);
        (server, client, link)
    }
}

impl Link {
    /// Reads a command of the replica. Skips the empty lines with which it shows that it is alive.
    ///
    /// # Errors
    /// If the replica closes the link.
    pub fn try_read(&mut self) -> io::Result<String> {
        let mut line = String::new();
        while line.trim_end().is_empty() {
            line.clear();
            if self.stream.read_line(&mut line)? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        let n: usize = line.trim_end()[1..].parse().expect("a number of words");
        let mut words = Vec::new();
        for _ in 0..n {
            line.clear();
            self.stream.read_line(&mut line)?;
            let len: usize = line.trim_end()[1..].parse().expect("a length");
            let mut word = vec![0; len + 2];
            self.stream.read_exact(&mut word)?;
            words.push(String::from_utf8_lossy(&word[..len]).into_owned());
        }
        Ok(words.join(" "))
    }

    /// The replica's address.
    pub fn peer(&self) -> SocketAddr {
        self.stream.get_ref().peer_addr().expect("it is connected")
    }

    /// Reads one byte.
    pub fn byte(&mut self) -> u8 {
        let mut byte = [0];
        self.stream.read_exact(&mut byte).expect("the replica says something");
        byte[0]
    }

    pub fn read(&mut self) -> String {
        self.try_read().expect("the replica says something")
    }

    /// Sends bytes.
    pub fn say(&mut self, bytes: &[u8]) {
        self.stream.get_mut().write_all(bytes).expect("the replica reads");
    }

    /// Sends a command in the stream. Returns its length.
    pub fn stream(&mut self, line: &str) -> usize {
        let bytes = wire(line);
        self.say(&bytes);
        bytes.len()
    }

    /// Answers the handshake up to PSYNC, whose words it returns.
    pub fn greet(&mut self) -> String {
        loop {
            let words = self.read();
            match words.split(' ').next() {
                Some("PING") => self.say(b"+PONG\r\n"),
                Some("PSYNC") => return words,
                _ => self.say(b"+OK\r\n"),
            }
        }
    }

    /// Sends a copy of known length, at an offset of the history [`ID`].
    pub fn copy(&mut self, snapshot: &[u8], offset: usize) {
        self.say(format!("+FULLRESYNC {ID} {offset}\r\n\n${}\r\n", snapshot.len()).as_bytes());
        self.say(snapshot);
    }

    /// Reads until the replica says that it has applied the stream up to an offset.
    pub fn await_ack(&mut self, offset: usize) {
        let said = format!("REPLCONF ACK {offset}");
        // With an append-only file it also says how far that is on disk.
        while self.read().split(" FACK ").next() != Some(&said) {}
    }

    /// Reads until the replica says that it has the stream up to an offset on its disk.
    pub fn await_fack(&mut self, offset: usize) {
        while self.read() != format!("REPLCONF ACK {offset} FACK {offset}") {}
    }

    /// Waits until the replica has closed the link.
    pub fn await_close(&mut self) {
        while self.try_read().is_ok() {}
    }
}

/// A command in its wire format.
pub fn wire(line: &str) -> Vec<u8> {
    let words: Vec<&str> = line.split(' ').collect();
    let mut bytes = Vec::new();
    encode(&words, &mut bytes);
    bytes
}

/// A snapshot of some strings in database 0.
pub fn snapshot(keys: &[(&str, &str)]) -> Vec<u8> {
    let mut bytes = b"REDIS0010".to_vec();
    let text = |text: &str, bytes: &mut Vec<u8>| {
        bytes.push(u8::try_from(text.len()).expect("it is short"));
        bytes.extend_from_slice(text.as_bytes());
    };
    bytes.extend_from_slice(&[0xfe, 0]);
    for (key, value) in keys {
        bytes.push(0);
        text(key, &mut bytes);
        text(value, &mut bytes);
    }
    bytes.push(0xff);
    // No checksum.
    bytes.extend_from_slice(&[0; 8]);
    bytes
}

/// Returns a field of INFO; empty if there is none.
pub fn field(client: &mut Client, name: &str) -> String {
    let info = client.command(&["INFO"]).text().expect("INFO answers text");
    let line = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.unwrap_or_default().to_owned()
}

/// Waits until the link is up.
pub fn until_up(client: &mut Client) {
    until("the link is up", || field(client, "master_link_status") == "up");
}

/// Waits until a command has a reply.
pub fn until_says(client: &mut Client, line: &str, reply: &str) {
    let mut last = String::new();
    let deadline = std::time::Instant::now() + PATIENCE;
    while last != reply {
        assert!(std::time::Instant::now() < deadline, "{line}: {last} and not {reply}");
        last = ask(client, line);
    }
}
