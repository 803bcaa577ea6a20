//! TLS: handshakes, certificates, records of any shape, and clients without TLS.

pub mod authority;
mod secure;

use std::{
    fs,
    io::{Read, Write},
    net::TcpStream,
    path::Path,
    process::Command,
    sync::Arc,
};

use crate::support::{
    Client, Dice, PATIENCE, Port, Reply, Server,
    crowd::{ask, figure, until, while_connections_move},
    dice, encode,
};
use authority::{Authority, Certified};
use rustls::{ClientConfig, HandshakeKind, ProtocolVersion, StreamOwned};
use secure::{Closed, Secure, VERSIONS, rules, session};

/// A server with TLS, and the authority that it trusts.
struct TlsServer {
    server: Server,
    port: Port,
    authority: Authority,
    own: Certified,
}

impl TlsServer {
    /// Starts a server that requests no certificate from clients.
    fn open(args: &[&str]) -> TlsServer {
        TlsServer::with_clients("no", args)
    }

    fn with_clients(auth_clients: &str, args: &[&str]) -> TlsServer {
        let authority = Authority::new();
        let own = authority.certify_server("server");
        let port = Port::claim();
        let number = port.number().to_string();
        let ca_file = authority.file();
        let tls = [
            ("--tls-port", number.as_str()),
            ("--tls-cert-file", text(&own.certificate_file)),
            ("--tls-key-file", text(&own.key_file)),
            ("--tls-ca-cert-file", text(&ca_file)),
            ("--tls-auth-clients", auth_clients),
        ];
        let args: Vec<&str> =
            tls.iter().flat_map(|&(name, value)| [name, value]).chain(args.iter().copied()).collect();
        TlsServer { server: Server::start(&args), port, authority, own }
    }

    fn rules(&self) -> Arc<ClientConfig> {
        rules(&self.authority, None, &VERSIONS)
    }

    fn connect(&self) -> Secure {
        Secure::connect(self.port.number(), &self.rules())
    }

    fn log(&self) -> String {
        fs::read_to_string(self.server.scratch().join("server.log")).expect("the server logs")
    }

    /// Whether a client with these rules is served.
    fn serves(&self, rules: &Arc<ClientConfig>) -> bool {
        let served = Secure::try_connect(self.port.number(), rules)
            .and_then(|mut client| client.try_command(&["PING"]));
        served.is_ok_and(|reply| reply.to_string() == "+PONG")
    }

    fn set(&self, pairs: &[&str]) -> String {
        let words: Vec<&str> = ["CONFIG", "SET"].iter().chain(pairs).copied().collect();
        self.server.connect().command(&words).to_string()
    }
}

fn text(path: &Path) -> &str {
    path.to_str().expect("the build's folder has a plain name")
}

#[test]
fn who_has_not_authenticated_and_reads_nothing_is_closed_at_once() {
    let place = TlsServer::open(&["--requirepass", "secret"]);
    let mut client = place.connect();
    let lines = b"x\r\n".repeat(5000);
    assert!((0..600).any(|_| client.try_send(&lines).is_err()), "nobody has closed it");
    let mut patient = place.connect();
    assert_eq!(patient.ask("GET k"), "-NOAUTH Authentication required.");
    assert_eq!(patient.ask("AUTH secret"), "+OK");
}

#[test]
fn both_versions_are_spoken_and_each_can_be_left_out() {
    let place = TlsServer::open(&[]);
    let named = [ProtocolVersion::TLSv1_2, ProtocolVersion::TLSv1_3];
    for (version, named) in VERSIONS.into_iter().zip(named) {
        let rules = rules(&place.authority, None, &[version]);
        let mut client = Secure::connect(place.port.number(), &rules);
        assert_eq!(client.version(), Some(named));
        assert_eq!(client.ask("PING"), "+PONG");
        assert_eq!(client.ask("SET k v"), "+OK");
        assert_eq!(client.ask("GET k"), "\"v\"");
        let list = client.command(&["CLIENT", "LIST"]).text().expect("it answers text");
        assert!(list.contains(&format!("laddr=127.0.0.1:{} ", place.port.number())), "{list}");
    }
    assert_eq!(place.set(&["tls-protocols", "TLSv1.3"]), "+OK");
    let served = VERSIONS.map(|version| place.serves(&rules(&place.authority, None, &[version])));
    assert_eq!(served, [false, true]);
    assert_eq!(place.set(&["tls-protocols", "TLSv1.2"]), "+OK");
    let served = VERSIONS.map(|version| place.serves(&rules(&place.authority, None, &[version])));
    assert_eq!(served, [true, false]);
    let why = place.set(&["tls-protocols", "TLSv1.1"]);
    assert!(why.contains("'tls-protocols') - Unable to update TLS configuration"), "{why}");
    assert!(why.contains("Use 'TLSv1.2', 'TLSv1.3' or both"), "{why}");
    assert!(place.serves(&rules(&place.authority, None, &[VERSIONS[0]])));
}

