//! The groups of a stream, and the operations on a stream through its groups.

use std::collections::BTreeMap;

use super::{
    Entry, Group, IdleEntries, Stream, StreamId, StreamMut, entries::Entries, group::ConsumerNumber,
};
use crate::{
    entry::time::Millis,
    memory::{
        reclaim,
        teardown::{Pieces, Rubble},
    },
    observers::event::Event,
};

/// The cost of a group in the tree apart from the memory that it owns.
const GROUP_TREE_BYTES: usize = 2 * (size_of::<Box<[u8]>>() + size_of::<Group>());

/// The groups of a stream.
#[derive(Clone, Default)]
pub(crate) struct Groups {
    by_name: BTreeMap<Box<[u8]>, Group>,
    bytes: usize,
}

impl Groups {
    /// Takes the groups apart, to be freed in steps: one group after the other.
    pub(super) fn demolish(self) -> Box<dyn Rubble> {
        Pieces::boxed(self.by_name.into_iter(), |(name, group)| {
            let bytes = group.allocated_bytes();
            let n_name_bytes = name.len();
            reclaim::free_part(group, bytes, Group::demolish) + reclaim::free_piece(name, n_name_bytes)
        })
    }

    pub(super) fn allocated_bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn iter(&self) -> impl ExactSizeIterator<Item = (&[u8], &Group)> {
        self.by_name.iter().map(|(name, group)| (&**name, group))
    }

    pub(super) fn get(&self, name: &[u8]) -> Option<&Group> {
        self.by_name.get(name)
    }

    /// Changes the group of this name.
    pub(super) fn with<R>(&mut self, name: &[u8], change: impl FnOnce(&mut Group) -> R) -> Option<R> {
        let group = self.by_name.get_mut(name)?;
        let bytes_before = group.allocated_bytes();
        let result = change(group);
        self.bytes = self.bytes - bytes_before + group.allocated_bytes();
        Some(result)
    }

    /// The last entry that was delivered to every group; `None` without groups.
    pub(super) fn delivered_to_all(&self) -> Option<StreamId> {
        self.by_name.values().map(Group::last_delivered_id).min()
    }

    /// Whether some group has yet to deal with an entry: it was not delivered there, or is pending. `settled`
    /// is from [`Groups::delivered_to_all`].
    pub(super) fn refer_to(&self, id: StreamId, settled: Option<StreamId>) -> bool {
        settled.is_some_and(|settled| settled < id) || self.by_name.values().any(|group| group.is_pending(id))
    }

    /// Makes every group forget an entry.
    pub(super) fn release(&mut self, id: StreamId) {
        for group in self.by_name.values_mut().filter(|group| group.is_pending(id)) {
            let bytes_before = group.allocated_bytes();
            group.release(id);
            self.bytes = self.bytes - bytes_before + group.allocated_bytes();
        }
    }

    /// Makes every group forget the entries before one.
    pub(super) fn release_before(&mut self, id: StreamId) {
        for group in self.by_name.values_mut() {
            let bytes_before = group.allocated_bytes();
            while let Some(pending) = group.first_pending_from(StreamId::MIN).filter(|&pending| pending < id)
            {
                group.release(pending);
            }
            self.bytes = self.bytes - bytes_before + group.allocated_bytes();
        }
    }

    /// Puts a group in; returns whether there was none of this name.
    pub(crate) fn create(&mut self, name: &[u8], group: Group) -> bool {
        if self.by_name.contains_key(name) {
            return false;
        }
        self.bytes += name.len() + GROUP_TREE_BYTES + group.allocated_bytes();
        self.by_name.insert(name.into(), group);
        true
    }

    fn destroy(&mut self, name: &[u8]) -> bool {
        let Some((name, group)) = self.by_name.remove_entry(name) else { return false };
        let (bytes, n_name_bytes) = (group.allocated_bytes(), name.len());
        self.bytes -= n_name_bytes + GROUP_TREE_BYTES + bytes;
        reclaim::free_part(group, bytes, Group::demolish);
        reclaim::free_piece(name, n_name_bytes);
        true
    }
}

/// Whether delivered entries must be acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Acknowledgement {
    /// The entry is pending until then.
    Expected,
    /// The entry counts as dealt with at once.
    Needless,
}

/// A consumer's request to its group.
#[derive(Clone, Copy, Debug)]
pub struct Delivery<'a> {
    /// The group.
    pub group: &'a [u8],
    /// The consumer, which is made if need be.
    pub consumer: &'a [u8],
    /// The most entries to deliver; all if there is none.
    pub n_max: Option<usize>,
    /// Whether they have to be acknowledged.
    pub acknowledgement: Acknowledgement,
}

