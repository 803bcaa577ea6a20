//! Tests of an engine from the side of its host: the limits of a script.

use std::panic::{AssertUnwindSafe, catch_unwind};

use braid_protocol::{Reply, Resp, Words};
use braid_script::{
    Ended, Engine, Flavour, Handle, Host, LoadError, LogLevel, Settings, Stop, UnknownCommand, Version,
};

/// A host that answers commands by their name.
#[derive(Default)]
struct Answers {
    calls: Vec<Vec<String>>,
    log: Vec<(LogLevel, String)>,
    replication: Option<u8>,
    n_interrupts: u32,
    /// Ends the run at this interrupt.
    stop_at: Option<(u32, Stop)>,
}

impl Host for Answers {
    fn call(&mut self, words: Words<'_>, _: Resp, reply: &mut Vec<u8>) -> Result<(), Stop> {
        self.calls.push(words.iter().map(|word| word.escape_ascii().to_string()).collect());
        match words.get(0) {
            b"giveup" => return Err(Stop::GiveUp),
            b"panic" => panic!("the host panics"),
            b"fail" => reply.extend_from_slice(b"-WRONG kind\r\n"),
            b"nested" => {
                let mut engine = engine();
                let handle =
                    engine.compile(b"return redis.call('echo', 'inner')", "inner").expect("it is Lua");
                let mut inner = Answers::default();
                let mut reply = Reply::new(reply, Resp::V2);
                engine.run(handle, &[], &[], &mut inner, &mut reply)?;
            }
            b"echo" => {
                Reply::new(reply, Resp::V2).bulk(words.get(1));
            }
            _ => reply.extend_from_slice(b"+OK\r\n"),
        }
        Ok(())
    }

    fn log(&mut self, level: LogLevel, message: &[u8]) {
        self.log.push((level, message.escape_ascii().to_string()));
    }

    fn acl_check(&mut self, _: Words<'_>) -> Result<bool, UnknownCommand> {
        Ok(false)
    }

    fn set_replication(&mut self, flags: u8) {
        self.replication = Some(flags);
    }

    fn interrupt(&mut self) -> Result<(), Stop> {
        self.n_interrupts += 1;
        match self.stop_at {
            Some((at, stop)) if self.n_interrupts >= at => Err(stop),
            _ => Ok(()),
        }
    }
}

fn engine_of(flavour: Flavour, memory_limit: usize) -> Engine {
    let version = Version { text: "7.4.0".into(), number: 0x0007_0400 };
    Engine::new(&Settings { flavour, memory_limit, seed: None, version })
}

fn engine() -> Engine {
    engine_of(Flavour::Scripts, 64 << 20)
}

fn run_on(engine: &mut Engine, source: &str, host: &mut dyn Host) -> Result<String, Stop> {
    let handle = engine.compile(source.as_bytes(), "sha").expect("it is Lua");
    let reply = run_handle(engine, handle, host);
    engine.forget(handle);
    reply
}

fn run_handle(engine: &mut Engine, handle: Handle, host: &mut dyn Host) -> Result<String, Stop> {
    let mut out = Vec::new();
    let mut reply = Reply::new(&mut out, Resp::V2);
    engine.run(handle, &[b"k"], &[b"a"], host, &mut reply)?;
    Ok(out.escape_ascii().to_string())
}

fn run(source: &str) -> String {
    run_on(&mut engine(), source, &mut Answers::default()).expect("nothing stops it")
}

/// Returns the end of a run that the host stops at its third interrupt.
fn stopped(source: &str) -> Result<String, Stop> {
    let mut engine = engine();
    let mut host = Answers { stop_at: Some((3, Stop::GiveUp)), ..Answers::default() };
    let ended = run_on(&mut engine, source, &mut host);
    let next = run_on(&mut engine, "return 'alive'", &mut Answers::default());
    assert_eq!(next.as_deref(), Ok("$5\\r\\nalive\\r\\n"), "after {source}");
    ended
}

#[test]
fn who_is_killed_is_told_where() {
    let mut host = Answers { stop_at: Some((3, Stop::Killed)), ..Answers::default() };
    let reply =
        run_on(&mut engine(), "local n = 0\nwhile true do n = n + 1 end", &mut host).expect("a reply");
    assert!(reply.starts_with("-ERR Script killed by user with SCRIPT KILL... script: "), "{reply}");
    assert!(reply.ends_with(", on @user_script:2.\\r\\n"), "{reply}");
}

