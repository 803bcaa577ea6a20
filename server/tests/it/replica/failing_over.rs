//! FAILOVER: what it refuses, and that nothing is lost.

use std::{
    process::Command,
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use super::played::{Primary, field, until_up};
use crate::support::{
    Client, Server,
    crowd::{ask, until},
};

const COMMON: [&str; 4] = ["--repl-diskless-sync-delay", "0", "--repl-ping-replica-period", "3600"];

fn serve(more: &[&str]) -> Server {
    Server::start(&[&COMMON[..], more].concat())
}

fn replica_of(primary: &Server, more: &[&str]) -> Server {
    let port = primary.port().to_string();
    let replica = serve(&[&["--replicaof", "127.0.0.1", &port], more].concat());
    until_up(&mut replica.connect());
    replica
}

/// Stops a process, or lets it go on.
fn signal(server: &Server, signal: &str) {
    let status = Command::new("kill").args([signal, &server.pid().to_string()]).status();
    assert!(status.expect("there is such a program").success());
}

fn until_online(client: &mut Client, n: usize) {
    let online = |text: String| text.matches("state=online").count();
    until("they are online", || online(ask(client, "INFO replication")) == n);
}

/// A primary with a replica that is online, and a client of the primary.
fn pair() -> (Server, Server, Client) {
    let server = serve(&[]);
    let replica = replica_of(&server, &[]);
    let mut client = server.connect();
    until_online(&mut client, 1);
    (server, replica, client)
}

#[test]
fn a_failover_loses_no_write_and_the_other_replicas_go_on() {
    let first = serve(&["--appendonly", "yes"]);
    let (second, third) = (replica_of(&first, &[]), replica_of(&first, &[]));
    let mut client = first.connect();
    until_online(&mut client, 2);
    let is_over = AtomicBool::new(false);
    let n_acknowledged: i64 = thread::scope(|scope| {
        let writers: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(|| {
                    let (mut client, mut n) = (first.connect(), 0);
                    while !is_over.load(Ordering::Relaxed) {
                        match &*ask(&mut client, "INCR n") {
                            refused if refused.starts_with("-READONLY") => break,
                            _ => n += 1,
                        }
                    }
                    n
                })
            })
            .collect();
        until("they write", || ask(&mut client, "GET n").len() > 6);
        let target = format!("FAILOVER TO 127.0.0.1 {}", second.port());
        assert_eq!(ask(&mut client, &target), "+OK");
        until_up(&mut client);
        is_over.store(true, Ordering::Relaxed);
        writers.into_iter().map(|writer| writer.join().expect("it writes")).sum()
    });
    let mut promoted = second.connect();
    assert_eq!(ask(&mut promoted, "GET n"), format!("\"{n_acknowledged}\""));
    assert_eq!(ask(&mut promoted, "SET after 1"), "+OK");
    // The third one follows the first one, as before.
    for member in [&first, &third] {
        until("it has the last write", || ask(&mut member.connect(), "EXISTS after") == ":1");
    }
    assert_eq!(field(&mut client, "master_failover_state"), "no-failover");
    assert!(ask(&mut client, "SET a 1").starts_with("-READONLY"));
    for (server, copies) in
        [(&first, "sync_full:2"), (&second, "sync_full:0"), (&second, "sync_partial_ok:1")]
    {
        assert!(ask(&mut server.connect(), "INFO stats").contains(copies));
    }
}

