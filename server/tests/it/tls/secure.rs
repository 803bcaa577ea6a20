//! A client with TLS.

use std::{
    io::{self, BufReader, ErrorKind, Read, Write},
    net::TcpStream,
    sync::Arc,
};

use rustls::{
    ClientConfig, ClientConnection, ProtocolVersion, RootCertStore, StreamOwned, SupportedProtocolVersion,
    client::Resumption,
    crypto::ring,
    pki_types::{CertificateDer, ServerName},
    version::{TLS12, TLS13},
};

use super::authority::{Authority, Certified};
use crate::support::{PATIENCE, Reply, encode};

/// Both versions of TLS.
pub const VERSIONS: [&SupportedProtocolVersion; 2] = [&TLS12, &TLS13];

/// Returns a client's rules: the trusted authority, its certificate if it has one, and its versions.
pub fn rules(
    trusted: &Authority,
    own: Option<&Certified>,
    versions: &[&'static SupportedProtocolVersion],
) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    roots.add(trusted.certificate()).expect("it is a certificate");
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_protocol_versions(versions)
        .expect("these are versions")
        .with_root_certificates(roots);
    let mut rules = match own {
        None => builder.with_no_client_auth(),
        Some(own) => {
            let certificates: Vec<CertificateDer<'static>> = own.certificates();
            builder.with_client_auth_cert(certificates, own.key()).expect("they belong together")
        }
    };
    rules.resumption = Resumption::in_memory_sessions(8);
    Arc::new(rules)
}

/// Begins a client's side of a session with `localhost`.
pub fn session(rules: &Arc<ClientConfig>) -> ClientConnection {
    let name = ServerName::try_from("localhost").expect("it is a name");
    let mut session = ClientConnection::new(Arc::clone(rules), name).expect("these rules do");
    session.set_buffer_limit(None);
    session
}

/// A connection with TLS.
pub struct Secure {
    stream: BufReader<StreamOwned<ClientConnection, TcpStream>>,
}

impl Secure {
    /// Connects and completes the client's part of the handshake.
    ///
    /// # Errors
    /// When the connection or the handshake fails.
    pub fn try_connect(port: u16, rules: &Arc<ClientConfig>) -> io::Result<Secure> {
        let socket = TcpStream::connect(("127.0.0.1", port))?;
        socket.set_nodelay(true)?;
        socket.set_read_timeout(Some(PATIENCE))?;
        socket.set_write_timeout(Some(PATIENCE))?;
        let mut stream = StreamOwned::new(session(rules), socket);
        while stream.conn.is_handshaking() {
            stream.conn.complete_io(&mut stream.sock)?;
        }
        Ok(Secure { stream: BufReader::new(stream) })
    }

    pub fn connect(port: u16, rules: &Arc<ClientConfig>) -> Secure {
        Secure::try_connect(port, rules).unwrap_or_else(|error| panic!("no TLS on port {port}: {error}"))
    }

    pub fn session(&mut self) -> &mut ClientConnection {
        &mut self.stream.get_mut().conn
    }

    pub fn socket(&mut self) -> &mut TcpStream {
        &mut self.stream.get_mut().sock
    }

    pub fn version(&mut self) -> Option<ProtocolVersion> {
        self.session().protocol_version()
    }

    pub fn command<A: AsRef<[u8]>>(&mut self, argv: &[A]) -> Reply {
        self.try_command(argv).unwrap_or_else(|error| panic!("a command over TLS: {error}"))
    }

    /// Sends a command in one line of words. Returns its reply in the notation of the transcripts.
    pub fn ask(&mut self, line: &str) -> String {
        let words: Vec<&str> = line.split(' ').collect();
        self.command(&words).to_string()
    }

    /// # Errors
    /// When the connection breaks.
    pub fn try_command<A: AsRef<[u8]>>(&mut self, argv: &[A]) -> io::Result<Reply> {
        let mut request = Vec::new();
        encode(argv, &mut request);
        self.try_send(&request)?;
        self.try_receive()
    }

    /// Sends plaintext, in records of its own.
    pub fn send(&mut self, bytes: &[u8]) {
        self.try_send(bytes).unwrap_or_else(|error| panic!("sending over TLS: {error}"));
    }

    /// # Errors
    /// When the connection breaks.
    pub fn try_send(&mut self, bytes: &[u8]) -> io::Result<()> {
        let stream = self.stream.get_mut();
        stream.write_all(bytes)?;
        stream.flush()
    }

    /// Returns the ciphertext of some plaintext without sending it.
    pub fn seal(&mut self, bytes: &[u8]) -> Vec<u8> {
        let session = self.session();
        session.writer().write_all(bytes).expect("there is no limit");
        let mut sealed = Vec::new();
        while session.wants_write() {
            session.write_tls(&mut sealed).expect("a vector takes all");
        }
        sealed
    }

    /// Sends ciphertext.
    pub fn send_sealed(&mut self, bytes: &[u8]) {
        self.socket().write_all(bytes).unwrap_or_else(|error| panic!("sending ciphertext: {error}"));
    }

    pub fn receive(&mut self) -> Reply {
        self.try_receive().unwrap_or_else(|error| panic!("receiving over TLS: {error}"))
    }

    /// # Errors
    /// When the connection breaks.
    pub fn try_receive(&mut self) -> io::Result<Reply> {
        Reply::read(&mut self.stream)
    }

    /// Waits until the server has ended the session. Returns whether the server sent close_notify, as it
    /// must.
    pub fn await_close(&mut self) -> Closed {
        let mut rest = Vec::new();
        match self.stream.read_to_end(&mut rest) {
            Ok(_) => Closed::Properly,
            Err(error) if error.kind() == ErrorKind::WouldBlock => panic!("the connection stays open"),
            Err(_) => Closed::Abruptly,
        }
    }
}

/// The end of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Closed {
    Properly,
    Abruptly,
}
