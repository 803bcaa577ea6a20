//! Random expressions of Lua, and scripts that show their values.

use super::random::Random;

/// The source of `show`, which writes values exactly.
///
/// Numbers have 17 digits. In strings each byte that is not plain ASCII becomes a number. Tables keep their
/// own order, which must be Redis's, unless they went through `unordered`.
const SHOW: &str = r#"
local format, byte, pieces, sort = string.format, string.byte, table.concat, table.sort
local show
local is_ordered = true
local function unordered(...)
    is_ordered = false
    return ...
end
local function show_string(value)
    local out = {}
    for i = 1, #value do
        local code = byte(value, i)
        out[i] = (code < 32 or code > 126 or code == 34 or code == 92) and format('\\%03d', code) or string.char(code)
    end
    return '"' .. pieces(out) .. '"'
end
local function show_table(value)
    local out = {}
    for k, v in pairs(value) do
        out[#out + 1] = '[' .. show(k) .. ']=' .. show(v)
    end
    if not is_ordered then sort(out) end
    return '#' .. #value .. '{' .. pieces(out, ',') .. '}'
end
function show(value)
    local kind = type(value)
    if kind == 'string' then return show_string(value) end
    if kind == 'number' then return format('%.17g', value) end
    if kind == 'table' then return show_table(value) end
    if kind == 'userdata' then return value == cjson.null and 'null' or 'userdata' end
    return kind == 'function' and kind or tostring(value)
end
-- Lua's `pcall` needs one place more than 20 results leave it, which a build with Lua's own checks does not forgive.
local function pack(...)
    return {n = select('#', ...), ...}
end
local function show_all(succeeded, results)
    if not succeeded then
        return 'error ' .. show(results)
    end
    local out = {}
    for i = 1, results.n do
        out[i] = show(results[i])
    end
    is_ordered = true
    return pieces(out, ' ')
end
"#;

/// A script whose answer has a line for each expression: its values, or its error.
pub fn script(expressions: &[String]) -> String {
    let mut out = String::from(SHOW);
    out.push_str("local out = {}\n");
    for expression in expressions {
        out.push_str(&format!("out[#out + 1] = show_all(pcall(function() return pack({expression}) end))\n"));
    }
    out.push_str("return pieces(out, '\\n')\n");
    out
}

/// A literal of Lua for some bytes.
pub fn quote(bytes: &[u8]) -> String {
    let escaped: String = bytes
        .iter()
        .map(|byte| match byte {
            b'"' | b'\\' => format!("\\{}", *byte as char),
            32..=126 => (*byte as char).to_string(),
            _ => format!("\\{byte:03}"),
        })
        .collect();
    format!("\"{escaped}\"")
}

fn latin(text: &str) -> Vec<u8> {
    text.chars().map(|letter| letter as u8).collect()
}

const SUBJECTS: &[&str] = &[
    "a", "b", "ab", "A", "1", "22", " ", "(", ")", "((x))", "[", "]", "%", "-", "^", "$", ".", "\0", "\n",
    "\u{e9}", "f",
];

const ITEMS: &[&str] = &[
    "a",
    "b",
    "ab",
    ".",
    "%a",
    "%d",
    "%s",
    "%w",
    "%W",
    "%u",
    "%l",
    "%x",
    "%p",
    "%c",
    "%z",
    "%%",
    "%.",
    "%(",
    "[ab]",
    "[^ab]",
    "[a-c1-9]",
    "[%a_]",
    "[%w%-]",
    "[]]",
    "[^]]",
    "[a-]",
    "[-a]",
    "[%]]",
    "%b()",
    "%bab",
    "%f[%a]",
    "%f[^%w]",
    "()",
    "(a)",
    "(.)",
    "(a*)",
    "(.-)",
    "(%d+)",
    "((a)b)",
    "%1",
    "%2",
    "\0",
    "$",
    "^",
    "1",
    " ",
    "\u{e9}",
    "[\u{e0}-\u{ff}]",
];

const BROKEN: &[&str] =
    &["%", "[", "[^", "[a", "[a%", "(", ")", "%b", "%ba", "%f", "%fa", "%0", "%9", "[]", "(()", "[a-", "%g"];

fn random_pattern(random: &mut Random) -> String {
    let mut out = String::from(if random.one_in(6) { "^" } else { "" });
    for _ in 0..random.below(5) {
        out.push_str(if random.one_in(12) { random.pick(BROKEN) } else { random.pick(ITEMS) });
        out.push_str(random.pick(&["", "", "", "?", "*", "+", "-"]));
    }
    out.push_str(if random.one_in(8) { "$" } else { "" });
    out
}

/// Values that are mostly no strings.
const ODD: &[&str] = &["nil", "12", "1.5", "{}", "true", "function() end", "-0", "1e300"];

fn subject(random: &mut Random) -> String {
    if random.one_in(60) { random.pick(ODD).to_owned() } else { quote(&latin(&random.join(8, SUBJECTS))) }
}

/// A call of one of the functions with patterns.
pub fn pattern(random: &mut Random) -> String {
    let pattern =
        if random.one_in(60) { random.pick(ODD).to_owned() } else { quote(&latin(&random_pattern(random))) };
    let subject = subject(random);
    match random.below(8) {
        0 | 1 => format!("string.find({subject}, {pattern}{})", init(random)),
        2 => format!("string.match({subject}, {pattern}{})", init(random)),
        3 => format!("({subject}):find({pattern}{})", init(random)),
        4 => format!(
            "(function() local t = {{}} for a, b, c in string.gmatch({subject}, {pattern}) do t[#t+1] = {{a, b, c}} end return t end)()"
        ),
        5 => random
            .pick(&[
                "string.find()",
                "string.gsub('a')",
                "('x'):rep(3):find()",
                "string.gmatch('a')",
                "('x'):gsub('x')",
            ])
            .to_owned(),
        _ => format!("string.gsub({subject}, {pattern}, {}{})", replacement(random), limit(random)),
    }
}

fn init(random: &mut Random) -> &'static str {
    random.pick(&[
        "",
        "",
        "",
        ", 2",
        ", -1",
        ", -3",
        ", 100",
        ", 0",
        ", '2'",
        ", nil, true",
        ", 2, true",
        ", {}",
        ", 1.7",
        ", -1e300",
        ", 0/0",
    ])
}

