//! The keys that a client watches.

use std::{collections::HashMap, ops::Deref};

use braid_storage::{
    entry::{
        db::Db,
        key::{Key, WatchedKey},
    },
    observers::stamps::Stamp,
    table::hash::Routed,
};

/// Approximate overhead of a hash table, in bytes an entry.
const SLOT_BYTES: usize = 16;

/// A watched key, and its stamp when it was watched.
#[derive(Debug)]
pub struct Watch {
    /// The key.
    pub key: WatchedKey,
    /// Its stamp at that time.
    pub stamp: Stamp,
    /// Whether it had expired by then, and was kept.
    pub had_expired: bool,
}

/// The keys that a client watches, in the order of their WATCH. Dereferences to a slice of them.
#[derive(Debug, Default)]
pub struct Watches {
    list: Vec<Watch>,
    /// Position of each key in the list. So the time of a look-up does not depend on their number.
    by_place: HashMap<(Db, Routed), u32>,
    key_bytes: usize,
}

impl Watches {
    /// Whether a key of a database is watched.
    ///
    /// If two keys have the same place, which only chance can cause, the second is not known.
    pub fn has(&self, db: Db, key: &Key<'_>) -> bool {
        let at = self.by_place.get(&(db, key.routed));
        at.is_some_and(|&at| *self.list[at as usize].key.bytes == *key.bytes)
    }

    /// Adds a key.
    pub fn add(&mut self, watch: Watch) {
        self.key_bytes += watch.key.bytes.len();
        self.by_place.entry((watch.key.db, watch.key.routed)).or_insert(self.list.len() as u32);
        self.list.push(watch);
    }

    /// Removes and returns the last `n`, or all.
    pub fn take_last(&mut self, n: usize) -> Vec<Watch> {
        let Some(first) = self.list.len().checked_sub(n).filter(|&first| first > 0) else {
            return std::mem::take(self).list;
        };
        let taken = self.list.split_off(first);
        for (at, watch) in taken.iter().enumerate() {
            self.key_bytes -= watch.key.bytes.len();
            let place = (watch.key.db, watch.key.routed);
            if self.by_place.get(&place) == Some(&((first + at) as u32)) {
                self.by_place.remove(&place);
            }
        }
        taken
    }

    /// The keys, for a client that no longer watches any.
    pub fn into_list(self) -> Vec<Watch> {
        self.list
    }

    /// The memory that they use. Each key uses `each_bytes` elsewhere.
    pub fn n_bytes(&self, each_bytes: usize) -> usize {
        let of_each = size_of::<Watch>() + size_of::<((Db, Routed), u32)>() + SLOT_BYTES + each_bytes;
        self.list.len() * of_each + self.key_bytes
    }
}

impl Deref for Watches {
    type Target = [Watch];

    fn deref(&self) -> &[Watch] {
        &self.list
    }
}

#[cfg(test)]
mod tests {
    use braid_storage::{
        keyspace::Keyspace,
        table::hash::{HashTags, KeyHasher, Router},
    };

    use super::*;

    #[test]
    fn a_key_is_known_by_its_database_and_name() {
        let router = Router::new(KeyHasher::with_key(1, 2), 2, HashTags::Honoured);
        let (_, mut shards) = Keyspace::new(router, 16);
        let key = |bytes: &'static [u8]| Key { bytes, routed: router.route(bytes) };
        let mut watches = Watches::default();
        for (db, name) in [(0, &b"a"[..]), (0, b"b"), (3, b"a")] {
            assert!(!watches.has(Db(db), &key(name)));
            let Key { bytes, routed } = key(name);
            let stamp = shards[routed.shard.index()].watch(&key(name), &std::sync::Arc::default());
            watches.add(Watch {
                key: WatchedKey { db: Db(db), bytes: bytes.into(), routed },
                stamp,
                had_expired: false,
            });
            assert!(watches.has(Db(db), &key(name)) && !watches.has(Db(1), &key(name)));
        }
        assert_eq!(watches.iter().map(|watch| &*watch.key.bytes).collect::<Vec<_>>(), [b"a", b"b", b"a"]);
    }
}
