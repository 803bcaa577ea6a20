//! TLS handshakes and records of which some bytes are changed on the way. The server ends such a session or
//! waits for more. It never accepts plaintext that the client has not sent.

use std::{
    io::{ErrorKind, Read, Write},
    net::{Shutdown, TcpListener, TcpStream},
    sync::{Arc, LazyLock},
    thread,
    time::{Duration, Instant},
};

use braid_server::sockets::tls::{Ciphertext, Handshake, READ_BYTES, TlsStream};
use rcgen::{CertifiedKey, generate_simple_self_signed};
use rustls::{
    ClientConfig, ClientConnection, RootCertStore, ServerConfig, SupportedProtocolVersion,
    crypto::ring,
    pki_types::{PrivateKeyDer, ServerName},
    version::{TLS12, TLS13},
};

/// The client's plaintext: more than one record.
const PLAINTEXT: &[u8] = &[b'p'; 40_000];

/// The number of rounds without a byte from either side after which a changed session is over.
const N_IDLE_ROUNDS: usize = 20;

/// The longest duration of an unchanged session. It usually takes milliseconds.
const PATIENCE: Duration = Duration::from_secs(60);

struct Rules {
    server: Arc<ServerConfig>,
    client: Arc<ClientConfig>,
}

fn rules(version: &'static SupportedProtocolVersion) -> Rules {
    let CertifiedKey { cert, signing_key } =
        generate_simple_self_signed(vec!["localhost".to_owned()]).expect("there is chance enough");
    let key = PrivateKeyDer::try_from(signing_key.serialize_der()).expect("it was made here");
    let provider = Arc::new(ring::default_provider());
    let server = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(&[version])
        .expect("it is a version")
        .with_no_client_auth()
        .with_single_cert(vec![cert.der().clone()], key)
        .expect("they belong together");
    let mut roots = RootCertStore::empty();
    roots.add(cert.der().clone()).expect("it is a certificate");
    let client = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[version])
        .expect("it is a version")
        .with_root_certificates(roots)
        .with_no_client_auth();
    Rules { server: Arc::new(server), client: Arc::new(client) }
}

static RULES: LazyLock<[Rules; 2]> = LazyLock::new(|| [rules(&TLS12), rules(&TLS13)]);

/// One change of the client's bytes, at an offset in all of them.
#[derive(Clone, Copy, Debug)]
struct Change {
    at: usize,
    kind: u8,
    byte: u8,
}

/// Decodes changes of four bytes each.
fn changes(plan: &[u8]) -> Vec<Change> {
    let of_four = |four: &[u8; 4]| Change {
        // Half of them affect the handshake and the data directly after it, and half any byte.
        at: usize::from(u16::from_le_bytes([four[0], four[1]])) % if four[2] < 128 { 2000 } else { 41_000 },
        kind: four[2],
        byte: four[3],
    };
    plan.as_chunks::<4>().0.iter().map(of_four).collect()
}

/// Applies changes to the bytes of a session. `n_before` bytes have been sent before them.
fn changed(bytes: &[u8], n_before: usize, changes: &[Change]) -> Vec<u8> {
    let mut sent = Vec::with_capacity(bytes.len());
    for (at, &byte) in bytes.iter().enumerate() {
        let mut of_byte = changes.iter().filter(|change| change.at == n_before + at);
        match of_byte.next() {
            None => sent.push(byte),
            Some(change) => match change.kind % 4 {
                0 => sent.push(byte ^ change.byte.max(1)),
                1 => {}
                2 => sent.extend([byte, change.byte]),
                _ => sent.extend(std::iter::repeat_n(byte, usize::from(change.byte) + 2)),
            },
        }
    }
    sent
}

