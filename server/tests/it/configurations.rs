//! Configurations that were written for Redis and Valkey, and the effects of their directives.

use std::{fs, os::unix::fs::MetadataExt as _, path::Path};

use crate::support::{
    Client, Reply, Server,
    crowd::{ask, until},
};

/// The lines of the configuration files that Redis and Valkey ship, without comments.
const STOCK: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/config/stock");

/// Directives of the place and the process, which a test chooses itself.
const OWN: &[&str] = &["port", "dir", "pidfile", "daemonize", "logfile", "bind"];

fn ok() -> Reply {
    Reply::Status(b"OK".to_vec())
}

fn set(client: &mut Client, name: &str, value: &str) -> Reply {
    client.command(&["CONFIG", "SET", name, value])
}

#[test]
fn the_configurations_that_redis_and_valkey_ship_are_served() {
    let mut n_files = 0;
    for file in fs::read_dir(STOCK).expect("there are stock configurations") {
        let path = file.expect("the folder is readable").path();
        let text = fs::read_to_string(&path).expect("the file is text");
        let is_own = |line: &&str| OWN.contains(&line.split(' ').next().expect("a line has words"));
        let lines: Vec<&str> = text.lines().filter(|line| !is_own(line)).collect();
        assert!(lines.len() > 40, "{}", path.display());
        let conf = Path::new(env!("CARGO_TARGET_TMPDIR")).join(path.file_name().expect("it has a name"));
        fs::write(&conf, lines.join("\n")).expect("the build's scratch space is writable");
        let server = Server::start(&["--include", &conf.display().to_string()]);
        let mut client = server.connect();
        assert_eq!(client.command(&["SET", "k", "v"]), ok(), "{}", path.display());
        n_files += 1;
    }
    assert!(n_files >= 20, "{n_files}");
}

#[test]
fn lines_of_the_log_have_the_form_of_valkey() {
    let server = Server::start(&[
        "--log-format",
        "logfmt",
        "--log-timestamp-format",
        "iso8601",
        "--enable-debug-command",
        "yes",
    ]);
    let mut client = server.connect();
    client.command(&["DEBUG", "LOG", "one \"two\""]);
    assert_eq!(set(&mut client, "log-format", "json"), ok());
    assert_eq!(set(&mut client, "log-timestamp-format", "milliseconds"), ok());
    client.command(&["DEBUG", "LOG", "three"]);
    assert_eq!(set(&mut client, "loglevel", "nothing"), ok());
    client.command(&["DEBUG", "LOG", "four"]);
    client.command(&["PING"]);
    let log = server.log();
    let head = format!("pid={} role=primary timestamp=\"20", server.pid());
    let first = log.lines().next().expect("there is a line");
    assert!(first.starts_with(&head) && first.contains("+00:00\" level=notice message=\""), "{first}");
    assert!(log.contains("level=warning message=\"DEBUG LOG: one "), "{log}");
    let json = log.lines().find(|line| line.contains("three")).expect("it is logged");
    assert!(
        json.starts_with(&format!("{{\"pid\":{},\"role\":\"primary\",\"timestamp\":\"1", server.pid())),
        "{json}"
    );
    assert!(json.ends_with("\"level\":\"warning\",\"message\":\"DEBUG LOG: three\"}"), "{json}");
    assert!(!log.contains("four"), "{log}");
}

#[test]
fn entries_of_the_slow_log_keep_as_much_as_is_configured() {
    let server = Server::start(&["--slowlog-log-slower-than", "0", "--slowlog-entry-max-argc", "3"]);
    let mut client = server.connect();
    assert_eq!(set(&mut client, "slowlog-entry-max-string-len", "4"), ok());
    client.command(&["RPUSH", "list", "1", "2", "3"]);
    let entries = client.command(&["SLOWLOG", "GET", "1"]).to_string();
    for word in ["RPUS... (1 more bytes)", "list", "... (3 more arguments)"] {
        assert!(entries.contains(word), "{word}: {entries}");
    }
    assert!(set(&mut client, "slowlog-entry-max-argc", "1").is_error(), "the command's name is always kept");
}

#[test]
fn the_score_for_the_out_of_memory_killer_follows_the_configuration() {
    let server = Server::start(&["--oom-score-adj", "relative", "--oom-score-adj-values", "7", "8", "9"]);
    let mut client = server.connect();
    let score = || -> i32 {
        let path = format!("/proc/{}/oom_score_adj", server.pid());
        fs::read_to_string(path).expect("it runs").trim().parse().expect("a number")
    };
    let start = fs::read_to_string("/proc/self/oom_score_adj").expect("there is a score");
    let start: i32 = start.trim().parse().expect("a number");
    assert_eq!(score(), (start + 7).min(1000));
    assert_eq!(set(&mut client, "oom-score-adj-values", "900 8 9"), ok());
    assert_eq!(score(), (start + 900).min(1000));
    assert_eq!(set(&mut client, "oom-score-adj", "absolute"), ok());
    assert_eq!(score(), 900);
}

