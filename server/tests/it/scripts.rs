//! Scripts: atomic and isolated on many threads, whichever keys they use.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use crate::support::{
    Client, Reply,
    crowd::{AtEnd, ask, crowd, figure, laid_out, until},
    dice::{self, Dice},
    encode,
};

const LAYOUTS: [(usize, usize); 5] = [(1, 1024), (2, 1), (2, 1024), (8, 1024), (8, 4)];

/// The number of accounts between which scripts move money.
const N_ACCOUNTS: usize = 40;
const START: i64 = 1000;

fn eval(client: &mut Client, script: &str, keys: &[&str], argv: &[&str]) -> Reply {
    let n_keys = keys.len().to_string();
    let words = [&["EVAL", script, &n_keys], keys, argv].concat();
    client.command(&words)
}

/// Data names both accounts of a transfer: neither is declared.
const TRANSFER: &str = "
    local from = 'account:' .. redis.call('GET', KEYS[1])
    redis.call('DECRBY', from, ARGV[1])
    local to = 'account:' .. redis.call('INCR', 'turn') % tonumber(ARGV[2])
    redis.call('INCRBY', to, ARGV[1])
    return redis.call('GET', from)";

/// The keys follow from the arguments.
const DERIVED: &str = "
    redis.call('DECRBY', 'account:' .. ARGV[1], ARGV[3])
    return redis.call('INCRBY', 'account:' .. ARGV[2], ARGV[3])";

/// All keys are declared.
const DECLARED: &str = "
    redis.call('DECRBY', KEYS[1], ARGV[1])
    return redis.call('INCRBY', KEYS[2], ARGV[1])";

/// The sum over all accounts, which the script finds by itself.
const SUM: &str = "
    local sum = 0
    for n = 0, ARGV[1] - 1 do sum = sum + tonumber(redis.call('GET', 'account:' .. n)) end
    return sum";

fn open_accounts(client: &mut Client) {
    for n in 0..N_ACCOUNTS {
        ask(client, &format!("SET account:{n} {START}"));
        ask(client, &format!("SET pointer:{n} {n}"));
    }
}

fn sum_by_mget(client: &mut Client) -> i64 {
    let words: Vec<String> =
        std::iter::once("MGET".to_owned()).chain((0..N_ACCOUNTS).map(|n| format!("account:{n}"))).collect();
    let Reply::Array(balances) = client.command(&words) else { panic!("MGET returns an array") };
    let balance = |reply: &Reply| reply.text().and_then(|text| text.parse::<i64>().ok()).expect("a balance");
    balances.iter().map(balance).sum()
}

/// Moves money in one of a dozen ways.
fn move_money(client: &mut Client, dice: &mut Dice) {
    let amount = (1 + dice.roll(9)).to_string();
    let accounts = N_ACCOUNTS.to_string();
    let (from, to) = (dice.roll(N_ACCOUNTS).to_string(), dice.roll(N_ACCOUNTS).to_string());
    let keys = [format!("account:{from}"), format!("account:{to}")];
    let reply = match dice.roll(4) {
        0 => eval(client, DERIVED, &[], &[&from, &to, &amount]),
        1 => eval(client, DECLARED, &[&keys[0], &keys[1]], &[&amount]),
        2 => {
            ask(client, "MULTI");
            eval(client, DERIVED, &[], &[&from, &to, &amount]);
            eval(client, TRANSFER, &[&format!("pointer:{from}")], &[&amount, &accounts]);
            client.command(&["EXEC"])
        }
        _ => eval(client, TRANSFER, &[&format!("pointer:{from}")], &[&amount, &accounts]),
    };
    assert!(!reply.is_error(), "{reply:?}");
    if let Reply::Array(replies) = &reply {
        assert!(replies.iter().all(|reply| !reply.is_error()), "{reply:?}");
    }
}

