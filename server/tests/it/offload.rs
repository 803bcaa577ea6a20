//! Offloaded work on large values, and its encounters. It meets other databases, commands that wait for it,
//! pauses, killed clients and monitoring clients.
//!
//! `DEBUG HOLD-OFFLOADED` stops such work between its two steps, when the values are pinned.

use std::{
    io::{Read as _, Write as _},
    net::TcpStream,
};

use crate::support::{
    Client, Reply, Server,
    crowd::{ask, await_clients, figure, fill_set, laid_out, n_elements, tell, until},
    encode,
};

const LAYOUTS: [(usize, usize); 4] = [(1, 1), (2, 16), (8, 1), (8, 1024)];
const N_MEMBERS: usize = 12_000;

/// A large set `big`, and a client whose command works on it and has pinned it.
struct Pinned<'a> {
    server: &'a Server,
    control: Client,
    reader: Client,
}

impl<'a> Pinned<'a> {
    /// Sends `command` from a client, and waits until it has pinned its values.
    fn by(server: &'a Server, command: &str) -> Self {
        let mut control = server.connect();
        fill_set(&mut control, "big", N_MEMBERS);
        assert_eq!(ask(&mut control, "DEBUG HOLD-OFFLOADED 1"), "+OK");
        let mut reader = server.connect();
        tell(&mut reader, command);
        await_pinned(&mut control, 1);
        Self { server, control, reader }
    }

    /// Lets the work continue. Returns its reply.
    fn go_on(&mut self) -> Reply {
        assert_eq!(ask(&mut self.control, "DEBUG HOLD-OFFLOADED 0"), "+OK");
        self.reader.receive()
    }
}

fn await_pinned(control: &mut Client, n: usize) {
    until(&format!("{n} commands have pinned their values"), || figure(control, "offloaded_waiting") == n);
}

fn everywhere(scenario: impl Fn(&Server)) {
    for layout in LAYOUTS {
        scenario(&laid_out(layout));
    }
}

fn id_of(client: &mut Client) -> i64 {
    client.command(&["CLIENT", "ID"]).integer().expect("a number")
}

/// Sends a command that must wait, and ends its wait with CLIENT UNBLOCK. Returns the error.
fn unblocked_from(client: &mut Client, id: i64, control: &mut Client, command: &str) -> String {
    tell(client, command);
    until("the command waits", || ask(control, &format!("CLIENT UNBLOCK {id} ERROR")) == ":1");
    client.receive().to_string()
}

fn await_command(control: &mut Client, id: i64, name: &str) {
    until(&format!("client {id} has asked for {name}"), || {
        let list = control.command(&["CLIENT", "LIST", "ID", &id.to_string()]).text().expect("a text");
        list.contains(&format!("cmd={name} "))
    });
}

#[test]
fn a_write_of_a_key_that_is_read_in_another_database_does_not_wait() {
    everywhere(|server| {
        let mut pinned = Pinned::by(server, "SMEMBERS big");
        let mut writer = server.connect();
        assert_eq!(ask(&mut writer, "SELECT 1"), "+OK");
        assert_eq!(ask(&mut writer, "SADD big x"), ":1");
        assert_eq!(n_elements(&pinned.go_on()), N_MEMBERS);
    });
}

#[test]
fn a_write_that_may_concern_several_databases_waits_no_longer_than_the_read() {
    everywhere(|server| {
        let mut pinned = Pinned::by(server, "SMEMBERS big");
        let mut writer = server.connect();
        for command in ["MULTI", "SELECT 1", "SADD big x"] {
            ask(&mut writer, command);
        }
        tell(&mut writer, "EXEC");
        let mut mover = server.connect();
        tell(&mut mover, "MOVE big 2");
        assert_eq!(n_elements(&pinned.go_on()), N_MEMBERS);
        assert_eq!(writer.receive().to_string(), "[+OK :1]");
        assert_eq!(mover.receive().to_string(), ":1");
    });
}

