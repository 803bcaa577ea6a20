//! The table against `HashMap`, and what it promises besides.

use std::collections::{HashMap, HashSet};

use braid_storage::entry::time::{Deadline, Millis};
use braid_storage::entry::{Encoding, EntryBox, Kind};
use braid_storage::table::hash::{HashTags, KeyHasher, Router};
use braid_storage::table::{Cursor, Fill, Hint, Position, Roots, Table};

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
}

fn router(shard_bits: u32) -> Router {
    Router::new(KeyHasher::with_key(17, 4), shard_bits, HashTags::Honoured)
}

fn key(i: u64) -> Vec<u8> {
    format!("key:{i}").into_bytes()
}

fn set(table: &mut Table, key: &[u8], value: &[u8], deadline: Option<Deadline>) {
    let place = table.router().place(key);
    if let Some(mut slot) = table.find_mut(key, place) {
        slot.modify(|entry| {
            entry.set_bytes(value);
            entry.set_deadline(deadline);
        });
        return;
    }
    let entry = EntryBox::with_bytes(Kind::String, Encoding::default(), key, value, deadline);
    let slot = table.insert(entry, place);
    assert_eq!(slot.into_entry().bytes(), Some(value));
}

fn get<'t>(table: &'t Table, key: &[u8]) -> Option<&'t [u8]> {
    table.find(key, table.router().place(key)).map(|entry| entry.bytes().expect("all are strings"))
}

fn remove(table: &mut Table, key: &[u8]) -> Option<EntryBox> {
    let place = table.router().place(key);
    table.find_mut(key, place).map(|slot| slot.remove())
}

/// Random operations on keys below `n_keys` in a table as full as the seed is even or odd, with waves of
/// mostly inserting and mostly removing.
fn run_against_model(seed: u64, n_keys: u64, n_steps: u64, shard_bits: u32, check_every: u64) {
    let mut random = Random(seed);
    let fill = [Fill::Roomy, Fill::Dense][(seed % 2) as usize];
    let mut table = Roots::new(1, router(shard_bits), fill).table(0);
    let mut model: HashMap<Vec<u8>, (Vec<u8>, Option<Deadline>)> = HashMap::new();
    // It is of whatever key was last looked up with it, and of no use after most changes.
    let mut hint = Hint::default();
    for step in 0..n_steps {
        let growing = (step / (2 * n_keys)).is_multiple_of(2);
        let key = key(random.below(n_keys));
        match random.below(10) {
            0 => {
                assert_eq!(get(&table, &key), model.get(&key).map(|(value, _)| &value[..]), "seed {seed}");
            }
            1 => {
                let deadline = (random.below(2) == 0).then(|| Deadline::at(random.below(100)));
                let place = table.router().place(&key);
                let found = table.find_mut_near(&key, place, &mut hint);
                assert_eq!(found.is_some(), model.contains_key(&key), "seed {seed}");
                if let Some(mut slot) = found {
                    assert_eq!(slot.entry().key(), key);
                    slot.set_deadline(deadline);
                    model.get_mut(&key).expect("the table has it").1 = deadline;
                }
            }
            n if (n < 8) == growing => {
                let value =
                    vec![b'v'; random.below(60) as usize * if random.below(50) == 0 { 60 } else { 1 }];
                let deadline = (random.below(4) == 0).then(|| Deadline::at(random.below(100)));
                set(&mut table, &key, &value, deadline);
                model.insert(key, (value, deadline));
            }
            _ if random.below(4) == 0 => {
                let removed = table.remove_sample(random.next());
                assert_eq!(removed.is_none(), model.is_empty(), "seed {seed}");
                if let Some(removed) = removed {
                    let expected = model.remove(removed.as_ref().key()).expect("the model has it");
                    assert_eq!(
                        (removed.as_ref().bytes(), removed.as_ref().deadline()),
                        (Some(&expected.0[..]), expected.1)
                    );
                }
            }
            _ => {
                let removed = remove(&mut table, &key);
                let expected = model.remove(&key);
                assert_eq!(removed.is_some(), expected.is_some(), "seed {seed}");
                if let (Some(removed), Some((value, deadline))) = (removed, expected) {
                    assert_eq!(removed.as_ref().bytes(), Some(&value[..]));
                    assert_eq!(removed.as_ref().deadline(), deadline);
                }
            }
        }
        assert_eq!(table.len(), model.len());
        if step % check_every == 0 {
            table.check_invariants();
        }
    }
    for (key, (value, deadline)) in &model {
        let entry = table.find(key, table.router().place(key)).expect("the model has it");
        assert_eq!((entry.bytes(), entry.deadline()), (Some(&value[..]), *deadline));
    }
    for key in model.keys() {
        remove(&mut table, key).expect("the model has it");
        if table.len().is_multiple_of(check_every as usize) {
            table.check_invariants();
        }
    }
    assert_eq!((table.len(), table.n_deadlines(), table.allocated_bytes()), (0, 0, 0));
}

