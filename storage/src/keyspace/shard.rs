//! A shard: its part of every database, and the one place through which keys change.
//!
//! Handlers read through [`Shard::read`] and its relatives. They write through [`Shard::put_string`],
//! [`Shard::remove`] and the guards ([`ValueMut`](crate::types::value::ValueMut)). Every write moves the
//! key's stamp, keeps the published counts and marks the shard as being changed, so no handler can forget any
//! of it. Each of these takes the [`Event`] of the write, and observers learn of it through one sink
//! (`ledger.rs`).

pub mod eviction;
pub mod expiry;
mod fields;
pub mod loading;
mod observing;
mod pinning;
pub mod saving;
mod tables;
mod values;

use std::{hint::cold_path, sync::Arc};

use smallvec::SmallVec;

pub(crate) use self::tables::Tables;
use crate::{
    entry::{
        EntryBox, EntryRef, INLINE_MAX, Kind, Pinned,
        db::Db,
        key::Key,
        lru::Access,
        time::{Deadline, Expiry, Millis},
    },
    error::StorageError,
    keyspace::{pins::Pins, published::Published, tear_guard::Marks},
    memory::reclaim,
    observers::{channels::Channels, event::Event, ledger::Ledger},
    sync::work::WORK_MAX_BYTES,
    table::{
        Fill, Hint, Known, PREFETCH_MAX, Position, Roots, Table,
        hash::{Place, Router, ShardId},
    },
    types::{
        kinds::{self, has_expired},
        string::{StringMut, StringOrigin},
        thresholds::Thresholds,
    },
};

/// One partition of the keyspace.
///
/// The fields that every command on a key of database 0 reads or writes come first. With the executor's word
/// and its list before them, they fill one cache line, up to the root of the first table.
#[repr(C)]
pub struct Shard {
    /// The database of the command under way.
    db: Db,
    id: ShardId,
    /// Whether the command under way counts as a use of the keys it reads (CLIENT NO-TOUCH).
    touches: bool,
    /// See [`Shard::has_observers`].
    has_observers: bool,
    /// See [`Shard::is_only_logged`].
    is_only_logged: bool,
    /// Work on large values is refused, so that it is done without the hold.
    is_limited: bool,
    /// See [`Shard::is_saving`].
    is_saving: bool,
    /// A large value that must be saved before it is changed is not changed: see [`Shard::refuse_unsaved`].
    refuses_unsaved: bool,
    /// The slot at which the last value to be changed was found.
    hint: Hint,
    /// Look-ups since the last [`Shard::take_lookups`].
    lookups: Lookups,
    marks: Marks,
    /// The time of the command under way. It goes back only where [`Shard::start_at`] finds that the clock
    /// was set back.
    now: Millis,
    access: Arc<Access>,
    tables: Tables,
    ledger: Ledger,
    thresholds: Arc<Thresholds>,
    pinned: Pins,
    /// The channels that have subscribers. Most shards have none.
    channels: Option<Box<Channels>>,
}

/// With the words of its executor it fills two pairs of cache lines: a server has a thousand shards.
const _: () = assert!(size_of::<Shard>() <= 240);

/// The difference that the sampled times of threads may have. A shard that is ahead of a command by more asks
/// the clock.
const SKEW_MILLIS: u64 = 100;

/// Look-ups of keys for use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lookups {
    /// Look-ups that found the key.
    pub n_hits: u32,
    /// Look-ups that did not find the key.
    pub n_misses: u32,
}

impl Shard {
    pub(crate) fn new(
        id: ShardId,
        tables: Tables,
        published: Arc<Published>,
        access: Arc<Access>,
        thresholds: Arc<Thresholds>,
    ) -> Self {
        Self {
            id,
            tables,
            ledger: Ledger::new(published),
            marks: Marks::default(),
            has_observers: false,
            is_only_logged: false,
            is_limited: true,
            is_saving: false,
            refuses_unsaved: false,
            hint: Hint::default(),
            pinned: Pins::default(),
            channels: None,
            lookups: Lookups::default(),
            access,
            thresholds,
            db: Db::default(),
            now: Millis(0),
            touches: true,
        }
    }

