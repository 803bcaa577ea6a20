//! Access control beyond the transcripts: files, the start, and changes under load. After the reply to a
//! change, no command runs with the old rights.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use crate::support::{
    Client, Reply, Server,
    crowd::{AtEnd, LAYOUTS, Meeting, ask, await_clients, figure, fill_set, laid_out, tell, until},
};

/// Several threads, which can interleave each other's steps.
const RACING: [(usize, usize); 3] = [(2, 1), (2, 1024), (8, 16)];

const NO_KEY: &str = "-NOPERM this user has no permissions to access one of the keys used as arguments";

/// Connects a client and authenticates it as a user.
fn client_of(server: &Server, user: &str) -> Client {
    let mut client = server.connect();
    assert_eq!(ask(&mut client, &format!("AUTH {user} pw")), "+OK");
    client
}

/// A command of the same name as the one before must not reach a forbidden key. Earlier commands make no
/// difference.
#[test]
fn each_command_of_a_pipeline_has_its_keys_checked() {
    for layout in LAYOUTS {
        let server = laid_out(layout);
        let mut control = server.connect();
        assert_eq!(ask(&mut control, "ACL SETUSER alice on >pw +@all ~own:* %R~read:* (~both:*)"), "+OK");
        let mut alice = client_of(&server, "alice");
        for command in
            ["GET {} ", "SET {} value", "STRLEN {}", "HGET {} f", "INCR {}", "MGET {} {}", "DEL {}"]
        {
            let reads =
                command.starts_with("GET") || command.starts_with("HGET") || command.starts_with("MGET");
            let tells = command.starts_with("STRLEN");
            let keys: Vec<String> = (0..200)
                .map(|n| match n % 7 {
                    3 => format!("other:{n}"),
                    5 => format!("read:{n}"),
                    _ => format!("own:{n}"),
                })
                .collect();
            for key in &keys {
                tell(&mut alice, command.replace("{}", key).trim_end());
            }
            for key in &keys {
                let is_allowed = key.starts_with("own") || key.starts_with("read") && (reads || tells);
                let reply = alice.receive().to_string();
                assert_eq!(reply == NO_KEY, !is_allowed, "{command} {key}: {reply}");
            }
        }
        assert_eq!(ask(&mut control, "EXISTS other:3 read:5"), ":0");
        assert_eq!(ask(&mut control, "DBSIZE"), ":0");
    }
}

/// A rule may concern a first argument.
#[test]
fn each_command_of_a_pipeline_has_its_first_argument_checked() {
    let server = laid_out((2, 16));
    let mut control = server.connect();
    assert_eq!(ask(&mut control, "ACL SETUSER alice on >pw -@all ~* +get|a +select|0"), "+OK");
    let mut alice = client_of(&server, "alice");
    for key in ["a", "b", "A", "a", "b"] {
        tell(&mut alice, &format!("GET {key}"));
    }
    let replies: Vec<String> = (0..5).map(|_| alice.receive().to_string()).collect();
    let refused = "-NOPERM this user has no permissions to run the 'get' command";
    assert_eq!(replies, ["(nil)", refused, "(nil)", "(nil)", refused]);
}

/// Clients write without end while their user loses the keys. After the reply to that, no key changes.
#[test]
fn after_a_change_is_answered_nothing_runs_with_the_rights_of_before() {
    for layout in LAYOUTS {
        let server = laid_out(layout);
        let mut control = server.connect();
        let allow = "ACL SETUSER alice on >pw +@all resetkeys ~k*";
        assert_eq!(ask(&mut control, allow), "+OK");
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            let _stop = AtEnd(&stop);
            for id in 0..8 {
                let (mut alice, stop) = (client_of(&server, "alice"), &stop);
                scope.spawn(move || write_until(stop, id, &mut alice));
            }
            let sum = |control: &mut Client| {
                ask(control, "MGET k0 k1 k2 k3 k4 k5 k6 k7 k8 k9 k10 k11 k12 k13 k14 k15")
            };
            for round in 0..40 {
                let before = sum(&mut control);
                until("they write", || sum(&mut control) != before);
                let forbid = ["resetkeys ~other*", "-@all"][round % 2];
                assert_eq!(ask(&mut control, &format!("ACL SETUSER alice {forbid}")), "+OK");
                let left = sum(&mut control);
                for _ in 0..10 {
                    assert_eq!(sum(&mut control), left, "a write took effect after its right was gone");
                }
                assert_eq!(ask(&mut control, allow), "+OK");
            }
        });
    }
}

