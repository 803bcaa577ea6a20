//! The counts of INFO and CLIENT LIST.

use std::{
    io::{Read as _, Write as _},
    net::TcpStream,
};

use crate::support::{
    Client, PATIENCE, Server,
    crowd::{ask, figure, laid_out, tell, until},
    encode,
};

const LAYOUTS: [(usize, usize); 4] = [(1, 1), (2, 16), (8, 1), (8, 1024)];

/// Returns a field of INFO.
fn field(client: &mut Client, name: &str) -> String {
    let info = client.command(&["INFO"]).text().expect("INFO answers text");
    let line = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.unwrap_or_else(|| panic!("no {name} in {info}")).to_owned()
}

fn number(client: &mut Client, name: &str) -> u64 {
    field(client, name).parse().expect("a number")
}

/// A connection that counts the bytes it sends and receives.
struct Counting {
    stream: TcpStream,
    n_sent: usize,
    n_received: usize,
}

impl Counting {
    fn connect(server: &Server) -> Self {
        let stream = TcpStream::connect(("127.0.0.1", server.port())).expect("the server listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout above zero");
        Self { stream, n_sent: 0, n_received: 0 }
    }

    fn send(&mut self, lines: &[&str]) {
        let mut bytes = Vec::new();
        lines.iter().for_each(|line| encode(&line.split(' ').collect::<Vec<_>>(), &mut bytes));
        self.stream.write_all(&bytes).expect("the server reads");
        self.n_sent += bytes.len();
    }

    fn receive(&mut self, replies: &str) {
        let mut bytes = vec![0; replies.len()];
        self.stream.read_exact(&mut bytes).expect("the server answers");
        assert_eq!(String::from_utf8_lossy(&bytes), replies);
        self.n_received += bytes.len();
    }

    /// Requests the line about this connection, and checks its totals.
    fn assert_totals(&mut self, n_commands: usize) {
        let expected_out = self.n_received;
        self.send(&["CLIENT INFO"]);
        let mut line = Vec::new();
        while !line.ends_with(b"\n\r\n") {
            let mut byte = [0];
            self.stream.read_exact(&mut byte).expect("the server answers");
            line.push(byte[0]);
        }
        self.n_received += line.len();
        let line = String::from_utf8_lossy(&line);
        let expected =
            format!("tot-net-in={} tot-net-out={expected_out} tot-cmds={n_commands}\n", self.n_sent);
        assert!(line.contains(&expected), "not {expected}: {line}");
    }
}

#[test]
fn client_info_shows_what_the_connection_has_read_and_written_and_run() {
    for layout in LAYOUTS {
        let server = laid_out(layout);
        let mut client = Counting::connect(&server);
        client.assert_totals(0);
        client.assert_totals(1);
        client.send(&["SET a 1", "PING", "GET a"]);
        client.receive("+OK\r\n+PONG\r\n$1\r\n1\r\n");
        client.assert_totals(5);
        // Refused and queued commands do not run. EXEC and the two commands that it runs do.
        client.send(&["GET", "MULTI", "INCR a", "INCR b", "EXEC", "MSET b 1 c 2", "DEL a b c"]);
        client.receive("-ERR wrong number of arguments for 'get' command\r\n");
        client.receive("+OK\r\n+QUEUED\r\n+QUEUED\r\n*2\r\n:2\r\n:1\r\n+OK\r\n:3\r\n");
        client.assert_totals(12);
        // Half a batch.
        client.send(&["SET a 1", "SET b 2", "CLIENT NO-TOUCH OFF"]);
        client.receive("+OK\r\n+OK\r\n+OK\r\n");
        client.assert_totals(16);
    }
}

