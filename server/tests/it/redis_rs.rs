//! Uses Braid through the crate `redis`, an independent client.

use std::collections::{HashMap, HashSet};

use crate::support::{PATIENCE, Server, crowd::LAYOUTS};
use redis::{
    Client, Commands, Connection, ExistenceCheck, Expiry, FromRedisValue, InfoDict, RedisResult,
    ServerErrorKind, SetExpiry, SetOptions, Value, pipe, transaction,
};

fn connect(server: &Server, parameters: &str) -> Connection {
    let url = format!("redis://127.0.0.1:{}/0{parameters}", server.port());
    Client::open(url).expect("the address is well formed").get_connection().expect("the server lets it in")
}

/// Runs a scenario in both versions of the protocol.
fn in_both_protocols(scenario: impl Fn(&Server, Connection)) {
    for parameters in ["", "?protocol=resp3"] {
        let server = Server::start(&["--io-threads", "4"]);
        let connection = connect(&server, parameters);
        scenario(&server, connection);
    }
}

#[test]
fn values_come_back_in_their_types() {
    in_both_protocols(|_, mut redis| {
        let () = redis.set("number", 42).unwrap();
        assert_eq!(redis.get::<_, i64>("number").unwrap(), 42);
        assert_eq!(redis.get::<_, Option<String>>("missing").unwrap(), None);
        let binary: Vec<u8> = (0..=255).cycle().take(100_000).collect();
        let () = redis.set("binary", &binary).unwrap();
        assert_eq!(redis.get::<_, Vec<u8>>("binary").unwrap(), binary);
        assert_eq!(redis.incr::<_, _, i64>("number", 8).unwrap(), 50);
        assert_eq!(redis.incr::<_, _, f64>("number", 0.5).unwrap(), 50.5);
        assert_eq!(redis.append::<_, _, usize>("number", "!").unwrap(), 5);
        assert_eq!(redis.strlen::<_, usize>("number").unwrap(), 5);
        let () = redis.mset(&[("a", 1), ("b", 2)]).unwrap();
        assert_eq!(redis.mget::<_, (i32, Option<i32>, i32)>(&["a", "none", "b"]).unwrap(), (1, None, 2));
        assert!(redis.exists::<_, bool>("a").unwrap());
        assert_eq!(redis.del::<_, u32>(&["a", "b", "none"]).unwrap(), 2);
        assert!(redis.rename::<_, _, ()>("number", "renamed").is_ok());
        assert_eq!(redis.key_type::<_, redis::ValueType>("renamed").unwrap(), redis::ValueType::String);
    });
}

#[test]
fn options_of_set_and_getex_hold() {
    in_both_protocols(|_, mut redis| {
        let fresh =
            SetOptions::default().conditional_set(ExistenceCheck::NX).with_expiration(SetExpiry::EX(100));
        assert!(redis.set_options::<_, _, bool>("key", "1", fresh.clone()).unwrap());
        assert_eq!(redis.set_options::<_, _, Value>("key", "2", fresh).unwrap(), Value::Nil);
        assert!((1..=100).contains(&redis.ttl::<_, i64>("key").unwrap()));
        let old = SetOptions::default()
            .conditional_set(ExistenceCheck::XX)
            .get(true)
            .with_expiration(SetExpiry::KEEPTTL);
        assert_eq!(redis.set_options::<_, _, String>("key", "3", old).unwrap(), "1");
        assert!((1..=100_000).contains(&redis.pttl::<_, i64>("key").unwrap()));
        assert_eq!(redis.get_ex::<_, String>("key", Expiry::PERSIST).unwrap(), "3");
        assert_eq!(redis.ttl::<_, i64>("key").unwrap(), -1);
        assert_eq!(redis.get_del::<_, String>("key").unwrap(), "3");
        assert!(redis.set_nx::<_, _, bool>("key", 1).unwrap());
        assert!(!redis.set_nx::<_, _, bool>("key", 1).unwrap());
    });
}

