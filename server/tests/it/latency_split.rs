//! INFO latencysplit: each read is followed to its reply, wherever it runs, and reported once.

use std::{collections::BTreeMap, thread};

use crate::support::{
    Client, Server,
    crowd::{ask, until, while_connections_move},
};

const PHASES: [&str; 4] = ["queue", "shards", "run", "socket"];

/// Returns how many reads are reported, by family and phase.
fn told(client: &mut Client) -> BTreeMap<String, usize> {
    let info = client.command(&["INFO", "latencysplit"]).text().expect("INFO answers text");
    let lines =
        info.lines().filter_map(|line| line.strip_prefix("latency_split_usec_")?.split_once(":reads="));
    let lines = lines.map(|(name, rest)| {
        let (reads, percentiles) = rest.split_once(',').expect("percentiles");
        let each: Vec<&str> = percentiles.split(',').map(|pair| pair.split('=').next().unwrap()).collect();
        assert_eq!(each, ["p50", "p99", "p99.9"], "{info}");
        (name.to_owned(), reads.parse().expect("a number"))
    });
    lines.collect()
}

/// Waits until `n_reads` reads of a family are reported. The last one is reported when its reply has left.
fn await_reads(client: &mut Client, family: &str, n_reads: usize) {
    until(&format!("{n_reads} reads of the family {family} are told"), || has_told(client, family, n_reads));
}

/// Whether `n_reads` reads of a family are reported, in each phase.
fn has_told(client: &mut Client, family: &str, n_reads: usize) -> bool {
    let told = told(client);
    PHASES.iter().all(|phase| told.get(&format!("{family}_{phase}")).copied().unwrap_or(0) == n_reads)
}

fn laid_out((io_threads, shards): (usize, usize)) -> Server {
    let (io_threads, shards) = (io_threads.to_string(), shards.to_string());
    Server::start(&["--io-threads", &io_threads, "--shards", &shards, "--latency-split", "yes"])
}

#[test]
fn nothing_is_told_until_it_is_asked_for() {
    let server = Server::start(&[]);
    let mut client = server.connect();
    assert_eq!(ask(&mut client, "SET a 1"), "+OK");
    let info = |client: &mut Client| client.command(&["INFO", "latencysplit"]).text().unwrap();
    assert_eq!(info(&mut client), "# Latencysplit\r\nlatency_split:no\r\n");
    assert!(!client.command(&["INFO", "everything"]).text().unwrap().contains("latency_split"));
    assert_eq!(ask(&mut client, "CONFIG SET latency-split yes"), "+OK");
    assert_eq!(ask(&mut client, "GET a"), "\"1\"");
    await_reads(&mut client, "string", 1);
    // The figures stay until measuring begins again.
    assert_eq!(ask(&mut client, "CONFIG SET latency-split no"), "+OK");
    assert_eq!(ask(&mut client, "GET a"), "\"1\"");
    await_reads(&mut client, "string", 1);
    assert_eq!(ask(&mut client, "CONFIG SET latency-split yes"), "+OK");
    await_reads(&mut client, "string", 0);
    assert_eq!(ask(&mut client, "GET a"), "\"1\"");
    assert_eq!(ask(&mut client, "CONFIG RESETSTAT"), "+OK");
    await_reads(&mut client, "string", 0);
}

#[test]
fn each_read_is_told_once_wherever_it_runs() {
    const N_CLIENTS: usize = 6;
    const N_ROUNDS: usize = 100;
    for layout in [(1, 1), (1, 1024), (2, 1), (2, 16), (8, 1), (8, 1024)] {
        let server = laid_out(layout);
        thread::scope(|scope| {
            for nth in 0..N_CLIENTS {
                let mut client = server.connect();
                scope.spawn(move || {
                    for round in 0..N_ROUNDS {
                        assert_eq!(ask(&mut client, "INCRBY counter 0"), ":0");
                        // A command of the family of sets, over several shards.
                        assert_eq!(ask(&mut client, &format!("SUNIONSTORE to-{nth} a b c-{round}")), ":0");
                    }
                });
            }
        });
        let mut control = server.connect();
        await_reads(&mut control, "string", N_CLIENTS * N_ROUNDS);
        await_reads(&mut control, "set", N_CLIENTS * N_ROUNDS);
        // A pipeline is one read of the family of its first command, and so is a transaction.
        let mut client = server.connect();
        for (lines, family) in
            [("LPUSH l 1\r\nSET s 1\r\n", "list"), ("MULTI\r\nSET s 1\r\nEXEC\r\n", "transactions")]
        {
            client.send_raw(lines.as_bytes());
            lines.lines().for_each(|_| drop(client.receive()));
            await_reads(&mut control, family, 1);
        }
        await_reads(&mut control, "string", N_CLIENTS * N_ROUNDS);
    }
}

#[test]
fn it_is_told_when_connections_move_and_when_clients_read_late() {
    let server = laid_out((2, 16));
    let mut client = server.connect();
    let mut n_reads = 0;
    while_connections_move(&server, 2, || {
        for _ in 0..50 {
            assert_eq!(ask(&mut client, "INCRBY counter 0"), ":0");
            n_reads += 1;
        }
    });
    let mut control = server.connect();
    await_reads(&mut control, "string", n_reads);
    // A reply larger than sockets take is reported when all of it has left.
    let value = "x".repeat(30 << 20);
    client.command(&["HSET", "hash", "field", &value]);
    client.send(&["HGET", "hash", "field"]);
    until("replies wait for their client", || {
        let list = control.command(&["CLIENT", "LIST"]).text().expect("CLIENT LIST answers text");
        list.lines().any(|line| line.contains("cmd=hget") && !line.contains(" omem=0 "))
    });
    assert!(has_told(&mut control, "hash", 0), "it is not over");
    assert_eq!(client.receive().text().map(|text| text.len()), Some(value.len()));
    await_reads(&mut control, "hash", 1);
}

#[test]
fn waits_that_clients_have_asked_for_are_not_told() {
    let server = laid_out((2, 16));
    let (mut client, mut control) = (server.connect(), server.connect());
    client.send(&["BLPOP", "queue", "0"]);
    until("it waits", || control.command(&["INFO", "clients"]).text().unwrap().contains("blocked_clients:1"));
    assert_eq!(ask(&mut control, "LPUSH queue 1"), ":1");
    client.receive();
    // LPUSH alone.
    await_reads(&mut control, "list", 1);
    // The next reads are reported again.
    assert_eq!(ask(&mut client, "LLEN queue"), ":0");
    await_reads(&mut control, "list", 2);
}

#[test]
fn the_metrics_port_tells_it_too() {
    use std::io::{Read, Write};
    let port = crate::support::Port::claim();
    let number = port.number().to_string();
    let server = Server::start(&["--latency-split", "yes", "--metrics-port", &number]);
    let mut client = server.connect();
    assert_eq!(ask(&mut client, "SET a 1"), "+OK");
    await_reads(&mut client, "string", 1);
    let mut visitor = std::net::TcpStream::connect(("127.0.0.1", port.number())).expect("it listens");
    visitor.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").expect("it is read");
    let mut text = String::new();
    visitor.read_to_string(&mut text).expect("it is answered");
    for phase in PHASES {
        let sample = format!("braid_latency_split_seconds_count{{family=\"string\",phase=\"{phase}\"}} 1\n");
        assert!(text.contains(&sample), "{phase}: {text}");
    }
}
