//! A thread's queue of notifications: what was published, monitored and invalidated for its clients, in the
//! order of the holds.
//!
//! Anybody may add to it, under a hold; only its thread reads it. It never refuses: what is published must
//! reach its subscribers. So it is bounded by its sources. A client whose command has added to a queue that
//! holds more than [`HIGH_BYTES`] is held back before its *next* command, with nothing held, until the queue
//! has fallen to [`LOW_BYTES`]. The thread of the queue reads on whatever its own clients wait for, so each
//! such wait ends.

use std::{
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
};

use braid_protocol::reply::{Reply, Resp};
use braid_storage::ChannelKind;
use crossbeam_queue::SegQueue;
use smallvec::SmallVec;

use crate::{
    client::id::ClientId,
    notify::{
        pushed::Shareable,
        subscriptions::{Name, TopicKind},
        tracking_table::{Invalidation, Leftover, Mode, TrackerNumber, Whom},
    },
};

/// A message that was published.
#[derive(Debug)]
pub struct Message {
    /// Of what kind its channel is.
    pub kind: ChannelKind,
    /// The channel and what was published, as the protocol writes them: the same in both dialects and for all
    /// subscribers.
    pub body: Shareable,
    /// Where the channel's name stands in there.
    name: Range<usize>,
    /// The patterns that somebody is subscribed to and that the channel's name matches.
    pub patterns: SmallVec<[Name; 2]>,
    /// Who published it.
    pub publisher: ClientId,
}

impl Message {
    /// A message on a channel whose name matches some patterns.
    pub fn new(
        kind: ChannelKind,
        channel: &[u8],
        payload: &[u8],
        patterns: SmallVec<[Name; 2]>,
        publisher: ClientId,
    ) -> Self {
        let mut body = Vec::with_capacity(channel.len() + payload.len() + 2 * BULK_BYTES);
        let mut reply = Reply::new(&mut body, Resp::default());
        reply.bulk(channel);
        reply.bulk(payload);
        // "$7\r\nchannel\r\n": the name begins after the first end of a line.
        let start =
            body.iter().position(|&byte| byte == b'\n').expect("a bulk string begins with its length") + 1;
        let name = start..start + channel.len();
        Message { kind, body: Shareable::new(body), name, patterns, publisher }
    }

    /// Where it was published.
    pub fn channel(&self) -> &[u8] {
        &self.body.bytes()[self.name.clone()]
    }
}

/// What the writer of replies reserves for a bulk string, beside its bytes.
const BULK_BYTES: usize = 32;

/// What the threads are told of, each by a queue of its own.
#[derive(Debug)]
pub enum Notification {
    /// A connection is subscribed to something.
    Joined(Place, TopicKind, Name),
    /// It is so no more.
    Left(Place, TopicKind, Name),
    /// Something was published to which connections of the thread are subscribed, or were a moment ago.
    Published(Arc<Message>),
    /// A connection is shown commands from here on (MONITOR), or no more.
    Monitors(Place, bool),
    /// A client's command ran, which monitoring clients are shown in this line.
    Observed(ClientId, Arc<[u8]>),
    /// A client keeps copies of keys in this way from here on, under this number.
    Tracks(Place, ClientId, TrackerNumber, Arc<Mode>),
    /// It does so no more, and this is left of it on the shards.
    TracksNoMore(Place, TrackerNumber, Box<Leftover>),
    /// Copies that clients of the thread keep are of no use any more.
    Invalidated(Whom, Arc<Invalidation>),
}

impl Notification {
    /// The memory that it takes while it waits, what it shares with other threads' included.
    pub fn n_bytes(&self) -> u64 {
        // Allocations have headers, and a shared value its counts.
        const SHARED: usize = 32;
        let further = match self {
            Notification::Joined(..)
            | Notification::Left(..)
            | Notification::Monitors(..)
            | Notification::Tracks(..)
            | Notification::TracksNoMore(..) => 0,
            Notification::Published(message) => {
                let patterns = message.patterns.len() * size_of::<Name>();
                size_of::<Message>() + message.body.bytes().len() + patterns + 2 * SHARED
            }
            Notification::Observed(_, line) => line.len() + SHARED,
            Notification::Invalidated(_, what) => {
                let keys = what.keys.iter().flatten().map(|key| key.len() + SHARED).sum::<usize>();
                size_of::<Invalidation>() + keys + SHARED
            }
        };
        (size_of::<Notification>() + further) as u64
    }
}

