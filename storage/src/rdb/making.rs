//! How values are made: by their types' own operations, member by member, so that they are stored as the settings say, whatever
//! they were stored like where they come from.

use std::sync::Arc;

use crossbeam_utils::CachePadded;

use crate::{
    Db,
    entry::EntryBox,
    event::Event,
    hash::{KeyHasher, Router},
    ledger::Ledger,
    published::Published,
    table::Table,
    thresholds::Thresholds,
    time::Millis,
    value::{ValueMut, ValueType},
};

/// What becomes the value of a key, outside the keyspace.
pub struct Making<'a> {
    /// The key.
    pub key: &'a [u8],
    /// Keys the tables of large values.
    pub hasher: KeyHasher,
    /// Up to which sizes values are packed.
    pub thresholds: &'a Thresholds,
    /// When it is made.
    pub now: Millis,
}

impl Making<'_> {
    /// An entry with what `fill` puts into a value, which must not be empty.
    pub fn make<T: ValueType>(
        &self,
        fill: impl FnOnce(&mut ValueMut<'_, T>) -> Option<()>,
    ) -> Option<EntryBox> {
        self.make_then(fill, |_| ()).flatten()
    }

    /// An entry with what `fill` puts into a value, which must not be empty, and what `expire` leaves of that; none if it leaves
    /// nothing. To `fill` nothing has expired, so that what comes twice is noticed in any case.
    pub fn make_then<T: ValueType>(
        &self,
        fill: impl FnOnce(&mut ValueMut<'_, T>) -> Option<()>,
        expire: impl FnOnce(&mut ValueMut<'_, T>),
    ) -> Option<Option<EntryBox>> {
        let router = Router::unsharded(self.hasher);
        let place = router.place(self.key);
        let mut table = Table::alone(router);
        let mut ledger = Ledger::new(Arc::new(CachePadded::new(Published::new())));
        let mut torn = false;
        let slot = table.insert(T::empty(self.key), place);
        let at = (Db::default(), Millis(0));
        let mut value = ValueMut::<T>::new(slot, &mut ledger, &mut torn, self.thresholds, at, Event::Made);
        fill(&mut value)?;
        if T::is_empty(value.entry()) {
            return None;
        }
        value.set_now(self.now);
        expire(&mut value);
        drop(value);
        Some(table.find_mut(self.key, place).map(|slot| slot.remove()))
    }
}