/// No reader ever sees a partial sum, and all scripts end.
#[test]
fn scripts_that_reach_for_any_key_move_money_and_lose_none() {
    for layout in LAYOUTS {
        let server = laid_out(layout);
        let mut client = server.connect();
        open_accounts(&mut client);
        let whole = N_ACCOUNTS as i64 * START;
        crowd(&server, 8, |id, client| {
            let mut dice = Dice(dice::seed() * 100 + id as u64);
            for _ in 0..150 {
                match id {
                    0 => assert_eq!(sum_by_mget(client), whole),
                    1 => {
                        let sum = eval(client, SUM, &[], &[&N_ACCOUNTS.to_string()]);
                        assert_eq!(sum.integer(), Some(whole), "{sum:?}");
                    }
                    _ => move_money(client, &mut dice),
                }
            }
        });
        assert_eq!(sum_by_mget(&mut client), whole);
    }
}

/// Checks that the lane was needed and passed on. Otherwise the test above has shown nothing about it.
#[test]
fn scripts_whose_keys_are_not_known_take_turns() {
    let server = laid_out((8, 4));
    let mut client = server.connect();
    open_accounts(&mut client);
    let n_before = figure(&mut client, "lane_runs");
    crowd(&server, 8, |id, client| {
        for n in 0..50 {
            let pointer = format!("pointer:{}", (id * 7 + n) % N_ACCOUNTS);
            let reply = eval(client, TRANSFER, &[&pointer], &["1", &N_ACCOUNTS.to_string()]);
            assert!(!reply.is_error(), "{reply:?}");
        }
    });
    assert!(figure(&mut client, "lane_runs") >= n_before + 400);
    assert_eq!(ask(&mut client, "GET turn"), "\"400\"", "each run has taken effect once");
    assert_eq!(sum_by_mget(&mut client), N_ACCOUNTS as i64 * START);
}

/// While a script runs for long, others are served. Clients that need its keys are told that it is busy.
#[test]
fn a_script_without_end_is_busy_and_can_be_killed() {
    for layout in LAYOUTS.into_iter().filter(|(threads, shards)| *threads > 1 && *shards > 4) {
        let server = laid_out(layout);
        let (mut client, mut other) = (server.connect(), server.connect());
        ask(&mut client, "CONFIG SET busy-reply-threshold 20");
        assert_eq!(ask(&mut other, "SCRIPT KILL"), "-NOTBUSY No scripts in execution right now.");
        client.send(&["EVAL", "while true do pcall(function() while true do end end) end", "1", "held"]);
        until("who wants the key is told", || ask(&mut other, "SET held 1").starts_with("-BUSY"));
        assert_eq!(ask(&mut other, "PING"), "+PONG");
        assert_eq!(ask(&mut other, "FUNCTION KILL"), ask(&mut other, "SET held 1"));
        assert_eq!(ask(&mut other, "SCRIPT KILL"), "+OK");
        let end = client.receive().to_string();
        assert!(end.starts_with("-ERR Script killed by user with SCRIPT KILL..."), "{end}");
        assert_eq!(ask(&mut other, "SET held 1"), "+OK");
    }
}

/// A script that has written cannot be killed, and takes effect.
#[test]
fn a_script_that_has_written_goes_on() {
    let server = laid_out((2, 1024));
    let (mut client, mut other) = (server.connect(), server.connect());
    ask(&mut client, "CONFIG SET busy-reply-threshold 20");
    client.send(&["EVAL", "redis.call('SET', KEYS[1], 1) for n = 1, 3e7 do end return 'done'", "1", "held"]);
    until("it cannot be killed", || ask(&mut other, "SCRIPT KILL").starts_with("-UNKILLABLE"));
    assert_eq!(client.receive().text().as_deref(), Some("done"));
    assert_eq!(ask(&mut other, "GET held"), "\"1\"");
}

/// Elements that a script pushes serve waiting clients once it is over. MONITOR shows each command once.
#[test]
fn what_a_script_does_is_heard_of_once() {
    for layout in LAYOUTS {
        let server = laid_out(layout);
        let (mut client, mut waiting, mut monitor) = (server.connect(), server.connect(), server.connect());
        assert_eq!(ask(&mut monitor, "MONITOR"), "+OK");
        waiting.send(&["BLPOP", "jobs", "0"]);
        until("it waits", || figure(&mut client, "blocked_clients") == 1);
        let script = "redis.call('RPUSH', 'jobs', 'one', 'two') return redis.call('LLEN', 'jobs')";
        assert_eq!(eval(&mut client, script, &[], &[]).integer(), Some(2));
        assert_eq!(waiting.receive().to_string(), "[\"jobs\" \"one\"]");
        ask(&mut client, "ECHO end");
        let mut lines = Vec::new();
        while !lines.last().is_some_and(|line: &String| line.contains("\"ECHO\"")) {
            lines.push(monitor.receive().text().expect("a line"));
        }
        let of_script: Vec<&String> = lines.iter().filter(|line| line.contains(" lua] ")).collect();
        assert_eq!(of_script.len(), 2, "{lines:?}");
        assert!(of_script[0].contains("\"RPUSH\"") && of_script[1].contains("\"LLEN\""), "{lines:?}");
        assert_eq!(lines.iter().filter(|line| line.contains("\"EVAL\"")).count(), 1, "{lines:?}");
    }
}

