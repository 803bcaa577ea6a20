//! How connections begin, fail and end: half-closed, broken off, silent, greedy, slow, refused.

use std::{
    io::{BufReader, Read, Write},
    net::{Shutdown, TcpListener, TcpStream},
    os::unix::net::UnixStream,
    process::{Command, Output, Stdio},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use crate::support::{
    Client, PATIENCE, Port, Reply, Server,
    crowd::{AtEnd, ask, await_clients, crowd, figure, laid_out, tell, until},
};
use socket2::SockRef;

const LAYOUTS: [(usize, usize); 3] = [(1, 16), (2, 1024), (8, 1)];

/// Opens a plain socket without a client's behaviour.
fn raw(server: &Server) -> TcpStream {
    let stream = TcpStream::connect(("127.0.0.1", server.port())).expect("the server listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("a timeout above zero");
    stream
}

/// Closes a socket so that the peer sees a reset.
fn reset(stream: TcpStream) {
    SockRef::from(&stream).set_linger(Some(Duration::ZERO)).expect("a TCP socket lingers");
}

fn command(words: &[&[u8]]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        bytes.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        bytes.extend_from_slice(word);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes
}

#[test]
fn a_client_that_sends_no_more_gets_all_its_replies() {
    for layout in LAYOUTS {
        let server = laid_out(layout);
        crowd(&server, 4, |id, client| {
            for n in 0..300 {
                tell(client, "INCR shared");
                tell(client, &format!("MSET a {n} b {n}"));
                tell(client, &format!("INCR own{id}"));
            }
            tell(client, "KEYS own*");
            tell(client, "MULTI");
            tell(client, "INCR shared");
            tell(client, "EXEC");
            tell(client, "ECHO last");
            client.finish_sending();
            for n in 0..300 {
                assert!(client.receive().integer().is_some());
                assert_eq!(client.receive().to_string(), "+OK");
                assert_eq!(client.receive().integer(), Some(n + 1));
            }
            assert!(matches!(client.receive(), Reply::Array(_)));
            assert_eq!(client.receive().to_string(), "+OK");
            assert_eq!(client.receive().to_string(), "+QUEUED");
            assert!(matches!(client.receive(), Reply::Array(_)));
            assert_eq!(client.receive().to_string(), "\"last\"");
            assert_eq!(client.await_close().expect("it closes"), None);
        });
        let mut client = server.connect();
        assert_eq!(ask(&mut client, "GET shared"), format!("\"{}\"", 4 * 301));
        await_clients(&mut client, 1);
    }
}

#[test]
fn a_half_closed_client_gets_megabytes_of_replies() {
    let server = laid_out((2, 16));
    let mut client = server.connect();
    assert_eq!(client.command(&[&b"SET"[..], b"big", &[b'x'; 1 << 20]]).to_string(), "+OK");
    (0..20).for_each(|_| tell(&mut client, "GET big"));
    client.finish_sending();
    for _ in 0..20 {
        assert!(matches!(client.receive(), Reply::Bulk(value) if value.len() == 1 << 20));
    }
    assert_eq!(client.await_close().expect("it closes"), None);
}

#[test]
fn clients_that_vanish_leave_nothing_behind() {
    for layout in LAYOUTS {
        let server = laid_out(layout);
        let mut control = server.connect();
        let deeds: [&[u8]; 8] = [
            b"MULTI\r\nINCR a\r\nINCR b\r\n",
            b"WATCH a b c\r\nMULTI\r\nINCR a\r\n",
            b"WATCH a b c\r\n",
            b"KEYS *\r\nKEYS *\r\nKEYS *\r\n",
            b"DEBUG SLEEP 1000\r\nSET after runs\r\n",
            b"WAIT 1 0\r\n",
            b"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$1000000\r\nhalf of it",
            b"GET big\r\nGET big\r\nGET big\r\nGET big\r\n",
        ];
        let info = control.command(&["INFO", "stats"]).text().expect("INFO answers text");
        let n_before = info.lines().find_map(|line| line.strip_prefix("total_connections_received:"));
        let n_before: usize = n_before.expect("INFO counts connections").parse().expect("a number");
        let all_came = format!("total_connections_received:{}\r", n_before + 80);
        let big = vec![b'x'; 1 << 20];
        assert_eq!(control.command(&[&b"SET"[..], b"big", &big]).to_string(), "+OK");
        for n in 0..80 {
            let mut stream = raw(&server);
            stream.write_all(deeds[n % deeds.len()]).expect("it is sent");
            let increments = command(&[b"INCR", b"counter"]).repeat(50);
            if n % 2 == 0 {
                // Commands after one that waits, inside MULTI, or inside a value.
                let _ = stream.write_all(&increments);
            }
            match n % 3 {
                0 => reset(stream),
                1 => drop(stream),
                _ => {
                    stream.shutdown(Shutdown::Write).expect("a socket that is open");
                    drop(stream);
                }
            }
        }
        await_clients(&mut control, 1);
        // Nothing is watched or held any more.
        assert_eq!(ask(&mut control, "MSET a 1 b 2 c 3"), "+OK");
        assert_eq!(ask(&mut control, "EXISTS k"), ":0");
        assert_eq!(ask(&mut control, "WATCH a"), "+OK");
        assert_eq!(ask(&mut control, "MULTI"), "+OK");
        assert_eq!(ask(&mut control, "DBSIZE"), "+QUEUED");
        assert!(ask(&mut control, "EXEC").starts_with("[:"));
        until("all came and went", || {
            let info = control.command(&["INFO"]).text().expect("INFO answers text");
            [&all_came[..], "connected_clients:1\r", "blocked_clients:0\r"]
                .iter()
                .all(|line| info.contains(line))
        });
    }
}

#[test]
fn clients_that_vanish_under_contention_leave_no_shard_held() {
    let server = laid_out((8, 1));
    crowd(&server, 8, |id, client| {
        for round in 0..20 {
            if id < 4 {
                let mut stream = raw(&server);
                let transaction =
                    [command(&[b"MULTI"]), command(&[b"INCR", b"counter"]).repeat(20), command(&[b"EXEC"])];
                let _ = stream.write_all(&transaction.concat());
                if round % 2 == 0 {
                    reset(stream);
                }
            } else {
                (0..20).for_each(|_| tell(client, "INCR own"));
                (0..20).for_each(|_| assert!(client.receive().integer().is_some()));
            }
        }
    });
    let mut control = server.connect();
    await_clients(&mut control, 1);
    assert_eq!(ask(&mut control, "GET own"), format!("\"{}\"", 4 * 20 * 20));
    // A transaction ran whole or not at all.
    let count =
        control.command(&["GET", "counter"]).text().map_or(0, |count| count.parse::<u64>().expect("a count"));
    assert_eq!(count % 20, 0);
}

#[test]
fn a_client_that_does_not_read_disturbs_nobody() {
    let server = laid_out((1, 16));
    let mut control = server.connect();
    assert_eq!(control.command(&[&b"SET"[..], b"big", &[b'x'; 1 << 20]]).to_string(), "+OK");
    let mut deaf = raw(&server);
    deaf.write_all(&command(&[b"GET", b"big"]).repeat(30)).expect("it is sent");
    let output = |control: &mut Client| -> u64 {
        let list = control.command(&["CLIENT", "LIST"]).text().expect("CLIENT LIST answers text");
        let sizes = list.split_whitespace().filter_map(|field| field.strip_prefix("omem="));
        sizes.map(|size| size.parse::<u64>().expect("a number")).sum()
    };
    until("megabytes wait for the client", || output(&mut control) > 10 << 20);
    for n in 0..200 {
        assert_eq!(ask(&mut control, "INCR n"), format!(":{}", n + 1));
    }
    // The client receives everything as soon as it reads.
    let mut replies = BufReader::new(&deaf);
    for _ in 0..30 {
        let reply = Reply::read(&mut replies).expect("a reply");
        assert!(matches!(reply, Reply::Bulk(value) if value.len() == 1 << 20));
    }
    until("nothing waits any more", || output(&mut control) == 0);
}

#[test]
fn a_client_over_the_hard_output_limit_is_closed() {
    let server = laid_out((2, 16));
    let mut control = server.connect();
    assert_eq!(
        control.command(&["CONFIG", "SET", "client-output-buffer-limit", "normal 4mb 0 0"]).to_string(),
        "+OK"
    );
    assert_eq!(control.command(&[&b"SET"[..], b"big", &[b'x'; 1 << 20]]).to_string(), "+OK");
    // The limit holds for a connection from its next look at the configuration on.
    let mut deaf = raw(&server);
    until("the server closes it", || {
        let _ = deaf.write_all(&command(&[b"GET", b"big"]).repeat(10));
        ask(&mut control, "INFO stats").contains("client_output_buffer_limit_disconnections:1\\r")
    });
    await_clients(&mut control, 1);
    assert!(server.log_tail().contains("for overcoming of output buffer limits"), "{}", server.log_tail());
}

/// It used to show that nothing waited for it until the shards with its subscriptions were free.
#[test]
fn a_client_that_was_closed_shows_why_as_long_as_it_is_listed() {
    for layout in LAYOUTS {
        let server = laid_out(layout);
        let mut control = server.connect();
        let mut deaf = server.connect();
        tell(&mut deaf, "CLIENT SETNAME deaf");
        tell(&mut deaf, "SUBSCRIBE channel");
        (0..2).for_each(|_| drop(deaf.receive()));
        let mut omem = || {
            let list = ask(&mut control, "CLIENT LIST");
            let (_, line) = list.split_once("name=deaf")?;
            let (_, rest) = line.split_once(" omem=")?;
            rest.split(' ').next()?.parse::<u64>().ok()
        };
        let mut publisher = server.connect();
        assert_eq!(ask(&mut publisher, "CONFIG SET busy-reply-threshold 1"), "+OK");
        let message = "x".repeat(1 << 20);
        until("more waits than its socket takes", || {
            ask(&mut publisher, &format!("PUBLISH channel {message}"));
            omem().is_some_and(|n_bytes| n_bytes > 4 << 20)
        });
        // The rest of the subscription cannot be removed from the shard meanwhile.
        let mut holder = server.connect();
        holder.send(&["EVAL", "while true do end", "1", "channel"]);
        until("the shard is held", || ask(&mut publisher, "GET channel").starts_with("-BUSY"));
        let limit = ["CONFIG", "SET", "client-output-buffer-limit", "pubsub 1mb 0 0"];
        assert_eq!(publisher.command(&limit).to_string(), "+OK");
        until("it is closed", || {
            ask(&mut publisher, "INFO stats").contains("client_output_buffer_limit_disconnections:1\\r")
        });
        assert!(omem().is_some_and(|n_bytes| n_bytes > 4 << 20), "{:?}", omem());
        assert_eq!(ask(&mut publisher, "SCRIPT KILL"), "+OK");
        until("it is listed no more", || omem().is_none());
    }
}

/// All replies of a batch used to be made before the first was written. Only then did the server learn that
/// nobody would read them.
#[test]
fn what_a_client_has_asked_for_that_leaves_is_not_made() {
    for layout in LAYOUTS {
        let server = laid_out(layout);
        let mut control = server.connect();
        assert_eq!(control.command(&[&b"SET"[..], b"big", &[b'x'; 3 << 20]]).to_string(), "+OK");
        for _ in 0..5 {
            let mut hasty = raw(&server);
            // It has left before its GETs run.
            hasty.write_all(&command(&[b"DEBUG", b"SLEEP", b"600"])).expect("it is sent");
            hasty.write_all(&command(&[b"GET", b"big"]).repeat(30)).expect("it is sent");
        }
        until("all have come", || figure(&mut control, "total_connections_received") >= 6);
        await_clients(&mut control, 1);
        let stats = ask(&mut control, "INFO commandstats");
        let calls = stats.split_once("cmdstat_get:calls=").and_then(|(_, rest)| rest.split(',').next());
        let calls: usize = calls.and_then(|calls| calls.parse().ok()).expect("GETs have run");
        assert!(calls <= 5 * 5, "{calls} replies of 3 MB were made for nobody");
        // A client that only closes its sending half and reads receives all replies.
        let mut client = raw(&server);
        client.write_all(&command(&[b"GET", b"big"]).repeat(30)).expect("it is sent");
        client.shutdown(Shutdown::Write).expect("it is connected");
        let mut replies = BufReader::new(&client);
        for _ in 0..30 {
            let reply = Reply::read(&mut replies).expect("a reply");
            assert!(matches!(reply, Reply::Bulk(value) if value.len() == 3 << 20));
        }
    }
}

/// The thread used to keep the buffer of the reply.
#[test]
fn a_reply_over_the_hard_output_limit_leaves_no_memory_behind() {
    for io_threads in [1, 4] {
        let server = laid_out((io_threads, 16));
        let mut control = server.connect();
        let item = "x".repeat(1000);
        (0..800).for_each(|_| drop(ask(&mut control, &format!("LPUSH list {item}"))));
        let set = control.command(&["CONFIG", "SET", "client-output-buffer-limit", "normal 100000 0 0"]);
        assert_eq!(set.to_string(), "+OK");
        // A thread's figures of a command begin with its first run.
        assert_eq!(ask(&mut control, "CONFIG SET latency-tracking no"), "+OK");
        let before = figure(&mut control, "used_memory");
        for _ in 0..8 {
            let mut client = server.connect();
            tell(&mut client, "LRANGE list 0 -1");
            assert_eq!(client.await_close().expect("it is closed"), None);
        }
        await_clients(&mut control, 1);
        until("all is free", || figure(&mut control, "used_memory") < before + 50_000);
    }
}

/// The server knows that a reply exceeds the limit before it sends any of it. Later commands do not run, but
/// those of its transaction do.
#[test]
fn a_reply_over_the_hard_output_limit_is_not_even_begun() {
    for layout in LAYOUTS {
        let server = laid_out(layout);
        let mut control = server.connect();
        let limit = ["CONFIG", "SET", "client-output-buffer-limit", "normal 100000 0 0"];
        assert_eq!(control.command(&limit).to_string(), "+OK");
        assert_eq!(control.command(&[&b"SET"[..], b"big", &[b'x'; 60_000]]).to_string(), "+OK");
        assert_eq!(control.command(&["HSET", "hash", "field", "value"]).to_string(), ":1");
        assert_eq!(control.command(&["DEBUG", "POPULATE", "9000"]).to_string(), "+OK");
        let set: &[&[u8]] = &[b"SET", b"set", b"1"];
        let get: &[&[u8]] = &[b"GET", b"big"];
        let pipelines: [(&[&[&[u8]]], &str); 4] = [
            (&[&[b"MGET", b"big", b"big"], set], "(nil)"),
            (&[&[b"KEYS", b"*"], set], "(nil)"),
            (&[&[b"HRANDFIELD", b"hash", b"-999999999"], set], "(nil)"),
            (&[&[b"MULTI"], get, get, set, &[b"EXEC"]], "\"1\""),
        ];
        for (commands, written) in pipelines {
            let mut greedy = raw(&server);
            let bytes: Vec<u8> = commands.iter().flat_map(|words| command(words)).collect();
            greedy.write_all(&bytes).expect("it is sent");
            let mut answer = Vec::new();
            let _ = greedy.read_to_end(&mut answer);
            // The QUEUED replies of the transaction may have left before.
            assert!(answer.len() < 100, "{} bytes", answer.len());
            assert_eq!(control.command(&["GET", "set"]).to_string(), written, "{:?}", commands[0][0]);
        }
    }
}

/// CONFIG SET port and bind close unwanted listeners before they answer, or change nothing at all.
#[test]
fn the_server_moves_to_another_port_or_stays_where_it_is() {
    let server = laid_out((2, 16));
    let mut control = server.connect();
    let mut set = |words: &[&str]| control.command(&[&["CONFIG", "SET"], words].concat()).to_string();
    let reaches = |host: &str, port: u16| TcpStream::connect((host, port)).is_ok();
    let old = server.port();
    let claimed = Port::claim();
    let new = claimed.number();
    assert_eq!(set(&["port", &new.to_string()]), "+OK");
    assert!(reaches("127.0.0.1", new) && !reaches("127.0.0.1", old));

    let taken = TcpListener::bind(("127.0.0.1", 0)).expect("loopback has a free port");
    let port = taken.local_addr().expect("it is bound").port().to_string();
    assert_eq!(
        set(&["timeout", "7", "port", &port]),
        "-ERR CONFIG SET failed (possibly related to argument 'port') - Unable to listen on this port. Check server logs."
    );
    let unbound = "-ERR CONFIG SET failed (possibly related to argument 'bind') - Failed to bind to specified addresses.";
    assert_eq!(set(&["bind", "127.0.0.1 999.999.999.999"]), unbound);
    // The first address covers the second one, so that one is closed before the third is known to fail.
    assert_eq!(set(&["bind", "* 192.0.2.1"]), unbound);
    assert!(reaches("127.0.0.1", new) && !reaches("127.0.0.2", new));

    assert_eq!(set(&["bind", "*"]), "+OK");
    assert!(reaches("127.0.0.1", new) && reaches("127.0.0.2", new));
    assert_eq!(set(&["bind", "127.0.0.2"]), "+OK");
    assert!(!reaches("127.0.0.1", new) && reaches("127.0.0.2", new));
    assert_eq!(set(&["bind", ""]), "+OK");
    assert!(!reaches("127.0.0.1", new) && !reaches("127.0.0.2", new));
    assert_eq!(set(&["bind", "127.0.0.1", "port", &old.to_string()]), "+OK");
    assert!(reaches("127.0.0.1", old));
    assert_eq!(control.command(&["CONFIG", "GET", "timeout"]).to_string(), "[\"timeout\" \"0\"]");
}

/// The server used to notice only at the client's next request.
#[test]
fn a_client_over_the_soft_output_limit_for_too_long_is_closed_without_asking_for_more() {
    let server = Server::start(&["--client-output-buffer-limit", "normal", "0", "1mb", "1"]);
    let mut control = server.connect();
    assert_eq!(control.command(&[&b"SET"[..], b"big", &[b'x'; 1 << 20]]).to_string(), "+OK");
    let mut deaf = raw(&server);
    deaf.write_all(&command(&[b"GET", b"big"]).repeat(20)).expect("it is sent");
    until("the server closes it", || {
        ask(&mut control, "INFO stats").contains("client_output_buffer_limit_disconnections:1\\r")
    });
    await_clients(&mut control, 1);
}

#[test]
fn a_request_may_trickle_in_byte_by_byte() {
    let server = laid_out((2, 16));
    let mut trickle = raw(&server);
    trickle.set_nodelay(true).expect("a TCP socket");
    let requests = [
        command(&[b"SET", b"key", b"va\r\nlue"]),
        b"GET key\r\n".to_vec(),
        b"\r\n".to_vec(),
        b"ECHO \"a \\x41\"\n".to_vec(),
        command(&[b"MSET", b"a", b"", b"b", b"2"]),
        command(&[b"MGET", b"a", b"b", b"c"]),
    ]
    .concat();
    for byte in &requests {
        trickle.write_all(std::slice::from_ref(byte)).expect("it is sent");
    }
    let mut replies = BufReader::new(&trickle);
    let replies: Vec<String> =
        (0..5).map(|_| Reply::read(&mut replies).expect("a reply").to_string()).collect();
    assert_eq!(replies, ["+OK", "\"va\\r\\nlue\"", "\"a A\"", "+OK", "[\"\" \"2\" (nil)]"]);
}

#[test]
fn megabytes_go_in_and_out_unharmed() {
    for layout in LAYOUTS {
        let server = laid_out(layout);
        crowd(&server, 4, |id, client| {
            let value: Vec<u8> = (0..1_000_000).map(|n: usize| (n * 7 + id + n / 1000) as u8).collect();
            for round in 0..4 {
                let key = format!("{id}-{round}");
                client.send(&[b"SET", key.as_bytes(), &value]);
                client.send(&["GET", &key]);
                client.send(&["APPEND", &key, "tail"]);
                client.send(&["GETRANGE", &key, "999990", "-1"]);
                assert_eq!(client.receive().to_string(), "+OK");
                assert!(client.receive() == Reply::Bulk(value.clone()), "another value came back");
                assert_eq!(client.receive().to_string(), ":1000004");
                let Reply::Bulk(end) = client.receive() else { panic!("GETRANGE answers text") };
                assert_eq!(end, [&value[999_990..], b"tail"].concat());
            }
        });
    }
}

#[test]
fn a_hundred_thousand_commands_may_be_sent_before_a_reply_is_read() {
    const N: usize = 100_000;
    for layout in [(1, 16), (8, 1024)] {
        let server = laid_out(layout);
        let mut stream = raw(&server);
        let mut bytes = Vec::new();
        for n in 0..N {
            bytes.extend(command(&[b"INCR", if n % 2 == 0 { b"even" } else { b"odd" }]));
        }
        let sender = stream.try_clone().map(|mut stream| thread::spawn(move || stream.write_all(&bytes)));
        sender.expect("a socket can be cloned").join().expect("no panic").expect("all is sent");
        let expected: String = (0..N).map(|n| format!(":{}\r\n", n / 2 + 1)).collect();
        let mut replies = vec![0; expected.len()];
        stream.read_exact(&mut replies).expect("all replies come");
        assert!(replies == expected.as_bytes(), "the replies are not those to this pipeline");
    }
}

#[test]
fn a_command_on_a_hundred_thousand_keys_runs_beside_others() {
    const N: usize = 100_000;
    for layout in LAYOUTS {
        let server = laid_out(layout);
        crowd(&server, 3, |id, client| {
            if id > 0 {
                for n in 0..500 {
                    assert_eq!(ask(client, &format!("INCR own{id}")), format!(":{}", n + 1));
                    // All of them were set at once.
                    let Reply::Array(seen) = client.command(&["MGET", "key0", "key99999", "key500"]) else {
                        panic!("MGET answers an array")
                    };
                    assert!(seen.iter().all(|value| *value == seen[0]), "{seen:?}");
                }
                return;
            }
            for round in 0..2 {
                let pairs = (0..N).flat_map(|n| [format!("key{n}"), round.to_string()]);
                client.send(&std::iter::once("MSET".to_owned()).chain(pairs).collect::<Vec<_>>());
                assert_eq!(client.receive().to_string(), "+OK");
            }
            let keys = (0..N).map(|n| format!("key{n}"));
            assert_eq!(
                client.command(&std::iter::once("DEL".to_owned()).chain(keys).collect::<Vec<_>>()).integer(),
                Some(N as i64)
            );
        });
        assert_eq!(ask(&mut server.connect(), "DBSIZE"), ":2");
    }
}

/// Threads used to adopt a changed limit a moment after the reply to CONFIG SET.
#[test]
fn a_changed_limit_holds_for_whatever_is_sent_after_the_reply() {
    let server = laid_out((2, 16));
    let long = vec![b'v'; 3 << 20];
    for _ in 0..10 {
        for directive in ["client-query-buffer-limit", "proto-max-bulk-len"] {
            let mut control = server.connect();
            let mut others: Vec<Client> = (0..3).map(|_| server.connect()).collect();
            assert_eq!(ask(&mut control, &format!("CONFIG SET {directive} 1mb")), "+OK");
            assert_eq!(ask(&mut control, &format!("CONFIG SET {directive} 1gb")), "+OK");
            for client in others.iter_mut().chain([&mut control]) {
                assert_eq!(client.command(&[&b"SET"[..], b"key", &long]).to_string(), "+OK", "{directive}");
            }
            assert_eq!(ask(&mut control, &format!("CONFIG SET {directive} 1mb")), "+OK");
            for mut client in others {
                let reply = client.try_command(&[&b"SET"[..], b"key", &long]);
                let is_refused =
                    reply.as_ref().map_or(true, |reply| reply.to_string().starts_with("-ERR Protocol error"));
                assert!(is_refused, "{directive}: {reply:?}");
            }
            assert_eq!(ask(&mut control, &format!("CONFIG SET {directive} 1gb")), "+OK");
        }
    }
}

/// The limit used to be checked only at the next reply or message to the client.
#[test]
fn a_lowered_hard_output_limit_closes_whoever_holds_more() {
    let server = laid_out((2, 16));
    let mut control = server.connect();
    let long = "v".repeat(1 << 20);
    control.command(&["SET", "long", &long]);
    let mut reader = server.connect();
    for _ in 0..32 {
        tell(&mut reader, "GET long");
    }
    let mut subscriber = server.connect();
    assert!(ask(&mut subscriber, "SUBSCRIBE channel").contains("subscribe"));
    for _ in 0..24 {
        control.command(&["PUBLISH", "channel", &long]);
    }
    let held = |client: &mut Client| {
        let list = client.command(&["CLIENT", "LIST"]).text().unwrap_or_default().to_owned();
        list.lines().filter(|line| !line.contains(" omem=0 ")).count()
    };
    until("both hold replies back", || held(&mut control) == 2);
    let limits = "normal 1mb 0 0 pubsub 1mb 0 0";
    assert_eq!(control.command(&["CONFIG", "SET", "client-output-buffer-limit", limits]).to_string(), "+OK");
    await_clients(&mut control, 1);
}

/// Connections on the way to their thread used to be left out of the count.
#[test]
fn of_many_that_connect_at_once_no_more_than_maxclients_are_let_in() {
    const LIMIT: usize = 10;
    let server = Server::start(&["--io-threads", "8", "--maxclients", "10"]);
    let mut control = server.connect();
    for round in 0..5 {
        // Earlier connections have left.
        await_clients(&mut control, 1);
        let mut streams: Vec<TcpStream> = (0..60).map(|_| raw(&server)).collect();
        let replies: Vec<String> = streams
            .iter_mut()
            .map(|stream| {
                let _ = stream.write_all(b"PING\r\n");
                // Some refused connections are closed before the PING, and see nothing else.
                Reply::read(&mut BufReader::new(&*stream))
                    .map_or_else(|error| error.to_string(), |reply| reply.to_string())
            })
            .collect();
        let n_served = replies.iter().filter(|reply| *reply == "+PONG").count();
        assert_eq!(n_served, LIMIT - 1, "round {round}: {replies:?}");
        for reply in &replies {
            assert!(!reply.starts_with('-') || reply == "-ERR max number of clients reached", "{reply}");
        }
    }
}

#[test]
fn a_silent_client_is_closed_after_the_timeout() {
    let server = laid_out((2, 16));
    let mut control = server.connect();
    let mut silent = [server.connect(), server.connect()];
    assert_eq!(ask(&mut silent[0], "PING"), "+PONG");
    // It waits for longer than the timeout, and began before there was one.
    let mut waits = server.connect();
    tell(&mut waits, "BLPOP list 0");
    until("it waits", || ask(&mut control, "INFO clients").contains("blocked_clients:1"));
    assert_eq!(ask(&mut control, "CONFIG SET timeout 1"), "+OK");
    for client in &mut silent {
        assert_eq!(client.await_close().expect("it closes"), None);
    }
    assert_eq!(ask(&mut server.connect(), "RPUSH list element"), ":1");
    assert_eq!(waits.receive().to_string(), "[\"list\" \"element\"]");
}

#[test]
fn browsers_are_shown_the_door() {
    let server = laid_out((2, 16));
    for request in [
        "POST / HTTP/1.1\r\nHost: x\r\n\r\nSET key value\r\n",
        "GET / HTTP/1.1\r\nHost: x\r\n\r\nSET key value\r\n",
    ] {
        let mut browser = raw(&server);
        browser.write_all(request.as_bytes()).expect("it is sent");
        let mut answer = Vec::new();
        // Closing with unread input resets the connection.
        let _ = browser.read_to_end(&mut answer);
        assert!(!String::from_utf8_lossy(&answer).contains("+OK"));
    }
    assert_eq!(ask(&mut server.connect(), "EXISTS key"), ":0");
    assert!(server.log_tail().contains("Possible SECURITY ATTACK detected"), "{}", server.log_tail());
}

/// Each of them used to write a line to the log, so a stranger could fill the disk.
#[test]
fn strangers_do_not_fill_the_log() {
    let server = laid_out((2, 16));
    let mut client = server.connect();
    assert_eq!(ask(&mut client, "CONFIG SET requirepass secret client-query-buffer-limit 1mb"), "+OK");
    for n in 0..300 {
        let mut stranger = raw(&server);
        let request: &[u8] = if n % 2 == 0 { b"POST / HTTP/1.1\r\n\r\n" } else { b"Host: x\r\n\r\n" };
        stranger.write_all(request).expect("it is sent");
        let _ = stranger.read_to_end(&mut Vec::new());
    }
    assert_eq!(ask(&mut client, "ECHO on"), "\"on\"");
    // One line in ten seconds, however long the test takes.
    let n_most = figure(&mut client, "uptime_in_seconds") / 10 + 2;
    let n_lines = server.log().matches("Possible SECURITY ATTACK detected").count();
    assert!((1..=n_most).contains(&n_lines), "{n_lines} lines");
}

#[test]
fn a_stranger_cannot_make_the_server_hold_much() {
    let server = Server::start(&["--requirepass", "secret"]);
    let cases: [(&[u8], &str); 9] = [
        (b"*11\r\n", "-ERR Protocol error: unauthenticated multibulk length"),
        (b"*2\r\n$16385\r\n", "-ERR Protocol error: unauthenticated bulk length"),
        (b"*1000000000000\r\n", "-ERR Protocol error: invalid multibulk length"),
        (b"*x\r\n", "-ERR Protocol error: invalid multibulk length"),
        (b"*1\r\n$-1\r\n", "-ERR Protocol error: invalid bulk length"),
        (b"*1\r\n+OK\r\n", "-ERR Protocol error: expected '$', got '+'"),
        (b"PING \"unbalanced\r\n", "-ERR Protocol error: unbalanced quotes in request"),
        (&[b'x'; 70_000], "-ERR Protocol error: too big inline request"),
        (&[b'*'; 70_000], "-ERR Protocol error: too big mbulk count string"),
    ];
    for (bytes, expected) in cases {
        let mut stream = raw(&server);
        let _ = stream.write_all(bytes);
        let reply = Reply::read(&mut BufReader::new(&stream)).expect("an error").to_string();
        assert_eq!(reply, expected);
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest);
        assert_eq!(rest, b"");
    }
    // After the password, larger requests are accepted in the same batch.
    let mut client = server.connect();
    tell(&mut client, "AUTH secret");
    client.send(&[&b"SET"[..], b"big", &[b'x'; 20_000]]);
    tell(&mut client, "MGET 1 2 3 4 5 6 7 8 9 10 11");
    assert_eq!(client.receive().to_string(), "+OK");
    assert_eq!(client.receive().to_string(), "+OK");
    assert!(matches!(client.receive(), Reply::Array(values) if values.len() == 11));
    // RESET removes the authentication.
    assert_eq!(ask(&mut client, "RESET"), "+RESET");
    client.send_raw(b"*11\r\n");
    assert_eq!(client.receive().to_string(), "-ERR Protocol error: unauthenticated multibulk length");
}

#[test]
fn guessing_passwords_is_slow_work() {
    let server = Server::start(&["--requirepass", "secret"]);
    let mut control = server.connect();
    assert_eq!(ask(&mut control, "AUTH secret"), "+OK");
    let mut guessing = server.connect();
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                assert!(ask(&mut guessing, "AUTH guess").starts_with("-WRONGPASS"));
            }
        });
        let _over = AtEnd(&is_over);
        until("it is made to wait", || ask(&mut control, "INFO clients").contains("blocked_clients:1"));
    });
    assert_eq!(ask(&mut guessing, "AUTH secret"), "+OK");
    assert_eq!(ask(&mut guessing, "PING"), "+PONG");
}

