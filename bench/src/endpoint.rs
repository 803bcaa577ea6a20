//! The server to load: a running one, or one that is started for the load.

use std::net::ToSocketAddrs;
use std::path::{Path, PathBuf};

use clap::Args;

use crate::address::Address;
use crate::engine::LoadTarget;
use crate::error::{BenchError, Doing};
use crate::spawn::Server;

/// Options that name a server.
#[derive(Debug, Clone, Args)]
pub struct EndpointOptions {
    /// The server's host.
    #[arg(long, value_name = "HOST", default_value = "127.0.0.1")]
    host: String,
    /// The server's port.
    #[arg(short, long, value_name = "PORT", default_value_t = 6379)]
    port: u16,
    /// The server's Unix socket, instead of host and port.
    #[arg(short, long, value_name = "PATH", conflicts_with = "spawn")]
    socket: Option<PathBuf>,
    /// Starts this server for the run instead, on a free port and without persistence; words are quoted as in
    /// a shell.
    #[arg(long, value_name = "COMMAND")]
    spawn: Option<String>,
    /// The password to authenticate with.
    #[arg(short = 'a', long, value_name = "PASSWORD")]
    password: Option<String>,
    /// The user of the password.
    #[arg(long, value_name = "USER", requires = "password")]
    user: Option<String>,
    /// The database to select.
    #[arg(long, value_name = "N", default_value_t = 0)]
    db: u32,
}

/// A server to load. One that was started for the load ends when this is dropped.
#[derive(Debug)]
pub struct Endpoint {
    /// The server's address and its greeting.
    pub target: LoadTarget,
    /// The name of the server: an address or a command line.
    pub name: String,
    server: Option<Server>,
}

impl EndpointOptions {
    /// Whether the command to spawn contains `placeholder`.
    pub fn contains(&self, placeholder: &str) -> bool {
        self.spawn.as_ref().is_some_and(|command| command.contains(placeholder))
    }

    /// Returns the same options with `value` for `placeholder` in the command to spawn.
    pub fn with(&self, placeholder: &str, value: &str) -> Self {
        Self { spawn: self.spawn.as_ref().map(|command| command.replace(placeholder, value)), ..self.clone() }
    }

    /// Finds or starts the server. Connections speak version `protocol` of RESP.
    ///
    /// # Errors
    /// When the host has no address or the server does not start.
    pub fn open(&self, protocol: u8) -> Result<Endpoint, BenchError> {
        let mut endpoint = match (&self.spawn, &self.socket) {
            (Some(command), _) => Endpoint::spawn(command)?,
            (None, Some(path)) => Endpoint::unix(path),
            (None, None) => Endpoint::on(&self.host, self.port)?,
        };
        endpoint.target.greeting =
            greeting(self.user.as_deref(), self.password.as_deref(), self.db, protocol);
        Ok(endpoint)
    }
}

impl Endpoint {
    /// Names a running server, at `host:port` or, on this machine, `port`.
    ///
    /// # Errors
    /// When that is no address.
    pub fn at(address: &str) -> Result<Self, BenchError> {
        let (host, port) = address.rsplit_once(':').unwrap_or(("127.0.0.1", address));
        let port = port.parse().map_err(|_| BenchError::Machine(format!("{address} names no port")))?;
        Self::on(host, port)
    }

    /// Names a running server on a host, by the host's name or address.
    ///
    /// An IPv6 address may be in brackets.
    ///
    /// # Errors
    /// When the host has no address.
    pub fn on(host: &str, port: u16) -> Result<Self, BenchError> {
        let name = format!("{host}:{port}");
        let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        let mut addresses = (host, port).to_socket_addrs().doing(format!("find {name}"))?;
        let found = addresses.next().ok_or_else(|| BenchError::Machine(format!("{name} has no address")))?;
        Ok(Self { target: LoadTarget::plain(found), name, server: None })
    }

    /// Names a running server on this machine that listens on a Unix socket.
    pub fn unix(path: &Path) -> Self {
        let name = path.display().to_string();
        Self { target: LoadTarget::plain(Address::Unix(path.to_owned())), name, server: None }
    }

    /// Starts a server from its command line.
    ///
    /// # Errors
    /// When the line has no words or a quote that does not end, and when the server does not start.
    pub fn spawn(command: &str) -> Result<Self, BenchError> {
        let words = words(command)?;
        let (binary, arguments) = words
            .split_first()
            .ok_or_else(|| BenchError::Spawn { command: command.to_owned(), why: "it names no program" })?;
        let server = Server::start(Path::new(binary), arguments)?;
        Ok(Self {
            target: LoadTarget::plain(server.address()),
            name: command.to_owned(),
            server: Some(server),
        })
    }

    /// Returns the server's process, if it was started here.
    pub fn spawned_pid(&self) -> Option<u32> {
        self.server.as_ref().map(Server::pid)
    }
}

/// Splits a command line into words, quoted as in a shell.
///
/// A `#` before a word begins a comment. Nothing else of a shell is supported: no variables, no patterns.
fn words(command: &str) -> Result<Vec<String>, BenchError> {
    shlex::split(command).ok_or_else(|| BenchError::Spawn {
        command: command.to_owned(),
        why: "a quote does not end, or a backslash stands last",
    })
}

/// Returns the requests that each connection sends first.
pub fn greeting(user: Option<&str>, password: Option<&str>, db: u32, protocol: u8) -> Vec<Vec<String>> {
    let request = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect::<Vec<_>>();
    let mut greeting = Vec::new();
    match (user, password) {
        (Some(user), Some(password)) => greeting.push(request(&["AUTH", user, password])),
        (None, Some(password)) => greeting.push(request(&["AUTH", password])),
        (_, None) => {}
    }
    if protocol == 3 {
        greeting.push(request(&["HELLO", "3"]));
    }
    if db > 0 {
        greeting.push(request(&["SELECT", &db.to_string()]));
    }
    greeting
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_quoted_as_in_a_shell() {
        let expected = ["/opt/my server/redis-server", "--save", "", "--requirepass", "it's", "--x", "a\"b"];
        let command = r#"'/opt/my server/redis-server' --save ""  --requirepass "it's" --x a\"b"#;
        assert_eq!(words(command).expect("its quotes end"), expected);
    }

    #[test]
    fn a_command_that_cannot_be_split_is_refused_with_its_words() {
        for (command, why) in [
            ("redis-server --save '", "a quote does not end"),
            ("redis-server \"--save", "a quote does not end"),
            ("redis-server \\", "a backslash stands last"),
            ("  ", "it names no program"),
        ] {
            let error = Endpoint::spawn(command).expect_err(command).to_string();
            assert!(error.contains(why) && error.contains(command), "{error}");
        }
    }
}
