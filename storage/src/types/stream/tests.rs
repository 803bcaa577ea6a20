//! Streams against a model of maps, node by node against Redis, and what their counts say.

use std::collections::{BTreeMap, BTreeSet};

use super::*;
use crate::{
    entry::{db::Db, key::Key},
    keyspace::{Keyspace, shard::Shard},
    observers::event::Event,
    table::hash::{HashTags, KeyHasher, Router},
    types::packed::Packed,
};

type Fields = Vec<(Vec<u8>, Vec<u8>)>;

fn id(ms: u64, seq: u64) -> StreamId {
    StreamId::new(ms, seq)
}

/// A shard with one key.
struct World {
    keyspace: Keyspace,
    shard: Shard,
}

impl World {
    fn new(node_max_bytes: usize, node_max_entries: usize) -> Self {
        let router = Router::new(KeyHasher::with_key(3, 5), 0, HashTags::Honoured);
        let (keyspace, mut shards) = Keyspace::new(router, 1);
        keyspace.thresholds().stream_node_max_bytes.set(node_max_bytes);
        keyspace.thresholds().stream_node_max_entries.set(node_max_entries);
        World { keyspace, shard: shards.remove(0) }
    }

    fn key(&self) -> Key<'static> {
        Key { bytes: b"stream", routed: self.keyspace.router().route(b"stream") }
    }

    fn begin(&mut self, now: u64) {
        self.shard.start();
        self.shard.begin(Db(0), Millis(now));
    }

    fn stream(&mut self) -> StreamMut<'_> {
        let key = self.key();
        self.shard.value_or_create(&key, Event::Made).expect("it is a stream")
    }

    fn read(&mut self) -> &Stream {
        let key = self.key();
        self.shard.value::<StreamType>(&key).expect("it is a stream").expect("it is there").stream()
    }

    fn add(&mut self, id: StreamId, fields: &[&str]) {
        let added = self.stream().add(NewId::Given(id), fields.iter().map(|text| text.as_bytes()));
        assert_eq!(added, Ok(id));
    }
}

fn fields_of(entry: &Entry<'_>) -> Fields {
    let fields: Fields = entry.fields().map(|(name, value)| (name.to_vec(), value.to_vec())).collect();
    assert_eq!(fields.len(), entry.n_fields());
    fields
}

struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }

    fn one_of<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        &all[self.below(all.len() as u64) as usize]
    }
}

#[test]
fn nodes_are_those_of_redis() {
    // What DUMP of redis-server 7.0.15 holds for these additions and this deletion.
    let expected = b"e\x00\x00\x00\x1f\x00\x03\x01\x01\x01\x02\x01\x87message\x08\x81n\x02\x00\x01\x02\x01\x00\x01\x00\x01\
        \x85Hello\x06\x0c\x01\x05\x01\x03\x01\x00\x01\x05\x01\x85World\x06\xc1,\x02\x05\x01\x00\x01\x06\x01\xdf\xcc\x02\x01\x01\
        \x85other\x06\xdf\xff\x02\x06\x01\x02\x01\xf2\x8f\x8a\x01\x04\xdf\xc9\x02\x81x\x02\x81y\x02\x05\x01\xff";
    let mut world = World::new(4096, 100);
    let first = id(1_526_919_030_474, 55);
    world.add(first, &["message", "Hello", "n", "12"]);
    world.add(id(1_526_919_030_474, 60), &["message", "World", "n", "300"]);
    world.add(id(1_526_919_030_480, 3), &["other", "-1"]);
    world.add(id(1_526_919_131_481, 0), &["message", "x", "n", "y"]);
    world.stream().delete(&[id(1_526_919_030_474, 60)], References::Keep, |_| {});
    let nodes: Vec<_> = world.read().entries().nodes().map(|(id, node)| (id, node.bytes())).collect();
    assert_eq!(nodes, [(first, &expected[..])]);
    assert!(node::PackedNode::check(expected.to_vec(), first).is_some());
}

#[test]
fn what_is_no_node_is_refused() {
    let mut world = World::new(4096, 100);
    world.add(id(5, 5), &["a", "1", "b", "2"]);
    world.add(id(5, 6), &["a", "3", "b", "4"]);
    world.add(id(7, 0), &["c", "long enough to be told apart"]);
    world.stream().delete(&[id(5, 6)], References::Keep, |_| {});
    let good = world.read().entries().nodes().next().expect("there is one").1.bytes().to_vec();
    assert!(node::PackedNode::check(good.clone(), id(5, 5)).is_some());
    assert!(node::PackedNode::check(crate::types::packed::EMPTY.to_vec(), id(5, 5)).is_none());
    // Whatever one byte is changed to, what passes reads the same from both ends.
    for at in 0..good.len() {
        for byte in 0..=255 {
            let mut bad = good.clone();
            bad[at] = byte;
            let Some(node) = node::PackedNode::check(bad, id(5, 5)) else { continue };
            let forwards: Vec<_> =
                node.entries(id(5, 5)).map(|entry| (entry.id(), fields_of(&entry))).collect();
            let mut backwards: Vec<_> =
                node.entries_backwards(id(5, 5)).map(|entry| (entry.id(), fields_of(&entry))).collect();
            backwards.reverse();
            assert_eq!(forwards, backwards);
            assert_eq!(forwards.len(), node.n_live() + node.n_deleted());
        }
    }
}

