//! Certificates and the rules of handshakes, made from the TLS directives.

use std::{
    fmt, fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use braid_journal::disk::read_regular;
use rustls::{
    Error, InconsistentKeys, RootCertStore, ServerConfig, SupportedProtocolVersion,
    crypto::{CryptoProvider, GetRandomFailed, ring},
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    server::{ClientCertVerifierBuilder, NoServerSessionStorage, ProducesTickets, WebPkiClientVerifier},
    sign::{CertifiedKey, SingleCertAndKey},
    ticketer::TicketRotator,
};

use sha2::{Digest, Sha256};

use crate::{
    config::{AuthClients, Config},
    sockets::{certificate_facts::CertificateFacts, ciphers},
};

/// The certificates and rules of TLS.
pub struct Certificates {
    /// The rules of handshakes.
    pub rules: Arc<ServerConfig>,
    /// The contents of the files used for them, or of the files just before.
    pub contents: TlsFilesDigest,
    /// The server's own certificate.
    pub server: Option<CertificateFacts>,
    /// The first certificate of `tls-ca-cert-file`.
    pub authority: Option<CertificateFacts>,
}

/// The contents of all files from which TLS is configured. Modification times do not count: a copy may keep
/// the time of its original.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TlsFilesDigest([u8; 32]);

impl TlsFilesDigest {
    /// Reads the files. An unreadable file counts as empty: the code that needs it will report it.
    pub fn read(config: &Config) -> Self {
        let files = [&config.tls_cert_file, &config.tls_key_file, &config.tls_ca_cert_file];
        let mut paths: Vec<PathBuf> = files.into_iter().flatten().cloned().collect();
        if let Some(directory) = &config.tls_ca_cert_dir {
            let entries = fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path());
            let mut inside: Vec<PathBuf> = entries.filter(|path| path.is_file()).collect();
            inside.sort();
            paths.append(&mut inside);
        }
        let mut hash = Sha256::new();
        for path in paths {
            let bytes = read_regular(&path).unwrap_or_default();
            hash.update(path.as_os_str().as_encoded_bytes());
            hash.update([0]);
            hash.update(bytes.len().to_le_bytes());
            hash.update(bytes);
        }
        Self(hash.finalize().into())
    }
}

/// Reads the configured files, and makes the certificates and rules of handshakes from them.
///
/// # Errors
/// The missing or wrong part, with the remedy, in words for the log.
pub fn read(config: &Config) -> Result<Arc<Certificates>, String> {
    // Read first: a later change then counts as a change.
    let contents = TlsFilesDigest::read(config);
    let (provider, versions) = cryptography(config)?;
    let cert_file = config.tls_cert_file.as_deref().ok_or("No tls-cert-file configured!")?;
    let key_file = config.tls_key_file.as_deref().ok_or("No tls-key-file configured!")?;
    let key = certified_key(cert_file, key_file, &provider)?;
    let server = key.cert.first().and_then(|certificate| CertificateFacts::read(certificate));
    let authority = config.tls_ca_cert_file.as_deref().and_then(|path| certificates(path).ok());
    let authority = authority.and_then(|certificates| CertificateFacts::read(certificates.first()?));
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(&versions)
        .map_err(|error| format!("tls-protocols and tls-ciphers do not fit each other: {error}"))?;
    let builder = match client_verifier(config, &provider)? {
        None => builder.with_no_client_auth(),
        Some(verifier) => {
            let verifier = verifier.build().map_err(|error| format!("tls-ca-cert-file: {error}"))?;
            builder.with_client_cert_verifier(verifier)
        }
    };
    let mut rules = builder.with_cert_resolver(Arc::new(SingleCertAndKey::from(key)));
    rules.ignore_client_order = config.tls_prefer_server_ciphers;
    // Clients keep sessions, and the server keeps none.
    rules.session_storage = Arc::new(NoServerSessionStorage {});
    match config.tls_session_cache_timeout.filter(|_| config.tls_session_caching) {
        Some(timeout) => {
            // A ticket is accepted for up to two rounds of the keys.
            let round = timeout.as_secs().div_ceil(2) as u32;
            let rotator = TicketRotator::new(round, Tickets::make);
            rules.ticketer = Arc::new(rotator.map_err(|error| format!("Making keys for tickets: {error}"))?);
        }
        None => rules.send_tls13_tickets = 0,
    }
    Ok(Arc::new(Certificates { rules: Arc::new(rules), contents, server, authority }))
}

/// Returns the configured suites and versions.
///
/// # Errors
/// The wrong directive, with the remedy.
pub(super) fn cryptography(
    config: &Config,
) -> Result<(Arc<CryptoProvider>, Vec<&'static SupportedProtocolVersion>), String> {
    let text = |directive: &[u8]| String::from_utf8_lossy(directive).into_owned();
    let versions = ciphers::versions(&text(&config.tls_protocols))?;
    let suites = ciphers::suites(&text(&config.tls_ciphers), &text(&config.tls_ciphersuites))?;
    Ok((Arc::new(CryptoProvider { cipher_suites: suites, ..ring::default_provider() }), versions))
}

