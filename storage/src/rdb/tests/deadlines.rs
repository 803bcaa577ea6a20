//! Hashes whose fields have deadlines.

use super::*;
use crate::entry::time::Deadline;

/// A hash of so many fields, with names of so many bytes or more, of which every third has no deadline.
pub fn put_hash(n: u64, len: usize) -> impl FnOnce(&mut Shard, &Key<'_>) {
    move |shard, key| {
        let mut hash = shard.value_or_create::<HashType>(key, Event::Made).unwrap();
        for (text, nth) in texts(n as usize, len).iter().zip(0..) {
            let deadline = Deadline::at(NOW.0 + 1000 * (n - nth));
            hash.set(text, b"12", if nth % 3 == 2 { Expiry::Clear } else { Expiry::At(deadline) });
        }
    }
}

fn version_of(payload: &[u8]) -> u8 {
    payload[payload.len() - FOOTER_BYTES]
}

#[test]
fn fields_keep_their_deadlines() {
    let mut world = World::new();
    for n in [1, 2, 3, 512, 513, 2000] {
        for len in [1, 64, 65] {
            let payload = world.assert_comes_back(put_hash(n, len));
            let is_packed = n <= 512 && len <= 64;
            let expected = if is_packed { types::HASH_TRIPLES } else { types::HASH_WITH_DEADLINES };
            assert_eq!((payload[0], version_of(&payload)), (expected, 12));
        }
    }
}

/// A hash that has had deadlines can be read by who knows of none.
#[test]
fn without_deadlines_the_version_is_the_older_one() {
    let mut world = World::new();
    let key = world.key();
    put_hash(1, 1)(&mut world.shard, &key);
    let mut hash = world.shard.value_or_create::<HashType>(&key, Event::Made).unwrap();
    hash.set_field_deadline(b"0-", None);
    drop(hash);
    let payload = dump(world.shard.read(&key).unwrap(), NOW);
    assert_eq!((payload[0], version_of(&payload)), (types::HASH, 10));
    assert_eq!(contents(world.restore(&payload).unwrap().as_ref()).len(), 1);
}

#[test]
fn what_has_expired_is_neither_written_nor_read() {
    let mut world = World::new();
    let key = world.key();
    put_hash(4, 1)(&mut world.shard, &key);
    let entry = world.shard.take(&key, Event::Del).unwrap();
    let whole = dump(entry.as_ref(), NOW);
    let later = |ms| Millis(NOW.0 + ms);
    let n_fields = |payload: &[u8], now| {
        let entry = restore(payload, &key, &world.keyspace, now, Checksums::Compared).expect("it is read");
        entry.map(|entry| ValueRef::<HashType>::of(entry.as_ref(), Millis(0)).unwrap().len())
    };
    for (ms, n) in [(0, 4), (1000, 4), (1001, 3), (3001, 2), (4001, 1)] {
        assert_eq!(n_fields(&whole, later(ms)), Some(n));
        assert_eq!(n_fields(&dump(entry.as_ref(), later(ms)), NOW), Some(n));
    }
    put_hash(2, 1)(&mut world.shard, &key);
    let mortal = dump(world.shard.read(&key).unwrap(), NOW);
    assert_eq!(n_fields(&mortal, later(2001)), None);
}

#[test]
fn whether_expiry_has_come_by_cannot_be_told() {
    let mut world = World::new();
    let key = world.key();
    put_hash(4, 1)(&mut world.shard, &key);
    let now = Millis(NOW.0 + 3001);
    world.shard.begin(Db(0), now);
    let before = dump(world.shard.peek(&key).unwrap(), now);
    assert_eq!(world.shard.value_mut::<HashType>(&key, Event::Made).unwrap().unwrap().expire(9), 2);
    assert_eq!(dump(world.shard.peek(&key).unwrap(), now), before);
    assert_eq!(before[0], types::HASH_TRIPLES);
}

/// A listpack of `f v` and a deadline of one byte, as a string.
fn triple(deadline: u8) -> [u8; 16] {
    let mut triple = *b"\x0f\x0f\0\0\0\x03\0\x81f\x02\x81v\x02\x07\x01\xff";
    triple[13] = deadline;
    triple
}

#[test]
fn early_types_are_read() {
    let world = World::new();
    let deadline = |value_type, value: &[u8]| {
        let entry = restore(
            &payload(value_type, value),
            &world.key(),
            &world.keyspace,
            Millis(5),
            Checksums::Compared,
        );
        let entry = entry.ok()?.expect("it has not expired");
        let hash = ValueRef::<HashType>::of(entry.as_ref(), Millis(5)).unwrap();
        Some(hash.field(b"f").unwrap().deadline.map_or(0, |deadline| deadline.0.0))
    };
    let eight = b"\x08\0\0\0\0\0\0\0";
    assert_eq!(deadline(types::HASH_WITH_DEADLINES_EARLY, b"\x01\x07\x01f\x01v"), Some(7));
    assert_eq!(deadline(types::HASH_WITH_DEADLINES_EARLY, b"\x01\0\x01f\x01v"), Some(0));
    assert_eq!(deadline(types::HASH_TRIPLES_EARLY, &triple(7)), Some(7));
    assert_eq!(deadline(types::HASH_TRIPLES, &[&eight[..], &triple(7)].concat()), Some(7));
    assert_eq!(deadline(types::HASH_WITH_DEADLINES, b"\x08\0\0\0\0\0\0\0\x01\x03\x01f\x01v"), Some(10));
    for (value_type, value) in [
        // Too late, and later than all numbers.
        (types::HASH_WITH_DEADLINES_EARLY, &b"\x01\x81\0\x01\0\0\0\0\0\0\x01f\x01v"[..]),
        (types::HASH_WITH_DEADLINES, b"\xff\xff\xff\xff\xff\xff\xff\xff\x01\x03\x01f\x01v"),
        // Twice the same field, and none.
        (types::HASH_WITH_DEADLINES, b"\x08\0\0\0\0\0\0\0\x02\x03\x01f\x01v\x03\x01f\x01v"),
        (types::HASH_WITH_DEADLINES, b"\x08\0\0\0\0\0\0\0\0"),
        // A negative deadline, one that is a text, and none.
        (types::HASH_TRIPLES_EARLY, b"\x10\x10\0\0\0\x03\0\x81f\x02\x81v\x02\xdf\xff\x02\xff"),
        (types::HASH_TRIPLES_EARLY, b"\x10\x10\0\0\0\x03\0\x81f\x02\x81v\x02\x81x\x02\xff"),
        (types::HASH_TRIPLES_EARLY, b"\x0d\x0d\0\0\0\x02\0\x81f\x02\x81v\x02\xff"),
    ] {
        assert_eq!(deadline(value_type, value), None, "{value_type} {value:?}");
    }
}
