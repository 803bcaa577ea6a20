//! Keyspace events: each change of a key is reported once, in order, however the command ran. Without a
//! listener, events cost nothing.

use crate::support::{
    Client, Reply, Resp, Server,
    crowd::{ask, crowd, figure, fill_set, laid_out, until},
};

const LAYOUTS: [(usize, usize); 4] = [(1, 1), (2, 16), (8, 1), (8, 1024)];

/// A client that receives the events of channels that match a pattern.
struct Listener(Client);

impl Listener {
    fn new(server: &Server, pattern: &str) -> Listener {
        let mut client = server.connect();
        assert_eq!(
            ask(&mut client, &format!("PSUBSCRIBE {pattern}")),
            format!("[\"psubscribe\" \"{pattern}\" :1]")
        );
        Listener(client)
    }

    /// Returns the events since the last call: the channel without the common prefix, and the message.
    fn heard(&mut self, control: &mut Client) -> Vec<String> {
        assert_ne!(ask(control, "PUBLISH __keyspace@end end"), ":0");
        let mut heard = Vec::new();
        loop {
            let message = self.0.receive();
            let Reply::Array(words) = &message else { panic!("not a message: {message:?}") };
            let words: Vec<String> = words.iter().filter_map(Reply::text).collect();
            let [.., channel, payload] = &words[..] else { panic!("not a message: {message:?}") };
            if channel == "__keyspace@end" {
                return heard;
            }
            heard.push(format!("{} {payload}", channel.trim_start_matches("__key")));
        }
    }
}

fn configure(client: &mut Client, events: &str) {
    assert_eq!(client.command(&["CONFIG", "SET", "notify-keyspace-events", events]).to_string(), "+OK");
}

#[test]
fn a_change_is_told_of_on_the_channel_of_its_key_and_then_on_that_of_its_event() {
    for layout in LAYOUTS {
        let server = laid_out(layout);
        let mut client = server.connect();
        configure(&mut client, "KEA");
        let mut listener = Listener::new(&server, "__key*");
        ask(&mut client, "SET k v EX 100");
        ask(&mut client, "SELECT 3");
        ask(&mut client, "RENAME no such");
        ask(&mut client, "SADD s a");
        let expected = [
            "space@0__:k set",
            "event@0__:set k",
            "space@0__:k expire",
            "event@0__:expire k",
            "space@3__:s sadd",
            "event@3__:sadd s",
        ];
        assert_eq!(listener.heard(&mut client), expected);
        configure(&mut client, "Kg");
        ask(&mut client, "SADD s b");
        ask(&mut client, "DEL s");
        assert_eq!(listener.heard(&mut client), ["space@3__:s del"]);
        // A new key and a look-up of a missing key belong to other classes of events.
        configure(&mut client, "Enm");
        ask(&mut client, "GET none");
        ask(&mut client, "MGET a b");
        ask(&mut client, "SET x y");
        let expected =
            ["event@3__:keymiss none", "event@3__:keymiss a", "event@3__:keymiss b", "event@3__:new x"];
        assert_eq!(listener.heard(&mut client), expected);
        configure(&mut client, "");
        ask(&mut client, "SET x z");
        assert!(listener.heard(&mut client).is_empty());
    }
}

