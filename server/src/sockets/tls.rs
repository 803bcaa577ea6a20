//! The socket of a connection that speaks TLS.
//!
//! rustls does the cryptography and touches no socket. The bytes between the two are in a [`Ciphertext`], of
//! which each thread has one. A connection itself keeps only bytes that cannot wait there: incomplete
//! records, and records that the socket has not taken. A connection at rest usually keeps nothing.
//!
//! To its user a [`TlsStream`] behaves as a socket does, with two promises that edge-triggered events need. A
//! read takes out all plaintext that has arrived, so none is left inside when the thread sleeps. If a read
//! leaves some, [`TlsStream::has_more`] says so. A write takes bytes only once the socket has their
//! ciphertext. The other bytes may be sealed already, so the next write must begin with them. In return, the
//! unread output of a slow client counts as replies, byte for byte.
//!
//! A client's input reaches a parser and cryptography that others have written. If they panic, that ends the
//! connection, and not the thread with all its other connections.

use std::{
    fmt,
    io::{self, Read, Write},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use mio::net::TcpStream;
use rustls::{
    InvalidMessage, ServerConfig,
    pki_types::CertificateDer,
    server::UnbufferedServerConnection,
    unbuffered::{ConnectionState, EncodeError, EncryptError, UnbufferedStatus},
};

use crate::warning_seldom;

/// The bytes of ciphertext that are read at a time. The plaintext in them is shorter.
pub const READ_BYTES: usize = 64 * 1024;

/// The bytes of plaintext that are sealed at a time, four records of the greatest length.
const SEAL_BYTES: usize = 64 * 1024;

/// The maximum of bytes that the records of this plaintext add to it. It leaves room for a message of the
/// protocol before them.
const RECORD_ROOM: usize = 8 * 1024;

/// A thread's space for ciphertext, allocated by its first connection with TLS.
#[derive(Default)]
pub struct Ciphertext {
    read: Box<[u8]>,
    to_write: Box<[u8]>,
}

impl Ciphertext {
    fn take_up(&mut self) {
        if self.read.is_empty() {
            self.read = vec![0; READ_BYTES].into_boxed_slice();
            self.to_write = vec![0; SEAL_BYTES + RECORD_ROOM].into_boxed_slice();
        }
    }
}

/// The progress of a handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Handshake {
    /// It waits for the client.
    Waits,
    /// It has succeeded.
    Done,
}

/// The result of passing ciphertext to rustls.
struct Opened {
    /// The number of its bytes that are done.
    n_used: usize,
    n_plain: usize,
}

/// A TCP socket and the TLS session on it.
pub struct TlsStream {
    socket: TcpStream,
    session: UnbufferedServerConnection,
    /// Bytes that are not yet a whole record, or a whole handshake message.
    unopened: Vec<u8>,
    /// Plaintext that arrived with the end of the handshake, or during a write.
    opened: Vec<u8>,
    /// Ciphertext that the socket has not taken yet.
    unsent: Vec<u8>,
    /// The number of plaintext bytes in `unsent`. The next write begins with them.
    n_sealed: usize,
    /// Whether the client has said that it sends nothing more.
    peer_closed: bool,
    /// Whether there may be more to read, whatever the socket's events say.
    has_more: bool,
    /// Whether the input is not TLS. rustls is not called again, because its started input is not kept.
    is_broken: bool,
    /// Whether the session's work has panicked.
    has_panicked: bool,
}

impl fmt::Debug for TlsStream {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("TlsStream").field("socket", &self.socket).finish_non_exhaustive()
    }
}

impl TlsStream {
    /// Begins a session on a socket.
    ///
    /// # Errors
    /// If the configuration cannot serve.
    pub fn new(socket: TcpStream, config: Arc<ServerConfig>) -> io::Result<Self> {
        Ok(Self {
            socket,
            session: UnbufferedServerConnection::new(config).map_err(io::Error::other)?,
            unopened: Vec::new(),
            opened: Vec::new(),
            unsent: Vec::new(),
            n_sealed: 0,
            peer_closed: false,
            has_more: false,
            is_broken: false,
            has_panicked: false,
        })
    }