/// Reads a certificate and its key.
///
/// # Errors
/// The wrong file, with the fault.
pub(super) fn certified_key(
    cert_file: &Path,
    key_file: &Path,
    provider: &CryptoProvider,
) -> Result<CertifiedKey, String> {
    let certificates = certificates(cert_file)?;
    if certificates.is_empty() {
        return Err(format!(
            "Failed to load certificate: {}: it has no certificate (PEM)",
            cert_file.display()
        ));
    }
    let failed =
        |why: &dyn fmt::Display| format!("Failed to load private key: {}: {why}", key_file.display());
    let pem = read_regular(key_file).map_err(|error| failed(&error))?;
    if pem.windows(ENCRYPTED.len()).any(|part| part == ENCRYPTED) {
        return Err(failed(&format!(
            "it is encrypted, which is not supported with or without its password. Decrypt it with \
             'openssl pkey -in {} -out new.key', let nobody else read that, and name it instead",
            key_file.display()
        )));
    }
    let key = PrivateKeyDer::from_pem_slice(&pem).map_err(|error| failed(&error))?;
    let key = provider.key_provider.load_private_key(key).map_err(|error| failed(&error))?;
    let key = CertifiedKey::new(certificates, key);
    // A certificate whose form is too old for a check, as in Redis's own tests, is left to the clients.
    if let Err(Error::InconsistentKeys(InconsistentKeys::KeyMismatch)) = key.keys_match() {
        return Err(failed(&format!("it is not the key of the certificate in {}", cert_file.display())));
    }
    Ok(key)
}

/// The text in a file with an encrypted key, in either form.
const ENCRYPTED: &[u8] = b"ENCRYPTED";

/// The required authorities of clients' certificates; none if no certificates are requested.
fn client_verifier(
    config: &Config,
    provider: &Arc<CryptoProvider>,
) -> Result<Option<ClientCertVerifierBuilder>, String> {
    if config.tls_auth_clients == AuthClients::No {
        return Ok(None);
    }
    if config.tls_ca_cert_file.is_none() && config.tls_ca_cert_dir.is_none() {
        return Err(
            "Either tls-ca-cert-file or tls-ca-cert-dir must be specified when tls-auth-clients is enabled! \
                    Set one of them, or 'tls-auth-clients no'"
                .to_owned(),
        );
    }
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(authorities(config)?);
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(provider));
    Ok(Some(match config.tls_auth_clients {
        AuthClients::Optional => verifier.allow_unauthenticated(),
        AuthClients::Yes | AuthClients::No => verifier,
    }))
}

/// Returns the certificates of the authorities in `tls-ca-cert-file` and `tls-ca-cert-dir`.
///
/// # Errors
/// The unreadable file or folder, or the one without certificates.
pub(super) fn authorities(config: &Config) -> Result<Vec<CertificateDer<'static>>, String> {
    let mut found = Vec::new();
    let failed = |path: &Path, why: &dyn fmt::Display| {
        format!("Failed to configure CA certificate(s) file/directory: {}: {why}", path.display())
    };
    let can_be_trusted =
        |certificate: &CertificateDer<'static>| RootCertStore::empty().add(certificate.clone());
    if let Some(path) = &config.tls_ca_cert_file {
        for certificate in certificates(path)? {
            can_be_trusted(&certificate).map_err(|error| failed(path, &error))?;
            found.push(certificate);
        }
        if found.is_empty() {
            return Err(failed(path, &"it has no certificate (PEM)"));
        }
    }
    if let Some(directory) = &config.tls_ca_cert_dir {
        let entries = fs::read_dir(directory).map_err(|error| failed(directory, &error))?;
        for entry in entries {
            let path = entry.map_err(|error| failed(directory, &error))?.path();
            // Other files, such as keys, may be there, too. Those without certificates are ignored.
            if path.is_file() {
                let inside = certificates(&path).unwrap_or_default();
                found.extend(inside.into_iter().filter(|certificate| can_be_trusted(certificate).is_ok()));
            }
        }
        if found.is_empty() {
            return Err(failed(directory, &"no file in it has a certificate (PEM)"));
        }
    }
    Ok(found)
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let failed = |why: &dyn fmt::Display| format!("Failed to load certificate: {}: {why}", path.display());
    let pem = read_regular(path).map_err(|error| failed(&error))?;
    CertificateDer::pem_slice_iter(&pem).collect::<Result<_, _>>().map_err(|error| failed(&error))
}

/// Seals tickets with one key, which [`TicketRotator`] replaces.
#[derive(Debug)]
struct Tickets(Arc<dyn ProducesTickets>);

impl Tickets {
    fn make() -> Result<Box<dyn ProducesTickets>, GetRandomFailed> {
        // Its own rounds take hours, and it is replaced before the first one is over.
        let ticketer = ring::Ticketer::new().map_err(|_| GetRandomFailed)?;
        Ok(Box::new(Tickets(ticketer)))
    }
}

impl ProducesTickets for Tickets {
    fn enabled(&self) -> bool {
        self.0.enabled()
    }

    fn lifetime(&self) -> u32 {
        self.0.lifetime()
    }

    fn encrypt(&self, plain: &[u8]) -> Option<Vec<u8>> {
        self.0.encrypt(plain)
    }

    fn decrypt(&self, cipher: &[u8]) -> Option<Vec<u8>> {
        self.0.decrypt(cipher)
    }
}
