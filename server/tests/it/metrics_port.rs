//! The metrics port: its contents, its access control, and its resistance to harmful requests.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::{self, BufRead, BufReader, Read, Write},
    net::TcpStream,
};

use crate::support::{
    Dice, PATIENCE, Port, Server,
    crowd::{ask, figure, until},
    dice::seed,
};

/// A server with a metrics port.
struct MetricsServer {
    server: Server,
    port: Port,
}

/// An answer: code, headers with lowercase names, body.
struct Answer {
    code: u16,
    headers: BTreeMap<String, String>,
    body: String,
}

impl MetricsServer {
    fn open(args: &[&str]) -> MetricsServer {
        let port = Port::claim();
        let number = port.number().to_string();
        let args: Vec<&str> = ["--metrics-port", &number].into_iter().chain(args.iter().copied()).collect();
        MetricsServer { server: Server::start(&args), port }
    }

    fn connect(&self) -> BufReader<TcpStream> {
        let socket = TcpStream::connect(("127.0.0.1", self.port.number())).expect("somebody listens");
        socket.set_read_timeout(Some(PATIENCE)).expect("there is patience");
        socket.set_write_timeout(Some(PATIENCE)).expect("there is patience");
        BufReader::new(socket)
    }

    fn get(&self, path: &str) -> Answer {
        ask_for(&mut self.connect(), path, "")
    }

    fn get_as(&self, user: &str, path: &str) -> Answer {
        ask_for(&mut self.connect(), path, &login(user))
    }

    /// Returns the samples of the metrics, by name and labels.
    fn metrics(&self) -> BTreeMap<String, f64> {
        let answer = self.get("/metrics");
        assert_eq!(answer.code, 200);
        samples(&answer.body)
    }
}

/// Returns the header that authenticates a user: `name:password`.
fn login(user: &str) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let encoded = user.as_bytes().chunks(3).map(|bytes| {
        let three = bytes.iter().fold(0, |all, &byte| all << 8 | u32::from(byte)) << (8 * (3 - bytes.len()));
        let digit = |nth: usize| match nth <= bytes.len() {
            true => char::from(DIGITS[(three >> (18 - 6 * nth)) as usize & 63]),
            false => '=',
        };
        (0..4).map(digit).collect::<String>()
    });
    format!("Authorization: Basic {}\r\n", encoded.collect::<String>())
}

fn ask_for(connection: &mut BufReader<impl Read + Write>, path: &str, headers: &str) -> Answer {
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n");
    connection.get_mut().write_all(request.as_bytes()).expect("it is read");
    receive(connection).expect("it is answered")
}

fn receive(connection: &mut impl BufRead) -> io::Result<Answer> {
    let mut line = || {
        let mut line = String::new();
        match connection.read_line(&mut line)? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok::<_, io::Error>(line.trim_end().to_owned()),
        }
    };
    let status = line()?;
    let code = status.strip_prefix("HTTP/1.1 ").and_then(|rest| rest[..3].parse().ok()).expect("a status");
    let mut headers = BTreeMap::new();
    loop {
        let header = line()?;
        let Some((name, value)) = header.split_once(": ") else { break };
        headers.insert(name.to_lowercase(), value.to_owned());
    }
    let mut body = vec![0; headers["content-length"].parse().expect("a length")];
    connection.read_exact(&mut body)?;
    Ok(Answer { code, headers, body: String::from_utf8(body).expect("it is text") })
}

fn samples(text: &str) -> BTreeMap<String, f64> {
    let samples = text.lines().filter(|line| !line.starts_with('#'));
    let sample = |line: &str| {
        let (name, value) = line.rsplit_once(' ').expect("a name and a value");
        (name.to_owned(), value.parse().unwrap_or_else(|_| panic!("{line}")))
    };
    samples.map(sample).collect()
}

/// Checks that the server answers clients and visitors.
fn assert_serves(place: &MetricsServer) {
    assert_eq!(ask(&mut place.server.connect(), "PING"), "+PONG");
    assert_eq!(place.get("/healthz").body, "ok\n");
}

