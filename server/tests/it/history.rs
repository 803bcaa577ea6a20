//! Records the observations of concurrent clients, and tests whether a serial order can explain them.
//!
//! Every write appends a token that is written once, so a key's final value *is* the order of its writes. A
//! read shows which of them came before it. This yields the edges of Adya's dependency graph without
//! guessing, as in Elle with lists: write → next write of the key, write → its readers, reader → the next
//! write. Each connection's order and real time are added: an operation that was answered before another was
//! sent comes first. A history is strictly serializable if this graph has no cycle.
//!
//! A script is one operation, whichever keys it uses. It returns the values that it has read, and appends
//! tokens of its own.
//!
//! The clients' choices are always the same unless `BRAID_SEED` is set, but their timing never is. Every
//! failure prints its seed.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::Instant,
};

use crate::support::{
    Client, Dice, Reply, Server,
    crowd::{ask, figure, while_connections_move},
    dice::seed,
};

const N_CLIENTS: usize = 8;
const N_ROUNDS: usize = 500;

/// The effects of one transaction, or of a command, which is a transaction of its own.
#[derive(Clone, Debug, Default)]
struct Operation {
    client: usize,
    asked: u64,
    answered: u64,
    /// The key of each read, and the number of tokens in its value.
    reads: Vec<(usize, usize)>,
    /// The key and the token of each write.
    writes: Vec<(usize, u64)>,
    what: String,
}

/// Returns the name of a key. Two keys share a shard, and the others have their own.
fn key_name(key: usize) -> String {
    match key {
        0 | 1 => format!("{{shared}}{key}"),
        key => format!("key{key}"),
    }
}

const N_KEYS: usize = 6;

/// The first key whose name follows from its number alone.
const FIRST_PLAIN_KEY: usize = 2;

/// The turns of a script's long loop, after which an I/O thread hands it over.
const LONG_TURNS: usize = 40_000;

/// The way in which a script finds the keys that it reads. It appends a token to a key if it has one for it.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Reach {
    /// All are declared.
    Declared,
    /// One is declared, and the other is composed.
    Derived,
    /// Data names each key, and the choice depends on the length of the values read before.
    Followed,
}

const REACHES: [Reach; 3] = [Reach::Declared, Reach::Derived, Reach::Followed];

impl Reach {
    /// Returns the Lua code of such a script. ARGV begins with the number of turns of an empty loop.
    fn body(self) -> String {
        match self {
            Reach::Declared => "
                local seen = {}
                for n = 1, #KEYS do
                    seen[n] = redis.call('GET', KEYS[n]) or ''
                    if ARGV[n + 1] ~= '' then redis.call('APPEND', KEYS[n], ARGV[n + 1]) end
                    for _ = 1, ARGV[1] do end
                end
                return seen"
                .to_owned(),
            Reach::Derived => "
                local derived = 'key' .. ARGV[2]
                local seen = {redis.call('GET', KEYS[1]) or '', redis.call('GET', derived) or ''}
                if ARGV[3] ~= '' then redis.call('APPEND', KEYS[1], ARGV[3]) end
                for _ = 1, ARGV[1] do end
                if ARGV[4] ~= '' then redis.call('APPEND', derived, ARGV[4]) end
                return seen"
                .to_owned(),
            Reach::Followed => format!(
                "
                local at, seen = ARGV[2], {{}}
                for n = 3, #ARGV do
                    local key = redis.call('GET', 'name:' .. at)
                    local value = redis.call('GET', key) or ''
                    seen[#seen + 1] = value
                    if ARGV[n] ~= '' then redis.call('APPEND', key, ARGV[n]) end
                    for _ = 1, ARGV[1] do end
                    at = #value % {N_KEYS}
                end
                return seen"
            ),
        }
    }

    fn function(self) -> String {
        format!("{self:?}").to_lowercase()
    }
}

/// Loads the scripts, as functions too, and writes the names that they follow.
fn prepare_scripts(client: &mut Client) -> [String; REACHES.len()] {
    for key in 0..N_KEYS {
        assert_eq!(ask(client, &format!("SET name:{key} {}", key_name(key))), "+OK");
    }
    let mut library = "#!lua name=history\n".to_owned();
    for reach in REACHES {
        for (suffix, flags) in [("", ""), ("_ro", "'no-writes'")] {
            library += &format!(
                "redis.register_function{{function_name = '{}{suffix}', flags = {{{flags}}},
                    callback = function(KEYS, ARGV) {} end}}\n",
                reach.function(),
                reach.body()
            );
        }
    }
    let loaded = client.command(&["FUNCTION", "LOAD", "REPLACE", &library]);
    assert_eq!(loaded.text().as_deref(), Some("history"), "{loaded}");
    REACHES.map(|reach| client.command(&["SCRIPT", "LOAD", &reach.body()]).text().expect("a digest"))
}

