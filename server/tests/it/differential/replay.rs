//! The logged form of random commands repeats their effect. redis-server 7.0 receives only Braid's log, and
//! must then hold the same data.

use std::{collections::BTreeSet, io, rc::Rc};

use super::{
    N_DBS, bulk, check_missing, content,
    episode::{Episode, N_ROWS},
    pair::SETTINGS,
    same::{MILLIS, Same},
    step::{N_CLIENTS, Step},
    table::Table,
    variable,
};
use crate::support::{
    Client, Reply, Resp, Server,
    reference::{REFERENCE, has_reference},
};

/// The default number of episodes.
const N_EPISODES: u64 = 60;

/// The number of rows after which the log is replayed and all data is compared.
const ROWS_BETWEEN: usize = 50;

/// Commands that end the connection, or change the abilities of other clients.
const FOR_THE_CONNECTION: &[&[u8]] = &[b"quit", b"reset", b"hello"];

struct Replay {
    ours: Server,
    /// It lives as long as the replay.
    _theirs: Server,
    clients: Vec<Client>,
    inspector: Client,
    replayer: Client,
}

impl Replay {
    fn start() -> Replay {
        let ours = Server::start(&["--io-threads", "2", "--shards", "16"]);
        let theirs = Server::start_program(REFERENCE, &[]);
        let clients = (0..N_CLIENTS).map(|_| ours.connect()).collect();
        let (mut inspector, mut replayer) = (ours.connect(), theirs.connect());
        // RESP3 has sets and maps without order.
        for client in [&mut inspector, &mut replayer] {
            client.hello(Resp::Three).expect("both speak RESP3");
        }
        Replay { ours, _theirs: theirs, clients, inspector, replayer }
    }

    fn names(client: &mut Client) -> BTreeSet<String> {
        let Reply::Array(names) = client.command(&["COMMAND", "LIST"]) else { panic!("not a list") };
        names.iter().filter_map(Reply::text).collect()
    }

    /// Deletes all data, and records commands from here on.
    fn begin(&mut self) {
        self.clients = (0..N_CLIENTS).map(|_| self.ours.connect()).collect();
        self.inspector.command(&["DEBUG", "RECORD-LOG", "0"]);
        for client in [&mut self.inspector, &mut self.replayer] {
            for (name, value, _) in SETTINGS {
                client.command(&["CONFIG", "SET", name, value]);
            }
            client.command(&["DEBUG", "SET-ACTIVE-EXPIRE", "0"]);
            client.command(&["FLUSHALL"]);
            client.command(&["FUNCTION", "FLUSH"]);
            client.command(&["SELECT", "0"]);
        }
        assert_eq!(self.inspector.command(&["DEBUG", "RECORD-LOG", "1"]).to_string(), "+OK");
    }

    fn play(&mut self, step: &Step) {
        match step {
            Step::Lapse => std::thread::sleep(std::time::Duration::from_millis(3)),
            Step::Command { client, argv, .. } => {
                if FOR_THE_CONNECTION.contains(&&argv[0].to_ascii_lowercase()[..]) {
                    return;
                }
                let played: io::Result<Reply> = match self.clients.get_mut(*client) {
                    Some(client) => client.try_command(argv),
                    None => self.inspector.try_command(argv),
                };
                if played.is_err() {
                    self.clients[*client] = self.ours.connect();
                }
            }
        }
    }

    /// Replays the log since the last call on redis-server. Returns it in words.
    fn replay(&mut self) -> Vec<String> {
        let Reply::Array(units) = self.inspector.command(&["DEBUG", "LOGGED"]) else { panic!("not a list") };
        let mut told = Vec::new();
        for unit in units {
            let Reply::Array(commands) = unit else { panic!("not a unit") };
            assert!(!commands.is_empty(), "a unit that has done nothing was logged");
            for command in commands {
                let Reply::Array(words) = command else { panic!("not a command") };
                let (db, argv) = words.split_first().expect("a database comes first");
                let argv: Vec<Vec<u8>> =
                    argv.iter().map(|word| bulk(word).expect("a word").to_vec()).collect();
                self.replayer.command(&["SELECT", &db.to_string().replace(':', "")]);
                let reply = self.replayer.command(&argv);
                let words: Vec<String> = argv.iter().map(|word| word.escape_ascii().to_string()).collect();
                told.push(format!("{db} {} -> {reply}", words.join(" ")));
            }
        }
        told
    }