/// The order is that of Redis 8.2, which was asked with these commands.
#[test]
fn a_value_that_replaces_another_is_told_with_its_type() {
    for layout in LAYOUTS {
        let server = laid_out(layout);
        let mut client = server.connect();
        configure(&mut client, "Eoc");
        let mut listener = Listener::new(&server, "__key*");
        for line in [
            "SET a 1",
            "SET a 2",
            "SET a 2 keepttl",
            "GETSET a 3",
            "APPEND a x",
            "INCR n",
            "INCR n",
            "LPUSH l 1",
            "SET l 1",
            "LPUSH l2 1",
            "RENAME l2 l",
            "SADD s 1",
            "SUNIONSTORE a s",
            "SUNIONSTORE a s",
            "COPY s a replace",
            "COPY n a replace",
            "MSET a 1 n 2",
            "SETEX a 100 1",
            "SET b 1",
            "SET b 2 xx get",
            "SORT s store b",
            "BITOP not b n",
            "ZADD z 1 1",
            "ZUNIONSTORE s 1 z",
            "SET a 1",
            "HSET h f 1",
            "SET h 1",
            "GETEX a ex 10",
            "SETRANGE a 0 xx",
            "PFADD hl 1",
            "PFMERGE hl2 hl",
            "PFMERGE hl2 hl",
            "SETNX a 1",
            "MSETNX q1 1 q2 2",
            "SET n 5",
            "SET n abcdefghijklmnopqrstuvwxyz",
            "GEOADD g 13 38 P",
            "GEOSEARCHSTORE z g fromlonlat 15 37 byradius 300 km",
            "ZRANGESTORE z z 0 -1",
            "MULTI",
            "SET b 1",
            "LPUSH lq 1",
            "SET lq 2",
            "EXEC",
        ] {
            ask(&mut client, line);
        }
        client.command(&["EVAL", "redis.call('set', 'b', 3)", "0"]);
        let expected = [
            "event@0__:overwritten a",
            "event@0__:overwritten a",
            "event@0__:overwritten a",
            "event@0__:overwritten l",
            "event@0__:type_changed l",
            "event@0__:overwritten l",
            "event@0__:type_changed l",
            "event@0__:overwritten a",
            "event@0__:type_changed a",
            "event@0__:overwritten a",
            "event@0__:overwritten a",
            "event@0__:overwritten a",
            "event@0__:type_changed a",
            "event@0__:overwritten a",
            "event@0__:overwritten n",
            "event@0__:overwritten a",
            "event@0__:overwritten b",
            "event@0__:overwritten b",
            "event@0__:type_changed b",
            "event@0__:overwritten b",
            "event@0__:type_changed b",
            "event@0__:overwritten s",
            "event@0__:type_changed s",
            "event@0__:overwritten a",
            "event@0__:overwritten h",
            "event@0__:type_changed h",
            "event@0__:overwritten n",
            "event@0__:overwritten n",
            "event@0__:overwritten z",
            "event@0__:overwritten z",
            "event@0__:overwritten b",
            "event@0__:overwritten lq",
            "event@0__:type_changed lq",
            "event@0__:overwritten b",
        ];
        assert_eq!(listener.heard(&mut client), expected);
    }
}

#[test]
fn a_replacement_is_told_between_the_other_events_of_its_command() {
    for layout in LAYOUTS {
        let server = laid_out(layout);
        let mut client = server.connect();
        let mut listener = Listener::new(&server, "__key*");
        configure(&mut client, "AEnoc");
        ask(&mut client, "SET list x");
        ask(&mut client, "LPUSH other 1");
        ask(&mut client, "COPY other list REPLACE");
        ask(&mut client, "SET list y");
        let expected = [
            "event@0__:new list",
            "event@0__:set list",
            "event@0__:new other",
            "event@0__:lpush other",
            "event@0__:new list",
            "event@0__:copy_to list",
            "event@0__:overwritten list",
            "event@0__:type_changed list",
            "event@0__:overwritten list",
            "event@0__:type_changed list",
            "event@0__:set list",
        ];
        assert_eq!(listener.heard(&mut client), expected);
        assert_eq!(
            ask(&mut client, "CONFIG GET notify-keyspace-events"),
            "[\"notify-keyspace-events\" \"AnocE\"]"
        );
    }
}

#[test]
fn whichever_way_a_command_ran_its_events_come_once_and_in_order() {
    for layout in LAYOUTS {
        let server = laid_out(layout);
        let (mut client, mut waiting) = (server.connect(), server.connect());
        configure(&mut client, "KA");
        fill_set(&mut client, "large", 100_000);
        let mut listener = Listener::new(&server, "__keyspace@*");
        // EXEC, a script, a client that is served, offloaded work, and keys of many shards.
        for command in ["MULTI", "SET a 1", "INCR a", "EXEC"] {
            ask(&mut client, command);
        }
        let script =
            "redis.call('LPUSH', KEYS[1], 'x') redis.call('SET', 'b', 1) return redis.call('DEL', 'b')";
        client.command(&["EVAL", script, "1", "c"]);
        waiting.send(&["BLPOP", "list", "0"]);
        until("it waits", || figure(&mut client, "blocked_clients") == 1);
        ask(&mut client, "RPUSH list v w");
        assert_eq!(waiting.receive().to_string(), "[\"list\" \"v\"]");
        ask(&mut client, "SUNIONSTORE all large none");
        ask(&mut client, "MSET m1 1 m2 2 m3 3");
        ask(&mut client, "DEL m1 m2 m3 none");
        let expected: [&[&str]; 6] = [
            &["a set", "a incrby"],
            &["c lpush", "b set", "b del"],
            &["list rpush", "list lpop"],
            &["all sunionstore"],
            &["m1 set", "m2 set", "m3 set"],
            &["m1 del", "m2 del", "m3 del"],
        ];
        let expected: Vec<String> =
            expected.iter().copied().flatten().map(|event| format!("space@0__:{event}")).collect();
        assert_eq!(listener.heard(&mut client), expected);
    }
}

