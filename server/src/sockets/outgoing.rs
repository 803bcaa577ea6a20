//! The client's side of TLS: the link to a primary.
//!
//! As with redis-server, the other side must show a certificate of an authority that the configuration names.
//! Its name counts only if `tls-expected-peer-name` says which it must be: servers are known by their
//! addresses, and those change.

use std::{
    fmt,
    io::{self, BufReader, ErrorKind, Read as _, Write as _},
    net::TcpStream,
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
    sync::Arc,
};

use rustls::{
    CertificateError, ClientConfig, ClientConnection, DigitallySignedStruct, Error, InvalidMessage,
    RootCertStore, SignatureScheme,
    client::{
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
        verify_server_cert_signed_by_trust_anchor, verify_server_name,
    },
    crypto::{WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature},
    pki_types::{CertificateDer, ServerName, UnixTime},
    server::ParsedCertificate,
    sign::SingleCertAndKey,
};

use crate::{
    config::Config,
    sockets::{certificate_facts::CertificateFacts, certificates},
};

/// The bytes of ciphertext that are read at a time.
const READ_BYTES: usize = 64 << 10;

/// Reads the configured files, and makes the rules of outgoing connections from them.
///
/// # Errors
/// The missing or wrong part, in words for the log.
pub fn read(config: &Config) -> Result<Arc<ClientConfig>, String> {
    if !names_authorities(config) {
        return Err(
            "Neither tls-ca-cert-file nor tls-ca-cert-dir is set, so no primary's certificate can be \
                    verified"
                .to_owned(),
        );
    }
    let (provider, versions) = certificates::cryptography(config)?;
    let trusted = certificates::authorities(config)?;
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(trusted.iter().cloned());
    let expected = expected_name(config)?;
    let verifier =
        PrimaryVerifier { roots, trusted, expected, algorithms: provider.signature_verification_algorithms };
    let own = match own_files(config)? {
        Some((cert_file, key_file)) => Some(certificates::certified_key(cert_file, key_file, &provider)?),
        None => None,
    };
    let builder = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&versions)
        .map_err(|error| format!("tls-protocols and tls-ciphers do not fit each other: {error}"))?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier));
    Ok(Arc::new(match own {
        Some(key) => builder.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(key))),
        None => builder.with_no_client_auth(),
    }))
}

/// Checks the directives for outgoing connections, if links use TLS.
///
/// Missing authorities are no error here: as with redis-server, only a link needs them.
///
/// # Errors
/// The wrong part, in words for the log.
pub fn check(config: &Config) -> Result<(), String> {
    if config.tls_replication && names_authorities(config) {
        read(config)?;
    }
    Ok(())
}

fn names_authorities(config: &Config) -> bool {
    config.tls_ca_cert_file.is_some() || config.tls_ca_cert_dir.is_some()
}

/// The certificate that this server shows, and its key: that for links, or else the one that clients see.
fn own_files(config: &Config) -> Result<Option<(&Path, &Path)>, String> {
    let of_links = (&config.tls_client_cert_file, &config.tls_client_key_file);
    match of_links {
        (Some(cert_file), Some(key_file)) => return Ok(Some((cert_file, key_file))),
        (Some(_), None) => {
            return Err("tls-client-cert-file is set, and tls-client-key-file is not".to_owned());
        }
        (None, _) => {}
    }
    match (&config.tls_cert_file, &config.tls_key_file) {
        (Some(cert_file), Some(key_file)) => Ok(Some((cert_file, key_file))),
        (Some(_), None) => Err("No tls-key-file configured!".to_owned()),
        (None, _) => Ok(None),
    }
}

fn expected_name(config: &Config) -> Result<Option<ServerName<'static>>, String> {
    let name = String::from_utf8_lossy(&config.tls_expected_peer_name).into_owned();
    if name.is_empty() {
        return Ok(None);
    }
    let name = ServerName::try_from(name);
    name.map(Some).map_err(|error| format!("tls-expected-peer-name: it is not a host name: {error}"))
}