/// One run of a script.
#[derive(Clone, Debug)]
struct Script {
    reach: Reach,
    /// The keys that it reads, as far as they are known beforehand.
    keys: Vec<usize>,
    /// The token to append to each key that it reads, if any.
    tokens: Vec<Option<u64>>,
    turns: usize,
    /// The way of the call: by its text, its digest, or as a function.
    by: &'static str,
}

impl Script {
    fn command(&self, digests: &[String; REACHES.len()]) -> Vec<String> {
        let reads_only = self.tokens.iter().all(Option::is_none);
        let suffix = if reads_only { "_ro" } else { "" };
        let named = match self.by {
            "EVAL" => self.reach.body(),
            "EVALSHA" => digests[self.reach as usize].clone(),
            _ => self.reach.function() + suffix,
        };
        let names: Vec<String> = self.keys.iter().map(|key| key_name(*key)).collect();
        let tokens = self.tokens.iter().map(|token| token.map_or(String::new(), |token| format!("{token},")));
        let (declared, told) = match self.reach {
            Reach::Declared => (names, None),
            Reach::Derived => (names[..1].to_vec(), Some(self.keys[1])),
            Reach::Followed => (Vec::new(), Some(self.keys[0])),
        };
        let head = [self.by.to_owned() + suffix, named, declared.len().to_string()];
        let turns = std::iter::once(self.turns.to_string());
        let told = told.map(|key| key.to_string());
        head.into_iter().chain(declared).chain(turns).chain(told).chain(tokens).collect()
    }
}

/// Returns the number of tokens in a value.
fn n_tokens(value: &Reply, key: usize, orders: &mut HashMap<usize, Vec<u64>>) -> usize {
    let text = match value {
        Reply::Bulk(bytes) => String::from_utf8(bytes.clone()).expect("tokens are text"),
        Reply::Nil | Reply::Null => String::new(),
        other => panic!("GET {} answered {other}", key_name(key)),
    };
    let tokens: Vec<u64> = text.split_terminator(',').map(|token| token.parse().expect("a token")).collect();
    let known = orders.entry(key).or_default();
    let common = known.len().min(tokens.len());
    assert_eq!(
        known[..common],
        tokens[..common],
        "two reads of {} disagree on the order of its writes",
        key_name(key)
    );
    if tokens.len() > known.len() {
        *known = tokens.clone();
    }
    tokens.len()
}

struct Recorder {
    start: Instant,
    tokens: AtomicU64,
}

/// One client's part of a run: its operations, and the orders that it saw.
struct HistoryClient {
    id: usize,
    client: Client,
    dice: Dice,
    recorder: Arc<Recorder>,
    /// The digests of the scripts.
    digests: [String; REACHES.len()],
    operations: Vec<Operation>,
    orders: HashMap<usize, Vec<u64>>,
}

/// A command that was sent. Its kind decides how its reply is read.
#[derive(Clone, Debug)]
enum Sent {
    Get(usize),
    Append(usize, u64),
    Mget(Vec<usize>),
    Script(Script),
    /// MULTI, the commands, EXEC.
    Transaction(Vec<Sent>),
}

