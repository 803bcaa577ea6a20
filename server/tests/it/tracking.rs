//! Client tracking under concurrency: a client that drops its copies on invalidation has no outdated copy.

use std::collections::HashMap;

use crate::support::{
    Client, Dice, Reply, Resp, Server,
    crowd::{LAYOUTS, Meeting, ask, crowd, figure, fill_set, laid_out, tell, until},
    dice::seed,
};

/// A client that keeps copies of the values that it reads.
struct Caching<'a> {
    client: &'a mut Client,
    copies: HashMap<String, Option<u64>>,
}

impl<'a> Caching<'a> {
    fn new(client: &'a mut Client, tracking: &str) -> Self {
        client.hello(Resp::Three).expect("the server speaks RESP3");
        assert_eq!(ask(client, tracking), "+OK");
        Caching { client, copies: HashMap::new() }
    }

    /// Sends a command. Returns its reply, after dropping the copies that the pushes before it invalidate.
    fn ask(&mut self, line: &str) -> Reply {
        tell(self.client, line);
        loop {
            match self.client.receive() {
                Reply::Push(push) => self.drop_copies(&push),
                reply => return reply,
            }
        }
    }

    fn drop_copies(&mut self, push: &[Reply]) {
        let [title, keys] = push else { panic!("{push:?} is no invalidation") };
        assert_eq!(title.text().as_deref(), Some("invalidate"));
        let Reply::Array(keys) = keys else { panic!("{keys:?} are no keys") };
        for key in keys {
            self.copies.remove(&key.text().expect("a key is text"));
        }
    }

    /// Reads a key, if there is no copy of it.
    fn read(&mut self, key: String) {
        if !self.copies.contains_key(&key) {
            let value = number(&self.ask(&format!("GET {key}")));
            self.copies.insert(key, value);
        }
    }
}

/// Returns the value of a key as a number.
fn number(reply: &Reply) -> Option<u64> {
    reply.text().map(|text| text.parse().expect("a value is a number"))
}

fn key(n: usize) -> String {
    format!("key:{n}")
}

/// Changes a few keys in one of many ways. Values that are set are new each time.
fn change(client: &mut Client, dice: &mut Dice, value: &str) {
    let [a, b] = [dice.roll(N_KEYS), dice.roll(N_KEYS)].map(key);
    match dice.roll(6) {
        0 => drop(ask(client, &format!("SET {a} {value}"))),
        1 => drop(ask(client, &format!("MSET {a} {value} {b} {value}"))),
        2 => drop(ask(client, &format!("DEL {a}"))),
        3 => drop(ask(client, &format!("RENAME {a} {b}"))),
        4 => drop(ask(client, &format!("COPY {a} {b} REPLACE"))),
        _ => {
            for line in ["MULTI", &format!("SET {a} {value}"), &format!("SET {b} {value}"), "EXEC"] {
                ask(client, line);
            }
        }
    }
}

const N_KEYS: usize = 8;

#[test]
fn no_copy_is_out_of_date() {
    const N_WRITERS: usize = 2;
    const N_READERS: usize = 4;
    const N_CHANGES: usize = 300;
    for layout in LAYOUTS {
        let server = laid_out(layout);
        let met = Meeting::of(N_WRITERS + N_READERS);
        crowd(&server, N_WRITERS + N_READERS, |id, client| {
            let mut dice = Dice(seed() ^ (id as u64));
            if id < N_WRITERS {
                (0..N_CHANGES).for_each(|n| change(client, &mut dice, &format!("{}", n * N_WRITERS + id)));
                met.wait();
                met.wait();
                return;
            }
            let ways = ["CLIENT TRACKING ON", "CLIENT TRACKING ON BCAST PREFIX key: NOLOOP"];
            let mut caching = Caching::new(client, ways[id % 2]);
            for _ in 0..4 * N_CHANGES {
                caching.read(key(dice.roll(N_KEYS)));
            }
            (0..N_KEYS).for_each(|n| caching.read(key(n)));
            met.wait();
            // All writers have their replies, so the invalidations of their changes come before this reply.
            assert_eq!(caching.ask("PING").text().as_deref(), Some("PONG"));
            let mut plain = server.connect();
            for (key, copy) in &caching.copies {
                assert_eq!(number(&plain.command(&["GET", key])), *copy, "{key}, which client {id} has kept");
            }
            met.wait();
        });
    }
}

#[test]
fn what_expires_is_told_of_without_a_command() {
    let server = Server::start(&["--io-threads", "2"]);
    let mut other = server.connect();
    assert_eq!(ask(&mut other, "SET k 1 PX 600000"), "+OK");
    assert_eq!(ask(&mut other, "HSET h f v"), ":1");
    assert_eq!(ask(&mut other, "HPEXPIRE h 600000 FIELDS 1 f"), "[:1]");
    let mut client = server.connect();
    let mut caching = Caching::new(&mut client, "CLIENT TRACKING ON");
    caching.ask("GET k");
    caching.ask("HGETALL h");
    assert_eq!(ask(&mut other, "DEBUG ADVANCE-TIME 600001"), "+OK");
    let told: Vec<String> = (0..2).map(|_| caching.client.receive().to_string()).collect();
    for key in ["k", "h"] {
        assert!(told.contains(&format!(">[\"invalidate\" [\"{key}\"]]")), "{told:?}");
    }
}

