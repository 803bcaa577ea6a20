//! Random users and random commands: Braid grants a user exactly the rights that redis-server grants. A
//! command also touches no key that its row does not name. A user with rights to only those keys is never
//! refused, and one without rights to one of them always is.

use std::{collections::BTreeSet, rc::Rc};

use super::{
    pools::Pools,
    table::{PresentRow, Table},
    variable,
};
use crate::support::{
    Client, Dice, Reply, Server,
    reference::{REFERENCE, has_reference},
    values::Argv,
};

/// The number of users, and of commands for each.
const N_USERS: u64 = 400;
const N_COMMANDS: usize = 60;

/// The possible rights of users, besides keys and channels.
struct Names {
    commands: Vec<String>,
    categories: Vec<String>,
}

/// Makes rules and commands.
struct Maker {
    pools: Pools,
    table: Rc<Table>,
    names: Rc<Names>,
}

impl Maker {
    fn new(seed: u64, table: &Rc<Table>, names: &Rc<Names>) -> Maker {
        let pools = Pools::new(Dice(seed), Rc::clone(table));
        Maker { pools, table: Rc::clone(table), names: Rc::clone(names) }
    }

    fn dice(&mut self) -> &mut Dice {
        &mut self.pools.dice
    }

    /// Returns a command and its row. The command does not change the client's user, and does not wait.
    fn command(&mut self) -> (Argv, usize) {
        let table = Rc::clone(&self.table);
        loop {
            let family = self.dice().pick(&table.families);
            let row: &PresentRow = self.dice().pick(&family.rows);
            if row.row.waits || ["connection", "transactions"].contains(&family.name) {
                continue;
            }
            self.pools.family = family.name;
            let mut argv = Argv::new();
            row.form.make(&mut self.pools, &mut argv);
            return (argv, row.n_names);
        }
    }

    /// Returns a pattern that some keys match.
    fn pattern(&mut self) -> Vec<u8> {
        let table = Rc::clone(&self.table);
        let family = *self.dice().pick(&table.key_pools);
        let key = match self.dice().roll(3) {
            0 => family.as_bytes().to_vec(),
            n => format!("{{{family}}}{n}").into_bytes(),
        };
        let at = self.dice().roll(key.len());
        match self.dice().roll(9) {
            0 => key,
            1..=3 => [&key[..at], b"*"].concat(),
            4 => [&key[..at], b"?", &key[at + 1..]].concat(),
            5 => [b"[a-m]*".as_slice(), &key[at..]].concat(),
            6 => [&key[..at], b"\\", &key[at..]].concat(),
            7 => [b"*", &key[at..], b"*"].concat(),
            _ => b"*".to_vec(),
        }
    }

    fn channel(&mut self) -> Vec<u8> {
        self.dice().pick(&[&b"news"[..], b"news:1", b"news:*", b"n?ws", b"weather", b"*"]).to_vec()
    }

    /// Returns a rule that may be in a selector.
    fn selecting_rule(&mut self) -> Vec<u8> {
        let names = Rc::clone(&self.names);
        let sign = *self.dice().pick(&["+", "+", "-"]);
        match self.dice().roll(14) {
            0..=2 => format!("{sign}{}", self.dice().pick(&names.commands)).into_bytes(),
            3..=4 => format!("{sign}@{}", self.dice().pick(&names.categories)).into_bytes(),
            5 => self.dice().pick(&["+@all", "-@all", "allcommands", "nocommands"]).as_bytes().to_vec(),
            6 => {
                let name = self.dice().pick(&names.commands).clone();
                let argument = self.dice().pick(&["0", "list", "STRING", "get"]);
                format!("+{name}|{argument}").into_bytes()
            }
            7..=9 => {
                let kind = *self.dice().pick(&["~", "~", "%R~", "%W~", "%RW~", "%wr~", "%Q~", "%RR~"]);
                [kind.as_bytes(), &self.pattern()].concat()
            }
            10 => self.dice().pick(&["allkeys", "resetkeys", "~*"]).as_bytes().to_vec(),
            11 => [b"&", &self.channel()[..]].concat(),
            12 => self.dice().pick(&["allchannels", "resetchannels", "&*"]).as_bytes().to_vec(),
            _ => self
                .dice()
                .pick(&["~a b", "&c d", "+nosuch", "-@nosuch", "nonsense", "~"])
                .as_bytes()
                .to_vec(),
        }
    }