#[test]
fn numbers_may_be_wider_than_they_must() {
    let entry = |ms| [0xc0, 2, 2, ms, 1, 0, 1, 3, 1];
    let mut bytes = vec![0, 0, 0, 0, 12, 0, 2, 1, 0, 1, 0, 1, 0, 1];
    bytes.extend([entry(0), entry(1)].concat());
    bytes.push(0xff);
    bytes[0] = bytes.len() as u8;
    let mut node = node::PackedNode::check(bytes, id(5, 0)).expect("it is one");
    assert_eq!(node.sift(id(5, 0), |_| node::Fate::Goes), 2);
    assert!(node::PackedNode::check(node.bytes().to_vec(), id(5, 0)).is_some());
    assert_eq!((node.n_live(), node.n_deleted()), (0, 2));
}

#[test]
fn ids_are_given_out_in_order() {
    let mut world = World::new(4096, 100);
    world.begin(1000);
    let mut add = |new_id| world.stream().add(new_id, [&b"f"[..], b"v"].into_iter());
    assert_eq!(add(NewId::Given(StreamId::MIN)), Err(AddError::NotGreater));
    assert_eq!(add(NewId::AutoSeq { ms: 0 }), Ok(id(0, 1)));
    assert_eq!(add(NewId::AutoSeq { ms: 0 }), Ok(id(0, 2)));
    assert_eq!(add(NewId::Auto), Ok(id(1000, 0)));
    assert_eq!(add(NewId::Auto), Ok(id(1000, 1)));
    assert_eq!(add(NewId::AutoSeq { ms: 999 }), Err(AddError::NotGreater));
    assert_eq!(add(NewId::AutoSeq { ms: 2000 }), Ok(id(2000, 0)));
    assert_eq!(add(NewId::Auto), Ok(id(2000, 1)), "never back in time");
    assert_eq!(add(NewId::Given(id(2000, 1))), Err(AddError::NotGreater));
    assert_eq!(add(NewId::Given(id(2000, u64::MAX))), Ok(id(2000, u64::MAX)));
    assert_eq!(add(NewId::AutoSeq { ms: 2000 }), Err(AddError::NotGreater));
    assert_eq!(add(NewId::Auto), Ok(id(2001, 0)));
    assert_eq!(add(NewId::Given(StreamId::MAX)), Ok(StreamId::MAX));
    assert_eq!(add(NewId::Auto), Err(AddError::Exhausted));
    assert_eq!(add(NewId::Given(id(1, 1))), Err(AddError::Exhausted));
}

#[test]
fn trimming_to_nodes_leaves_no_node_in_parts() {
    let mut world = World::new(0, 10);
    for n in 1..=100 {
        world.add(id(n, 0), &["f", "v"]);
    }
    let trim = |to, limit| Trim { to, precision: Precision::Nodes, limit, references: References::Keep };
    assert_eq!(world.stream().trim(&trim(TrimTo::Len(85), None)), 10);
    assert_eq!(world.stream().trim(&trim(TrimTo::Len(0), Some(29))), 20, "30 would be more than the limit");
    assert_eq!(world.stream().trim(&trim(TrimTo::Id(id(45, 0)), None)), 10);
    assert_eq!(world.read().entries().first_id(), id(41, 0));
    assert_eq!(world.read().entries().max_deleted_id(), StreamId::MIN);
    assert_eq!(world.stream().trim(&trim(TrimTo::Len(0), None)), 60);
    assert_eq!(world.read().entries().first_id(), StreamId::MIN);
}