/// A connection's place in its thread.
pub type Place = usize;

/// Above so many bytes a queue holds back the clients whose commands add to it.
pub const HIGH_BYTES: u64 = 1 << 20;
/// They go on when it holds no more than this.
pub const LOW_BYTES: u64 = HIGH_BYTES / 2;

/// What waits to be given to a thread's clients.
#[derive(Default)]
pub struct Notifications {
    queue: SegQueue<Notification>,
    /// How many were ever added; each is counted before it is in the queue.
    n_added: AtomicU64,
    /// The memory of those that are in the queue.
    n_bytes: AtomicU64,
    /// How many of the thread's clients wait for queues to empty.
    n_held_back: AtomicU32,
}

impl Notifications {
    /// Adds one; says whether the queue is too full for its author to go on after the command.
    pub fn add(&self, notification: Notification) -> bool {
        let n_bytes = notification.n_bytes();
        self.n_added.fetch_add(1, Ordering::Relaxed);
        let before = self.n_bytes.fetch_add(n_bytes, Ordering::Relaxed);
        self.queue.push(notification);
        before + n_bytes > HIGH_BYTES
    }

    /// How many were ever added: whoever has read as many has read all that is in the queue now.
    pub fn n_added(&self) -> u64 {
        self.n_added.load(Ordering::Relaxed)
    }

    /// Whether none waits.
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// The memory of those that wait.
    pub fn n_bytes(&self) -> u64 {
        self.n_bytes.load(Ordering::Relaxed)
    }

    /// Takes the first. Only the thread of the queue may; it then reports the bytes by
    /// [`Notifications::read`].
    pub fn pop(&self) -> Option<Notification> {
        self.queue.pop()
    }

    /// Notes that so many bytes have left the queue; says whether it has just fallen to [`LOW_BYTES`], so
    /// that clients may go on.
    #[must_use]
    pub fn read(&self, n_bytes: u64) -> bool {
        // SeqCst: pairs with `is_full`. A thread that holds a client back counts it first and looks at the
        // bytes then, and here the bytes fall before the counts are looked at: one of the two sees the other.
        let before = self.n_bytes.fetch_sub(n_bytes, Ordering::SeqCst);
        before > LOW_BYTES && before - n_bytes <= LOW_BYTES
    }

    /// Whether a client that is held back must go on waiting.
    pub fn is_full(&self) -> bool {
        // SeqCst: pairs with `read`.
        self.n_bytes.load(Ordering::SeqCst) > LOW_BYTES
    }

    /// Says how many of the thread's clients wait for queues to empty.
    pub fn hold_back(&self, n_clients: usize) {
        // SeqCst: pairs with `holds_back`, as told in `read`.
        self.n_held_back.store(n_clients as u32, Ordering::SeqCst);
    }

    /// Whether a client of the thread waits for a queue to empty.
    pub fn holds_back(&self) -> bool {
        // SeqCst: pairs with `hold_back`.
        self.n_held_back.load(Ordering::SeqCst) > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(n_bytes: usize) -> Notification {
        Notification::Observed(ClientId(1), Arc::from(vec![0; n_bytes]))
    }

    #[test]
    fn a_queue_is_full_from_its_high_mark_to_its_low_one() {
        let queue = Notifications::default();
        let half = (HIGH_BYTES / 2) as usize;
        assert!(!queue.add(line(half)));
        assert!(queue.add(line(half)), "it holds more than the mark: two lines and what goes with them");
        assert!(queue.is_full());
        let mut crossed = Vec::new();
        while let Some(notification) = queue.pop() {
            crossed.push(queue.read(notification.n_bytes()));
        }
        assert_eq!(crossed, [false, true], "one line is more than the low mark");
        assert!(!queue.is_full());
        assert_eq!((queue.n_bytes(), queue.n_added()), (0, 2));
    }
}