#[test]
fn agrees_with_a_hash_map_when_tiny() {
    for seed in 0..20 {
        run_against_model(seed, 40, 3000, 10, 1);
    }
}

#[test]
fn agrees_with_a_hash_map_through_splits_and_merges() {
    for seed in 0..4 {
        run_against_model(seed, 3000, 40_000, seed as u32 * 4, 199);
    }
}

#[test]
fn agrees_with_a_hash_map_when_large() {
    for seed in 0..2 {
        run_against_model(seed, 60_000, 400_000, 0, 40_001);
    }
}

#[test]
fn positions_are_hashed_anew_where_slots_do_not_know_enough() {
    // Beyond some 400,000 entries in one table, homes need more than the slots' 20 bits.
    let n_keys = if cfg!(debug_assertions) { 1_000_000 } else { 3_000_000 };
    let mut table = Table::alone(router(0));
    for i in 0..n_keys {
        let key = key(i);
        table.insert(EntryBox::string(&key, b"v"), table.router().place(&key));
    }
    table.check_invariants();
    let mut seen = HashSet::new();
    let mut position = Position::START;
    loop {
        let next = table.scan(position, 100, &mut |entry| assert!(seen.insert(entry.key().to_vec())));
        match next {
            Some(next) => position = next,
            None => break,
        }
    }
    assert_eq!(seen.len(), n_keys as usize);
    assert!(table.iter().all(|entry| seen.remove(entry.key())), "each entry once");
    assert!(seen.is_empty(), "every entry");
    for i in 0..n_keys {
        remove(&mut table, &key(i)).expect("all are there");
    }
    assert_eq!(table.allocated_bytes(), 0);
}

#[test]
fn replacing_and_panicking_in_a_change_leave_the_counts_right() {
    let mut table = Table::alone(router(3));
    for i in 0..100 {
        set(&mut table, &key(i), b"value", None);
    }
    let place = table.router().place(&key(5));
    let mut slot = table.find_mut(&key(5), place).expect("it is there");
    let new = EntryBox::with_bytes(Kind::Set, Encoding::new(1), &key(5), &[7; 3000], Some(Deadline::at(1)));
    let old = slot.replace(new);
    assert_eq!(old.as_ref().bytes(), Some(&b"value"[..]));
    assert_eq!(slot.entry().kind(), Kind::Set);
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        slot.modify(|entry| {
            entry.set_deadline(None);
            entry.append(&[8; 100_000]);
            panic!("as a test");
        })
    }));
    assert!(panicked.is_err());
    assert_eq!(slot.entry().bytes().map(<[u8]>::len), Some(103_000));
    table.check_invariants();
    assert_eq!(table.n_deadlines(), 0);
}

/// A SCAN, one bucket a call, while the table changes between calls.
fn scan_guarantee(seed: u64, change: impl Fn(&mut Table, &mut Random, u64)) {
    let shard_bits = 4;
    let roots = Roots::new(1, router(shard_bits), Fill::Roomy);
    let mut table = roots.table(0);
    let mut random = Random(seed);
    for i in 0..2000 {
        set(&mut table, &key(i), b"v", None);
    }
    let mut seen: HashMap<Vec<u8>, usize> = HashMap::new();
    let mut cursor = Cursor::default();
    let mut step = 0;
    loop {
        let mut here = HashSet::new();
        let next = table.scan(cursor.position, 1 + random.below(3) as usize, &mut |entry| {
            assert!(here.insert(entry.key().to_vec()), "once a call");
        });
        for key in here {
            *seen.entry(key).or_default() += 1;
        }
        let Some(next) = next else { break };
        assert!(next > cursor.position);
        // As it goes through a client's hands.
        let number = Cursor { position: next, ..cursor }.encode(table.router());
        assert!(number > 0 && number < 1 << 53);
        cursor = Cursor::decode(number, table.router()).expect("it was encoded");
        assert_eq!(cursor.position, next);
        change(&mut table, &mut random, step);
        step += 1;
    }
    // Keys below 100 are never touched.
    for i in 0..100 {
        assert_eq!(seen.get(&key(i)), Some(&1), "seed {seed}, key {i}");
    }
    assert!(seen.values().all(|&times| times == 1 || shard_bits > 0));
}