#[test]
fn a_unix_socket_serves_too() {
    let server = Server::start(&["--unixsocket", "braid.sock", "--unixsocketperm", "700"]);
    let path = server.scratch().join("braid.sock");
    let mode = std::fs::metadata(&path).expect("the socket is there");
    assert_eq!(std::os::unix::fs::PermissionsExt::mode(&mode.permissions()) & 0o777, 0o700);
    let mut stream = UnixStream::connect(&path).expect("it is listened on");
    stream
        .write_all(&[command(&[b"SET", b"a", b"1"]), b"CLIENT LIST\r\nGET a\r\n".to_vec()].concat())
        .expect("it is sent");
    stream.shutdown(Shutdown::Write).expect("it is open");
    let mut replies = BufReader::new(&stream);
    assert_eq!(Reply::read(&mut replies).expect("a reply").to_string(), "+OK");
    let list = Reply::read(&mut replies).expect("a reply").text().expect("text");
    assert!(list.contains("braid.sock:0") && list.contains(" flags=U "), "{list}");
    assert_eq!(Reply::read(&mut replies).expect("a reply").to_string(), "\"1\"");
    assert!(Reply::read(&mut replies).is_err());
    let mut client = server.connect();
    await_clients(&mut client, 1);
    tell(&mut client, "SHUTDOWN");
    let mut server = server;
    assert!(server.await_end().success());
    assert!(!path.exists(), "the socket is still there");
}

