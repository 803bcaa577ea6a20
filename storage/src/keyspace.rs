//! The part of the keyspace that needs no hold: the places of keys, and published counts.

mod pins;
pub(crate) mod published;
pub mod shard;
pub(crate) mod tear_guard;

use std::{
    collections::HashMap,
    hint::cold_path,
    sync::{Arc, atomic::Ordering},
};

use crossbeam_epoch::pin;
use smallvec::SmallVec;

use crate::{
    entry::{
        db::Db,
        lru::Access,
        time::{Deadline, Millis},
    },
    keyspace::{
        published::Published,
        shard::{Shard, Tables},
    },
    observers::snapshot::Early,
    table::{
        Counts, Fill, Known, PREFETCH_MAX, Root, Roots,
        hash::{Routed, Router, ShardId},
        prefetch_behind_roots,
    },
    types::thresholds::Thresholds,
};

/// The number of tables whose counts take some 200 µs to add up.
const TABLES_MANY: usize = 2000;

/// Counts of a database: the sums over its tables.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DatabaseCounts {
    /// Keys.
    pub n_keys: u64,
    /// Keys that have a deadline.
    pub n_deadlines: u64,
    /// Keys with parts that have deadlines: hashes with fields that expire.
    pub n_partly: u64,
    /// Bytes of entries and tables.
    pub used_bytes: u64,
}

impl DatabaseCounts {
    fn add(&mut self, counts: &Counts) {
        self.n_keys += counts.len() as u64;
        self.n_deadlines += counts.n_deadlines() as u64;
        self.n_partly += counts.n_partly() as u64;
        self.used_bytes += counts.allocated_bytes() as u64;
    }
}

/// The map of the keyspace.
#[derive(Clone)]
pub struct Keyspace {
    router: Router,
    n_dbs: usize,
    /// The roots of the first database's tables, one a shard.
    roots: Roots,
    /// The tables of the other databases, a set for each shard.
    known: Arc<[Known]>,
    access: Arc<Access>,
    thresholds: Arc<Thresholds>,
    published: Arc<[Arc<Published>]>,
    early: Arc<Early>,
}

impl Keyspace {
    /// Makes a keyspace of empty shards.
    pub fn new(router: Router, n_dbs: usize) -> (Self, Vec<Shard>) {
        let n_shards = router.n_shards();
        let (roots, known) = (Roots::new(n_shards, router, Fill::Roomy), Known::many(n_shards));
        let access = Arc::new(Access::default());
        let thresholds = Arc::new(Thresholds::default());
        let published: Arc<[_]> = (0..n_shards).map(|_| Arc::new(Published::new())).collect();
        let shards = (0..n_shards)
            .map(|index| {
                Shard::new(
                    ShardId(index as u16),
                    Tables::new(&roots, &known, index),
                    Arc::clone(&published[index]),
                    Arc::clone(&access),
                    Arc::clone(&thresholds),
                )
            })
            .collect();
        let early = Arc::new(Early::default());
        (Self { router, n_dbs, roots, known, access, thresholds, published, early }, shards)
    }

    /// Where keys live.
    #[inline(always)]
    pub fn router(&self) -> &Router {
        &self.router
    }

    /// The number of databases.
    pub fn n_dbs(&self) -> usize {
        self.n_dbs
    }

    /// Fetches the memory that a look-up of a key touches first: its table's root, or the way to it.
    #[inline]
    pub fn prefetch_root(&self, db: Db, routed: Routed) {
        if db.0 == 0 {
            self.roots.get(routed.shard.index()).prefetch();
        } else {
            cold_path();
            self.known[routed.shard.index()].prefetch();
        }
    }

    /// Fetches the memory that look-ups of these keys touch after the roots, stage by stage, so that their
    /// latencies overlap. Reads table structure only, never an entry, and needs no hold.
    #[inline(never)]
    pub fn prefetch(&self, db: Db, keys: &[Routed]) {
        if db.0 != 0 {
            cold_path();
            return self.prefetch_numbered(db, keys);
        }
        for keys in keys.chunks(PREFETCH_MAX) {
            prefetch_behind_roots(keys.len(), |index| {
                (self.roots.get(keys[index].shard.index()), keys[index].place)
            });
        }
    }

    /// Does the same for another database than the first.
    #[inline(never)]
    fn prefetch_numbered(&self, db: Db, keys: &[Routed]) {
        let pinned = &pin();
        for keys in keys.chunks(PREFETCH_MAX) {
            for key in keys {
                self.known[key.shard.index()].prefetch_table(db.0, pinned);
            }
            let roots: SmallVec<[&Root; PREFETCH_MAX]> =
                keys.iter().map(|key| self.known[key.shard.index()].root(db.0, pinned)).collect();
            prefetch_behind_roots(keys.len(), |index| (roots[index], keys[index].place));
        }
    }

    /// The record of the uses of keys.
    pub fn access(&self) -> &Access {
        &self.access
    }

    pub(crate) fn shared_access(&self) -> Arc<Access> {
        Arc::clone(&self.access)
    }

    /// The values that a running snapshot is given before their turn.
    pub fn early(&self) -> &Arc<Early> {
        &self.early
    }

    /// Makes a shard by itself, for work on values that are shared from others. It is no part of the
    /// keyspace.
    pub fn shard_apart(&self) -> Shard {
        Shard::apart(self.router, Arc::clone(&self.access), Arc::clone(&self.thresholds))
    }