#[test]
fn client_info_counts_commands_that_run_on_other_threads_once() {
    const N_ELEMENTS: usize = 12_000;
    for layout in LAYOUTS {
        let server = laid_out(layout);
        let mut client = Counting::connect(&server);
        let elements = "x ".repeat(N_ELEMENTS);
        client.send(&[&format!("RPUSH list {}", elements.trim_end()), "LLEN list"]);
        client.receive(&format!(":{N_ELEMENTS}\r\n:{N_ELEMENTS}\r\n"));
        client.assert_totals(2);
        client.send(&["PING", "LRANGE list 0 -1", "LLEN list"]);
        client.receive(&format!(
            "+PONG\r\n*{N_ELEMENTS}\r\n{}:{N_ELEMENTS}\r\n",
            "$1\r\nx\r\n".repeat(N_ELEMENTS)
        ));
        client.assert_totals(6);
        client.send(&["SCAN 0", "BLPOP empty 0"]);
        client.receive("*2\r\n$1\r\n0\r\n*1\r\n$4\r\nlist\r\n");
        let mut other = server.connect();
        until("a client is blocked", || number(&mut other, "blocked_clients") == 1);
        assert_eq!(ask(&mut other, "RPUSH empty a"), ":1");
        client.receive("*2\r\n$5\r\nempty\r\n$1\r\na\r\n");
        client.assert_totals(9);
        // Commands that wait in vain, and commands that are held back.
        client.send(&["BLPOP none 0.01", "DEBUG SLEEP 0.01", "MULTI", "DEBUG SLEEP 0.01", "EXEC"]);
        client.receive("*-1\r\n+OK\r\n+OK\r\n+QUEUED\r\n*1\r\n+OK\r\n");
        client.assert_totals(15);
    }
}

#[test]
fn info_counts_the_keys_that_clients_wait_for() {
    for layout in LAYOUTS {
        let server = laid_out(layout);
        let mut control = server.connect();
        assert_eq!(number(&mut control, "total_blocking_keys"), 0);
        assert_eq!(ask(&mut control, "XGROUP CREATE stream group $ MKSTREAM"), "+OK");
        let mut clients: Vec<Client> = (0..5).map(|_| server.connect()).collect();
        assert_eq!(ask(&mut clients[4], "SELECT 1"), "+OK");
        let commands = [
            "BLPOP a b 0",
            "BLPOP b c c 0",
            "XREAD BLOCK 0 STREAMS stream $",
            "XREADGROUP GROUP group me BLOCK 0 STREAMS stream >",
            "BZPOPMIN b 0",
        ];
        clients.iter_mut().zip(commands).for_each(|(client, command)| tell(client, command));
        until("five clients are blocked", || number(&mut control, "blocked_clients") == 5);
        // a, b, c and the stream in one database, and b in another.
        assert_eq!(number(&mut control, "total_blocking_keys"), 5);
        assert_eq!(number(&mut control, "total_blocking_keys_on_nokey"), 1);
        assert_eq!(ask(&mut control, "RPUSH a x"), ":1");
        clients[0].receive();
        until("a client is served", || number(&mut control, "blocked_clients") == 4);
        assert_eq!(number(&mut control, "total_blocking_keys"), 4);
        assert_eq!(ask(&mut control, "DEL stream"), ":1");
        clients[3].receive();
        until("a client is told", || number(&mut control, "blocked_clients") == 3);
        assert_eq!(number(&mut control, "total_blocking_keys_on_nokey"), 0);
    }
}

#[test]
fn a_key_that_several_clients_watch_is_counted_once() {
    for layout in LAYOUTS {
        let server = laid_out(layout);
        let mut control = server.connect();
        let mut clients: Vec<Client> = (0..3).map(|_| server.connect()).collect();
        assert_eq!(ask(&mut clients[0], "WATCH a b"), "+OK");
        assert_eq!(ask(&mut clients[1], "WATCH b c b"), "+OK");
        assert_eq!(ask(&mut clients[2], "SELECT 1"), "+OK");
        assert_eq!(ask(&mut clients[2], "WATCH b"), "+OK");
        // a, b and c in one database, and b in another.
        assert_eq!(number(&mut control, "total_watched_keys"), 4);
        assert_eq!(number(&mut control, "watching_clients"), 3);
        assert_eq!(ask(&mut clients[0], "UNWATCH"), "+OK");
        assert_eq!(number(&mut control, "total_watched_keys"), 3);
        drop(clients.pop());
        until("a client has left", || number(&mut control, "total_watched_keys") == 2);
        drop(clients);
        until("all have left", || number(&mut control, "total_watched_keys") == 0);
    }
}

