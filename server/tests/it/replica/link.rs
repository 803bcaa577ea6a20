//! The link itself: the handshake, copies whole and broken, the stream, and how it goes on after a break.

use std::thread;

use super::played::{ID, Link, MARK, Primary, field, snapshot, until_says, until_up, wire};
use crate::support::{
    Client, Server,
    crowd::{ask, until},
    home::Home,
};

#[test]
fn a_copy_comes_with_its_length_or_with_a_mark_at_its_end() {
    for is_marked in [false, true] {
        let (primary, server) = (Primary::new(), Server::start(&[]));
        let mut client = server.connect();
        ask(&mut client, "SET old 1");
        primary.adopt(&mut client);
        let (mut link, words) = primary.greet();
        assert_eq!(words, "PSYNC ? -1");
        let copy = snapshot(&[("a", "1"), ("b", "two")]);
        match is_marked {
            false => link.copy(&copy, 77),
            true => {
                link.say(format!("+FULLRESYNC {ID} 77\r\n\n\n$EOF:{MARK}\r\n").as_bytes());
                link.say(&copy);
                link.say(MARK.as_bytes());
            }
        }
        link.await_ack(77);
        assert_eq!(ask(&mut client, "MGET a b old"), "[\"1\" \"two\" (nil)]");
        let n = link.stream("SET a 2");
        until_says(&mut client, "GET a", "\"2\"");
        until("it is counted", || field(&mut client, "slave_repl_offset") == (77 + n).to_string());
        assert_eq!(field(&mut client, "master_replid"), ID);
    }
}

/// A primary without writes is at 0, and whoever compares offsets must find the replica there, too.
#[test]
fn a_copy_of_a_primary_without_writes_is_at_its_offset() {
    let primary = Primary::new();
    let (_server, mut client, mut link) = primary.replica(&[], &[("a", "1")]);
    let offsets = |client: &mut Client| {
        ["slave_repl_offset", "slave_read_repl_offset", "master_repl_offset"].map(|name| field(client, name))
    };
    assert_eq!(offsets(&mut client), ["0", "0", "0"]);
    let n = link.stream("SET a 2").to_string();
    until("it is counted", || offsets(&mut client) == [n.as_str(); 3]);
}

#[test]
fn it_introduces_itself_as_replicas_do() {
    let primary = Primary::new();
    let server = Server::start(&[
        "--masteruser",
        "u",
        "--masterauth",
        "p",
        "--replica-announce-ip",
        "host.example",
        "--replica-announce-port",
        "7000",
    ]);
    primary.adopt(&mut server.connect());
    let mut link = primary.accept();
    assert_eq!(link.read(), "PING");
    link.say(b"-NOAUTH Authentication required.\r\n");
    for expected in [
        "AUTH u p",
        "REPLCONF listening-port 7000",
        "REPLCONF ip-address host.example",
        "REPLCONF capa eof capa psync2",
        "REPLCONF version 9.0.0",
    ] {
        assert_eq!(link.read(), expected);
        link.say(if expected.contains("version") { b"-ERR Unrecognized\r\n" } else { b"+OK\r\n" });
    }
    assert_eq!(link.read(), "PSYNC ? -1");
}

#[test]
fn the_link_comes_from_the_configured_address() {
    let primary = Primary::new();
    let server = Server::start(&["--bind-source-addr", "127.0.0.2"]);
    let mut client = server.connect();
    primary.adopt(&mut client);
    assert_eq!(primary.accept().peer().ip().to_string(), "127.0.0.2");
    assert_eq!(ask(&mut client, "CONFIG SET bind-source-addr ::1"), "+OK");
    until("the address does not fit", || {
        server.log().contains("bind-source-addr '::1' cannot reach 127.0.0.1")
    });
    // The link is tried again.
    assert_eq!(client.command(&["CONFIG", "SET", "bind-source-addr", ""]).to_string(), "+OK");
    assert_eq!(primary.accept().peer().ip().to_string(), "127.0.0.1");
}

