//! The server under test and its reference, which receive the same commands.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use super::{
    oracle::Oracle,
    same::Same,
    step::{Difference, INSPECTOR, N_CLIENTS, Step},
};
use crate::support::{Client, Reply, Resp, Server, encode, values::Argv};

/// Settings that episodes change, with their defaults and the values used.
///
/// Numbers of elements are larger than a single command adds. Since 7.2 a command that names more elements
/// has its value unpacked at once, even if all are equal.
pub const SETTINGS: &[(&str, &str, &[&str])] = &[
    ("hash-max-listpack-entries", "512", &["14", "18"]),
    ("hash-max-listpack-value", "64", &["2", "8", "16"]),
    ("list-max-listpack-size", "-2", &["-1", "2", "4", "16"]),
    ("set-max-intset-entries", "512", &["14", "18"]),
    ("zset-max-listpack-entries", "128", &["14", "18"]),
    ("zset-max-listpack-value", "64", &["2", "8", "16"]),
    ("stream-node-max-entries", "100", &["2", "4", "16"]),
    ("hll-sparse-max-bytes", "3000", &["0", "20", "100"]),
];

/// The number of commands that are sent before their replies are read.
const MAX_PIPELINE: usize = 64;

/// The channel of the message that marks the end of the events.
const END_CHANNEL: &str = "__keyspace@end";

/// A server with the connections to it.
struct PairSide {
    program: String,
    args: Vec<String>,
    server: Server,
    clients: Vec<Client>,
    /// Receives keyspace events.
    listener: Client,
}

impl PairSide {
    fn start(program: &str, args: &[&str]) -> PairSide {
        let server = Server::start_program(program, args);
        let args = args.iter().map(|arg| (*arg).to_owned()).collect();
        let listener = server.connect();
        let mut side = PairSide { program: program.to_owned(), args, server, clients: Vec::new(), listener };
        side.connect();
        side
    }

    fn connect(&mut self) {
        self.clients = (0..=N_CLIENTS).map(|_| self.server.connect()).collect();
        self.clients[INSPECTOR].hello(Resp::Three).expect("a new server answers");
        self.listener = self.server.connect();
        self.listener.command(&["PSUBSCRIBE", "__keyspace@*"]);
    }

    /// Returns the events since the last call, by the key's channel. A server that is gone has no more.
    fn heard(&mut self) -> Events {
        let mut heard = Events::new();
        if self.clients[INSPECTOR].try_command(&["PUBLISH", END_CHANNEL, ""]).is_err() {
            return heard;
        }
        while let Ok(Reply::Array(message)) = self.listener.try_receive() {
            let [_, _, channel, event] = &message[..] else { panic!("not a message: {message:?}") };
            let [channel, event] = [channel, event].map(|text| text.text().expect("a text"));
            if channel == END_CHANNEL {
                break;
            }
            heard.entry(channel).or_default().push(event);
        }
        heard
    }

    fn restart(&mut self) {
        let args: Vec<&str> = self.args.iter().map(String::as_str).collect();
        self.server = Server::start_program(&self.program, &args);
    }

    fn inspect(&mut self, argv: &[&str]) -> Reply {
        self.clients[INSPECTOR].command(argv)
    }
}

/// The events of each key, in their order.
type Events = BTreeMap<String, Vec<String>>;

/// Both servers. Steps leave them in the same state, until they differ.
pub struct Pair {
    ours: PairSide,
    theirs: PairSide,
    /// The server that is the reference.
    oracle: Oracle,
    /// For each client, its queued commands, with the comparisons for their replies.
    queued: Vec<Vec<(Argv, Same)>>,
    /// Keys whose deadline has passed. Their events are not compared.
    lapsed: BTreeSet<String>,
    /// A connection broke, and its server may be gone.
    is_broken: bool,
    /// The data of the two may differ from here on, and both are right.
    has_parted: bool,
}

