//! Which reads must wait for the log under `appendfsync always`: those of keys whose last change is not on
//! disk yet. What they have told could be lost else. All other reads leave at once, however slow the disk is.
//!
//! A table has the ticket of the last change of each key, by a hash of it: two keys that share a place wait
//! for one another, which is rare and does no harm. It is written and read under the holds of the keys'
//! shards.

use std::sync::{
    OnceLock,
    atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
};

use braid_journal::intake::Ticket;
use braid_storage::{Db, record};

/// How many places there are, as a power of two: 2 MiB, taken when they are first needed. More would not stay
/// in a core's cache, and of a thousand writes that are under way these let one read of 260 wait in vain.
const PLACE_BITS: u32 = 18;

/// The last changes of keys.
#[derive(Default)]
pub struct LastWrites {
    /// Whether all changes are noted.
    is_on: AtomicBool,
    tickets: OnceLock<Box<[AtomicU64]>>,
    /// The ticket of the last change of all keys, or the last one that was taken before changes were noted.
    of_all: AtomicU64,
}

impl LastWrites {
    /// Whether changes are to be noted.
    pub fn is_on(&self) -> bool {
        self.is_on.load(Relaxed)
    }

    /// Notes changes from now on, or none. All shards are held; `last` is the last ticket that was taken.
    pub fn turn(&self, on: bool, last: Ticket) {
        self.of_all.fetch_max(last, Relaxed);
        self.is_on.store(on, Relaxed);
    }

    /// Notes that the keys of a record have changed. Their shards are held.
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
                    // Others may have changed another key of this place, with a later ticket.
                    tickets[index(*place)].fetch_max(ticket, Relaxed);
                }
            }
        }
    }

    /// The ticket of the last change of all keys.
    pub fn of_all(&self) -> Ticket {
        self.of_all.load(Relaxed)
    }

    /// The ticket of the last change of a key, or a later one. Its shard is held.
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
    use braid_storage::record::Touched;

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