#[test]
fn scan_gives_every_lasting_key_once_while_the_table_grows() {
    for seed in 0..10 {
        scan_guarantee(seed, |table, random, _| {
            for _ in 0..100 {
                let key = key(2000 + random.below(30_000));
                set(table, &key, b"v", None);
            }
        });
    }
}

#[test]
fn scan_gives_every_lasting_key_once_while_the_table_shrinks() {
    for seed in 0..10 {
        scan_guarantee(seed, |table, random, _| {
            for _ in 0..50 {
                remove(table, &key(100 + random.below(1900)));
            }
        });
    }
}

#[test]
fn scan_gives_every_lasting_key_once_while_the_table_grows_and_shrinks() {
    for seed in 0..10 {
        scan_guarantee(seed, |table, random, step| {
            let n_keys = 20_000;
            for i in 0..n_keys / 10 {
                let key = key(100 + random.below(n_keys));
                match (step / 10) % 2 {
                    0 => set(table, &key, b"v", None),
                    _ => drop(remove(table, &key)),
                }
                if i % 1000 == 0 && step % 7 == 0 {
                    table.check_invariants();
                }
            }
        });
    }
}

#[test]
fn scan_ends_when_the_table_is_emptied_under_it() {
    let mut table = Table::alone(router(0));
    for i in 0..5000 {
        set(&mut table, &key(i), b"v", None);
    }
    let position = table.scan(Position::START, 3, &mut |_| ()).expect("there is more");
    for i in 0..5000 {
        remove(&mut table, &key(i));
    }
    assert_eq!(table.scan(position, 3, &mut |_| panic!("nothing is left")), None);
    for i in 0..5000 {
        set(&mut table, &key(i), b"v", None);
    }
    let mut rest = 0;
    assert_eq!(table.scan(position, usize::MAX, &mut |_| rest += 1), None);
    assert!(rest > 4900 && rest < 5000);
}

#[test]
fn expiry_hands_out_what_is_past_and_only_that() {
    let mut table = Table::alone(router(0));
    let n_keys = 5000;
    for i in 0..n_keys {
        let deadline = (i % 3 != 0).then(|| Deadline::at(1000 + i % 3 * 1000));
        set(&mut table, &key(i), b"v", deadline);
    }
    let past = |table: &mut Table, now: u64| {
        let mut expired = vec![];
        // Entries that wrapped round a segment's end may wait for the next round.
        for _ in 0..2 {
            let mut position = Position::START;
            while let Some(next) =
                table.expire_step(position, Millis(now), 5, &mut expired, &mut Default::default())
            {
                assert!(next > position);
                position = next;
                if expired.len() % 10 == 0 {
                    table.check_invariants();
                }
            }
        }
        table.check_invariants();
        expired.len()
    };
    let third = n_keys as usize / 3;
    assert_eq!(past(&mut table, 2000), 0);
    assert_eq!(past(&mut table, 2001), third + 1);
    assert_eq!(table.n_deadlines(), third);
    assert_eq!(past(&mut table, 5000), third);
    assert_eq!((table.n_deadlines(), table.len()), (0, third + 1));
    for i in 0..n_keys {
        assert_eq!(get(&table, &key(i)).is_some(), i % 3 == 0);
    }
    for i in 0..n_keys {
        set(&mut table, &key(i), b"v", Some(Deadline::at(1)));
    }
    assert_eq!(past(&mut table, 2), n_keys as usize);
    assert_eq!(table.allocated_bytes(), 0);
}