#[test]
fn trimming_obeys_groups_or_makes_them_forget() {
    let mut world = World::new(0, 2);
    for n in 1..=6 {
        world.add(id(n, 0), &["f", "v"]);
    }
    assert!(world.stream().create_group(b"g", StreamId::MIN, None));
    let all =
        Delivery { group: b"g", consumer: b"c", n_max: Some(5), acknowledgement: Acknowledgement::Expected };
    assert_eq!(world.stream().deliver(&all, |_| {}), 5);
    world.stream().acknowledge(b"g", &[id(1, 0), id(2, 0), id(4, 0)]);
    let mut trim = Trim {
        to: TrimTo::Id(id(7, 0)),
        precision: Precision::Nodes,
        limit: None,
        references: References::Obey,
    };
    assert_eq!(world.stream().trim(&trim), 3, "3 and 5 are pending, 6 is undelivered");
    let left: Vec<u64> =
        world.read().entries().range(StreamId::MIN, StreamId::MAX).map(|entry| entry.id().ms).collect();
    assert_eq!(left, [3, 5, 6]);
    trim.references = References::Delete;
    assert_eq!(world.stream().trim(&trim), 3);
    assert_eq!(world.read().group(b"g").expect("it is there").n_pending(), 0);
    assert_eq!(world.read().entries().nodes().count(), 0);
}

#[test]
fn lag_is_told_as_long_as_no_gap_hides_it() {
    let mut world = World::new(0, 100);
    let lag = |world: &mut World| {
        let stream = world.read();
        let group = stream.group(b"g").expect("it is there");
        (group.n_read(), stream.lag(group))
    };
    let one =
        Delivery { group: b"g", consumer: b"c", n_max: Some(1), acknowledgement: Acknowledgement::Needless };
    world.stream().create_group(b"g", StreamId::MIN, None);
    assert_eq!(lag(&mut world), (None, Some(0)));
    for n in 1..=5 {
        world.add(id(n, 0), &["f", "v"]);
    }
    assert_eq!(lag(&mut world), (None, Some(5)));
    world.stream().deliver(&one, |_| {});
    assert_eq!(lag(&mut world), (Some(1), Some(4)));
    world.stream().delete(&[id(3, 0)], References::Keep, |_| {});
    assert_eq!(lag(&mut world), (Some(1), None), "a gap ahead");
    world.stream().deliver(&one, |_| {});
    assert_eq!(lag(&mut world), (None, None));
    let exact = Trim {
        to: TrimTo::Id(id(3, 0)),
        precision: Precision::Exact,
        limit: None,
        references: References::Keep,
    };
    world.stream().trim(&exact);
    assert_eq!(lag(&mut world), (None, Some(2)), "all that is left is ahead");
    world.stream().deliver(&Delivery { n_max: None, ..one }, |_| {});
    assert_eq!(lag(&mut world), (Some(5), Some(0)));
    world.stream().set_group(b"g", StreamId::MIN, Some(99));
    assert_eq!(world.read().group(b"g").expect("it is there").n_read(), Some(5), "no more than were added");
}

#[test]
fn memory_is_accounted_as_it_comes_and_goes() {
    let mut world = World::new(512, 20);
    let empty = world.keyspace.used_bytes();
    let long = "x".repeat(300);
    for n in 1..500 {
        world.add(id(n, 0), &["field", &long[..n as usize % 300], "other", "1234567"]);
    }
    let full = world.keyspace.used_bytes();
    let text_bytes: usize = (1..500).map(|n| n % 300 + 20).sum();
    assert!(
        (text_bytes..text_bytes * 2).contains(&((full - empty) as usize)),
        "{} for {text_bytes}",
        full - empty
    );
    world.stream().create_group(b"g", StreamId::MIN, None);
    let all =
        Delivery { group: b"g", consumer: b"c", n_max: None, acknowledgement: Acknowledgement::Expected };
    world.stream().deliver(&all, |_| {});
    assert!(world.keyspace.used_bytes() > full + 499 * 48);
    world.stream().delete_consumer(b"g", b"c");
    world.stream().destroy_group(b"g");
    assert!(world.keyspace.used_bytes() <= full);
    let ids: Vec<StreamId> = (1..500).map(|n| id(n, 0)).collect();
    assert_eq!(world.stream().delete(&ids, References::Keep, |_| {}), 499);
    assert!(world.keyspace.used_bytes() < empty + 1000, "an empty stream is small");
    let key = world.key();
    assert!(world.shard.remove(&key, Event::Del));
    assert_eq!(world.keyspace.used_bytes(), empty);
}

#[derive(Default)]
struct ModelGroup {
    last: StreamId,
    pending: BTreeMap<StreamId, (u64, Millis, u64)>,
    consumers: BTreeSet<u64>,
}

#[derive(Default)]
struct Model {
    live: BTreeMap<StreamId, Fields>,
    last: StreamId,
    max_deleted: StreamId,
    n_added: u64,
    groups: BTreeMap<u64, ModelGroup>,
}

impl Model {
    fn refers(&self, id: StreamId) -> bool {
        self.groups.values().any(|group| group.last < id || group.pending.contains_key(&id))
    }

    fn forget(&mut self, id: StreamId) {
        for group in self.groups.values_mut() {
            group.pending.remove(&id);
        }
    }

