//! XGROUP, XACK, XACKDEL and XPENDING.

use braid_protocol::reply::Reply;
use braid_storage::{
    entry::{key::Key, time::Millis},
    keyspace::shard::Shard,
    observers::event::Event,
    types::stream::{Deletion, Group, PendingEntry, StreamId, StreamMut, StreamRef, StreamType},
};

use super::{
    ids::{id, id_or_end, ids, range_end, range_start, write_id},
    options::Doomed,
    write::write_deletion,
};
use crate::{
    catalog::{Args, CommandError, Outcome, shown},
    command::{
        Call,
        help::{help, misused},
    },
};

/// Returns the error for a missing group.
pub(super) fn no_such_group(key: &Key<'_>, group: &[u8]) -> CommandError {
    CommandError::owned(format!(
        "NOGROUP No such key '{}' or consumer group '{}'",
        shown(key.bytes),
        shown(group)
    ))
}

/// Returns the error for a missing group of an existing key.
pub(super) fn no_such_group_of_key(key: &Key<'_>, group: &[u8]) -> CommandError {
    CommandError::owned(format!(
        "NOGROUP No such consumer group '{}' for key name '{}'",
        shown(group),
        shown(key.bytes)
    ))
}

const KEY_REQUIRED: CommandError = CommandError::text(
    "ERR The XGROUP subcommand requires the key to exist. Note that for CREATE you may want to use the MKSTREAM option \
     to create an empty stream automatically.",
);

/// Returns the stream of an XGROUP subcommand, which must exist.
fn existing<'s>(shard: &'s mut Shard, key: &Key<'_>, event: Event) -> Result<StreamMut<'s>, CommandError> {
    shard.value_mut::<StreamType>(key, event)?.ok_or(KEY_REQUIRED)
}

/// The options of XGROUP CREATE and SETID after the ID.
#[derive(Default)]
struct PositionOptions {
    creates: bool,
    n_read: Option<u64>,
}

impl PositionOptions {
    fn read(mut args: Args<'_>, may_create: bool) -> Result<Self, CommandError> {
        let mut options = PositionOptions::default();
        while !args.is_empty() {
            if may_create && args.tag("MKSTREAM") {
                options.creates = true;
            } else if args.remaining() >= 2 && args.tag("ENTRIESREAD") {
                options.n_read = match args.int()? {
                    -1 => None,
                    n => Some(u64::try_from(n).map_err(|_| {
                        CommandError::text("ERR value for ENTRIESREAD must be positive or -1")
                    })?),
                };
            } else {
                return Err(misused("XGROUP", args));
            }
        }
        Ok(options)
    }
}

/// Whether a subcommand has more words than its options allow.
fn has_more_words_than(n: usize, args: Args<'_>) -> bool {
    args.words().len() > n
}

pub(super) fn create(call: &mut Call<'_, '_>, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let (key, group, position) = (args.key()?, args.next()?, args.next()?);
    let options = PositionOptions::read(args, true)?;
    let shard = call.shard_of(&key);
    let last_id = shard
        .value_mut::<StreamType>(&key, Event::XGroupCreate)?
        .map(|stream| stream.stream().entries().last_id());
    if last_id.is_none() && !options.creates {
        return Err(KEY_REQUIRED);
    }
    if has_more_words_than(8, args) {
        return Err(misused("XGROUP", args));
    }
    let last_delivered = match position {
        b"$" => last_id.unwrap_or_default(),
        _ => id(position)?,
    };
    let mut stream = shard.value_or_create::<StreamType>(&key, Event::XGroupCreate)?;
    if last_id.is_none() {
        stream.mark_changed();
    }
    if !stream.create_group(group, last_delivered, options.n_read) {
        return Err(CommandError::text("BUSYGROUP Consumer Group name already exists"));
    }
    reply.ok();
    Ok(())
}

pub(super) fn set_id(call: &mut Call<'_, '_>, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let (key, group, position) = (args.key()?, args.next()?, args.next()?);
    let options = PositionOptions::read(args, false)?;
    let mut stream = existing(call.shard_of(&key), &key, Event::XGroupSetId)?;
    if stream.stream().group(group).is_none() {
        return Err(no_such_group_of_key(&key, group));
    }
    if has_more_words_than(7, args) {
        return Err(misused("XGROUP", args));
    }
    let last_delivered = match position {
        b"$" => stream.stream().entries().last_id(),
        _ => id_or_end(position, 0)?,
    };
    stream.set_group(group, last_delivered, options.n_read);
    reply.ok();
    Ok(())
}

pub(super) fn destroy(call: &mut Call<'_, '_>, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let (key, group) = (args.key()?, args.next()?);
    let is_destroyed = existing(call.shard_of(&key), &key, Event::XGroupDestroy)?.destroy_group(group);
    reply.integer(i64::from(is_destroyed));
    Ok(())
}

pub(super) fn create_consumer(call: &mut Call<'_, '_>, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let (key, group, consumer) = (args.key()?, args.next()?, args.next()?);
    let is_new =
        existing(call.shard_of(&key), &key, Event::XGroupCreateConsumer)?.create_consumer(group, consumer);
    reply.integer(i64::from(is_new.ok_or_else(|| no_such_group_of_key(&key, group))?));
    Ok(())
}

pub(super) fn delete_consumer(call: &mut Call<'_, '_>, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let (key, group, consumer) = (args.key()?, args.next()?, args.next()?);
    let n_pending =
        existing(call.shard_of(&key), &key, Event::XGroupDelConsumer)?.delete_consumer(group, consumer);
    reply.integer(n_pending.ok_or_else(|| no_such_group_of_key(&key, group))? as i64);
    Ok(())
}

