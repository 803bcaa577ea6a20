//! Values of every type in every form, and ways to read them from a server.

use super::{Client, Reply, Server};

/// A command's words, as bytes.
pub type Argv = Vec<Vec<u8>>;

/// Fields that are not compared. Each server has a memory layout of its own, and 7.2 has added fields or
/// counts them in another way.
const OWN: [&[u8]; 3] = [b"radix-tree-nodes", b"active-time", b"lag"];

/// A server, and a client that reads its values.
pub struct Side {
    pub client: Client,
    pub server: Server,
}

impl Side {
    /// Starts a server.
    pub fn start(program: &str) -> Side {
        Side::of(Server::start_program(program, &[]))
    }

    /// Takes a server that has been started.
    pub fn of(server: Server) -> Side {
        Side { client: server.connect(), server }
    }

    /// Sends a command.
    pub fn ask(&mut self, argv: &[&str]) -> Reply {
        self.client.command(argv)
    }

    /// Returns the value of a key, in words.
    pub fn contents(&mut self, key: &str) -> String {
        self.contents_without(key, &[])
    }

    /// Returns the value of a key without some fields of XINFO.
    pub fn contents_without(&mut self, key: &str, names: &[&[u8]]) -> String {
        let kind = self.ask(&["TYPE", key]).text().expect("a type is a text");
        match &kind[..] {
            "string" => self.ask(&["GET", key]).to_string(),
            "list" => self.ask(&["LRANGE", key, "0", "-1"]).to_string(),
            "set" => sorted(self.ask(&["SMEMBERS", key]), 1),
            "hash" => sorted(self.ask(&["HGETALL", key]), 2),
            "zset" => self.ask(&["ZRANGE", key, "0", "-1", "WITHSCORES"]).to_string(),
            "stream" => {
                let entries = self.ask(&["XRANGE", key, "-", "+"]);
                let whole = self.ask(&["XINFO", "STREAM", key, "FULL", "COUNT", "0"]);
                format!("{entries}\n{}", without(whole, &[&OWN, names].concat()))
            }
            other => panic!("there is no {key} but {other}"),
        }
    }

    /// Returns the encoding of a key.
    pub fn encoding(&mut self, key: &str) -> Reply {
        self.ask(&["OBJECT", "ENCODING", key])
    }

    /// Returns the payload of DUMP for a key.
    pub fn dump(&mut self, key: &str) -> Vec<u8> {
        match self.ask(&["DUMP", key]) {
            Reply::Bulk(payload) => payload,
            other => panic!("DUMP answered {other}"),
        }
    }

    /// Restores a key from a payload.
    pub fn restore(&mut self, key: &str, payload: &[u8]) -> Reply {
        self.client.command(&[b"RESTORE", key.as_bytes(), b"0", payload, b"REPLACE"])
    }
}

/// Sorts groups of `n_together` elements, so that their original order has no effect.
fn sorted(reply: Reply, n_together: usize) -> String {
    let Reply::Array(elements) = reply else { panic!("no elements: {reply}") };
    let mut shown: Vec<_> = elements.chunks(n_together).map(|together| format!("{together:?}")).collect();
    shown.sort();
    shown.concat()
}

fn without(reply: Reply, names: &[&[u8]]) -> Reply {
    let Reply::Array(elements) = reply else { return reply };
    let mut kept = Vec::new();
    let mut elements = elements.into_iter();
    while let Some(element) = elements.next() {
        if matches!(&element, Reply::Bulk(name) if names.contains(&&name[..])) {
            elements.next();
        } else {
            kept.push(without(element, names));
        }
    }
    Reply::Array(kept)
}

/// Splits a command into words.
pub fn words(command: &str) -> Argv {
    command.split_ascii_whitespace().map(|word| word.as_bytes().to_vec()).collect()
}

/// Returns a command with the results of `n` calls of `more` appended.
fn many<const N: usize>(command: &str, n: usize, more: impl Fn(usize) -> [String; N]) -> Vec<Argv> {
    let added = (0..n).flat_map(more).map(String::into_bytes);
    vec![words(command).into_iter().chain(added).collect()]
}

fn text(nth: usize, len: usize) -> String {
    let number = nth.to_string();
    let filling = "x".repeat(len.saturating_sub(number.len()));
    number + &filling
}

