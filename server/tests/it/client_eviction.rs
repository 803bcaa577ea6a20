//! Eviction of clients: those that take most memory are closed. It happens while all together take more than
//! `maxmemory-clients`.

use std::{
    io::{self, Read as _, Write as _},
    net::TcpStream,
};

use crate::support::{
    Client, Reply, Server,
    crowd::{ask, figure, laid_out, move_connections, tell, until},
    encode,
};

const LAYOUTS: [(usize, usize); 3] = [(1, 1), (2, 16), (4, 1024)];
const LIMIT: usize = 1 << 20;

fn limit(client: &mut Client, bytes: usize) {
    assert_eq!(ask(client, &format!("CONFIG SET maxmemory-clients {bytes}")), "+OK");
}

/// Returns a number from a client's line in CLIENT LIST, if it is listed.
fn field_of(observer: &mut Client, name: &str, field: &str) -> Option<usize> {
    let Reply::Bulk(list) = observer.command(&["CLIENT", "LIST"]) else { panic!("a list") };
    let list = String::from_utf8(list).expect("it is text");
    let line = list.lines().find(|line| line.contains(&format!(" name={name} ")))?;
    let value = line.split(' ').find_map(|pair| pair.strip_prefix(field)?.strip_prefix('='));
    Some(value.expect("there is such a field").parse().expect("it is a number"))
}

fn named(server: &Server, name: &str) -> Client {
    let mut client = server.connect();
    assert_eq!(ask(&mut client, &format!("CLIENT SETNAME {name}")), "+OK");
    client
}

/// Returns the beginning of a command whose argument of `n_bytes` is complete except for its end.
fn incomplete(n_bytes: usize) -> Vec<u8> {
    let mut bytes = format!("*2\r\n${n_bytes}\r\n").into_bytes();
    bytes.resize(bytes.len() + n_bytes, b'x');
    bytes
}

/// Connects a client with `n_bytes` of an incomplete command.
fn with_input(server: &Server, observer: &mut Client, name: &str, n_bytes: usize) -> Client {
    let mut client = named(server, name);
    client.send_raw(&incomplete(n_bytes));
    until("it is read", || field_of(observer, name, "qbuf") == Some(n_bytes));
    client
}

/// Sends commands until the connection is closed.
fn until_closed(client: &mut Client, mut next: impl FnMut(usize) -> Vec<String>) -> io::Result<()> {
    (0..1_000_000).try_for_each(|nth| client.try_command(&next(nth)).map(drop))
}

fn words(line: &str) -> Vec<String> {
    line.split(' ').map(str::to_owned).collect()
}

