//! The keys that clients have written on a writable replica.
//!
//! The primary expires its own keys, and does not know these. So the replica expires them itself.

use std::{
    collections::HashSet,
    sync::{
        Mutex, MutexGuard,
        atomic::{AtomicUsize, Ordering},
    },
};

use braid_storage::entry::db::Db;

/// A key and its database.
pub type OwnKey = (Db, Box<[u8]>);

/// Keys that may have a deadline that only this replica knows.
#[derive(Default)]
pub struct OwnKeys {
    keys: Mutex<HashSet<OwnKey>>,
    /// Their number, which INFO and the cron read.
    n_keys: AtomicUsize,
}

impl OwnKeys {
    fn keys(&self) -> MutexGuard<'_, HashSet<OwnKey>> {
        self.keys.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Adds keys.
    pub fn add(&self, more: impl IntoIterator<Item = OwnKey>) {
        let mut keys = self.keys();
        keys.extend(more);
        self.n_keys.store(keys.len(), Ordering::Relaxed);
    }

    /// Takes out up to `most` keys. The caller adds those again that still have a deadline.
    pub fn take(&self, most: usize) -> Vec<OwnKey> {
        let mut keys = self.keys();
        let taken: Vec<OwnKey> = keys.iter().take(most).cloned().collect();
        for key in &taken {
            keys.remove(key);
        }
        self.n_keys.store(keys.len(), Ordering::Relaxed);
        taken
    }

    /// Forgets all keys.
    pub fn clear(&self) {
        self.keys().clear();
        self.n_keys.store(0, Ordering::Relaxed);
    }

    /// The number of keys.
    pub fn len(&self) -> usize {
        self.n_keys.load(Ordering::Relaxed)
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
