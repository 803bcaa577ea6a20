//! Scripts move money between accounts that they do not declare. A client that reads all accounts at once
//! sees the whole sum.
//!
//! The clients' choices are always the same unless `BRAID_SEED` is set. Each client has a number of tasks,
//! and each task must be answered in time. So a script that is given up again and again fails the test, as
//! one that makes no progress does.

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::support::{
    Client, Dice, Reply, Server,
    crowd::{ask, crowd, laid_out},
    dice,
};

const LAYOUTS: [(usize, usize); 6] = [(1, 1), (1, 1024), (2, 1), (2, 1024), (8, 1), (8, 1024)];

const N_ACCOUNTS: usize = 24;
const START: i64 = 1000;
const WHOLE: i64 = N_ACCOUNTS as i64 * START;

const N_CLIENTS: usize = 9;
const N_ROUNDS: usize = 400;

/// Turns of a loop that are too long for an I/O thread.
const LONG_TURNS: usize = 40_000;

/// Move money. The arguments are an amount, the number of accounts, two numbers that select the first
/// accounts, and the turns of an empty loop. All except the last two use accounts that only data names.
const MOVERS: [&str; 10] = [
    // Writes before it knows the second account.
    "local from = redis.call('GET', 'pointer:' .. ARGV[3])
     redis.call('DECRBY', from, ARGV[1])
     local to = redis.call('GET', 'pointer:' .. ARGV[4])
     redis.call('INCRBY', to, ARGV[1])
     return {from, to}",
    // Each balance leads to the next account.
    "local at = ARGV[3]
     for n = 1, 5 do
         local next = redis.call('DECRBY', 'account:' .. at, ARGV[1]) % tonumber(ARGV[2])
         redis.call('INCRBY', 'account:' .. next, ARGV[1])
         at = next
     end
     return at",
    // Long, if at all, before it writes: it moves to another thread.
    "for n = 1, ARGV[5] do end
     local from = redis.call('GET', 'pointer:' .. ARGV[3])
     redis.call('DECRBY', from, ARGV[1])
     redis.call('INCRBY', redis.call('GET', 'pointer:' .. ARGV[4]), ARGV[1])",
    // Long, if at all, once it has written, while the sum is partial.
    "redis.call('DECRBY', redis.call('GET', 'pointer:' .. ARGV[3]), ARGV[1])
     for n = 1, ARGV[5] do end
     redis.call('INCRBY', redis.call('GET', 'pointer:' .. ARGV[4]), ARGV[1])",
    // Changes the pointers that others follow.
    "local one, other = 'pointer:' .. ARGV[3], 'pointer:' .. ARGV[4]
     local from, to = redis.call('GET', one), redis.call('GET', other)
     redis.call('SET', one, to)
     redis.call('DECRBY', from, ARGV[1])
     redis.call('SET', other, from)
     redis.call('INCRBY', to, ARGV[1])",
    // Uses all keys after it has written.
    "redis.call('DECRBY', redis.call('GET', 'pointer:' .. ARGV[3]), ARGV[1])
     local all = redis.call('KEYS', 'account:*')
     redis.call('INCRBY', all[1 + ARGV[4] % #all], ARGV[1])
     return redis.call('DBSIZE')",
    // A failed command has no effect, and the script compensates for it.
    "local from = redis.call('GET', 'pointer:' .. ARGV[3])
     redis.call('DECRBY', from, ARGV[1])
     local failed = redis.pcall('INCRBY', 'list', ARGV[1])
     local caught, why = pcall(redis.call, 'INCRBY', 'list', ARGV[1])
     if failed.err and not caught then redis.call('INCRBY', from, ARGV[1]) end",
    // Ends with an error after all its work.
    "redis.call('INCRBY', redis.call('GET', 'pointer:' .. ARGV[4]), ARGV[1])
     redis.call('DECRBY', redis.call('GET', 'pointer:' .. ARGV[3]), ARGV[1])
     error('done')",
    // Its keys follow from its arguments.
    "redis.call('DECRBY', 'account:' .. ARGV[3], ARGV[1])
     return redis.call('INCRBY', 'account:' .. ARGV[4], ARGV[1])",
    // All keys are declared.
    "redis.call('DECRBY', KEYS[1], ARGV[1])
     return redis.call('INCRBY', KEYS[2], ARGV[1])",
];

/// Add up the accounts, and write nothing.
const ADDERS: [&str; 2] = [
    "local sum = 0
     for n = 0, ARGV[1] - 1 do sum = sum + redis.call('GET', 'account:' .. n) end
     return sum",
    "local sum = 0
     for _, key in ipairs(redis.call('KEYS', 'account:*')) do sum = sum + redis.call('GET', key) end
     return sum",
];

/// One of the clients, with counts of its work.
struct SumClient<'a> {
    id: usize,
    client: &'a mut Client,
    dice: Dice,
    n_answered: &'a [AtomicUsize; N_CLIENTS],
    server: &'a Server,
}

impl SumClient<'_> {
    fn command(&mut self, argv: &[impl AsRef<[u8]>]) -> Reply {
        let reply = self.client.try_command(argv).unwrap_or_else(|error| {
            let words: Vec<_> = argv.iter().map(|word| String::from_utf8_lossy(word.as_ref())).collect();
            let n_answered: Vec<usize> =
                self.n_answered.iter().map(|count| count.load(Ordering::Relaxed)).collect();
            panic!("{error}: {words:?}; the clients had {n_answered:?} replies\n{}", self.server.log_tail())
        });
        self.n_answered[self.id].fetch_add(1, Ordering::Relaxed);
        reply
    }

    /// Returns the arguments of one of the movers.
    fn move_words(&mut self) -> Vec<String> {
        let mover = self.dice.roll(MOVERS.len());
        let amount = (1 + self.dice.roll(9)).to_string();
        let (from, to) = (self.dice.roll(N_ACCOUNTS), self.dice.roll(N_ACCOUNTS));
        let head = if self.dice.percent(30) {
            ["FCALL".to_owned(), format!("move{mover}")]
        } else {
            ["EVAL".to_owned(), MOVERS[mover].to_owned()]
        };
        let keys = ["2".to_owned(), format!("account:{from}"), format!("account:{to}")];
        let n_turns = if self.dice.percent(20) { LONG_TURNS } else { 0 };
        let args = [amount, N_ACCOUNTS.to_string(), from.to_string(), to.to_string(), n_turns.to_string()];
        head.into_iter().chain(keys).chain(args).collect()
    }

    fn move_money(&mut self) {
        let words = self.move_words();
        match self.dice.roll(5) {
            0 => {
                let more = self.move_words();
                self.command(&["MULTI"]);
                self.command(&words);
                self.command(&["DECRBY", &words[3], "3"]);
                self.command(&more);
                self.command(&["INCRBY", &more[4], "3"]);
                let Reply::Array(replies) = self.command(&["EXEC"]) else { panic!("EXEC returns an array") };
                replies.iter().for_each(expect_done);
            }
            1 => {
                self.command(&["WATCH", &words[3]]);
                self.command(&["MULTI"]);
                self.command(&words);
                // Another client may have written the account.
                if let Reply::Array(replies) = self.command(&["EXEC"]) {
                    replies.iter().for_each(expect_done);
                }
            }
            _ => expect_done(&self.command(&words)),
        }
    }

    fn add_up(&mut self) -> i64 {
        let n_accounts = N_ACCOUNTS.to_string();
        let gets = (0..N_ACCOUNTS).map(|n| format!("account:{n}"));
        match self.dice.roll(5) {
            0 => {
                let words: Vec<String> = std::iter::once("MGET".to_owned()).chain(gets).collect();
                sum(&self.command(&words))
            }
            1 => {
                self.command(&["MULTI"]);
                gets.for_each(|key| assert_eq!(self.command(&["GET", &key]).to_string(), "+QUEUED"));
                sum(&self.command(&["EXEC"]))
            }
            2 => {
                let adder = *self.dice.pick(&ADDERS);
                integer(&self.command(&["EVAL_RO", adder, "0", &n_accounts]))
            }
            3 => {
                let adder = *self.dice.pick(&ADDERS);
                self.command(&["MULTI"]);
                self.command(&["EVAL", adder, "0", &n_accounts]);
                let Reply::Array(replies) = self.command(&["EXEC"]) else { panic!("EXEC returns an array") };
                integer(&replies[0])
            }
            _ => {
                let adder = format!("add{}", self.dice.roll(ADDERS.len()));
                integer(&self.command(&["FCALL_RO", &adder, "0", &n_accounts]))
            }
        }
    }
}

