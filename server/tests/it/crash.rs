//! Kills a server again and again while clients work, its file is rewritten, and its settings change. Each
//! later server must have all promised data.
//!
//! ```text
//! always     every answered write and every value that was read is there
//! no         every answered write is there: the system has it, as only the process ends
//! everysec   data that WAITAOF has confirmed is there; writes during a sync may be lacking
//! off        later writes are not promised until the file is on again and has been rewritten
//! ```
//!
//! The server also ends in all ways in which no answered write may be lost, whatever the settings: with the
//! file, or with a last snapshot in its place.
//!
//! `make crash` kills it a thousand times. `BRAID_KILLS` sets this number, and `BRAID_SEED` repeats the
//! choices.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    process::Command,
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst},
    },
    thread::Scope,
};

use crate::support::{
    Client, Dice, Reply, Server,
    crowd::{ask, figure, until},
    dice,
    home::Home,
};

const N_WORKERS: usize = 4;
const N_POPPERS: usize = 2;
const N_ACCOUNTS: usize = 8;

/// The value of an acknowledgement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Level {
    Off,
    Everysec,
    No,
    Always,
}

impl Level {
    const LOGGED: [Level; 3] = [Level::Everysec, Level::No, Level::Always];

    fn fsync(self) -> &'static str {
        match self {
            Level::Everysec => "everysec",
            Level::No => "no",
            Level::Always => "always",
            Level::Off => unreachable!("then there is no file"),
        }
    }

    fn of(word: u64) -> Level {
        [Level::Off, Level::Everysec, Level::No, Level::Always][word as usize % 4]
    }
}

/// The present promise. While it changes, it is the lesser of the old and the new one.
struct Promise(AtomicU64);

impl Promise {
    fn new(level: Level) -> Promise {
        Promise(AtomicU64::new(level as u64))
    }

    fn set(&self, level: Level) {
        let n_changes = self.0.load(SeqCst) / 4;
        self.0.store((n_changes + 1) * 4 + level as u64, SeqCst);
    }

    /// Runs something. Returns the promise that held from its beginning to its end.
    fn during<T>(&self, work: impl FnOnce() -> T) -> (T, Level) {
        let before = self.0.load(SeqCst);
        let done = work();
        let level = if self.0.load(SeqCst) == before { Level::of(before) } else { Level::Off };
        (done, level)
    }
}

/// The data that must be there after the kill.
#[derive(Debug, Default)]
struct Known {
    /// The bounds of each key that counts: the least and the most.
    counts: BTreeMap<String, (i64, i64)>,
    /// Elements that were pushed to the queue and must be there, unless they were popped.
    pushed: BTreeSet<String>,
    /// Elements that were popped, and whether they must not be there again.
    popped: BTreeMap<String, bool>,
    /// The ends of leases.
    leases: BTreeMap<String, (String, i64)>,
}

impl Known {
    fn at_least(&mut self, key: &str, count: i64) {
        let known = self.counts.entry(key.to_owned()).or_default();
        *known = (known.0.max(count), known.1.max(count));
    }

    fn at_most(&mut self, key: &str, count: i64) {
        let known = self.counts.entry(key.to_owned()).or_default();
        known.1 = known.1.max(count);
    }
}

/// One life of a server.
struct Life {
    promise: Promise,
    known: Mutex<Known>,
    n_done: AtomicUsize,
    is_over: AtomicBool,
}

impl Life {
    fn new(level: Level, known: Known) -> Self {
        Self {
            promise: Promise::new(level),
            known: Mutex::new(known),
            n_done: AtomicUsize::new(0),
            is_over: AtomicBool::new(false),
        }
    }

    /// Starts clients of the server.
    fn begin<'s>(&'s self, scope: &'s Scope<'s, '_>, server: &Server, dice: &mut Dice) {
        for nth in 0..N_WORKERS {
            let (client, dice) = (server.connect(), Dice(dice.roll(1 << 40) as u64));
            scope.spawn(move || Worker { life: self, nth, client, dice }.work());
        }
        for _ in 0..N_POPPERS {
            let client = server.connect();
            scope.spawn(move || pop(self, client));
        }
    }
}

fn number(reply: &Reply) -> i64 {
    match reply {
        Reply::Integer(number) => *number,
        Reply::Nil => 0,
        reply => reply.text().and_then(|text| text.parse().ok()).unwrap_or_else(|| panic!("{reply}")),
    }
}

/// The error that ends a client with its server.
type Gone = std::io::Error;

struct Worker<'l> {
    life: &'l Life,
    nth: usize,
    client: Client,
    dice: Dice,
}