/// Whether this machine has IPv6 on its loopback interface.
fn has_ipv6() -> bool {
    TcpListener::bind(("::1", 0)).is_ok()
}

#[test]
fn several_addresses_may_be_bound() {
    let server = Server::start(&["--bind", "127.0.0.1", "-::1", "127.0.0.2", "-192.0.2.1"]);
    assert_eq!(ask(&mut server.connect(), "PING"), "+PONG");
    let others = ["127.0.0.2", "::1"];
    for address in &others[..if has_ipv6() { 2 } else { 1 }] {
        let mut stream = TcpStream::connect((*address, server.port())).expect("it is listened on");
        stream.write_all(b"CLIENT INFO\r\n").expect("it is sent");
        let info = Reply::read(&mut BufReader::new(&stream)).expect("a reply").text().expect("text");
        let local = if address.contains(':') { format!("[{address}]") } else { (*address).to_owned() };
        assert!(info.contains(&format!(" laddr={local}:{} ", server.port())), "{info}");
    }
    assert!(TcpStream::connect(("127.0.0.3", server.port())).is_err());
}

/// Runs the program to its end.
fn run(args: &[&str], stdin: &str) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_braid-server"))
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program runs");
    child.stdin.take().expect("it is piped").write_all(stdin.as_bytes()).expect("it is read");
    child.wait_with_output().expect("it ends")
}