fn limit(random: &mut Random) -> &'static str {
    random.pick(&["", "", "", ", 1", ", 2", ", 0", ", -1", ", 1e10", ", nil", ", {}", ", 2^32 + 1"])
}

fn replacement(random: &mut Random) -> &'static str {
    random.pick(&[
        "'x'",
        "''",
        "'<%0>'",
        "'%1%1'",
        "'%2'",
        "'%%'",
        "'%'",
        "'%a'",
        "12",
        "1.5",
        "nil",
        "true",
        "'a%1b%2'",
        "{a = 'A', b = 12}",
        "{a = false, b = {}}",
        "{}",
        "function(a, b) return b or a .. '!' end",
        "function() end",
        "function() return {} end",
        "function() return 1e15 end",
        "function() error('ouch') end",
        "function() error({'t'}) end",
        "string.upper",
        "setmetatable({}, {__index = function(_, k) return k .. k end})",
        "setmetatable({}, {__index = function() return type end})",
        "function(a) return false end",
        "function(...) return select('#', ...) end",
    ])
}

const NUMBERS: &[&str] = &[
    "0",
    "1",
    "-1",
    "127",
    "128",
    "255",
    "256",
    "-128",
    "-129",
    "32767",
    "32768",
    "65535",
    "65536",
    "-32769",
    "2147483647",
    "2147483648",
    "4294967295",
    "4294967296",
    "-2147483648",
    "-2147483649",
    "2^53",
    "2^53+1",
    "2^63",
    "-2^63",
    "2^64",
    "1e300",
    "-1e300",
    "0.5",
    "-0.5",
    "1.5",
    "2.5",
    "-1.25",
    "0.1",
    "1/3",
    "1e-300",
    "5e-324",
    "1/0",
    "-1/0",
    "0/0",
    "-0",
    "3.4e38",
    "1e15",
    "123456789012345",
    "1e14",
    "99999999999999",
    "999999999999999",
    "1e100",
    "'12'",
    "'0x10'",
    "' 7 '",
];

fn number(random: &mut Random) -> String {
    match random.below(4) {
        0 => format!("{}", random.next() as i32),
        1 => format!("{:e}", f64::from_bits(random.next())).replace("NaN", "0/0").replace("inf", "1/0"),
        _ => random.pick(NUMBERS).to_owned(),
    }
}

fn list(random: &mut Random, max: usize, mut item: impl FnMut(&mut Random) -> String) -> String {
    let items: Vec<String> = (0..random.below(max + 1)).map(|_| item(random)).collect();
    items.join(", ")
}

