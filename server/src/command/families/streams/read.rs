//! XREAD and XREADGROUP.

use std::sync::Arc;

use braid_protocol::reply::Reply;
use braid_storage::{
    entry::{db::Db, key::Key, time::Millis},
    observers::{event::Event, waiters::Awaits},
    types::stream::{Acknowledgement, Delivery, StreamId, StreamMut, StreamRef, StreamType},
};
use smallvec::SmallVec;

use super::{
    ids::{id, write_id},
    log_words::{Dealt, Served},
    write::{write_entries, write_entry},
};
use crate::{
    catalog::{Args, CommandError, Outcome, shown},
    client::waits::{Nothing, Wait},
    command::{Call, connections::client::timeout_millis},
};

/// Stands for the undelivered entries of a group, where a consumer's ID selects entries.
const UNDELIVERED: StreamId = StreamId::MAX;

/// The command that reads.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reader {
    Anybody,
    Consumer,
}

/// Keys, each with the word after which to read.
type Streams<'a> = SmallVec<[(Key<'a>, &'a [u8]); 2]>;

/// The arguments of XREAD or XREADGROUP.
struct ReadQuery<'a> {
    reader: Reader,
    n_max: Option<usize>,
    /// Time to wait if there are no entries, in milliseconds; 0: forever.
    block: Option<u64>,
    /// The group and the consumer.
    group: Option<(&'a [u8], &'a [u8])>,
    acknowledgement: Acknowledgement,
    streams: Streams<'a>,
}

impl<'a> ReadQuery<'a> {
    fn read(mut args: Args<'a>, reader: Reader, now: Millis) -> Result<Self, CommandError> {
        let mut request = ReadQuery {
            reader,
            n_max: None,
            block: None,
            group: None,
            acknowledgement: Acknowledgement::Expected,
            streams: SmallVec::new(),
        };
        while !args.is_empty() {
            if args.remaining() >= 2 && args.tag("STREAMS") {
                request.streams = streams(args, reader)?;
                break;
            }
            request.take_option(&mut args, now)?;
        }
        if request.streams.is_empty() {
            return Err(CommandError::Syntax);
        }
        if reader == Reader::Consumer && request.group.is_none() {
            return Err(CommandError::text("ERR Missing GROUP option for XREADGROUP"));
        }
        Ok(request)
    }

    fn take_option(&mut self, args: &mut Args<'a>, now: Millis) -> Outcome {
        let n_behind = args.remaining() - 1;
        if n_behind >= 1 && args.tag("BLOCK") {
            self.block = Some(timeout_millis(args.next()?, now)?);
        } else if n_behind >= 1 && args.tag("COUNT") {
            // A count below 1 means all entries.
            self.n_max = usize::try_from(args.int()?).ok().filter(|n| *n > 0);
        } else if n_behind >= 2 && args.tag("GROUP") {
            self.refuse_for_anybody(
                "ERR The GROUP option is only supported by XREADGROUP. You called XREAD instead.",
            )?;
            self.group = Some((args.next()?, args.next()?));
        } else if args.tag("NOACK") {
            self.refuse_for_anybody(
                "ERR The NOACK option is only supported by XREADGROUP. You called XREAD instead.",
            )?;
            self.acknowledgement = Acknowledgement::Needless;
        } else {
            return Err(CommandError::Syntax);
        }
        Ok(())
    }

    fn refuse_for_anybody(&self, text: &'static str) -> Outcome {
        if self.reader == Reader::Anybody { Err(CommandError::text(text)) } else { Ok(()) }
    }

