//! Pinning: a key must not be written until the work that reads it without the hold is done.

use super::Shard;
use crate::{
    entry::{EntryBox, db::Db, key::Key},
    observers::event::Event,
};

impl Shard {
    /// Shares a live value, and keeps its key from being written until [`Shard::unpin`]. A missing key is
    /// kept from being written, too.
    pub fn pin(&mut self, key: &Key<'_>) -> Option<EntryBox> {
        self.pinned.add(self.db, key.bytes);
        self.update_observers();
        let (now, touches) = (self.now, self.touches);
        let entry = self.peek(key)?;
        // SAFETY: nothing changes or removes the entry in the rest of this function.
        let entry = unsafe { entry.unbound() };
        if touches {
            self.access.note(entry, now);
        }
        Some(entry.share())
    }

    /// Ends a pin of a key of the command's database.
    pub fn unpin(&mut self, key: &[u8]) {
        self.pinned.remove(self.db, key);
        self.ledger.wake(self.db, key, Event::Unpinned);
        self.update_observers();
    }

    /// Whether a key of a database is pinned.
    pub fn is_pinned(&self, db: Db, key: &[u8]) -> bool {
        self.pinned.contains(db, key)
    }

    /// A database in which a key is pinned, if there is one.
    pub fn pinned_in(&self, key: &[u8]) -> Option<Db> {
        self.pinned.db_of(key)
    }
}