    /// Has no group wait for anything before an entry.
    fn forget_before(&mut self, id: StreamId) {
        for group in self.groups.values_mut() {
            group.pending = group.pending.split_off(&id);
        }
    }
}

fn name(n: u64) -> Vec<u8> {
    format!("name{n}").into_bytes()
}

/// One run of random operations.
struct Run {
    random: Random,
    world: World,
    model: Model,
    now: u64,
}

impl Run {
    fn step(&mut self) {
        self.now += self.random.below(3);
        self.world.begin(self.now);
        match self.random.below(16) {
            0..=5 => self.add(),
            6 => self.delete(),
            7 => self.trim(),
            8 => self.make_and_unmake(),
            9 | 10 => self.deliver(),
            11 => self.redeliver(),
            12 => self.acknowledge(),
            13 => self.claim(),
            14 => self.auto_claim(),
            _ => self.acknowledge_and_delete(),
        }
    }

    /// Any identity near those that exist.
    fn some_id(&mut self) -> StreamId {
        let last = self.model.last;
        match self.random.below(8) {
            0 => StreamId::MIN,
            1 => StreamId::MAX,
            2 => last,
            _ => {
                let ids: Vec<StreamId> = self.model.live.keys().copied().collect();
                let known = if ids.is_empty() { last } else { *self.random.one_of(&ids) };
                *self.random.one_of(&[Some(known), known.next(), known.previous()])
            }
            .unwrap_or(last),
        }
    }

    fn some_ids(&mut self) -> Vec<StreamId> {
        (0..=self.random.below(4)).map(|_| self.some_id()).collect()
    }

    fn some_references(&mut self) -> References {
        *self.random.one_of(&[References::Keep, References::Delete, References::Obey])
    }

    fn add(&mut self) {
        let names = ["f", "g", "12", ""];
        let texts =
            ["", "7", "-70000", "text", "a text of more than sixty-four bytes, whose length takes two"];
        let first = self.random.below(4) as usize;
        let fields: Fields = (0..=self.random.below(3) as usize)
            .map(|n| {
                let text = self.random.one_of(&texts).as_bytes().to_vec();
                (names[(first + n) % 4].as_bytes().to_vec(), text)
            })
            .collect();
        let new_id = match self.random.below(4) {
            0 => NewId::Given(id(self.model.last.ms, self.model.last.seq + 1 + self.random.below(200))),
            1 => NewId::AutoSeq { ms: self.model.last.ms + self.random.below(2) },
            _ => NewId::Auto,
        };
        let words = fields.iter().flat_map(|(name, value)| [&name[..], &value[..]]);
        let added = self.world.stream().add(new_id, words).expect("the model knows what is next");
        assert!(added > self.model.last);
        self.model.last = added;
        self.model.n_added += 1;
        self.model.live.insert(added, fields);
    }

    fn delete(&mut self) {
        let (ids, references) = (self.some_ids(), self.some_references());
        let mut got = Vec::new();
        self.world.stream().delete(&ids, references, |deletion| got.push(deletion));
        let expected: Vec<Deletion> = ids.iter().map(|id| self.model_delete(*id, references)).collect();
        assert_eq!(got, expected, "{ids:?} {references:?}");
    }

    fn model_delete(&mut self, id: StreamId, references: References) -> Deletion {
        let model = &mut self.model;
        if references == References::Delete {
            model.forget(id);
        }
        if !model.live.contains_key(&id) {
            return Deletion::Missing;
        }
        if references == References::Obey && model.refers(id) {
            return Deletion::Referenced;
        }
        model.live.remove(&id);
        model.max_deleted = model.max_deleted.max(id);
        Deletion::Done
    }

