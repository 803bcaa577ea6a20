//! XINFO: reports on streams, groups and consumers.

use braid_protocol::reply::Reply;
use braid_storage::{
    entry::key::Key,
    types::stream::{Consumer, Entry, Group, Stream, StreamId, StreamRef, StreamType},
};

use super::{
    groups::no_such_group_of_key,
    ids::write_id,
    write::{write_entries, write_entry},
};
use crate::{
    catalog::{Args, CommandError, Outcome},
    command::{
        Call,
        help::{help, misused},
    },
};

/// Entries of each list that XINFO STREAM FULL shows by default.
const SHOWN: usize = 10;

fn existing<'c>(call: &'c mut Call<'_, '_>, key: &Key<'_>) -> Result<StreamRef<'c>, CommandError> {
    call.shard_of(key).value::<StreamType>(key)?.ok_or(CommandError::NoSuchKey)
}

pub(super) fn stream(call: &mut Call<'_, '_>, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let key = args.key()?;
    let stream = existing(call, &key)?.stream();
    if args.is_empty() {
        write_summary(reply, stream);
    } else {
        write_whole(reply, stream, count_shown(args)?);
    }
    Ok(())
}

/// Reads `FULL [COUNT count]`: the number of shown entries of each list, or `None` for all.
fn count_shown(mut args: Args<'_>) -> Result<Option<usize>, CommandError> {
    let all = args;
    if !args.tag("FULL") {
        return Err(misused("XINFO", all));
    }
    if args.is_empty() {
        return Ok(Some(SHOWN));
    }
    if args.remaining() != 2 || !args.tag("COUNT") {
        return Err(misused("XINFO", all));
    }
    match args.int()? {
        0 => Ok(None),
        n => Ok(Some(usize::try_from(n).unwrap_or(SHOWN))),
    }
}

fn integer(reply: &mut Reply<'_>, name: &str, value: u64) {
    reply.bulk(name.as_bytes());
    reply.integer(value as i64);
}

fn id(reply: &mut Reply<'_>, name: &str, id: StreamId) {
    reply.bulk(name.as_bytes());
    write_id(reply, id);
}

/// Writes an integer, or null if it is unknown.
fn integer_if_known(reply: &mut Reply<'_>, name: &str, value: Option<i64>) {
    reply.bulk(name.as_bytes());
    match value {
        Some(value) => reply.integer(value),
        None => reply.null(),
    }
}

/// Writes the seven fields that both forms begin with.
fn write_counts(reply: &mut Reply<'_>, stream: &Stream) {
    let entries = stream.entries();
    let n_nodes = entries.nodes().len() as u64;
    integer(reply, "length", entries.len());
    integer(reply, "radix-tree-keys", n_nodes);
    // Redis also counts inner nodes. Here there are none, except for a root.
    integer(reply, "radix-tree-nodes", n_nodes + 1);
    id(reply, "last-generated-id", entries.last_id());
    id(reply, "max-deleted-entry-id", entries.max_deleted_id());
    integer(reply, "entries-added", entries.n_added());
    id(reply, "recorded-first-entry-id", entries.first_id());
}

fn write_summary(reply: &mut Reply<'_>, stream: &Stream) {
    reply.map(10);
    write_counts(reply, stream);
    integer(reply, "groups", stream.groups().len() as u64);
    let entries = stream.entries();
    let mut write_end = |name: &str, entry: Option<Entry<'_>>| {
        reply.bulk(name.as_bytes());
        match entry {
            Some(entry) => write_entry(reply, &entry),
            None => reply.null(),
        }
    };
    write_end("first-entry", entries.range(StreamId::MIN, StreamId::MAX).next());
    write_end("last-entry", entries.range_backwards(StreamId::MIN, StreamId::MAX).next());
}

fn write_whole(reply: &mut Reply<'_>, stream: &Stream, n_max: Option<usize>) {
    reply.map(9);
    write_counts(reply, stream);
    reply.bulk(b"entries");
    write_entries(reply, stream.entries().range(StreamId::MIN, StreamId::MAX), n_max);
    reply.bulk(b"groups");
    reply.array(stream.groups().len());
    for (name, group) in stream.groups() {
        write_whole_group(reply, stream, name, group, n_max);
    }
}

