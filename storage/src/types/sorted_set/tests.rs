use std::collections::BTreeMap;

use super::*;
use crate::{
    entry::{db::Db, key::Key, time::Millis},
    keyspace::{Keyspace, shard::Shard},
    observers::event::Event,
    table::hash::{HashTags, KeyHasher, Router},
    types::thresholds::Thresholds,
};

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    fn of<T: Copy>(&mut self, items: &[T]) -> T {
        items[self.below(items.len())]
    }
}

/// A shard, and a key in it.
struct Fixture {
    shard: Shard,
    router: Router,
}

impl Fixture {
    fn new() -> Self {
        let router = Router::new(KeyHasher::with_key(1, 2), 0, HashTags::Honoured);
        let (_, mut shards) = Keyspace::new(router, 1);
        let mut shard = shards.pop().expect("there is one");
        shard.begin(Db(0), Millis(1));
        Fixture { shard, router }
    }

    fn with(entries_max: usize, value_bytes_max: usize) -> Self {
        let bench = Self::new();
        bench.shard.thresholds().zset_max_listpack_entries.set(entries_max);
        bench.shard.thresholds().zset_max_listpack_value.set(value_bytes_max);
        bench
    }

    fn key(&self) -> Key<'static> {
        Key { bytes: b"zset", routed: self.router.route(b"zset") }
    }

    fn read(&mut self) -> Option<SortedSetRef<'_>> {
        let key = self.key();
        self.shard.value(&key).expect("nothing else is written")
    }

    fn write(&mut self) -> SortedSetMut<'_> {
        let key = self.key();
        self.shard.value_or_create(&key, Event::Made).expect("nothing else is written")
    }

    fn check(&mut self) {
        if let Some(set) = self.read()
            && let Stored::Large(large) = set.stored()
        {
            large.check();
        }
    }
}

/// The same by sorting.
#[derive(Default)]
struct Model(BTreeMap<Vec<u8>, f64>);

impl Model {
    fn sorted(&self) -> Vec<(Vec<u8>, f64)> {
        let mut sorted: Vec<_> = self.0.iter().map(|(member, score)| (member.clone(), *score)).collect();
        sorted.sort_by(|one, other| one.1.partial_cmp(&other.1).unwrap().then(one.0.cmp(&other.0)));
        sorted
    }

    fn add(&mut self, member: &[u8], score: f64, rule: AddRule) -> Added {
        let added = rule.judge(self.0.get(member).copied(), score);
        if let Added::New(score) | Added::Updated(score) = added {
            self.0.insert(member.to_vec(), score);
        }
        added
    }

    fn remove_ranks(&mut self, ranks: Range<usize>) -> Vec<(Vec<u8>, f64)> {
        let gone = self.sorted()[ranks].to_vec();
        gone.iter().for_each(|(member, _)| assert!(self.0.remove(member).is_some()));
        gone
    }
}

fn owned(scored: Scored<'_>) -> (Vec<u8>, f64) {
    (scored.member.to_vec(), scored.score())
}

const SCORES: [f64; 14] = [
    f64::NEG_INFINITY,
    -1e300,
    -2.5,
    -1.0,
    -0.0,
    0.0,
    0.1,
    1.0,
    1.5,
    2.0,
    300.0,
    1e17,
    1.5e300,
    f64::INFINITY,
];

fn member(random: &mut Random, n: usize) -> Vec<u8> {
    let nth = random.below(n);
    match nth % 5 {
        0 => nth.to_string().into_bytes(),
        1 => format!("member:{nth}").into_bytes(),
        2 => vec![0xff, nth as u8, 0, (nth >> 8) as u8],
        3 => format!("-{nth}").into_bytes(),
        _ => format!("{nth}{}", "x".repeat(nth % 70)).into_bytes(),
    }
}