/// Writes in all ways: alone, in pipelines, over several shards, in transactions and in scripts.
fn write_until(stop: &AtomicBool, id: usize, client: &mut Client) {
    let (a, b) = (format!("k{id}"), format!("k{}", id + 8));
    while !stop.load(Ordering::SeqCst) {
        match id % 4 {
            0 => (0..20).for_each(|_| tell(client, &format!("INCR {a}"))),
            1 => (0..20).for_each(|n| tell(client, &format!("MSET {a} {n}{n} {b} {n}"))),
            2 => {
                for line in ["MULTI", &format!("INCR {a}"), &format!("INCR {b}"), "EXEC"] {
                    tell(client, line);
                }
            }
            _ => client.send(&[
                "EVAL",
                "redis.call('INCR', KEYS[1]) return redis.call('INCR', ARGV[1])",
                "1",
                &a,
                &b,
            ]),
        }
        let n_replies = [20, 20, 4, 1][id % 4];
        (0..n_replies).for_each(|_| drop(client.receive()));
    }
}

#[test]
fn a_blocked_client_is_served_with_the_rights_that_hold_then() {
    for layout in LAYOUTS {
        let server = laid_out(layout);
        let mut control = server.connect();
        assert_eq!(ask(&mut control, "ACL SETUSER alice on >pw +@all ~list ~to"), "+OK");
        let mut alice = client_of(&server, "alice");
        let mut bob = server.connect();
        for (waiting, after) in
            [("BLPOP list 0", "[\"list\" \"x\"]"), ("BLMOVE list to LEFT LEFT 0", "\"x\"")]
        {
            tell(&mut alice, waiting);
            until("alice waits", || figure(&mut control, "blocked_clients") == 1);
            tell(&mut bob, waiting);
            until("bob waits", || figure(&mut control, "blocked_clients") == 2);
            assert_eq!(ask(&mut control, "ACL SETUSER alice resetkeys"), "+OK");
            assert_eq!(ask(&mut control, "RPUSH list x"), ":1");
            assert_eq!(alice.receive().to_string(), NO_KEY);
            assert_eq!(bob.receive().to_string(), after, "what alice may not have is bob's");
            assert_eq!(ask(&mut control, "ACL SETUSER alice ~list ~to"), "+OK");
        }
        assert_eq!(ask(&mut alice, "LLEN list"), ":0");
    }
}

#[test]
fn what_a_pause_held_back_runs_with_the_rights_that_hold_then() {
    for layout in LAYOUTS {
        let server = laid_out(layout);
        let mut control = server.connect();
        assert_eq!(ask(&mut control, "ACL SETUSER alice on >pw +@all ~*"), "+OK");
        let mut clients: Vec<Client> = (0..3).map(|_| client_of(&server, "alice")).collect();
        assert_eq!(ask(&mut control, "CLIENT PAUSE 100000 WRITE"), "+OK");
        tell(&mut clients[0], "SET key value");
        tell(&mut clients[1], "MSET key value other value");
        for line in ["MULTI", "SET key value", "EXEC"] {
            tell(&mut clients[2], line);
        }
        until("they wait", || figure(&mut control, "blocked_clients") == 3);
        assert_eq!(ask(&mut control, "ACL SETUSER alice resetkeys"), "+OK");
        assert_eq!(ask(&mut control, "CLIENT UNPAUSE"), "+OK");
        for client in &mut clients[..2] {
            assert_eq!(client.receive().to_string(), NO_KEY);
        }
        let replies: Vec<String> = (0..3).map(|_| clients[2].receive().to_string()).collect();
        assert_eq!(replies[..2], ["+OK", "+QUEUED"]);
        assert!(replies[2].contains("-NOPERM ACLs rules changed between"), "{}", replies[2]);
        assert_eq!(ask(&mut control, "DBSIZE"), ":0");
    }
}