/// A missed look-up is reported once, even if it was made twice because the command ran elsewhere.
#[test]
fn what_is_missed_is_told_once_wherever_the_command_ran() {
    for layout in LAYOUTS {
        let server = laid_out(layout);
        let mut client = server.connect();
        fill_set(&mut client, "large", 20_000);
        configure(&mut client, "KAm");
        let mut listener = Listener::new(&server, "__keyspace@*");
        ask(&mut client, "SUNION none large");
        ask(&mut client, "SUNIONSTORE all none large");
        assert_eq!(
            listener.heard(&mut client),
            ["none keymiss", "none keymiss", "all sunionstore"].map(|event| format!("space@0__:{event}"))
        );
        assert_eq!(ask(&mut client, "XREAD BLOCK 1 STREAMS nn 0"), "(nil-array)");
        let once = listener.heard(&mut client);
        assert_eq!(ask(&mut client, "XREAD STREAMS nn 0"), "(nil-array)");
        assert_eq!(once, listener.heard(&mut client));
        assert!(once.iter().all(|event| event == "space@0__:nn keymiss") && !once.is_empty(), "{once:?}");
        // OBJECT reports on keys and does not request one.
        for about in ["ENCODING", "IDLETIME", "REFCOUNT"] {
            assert_eq!(ask(&mut client, &format!("OBJECT {about} nn")), "(nil)");
        }
        assert!(listener.heard(&mut client).is_empty());
    }
}

/// A listener receives everything in order of execution. A command of a transaction only affects the classes
/// of later events.
#[test]
fn what_a_transaction_publishes_comes_between_the_events_around_it() {
    for layout in LAYOUTS {
        let server = laid_out(layout);
        let (mut client, mut waiting) = (server.connect(), server.connect());
        configure(&mut client, "KA");
        let mut listener = Listener::new(&server, "*");
        waiting.send(&["BLPOP", "list", "0"]);
        until("it waits", || figure(&mut client, "blocked_clients") == 1);
        for command in [
            "MULTI",
            "RPUSH list v",
            "PUBLISH news one",
            "MSET b 1 c 2",
            "PUBLISH news two",
            "SET b 3",
            "EXEC",
        ] {
            ask(&mut client, command);
        }
        assert_eq!(waiting.receive().to_string(), "[\"list\" \"v\"]");
        let script =
            "redis.call('SET', KEYS[1], 1) redis.call('PUBLISH', 'news', 3) redis.call('DEL', KEYS[1])";
        client.command(&["EVAL", script, "1", "d"]);
        for command in ["MULTI", "SET a 1"] {
            ask(&mut client, command);
        }
        client.command(&["CONFIG", "SET", "notify-keyspace-events", ""]);
        for command in ["SET a 2", "EXEC"] {
            ask(&mut client, command);
        }
        let expected = [
            "space@0__:list rpush",
            "news one",
            "space@0__:b set",
            "space@0__:c set",
            "news two",
            "space@0__:b set",
            // It is served after the transaction.
            "space@0__:list lpop",
            "space@0__:list del",
            "space@0__:d set",
            "news 3",
            "space@0__:d del",
            "space@0__:a set",
        ];
        assert_eq!(listener.heard(&mut client), expected);
    }
}

#[test]
fn a_key_whose_time_is_over_has_expired_before_it_is_written_again() {
    for layout in LAYOUTS {
        let server = laid_out(layout);
        let mut client = server.connect();
        configure(&mut client, "KAn");
        let mut listener = Listener::new(&server, "__keyspace@*");
        // Only a command that uses the key finds the expiry.
        ask(&mut client, "DEBUG SET-ACTIVE-EXPIRE 0");
        for again in ["SET k w", "SETEX k 100 w", "SADD k a", "COPY from k", "GET k"] {
            ask(&mut client, "MSET from 1 k 1");
            ask(&mut client, "PEXPIRE k 1");
            lapse(&mut client);
            listener.heard(&mut client);
            ask(&mut client, again);
            let heard = listener.heard(&mut client);
            assert_eq!(heard.first().map(String::as_str), Some("space@0__:k expired"), "{again}: {heard:?}");
            let is_written = again != "GET k";
            assert_eq!(heard.get(1).map(String::as_str), is_written.then_some("space@0__:k new"), "{again}");
            ask(&mut client, "DEL k from");
        }
        // The same without any command. The probe key must not be found then.
        ask(&mut client, "DEL lapse");
        let n_before = figure(&mut client, "expired_keys");
        ask(&mut client, "SET k v PX 1");
        ask(&mut client, "DEBUG SET-ACTIVE-EXPIRE 1");
        until("the cycle has found it", || figure(&mut client, "expired_keys") > n_before);
        assert_eq!(listener.heard(&mut client).last().map(String::as_str), Some("space@0__:k expired"));
    }
}

/// Waits until a deadline one millisecond ahead has passed.
fn lapse(client: &mut Client) {
    ask(client, "SET lapse 1 PX 1");
    until("its time is over", || ask(client, "EXISTS lapse") == ":0");
}

