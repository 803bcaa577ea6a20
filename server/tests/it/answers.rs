//! Replies and notifications where two features meet.

use crate::support::{
    Client, Reply, Resp, Server,
    crowd::{LAYOUTS, ask, figure, laid_out, tell, until},
};

/// Returns a field of a client's line in CLIENT LIST.
fn field_of(control: &mut Client, id: i64, name: &str) -> String {
    let line = ask(control, &format!("CLIENT LIST ID {id}"));
    let value = line.split(' ').find_map(|field| field.strip_prefix(name)?.strip_prefix('='));
    value.unwrap_or_else(|| panic!("no {name} in {line}")).trim_end_matches(['"', '\\', 'n', '\n']).to_owned()
}

fn id_of(client: &mut Client) -> i64 {
    client.command(&["CLIENT", "ID"]).integer().expect("CLIENT ID answers a number")
}

/// Connects a client that uses RESP3.
fn modern(server: &Server) -> Client {
    let mut client = server.connect();
    client.hello(Resp::Three).expect("the server speaks RESP3");
    client
}

/// Receives the next reply and the pushes before it.
fn reply_and_pushes(client: &mut Client) -> (Reply, Vec<String>) {
    let mut pushes = Vec::new();
    loop {
        match client.receive() {
            push @ Reply::Push(_) => pushes.push(push.to_string()),
            reply => return (reply, pushes),
        }
    }
}

/// Sends a PING and returns the pushes before its reply.
fn pushed_so_far(client: &mut Client) -> Vec<String> {
    tell(client, "PING end");
    reply_and_pushes(client).1
}

/// Commands that wait for any of several keys. Each has the command that serves it by the key `served`.
const WAITING: [(&str, &str); 7] = [
    ("XREAD BLOCK 0 STREAMS a1 served c3 d4 $ $ $ $", "XADD served * f v"),
    ("XREADGROUP GROUP g me BLOCK 0 STREAMS a1 served c3 > > >", "XADD served * f v"),
    ("BLPOP a1 served c3 d4 0", "RPUSH served v"),
    ("BLMPOP 0 4 a1 served c3 d4 LEFT", "RPUSH served v"),
    ("BZPOPMIN a1 served c3 d4 0", "ZADD served 1 v"),
    ("BZMPOP 0 4 a1 served c3 d4 MIN", "ZADD served 1 v"),
    ("BLMOVE served a1 LEFT RIGHT 0", "RPUSH served v"),
];

#[test]
fn what_waits_on_keys_of_many_shards_is_served_while_everything_is_observed() {
    let server = Server::start(&["--io-threads", "2", "--appendonly", "yes", "--appendfsync", "always"]);
    let mut control = server.connect();
    for line in [
        "CONFIG SET slowlog-log-slower-than 0",
        "CONFIG SET latency-monitor-threshold 1",
        "CONFIG SET notify-keyspace-events KEA",
    ] {
        assert_eq!(ask(&mut control, line), "+OK");
    }
    assert_eq!(ask(&mut control, "HOTKEYS START METRICS 1 CPU"), "+OK");
    let mut monitor = server.connect();
    assert_eq!(ask(&mut monitor, "MONITOR"), "+OK");
    let mut subscriber = server.connect();
    ask(&mut subscriber, "PSUBSCRIBE __key*");
    for (wait, push) in WAITING {
        let eval: Vec<String> = push.split(' ').map(|word| format!("'{word}'")).collect();
        let eval = format!("return redis.call({})", eval.join(","));
        for way in 0..3 {
            assert_eq!(ask(&mut control, "FLUSHALL"), "+OK");
            if wait.starts_with("XREADGROUP") {
                for key in ["a1", "served", "c3"] {
                    ask(&mut control, &format!("XGROUP CREATE {key} g $ MKSTREAM"));
                }
            }
            let mut client = modern(&server);
            assert_eq!(ask(&mut client, "CLIENT TRACKING ON"), "+OK");
            tell(&mut client, wait);
            until("the client waits", || figure(&mut control, "blocked_clients") == 1);
            match way {
                0 => drop(ask(&mut control, push)),
                1 => {
                    for line in ["MULTI", push, "EXEC"] {
                        assert!(!ask(&mut control, line).starts_with('-'));
                    }
                }
                _ => assert!(!control.command(&["EVAL", &eval, "0"]).to_string().starts_with('-')),
            }
            let (reply, _) = reply_and_pushes(&mut client);
            assert!(reply.to_string().contains("\"v\""), "{wait}, way {way}: {reply}");
        }
    }
}