/// The effect of a claim on the number of deliveries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counting {
    /// The claim is one more delivery.
    OneMore,
    /// The claim is no delivery.
    AsBefore,
    /// The number of deliveries is set to this.
    Exactly(u64),
}

/// The entries that a consumer can claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claimable {
    /// Pending entries.
    Pending,
    /// Any existing entries.
    Any,
}

/// A consumer's takeover of pending entries.
#[derive(Clone, Copy, Debug)]
pub struct Claim<'a> {
    /// The group.
    pub group: &'a [u8],
    /// The consumer, which is made if need be.
    pub consumer: &'a [u8],
    /// The time, in milliseconds, for which an entry must not have been delivered.
    pub idle_min: u64,
    /// The time at which it counts as delivered.
    pub delivered_at: Millis,
    /// The effect on the number of deliveries.
    pub counting: Counting,
}

/// The return of pending entries to their group.
#[derive(Clone, Copy, Debug)]
pub struct HandBack<'a> {
    /// The group.
    pub group: &'a [u8],
    /// The effect on the number of deliveries.
    pub mode: HandBackMode,
    /// The new number of deliveries, in place of that effect.
    pub n_deliveries: Option<u64>,
    /// Whether entries that are not pending become so.
    pub claimable: Claimable,
}

/// The reason why an entry is handed back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandBackMode {
    /// The delivery does not count.
    Silent,
    /// The delivery counts.
    Fail,
    /// The entry cannot be processed: it counts as delivered as often as possible.
    Fatal,
}

impl HandBack<'_> {
    /// The number of deliveries after the return.
    fn count(&self, n_before: u64) -> u64 {
        self.n_deliveries.unwrap_or(match self.mode {
            HandBackMode::Silent => n_before.saturating_sub(1),
            HandBackMode::Fail => n_before,
            HandBackMode::Fatal => i64::MAX as u64,
        })
    }
}

/// The result of [`StreamMut::auto_claim`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AutoClaimed {
    /// The next pending entry to look at; none at the end.
    pub next: Option<StreamId>,
    /// Entries that were pending, but have been deleted; they are forgotten.
    pub deleted: Vec<StreamId>,
}

/// The number of pending entries that are looked at for each that may be claimed.
const ATTEMPTS_PER_CLAIM: usize = 10;

impl Claim<'_> {
    /// Takes over an existing entry; returns whether it could be claimed.
    fn take(&self, group: &mut Group, number: ConsumerNumber, id: StreamId, now: Millis) -> bool {
        let is_taken = group.reassign(id, number, self.delivered_at, |delivered_at, n_before| {
            let is_idle = now.0.saturating_sub(delivered_at.0) >= self.idle_min;
            is_idle.then(|| self.count(n_before))
        });
        if is_taken {
            group.note_active(number, now);
        }
        is_taken
    }

    /// The number of deliveries of an entry after a claim.
    fn count(&self, n_before: u64) -> u64 {
        match self.counting {
            // RESTORE takes any number.
            Counting::OneMore => n_before.wrapping_add(1),
            Counting::AsBefore => n_before,
            Counting::Exactly(n) => n,
        }
    }
}

impl Stream {
    /// Up to `n_max` entries of a group that have been pending for `idle_min` milliseconds.
    pub fn idle(&self, group: &[u8], now: Millis, idle_min: u64, n_max: usize) -> IdleEntries {
        let group = self.group(group);
        group.map_or_else(IdleEntries::default, |group| group.idle(&self.entries, now, idle_min, n_max))
    }

    /// Whether an existing entry has been handed back to a group, and nobody has claimed it.
    pub(crate) fn has_handed_back(&self, group: &[u8]) -> bool {
        let group = self.group(group);
        group.is_some_and(|group| group.handed_back().any(|id| self.entries.get(id).is_some()))
    }

    /// Changes a group, with the entries at hand.
    fn with_group<R>(&mut self, name: &[u8], change: impl FnOnce(&mut Group, &Entries) -> R) -> Option<R> {
        let Stream { entries, groups } = self;
        groups.with(name, |group| change(group, entries))
    }
}