impl HistoryClient {
    fn now(&self) -> u64 {
        self.recorder.start.elapsed().as_nanos() as u64
    }

    fn token(&self) -> u64 {
        self.recorder.tokens.fetch_add(1, Ordering::Relaxed)
    }

    fn simple(&mut self) -> Sent {
        let key = self.dice.roll(N_KEYS);
        match self.dice.roll(5) {
            0 => Sent::Get(key),
            1 => Sent::Append(key, self.token()),
            2 => {
                let n = 2 + self.dice.roll(N_KEYS - 1);
                Sent::Mget((0..n).map(|_| self.dice.roll(N_KEYS)).collect())
            }
            _ => Sent::Script(self.script()),
        }
    }

    fn script(&mut self) -> Script {
        let reach = *self.dice.pick(&REACHES);
        let n = if reach == Reach::Derived { 2 } else { 1 + self.dice.roll(4) };
        let mut keys: Vec<usize> = (0..n).map(|_| self.dice.roll(N_KEYS)).collect();
        match reach {
            Reach::Declared => {}
            Reach::Derived => keys[1] = FIRST_PLAIN_KEY + self.dice.roll(N_KEYS - FIRST_PLAIN_KEY),
            Reach::Followed => keys.truncate(1),
        }
        let chance = *self.dice.pick(&[0, 30, 100]);
        let tokens = (0..n).map(|_| self.dice.percent(chance).then(|| self.token())).collect();
        let turns = if self.dice.percent(2) { LONG_TURNS } else { 0 };
        let by = self.dice.pick(&["EVAL", "EVALSHA", "FCALL"]);
        Script { reach, keys, tokens, turns, by }
    }

    fn any(&mut self) -> Sent {
        match self.dice.roll(3) {
            0 => {
                let n = 1 + self.dice.roll(4);
                Sent::Transaction((0..n).map(|_| self.simple()).collect())
            }
            _ => self.simple(),
        }
    }

    fn send(&mut self, sent: &Sent) {
        match sent {
            Sent::Get(key) => self.client.send(&["GET", &key_name(*key)]),
            Sent::Append(key, token) => self.client.send(&["APPEND", &key_name(*key), &format!("{token},")]),
            Sent::Mget(keys) => {
                let names = keys.iter().map(|key| key_name(*key));
                let words: Vec<String> = std::iter::once("MGET".to_owned()).chain(names).collect();
                self.client.send(&words);
            }
            Sent::Script(script) => self.client.send(&script.command(&self.digests)),
            Sent::Transaction(queue) => {
                self.client.send(&["MULTI"]);
                queue.iter().for_each(|queued| self.send(queued));
                self.client.send(&["EXEC"]);
            }
        }
    }

    fn understand(&mut self, sent: &Sent, reply: &Reply, operation: &mut Operation) {
        match (sent, reply) {
            (Sent::Get(key), value) => {
                let n = n_tokens(value, *key, &mut self.orders);
                operation.reads.push((*key, n));
            }
            (Sent::Append(key, token), Reply::Integer(_)) => operation.writes.push((*key, *token)),
            (Sent::Mget(keys), Reply::Array(values)) => {
                for (key, value) in keys.iter().zip(values) {
                    let n = n_tokens(value, *key, &mut self.orders);
                    operation.reads.push((*key, n));
                }
            }
            (Sent::Script(script), Reply::Array(values)) => self.understand_script(script, values, operation),
            (Sent::Transaction(queue), Reply::Array(replies)) => {
                assert_eq!(queue.len(), replies.len());
                for (queued, reply) in queue.iter().zip(replies) {
                    self.understand(queued, reply, operation);
                }
            }
            (sent, other) => panic!("an unexpected reply to {sent:?}: {other}"),
        }
    }