#[test]
fn a_tracking_client_that_has_waited_in_xread_hears_of_all_its_streams() {
    for layout in LAYOUTS {
        let server = laid_out(layout);
        let mut other = server.connect();
        let mut client = modern(&server);
        assert_eq!(ask(&mut client, "CLIENT TRACKING ON"), "+OK");
        let streams: Vec<String> = (0..10).map(|n| format!("s{n}")).collect();
        let words = ["XREAD", "BLOCK", "0", "STREAMS"].into_iter().map(str::to_owned);
        let words = words.chain(streams.iter().cloned()).chain(streams.iter().map(|_| "$".to_owned()));
        client.send(&words.collect::<Vec<_>>());
        until("the client waits", || figure(&mut other, "blocked_clients") == 1);
        // While the client waits, it is notified of changes that do not serve it. It is notified once more
        // afterwards.
        ask(&mut other, "SET s7 v");
        ask(&mut other, "DEL s7");
        assert!(!ask(&mut other, "XADD s3 * f v").starts_with('-'));
        let (reply, mut pushes) = reply_and_pushes(&mut client);
        assert!(reply.to_string().contains("\"s3\""), "{reply}");
        pushes.extend(pushed_so_far(&mut client));
        assert!(pushes.contains(&">[\"invalidate\" [\"s7\"]]".to_owned()), "{pushes:?}");
        for stream in &streams {
            assert!(!ask(&mut other, &format!("XADD {stream} * f v")).starts_with('-'));
        }
        let mut told = Vec::new();
        until("it hears of all streams", || {
            told.extend(pushed_so_far(&mut client));
            streams.iter().all(|name| told.contains(&format!(">[\"invalidate\" [\"{name}\"]]")))
        });
    }
}

#[test]
fn after_hello_2_within_exec_nothing_is_sent_in_resp3() {
    for layout in LAYOUTS {
        let server = laid_out(layout);
        let mut client = modern(&server);
        ask(&mut client, "SUBSCRIBE ch");
        ask(&mut client, "CLIENT TRACKING ON");
        ask(&mut client, "SET k 1");
        ask(&mut client, "GET k");
        for line in ["MULTI", "HELLO 2", "PUBLISH ch hello", "SET k 2", "GET k"] {
            ask(&mut client, line);
        }
        client.set_resp(Resp::Two);
        let reply = ask(&mut client, "EXEC");
        assert!(reply.starts_with('[') && reply.contains("\"proto\""), "{reply}");
        assert_eq!(client.receive().to_string(), "[\"message\" \"ch\" \"hello\"]");
        assert_eq!(ask(&mut client, "PING"), "[\"pong\" \"\"]", "RESP2 cannot tell it of k");
    }
}

#[test]
fn a_pause_beyond_all_time_is_refused_and_unpause_is_never_held_back() {
    let server = Server::start(&["--io-threads", "2"]);
    let (mut pausing, mut other) = (server.connect(), server.connect());
    for line in [
        "CLIENT PAUSE 9223372036854775807",
        "CLIENT PAUSE 9223372036854775000 WRITE",
        "WAIT 1 9223372036854775807",
        "WAITAOF 0 1 9223372036854775807",
        "XREAD BLOCK 9223372036854775807 STREAMS s $",
        "BLPOP l 9223372036854775807",
    ] {
        assert_eq!(ask(&mut other, line), "-ERR timeout is out of range", "{line}");
    }
    for scope in ["ALL", "WRITE"] {
        assert_eq!(ask(&mut pausing, &format!("CLIENT PAUSE 100000000 {scope}")), "+OK");
        tell(&mut pausing, "SET k v");
        assert_eq!(ask(&mut other, "CLIENT UNPAUSE"), "+OK");
        assert_eq!(pausing.receive().to_string(), "+OK");
    }
}

#[test]
fn touch_is_a_use_of_keys_even_for_a_client_that_leaves_them_untouched() {
    let server = Server::start(&["--maxmemory-policy", "allkeys-lru"]);
    let (mut client, mut control) = (server.connect(), server.connect());
    assert_eq!(ask(&mut client, "CLIENT NO-TOUCH ON"), "+OK");
    ask(&mut control, "MSET plain v queued v scripted v read v");
    ask(&mut control, "DEBUG ADVANCE-TIME 100000");
    assert_eq!(ask(&mut client, "GET read"), "\"v\"");
    assert_eq!(ask(&mut client, "TOUCH plain none"), ":1");
    for line in ["MULTI", "TOUCH queued", "EXEC"] {
        ask(&mut client, line);
    }
    assert_eq!(
        client.command(&["EVAL", "return redis.call('touch', KEYS[1])", "1", "scripted"]),
        Reply::Integer(1)
    );
    let mut idle = |key: &str| control.command(&["OBJECT", "IDLETIME", key]).integer().expect("seconds");
    assert!(idle("read") >= 100);
    for key in ["plain", "queued", "scripted"] {
        assert!(idle(key) < 100, "{key} was used");
    }
}

