//! Predictions for scripts, against the keys that Lua itself uses.
//!
//! Some scripts are like those of widespread libraries, others are made up.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;

use proptest::prelude::*;

use super::*;

/// A table of a few commands.
struct Table;

impl Commands for Table {
    fn command(&self, name: &[u8], subcommand: Option<&[u8]>) -> Option<Command> {
        let range = |first, last, step| Reach::Arguments(vec![KeysAt::Range { first, last, step }]);
        let name = name.to_ascii_lowercase();
        let reach = match &*name {
            b"del" | b"mget" | b"exists" | b"unlink" => range(1, -1, 1),
            b"mset" => range(1, -1, 2),
            b"blpop" => range(1, -2, 1),
            b"rename" | b"rpoplpush" | b"smove" => range(1, 2, 1),
            b"time" | b"publish" => Reach::Arguments(Vec::new()),
            b"scan" | b"keys" => Reach::Keyspace,
            b"xgroup" if subcommand.is_some_and(|name| name.eq_ignore_ascii_case(b"create")) => {
                range(2, 2, 1)
            }
            b"zunionstore" => Reach::Arguments(vec![
                KeysAt::Range { first: 1, last: 1, step: 1 },
                KeysAt::Counted { count: 2, step: 1 },
            ]),
            b"sort" => Reach::Arguments(vec![
                KeysAt::Range { first: 1, last: 1, step: 1 },
                KeysAt::After { word: "STORE", from: 2 },
            ]),
            b"xread" => Reach::Arguments(vec![KeysAt::HalfAfter { word: "STREAMS", from: 1 }]),
            b"nonsense" => return None,
            _ => range(1, 1, 1),
        };
        let reads: [&[u8]; 10] =
            [b"get", b"mget", b"exists", b"hget", b"hgetall", b"time", b"scan", b"keys", b"xread", b"pttl"];
        Some(Command { writes: !reads.contains(&&*name), reach })
    }
}

fn of(source: &str) -> Analysis {
    analyse(source.as_bytes(), &Table)
}

/// The keys predicted for three KEYS and five ARGV, sorted.
fn keys(analysis: &Analysis) -> Vec<String> {
    let mut found = BTreeSet::new();
    let each = &mut |key: &[u8]| {
        found.insert(String::from_utf8_lossy(key).into_owned());
    };
    analysis.keys(&[b"k1", b"k2", b"k3"], &[b"1", b"a2", b"{t}:", b"44.5", b"Five"], each).unwrap();
    found.into_iter().collect()
}

#[track_caller]
fn declared(source: &str) {
    let analysis = of(source);
    assert_eq!((analysis.class, analysis.reason), (Class::Declared, None), "{source}");
}

#[track_caller]
fn derived(source: &str, expected: &[&str]) {
    let analysis = of(source);
    assert_eq!((analysis.class, analysis.reason), (Class::Derived, None), "{source}");
    assert_eq!(keys(&analysis), expected, "{source}");
}

#[track_caller]
fn open(source: &str, why: Why) {
    let analysis = of(source);
    assert_eq!(
        (analysis.class, analysis.reason.map(|reason| reason.why)),
        (Class::Open, Some(why)),
        "{source}"
    );
}

