//! Observers of a shard: clients that watch or have read its keys, waiting nodes, hearers, and channel
//! subscribers.

use std::sync::{Arc, atomic::AtomicBool};

use super::Shard;
use crate::{
    entry::{
        EntryRef,
        db::Db,
        key::{Key, WatchedKey},
    },
    observers::{
        channels::{Audience, ChannelKind},
        ledger::{Change, Hearer},
        read_tracking::{Reader, Remembered},
        record,
        stamps::Stamp,
        waiters::{Awaits, Holds, Reach, Ticket, Turns, Waiter, Waiters},
    },
    types::{kinds::has_expired, list::ListRef, stream::StreamRef},
};

impl Shard {
    /// Begins to watch a key for a client, whose flag is set when the key is written. An expired key is
    /// removed first unless expired keys are kept, so that its later removal is no change.
    pub fn watch(&mut self, key: &Key<'_>, written: &Arc<AtomicBool>) -> Stamp {
        self.remove_if_expired(key);
        self.expire_fields_of(key);
        let stamp = self.ledger.stamps.watch(self.db, key.bytes, written);
        self.ledger.watches_changed();
        stamp
    }

    /// Ends the watch of a key for a client.
    pub fn unwatch(&mut self, key: &WatchedKey, written: &Arc<AtomicBool>) {
        self.ledger.stamps.unwatch(key, written);
        self.ledger.watches_changed();
    }

    /// Whether a watched key of the command's database has been written, or has expired, since it had this
    /// stamp.
    pub fn is_written_since(&mut self, key: &WatchedKey, stamp: Stamp) -> bool {
        self.remove_if_expired(&key.key());
        self.expire_fields_of(&key.key());
        self.ledger.stamps.of(key) != stamp
    }

    /// Whether a key has expired, and is kept.
    pub fn is_kept_expired(&self, key: &Key<'_>) -> bool {
        let table = self.tables.get(self.db);
        let entry = table.and_then(|table| table.find(key.bytes, key.routed.place));
        entry.is_some_and(|entry| has_expired(entry, self.now))
    }

    /// The watched keys that exist in any of these databases, under each of them. When those are flushed or
    /// swapped, the keys have another value, or none.
    pub(super) fn watched_in(&self, dbs: &[Db]) -> Vec<(Db, Box<[u8]>)> {
        match self.ledger.stamps.is_empty() {
            true => Vec::new(),
            false => self.existing_in(dbs, |db| self.ledger.stamps.keys_in(db)),
        }
    }

    /// Like [`watched_in`](Self::watched_in), for keys for which nodes wait.
    pub(super) fn awaited_in(&self, dbs: &[Db]) -> Vec<(Db, Box<[u8]>)> {
        match self.ledger.waiters.is_empty() {
            true => Vec::new(),
            false => self.existing_in(dbs, |db| self.ledger.waiters.keys_in(db)),
        }
    }

    /// The watched keys that exist, in all databases.
    pub(super) fn watched_anywhere(&self) -> Vec<(Db, Box<[u8]>)> {
        self.ledger.stamps.keys().filter(|(db, key)| self.exists_in(*db, key)).cloned().collect()
    }

    /// Like [`watched_anywhere`](Self::watched_anywhere), for keys for which nodes wait.
    pub(super) fn awaited_anywhere(&self) -> Vec<(Db, Box<[u8]>)> {
        self.ledger.waiters.keys().filter(|(db, key)| self.exists_in(*db, key)).collect()
    }

    fn exists_in(&self, db: Db, key: &[u8]) -> bool {
        self.tables.get(db).is_some_and(|table| table.find(key, table.router().place(key)).is_some())
    }

    fn existing_in(&self, dbs: &[Db], keys_in: impl Fn(Db) -> Vec<Box<[u8]>>) -> Vec<(Db, Box<[u8]>)> {
        let exists = |key: &[u8]| dbs.iter().any(|&db| self.exists_in(db, key));
        dbs.iter()
            .flat_map(|&db| keys_in(db).into_iter().map(move |key| (db, key)))
            .filter(|(_, key)| exists(key))
            .collect()
    }

    /// Removes expired keys of another database that would come to keys that are watched here. That is no
    /// change, and would look like one if they were removed later.
    pub(super) fn remove_what_comes_expired(&mut self, watched: Db, from: Db) {
        let db = self.db;
        self.begin(from, self.now);
        for bytes in self.ledger.stamps.keys_in(watched) {
            let routed = self.tables.router().route(&bytes);
            self.peek(&Key { bytes: &bytes, routed });
        }
        self.begin(db, self.now);
    }

