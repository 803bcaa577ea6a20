//! Replicas of a Braid: copies, the change stream after them, and the commands that wait for replicas.

mod spool;

use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    path::Path,
};

use crate::support::{
    Client, PATIENCE, Server,
    crowd::{ask, figure, until},
    reference,
};

/// A replica that the test plays.
struct PlayedReplica {
    stream: BufReader<TcpStream>,
    id: String,
    offset: u64,
    /// The stream since the copy, as far as it has come.
    read: Vec<u8>,
}

/// A copy that a replica was given.
struct Copy {
    bytes: Vec<u8>,
    is_marked: bool,
}

impl PlayedReplica {
    fn connect(server: &Server) -> Self {
        let stream = TcpStream::connect(("127.0.0.1", server.port())).expect("the server listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
        Self { stream: BufReader::new(stream), id: String::new(), offset: 0, read: Vec::new() }
    }

    /// Sends a command in its inline form.
    fn send(&mut self, line: &str) {
        self.stream.get_mut().write_all(format!("{line}\r\n").as_bytes()).expect("the server reads");
    }

    /// The next line that is not empty.
    fn line(&mut self) -> String {
        loop {
            let mut line = String::new();
            let n = self.stream.read_line(&mut line).expect("a line comes in time");
            assert!(n > 0, "the server has closed the link");
            if line != "\n" {
                return line.trim_end().to_owned();
            }
        }
    }

    fn ask(&mut self, line: &str) -> String {
        self.send(line);
        self.line()
    }

    /// Says what a Redis 7 says before it asks for data.
    fn introduce(&mut self) {
        assert_eq!(self.ask("PING"), "+PONG");
        assert_eq!(self.ask("REPLCONF listening-port 7001"), "+OK");
        assert_eq!(self.ask("REPLCONF capa eof capa psync2"), "+OK");
    }

    /// Reads the reply to PSYNC that announces a copy.
    fn read_announcement(&mut self) {
        let reply = self.line();
        let words: Vec<&str> = reply.split(' ').collect();
        assert_eq!((words[0], words.len(), words[1].len()), ("+FULLRESYNC", 3, 40), "{reply}");
        (self.id, self.offset) = (words[1].to_owned(), words[2].parse().expect("a number"));
    }

    fn read_copy(&mut self) -> Copy {
        let head = self.line();
        if let Some(mark) = head.strip_prefix("$EOF:") {
            let mut bytes = Vec::new();
            while !bytes.ends_with(mark.as_bytes()) {
                let mut byte = [0];
                self.stream.read_exact(&mut byte).expect("more of the copy");
                bytes.push(byte[0]);
            }
            bytes.truncate(bytes.len() - mark.len());
            return Copy { bytes, is_marked: true };
        }
        let n_bytes: usize = head.strip_prefix('$').and_then(|n| n.parse().ok()).expect("a length");
        let mut bytes = vec![0; n_bytes];
        self.stream.read_exact(&mut bytes).expect("the copy");
        Copy { bytes, is_marked: false }
    }

    /// Becomes a replica with a full copy.
    fn synchronize(server: &Server) -> (Self, Copy) {
        let mut replica = PlayedReplica::connect(server);
        replica.introduce();
        replica.send("PSYNC ? -1");
        replica.read_announcement();
        let copy = replica.read_copy();
        replica.acknowledge();
        (replica, copy)
    }

    /// Says how far it is.
    fn acknowledge(&mut self) {
        let offset = self.offset;
        self.send(&format!("REPLCONF ACK {offset}"));
    }

    /// Reads the stream until it has a text, and says so.
    fn read_until(&mut self, text: &str) {
        let mut searched_to = 0;
        while !self.read[searched_to..].windows(text.len()).any(|window| window == text.as_bytes()) {
            searched_to = self.read.len().saturating_sub(text.len());
            let bytes = self.stream.fill_buf().expect("the stream goes on").to_vec();
            assert!(!bytes.is_empty(), "the server has closed the link");
            self.stream.consume(bytes.len());
            self.offset += bytes.len() as u64;
            self.read.extend_from_slice(&bytes);
        }
        self.acknowledge();
    }

    /// Takes the stream that it has read since the last call, with a line for each word.
    fn take(&mut self) -> String {
        String::from_utf8(std::mem::take(&mut self.read)).expect("text").replace("\r\n", "\n")
    }

    /// Whether the server has closed the link, after what was still to come.
    fn is_closed(&mut self) -> bool {
        let mut rest = Vec::new();
        self.stream.read_to_end(&mut rest).is_ok()
    }
}

/// The options of a primary that does not make replicas wait for more of them, and sends no PING.
const AT_ONCE: [&str; 6] = [
    "--repl-diskless-sync-delay",
    "0",
    "--repl-ping-replica-period",
    "100000",
    "--enable-debug-command",
    "yes",
];

fn primary(more: &[&str]) -> Server {
    Server::start(&[&AT_ONCE, more].concat())
}

fn digest(server: &Server) -> String {
    ask(&mut server.connect(), "DEBUG DIGEST")
}

/// Starts a server with the data of a copy.
fn server_with(copy: &Copy, folder: &Path) -> Server {
    let folder = folder.join("of-the-copy");
    fs::create_dir_all(&folder).expect("a folder");
    fs::write(folder.join("copy.rdb"), &copy.bytes).expect("a file");
    let folder = folder.to_str().expect("text");
    Server::start(&["--dir", folder, "--dbfilename", "copy.rdb", "--enable-debug-command", "yes"])
}

/// Writes values of several types.
fn fill(client: &mut Client) {
    for line in [
        "SET string value",
        "RPUSH list a b c",
        "HSET hash f 1 g 2",
        "SADD set a b c",
        "ZADD zset 1 a 2 b",
        "XADD stream 1-1 f v",
        "SET fleeting x PX 100000000",
        "FUNCTION LOAD #!lua\\x20name=lib\\nredis.register_function('f',function()return\\x201\\x20end)",
    ] {
        let words: Vec<String> =
            line.split(' ').map(|word| word.replace("\\x20", " ").replace("\\n", "\n")).collect();
        let reply = client.command(&words).to_string();
        assert!(!reply.starts_with('-'), "{line}: {reply}");
    }
    assert_eq!(ask(client, "SELECT 3"), "+OK");
    assert_eq!(ask(client, "SET in-3 x"), "+OK");
    assert_eq!(ask(client, "SELECT 0"), "+OK");
}

#[test]
fn a_replica_gets_all_data_and_then_every_change_once_and_in_order() {
    let server = primary(&[]);
    let mut client = server.connect();
    fill(&mut client);
    let (mut replica, copy) = PlayedReplica::synchronize(&server);
    assert!(copy.is_marked && copy.bytes.starts_with(b"REDIS00"));
    let loaded = server_with(&copy, server.scratch());
    assert_eq!(digest(&loaded), digest(&server));
    assert!(ask(&mut loaded.connect(), "FUNCTION LIST").contains("lib"));

    ask(&mut client, "SET a 1");
    ask(&mut client, "GET a");
    ask(&mut client, "SELECT 3");
    ask(&mut client, "INCR n");
    ask(&mut client, "MULTI");
    ask(&mut client, "PUBLISH channel hello");
    ask(&mut client, "INCR n");
    ask(&mut client, "SET last 1");
    ask(&mut client, "EXEC");
    replica.read_until("hello\r\n");
    let expected = "*2\n$6\nSELECT\n$1\n0\n*3\n$3\nSET\n$1\na\n$1\n1\n*2\n$6\nSELECT\n$1\n3\n*2\n$4\nINCR\n$1\nn\n\
                    *1\n$5\nMULTI\n*2\n$4\nINCR\n$1\nn\n*3\n$3\nSET\n$4\nlast\n$1\n1\n*1\n$4\nEXEC\n\
                    *3\n$7\nPUBLISH\n$7\nchannel\n$5\nhello\n";
    assert_eq!(replica.take(), expected);
    let info = || ask(&mut server.connect(), "INFO replication");
    until("the replica has acknowledged", || info().contains(&format!("offset={},lag=0", replica.offset)));
    assert!(info().contains("slave0:ip=127.0.0.1,port=7001,state=online,"), "{}", info());
    assert!(info().contains(&format!("master_repl_offset:{}", replica.offset)), "{}", info());
    let listed = ask(&mut client, "CLIENT LIST TYPE replica");
    assert!(listed.contains("flags=S") && listed.lines().count() == 1, "{listed}");
    let role = ask(&mut client, "ROLE");
    assert!(role.contains("127.0.0.1") && role.contains("7001"), "{role}");
}

/// The replica's data is the copy and the stream: nothing is in both, and nothing in neither.
#[test]
fn what_is_written_during_a_copy_is_in_the_copy_or_in_the_stream() {
    let server = primary(&["--rdb-key-save-delay", "200"]);
    let mut client = server.connect();
    ask(&mut client, "DEBUG POPULATE 3000");
    let mut replica = PlayedReplica::connect(&server);
    replica.introduce();
    replica.send("PSYNC ? -1");
    replica.read_announcement();
    for number in 0..3000 {
        ask(&mut client, &format!("APPEND key:{number} x"));
        ask(&mut client, &format!("RPUSH list {number}"));
    }
    ask(&mut client, "CONFIG SET rdb-key-save-delay 0");
    let copy = replica.read_copy();
    replica.acknowledge();
    ask(&mut client, "SET the-end 1");
    replica.read_until("the-end\r\n$1\r\n1\r\n");
    let loaded = server_with(&copy, server.scratch());
    let mut applying = loaded.connect();
    let stream = std::mem::take(&mut replica.read);
    applying.send_raw(&stream);
    until("the stream is applied", || ask(&mut loaded.connect(), "GET the-end") == "\"1\"");
    assert_eq!(digest(&loaded), digest(&server));
}

#[test]
fn a_replica_goes_on_where_it_was_as_long_as_the_backlog_has_that() {
    let server = primary(&["--repl-backlog-size", "16kb"]);
    let mut client = server.connect();
    let (mut replica, _) = PlayedReplica::synchronize(&server);
    ask(&mut client, "SET a 1");
    replica.read_until("a\r\n$1\r\n1\r\n");
    replica.take();
    let (id, offset) = (replica.id.clone(), replica.offset);
    drop(replica);
    ask(&mut client, "SET b 2");

    let again = |id: &str, offset: u64| {
        let mut replica = PlayedReplica::connect(&server);
        replica.introduce();
        replica.offset = offset - 1;
        let reply = replica.ask(&format!("PSYNC {id} {offset}"));
        (replica, reply)
    };
    let (mut replica, reply) = again(&id, offset + 1);
    assert_eq!(reply, format!("+CONTINUE {id}"));
    replica.read_until("b\r\n$1\r\n2\r\n");
    assert_eq!(replica.take(), "*3\n$3\nSET\n$1\nb\n$1\n2\n");
    ask(&mut client, "SET c 3");
    replica.read_until("c\r\n$1\r\n3\r\n");
    assert_eq!(replica.take(), "*3\n$3\nSET\n$1\nc\n$1\n3\n", "the database is still selected");
    let end = replica.offset;
    drop(replica);

    for (id, offset) in [("0123456789012345678901234567890123456789", end + 1), (&*id, end + 1000)] {
        let (_, reply) = again(id, offset);
        assert!(reply.starts_with("+FULLRESYNC "), "{reply}");
    }
    for number in 0..100 {
        ask(&mut client, &format!("SET long:{number} {}", "x".repeat(500)));
    }
    let (_, reply) = again(&id, end + 1);
    assert!(reply.starts_with(&format!("+FULLRESYNC {id} ")), "its place is gone, and its history is not");
    let info = ask(&mut client, "INFO stats");
    for line in ["sync_full:4", "sync_partial_ok:1", "sync_partial_err:3"] {
        assert!(info.contains(line), "{line} is not in {info}");
    }
}

/// Its reply comes from another thread then.
#[test]
fn a_replica_that_asks_while_a_script_runs_goes_on_after_that() {
    let server = primary(&["--io-threads", "2", "--busy-reply-threshold", "0"]);
    let (mut client, mut other) = (server.connect(), server.connect());
    let (replica, _) = PlayedReplica::synchronize(&server);
    let (id, place) = (replica.id.clone(), replica.offset + 1);
    drop(replica);
    let mut replica = PlayedReplica::connect(&server);
    replica.introduce();
    replica.offset = place - 1;
    client.send(&["EVAL", "for i = 1, 5e7 do end", "1", "key"]);
    until("it runs", || ask(&mut other, "CLIENT LIST").contains("cmd=eval"));
    replica.send(&format!("PSYNC {id} {place}"));
    assert_eq!(replica.line(), format!("+CONTINUE {id}"));
    ask(&mut other, "SET a 1");
    replica.read_until("a\r\n$1\r\n1\r\n");
}

#[test]
fn copies_come_in_the_form_that_the_replica_reads() {
    let server = primary(&[]);
    let mut client = server.connect();
    fill(&mut client);
    // One of the time before PSYNC, and one that does not know marks.
    let mut old = PlayedReplica::connect(&server);
    old.send("SYNC");
    let copy = old.read_copy();
    assert!(!copy.is_marked && copy.bytes.starts_with(b"REDIS00"));
    ask(&mut client, "SET a 1");
    old.read_until("a\r\n$1\r\n1\r\n");

    let mut plain = PlayedReplica::connect(&server);
    plain.send("PSYNC ? -1");
    plain.read_announcement();
    assert!(!plain.read_copy().is_marked);

    // As `redis-cli --rdb` and `redis-cli --functions-rdb` ask.
    let mut only = PlayedReplica::connect(&server);
    assert_eq!(only.ask("REPLCONF rdb-only 1"), "+OK");
    only.send("SYNC");
    let all = only.read_copy();
    assert!(all.bytes.windows(6).any(|window| window == b"string"));
    assert!(only.is_closed(), "it wanted nothing else");
    let mut functions = PlayedReplica::connect(&server);
    assert_eq!(functions.ask("REPLCONF rdb-only 1 rdb-filter-only functions"), "+OK");
    functions.send("SYNC");
    let copy = functions.read_copy();
    let has = |text: &[u8]| copy.bytes.windows(text.len()).any(|window| window == text);
    assert!(has(b"register_function") && !has(b"string"));
    assert_eq!(
        functions_error(&server, "REPLCONF rdb-filter-only keys"),
        "-ERR Unsupported rdb-filter-only option: keys"
    );
    assert_eq!(
        functions_error(&server, "REPLCONF nonsense 1"),
        "-ERR Unrecognized REPLCONF option: nonsense"
    );
    assert_eq!(functions_error(&server, "REPLCONF listening-port"), "-ERR syntax error");
    assert_eq!(functions_error(&server, "PSYNC x y"), "-ERR value is not an integer or out of range");
}

fn functions_error(server: &Server, line: &str) -> String {
    ask(&mut server.connect(), line)
}

/// A deadline of a field has no form that Redis 7.0 reads: its replica is told so, and not given other data.
#[test]
fn data_that_a_replica_cannot_read_is_not_sent() {
    let server = primary(&[]);
    let mut client = server.connect();
    ask(&mut client, "HSET hash f 1 g 2");
    ask(&mut client, "HEXPIRE hash 100000 FIELDS 1 f");
    let mut replica = PlayedReplica::connect(&server);
    replica.introduce();
    replica.send("PSYNC ? -1");
    replica.read_announcement();
    assert!(replica.is_closed());
    assert!(server.log().contains("hash"), "{}", server.log());
    assert!(server.log().contains("The copy for replicas failed"), "{}", server.log());

    let mut valkey = PlayedReplica::connect(&server);
    valkey.introduce();
    assert_eq!(valkey.ask("REPLCONF version 9.1.2"), "+OK");
    valkey.send("PSYNC ? -1");
    valkey.read_announcement();
    assert!(valkey.read_copy().bytes.starts_with(b"VALKEY080"));
}

#[test]
fn wait_ends_when_enough_replicas_have_the_writes() {
    let server = primary(&["--appendonly", "yes"]);
    let mut client = server.connect();
    let (mut first, _) = PlayedReplica::synchronize(&server);
    let (mut second, _) = PlayedReplica::synchronize(&server);
    ask(&mut client, "SET a 1");
    client.send(&["WAIT", "2", "0"]);
    first.read_until("GETACK\r\n$1\r\n*\r\n");
    second.read_until("GETACK\r\n$1\r\n*\r\n");
    assert_eq!(client.receive().to_string(), ":2");
    // Nobody says more, so one is not enough.
    ask(&mut client, "SET b 1");
    first.take();
    client.send(&["WAIT", "2", "300"]);
    first.read_until("GETACK\r\n$1\r\n*\r\n");
    assert_eq!(client.receive().to_string(), ":1");

    ask(&mut client, "SET c 1");
    first.take();
    client.send(&["WAITAOF", "1", "1", "0"]);
    first.read_until("GETACK\r\n$1\r\n*\r\n");
    let offset = first.offset;
    first.send(&format!("REPLCONF ACK {offset} FACK {offset}"));
    assert_eq!(client.receive().to_string(), "[:1 :1]");
    // In a transaction nothing waits.
    for line in ["MULTI", "WAIT 9 0"] {
        ask(&mut client, line);
    }
    assert_eq!(ask(&mut client, "EXEC"), "[:1]");
}

#[test]
fn writes_are_refused_while_too_few_replicas_are_well() {
    let server = primary(&["--min-replicas-to-write", "1", "--min-replicas-max-lag", "1"]);
    let mut client = server.connect();
    let refusal = "-NOREPLICAS Not enough good replicas to write.";
    until("the server has noticed", || ask(&mut client, "SET a 1") == refusal);
    assert_eq!(ask(&mut client, "PING"), "+PONG");
    assert_eq!(ask(&mut client, "GET a"), "(nil)");
    let script = "return redis.call('SET', 'a', 1)";
    assert!(client.command(&["EVAL", script, "0"]).to_string().contains("NOREPLICAS"));
    let (mut replica, _) = PlayedReplica::synchronize(&server);
    until("a replica is well", || {
        replica.acknowledge();
        ask(&mut client, "SET a 1") == "+OK"
    });
    assert!(ask(&mut client, "INFO replication").contains("min_slaves_good_slaves:1"));
    until("it has been silent", || ask(&mut client, "SET a 1") == refusal);
    drop(replica);
    assert_eq!(ask(&mut client, "CONFIG SET min-replicas-to-write 0"), "+OK");
    until("none is needed", || ask(&mut client, "SET a 1") == "+OK");
}

/// PING, GETACK and PUBLISH are for replicas only.
#[test]
fn the_append_only_file_has_the_data_and_nothing_else_of_the_stream() {
    let server = primary(&["--appendonly", "yes", "--repl-ping-replica-period", "1"]);
    let mut client = server.connect();
    let (mut replica, _) = PlayedReplica::synchronize(&server);
    ask(&mut client, "SET a 1");
    ask(&mut client, "PUBLISH channel message");
    replica.read_until("message\r\n");
    replica.read_until("PING\r\n");
    client.send(&["WAIT", "1", "0"]);
    replica.read_until("GETACK\r\n$1\r\n*\r\n");
    assert_eq!(client.receive().to_string(), ":1");
    // A rewrite and a copy share the stream.
    ask(&mut client, "BGREWRITEAOF");
    let (_second, copy) = PlayedReplica::synchronize(&server);
    assert!(copy.bytes.len() > 20);
    ask(&mut client, "SET b 2");
    replica.read_until("b\r\n$1\r\n2\r\n");
    until("the rewrite has ended", || {
        ask(&mut client, "INFO persistence").contains("aof_rewrite_in_progress:0")
    });
    let mut files = Vec::new();
    for entry in fs::read_dir(server.scratch().join("appendonlydir")).expect("the files").flatten() {
        files.extend(fs::read(entry.path()).expect("a file"));
    }
    for name in ["PING", "PUBLISH", "GETACK"] {
        assert!(!files.windows(name.len()).any(|window| window == name.as_bytes()), "{name} is in the file");
    }
    let before = digest(&server);
    assert_eq!(ask(&mut client, "DEBUG LOADAOF"), "+OK");
    assert_eq!(digest(&server), before);
    until("replicas must ask anew", || ask(&mut client, "INFO replication").contains("connected_slaves:0"));
}

#[test]
fn a_replica_that_does_not_read_is_closed_and_others_go_on() {
    let limit = ["--client-output-buffer-limit", "replica 1mb 0 0", "--repl-backlog-size", "16kb"];
    let server = primary(&[&limit[..], &["--repl-spool", "no"]].concat());
    let mut client = server.connect();
    let (mut reader, _) = PlayedReplica::synchronize(&server);
    let (idle, _) = PlayedReplica::synchronize(&server);
    let value = "x".repeat(100_000);
    for number in 0..300 {
        ask(&mut client, &format!("SET key:{number} {value}"));
        reader.read_until(&format!("key:{number}\r\n"));
        reader.read.clear();
    }
    until("the idle one is closed", || ask(&mut client, "INFO replication").contains("connected_slaves:1"));
    ask(&mut client, "SET end 1");
    reader.read_until("end\r\n$1\r\n1\r\n");
    drop(idle);
}

/// A clean end loses nothing: the server waits for replicas that are behind.
#[test]
fn shutdown_waits_for_replicas_that_are_behind() {
    for (options, waits) in [("NOSAVE", true), ("SAVE", true), ("NOSAVE NOW", false)] {
        let mut server = primary(&["--shutdown-timeout", "1000"]);
        let mut client = server.connect();
        let (mut replica, _) = PlayedReplica::synchronize(&server);
        let value = "x".repeat(1 << 20);
        for number in 0..20 {
            ask(&mut client, &format!("SET key:{number} {value}"));
        }
        client.send(&[&["SHUTDOWN"], &options.split(' ').collect::<Vec<_>>()[..]].concat());
        if waits {
            replica.read_until("GETACK\r\n$1\r\n*\r\n");
            for number in 0..20 {
                let key = format!("key:{number}\r\n");
                assert!(replica.read.windows(key.len()).any(|window| window == key.as_bytes()), "{options}");
            }
        }
        assert!(server.await_end().success(), "{options}");
    }
}

/// Deadlines of fields have no form that Redis 7.0 knows. It must not go on as if nothing had happened.
#[test]
fn a_change_that_a_replica_does_not_know_ends_its_link() {
    let server = primary(&[]);
    let mut client = server.connect();
    let (mut replica, _) = PlayedReplica::synchronize(&server);
    ask(&mut client, "HSET hash HPEXPIREAT\\r\\n v");
    client.command(&["SET", "text", "*1\r\n$10\r\nHPEXPIREAT\r\n"]);
    replica.read_until("text\r\n");
    ask(&mut client, "HEXPIRE hash 100000 FIELDS 1 HPEXPIREAT\\r\\n");
    assert!(replica.is_closed());
    let log = server.log();
    assert!(log.contains("cannot know HPEXPIREAT"), "{log}");
}

#[test]
fn redis_becomes_a_replica_and_stays_equal() {
    if !reference::has_reference("replicas::redis_becomes_a_replica_and_stays_equal") {
        return;
    }
    let server = primary(&[]);
    let mut client = server.connect();
    fill(&mut client);
    let port = server.port().to_string();
    let redis = Server::start_program(
        reference::REFERENCE,
        &["--replicaof", "127.0.0.1", &port, "--enable-debug-command", "yes", "--repl-timeout", "30"],
    );
    let mut copy = redis.connect();
    until("the link is up", || ask(&mut copy, "INFO replication").contains("master_link_status:up"));
    for number in 0..2000 {
        ask(&mut client, &format!("SET key:{number} {number}"));
        ask(&mut client, &format!("ZADD zset {number} member:{number}"));
        ask(&mut client, "SPOP set");
    }
    assert_eq!(ask(&mut client, "WAIT 1 0"), ":1");
    assert_eq!(digest_of_redis(&redis), digest(&server));
    // It comes back to where it was.
    assert_eq!(ask(&mut client, "CLIENT KILL TYPE replica"), ":1");
    ask(&mut client, "SET while-away 1");
    until("it is back", || ask(&mut copy, "GET while-away") == "\"1\"");
    assert!(ask(&mut client, "INFO stats").contains("sync_partial_ok:1"));
    assert_eq!(digest_of_redis(&redis), digest(&server));
}

/// The digest of the data of a redis-server, as it saves that.
fn digest_of_redis(redis: &Server) -> String {
    assert_eq!(ask(&mut redis.connect(), "SAVE"), "+OK");
    let bytes = fs::read(redis.scratch().join("dump.rdb")).expect("its file");
    digest(&server_with(&Copy { bytes, is_marked: false }, redis.scratch()))
}

/// A replica hands on what it is given. When it is given other data, so are its replicas.
#[test]
fn a_replica_has_replicas_of_its_own() {
    let (server, other) = (primary(&[]), primary(&[]));
    let mut client = server.connect();
    fill(&mut client);
    ask(&mut other.connect(), "SET other 1");
    let follow = |server: &Server| {
        let replica = primary(&["--replicaof", "127.0.0.1", &server.port().to_string()]);
        let mut client = replica.connect();
        until("the link is up", || ask(&mut client, "INFO replication").contains("master_link_status:up"));
        replica
    };
    let middle = follow(&server);
    let last = follow(&middle);
    for number in 0..1000 {
        ask(&mut client, &format!("SET key:{number} {number}"));
        ask(&mut client, &format!("ZADD zset {number} member:{number}"));
    }
    ask(&mut client, "SET the-end 1");
    let has = |server: &Server, key: &str| ask(&mut server.connect(), &format!("EXISTS {key}")) == ":1";
    until("the last one has everything", || has(&last, "the-end"));
    for replica in [&middle, &last] {
        assert_eq!(digest(replica), digest(&server));
    }
    assert!(ask(&mut last.connect(), "SET a 1").starts_with("-READONLY"));
    let port = other.port();
    assert_eq!(ask(&mut middle.connect(), &format!("REPLICAOF 127.0.0.1 {port}")), "+OK");
    until("the last one has the other data", || has(&last, "other") && !has(&last, "the-end"));
    assert_eq!(digest(&last), digest(&other));
}

#[test]
fn a_new_number_of_needed_replicas_applies_to_the_next_write() {
    let server = primary(&[]);
    let mut client = server.connect();
    let (_replica, _) = PlayedReplica::synchronize(&server);
    assert_eq!(ask(&mut client, "CONFIG SET min-replicas-to-write 1"), "+OK");
    until("it is well", || ask(&mut client, "INFO replication").contains("min_slaves_good_slaves:1"));
    for _ in 0..20 {
        assert_eq!(ask(&mut client, "CONFIG SET min-replicas-to-write 2"), "+OK");
        assert!(ask(&mut client, "SET a 1").starts_with("-NOREPLICAS"));
        assert_eq!(ask(&mut client, "CONFIG SET min-replicas-to-write 1"), "+OK");
        assert_eq!(ask(&mut client, "SET a 1"), "+OK");
    }
}

#[test]
fn no_reply_gets_into_the_stream_of_a_replica() {
    // The last two are answered from other threads, or after a wait.
    for (command, name) in [
        ("GET a", "get"),
        ("PING", "ping"),
        ("XINFO HELP", "xinfo|help"),
        ("CONFIG SET hz 20", "config|set"),
        ("WAIT 5 1", "wait"),
    ] {
        for is_pipelined in [false, true] {
            let server = primary(&[]);
            let mut replica = PlayedReplica::connect(&server);
            replica.introduce();
            if is_pipelined {
                replica.send(&format!("PSYNC ? -1\r\n{command}"));
            } else {
                replica.send("PSYNC ? -1");
                replica.read_announcement();
                replica.send(command);
            }
            let mut rest = Vec::new();
            replica.stream.read_to_end(&mut rest).expect("the link is closed");
            let rest = String::from_utf8_lossy(&rest);
            for reply in ["-ERR", "+PONG", "XINFO", "+OK\r\n", ":0\r\n"] {
                assert!(!rest.contains(reply), "{command}: {rest}");
            }
            let line = format!("Replica generated a reply to command '{name}', disconnecting it: id=");
            until("the log says so", || server.log().contains(&line));
            if name == "get" {
                assert!(server.log().contains(
                    "== CRITICAL == This master is sending an error to its replica: \
                     'ERR Replica can't interact with the keyspace' after processing the command 'get'"
                ));
            }
        }
    }
}

#[test]
fn psync_with_an_offset_that_is_no_number_is_an_error() {
    let server = primary(&[]);
    let mut client = server.connect();
    assert_eq!(ask(&mut client, "PSYNC id x"), "-ERR value is not an integer or out of range");
    assert_eq!(ask(&mut client, "PING"), "+PONG");
    assert!(server.log().contains("asks for synchronization but with a wrong offset"));
}

#[test]
fn debug_replicate_sends_any_command_to_the_replicas() {
    let server = primary(&[]);
    let mut client = server.connect();
    assert_eq!(ask(&mut client, "DEBUG REPLICATE nobody hears"), "+OK");
    let (mut replica, _) = PlayedReplica::synchronize(&server);
    assert_eq!(ask(&mut client, "DEBUG REPLICATE fake-command 1"), "+OK");
    assert!(ask(&mut client, "DEBUG REPLICATE").starts_with("-ERR"));
    replica.read_until("fake-command\r\n$1\r\n1\r\n");
    assert_eq!(replica.take(), "*2\n$12\nfake-command\n$1\n1\n");
}

#[test]
fn a_copy_ends_with_the_last_replica_that_waits_for_it() {
    let server = primary(&["--rdb-key-save-delay", "100000000"]);
    let mut client = server.connect();
    ask(&mut client, "DEBUG POPULATE 10");
    let mut replicas = [PlayedReplica::connect(&server), PlayedReplica::connect(&server)];
    ask(&mut client, "CONFIG SET repl-diskless-sync-delay 1000 repl-diskless-sync-max-replicas 2");
    for replica in &mut replicas {
        replica.introduce();
        replica.send("PSYNC ? -1");
    }
    replicas.iter_mut().for_each(PlayedReplica::read_announcement);
    assert!(ask(&mut client, "INFO persistence").contains("rdb_bgsave_in_progress:1"));
    assert_eq!(ask(&mut client, "INFO replication").matches("state=wait_bgsave").count(), 2);
    let [first, second] = replicas;
    drop(first);
    until("one has left", || ask(&mut client, "INFO replication").contains("connected_slaves:1"));
    assert!(ask(&mut client, "INFO persistence").contains("rdb_bgsave_in_progress:1"));
    drop(second);
    until("it ends", || ask(&mut client, "INFO persistence").contains("rdb_bgsave_in_progress:0"));
    assert!(server.log().contains("Diskless rdb transfer, last replica dropped, killing fork child."));
}

#[test]
fn what_a_slow_replica_has_not_read_is_counted_and_evicts_no_keys() {
    let options = ["--maxmemory-policy", "allkeys-random", "--repl-backlog-size", "16384"];
    let server = primary(&[&options[..], &["--repl-spool", "no"]].concat());
    let mut client = server.connect();
    ask(&mut client, "DEBUG POPULATE 100 key 10000");
    let (_replica, _) = PlayedReplica::synchronize(&server);
    until("it is online", || ask(&mut client, "INFO replication").contains("state=online"));
    let used = figure(&mut client, "used_memory");
    ask(&mut client, &format!("CONFIG SET maxmemory {}", used + (32 << 20)));
    let value = "x".repeat(1 << 20);
    for _ in 0..64 {
        client.command(&["SETRANGE", "key:0", "0", &value]);
    }
    let least = 48 << 20;
    assert!(figure(&mut client, "mem_total_replication_buffers") > least);
    assert!(figure(&mut client, "mem_clients_slaves") > least);
    assert_eq!(figure(&mut client, "connected_clients"), 1, "a replica is no client");
    assert_eq!(ask(&mut client, "DBSIZE"), ":100");
}

#[test]
fn the_history_forgets_the_beginning_of_a_long_transaction_and_obeys_its_new_length() {
    let server = primary(&[]);
    let mut client = server.connect();
    let (mut replica, _) = PlayedReplica::synchronize(&server);
    for line in ["MULTI", "CONFIG SET repl-backlog-size 16384"] {
        ask(&mut client, line);
    }
    for nth in 0..10 {
        client.command(&["SET", &format!("key{nth}"), &"x".repeat(16 << 10)]);
    }
    ask(&mut client, "SET last 1");
    ask(&mut client, "EXEC");
    replica.read_until("last\r\n$1\r\n1\r\n");
    // The saver gives it the new length, and wakes up for that.
    until("it is short", || figure(&mut client, "repl_backlog_histlen") <= 32 << 10);
}

#[test]
fn writes_wait_while_the_end_of_the_server_waits_for_replicas() {
    let server = primary(&["--shutdown-timeout", "1000"]);
    let (mut client, mut ending, mut writing) = (server.connect(), server.connect(), server.connect());
    let (replica, _) = PlayedReplica::synchronize(&server);
    until("it is online", || ask(&mut client, "INFO replication").contains("state=online"));
    ask(&mut client, "SET a 1");
    ending.send(&["SHUTDOWN", "NOSAVE"]);
    until("it waits", || ask(&mut client, "INFO server").contains("shutdown_in_milliseconds:"));
    assert_eq!(figure(&mut client, "blocked_clients"), 1);
    writing.send(&["SET", "a", "2"]);
    // This connection's next command would run after the write.
    assert_eq!(ask(&mut client, "GET a"), "\"1\"");
    assert!(!writing.has_reply());
    assert_eq!(ask(&mut client, "SHUTDOWN ABORT"), "+OK");
    assert_eq!(ending.receive().to_string(), "-ERR Errors trying to SHUTDOWN. Check logs.");
    assert_eq!(writing.receive().to_string(), "+OK");
    assert!(!ask(&mut client, "INFO server").contains("shutdown_in_milliseconds:"));
    let log = server.log();
    for line in [
        "Waiting for replicas before shutting down.",
        "Lagging replica",
        "0 of 1 replicas are in sync",
        "Shutdown manually aborted.",
    ] {
        assert!(log.contains(line), "{line}");
    }
    drop(replica);
}
