//! Streams, written and read.
//!
//! ```text
//! nodes    n | (identity | node) × n
//! entries  live | last | first | max deleted | added
//! groups   n | (name | last delivered | read | pending | consumers) × n
//! pending  n | (identity | delivered at | deliveries) × n
//! consumers n | (name | seen at | active at | n | identity × n) × n
//! ```
//!
//! Numbers are lengths, times 64 bits, and identities of nodes and pending entries two numbers of 64 bits
//! with the highest byte first. A pending entry is written twice: for its group in full, and for its consumer
//! by its identity. Redis 5 wrote neither the numbers after `last` among the entries nor the number of
//! entries that a group has read. Only Redis since 7.2 writes when consumers were active.
//!
//! Redis 8.6 adds what it knows of idempotent producers (XADD IDMP) after the groups. It is read over, since
//! nothing here asks for it:
//!
//! ```text
//! producers seconds | most | n | (name | n | (name of an entry | identity) × n) × n | added | repeated
//! ```
//!
//! Redis 8.8 adds identities to each group: of pending entries that were handed back (XNACK) and have no
//! consumer. A stream with such entries is written so, with no producers; any other as in Redis 7.0.

use std::collections::BTreeMap;

use super::{
    codes::types,
    flaw::Flaw,
    reader::Reader,
    value_builder::{Made, Making, Unfinished},
    walk::{self, Stop, ValueParts, Walker},
    writer,
};
use crate::{
    entry::{Encoding, EntryBox, EntryRef, Kind, time::Millis},
    types::{
        stream::{Consumer, Entries, Group, Groups, Stream, StreamId, StreamType, node::PackedNode},
        value::ValueRef,
    },
};

/// Stands for the number of entries that a group has read, if that is not known.
const UNKNOWN: u64 = u64::MAX;

/// Stands for the time of a consumer that never was active.
const NEVER: u64 = u64::MAX;

/// Bytes of an identity that is written as it is.
const RAW_ID_BYTES: usize = size_of::<u128>();

/// The types that are read.
pub const TYPES: &[u8] = &[types::STREAM, types::STREAM_2, types::STREAM_3, types::STREAM_4, types::STREAM_5];

/// Whether a type is the one of streams with entries that were handed back.
pub fn is_latest(value_type: u8) -> bool {
    value_type == types::STREAM_5
}

/// Writes the type and the value.
pub fn write(out: &mut Vec<u8>, entry: EntryRef<'_>, now: Millis) {
    let stream = ValueRef::<StreamType>::known(entry, now).stream();
    let has_handed_back = stream.groups().any(|(_, group)| group.handed_back().len() > 0);
    let value_type = if has_handed_back { types::STREAM_5 } else { types::STREAM_2 };
    out.push(value_type);
    let entries = stream.entries();
    writer::number_of(out, entries.nodes().len());
    for (id, node) in entries.nodes() {
        writer::string(out, &raw_id(id));
        writer::string(out, node.bytes());
    }
    writer::len(out, entries.len());
    for id in [entries.last_id(), entries.first_id(), entries.max_deleted_id()] {
        write_id(out, id);
    }
    writer::len(out, entries.n_added());
    writer::number_of(out, stream.groups().len());
    for (name, group) in stream.groups() {
        writer::string(out, name);
        write_group(out, value_type, group);
    }
    if value_type >= types::STREAM_4 {
        write_no_producers(out);
    }
}

/// Writes that there are no idempotent producers, and Redis's defaults of their limits.
fn write_no_producers(out: &mut Vec<u8>) {
    const SECONDS: u64 = 100;
    const MOST: u64 = 100;
    for n in [SECONDS, MOST, 0, 0, 0] {
        writer::len(out, n);
    }
}

fn write_group(out: &mut Vec<u8>, value_type: u8, group: &Group) {
    write_id(out, group.last_delivered_id());
    writer::len(out, group.n_read().unwrap_or(UNKNOWN));
    writer::number_of(out, group.n_pending());
    for pending in group.pending(StreamId::MIN, StreamId::MAX) {
        out.extend_from_slice(&raw_id(pending.id));
        write_time(out, pending.delivered_at);
        writer::len(out, pending.n_deliveries);
    }
    writer::number_of(out, group.consumers().len());
    for consumer in group.consumers() {
        writer::string(out, consumer.name());
        write_time(out, consumer.seen_at());
        if value_type >= types::STREAM_3 {
            write_time(out, consumer.active_at().unwrap_or(Millis(NEVER)));
        }
        write_pending_of(out, group, consumer);
    }
    if value_type >= types::STREAM_5 {
        writer::number_of(out, group.handed_back().len());
        for id in group.handed_back() {
            out.extend_from_slice(&raw_id(id));
        }
    }
}