    /// Makes a shard by itself, for work on shared values. No other thread sees it, and it refuses nothing as
    /// too much.
    pub(crate) fn apart(router: Router, access: Arc<Access>, thresholds: Arc<Thresholds>) -> Self {
        let published = Arc::new(Published::new());
        let roots = Roots::new(1, router, Fill::Roomy);
        let tables = Tables::new(&roots, &Known::many(1), 0);
        Self { is_limited: false, ..Self::new(ShardId::default(), tables, published, access, thresholds) }
    }

    /// Starts a command, or a transaction of several: all changes before it are whole. Returns the latest
    /// time that a command had here.
    #[inline]
    pub fn start(&mut self) -> Millis {
        self.marks.mend();
        self.touches = true;
        self.is_limited = true;
        self.refuses_unsaved = false;
        self.now
    }

    /// Starts a command at its time, and returns that time: the sampled time, or the shard's own if that is
    /// later.
    ///
    /// Samples of different threads differ by the length of a turn. If the shard is ahead by more, the sample
    /// is old or the clock was set back, and `clock` returns the current time. It is asked under the hold, so
    /// it is earlier than the shard's time only if it was set back. Then the shard's time goes back with it.
    #[inline(always)]
    pub fn start_at(&mut self, sampled: Millis, clock: impl FnOnce() -> Millis) -> Millis {
        self.start();
        if sampled >= self.now {
            self.now = sampled;
        } else if self.now.0 - sampled.0 > SKEW_MILLIS {
            self.heed(clock);
        }
        self.now
    }

    /// Reads the clock, for a command with an old sample.
    #[cold]
    #[inline(never)]
    fn heed(&mut self, clock: impl FnOnce() -> Millis) {
        let now = clock();
        let is_set_back = self.now.0.saturating_sub(now.0) > SKEW_MILLIS;
        self.now = if is_set_back { now } else { self.now.max(now) };
    }

    /// Makes the reads up to the next [`Shard::start`] not count as uses of their keys.
    pub fn leave_untouched(&mut self) {
        self.touches = false;
    }

    /// Goes on to database `db`. The command's time is `now`, or the shard's own if that is later.
    #[inline]
    pub fn begin(&mut self, db: Db, now: Millis) {
        self.db = db;
        self.now = self.now.max(now);
    }

    /// Goes on to database `db` at the command's time.
    #[inline(always)]
    pub fn go_to(&mut self, db: Db) {
        self.db = db;
    }

    /// Returns the number of look-ups since the last call.
    #[inline]
    pub fn take_lookups(&mut self) -> Lookups {
        std::mem::take(&mut self.lookups)
    }

    /// Returns the number of changes of keys and elements since the last call: Redis's `dirty`.
    #[inline]
    pub fn take_changed(&mut self) -> u32 {
        self.marks.take()
    }

    /// Counts `n` further changes: the one that was made stands for those of several elements.
    pub fn count_further(&mut self, n: usize) {
        self.marks.count_all(n);
    }

    /// The shard's number.
    pub fn id(&self) -> ShardId {
        self.id
    }

    /// The command's time.
    #[inline]
    pub fn now(&self) -> Millis {
        self.now
    }

    /// The command's database.
    #[inline]
    pub fn db(&self) -> Db {
        self.db
    }

    /// Whether the command under way has begun to change something.
    pub fn is_torn(&self) -> bool {
        self.marks.is_torn()
    }

    /// The number of keys of the database, with expired ones that are not removed yet.
    pub fn n_keys(&self) -> usize {
        self.tables.get(self.db).map_or(0, Table::len)
    }

