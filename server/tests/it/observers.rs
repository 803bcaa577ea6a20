//! An observer of changes learns of each once and in order, however the command ran. It may run in place,
//! from a node, served to a waiting client, offloaded, or within EXEC.

use crate::support::{
    Client, Reply, Server,
    crowd::{ask, crowd, figure, fill_set, laid_out, tell, until},
};

const LAYOUTS: [(usize, usize); 4] = [(1, 1), (2, 16), (8, 1), (8, 1024)];

fn everywhere(scenario: impl Fn(&Server)) {
    for layout in LAYOUTS {
        let server = laid_out(layout);
        assert_eq!(ask(&mut server.connect(), "DEBUG RECORD-CHANGES 1"), "+OK");
        scenario(&server);
    }
}

/// Returns the changes since the last call: database, event and key of each.
///
/// It leaves out the events of overwritten values, which Redis 7.0 does not have. `events.rs` tests them.
fn changes(client: &mut Client) -> Vec<String> {
    let Reply::Array(changes) = client.command(&["DEBUG", "CHANGES"]) else { panic!("it is a list") };
    let texts = changes.iter().map(|change| change.text().expect("a text"));
    let is_later = |text: &str| [" overwritten ", " type_changed "].iter().any(|event| text.contains(event));
    texts.filter(|text| !is_later(text)).collect()
}

fn run(client: &mut Client, commands: &[&str]) {
    for command in commands {
        let reply = ask(client, command);
        assert!(!reply.starts_with('-'), "{command}: {reply}");
    }
}

#[test]
fn each_change_of_a_command_in_place_is_heard_of_once_and_in_order() {
    everywhere(|server| {
        let mut client = server.connect();
        let commands = [
            "SET k v EX 100",
            "GET k",
            "APPEND k w",
            "SETNX k x",
            "DEL k",
            "DEL k",
            "RPUSH list a b",
            "LPOP list 2",
            "SADD set a",
            "SADD set a",
            "SREM set a",
            "MSET a 1 b 2",
            "RENAME a c",
            "SELECT 3",
            "HSET hash f v",
            "SELECT 0",
            "SWAPDB 0 3",
            "FLUSHDB",
        ];
        run(&mut client, &commands);
        let expected = [
            "0 new k",
            "0 set k",
            "0 expire k",
            "0 append k",
            "0 del k",
            "0 new list",
            "0 rpush list",
            "0 lpop list",
            "0 del list",
            "0 new set",
            "0 sadd set",
            "0 srem set",
            "0 del set",
            "0 new a",
            "0 set a",
            "0 new b",
            "0 set b",
            "0 new c",
            "0 rename_from a",
            "0 rename_to c",
            "3 new hash",
            "3 hset hash",
        ];
        let heard = changes(&mut client);
        assert_eq!(heard[..expected.len()], expected);
        // Each shard reports the change of a database.
        let of_databases = &heard[expected.len()..];
        assert!(of_databases.iter().any(|change| change == "0 swapped"), "{of_databases:?}");
        assert!(of_databases.iter().any(|change| change == "0 flushed"), "{of_databases:?}");
    });
}

/// As redis-server 7.0.15 publishes them with `notify-keyspace-events KEAn`.
#[test]
fn a_key_that_is_new_is_told_of_when_redis_tells_of_it() {
    everywhere(|server| {
        let mut client = server.connect();
        let mut heard = |commands: &[&str], expected: &[&str]| {
            run(&mut client, commands);
            assert_eq!(changes(&mut client), expected, "{commands:?}");
        };
        heard(&["SET a 1", "SET b 2"], &["0 new a", "0 set a", "0 new b", "0 set b"]);
        heard(&["RENAME a b"], &["0 new b", "0 rename_from a", "0 rename_to b"]);
        heard(&["RENAME b c"], &["0 new c", "0 rename_from b", "0 rename_to c"]);
        heard(&["RENAMENX c b"], &["0 new b", "0 rename_from c", "0 rename_to b"]);
        heard(&["RENAME b b"], &[]);
        heard(&["MOVE b 1"], &["1 new b", "0 move_from b", "1 move_to b"]);
        heard(&["MOVE b 1"], &[]);
        heard(&["SET a 1", "COPY a c"], &["0 new a", "0 set a", "0 new c", "0 copy_to c"]);
        heard(&["COPY a c"], &[]);
        heard(&["COPY a c REPLACE"], &["0 new c", "0 copy_to c"]);
        heard(&["COPY a b DB 1 REPLACE"], &["1 new b", "1 copy_to b"]);
        heard(&["BITFIELD x OVERFLOW FAIL SET u8 0 999"], &["0 new x", "0 lengthened x"]);
        heard(&["BITFIELD y OVERFLOW FAIL SET u8 0 999 GET u8 0 SET u8 0 1"], &["0 new y", "0 setbit y"]);
        let dumped = match client.command(&["DUMP", "a"]) {
            Reply::Bulk(dumped) => dumped,
            other => panic!("not a dump: {other:?}"),
        };
        let argv: [&[u8]; 5] = [b"RESTORE", b"c", b"0", &dumped, b"REPLACE"];
        assert_eq!(client.command(&argv).to_string(), "+OK");
        assert_eq!(changes(&mut client), ["0 new c", "0 restore c"]);
    });
}

