//! The pools of the table's words. They are small, so that commands meet on the same keys and members, and
//! contain a few invalid values.
//!
//! No pool has numbers that would make a server allocate or answer gigabytes, or (but for `soon`) deadlines
//! that could pass during a run. No two values are equal up to a zero byte, because SORT compares no further.

use std::rc::Rc;

use super::table::Table;
use crate::support::{Dice, values::Argv};

/// Makes the words for a name in the table.
pub type Symbol = fn(&mut Pools, &mut Argv);

/// The number of keys of a family.
const N_KEYS: usize = 4;

/// The source of words.
pub struct Pools {
    pub dice: Dice,
    table: Rc<Table>,
    /// The family whose command is made.
    pub family: &'static str,
    /// The last ID given to a stream's entry.
    last_id: u64,
}

impl Pools {
    /// Pools with keys for the families of a table.
    pub fn new(dice: Dice, table: Rc<Table>) -> Pools {
        Pools { dice, table, family: "", last_id: 0 }
    }

    /// Returns a key of a family. The first has few letters, the second odd ones, and the third and fourth
    /// share a shard.
    fn key_of(&mut self, family: &str) -> Vec<u8> {
        match self.dice.roll(N_KEYS) {
            0 => family.as_bytes().to_vec(),
            1 => [family.as_bytes(), b"\r\n\xff"].concat(),
            n => format!("{{{{{family}}}}}{n}").into_bytes(),
        }
    }

    fn number(&mut self, from: i64, to: i64) -> i64 {
        from + self.dice.roll((to - from + 1) as usize) as i64
    }

    fn one_of(&mut self, words: &[&str]) -> Vec<u8> {
        self.dice.pick(words).as_bytes().to_vec()
    }

    /// Returns an invalid or too large integer now and then.
    fn odd_integer(&mut self) -> Option<Vec<u8>> {
        self.dice.percent(6).then(|| self.one_of(ODD_INTEGERS))
    }
}

const ODD_INTEGERS: &[&str] = &[
    "",
    "abc",
    "1.5",
    "1e2",
    " 1",
    "1 ",
    "+1",
    "01",
    "-0",
    "0x10",
    "--1",
    "inf",
    "9223372036854775807",
    "-9223372036854775808",
    "9223372036854775808",
    "-9223372036854775809",
    "18446744073709551615",
    "99999999999999999999",
];

macro_rules! symbols {
    ($($name:ident => $make:expr;)*) => {
        const SYMBOLS: &[(&str, Symbol)] = &[$((stringify!($name), |pools, argv| {
            let make: fn(&mut Pools) -> Vec<u8> = $make;
            argv.push(make(pools));
        })),*];
    };
}

/// Names for several words.
const SEVERAL: &[(&str, Symbol)] = &[
    ("place", place),
    ("streams", streams),
    ("zinputs", zinputs),
    ("fieldop", field_operation),
    ("command", command),
];

/// Returns the pool of a name in the table.
pub fn symbol(name: &str) -> Option<Symbol> {
    SYMBOLS.iter().chain(SEVERAL).find(|(known, _)| *known == name).map(|(_, symbol)| *symbol)
}

fn text(number: impl ToString) -> Vec<u8> {
    number.to_string().into_bytes()
}