    /// The socket.
    pub fn socket(&self) -> &TcpStream {
        &self.socket
    }

    /// The socket, to register it.
    pub fn socket_mut(&mut self) -> &mut TcpStream {
        &mut self.socket
    }

    /// The verified certificate that the client has shown.
    ///
    /// It was shown now, or at the start of a session that it resumes.
    pub fn client_certificate(&self) -> Option<&CertificateDer<'static>> {
        self.session.peer_certificates()?.first()
    }

    /// Does work with the session, and contains its panic.
    ///
    /// After a panic rustls is not called again, and the socket's user learns that the connection has ended.
    /// The panic itself is reported on the standard error like any other.
    fn contain<T>(&mut self, work: impl FnOnce(&mut Self) -> io::Result<T>) -> io::Result<T> {
        if self.has_panicked {
            return Err(io::ErrorKind::NotConnected.into());
        }
        catch_unwind(AssertUnwindSafe(|| work(self))).unwrap_or_else(|_| {
            self.is_broken = true;
            self.has_panicked = true;
            self.has_more = false;
            warning_seldom!("TLS has panicked: that connection is closed (addr={})", peer_of(&self.socket));
            Err(io::Error::new(io::ErrorKind::InvalidData, "the server's TLS has panicked"))
        })
    }

    /// Whether the last read has left bytes, or the stream's end is still unread. The socket's events do not
    /// report this.
    pub fn has_more(&self) -> bool {
        self.has_more
    }

    /// Whether a message of the protocol, or ciphertext of a write, waits for the socket.
    pub fn has_unsent(&self) -> bool {
        !self.unsent.is_empty()
    }

    /// Continues the handshake as far as the received bytes allow.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidData`] with the fault of the handshake, of which the client is told; the
    /// socket's errors; and [`io::ErrorKind::UnexpectedEof`] if the client leaves.
    pub fn go_on_with_handshake(&mut self, room: &mut Ciphertext) -> io::Result<Handshake> {
        self.contain(|stream| stream.step_handshake(room))
    }

    fn step_handshake(&mut self, room: &mut Ciphertext) -> io::Result<Handshake> {
        room.take_up();
        let Ciphertext { read, to_write } = room;
        loop {
            let n = match self.fill(read) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(n) => n,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.flush()?;
                    return Ok(Handshake::Waits);
                }
                Err(error) => return Err(error),
            };
            let opened = self.open_read(read, n, to_write);
            // The client must receive an alert, too.
            let flushed = self.flush();
            let n_plain = opened?;
            flushed?;
            self.opened.extend_from_slice(&to_write[..n_plain]);
            if !self.session.is_handshaking() {
                self.has_more = true;
                return Ok(Handshake::Done);
            }
        }
    }

    /// Reads all plaintext that has arrived, within the limits of `plain` and a turn's share.
    ///
    /// In the second case [`TlsStream::has_more`] must be checked. `plain` has room for at least
    /// [`READ_BYTES`].
    ///
    /// # Errors
    /// Those of a socket, and [`io::ErrorKind::InvalidData`].
    pub fn read(&mut self, plain: &mut [u8], room: &mut Ciphertext) -> io::Result<usize> {
        self.contain(|stream| stream.read_plain(plain, room))
    }

    fn read_plain(&mut self, plain: &mut [u8], room: &mut Ciphertext) -> io::Result<usize> {
        room.take_up();
        if !self.opened.is_empty() {
            return Ok(self.take_opened(plain));
        }
        loop {
            if self.peer_closed {
                self.has_more = false;
                return Ok(0);
            }
            let n = match self.fill(&mut room.read) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.has_more = false;
                    return Err(error);
                }
                filled => filled?,
            };
            if n == 0 {
                self.has_more = false;
                return Ok(0);
            }
            // A read that did not fill the room has emptied the socket.
            let is_filled = n == READ_BYTES.saturating_sub(self.unopened.len());
            let opened = self.open_read(&mut room.read, n, plain);
            self.flush()?;
            let n_plain = opened?;
            self.has_more = is_filled || self.peer_closed;
            if n_plain > 0 {
                return Ok(n_plain);
            }
            // There is no plaintext for the user in it. Only the socket itself may say that there is no more,
            // or its end would be missed.
        }
    }

    fn take_opened(&mut self, plain: &mut [u8]) -> usize {
        let n = self.opened.len().min(plain.len());
        plain[..n].copy_from_slice(&self.opened[..n]);
        self.opened.drain(..n);
        self.has_more = true;
        if self.opened.is_empty() {
            self.opened = Vec::new();
        }
        n
    }

    /// Reads from the socket.
    ///
    /// Together with the bytes that wait for the rest of their record, the new ones do not exceed the room.
    fn fill(&mut self, read: &mut [u8]) -> io::Result<usize> {
        let Some(room) = READ_BYTES.checked_sub(self.unopened.len()).filter(|&room| room > 0) else {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "a handshake message is too long"));
        };
        loop {
            match self.socket.read(&mut read[..room]) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                read => return read,
            }
        }
    }

    /// Opens the read bytes and those that waited for them, and keeps an incomplete rest.
    ///
    /// Returns the length of the plaintext.
    fn open_read(&mut self, read: &mut [u8], n: usize, plain: &mut [u8]) -> io::Result<usize> {
        if self.unopened.is_empty() {
            let Opened { n_used, n_plain } = self.open(&mut read[..n], plain)?;
            self.unopened.extend_from_slice(&read[n_used..n]);
            return Ok(n_plain);
        }
        let mut input = std::mem::take(&mut self.unopened);
        input.extend_from_slice(&read[..n]);
        let Opened { n_used, n_plain } = self.open(&mut input, plain)?;
        if n_used < input.len() {
            input.drain(..n_used);
            self.unopened = input;
        }
        Ok(n_plain)
    }

    /// Makes rustls open records, up to the last whole one. Its answers are added to the unsent bytes.
    fn open(&mut self, input: &mut [u8], plain: &mut [u8]) -> io::Result<Opened> {
        let mut opened = Opened { n_used: 0, n_plain: 0 };
        loop {
            let UnbufferedStatus { discard, state } =
                self.session.process_tls_records(&mut input[opened.n_used..]);
            let is_done = match state {
                Err(error) => {
                    self.is_broken = true;
                    // As in Redis: a client that does not speak TLS could not use an alert.
                    if !matches!(error, NO_TLS) {
                        self.encode_alert();
                    }
                    return Err(invalid(error));
                }
                Ok(ConnectionState::ReadTraffic(mut traffic)) => {
                    while let Some(record) = traffic.next_record() {
                        let payload = record.map_err(io::Error::other)?.payload;
                        let end = opened.n_plain + payload.len();
                        let to = plain.get_mut(opened.n_plain..end).ok_or(io::ErrorKind::OutOfMemory)?;
                        to.copy_from_slice(payload);
                        opened.n_plain = end;
                    }
                    false
                }
                Ok(ConnectionState::EncodeTlsData(mut data)) => {
                    encode(&mut self.unsent, |to| data.encode(to))?;
                    false
                }
                Ok(ConnectionState::TransmitTlsData(data)) => {
                    data.done();
                    false
                }
                Ok(ConnectionState::PeerClosed) => {
                    self.peer_closed = true;
                    false
                }
                // The handshake waits, or there is no further record, or there is nothing more to do at all.
                _ => true,
            };
            opened.n_used += discard;
            if is_done {
                if self.peer_closed {
                    // The following bytes do not belong to this session.
                    opened.n_used = input.len();
                }
                return Ok(opened);
            }
        }
    }

    /// Adds the alert that tells the client the fault to the unsent bytes.
    ///
    /// Nothing more is opened: rustls does not expect another call.
    fn encode_alert(&mut self) {
        while self.session.wants_write() {
            match self.session.process_tls_records(&mut []).state {
                Ok(ConnectionState::EncodeTlsData(mut data)) => {
                    if encode(&mut self.unsent, |to| data.encode(to)).is_err() {
                        return;
                    }
                }
                // Data before the error is not served.
                Ok(ConnectionState::ReadTraffic(mut traffic)) => while traffic.next_record().is_some() {},
                _ => return,
            }
        }
    }

    /// Writes plaintext, and takes as much as the socket has taken the ciphertext of.
    ///
    /// The next write begins with the bytes that this one has not taken.
    ///
    /// # Errors
    /// Those of a socket; [`io::ErrorKind::WouldBlock`] if it takes nothing.
    pub fn write(&mut self, plain: &[u8], room: &mut Ciphertext) -> io::Result<usize> {
        self.contain(|stream| stream.write_plain(plain, room))
    }

    fn write_plain(&mut self, plain: &[u8], room: &mut Ciphertext) -> io::Result<usize> {
        room.take_up();
        if !self.flush()? {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let mut n_taken = std::mem::take(&mut self.n_sealed).min(plain.len());
        while n_taken < plain.len() {
            let part = &plain[n_taken..][..SEAL_BYTES.min(plain.len() - n_taken)];
            let n = self.seal(part, &mut room.to_write)?;
            let is_sent = if self.unsent.is_empty() {
                let n_sent = send(&mut self.socket, &room.to_write[..n])?;
                self.unsent.extend_from_slice(&room.to_write[n_sent..n]);
                n_sent == n
            } else {
                self.unsent.extend_from_slice(&room.to_write[..n]);
                self.flush()?
            };
            if !is_sent {
                self.n_sealed = part.len();
                break;
            }
            n_taken += part.len();
        }
        if n_taken == 0 && !plain.is_empty() { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(n_taken) }
    }

    /// Seals plaintext into records, and returns their length. Bytes that must precede them are added to the
    /// unsent bytes.
    fn seal(&mut self, plain: &[u8], to: &mut [u8]) -> io::Result<usize> {
        if self.is_broken {
            return Err(io::ErrorKind::NotConnected.into());
        }
        loop {
            // The unopened bytes are incomplete, and a record needs more bytes to be finished.
            let UnbufferedStatus { discard, state } = self.session.process_tls_records(&mut self.unopened);
            let sealed = match state.map_err(invalid)? {
                ConnectionState::WriteTraffic(mut traffic) => {
                    let sealed = traffic.encrypt(plain, to);
                    Some(sealed.map_err(|error| match error {
                        EncryptError::EncryptExhausted => {
                            io::Error::new(io::ErrorKind::ConnectionAborted, "the session's key is used up")
                        }
                        other => io::Error::other(other),
                    })?)
                }
                ConnectionState::EncodeTlsData(mut data) => {
                    encode(&mut self.unsent, |to| data.encode(to))?;
                    None
                }
                ConnectionState::TransmitTlsData(data) => {
                    data.done();
                    None
                }
                ConnectionState::ReadTraffic(mut traffic) => {
                    while let Some(record) = traffic.next_record() {
                        self.opened.extend_from_slice(record.map_err(io::Error::other)?.payload);
                        self.has_more = true;
                    }
                    None
                }
                ConnectionState::PeerClosed => {
                    self.peer_closed = true;
                    self.has_more = true;
                    None
                }
                _ => return Err(io::ErrorKind::NotConnected.into()),
            };
            self.unopened.drain(..discard);
            if let Some(n) = sealed {
                return Ok(n);
            }
        }
    }

    /// Offers the socket the unsent bytes, and returns whether none are left.
    ///
    /// # Errors
    /// The socket's.
    pub fn flush(&mut self) -> io::Result<bool> {
        if !self.unsent.is_empty() {
            let n = send(&mut self.socket, &self.unsent)?;
            self.unsent.drain(..n);
            if self.unsent.is_empty() {
                self.unsent = Vec::new();
            }
        }
        Ok(self.unsent.is_empty())
    }

    /// Tells the client that nothing more follows, if its socket takes that.
    pub fn close(&mut self) {
        // The connection is gone in either case.
        let _ = self.contain(|stream| {
            stream.say_goodbye();
            Ok(())
        });
    }

    fn say_goodbye(&mut self) {
        if self.is_broken || self.session.is_handshaking() || !self.flush().unwrap_or(false) {
            return;
        }
        let mut alert = [0; 256];
        if let UnbufferedStatus { state: Ok(ConnectionState::WriteTraffic(mut traffic)), .. } =
            self.session.process_tls_records(&mut self.unopened)
            && let Ok(n) = traffic.queue_close_notify(&mut alert)
        {
            // The client may be gone.
            let _ = send(&mut self.socket, &alert[..n]);
        }
    }
}