fn write_pending_of(out: &mut Vec<u8>, group: &Group, consumer: &Consumer) {
    writer::number_of(out, consumer.n_pending());
    for pending in group.pending_of(consumer, StreamId::MIN, StreamId::MAX) {
        out.extend_from_slice(&raw_id(pending.id));
    }
}

fn write_id(out: &mut Vec<u8>, id: StreamId) {
    writer::len(out, id.ms);
    writer::len(out, id.seq);
}

fn write_time(out: &mut Vec<u8>, time: Millis) {
    out.extend_from_slice(&time.0.to_le_bytes());
}

fn raw_id(id: StreamId) -> [u8; 16] {
    (u128::from(id.ms) << 64 | u128::from(id.seq)).to_be_bytes()
}

fn id_of_raw(raw: [u8; 16]) -> StreamId {
    let both = u128::from_be_bytes(raw);
    StreamId::new((both >> 64) as u64, both as u64)
}

/// Walks over a value of one of the [`TYPES`].
pub fn walk(value_type: u8, parts: &mut dyn ValueParts) -> Result<(), Stop> {
    walk::strings(parts, 2)?;
    // Redis 5 wrote the number of live entries and the last identity.
    walk::lens(parts, if value_type == types::STREAM { 3 } else { 8 })?;
    walk::repeated(parts, |parts| {
        parts.string()?;
        walk::lens(parts, if value_type == types::STREAM { 2 } else { 3 })?;
        walk::repeated(parts, |parts| {
            parts.bytes(RAW_ID_BYTES + size_of::<Millis>())?;
            parts.len().map(|_| ())
        })?;
        walk::repeated(parts, |parts| {
            parts.string()?;
            parts.bytes(size_of::<Millis>() * if value_type >= types::STREAM_3 { 2 } else { 1 })?;
            walk::repeated(parts, |parts| parts.bytes(RAW_ID_BYTES))
        })?;
        if value_type >= types::STREAM_5 {
            walk::repeated(parts, |parts| parts.bytes(RAW_ID_BYTES))?;
        }
        Ok(())
    })?;
    if value_type >= types::STREAM_4 {
        walk::lens(parts, 2)?;
        walk::repeated(parts, |parts| {
            parts.string()?;
            walk::repeated(parts, |parts| {
                parts.string()?;
                walk::lens(parts, 2)
            })
        })?;
        walk::lens(parts, 2)?;
    }
    Ok(())
}

/// Writes a stream of a later type as one of an earlier, without the facts that only the later one has.
/// Returns false if the earlier one cannot hold it.
pub fn rewrite(out: &mut Vec<u8>, value_type: u8, value: &[u8], target: u8) -> Result<bool, Stop> {
    let mut walker = Walker::new(value);
    walk::strings(&mut walker, 2)?;
    walk::lens(&mut walker, 8)?;
    let n_groups = walker.len()?;
    let mut copied = 0;
    for _ in 0..n_groups {
        walker.string()?;
        walk::lens(&mut walker, 3)?;
        for _ in 0..walker.len()? {
            walker.bytes(RAW_ID_BYTES + size_of::<Millis>())?;
            walker.len()?;
        }
        for _ in 0..walker.len()? {
            walker.string()?;
            walker.bytes(size_of::<Millis>())?;
            if target < types::STREAM_3 {
                out.extend_from_slice(walker.between(copied, walker.at()));
                walker.bytes(size_of::<Millis>())?;
                copied = walker.at();
            } else {
                walker.bytes(size_of::<Millis>())?;
            }
            for _ in 0..walker.len()? {
                walker.bytes(RAW_ID_BYTES)?;
            }
        }
        if value_type >= types::STREAM_5 {
            out.extend_from_slice(walker.between(copied, walker.at()));
            if walker.len()? > 0 {
                return Ok(false);
            }
            copied = walker.at();
        }
    }
    out.extend_from_slice(walker.between(copied, walker.at()));
    Ok(true)
}

/// Reads a value of one of the [`TYPES`].
pub fn read(value_type: u8, from: &mut Reader<'_>, making: &Making<'_>) -> Option<Made> {
    let mut entries = match making.onto.take() {
        Some(Unfinished::Nodes(entries)) => entries,
        _ => Entries::default(),
    };
    read_nodes(&mut entries, from)?;
    if making.is_part {
        return Some(Made::Part(Unfinished::Nodes(entries)));
    }
    read_state(&mut entries, value_type, from)?;
    let mut groups = Groups::default();
    from.repeated(|from| {
        let name = from.string()?;
        let group = read_group(value_type, &entries, from)?;
        from.require(groups.create(&name, group), Flaw::Twice("stream consumer group"))
    })?;
    if value_type >= types::STREAM_4 {
        pass_producers(from)?;
    }
    let stream = Stream::of(entries, groups);
    Some(Made::Entry(EntryBox::with_object(Kind::Stream, Encoding::default(), making.key, stream, None)))
}

