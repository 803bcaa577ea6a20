//! Channels: the number of subscribers of each, and the listeners that pass messages on to them.
//!
//! A channel is named and found like a key, and belongs to a shard like one. So the holder of the shard
//! orders all its messages and subscriptions. A channel contains nothing: a published message goes to the
//! *listeners*, which pass it on to the subscribers that they know. This file does not know the type of a
//! listener, only its number.

use std::collections::HashMap;

use smallvec::SmallVec;

/// Kinds of channels, which know nothing of each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ChannelKind {
    /// The channels of the whole server, or cluster.
    Global,
    /// The channels that stay with their shard.
    Sharded,
}

impl ChannelKind {
    /// All kinds.
    pub const ALL: [ChannelKind; 2] = [ChannelKind::Global, ChannelKind::Sharded];
}

/// The channels of a shard that have subscribers.
#[derive(Debug, Default)]
pub(crate) struct Channels {
    by_kind: [HashMap<Box<[u8]>, Audience>; ChannelKind::ALL.len()],
}

/// Subscribers by listener.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Audience(SmallVec<[(u32, u32); 2]>);

impl Audience {
    /// The number of subscribers.
    pub fn len(&self) -> u64 {
        self.0.iter().map(|&(_, n)| u64::from(n)).sum()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The listeners that have subscribers here.
    pub fn listeners(&self) -> impl Iterator<Item = usize> {
        self.0.iter().map(|&(listener, _)| listener as usize)
    }

    /// Adds a subscriber of a listener's.
    pub fn add(&mut self, listener: usize) {
        let listener = listener as u32;
        match self.0.iter_mut().find(|(known, _)| *known == listener) {
            Some((_, n)) => *n += 1,
            None => self.0.push((listener, 1)),
        }
    }

    /// Removes a subscriber of a listener's, if it has one.
    pub fn remove(&mut self, listener: usize) {
        let Some(at) = self.0.iter().position(|&(known, _)| known as usize == listener) else { return };
        self.0[at].1 -= 1;
        if self.0[at].1 == 0 {
            self.0.remove(at);
        }
    }
}

impl Channels {
    /// Whether no channel here has subscribers.
    pub(crate) fn is_empty(&self) -> bool {
        self.by_kind.iter().all(HashMap::is_empty)
    }

    /// Adds a subscriber; returns whether it is the channel's first.
    pub(crate) fn subscribe(&mut self, kind: ChannelKind, name: &[u8], listener: usize) -> bool {
        let channels = &mut self.by_kind[kind as usize];
        if let Some(audience) = channels.get_mut(name) {
            audience.add(listener);
            return false;
        }
        channels.entry(name.into()).or_default().add(listener);
        true
    }

    /// Removes a subscriber; returns whether it was the channel's last.
    pub(crate) fn unsubscribe(&mut self, kind: ChannelKind, name: &[u8], listener: usize) -> bool {
        let channels = &mut self.by_kind[kind as usize];
        let Some(audience) = channels.get_mut(name) else { return false };
        audience.remove(listener);
        let was_last = audience.is_empty();
        if was_last {
            channels.remove(name);
        }
        was_last
    }

    /// The subscribers of a channel.
    pub(crate) fn audience(&self, kind: ChannelKind, name: &[u8]) -> Option<&Audience> {
        self.by_kind[kind as usize].get(name)
    }

    /// The channels' names, in no order.
    pub(crate) fn names(&self, kind: ChannelKind) -> impl Iterator<Item = &[u8]> {
        self.by_kind[kind as usize].keys().map(|name| &**name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_audience_counts_by_listener() {
        let mut audience = Audience::default();
        for listener in [3, 1, 3, 3] {
            audience.add(listener);
        }
        assert_eq!((audience.len(), audience.listeners().collect::<Vec<_>>()), (4, vec![3, 1]));
        audience.remove(1);
        audience.remove(1);
        audience.remove(3);
        assert_eq!((audience.len(), audience.listeners().collect::<Vec<_>>()), (2, vec![3]));
        audience.remove(3);
        audience.remove(3);
        assert!(audience.is_empty());
    }

    #[test]
    fn a_channel_is_there_as_long_as_it_has_subscribers() {
        let mut channels = Channels::default();
        let (global, sharded) = (ChannelKind::Global, ChannelKind::Sharded);
        assert!(channels.subscribe(global, b"news", 0));
        assert!(!channels.subscribe(global, b"news", 1));
        assert!(channels.subscribe(sharded, b"news", 1), "the kinds know nothing of each other");
        assert_eq!(channels.audience(global, b"news").map(Audience::len), Some(2));
        assert_eq!(channels.names(sharded).collect::<Vec<_>>(), [b"news"]);
        assert!(!channels.unsubscribe(global, b"olds", 0));
        assert!(!channels.unsubscribe(global, b"news", 0));
        assert!(channels.unsubscribe(global, b"news", 1));
        assert!(channels.audience(global, b"news").is_none());
        assert!(!channels.is_empty());
        assert!(channels.unsubscribe(sharded, b"news", 1));
        assert!(channels.is_empty());
    }
}
