//! Publish and subscribe, and MONITOR. [`crate::notify::publishing`] describes how messages travel.

use braid_protocol::reply::{Reply, Resp};
use braid_storage::{
    keyspace::shard::Shard,
    observers::channels::ChannelKind,
    sync::coordinator::Held,
    table::{Cursor, hash::ShardId},
};

use crate::{
    catalog::{
        Args, Arity, Channels, CommandError, Flags, Group, KeySpec, KeyUse, Keys, KeysAt, Outcome, Words,
    },
    client::{
        node::Job,
        record::Listens,
        session::{Replies, Session, SessionRequest},
        sweep::{Seek, Sweep, SweepProgress},
    },
    command::{
        Call, CommandSpec, Registered, Run,
        help::{help, misused},
    },
    notify::{
        notifications::Notification,
        subscriptions::{Name, Subscriptions, TopicKind},
    },
    observe::events,
    shared::server::Server,
};

const ROW: CommandSpec = CommandSpec {
    flags: Flags::PUBSUB.and(Flags::LOADING).and(Flags::STALE),
    group: Group::PubSub,
    ..CommandSpec::ROW
};
/// Base of commands that change the client's own subscriptions.
const OWN: CommandSpec =
    CommandSpec { flags: ROW.flags.and(Flags::NOSCRIPT).and(Flags::WHILE_SUBSCRIBED), ..ROW };
/// Base of commands that end subscriptions.
const LEAVING: CommandSpec =
    CommandSpec { flags: OWN.flags.and(Flags::LEAVES), arity: Arity::AtLeast(1), ..OWN };

const CHANNELS: Keys = Keys(&Keys::all(KeyUse::Channel));
const SHARD_CHANNELS: Keys = Keys(&Keys::all(KeyUse::ShardChannel));
const CHANNELS_OF_SUBCOMMAND: Keys =
    Keys(&[KeySpec { at: KeysAt::Range { first: 2, last: -1, step: 1 }, used: KeyUse::Channel }]);

pub(in crate::command) const COMMANDS: &[CommandSpec] = &[
    CommandSpec {
        name: "subscribe",
        arity: Arity::AtLeast(2),
        keys: CHANNELS,
        channels: Channels::All,
        run: Run::Transaction(|call, args, reply| subscribe(call, args, reply, TopicKind::Channel)),
        since: "2.0.0",
        syntax: "channel [channel ...]",
        summary: "Listens for messages published to channels.",
        complexity: "O(N) where N is the number of channels to subscribe to.",
        ..OWN
    },
    CommandSpec {
        name: "unsubscribe",
        keys: CHANNELS,
        run: Run::Own(|call, args, reply| unsubscribe(call, args, reply, TopicKind::Channel)),
        since: "2.0.0",
        syntax: "[channel [channel ...]]",
        summary: "Stops listening to messages posted to channels.",
        complexity: "O(N) where N is the number of channels to unsubscribe.",
        ..LEAVING
    },
    CommandSpec {
        name: "psubscribe",
        arity: Arity::AtLeast(2),
        channels: Channels::Patterns,
        run: Run::Everything(|call, args, reply| subscribe(call, args, reply, TopicKind::Pattern)),
        since: "2.0.0",
        syntax: "pattern [pattern ...]",
        summary: "Listens for messages published to channels that match one or more patterns.",
        complexity: "O(N) where N is the number of patterns to subscribe to.",
        ..OWN
    },
    CommandSpec {
        name: "punsubscribe",
        run: Run::Own(|call, args, reply| unsubscribe(call, args, reply, TopicKind::Pattern)),
        since: "2.0.0",
        syntax: "[pattern [pattern ...]]",
        summary: "Stops listening to messages published to channels that match one or more patterns.",
        complexity: "O(N) where N is the number of patterns to unsubscribe.",
        ..LEAVING
    },
    CommandSpec {
        name: "ssubscribe",
        arity: Arity::AtLeast(2),
        keys: SHARD_CHANNELS,
        channels: Channels::All,
        run: Run::Transaction(|call, args, reply| subscribe(call, args, reply, TopicKind::ShardChannel)),
        since: "7.0.0",
        syntax: "shardchannel [shardchannel ...]",
        summary: "Listens for messages published to shard channels.",
        complexity: "O(N) where N is the number of shard channels to subscribe to.",
        ..OWN
    },
    CommandSpec {
        name: "sunsubscribe",
        keys: SHARD_CHANNELS,
        run: Run::Own(|call, args, reply| unsubscribe(call, args, reply, TopicKind::ShardChannel)),
        since: "7.0.0",
        syntax: "[shardchannel [shardchannel ...]]",
        summary: "Stops listening to messages posted to shard channels.",
        complexity: "O(N) where N is the number of shard channels to unsubscribe.",
        ..LEAVING
    },
    CommandSpec {
        name: "publish",
        arity: Arity::Exactly(3),
        flags: ROW.flags.and(Flags::FAST).and(Flags::MAY_REPLICATE),
        keys: Keys(&[KeySpec { at: KeysAt::Range { first: 1, last: 1, step: 1 }, used: KeyUse::Channel }]),
        channels: Channels::First,
        run: Run::Transaction(|call, args, reply| publish(call, args, reply, ChannelKind::Global)),
        since: "2.0.0",
        syntax: "channel message",
        summary: "Posts a message to a channel.",
        complexity: "O(N+M) where N is the number of clients subscribed to the receiving channel and M is the total \
                     number of subscribed patterns (by any client).",
        ..ROW
    },
    CommandSpec {
        name: "spublish",
        arity: Arity::Exactly(3),
        flags: ROW.flags.and(Flags::FAST).and(Flags::MAY_REPLICATE),
        keys: Keys(&[KeySpec {
            at: KeysAt::Range { first: 1, last: 1, step: 1 },
            used: KeyUse::ShardChannel,
        }]),
        channels: Channels::First,
        run: Run::Transaction(|call, args, reply| publish(call, args, reply, ChannelKind::Sharded)),
        since: "7.0.0",
        syntax: "shardchannel message",
        summary: "Posts a message to a shard channel.",
        complexity: "O(N) where N is the number of clients subscribed to the receiving shard channel.",
        ..ROW
    },
    CommandSpec {
        name: "monitor",
        arity: Arity::Exactly(1),
        flags: Flags::ADMIN.and(Flags::NOSCRIPT).and(Flags::LOADING).and(Flags::STALE),
        run: Run::Barrier(monitor),
        since: "1.0.0",
        group: Group::Server,
        summary: "Listens for all requests received by the server in real-time.",
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "pubsub",
        arity: Arity::AtLeast(2),
        since: "2.8.0",
        group: Group::PubSub,
        summary: "A container for Pub/Sub commands.",
        complexity: "Depends on subcommand.",
        subcommands: SUBCOMMANDS,
        ..CommandSpec::ROW
    },
];

