//! Commands that have taken effect everywhere once they are answered: CLIENT PAUSE, CLIENT KILL, CONFIG SET,
//! FLUSHALL. Also the end of the process.

use std::{
    process::Command,
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use crate::support::{
    Client, Reply, Server,
    crowd::{AtEnd, ask, await_clients, crowd, figure, laid_out, tell, until},
};

const LAYOUTS: [(usize, usize); 4] = [(1, 1), (2, 16), (8, 1), (8, 1024)];

/// Clients that write in all ways until they are told to stop or are disconnected.
struct Hammer {
    n_writers: usize,
    stop: AtomicBool,
}

impl Hammer {
    fn new(n_writers: usize) -> Self {
        Self { n_writers, stop: AtomicBool::new(false) }
    }

    fn keys(&self) -> Vec<String> {
        (0..self.n_writers).flat_map(|id| [format!("a{id}"), format!("b{id}")]).collect()
    }

    /// Writes until the end, at least once. Returns the number of rounds. Each key of a client counts them.
    fn write(&self, id: usize, client: &mut Client) -> u64 {
        let mut rounds = 0;
        while self.round(id, client, rounds + 1).is_ok() {
            rounds += 1;
            if self.stop.load(Ordering::SeqCst) {
                break;
            }
        }
        rounds
    }

    fn round(&self, id: usize, client: &mut Client, round: u64) -> std::io::Result<()> {
        let (a, b) = (format!("a{id}"), format!("b{id}"));
        let expected = match id % 3 {
            0 => {
                client.try_send(&["INCR", &a])?;
                client.try_send(&["INCR", &b])?;
                vec![format!(":{round}"), format!(":{round}")]
            }
            1 => {
                client.try_send(&["MSET", &a, &round.to_string(), &b, &round.to_string()])?;
                vec!["+OK".to_owned()]
            }
            _ => {
                for words in [&["MULTI"][..], &["INCR", &a], &["INCR", &b], &["EXEC"]] {
                    client.try_send(words)?;
                }
                let queued = "+QUEUED".to_owned();
                vec!["+OK".to_owned(), queued.clone(), queued, format!("[:{round} :{round}]")]
            }
        };
        for expected in expected {
            assert_eq!(client.try_receive()?.to_string(), expected);
        }
        Ok(())
    }

    fn values(&self, client: &mut Client) -> Vec<Reply> {
        let words: Vec<String> = std::iter::once("MGET".to_owned()).chain(self.keys()).collect();
        match client.command(&words) {
            Reply::Array(values) => values,
            other => panic!("MGET answered {other}"),
        }
    }
}

#[test]
fn after_client_pause_write_nobody_writes_until_unpause() {
    for layout in LAYOUTS {
        let server = laid_out(layout);
        let hammer = Hammer::new(6);
        let rounds = thread::scope(|scope| {
            let _stop = AtEnd(&hammer.stop);
            let writers: Vec<_> = (0..6)
                .map(|id| {
                    let (mut client, hammer) = (server.connect(), &hammer);
                    scope.spawn(move || hammer.write(id, &mut client))
                })
                .collect();
            let mut control = server.connect();
            for _ in 0..5 {
                assert_eq!(ask(&mut control, "CLIENT PAUSE 60000 WRITE"), "+OK");
                let held = hammer.values(&mut control);
                for _ in 0..20 {
                    assert_eq!(hammer.values(&mut control), held, "a write took effect during the pause");
                }
                assert_eq!(ask(&mut control, "CLIENT UNPAUSE"), "+OK");
                until("writes go on", || hammer.values(&mut control) != held);
            }
            // Clients that wait at the end run, too.
            assert_eq!(ask(&mut control, "CLIENT PAUSE 60000 WRITE"), "+OK");
            hammer.stop.store(true, Ordering::SeqCst);
            assert_eq!(ask(&mut control, "CLIENT UNPAUSE"), "+OK");
            writers
                .into_iter()
                .map(|writer| writer.join().expect("every reply was right"))
                .collect::<Vec<_>>()
        });
        let values = hammer.values(&mut server.connect());
        for (id, rounds) in rounds.iter().enumerate() {
            for value in &values[2 * id..2 * id + 2] {
                assert_eq!(value.text(), Some(rounds.to_string()));
            }
        }
    }
}

#[test]
fn what_a_pause_holds_back_runs_once_and_in_order() {
    for layout in LAYOUTS {
        let server = laid_out(layout);
        let mut control = server.connect();
        assert_eq!(ask(&mut control, "CLIENT PAUSE 60000 WRITE"), "+OK");
        let mut clients: Vec<Client> = (0..4).map(|_| server.connect()).collect();
        for (id, client) in clients.iter_mut().enumerate() {
            for n in 0..50 {
                tell(client, &format!("APPEND own{id} {n},"));
                tell(client, &format!("MSET own{id} {n} mate{id} {n}"));
                tell(client, &format!("GET own{id}"));
                tell(client, "INCR shared");
                tell(client, "PING");
            }
        }
        until("all four wait", || ask(&mut control, "INFO clients").contains("blocked_clients:4"));
        assert_eq!(ask(&mut control, "DBSIZE"), ":0");
        assert_eq!(ask(&mut control, "CLIENT UNPAUSE"), "+OK");
        let mut counts = Vec::new();
        for client in &mut clients {
            for n in 0..50 {
                let appended = client.receive().integer().expect("APPEND answers a length");
                assert_eq!(appended as usize, if n == 0 { 2 } else { format!("{}{n},", n - 1).len() });
                assert_eq!(client.receive().to_string(), "+OK");
                assert_eq!(client.receive().to_string(), format!("\"{n}\""));
                counts.push(client.receive().integer().expect("INCR answers a number"));
                assert_eq!(client.receive().to_string(), "+PONG");
            }
        }
        counts.sort_unstable();
        assert_eq!(counts, (1..=200).collect::<Vec<i64>>());
    }
}

/// Commands without holds run like parts of a transaction once a pause is over. They used to be taken for
/// such parts: they waited for nothing, or were refused.
#[test]
fn what_waited_for_the_end_of_a_pause_is_no_part_of_a_transaction() {
    let server = Server::start(&["--appendonly", "yes", "--auto-aof-rewrite-percentage", "0"]);
    let (mut control, mut client) = (server.connect(), server.connect());
    assert_eq!(ask(&mut client, "SET key value"), "+OK");
    for (command, reply) in [
        ("SAVE", "+OK"),
        ("WAITAOF 1 0 0", "[:1 :0]"),
        ("BGREWRITEAOF", "+Background append only file rewriting started"),
    ] {
        until("nothing is saved", || figure(&mut client, "aof_rewrite_in_progress") == 0);
        assert_eq!(ask(&mut control, "CLIENT PAUSE 200 ALL"), "+OK");
        assert_eq!(ask(&mut client, command), reply, "{command}");
    }
}

#[test]
fn a_pause_of_everything_ends_by_itself() {
    for layout in LAYOUTS {
        let server = laid_out(layout);
        let mut control = server.connect();
        let mut other = server.connect();
        assert_eq!(ask(&mut other, "SET key before"), "+OK");
        assert_eq!(ask(&mut control, "CLIENT PAUSE 200 ALL"), "+OK");
        for line in [
            "APPEND key -1",
            "APPEND key -2",
            "MULTI",
            "APPEND key -3",
            "EXEC",
            "GET key",
            "KEYS *",
            "DBSIZE",
        ] {
            tell(&mut other, line);
        }
        let replies: Vec<String> = (0..8).map(|_| other.receive().to_string()).collect();
        let expected = [":8", ":10", "+OK", "+QUEUED", "[:12]", "\"before-1-2-3\"", "[\"key\"]", ":1"]
            .map(str::to_owned);
        assert_eq!(replies, expected);
        assert_eq!(ask(&mut control, "PING"), "+PONG");
    }
}

/// The command ran when the pause ended, outside of its transaction.
#[test]
fn a_command_in_multi_during_a_pause_is_queued() {
    let server = laid_out((2, 16));
    let (mut control, mut client) = (server.connect(), server.connect());
    for line in ["SET key 1", "MULTI"] {
        assert_eq!(ask(&mut client, line), "+OK");
    }
    assert_eq!(ask(&mut control, "CLIENT PAUSE 60000 WRITE"), "+OK");
    for line in ["INCR key", "INCR key", "EXEC"] {
        tell(&mut client, line);
    }
    until("EXEC waits", || ask(&mut control, "INFO clients").contains("blocked_clients:1"));
    assert_eq!(ask(&mut control, "GET key"), "\"1\"");
    assert_eq!(ask(&mut control, "CLIENT UNPAUSE"), "+OK");
    let replies: Vec<String> = (0..3).map(|_| client.receive().to_string()).collect();
    assert_eq!(replies, ["+QUEUED", "+QUEUED", "[:2 :3]"]);
}

/// A pause that has ended must not affect a later one.
#[test]
fn a_pause_of_writes_after_one_of_everything_that_is_over_holds_back_writes_only() {
    let server = laid_out((1, 16));
    let mut control = server.connect();
    assert_eq!(ask(&mut control, "CLIENT PAUSE 0 ALL"), "+OK");
    assert_eq!(ask(&mut control, "CLIENT PAUSE 60000 WRITE"), "+OK");
    assert_eq!(ask(&mut server.connect(), "GET key"), "(nil)");
    assert_eq!(ask(&mut control, "CLIENT UNPAUSE"), "+OK");
}

#[test]
fn a_heavy_command_that_a_pause_held_back_runs() {
    let server = laid_out((2, 1024));
    let (mut control, mut client) = (server.connect(), server.connect());
    assert_eq!(ask(&mut control, "CLIENT PAUSE 60000 WRITE"), "+OK");
    let words: Vec<String> = ["MSET".to_owned()]
        .into_iter()
        .chain((0..5000).flat_map(|n| [format!("key{n}"), n.to_string()]))
        .collect();
    client.send(&words);
    until("it waits", || ask(&mut control, "INFO clients").contains("blocked_clients:1"));
    assert_eq!(ask(&mut control, "CLIENT UNPAUSE"), "+OK");
    assert_eq!(client.receive().to_string(), "+OK");
    assert_eq!(ask(&mut control, "DBSIZE"), ":5000");
}

/// Waits until the server has closed a connection. Earlier replies are ignored.
fn await_close(client: &mut Client) {
    while client.await_close().expect("a killed client's connection is closed").is_some() {
        client.receive();
    }
}

#[test]
fn after_client_kill_nothing_of_the_killed_takes_effect() {
    for layout in LAYOUTS {
        let server = laid_out(layout);
        let mut control = server.connect();
        for round in 0..9 {
            let hammer = Hammer::new(6);
            thread::scope(|scope| {
                let _stop = AtEnd(&hammer.stop);
                let writers: Vec<_> = (0..6)
                    .map(|id| {
                        let mut client = server.connect();
                        let hammer = &hammer;
                        let name = client.command(&["CLIENT", "ID"]).integer().expect("an id");
                        let writer = scope.spawn(move || {
                            hammer.write(id, &mut client);
                            client
                        });
                        (name, writer)
                    })
                    .collect();
                until("all write", || hammer.values(&mut control).iter().all(|value| *value != Reply::Nil));
                let victims = [round % 6, (round + 1) % 6];
                for victim in victims {
                    assert_eq!(ask(&mut control, &format!("CLIENT KILL ID {}", writers[victim].0)), ":1");
                    let left = hammer.values(&mut control)[2 * victim..2 * victim + 2].to_vec();
                    for _ in 0..10 {
                        assert_eq!(hammer.values(&mut control)[2 * victim..2 * victim + 2], left);
                    }
                    assert_eq!(ask(&mut control, &format!("CLIENT LIST ID {}", writers[victim].0)), "\"\"");
                }
                hammer.stop.store(true, Ordering::SeqCst);
                for (id, (_, writer)) in writers.into_iter().enumerate() {
                    let mut client = writer.join().expect("every reply was right");
                    if victims.contains(&id) {
                        await_close(&mut client);
                    }
                }
            });
            assert_eq!(ask(&mut control, "FLUSHALL"), "+OK");
        }
        await_clients(&mut control, 1);
    }
}

#[test]
fn clients_that_wait_can_be_killed() {
    for layout in LAYOUTS {
        let server = laid_out(layout);
        let mut control = server.connect();
        let prepare: [&[&str]; 6] = [
            &["DEBUG SLEEP 1000"],
            &["WAIT 1 0"],
            &["SET paused took-effect"],
            &["MULTI", "SET queued took-effect"],
            &["WATCH watched", "MULTI"],
            &["SET paused took-effect", "SET after took-effect"],
        ];
        assert_eq!(ask(&mut control, "CLIENT PAUSE 60000 WRITE"), "+OK");
        let mut victims = Vec::new();
        for lines in prepare {
            let mut victim = server.connect();
            let id = victim.command(&["CLIENT", "ID"]).integer().expect("an id");
            lines.iter().for_each(|line| tell(&mut victim, line));
            victims.push((id, victim));
        }
        until("four wait", || ask(&mut control, "INFO clients").contains("blocked_clients:4"));
        for (id, victim) in &mut victims {
            assert_eq!(ask(&mut control, &format!("CLIENT KILL ID {id}")), ":1");
            await_close(victim);
        }
        await_clients(&mut control, 1);
        assert_eq!(ask(&mut control, "CLIENT UNPAUSE"), "+OK");
        assert_eq!(ask(&mut control, "DBSIZE"), ":0");
        assert!(ask(&mut control, "INFO clients").contains("blocked_clients:0"));
    }
}

#[test]
fn a_client_can_be_killed_twice_and_kill_itself() {
    let server = laid_out((2, 16));
    let mut control = server.connect();
    let mut victim = server.connect();
    let id = victim.command(&["CLIENT", "ID"]).integer().expect("an id");
    assert_eq!(ask(&mut control, &format!("CLIENT KILL ID {id}")), ":1");
    assert_eq!(ask(&mut control, &format!("CLIENT KILL ID {id}")), ":0");
    let own = control.command(&["CLIENT", "ID"]).integer().expect("an id");
    tell(&mut control, &format!("CLIENT KILL ID {own} SKIPME no"));
    tell(&mut control, "SET after death");
    assert_eq!(control.receive().to_string(), ":1");
    assert_eq!(control.await_close().expect("it closes"), None);
    let mut other = server.connect();
    assert_eq!(ask(&mut other, "EXISTS after"), ":0");
    await_clients(&mut other, 1);
}

#[test]
fn config_set_holds_for_whatever_comes_later() {
    for layout in LAYOUTS {
        let server = laid_out(layout);
        let mut control = server.connect();
        let mut others: Vec<Client> = (0..8).map(|_| server.connect()).collect();
        // A reply shows that a client was admitted without a password.
        others.iter_mut().for_each(|other| assert_eq!(ask(other, "PING"), "+PONG"));
        for round in 0..5 {
            assert_eq!(ask(&mut control, "CONFIG SET requirepass secret"), "+OK");
            let mut late = server.connect();
            assert_eq!(ask(&mut late, "PING"), "-NOAUTH Authentication required.");
            assert_eq!(ask(&mut late, "AUTH secret"), "+OK");
            assert_eq!(ask(&mut late, "PING"), "+PONG");
            assert_eq!(ask(&mut control, "CONFIG SET requirepass other"), "+OK");
            assert!(ask(&mut server.connect(), "AUTH secret").starts_with("-WRONGPASS"));
            assert_eq!(control.command(&["CONFIG", "SET", "requirepass", ""]).to_string(), "+OK");
            assert_eq!(ask(&mut server.connect(), "PING"), "+PONG");

            assert_eq!(ask(&mut control, "SET key value"), "+OK");
            assert_eq!(ask(&mut control, "CONFIG SET maxmemory 1"), "+OK");
            for other in &mut others {
                let oom = "-OOM command not allowed when used memory > 'maxmemory'.";
                assert_eq!(ask(other, "SET key other"), oom);
                assert_eq!(ask(other, "GET key"), "\"value\"");
            }
            assert_eq!(ask(&mut control, "CONFIG SET maxmemory 0"), "+OK");
            for other in &mut others {
                assert_eq!(ask(other, &format!("SET key {round}")), "+OK");
            }
        }
        drop(others);
        await_clients(&mut control, 1);
        assert_eq!(ask(&mut control, "CONFIG SET maxclients 1"), "+OK");
        let n_came = figure(&mut control, "total_connections_received");
        let mut refused = server.connect();
        assert_eq!(refused.receive().to_string(), "-ERR max number of clients reached");
        // A refused connection has not become a client.
        assert_eq!(figure(&mut control, "rejected_connections"), 1);
        assert_eq!(figure(&mut control, "total_connections_received"), n_came);
        assert_eq!(refused.await_close().expect("it closes"), None);
        assert_eq!(ask(&mut control, "CONFIG SET maxclients 2"), "+OK");
        assert_eq!(ask(&mut server.connect(), "PING"), "+PONG");
    }
}

#[test]
fn transactions_over_everything_see_nothing_of_others() {
    for layout in LAYOUTS {
        let server = laid_out(layout);
        crowd(&server, 6, |id, client| {
            for round in 0..25 {
                let (lines, expected): (&[&str], &str) = match id % 3 {
                    0 => (&["FLUSHALL", "MSET a 1 b 2 c 3", "DBSIZE", "KEYS none*"], "[+OK +OK :3 []]"),
                    1 => (
                        &["FLUSHALL", "SET x 1", "SWAPDB 0 1", "DBSIZE", "SWAPDB 1 0", "DBSIZE"],
                        "[+OK +OK +OK :0 +OK :1]",
                    ),
                    _ => (&["FLUSHDB", "DBSIZE", "RANDOMKEY", "SCAN 0"], "[+OK :0 (nil) [\"0\" []]]"),
                };
                assert_eq!(ask(client, "MULTI"), "+OK");
                for line in lines {
                    assert_eq!(ask(client, line), "+QUEUED");
                }
                assert_eq!(ask(client, "EXEC"), expected, "round {round}");
            }
        });
    }
}

/// Ends the process while clients of every kind are at work. The log must report the end.
fn assert_clean_end(end: impl Fn(&Server)) {
    for layout in LAYOUTS {
        let mut server = laid_out(layout);
        let hammer = Hammer::new(6);
        thread::scope(|scope| {
            let _stop = AtEnd(&hammer.stop);
            for id in 0..6 {
                let (mut client, hammer) = (server.connect(), &hammer);
                scope.spawn(move || hammer.write(id, &mut client));
            }
            let mut sweeping = server.connect();
            scope.spawn(move || while sweeping.try_command(&["KEYS", "*"]).is_ok() {});
            let mut heavy = server.connect();
            scope.spawn(move || {
                let keys = (0..5000).map(|n| format!("heavy{n}"));
                let words: Vec<String> = std::iter::once("MGET".to_owned()).chain(keys).collect();
                while heavy.try_command(&words).is_ok() {}
            });
            let mut resting = server.connect();
            tell(&mut resting, "DEBUG SLEEP 1000");
            let mut control = server.connect();
            until("all write", || hammer.values(&mut control).iter().all(|value| *value != Reply::Nil));
            end(&server);
            let status = server.await_end();
            assert_eq!(status.code(), Some(0), "{}", server.log_tail());
        });
        let log = server.log_tail();
        assert!(log.ends_with("Braid is now ready to exit, bye bye..."), "{log}");
        assert!(!log.contains("panic"), "{log}");
    }
}

#[test]
fn shutdown_ends_a_busy_server() {
    assert_clean_end(|server| tell(&mut server.connect(), "SHUTDOWN NOSAVE"));
}

#[test]
fn a_signal_ends_a_busy_server() {
    for signal in ["-TERM", "-INT"] {
        assert_clean_end(|server| {
            let status = Command::new("kill").args([signal, &server.pid().to_string()]).status();
            assert!(status.expect("there is a kill command").success());
        });
    }
}

#[test]
fn a_paused_server_can_be_ended_by_a_signal() {
    let mut server = laid_out((2, 16));
    let mut control = server.connect();
    assert_eq!(ask(&mut control, "CLIENT PAUSE 60000 ALL"), "+OK");
    tell(&mut control, "SET key value");
    let status = Command::new("kill").arg(server.pid().to_string()).status();
    assert!(status.expect("there is a kill command").success());
    assert_eq!(server.await_end().code(), Some(0));
}

/// A command that a pause held back used to run afterwards, although its client had left.
#[test]
fn a_client_that_leaves_during_a_pause_has_asked_for_nothing() {
    let server = laid_out((2, 16));
    let mut control = server.connect();
    assert_eq!(ask(&mut control, "CLIENT PAUSE 100000 WRITE"), "+OK");
    let mut leaving = server.connect();
    tell(&mut leaving, "SET ghost 1");
    until("it waits", || ask(&mut control, "INFO clients").contains("blocked_clients:1"));
    drop(leaving);
    await_clients(&mut control, 1);
    assert_eq!(ask(&mut control, "CLIENT UNPAUSE"), "+OK");
    assert_eq!(ask(&mut control, "GET ghost"), "(nil)");
}
