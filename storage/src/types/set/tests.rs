use std::collections::{BTreeMap, BTreeSet};

use super::*;
use crate::{
    entry::{
        db::Db,
        key::Key,
        time::{Deadline, Expiry, Millis},
    },
    keyspace::{Keyspace, shard::Shard},
    observers::event::Event,
    table::hash::{HashTags, KeyHasher, Router},
};

type Model = BTreeSet<Vec<u8>>;

/// A short random sequence.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, n: usize) -> usize {
        ((u128::from(self.next()) * n as u128) >> 64) as usize
    }

    /// Integers of all widths, texts that look like some, and others, a few of them long.
    fn member(&mut self, n: usize) -> Vec<u8> {
        let i = self.below(n) as i64;
        match self.below(8) {
            0..=3 => i.to_string().into_bytes(),
            4 => (i * -1_000_003).to_string().into_bytes(),
            5 => format!("0{i}").into_bytes(),
            6 => vec![b'x'; i as usize],
            _ => format!("member:{i}").into_bytes(),
        }
    }
}

/// One shard, and the settings.
struct Fixture {
    keyspace: Keyspace,
    shard: Shard,
}

impl Fixture {
    fn new() -> Self {
        let router = Router::new(KeyHasher::with_key(5, 6), 0, HashTags::Honoured);
        let (keyspace, mut shards) = Keyspace::new(router, 1);
        let mut shard = shards.pop().expect("there is one");
        shard.begin(Db(0), Millis(1));
        Fixture { keyspace, shard }
    }

    fn with_limits(intset: usize, listpack: usize, value: usize) -> Self {
        let fixture = Self::new();
        let thresholds = fixture.keyspace.thresholds();
        thresholds.set_max_intset_entries.set(intset);
        thresholds.set_max_listpack_entries.set(listpack);
        thresholds.set_max_listpack_value.set(value);
        fixture
    }

    fn key<'k>(&self, key: &'k str) -> Key<'k> {
        Key { bytes: key.as_bytes(), routed: self.keyspace.router().route(key.as_bytes()) }
    }

    /// As SADD does.
    fn add(&mut self, key: &str, members: &[&[u8]]) -> usize {
        let mut set = self.set_or_create(key);
        set.make_ready_for(members[0], members.len());
        members.iter().filter(|member| set.insert(member)).count()
    }

    fn set_or_create(&mut self, key: &str) -> SetMut<'_> {
        let key = self.key(key);
        self.shard.value_or_create(&key, Event::Made).expect("it is a set")
    }

    fn set_mut(&mut self, key: &str) -> Option<SetMut<'_>> {
        let key = self.key(key);
        self.shard.value_mut(&key, Event::Made).expect("it is a set")
    }

    fn get(&mut self, key: &str) -> Option<SetRef<'_>> {
        let key = self.key(key);
        self.shard.value(&key).expect("it is a set")
    }

    fn share(&mut self, key: &str) -> Option<EntryBox> {
        self.get(key).map(|set| set.entry().share())
    }

    fn encoding(&mut self, key: &str) -> &'static str {
        self.get(key).map_or("none", |set| crate::types::kinds::encoding_name(set.entry()))
    }

    fn members(&mut self, key: &str) -> Model {
        let members: Vec<Vec<u8>> = self.get(key).into_iter().flat_map(|set| set.iter()).map(text).collect();
        let set: Model = members.iter().cloned().collect();
        assert_eq!(set.len(), members.len(), "each member is there once");
        set
    }

    fn builder(&self, key: &str) -> SetBuilder<'_> {
        SetBuilder::new(key.as_bytes(), self.keyspace.thresholds(), self.keyspace.router().hasher())
    }

    fn check(&mut self, key: &str, model: &Model) {
        assert_eq!(&self.members(key), model);
        let Some(set) = self.get(key) else { return assert!(model.is_empty()) };
        assert_eq!(set.len(), model.len());
        if let View::Table(table) = View::of(set.entry()) {
            table.check_invariants();
        }
        if let View::Packed(packed) = View::of(set.entry()) {
            assert!(Packed::check(packed.bytes()).is_some());
        }
        if let View::Integers(ints) = View::of(set.entry()) {
            assert!(IntSet::check(ints.bytes()).is_some());
        }
    }
}

