//! Whole files in Redis's RDB format: what SAVE writes and a server loads when it starts.
//!
//! ```text
//! REDIS | version, four digits | record* | 0xff | checksum u64, little-endian
//! VALKEY | version, three digits | the same
//! record: an opcode and what belongs to it, or an entry
//! entry:  (deadline | idle | frequency)* | type u8 | key | value
//! ```
//!
//! A [`SnapshotWriter`] writes a file from [encoded entries](encode_entry), a [`SnapshotReader`] takes one
//! apart into entries that are not built yet, and [`RawEntry::build`] builds one, on any thread. The checksum
//! is Redis's CRC-64 of all before it, or 0 if none was kept.

mod conversion;
mod raw_entry;
mod snapshot_reader;
mod snapshot_writer;

pub use self::{
    raw_entry::{RawEntry, Recency, encode_entry},
    snapshot_reader::{FileError, Item, Problem, SnapshotReader},
    snapshot_writer::{SnapshotOptions, SnapshotWriter},
};

/// The bytes with which a file begins.
const MAGIC: &[u8; 5] = b"REDIS";

/// The bytes with which a file of Valkey 9 begins.
const MAGIC_OF_VALKEY: &[u8; 6] = b"VALKEY";

/// Bytes of the magic and the version, whichever of the two it is.
const HEADER_BYTES: usize = 9;

/// Whether a file that begins so is a snapshot, and not commands.
pub fn is_snapshot(head: &[u8]) -> bool {
    head.starts_with(MAGIC) || head.starts_with(MAGIC_OF_VALKEY)
}

/// The first version with a checksum.
const VERSION_WITH_CHECKSUM: u16 = 5;