/// Ways in which a client exceeds its limit. Each returns once the connection is closed.
type Growth = (&'static str, fn(&Server, &mut Client));

const WAYS: &[Growth] = &[
    ("an incomplete argument", |_, client| {
        let _ = client.try_send_raw(&incomplete(2 * LIMIT));
    }),
    ("many small arguments", |_, client| {
        let mut request = b"*1000000\r\n".to_vec();
        (0..LIMIT / 10).for_each(|_| request.extend_from_slice(b"$10\r\nxxxxxxxxxx\r\n"));
        let _ = client.try_send_raw(&request);
    }),
    ("one long command", |_, client| {
        let _ = client.try_send(&["SET", "key", &"x".repeat(LIMIT)]);
    }),
    ("a queue", |_, client| {
        ask(client, "MULTI");
        let value = "x".repeat(1000);
        let _ = until_closed(client, |_| words(&format!("SET key {value}")));
    }),
    ("a queue of long commands", |_, client| {
        ask(client, "MULTI");
        let value = "x".repeat(LIMIT / 4);
        let _ = until_closed(client, |_| words(&format!("SET key {value}")));
    }),
    ("watched keys", |_, client| {
        let _ = until_closed(client, |nth| words(&format!("WATCH {nth:0>200}")));
    }),
    ("channels", |_, client| {
        let _ = until_closed(client, |nth| words(&format!("SUBSCRIBE {nth}")));
    }),
    ("patterns", |_, client| {
        let _ = until_closed(client, |nth| words(&format!("PSUBSCRIBE {nth}")));
    }),
    ("sharded channels", |_, client| {
        let _ = until_closed(client, |nth| words(&format!("SSUBSCRIBE {nth}")));
    }),
    ("prefixes", |_, client| {
        let _ = until_closed(client, |nth| words(&format!("CLIENT TRACKING on BCAST PREFIX {nth:0>1000}")));
    }),
    ("a name", |_, client| {
        let _ = client.try_send(&["CLIENT", "SETNAME", &"x".repeat(2 * LIMIT)]);
    }),
    ("replies that it does not read", |server, client| {
        let mut other = server.connect();
        ask(&mut other, &format!("SET large {}", "x".repeat(LIMIT / 4)));
        let mut request = Vec::new();
        (0..200).for_each(|_| encode(&["GET", "large"], &mut request));
        let _ = client.try_send_raw(&request);
    }),
    ("messages that it does not read", |server, client| {
        ask(client, "SUBSCRIBE channel");
        let mut other = server.connect();
        let message = "x".repeat(LIMIT / 4);
        while ask(&mut other, &format!("PUBLISH channel {message}")) == ":1" {}
    }),
    ("others' invalidations that it does not read", |server, client| {
        let id = ask(client, "CLIENT ID");
        ask(client, "SUBSCRIBE __redis__:invalidate");
        let mut other = server.connect();
        ask(&mut other, &format!("CLIENT TRACKING on REDIRECT {} BCAST", &id[1..]));
        let key = "k".repeat(LIMIT / 4);
        while field_of(&mut other, "grows", "tot-mem").is_some() {
            ask(&mut other, &format!("INCR {key}"));
        }
    }),
];

#[test]
fn whatever_it_takes_memory_for_a_client_that_takes_too_much_is_closed() {
    for layout in LAYOUTS {
        let server = laid_out(layout);
        let mut observer = server.connect();
        let before = figure(&mut observer, "mem_clients_normal");
        for (nth, (way, grow)) in WAYS.iter().enumerate() {
            limit(&mut observer, LIMIT);
            let mut others: Vec<Client> = (0..4).map(|_| server.connect()).collect();
            let mut client = named(&server, "grows");
            assert!(field_of(&mut observer, "grows", "tot-mem").is_some_and(|bytes| bytes < LIMIT / 4));
            grow(&server, &mut client);
            until(way, || field_of(&mut observer, "grows", "tot-mem").is_none());
            assert_eq!(figure(&mut observer, "evicted_clients"), nth + 1, "{way}");
            // At most a few replies are still on their way.
            while client.try_receive().is_ok() {}
            assert!(others.iter_mut().all(|other| ask(other, "PING") == "+PONG"), "{way}");
            // Data that clients have sent and queued is freed.
            drop((client, others));
            until(&format!("all is free after {way}"), || {
                let bytes = figure(&mut observer, "mem_clients_normal");
                figure(&mut observer, "connected_clients") == 1 && bytes <= before + 100
            });
        }
    }
}

#[test]
fn the_largest_go_first_and_only_as_many_as_need_be() {
    const SIZES: [usize; 3] = [128 << 10, 1 << 20, 3 << 20];
    const N_EACH: usize = 3;
    for layout in LAYOUTS {
        let server = laid_out(layout);
        let mut observer = named(&server, "observer");
        let mut clients = Vec::new();
        for (of_size, size) in SIZES.iter().enumerate() {
            for nth in 0..N_EACH {
                let name = format!("client:{of_size}:{nth}");
                clients.push(with_input(&server, &mut observer, &name, *size));
            }
        }
        // One size may be closed in part. Larger clients are gone, and all smaller ones stay.
        let mut n_left = N_EACH * SIZES.len();
        for of_size in (0..SIZES.len()).rev() {
            let name = |nth| format!("client:{of_size}:{nth}");
            let each = field_of(&mut observer, &name(0), "tot-mem").expect("it is there");
            for n_to_go in [1, N_EACH - 1] {
                let all = figure(&mut observer, "mem_clients_normal");
                limit(&mut observer, all - n_to_go * each);
                n_left -= n_to_go;
                assert_eq!(figure(&mut observer, "connected_clients"), n_left + 1, "{layout:?}");
            }
            for nth in 0..N_EACH {
                assert_eq!(field_of(&mut observer, &name(nth), "qbuf"), None);
            }
        }
        assert_eq!(n_left, 0);
        assert_eq!(figure(&mut observer, "evicted_clients"), N_EACH * SIZES.len());
    }
}

#[test]
fn a_part_of_maxmemory_is_a_limit_and_without_maxmemory_it_is_none() {
    for layout in LAYOUTS {
        let server = laid_out(layout);
        let mut observer = server.connect();
        assert_eq!(ask(&mut observer, "CONFIG SET maxmemory-clients 5%"), "+OK");
        let _fits = with_input(&server, &mut observer, "one", 5 << 20);
        assert_eq!(ask(&mut observer, "CONFIG SET maxmemory 200mb"), "+OK");
        assert_eq!(figure(&mut observer, "evicted_clients"), 0, "10 MB are 5 %");
        assert_eq!(ask(&mut observer, "CONFIG SET maxmemory 99mb"), "+OK");
        assert_eq!(field_of(&mut observer, "one", "qbuf"), None);
        assert_eq!(ask(&mut observer, "CONFIG GET maxmemory-clients"), "[\"maxmemory-clients\" \"5%\"]");
    }
}

#[test]
fn a_client_that_asks_to_be_spared_is_and_counts_all_the_same() {
    for layout in LAYOUTS {
        let server = laid_out(layout);
        let mut observer = server.connect();
        assert_eq!(ask(&mut observer, "CLIENT NO-EVICT ON"), "+OK");
        let mut spared = named(&server, "spared");
        assert_eq!(ask(&mut spared, "CLIENT NO-EVICT ON"), "+OK");
        assert_eq!(ask(&mut spared, "MULTI"), "+OK");
        limit(&mut observer, LIMIT);
        let _small = named(&server, "small");
        assert_eq!(ask(&mut spared, &format!("SET key {}", "x".repeat(2 * LIMIT))), "+QUEUED");
        until("the small one goes in its place", || field_of(&mut observer, "small", "qbuf").is_none());
        assert!(field_of(&mut observer, "spared", "multi-mem").is_some_and(|bytes| bytes > 2 * LIMIT));
        assert_eq!(ask(&mut spared, "EXEC"), "[+OK]");
        until("it is free", || field_of(&mut observer, "spared", "multi-mem") == Some(0));
        assert_eq!(ask(&mut spared, "MULTI"), "+OK");
        assert_eq!(ask(&mut spared, "CLIENT NO-EVICT OFF"), "+QUEUED");
        tell(&mut spared, &format!("SET key {}", "x".repeat(LIMIT / 2)));
        assert_eq!(spared.receive().to_string(), "+QUEUED");
        assert_eq!(ask(&mut spared, "EXEC"), "[+OK +OK]");
        let _ = spared.try_send_raw(&incomplete(2 * LIMIT));
        until("it is spared no more", || field_of(&mut observer, "spared", "qbuf").is_none());
        assert_eq!(figure(&mut observer, "evicted_clients"), 2);
    }
}

/// A reply longer than a client may leave unread never counts: only that client is closed.
#[test]
fn clients_over_their_output_limit_take_no_others_with_them() {
    for layout in LAYOUTS {
        let server = laid_out(layout);
        let mut observer = server.connect();
        assert_eq!(
            ask(&mut observer, &format!("SETRANGE large {} x", 4 * LIMIT)),
            format!(":{}", 4 * LIMIT + 1)
        );
        let limits = format!("normal {} 0 0", 3 * LIMIT);
        let set = observer.command(&["CONFIG", "SET", "client-output-buffer-limit", &limits]);
        assert_eq!(set.to_string(), "+OK");
        limit(&mut observer, 10 * LIMIT);
        let _large = with_input(&server, &mut observer, "large", 9 * LIMIT);
        let mut readers: Vec<Client> = (0..2).map(|_| server.connect()).collect();
        readers.iter_mut().for_each(|client| tell(client, "GET large"));
        for client in &mut readers {
            assert_eq!(client.await_close().expect("it is closed"), None);
        }
        assert_eq!(field_of(&mut observer, "large", "qbuf"), Some(9 * LIMIT));
        assert_eq!(figure(&mut observer, "evicted_clients"), 0);
        assert_eq!(figure(&mut observer, "client_output_buffer_limit_disconnections"), 2);
    }
}

/// Clients that wait, are held back or have work in progress count, and are closed, too.
#[test]
fn clients_with_commands_under_way_are_closed_too() {
    for layout in LAYOUTS {
        let server = laid_out(layout);
        let mut observer = server.connect();
        let blocks = |name: &str| {
            let mut client = named(&server, name);
            client.send(&["BLPOP", &"k".repeat(200_000), "0"]);
            client
        };
        let held_back = |name: &str| {
            let mut client = named(&server, name);
            client.send(&["SET", "key", &"v".repeat(200_000)]);
            client
        };
        let blocked: Vec<Client> = (0..3).map(|nth| blocks(&format!("blocked:{nth}"))).collect();
        assert_eq!(ask(&mut observer, "CLIENT PAUSE 100000 WRITE"), "+OK");
        let postponed: Vec<Client> = (0..3).map(|nth| held_back(&format!("postponed:{nth}"))).collect();
        for kind in ["blocked", "postponed"] {
            for nth in 0..3 {
                until("it counts", || {
                    field_of(&mut observer, &format!("{kind}:{nth}"), "argv-mem")
                        .is_some_and(|bytes| bytes > 200_000)
                });
            }
        }
        limit(&mut observer, LIMIT / 16);
        assert_eq!(figure(&mut observer, "evicted_clients"), 6);
        for mut client in blocked.into_iter().chain(postponed) {
            assert_eq!(client.await_close().expect("it is closed"), None);
        }
        assert_eq!(ask(&mut observer, "CLIENT UNPAUSE"), "+OK");
        until("all have left", || figure(&mut observer, "mem_clients_normal") < LIMIT / 16);
        assert_eq!(ask(&mut observer, "EXISTS key"), ":0");
        assert_eq!(figure(&mut observer, "blocked_clients"), 0);
    }
}

/// A connection that changes threads is counted by one thread.
#[test]
fn connections_that_move_are_counted_once() {
    let server = Server::start(&["--io-threads", "4", "--io-threads-always-active", "no"]);
    let mut observer = server.connect();
    let clients: Vec<Client> =
        (0..20).map(|nth| with_input(&server, &mut observer, &format!("client:{nth}"), 50_000)).collect();
    let before = figure(&mut observer, "mem_clients_normal");
    move_connections(&mut observer, 4, || false);
    until("each is counted where it has gone", || figure(&mut observer, "mem_clients_normal") == before);
    drop(clients);
    until("all have left", || figure(&mut observer, "mem_clients_normal") < 50_000);
}

/// Many clients grow at once, over and over. The sum stays correct, and small clients are not closed.
#[test]
fn many_clients_that_grow_at_once_are_closed_and_no_other() {
    for layout in LAYOUTS {
        let server = laid_out(layout);
        let mut observer = server.connect();
        limit(&mut observer, LIMIT);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for nth in 0..25 {
                        let mut client = server.connect();
                        let _ = client.try_send_raw(&incomplete(LIMIT / 3 + nth * 50_000));
                        let _ = client.try_command(&["PING"]);
                    }
                });
            }
            scope.spawn(|| {
                let mut client = server.connect();
                for n in 1..=3000 {
                    assert_eq!(ask(&mut client, "INCR count"), format!(":{n}"));
                }
            });
        });
        until("all have left", || {
            figure(&mut observer, "connected_clients") == 1
                && figure(&mut observer, "mem_clients_normal") < LIMIT / 16
        });
    }
}

