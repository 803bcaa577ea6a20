//! A shard that is changed at random while it is saved gives its contents at the cut, each key once.

use std::cell::Cell;
use std::collections::HashMap;

use super::*;
use crate::{
    entry::{
        key::Key,
        time::{Deadline, Expiry},
    },
    keyspace::{
        Keyspace,
        shard::{
            Shard,
            expiry::ExpiryCursor,
            saving::{Form, Uses},
        },
    },
    memory::reclaim,
    observers::event::Event,
    rdb::{Making, Reader},
    table::hash::{HashTags, KeyHasher},
    types::{
        digest::Digest,
        kinds::{self, digest_of},
        list::{ListEnd, ListType},
        set::SetType,
    },
};

const N_DBS: u32 = 12;
const N_KEYS: u64 = 150;
/// Sets of more members are large.
const N_LARGE: u64 = 1024;
const START: u64 = 1_700_000_000_000;

/// Small numbers in an order that is the same each time.
struct Choices(u64);

impl Choices {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }
}

/// The contents of a key: its fingerprint, and its deadline.
type Held = (Digest, Option<Deadline>);
type Contents = HashMap<(u32, Vec<u8>), Held>;

struct World {
    keyspace: Keyspace,
    shard: Shard,
    choices: Choices,
    now: u64,
    /// The parts that were given so far.
    parts: Parts,
}

fn held(entry: EntryRef<'_>) -> Held {
    (digest_of(entry, Millis(START)), entry.deadline())
}

impl World {
    fn new(seed: u64) -> Self {
        let router = Router::new(KeyHasher::with_key(seed, 7), 0, HashTags::Ignored);
        let (keyspace, mut shards) = Keyspace::new(router, N_DBS as usize);
        let shard = shards.remove(0);
        World { keyspace, shard, choices: Choices(seed), now: START, parts: Parts::default() }
    }