#[test]
fn pages_are_found_by_their_paths() {
    let place = MetricsServer::open(&[]);
    for (path, content_type, begin) in [
        ("/healthz", "text/plain; charset=utf-8", "ok"),
        ("/", "text/html; charset=utf-8", "<!doctype html>"),
        ("/?refresh=1", "text/html; charset=utf-8", "<!doctype html>"),
        ("/metrics", "text/plain; version=0.0.4; charset=utf-8", "# HELP redis_up"),
        ("/status.json", "application/json", "{\""),
    ] {
        let answer = place.get(path);
        assert_eq!((answer.code, answer.headers["content-type"].as_str()), (200, content_type), "{path}");
        assert!(answer.body.starts_with(begin), "{path}: {}", answer.body);
    }
    for path in ["/metrics/", "/../etc/passwd", "//", "*", "http://braid/metrics"] {
        assert_eq!(place.get(path).code, 404, "{path}");
    }
    // The page loads nothing from other hosts.
    let page = place.get("/");
    assert!(page.headers["content-security-policy"].contains("default-src 'none'"));
    assert!(!page.body.contains("https://") && !page.body.contains("src="), "an outside resource");
}

#[test]
fn a_connection_takes_many_requests_and_closes_as_asked() {
    let place = MetricsServer::open(&[]);
    let mut connection = place.connect();
    connection.get_mut().write_all(&b"GET /healthz HTTP/1.1\r\n\r\n".repeat(50)).unwrap();
    for _ in 0..50 {
        let answer = receive(&mut connection).expect("all are answered");
        assert_eq!((answer.body.as_str(), answer.headers["connection"].as_str()), ("ok\n", "keep-alive"));
    }
    connection.get_mut().write_all(b"HEAD /metrics HTTP/1.1\r\nConnection: close\r\n\r\n").unwrap();
    let mut rest = String::new();
    connection.read_to_string(&mut rest).expect("it is closed");
    assert!(rest.starts_with("HTTP/1.1 200") && rest.ends_with("Connection: close\r\n\r\n"), "{rest}");
    for (request, code) in [
        ("POST / HTTP/1.1\r\nContent-Length: 4\r\n\r\nGET ", "413"),
        ("PUT / HTTP/1.1\r\n\r\n", "405"),
        ("PING\r\n\r\n", "400"),
        ("*1\r\n$4\r\nPING\r\n", "400"),
    ] {
        let mut connection = place.connect();
        connection.get_mut().write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        connection.read_to_string(&mut answer).expect("it is closed");
        assert!(answer.starts_with(&format!("HTTP/1.1 {code} ")), "{request}: {answer}");
    }
}

