//! Hostile scripts: endless, unbounded, or attacking data that other scripts rely on. Other clients are
//! served meanwhile, and afterwards the server is as before.

use crate::support::{
    Client, Reply, Server,
    crowd::{ask, figure, laid_out, until},
};

/// The additional memory that may be in use after hostile scripts. Threads and allocators keep it for later
/// scripts.
const SPARE_BYTES: usize = 256 << 20;

/// Scripts that only SCRIPT KILL ends. Each round is short, because a single library call cannot be
/// interrupted.
const ENDLESS: [&str; 51] = [
    // Loops.
    "while true do end",
    "local function f() return f() end f()",
    "local t = setmetatable({}, {__index = function(t, k) return k end}) while true do local x = t[1] end",
    "local t = {} for n = 1, 10000 do t[n] = n end while true do for k in pairs(t) do end end",
    "while true do tostring({}) end",
    "while true do setmetatable({}, {__gc = function() while true do end end, __mode = 'k'}) end",
    // Caught errors.
    "while true do pcall(function() while true do end end) end",
    "while true do pcall(error, {}) end",
    "while true do xpcall(function() local x = nil + 1 end, function(e) return {e} end) end",
    "xpcall(error, function() while true do end end)",
    "local function h(e) return error(e) end while true do xpcall(error, h) end",
    "local function f() pcall(f) end while true do f() end",
    "while true do local function f() return 1 + f() end pcall(f) end",
    "while true do redis.pcall('nosuch') end",
    // Coroutines.
    "coroutine.wrap(function() while true do end end)()",
    "local c = coroutine.wrap(function() while true do coroutine.yield() end end) while true do c() end",
    "while true do coroutine.wrap(function() coroutine.yield(1) end)() end",
    "while true do coroutine.resume(coroutine.create(function() while true do end end)) end",
    "local function f() coroutine.wrap(f)() end while true do pcall(f) end",
    "while true do pcall(coroutine.wrap(function() pcall(function() while true do end end) end)) end",
    // Texts and patterns.
    "string.gsub(('a'):rep(100000), '.', function() while true do end end)",
    "while true do pcall(string.gsub, 'abc', '.', function() while true do end end) end",
    "while true do string.gsub(('a'):rep(1000), '.', function(c) return c .. c end) end",
    "string.find(('a'):rep(60), ('a*'):rep(30) .. 'b')",
    "while true do pcall(string.find, ('a'):rep(400000), ('a?'):rep(400000)) end",
    "while true do string.match(('a'):rep(5000), '.-.-.-b') end",
    "string.gsub(('a'):rep(60), ('a-'):rep(30) .. 'b', '')",
    "while true do for w in string.gmatch(('a '):rep(100), '%a+') do end end",
    "while true do local s = ('x'):rep(100):rep(100):rep(10) end",
    "local s = ('x'):rep(1000000) while true do s:sub(2) end",
    "while true do string.format('%99.99f', 1 / 3) end",
    "while true do redis.sha1hex('x') end",
    // Data.
    "local s = '[' .. ('1,'):rep(1000000) .. '1]' while true do cjson.decode(s) end",
    "local t = {} for n = 1, 100000 do t[n] = n end while true do cjson.encode(t) end",
    "local t = {} for n = 1, 100000 do t[n] = n end while true do cmsgpack.unpack(cmsgpack.pack(t)) end",
    "while true do struct.unpack('>I4', struct.pack('>I4', 7)) end",
    "while true do bit.bxor(1, 2) end",
    // Tables.
    "local t = {} for n = 1, 10000 do t[n] = 'xxxxxxxxxx' end while true do table.concat(t) end",
    "local t = {} for n = 1, 10000 do t[n] = n end while true do table.sort(t, function(a, b) return a > b end) end",
    "local t = {} for n = 1, 100000 do t[n] = n % 7 end while true do pcall(table.sort, t, function() return true end) end",
    "table.sort({3, 2, 1}, function() while true do end end)",
    "local t = {} for n = 1, 100000 do t[n] = n end while true do table.insert(t, 1, 0) table.remove(t, 1) end",
    "while true do pcall(unpack, {}, 1, 7000) end",
    // Code.
    "load(function() while true do end end)",
    "load(function() return 'x = 1 ' end)",
    "while true do loadstring(('x = 1 '):rep(1000)) end",
    "loadstring('while true do end')()",
    // Commands.
    "while true do redis.call('PING') end",
    "while true do redis.call('GET', KEYS[1]) end",
    "while true do redis.setresp(3) redis.setresp(2) end",
    "while true do redis.call('GET', 'reached:' .. #tostring({})) end",
];

