//! Streams, with all that is known of them.

use super::*;
use crate::types::stream::{Acknowledgement, Delivery, NewId, References, Stream, StreamId, Trim, TrimTo};

fn id(ms: u64, seq: u64) -> StreamId {
    StreamId::new(ms, seq)
}

/// All that a stream tells, in words.
pub fn described(stream: &Stream) -> Vec<(Vec<u8>, Vec<u8>)> {
    let entries = stream.entries();
    let counts = [entries.len(), entries.n_added()];
    let ids = [entries.first_id(), entries.last_id(), entries.max_deleted_id()];
    let mut lines = vec![format!("{counts:?} {ids:?}")];
    for entry in entries.range(StreamId::MIN, StreamId::MAX) {
        let fields: Vec<_> = entry.fields().map(|(name, value)| (name.to_vec(), value.to_vec())).collect();
        lines.push(format!("{:?} {fields:?}", entry.id()));
    }
    for (name, group) in stream.groups() {
        lines.push(format!("{name:?} {:?} {:?}", group.last_delivered_id(), group.n_read()));
        lines.extend(group.pending(StreamId::MIN, StreamId::MAX).map(|pending| format!("{pending:?}")));
        for consumer in group.consumers() {
            let pending = group.pending_of(consumer, StreamId::MIN, StreamId::MAX);
            let ids: Vec<_> = pending.map(|pending| pending.id).collect();
            lines.push(format!("{:?} {:?} {ids:?}", consumer.name(), consumer.seen_at()));
        }
    }
    lines.into_iter().map(|line| (line.into_bytes(), Vec::new())).collect()
}

/// A stream of several nodes, with entries deleted, groups, and consumers of whom one has nothing pending.
pub fn put_stream(n: u64) -> impl FnOnce(&mut Shard, &Key<'_>) {
    move |shard, key| {
        let mut stream = shard.value_or_create::<StreamType>(key, Event::Made).unwrap();
        for ms in 1..=n {
            let fields = [&b"name"[..], b"12", b"other", b"text"];
            let n_fields = if ms % 5 == 0 { 2 } else { 4 };
            stream.add(NewId::Given(id(ms, ms % 3)), fields.into_iter().take(n_fields)).unwrap();
        }
        stream.delete(&[id(2, 2)], References::Keep, |_| {});
        for (group, last, n_read) in [(&b"first"[..], id(0, 0), Some(0)), (b"", id(7, 1), None)] {
            stream.create_group(group, last, n_read);
            stream.create_consumer(group, b"idle");
            for consumer in [&b"one"[..], b"two"] {
                let acknowledgement = Acknowledgement::Expected;
                let n_max = Some(3);
                stream.deliver(&Delivery { group, consumer, n_max, acknowledgement }, |_| {});
            }
        }
    }
}

fn trimmed_away(shard: &mut Shard, key: &Key<'_>) {
    put_stream(9)(shard, key);
    let mut stream = shard.value_or_create::<StreamType>(key, Event::Made).unwrap();
    let precision = crate::types::stream::Precision::Exact;
    stream.trim(&Trim { to: TrimTo::Len(0), precision, limit: None, references: References::Keep });
}

#[test]
fn streams_come_back() {
    let mut world = World::new();
    for n in [1, 2, 10, 99, 100, 101, 1000] {
        let payload = world.assert_comes_back(put_stream(n));
        assert_eq!(payload[0], types::STREAM_2);
    }
    world.assert_comes_back(trimmed_away);
    world.assert_comes_back(|shard, key| {
        let _ = shard.value_or_create::<StreamType>(key, Event::Made).unwrap();
    });
}

