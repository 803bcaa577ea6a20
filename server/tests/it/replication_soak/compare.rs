//! The data of a server in words, key by key, so that a difference names the key and both values.

use std::collections::BTreeMap;

use crate::support::{Client, Reply};

/// The databases that the soak uses, with that of the markers.
pub const DBS: [usize; 5] = [0, 1, 2, 3, super::markers::DB];

/// A key and its database.
pub type KeyPlace = (usize, Vec<u8>);

/// Returns all values with their deadlines.
pub fn contents(client: &mut Client) -> BTreeMap<KeyPlace, String> {
    let mut all = BTreeMap::new();
    for db in DBS {
        client.command(&["SELECT", &db.to_string()]);
        let Reply::Array(keys) = client.command(&["KEYS", "*"]) else { panic!("KEYS answers an array") };
        for key in keys {
            let Reply::Bulk(key) = key else { panic!("a key is a text: {key}") };
            let value = if db == super::markers::DB { String::new() } else { value(client, &key) };
            all.insert((db, key), value);
        }
    }
    let functions = client.command(&["FUNCTION", "LIST", "WITHCODE"]);
    all.insert((usize::MAX, b"functions".to_vec()), sorted(functions, 1));
    all
}

/// Returns a value with its deadline.
fn value(client: &mut Client, key: &[u8]) -> String {
    let mut ask = |words: &[&[u8]]| client.command(words);
    let kind = ask(&[b"TYPE", key]).text().expect("a type is a text");
    let deadline = ask(&[b"PEXPIRETIME", key]);
    let value = match &kind[..] {
        "string" => match ask(&[b"GET", key]) {
            // Each server keeps the count for itself that it has last made.
            Reply::Bulk(mut text) if text.starts_with(b"HYLL") && text.len() > 16 => {
                text[8..16].fill(0);
                Reply::Bulk(text).to_string()
            }
            text => text.to_string(),
        },
        "list" => ask(&[b"LRANGE", key, b"0", b"-1"]).to_string(),
        "set" => sorted(ask(&[b"SMEMBERS", key]), 1),
        "hash" => {
            let pairs = ask(&[b"HGETALL", key]);
            let fields = fields_of(&pairs);
            let mut words: Vec<&[u8]> = vec![b"HPEXPIRETIME", key, b"FIELDS"];
            let n = fields.len().to_string();
            words.push(n.as_bytes());
            words.extend(fields.iter().map(|field| &field[..]));
            let Reply::Array(deadlines) = ask(&words) else { return format!("{kind} without fields") };
            let mut with_deadlines: Vec<String> = fields
                .iter()
                .zip(deadlines)
                .map(|(field, at)| format!("{:?}: {at}", field.escape_ascii().to_string()))
                .collect();
            with_deadlines.sort();
            format!("{} {with_deadlines:?}", sorted(pairs, 2))
        }
        // As in Redis, only large sets have the sign of a zero.
        "zset" => ask(&[b"ZRANGE", key, b"0", b"-1", b"WITHSCORES"]).to_string().replace("\"-0\"", "\"0\""),
        "stream" => {
            let entries = ask(&[b"XRANGE", key, b"-", b"+"]);
            let whole = ask(&[b"XINFO", b"STREAM", key, b"FULL", b"COUNT", b"0"]);
            format!("{entries}\n{}", without_own(whole))
        }
        _ => String::new(),
    };
    format!("{kind} until {deadline}: {value}")
}

fn fields_of(pairs: &Reply) -> Vec<Vec<u8>> {
    let Reply::Array(words) = pairs else { return Vec::new() };
    let fields = words.iter().step_by(2);
    fields
        .filter_map(|field| if let Reply::Bulk(field) = field { Some(field.clone()) } else { None })
        .collect()
}

/// Sorts groups of `n_together` elements, so that their original order has no effect.
fn sorted(reply: Reply, n_together: usize) -> String {
    let Reply::Array(elements) = reply else { return reply.to_string() };
    let group = |together: &[Reply]| together.iter().map(Reply::to_string).collect::<Vec<_>>().join("=");
    let mut shown: Vec<String> = elements.chunks(n_together).map(group).collect();
    shown.sort();
    shown.join(" ")
}

/// Leaves out the layout of a stream's nodes, which each server has for itself, and the times at which its
/// consumers were seen, which each takes from its own clock.
fn without_own(reply: Reply) -> Reply {
    const OWN: [&[u8]; 5] = [b"radix-tree-keys", b"radix-tree-nodes", b"active-time", b"seen-time", b"lag"];
    let Reply::Array(elements) = reply else { return reply };
    let mut kept = Vec::new();
    let mut elements = elements.into_iter();
    while let Some(element) = elements.next() {
        if matches!(&element, Reply::Bulk(name) if OWN.contains(&&name[..])) {
            elements.next();
        } else {
            kept.push(without_own(element));
        }
    }
    Reply::Array(kept)
}

/// Leaves out what is far from the first difference of two texts.
pub fn around_difference(ours: &str, theirs: &str) -> [String; 2] {
    let n_equal = ours.chars().zip(theirs.chars()).take_while(|(ours, theirs)| ours == theirs).count();
    let (begin, n_chars) = (n_equal.saturating_sub(200), 500);
    [ours, theirs].map(|text| {
        let kind = text.split(' ').next().unwrap_or_default();
        format!("{kind} …{}", text.chars().skip(begin).take(n_chars).collect::<String>())
    })
}

/// The differences between two servers' data: the key with both values.
pub fn differences(
    ours: &BTreeMap<KeyPlace, String>,
    theirs: &BTreeMap<KeyPlace, String>,
) -> Vec<(KeyPlace, String, String)> {
    let mut keys: Vec<&KeyPlace> = ours.keys().chain(theirs.keys()).collect();
    keys.sort();
    keys.dedup();
    let none = || "nothing".to_owned();
    keys.into_iter()
        .map(|key| {
            let of = |side: &BTreeMap<KeyPlace, String>| side.get(key).cloned().unwrap_or_else(none);
            (key.clone(), of(ours), of(theirs))
        })
        .filter(|(_, ours, theirs)| ours != theirs)
        .collect()
}
