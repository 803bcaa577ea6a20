//! The ledger: the one place that sees every change of a key, and the sink that feeds the observers.
//!
//! WATCH's stamp moves at the change itself. All other observers are told when the unit that changed the key
//! ends. If this shard has such an observer, a [`Change`] goes into the sink. The end of the unit takes the
//! sink ([`Shard::take_changes`](crate::keyspace::shard::Shard::take_changes)) before it releases the shard.
//! The observers are nodes that wait for the key, tracking clients that have read it, and [hearers](Hearer),
//! which are told of every change.

use std::{
    cell::Cell,
    sync::{Arc, atomic::Ordering::Relaxed},
};

use crate::{
    entry::{
        EntryBox, EntryRef, Kind,
        db::Db,
        time::{Deadline, Millis},
    },
    keyspace::published::Published,
    memory::{allocator, reclaim},
    observers::{
        event::Event,
        read_tracking::{Readers, Tracked},
        record::{self, LOG},
        snapshot::Saving,
        stamps::Stamps,
        waiters::Waiters,
    },
    table::{Counts, deadline_index::DeadlineIndex, hash::Place},
};

/// The effect of a [`Change`] on the key's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// The value is unchanged.
    None,
    /// The value is another, but WATCH and tracking clients are not told, as in Redis: the changes of
    /// consumer groups. A further event of one change is quiet, too, because the first has reported it.
    Quiet,
    /// The value is another, or has come or gone.
    Modified,
}

/// An event of a key or a database that has an observer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The database.
    pub db: Db,
    /// The key; none if it is the database that was [flushed](Event::Flushed) or [swapped](Event::Swapped).
    pub key: Option<Box<[u8]>>,
    /// The event.
    pub event: Event,
    /// The effect on the value.
    pub effect: Effect,
    /// The rank among all changes of the same thread, in whatever shard. One thread changes the shards of a
    /// unit.
    pub order: u64,
    /// The client whose command made the change; 0 if it was no client's.
    pub author: u64,
    /// Whether nodes wait for the key that have not been told since they last looked.
    pub wakes: bool,
    /// Tracking clients that have read the key since it last changed. The shard no longer remembers them.
    pub readers: Readers,
    /// Whether observers have been told ([`Shard::take_untold`](crate::keyspace::shard::Shard::take_untold)),
    /// so that the change only has to wake nodes.
    pub is_told: bool,
}

/// An observer of every change on a shard, whatever the key. The number says which one; there are up to
/// eight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hearer(u8);

impl Hearer {
    /// Makes the hearer with a number.
    ///
    /// # Panics
    /// If the number is above 7.
    pub const fn new(number: u8) -> Hearer {
        assert!(number < 8, "a shard knows eight hearers");
        Hearer(1 << number)
    }
}

/// The hearer of look-ups that find no key, which is also told of all changes.
pub const MISSES: Hearer = Hearer::new(6);

thread_local! {
    /// Counts the changes of a thread. A cache line that all threads write would cost more.
    static ORDER: Cell<u64> = const { Cell::new(0) };
}

fn next_order() -> u64 {
    ORDER.with(|order| order.replace(order.get() + 1))
}

/// The one place that sees every change of a key.
///
/// The fields that every write reads come first, after the first table: the shard's second cache line.
#[repr(C)]
pub(crate) struct Ledger {
    /// Whether a client watches a key, a node waits for one, or a client has read one. Also whether there is
    /// a hearer, or a snapshot is under way. This is the one test that a write pays for.
    pub(crate) is_observed: bool,
    /// The [`Hearer`]s, as bits.
    hearers: u8,
    pub(crate) published: Arc<Published>,
    pub(crate) stamps: Stamps,
    pub(crate) waiters: Waiters,
    /// The hashes whose fields have deadlines, by the earliest of each.
    pub(crate) fields: DeadlineIndex<(Db, Place)>,
    /// Keys that tracking clients have read, if there are any.
    pub(crate) tracked: Option<Box<Tracked>>,
    /// The part of a running snapshot that this shard has yet to give.
    pub(crate) saving: Option<Box<Saving>>,
    /// The client whose command is under way; 0 if it is no client's.
    pub(crate) author: u64,
    /// The changes since the last unit ended.
    sink: Vec<Change>,
    /// The time of day while the commands of a file that is loaded run at time zero.
    pub(crate) loads_at: Millis,
}

