//! The view of a replica's clients.

use std::{
    fs,
    process::{Command, Stdio},
    thread,
};

use super::played::{Primary, field, snapshot, until_says, until_up, wire};
use crate::support::{
    Client, Port, Server,
    crowd::{ask, tell, until},
};

const READ_ONLY: &str = "-READONLY You can't write against a read only replica.";

#[test]
fn writes_of_clients_are_refused_wherever_they_stand() {
    let primary = Primary::new();
    let (_server, mut client, _link) = primary.replica(&[], &[("a", "1")]);
    for line in ["SET a 2", "DEL a", "FLUSHALL", "BLPOP l 0", "GETEX a PERSIST", "SWAPDB 0 1"] {
        assert_eq!(ask(&mut client, line), READ_ONLY, "{line}");
    }
    let eval = client.command(&["EVAL", "return redis.call('SET', KEYS[1], 'x')", "1", "a"]).to_string();
    assert!(eval.contains("READONLY You can't write against a read only replica."), "{eval}");
    let declared = client.command(&["EVAL", "#!lua\nreturn redis.call('GET', 'a')", "0"]).to_string();
    assert_eq!(declared, READ_ONLY);
    let reads = client.command(&["EVAL", "#!lua flags=no-writes\nreturn redis.call('GET', 'a')", "0"]);
    assert_eq!(reads.to_string(), "\"1\"");
    assert_eq!(ask(&mut client, "MULTI"), "+OK");
    assert_eq!(ask(&mut client, "SET a 2"), READ_ONLY);
    assert!(ask(&mut client, "EXEC").starts_with("-EXECABORT"));
    assert_eq!(ask(&mut client, "PUBLISH channel message"), ":0");
    assert!(ask(&mut client, "WAIT 1 0").starts_with("-ERR WAIT cannot be used with replica instances."));
    assert_eq!(ask(&mut client, "GET a"), "\"1\"");
    assert_eq!(ask(&mut client, "CONFIG SET replica-read-only no"), "+OK");
    assert_eq!(ask(&mut client, "SET a 3"), "+OK");
}

/// The role may change while a transaction is queued.
#[test]
fn a_transaction_that_was_queued_before_the_role_is_refused() {
    let (primary, server) = (Primary::new(), Server::start(&[]));
    let (mut client, mut other) = (server.connect(), server.connect());
    ask(&mut client, "MULTI");
    ask(&mut client, "SET a 1");
    primary.adopt(&mut other);
    assert_eq!(
        ask(&mut client, "EXEC"),
        "-EXECABORT Transaction discarded because of: READONLY You can't write against a read only replica."
    );
    assert_eq!(ask(&mut other, "EXISTS a"), ":0");
}

#[test]
fn stale_data_is_served_or_not_as_configured() {
    let primary = Primary::new();
    let (_server, mut client, link) = primary.replica(&[], &[("a", "1")]);
    drop(link);
    // This link stays in its handshake.
    let _next = primary.accept();
    until("the link is down", || field(&mut client, "master_link_status") == "down");
    assert_eq!(ask(&mut client, "GET a"), "\"1\"");
    assert_eq!(ask(&mut client, "CONFIG SET replica-serve-stale-data no"), "+OK");
    assert_eq!(
        ask(&mut client, "GET a"),
        "-MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'."
    );
    let script = "#!lua flags=allow-stale,no-writes\nreturn redis.call('GET', 'a')";
    let eval = client.command(&["EVAL", script, "0"]).to_string();
    assert!(eval.contains("Can not execute the command on a stale replica"), "{eval}");
    assert!(ask(&mut client, "INFO replication").contains("role:slave"));
    assert_eq!(ask(&mut client, "REPLICAOF NO ONE"), "+OK");
    assert_eq!(ask(&mut client, "GET a"), "\"1\"");
}

