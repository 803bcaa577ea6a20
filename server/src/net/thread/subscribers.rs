//! Who hears what on a thread, and how far its queue of notifications has been given out.

use std::{
    collections::{BTreeSet, HashMap, HashSet, VecDeque},
    sync::Arc,
    time::{Duration, Instant},
};

use braid_storage::{KeyHasher, executor::Node};

use crate::{
    client::{id::ClientId, node::Job},
    notify::{
        notifications::Place,
        subscriptions::{Name, TopicKind},
        tracking_table::{Invalidation, Mode, TrackerNumber},
    },
};

/// Which connections of a thread are subscribed to what, as of the last notification that was read.
pub(super) struct Subscribers {
    by_kind: [HashMap<Name, HashSet<Place>, KeyHasher>; TopicKind::ALL.len()],
    /// The monitoring clients (MONITOR).
    pub(super) monitors: BTreeSet<Place>,
    /// The clients that keep copies of keys (CLIENT TRACKING).
    pub(super) trackers: HashMap<TrackerNumber, Tracker>,
    /// Those that hear of keys by what they begin with.
    pub(super) by_prefix: HashMap<Name, HashSet<TrackerNumber>>,
}

impl Default for Subscribers {
    fn default() -> Self {
        let hasher = KeyHasher::random();
        Self {
            by_kind: TopicKind::ALL.map(|_| HashMap::with_hasher(hasher)),
            monitors: BTreeSet::new(),
            trackers: HashMap::new(),
            by_prefix: HashMap::new(),
        }
    }
}

/// A client that keeps copies of keys.
#[derive(Clone)]
pub(super) struct Tracker {
    pub(super) place: Place,
    pub(super) id: ClientId,
    pub(super) mode: Arc<Mode>,
}

impl Subscribers {
    /// Whether no connection is subscribed to anything.
    pub(super) fn is_empty(&self) -> bool {
        self.by_kind.iter().all(HashMap::is_empty)
    }

    pub(super) fn add(&mut self, place: Place, kind: TopicKind, name: Name) {
        self.by_kind[kind as usize].entry(name).or_default().insert(place);
    }

    /// Ends a subscription.
    pub(super) fn remove(&mut self, place: Place, kind: TopicKind, name: &[u8]) {
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

    /// Ends what a client has asked for with CLIENT TRACKING; gives its mode.
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

    pub(super) fn of(&self, kind: TopicKind, name: &[u8]) -> impl Iterator<Item = Place> {
        self.by_kind[kind as usize].get(name).into_iter().flatten().copied()
    }
}

/// For how long a thread gives out notifications in one turn. Then it writes to the sockets that they are
/// for, and serves others. The longer the last writes took, the more is given between them: with thousands of
/// subscribers each write is to have several messages.
pub(super) const SLICE_TIME: std::ops::RangeInclusive<Duration> =
    Duration::from_millis(1)..=Duration::from_millis(5);
/// How many bytes it gives out in one turn.
pub(super) const SLICE_BYTES: usize = 4 << 20;
/// From how many bytes on what is given to a connection is written before more is: one that reads is not
/// closed for what it was not offered.
pub(super) const WRITE_BYTES: usize = 32 * 1024;
/// How long a thread at most gathers notifications before it gives out more.
pub(super) const GIVING_REST_MAX: Duration = Duration::from_millis(1);
/// From so many bytes on enough is gathered.
pub(super) const GATHERED_BYTES: u64 = 32 * 1024;
/// After how many connections it looks at the clock.
pub(super) const CLOCK_EVERY: usize = 64;

/// How far a thread has read its queue of notifications, and what waits for that.
#[derive(Default)]
pub(super) struct Giving {
    pub(super) n_read: u64,
    /// Who goes on when so many notifications are read; the numbers rise.
    pub(super) turns: VecDeque<(u64, Successor)>,
    /// Connections that wait until the queues they have filled are empty.
    pub(super) held_back: Vec<(Place, ClientId)>,
    /// Connections that were given more than they may have: they are closed when nothing is being given out.
    pub(super) to_close: Vec<Place>,
    /// What is for clients that are being handed over to this thread.
    pub(super) on_their_way: HashMap<ClientId, Vec<Arc<Invalidation>>>,
    /// Room for the connections that one notification is for.
    pub(super) places: Vec<Place>,
    /// What this turn has given.
    pub(super) slice: Slice,
    /// Nothing is given before this unless much waits: what comes meanwhile goes in the same writes.
    pub(super) rest_until: Option<Instant>,
    /// When the last slice ended, and its writes began.
    pub(super) gave_until: Option<Instant>,
    /// How long those took.
    pub(super) writes_took: Duration,
}

/// What a turn has given out.
#[derive(Default)]
pub(super) struct Slice {
    /// To how many connections since the clock was last asked. What is given to nobody counts as well.
    pub(super) n_given: usize,
    pub(super) n_bytes: usize,
    /// A socket that takes more has been given as much as it is offered at a time.
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

/// Who goes on when the queue is read so far.
pub(super) enum Successor {
    /// A connection, with the replies in its node.
    Node(Box<Node<Job>>),
    /// A connection, with what it has sent.
    Connection(Place, ClientId),
}
