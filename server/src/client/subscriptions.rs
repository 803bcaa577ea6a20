//! What a client is subscribed to.

use std::{collections::HashMap, sync::Arc};

use braid_storage::{ChannelKind, glob::literal_len};

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

    /// Whether who is subscribed to something may hear of keyspace events. Such subscriptions come and go with all shards held.
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
    /// A key's: what happens to it.
    Keyspace,
    /// An event's: the keys to which it happens.
    Keyevent,
}

impl EventChannel {
    /// Both.
    pub const ALL: [EventChannel; 2] = [EventChannel::Keyspace, EventChannel::Keyevent];

    /// What the channels' names begin with.
    pub const fn prefix(self) -> &'static [u8] {
        match self {
            EventChannel::Keyspace => b"__keyspace@",
            EventChannel::Keyevent => b"__keyevent@",
        }
    }

    /// Whether who is subscribed to something may hear of events by such a channel.
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

    /// Whether one of them can meet keyspace events.
    pub fn meet_events(&self) -> bool {
        let mut kinds = TopicKind::ALL.into_iter();
        kinds.any(|kind| self.by_kind[kind as usize].keys().any(|name| kind.meets_events(name)))
    }

    /// The channels of both kinds, by name, in no order.
    pub fn channels(&self) -> impl Iterator<Item = (ChannelKind, &Name)> {
        let kinds = TopicKind::ALL.into_iter().filter_map(|kind| Some((kind, kind.channel_kind()?)));
        kinds.flat_map(|(kind, of)| self.by_kind[kind as usize].keys().map(move |name| (of, name)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