#[test]
fn a_command_that_waits_for_a_pinned_key_can_be_killed_and_unblocked() {
    everywhere(|server| {
        let mut pinned = Pinned::by(server, "SMEMBERS big");
        let mut killed = server.connect();
        let id = id_of(&mut killed);
        tell(&mut killed, "SADD big killed");
        await_command(&mut pinned.control, id, "sadd");
        assert_eq!(ask(&mut pinned.control, &format!("CLIENT KILL ID {id}")), ":1");
        assert_eq!(killed.await_close().expect("the connection ends"), None);

        let mut unblocked = server.connect();
        let id = id_of(&mut unblocked);
        assert_eq!(
            unblocked_from(&mut unblocked, id, &mut pinned.control, "SADD big unblocked"),
            "-UNBLOCKED client unblocked via CLIENT UNBLOCK"
        );
        assert_eq!(ask(&mut unblocked, "PING"), "+PONG");

        assert_eq!(n_elements(&pinned.go_on()), N_MEMBERS);
        let members = "SMISMEMBER big killed unblocked member-7";
        assert_eq!(ask(&mut pinned.control, members), "[:0 :0 :1]");
    });
}

/// A command sent before the end of a connection runs, even if it had to wait. It used to be dropped with all
/// later commands.
#[test]
fn what_waits_for_a_pinned_key_runs_after_its_client_has_left() {
    everywhere(|server| {
        let mut pinned = Pinned::by(server, "SMEMBERS big");
        let pipeline = |member: &str| {
            let mut request = Vec::new();
            encode(&["PING"], &mut request);
            encode(&["SADD", "big", member], &mut request);
            encode(&["INCR", "after"], &mut request);
            request
        };
        let mut half = server.connect();
        let id = id_of(&mut half);
        half.send_raw(&pipeline("half"));
        half.finish_sending();
        await_command(&mut pinned.control, id, "sadd");

        let mut leaver = server.connect();
        let id = id_of(&mut leaver);
        leaver.send_raw(&pipeline("left"));
        await_command(&mut pinned.control, id, "sadd");
        drop(leaver);

        assert_eq!(n_elements(&pinned.go_on()), N_MEMBERS);
        assert_eq!([half.receive(), half.receive()].map(|reply| reply.to_string()), ["+PONG", ":1"]);
        assert!(matches!(half.receive(), Reply::Integer(1 | 2)));
        assert_eq!(half.await_close().expect("the connection ends"), None);
        // The control and the reader: nothing of the other clients remains.
        await_clients(&mut pinned.control, 2);
        assert_eq!(ask(&mut pinned.control, "SMISMEMBER big half left"), "[:1 :1]");
        assert_eq!(ask(&mut pinned.control, "GET after"), "\"2\"");
    });
}

/// An EXEC that was unblocked used to leave its transaction open. All later commands of the client were
/// queued.
#[test]
fn an_exec_that_is_unblocked_ends_its_transaction() {
    everywhere(|server| {
        let mut pinned = Pinned::by(server, "SMEMBERS big");
        let mut unblocked = server.connect();
        let id = id_of(&mut unblocked);
        assert_eq!(ask(&mut unblocked, "WATCH watched"), "+OK");
        assert_eq!(ask(&mut unblocked, "MULTI"), "+OK");
        assert_eq!(ask(&mut unblocked, "SADD big unblocked"), "+QUEUED");
        assert_eq!(
            unblocked_from(&mut unblocked, id, &mut pinned.control, "EXEC"),
            "-EXECABORT Transaction discarded because of: UNBLOCKED client unblocked via CLIENT UNBLOCK"
        );
        assert_eq!(ask(&mut unblocked, "PING"), "+PONG");
        assert_eq!(ask(&mut unblocked, "EXEC"), "-ERR EXEC without MULTI");
        let clients = pinned.control.command(&["INFO", "clients"]).text().expect("a text");
        assert!(clients.contains("total_watched_keys:0"), "{clients}");
        assert_eq!(n_elements(&pinned.go_on()), N_MEMBERS);
        assert_eq!(ask(&mut unblocked, "SISMEMBER big unblocked"), ":0");
    });
}

/// A store that ran again used to count as two commands to CLIENT REPLY SKIP. Its reply came in place of the
/// next one's.
#[test]
fn client_reply_skip_skips_a_store_that_is_done_again() {
    everywhere(|server| {
        let mut control = server.connect();
        fill_set(&mut control, "big", N_MEMBERS);
        assert_eq!(ask(&mut control, "DEBUG HOLD-OFFLOADED 1"), "+OK");
        let mut client = server.connect();
        for line in ["CLIENT REPLY SKIP", "SUNIONSTORE copy big", "ECHO next"] {
            tell(&mut client, line);
        }
        await_pinned(&mut control, 1);
        assert_eq!(ask(&mut control, "FLUSHALL"), "+OK");
        assert_eq!(ask(&mut control, "DEBUG HOLD-OFFLOADED 0"), "+OK");
        assert_eq!(client.receive().text().as_deref(), Some("next"));
    });
}