#[test]
fn a_configuration_is_read_from_the_standard_input_and_checked() {
    let output = run(&["--check-config", "-"], "port 7\nmaxmemory 1gb\nrequirepass hush\n");
    let report = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{output:?}");
    assert!(
        report.contains("\n  port 7\n") && report.contains("maxmemory") && !report.contains("hush"),
        "{report}"
    );
}

#[test]
fn an_unknown_directive_is_refused_with_its_line() {
    for args in [&["-"][..], &["--check-config", "-"]] {
        let output = run(args, "# a comment\nport 7\nnonsense 1\n");
        assert_eq!(output.status.code(), Some(1));
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(error.contains("at line 3\n>>> 'nonsense 1'\n"), "{error}");
    }
}

#[test]
fn what_cannot_be_bound_is_said_and_ends_the_start() {
    let taken = TcpListener::bind(("127.0.0.1", 0)).expect("loopback has a free port");
    let port = taken.local_addr().expect("it is bound").port().to_string();
    let output = run(&["--port", &port, "--bind", "127.0.0.1"], "");
    assert_eq!(output.status.code(), Some(1));
    let log = String::from_utf8_lossy(&output.stdout);
    assert!(log.contains("ddress already in use") && log.contains(&port), "{log}");
}

/// The server used to run although nobody could reach it. `--check-config` accepted a configuration that the
/// start refused.
#[test]
fn a_server_that_could_not_listen_does_not_start_and_a_check_says_so() {
    let folder = env!("CARGO_TARGET_TMPDIR");
    let (missing, long) = (format!("{folder}/missing/socket"), format!("{folder}/{}", "x".repeat(108)));
    let file = env!("CARGO_BIN_EXE_braid-server");
    for (args, why) in [
        (&["--port", "0"][..], "Configured to not listen anywhere, exiting."),
        (&["--bind", ""], "Configured to not listen anywhere, exiting."),
        (&["--bind", "", "--tls-port", "1"], "Configured to not listen anywhere, exiting."),
        (&["--tls-port", "1"], "Failed to configure TLS: No tls-cert-file configured!"),
        (
            &["--tls-port", "1", "--tls-cert-file", &missing],
            "Failed to configure TLS: No tls-key-file configured!",
        ),
        (
            &["--tls-port", "1", "--tls-cert-file", &missing, "--tls-key-file", &missing],
            "Failed to configure TLS: Failed to load certificate",
        ),
        (&["--metrics-port", "1", "--metrics-tls", "yes"], "Failed to configure TLS: No tls-cert-file"),
        (&["--unixsocket", &long], "xxx: path must be shorter than SUN_LEN"),
        (&["--unixsocket", folder], "is a directory"),
        (&["--unixsocket", &missing], "missing/socket: No such file or directory"),
        (&["--unixsocket", &format!("{file}/socket")], "braid-server/socket: Not a directory"),
    ] {
        let said = [&[][..], &["--check-config"]].map(|more| {
            let output = run(&[&["--save", ""], args, more].concat(), "");
            assert_eq!(output.status.code(), Some(1), "{args:?} {more:?}");
            String::from_utf8_lossy(&output.stderr).into_owned()
        });
        assert!(said[0].contains(why), "{args:?}: {}", said[0]);
        assert_eq!(said[0], said[1], "{args:?}");
    }
}