#[test]
fn a_primary_that_refuses_is_asked_again_and_the_log_says_why() {
    let (primary, server) = (Primary::new(), Server::start(&["--masterauth", "wrong"]));
    let mut client = server.connect();
    ask(&mut client, "SET own 1");
    primary.adopt(&mut client);
    let mut link = primary.accept();
    link.read();
    link.say(b"+PONG\r\n");
    assert_eq!(link.read(), "AUTH wrong");
    link.say(b"-WRONGPASS invalid username-password pair\r\n");
    until("the reason is logged", || server.log().contains("Unable to AUTH to MASTER: -WRONGPASS"));
    for (reply, why) in [
        (
            "-NOMASTERLINK Can't SYNC while not connected with my master\r\n",
            "Master is currently unable to PSYNC",
        ),
        ("+junk\r\n-ERR nothing\r\n", "MASTER aborted replication with an error: ERR nothing"),
        ("+CONTINUE\r\n", "a stream that was not begun"),
    ] {
        let (mut link, _) = primary.greet();
        link.say(reply.as_bytes());
        link.await_close();
        until(why, || server.log().contains(why));
    }
    assert_eq!(field(&mut client, "master_link_status"), "down");
    assert_eq!(ask(&mut client, "GET own"), "\"1\"");
}

#[test]
fn a_primary_that_knows_only_sync_sends_a_copy_for_each_link() {
    let (primary, server) = (Primary::new(), Server::start(&[]));
    let mut client = server.connect();
    primary.adopt(&mut client);
    let mut histories = Vec::new();
    for value in ["1", "2"] {
        let (mut link, _) = primary.greet();
        link.say(b"-ERR unknown command 'PSYNC'\r\n");
        assert_eq!(link.read(), "SYNC");
        let copy = snapshot(&[("a", value)]);
        link.say(format!("\n${}\r\n", copy.len()).as_bytes());
        link.say(&copy);
        until_up(&mut client);
        assert_eq!(ask(&mut client, "GET a"), format!("\"{value}\""));
        let n = link.stream(&format!("SET b {value}"));
        until_says(&mut client, "GET b", &format!("\"{value}\""));
        assert_eq!(field(&mut client, "slave_repl_offset"), n.to_string());
        histories.push(field(&mut client, "master_replid"));
        ask(&mut client, "CLIENT KILL TYPE master");
        // It would take an acknowledgement for a command, and answer it.
        let said = link.try_read();
        assert!(said.is_err(), "{said:?}");
    }
    assert_ne!(histories[0], histories[1]);
    assert!(server.log().contains("Retrying with SYNC..."), "{}", server.log());
}

/// Breaks the copy off at a place, or damages it, and returns the replica that has lost its link.
fn broken(mode: &str, send: impl FnOnce(&mut Link, &[u8])) -> (Server, Primary) {
    let (primary, server) = (Primary::new(), Server::start(&["--repl-diskless-load", mode]));
    let mut client = server.connect();
    ask(&mut client, "SET old 1");
    primary.adopt(&mut client);
    let (mut link, _) = primary.greet();
    send(&mut link, &snapshot(&[("new", "2")]));
    drop(link);
    let ends = ["Connection with master lost", " failed at byte "];
    until("the link has ended", || ends.iter().any(|end| server.log().contains(end)));
    until("the server serves", || !ask(&mut client, "GET old").starts_with("-LOADING"));
    (server, primary)
}

#[test]
fn a_copy_that_breaks_off_leaves_the_data_that_the_mode_promises() {
    thread::scope(|scope| {
        for (mode, left) in [("disabled", "\"1\""), ("swapdb", "\"1\""), ("flush-before-load", "(nil)")] {
            for cut in [0, 9, 14, 20] {
                scope.spawn(move || {
                    let (server, primary) = broken(mode, |link, copy| {
                        link.say(format!("+FULLRESYNC {ID} 5\r\n${}\r\n", copy.len()).as_bytes());
                        link.say(&copy[..cut]);
                    });
                    let mut client = server.connect();
                    assert_eq!(ask(&mut client, "GET old"), left, "{mode}, cut at {cut}");
                    // The next copy is whole.
                    let (mut link, words) = primary.greet();
                    assert_eq!(words, "PSYNC ? -1");
                    link.copy(&snapshot(&[("new", "2")]), 5);
                    link.await_ack(5);
                    assert_eq!(ask(&mut client, "MGET old new"), "[(nil) \"2\"]", "{mode}, cut at {cut}");
                });
            }
        }
    });
}