#[test]
fn what_was_offloaded_is_not_stored_when_the_right_is_gone() {
    let server = laid_out((2, 16));
    let mut control = server.connect();
    assert_eq!(ask(&mut control, "ACL SETUSER alice on >pw +@all ~*"), "+OK");
    fill_set(&mut control, "large", 40_000);
    let mut alice = client_of(&server, "alice");
    assert_eq!(ask(&mut control, "DEBUG HOLD-OFFLOADED 1"), "+OK");
    tell(&mut alice, "SUNIONSTORE stored large");
    until("it is pinned", || figure(&mut control, "offloaded_waiting") == 1);
    assert_eq!(ask(&mut control, "ACL SETUSER alice resetkeys %R~*"), "+OK");
    assert_eq!(ask(&mut control, "DEBUG HOLD-OFFLOADED 0"), "+OK");
    assert_eq!(alice.receive().to_string(), NO_KEY);
    assert_eq!(ask(&mut control, "EXISTS stored"), ":0");
    // Nothing is left pinned, and the connection continues.
    assert_eq!(ask(&mut control, "SADD large more"), ":1");
    assert_eq!(ask(&mut alice, "SCARD large"), ":40001");
}

#[test]
fn a_deleted_user_is_gone_with_its_clients() {
    for layout in LAYOUTS {
        let server = laid_out(layout);
        let mut control = server.connect();
        for _ in 0..3 {
            assert_eq!(ask(&mut control, "ACL SETUSER alice on >pw +@all ~*"), "+OK");
            let mut clients: Vec<Client> = (0..20).map(|_| client_of(&server, "alice")).collect();
            for (nth, client) in clients.iter_mut().enumerate() {
                match nth % 4 {
                    0 => tell(client, "BLPOP nothing 0"),
                    1 => tell(client, "SUBSCRIBE channel"),
                    2 => tell(client, "MULTI"),
                    _ => {}
                }
            }
            assert_eq!(ask(&mut control, "ACL DELUSER alice"), ":1");
            // A new user of the same name is unrelated to them.
            assert_eq!(ask(&mut control, "ACL SETUSER alice on nopass +@all ~*"), "+OK");
            assert_eq!(ask(&mut control, "CLIENT KILL USER alice"), ":0");
            for client in &mut clients {
                let _ = client.try_send(&["SET", "after", "death"]);
                while client.await_close().expect("the client of a deleted user is closed").is_some() {
                    client.receive();
                }
            }
            await_clients(&mut control, 1);
            assert_eq!(ask(&mut control, "EXISTS after"), ":0");
            assert_eq!(ask(&mut control, "ACL DELUSER alice"), ":1");
        }
    }
}

/// Clients subscribe while their user loses the channel. After the reply to that, nobody is subscribed.
#[test]
fn nobody_stays_subscribed_to_what_its_user_lost() {
    for layout in RACING {
        let server = laid_out(layout);
        let mut control = server.connect();
        for _ in 0..400 {
            assert_eq!(ask(&mut control, "ACL SETUSER alice on >pw +@all resetchannels &news* &pat*"), "+OK");
            let mut clients: Vec<Client> = (0..6).map(|_| client_of(&server, "alice")).collect();
            for (nth, client) in clients.iter_mut().enumerate() {
                tell(client, ["SUBSCRIBE news", "PSUBSCRIBE pat*", "SSUBSCRIBE news"][nth % 3]);
            }
            assert_eq!(ask(&mut control, "ACL SETUSER alice resetchannels"), "+OK");
            let list = control.command(&["CLIENT", "LIST", "TYPE", "pubsub"]).text().expect("it is text");
            assert_eq!(list, "", "they are subscribed");
            for client in &mut clients {
                // A client that was admitted and then closed may lack its reply.
                let reply = client.try_receive().map(|reply| reply.to_string());
                if let Ok(reply) = reply {
                    assert!(reply.contains("subscribe") || reply.starts_with("-NOPERM"), "{reply}");
                }
            }
            drop(clients);
            await_clients(&mut control, 1);
            for count in ["PUBSUB NUMSUB news", "PUBSUB SHARDNUMSUB news", "PUBSUB NUMPAT"] {
                until("the shards know", || ask(&mut control, count).contains(":0"));
            }
        }
    }
}