/// Writes the fields that XINFO GROUPS and XINFO STREAM FULL have in common.
fn write_progress(reply: &mut Reply<'_>, stream: &Stream, group: &Group) {
    id(reply, "last-delivered-id", group.last_delivered_id());
    integer_if_known(reply, "entries-read", group.n_read().map(|n| n as i64));
    integer_if_known(reply, "lag", stream.lag(group));
}

fn write_whole_group(
    reply: &mut Reply<'_>,
    stream: &Stream,
    name: &[u8],
    group: &Group,
    n_max: Option<usize>,
) {
    let n_shown = |n: usize| n.min(n_max.unwrap_or(usize::MAX));
    reply.map(7);
    reply.bulk(b"name");
    reply.bulk(name);
    write_progress(reply, stream, group);
    integer(reply, "pel-count", group.n_pending() as u64);
    reply.bulk(b"pending");
    let n = n_shown(group.n_pending());
    reply.array(n);
    for pending in group.pending(StreamId::MIN, StreamId::MAX).take(n) {
        reply.array(4);
        write_id(reply, pending.id);
        reply.bulk(pending.consumer);
        reply.integer(pending.delivered_at.0 as i64);
        reply.integer(pending.n_deliveries as i64);
    }
    reply.bulk(b"consumers");
    reply.array(group.consumers().len());
    for consumer in group.consumers() {
        write_whole_consumer(reply, group, consumer, n_shown(consumer.n_pending()));
    }
}

fn write_whole_consumer(reply: &mut Reply<'_>, group: &Group, consumer: &Consumer, n: usize) {
    reply.map(5);
    reply.bulk(b"name");
    reply.bulk(consumer.name());
    integer(reply, "seen-time", consumer.seen_at().0);
    reply.bulk(b"active-time");
    reply.integer(consumer.active_at().map_or(-1, |time| time.0 as i64));
    integer(reply, "pel-count", consumer.n_pending() as u64);
    reply.bulk(b"pending");
    reply.array(n);
    for pending in group.pending_of(consumer, StreamId::MIN, StreamId::MAX).take(n) {
        reply.array(3);
        write_id(reply, pending.id);
        reply.integer(pending.delivered_at.0 as i64);
        reply.integer(pending.n_deliveries as i64);
    }
}

pub(super) fn groups(call: &mut Call<'_, '_>, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let key = args.key()?;
    let stream = existing(call, &key)?.stream();
    reply.array(stream.groups().len());
    for (name, group) in stream.groups() {
        reply.map(6);
        reply.bulk(b"name");
        reply.bulk(name);
        integer(reply, "consumers", group.consumers().len() as u64);
        integer(reply, "pending", group.n_pending() as u64);
        write_progress(reply, stream, group);
    }
    Ok(())
}

pub(super) fn consumers(call: &mut Call<'_, '_>, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let (key, name) = (args.key()?, args.next()?);
    let stream = existing(call, &key)?;
    let now = stream.now();
    let group = stream.stream().group(name).ok_or_else(|| no_such_group_of_key(&key, name))?;
    reply.array(group.consumers().len());
    for consumer in group.consumers() {
        reply.map(4);
        reply.bulk(b"name");
        reply.bulk(consumer.name());
        integer(reply, "pending", consumer.n_pending() as u64);
        integer(reply, "idle", now.0.saturating_sub(consumer.seen_at().0));
        reply.bulk(b"inactive");
        reply.integer(consumer.active_at().map_or(-1, |time| now.0.saturating_sub(time.0) as i64));
    }
    Ok(())
}

pub(super) fn info_help(_: &mut Call<'_, '_>, _: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    help(
        reply,
        "XINFO",
        &[
            "CONSUMERS <key> <groupname>",
            "    Show consumers of <groupname>.",
            "GROUPS <key>",
            "    Show the stream consumer groups.",
            "STREAM <key> [FULL [COUNT <count>]",
            "    Show information about the stream.",
        ],
    )
}