#[test]
fn port_0_leaves_the_unix_socket() {
    let dir =
        std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("port-0-{}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("the build's scratch space is writable");
    let path = dir.join("braid.sock");
    let mut child = Command::new(env!("CARGO_BIN_EXE_braid-server"))
        .args(["--port", "0", "--unixsocket", "braid.sock", "--dir"])
        .arg(&dir)
        .stdout(Stdio::null())
        .spawn()
        .expect("the program runs");
    let mut stream = None;
    until("the socket answers", || {
        stream = UnixStream::connect(&path).ok();
        stream.is_some()
    });
    let mut stream = stream.expect("connected above");
    stream.write_all(b"INFO server\r\nSHUTDOWN\r\n").expect("it is sent");
    let info = Reply::read(&mut BufReader::new(&stream)).expect("a reply").text().expect("text");
    assert!(info.contains("\r\ntcp_port:0\r\n"), "{info}");
    assert!(child.wait().expect("it ends").success());
    std::fs::remove_dir_all(&dir).expect("it is the test's own");
}

/// They used to be accepted only when another client connected later.
#[test]
fn clients_that_come_when_descriptors_are_out_are_let_in_when_there_are_some() {
    let server = laid_out((2, 16));
    let status =
        Command::new("prlimit").args(["--nofile=40:40", "--pid", &server.pid().to_string()]).status();
    if !status.is_ok_and(|status| status.success()) {
        println!("skipped: there is no prlimit");
        return;
    }
    let mut streams: Vec<TcpStream> = (0..60).map(|_| raw(&server)).collect();
    until("descriptors are out", || server.log_tail().contains("Accepting client connection"));
    let mut last = streams.pop().expect("sixty of them");
    drop(streams);
    last.write_all(b"PING\r\n").expect("it is sent");
    assert_eq!(Reply::read(&mut BufReader::new(&last)).expect("a reply").to_string(), "+PONG");
}