/// Plays a session with the changes of a plan. The first byte selects the version, and whether the client
/// begins with the rest of the plan as garbage. Without any change the session must succeed.
pub fn check(plan: &[u8]) {
    let (&first, plan) = plan.split_first().unwrap_or((&0, &[]));
    let rules = &RULES[usize::from(first & 1)];
    let garbage = if first & 2 == 0 { &[] } else { plan };
    let changes = if first & 2 == 0 { changes(plan) } else { Vec::new() };

    let listener = TcpListener::bind("127.0.0.1:0").expect("there are ports");
    let mut socket = TcpStream::connect(listener.local_addr().expect("it is bound")).expect("it listens");
    socket.set_nonblocking(true).expect("it is a socket");
    socket.set_nodelay(true).expect("it is a socket");
    let (accepted, _) = listener.accept().expect("somebody has connected");
    accepted.set_nonblocking(true).expect("it is a socket");
    let mut server = TlsStream::new(mio::net::TcpStream::from_std(accepted), Arc::clone(&rules.server))
        .expect("these rules can serve");
    let name = ServerName::try_from("localhost").expect("it is a name");
    let mut client = ClientConnection::new(Arc::clone(&rules.client), name).expect("these rules do");
    client.set_buffer_limit(None);

    let mut room = Ciphertext::default();
    let mut plain = vec![0; READ_BYTES];
    let mut received = Vec::new();
    let mut unsent = garbage.to_vec();
    let (mut n_made, mut n_idle, mut has_written, mut is_secure, mut is_shut) = (0, 0, false, false, false);
    let deadline = Instant::now() + PATIENCE;
    loop {
        // The client's turn.
        let mut is_idle = true;
        if !client.is_handshaking() && is_secure && !has_written {
            client.writer().write_all(PLAINTEXT).expect("there is no limit");
            has_written = true;
        }
        while client.wants_write() {
            let mut made = Vec::new();
            client.write_tls(&mut made).expect("a vector takes all");
            unsent.extend(changed(&made, n_made, &changes));
            n_made += made.len();
        }
        if !unsent.is_empty() && !is_shut {
            match socket.write(&unsent) {
                Ok(n) => {
                    unsent.drain(..n);
                    is_idle = false;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(_) => return,
            }
        }
        let mut came = [0; 16_384];
        if let Ok(n @ 1..) = socket.read(&mut came) {
            is_idle = false;
            let mut came = &came[..n];
            while !came.is_empty() {
                let is_bad = client.read_tls(&mut came).is_err() || client.process_new_packets().is_err();
                if is_bad && !is_shut {
                    assert!(
                        !changes.is_empty() || !garbage.is_empty(),
                        "the client takes what the server says"
                    );
                    is_shut = true;
                    let _ = socket.shutdown(Shutdown::Write);
                }
                if is_bad {
                    break;
                }
            }
        }

        // The server's turn.
        let step = if is_secure {
            server.read(&mut plain, &mut room).map(|n| received.extend_from_slice(&plain[..n]))
        } else {
            server.go_on_with_handshake(&mut room).map(|step| is_secure = step == Handshake::Done)
        };
        assert!(PLAINTEXT.starts_with(&received), "what is read was sent");
        match step {
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => {
                assert!(!error.to_string().contains("panicked"), "{error}: {changes:?}");
                assert!(!changes.is_empty() || !garbage.is_empty(), "an unchanged session: {error}");
                server.close();
                return;
            }
            Ok(()) => {}
        }
        if received.len() == PLAINTEXT.len() {
            // The changes may be after the last byte that was sent.
            server.close();
            return;
        }
        n_idle = if is_idle { n_idle + 1 } else { 0 };
        if changes.is_empty() && garbage.is_empty() {
            assert!(Instant::now() < deadline, "an unchanged session does not end");
        } else if n_idle > N_IDLE_ROUNDS && !is_shut {
            is_shut = true;
            let _ = socket.shutdown(Shutdown::Write);
        } else if is_shut && is_secure && n_idle > 2 * N_IDLE_ROUNDS {
            // The end of the input has arrived, as a read of nothing.
            return;
        }
        if is_idle {
            thread::yield_now();
        }
    }
}
