//! Redis's RDB format: values as DUMP writes and RESTORE reads them, and [whole files](mod@file).
//!
//! ```text
//! type u8 | value | version u16 | checksum u64        the last two little-endian
//! ```
//!
//! The checksum is Redis's CRC-64 of all before it. It finds accidents only, so that nothing else that is
//! read is trusted: packed values are checked in every byte, and announced lengths are never allocated ahead.

mod apart;
mod codes;
mod dialect;
pub mod file;
mod flaw;
pub(crate) mod hash_dump;
pub(crate) mod list_dump;
mod lzf;
mod reader;
pub(crate) mod set_dump;
pub(crate) mod sorted_set_dump;
pub(crate) mod stream_dump;
pub(crate) mod string_dump;
#[cfg(test)]
mod tests;
mod value_builder;
mod walk;
mod write_format;
mod writer;
mod ziplist;
mod zipmap;

use std::cell::Cell;

use crc::{CRC_64_REDIS, Crc, Table};

use self::write_format::{VERSION_OF_REDIS_7_0, VERSION_OF_REDIS_8_8, Whole};

use self::codes::{opcode, types};
pub(crate) use self::{
    dialect::{Dialect, UnknownType},
    reader::Reader,
    value_builder::Making,
    walk::{Stop, ValueParts},
};
pub use self::{
    flaw::{Flaw, Malformed},
    value_builder::{Made, Unfinished},
    write_format::{Unwritable, WriteFormat},
};
use crate::{
    entry::{EntryBox, EntryRef, key::Key, time::Millis},
    keyspace::Keyspace,
    types::kinds,
};

/// Bytes of version and checksum.
const FOOTER_BYTES: usize = 10;

/// Sixteen bytes at a time: large values are summed as fast as they are copied.
static CHECKSUM: Crc<u64, Table<16>> = Crc::<u64, Table<16>>::new(&CRC_64_REDIS);

/// Whether checksums are compared with the bytes that they cover.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checksums {
    /// A payload with another one is refused.
    Compared,
    /// They are not looked at (DEBUG SET-SKIP-CHECKSUM-VALIDATION); reading the payload finds its faults.
    Ignored,
}

/// The value of an entry, with the footer. Fields whose deadline has passed are left out.
pub fn dump(entry: EntryRef<'_>, now: Millis) -> Vec<u8> {
    dump_in(WriteFormat::Auto, entry, now).expect("values have this form")
}

/// The value of an entry in a format, with the footer. Fields whose deadline has passed are left out.
///
/// # Errors
/// If the format cannot hold the value.
pub fn dump_in(format: WriteFormat, entry: EntryRef<'_>, now: Millis) -> Result<Vec<u8>, Unwritable> {
    let mut out = Vec::new();
    kinds::dump(&mut out, entry, now);
    let has_deadlines = matches!(out[0], types::HASH_WITH_DEADLINES | types::HASH_TRIPLES);
    if !format.has(out[0]) {
        let mut rewritten = vec![0];
        let value_type = write_format::rewrite(&mut rewritten, out[0], &out[1..], format, Whole::Yes)?;
        rewritten[0] = write_format::stated(value_type);
        out = rewritten;
    }
    let version = match out[0] {
        value_type if stream_dump::is_latest(value_type) => VERSION_OF_REDIS_8_8,
        _ => format.version(has_deadlines),
    };
    add_footer(&mut out, version);
    Ok(out)
}

/// Makes a payload of this version of a type and a value.
pub fn add_footer(out: &mut Vec<u8>, version: u16) {
    out.extend_from_slice(&version.to_le_bytes());
    out.extend_from_slice(&CHECKSUM.checksum(out).to_le_bytes());
}

/// Libraries of functions as FUNCTION DUMP writes them: each with its opcode, and the footer.
pub fn dump_libraries<'c>(codes: impl Iterator<Item = &'c [u8]>) -> Vec<u8> {
    let mut out = Vec::new();
    for code in codes {
        out.push(opcode::LIBRARY);
        writer::string(&mut out, code);
    }
    add_footer(&mut out, VERSION_OF_REDIS_7_0);
    out
}

/// The libraries' texts that FUNCTION DUMP has written.
///
/// # Errors
/// If the payload is not one that FUNCTION DUMP could have written.
pub fn restore_libraries(payload: &[u8], checksums: Checksums) -> Result<Vec<Vec<u8>>, Malformed> {
    let (libraries, _) = check_footer(payload, checksums)?;
    let mut reader = Reader::new(libraries);
    let mut codes = Vec::new();
    while !reader.is_at_end() {
        let at = reader.at();
        if reader.byte() != Some(opcode::LIBRARY) {
            return Err(Malformed { at, flaw: Flaw::NoLibrary });
        }
        let code = reader.string();
        codes.push(code.ok_or_else(|| reader.malformed())?.into_owned());
    }
    Ok(codes)
}

/// An entry for the key with the value that was dumped. It has no deadline of its own. There is none if it is
/// a hash in which all fields have expired.
///
/// # Errors
/// If the payload is not one that DUMP could have written.
pub fn restore(
    payload: &[u8],
    key: &Key<'_>,
    keyspace: &Keyspace,
    now: Millis,
    checksums: Checksums,
) -> Result<Option<EntryBox>, Malformed> {
    let (value, dialect) = check_footer(payload, checksums)?;
    let mut reader = Reader::new(value);
    let stated = reader.byte();
    let stated = stated.ok_or_else(|| reader.malformed())?;
    let unknown = Flaw::Type(UnknownType { number: stated, dialect });
    let value_type = dialect.value_type(stated).ok_or(Malformed { at: reader.at(), flaw: unknown })?;
    let (hasher, thresholds) = (keyspace.router().hasher(), keyspace.thresholds());
    let making = Making {
        key: key.bytes,
        hasher,
        thresholds,
        now,
        deadline: None,
        onto: Cell::default(),
        is_part: false,
    };
    // Bytes after the value do not matter, as in Redis.
    match kinds::restore(value_type, &mut reader, &making) {
        Some(Made::Entry(entry)) => Ok(Some(entry)),
        Some(Made::Over | Made::Part(_)) => Ok(None),
        Some(Made::Empty) => Err(Malformed { at: reader.at(), flaw: Flaw::Empty }),
        None => Err(reader.malformed()),
    }
}

/// Returns the bytes before the footer, and the dialect in which they are written.
fn check_footer(payload: &[u8], checksums: Checksums) -> Result<(&[u8], Dialect), Malformed> {
    let Some((value, footer)) = payload.split_last_chunk::<FOOTER_BYTES>() else {
        return Err(Malformed { at: payload.len(), flaw: Flaw::NoFooter });
    };
    let wrong = |flaw| Malformed { at: value.len(), flaw };
    let (version, stated) = footer.split_first_chunk::<2>().expect("the footer starts with the version");
    let version = u16::from_le_bytes(*version);
    let dialect = Dialect::of_version(version).ok_or_else(|| wrong(Flaw::Version(version)))?;
    if checksums == Checksums::Ignored {
        return Ok((value, dialect));
    }
    let stated = u64::from_le_bytes(stated.try_into().expect("the footer ends with the checksum"));
    let computed = CHECKSUM.checksum(&payload[..payload.len() - size_of::<u64>()]);
    if stated == computed { Ok((value, dialect)) } else { Err(wrong(Flaw::Checksum { stated, computed })) }
}
