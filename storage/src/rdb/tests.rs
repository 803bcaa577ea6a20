//! Round trips, values from Redis, and payloads that lie.

mod compression;
mod deadlines;
mod dialects;
mod files;
mod streams;

use std::collections::BTreeMap;

use super::*;
use crate::{
    entry::{Kind, db::Db, time::Expiry},
    keyspace::shard::Shard,
    observers::event::Event,
    table::hash::{HashTags, KeyHasher, Router},
    types::{
        hashes::{Field, HashType},
        kinds::encoding_name,
        list::{ListEnd, ListType},
        set::SetType,
        sorted_set::{AddRule, SortedSetType},
        stream::StreamType,
        value::ValueRef,
    },
};

const NOW: Millis = Millis(1_700_000_000_000);

struct World {
    keyspace: Keyspace,
    shard: Shard,
}

impl World {
    fn new() -> Self {
        let router = Router::new(KeyHasher::with_key(3, 5), 0, HashTags::Honoured);
        let (keyspace, mut shards) = Keyspace::new(router, 1);
        let mut shard = shards.remove(0);
        shard.start();
        shard.begin(Db(0), NOW);
        World { keyspace, shard }
    }

    fn key(&self) -> Key<'static> {
        Key { bytes: b"key", routed: self.keyspace.router().route(b"key") }
    }

    fn restore(&self, payload: &[u8]) -> Result<EntryBox, Malformed> {
        let entry = restore(payload, &self.key(), &self.keyspace, NOW, Checksums::Compared)?;
        Ok(entry.expect("not all of it has expired"))
    }

    /// Makes a value, dumps it, restores it, and compares; returns the dump.
    fn assert_comes_back(&mut self, make: impl FnOnce(&mut Shard, &Key<'_>)) -> Vec<u8> {
        let key = self.key();
        make(&mut self.shard, &key);
        let entry = self.shard.take(&key, Event::Del).expect("a value was made");
        let payload = dump(entry.as_ref(), NOW);
        let back = self.restore(&payload).expect("what was dumped is restored");
        assert_eq!(back.as_ref().key(), b"key");
        assert_eq!(contents(back.as_ref()), contents(entry.as_ref()));
        // A list that is pushed at once may have become longer in one piece than a list restored as one.
        if entry.as_ref().kind() != Kind::List {
            assert_eq!(encoding_name(back.as_ref()), encoding_name(entry.as_ref()));
        }
        payload
    }
}

/// The contents of a value, in its order if it has one: texts with a number or another text.
fn contents(entry: EntryRef<'_>) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut held = match entry.kind() {
        Kind::String => vec![(entry.bytes().unwrap().to_vec(), Vec::new())],
        Kind::List => {
            let list = ValueRef::<ListType>::of(entry, NOW).unwrap();
            return list.elements_from(0).map(|element| (element.to_vec(), Vec::new())).collect();
        }
        Kind::Set => {
            let set = ValueRef::<SetType>::of(entry, NOW).unwrap();
            set.iter().map(|member| (member.to_vec(), Vec::new())).collect()
        }
        Kind::Hash => {
            let hash = ValueRef::<HashType>::of(entry, NOW).unwrap();
            let worth = |field: Field<'_>| {
                let deadline = field.deadline.map_or(0, |deadline| deadline.0.0);
                [&field.value.to_vec()[..], &deadline.to_le_bytes()].concat()
            };
            hash.iter().map(|field| (field.name.to_vec(), worth(field))).collect()
        }
        Kind::SortedSet => {
            let set = ValueRef::<SortedSetType>::of(entry, NOW).unwrap();
            let bytes = |score: f64| score.to_le_bytes().to_vec();
            return set.iter(0..set.len()).map(|s| (s.member.to_vec(), bytes(s.score()))).collect();
        }
        Kind::Stream => return streams::described(entry.object().unwrap()),
    };
    held.sort();
    held
}

fn texts(n: usize, len: usize) -> Vec<Vec<u8>> {
    let text = |i: usize| {
        let mut text = format!("{i}-").into_bytes();
        text.resize(len.max(text.len()), b'x');
        text
    };
    (0..n).map(text).collect()
}