#[test]
fn pipelines_atomic_or_not_give_their_replies() {
    in_both_protocols(|_, mut redis| {
        let mut plain = pipe();
        for n in 0..1000 {
            plain.set(format!("key{n}"), n).ignore().get(format!("key{n}"));
        }
        let replies: Vec<i64> = plain.query(&mut redis).unwrap();
        assert_eq!(replies, (0..1000).collect::<Vec<i64>>());

        let (one, two): (i64, i64) =
            pipe().atomic().set("a", 1).ignore().incr("a", 1).incr("b", 5).query(&mut redis).unwrap();
        assert_eq!((one, two), (2, 5));

        let failed: RedisResult<()> =
            pipe().atomic().set("a", "text").incr("a", 1).set("c", 1).query(&mut redis);
        assert!(failed.is_err());
        assert_eq!(redis.get::<_, i64>("c").unwrap(), 1, "an error stops no transaction");
    });
}

#[test]
fn transactions_with_watch_lose_no_update() {
    const ROUNDS: usize = 25;
    for (io_threads, shards) in LAYOUTS {
        let server =
            Server::start(&["--io-threads", &io_threads.to_string(), "--shards", &shards.to_string()]);
        std::thread::scope(|scope| {
            for id in 0..4 {
                let mut redis = connect(&server, if id % 2 == 0 { "" } else { "?protocol=resp3" });
                scope.spawn(move || {
                    for _ in 0..ROUNDS {
                        let (new,): (i64,) =
                            transaction(&mut redis, &["counter", "mirror"], |redis, pipe| {
                                let old: Option<i64> = redis.get("counter")?;
                                let new = old.unwrap_or(0) + 1;
                                pipe.set("counter", new)
                                    .ignore()
                                    .set("mirror", new)
                                    .ignore()
                                    .get("mirror")
                                    .query(redis)
                            })
                            .unwrap();
                        assert!(new > 0);
                    }
                });
            }
        });
        let (counter, mirror): (usize, usize) =
            connect(&server, "").mget(&["counter", "mirror"]).expect("both are there");
        assert_eq!((counter, mirror), (4 * ROUNDS, 4 * ROUNDS));
    }
}

#[test]
fn a_scan_over_ten_thousand_keys_gives_each() {
    in_both_protocols(|_, mut redis| {
        let mut fill = pipe();
        for n in 0..10_000 {
            fill.set(format!("{}:{n}", if n % 10 == 0 { "tenth" } else { "other" }), n).ignore();
        }
        let () = fill.query(&mut redis).unwrap();
        let all: HashSet<String> = redis.scan().unwrap().collect::<RedisResult<_>>().unwrap();
        assert_eq!(all.len(), 10_000);
        let tenth: HashSet<String> =
            redis.scan_match("tenth:*").unwrap().collect::<RedisResult<_>>().unwrap();
        assert_eq!(tenth.len(), 1000);
        assert!(tenth.iter().all(|key| all.contains(key)));
        let listed: HashSet<String> = redis.keys("*").unwrap();
        assert_eq!(listed, all);
    });
}

#[test]
fn info_is_read_as_a_dictionary() {
    in_both_protocols(|server, mut redis| {
        let info: InfoDict = redis::cmd("INFO").query(&mut redis).unwrap();
        assert_eq!(info.get::<u32>("process_id"), Some(server.pid()));
        assert_eq!(info.get::<u16>("tcp_port"), Some(server.port()));
        assert_eq!(info.get::<String>("role").as_deref(), Some("master"));
        assert!(info.get::<u64>("used_memory").is_some());
        assert!(info.get::<u64>("connected_clients").is_some_and(|n| n >= 1));
        let settings: HashMap<String, String> =
            redis::cmd("CONFIG").arg("GET").arg("io-threads").query(&mut redis).unwrap();
        assert_eq!(settings, HashMap::from([("io-threads".to_owned(), "4".to_owned())]));
    });
}

#[test]
#[expect(clippy::approx_constant, reason = "the example has these three digits")]
fn resp3_speaks_its_types() {
    let server = Server::start(&[]);
    let mut redis = connect(&server, "?protocol=resp3");
    let example = |redis: &mut Connection, kind: &str| -> Value {
        redis::cmd("DEBUG").arg("PROTOCOL").arg(kind).query(redis).unwrap()
    };
    assert_eq!(example(&mut redis, "double"), Value::Double(3.141));
    assert_eq!(example(&mut redis, "true"), Value::Boolean(true));
    assert_eq!(example(&mut redis, "null"), Value::Nil);
    assert_eq!(example(&mut redis, "set"), Value::Set((0..3).map(Value::Int).collect()));
    let pairs = (0..3).map(|n| (Value::Int(n), Value::Boolean(n == 1))).collect();
    assert_eq!(example(&mut redis, "map"), Value::Map(pairs));
    let Value::VerbatimString { text, .. } = example(&mut redis, "verbatim") else {
        panic!("a verbatim string")
    };
    assert_eq!(text, "This is a verbatim\nstring");
    let hello: HashMap<String, Value> = redis::cmd("HELLO").arg(3).query(&mut redis).unwrap();
    assert_eq!(i64::from_redis_value(hello["proto"].clone()).unwrap(), 3);
}