#[test]
fn samples_are_nearly_uniform() {
    for n_keys in [1u64, 5, 20, 300, 1000, 3000] {
        let mut table = Table::alone(router(0));
        for i in 0..n_keys {
            set(&mut table, &key(i), b"v", (i % 2 == 0).then_some(Deadline::at(1)));
        }
        let mut random = Random(n_keys);
        let mut drawn: HashMap<Vec<u8>, u64> = HashMap::new();
        let per_key = 100;
        for _ in 0..n_keys * per_key {
            *drawn
                .entry(table.sample(random.next()).expect("it is not empty").key().to_vec())
                .or_default() += 1;
            let expiring = table.sample_deadline(random.next()).expect("half of them expire");
            assert!(expiring.has_deadline());
        }
        let chi_square: f64 = (0..n_keys)
            .map(|i| {
                let difference = drawn.get(&key(i)).copied().unwrap_or(0) as f64 - per_key as f64;
                difference * difference / per_key as f64
            })
            .sum();
        // Mean n - 1, deviation √(2n).
        let bound = n_keys as f64 + 6.0 * (2.0 * n_keys as f64).sqrt();
        assert!(chi_square < bound, "{chi_square} over {n_keys} keys");
    }
}

#[test]
fn samples_are_found_in_a_table_that_has_shrunk() {
    let mut table = Table::alone(router(0));
    for i in 0..20_000 {
        set(&mut table, &key(i), b"v", None);
    }
    for i in 0..19_999 {
        remove(&mut table, &key(i));
        if i % 100 == 0 {
            assert!(table.sample(i).is_some());
        }
    }
    assert_eq!(table.sample(1).expect("one is left").key(), key(19_999));
    assert!(table.sample_deadline(1).is_none());
}

#[test]
fn detached_entries_are_freed_in_steps_and_the_table_starts_anew() {
    let mut table = Table::alone(router(0));
    for i in 0..3000 {
        set(&mut table, &key(i), b"v", None);
    }
    let mut detached = table.detach();
    table.check_invariants();
    assert_eq!((table.len(), table.allocated_bytes()), (0, 0));
    set(&mut table, &key(1), b"new", None);
    assert_eq!(detached.len(), 3000);
    let mut n_steps = 1;
    loop {
        detached.by_ref().take(100).for_each(drop);
        if detached.len() == 0 {
            break;
        }
        n_steps += 1;
    }
    assert_eq!(n_steps, 30);
    drop(detached);
    assert_eq!(get(&table, &key(1)), Some(&b"new"[..]));
    let keys: HashSet<_> = table.detach().map(|entry| entry.as_ref().key().to_vec()).collect();
    assert_eq!(keys, HashSet::from([key(1)]));
}

#[test]
fn tables_swap_and_give_their_roots_back() {
    let roots = Roots::new(2, router(0), Fill::Roomy);
    let (mut one, mut other) = (roots.table(0), roots.table(1));
    for i in 0..500 {
        set(&mut one, &key(i), b"one", None);
    }
    set(&mut other, &key(0), b"other", Some(Deadline::at(3)));
    one.swap_contents(&mut other);
    one.check_invariants();
    other.check_invariants();
    assert_eq!((one.len(), other.len(), one.n_deadlines()), (1, 500, 1));
    assert_eq!(get(&one, &key(0)), Some(&b"other"[..]));
    assert_eq!(get(&other, &key(0)), Some(&b"one"[..]));
    drop(one);
    let again = roots.table(0);
    assert!(again.is_empty() && again.find(b"x", router(0).place(b"x")).is_none());
    let taken = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| roots.table(0)));
    assert!(taken.is_err(), "a root has one table at a time");
}

#[test]
fn structure_takes_few_bytes_a_key_at_every_size() {
    let mut table = Table::alone(router(0));
    let (mut sum, mut n) = (0.0, 0);
    for i in 0..100_000u64 {
        set(&mut table, &key(i), b"v", None);
        if i >= 100 && i % 97 == 0 {
            let per_key = table.structure_bytes() as f64 / table.len() as f64;
            assert!(per_key < 13.0, "{per_key} bytes a key at {i} keys");
            sum += per_key;
            n += 1;
        }
    }
    let mean = sum / n as f64;
    assert!(mean < 11.0, "{mean} bytes a key on average");
}