    fn trim(&mut self) {
        let len = self.model.live.len() as u64;
        let to = match self.random.below(2) {
            0 => TrimTo::Len(self.random.below(len + 2)),
            _ => TrimTo::Id(self.some_id()),
        };
        let precision = *self.random.one_of(&[Precision::Exact, Precision::Nodes]);
        let limit =
            (precision == Precision::Nodes && self.random.below(2) == 0).then(|| self.random.below(20));
        let trim = Trim { to, precision, limit, references: self.some_references() };
        let n = self.world.stream().trim(&trim);
        let left: BTreeSet<StreamId> =
            self.world.read().entries().range(StreamId::MIN, StreamId::MAX).map(|entry| entry.id()).collect();
        let gone: Vec<StreamId> = self.model.live.keys().filter(|id| !left.contains(id)).copied().collect();
        assert_eq!((n, len - n), (gone.len() as u64, left.len() as u64), "{trim:?}");
        assert!(limit.is_none_or(|limit| n <= limit), "{trim:?}");
        assert!(gone.iter().all(|id| !trim.spares(*id)), "{trim:?}");
        assert!(trim.references != References::Obey || !gone.iter().any(|id| self.model.refers(*id)));
        let may_go = |id: &StreamId| trim.references != References::Obey || !self.model.refers(*id);
        let expected: Vec<StreamId> = match to {
            TrimTo::Len(len_max) => {
                let n = len.saturating_sub(len_max) as usize;
                self.model.live.keys().filter(|id| may_go(id)).take(n).copied().collect()
            }
            TrimTo::Id(least) => {
                self.model.live.keys().filter(|id| **id < least && may_go(id)).copied().collect()
            }
        };
        assert!(expected.starts_with(&gone), "{trim:?} removed {gone:?} of {expected:?}");
        // A node that groups hold back in part ends an exact trim to a length no sooner than at that length.
        if precision == Precision::Exact && trim.references != References::Obey {
            assert_eq!(gone, expected, "{trim:?}");
        }
        for id in gone {
            self.model.live.remove(&id);
        }
        if trim.references == References::Delete {
            let first = self.model.live.keys().next().copied().unwrap_or(StreamId::MAX);
            self.model.forget_before(if let TrimTo::Id(least) = to { first.min(least) } else { first });
        }
    }

    fn make_and_unmake(&mut self) {
        let (n, last) = (self.random.below(3), self.some_id());
        let mut stream = self.world.stream();
        match self.random.below(4) {
            0 => assert_eq!(stream.destroy_group(&name(n)), self.model.groups.remove(&n).is_some()),
            1 => {
                let group = self.model.groups.get_mut(&n);
                assert_eq!(stream.set_group(&name(n), last, None), group.is_some());
                group.into_iter().for_each(|group| group.last = last);
            }
            2 => {
                let deleted = stream.delete_consumer(&name(n), &name(n + 1));
                let expected = self.model.groups.get_mut(&n).map(|group| {
                    let before = group.pending.len();
                    group.pending.retain(|_, (consumer, ..)| *consumer != n + 1);
                    group.consumers.remove(&(n + 1));
                    before - group.pending.len()
                });
                assert_eq!(deleted, expected);
            }
            _ => {
                let is_new = !self.model.groups.contains_key(&n);
                assert_eq!(stream.create_group(&name(n), last, None), is_new);
                if is_new {
                    self.model.groups.insert(n, ModelGroup { last, ..ModelGroup::default() });
                }
            }
        }
    }

    fn deliver(&mut self) {
        let (g, c) = (self.random.below(3), self.random.below(4));
        let n_max = (self.random.below(2) == 0).then(|| 1 + self.random.below(5) as usize);
        let acknowledgement = *self.random.one_of(&[
            Acknowledgement::Expected,
            Acknowledgement::Expected,
            Acknowledgement::Needless,
        ]);
        let (group, consumer) = (name(g), name(c));
        let delivery = Delivery { group: &group, consumer: &consumer, n_max, acknowledgement };
        let mut got = Vec::new();
        self.world.stream().deliver(&delivery, |entry| got.push((entry.id(), fields_of(entry))));
        let now = Millis(self.now);
        let Model { live, groups, .. } = &mut self.model;
        let Some(group) = groups.get_mut(&g) else { return assert!(got.is_empty()) };
        group.consumers.insert(c);
        let from = group.last;
        let expected: Vec<_> = live
            .iter()
            .filter(|(id, _)| **id > from)
            .take(n_max.unwrap_or(usize::MAX))
            .map(|(id, fields)| (*id, fields.clone()))
            .collect();
        for (id, _) in &expected {
            group.last = *id;
            if acknowledgement == Acknowledgement::Expected {
                group.pending.insert(*id, (c, now, 1));
            }
        }
        assert_eq!(got, expected);
    }

    fn redeliver(&mut self) {
        let (g, c, from) = (self.random.below(3), self.random.below(4), self.some_id());
        let (group, consumer) = (name(g), name(c));
        let delivery = Delivery {
            group: &group,
            consumer: &consumer,
            n_max: Some(self.random.below(5) as usize),
            acknowledgement: Acknowledgement::Expected,
        };
        let mut got = Vec::new();
        self.world.stream().redeliver(&delivery, from, |id, entry| got.push((id, entry.is_some())));
        let now = Millis(self.now);
        let Model { live, groups, .. } = &mut self.model;
        let Some(group) = groups.get_mut(&g) else { return assert!(got.is_empty()) };
        group.consumers.insert(c);
        let mine = group.pending.iter_mut().filter(|(id, (consumer, ..))| **id >= from && *consumer == c);
        let mut expected = Vec::new();
        for (id, (_, at, n)) in mine.take(delivery.n_max.expect("it is bounded")) {
            let is_live = live.contains_key(id);
            if is_live {
                (*at, *n) = (now, *n + 1);
            }
            expected.push((*id, is_live));
        }
        assert_eq!(got, expected);
    }