/// A call of a function of `bit`.
pub fn bits(random: &mut Random) -> String {
    let name = random.pick(&[
        "tobit", "tohex", "bnot", "band", "bor", "bxor", "lshift", "rshift", "arshift", "rol", "ror", "bswap",
    ]);
    let arguments =
        list(
            random,
            3,
            |random| if random.one_in(12) { random.pick(ODD).to_owned() } else { number(random) },
        );
    format!("bit.{name}({arguments})")
}

const OPTIONS: &[&str] = &[
    "b", "B", "h", "H", "l", "L", "T", "i", "I", "i1", "i2", "I3", "i4", "i7", "I8", "i9", "I16", "i0", "f",
    "d", "x", "s", "c0", "c1", "c3", "<", ">", "!", "!2", "!4", "!8", "!16", " ",
];

const BROKEN_OPTIONS: &[&str] =
    &["z", "i33", "!3", "!0", "c2147483648", "c99999999999", "c2147483647", "\u{e9}", "\0", "5", "~", "!"];

fn format_text(random: &mut Random) -> String {
    let mut out = random.join(6, OPTIONS);
    if random.one_in(10) {
        out.push_str(random.pick(BROKEN_OPTIONS));
        out.push_str(&random.join(2, OPTIONS));
    }
    quote(&latin(&out))
}

fn bytes(random: &mut Random, max: usize) -> String {
    let bytes: Vec<u8> = (0..random.below(max + 1))
        .map(|_| if random.one_in(3) { random.below(4) as u8 } else { random.next() as u8 })
        .collect();
    quote(&bytes)
}

/// A call of a function of `struct`.
pub fn structure(random: &mut Random) -> String {
    let format = format_text(random);
    match random.below(7) {
        0 => format!("struct.size({format})"),
        1 => random
            .pick(&[
                "struct.pack()",
                "struct.unpack('i')",
                "struct.size(nil)",
                "struct.pack({})",
                "struct.unpack(5, 5)",
            ])
            .to_owned(),
        2 | 3 => {
            let start = random.pick(&[
                "", "", "", ", 1", ", 2", ", 0", ", -1", ", 9", ", 2^62", ", -2^63", ", 'x'", ", nil",
            ]);
            format!("struct.unpack({format}, {}{start})", bytes(random, 40))
        }
        _ => {
            let arguments = list(random, 6, |random| match random.below(12) {
                0 => random.pick(ODD).to_owned(),
                1..=4 => bytes(random, 6),
                _ => number(random),
            });
            let comma = if arguments.is_empty() { "" } else { ", " };
            format!("struct.pack({format}{comma}{arguments})")
        }
    }
}

const JSON: &[&str] = &[
    "1",
    "-1",
    "0",
    "01",
    "1.5",
    "-0",
    "1e5",
    "1E-2",
    "1.",
    ".5",
    "-",
    "+5",
    "+",
    "0x1F",
    "0x",
    "-0x.8p3",
    "0x1.fffffffffffff8p0",
    "inf",
    "-Infinity",
    "NaN",
    "nan(1)",
    "nano",
    "true",
    "false",
    "null",
    "nul",
    "tru",
    "\"\"",
    "\"a\"",
    "\"key\"",
    "\"\\u0041\"",
    "\"\\u00e9\"",
    "\"\\ud83d\\ude00\"",
    "\"\\ud83d\"",
    "\"\\n\\t\\/\\\\\\\"\"",
    "\"\\x\"",
    "\"abc",
    "\"\u{e9}\"",
    "1e400",
    "5e-324",
    "2.5e-324",
    "2e-324",
    "0x1p-1074",
    "0x1.8p-1074",
    "0x0.8p-1074",
    "0x3p-1075",
    "0x10000000000000081",
    "0x10000000000000080",
    "123456789012345678901234567890",
    "\0",
    "4.35",
    "0.1",
    "1e23",
];

const KEYS: &[&str] = &[
    "\"a\"",
    "\"b\"",
    "\"key\"",
    "\"1\"",
    "\"\"",
    "\"x y\"",
    "\"\\u0041\"",
    "1",
    "a",
    "\"long key of some length\"",
];

const SPACES: &[&str] = &["", "", "", " ", "\n", "\t \r", "\0", "x"];

/// The number of elements of a table.
///
/// It is mostly small, but sometimes larger than the number that crosses into Lua at once.
fn n_items(random: &mut Random) -> usize {
    let most = if random.one_in(8) { 40 } else { 5 };
    random.below(most)
}

