//! Rewrites non-deterministic commands into a replayable form, for the change stream.
//!
//! The effect of such a command depends on the time or on earlier values. Its record sets the values that the
//! keys have after the command. A key that is missing then was removed.

use braid_protocol::number;
use braid_storage::{
    entry::{
        db::Db,
        key::Key,
        time::{Deadline, Millis},
    },
    keyspace::shard::Shard,
    observers::record,
    types::{
        hashes::{HashRef, HashType},
        list::{ListRef, ListType},
        sorted_set::{SortedSetRef, SortedSetType},
        value::ValueRef,
    },
};

use super::{Call, CommandSpec};
use crate::catalog::{KeyRights, Words};

/// The most elements in a recorded command.
const CHUNK: usize = 64;

/// Writes a number as a request contains it.
pub(super) fn decimal(number: u64) -> Vec<u8> {
    number.to_string().into_bytes()
}

/// Adds a command of these words to the record.
fn add(db: Db, words: &[&[u8]]) {
    record::add(db, words.iter().copied());
}

/// Calls `each` with the shard of each key that a command writes.
fn each_written_key(
    call: &mut Call<'_, '_>,
    spec: &CommandSpec,
    words: Words<'_>,
    mut each: impl FnMut(Db, &mut Shard, &Key<'_>),
) {
    let mut at = Vec::new();
    spec.keys.positions(
        words.len(),
        |at| words.get(at),
        |position, used| {
            if used.rights(std::iter::empty()).has(KeyRights::WRITE) {
                at.push(position);
            }
        },
    );
    let db = call.session.db;
    for position in at {
        let bytes = words.get(position);
        let key = Key { bytes, routed: call.server.keyspace.router().route(bytes) };
        each(db, call.shard_of(&key), &key);
    }
}

/// Records SET with the value and deadline of each key, or DEL.
pub(super) fn strings(call: &mut Call<'_, '_>, spec: &CommandSpec, words: Words<'_>) {
    each_written_key(call, spec, words, |db, shard, key| {
        let Some(entry) = shard.peek(key) else { return add(db, &[b"DEL", key.bytes]) };
        let value = entry.bytes().expect("these commands write strings");
        match entry.deadline() {
            Some(Deadline(Millis(millis))) => {
                add(db, &[b"SET", key.bytes, value, b"PXAT", &decimal(millis)]);
            }
            None => add(db, &[b"SET", key.bytes, value]),
        }
    });
}

/// Records BITOP, with the result if Redis 7.0 does not know the operation.
pub(super) fn combined_strings(call: &mut Call<'_, '_>, spec: &CommandSpec, words: Words<'_>) {
    let is_newer = ["DIFF", "DIFF1", "ANDOR", "ONE"]
        .iter()
        .any(|name| words.get(1).eq_ignore_ascii_case(name.as_bytes()));
    if is_newer { strings(call, spec, words) } else { record::add(call.session.db, words.iter()) }
}

/// Records SET with the value of each key, which keeps its deadline, or DEL.
pub(super) fn changed_strings(call: &mut Call<'_, '_>, spec: &CommandSpec, words: Words<'_>) {
    each_written_key(call, spec, words, |db, shard, key| {
        let Some(entry) = shard.peek(key) else { return add(db, &[b"DEL", key.bytes]) };
        add(db, &[b"SET", key.bytes, entry.bytes().expect("these commands write strings"), b"KEEPTTL"]);
    });
}

/// Records PEXPIREAT with the deadline of each key, PERSIST if it has none, or DEL.
pub(super) fn deadlines(call: &mut Call<'_, '_>, spec: &CommandSpec, words: Words<'_>) {
    each_written_key(call, spec, words, |db, shard, key| {
        match shard.peek(key).map(|entry| entry.deadline()) {
            None => add(db, &[b"DEL", key.bytes]),
            Some(None) => add(db, &[b"PERSIST", key.bytes]),
            Some(Some(Deadline(Millis(millis)))) => {
                add(db, &[b"PEXPIREAT", key.bytes, &decimal(millis)]);
            }
        }
    });
}

/// Records RESTORE with an absolute deadline, or DEL.
pub(super) fn restored(call: &mut Call<'_, '_>, spec: &CommandSpec, words: Words<'_>) {
    let payload = words.get(3);
    each_written_key(call, spec, words, |db, shard, key| {
        let Some(entry) = shard.peek(key) else { return add(db, &[b"DEL", key.bytes]) };
        let millis = entry.deadline().map_or(0, |Deadline(Millis(millis))| millis);
        let deadline = decimal(millis);
        let restore: [&[u8]; 4] = [b"RESTORE", key.bytes, &deadline, payload];
        let options = || words.iter().skip(4);
        let is_said = options().any(|word| word.eq_ignore_ascii_case(b"ABSTTL"));
        let absolute = (!is_said).then_some(&b"ABSTTL"[..]);
        record::add(db, restore.into_iter().chain(options()).chain(absolute));
    });
}

/// Records DEL and then the elements of each key's list.
pub(super) fn lists(call: &mut Call<'_, '_>, spec: &CommandSpec, words: Words<'_>) {
    each_written_key(call, spec, words, |db, shard, key| {
        add(db, &[b"DEL", key.bytes]);
        let now = shard.now();
        let Some(entry) = shard.peek(key) else { return };
        let list: ListRef<'_> = ValueRef::<ListType>::of(entry, now).expect("the command has stored a list");
        let texts: Vec<Vec<u8>> = list.elements_from(0).map(|element| element.to_vec()).collect();
        for chunk in texts.chunks(CHUNK) {
            record::add(db, [&b"RPUSH"[..], key.bytes].into_iter().chain(chunk.iter().map(Vec::as_slice)));
        }
    });
}

/// Records ZUNIONSTORE or ZINTERSTORE, with the result's members if AGGREGATE COUNT has computed them, or if
/// they may be sums of three scores and more: each server adds in an order of its own.
pub(super) fn combined_sets(call: &mut Call<'_, '_>, spec: &CommandSpec, words: Words<'_>) {
    // Names of keys can only be taken for the option.
    let is_word = |at, word: &[u8]| words.get(at).eq_ignore_ascii_case(word);
    let counts = (4..words.len()).any(|at| is_word(at - 1, b"AGGREGATE") && is_word(at, b"COUNT"));
    let takes = |word| (4..words.len()).any(|at| is_word(at - 1, b"AGGREGATE") && is_word(at, word));
    let n_sources = number::parse_i64(words.get(2)).unwrap_or(0);
    let adds = n_sources > 2 && !takes(b"MIN") && !takes(b"MAX");
    unless_newer(call, spec, words, counts || adds);
}

/// Records a command that has stored a sorted set: with its own words, unless Redis 7.0 does not know them.
fn unless_newer(call: &mut Call<'_, '_>, spec: &CommandSpec, words: Words<'_>, is_newer: bool) {
    if is_newer { sorted_sets(call, spec, words) } else { record::add(call.session.db, words.iter()) }
}

/// Records DEL and then the members of each key's sorted set.
fn sorted_sets(call: &mut Call<'_, '_>, spec: &CommandSpec, words: Words<'_>) {
    each_written_key(call, spec, words, sorted_set);
}

/// Records DEL and then the members of a sorted set that was stored, if it has any.
pub(super) fn sorted_set(db: Db, shard: &mut Shard, key: &Key<'_>) {
    add(db, &[b"DEL", key.bytes]);
    let now = shard.now();
    let Some(entry) = shard.peek(key) else { return };
    let set: SortedSetRef<'_> =
        ValueRef::<SortedSetType>::of(entry, now).expect("the command has stored a sorted set");
    let mut words = Vec::new();
    for scored in set.iter(0..set.len()) {
        number::format_f64(scored.score(), |score| words.push(score.to_vec()));
        words.push(scored.member.to_vec());
    }
    for chunk in words.chunks(2 * CHUNK) {
        record::add(db, [&b"ZADD"[..], key.bytes].into_iter().chain(chunk.iter().map(Vec::as_slice)));
    }
}

/// Returns the fields of a command after FIELDS and their number. The distance between them is `step` words.
fn named_fields(words: Words<'_>, step: usize) -> impl Iterator<Item = &[u8]> {
    let is_tag = |at: &usize| words.get(*at).eq_ignore_ascii_case(b"FIELDS");
    let tag = (2..words.len()).find(is_tag).expect("the command has run, so its words are in order");
    (tag + 2..words.len()).step_by(step).map(move |at| words.get(at))
}

/// Records the result of a command for some fields of the hash at its key.
fn each_field<'w>(
    call: &mut Call<'_, '_>,
    spec: &CommandSpec,
    words: Words<'w>,
    fields: impl Iterator<Item = &'w [u8]> + Clone,
    tell: fn(Db, &Key<'_>, &[u8], HashRef<'_>),
) {
    each_written_key(call, spec, words, |db, shard, key| {
        let now = shard.now();
        let Some(entry) = shard.peek(key) else { return add(db, &[b"DEL", key.bytes]) };
        let hash = ValueRef::<HashType>::of(entry, now).expect("the command has run on a hash");
        for name in fields.clone() {
            if hash.field(name).is_some() {
                tell(db, key, name, hash);
            } else {
                add(db, &[b"HDEL", key.bytes, name]);
            }
        }
    });
}

