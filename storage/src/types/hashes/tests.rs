use std::collections::BTreeMap;

use super::*;
use crate::{
    entry::{db::Db, key::Key},
    keyspace::{
        Keyspace,
        shard::{Shard, expiry::ExpiryCursor},
    },
    observers::event::Event,
    table::hash::{HashTags, KeyHasher, Router},
};

/// A short random sequence from a seed.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

/// What a hash should be: fields with values and deadlines.
type Model = BTreeMap<Vec<u8>, (Vec<u8>, Option<u64>)>;

struct Fixture {
    keyspace: Keyspace,
    shards: Vec<Shard>,
    now: u64,
}

impl Fixture {
    fn new() -> Self {
        let router = Router::new(KeyHasher::with_key(5, 6), 0, HashTags::Honoured);
        let (keyspace, shards) = Keyspace::new(router, 2);
        Self { keyspace, shards, now: 1000 }
    }

    fn set_thresholds(&self, entries: usize, value: usize) {
        self.keyspace.thresholds().hash_max_listpack_entries.set(entries);
        self.keyspace.thresholds().hash_max_listpack_value.set(value);
    }

    fn shard(&mut self, db: u32) -> &mut Shard {
        let shard = &mut self.shards[0];
        shard.start();
        shard.begin(Db(db), Millis(self.now));
        shard
    }

    fn key<'k>(&self, bytes: &'k [u8]) -> Key<'k> {
        Key { bytes, routed: self.keyspace.router().route(bytes) }
    }

    /// Calls `with` with the hash under a key, which is made if it is missing.
    fn with_hash<R>(&mut self, db: u32, key: &[u8], with: impl FnOnce(&mut HashMut<'_>) -> R) -> R {
        let key = self.key(key);
        with(&mut self.shard(db).value_or_create::<HashType>(&key, Event::Made).expect("no other types here"))
    }

    fn encoding(&mut self, key: &[u8]) -> Option<&'static str> {
        let key = self.key(key);
        self.shard(0).peek(&key).map(encoding_name)
    }
}

fn texts(field: Field<'_>) -> (Vec<u8>, (Vec<u8>, Option<u64>)) {
    (field.name.to_vec(), (field.value.to_vec(), field.deadline.map(|deadline| deadline.0.0)))
}

/// Compares all that can be read of a hash with its model.
fn compare(hash: Option<HashRef<'_>>, model: &Model, random: &mut Random) {
    let Some(hash) = hash else { return assert!(model.is_empty()) };
    assert!(!model.is_empty(), "an empty hash is no key");
    assert_eq!(hash.len(), model.len());
    assert_eq!(hash.iter().map(texts).collect::<Model>(), *model);
    assert_eq!(hash.iter().count(), model.len(), "each field is there once");
    for (name, expected) in model {
        assert_eq!(hash.field(name).map(|field| texts(field).1).as_ref(), Some(expected));
    }
    assert_eq!(hash.get(b"never set"), None);
    let mut scanned = Model::new();
    let mut from = Some(Position::START);
    while let Some(at) = from {
        from = hash.scan(at, 1, &mut |field| {
            assert!(scanned.insert(texts(field).0, texts(field).1).is_none(), "scanned twice");
        });
    }
    assert_eq!(scanned, *model);
    let drawn = hash.random_field(random.next()).expect("there are fields");
    assert!(model.contains_key(&drawn.name.to_vec()));
    let drawn = hash.random_fields().draw(random.next()).expect("there are fields");
    assert!(model.contains_key(&drawn.name.to_vec()));
    let n = random.below(model.len() as u64 + 3) as usize;
    let mut chosen = Vec::new();
    hash.choose(n, &mut || random.next(), &mut |field| chosen.push(texts(field)));
    assert_eq!(chosen.len(), n.min(model.len()));
    assert!(chosen.iter().all(|(name, rest)| model.get(name) == Some(rest)));
    assert_eq!(chosen.into_iter().collect::<Model>().len(), n.min(model.len()), "all are different");
    if let Contents::Table(fields) = hash.contents() {
        fields.check_invariants();
    }
    if let Contents::Packed(fields) = hash.contents() {
        let order = |field: Field<'_>| field.deadline.map_or(u64::MAX, |deadline| deadline.0.0);
        assert!(fields.iter().map(order).is_sorted(), "triples are ordered by deadline");
    }
}

