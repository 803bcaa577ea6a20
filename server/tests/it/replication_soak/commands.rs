//! The random commands: those of the differential tests' table, and the rows below, in the same notation.

use std::{collections::BTreeSet, rc::Rc};

use crate::{
    differential::{
        form::Form,
        pools::{Pools, symbol},
        table::Table,
    },
    support::{Client, Dice, Reply, values::Argv},
};

/// More commands, each with the family of its keys: those that only Braid and later versions have, and those
/// whose result is chance, or passes with time.
const ROWS: &[(&str, &str)] = &[
    ("string", "SET key value PX soon"),
    ("string", "PSETEX key soon value"),
    ("string", "GETEX key PX soon"),
    ("string", "SET key value IFEQ value"),
    ("string", "DELIFEQ key value"),
    ("string", "MSETEX 2 key value key value [NX|XX] [PX soon|EX secs|KEEPTTL]"),
    ("string", "INCREX key BYINT int [PX soon|EX secs]"),
    ("string", "INCREX key BYFLOAT inexact"),
    ("string", "INCRBYFLOAT key inexact"),
    ("keys", "PEXPIRE key soon"),
    ("keys", "PEXPIRE key soon"),
    ("keys", "COPY key key DB db REPLACE"),
    ("keys", "MOVE key db"),
    ("keys", "RENAME key key"),
    ("bits", "BITOP (DIFF|DIFF1|ANDOR|ONE) key key key+"),
    ("list", "LMOVEM key key (LEFT|RIGHT) (LEFT|RIGHT) COUNT count"),
    ("list", "BLPOP key+ 0.05"),
    ("list", "BLMOVE key key (LEFT|RIGHT) (LEFT|RIGHT) 0.05"),
    ("list", "BLMPOP 0.05 #(key+) (LEFT|RIGHT) [COUNT count]"),
    ("zset", "BZPOPMIN key+ 0.05"),
    ("zset", "BZMPOP 0.05 #(key+) (MIN|MAX) [COUNT count]"),
    ("stream", "XREADGROUP GROUP group consumer BLOCK 50 STREAMS key groupnews"),
    ("hash", "HPEXPIRE key soon [NX|XX|GT|LT] FIELDS #(field+)"),
    ("hash", "HPEXPIRE key soon FIELDS #(field+)"),
    ("hash", "HEXPIRE key secs [NX|XX|GT|LT] FIELDS #(field+)"),
    ("hash", "HPEXPIREAT key atmillis FIELDS #(field+)"),
    ("hash", "HPERSIST key FIELDS #(field+)"),
    ("hash", "HGETDEL key FIELDS #(field+)"),
    ("hash", "HGETEX key [PX soon|EX secs|PERSIST] FIELDS #(field+)"),
    ("hash", "HSETEX key [FNX|FXX] [PX soon|EX secs|KEEPTTL] FIELDS 1 field value"),
    ("hash", "HINCRBYFLOAT key field inexact"),
    ("zset", "ZADD key (inexact member)+"),
    ("zset", "ZADD key (inexact member)+"),
    ("zset", "ZINCRBY key inexact member"),
    ("zset", "ZUNIONSTORE key 3 key key key [WEIGHTS inexact inexact inexact]"),
    ("zset", "ZINTERSTORE key 3 key key key [WEIGHTS inexact inexact inexact]"),
    ("zset", "ZUNIONSTORE key 2 key setkey"),
    ("set", "SPOP key count"),
    ("set", "SPOP key"),
    ("geo", "GEOSEARCHSTORE key key FROMMEMBER town BYRADIUS radius unit COUNT 2 ANY"),
    ("geo", "GEOSEARCHSTORE key key FROMMEMBER town BYRADIUS radius unit STOREDIST"),
    ("stream", "XADD key '*' (field value)+"),
    ("stream", "XADD key '*' (field value)+"),
    ("stream", "XADD key MAXLEN '~' threshold '*' field value"),
    ("stream", "XADD key [KEEPREF|DELREF|ACKED] MAXLEN threshold '*' field value"),
    ("stream", "XREADGROUP GROUP group consumer STREAMS key groupnews"),
    ("stream", "XREADGROUP GROUP group consumer NOACK STREAMS key groupnews"),
    ("stream", "XGROUP CREATE key group 0 MKSTREAM"),
    ("stream", "XAUTOCLAIM key group consumer 0 0"),
    ("stream", "XCLAIM key group consumer 0 id+"),
    ("stream", "XDELEX key (KEEPREF|DELREF|ACKED) IDS #(id+)"),
    ("stream", "XACKDEL key group (KEEPREF|DELREF|ACKED) IDS #(id+)"),
    ("stream", "XNACK key group (SILENT|FAIL|FATAL) IDS #(id+)"),
    ("hll", "PFADD key (value)+"),
    ("hll", "PFMERGE key key+"),
    ("sort", "SORT key STORE key"),
    ("sort", "SORT key BY by GET get STORE key"),
    ("connection", "PUBLISH name value"),
    ("connection", "SPUBLISH name value"),
    ("connection", "PING"),
    ("keys", "SELECT 0"),
    ("keys", "SELECT db"),
];

