//! Strings, written and read.

use super::{
    codes::types,
    reader::Reader,
    value_builder::{Made, Making},
    walk::{Stop, ValueParts},
    writer,
};
use crate::{
    entry::{
        EntryBox, EntryRef, Kind, Pinned,
        time::{Deadline, Millis},
    },
    types::string::StringOrigin,
};

/// The types that are read.
pub const TYPES: &[u8] = &[types::STRING];

/// Writes the type and the value.
pub fn write(out: &mut Vec<u8>, entry: EntryRef<'_>, _: Millis) {
    out.push(types::STRING);
    writer::string(out, entry.bytes().expect("a string is bytes"));
}

/// Walks over a value.
pub fn walk(_: u8, parts: &mut dyn ValueParts) -> Result<(), Stop> {
    parts.string()
}

/// Reads a value.
pub fn read(_: u8, from: &mut Reader<'_>, making: &Making<'_>) -> Option<Made> {
    let encoding = StringOrigin::Written.encoding();
    if let Some(blob) = from.long_compressed()? {
        return Some(Made::Entry(long(making.key, blob, making.deadline)));
    }
    let text = from.string()?;
    Some(Made::Entry(EntryBox::with_bytes(Kind::String, encoding, making.key, &text, making.deadline)))
}

/// A string that is so long that its bytes were put into place when they were read.
pub fn long(key: &[u8], blob: Pinned, deadline: Option<Deadline>) -> EntryBox {
    EntryBox::with_pinned(Kind::String, StringOrigin::Written.encoding(), key, blob, deadline)
}