/// A listener that makes a change receives the event after the reply.
#[test]
fn who_changes_what_it_hears_of_gets_the_reply_first() {
    for layout in LAYOUTS {
        let server = laid_out(layout);
        let mut client = server.connect();
        configure(&mut client, "EA");
        client.hello(Resp::Three).expect("it has RESP3");
        ask(&mut client, "SUBSCRIBE __keyevent@0__:set");
        for n in 0..20 {
            client.send(&["SET", &format!("k{n}"), "v"]);
            assert_eq!(client.receive().to_string(), "+OK");
            let message = client.receive().to_string();
            assert!(
                message.contains("__keyevent@0__:set") && message.contains(&format!("\"k{n}\"")),
                "{message}"
            );
        }
    }
}

/// The next write after the reply is reported, and the next after the end is not. Others write meanwhile.
#[test]
fn events_begin_and_end_with_the_answer() {
    let server = laid_out((4, 64));
    configure(&mut server.connect(), "K$");
    crowd(&server, 4, |id, client| {
        for n in 0..60 {
            let own = format!("own:{id}:{n}");
            let channel = format!("__keyspace@0__:{own}");
            let mut listener = server.connect();
            match n % 3 {
                0 => drop(ask(&mut listener, &format!("SUBSCRIBE {channel}"))),
                1 => drop(ask(&mut listener, &format!("PSUBSCRIBE __keyspace@0__:{own}*"))),
                _ => drop(ask(&mut listener, "PSUBSCRIBE *")),
            }
            ask(client, &format!("SET {own} 1"));
            ask(client, &format!("SET {own} 2"));
            let mut mine = 0;
            while mine < 2 {
                let message = listener.receive().to_string();
                mine += usize::from(message.contains(&channel));
            }
            if n % 2 == 0 {
                listener.send(&["RESET"]);
                // Changes of other clients until then come before the reply.
                while listener.receive().to_string() != "+RESET" {}
                ask(client, &format!("SET {own} 3"));
                assert_eq!(ask(&mut listener, "PING"), "+PONG");
            }
        }
    });
    // Nobody listens, and no subscription is left.
    let mut client = server.connect();
    until("they have left", || ask(&mut client, "PUBSUB NUMPAT") == ":0");
    assert_eq!(ask(&mut client, "PUBSUB CHANNELS"), "[]");
}

#[test]
fn a_hash_whose_last_fields_expire_is_told_as_fields_that_expired_and_a_key_that_went() {
    for layout in LAYOUTS {
        let server = laid_out(layout);
        let mut client = server.connect();
        configure(&mut client, "KEA");
        ask(&mut client, "DEBUG SET-ACTIVE-EXPIRE 0");
        let mut listener = Listener::new(&server, "__keyspace*");
        let counts =
            |client: &mut Client| [figure(client, "expired_keys"), figure(client, "expired_subkeys")];
        for (nth, way) in ["HGET h f", "EXISTS h", "SET h v", "active"].into_iter().enumerate() {
            assert_eq!(ask(&mut client, "DEL h"), format!(":{}", usize::from(nth == 3)));
            assert_eq!(ask(&mut client, "HSET h f v g v"), ":2");
            assert_eq!(ask(&mut client, "HPEXPIRE h 600000 FIELDS 2 f g"), "[:1 :1]");
            listener.heard(&mut client);
            let before = counts(&mut client);
            ask(&mut client, "DEBUG ADVANCE-TIME 600001");
            match way {
                "active" => {
                    ask(&mut client, "DEBUG SET-ACTIVE-EXPIRE 1");
                    until("the hash goes by itself", || figure(&mut client, "expired_subkeys") > before[1]);
                }
                _ => drop(ask(&mut client, way)),
            }
            let mut heard = listener.heard(&mut client);
            heard.truncate(2);
            assert_eq!(heard, ["space@0__:h hexpired", "space@0__:h del"], "{way}");
            assert_eq!(counts(&mut client), [before[0], before[1] + 2], "{way}");
        }
    }
}

#[test]
fn fields_that_are_given_a_time_that_is_over_count_as_expired() {
    let server = Server::start(&[]);
    let mut client = server.connect();
    ask(&mut client, "HSET h a 1 b 2 c 3 d 4");
    for (line, n) in [
        ("HPEXPIRE h 0 FIELDS 2 a b", 2),
        ("HSETEX h PXAT 1 FIELDS 1 c 5", 3),
        ("HGETEX h PXAT 1 FIELDS 1 d", 4),
    ] {
        assert!(!ask(&mut client, line).starts_with('-'));
        assert_eq!(figure(&mut client, "expired_subkeys"), n, "{line}");
    }
}