impl Worker<'_> {
    fn work(mut self) {
        while self.step().is_ok() {
            self.life.n_done.fetch_add(1, SeqCst);
        }
        assert!(self.life.is_over.load(SeqCst), "the server closes a connection");
    }

    fn run(&mut self, words: &[&str]) -> Result<(Reply, Level), Gone> {
        let (promise, client) = (&self.life.promise, &mut self.client);
        let (reply, level) = promise.during(|| client.try_command(words));
        let reply = reply?;
        assert!(!reply.is_error(), "{words:?}: {reply}");
        Ok((reply, level))
    }

    fn known(&self, note: impl FnOnce(&mut Known)) {
        note(&mut self.life.known.lock().expect("nobody panics with it"));
    }

    /// Increments a key by some command.
    fn count(&mut self, key: &str, words: &[&str]) -> Result<(), Gone> {
        self.known(|known| {
            let most = known.counts.get(key).map_or(0, |&(_, most)| most);
            known.at_most(key, most + 1);
        });
        let (reply, level) = self.run(words)?;
        let count = number(&reply);
        if level >= Level::No {
            self.known(|known| known.at_least(key, count));
        } else if self.dice.percent(20) {
            // Data that WAITAOF confirms is on disk. Where nothing is synced, it waits in vain.
            let promise = &self.life.promise;
            let client = &mut self.client;
            let (reply, level) = promise.during(|| client.try_command(&["WAITAOF", "1", "0", "50"]));
            if reply?.to_string() == "[:1 :0]" && level >= Level::Everysec {
                self.known(|known| known.at_least(key, count));
            }
        }
        Ok(())
    }

    fn step(&mut self) -> Result<(), Gone> {
        let nth = self.nth;
        match self.dice.roll(10) {
            0 | 1 => {
                let key = format!("counter:{nth}");
                self.count(&key, &["INCR", &key])
            }
            2 => {
                let from = format!("account:{}", self.dice.roll(N_ACCOUNTS));
                let to = format!("account:{}", self.dice.roll(N_ACCOUNTS));
                for words in [&["MULTI"][..], &["DECRBY", &from, "5"], &["INCRBY", &to, "5"], &["EXEC"]] {
                    self.run(words)?;
                }
                Ok(())
            }
            3 => {
                const SCRIPT: &str =
                    "local n = redis.call('INCR', KEYS[1]) redis.call('HSET', KEYS[2], 'n', n) return n";
                let (key, hash) = (format!("script:{nth}"), format!("hash:{nth}"));
                self.count(&key, &["EVAL", SCRIPT, "2", &key, &hash])
            }
            4 => {
                let key = format!("list:{nth}");
                self.count(&key, &["RPUSH", &key, "element"])
            }
            5 => {
                // No two are equal, over all lives.
                let (reply, _) = self.run(&["INCR", "ids"])?;
                let id = format!("id:{nth}:{}:{}", number(&reply), self.dice.roll(1 << 30));
                let (_, level) = self.run(&["LPUSH", "queue", &id])?;
                if level >= Level::No {
                    self.known(|known| _ = known.pushed.insert(id));
                }
                Ok(())
            }
            6 => {
                let (key, other) = (format!("counter:{}", self.dice.roll(N_WORKERS)), "other");
                let words = if self.dice.percent(50) { &["GET", &key][..] } else { &["MGET", &key, other] };
                let (reply, level) = self.run(words)?;
                if level == Level::Always {
                    let count = match &reply {
                        Reply::Array(replies) => number(&replies[0]),
                        reply => number(reply),
                    };
                    self.known(|known| known.at_least(&key, count));
                }
                Ok(())
            }
            7 => {
                let (key, gone) = (format!("lease:{nth}"), format!("gone:{nth}"));
                let value = self.dice.roll(1 << 30).to_string();
                self.run(&["SET", &key, &value, "PX", "100000000"])?;
                let (ends, _) = self.run(&["PEXPIRETIME", &key])?;
                self.known(|known| _ = known.leases.insert(key, (value, number(&ends))));
                self.run(&["SET", &gone, "1", "PX", "1"])?;
                Ok(())
            }
            8 => {
                let key = format!("function:{nth}");
                let most = self.life.known.lock().expect("nobody panics with it").counts[&key].1 + 1;
                self.known(|known| known.at_most(&key, most));
                let code = library(nth, most);
                let (_, level) = self.run(&["FUNCTION", "LOAD", "REPLACE", &code])?;
                if level >= Level::No {
                    self.known(|known| known.at_least(&key, most));
                }
                Ok(())
            }
            _ => {
                let (key, large) = (format!("size:{nth}"), format!("large:{nth}"));
                let digit = char::from(b'0' + self.dice.roll(10) as u8);
                let value: String = std::iter::repeat_n(digit, 20_000 + self.dice.roll(100_000)).collect();
                let length = value.len().to_string();
                self.run(&["MSET", &large, &value, &key, &length])?;
                Ok(())
            }
        }
    }
}