fn text(member: Element<'_>) -> Vec<u8> {
    member.to_vec()
}

fn numbers(range: std::ops::Range<i64>) -> Vec<Vec<u8>> {
    range.map(|i| i.to_string().into_bytes()).collect()
}

fn names(range: std::ops::Range<i64>) -> Vec<Vec<u8>> {
    range.map(|i| format!("m{i}").into_bytes()).collect()
}

fn slices(members: &[Vec<u8>]) -> Vec<&[u8]> {
    members.iter().map(Vec::as_slice).collect()
}

/// Thresholds that are crossed every few operations, in either order.
const LIMITS: [(usize, usize, usize); 6] =
    [(4, 8, 6), (8, 4, 40), (0, 10, 64), (10, 0, 64), (0, 0, 64), (512, 128, 64)];

#[test]
fn sets_of_every_encoding_agree_with_a_btree() {
    for (nth, (intset, listpack, value)) in LIMITS.into_iter().enumerate() {
        let mut random = Random(nth as u64);
        let mut fixture = Fixture::with_limits(intset, listpack, value);
        let bytes_before = fixture.keyspace.used_bytes();
        let mut seen = BTreeMap::new();
        for round in 0..60 {
            let n_names = [5, 20, 60, 300][round % 4];
            let mut model = Model::new();
            for _ in 0..150 {
                step(&mut fixture, &mut model, &mut random, n_names);
                *seen.entry(fixture.encoding("s")).or_insert(0) += 1;
            }
            fixture.check("s", &model);
            let key = fixture.key("s");
            fixture.shard.remove(&key, Event::Del);
        }
        assert_eq!(fixture.keyspace.used_bytes(), bytes_before, "all that was accounted has gone");
        assert!(seen.contains_key("hashtable"), "{seen:?}");
        assert!(intset == 0 || seen.contains_key("intset"), "{seen:?}");
        assert!(listpack == 0 || seen.contains_key("listpack"), "{seen:?}");
    }
}

/// One random operation on the set `s` and its model.
fn step(fixture: &mut Fixture, model: &mut Model, random: &mut Random, n_names: usize) {
    let member = random.member(n_names);
    match random.below(20) {
        0..=8 => {
            let added = fixture.add("s", &[&member]);
            assert_eq!(added == 1, model.insert(member));
        }
        9 => {
            let n = 1 + random.below(12);
            let members: Vec<_> = (0..n).map(|_| random.member(n_names)).collect();
            let added = fixture.add("s", &slices(&members));
            assert_eq!(added, members.into_iter().filter(|member| model.insert(member.clone())).count());
        }
        10..=15 => {
            let removed = fixture.set_mut("s").is_some_and(|mut set| set.remove(&member));
            assert_eq!(removed, model.remove(&member));
        }
        16 if !model.is_empty() => {
            let mut set = fixture.set_mut("s").expect("there are members");
            let popped = set.pop(random.next(), text);
            assert!(model.remove(&popped));
        }
        17 if model.len() > 1 => {
            let n = 1 + random.below(model.len() - 1);
            let mut popped = Vec::new();
            let mut set = fixture.set_mut("s").expect("there are members");
            set.pop_many(n, &mut || random.next(), &mut |member| popped.push(text(member)));
            drop(set);
            assert_eq!(popped.len(), n);
            assert!(popped.iter().all(|member| model.remove(member)), "each was there, and is given once");
            fixture.check("s", model);
        }
        18 if !model.is_empty() => {
            let n = random.below(model.len() + 1);
            let mut chosen = Vec::new();
            let set = fixture.get("s").expect("there are members");
            set.choose(n, &mut || random.next(), &mut |member| chosen.push(text(member)));
            assert_eq!(chosen.len(), n);
            assert!(chosen.iter().all(|member| model.contains(member)));
            assert_eq!(chosen.into_iter().collect::<Model>().len(), n);
        }
        _ => {
            let has = |set: SetRef<'_>, member: &[u8]| set.contains(Element::Text(member));
            assert_eq!(fixture.get("s").is_some_and(|set| has(set, &member)), model.contains(&member));
            let sampled = fixture.get("s").and_then(|set| set.sample(random.next())).map(text);
            assert!(sampled.is_none_or(|member| model.contains(&member)));
        }
    }
}