#[test]
fn nothing_catches_the_end_of_a_run() {
    for source in [
        "while true do end",
        "while true do pcall(function() while true do end end) end",
        "return pcall(function() while true do end end)",
        "return xpcall(function() while true do end end, function() return 1 end)",
        "return xpcall(function() while true do end end, function() while true do end end)",
        "return pcall(pcall, function() while true do end end)",
        "local co = coroutine.create(function() while true do end end) return {coroutine.resume(co)}",
        "local co = coroutine.wrap(function() while true do end end) return pcall(co)",
        "while true do coroutine.wrap(function() pcall(function() while true do end end) end)() end",
        "return load(function() while true do end end)",
        "table.sort({1, 2, 3}, function() while true do end end)",
        "local t = setmetatable({}, {__index = function() while true do end end}) return pcall(function() return t.x end)",
        "return tostring(setmetatable({}, {__tostring = function() while true do end end}))",
        "table.foreach({1}, function() while true do end end)",
        "for i = 1, 1e9 do pcall(string.rep) end",
        "while true do pcall(error, 'x') end",
        "while true do pcall(redis.call, 'fail') end",
        "while true do redis.pcall('fail') end",
        "local function f() pcall(f) while true do end end f()",
    ] {
        assert_eq!(stopped(source), Err(Stop::GiveUp), "{source}");
    }
}

#[test]
fn a_command_that_gives_up_ends_the_run_at_once() {
    for source in [
        "redis.call('giveup') redis.call('after')",
        "redis.pcall('giveup') redis.call('after')",
        "pcall(redis.call, 'giveup') redis.call('after')",
        "xpcall(function() redis.call('giveup') end, function() redis.call('after') end) redis.call('after')",
        "coroutine.wrap(function() redis.call('giveup') end)() redis.call('after')",
        "coroutine.resume(coroutine.create(function() redis.call('giveup') end)) redis.call('after')",
        "load(function() redis.call('giveup') end) redis.call('after')",
        "pcall(table.sort, {2, 1}, function() redis.call('giveup') end) redis.call('after')",
        "local ok, e = pcall(redis.call, 'giveup') error(e)",
    ] {
        let mut host = Answers::default();
        assert_eq!(run_on(&mut engine(), source, &mut host), Err(Stop::GiveUp), "{source}");
        assert_eq!(host.calls.len(), 1, "{source}");
    }
}

#[test]
fn a_run_that_is_given_up_leaves_random_numbers_as_they_were() {
    let mut engine = engine();
    let mut host = Answers::default();
    let ended = run_on(&mut engine, "math.random() redis.call('giveup')", &mut host);
    assert_eq!(ended, Err(Stop::GiveUp));
    let first = run_on(&mut engine, "return math.random(1000000)", &mut host);
    assert_eq!(first, Ok(run("return math.random(1000000)")));
}

#[test]
fn a_panic_of_the_host_comes_out_as_a_panic() {
    for source in [
        "return redis.call('panic')",
        "return pcall(redis.call, 'panic')",
        "return xpcall(function() return redis.call('panic') end, function() return 1 end)",
        "return coroutine.resume(coroutine.create(function() redis.call('panic') end))",
        "return coroutine.wrap(function() redis.call('panic') end)()",
        "return load(function() redis.call('panic') end)",
    ] {
        let mut engine = engine();
        let panicked =
            catch_unwind(AssertUnwindSafe(|| run_on(&mut engine, source, &mut Answers::default())));
        let panic = panicked.expect_err(source);
        assert_eq!(panic.downcast_ref::<&str>(), Some(&"the host panics"), "{source}");
        assert_eq!(run_on(&mut engine, "return 1", &mut Answers::default()).as_deref(), Ok(":1\\r\\n"));
    }
}