    /// Returns the ID after which to read a stream, from its word.
    fn position(
        &self,
        key: &Key<'_>,
        word: &[u8],
        stream: Option<StreamRef<'_>>,
    ) -> Result<StreamId, CommandError> {
        if let Some((group, _)) = self.group
            && stream.is_none_or(|stream| stream.stream().group(group).is_none())
        {
            return Err(no_such_group(key, group));
        }
        match (word, self.reader) {
            (b"$" | b"+", Reader::Consumer) => Err(meaningless(word[0])),
            (b"$", Reader::Anybody) => {
                Ok(stream.map_or(StreamId::MIN, |stream| stream.stream().entries().last_id()))
            }
            (b"+", Reader::Anybody) => {
                let last = stream.and_then(|stream| stream.stream().entries().last_live_id());
                Ok(last.and_then(StreamId::previous).unwrap_or_default())
            }
            (b">", Reader::Anybody) => Err(CommandError::text(
                "ERR The > ID can be specified only when calling XREADGROUP using the GROUP <group> <consumer> option.",
            )),
            (b">", Reader::Consumer) => Ok(UNDELIVERED),
            _ => id(word),
        }
    }
}

/// Reads the keys, and as many words after them.
fn streams(args: Args<'_>, reader: Reader) -> Result<Streams<'_>, CommandError> {
    let n = args.remaining();
    if !n.is_multiple_of(2) {
        return Err(CommandError::text(match reader {
            Reader::Anybody => {
                "ERR Unbalanced 'xread' list of streams: for each stream key an ID, '+', or '$' must be specified."
            }
            Reader::Consumer => {
                "ERR Unbalanced 'xreadgroup' list of streams: for each stream key an ID or '>' must be specified."
            }
        }));
    }
    let router = args.router();
    let key = |bytes| Key { bytes, routed: router.route(bytes) };
    Ok(args.rest().take(n / 2).map(key).zip(args.rest().skip(n / 2)).collect())
}

fn no_such_group(key: &Key<'_>, group: &[u8]) -> CommandError {
    CommandError::owned(format!(
        "NOGROUP No such key '{}' or consumer group '{}' in XREADGROUP with GROUP option",
        shown(key.bytes),
        shown(group)
    ))
}

/// Returns the error for `$` and `+`, which are meaningless with a group.
fn meaningless(sign: u8) -> CommandError {
    let sign = char::from(sign);
    CommandError::owned(format!(
        "ERR The {sign} ID is meaningless in the context of XREADGROUP: you want to read the history of this consumer by \
         specifying a proper ID, or use the > ID to get new messages. The {sign} ID would just return an empty result set."
    ))
}

pub(super) fn xread(call: &mut Call<'_, '_>, args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let request = ReadQuery::read(args, Reader::Anybody, call.now)?;
    serve(call, &request, reply)
}

pub(super) fn xreadgroup(call: &mut Call<'_, '_>, args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let request = ReadQuery::read(args, Reader::Consumer, call.now)?;
    serve(call, &request, reply)
}

/// Writes the entries of the streams that have any, or makes the client wait.
fn serve(call: &mut Call<'_, '_>, request: &ReadQuery<'_>, reply: &mut Reply<'_>) -> Outcome {
    let mut positions = SmallVec::<[StreamId; 2]>::new();
    for (key, word) in &request.streams {
        let Some(shard) = call.shard_if_held(key) else {
            positions.push(StreamId::MAX);
            continue;
        };
        let stream = shard.value::<StreamType>(key)?;
        positions.push(request.position(key, word, stream)?);
    }
    let start = reply.written_bytes();
    let pairs = reply.nested_map_later();
    let (mut n_served, db) = (0, call.session.db);
    for ((key, _), position) in request.streams.iter().zip(&positions) {
        let Some(shard) = call.shard_if_held(key) else { continue };
        let is_served = match request.group {
            None => shard
                .value::<StreamType>(key)?
                .is_some_and(|stream| serve_anybody(stream, key, *position, request.n_max, reply)),
            Some(consumer) => {
                let is_logged = shard.is_logged();
                shard.counted_value_mut::<StreamType>(key, Event::Delivered)?.is_some_and(|mut stream| {
                    let group = (consumer.0, consumer.1, db, is_logged);
                    serve_consumer(&mut stream, key, *position, group, request, reply)
                })
            }
        };
        n_served += usize::from(is_served);
    }
    if n_served > 0 {
        reply.close(pairs, n_served);
    } else {
        reply.truncate(start);
        wait(call, request, &positions, reply);
    }
    Ok(())
}

/// Writes the entries after `position`, and returns whether there are any.
fn serve_anybody(
    stream: StreamRef<'_>,
    key: &Key<'_>,
    position: StreamId,
    n_max: Option<usize>,
    reply: &mut Reply<'_>,
) -> bool {
    let entries = stream.stream().entries();
    let Some(from) = position.next().filter(|_| entries.has_after(position)) else { return false };
    reply.nested_pair();
    reply.bulk(key.bytes);
    write_entries(reply, entries.range(from, StreamId::MAX), n_max);
    true
}

/// Delivers new entries to the group, or the consumer's pending entries after `position`.
///
/// Returns whether the stream is part of the reply. A request for pending entries always gets a reply.
fn serve_consumer(
    stream: &mut StreamMut<'_>,
    key: &Key<'_>,
    position: StreamId,
    (group, consumer, db, is_logged): (&[u8], &[u8], Db, bool),
    request: &ReadQuery<'_>,
    reply: &mut Reply<'_>,
) -> bool {
    let pending_from = if position == UNDELIVERED { None } else { position.next() };
    let served = Served { db, key: key.bytes, group, consumer };
    if pending_from.is_none() && !has_undelivered(stream, group) {
        // The consumer still counts as seen.
        let is_new =
            is_logged && stream.stream().group(group).is_some_and(|group| group.consumer(consumer).is_none());
        stream.see_consumer(group, consumer);
        if is_new {
            served.tell(stream.stream(), &Dealt::default());
        }
        return false;
    }
    let delivery =
        Delivery { group, consumer, n_max: request.n_max, acknowledgement: request.acknowledgement };
    reply.nested_pair();
    reply.bulk(key.bytes);
    let array = reply.array_later();
    let mut dealt = Dealt { has_moved: pending_from.is_none(), ..Dealt::default() };
    let mut note = |id| {
        if is_logged {
            dealt.given.push(id);
        }
    };
    let n = match pending_from {
        None => stream.deliver(&delivery, |entry| {
            write_entry(reply, entry);
            note(entry.id());
        }),
        Some(from) => stream.redeliver(&delivery, from, |id, entry| match entry {
            Some(entry) => {
                write_entry(reply, &entry);
                note(id);
            }
            None => {
                reply.array(2);
                write_id(reply, id);
                reply.null_array();
            }
        }),
    };
    reply.close(array, n);
    if is_logged {
        served.tell(stream.stream(), &dealt);
    }
    true
}

fn has_undelivered(stream: &StreamMut<'_>, group: &[u8]) -> bool {
    let stream = stream.stream();
    stream.group(group).is_some_and(|group| stream.has_undelivered(group))
}

/// Makes a reader without entries wait, if it has asked to.
fn wait(call: &mut Call<'_, '_>, request: &ReadQuery<'_>, positions: &[StreamId], reply: &mut Reply<'_>) {
    let Some(millis) = request.block else { return reply.null_array() };
    let timeout = Some(millis).filter(|millis| *millis > 0);
    let streams = || request.streams.iter().zip(positions);
    let group = request.group.map(|(group, _)| Arc::<[u8]>::from(group));
    let awaits = |position| match &group {
        None => Awaits::EntriesAfter(position),
        Some(group) => Awaits::Group(Arc::clone(group)),
    };
    let keys = streams().map(|((key, _), position)| call.waited_key(key, awaits(*position))).collect();
    // `$` and `+` mean the last entry of this moment, so they are replaced by its ID.
    let fixed = streams().map(|((_, word), position)| match *word {
        b"$" | b"+" => Some(format!("{}-{}", position.ms, position.seq).into_bytes()),
        _ => None,
    });
    let wait = Wait::new(keys, timeout, Nothing::NullArray).with_last_words(fixed.collect());
    call.wait_for(wait, reply);
}
