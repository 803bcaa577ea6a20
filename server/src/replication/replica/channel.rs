//! The socket of the link: reads with a timeout, and the words that a replica says on its own.

use std::{
    fmt,
    io::{self, ErrorKind, Read, Write},
    net::{SocketAddr, TcpStream, ToSocketAddrs as _},
    os::fd::AsRawFd as _,
    sync::{
        Arc,
        atomic::Ordering,
        mpsc::{self, RecvTimeoutError},
    },
    thread,
    time::Duration,
};

use braid_storage::memory::allocator;
use socket2::{Domain, Socket, Type};

use super::greeting::request;
use crate::{
    client::{
        id::{Endpoint, Origin},
        record::ClientRecord,
    },
    clock::Instant,
    config::PrimaryAddress,
    shared::server::Server,
    sockets::outgoing::{self, OutgoingTls},
};

/// The longest wait for bytes before the role is looked at again.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// How often a replica says something, in milliseconds.
const BEAT_MILLIS: u64 = 1000;
/// The bytes that are read at once.
const READ_BYTES: usize = 64 << 10;

/// The reason why a link ends.
#[derive(Debug)]
pub enum LinkEnd {
    /// The role has changed.
    Superseded,
    /// The server stops.
    Stopping,
    /// CLIENT KILL has closed it.
    Killed,
    /// A fault, in words for the server log.
    Failed(String),
}

/// The message of a replica once a second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heartbeat {
    /// Nothing: the primary waits for replies.
    Silent,
    /// An empty line, while a copy is received or loaded.
    Newline,
    /// How far it is.
    Ack,
}

/// The socket of a link, whose reads end after [`LOOK_EVERY`].
enum LinkStream {
    Plain(TcpStream),
    Tls(Box<OutgoingTls>),
}

impl LinkStream {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        match self {
            LinkStream::Plain(stream) => stream.read(bytes),
            LinkStream::Tls(stream) => stream.read(bytes),
        }
    }

    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            LinkStream::Plain(stream) => stream.write_all(bytes),
            LinkStream::Tls(stream) => stream.write_all(bytes),
        }
    }
}

/// A connection to the primary, for the role of a generation.
pub struct Channel {
    server: &'static Server,
    stream: LinkStream,
    generation: u64,
    /// Its line in CLIENT LIST.
    pub record: Arc<ClientRecord>,
    heartbeat: Heartbeat,
    /// Whether the primary knows acknowledgements.
    is_acknowledging: bool,
    last_beat: u64,
    timeout: Duration,
    buffer: Box<[u8]>,
}