/// WATCH sees no change in the operations of groups.
impl StreamMut<'_> {
    /// Makes a group; returns whether there was none of this name.
    ///
    /// The number of entries that it has read is limited to the number ever added.
    pub fn create_group(&mut self, name: &[u8], last_delivered: StreamId, n_read: Option<u64>) -> bool {
        let is_new = self.edit(|stream, _| {
            let n_read = n_read.map(|n| n.min(stream.entries.n_added()));
            stream.groups.create(name, Group::new(last_delivered, n_read))
        });
        self.mark_changed_quietly_if(is_new);
        is_new
    }

    /// Sets the entries that a group has read; returns whether there is one of this name.
    pub fn set_group(&mut self, name: &[u8], last_delivered: StreamId, n_read: Option<u64>) -> bool {
        let is_there = self.edit(|stream, _| {
            let n_read = n_read.map(|n| n.min(stream.entries.n_added()));
            stream.groups.with(name, |group| group.set_position(last_delivered, n_read)).is_some()
        });
        self.mark_changed_quietly_if(is_there);
        is_there
    }

    /// Deletes a group; returns whether there was one of this name.
    pub fn destroy_group(&mut self, name: &[u8]) -> bool {
        let was_there = self.edit(|stream, _| stream.groups.destroy(name));
        if was_there {
            // Its readers are told that it is gone.
            self.mark_ready();
            self.mark_changed_quietly();
        }
        was_there
    }

    /// Makes a consumer; returns whether there was none of this name. `None` if there is no such group.
    pub fn create_consumer(&mut self, group: &[u8], consumer: &[u8]) -> Option<bool> {
        let is_new = self.edit(|stream, now| {
            stream.groups.with(group, |group| group.create_consumer(consumer, now).is_some())
        });
        self.mark_changed_quietly_if(is_new == Some(true));
        is_new
    }

    /// Deletes a consumer with its pending entries; returns their number. `None` if there is no such group.
    pub fn delete_consumer(&mut self, group: &[u8], consumer: &[u8]) -> Option<usize> {
        let deleted =
            self.edit(|stream, _| stream.groups.with(group, |group| group.delete_consumer(consumer)))?;
        self.mark_changed_quietly_if(deleted.is_some());
        Some(deleted.unwrap_or(0))
    }

    /// Records that a consumer sent a request; makes it, if need be.
    pub fn see_consumer(&mut self, group: &[u8], consumer: &[u8]) {
        self.edit_for(group, |group, _, now| group.see_consumer(consumer, now));
    }

    /// Changes a group in the name of a consumer, which may be created by that.
    fn edit_for<R>(
        &mut self,
        name: &[u8],
        edit: impl FnOnce(&mut Group, &Entries, Millis) -> R,
    ) -> Option<R> {
        let edited = self.edit(|stream, now| {
            stream.with_group(name, |group, entries| {
                let n_before = group.consumers().len();
                let result = edit(group, entries, now);
                (result, group.consumers().len() > n_before)
            })
        });
        let (result, has_new_consumer) = edited?;
        if has_new_consumer {
            // Redis publishes that alone, whatever the command does besides.
            self.mark_changed_quietly();
            self.follow_up(Event::XGroupCreateConsumer);
        }
        Some(result)
    }

    /// Delivers new entries to a group; returns how many.
    pub fn deliver(&mut self, delivery: &Delivery<'_>, mut each: impl FnMut(&Entry<'_>)) -> usize {
        let delivered = self.edit_for(delivery.group, |group, entries, now| {
            let number = group.see_consumer(delivery.consumer, now);
            let Some(from) = group.last_delivered_id().next() else { return 0 };
            let mut n = 0;
            for entry in entries.range(from, StreamId::MAX).take(delivery.n_max.unwrap_or(usize::MAX)) {
                group.go_on_to(entry.id(), entries);
                if delivery.acknowledgement == Acknowledgement::Expected {
                    group.assign(entry.id(), number, now, 1);
                    group.note_active(number, now);
                }
                each(&entry);
                n += 1;
            }
            n
        });
        self.mark_changed_quietly_if(delivered.is_some_and(|n| n > 0));
        delivered.unwrap_or(0)
    }

    /// Delivers a consumer's pending entries again, from `from` on; returns how many. Of deleted ones, `each`
    /// gets the identity only.
    pub fn redeliver(
        &mut self,
        delivery: &Delivery<'_>,
        from: StreamId,
        mut each: impl FnMut(StreamId, Option<Entry<'_>>),
    ) -> usize {
        let n_max = delivery.n_max.unwrap_or(usize::MAX);
        let delivered = self.edit_for(delivery.group, |group, entries, now| {
            let number = group.see_consumer(delivery.consumer, now);
            let (mut n, mut entries) = (0, entries.look_ups());
            group.redeliver(number, from, n_max, now, |id| {
                let entry = entries.get(id);
                each(id, entry);
                n += 1;
                entry.is_some()
            });
            n
        });
        self.mark_changed_quietly_if(delivered.is_some_and(|n| n > 0));
        delivered.unwrap_or(0)
    }

    /// Acknowledges entries; returns how many were pending. `None` if there is no such group.
    pub fn acknowledge(&mut self, group: &[u8], ids: &[StreamId]) -> Option<usize> {
        let n_released = self.edit(|stream, _| {
            stream.groups.with(group, |group| ids.iter().filter(|id| group.release(**id)).count())
        });
        self.mark_all_changed_quietly(n_released.unwrap_or(0));
        n_released
    }

    /// Moves a group forward, unless it is further already.
    pub fn skip_to(&mut self, group: &[u8], id: StreamId) {
        self.edit(|stream, _| stream.groups.with(group, |group| group.skip_to(id)));
        self.mark_changed_quietly();
    }

    /// Takes over entries, unless they have been deleted: those are forgotten. `each` gets the claimed ones.
    pub fn claim(
        &mut self,
        claim: &Claim<'_>,
        ids: &[StreamId],
        claimable: Claimable,
        mut each: impl FnMut(&Entry<'_>),
    ) {
        self.edit_for(claim.group, |group, entries, now| {
            let number = group.see_consumer(claim.consumer, now);
            let mut entries = entries.look_ups();
            for &id in ids {
                let Some(entry) = entries.get(id) else {
                    group.release(id);
                    continue;
                };
                if group.is_pending(id) {
                    if !claim.take(group, number, id, now) {
                        continue;
                    }
                } else if claimable == Claimable::Any {
                    // As in Redis, where a forced claim counts as one delivery already.
                    group.assign(id, number, claim.delivered_at, claim.count(1));
                    group.note_active(number, now);
                } else {
                    continue;
                }
                each(&entry);
            }
        });
        self.mark_changed_quietly();
    }

    /// Hands pending entries back: they have no consumer until one claims them. Returns how many were handed
    /// back.
    pub fn hand_back(&mut self, hand_back: &HandBack<'_>, ids: &[StreamId]) -> usize {
        let n = self.edit(|stream, _| {
            let n = stream.with_group(hand_back.group, |group, entries| {
                let mut entries = entries.look_ups();
                let mut n = 0;
                for &id in ids {
                    let is_pending = group.hand_back(id, |n_before| hand_back.count(n_before));
                    let is_made =
                        !is_pending && hand_back.claimable == Claimable::Any && entries.get(id).is_some();
                    if is_made {
                        group.assign_to_nobody(id, hand_back.count(0));
                    }
                    n += usize::from(is_pending || is_made);
                }
                n
            });
            n.unwrap_or(0)
        });
        if n > 0 {
            self.mark_ready();
            self.mark_all_changed_quietly(n);
        }
        n
    }

    /// Takes over up to `n` pending entries, from `from` on. Deleted ones are forgotten, and count. `each`
    /// gets the claimed ones.
    pub fn auto_claim(
        &mut self,
        claim: &Claim<'_>,
        from: StreamId,
        n: usize,
        mut each: impl FnMut(&Entry<'_>),
    ) -> AutoClaimed {
        let claimed = self.edit_for(claim.group, |group, entries, now| {
            let number = group.see_consumer(claim.consumer, now);
            let mut deleted = Vec::new();
            let mut next = group.first_pending_from(from);
            let (mut n_left, mut n_attempts_left) = (n, n.saturating_mul(ATTEMPTS_PER_CLAIM));
            let mut entries = entries.look_ups();
            while let Some(id) = next.filter(|_| n_left > 0 && n_attempts_left > 0) {
                n_attempts_left -= 1;
                match entries.get(id) {
                    None => {
                        group.release(id);
                        deleted.push(id);
                        n_left -= 1;
                    }
                    Some(entry) if claim.take(group, number, id, now) => {
                        each(&entry);
                        n_left -= 1;
                    }
                    Some(_) => {}
                }
                next = id.next().and_then(|behind| group.first_pending_from(behind));
            }
            AutoClaimed { next, deleted }
        });
        self.mark_changed_quietly();
        claimed.unwrap_or(AutoClaimed { next: None, deleted: Vec::new() })
    }
}