fn put_list(texts: &[Vec<u8>]) -> impl FnOnce(&mut Shard, &Key<'_>) {
    |shard, key| {
        let mut list = shard.value_or_create::<ListType>(key, Event::Made).unwrap();
        list.push(ListEnd::Right, texts.iter().map(Vec::as_slice));
    }
}

fn put_set(texts: &[Vec<u8>]) -> impl FnOnce(&mut Shard, &Key<'_>) {
    |shard, key| {
        let mut set = shard.value_or_create::<SetType>(key, Event::Made).unwrap();
        texts.iter().for_each(|text| assert!(set.insert(text)));
    }
}

fn put_hash(texts: &[Vec<u8>]) -> impl FnOnce(&mut Shard, &Key<'_>) {
    move |shard, key| {
        let mut hash = shard.value_or_create::<HashType>(key, Event::Made).unwrap();
        for text in texts {
            hash.set(text, b"12", Expiry::Clear);
        }
    }
}

fn put_sorted_set(texts: &[Vec<u8>]) -> impl FnOnce(&mut Shard, &Key<'_>) {
    |shard, key| {
        let mut set = shard.value_or_create::<SortedSetType>(key, Event::Made).unwrap();
        let scores = [f64::NEG_INFINITY, -0.5, 0.0, 3.0, 1e300, f64::INFINITY];
        for (text, score) in texts.iter().zip(scores.into_iter().cycle()) {
            set.add(text, score, AddRule::default());
        }
    }
}

fn put_string(text: &[u8]) -> impl FnOnce(&mut Shard, &Key<'_>) {
    |shard, key| shard.put_string(key, text, Expiry::Clear, Event::Set)
}

#[test]
fn strings_come_back() {
    let mut world = World::new();
    let integers = [0, 127, 128, -128, -129, 32767, 32768, -32769, i64::from(i32::MAX), i64::from(i32::MIN)];
    let more = [i64::from(i32::MAX) + 1, i64::MAX, i64::MIN].map(|value| value.to_string());
    let texts = ["", "-0", "007", "+1", "a", "\0\r\n"].map(String::from);
    for text in integers.map(|value| value.to_string()).into_iter().chain(more).chain(texts) {
        world.assert_comes_back(put_string(text.as_bytes()));
    }
    for len in [63, 64, 1024, 1025, 16383, 16384, 100_000] {
        world.assert_comes_back(put_string(&vec![b'x'; len]));
    }
}

#[test]
fn collections_come_back_at_every_size() {
    let mut world = World::new();
    for n in [1, 2, 127, 128, 129, 511, 512, 513, 1000, 5000] {
        for len in [1, 64, 65] {
            let texts = texts(n, len);
            world.assert_comes_back(put_list(&texts));
            world.assert_comes_back(put_set(&texts));
            world.assert_comes_back(put_hash(&texts));
            world.assert_comes_back(put_sorted_set(&texts));
        }
        let integers: Vec<_> = (0..n as i64).map(|i| (i * 77_777).to_string().into_bytes()).collect();
        world.assert_comes_back(put_list(&integers));
        world.assert_comes_back(put_set(&integers));
        world.assert_comes_back(put_hash(&integers));
        world.assert_comes_back(put_sorted_set(&integers));
    }
    world.assert_comes_back(put_list(&texts(5, 10_000)));
}

/// A payload of the type and the value's bytes, with a footer that is right.
fn payload(value_type: u8, value: &[u8]) -> Vec<u8> {
    let mut out = vec![value_type];
    out.extend_from_slice(value);
    add_footer(&mut out, VERSION_OF_REDIS_7_0);
    out
}

fn ziplist(entries: &[&[u8]]) -> Vec<u8> {
    let mut body = Vec::new();
    let mut before = 0;
    for entry in entries {
        body.push(before as u8);
        body.extend_from_slice(entry);
        before = entry.len() + 1;
    }
    let total = body.len() + 11;
    let mut out = (total as u32).to_le_bytes().to_vec();
    out.extend_from_slice(&((total - 1 - before) as u32).to_le_bytes());
    out.extend_from_slice(&(entries.len() as u16).to_le_bytes());
    out.extend_from_slice(&body);
    out.push(0xff);
    let mut with_len = vec![out.len() as u8];
    with_len.extend_from_slice(&out);
    with_len
}