#[test]
fn threads_stay_on_their_processors() {
    let allowed = fs::read_to_string("/proc/self/status").expect("it is there");
    let allowed = allowed.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    let first: String =
        allowed.expect("Linux tells it").trim().chars().take_while(char::is_ascii_digit).collect();
    let server = Server::start(&["--server-cpulist", &first, "--bio-cpulist", &format!("{first}-{first}:2")]);
    let mut n_threads = 0;
    for thread in fs::read_dir(format!("/proc/{}/task", server.pid())).expect("it runs") {
        let thread = thread.expect("it is listed").path();
        let name = fs::read_to_string(thread.join("comm")).expect("a thread has a name");
        if !["io-", "heavy-", "saver", "log"].iter().any(|own| name.starts_with(own)) {
            continue;
        }
        // A thread that has just begun has its name before it goes to its processors.
        until(&format!("{name} is on its processors"), || {
            let status = fs::read_to_string(thread.join("status")).expect("it runs");
            let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
            list.expect("Linux tells it").trim() == first
        });
        n_threads += 1;
    }
    assert!(n_threads >= 4, "{n_threads}");
    let refused =
        Server::try_start(&["--server-cpulist", "1023"]).err().expect("no machine here is so large");
    assert!(refused.contains("the process may use none of them"), "{refused}");
}

#[test]
fn the_unix_socket_belongs_to_the_configured_group() {
    let groups = fs::read_to_string("/etc/group").expect("there are groups");
    let group = groups.lines().find_map(|line| {
        let mut fields = line.split(':');
        let (name, _, number) = (fields.next()?, fields.next()?, fields.next()?.parse::<u32>().ok()?);
        (number != 0).then_some((name.to_owned(), number))
    });
    let (name, number) = group.expect("there is a second group");
    let socket = format!("/tmp/braid-group-{}", std::process::id());
    let args = ["--unixsocket", &socket, "--unixsocketperm", "770", "--unixsocketgroup"];
    match Server::try_start(&[&args[..], &[&name]].concat()) {
        Ok(server) => {
            let found = fs::metadata(&socket).expect("the server has made it");
            assert_eq!((found.gid(), found.mode() & 0o777), (number, 0o770));
            server.stop();
        }
        // Only members of a group, and the administrator, may give it a file.
        Err(why) => assert!(why.contains("Failed opening Unix socket"), "{why}"),
    }
    let why = Server::try_start(&[&args[..], &["nosuchgroup"]].concat()).err().expect("there is none");
    assert!(why.contains("there is no group 'nosuchgroup'"), "{why}");
}

/// Returns the fields of a section of INFO.
fn info(client: &mut Client, section: &str) -> String {
    client.command(&["INFO", section]).text().expect("INFO is text")
}

#[test]
fn the_server_says_that_it_is_the_configured_one() {
    let cases = [
        ("redis-7.4", "redis", "7.4.0", &["redis_version:7.4.0", "redis_mode:standalone"][..], 4),
        ("redis-8.2", "redis", "8.2.3", &["redis_version:8.2.3", "redis_mode:standalone"], 4),
        (
            "valkey-9.1",
            "valkey",
            "9.1.2",
            &["redis_version:7.2.4", "server_name:valkey", "valkey_version:9.1.2", "server_mode:standalone"],
            6,
        ),
    ];
    for (announced, name, version, fields, n_latest) in cases {
        let server = Server::start(&["--announce-as", announced, "--latency-monitor-threshold", "1"]);
        let mut client = server.connect();
        let hello = format!("{:?}", client.command(&["HELLO"]));
        let expected = format!("{:?}", [Reply::Bulk(name.into()), Reply::Bulk(b"version".to_vec())]);
        assert!(hello.contains(expected.trim_matches(['[', ']'])), "{announced}: {hello}");
        assert!(hello.contains(&format!("{:?}", Reply::Bulk(version.into()))), "{announced}: {hello}");
        let server_section = info(&mut client, "server");
        for field in fields {
            assert!(server_section.contains(&format!("{field}\r\n")), "{announced}: {server_section}");
        }
        assert_eq!(server_section.contains("valkey"), announced.starts_with("valkey"), "{server_section}");
        let slow = "local n = 0; for i = 1, 10000000 do n = n + i end";
        client.command(&["EVAL", slow, "0"]);
        let Reply::Array(latest) = client.command(&["LATENCY", "LATEST"]) else { panic!("it is an array") };
        let Some(Reply::Array(event)) = latest.first() else { panic!("{announced}: an event took long") };
        assert_eq!(event.len(), n_latest, "{announced}");
    }
}