    /// Makes empty shards like those of the keyspace, but no part of it, to be [loaded](Shard::load) and
    /// [adopted](Shard::adopt).
    pub fn aside(&self) -> Vec<Shard> {
        let n_shards = self.router.n_shards();
        let (roots, known) = (Roots::new(n_shards, self.router, Fill::Roomy), Known::many(n_shards));
        let shard = |index| {
            let published = Arc::new(Published::new());
            let (access, thresholds) = (Arc::clone(&self.access), Arc::clone(&self.thresholds));
            let tables = Tables::new(&roots, &known, index);
            Shard::new(ShardId(index as u16), tables, published, access, thresholds)
        };
        (0..n_shards).map(shard).collect()
    }

    /// The sizes up to which values are packed.
    pub fn thresholds(&self) -> &Thresholds {
        &self.thresholds
    }

    fn sum(&self, number: impl Fn(&Published) -> u64) -> u64 {
        self.published.iter().map(|published| number(published)).sum()
    }

    /// The number of keys in a database.
    pub fn n_keys(&self, db: Db) -> u64 {
        let pinned = &pin();
        let counts = (0..self.router.n_shards()).filter_map(|shard| match db.0 {
            0 => Some(self.roots.counts(shard)),
            number => self.known[shard].counts(number, pinned),
        });
        counts.map(|counts| counts.len() as u64).sum()
    }

    /// The number of keys of a database in one shard.
    #[inline]
    pub fn n_keys_in(&self, db: Db, shard: ShardId) -> u64 {
        if db.0 == 0 {
            return self.roots.counts(shard.index()).len() as u64;
        }
        self.known[shard.index()].counts(db.0, &pin()).map_or(0, |counts| counts.len() as u64)
    }

    /// Whether some database has keys of a kind in a shard, such as keys with a deadline, by `number`.
    pub fn has_in(&self, shard: ShardId, number: impl Fn(&Counts) -> usize) -> bool {
        number(self.roots.counts(shard.index())) > 0
            || self.known[shard.index()].any(&pin(), |counts| number(counts) > 0)
    }

    /// The databases that have keys, in ascending order, each with its counts. Takes time in proportion to
    /// the number of tables: one for each database and shard that have a key in common.
    pub fn databases(&self) -> Vec<(Db, DatabaseCounts)> {
        let mut by_db: HashMap<u32, DatabaseCounts> = HashMap::new();
        self.each_table(|number, _, counts| by_db.entry(number).or_default().add(counts));
        let with_keys = by_db.into_iter().filter(|(_, counts)| counts.n_keys > 0);
        let mut databases: Vec<_> = with_keys.map(|(number, counts)| (Db(number), counts)).collect();
        databases.sort_unstable_by_key(|(db, _)| *db);
        databases
    }

    /// The bytes of each database's tables without their entries, if it has keys. Walks their directories,
    /// and needs no hold.
    pub fn table_bytes(&self) -> HashMap<Db, u64> {
        let mut by_db = HashMap::new();
        self.each_table(|number, root, _| match root.structure_bytes() {
            0 => {}
            bytes => *by_db.entry(Db(number)).or_default() += bytes as u64,
        });
        by_db
    }

    fn each_table(&self, mut visit: impl FnMut(u32, &Root, &Counts)) {
        for shard in 0..self.router.n_shards() {
            visit(0, self.roots.get(shard), self.roots.counts(shard));
            // One pin a shard: retired memory waits no longer than that.
            self.known[shard].each(&pin(), &mut visit);
        }
    }

    /// Whether there are so many tables that adding up their counts takes long.
    pub fn has_many_tables(&self) -> bool {
        let n_tables: usize = self.known.iter().map(Known::n_tables).sum();
        n_tables > TABLES_MANY
    }

    /// Whether a field of one shard's hashes has expired and waits to be removed.
    pub fn has_due_fields_in(&self, shard: ShardId, now: Millis) -> bool {
        let next = self.published[shard.index()].next_field_deadline.load(Ordering::Relaxed);
        Deadline::at(next).has_passed(now)
    }

    /// The number of expired fields of hashes, without those that went with all others of their hash.
    pub fn expired_fields(&self) -> u64 {
        self.sum(|published| published.expired_fields.load(Ordering::Relaxed))
    }

    /// The number of expired keys.
    pub fn expired(&self) -> u64 {
        self.sum(|published| published.expired.load(Ordering::Relaxed))
    }

    /// The number of watched keys. A key that several clients watch counts once.
    pub fn n_watched(&self) -> u64 {
        self.sum(|published| published.watched_keys.load(Ordering::Relaxed))
    }

    /// The bytes that shards keep outside of their tables.
    pub fn other_bytes(&self) -> u64 {
        self.sum(|published| published.other_bytes.load(Ordering::Relaxed))
    }

    /// The bytes of all tables and entries, and of all else that shards keep.
    pub fn used_bytes(&self) -> u64 {
        self.databases().iter().map(|(_, counts)| counts.used_bytes).sum::<u64>() + self.other_bytes()
    }

    /// Resets the counts for CONFIG RESETSTAT. A count that its holder is just storing may survive.
    pub fn reset_stats(&self) {
        for published in self.published.iter() {
            published.expired.store(0, Ordering::Relaxed);
            published.expired_fields.store(0, Ordering::Relaxed);
        }
    }
}