/// Many scripts that cannot be ended run, and others are served all the same.
#[test]
fn scripts_without_end_that_have_written_stop_nobody_else() {
    let server = laid_out((2, 1024));
    let mut loops: Vec<Client> = (0..3).map(|_| server.connect()).collect();
    for (nth, client) in loops.iter_mut().enumerate() {
        let script = format!("redis.call('SET', KEYS[1], 1) while true do end -- {nth}");
        client.send(&["EVAL", &script, "1", &format!("held:{nth}")]);
    }
    let mut client = server.connect();
    ask(&mut client, "CONFIG SET busy-reply-threshold 20");
    for nth in 0..loops.len() {
        until("each is busy", || ask(&mut client, &format!("GET held:{nth}")).starts_with("-BUSY"));
    }
    for n in 0..20 {
        assert_eq!(ask(&mut server.connect(), "PING"), "+PONG");
        assert_eq!(eval(&mut client, &format!("return {n}"), &[], &[]).integer(), Some(n));
    }
    // A command that waits for all earlier ones to end does not wait for these.
    assert_eq!(ask(&mut client, "CLIENT PAUSE 1"), "+OK");
    client.send(&["SHUTDOWN", "NOSAVE"]);
    let mut server = server;
    assert!(server.await_end().success());
}

/// A text may show one key while the run uses another. The script still has all its effects.
#[test]
fn scripts_that_are_not_what_they_seem_are_whole() {
    let server = laid_out((8, 4));
    let mut client = server.connect();
    ask(&mut client, "RPUSH list x");
    let odd = [
        "local k = 'a:1' pcall(function() k = 'a:' .. ARGV[1] redis.call('INCR', 'list') k = 'a:7' end) redis.call('INCR', k)",
        "local function make(k) return {k = k} end local a = make('a:1') make('a:2') redis.call('INCR', a.k)",
        "redis.call('INCR', 'a:' .. tostring(ARGV[99]))",
        "redis.call('INCR', 1e15)",
        "local t = {[1] = 'a:1', 'a:2'} redis.call('INCR', t[1])",
        "for name, f in pairs(redis) do if name == 'call' then f('INCR', 'a:' .. ARGV[1]) end end",
        "local t = setmetatable({}, {__index = function() return 'a:3' end}) redis.call('INCR', t.x)",
    ];
    let n_each = 30;
    crowd(&server, 8, |id, client| {
        for n in 0..n_each {
            for (nth, line) in odd.iter().enumerate() {
                let script =
                    format!("redis.call('INCR', 'n') {line} redis.call('INCR', 'm') -- {id} {n} {nth}");
                let reply = eval(client, &script, &[], &["5"]);
                assert!(!reply.is_error(), "{script}: {reply:?}");
            }
        }
    });
    let n_all = format!("\"{}\"", 8 * n_each * odd.len());
    assert_eq!([ask(&mut client, "GET n"), ask(&mut client, "GET m")], [n_all.clone(), n_all]);
}