fn tell_deadline(db: Db, key: &Key<'_>, name: &[u8], hash: HashRef<'_>) {
    match hash.field(name).and_then(|field| field.deadline) {
        Some(Deadline(Millis(millis))) => {
            add(db, &[b"HPEXPIREAT", key.bytes, &decimal(millis), b"FIELDS", b"1", name]);
        }
        None => add(db, &[b"HPERSIST", key.bytes, b"FIELDS", b"1", name]),
    }
}

fn tell_value(db: Db, key: &Key<'_>, name: &[u8], hash: HashRef<'_>) {
    let field = hash.field(name).expect("it was there just now");
    field.value.with_text(|value| add(db, &[b"HSET", key.bytes, name, value]));
    if field.deadline.is_some() {
        // HSET has removed the deadline.
        tell_deadline(db, key, name, hash);
    }
}

/// Records HPEXPIREAT with the deadline of each field, HPERSIST if it has none, or HDEL.
pub(super) fn field_deadlines(call: &mut Call<'_, '_>, spec: &CommandSpec, words: Words<'_>) {
    let fields: Vec<&[u8]> = named_fields(words, 1).collect();
    each_field(call, spec, words, fields.iter().copied(), tell_deadline);
}

/// Records HSET with the value of each field of HSETEX, or HDEL.
///
/// HPEXPIREAT follows if the field has a deadline.
pub(super) fn set_fields(call: &mut Call<'_, '_>, spec: &CommandSpec, words: Words<'_>) {
    let fields: Vec<&[u8]> = named_fields(words, 2).collect();
    each_field(call, spec, words, fields.iter().copied(), tell_value);
}