#[test]
fn metrics_have_the_form_of_prometheus_and_say_what_info_says() {
    everywhere_with_metrics(|place| {
        let mut client = place.server.connect();
        for line in
            ["SET a 1", "GET a", "GET none", "SET b 2 EX 1000", "INCR a b", "LPUSH a x", "CONFIG GET port"]
        {
            ask(&mut client, line);
        }
        // A word that must be escaped.
        client.command(&["EVAL", "return redis.error_reply('O\"D\\\\D x')", "0"]);
        let text = place.get("/metrics").body;
        let mut families = BTreeMap::new();
        let mut seen = BTreeSet::new();
        let mut family = "";
        for line in text.lines() {
            assert!(seen.insert(line.rsplit_once(' ').unwrap().0), "twice: {line}");
            if let Some(help) = line.strip_prefix("# HELP ") {
                let (name, words) = help.split_once(' ').unwrap();
                assert!(words.ends_with('.'), "{line}");
                family = name;
            } else if let Some(kind) = line.strip_prefix("# TYPE ") {
                let (name, kind) = kind.split_once(' ').unwrap();
                assert_eq!(name, family);
                assert!(families.insert(name, kind).is_none(), "twice: {name}");
                assert!(kind != "counter" || name.ends_with("_total"), "{name}");
            } else {
                assert!(line.starts_with(family), "{line} is none of {family}");
            }
        }
        let found = samples(&text);
        for (name, value) in [
            ("redis_up", 1.0),
            ("redis_connected_clients", 1.0),
            ("redis_db_keys{db=\"db0\"}", 2.0),
            ("redis_db_keys_expiring{db=\"db0\"}", 1.0),
            ("redis_commands_total{cmd=\"get\"}", 2.0),
            ("redis_commands_total{cmd=\"config|get\"}", 1.0),
            ("redis_commands_failed_calls_total{cmd=\"lpush\"}", 1.0),
            ("redis_commands_rejected_calls_total{cmd=\"incr\"}", 1.0),
            ("redis_keyspace_misses_total", 1.0),
            ("redis_errors_total{err=\"WRONGTYPE\"}", 1.0),
            ("redis_errors_total{err=\"O\\\"D\\\\D\"}", 1.0),
            ("redis_commands_processed_total", found["braid_command_duration_seconds_count"]),
            ("braid_shards", figure(&mut client, "shards") as f64),
        ] {
            assert_eq!(found.get(name), Some(&value), "{name} in {text}");
        }
        let by_thread = found.range("braid_thread_commands_total".to_owned()..);
        let by_thread = by_thread.take_while(|(name, _)| name.starts_with("braid_thread_commands_total"));
        // Heavy-work threads may have run some, too.
        let by_thread = by_thread.map(|(_, n)| n).sum::<f64>();
        assert!(by_thread > 0.0 && by_thread <= found["redis_commands_processed_total"], "{by_thread}");
    });
}

/// A primary with metrics, and a replica with metrics that has its data.
fn pair(args: &[&str]) -> (MetricsServer, MetricsServer) {
    let primary = MetricsServer::open(&[args, &["--repl-diskless-sync-delay", "0"]].concat());
    let port = primary.server.port().to_string();
    let replica = MetricsServer::open(&["--replicaof", "127.0.0.1", &port]);
    ask(&mut primary.server.connect(), "SET a 1");
    until("the replica has everything", || {
        let offset = |place: &MetricsServer| place.metrics().get("redis_master_repl_offset").copied();
        let is_online = |name: &String| name.contains("slave_state=\"online\"");
        // Both are at the same offset before the replica has its copy, too.
        let is_up = |(name, value): (&String, &f64)| name.starts_with("redis_master_link_up") && *value > 0.0;
        primary.metrics().keys().any(is_online)
            && replica.metrics().iter().any(is_up)
            && offset(&primary) == offset(&replica)
    });
    (primary, replica)
}

#[test]
fn metrics_and_the_page_tell_of_primary_and_replica() {
    let (primary, replica) = pair(&[]);
    let port = |place: &MetricsServer| place.server.port().to_string();
    let labels = format!("{{master_host=\"127.0.0.1\",master_port=\"{}\"}}", port(&primary));
    let info = format!("redis_slave_info{}", labels.replace('}', ",read_only=\"1\"}"));
    let of_replica = replica.metrics();
    for (name, value) in [
        (&format!("redis_master_link_up{labels}"), 1.0),
        (&format!("redis_master_sync_in_progress{labels}"), 0.0),
        (&info, 1.0),
        (&"redis_connected_slaves".to_owned(), 0.0),
        (&"redis_slave_priority".to_owned(), 100.0),
    ] {
        assert_eq!(of_replica.get(name), Some(&value), "{name}: {of_replica:?}");
    }
    // The primary has written nothing, and may have sent a PING.
    assert!(of_replica.contains_key(&format!("redis_slave_repl_offset{labels}")));
    assert!(of_replica["redis_net_repl_input_bytes_total"] > 0.0);
    let of_primary = primary.metrics();
    let labels =
        format!("{{slave_ip=\"127.0.0.1\",slave_port=\"{}\",slave_state=\"online\"}}", port(&replica));
    for (name, value) in [
        ("redis_connected_slaves", 1.0),
        ("redis_replica_resyncs_full", 1.0),
        ("redis_replica_partial_resync_accepted", 0.0),
        ("redis_replica_partial_resync_denied", 0.0),
        ("redis_repl_backlog_is_active", 1.0),
        ("redis_replication_backlog_bytes", 10_485_760.0),
    ] {
        assert_eq!(of_primary.get(name), Some(&value), "{name}: {of_primary:?}");
    }
    assert!(of_primary.contains_key(&format!("redis_connected_slave_offset_bytes{labels}")));
    assert!(of_primary.contains_key(&format!("redis_connected_slave_lag_seconds{labels}")));
    // Bytes for replicas are counted apart.
    assert!(of_primary["redis_net_repl_output_bytes_total"] > 100.0, "{of_primary:?}");
    let part = |place: &MetricsServer| {
        let state = place.get("/status.json").body;
        let (_, part) = state.split_once("\"replication\":").expect("it has the part");
        part.to_owned()
    };
    assert!(part(&primary).contains("\"primary\":null"), "{}", part(&primary));
    let replicas = format!("\"address\":\"127.0.0.1:{}\"", port(&replica));
    assert!(part(&primary).contains(&replicas), "{}", part(&primary));
    let link = format!("\"address\":\"127.0.0.1:{}\"", port(&primary));
    assert!(part(&replica).contains(&link), "{}", part(&replica));
    let mut client = primary.server.connect();
    ask(&mut client, "CONFIG RESETSTAT");
    assert_eq!(figure(&mut client, "sync_full"), 0);
}

