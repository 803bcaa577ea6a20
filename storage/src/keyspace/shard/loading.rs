//! Loading: shards that are filled apart from the keyspace and then replace the contents of its shards.

use super::Shard;
use crate::{
    entry::{EntryBox, db::Db, key::Key, time::Millis},
    observers::event::Event,
    rdb::file::Recency,
    table::{Position, hash::Router},
    types::kinds,
};

/// The error for a key that is there already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Twice;

impl Shard {
    /// Puts an entry into a shard that no other thread sees yet.
    ///
    /// # Errors
    /// If the key is there.
    pub fn load(
        &mut self,
        (db, key): (Db, &Key<'_>),
        entry: EntryBox,
        recency: Option<Recency>,
        now: Millis,
    ) -> Result<(), Twice> {
        let fields = kinds::next_deadline(entry.as_ref());
        let table = self.tables.or_make(db, false);
        let (slot, is_new) = table.find_or_insert(key.bytes, key.routed.place, &mut self.hint, || entry);
        if !is_new {
            return Err(Twice);
        }
        let entry = slot.into_entry();
        self.access.begin(entry, now);
        match recency {
            Some(Recency::Idle(seconds)) => self.access.resume(entry, now, Some(seconds), None),
            Some(Recency::Frequency(frequency)) => self.access.resume(entry, now, None, Some(frequency)),
            None => {}
        }
        self.ledger.fields_moved(db, key.routed.place, None, fields, || self.tables.counts(db));
        Ok(())
    }

    /// Replaces the contents of all databases by those of another shard, which is empty afterwards. A client
    /// that watches a key that was there, or is there now, is told as by FLUSHALL.
    pub fn adopt(&mut self, loaded: &mut Shard) {
        self.flush_all();
        self.marks.tear();
        self.tables.adopt(&mut loaded.tables);
        self.ledger.take_fields(&mut loaded.ledger);
        self.announce_contents();
    }

    /// Returns a key that both this shard and a loaded one hold.
    pub fn key_in_both(&self, loaded: &Shard, router: &Router) -> Option<Box<[u8]>> {
        loaded.tables.with_keys().find_map(|(db, _)| {
            let mut found = None;
            loaded.each_key(db, |bytes| {
                let place = router.route(bytes).place;
                let held = self.tables.get(db).and_then(|table| table.find(bytes, place));
                if found.is_none() && held.is_some() {
                    found = Some(bytes.into());
                }
            });
            found
        })
    }

    /// Takes over the contents of a loaded shard. They replace the values under the same keys.
    pub fn merge(&mut self, loaded: &mut Shard, router: &Router) {
        let now = self.now;
        let dbs: Vec<Db> = loaded.tables.with_keys().map(|(db, _)| db).collect();
        for db in dbs {
            let mut keys: Vec<Box<[u8]>> = Vec::new();
            loaded.each_key(db, |bytes| keys.push(bytes.into()));
            self.begin(db, now);
            loaded.begin(db, now);
            for bytes in keys {
                let key = Key { bytes: &bytes, routed: router.route(&bytes) };
                if let Some(entry) = loaded.take(&key, Event::Made) {
                    self.put(&key, entry, Event::Restore);
                }
            }
        }
    }

    fn each_key(&self, db: Db, mut each: impl FnMut(&[u8])) {
        const BUCKETS_AT_A_TIME: usize = 1024;
        let mut next = Some(Position::default());
        while let Some(from) = next {
            let Some(table) = self.tables.get(db) else { return };
            next = table.scan(from, BUCKETS_AT_A_TIME, &mut |entry| each(entry.key()));
        }
    }

    /// Notifies clients that watch keys, and waiting nodes, that the values may be others.
    pub fn announce_contents(&mut self) {
        let watched = self.watched_anywhere();
        self.move_stamps(&watched);
        let awaited = self.awaited_anywhere();
        if self.tables.with_keys().next().is_some() {
            self.ledger.announce_database(Db(0), Event::Swapped, &awaited);
        }
        self.update_observers();
    }

    /// Makes the next commands run before all deadlines: the keys that they find existed when the commands
    /// were logged. For the use of keys, which only records times, the time is `loads_at` all the same.
    pub fn turn_back_time(&mut self, loads_at: Millis) {
        self.now = Millis(0);
        self.ledger.loads_at = loads_at;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        entry::{
            EntryRef,
            key::WatchedKey,
            time::{Deadline, Expiry},
        },
        keyspace::Keyspace,
        table::hash::{HashTags, KeyHasher},
        types::hashes::HashType,
    };

    const NOW: Millis = Millis(1_000_000);

    fn keyspace() -> (Keyspace, Vec<Shard>) {
        Keyspace::new(Router::new(KeyHasher::with_key(3, 5), 2, HashTags::Honoured), 3)
    }

    fn key<'k>(keyspace: &Keyspace, bytes: &'k [u8]) -> Key<'k> {
        Key { bytes, routed: keyspace.router().route(bytes) }
    }

    fn load(
        keyspace: &Keyspace,
        aside: &mut [Shard],
        db: Db,
        bytes: &[u8],
        entry: EntryBox,
    ) -> Result<(), Twice> {
        let key = key(keyspace, bytes);
        aside[key.routed.shard.index()].load((db, &key), entry, None, NOW)
    }

    #[test]
    fn what_is_loaded_takes_the_place_of_what_was_there() {
        let (keyspace, mut shards) = keyspace();
        let mut aside = keyspace.aside();
        for nth in 0..1000 {
            let name = format!("key {nth}");
            let mut entry = EntryBox::string(name.as_bytes(), b"loaded");
            if nth % 4 == 0 {
                entry.set_deadline(Some(Deadline(NOW)));
            }
            let db = Db(nth % 3);
            load(&keyspace, &mut aside, db, name.as_bytes(), entry).unwrap();
            let again = EntryBox::string(name.as_bytes(), b"again");
            assert_eq!(load(&keyspace, &mut aside, db, name.as_bytes(), again), Err(Twice));
            let shard = &mut shards[key(&keyspace, name.as_bytes()).routed.shard.index()];
            shard.begin(Db(nth % 2), NOW);
            shard.put_string(&key(&keyspace, name.as_bytes()), b"old", Expiry::Clear, Event::Set);
        }
        assert_eq!(keyspace.n_keys(Db(2)), 0);
        shards.iter_mut().zip(&mut aside).for_each(|(shard, loaded)| shard.adopt(loaded));
        drop(aside);
        let n_keys: Vec<u64> = (0..3).map(|db| keyspace.n_keys(Db(db))).collect();
        assert_eq!(n_keys, [334, 333, 333]);
        assert_eq!(keyspace.databases().iter().map(|(_, counts)| counts.n_deadlines).sum::<u64>(), 250);
        for nth in 0..1000 {
            let name = format!("key {nth}");
            let shard = &mut shards[key(&keyspace, name.as_bytes()).routed.shard.index()];
            shard.begin(Db(nth % 3), NOW);
            let value = shard.read(&key(&keyspace, name.as_bytes())).and_then(EntryRef::bytes);
            assert_eq!(value, Some(&b"loaded"[..]));
        }
        while crate::memory::reclaim::reclaim() {}
    }

    #[test]
    fn deadlines_of_fields_come_along_and_watchers_hear_of_it() {
        let (keyspace, mut shards) = keyspace();
        let (mut other, mut aside) = (self::keyspace().1, keyspace.aside());
        let h = key(&keyspace, b"h");
        let at = h.routed.shard.index();
        other[at].begin(Db(1), NOW);
        let mut hash = other[at].value_or_create::<HashType>(&h, Event::HSet).unwrap();
        hash.set(b"f", b"v", Expiry::At(Deadline::at(NOW.0 + 5)));
        drop(hash);
        let entry = other[at].take(&h, Event::Del).unwrap();
        shards[at].begin(Db(1), NOW);
        let stamp = shards[at].watch(&h, &std::sync::Arc::default());
        load(&keyspace, &mut aside, Db(1), b"h", entry).unwrap();
        shards[at].adopt(&mut aside[at]);
        let watched = WatchedKey { db: Db(1), bytes: h.bytes.into(), routed: h.routed };
        assert!(shards[at].is_written_since(&watched, stamp));
        shards[at].check_fields();
        assert!(keyspace.has_due_fields_in(h.routed.shard, Millis(NOW.0 + 6)));
        assert_eq!(shards[at].expire_fields(Millis(NOW.0 + 6), 10), 1);
        assert_eq!(keyspace.n_keys(Db(1)), 0);
    }
}
