//! The effects of a panic in a command. Before its first change it is an error, and after it the end of the
//! server.

use crate::support::{
    Server,
    crowd::{ask, crowd, fill_set, laid_out, tell, until},
};

const INTERNAL_ERROR: &str = "-ERR internal error in 'debug|panic-before-change', see the server's log";

#[test]
fn a_panic_before_a_change_is_an_error_and_no_more() {
    for layout in [(1, 1), (2, 1024)] {
        let server = laid_out(layout);
        let mut client = server.connect();
        assert_eq!(ask(&mut client, "SET key value"), "+OK");
        for _ in 0..3 {
            assert_eq!(ask(&mut client, "DEBUG PANIC-BEFORE-CHANGE key"), INTERNAL_ERROR);
            assert_eq!(ask(&mut client, "GET key"), "\"value\"");
            assert!(ask(&mut client, "APPEND other x").starts_with(':'));
        }
        assert_eq!(ask(&mut server.connect(), "GET key"), "\"value\"");
        // The line is written when nothing is held any more, which may be after the reply.
        until("the log tells of it", || server.log_tail().contains("panicked before it changed anything"));
    }
}

#[test]
fn a_panic_in_a_pipeline_leaves_the_other_replies_in_their_places() {
    let server = laid_out((2, 16));
    let mut client = server.connect();
    for line in [["SET", "a", "1"], ["DEBUG", "PANIC-BEFORE-CHANGE", "a"], ["SET", "a", "2"]] {
        client.send(&line);
    }
    client.send(&["GET", "a"]);
    let replies: Vec<String> = (0..4).map(|_| client.receive().to_string()).collect();
    assert_eq!(replies, ["+OK", INTERNAL_ERROR, "+OK", "\"2\""]);
}

/// The error used to be sent to a client that wanted no reply.
#[test]
fn a_panic_is_not_answered_to_a_client_that_skips_the_reply() {
    let server = laid_out((2, 16));
    let mut client = server.connect();
    for line in ["CLIENT REPLY SKIP", "DEBUG PANIC-BEFORE-CHANGE key", "ECHO next"] {
        tell(&mut client, line);
    }
    assert_eq!(client.receive().text().as_deref(), Some("next"));
    server.stop();
}

#[test]
fn a_panic_before_a_change_ends_the_transaction_it_is_in() {
    let server = laid_out((2, 16));
    let mut client = server.connect();
    assert_eq!(ask(&mut client, "SET key value"), "+OK");
    assert_eq!(ask(&mut client, "WATCH key"), "+OK");
    assert_eq!(ask(&mut client, "MULTI"), "+OK");
    assert_eq!(ask(&mut client, "GET key"), "+QUEUED");
    assert_eq!(ask(&mut client, "DEBUG PANIC-BEFORE-CHANGE key"), "+QUEUED");
    let reply = ask(&mut client, "EXEC");
    assert!(reply.contains("-ERR internal error in"), "{reply}");
    // The session is as after any EXEC, and the shards are free.
    assert_eq!(ask(&mut client, "EXEC"), "-ERR EXEC without MULTI");
    assert!(ask(&mut client, "CLIENT INFO").contains(" watch=0 "));
    assert_eq!(ask(&mut client, "SET key again"), "+OK");
    assert_eq!(ask(&mut server.connect(), "GET key"), "\"again\"");
}

#[test]
fn panics_among_delegated_commands_hurt_nobody_else() {
    const ROUNDS: usize = 60;
    for layout in [(2, 1), (8, 1), (8, 16)] {
        let server = laid_out(layout);
        crowd(&server, 8, |id, client| {
            for round in 0..ROUNDS {
                match id {
                    0 => assert_eq!(ask(client, "DEBUG PANIC-BEFORE-CHANGE counter"), INTERNAL_ERROR),
                    1 => {
                        client.send(&["MULTI"]);
                        client.send(&["MGET", "counter", "other"]);
                        client.send(&["DEBUG", "PANIC-BEFORE-CHANGE", "other"]);
                        client.send(&["EXEC"]);
                        let replies: Vec<String> = (0..4).map(|_| client.receive().to_string()).collect();
                        assert!(replies[3].contains("-ERR internal error in"), "{replies:?}");
                    }
                    2 => assert_eq!(ask(client, "MSET m1 v m2 v m3 v"), "+OK"),
                    _ => {
                        for _ in 0..10 {
                            client.send(&["INCR", "counter"]);
                        }
                        client.send(&["INCR", &format!("own{id}")]);
                        let last = (0..11).map(|_| client.receive()).last().expect("eleven replies");
                        assert_eq!(last.integer(), Some(round as i64 + 1));
                    }
                }
            }
        });
        assert_eq!(ask(&mut server.connect(), "GET counter"), format!("\"{}\"", 5 * 10 * ROUNDS));
    }
}

