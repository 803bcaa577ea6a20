//! Strings, written and read.

use super::{
    codes::types,
    making::{Made, Making},
    reader::Reader,
    walk::{Parts, Stop},
    writer,
};
use crate::{
    entry::{EntryBox, EntryRef, Kind},
    string::StringOrigin,
    time::Millis,
};

/// The types that are read.
pub const TYPES: &[u8] = &[types::STRING];

/// Writes the type and the value.
pub fn write(out: &mut Vec<u8>, entry: EntryRef<'_>, _: Millis) {
    out.push(types::STRING);
    writer::string(out, entry.bytes().expect("a string is bytes"));
}

/// Walks over a value.
pub fn walk(_: u8, parts: &mut dyn Parts) -> Result<(), Stop> {
    parts.string()
}

/// Reads a value.
pub fn read(_: u8, from: &mut Reader<'_>, making: &Making<'_>) -> Option<Made> {
    let text = from.string()?;
    let encoding = StringOrigin::Written.encoding();
    Some(Made::Entry(EntryBox::with_bytes(Kind::String, encoding, making.key, &text, making.deadline)))
}