fn strings() -> Vec<Vec<Argv>> {
    let texts = ["", "0", "-1", "127", "128", "-32769", "2147483648", "9223372036854775807", "007", "hello"];
    let long = [44, 45, 63, 64, 16_383, 16_384, 100_000].map(|len| text(1, len));
    let texts = texts.into_iter().map(str::to_owned).chain(long).map(String::into_bytes);
    let texts = texts.chain([(0..=255).collect()]);
    let set = |text: Vec<u8>| vec![vec![b"SET".to_vec(), b"made".to_vec(), text]];
    let counted = many("PFADD made", 2000, |nth| [text(nth, 1)]);
    texts.map(set).chain([counted]).collect()
}

fn lists() -> Vec<Vec<Argv>> {
    let shapes = [(1, 1), (3, 5), (100, 70), (1, 8100), (1, 9000), (3, 9000), (300, 70), (3000, 20)];
    let of_texts = shapes.map(|(n, len)| many("RPUSH made", n, |nth| [text(nth, len)]));
    let of_integers = [(5, 1), (3000, 7), (2000, 7_777_777_777)]
        .map(|(n, step)| many("RPUSH made", n, |nth| [(nth * step).to_string()]));
    of_texts.into_iter().chain(of_integers).collect()
}

fn sets() -> Vec<Vec<Argv>> {
    let shapes = [(1, 1), (128, 5), (129, 5), (3, 65), (3000, 20)];
    let of_texts = shapes.map(|(n, len)| many("SADD made", n, |nth| [format!("m{}", text(nth, len))]));
    let of_integers = [(5, 1), (512, 100), (512, 77_777_777_777), (513, 3)]
        .map(|(n, step)| many("SADD made", n, |nth| [(nth * step).to_string()]));
    of_texts.into_iter().chain(of_integers).collect()
}

fn hashes() -> Vec<Vec<Argv>> {
    [(1, 1), (512, 5), (513, 5), (3, 64), (3, 65), (3000, 20)]
        .map(|(n, len)| many("HSET made", n, |nth| [nth.to_string(), text(nth, len)]))
        .into()
}

fn sorted_sets() -> Vec<Vec<Argv>> {
    // Numbers that every version prints alike.
    let scores = ["-inf", "-0.5", "0", "3", "1000000000000001", "0.25", "inf"];
    [(1, 1), (128, 5), (129, 5), (3, 64), (3, 65), (3000, 20)]
        .map(|(n, len)| many("ZADD made", n, |nth| [scores[nth % 7].to_owned(), text(nth, len)]))
        .into()
}

fn streams() -> Vec<Vec<Argv>> {
    let entries = |n: usize| {
        (1..=n).map(|nth| {
            let more = if nth % 3 == 0 { "" } else { "other 7" };
            words(&format!("XADD made {nth}-{} name {} {more}", nth % 2, text(nth, nth % 90)))
        })
    };
    let groups = [
        "XGROUP CREATE made first 0 ENTRIESREAD 0",
        "XGROUP CREATE made second 3-1",
        "XGROUP CREATE made last $",
        "XGROUP CREATECONSUMER made last idle",
        "XREADGROUP GROUP first alice COUNT 5 STREAMS made >",
        "XREADGROUP GROUP first bob COUNT 5 STREAMS made >",
        "XREADGROUP GROUP first bob COUNT 2 STREAMS made 0",
        "XREADGROUP GROUP second alice COUNT 500 STREAMS made >",
        "XACK made second 4-0 5-1",
        "XDEL made 1-1 7-1",
    ];
    let with_groups = |n| entries(n).chain(groups.map(words)).collect::<Vec<_>>();
    let emptied = with_groups(10).into_iter().chain([words("XTRIM made MAXLEN 0")]).collect();
    let trimmed = with_groups(300).into_iter().chain([words("XTRIM made MINID 150")]).collect();
    let bare = vec![words("XGROUP CREATE made group $ MKSTREAM")];
    let renumbered = entries(3)
        .chain([words("XSETID made 9-9 ENTRIESADDED 50 MAXDELETEDID 8-8"), words("XDEL made 3-1")])
        .collect();
    vec![
        entries(1).collect(),
        entries(250).collect(),
        with_groups(8),
        with_groups(300),
        emptied,
        trimmed,
        bare,
        renumbered,
    ]
}

/// Returns commands that make a value under the key `made`: one of every type, in every form.
pub fn every_form() -> Vec<Vec<Argv>> {
    [strings(), lists(), sets(), hashes(), sorted_sets(), streams()].concat()
}