/// Half a transaction must not be seen: writes before the panic cannot be undone.
#[test]
fn a_panic_in_a_transaction_that_has_written_ends_the_process() {
    let mut server = laid_out((2, 16));
    let mut client = server.connect();
    assert_eq!(ask(&mut client, "MULTI"), "+OK");
    assert_eq!(ask(&mut client, "SET written half"), "+QUEUED");
    assert_eq!(ask(&mut client, "DEBUG PANIC-BEFORE-CHANGE key"), "+QUEUED");
    assert!(client.try_command(&["EXEC"]).is_err());
    assert_stopped_by_panic(&mut server);
}

#[test]
fn a_panic_after_a_change_ends_the_process_and_says_why() {
    for layout in [(1, 1), (8, 1024)] {
        let mut server = laid_out(layout);
        let mut client = server.connect();
        assert_eq!(ask(&mut client, "SET key value"), "+OK");
        assert!(client.try_command(&["DEBUG", "PANIC-AFTER-CHANGE", "key"]).is_err());
        assert_stopped_by_panic(&mut server);
    }
}

fn assert_stopped_by_panic(server: &mut Server) {
    assert!(!server.await_end().success());
    let log = server.log();
    assert!(log.contains("A command panicked after it had begun to change its shard (DEBUG PANIC-"), "{log}");
    assert!(log.contains("stopping rather than serve it"), "{log}");
}

/// A panic in a command without a hold used to end its thread. The clients of the thread waited for ever.
#[test]
fn a_panic_in_a_command_without_keys_is_an_error() {
    let server = Server::start(&["--enable-debug-command", "yes", "--io-threads", "1"]);
    let (mut client, mut other) = (server.connect(), server.connect());
    for _ in 0..3 {
        let reply = client.command(&["DEBUG", "PANIC-WITHOUT-KEYS"]);
        assert_eq!(
            reply.to_string(),
            "-ERR internal error in 'debug|panic-without-keys', see the server's log"
        );
        assert_eq!(client.command(&["PING"]).to_string(), "+PONG");
        assert_eq!(other.command(&["SET", "key", "value"]).to_string(), "+OK");
    }
    server.stop();
}

/// A panic while pinning offloaded values used to leave them pinned, or to end the server.
#[test]
fn a_panic_while_pinning_is_an_error_and_pins_nothing() {
    for layout in [(1, 1), (2, 16)] {
        let server = laid_out(layout);
        let (mut client, mut writer) = (server.connect(), server.connect());
        fill_set(&mut client, "big", 12_000);
        for round in 0..3 {
            assert_eq!(ask(&mut client, "DEBUG PANIC-WHILE-PINNING"), "+OK");
            assert_eq!(
                ask(&mut client, "SUNIONSTORE all big other"),
                "-ERR internal error in 'sunionstore', see the server's log"
            );
            // Commands that write the keys do not wait for ever.
            assert_eq!(ask(&mut writer, &format!("SADD big new-{round}")), ":1");
            assert_eq!(ask(&mut writer, &format!("SADD other new-{round}")), ":1");
        }
        assert_eq!(ask(&mut client, "SUNIONSTORE all big other"), ":12003");
    }
}

/// A panic while storing the result of offloaded work used to leave the values pinned. Commands that wrote
/// them waited for ever.
#[test]
fn a_panic_while_unpinning_is_an_error_and_leaves_nothing_pinned() {
    for layout in [(1, 1), (2, 16)] {
        let server = laid_out(layout);
        let (mut client, mut writer) = (server.connect(), server.connect());
        let members: Vec<String> = (0..12_000).map(|member| member.to_string()).collect();
        client.command(&[&["SADD".to_owned(), "big".to_owned()], &members[..]].concat());
        for round in 0..3 {
            assert_eq!(ask(&mut client, "DEBUG PANIC-WHILE-UNPINNING"), "+OK");
            tell(&mut client, "SUNIONSTORE all big other");
            // Commands of the same pipeline run all the same.
            tell(&mut client, "EXISTS all");
            assert_eq!(
                client.receive().to_string(),
                "-ERR internal error in 'sunionstore', see the server's log"
            );
            assert_eq!(client.receive().to_string(), ":0");
            assert_eq!(ask(&mut writer, &format!("SADD big new-{round}")), ":1");
            assert_eq!(ask(&mut writer, &format!("SADD other new-{round}")), ":1");
        }
        assert_eq!(ask(&mut client, "SUNIONSTORE all big other"), ":12003");
    }
}