/// Scripts that take all the memory that they may have, and then run without end.
const GREEDY: [&str; 4] = [
    "pcall(function() local s = 'x' while true do s = s .. s end end) while true do end",
    "pcall(function() local t, n = {}, 0 while true do n = n + 1 t[n] = n end end) while true do end",
    "pcall(function() local t = {} while true do t = {t, function() return t end} end end) while true do end",
    "pcall(function() local s = ('x'):rep(1000000) return s:gsub('.', s) end) while true do end",
];

/// Scripts that end by themselves, and a part of their reply.
const ENDING: &[(&str, &str)] = &[
    // Deep recursion.
    ("local function f() return 1 + f() end return f()", "stack overflow"),
    ("local function f() return pcall(f) end return f()", ":1"),
    ("local function f() pcall(f) return 'back' end return f()", "\"back\""),
    ("local function f() return coroutine.wrap(f)() end return f()", "-ERR "),
    (
        "local function f(n) local ok, e = coroutine.resume(coroutine.create(f), n + 1) return 'back' end return f(1)",
        "\"back\"",
    ),
    ("return (xpcall(error, function(e) error(e) end)) or 'caught'", "\"caught\""),
    ("local function h() return xpcall(error, h) end return tostring(xpcall(error, h))", "\"false\""),
    ("local function f() return string.gsub('a', 'a', f) end return f()", "-ERR "),
    ("local function f() table.sort({3, 2, 1}, f) end f()", "-ERR "),
    ("local t = {} setmetatable(t, {__index = t}) return t.x", "loop in gettable"),
    ("local t = setmetatable({}, {__index = function(t, k) return t[k + 1] end}) return t[1]", "-ERR "),
    (
        "local t = setmetatable({}, {__tostring = function(t) return tostring(t) end}) return tostring(t)",
        "-ERR ",
    ),
    ("local t = setmetatable({}, {__call = function(t) return t() + 1 end}) return t()", "-ERR "),
    ("local t = {} for n = 1, 100000 do t = {t} end return t", "reached lua stack limit"),
    ("local t = {} t[1] = t return t", "reached lua stack limit"),
    ("local t = {} t.map = t redis.setresp(3) return t", "reached lua stack limit"),
    ("local t = {} for n = 1, 100000 do t = {t} end return cjson.encode(t)", "excessive nesting"),
    ("local t = {} t[1] = t return cjson.encode(t)", "excessive nesting"),
    ("return cjson.decode(('['):rep(100000))", "too many nested data structures"),
    ("local t = {} t[1] = t return #cmsgpack.pack(t)", ":"),
    ("return loadstring('return ' .. ('('):rep(100000) .. '1') or 'refused'", "\"refused\""),
    // Errors that are no texts: the first crashes redis-server 7.0.15.
    ("error({})", "-ERR unknown error script: "),
    ("error({err = {}})", "-ERR unknown error script: "),
    ("error(setmetatable({}, {__index = function() error('x') end}))", "-ERR unknown error script: "),
    ("error(setmetatable({}, {__tostring = function() error('x') end}))", "-ERR unknown error script: "),
    ("coroutine.wrap(function() error({}) end)()", "-ERR unknown error script: "),
    ("error(nil)", "-ERR nil script: "),
    ("error()", "-ERR nil script: "),
    ("error({err = 'MINE text'})", "-MINE text script: "),
    // Errors within metamethods.
    ("return setmetatable({}, {__index = function() error('x') end}).y", "-ERR user_script:1: x script: "),
    ("return setmetatable({}, {__index = function() error('x') end})", "[]"),
    ("local t = setmetatable({}, {__eq = error}) return t == setmetatable({}, getmetatable(t))", "-ERR "),
    ("return setmetatable({}, {__concat = function() error({}) end}) .. 'x'", "-ERR unknown error script: "),
    (
        "local t = setmetatable({}, {__lt = function() error('x') end}) table.sort({t, t, t})",
        "-ERR user_script:1: x",
    ),
    // Replies that would be several.
    ("return {err = 'a\\r\\n:1'}", "-a  :1"),
    ("return {ok = 'a\\r\\n:1'}", "+a  :1"),
    ("return redis.error_reply('a\\r\\n:1')", "-ERR a  :1"),
    // Tables that all scripts share.
    ("setmetatable(_G, {})", "Attempt to modify a readonly table"),
    ("setmetatable(string, {})", "Attempt to modify a readonly table"),
    ("setmetatable(redis, nil)", "Attempt to modify a readonly table"),
    ("getmetatable('').__index = function() return 'x' end", "-ERR "),
    ("string.format = nil", "Attempt to modify a readonly table"),
    ("redis.call = function() return 'x' end", "Attempt to modify a readonly table"),
    ("rawset(redis, 'call', 1)", "Attempt to modify a readonly table"),
    ("rawset(_G, 'x', 1)", "Attempt to modify a readonly table"),
    ("table.insert(table, 1)", "Attempt to modify a readonly table"),
    ("table.remove(redis)", "(nil)"),
    ("table.sort(redis)", "(nil)"),
    ("for k in pairs(redis) do redis[k] = nil end", "Attempt to modify a readonly table"),
    ("_G.x = 1", "Attempt to modify a readonly table"),
    ("x = 1", "Attempt to modify a readonly table"),
    ("getfenv(0).x = 1", "nonexistent global variable 'getfenv'"),
    ("setfenv(1, {}) x = 1 return x", "nonexistent global variable 'setfenv'"),
    ("KEYS[1] = 'other' KEYS[9] = 1 setmetatable(KEYS, {__index = error}) return KEYS[1]", "\"other\""),
    // Code that is no text.
    ("return loadstring('\\27Lua') or 'refused'", "\"refused\""),
    ("return loadstring('\\27LuaQ\\0\\1\\4\\8\\4\\8\\0') or 'refused'", "\"refused\""),
    (
        "local n = 0 return load(function() n = n + 1 if n == 1 then return '\\27Lua' end end) or 'refused'",
        "\"refused\"",
    ),
    ("return string.dump(function() end)", "-ERR "),
    ("\u{1b}Lua", "-ERR Error compiling script"),
    // Counts and sizes.
    ("return string.rep('x', 1e10)", "not enough memory"),
    ("return string.rep('x', 2^31 - 1)", "not enough memory"),
    ("return (unpack({}, 1, 1e9))", "too many results to unpack"),
    ("return (unpack({}, -2147483648, 2147483647))", "too many results to unpack"),
    ("return ('x'):byte(1, 1e9)", ":120"),
    ("return #table.concat({}, 'x', 1, 1e9)", "-ERR "),
    ("return struct.pack('>I2147483648', 10)", "-ERR "),
    ("return struct.unpack('c2147483647', 'x', 4)", "-ERR "),
    ("return struct.unpack('s', ('x'):rep(1000))", "-ERR "),
    ("return cmsgpack.unpack_limit('abc', 1, -5)", "-ERR "),
    ("return select(-1)", "-ERR "),
    // Functions that scripts lack.
    ("return dofile('/etc/passwd')", "nonexistent global variable 'dofile'"),
    ("return require('os')", "nonexistent global variable 'require'"),
    ("return io", "nonexistent global variable 'io'"),
    ("return debug", "nonexistent global variable 'debug'"),
    ("return newproxy()", "nonexistent global variable 'newproxy'"),
    ("return os.exit()", "-ERR "),
    ("return redis.call('EVAL', 'return 1', 0)", "not allowed from script"),
    ("return redis.call('SHUTDOWN')", "not allowed from script"),
];

