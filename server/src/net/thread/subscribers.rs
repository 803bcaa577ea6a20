//! This thread's subscribers, and its position in the notification queue.

use std::{
    collections::{BTreeSet, HashMap, HashSet, VecDeque},
    sync::Arc,
    time::Duration,
};

use braid_storage::table::hash::KeyHasher;

use crate::{
    client::id::ClientId,
    clock::Instant,
    notify::{
        notifications::ConnectionSlot,
        subscriptions::{Name, TopicKind},
        tracking_table::{Invalidation, Mode, TrackerNumber},
    },
    random,
};

/// The subscriptions of a thread's connections, as of the last notification that was read.
pub(super) struct Subscribers {
    by_kind: [HashMap<Name, HashSet<ConnectionSlot>, KeyHasher>; TopicKind::ALL.len()],
    /// The monitoring clients (MONITOR).
    pub(super) monitors: BTreeSet<ConnectionSlot>,
    /// The tracking clients (CLIENT TRACKING).
    pub(super) trackers: HashMap<TrackerNumber, Tracker>,
    /// The tracking clients that are told of keys by prefix.
    pub(super) by_prefix: HashMap<Name, HashSet<TrackerNumber>>,
}

impl Default for Subscribers {
    fn default() -> Self {
        let hasher = random::key_hasher();
        Self {
            by_kind: TopicKind::ALL.map(|_| HashMap::with_hasher(hasher)),
            monitors: BTreeSet::new(),
            trackers: HashMap::new(),
            by_prefix: HashMap::new(),
        }
    }
}

/// A tracking client.
#[derive(Clone)]
pub(super) struct Tracker {
    pub(super) place: ConnectionSlot,
    pub(super) id: ClientId,
    pub(super) mode: Arc<Mode>,
}

impl Subscribers {
    /// Whether no connection is subscribed to anything.
    pub(super) fn is_empty(&self) -> bool {
        self.by_kind.iter().all(HashMap::is_empty)
    }

    pub(super) fn add(&mut self, place: ConnectionSlot, kind: TopicKind, name: Name) {
        self.by_kind[kind as usize].entry(name).or_default().insert(place);
    }

    /// Ends a subscription.
    pub(super) fn remove(&mut self, place: ConnectionSlot, kind: TopicKind, name: &[u8]) {
        let topics = &mut self.by_kind[kind as usize];
        let Some(places) = topics.get_mut(name) else { return };
        places.remove(&place);
        if places.is_empty() {
            topics.remove(name);
        }
    }

    pub(super) fn track(&mut self, number: TrackerNumber, tracker: Tracker) {
        self.track_no_more(number);
        for prefix in &tracker.mode.prefixes {
            self.by_prefix.entry(Arc::clone(prefix)).or_default().insert(number);
        }
        self.trackers.insert(number, tracker);
    }

    /// Ends CLIENT TRACKING for a client, and returns its mode.
    pub(super) fn track_no_more(&mut self, number: TrackerNumber) -> Option<Arc<Mode>> {
        let Tracker { mode, .. } = self.trackers.remove(&number)?;
        for prefix in &mode.prefixes {
            if let Some(numbers) = self.by_prefix.get_mut(prefix) {
                numbers.remove(&number);
                if numbers.is_empty() {
                    self.by_prefix.remove(prefix);
                }
            }
        }
        Some(mode)
    }

    pub(super) fn of(&self, kind: TopicKind, name: &[u8]) -> impl Iterator<Item = ConnectionSlot> {
        self.by_kind[kind as usize].get(name).into_iter().flatten().copied()
    }
}

/// The time for which a thread gives out notifications in one turn.
///
/// Then it writes to their sockets and serves other connections. The longer the last writes took, the more is
/// given out between them: with thousands of subscribers each write should hold several messages.
pub(super) const SLICE_TIME: std::ops::RangeInclusive<Duration> =
    Duration::from_millis(1)..=Duration::from_millis(5);
/// The bytes that it gives out in one turn.
pub(super) const SLICE_BYTES: usize = 4 << 20;
/// The bytes given to one connection after which they are written first.
///
/// A client that reads is not closed for bytes that its socket was not offered.
///
/// Unit tests have smaller sockets.
pub(super) const WRITE_BYTES: usize = if cfg!(test) { 4 << 10 } else { 32 << 10 };
/// The maximum time for which a thread gathers notifications before it gives out more.
pub(super) const GIVING_REST_MAX: Duration = Duration::from_millis(1);
/// The number of queued bytes at which gathering ends.
pub(super) const GATHERED_BYTES: u64 = 32 * 1024;
/// The number of connections after which the thread reads the clock.
pub(super) const CLOCK_EVERY: usize = 64;

/// The position of a thread in its queue of notifications.
///
/// It includes the connections and nodes that wait for it.
#[derive(Default)]
pub(super) struct Giving {
    pub(super) n_read: u64,
    /// Connections that wait for notifications: the number of those that must be read first, rising, the slot
    /// and the client.
    pub(super) turns: VecDeque<(u64, ConnectionSlot, ClientId)>,
    /// Connections that wait until the queues of these threads, one bit each, have emptied.
    pub(super) held_back: Vec<(ConnectionSlot, ClientId, u128)>,
    /// Connections that were given more than their limit. They are closed when nothing is being given out.
    pub(super) to_close: Vec<ConnectionSlot>,
    /// Invalidations for clients that are being handed over to this thread.
    pub(super) on_their_way: HashMap<ClientId, Vec<Arc<Invalidation>>>,
    /// Space for the connections of one notification.
    pub(super) places: Vec<ConnectionSlot>,
    /// The notifications given out in this turn.
    pub(super) slice: Slice,
    /// Nothing is given out before this time unless much waits. Notifications that arrive meanwhile share the
    /// same writes.
    pub(super) rest_until: Option<Instant>,
    /// The time at which the last slice ended and its writes began.
    pub(super) gave_until: Option<Instant>,
    /// The duration of those writes.
    pub(super) writes_took: Duration,
}

/// The notifications given out in one turn.
#[derive(Default)]
pub(super) struct Slice {
    /// The number of recipients since the clock was last read. A notification without recipients counts as
    /// one.
    pub(super) n_given: usize,
    pub(super) n_bytes: usize,
    /// Whether a writable socket has been given as much as it is offered at a time.
    pub(super) must_write: bool,
}

impl Slice {
    pub(super) fn is_spent(&mut self, began: Instant, most: Duration) -> bool {
        self.n_given += 1;
        if self.n_bytes > SLICE_BYTES || self.must_write {
            return true;
        }
        if self.n_given < CLOCK_EVERY {
            return false;
        }
        self.n_given = 0;
        began.elapsed() > most
    }
}
