//! Publish and subscribe: the subscribers, and the path of a message to them.
//!
//! A channel belongs to a shard, as a key would, and the shard counts its subscribers by thread
//! ([`braid_storage::keyspace::shard::Shard::subscribe`]). SUBSCRIBE and PUBLISH hold that shard. A pattern
//! belongs to no shard, so PSUBSCRIBE holds all of them. So all events of a channel have one order. In this
//! order they are [sent](Notification) to the threads, under the hold. A message is sent once to each thread
//! with subscribers. A change of subscriptions is sent to the subscriber's own thread. Each thread reads its
//! notifications in that order, and knows at each message which of its connections are subscribed.
//!
//! # Order of messages and replies
//!
//! Messages and replies to a connection meet in one stream. Messages are held back from the notification of
//! changed subscriptions until the reply to the command is written, and follow that reply. A thread that has
//! run such a command writes the reply when it has read its notifications so far. So earlier messages precede
//! it.
//!
//! [`crate::notify::notifications`] describes how a queue of notifications is bounded.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use braid_storage::{
    glob::glob_match_from,
    observers::channels::{Audience, ChannelKind},
};
use smallvec::SmallVec;

use crate::{
    client::id::ClientId,
    notify::{
        notifications::{Message, Notification},
        pattern_tree::{Audiences, Heard},
        subscriptions::{EventChannel, Name, TopicKind},
    },
};

/// The shared state of publish and subscribe.
#[derive(Default)]
pub struct PubSub {
    /// Changed with all shards held, so it is constant for a holder of a shard. Leaving clients change it,
    /// too, for which no other client waits.
    pub patterns: Audiences,
    n_channels: [AtomicU64; ChannelKind::ALL.len()],
    /// The channels of keyspace events that are subscribed to by name. Their shards have them, too. But
    /// events happen in other shards, so these change with all shards held, like patterns.
    pub event_channels: Audiences,
    /// The number of subscriptions that can match each channel of keyspace events.
    n_event_listeners: [AtomicU64; EventChannel::ALL.len()],
}

impl PubSub {
    /// The number of channels with subscribers.
    pub fn n_channels(&self, kind: ChannelKind) -> u64 {
        self.n_channels[kind as usize].load(Ordering::Relaxed)
    }