    fn understand_script(&mut self, script: &Script, values: &[Reply], operation: &mut Operation) {
        assert_eq!(script.tokens.len(), values.len());
        let mut next = script.keys[0];
        for (nth, (token, value)) in script.tokens.iter().zip(values).enumerate() {
            let key = script.keys.get(nth).copied().unwrap_or(next);
            operation.reads.push((key, n_tokens(value, key, &mut self.orders)));
            operation.writes.extend(token.map(|token| (key, token)));
            let Reply::Bulk(bytes) = value else { unreachable!("its tokens were read") };
            next = bytes.len() % N_KEYS;
        }
    }

    fn receive(&mut self, sent: &Sent) -> Reply {
        if let Sent::Transaction(queue) = sent {
            assert_eq!(self.client.receive().to_string(), "+OK");
            for _ in queue {
                assert_eq!(self.client.receive().to_string(), "+QUEUED");
            }
        }
        self.client.receive()
    }

    /// Sends a pipeline of one or more commands.
    fn pipeline(&mut self) {
        let n = 1 + self.dice.roll(6);
        let all: Vec<Sent> = (0..n).map(|_| self.any()).collect();
        let asked = self.now();
        for sent in &all {
            self.send(sent);
        }
        for sent in &all {
            let reply = self.receive(sent);
            let mut operation =
                Operation { client: self.id, asked, answered: self.now(), ..Operation::default() };
            self.understand(sent, &reply, &mut operation);
            operation.what = format!("{sent:?}");
            self.operations.push(operation);
        }
    }

    /// Runs WATCH, reads, and writes that depend on them. This is one transaction if EXEC runs, and otherwise
    /// only reads.
    fn optimistic(&mut self) {
        let key = self.dice.roll(N_KEYS);
        let other = self.dice.roll(N_KEYS);
        let asked = self.now();
        self.client.command(&["WATCH", &key_name(key), &key_name(other)]);
        let mut reading = Operation { client: self.id, asked, ..Operation::default() };
        for key in [key, other] {
            let value = self.client.command(&["GET", &key_name(key)]);
            reading.reads.push((key, n_tokens(&value, key, &mut self.orders)));
        }
        let change = match self.dice.percent(50) {
            true => Sent::Append(key, self.token()),
            false => Sent::Script(self.script()),
        };
        let queue = [change];
        let transaction = Sent::Transaction(queue.into());
        self.send(&transaction);
        match self.receive(&transaction) {
            reply @ Reply::Array(_) => self.understand(&transaction, &reply, &mut reading),
            Reply::Nil | Reply::NilArray | Reply::Null => {
                // The two reads of a transaction that did not run saw two moments.
                let answered = self.now();
                let (first, second) = (reading.reads[0], reading.reads[1]);
                for read in [first, second] {
                    self.operations.push(Operation { reads: vec![read], answered, ..reading.clone() });
                }
                return;
            }
            other => panic!("EXEC answered {other}"),
        }
        reading.answered = self.now();
        reading.what = format!("WATCH … {transaction:?}");
        self.operations.push(reading);
    }
}

/// Runs the clients. Returns their operations and the final order of each key's writes.
fn record(server: &Server, seed: u64) -> (Vec<Operation>, HashMap<usize, Vec<u64>>) {
    let recorder = Arc::new(Recorder { start: Instant::now(), tokens: AtomicU64::new(0) });
    let digests = prepare_scripts(&mut server.connect());
    let parts: Vec<_> = (0..N_CLIENTS)
        .map(|id| {
            let mut part = HistoryClient {
                id,
                client: server.connect(),
                dice: Dice(seed ^ (id as u64) << 32),
                recorder: Arc::clone(&recorder),
                digests: digests.clone(),
                operations: Vec::new(),
                orders: HashMap::new(),
            };
            thread::spawn(move || {
                for _ in 0..N_ROUNDS {
                    if part.dice.roll(4) == 0 { part.optimistic() } else { part.pipeline() }
                }
                (part.operations, part.orders)
            })
        })
        .collect();
    let mut operations = Vec::new();
    let mut orders = HashMap::new();
    for part in parts {
        let (part_operations, part_orders) =
            part.join().unwrap_or_else(|_| panic!("a client failed; seed {seed}"));
        operations.extend(part_operations);
        for (key, order) in part_orders {
            let known: &mut Vec<u64> = orders.entry(key).or_default();
            let common = known.len().min(order.len());
            assert_eq!(
                known[..common],
                order[..common],
                "clients disagree on {}; seed {seed}",
                key_name(key)
            );
            if order.len() > known.len() {
                *known = order;
            }
        }
    }
    let mut client = server.connect();
    for key in 0..N_KEYS {
        let value = client.command(&["GET", &key_name(key)]);
        n_tokens(&value, key, &mut orders);
    }
    (operations, orders)
}