/// A script that uses everything that scripts share, and reports its findings.
const CENSUS: &str = "
    local n_globals, n_of_redis = 0, 0
    for _ in pairs(_G) do n_globals = n_globals + 1 end
    for _ in pairs(redis) do n_of_redis = n_of_redis + 1 end
    local sorted = {3, 1, 2}
    table.sort(sorted)
    local caught, why = pcall(error, 'e')
    local _, refused = pcall(function() return undefined end)
    redis.call('SET', KEYS[1], ARGV[1])
    return {
        n_globals, n_of_redis, #KEYS, #ARGV, KEYS[1], redis.call('GET', KEYS[1]), table.concat(sorted), tostring(caught), why, refused,
        string.format('%s %d', 'x', 5), ('a,b'):gsub(',', ';'), cjson.encode(cjson.decode('[1,{\"a\":null}]')),
        coroutine.wrap(function() return coroutine.yield('y') end)(), math.floor(2.5), bit.band(7, 2), type(getmetatable('')),
        cmsgpack.unpack(cmsgpack.pack('p')), struct.unpack('b', struct.pack('b', 5)), redis.sha1hex('')
    }";

/// Takes the census with two texts. One has run before and runs on the client's thread. The other is new and
/// runs elsewhere.
fn census(client: &mut Client, n_taken: &mut usize) -> String {
    *n_taken += 1;
    let here = eval(client, CENSUS, "census").to_string();
    let elsewhere = eval(client, &format!("{CENSUS} -- {n_taken}"), "census").to_string();
    assert_eq!(here, elsewhere);
    here
}