const SUBCOMMANDS: &[CommandSpec] = &[
    CommandSpec {
        name: "channels",
        arity: Arity::AtLeast(2),
        run: Run::EachShard { begin: |call, args| list(call, args, ChannelKind::Global), step: list_step },
        since: "2.8.0",
        syntax: "[pattern]",
        summary: "Returns the active channels.",
        complexity: "O(N) where N is the number of active channels.",
        ..ROW
    },
    CommandSpec {
        run: Run::Session(print_help),
        since: "6.2.0",
        categories: Some(crate::catalog::Categories::NONE),
        group: Group::PubSub,
        ..CommandSpec::HELP
    },
    CommandSpec {
        name: "numpat",
        arity: Arity::Exactly(2),
        run: Run::Session(count_patterns),
        since: "2.8.0",
        summary: "Returns a count of unique pattern subscriptions.",
        ..ROW
    },
    CommandSpec {
        name: "numsub",
        arity: Arity::AtLeast(2),
        keys: CHANNELS_OF_SUBCOMMAND,
        run: Run::Transaction(|call, args, reply| count_subscribers(call, args, reply, ChannelKind::Global)),
        since: "2.8.0",
        syntax: "[channel [channel ...]]",
        summary: "Returns a count of subscribers to channels.",
        complexity: "O(N) where N is the number of requested channels",
        ..ROW
    },
    CommandSpec {
        name: "shardchannels",
        arity: Arity::AtLeast(2),
        run: Run::EachShard { begin: |call, args| list(call, args, ChannelKind::Sharded), step: list_step },
        since: "7.0.0",
        syntax: "[pattern]",
        summary: "Returns the active shard channels.",
        complexity: "O(N) where N is the number of active shard channels.",
        ..ROW
    },
    CommandSpec {
        name: "shardnumsub",
        arity: Arity::AtLeast(2),
        keys: CHANNELS_OF_SUBCOMMAND,
        run: Run::Transaction(|call, args, reply| count_subscribers(call, args, reply, ChannelKind::Sharded)),
        since: "7.0.0",
        syntax: "[shardchannel [shardchannel ...]]",
        summary: "Returns the count of subscribers of shard channels.",
        complexity: "O(N) where N is the number of requested shard channels",
        ..ROW
    },
];

const HELP: &[&str] = &[
    "CHANNELS [<pattern>]",
    "    Return the channels that have subscribers and match a <pattern> (default: '*').",
    "NUMPAT",
    "    Return the number of patterns that are subscribed to.",
    "NUMSUB [<channel> ...]",
    "    Return the number of subscribers of each channel, those to patterns aside",
    "    (default: no channels).",
    "SHARDCHANNELS [<pattern>]",
    "    Return the shard channels that have subscribers and match a <pattern> (default: '*').",
    "SHARDNUMSUB [<shardchannel> ...]",
    "    Return the number of subscribers of each shard channel.",
];

