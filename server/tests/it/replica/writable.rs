//! Writes of a replica's own clients, and the keys that it keeps for them.

use std::fs;

use super::played::{Primary, field, snapshot, until_says, wire};
use crate::support::{
    Server,
    crowd::{ask, until},
    home::Home,
};

const WRITABLE: [&str; 2] = ["--replica-read-only", "no"];

#[test]
fn keys_that_clients_of_a_writable_replica_have_written_expire_there() {
    let primary = Primary::new();
    let (_server, mut client, mut link) = primary.replica(&WRITABLE, &[]);
    // The primary alone expires its own keys.
    let n = link.stream("SET of-primary 1 PXAT 1");
    link.await_ack(n);
    assert_eq!(ask(&mut client, "SET plain 1 PX 20"), "+OK");
    assert_eq!(ask(&mut client, "SET stays 1"), "+OK");
    for line in ["MULTI", "SELECT 3", "SET queued 1 PX 20", "SELECT 0", "EXEC"] {
        ask(&mut client, line);
    }
    let script = "return redis.call('SET', KEYS[1], '1', 'PX', '20')";
    client.command(&["EVAL", script, "1", "of-script"]);
    until_says(&mut client, "DBSIZE", ":2");
    assert_eq!(ask(&mut client, "SELECT 3"), "+OK");
    until_says(&mut client, "DBSIZE", ":0");
    until("nothing is tracked", || field(&mut client, "slave_expires_tracked_keys") == "0");
    assert_eq!(ask(&mut client, "SELECT 0"), "+OK");
    assert_eq!(ask(&mut client, "EXISTS stays of-primary"), ":1");
}

/// The keys lie in another database than the one that is selected.
#[test]
fn keys_that_were_moved_or_copied_to_another_database_expire_there() {
    let primary = Primary::new();
    let (_server, mut client, mut link) = primary.replica(&WRITABLE, &[]);
    let n = link.stream("SET of-primary 1 PX 100000");
    link.await_ack(n);
    assert_eq!(ask(&mut client, "SET moved 1 PX 100000"), "+OK");
    assert_eq!(ask(&mut client, "MOVE moved 3"), ":1");
    assert_eq!(ask(&mut client, "COPY of-primary copied DB 3"), ":1");
    assert_eq!(ask(&mut client, "DEBUG ADVANCE-TIME 200000"), "+OK");
    assert_eq!(ask(&mut client, "SELECT 3"), "+OK");
    until_says(&mut client, "DBSIZE", ":0");
    until("nothing is tracked", || field(&mut client, "slave_expires_tracked_keys") == "0");
    assert_eq!(ask(&mut client, "SELECT 0"), "+OK");
    assert_eq!(ask(&mut client, "DBSIZE"), ":1", "the primary removes its own key");
}

#[test]
fn scripts_on_a_writable_replica_need_no_replicas_of_its_own() {
    let primary = Primary::new();
    let needs = ["--min-replicas-to-write", "1", "--min-replicas-max-lag", "1"];
    let (_server, mut client, _link) = primary.replica(&[&WRITABLE[..], &needs].concat(), &[]);
    assert_eq!(ask(&mut client, "SET a 1"), "+OK");
    let reply = client.command(&["EVAL", "return redis.call('INCR', KEYS[1])", "1", "a"]);
    assert_eq!(reply.to_string(), ":2");
}

/// The scripts of the file ran when the server was a primary.
#[test]
fn an_append_only_file_with_scripts_is_replayed_on_a_read_only_replica() {
    let home = Home::new();
    let folder = home.path().join("appendonlydir");
    fs::create_dir_all(&folder).expect("a folder");
    let manifest = "file appendonly.aof.1.incr.aof seq 1 type i\n";
    fs::write(folder.join("appendonly.aof.manifest"), manifest).expect("a file");
    let commands = ["SELECT 0", "EVAL redis.call('INCR',KEYS[1]) 1 a", "EVAL redis.call('INCR',KEYS[1]) 1 a"];
    let log: Vec<u8> = commands.iter().flat_map(|line| wire(line)).collect();
    fs::write(folder.join("appendonly.aof.1.incr.aof"), log).expect("a file");
    let primary = Primary::new();
    let port = primary.port().to_string();
    let server = home.serve(&["--appendonly", "yes", "--replicaof", "127.0.0.1", &port]);
    assert_eq!(ask(&mut server.connect(), "GET a"), "\"2\"");
}

#[test]
fn debug_object_shows_an_expired_key_that_a_replica_keeps_and_does_not_remove_it() {
    let primary = Primary::new();
    let (_server, mut client, mut link) = primary.replica(&["--enable-debug-command", "yes"], &[]);
    let n = link.stream("SET a 1 PXAT 1");
    link.await_ack(n);
    assert_eq!(ask(&mut client, "EXISTS a"), ":0");
    assert!(ask(&mut client, "DEBUG OBJECT a").starts_with("+Value at:"));
    assert_eq!(ask(&mut client, "DEBUG DIGEST-VALUE a"), format!("[+{}]", "0".repeat(40)));
    assert_eq!(ask(&mut client, "DBSIZE"), ":1");
}

/// Old data of another history is no older state of the new data. It comes back if the copy breaks off.
#[test]
fn a_copy_of_another_history_is_loaded_out_of_sight() {
    let primary = Primary::new();
    let server = Server::start(&["--repl-diskless-load", "swapdb", "--key-load-delay", "100000000"]);
    let mut client = server.connect();
    ask(&mut client, "SET old 1");
    primary.adopt(&mut client);
    let (mut link, _) = primary.greet();
    link.copy(&snapshot(&[("a", "1"), ("b", "2")]), 0);
    until("the copy is loaded", || field(&mut client, "loading") == "1");
    assert_eq!(field(&mut client, "async_loading"), "0");
    assert!(ask(&mut client, "GET old").starts_with("-LOADING"));
    // The delay of a load may end early.
    assert_eq!(ask(&mut client, "CONFIG SET key-load-delay 0"), "+OK");
    until_says(&mut client, "MGET old a b", "[(nil) \"1\" \"2\"]");

    // The next copy is of the same history. The bytes after its first keys do not come.
    assert_eq!(ask(&mut client, "CONFIG SET key-load-delay 100000000"), "+OK");
    drop(link);
    let (mut link, _) = primary.greet();
    link.copy(&snapshot(&[("c", "3"), ("d", "4")]), 0);
    until("it is loaded aside", || field(&mut client, "async_loading") == "1");
    assert_eq!(field(&mut client, "loading"), "0");
    assert_eq!(ask(&mut client, "MGET a c"), "[\"1\" (nil)]");
    assert_eq!(ask(&mut client, "CONFIG SET key-load-delay 0"), "+OK");
    until_says(&mut client, "MGET a c d", "[(nil) \"3\" \"4\"]");
}

#[test]
fn a_script_without_flags_does_not_run_on_stale_data() {
    let server = Server::start(&["--replica-serve-stale-data", "no"]);
    let mut client = server.connect();
    let primary = Primary::new();
    primary.adopt(&mut client);
    let refusal = "-MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.";
    assert_eq!(client.command(&["EVAL", "return 1", "0"]).to_string(), refusal);
    assert_eq!(client.command(&["EVAL", "#!lua flags=no-writes\nreturn 1", "0"]).to_string(), refusal);
    let stale = "#!lua flags=allow-stale,no-writes\nreturn 1";
    assert_eq!(client.command(&["EVAL", stale, "0"]).to_string(), ":1");
}
