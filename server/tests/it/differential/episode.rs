//! An episode: the commands that two clients send to an empty server, made from a seed.

use std::rc::Rc;

use super::{
    families::FollowUp,
    oracle::has_a_fault,
    pair::SETTINGS,
    pools::{CONSUMERS, Pools, symbol},
    same::Same,
    step::{N_CLIENTS, Step},
    table::{Present, PresentRow, Table},
};
use crate::support::{Dice, values::Argv};

/// The number of rows of the table in an episode.
pub const N_ROWS: usize = 1000;

/// Makes the steps of one episode.
pub struct Episode {
    table: Rc<Table>,
    pools: Pools,
    /// The family of most commands, if there is one.
    focus: Option<usize>,
    client: usize,
    /// Commands that are left out inside of transactions.
    avoided: &'static [&'static str],
    /// Whether each client is between MULTI and EXEC, as far as is known without asking.
    in_transaction: [bool; N_CLIENTS],
}

impl Episode {
    /// Begins the episode of a seed. `focus` names the family of most commands.
    pub fn new(
        seed: u64,
        table: &Rc<Table>,
        focus: Option<&str>,
        avoided: &'static [&'static str],
    ) -> Episode {
        let mut dice = Dice(seed);
        let at_random = (!dice.percent(30)).then(|| dice.roll(table.families.len()));
        let named = focus.map(|name| table.families.iter().position(|family| family.name == name));
        let focus = match named {
            Some(position) => {
                Some(position.expect("BRAID_DIFF_FAMILY names a family that both servers have"))
            }
            None => at_random,
        };
        let pools = Pools::new(dice, Rc::clone(table));
        let in_transaction = [false; N_CLIENTS];
        Episode { table: Rc::clone(table), pools, focus, client: 0, avoided, in_transaction }
    }

    /// Returns the initial settings: small ones, so that encodings change.
    pub fn settings(&mut self) -> Vec<Step> {
        let mut steps = Vec::new();
        for (name, _, values) in SETTINGS {
            if self.pools.dice.percent(30) {
                let value = *self.pools.dice.pick(values);
                steps.push(Step::inspect(
                    &[b"CONFIG", b"SET", name.as_bytes(), value.as_bytes()],
                    Same::Letter,
                ));
            }
        }
        steps
    }

    /// Appends the steps of the next row.
    pub fn next(&mut self, steps: &mut Vec<Step>) {
        if self.pools.dice.percent(8) {
            self.client = self.pools.dice.roll(N_CLIENTS);
        }
        if self.pools.dice.roll(250) == 0 && !self.in_transaction[self.client] {
            return self.let_a_key_expire(steps);
        }
        let table = Rc::clone(&self.table);
        let family = &table.families[self.pick_family()];
        self.pools.family = family.name;
        let row = self.pick_row(family);
        let mut argv = Argv::new();
        row.form.make(&mut self.pools, &mut argv);
        if self.pools.dice.percent(5) && !row.row.is_fragile {
            let before = argv.clone();
            self.tamper(&mut argv, row);
            if has_a_fault(&argv) {
                argv = before;
            }
        }
        let follow_ups = follow_ups(row.row.follow_up, &argv);
        self.push(argv, row.row.same, steps);
        for argv in follow_ups {
            self.push(argv, Same::Letter, steps);
        }
    }

    fn pick_family(&mut self) -> usize {
        let dice = &mut self.pools.dice;
        let named = |name: &str| self.table.families.iter().position(|family| family.name == name);
        let ends_transaction = self.in_transaction[self.client] && dice.percent(15);
        if ends_transaction || dice.percent(4) {
            return named("transactions").expect("transactions are required");
        }
        match self.focus {
            Some(focus) if dice.percent(75) => focus,
            _ => dice.roll(self.table.families.len()),
        }
    }

    /// Picks a row. Commands that may wait are mostly picked in transactions, because waiting takes time.
    fn pick_row<'t>(&mut self, family: &'t Present) -> &'t PresentRow {
        loop {
            let row = self.pools.dice.pick(&family.rows);
            let fits = match self.in_transaction[self.client] {
                true => !row.row.is_never_queued,
                false => !row.row.waits || self.pools.dice.percent(3),
            };
            if fits {
                return row;
            }
        }
    }

    fn push(&mut self, argv: Argv, same: Same, steps: &mut Vec<Step>) {
        let client = self.client;
        let is_avoided = self.avoided.iter().any(|name| argv[0].eq_ignore_ascii_case(name.as_bytes()));
        if is_avoided && self.in_transaction[client] {
            return;
        }
        if let [name] = &argv[..] {
            match &name.to_ascii_lowercase()[..] {
                b"multi" => self.in_transaction[client] = true,
                b"exec" | b"discard" | b"reset" => self.in_transaction[client] = false,
                _ => {}
            }
        }
        steps.push(Step::Command { client, argv, same });
    }

    /// Lets a key's deadline pass. Later commands meet a key that has expired but still exists.
    fn let_a_key_expire(&mut self, steps: &mut Vec<Step>) {
        let mut argv = vec![b"PEXPIRE".to_vec()];
        self.pools.family = self.focus.map_or("keys", |focus| self.table.families[focus].name);
        symbol("key").expect("it is a pool")(&mut self.pools, &mut argv);
        argv.push(b"1".to_vec());
        self.push(argv, Same::Letter, steps);
        steps.push(Step::Lapse);
    }

    /// Alters a command in a way that its table would not.
    fn tamper(&mut self, argv: &mut Argv, row: &PresentRow) {
        // A small number in place of a time would pass within the run.
        let has_time = ["secs", "millis", "at"].iter().any(|time| row.row.form.contains(time));
        let at = self.pools.dice.roll(argv.len());
        let first = row.n_names;
        match self.pools.dice.roll(if has_time { 3 } else { 5 }) {
            0 if at > 0 => {
                argv.remove(at);
            }
            1 => argv.insert(at + 1, argv[at].clone()),
            3 if at > 0 => {
                let pool =
                    if at < first { "word" } else { *self.pools.dice.pick(&["word", "value", "int", "key"]) };
                self.append_word(argv, pool);
                argv.swap_remove(at);
            }
            4 if at > first => argv.swap(at, first),
            _ => self.append_word(argv, "word"),
        }
    }

    fn append_word(&mut self, argv: &mut Argv, pool: &str) {
        symbol(pool).expect("it is a pool")(&mut self.pools, argv);
    }
}

/// Returns the commands that follow a command.
fn follow_ups(follow_up: FollowUp, argv: &Argv) -> Vec<Argv> {
    let words = |words: &[&[u8]]| -> Argv { words.iter().map(|word| word.to_vec()).collect() };
    let make = |consumer: &[u8]| words(&[b"XGROUP", b"CREATECONSUMER", &argv[2], &argv[3], consumer]);
    match follow_up {
        FollowUp::None => Vec::new(),
        FollowUp::Delete => vec![words(&[b"DEL", &argv[1]])],
        FollowUp::MakeConsumers => CONSUMERS.iter().map(|consumer| make(consumer.as_bytes())).collect(),
        FollowUp::MakeConsumer => vec![make(&argv[4])],
    }
}