#[test]
fn client_list_tells_of_commands_that_were_refused() {
    let server = Server::start(&[]);
    let (mut client, mut control) = (server.connect(), server.connect());
    let id = id_of(&mut client);
    ask(&mut control, "ACL SETUSER limited on nopass ~* +get +auth");
    let mut last = |client: &mut Client, line: &str| {
        let reply = ask(client, line);
        (reply.starts_with('-'), field_of(&mut control, id, "cmd"))
    };
    for (line, shown) in [
        ("SET", "set"),
        ("NOSUCH x", "NULL"),
        ("GET a b c", "get"),
        ("CLIENT NOSUCH", "NULL"),
        ("CLIENT GETNAME x", "client|getname"),
        ("OBJECT ENCODING", "object|encoding"),
    ] {
        assert_eq!(last(&mut client, line), (true, shown.to_owned()), "{line}");
    }
    ask(&mut client, "MULTI");
    assert_eq!(last(&mut client, "LPUSH l"), (true, "lpush".to_owned()));
    ask(&mut client, "DISCARD");
    assert_eq!(ask(&mut client, "AUTH limited x"), "+OK");
    assert_eq!(last(&mut client, "DEL k"), (true, "del".to_owned()), "what its user may not run");
    assert_eq!(last(&mut client, "GET k"), (false, "get".to_owned()));
}

#[test]
fn client_list_tells_whose_transaction_is_lost() {
    for layout in LAYOUTS {
        let server = laid_out(layout);
        let (mut client, mut other, mut control) = (server.connect(), server.connect(), server.connect());
        let (id, other_id) = (id_of(&mut client), id_of(&mut other));
        let mut flags = |id: i64| field_of(&mut control, id, "flags");
        ask(&mut other, "SET k 1");
        for end in ["UNWATCH", "DISCARD", "EXEC", "RESET"] {
            assert_eq!(ask(&mut client, "WATCH other k"), "+OK");
            ask(&mut other, "GET k");
            assert_eq!(flags(id), "N");
            ask(&mut other, "APPEND k v");
            assert_eq!(flags(id), "d");
            assert_eq!(ask(&mut other, "WATCH k"), "+OK", "what comes after the write does not see it");
            assert_eq!(flags(other_id), "N");
            ask(&mut other, "UNWATCH");
            if end != "UNWATCH" {
                ask(&mut client, "MULTI");
                assert_eq!(flags(id), "xd");
            }
            ask(&mut client, end);
            assert_eq!(flags(id), "N", "{end}");
        }
        assert_eq!(ask(&mut client, "WATCH k"), "+OK");
        ask(&mut other, "FLUSHALL");
        assert_eq!(flags(id), "d");
    }
}

#[test]
fn a_client_that_is_killed_within_exec_hears_nothing_of_what_comes_after() {
    for layout in LAYOUTS {
        let server = laid_out(layout);
        let mut subscriber = server.connect();
        let id = id_of(&mut subscriber);
        ask(&mut subscriber, "SUBSCRIBE ch");
        let mut client = server.connect();
        for line in ["MULTI", &format!("CLIENT KILL ID {id}"), "PUBLISH ch after"] {
            ask(&mut client, line);
        }
        assert!(!ask(&mut client, "EXEC").starts_with('-'));
        let end = subscriber.try_receive().map(|reply| reply.to_string());
        assert!(end.is_err(), "it got {end:?}");
    }
}

#[test]
fn the_event_of_a_change_after_config_set_in_exec_follows_the_reply() {
    for layout in LAYOUTS {
        let server = laid_out(layout);
        let mut client = modern(&server);
        ask(&mut client, "SUBSCRIBE __keyspace@0__:k");
        for line in ["MULTI", "SET k 1", "CONFIG SET notify-keyspace-events KEA", "SET k 2"] {
            ask(&mut client, line);
        }
        tell(&mut client, "EXEC");
        let (reply, before) = reply_and_pushes(&mut client);
        assert_eq!((reply.to_string().as_str(), before), ("[+OK +OK +OK]", Vec::new()));
        assert_eq!(client.receive().to_string(), ">[\"message\" \"__keyspace@0__:k\" \"set\"]");
    }
}