pub(super) fn group_help(_: &mut Call<'_, '_>, _: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    help(
        reply,
        "XGROUP",
        &[
            "CREATE <key> <groupname> <id|$> [option]",
            "    Create a new consumer group. Options are:",
            "    * MKSTREAM",
            "      Create the empty stream if it does not exist.",
            "    * ENTRIESREAD entries_read",
            "      Set the group's entries_read counter (internal use).",
            "CREATECONSUMER <key> <groupname> <consumer>",
            "    Create a new consumer in the specified group.",
            "DELCONSUMER <key> <groupname> <consumer>",
            "    Remove the specified consumer.",
            "DESTROY <key> <groupname>",
            "    Remove the specified group.",
            "SETID <key> <groupname> <id|$> [ENTRIESREAD entries_read]",
            "    Set the current group ID and entries_read counter.",
        ],
    )
}

pub(super) fn xack(shard: &mut Shard, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let (key, group) = (args.key()?, args.next()?);
    let Some(mut stream) = shard.counted_value_mut::<StreamType>(&key, Event::Acknowledged)? else {
        reply.integer(0);
        return Ok(());
    };
    if stream.stream().group(group).is_none() {
        reply.integer(0);
        return Ok(());
    }
    let n_acknowledged = stream.acknowledge(group, &ids(args)?).unwrap_or(0);
    reply.integer(n_acknowledged as i64);
    Ok(())
}

pub(super) fn xackdel(shard: &mut Shard, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let (key, group) = (args.key()?, args.next()?);
    let Doomed { ids, references } = Doomed::read(args)?;
    let stream = shard.value_mut::<StreamType>(&key, Event::XDel)?;
    reply.array(ids.len());
    match stream.filter(|stream| stream.stream().group(group).is_some()) {
        Some(mut stream) => {
            stream
                .acknowledge_and_delete(group, &ids, references, |deletion| write_deletion(reply, deletion));
        }
        None => ids.iter().for_each(|_| write_deletion(reply, Deletion::Missing)),
    }
    Ok(())
}

/// The arguments of XPENDING after the group.
struct PendingRange<'a> {
    idle_min: u64,
    from: StreamId,
    to: StreamId,
    n_max: usize,
    consumer: Option<&'a [u8]>,
}

impl<'a> PendingRange<'a> {
    fn read(mut args: Args<'a>) -> Result<Self, CommandError> {
        if !(3..=6).contains(&args.remaining()) {
            return Err(CommandError::Syntax);
        }
        let mut idle_min = 0;
        if args.tag("IDLE") {
            idle_min = args.int()?.max(0) as u64;
        }
        if args.remaining() < 3 {
            return Err(CommandError::Syntax);
        }
        let (from, to) = (args.next()?, args.next()?);
        // The count is checked first.
        let n_max = args.int()?.max(0) as usize;
        let (from, to) = (range_start(from)?, range_end(to)?);
        Ok(PendingRange { idle_min, from, to, n_max, consumer: args.peek() })
    }
}

pub(super) fn xpending(shard: &mut Shard, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let (key, name) = (args.key()?, args.next()?);
    let range = if args.is_empty() { None } else { Some(PendingRange::read(args)?) };
    let stream = shard.value::<StreamType>(&key)?;
    let group = stream.and_then(|stream: StreamRef<'_>| stream.stream().group(name));
    let group = group.ok_or_else(|| no_such_group(&key, name))?;
    match range {
        None => write_summary(reply, group),
        Some(range) => {
            let now = stream.map_or(Millis(0), |stream| stream.now());
            write_range(reply, group, &range, now);
        }
    }
    Ok(())
}

fn write_summary(reply: &mut Reply<'_>, group: &Group) {
    reply.array(4);
    reply.integer(group.n_pending() as i64);
    let mut pending = group.pending(StreamId::MIN, StreamId::MAX);
    let Some(first) = pending.next() else {
        reply.null();
        reply.null();
        return reply.null_array();
    };
    write_id(reply, first.id);
    write_id(reply, pending.next_back().unwrap_or(first).id);
    let consumers = reply.array_later();
    let mut n = 0;
    for consumer in group.consumers().filter(|consumer| consumer.n_pending() > 0) {
        reply.array(2);
        reply.bulk(consumer.name());
        reply.bulk_integer(consumer.n_pending() as i64);
        n += 1;
    }
    reply.close(consumers, n);
}

fn write_range(reply: &mut Reply<'_>, group: &Group, range: &PendingRange<'_>, now: Millis) {
    let array = reply.array_later();
    let mut n = 0;
    let mut write = |pending: PendingEntry<'_>| {
        let idle = now.0.saturating_sub(pending.delivered_at.0);
        if idle >= range.idle_min {
            reply.array(4);
            write_id(reply, pending.id);
            reply.bulk(pending.consumer);
            reply.integer(if pending.is_handed_back { -1 } else { idle as i64 });
            reply.integer(pending.n_deliveries as i64);
            n += 1;
        }
        n < range.n_max
    };
    if range.n_max > 0 {
        // An unknown consumer has no pending entries.
        match range.consumer {
            None => drop(group.pending(range.from, range.to).all(&mut write)),
            Some(name) => drop(
                group
                    .consumer(name)
                    .map(|consumer| group.pending_of(consumer, range.from, range.to).all(&mut write)),
            ),
        }
    }
    reply.close(array, n);
}