/// Panics if a script has failed with an unexpected error.
fn expect_done(reply: &Reply) {
    let is_meant = |text: String| text.contains(": done script: ");
    assert!(!reply.is_error() || reply.text().is_some_and(is_meant), "{reply:?}");
}

fn integer(reply: &Reply) -> i64 {
    reply.integer().unwrap_or_else(|| panic!("a sum is an integer, not {reply:?}"))
}

fn sum(balances: &Reply) -> i64 {
    let Reply::Array(balances) = balances else { panic!("balances are an array, not {balances:?}") };
    let balance = |reply: &Reply| reply.text().and_then(|text| text.parse::<i64>().ok());
    balances.iter().map(|reply| balance(reply).expect("a balance")).sum()
}

fn open_accounts(client: &mut Client) {
    for n in 0..N_ACCOUNTS {
        ask(client, &format!("SET account:{n} {START}"));
        ask(client, &format!("SET pointer:{n} account:{n}"));
    }
    ask(client, "RPUSH list x");
    let mut library = "#!lua name=money\n".to_owned();
    for (n, body) in MOVERS.iter().enumerate() {
        library += &format!("redis.register_function('move{n}', function(KEYS, ARGV) {body} end)\n");
    }
    for (n, body) in ADDERS.iter().enumerate() {
        library += &format!(
            "redis.register_function{{function_name = 'add{n}', flags = {{'no-writes'}},
                callback = function(KEYS, ARGV) {body} end}}\n"
        );
    }
    let loaded = client.command(&["FUNCTION", "LOAD", &library]);
    assert_eq!(loaded.text().as_deref(), Some("money"), "{loaded}");
}

#[test]
fn a_sum_is_whole_at_every_moment() {
    let seed = dice::seed();
    for layout in LAYOUTS {
        println!("seed {seed}");
        let server = laid_out(layout);
        open_accounts(&mut server.connect());
        let n_answered = [const { AtomicUsize::new(0) }; N_CLIENTS];
        crowd(&server, N_CLIENTS, |id, client| {
            let dice = Dice(seed ^ (id as u64) << 32);
            let mut part = SumClient { id, client, dice, n_answered: &n_answered, server: &server };
            for _ in 0..N_ROUNDS {
                match id % 3 {
                    0 => assert_eq!(part.add_up(), WHOLE, "client {id}, {layout:?}, seed {seed}"),
                    _ => part.move_money(),
                }
            }
        });
        let sum = integer(&server.connect().command(&["EVAL_RO", ADDERS[0], "0", &N_ACCOUNTS.to_string()]));
        assert_eq!(sum, WHOLE);
    }
}
