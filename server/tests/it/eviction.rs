//! Eviction: `maxmemory` holds under writes, each policy evicts the right keys, and observers learn of each
//! eviction.

use crate::support::{
    Client, Reply, Server,
    crowd::{ask, crowd, figure, laid_out, until},
};

const LAYOUTS: [(usize, usize); 3] = [(1, 1), (2, 16), (4, 1024)];

/// The memory that may be used beyond that at the start, and the size of a value.
const ROOM: usize = 4 << 20;
const VALUE: usize = 1000;

fn configure(client: &mut Client, policy: &str, room: usize) -> usize {
    let limit = figure(client, "used_memory") + room;
    assert_eq!(ask(client, &format!("CONFIG SET maxmemory-policy {policy}")), "+OK");
    assert_eq!(ask(client, &format!("CONFIG SET maxmemory {limit}")), "+OK");
    limit
}

/// Writes keys that take `n_times` the permitted memory.
fn write_much(server: &Server, n_times: usize, options: &[&str]) {
    let value = vec![b'x'; VALUE];
    let n_writers = 4;
    crowd(server, n_writers, |id, client| {
        for n in 0..n_times * ROOM / VALUE / n_writers {
            let key = format!("key:{id}:{n}");
            let mut argv: Vec<&[u8]> = vec![b"SET", key.as_bytes(), &value];
            argv.extend(options.iter().map(|option| option.as_bytes()));
            assert_eq!(client.command(&argv).to_string(), "+OK");
        }
    });
}

#[test]
fn whatever_the_policy_writes_go_on_and_the_limit_holds() {
    for (policy, options) in [
        ("allkeys-lru", &[][..]),
        ("allkeys-lfu", &[]),
        ("allkeys-random", &[]),
        ("volatile-lru", &["EX", "1000"]),
        ("volatile-lfu", &["EX", "1000"]),
        ("volatile-random", &["EX", "1000"]),
        ("volatile-ttl", &["EX", "1000"]),
    ] {
        for layout in LAYOUTS {
            let server = laid_out(layout);
            let mut client = server.connect();
            let limit = configure(&mut client, policy, ROOM);
            // A key without a deadline stays under the volatile policies.
            ask(&mut client, "SET stays 1");
            write_much(&server, 4, options);
            let n_written = 4 * ROOM / VALUE / 4 * 4 + 1;
            let mut n_evicted = 0;
            until("each is there, or has gone once", || {
                n_evicted = figure(&mut client, "evicted_keys");
                ask(&mut client, "DBSIZE") == format!(":{}", n_written - n_evicted)
            });
            let used = figure(&mut client, "used_memory");
            // Each thread may have allocated a little more than it has reported.
            assert!(used < limit + (1 << 20), "{policy}: {used} of {limit}");
            assert!(n_evicted > 2 * ROOM / VALUE, "{policy}: {n_evicted}");
            if policy.starts_with("volatile") {
                assert_eq!(ask(&mut client, "GET stays"), "\"1\"", "{policy}");
            }
        }
    }
}

/// A limit may be little above the memory in use. The memory that commands keep after their first run must
/// fit, or all keys are evicted for it.
#[test]
fn commands_leave_little_behind_when_they_first_run() {
    let server = laid_out((1, 16));
    let mut client = server.connect();
    figure(&mut client, "used_memory");
    let before = figure(&mut client, "used_memory");
    for command in [
        "SETEX a 100 x",
        "SET b x",
        "HSET c f v",
        "LPUSH d x",
        "SADD e x",
        "ZADD f 1 x",
        "GET b",
        "DEL b",
        "TTL a",
        "FLUSHALL",
    ] {
        ask(&mut client, command);
    }
    assert_eq!(ask(&mut client, "CONFIG SET maxmemory 1gb"), "+OK");
    let used = figure(&mut client, "used_memory");
    assert!(used < before + (60 << 10), "{} bytes more", used - before);
}

