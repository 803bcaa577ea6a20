//! What can be known of all shards without holding them: where keys live, and published counts.

use std::{
    ops::Range,
    sync::{Arc, atomic::Ordering},
};

use crossbeam_utils::CachePadded;

use crate::{
    Db,
    access::Access,
    hash::{Routed, Router, ShardId},
    published::Published,
    shard::Shard,
    snapshot::Early,
    table::{Fill, PREFETCH_MAX, Root, Roots, prefetch_behind_roots},
    thresholds::Thresholds,
    time::{Deadline, Millis},
};

/// The map of the keyspace.
#[derive(Clone)]
pub struct Keyspace {
    router: Router,
    n_dbs: usize,
    /// The roots of all tables, database by database, so that those of one database lie together.
    roots: Roots,
    access: Arc<Access>,
    thresholds: Arc<Thresholds>,
    published: Arc<[Arc<CachePadded<Published>>]>,
    early: Arc<Early>,
}

impl Keyspace {
    /// Makes a keyspace of empty shards.
    pub fn new(router: Router, n_dbs: usize) -> (Self, Vec<Shard>) {
        let n_shards = router.n_shards();
        let roots = Roots::new(n_shards * n_dbs, router, Fill::Roomy);
        let access = Arc::new(Access::default());
        let thresholds = Arc::new(Thresholds::default());
        let published: Arc<[_]> =
            (0..n_shards).map(|_| Arc::new(CachePadded::new(Published::new()))).collect();
        let shards = (0..n_shards)
            .map(|index| {
                Shard::new(
                    ShardId(index as u16),
                    n_dbs,
                    &roots,
                    Arc::clone(&published[index]),
                    Arc::clone(&access),
                    Arc::clone(&thresholds),
                )
            })
            .collect();
        let early = Arc::new(Early::default());
        (Self { router, n_dbs, roots, access, thresholds, published, early }, shards)
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

    /// Fetches what a look-up of a key touches first: its table's root.
    #[inline]
    pub fn prefetch_root(&self, db: Db, routed: Routed) {
        self.root(db, routed).prefetch();
    }

    /// Fetches what look-ups of these keys touch behind the roots, stage by stage, so that their latencies overlap. Reads
    /// table structure only, never an entry, and needs no hold.
    #[inline(never)]
    pub fn prefetch(&self, db: Db, keys: &[Routed]) {
        for keys in keys.chunks(PREFETCH_MAX) {
            prefetch_behind_roots(keys.len(), |index| (self.root(db, keys[index]), keys[index].place));
        }
    }

    #[inline(always)]
    fn root(&self, db: Db, routed: Routed) -> &Root {
        self.roots.get(self.index(db, routed.shard))
    }

    /// The number of a table.
    #[inline(always)]
    fn index(&self, db: Db, shard: ShardId) -> usize {
        (db.index() << self.router.shard_bits()) + shard.index()
    }

    /// The numbers of a database's tables.
    fn indexes(&self, db: Db) -> Range<usize> {
        let first = self.index(db, ShardId(0));
        first..first + self.router.n_shards()
    }

    /// How keys note their use.
    pub fn access(&self) -> &Access {
        &self.access
    }

    pub(crate) fn shared_access(&self) -> Arc<Access> {
        Arc::clone(&self.access)
    }

    /// What a running snapshot is given before its turn.
    pub fn early(&self) -> &Arc<Early> {
        &self.early
    }

    /// A shard by itself, for work on values that are shared from others. It is no part of the keyspace.
    pub fn shard_apart(&self) -> Shard {
        Shard::apart(self.n_dbs, self.router, Arc::clone(&self.access), Arc::clone(&self.thresholds))
    }

    /// Empty shards like those of the keyspace, that are no part of it, to be [loaded](Shard::load) and
    /// [adopted](Shard::adopt).
    pub fn aside(&self) -> Vec<Shard> {
        let n_shards = self.router.n_shards();
        let roots = Roots::new(n_shards * self.n_dbs, self.router, Fill::Roomy);
        let shard = |index| {
            let published = Arc::new(CachePadded::new(Published::new()));
            let (access, thresholds) = (Arc::clone(&self.access), Arc::clone(&self.thresholds));
            Shard::new(ShardId(index as u16), self.n_dbs, &roots, published, access, thresholds)
        };
        (0..n_shards).map(shard).collect()
    }

    /// Up to which sizes values are packed.
    pub fn thresholds(&self) -> &Thresholds {
        &self.thresholds
    }

    fn sum(&self, number: impl Fn(&Published) -> u64) -> u64 {
        self.published.iter().map(|published| number(published)).sum()
    }

    /// The number of keys in a database.
    pub fn n_keys(&self, db: Db) -> u64 {
        self.indexes(db).map(|index| self.roots.counts(index).len() as u64).sum()
    }

    /// The number of keys of a database in one shard.
    #[inline]
    pub fn n_keys_in(&self, db: Db, shard: ShardId) -> u64 {
        self.roots.counts(self.index(db, shard)).len() as u64
    }

    /// The number of keys of a database that have a deadline.
    pub fn n_deadlines(&self, db: Db) -> u64 {
        self.indexes(db).map(|index| self.roots.counts(index).n_deadlines() as u64).sum()
    }

    /// The number of keys of one shard, in all databases, that have a deadline.
    pub fn n_deadlines_in(&self, shard: ShardId) -> u64 {
        let tables = (0..self.n_dbs).map(|db| self.index(Db(db as u16), shard));
        let counts = tables.filter_map(|index| self.roots.counts_of_entries(index));
        counts.map(|counts| counts.n_deadlines() as u64).sum()
    }

    /// Whether a field of one shard's hashes has expired and waits to be removed.
    pub fn has_due_fields_in(&self, shard: ShardId, now: Millis) -> bool {
        let next = self.published[shard.index()].next_field_deadline.load(Ordering::Relaxed);
        Deadline::at(next).has_passed(now)
    }

    /// Fields of hashes that have expired, but for those that went with all others of their hash.
    pub fn expired_fields(&self) -> u64 {
        self.sum(|published| published.expired_fields.load(Ordering::Relaxed))
    }

    /// Keys that have expired.
    pub fn expired(&self) -> u64 {
        self.sum(|published| published.expired.load(Ordering::Relaxed))
    }

    /// Keys that somebody watches. One that several watch is one.
    pub fn n_watched(&self) -> u64 {
        self.sum(|published| published.watched_keys.load(Ordering::Relaxed))
    }

    /// Bytes of all tables and entries.
    pub fn used_bytes(&self) -> u64 {
        let all = 0..self.n_dbs * self.router.n_shards();
        let of_entries = all.filter_map(|index| self.roots.counts_of_entries(index));
        of_entries.map(|counts| counts.allocated_bytes() as u64).sum::<u64>()
            + self.sum(|published| published.other_bytes.load(Ordering::Relaxed))
    }

    /// Bytes of a database's tables, their entries aside. Walks their directories, and needs no hold.
    pub fn table_bytes(&self, db: Db) -> u64 {
        let with_entries = self.indexes(db).filter(|&index| self.roots.counts_of_entries(index).is_some());
        with_entries.map(|index| self.roots.get(index).structure_bytes() as u64).sum()
    }

    /// CONFIG RESETSTAT. A count that its holder is just storing may survive.
    pub fn reset_stats(&self) {
        for published in self.published.iter() {
            published.expired.store(0, Ordering::Relaxed);
            published.expired_fields.store(0, Ordering::Relaxed);
        }
    }
}
