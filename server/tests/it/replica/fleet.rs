//! Braid as a replica of real servers: of Debian's redis-server, and of those in the folder `ORACLES`.

use std::{
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use super::played::{field, until_up};
use crate::support::{
    Client, Dice, Server,
    crowd::{ask, until},
    reference::{REFERENCE, has_reference},
    values::{Side, every_form},
};

/// The servers that are installed.
fn primaries() -> Vec<String> {
    let mut programs = Vec::new();
    if has_reference("replica::fleet") {
        programs.push(REFERENCE.to_owned());
    }
    if let Some(folder) = std::env::var_os("ORACLES") {
        let listed = std::fs::read_dir(Path::new(&folder)).expect("ORACLES names a folder");
        let paths = listed.map(|file| file.expect("it can be listed").path());
        let servers = paths.filter(|path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            name.starts_with("redis-server-") || name.starts_with("valkey-server-")
        });
        programs.extend(servers.map(|path| path.to_string_lossy().into_owned()));
    }
    programs
}

/// Waits until a replica has applied all of its primary's stream.
fn until_equal(primary: &mut Client, replica: &mut Client) {
    until("the replica has caught up", || {
        field(replica, "master_link_status") == "up"
            && field(replica, "slave_repl_offset") == field(primary, "master_repl_offset")
    });
}

fn keys(client: &mut Client) -> Vec<String> {
    let reply = client.command(&["KEYS", "*"]);
    let crate::support::Reply::Array(keys) = reply else { panic!("{reply}") };
    let mut keys: Vec<String> = keys.iter().filter_map(|key| key.text()).collect();
    keys.sort();
    keys
}

/// Compares two servers key by key in some databases.
fn assert_equal(primary: &mut Side, replica: &mut Side) {
    for db in ["0", "1"] {
        primary.ask(&["SELECT", db]);
        replica.ask(&["SELECT", db]);
        // The last keys with a short deadline may pass it on one server first.
        until("both have the same keys", || keys(&mut primary.client) == keys(&mut replica.client));
        let all = keys(&mut primary.client);
        for key in &all {
            // Servers count the readers of a stream in ways of their own.
            let own: &[&[u8]] = &[b"entries-read", b"consumers", b"seen-time"];
            let is_scored = primary.ask(&["TYPE", key]).text().as_deref() == Some("zset");
            let [of_primary, of_replica] = [&mut *primary, &mut *replica].map(|side| match is_scored {
                // Redis 7.0 prints scores with other digits.
                true => side.ask(&["ZRANGE", key, "0", "-1"]).to_string(),
                false => side.contents_without(key, own),
            });
            assert_eq!(of_replica, of_primary, "{key}");
            let deadlines = [&mut *primary, &mut *replica].map(|side| side.ask(&["PEXPIRETIME", key]));
            assert_eq!(deadlines[0], deadlines[1], "{key}");
        }
    }
}

/// Sends one random write.
fn write(client: &mut Client, dice: &mut Dice, n: u64) {
    let key = |kind: &str, dice: &mut Dice| format!("{kind}{}", dice.roll(50));
    let multi = dice.roll(5) == 0;
    if multi {
        ask(client, "MULTI");
    }
    for _ in 0..1 + dice.roll(3) {
        let line = match dice.roll(14) {
            0 => format!("SET {} {n}", key("s", dice)),
            1 => format!("APPEND {} x", key("s", dice)),
            2 => "INCR counter".to_owned(),
            3 => format!("SET {} v EX 1000", key("s", dice)),
            4 => format!("DEL {}", key("s", dice)),
            5 => format!("RPUSH {} {n} y", key("l", dice)),
            6 => format!("LMOVE {} {} LEFT RIGHT", key("l", dice), key("l", dice)),
            7 => format!("SADD {} {n} x", key("t", dice)),
            8 => format!("SPOP {}", key("t", dice)),
            9 => format!("ZADD {} {n} m{}", key("z", dice), dice.roll(30)),
            10 => format!("HSET {} f{} {n}", key("h", dice), dice.roll(30)),
            11 => format!("XADD {} MAXLEN 20 * f {n}", key("x", dice)),
            12 => format!("PEXPIRE {} 1", key("s", dice)),
            _ => format!("SELECT {}", dice.roll(2)),
        };
        ask(client, &line);
    }
    if multi {
        ask(client, "EXEC");
    }
}

