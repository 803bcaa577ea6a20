//! Values as DUMP writes and RESTORE reads them: Redis's RDB format, one value at a time.
//!
//! ```text
//! type u8 | value | version u16 | checksum u64        the last two little-endian
//! ```
//!
//! The checksum is Redis's CRC-64 of all before it. It finds accidents only, so that nothing else that is read is trusted:
//! packed values are checked in every byte, and announced lengths are never allocated ahead.

mod lzf;
mod read;
mod stream;
#[cfg(test)]
mod tests;
mod write;
mod ziplist;
mod zipmap;

use crc::{CRC_64_REDIS, Crc, Table};

use crate::{
    Key, Keyspace,
    entry::{EntryBox, EntryRef},
    time::Millis,
};

/// The version that is written: Redis 7.0's, which later ones read too.
const VERSION_WRITTEN: u16 = 10;

/// The version of hashes whose fields have deadlines: Redis 7.4's, since earlier ones know no such hash.
const VERSION_WITH_DEADLINES: u16 = 12;

/// The latest version whose values are read.
const VERSION_MAX: u16 = 12;

/// Bytes of version and checksum.
const FOOTER_BYTES: usize = 10;

/// Sixteen bytes at a time: large values are summed as fast as they are copied.
const CHECKSUM: Crc<u64, Table<16>> = Crc::<u64, Table<16>>::new(&CRC_64_REDIS);

/// The numbers of the types of values.
mod types {
    pub const STRING: u8 = 0;
    pub const LIST: u8 = 1;
    pub const SET: u8 = 2;
    pub const SORTED_SET_OF_TEXTS: u8 = 3;
    pub const HASH: u8 = 4;
    pub const SORTED_SET: u8 = 5;
    pub const HASH_ZIPMAP: u8 = 9;
    pub const LIST_ZIPLIST: u8 = 10;
    pub const SET_INTSET: u8 = 11;
    pub const SORTED_SET_ZIPLIST: u8 = 12;
    pub const HASH_ZIPLIST: u8 = 13;
    pub const LIST_OF_ZIPLISTS: u8 = 14;
    pub const STREAM: u8 = 15;
    pub const HASH_LISTPACK: u8 = 16;
    pub const SORTED_SET_LISTPACK: u8 = 17;
    pub const LIST_OF_LISTPACKS: u8 = 18;
    pub const STREAM_2: u8 = 19;
    pub const SET_LISTPACK: u8 = 20;
    pub const STREAM_3: u8 = 21;
    /// The release candidates of Redis 7.4 wrote hashes whose fields have deadlines in these two ways. (Valkey has another type
    /// 22, but its version is refused.)
    pub const HASH_WITH_DEADLINES_EARLY: u8 = 22;
    pub const HASH_TRIPLES_EARLY: u8 = 23;
    pub const HASH_WITH_DEADLINES: u8 = 24;
    pub const HASH_TRIPLES: u8 = 25;
}

/// How a piece of a list is stored: as one long element, or as packed ones.
mod node {
    pub const PLAIN: u64 = 1;
    pub const PACKED: u64 = 2;
}

/// The two bits that a length starts with say how long it is itself.
mod length {
    pub const IN_6_BITS: u8 = 0;
    pub const IN_14_BITS: u8 = 1;
    pub const IN_32_BITS: u8 = 0x80;
    pub const IN_64_BITS: u8 = 0x81;
    /// No length: a string that is written in another way.
    pub const ENCODED: u8 = 3;
}

/// Other ways to write a string, behind [`length::ENCODED`].
mod encoded {
    pub const INT_8: u8 = 0xc0;
    pub const INT_16: u8 = 0xc1;
    pub const INT_32: u8 = 0xc2;
    pub const LZF: u8 = 0xc3;
}

/// Why nothing was restored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Malformed {
    /// The version is too new, or the checksum is wrong.
    Footer,
    /// The value makes no sense, or is of a type that is not read.
    Payload,
}

/// The value of an entry, with the footer. Fields whose deadline has passed are left out.
pub fn dump(entry: EntryRef<'_>, now: Millis) -> Vec<u8> {
    let mut out = Vec::new();
    write::value(&mut out, entry, now);
    let version = match out[0] {
        types::HASH_WITH_DEADLINES | types::HASH_TRIPLES => VERSION_WITH_DEADLINES,
        _ => VERSION_WRITTEN,
    };
    add_footer(&mut out, version);
    out
}

/// Makes a payload of this version of a type and a value.
pub fn add_footer(out: &mut Vec<u8>, version: u16) {
    out.extend_from_slice(&version.to_le_bytes());
    out.extend_from_slice(&CHECKSUM.checksum(out).to_le_bytes());
}

/// An entry for the key with the value that was dumped. It has no deadline of its own. There is none if it is a hash in which all
/// fields have expired.
///
/// # Errors
/// If the payload is not one that DUMP could have written.
pub fn restore(
    payload: &[u8],
    key: &Key<'_>,
    keyspace: &Keyspace,
    now: Millis,
) -> Result<Option<EntryBox>, Malformed> {
    read::value(check_footer(payload)?, key, keyspace, now).ok_or(Malformed::Payload)
}

/// What is before the footer.
fn check_footer(payload: &[u8]) -> Result<&[u8], Malformed> {
    let (value, footer) = payload.split_last_chunk::<FOOTER_BYTES>().ok_or(Malformed::Footer)?;
    let (version, checksum) = footer.split_first_chunk::<2>().expect("the footer starts with the version");
    let summed = &payload[..payload.len() - checksum.len()];
    let is_right =
        u16::from_le_bytes(*version) <= VERSION_MAX && CHECKSUM.checksum(summed).to_le_bytes() == checksum;
    is_right.then_some(value).ok_or(Malformed::Footer)
}
