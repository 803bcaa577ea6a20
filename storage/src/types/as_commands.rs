//! Values as the commands that make them: the contents of a base of the append-only file that is no snapshot.
//!
//! The commands are those of Redis 7.0, but for deadlines of fields and entries of streams that were handed
//! back, which it does not have.

use std::collections::BTreeSet;

use braid_protocol::number::{self, IntegerText};

use crate::{
    entry::{
        EntryRef,
        time::{Deadline, Millis},
    },
    types::{
        hashes::{Field, HashType},
        kinds,
        list::ListType,
        packed::Element,
        set::SetType,
        sorted_set::SortedSetType,
        stream::{Consumer, Group, Stream, StreamId, StreamType},
        value::ValueRef,
    },
};

/// The elements that a command adds at most, so that its reader needs little memory: as in Redis.
const ELEMENTS_PER_COMMAND: usize = 64;

/// Adds the commands that make an entry. Fields whose deadline has passed are left out; if there are no
/// others, nothing is written, and the answer is false. A key whose own deadline has passed is written, as in
/// Redis.
pub(crate) fn write_entry(out: &mut Vec<u8>, entry: EntryRef<'_>, now: Millis) -> bool {
    if kinds::is_over(entry, now) {
        return false;
    }
    kinds::write_as_commands(out, entry, now);
    if let Some(Deadline(Millis(millis))) = entry.deadline() {
        write(out, &[b"PEXPIREAT", entry.key(), IntegerText::default().format_unsigned(millis)]);
    }
    true
}

pub(crate) fn write_string(out: &mut Vec<u8>, entry: EntryRef<'_>, _: Millis) {
    write(out, &[b"SET", entry.key(), entry.bytes().expect("a string is bytes")]);
}

pub(crate) fn write_list(out: &mut Vec<u8>, entry: EntryRef<'_>, now: Millis) {
    let list = ValueRef::<ListType>::known(entry, now);
    let mut adding = Adding::new(out, b"RPUSH", entry.key(), (list.len(), 1));
    for element in list.elements_from(0) {
        adding.begin_element();
        adding.element(element);
    }
}

pub(crate) fn write_set(out: &mut Vec<u8>, entry: EntryRef<'_>, now: Millis) {
    let set = ValueRef::<SetType>::known(entry, now);
    let mut adding = Adding::new(out, b"SADD", entry.key(), (set.len(), 1));
    for member in set.iter() {
        adding.begin_element();
        adding.element(member);
    }
}

pub(crate) fn write_sorted_set(out: &mut Vec<u8>, entry: EntryRef<'_>, now: Millis) {
    let set = ValueRef::<SortedSetType>::known(entry, now);
    let mut adding = Adding::new(out, b"ZADD", entry.key(), (set.len(), 2));
    for scored in set.iter(0..set.len()) {
        adding.begin_element();
        number::format_f64(scored.score(), |score| adding.word(score));
        adding.element(scored.member);
    }
}

pub(crate) fn write_hash(out: &mut Vec<u8>, entry: EntryRef<'_>, now: Millis) {
    let hash = ValueRef::<HashType>::known(entry, now);
    let mut adding = Adding::new(out, b"HSET", entry.key(), (hash.iter().count(), 2));
    for field in hash.iter() {
        adding.begin_element();
        adding.element(field.name);
        adding.element(field.value);
    }
    for Field { name, deadline, .. } in hash.iter() {
        if let Some(Deadline(Millis(millis))) = deadline {
            let mut deadline = IntegerText::default();
            let deadline = deadline.format_unsigned(millis);
            name.with_text(|name| write(out, &[b"HPEXPIREAT", entry.key(), deadline, b"FIELDS", b"1", name]));
        }
    }
}