fn eval(client: &mut Client, script: &str, key: &str) -> Reply {
    client.command(&["EVAL", script, "1", key, "value"])
}

/// Keys that are not all in the shard that a script holds.
const ELSEWHERE: [&str; 4] = ["elsewhere:0", "elsewhere:1", "elsewhere:2", "elsewhere:3"];

fn fill_elsewhere(client: &mut Client) {
    ELSEWHERE.iter().for_each(|key| assert_eq!(ask(client, &format!("SET {key} served")), "+OK"));
}

/// Whether a client that needs nothing of the running script is served.
fn is_served(client: &mut Client) -> bool {
    ELSEWHERE.iter().any(|key| ask(client, &format!("GET {key}")) == "\"served\"")
}

/// Waits until a script that holds a key is busy, and kills it. Before that, another client must be served.
fn kill_the_one_that_holds(key: &str, other: &mut Client) {
    until("it is busy", || ask(other, &format!("GET {key}")).starts_with("-BUSY"));
    assert_eq!(ask(other, "PING"), "+PONG");
    assert!(is_served(other));
    until("it may be killed", || ask(other, "SCRIPT KILL") == "+OK");
}

fn expect_killed(client: &mut Client, script: &str) {
    let end = client.receive().to_string();
    assert!(end.starts_with("-ERR Script killed by user with SCRIPT KILL..."), "{script}: {end}");
}

#[test]
fn scripts_without_end_are_killed_and_others_served_meanwhile() {
    for layout in [(1, 1024), (4, 1024)] {
        let server = laid_out(layout);
        let (mut client, mut other) = (server.connect(), server.connect());
        ask(&mut other, "CONFIG SET busy-reply-threshold 10");
        ask(&mut other, "CONFIG SET lua-memory-limit 512mb");
        fill_elsewhere(&mut other);
        let mut n_taken = 0;
        let before = census(&mut client, &mut n_taken);
        let n_bytes_before = figure(&mut other, "used_memory_rss");
        for script in ENDLESS {
            println!("{script}");
            client.send(&["EVAL", script, "1", "held"]);
            kill_the_one_that_holds("held", &mut other);
            expect_killed(&mut client, script);
            assert_eq!(census(&mut client, &mut n_taken), before, "after {script}");
        }
        assert_eq!(ask(&mut other, "SCRIPT KILL"), "-NOTBUSY No scripts in execution right now.");
        give_back(&mut other, n_bytes_before, &mut n_taken);
    }
}