fn compare(bench: &mut Fixture, model: &Model, random: &mut Random, n: usize) {
    let sorted = model.sorted();
    let Some(set) = bench.read() else { return assert!(sorted.is_empty(), "the key is gone too early") };
    assert_eq!(set.len(), sorted.len());
    assert!(!set.is_empty(), "an empty set has no key");
    let forward: Vec<_> = set.iter(0..set.len()).map(owned).collect();
    assert_eq!(forward, sorted);
    let mut backward: Vec<_> = set.iter(0..set.len()).rev().map(owned).collect();
    backward.reverse();
    assert_eq!(backward, sorted);
    let start = random.below(sorted.len() + 1);
    let end = start + random.below(sorted.len() + 1 - start);
    let part: Vec<_> = set.iter(start..end).map(owned).collect();
    assert_eq!(part, sorted[start..end]);
    let mut part = set.iter(start..end);
    assert_eq!(part.len(), end - start);
    // From both ends by turns.
    let mut rest = &sorted[start..end];
    while let Some((first, others)) = rest.split_first() {
        assert_eq!(part.next().map(owned).as_ref(), Some(first));
        rest = others;
        if let Some((last, others)) = rest.split_last() {
            assert_eq!(part.next_back().map(owned).as_ref(), Some(last));
            rest = others;
        }
    }
    assert!(part.next().is_none() && part.next_back().is_none());
    let picked: Vec<usize> = (0..sorted.len()).filter(|_| random.below(3) == 0).collect();
    let at: Vec<_> = set.at_ranks(picked.iter().copied()).map(owned).collect();
    assert_eq!(at, picked.iter().map(|&rank| sorted[rank].clone()).collect::<Vec<_>>());
    compare_lookups(set, &sorted, random, n);
}

fn compare_lookups(set: SortedSetRef<'_>, sorted: &[(Vec<u8>, f64)], random: &mut Random, n: usize) {
    for _ in 0..10 {
        let wanted = member(random, n);
        let found = sorted.iter().position(|(member, _)| *member == wanted);
        let score = found.map(|rank| sorted[rank].1);
        assert_eq!(set.score(&wanted), score);
        let rank = found.map(|rank| Rank { from_lowest: rank, score: sorted[rank].1 });
        assert_eq!(set.rank(&wanted), rank);
    }
    let limit = |random: &mut Random| match random.below(4) {
        0 => Limit::Excluding(random.of(&SCORES)),
        _ => Limit::Including(random.of(&SCORES)),
    };
    for _ in 0..10 {
        let (min, max) = (limit(random), limit(random));
        let is_above = |score: f64| match min {
            Limit::Including(at) => score >= at,
            Limit::Excluding(at) => score > at,
            _ => unreachable!("not made"),
        };
        let is_below = |score: f64| match max {
            Limit::Including(at) => score <= at,
            Limit::Excluding(at) => score < at,
            _ => unreachable!("not made"),
        };
        let expected: Vec<_> =
            sorted.iter().filter(|(_, score)| is_above(*score) && is_below(*score)).cloned().collect();
        let found: Vec<_> = set.iter(set.score_range(min, max)).map(owned).collect();
        assert_eq!(found, expected, "{min:?} {max:?}");
    }
}

fn rule(random: &mut Random) -> AddRule {
    use Presence::{Any, Missing, Present};
    AddRule {
        presence: random.of(&[Any, Any, Any, Missing, Present]),
        replacing: random.of(&[Replacing::Any, Replacing::Any, Replacing::Greater, Replacing::Less]),
        increments: random.below(5) == 0,
    }
}

/// Random operations on members of which there are `n`, in waves that grow and shrink.
fn run_against_model(seed: u64, bench: &mut Fixture, n: usize, n_steps: usize, compare_every: usize) {
    let mut random = Random(seed);
    let mut model = Model::default();
    for step in 0..n_steps {
        let growing = (step / (2 * n)).is_multiple_of(2);
        let one = member(&mut random, n);
        let len = model.0.len();
        match random.below(20) {
            0 => {
                let start = random.below(len + 1);
                let end = start + random.below((len + 1 - start).min(5));
                if len > 0 {
                    bench.write().remove_ranks(start..end);
                }
                model.remove_ranks(start..end);
            }
            1 => {
                let n_popped = random.below(4);
                let end = random.of(&[End::Lowest, End::Highest]);
                let ranks = match end {
                    End::Lowest => 0..n_popped.min(len),
                    End::Highest => len - n_popped.min(len)..len,
                };
                let mut popped = Vec::new();
                if len > 0 {
                    bench.write().pop(end, n_popped, |scored| popped.push(owned(scored)));
                }
                if end == End::Highest {
                    popped.reverse();
                }
                assert_eq!(popped, model.remove_ranks(ranks));
            }
            at if (at < 14) == growing => {
                let score = match random.below(3) {
                    0 => random.of(&SCORES),
                    _ => random.below(n) as f64 / 4.0,
                };
                let rule = rule(&mut random);
                let expected = model.add(&one, score, rule);
                let added = bench.write().add(&one, score, rule);
                assert_eq!(added, expected, "seed {seed} step {step}");
            }
            _ => {
                let is_there = len > 0 && bench.write().remove(&one);
                assert_eq!(is_there, model.0.remove(&one).is_some(), "seed {seed} step {step}");
            }
        }
        if step % compare_every == 0 {
            bench.check();
            compare(bench, &model, &mut random, n);
        }
    }
    let len = model.0.len();
    if len > 0 {
        bench.write().remove_ranks(0..len);
    }
    assert!(bench.read().is_none(), "the last member takes the key with it");
}