/// A transaction adds everything at once, without evictions in between. So the server makes room for all of
/// it before.
#[test]
fn a_large_transaction_does_not_exceed_the_limit() {
    for layout in LAYOUTS {
        let server = laid_out(layout);
        let mut client = server.connect();
        let limit = configure(&mut client, "allkeys-random", ROOM);
        ask(&mut client, "CONFIG SET maxmemory-eviction-tenacity 100");
        write_much(&server, 2, &[]);
        let value = vec![b'x'; 100_000];
        ask(&mut client, "MULTI");
        for n in 0..10 {
            assert_eq!(
                client.command(&[b"SET", format!("large:{n}").as_bytes(), &value]).to_string(),
                "+QUEUED"
            );
        }
        ask(&mut client, "INFO memory");
        let Reply::Array(replies) = client.command(&["EXEC"]) else { panic!("it runs") };
        let info = replies.last().and_then(Reply::text).expect("INFO is the last, and answers text");
        let told = |name| info.lines().find_map(|line| line.strip_prefix(name)?.parse::<usize>().ok());
        let [used, uncounted] =
            ["used_memory:", "mem_not_counted_for_evict:"].map(|name| told(name).expect("it is told"));
        // Queued commands are their client's memory.
        let used = used - uncounted;
        assert!(used < limit + (300 << 10), "{layout:?}: {used} of {limit}");

        // A transaction that adds nothing needs no room.
        ask(&mut client, "MULTI");
        (0..10).for_each(|_| assert_eq!(client.command(&[b"GET".as_slice(), &value]).to_string(), "+QUEUED"));
        let mut other = server.connect();
        let n_evicted = figure(&mut other, "evicted_keys");
        client.command(&["EXEC"]);
        let n_more = figure(&mut other, "evicted_keys") - n_evicted;
        assert!(n_more < ROOM / VALUE / 20, "{layout:?}: {n_more} keys");
    }
}

/// Used keys stay, unused ones are evicted.
#[test]
fn keys_in_use_stay() {
    for policy in ["allkeys-lru", "allkeys-lfu"] {
        let server = laid_out((2, 16));
        let mut client = server.connect();
        configure(&mut client, policy, ROOM);
        ask(&mut client, "DEBUG SET-ACTIVE-EXPIRE 0");
        let names: Vec<String> = (0..20).map(|n| format!("used:{n}")).collect();
        names.iter().for_each(|name| drop(ask(&mut client, &format!("SET {name} 1"))));
        ask(&mut client, &format!("SET model {}", "x".repeat(VALUE)));
        let Reply::Bulk(dumped) = client.command(&["DUMP", "model"]) else { panic!("it can be dumped") };
        for n in 0..3 * ROOM / VALUE {
            let key = format!("key:{n}");
            let mut argv: Vec<&[u8]> = vec![b"RESTORE", key.as_bytes(), b"0", &dumped];
            if policy == "allkeys-lru" {
                // Makes the key look unused for long, because the clock of use counts seconds.
                argv.extend([b"IDLETIME".as_slice(), b"1000"]);
            }
            assert_eq!(client.command(&argv).to_string(), "+OK");
            if n % 10 == 0 {
                names.iter().for_each(|name| drop(ask(&mut client, &format!("GET {name}"))));
            }
        }
        assert!(figure(&mut client, "evicted_keys") > ROOM / VALUE);
        let n_left = names.iter().filter(|name| ask(&mut client, &format!("EXISTS {name}")) == ":1").count();
        // In LFU chance decides how often a key counts as used.
        assert!(n_left >= 18, "{policy}: {n_left} of {} are left", names.len());
    }
}

#[test]
fn without_keys_that_may_go_writes_are_refused_until_there_is_room() {
    for policy in ["noeviction", "volatile-lru"] {
        for layout in LAYOUTS {
            let server = laid_out(layout);
            let mut client = server.connect();
            configure(&mut client, policy, ROOM);
            let value = "x".repeat(VALUE);
            let mut n = 0;
            let refused = loop {
                n += 1;
                let reply = ask(&mut client, &format!("SET key:{n} {value}"));
                if reply != "+OK" {
                    break reply;
                }
            };
            assert_eq!(refused, "-OOM command not allowed when used memory > 'maxmemory'.");
            assert!(n > ROOM / VALUE / 2, "{n}");
            assert_eq!(ask(&mut client, "STRLEN key:1"), format!(":{VALUE}"));
            assert_eq!(figure(&mut client, "evicted_keys"), 0);
            // The next command after the removals has room.
            (1..n / 2).for_each(|n| drop(ask(&mut client, &format!("DEL key:{n}"))));
            assert_eq!(ask(&mut client, "SET another 1"), "+OK");
        }
    }
}