/// Returns the names of metrics in a text.
fn named(text: &str) -> BTreeSet<&str> {
    let words = text.split(|letter: char| letter != '_' && !letter.is_ascii_alphanumeric());
    words.filter(|word| word.starts_with("redis_") || word.starts_with("braid_")).collect()
}

#[test]
fn the_board_and_the_documents_name_metrics_that_are_there() {
    let (primary, replica) = pair(&["--latency-split", "yes", "--appendonly", "yes"]);
    let text = primary.get("/metrics").body + &replica.get("/metrics").body;
    let told = named(&text);
    let read = |path: &str| {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path);
        std::fs::read_to_string(&path).unwrap_or_else(|why| panic!("{}: {why}", path.display()))
    };
    let (board, operations) = (read("packaging/grafana.json"), read("docs/operations.md"));
    assert!(named(&board).len() > 30, "the search has missed the board's metrics");
    assert_eq!(named(&board).difference(&told).collect::<Vec<_>>(), [&""; 0]);
    // The exporter, and its metric to which Prometheus objects.
    let others = BTreeSet::from(["redis_exporter", "redis_rdb_last_bgsave_duration_sec"]);
    let unknown: Vec<_> = named(&operations).difference(&told).copied().collect();
    assert!(unknown.iter().all(|name| others.contains(name)), "{unknown:?}");
}

/// Plays a scenario on servers of several layouts.
fn everywhere_with_metrics(scenario: impl Fn(&MetricsServer)) {
    for (io_threads, shards) in [("1", "1"), ("2", "16"), ("8", "1024")] {
        scenario(&MetricsServer::open(&["--io-threads", io_threads, "--shards", shards]));
    }
}

#[test]
fn without_the_directive_nobody_listens() {
    let port = Port::claim();
    let _server = Server::start(&[]);
    assert!(TcpStream::connect(("127.0.0.1", port.number())).is_err());
    // Nor does it start on a port that is in use.
    let taken = Server::start(&[]);
    let number = taken.port().to_string();
    let other = Port::claim().number().to_string();
    let program = env!("CARGO_BIN_EXE_braid-server");
    let ended = std::process::Command::new(program)
        .args(["--port", &other, "--metrics-port", &number])
        .output()
        .expect("it starts");
    let log = String::from_utf8_lossy(&ended.stdout).into_owned() + &String::from_utf8_lossy(&ended.stderr);
    assert!(!ended.status.success() && log.contains("Could not create server TCP listening socket"), "{log}");
}

