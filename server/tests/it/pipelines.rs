//! Pipelines on few keys from several clients. Commands that are run together, prefetched or left with
//! another thread answer as if each had come alone.

use std::{
    collections::{HashMap, HashSet},
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use crate::support::{
    Client, Dice, Server,
    crowd::{AtEnd, LAYOUTS, ask, crowd, fill_set, laid_out},
    dice::seed,
    encode,
};

const N_CLIENTS: usize = 4;
const N_MEMBERS: usize = 700;

/// A client's members, which no other client touches, with the expected values and the commands sent.
struct Own {
    id: usize,
    dice: Dice,
    fields: HashMap<usize, usize>,
    members: HashSet<usize>,
    scores: HashMap<usize, usize>,
    /// A line for each reply: the command, and the expected reply.
    awaited: Vec<(String, String)>,
}

impl Own {
    fn send(&mut self) {
        let (nth, value) = (self.dice.roll(N_MEMBERS), self.dice.roll(1000));
        let member = format!("{}:{nth}", self.id);
        let (line, reply) = match self.dice.roll(10) {
            0..=2 => {
                let is_new = self.fields.insert(nth, value).is_none();
                (format!("HSET hash {member} {value}"), format!(":{}", is_new as u8))
            }
            3 => {
                let found = self.fields.get(&nth).map_or("(nil)".to_owned(), |value| format!("\"{value}\""));
                (format!("HGET hash {member}"), found)
            }
            4 => {
                let was_there = self.fields.remove(&nth).is_some();
                (format!("HDEL hash {member}"), format!(":{}", was_there as u8))
            }
            5 | 6 => {
                let other = (nth + 1) % N_MEMBERS;
                let n_new = [nth, other].map(|nth| self.members.insert(nth) as u8);
                (format!("SADD set {member} {}:{other}", self.id), format!(":{}", n_new[0] + n_new[1]))
            }
            7 => {
                let was_there = self.members.remove(&nth);
                (format!("SREM set {member}"), format!(":{}", was_there as u8))
            }
            8 => {
                let is_new = self.scores.insert(nth, value).is_none();
                (format!("ZADD sorted {value} {member}"), format!(":{}", is_new as u8))
            }
            // A command of the wrong type: its prefetch meets members of another kind.
            _ => {
                let text = "-WRONGTYPE Operation against a key holding the wrong kind of value";
                (format!("SISMEMBER hash {member}"), text.to_owned())
            }
        };
        self.awaited.push((line, reply));
    }
}

#[test]
fn pipelines_on_large_values_answer_command_by_command() {
    for layout in LAYOUTS {
        let server = laid_out(layout);
        let mut client = server.connect();
        ask(&mut client, "HSET hash nobody's 0");
        crowd(&server, N_CLIENTS, |id, client| {
            let mut own = Own {
                id,
                dice: Dice(seed() ^ (id as u64)),
                fields: HashMap::new(),
                members: HashSet::new(),
                scores: HashMap::new(),
                awaited: Vec::new(),
            };
            for _ in 0..60 {
                (0..70).for_each(|_| own.send());
                run(client, &mut own.awaited);
            }
            for (nth, score) in &own.scores {
                assert_eq!(ask(client, &format!("ZSCORE sorted {id}:{nth}")), format!("\"{score}\""));
            }
        });
        // Each value has become large.
        let encodings =
            ["hash", "set", "sorted"].map(|key| ask(&mut client, &format!("OBJECT ENCODING {key}")));
        assert_eq!(encodings, ["\"hashtable\"", "\"hashtable\"", "\"skiplist\""]);
    }
}

#[test]
fn pipelines_over_many_keys_answer_command_by_command() {
    for layout in LAYOUTS {
        let server = laid_out(layout);
        crowd(&server, N_CLIENTS, |id, client| {
            let mut dice = Dice(seed() ^ (id as u64));
            let mut held: HashMap<usize, usize> = HashMap::new();
            let mut awaited = Vec::new();
            for _ in 0..30 {
                for _ in 0..40 {
                    // Now and then more keys than are prefetched.
                    let n_keys = if dice.percent(5) { 100 } else { 1 + dice.roll(12) };
                    let keys: Vec<usize> = (0..n_keys).map(|_| dice.roll(N_MEMBERS)).collect();
                    awaited.push(many_keys(&mut dice, &mut held, id, &keys));
                }
                run(client, &mut awaited);
            }
        });
    }
}

/// Returns a command on several keys of a client, and the expected reply.
fn many_keys(
    dice: &mut Dice,
    held: &mut HashMap<usize, usize>,
    id: usize,
    keys: &[usize],
) -> (String, String) {
    let value = dice.roll(1000);
    let with_values: String = keys.iter().map(|key| format!(" {id}:{key} {value}")).collect();
    let alone: String = keys.iter().map(|key| format!(" {id}:{key}")).collect();
    match dice.roll(5) {
        0 | 1 => {
            held.extend(keys.iter().map(|&key| (key, value)));
            (format!("MSET{with_values}"), "+OK".to_owned())
        }
        2 => {
            let found = keys
                .iter()
                .map(|key| held.get(key).map_or("(nil)".to_owned(), |value| format!("\"{value}\"")));
            (format!("MGET{alone}"), format!("[{}]", found.collect::<Vec<_>>().join(" ")))
        }
        3 => {
            let n = keys.iter().filter(|key| held.remove(key).is_some()).count();
            (format!("DEL{alone}"), format!(":{n}"))
        }
        _ => {
            let n = keys.iter().filter(|key| held.contains_key(key)).count();
            (format!("EXISTS{alone}"), format!(":{n}"))
        }
    }
}

/// Sends all awaited commands at once, and reads the replies.
fn run(client: &mut Client, awaited: &mut Vec<(String, String)>) {
    let mut bytes = Vec::new();
    for (line, _) in awaited.iter() {
        encode(&line.split(' ').collect::<Vec<_>>(), &mut bytes);
    }
    client.send_raw(&bytes);
    for (line, expected) in awaited.drain(..) {
        // A long array has a line for each element.
        let reply = client.receive().to_string().split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(reply.replace("[ ", "[").replace(" ]", "]"), expected, "{line}");
    }
}

/// Adds pauses, monitoring clients that do not read, and long reads, until it is over.
fn disturb(server: &Server, is_over: &AtomicBool) {
    let mut dice = Dice(seed());
    let mut client = server.connect();
    let mut monitors: Vec<Client> = Vec::new();
    while !is_over.load(Ordering::Relaxed) {
        match dice.roll(8) {
            0 => drop(ask(&mut client, "CLIENT PAUSE 20 WRITE")),
            1 => drop(ask(&mut client, "CLIENT PAUSE 20 ALL")),
            2 => drop(ask(&mut client, "CLIENT UNPAUSE")),
            3 => drop(ask(&mut client, "KEYS *")),
            4 => drop(ask(&mut client, "SMEMBERS large")),
            _ if monitors.len() == 12 => monitors.clear(),
            _ => {
                let mut monitor = server.connect();
                assert_eq!(ask(&mut monitor, "MONITOR"), "+OK");
                monitors.push(monitor);
            }
        }
    }
}

#[test]
fn pipelines_run_each_command_once_whatever_goes_on_beside_them() {
    for layout in LAYOUTS {
        let server = laid_out(layout);
        let mut client = server.connect();
        fill_set(&mut client, "large", 20_000);
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| disturb(&server, &is_over));
            let _over = AtEnd(&is_over);
            crowd(&server, N_CLIENTS, |id, client| {
                let mut dice = Dice(seed() ^ (id as u64));
                let (mut n, mut len) = (0, 0);
                let mut awaited = Vec::new();
                for _ in 0..40 {
                    // Many commands of a pipeline use one key, and run under one hold.
                    let is_mixed = dice.percent(50);
                    for _ in 0..1 + dice.roll(70) {
                        awaited.push(match dice.roll(4) {
                            0 if is_mixed => {
                                n += 1;
                                (format!("INCR count:{id}"), format!(":{n}"))
                            }
                            1 if is_mixed => (
                                format!("GET count:{id}"),
                                if n == 0 { "(nil)".to_owned() } else { format!("\"{n}\"") },
                            ),
                            _ => {
                                // MONITOR shows each byte of it as four.
                                let piece = "\0".repeat([1, 100, 1000][dice.roll(3)]);
                                len += piece.len();
                                (format!("APPEND string:{id} {piece}"), format!(":{len}"))
                            }
                        });
                    }
                    run(client, &mut awaited);
                }
            });
        });
    }
}