/// A panic of a command ends its script. It leaves the client in its own database and no script busy.
#[test]
fn a_command_that_panics_in_a_script_leaves_its_client_as_it_was() {
    let server = laid_out((2, 16));
    let mut client = server.connect();
    ask(&mut client, "DEBUG SET-DISABLE-DENY-SCRIPTS 1");
    ask(&mut client, "CONFIG SET busy-reply-threshold 1");
    ask(&mut client, "SET k zero");
    let script = "redis.call('SELECT', 3) for n = 1, 1e6 do end \
                  redis.call('DEBUG', 'PANIC-BEFORE-CHANGE', KEYS[1])";
    for _ in 0..3 {
        assert!(eval(&mut client, script, &["k"], &[]).is_error());
        assert_eq!(ask(&mut client, "GET k"), "\"zero\"");
        assert_eq!(ask(&mut client, "SCRIPT KILL"), "-NOTBUSY No scripts in execution right now.");
    }
    assert_eq!(eval(&mut client, "return 1", &[], &[]).integer(), Some(1));
}

/// The memory of scripts is limited by the directive, and INFO reports it.
#[test]
fn the_memory_of_scripts_is_limited_and_told() {
    let server = laid_out((1, 16));
    let mut client = server.connect();
    let grows = "local s = ('x'):rep(3e6) return #(s .. 'y')";
    assert_eq!(eval(&mut client, grows, &[], &[]).integer(), Some(3_000_001));
    ask(&mut client, "CONFIG SET lua-memory-limit 2mb");
    let refused = eval(&mut client, grows, &[], &[]).text().unwrap_or_default();
    assert!(refused.contains("not enough memory"), "{refused}");
    assert_eq!(eval(&mut client, "return 1", &[], &[]).integer(), Some(1));
    ask(&mut client, "CONFIG SET lua-memory-limit 1gb");
    assert_eq!(eval(&mut client, grows, &[], &[]).integer(), Some(3_000_001));
    let told = figure(&mut client, "used_memory_vm_eval");
    assert!((100_000..1 << 30).contains(&told), "{told}");
    assert_eq!(figure(&mut client, "used_memory_vm_functions"), 0);
}

/// Scripts of a pipeline travel together when a busy key holds one of them up. Only the scripts that need the
/// key are told that it is busy.
#[test]
fn of_scripts_that_travel_together_only_those_behind_a_busy_key_are_refused() {
    let server = laid_out((2, 1024));
    let (mut busy, mut client) = (server.connect(), server.connect());
    ask(&mut client, "CONFIG SET busy-reply-threshold 1");
    let get = "return redis.call('GET', KEYS[1])";
    for name in ["busy", "free"] {
        ask(&mut client, &format!("SET {name} {name}"));
        // A script that has run is known to be short.
        eval(&mut client, get, &[name], &[]);
    }
    busy.send(&["EVAL", "while true do redis.call('GET', KEYS[1]) end", "1", "busy"]);
    until("the script is busy", || eval(&mut client, get, &["busy"], &[]).is_error());
    let names = ["free", "busy", "free", "busy", "busy", "free"];
    let mut pipeline = Vec::new();
    names.iter().for_each(|name| encode(&["EVAL", get, "1", name], &mut pipeline));
    client.send_raw(&pipeline);
    for name in names {
        let reply = client.receive();
        match name {
            "busy" => assert!(reply.text().is_some_and(|text| text.starts_with("BUSY")), "{reply:?}"),
            free => assert_eq!(reply.text().as_deref(), Some(free)),
        }
    }
    assert_eq!(ask(&mut client, "SCRIPT KILL"), "+OK");
    assert!(busy.receive().is_error());
}

