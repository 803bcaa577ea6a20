//! XREAD and XREADGROUP.

use std::{cell::Cell, sync::Arc};

use braid_protocol::{number::parse_i64, reply::Reply};
use braid_storage::{
    entry::{db::Db, key::Key, time::Millis},
    observers::{event::Event, waiters::Awaits},
    types::stream::{
        Acknowledgement, Claim, Claimable, Counting, Delivery, Entry, IdleEntries, IdleEntry, StreamId,
        StreamMut, StreamRef, StreamType,
    },
};
use smallvec::SmallVec;

use super::{
    ids::{id, write_id},
    log_words::{Dealt, Served},
    write::{write_entries, write_entry, write_entry_with_deliveries},
};
use crate::{
    catalog::{Args, CommandError, Outcome, shown},
    client::waits::{Nothing, Wait},
    command::{Call, connections::client::timeout_millis},
};

/// Stands for the undelivered entries of a group, where a consumer's ID selects entries.
const UNDELIVERED: StreamId = StreamId::MAX;

/// The least time after which a client that takes over pending entries looks for new ones, in milliseconds.
const LOOK_AGAIN_MIN: u64 = 100;

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
    /// Greatest number of entries of all streams together.
    n_max_of_all: Option<usize>,
    /// Greatest number of bytes of the reply, unless its first entry alone has more.
    bytes_max: Option<usize>,
    /// The time, in milliseconds, after which the consumer takes over pending entries.
    idle_min: Option<u64>,
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
            n_max_of_all: None,
            bytes_max: None,
            idle_min: None,
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
        if let (Some(n_max), Some(n_max_of_all)) = (request.n_max, request.n_max_of_all)
            && n_max_of_all < n_max
        {
            return Err(CommandError::text("ERR MAXCOUNT must be greater than or equal to COUNT"));
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
        } else if n_behind >= 1 && args.tag("MAXCOUNT") {
            let n = positive(args, "ERR MAXCOUNT must be a positive integer")?;
            self.n_max_of_all = Some(n);
        } else if n_behind >= 1 && args.tag("MAXSIZE") {
            self.bytes_max = Some(positive(args, "ERR MAXSIZE must be a positive integer")?);
        } else if n_behind >= 1 && args.tag("CLAIM") {
            self.refuse_for_anybody(
                "ERR The CLAIM option is only supported by XREADGROUP. You called XREAD instead.",
            )?;
            let idle_min = parse_i64(args.next()?);
            let idle_min = idle_min.ok_or(CommandError::text("ERR min-idle-time is not an integer"))?;
            let idle_min = u64::try_from(idle_min)
                .map_err(|_| CommandError::text("ERR min-idle-time must be a positive integer"))?;
            self.idle_min = Some(idle_min);
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

/// Takes a number above zero. `text` is the error for any other argument.
fn positive(args: &mut Args<'_>, text: &'static str) -> Result<usize, CommandError> {
    let n = parse_i64(args.next()?).and_then(|n| usize::try_from(n).ok()).filter(|n| *n > 0);
    n.ok_or(CommandError::text(text))
}

/// The room for entries that is left in a reply (MAXCOUNT and MAXSIZE).
struct ReplyRoom {
    /// Entries of all streams together.
    n_left: Option<usize>,
    bytes_max: Option<usize>,
    /// The beginning of the reply.
    start: usize,
    has_given: bool,
    /// Whether an entry did not fit.
    is_full: Cell<bool>,
}

impl ReplyRoom {
    fn of(request: &ReadQuery<'_>, reply: &Reply<'_>) -> Self {
        ReplyRoom {
            n_left: request.n_max_of_all,
            bytes_max: request.bytes_max,
            start: reply.written_bytes(),
            has_given: false,
            is_full: Cell::new(false),
        }
    }

    /// Returns the greatest number of these entries that fit, or `None` if all do.
    ///
    /// `n_max` is the limit of one stream, of which `n_before` entries have been written already. A missing
    /// entry is one that was deleted.
    fn admitted<'e, I: Iterator<Item = Option<Entry<'e>>>>(
        &self,
        reply: &Reply<'_>,
        (n_max, n_before): (Option<usize>, usize),
        entries: impl FnOnce() -> I,
    ) -> Option<usize> {
        let n_max = [n_max, self.n_left].into_iter().flatten().min().map(|n_max| n_max - n_before);
        let Some(bytes_max) = self.bytes_max else { return n_max };
        let (mut n, mut n_bytes) = (0, reply.written_bytes() - self.start);
        let mut text = Vec::new();
        for entry in entries().take(n_max.unwrap_or(usize::MAX)) {
            if let Some(entry) = entry {
                text.clear();
                write_entry(&mut Reply::new(&mut text, reply.version()), &entry);
                n_bytes += text.len();
            }
            // One entry is always given, so that a reader gets on.
            if n_bytes > bytes_max && (self.has_given || n_before + n > 0) {
                self.is_full.set(true);
                break;
            }
            n += 1;
        }
        Some(n)
    }

    /// Notes that entries of a stream have been given.
    fn spend(&mut self, n: usize) {
        self.n_left = self.n_left.map(|n_left| n_left.saturating_sub(n));
        self.has_given |= n > 0;
    }

    /// Whether no further stream is looked at.
    fn is_spent(&self) -> bool {
        self.n_left == Some(0) || self.is_full.get()
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
    let mut room = ReplyRoom::of(request, reply);
    let pairs = reply.nested_map_later();
    let (mut n_served, db) = (0, call.session.db);
    let mut look_after = None;
    for ((key, _), position) in request.streams.iter().zip(&positions) {
        if room.is_spent() {
            break;
        }
        let Some(shard) = call.shard_if_held(key) else { continue };
        let n = match request.group {
            None => shard
                .value::<StreamType>(key)?
                .and_then(|stream| serve_anybody(stream, key, *position, &room, request.n_max, reply)),
            Some(consumer) => {
                let is_logged = shard.is_logged();
                let stream = shard.counted_value_mut::<StreamType>(key, Event::Delivered)?;
                stream.and_then(|mut stream| {
                    let claimable = claimable(&stream, consumer.0, *position, request);
                    look_after = [look_after, claimable.next_in].into_iter().flatten().min();
                    let group = (consumer.0, consumer.1, db, is_logged);
                    serve_consumer(&mut stream, key, *position, group, (request, claimable, &room), reply)
                })
            }
        };
        if let Some(n) = n {
            n_served += 1;
            room.spend(n);
        }
    }
    if n_served > 0 {
        reply.close(pairs, n_served);
    } else {
        reply.truncate(room.start);
        wait(call, request, &positions, look_after, reply);
    }
    Ok(())
}

/// Writes the entries after `position`, and returns their number if there are any.
fn serve_anybody(
    stream: StreamRef<'_>,
    key: &Key<'_>,
    position: StreamId,
    room: &ReplyRoom,
    n_max: Option<usize>,
    reply: &mut Reply<'_>,
) -> Option<usize> {
    let entries = stream.stream().entries();
    let from = position.next().filter(|_| entries.has_after(position))?;
    let range = || entries.range(from, StreamId::MAX);
    let start = reply.written_bytes();
    reply.nested_pair();
    reply.bulk(key.bytes);
    let n_max = room.admitted(reply, (n_max, 0), || range().map(Some));
    if n_max == Some(0) {
        reply.truncate(start);
        return None;
    }
    Some(write_entries(reply, range(), n_max))
}

/// Returns the pending entries that a consumer takes over, if it asks for that.
fn claimable(
    stream: &StreamMut<'_>,
    group: &[u8],
    position: StreamId,
    request: &ReadQuery<'_>,
) -> IdleEntries {
    match request.idle_min {
        Some(idle_min) if position == UNDELIVERED => {
            let n_max = [request.n_max, request.n_max_of_all].into_iter().flatten().min();
            stream.stream().idle(group, stream.now(), idle_min, n_max.unwrap_or(usize::MAX))
        }
        _ => IdleEntries::default(),
    }
}

/// Delivers new entries to the group, or the consumer's pending entries after `position`.
///
/// Entries that the consumer takes over come first. Returns the number of entries if the stream is part of
/// the reply. A request for pending entries always gets a reply.
fn serve_consumer(
    stream: &mut StreamMut<'_>,
    key: &Key<'_>,
    position: StreamId,
    (group, consumer, db, is_logged): (&[u8], &[u8], Db, bool),
    (request, claimable, room): (&ReadQuery<'_>, IdleEntries, &ReplyRoom),
    reply: &mut Reply<'_>,
) -> Option<usize> {
    let pending_from = if position == UNDELIVERED { None } else { position.next() };
    let served = Served { db, key: key.bytes, group, consumer };
    let claimed = admitted_claims(stream, claimable, request, room, reply);
    if pending_from.is_none() && claimed.is_empty() && !has_undelivered(stream, group) {
        // The consumer still counts as seen.
        let is_new =
            is_logged && stream.stream().group(group).is_some_and(|group| group.consumer(consumer).is_none());
        stream.see_consumer(group, consumer);
        if is_new {
            served.tell(stream.stream(), &Dealt::default());
        }
        return None;
    }
    let entries_start = reply.written_bytes();
    reply.nested_pair();
    reply.bulk(key.bytes);
    let array = reply.array_later();
    let mut n = claim(stream, &claimed, (group, consumer), reply);
    let n_max = {
        let stream = stream.stream();
        let entries = stream.entries();
        let limits = (request.n_max, n);
        match pending_from {
            None => room.admitted(reply, limits, || {
                let from = stream.group(group).and_then(|group| group.last_delivered_id().next());
                from.into_iter().flat_map(|from| entries.range(from, StreamId::MAX)).map(Some)
            }),
            Some(from) => room.admitted(reply, limits, || {
                let of_group = stream.group(group);
                let consumer = of_group.and_then(|group| Some((group, group.consumer(consumer)?)));
                let pending = consumer
                    .into_iter()
                    .flat_map(move |(group, one)| group.pending_of(one, from, StreamId::MAX));
                pending.map(|pending| entries.get(pending.id))
            }),
        }
    };
    if pending_from.is_none() && n == 0 && n_max == Some(0) {
        reply.truncate(entries_start);
        return None;
    }
    let delivery = Delivery { group, consumer, n_max, acknowledgement: request.acknowledgement };
    let mut dealt = Dealt { has_moved: pending_from.is_none(), ..Dealt::default() };
    let mut note = |id| {
        if is_logged {
            dealt.given.push(id);
        }
    };
    claimed.iter().for_each(|claimed| note(claimed.id));
    n += match pending_from {
        None => stream.deliver(&delivery, |entry| {
            match request.idle_min {
                Some(_) => write_entry_with_deliveries(reply, entry, 0, 0),
                None => write_entry(reply, entry),
            }
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
    Some(n)
}

/// Returns the entries to take over that fit into the reply.
fn admitted_claims(
    stream: &StreamMut<'_>,
    claimable: IdleEntries,
    request: &ReadQuery<'_>,
    room: &ReplyRoom,
    reply: &Reply<'_>,
) -> Vec<IdleEntry> {
    let mut claimed = claimable.found;
    let mut entries = stream.stream().entries().look_ups();
    let n_max =
        room.admitted(reply, (request.n_max, 0), || claimed.iter().map(|claimed| entries.get(claimed.id)));
    claimed.truncate(n_max.unwrap_or(usize::MAX));
    claimed
}

/// Takes over entries, and writes them with the time and the number of their deliveries before.
///
/// Returns their number.
fn claim(
    stream: &mut StreamMut<'_>,
    claimed: &[IdleEntry],
    (group, consumer): (&[u8], &[u8]),
    reply: &mut Reply<'_>,
) -> usize {
    if claimed.is_empty() {
        return 0;
    }
    let ids: Vec<StreamId> = claimed.iter().map(|claimed| claimed.id).collect();
    let (delivered_at, counting) = (stream.now(), Counting::OneMore);
    let claim = Claim { group, consumer, idle_min: 0, delivered_at, counting };
    let mut before = claimed.iter();
    stream.claim(&claim, &ids, Claimable::Pending, |entry| {
        let before = before.next().expect("all of them exist and are pending");
        write_entry_with_deliveries(reply, entry, before.idle, before.n_deliveries);
    });
    claimed.len()
}

fn has_undelivered(stream: &StreamMut<'_>, group: &[u8]) -> bool {
    let stream = stream.stream();
    stream.group(group).is_some_and(|group| stream.has_undelivered(group))
}

/// Makes a reader without entries wait, if it has asked to.
///
/// `look_after` is the time until a pending entry can be taken over, in milliseconds.
fn wait(
    call: &mut Call<'_, '_>,
    request: &ReadQuery<'_>,
    positions: &[StreamId],
    look_after: Option<u64>,
    reply: &mut Reply<'_>,
) {
    let Some(millis) = request.block else { return reply.null_array() };
    let timeout = Some(millis).filter(|millis| *millis > 0);
    let streams = || request.streams.iter().zip(positions);
    let group = request.group.map(|(group, _)| Arc::<[u8]>::from(group));
    let awaits = |position| match &group {
        None => Awaits::EntriesAfter(position),
        Some(group) if request.idle_min.is_some() => Awaits::GroupOrHandedBack(Arc::clone(group)),
        Some(group) => Awaits::Group(Arc::clone(group)),
    };
    let keys = streams().map(|((key, _), position)| call.waited_key(key, awaits(*position))).collect();
    // `$` and `+` mean the last entry of this moment, so they are replaced by its ID.
    let fixed = streams().map(|((_, word), position)| match *word {
        b"$" | b"+" => Some(format!("{}-{}", position.ms, position.seq).into_bytes()),
        _ => None,
    });
    // Entries that become pending meanwhile can be taken over after that time, too.
    let look_after = request.idle_min.map(|idle_min| {
        let later = idle_min.max(LOOK_AGAIN_MIN);
        look_after.map_or(later, |look_after| look_after.clamp(1, later))
    });
    let wait = Wait::new(keys, timeout, Nothing::NullArray).with_last_words(fixed.collect());
    let wait = wait.looking_after(look_after);
    call.wait_for(wait, reply);
}