    fn contents(&mut self) -> Contents {
        let mut contents = Contents::new();
        for db in 0..N_DBS {
            self.shard.begin(Db(db), Millis(self.now));
            let visit = &mut |entry: EntryRef<'_>| {
                assert!(!entry.in_snapshot(), "no entry is marked when no snapshot runs");
                contents.insert((db, entry.key().to_vec()), held(entry));
            };
            let end = self.shard.scan(Position::START, usize::MAX, visit);
            assert_eq!(end, None);
        }
        contents
    }

    /// One change, of whatever sort.
    fn change(&mut self) {
        self.now += self.choices.below(3);
        // Some databases have many keys, others few or none.
        let db = Db(self.choices.below(N_DBS.into()).min(self.choices.below(N_DBS.into())) as u32);
        self.shard.start();
        self.shard.begin(db, Millis(self.now));
        let name = |n: u64| format!("key:{n}").into_bytes();
        let (bytes, other) = (name(self.choices.below(N_KEYS)), name(self.choices.below(N_KEYS)));
        let router = *self.keyspace.router();
        let key = Key { bytes: &bytes, routed: router.route(&bytes) };
        let other = Key { bytes: &other, routed: router.route(&other) };
        // A command that would write a pinned key waits.
        if self.shard.pinned_in(&bytes).is_some() || self.shard.pinned_in(other.bytes).is_some() {
            return;
        }
        let long = vec![b'x'; self.choices.below(90_000) as usize];
        let deadline = Deadline::at(self.now + self.choices.below(4000));
        let shard = &mut self.shard;
        match self.choices.below(25) {
            0..3 => shard.put_string(&key, b"short", Expiry::Clear, Event::Set),
            3 => shard.put_string(&key, &long, Expiry::Keep, Event::Set),
            4 => shard.put_string(&key, b"for a while", Expiry::At(deadline), Event::Set),
            5 | 6 => {
                let _: bool = shard.set_deadline(&key, Some(deadline), Event::Expire);
            }
            7 => {
                let _: bool = shard.set_deadline(&key, None, Event::Persist);
            }
            8 | 9 => {
                if let Ok(mut string) = shard.string_or_create(&key, Event::Append) {
                    string.append(&long[..long.len() / 100]);
                }
            }
            10..13 => {
                if let Ok(mut list) = shard.value_or_create::<ListType>(&key, Event::RPush) {
                    list.push(ListEnd::Right, [&b"a"[..], b"bc"].into_iter());
                }
            }
            13 => {
                if let Ok(Some(mut list)) = shard.value_mut::<ListType>(&key, Event::LPop) {
                    list.pop(ListEnd::Left, 3, |_| {});
                }
            }
            14 | 15 => {
                let n = if self.choices.below(4) == 0 { N_LARGE + 500 } else { 5 };
                if let Ok(mut set) = shard.value_or_create::<SetType>(&key, Event::SAdd) {
                    for member in 0..n {
                        set.insert(member.to_string().as_bytes());
                    }
                    let len = set.as_ref().len();
                    if len as u64 > N_LARGE {
                        // The rest is a small set: another entry.
                        let choices = &mut self.choices;
                        set.pop_many(len - 2, &mut || choices.below(u64::MAX), &mut |_| {});
                    }
                }
            }
            16..19 => {
                let _: bool = shard.remove(&key, Event::Del);
            }
            19 | 20 if key.bytes != other.bytes => {
                if let Some(entry) = shard.take(&key, Event::RenameFrom) {
                    shard.put(&other, entry.with_key(other.bytes), Event::RenameTo);
                }
            }
            21 => {
                let mut cursor = ExpiryCursor::default();
                while shard.expire_some(&mut cursor, Millis(self.now), 4).more {}
            }
            22 if self.choices.below(20) == 0 => shard.flush(),
            23 if self.choices.below(6) == 0 => {
                let [one, other] = [0, 0].map(|_| Db(self.choices.below(N_DBS.into()) as u32));
                shard.swap(one, other);
            }
            24 if self.choices.below(60) == 0 => shard.flush_all(),
            _ => {
                let copied = shard.copy(&key, other.bytes);
                if let Some(entry) = copied {
                    shard.put(&other, entry, Event::CopyTo);
                }
            }
        }
    }

    fn begin(&mut self) {
        self.shard.begin_snapshot(Uses::left_out(), Form::Snapshot, Arc::clone(self.keyspace.early()));
    }

    /// Makes one step of the walk; returns whether it was the last. Sometimes full chunks are taken before
    /// it.
    fn step(&mut self) -> bool {
        if self.choices.below(3) == 0 {
            self.parts.encoded.extend(std::iter::from_fn(|| self.keyspace.early().take()));
        }
        self.shard.start();
        self.shard.begin(Db(0), Millis(self.now));
        let mut n_looks = self.choices.below(3);
        let step = self.shard.save_some(&mut self.parts, |_| {
            n_looks = n_looks.saturating_sub(1);
            n_looks > 0
        });
        step == SaveStep::Done
    }

    /// Unpins the pinned keys, having read them.
    fn unpin(&mut self, given: &mut Given) {
        for PinnedPart { db, pinned_in, entry } in std::mem::take(&mut self.parts.pinned) {
            given.add(db, entry.as_ref());
            self.shard.begin(pinned_in, Millis(self.now));
            let key = entry.as_ref().key().to_vec();
            drop(entry);
            self.shard.unpin(&key);
        }
    }

    /// Reads encoded entries back.
    fn decode(&self, encoded: &Encoded, given: &mut Given) {
        let mut reader = Reader::new(&encoded.bytes);
        let mut n_keys = 0;
        while !reader.is_at_end() {
            let (mut deadline, mut first) = (None, reader.byte().unwrap());
            loop {
                match first {
                    252 => deadline = Some(Deadline(reader.time().unwrap())),
                    248 => drop(reader.len().unwrap()),
                    249 => drop(reader.byte().unwrap()),
                    _ => break,
                }
                first = reader.byte().unwrap();
            }
            let key = reader.string().unwrap().into_owned();
            let making = Making {
                key: &key,
                hasher: self.keyspace.router().hasher(),
                thresholds: self.keyspace.thresholds(),
                now: Millis(START),
                deadline,
                onto: Cell::default(),
                is_part: false,
            };
            let made = kinds::restore(first, &mut reader, &making).expect("it is whole");
            let mut entry = made.into_entry().expect("a value");
            entry.set_deadline(deadline);
            given.add(encoded.db, entry.as_ref());
            n_keys += 1;
        }
        assert_eq!(n_keys, encoded.n_keys);
    }
}

impl Drop for World {
    /// Frees the garbage that is freed in steps. AddressSanitizer does not find it in tables, whose pointers
    /// carry more than an address.
    fn drop(&mut self) {
        self.parts = Parts::default();
        while reclaim::reclaim() {}
        while reclaim::reclaim_large() {}
    }
}

/// The parts that a snapshot was given.
#[derive(Default)]
struct Given(Contents);

impl Given {
    fn add(&mut self, db: Db, entry: EntryRef<'_>) {
        let before = self.0.insert((db.0, entry.key().to_vec()), held(entry));
        assert!(before.is_none(), "{:?} is given twice", String::from_utf8_lossy(entry.key()));
    }
}