    fn acknowledge(&mut self) {
        let (g, ids) = (self.random.below(3), self.some_ids());
        let n = self.world.stream().acknowledge(&name(g), &ids);
        let expected = self.model.groups.get_mut(&g).map(|group| {
            let before = group.pending.len();
            group.pending.retain(|id, _| !ids.contains(id));
            before - group.pending.len()
        });
        assert_eq!(n, expected);
    }

    fn acknowledge_and_delete(&mut self) {
        let (g, ids, references) = (self.random.below(3), self.some_ids(), self.some_references());
        let mut got = Vec::new();
        self.world.stream().acknowledge_and_delete(&name(g), &ids, references, |deletion| got.push(deletion));
        let mut expected = Vec::new();
        for id in ids {
            let group = self.model.groups.get_mut(&g);
            if group.and_then(|group| group.pending.remove(&id)).is_none() {
                expected.push(Deletion::Missing);
            } else if references == References::Obey && self.model.refers(id) {
                expected.push(Deletion::Referenced);
            } else {
                self.model_delete(id, references);
                expected.push(Deletion::Done);
            }
        }
        assert_eq!(got, expected);
    }

    fn some_claim<'a>(&mut self, group: &'a [u8], consumer: &'a [u8]) -> Claim<'a> {
        Claim {
            group,
            consumer,
            idle_min: self.random.below(20),
            delivered_at: Millis(self.now - self.random.below(2)),
            counting: *self.random.one_of(&[Counting::OneMore, Counting::AsBefore, Counting::Exactly(9)]),
        }
    }

    fn claim(&mut self) {
        let (g, c, ids) = (self.random.below(3), self.random.below(4), self.some_ids());
        let (group, consumer) = (name(g), name(c));
        let claimable = *self.random.one_of(&[Claimable::Pending, Claimable::Pending, Claimable::Any]);
        let claim = self.some_claim(&group, &consumer);
        let mut got = Vec::new();
        self.world.stream().claim(&claim, &ids, claimable, |entry| got.push(entry.id()));
        let now = Millis(self.now);
        let Model { live, groups, .. } = &mut self.model;
        let Some(group) = groups.get_mut(&g) else { return assert!(got.is_empty()) };
        group.consumers.insert(c);
        let mut expected = Vec::new();
        for id in ids {
            match group.pending.get(&id).copied() {
                _ if !live.contains_key(&id) => drop(group.pending.remove(&id)),
                None if claimable == Claimable::Pending => {}
                Some((_, at, _)) if now.0 - at.0 < claim.idle_min => {}
                before => {
                    group.pending.insert(id, claimed(c, &claim, before.map_or(1, |(_, _, n)| n)));
                    expected.push(id);
                }
            }
        }
        assert_eq!(got, expected);
    }

    fn auto_claim(&mut self) {
        let (g, c, from) = (self.random.below(3), self.random.below(4), self.some_id());
        let (group, consumer, n) = (name(g), name(c), 1 + self.random.below(4) as usize);
        let claim = self.some_claim(&group, &consumer);
        let mut got = Vec::new();
        let done = self.world.stream().auto_claim(&claim, from, n, |entry| got.push(entry.id()));
        let now = Millis(self.now);
        let Model { live, groups, .. } = &mut self.model;
        let Some(group) = groups.get_mut(&g) else { return assert!(got.is_empty()) };
        group.consumers.insert(c);
        let (mut expected, mut deleted, mut n_seen, mut next) = (Vec::new(), Vec::new(), 0, None);
        let ids: Vec<StreamId> = group.pending.range(from..).map(|(id, _)| *id).collect();
        for id in ids {
            if expected.len() + deleted.len() == n || n_seen == 10 * n {
                next = Some(id);
                break;
            }
            n_seen += 1;
            let (_, at, n_deliveries) = group.pending[&id];
            if !live.contains_key(&id) {
                group.pending.remove(&id);
                deleted.push(id);
            } else if now.0 - at.0 >= claim.idle_min {
                group.pending.insert(id, claimed(c, &claim, n_deliveries));
                expected.push(id);
            }
        }
        assert_eq!((got, done), (expected, AutoClaimed { next, deleted }));
    }

