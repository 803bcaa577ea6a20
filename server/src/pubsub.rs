//! Publish and subscribe: who is subscribed to what, and how a message reaches them.
//!
//! A channel belongs to a shard, as a key would, and the shard counts its subscribers by thread
//! ([`braid_storage::Shard::subscribe`]). SUBSCRIBE and PUBLISH hold that shard. A pattern belongs to no shard: whoever
//! subscribes to one holds all of them. So there is one order of all that happens to a channel, and it is the order in which its
//! events are [posted](Post) to the threads, under the hold: the message once to each thread that has subscribers, and to the
//! subscriber's own thread that it has come or gone. Each thread reads its posts in that order and knows, at each message, which
//! of its connections are subscribed.
//!
//! # What a client sees
//!
//! Messages and replies of a connection meet in one stream. From the post that its subscriptions have changed until the reply
//! to the command that changed them is written, messages are [held back](crate::io::Push): they come after the reply. And a
//! thread that has run such a command reads its posts before it writes the reply: what came earlier goes before it.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use arc_swap::{ArcSwap, Guard};
use braid_storage::{
    Audience, ChannelKind,
    glob::{Case, glob_match},
};
use smallvec::SmallVec;

use crate::{
    clients::ClientId,
    tracking::{Invalidation, Mode, Whom},
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
#[derive(Clone, Debug)]
pub enum Post {
    /// A connection is subscribed to something.
    Joined(Place, TopicKind, Name),
    /// It is so no more.
    Left(Place, TopicKind, Name),
    /// Something was published to which connections of the thread are subscribed, or were a moment ago.
    Published(Arc<Message>),
    /// A connection looks on from here on (MONITOR), or does so no more.
    LooksOn(Place, bool),
    /// A client's command ran, which those who look on are shown in this line.
    Observed(ClientId, Arc<[u8]>),
    /// A client keeps copies of keys in this way from here on, or does so no more.
    Tracks(Place, ClientId, Option<Arc<Mode>>),
    /// Copies that clients of the thread keep are of no use any more.
    Invalidated(Whom, Arc<Invalidation>),
}

/// A connection's place in its thread.
pub type Place = usize;

/// Who listens to each of some names that belong to no shard: patterns of channels, prefixes of keys. Whoever reads them sees them
/// as they were at one moment.
#[derive(Default)]
pub struct Audiences(ArcSwap<Vec<(Name, Audience)>>);

impl Audiences {
    /// How many names there are.
    pub fn len(&self) -> usize {
        self.0.load().len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All of them, in the order in which they came.
    pub fn load(&self) -> Guard<Arc<Vec<(Name, Audience)>>> {
        self.0.load()
    }

    /// A connection of a thread listens to a name.
    pub fn add(&self, name: &Name, thread: usize) {
        self.0.rcu(|names| {
            let mut names = Vec::clone(names);
            match names.iter_mut().find(|(known, _)| known == name) {
                Some((_, audience)) => audience.add(thread),
                None => {
                    let mut audience = Audience::default();
                    audience.add(thread);
                    names.push((Arc::clone(name), audience));
                }
            }
            names
        });
    }

    /// A connection of a thread listens to a name no more.
    pub fn remove(&self, name: &Name, thread: usize) {
        self.0.rcu(|names| {
            let mut names = Vec::clone(names);
            if let Some(at) = names.iter().position(|(known, _)| known == name) {
                names[at].1.remove(thread);
                if names[at].1.is_empty() {
                    names.remove(at);
                }
            }
            names
        });
    }
}

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

    /// Publishes on a channel, with its shard held: `audience` is of those who are subscribed to it by name. Sends the message by
    /// `post` to each thread concerned, and gives the number of subscriptions that it meets.
    pub fn publish(
        &self,
        kind: ChannelKind,
        channel: &[u8],
        payload: &[u8],
        publisher: ClientId,
        audience: Option<&Audience>,
        mut post: impl FnMut(usize, Post),
    ) -> u64 {
        let patterns = self.patterns.load();
        // Sharded channels are subscribed to by name only.
        let patterns = if kind == ChannelKind::Global { &patterns[..] } else { &[] };
        let matching = || patterns.iter().filter(|(name, _)| glob_match(name, channel, Case::Sensitive));
        let mut threads: SmallVec<[usize; 8]> = SmallVec::new();
        let mut n = 0;
        for audience in audience.into_iter().chain(matching().map(|(_, audience)| audience)) {
            n += audience.len();
            let more = audience.listeners().filter(|thread| !threads.contains(thread));
            let more: SmallVec<[usize; 8]> = more.collect();
            threads.extend(more);
        }
        if n == 0 {
            return 0;
        }
        let message = Arc::new(Message {
            kind,
            channel: channel.into(),
            payload: payload.into(),
            patterns: matching().map(|(name, _)| Arc::clone(name)).collect(),
            publisher,
        });
        for thread in threads {
            post(thread, Post::Published(Arc::clone(&message)));
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
        let n = pubsub.publish(kind, channel, b"payload", ClientId(7), audience, |thread, post| {
            let Post::Published(message) = post else { panic!("{post:?}") };
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
