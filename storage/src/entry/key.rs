//! Keys, and where they live.

use crate::{entry::db::Db, table::hash::Routed};

/// A key and where it lives.
#[derive(Clone, Copy, Debug)]
pub struct Key<'a> {
    /// The key itself.
    pub bytes: &'a [u8],
    /// Its shard and place.
    pub routed: Routed,
}

/// A key that a client watches, to be found again later.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchedKey {
    /// The database.
    pub db: Db,
    /// The key itself.
    pub bytes: Box<[u8]>,
    /// Its shard and place.
    pub routed: Routed,
}

impl WatchedKey {
    /// Borrows the key.
    pub fn key(&self) -> Key<'_> {
        Key { bytes: &self.bytes, routed: self.routed }
    }
}