/// XSETID may go back behind an entry that was deleted but still lies in its node.
#[test]
fn deleted_entries_may_be_behind_later_ones() {
    let mut world = World::new();
    world.assert_comes_back(|shard, key| {
        let mut stream = shard.value_or_create::<StreamType>(key, Event::Made).unwrap();
        for id in [id(1, 1), id(9, 0)] {
            stream.add(NewId::Given(id), [&b"f"[..], b"v"].into_iter()).unwrap();
        }
        stream.delete(&[id(9, 0)], References::Keep, |_| {});
        stream.set_last_id(id(2, 0), None, None);
        stream.add(NewId::Given(id(3, 0)), [&b"f"[..], b"v"].into_iter()).unwrap();
        let found = |from, to| stream.stream().entries().range(from, to).count();
        assert_eq!(found(id(2, 0), id(4, 0)), 1);
        let backwards = stream.stream().entries().range_backwards(id(0, 0), id(4, 0));
        assert_eq!(backwards.count(), 2);
    });
}

/// Trimming to an identity may leave a node of which all entries are deleted.
#[test]
fn nodes_without_entries_do_not_come_back() {
    let mut world = World::new();
    world.assert_comes_back(|shard, key| {
        let mut stream = shard.value_or_create::<StreamType>(key, Event::Made).unwrap();
        for id in [id(1, 1), id(9, 0)] {
            stream.add(NewId::Given(id), [&b"f"[..], b"v"].into_iter()).unwrap();
        }
        stream.delete(&[id(9, 0)], References::Keep, |_| {});
        let (to, precision) = (TrimTo::Id(id(2, 0)), crate::types::stream::Precision::Exact);
        stream.trim(&Trim { to, precision, limit: None, references: References::Keep });
        let entries = stream.stream().entries();
        assert_eq!((entries.len(), entries.nodes().len()), (0, 1));
    });
    let deleted = b"\x13\x01\x10\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0\x01\x1d\x1d\0\0\0\x0a\0\0\x01\x01\x01\x01\x01\x81f\x02\0\x01\
\x03\x01\0\x01\0\x01\x81v\x02\x04\x01\xff\0\x01\x01\0\0\0\0\x01\0";
    let entry = world.restore(&payload(deleted[0], &deleted[1..])).expect("a stream may be empty");
    let stream: &Stream = entry.as_ref().object().unwrap();
    assert_eq!((stream.entries().nodes().len(), stream.entries().last_id()), (0, id(1, 1)));
}

/// A node with the entries 1-1 and 1-2, both `f v`, and its identity before it.
const NODE: &[u8] =
    b"\x01\x10\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0\x01\x28\x28\0\0\0\x0f\0\x02\x01\0\x01\x01\x01\x81f\x02\0\x01\
\x02\x01\0\x01\0\x01\x81v\x02\x04\x01\x02\x01\0\x01\x01\x01\x81v\x02\x04\x01\xff";

/// The number, and the time in one byte more, of a pending entry.
fn raw(ms: u8, seq: u8) -> [u8; 16] {
    let mut raw = [0; 16];
    (raw[7], raw[15]) = (ms, seq);
    raw
}

fn parts(parts: &[&[u8]]) -> Vec<u8> {
    parts.concat()
}

const TIME: &[u8] = b"\x07\0\0\0\0\0\0\0";
const LATER: &[u8] = b"\x09\0\0\0\0\0\0\0";
const NEVER: &[u8] = b"\xff\xff\xff\xff\xff\xff\xff\xff";