#[test]
fn passwords_and_rights_are_those_of_access_control() {
    let place = MetricsServer::open(&["--requirepass", "secret", "--slowlog-log-slower-than", "0"]);
    let mut client = place.server.connect();
    assert_eq!(ask(&mut client, "AUTH secret"), "+OK");
    for line in [
        "ACL SETUSER watcher on >seen +info",
        "ACL SETUSER operator on >seen +@all ~*",
        "ACL SETUSER asleep off >seen +@all",
        "ACL SETUSER guest on nopass +get ~*",
    ] {
        assert_eq!(ask(&mut client, line), "+OK");
    }
    // Anyone may ask whether it is up.
    assert_eq!(place.get("/healthz").code, 200);
    for path in ["/", "/metrics", "/status.json", "/nothing"] {
        let refused = place.get(path);
        assert_eq!((refused.code, refused.body.as_str()), (401, "A name and a password are needed.\n"));
        assert_eq!(refused.headers["www-authenticate"], "Basic realm=\"Braid\", charset=\"UTF-8\"");
        assert_eq!(place.get_as("default:secret", path).code, if path == "/nothing" { 404 } else { 200 });
    }
    for (user, code) in [
        ("default:", 401),
        ("default:secre", 401),
        ("nobody:seen", 401),
        ("asleep:seen", 401),
        ("guest:any", 403),
        ("watcher:seen", 200),
        ("operator:seen", 200),
    ] {
        assert_eq!(place.get_as(user, "/metrics").code, code, "{user}");
    }
    // The slow log and hot keys require rights of their own.
    let (watcher, operator) =
        ["watcher:seen", "operator:seen"].map(|user| place.get_as(user, "/status.json").body).into();
    assert!(
        watcher.contains("\"slow_log\":null") && watcher.contains("\"may_see_hot_keys\":false"),
        "{watcher}"
    );
    assert!(
        operator.contains("\"slow_log\":[{") && operator.contains("\"may_see_hot_keys\":true"),
        "{operator}"
    );
    // Failures are counted and logged as those of AUTH.
    assert_eq!(figure(&mut client, "acl_access_denied_auth"), 4);
    let log = ask(&mut client, "ACL LOG");
    assert!(["metrics", "asleep", "nobody"].iter().all(|word| log.contains(&format!("\"{word}\""))), "{log}");
    assert!(!log.contains("seen"), "a password is in the log");
    // A change of users applies to open connections.
    let mut connection = place.connect();
    assert_eq!(ask_for(&mut connection, "/metrics", &login("watcher:seen")).code, 200);
    assert_eq!(ask(&mut client, "ACL DELUSER watcher"), ":1");
    assert_eq!(ask_for(&mut connection, "/metrics", &login("watcher:seen")).code, 401);
    assert_eq!(ask(&mut client, "CONFIG SET requirepass \"\""), "+OK");
    // The rights of the default user affect no other user.
    assert_eq!(ask(&mut client, "ACL SETUSER default nopass -info"), "+OK");
    assert_eq!(place.get("/metrics").code, 401);
    assert_eq!(place.get_as("operator:seen", "/metrics").code, 200);
}

#[test]
fn who_guesses_passwords_waits() {
    let place = MetricsServer::open(&["--requirepass", "secret"]);
    let mut guesser = place.connect();
    for _ in 0..6 {
        assert_eq!(ask_for(&mut guesser, "/metrics", &login("default:guess")).code, 401);
    }
    // While the reply to the next guess waits, others are served. A correct login after the guess is answered
    // after it.
    let request = |user: &str| format!("GET /metrics HTTP/1.1\r\n{}\r\n", login(user));
    guesser.get_mut().write_all(request("default:guess").as_bytes()).unwrap();
    guesser.get_mut().write_all(request("default:secret").as_bytes()).unwrap();
    assert_eq!(place.get_as("default:secret", "/metrics").code, 200);
    assert_eq!(receive(&mut guesser).unwrap().code, 401);
    assert_eq!(receive(&mut guesser).unwrap().code, 200);
}

