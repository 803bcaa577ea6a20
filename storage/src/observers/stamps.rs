//! Stamps: the last write of each watched key, in its shard's own count.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use crate::entry::{db::Db, key::WatchedKey};

/// The number of a watched key's last write. Stamps of one shard are ordered as its writes are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Stamp(u64);

/// The stamps of a shard's watched keys. Other keys have none.
#[derive(Debug, Default)]
pub(crate) struct Stamps {
    /// None before a client watches here. Most shards of most servers have none, and there are many shards.
    watched: Option<Box<WatchedKeys>>,
    last: u64,
}

type WatchedKeys = HashMap<(Db, Box<[u8]>), Watched>;

#[derive(Debug)]
struct Watched {
    stamp: Stamp,
    n_watchers: u32,
    /// Flags that the key's next write sets, one for each watcher that has seen no write yet.
    to_note: Vec<Arc<AtomicBool>>,
}

impl Stamps {
    /// Whether no key is watched here: the one test that a write pays for.
    #[inline(always)]
    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The number of watched keys.
    pub(crate) fn len(&self) -> usize {
        self.watched.as_ref().map_or(0, |watched| watched.len())
    }

    /// Moves the stamp of a key, if the key is watched.
    #[cold]
    pub(crate) fn moved(&mut self, db: Db, key: &[u8]) {
        let Some(watched) = &mut self.watched else { return };
        if let Some(watched) = watched.get_mut(&(db, Box::from(key))) {
            self.last += 1;
            watched.stamp = Stamp(self.last);
            // Relaxed: the stamp decides; the flag only shows the write to others.
            watched.to_note.drain(..).for_each(|written| written.store(true, Ordering::Relaxed));
        }
    }

    /// Adds a watcher of a key, whose flag is set when it is written.
    pub(crate) fn watch(&mut self, db: Db, key: &[u8], written: &Arc<AtomicBool>) -> Stamp {
        let all = self.watched.get_or_insert_default();
        let watched = all.entry((db, Box::from(key))).or_insert_with(|| Watched {
            stamp: Stamp(self.last),
            n_watchers: 0,
            to_note: Vec::new(),
        });
        watched.n_watchers += 1;
        watched.to_note.push(Arc::clone(written));
        watched.stamp
    }

    /// Removes a watcher of a key. The stamp goes with the last one.
    pub(crate) fn unwatch(&mut self, key: &WatchedKey, written: &Arc<AtomicBool>) {
        let place = (key.db, key.bytes.clone());
        let all = self.watched.get_or_insert_default();
        let Some(watched) = all.get_mut(&place) else {
            unreachable!("a key is unwatched only by who watches it")
        };
        watched.n_watchers -= 1;
        // From the last on: the latest watchers mostly leave early.
        if let Some(at) = watched.to_note.iter().rposition(|flag| Arc::ptr_eq(flag, written)) {
            watched.to_note.swap_remove(at);
        }
        if watched.n_watchers == 0 {
            all.remove(&place);
        }
    }

    /// The stamp of a watched key.
    pub(crate) fn of(&self, key: &WatchedKey) -> Stamp {
        let watched = self.watched.as_ref().and_then(|watched| watched.get(&(key.db, key.bytes.clone())));
        watched.map(|watched| watched.stamp).unwrap_or_default()
    }

    /// The watched keys of a database.
    pub(crate) fn keys_in(&self, db: Db) -> Vec<Box<[u8]>> {
        self.keys().filter(|(of, _)| *of == db).map(|(_, key)| key.clone()).collect()
    }

    /// The watched keys of all databases.
    pub(crate) fn keys(&self) -> impl Iterator<Item = &(Db, Box<[u8]>)> {
        self.watched.iter().flat_map(|watched| watched.keys())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::hash::{HashTags, KeyHasher, Router};

    fn watched_key(bytes: &[u8]) -> WatchedKey {
        let router = Router::new(KeyHasher::with_key(1, 2), 0, HashTags::Ignored);
        WatchedKey { db: Db(0), bytes: bytes.into(), routed: router.route(bytes) }
    }

    #[test]
    fn a_write_moves_the_stamp_of_its_key_only() {
        let mut stamps = Stamps::default();
        let (a, b) = (watched_key(b"a"), watched_key(b"b"));
        let (stamp_a, stamp_b) = (stamps.watch(Db(0), b"a", &flag()), stamps.watch(Db(0), b"b", &flag()));
        stamps.moved(Db(0), b"a");
        assert_ne!(stamps.of(&a), stamp_a);
        assert_eq!(stamps.of(&b), stamp_b);
        stamps.moved(Db(1), b"b");
        assert_eq!(stamps.of(&b), stamp_b, "the same key of another database is another key");
    }

    #[test]
    fn the_last_watcher_takes_the_stamp_along() {
        let mut stamps = Stamps::default();
        let key = watched_key(b"a");
        stamps.watch(Db(0), b"a", &flag());
        stamps.watch(Db(0), b"a", &flag());
        stamps.unwatch(&key, &flag());
        assert!(!stamps.is_empty());
        stamps.unwatch(&key, &flag());
        assert!(stamps.is_empty());
    }

    #[test]
    fn who_watches_after_a_write_does_not_see_it() {
        let mut stamps = Stamps::default();
        let key = watched_key(b"a");
        stamps.watch(Db(0), b"a", &flag());
        stamps.moved(Db(0), b"a");
        let late = stamps.watch(Db(0), b"a", &flag());
        assert_eq!(stamps.of(&key), late);
    }

    fn flag() -> Arc<AtomicBool> {
        Arc::default()
    }

    #[test]
    fn a_write_is_noted_for_those_who_watch_and_for_nobody_else() {
        let mut stamps = Stamps::default();
        let key = watched_key(b"a");
        let [stays, leaves, late] = [flag(), flag(), flag()];
        stamps.watch(Db(0), b"a", &stays);
        stamps.watch(Db(0), b"a", &leaves);
        stamps.unwatch(&key, &leaves);
        stamps.moved(Db(0), b"a");
        stamps.watch(Db(0), b"a", &late);
        assert_eq!([stays, leaves, late].map(|flag| flag.load(Ordering::Relaxed)), [true, false, false]);
    }
}