/// Returns a library of a worker, with a function that returns a number.
fn library(nth: usize, number: i64) -> String {
    let function = format!("redis.register_function{{function_name='f{nth}', callback=function() return");
    format!("#!lua name=l{nth}\n{function} {number} end, flags={{'no-writes'}}}}")
}

/// Returns the count that a key has reached.
fn count_of(client: &mut Client, key: &str) -> i64 {
    let (kind, nth) = key.split_once(':').expect("its name says what counts");
    match kind {
        "list" => number(&client.command(&["LLEN", key])),
        "function" => {
            let told = client.command(&["FCALL", &format!("f{nth}"), "0"]);
            if told.is_error() { 0 } else { number(&told) }
        }
        _ => number(&client.command(&["GET", key])),
    }
}

/// Waits for pushed elements and pops them.
fn pop(life: &Life, mut client: Client) {
    loop {
        let (reply, level) = life.promise.during(|| client.try_command(&["BRPOP", "queue", "0"]));
        let Ok(Reply::Array(popped)) = reply else { break };
        let id = popped[1].text().expect("ids are text");
        life.known.lock().expect("nobody panics with it").popped.insert(id, level >= Level::No);
    }
    assert!(life.is_over.load(SeqCst), "the server closes a connection");
}

/// Changes settings and files while clients work, until they have done `n_steps` steps.
fn disturb(life: &Life, mut client: Client, mut level: Level, (dice, n_steps): (&mut Dice, usize)) {
    let is_enough = || life.n_done.load(SeqCst) >= n_steps;
    let calm = dice.percent(20);
    while !is_enough() {
        let (n_before, n_more) = (life.n_done.load(SeqCst), 5 + dice.roll(60));
        until("clients go on", || is_enough() || life.n_done.load(SeqCst) >= n_before + n_more);
        if calm {
            continue;
        }
        match dice.roll(6) {
            0..3 => {
                let reply = ask(&mut client, "BGREWRITEAOF");
                assert!(reply.starts_with("+Background") || reply.starts_with("-ERR Background"), "{reply}");
            }
            3 | 4 => {
                let next = *dice.pick(&Level::LOGGED);
                life.promise.set(level.min(next));
                assert_eq!(ask(&mut client, &format!("CONFIG SET appendfsync {}", next.fsync())), "+OK");
                life.promise.set(next);
                level = next;
            }
            _ => {
                life.promise.set(Level::Off);
                assert_eq!(ask(&mut client, "CONFIG SET appendonly no"), "+OK");
                // A rewrite in progress is counted a moment after its end, and could pass for the base.
                let mut is_idle = || figure(&mut client, "aof_rewrite_in_progress") == 0;
                until("it is off, and nothing is rewritten", || is_enough() || is_idle());
                if is_enough() {
                    return;
                }
                let n_rewritten = figure(&mut client, "aof_rewrites");
                assert_eq!(ask(&mut client, "CONFIG SET appendonly yes"), "+OK");
                until("it has its base", || is_enough() || figure(&mut client, "aof_rewrites") > n_rewritten);
                if is_enough() {
                    return;
                }
                life.promise.set(level);
            }
        }
    }
}

