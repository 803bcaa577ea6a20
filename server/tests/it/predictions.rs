//! Random scripts, whose keys are predicted from their texts.
//!
//! They run at the same time over few shards, and then one after another in the order in which they took
//! effect. Every reply and every key must be the same. Each script first draws a ticket and leaves it in a
//! key of its own, because a script that ends with an error answers nothing else. Each of several databases
//! has a ticket. So scripts of one database follow each other, and compete for shards with those of the
//! others. All databases use the same names, because a key's database does not affect its shard.
//!
//! The keys of many scripts are certain beforehand. Such scripts write without a way back, so they must wait
//! for all their keys before they begin.

use std::collections::{BTreeSet, HashMap};

use crate::support::{
    Client, Dice, Reply, Server,
    crowd::{ask, crowd, figure, laid_out, until},
    dice,
};

const LAYOUTS: [(usize, usize); 5] = [(1, 4), (2, 4), (8, 2), (8, 16), (8, 1024)];

const N_DATABASES: usize = 4;
const N_CLIENTS: usize = 2 * N_DATABASES;
const N_TEXTS: usize = 80;
const N_ROUNDS: usize = 150;

/// The parts of key names, few so that scripts collide.
const NAMES: [&str; 6] = ["a", "b", "c", "d", "1", "{a}2"];

/// A maker of script texts.
struct Author<'d> {
    dice: &'d mut Dice,
    /// Without functions, caught errors and keys from data.
    is_plain: bool,
    n_loops: usize,
}