#[test]
fn a_client_that_trusts_another_authority_is_not_served_and_is_no_trouble() {
    let place = TlsServer::open(&[]);
    let stranger = Authority::new();
    for version in VERSIONS {
        assert!(!place.serves(&rules(&stranger, None, &[version])));
    }
    assert!(place.serves(&place.rules()));
    until("the failure is in the log", || place.log().contains("Error accepting a client connection: "));
}

#[test]
fn clients_need_certificates_as_tls_auth_clients_says() {
    let place = TlsServer::with_clients("yes", &[]);
    let own = place.authority.certify_client("own");
    let strangers = Authority::new();
    let strange = strangers.certify_client("strange");
    let cases =
        [("yes", [false, true, false]), ("optional", [true, true, false]), ("no", [true, true, true])];
    for (auth_clients, expected) in cases {
        assert_eq!(place.set(&["tls-auth-clients", auth_clients]), "+OK");
        for version in VERSIONS {
            let served = [None, Some(&own), Some(&strange)]
                .map(|certified| place.serves(&rules(&place.authority, certified, &[version])));
            assert_eq!(served, expected, "tls-auth-clients {auth_clients}, {version:?}");
        }
    }
    // A folder of certificates works like a file.
    let folder = text(strangers.folder());
    let pairs = ["tls-auth-clients", "yes", "tls-ca-cert-file", "", "tls-ca-cert-dir", folder];
    assert_eq!(place.set(&pairs), "+OK");
    let served = [&own, &strange].map(|own| place.serves(&rules(&place.authority, Some(own), &VERSIONS)));
    assert_eq!(served, [false, true]);
}

#[test]
fn thousands_of_commands_in_a_pipeline_are_answered_in_order() {
    let place = TlsServer::open(&["--io-threads", "2"]);
    let mut client = place.connect();
    let mut request = Vec::new();
    for _ in 0..20_000 {
        encode(&["INCR", "n"], &mut request);
    }
    // Both directions at once, because neither side's buffers hold all of it.
    let sealed = client.seal(&request);
    let mut socket = client.socket().try_clone().expect("a socket can be cloned");
    std::thread::scope(|scope| {
        scope.spawn(move || socket.write_all(&sealed));
        for n in 1..=20_000 {
            assert_eq!(client.receive(), Reply::Integer(n));
        }
    });
}