/// An eviction is a change like any other: for tracking clients, keyspace events and WATCH.
#[test]
fn who_wants_to_hear_of_an_eviction_does() {
    for layout in LAYOUTS {
        let server = laid_out(layout);
        let (mut client, mut listener, mut watcher) = (server.connect(), server.connect(), server.connect());
        ask(&mut client, "CONFIG SET notify-keyspace-events Ee");
        ask(&mut client, "SET victim 1 EX 1000");
        ask(&mut listener, "SUBSCRIBE __keyevent@0__:evicted");
        ask(&mut watcher, "CLIENT TRACKING ON");
        watcher.hello(crate::support::Resp::Three).expect("it has RESP3");
        ask(&mut watcher, "CLIENT TRACKING ON");
        ask(&mut watcher, "WATCH victim");
        assert_eq!(ask(&mut watcher, "GET victim"), "\"1\"");
        configure(&mut client, "volatile-ttl", 0);
        ask(&mut client, "CONFIG SET maxmemory 1");
        assert_eq!(listener.receive().to_string(), "[\"message\" \"__keyevent@0__:evicted\" \"victim\"]");
        let invalidated = watcher.receive().to_string();
        assert!(invalidated.contains("invalidate") && invalidated.contains("victim"), "{invalidated}");
        ask(&mut client, "CONFIG SET maxmemory 0");
        assert_eq!(ask(&mut watcher, "MULTI"), "+OK");
        ask(&mut watcher, "SET x 1");
        assert_eq!(ask(&mut watcher, "EXEC"), "(nil)", "what was watched has changed");
    }
}

/// A lowered limit is reached without a client's command.
#[test]
fn a_lowered_limit_is_reached_by_itself() {
    let server = laid_out((2, 1024));
    let mut client = server.connect();
    let limit = configure(&mut client, "allkeys-random", 8 * ROOM);
    write_much(&server, 6, &[]);
    let wanted = limit - 5 * ROOM;
    ask(&mut client, &format!("CONFIG SET maxmemory {wanted}"));
    until("it is reached", || figure(&mut client, "used_memory") <= wanted);
    assert_eq!(ask(&mut client, "SET k v"), "+OK");
    // Memory that waits to be freed does not count: no new key is evicted for it.
    ask(&mut client, "FLUSHALL");
    let n_before = figure(&mut client, "evicted_keys");
    (0..100).for_each(|n| drop(ask(&mut client, &format!("SET after:{n} v"))));
    assert_eq!(figure(&mut client, "evicted_keys"), n_before);
}

/// Returns the events that the latency monitor has recorded.
fn events(client: &mut Client) -> Vec<String> {
    let Reply::Array(latest) = client.command(&["LATENCY", "LATEST"]) else { panic!("a list") };
    let name = |event: &Reply| match event {
        Reply::Array(event) => event[0].text().expect("a name"),
        other => panic!("no event: {other}"),
    };
    latest.iter().map(name).collect()
}

