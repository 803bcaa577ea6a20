//! The keys that clients track (CLIENT TRACKING), and the invalidations of their copies.

use std::{
    cell::Cell,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use braid_storage::{
    observers::read_tracking::{Reader, Remembered},
    table::hash::ShardId,
};
use smallvec::SmallVec;

use crate::{
    client::id::ClientId,
    notify::{pattern_tree::Audiences, subscriptions::Name},
};

/// The keys whose changes a client wants to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interest {
    /// The keys that it has read.
    Read,
    /// The keys that it has read with the command after CLIENT CACHING YES.
    OptIn,
    /// The keys that it has read, except with the command after CLIENT CACHING NO.
    OptOut,
    /// All keys that begin with one of its prefixes.
    Broadcast,
}

/// The options of CLIENT TRACKING.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mode {
    /// The keys of interest.
    pub interest: Interest,
    /// Another client, which receives the invalidations in its place.
    pub redirect: Option<ClientId>,
    /// Whether its own changes are left out.
    pub noloop: bool,
    /// The prefixes of the keys of interest, if it uses them, in order.
    pub prefixes: Vec<Name>,
}

/// The state of CLIENT TRACKING in a session.
#[derive(Debug)]
pub struct Tracking {
    /// The number under which its reads are remembered. It is new each time a client begins to track.
    pub number: TrackerNumber,
    /// The options of the request.
    pub mode: Arc<Mode>,
    /// The shards that remember its reads.
    pub marks: Marks,
    /// Whether CLIENT CACHING was the last command, or the last before MULTI. It includes the next command's
    /// keys, or excludes them.
    pub is_caching: bool,
}

/// A number that is never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TrackerNumber(pub u64);

/// A set of shards, one bit each.
#[derive(Clone, Debug, Default)]
pub struct Marks(Box<[Cell<u64>]>);

impl Marks {
    /// Creates an empty set for `n_shards` shards.
    pub fn none_of(n_shards: usize) -> Self {
        Self(vec![Cell::new(0); n_shards.div_ceil(64)].into())
    }

    /// Creates a set of all `n_shards` shards.
    pub fn all_of(n_shards: usize) -> Self {
        let all = Self::none_of(n_shards);
        (0..n_shards).for_each(|shard| all.add(ShardId(shard as u16)));
        all
    }

    /// Adds a shard.
    pub fn add(&self, shard: ShardId) {
        let word = &self.0[usize::from(shard.0) / 64];
        word.set(word.get() | 1 << (shard.0 % 64));
    }

    /// Removes a shard.
    pub fn remove(&self, shard: ShardId) {
        let word = &self.0[usize::from(shard.0) / 64];
        word.set(word.get() & !(1 << (shard.0 % 64)));
    }

    /// Returns the first shard from `from` on.
    pub fn first_from(&self, from: usize) -> Option<ShardId> {
        let mut from = from;
        while let Some(word) = self.0.get(from / 64) {
            let rest = word.get() >> (from % 64);
            if rest != 0 {
                return Some(ShardId(from as u16 + rest.trailing_zeros() as u16));
            }
            from = (from / 64 + 1) * 64;
        }
        None
    }
}

/// The state that shards keep of a client that no longer tracks.
#[derive(Debug)]
pub struct Leftover {
    /// The client as a reader of keys. If it is none, the shards know only that a client hears of all
    /// changes, and none does any more.
    pub reader: Option<Reader>,
    /// The shards that have this state.
    pub shards: Marks,
}

impl Tracking {
    /// Whether keys that are read now are remembered.
    pub fn remembers(&self) -> bool {
        match self.mode.interest {
            Interest::Read => true,
            Interest::OptIn => self.is_caching,
            Interest::OptOut => !self.is_caching,
            Interest::Broadcast => false,
        }
    }
}

/// The invalidation of keys.
#[derive(Debug)]
pub struct Invalidation {
    /// The keys; none for all of them.
    pub keys: Option<SmallVec<[Box<[u8]>; 1]>>,
    /// The client of the changing command; client 0 is none.
    pub author: ClientId,
}

/// The recipients of an invalidation.
#[derive(Clone, Debug)]
pub enum Whom {
    /// Clients that have read the key.
    Readers(SmallVec<[TrackerNumber; 2]>),
    /// Clients that track all keys with a prefix.
    Prefix(Name),
    /// All tracking clients.
    Everybody,
    /// A client to which another client's invalidations are redirected.
    Redirected(ClientId),
}

/// The shared state of tracking.
#[derive(Default)]
pub struct Trackers {
    /// The tracked prefixes. They are added with all shards held, so a holder of one misses none.
    pub prefixes: Audiences,
    n_keys: AtomicU64,
    n_readers: AtomicU64,
    n_begun: AtomicU64,
    /// `tracking-table-max-keys`; 0 if there is no limit.
    max_keys: AtomicU64,
}

impl Trackers {
    /// The number of remembered keys.
    pub fn n_keys(&self) -> u64 {
        self.n_keys.load(Ordering::Relaxed)
    }

    /// The number of pairs of a key and a reader.
    pub fn n_readers(&self) -> u64 {
        self.n_readers.load(Ordering::Relaxed)
    }

    /// The number of prefixes.
    pub fn n_prefixes(&self) -> usize {
        self.prefixes.len()
    }

    /// Returns the number for a client that begins to track.
    pub fn next_number(&self) -> TrackerNumber {
        TrackerNumber(self.n_begun.fetch_add(1, Ordering::Relaxed) + 1)
    }

    /// Sets the maximum of remembered keys.
    pub fn set_max_keys(&self, max: Option<usize>) {
        self.max_keys.store(max.unwrap_or(0) as u64, Ordering::Relaxed);
    }

    /// The maximum of remembered keys, which may be exceeded for a moment.
    pub fn max_keys(&self) -> Option<u64> {
        Some(self.max_keys.load(Ordering::Relaxed)).filter(|&max| max > 0)
    }

    /// Whether a key must be forgotten for a new one.
    ///
    /// Between threads that remember keys at the same time, the limit is kept within a tenth.
    pub fn is_full(&self) -> bool {
        self.max_keys().is_some_and(|max| self.n_keys() > max + max / 16)
    }

    /// Counts newly remembered keys and readers.
    pub fn remembered(&self, Remembered { n_keys, n_readers }: Remembered) {
        self.n_keys.fetch_add(n_keys, Ordering::Relaxed);
        self.n_readers.fetch_add(n_readers, Ordering::Relaxed);
    }

    /// Removes forgotten keys and readers from the count.
    pub fn forgot(&self, Remembered { n_keys, n_readers }: Remembered) {
        self.n_keys.fetch_sub(n_keys, Ordering::Relaxed);
        self.n_readers.fetch_sub(n_readers, Ordering::Relaxed);
    }

    /// Adds prefixes that a connection of a thread tracks. All shards are held.
    pub fn add_prefixes(&self, prefixes: &[Name], thread: usize) {
        prefixes.iter().for_each(|prefix| self.prefixes.add(prefix, thread));
    }

    /// Removes prefixes that a connection of a thread no longer tracks.
    pub fn remove_prefixes(&self, prefixes: &[Name], thread: usize) {
        prefixes.iter().for_each(|prefix| self.prefixes.remove(prefix, thread));
    }
}
