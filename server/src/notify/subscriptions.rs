//! The subscriptions of a client.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use braid_storage::{glob::literal_len, observers::channels::ChannelKind};

use crate::client::footprint::NAME_BYTES;

/// A kind of subscription.
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

    /// Whether a subscription may receive keyspace events. Such subscriptions change with all shards held.
    pub fn meets_events(self, name: &[u8]) -> bool {
        EventChannel::ALL.iter().any(|channel| channel.is_met_by(self, name))
    }

    /// The kind under which a channel is subscribed to by name.
    pub fn of_channel(kind: ChannelKind) -> TopicKind {
        match kind {
            ChannelKind::Global => TopicKind::Channel,
            ChannelKind::Sharded => TopicKind::ShardChannel,
        }
    }
}

/// The channels on which keyspace events are published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventChannel {
    /// A key's channel, with its events.
    Keyspace,
    /// An event's channel, with its keys.
    Keyevent,
}

impl EventChannel {
    /// Both channels.
    pub const ALL: [EventChannel; 2] = [EventChannel::Keyspace, EventChannel::Keyevent];

    /// The prefix of the channels' names.
    pub const fn prefix(self) -> &'static [u8] {
        match self {
            EventChannel::Keyspace => b"__keyspace@",
            EventChannel::Keyevent => b"__keyevent@",
        }
    }

    /// Whether a subscription may receive events by such a channel.
    pub fn is_met_by(self, kind: TopicKind, name: &[u8]) -> bool {
        match kind {
            TopicKind::Channel => name.starts_with(self.prefix()),
            TopicKind::Pattern => {
                let literal = &name[..literal_len(name)];
                literal.starts_with(self.prefix()) || self.prefix().starts_with(literal)
            }
            TopicKind::ShardChannel => false,
        }
    }
}

/// The name of a channel, or a pattern.
pub type Name = Arc<[u8]>;

/// The subscriptions of a client. Its own commands change them. Other threads check them when its user loses
/// a right to channels.
#[derive(Debug, Default)]
pub struct Subscriptions(Mutex<Option<Box<Topics>>>);

#[derive(Debug, Default)]
struct Topics {
    /// The names, with the order of their addition.
    by_kind: [HashMap<Name, u64>; TopicKind::ALL.len()],
    n_added: u64,
    /// The memory of the names.
    n_bytes: usize,
}

impl Subscriptions {
    fn topics(&self) -> MutexGuard<'_, Option<Box<Topics>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The names of a kind, in the order of their addition.
    pub fn of(&self, kind: TopicKind) -> Vec<Name> {
        let topics = self.topics();
        let mut names: Vec<_> = topics.iter().flat_map(|topics| &topics.by_kind[kind as usize]).collect();
        names.sort_unstable_by_key(|&(_, added)| added);
        names.into_iter().map(|(name, _)| Arc::clone(name)).collect()
    }

    /// Adds a subscription, and returns its name if it is new.
    pub fn add(&self, kind: TopicKind, name: &[u8]) -> Option<Name> {
        let mut topics = self.topics();
        let Topics { by_kind, n_added, n_bytes } = &mut **topics.get_or_insert_default();
        let names = &mut by_kind[kind as usize];
        if names.contains_key(name) {
            return None;
        }
        let name = Name::from(name);
        names.insert(Arc::clone(&name), *n_added);
        *n_added += 1;
        *n_bytes += NAME_BYTES + name.len();
        Some(name)
    }

    /// Removes a subscription, and returns its name if it existed.
    pub fn remove(&self, kind: TopicKind, name: &[u8]) -> Option<Name> {
        let mut topics = self.topics();
        let Topics { by_kind, n_bytes, .. } = &mut **topics.as_mut()?;
        let (name, _) = by_kind[kind as usize].remove_entry(name)?;
        *n_bytes -= NAME_BYTES + name.len();
        topics.take_if(|topics| topics.by_kind.iter().all(HashMap::is_empty));
        Some(name)
    }