#[test]
fn a_write_that_waits_for_the_end_of_a_long_read_is_not_blocked_on_a_key() {
    // On one thread, notifications of a client come after changes that it could see.
    let server = laid_out((1, 16));
    let mut control = server.connect();
    let members: Vec<String> = (0..12_000).map(|member| member.to_string()).collect();
    control.command(&[&["SADD".to_owned(), "big".to_owned()], &members[..]].concat());
    assert_eq!(ask(&mut control, "DEBUG HOLD-OFFLOADED 1"), "+OK");
    let (mut reader, mut writer) = (server.connect(), server.connect());
    tell(&mut reader, "SMEMBERS big");
    until("the set is pinned", || figure(&mut control, "offloaded_waiting") == 1);
    let id = writer.command(&["CLIENT", "ID"]).integer().expect("a number").to_string();
    tell(&mut writer, "SADD big x");
    until("the write waits", || {
        let line = control.command(&["CLIENT", "LIST", "ID", &id]).text().expect("a text");
        line.contains("cmd=sadd ")
    });
    assert_eq!(number(&mut control, "total_blocking_keys"), 0);
    assert_eq!(ask(&mut control, "DEBUG HOLD-OFFLOADED 0"), "+OK");
    assert_eq!(writer.receive().to_string(), ":1");
}

#[test]
fn info_tells_how_busy_event_loops_are() {
    for layout in [(1, 1), (2, 16)] {
        let server = laid_out(layout);
        let mut client = server.connect();
        let n_cycles = number(&mut client, "eventloop_cycles");
        let nanos = number(&mut client, "eventloop_duration_sum");
        let of_commands = number(&mut client, "eventloop_duration_cmd_sum");
        // Each INFO takes a turn of a loop, and some work.
        until("the loops have been busy", || number(&mut client, "eventloop_duration_sum") > nanos);
        assert!(number(&mut client, "eventloop_cycles") > n_cycles);
        assert!(number(&mut client, "eventloop_duration_cmd_sum") > of_commands);
        until("turns a second are known", || {
            number(&mut client, "instantaneous_eventloop_cycles_per_sec") > 0
        });
        until("the time a turn takes is known", || {
            number(&mut client, "instantaneous_eventloop_duration_usec") > 0
        });
        let n_cycles = number(&mut client, "eventloop_cycles");
        assert_eq!(ask(&mut client, "CONFIG RESETSTAT"), "+OK");
        assert!(number(&mut client, "eventloop_cycles") < n_cycles);
    }
}

#[test]
fn info_tells_processor_time_in_microseconds() {
    let server = laid_out((2, 16));
    let mut client = server.connect();
    let fields = ["used_cpu_sys", "used_cpu_user", "used_cpu_sys_main_thread", "used_cpu_user_main_thread"];
    for name in fields {
        // A clock with steps of ten milliseconds would never show this.
        until(&format!("{name} has become finer"), || {
            let text = field(&mut client, name);
            let (_, fraction) = text.split_once('.').expect("a fraction");
            assert_eq!(fraction.len(), 6, "{name}:{text}");
            &fraction[2..] != "0000"
        });
    }
    assert_eq!(field(&mut client, "used_cpu_user_children"), "0.000000");
    assert_eq!(field(&mut client, "used_cpu_sys_children"), "0.000000");
}

#[test]
fn randomkey_removes_the_expired_keys_that_it_meets() {
    for layout in LAYOUTS {
        let server = laid_out(layout);
        let mut client = server.connect();
        assert_eq!(ask(&mut client, "DEBUG SET-ACTIVE-EXPIRE 0"), "+OK");
        let expire_some = |client: &mut Client| {
            for key in 0..500 {
                assert_eq!(ask(client, &format!("SET key{key} v PX 1000")), "+OK");
            }
            assert_eq!(ask(client, "DEBUG ADVANCE-TIME 1001"), "+OK");
        };
        expire_some(&mut client);
        assert_eq!(ask(&mut client, "RANDOMKEY"), "(nil)");
        assert_eq!(ask(&mut client, "DBSIZE"), ":0");
        assert_eq!(number(&mut client, "expired_keys"), 500);
        expire_some(&mut client);
        assert_eq!(ask(&mut client, "SET alive v"), "+OK");
        assert_eq!(client.command(&["RANDOMKEY"]).text().as_deref(), Some("alive"));
        // Within a transaction it gives up among expired keys, because all shards are held.
        assert_eq!(ask(&mut client, "FLUSHALL"), "+OK");
        expire_some(&mut client);
        assert_eq!(ask(&mut client, "CONFIG RESETSTAT"), "+OK");
        client.command(&["MULTI"]);
        client.command(&["RANDOMKEY"]);
        client.command(&["EXEC"]);
        let n_removed = number(&mut client, "expired_keys");
        assert!(n_removed < 500, "all have been removed under one hold");
    }
}