#[test]
fn older_and_newer_streams_are_read() {
    let world = World::new();
    let restored = |value_type, value: &[u8]| {
        world.restore(&payload(value_type, value)).unwrap_or_else(|_| panic!("type {value_type} is read"))
    };
    let group = |active: &[u8]| {
        let pending = raw(1, 1);
        parts(&[b"\x01", &pending, TIME, b"\x05", b"\x01\x01c", TIME, active, b"\x01", &pending])
    };
    let old = parts(&[NODE, b"\x02\x01\x02", b"\x01\x01g\x01\x01", &group(b"")]);
    let old = restored(types::STREAM, &old);
    let stream: &Stream = old.as_ref().object().unwrap();
    assert_eq!((stream.entries().n_added(), stream.entries().first_id()), (2, id(1, 1)));
    let known = stream.group(b"g").unwrap();
    assert_eq!((known.n_read(), known.consumer(b"c").unwrap().active_at()), (Some(1), Some(Millis(7))));
    let entries = parts(&[NODE, b"\x02\x01\x02\x01\x01\0\0\x05"]);
    let unknown = b"\x01\x01g\x01\x01\x81\xff\xff\xff\xff\xff\xff\xff\xff";
    for (active, expected) in [(LATER, Some(Millis(9))), (NEVER, None)] {
        let new = restored(types::STREAM_3, &parts(&[&entries, unknown, &group(active)]));
        let stream: &Stream = new.as_ref().object().unwrap();
        assert_eq!(stream.entries().n_added(), 5);
        let known = stream.group(b"g").unwrap();
        assert_eq!((known.n_read(), known.consumer(b"c").unwrap().active_at()), (None, expected));
        assert_eq!(known.consumer(b"c").unwrap().seen_at(), Millis(7));
    }
}

#[test]
fn streams_that_contradict_themselves_are_refused() {
    let world = World::new();
    let entries = parts(&[NODE, b"\x02\x01\x02\x01\x01\0\0\x02"]);
    let (one, two) = (raw(1, 1), raw(1, 2));
    let group = parts(&[b"\x01g\0\0\0\x01", &one, TIME, b"\x01\x01\x01c", TIME, b"\x01", &one]);
    let right = parts(&[&entries, b"\x01", &group]);
    assert!(world.restore(&payload(types::STREAM_2, &right)).is_ok());
    let groups = |body: &[&[u8]]| parts(&[&entries, b"\x01\x01g\0\0\0", &parts(body)]);
    for wrong in [
        // Another number of entries, and a last identity before the last entry.
        parts(&[NODE, b"\x03\x01\x02\x01\x01\0\0\x02\0"]),
        parts(&[NODE, b"\x02\x01\x01\x01\x01\0\0\x02\0"]),
        // More nodes than there are, the same one twice, and an identity that is too short.
        parts(&[b"\x81\x7f\xff\xff\xff\xff\xff\xff\xff", &NODE[1..], b"\x02\x01\x02\x01\x01\0\0\x02\0"]),
        parts(&[b"\x02", &NODE[1..], &NODE[1..], b"\x04\x01\x02\x01\x01\0\0\x02\0"]),
        parts(&[b"\x01\x0f", &NODE[3..], b"\x02\x01\x02\x01\x01\0\0\x02\0"]),
        // A group twice, and more than there are.
        parts(&[&entries, b"\x02", &group, &group]),
        parts(&[&entries, b"\x81\x7f\xff\xff\xff\xff\xff\xff\xff", &group]),
        // Pending twice, for nobody, for two consumers, for a consumer only, and twice for one.
        groups(&[b"\x02", &one, TIME, b"\x01", &one, TIME, b"\x01\x01\x01c", TIME, b"\x01", &one]),
        groups(&[b"\x01", &one, TIME, b"\x01\x01\x01c", TIME, b"\0"]),
        groups(&[b"\x01", &one, TIME, b"\x01\x02\x01c", TIME, b"\x01", &one, b"\x01d", TIME, b"\x01", &one]),
        groups(&[b"\x01", &one, TIME, b"\x01\x01\x01c", TIME, b"\x01", &two]),
        groups(&[b"\x01", &one, TIME, b"\x01\x01\x01c", TIME, b"\x02", &one, &one]),
        // A consumer twice.
        groups(&[b"\0\x02\x01c", TIME, b"\0\x01c", TIME, b"\0"]),
        // More pending than there are.
        groups(&[b"\x81\x7f\xff\xff\xff\xff\xff\xff\xff", &one, TIME]),
    ] {
        let refused = world.restore(&payload(types::STREAM_2, &wrong)).err();
        assert!(refused.is_some_and(|malformed| !malformed.flaw.is_of_footer()), "{wrong:?}");
    }
}