    fn compare(&mut self) {
        let (from, to) = (self.some_id(), self.some_id());
        let Run { world, model, .. } = self;
        let stream = world.read();
        let entries = stream.entries();
        let first = model.live.keys().next().copied().unwrap_or(StreamId::MIN);
        assert_eq!(
            (
                entries.len(),
                entries.first_id(),
                entries.last_id(),
                entries.max_deleted_id(),
                entries.n_added()
            ),
            (model.live.len() as u64, first, model.last, model.max_deleted, model.n_added)
        );
        assert_eq!(entries.last_live_id(), model.live.keys().next_back().copied());
        assert_eq!(entries.get(from).map(|entry| fields_of(&entry)).as_ref(), model.live.get(&from));
        let mut look_ups = entries.look_ups();
        let asked = [from, to, StreamId::MIN, from].into_iter().chain(model.live.keys().copied()).chain([to]);
        for id in asked.flat_map(|id| [Some(id), id.next()]).flatten() {
            let met = look_ups.get(id).map(|entry| fields_of(&entry));
            assert_eq!(met.as_ref(), model.live.get(&id));
        }
        let expected: Vec<_> = model.live.iter().filter(|(id, _)| (from..=to).contains(id)).collect();
        let check = |entry: Entry<'_>, (id, fields): (&StreamId, &Fields)| {
            assert_eq!((entry.id(), &fields_of(&entry)), (*id, fields));
        };
        assert_eq!(entries.range(from, to).count(), expected.len());
        entries.range(from, to).zip(expected.iter().copied()).for_each(|(entry, known)| check(entry, known));
        assert_eq!(entries.range_backwards(from, to).count(), expected.len());
        let backwards = entries.range_backwards(from, to).zip(expected.iter().rev().copied());
        backwards.for_each(|(entry, known)| check(entry, known));
        for (node_id, node) in entries.nodes() {
            assert!(
                Packed::check(node.bytes()).is_some()
                    && node::PackedNode::check(node.bytes().to_vec(), node_id).is_some()
            );
        }
        assert!(stream.groups().map(|(name, _)| name.to_vec()).eq(model.groups.keys().map(|n| name(*n))));
        for (n, known) in &model.groups {
            compare_group(stream.group(&name(*n)).expect("the model has it"), known, from, to);
        }
    }
}

fn claimed(consumer: u64, claim: &Claim<'_>, n_before: u64) -> (u64, Millis, u64) {
    let n = match claim.counting {
        Counting::OneMore => n_before + 1,
        Counting::AsBefore => n_before,
        Counting::Exactly(n) => n,
    };
    (consumer, claim.delivered_at, n)
}

fn compare_group(group: &Group, known: &ModelGroup, from: StreamId, to: StreamId) {
    assert_eq!((group.last_delivered_id(), group.n_pending()), (known.last, known.pending.len()));
    let described = |(id, (c, at, n)): (&StreamId, &(u64, Millis, u64))| (*id, name(*c), *at, *n);
    let shown =
        |entry: PendingEntry<'_>| (entry.id, entry.consumer.to_vec(), entry.delivered_at, entry.n_deliveries);
    let within = |(id, _): &(&StreamId, &(u64, Millis, u64))| (from..=to).contains(id);
    assert!(group.pending(from, to).map(shown).eq(known.pending.iter().filter(within).map(described)));
    assert!(group.consumers().map(|one| one.name().to_vec()).eq(known.consumers.iter().map(|c| name(*c))));
    for c in &known.consumers {
        let consumer = group.consumer(&name(*c)).expect("the model has it");
        let own = || known.pending.iter().filter(|(_, (owner, ..))| owner == c);
        assert_eq!(consumer.n_pending(), own().count());
        assert!(group.pending_of(consumer, from, to).map(shown).eq(own().filter(within).map(described)));
    }
}

#[test]
fn streams_do_what_maps_do() {
    for (seed, node_max_bytes, node_max_entries) in
        [(1, 4096, 100), (2, 0, 1), (3, 0, 3), (4, 100, 0), (5, 1, 7), (6, 0, 0)]
    {
        let world = World::new(node_max_bytes, node_max_entries);
        let mut run = Run { random: Random(seed), world, model: Model::default(), now: 1_700_000_000_000 };
        run.world.begin(run.now);
        drop(run.world.stream());
        for _ in 0..4000 {
            run.step();
            run.compare();
        }
        assert!(run.model.n_added > 1000);
    }
}

#[test]
fn copies_share_nothing() {
    let mut world = World::new(4096, 100);
    world.add(id(1, 1), &["f", "v"]);
    world.stream().create_group(b"g", StreamId::MIN, None);
    let mut copy = world.read().duplicate();
    copy.groups.with(b"g", |group| group.set_position(id(9, 9), None));
    assert!(copy.entries.delete(id(1, 1)));
    assert_eq!(world.read().entries().len(), 1);
    assert_eq!(world.read().group(b"g").expect("it is there").last_delivered_id(), StreamId::MIN);
}