symbols! {
    // A key of the family, or now and then of another, which mostly holds another type.
    key => |pools| {
        let table = Rc::clone(&pools.table);
        let has_own = table.key_pools.contains(&pools.family);
        let family = if has_own && !pools.dice.percent(7) { pools.family } else { *pools.dice.pick(&table.key_pools) };
        pools.key_of(family)
    };
    // Keys whose members all have the same score, which is when an order by members is defined.
    lexkey => |pools| text(format!("lex{}", pools.dice.roll(2)));
    db => |pools| match pools.dice.roll(12) {
        0 => pools.one_of(&["16", "-1", "abc", "9223372036854775807", ""]),
        n => text(n % 3),
    };
    value => |pools| match pools.dice.roll(10) {
        0..=2 => text(pools.number(-20, 200)),
        3 => pools.one_of(ODD_INTEGERS),
        4 => pools.one_of(&["0.5", "3.0e3", "inf", "-inf", "nan", "1e308", "1e-320"]),
        5 => {
            let n = pools.dice.roll(70);
            vec![b'v'; n]
        }
        6 => {
            let n = pools.dice.roll(2) * 1100;
            vec![b'w'; n]
        }
        7 => b"z\x00\r\n\xff\xfe".to_vec(),
        _ => pools.one_of(&["a", "b", "c", "hello", "world", "hello world"]),
    };
    member => |pools| match pools.dice.roll(12) {
        0..=4 => text(pools.number(-3, 20)),
        5 => pools.one_of(&["", "z\u{0}\u{ff}\r\n", "1.0", "007", "-0", "9223372036854775807", "9223372036854775808"]),
        6 if pools.dice.percent(20) => vec![b'm'; 70],
        _ => vec![b'a' + pools.dice.roll(10) as u8],
    };
    field => |pools| match pools.dice.roll(10) {
        0..=2 => text(pools.number(0, 12)),
        3 => pools.one_of(&["", "\u{0}\r\n", "a field of some length"]),
        _ => vec![b'f', b'a' + pools.dice.roll(8) as u8],
    };
    int => |pools| pools.odd_integer().unwrap_or_else(|| text(pools.number(-12, 12)));
    index => |pools| pools.odd_integer().unwrap_or_else(|| text(pools.number(-15, 15)));
    count => |pools| pools.odd_integer().unwrap_or_else(|| text(pools.number(-4, 8)));
    amount => |pools| match pools.dice.roll(6) {
        0 => pools.one_of(&["9223372036854775807", "-9223372036854775808", "9223372036854775800", "-9223372036854775800"]),
        _ => pools.odd_integer().unwrap_or_else(|| text(pools.number(-1000, 1000))),
    };
    offset => |pools| match pools.dice.roll(20) {
        0 => pools.one_of(&["-1", "4294967296", "9223372036854775807", "536870912", "abc", "1.0"]),
        1 => text(pools.number(0, 3000)),
        _ => text(pools.number(0, 40)),
    };
    bit => |pools| match pools.dice.roll(20) {
        0 => pools.one_of(&["-1", "4294967296", "9223372036854775807", "abc", "1.0"]),
        1 => text(pools.number(0, 20_000)),
        _ => text(pools.number(0, 100)),
    };
    bitvalue => |pools| pools.one_of(&["0", "1", "0", "1", "0", "1", "0", "1", "2", "-1", "x"]);
    float => |pools| match pools.dice.roll(10) {
        0 => pools.one_of(&[
            "inf", "+inf", "-inf", "Infinity", "nan", "abc", "", "1e308", "-1e308", "1.7e308", "5e-324", "1e-400", "1e400",
            "0x10", "1.", ".5", " 1", "1 ", "1e", "1,5", "9007199254740993", "0.1", "1e17", "123456789012345678",
        ]),
        1..=4 => text(pools.number(-20, 20)),
        _ => text(pools.number(-800, 800) as f64 / 8.0),
    };
    // Sums of these are exact in any order.
    score => |pools| match pools.dice.roll(24) {
        0 => pools.one_of(&["inf", "-inf", "+inf", "nan", "abc", "", "0x8", "1e3", "-0", "1e"]),
        1 => pools.one_of(&["1e15", "-1e15", "1e20", "12345678901234567", "0.25", "3.5"]),
        _ => text(pools.number(-6, 6)),
    };
    bound => |pools| {
        let mut bound = if pools.dice.percent(30) { b"(".to_vec() } else { Vec::new() };
        bound.extend(match pools.dice.roll(12) {
            0 => pools.one_of(&["", "abc", "nan", "(1", "[1", "1.5"]),
            1..=3 => pools.one_of(&["-inf", "+inf", "inf"]),
            _ => text(pools.number(-8, 8)),
        });
        bound
    };
    lexbound => |pools| match pools.dice.roll(12) {
        0 => pools.one_of(&["", "a", "(", "[", "--", "++", "5"]),
        1..=2 => b"-".to_vec(),
        3..=4 => b"+".to_vec(),
        n => vec![if n % 2 == 0 { b'[' } else { b'(' }, b'a' + pools.dice.roll(10) as u8],
    };
    weight => |pools| pools.one_of(&["1", "2", "-1", "0", "0.5", "1", "2", "inf", "-inf", "nan", "abc"]);
    // Too far ahead to pass during a run, or so early that the key goes at once, or invalid. No two are
    // equal: with GT and LT the slower of two servers would decide.
    secs => |pools| match pools.dice.roll(8) {
        0 => pools.one_of(&["0", "-1", "-100000", "9223372036854775807", "-9223372036854775808", "9223372036854775", "abc", "1.5", ""]),
        _ => text(pools.number(1_000, 4_000_000_000)),
    };
    millis => |pools| match pools.dice.roll(8) {
        0 => pools.one_of(&["0", "-1", "-100000", "9223372036854775807", "-9223372036854775808", "abc", "1.5", ""]),
        _ => text(pools.number(1_000_000, 4_000_000_000_000)),
    };
    at => |pools| match pools.dice.roll(8) {
        0 => pools.one_of(&["0", "1", "-1", "9223372036854775807", "-9223372036854775808", "9223372036854776", "abc", "1.5"]),
        _ => text(pools.number(8_000_000_000, 9_000_000_000)),
    };
    atmillis => |pools| match pools.dice.roll(8) {
        0 => pools.one_of(&["0", "1", "-1", "9223372036854775807", "-9223372036854775808", "abc", "1.5"]),
        _ => text(pools.number(8_000_000_000_000, 9_000_000_000_000)),
    };
    // Infinities are refused with another error since 7.2.
    timeout => |pools| pools.one_of(&["0.01", "0.01", "0.01", "-1", "abc", "", "nan"]);
    glob => |pools| pools.one_of(&[
        "*", "*", "?", "s*", "*1", "[a-m]*", "[^a]*", "*[0-9]", "\\*", "[", "**", "*\r\n*", "{set}?", "", "[z-a]*", "a", "f?",
    ]);
    kind => |pools| pools.one_of(&["string", "list", "hash", "set", "zset", "stream", "STRING", "nosuch"]);
    word => |pools| pools.one_of(&["abc", "NX", "XX", "COUNT", "LIMIT", "", "*", "KEEPTTL", "STORE"]);
    name => |pools| pools.one_of(&["", "me", "a name", "new\nline", "you"]);

    // Bit fields.
    bittype => |pools| match pools.dice.roll(12) {
        0 => pools.one_of(&["u64", "i65", "u0", "i0", "x8", "8", "", "u-1"]),
        1 => pools.one_of(&["i64", "u63", "u1", "i1"]),
        _ => {
            let sign = if pools.dice.percent(50) { 'u' } else { 'i' };
            text(format!("{sign}{}", pools.number(2, 40)))
        }
    };
    bitoffset => |pools| {
        let mark = if pools.dice.percent(30) { "#" } else { "" };
        match pools.dice.roll(20) {
            0 => pools.one_of(&["-1", "abc", "#", "#-1", "4294967296", "9223372036854775807", "#9223372036854775807"]),
            _ => text(format!("{mark}{}", pools.number(0, 40))),
        }
    };

    // Places on the earth.
    unit => |pools| pools.one_of(&["m", "km", "ft", "mi", "M", "Km", "km", "parsec"]);
    longitude => |pools| match pools.dice.roll(16) {
        0 => pools.one_of(&["-180", "180", "180.1", "-180.1", "abc", "nan", "inf"]),
        _ => text(pools.number(-1800, 1800) as f64 / 10.0),
    };
    latitude => |pools| match pools.dice.roll(16) {
        0 => pools.one_of(&["-85.05112878", "85.05112878", "86", "-90", "abc", "nan", "inf"]),
        _ => text(pools.number(-850, 850) as f64 / 10.0),
    };
    radius => |pools| match pools.dice.roll(16) {
        0 => pools.one_of(&["0", "-1", "abc", "1e10", "inf", "nan"]),
        _ => text(pools.number(1, 20_000)),
    };
    // Distances are no places: many members would share one.
    distkey => |pools| text(format!("distances{}", pools.dice.roll(2)));
    town => |pools| text(TOWNS[pools.dice.roll(TOWNS.len())].0);

    // SORT.
    by => |pools| pools.one_of(&["weight:*", "weight:*", "sorthash->*", "sorthash->f*", "*", "nosuch:*"]);
    get => |pools| pools.one_of(&["weight:*", "sorthash->*", "#", "#", "*", "nosuch:*", "fixed", "", "->", "*->", "->*"]);
    sortweight => |pools| text(format!("weight:{}", pools.number(-3, 12)));

    // Streams.
    newid => |pools| {
        let last = pools.last_id;
        match pools.dice.roll(16) {
            0 => pools.one_of(&["0-0", "0-1", "abc", "1-", "-1", "1-1-1", "18446744073709551616-1", "1-abc", ""]),
            1 => text(format!("{last}-*")),
            2 => text(last),
            3 => text(format!("{last}-{}", pools.dice.roll(5))),
            _ => {
                pools.last_id += 1 + pools.dice.roll(3) as u64;
                text(format!("{}-{}", pools.last_id, pools.dice.roll(4)))
            }
        }
    };
    id => |pools| {
        let near = pools.last_id.saturating_sub(pools.dice.roll(20) as u64);
        match pools.dice.roll(24) {
            0 => pools.one_of(&["0", "abc", "0-0", "18446744073709551615-18446744073709551615", "1-", "(0", "$", ">"]),
            1..=8 => text(near),
            _ => text(format!("{near}-{}", pools.dice.roll(4))),
        }
    };
    idfrom => |pools| {
        let near = pools.last_id.saturating_sub(pools.dice.roll(20) as u64);
        match pools.dice.roll(12) {
            0 => pools.one_of(&["+", "abc", "(", "(-", "(18446744073709551615-18446744073709551615"]),
            1..=4 => b"-".to_vec(),
            5..=6 => text(format!("({near}")),
            _ => text(near),
        }
    };
    idto => |pools| {
        let near = pools.last_id.saturating_sub(pools.dice.roll(20) as u64);
        match pools.dice.roll(12) {
            0 => pools.one_of(&["-", "abc", "(", "(+", "(0-0"]),
            1..=4 => b"+".to_vec(),
            5..=6 => text(format!("({near}-2")),
            _ => text(near),
        }
    };
    // Since 7.2 it may not be below a deleted ID either.
    setid => |pools| {
        pools.last_id += 1 + pools.dice.roll(3) as u64;
        if pools.dice.percent(10) { pools.one_of(&["abc", "1-", "-", "+", ""]) } else { text(pools.last_id) }
    };
    // Since 7.4 XREAD also takes a plus sign.
    readid => |pools| match pools.dice.roll(8) {
        0 => pools.one_of(&["abc", ">", "-", "0-0", "$"]),
        1..=2 => b"0".to_vec(),
        _ => text(pools.last_id.saturating_sub(pools.dice.roll(20) as u64)),
    };
    groupid => |pools| match pools.dice.roll(8) {
        0 => pools.one_of(&["abc", ">", "-", "+", "0-0"]),
        1..=3 => b"$".to_vec(),
        4..=5 => b"0".to_vec(),
        _ => text(pools.last_id.saturating_sub(pools.dice.roll(20) as u64)),
    };
    // Mostly entries that no consumer has read.
    groupnews => |pools| if pools.dice.percent(70) { b">".to_vec() } else { pools.one_of(&["0", "1", "$", "abc"]) };
    // At most the number of a stream's entries: since 7.2 it is cut down to that.
    entriesread => |pools| pools.one_of(&["0", "0", "-1", "-2", "abc", "1.5"]);
    group => |pools| match pools.dice.roll(16) {
        0 => pools.one_of(&["nogroup", ""]),
        n => text(format!("g{}", n % 3)),
    };
    consumer => |pools| pools.one_of(CONSUMERS);
    // Either all entries have been idle for this time, or none.
    idle => |pools| pools.one_of(&["0", "0", "0", "9000000000", "-1", "abc"]);
    threshold => |pools| pools.odd_integer().unwrap_or_else(|| text(pools.number(-1, 15)));

    // Only for tests that do not compare replies.
    soon => |pools| text(pools.number(1, 300));
    inexact => |pools| pools.one_of(&["0.1", "0.3", "3.3", "-0.7", "1e16", "1e-9", "0.1", "1234567.89"]);
    setkey => |pools| pools.key_of("set");
}

