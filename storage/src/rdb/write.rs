//! How values are written.

use braid_protocol::number;

use super::{
    codes::{encoded, length, node, types},
    stream_dump,
};
use crate::{
    HashRef, HashType, ListRef, ListType, SetRef, SetType, SortedSetRef, SortedSetType, ValueRef, ValueType,
    encoding_name,
    entry::{EntryRef, Kind},
    list::Part,
    packed::Element,
    stream::StreamType,
    time::{Deadline, Millis},
};

/// The longest text that may be that of an integer of 32 bits.
const INT_32_TEXT_BYTES: usize = 11;

/// Writes the type and the value of an entry.
pub fn value(out: &mut Vec<u8>, entry: EntryRef<'_>, now: Millis) {
    match entry.kind() {
        Kind::String => {
            out.push(types::STRING);
            string(out, stored(entry));
        }
        Kind::List => list(out, of::<ListType>(entry, now)),
        Kind::Set => set(out, of::<SetType>(entry, now)),
        Kind::Hash => hash(out, of::<HashType>(entry, now)),
        Kind::SortedSet => sorted_set(out, of::<SortedSetType>(entry, now)),
        Kind::Stream => {
            out.push(types::STREAM_2);
            stream_dump::write(out, of::<StreamType>(entry, now).stream());
        }
    }
}

fn of<T: ValueType>(entry: EntryRef<'_>, now: Millis) -> ValueRef<'_, T> {
    ValueRef::of(entry, now).expect("the kind has been looked at")
}

/// The bytes of a value that is stored as it is dumped.
fn stored(entry: EntryRef<'_>) -> &[u8] {
    entry.bytes().expect("strings and packed values are bytes")
}

fn list(out: &mut Vec<u8>, list: ListRef<'_>) {
    out.push(types::LIST_OF_LISTPACKS);
    number_of(out, list.parts().count());
    for part in list.parts() {
        match part {
            Part::Packed(packed) => {
                len(out, node::PACKED);
                string(out, packed.bytes());
            }
            Part::Plain(text) => {
                len(out, node::PLAIN);
                string(out, text);
            }
        }
    }
}

/// A packed set is written member by member: its own type is newer than the version that is written.
fn set(out: &mut Vec<u8>, set: SetRef<'_>) {
    if encoding_name(set.entry()) == "intset" {
        out.push(types::SET_INTSET);
        return string(out, stored(set.entry()));
    }
    out.push(types::SET);
    number_of(out, set.len());
    for member in set.iter() {
        element(out, member);
    }
}

fn hash(out: &mut Vec<u8>, hash: HashRef<'_>) {
    if encoding_name(hash.entry()) == "listpack" {
        out.push(types::HASH_LISTPACK);
        return string(out, stored(hash.entry()));
    }
    match hash.iter().filter_map(|field| field.deadline).min() {
        Some(first) => hash_with_deadlines(out, hash, first),
        None => {
            out.push(types::HASH);
            number_of(out, hash.iter().count());
            for field in hash.iter() {
                element(out, field.name);
                element(out, field.value);
            }
        }
    }
}

/// Writes a hash of which the first deadline is `first`: its triples as they are stored, or field by field, with what each
/// deadline is later than the first, and one more, since 0 stands for none.
fn hash_with_deadlines(out: &mut Vec<u8>, hash: HashRef<'_>, first: Deadline) {
    let triples = hash.live_triples();
    out.push(if triples.is_some() { types::HASH_TRIPLES } else { types::HASH_WITH_DEADLINES });
    out.extend_from_slice(&first.0.0.to_le_bytes());
    if let Some(triples) = triples {
        return string(out, &triples);
    }
    number_of(out, hash.iter().count());
    for field in hash.iter() {
        len(out, field.deadline.map_or(0, |deadline| deadline.0.0 - first.0.0 + 1));
        element(out, field.name);
        element(out, field.value);
    }
}

/// A large one is written from the highest score on, as Redis does.
fn sorted_set(out: &mut Vec<u8>, set: SortedSetRef<'_>) {
    if encoding_name(set.entry()) == "listpack" {
        out.push(types::SORTED_SET_LISTPACK);
        return string(out, stored(set.entry()));
    }
    out.push(types::SORTED_SET);
    number_of(out, set.len());
    for scored in set.iter(0..set.len()).rev() {
        element(out, scored.member);
        out.extend_from_slice(&scored.score().to_le_bytes());
    }
}

fn element(out: &mut Vec<u8>, element: Element<'_>) {
    element.with_text(|text| string(out, text));
}

/// Writes a string; the text of a short integer in fewer bytes.
pub fn string(out: &mut Vec<u8>, text: &[u8]) {
    if text.len() <= INT_32_TEXT_BYTES
        && let Some(value) = number::parse_i64(text)
        && short_integer(out, value)
    {
        return;
    }
    number_of(out, text.len());
    out.extend_from_slice(text);
}

/// Writes an integer if it has no more than 32 bits.
fn short_integer(out: &mut Vec<u8>, value: i64) -> bool {
    if let Ok(value) = i8::try_from(value) {
        out.push(encoded::INT_8);
        out.extend_from_slice(&value.to_le_bytes());
    } else if let Ok(value) = i16::try_from(value) {
        out.push(encoded::INT_16);
        out.extend_from_slice(&value.to_le_bytes());
    } else if let Ok(value) = i32::try_from(value) {
        out.push(encoded::INT_32);
        out.extend_from_slice(&value.to_le_bytes());
    } else {
        return false;
    }
    true
}

/// Writes how many there are of something.
pub fn number_of(out: &mut Vec<u8>, n: usize) {
    len(out, n as u64);
}

/// Writes a length.
pub fn len(out: &mut Vec<u8>, n: u64) {
    if n < 1 << 6 {
        out.push(length::IN_6_BITS << 6 | n as u8);
    } else if n < 1 << 14 {
        out.push(length::IN_14_BITS << 6 | (n >> 8) as u8);
        out.push(n as u8);
    } else if let Ok(n) = u32::try_from(n) {
        out.push(length::IN_32_BITS);
        out.extend_from_slice(&n.to_be_bytes());
    } else {
        out.push(length::IN_64_BITS);
        out.extend_from_slice(&n.to_be_bytes());
    }
}