/// The ways to run a script, other than EVAL of a new text.
#[test]
fn functions_and_known_scripts_without_end_are_killed() {
    const SPIN: &str = "while ARGV[1] == 'endless' do end return 'short'";
    for layout in [(1, 1024), (4, 1024)] {
        let server = laid_out(layout);
        let (mut client, mut other) = (server.connect(), server.connect());
        ask(&mut other, "CONFIG SET busy-reply-threshold 10");
        ask(&mut other, "CONFIG SET lua-memory-limit 512mb");
        fill_elsewhere(&mut other);
        let library = format!(
            "#!lua name=mine\nredis.register_function{{function_name = 'spin', flags = {{'no-writes'}},
                callback = function(KEYS, ARGV) {SPIN} end}}"
        );
        assert_eq!(client.command(&["FUNCTION", "LOAD", &library]).text().as_deref(), Some("mine"));
        let digest = client.command(&["SCRIPT", "LOAD", SPIN]).text().expect("a digest");
        let ways = [
            ["EVAL", SPIN],
            ["EVALSHA", &digest],
            ["EVAL_RO", SPIN],
            ["FCALL", "spin"],
            ["FCALL_RO", "spin"],
        ];
        for [command, named] in ways {
            // It is known as short, so it begins on its client's thread.
            for _ in 0..3 {
                assert_eq!(
                    client.command(&[command, named, "1", "held", "x"]).text().as_deref(),
                    Some("short")
                );
            }
            client.send(&[command, named, "1", "held", "endless"]);
            until("it is busy", || ask(&mut other, "GET held").starts_with("-BUSY"));
            assert!(is_served(&mut other));
            let kill = if command.starts_with('F') { "FUNCTION KILL" } else { "SCRIPT KILL" };
            until("it may be killed", || ask(&mut other, kill) == "+OK");
            expect_killed(&mut client, command);
        }
        // Within EXEC, as a new text.
        ask(&mut client, "MULTI");
        client.command(&["SET", "held", "before"]);
        client.command(&["EVAL", "while true do pcall(function() while true do end end) end", "1", "held"]);
        client.command(&["SET", "held", "after"]);
        client.send(&["EXEC"]);
        kill_the_one_that_holds("held", &mut other);
        let replies = client.receive().to_string();
        assert!(replies.contains("-ERR Script killed by user with SCRIPT KILL..."), "{replies}");
        assert_eq!(ask(&mut other, "GET held"), "\"after\"");
    }
}

#[test]
fn scripts_that_take_all_memory_get_an_error_and_give_it_back() {
    for layout in [(1, 16), (4, 16)] {
        let server = laid_out(layout);
        let (mut client, mut other) = (server.connect(), server.connect());
        ask(&mut other, "CONFIG SET busy-reply-threshold 10");
        ask(&mut other, "CONFIG SET lua-memory-limit 512mb");
        fill_elsewhere(&mut other);
        let mut n_taken = 0;
        let before = census(&mut client, &mut n_taken);
        let n_bytes_before = figure(&mut other, "used_memory_rss");
        for script in GREEDY {
            println!("{script}");
            client.send(&["EVAL", script, "1", "held"]);
            kill_the_one_that_holds("held", &mut other);
            expect_killed(&mut client, script);
            assert_eq!(census(&mut client, &mut n_taken), before, "after {script}");
            give_back(&mut other, n_bytes_before, &mut n_taken);
        }
        // The error is not caught.
        client.send(&["EVAL", "local s = 'x' while true do s = s .. s end", "1", "held"]);
        assert_eq!(ask(&mut other, "PING"), "+PONG");
        let end = client.receive().to_string();
        assert!(end.starts_with("-ERR not enough memory"), "{end}");
        assert_eq!(census(&mut client, &mut n_taken), before);
        give_back(&mut other, n_bytes_before, &mut n_taken);
    }
}

/// Waits until the server uses hardly more memory than before. A thread frees the memory of its scripts when
/// the next ones run.
fn give_back(client: &mut Client, n_bytes_before: usize, n_taken: &mut usize) {
    until("memory is given back", || {
        for _ in 0..60 {
            census(client, n_taken);
        }
        figure(client, "used_memory_rss") < n_bytes_before + SPARE_BYTES
    });
}