impl Ledger {
    pub(crate) fn new(published: Arc<Published>) -> Self {
        Self {
            is_observed: false,
            hearers: 0,
            published,
            stamps: Stamps::default(),
            waiters: Waiters::default(),
            fields: DeadlineIndex::default(),
            tracked: None,
            saving: None,
            author: 0,
            sink: Vec::new(),
            loads_at: Millis(0),
        }
    }

    /// Announces that a key was written or has gone: Redis's `signalModifiedKey` and `notifyKeyspaceEvent`.
    #[inline(always)]
    pub(crate) fn changed(&mut self, db: Db, key: &[u8], event: Event) {
        if self.is_observed {
            self.announce(db, key, event);
        }
    }

    /// Moves the stamp of a changed key and records the change for the observers.
    #[cold]
    pub(crate) fn announce(&mut self, db: Db, key: &[u8], event: Event) {
        self.record(db, key, event);
        self.stamps.moved(db, key);
        let wakes = self.waiters.wake(db, key);
        let readers = self.take_readers(key);
        if self.tells() || wakes || !readers.is_empty() {
            let key = Some(key.into());
            self.push(Change { wakes, readers, key, ..self.change(db, event, Effect::Modified) });
        }
    }

    /// Announces that a value of the type `new` has replaced one of the type `old`.
    #[cold]
    pub(crate) fn overwritten(&mut self, db: Db, key: &[u8], old: Kind, new: Kind) {
        if !self.tells() {
            return;
        }
        self.announce_quietly(db, key, Event::Overwritten);
        if old != new {
            self.announce_quietly(db, key, Event::TypeChanged);
        }
    }

    /// Records a change that WATCH and tracking clients do not see: a further event, or a consumer group's.
    #[cold]
    pub(crate) fn announce_quietly(&mut self, db: Db, key: &[u8], event: Event) {
        self.record(db, key, event);
        if self.tells() {
            self.push(Change { key: Some(key.into()), ..self.change(db, event, Effect::Quiet) });
        }
    }

    /// Records a read of a missing key.
    #[inline]
    pub(crate) fn missed(&mut self, db: Db, key: &[u8]) {
        let Hearer(misses) = MISSES;
        if self.hearers & misses != 0 {
            self.announce_quietly(db, key, Event::KeyMiss);
        }
    }

    /// Forgets the missed look-ups, of all keys or of one: the command repeats them.
    #[cold]
    pub(crate) fn forget_misses(&mut self, of: Option<(Db, &[u8])>) {
        let is_of = |change: &Change| {
            of.is_none_or(|(db, key)| change.db == db && change.key.as_deref() == Some(key))
        };
        self.sink.retain(|change| change.event != Event::KeyMiss || !is_of(change));
    }

    /// Records that nodes which wait for a key must look at it, although its value is unchanged.
    #[cold]
    pub(crate) fn wake(&mut self, db: Db, key: &[u8], event: Event) {
        if self.waiters.wake(db, key) {
            let key = Some(key.into());
            self.push(Change { wakes: true, key, ..self.change(db, event, Effect::None) });
        }
    }

    /// Records an event of a whole database, or of all, of which this is the first. Nodes that wait for some
    /// of the keys must look.
    pub(crate) fn announce_database(&mut self, db: Db, event: Event, awaited: &[(Db, Box<[u8]>)]) {
        self.record(db, &[], event);
        if self.tells() {
            self.push(self.change(db, event, Effect::Modified));
        }
        for (of, key) in awaited {
            self.wake(*of, key, event);
        }
    }

    /// Announces that a key expired or has lost expired fields. No client is the author.
    pub(crate) fn announce_expired(&mut self, db: Db, key: &[u8], event: Event) {
        let author = std::mem::take(&mut self.author);
        self.announce(db, key, event);
        self.author = author;
    }

    /// Announces that a key has gone because the deadlines of all its parts had passed. They have expired,
    /// and the key had become empty.
    pub(crate) fn announce_over(&mut self, db: Db, key: &[u8]) {
        if self.is_logged() {
            record::lost_key(db, key);
        }
        self.announce_expired(db, key, Event::HExpired);
        if self.tells() {
            let change = self.change(db, Event::Del, Effect::Quiet);
            self.push(Change { key: Some(key.into()), author: 0, ..change });
        }
    }

