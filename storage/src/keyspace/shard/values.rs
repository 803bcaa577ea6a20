//! Values of a shard by type: found, made or replaced, for reading or for changes through the guard.

use super::Shard;
use crate::{
    entry::{EntryRef, Kind, key::Key},
    error::StorageError,
    memory::reclaim,
    observers::event::Event,
    table::hash::Place,
    types::{
        kinds,
        value::{ValueMut, ValueRef, ValueType},
    },
};

impl Shard {
    /// Returns a live value for use.
    ///
    /// # Errors
    /// If the key holds something else.
    #[inline]
    pub fn value<T: ValueType>(&mut self, key: &Key<'_>) -> Result<Option<ValueRef<'_, T>>, StorageError> {
        let now = self.now;
        let Some(entry) = self.read(key) else { return Ok(None) };
        ValueRef::of(entry, now).map(Some)
    }

    /// Returns a live value for a change.
    ///
    /// # Errors
    /// If the key holds something else.
    #[inline(always)]
    pub fn value_mut<'a, T: ValueType>(
        &'a mut self,
        key: &Key<'_>,
        event: Event,
    ) -> Result<Option<ValueMut<'a, T>>, StorageError> {
        let may_have_fields_expired = T::KIND == Kind::Hash && !self.ledger.fields.is_empty();
        let has_deadlines = self.tables.get(self.db).is_some_and(|table| table.n_deadlines() > 0);
        if has_deadlines || may_have_fields_expired {
            let _: Option<EntryRef<'_>> = self.peek(key);
        }
        let Some(table) = self.tables.get_mut(self.db) else { return Ok(None) };
        let Some(slot) = table.find_mut_near(key.bytes, key.routed.place, &mut self.hint) else {
            return Ok(None);
        };
        if slot.entry().kind() != T::KIND {
            return Err(StorageError::WrongType);
        }
        if self.refuses_unsaved && self.ledger.is_large_unsaved(self.db, slot.place(), slot.entry()) {
            return Err(StorageError::TooMuch);
        }
        if self.touches {
            self.access.note_change(slot.entry(), self.now);
        }
        let (ledger, marks) = (&mut self.ledger, &mut self.marks);
        Ok(Some(ValueMut::new(slot, ledger, marks, &self.thresholds, (self.db, self.now), event)))
    }

    /// Returns a live value for reading and changing: counts a hit or a miss, as a read does.
    ///
    /// # Errors
    /// If the key holds something else.
    pub fn counted_value_mut<'a, T: ValueType>(
        &'a mut self,
        key: &Key<'_>,
        event: Event,
    ) -> Result<Option<ValueMut<'a, T>>, StorageError> {
        self.look(key);
        self.value_mut(key, event)
    }

    /// Returns a live value for a change. Makes an empty one if the key is missing, which is removed again if
    /// it stays empty.
    ///
    /// # Errors
    /// If the key holds something else.
    pub fn value_or_create<'a, T: ValueType>(
        &'a mut self,
        key: &Key<'_>,
        event: Event,
    ) -> Result<ValueMut<'a, T>, StorageError> {
        if self.tables.get(self.db).is_some_and(|table| table.n_deadlines() > 0) {
            let _: Option<EntryRef<'_>> = self.peek(key);
        }
        let table = self.tables.or_make(self.db, self.is_saving);
        let (slot, is_new) =
            table.find_or_insert(key.bytes, key.routed.place, &mut self.hint, || T::empty(key.bytes));
        if is_new {
            self.marks.tear();
            self.access.begin(slot.entry(), self.now);
            self.ledger.after_change(self.db, key.routed.place, slot.entry());
        } else if slot.entry().kind() != T::KIND {
            return Err(StorageError::WrongType);
        } else if self.refuses_unsaved
            && self.ledger.is_large_unsaved(self.db, key.routed.place, slot.entry())
        {
            return Err(StorageError::TooMuch);
        } else if self.touches {
            self.access.note_change(slot.entry(), self.now);
        }
        let (ledger, marks) = (&mut self.ledger, &mut self.marks);
        Ok(ValueMut::new(slot, ledger, marks, &self.thresholds, (self.db, self.now), event).with_new(is_new))
    }

    /// Puts an empty value in place of the key's value. It is removed again if it stays empty.
    pub fn replace_value<'a, T: ValueType>(&'a mut self, key: &Key<'_>, event: Event) -> ValueMut<'a, T> {
        self.peek(key);
        self.marks.tear();
        let table = self.tables.or_make(self.db, self.is_saving);
        let (mut slot, is_new) =
            table.find_or_insert(key.bytes, key.routed.place, &mut self.hint, || T::empty(key.bytes));
        if !is_new {
            let old = slot.replace(T::empty(key.bytes));
            if self.ledger.is_observed {
                self.ledger.overwritten(self.db, key.bytes, old.as_ref().kind(), T::KIND);
            }
            let fields = kinds::next_deadline(old.as_ref());
            self.ledger.fields_moved(self.db, key.routed.place, fields, None, || slot.counts());
            if let Some(old) = self.ledger.removed(self.db, key.routed.place, old, self.now) {
                reclaim::free(old);
            }
        }
        self.access.begin(slot.entry(), self.now);
        self.ledger.after_change(self.db, key.routed.place, slot.entry());
        let (ledger, marks) = (&mut self.ledger, &mut self.marks);
        ValueMut::new(slot, ledger, marks, &self.thresholds, (self.db, self.now), event).with_new(is_new)
    }

    /// Returns a value at a place of the command's database that is accepted, for a change. It is no use of
    /// the key, and the value may have expired.
    pub(super) fn value_at<'a, T: ValueType>(
        &'a mut self,
        place: Place,
        event: Event,
        accept: impl Fn(EntryRef<'_>) -> bool,
    ) -> Option<ValueMut<'a, T>> {
        let table = self.tables.get_mut(self.db)?;
        let slot = table.find_mut_at(place, |entry| entry.kind() == T::KIND && accept(entry))?;
        let (ledger, marks) = (&mut self.ledger, &mut self.marks);
        Some(ValueMut::new(slot, ledger, marks, &self.thresholds, (self.db, self.now), event))
    }
}
