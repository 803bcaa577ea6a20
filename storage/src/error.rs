//! Why a read or a write was refused.

/// Why the keyspace refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StorageError {
    /// The key holds a value of another type.
    WrongType,
    /// A string would become longer than it may be.
    TooLong,
    /// The work would take longer than a shard may be held: see
    /// [`Shard::whole_string`](crate::keyspace::shard::Shard::whole_string).
    TooMuch,
}
