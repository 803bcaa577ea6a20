//! The types of values: all operations on a value whatever its type, one row a type.
//!
//! The table stands above the types and below the shard. Reading and writing strings does not pass through
//! it. Every look-up asks it only whether a value has expired.

use crate::{
    entry::{
        EntryRef, Kind,
        time::{Deadline, Millis},
    },
    rdb::{
        Dialect, Flaw, Made, Making, Reader, Stop, UnknownType, ValueParts, hash_dump, list_dump, set_dump,
        sorted_set_dump, stream_dump, string_dump,
    },
    table::Table,
    types::{
        as_commands,
        digest::{self, Digest},
        hashes::{self, HashRef},
        list::{self, ListRef},
        set::{self, SetRef},
        sorted_set::{self, SortedSetRef},
        stream::{self, StreamRef},
        string,
    },
};

/// The row of a type.
pub(crate) struct KindRow {
    /// The type.
    kind: Kind,
    /// Its name, as TYPE prints it and SCAN asks for it.
    name: &'static str,
    /// The name of a value's encoding, as OBJECT ENCODING prints it.
    encoding_name: fn(EntryRef<'_>) -> &'static str,
    /// The number of elements of a value, with expired ones; none if it is measured by its bytes.
    n_elements: Option<fn(EntryRef<'_>) -> usize>,
    /// The table of a large value's members, to be prefetched from.
    member_table: Option<fn(EntryRef<'_>) -> Option<&Table>>,
    /// The parts of a value that expire by themselves.
    expiring: Option<Expiring>,
    /// Writes the number and the bytes that DUMP gives.
    dump: fn(&mut Vec<u8>, EntryRef<'_>, Millis),
    /// The numbers that RESTORE takes.
    dump_types: &'static [u8],
    /// Walks over the bytes after the number.
    walk: fn(u8, &mut dyn ValueParts) -> Result<(), Stop>,
    /// Reads the bytes after the number.
    restore: fn(u8, &mut Reader<'_>, &Making<'_>) -> Option<Made>,
    /// Writes the commands that make the value.
    as_commands: fn(&mut Vec<u8>, EntryRef<'_>, Millis),
    /// The fingerprint of the value.
    digest: fn(EntryRef<'_>, Millis) -> Digest,
}

/// Parts of a value that expire by themselves.
struct Expiring {
    /// The deadline of the first part.
    next_deadline: fn(EntryRef<'_>) -> Option<Deadline>,
    /// Whether all parts have expired.
    is_over: fn(EntryRef<'_>, Millis) -> bool,
}

/// A row a type, in the order of [`Kind::ALL`].
static ROWS: [KindRow; Kind::ALL.len()] = [
    KindRow {
        kind: Kind::String,
        name: "string",
        encoding_name: string::encoding_name,
        n_elements: None,
        member_table: None,
        expiring: None,
        dump: string_dump::write,
        dump_types: string_dump::TYPES,
        walk: string_dump::walk,
        restore: string_dump::read,
        as_commands: as_commands::write_string,
        digest: digest::of_string,
    },
    KindRow {
        kind: Kind::List,
        name: "list",
        encoding_name: list::encoding_name,
        n_elements: Some(|entry| ListRef::known(entry, Millis(0)).len()),
        member_table: None,
        expiring: None,
        dump: list_dump::write,
        dump_types: list_dump::TYPES,
        walk: list_dump::walk,
        restore: list_dump::read,
        as_commands: as_commands::write_list,
        digest: digest::of_list,
    },
    KindRow {
        kind: Kind::Hash,
        name: "hash",
        encoding_name: hashes::encoding_name,
        n_elements: Some(|entry| HashRef::known(entry, Millis(0)).n_stored()),
        member_table: Some(hashes::member_table),
        expiring: Some(Expiring { next_deadline: hashes::next_deadline, is_over: hashes::is_over }),
        dump: hash_dump::write,
        dump_types: hash_dump::TYPES,
        walk: hash_dump::walk,
        restore: hash_dump::read,
        as_commands: as_commands::write_hash,
        digest: digest::of_hash,
    },
    KindRow {
        kind: Kind::Set,
        name: "set",
        encoding_name: set::encoding_name,
        n_elements: Some(|entry| SetRef::known(entry, Millis(0)).len()),
        member_table: Some(set::member_table),
        expiring: None,
        dump: set_dump::write,
        dump_types: set_dump::TYPES,
        walk: set_dump::walk,
        restore: set_dump::read,
        as_commands: as_commands::write_set,
        digest: digest::of_set,
    },
    KindRow {
        kind: Kind::SortedSet,
        name: "zset",
        encoding_name: sorted_set::encoding_name,
        n_elements: Some(|entry| SortedSetRef::known(entry, Millis(0)).len()),
        member_table: Some(sorted_set::member_table),
        expiring: None,
        dump: sorted_set_dump::write,
        dump_types: sorted_set_dump::TYPES,
        walk: sorted_set_dump::walk,
        restore: sorted_set_dump::read,
        as_commands: as_commands::write_sorted_set,
        digest: digest::of_sorted_set,
    },
    KindRow {
        kind: Kind::Stream,
        name: "stream",
        encoding_name: stream::encoding_name,
        n_elements: Some(|entry| StreamRef::known(entry, Millis(0)).stream().entries().len() as usize),
        member_table: None,
        expiring: None,
        dump: stream_dump::write,
        dump_types: stream_dump::TYPES,
        walk: stream_dump::walk,
        restore: stream_dump::read,
        as_commands: as_commands::write_stream,
        digest: digest::of_stream,
    },
];

const _: () = {
    let mut at = 0;
    while at < ROWS.len() {
        assert!(ROWS[at].kind as usize == at, "the rows are in the order of the kinds");
        at += 1;
    }
};

/// The row of a type.
#[inline]
fn row(kind: Kind) -> &'static KindRow {
    &ROWS[kind as usize]
}

/// A bit for each kind whose values have parts that expire by themselves.
const EXPIRING: u32 = {
    let (mut bits, mut at) = (0, 0);
    while at < ROWS.len() {
        bits |= (ROWS[at].expiring.is_some() as u32) << at;
        at += 1;
    }
    bits
};

/// The parts of a kind's values that expire by themselves. Every look-up asks, so the row is read only if
/// there are any.
#[inline(always)]
fn expiring(kind: Kind) -> Option<&'static Expiring> {
    if EXPIRING >> kind as u32 & 1 == 0 {
        return None;
    }
    row(kind).expiring.as_ref()
}

/// A type's name, as TYPE prints it and SCAN asks for it.
pub fn type_name(kind: Kind) -> &'static str {
    row(kind).name
}

/// How a value is stored, in OBJECT ENCODING's words: as Redis would store it.
pub fn encoding_name(entry: EntryRef<'_>) -> &'static str {
    (row(entry.kind()).encoding_name)(entry)
}

/// The number of elements of a value, with expired ones; none if it is measured by its bytes.
pub fn n_elements(entry: EntryRef<'_>) -> Option<usize> {
    row(entry.kind()).n_elements.map(|n_elements| n_elements(entry))
}

/// The fingerprint of an entry's type and value, and of whether it has a deadline.
pub fn digest_of(entry: EntryRef<'_>, now: Millis) -> Digest {
    let row = row(entry.kind());
    let digest = Digest::default().then(row.name.as_bytes()).and_then(&(row.digest)(entry, now));
    if entry.has_deadline() { digest.then(b"deadline") } else { digest }
}

/// Whether an entry has expired: the entry itself, or all its parts.
#[inline(always)]
pub fn has_expired(entry: EntryRef<'_>, now: Millis) -> bool {
    entry.deadline().is_some_and(|deadline| deadline.has_passed(now)) || is_over(entry, now)
}

/// Whether all parts of an entry's value have expired.
#[inline(always)]
pub(crate) fn is_over(entry: EntryRef<'_>, now: Millis) -> bool {
    expiring(entry.kind()).is_some_and(|expiring| (expiring.is_over)(entry, now))
}

/// The deadline of the part of an entry's value that expires first.
#[inline]
pub(crate) fn next_deadline(entry: EntryRef<'_>) -> Option<Deadline> {
    expiring(entry.kind()).and_then(|expiring| (expiring.next_deadline)(entry))
}

/// The table of an entry's members, if the value is large enough to have one.
pub(crate) fn member_table(entry: EntryRef<'_>) -> Option<&Table> {
    row(entry.kind()).member_table.and_then(|member_table| member_table(entry))
}

/// Writes the number and the bytes that DUMP gives of a value.
pub(crate) fn dump(out: &mut Vec<u8>, entry: EntryRef<'_>, now: Millis) {
    (row(entry.kind()).dump)(out, entry, now);
}

/// Writes the commands that make a value, but for its deadline.
pub(crate) fn write_as_commands(out: &mut Vec<u8>, entry: EntryRef<'_>, now: Millis) {
    (row(entry.kind()).as_commands)(out, entry, now);
}

/// The row of the type whose values are dumped under a number.
fn row_of_dump(dump_type: u8) -> Option<&'static KindRow> {
    ROWS.iter().find(|row| row.dump_types.contains(&dump_type))
}

/// The type whose values are dumped under a number, if one is.
pub(crate) fn kind_of_dump(dump_type: u8) -> Option<Kind> {
    row_of_dump(dump_type).map(|row| row.kind)
}

/// Walks over a value that was dumped under a number. Nothing if there is no such number.
pub(crate) fn walk_dump(dump_type: u8, parts: &mut dyn ValueParts) -> Option<Result<(), Stop>> {
    row_of_dump(dump_type).map(|row| (row.walk)(dump_type, parts))
}

/// Reads a value that was dumped under a number; nothing if it makes no sense, and the reader knows why.
pub(crate) fn restore(dump_type: u8, from: &mut Reader<'_>, making: &Making<'_>) -> Option<Made> {
    match row_of_dump(dump_type) {
        Some(row) => (row.restore)(dump_type, from, making),
        None => from.refuse(Flaw::Type(UnknownType { number: dump_type, dialect: Dialect::default() })),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn types_have_names_and_numbers_of_their_own() {
        let names: HashSet<&str> = ROWS.iter().map(|row| row.name).collect();
        assert_eq!(names.len(), ROWS.len());
        let numbers = || ROWS.iter().flat_map(|row| row.dump_types);
        assert_eq!(numbers().collect::<HashSet<_>>().len(), numbers().count());
    }
}
