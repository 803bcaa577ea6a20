//! Publish and subscribe: who is subscribed to what, and how a message reaches them.
//!
//! A channel belongs to a shard, as a key would, and the shard counts its subscribers by thread
//! ([`braid_storage::Shard::subscribe`]). SUBSCRIBE and PUBLISH hold that shard. A pattern belongs to no shard: whoever
//! subscribes to one holds all of them. So there is one order of all that happens to a channel, and it is the order in which its
//! events are [sent](Notification) to the threads, under the hold: the message once to each thread that has subscribers, and to the
//! subscriber's own thread that it has come or gone. Each thread reads its notifications in that order and knows, at each message, which
//! of its connections are subscribed.
//!
//! # What a client sees
//!
//! Messages and replies of a connection meet in one stream. From the notification that its subscriptions have changed until the reply
//! to the command that changed them is written, messages are held back: they come after the reply. And a
//! thread that has run such a command writes the reply when it has read its notifications so far: what came earlier goes before it.
//!
//! How a queue of notifications is bounded is told in [`crate::notifications`].

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use braid_storage::{
    Audience, ChannelKind,
    glob::{Case, glob_match},
};
use smallvec::SmallVec;

use crate::{
    audiences::{Audiences, Heard},
    clients::ClientId,
    tracking::{Invalidation, Leftover, Mode, TrackerNumber, Whom},
};

/// What one can be subscribed to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TopicKind {
    /// A channel (SUBSCRIBE).
    Channel,
    /// All channels whose names match a pattern (PSUBSCRIBE).
    Pattern,
    /// A sharded channel (SSUBSCRIBE).
    ShardChannel,
}

impl TopicKind {
    /// All kinds.
    pub const ALL: [TopicKind; 3] = [TopicKind::Channel, TopicKind::Pattern, TopicKind::ShardChannel];

    /// The kind of channels that are subscribed to by name; none for patterns.
    pub fn channel_kind(self) -> Option<ChannelKind> {
        match self {
            TopicKind::Channel => Some(ChannelKind::Global),
            TopicKind::ShardChannel => Some(ChannelKind::Sharded),
            TopicKind::Pattern => None,
        }
    }

    /// The kind under which a channel is subscribed to by name.
    pub fn of_channel(kind: ChannelKind) -> TopicKind {
        match kind {
            ChannelKind::Global => TopicKind::Channel,
            ChannelKind::Sharded => TopicKind::ShardChannel,
        }
    }
}

/// The name of a channel, or a pattern.
pub type Name = Arc<[u8]>;

/// What a client is subscribed to.
#[derive(Clone, Debug, Default)]
pub struct Subscriptions {
    /// With when each was added.
    by_kind: [HashMap<Name, u64>; TopicKind::ALL.len()],
    n_added: u64,
}

impl Subscriptions {
    /// The names of a kind, in the order in which they were added.
    pub fn of(&self, kind: TopicKind) -> Vec<Name> {
        let mut names: Vec<_> = self.by_kind[kind as usize].iter().collect();
        names.sort_unstable_by_key(|&(_, added)| added);
        names.into_iter().map(|(name, _)| Arc::clone(name)).collect()
    }

    /// Adds one; gives its name if it is new.
    pub fn add(&mut self, kind: TopicKind, name: &[u8]) -> Option<Name> {
        let names = &mut self.by_kind[kind as usize];
        if names.contains_key(name) {
            return None;
        }
        let name = Name::from(name);
        names.insert(Arc::clone(&name), self.n_added);
        self.n_added += 1;
        Some(name)
    }

    /// Takes one away; gives its name if it was there.
    pub fn remove(&mut self, kind: TopicKind, name: &[u8]) -> Option<Name> {
        self.by_kind[kind as usize].remove_entry(name).map(|(name, _)| name)
    }

    /// How many there are of a kind.
    pub fn n_of(&self, kind: TopicKind) -> usize {
        self.by_kind[kind as usize].len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.by_kind.iter().all(HashMap::is_empty)
    }

    /// The channels of both kinds, by name, in no order.
    pub fn channels(&self) -> impl Iterator<Item = (ChannelKind, &Name)> {
        let kinds = TopicKind::ALL.into_iter().filter_map(|kind| Some((kind, kind.channel_kind()?)));
        kinds.flat_map(|(kind, of)| self.by_kind[kind as usize].keys().map(move |name| (of, name)))
    }
}

/// A message that was published.
#[derive(Debug)]
pub struct Message {
    /// Of what kind its channel is.
    pub kind: ChannelKind,
    /// Where it was published.
    pub channel: Box<[u8]>,
    /// What was published.
    pub payload: Box<[u8]>,
    /// The patterns that somebody is subscribed to and that the channel's name matches.
    pub patterns: SmallVec<[Name; 2]>,
    /// Who published it.
    pub publisher: ClientId,
}