#[test]
fn claiming_all_that_is_pending_reads_each_entry_once() {
    const N: usize = 2000;
    let mut world = World::new(4096, 100);
    world.begin(1);
    for seq in 1..=N {
        world.add(id(1, seq as u64), &["f", "v"]);
    }
    world.stream().create_group(b"g", StreamId::MIN, None);
    let acknowledgement = Acknowledgement::Expected;
    let delivery = Delivery { group: b"g", consumer: b"a", n_max: None, acknowledgement };
    assert_eq!(world.stream().deliver(&delivery, |_| ()), N);
    // Every other one is there no longer.
    let odd: Vec<StreamId> = (1..=N).step_by(2).map(|seq| id(1, seq as u64)).collect();
    assert_eq!(world.stream().delete(&odd, References::Keep, |_| ()), N / 2);
    let claim = Claim {
        group: b"g",
        consumer: b"b",
        idle_min: 0,
        delivered_at: Millis(2),
        counting: Counting::OneMore,
    };
    let ids: Vec<StreamId> = (1..=N).map(|seq| id(1, seq as u64)).collect();
    let n_before = node::N_READ.get();
    let mut n_claimed = 0;
    world.stream().claim(&claim, &ids[..N / 2], Claimable::Pending, |_| n_claimed += 1);
    let done = world.stream().auto_claim(&claim, StreamId::MIN, N, |_| n_claimed += 1);
    // The first half is claimed twice.
    assert_eq!((n_claimed, done.deleted.len(), done.next), (N / 4 + N / 2, N / 4, None));
    let n_read = node::N_READ.get() - n_before;
    assert!(n_read <= N / 2 + N + 100, "{n_read} entries read to claim {N}");
    let n_before = node::N_READ.get();
    let n = world.stream().redeliver(&Delivery { consumer: b"b", ..delivery }, StreamId::MIN, |_, _| ());
    assert_eq!(n, N / 2);
    let n_read = node::N_READ.get() - n_before;
    assert!(n_read <= N + 100, "{n_read} entries read to deliver {n} again");
}

/// Entries that have been pending for longest can be claimed first, and those that were handed back before
/// all others.
#[test]
fn entries_are_claimed_by_their_idle_time() {
    let mut world = World::new(4096, 100);
    world.begin(1000);
    for ms in 1..=5 {
        world.add(id(ms, 0), &["f", "v"]);
    }
    world.stream().create_group(b"g", StreamId::MIN, None);
    let deliver = |world: &mut World, now, n| {
        world.begin(now);
        let acknowledgement = Acknowledgement::Expected;
        let delivery = Delivery { group: b"g", consumer: b"c", n_max: Some(n), acknowledgement };
        assert_eq!(world.stream().deliver(&delivery, |_| {}), n);
    };
    deliver(&mut world, 1000, 2);
    deliver(&mut world, 1500, 3);
    let idle = |world: &mut World, idle_min, n_max| {
        let idle = world.read().idle(b"g", Millis(2000), idle_min, n_max);
        let ids: Vec<u64> = idle.found.iter().map(|entry| entry.id.ms).collect();
        (ids, idle.next_in)
    };
    assert_eq!(idle(&mut world, 0, 9), (vec![1, 2, 3, 4, 5], None));
    assert_eq!(idle(&mut world, 500, 3), (vec![1, 2, 3], None));
    assert_eq!(idle(&mut world, 501, 9), (vec![1, 2], Some(1)));
    assert_eq!(idle(&mut world, 1200, 9), (vec![], Some(200)));
    let hand_back = HandBack {
        group: b"g",
        mode: HandBackMode::Silent,
        n_deliveries: None,
        claimable: Claimable::Pending,
    };
    assert_eq!(world.stream().hand_back(&hand_back, &[id(4, 0), id(9, 0), id(4, 0)]), 2);
    assert_eq!(idle(&mut world, 1000, 9), (vec![4, 1, 2], Some(500)));
    // One that is gone stays pending, and cannot be claimed.
    world.stream().delete(&[id(4, 0)], References::Keep, |_| {});
    assert_eq!(idle(&mut world, 1000, 9), (vec![1, 2], Some(500)));
    let group = world.read().group(b"g").expect("it was made");
    assert!(group.handed_back().eq([id(4, 0)]) && !world.read().has_handed_back(b"g"));
    let n_deliveries = |world: &mut World, id| {
        let group = world.read().group(b"g").expect("it was made");
        group.pending(id, id).map(|pending| (pending.n_deliveries, pending.is_handed_back)).next()
    };
    assert_eq!(n_deliveries(&mut world, id(4, 0)), Some((0, true)));
    assert_eq!(world.stream().delete_consumer(b"g", b"c"), Some(4));
    assert_eq!(world.stream().acknowledge(b"g", &[id(4, 0)]), Some(1));
    assert_eq!(n_deliveries(&mut world, id(4, 0)), None);
    assert_eq!(world.read().group(b"g").map(|group| group.handed_back().len()), Some(0));
}