fn alive(model: &mut Model, now: u64) {
    model.retain(|_, (_, deadline)| deadline.is_none_or(|deadline| now <= deadline));
}

fn step(fixture: &mut Fixture, random: &mut Random, db: u32, key: &[u8], model: &mut Model) {
    let name = match random.below(3) {
        0 => random.below(12).to_string().into_bytes(),
        _ => format!("name {}", random.below(30)).into_bytes(),
    };
    let value = match random.below(4) {
        0 => random.next().to_string().into_bytes(),
        1 => vec![b'v'; random.below(40) as usize],
        _ => random.below(1000).to_string().into_bytes(),
    };
    let now = fixture.now;
    let deadline = now + 1 + random.below(200);
    let old_deadline = model.get(&name).and_then(|(_, deadline)| *deadline);
    let is_there = model.contains_key(&name);
    match random.below(10) {
        0..4 => {
            let (expiry, after) = match random.below(3) {
                0 => (Expiry::Keep, old_deadline),
                1 => (Expiry::Clear, None),
                _ => (Expiry::At(Deadline::at(deadline)), Some(deadline)),
            };
            let inserted = fixture.with_hash(db, key, |hash| hash.set(&name, &value, expiry));
            assert_eq!(inserted == Inserted::New, !is_there);
            model.insert(name, (value, after));
        }
        4..7 => {
            assert_eq!(fixture.with_hash(db, key, |hash| hash.remove(&name)), is_there);
            model.remove(&name);
        }
        7 => {
            let after = (!random.one_in(3)).then_some(deadline);
            if is_there {
                fixture.with_hash(db, key, |hash| hash.set_field_deadline(&name, after.map(Deadline::at)));
                model.get_mut(&name).expect("it is there").1 = after;
            }
        }
        8 => {
            let n_max = random.below(5) as usize;
            assert!(fixture.with_hash(db, key, |hash| hash.expire(n_max)) <= n_max);
        }
        _ => fixture.with_hash(db, key, |hash| hash.prepare(random.below(9) as usize)),
    }
}

/// Two hashes in each of two databases through random operations, with all that moves whole keys besides.
fn run_against_model(seed: u64, n_steps: usize) {
    let random = &mut Random(seed);
    let mut fixture = Fixture::new();
    let keys: [&[u8]; 2] = [b"one", b"two"];
    let mut models: [[Model; 2]; 2] = Default::default();
    for _ in 0..n_steps {
        fixture.now += random.below(4);
        if random.one_in(20) {
            fixture.set_thresholds(random.below(16) as usize, random.below(30) as usize);
        }
        models.iter_mut().flatten().for_each(|model| alive(model, fixture.now));
        let (db, at) = (random.below(2) as usize, random.below(2) as usize);
        let key = fixture.key(keys[at]);
        match random.below(120) {
            0 => {
                fixture.shard(db as u32).flush();
                models[db] = Default::default();
            }
            1 => {
                fixture.shard(0).swap(Db(0), Db(1));
                models.swap(0, 1);
            }
            2 => {
                assert_eq!(fixture.shard(db as u32).remove(&key, Event::Del), !models[db][at].is_empty());
                models[db][at].clear();
            }
            3 => {
                let other = fixture.key(keys[1 - at]);
                let copy = fixture.shard(db as u32).copy(&key, other.bytes);
                assert_eq!(copy.is_some(), !models[db][at].is_empty());
                if let Some(copy) = copy {
                    fixture.shard(db as u32).put(&other, copy, Event::Made);
                    models[db][1 - at] = models[db][at].clone();
                }
            }
            4 => {
                fixture.shard(db as u32).put_string(&key, b"no hash", Expiry::Keep, Event::Set);
                fixture.shards[0].check_fields();
                fixture.shard(db as u32).remove(&key, Event::Del);
                models[db][at].clear();
            }
            5..15 => {
                let (now, n_max) = (Millis(fixture.now), random.below(8) as usize);
                assert!(fixture.shards[0].expire_fields(now, n_max) <= n_max);
            }
            15 => {
                let deadline = Deadline::at(fixture.now);
                fixture.shard(db as u32).set_deadline(&key, Some(deadline), Event::Expire);
                fixture.now += 1;
                let mut cursor = ExpiryCursor::default();
                while fixture.shards[0].expire_some(&mut cursor, Millis(fixture.now), 1).more {}
                models.iter_mut().flatten().for_each(|model| alive(model, fixture.now));
                models[db][at].clear();
            }
            16..20 => fixture.shard(db as u32).expire_fields_of(&key),
            _ => step(&mut fixture, random, db as u32, keys[at], &mut models[db][at]),
        }
        let hash = fixture.shard(db as u32).value::<HashType>(&key).expect("all are hashes");
        compare(hash, &models[db][at], random);
        fixture.shards[0].check_fields();
    }
    fixture.now += 1000;
    let now = Millis(fixture.now);
    while fixture.shards[0].expire_fields(now, 3) > 0 {
        fixture.shards[0].check_fields();
    }
    assert!(!fixture.keyspace.has_due_fields_in(crate::table::hash::ShardId(0), now));
    // A leak checker does not see what waits to be freed behind the packed pointers of flushed tables.
    while crate::memory::reclaim::reclaim() {}
}