#[test]
fn locks_and_limiters_reach_for_keys_only() {
    // Releases a lock whose token is ours, as most libraries do.
    declared(
        "local held = redis.call('GET', KEYS[1])
         if not held or held ~= ARGV[1] then return 0 end
         redis.call('DEL', KEYS[1]) return 1",
    );
    // Redlock: all keys in a loop.
    declared(
        "for i, lock in ipairs(KEYS) do
             if redis.call('exists', lock) == 1 then return 0 end
         end
         for i = 1, #KEYS do redis.pcall('set', KEYS[i], ARGV[1], 'PX', ARGV[2]) end
         return #KEYS",
    );
    // Redisson: a hash a lock, and a channel that is no key.
    declared(
        "if redis.call('exists', KEYS[1]) == 0 or redis.call('hexists', KEYS[1], ARGV[2]) == 1 then
             redis.call('hincrby', KEYS[1], ARGV[2], 1); redis.call('pexpire', KEYS[1], ARGV[1]);
             redis.call('publish', KEYS[2], ARGV[3]) return nil;
         end; return redis.call('pttl', KEYS[1]);",
    );
    // Laravel: moves due jobs to a list, in batches.
    declared(
        "local due = redis.call('zrangebyscore', KEYS[1], '-inf', ARGV[1])
         if next(due) ~= nil then
             redis.call('zremrangebyrank', KEYS[1], 0, #due - 1)
             for i = 1, #due, 100 do
                 redis.call('rpush', KEYS[2], unpack(due, i, math.min(i + 99, #due)))
             end
         end return due",
    );
    // Bottleneck: arguments collected in a table.
    declared(
        "local settings_key = KEYS[1]
         local tick = function (now) return tonumber(redis.call('hget', settings_key, 'at')) or now end
         local args = {'hmset', settings_key}
         for i = 2, #ARGV do table.insert(args, ARGV[i]) end
         redis.call(unpack(args)) redis.call('del', unpack(KEYS)) return tick(ARGV[1])",
    );
    // A limiter: counts, and sets the time to live once.
    declared(
        "redis.call('set', KEYS[1], 0, 'EX', ARGV[2], 'NX')
         local used, left = redis.call('incrby', KEYS[1], ARGV[1]), redis.call('pttl', KEYS[1])
         if left == -1 then redis.call('expire', KEYS[1], ARGV[2]) left = 1000 * ARGV[2] end
         return {used, left}",
    );
    // Sidekiq: takes a due job from a sorted set.
    declared(
        "local key, now = KEYS[1], ARGV[1]
         local jobs = redis.call('zrange', key, '-inf', now, 'byscore', 'limit', 0, 1)
         if jobs[1] then redis.call('zrem', key, jobs[1]) return jobs[1] end",
    );
    // RQ: stores a job unless it exists, with any number of fields.
    declared(
        "if redis.call('EXISTS', KEYS[1]) == 1 then return 0 end
         if #ARGV > 3 then redis.call('HSET', KEYS[1], unpack(ARGV, 4)) end
         if ARGV[2] == 'L' then redis.call('LPUSH', KEYS[2], ARGV[1]) end return 1",
    );
    declared("return redis.call('zunionstore', KEYS[1], #KEYS - 1, unpack(KEYS, 2))");
    declared("redis.call('set', unpack({unpack(KEYS, 1, 2)}))");
    declared("local call, k = redis.call, {KEYS[1], KEYS[2]} for _, key in pairs(k) do call('get', key) end");
    declared("local i = 1 while i <= #KEYS do redis.call('incr', KEYS[i]) i = i + 1 end");
    declared("local ok, reply = pcall(redis.call, 'get', KEYS[1]) return reply");
    declared("return redis.call(ARGV[1], KEYS[1], ARGV[2])");
    declared("return redis.call('xread', 'COUNT', 5, 'STREAMS', KEYS[1], KEYS[2], '0', '0')");
    declared("return redis.call('nonsense', cjson.decode(ARGV[1]).key)");
    declared("return ({...}), #ARGV, server.sha1hex(ARGV[1])");
}

#[test]
fn queues_derive_keys_from_prefixes() {
    derived(
        "local queue = KEYS[1] .. ':' .. ARGV[2]
         local function store(base, id) redis.call('hset', base .. ':' .. id, 'x', 1) return base .. ':ids' end
         local ids = store(queue, ARGV[1])
         redis.call('zadd', ids, 1, ARGV[1]) return redis.call('get', KEYS[1])",
        &["k1:a2:1", "k1:a2:ids"],
    );
    derived(
        "for _, key in ipairs(KEYS) do redis.call('del', key .. ':lock') end",
        &["k1:lock", "k2:lock", "k3:lock"],
    );
    derived("for i = 2, #ARGV, 2 do redis.call('get', ARGV[i] .. ARGV[i + 1]) end", &["44.5Five", "a2{t}:"]);
    derived(
        "local keys = {} for i = 1, #KEYS do keys[#keys + 1] = KEYS[i] .. ':x' end
         redis.call('del', unpack(keys))",
        &["k1:x", "k2:x", "k3:x"],
    );
    derived("redis.call('mset', unpack(ARGV))", &["1", "Five", "{t}:"]);
    derived("redis.call('set', unpack(ARGV, 2))", &["a2"]);
    derived("return redis.call('sort', KEYS[1], 'BY', 'nosort', 'STORE', ARGV[3] .. 'to')", &["{t}:to"]);
    derived("redis.call('xgroup', 'create', 'stream', ARGV[1], '$')", &["stream"]);
    derived("local t = {prefix = ARGV[3], id = 7} redis.call('get', t.prefix .. t['id'])", &["{t}:7"]);
}

#[test]
fn queues_that_follow_replies_are_open_and_tell_what_they_can() {
    // BullMQ: a job's id comes from a list, its key from the id; the marker's key is known.
    let bullmq = "local rcall = redis.call
         local function prepare(prefix, id, marker)
             rcall('hset', prefix .. id, 'at', ARGV[2]) rcall('zadd', marker, 0, '0')
         end
         local id = rcall('rpoplpush', KEYS[1], KEYS[2])
         if id then return prepare(ARGV[3], id, ARGV[3] .. 'marker') end";
    open(bullmq, Why::KeyFromData);
    assert_eq!(keys(&of(bullmq)), ["{t}:marker"]);
    // asynq: the same, for messages of a queue that become due.
    open(
        "local ids = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', ARGV[1], 'LIMIT', 0, 100)
         for _, id in ipairs(ids) do
             redis.call('LPUSH', KEYS[2], id) redis.call('ZREM', KEYS[1], id)
             redis.call('HSET', ARGV[2] .. id, 'state', 'pending')
         end return table.getn(ids)",
        Why::KeyFromData,
    );
}

#[test]
fn numbers_and_functions_of_texts_are_followed() {
    derived("redis.call('incr', KEYS[1] .. math.floor(ARGV[4] / 10) * 10)", &["k140"]);
    derived("redis.call('incr', string.format('%s:%d%%', KEYS[1], ARGV[4]))", &["k1:44%"]);
    derived("redis.call('incr', tonumber(ARGV[4]) + 0.25 .. '')", &["44.75"]);
    derived("redis.call('incr', ARGV[5]:lower() .. ARGV[5]:sub(-3) .. string.upper('x'))", &["fiveiveX"]);
    derived("redis.call('incr', table.concat({KEYS[1], ARGV[2], 'z'}, ':'))", &["k1:a2:z"]);
    derived("redis.call('incr', 1 .. 2.50)", &["12.5"]);
}

#[test]
fn both_branches_count() {
    derived(
        "local k = KEYS[1] if ARGV[1] == 'x' then k = k .. ':a' else k = k .. ':b' end redis.call('get', k)",
        &["k1:a", "k1:b"],
    );
    derived(
        "redis.call('get', (ARGV[1] == '1' and 'yes' or 'no') .. (ARGV[9] or 'none'))",
        &["nonone", "yesnone"],
    );
    derived(
        "local k for i = 1, 2 do if i == 2 then k = 'late' break end k = 'early' end redis.call('get', k)",
        &["early", "late"],
    );
    derived(
        "local function f(a) if a then return 'x' end return 'y' end redis.call('get', f(true) .. f())",
        &["xy"],
    );
    // A key that needs a missing argument is not used: the run ends with an error before.
    derived("redis.call('get', 'p' .. ARGV[6])", &[]);
}

#[test]
fn keys_from_data_are_open() {
    open(
        "local id = redis.call('rpoplpush', KEYS[1], KEYS[2]) redis.call('hgetall', ARGV[3] .. id)",
        Why::KeyFromData,
    );
    open("for _, key in ipairs(cjson.decode(ARGV[1])) do redis.call('del', key) end", Why::KeyFromData);
    open("local k = 'a' for i = 1, 3 do redis.call('get', k) k = k .. 'a' end", Why::KeyFromData);
    open(
        "local n = redis.call('get', KEYS[1]) for i = 1, n do redis.call('get', KEYS[1] .. i) end",
        Why::KeyFromData,
    );
    open("local function f(k) redis.call('get', k) f(k .. 'x') end f(KEYS[1])", Why::KeyFromData);
    open("redis.call('get', ARGV[1]:gsub('a', 'b'))", Why::KeyFromData);
    open("return redis.call('keys', '*')", Why::Keyspace);
    open("redis.call(redis.call('get', KEYS[1]), KEYS[1])", Why::CommandUnknown);
    open("table.insert(KEYS, 'x')", Why::ChangesLists);
    open("ARGV[1] = 'x'", Why::ChangesLists);
}

#[test]
fn hidden_calls_are_open() {
    open("return loadstring(ARGV[1])()", Why::Opaque);
    open("_G.redis.call('get', 'x')", Why::Opaque);
    open("redis[ARGV[1]]('get', 'x')", Why::CallEscapes);
    open("string.gsub('x', 'x', redis.call)", Why::CallEscapes);
    open("local t = setmetatable({}, {__index = redis.call}) return t.x", Why::CallEscapes);
    // A function given to another is assumed to be called with any arguments.
    open("string.gsub(ARGV[1], '%w+', function(w) redis.call('get', w) end)", Why::KeyFromData);
    declared("table.sort(ARGV_copy or {}, function(a, b) return redis.call('get', KEYS[1]) end)");
    assert_eq!(of("return loadstring(ARGV[1])()").effects, Effects::Unclear);
}

#[test]
fn the_line_of_the_first_reason_is_told() {
    let source = "local a = 1\n\nredis.call('get',\n  cjson.decode(ARGV[1]))";
    assert_eq!(of(source).reason, Some(Reason { line: 3, why: Why::KeyFromData }));
}

#[test]
fn effects_follow_from_the_commands() {
    assert_eq!(of("return redis.call('get', KEYS[1])").effects, Effects::ReadsOnly);
    assert_eq!(of("if ARGV[1] then redis.call('SET', KEYS[1], 1) end").effects, Effects::MayWrite);
    assert_eq!(of("return redis.call(ARGV[1], KEYS[1])").effects, Effects::Unclear);
}

#[test]
fn what_cannot_be_read_is_open() {
    let large = format!("--{}", "x".repeat(MAX_SOURCE_BYTES));
    for source in ["return (", "goto x", &large, &"(".repeat(MAX_SOURCE_BYTES)] {
        open(source, Why::Unreadable);
    }
    assert_eq!(analyse(b"return redis.call('get', '\xff\xfe')", &Table).class, Class::Derived);
}

#[test]
fn explosive_sources_are_given_up() {
    let doubling: String =
        (1..20).map(|n| format!("local function f{n}() f{0}() f{0}() end ", n - 1)).collect();
    open(&format!("local function f0() end {doubling} f19()"), Why::TooLarge);
    let text = "local a = ARGV[1] for i = 1, 2 do ".to_string()
        + &"a = a .. a ".repeat(100)
        + "end redis.call('get', a)";
    open(&text, Why::KeyFromData);
    let loops = "for i = 1, 10 do ".repeat(100) + "redis.call('get', KEYS[1])" + &" end".repeat(100);
    declared(&loops);
    let endless = of("for i = 1, 1e9 do redis.call('get', KEYS[1] .. i) end");
    assert_eq!(endless.keys(&[b"k"], &[], &mut |_| {}), Err(TooMany));
}

#[test]
fn deep_calls_do_not_use_up_a_small_stack() {
    let deep: String = (1..30)
        .map(|n| {
            format!("local function f{n}() return {}f{}(){} end ", "(".repeat(90), n - 1, ")".repeat(90))
        })
        .collect();
    let source = format!("local function f0() end {deep} return f29()");
    let analysis = std::thread::Builder::new().stack_size(1 << 20).spawn(move || of(&source)).unwrap();
    assert_eq!(analysis.join().unwrap().reason.map(|reason| reason.why), Some(Why::TooLarge));
}

#[test]
fn functions_of_a_library_are_analysed_each() {
    let source = "#!lua name=mine\n
        local function key(keys, suffix) return keys[1] .. suffix end
        redis.register_function('plain', function(keys, args) return redis.call('get', keys[1]) end)
        redis.register_function{
            function_name = 'made', flags = {'no-writes'},
            callback = function(keys, args) redis.call('set', key(keys, args[2]), 1) end,
        }
        local open = function(keys) return redis.call('get', redis.call('get', keys[1])) end
        redis.register_function('open', open)";
    let analyses = analyse_library(source.as_bytes(), &Table);
    let classes: Vec<(&[u8], Class)> = analyses.iter().map(|(name, of)| (&name[..], of.class)).collect();
    let expected: [(&[u8], Class); 3] =
        [(b"made", Class::Derived), (b"open", Class::Open), (b"plain", Class::Declared)];
    assert_eq!(classes, expected);
    assert_eq!(keys(&analyses[&b"made"[..]]), ["k1a2"]);
    assert_eq!(analyses[&b"plain"[..]].effects, Effects::ReadsOnly);
    assert!(analyse_library(b"return (", &Table).is_empty());
}

// Made-up scripts.

/// A strategy for expressions. Their values are texts, mostly.
fn text() -> impl Strategy<Value = String> {
    let leaf = prop_oneof![
        (1..4).prop_map(|n| format!("KEYS[{n}]")),
        (1..5).prop_map(|n| format!("ARGV[{n}]")),
        (0..4).prop_map(|n| format!("v{n}")),
        "[a-c]{1,2}".prop_map(|text| format!("'{text}'")),
        (0_u8..20).prop_map(|n| n.to_string()),
        Just("KEYS[n]".to_string()),
        Just("ARGV[n]".to_string()),
        Just("redis.call('GET', KEYS[1])".to_string()),
    ];
    leaf.prop_recursive(3, 12, 3, |inner| {
        prop_oneof![
            (inner.clone(), inner.clone()).prop_map(|(a, b)| format!("({a} .. {b})")),
            (inner.clone(), inner.clone()).prop_map(|(a, b)| format!("({a} or {b})")),
            (inner.clone(), inner.clone(), inner.clone())
                .prop_map(|(a, b, c)| format!("({a} == {b} and {c} or {a})")),
            (inner.clone(), inner.clone()).prop_map(|(a, b)| format!("both({a}, {b})")),
            inner.clone().prop_map(|a| format!("pick({a})")),
            inner.clone().prop_map(|a| format!("string.upper({a})")),
            (inner.clone(), 1..3).prop_map(|(a, n)| format!("string.sub({a}, {n}, -2)")),
            (inner.clone(), inner.clone()).prop_map(|(a, b)| format!("string.format('%s-%s', {a}, {b})")),
            inner.clone().prop_map(|a| format!("(tonumber({a}) or 3) * 2 - 1")),
            inner.prop_map(|a| format!("table.concat({{{a}, 'z'}}, ARGV[1])")),
        ]
    })
}

/// A strategy for statements over a few variables.
///
/// These are `v0` to `v3`, the table `t`, and the number `n`.
fn statements() -> impl Strategy<Value = String> {
    let simple = prop_oneof![
        4 => text().prop_map(|a| format!("redis.call('GET', {a})")),
        1 => (text(), text()).prop_map(|(a, b)| format!("redis.call('DEL', {a}, {b})")),
        1 => (text(), text()).prop_map(|(a, b)| format!("redis.call('MSET', {a}, 'x', {b}, 'x')")),
        3 => (0..4, text()).prop_map(|(n, a)| format!("v{n} = {a}")),
        1 => text().prop_map(|a| format!("local v1 = {a}")),
        1 => text().prop_map(|a| format!("t[#t + 1] = {a}")),
        1 => text().prop_map(|a| format!("table.insert(t, {a})")),
        1 => (1..4, text()).prop_map(|(n, a)| format!("t[{n}] = {a}")),
        1 => text().prop_map(|a| format!("t.name = {a}")),
        1 => Just("redis.call('DEL', unpack(t))".to_string()),
        1 => Just("redis.call('GET', t.name)".to_string()),
        1 => Just("redis.call('GET', t[1])".to_string()),
        1 => Just("redis.call('MSET', unpack(ARGV))".to_string()),
        1 => Just("local ok = pcall(redis.call, 'GET', v0)".to_string()),
        1 => Just("t = {v1, KEYS[2]}".to_string()),
        1 => Just("do return end".to_string()),
    ];
    let block = prop::collection::vec(simple, 1..4).prop_map(|all| all.join("\n"));
    block.prop_recursive(3, 12, 3, |inner| {
        prop_oneof![
            (inner.clone(), inner.clone()).prop_map(|(a, b)| format!("{a}\n{b}")),
            (text(), inner.clone(), inner.clone())
                .prop_map(|(a, b, c)| format!("if {a} == ARGV[1] then {b} else {c} end")),
            (1..3, inner.clone()).prop_map(|(from, a)| format!("for n = {from}, #KEYS do {a} end")),
            inner.clone().prop_map(|a| format!("for n = #ARGV, 1, -2 do {a} end")),
            inner.clone().prop_map(|a| format!("for n, v2 in ipairs(KEYS) do {a} end")),
            inner.clone().prop_map(|a| format!("for _, v3 in ipairs({{v0, v1, KEYS[3]}}) do {a} end")),
            inner.clone().prop_map(|a| format!("repeat {a} n = n + 1 until n > 4")),
            (inner.clone(), inner).prop_map(|(a, b)| {
                format!("while n < 6 do n = n + 1 {a} if v0 == v1 then break end {b} end")
            }),
        ]
    })
}

/// Runs a script in Lua itself, and returns the keys of its commands.
fn run(source: &str, keys: &[&[u8]], argv: &[&[u8]]) -> BTreeSet<Vec<u8>> {
    let lua = mlua::Lua::new();
    let log = Rc::new(RefCell::new(BTreeSet::new()));
    let into = log.clone();
    let call = lua.create_function(move |_, arguments: mlua::Variadic<mlua::LuaString>| {
        let words: Vec<Vec<u8>> = arguments.iter().map(|word| word.as_bytes().to_vec()).collect();
        let keys = words.iter().skip(1);
        match words.first().map(Vec::as_slice) {
            Some(b"GET") => into.borrow_mut().extend(keys.take(1).cloned()),
            Some(b"MSET") => into.borrow_mut().extend(keys.step_by(2).cloned()),
            _ => into.borrow_mut().extend(keys.cloned()),
        }
        Ok("reply")
    });
    let redis = lua.create_table().unwrap();
    redis.set("call", call.unwrap()).unwrap();
    let list = |of: &[&[u8]]| lua.create_sequence_from(of.iter().map(|one| lua.create_string(one).unwrap()));
    lua.globals().set("redis", redis).unwrap();
    lua.globals().set("KEYS", list(keys).unwrap()).unwrap();
    lua.globals().set("ARGV", list(argv).unwrap()).unwrap();
    let _ = lua.load(source).exec(); // A run that ends with an error has used keys too.
    log.take()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, ..ProptestConfig::default() })]

    #[test]
    fn lua_touches_predicted_keys_only(body in statements()) {
        let source = format!(
            "local v0, v1, v2, v3 = KEYS[1], ARGV[1], 'c', KEYS[2] .. 'd'
             local n, t = 1, {{}}
             local function both(a, b) v3 = b return a .. ':' .. b end
             local function pick(a) for i = 1, #KEYS do if KEYS[i] == a then return KEYS[i] end end return a end
             {body}"
        );
        let declared: [&[u8]; 3] = [b"a", b"2", b"{t}x"];
        let argv: [&[u8]; 4] = [b"a", b"7", b"reply", b"2"];
        let analysis = analyse(source.as_bytes(), &Table);
        if analysis.class != Class::Open {
            let mut predicted: BTreeSet<Vec<u8>> = declared.iter().map(|key| key.to_vec()).collect();
            analysis.keys(&declared, &argv, &mut |key| { predicted.insert(key.to_vec()); }).unwrap();
            let touched = run(&source, &declared, &argv);
            let missing: Vec<_> =
                touched.difference(&predicted).map(|key| String::from_utf8_lossy(key).into_owned()).collect();
            prop_assert!(missing.is_empty(), "{missing:?} not predicted");
        }
    }

    #[test]
    fn any_bytes_are_analysed_without_a_panic(source in prop::collection::vec(any::<u8>(), 0..200)) {
        analyse(&source, &Table);
    }

    #[test]
    fn any_words_are_analysed_without_a_panic(words in prop::collection::vec(
        prop::sample::select(&["redis.call", "(", ")", "{", "}", "KEYS", "[1]", "=", "local x", "x", "..", "'a'", "end",
            "for i = 1, 2 do", "function f()", "function()", "if x then", ",", "return", "#", "unpack", "...", "and", "-",
            "while x do", "break", "repeat", "until", "t.a", ":b()", "1e300", "x = x"][..]), 0..40)) {
        analyse(words.join(" ").as_bytes(), &Table);
    }
}
