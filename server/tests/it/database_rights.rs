//! Rights to databases, as in Valkey 9.1, which was asked with these commands.

use crate::support::{
    Client, Server,
    crowd::{ask, tell},
};

const DENIED: &str = "-NOPERM No permissions to access database";

const LAYOUTS: [&[&str]; 2] = [&["--io-threads", "1"], &["--io-threads", "2", "--shards", "1"]];

/// Sends a command and returns its reply in one line.
fn ask_flat(client: &mut Client, line: &str) -> String {
    ask(client, line).split_whitespace().collect::<Vec<_>>().join(" ")
}

fn client_of(server: &Server, user: &str) -> Client {
    let mut client = server.connect();
    assert_eq!(ask(&mut client, &format!("AUTH {user} any")), "+OK");
    client
}

/// Sets up a user without a password who may do everything that the last rules do not forbid.
fn user(control: &mut Client, name: &str, rules: &str) {
    let line = format!("ACL SETUSER {name} reset on nopass ~* &* +@all {rules}");
    assert_eq!(ask(control, &line), "+OK");
}

#[test]
fn commands_need_the_right_to_the_selected_database_and_to_those_that_they_name() {
    for layout in LAYOUTS {
        let server = Server::start(layout);
        let mut control = server.connect();
        user(&mut control, "alice", "db=0,1");
        let mut alice = client_of(&server, "alice");
        for (line, reply) in [
            ("SELECT 2", DENIED),
            ("SELECT abc", "-ERR value is not an integer or out of range"),
            ("SET b 1", "+OK"),
            ("SWAPDB 0 2", DENIED),
            ("SWAPDB 2 0", DENIED),
            ("SWAPDB 0 1", "+OK"),
            ("SWAPDB 1 0", "+OK"),
            ("MOVE b 3", DENIED),
            ("COPY b c DB 3", DENIED),
            ("COPY b c DB 1", ":1"),
            ("COPY b c REPLACE db 3 DB 1", DENIED),
            ("MOVE b 1", ":1"),
            ("FLUSHALL", DENIED),
            ("FLUSHALL ASYNC", DENIED),
            ("FLUSHDB", "+OK"),
            ("SELECT 1", "+OK"),
            ("GET b", "\"1\""),
        ] {
            assert_eq!(ask(&mut alice, line), reply, "{line}");
        }
        user(&mut control, "bob", "db=3");
        let mut bob = client_of(&server, "bob");
        for line in
            ["GET k", "SET k v", "KEYS *", "SCAN 0", "DBSIZE", "RANDOMKEY", "FLUSHDB", "EVAL x 0", "WATCH k"]
        {
            assert_eq!(ask(&mut bob, line), DENIED, "{line}");
        }
        for line in ["PING", "TIME", "ACL WHOAMI", "CONFIG GET port", "PUBLISH a b", "SELECT 3", "DBSIZE"] {
            assert!(!ask(&mut bob, line).starts_with('-'), "{line}");
        }
        assert_eq!(ask(&mut bob, "SELECT 0"), DENIED);
        assert_eq!(ask(&mut bob, "GET k"), "(nil)", "the refused SELECT has changed nothing");
        let info = ask(&mut control, "INFO stats");
        assert!(info.contains("acl_access_denied_db:18"), "{info}");
        assert!(
            info.contains("acl_access_denied_cmd:0") && info.contains("acl_access_denied_key:0"),
            "{info}"
        );
    }
}

#[test]
fn a_pipeline_is_checked_command_by_command() {
    for layout in LAYOUTS {
        let server = Server::start(layout);
        let mut control = server.connect();
        user(&mut control, "alice", "db=1");
        let mut alice = client_of(&server, "alice");
        let lines = [
            "GET a", "GET b", "SELECT 1", "SET a 1", "SET b 2", "GET a", "GET b", "SELECT 0", "GET a",
            "MGET a b",
        ];
        lines.iter().for_each(|line| tell(&mut alice, line));
        let replies: Vec<String> = lines.iter().map(|_| alice.receive().to_string()).collect();
        let expected =
            [DENIED, DENIED, "+OK", "+OK", "+OK", "\"1\"", "\"2\"", DENIED, "\"1\"", "[\"1\" \"2\"]"];
        assert_eq!(replies, expected);
        // The right is lost between two commands of one connection.
        assert_eq!(ask(&mut control, "ACL SETUSER alice db=2"), "+OK");
        for line in ["GET a", "GET b", "MGET a b"] {
            assert_eq!(ask(&mut alice, line), DENIED, "{line}");
        }
    }
}

