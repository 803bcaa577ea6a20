//! The slow log, wherever a command runs. It may run on the thread that has read it, in a node, offloaded, or
//! in a transaction or script. It may also be served after a wait.

use crate::support::{
    Client, Reply, Server,
    crowd::{ask, figure, laid_out, tell, until},
};

const LAYOUTS: [(usize, usize); 4] = [(1, 1), (2, 16), (8, 1), (8, 1024)];

/// Adding this many members takes far more than the default threshold of 10 ms. They have less than the 4 MiB
/// from which the command would be offloaded.
const N_MANY: usize = 300_000;

/// A slow command's first words, and its duration in microseconds.
type Slow = (Vec<String>, i64);

/// Returns the slow log, the oldest entry first.
fn slow(client: &mut Client) -> Vec<Slow> {
    let entry = |entry: &Reply| {
        let [_, _, micros, words, ..] = elements(entry) else { panic!("an entry has six fields") };
        let words = elements(words).iter().map(|word| word.text().expect("a word"));
        (words.collect(), micros.integer().expect("microseconds"))
    };
    elements(&client.command(&["SLOWLOG", "GET", "-1"])).iter().rev().map(entry).collect()
}

fn elements(reply: &Reply) -> &[Reply] {
    match reply {
        Reply::Array(elements) => elements,
        other => panic!("not an array: {other}"),
    }
}

fn await_blocked(control: &mut Client) {
    until("a client waits", || figure(control, "blocked_clients") == 1);
}

/// Checks that the slow log has one command with this beginning, and its time. Then the log is empty.
fn assert_logged(client: &mut Client, begin: &[&str]) {
    assert_logged_from(client, 10_000, begin);
}

/// Does the same for a threshold in microseconds.
fn assert_logged_from(client: &mut Client, threshold: i64, begin: &[&str]) {
    let logged = slow(client);
    let found: Vec<&Slow> = logged.iter().filter(|(words, _)| words.starts_with(&owned(begin))).collect();
    assert_eq!(found.len(), 1, "{begin:?} is in the log once: {logged:?}");
    assert!(found[0].1 >= threshold, "{logged:?}");
    assert_eq!(ask(client, "SLOWLOG RESET"), "+OK");
}

fn owned(words: &[&str]) -> Vec<String> {
    words.iter().map(|&word| word.to_owned()).collect()
}

/// Returns a command with very many arguments.
fn many(begin: &str, argument: impl Fn(usize) -> String) -> Vec<String> {
    let arguments = (0..N_MANY).map(argument);
    begin.split(' ').map(str::to_owned).chain(arguments).collect()
}

fn send(client: &mut Client, words: &[String]) {
    client.send(&words.iter().map(String::as_str).collect::<Vec<_>>());
}

fn everywhere(scenario: impl Fn(&Server, &mut Client)) {
    for layout in LAYOUTS {
        let server = laid_out(layout);
        let mut client = server.connect();
        scenario(&server, &mut client);
    }
}

#[test]
fn a_slow_command_is_logged_where_it_is_read() {
    everywhere(|_, client| {
        send(client, &many("SADD set", |nth| nth.to_string()));
        assert_eq!(client.receive(), Reply::Integer(N_MANY as i64));
        assert_logged(client, &["SADD", "set"]);
        assert_eq!(ask(client, "DEBUG SLEEP 0.02"), "+OK");
        assert_logged(client, &["DEBUG", "SLEEP"]);
    });
}

#[test]
fn a_slow_command_is_logged_in_a_node() {
    everywhere(|server, client| {
        let mut control = server.connect();
        assert_eq!(ask(&mut control, "CLIENT PAUSE 100000 WRITE"), "+OK");
        send(client, &many("SADD set", |nth| nth.to_string()));
        await_blocked(&mut control);
        assert_eq!(ask(&mut control, "CLIENT UNPAUSE"), "+OK");
        assert_eq!(client.receive(), Reply::Integer(N_MANY as i64));
        assert_logged(client, &["SADD", "set"]);
    });
}

