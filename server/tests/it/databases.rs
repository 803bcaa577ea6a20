//! Many databases: empty ones cost nothing, and commands work in all of them.

use crate::support::{
    Client, Server,
    crowd::{ask, figure, until},
};

/// The number of databases with keys.
const MANY: usize = 3000;

fn send_all(client: &mut Client, commands: &[String]) {
    for some in commands.chunks(1000) {
        for command in some {
            client.send(&command.split(' ').collect::<Vec<_>>());
        }
        for command in some {
            let reply = client.receive();
            assert!(!reply.is_error(), "{command}: {reply}");
        }
    }
}

/// Returns the lines of INFO about databases.
fn keyspace(client: &mut Client) -> Vec<String> {
    let info = client.command(&["INFO", "keyspace"]).text().expect("INFO answers text");
    info.lines().skip(1).map(str::to_owned).collect()
}

/// Returns the numbers of keys of all databases that have some.
fn n_keys(client: &mut Client) -> Vec<(usize, usize)> {
    let of_line = |line: &String| {
        let (db, rest) = line.strip_prefix("db")?.split_once(":keys=")?;
        Some((db.parse().ok()?, rest.split(',').next()?.parse().ok()?))
    };
    keyspace(client).iter().map(|line| of_line(line).expect("a line of INFO keyspace")).collect()
}

#[test]
fn a_database_that_holds_nothing_costs_nothing() {
    let used_with = |databases: &str| {
        let server = Server::start(&["--databases", databases]);
        let mut client = server.connect();
        let last = databases.parse::<u64>().expect("a number") - 1;
        assert_eq!(ask(&mut client, &format!("SELECT {last}")), "+OK");
        figure(&mut client, "used_memory")
    };
    let (few, many) = (used_with("16"), used_with("2147483647"));
    assert!(many < few + 64 * 1024, "{few} bytes with 16 databases, {many} with very many");
}

#[test]
fn small_databases_are_saved_loaded_swapped_and_flushed() {
    let server = Server::start(&["--databases", &MANY.to_string(), "--enable-debug-command", "yes"]);
    let mut client = server.connect();
    let empty = figure(&mut client, "used_memory");
    let of_db = |db| [format!("SELECT {db}"), format!("SET key first:{db}"), "RPUSH list a b".to_owned()];
    send_all(&mut client, &(0..MANY).rev().flat_map(of_db).collect::<Vec<_>>());
    let expected: Vec<(usize, usize)> = (0..MANY).map(|db| (db, 2)).collect();
    assert_eq!(n_keys(&mut client), expected);
    let digest = ask(&mut client, "DEBUG DIGEST");
    assert_eq!(ask(&mut client, "DEBUG RELOAD"), "+OK");
    assert_eq!(ask(&mut client, "DEBUG DIGEST"), digest);
    assert_eq!(n_keys(&mut client), expected);

    let last = MANY - 1;
    assert_eq!(ask(&mut client, &format!("SWAPDB 7 {last}")), "+OK");
    assert_eq!(ask(&mut client, "SELECT 7"), "+OK");
    assert_eq!(client.command(&["GET", "key"]).text(), Some(format!("first:{last}")));
    assert_eq!(ask(&mut client, "DBSIZE"), ":2");
    assert_eq!(ask(&mut client, "FLUSHDB"), "+OK");
    assert_eq!(ask(&mut client, &format!("SWAPDB {last} 7")), "+OK");
    assert_eq!(client.command(&["GET", "key"]).text().as_deref(), Some("first:7"));
    assert_eq!(n_keys(&mut client).len(), MANY - 1);

    assert_eq!(ask(&mut client, "FLUSHALL"), "+OK");
    assert_eq!(n_keys(&mut client), []);
    until("all is freed", || figure(&mut client, "used_memory") < empty + 512 * 1024);
}

#[test]
fn keys_of_all_databases_expire_and_are_evicted() {
    let server = Server::start(&["--databases", &MANY.to_string()]);
    let mut client = server.connect();
    let empty = figure(&mut client, "used_memory");
    let of_db = |db| [format!("SELECT {db}"), format!("SET kept {db}"), format!("PSETEX short 1 {db}")];
    send_all(&mut client, &(0..MANY).flat_map(of_db).collect::<Vec<_>>());
    until("they have expired", || figure(&mut client, "expired_keys") == MANY);
    assert_eq!(n_keys(&mut client).len(), MANY);

    assert_eq!(ask(&mut client, "CONFIG SET maxmemory-policy allkeys-random"), "+OK");
    let limit = empty + (figure(&mut client, "used_memory") - empty) / 2;
    assert_eq!(ask(&mut client, &format!("CONFIG SET maxmemory {limit}")), "+OK");
    until("some are evicted", || figure(&mut client, "evicted_keys") > MANY / 10);
}

#[test]
fn databases_whose_keys_come_and_go_leave_no_memory_behind() {
    let server = Server::start(&["--databases", &MANY.to_string()]);
    let mut client = server.connect();
    let of_key = |nth| [format!("SET key:{nth} x"), format!("DEL key:{nth}")];
    let of_db = |db| std::iter::once(format!("SELECT {db}")).chain((0..20).flat_map(of_key));
    let churn: Vec<String> = (0..MANY).flat_map(of_db).collect();
    send_all(&mut client, &churn[..churn.len() / 10]);
    let used = figure(&mut client, "used_memory");
    send_all(&mut client, &churn);
    let grown = figure(&mut client, "used_memory").saturating_sub(used);
    assert!(grown < 512 * 1024, "it has grown by {grown} bytes");
}