#[test]
fn values_of_20_megabytes_go_both_ways() {
    let place = TlsServer::open(&[]);
    for version in VERSIONS {
        let rules = rules(&place.authority, None, &[version]);
        let mut client = Secure::connect(place.port.number(), &rules);
        let value: Vec<u8> =
            (0..20_000_000u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        assert_eq!(client.command(&[&b"SET"[..], b"large", &value]).to_string(), "+OK");
        let Reply::Bulk(back) = client.command(&["GET", "large"]) else { panic!("GET answers a value") };
        assert!(back == value);
        let Reply::Bulk(plain) = place.server.connect().command(&["GET", "large"]) else { panic!() };
        assert!(plain == value);
    }
}

#[test]
fn requests_may_be_cut_anywhere_by_records_and_records_by_segments() {
    let place = TlsServer::open(&[]);
    let mut request = Vec::new();
    encode(&["SET", "key", "value"], &mut request);
    encode(&["GET", "key"], &mut request);
    for version in VERSIONS {
        let rules = rules(&place.authority, None, &[version]);
        let mut client = Secure::connect(place.port.number(), &rules);
        for cut in 1..request.len() {
            client.send(&request[..cut]);
            client.send(&request[cut..]);
            assert_eq!(
                [client.receive(), client.receive()].map(|reply| reply.to_string()),
                ["+OK", "\"value\""]
            );
        }
        let n_sealed = client.seal(&request).len();
        // Sealed data must be sent, because records have numbers.
        let mut client = Secure::connect(place.port.number(), &rules);
        for cut in 1..n_sealed {
            let sealed = client.seal(&request);
            client.send_sealed(&sealed[..cut]);
            // The first part has mostly arrived when another client is answered.
            assert_eq!(ask(&mut place.server.connect(), "PING"), "+PONG");
            client.send_sealed(&sealed[cut..]);
            assert_eq!(
                [client.receive(), client.receive()].map(|reply| reply.to_string()),
                ["+OK", "\"value\""]
            );
        }
        // One byte in each record.
        let mut client = Secure::connect(place.port.number(), &rules);
        let sealed: Vec<u8> = request.iter().flat_map(|byte| client.seal(&[*byte])).collect();
        client.send_sealed(&sealed);
        assert_eq!([client.receive(), client.receive()].map(|reply| reply.to_string()), ["+OK", "\"value\""]);
    }
}

#[test]
fn a_handshake_may_come_in_pieces() {
    let place = TlsServer::open(&[]);
    for version in VERSIONS {
        let rules = rules(&place.authority, None, &[version]);
        let mut socket = TcpStream::connect(("127.0.0.1", place.port.number())).expect("it listens");
        socket.set_nodelay(true).expect("sockets have this");
        socket.set_read_timeout(Some(PATIENCE)).expect("sockets have this");
        let mut session = session(&rules);
        while session.is_handshaking() {
            if session.wants_write() {
                let mut flight = Vec::new();
                session.write_tls(&mut flight).expect("a vector takes all");
                for piece in flight.chunks(7) {
                    socket.write_all(piece).expect("the server reads");
                }
            } else {
                session.read_tls(&mut socket).expect("the server answers");
                session.process_new_packets().expect("the server is right");
            }
        }
    }
}

/// Returns the number of failures in the log, which strangers must not flood.
fn n_failures_logged(place: &TlsServer) -> usize {
    place.log().matches("Error accepting a client connection: ").count()
}

#[test]
fn plain_text_on_the_port_is_closed_without_an_answer_and_logged_once_in_a_while() {
    let place = TlsServer::open(&["--io-threads", "1"]);
    let mut observer = place.server.connect();
    for n in 1..=200 {
        let mut stranger = Client::connect(place.port.number());
        stranger.send_raw(b"*1\r\n$4\r\nPING\r\n");
        assert_eq!(stranger.await_close().expect("it is closed at once"), None);
        assert_eq!(figure(&mut observer, "tls_handshakes_failed"), n);
    }
    assert!(place.log().contains("what it sends is not TLS (addr=127.0.0.1:"), "{}", place.log());
    // At most one in each second, however long the test takes.
    let n_seconds = figure(&mut observer, "uptime_in_seconds");
    assert!(n_failures_logged(&place) <= n_seconds + 2, "{}", place.log());
    assert!(place.serves(&place.rules()));
}

/// Returns a client's first message.
fn client_hello(rules: &Arc<ClientConfig>) -> Vec<u8> {
    let mut hello = Vec::new();
    session(rules).write_tls(&mut hello).expect("a vector takes all");
    hello
}

/// Sends bytes and an end, and reads until the server closes.
fn offer(port: u16, bytes: &[u8]) -> Vec<u8> {
    let mut socket = TcpStream::connect(("127.0.0.1", port)).expect("it listens");
    socket.set_read_timeout(Some(PATIENCE)).expect("sockets have this");
    // The server may have closed by now.
    let _ = socket.write_all(bytes);
    let _ = socket.shutdown(std::net::Shutdown::Write);
    let mut answer = Vec::new();
    match socket.read_to_end(&mut answer) {
        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => panic!("it stays open"),
        _ => answer,
    }
}

#[test]
fn no_handshake_ends_the_server_however_broken() {
    let place = TlsServer::with_clients("optional", &["--io-threads", "2"]);
    let port = place.port.number();
    let mut dice = Dice(dice::seed());
    let rules = VERSIONS.map(|version| rules(&place.authority, None, &[version]));
    for round in 0..1500 {
        let mut bytes = client_hello(dice.pick(&rules));
        match dice.roll(6) {
            0 => bytes.truncate(dice.roll(bytes.len())),
            1 => bytes = (0..dice.roll(2000)).map(|_| dice.roll(256) as u8).collect(),
            2 => {
                // A record's header, followed by random bytes.
                let n = dice.roll(400);
                bytes = vec![20 + dice.roll(5) as u8, 3, dice.roll(5) as u8, (n >> 8) as u8, n as u8];
                bytes.extend((0..dice.roll(500)).map(|_| dice.roll(256) as u8));
            }
            3 => {
                // Several records in one, or one in several.
                let at = 5 + dice.roll(bytes.len() - 5);
                let rest = bytes.split_off(at);
                bytes[3..5].copy_from_slice(&((at - 5) as u16).to_be_bytes());
                bytes.extend([22, 3, 1]);
                bytes.extend((rest.len() as u16).to_be_bytes());
                bytes.extend(rest);
            }
            _ => {
                for _ in 0..=dice.roll(8) {
                    let at = dice.roll(bytes.len());
                    bytes[at] = dice.roll(256) as u8;
                }
            }
        }
        if dice.percent(20) {
            let more = client_hello(dice.pick(&rules));
            bytes.extend(&more[dice.roll(more.len())..]);
        }
        offer(port, &bytes);
        if round % 100 == 0 {
            assert!(place.serves(&rules[0]), "{}", place.server.log_tail());
        }
    }
    assert!(VERSIONS.into_iter().zip(&rules).all(|(_, rules)| place.serves(rules)));
    assert!(!place.log().contains("panicked"), "{}", place.log());
}

#[test]
fn broken_records_end_their_connection_only() {
    let place = TlsServer::open(&["--io-threads", "2"]);
    let mut dice = Dice(dice::seed());
    let mut request = Vec::new();
    encode(&["SET", "k", "v"], &mut request);
    for round in 0..400 {
        let rules = rules(&place.authority, None, &[VERSIONS[round % 2]]);
        let mut client = Secure::connect(place.port.number(), &rules);
        assert_eq!(client.ask("PING"), "+PONG");
        let mut sealed: Vec<u8> = (0..3).flat_map(|_| client.seal(&request)).collect();
        match dice.roll(3) {
            0 => sealed.truncate(dice.roll(sealed.len())),
            1 => {
                let at = dice.roll(sealed.len());
                sealed.splice(at..at, (0..dice.roll(50)).map(|_| 0));
            }
            _ => {
                let at = dice.roll(sealed.len());
                sealed[at] ^= 1 << dice.roll(8);
            }
        }
        client.send_sealed(&sealed);
        let _ = client.socket().shutdown(std::net::Shutdown::Write);
        client.await_close();
    }
    assert!(place.serves(&place.rules()));
    assert!(!place.log().contains("panicked"), "{}", place.log());
}

#[test]
fn a_handshake_that_does_not_end_is_ended_and_counts_as_a_client_until_then() {
    let place = TlsServer::open(&["--maxclients", "3"]);
    let hello = client_hello(&place.rules());
    let mut observer = place.server.connect();
    let mut silent: Vec<Client> = (0..2).map(|_| Client::connect(place.port.number())).collect();
    silent[0].send_raw(&hello[..hello.len() / 2]);
    until("they are clients", || figure(&mut observer, "connected_clients") == 3);
    let mut another = Client::connect(place.port.number());
    assert_eq!(another.await_close().expect("it is closed at once"), None);
    for client in &mut silent {
        assert_eq!(client.await_close().expect("it is closed in the end"), None);
    }
    until("there is room again", || figure(&mut observer, "connected_clients") == 1);
    assert!(place.serves(&place.rules()));
}

#[test]
fn connections_move_between_threads_with_their_sessions() {
    let place = TlsServer::open(&["--io-threads", "2", "--io-threads-always-active", "no"]);
    let mut clients: Vec<(Secure, i64)> = (0..20).map(|_| (place.connect(), 0)).collect();
    let mut request = Vec::new();
    while_connections_move(&place.server, 2, || {
        for (at, (client, n)) in clients.iter_mut().enumerate() {
            request.clear();
            let key = format!("n:{at}");
            (0..50).for_each(|_| encode(&["INCR", &key], &mut request));
            // The record is cut in two. The part that was read moves with the connection.
            let sealed = client.seal(&request);
            let (begin, end) = sealed.split_at(sealed.len() / 2);
            client.send_sealed(begin);
            assert_eq!(ask(&mut place.server.connect(), "PING"), "+PONG");
            client.send_sealed(end);
            for _ in 0..50 {
                *n += 1;
                assert_eq!(client.receive(), Reply::Integer(*n));
            }
        }
    });
}

#[test]
fn certificates_are_read_again_when_they_are_set_and_kept_when_that_fails() {
    let place = TlsServer::open(&[]);
    let before = place.rules();
    let mut old = Secure::connect(place.port.number(), &before);
    let others = Authority::new();
    let other = others.certify_server("other");
    let (certificate, key) = (text(&other.certificate_file), text(&other.key_file));
    let rules_of_others = rules(&others, None, &VERSIONS);
    assert!(!place.serves(&rules_of_others));

    // Its key is missing, belongs to another certificate, or is invalid.
    let broken = place.authority.folder().join("broken.pem");
    fs::write(&broken, "-----BEGIN CERTIFICATE-----\nAA==\n").expect("the folder is writable");
    let locked = place.authority.folder().join("locked.pem");
    fs::write(&locked, "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAA==\n-----END ENCRYPTED PRIVATE KEY-----\n")
        .expect("the folder is writable");
    let refused: [(&[&str], &str); 8] = [
        (&["tls-cert-file", "/nonexistent"], "No such file or directory"),
        (&["tls-cert-file", certificate], "is not the key of the certificate"),
        (&["tls-key-file", certificate], "Failed to load private key"),
        (&["tls-key-file", text(&locked)], "openssl pkey -in"),
        (&["tls-cert-file", text(&broken), "tls-key-file", key], "Failed to load certificate"),
        (&["tls-cert-file", ""], "No tls-cert-file configured!"),
        (&["tls-auth-clients", "yes", "tls-ca-cert-file", ""], "Either tls-ca-cert-file or tls-ca-cert-dir"),
        (&["tls-ciphers", "RC4"], "ECDHE-RSA-AES256-GCM-SHA384"),
    ];
    for (pairs, why) in refused {
        let reply = place.set(pairs);
        let begin = format!(
            "-ERR CONFIG SET failed (possibly related to argument '{}') - Unable to update TLS configuration",
            pairs[0]
        );
        assert!(reply.starts_with(&begin) && reply.contains(why), "{pairs:?}: {reply}");
        assert!(place.serves(&before), "after {pairs:?}");
        let shown = place.server.connect().command(&["CONFIG", "GET", "tls-cert-file"]).to_string();
        assert!(shown.contains(text(&place.own.certificate_file)), "{shown}");
    }

    assert_eq!(place.set(&["tls-cert-file", certificate, "tls-key-file", key]), "+OK");
    assert!(place.serves(&rules_of_others));
    assert!(!place.serves(&rules(&place.authority, None, &VERSIONS)));
    assert_eq!(old.ask("PING"), "+PONG");

    // The same name with another file.
    fs::copy(&place.own.certificate_file, &other.certificate_file).expect("the folder is writable");
    fs::copy(&place.own.key_file, &other.key_file).expect("the folder is writable");
    assert!(place.serves(&rules(&others, None, &VERSIONS)));
    assert_eq!(place.set(&["tls-cert-file", certificate]), "+OK");
    assert!(place.serves(&rules(&place.authority, None, &VERSIONS)));
    assert!(!place.serves(&rules(&others, None, &VERSIONS)));
}

/// Returns the user of a client with these rules, by ACL WHOAMI.
fn who_is(place: &TlsServer, rules: &Arc<ClientConfig>) -> String {
    Secure::connect(place.port.number(), rules).ask("ACL WHOAMI")
}

#[test]
fn a_client_is_the_user_whom_its_certificate_names() {
    let place =
        TlsServer::with_clients("optional", &["--tls-auth-clients-user", "cn", "--requirepass", "secret"]);
    let mut control = place.server.connect();
    assert_eq!(ask(&mut control, "AUTH secret"), "+OK");
    for rule in ["bob on ~b* +get +acl|whoami +ping", "first on +@all", "second on +@all", "off off +@all"] {
        assert_eq!(ask(&mut control, &format!("ACL SETUSER {rule}")), "+OK");
    }
    assert_eq!(ask(&mut control, "CONFIG GET tls-auth-clients-user"), "[\"tls-auth-clients-user\" \"CN\"]");
    let bob = place.authority.certify_client_with_uris("bob", &["second", "first"]);
    for version in VERSIONS {
        let rules = rules(&place.authority, Some(&bob), &[version]);
        // A full handshake, and one that resumes its session.
        for kind in [HandshakeKind::Full, HandshakeKind::Resumed] {
            let mut client = Secure::connect(place.port.number(), &rules);
            assert_eq!(client.ask("ACL WHOAMI"), "\"bob\"");
            assert_eq!(client.session().handshake_kind(), Some(kind));
            assert_eq!(client.ask("GET b1"), "(nil)");
            assert!(client.ask("GET a").starts_with("-NOPERM"), "a key that is not bob's");
            // The client can still authenticate as another user, with the usual effects.
            assert_eq!(client.ask("AUTH default secret"), "+OK");
            assert_eq!(client.ask("ACL WHOAMI"), "\"default\"");
        }
    }
    // Long arguments require a login, which this client has from the beginning.
    let own = rules(&place.authority, Some(&bob), &VERSIONS);
    let long = "b".repeat(100_000);
    assert_eq!(Secure::connect(place.port.number(), &own).command(&["GET", &long]).to_string(), "(nil)");

    // A client must log in if it has no certificate, or if its certificate names no user or a disabled one.
    let nobody = place.authority.certify_client("nobody");
    let off = place.authority.certify_client("off");
    for certified in [None, Some(&nobody), Some(&off)] {
        let rules = rules(&place.authority, certified, &VERSIONS);
        assert!(who_is(&place, &rules).starts_with("-NOAUTH"));
    }
    assert_eq!(figure(&mut control, "acl_access_denied_tls_cert"), 2);
    let log = ask(&mut control, "ACL LOG").split_whitespace().collect::<Vec<_>>().join(" ");
    for word in
        ["\"reason\" \"tls-cert\"", "\"username\" \"nobody\"", "\"username\" \"off\"", "\"object\" \"\""]
    {
        assert!(log.contains(word), "{word}: {log}");
    }

    // The first URI that names an enabled user is the one that counts.
    assert_eq!(ask(&mut control, "CONFIG SET tls-auth-clients-user URI"), "+OK");
    assert_eq!(who_is(&place, &own), "\"second\"");
    assert_eq!(ask(&mut control, "ACL SETUSER second off"), "+OK");
    assert_eq!(who_is(&place, &own), "\"first\"");
    let mut first = Secure::connect(place.port.number(), &own);
    assert_eq!(first.ask("PING"), "+PONG");
    assert_eq!(ask(&mut control, "ACL DELUSER first"), ":1");
    assert!(first.try_command(&["PING"]).is_err(), "a user who is gone");
    assert!(who_is(&place, &own).starts_with("-NOAUTH"));
    assert_eq!(ask(&mut control, "CONFIG SET tls-auth-clients-user off"), "+OK");
    assert!(who_is(&place, &own).starts_with("-NOAUTH"));
}

#[test]
fn certificates_are_read_again_by_themselves_when_their_files_have_changed() {
    let place = TlsServer::open(&["--tls-auto-reload-interval", "1"]);
    let before = place.rules();
    let mut old = Secure::connect(place.port.number(), &before);
    let others = Authority::new();
    let other = others.certify_server("other");
    let rules_of_others = || rules(&others, None, &VERSIONS);
    let replace = |from: &Path, to: &Path| {
        // As renewal programs do it: nobody sees half a file.
        let beside = to.with_extension("new");
        fs::copy(from, &beside).expect("the folder is writable");
        fs::rename(&beside, to).expect("the folder is writable");
    };
    let n_said = |what: &str| place.log().matches(what).count();

    // A certificate without its key is not used, and this is logged once.
    replace(&other.certificate_file, &place.own.certificate_file);
    const REFUSED: &str = "Certificates or keys have changed and cannot be used";
    until("it is refused", || n_said(REFUSED) == 1);
    assert!(place.log().contains("it is not the key of the certificate"), "{}", place.log());
    assert!(place.serves(&rules(&place.authority, None, &VERSIONS)));
    replace(&other.key_file, &place.own.key_file);
    until("the new ones are used", || place.serves(&rules_of_others()));
    assert_eq!(n_said("TLS materials reloaded successfully"), 1);
    assert_eq!(n_said(REFUSED), 1);
    assert!(!place.serves(&rules(&place.authority, None, &VERSIONS)));
    assert_eq!(old.ask("PING"), "+PONG");

    // While the files are invalid, CONFIG SET reports it, and the present ones stay in use.
    fs::write(&place.own.certificate_file, "none").expect("the folder is writable");
    until("it is refused", || n_said(REFUSED) == 2);
    assert!(place.set(&["tls-auto-reload-interval", "0"]).contains("Unable to update TLS configuration"));
    assert!(place.set(&["tls-auto-reload-interval", "-1"]).starts_with("-ERR CONFIG SET failed"));
    assert!(place.serves(&rules_of_others()));
}

#[test]
fn the_ports_are_opened_closed_and_exchanged_while_the_server_runs() {
    let place = TlsServer::open(&[]);
    let plain = place.server.port();
    let tls = place.port.number();
    let mut control = place.connect();
    assert_eq!(control.ask("CONFIG SET tls-port 0"), "+OK");
    until("nobody listens", || TcpStream::connect(("127.0.0.1", tls)).is_err());
    assert_eq!(control.ask("PING"), "+PONG");
    assert_eq!(control.ask(&format!("CONFIG SET tls-port {tls} port 0")), "+OK");
    until("nobody listens", || TcpStream::connect(("127.0.0.1", plain)).is_err());
    assert!(place.serves(&place.rules()));
    assert!(control.ask("INFO server").contains(&format!("tcp_port:{tls}")));
    // Exchanges the two ports.
    assert_eq!(control.ask(&format!("CONFIG SET tls-port {plain} port {tls}")), "+OK");
    assert_eq!(ask(&mut Client::connect(tls), "PING"), "+PONG");
    assert_eq!(Secure::connect(plain, &place.rules()).ask("PING"), "+PONG");
    // All settings change, or none.
    let reply = control.ask(&format!("CONFIG SET tls-port {tls} tls-protocols TLSv1.2"));
    assert!(
        reply.contains("(possibly related to argument 'tls-port') - Unable to listen on this port"),
        "{reply}"
    );
    let mut client = Secure::connect(plain, &rules(&place.authority, None, &[VERSIONS[1]]));
    assert_eq!(client.ask("CONFIG GET tls-port"), format!("[\"tls-port\" \"{plain}\"]"));
}

#[test]
fn messages_are_delivered() {
    let place = TlsServer::open(&["--io-threads", "2"]);
    let mut listeners: Vec<Secure> = (0..10).map(|_| place.connect()).collect();
    for listener in &mut listeners {
        assert_eq!(listener.ask("SUBSCRIBE news"), "[\"subscribe\" \"news\" :1]");
    }
    let mut publisher = place.connect();
    let long = "x".repeat(100_000);
    for message in ["first", &long, "last"] {
        assert_eq!(publisher.command(&["PUBLISH", "news", message]), Reply::Integer(10));
    }
    for listener in &mut listeners {
        for message in ["first", &long, "last"] {
            let parts = ["message", "news", message].map(|part| Reply::Bulk(part.as_bytes().to_vec()));
            assert!(listener.receive() == Reply::Array(parts.to_vec()));
        }
    }
}

#[test]
fn the_server_says_that_it_closes() {
    let place = TlsServer::open(&[]);
    for version in VERSIONS {
        let rules = rules(&place.authority, None, &[version]);
        let mut killed = Secure::connect(place.port.number(), &rules);
        let id = killed.command(&["CLIENT", "ID"]).integer().expect("it is a number");
        assert_eq!(ask(&mut place.server.connect(), &format!("CLIENT KILL ID {id}")), ":1");
        assert_eq!(killed.await_close(), Closed::Properly);
        let mut leaving = Secure::connect(place.port.number(), &rules);
        assert_eq!(leaving.ask("QUIT"), "+OK");
        assert_eq!(leaving.await_close(), Closed::Properly);
        let mut wrong = Secure::connect(place.port.number(), &rules);
        wrong.send(b"*1\r\n$x\r\n");
        assert_eq!(wrong.receive().to_string(), "-ERR Protocol error: invalid bulk length");
        assert_eq!(wrong.await_close(), Closed::Properly);
    }
}

#[test]
fn a_client_that_says_that_it_sends_no_more_gets_its_replies() {
    let place = TlsServer::open(&[]);
    let value = "x".repeat(1_000_000);
    let mut request = Vec::new();
    encode(&["SET", "k", &value], &mut request);
    (0..20).for_each(|_| encode(&["GET", "k"], &mut request));
    for version in VERSIONS {
        let rules = rules(&place.authority, None, &[version]);
        let mut client = Secure::connect(place.port.number(), &rules);
        client.send(&request);
        client.session().send_close_notify();
        let end = client.seal(&[]);
        client.send_sealed(&end);
        assert_eq!(client.receive().to_string(), "+OK");
        for _ in 0..20 {
            assert_eq!(client.receive(), Reply::Bulk(value.clone().into_bytes()));
        }
        assert_eq!(client.await_close(), Closed::Properly);
    }
}

#[test]
fn replies_that_a_client_does_not_read_wait_for_it() {
    let place = TlsServer::open(&["--io-threads", "2"]);
    let mut client = place.connect();
    let value: String = ('a'..='z').cycle().take(300_001).collect();
    assert_eq!(client.command(&["SET", "k", &value]).to_string(), "+OK");
    let mut request = Vec::new();
    // Far more than the sockets hold, in large and small pieces.
    for n in 0..100 {
        encode(&["GET", "k"], &mut request);
        encode(&["ECHO", &n.to_string()], &mut request);
    }
    client.send(&request);
    let mut control = place.server.connect();
    until("much waits", || {
        let list = control.command(&["CLIENT", "LIST"]).text().expect("it answers text");
        list.lines().any(|line| {
            let waits = line.split(' ').find_map(|field| field.strip_prefix("omem="));
            waits.is_some_and(|bytes| bytes.parse::<usize>().expect("it is a number") > 10_000_000)
        })
    });
    for n in 0..100 {
        assert_eq!(client.receive(), Reply::Bulk(value.clone().into_bytes()));
        assert_eq!(client.receive().to_string(), format!("\"{n}\""));
    }
    assert_eq!(client.ask("PING"), "+PONG");
}

#[test]
fn a_slow_reader_is_cut_off_by_its_limit() {
    let place = TlsServer::open(&["--client-output-buffer-limit", "normal 5mb 0 0"]);
    let mut client = place.connect();
    assert_eq!(client.command(&["SET", "k", &"x".repeat(1_000_000)]).to_string(), "+OK");
    let mut request = Vec::new();
    encode(&["GET", "k"], &mut request);
    let mut control = place.server.connect();
    until("it is closed", || {
        // It may be closed by now.
        let _ = client.try_send(&request);
        figure(&mut control, "connected_clients") == 1
    });
    // Even the record in the socket's buffer has not come whole.
    assert_eq!(client.await_close(), Closed::Abruptly);
    assert!(place.log().contains("overcoming of output buffer limits"), "{}", place.log());
}

#[test]
fn sessions_are_resumed_unless_that_is_turned_off_or_the_rules_have_changed() {
    let place = TlsServer::with_clients("yes", &[]);
    let own = place.authority.certify_client("own");
    for version in VERSIONS {
        let rules = rules(&place.authority, Some(&own), &[version]);
        let kind = || {
            let mut client = Secure::connect(place.port.number(), &rules);
            // The ticket comes with the first reply.
            assert_eq!(client.ask("PING"), "+PONG");
            client.session().handshake_kind()
        };
        assert_eq!([kind(), kind()], [Some(HandshakeKind::Full), Some(HandshakeKind::Resumed)]);
        assert_eq!(place.set(&["tls-session-caching", "yes"]), "+OK");
        assert_eq!([kind(), kind()], [Some(HandshakeKind::Full), Some(HandshakeKind::Resumed)]);
        assert_eq!(place.set(&["tls-session-caching", "no"]), "+OK");
        assert_eq!([kind(), kind()], [Some(HandshakeKind::Full); 2]);
        assert_eq!(place.set(&["tls-session-caching", "yes"]), "+OK");
    }
}

#[test]
fn keys_are_renewed_at_any_time() {
    let place = TlsServer::open(&[]);
    let rules = rules(&place.authority, None, &[VERSIONS[1]]);
    let mut client = Secure::connect(place.port.number(), &rules);
    for _ in 0..20 {
        client.session().refresh_traffic_keys().expect("TLS 1.3 can");
        assert_eq!(client.ask("INCR n").as_bytes()[0], b':');
    }
    assert_eq!(client.ask("GET n"), "\"20\"");
}

#[test]
fn suites_are_chosen_as_the_server_says() {
    let place = TlsServer::open(&["--tls-protocols", "TLSv1.3", "--tls-prefer-server-ciphers", "yes"]);
    for name in ["TLS_CHACHA20_POLY1305_SHA256", "TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384"] {
        let all =
            format!("{name}:TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384:TLS_CHACHA20_POLY1305_SHA256");
        for list in [name, &all] {
            assert_eq!(place.set(&["tls-ciphersuites", list]), "+OK");
            let mut client = place.connect();
            let suite = client.session().negotiated_cipher_suite().expect("the handshake is over");
            assert_eq!(format!("{:?}", suite.suite()).replace("TLS13", "TLS"), name);
            assert_eq!(client.ask("PING"), "+PONG");
        }
    }
}

#[test]
fn a_server_without_what_tls_needs_does_not_start() {
    let authority = Authority::new();
    let own = authority.certify_server("server");
    let (certificate, key) = (text(&own.certificate_file), text(&own.key_file));
    let cases: [(&[&str], &str); 3] = [
        (&[], "No tls-cert-file configured!"),
        (
            &["--tls-cert-file", certificate, "--tls-key-file", key],
            "Either tls-ca-cert-file or tls-ca-cert-dir",
        ),
        (&["--tls-cert-file", certificate, "--tls-key-file", certificate], "Failed to load private key"),
    ];
    for (args, why) in cases {
        let port = Port::claim();
        let number = port.number().to_string();
        let program = std::process::Command::new(env!("CARGO_BIN_EXE_braid-server"))
            .args(["--port", "0", "--tls-port", &number])
            .args(args)
            .output()
            .expect("the server can be run");
        let said = String::from_utf8_lossy(&program.stderr);
        assert!(!program.status.success());
        assert!(said.contains("Failed to configure TLS: ") && said.contains(why), "{said}");
    }
}

/// Requests the metrics from a metrics port. Returns the bytes until it closes.
fn scrape(port: &Port, rules: &Arc<ClientConfig>) -> std::io::Result<String> {
    let socket = TcpStream::connect(("127.0.0.1", port.number()))?;
    socket.set_read_timeout(Some(PATIENCE))?;
    let mut connection = StreamOwned::new(session(rules), socket);
    connection.write_all(b"GET /metrics HTTP/1.1\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    connection.read_to_string(&mut answer)?;
    Ok(answer)
}

#[test]
fn the_metrics_port_speaks_tls_by_the_same_rules() {
    let authority = Authority::new();
    let (own, client) = (authority.certify_server("server"), authority.certify_client("client"));
    let (ca_file, port) = (authority.file(), Port::claim());
    let number = port.number().to_string();
    // Independent of TLS for clients.
    let server = Server::start(&[
        "--metrics-port",
        &number,
        "--metrics-tls",
        "yes",
        "--tls-cert-file",
        text(&own.certificate_file),
        "--tls-key-file",
        text(&own.key_file),
        "--tls-ca-cert-file",
        text(&ca_file),
    ]);
    for version in VERSIONS {
        assert!(scrape(&port, &rules(&authority, None, &[version])).is_err(), "a certificate is asked for");
        let answer =
            scrape(&port, &rules(&authority, Some(&client), &[version])).expect("with one it answers");
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with('\n'), "{answer}");
    }
    let mut control = server.connect();
    assert_eq!(ask(&mut control, "CONFIG SET tls-auth-clients no"), "+OK");
    let rules = rules(&authority, None, &VERSIONS);
    assert!(scrape(&port, &rules).expect("no certificate is asked for").contains("redis_up 1\n"));
    // A peer without TLS gets no metrics, and does no harm.
    let mut plain = TcpStream::connect(("127.0.0.1", port.number())).expect("it listens");
    plain.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").expect("it is read");
    let mut answer = Vec::new();
    let _ = plain.read_to_end(&mut answer);
    assert!(!answer.starts_with(b"HTTP"));
    assert!(scrape(&port, &rules).is_ok());
    assert_eq!(ask(&mut control, "PING"), "+PONG");
}

#[test]
fn a_metrics_port_with_tls_needs_a_certificate() {
    let (port, metrics) = (Port::claim(), Port::claim());
    let ended = Command::new(env!("CARGO_BIN_EXE_braid-server"))
        .args(["--port", &port.number().to_string(), "--metrics-port", &metrics.number().to_string()])
        .args(["--metrics-tls", "yes"])
        .output()
        .expect("it starts");
    let log = String::from_utf8_lossy(&ended.stdout).into_owned() + &String::from_utf8_lossy(&ended.stderr);
    assert!(!ended.status.success() && log.contains("Failed to configure TLS: No tls-cert-file"), "{log}");
}

#[test]
fn info_tells_the_serial_numbers_and_the_ends_of_certificates() {
    let place = TlsServer::open(&[]);
    let told = |name: &str| {
        let info = place.server.connect().command(&["INFO", "tls"]).text().expect("INFO answers text");
        let line = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.unwrap_or_else(|| panic!("no {name} in {info}")).to_owned()
    };
    let digits =
        |certificate: &[u8]| -> String { certificate.iter().map(|byte| format!("{byte:02X}")).collect() };
    let serial = told("tls_ca_cert_serial");
    assert!(serial.len() >= 2 && digits(&place.authority.certificate()).contains(&serial), "{serial}");
    let own = told("tls_server_cert_serial");
    assert!(own != "none" && own != serial, "{own}");
    for name in ["tls_server_cert_expires_in_seconds", "tls_ca_cert_expires_in_seconds"] {
        assert!(told(name).parse::<u64>().is_ok_and(|left| left > 0), "{name}:{}", told(name));
    }
    let (port, listener) = (place.port.number(), place.server.connect().command(&["INFO", "server"]));
    let listener = listener.text().expect("INFO answers text");
    assert!(listener.contains(&format!("listener2:name=tls,bind=127.0.0.1,port={port}\r\n")), "{listener}");

    // Another certificate is told as soon as it is used.
    let others = Authority::new();
    let other = others.certify_server("other");
    let pairs = ["tls-cert-file", text(&other.certificate_file), "tls-key-file", text(&other.key_file)];
    assert_eq!(place.set(&pairs), "+OK");
    assert!(told("tls_server_cert_serial") != own);
}