/// Records the same as [`set_fields`] for the field that is a command's second argument.
pub(super) fn one_field(call: &mut Call<'_, '_>, spec: &CommandSpec, words: Words<'_>) {
    each_field(call, spec, words, std::iter::once(words.get(2)), tell_value);
}

/// Records HDEL with the fields of HGETDEL.
pub(super) fn removed_fields(call: &mut Call<'_, '_>, _: &CommandSpec, words: Words<'_>) {
    let db = call.session.db;
    record::add(db, [&b"HDEL"[..], words.get(1)].into_iter().chain(named_fields(words, 1)));
}

/// Records DEL of missing keys, for a command that removes keys on a condition.
pub(super) fn removed_keys(call: &mut Call<'_, '_>, spec: &CommandSpec, words: Words<'_>) {
    each_written_key(call, spec, words, |db, shard, key| {
        if shard.peek(key).is_none() {
            add(db, &[b"DEL", key.bytes]);
        }
    });
}

/// Records LMOVE for BLMOVE, whose last argument is a timeout.
pub(super) fn lmove(call: &mut Call<'_, '_>, _: &CommandSpec, words: Words<'_>) {
    record::add(call.session.db, std::iter::once(&b"LMOVE"[..]).chain(words.iter().skip(1).take(4)));
}

/// Records RPOPLPUSH for BRPOPLPUSH, whose last argument is a timeout.
pub(super) fn rpoplpush(call: &mut Call<'_, '_>, _: &CommandSpec, words: Words<'_>) {
    record::add(call.session.db, std::iter::once(&b"RPOPLPUSH"[..]).chain(words.iter().skip(1).take(2)));
}

/// Records SREM of randomly chosen members.
pub(super) fn taken_members(db: Db, key: &Key<'_>, members: &[Vec<u8>]) {
    for chunk in members.chunks(CHUNK) {
        record::add(db, [&b"SREM"[..], key.bytes].into_iter().chain(chunk.iter().map(Vec::as_slice)));
    }
}