    pub(super) fn move_stamps(&mut self, keys: &[(Db, Box<[u8]>)]) {
        for (db, key) in keys {
            self.ledger.stamps.moved(*db, key);
        }
    }

    /// Whether there are observers to ask before a command or to tell after it. These are waiting nodes,
    /// pins, tracking clients, hearers, or changes that have not been reported. Then commands take the path
    /// that does so before it releases the shard.
    #[inline(always)]
    pub fn has_observers(&self) -> bool {
        self.has_observers
    }

    /// Whether changes are recorded for the log, and there are no other [observers](Shard::has_observers).
    #[inline]
    pub fn is_only_logged(&self) -> bool {
        self.is_only_logged
    }

    /// Whether nodes wait for keys here, or keys are pinned: the [observers](Shard::has_observers) that must
    /// be asked before a command.
    pub fn has_lines(&self) -> bool {
        !self.ledger.waiters.is_empty() || !self.pinned.is_empty()
    }

    /// Updates the observers' flags after a waiter, pin, reader or hearer has come or gone, or the sink was
    /// emptied.
    pub(super) fn update_observers(&mut self) {
        self.ledger.observe();
        let has_others = self.has_lines()
            || self.ledger.tracked.is_some()
            || self.ledger.hears_beside(record::LOG)
            || self.ledger.has_changes();
        self.is_only_logged = !has_others && self.ledger.is_logged();
        self.has_observers = has_others || self.is_only_logged;
    }

    /// Puts a node into a key's line, in the command's database.
    pub fn enter_line(&mut self, key: &[u8], waits: (Awaits, Reach), ticket: Ticket, waiter: Waiter) {
        self.ledger.waiters.enter(self.db, key, waits, ticket, waiter);
        self.update_observers();
    }

    /// Takes a node out of a key's line, in the command's database, if it stands there.
    pub fn leave_line(&mut self, key: &[u8], awaits: &Awaits, ticket: Ticket) {
        self.ledger.waiters.leave(self.db, key, awaits, ticket);
        self.update_observers();
    }

    /// Whether nodes wait until a key of a database is no longer pinned.
    pub fn is_awaited_unpinned(&self, db: Db, key: &[u8]) -> bool {
        self.ledger.waiters.is_awaited_unpinned(db, key)
    }

    /// The waiters in a key's line, in the command's database, that the key can serve with its value.
    pub fn waiters_turns(&mut self, key: &Key<'_>) -> Turns {
        self.with_holds(key, |waiters, holds, db| waiters.turns(db, key.bytes, holds))
    }

    /// The next of these waiters that the key can still serve.
    pub fn next_waiter(&mut self, key: &Key<'_>, turns: &mut Turns) -> Option<Waiter> {
        self.with_holds(key, |waiters, holds, db| waiters.next(db, key.bytes, holds, turns))
    }

