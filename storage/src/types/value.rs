//! Typed values: borrowed for reading, or for changes under the one guard for writes.
//!
//! A type is a marker that implements [`ValueType`]. Its file adds the operations to `ValueRef<'_, Marker>`
//! and `ValueMut<'_, Marker>`, and decides there the meaning of the entry's bytes or object. Changes through
//! a [`ValueMut`] are announced, accounted and tidied when it drops, so no operation can forget any of it.

use std::marker::PhantomData;

use crate::{
    entry::{
        EntryBox, EntryRef, Kind, Object,
        db::Db,
        time::{Deadline, Millis},
    },
    error::StorageError,
    keyspace::{published::count, tear_guard::Marks},
    memory::reclaim,
    observers::{
        event::Event,
        ledger::{Effect, Ledger},
    },
    table::{SlotMut, Table, hash::Router},
    types::thresholds::Thresholds,
};

/// A type of value: the type that a key must hold for the type's operations.
pub trait ValueType: Sized {
    /// The kind in the key's entry.
    const KIND: Kind;

    /// An entry for the key with nothing in it yet.
    fn empty(key: &[u8]) -> EntryBox;

    /// Whether nothing is left, so that the key goes.
    fn is_empty(entry: EntryRef<'_>) -> bool;

    /// The earliest deadline of the parts of the value.
    #[inline(always)]
    fn next_deadline(_: EntryRef<'_>) -> Option<Deadline> {
        None
    }
}

/// A live value, for reading.
pub struct ValueRef<'a, T> {
    entry: EntryRef<'a>,
    now: Millis,
    value_type: PhantomData<T>,
}

impl<T> Clone for ValueRef<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for ValueRef<'_, T> {}

impl<'a, T: ValueType> ValueRef<'a, T> {
    /// The value of an entry at a time, also of an entry that was [shared](EntryRef::share) to be read
    /// without the hold.
    ///
    /// # Errors
    /// If it is of another type.
    #[inline]
    pub fn of(entry: EntryRef<'a>, now: Millis) -> Result<Self, StorageError> {
        if entry.kind() != T::KIND {
            return Err(StorageError::WrongType);
        }
        Ok(Self { entry, now, value_type: PhantomData })
    }

    /// The value of an entry that is known to be of the type.
    pub(crate) fn known(entry: EntryRef<'a>, now: Millis) -> Self {
        Self::of(entry, now).expect("the kind has been looked at")
    }

    /// The entry.
    #[inline]
    pub fn entry(&self) -> EntryRef<'a> {
        self.entry
    }

    /// The command's time.
    #[inline]
    pub fn now(&self) -> Millis {
        self.now
    }
}

/// A live value of a shard, open for changes.
///
/// When it drops, a change is announced as the event that the guard was made for. An empty value is removed
/// with its key, which is an event of its own. A guard through which nothing changed announces nothing.
pub struct ValueMut<'a, T: ValueType> {
    /// `None` once the key has been removed.
    slot: Option<SlotMut<'a>>,
    ledger: &'a mut Ledger,
    marks: &'a mut Marks,
    thresholds: &'a Thresholds,
    db: Db,
    now: Millis,
    /// The event of the change.
    event: Event,
    /// A further event of the change.
    further: Option<Event>,
    effect: Effect,
    /// The number of elements that were changed, added or removed; 0 if that is not counted.
    n_changes: usize,
    /// Whether the key was created with this guard.
    is_new: bool,
    /// Whether nodes that wait for the key must look, although it counts as unchanged.
    is_ready: bool,
    /// Whether fields were removed because their deadline had passed.
    has_lost_expired: bool,
    /// The value's [next deadline](ValueType::next_deadline) when the guard was made.
    next_deadline: Option<Deadline>,
    value_type: PhantomData<T>,
}