#[test]
fn large_values_that_are_read_offloaded_are_remembered() {
    let server = Server::start(&["--io-threads", "2"]);
    let mut other = server.connect();
    fill_set(&mut other, "s", 200_000);
    let mut client = server.connect();
    let mut caching = Caching::new(&mut client, "CLIENT TRACKING ON");
    let Reply::Set(members) = caching.ask("SMEMBERS s") else { panic!("no set") };
    assert_eq!(members.len(), 200_000);
    assert_eq!(ask(&mut other, "SADD s more"), ":1");
    assert_eq!(caching.client.receive().to_string(), ">[\"invalidate\" [\"s\"]]");
}

#[test]
fn nothing_is_left_of_a_client_that_leaves() {
    let server = Server::start(&["--io-threads", "2"]);
    let mut other = server.connect();
    let mut info = |name: &str| figure(&mut other, name);
    let mut broadcast = server.connect();
    assert_eq!(ask(&mut broadcast, "CLIENT TRACKING ON BCAST PREFIX a PREFIX b"), "+OK");
    let mut reader = server.connect();
    assert_eq!(ask(&mut reader, "CLIENT TRACKING ON"), "+OK");
    assert_eq!(ask(&mut reader, "MGET a b c"), "[(nil) (nil) (nil)]");
    assert_eq!(info("tracking_clients"), 2);
    assert_eq!(info("tracking_total_keys"), 3);
    assert_eq!(info("tracking_total_items"), 3);
    assert_eq!(info("tracking_total_prefixes"), 2);
    drop((broadcast, reader));
    until("nobody keeps copies", || info("tracking_clients") == 0);
    until("no prefix is left", || info("tracking_total_prefixes") == 0);
    // This happens without a write to the keys.
    until("nothing is remembered", || info("tracking_total_keys") == 0);
    assert_eq!(info("tracking_total_items"), 0);
}

/// After a tracking client had left, every GET used to cost as much as a tracking client's, or more.
#[test]
fn no_shard_is_observed_once_tracking_clients_have_left() {
    for layout in [(1, 16), (2, 1024)] {
        let server = laid_out(layout);
        let mut other = server.connect();
        let mut n_observed =
            move || other.command(&["DEBUG", "OBSERVED-SHARDS"]).integer().expect("a number");
        assert_eq!(n_observed(), 0);
        for round in 0..2 {
            let mut clients: Vec<Client> = (0..4).map(|_| server.connect()).collect();
            let id = clients[3].command(&["CLIENT", "ID"]).integer().expect("a number");
            let redirected = format!("CLIENT TRACKING ON REDIRECT {id}");
            for (client, tracking) in clients.iter_mut().zip([
                "CLIENT TRACKING ON",
                "CLIENT TRACKING ON BCAST PREFIX key",
                &redirected,
            ]) {
                assert_eq!(ask(client, tracking), "+OK");
                for n in 0..300 {
                    assert_eq!(ask(client, &format!("GET key{n}")), "(nil)");
                }
            }
            assert!(n_observed() > 0);
            if round == 0 {
                clients[..3]
                    .iter_mut()
                    .for_each(|client| assert_eq!(ask(client, "CLIENT TRACKING OFF"), "+OK"));
            } else {
                clients.clear();
            }
            until("no shard is observed", || n_observed() == 0);
        }
    }
}

#[test]
fn no_more_keys_are_remembered_than_allowed() {
    let server = Server::start(&["--io-threads", "2"]);
    let mut client = server.connect();
    let mut caching = Caching::new(&mut client, "CLIENT TRACKING ON");
    for n in 0..100 {
        caching.read(key(n));
    }
    let mut other = server.connect();
    assert_eq!(ask(&mut other, "CONFIG SET tracking-table-max-keys 10"), "+OK");
    while caching.copies.len() > 10 {
        let Reply::Push(push) = caching.client.receive() else { panic!("a reply to nothing") };
        caching.drop_copies(&push);
    }
    let info = other.command(&["INFO", "stats"]).text().expect("INFO answers text");
    assert!(info.contains("tracking_total_keys:10\r\n"), "{info}");
}