/// The errors of redis-server 7.0, with the position of the call.
#[test]
fn what_cannot_be_unpacked_is_complained_of_where_it_is_unpacked() {
    let missing = "-ERR user_script:2: Missing bytes in input. script: sha, on @user_script:2.";
    let long = format!("('\\145'):rep({})", 5000);
    for (call, error) in [
        ("cmsgpack.unpack('\\145')", missing),
        ("cmsgpack.unpack('\\220\\31\\64' .. ('\\1'):rep(5000))", missing),
        ("cmsgpack.unpack(('\\145'):rep(100))", missing),
        (
            "cmsgpack.unpack({})",
            "-ERR user_script:2: bad argument #1 to 'unpack' (string expected, got table) script: sha, on @user_script:2.",
        ),
        (
            "({f = cmsgpack.unpack}):f()",
            "-ERR user_script:2: calling 'f' on bad self (string expected, got table) script: sha, on @user_script:2.",
        ),
        ("cmsgpack.unpack('\\129\\192\\1')", "-ERR table index is nil script: sha, on @user_script:2."),
        (
            &format!("cmsgpack.unpack({long})"),
            "-ERR user_script:2: stack overflow (in function mp_decode_to_lua_array) script: sha, on @user_script:2.",
        ),
    ] {
        let source = format!("local a\na = {call}\nreturn 1");
        let escaped = error.replace('\'', "\\'");
        assert_eq!(run(&source), format!("{escaped}\\r\\n"), "{call}");
    }
}

#[test]
fn a_host_may_run_another_engine() {
    assert_eq!(
        run("return {redis.call('nested'), redis.call('echo', 'outer')}"),
        "*2\\r\\n$5\\r\\ninner\\r\\n$5\\r\\nouter\\r\\n"
    );
}

#[test]
fn errors_that_are_tables_without_a_text_get_a_reply() {
    let reply = "-ERR unknown error script: sha, on @user_script:1.\\r\\n";
    for source in [
        "error({})",
        "error(setmetatable({}, {__tostring = function() return 'x' end}))",
        "error(setmetatable({}, {__index = function() error('x') end}))",
        "error({err = {}})",
        "error({err = true})",
        "pcall(error, {}) error({})",
        "local ok, e = pcall(error, {}) error(e)",
    ] {
        assert_eq!(run(source), reply, "{source}");
    }
    assert!(run("error(function() end)").starts_with("-ERR function: 0x"));
}

#[test]
fn memory_is_limited_and_the_state_goes_on() {
    for source in [
        "local s = 'x' while true do s = s .. s end",
        "local t = {} while true do t[#t + 1] = {} end",
        "local t = {} for i = 1, 1e9 do t[i] = i end",
        "return ('x'):rep(1e9)",
        "return ('x'):rep(2^31 - 1)",
        "local s = ('x'):rep(1e6) local t = {} for i = 1, 1000 do t[i] = s end return table.concat(t)",
        "return loadstring('return \"' .. ('x'):rep(3e7) .. '\"')()",
        "local t = {} for i = 1, 1e9 do t[i] = redis.call('echo', i .. ('x'):rep(100000)) end",
    ] {
        let mut engine = engine();
        let reply = run_on(&mut engine, source, &mut Answers::default()).expect("nothing stops it");
        assert!(reply.contains("not enough memory"), "{source}: {}", &reply[..reply.len().min(200)]);
        for _ in 0..100 {
            let next = run_on(
                &mut engine,
                "local t = {} for i = 1, 1000 do t[i] = {} end return #t",
                &mut Answers::default(),
            );
            assert_eq!(next.as_deref(), Ok(":1000\\r\\n"), "after {source}");
        }
    }
}

#[test]
fn cve_2015_4335_bytecode_is_refused() {
    assert_eq!(run("return string.dump"), "$-1\\r\\n");
    assert!(
        run("return {loadstring('\\27Lua')}").starts_with("*1\\r\\n$-1")
            || run("return {loadstring('\\27Lua')}") == "*0\\r\\n"
    );
    assert_eq!(run("local f = loadstring('\\27LuaQ') return tostring(f)"), "$3\\r\\nnil\\r\\n");
    assert_eq!(
        run(
            "local n = 0 local f = load(function() n = n + 1 return n == 1 and '\\27LuaQ' or nil end) return tostring(f)"
        ),
        "$3\\r\\nnil\\r\\n"
    );
    assert!(engine().compile(b"\x1bLuaQ", "sha").is_err());
}

