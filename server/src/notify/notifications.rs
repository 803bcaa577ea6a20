//! A thread's queue of messages, monitored commands and invalidations for its clients.
//!
//! They have the order of the holds.
//!
//! Any thread may add to the queue under a hold. Only its own thread reads it. The queue never refuses,
//! because messages must reach their subscribers. So its sources bound it. A client whose command has added
//! to a queue with more than [`HIGH_BYTES`] is held back before its *next* command. It holds nothing, and
//! waits until the queue has fallen to [`LOW_BYTES`]. The queue's thread keeps reading whatever its own
//! clients wait for, so each such wait ends.
//! such wait ends.

use std::{
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
};

use braid_protocol::reply::{Reply, Resp};
use braid_storage::observers::channels::ChannelKind;
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

/// A published message.
#[derive(Debug)]
pub struct Message {
    /// The kind of its channel.
    pub kind: ChannelKind,
    /// The channel and the payload in the form of the protocol. It is the same in both RESP versions and for
    /// all subscribers.
    pub body: Shareable,
    /// The range of the channel's name in the body.
    name: Range<usize>,
    /// Subscribed patterns that match the channel's name.
    pub patterns: SmallVec<[Name; 2]>,
    /// The publishing client.
    pub publisher: ClientId,
}

impl Message {
    /// Creates a message on a channel whose name matches some patterns.
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

    /// The channel of the message.
    pub fn channel(&self) -> &[u8] {
        &self.body.bytes()[self.name.clone()]
    }
}

/// The space that the writer of replies reserves for a bulk string besides its bytes.
const BULK_BYTES: usize = 32;

/// A notification to a thread, through its queue.
#[derive(Debug)]
pub enum Notification {
    /// A connection has subscribed to a topic.
    Joined(ConnectionSlot, TopicKind, Name),
    /// A connection has unsubscribed from a topic.
    Left(ConnectionSlot, TopicKind, Name),
    /// A message to which connections of the thread are subscribed, or were a moment ago.
    Published(Arc<Message>),
    /// A connection is shown commands from here on (MONITOR), or no longer.
    Monitors(ConnectionSlot, bool),
    /// A client's command ran, and monitoring clients receive this line.
    Observed(ClientId, Arc<[u8]>),
    /// A client tracks keys in this mode from here on, under this number.
    Tracks(ConnectionSlot, ClientId, TrackerNumber, Arc<Mode>),
    /// A client no longer tracks, and this state of it remains on the shards.
    TracksNoMore(ConnectionSlot, TrackerNumber, Box<Leftover>),
    /// Cached copies of the thread's clients are out of date.
    Invalidated(Whom, Arc<Invalidation>),
}

impl Notification {
    /// The memory that it uses while it waits, including shared data.
    pub fn n_bytes(&self) -> u64 {
        // Allocations have headers, and a shared value has its counts.
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

/// A connection's slot on its thread.
pub type ConnectionSlot = usize;

/// The size in bytes above which a queue holds clients back that add to it.
///
/// Unit tests fill a smaller queue.
pub const HIGH_BYTES: u64 = if cfg!(test) { 16 << 10 } else { 1 << 20 };
/// The size in bytes at which they continue.
pub const LOW_BYTES: u64 = HIGH_BYTES / 2;

/// The queued notifications for a thread's clients.
#[derive(Default)]
pub struct Notifications {
    queue: SegQueue<Notification>,
    /// The number of notifications ever added. Each is counted before it is in the queue.
    n_added: AtomicU64,
    /// The memory of the queued notifications.
    n_bytes: AtomicU64,
    /// The number of the thread's clients that wait for queues to empty.
    n_held_back: AtomicU32,
}

impl Notifications {
    /// Adds a notification. Returns whether the queue is too full for its author to continue after the
    /// command.
    pub fn add(&self, notification: Notification) -> bool {
        let n_bytes = notification.n_bytes();
        self.n_added.fetch_add(1, Ordering::Relaxed);
        let before = self.n_bytes.fetch_add(n_bytes, Ordering::Relaxed);
        self.queue.push(notification);
        before + n_bytes > HIGH_BYTES
    }

    /// The number ever added. A reader that has read this many has read all that are queued now.
    pub fn n_added(&self) -> u64 {
        self.n_added.load(Ordering::Relaxed)
    }

    /// Whether no notification waits.
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// The memory of the waiting notifications.
    pub fn n_bytes(&self) -> u64 {
        self.n_bytes.load(Ordering::Relaxed)
    }

    /// Takes the first one. Only the queue's thread may do this. It then reports the bytes with
    /// [`Notifications::read`].
    pub fn pop(&self) -> Option<Notification> {
        self.queue.pop()
    }

    /// Subtracts read bytes. Returns whether the queue has just fallen to [`LOW_BYTES`], so that clients may
    /// continue.
    #[must_use]
    pub fn read(&self, n_bytes: u64) -> bool {
        // SeqCst: pairs with `is_full`. A thread that holds a client back first counts it and then reads the
        // bytes. Here the bytes fall before the counts are read. So one of the two sees the other.
        let before = self.n_bytes.fetch_sub(n_bytes, Ordering::SeqCst);
        before > LOW_BYTES && before - n_bytes <= LOW_BYTES
    }

    /// Whether a client that is held back must keep waiting.
    pub fn is_full(&self) -> bool {
        // SeqCst: pairs with `read`.
        self.n_bytes.load(Ordering::SeqCst) > LOW_BYTES
    }

    /// Sets the number of the thread's clients that wait for queues to empty.
    pub fn hold_back(&self, n_clients: usize) {
        // SeqCst: pairs with `holds_back`, as described in `read`.
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