#[test]
fn sets_are_born_and_converted_as_in_redis() {
    let encoding_of = |steps: &[Vec<Vec<u8>>]| {
        let mut fixture = Fixture::new();
        for members in steps {
            fixture.add("s", &slices(members));
        }
        fixture.encoding("s")
    };
    let long = |n| vec![vec![b'x'; n]];
    for (name, steps, encoding) in [
        ("an integer", vec![numbers(1..2)], "intset"),
        ("a text", vec![names(1..2)], "listpack"),
        ("a text of 64 bytes", vec![long(64)], "listpack"),
        ("a text of 65 bytes", vec![long(65)], "hashtable"),
        ("an integer of 65 bits", vec![vec![b"9223372036854775808".to_vec()]], "listpack"),
        ("512 integers at once", vec![numbers(0..512)], "intset"),
        ("513 integers at once", vec![numbers(0..513)], "hashtable"),
        ("512 integers and one", vec![numbers(0..512), numbers(512..513)], "hashtable"),
        ("512 integers and one of them", vec![numbers(0..512), numbers(0..1)], "intset"),
        ("128 texts at once", vec![names(0..128)], "listpack"),
        ("129 texts at once", vec![names(0..129)], "hashtable"),
        ("128 texts and one", vec![names(0..128), names(128..129)], "hashtable"),
        ("128 texts and one of them", vec![names(0..128), names(0..1)], "listpack"),
        ("a text, then integers", vec![[names(0..1), numbers(0..127)].concat()], "listpack"),
        ("an integer, then texts", vec![[numbers(0..1), names(0..127)].concat()], "listpack"),
        ("127 integers and a text", vec![numbers(0..127), names(0..1)], "listpack"),
        ("128 integers and a text", vec![numbers(0..128), names(0..1)], "hashtable"),
        ("integers and a long text", vec![numbers(0..2), long(65)], "hashtable"),
        ("129 texts that are there", vec![names(0..1), vec![b"m0".to_vec(); 129]], "hashtable"),
        ("513 integers that are there", vec![numbers(0..1), vec![b"0".to_vec(); 513]], "hashtable"),
        ("129 integers that are one", vec![vec![b"0".to_vec(); 129]], "intset"),
        ("129 texts that are one", vec![vec![b"m".to_vec(); 129]], "hashtable"),
    ] {
        assert_eq!(encoding_of(&steps), encoding, "{name}");
    }
}

#[test]
fn sets_do_not_convert_back() {
    let mut fixture = Fixture::new();
    fixture.add("s", &slices(&names(0..129)));
    for member in names(1..129) {
        assert!(fixture.set_mut("s").unwrap().remove(&member));
    }
    assert_eq!(fixture.encoding("s"), "hashtable");
    fixture.add("t", &[b"1", b"x"]);
    fixture.set_mut("t").unwrap().remove(b"x");
    assert_eq!((fixture.encoding("t"), fixture.members("t").len()), ("listpack", 1));
}

#[test]
fn long_integers_are_not_packed_past_the_threshold() {
    let mut fixture = Fixture::with_limits(512, 128, 4);
    fixture.add("s", &[b"-1234"]);
    fixture.add("s", &[b"x"]);
    assert_eq!(fixture.encoding("s"), "hashtable", "an integer has too many digits");
    fixture.add("t", &[b"1234"]);
    fixture.add("t", &[b"x"]);
    fixture.add("t", &[b"12345"]);
    assert_eq!(fixture.encoding("t"), "hashtable", "so has a new one");
}