/// The consumers of groups.
pub const CONSUMERS: &[&str] = &["alice", "bob", "carol"];

/// Members with two places each. No two members have the same distance from anything.
const TOWNS: &[(&str, [(f64, f64); 2])] = &[
    ("palermo", [(13.361389, 38.115556), (13.5012, 38.2001)]),
    ("catania", [(15.087269, 37.502669), (15.1914, 37.6173)]),
    ("berlin", [(13.404954, 52.520008), (13.5517, 52.4071)]),
    ("quito", [(-78.467834, -0.180653), (-78.3112, -0.2109)]),
    ("suva", [(178.450076, -18.124809), (179.9917, -18.2213)]),
    ("nome", [(-165.406387, 64.501114), (-165.3101, 64.6103)]),
    ("lisbon", [(-9.139337, 38.722252), (-9.2218, 38.8007)]),
    ("perth", [(115.857048, -31.953512), (115.9126, -32.0519)]),
];

fn place(pools: &mut Pools, argv: &mut Argv) {
    let (town, positions) = pools.dice.pick(TOWNS);
    let (longitude, latitude) = *pools.dice.pick(positions);
    let refused = pools.dice.percent(3);
    argv.push(if refused { pools.one_of(&["181", "-180.5", "abc", "nan"]) } else { text(longitude) });
    argv.push(text(latitude));
    argv.push(text(town));
}