#[test]
fn the_latency_monitor_hears_of_eviction_that_takes_long() {
    for layout in LAYOUTS {
        let server = laid_out(layout);
        let (mut client, mut listener) = (server.connect(), server.connect());
        assert_eq!(ask(&mut client, "CONFIG SET maxmemory-eviction-tenacity 100"), "+OK");
        let limit = configure(&mut client, "allkeys-random", 4 * ROOM);
        write_much(&server, 3, &[]);
        assert_eq!(events(&mut client), [""; 0]);
        assert_eq!(ask(&mut client, "CONFIG SET latency-monitor-threshold 1"), "+OK");
        assert_eq!(ask(&mut client, &format!("CONFIG SET maxmemory {}", limit - 3 * ROOM)), "+OK");
        until("thousands of keys go at a time", || {
            events(&mut client).contains(&"eviction-cycle".to_owned())
        });
        // A listener must be sent a name of megabytes.
        ask(&mut client, "CONFIG SET notify-keyspace-events Ee");
        ask(&mut client, "FLUSHALL");
        ask(&mut client, "CONFIG SET maxmemory 0");
        ask(&mut listener, "SUBSCRIBE __keyevent@0__:evicted");
        let key = "k".repeat(24 << 20);
        assert_eq!(ask(&mut client, &format!("SET {key} v")), "+OK");
        ask(&mut client, "CONFIG SET maxmemory 1");
        assert!(listener.receive().to_string().contains("evicted"));
        until("its removal was long", || events(&mut client).contains(&"eviction-del".to_owned()));
        assert!(ask(&mut client, "LATENCY DOCTOR").contains("maxmemory-eviction-tenacity"));
    }
}

#[test]
fn how_long_too_much_is_in_use_is_told() {
    let server = laid_out((2, 16));
    let mut client = server.connect();
    configure(&mut client, "noeviction", ROOM);
    assert_eq!(figure(&mut client, "total_eviction_exceeded_time"), 0);
    let value = "x".repeat(VALUE);
    let mut n = 0;
    // A refused write may be the one that exceeded the limit, and it is undone.
    until("it is so for a while", || {
        n += 1;
        ask(&mut client, &format!("SET key:{n} {value}"));
        figure(&mut client, "current_eviction_exceeded_time") > 0
    });
    ask(&mut client, "CONFIG SET maxmemory 0");
    until("it is so no more", || figure(&mut client, "current_eviction_exceeded_time") == 0);
    assert!(figure(&mut client, "total_eviction_exceeded_time") > 0);
}

/// From the documents of Redis 8.6 about `maxmemory-policy`: reads do not count.
#[test]
fn the_least_recently_changed_keys_are_evicted_however_often_they_are_read() {
    let server = Server::start(&["--maxmemory-policy", "allkeys-lrm", "--io-threads", "1"]);
    let mut client = server.connect();
    client.command(&["SET", "source", "value"]);
    let Reply::Bulk(dump) = client.command(&["DUMP", "source"]) else { panic!("the key is there") };
    let words = [&b"RESTORE"[..], b"read", b"0", &dump, b"IDLETIME", b"5000"];
    assert_eq!(client.command(&words).to_string(), "+OK");
    for (name, change) in [
        ("whole", &["SET", "whole", "x"][..]),
        ("longer", &["APPEND", "longer", "x"]),
        ("bits", &["SETBIT", "bits", "1", "1"]),
        ("part", &["SETRANGE", "part", "0", "x"]),
    ] {
        let words = [&b"RESTORE"[..], name.as_bytes(), b"0", &dump, b"IDLETIME", b"5000"];
        assert_eq!(client.command(&words).to_string(), "+OK", "{name}");
        for read in [&["GET", name][..], &["STRLEN", name], &["TOUCH", name], &["GETRANGE", name, "0", "1"]] {
            client.command(read);
        }
        let idle = |client: &mut Client| client.command(&["OBJECT", "IDLETIME", name]).integer();
        assert!(idle(&mut client).is_some_and(|seconds| seconds >= 5000), "{name}: a read is no change");
        client.command(change);
        assert!(idle(&mut client).is_some_and(|seconds| seconds < 5000), "{name}: {change:?}");
    }
    client.command(&["LPUSH", "list", "1"]);
    client.command(&["CONFIG", "SET", "maxmemory-samples", "64"]);
    configure(&mut client, "allkeys-lrm", ROOM);
    let value = "x".repeat(4096);
    let mut is_evicted = false;
    for nth in 0..20_000 {
        client.command(&["GET", "read"]);
        client.command(&["SET", &format!("new:{nth}"), &value]);
        if client.command(&["EXISTS", "read"]) == Reply::Integer(0) {
            is_evicted = true;
            break;
        }
    }
    assert!(is_evicted, "the key was read all the time, and not changed");
}