    /// Forgets the readers of some key; returns whether there was one. They are told as if it had changed.
    pub(crate) fn forget_some_key(&mut self) -> bool {
        let Some((key, readers)) = self.tracked.as_mut().and_then(|tracked| tracked.take_any()) else {
            return false;
        };
        let change = self.change(Db::default(), Event::Forgotten, Effect::None);
        self.push(Change { key: Some(key), readers, author: 0, ..change });
        true
    }

    fn change(&self, db: Db, event: Event, effect: Effect) -> Change {
        Change {
            db,
            key: None,
            event,
            effect,
            order: 0,
            author: self.author,
            wakes: false,
            readers: Readers::new(),
            is_told: false,
        }
    }

    fn push(&mut self, change: Change) {
        self.sink.push(Change { order: next_order(), ..change });
    }

    fn take_readers(&mut self, key: &[u8]) -> Readers {
        self.tracked.as_mut().map(|tracked| tracked.take_readers(key)).unwrap_or_default()
    }

    /// Whether a hearer apart from the log is told of every change.
    fn tells(&self) -> bool {
        self.hears_beside(LOG)
    }

    /// Whether a hearer apart from this one is told of changes.
    pub(crate) fn hears_beside(&self, Hearer(bit): Hearer) -> bool {
        self.hearers & !bit != 0
    }

    /// Whether changes are recorded.
    pub(crate) fn is_logged(&self) -> bool {
        self.is_heard_by(LOG)
    }

    fn record(&self, db: Db, key: &[u8], event: Event) {
        if self.is_logged() {
            record::changed(db, key, event);
        }
    }

    /// Records fields that were removed because their deadline had passed.
    pub(crate) fn lost_fields<'f>(&self, db: Db, key: &[u8], fields: impl Iterator<Item = &'f [u8]>) {
        if self.is_logged() {
            fields.for_each(|field| record::lost_field(db, key, field));
        }
    }

    /// Whether a hearer is told of every change.
    pub(crate) fn is_heard_by(&self, Hearer(bit): Hearer) -> bool {
        self.hearers & bit != 0
    }

    /// Begins or ends the reports of every change to a hearer.
    pub(crate) fn hear_all(&mut self, hearer: Hearer, hears: bool) {
        let Hearer(bit) = hearer;
        self.hearers = if hears { self.hearers | bit } else { self.hearers & !bit };
        self.observe();
    }

    /// Whether the sink has something.
    #[inline(always)]
    pub(crate) fn has_changes(&self) -> bool {
        !self.sink.is_empty()
    }

    /// Takes the changes that have not been reported, and keeps the keys that wake nodes.
    pub(crate) fn take_untold(&mut self, to: &mut Vec<Change>) {
        let n_told = self.sink.iter().rposition(|change| change.is_told).map_or(0, |last| last + 1);
        let untold = self.sink.split_off(n_told);
        let wakes = untold.iter().filter(|change| change.wakes);
        self.sink.extend(wakes.map(|change| Change { is_told: true, ..change.clone() }));
        to.extend(untold);
    }

    /// Empties the sink, whose changes wake the nodes that wait for their keys.
    pub(crate) fn take_changes(&mut self, to: &mut Vec<Change>) {
        for change in self.sink.iter().filter(|change| change.wakes) {
            let key = change.key.as_deref().expect("nodes wait for keys");
            self.waiters.told(change.db, key);
        }
        // The room that has come empty serves the next unit of this shard.
        if to.is_empty() {
            std::mem::swap(&mut self.sink, to);
        } else {
            to.append(&mut self.sink);
        }
    }

    /// Updates the count of watched keys. Called after a client has begun or ended to watch a key.
    pub(crate) fn watches_changed(&mut self) {
        self.published.watched_keys.store(self.stamps.len() as u64, Relaxed);
        self.observe();
    }

    /// Updates `is_observed`. Called after an observer has come or gone.
    pub(crate) fn observe(&mut self) {
        self.tracked.take_if(|tracked| tracked.is_empty());
        self.is_observed = !self.stamps.is_empty()
            || !self.waiters.is_empty()
            || self.tracked.is_some()
            || self.hearers != 0
            || self.saving.is_some();
    }
}