/// The commands of scripts on their two keys.
const SCRIPTS: &[&str] = &[
    "redis.call('INCR', KEYS[1]) return redis.call('RPUSH', KEYS[2], ARGV[1])",
    "redis.call('SET', KEYS[1], math.random()) redis.call('PEXPIRE', KEYS[1], 100) return 1",
    "redis.call('DEL', KEYS[1]) for i = 1, 20 do redis.call('SADD', KEYS[1], i) end \
     return redis.call('SPOP', KEYS[1], 7)",
    "local now = redis.call('TIME') redis.call('HSET', KEYS[1], now[1], now[2]) return now",
    "redis.pcall('SELECT', ARGV[2]) redis.pcall('APPEND', KEYS[1], 'x') return redis.pcall('GETDEL', KEYS[2])",
    "redis.call('PUBLISH', 'channel', 'x') redis.call('XADD', KEYS[1], '*', 'f', ARGV[1]) return 1",
    "redis.call('ZADD', KEYS[1], 0.1, 'a', 0.2, 'b') error('half')",
    "if redis.call('EXISTS', KEYS[1]) == 0 then return redis.call('SET', KEYS[1], 1, 'PX', 20) end",
    "redis.call('HSET', KEYS[1], 'f', 1, 'g', 2) return redis.call('HPEXPIRE', KEYS[1], 5, 'FIELDS', 1, 'f')",
];

/// Returns the names of a server's commands.
pub fn names(client: &mut Client) -> BTreeSet<String> {
    let Reply::Array(names) = client.command(&["COMMAND", "LIST"]) else { panic!("it answers an array") };
    names.iter().filter_map(Reply::text).collect()
}

/// Makes commands of all kinds.
pub struct Commands {
    pub pools: Pools,
    /// The table's rows with the indices of their families.
    table: Rc<Table>,
    own: Vec<(&'static str, Form)>,
    /// Payloads of DUMP, to restore.
    payloads: Vec<Vec<u8>>,
}

/// Leaves out families of which a soak has no use: of the connection, and single parts of transactions.
const LEFT_OUT: &[&str] = &["connection", "transactions"];

impl Commands {
    /// Takes the commands that have these names.
    pub fn new(names: &BTreeSet<String>, dice: Dice) -> Commands {
        let (mut table, _) = Table::common(names, names);
        table.families.retain(|family| !LEFT_OUT.contains(&family.name));
        let table = Rc::new(table);
        let own = ROWS.iter().map(|(family, form)| (*family, Form::parse(form))).collect();
        Commands { pools: Pools::new(dice, Rc::clone(&table)), table, own, payloads: Vec::new() }
    }

    pub fn dice(&mut self) -> &mut Dice {
        &mut self.pools.dice
    }

    fn key(&mut self, family: &'static str) -> Vec<u8> {
        self.pools.family = family;
        let mut argv = Argv::new();
        symbol("key").expect("it is a pool")(&mut self.pools, &mut argv);
        argv.remove(0)
    }

    fn any_key(&mut self) -> Vec<u8> {
        let family = *self.pools.dice.pick(&self.table.key_pools);
        self.key(family)
    }