/// Finds a cycle in the order of operations. Returns the operations on it.
fn find_cycle(operations: &[Operation], orders: &HashMap<usize, Vec<u64>>) -> Option<Vec<usize>> {
    let n = operations.len();
    // The moments of real time come after the operations and form a chain.
    let mut edges: Vec<Vec<usize>> = vec![Vec::new(); n];
    let mut writer = HashMap::new();
    for (index, operation) in operations.iter().enumerate() {
        for write in &operation.writes {
            writer.insert(*write, index);
        }
    }
    let writer_of = |key: usize, at: usize| -> Option<usize> {
        let token = *orders.get(&key)?.get(at)?;
        Some(
            *writer
                .get(&(key, token))
                .unwrap_or_else(|| panic!("{token} of {} was never acknowledged", key_name(key))),
        )
    };
    let add = |edges: &mut Vec<Vec<usize>>, from: usize, to: usize| {
        if from != to {
            edges[from].push(to);
        }
    };
    for (&key, order) in orders {
        for at in 1..order.len() {
            add(&mut edges, writer_of(key, at - 1).unwrap(), writer_of(key, at).unwrap());
        }
    }
    for (index, operation) in operations.iter().enumerate() {
        for &(key, n_seen) in &operation.reads {
            if n_seen > 0 {
                add(&mut edges, writer_of(key, n_seen - 1).unwrap(), index);
            }
            if let Some(next) = writer_of(key, n_seen) {
                add(&mut edges, index, next);
            }
        }
        for write in &operation.writes {
            let acknowledged = orders.get(&write.0).is_some_and(|order| order.contains(&write.1));
            assert!(acknowledged, "an acknowledged write of {} is lost: {write:?}", key_name(write.0));
        }
    }
    let mut last_of_client = HashMap::new();
    for (index, operation) in operations.iter().enumerate() {
        if let Some(before) = last_of_client.insert(operation.client, index)
            // The reads of a transaction that did not run have no order.
            && operations[before].answered != operation.answered
        {
            add(&mut edges, before, index);
        }
    }
    let mut moments: Vec<(u64, usize)> =
        operations.iter().enumerate().map(|(index, operation)| (operation.answered, index)).collect();
    moments.sort_unstable();
    for (nth, &(_, index)) in moments.iter().enumerate() {
        edges.push(Vec::new());
        edges[index].push(n + nth);
        if nth > 0 {
            edges[n + nth - 1].push(n + nth);
        }
    }
    for (index, operation) in operations.iter().enumerate() {
        let n_before = moments.partition_point(|&(answered, _)| answered < operation.asked);
        if n_before > 0 {
            edges[n + n_before - 1].push(index);
        }
    }
    cycle_in(&edges).map(|cycle| cycle.into_iter().filter(|&index| index < n).collect())
}

/// Searches depth-first without recursion. Returns the nodes of a cycle if there is one.
fn cycle_in(edges: &[Vec<usize>]) -> Option<Vec<usize>> {
    #[derive(Clone, Copy, PartialEq)]
    enum State {
        New,
        Open,
        Done,
    }
    let mut state = vec![State::New; edges.len()];
    for root in 0..edges.len() {
        if state[root] != State::New {
            continue;
        }
        state[root] = State::Open;
        let mut path = vec![(root, 0)];
        while let Some((node, next)) = path.last_mut() {
            let Some(&to) = edges[*node].get(*next) else {
                state[*node] = State::Done;
                path.pop();
                continue;
            };
            *next += 1;
            match state[to] {
                State::Done => {}
                State::New => {
                    state[to] = State::Open;
                    path.push((to, 0));
                }
                State::Open => {
                    let start =
                        path.iter().position(|&(node, _)| node == to).expect("open nodes are on the path");
                    return Some(path[start..].iter().map(|&(node, _)| node).collect());
                }
            }
        }
    }
    None
}