/// The replies that wait for a killed client's socket are dropped. Replies to commands in progress used to be
/// sent in their place.
#[test]
fn a_killed_client_gets_no_reply_in_place_of_another() {
    const N_READS: usize = 4000;
    const VALUE: usize = 5000;
    everywhere(|server| {
        let mut control = server.connect();
        fill_set(&mut control, "big", N_MEMBERS);
        let value = "x".repeat(VALUE);
        control.command(&["SET", "value", &value]);
        assert_eq!(ask(&mut control, "DEBUG HOLD-OFFLOADED 1"), "+OK");
        let mut reader = TcpStream::connect(("127.0.0.1", server.port())).expect("the server listens");
        let requests = "GET value\r\n".repeat(N_READS) + "SMEMBERS big\r\n";
        reader.write_all(requests.as_bytes()).expect("the server reads");
        await_pinned(&mut control, 1);
        let replies = format!("${VALUE}\r\n{value}\r\n").repeat(N_READS);
        let mut id = None;
        let mut n_sent = 0;
        until("replies wait for the socket", || {
            let list = control.command(&["CLIENT", "LIST"]).text().expect("a text");
            let line = list.lines().find(|line| line.contains("cmd=smembers ")).expect("it is connected");
            let of = |name: &str| line.split(' ').find_map(|field| field.strip_prefix(name)?.parse().ok());
            id = of("id=");
            n_sent = of("tot-net-out=").expect("a number");
            of("omem=").is_some_and(|n_waiting| n_waiting > 0)
        });
        let id = id.expect("a number");
        assert_eq!(ask(&mut control, &format!("CLIENT KILL ID {id}")), ":1");
        // The socket has room again.
        let mut received = vec![0; n_sent];
        reader.read_exact(&mut received).expect("the socket has taken these");
        assert_eq!(ask(&mut control, "DEBUG HOLD-OFFLOADED 0"), "+OK");
        // The connection may be reset.
        let _ = reader.read_to_end(&mut received);
        assert!(replies.as_bytes().starts_with(&received), "something else after {} bytes", received.len());
    });
}

#[test]
fn after_a_pause_of_writes_has_answered_nothing_offloaded_is_stored() {
    everywhere(|server| {
        let mut pinned = Pinned::by(server, "SUNIONSTORE copy big");
        let mut writer = server.connect();
        let id = id_of(&mut writer);
        tell(&mut writer, "SADD big late");
        await_command(&mut pinned.control, id, "sadd");
        fill_set(&mut pinned.control, "other", N_MEMBERS);
        assert_eq!(ask(&mut pinned.control, "CLIENT PAUSE 1000000 WRITE"), "+OK");
        // A read after the store: its reply shows that the store has been tried.
        let mut other = server.connect();
        tell(&mut other, "SMEMBERS other");
        await_pinned(&mut pinned.control, 2);
        assert_eq!(ask(&mut pinned.control, "DEBUG HOLD-OFFLOADED 0"), "+OK");
        assert_eq!(n_elements(&other.receive()), N_MEMBERS);
        until("the store has been tried", || figure(&mut pinned.control, "commands_postponed") >= 1);
        assert_eq!(ask(&mut pinned.control, "EXISTS copy"), ":0");
        assert_eq!(ask(&mut pinned.control, "SISMEMBER big late"), ":0");
        assert_eq!(ask(&mut pinned.control, "CLIENT UNPAUSE"), "+OK");
        assert_eq!(writer.receive().to_string(), ":1");
        let n = pinned.reader.receive().integer().expect("a number") as usize;
        assert!((N_MEMBERS..=N_MEMBERS + 1).contains(&n), "{n}");
        assert_eq!(ask(&mut pinned.control, "SCARD copy"), format!(":{n}"));
    });
}

#[test]
fn after_client_kill_nothing_offloaded_of_the_killed_is_stored() {
    everywhere(|server| {
        let mut pinned = Pinned::by(server, "SUNIONSTORE copy big");
        let id = id_of(&mut pinned.control) + 1;
        assert_eq!(ask(&mut pinned.control, &format!("CLIENT KILL ID {id}")), ":1");
        let mut writer = pinned.server.connect();
        tell(&mut writer, "SADD big late");
        assert_eq!(ask(&mut pinned.control, "DEBUG HOLD-OFFLOADED 0"), "+OK");
        // It waits until the store is over.
        assert_eq!(writer.receive().to_string(), ":1");
        assert_eq!(ask(&mut pinned.control, "EXISTS copy"), ":0");
        assert_eq!(pinned.reader.await_close().expect("the connection ends"), None);
    });
}