    /// Keeps a payload to restore it later.
    pub fn keep(&mut self, payload: Vec<u8>) {
        if self.payloads.len() >= 20 {
            let at = self.dice().roll(20);
            self.payloads.swap_remove(at);
        }
        self.payloads.push(payload);
    }

    /// Makes one command or several that belong together: a transaction.
    pub fn next(&mut self) -> Vec<Argv> {
        match self.dice().roll(100) {
            0..6 => {
                let n = 1 + self.dice().roll(4);
                let queued: Vec<Argv> = (0..n).map(|_| self.single()).collect();
                let end = if self.dice().percent(90) { "EXEC" } else { "DISCARD" };
                let watched = if self.dice().percent(20) { vec![words(&["WATCH"])] } else { Vec::new() };
                let watched = watched.into_iter().map(|mut watch| {
                    watch.push(self.any_key());
                    watch
                });
                let watched: Vec<Argv> = watched.collect();
                watched.into_iter().chain([words(&["MULTI"])]).chain(queued).chain([words(&[end])]).collect()
            }
            _ => vec![self.single()],
        }
    }

    fn single(&mut self) -> Argv {
        match self.dice().roll(100) {
            0..4 => self.script(),
            4..6 => self.function(),
            6..8 => words_of(&[b"DUMP".to_vec(), self.any_key()]),
            8..10 if !self.payloads.is_empty() => self.restore(),
            10..40 => {
                let at = self.pools.dice.roll(self.own.len());
                let (family, form) = &self.own[at];
                self.pools.family = family;
                let mut argv = Argv::new();
                form.make(&mut self.pools, &mut argv);
                argv
            }
            _ => self.of_table(),
        }
    }

    fn of_table(&mut self) -> Argv {
        loop {
            let table = Rc::clone(&self.table);
            let family = self.pools.dice.pick(&table.families);
            self.pools.family = family.name;
            let mut argv = Argv::new();
            self.pools.dice.pick(&family.rows).form.make(&mut self.pools, &mut argv);
            // Else there would not be much data.
            let is_rare =
                ["flushdb", "swapdb"].iter().any(|name| argv[0].eq_ignore_ascii_case(name.as_bytes()));
            if !is_rare || self.pools.dice.percent(4) {
                return argv;
            }
        }
    }

    fn script(&mut self) -> Argv {
        let script = *self.dice().pick(SCRIPTS);
        let n = self.dice().roll(100).to_string();
        let keys = [self.any_key(), self.any_key()];
        let mut argv = words(&["EVAL", script, "2"]);
        argv.extend(keys);
        argv.extend(words(&[&n, "1"]));
        argv
    }

    fn function(&mut self) -> Argv {
        let nth = self.dice().roll(3);
        let code = format!(
            "#!lua name=lib{nth}\nredis.register_function('f{nth}', function(keys, args)\
             redis.call('APPEND', keys[1], '{}') return redis.call('STRLEN', keys[1]) end)",
            self.dice().roll(100)
        );
        match self.dice().roll(20) {
            0 => words(&["FUNCTION", "FLUSH"]),
            1 | 2 => words(&["FUNCTION", "DELETE", &format!("lib{nth}")]),
            3..8 => words(&["FUNCTION", "LOAD", "REPLACE", &code]),
            _ => {
                let mut argv = words(&["FCALL", &format!("f{nth}"), "1"]);
                argv.push(self.key("string"));
                argv
            }
        }
    }

    fn restore(&mut self) -> Argv {
        let payload = self.pools.dice.pick(&self.payloads).clone();
        let ttl = (*self.pools.dice.pick(&["0", "0", "100", "900000000"])).to_owned();
        let mut argv = words(&["RESTORE"]);
        argv.extend([self.any_key(), ttl.into_bytes(), payload, b"REPLACE".to_vec()]);
        argv
    }
}

fn words(words: &[&str]) -> Argv {
    words.iter().map(|word| word.as_bytes().to_vec()).collect()
}

fn words_of(words: &[Vec<u8>]) -> Argv {
    words.to_vec()
}