#[test]
fn a_server_that_is_announced_as_valkey_may_call_itself_redis_and_tell_its_place() {
    let server = Server::start(&["--announce-as", "valkey-9.1", "--availability-zone", "zone 1"]);
    let mut client = server.connect();
    let hello = |client: &mut Client| format!("{:?}", client.command(&["HELLO"]));
    let bulk = |text: &str| format!("{:?}", Reply::Bulk(text.into()));
    assert!(hello(&mut client).ends_with(&format!("{}, {}])", bulk("availability_zone"), bulk("zone 1"))));
    assert!(info(&mut client, "server").contains("availability_zone:zone 1\r\n"));
    assert_eq!(set(&mut client, "extended-redis-compatibility", "yes"), ok());
    assert_eq!(set(&mut client, "availability-zone", ""), ok());
    let told = hello(&mut client);
    assert!(told.contains(&bulk("7.2.4")) && told.contains(&bulk("redis")), "{told}");
    assert!(!told.contains("availability_zone"), "{told}");
    let section = info(&mut client, "server");
    assert!(
        section.contains("redis_mode:standalone\r\n") && section.contains("valkey_version:9.1.2"),
        "{section}"
    );
    let art = client.command(&["LOLWUT"]).text().expect("it is text");
    assert!(art.ends_with("Redis ver.7.2.4\n"), "{art}");
}

/// Valkey 9.1.2 answers these commands without a cluster, and Redis refuses them.
#[test]
fn a_server_that_is_announced_as_valkey_answers_clients_of_a_cluster() {
    let server = Server::start(&["--announce-as", "valkey-9.1"]);
    let mut client = server.connect();
    for (line, reply) in [
        ("READONLY", "+OK"),
        ("READWRITE", "+OK"),
        ("CLUSTER KEYSLOT a", ":15495"),
        ("CLUSTER KEYSLOT x{a}y", ":15495"),
        ("CLUSTER INFO", "-ERR This instance has cluster support disabled"),
        ("ASKING", "-ERR This instance has cluster support disabled"),
    ] {
        assert_eq!(ask(&mut client, line), reply, "{line}");
    }
    let script = "return redis.call('cluster', 'keyslot', 'foo')";
    assert_eq!(client.command(&["EVAL", script, "0"]).to_string(), ":12182");
}

#[test]
fn the_log_hides_names_of_keys_if_it_must() {
    let server = Server::start(&["--loglevel", "verbose", "--hide-user-data-from-log", "yes"]);
    let mut client = server.connect();
    assert!(client.command(&["RESTORE", "secretkey", "0", "nonsense"]).is_error());
    assert_eq!(set(&mut client, "hide-user-data-from-log", "no"), ok());
    assert!(client.command(&["RESTORE", "openkey", "0", "nonsense"]).is_error());
    client.command(&["PING"]);
    let log = server.log();
    assert!(log.contains("*redacted*") && log.contains("openkey"), "{log}");
    assert!(!log.contains("secretkey"), "{log}");
}

/// Redis repeats the users of an included file, and the next start refuses its own file.
#[test]
fn a_rewritten_file_starts_again_whatever_it_includes() {
    let folder = Server::start(&[]);
    let path = |name: &str| folder.scratch().join(name).display().to_string();
    let common = "user bob on >secret ~b* +get\nhz 30\ntimeout 60\nsave 900 1\n";
    fs::write(path("common.conf"), common).expect("the folder is the test's own");
    let main = format!("timeout 7\ninclude {}\nuser al on nopass ~* +@all\n", path("common.conf"));
    fs::write(path("main.conf"), &main).expect("the folder is the test's own");
    let start = || {
        let program = env!("CARGO_BIN_EXE_braid-server");
        let script = format!("#!/bin/sh\nexec {program} {} \"$@\"\n", path("main.conf"));
        let wrapper = path("start");
        fs::write(&wrapper, script).expect("the folder is the test's own");
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        fs::set_permissions(&wrapper, mode).expect("the file is the test's own");
        Server::start_program(&wrapper, &[])
    };
    let first = start();
    let mut client = first.connect();
    assert_eq!(set(&mut client, "timeout", "9"), ok());
    assert_eq!(client.command(&["CONFIG", "REWRITE"]), ok());
    let text = fs::read_to_string(path("main.conf")).expect("it is there");
    assert!(!text.contains("bob") && !text.contains("hz"), "{text}");
    // Its folder is in the file.
    let second = start();
    let mut client = second.connect();
    let timeout = client.command(&["CONFIG", "GET", "timeout"]).to_string();
    assert_eq!(timeout, "[\"timeout\" \"9\"]");
    // A changed user of the included file is written, and holds at the next start.
    assert_eq!(client.command(&["ACL", "SETUSER", "bob", "+set"]), ok());
    assert_eq!(client.command(&["CONFIG", "REWRITE"]), ok());
    let users = client.command(&["ACL", "LIST"]).to_string();
    let third = start();
    let mut client = third.connect();
    assert_eq!(client.command(&["ACL", "LIST"]).to_string(), users);
    // A deleted one would come back, so the file stays as it is.
    assert_eq!(client.command(&["ACL", "DELUSER", "bob"]), Reply::Integer(1));
    let before = fs::read_to_string(path("main.conf")).expect("it is there");
    let refused = client.command(&["CONFIG", "REWRITE"]).to_string();
    assert!(refused.contains("an included file sets 'user'"), "{refused}");
    assert_eq!(fs::read_to_string(path("main.conf")).expect("it is there"), before);
    assert_eq!(fs::read_to_string(path("common.conf")).expect("it is there"), common);
}