impl Author<'_> {
    fn script(&mut self) -> String {
        let body = self.block(3);
        let functions = if self.is_plain {
            ""
        } else {
            "local function either(a, b) if #a > #b then return a end return b end
             local function store(a, b) redis.call('SET', a, b) v3 = a return a .. #b end\n"
        };
        format!(
            "redis.call('SET', 'run:' .. ARGV[1], redis.call('INCR', 'ticket'))
             local v0, v1, v2, v3 = KEYS[1], ARGV[2], 'c', KEYS[2] .. 'd'
             local t, seen = {{KEYS[1], 'b', x = ARGV[3]}}, {{}}
             {functions}{body}
             return {{seen, v0, v1, v2, v3, t.x, unpack(t)}}"
        )
    }

    fn block(&mut self, depth: usize) -> String {
        let n = 1 + self.dice.roll(3);
        (0..n).map(|_| self.statement(depth)).collect::<Vec<_>>().join("\n")
    }

    fn statement(&mut self, depth: usize) -> String {
        if depth > 0 && self.dice.percent(45) {
            return self.branch(depth - 1);
        }
        let (a, b) = (self.value(2), self.value(2));
        let (n, at) = (self.dice.roll(4), 1 + self.dice.roll(3));
        match self.dice.roll(19) {
            0..=2 => format!("redis.call('APPEND', {a}, 'x')"),
            3..=4 => format!("seen[#seen + 1] = redis.call('GET', {a}) or '-'"),
            5 => format!("redis.call('SET', {a}, {b})"),
            6 => format!("seen[#seen + 1] = redis.pcall('COPY', {a}, {b}, 'REPLACE')"),
            7 => format!("redis.call('MSET', {a}, 'm', {b}, ARGV[3])"),
            8 => format!("seen[#seen + 1] = redis.call('DEL', {a}, {b})"),
            9 => "seen[#seen + 1] = redis.call('EXISTS', unpack(t))".to_owned(),
            10 => format!("v{n} = {a}"),
            11 => format!("local v{n} = {a}"),
            12 => format!("v{n}, v{at} = v{at}, {a}"),
            13 => format!("t[{at}] = {a}"),
            14 => format!("t.x = {a}"),
            15 => format!("table.insert(t, {a})"),
            16 => format!("t = {{{a}, {b}, x = {a}}}"),
            17 => format!("local u = t u[{at}] = {a}"),
            _ if self.is_plain => "for _ = 1, 2000 do end".to_owned(),
            _ => format!("v{n} = store({a}, {b})"),
        }
    }

    fn branch(&mut self, depth: usize) -> String {
        let condition = self.condition();
        self.n_loops += 1;
        let turn = format!("n{}", self.n_loops);
        let block = self.block(depth);
        match self.dice.roll(if self.is_plain { 9 } else { 11 }) {
            0..=2 => format!("if {condition} then\n{block}\nelse\n{}\nend", self.block(depth)),
            3 => format!("if {condition} then\n{block}\ndo return {{seen, 'early'}} end end"),
            4 => format!("for {turn} = 1, 3 do\n{block}\nif {condition} then break end\nend"),
            5 => format!("for {turn} = 1, #KEYS do\nv2 = KEYS[{turn}]\n{block}\nend"),
            6 => format!("for _, v1 in ipairs(KEYS) do\n{block}\nend"),
            7 => format!("local {turn} = 0 while {turn} < 3 do {turn} = {turn} + 1\n{block}\nend"),
            8 => format!(
                "local {turn} = 0 repeat {turn} = {turn} + 1\n{block}\nuntil {turn} > 1 or {condition}"
            ),
            9 => {
                format!("for {turn}, v2 in ipairs({{v0, ARGV[2], t.x}}) do\n{block}\nv3 = v2 .. {turn}\nend")
            }
            _ => format!(
                "local caught{turn} = pcall(function()\n{block}\nif {condition} then error('x') end\nend)"
            ),
        }
    }

    fn condition(&mut self) -> String {
        let (a, b) = (self.value(1), self.value(1));
        match self.dice.roll(5) {
            0 => format!("{a} == {b}"),
            1 => format!("#({a}) > {}", self.dice.roll(4)),
            2 => format!("redis.call('EXISTS', {a}) == 1"),
            3 => format!("not (ARGV[2] == {b})"),
            _ => format!("#(redis.call('GET', {a}) or '') % 2 == 1"),
        }
    }

    /// Returns an expression, which is mostly a text.
    ///
    /// A text grows only by parts of constant length. In nested loops it would grow to gigabytes otherwise.
    fn value(&mut self, depth: usize) -> String {
        if depth > 0 && self.dice.percent(35) {
            let (a, b) = (self.value(depth - 1), self.value(depth - 1));
            return match self.dice.roll(if self.is_plain { 4 } else { 9 }) {
                0 => format!("({a} .. {})", self.short()),
                1 => format!("({} .. {b})", self.short()),
                2 => format!("({a} or {b})"),
                3 => format!("({} and {a} or {b})", self.condition()),
                4 => format!("either({a}, {b})"),
                5 => format!("string.sub({a}, 1, 2)"),
                6 => format!("table.concat({{{a}, 'z'}}, {})", self.short()),
                7 => format!("tostring({a})"),
                _ => format!("(redis.call('GET', {a}) or {b})"),
            };
        }
        match self.dice.roll(8) {
            0..4 => self.short(),
            4 | 5 => format!("v{}", self.dice.roll(4)),
            6 => "t.x".to_owned(),
            _ => format!("t[{}]", 1 + self.dice.roll(2)),
        }
    }

    /// Returns an expression whose length does not depend on variables.
    fn short(&mut self) -> String {
        match self.dice.roll(4) {
            0 => format!("KEYS[{}]", 1 + self.dice.roll(3)),
            1 => format!("ARGV[{}]", 2 + self.dice.roll(3)),
            2 => format!("'{}'", self.dice.pick(&NAMES)),
            _ => self.dice.roll(12).to_string(),
        }
    }
}

fn texts(seed: u64) -> Vec<String> {
    let mut dice = Dice(seed);
    (0..N_TEXTS).map(|n| Author { dice: &mut dice, is_plain: n % 2 == 0, n_loops: 0 }.script()).collect()
}

/// A script that ran.
struct Run {
    id: String,
    words: Vec<String>,
    reply: Reply,
    /// Whether [`ALONGSIDE`] followed it, within EXEC.
    is_accompanied: bool,
}