impl<'a, T: ValueType> ValueMut<'a, T> {
    /// Makes a guard of a value of this type. `marks` are set before the first change.
    #[inline(always)]
    pub(crate) fn new(
        slot: SlotMut<'a>,
        ledger: &'a mut Ledger,
        marks: &'a mut Marks,
        thresholds: &'a Thresholds,
        (db, now): (Db, Millis),
        event: Event,
    ) -> Self {
        Self {
            next_deadline: T::next_deadline(slot.entry()),
            slot: Some(slot),
            ledger,
            marks,
            thresholds,
            db,
            now,
            event,
            further: None,
            effect: Effect::None,
            n_changes: 0,
            is_new: false,
            is_ready: false,
            has_lost_expired: false,
            value_type: PhantomData,
        }
    }

    /// Records whether the key was created with the guard.
    #[inline(always)]
    pub(crate) fn with_new(mut self, is_new: bool) -> Self {
        self.is_new = is_new;
        self
    }

    /// The entry.
    #[inline]
    pub fn entry(&self) -> EntryRef<'_> {
        self.slot.as_ref().expect("the slot is there until the guard drops").entry()
    }

    /// The value, for reading.
    #[inline]
    pub fn as_ref(&self) -> ValueRef<'_, T> {
        ValueRef { entry: self.entry(), now: self.now, value_type: PhantomData }
    }

    /// The command's time.
    #[inline]
    pub fn now(&self) -> Millis {
        self.now
    }

    /// The time of a use of the value: the command's time, unless that has been turned back, as nothing
    /// expires while a file is loaded.
    pub fn used_at(&self) -> Millis {
        if self.now == Millis(0) { self.ledger.loads_at } else { self.now }
    }

    /// Continues at another time.
    pub(crate) fn set_now(&mut self, now: Millis) {
        self.now = now;
    }

    /// The sizes up to which values are packed.
    #[inline]
    pub fn thresholds(&self) -> &'a Thresholds {
        self.thresholds
    }

    /// Makes an empty table for the members of a large value, keyed like the keyspace's.
    pub fn new_table(&self) -> Table {
        let slot = self.slot.as_ref().expect("the slot is there until the guard drops");
        Table::alone(Router::unsharded(slot.table().router().hasher()))
    }

    /// The deadline of the key.
    pub fn deadline(&self) -> Option<Deadline> {
        self.entry().deadline()
    }

    /// Sets or removes the key's deadline.
    pub fn set_deadline(&mut self, deadline: Option<Deadline>) {
        self.change(|entry| entry.set_deadline(deadline));
    }

    /// Changes the entry. Any number of calls is one change, unless [elements](Self::mark_changed) are
    /// counted.
    #[inline]
    pub fn change<R>(&mut self, change: impl FnOnce(&mut EntryBox) -> R) -> R {
        self.effect = Effect::Modified;
        self.arrange(change)
    }

    /// Changes how the entry is stored. If more turns out to change, the caller also calls
    /// [`ValueMut::mark_changed`].
    #[inline]
    pub fn arrange<R>(&mut self, change: impl FnOnce(&mut EntryBox) -> R) -> R {
        self.marks.tear();
        let slot = self.slot.as_mut().expect("the slot is there until the guard drops");
        self.ledger.before_change(self.db, slot.place(), slot.entry(), self.now);
        let result = slot.modify(change);
        // The slot may hold another entry now.
        self.ledger.after_change(self.db, slot.place(), slot.entry());
        result
    }

    /// [`arrange`](Self::arrange) of a value that is stored as an `O`; `None` if it is not. It has less to
    /// do.
    #[inline]
    pub fn arrange_object<O: Object, R>(&mut self, change: impl FnOnce(&mut O) -> R) -> Option<R> {
        self.marks.tear();
        let slot = self.slot.as_mut().expect("the slot is there until the guard drops");
        self.ledger.before_change(self.db, slot.place(), slot.entry(), self.now);
        slot.modify_object(change)
    }

    /// Records that `n` fields were removed because their deadline had passed.
    pub(crate) fn lose_expired_fields(&mut self, n: usize) {
        self.has_lost_expired |= n > 0;
        self.count_expired_fields(n);
    }

    /// Counts fields that have expired.
    pub(crate) fn count_expired_fields(&self, n: usize) {
        count(&self.ledger.published.expired_fields, n as u64);
    }

    /// Whether changes are recorded for the log.
    #[inline(always)]
    pub(crate) fn is_logged(&self) -> bool {
        self.ledger.is_observed && self.ledger.is_logged()
    }

    /// Records removed fields whose deadline had passed.
    pub(crate) fn record_lost_fields<'f>(&self, fields: impl Iterator<Item = &'f [u8]>) {
        self.ledger.lost_fields(self.db, self.entry().key(), fields);
    }

    /// Makes nodes that wait for the key look at it, although WATCH would see no change.
    pub fn mark_ready(&mut self) {
        self.is_ready = true;
    }

    /// Records a change of the value, by one element. Clients that watch the key, and nodes that wait for it,
    /// are told when the guard drops.
    #[inline]
    pub fn mark_changed(&mut self) {
        self.mark_all_changed(1);
    }

    /// Records that `n` of its elements were changed, added or removed.
    #[inline]
    pub fn mark_all_changed(&mut self, n: usize) {
        if n > 0 {
            self.effect = Effect::Modified;
            self.n_changes += n;
        }
    }

    /// Records a change that WATCH and tracking clients do not see.
    pub fn mark_changed_quietly(&mut self) {
        self.mark_all_changed_quietly(1);
    }

    /// Records a change of `n` elements that WATCH and tracking clients do not see.
    pub fn mark_all_changed_quietly(&mut self, n: usize) {
        self.n_changes += n;
        if n > 0 && self.effect == Effect::None {
            self.effect = Effect::Quiet;
        }
    }

    /// Sets another event for the change than the guard was made for. Some commands find the event only while
    /// they run.
    #[inline]
    pub fn set_event(&mut self, event: Event) {
        self.event = event;
    }

    /// Adds an event that follows that of the change.
    #[inline]
    pub fn follow_up(&mut self, event: Event) {
        self.further = Some(event);
    }
}