#[test]
fn messages_reach_its_subscribers() {
    in_both_protocols(|server, mut redis| {
        for parameters in ["", "?protocol=resp3"] {
            let mut subscriber = connect(server, parameters);
            let mut messages = subscriber.as_pubsub();
            messages.set_read_timeout(Some(PATIENCE)).unwrap();
            // One at a time, because the client awaits a single confirmation of each command.
            messages.subscribe("news").unwrap();
            messages.subscribe("weather").unwrap();
            messages.psubscribe("n*").unwrap();
            let numbers: Vec<(String, usize)> =
                redis::cmd("PUBSUB").arg("NUMSUB").arg("news").arg("none").query(&mut redis).unwrap();
            assert_eq!(numbers, [("news".to_owned(), 1), ("none".to_owned(), 0)]);
            assert_eq!(redis.publish::<_, _, usize>("weather", "fine").unwrap(), 1);
            assert_eq!(redis.publish::<_, _, usize>("news", 42).unwrap(), 2);
            assert_eq!(redis.publish::<_, _, usize>("elsewhere", "x").unwrap(), 0);

            let message = messages.get_message().unwrap();
            assert_eq!(message.get_channel_name(), "weather");
            assert_eq!(message.get_payload::<String>().unwrap(), "fine");
            assert!(!message.from_pattern());
            let message = messages.get_message().unwrap();
            assert_eq!((message.get_channel_name(), message.get_payload::<i64>().unwrap()), ("news", 42));
            assert!(!message.from_pattern());
            let message = messages.get_message().unwrap();
            assert_eq!((message.get_channel_name(), message.get_payload::<i64>().unwrap()), ("news", 42));
            assert_eq!(message.get_pattern::<String>().unwrap(), "n*");

            messages.unsubscribe("news").unwrap();
            assert_eq!(redis.publish::<_, _, usize>("news", 43).unwrap(), 1);
            let message = messages.get_message().unwrap();
            assert_eq!(message.get_pattern::<String>().unwrap(), "n*");
            // The drop ends all subscriptions, and the connection can be used as before.
            drop(messages);
            assert_eq!(redis.publish::<_, _, usize>("news", 44).unwrap(), 0);
            let () = subscriber.set("key", "value").unwrap();
            assert_eq!(subscriber.get::<_, String>("key").unwrap(), "value");
        }
    });
}

#[test]
fn errors_have_their_kinds() {
    in_both_protocols(|server, mut redis| {
        let () = redis.set("text", "words").unwrap();
        let error = redis.incr::<_, _, i64>("text", 1).unwrap_err();
        assert_eq!(error.kind(), ServerErrorKind::ResponseError.into());
        assert_eq!(error.detail(), Some("value is not an integer or out of range"));
        let error = redis::cmd("NONSENSE").query::<()>(&mut redis).unwrap_err();
        assert!(error.to_string().contains("unknown command"), "{error}");
        let error = redis::cmd("EXEC").query::<()>(&mut redis).unwrap_err();
        assert!(error.to_string().contains("EXEC without MULTI"), "{error}");
        // The connection can be used as before.
        assert_eq!(redis.get::<_, String>("text").unwrap(), "words");

        let () = redis::cmd("CONFIG").arg("SET").arg("requirepass").arg("secret").query(&mut redis).unwrap();
        let url = |user: &str| format!("redis://{user}127.0.0.1:{}", server.port());
        let mut stranger = Client::open(url("")).unwrap();
        let error = stranger.get::<_, Option<String>>("text").unwrap_err();
        assert!(error.to_string().contains("Authentication required"), "{error}");
        assert!(Client::open(url(":wrong@")).unwrap().get_connection().is_err());
        stranger = Client::open(url(":secret@")).unwrap();
        assert_eq!(stranger.get::<_, String>("text").unwrap(), "words");
    });
}
