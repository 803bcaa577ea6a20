//! The tickets of keys' last changes, for which reads wait under `appendfsync always`.
//!
//! A read waits for the log if it uses a key whose last change is not on disk yet. Otherwise a crash could
//! undo a value that a client has read. All other reads leave at once, however slow the disk is.
//!
//! A table has the ticket of the last change of each key, by a hash of the key. Two keys with the same place
//! wait for each other, which is rare and harmless. The table is written and read under the holds of the
//! keys' shards.

use std::sync::{
    OnceLock,
    atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
};

use braid_journal::intake::Ticket;
use braid_storage::{entry::db::Db, observers::record};

/// The number of places as a power of two. The table takes 2 MiB, from its first use on. A larger one would
/// not stay in a core's cache. With a thousand writes in progress, one read of 260 waits in vain.
const PLACE_BITS: u32 = 18;

/// The tickets of the last changes of keys.
#[derive(Default)]
pub struct LastWrites {
    /// Whether all changes are noted.
    is_on: AtomicBool,
    tickets: OnceLock<Box<[AtomicU64]>>,
    /// The ticket of the last change of all keys. Initially the last one that was taken before changes were
    /// noted.
    of_all: AtomicU64,
}

impl LastWrites {
    /// Whether changes must be noted.
    pub fn is_on(&self) -> bool {
        self.is_on.load(Relaxed)
    }

    /// Begins or ends the noting of changes. All shards are held. `last` is the last ticket that was taken.
    pub fn turn(&self, on: bool, last: Ticket) {
        self.of_all.fetch_max(last, Relaxed);
        self.is_on.store(on, Relaxed);
    }

    /// Notes changes of the keys of a record. Their shards are held.
    pub fn note(&self, touched: record::Touched<'_>, ticket: Ticket) {
        match touched {
            record::Touched::All => {
                self.of_all.fetch_max(ticket, Relaxed);
            }
            record::Touched::Places(places) => {
                let tickets = self.tickets.get_or_init(|| {
                    std::iter::repeat_with(AtomicU64::default).take(1 << PLACE_BITS).collect()
                });
                for place in places {
                    // Another key of this place may have changed with a later ticket.
                    tickets[index(*place)].fetch_max(ticket, Relaxed);
                }
            }
        }
    }

    /// Returns the ticket of the last change of all keys.
    pub fn of_all(&self) -> Ticket {
        self.of_all.load(Relaxed)
    }

    /// Returns the ticket of a key's last change, or a later one. The key's shard is held.
    pub fn of(&self, db: Db, key: &[u8]) -> Ticket {
        let place = record::place_of(db, key);
        self.tickets.get().map_or(0, |tickets| tickets[index(place)].load(Relaxed)).max(self.of_all())
    }
}

fn index(place: u64) -> usize {
    (place >> (u64::BITS - PLACE_BITS)) as usize
}

#[cfg(test)]
mod tests {
    use braid_storage::observers::record::Touched;

    use super::*;

    #[test]
    fn a_key_has_the_ticket_of_its_last_change_and_others_have_not() {
        let writes = LastWrites::default();
        writes.turn(true, 5);
        assert_eq!(writes.of(Db(0), b"key"), 5, "what was before may have changed it");
        writes.note(Touched::Places(&[record::place_of(Db(0), b"key")]), 7);
        writes.note(Touched::Places(&[record::place_of(Db(0), b"key")]), 6);
        assert_eq!(writes.of(Db(0), b"key"), 7);
        assert_eq!((writes.of(Db(1), b"key"), writes.of(Db(0), b"other")), (5, 5));
        writes.note(Touched::All, 9);
        assert_eq!(writes.of(Db(0), b"other"), 9);
    }
}