impl<T: ValueType> ValueMut<'_, T> {
    /// Removes the key, whose value is empty.
    #[cold]
    fn remove_empty(&mut self) {
        let has_changed = self.has_changed();
        if has_changed && self.ledger.is_observed {
            self.announce();
        }
        let slot = self.slot.take().expect("the slot is there until the guard drops");
        if has_changed && self.ledger.is_observed {
            self.ledger.announce_quietly(self.db, slot.entry().key(), Event::Del);
        }
        // The change that emptied the value has saved it.
        reclaim::free(slot.remove());
    }

    /// Whether a change was made through it that observers are told of.
    #[inline(always)]
    pub fn has_changed(&self) -> bool {
        self.effect != Effect::None || self.is_ready || self.has_lost_expired
    }

    /// Announces the change, in the order in which Redis publishes its events.
    #[cold]
    fn announce(&mut self) {
        let slot = self.slot.as_ref().expect("the slot is there until the guard drops");
        let (db, key) = (self.db, slot.entry().key());
        if self.is_new {
            self.ledger.announce_quietly(db, key, Event::New);
        }
        if self.has_lost_expired {
            self.ledger.announce_expired(db, key, Event::HExpired);
        }
        match self.effect {
            Effect::None => {}
            Effect::Quiet => self.ledger.announce_quietly(db, key, self.event),
            Effect::Modified => self.ledger.announce(db, key, self.event),
        }
        if self.is_ready {
            self.ledger.wake(db, key, self.event);
        }
        if let Some(further) = self.further {
            self.ledger.announce_quietly(db, key, further);
        }
    }
}

impl<T: ValueType> Drop for ValueMut<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        let slot = self.slot.as_ref().expect("the slot is there until the guard drops");
        // An empty value has no deadlines left.
        let next_deadline = T::next_deadline(slot.entry());
        self.ledger.fields_moved(self.db, slot.place(), self.next_deadline, next_deadline, || slot.counts());
        if self.has_changed() {
            self.marks.count_all(self.n_changes.max(1));
        }
        if T::is_empty(slot.entry()) {
            return self.remove_empty();
        }
        if self.ledger.is_observed && self.has_changed() {
            self.announce();
        }
    }
}