#[test]
fn slow_and_silent_visitors_keep_nobody_out() {
    let place = MetricsServer::open(&[]);
    let mut visitors = Vec::new();
    for nth in 0..200 {
        let mut visitor = place.connect();
        // Some send only half of a request. Others ask for much and read nothing.
        let said: &[u8] =
            if nth % 2 == 0 { b"GET /metrics HT" } else { &b"GET /metrics HTTP/1.1\r\n\r\n".repeat(2000) };
        visitor.get_mut().set_nonblocking(true).unwrap();
        // The write may be partial, and the connection may be closed. The test waits for neither.
        let _ = visitor.get_mut().write(said);
        visitors.push(visitor);
        if nth % 10 == 0 {
            assert_serves(&place);
        }
    }
    assert_serves(&place);
    drop(visitors);
    assert_serves(&place);
}

#[test]
fn garbage_does_no_harm() {
    let place = MetricsServer::open(&[]);
    let mut dice = Dice(seed());
    let whole = b"GET /status.json HTTP/1.1\r\nHost: [::1]\r\nAuthorization: Basic YTpi\r\n\r\n";
    for _ in 0..400 {
        let mut bytes = match dice.roll(3) {
            0 => (0..dice.roll(12_000)).map(|_| dice.roll(256) as u8).collect(),
            1 => whole.repeat(1 + dice.roll(4)),
            _ => [&b"GET /"[..], &vec![b'a'; dice.roll(20_000)], b" HTTP/1.1\r\n\r\n"].concat(),
        };
        for _ in 0..dice.roll(4).min(bytes.len()) {
            let at = dice.roll(bytes.len());
            bytes[at] = dice.roll(256) as u8;
        }
        let mut visitor = place.connect();
        // It may be closed before everything is sent.
        let _ = visitor.get_mut().write_all(&bytes);
        let _ = visitor.get_mut().shutdown(std::net::Shutdown::Write);
        let mut answers = Vec::new();
        let _ = visitor.read_to_end(&mut answers);
        assert!(
            answers.is_empty() || answers.starts_with(b"HTTP/1.1 "),
            "{}",
            String::from_utf8_lossy(&answers)
        );
    }
    assert_serves(&place);
    until("nobody is left", || place.metrics()["redis_connected_clients"] == 0.0);
}

#[test]
fn keys_of_any_bytes_are_shown_as_text() {
    let place = MetricsServer::open(&["--slowlog-log-slower-than", "0"]);
    let mut client = place.server.connect();
    assert_eq!(ask(&mut client, "HOTKEYS START METRICS 2 CPU NET"), "+OK");
    let keys: [&[u8]; 3] = [b"</script><b>", b"\"\\\n\0\xff", &[b'k'; 3000]];
    for key in keys {
        client.command(&[&b"SET"[..], key, b"x"]);
    }
    let body = place.get("/status.json").body;
    let long = "k".repeat(80);
    for shown in ["</script><b>", "\\\"\\\\\\n\\u0000\u{fffd}", &format!("\"{long}…\"")] {
        assert!(body.contains(shown), "{shown} in {body}");
    }
    assert!(!body.contains(&format!("{long}k")));
    assert!(place.get("/").headers["content-type"].starts_with("text/html"));
}

#[test]
fn metrics_are_told_while_a_script_holds_its_shard() {
    let place = MetricsServer::open(&["--io-threads", "1", "--shards", "1"]);
    let mut client = place.server.connect();
    client.send(&["EVAL", "redis.call('set', KEYS[1], 1) while true do end", "1", "a"]);
    until("the script runs", || place.metrics()["redis_db_keys{db=\"db0\"}"] == 1.0);
    assert_eq!(place.get("/healthz").code, 200);
    assert!(place.get("/status.json").body.contains("\"keys\":1"));
}

