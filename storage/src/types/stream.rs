//! Streams: entries that are only added at the end, and groups of consumers that share them.
//!
//! Entries lie in [nodes](node::PackedNode), packed as Redis packs them, in a tree by the identity of each
//! node's first entry. A node takes entries up to `stream-node-max-bytes` and `stream-node-max-entries`. A
//! deleted entry only gets a flag, and its node goes with its last entry. Redis calls this tree the rax.
//!
//! A stream is more than its entries: without entries, and even without groups, the key stays, since the last
//! identity that was given out must not be given out again.

mod entries;
mod group;
mod groups;
pub(crate) mod id;
pub mod node;

use crate::{
    entry::{Encoding, EntryBox, EntryRef, Kind, Object, time::Millis},
    memory::teardown::Rubble,
    observers::event::Event,
    types::value::{ValueMut, ValueRef, ValueType},
};

pub(crate) use self::groups::Groups;
pub use self::{
    entries::{AddError, Entries, NewId, Precision, Range, RangeBackwards, References, Trim, TrimTo},
    group::{Consumer, Group, IdleEntries, IdleEntry, PendingEntry},
    groups::{Acknowledgement, AutoClaimed, Claim, Claimable, Counting, Delivery, HandBack, HandBackMode},
    id::StreamId,
    node::{Entry, Fields},
};

/// The type of streams.
pub struct StreamType;

/// A live stream of a shard, for reading.
pub type StreamRef<'a> = ValueRef<'a, StreamType>;

/// A live stream of a shard, for changes in place.
pub type StreamMut<'a> = ValueMut<'a, StreamType>;

impl ValueType for StreamType {
    const KIND: Kind = Kind::Stream;

    fn empty(key: &[u8]) -> EntryBox {
        EntryBox::with_object(Kind::Stream, Encoding::default(), key, Stream::default(), None)
    }

    /// A stream without entries is a value like any other.
    fn is_empty(_: EntryRef<'_>) -> bool {
        false
    }
}

/// How Redis would store a stream, in OBJECT ENCODING's words.
pub(crate) fn encoding_name(_: EntryRef<'_>) -> &'static str {
    "stream"
}

/// A stream.
#[derive(Clone, Default)]
pub struct Stream {
    entries: Entries,
    groups: Groups,
}

impl Object for Stream {
    fn allocated_bytes(&self) -> usize {
        self.entries.allocated_bytes() + self.groups.allocated_bytes()
    }

    fn duplicate(&self) -> Self {
        self.clone()
    }

    fn demolish(self) -> Box<dyn Rubble> {
        Box::new(vec![self.groups.demolish(), self.entries.demolish()])
    }
}

/// The result of the deletion of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deletion {
    /// There is no such entry.
    Missing,
    /// It is deleted.
    Done,
    /// Some group has yet to deal with it.
    Referenced,
}

impl Stream {
    /// A stream of these entries and groups.
    pub(crate) fn of(entries: Entries, groups: Groups) -> Self {
        Stream { entries, groups }
    }

    /// Its entries.
    pub fn entries(&self) -> &Entries {
        &self.entries
    }

    /// Its groups with their names, in the order of the names.
    pub fn groups(&self) -> impl ExactSizeIterator<Item = (&[u8], &Group)> {
        self.groups.iter()
    }

    /// The group of this name.
    pub fn group(&self, name: &[u8]) -> Option<&Group> {
        self.groups.get(name)
    }

    /// Whether there is an entry that was not delivered to a group yet.
    pub fn has_undelivered(&self, group: &Group) -> bool {
        self.entries.has_after(group.last_delivered_id())
    }

    /// The number of entries that are yet to be delivered to a group, if it is known.
    ///
    /// Negative if a client has set the group's counts in that way.
    pub fn lag(&self, group: &Group) -> Option<i64> {
        let entries = &self.entries;
        if entries.n_added() == 0 || entries.is_empty() {
            return Some(0);
        }
        let (first, last) = (entries.first_id(), group.last_delivered_id());
        if last < first && entries.max_deleted_id() < first {
            return Some(entries.len() as i64);
        }
        let n_read = group.n_read().filter(|_| !entries.has_gaps_from(last));
        let n_read = n_read.or_else(|| entries.n_added_until(last))?;
        // XSETID may have set the count to anything.
        Some((entries.n_added() as i64).wrapping_sub(n_read as i64))
    }

    /// The number of pending entries, in all groups.
    fn n_pending(&self) -> usize {
        self.groups().map(|(_, group)| group.n_pending()).sum()
    }

    fn trim(&mut self, trim: &Trim) -> u64 {
        let Stream { entries, groups } = self;
        match trim.references {
            References::Keep => entries.trim(trim, None),
            References::Delete => {
                let n = entries.trim(
                    trim,
                    Some(&mut |id| {
                        groups.release(id);
                        true
                    }),
                );
                // Entries before that may have been deleted and still be pending.
                let first = if entries.is_empty() { StreamId::MAX } else { entries.first_id() };
                groups.release_before(match trim.to {
                    TrimTo::Id(id) => first.min(id),
                    TrimTo::Len(_) => first,
                });
                n
            }
            References::Obey => {
                let settled = groups.delivered_to_all();
                entries.trim(trim, Some(&mut |id| !groups.refer_to(id, settled)))
            }
        }
    }