#[test]
fn a_slow_command_is_logged_when_it_is_offloaded() {
    everywhere(|_, client| {
        send(client, &many("SADD set", |nth| nth.to_string()));
        client.receive();
        assert_eq!(ask(client, "SLOWLOG RESET"), "+OK");
        for command in ["SORT set LIMIT 0 1", "SORT set STORE sorted", "SINTERSTORE other set set"] {
            tell(client, command);
            client.receive();
            assert_logged(client, &command.split(' ').collect::<Vec<_>>());
        }
        // All keys, visited in turn. This takes some ten milliseconds, or a few on a fast machine.
        let (n_keys, threshold) = (200_000, 100);
        assert_eq!(ask(client, &format!("DEBUG POPULATE {n_keys}")), "+OK");
        assert_eq!(ask(client, &format!("CONFIG SET slowlog-log-slower-than {threshold}")), "+OK");
        assert_eq!(ask(client, "SLOWLOG RESET"), "+OK");
        tell(client, "KEYS *");
        client.receive();
        assert_logged_from(client, threshold, &["KEYS", "*"]);
    });
}

#[test]
fn a_slow_command_is_logged_in_a_transaction() {
    everywhere(|_, client| {
        assert_eq!(ask(client, "MULTI"), "+OK");
        send(client, &many("SADD set", |nth| nth.to_string()));
        assert_eq!(client.receive(), Reply::Status("QUEUED".into()));
        assert_eq!(ask(client, "SET key value"), "+QUEUED");
        tell(client, "EXEC");
        client.receive();
        let logged = slow(client);
        assert_eq!(logged.len(), 1, "the one command, and no EXEC: {logged:?}");
        assert_logged(client, &["SADD", "set"]);
    });
}

#[test]
fn a_slow_script_is_logged_and_so_is_its_slow_command() {
    everywhere(|_, client| {
        let text = "local n = 0 for i = 1, 10000000 do n = n + i % 7 end return redis.call('get', KEYS[1])";
        client.send(&["EVAL", text, "1", "key"]);
        client.receive();
        assert_logged(client, &["EVAL", text]);
        send(client, &many("SADD set", |nth| nth.to_string()));
        client.receive();
        assert_eq!(ask(client, "SLOWLOG RESET"), "+OK");
        let text = "return redis.call('sort', KEYS[1], 'limit', 0, 1)";
        client.send(&["EVAL", text, "1", "set"]);
        client.receive();
        let names: Vec<String> = slow(client).into_iter().map(|(words, _)| words[0].clone()).collect();
        assert_eq!(names, ["sort", "EVAL"]);
        assert_logged(client, &["sort", "set"]);
    });
}

#[test]
fn a_slow_command_that_has_waited_is_logged_when_it_is_served() {
    everywhere(|server, client| {
        let mut waiting = server.connect();
        let count = N_MANY.to_string();
        waiting.send(&["BZMPOP", "0", "1", "zset", "MIN", "COUNT", &count]);
        await_blocked(client);
        let score_and_member =
            |nth: usize| if nth.is_multiple_of(2) { "1".to_owned() } else { nth.to_string() };
        send(client, &many("ZADD zset", score_and_member));
        client.receive();
        waiting.receive();
        let names: Vec<String> = slow(client).into_iter().map(|(words, _)| words[0].clone()).collect();
        assert!(names.contains(&"ZADD".to_owned()) && names.len() == 2, "{names:?}");
        assert_logged(client, &["BZMPOP", "0", "1", "zset"]);
    });
}