    /// Counts a channel with its first subscriber.
    pub fn channel_began(&self, kind: ChannelKind) {
        self.n_channels[kind as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Removes a channel that has lost its last subscriber from the count.
    pub fn channel_ended(&self, kind: ChannelKind) {
        self.n_channels[kind as usize].fetch_sub(1, Ordering::Relaxed);
    }

    /// Adds a subscription of a thread's connection. The caller updates the shard's own data.
    pub fn joined(&self, kind: TopicKind, name: &Name, thread: usize) {
        if let Some(audiences) = self.audiences(kind, name) {
            audiences.add(name, thread);
        }
        self.count_event_listeners(kind, name, |n| n.fetch_add(1, Ordering::Relaxed));
    }

    /// Removes a subscription of a thread's connection.
    pub fn left(&self, kind: TopicKind, name: &Name, thread: usize) {
        if let Some(audiences) = self.audiences(kind, name) {
            audiences.remove(name, thread);
        }
        self.count_event_listeners(kind, name, |n| n.fetch_sub(1, Ordering::Relaxed));
    }

    /// The place of names that are not their shards' alone.
    fn audiences(&self, kind: TopicKind, name: &[u8]) -> Option<&Audiences> {
        match kind {
            TopicKind::Pattern => Some(&self.patterns),
            _ => kind.meets_events(name).then_some(&self.event_channels),
        }
    }

    fn count_event_listeners(&self, kind: TopicKind, name: &[u8], count: impl Fn(&AtomicU64) -> u64) {
        for channel in EventChannel::ALL.into_iter().filter(|channel| channel.is_met_by(kind, name)) {
            count(&self.n_event_listeners[channel as usize]);
        }
    }

    /// Whether a subscriber may receive events by channels of a kind.
    pub fn hears_events(&self, channel: EventChannel) -> bool {
        self.n_event_listeners[channel as usize].load(Ordering::Relaxed) > 0
    }

    /// The patterns that match a channel's name, with their listeners, in order of addition.
    fn matching(&self, channel: &[u8]) -> (SmallVec<[Name; 2]>, SmallVec<[Audience; 2]>) {
        if self.patterns.is_empty() {
            return Default::default();
        }
        let mut matching: SmallVec<[(u64, Name, Audience); 2]> = SmallVec::new();
        self.patterns.load().each(|Heard { name, audience, n_literal, begun, .. }| {
            if glob_match_from(name, *n_literal, channel) {
                matching.push((*begun, Arc::clone(name), audience.clone()));
            }
        });
        matching.sort_unstable_by_key(|&(begun, ..)| begun);
        matching.into_iter().map(|(_, name, audience)| (name, audience)).unzip()
    }

    /// Publishes on a channel with its shard held, and returns the number of matched subscriptions.
    ///
    /// `audience` contains the subscribers by name. The message is sent with `notify` to each of their
    /// threads.
    pub fn publish(
        &self,
        kind: ChannelKind,
        channel: &[u8],
        payload: &[u8],
        publisher: ClientId,
        audience: Option<&Audience>,
        mut notify: impl FnMut(usize, Notification),
    ) -> u64 {
        // Sharded channels are subscribed to by name only.
        let (patterns, by_pattern) = match kind {
            ChannelKind::Global => self.matching(channel),
            ChannelKind::Sharded => Default::default(),
        };
        let mut threads: SmallVec<[usize; 8]> = SmallVec::new();
        let mut n = 0;
        for audience in audience.into_iter().chain(&by_pattern) {
            n += audience.len();
            for thread in audience.listeners() {
                if !threads.contains(&thread) {
                    threads.push(thread);
                }
            }
        }
        if n == 0 {
            return 0;
        }
        let message = Arc::new(Message::new(kind, channel, payload, patterns, publisher));
        for thread in threads {
            notify(thread, Notification::Published(Arc::clone(&message)));
        }
        n
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn publish(pubsub: &PubSub, channel: &[u8], audience: Option<&Audience>) -> (u64, Vec<(usize, usize)>) {
        let mut sent = Vec::new();
        let kind = ChannelKind::Global;
        let n = pubsub.publish(kind, channel, b"payload", ClientId(7), audience, |thread, notification| {
            let Notification::Published(message) = notification else { panic!("{notification:?}") };
            sent.push((thread, message.patterns.len()));
        });
        (n, sent)
    }

    #[test]
    fn a_message_goes_once_to_each_thread_and_counts_for_each_subscription() {
        let pubsub = PubSub::default();
        let mut audience = Audience::default();
        audience.add(0);
        audience.add(2);
        audience.add(2);
        let [all, n, others] = [b"*".as_slice(), b"n*", b"x*"].map(Name::from);
        for (name, thread) in [(&all, 2), (&n, 1), (&n, 2), (&others, 3)] {
            pubsub.joined(TopicKind::Pattern, name, thread);
        }
        assert_eq!(pubsub.patterns.len(), 3);
        let (count, mut sent) = publish(&pubsub, b"news", Some(&audience));
        sent.sort_unstable();
        assert_eq!((count, sent), (6, vec![(0, 2), (1, 2), (2, 2)]));
        pubsub.left(TopicKind::Pattern, &n, 1);
        pubsub.left(TopicKind::Pattern, &n, 2);
        pubsub.left(TopicKind::Pattern, &all, 2);
        assert_eq!(pubsub.patterns.len(), 1);
        assert_eq!(publish(&pubsub, b"news", None), (0, vec![]));
        assert_eq!(publish(&pubsub, b"xs", None), (1, vec![(3, 1)]));
    }

    #[test]
    fn sharded_channels_match_no_pattern() {
        let pubsub = PubSub::default();
        pubsub.joined(TopicKind::Pattern, &Name::from(b"*".as_slice()), 0);
        let n = pubsub.publish(ChannelKind::Sharded, b"c", b"", ClientId(1), None, |_, _| panic!("sent"));
        assert_eq!(n, 0);
    }
}