#[test]
fn agrees_with_a_map_in_all_forms() {
    for seed in 0..30 {
        run_against_model(seed, 1500);
    }
}

#[test]
fn forms_change_at_the_thresholds_of_redis() {
    let mut fixture = Fixture::new();
    fixture.set_thresholds(3, 5);
    for name in [&b"a"[..], b"b", b"c"] {
        fixture.with_hash(0, b"h", |hash| hash.set(name, b"12345", Expiry::Clear));
    }
    assert_eq!(fixture.encoding(b"h"), Some("listpack"));
    fixture.with_hash(0, b"h", |hash| hash.admit_deadlines());
    assert_eq!(fixture.encoding(b"h"), Some("listpackex"));
    fixture.with_hash(0, b"h", |hash| hash.set(b"c", b"", Expiry::Clear));
    assert_eq!(fixture.encoding(b"h"), Some("listpackex"));
    fixture.with_hash(0, b"h", |hash| hash.set(b"d", b"", Expiry::Clear));
    assert_eq!(fixture.encoding(b"h"), Some("hashtable"));
    for long in [(&b"123456"[..], &b""[..]), (b"", b"123456")] {
        fixture.with_hash(0, b"long", |hash| hash.set(b"a", b"b", Expiry::Clear));
        assert_eq!(fixture.encoding(b"long"), Some("listpack"));
        fixture.with_hash(0, b"long", |hash| hash.set(long.0, long.1, Expiry::Clear));
        assert_eq!(fixture.encoding(b"long"), Some("hashtable"));
        let key = fixture.key(b"long");
        fixture.shard(0).remove(&key, Event::Del);
    }
    fixture.with_hash(0, b"many", |hash| {
        hash.prepare(4);
        hash.set(b"a", b"", Expiry::Clear);
    });
    assert_eq!(fixture.encoding(b"many"), Some("hashtable"));
}

#[test]
fn packed_forms_are_those_of_redis() {
    let bytes = |fixture: &mut Fixture| {
        let key = fixture.key(b"h");
        fixture.shard(0).peek(&key).expect("it is there").bytes().expect("it is packed").to_vec()
    };
    let mut fixture = Fixture::new();
    for (name, value) in [(b"a", b"1"), (b"b", b"x"), (b"c", b"y")] {
        fixture.with_hash(0, b"h", |hash| hash.set(name, value, Expiry::Clear));
    }
    let listpack = [24, 0, 0, 0, 6, 0, 0x81, b'a', 2, 1, 1, 0x81, b'b', 2, 0x81, b'x', 2];
    assert_eq!(bytes(&mut fixture), [&listpack[..], &[0x81, b'c', 2, 0x81, b'y', 2, 255]].concat());
    fixture.with_hash(0, b"h", |hash| {
        hash.set_field_deadline(b"c", Some(Deadline::at(4000)));
        hash.set_field_deadline(b"a", Some(Deadline::at(4000)));
        hash.set_field_deadline(b"b", Some(Deadline::at(3000)));
    });
    // b at 3000, c and a at 4000 (13 bits: 0xc0 | high, low).
    let triples = [
        [0x81, b'b', 2, 0x81, b'x', 2, 0xcb, 0xb8, 2].as_slice(),
        &[0x81, b'c', 2, 0x81, b'y', 2, 0xcf, 0xa0, 2],
        &[0x81, b'a', 2, 1, 1, 0xcf, 0xa0, 2],
    ];
    let head = [33, 0, 0, 0, 9, 0];
    assert_eq!(bytes(&mut fixture), [&head[..], triples[0], triples[1], triples[2], &[255]].concat());
    fixture.with_hash(0, b"h", |hash| hash.set(b"b", b"x", Expiry::Clear));
    let last = [0x81, b'b', 2, 0x81, b'x', 2, 0, 1];
    assert_eq!(
        bytes(&mut fixture),
        [&[32, 0, 0, 0, 9, 0][..], triples[1], triples[2], &last, &[255]].concat()
    );
}