fn check(io_threads: usize, shards: usize) {
    let seed = seed();
    println!("seed {seed}, {io_threads} threads, {shards} shards");
    let server = Server::start(&["--io-threads", &io_threads.to_string(), "--shards", &shards.to_string()]);
    judge(record(&server, seed), seed);
    assert_ne!(figure(&mut server.connect(), "lane_runs"), 0, "some script reached for keys that data names");
    server.stop();
}

/// Panics unless a serial order explains a history.
fn judge((operations, orders): (Vec<Operation>, HashMap<usize, Vec<u64>>), seed: u64) {
    if let Some(cycle) = find_cycle(&operations, &orders) {
        for index in &cycle {
            println!("{:?}", operations[*index]);
        }
        panic!("no serial order explains these {} operations; seed {seed}", cycle.len());
    }
}

/// The same test while connections move between threads.
#[test]
fn connections_that_move() {
    let seed = seed();
    println!("seed {seed}, connections move");
    let server = Server::start(&["--io-threads", "4", "--io-threads-always-active", "no"]);
    while_connections_move(&server, 4, || {
        assert_eq!(ask(&mut server.connect(), "FLUSHALL"), "+OK");
        judge(record(&server, seed), seed);
    });
}

#[test]
fn one_thread_one_shard() {
    check(1, 1);
}

#[test]
fn one_thread_many_shards() {
    check(1, 1024);
}

#[test]
fn two_threads_one_shard() {
    check(2, 1);
}

#[test]
fn two_threads_many_shards() {
    check(2, 1024);
}

#[test]
fn eight_threads_many_shards() {
    check(8, 1024);
}

#[test]
fn eight_threads_one_shard() {
    check(8, 1);
}

#[test]
fn four_threads_few_shards() {
    check(4, 4);
}

/// The checker itself: it must find violations.
mod checker {
    use super::*;

    fn operation(client: usize, at: u64, reads: &[(usize, usize)], writes: &[(usize, u64)]) -> Operation {
        Operation {
            client,
            asked: at,
            answered: at + 10,
            reads: reads.into(),
            writes: writes.into(),
            what: String::new(),
        }
    }

    #[test]
    fn a_serial_history_passes() {
        let operations = [
            operation(0, 0, &[(0, 0)], &[(0, 1)]),
            operation(1, 20, &[(0, 1)], &[(0, 2)]),
            operation(0, 40, &[(0, 2)], &[]),
        ];
        assert_eq!(find_cycle(&operations, &HashMap::from([(0, vec![1, 2])])), None);
    }

    #[test]
    fn a_stale_read_is_found() {
        // The read was sent after the reply to the write and does not see it.
        let operations = [operation(0, 0, &[], &[(0, 1)]), operation(1, 20, &[(0, 0)], &[])];
        assert!(find_cycle(&operations, &HashMap::from([(0, vec![1])])).is_some());
    }

    #[test]
    fn a_fractured_read_is_found() {
        // One transaction writes both keys, but a reader sees only one of the writes.
        let operations = [operation(0, 0, &[], &[(0, 1), (1, 2)]), operation(1, 5, &[(0, 1), (1, 0)], &[])];
        assert!(find_cycle(&operations, &HashMap::from([(0, vec![1]), (1, vec![2])])).is_some());
    }

    #[test]
    fn a_lost_update_is_found() {
        // Both read the empty value before they wrote.
        let operations = [operation(0, 0, &[(0, 0)], &[(0, 1)]), operation(1, 5, &[(0, 0)], &[(0, 2)])];
        assert!(find_cycle(&operations, &HashMap::from([(0, vec![1, 2])])).is_some());
    }
}
