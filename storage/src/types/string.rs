//! Strings: bytes after the key, or, above a kilobyte, a blob.

use braid_protocol::number;

use crate::{
    entry::{Encoding, EntryBox, EntryRef, Kind},
    types::value::{ValueMut, ValueType},
};

/// The longest string, in bytes, when `proto-max-bulk-len` says nothing else.
pub const STRING_MAX_BYTES: usize = 512 * 1024 * 1024;

/// The type of strings.
pub struct StringType;

/// A live string of a shard, for changes in place.
pub type StringMut<'a> = ValueMut<'a, StringType>;

impl ValueType for StringType {
    const KIND: Kind = Kind::String;

    fn empty(key: &[u8]) -> EntryBox {
        EntryBox::string(key, b"")
    }

    /// An empty string is a value like any other.
    fn is_empty(_: EntryRef<'_>) -> bool {
        false
    }
}

/// The origin of a string, for OBJECT ENCODING. The bytes are stored alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StringOrigin {
    /// Written whole: `int`, `embstr` or `raw` by its text.
    Written,
    /// Changed in place by APPEND or SETRANGE: `raw`.
    Edited,
    /// Made by INCRBYFLOAT: never `int`.
    Computed,
}

impl StringOrigin {
    pub(crate) const fn encoding(self) -> Encoding {
        Encoding::new(self as u8)
    }

    /// The origin of a string entry.
    pub fn of(entry: EntryRef<'_>) -> Self {
        match entry.encoding().nibble() {
            1 => StringOrigin::Edited,
            2 => StringOrigin::Computed,
            _ => StringOrigin::Written,
        }
    }
}

/// The longest string that Redis keeps in one allocation with its header.
const EMBSTR_MAX_BYTES: usize = 44;

/// How Redis would store a string, in OBJECT ENCODING's words.
pub(crate) fn encoding_name(entry: EntryRef<'_>) -> &'static str {
    string_encoding_name(StringOrigin::of(entry), entry.bytes().expect("strings are bytes"))
}

fn string_encoding_name(origin: StringOrigin, text: &[u8]) -> &'static str {
    match origin {
        StringOrigin::Edited => "raw",
        StringOrigin::Written if number::parse_i64(text).is_some() => "int",
        _ if text.len() <= EMBSTR_MAX_BYTES => "embstr",
        _ => "raw",
    }
}

impl StringMut<'_> {
    /// The string.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        self.entry().bytes().expect("a string is bytes")
    }

    /// Writes another string in its place. The deadline stays.
    pub fn set(&mut self, value: &[u8]) {
        self.change(|entry| {
            entry.set_encoding(StringOrigin::Written.encoding());
            entry.set_bytes(value)
        });
    }

    /// Appends.
    pub fn append(&mut self, suffix: &[u8]) {
        self.change(|entry| entry.append(suffix));
    }

    /// Writes `bytes` from `offset` on; the string grows with zero bytes where it must.
    pub fn write_at(&mut self, offset: usize, bytes: &[u8]) {
        self.change(|entry| entry.write_at(offset, bytes));
    }

    /// Changes bytes in place; the length stays.
    pub fn edit<R>(&mut self, edit: impl FnOnce(&mut [u8]) -> R) -> R {
        self.change(|entry| edit(entry.bytes_mut()))
    }

    /// Records the origin of the string, for OBJECT ENCODING. That alone is no change.
    pub fn set_origin(&mut self, origin: StringOrigin) {
        self.arrange(|entry| entry.set_encoding(origin.encoding()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_have_the_encodings_of_redis() {
        use StringOrigin::{Computed, Edited, Written};
        let (embstr_max, raw_min) = ("x".repeat(44), "x".repeat(45));
        for (origin, text, name) in [
            (Written, "0", "int"),
            (Written, "-9223372036854775808", "int"),
            (Written, "9223372036854775808", "embstr"),
            (Written, "007", "embstr"),
            (Written, "-0", "embstr"),
            (Written, "", "embstr"),
            (Written, &embstr_max, "embstr"),
            (Written, &raw_min, "raw"),
            (Edited, "12", "raw"),
            (Computed, "12", "embstr"),
            (Computed, &raw_min, "raw"),
        ] {
            assert_eq!(string_encoding_name(origin, text.as_bytes()), name, "{origin:?} {text:?}");
        }
    }
}