#[test]
fn cve_2025_46817_counts_out_of_range_are_refused() {
    for source in [
        "return {unpack({}, 1, 2147483647)}",
        "return {unpack({}, -2147483648, 2147483647)}",
        "return {unpack({}, -2, 2147483647)}",
        "return {unpack({}, 2^32 - 2, 2^31 - 1)}",
    ] {
        assert!(
            run(source).starts_with("-ERR user_script:1: too many results to unpack"),
            "{source}: {}",
            run(source)
        );
    }
    assert_eq!(run("local t = {1} table.insert(t, 2147483647, 5) return #t"), ":1\\r\\n");
    assert_eq!(stopped("local t = {} table.insert(t, -1e9, 5)"), Err(Stop::GiveUp));
    assert_eq!(run("local t = {} table.remove(t, -1e300) return 1"), ":1\\r\\n");
}

#[test]
fn cve_2025_46818_and_2022_24735_shared_tables_cannot_be_changed() {
    let changes = [
        "redis.x = 1",
        "redis.call = nil",
        "_G.x = 1",
        "string.rep = nil",
        "rawset(string, 'x', 1)",
        "rawset(_G, 'x', 1)",
        "rawset(math, 'floor', nil)",
        "table.insert(string, 1)",
        "table.insert(_G, 1, 1)",
        "setmetatable(string, {})",
        "setmetatable(_G, {})",
        "getmetatable('').__index = nil",
        "getmetatable('').__index.x = 1",
        "getmetatable(_G).__index = nil",
        "rawset(getmetatable(''), '__index', nil)",
        "rawset(getmetatable(_G), '__index', nil)",
        "coroutine.wrap = nil",
        "os.clock = nil",
        "rawget(_G, 'string').x = 1",
        "for _, t in pairs(_G) do if type(t) == 'table' then t.x = 1 end end",
        "setmetatable(getmetatable(''), {})",
        "table.sort({1, 2}, function() string.x = 1 end)",
        "server.call = nil",
    ];
    let world = "local seen, n = {}, 0 local function walk(t) if seen[t] then return end seen[t] = true for k, v in pairs(t) do n = n + 1 if type(v) == 'table' then walk(v) end end end walk(_G) return n";
    for change in changes {
        let mut engine = engine();
        let before = run_on(&mut engine, world, &mut Answers::default());
        let reply = run_on(&mut engine, change, &mut Answers::default()).expect("nothing stops it");
        assert!(
            reply.starts_with("-ERR ") && reply.contains("Attempt to modify a readonly table"),
            "{change}: {reply}"
        );
        assert_eq!(run_on(&mut engine, world, &mut Answers::default()), before, "{change}");
    }
}

#[test]
fn what_one_run_leaves_another_does_not_see() {
    let mut engine = engine();
    let mut host = Answers::default();
    for (source, reply) in [
        ("KEYS.x = 1 ARGV[2] = 'y' KEYS[1] = nil return 1", ":1\\r\\n"),
        ("return {tostring(KEYS.x), #ARGV, KEYS[1]}", "*3\\r\\n$3\\r\\nnil\\r\\n:1\\r\\n$1\\r\\nk\\r\\n"),
        ("collectgarbage('stop') collectgarbage('setpause', 100000) return 1", ":1\\r\\n"),
        ("redis.setresp(3) return true", "#t\\r\\n"),
        ("return true", ":1\\r\\n"),
    ] {
        let got = run_on(&mut engine, source, &mut host).expect("nothing stops it");
        assert!(got == reply || reply == "#t\\r\\n", "{source}: {got}");
    }
    for _ in 0..2000 {
        run_on(&mut engine, "local t = {} for i = 1, 100 do t[i] = {i} end", &mut host)
            .expect("nothing stops it");
    }
    assert!(engine.used_bytes() < 8 << 20, "the collector runs: {}", engine.used_bytes());
}

#[test]
fn cve_2024_46981_finalizers_have_no_effect() {
    assert!(run("return newproxy").contains("nonexistent global variable"));
    assert_eq!(
        run("setmetatable({}, {__gc = function() redis.call('late') end}) collectgarbage() return 1"),
        ":1\\r\\n"
    );
}

#[test]
fn deep_recursion_is_an_error() {
    for source in [
        "local function f() return 1 + f() end return f()",
        "local function f() return pcall(f) end f() local function g() g() end g()",
        "local t = setmetatable({}, {}) getmetatable(t).__index = function(t, k) return t[k] end return t.x",
        "local function f() coroutine.wrap(f)() end f()",
        "local function f() return loadstring('return ...')(f()) end return f()",
        "local t = {} t[1] = t for i = 1, 3 do table.sort({1, 2}, function() error('x') end) end",
    ] {
        assert!(run(source).starts_with("-ERR "), "{source}: {}", run(source));
    }
}