/// Two clients may change users. The one that first loses this right changes nothing any more.
#[test]
fn of_two_who_take_the_right_from_each_other_one_keeps_it() {
    const ROUNDS: usize = 2000;
    for layout in RACING {
        let server = laid_out(layout);
        let mut control = server.connect();
        let give = |control: &mut Client| {
            for user in ["one", "other"] {
                assert_eq!(ask(control, &format!("ACL SETUSER {user} reset on >pw +@all")), "+OK");
            }
        };
        give(&mut control);
        let both = [client_of(&server, "one"), client_of(&server, "other")];
        let meeting = Meeting::of(3);
        thread::scope(|scope| {
            let changes = both.into_iter().zip(["ACL SETUSER other -@all", "ACL SETUSER one -@all"]);
            let meeting = &meeting;
            let parts = changes.map(|(mut client, change)| {
                scope.spawn(move || {
                    let race = |_| {
                        meeting.wait();
                        let reply = ask(&mut client, change);
                        meeting.wait();
                        reply
                    };
                    (0..ROUNDS).map(race).collect::<Vec<_>>()
                })
            });
            let parts: Vec<_> = parts.collect();
            for _ in 0..ROUNDS {
                give(&mut control);
                meeting.wait();
                meeting.wait();
            }
            let replies: Vec<Vec<String>> =
                parts.into_iter().map(|part| part.join().expect("it is answered")).collect();
            let refused = "-NOPERM this user has no permissions to run the 'acl|setuser' command";
            for (one, other) in replies[0].iter().zip(&replies[1]) {
                let mut both = [one.as_str(), other];
                both.sort_unstable();
                assert_eq!(both, ["+OK", refused]);
            }
        });
    }
}

#[test]
fn many_clients_of_a_user_cost_nothing_until_they_ask() {
    let server = laid_out((2, 16));
    let mut control = server.connect();
    assert_eq!(ask(&mut control, "ACL SETUSER alice on >pw +@all ~*"), "+OK");
    let mut clients: Vec<Client> = (0..200).map(|_| client_of(&server, "alice")).collect();
    for n in 0..200 {
        assert_eq!(ask(&mut control, &format!("ACL SETUSER alice resetkeys ~k{n}")), "+OK");
    }
    for client in &mut clients {
        assert_eq!(ask(client, "GET k199"), "(nil)");
        assert_eq!(ask(client, "GET k198"), NO_KEY);
    }
}

// Files.

/// Starts a server with a file of users.
fn with_file(text: &str, args: &[&str]) -> Server {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let file = folder.join(format!("users-{}-{:x}.acl", std::process::id(), text.len() * 31 + args.len()));
    fs::write(&file, text).expect("the folder is there");
    let server = Server::start(&[&["--aclfile", file.to_str().expect("it is UTF-8")], args].concat());
    // From here on the file belongs to the server.
    let own = server.scratch().join("users.acl");
    let _ = fs::rename(&file, own);
    server
}

#[test]
fn users_are_saved_and_loaded() {
    let folder = Server::start(&[]);
    let path = folder.scratch().join("users.acl");
    let path_text = path.to_str().expect("it is UTF-8").to_owned();
    fs::write(&path, "user alice on >secret ~a* +get\n\nuser  \nuser default on nopass ~* &* +@all\n")
        .expect("written");
    fs::write(&path, "user alice on >secret ~a* +get\n\n  user default on nopass ~* &* +@all\r\n")
        .expect("written");
    let server = Server::start(&["--aclfile", &path_text]);
    let mut control = server.connect();
    let of_alice = "user alice on #2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b ~a* resetchannels -@all +get";
    let users = |control: &mut Client| match control.command(&["ACL", "LIST"]) {
        Reply::Array(users) => users.iter().map(|user| user.text().expect("a line")).collect::<Vec<_>>(),
        other => panic!("{other}"),
    };
    assert_eq!(users(&mut control), [of_alice, "user default on nopass ~* &* +@all"]);
    assert_eq!(ask(&mut control, "ACL SETUSER bob on nopass ~b (+set ~c) +@all -debug"), "+OK");
    assert_eq!(ask(&mut control, "ACL SAVE"), "+OK");
    let mode = fs::metadata(&path).expect("it is there").permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "nobody else may read passwords");
    let saved = fs::read_to_string(&path).expect("it is there");
    assert_eq!(saved, users(&mut control).join("\n") + "\n");
    let names: Vec<_> = fs::read_dir(folder.scratch())
        .expect("it is there")
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert_eq!(names.len(), 2, "only the log and the users: {names:?}");

    // Clients of users that still exist continue, with the rights from the file.
    let mut bob = client_of(&server, "bob");
    assert_eq!(ask(&mut bob, "SET b x"), "+OK");
    assert_eq!(ask(&mut control, "ACL SETUSER carol on nopass"), "+OK");
    let mut carol = client_of(&server, "carol");
    fs::write(&path, saved.replace("~b ", "~d ")).expect("written");
    assert_eq!(ask(&mut control, "ACL LOAD"), "+OK");
    assert_eq!(ask(&mut bob, "SET b x"), NO_KEY);
    assert_eq!(ask(&mut bob, "SET d x"), "+OK");
    assert_eq!(carol.await_close().expect("carol is gone"), None);

    // A broken file changes nothing, and all its faults are reported.
    let before = users(&mut control);
    fs::write(&path, "user bob on\nuser bob off\nnonsense\nuser\nuser x +nosuch ~a ~* ~b\nuser y (~a\n")
        .expect("written");
    let refused = ask(&mut control, "ACL LOAD");
    let expected = format!(
        "-ERR WARNING: Duplicate user 'bob' found on line 2. {path_text}:3 should start with user keyword followed by the \
         username. {path_text}:4 should start with user keyword followed by the username. {path_text}:5: Error in applying \
         operation '+nosuch': Unknown command or category name in ACL. {path_text}:5: Adding a pattern after the * pattern (or \
         the 'allkeys' flag) is not valid and does not have any effect. Try 'resetkeys' to start with an empty list of \
         patterns. {path_text}:6: Unmatched parenthesis in selector definition.WARNING: ACL errors detected, no change to the \
         previously active ACL rules was performed"
    );
    assert_eq!(refused, expected);
    assert_eq!(users(&mut control), before);
    fs::remove_file(&path).expect("it is there");
    assert!(ask(&mut control, "ACL LOAD").ends_with("No such file or directory"));
    assert_eq!(users(&mut control), before);

    // If the file cannot be written, the old one stays.
    fs::create_dir(&path).expect("made");
    assert!(ask(&mut control, "ACL SAVE").starts_with("-ERR There was an error trying to save the ACLs"));
    assert!(path.is_dir());
}