#[test]
fn older_types_are_read() {
    let world = World::new();
    let pairs = ziplist(&[b"\x01a", &[0xf2], b"\x01b", &[0xfe, 0xff], b"\x01c", &[0xf0, 0, 0, 0x80]]);
    let mut nodes = vec![1];
    nodes.extend_from_slice(&pairs);
    let held = |value_type, value: &[u8]| {
        let entry = world.restore(&payload(value_type, value)).expect("the type is read");
        contents(entry.as_ref()).into_iter().collect::<BTreeMap<_, _>>()
    };
    let list = held(types::LIST_ZIPLIST, &pairs);
    assert!(list.keys().eq([&b"-1"[..], b"-8388608", b"1", b"a", b"b", b"c"].iter()));
    assert_eq!(held(types::LIST_OF_ZIPLISTS, &nodes), list);
    assert_eq!(held(types::HASH_ZIPLIST, &pairs)[&b"c"[..]], b"-8388608\0\0\0\0\0\0\0\0");
    assert_eq!(held(types::SORTED_SET_ZIPLIST, &pairs)[&b"b"[..]], (-1f64).to_le_bytes());
    assert_eq!(
        held(types::SORTED_SET_OF_TEXTS, b"\x02\x01a\x031.5\x01b\xff")[&b"a"[..]],
        1.5f64.to_le_bytes()
    );
    // Redis 6 packs a negative zero as a text, and later versions leave it there.
    let zero = ziplist(&[b"\x01a", b"\x02-0"]);
    assert_eq!(held(types::SORTED_SET_ZIPLIST, &zero)[&b"a"[..]], (-0f64).to_le_bytes());
    // Written member by member it is packed anew, as an integer.
    assert_eq!(held(types::SORTED_SET_OF_TEXTS, b"\x01\x01a\x02-0")[&b"a"[..]], 0f64.to_le_bytes());
    assert_eq!(held(types::LIST, b"\x02\x01a\xc0\x05").len(), 2);
    let name = [b'c'; 254];
    let zipmap = [b"\x41\x0f\xfe\x01a\x01\x02bxx\xfe\xfe\0\0\0", &name[..], b"\x01\x00d\xff"].concat();
    assert!(held(types::HASH_ZIPMAP, &zipmap).keys().eq([&b"a"[..], &name].iter()));
    // Bytes after the value are left out.
    assert_eq!(held(types::STRING, b"\x01ab").len(), 1);
}

/// As in Redis since 7.2, a list in one piece within the limit is small, and pieces stay as they were.
#[test]
fn lists_come_back_piece_by_piece() {
    let world = World::new();
    let restored = |value_type, value: &[u8]| {
        let entry = world.restore(&payload(value_type, value)).expect("it is a list");
        let n_parts = ValueRef::<ListType>::of(entry.as_ref(), NOW).unwrap().parts().count();
        (encoding_name(entry.as_ref()), n_parts)
    };
    let packed = |texts: &[Vec<u8>]| {
        let mut packed = crate::types::packed::EMPTY.to_vec();
        texts.iter().for_each(|text| crate::types::packed::push(&mut packed, text));
        let mut out = Vec::new();
        writer::len(&mut out, codes::node::PACKED);
        writer::string(&mut out, &packed);
        out
    };
    let (small, empty) = (packed(&texts(3, 10)), packed(&[]));
    let pieces = |pieces: &[&[u8]]| [&[pieces.len() as u8], &pieces.concat()[..]].concat();
    let of_pieces = |parts: &[&[u8]]| restored(types::LIST_OF_LISTPACKS, &pieces(parts));
    assert_eq!(of_pieces(&[&small]), ("listpack", 1));
    assert_eq!(of_pieces(&[&empty, &small, &empty]), ("listpack", 1));
    assert_eq!(of_pieces(&[&small, &small]), ("quicklist", 2));
    assert_eq!(of_pieces(&[&packed(&texts(1, 8175))]), ("listpack", 1));
    assert_eq!(of_pieces(&[&packed(&texts(100, 100))]), ("quicklist", 1));
    // Twice as much as a piece may be, and more.
    assert_eq!(of_pieces(&[&packed(&texts(200, 100))]), ("quicklist", 3));
    assert_eq!(restored(types::LIST, b"\x02\x01a\x01b"), ("listpack", 1));
    assert_eq!(restored(types::LIST_ZIPLIST, &ziplist(&[b"\x01a"])), ("quicklist", 1));
}