    /// Returns the entry of a key of a database, expired or not, to judge how much work it is. Counts
    /// nothing, is no use of the key, and removes nothing. None if there is no such database.
    pub fn glance(&self, db: Db, key: &Key<'_>) -> Option<EntryRef<'_>> {
        self.tables.get(db)?.find(key.bytes, key.routed.place)
    }

    /// Whether some hash here has fields with deadlines.
    #[inline]
    pub fn has_field_deadlines(&self) -> bool {
        !self.ledger.fields.is_empty()
    }

    /// Returns a live entry for use: counts a hit or a miss and notes the access.
    #[inline]
    pub fn read(&mut self, key: &Key<'_>) -> Option<EntryRef<'_>> {
        self.read_here(key)
    }

    /// [`Shard::read`] without a call, for the most frequent reads.
    #[inline(always)]
    fn read_here(&mut self, key: &Key<'_>) -> Option<EntryRef<'_>> {
        let (now, touches) = (self.now, self.touches);
        let Some(entry) = self.live(key, Self::expire_unless_kept) else {
            self.lookups.n_misses += 1;
            self.ledger.missed(self.db, key.bytes);
            return None;
        };
        // SAFETY: nothing removes or moves the entry before this function returns it, and the result borrows
        // `self`.
        let entry = unsafe { entry.unbound() };
        self.lookups.n_hits += 1;
        if touches {
            self.access.note(entry, now);
        }
        Some(entry)
    }

    /// Notes the use of a key for any client; returns whether the key exists.
    pub fn touch(&mut self, key: &Key<'_>) -> bool {
        let touches = std::mem::replace(&mut self.touches, true);
        let is_there = self.read(key).is_some();
        self.touches = touches;
        is_there
    }

    /// Returns a live entry: counts a hit or a miss, but is no use of the key.
    #[inline]
    pub fn look(&mut self, key: &Key<'_>) -> Option<EntryRef<'_>> {
        let touches = std::mem::replace(&mut self.touches, false);
        // SAFETY: nothing changes or removes the entry before this function returns it, and the result
        // borrows `self`.
        let entry = self.read(key).map(|entry| unsafe { entry.unbound() });
        self.touches = touches;
        entry
    }

    /// [`Shard::look`] without a notification of a miss.
    pub fn look_quietly(&mut self, key: &Key<'_>) -> Option<EntryRef<'_>> {
        // SAFETY: nothing changes or removes the entry before this function returns it, and the result
        // borrows `self`.
        let entry = self.live(key, Self::expire_unless_kept).map(|entry| unsafe { entry.unbound() });
        let counted = if entry.is_some() { &mut self.lookups.n_hits } else { &mut self.lookups.n_misses };
        *counted += 1;
        entry
    }

    /// Returns a live entry to describe it: counts nothing, and is no use of the key.
    pub fn inspect(&mut self, key: &Key<'_>) -> Option<EntryRef<'_>> {
        self.live(key, Self::expire_unless_kept)
    }

    /// Returns an entry to describe it, although its deadline may have passed.
    pub fn inspect_stored(&mut self, key: &Key<'_>) -> Option<EntryRef<'_>> {
        self.tables.get(self.db)?.find(key.bytes, key.routed.place)
    }

    /// Returns a live entry, as a first step of a write or for a test. Counts nothing and is no use of the
    /// key. Removes an expired entry.
    #[inline]
    pub fn peek(&mut self, key: &Key<'_>) -> Option<EntryRef<'_>> {
        self.live(key, Self::expire)
    }

    /// Returns a live entry; `expire` decides about an expired one.
    #[inline(always)]
    fn live(&mut self, key: &Key<'_>, expire: impl FnOnce(&mut Self, &Key<'_>)) -> Option<EntryRef<'_>> {
        let entry = self.tables.get(self.db)?.find(key.bytes, key.routed.place)?;
        if has_expired(entry, self.now) {
            expire(self, key);
            return None;
        }
        // SAFETY: nothing has changed since the entry was found, and the result borrows `self`, so nothing
        // will while it is used. (The borrow checker would keep `self` borrowed in the branch above as well.)
        Some(unsafe { entry.unbound() })
    }

    /// Fetches the memory that look-ups of some members touch, so that their latencies overlap. Does so if
    /// the key holds a large set, hash or sorted set. More than [`PREFETCH_MAX`] are of no use. Has no other
    /// effect, of whatever type the key's value is.
    pub fn prefetch_members<'m>(&mut self, key: &Key<'_>, members: impl Iterator<Item = &'m [u8]>) {
        if let Some(large) = self.member_table(key) {
            let places: SmallVec<[Place; PREFETCH_MAX]> =
                members.take(PREFETCH_MAX).map(|member| large.router().place(member)).collect();
            large.prefetch(&places);
        }
    }

    /// The same for members that are drawn by random numbers.
    pub fn prefetch_draws(&mut self, key: &Key<'_>, randoms: impl Iterator<Item = u64>) {
        if let Some(large) = self.member_table(key) {
            let randoms: SmallVec<[u64; PREFETCH_MAX]> = randoms.take(PREFETCH_MAX).collect();
            large.prefetch_samples(&randoms);
        }
    }

    /// The table of a large value's members.
    fn member_table(&mut self, key: &Key<'_>) -> Option<&Table> {
        let table = self.tables.get(self.db)?;
        let entry = table.find_near(key.bytes, key.routed.place, &mut self.hint)?;
        kinds::member_table(entry)
    }

    /// Returns a live string for use.
    ///
    /// # Errors
    /// If the key holds something else.
    #[inline]
    pub fn string(&mut self, key: &Key<'_>) -> Result<Option<&[u8]>, StorageError> {
        self.read_here(key).map(string_bytes).transpose()
    }

    /// Returns a live string to use as a whole, such as to copy it into a reply. A very long one is refused
    /// under a hold, before the command has had any effect. Then the command runs on [pinned](Shard::pin)
    /// values.
    ///
    /// # Errors
    /// If the key holds something else, or if the string is very long and the work is limited.
    #[inline]
    pub fn whole_string(&mut self, key: &Key<'_>) -> Result<Option<&[u8]>, StorageError> {
        let Some(entry) = self.read_here(key) else { return Ok(None) };
        // SAFETY: nothing changes or removes the entry before this function returns its bytes, and the result
        // borrows `self`.
        let bytes = string_bytes(unsafe { entry.unbound() })?;
        if bytes.len() > WORK_MAX_BYTES && self.is_limited {
            cold_path();
            // The command looks it up once more.
            self.lookups.n_hits -= 1;
            return Err(StorageError::TooMuch);
        }
        Ok(Some(bytes))
    }

    /// The bytes of a value that may be copied into a reply: without bound if the work is not limited.
    #[inline]
    pub fn copied_max_bytes(&self) -> usize {
        if self.is_limited { WORK_MAX_BYTES } else { usize::MAX }
    }

    /// Refuses to read a value that has been looked up, as [`Shard::whole_string`] does.
    #[cold]
    pub fn refuse_read(&mut self) -> StorageError {
        // The command looks it up once more.
        self.lookups.n_hits -= 1;
        StorageError::TooMuch
    }

    /// Takes back the look-up of a string: the command that made it is refused, and looks the key up once
    /// more. A look-up that [`whole_string`](Shard::whole_string) refused is taken back already.
    #[cold]
    pub fn take_back_lookup(&mut self, key: &Key<'_>) {
        let max = self.copied_max_bytes();
        match self.peek(key).map(|entry| string_bytes(entry).is_ok_and(|bytes| bytes.len() > max)) {
            Some(false) => self.lookups.n_hits -= 1,
            Some(true) => {}
            None => {
                self.lookups.n_misses -= 1;
                self.ledger.forget_misses(Some((self.db, key.bytes)));
            }
        }
    }

    /// Refuses to copy more than [`WORK_MAX_BYTES`] under a hold.
    ///
    /// # Errors
    /// If it is too much.
    pub fn expect_bytes(&self, n_bytes: usize) -> Result<(), StorageError> {
        if n_bytes > WORK_MAX_BYTES && self.is_limited { Err(StorageError::TooMuch) } else { Ok(()) }
    }

    /// Returns a live string for use while this shard and others go on. A short one is copied.
    ///
    /// # Errors
    /// If the key holds something else.
    pub fn pinned_string(&mut self, key: &Key<'_>) -> Result<Option<Pinned>, StorageError> {
        let Some(entry) = self.read(key) else { return Ok(None) };
        let bytes = string_bytes(entry)?;
        Ok(Some(entry.pin().unwrap_or_else(|| Pinned::from_slice(bytes))))
    }

    /// Returns a live string for a change.
    ///
    /// # Errors
    /// If the key holds something else.
    #[inline]
    pub fn string_mut(&mut self, key: &Key<'_>, event: Event) -> Result<Option<StringMut<'_>>, StorageError> {
        self.value_mut(key, event)
    }

    /// Returns a live string for a change; makes an empty one if the key is missing.
    ///
    /// # Errors
    /// If the key holds something else.
    pub fn string_or_create(&mut self, key: &Key<'_>, event: Event) -> Result<StringMut<'_>, StorageError> {
        self.value_or_create(key, event)
    }

    /// Writes a string, whatever the key held.
    #[inline]
    pub fn put_string(&mut self, key: &Key<'_>, value: &[u8], expiry: Expiry, event: Event) {
        self.marks.tear();
        let now = self.now;
        let table = self.tables.get_mut(self.db);
        let Some(mut slot) = table.and_then(|table| table.find_mut(key.bytes, key.routed.place)) else {
            let deadline = match expiry {
                Expiry::At(deadline) => Some(deadline),
                Expiry::Keep | Expiry::Clear => None,
            };
            let entry = EntryBox::with_bytes(
                Kind::String,
                StringOrigin::Written.encoding(),
                key.bytes,
                value,
                deadline,
            );
            self.insert(key, entry);
            self.announce_new(key);
            self.changed(key, event);
            return;
        };
        let place = key.routed.place;
        if self.ledger.is_observed {
            if has_expired(slot.entry(), now) {
                self.expire_before_write(key);
                return self.put_string(key, value, expiry, event);
            }
            self.ledger.overwritten(self.db, key.bytes, slot.entry().kind(), Kind::String);
            if is_short_string(slot.entry()) {
                self.ledger.before_change(self.db, place, slot.entry(), now);
            }
        }
        if expiry == Expiry::Clear
            && !slot.entry().has_deadline()
            && slot.try_overwrite(StringOrigin::Written.encoding(), value)
        {
            if self.touches {
                self.access.note_change(slot.into_entry(), now);
            }
            self.changed(key, event);
            return;
        }
        let old = slot.entry();
        let deadline = match expiry {
            Expiry::At(deadline) => Some(deadline),
            Expiry::Clear => None,
            Expiry::Keep => old.deadline().filter(|_| !has_expired(old, now)),
        };
        if is_short_string(old) {
            slot.modify(|entry| {
                entry.set_encoding(StringOrigin::Written.encoding());
                entry.set_bytes(value);
                if entry.as_ref().deadline() != deadline {
                    entry.set_deadline(deadline);
                }
            });
        } else {
            let entry = EntryBox::with_bytes(
                Kind::String,
                StringOrigin::Written.encoding(),
                key.bytes,
                value,
                deadline,
            );
            let old = slot.replace(entry);
            let fields = kinds::next_deadline(old.as_ref());
            self.ledger.fields_moved(self.db, place, fields, None, || slot.counts());
            if let Some(old) = self.ledger.removed(self.db, place, old, now) {
                reclaim::free(old);
            }
        }
        self.ledger.after_change(self.db, place, slot.entry());
        if self.touches {
            self.access.note_change(slot.into_entry(), now);
        }
        self.changed(key, event);
    }

    /// Writes a string that was made elsewhere, whatever the key held. A long one is not copied. The key has
    /// no deadline afterwards.
    pub fn put_pinned_string(&mut self, key: &Key<'_>, value: Pinned, event: Event) {
        let encoding = StringOrigin::Edited.encoding();
        let entry = if value.len() > INLINE_MAX {
            EntryBox::with_pinned(Kind::String, encoding, key.bytes, value, None)
        } else {
            EntryBox::with_bytes(Kind::String, encoding, key.bytes, &value, None)
        };
        self.access.begin(entry.as_ref(), self.now);
        self.put(key, entry, event);
    }

    /// Puts an entry in, whatever the key held. The entry's key is `key`, and it brings its deadline.
    pub fn put(&mut self, key: &Key<'_>, entry: EntryBox, event: Event) {
        let kind = entry.as_ref().kind();
        match self.replace(key, entry) {
            None => self.announce_new(key),
            Some(old) => self.announce_overwritten(key, old, kind),
        }
        self.changed(key, event);
    }

    /// Like [`Shard::put`], but the caller [announces](Shard::announce_new) a new key itself.
    ///
    /// As in Redis, the event of an overwritten value comes last.
    pub fn put_announced(&mut self, key: &Key<'_>, entry: EntryBox, event: Event) {
        let kind = entry.as_ref().kind();
        let old = self.replace(key, entry);
        self.changed(key, event);
        if let Some(old) = old {
            self.announce_overwritten(key, old, kind);
        }
    }

    /// Removes an expired key before it is written over, so that observers see the expiry first.
    #[cold]
    fn expire_before_write(&mut self, key: &Key<'_>) {
        if self.peek(key).is_none() {
            // Where expired keys are kept, it may still be there.
            if let Some(expired) = self.remove_entry(key) {
                reclaim::free(expired);
            }
        }
    }

    /// Puts an entry in; returns the type of the one that the key held.
    fn replace(&mut self, key: &Key<'_>, entry: EntryBox) -> Option<Kind> {
        if self.ledger.is_observed {
            self.expire_before_write(key);
        }
        self.marks.tear();
        let table = self.tables.get_mut(self.db);
        let Some(mut slot) = table.and_then(|table| table.find_mut(key.bytes, key.routed.place)) else {
            self.insert(key, entry);
            return None;
        };
        let new_fields = kinds::next_deadline(entry.as_ref());
        let old = slot.replace(entry);
        let old_fields = kinds::next_deadline(old.as_ref());
        let old_kind = old.as_ref().kind();
        let entry = slot.into_entry();
        self.access.begin(entry, self.now);
        self.ledger.after_change(self.db, key.routed.place, entry);
        self.ledger
            .fields_moved(self.db, key.routed.place, old_fields, new_fields, || self.tables.counts(self.db));
        if let Some(old) = self.ledger.removed(self.db, key.routed.place, old, self.now) {
            reclaim::free(old);
        }
        Some(old_kind)
    }

    /// Announces that a value has replaced another.
    fn announce_overwritten(&mut self, key: &Key<'_>, old: Kind, new: Kind) {
        if self.ledger.is_observed {
            self.ledger.overwritten(self.db, key.bytes, old, new);
        }
    }

    /// Like [`Shard::put`], but keeps the use of the key that the entry has noted.
    pub fn put_as_used(&mut self, key: &Key<'_>, entry: EntryBox, event: Event) {
        let clock = entry.as_ref().access_clock();
        self.put(key, entry, event);
        if let Some(entry) = self.peek(key) {
            entry.set_access_clock(clock);
        }
    }

    /// Puts an entry in under a key that is not there.
    fn insert(&mut self, key: &Key<'_>, entry: EntryBox) {
        self.marks.tear();
        let now = self.now;
        let table = self.tables.or_make(self.db, self.is_saving);
        let fields = kinds::next_deadline(entry.as_ref());
        let entry = table.insert(entry, key.routed.place).into_entry();
        self.access.begin(entry, now);
        self.ledger.after_change(self.db, key.routed.place, entry);
        self.ledger.fields_moved(self.db, key.routed.place, None, fields, || self.tables.counts(self.db));
    }

    /// Takes a live entry out, to put it in elsewhere.
    pub fn take(&mut self, key: &Key<'_>, event: Event) -> Option<EntryBox> {
        let place = key.routed.place;
        // SAFETY: nothing changes or removes the entry before it is saved.
        let entry = unsafe { self.peek(key)?.unbound() };
        self.ledger.before_change(self.db, place, entry, self.now);
        let entry = self.remove_entry(key)?;
        if self.ledger.is_observed {
            // It may come back under another key, for which there is nothing to save.
            entry.as_ref().set_in_snapshot(false);
        }
        self.changed(key, event);
        Some(entry)
    }

    /// Deletes a live key; returns whether there was one.
    pub fn remove(&mut self, key: &Key<'_>, event: Event) -> bool {
        if self.peek(key).is_none() {
            return false;
        }
        let Some(entry) = self.remove_entry(key) else { return false };
        if let Some(old) = self.ledger.removed(self.db, key.routed.place, entry, self.now) {
            reclaim::free(old);
        }
        self.changed(key, event);
        true
    }

    /// Returns a copy of a live entry, under another key.
    pub fn copy(&mut self, key: &Key<'_>, new_key: &[u8]) -> Option<EntryBox> {
        self.peek(key).map(|entry| entry.duplicate(new_key))
    }

    /// The sizes up to which values are packed.
    pub fn thresholds(&self) -> &Thresholds {
        &self.thresholds
    }

    /// Sets or removes the deadline of a live key; returns whether there is such a key.
    pub fn set_deadline(&mut self, key: &Key<'_>, deadline: Option<Deadline>, event: Event) -> bool {
        if self.peek(key).is_none() {
            return false;
        }
        self.marks.tear();
        let table = self.tables.get_mut(self.db);
        let Some(mut slot) = table.and_then(|table| table.find_mut(key.bytes, key.routed.place)) else {
            return false;
        };
        self.ledger.before_change(self.db, key.routed.place, slot.entry(), self.now);
        slot.set_deadline(deadline);
        self.ledger.after_change(self.db, key.routed.place, slot.entry());
        self.changed(key, event);
        true
    }

    /// Announces a new key. Called by commands that announce another event before they
    /// [put](Shard::put_announced) the key, or for which it is new although it replaces another.
    #[inline]
    pub fn announce_new(&mut self, key: &Key<'_>) {
        if self.ledger.is_observed {
            self.ledger.announce_quietly(self.db, key.bytes, Event::New);
        }
    }

    /// Announces a further event of a write that has been announced.
    #[inline]
    pub fn follow_up(&mut self, key: &Key<'_>, event: Event) {
        if self.ledger.is_observed {
            self.ledger.announce_quietly(self.db, key.bytes, event);
        }
    }

    /// A random entry of the database, each nearly as likely as any other. It may have expired.
    pub fn sample(&self, random: u64) -> Option<EntryRef<'_>> {
        self.tables.get(self.db)?.sample(random)
    }

    /// Visits the database's entries from a position on, through at most `n_buckets` buckets. Returns the
    /// position to go on from, or `None` at the end. Visits expired entries, too.
    pub fn scan(
        &self,
        from: Position,
        n_buckets: usize,
        visit: &mut dyn FnMut(EntryRef<'_>),
    ) -> Option<Position> {
        self.tables.get(self.db)?.scan(from, n_buckets, visit)
    }

    /// Empties the command's database. Memory is freed later, outside the hold.
    pub fn flush(&mut self) {
        let (watched, awaited) = (self.watched_in(&[self.db]), self.awaited_in(&[self.db]));
        self.marks.tear();
        let Some(table) = self.tables.get_mut(self.db).filter(|table| !table.is_empty()) else { return };
        let bytes = table.allocated_bytes();
        self.marks.count_all(table.len());
        let (entries, router) = (table.detach(), *table.router());
        let entries = match &mut self.ledger.saving {
            Some(saving) => saving.keep_flushed(self.db, entries, router),
            None => Some(entries),
        };
        if let Some(entries) = entries {
            reclaim::free_table(entries, bytes);
        }
        let flushed = self.db;
        self.ledger.fields_changed_dbs(|db| (db != flushed).then_some(db));
        self.move_stamps(&watched);
        self.ledger.announce_database(self.db, Event::Flushed, &awaited);
    }

    /// Empties all databases.
    pub fn flush_all(&mut self) {
        self.ledger.forget_fields();
        let db = std::mem::replace(&mut self.db, Db(0));
        self.flush();
        self.db = db;
        if self.tables.len() == 1 {
            return;
        }
        let (watched, awaited) = (self.watched_anywhere(), self.awaited_anywhere());
        self.marks.tear();
        let router = *self.tables.router();
        let mut others = self.tables.take_others();
        let (n_keys, bytes) = others.forget_bytes();
        self.marks.count_all(n_keys);
        match &mut self.ledger.saving {
            Some(saving) => {
                saving.go_back(1);
                while let Some((number, entries)) = others.detach_one() {
                    if let Some(entries) = saving.keep_flushed(Db(number), entries, router) {
                        reclaim::free_table(entries, 0);
                    }
                }
            }
            None => reclaim::free_tables(others, bytes),
        }
        self.move_stamps(&watched);
        if n_keys > 0 {
            self.ledger.announce_database(Db(0), Event::Flushed, &awaited);
        }
    }

    /// Swaps two databases.
    pub fn swap(&mut self, a: Db, b: Db) {
        if a == b {
            return;
        }
        self.remove_what_comes_expired(a, b);
        self.remove_what_comes_expired(b, a);
        // The keys whose value is exchanged for another, or for none.
        let (watched, awaited) = (self.watched_in(&[a, b]), self.awaited_in(&[a, b]));
        self.marks.tear();
        self.tables.swap(a, b, self.is_saving);
        if let Some(saving) = &mut self.ledger.saving {
            let places = [a, b].map(|db| self.tables.place_of(db));
            saving.swap(a, b, places.into_iter().flatten().min());
        }
        // One change for all shards.
        if self.id == ShardId(0) {
            self.marks.count();
        }
        self.ledger.fields_changed_dbs(|db| match db {
            _ if db == a => Some(b),
            _ if db == b => Some(a),
            _ => Some(db),
        });
        self.move_stamps(&watched);
        let (of_a, of_b): (Vec<_>, Vec<_>) = awaited.into_iter().partition(|(db, _)| *db == a);
        self.ledger.announce_database(a, Event::Swapped, &of_a);
        self.ledger.announce_database(b, Event::Swapped, &of_b);
    }

    /// Makes nothing be [refused](Shard::whole_string) as too much, up to the next [`Shard::start`]. In the
    /// middle of a transaction there is no other way.
    pub fn lift_limit(&mut self) {
        self.is_limited = false;
    }

    fn remove_entry(&mut self, key: &Key<'_>) -> Option<EntryBox> {
        let slot = self.tables.get_mut(self.db)?.find_mut(key.bytes, key.routed.place)?;
        self.marks.tear();
        let entry = slot.remove();
        let fields = kinds::next_deadline(entry.as_ref());
        self.ledger.fields_moved(self.db, key.routed.place, fields, None, || self.tables.counts(self.db));
        Some(entry)
    }

    #[inline(always)]
    fn changed(&mut self, key: &Key<'_>, event: Event) {
        self.marks.count();
        self.ledger.changed(self.db, key.bytes, event);
    }
}

/// Whether an entry is a string that is written over in place, and not replaced by another entry.
#[inline]
fn is_short_string(entry: EntryRef<'_>) -> bool {
    entry.kind() == Kind::String && entry.allocated_bytes() < reclaim::LARGE_BYTES
}

/// A string entry's bytes.
#[inline]
fn string_bytes(entry: EntryRef<'_>) -> Result<&[u8], StorageError> {
    match entry.kind() {
        Kind::String => Ok(entry.bytes().expect("a string is bytes")),
        _ => Err(StorageError::WrongType),
    }
}

#[cfg(test)]
mod tests;