#[test]
fn a_transaction_is_heard_of_as_one_in_the_order_of_its_commands() {
    everywhere(|server| {
        crowd(server, 4, |id, client| {
            for _ in 0..50 {
                let commands = [
                    "MULTI".to_owned(),
                    format!("SET x {id}"),
                    format!("SET y {id}"),
                    "SELECT 1".to_owned(),
                    format!("INCR z{id}"),
                    "EXEC".to_owned(),
                    "SELECT 0".to_owned(),
                ];
                commands.iter().for_each(|command| drop(ask(client, command)));
            }
        });
        let heard = changes(&mut server.connect());
        let sets: Vec<&str> =
            heard.iter().map(String::as_str).filter(|change| change.ends_with(['x', 'y'])).collect();
        assert_eq!(sets[..4], ["0 new x", "0 set x", "0 new y", "0 set y"]);
        let (pairs, rest) = sets[4..].as_chunks::<2>();
        assert!(rest.is_empty() && pairs.iter().all(|pair| *pair == ["0 set x", "0 set y"]), "{pairs:?}");
        assert_eq!(pairs.len(), 199);
        for id in 0..4 {
            let incremented = format!("1 incrby z{id}");
            assert_eq!(heard.iter().filter(|change| **change == incremented).count(), 50);
        }
    });
}

#[test]
fn commands_that_run_from_nodes_are_heard_of_once_each() {
    const N_CLIENTS: usize = 6;
    const N_ROUNDS: usize = 100;
    everywhere(|server| {
        crowd(server, N_CLIENTS, |id, client| {
            for round in 0..N_ROUNDS {
                for _ in 0..10 {
                    tell(client, "INCR shared");
                }
                tell(client, &format!("MSET own-{id} {round} other-{id} {round}"));
                (0..11).for_each(|_| drop(client.receive()));
            }
        });
        let mut client = server.connect();
        // From a heavy-work thread.
        let words = (0..2100).map(|n| format!("many-{n}"));
        let argv: Vec<String> = ["MSET".to_owned()].into_iter().chain(words).collect();
        assert_eq!(client.command(&argv).to_string(), "+OK");
        let heard = changes(&mut client);
        let count = |wanted: &str| heard.iter().filter(|change| *change == wanted).count();
        assert_eq!(count("0 incrby shared"), N_CLIENTS * N_ROUNDS * 10);
        for id in 0..N_CLIENTS {
            assert_eq!(count(&format!("0 set own-{id}")), N_ROUNDS);
            assert_eq!(count(&format!("0 set other-{id}")), N_ROUNDS);
        }
        assert_eq!(heard.iter().filter(|change| change.starts_with("0 set many-")).count(), 1050);
    });
}

#[test]
fn what_is_served_to_a_client_that_waited_follows_what_woke_it() {
    everywhere(|server| {
        let mut mover = server.connect();
        tell(&mut mover, "BLMOVE a b LEFT RIGHT 0");
        let mut waiter = server.connect();
        tell(&mut waiter, "BLPOP b 0");
        let mut client = server.connect();
        until("both wait", || {
            let info = client.command(&["INFO", "clients"]).text().expect("a text");
            info.contains("blocked_clients:2")
        });
        run(&mut client, &["RPUSH a x"]);
        assert_eq!(mover.receive().to_string(), "\"x\"");
        assert_eq!(waiter.receive().to_string(), "[\"b\" \"x\"]");
        // BLMOVE reports its source after its destination, as LMOVE does.
        let expected =
            ["0 new a", "0 rpush a", "0 new b", "0 rpush b", "0 lpop a", "0 del a", "0 lpop b", "0 del b"];
        assert_eq!(changes(&mut client), expected);
    });
}

#[test]
fn what_offloaded_work_stores_is_heard_of_once_though_it_was_done_twice() {
    const N_MEMBERS: usize = 6000;
    everywhere(|server| {
        let mut client = server.connect();
        fill_set(&mut client, "big", N_MEMBERS);
        run(&mut client, &["SELECT 1"]);
        fill_set(&mut client, "big", N_MEMBERS);
        run(&mut client, &["SELECT 0", "DEBUG HOLD-OFFLOADED 1"]);
        let mut storer = server.connect();
        tell(&mut storer, "SUNIONSTORE copy big");
        until("the values are pinned", || figure(&mut client, "offloaded_waiting") == 1);
        run(&mut client, &["SWAPDB 0 1"]);
        changes(&mut client);
        run(&mut client, &["DEBUG HOLD-OFFLOADED 0"]);
        assert_eq!(storer.receive().to_string(), format!(":{N_MEMBERS}"));
        let heard = changes(&mut client);
        let of_copy: Vec<&String> = heard.iter().filter(|change| change.ends_with(" copy")).collect();
        assert_eq!(of_copy, ["0 new copy", "0 sunionstore copy"]);
    });
}

#[test]
fn what_expires_is_heard_of_however_it_is_found() {
    everywhere(|server| {
        let mut client = server.connect();
        run(&mut client, &["DEBUG SET-ACTIVE-EXPIRE 0", "SET lazily v PX 1000", "SET actively v PX 1000"]);
        run(&mut client, &["DEBUG ADVANCE-TIME 2000", "GET lazily"]);
        run(&mut client, &["DEBUG SET-ACTIVE-EXPIRE 1"]);
        let mut heard = Vec::new();
        until("both are gone", || {
            heard.extend(changes(&mut client));
            heard.iter().filter(|change| change.contains("expired")).count() == 2
        });
        assert_eq!(heard.iter().filter(|change| *change == "0 expired lazily").count(), 1);
        assert_eq!(heard.iter().filter(|change| *change == "0 expired actively").count(), 1);
    });
}