#[test]
fn compressed_strings_are_read() {
    let world = World::new();
    let entry = world.restore(&payload(types::STRING, b"\xc3\x05\x0b\x00a\xe0\x01\x00")).unwrap();
    assert_eq!(entry.as_ref().bytes(), Some(&b"aaaaaaaaaaa"[..]));
    // More or less than announced, a start before the beginning, and ends in the middle.
    for value in [
        &b"\xc3\x05\x0a\x00a\xe0\x01\x00"[..],
        b"\xc3\x05\x0c\x00a\xe0\x01\x00",
        b"\xc3\x05\x0b\x00a\xe0\x01\x01",
        b"\xc3\x04\x0b\x00a\xe0\x01",
        b"\xc3\x02\x0b\x05a",
        b"\xc3\x05\x80\xff\xff\xff\xff\x00a\xe0\x01\x00",
    ] {
        let refused = world.restore(&payload(types::STRING, value)).err();
        assert_eq!(refused.map(|malformed| malformed.flaw), Some(Flaw::Part));
    }
}

#[test]
fn what_no_redis_writes_is_refused() {
    let world = World::new();
    let twice = Flaw::Twice("hash fields");
    let zipmap = Flaw::Packed("Zipmap");
    let unknown = |number| Flaw::Type(UnknownType { number, dialect: Dialect::Redis });
    for (value_type, value, flaw, at) in [
        (types::LIST, &b"\x00"[..], Flaw::Empty, 2),
        (types::SET, b"\x00", Flaw::Empty, 2),
        (types::SET, b"\x02\x01a\x01a", Flaw::Twice("set members"), 4),
        (types::HASH, b"\x02\x01a\x01b\x01a\x01c", twice, 10),
        (types::HASH, b"\x81\xff\xff\xff\xff\xff\xff\xff\xff\x01a\x01b", Flaw::Part, 14),
        (types::SORTED_SET, b"\x01\x01a\x00\x00\x00\x00\x00\x00\xf8\x7f", Flaw::NotANumber, 12),
        (types::SORTED_SET_OF_TEXTS, b"\x01\x01a\xfd", Flaw::Part, 5),
        (
            types::HASH_LISTPACK,
            b"\x0a\x0a\x00\x00\x00\x01\x00\x81a\x02\xff",
            Flaw::Packed("Hash listpack"),
            1,
        ),
        (types::SET_INTSET, b"\x08\x02\x00\x00\x00\x00\x00\x00\x00", Flaw::Packed("Intset"), 1),
        (
            types::SET_INTSET,
            b"\x0c\x02\x00\x00\x00\x02\x00\x00\x00\x02\x00\x01\x00",
            Flaw::Packed("Intset"),
            1,
        ),
        (types::LIST_OF_LISTPACKS, b"\x01\x03\x01a", Flaw::Part, 3),
        (types::STRING, b"\x80\xff\xff\xff\xffabc", Flaw::Part, 6),
        (types::STRING, b"\xc4\x01", Flaw::Part, 2),
        (types::LIST_OF_LISTPACKS, b"\x01\x01\x00", Flaw::Empty, 4),
        // A zipmap that miscounts, has a field twice, has no end, an end too early, or more room to spare
        // than there is.
        (types::HASH_ZIPMAP, b"\x07\x02\x01a\x01\x00b\xff", zipmap, 1),
        (types::HASH_ZIPMAP, b"\x0c\x02\x01a\x01\x00b\x01a\x01\x00c\xff", zipmap, 1),
        (types::HASH_ZIPMAP, b"\x06\x01\x01a\x01\x00b", zipmap, 1),
        (types::HASH_ZIPMAP, b"\x04\x01\x01a\xff", zipmap, 1),
        (types::HASH_ZIPMAP, b"\x07\x01\x01a\x01\x05b\xff", zipmap, 1),
        (types::HASH_ZIPMAP, b"\x02\x00\xff", zipmap, 1),
        // One with a length that is longer than it need be.
        (types::HASH_ZIPMAP, b"\x0b\x01\xfe\x01\0\0\0c\x01\x00d\xff", zipmap, 1),
        (8, b"\x01a", unknown(8), 1),
        (255, b"", unknown(255), 1),
        // The number that stands here for Valkey's hashes is none of a payload's.
        (types::HASH_OF_VALKEY, b"\x00", unknown(types::HASH_OF_VALKEY), 1),
    ] {
        let refused = world.restore(&payload(value_type, value)).err();
        assert_eq!(refused, Some(Malformed { at, flaw }), "{value_type} {value:?}");
    }
}