/// The command after a script that runs within EXEC.
const ALONGSIDE: &str = "APPEND a y";

/// One of the clients.
struct PredictionClient<'a> {
    id: usize,
    client: &'a mut Client,
    dice: Dice,
    texts: &'a [String],
    runs: Vec<Run>,
}

impl PredictionClient<'_> {
    /// Sends a script with arguments of its own. Its reply is yet to come.
    fn run(&mut self) -> Run {
        let id = format!("{}-{}", self.id, self.runs.len());
        let mut name = || (*self.dice.pick(&NAMES)).to_owned();
        let keys = [name(), name(), name()];
        let arguments = [id.clone(), name(), name(), name()];
        let text = self.dice.pick(self.texts).clone();
        let head = ["EVAL".to_owned(), text, keys.len().to_string()];
        let words = head.into_iter().chain(keys).chain(arguments).collect();
        Run { id, words, reply: Reply::Nil, is_accompanied: self.dice.percent(20) }
    }

    fn round(&mut self) {
        let mut run = self.run();
        if run.is_accompanied {
            assert_eq!(ask(self.client, "MULTI"), "+OK");
            assert_eq!(self.client.command(&run.words).to_string(), "+QUEUED");
            assert_eq!(ask(self.client, ALONGSIDE), "+QUEUED");
            let Reply::Array(replies) = self.client.command(&["EXEC"]) else { panic!("an array") };
            run.reply = replies[0].clone();
        } else {
            run.reply = self.client.command(&run.words);
        }
        self.runs.push(run);
    }
}

/// Runs random scripts from many clients. Returns those of each database in the order in which they took
/// effect.
fn run_at_once(server: &Server, texts: &[String], seed: u64) -> Vec<Vec<Run>> {
    let parts = crowd(server, N_CLIENTS, |id, client| {
        assert_eq!(ask(client, &format!("SELECT {}", id % N_DATABASES)), "+OK");
        let dice = Dice(seed ^ (id as u64) << 32);
        let mut part = PredictionClient { id, client, dice, texts, runs: Vec::new() };
        (0..N_ROUNDS).for_each(|_| part.round());
        part.runs
    });
    let mut databases: Vec<Vec<Run>> = (0..N_DATABASES).map(|_| Vec::new()).collect();
    for (id, runs) in parts.into_iter().enumerate() {
        databases[id % N_DATABASES].extend(runs);
    }
    let mut client = server.connect();
    for (database, runs) in databases.iter_mut().enumerate() {
        ask(&mut client, &format!("SELECT {database}"));
        let tickets: HashMap<String, usize> = runs
            .iter()
            .map(|run| {
                let ticket = client.command(&["GET", &format!("run:{}", run.id)]).text();
                let drawn = ticket.and_then(|text| text.parse().ok());
                (run.id.clone(), drawn.unwrap_or_else(|| panic!("no ticket: {:?}", run.reply)))
            })
            .collect();
        runs.sort_by_key(|run| tickets[&run.id]);
        let drawn: Vec<usize> = runs.iter().map(|run| tickets[&run.id]).collect();
        assert!(drawn.into_iter().eq(1..=runs.len()), "each run has taken effect once");
    }
    databases
}

/// Runs scripts again, one after another, and compares their replies. Returns how many were certain, and how
/// many were not.
fn run_again(server: &Server, databases: &[Vec<Run>], context: &str) -> (usize, usize) {
    let mut client = server.connect();
    let (mut n_certain, mut n_open) = (0, 0);
    for (database, runs) in databases.iter().enumerate() {
        ask(&mut client, &format!("SELECT {database}"));
        for run in runs {
            let n_before = figure(&mut client, "lane_runs");
            let reply = client.command(&run.words);
            assert_eq!(run.reply, reply, "{context}:\n{}\n{:?}", run.words[1], &run.words[2..]);
            // A script that is not certain takes the lane before it writes, and each script writes.
            match figure(&mut client, "lane_runs") - n_before {
                0 => n_certain += 1,
                _ => n_open += 1,
            }
            if run.is_accompanied {
                ask(&mut client, ALONGSIDE);
            }
        }
    }
    (n_certain, n_open)
}