#[test]
fn scripts_that_come_once_are_forgotten() {
    const N_SCRIPTS: usize = 10_000;
    const N_AT_ONCE: usize = 100;
    for layout in [(1, 16), (4, 16)] {
        let server = laid_out(layout);
        let mut client = server.connect();
        let n_bytes_before = figure(&mut client, "used_memory_rss");
        let padding = "x".repeat(2000);
        for first in (0..N_SCRIPTS).step_by(N_AT_ONCE) {
            let numbers = first..first + N_AT_ONCE;
            for n in numbers.clone() {
                client.send(&["EVAL", &format!("local text = '{padding}' return #text + {n}"), "0"]);
            }
            for n in numbers {
                assert_eq!(client.receive().integer(), Some((padding.len() + n) as i64));
            }
        }
        assert!(figure(&mut client, "number_of_cached_scripts") <= 500);
        assert!(figure(&mut client, "used_memory_scripts_eval") < 500 * 2 * padding.len());
        assert!(figure(&mut client, "used_memory_rss") < n_bytes_before + SPARE_BYTES);
        // A forgotten script is known again.
        let script = format!("local text = '{padding}' return #text + 0");
        assert_eq!(client.command(&["EVAL", &script, "0"]).integer(), Some(padding.len() as i64));
    }
}

#[test]
fn scripts_that_break_rules_get_errors_and_change_nothing() {
    for layout in [(1, 1024), (4, 1)] {
        let server = laid_out(layout);
        let (mut client, mut other) = (server.connect(), server.connect());
        let mut n_taken = 0;
        let before = census(&mut client, &mut n_taken);
        // First as a new text on another thread, then on the client's thread.
        for round in 0..3 {
            for (script, expected) in ENDING {
                client.send(&["EVAL", script, "1", "key"]);
                assert_eq!(ask(&mut other, "PING"), "+PONG");
                let reply = client.receive().to_string();
                assert!(reply.contains(expected), "{script}: {reply}, not {expected}, in round {round}");
                assert_eq!(census(&mut client, &mut n_taken), before, "after {script}");
            }
        }
        // Changes of KEYS affect only the script's own table.
        assert_eq!(ask(&mut other, "EXISTS other key"), ":0");
    }
}

/// Each compiled script used to take one of 8000 places in its thread's state for ever. Then nothing compiled
/// there, even once all were forgotten.
#[test]
fn scripts_that_stay_leave_room_for_others() {
    const N_SCRIPTS: i64 = 10_000;
    let server = laid_out((1, 16));
    let mut client = server.connect();
    let digests: Vec<String> = (0..N_SCRIPTS)
        .map(|n| client.command(&["SCRIPT", "LOAD", &format!("return {n}")]).text().expect("a digest"))
        .collect();
    for (n, digest) in (0..N_SCRIPTS).zip(&digests) {
        let reply = client.command(&["EVALSHA", digest, "0"]);
        assert_eq!(reply.integer(), Some(n), "{reply}");
    }
    assert_eq!(ask(&mut client, "SCRIPT FLUSH"), "+OK");
    let reply = client.command(&["EVAL", "return 'new'", "0"]);
    assert_eq!(reply.text().as_deref(), Some("new"));
}

/// A short script may become endless with other arguments. Where it can no longer be moved, it keeps its
/// thread and the clients of that thread. New clients are served, and can end it.
#[test]
fn scripts_that_keep_a_thread_leave_another_to_who_comes() {
    let spin = "while ARGV[1] == 'endless' do end return 'short'";
    let written = format!("redis.call('SET', KEYS[1], 1) {spin}");
    for (text, is_in_exec) in [(spin, true), (&written, false)] {
        let mut server = laid_out((2, 16));
        let mut client = server.connect();
        ask(&mut client, "CONFIG SET busy-reply-threshold 10");
        for _ in 0..3 {
            assert_eq!(client.command(&["EVAL", text, "1", "held", "x"]).text().as_deref(), Some("short"));
        }
        let endless = ["EVAL", text, "1", "held", "endless"];
        if is_in_exec {
            assert_eq!(ask(&mut client, "MULTI"), "+OK");
            assert_eq!(client.command(&endless).to_string(), "+QUEUED");
            client.send(&["EXEC"]);
        } else {
            client.send(&endless);
        }
        for _ in 0..3 {
            let mut other = server.connect();
            assert_eq!(ask(&mut other, "PING"), "+PONG");
            until("it is busy", || ask(&mut other, "GET held").starts_with("-BUSY"));
        }
        let mut other = server.connect();
        if is_in_exec {
            assert_eq!(ask(&mut other, "SCRIPT KILL"), "+OK");
            client.receive();
        }
        other.send(&["SHUTDOWN", "NOSAVE"]);
        assert!(server.await_end().success());
    }
}