/// Entries that are pending and were deleted are added and deleted again: XCLAIM passes over those that never
/// were there.
pub(crate) fn write_stream(out: &mut Vec<u8>, entry: EntryRef<'_>, now: Millis) {
    let (key, stream) = (entry.key(), ValueRef::<StreamType>::known(entry, now).stream());
    let gone = pending_and_gone(stream);
    write_entries(out, key, stream, &gone);
    write_ids(out, key, stream);
    for (name, group) in stream.groups() {
        write_group(out, key, name, group);
    }
    if !gone.is_empty() {
        delete(out, key, stream, &gone);
        write_ids(out, key, stream);
    }
}

/// Deletes entries that are gone. Those before the first existing one are trimmed, which leaves the greatest
/// deleted identity unchanged. They may have been trimmed themselves, and XSETID cannot set that identity
/// back to none.
fn delete(out: &mut Vec<u8>, key: &[u8], stream: &Stream, gone: &BTreeSet<StreamId>) {
    let first = stream.entries().range(StreamId::MIN, StreamId::MAX).next().map(|entry| entry.id());
    match first {
        None => return write(out, &[b"XTRIM", key, b"MAXLEN", b"0"]),
        Some(first) if gone.first().is_some_and(|&id| id < first) => {
            write(out, &[b"XTRIM", key, b"MINID", id_text(first).as_bytes()]);
        }
        Some(_) => {}
    }
    let between = || gone.iter().copied().filter(|&id| Some(id) > first);
    let mut deleting = Adding::new(out, b"XDEL", key, (between().count(), 1));
    for id in between() {
        deleting.begin_element();
        deleting.word(id_text(id).as_bytes());
    }
}

/// The identities of entries that are pending for some group and are there no more.
fn pending_and_gone(stream: &Stream) -> BTreeSet<StreamId> {
    let pending = stream.groups().flat_map(|(_, group)| group.pending(StreamId::MIN, StreamId::MAX));
    pending.map(|pending| pending.id).filter(|&id| stream.entries().get(id).is_none()).collect()
}

/// The entries, and empty ones for those that are gone.
fn write_entries(out: &mut Vec<u8>, key: &[u8], stream: &Stream, gone: &BTreeSet<StreamId>) {
    let empty = |out: &mut Vec<u8>, id| write(out, &[b"XADD", key, id_text(id).as_bytes(), b"x", b"y"]);
    let leaves_none = gone.is_empty() && stream.entries().is_empty();
    let mut gone = gone.iter().copied().peekable();
    for entry in stream.entries().range(StreamId::MIN, StreamId::MAX) {
        while let Some(id) = gone.next_if(|&id| id < entry.id()) {
            empty(out, id);
        }
        begin(out, 3 + 2 * entry.n_fields());
        [b"XADD", key, id_text(entry.id()).as_bytes()].iter().for_each(|text| word(out, text));
        for (name, value) in entry.fields() {
            name.with_text(|name| word(out, name));
            value.with_text(|value| word(out, value));
        }
    }
    gone.for_each(|id| empty(out, id));
    if leaves_none {
        // One that comes and goes leaves the stream.
        let id = stream.entries().last_id().max(StreamId::new(0, 1));
        write(out, &[b"XADD", key, b"MAXLEN", b"0", id_text(id).as_bytes(), b"x", b"y"]);
    }
}

/// Writes the record of former entries.
fn write_ids(out: &mut Vec<u8>, key: &[u8], stream: &Stream) {
    let entries = stream.entries();
    let (last, max_deleted) = (id_text(entries.last_id()), id_text(entries.max_deleted_id()));
    let mut added = IntegerText::default();
    let added = added.format_unsigned(entries.n_added());
    let words =
        [b"XSETID", key, last.as_bytes(), b"ENTRIESADDED", added, b"MAXDELETEDID", max_deleted.as_bytes()];
    write(out, &words);
}