#[test]
fn many_expired_fields_go_bit_by_bit() {
    let mut fixture = Fixture::new();
    fixture.with_hash(0, b"h", |hash| {
        for i in 0..20_000u64 {
            let expiry = Expiry::At(Deadline::at(1500 + i % 7));
            hash.set(i.to_string().as_bytes(), b"v", expiry);
        }
        hash.set(b"stays", b"v", Expiry::Clear);
    });
    fixture.now = 2000;
    let now = Millis(fixture.now);
    let key = fixture.key(b"h");
    let len = |fixture: &mut Fixture| {
        fixture.shard(0).value::<HashType>(&key).expect("it is a hash").expect("it is there").len()
    };
    assert_eq!(len(&mut fixture), 1);
    for _ in 0..200 {
        assert_eq!(fixture.shards[0].expire_fields(now, 100), 100);
        assert_eq!(len(&mut fixture), 1);
    }
    assert_eq!(fixture.shards[0].expire_fields(now, 100), 0);
    assert_eq!(fixture.keyspace.expired_fields(), 20_000);
    fixture.shards[0].check_fields();
}

#[test]
fn a_hash_that_is_over_goes_at_a_stroke_and_is_no_key_before() {
    for entries in [0, 100] {
        let mut fixture = Fixture::new();
        fixture.set_thresholds(entries, 100);
        fixture.with_hash(0, b"h", |hash| {
            hash.set(b"last", b"v", Expiry::At(Deadline::at(5000)));
            for i in 0..50u64 {
                hash.set(i.to_string().as_bytes(), b"v", Expiry::At(Deadline::at(2000 + i)));
            }
        });
        let key = fixture.key(b"h");
        fixture.now = 5000;
        assert!(fixture.shard(0).peek(&key).is_some(), "the last field lives for another millisecond");
        let duplicate = fixture.shard(0).copy(&key, b"h").expect("it is there");
        fixture.now = 5001;
        assert!(fixture.shard(0).peek(&key).is_none());
        fixture.shard(0).put(&key, duplicate, Event::Made);
        fixture.shards[0].check_fields();
        assert_eq!(fixture.shards[0].expire_fields(Millis(5001), 10), 1);
        assert_eq!(fixture.shard(0).n_keys(), 0);
    }
}

#[test]
fn who_watches_a_hash_hears_of_fields_that_expire_meanwhile_only() {
    let mut fixture = Fixture::new();
    let key = fixture.key(b"h");
    fixture.with_hash(0, b"h", |hash| {
        hash.set(b"a", b"v", Expiry::At(Deadline::at(1100)));
        hash.set(b"b", b"v", Expiry::At(Deadline::at(1200)));
        hash.set(b"c", b"v", Expiry::Clear);
    });
    let watched = crate::entry::key::WatchedKey { db: Db(0), bytes: key.bytes.into(), routed: key.routed };
    fixture.now = 1150;
    let stamp = fixture.shard(0).watch(&key, &std::sync::Arc::default());
    assert!(!fixture.shard(0).is_written_since(&watched, stamp), "the first was gone by then");
    fixture.now = 1250;
    assert!(fixture.shard(0).is_written_since(&watched, stamp));
}