#[test]
fn deep_replies_end_in_an_error() {
    let reply = run("local t = {} t[1] = t return t");
    assert!(reply.ends_with("-ERR reached lua stack limit\\r\\n"), "{reply}");
    assert!(reply.len() < 10_000);
    assert!(run("local t = {} t.map = {t} return t").contains("-ERR reached lua stack limit"));
}

#[test]
fn cve_2025_49844_the_collector_rests_while_a_chunk_compiles() {
    let source = "for i = 1, 2000 do loadstring('local a = ' .. i .. ' return a', 'name' .. i .. ('x'):rep(1000)) end return 1";
    assert_eq!(run(source), ":1\\r\\n");
}

#[test]
fn cve_2025_46819_long_separators_are_refused() {
    let mut engine = engine();
    let source = format!("return [{}[x", "=".repeat(1 << 20));
    assert!(engine.compile(source.as_bytes(), "sha").is_err());
    assert!(engine.compile(&vec![b' '; (64 << 20) + 1], "sha").is_err());
}

#[test]
fn cve_2025_67733_line_ends_do_not_tear_replies() {
    assert_eq!(run("return {ok = 'a\\r\\n+b'}"), "+a  +b\\r\\n");
    assert_eq!(run("return {err = 'a\\r\\n+b'}"), "-a  +b\\r\\n");
    assert_eq!(run("return redis.error_reply('A b\\r\\n+c')"), "-A b  +c\\r\\n");
    assert_eq!(run("error({err = 'a\\r\\n+b'})"), "-a  +b script: sha, on @user_script:1.\\r\\n");
}

#[test]
fn the_end_says_whether_the_error_was_counted() {
    let mut engine = engine();
    for (source, ended) in [
        ("return 1", Ended::Value),
        ("return redis.call('fail')", Ended::Error { is_counted: true }),
        ("return redis.pcall('fail')", Ended::Error { is_counted: true }),
        ("error('x')", Ended::Error { is_counted: false }),
        ("return {err = 'X y'}", Ended::Error { is_counted: false }),
    ] {
        let handle = engine.compile(source.as_bytes(), "sha").expect("it is Lua");
        let mut out = Vec::new();
        let mut reply = Reply::new(&mut out, Resp::V2);
        let got = engine.run(handle, &[], &[], &mut Answers::default(), &mut reply);
        assert_eq!(got, Ok(ended), "{source}");
    }
}

#[test]
fn the_host_hears_of_logs_and_replication() {
    let mut host = Answers::default();
    let source = "redis.log(redis.LOG_WARNING, 'a', 1, 'b') redis.set_repl(redis.REPL_AOF) return redis.call('set', 'x', 1.5, 7)";
    run_on(&mut engine(), source, &mut host).expect("nothing stops it");
    assert_eq!(host.log, [(LogLevel::Warning, "a 1 b".to_owned())]);
    assert_eq!(host.replication, Some(1));
    assert_eq!(host.calls, [["set", "x", "1.5", "7"]]);
}

fn load(engine: &mut Engine, code: &str) -> Result<Vec<braid_script::FunctionSpec>, LoadError> {
    engine.load_library(code.as_bytes(), &mut Answers::default())
}

#[test]
fn libraries_register_functions_in_both_forms() {
    let mut engine = engine_of(Flavour::Functions, 64 << 20);
    let code = "#!lua name=lib\nlocal n = 0\nredis.register_function('f', function(keys, argv) n = n + 1 return {n, keys[1], argv[1]} end)\nredis.register_function{function_name='g', callback=function() return KEYS end, flags={'no-writes'}, description='d'}";
    let functions = load(&mut engine, code).expect("it loads");
    assert_eq!(functions.iter().map(|function| function.name.as_str()).collect::<Vec<_>>(), ["f", "g"]);
    assert_eq!(functions[1].description.as_deref(), Some(&b"d"[..]));
    assert_eq!(functions[1].flags.names().collect::<Vec<_>>(), ["no-writes"]);
    let mut call = |index: usize| {
        let mut out = Vec::new();
        let mut reply = Reply::new(&mut out, Resp::V2);
        let ended =
            engine.run(functions[index].handle, &[b"k"], &[b"a"], &mut Answers::default(), &mut reply);
        ended.expect("nothing stops it");
        out.escape_ascii().to_string()
    };
    assert_eq!(call(0), "*3\\r\\n:1\\r\\n$1\\r\\nk\\r\\n$1\\r\\na\\r\\n");
    assert_eq!(call(0), "*3\\r\\n:2\\r\\n$1\\r\\nk\\r\\n$1\\r\\na\\r\\n");
    assert_eq!(
        call(1),
        "-ERR user_function:4: Script attempted to access nonexistent global variable \\'KEYS\\' script: g, on @user_function:4.\\r\\n"
    );
}