impl Pair {
    /// Starts the server under test and the reference.
    pub fn start(program: &str, args: &[&str], oracle: Oracle) -> Pair {
        let (ours, theirs) = (PairSide::start(program, args), PairSide::start(&oracle.program, &[]));
        let queued = vec![Vec::new(); N_CLIENTS + 1];
        let lapsed = BTreeSet::new();
        let mut pair = Pair { ours, theirs, oracle, queued, lapsed, is_broken: false, has_parted: false };
        pair.reset();
        pair
    }

    /// Returns commands that are not sent between MULTI and EXEC.
    pub fn avoided_in_transactions(&self) -> &'static [&'static str] {
        self.oracle.avoided_in_transactions()
    }

    /// Returns the commands of each server.
    pub fn commands(&mut self) -> [BTreeSet<String>; 2] {
        [&mut self.ours, &mut self.theirs].map(|side| match side.inspect(&["COMMAND", "LIST"]) {
            Reply::Array(names) => names.iter().filter_map(Reply::text).collect(),
            other => panic!("COMMAND LIST answered {other}"),
        })
    }

    /// Returns the end of the log of the server under test, if a connection broke.
    pub fn last_words(&self) -> String {
        if self.is_broken {
            format!("Braid's log ends with:\n{}\n", self.ours.server.log_tail())
        } else {
            String::new()
        }
    }

    /// Resets both servers: no data, new connections, default settings.
    pub fn reset(&mut self) {
        for side in [&mut self.ours, &mut self.theirs] {
            if self.is_broken {
                side.restart();
            }
            side.connect();
            for (name, value, _) in SETTINGS {
                side.inspect(&["CONFIG", "SET", name, value]);
            }
            // Expired keys are removed only when a command looks them up, which is the same command on both
            // servers.
            side.inspect(&["DEBUG", "SET-ACTIVE-EXPIRE", "0"]);
            side.inspect(&["CONFIG", "SET", "notify-keyspace-events", "AKEn"]);
            side.inspect(&["FLUSHALL"]);
        }
        self.is_broken = false;
        self.has_parted = false;
        self.lapsed.clear();
        self.queued.iter_mut().for_each(Vec::clear);
    }

    /// Whether nothing can be compared before the next reset.
    pub fn has_parted(&self) -> bool {
        self.has_parted
    }

    /// Plays steps on both servers until they part. Returns the reference's replies to the inspector's
    /// commands.
    pub fn play(&mut self, steps: &[Step]) -> Result<Vec<Reply>, Difference> {
        let mut inspected = Vec::new();
        let mut at = 0;
        while at < steps.len() && !self.has_parted {
            let batch = &steps[at..at + batch_len(&steps[at..])];
            // The servers differ in three ways here: which command notices the expiry, whether it counts as
            // expired or deleted, and whether keys expire at once.
            self.lapsed.extend(deadlines(batch, &self.oracle));
            match &batch[0] {
                Step::Lapse => self.lapse(),
                Step::Command { client, argv, same: Same::Cursor(cursor_at) } => {
                    self.iterate(*client, argv, *cursor_at).map_err(|(ours, theirs)| Difference {
                        at,
                        ours,
                        theirs,
                    })?;
                }
                Step::Command { client, .. } => {
                    let replies = self
                        .exchange(*client, batch)
                        .map_err(|within| Difference { at: at + within.at, ..within })?;
                    if *client == INSPECTOR {
                        inspected.extend(replies);
                    }
                }
            }
            at += batch.len();
            let [ours, theirs] = [&mut self.ours, &mut self.theirs].map(|side| {
                let mut heard = side.heard();
                heard.retain(|channel, _| !self.lapsed.iter().any(|key| channel.ends_with(key)));
                for event in heard.values_mut().flatten() {
                    *event = self.oracle.event(std::mem::take(event));
                }
                heard
            });
            if !self.has_parted && ours != theirs {
                let [ours, theirs] = [ours, theirs].map(|events| format!("{events:#?}"));
                return Err(Difference { at: at - 1, ours, theirs });
            }
        }
        Ok(inspected)
    }

    /// Sends commands of one client, reads all replies, and compares them.
    fn exchange(&mut self, client: usize, batch: &[Step]) -> Result<Vec<Reply>, Difference> {
        let mut request = Vec::new();
        for step in batch {
            if let Step::Command { argv, .. } = step {
                encode(argv, &mut request);
            }
        }
        let sent = [&mut self.ours, &mut self.theirs].map(|side| side.clients[client].try_send_raw(&request));
        let [ours, theirs] =
            [&mut self.ours, &mut self.theirs].map(|side| receive(&mut side.clients[client], batch.len()));
        self.is_broken |=
            sent.iter().any(Result::is_err) || ours.len() < batch.len() || theirs.len() < batch.len();
        for (at, step) in batch.iter().enumerate() {
            if self.has_parted {
                break;
            }
            let Step::Command { argv, same, .. } = step else { unreachable!("only commands are sent") };
            let (ours, theirs) = (ours.get(at), theirs.get(at));
            let is_same = match (ours, theirs) {
                (Some(ours), Some(theirs)) => self.compare(client, argv, *same, ours, theirs),
                _ => false,
            };
            if !is_same {
                let text = |reply: Option<&Reply>| {
                    reply.map_or("(the connection broke)".to_owned(), |reply| format!("{reply}"))
                };
                return Err(Difference { at, ours: text(ours), theirs: text(theirs) });
            }
            self.has_parted |= ours.is_some_and(finds_corruption);
        }
        Ok(theirs)
    }

    /// Compares two replies. Those of EXEC are compared like the queued commands.
    fn compare(&mut self, client: usize, argv: &Argv, same: Same, ours: &Reply, theirs: &Reply) -> bool {
        if let (Reply::Status(ours), Reply::Status(theirs)) = (ours, theirs)
            && ours == b"QUEUED"
            && theirs == b"QUEUED"
        {
            self.queued[client].push((argv.clone(), same));
            return true;
        }
        let ends =
            ["exec", "discard", "reset"].iter().any(|name| argv[0].eq_ignore_ascii_case(name.as_bytes()));
        let queued = if ends { std::mem::take(&mut self.queued[client]) } else { Vec::new() };
        match (ours, theirs) {
            (Reply::Array(ours), Reply::Array(theirs)) if argv[0].eq_ignore_ascii_case(b"exec") => {
                ours.len() == theirs.len()
                    && ours.len() == queued.len()
                    && queued
                        .iter()
                        .zip(ours.iter().zip(theirs))
                        .all(|((argv, same), (ours, theirs))| self.agree(argv, *same, ours, theirs))
            }
            _ => self.agree(argv, same, ours, theirs),
        }
    }

    /// Whether two replies are the same, or differ in a way that is known of the reference.
    fn agree(&mut self, argv: &Argv, same: Same, ours: &Reply, theirs: &Reply) -> bool {
        if same.holds(ours, theirs) {
            return true;
        }
        let known = self.oracle.known_difference(argv, ours, theirs);
        self.has_parted |= known.is_some_and(|known| known.parts);
        known.is_some()
    }

    /// Follows a cursor to its end on both servers, and compares the elements. Their order and repetitions do
    /// not matter.
    fn iterate(&mut self, client: usize, argv: &Argv, cursor_at: usize) -> Result<(), (String, String)> {
        let first = Step::Command { client, argv: argv.clone(), same: Same::Cursor(cursor_at) };
        let Some(Reply::Array(_)) = self.first_of(client, &first)?.first() else { return Ok(()) };
        if self.has_parted {
            return Ok(());
        }
        let whole =
            [&mut self.ours, &mut self.theirs].map(|side| follow(&mut side.clients[client], argv, cursor_at));
        let [ours, theirs] =
            whole.map(|whole| whole.unwrap_or_else(|error| BTreeSet::from([error.to_string()])));
        if ours == theirs { Ok(()) } else { Err((format!("{ours:#?}"), format!("{theirs:#?}"))) }
    }

    fn first_of(&mut self, client: usize, step: &Step) -> Result<Vec<Reply>, (String, String)> {
        self.exchange(client, std::slice::from_ref(step)).map_err(|differ| (differ.ours, differ.theirs))
    }

    /// Waits for a millisecond to pass on both servers' clocks.
    fn lapse(&mut self) {
        for side in [&mut self.ours, &mut self.theirs] {
            side.inspect(&["SET", "lapse", "1", "PX", "1"]);
            while side.inspect(&["EXISTS", "lapse"]) != Reply::Integer(0) {}
        }
    }
}