#[test]
fn transactions_scripts_and_blocked_commands_need_the_right_when_they_run() {
    for layout in LAYOUTS {
        let server = Server::start(layout);
        let mut control = server.connect();
        user(&mut control, "alice", "db=2,3");
        let mut alice = client_of(&server, "alice");
        // Queued commands are checked against the database that the transaction will have selected.
        for (line, reply) in [
            ("MULTI", "+OK"),
            ("SELECT 2", "+QUEUED"),
            ("SET k 1", "+QUEUED"),
            ("EXEC", "[+OK +OK]"),
            ("GET k", "\"1\""),
            ("MULTI", "+OK"),
            ("SELECT 0", DENIED),
            ("GET k", "+QUEUED"),
            ("EXEC", "-EXECABORT Transaction discarded because of previous errors."),
            ("MULTI", "+OK"),
            ("SET k 2", "+QUEUED"),
        ] {
            assert_eq!(ask(&mut alice, line), reply, "{line}");
        }
        assert_eq!(ask(&mut control, "ACL SETUSER alice db=3"), "+OK");
        let refused = ask(&mut alice, "EXEC");
        assert!(refused.contains("NOPERM ACLs rules changed") && refused.contains("database"), "{refused}");
        assert_eq!(ask(&mut control, "ACL SETUSER alice db=2,3"), "+OK");
        assert_eq!(ask(&mut alice, "GET k"), "\"1\"");
        let script = |client: &mut Client, text: &str| client.command(&["EVAL", text, "0"]).to_string();
        let refused = script(&mut alice, "redis.call('select', 0) return redis.call('get', 'k')");
        assert!(refused.contains("can't access the database of the command"), "{refused}");
        assert_eq!(script(&mut alice, "redis.call('select', 3) return redis.call('get', 'k')"), "(nil)");
        assert_eq!(script(&mut alice, "return redis.acl_check_cmd('select', 0)"), "(nil)");
        assert_eq!(script(&mut alice, "return redis.acl_check_cmd('select', 3)"), ":1");
        // A blocked command is served with the rights that hold then.
        tell(&mut alice, "BLPOP queue 0");
        while !ask(&mut control, "INFO clients").contains("blocked_clients:1") {}
        assert_eq!(ask(&mut control, "ACL SETUSER alice db=3"), "+OK");
        ask(&mut control, "SELECT 2");
        ask(&mut control, "RPUSH queue 1");
        assert_eq!(alice.receive().to_string(), DENIED);
        assert_eq!(ask(&mut control, "LLEN queue"), ":1");
    }
}

#[test]
fn the_rules_are_shown_written_and_read_back() {
    let server = Server::start(&[]);
    let file = server.scratch().join("users.acl");
    std::fs::write(&file, "").expect("the folder is the test's own");
    let server = Server::start(&["--aclfile", &file.display().to_string()]);
    let mut control = server.connect();
    assert!(!ask(&mut control, "ACL GETUSER default").contains("databases"), "Redis does not know the field");
    user(&mut control, "alice", "db=3,1,01 (+get ~a DB=5) (+set ~b alldbs) (resetdbs +incr)");
    let line = "user alice on sanitize-payload nopass ~* &* db=1,3 +@all (~a resetchannels db=5 -@all +get) \
                (~b resetchannels -@all +set) (resetchannels resetdbs -@all +incr)";
    let line = line.replace("sanitize-payload nopass", "nopass sanitize-payload");
    let list = ask(&mut control, "ACL LIST");
    assert!(list.contains(&line), "{list}");
    let shown = ask_flat(&mut control, "ACL GETUSER alice");
    for field in [
        "\"databases\" \"db=1,3\"",
        "\"databases\" \"db=5\"",
        "\"databases\" \"alldbs\"",
        "\"databases\" \"\"",
    ] {
        assert!(shown.contains(field), "{field}: {shown}");
    }
    for (rule, why) in [
        ("db=", "Syntax error"),
        ("db=a", "Syntax error"),
        ("db=1,", "Syntax error"),
        ("db=,1", "Syntax error"),
        ("db=-1", "The provided database ID is out of range"),
        ("db=99999999999", "The provided database ID is out of range"),
    ] {
        let refused = format!("-ERR Error in ACL SETUSER modifier '{rule}': {why}");
        assert_eq!(ask(&mut control, &format!("ACL SETUSER alice {rule}")), refused);
    }
    for (line, reply) in [
        ("ACL DRYRUN alice SELECT 1", "+OK"),
        ("ACL DRYRUN alice SWAPDB 1 2", "\"User alice has no permissions to access database 2\""),
        ("ACL DRYRUN alice FLUSHALL", "\"User alice has no permissions to access database FLUSHALL\""),
        ("ACL DRYRUN alice PING", "+OK"),
        ("ACL SAVE", "+OK"),
        ("ACL SETUSER alice reset", "+OK"),
        ("ACL LOAD", "+OK"),
    ] {
        assert_eq!(ask(&mut control, line), reply, "{line}");
    }
    assert!(ask(&mut control, "ACL LIST").contains(&line));
    user(&mut control, "alice", "db=1");
    let mut alice = client_of(&server, "alice");
    assert_eq!(ask(&mut alice, "SELECT 7"), DENIED);
    let log = ask_flat(&mut control, "ACL LOG 1");
    for field in
        ["\"reason\" \"database\"", "\"context\" \"toplevel\"", "\"object\" \"7\"", "\"username\" \"alice\""]
    {
        assert!(log.contains(field), "{field}: {log}");
    }
}

#[test]
fn rules_may_name_what_later_redis_and_valkey_have() {
    let server = Server::start(&[]);
    let mut control = server.connect();
    let rules = "+@json -@search +ft.search +vadd +cluster|slot-stats +client|capa +himport|set +bf.add|x +ft.config|get";
    assert_eq!(ask(&mut control, &format!("ACL SETUSER alice {rules}")), "+OK");
    let list = ask(&mut control, "ACL LIST");
    assert!(list.contains(rules), "{list}");
    assert!(ask(&mut control, "ACL SETUSER alice +@nosuch").contains("Unknown command or category name"));
    assert!(ask(&mut control, "ACL SETUSER alice +ft.nosuch").contains("Unknown command or category name"));
    assert!(
        ask(&mut control, "ACL SETUSER alice +himport|nosuch").contains("Unknown command or category name")
    );
}