#[test]
fn scripts_at_random_take_effect_one_after_another() {
    let seed = dice::seed();
    for (nth, layout) in LAYOUTS.into_iter().enumerate() {
        let seed = seed.wrapping_mul(LAYOUTS.len() as u64) + nth as u64;
        println!("seed {seed}");
        let texts = texts(seed);
        let server = laid_out(layout);
        let databases = run_at_once(&server, &texts, seed);
        let alone = laid_out((1, 1));
        let (n_certain, n_open) = run_again(&alone, &databases, &format!("{layout:?}, seed {seed}"));
        let digest = |server: &Server| ask(&mut server.connect(), "DEBUG DIGEST");
        assert_eq!(digest(&server), digest(&alone));
        println!("{n_certain} scripts were certain, {n_open} were not");
        let n_few = (n_certain + n_open) / 10;
        assert!(n_certain > n_few && n_open > n_few, "{n_certain} were certain, {n_open} were not");
    }
}

/// Runs a script on a server without other clients. Returns the keys that it uses if they are certain
/// beforehand.
fn certain_keys(client: &mut Client, monitor: &mut Client, words: &[String]) -> Option<BTreeSet<String>> {
    assert_eq!(ask(client, "FLUSHALL"), "+OK");
    let n_before = figure(client, "lane_runs");
    client.command(words);
    let is_certain = figure(client, "lane_runs") == n_before;
    client.command(&["ECHO", "end"]);
    let mut keys = BTreeSet::new();
    loop {
        let line = monitor.receive().text().expect("a line");
        if line.contains("\"ECHO\"") {
            return is_certain.then_some(keys);
        }
        if line.contains(" lua] ") {
            let quoted = line.split('"').skip(1).step_by(2);
            let command: Vec<&str> = ["COMMAND", "GETKEYS"].into_iter().chain(quoted).collect();
            let Reply::Array(of_command) = client.command(&command) else { panic!("no keys in {line}") };
            keys.extend(of_command.iter().map(|key| key.text().expect("keys are texts")));
        }
    }
}

/// A certain script does not begin while another one holds the lane and one of its keys.
#[test]
fn scripts_that_are_certain_have_all_their_keys_from_the_beginning() {
    let seed = dice::seed();
    println!("seed {seed}");
    let texts = texts(seed.wrapping_mul(1000));
    let (server, alone) = (laid_out((2, 1024)), laid_out((1, 1)));
    let (mut client, mut holder, mut control) = (server.connect(), server.connect(), server.connect());
    let (mut tried, mut monitor) = (alone.connect(), alone.connect());
    assert_eq!(ask(&mut monitor, "MONITOR"), "+OK");
    assert_eq!(ask(&mut control, "CONFIG SET busy-reply-threshold 1"), "+OK");
    let mut dice = Dice(seed);
    let mut n_held = 0;
    for text in &texts[..N_TEXTS / 2] {
        let mut name = || (*dice.pick(&NAMES)).to_owned();
        let of_script = ["EVAL".to_owned(), text.clone(), "3".to_owned(), name(), name(), name()];
        let arguments = ["id".to_owned(), name(), name(), name()];
        let words: Vec<String> = of_script.into_iter().chain(arguments).collect();
        let Some(keys) = certain_keys(&mut tried, &mut monitor, &words) else { continue };
        for key in keys {
            assert_eq!(ask(&mut control, "FLUSHALL"), "+OK");
            hold(&mut holder, &mut control, &key);
            let reply = client.command(&words).to_string();
            assert!(
                reply.starts_with("-BUSY"),
                "{reply}: it reaches for {key}, seed {seed}\n{words:?}\n{text}"
            );
            until("the holder may be killed", || ask(&mut control, "SCRIPT KILL") == "+OK");
            holder.receive();
            // The key did not exist when the script was refused.
            assert_eq!(ask(&mut control, "DBSIZE"), ":0");
            n_held += 1;
        }
    }
    assert!(n_held >= 12, "only {n_held} keys were held");
}