#[test]
fn popping_nearly_all_of_a_large_set_leaves_a_small_one() {
    let mut fixture = Fixture::new();
    fixture.add("s", &slices(&names(0..1000)));
    let deadline = Some(Deadline::at(1000));
    let key = fixture.key("s");
    fixture.shard.set_deadline(&key, deadline, Event::Expire);
    let mut random = Random(1);
    let mut n_popped = 0;
    let mut set = fixture.set_mut("s").unwrap();
    set.pop_many(800, &mut || random.next(), &mut |_| n_popped += 1);
    drop(set);
    assert_eq!((n_popped, fixture.encoding("s")), (800, "hashtable"), "they were popped one by one");
    let mut set = fixture.set_mut("s").unwrap();
    set.pop_many(190, &mut || random.next(), &mut |_| n_popped += 1);
    drop(set);
    assert_eq!((n_popped, fixture.encoding("s")), (990, "listpack"));
    assert_eq!(fixture.members("s").len(), 10);
    assert_eq!(fixture.get("s").unwrap().entry().deadline(), deadline, "the deadline stays");
}

#[test]
fn the_last_member_takes_the_key_with_it() {
    for members in [numbers(0..1), names(0..1), names(0..200)] {
        let mut fixture = Fixture::new();
        fixture.add("s", &slices(&members));
        let mut set = fixture.set_mut("s").unwrap();
        for _ in 0..members.len() {
            set.pop(7, |_| ());
        }
        drop(set);
        assert!(fixture.get("s").is_none());
        assert_eq!(fixture.shard.n_keys(), 0);
    }
}

#[test]
fn only_what_changes_a_set_is_announced() {
    for members in [numbers(0..3), names(0..3), names(0..200)] {
        let mut fixture = Fixture::new();
        fixture.add("s", &slices(&members));
        let key = fixture.key("s");
        let watched =
            crate::entry::key::WatchedKey { db: Db(0), bytes: Box::from(&b"s"[..]), routed: key.routed };
        let stamp = fixture.shard.watch(&key, &std::sync::Arc::default());
        fixture.add("s", &[&members[0]]);
        fixture.set_mut("s").unwrap().remove(b"none");
        assert!(!fixture.shard.is_written_since(&watched, stamp));
        fixture.add("s", &[b"new"]);
        assert!(fixture.shard.is_written_since(&watched, stamp));
        let stamp = fixture.shard.watch(&key, &std::sync::Arc::default());
        fixture.set_mut("s").unwrap().remove(b"new");
        assert!(fixture.shard.is_written_since(&watched, stamp));
        let stamp = fixture.shard.watch(&key, &std::sync::Arc::default());
        fixture.set_mut("s").unwrap().pop(3, |_| ());
        assert!(fixture.shard.is_written_since(&watched, stamp));
    }
}

#[test]
fn scans_meet_every_member() {
    for members in [numbers(0..100), names(0..100), names(0..5000)] {
        for n in [1, 10, 1000, usize::MAX] {
            let mut fixture = Fixture::new();
            fixture.add("s", &slices(&members));
            let set = fixture.get("s").unwrap();
            let (mut met, mut position, mut n_calls) = (Vec::new(), Position::START, 0);
            loop {
                let before = met.len();
                let next = set.scan(position, n, &mut |member| met.push(text(member)));
                n_calls += 1;
                let Some(next) = next else { break };
                assert!(met.len() - before >= n);
                position = Position::decode(next.encode()).expect("it was just encoded");
            }
            assert_eq!(met.len(), members.len());
            assert_eq!(met.into_iter().collect::<Model>(), members.iter().cloned().collect());
            assert_eq!(n_calls == 1, members.len() == 100 || n == usize::MAX, "{n} of {}", members.len());
        }
    }
}