/// Whether a HyperLogLog was found damaged. Before PFADD meets the damage, it writes in redis-server, and
/// this stays. Here it writes all or nothing.
fn finds_corruption(reply: &Reply) -> bool {
    match reply {
        Reply::Error(text) => text.starts_with(b"INVALIDOBJ"),
        Reply::Array(replies) => replies.iter().any(finds_corruption),
        _ => false,
    }
}

/// Returns the keys with a new deadline in one millisecond.
fn deadlines(steps: &[Step], oracle: &Oracle) -> impl Iterator<Item = String> {
    let is_soon = |argv: &Argv| {
        argv[0].eq_ignore_ascii_case(b"pexpire") && argv.len() == 3 && argv[2] == b"1"
            || argv.len() > 2 && oracle.sets_a_past_deadline(argv)
    };
    steps.iter().filter_map(move |step| match step {
        Step::Command { argv, .. } if is_soon(argv) => {
            Some(format!(":{}", String::from_utf8_lossy(&argv[1])))
        }
        _ => None,
    })
}

/// Returns the number of steps at the beginning that can be sent at once.
fn batch_len(steps: &[Step]) -> usize {
    let sender = |step: &Step| match step {
        Step::Command { same: Same::Cursor(_), .. } | Step::Lapse => None,
        // Redis 8.2 keeps the error of AUTH back if it is the last of several replies.
        Step::Command { argv, .. } if argv[0].eq_ignore_ascii_case(b"auth") => None,
        Step::Command { client, .. } => Some(*client),
    };
    match sender(&steps[0]) {
        None => 1,
        first => steps.iter().take(MAX_PIPELINE).take_while(|step| sender(step) == first).count(),
    }
}

