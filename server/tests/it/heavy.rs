//! Commands of thousands of keys: they run on heavy-work threads. While those are busy, no other client waits
//! for them.
//!
//! `DEBUG HOLD-HEAVY` keeps those threads from beginning any work, as long commands of other clients would.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use crate::support::{
    Client, Server,
    crowd::{AtEnd, ask, figure, laid_out, tell, until},
};

const N_KEYS: usize = 3001;
const ROUNDS: usize = 60;

fn mget() -> String {
    (0..N_KEYS).fold("MGET".to_owned(), |line, key| format!("{line} key:{key}"))
}

/// An MGET that had met a held shard on its way used to be granted that shard. It queued with it for a
/// heavy-work thread, so GETs of unrelated keys waited for that thread.
#[test]
fn no_get_waits_while_an_mget_queues_for_a_heavy_thread() {
    let server = laid_out((2, 16));
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        // However this scope ends, the writers must end with it.
        let _stop = AtEnd(&stop);
        for writer in 0..3 {
            let (server, stop) = (&server, &stop);
            scope.spawn(move || {
                let mut client = server.connect();
                let list = format!("list:{writer}");
                let elements = (0..4000).map(|element| element.to_string());
                let push = ["RPUSH".to_owned(), list.clone()].into_iter().chain(elements);
                client.command(&push.collect::<Vec<_>>());
                // Each pipeline holds its shard until MGET meets it.
                while !stop.load(Ordering::Relaxed) {
                    (0..32).for_each(|_| client.send(&["LREM", &list, "0", "absent"]));
                    (0..32).for_each(|_| drop(client.receive()));
                }
            });
        }
        let (mut control, mut reader, mut stranger) = (server.connect(), server.connect(), server.connect());
        let mget = mget();
        for round in 0..ROUNDS {
            tell(&mut reader, &mget);
            for _ in 0..round % 8 {
                assert_eq!(ask(&mut stranger, "PING"), "+PONG");
            }
            assert_eq!(ask(&mut control, "DEBUG HOLD-HEAVY 1"), "+OK");
            for key in 0..64 {
                assert_eq!(ask(&mut stranger, &format!("GET strange:{key}")), "(nil)");
            }
            assert_eq!(ask(&mut control, "DEBUG HOLD-HEAVY 0"), "+OK");
            reader.receive();
        }
    });
}

#[test]
fn a_transaction_that_changes_the_configuration_runs_on_no_thread_that_serves_sockets() {
    let server = Server::start(&["--io-threads", "2"]);
    let mut client = server.connect();
    for command in ["MULTI", "SET k v", "CONFIG SET maxmemory-samples 7"] {
        ask(&mut client, command);
    }
    let n_before = figure(&mut server.connect(), "commands_offloaded");
    assert_eq!(ask(&mut client, "EXEC"), "[+OK +OK]");
    assert_eq!(figure(&mut client, "commands_offloaded"), n_before + 1);
    assert_eq!(ask(&mut client, "CONFIG GET maxmemory-samples"), "[\"maxmemory-samples\" \"7\"]");
}

/// Values of a megabyte and more used to be freed by heavy-work threads only. While these were busy, none was
/// freed.
#[test]
fn large_values_are_freed_while_heavy_threads_are_busy() {
    const N_ELEMENTS: usize = 40_000;
    let server = laid_out((2, 16));
    let (mut client, mut control) = (server.connect(), server.connect());
    assert_eq!(ask(&mut control, "DEBUG HOLD-HEAVY 1"), "+OK");
    for round in ["UNLINK list set hash sorted", "FLUSHALL"] {
        for first in (0..N_ELEMENTS).step_by(1000) {
            let elements: Vec<String> =
                (first..first + 1000).map(|nth| format!("element {nth:>30}")).collect();
            let plain = || elements.iter().map(|element| vec![element.as_str()]);
            add(&mut client, "RPUSH list", plain());
            add(&mut client, "SADD set", plain());
            add(&mut client, "HSET hash", elements.iter().map(|element| vec![element.as_str(), "value"]));
            add(&mut client, "ZADD sorted", elements.iter().map(|element| vec!["1", element.as_str()]));
        }
        let n_before = memory(&mut control, "lazyfreed_objects");
        ask(&mut client, round);
        until("what was removed is freed", || {
            memory(&mut control, "lazyfreed_objects") >= n_before + 4
                && memory(&mut control, "lazyfree_pending_objects") == 0
        });
    }
    assert_eq!(ask(&mut control, "DEBUG HOLD-HEAVY 0"), "+OK");
}

fn add<'e>(client: &mut Client, command: &'e str, elements: impl Iterator<Item = Vec<&'e str>>) {
    client.command(&command.split(' ').chain(elements.flatten()).collect::<Vec<_>>());
}

/// Returns a number of INFO memory.
fn memory(client: &mut Client, name: &str) -> usize {
    let info = client.command(&["INFO", "memory"]).text().expect("INFO answers text");
    let line = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.and_then(|number| number.parse().ok()).unwrap_or_else(|| panic!("no {name} in {info}"))
}
