//! Pins: keys that must not be written until the work that reads them without the hold is done.

use super::{Key, Shard};
use crate::{Db, entry::EntryBox, event::Event};

/// The pinned keys of a shard, each as often as it is pinned.
#[derive(Debug, Default)]
pub(super) struct Pins(Vec<(Db, Box<[u8]>)>);

impl Pins {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Shard {
    /// Shares a live value, and keeps its key from being written until [`Shard::unpin`]; so are keys that are not there.
    pub fn pin(&mut self, key: &Key<'_>) -> Option<EntryBox> {
        self.pinned.0.push((self.db, key.bytes.into()));
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

    /// Lets a key of the command's database be written again.
    pub fn unpin(&mut self, key: &[u8]) {
        let pinned = &mut self.pinned.0;
        let place = pinned.iter().position(|(db, pinned)| *db == self.db && **pinned == *key);
        pinned.swap_remove(place.expect("a key is unpinned by who has pinned it"));
        self.ledger.wake(self.db, key, Event::Unpinned);
        self.update_observers();
    }

    /// Whether a key of a database is pinned.
    pub fn is_pinned(&self, db: Db, key: &[u8]) -> bool {
        self.pinned.0.iter().any(|(pinned_in, pinned)| *pinned_in == db && **pinned == *key)
    }

    /// A database in which a key is pinned, if there is one.
    pub fn pinned_in(&self, key: &[u8]) -> Option<Db> {
        self.pinned.0.iter().find(|(_, pinned)| **pinned == *key).map(|(db, _)| *db)
    }
}