/// Returns a figure of a database in INFO keyspace.
fn of_database(client: &mut Client, db: usize, name: &str) -> u64 {
    let info = client.command(&["INFO", "keyspace"]).text().expect("INFO answers text");
    let line = info.lines().find_map(|line| line.strip_prefix(&format!("db{db}:")));
    let line = line.unwrap_or_else(|| panic!("no db{db} in {info}"));
    let figure = line.split(',').find_map(|field| field.strip_prefix(name)?.strip_prefix('='));
    figure.and_then(|figure| figure.parse().ok()).unwrap_or_else(|| panic!("no {name} in {line}"))
}

#[test]
fn info_tells_how_long_keys_of_a_database_last() {
    let server = Server::start(&["--io-threads", "2"]);
    let mut client = server.connect();
    for line in ["SET a v EX 1000", "SET b v EX 3000", "SET c v", "SELECT 3", "SET d v EX 50"] {
        assert_eq!(ask(&mut client, line), "+OK");
    }
    until("expiry has met the keys", || (45_000..=50_000).contains(&of_database(&mut client, 3, "avg_ttl")));
    until("expiry has met both", || (1_000_000..3_000_000).contains(&of_database(&mut client, 0, "avg_ttl")));
    assert_eq!(ask(&mut client, "PERSIST d"), ":1");
    assert_eq!(of_database(&mut client, 3, "avg_ttl"), 0);
}

#[test]
fn info_tells_how_many_hashes_of_a_database_have_fields_that_expire() {
    for layout in [["--io-threads", "1", "--shards", "1"], ["--io-threads", "2", "--shards", "1024"]] {
        let server = Server::start(&layout);
        let mut client = server.connect();
        ask(&mut client, "SET stays v");
        for n in 0..20 {
            ask(&mut client, &format!("HSET h{n} f v g v"));
            assert_eq!(ask(&mut client, &format!("HEXPIRE h{n} {} FIELDS 2 f g", 1000 + n)), "[:1 :1]");
        }
        assert_eq!(of_database(&mut client, 0, "subexpiry"), 20);
        for (line, left) in [
            ("HPERSIST h0 FIELDS 1 f", 20),
            ("HPERSIST h0 FIELDS 1 g", 19),
            ("HEXPIRE h1 2000 FIELDS 1 f", 19),
            ("DEL h1", 18),
            ("SET h2 v", 17),
            ("RENAME h3 h4", 16),
            ("COPY h4 h1", 17),
            ("HDEL h4 f g", 16),
            ("EXPIRE h5 -1", 15),
            ("MOVE h6 3", 14),
            ("DEBUG RELOAD", 14),
            ("DEBUG ADVANCE-TIME 900000", 14),
            ("SELECT 3", 14),
        ] {
            assert!(!ask(&mut client, line).starts_with('-'), "{line}");
            assert_eq!(of_database(&mut client, 0, "subexpiry"), left, "{line}");
        }
        assert_eq!(of_database(&mut client, 3, "subexpiry"), 1);
        ask(&mut client, "SET stays v");
        assert_eq!(ask(&mut client, "SWAPDB 0 3"), "+OK");
        assert_eq!([0, 3].map(|db| of_database(&mut client, db, "subexpiry")), [1, 14]);
        ask(&mut client, "DEBUG ADVANCE-TIME 2000000");
        until("all have expired", || of_database(&mut client, 3, "subexpiry") == 0);
        assert_eq!(ask(&mut client, "SWAPDB 0 3"), "+OK");
        ask(&mut client, "FLUSHALL");
        ask(&mut client, "SET k v");
        assert_eq!(of_database(&mut client, 3, "subexpiry"), 0);
    }
}

/// Returns a field of INFO as text, if it is there.
fn field_if_there(client: &mut Client, name: &str) -> Option<String> {
    let info = client.command(&["INFO", "everything"]).text().expect("INFO answers text");
    info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::to_owned)
}