#[test]
fn agrees_with_a_model_in_either_form_and_across_both_thresholds() {
    for (nth, (entries, value)) in
        [(0, 64), (1, 64), (5, 64), (128, 64), (128, 8), (128, 0), (1000, 1000)].into_iter().enumerate()
    {
        for seed in 0..4 {
            run_against_model(seed + 100 * nth as u64, &mut Fixture::with(entries, value), 40, 1500, 7);
        }
    }
}

#[test]
fn agrees_with_a_model_through_splits_and_joins() {
    for seed in 0..2 {
        run_against_model(seed, &mut Fixture::new(), 3000, 30_000, 2000);
    }
}

#[test]
fn forms_change_where_the_settings_say_and_never_back() {
    let mut bench = Fixture::with(3, 4);
    let is_packed =
        |bench: &mut Fixture| encoding_name(bench.read().expect("there is one").entry()) == "listpack";
    for (nth, member) in ["a", "b", "four"].into_iter().enumerate() {
        bench.write().add(member.as_bytes(), nth as f64, AddRule::default());
        assert!(is_packed(&mut bench));
    }
    bench.write().add(b"four", 9.0, AddRule::default());
    bench.write().remove(b"none");
    assert!(is_packed(&mut bench), "an update makes no more members");
    bench.write().add(b"d", 1.0, AddRule::default());
    assert!(!is_packed(&mut bench));
    bench.write().remove_ranks(0..3);
    assert!(!is_packed(&mut bench));
    bench.write().remove_ranks(0..1);
    bench.write().add(b"five!", 1.0, AddRule::default());
    assert!(!is_packed(&mut bench));
}

#[test]
fn small_sets_are_packed_as_redis_packs_them() {
    let mut bench = Fixture::new();
    for (score, member) in [(1.0, "a"), (2.5, "b"), (300.0, "007"), (-1.0, "42")] {
        bench.write().add(member.as_bytes(), score, AddRule::default());
    }
    let expected = b"\x21\0\0\0\x08\0\x2a\x01\xdf\xff\x02\x81a\x02\x01\x01\x81b\x02\x832.5\x04\x83007\x04\xc1\x2c\x02\xff";
    let entry = bench.read().expect("there is one").entry();
    assert_eq!(entry.bytes(), Some(&expected[..]));
    assert!(Packed::check(expected).is_some());
}

fn members_of(entry: &EntryBox) -> Vec<(Vec<u8>, f64)> {
    let set = SortedSetRef::of(entry.as_ref(), Millis(1)).expect("it is a sorted set");
    set.iter(0..set.len()).map(owned).collect()
}