#[test]
fn the_role_and_the_link_are_reported() {
    let (primary, server) = (Primary::new(), Server::start(&["--replica-priority", "7"]));
    let mut client = server.connect();
    assert_eq!(ask(&mut client, "ROLE"), "[\"master\" :0 []]");
    primary.adopt(&mut client);
    let port = primary.port();
    assert_eq!(
        ask(&mut client, &format!("REPLICAOF 127.0.0.1 {port}")),
        "+OK Already connected to specified master"
    );
    let (mut link, _) = primary.greet();
    assert_eq!(ask(&mut client, "ROLE"), format!("[\"slave\" \"127.0.0.1\" :{port} \"handshake\" :-1]"));
    link.say(format!("+FULLRESYNC {} 9\r\n$100\r\n", super::played::ID).as_bytes());
    until("a copy comes", || field(&mut client, "master_sync_in_progress") == "1");
    assert_eq!(field(&mut client, "master_sync_left_bytes"), "100");
    drop(link);
    let (mut link, _) = primary.greet();
    link.copy(&super::played::snapshot(&[]), 9);
    until_up(&mut client);
    assert_eq!(ask(&mut client, "ROLE"), format!("[\"slave\" \"127.0.0.1\" :{port} \"connected\" :9]"));
    let info = client.command(&["INFO", "replication"]).text().expect("INFO answers text");
    let names: Vec<&str> = info.lines().skip(1).filter_map(|line| line.split(':').next()).collect();
    assert_eq!(
        names[..12],
        [
            "role",
            "master_host",
            "master_port",
            "master_link_status",
            "master_last_io_seconds_ago",
            "master_sync_in_progress",
            "slave_read_repl_offset",
            "slave_repl_offset",
            "slave_priority",
            "slave_read_only",
            "replica_announced",
            "connected_slaves",
        ]
    );
    assert_eq!(field(&mut client, "slave_priority"), "7");
    assert_eq!(ask(&mut client, "REPLICAOF NO ONE"), "+OK");
    assert_eq!(field(&mut client, "role"), "master");
    assert_eq!(field(&mut client, "slave_priority"), "");
}

#[test]
fn a_transaction_of_the_stream_is_seen_whole_or_not_at_all() {
    let primary = Primary::new();
    let (server, mut client, mut link) = primary.replica(&["--io-threads", "2"], &[("a", "0"), ("b", "0")]);
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let mut reader = server.connect();
                let mut last = 0;
                while last < 500 {
                    let reply = ask(&mut reader, "MGET a b");
                    let values: Vec<&str> = reply.split('"').skip(1).step_by(2).collect();
                    assert_eq!(values[0], values[1]);
                    let value: u64 = values[0].parse().expect("a number");
                    assert!(value >= last, "{value} after {last}");
                    last = value;
                }
            });
        }
        for n in 1..=500 {
            let unit =
                [wire("MULTI"), wire(&format!("SET a {n}")), wire(&format!("SET b {n}")), wire("EXEC")];
            link.say(&unit.concat());
        }
    });
    until_says(&mut client, "GET a", "\"500\"");
}

#[test]
fn the_stream_wakes_readers_ends_transactions_and_is_told_to_observers() {
    let primary = Primary::new();
    let (server, mut client, mut link) = primary.replica(&["--notify-keyspace-events", "KEA"], &[("a", "1")]);
    let (mut reader, mut subscriber, mut monitor) = (server.connect(), server.connect(), server.connect());
    assert_eq!(ask(&mut client, "WATCH a"), "+OK");
    ask(&mut subscriber, "PSUBSCRIBE __keyevent@0__:set news");
    subscriber.receive();
    assert_eq!(ask(&mut monitor, "MONITOR"), "+OK");
    tell(&mut reader, "XREAD BLOCK 0 STREAMS s $");
    until("it waits", || field(&mut client, "blocked_clients") == "1");
    let n = link.stream("SET a 2") + link.stream("XADD s 1-1 f v") + link.stream("PUBLISH news hello");
    link.await_ack(n);
    assert!(reader.receive().to_string().contains("1-1"));
    assert!(subscriber.receive().to_string().contains("__keyevent@0__:set"));
    assert!(subscriber.receive().to_string().contains("hello"));
    // It is shown as a command of the primary's address.
    let shown = format!("127.0.0.1:{}] \"SET\" \"a\" \"2\"", primary.port());
    until("it is shown", || monitor.receive().to_string().contains(&shown));
    assert_eq!(ask(&mut client, "MULTI"), "+OK");
    assert_eq!(ask(&mut client, "GET a"), "+QUEUED");
    assert_eq!(ask(&mut client, "EXEC"), "(nil-array)");
}