/// Whether things that were counted are about equally frequent.
fn assert_even(counts: &BTreeMap<Vec<u8>, usize>, n_members: usize, name: &str) {
    assert_eq!(counts.len(), n_members, "{name}: every member is met");
    let mean = counts.values().sum::<usize>() / n_members;
    for (member, &count) in counts {
        // Six standard deviations.
        let slack = 6 * mean.isqrt();
        assert!(count.abs_diff(mean) < slack, "{name}: {member:?} {count} times, {mean} in the mean");
    }
}

#[test]
fn every_member_is_as_likely_as_any_other() {
    for (name, members) in [("ints", numbers(0..50)), ("packed", names(0..50)), ("table", names(0..1500))] {
        let mut fixture = Fixture::new();
        fixture.add("s", &slices(&members));
        // A table that has grown and shrunk again.
        let more = names(10_000..12_000);
        if name == "table" {
            fixture.add("s", &slices(&more));
            more.iter().for_each(|member| assert!(fixture.set_mut("s").unwrap().remove(member)));
        }
        let mut random = Random(9);
        let set = fixture.get("s").unwrap();
        let n_rounds = 400 * members.len();
        let mut counts = BTreeMap::new();
        for _ in 0..n_rounds {
            *counts.entry(text(set.sample(random.next()).unwrap())).or_insert(0) += 1;
        }
        assert_even(&counts, members.len(), name);
        let mut counts = BTreeMap::new();
        for member in set.samples(|| random.next()).take(n_rounds) {
            *counts.entry(text(member)).or_insert(0) += 1;
        }
        assert_even(&counts, members.len(), name);
        for n in [members.len() / 10, members.len() / 2] {
            let mut counts = BTreeMap::new();
            for _ in 0..n_rounds / n {
                set.choose(n, &mut || random.next(), &mut |member| {
                    *counts.entry(text(member)).or_insert(0) += 1;
                });
            }
            assert_even(&counts, members.len(), name);
        }
    }
}

/// The result of an operation on models.
fn combined(operation: Operation, sources: &[Model]) -> Model {
    let others = || sources.iter().skip(1);
    match operation {
        Operation::Union => sources.iter().flatten().cloned().collect(),
        Operation::Intersection => {
            sources[0].iter().filter(|member| others().all(|set| set.contains(*member))).cloned().collect()
        }
        Operation::Difference => {
            sources[0].iter().filter(|member| !others().any(|set| set.contains(*member))).cloned().collect()
        }
    }
}

const OPERATIONS: [Operation; 3] = [Operation::Intersection, Operation::Union, Operation::Difference];

#[test]
fn combined_sets_agree_with_btrees() {
    let mut random = Random(3);
    for round in 0..120 {
        let (intset, listpack, value) = LIMITS[round % LIMITS.len()];
        let mut fixture = Fixture::with_limits(intset, listpack, value);
        let keys: Vec<String> = (0..5).map(|i| format!("k{i}")).collect();
        for key in &keys[1..] {
            // Large and small ones, so that every way to combine them is taken.
            let n = [1, 5, 30, 400][random.below(4)];
            let members: Vec<_> = (0..n).map(|_| random.member(120)).collect();
            fixture.add(key, &slices(&members));
        }
        let n_sources = 1 + random.below(6);
        let from = if random.below(3) == 0 { 0 } else { 1 };
        let chosen: Vec<&str> = (0..n_sources).map(|_| &*keys[from + random.below(5 - from)]).collect();
        let models: Vec<Model> = chosen.iter().map(|key| fixture.members(key)).collect();
        let shares: Vec<Option<EntryBox>> = chosen.iter().map(|key| fixture.share(key)).collect();
        let sources: Vec<Option<SetRef<'_>>> = shares
            .iter()
            .map(|share| share.as_ref().map(|entry| SetRef::of(entry.as_ref(), Millis(1)).unwrap()))
            .collect();
        for operation in OPERATIONS {
            let expected = combined(operation, &models);
            let mut members = Vec::new();
            operation.for_each(&sources, &mut |member| members.push(text(member)));
            assert_eq!(members.len(), expected.len(), "{operation:?} gives each member once");
            assert_eq!(members.into_iter().collect::<Model>(), expected, "{operation:?} of {chosen:?}");
            let stored = operation.store(&sources, fixture.builder("result"));
            assert_eq!(stored.is_none(), expected.is_empty());
            if let Some(entry) = stored {
                let result = fixture.key("result");
                fixture.shard.put(&result, entry, Event::Made);
                fixture.check("result", &expected);
            }
        }
    }
}