#[test]
fn what_is_gathered_is_sorted_and_packed_if_it_is_small() {
    let thresholds = Thresholds::default();
    for n in [0, 1, 2, 127, 128, 129, 1000, 20_000] {
        let mut gathered = Gathered::new(&Router::new(KeyHasher::with_key(1, 2), 3, HashTags::Honoured));
        let mut expected = Model::default();
        let mut random = Random(n as u64);
        for nth in 0..n {
            let (member, score) = (nth.to_string().into_bytes(), random.below(1000) as f64);
            gathered.put(&member, |old| old.map_or(score, |_| unreachable!("members differ")));
            expected.0.insert(member, score);
        }
        if n > 0 {
            gathered.put(b"0", |old| old.expect("it has been given one") + 1000.0);
            *expected.0.get_mut(&b"0"[..]).expect("so it has here") += 1000.0;
        }
        let sorted = gathered.sort();
        sorted.0.check();
        assert_eq!((sorted.len(), sorted.is_empty()), (n, n == 0));
        assert_eq!(sorted.iter().map(owned).collect::<Vec<_>>(), expected.sorted());
        let Some(entry) = sorted.into_entry(b"key", &thresholds) else {
            assert_eq!(n, 0);
            continue;
        };
        assert_eq!(encoding_name(entry.as_ref()), if n <= 128 { "listpack" } else { "skiplist" });
        assert_eq!(members_of(&entry), expected.sorted());
    }
    let mut gathered = Gathered::new(&Router::new(KeyHasher::with_key(1, 2), 3, HashTags::Honoured));
    gathered.put(&[b'x'; 65], |_| 1.0);
    let entry = gathered.sort().into_entry(b"key", &thresholds).expect("it has a member");
    assert_eq!(encoding_name(entry.as_ref()), "skiplist");
}

#[test]
fn a_zero_loses_its_sign_where_it_is_packed() {
    for (entries_max, text) in [(128, "0"), (0, "-0")] {
        let mut bench = Fixture::with(entries_max, 64);
        assert_eq!(bench.write().add(b"a", -0.0, AddRule::default()), Added::New(-0.0));
        let score = bench.read().and_then(|set| set.score(b"a")).expect("it was added");
        assert_eq!(score.to_string(), text);
    }
}

#[test]
fn a_copy_shares_nothing_and_a_shared_set_stays_readable() {
    let mut bench = Fixture::new();
    for nth in 0..1000 {
        bench.write().add(format!("m{nth}").as_bytes(), f64::from(nth % 7), AddRule::default());
    }
    let (copy, shared) = {
        let entry = bench.read().expect("there is one").entry();
        (entry.duplicate(b"copy"), entry.share())
    };
    let before = members_of(&copy);
    assert_eq!(before, members_of(&shared));
    drop(shared);
    bench.write().remove_ranks(0..900);
    assert_eq!(members_of(&copy), before);
    let Stored::Large(large) = Stored::of(copy.as_ref()) else { panic!("it has 1000 members") };
    large.check();
}

#[test]
fn a_scan_meets_every_member_that_stays() {
    let mut bench = Fixture::new();
    let n = 5000;
    for nth in 0..n {
        bench.write().add(format!("m{nth}").as_bytes(), f64::from(nth), AddRule::default());
    }
    let mut met = vec![0; n as usize];
    let mut at = Some(Position::START);
    while let Some(position) = at {
        let number = position.encode();
        let position = Position::decode(number).expect("it was encoded");
        at = bench.read().expect("half stays").scan(position, 3, &mut |scored| {
            let (member, score) = owned(scored);
            assert_eq!(member, format!("m{score}").into_bytes());
            met[score as usize] += 1;
        });
        // Every odd member goes meanwhile, which makes the table shrink.
        let gone = 2 * (number as usize % (n as usize / 2)) + 1;
        bench.write().remove(format!("m{gone}").as_bytes());
    }
    assert!(met.iter().step_by(2).all(|&n_times| n_times == 1));
}

/// Bytes beyond the members' own and their scores', a member.
fn overhead(bench: &mut Fixture, member_bytes: usize) -> (f64, f64) {
    let set = bench.read().expect("there is one");
    let Stored::Large(large) = set.stored() else { panic!("it is large") };
    let n = large.len() as f64;
    large.check();
    let beyond = set.entry().allocated_bytes() as f64 / n - (member_bytes + 8) as f64;
    (beyond, large.tree_bytes() as f64 / n)
}

#[test]
fn a_member_costs_no_more_than_32_bytes_beyond_its_text_and_score() {
    let n = 100_000u64;
    for order in ["random", "ascending", "descending"] {
        let (mut bench, mut random) = (Fixture::new(), Random(1));
        let mut score = |nth: u64| match order {
            "ascending" => nth as f64,
            "descending" => -(nth as f64),
            _ => random.below(1_000_000) as f64,
        };
        for nth in 0..n {
            let member = format!("{nth:016}");
            bench.write().add(member.as_bytes(), score(nth), AddRule::default());
        }
        let (beyond, tree) = overhead(&mut bench, 16);
        assert!(beyond <= 32.0 && tree <= 10.0, "{order}: {beyond:.1}, of which {tree:.1} for the tree");
        let half = n / 2;
        for nth in 0..half {
            bench.write().remove(format!("{:016}", nth * 2).as_bytes());
        }
        let (beyond, tree) = overhead(&mut bench, 16);
        assert!(beyond <= 40.0 && tree <= 15.0, "{order}, every second removed: {beyond:.1}, {tree:.1}");
    }
}