    /// Removes up to `n_max` subscriptions of any kind.
    pub fn take_some(&self, n_max: usize) -> Vec<(TopicKind, Name)> {
        let mut taken = Vec::new();
        for kind in TopicKind::ALL {
            let some: Vec<Name> = match &*self.topics() {
                Some(topics) => {
                    topics.by_kind[kind as usize].keys().take(n_max - taken.len()).cloned().collect()
                }
                None => break,
            };
            taken.extend(some.iter().filter_map(|name| Some((kind, self.remove(kind, name)?))));
        }
        taken
    }

    /// The number of subscriptions of a kind.
    pub fn n_of(&self, kind: TopicKind) -> usize {
        self.topics().as_ref().map_or(0, |topics| topics.by_kind[kind as usize].len())
    }

    /// The memory of all subscriptions.
    pub fn n_bytes(&self) -> usize {
        self.topics().as_ref().map_or(0, |topics| topics.n_bytes)
    }

    /// Whether there are no subscriptions.
    pub fn is_empty(&self) -> bool {
        self.topics().is_none()
    }

    /// Whether a predicate holds for all names of all kinds.
    pub fn all(&self, holds: impl Fn(TopicKind, &[u8]) -> bool) -> bool {
        let topics = self.topics();
        let of_kind =
            |(kind, names): (TopicKind, &HashMap<Name, u64>)| names.keys().all(|name| holds(kind, name));
        topics.as_ref().is_none_or(|topics| TopicKind::ALL.into_iter().zip(&topics.by_kind).all(of_kind))
    }

    /// Whether one of them can match keyspace events.
    pub fn meet_events(&self) -> bool {
        !self.all(|kind, name| !kind.meets_events(name))
    }

    /// The channels of both kinds, by name, in no order.
    pub fn channels(&self) -> Vec<(ChannelKind, Name)> {
        let topics = self.topics();
        let kinds = TopicKind::ALL.into_iter().filter_map(|kind| Some((kind, kind.channel_kind()?)));
        let names = |(kind, of): (TopicKind, ChannelKind)| {
            let names = topics.iter().flat_map(move |topics| topics.by_kind[kind as usize].keys());
            names.map(move |name| (of, Arc::clone(name)))
        };
        kinds.flat_map(names).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_is_subscribed_once_to_each() {
        let own = Subscriptions::default();
        assert!(own.add(TopicKind::Channel, b"a").is_some());
        assert!(own.add(TopicKind::Channel, b"a").is_none());
        assert!(own.add(TopicKind::ShardChannel, b"a").is_some());
        assert!(own.add(TopicKind::Pattern, b"a").is_some());
        assert_eq!(own.channels().len(), 2);
        assert!(own.add(TopicKind::Channel, b"0").is_some());
        let names: Vec<Name> = [b"a", b"0"].map(|name| Name::from(&name[..])).into();
        assert_eq!(own.of(TopicKind::Channel), names, "in the order in which they came");
        assert!(own.remove(TopicKind::Channel, b"0").is_some());
        assert!(own.remove(TopicKind::Pattern, b"b").is_none());
        assert_eq!(own.n_bytes(), 3 * (NAME_BYTES + 1));
        let others = Subscriptions::default();
        for kind in [TopicKind::Pattern, TopicKind::ShardChannel] {
            assert!(others.add(kind, b"a").is_some());
        }
        assert_eq!(others.take_some(1), [(TopicKind::Pattern, Name::from(&b"a"[..]))]);
        assert_eq!(others.take_some(9), [(TopicKind::ShardChannel, Name::from(&b"a"[..]))]);
        assert!(others.is_empty() && others.take_some(9).is_empty());
        for kind in TopicKind::ALL {
            assert!(own.remove(kind, b"a").is_some());
        }
        assert!(own.is_empty());
        assert_eq!(own.n_bytes(), 0);
    }
}
