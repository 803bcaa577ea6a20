//! Keyspace events: tells subscribers of `__keyspace@…` and `__keyevent@…` channels about changes to keys.
//!
//! Shards announce their changes only while events are configured *and* have a subscriber whose channels or
//! patterns can match them. CONFIG SET, the first subscriber and the last one to leave change this. Each
//! holds all shards before it is answered, and updates them ([`settle`]). So changes after the reply are
//! announced, and configured events without subscribers cost nothing.
//!
//! A message is sent under the holds of the unit that made the change. So events agree with the effects and
//! with each other.

use std::sync::atomic::Ordering;

use braid_protocol::number::format_i64;
use braid_storage::{
    observers::{
        channels::ChannelKind,
        event::{Event, EventClass},
        ledger::{Change, Effect, MISSES},
    },
    sync::coordinator::Held,
};

use crate::{
    client::{id::ClientId, node::Job},
    config::KeyspaceEvents,
    notify::subscriptions::EventChannel,
    observe::hearers::EVENTS,
    shared::{server::Server, thread_state::ThreadState},
};

/// Returns the class of an event in the directive; none if it is never published.
fn class_of(event: Event) -> Option<KeyspaceEvents> {
    Some(match event.class() {
        EventClass::Generic => KeyspaceEvents::GENERIC,
        EventClass::String => KeyspaceEvents::STRING,
        EventClass::List => KeyspaceEvents::LIST,
        EventClass::Set => KeyspaceEvents::SET,
        EventClass::Hash => KeyspaceEvents::HASH,
        EventClass::SortedSet => KeyspaceEvents::ZSET,
        EventClass::Stream => KeyspaceEvents::STREAM,
        EventClass::Expired => KeyspaceEvents::EXPIRED,
        EventClass::Evicted => KeyspaceEvents::EVICTED,
        EventClass::New => KeyspaceEvents::NEW,
        EventClass::KeyMiss => KeyspaceEvents::KEY_MISS,
        EventClass::Overwritten => KeyspaceEvents::OVERWRITTEN,
        EventClass::TypeChanged => KeyspaceEvents::TYPE_CHANGED,
        EventClass::Silent => return None,
    })
}

/// Returns the events to publish: the configured ones, on channels with subscribers.
fn wanted(server: &Server) -> KeyspaceEvents {
    let configured = server.config.load().notify_keyspace_events;
    let mut wanted = configured;
    for channel in EventChannel::ALL {
        if !server.pubsub.hears_events(channel) {
            wanted = wanted.without(bit_of(channel));
        }
    }
    let is_heard = EventChannel::ALL.iter().any(|channel| wanted.contains(bit_of(*channel)));
    if is_heard { wanted } else { KeyspaceEvents::default() }
}

/// Returns the channels' letter in the directive.
fn bit_of(channel: EventChannel) -> KeyspaceEvents {
    match channel {
        EventChannel::Keyspace => KeyspaceEvents::KEYSPACE,
        EventChannel::Keyevent => KeyspaceEvents::KEYEVENT,
    }
}

/// Whether shards announce exactly the events to publish.
pub fn is_settled(server: &Server) -> bool {
    server.published_events.load(Ordering::Relaxed) == wanted(server).bits()
}

/// Whether a subscriber receives look-ups that find nothing.
pub fn hears_misses(server: &Server) -> bool {
    KeyspaceEvents::of_bits(server.published_events.load(Ordering::Relaxed))
        .contains(KeyspaceEvents::KEY_MISS)
}

/// Publishes exactly the wanted events, and makes the shards announce changes if there are any.
///
/// The caller must hold all shards.
pub fn settle(server: &Server, held: &mut Held<'_, Job>) {
    let wanted = wanted(server);
    // Relaxed: written with all shards held, and read by a holder of one.
    if server.published_events.swap(wanted.bits(), Ordering::Relaxed) == wanted.bits() {
        return;
    }
    debug_assert_eq!(held.ids().len(), server.engine.n_shards(), "all shards are to tell");
    held.each_shard(|shard| {
        shard.hear_all(EVENTS, !wanted.is_empty());
        shard.hear_all(MISSES, wanted.contains(KeyspaceEvents::KEY_MISS));
    });
}

/// Publishes changes.
pub fn tell(changes: &[Change], thread: &ThreadState) {
    let published = KeyspaceEvents::of_bits(thread.server().published_events.load(Ordering::Relaxed));
    if published.is_empty() {
        return;
    }
    for change in changes.iter().filter(|change| change.effect != Effect::None) {
        let is_wanted = class_of(change.event).is_some_and(|class| published.contains(class));
        if let Some(key) = change.key.as_deref().filter(|_| is_wanted) {
            publish(change, key, published, thread);
        }
    }
}

/// Publishes one change: on the key's channel before the event's, as Redis does.
fn publish(change: &Change, key: &[u8], published: KeyspaceEvents, thread: &ThreadState) {
    let event = change.event.name().as_bytes();
    let mut name = thread.channel_name.take();
    let mut send = |of: EventChannel, of_what: &[u8], payload: &[u8]| {
        name.clear();
        name.extend_from_slice(of.prefix());
        format_i64(change.db.0.into(), |db| name.extend_from_slice(db));
        name.extend_from_slice(b"__:");
        name.extend_from_slice(of_what);
        let pubsub = &thread.server().pubsub;
        let names = pubsub.event_channels.load();
        let notify = |to, notification| thread.notify(to, notification);
        let audience = pubsub.event_channels.find(&names, &name);
        pubsub.publish(ChannelKind::Global, &name, payload, ClientId(change.author), audience, notify);
    };
    if published.contains(KeyspaceEvents::KEYSPACE) {
        send(EventChannel::Keyspace, key, event);
    }
    if published.contains(KeyspaceEvents::KEYEVENT) {
        send(EventChannel::Keyevent, event, key);
    }
    name.shrink_to(NAME_BYTES);
    thread.channel_name.set(name);
}

/// The space in bytes that a thread keeps for the name of an event's channel.
const NAME_BYTES: usize = 1024;