#[test]
fn marks_spare_the_reading_of_entries() {
    let (mut bench, mut random) = (Fixture::new(), Random(1));
    let n = 50_000;
    for nth in 0..n {
        bench.write().add(
            format!("{nth}").as_bytes(),
            (random.next() % 1_000_000_007) as f64,
            AddRule::default(),
        );
    }
    let set = bench.read().expect("there is one");
    let Stored::Large(large) = set.stored() else { panic!("it is large") };
    let marks_a_leaf = large.n_marks() as f64 / large.check() as f64;
    assert!(marks_a_leaf > 0.97 * n as f64 / large.check() as f64, "{marks_a_leaf} marks a leaf");
}

#[test]
fn rules_are_those_of_zadd() {
    use Added::{New, NotANumber, Refused, Same, Updated};
    let any = AddRule::default();
    let missing = AddRule { presence: Presence::Missing, ..any };
    let present = AddRule { presence: Presence::Present, ..any };
    let greater = AddRule { replacing: Replacing::Greater, ..any };
    let less = AddRule { replacing: Replacing::Less, ..any };
    let sum = AddRule { increments: true, ..any };
    for (rule, old, score, expected) in [
        (any, None, 1.0, New(1.0)),
        (any, Some(1.0), 1.0, Same(1.0)),
        (any, Some(0.0), -0.0, Same(-0.0)),
        (any, Some(1.0), 2.0, Updated(2.0)),
        (missing, None, 1.0, New(1.0)),
        (missing, Some(1.0), 2.0, Refused),
        (present, None, 1.0, Refused),
        (present, Some(1.0), 2.0, Updated(2.0)),
        (greater, None, 1.0, New(1.0)),
        (greater, Some(1.0), 1.0, Refused),
        (greater, Some(1.0), 2.0, Updated(2.0)),
        (less, Some(1.0), 2.0, Refused),
        (less, Some(1.0), 0.5, Updated(0.5)),
        (sum, None, 1.5, New(1.5)),
        (sum, Some(1.0), 1.5, Updated(2.5)),
        (sum, Some(1.0), 0.0, Same(1.0)),
        (sum, Some(f64::INFINITY), f64::NEG_INFINITY, NotANumber),
        (AddRule { replacing: Replacing::Greater, ..sum }, Some(1.0), -1.0, Refused),
        (AddRule { presence: Presence::Missing, ..sum }, Some(f64::INFINITY), f64::NEG_INFINITY, Refused),
    ] {
        assert_eq!(rule.judge(old, score), expected, "{rule:?} {old:?} {score}");
    }
}

#[test]
fn members_of_equal_scores_are_in_the_order_of_their_bytes() {
    for entries_max in [128, 0] {
        let mut bench = Fixture::with(entries_max, 64);
        for member in ["b", "a", "10", "9", "-1", "", "\u{ff}", "aa"] {
            bench.write().add(member.as_bytes(), 0.0, AddRule::default());
        }
        let set = bench.read().expect("there is one");
        let between = |min, max| {
            let range = set.member_range(min, max);
            set.iter(range)
                .map(|scored| String::from_utf8(scored.member.to_vec()).unwrap())
                .collect::<Vec<_>>()
        };
        assert_eq!(between(Limit::First, Limit::Last), ["", "-1", "10", "9", "a", "aa", "b", "\u{ff}"]);
        assert_eq!(between(Limit::Including(b"9"), Limit::Excluding(b"b")), ["9", "a", "aa"]);
        assert_eq!(between(Limit::Excluding(b"9"), Limit::Including(b"aaa")), ["a", "aa"]);
        assert!(between(Limit::Last, Limit::First).is_empty());
        assert!(between(Limit::Including(b"b"), Limit::Including(b"a")).is_empty());
    }
}
