//! Links that use TLS, with Braid on either side, or both.

use std::path::Path;

use super::played::{Primary, field, until_says, until_up};
use crate::{
    support::{
        Client, Port, Server,
        crowd::{ask, until},
        reference::{REFERENCE, has_reference},
    },
    tls::authority::{Authority, Certified},
};

fn text(path: &Path) -> &str {
    path.to_str().expect("the build's folder has a plain name")
}

/// A primary that listens with TLS, and its port for that.
struct Encrypted {
    server: Server,
    port: Port,
}

impl Encrypted {
    /// Starts a program that shows a certificate, and accepts those of an authority.
    fn start(program: Option<&str>, own: &Certified, authority: &Authority, auth_clients: &str) -> Encrypted {
        let port = Port::claim();
        let (number, ca_file) = (port.number().to_string(), authority.file());
        let args = [
            "--tls-port",
            &number,
            "--tls-cert-file",
            text(&own.certificate_file),
            "--tls-key-file",
            text(&own.key_file),
            "--tls-ca-cert-file",
            text(&ca_file),
            "--tls-auth-clients",
            auth_clients,
            "--repl-diskless-sync-delay",
            "0",
        ];
        let server = match program {
            Some(program) => Server::start_program(program, &args),
            None => Server::start(&args),
        };
        Encrypted { server, port }
    }

    fn adopt(&self, replica: &mut Client) {
        assert_eq!(ask(replica, &format!("REPLICAOF localhost {}", self.port.number())), "+OK");
    }
}

/// The arguments of a replica that trusts an authority, and shows a certificate.
fn replica_args<'f>(own: &'f Certified, ca_file: &'f Path) -> [&'f str; 8] {
    [
        "--tls-replication",
        "yes",
        "--tls-cert-file",
        text(&own.certificate_file),
        "--tls-key-file",
        text(&own.key_file),
        "--tls-ca-cert-file",
        text(ca_file),
    ]
}

/// Lets a replica copy and follow a primary.
fn follow(primary: &Encrypted, replica: &Server) {
    let (mut writer, mut reader) = (primary.server.connect(), replica.connect());
    // More than a record of TLS, and more than a read of the socket.
    let long = "x".repeat(300_000);
    writer.command(&["SET", "long", &long]);
    primary.adopt(&mut reader);
    until_up(&mut reader);
    assert_eq!(reader.command(&["GET", "long"]).text().as_deref(), Some(long.as_str()));
    let longer = "y".repeat(500_000);
    writer.command(&["SET", "streamed", &longer]);
    ask(&mut writer, "SET last 1");
    until_says(&mut reader, "GET last", "\"1\"");
    assert_eq!(reader.command(&["GET", "streamed"]).text().as_deref(), Some(longer.as_str()));
    let list = field(&mut writer, "slave0");
    assert!(list.contains("state=online"), "{list}");
    let peers = writer.command(&["CLIENT", "LIST", "TYPE", "replica"]).text().expect("it answers text");
    assert!(peers.contains(&format!(":{} ", primary.port.number())), "the link has used TLS: {peers}");
}

#[test]
fn links_use_tls_on_either_side() {
    let authority = Authority::new();
    let (server, client) = (authority.certify_server("server"), authority.certify_client("client"));
    let ca_file = authority.file();
    let replica = Server::start(&replica_args(&client, &ca_file));
    follow(&Encrypted::start(None, &server, &authority, "yes"), &replica);
    if has_reference("replica::encrypted") {
        let replica = Server::start(&replica_args(&client, &ca_file));
        follow(&Encrypted::start(Some(REFERENCE), &server, &authority, "yes"), &replica);
        let replica = Server::start_program(REFERENCE, &replica_args(&client, &ca_file));
        follow(&Encrypted::start(None, &server, &authority, "yes"), &replica);
    }
}

/// Sentinel and clients of the primary learn the port from it.
#[test]
fn a_replica_that_uses_tls_announces_its_port_for_tls() {
    let authority = Authority::new();
    let (server, client) = (authority.certify_server("server"), authority.certify_client("client"));
    let (ca_file, port) = (authority.file(), Port::claim());
    let primary = Encrypted::start(None, &server, &authority, "yes");
    let number = port.number().to_string();
    let replica = Server::start(&[&replica_args(&client, &ca_file)[..], &["--tls-port", &number]].concat());
    follow(&primary, &replica);
    let line = field(&mut primary.server.connect(), "slave0");
    assert!(line.contains(&format!("port={number},")), "{line}");
}

