//! What differs from type to type.

use crate::{
    entry::{EntryRef, Kind},
    hashes, list, set, sorted_set, stream, string,
    table::Table,
    time::{Deadline, Millis},
};

/// How a value is stored, in OBJECT ENCODING's words: as Redis would store it.
pub fn encoding_name(entry: EntryRef<'_>) -> &'static str {
    match entry.kind() {
        Kind::String => string::encoding_name(entry),
        Kind::Set => set::encoding_name(entry),
        Kind::List => list::encoding_name(entry),
        Kind::Hash => hashes::encoding_name(entry),
        Kind::SortedSet => sorted_set::encoding_name(entry),
        Kind::Stream => stream::ENCODING_NAME,
    }
}

/// Whether an entry's time is over: its own, or that of all its fields.
#[inline(always)]
pub fn has_expired(entry: EntryRef<'_>, now: Millis) -> bool {
    entry.deadline().is_some_and(|deadline| deadline.has_passed(now)) || hashes::is_over(entry, now)
}

/// When the first part of an entry's value expires by itself.
#[inline]
pub(crate) fn next_deadline(entry: EntryRef<'_>) -> Option<Deadline> {
    hashes::next_deadline(entry)
}

/// The table of an entry's members, if the value is large enough to have one.
pub(crate) fn member_table(entry: EntryRef<'_>) -> Option<&Table> {
    match entry.kind() {
        Kind::Set => set::member_table(entry),
        Kind::Hash => hashes::member_table(entry),
        Kind::SortedSet => sorted_set::member_table(entry),
        _ => None,
    }
}