/// What the threads are told of, each by a queue of its own.
#[derive(Debug)]
pub enum Notification {
    /// A connection is subscribed to something.
    Joined(Place, TopicKind, Name),
    /// It is so no more.
    Left(Place, TopicKind, Name),
    /// Something was published to which connections of the thread are subscribed, or were a moment ago.
    Published(Arc<Message>),
    /// A connection monitors from here on (MONITOR), or does so no more.
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
                size_of::<Message>() + message.channel.len() + message.payload.len() + patterns + 3 * SHARED
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

/// What all threads share of it.
#[derive(Default)]
pub struct PubSub {
    /// Changed with all shards held, so it does not change for who holds one; and by who takes leave, which nobody waits for.
    pub patterns: Audiences,
    n_channels: [AtomicU64; ChannelKind::ALL.len()],
}

impl PubSub {
    /// How many channels have subscribers.
    pub fn n_channels(&self, kind: ChannelKind) -> u64 {
        self.n_channels[kind as usize].load(Ordering::Relaxed)
    }

    /// A channel has its first subscriber.
    pub fn channel_began(&self, kind: ChannelKind) {
        self.n_channels[kind as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// A channel has lost its last one.
    pub fn channel_ended(&self, kind: ChannelKind) {
        self.n_channels[kind as usize].fetch_sub(1, Ordering::Relaxed);
    }

    /// The patterns that a channel's name matches, in the order in which they came, and who listens to each.
    fn matching(&self, channel: &[u8]) -> (SmallVec<[Name; 2]>, SmallVec<[Audience; 2]>) {
        let mut matching: SmallVec<[(u64, Name, Audience); 2]> = SmallVec::new();
        self.patterns.load().each(|Heard { name, audience, begun, .. }| {
            if glob_match(name, channel, Case::Sensitive) {
                matching.push((*begun, Arc::clone(name), audience.clone()));
            }
        });
        matching.sort_unstable_by_key(|&(begun, ..)| begun);
        matching.into_iter().map(|(_, name, audience)| (name, audience)).unzip()
    }

    /// Publishes on a channel, with its shard held: `audience` is of those who are subscribed to it by name. Sends the message by
    /// `notify` to each thread concerned, and gives the number of subscriptions that it meets.
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
        let message =
            Arc::new(Message { kind, channel: channel.into(), payload: payload.into(), patterns, publisher });
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
            pubsub.patterns.add(name, thread);
        }
        assert_eq!(pubsub.patterns.len(), 3);
        let (count, mut sent) = publish(&pubsub, b"news", Some(&audience));
        sent.sort_unstable();
        assert_eq!((count, sent), (6, vec![(0, 2), (1, 2), (2, 2)]));
        pubsub.patterns.remove(&n, 1);
        pubsub.patterns.remove(&n, 2);
        pubsub.patterns.remove(&all, 2);
        assert_eq!(pubsub.patterns.len(), 1);
        assert_eq!(publish(&pubsub, b"news", None), (0, vec![]));
        assert_eq!(publish(&pubsub, b"xs", None), (1, vec![(3, 1)]));
    }

    #[test]
    fn sharded_channels_match_no_pattern() {
        let pubsub = PubSub::default();
        pubsub.patterns.add(&Name::from(b"*".as_slice()), 0);
        let n = pubsub.publish(ChannelKind::Sharded, b"c", b"", ClientId(1), None, |_, _| panic!("sent"));
        assert_eq!(n, 0);
    }

    #[test]
    fn one_is_subscribed_once_to_each() {
        let mut own = Subscriptions::default();
        assert!(own.add(TopicKind::Channel, b"a").is_some());
        assert!(own.add(TopicKind::Channel, b"a").is_none());
        assert!(own.add(TopicKind::ShardChannel, b"a").is_some());
        assert!(own.add(TopicKind::Pattern, b"a").is_some());
        assert_eq!(own.channels().count(), 2);
        assert!(own.add(TopicKind::Channel, b"0").is_some());
        let names: Vec<Name> = [b"a", b"0"].map(|name| Name::from(&name[..])).into();
        assert_eq!(own.of(TopicKind::Channel), names, "in the order in which they came");
        assert!(own.remove(TopicKind::Channel, b"0").is_some());
        assert!(own.remove(TopicKind::Pattern, b"b").is_none());
        for kind in TopicKind::ALL {
            assert!(own.remove(kind, b"a").is_some());
        }
        assert!(own.is_empty());
    }
}