    /// Returns the difference between the two, if there is one.
    fn difference(&mut self) -> Option<String> {
        for db in 0..N_DBS {
            let db = db.to_string();
            self.both(&[b"SELECT", db.as_bytes()], Same::Letter);
            let (ours, difference) = self.both(&[b"KEYS", b"*"], Same::AnyOrder);
            if difference.is_some() {
                return difference;
            }
            let Reply::Array(keys) = ours else { panic!("KEYS answers with an array") };
            for key in keys.iter().filter_map(bulk) {
                let (kind, difference) = self.both(&[b"TYPE", key], Same::Letter);
                if difference.is_some() {
                    return difference;
                }
                let ttl = Step::inspect(&[b"PTTL", key], Same::Near(MILLIS));
                for step in std::iter::once(ttl).chain(content(key, &kind)) {
                    let Step::Command { argv, same, .. } = step else { unreachable!("nothing lapses here") };
                    let words: Vec<&[u8]> = argv.iter().map(Vec::as_slice).collect();
                    if let (_, Some(difference)) = self.both(&words, same) {
                        return Some(difference);
                    }
                }
            }
        }
        None
    }

    /// Sends a command to both. Returns Braid's reply and the difference.
    fn both(&mut self, argv: &[&[u8]], same: Same) -> (Reply, Option<String>) {
        let (ours, theirs) = (self.inspector.command(argv), self.replayer.command(argv));
        let holds = same.holds(&ours, &theirs);
        let command: Vec<String> = argv.iter().map(|word| word.escape_ascii().to_string()).collect();
        let difference =
            (!holds).then(|| format!("{}\nBraid: {ours}\n{REFERENCE}: {theirs}", command.join(" ")));
        (ours, difference)
    }
}

fn shown(steps: &[Step]) -> String {
    steps.iter().map(|step| format!("  {}\n", step.text())).collect()
}

#[test]
fn what_is_logged_does_the_same_again() {
    if !has_reference("replay") {
        return;
    }
    let mut replay = Replay::start();
    let (ours, theirs) = (Replay::names(&mut replay.inspector), Replay::names(&mut replay.replayer));
    let (table, missing) = Table::common(&ours, &theirs);
    check_missing(&missing);
    let table = Rc::new(table);
    let first_seed = variable("BRAID_DIFF_SEED").unwrap_or(1);
    let focus = std::env::var("BRAID_DIFF_FAMILY").ok();
    let n_episodes = variable("BRAID_DIFF_EPISODES").unwrap_or(N_EPISODES);
    let mut n_logged = 0;
    for seed in first_seed..first_seed + n_episodes {
        let mut episode = Episode::new(seed, &table, focus.as_deref(), &[]);
        replay.begin();
        for _ in 0..N_ROWS / ROWS_BETWEEN {
            let mut steps = Vec::new();
            (0..ROWS_BETWEEN).for_each(|_| episode.next(&mut steps));
            steps.iter().for_each(|step| replay.play(step));
            let told = replay.replay();
            n_logged += told.len();
            if let Some(difference) = replay.difference() {
                panic!(
                    "seed {seed}: {difference}\nWhat was done:\n{}What was logged:\n  {}\n\
                     To repeat it: BRAID_DIFF_SEED={seed} cargo test -p braid-server --test differential logged",
                    shown(&steps),
                    told.join("\n  ")
                );
            }
        }
    }
    println!("{n_logged} commands were logged in {n_episodes} episodes");
    assert!(n_logged as u64 > 20 * n_episodes, "hardly anything was logged: {n_logged}");
}