#[test]
fn every_value_of_a_real_primary_is_copied() {
    for program in primaries() {
        let mut primary = Side::start(&program);
        for (nth, commands) in every_form().into_iter().enumerate() {
            for command in commands {
                let reply = primary.client.command(&command);
                assert!(!reply.is_error(), "{program}: form {nth}: {reply}");
            }
            assert_eq!(ask(&mut primary.client, &format!("RENAME made form{nth}")), "+OK");
        }
        primary.client.command(&[
            "FUNCTION",
            "LOAD",
            "#!lua name=lib\nredis.register_function('one', function() return 1 end)",
        ]);
        let mut replica = Side::of(Server::start(&[]));
        ask(&mut replica.client, &format!("REPLICAOF 127.0.0.1 {}", primary.server.port()));
        until_up(&mut replica.client);
        until_equal(&mut primary.client, &mut replica.client);
        assert_equal(&mut primary, &mut replica);
        assert!(ask(&mut replica.client, "FCALL_RO one 0").starts_with("-READONLY"));
        assert_eq!(ask(&mut replica.client, "REPLICAOF NO ONE"), "+OK");
        assert_eq!(ask(&mut replica.client, "FCALL one 0"), ":1");
    }
}

#[test]
fn a_replica_of_a_real_primary_follows_it_through_broken_links() {
    for program in primaries() {
        for mode in ["disabled", "swapdb"] {
            let mut primary = Side::start(&program);
            ask(&mut primary.client, "CONFIG SET repl-diskless-sync-delay 0");
            // A machine that is busy may keep the replica away for long.
            ask(&mut primary.client, "CONFIG SET repl-backlog-size 64mb");
            let mut replica = Side::of(Server::start(&["--repl-diskless-load", mode]));
            let is_over = AtomicBool::new(false);
            thread::scope(|scope| {
                let mut writer = primary.server.connect();
                let is_over = &is_over;
                scope.spawn(move || {
                    let (mut dice, mut n) = (Dice(7), 0);
                    while !is_over.load(Ordering::Relaxed) || n < 3000 {
                        write(&mut writer, &mut dice, n);
                        n += 1;
                    }
                });
                ask(&mut replica.client, &format!("REPLICAOF 127.0.0.1 {}", primary.server.port()));
                for _ in 0..4 {
                    until_up(&mut replica.client);
                    let before = field(&mut replica.client, "slave_repl_offset");
                    until("the stream moves", || field(&mut replica.client, "slave_repl_offset") != before);
                    ask(&mut replica.client, "CLIENT KILL TYPE master");
                }
                is_over.store(true, Ordering::Relaxed);
            });
            until_equal(&mut primary.client, &mut replica.client);
            assert_equal(&mut primary, &mut replica);
            assert_eq!(field(&mut primary.client, "sync_full"), "1", "{program}, {mode}");
            assert_eq!(field(&mut replica.client, "unexpected_error_replies"), "0", "{program}, {mode}");
            assert_eq!(ask(&mut replica.client, "REPLICAOF NO ONE"), "+OK");
            assert_eq!(ask(&mut replica.client, "SET promoted 1"), "+OK");
        }
    }
}

#[test]
fn a_real_primary_without_psync_is_followed() {
    for program in primaries() {
        for is_diskless in ["no", "yes"] {
            let args = ["--repl-diskless-sync", is_diskless, "--repl-diskless-sync-delay", "0"];
            let hidden = ["--rename-command", "PSYNC", ""];
            let primary = Server::start_program(&program, &[&args[..], &hidden].concat());
            let replica = Server::start(&[]);
            let (mut writer, mut reader) = (primary.connect(), replica.connect());
            ask(&mut writer, "SET before 1");
            ask(&mut reader, &format!("REPLICAOF 127.0.0.1 {}", primary.port()));
            until_up(&mut reader);
            assert_eq!(ask(&mut reader, "GET before"), "\"1\"");
            ask(&mut writer, "SET after 1");
            until("the stream comes", || ask(&mut reader, "GET after") == "\"1\"");
            assert!(replica.log().contains("Retrying with SYNC..."), "{}", replica.log());
        }
    }
}