/// Checks whether the next server has the promised data.
fn look(client: &mut Client, known: &Known) {
    let value = |client: &mut Client, key: &str| number(&client.command(&["GET", key]));
    for (key, &(least, most)) in &known.counts {
        let count = count_of(client, key);
        assert!((least..=most).contains(&count), "{key} is {count}, and was {least} to {most}");
    }
    let accounts = (0..N_ACCOUNTS).map(|nth| value(client, &format!("account:{nth}")));
    assert_eq!(accounts.sum::<i64>(), 0, "a transaction was torn");
    for nth in 0..N_WORKERS {
        let counted = number(&client.command(&["HGET", &format!("hash:{nth}"), "n"]));
        assert_eq!(counted, value(client, &format!("script:{nth}")), "a script was torn");
        let large = client.command(&["GET", &format!("large:{nth}")]).text().unwrap_or_default();
        assert_eq!(large.len() as i64, value(client, &format!("size:{nth}")), "MSET was torn");
        assert!(large.bytes().all(|byte| byte == large.as_bytes()[0]), "a value is mixed up");
        assert_ne!(ask(client, &format!("PTTL gone:{nth}")), ":-1", "a key has lost its deadline");
        let lease = format!("lease:{nth}");
        if let Some((value, ends)) = known.leases.get(&lease)
            && ask(client, &format!("GET {lease}")) == format!("\"{value}\"")
        {
            assert_eq!(number(&client.command(&["PEXPIRETIME", &lease])), *ends, "{lease}");
        }
    }
    let Reply::Array(queued) = client.command(&["LRANGE", "queue", "0", "-1"]) else {
        panic!("it is a list")
    };
    let queued: Vec<String> = queued.iter().map(|id| id.text().expect("ids are text")).collect();
    let distinct: BTreeSet<&String> = queued.iter().collect();
    assert_eq!(distinct.len(), queued.len(), "what was pushed once is there twice");
    for (id, _) in known.popped.iter().filter(|(_, must_be_gone)| **must_be_gone) {
        assert!(!distinct.contains(id), "{id} was popped, and is there again");
    }
    let is_missing = |id: &&String| !distinct.contains(id) && !known.popped.contains_key(*id);
    let missing: Vec<&String> = known.pushed.iter().filter(is_missing).collect();
    assert!(missing.len() <= N_POPPERS, "pushed, and popped by nobody: {missing:?}");
}

/// Returns the data that the next server must have at least. The server has been killed before, so the data
/// is on disk.
fn take_stock(client: &mut Client) -> Known {
    let mut known = Known::default();
    for nth in 0..N_WORKERS {
        for kind in ["counter", "script", "list", "function"] {
            let key = format!("{kind}:{nth}");
            known.at_least(&key, count_of(client, &key));
        }
    }
    let Reply::Array(queued) = client.command(&["LRANGE", "queue", "0", "-1"]) else {
        panic!("it is a list")
    };
    known.pushed = queued.iter().map(|id| id.text().expect("ids are text")).collect();
    known
}

fn n_kills() -> usize {
    std::env::var("BRAID_KILLS").map_or(20, |kills| kills.parse().expect("BRAID_KILLS is a number"))
}

#[test]
fn what_was_promised_outlives_every_kill() {
    let seed = dice::seed();
    println!("BRAID_SEED={seed}");
    let home = Home::new();
    let mut before: Option<Known> = None;
    for nth in 0..n_kills() {
        // The choices of each life can be repeated without those before it.
        let mut dice = Dice(seed.wrapping_mul(1_000_003).wrapping_add(nth as u64));
        let level = *dice.pick(&Level::LOGGED);
        let threads = *dice.pick(&["1", "2", "4"]);
        let shards = *dice.pick(&["1", "64", "1024"]);
        let preamble = *dice.pick(&["yes", "no"]);
        println!(
            "life {nth}: appendfsync {}, {threads} threads, {shards} shards, preamble {preamble}",
            level.fsync()
        );
        if nth > 0 {
            home.check_after_kill();
        }
        let mut server = home.serve(&[
            "--appendfsync",
            level.fsync(),
            "--io-threads",
            threads,
            "--shards",
            shards,
            "--aof-use-rdb-preamble",
            preamble,
        ]);
        let mut client = server.connect();
        if let Some(known) = &before {
            look(&mut client, known);
        }
        let life = Life::new(level, take_stock(&mut client));
        let n_steps = 50 + dice.roll(500);
        std::thread::scope(|scope| {
            let life = &life;
            life.begin(scope, &server, &mut dice);
            let disturbed =
                catch_unwind(AssertUnwindSafe(|| disturb(life, client, level, (&mut dice, n_steps))));
            // In any case, or the clients would work for ever.
            life.is_over.store(true, SeqCst);
            server.kill();
            disturbed.unwrap_or_else(|panic| resume_unwind(panic));
        });
        before = Some(life.known.into_inner().expect("nobody panics with it"));
    }
    home.check_after_kill();
}

/// A way in which a server ends without loss of data.
#[derive(Clone, Copy, Debug)]
enum End {
    Signal(&'static str),
    Command(&'static str),
}

impl End {
    const ALL: [End; 5] = [
        End::Signal("-TERM"),
        End::Signal("-INT"),
        End::Command("SHUTDOWN"),
        End::Command("SHUTDOWN SAVE"),
        End::Command("SHUTDOWN NOW FORCE"),
    ];

    fn ask(self, server: &Server) -> Client {
        let mut client = server.connect();
        match self {
            End::Command(line) => client.send(&line.split(' ').collect::<Vec<_>>()),
            End::Signal(name) => {
                let sent = Command::new("kill").args([name, &server.pid().to_string()]).status();
                assert!(sent.expect("kill is everywhere").success());
            }
        }
        client
    }
}

/// Ends its server when dropped, also by a panic, because its clients would work for ever.
struct Ended<'s>(&'s mut Server);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.kill();
    }
}