/// Decides whether a primary's certificate is accepted.
#[derive(Debug)]
struct PrimaryVerifier {
    roots: RootCertStore,
    /// The certificates of `roots`, whole.
    trusted: Vec<CertificateDer<'static>>,
    /// The name that the certificate must have.
    expected: Option<ServerName<'static>>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl PrimaryVerifier {
    fn verify(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<(), Error> {
        let parsed = ParsedCertificate::try_from(end_entity)?;
        if let Some(name) = &self.expected {
            verify_server_name(&parsed, name)?;
        }
        // A server may show the very certificate that is trusted, as one that signs itself does. The
        // verification of chains refuses it if it may issue others.
        if self.trusted.contains(end_entity) {
            return in_time(end_entity, now);
        }
        let algorithms = self.algorithms.all;
        verify_server_cert_signed_by_trust_anchor(&parsed, &self.roots, intermediates, now, algorithms)
    }
}

/// Checks the period for which a certificate is valid.
fn in_time(certificate: &CertificateDer<'_>, now: UnixTime) -> Result<(), Error> {
    let facts = CertificateFacts::read(certificate).ok_or(CertificateError::BadEncoding)?;
    if now.as_secs() < facts.not_before {
        return Err(CertificateError::NotValidYet.into());
    }
    if now.as_secs() > facts.not_after {
        return Err(CertificateError::Expired.into());
    }
    Ok(())
}

impl ServerCertVerifier for PrimaryVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        self.verify(end_entity, intermediates, now).map(|()| ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signed, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signed, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

/// An outgoing connection with TLS on a blocking socket.
///
/// A timeout of the socket loses nothing: the next call goes on.
pub struct OutgoingTls {
    /// Read in large pieces, since rustls asks for small ones.
    socket: BufReader<TcpStream>,
    session: ClientConnection,
}

impl fmt::Debug for OutgoingTls {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("OutgoingTls").field("socket", self.socket.get_ref()).finish_non_exhaustive()
    }
}

impl OutgoingTls {
    /// Begins a session on a socket. The other side learns the name by which it was looked up.
    ///
    /// # Errors
    /// If the socket has no peer, or the rules cannot be used.
    pub fn new(socket: TcpStream, host: &str, rules: Arc<ClientConfig>) -> io::Result<Self> {
        let name = match ServerName::try_from(host.to_owned()) {
            Ok(name) => name,
            Err(_) => ServerName::from(socket.peer_addr()?.ip()),
        };
        let session = ClientConnection::new(rules, name).map_err(io::Error::other)?;
        Ok(Self { socket: BufReader::with_capacity(READ_BYTES, socket), session })
    }

    /// Reads once for the handshake, and returns whether it is complete.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidData`] with the fault of the handshake; [`ErrorKind::UnexpectedEof`] if the other
    /// side leaves; and those of the socket.
    pub fn go_on_with_handshake(&mut self) -> io::Result<bool> {
        self.contain(|tls| {
            if tls.step()? == 0 {
                return Err(ErrorKind::UnexpectedEof.into());
            }
            tls.flush()?;
            Ok(!tls.session.is_handshaking())
        })
    }

    /// Reads plaintext. Nothing means the end, with or without its announcement, which redis-server omits.
    ///
    /// # Errors
    /// As [`OutgoingTls::go_on_with_handshake`]; [`ErrorKind::WouldBlock`] also after a part of a record.
    pub fn read(&mut self, plain: &mut [u8]) -> io::Result<usize> {
        self.contain(|tls| {
            let mut opened = tls.opened(plain);
            // The socket is asked once. What has come is opened record by record.
            let mut may_read = true;
            while matches!(&opened, Err(error) if error.kind() == ErrorKind::WouldBlock) && may_read {
                tls.step()?;
                opened = tls.opened(plain);
                may_read = !tls.socket.buffer().is_empty();
            }
            opened
        })
    }

    /// Writes all of some plaintext.
    ///
    /// # Errors
    /// As [`OutgoingTls::go_on_with_handshake`].
    pub fn write_all(&mut self, mut plain: &[u8]) -> io::Result<()> {
        self.contain(|tls| {
            while !plain.is_empty() {
                let n = tls.session.writer().write(plain)?;
                plain = &plain[n..];
                tls.flush()?;
            }
            Ok(())
        })
    }

    /// Takes plaintext of the records that have come.
    fn opened(&mut self, plain: &mut [u8]) -> io::Result<usize> {
        match self.session.reader().read(plain) {
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => Ok(0),
            read => read,
        }
    }

    /// Reads ciphertext once, and opens its records. Returns how many bytes have come.
    fn step(&mut self) -> io::Result<usize> {
        self.flush()?;
        let n_read = self.session.read_tls(&mut self.socket)?;
        if let Err(error) = self.session.process_new_packets() {
            // The other side learns the fault, if it still reads.
            let _ = self.flush();
            return Err(io::Error::new(ErrorKind::InvalidData, error));
        }
        Ok(n_read)
    }

    /// Sends the ciphertext that waits.
    fn flush(&mut self) -> io::Result<()> {
        while self.session.wants_write() {
            match self.session.write_tls(self.socket.get_mut()) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                written => drop(written?),
            }
        }
        Ok(())
    }

    /// Does work with the session. A panic of the code that reads the other side's input ends the connection.
    fn contain<T>(&mut self, work: impl FnOnce(&mut Self) -> io::Result<T>) -> io::Result<T> {
        catch_unwind(AssertUnwindSafe(|| work(self)))
            .unwrap_or_else(|_| Err(io::Error::new(ErrorKind::InvalidData, "TLS has panicked")))
            .map_err(explained)
    }
}

/// Says in plain words that the other side has another protocol.
fn explained(error: io::Error) -> io::Error {
    let of_session = error.get_ref().and_then(|inner| inner.downcast_ref::<Error>());
    if of_session == Some(&Error::InvalidMessage(InvalidMessage::InvalidContentType)) {
        return io::Error::new(ErrorKind::InvalidData, "it does not speak TLS at this port");
    }
    error
}