impl Channel {
    /// Connects to a primary, for the role of a generation.
    ///
    /// Another thread looks the name up and waits for the connection, since neither can be interrupted.
    ///
    /// # Errors
    /// If there is no connection in time, or the role changes.
    pub fn connect(
        server: &'static Server,
        primary: &PrimaryAddress,
        generation: u64,
        thread: usize,
    ) -> Result<Self, LinkEnd> {
        let config = server.config.load_full();
        let timeout = config.repl_timeout;
        // Read anew for each link, so the next one uses renewed files.
        let rules = config.tls_replication.then(|| outgoing::read(&config)).transpose();
        let rules = rules.map_err(|why| LinkEnd::Failed(format!("Failed to configure TLS: {why}")))?;
        let (told, result) = mpsc::channel();
        let host = String::from_utf8_lossy(&primary.host).into_owned();
        let address = (host.clone(), primary.port);
        let source = String::from_utf8_lossy(&config.bind_source_addr).into_owned();
        let connecting = thread::Builder::new().name("connect".to_owned()).spawn(move || {
            // The link may wait no longer.
            let _ = told.send(connect_to(&address, &source, timeout));
        });
        connecting.map_err(|error| LinkEnd::Failed(format!("Starting a thread: {error}")))?;
        let stream = loop {
            match result.recv_timeout(LOOK_EVERY) {
                Ok(stream) => break stream,
                Err(RecvTimeoutError::Timeout) => check_role(server, generation)?,
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(LinkEnd::Failed("Connecting has panicked".to_owned()));
                }
            }
        };
        let failed =
            |error: io::Error| LinkEnd::Failed(format!("Error condition on socket for SYNC: {error}"));
        let prepared = stream.and_then(|stream| {
            stream.set_nodelay(true)?;
            stream.set_read_timeout(Some(LOOK_EVERY))?;
            stream.set_write_timeout(Some(timeout))?;
            Ok((Endpoint::Inet(stream.peer_addr()?), Endpoint::Inet(stream.local_addr()?), stream))
        });
        let (peer, local, stream) = prepared.map_err(failed)?;
        let descriptor = stream.as_raw_fd();
        let stream = match rules {
            None => LinkStream::Plain(stream),
            Some(rules) => {
                let mut tls = OutgoingTls::new(stream, &host, rules).map_err(failed)?;
                shake_hands(server, &mut tls, generation, timeout)?;
                LinkStream::Tls(Box::new(tls))
            }
        };
        let now = server.clock.uptime_millis();
        server.replica.note_io(now);
        let users = server.accounts.users();
        let record = Arc::new(ClientRecord::new(
            server.clients.next_id(),
            Origin { thread, slot: 0 },
            peer,
            local,
            descriptor,
            now,
            users.default_user(),
        ));
        record.is_primary.store(true, Ordering::Relaxed);
        server.clients.add(Arc::clone(&record));
        Ok(Self {
            server,
            stream,
            generation,
            record,
            heartbeat: Heartbeat::Silent,
            is_acknowledging: true,
            last_beat: now,
            timeout,
            buffer: vec![0; READ_BYTES].into(),
        })
    }

    /// The generation of the role that it is for.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Records the progress of a copy.
    pub fn note_copied(&self, total_bytes: u64, read_bytes: u64) {
        self.server.replica.note_copied(total_bytes, read_bytes);
        if self.server.loading.is_on() {
            self.server.loading.note(read_bytes);
        }
    }

    /// Chooses what is said once a second.
    pub fn set_heartbeat(&mut self, heartbeat: Heartbeat) {
        self.heartbeat = heartbeat;
    }

    /// Chooses whether the primary is sent acknowledgements.
    pub fn set_acknowledging(&mut self, is_acknowledging: bool) {
        self.is_acknowledging = is_acknowledging;
    }

    /// Sends bytes.
    ///
    /// # Errors
    /// If the connection breaks.
    pub fn send(&mut self, bytes: &[u8]) -> Result<(), LinkEnd> {
        self.stream
            .write_all(bytes)
            .map_err(|error| LinkEnd::Failed(format!("Writing to the master: {error}")))?;
        self.record.count_written(bytes.len() as u64);
        self.server.replica.link_bytes_out.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        Ok(())
    }

    /// Tells the primary the end of the last unit that was applied, if the primary knows acknowledgements.
    ///
    /// # Errors
    /// If the connection breaks.
    pub fn acknowledge(&mut self) -> Result<(), LinkEnd> {
        if !self.is_acknowledging {
            return Ok(());
        }
        let applied = self.server.replica.applied();
        let offset = applied.to_string();
        if !self.server.durability.aof.is_writing() {
            return self.send(&request(&[b"REPLCONF", b"ACK", offset.as_bytes()]));
        }
        let on_disk = (self.server.durability.aof.synced_place().0 as i64).min(applied).to_string();
        self.send(&request(&[b"REPLCONF", b"ACK", offset.as_bytes(), b"FACK", on_disk.as_bytes()]))
    }

    /// Waits for bytes, and passes them to `take`. Returns its result.
    ///
    /// # Errors
    /// If the connection ends, nothing comes in time, or the role changes.
    pub fn receive<R>(&mut self, take: impl FnOnce(&[u8]) -> R) -> Result<R, LinkEnd> {
        loop {
            self.keep_alive()?;
            match self.stream.read(&mut self.buffer) {
                Ok(0) => return Err(LinkEnd::Failed("Connection with master lost.".to_owned())),
                Ok(n) => {
                    let now = self.server.clock.uptime_millis();
                    self.server.replica.note_io(now);
                    self.server.replica.link_bytes_in.fetch_add(n as u64, Ordering::Relaxed);
                    self.record.active_at.store(now, Ordering::Relaxed);
                    self.record.count_read(n);
                    return Ok(take(&self.buffer[..n]));
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                    self.check_timeout()?;
                    allocator::settle_before_sleep();
                }
                Err(error) => {
                    return Err(LinkEnd::Failed(format!("Connection with master lost: {error}")));
                }
            }
        }
    }

    /// Says what is due, and checks whether the link is still wanted.
    ///
    /// # Errors
    /// If it is not, or the connection breaks.
    pub fn keep_alive(&mut self) -> Result<(), LinkEnd> {
        check_role(self.server, self.generation)?;
        if self.record.is_killed() {
            return Err(LinkEnd::Killed);
        }
        let now = self.server.clock.uptime_millis();
        if now.saturating_sub(self.last_beat) >= BEAT_MILLIS {
            self.last_beat = now;
            match self.heartbeat {
                Heartbeat::Silent => {}
                Heartbeat::Newline => self.send(b"\n")?,
                Heartbeat::Ack => self.acknowledge()?,
            }
        }
        Ok(())
    }

    fn check_timeout(&self) -> Result<(), LinkEnd> {
        let silent = self.server.clock.uptime_millis().saturating_sub(self.server.replica.last_io());
        if Duration::from_millis(silent) < self.timeout {
            return Ok(());
        }
        Err(LinkEnd::Failed(match self.heartbeat {
            Heartbeat::Silent => "Timeout connecting to the MASTER...".to_owned(),
            Heartbeat::Newline => {
                "Timeout receiving bulk data from MASTER... If the problem persists try to set the \
                                   'repl-timeout' parameter in redis.conf to a larger value."
                    .to_owned()
            }
            Heartbeat::Ack => "MASTER timeout: no data nor PING received...".to_owned(),
        }))
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        if self.record.killed.swap(true, Ordering::Relaxed) {
            self.server.killed_client_left();
        }
        self.server.clients.remove(self.record.id);
    }
}