#[test]
fn a_file_without_the_default_user_leaves_it_open() {
    let server = with_file("user alice on nopass", &["--requirepass", "ignored"]);
    assert_eq!(ask(&mut server.connect(), "ACL WHOAMI"), "\"default\"");
}

#[test]
fn a_rule_that_a_file_would_have_as_others_is_refused() {
    let server = with_file("user default on nopass ~* &* +@all", &[]);
    let mut control = server.connect();
    // As one word it is a selector with two rules. A file would split it into two words.
    let refused = control.command(&["ACL", "SETUSER", "alice", "(~a) +get)"]).to_string();
    assert_eq!(refused, "-ERR Error in ACL SETUSER modifier '(~a) +get)': Syntax error");
    assert_eq!(ask(&mut control, "ACL DELUSER alice"), ":0");
    assert_eq!(ask(&mut control, "ACL SAVE"), "+OK");
}

/// Returns the output of a server that does not start.
fn refused(line: &str) -> String {
    let args: Vec<&str> = line.split(' ').collect();
    let output = Command::new(env!("CARGO_BIN_EXE_braid-server"))
        .args(["--port", "0"])
        .args(&args)
        .stdin(Stdio::null())
        .output()
        .expect("it runs");
    assert_eq!(output.status.code(), Some(1), "it starts with {line}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn what_is_broken_keeps_the_server_from_starting() {
    let why = refused("--user alice on nosuch");
    assert!(
        why.contains("Error loading ACL rule 'nosuch' for the user named 'alice': Syntax error"),
        "{why}"
    );
    let why = refused("--user alice on +nosuch");
    assert!(
        why.contains("'+nosuch' for the user named 'alice': Unknown command or category name in ACL"),
        "{why}"
    );
    let why = refused("--user alice on #secret");
    assert!(why.contains("The password hash must be exactly 64") && !why.contains("#secret"), "{why}");
    assert!(refused("--user alice on (~a").contains("Unmatched parenthesis"));
    assert!(refused("--user alice on --user alice off").contains("Duplicate user"));
    assert!(refused("--aclfile /nonexistent/users.acl").contains("opening file '/nonexistent/users.acl'"));
    assert!(refused("--rename-command nosuch x").contains("No such command in rename-command"));
    assert!(refused("--rename-command get set").contains("Target command name already exists"));
    assert!(refused("--check-config --rename-command get set").contains("Target command name"));
}

/// Makes a program that starts the server with a configuration file, which must be its first argument.
fn program_with(folder: &Path, text: &str) -> (String, PathBuf) {
    let (file, program) = (folder.join("braid.conf"), folder.join("start"));
    fs::write(&file, text).expect("the folder is there");
    let braid = env!("CARGO_BIN_EXE_braid-server");
    fs::write(&program, format!("#!/bin/sh\nexec {braid} {} \"$@\"\n", file.display())).expect("written");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o700)).expect("it is our own");
    (program.to_str().expect("it is UTF-8").to_owned(), file)
}