#[test]
fn an_expired_key_is_hidden_from_clients_and_kept_for_the_primary() {
    let primary = Primary::new();
    let (_server, mut client, mut link) = primary.replica(&[], &[]);
    let n = link.stream("SET a 5 PXAT 1") + link.stream("SET b 1 PXAT 1");
    link.await_ack(n);
    assert_eq!(ask(&mut client, "GET a"), "(nil)");
    assert_eq!(ask(&mut client, "EXISTS a b"), ":0");
    assert_eq!(ask(&mut client, "SCAN 0"), "[\"0\" []]");
    assert_eq!(ask(&mut client, "DBSIZE"), ":2");
    // To the primary it is still there.
    let more = link.stream("INCRBY a 3") + link.stream("PERSIST a") + link.stream("DEL b");
    link.await_ack(n + more);
    assert_eq!(ask(&mut client, "GET a"), "\"8\"");
    assert_eq!(ask(&mut client, "DBSIZE"), ":1");
    let all = n + more + link.stream("PEXPIREAT a 1");
    link.await_ack(all);
    assert_eq!(ask(&mut client, "DBSIZE"), ":1");
    // A promoted server removes it by itself.
    assert_eq!(ask(&mut client, "REPLICAOF NO ONE"), "+OK");
    until_says(&mut client, "DBSIZE", ":0");
}

#[test]
fn blocked_clients_are_sent_away_when_the_role_changes() {
    let (primary, server) = (Primary::new(), Server::start(&[]));
    let (mut client, mut popping, mut waiting) = (server.connect(), server.connect(), server.connect());
    tell(&mut popping, "BLPOP l 0");
    tell(&mut waiting, "WAIT 1 0");
    until("they wait", || field(&mut client, "blocked_clients") == "2");
    primary.adopt(&mut client);
    for blocked in [&mut popping, &mut waiting] {
        assert_eq!(
            blocked.receive().to_string(),
            "-UNBLOCKED force unblock from blocking operation, instance state changed (master -> replica?)"
        );
        assert_eq!(blocked.await_close().expect("it closes"), None);
    }
}

/// The words of Sentinel.
#[test]
fn the_role_changes_within_a_transaction_and_is_written_to_the_file() {
    let primary = Primary::new();
    let idle = Server::start(&[]);
    let conf = idle.scratch().join("braid.conf");
    let port = Port::claim();
    fs::write(&conf, format!("bind 127.0.0.1\nport {}\n", port.number()))
        .expect("the folder is the test's own");
    let mut child = Command::new(env!("CARGO_BIN_EXE_braid-server"))
        .arg(&conf)
        .current_dir(idle.scratch())
        .stdout(Stdio::null())
        .spawn()
        .expect("it can be run");
    let connect = || {
        let mut client = None;
        until("it answers", || {
            client = Client::try_connect(port.number()).ok();
            client.is_some()
        });
        client.expect("it has answered")
    };
    let mut client = connect();
    for (primary_is, line) in [
        (format!("127.0.0.1 {}", primary.port()), format!("replicaof 127.0.0.1 {}\n", primary.port())),
        ("NO ONE".to_owned(), String::new()),
    ] {
        for line in [
            "MULTI".to_owned(),
            format!("SLAVEOF {primary_is}"),
            "CONFIG REWRITE".to_owned(),
            "CLIENT KILL TYPE normal".to_owned(),
            "CLIENT KILL TYPE pubsub".to_owned(),
        ] {
            ask(&mut client, &line);
        }
        let replies = ask(&mut client, "EXEC");
        assert!(replies.starts_with("[+OK +OK :"), "{replies}");
        let text = fs::read_to_string(&conf).expect("it is there");
        assert_eq!(text.contains("replicaof"), !line.is_empty(), "{text}");
        assert!(text.contains(&line), "{text}");
        client = connect();
    }
    assert_eq!(field(&mut client, "role"), "master");
    tell(&mut client, "SHUTDOWN NOSAVE");
    assert!(child.wait().expect("it is this test's own").success());
}