/// Scripts that waited for the lane, or for a shard on their way, used to get no reply.
#[test]
fn scripts_that_wait_for_one_without_end_are_told_that_it_is_busy() {
    let server = laid_out((2, 1024));
    let (mut client, mut other) = (server.connect(), server.connect());
    ask(&mut other, "CONFIG SET busy-reply-threshold 10");
    let waiting = [
        "return redis.call('GET', redis.call('GET', 'c') or 'held')",
        "return redis.call('SET', redis.call('GET', 'c') or 'd', 1)",
    ];
    for text in waiting {
        // A script that has run is known to be short, and does not go to a heavy-work thread.
        assert!(!eval(&mut other, text, "key").is_error());
    }
    let endless =
        "redis.call('SET', KEYS[1], redis.call('GET', redis.call('GET', 'a') or 'b') or 1) while true do end";
    client.send(&["EVAL", endless, "1", "held"]);
    until("it is busy", || ask(&mut other, "GET held").starts_with("-BUSY"));
    for text in waiting {
        let reply = eval(&mut other, text, "key").to_string();
        assert!(reply.starts_with("-BUSY"), "{text}: {reply}");
    }
}

/// Output of a run is kept back while the run may be given up. It used to be kept without a bound.
#[test]
fn scripts_that_do_much_take_little_memory() {
    const LOG: &str =
        "local s = ('x'):rep(1000) for n = 1, 1000000 do redis.log(redis.LOG_DEBUG, s) end return 1";
    const CALL: &str = "for n = 1, 5000000 do redis.call('PING') end return 1";
    for text in [LOG, CALL] {
        let server = laid_out((1, 16));
        let mut client = server.connect();
        let n_bytes_before = peak_bytes(&server);
        assert_eq!(eval(&mut client, text, "key").integer(), Some(1));
        let n_more = peak_bytes(&server) - n_bytes_before;
        assert!(n_more < SPARE_BYTES / 4, "{text}: {n_more} bytes");
    }
}

/// Returns the largest memory of a server so far.
fn peak_bytes(server: &Server) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.pid())).expect("the server runs");
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("Linux tells the peak");
    let kilobytes: usize = peak.trim().trim_end_matches(" kB").parse().expect("a number");
    kilobytes * 1024
}

/// Long library calls did not count as work, so the engine rarely asked whether to continue.
#[test]
fn scripts_of_long_calls_leave_their_threads_clients_alone() {
    let server = laid_out((1, 16));
    let (mut client, mut other) = (server.connect(), server.connect());
    ask(&mut other, "CONFIG SET busy-reply-threshold 10");
    for call in ["s:upper()", "s:lower()", "s:reverse()", "string.format('%q', s)"] {
        let text =
            format!("local s = ('x'):rep(ARGV[1]) while ARGV[2] == 'endless' do {call} end return 'short'");
        for _ in 0..3 {
            let reply = client.command(&["EVAL", &text, "1", "held", "1", "x"]);
            assert_eq!(reply.text().as_deref(), Some("short"));
        }
        client.send(&["EVAL", &text, "1", "held", "50000000", "endless"]);
        until("it is busy", || ask(&mut other, "GET held").starts_with("-BUSY"));
        until("it may be killed", || ask(&mut other, "SCRIPT KILL") == "+OK");
        expect_killed(&mut client, call);
    }
}

/// Output of a run is kept back only while it is small. This holds even if all its commands are refused.
#[test]
fn what_a_run_keeps_back_is_bounded() {
    for refused in ["'nosuch'", "'get'", "'subscribe', 'channel'"] {
        let server = Server::start(&["--io-threads", "2", "--shards", "64", "--busy-reply-threshold", "10"]);
        let (mut client, mut other) = (server.connect(), server.connect());
        client.send(&["EVAL", &format!("while true do redis.pcall({refused}) end"), "0"]);
        until("its errors are counted", || ask(&mut other, "INFO errorstats").contains("errorstat_ERR:"));
        until("it is killed", || ask(&mut other, "SCRIPT KILL") == "+OK");
        let reply = client.receive().to_string();
        assert!(reply.contains("Script killed by user"), "{reply}");
    }
}