/// Every client that waits for a busy script is told, whatever its command. Its transaction is over.
#[test]
fn all_that_wait_for_a_busy_script_are_told() {
    for layout in LAYOUTS.into_iter().filter(|(threads, shards)| *threads > 1 && *shards > 4) {
        let server = laid_out(layout);
        let (mut busy, mut control) = (server.connect(), server.connect());
        ask(&mut control, "CONFIG SET busy-reply-threshold 1");
        ask(&mut control, "MSET held 1 free 1");
        // The text does not show the keys of these scripts, so they run through the lane.
        let [reads, writes] =
            ["redis.call('GET', ARGV[1]) redis.call('SET', ARGV[2], 1)", "redis.call('SET', ARGV[2], 1)"];
        for script in [reads, writes] {
            assert!(!eval(&mut control, script, &[], &["free", "free"]).is_error());
        }
        busy.send(&["EVAL", "while true do redis.call('GET', KEYS[1]) end", "1", "held"]);
        until("it is busy", || ask(&mut control, "GET held").starts_with("-BUSY"));
        let waiting: [(&[&[&str]], &str); 7] = [
            (&[&["EVAL", reads, "0", "held", "free"]], "-BUSY"),
            (&[&["EVAL", writes, "0", "free", "held"]], "-BUSY"),
            (
                &[&["MULTI"], &["SET", "free", "2"], &["GET", "held"], &["EXEC"]],
                "-EXECABORT Transaction discarded because of: BUSY",
            ),
            (
                &[&["MULTI"], &["EVAL", reads, "0", "held", "free"], &["EXEC"]],
                "-EXECABORT Transaction discarded because of: BUSY",
            ),
            (&[&["KEYS", "*"]], "-BUSY"),
            (&[&["FLUSHALL"]], "-BUSY"),
            (&[&["MGET", "free", "held"]], "-BUSY"),
        ];
        // All at once, so that some wait for the lane of another.
        let mut clients: Vec<Client> = waiting.iter().map(|_| server.connect()).collect();
        for ((commands, _), client) in waiting.iter().zip(&mut clients) {
            commands.iter().for_each(|command| client.send(command));
        }
        for ((commands, told), client) in waiting.iter().zip(&mut clients) {
            let last = commands.iter().map(|_| client.receive().to_string()).last().expect("a reply");
            assert!(last.starts_with(told), "{commands:?}: {last}");
        }
        for ((commands, _), client) in waiting.iter().zip(&mut clients) {
            assert_eq!(ask(client, "EXEC"), "-ERR EXEC without MULTI", "{commands:?}");
            // A client that is told may hold the free key for a moment more. Others are then told that it is
            // busy.
            until("the free key is free", || ask(client, "GET free") == "\"1\"");
        }
        assert_eq!(ask(&mut control, "SCRIPT KILL"), "+OK");
        assert!(busy.receive().is_error());
        for client in &mut clients {
            assert!(!eval(client, reads, &[], &["held", "free"]).is_error());
            assert_eq!(ask(client, "GET held"), "\"1\"");
        }
    }
}

/// A script that has written may wait for a busy one's key. It is busy itself to scripts that need its turn.
#[test]
fn who_waits_behind_a_script_that_waits_is_told() {
    let server = laid_out((4, 1024));
    let (mut busy, mut stuck, mut other) = (server.connect(), server.connect(), server.connect());
    let mut control = server.connect();
    ask(&mut control, "CONFIG SET busy-reply-threshold 1");
    ask(&mut control, "MSET held 1 pointer held other other");
    busy.send(&["EVAL", "while true do redis.call('GET', KEYS[1]) end", "1", "held"]);
    until("it is busy", || ask(&mut control, "GET held").starts_with("-BUSY"));
    // The text does not show the last key that it reads.
    let script = "redis.call('SET', ARGV[1], 1) return redis.call('GET', redis.call('GET', ARGV[2]))";
    // In a transaction it has its turn from the beginning. It cannot be given up and take the turn later.
    for words in [&["MULTI"][..], &["EVAL", script, "0", "free", "pointer"], &["EXEC"]] {
        stuck.send(words);
    }
    until("it waits", || ask(&mut control, "GET free").starts_with("-BUSY"));
    assert_eq!(ask(&mut other, "MULTI"), "+OK");
    assert_eq!(eval(&mut other, script, &[], &["another", "other"]).to_string(), "+QUEUED");
    let told = ask(&mut other, "EXEC");
    assert!(told.starts_with("-EXECABORT Transaction discarded because of: BUSY"), "{told}");
    assert_eq!(ask(&mut control, "SCRIPT KILL"), "+OK");
    assert!(busy.receive().is_error());
    for reply in ["+OK", "+QUEUED", "[\"1\"]"] {
        assert_eq!(stuck.receive().to_string(), reply, "it has all its effects");
    }
    assert_eq!(ask(&mut control, "GET free"), "\"1\"");
}