    /// Returns a rule of a user.
    fn rule(&mut self) -> Vec<u8> {
        match self.dice().roll(14) {
            0 => {
                let n = self.dice().roll(4);
                let rules: Vec<Vec<u8>> = (0..n).map(|_| self.selecting_rule()).collect();
                [b"(", &rules.join(&b' ')[..], b")"].concat()
            }
            1 => self
                .dice()
                .pick(&["off", "resetpass", ">pw", "<pw", "#00", "clearselectors", "reset", "(", ")", ""])
                .as_bytes()
                .to_vec(),
            _ => self.selecting_rule(),
        }
    }
}

/// Removes the rules about commands from a reply, because each server describes them in its own way.
fn without_commands(reply: &Reply) -> Reply {
    let Reply::Array(items) = reply else { return reply.clone() };
    let is_about_commands = |at: usize| at > 0 && items[at - 1].text().is_some_and(|name| name == "commands");
    let kept = items.iter().enumerate().filter(|(at, _)| !is_about_commands(*at));
    Reply::Array(kept.map(|(_, item)| without_commands(item)).collect())
}

/// Both servers, each with a client that may do everything and a client of the user.
struct Both {
    masters: [Client; 2],
    users: [Client; 2],
    _servers: [Server; 2],
}

impl Both {
    fn start() -> Both {
        let ours = Server::compat_program().unwrap_or_else(|| env!("CARGO_BIN_EXE_braid-server").to_owned());
        let servers = [Server::start_program(&ours, &[]), Server::start_program(REFERENCE, &[])];
        let masters = [servers[0].connect(), servers[1].connect()];
        let users = [servers[0].connect(), servers[1].connect()];
        Both { masters, users, _servers: servers }
    }

    fn ask(&mut self, argv: &Argv) -> [Reply; 2] {
        [self.masters[0].command(argv), self.masters[1].command(argv)]
    }

    fn try_as_user(&mut self, argv: &Argv) -> [Reply; 2] {
        [self.users[0].command(argv), self.users[1].command(argv)]
    }
}

fn argv(words: &[&[u8]]) -> Argv {
    words.iter().map(|word| word.to_vec()).collect()
}

fn shown(argv: &Argv) -> String {
    argv.iter().map(|word| format!("{:?} ", String::from_utf8_lossy(word))).collect()
}

/// Returns a reply's denial of rights, if it is one.
fn denial(reply: &Reply) -> Option<String> {
    let text = reply.to_string();
    (text.starts_with("-NOPERM") || text.contains("insufficient ACL permissions")).then_some(text)
}

fn names_of(reply: &Reply) -> BTreeSet<String> {
    match reply {
        Reply::Array(names) => names.iter().filter_map(Reply::text).collect(),
        other => panic!("no list of names: {other}"),
    }
}

fn table_and_names(both: &mut Both) -> (Rc<Table>, Rc<Names>) {
    let [ours, theirs] = both.ask(&argv(&[b"COMMAND", b"LIST"])).map(|reply| names_of(&reply));
    let (table, _) = Table::common(&ours, &theirs);
    let [categories, _] = both.ask(&argv(&[b"ACL", b"CAT"])).map(|reply| names_of(&reply));
    // Each server has its own subcommands of DEBUG.
    let common = ours.intersection(&theirs).filter(|name| !name.starts_with("debug|"));
    let names = Names { commands: common.cloned().collect(), categories: categories.into_iter().collect() };
    (Rc::new(table), Rc::new(names))
}