#[test]
fn a_configuration_makes_a_replica() {
    let primary = Primary::new();
    let place = format!("127.0.0.1 {}", primary.port());
    let server = Server::start(&["--replicaof", "127.0.0.1", &primary.port().to_string()]);
    let (mut link, _) = primary.greet();
    link.copy(&super::played::snapshot(&[("a", "1")]), 0);
    let mut client = server.connect();
    until_up(&mut client);
    assert_eq!(ask(&mut client, "GET a"), "\"1\"");
    assert_eq!(ask(&mut client, "CONFIG GET replicaof"), format!("[\"replicaof\" \"{place}\"]"));
}

/// A save and a load take time, and the primary's units come meanwhile: they would be missing.
#[test]
fn a_replica_that_loads_its_snapshot_again_asks_for_a_copy() {
    let primary = Primary::new();
    let (_server, mut client, mut link) = primary.replica(&["--appendonly", "yes"], &[("a", "1")]);
    let n = link.stream("INCR a");
    link.await_ack(n);
    assert_eq!(ask(&mut client, "DEBUG RELOAD"), "+OK");
    link.await_close();
    let (mut link, words) = primary.greet();
    assert_eq!(words, "PSYNC ? -1");
    link.copy(&snapshot(&[("a", "7")]), 0);
    until_says(&mut client, "GET a", "\"7\"");
    let n = link.stream("INCR a");
    link.await_ack(n);
    assert_eq!(ask(&mut client, "GET a"), "\"8\"");
}

/// Its file has all that it has applied, so it goes on. The shards record while they load.
#[test]
fn a_replica_that_loads_its_append_only_file_again_goes_on() {
    let primary = Primary::new();
    let (_server, mut client, mut link) = primary.replica(&["--appendonly", "yes"], &[("a", "1")]);
    let mut n = link.stream("INCR a");
    link.await_ack(n);
    assert_eq!(ask(&mut client, "DEBUG LOADAOF"), "+OK");
    assert_eq!(ask(&mut client, "GET a"), "\"2\"");
    n += link.stream("INCR a");
    link.await_ack(n);
    assert_eq!(ask(&mut client, "GET a"), "\"3\"");
}

/// The removal would not be in the stream after a promotion, and later commands of the primary still find the
/// key.
#[test]
fn watching_an_expired_key_does_not_remove_it_from_a_replica() {
    let primary = Primary::new();
    let (_server, mut client, mut link) = primary.replica(&[], &[]);
    let n = link.stream("SET a 1 PXAT 1") + link.stream("SET b 1 PX 100000");
    link.await_ack(n);
    assert_eq!(ask(&mut client, "WATCH a"), "+OK");
    for (line, reply) in [("MULTI", "+OK"), ("PING", "+QUEUED"), ("EXEC", "[+PONG]")] {
        assert_eq!(ask(&mut client, line), reply, "it had expired before");
    }
    assert_eq!(ask(&mut client, "WATCH b"), "+OK");
    assert_eq!(ask(&mut client, "DEBUG ADVANCE-TIME 200000"), "+OK");
    for (line, reply) in [("MULTI", "+OK"), ("PING", "+QUEUED"), ("EXEC", "(nil-array)")] {
        assert_eq!(ask(&mut client, line), reply, "it has expired");
    }
    assert_eq!(ask(&mut client, "DBSIZE"), ":2");
    let renamed = link.stream("RENAME a c") + link.stream("APPEND b 1");
    link.await_ack(n + renamed);
    assert_eq!(field(&mut client, "unexpected_error_replies"), "0");
}
