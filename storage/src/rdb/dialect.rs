//! The two dialects of the format. Redis and Valkey give some numbers different meanings.

use std::fmt;

use super::codes::types;

/// The first version of Valkey's own. Before, it wrote those of Redis.
pub const FIRST_OF_VALKEY: u16 = 80;

/// The latest version of Redis of which all types are known, if only by name: that of 8.10.
pub const LATEST_OF_REDIS: u16 = 15;

/// The latest version that a file's header has room for.
const VERSION_MAX: u16 = 999;

/// The program whose meanings the numbers of a file have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Dialect {
    /// Redis, and Valkey before 9.
    #[default]
    Redis,
    /// Valkey since 9.
    Valkey,
}

impl Dialect {
    /// The dialect of a version. Later versions are read by their types, so only unknown types are refused.
    pub fn of_version(version: u16) -> Option<Self> {
        match version {
            ..FIRST_OF_VALKEY => Some(Dialect::Redis),
            FIRST_OF_VALKEY..=VERSION_MAX => Some(Dialect::Valkey),
            _ => None,
        }
    }

    /// The number that stands here for a type of this dialect. There is none if the type is not known.
    #[inline]
    pub fn value_type(self, stated: u8) -> Option<u8> {
        match (self, stated) {
            (_, ..=types::STREAM_3) => Some(stated),
            (Dialect::Valkey, types::HASH_OF_VALKEY_STATED) => Some(types::HASH_OF_VALKEY),
            // Its fields and values stand as those of a hash do.
            (Dialect::Redis, types::HASH_BY_TEMPLATE) => Some(types::HASH),
            (Dialect::Redis, ..=types::STREAM_5) => Some(stated),
            (Dialect::Redis, types::HASH_OF_TEMPLATE | types::HASH_OF_TEMPLATE_PACKED) => Some(stated),
            _ => None,
        }
    }
}

/// A type of values that is not supported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownType {
    /// Its number.
    pub number: u8,
    /// The dialect in which it has this number.
    pub dialect: Dialect,
}

impl fmt::Display for UnknownType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let UnknownType { number, dialect } = *self;
        let name = match (dialect, number) {
            (Dialect::Redis, types::ARRAY) => "arrays of Redis 8.8",
            (Dialect::Redis, types::RATE_LIMITER) => "rate limiters of Redis 8.8",
            (Dialect::Redis, types::HASH_BY_TEMPLATE_PACKED) => {
                "packed hashes of Redis 8.10, with a template"
            }
            (Dialect::Redis, types::HASH_OF_TEMPLATE | types::HASH_OF_TEMPLATE_PACKED) => {
                "hashes of Redis 8.10 without their template"
            }
            (Dialect::Redis, _) => return write!(f, "values of type {number} are not known to this version"),
            (Dialect::Valkey, _) => {
                return write!(f, "values of type {number} of Valkey are not known to this version");
            }
        };
        write!(f, "values of type {number} ({name}) are not supported")
    }
}