#[test]
fn libraries_that_fail_say_why_as_in_redis() {
    let failed = "ERR Error registering functions: ";
    let missing = |name: &str| {
        format!(
            "{failed}ERR user_function:2: Script attempted to access nonexistent global variable '{name}'"
        )
    };
    let table = |text: &str| format!("{failed}ERR {text}");
    let names = "Library names can only contain letters, numbers, or underscores(_) and must be at least one character long";
    for (code, error) in [
        ("x x", "ERR Error compiling function: user_function:2: '=' expected near 'x'".to_owned()),
        ("return 1", "ERR No functions registered".to_owned()),
        ("error('x')", missing("error")),
        ("redis.call('get', 'x')", missing("call")),
        ("return math", missing("math")),
        ("return _G", missing("_G")),
        ("foo = 1", format!("{failed}ERR user_function:2: Attempt to modify a readonly table")),
        ("redis.register_function()", table("wrong number of arguments to redis.register_function")),
        (
            "redis.register_function('f')",
            table(
                "calling redis.register_function with a single argument is only applicable to Lua table (representing named arguments).",
            ),
        ),
        (
            "redis.register_function('f', 2)",
            table("second argument to redis.register_function must be a function"),
        ),
        ("redis.register_function({})", table("redis.register_function must get a function name argument")),
        (
            "redis.register_function({function_name='f'})",
            table("redis.register_function must get a callback argument"),
        ),
        (
            "redis.register_function({function_name='f', callback=1})",
            table("callback argument given to redis.register_function must be a function"),
        ),
        ("redis.register_function({foo=1})", table("unknown argument given to redis.register_function")),
        (
            "redis.register_function({flags=1})",
            table("flags argument to redis.register_function must be a table representing function flags"),
        ),
        ("redis.register_function({flags={'x'}})", table("unknown flag given")),
        ("redis.register_function('f-x', function() end)", table(names)),
        (
            "redis.register_function('f', function() end) redis.register_function('f', function() end)",
            table("Function already exists in the library"),
        ),
    ] {
        let mut engine = engine_of(Flavour::Functions, 64 << 20);
        let result = load(&mut engine, &format!("#!lua name=lib\n{code}"));
        assert_eq!(result.expect_err(code).to_string(), error, "{code}");
    }
}

#[test]
fn a_library_that_takes_too_long_is_ended() {
    let mut engine = engine_of(Flavour::Functions, 64 << 20);
    let mut host = Answers { stop_at: Some((1, Stop::TimeOver)), ..Answers::default() };
    let result = engine.load_library(b"#!lua name=lib\nwhile true do end", &mut host);
    assert_eq!(result, Err(LoadError::Stopped(Stop::TimeOver)));
    assert!(
        load(
            &mut engine,
            "#!lua name=lib\nredis.register_function('f', function() return redis.call('echo', 'x') end)"
        )
        .is_ok()
    );
}

#[test]
fn forgotten_scripts_make_room() {
    let mut engine = engine();
    let first = engine.compile(b"return 1", "a").expect("it is Lua");
    engine.forget(first);
    engine.forget(first);
    let second = engine.compile(b"return 2", "b").expect("it is Lua");
    assert_ne!(first, second);
    assert_eq!(run_handle(&mut engine, second, &mut Answers::default()).as_deref(), Ok(":2\\r\\n"));
}

#[test]
fn arguments_are_found_however_a_script_looks_for_them() {
    for source in [
        "return {KEYS[1], ARGV[1]}",
        "return {_G['KE' .. 'YS'][1], _G['AR' .. 'GV'][1]}",
        "return loadstring('return {KE' .. 'YS[1], AR' .. 'GV[1]}')()",
        "return {rawget(_G, 'KEYS')[1], rawget(_G, 'ARGV')[1]}",
    ] {
        assert_eq!(run(source), "*2\\r\\n$1\\r\\nk\\r\\n$1\\r\\na\\r\\n", "{source}");
    }
}

