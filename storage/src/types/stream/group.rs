//! Consumer groups: the delivered entries of each consumer, and those that are not acknowledged yet.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::{StreamId, entries::Entries};
use crate::{
    entry::time::Millis,
    memory::{
        reclaim,
        teardown::{Pieces, Rubble},
    },
};

/// The cost of a pending entry in its two trees: trees that grow at their end are little more than half full.
const PENDING_BYTES: usize = 2 * (2 * size_of::<StreamId>() + size_of::<Pending>());
/// The cost of a consumer apart from its name.
const CONSUMER_BYTES: usize = size_of::<Option<Consumer>>() + 2 * size_of::<(Arc<[u8]>, u32)>();

/// A consumer's place among those of its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ConsumerNumber(u32);

/// Stands for the consumer of an entry that was handed back (XNACK).
const NOBODY: ConsumerNumber = ConsumerNumber(u32::MAX);

/// An entry that was delivered and not acknowledged.
#[derive(Clone, Copy)]
struct Pending {
    delivered_at: Millis,
    n_deliveries: u64,
    consumer: ConsumerNumber,
}

/// A pending entry and its deliveries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PendingEntry<'a> {
    /// The entry's identity. It may have been deleted since.
    pub id: StreamId,
    /// The name of its consumer; empty if it was handed back.
    pub consumer: &'a [u8],
    /// Whether it was handed back, and so has no consumer.
    pub is_handed_back: bool,
    /// The time of the last delivery.
    pub delivered_at: Millis,
    /// The number of deliveries.
    pub n_deliveries: u64,
}

/// A pending entry that can be claimed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdleEntry {
    /// The entry.
    pub id: StreamId,
    /// The milliseconds since its last delivery.
    pub idle: u64,
    /// The number of deliveries.
    pub n_deliveries: u64,
}

/// The pending entries of a group that can be claimed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IdleEntries {
    /// Those that have been idle for longest, these first.
    pub found: Vec<IdleEntry>,
    /// The milliseconds until another one can be claimed, if one will.
    pub next_in: Option<u64>,
}

/// A consumer of a group's entries.
#[derive(Clone)]
pub struct Consumer {
    name: Arc<[u8]>,
    seen_at: Millis,
    active_at: Option<Millis>,
    pending: BTreeSet<StreamId>,
}

impl Consumer {
    /// Its name.
    pub fn name(&self) -> &[u8] {
        &self.name
    }

    /// The time of its last request.
    pub fn seen_at(&self) -> Millis {
        self.seen_at
    }

    /// The time when it last got an entry to acknowledge, if ever.
    pub fn active_at(&self) -> Option<Millis> {
        self.active_at
    }

    /// The number of entries that it has to acknowledge.
    pub fn n_pending(&self) -> usize {
        self.pending.len()
    }
}

/// A consumer group.
#[derive(Clone, Default)]
pub struct Group {
    last_delivered: StreamId,
    n_read: Option<u64>,
    /// The pending entries. Each is among its consumer's, too, or was handed back.
    pending: BTreeMap<StreamId, Pending>,
    /// The pending entries without a consumer.
    handed_back: BTreeSet<StreamId>,
    /// By number; a number whose consumer was deleted is given out again.
    consumers: Vec<Option<Consumer>>,
    free_numbers: Vec<ConsumerNumber>,
    by_name: BTreeMap<Arc<[u8]>, ConsumerNumber>,
    name_bytes: usize,
}

impl Group {
    /// Takes the group apart, to be freed in steps.
    pub(super) fn demolish(self) -> Box<dyn Rubble> {
        let consumers = Pieces::boxed(self.consumers.into_iter(), |consumer: Option<Consumer>| {
            let Some(Consumer { pending, .. }) = consumer else { return 0 };
            let bytes = pending.len() * 2 * size_of::<StreamId>();
            reclaim::free_part(pending, bytes, |pending| Pieces::small(pending.into_iter()))
        });
        let names = Pieces::boxed(self.by_name.into_keys(), |name| {
            let bytes = name.len();
            reclaim::free_piece(name, bytes)
        });
        // The consumers go before the names, which they share.
        let handed_back = Pieces::small(self.handed_back.into_iter());
        Box::new(vec![names, consumers, handed_back, Pieces::small(self.pending.into_iter())])
    }

    pub(crate) fn new(last_delivered: StreamId, n_read: Option<u64>) -> Self {
        Group { last_delivered, n_read, ..Group::default() }
    }

    /// The last entry that was delivered to any consumer for the first time.
    pub fn last_delivered_id(&self) -> StreamId {
        self.last_delivered
    }

    /// The number of entries that had been added when the last delivered one was, if it is known.
    pub fn n_read(&self) -> Option<u64> {
        self.n_read
    }

    /// The number of entries that are delivered and not acknowledged.
    pub fn n_pending(&self) -> usize {
        self.pending.len()
    }