#[test]
fn a_damaged_copy_is_not_served() {
    for (mode, left) in [("disabled", "(nil)"), ("swapdb", "\"1\"")] {
        let (server, _primary) = broken(mode, |link, copy| {
            let damaged = [&copy[..12], &[0x7f], &copy[13..]].concat();
            link.copy(&damaged, 5);
            link.await_close();
        });
        assert_eq!(ask(&mut server.connect(), "MGET old new"), format!("[{left} (nil)]"), "{mode}");
        assert!(server.log().contains(" failed at byte "), "{}", server.log());
    }
}

#[test]
fn an_announced_length_takes_no_memory_before_its_bytes_come() {
    let (server, _primary) = broken("swapdb", |link, _| {
        link.say(format!("+FULLRESYNC {ID} 5\r\n$4294967296\r\nREDIS0010").as_bytes());
    });
    let mut client = server.connect();
    let peak: u64 = field(&mut client, "used_memory_peak").parse().expect("a number");
    assert!(peak < 1 << 30, "{peak}");
    assert_eq!(ask(&mut client, "GET old"), "\"1\"");
}

#[test]
fn half_a_transaction_is_dropped_and_comes_again() {
    let primary = Primary::new();
    let (_server, mut client, mut link) = primary.replica(&[], &[("a", "1")]);
    let n = link.stream("INCR a") + link.stream("SELECT 3");
    link.await_ack(n);
    link.say(&[wire("MULTI"), wire("SET b 1"), b"*2\r\n$3\r\nDE".to_vec()].concat());
    until("it has arrived", || {
        field(&mut client, "slave_read_repl_offset").parse::<usize>().is_ok_and(|read| read > n)
    });
    assert_eq!(field(&mut client, "slave_repl_offset"), n.to_string());
    drop(link);
    let (mut link, words) = primary.greet();
    assert_eq!(words, format!("PSYNC {ID} {}", n + 1));
    link.say(b"+CONTINUE\r\n");
    let whole = [wire("MULTI"), wire("SET b 1"), wire("SET c 2"), wire("EXEC")].concat();
    link.say(&whole);
    link.await_ack(n + whole.len());
    // The selected database was kept, too.
    ask(&mut client, "SELECT 3");
    assert_eq!(ask(&mut client, "MGET b c"), "[\"1\" \"2\"]");
    assert_eq!(ask(&mut client, "DBSIZE"), ":2");
}

#[test]
fn a_new_name_of_the_history_is_used_from_then_on() {
    let primary = Primary::new();
    let (_server, mut client, mut link) = primary.replica(&[], &[]);
    let n = link.stream("SET a 1");
    link.await_ack(n);
    drop(link);
    let other = "a".repeat(40);
    let (mut link, _) = primary.greet();
    link.say(format!("+CONTINUE {other}\r\n").as_bytes());
    until_up(&mut client);
    assert_eq!(field(&mut client, "master_replid"), other);
    let more = link.stream("SET a 2");
    link.await_ack(n + more);
    drop(link);
    assert_eq!(primary.greet().1, format!("PSYNC {other} {}", n + more + 1));
}

#[test]
fn a_damaged_stream_ends_the_link_and_only_a_copy_mends_it() {
    let primary = Primary::new();
    let (server, mut client, mut link) = primary.replica(&[], &[("a", "1")]);
    link.say(b"*2\r\njunk\r\n");
    link.await_close();
    let (mut link, words) = primary.greet();
    assert_eq!(words, "PSYNC ? -1");
    link.copy(&snapshot(&[("a", "2")]), 0);
    link.await_ack(0);
    assert_eq!(ask(&mut client, "GET a"), "\"2\"");
    until("the reason is logged", || server.log().contains("the stream is damaged"));
}

#[test]
fn it_says_how_far_it_is_when_it_is_asked_and_once_a_second() {
    let primary = Primary::new();
    let (_server, _client, mut link) = primary.replica(&[], &[]);
    let n = link.stream("SET a 1") + link.stream("REPLCONF GETACK *");
    link.await_ack(n);
    link.say(b"\n\n\n");
    // Empty lines count.
    let more = link.stream("PING");
    link.await_ack(n + 3 + more);
}