#[test]
fn a_snapshot_is_what_was_there_at_the_cut() {
    for seed in 0..60 {
        let mut world = World::new(seed);
        for round in 0..3 {
            for _ in 0..world.choices.below(1500) {
                world.change();
            }
            let expected = world.contents();
            world.begin();
            let mut given = Given::default();
            while !world.step() {
                for _ in 0..world.choices.below(60) {
                    world.change();
                }
                if world.choices.below(2) == 0 {
                    world.unpin(&mut given);
                }
            }
            world.unpin(&mut given);
            let mut parts = std::mem::take(&mut world.parts);
            parts.encoded.extend(std::iter::from_fn(|| world.keyspace.early().take()));
            assert_eq!(world.keyspace.early().n_bytes(), 0, "what is taken does not count");
            for encoded in &parts.encoded {
                world.decode(encoded, &mut given);
            }
            parts.removed.iter().for_each(|(db, entry)| given.add(*db, entry.as_ref()));
            for flushed in parts.flushed {
                let db = flushed.db();
                flushed.for_each(|entry| given.add(db, entry.as_ref()));
            }
            for (key, held) in &given.0 {
                assert_eq!(Some(held), expected.get(key), "seed {seed}, round {round}: {key:?}");
            }
            let is_over =
                |deadline: &Option<Deadline>| deadline.is_some_and(|at| at.has_passed(Millis(world.now)));
            for (key, (_, deadline)) in &expected {
                assert!(
                    given.0.contains_key(key) || is_over(deadline),
                    "seed {seed}, round {round}: {key:?} is missing"
                );
            }
            world.contents();
        }
    }
}

/// A snapshot that is given up leaves nothing that would keep a key from the next.
#[test]
fn after_a_snapshot_that_was_given_up_the_next_is_whole() {
    for seed in 100..120 {
        let mut world = World::new(seed);
        (0..1000).for_each(|_| world.change());
        world.begin();
        let mut given = Given::default();
        for _ in 0..world.choices.below(10) {
            let _: bool = world.step();
            (0..30).for_each(|_| world.change());
        }
        world.unpin(&mut given);
        world.shard.give_up_snapshot();
        world.parts = Parts::default();
        world.keyspace.early().clear();
        while !world.step() {
            (0..30).for_each(|_| world.change());
        }
        assert_eq!(world.parts.n_bytes(), 0, "what nobody wants is not encoded");
        assert!(
            world.parts.pinned.is_empty() && world.parts.removed.is_empty() && world.parts.flushed.is_empty()
        );
        world.contents();
    }
}

/// A step that panics leaves the shard as it is between two steps.
#[test]
fn after_a_step_that_panicked_the_next_snapshot_is_whole() {
    for seed in 200..220 {
        let mut world = World::new(seed);
        (0..1000).for_each(|_| world.change());
        world.begin();
        (0..30).for_each(|_| world.change());
        let World { shard, parts, .. } = &mut world;
        let step = std::panic::AssertUnwindSafe(|| shard.save_some(parts, |_| panic!("as a fault would")));
        std::panic::catch_unwind(step).expect_err("it panics");
        world.unpin(&mut Given::default());
        world.shard.give_up_snapshot();
        while !world.step() {
            (0..30).for_each(|_| world.change());
        }
        world.contents();
    }
}

/// The thread that passes on a chunk at the limit calls the callback.
#[test]
fn the_limit_of_what_was_saved_early_is_told() {
    let early = Early::default();
    let n_told = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let counted = Arc::clone(&n_told);
    early.limit(10_000, move || _ = counted.fetch_add(1, std::sync::atomic::Ordering::Relaxed));
    let chunk = || Encoded { bytes: Vec::with_capacity(4096), ..Encoded::default() };
    let hand_on = || {
        let mut chunk = chunk();
        chunk.bytes.push(b'x');
        let empty = early.exchange(chunk);
        assert!(empty.bytes.is_empty() && empty.bytes.capacity() > 0);
        n_told.load(std::sync::atomic::Ordering::Relaxed)
    };
    assert_eq!([hand_on(), hand_on(), hand_on(), hand_on()], [0, 0, 1, 2]);
    let _: Encoded = early.exchange(chunk());
    assert_eq!(early.n_bytes(), 4 * 4096, "an empty one is none");
    for _ in 0..2 {
        assert!(early.give_back(early.take().expect("there are four").bytes).is_none());
    }
    assert_eq!(hand_on(), 3);
    assert!(early.give_back(vec![0; 100]).is_some(), "that is no chunk's memory");
    early.clear();
    assert_eq!((early.n_bytes(), early.take().is_none()), (0, true));
}