#[test]
fn the_slow_log_is_counted_since_resetstat() {
    let server = Server::start(&["--slowlog-log-slower-than", "0", "--slowlog-max-len", "1"]);
    let mut client = server.connect();
    (0..20).for_each(|_| drop(client.command(&["PING"])));
    // The log has one entry, and the count has all.
    assert!(number(&mut client, "slowlog_commands_count") >= 20);
    client.command(&["DEBUG", "SLEEP", "0.02"]);
    let [sum, max] =
        ["sum", "max"].map(|part| number(&mut client, &format!("slowlog_commands_time_ms_{part}")));
    assert!(max >= 20 && sum >= max, "the longest took {max} ms, and all took {sum} ms");
    client.command(&["CONFIG", "SET", "slowlog-log-slower-than", "-1"]);
    client.command(&["CONFIG", "RESETSTAT"]);
    for name in ["slowlog_commands_count", "slowlog_commands_time_ms_sum", "slowlog_commands_time_ms_max"] {
        assert_eq!(number(&mut client, name), 0, "{name}");
    }
}

#[test]
fn scripts_that_make_way_for_newer_ones_are_counted() {
    let server = Server::start(&[]);
    let mut client = server.connect();
    for n in 0..503 {
        client.command(&["EVAL", &format!("return {n}"), "0"]);
    }
    assert_eq!(number(&mut client, "number_of_cached_scripts"), 500);
    assert_eq!(number(&mut client, "evicted_scripts"), 3);
    client.command(&["SCRIPT", "FLUSH"]);
    assert_eq!(number(&mut client, "evicted_scripts"), 3, "a flush evicts nothing");
    client.command(&["CONFIG", "RESETSTAT"]);
    assert_eq!(number(&mut client, "evicted_scripts"), 0);
}

#[test]
fn the_threads_connections_add_up() {
    let server = Server::start(&["--io-threads", "3"]);
    let mut clients: Vec<Client> = (0..9).map(|_| server.connect()).collect();
    clients.iter_mut().for_each(|client| drop(client.command(&["PING"])));
    let threads = (0..3).map(|thread| field_if_there(&mut clients[0], &format!("io_thread_{thread}")));
    let threads: Vec<String> = threads.map(|line| line.expect("a line for each thread")).collect();
    let of = |name: &str| -> u64 {
        let part =
            |line: &String| line.split(',').find_map(|part| part.strip_prefix(name)?.parse::<u64>().ok());
        threads.iter().map(|line| part(line).expect("a number")).sum()
    };
    assert_eq!(of("clients="), 9, "{threads:?}");
    assert!(of("reads=") >= 9 && of("writes=") >= 9, "{threads:?}");
    assert_eq!(field_if_there(&mut clients[0], "io_thread_3"), None);
}

#[test]
fn listeners_are_those_that_listen() {
    let server = Server::start(&["--unixsocket", "listener"]);
    let mut client = server.connect();
    let (first, second) = (server.port().to_string(), crate::support::Port::claim());
    assert_eq!(field(&mut client, "listener0"), format!("name=tcp,bind=127.0.0.1,port={first}"));
    assert_eq!(field(&mut client, "listener1"), "name=unix,bind=listener");
    assert_eq!(field_if_there(&mut client, "listener2"), None);
    client.command(&["CONFIG", "SET", "port", &second.number().to_string()]);
    assert_eq!(field(&mut client, "listener0"), format!("name=tcp,bind=127.0.0.1,port={}", second.number()));
    client.command(&["CONFIG", "SET", "port", "0"]);
    assert_eq!(field_if_there(&mut client, "listener0"), None);
}

#[test]
fn fields_that_expire_have_the_names_of_both_families() {
    for (announced, name) in [("redis-8.2", "subexpiry"), ("valkey-9.1", "keys_with_volatile_items")] {
        let server = Server::start(&["--announce-as", announced]);
        let mut client = server.connect();
        client.command(&["HSET", "hash", "a", "1", "b", "2", "c", "3"]);
        client.command(&["HPEXPIRE", "hash", "1000000", "FIELDS", "1", "a"]);
        let line = field(&mut client, "db0");
        assert!(line.ends_with(&format!(",{name}=1")), "{announced}: {line}");
        // One is deleted by its past deadline, which is no expiry, and one expires.
        client.command(&["HPEXPIREAT", "hash", "1", "FIELDS", "1", "b"]);
        client.command(&["HPEXPIRE", "hash", "1", "FIELDS", "1", "c"]);
        while client.command(&["HGET", "hash", "c"]).text().is_some() {}
        let [here, there] = ["expired_subkeys", "expired_fields"].map(|name| number(&mut client, name));
        assert_eq!(here, there);
        assert!((1..=2).contains(&here), "{here} fields have expired");
    }
}