/// The part of a running snapshot. Code that changes an entry calls [`before_change`](Self::before_change)
/// and [`after_change`](Self::after_change). Code that makes an entry calls the second, and code that removes
/// one calls [`removed`](Self::removed).
impl Ledger {
    /// Saves an entry's value before it changes.
    #[inline(always)]
    pub(crate) fn before_change(&mut self, db: Db, place: Place, entry: EntryRef<'_>, now: Millis) {
        if self.is_observed {
            self.save_early(db, place, entry, now);
        }
    }

    #[cold]
    fn save_early(&mut self, db: Db, place: Place, entry: EntryRef<'_>, now: Millis) {
        if let Some(saving) = &mut self.saving {
            saving.save_early(db, place, entry, now);
        }
    }

    /// Marks the present value of an entry as no part of the snapshot.
    #[inline(always)]
    pub(crate) fn after_change(&self, db: Db, place: Place, entry: EntryRef<'_>) {
        if self.is_observed {
            self.mark(db, place, entry);
        }
    }

    #[cold]
    fn mark(&self, db: Db, place: Place, entry: EntryRef<'_>) {
        if let Some(saving) = &self.saving {
            saving.mark(db, place, entry);
        }
    }

    /// Whether an entry must be saved before a change, and that takes long.
    #[cold]
    pub(crate) fn is_large_unsaved(&self, db: Db, place: Place, entry: EntryRef<'_>) -> bool {
        self.saving.as_ref().is_some_and(|saving| saving.is_large_unsaved(db, place, entry))
    }

    /// Saves an entry that has been removed; returns it unless the snapshot keeps it.
    #[inline(always)]
    pub(crate) fn removed(&mut self, db: Db, place: Place, entry: EntryBox, now: Millis) -> Option<EntryBox> {
        if self.is_observed { self.keep_removed(db, place, entry, now) } else { Some(entry) }
    }

    #[cold]
    fn keep_removed(&mut self, db: Db, place: Place, entry: EntryBox, now: Millis) -> Option<EntryBox> {
        match &mut self.saving {
            Some(saving) => saving.keep_removed(db, place, entry, now),
            None => Some(entry),
        }
    }
}

impl Ledger {
    /// Records that the next deadline of a hash's fields has changed, or that the hash has come or gone.
    /// `counts` returns the counts of its table.
    #[inline(always)]
    pub(crate) fn fields_moved<'c>(
        &mut self,
        db: Db,
        place: Place,
        before: Option<Deadline>,
        after: Option<Deadline>,
        counts: impl FnOnce() -> &'c Counts,
    ) {
        if before != after {
            counts().count_partly(before.is_some(), after.is_some());
            self.reschedule_fields(db, place, before, after);
        }
    }

    /// Updates the deadline index.
    #[cold]
    pub(crate) fn reschedule_fields(
        &mut self,
        db: Db,
        place: Place,
        before: Option<Deadline>,
        after: Option<Deadline>,
    ) {
        self.fields.reschedule((db, place), before, after);
        self.publish_fields();
    }

    /// Records that hashes of database `from` are now in database `to(from)`, or in none.
    pub(crate) fn fields_changed_dbs(&mut self, to: impl Fn(Db) -> Option<Db>) {
        self.fields.replan(|(db, place)| Some((to(db)?, place)));
        self.publish_fields();
    }

    /// Records that no hash is left in any database.
    pub(crate) fn forget_fields(&mut self) {
        let fields = std::mem::take(&mut self.fields);
        let bytes = fields.allocated_bytes();
        reclaim::free_part(fields, bytes, DeadlineIndex::demolish);
        self.publish_fields();
    }

    /// Takes over the deadline index of another ledger.
    pub(crate) fn take_fields(&mut self, from: &mut Ledger) {
        self.fields = std::mem::take(&mut from.fields);
        from.publish_fields();
        self.publish_fields();
    }

    fn publish_fields(&self) {
        let bytes = self.fields.allocated_bytes() as u64;
        let before = self.published.other_bytes.load(Relaxed);
        self.published.other_bytes.store(bytes, Relaxed);
        allocator::count_data(bytes as i64 - before as i64);
        let next = self.fields.first().map_or(u64::MAX, |deadline| deadline.0.0);
        self.published.next_field_deadline.store(next, Relaxed);
    }
}

impl Drop for Ledger {
    fn drop(&mut self) {
        self.fields = DeadlineIndex::default();
        self.publish_fields();
    }
}