/// Makes a client hold a key's shard and the lane, until its script is killed.
fn hold(holder: &mut Client, control: &mut Client, key: &str) {
    assert_eq!(ask(holder, "MULTI"), "+OK");
    assert_eq!(holder.command(&["GET", key]).to_string(), "+QUEUED");
    let endless = "redis.call('GET', redis.call('GET', KEYS[1]) or KEYS[1]) while true do end";
    assert_eq!(holder.command(&["EVAL", endless, "1", key]).to_string(), "+QUEUED");
    holder.send(&["EXEC"]);
    until("the key is held", || control.command(&["GET", key]).to_string().starts_with("-BUSY"));
}

/// Facts that a script's text does not show. These are the name of a command, an argument that changes which
/// others are keys, and a growing text.
#[test]
fn keys_that_a_text_does_not_show_are_not_certain() {
    let long = "x".repeat(1 << 20);
    let odd: [(&str, &[&str]); 9] = [
        ("return redis.call(ARGV[1], KEYS[1], ARGV[2])", &["RENAME", "shown:not"]),
        ("return redis.call('GEORADIUS', KEYS[1], 0, 0, 1, 'm', ARGV[1], ARGV[2])", &["STORE", "shown:not"]),
        ("return redis.call('XREAD', unpack(ARGV))", &["STREAMS", "shown:not", "0"]),
        ("return redis.call('MEMORY', ARGV[1], ARGV[2])", &["USAGE", "shown:not"]),
        ("return redis.call('XGROUP', ARGV[1], ARGV[2], 'g', '$', 'MKSTREAM')", &["CREATE", "shown:not"]),
        ("return redis.call('STRLEN', ARGV[1] .. ARGV[2])", &["shown:not", &long]),
        ("local t = {x = KEYS[1]} for n = 1, 9 do redis.call('EXISTS', t.x) t.x = t.x .. 6 end", &[]),
        ("local t = {x = KEYS[1]} for n = 1, 9 do redis.call('EXISTS', t.x) t = {x = t.x .. 6} end", &[]),
        ("local t = {KEYS[1]} while #t[1] < 14 do redis.call('EXISTS', t[1]) t[1] = t[1] .. '6' end", &[]),
    ];
    let server = laid_out((2, 1024));
    let (mut client, mut holder, mut control) = (server.connect(), server.connect(), server.connect());
    assert_eq!(ask(&mut control, "CONFIG SET busy-reply-threshold 1"), "+OK");
    let mut wrong = Vec::new();
    for (line, argv) in odd {
        let held = match argv {
            [] => "declared66666".to_owned(),
            [first, second] if line.contains("STRLEN") => format!("{first}{second}"),
            [_, key, ..] => (*key).to_owned(),
            [_] => unreachable!("none has one argument"),
        };
        // The key is held until the script arrives, but not without end.
        let long = "redis.call('GET', redis.call('GET', KEYS[1]) or KEYS[1]) for n = 1, 1e8 do end";
        assert_eq!(ask(&mut holder, "MULTI"), "+OK");
        assert_eq!(holder.command(&["EVAL", long, "1", &held]).to_string(), "+QUEUED");
        holder.send(&["EXEC"]);
        until("the key is held", || control.command(&["GET", &held]).to_string().starts_with("-BUSY"));
        let text = format!("redis.call('GEOADD', KEYS[1], 1, 1, 'm') {line}");
        let reply = client.command(&[&["EVAL", &text, "1", "declared"], argv].concat()).to_string();
        holder.receive();
        if reply.contains("does not show") {
            wrong.push(line);
        }
        assert_eq!(ask(&mut control, "FLUSHALL"), "+OK");
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}