fn print_help(_: &mut Call<'_, '_>, _: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    help(reply, "PUBSUB", HELP)
}

fn subscribe(call: &mut Call<'_, '_>, args: Args<'_>, reply: &mut Reply<'_>, kind: TopicKind) -> Outcome {
    if kind == TopicKind::ShardChannel && call.n_in_transaction.is_some() {
        return Err(CommandError::text("ERR SSUBSCRIBE isn't allowed for a DENY BLOCKING client"));
    }
    let Call { server, session, access, thread, .. } = call;
    let held = access.expect_held();
    session.ask(SessionRequest::ReadNotifications);
    for name in args.rest() {
        if let Some(name) = session.record.topics.add(kind, name) {
            if let Some(channel) = kind.channel_kind() {
                let shard = held.shard(server.keyspace.router().route(&name).shard);
                if shard.subscribe(channel, &name, session.origin.thread) {
                    server.pubsub.channel_began(channel);
                }
            }
            server.pubsub.joined(kind, &name, session.origin.thread);
            if kind.meets_events(&name) {
                events::settle(server, held);
            }
            thread.notify(session.origin.thread, Notification::Joined(session.origin.slot, kind, name));
        }
        confirm(reply, session, ["subscribe", "psubscribe", "ssubscribe"][kind as usize], kind, Some(name));
    }
    settle(session);
    if !server.may_stay_subscribed(session) {
        session.closing = true;
        server.kill(session.record.id, thread);
    }
    Ok(())
}

fn unsubscribe(call: &mut Call<'_, '_>, args: Args<'_>, reply: &mut Reply<'_>, kind: TopicKind) -> Outcome {
    call.session.ask(SessionRequest::ReadNotifications);
    let names: Vec<Name> = if args.is_empty() {
        call.session.record.topics.of(kind)
    } else {
        args.rest().map(Name::from).collect()
    };
    let title = ["unsubscribe", "punsubscribe", "sunsubscribe"][kind as usize];
    if names.is_empty() {
        confirm(reply, call.session, title, kind, None);
    }
    for name in &names {
        leave(call, kind, name);
        confirm(reply, call.session, title, kind, Some(name));
    }
    settle(call.session);
    Ok(())
}

/// Ends all of a client's subscriptions, MONITOR included, without output to the client.
pub(in crate::command) fn cease_to_listen(call: &mut Call<'_, '_>) {
    call.session.ask(SessionRequest::ReadNotifications);
    stop_monitoring(call);
    for kind in TopicKind::ALL {
        call.session.record.topics.of(kind).iter().for_each(|name| leave(call, kind, name));
    }
    settle(call.session);
}

/// MONITOR. Its reply waits until every earlier command has ended.
fn monitor(call: &mut Call<'_, '_>, _: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    if call.n_in_transaction.is_some() {
        return Err(CommandError::text("ERR MONITOR isn't allowed for DENY BLOCKING client"));
    }
    let session = &mut *call.session;
    // As in Redis, a monitoring client gets no reply.
    if !session.record.listens(Listens::ToCommands) {
        session.record.set_listens(Listens::ToCommands, true);
        call.server.add_monitor(session.origin.thread);
        if session.replies != Replies::Off {
            show_commands(call, true);
        }
        reply.ok();
    }
    Ok(())
}

/// Starts or stops showing commands to a monitoring client.
///
/// Unlike messages and invalidations, these lines count as replies, which CLIENT REPLY OFF drops.
pub(in crate::command) fn show_commands(call: &mut Call<'_, '_>, are_shown: bool) {
    let session = &mut *call.session;
    if session.record.listens(Listens::ToCommands) {
        let notification = Notification::Monitors(session.origin.slot, are_shown);
        call.thread.notify(session.origin.thread, notification);
        session.ask(SessionRequest::ReadNotifications);
    }
}

fn stop_monitoring(call: &mut Call<'_, '_>) {
    let session = &mut *call.session;
    if session.record.listens(Listens::ToCommands) {
        session.record.set_listens(Listens::ToCommands, false);
        call.server.remove_monitor(session.origin.thread);
        call.thread.notify(session.origin.thread, Notification::Monitors(session.origin.slot, false));
    }
}