/// Receives the replies to `n` commands, or those before the connection broke.
fn receive(client: &mut Client, n: usize) -> Vec<Reply> {
    (0..n).map_while(|_| client.try_receive().ok()).collect()
}

/// Returns all elements of an iteration. Those of hashes and sorted sets are pairs.
fn follow(client: &mut Client, argv: &Argv, cursor_at: usize) -> io::Result<BTreeSet<String>> {
    let mut found = BTreeSet::new();
    let mut argv = argv.clone();
    let n_together =
        if argv[0].eq_ignore_ascii_case(b"hscan") || argv[0].eq_ignore_ascii_case(b"zscan") { 2 } else { 1 };
    loop {
        match client.try_command(&argv)? {
            Reply::Array(parts) => {
                let [Reply::Bulk(cursor), Reply::Array(items)] = &parts[..] else {
                    found.insert(format!("not a cursor and elements: {parts:?}"));
                    return Ok(found);
                };
                found.extend(items.chunks(n_together).map(element));
                if cursor == b"0" {
                    return Ok(found);
                }
                argv[cursor_at] = cursor.clone();
            }
            other => {
                found.insert(other.to_string());
                return Ok(found);
            }
        }
    }
}

/// Returns an element with a score as a number, because versions write different digits.
fn element(words: &[Reply]) -> String {
    let texts: Vec<String> = words.iter().filter_map(Reply::text).collect();
    match &texts[..] {
        [member, score] => match score.parse::<f64>() {
            Ok(score) => format!("{member:?} {score}"),
            Err(_) => format!("{member:?} {score:?}"),
        },
        _ => format!("{texts:?}"),
    }
}