/// Requests an end that fails, because its snapshot cannot be written or because it is called off. All
/// clients that waited for the end continue.
fn end_in_vain(server: &Server, control: &mut Client, life: &Life, end: End, fails: bool) {
    // With FORCE it would end.
    let End::Command("SHUTDOWN" | "SHUTDOWN SAVE") = end else { return };
    let set = |control: &mut Client, name: &str, value: &str| {
        assert_eq!(control.command(&["CONFIG", "SET", name, value]).to_string(), "+OK");
    };
    if fails {
        set(control, "dbfilename", "taken.rdb");
    }
    let mut client = end.ask(server);
    if !fails {
        let mut is_aborted = || match ask(control, "SHUTDOWN ABORT").as_str() {
            "+OK" => true,
            "-ERR No shutdown in progress." => false,
            other => panic!("{other}"),
        };
        until("it is under way, and called off", &mut is_aborted);
    }
    assert_eq!(client.receive().to_string(), "-ERR Errors trying to SHUTDOWN. Check logs.");
    set(control, "dbfilename", "dump.rdb");
    let n_before = life.n_done.load(SeqCst);
    until("clients go on", || life.n_done.load(SeqCst) > n_before + 4 * N_WORKERS);
}

/// After the cut of the last snapshot, writes used to continue and were answered. They were lost with the
/// process, and so were values that other clients had read.
fn what_was_answered_outlives_every_end(settings: &[&str], saves: bool) {
    let seed = dice::seed();
    println!("BRAID_SEED={seed}");
    let home = Home::new();
    // No snapshot can be renamed to that.
    fs::create_dir_all(home.path().join("taken.rdb/full")).expect("the folder is the test's own");
    let path = home.path().to_str().expect("it is UTF-8").to_owned();
    let mut before: Option<Known> = None;
    for nth in 0..=n_kills() {
        let mut dice = Dice(seed.wrapping_mul(1_000_003).wrapping_add(nth as u64));
        let end = *dice.pick(&End::ALL);
        let (threads, shards) = (*dice.pick(&["1", "2", "4"]), *dice.pick(&["1", "64", "1024"]));
        println!("life {nth}: {end:?}, {threads} threads, {shards} shards");
        let own = ["--dir", &path, "--io-threads", threads, "--shards", shards];
        let own = [&own[..], &["--enable-protected-configs", "yes"]].concat();
        let mut server = Server::start(&[&own[..], settings].concat());
        let mut client = server.connect();
        if let Some(known) = &before {
            look(&mut client, known);
        }
        // Saving this many keys takes a while.
        assert_eq!(ask(&mut client, "DEBUG POPULATE 500 filler"), "+OK");
        assert_eq!(ask(&mut client, "CONFIG SET rdb-key-save-delay 100"), "+OK");
        let life = Life::new(Level::Always, take_stock(&mut client));
        let n_steps = 20 + dice.roll(300);
        std::thread::scope(|scope| {
            let life = &life;
            let Ended(server) = &mut Ended(&mut server);
            life.begin(scope, server, &mut dice);
            until("clients have worked", || life.n_done.load(SeqCst) > n_steps);
            if saves && dice.percent(40) {
                end_in_vain(server, &mut client, life, end, dice.percent(50));
            }
            life.is_over.store(true, SeqCst);
            let _asking = end.ask(server);
            assert!(server.await_end().success(), "{}", server.log_tail());
        });
        before = Some(life.known.into_inner().expect("nobody panics with it"));
    }
}

#[test]
fn what_was_answered_outlives_every_end_with_a_last_snapshot() {
    what_was_answered_outlives_every_end(&["--save", "3600 1000000"], true);
}

#[test]
fn what_was_answered_outlives_every_end_with_a_file() {
    what_was_answered_outlives_every_end(&["--appendonly", "yes", "--appendfsync", "everysec"], false);
}

#[test]
fn what_was_answered_outlives_every_end_with_a_file_and_a_last_snapshot() {
    let settings = ["--appendonly", "yes", "--appendfsync", "no", "--save", "3600 1000000"];
    what_was_answered_outlives_every_end(&settings, true);
}