#[test]
fn users_may_do_what_they_may_do_in_redis() {
    if !has_reference("differential") {
        return;
    }
    let mut both = Both::start();
    let (table, names) = table_and_names(&mut both);
    let first_seed = variable("BRAID_DIFF_SEED").unwrap_or(1);
    let mut n_denied = 0;
    for seed in first_seed..first_seed + N_USERS {
        let mut maker = Maker::new(seed, &table, &names);
        both.ask(&argv(&[b"FLUSHALL"]));
        both.ask(&argv(&[b"ACL", b"DELUSER", b"copy"]));
        both.ask(&argv(&[b"ACL", b"SETUSER", b"user", b"reset", b"on", b"nopass"]));
        for (at, reply) in both.try_as_user(&argv(&[b"AUTH", b"user", b"x"])).iter().enumerate() {
            assert_eq!(reply.to_string(), "+OK", "seed {seed}, server {at}");
        }
        // All rules of a command are applied, or none.
        for _ in 0..3 {
            let mut setting = argv(&[b"ACL", b"SETUSER", b"user"]);
            let n_rules = 1 + maker.dice().roll(6);
            // Without this rule most commands would be denied.
            if maker.dice().percent(60) {
                setting.push(b"+@all".to_vec());
            }
            if maker.dice().percent(30) {
                setting.push(b"allkeys".to_vec());
            }
            setting.extend((0..n_rules).map(|_| maker.rule()));
            let [ours, theirs] = both.ask(&setting).map(|reply| reply.to_string());
            assert_eq!(ours, theirs, "seed {seed}: {}", shown(&setting));
        }
        let [ours, theirs] = both.ask(&argv(&[b"ACL", b"GETUSER", b"user"]));
        assert_eq!(
            // Redis shows `%RW~*` as `~*`.
            without_commands(&ours).to_string().replace("%RW~*", "~*"),
            without_commands(&theirs).to_string(),
            "seed {seed}: the user is another one"
        );
        copy_user(&mut both);
        for _ in 0..N_COMMANDS {
            n_denied += usize::from(compare_command(&mut both, &mut maker, seed));
        }
        compare_channels(&mut both, seed);
    }
    let n_all = N_USERS as usize * N_COMMANDS;
    println!("{n_denied} of {n_all} commands were denied");
    assert!((n_all / 10..n_all * 19 / 20).contains(&n_denied), "the rules are too lax or too strict");
}

/// Makes another user on the reference, by the rules that the server under test shows.
fn copy_user(both: &mut Both) {
    let listed = names_of(&both.masters[0].command(&["ACL", "LIST"]));
    let line = listed.into_iter().find(|line| line.starts_with("user user ")).expect("the user is there");
    let mut copying = argv(&[b"ACL", b"SETUSER", b"copy"]);
    copying.extend(line.split(' ').skip(2).map(|word| word.as_bytes().to_vec()));
    let reply = both.masters[1].command(&copying);
    assert_eq!(reply.to_string(), "+OK", "what ACL LIST shows is no user: {line}");
}

/// Asks whether the user may run a command, and runs it as the user. Returns whether it is denied.
fn compare_command(both: &mut Both, maker: &mut Maker, seed: u64) -> bool {
    let (command, _) = maker.command();
    let asked = |name: &[u8]| -> Argv { [argv(&[b"ACL", b"DRYRUN", name]), command.clone()].concat() };
    let [ours, theirs] = both.ask(&asked(b"user")).map(|reply| reply.to_string());
    assert_eq!(ours, theirs, "seed {seed}: {}", shown(&asked(b"user")));
    let copy = both.masters[1].command(&asked(b"copy")).to_string();
    assert_eq!(copy, theirs, "seed {seed}: the rules that ACL LIST shows are others: {}", shown(&command));
    let [ours, theirs] = both.try_as_user(&command).map(|reply| denial(&reply));
    assert_eq!(ours, theirs, "seed {seed}: {}", shown(&command));
    ours.is_some()
}

fn compare_channels(both: &mut Both, seed: u64) {
    for command in ["PUBLISH", "SPUBLISH", "SUBSCRIBE", "SSUBSCRIBE", "PSUBSCRIBE", "UNSUBSCRIBE"] {
        for channel in ["news", "news:1", "news:*", "weather", "other"] {
            let mut asked = argv(&[b"ACL", b"DRYRUN", b"user", command.as_bytes(), channel.as_bytes()]);
            if command.ends_with("PUBLISH") {
                asked.push(b"x".to_vec());
            }
            let [ours, theirs] = both.ask(&asked).map(|reply| reply.to_string());
            assert_eq!(ours, theirs, "seed {seed}: {}", shown(&asked));
        }
    }
}

/// Returns a pattern that matches only this key.
fn literally(key: &[u8]) -> Vec<u8> {
    key.iter()
        .flat_map(|&byte| if b"*?[\\".contains(&byte) { vec![b'\\', byte] } else { vec![byte] })
        .collect()
}