/// Ends a subscription, if there is one.
fn leave(call: &mut Call<'_, '_>, kind: TopicKind, name: &[u8]) {
    let Call { server, session, access, thread, .. } = call;
    let Some(name) = session.record.topics.remove(kind, name) else { return };
    let held = access.expect_held();
    if let Some(channel) = kind.channel_kind() {
        leave_channel(server, held, channel, &name, session.origin.thread);
    }
    server.pubsub.left(kind, &name, session.origin.thread);
    if kind.meets_events(&name) {
        events::settle(server, held);
    }
    thread.notify(session.origin.thread, Notification::Left(session.origin.slot, kind, name));
}

/// Removes a connection of a thread from a channel's subscribers.
///
/// The channel's shard is held.
pub(crate) fn leave_channel(
    server: &Server,
    held: &mut Held<'_, Job>,
    kind: ChannelKind,
    name: &[u8],
    thread: usize,
) {
    let shard = held.shard(server.keyspace.router().route(name).shard);
    if shard.unsubscribe(kind, name, thread) {
        server.pubsub.channel_ended(kind);
    }
}

/// Whether a command changes its client's subscriptions to keyspace events.
///
/// The words name the channels.
pub(crate) fn joins_or_leaves_events(command: &Registered, words: Words<'_>) -> bool {
    command.has(Flags::WHILE_SUBSCRIBED)
        && !command.spec.keys.0.is_empty()
        && words.iter().skip(1).any(|name| TopicKind::Channel.meets_events(name))
}

/// Returns the shards of the channels to which a client is subscribed.
pub(crate) fn subscribed_routes(server: &Server, own: &Subscriptions) -> impl Iterator<Item = ShardId> {
    own.channels().into_iter().map(|(_, name)| server.keyspace.router().route(&name).shard)
}

/// Publishes the number of a client's subscriptions.
fn settle(session: &mut Session) {
    session.publish_subscriptions();
}

/// Writes the reply for one channel or pattern of a command.
fn confirm(reply: &mut Reply<'_>, session: &Session, title: &str, kind: TopicKind, name: Option<&[u8]>) {
    let n_of = |kind| session.record.topics.n_of(kind);
    let n = match kind {
        TopicKind::ShardChannel => n_of(kind),
        _ => n_of(TopicKind::Channel) + n_of(TopicKind::Pattern),
    };
    reply.push(3);
    reply.bulk(title.as_bytes());
    match name {
        Some(name) => reply.bulk(name),
        None => reply.null(),
    }
    reply.integer(n as i64);
}

fn publish(call: &mut Call<'_, '_>, mut args: Args<'_>, reply: &mut Reply<'_>, kind: ChannelKind) -> Outcome {
    let channel = args.key()?;
    let payload = args.next()?;
    let Call { server, session, access, thread, .. } = call;
    let held = access.expect_held();
    let audience = held.shard(channel.routed.shard).audience(kind, channel.bytes);
    let publisher = session.record.id;
    let notification = |to, notification| thread.notify(to, notification);
    let n = server.pubsub.publish(kind, channel.bytes, payload, publisher, audience, notification);
    if kind == ChannelKind::Global {
        thread.note_message([b"PUBLISH", channel.bytes, payload]);
    }
    if session.record.listens(Listens::ToTopics) {
        // The message may be for the client itself: it follows directly after the reply.
        session.ask(SessionRequest::ReadNotifications);
    }
    thread.charge(session);
    reply.integer(n as i64);
    Ok(())
}

fn list(call: &mut Call<'_, '_>, mut args: Args<'_>, kind: ChannelKind) -> Result<Sweep, CommandError> {
    if args.remaining() > 1 {
        return Err(misused("PUBSUB", args));
    }
    let pattern = if args.is_empty() { None } else { Some(args.next()?.to_vec()) };
    Ok(Sweep::new(
        call.session.db,
        call.session.resp,
        Some(Cursor::default()),
        Seek::Channels { kind, pattern },
    ))
}

fn list_step(sweep: &mut Sweep, shard: &mut Shard) -> SweepProgress {
    sweep.step(shard)
}

fn count_patterns(call: &mut Call<'_, '_>, _: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    reply.integer(call.server.pubsub.patterns.len() as i64);
    Ok(())
}

fn count_subscribers(
    call: &mut Call<'_, '_>,
    mut args: Args<'_>,
    reply: &mut Reply<'_>,
    kind: ChannelKind,
) -> Outcome {
    reply.array(args.remaining() * 2);
    while !args.is_empty() {
        let channel = args.key()?;
        let held = call.access.expect_held();
        let audience = held.shard(channel.routed.shard).audience(kind, channel.bytes);
        reply.bulk(channel.bytes);
        reply.integer(audience.map_or(0, |audience| audience.len()) as i64);
    }
    Ok(())
}

/// Whether a client may only change its subscriptions.
///
/// In RESP2 it could not tell messages from replies.
pub(crate) fn is_confined(session: &Session) -> bool {
    session.resp == Resp::V2 && session.record.listens(Listens::ToTopics)
}
