//! Keyspace events: tells those who are subscribed to `__keyspace@…` and `__keyevent@…` channels what became
//! of keys.
//!
//! Shards tell of their changes only while events are configured *and* heard: while somebody is subscribed to
//! what such a channel can match. Whoever changes either of the two (CONFIG SET, the first who subscribes,
//! the last who leaves) holds all shards before it is answered, and has them told ([`settle`]). So what runs
//! after the answer is told of, and configured events that nobody hears cost nothing.
//!
//! A message is sent under the holds of the unit that made the change, so events agree with the effects and
//! with each other.

use std::sync::atomic::Ordering;

use braid_protocol::number::format_i64;
use braid_storage::{Change, ChannelKind, Effect, Event, EventClass, MISSES, coordinator::Held};

use crate::{
    client::{id::ClientId, node::Job},
    config::KeyspaceEvents,
    notify::subscriptions::EventChannel,
    observe::hearers::EVENTS,
    shared::{server::Server, thread_state::ThreadState},
};

/// The class of an event as the directive has it; none if nothing is ever published.
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
        EventClass::Silent => return None,
    })
}

/// What is published: what is configured, on those channels that somebody hears.
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

/// The channels' letter in the directive.
fn bit_of(channel: EventChannel) -> KeyspaceEvents {
    match channel {
        EventChannel::Keyspace => KeyspaceEvents::KEYSPACE,
        EventChannel::Keyevent => KeyspaceEvents::KEYEVENT,
    }
}

/// Whether shards tell of what they are to.
pub fn is_settled(server: &Server) -> bool {
    server.published_events.load(Ordering::Relaxed) == wanted(server).bits()
}

/// Whether anybody hears of look-ups that find nothing.
pub fn hears_misses(server: &Server) -> bool {
    KeyspaceEvents::of_bits(server.published_events.load(Ordering::Relaxed))
        .contains(KeyspaceEvents::KEY_MISS)
}

/// Has what is published be what is wanted, and the shards tell of changes if that is anything. To be called
/// with all shards held.
pub fn settle(server: &Server, held: &mut Held<'_, Job>) {
    let wanted = wanted(server);
    // Relaxed: written with all shards held, and read by who holds one.
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

/// Publishes one change: on the key's channel before the event's, as Redis.
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

/// How much room a thread keeps for the name of an event's channel.
const NAME_BYTES: usize = 1024;