/// Returns the words of the next line of MONITOR about the keyspace.
fn shown(monitor: &mut Client) -> String {
    loop {
        let line = monitor.receive().to_string();
        let words = line.split_once("] ").expect("a line of MONITOR").1.replace('"', "");
        let skipped = ["info", "client", "debug"];
        if !skipped.iter().any(|name| words.to_lowercase().starts_with(name)) {
            return words;
        }
    }
}

#[test]
fn monitor_shows_what_was_offloaded_or_waited_once_and_when_it_took_effect() {
    everywhere(|server| {
        let mut monitor = server.connect();
        let mut pinned = Pinned::by(server, "SUNIONSTORE copy big");
        assert_eq!(ask(&mut monitor, "MONITOR"), "+OK");
        let mut writer = server.connect();
        let id = id_of(&mut writer);
        tell(&mut writer, "SADD big late");
        await_command(&mut pinned.control, id, "sadd");
        assert_eq!(ask(&mut pinned.control, "GET before"), "(nil)");
        assert_eq!(pinned.go_on().to_string(), format!(":{N_MEMBERS}"));
        assert_eq!(writer.receive().to_string(), ":1");
        assert_eq!(ask(&mut pinned.control, "GET after"), "(nil)");
        let lines = [(); 4].map(|()| shown(&mut monitor));
        assert_eq!(lines, ["GET before", "SUNIONSTORE copy big", "SADD big late", "GET after"]);
    });
}

#[test]
fn a_store_that_is_done_again_is_shown_and_counted_once() {
    everywhere(|server| {
        let mut monitor = server.connect();
        let mut pinned = Pinned::by(server, "SUNIONSTORE copy big");
        assert_eq!(ask(&mut monitor, "MONITOR"), "+OK");
        assert_eq!(ask(&mut pinned.control, "FLUSHALL"), "+OK");
        assert_eq!(pinned.go_on().to_string(), ":0");
        assert_eq!(ask(&mut pinned.control, "GET after"), "(nil)");
        let lines = [(); 3].map(|()| shown(&mut monitor));
        assert_eq!(lines, ["FLUSHALL", "SUNIONSTORE copy big", "GET after"]);
        let stats = pinned.control.command(&["INFO", "commandstats"]).text().expect("a text");
        assert!(stats.contains("cmdstat_sunionstore:calls=1,"), "{stats}");
    });
}

#[test]
fn a_pipeline_of_large_reads_is_not_postponed_by_a_monitoring_client() {
    const N_READS: usize = 10;
    everywhere(|server| {
        let mut pinned = Pinned::by(server, "SMEMBERS big");
        let mut monitor = server.connect();
        assert_eq!(ask(&mut monitor, "MONITOR"), "+OK");
        for _ in 0..N_READS {
            tell(&mut pinned.reader, "SMEMBERS big");
        }
        assert_eq!(n_elements(&pinned.go_on()), N_MEMBERS);
        for _ in 0..N_READS {
            assert_eq!(n_elements(&pinned.reader.receive()), N_MEMBERS);
        }
        assert_eq!(figure(&mut pinned.control, "commands_postponed"), 0);
        let lines = [(); N_READS].map(|()| shown(&mut monitor));
        assert!(lines.iter().all(|line| line == "SMEMBERS big"), "{lines:?}");
    });
}

#[test]
fn a_panic_while_unpinning_serves_the_writers_that_wait() {
    everywhere(|server| {
        assert_eq!(ask(&mut server.connect(), "DEBUG PANIC-WHILE-UNPINNING"), "+OK");
        let mut pinned = Pinned::by(server, "SUNIONSTORE all big other");
        let mut writer = server.connect();
        let id = id_of(&mut writer);
        tell(&mut writer, "SADD big new");
        await_command(&mut pinned.control, id, "sadd");
        let error = "-ERR internal error in 'sunionstore', see the server's log";
        assert_eq!(pinned.go_on().to_string(), error);
        assert_eq!(writer.receive().to_string(), ":1");
        assert_eq!(ask(&mut writer, "EXISTS all"), ":0");
    });
}