/// A loop of few instructions, each of which reads a long text, asks the host.
#[test]
fn functions_that_work_through_long_texts_can_be_ended() {
    for each in ["s = s:reverse()", "s = s:upper()", "s = s:lower()", "s = s:sub(2)", "s = ('%s'):format(s)"]
    {
        let source = format!("local s = ('x'):rep(4e6) for _ = 1, 30 do {each} end");
        assert_eq!(stopped(&source), Err(Stop::GiveUp), "{source}");
    }
    let source = "local s = ('x'):rep(4e6) for _ = 1, 30 do redis.sha1hex(s) end";
    assert_eq!(stopped(source), Err(Stop::GiveUp));
    assert_eq!(stopped("for _ = 1, 30 do local s = ('x'):rep(4e6) collectgarbage() end"), Err(Stop::GiveUp));
    assert_eq!(
        run(
            "return {('aB'):reverse(), ('aB'):upper(), ('aB'):sub(-1), ('%d%s'):format(1, 'x'), #('x'):rep(3)}"
        ),
        r"*5\r\n$2\r\nBa\r\n$2\r\nAB\r\n$1\r\nB\r\n$2\r\n1x\r\n:3\r\n"
    );
}

#[test]
fn the_memory_limit_can_change_between_runs() {
    let mut engine = engine();
    let source = "return #(('x'):rep(8e6) .. 'y')";
    let mut reply = || run_on(&mut engine, source, &mut Answers::default()).expect("nothing stops it");
    assert_eq!(reply(), r":8000001\r\n");
    let mut engine = self::engine();
    engine.limit_memory(4 << 20);
    let full = run_on(&mut engine, source, &mut Answers::default()).expect("nothing stops it");
    assert!(full.starts_with("-ERR not enough memory"), "{full}");
    engine.limit_memory(64 << 20);
    assert_eq!(run_on(&mut engine, source, &mut Answers::default()).as_deref(), Ok(r":8000001\r\n"));
}

/// A value that contains itself twice has no end.
#[test]
fn a_value_without_end_can_be_ended() {
    for source in [
        "local t = {} t[1] = t t[2] = t return t",
        "local t = {} t.map = {} t.map[1] = t t.map[2] = t return t",
        "local t = {} local u = {set = {}} u.set[u] = true u.set[t] = true t[1] = u t[2] = u return t",
    ] {
        assert_eq!(stopped(source), Err(Stop::GiveUp), "{source}");
    }
}

/// A value whose writing runs out of memory leaves no half in the reply.
#[test]
fn a_value_that_cannot_be_written_is_an_error_alone() {
    let mut engine = engine_of(Flavour::Scripts, 16 << 20);
    let source = "local root = {1, 2, 3, {}} local t = root[4] for _ = 1, 120 do t[1] = {} t = t[1] end
                  local full pcall(function() while true do full = {full} end end) return root";
    for _ in 0..3 {
        let reply = run_on(&mut engine, source, &mut Answers::default()).expect("nothing stops it");
        let is_whole = reply.starts_with(r"*4\r\n:1\r\n:2\r\n:3\r\n*1\r\n");
        assert!(is_whole || reply.starts_with("-ERR not enough memory"), "{}", &reply[..80.min(reply.len())]);
    }
}

#[test]
fn numbers_are_arguments_as_since_redis_7_2() {
    for (number, text) in [
        ("2^62", "4611686018427387904"),
        ("-2^62", "-4611686018427387904"),
        ("2^63", "9223372036854776000"),
        ("2^53 + 2", "9007199254740994"),
        ("1e17", "100000000000000000"),
        ("1e100", "1e+100"),
        ("-zero", "0"),
        ("0.1", "0.1"),
        ("1/3", "0.3333333333333333"),
        ("-1e-7", "-1e-7"),
        ("1/0", "inf"),
        ("zero/zero", "-nan"),
        ("-(zero/zero)", "nan"),
    ] {
        let mut host = Answers::default();
        let source = format!("local zero = 0 redis.call('echo', {number})");
        run_on(&mut engine(), &source, &mut host).expect("it runs");
        assert_eq!(host.calls[0][1], text, "{number}");
    }
}
