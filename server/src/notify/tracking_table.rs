//! Which keys clients keep copies of (CLIENT TRACKING), and what they are to be told when those change.

use std::{
    cell::Cell,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use braid_storage::{Reader, Remembered, ShardId};
use smallvec::SmallVec;

use crate::{
    client::id::ClientId,
    notify::{pattern_tree::Audiences, subscriptions::Name},
};

/// Of which keys a client hears.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interest {
    /// Those that it has read.
    Read,
    /// Those that it has read with the command behind CLIENT CACHING YES.
    OptIn,
    /// Those that it has read, but for the command behind CLIENT CACHING NO.
    OptOut,
    /// All that begin with one of its prefixes.
    Broadcast,
}

/// What a client has asked for with CLIENT TRACKING.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mode {
    /// Of which keys it hears.
    pub interest: Interest,
    /// Another client, which is told in its place.
    pub redirect: Option<ClientId>,
    /// Not of what it changes itself.
    pub noloop: bool,
    /// What keys begin with, if it hears of keys by that; sorted.
    pub prefixes: Vec<Name>,
}

/// CLIENT TRACKING, as a session has it.
#[derive(Debug)]
pub struct Tracking {
    /// The number under which what it reads is remembered. It is new each time a client begins to track.
    pub number: TrackerNumber,
    /// What was asked for.
    pub mode: Arc<Mode>,
    /// The shards that remember what it has read.
    pub marks: Marks,
    /// CLIENT CACHING was the last command, or the last before MULTI: it takes the next one's keys in, or
    /// leaves them out.
    pub is_caching: bool,
}

/// A number that is never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TrackerNumber(pub u64);

/// Some shards, a bit each.
#[derive(Clone, Debug, Default)]
pub struct Marks(Box<[Cell<u64>]>);

impl Marks {
    /// No shard of so many.
    pub fn none_of(n_shards: usize) -> Self {
        Self(vec![Cell::new(0); n_shards.div_ceil(64)].into())
    }

    /// All shards of so many.
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

    /// Takes a shard away.
    pub fn remove(&self, shard: ShardId) {
        let word = &self.0[usize::from(shard.0) / 64];
        word.set(word.get() & !(1 << (shard.0 % 64)));
    }

    /// The first shard from `from` on.
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

/// What shards know of a client that is told of no more changes.
#[derive(Debug)]
pub struct Leftover {
    /// What it has read; or that somebody hears of all changes, if nobody does any more.
    pub reader: Option<Reader>,
    /// Where.
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

/// What has changed.
#[derive(Debug)]
pub struct Invalidation {
    /// Which keys; none: all of them.
    pub keys: Option<SmallVec<[Box<[u8]>; 1]>>,
    /// Whose command it was; client 0 is none.
    pub author: ClientId,
}

/// Who is to be told.
#[derive(Clone, Debug)]
pub enum Whom {
    /// Clients that have read the key.
    Readers(SmallVec<[TrackerNumber; 2]>),
    /// Those who hear of all keys that begin so.
    Prefix(Name),
    /// All who keep copies of anything.
    Everybody,
    /// A client to which another one's are redirected.
    Redirected(ClientId),
}

/// What all threads share of it.
#[derive(Default)]
pub struct Trackers {
    /// Prefixes that somebody hears of. They are added with all shards held, so who holds one misses none.
    pub prefixes: Audiences,
    n_keys: AtomicU64,
    n_readers: AtomicU64,
    n_begun: AtomicU64,
    /// `tracking-table-max-keys`; 0 if there is no limit.
    max_keys: AtomicU64,
}

impl Trackers {
    /// How many keys are remembered.
    pub fn n_keys(&self) -> u64 {
        self.n_keys.load(Ordering::Relaxed)
    }

    /// How many pairs of a key and a reader are.
    pub fn n_readers(&self) -> u64 {
        self.n_readers.load(Ordering::Relaxed)
    }

    /// How many prefixes there are.
    pub fn n_prefixes(&self) -> usize {
        self.prefixes.len()
    }

    /// The number of a client that begins to track.
    pub fn next_number(&self) -> TrackerNumber {
        TrackerNumber(self.n_begun.fetch_add(1, Ordering::Relaxed) + 1)
    }

    /// Sets how many keys may be remembered.
    pub fn set_max_keys(&self, max: Option<usize>) {
        self.max_keys.store(max.unwrap_or(0) as u64, Ordering::Relaxed);
    }

    /// Above how many keys there are too many; they may be remembered for a moment.
    pub fn max_keys(&self) -> Option<u64> {
        Some(self.max_keys.load(Ordering::Relaxed)).filter(|&max| max > 0)
    }

    /// Whether so many are remembered that one must go for one that comes: the limit is kept within a tenth,
    /// between threads that remember keys at the same time.
    pub fn is_full(&self) -> bool {
        self.max_keys().is_some_and(|max| self.n_keys() > max + max / 16)
    }

    /// Notes that so much more is remembered.
    pub fn remembered(&self, Remembered { n_keys, n_readers }: Remembered) {
        self.n_keys.fetch_add(n_keys, Ordering::Relaxed);
        self.n_readers.fetch_add(n_readers, Ordering::Relaxed);
    }

    /// Notes that so much is forgotten.
    pub fn forgot(&self, Remembered { n_keys, n_readers }: Remembered) {
        self.n_keys.fetch_sub(n_keys, Ordering::Relaxed);
        self.n_readers.fetch_sub(n_readers, Ordering::Relaxed);
    }

    /// A connection of a thread hears of these prefixes from here on. All shards are held.
    pub fn add_prefixes(&self, prefixes: &[Name], thread: usize) {
        prefixes.iter().for_each(|prefix| self.prefixes.add(prefix, thread));
    }

    /// A connection of a thread hears of these prefixes no more.
    pub fn remove_prefixes(&self, prefixes: &[Name], thread: usize) {
        prefixes.iter().for_each(|prefix| self.prefixes.remove(prefix, thread));
    }
}