#[test]
fn the_link_goes_on_after_a_break() {
    let authority = Authority::new();
    let (server, client) = (authority.certify_server("server"), authority.certify_client("client"));
    let ca_file = authority.file();
    let primary = Encrypted::start(None, &server, &authority, "yes");
    let replica = Server::start(&replica_args(&client, &ca_file));
    follow(&primary, &replica);
    let (mut writer, mut reader) = (primary.server.connect(), replica.connect());
    assert_eq!(ask(&mut writer, "CLIENT KILL TYPE replica"), ":1");
    ask(&mut writer, "SET after 1");
    until_says(&mut reader, "GET after", "\"1\"");
    assert_eq!(field(&mut writer, "sync_full"), "1");
    assert_eq!(field(&mut writer, "sync_partial_ok"), "1");
}

/// A replica with the wrong certificates logs why, tries again, and succeeds once they are right.
#[test]
fn a_wrong_certificate_is_named_and_the_link_tried_again() {
    let (authority, stranger) = (Authority::new(), Authority::new());
    let (server, client) = (authority.certify_server("server"), authority.certify_client("client"));
    let (ca_file, strange_file) = (authority.file(), stranger.file());
    let primary = Encrypted::start(None, &server, &authority, "yes");
    let replica = Server::start(&replica_args(&client, &strange_file));
    let mut reader = replica.connect();
    primary.adopt(&mut reader);
    let attempts = |words: &str| replica.log().matches(words).count();
    until("its authority is unknown, twice", || attempts("the TLS handshake has failed: ") > 1);
    let log = replica.log();
    assert!(log.contains("invalid peer certificate: "), "{log}");
    assert_eq!(field(&mut reader, "master_link_status"), "down");
    // The name must be the expected one, if there is one.
    for (name, is_accepted) in [("other.example", false), ("localhost", true)] {
        let set = ["CONFIG", "SET", "tls-ca-cert-file", text(&ca_file), "tls-expected-peer-name", name];
        assert_eq!(reader.command(&set).to_string(), "+OK");
        if is_accepted {
            until_up(&mut reader);
        } else {
            until("the name is wrong", || attempts("certificate not valid for name") > 0);
        }
    }
    assert_eq!(ask(&mut reader, "REPLICAOF NO ONE"), "+OK");
    // The primary accepts certificates of clients only.
    let set =
        ["CONFIG", "SET", "tls-client-cert-file", text(&server.certificate_file), "tls-client-key-file"];
    assert_eq!(reader.command(&[&set[..], &[text(&server.key_file)]].concat()).to_string(), "+OK");
    primary.adopt(&mut reader);
    until("the own certificate is refused", || attempts("received fatal alert") > 1);
    let set =
        ["CONFIG", "SET", "tls-client-cert-file", text(&client.certificate_file), "tls-client-key-file"];
    assert_eq!(reader.command(&[&set[..], &[text(&client.key_file)]].concat()).to_string(), "+OK");
    until_up(&mut reader);
}

#[test]
fn a_certificate_that_has_signed_itself_is_trusted_if_it_is_named() {
    let authority = Authority::new();
    let (itself, ca_file) = (authority.itself(), authority.file());
    let primary = Encrypted::start(None, &itself, &authority, "no");
    let replica = Server::start(&["--tls-replication", "yes", "--tls-ca-cert-file", text(&ca_file)]);
    follow(&primary, &replica);
}

#[test]
fn nothing_is_sent_in_plain_text_by_mistake() {
    let authority = Authority::new();
    let ca_file = authority.file();
    let played = Primary::new();
    let replica = Server::start(&["--tls-replication", "yes"]);
    let mut reader = replica.connect();
    played.adopt(&mut reader);
    until("there is nobody to trust", || {
        replica.log().contains("Neither tls-ca-cert-file nor tls-ca-cert-dir is set")
    });
    assert_eq!(ask(&mut reader, &format!("CONFIG SET tls-ca-cert-file {}", text(&ca_file))), "+OK");
    let mut link = played.accept();
    // The first byte of a handshake, and not that of PING.
    assert_eq!(link.byte(), 22);
    link.say(b"-ERR Protocol error\r\n");
    until("the primary speaks no TLS", || replica.log().contains("it does not speak TLS at this port"));
    // The present link keeps its way, and the next one is plain.
    assert_eq!(ask(&mut reader, "CONFIG SET tls-replication no"), "+OK");
    until("a link is plain", || played.accept().byte() == b'*');
    let why = ask(&mut reader, "CONFIG SET tls-replication yes tls-ca-cert-file /no/file");
    assert!(
        why.contains("Unable to update TLS configuration. Failed to load certificate: /no/file"),
        "{why}"
    );
    let refused = Server::try_start(&["--tls-replication", "yes", "--tls-ca-cert-file", "/no/file"]);
    let Err(why) = refused else { panic!("it has started") };
    assert!(why.contains("Failed to configure TLS: Failed to load certificate: /no/file"), "{why}");
}