/// Returns `n` commands of all kinds.
fn mixed(n: usize) -> Vec<Vec<String>> {
    let command = |nth: usize| {
        let key = format!("key:{}", nth % 17);
        let text = match nth % 20 {
            0 | 1 => format!("SET {key} {nth}"),
            2 | 3 => format!("GET {key}"),
            4 => format!("MSET {key} {nth} other:{nth} x"),
            5 => format!("MGET {key} key:3 key:4"),
            6 => "PING".to_owned(),
            7 => format!("SADD set:{} {nth}", nth % 3),
            8 => "SMEMBERS set:1".to_owned(),
            9 => "INCR set:1".to_owned(),
            10 => format!("EVAL return_1 0 {nth}"),
            11 => format!("DEL other:{}", nth - 7),
            12 => format!("CLIENT SETNAME client-{nth}"),
            13 => "DBSIZE".to_owned(),
            14 => format!("SCAN 0 MATCH nothing{nth}"),
            15 => format!("ECHO {nth}"),
            16 => format!("RPUSH list:{nth} a b c"),
            17 => format!("BLPOP list:{} 0", nth - 1),
            18 => format!("SELECT {}", nth % 2),
            _ => "LASTSAVE".to_owned(),
        };
        text.split(' ').map(|word| if word == "return_1" { "return 1".into() } else { word.into() }).collect()
    };
    (0..n).map(command).collect()
}

#[test]
fn with_threshold_0_every_command_is_logged_once_and_in_order() {
    everywhere(|_, client| {
        assert_eq!(ask(client, "CONFIG SET slowlog-max-len 5000"), "+OK");
        assert_eq!(ask(client, "CONFIG SET slowlog-log-slower-than 0"), "+OK");
        assert_eq!(ask(client, "SLOWLOG RESET"), "+OK");
        let commands = mixed(1000);
        for command in &commands {
            send(client, command);
        }
        for _ in &commands {
            client.receive();
        }
        let logged: Vec<Vec<String>> = slow(client).into_iter().map(|(words, _)| words).collect();
        assert_eq!(logged[0], ["SLOWLOG", "RESET"]);
        assert_eq!(logged[1..], commands);
        // The newest entries stay.
        assert_eq!(ask(client, "CONFIG SET slowlog-max-len 100"), "+OK");
        for command in &commands {
            send(client, command);
        }
        for _ in &commands {
            client.receive();
        }
        let logged: Vec<Vec<String>> = slow(client).into_iter().map(|(words, _)| words).collect();
        assert_eq!(logged, commands[900..]);
    });
}

#[test]
fn with_no_threshold_nothing_is_logged() {
    everywhere(|_, client| {
        assert_eq!(ask(client, "CONFIG SET slowlog-log-slower-than -1"), "+OK");
        send(client, &many("SADD set", |nth| nth.to_string()));
        client.receive();
        assert_eq!(slow(client), []);
    });
}

#[test]
fn a_slow_script_that_has_written_is_logged_where_it_is_read_and_in_a_node() {
    everywhere(|server, client| {
        let text =
            "redis.call('set', KEYS[1], 1) local n = 0 for i = 1, ARGV[1] do n = n + i % 7 end return n";
        // It is short at first, so it does not begin on a heavy-work thread. Once it has written it stays on
        // its thread.
        for _ in 0..3 {
            client.send(&["EVAL", text, "1", "key", "1"]);
            client.receive();
        }
        client.send(&["EVAL", text, "1", "key", "10000000"]);
        client.receive();
        assert_logged(client, &["EVAL", text, "1", "key", "10000000"]);
        client.send(&["EVAL", text, "1", "key", "1"]);
        client.receive();
        let mut control = server.connect();
        assert_eq!(ask(&mut control, "CLIENT PAUSE 100000 WRITE"), "+OK");
        client.send(&["EVAL", text, "1", "key", "10000000"]);
        await_blocked(&mut control);
        assert_eq!(ask(&mut control, "CLIENT UNPAUSE"), "+OK");
        client.receive();
        assert_logged(client, &["EVAL", text, "1", "key", "10000000"]);
    });
}