#[test]
fn an_error_reply_to_the_primary_is_counted_and_the_stream_goes_on() {
    let primary = Primary::new();
    let (server, mut client, mut link) = primary.replica(&[], &[("a", "text")]);
    let n = link.stream("INCR a") + link.stream("NOSUCH a") + link.stream("SET b 1");
    link.await_ack(n);
    assert_eq!(ask(&mut client, "MGET a b"), "[\"text\" \"1\"]");
    assert_eq!(field(&mut client, "unexpected_error_replies"), "2");
    assert!(server.log().contains("== CRITICAL == This replica is sending an error to its master"));
}

/// An error reply to the primary ends a replica that refuses clients' writes, if the configuration says so.
#[test]
fn an_error_reply_to_the_primary_ends_the_server_if_that_is_wanted() {
    for (behavior, is_read_only, ends) in [
        ("panic", "yes", true),
        ("panic-on-replicas", "yes", true),
        ("panic", "no", false),
        ("ignore", "yes", false),
    ] {
        let primary = Primary::new();
        let args = ["--propagation-error-behavior", behavior, "--replica-read-only", is_read_only];
        let (mut server, mut client, mut link) = primary.replica(&args, &[("a", "1")]);
        link.stream("LPUSH a x");
        link.stream("SET after 1");
        if ends {
            assert!(!server.await_end().success());
            let log = server.log();
            assert!(log.contains("== CRITICAL == This replica is sending an error to its master"), "{log}");
            assert!(log.contains("This replica panicked sending an error to its master"), "{log}");
        } else {
            until_says(&mut client, "GET after", "\"1\"");
            assert_eq!(field(&mut client, "unexpected_error_replies"), "1");
        }
    }
}

#[test]
fn a_database_that_is_not_there_ends_the_link() {
    let primary = Primary::new();
    let (server, _client, mut link) = primary.replica(&["--databases", "2"], &[]);
    link.stream("SELECT 2");
    link.stream("SET a 1");
    link.await_close();
    until("the reason is logged", || server.log().contains("the primary uses database 2, and there are 2"));
}

#[test]
fn the_append_only_file_has_the_copy_and_the_stream() {
    let (home, primary) = (Home::new(), Primary::new());
    let mut server = home.serve(&[]);
    let mut client = server.connect();
    ask(&mut client, "SET old 1");
    primary.adopt(&mut client);
    let (mut link, _) = primary.greet();
    link.copy(&snapshot(&[("a", "1")]), 0);
    let whole = [wire("MULTI"), wire("INCR a"), wire("SET b 2"), wire("EXEC")].concat();
    link.say(&whole);
    link.await_ack(whole.len());
    let n = whole.len() + link.stream("SET c 3");
    link.await_fack(n);
    assert_eq!(ask(&mut client, "REPLICAOF NO ONE"), "+OK");
    assert_eq!(ask(&mut client, "SET d 4"), "+OK");
    server.kill();
    let server = home.serve(&[]);
    assert_eq!(ask(&mut server.connect(), "MGET old a b c d"), "[(nil) \"2\" \"2\" \"3\" \"4\"]");
}

#[test]
fn a_client_that_is_killed_is_the_link_which_comes_again() {
    let primary = Primary::new();
    let (_server, mut client, mut link) = primary.replica(&[], &[]);
    let n = link.stream("SET a 1");
    link.await_ack(n);
    let listed = ask(&mut client, "CLIENT LIST TYPE master");
    assert!(listed.contains(" flags=M ") && listed.contains(&format!(":{}", primary.port())), "{listed}");
    assert!(!ask(&mut client, "CLIENT LIST TYPE normal").contains(" flags=M "));
    assert_eq!(ask(&mut client, "CLIENT KILL TYPE master"), ":1");
    link.await_close();
    assert_eq!(primary.greet().1, format!("PSYNC {ID} {}", n + 1));
}

#[test]
fn a_primary_that_is_silent_is_given_up() {
    let primary = Primary::new();
    let (server, _client, mut link) = primary.replica(&["--repl-timeout", "1"], &[]);
    link.await_close();
    let why = "MASTER timeout: no data nor PING received...";
    until(why, || server.log().contains(why));
}