fn json(random: &mut Random, depth: usize, out: &mut String) {
    let space = if random.one_in(10) { random.pick(SPACES) } else { "" };
    out.push_str(space);
    let n = n_items(random);
    match random.below(if depth == 0 { 1 } else { 3 }) {
        0 => out.push_str(random.pick(JSON)),
        1 => {
            out.push('[');
            for index in 0..n {
                out.push_str(if index > 0 { "," } else { "" });
                json(random, depth - 1, out);
            }
            out.push(']');
        }
        _ => {
            out.push('{');
            for index in 0..n {
                out.push_str(if index > 0 { "," } else { "" });
                let key = if random.one_in(3) {
                    format!("\"{}\"", random.below(100))
                } else {
                    random.pick(KEYS).to_owned()
                };
                out.push_str(&key);
                out.push_str(if random.one_in(50) { "" } else { ":" });
                json(random, depth - 1, out);
            }
            out.push('}');
        }
    }
    out.push_str(space);
}

const DECODE_SETTINGS: &[&str] = &[
    "",
    "",
    "",
    "c.decode_invalid_numbers(false)",
    "c.decode_max_depth(2)",
    "c.decode_invalid_numbers('x')",
    "c.decode_max_depth(0)",
];

/// A call of `cjson.decode`.
pub fn json_decode(random: &mut Random) -> String {
    let mut text = String::new();
    let depth = random.below(4);
    json(random, depth, &mut text);
    let mut text = latin(&text);
    for _ in 0..random.below(3).saturating_sub(1) * random.below(3) {
        if !text.is_empty() {
            let at = random.below(text.len());
            match random.below(3) {
                0 => drop(text.remove(at)),
                1 => {
                    text[at] =
                        random.pick(&["{", "}", "[", "]", ",", ":", "\"", "\\", "1", "e", "-"]).as_bytes()[0]
                }
                _ => text.truncate(at),
            }
        }
    }
    let text = if random.one_in(50) { random.pick(ODD).to_owned() } else { quote(&text) };
    match random.pick(DECODE_SETTINGS) {
        "" => format!("cjson.decode({text})"),
        setting => format!("(function() local c = cjson.new() {setting} return c.decode({text}) end)()"),
    }
}

/// A literal of a Lua value.
fn value(random: &mut Random, depth: usize) -> String {
    let n = n_items(random);
    match random.below(if depth == 0 { 4 } else { 8 }) {
        0 => bytes(random, 12),
        1 => number(random),
        2 => quote(&latin(&random.join(6, SUBJECTS))),
        3 => random
            .pick(&[
                "true",
                "false",
                "nil",
                "cjson.null",
                "{}",
                "'a/b'",
                "1",
                "-7",
                "type",
                "('x'):rep(40)",
                "('y'):rep(300)",
            ])
            .to_owned(),
        4 => {
            let items: Vec<String> = (0..n).map(|_| value(random, depth - 1)).collect();
            format!("{{{}}}", items.join(", "))
        }
        5 => {
            let items: Vec<String> = (0..n)
                .map(|_| {
                    format!(
                        "[{}] = {}",
                        random.pick(&[
                            "1", "2", "3", "5", "12", "100", "-1", "0", "1.5", "2^31", "2^40", "true"
                        ]),
                        value(random, depth - 1)
                    )
                })
                .collect();
            format!("{{{}}}", items.join(", "))
        }
        _ => {
            let items: Vec<String> = (0..n)
                .map(|_| {
                    let key = if random.one_in(3) {
                        format!("k{}", random.below(100))
                    } else {
                        random.pick(&["a", "b", "long_key"]).to_owned()
                    };
                    format!("{key} = {}", value(random, depth - 1))
                })
                .collect();
            format!("{{{}}}", items.join(", "))
        }
    }
}

const ENCODE_SETTINGS: &[&str] = &[
    "",
    "",
    "",
    "",
    "c.encode_sparse_array(true)",
    "c.encode_sparse_array(false, 0)",
    "c.encode_sparse_array(true, 1, 2)",
    "c.encode_max_depth(2)",
    "c.encode_invalid_numbers(true)",
    "c.encode_invalid_numbers('null')",
    "c.encode_number_precision(3)",
    "c.encode_number_precision(1)",
    "c.encode_keep_buffer(false)",
    "c.encode_sparse_array('maybe')",
    "c.encode_number_precision(15)",
    "c.encode_keep_buffer(1)",
    "c.encode_sparse_array(true, 2147483647)",
    "c.encode_sparse_array(true, 1, 2, 3)",
];

