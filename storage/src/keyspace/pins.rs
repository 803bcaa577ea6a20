//! Pinned keys: those that must not be written until the work that reads them without the hold is done.

use crate::entry::db::Db;

/// The pinned keys of a shard, each as often as it is pinned.
#[derive(Debug, Default)]
pub(crate) struct Pins(Vec<(Db, Box<[u8]>)>);

impl Pins {
    /// Whether no key is pinned.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Pins a key once more.
    pub(crate) fn add(&mut self, db: Db, key: &[u8]) {
        self.0.push((db, key.into()));
    }

    /// Takes one pin off a key.
    pub(crate) fn remove(&mut self, db: Db, key: &[u8]) {
        let place = self.0.iter().position(|(pinned_in, pinned)| *pinned_in == db && **pinned == *key);
        self.0.swap_remove(place.expect("a key is unpinned by the work that has pinned it"));
    }

    /// Whether a key of a database is pinned.
    pub(crate) fn contains(&self, db: Db, key: &[u8]) -> bool {
        self.0.iter().any(|(pinned_in, pinned)| *pinned_in == db && **pinned == *key)
    }

    /// A database in which a key is pinned, if there is one.
    pub(crate) fn db_of(&self, key: &[u8]) -> Option<Db> {
        self.0.iter().find(|(_, pinned)| **pinned == *key).map(|(db, _)| *db)
    }
}