/// A transaction used to load the library, the scripts and the configuration for each command.
#[test]
fn all_of_a_transaction_goes_by_the_same_scripts_functions_and_configuration() {
    const SHA: &str = "e0e1f9fabfc9d4800c877a703b823ac0578ff8db";
    for layout in LAYOUTS {
        let server = laid_out(layout);
        let load = |client: &mut Client, n: usize| {
            let code = format!(
                "#!lua name=both\nredis.register_function('one', function() return {n} end) \
                 redis.register_function('other', function() return {n} end)"
            );
            assert_eq!(client.command(&["FUNCTION", "LOAD", "REPLACE", &code]).to_string(), "\"both\"");
        };
        load(&mut server.connect(), 0);
        crowd(&server, 4, |id, client| {
            for n in 0..300 {
                if id == 0 {
                    load(client, n);
                    assert_eq!(
                        client.command(&["SCRIPT", "LOAD", "return 1"]).to_string(),
                        format!("\"{SHA}\"")
                    );
                    ask(client, &format!("CONFIG SET slowlog-max-len {}", 100 + n));
                    ask(client, "SCRIPT FLUSH");
                    continue;
                }
                let lines = [
                    "FCALL one 0".to_owned(),
                    format!("EVALSHA {SHA} 0"),
                    "CONFIG GET slowlog-max-len".to_owned(),
                    "CONFIG GET slowlog-max-len".to_owned(),
                    format!("EVALSHA {SHA} 0"),
                    "FCALL other 0".to_owned(),
                ];
                ask(client, "MULTI");
                lines.iter().for_each(|line| drop(ask(client, line)));
                let Reply::Array(replies) = client.command(&["EXEC"]) else { panic!("an array") };
                let replies: Vec<String> = replies.iter().map(Reply::to_string).collect();
                (0..3).for_each(|nth| assert_eq!(replies[nth], replies[5 - nth], "{}", lines[nth]));
            }
        });
        // It sees its own changes.
        let mut client = server.connect();
        ask(&mut client, "MULTI");
        ask(&mut client, "FCALL one 0");
        client.command(&["EVAL", "return 1", "0"]);
        ask(&mut client, "FUNCTION DELETE both");
        ask(&mut client, &format!("EVALSHA {SHA} 0"));
        ask(&mut client, "SCRIPT FLUSH");
        for line in ["FCALL one 0", &format!("EVALSHA {SHA} 0")] {
            ask(&mut client, line);
        }
        let Reply::Array(replies) = client.command(&["EXEC"]) else { panic!("an array") };
        let replies: Vec<String> = replies.iter().map(Reply::to_string).collect();
        assert_eq!(replies[..5], [":299", ":1", "+OK", ":1", "+OK"]);
        let unknown = ["-ERR Function not found", "-NOSCRIPT No matching script. Please use EVAL."];
        assert_eq!(replies[5..], unknown);
    }
}

/// The receiver of the message used to find the old value. This happened if the script used the key only
/// afterwards.
#[test]
fn what_a_script_has_published_is_heard_when_all_that_it_writes_is_there() {
    const LOOP: &str = "for n = 1, 3000000 do end redis.call('SET', 'de' .. 'rived', ARGV[1])";
    for layout in LAYOUTS {
        let server = laid_out(layout);
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            let _stop = AtEnd(&is_over);
            // Busy clients keep threads awake, so that no thread sleeps until it is told of the message.
            for _ in 0..8 {
                let mut busy = server.connect();
                let is_over = &is_over;
                scope.spawn(move || {
                    while !is_over.load(Ordering::Relaxed) {
                        ask(&mut busy, "PING");
                    }
                });
            }
            let (mut client, mut listener, mut reader) =
                (server.connect(), server.connect(), server.connect());
            ask(&mut listener, "SUBSCRIBE news");
            let mut check = |value: &str| {
                assert_eq!(listener.receive().to_string(), format!("[\"message\" \"news\" \"{value}\"]"));
                assert_eq!(ask(&mut reader, "GET derived"), format!("\"{value}\""));
            };
            let script = format!("redis.call('PUBLISH', 'news', ARGV[1]) {LOOP}");
            client.send(&["EVAL", &script, "0", "one"]);
            check("one");
            client.receive();
            ask(&mut client, "MULTI");
            client.command(&["EVAL", "return redis.call('PUBLISH', 'news', ARGV[1])", "0", "two"]);
            client.command(&["EVAL", LOOP, "0", "two"]);
            client.send(&["EXEC"]);
            check("two");
            assert_eq!(client.receive().to_string(), "[:1 (nil)]");
        });
    }
}