#[test]
fn stored_sets_have_the_encodings_of_redis() {
    use Operation::{Difference, Intersection, Union};
    let large_and_text = |n| [names(0..200), numbers(0..n)].concat();
    for (name, operation, sources, encoding) in [
        ("integers", Union, vec![numbers(0..256), numbers(256..512)], "intset"),
        ("too many integers", Union, vec![numbers(0..256), numbers(256..513)], "hashtable"),
        ("few of both", Union, vec![numbers(0..64), names(0..64)], "listpack"),
        ("too many of both", Union, vec![numbers(0..64), names(0..65)], "hashtable"),
        ("integers of tables", Intersection, vec![large_and_text(600), numbers(0..600)], "hashtable"),
        ("few integers of tables", Intersection, vec![large_and_text(500), numbers(0..600)], "intset"),
        ("texts of tables", Intersection, vec![names(0..300), names(200..500)], "listpack"),
        ("many texts of tables", Intersection, vec![names(0..300), names(100..500)], "hashtable"),
        ("a difference by probes", Difference, vec![names(0..200), names(50..300)], "listpack"),
        (
            "a difference by taking out",
            Difference,
            vec![names(0..200), names(0..60), names(60..80)],
            "hashtable",
        ),
    ] {
        let mut fixture = Fixture::new();
        for (nth, members) in sources.iter().enumerate() {
            fixture.add(&nth.to_string(), &slices(members));
        }
        let shares: Vec<_> = (0..sources.len()).map(|nth| fixture.share(&nth.to_string()).unwrap()).collect();
        let sets: Vec<_> =
            shares.iter().map(|share| Some(SetRef::of(share.as_ref(), Millis(1)).unwrap())).collect();
        let entry = operation.store(&sets, fixture.builder("result")).expect("there are members");
        assert_eq!(crate::types::kinds::encoding_name(entry.as_ref()), encoding, "{name}");
    }
}

#[test]
fn a_copy_shares_nothing() {
    for members in [numbers(0..3), names(0..3), names(0..200)] {
        let mut fixture = Fixture::new();
        fixture.add("s", &slices(&members));
        let (key, copy_key) = (fixture.key("s"), fixture.key("copy"));
        let copy = fixture.shard.copy(&key, b"copy").expect("it is there");
        fixture.shard.put(&copy_key, copy, Event::Made);
        fixture.set_mut("copy").unwrap().remove(&members[0]);
        assert_eq!(fixture.members("s").len(), members.len());
        assert_eq!(fixture.members("copy").len(), members.len() - 1);
    }
}

#[test]
fn a_set_is_no_string() {
    let mut fixture = Fixture::new();
    let key = fixture.key("s");
    fixture.shard.put_string(&key, b"v", Expiry::Clear, Event::Set);
    assert!(fixture.shard.value::<SetType>(&key).is_err());
    assert!(fixture.shard.value_or_create::<SetType>(&key, Event::Made).is_err());
}

#[test]
fn members_cost_one_allocation_each_and_a_share_of_the_table() {
    let mut fixture = Fixture::new();
    let before = fixture.keyspace.used_bytes();
    let members: Vec<_> = (0..100_000).map(|i| format!("member:{i:09}").into_bytes()).collect();
    for member in &members {
        fixture.add("s", &[member]);
    }
    let bytes_each = (fixture.keyspace.used_bytes() - before) as f64 / members.len() as f64;
    // Header 8 and member 16, in a class of 32; 64 bytes for 7 slots that are 86 % full.
    assert!((42.0..44.0).contains(&bytes_each), "{bytes_each}");
}