fn write_group(out: &mut Vec<u8>, key: &[u8], name: &[u8], group: &Group) {
    let last = id_text(group.last_delivered_id());
    let mut words: Vec<&[u8]> = vec![b"XGROUP", b"CREATE", key, name, last.as_bytes()];
    let mut n_read = IntegerText::default();
    if let Some(n) = group.n_read() {
        words.extend([&b"ENTRIESREAD"[..], n_read.format_unsigned(n)]);
    }
    write(out, &words);
    for consumer in group.consumers() {
        write(out, &[b"XGROUP", b"CREATECONSUMER", key, name, consumer.name()]);
        write_pending(out, (key, name), group, consumer);
    }
    for id in group.handed_back() {
        write_handed_back(out, (key, name), group, id);
    }
}

/// Writes XNACK of Redis 8.8, without which no entry is pending without a consumer.
fn write_handed_back(out: &mut Vec<u8>, (key, group_name): (&[u8], &[u8]), group: &Group, id: StreamId) {
    let mut n_deliveries = IntegerText::default();
    let pending = group.pending(id, id).next().expect("an entry that was handed back is pending");
    let n_deliveries = n_deliveries.format_unsigned(pending.n_deliveries);
    let id = id_text(id);
    let words: [&[u8]; 10] = [
        b"XNACK",
        key,
        group_name,
        b"FAIL",
        b"IDS",
        b"1",
        id.as_bytes(),
        b"RETRYCOUNT",
        n_deliveries,
        b"FORCE",
    ];
    write(out, &words);
}

fn write_pending(out: &mut Vec<u8>, (key, group_name): (&[u8], &[u8]), group: &Group, consumer: &Consumer) {
    for pending in group.pending_of(consumer, StreamId::MIN, StreamId::MAX) {
        let id = id_text(pending.id);
        let (mut time, mut n_deliveries) = (IntegerText::default(), IntegerText::default());
        let words = [
            b"XCLAIM",
            key,
            group_name,
            consumer.name(),
            b"0",
            id.as_bytes(),
            b"TIME",
            time.format_unsigned(pending.delivered_at.0),
            b"RETRYCOUNT",
            n_deliveries.format_unsigned(pending.n_deliveries),
            b"JUSTID",
            b"FORCE",
        ];
        write(out, &words);
    }
}

fn id_text(id: StreamId) -> String {
    format!("{}-{}", id.ms, id.seq)
}

/// Adds elements to a key, by as many commands as needed.
struct Adding<'a> {
    out: &'a mut Vec<u8>,
    name: &'a [u8],
    key: &'a [u8],
    /// Elements that are in no command yet.
    n_left: usize,
    /// Elements that the command under way has yet to get.
    n_open: usize,
    words_per_element: usize,
}

impl<'a> Adding<'a> {
    fn new(
        out: &'a mut Vec<u8>,
        name: &'a [u8],
        key: &'a [u8],
        (n_left, words_per_element): (usize, usize),
    ) -> Self {
        Self { out, name, key, n_left, n_open: 0, words_per_element }
    }

    fn begin_element(&mut self) {
        if self.n_open == 0 {
            self.n_open = self.n_left.min(ELEMENTS_PER_COMMAND);
            self.n_left -= self.n_open;
            begin(self.out, 2 + self.n_open * self.words_per_element);
            word(self.out, self.name);
            word(self.out, self.key);
        }
        self.n_open -= 1;
    }

    fn word(&mut self, text: &[u8]) {
        word(self.out, text);
    }

    fn element(&mut self, element: Element<'_>) {
        element.with_text(|text| word(self.out, text));
    }
}

fn write(out: &mut Vec<u8>, words: &[&[u8]]) {
    begin(out, words.len());
    words.iter().for_each(|text| word(out, text));
}

/// Begins a command of `n_words` words.
fn begin(out: &mut Vec<u8>, n_words: usize) {
    line(out, b'*', n_words);
}

fn word(out: &mut Vec<u8>, text: &[u8]) {
    line(out, b'$', text.len());
    out.extend_from_slice(text);
    out.extend_from_slice(b"\r\n");
}

fn line(out: &mut Vec<u8>, sigil: u8, n: usize) {
    out.push(sigil);
    number::write_i64(out, n as i64);
    out.extend_from_slice(b"\r\n");
}