    /// Whether an entry is pending.
    pub fn is_pending(&self, id: StreamId) -> bool {
        self.pending.contains_key(&id)
    }

    /// The pending entries from one identity to another, both included.
    pub fn pending(&self, from: StreamId, to: StreamId) -> impl DoubleEndedIterator<Item = PendingEntry<'_>> {
        // A range must not be the wrong way round.
        let range = self.pending.range(from.min(to)..=to);
        range.filter(move |_| from <= to).map(|(id, pending)| self.describe(*id, *pending))
    }

    /// The pending entries of one consumer.
    pub fn pending_of<'a>(
        &'a self,
        consumer: &'a Consumer,
        from: StreamId,
        to: StreamId,
    ) -> impl Iterator<Item = PendingEntry<'a>> {
        let range = consumer.pending.range(from.min(to)..=to);
        range.filter(move |_| from <= to).map(|id| {
            let pending = self.pending.get(id).expect("what a consumer has pending, its group has");
            self.describe(*id, *pending)
        })
    }

    /// The pending entries that were handed back, and so have no consumer.
    pub fn handed_back(&self) -> impl ExactSizeIterator<Item = StreamId> {
        self.handed_back.iter().copied()
    }

    /// Up to `n_max` existing entries that have been pending for `idle_min` milliseconds.
    pub(super) fn idle(&self, entries: &Entries, now: Millis, idle_min: u64, n_max: usize) -> IdleEntries {
        let mut found = Vec::new();
        let mut next_in = None;
        let mut entries = entries.look_ups();
        for (&id, pending) in &self.pending {
            let idle = now.0.saturating_sub(pending.delivered_at.0);
            if idle < idle_min {
                let remaining = idle_min - idle;
                if next_in.is_none_or(|next_in| remaining < next_in) && entries.get(id).is_some() {
                    next_in = Some(remaining);
                }
            } else if entries.get(id).is_some() {
                found.push(IdleEntry { id, idle, n_deliveries: pending.n_deliveries });
            }
        }
        // The sort keeps the order of the entries that were delivered at one time.
        found.sort_by_key(|entry| std::cmp::Reverse(entry.idle));
        found.truncate(n_max);
        IdleEntries { found, next_in }
    }

    fn describe(&self, id: StreamId, pending: Pending) -> PendingEntry<'_> {
        let is_handed_back = pending.consumer == NOBODY;
        PendingEntry {
            id,
            consumer: if is_handed_back { b"" } else { self.numbered(pending.consumer).name() },
            is_handed_back,
            delivered_at: pending.delivered_at,
            n_deliveries: pending.n_deliveries,
        }
    }

    /// The consumers, by name.
    pub fn consumers(&self) -> impl ExactSizeIterator<Item = &Consumer> {
        self.by_name.values().map(|number| self.numbered(*number))
    }

    /// The consumer of this name.
    pub fn consumer(&self, name: &[u8]) -> Option<&Consumer> {
        self.by_name.get(name).map(|number| self.numbered(*number))
    }

    fn numbered(&self, number: ConsumerNumber) -> &Consumer {
        self.consumers[number.0 as usize].as_ref().expect("numbers in use have a consumer")
    }

    fn numbered_mut(&mut self, number: ConsumerNumber) -> &mut Consumer {
        self.consumers[number.0 as usize].as_mut().expect("numbers in use have a consumer")
    }

    /// The bytes that are allocated, nearly.
    pub(super) fn allocated_bytes(&self) -> usize {
        self.pending.len() * PENDING_BYTES + self.consumers.capacity() * CONSUMER_BYTES + self.name_bytes
    }

    pub(super) fn set_position(&mut self, last_delivered: StreamId, n_read: Option<u64>) {
        (self.last_delivered, self.n_read) = (last_delivered, n_read);
    }

    /// Goes on to `id`, unless the group is further already.
    pub(super) fn skip_to(&mut self, id: StreamId) {
        self.last_delivered = self.last_delivered.max(id);
    }

    /// Notes that the next entry is delivered.
    pub(super) fn go_on_to(&mut self, id: StreamId, entries: &Entries) {
        let last = self.last_delivered;
        self.n_read = match self.n_read {
            Some(n) if last >= entries.first_id() && !entries.has_gaps_from(last) => Some(n.wrapping_add(1)),
            _ if entries.n_added() > 0 => entries.n_added_until(id),
            unknown => unknown,
        };
        self.last_delivered = id;
    }

    /// Makes a consumer, unless there is one of this name.
    pub(crate) fn create_consumer(&mut self, name: &[u8], now: Millis) -> Option<ConsumerNumber> {
        if self.by_name.contains_key(name) {
            return None;
        }
        let name: Arc<[u8]> = name.into();
        let consumer =
            Consumer { name: name.clone(), seen_at: now, active_at: None, pending: BTreeSet::new() };
        self.name_bytes += name.len();
        let number = self.free_numbers.pop().unwrap_or_else(|| {
            self.consumers.push(None);
            ConsumerNumber(u32::try_from(self.consumers.len() - 1).expect("there is no room for so many"))
        });
        self.consumers[number.0 as usize] = Some(consumer);
        self.by_name.insert(name, number);
        Some(number)
    }

    /// Records that a consumer sent a request; makes it, if need be.
    pub(super) fn see_consumer(&mut self, name: &[u8], now: Millis) -> ConsumerNumber {
        match self.by_name.get(name) {
            Some(&number) => {
                self.numbered_mut(number).seen_at = now;
                number
            }
            None => self.create_consumer(name, now).expect("there is none of this name"),
        }
    }

    /// Records that a consumer gets an entry.
    pub(crate) fn note_active(&mut self, number: ConsumerNumber, now: Millis) {
        self.numbered_mut(number).active_at = Some(now);
    }

    /// Deletes a consumer and its pending entries; returns their number, if there is such a consumer.
    pub(super) fn delete_consumer(&mut self, name: &[u8]) -> Option<usize> {
        let number = self.by_name.remove(name)?;
        let consumer = self.consumers[number.0 as usize].take().expect("numbers in use have a consumer");
        self.free_numbers.push(number);
        self.name_bytes -= name.len();
        for id in &consumer.pending {
            self.pending.remove(id);
        }
        Some(consumer.pending.len())
    }

    /// The first pending entry from `from` on.
    pub(super) fn first_pending_from(&self, from: StreamId) -> Option<StreamId> {
        self.pending.range(from..).next().map(|(id, _)| *id)
    }

    /// Assigns an entry, pending or not, to a consumer.
    pub(crate) fn assign(
        &mut self,
        id: StreamId,
        number: ConsumerNumber,
        delivered_at: Millis,
        n_deliveries: u64,
    ) {
        let pending = Pending { delivered_at, n_deliveries, consumer: number };
        let before = self.pending.insert(id, pending).map(|pending| pending.consumer);
        if before == Some(number) {
            return;
        }
        if let Some(before) = before {
            self.pending_of_mut(before).remove(&id);
        }
        self.pending_of_mut(number).insert(id);
    }

    /// The pending entries of a consumer, or those that were handed back.
    fn pending_of_mut(&mut self, number: ConsumerNumber) -> &mut BTreeSet<StreamId> {
        if number == NOBODY { &mut self.handed_back } else { &mut self.numbered_mut(number).pending }
    }

    /// Takes a pending entry from its consumer. It can be claimed at once, and counts as delivered as often
    /// as `count` says of its deliveries. Returns whether the entry was pending.
    pub(super) fn hand_back(&mut self, id: StreamId, count: impl FnOnce(u64) -> u64) -> bool {
        let Some(pending) = self.pending.get(&id) else { return false };
        let n_deliveries = count(pending.n_deliveries);
        self.assign(id, NOBODY, Millis(0), n_deliveries);
        true
    }

    /// Makes an entry pending without a consumer.
    pub(crate) fn assign_to_nobody(&mut self, id: StreamId, n_deliveries: u64) {
        self.assign(id, NOBODY, Millis(0), n_deliveries);
    }

    /// Assigns a pending entry to a consumer if `judge` agrees; returns whether it did. `judge` gets the time
    /// and the number of the entry's deliveries, and returns their new number.
    pub(super) fn reassign(
        &mut self,
        id: StreamId,
        number: ConsumerNumber,
        delivered_at: Millis,
        judge: impl FnOnce(Millis, u64) -> Option<u64>,
    ) -> bool {
        let Some(pending) = self.pending.get_mut(&id) else { return false };
        let Some(n_deliveries) = judge(pending.delivered_at, pending.n_deliveries) else { return false };
        let before = std::mem::replace(pending, Pending { delivered_at, n_deliveries, consumer: number });
        if before.consumer != number {
            self.pending_of_mut(before.consumer).remove(&id);
            self.pending_of_mut(number).insert(id);
        }
        true
    }

    /// Calls `each` with up to `n` pending entries of a consumer, from `from` on. Counts a delivery of those
    /// for which it returns true.
    pub(super) fn redeliver(
        &mut self,
        number: ConsumerNumber,
        from: StreamId,
        n: usize,
        now: Millis,
        mut each: impl FnMut(StreamId) -> bool,
    ) {
        let consumer = self.consumers[number.0 as usize].as_ref().expect("numbers in use have a consumer");
        for id in consumer.pending.range(from..).take(n) {
            if each(*id) {
                let pending = self.pending.get_mut(id).expect("what a consumer has pending, its group has");
                pending.delivered_at = now;
                pending.n_deliveries = pending.n_deliveries.wrapping_add(1);
            }
        }
    }

    /// Forgets a pending entry; returns whether there was one.
    pub(super) fn release(&mut self, id: StreamId) -> bool {
        let Some(pending) = self.pending.remove(&id) else { return false };
        self.pending_of_mut(pending.consumer).remove(&id);
        true
    }
}