#[test]
fn writes_wait_until_a_failover_is_over_and_go_on_if_it_is_given_up() {
    let (server, replica, mut client) = pair();
    let mut writer = server.connect();
    // It acknowledges nothing meanwhile.
    signal(&replica, "-STOP");
    ask(&mut client, "SET a 1");
    for (options, why) in [(" TIMEOUT 100", ""), ("", "ABORT")] {
        assert_eq!(ask(&mut client, &format!("FAILOVER{options}")), "+OK");
        writer.send(&["SET", "b", "2"]);
        if !why.is_empty() {
            assert_eq!(field(&mut client, "master_failover_state"), "waiting-for-sync");
            assert_eq!(ask(&mut client, "FAILOVER"), "-ERR FAILOVER already in progress.");
            let refused = "-ERR REPLICAOF not allowed while failing over.";
            assert_eq!(ask(&mut client, "REPLICAOF 127.0.0.1 1"), refused);
            assert!(ask(&mut client, "PSYNC ? -1").starts_with("-NOMASTERLINK"));
            assert!(!writer.has_reply());
            assert_eq!(ask(&mut client, "FAILOVER ABORT"), "+OK");
        }
        assert_eq!(writer.receive().text().as_deref(), Some("OK"));
        assert_eq!(field(&mut client, "master_failover_state"), "no-failover");
    }
    signal(&replica, "-CONT");
    assert_eq!(ask(&mut client, "WAIT 1 0"), ":1");
}

#[test]
fn a_target_that_does_not_take_over_ends_the_failover() {
    let (server, replica, mut client) = pair();
    // It refuses the request, because this server does not know the password.
    assert_eq!(ask(&mut replica.connect(), "CONFIG SET requirepass secret"), "+OK");
    assert_eq!(ask(&mut client, "FAILOVER"), "+OK");
    let why = "Failover target rejected psync request";
    until(why, || server.log().contains(why));
    until("it is over", || field(&mut client, "master_failover_state") == "no-failover");
    assert_eq!(ask(&mut client, "SET a 1"), "+OK");
    assert_eq!(field(&mut client, "role"), "master");
}

#[test]
fn a_failover_to_a_target_that_is_silent_can_be_called_off() {
    let (_server, replica, mut client) = pair();
    signal(&replica, "-STOP");
    ask(&mut client, "SET a 1");
    let forced = format!("FAILOVER TO 127.0.0.1 {} FORCE TIMEOUT 1", replica.port());
    assert_eq!(ask(&mut client, &forced), "+OK");
    until("it is forced", || field(&mut client, "master_failover_state") == "failover-in-progress");
    assert_eq!(field(&mut client, "role"), "slave");
    assert!(ask(&mut client, "SET a 1").starts_with("-READONLY"));
    assert_eq!(ask(&mut client, "FAILOVER ABORT"), "+OK");
    assert_eq!(ask(&mut client, "SET a 2"), "+OK");
    assert_eq!(field(&mut client, "role"), "master");
    signal(&replica, "-CONT");
    until_up(&mut replica.connect());
    until("it follows again", || ask(&mut replica.connect(), "GET a") == "\"2\"");
}

#[test]
fn only_a_replica_of_the_same_history_takes_over() {
    let refused = "-ERR PSYNC FAILOVER can't be sent to a master.";
    assert_eq!(ask(&mut serve(&[]).connect(), "PSYNC x 1 FAILOVER"), refused);
    let primary = Primary::new();
    let (_server, mut client, _link) = primary.replica(&[], &[("a", "1")]);
    let other = "0".repeat(40);
    let refused = "-ERR PSYNC FAILOVER replid must match my replid.";
    assert_eq!(ask(&mut client, &format!("PSYNC {other} 1 FAILOVER")), refused);
    assert_eq!(field(&mut client, "role"), "slave");
}

#[test]
fn what_cannot_be_is_refused() {
    let (_server, replica, mut client) = pair();
    let port = replica.port();
    for (line, expected) in [
        ("FAILOVER TO 127.0.0.1 1".to_owned(), "-ERR FAILOVER target HOST and PORT is not a replica."),
        (
            format!("FAILOVER TO 127.0.0.1 {port} FORCE"),
            "-ERR FAILOVER with force option requires both a timeout and target HOST and IP.",
        ),
        ("FAILOVER ABORT".to_owned(), "-ERR No failover in progress."),
    ] {
        assert_eq!(ask(&mut client, &line), expected, "{line}");
    }
    let refused = "-ERR FAILOVER is not valid when server is a replica.";
    assert_eq!(ask(&mut replica.connect(), "FAILOVER"), refused);
}