/// A call of `cjson.encode`.
pub fn json_encode(random: &mut Random) -> String {
    let depth = random.below(4);
    let value = value(random, depth);
    // An array with the largest index would have two thousand million nulls.
    match random.pick(ENCODE_SETTINGS) {
        "" => format!("cjson.encode({value})"),
        setting => format!("(function() local c = cjson.new() {setting} return c.encode({value}) end)()"),
    }
}

/// A call of `cmsgpack.pack`.
pub fn pack(random: &mut Random) -> String {
    let depth = random.below(4);
    let arguments = list(random, 3, |random| value(random, depth));
    format!("cmsgpack.pack({arguments})")
}

const PACKED: &[&[u8]] = &[
    b"\x00",
    b"\x7f",
    b"\xff",
    b"\xe0",
    b"\xcc\xff",
    b"\xcd\xff\xfe",
    b"\xce\xff\xff\xff\xfe",
    b"\xcf\xff\xff\xff\xff\xff\xff\xff\xff",
    b"\xd0\x80",
    b"\xd1\x80\x01",
    b"\xd2\x80\x00\x00\x01",
    b"\xd3\x80\x00\x00\x00\x00\x00\x00\x01",
    b"\xcf\x00\x20\x00\x00\x00\x00\x00\x01",
    b"\xc0",
    b"\xc2",
    b"\xc3",
    b"\xca\x3f\xc0\x00\x00",
    b"\xca\x7f\xc0\x00\x00",
    b"\xcb\x3f\xb9\x99\x99\x99\x99\x99\x9a",
    b"\xa0",
    b"\xa3abc",
    b"\xd9\x02xy",
    b"\xda\x00\x01z",
    b"\xdb\x00\x00\x00\x02pq",
    b"\xcb\x7f\xf8\x00\x00\x00\x00\x00\x00",
];

fn packed(random: &mut Random, depth: usize, out: &mut Vec<u8>) {
    let n = n_items(random);
    let n_kinds = if depth == 0 { 4 } else { 8 };
    let kind = random.below(n_kinds);
    match kind {
        4 | 5 if n < 16 => out.push(0x90 | n as u8),
        4 | 5 => out.extend_from_slice(&[0xdc, 0, n as u8]),
        6 | 7 if n < 16 => out.push(0x80 | n as u8),
        6 | 7 => out.extend_from_slice(&[0xdf, 0, 0, 0, n as u8]),
        _ => return out.extend_from_slice(random.pick(PACKED)),
    }
    for _ in 0..n {
        if kind > 5 {
            let key = [
                b"\x01".as_slice(),
                b"\x02",
                b"\xa1a",
                b"\xa1b",
                b"\xa0",
                b"\xc3",
                b"\xca\x3f\xc0\x00\x00",
                b"\xcc\x80",
                b"\xa2k1",
                b"\xa2k2",
            ];
            if random.one_in(30) { packed(random, 0, out) } else { out.extend_from_slice(random.pick(&key)) }
        }
        packed(random, depth - 1, out);
    }
}

/// A call of one of the functions that unpack.
///
/// Keys may be tables. Their order is that of their addresses.
pub fn unpack(random: &mut Random) -> String {
    let mut data = Vec::new();
    for _ in 0..random.below(4) {
        let depth = random.below(4);
        packed(random, depth, &mut data);
    }
    for _ in 0..random.below(4).saturating_sub(2) {
        if !data.is_empty() {
            let at = random.below(data.len());
            match random.below(3) {
                0 => data.truncate(at),
                1 => data[at] = random.next() as u8,
                _ => drop(data.remove(at)),
            }
        }
    }
    let data = if random.one_in(50) { random.pick(ODD).to_owned() } else { quote(&data) };
    let offset = random.pick(&["", "", ", 0", ", 1", ", 2", ", -1", ", 1000", ", nil", ", 'x'", ", 1.5"]);
    match random.below(4) {
        0 => format!("unordered(cmsgpack.unpack_one({data}{offset}))"),
        1 => {
            let limit = random.pick(&["0", "1", "2", "100", "-1", "nil", "2^31"]);
            format!("unordered(cmsgpack.unpack_limit({data}, {limit}{offset}))")
        }
        _ => format!("unordered(cmsgpack.unpack({data}))"),
    }
}