/// Returns the keys of a command, each with the rule that it needs. Returns none without keys, or if rules
/// cannot name them.
fn rules_of(command: &Argv, master: &mut Client) -> Option<Vec<(Vec<u8>, Vec<u8>)>> {
    let asked = [argv(&[b"COMMAND", b"GETKEYSANDFLAGS"]), command.clone()].concat();
    let Reply::Array(keys) = master.command(&asked) else { return None };
    let mut rules = Vec::new();
    for key in &keys {
        let Reply::Array(key) = key else { panic!("no key with its flags: {key}") };
        let [Reply::Bulk(key), flags] = &key[..] else { panic!("no key with its flags") };
        let flags = names_of(flags);
        let reads = flags.contains("access");
        let writes = ["insert", "update", "delete"].iter().any(|flag| flags.contains(*flag));
        let kind: &[u8] = match (reads, writes) {
            (true, true) => b"~",
            (true, false) => b"%R~",
            (false, _) => b"%W~",
        };
        if key.iter().any(|byte| byte.is_ascii_whitespace() || *byte == 0) {
            return None;
        }
        rules.push((key.clone(), [kind, &literally(key)].concat()));
    }
    Some(rules)
}

/// Returns the keys whose change was recorded since the last call, except expired ones.
fn changed_keys(master: &mut Client) -> BTreeSet<String> {
    let changes = names_of(&master.command(&["DEBUG", "CHANGES"]));
    let keys = changes.iter().filter_map(|change| {
        let mut parts = change.splitn(3, ' ').skip(1);
        let event = parts.next()?;
        parts.next().filter(|_| event != "expired").map(str::to_owned)
    });
    keys.collect()
}

/// Runs a command as a user with these rules.
fn run_with(rules: &[(Vec<u8>, Vec<u8>)], command: &Argv, master: &mut Client, user: &mut Client) -> String {
    let mut setting = argv(&[b"ACL", b"SETUSER", b"user", b"resetkeys"]);
    setting.extend(rules.iter().map(|(_, rule)| rule.clone()));
    assert_eq!(master.command(&setting).to_string(), "+OK", "{}", shown(&setting));
    user.command(command).to_string()
}

#[test]
fn commands_touch_no_keys_but_those_that_their_rows_tell_of() {
    let server = Server::start_program(env!("CARGO_BIN_EXE_braid-server"), &["--io-threads", "2"]);
    let (mut master, mut user) = (server.connect(), server.connect());
    let ours = names_of(&master.command(&["COMMAND", "LIST"]));
    let (table, _) = Table::common(&ours, &ours);
    let names = Rc::new(Names { commands: Vec::new(), categories: Vec::new() });
    let mut maker = Maker::new(variable("BRAID_DIFF_SEED").unwrap_or(1), &Rc::new(table), &names);
    assert_eq!(master.command(&["ACL", "SETUSER", "user", "on", "nopass", "+@all"]).to_string(), "+OK");
    assert_eq!(user.command(&["AUTH", "user", "x"]).to_string(), "+OK");
    assert_eq!(master.command(&["DEBUG", "RECORD-CHANGES", "1"]).to_string(), "+OK");
    let mut tried = BTreeSet::new();
    for _ in 0..N_USERS as usize * N_COMMANDS / 2 {
        let (command, _) = maker.command();
        let name = String::from_utf8_lossy(&command[0]).to_ascii_lowercase();
        // A client that sorts by other keys must have a right to all keys.
        let Some(rules) = rules_of(&command, &mut master).filter(|_| !name.starts_with("sort")) else {
            continue;
        };
        changed_keys(&mut master);
        let whole = run_with(&rules, &command, &mut master, &mut user);
        assert!(!whole.starts_with("-NOPERM"), "{}: {whole}", shown(&command));
        let written = |(key, rule): &(Vec<u8>, Vec<u8>)| {
            (!rule.starts_with(b"%R")).then(|| String::from_utf8_lossy(key).into_owned())
        };
        let may_change: BTreeSet<String> = rules.iter().filter_map(written).collect();
        let changed = changed_keys(&mut master);
        // PFCOUNT stores its count, and Redis takes XREADGROUP for a command that reads.
        assert!(
            ["pfcount", "xreadgroup"].contains(&&*name) || changed.is_subset(&may_change),
            "{} has changed {changed:?}",
            shown(&command)
        );
        let missing = maker.dice().roll(rules.len());
        let others: Vec<_> = rules.iter().filter(|(key, _)| *key != rules[missing].0).cloned().collect();
        let denied = run_with(&others, &command, &mut master, &mut user);
        assert!(denied.starts_with("-NOPERM"), "{} without a key: {denied}", shown(&command));
        assert_eq!(changed_keys(&mut master), BTreeSet::new(), "{}", shown(&command));
        tried.insert(name);
    }
    assert!(tried.len() > 120, "only {} commands were tried: {tried:?}", tried.len());
}