/// Keys, and the same number of IDs.
fn streams(pools: &mut Pools, argv: &mut Argv) {
    let n = 1 + pools.dice.roll(2);
    let key = symbol("key").expect("it is in the table above");
    (0..n).for_each(|_| key(pools, argv));
    let from_the_end = pools.dice.percent(50);
    let read_id = symbol("readid").expect("it is in the table above");
    for _ in 0..n {
        if from_the_end { argv.push(b">".to_vec()) } else { read_id(pools, argv) }
    }
}

/// A number of keys, the keys, and weights for all of them.
fn zinputs(pools: &mut Pools, argv: &mut Argv) {
    let n = 1 + pools.dice.roll(3);
    argv.push(text(if pools.dice.percent(4) { pools.dice.roll(5) } else { n }));
    let key = symbol("key").expect("it is in the table above");
    (0..n).for_each(|_| key(pools, argv));
    if pools.dice.percent(30) {
        argv.push(b"WEIGHTS".to_vec());
        let weight = symbol("weight").expect("it is in the table above");
        (0..n).for_each(|_| weight(pools, argv));
    }
}

/// One operation of BITFIELD. The row ensures that FAIL follows a write that does not fail. If every write
/// fails and only lengthens the string, WATCH sees a change here and none in redis-server.
fn field_operation(pools: &mut Pools, argv: &mut Argv) {
    let operation = *pools.dice.pick(&["GET", "SET", "INCRBY", "OVERFLOW"]);
    argv.push(text(operation));
    if operation == "OVERFLOW" {
        argv.push(pools.one_of(&["WRAP", "SAT", "wrap", "NOSUCH"]));
        return;
    }
    let names: &[&str] =
        if operation == "GET" { &["bittype", "bitoffset"] } else { &["bittype", "bitoffset", "amount"] };
    for name in names {
        symbol(name).expect("it is in the table above")(pools, argv);
    }
}

/// Any command of the table, as the arguments of another one.
fn command(pools: &mut Pools, argv: &mut Argv) {
    let table = Rc::clone(&pools.table);
    let family = pools.dice.pick(&table.families);
    pools.dice.pick(&family.rows).form.make(pools, argv);
}