/// A reply is kept in one piece until its last byte is sent. Only its unsent part used to count.
#[test]
fn a_reply_that_is_partly_sent_counts_whole() {
    const N_BYTES: usize = 64 << 20;
    let server = laid_out((2, 16));
    let mut observer = server.connect();
    assert_eq!(ask(&mut observer, &format!("SETRANGE big {} x", N_BYTES - 1)), format!(":{N_BYTES}"));
    let mut half = TcpStream::connect(("127.0.0.1", server.port())).expect("the server listens");
    half.write_all(b"CLIENT SETNAME half\r\nGET big\r\n").expect("it reads");
    half.read_exact(&mut vec![0; N_BYTES / 2]).expect("it sends");
    // The system has taken more than half, but not all.
    assert!(field_of(&mut observer, "half", "omem") >= Some(N_BYTES));
    half.read_exact(&mut vec![0; N_BYTES / 2]).expect("it sends the rest");
    until("nothing is left", || field_of(&mut observer, "half", "omem") == Some(0));
}

/// The buffer was made for everything that was announced. It counted as memory in use, so keys were evicted,
/// but not as memory of its client.
#[test]
fn room_for_what_a_client_has_announced_counts_and_is_in_proportion_to_what_it_has_sent() {
    const N_SENT: usize = 300_000;
    for layout in LAYOUTS {
        let server = laid_out(layout);
        let mut observer = server.connect();
        let before = figure(&mut observer, "used_memory");
        let mut client = named(&server, "announces");
        let mut request = format!("*2\r\n${}\r\n", 400 << 20).into_bytes();
        request.resize(request.len() + N_SENT, b'x');
        client.send_raw(&request);
        until("it is read", || field_of(&mut observer, "announces", "qbuf") == Some(N_SENT));
        until("there is room", || field_of(&mut observer, "announces", "qbuf-free") > Some(N_SENT));
        let room = field_of(&mut observer, "announces", "qbuf-free").expect("it is there");
        assert!(room <= 16 * N_SENT, "{room}");
        assert!(field_of(&mut observer, "announces", "tot-mem") > Some(N_SENT + room));
        let after = figure(&mut observer, "used_memory");
        assert!(after < before + 20 * N_SENT, "{before} {after}");
        limit(&mut observer, LIMIT);
        until("it is closed", || field_of(&mut observer, "announces", "qbuf").is_none());
        assert_eq!(figure(&mut observer, "evicted_clients"), 1);
    }
}
