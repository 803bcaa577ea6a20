//! Very long strings of a record, which are read to places of their own rather than to the record's bytes, so
//! that an entry can take them over and memory has one copy and not two.

use super::{codes::encoded, lzf::BlobDecompressor};
use crate::entry::Pinned;

/// The length from which a string is read to a place of its own.
pub const LONG_BYTES: usize = 1 << 20;

/// A string that was read to a place of its own.
#[derive(Debug, PartialEq, Eq)]
pub struct Apart {
    /// The string.
    pub text: Pinned,
    /// The number of bytes by which the record is shorter than in the file.
    pub n_bytes_less: usize,
}

/// A very long string that stands in the bytes of a record, or begins there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LongString {
    /// Where it begins with its lengths, from the record's beginning on.
    pub start: usize,
    /// Where its text begins.
    pub text_at: usize,
    /// The number of bytes that the text takes in the file.
    pub stored: usize,
    /// The length of the string.
    pub len: usize,
    /// Whether the text is compressed.
    pub is_compressed: bool,
}

/// The bytes that take the place of the string with this number.
pub fn placeholder(nth: usize) -> [u8; 5] {
    let mut bytes = [encoded::APART; 5];
    bytes[1..].copy_from_slice(&u32::try_from(nth).expect("a file has fewer long strings").to_le_bytes());
    bytes
}

/// A very long string while it is read piece by piece.
pub enum Filling {
    /// One that is stored as it is.
    Plain(Pinned),
    /// A compressed one.
    Compressed(BlobDecompressor),
}

impl Filling {
    /// Takes the string's room. There is none if the string cannot be as long as it says.
    pub fn new(long: &LongString) -> Option<Self> {
        Some(if long.is_compressed {
            Filling::Compressed(BlobDecompressor::new(long.stored, long.len)?)
        } else {
            Filling::Plain(Pinned::with_capacity(long.len))
        })
    }

    /// Adds the next bytes; `None` if they make no sense.
    pub fn push(&mut self, piece: &[u8]) -> Option<()> {
        match self {
            Filling::Plain(blob) => blob.extend_from_slice(piece),
            Filling::Compressed(decompressor) => return decompressor.push(piece),
        }
        Some(())
    }

    /// The string, after all bytes.
    pub fn finish(self) -> Option<Pinned> {
        match self {
            Filling::Plain(blob) => Some(blob),
            Filling::Compressed(decompressor) => decompressor.finish(),
        }
    }
}