#[test]
fn users_of_the_configuration_are_there_and_are_rewritten() {
    let folder = Server::start(&[]);
    let text = "user alice on >secret ~a* (+set ~b*) +get\nuser default on >master ~* &* +@all\n";
    let (program, file) = program_with(folder.scratch(), text);
    let expected = "user alice on #2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b ~a* resetchannels -@all \
                    +get (~b* resetchannels -@all +set)";
    let first = Server::start_program(&program, &[]);
    let mut control = first.connect();
    assert_eq!(ask(&mut control, "PING"), "-NOAUTH Authentication required.");
    assert_eq!(ask(&mut control, "AUTH master"), "+OK");
    assert!(ask(&mut control, "ACL LIST").contains(expected));
    assert_eq!(ask(&mut control, "ACL SETUSER bob on nopass +ping"), "+OK");
    assert_eq!(ask(&mut control, "CONFIG REWRITE"), "+OK");
    let rewritten = fs::read_to_string(file).expect("it is there");
    assert!(!rewritten.contains("secret") && !rewritten.contains("master"), "{rewritten}");
    let server = Server::start_program(&program, &[]);
    let mut control = server.connect();
    assert_eq!(ask(&mut control, "AUTH master"), "+OK");
    let list = ask(&mut control, "ACL LIST");
    assert!(
        list.contains(expected) && list.contains("user bob on nopass resetchannels -@all +ping"),
        "{list}"
    );
}

#[test]
fn nothing_is_rewritten_of_users_whom_nobody_declared() {
    let folder = Server::start(&[]);
    let (program, file) = program_with(folder.scratch(), "requirepass secret\n");
    let server = Server::start_program(&program, &[]);
    let mut control = server.connect();
    assert_eq!(ask(&mut control, "AUTH secret"), "+OK");
    assert_eq!(ask(&mut control, "CONFIG REWRITE"), "+OK");
    assert!(!fs::read_to_string(file).expect("it is there").contains("user "));
}

#[test]
fn renamed_commands_have_their_new_names_only() {
    let renames = ["get fetch-it", "config ", "set get", "client conn"];
    let options = renames.iter().flat_map(|rename| ["--rename-command"].into_iter().chain(rename.split(' ')));
    let server = Server::start(&options.collect::<Vec<_>>());
    let mut control = server.connect();
    assert_eq!(ask(&mut control, "GET key value"), "+OK");
    // In a pipeline, where the name is compared with that of the command before.
    for line in ["FETCH-IT key", "fetch-it key", "Fetch-It other", "GET key x", "GET key y", "fetch-it key"] {
        tell(&mut control, line);
    }
    let replies: Vec<String> = (0..6).map(|_| control.receive().to_string()).collect();
    assert_eq!(replies, ["\"value\"", "\"value\"", "(nil)", "+OK", "+OK", "\"y\""]);
    for gone in ["SET key value", "CONFIG GET port", "CLIENT ID"] {
        assert!(ask(&mut control, gone).contains("ERR unknown command"), "{gone}");
    }
    assert!(ask(&mut control, "CONN ID").starts_with(':'));
    assert_eq!(ask(&mut control, "GET"), "-ERR wrong number of arguments for 'set' command");
    let script = |text: &str, control: &mut Client| control.command(&["EVAL", text, "0"]).to_string();
    assert_eq!(script("return redis.call('fetch-it', 'key')", &mut control), "\"y\"");
    assert!(script("return redis.call('set', 'key', 'x')", &mut control).contains("Unknown Redis command"));
    // Rules of users name commands by their original names.
    assert_eq!(ask(&mut control, "ACL SETUSER alice on nopass ~* +get +config"), "+OK");
    let mut alice = client_of(&server, "alice");
    assert_eq!(ask(&mut alice, "FETCH-IT key"), "\"y\"");
    assert_eq!(ask(&mut alice, "GET key x"), "-NOPERM this user has no permissions to run the 'set' command");
    let list = ask(&mut control, "COMMAND LIST FILTERBY PATTERN config*");
    assert!(!list.contains("\"config\""), "{list}");
    assert_eq!(ask(&mut control, "COMMAND INFO config"), "[(nil)]");
}