/// Returns the address of a socket's peer, for the log.
fn peer_of(socket: &TcpStream) -> String {
    socket.peer_addr().map_or_else(|_| "unknown".to_owned(), |address| address.to_string())
}

/// The error of rustls for plain text.
const NO_TLS: rustls::Error = rustls::Error::InvalidMessage(InvalidMessage::InvalidContentType);

/// Converts an error in a client's input.
fn invalid(error: rustls::Error) -> io::Error {
    match error {
        NO_TLS => io::Error::new(io::ErrorKind::InvalidData, "what it sends is not TLS"),
        error => io::Error::new(io::ErrorKind::InvalidData, error),
    }
}

/// Adds bytes that rustls has encoded to the unsent bytes.
fn encode(
    unsent: &mut Vec<u8>,
    mut encode: impl FnMut(&mut [u8]) -> Result<usize, EncodeError>,
) -> io::Result<()> {
    let EncodeError::InsufficientSize(needs) = (match encode(&mut []) {
        Ok(_) => return Ok(()),
        Err(error) => error,
    }) else {
        return Ok(());
    };
    let from = unsent.len();
    unsent.resize(from + needs.required_size, 0);
    let n = encode(&mut unsent[from..]).map_err(io::Error::other)?;
    unsent.truncate(from + n);
    Ok(())
}