/// Reads over the idempotent producers.
fn pass_producers(from: &mut Reader<'_>) -> Option<()> {
    let (_seconds, _most) = (from.len()?, from.len()?);
    from.repeated(|from| {
        from.string()?;
        from.repeated(|from| {
            from.string()?;
            read_id(from).map(|_| ())
        })
    })?;
    let (_added, _repeated) = (from.len()?, from.len()?);
    Some(())
}

fn read_nodes(entries: &mut Entries, from: &mut Reader<'_>) -> Option<()> {
    from.repeated(|from| {
        let id = from.string_as(Flaw::Stream("the ID of a stream's node is not 16 bytes long"), |raw| {
            Some(id_of_raw((*raw).try_into().ok()?))
        })?;
        let node = from.string_as(Flaw::Packed("Stream listpack"), |packed| {
            PackedNode::check(packed.into_owned(), id)
        })?;
        entries
            .append_node(id, node)
            .or_else(|| from.refuse(Flaw::Stream("a stream's entries are out of order")))
    })
}

/// Reads the numbers and IDs that stand after all entries.
fn read_state(entries: &mut Entries, value_type: u8, from: &mut Reader<'_>) -> Option<()> {
    let (n_live, last) = (from.len()?, read_id(from)?);
    if n_live != entries.len() || last < entries.last_id() {
        return from.refuse(Flaw::Stream("a stream's length or last ID is not that of its entries"));
    }
    if value_type == types::STREAM {
        entries.set_last_id(last, Some(n_live), Some(StreamId::MIN));
    } else {
        // The nodes have told the first identity.
        read_id(from)?;
        let max_deleted = read_id(from)?;
        entries.set_last_id(last, Some(from.len()?), Some(max_deleted));
    }
    Some(())
}

fn read_group(value_type: u8, entries: &Entries, from: &mut Reader<'_>) -> Option<Group> {
    let last_delivered = read_id(from)?;
    let n_read = if value_type == types::STREAM {
        entries.n_added_until(last_delivered)
    } else {
        Some(from.len()?).filter(|n| *n != UNKNOWN)
    };
    let mut group = Group::new(last_delivered, n_read);
    let mut unowned = BTreeMap::new();
    from.repeated(|from| {
        let (id, delivered_at) = (id_of_raw(from.array()?), from.time()?);
        let before = unowned.insert(id, (delivered_at, from.len()?));
        from.require(before.is_none(), Flaw::Twice("pending stream entry"))
    })?;
    from.repeated(|from| read_consumer(value_type, &mut group, &mut unowned, from))?;
    if value_type >= types::STREAM_5 {
        from.repeated(|from| {
            let id = id_of_raw(from.array()?);
            let Some((_, n_deliveries)) = unowned.remove(&id) else {
                return from
                    .refuse(Flaw::Stream("an entry that was handed back is not pending without a consumer"));
            };
            group.assign_to_nobody(id, n_deliveries);
            Some(())
        })?;
    }
    from.require(unowned.is_empty(), Flaw::Stream("a pending stream entry has no consumer"))?;
    Some(group)
}

/// Reads a consumer, which takes its pending entries out of `unowned`.
fn read_consumer(
    value_type: u8,
    group: &mut Group,
    unowned: &mut BTreeMap<StreamId, (Millis, u64)>,
    from: &mut Reader<'_>,
) -> Option<()> {
    let (name, seen_at) = (from.string()?, from.time()?);
    // Before there were two times, a consumer that was seen counted as active.
    let active_at = if value_type >= types::STREAM_3 { from.time()? } else { seen_at };
    let Some(number) = group.create_consumer(&name, seen_at) else {
        return from.refuse(Flaw::Twice("stream consumer"));
    };
    if active_at != Millis(NEVER) {
        group.note_active(number, active_at);
    }
    from.repeated(|from| {
        let id = id_of_raw(from.array()?);
        let Some((delivered_at, n_deliveries)) = unowned.remove(&id) else {
            return from
                .refuse(Flaw::Stream("a consumer has a stream entry that its group does not have pending"));
        };
        group.assign(id, number, delivered_at, n_deliveries);
        Some(())
    })
}

fn read_id(from: &mut Reader<'_>) -> Option<StreamId> {
    Some(StreamId::new(from.len()?, from.len()?))
}