    /// Calls `look` with the state of a key of the command's database, for the nodes that wait for it.
    /// An expired key does not count.
    fn with_holds<R>(&mut self, key: &Key<'_>, look: impl FnOnce(&Waiters, &Holds<'_>, Db) -> R) -> R {
        self.remove_if_expired(key);
        let now = self.now;
        let entry = self.tables.get(self.db).and_then(|table| table.find(key.bytes, key.routed.place));
        let entry = entry.filter(|entry| !has_expired(*entry, now));
        let stream =
            entry.and_then(|entry| StreamRef::of(entry, self.now).ok()).map(|stream| stream.stream());
        let list = entry.and_then(|entry| ListRef::of(entry, self.now).ok());
        let group = |name: &[u8]| stream.and_then(|stream| stream.group(name));
        let holds = Holds {
            kind: entry.map(|entry| entry.kind()),
            n_elements: &|| list.map_or(0, ListRef::len),
            last: stream.and_then(|stream| stream.entries().last_live_id()),
            delivered: &|name| group(name).map(|group| group.last_delivered_id()),
            has_handed_back: &|name| stream.is_some_and(|stream| stream.has_handed_back(name)),
            is_pinned: self.is_pinned(self.db, key.bytes),
        };
        look(&self.ledger.waiters, &holds, self.db)
    }

    /// Removes an expired key, unless these are kept: a replica's clients must not change its data.
    fn remove_if_expired(&mut self, key: &Key<'_>) {
        let _: Option<EntryRef<'_>> = self.inspect(key);
    }

    /// The nodes that wait for a key in any database and write a further one when they are served. In each
    /// database they are in the order of their arrival.
    pub fn reaching_waiters(&self, key: &[u8]) -> impl Iterator<Item = &Waiter> {
        self.ledger.waiters.reaching(key)
    }

    /// Records that a client has read a key: it is told of the next change.
    pub fn track(&mut self, key: &[u8], reader: Reader) -> Remembered {
        let remembered = self.ledger.tracked.get_or_insert_default().remember(key, reader);
        self.update_observers();
        remembered
    }

    /// Forgets all readers without a notification; returns how much that was.
    pub fn forget_readers(&mut self) -> Remembered {
        let forgotten = self.ledger.tracked.as_mut().map(|tracked| tracked.forget_readers());
        self.update_observers();
        forgotten.unwrap_or_default()
    }

    /// Forgets up to `n_max` keys that a client has read, without a notification. Returns how much that was,
    /// and whether it was all.
    pub fn forget_reader(&mut self, reader: Reader, n_max: usize) -> (Remembered, bool) {
        let Some(tracked) = &mut self.ledger.tracked else { return (Remembered::default(), true) };
        let forgotten = tracked.forget_reader(reader, n_max);
        self.update_observers();
        forgotten
    }

    /// Forgets the readers of some key, as if it had changed; returns whether there was one.
    pub fn evict_readers(&mut self) -> bool {
        let is_evicted = self.ledger.forget_some_key();
        self.update_observers();
        is_evicted
    }

    /// Begins or ends the reports of every change on this shard to a hearer.
    pub fn hear_all(&mut self, hearer: Hearer, hears: bool) {
        self.ledger.hear_all(hearer, hears);
        self.update_observers();
    }

    /// Whether changes on this shard are recorded for the log.
    pub fn is_logged(&self) -> bool {
        self.ledger.is_logged()
    }

    /// Records the effect of the command under way on the selected database, in other words than its own.
    /// Does so for the log, if changes are recorded.
    pub fn log(&self, words: &[&[u8]]) {
        if self.is_logged() {
            record::add(self.db, words.iter().copied());
        }
    }

    /// Whether a hearer is told of every change on this shard.
    pub fn is_heard_by(&self, hearer: Hearer) -> bool {
        self.ledger.is_heard_by(hearer)
    }

    /// Sets the client whose command changes keys from here on; 0 for none.
    #[inline]
    pub fn set_author(&mut self, client: u64) {
        self.ledger.author = client;
    }

    /// Whether there are changes that have not been reported.
    #[inline(always)]
    pub fn has_changes(&self) -> bool {
        self.ledger.has_changes()
    }

    /// Appends the changes since the last call, in order.
    pub fn take_changes(&mut self, to: &mut Vec<Change>) {
        if self.ledger.has_changes() {
            self.ledger.take_changes(to);
            self.update_observers();
        }
    }

    /// Reports a look-up that found no key, on a shard apart.
    pub fn tell_miss(&mut self, db: Db, key: &[u8]) {
        self.ledger.missed(db, key);
        self.update_observers();
    }

    /// Forgets the missed look-ups of a command that is given up and repeats them later.
    pub fn forget_misses(&mut self) {
        if self.ledger.has_changes() {
            self.ledger.forget_misses(None);
            self.update_observers();
        }
    }

    /// Appends the changes that have not been reported, in order, at a point where waiting nodes cannot be
    /// served yet. The keys whose nodes must wake are kept for the [end](Self::take_changes) of this unit, or
    /// the next.
    pub fn take_untold(&mut self, to: &mut Vec<Change>) {
        self.ledger.take_untold(to);
        self.update_observers();
    }

    /// Adds a subscriber of a listener's to a channel; returns whether it is the channel's first.
    pub fn subscribe(&mut self, kind: ChannelKind, channel: &[u8], listener: usize) -> bool {
        self.channels.get_or_insert_default().subscribe(kind, channel, listener)
    }

    /// Removes a subscriber of a listener's from a channel; returns whether it was the channel's last.
    pub fn unsubscribe(&mut self, kind: ChannelKind, channel: &[u8], listener: usize) -> bool {
        let Some(channels) = &mut self.channels else { return false };
        let was_last = channels.unsubscribe(kind, channel, listener);
        if channels.is_empty() {
            self.channels = None;
        }
        was_last
    }

    /// The subscribers of a channel, if there are any.
    pub fn audience(&self, kind: ChannelKind, channel: &[u8]) -> Option<&Audience> {
        self.channels.as_ref()?.audience(kind, channel)
    }

    /// The channels that have subscribers, in no order.
    pub fn channels(&self, kind: ChannelKind) -> impl Iterator<Item = &[u8]> {
        self.channels.iter().flat_map(move |channels| channels.names(kind))
    }
}