/// Writes as much as the socket takes.
fn send(socket: &mut TcpStream, bytes: &[u8]) -> io::Result<usize> {
    loop {
        match socket.write(bytes) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(0),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            written => return written,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{net::TcpListener, thread};

    use rustls::{
        ClientConfig, ClientConnection, RootCertStore,
        crypto::ring,
        pki_types::ServerName,
        server::{ClientHello, ResolvesServerCert},
        sign::CertifiedKey,
    };

    use super::*;

    /// A resolver that panics when it is called, deep in rustls.
    #[derive(Debug)]
    struct Panics;

    impl ResolvesServerCert for Panics {
        fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
            panic!("on purpose")
        }
    }

    #[test]
    fn a_panic_in_a_handshake_ends_the_connection_and_nothing_else() {
        let provider = Arc::new(ring::default_provider());
        let rules = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(Panics));
        let client_rules = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(RootCertStore::empty())
            .with_no_client_auth();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let mut session =
            ClientConnection::new(Arc::new(client_rules), ServerName::try_from("localhost").unwrap())
                .unwrap();
        session.write_tls(&mut client).unwrap();
        let (socket, _) = listener.accept().unwrap();
        socket.set_nonblocking(true).unwrap();
        let mut room = Ciphertext::default();
        let mut stream = TlsStream::new(TcpStream::from_std(socket), Arc::new(rules)).unwrap();
        let failed = loop {
            match stream.go_on_with_handshake(&mut room) {
                Ok(Handshake::Waits) => thread::yield_now(),
                other => break other.unwrap_err(),
            }
        };
        assert_eq!(failed.kind(), io::ErrorKind::InvalidData);
        assert!(failed.to_string().contains("panicked"), "{failed}");
        let mut plain = [0; 64];
        assert_eq!(stream.read(&mut plain, &mut room).unwrap_err().kind(), io::ErrorKind::NotConnected);
        assert_eq!(stream.write(b"x", &mut room).unwrap_err().kind(), io::ErrorKind::NotConnected);
        assert!(!stream.has_more());
        stream.close();
    }
}