/// An invalidation just before the end of a connection used to be lost. Its client already knew of the end.
#[test]
fn nothing_is_redirected_to_a_client_that_has_quit() {
    for end in ["QUIT", "CLIENT KILL SKIPME no ID "] {
        let server = Server::start(&["--io-threads", "4"]);
        let mut other = server.connect();
        for round in 0..200 {
            let mut target = server.connect();
            let mut client = server.connect();
            client.hello(Resp::Three).expect("it is connected");
            let id = target.command(&["CLIENT", "ID"]).integer().expect("a number");
            assert_eq!(ask(&mut client, &format!("CLIENT TRACKING ON BCAST REDIRECT {id}")), "+OK");
            let end = if end == "QUIT" { end.to_owned() } else { format!("{end}{id}") };
            ask(&mut target, &end);
            assert_eq!(ask(&mut other, &format!("SET key {round}")), "+OK");
            assert_eq!(client.receive().to_string(), format!(">[\"tracking-redir-broken\" :{id}]"));
        }
    }
}

#[test]
fn what_is_read_after_tracking_began_anew_is_remembered() {
    let server = Server::start(&["--io-threads", "2"]);
    let mut other = server.connect();
    let mut client = server.connect();
    let mut caching = Caching::new(&mut client, "CLIENT TRACKING ON");
    for round in 0..50 {
        // Earlier reads are being forgotten while the same keys are read again.
        (0..100).for_each(|n| drop(caching.ask(&format!("GET {}", key(n)))));
        assert_eq!(caching.ask("CLIENT TRACKING OFF").to_string(), "+OK");
        assert_eq!(caching.ask("CLIENT TRACKING ON").to_string(), "+OK");
        caching.ask(&format!("GET {}", key(round)));
        assert_eq!(ask(&mut other, &format!("SET {} {round}", key(round))), "+OK");
        assert_eq!(caching.client.receive().to_string(), format!(">[\"invalidate\" [\"{}\"]]", key(round)));
    }
}

#[test]
fn keys_that_a_script_reads_are_remembered_and_those_that_it_only_declares_are_not() {
    let server = Server::start(&["--io-threads", "2"]);
    let mut other = server.connect();
    let mut client = server.connect();
    let caching = Caching::new(&mut client, "CLIENT TRACKING ON");
    let script = "redis.call('SET', 'written', 1) return redis.call('GET', KEYS[1] .. 'er')";
    caching.client.send(&["EVAL", script, "2", "read", "declared"]);
    assert_eq!(caching.client.receive().to_string(), "(nil)");
    for key in ["read", "declared", "written", "reader"] {
        assert_eq!(ask(&mut other, &format!("SET {key} 1")), "+OK");
    }
    assert_eq!(caching.client.receive().to_string(), ">[\"invalidate\" [\"reader\"]]");
}

#[test]
fn the_limit_on_remembered_keys_holds_while_keys_are_read() {
    const N_KEYS_READ: usize = 20_000;
    let server = Server::start(&["--io-threads", "2", "--tracking-table-max-keys", "1000"]);
    let mut client = server.connect();
    let caching = Caching::new(&mut client, "CLIENT TRACKING ON");
    let mut request = Vec::new();
    for first in (0..N_KEYS_READ).step_by(200) {
        let keys: Vec<String> = (first..first + 200).map(key).collect();
        crate::support::encode(&[vec!["MGET".to_owned()], keys].concat(), &mut request);
        crate::support::encode(&["INFO", "stats"], &mut request);
    }
    caching.client.send_raw(&request);
    let mut most = 0;
    for _ in 0..2 * N_KEYS_READ / 200 {
        let reply = loop {
            match caching.client.receive() {
                Reply::Push(_) => {}
                reply => break reply,
            }
        };
        if let Some(info) = reply.text() {
            let n = info.lines().find_map(|line| line.strip_prefix("tracking_total_keys:"));
            most = most.max(n.expect("INFO tells").parse::<usize>().expect("a number"));
        }
    }
    assert!((900..=1100).contains(&most), "{most} keys were remembered");
}

/// While its node is away, a connection receives pushed output in its last known dialect.
#[test]
fn invalidations_reach_clients_that_wait_in_the_dialect_they_have_just_chosen() {
    let server = Server::start(&["--io-threads", "2", "--io-threads-always-active", "yes"]);
    let mut other = server.connect();
    for waits in [&["BLPOP", "queue", "0"][..], &["WAIT", "1", "0"]] {
        let mut client = server.connect();
        assert_eq!(ask(&mut client, "CLIENT TRACKING ON"), "+OK");
        client.send(&["HELLO", "3"]);
        client.send(&["GET", "key"]);
        client.send(waits);
        until("it waits", || figure(&mut other, "blocked_clients") == 1);
        ask(&mut other, "SET key value");
        client.receive();
        assert_eq!(client.receive().to_string(), "(nil)");
        let Reply::Push(push) = client.receive() else {
            panic!("an invalidation comes while {waits:?} waits")
        };
        assert_eq!(push[0].text().as_deref(), Some("invalidate"));
        drop(client);
        until("it has left", || figure(&mut other, "connected_clients") == 1);
        ask(&mut other, "DEL key");
    }
}
