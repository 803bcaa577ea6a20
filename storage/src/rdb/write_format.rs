//! The formats in which values and files are written, and the rewriting of values for them.

use std::fmt;

use super::{
    codes::types,
    dialect::{Dialect, FIRST_OF_VALKEY},
    flaw::{Flaw, Malformed},
    hash_dump,
    reader::{self, Reader},
    stream_dump,
    walk::Stop,
    writer,
};

/// The version that is written by default: Redis 7.0's, which later ones read too.
pub const VERSION_OF_REDIS_7_0: u16 = 10;

/// The version of Redis 8.8, in which entries of streams can be handed back to their group.
pub const VERSION_OF_REDIS_8_8: u16 = 14;

/// The version of Redis 7.4, in which fields of hashes have deadlines.
pub const VERSION_OF_REDIS_7_4: u16 = 12;

/// A program whose format is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WriteFormat {
    /// That of Redis 7.0, or of 7.4 if fields of hashes have deadlines.
    ///
    /// A stream with entries that were handed back to a group is written as in Redis 8.8.
    #[default]
    Auto,
    /// That of Redis 7.0, which cannot hold deadlines of fields.
    Redis70,
    /// That of Redis 7.4.
    Redis74,
    /// That of Valkey 9.
    Valkey9,
}

impl WriteFormat {
    /// All formats, by the names that settings and the command line give them.
    pub const NAMED: [(&str, WriteFormat); 4] = [
        ("auto", WriteFormat::Auto),
        ("redis-7.0", WriteFormat::Redis70),
        ("redis-7.4", WriteFormat::Redis74),
        ("valkey-9", WriteFormat::Valkey9),
    ];

    /// The format's name.
    pub fn name(self) -> &'static str {
        Self::NAMED.into_iter().find(|(_, format)| *format == self).expect("all are listed").0
    }

    pub(super) fn dialect(self) -> Dialect {
        match self {
            WriteFormat::Valkey9 => Dialect::Valkey,
            WriteFormat::Auto | WriteFormat::Redis70 | WriteFormat::Redis74 => Dialect::Redis,
        }
    }

    /// The version of a value or a file, which has deadlines of fields or not.
    pub(super) fn version(self, has_field_deadlines: bool) -> u16 {
        match self {
            WriteFormat::Auto if has_field_deadlines => VERSION_OF_REDIS_7_4,
            WriteFormat::Auto | WriteFormat::Redis70 => VERSION_OF_REDIS_7_0,
            WriteFormat::Redis74 => VERSION_OF_REDIS_7_4,
            WriteFormat::Valkey9 => FIRST_OF_VALKEY,
        }
    }

    /// Whether values are written in this format as they are encoded.
    pub(super) fn is_encoded_form(self) -> bool {
        matches!(self, WriteFormat::Auto | WriteFormat::Redis74)
    }

    /// Whether the format has a type.
    pub(super) fn has(self, value_type: u8) -> bool {
        match self {
            WriteFormat::Redis70 => value_type <= types::STREAM_2,
            WriteFormat::Auto | WriteFormat::Redis74 => {
                value_type <= types::STREAM_3
                    || matches!(value_type, types::HASH_WITH_DEADLINES | types::HASH_TRIPLES)
            }
            WriteFormat::Valkey9 => value_type <= types::STREAM_3 || value_type == types::HASH_OF_VALKEY,
        }
    }
}

/// The number that stands in a file for a type.
pub(super) fn stated(value_type: u8) -> u8 {
    if value_type == types::HASH_OF_VALKEY { types::HASH_OF_VALKEY_STATED } else { value_type }
}

/// The reason why a value cannot be written in a format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unwritable {
    /// Fields of a hash have deadlines.
    FieldDeadlines(WriteFormat),
    /// A group of a stream has entries that were handed back.
    HandedBack(WriteFormat),
    /// The value is not well formed.
    Malformed(Malformed),
}

impl fmt::Display for Unwritable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unwritable::FieldDeadlines(format) => {
                write!(f, "fields of the hash have deadlines, which the format {} cannot hold", format.name())
            }
            Unwritable::HandedBack(format) => write!(
                f,
                "a group of the stream has pending entries without a consumer (XNACK), which the format {} cannot hold: \
                 claim or acknowledge them first",
                format.name()
            ),
            Unwritable::Malformed(malformed) => write!(f, "the value is not well formed: {malformed}"),
        }
    }
}

/// The type as which a format has streams of later types.
pub(super) fn target_of_streams(format: WriteFormat) -> u8 {
    if format.has(types::STREAM_3) { types::STREAM_3 } else { types::STREAM_2 }
}

/// Whether a value stands alone, or is written in parts one after the other.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Whole {
    /// All its elements are there.
    Yes,
    /// Other parts have elements, too. What the parts share must be the same in each.
    Part,
}

/// Rewrites a value of a type that the format does not [have](WriteFormat::has). Returns the new type.
///
/// # Errors
/// If the format cannot hold the value, or the value is not well formed.
pub(super) fn rewrite(
    out: &mut Vec<u8>,
    value_type: u8,
    value: &[u8],
    format: WriteFormat,
    whole: Whole,
) -> Result<u8, Unwritable> {
    let stopped = |stop: Stop| {
        let flaw = match stop {
            Stop::Malformed | Stop::More(_) | Stop::Long(_) => Flaw::Part,
        };
        Unwritable::Malformed(Malformed { at: 0, flaw })
    };
    match value_type {
        types::SET_LISTPACK => {
            let mut from = Reader::new(value);
            let (mut members, mut n) = (Vec::new(), 0);
            let read = from.string_as(Flaw::Packed("Set listpack"), |packed| {
                reader::each_packed(&packed, |member| {
                    writer::string(&mut members, member);
                    n += 1;
                    Some(())
                })
            });
            read.ok_or_else(|| Unwritable::Malformed(from.malformed()))?;
            writer::number_of(out, n);
            out.extend_from_slice(&members);
            Ok(types::SET)
        }
        types::STREAM_3 | types::STREAM_4 | types::STREAM_5 => {
            let target = target_of_streams(format);
            let start = out.len();
            match stream_dump::rewrite(out, value_type, value, target) {
                Ok(true) => Ok(target),
                Ok(false) if format == WriteFormat::Auto => {
                    out.truncate(start);
                    out.extend_from_slice(value);
                    Ok(value_type)
                }
                Ok(false) => Err(Unwritable::HandedBack(format)),
                Err(stop) => Err(stopped(stop)),
            }
        }
        _ if format == WriteFormat::Redis70 => Err(Unwritable::FieldDeadlines(format)),
        _ => {
            let mut from = Reader::new(value);
            let written = match format {
                WriteFormat::Valkey9 => hash_dump::rewrite_for_valkey(out, value_type, &mut from),
                _ => hash_dump::rewrite_for_redis(out, value_type, &mut from, whole),
            };
            written.ok_or_else(|| Unwritable::Malformed(from.malformed()))
        }
    }
}