#[test]
fn metrics_tell_whether_data_is_safe() {
    let place =
        MetricsServer::open(&["--appendonly", "yes", "--appendfsync", "always", "--save", "3600 1000"]);
    let mut client = place.server.connect();
    ask(&mut client, "SET key value");
    let metrics = place.metrics();
    let has = |name: &str, value: f64| assert_eq!(metrics.get(name), Some(&value), "{name}");
    for (name, value) in [
        ("redis_aof_enabled", 1.0),
        ("redis_aof_last_write_status", 1.0),
        ("redis_aof_last_bgrewrite_status", 1.0),
        ("redis_aof_rewrite_in_progress", 0.0),
        ("redis_aof_buffer_length", 0.0),
        ("redis_aof_delayed_fsync", 0.0),
        ("redis_rdb_last_bgsave_status", 1.0),
        ("redis_rdb_changes_since_last_save", 1.0),
        ("braid_rdb_saves_total", 0.0),
        ("braid_rdb_last_save_duration_seconds", -1.0),
        ("braid_aof_rewrites_total", 0.0),
        ("braid_aof_rewrites_failed_total", 0.0),
    ] {
        has(name, value);
    }
    assert!(metrics["redis_aof_current_size_bytes"] > metrics["redis_aof_base_size_bytes"]);
    ask(&mut client, "SAVE");
    ask(&mut client, "BGREWRITEAOF");
    until("it is rewritten", || figure(&mut client, "aof_rewrites") == 1);
    ask(&mut client, "DEBUG AOF-FAIL BASE EIO 1 1");
    ask(&mut client, "BGREWRITEAOF");
    until("it has failed", || place.metrics()["braid_aof_rewrites_failed_total"] == 1.0);
    ask(&mut client, "DEBUG AOF-FAIL RESERVE ENOSPC 1 1000000");
    ask(&mut client, &format!("SET key {}", "x".repeat(1 << 20)));
    until("writes are refused", || place.metrics()["redis_aof_last_write_status"] == 0.0);
    let metrics = place.metrics();
    let has = |name: &str, value: f64| assert_eq!(metrics.get(name), Some(&value), "{name}");
    has("redis_aof_last_bgrewrite_status", 0.0);
    has("braid_aof_rewrites_total", 1.0);
    has("braid_aof_rewrites_failed_in_a_row", 1.0);
    has("braid_rdb_saves_total", 1.0);
    assert!(metrics["braid_rdb_last_save_duration_seconds"] >= 0.0);
}

/// A stranger's page could make a browser within the network read all metrics. It used a name of the
/// stranger's that resolves to the server.
#[test]
fn only_who_knows_the_server_by_a_name_of_its_own_is_answered() {
    let place = MetricsServer::open(&[
        "--metrics-bind",
        "0.0.0.0",
        "--metrics-hosts",
        "metrics.example.org",
        "Braid",
    ]);
    let code = |host: &str, path: &str| {
        let mut connection = place.connect();
        let request = format!("GET {path} HTTP/1.1\r\n{host}\r\n");
        connection.get_mut().write_all(request.as_bytes()).expect("it is read");
        receive(&mut connection).expect("it is answered").code
    };
    let known = [
        "localhost",
        "LOCALHOST:80",
        "127.0.0.1",
        "127.0.0.1:9121",
        "[::1]:9121",
        "metrics.example.org",
        "braid:9121",
    ];
    let others = [
        "evil.example",
        "evil.example:9121",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "10.1.2.3",
        "",
    ];
    for path in ["/", "/metrics", "/status.json", "/nowhere"] {
        for host in known {
            let expected = if path == "/nowhere" { 404 } else { 200 };
            assert_eq!(code(&format!("Host: {host}\r\n"), path), expected, "{host}, {path}");
        }
        for host in others {
            assert_eq!(code(&format!("Host: {host}\r\n"), path), 421, "{host}, {path}");
        }
    }
    assert_eq!(code("Host: localhost\r\nHost: evil.example\r\n", "/metrics"), 400);
    // A browser always sends the host that it wants.
    assert_eq!(code("", "/metrics"), 200);
    let mut client = place.server.connect();
    assert_eq!(ask(&mut client, "CONFIG SET metrics-hosts evil.example"), "+OK");
    assert_eq!(code("Host: evil.example\r\n", "/metrics"), 200);
    assert_eq!(code("Host: braid\r\n", "/metrics"), 421);
}