#[test]
fn footers_are_checked() {
    let world = World::new();
    let right = payload(types::STRING, b"\x01a");
    for at in 0..right.len() {
        let mut wrong = right.clone();
        wrong[at] ^= 1;
        for wrong in [&wrong, &right[..at]] {
            assert!(world.restore(wrong).err().is_some_and(|malformed| malformed.flaw.is_of_footer()));
        }
    }
    let versioned = |version: u16| {
        let mut out = right[..right.len() - FOOTER_BYTES].to_vec();
        out.extend_from_slice(&version.to_le_bytes());
        out.extend_from_slice(&CHECKSUM.checksum(&out).to_le_bytes());
        world.restore(&out).err()
    };
    let too_new = Some(Malformed { at: 3, flaw: Flaw::Version(1000) });
    assert_eq!([9, 10, 15, 80, 1000].map(versioned), [None, None, None, None, too_new]);
}

#[test]
fn a_checksum_that_is_ignored_may_be_any() {
    let world = World::new();
    let restore =
        |payload: &[u8]| restore(payload, &world.key(), &world.keyspace, NOW, Checksums::Ignored).err();
    let mut payload = payload(types::STRING, b"\x01a");
    let (right, at) = (payload.clone(), payload.len() - 1);
    payload[at] ^= 1;
    assert_eq!(restore(&payload), None);
    // All else is looked at as ever.
    payload[1] = 2;
    assert_eq!(restore(&payload), Some(Malformed { at: 2, flaw: Flaw::Part }));
    payload[at - 8] = 4;
    assert_eq!(restore(&payload).map(|malformed| malformed.flaw), Some(Flaw::Version(1034)));
    assert_eq!(restore(&right[..9]).map(|malformed| malformed.flaw), Some(Flaw::NoFooter));
}

/// There is an answer to any bytes, and an accepted value can be dumped again.
#[test]
fn no_cut_and_no_flip_panics() {
    let mut world = World::new();
    let (short, long, integers) =
        (texts(4, 6), texts(3, 70), [b"1".to_vec(), b"300".to_vec(), b"-70000".to_vec()]);
    let mut payloads = vec![payload(types::STRING, b"\xc3\x05\x0b\x00a\xe0\x01\x00")];
    payloads.push(payload(types::HASH_ZIPLIST, &ziplist(&[b"\x01a", &[0xf2], b"\x01b", &[0xfe, 0xff]])));
    payloads.push(world.assert_comes_back(streams::put_stream(6)));
    payloads.push(world.assert_comes_back(deadlines::put_hash(5, 3)));
    payloads.push(world.assert_comes_back(deadlines::put_hash(5, 70)));
    for texts in [&short[..], &long, &integers] {
        payloads.push(world.assert_comes_back(put_string(&texts[0])));
        payloads.push(world.assert_comes_back(put_list(texts)));
        payloads.push(world.assert_comes_back(put_set(texts)));
        payloads.push(world.assert_comes_back(put_hash(texts)));
        payloads.push(world.assert_comes_back(put_sorted_set(texts)));
    }
    payloads.push(dialects::hash_of_valkey(&[("a", 7), ("bc", -1), ("d", 300_000)]));
    payloads.push(payload(types::STREAM_5, &dialects::STREAM_WITH_PRODUCERS));
    for payload in payloads {
        let (value, footer) = payload.split_at(payload.len() - FOOTER_BYTES);
        let version = u16::from_le_bytes([footer[0], footer[1]]);
        let try_one = |mut value: Vec<u8>| {
            add_footer(&mut value, version);
            if let Ok(Some(entry)) = restore(&value, &world.key(), &world.keyspace, NOW, Checksums::Compared)
            {
                let back = world.restore(&dump(entry.as_ref(), NOW)).expect("what is dumped is restored");
                assert_eq!(contents(back.as_ref()), contents(entry.as_ref()));
            }
        };
        for at in 0..value.len() {
            try_one(value[..at].to_vec());
            for byte in 0..=255 {
                let mut value = value.to_vec();
                value[at] = byte;
                try_one(value);
            }
        }
    }
}