#[test]
fn a_panic_while_unpinning_is_answered_as_the_client_wants_replies() {
    everywhere(|server| {
        let mut client = server.connect();
        fill_set(&mut client, "big", N_MEMBERS);
        assert_eq!(ask(&mut client, "DEBUG PANIC-WHILE-UNPINNING"), "+OK");
        tell(&mut client, "CLIENT REPLY SKIP");
        tell(&mut client, "SUNIONSTORE all big other");
        assert_eq!(ask(&mut client, "EXISTS all"), ":0");
    });
}

/// Whatever a command does to a key that it names in several places, there is one result.
#[test]
fn a_key_that_is_named_twice_is_stored_once() {
    let store = |client: &mut Client, command: &[&str]| {
        let before = figure(client, "commands_offloaded");
        let reply = client.command(command).to_string();
        assert!(figure(client, "commands_offloaded") > before, "{} was not offloaded", command[0]);
        reply
    };
    everywhere(|server| {
        let mut client = server.connect();
        fill_set(&mut client, "big", N_MEMBERS);
        assert_eq!(store(&mut client, &["SORT", "big", "ALPHA", "STORE", "big"]), format!(":{N_MEMBERS}"));
        assert_eq!(ask(&mut client, "LLEN big"), format!(":{N_MEMBERS}"));
        for n in 0..2_000 {
            tell(&mut client, &format!("GEOADD places {} 10 p{n}", n % 20));
        }
        (0..2_000).for_each(|_| drop(client.receive()));
        let search = ["GEORADIUS", "places", "10", "10", "20000", "km", "STORE", "places"];
        assert_eq!(store(&mut client, &search), ":2000");
        assert_eq!(ask(&mut client, "ZCARD places"), ":2000");
        let (first, second) = ("x".repeat(3 << 20), "y".repeat(3 << 20));
        assert_eq!(store(&mut client, &["MSET", "a", &first, "b", "v", "a", &second]), "+OK");
        assert_eq!(ask(&mut client, "STRLEN a"), format!(":{}", 3 << 20));
        assert_eq!(ask(&mut client, "GETRANGE a 0 0"), "\"y\"");
    });
}

#[test]
fn copying_a_large_value_holds_no_shard() {
    everywhere(|server| {
        let mut pinned = Pinned::by(server, "COPY big {big}stored");
        // These keys are in the shard of the copy's source and destination.
        assert_eq!(ask(&mut pinned.control, "SCARD big"), format!(":{N_MEMBERS}"));
        assert_eq!(ask(&mut pinned.control, "SET {big}other x"), "+OK");
        assert_eq!(ask(&mut pinned.control, "EXISTS {big}stored"), ":0");
        assert_eq!(pinned.go_on().to_string(), ":1");
        assert_eq!(ask(&mut pinned.control, "SCARD {big}stored"), format!(":{N_MEMBERS}"));
        // The two keys are independent.
        assert_eq!(ask(&mut pinned.control, "SADD big x"), ":1");
        assert_eq!(ask(&mut pinned.control, "SCARD {big}stored"), format!(":{N_MEMBERS}"));
    });
}

#[test]
fn a_large_value_is_copied_to_another_database_unless_it_is_swapped_for_one_that_has_the_key() {
    everywhere(|server| {
        let mut pinned = Pinned::by(server, "COPY big big DB 3");
        assert_eq!(pinned.go_on().to_string(), ":1");
        assert_eq!(ask(&mut pinned.control, "SELECT 3"), "+OK");
        assert_eq!(ask(&mut pinned.control, "SCARD big"), format!(":{N_MEMBERS}"));
        assert_eq!(ask(&mut pinned.control, "SELECT 0"), "+OK");

        let mut pinned = Pinned::by(server, "COPY big big DB 4");
        assert_eq!(ask(&mut pinned.control, "SWAPDB 3 4"), "+OK");
        assert_eq!(pinned.go_on().to_string(), ":0", "the key is there by now");

        let mut pinned = Pinned::by(server, "COPY big big DB 5");
        let mut writer = server.connect();
        assert_eq!(ask(&mut writer, "SELECT 5"), "+OK");
        let id = id_of(&mut writer);
        tell(&mut writer, "APPEND big x");
        await_command(&mut pinned.control, id, "append");
        assert_eq!(pinned.go_on().to_string(), ":1");
        assert!(writer.receive().is_error(), "it has waited, and finds a set");

        let mut pinned = Pinned::by(server, "COPY big big DB 6 REPLACE");
        assert_eq!(ask(&mut pinned.control, "FLUSHALL"), "+OK");
        assert_eq!(pinned.go_on().to_string(), ":0");
    });
}