/// Checks whether the role is still that of a generation.
fn check_role(server: &Server, generation: u64) -> Result<(), LinkEnd> {
    if server.stopping.load(Ordering::Relaxed) {
        return Err(LinkEnd::Stopping);
    }
    if server.replica.generation() != generation {
        return Err(LinkEnd::Superseded);
    }
    Ok(())
}

/// Completes the handshake of TLS.
fn shake_hands(
    server: &Server,
    tls: &mut OutgoingTls,
    generation: u64,
    timeout: Duration,
) -> Result<(), LinkEnd> {
    let failed = |why: &dyn fmt::Display| {
        LinkEnd::Failed(format!("Error condition on socket for SYNC: the TLS handshake has failed: {why}"))
    };
    let began = Instant::now();
    while began.elapsed() < timeout {
        check_role(server, generation)?;
        match tls.go_on_with_handshake() {
            Ok(true) => return Ok(()),
            Ok(false) => {}
            Err(error) if is_too_early(&error) => {}
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => {
                return Err(failed(&"the primary closed the connection"));
            }
            Err(error) => return Err(failed(&error)),
        }
    }
    Err(failed(&"it has not ended in time"))
}

/// Whether a read must only be repeated.
fn is_too_early(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
}

/// Connects to the first address of a name that answers, from an address of `source` if there is one.
fn connect_to(address: &(String, u16), source: &str, timeout: Duration) -> io::Result<TcpStream> {
    let mut last = io::Error::other(format!("the name '{}' has no address", address.0));
    let sources: Vec<SocketAddr> =
        if source.is_empty() { Vec::new() } else { (source, 0).to_socket_addrs()?.collect() };
    for address in (address.0.as_str(), address.1).to_socket_addrs()? {
        let connect = || {
            let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
            if !source.is_empty() {
                let fits = sources.iter().find(|source| source.is_ipv4() == address.is_ipv4());
                let source = fits.ok_or_else(|| {
                    io::Error::other(format!("bind-source-addr '{source}' cannot reach {address}"))
                })?;
                socket.bind(&(*source).into())?;
            }
            socket.connect_timeout(&address.into(), timeout)?;
            Ok(TcpStream::from(socket))
        };
        match connect() {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}