    fn delete(&mut self, ids: &[StreamId], references: References, mut each: impl FnMut(Deletion)) -> usize {
        let settled = self.settled(references);
        let mut n_deleted = 0;
        for &id in ids {
            let deletion = self.delete_one(id, references, settled);
            n_deleted += usize::from(deletion == Deletion::Done);
            each(deletion);
        }
        n_deleted
    }

    /// The last entry that was delivered to all groups, if that matters.
    fn settled(&self, references: References) -> Option<StreamId> {
        if references == References::Obey { self.groups.delivered_to_all() } else { None }
    }

    /// Deletes an entry. `settled` is from [`Stream::settled`].
    fn delete_one(&mut self, id: StreamId, references: References, settled: Option<StreamId>) -> Deletion {
        if references == References::Delete {
            self.groups.release(id);
        }
        if references == References::Obey
            && self.groups.refer_to(id, settled)
            && self.entries.get(id).is_some()
        {
            return Deletion::Referenced;
        }
        if self.entries.delete(id) { Deletion::Done } else { Deletion::Missing }
    }

    /// Acknowledges entries for a group and deletes them. An entry that is not pending is
    /// [missing](Deletion::Missing).
    fn acknowledge_and_delete(
        &mut self,
        group: &[u8],
        ids: &[StreamId],
        references: References,
        mut each: impl FnMut(Deletion),
    ) -> usize {
        let settled = self.settled(references);
        let mut n_deleted = 0;
        for &id in ids {
            if !self.groups.with(group, |group| group.release(id)).unwrap_or(false) {
                each(Deletion::Missing);
                continue;
            }
            if references == References::Obey && self.groups.refer_to(id, settled) {
                each(Deletion::Referenced);
                continue;
            }
            let deletion = self.delete_one(id, references, settled);
            n_deleted += usize::from(deletion == Deletion::Done);
            // The entry may have been deleted before; it counts that it is acknowledged and gone.
            each(Deletion::Done);
        }
        n_deleted
    }
}

impl<'a> StreamRef<'a> {
    /// The stream.
    pub fn stream(&self) -> &'a Stream {
        self.entry().object().expect("a stream is an object")
    }
}

/// Changes are counted as in Redis: entries that come and go, but nothing that groups do.
impl StreamMut<'_> {
    /// The stream, for reading.
    pub fn stream(&self) -> &Stream {
        self.entry().object().expect("a stream is an object")
    }

    fn edit<R>(&mut self, edit: impl FnOnce(&mut Stream, Millis) -> R) -> R {
        let now = self.used_at();
        self.arrange(|entry| edit(entry.object_mut().expect("a stream is an object"), now))
    }

    /// Adds an entry of these names and values in turn.
    ///
    /// # Errors
    /// If there is no identity for it, or it is too large.
    pub fn add<'f>(
        &mut self,
        id: NewId,
        fields: impl Iterator<Item = &'f [u8]>,
    ) -> Result<StreamId, AddError> {
        let thresholds = self.thresholds();
        let added = self.edit(|stream, now| stream.entries.add(id, fields, now, thresholds));
        if added.is_ok() {
            self.mark_changed();
        }
        added
    }

    /// Removes entries from the start; returns how many. Entries that were deleted before may still be
    /// pending. With [`References::Delete`] they no longer are: that is a change, too.
    pub fn trim(&mut self, trim: &Trim) -> u64 {
        let (n, has_released) = self.edit(|stream, _| {
            let n_before = stream.n_pending();
            let n = stream.trim(trim);
            (n, stream.n_pending() != n_before)
        });
        self.mark_all_changed(n as usize);
        if n == 0 && has_released {
            self.set_event(Event::Acknowledged);
            self.mark_changed_quietly();
        }
        n
    }

    /// Deletes entries; `each` is called with the result for each of them, in order. Returns how many are
    /// deleted.
    pub fn delete(&mut self, ids: &[StreamId], references: References, each: impl FnMut(Deletion)) -> usize {
        let (n, has_released) = self.edit(|stream, _| {
            let n_before = stream.n_pending();
            let n = stream.delete(ids, references, each);
            (n, stream.n_pending() != n_before)
        });
        self.mark_all_changed(n);
        // An entry that is long gone may be pending all the same.
        self.mark_changed_quietly_if(n == 0 && has_released);
        n
    }

    /// Acknowledges entries for a group and deletes them. An entry that is not pending there is
    /// [missing](Deletion::Missing).
    pub fn acknowledge_and_delete(
        &mut self,
        group: &[u8],
        ids: &[StreamId],
        references: References,
        each: impl FnMut(Deletion),
    ) {
        let n = self.edit(|stream, _| stream.acknowledge_and_delete(group, ids, references, each));
        if n > 0 {
            self.mark_all_changed(n);
        } else {
            self.set_event(Event::Acknowledged);
            self.mark_changed_quietly();
        }
    }

    /// Sets the last identity that was given out, the number of entries ever added, and the greatest deleted
    /// identity.
    pub fn set_last_id(&mut self, last: StreamId, n_added: Option<u64>, max_deleted: Option<StreamId>) {
        self.edit(|stream, _| stream.entries.set_last_id(last, n_added, max_deleted));
        self.mark_changed_quietly();
    }

    fn mark_changed_quietly_if(&mut self, is_changed: bool) {
        if is_changed {
            self.mark_changed_quietly();
        }
    }
}

#[cfg(test)]
mod tests;