/// A client that asks for much at once receives its replies gradually. Others are served in between.
#[test]
fn replies_that_nobody_reads_are_not_all_made_at_once() {
    const N_REPLIES: usize = 400;
    const VALUE_BYTES: usize = 1 << 20;
    let server = Server::start(&["--io-threads", "1"]);
    let mut greedy = server.connect();
    assert_eq!(greedy.command(&["SET", "value", &"x".repeat(VALUE_BYTES)]).to_string(), "+OK");
    let mut other = server.connect();
    let id = greedy.command(&["CLIENT", "ID"]).integer().expect("a number");
    let mut pipeline = Vec::new();
    (0..N_REPLIES).for_each(|_| encode(&["GET", "value"], &mut pipeline));
    greedy.send_raw(&pipeline);
    let mut seen = Vec::new();
    loop {
        let list = other.command(&["CLIENT", "LIST", "ID", &id.to_string()]).text().expect("a text");
        let unread = list.split(' ').find_map(|field| field.strip_prefix("omem=")).expect("a field");
        seen.push(unread.parse::<usize>().expect("a number"));
        // A part of it is in the socket.
        if seen.last() > Some(&((N_REPLIES - 16) * VALUE_BYTES)) {
            break;
        }
    }
    assert!(seen.iter().any(|n| (1..N_REPLIES / 2 * VALUE_BYTES).contains(n)), "{seen:?}");
    for nth in 0..N_REPLIES {
        assert_eq!(greedy.receive().text().map(|text| text.len()), Some(VALUE_BYTES), "reply {nth}");
    }
    assert_eq!(ask(&mut greedy, "PING"), "+PONG");
}
