//! Whole files: written, read, cut off and damaged.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::{self, Read},
};

use super::{
    file::{
        FileError, Item, Problem, RawEntry, Recency, SnapshotOptions, SnapshotReader, SnapshotWriter,
        encode_entry,
    },
    *,
};
use crate::{
    entry::time::Deadline,
    types::{
        digest::Digest,
        hashes::HashType,
        kinds::digest_of,
        packed::Element,
        stream::{NewId, StreamId, StreamType},
        value::ValueRef,
    },
};

const PLAIN: SnapshotOptions = SnapshotOptions {
    format: WriteFormat::Auto,
    has_field_deadlines: false,
    checksum: true,
    compress: false,
};

/// Entries of all types and encodings, by keys, of which every third has a deadline.
fn entries(world: &mut World) -> Vec<EntryBox> {
    let integers: Vec<_> = (0..6).map(|i| (i * 77_777).to_string().into_bytes()).collect();
    let (few, many) = (texts(5, 30), texts(600, 30));
    let key = world.key();
    let mut made = Vec::new();
    let mut make = |make: &mut dyn FnMut(&mut Shard, &Key<'_>)| {
        make(&mut world.shard, &key);
        let entry = world.shard.take(&key, Event::Del).expect("a value was made");
        let nth = made.len();
        let mut entry = entry.with_key(format!("{}-{nth}", "key".repeat(nth)).as_bytes());
        if nth.is_multiple_of(3) {
            entry.set_deadline(Some(Deadline::at(NOW.0 + nth as u64)));
        }
        made.push(entry);
    };
    for text in [&b""[..], b"12", b"-70000", b"a text", &[b'x'; 3000]] {
        make(&mut |shard, key| put_string(text)(shard, key));
    }
    for texts in [&few, &many, &integers] {
        make(&mut |shard, key| put_list(texts)(shard, key));
        make(&mut |shard, key| put_set(texts)(shard, key));
        make(&mut |shard, key| put_hash(texts)(shard, key));
        make(&mut |shard, key| put_sorted_set(texts)(shard, key));
    }
    make(&mut |shard, key| put_list(&self::texts(3, 10_000))(shard, key));
    make(&mut |shard, key| streams::put_stream(6)(shard, key));
    make(&mut |shard, key| deadlines::put_hash(5, 3)(shard, key));
    make(&mut |shard, key| deadlines::put_hash(5, 70)(shard, key));
    made
}

/// A file with these entries, half of them in each of two databases, and all else that may be in one.
fn file(entries: &[EntryBox], options: SnapshotOptions, recency: Option<Recency>) -> Vec<u8> {
    let mut writer = SnapshotWriter::new(Vec::new(), options);
    writer.aux(b"redis-ver", b"7.0.15").unwrap();
    writer.aux(b"ctime", b"1700000000").unwrap();
    writer.write_library(b"#!lua name=a\n").unwrap();
    for (db, entries) in entries.chunks(entries.len().div_ceil(2)).enumerate() {
        writer.select(Db(3 * db as u32)).unwrap();
        writer.sizes(entries.len() as u64, 1).unwrap();
        let mut encoded = Vec::new();
        for entry in entries {
            assert!(encode_entry(&mut encoded, entry.as_ref(), recency, NOW));
        }
        writer.entries(&encoded).unwrap();
    }
    let announced = writer.n_bytes() + 9;
    let (bytes, n_bytes) = writer.finish().unwrap();
    assert_eq!((n_bytes, announced), (bytes.len() as u64, n_bytes));
    bytes
}

/// The attributes of an entry, and its fingerprint.
pub(super) type Known = (u64, Digest, Option<Deadline>, Option<Recency>);

/// The contents of a file, with all values built.
#[derive(Debug, Default, PartialEq)]
pub(super) struct FileContents {
    pub entries: BTreeMap<Vec<u8>, Known>,
    pub others: Vec<String>,
}

fn read(keyspace: &Keyspace, source: impl Read, total: Option<u64>) -> Result<FileContents, FileError> {
    let mut reader = SnapshotReader::new(source, total, true)?;
    let (mut contents, mut db) = (FileContents::default(), 0);
    loop {
        match reader.next_item()? {
            Item::Select(selected) => db = selected,
            Item::Entry(raw) => {
                let wrong =
                    |found| FileError { offset: raw.offset, key: None, problem: Problem::Value(found) };
                let Some(entry) = raw.build(keyspace, NOW, None).map_err(wrong)?.into_entry() else {
                    continue;
                };
                assert_eq!(entry.as_ref().deadline(), raw.deadline);
                let known = (db, digest_of(entry.as_ref(), NOW), raw.deadline, raw.recency);
                contents.entries.insert(raw.key.to_vec(), known);
            }
            Item::End { .. } => return Ok(contents),
            other => contents.others.push(format!("{other:?}")),
        }
    }
}

pub(super) fn read_all(keyspace: &Keyspace, bytes: &[u8]) -> Result<FileContents, FileError> {
    read(keyspace, bytes, Some(bytes.len() as u64))
}

/// Gives one byte at a time.
struct Trickle<'a>(&'a [u8]);

impl Read for Trickle<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let n = out.len().min(1);
        self.0.read(&mut out[..n])
    }
}

#[test]
fn what_is_written_is_read() {
    let mut world = World::new();
    let entries = entries(&mut world);
    for recency in [None, Some(Recency::Idle(70)), Some(Recency::Frequency(200))] {
        for bits in 0..4 {
            let (checksum, compress) = (bits & 1 > 0, bits & 2 > 0);
            let bytes = file(
                &entries,
                SnapshotOptions { has_field_deadlines: true, checksum, compress, ..PLAIN },
                recency,
            );
            let contents = read_all(&world.keyspace, &bytes).unwrap();
            assert_eq!(contents.entries.len(), entries.len());
            for (entry, nth) in entries.iter().zip(0..) {
                let entry = entry.as_ref();
                let db = if nth < entries.len().div_ceil(2) { 0 } else { 3 };
                let expected = (db, digest_of(entry, NOW), entry.deadline(), recency);
                assert_eq!(contents.entries[entry.key()], expected);
            }
            assert_eq!(contents.others.len(), 5);
            assert_eq!(read(&world.keyspace, Trickle(&bytes), None).unwrap(), contents);
        }
    }
}

#[test]
fn compressed_files_are_shorter_and_written_in_pieces() {
    let mut world = World::new();
    let mut entries = entries(&mut world);
    let compressed = |entries: &[EntryBox], compress| {
        file(entries, SnapshotOptions { has_field_deadlines: true, compress, ..PLAIN }, None)
    };
    assert!(compressed(&entries, true).len() * 2 < compressed(&entries, false).len());
    // More than is written at once, and a value that is longer than that by itself.
    for nth in 0..20 {
        entries
            .push(EntryBox::string(format!("long {nth}").as_bytes(), &vec![b'a' + nth; 50_000 << (nth / 3)]));
    }
    let expected = read_all(&world.keyspace, &compressed(&entries, false)).unwrap();
    assert_eq!(expected.entries.len(), entries.len());
    assert_eq!(read_all(&world.keyspace, &compressed(&entries, true)).unwrap(), expected);
}

#[test]
fn the_version_is_the_oldest_that_will_do() {
    let header = |has_field_deadlines| {
        let bytes =
            file(&[EntryBox::string(b"k", b"v")], SnapshotOptions { has_field_deadlines, ..PLAIN }, None);
        String::from_utf8(bytes[..9].to_vec()).unwrap()
    };
    assert_eq!([header(false), header(true)], ["REDIS0010", "REDIS0012"]);
}

#[test]
fn a_hash_of_which_all_has_expired_is_not_written() {
    let mut world = World::new();
    let key = world.key();
    deadlines::put_hash(2, 1)(&mut world.shard, &key);
    let entry = world.shard.take(&key, Event::Del).unwrap();
    let mut out = Vec::new();
    assert!(!encode_entry(&mut out, entry.as_ref(), None, Millis(NOW.0 + 10_000)));
    assert!(out.is_empty());
}

/// A small file, in which each byte counts.
fn small_file(world: &mut World, compress: bool) -> Vec<u8> {
    let all = entries(world);
    let mut small: Vec<_> = all.into_iter().filter(|entry| entry.as_ref().allocated_bytes() < 700).collect();
    small.truncate(16);
    small.push(EntryBox::string(b"repeated", &[b'r'; 60]));
    file(&small, SnapshotOptions { has_field_deadlines: true, compress, ..PLAIN }, Some(Recency::Idle(70)))
}

#[test]
fn a_file_that_is_cut_off_anywhere_is_refused() {
    let mut world = World::new();
    for compress in [false, true] {
        let bytes = small_file(&mut world, compress);
        for len in 0..bytes.len() {
            for total in [Some(len as u64), None] {
                let error = read(&world.keyspace, &bytes[..len], total).unwrap_err();
                let is_told = match error.problem {
                    Problem::NotASnapshot => len < 9,
                    Problem::Ends => len >= 9,
                    _ => false,
                };
                assert!(is_told && error.offset <= len as u64, "cut off at {len}: {error}");
            }
        }
    }
}

/// The checksum finds faults that nothing else finds. Without one, the result may be wrong, and does no harm.
#[test]
fn a_file_with_a_wrong_byte_anywhere_is_refused() {
    let mut world = World::new();
    let bytes = small_file(&mut world, true);
    for at in 0..bytes.len() {
        for flip in [1, 2, 0x10, 0x40, 0x80, 0xff] {
            let mut wrong = bytes.clone();
            wrong[at] ^= flip;
            assert!(read_all(&world.keyspace, &wrong).is_err(), "byte {at} is wrong");
            // Its own version, so that the whole is looked at however it is damaged.
            let n = wrong.len();
            wrong[n - 8..].fill(0);
            if let Ok(contents) = read_all(&world.keyspace, &wrong) {
                assert!(contents.entries.len() <= 17);
            }
        }
    }
}

#[test]
fn checksums_are_compared_unless_there_is_none() {
    let world = World::new();
    let bytes = file(&[EntryBox::string(b"k", b"v")], PLAIN, None);
    let end = bytes.len() - 8;
    let is_checked = |bytes: &[u8], checks| {
        let mut reader = SnapshotReader::new(bytes, None, checks).unwrap();
        loop {
            match reader.next_item() {
                Ok(Item::End { is_checked }) => return Ok(is_checked),
                Ok(_) => {}
                Err(error) => return Err(error.offset),
            }
        }
    };
    assert_eq!(is_checked(&bytes, true), Ok(true));
    assert_eq!(is_checked(&bytes, false), Ok(false));
    let (mut wrong, mut none) = (bytes.clone(), bytes.clone());
    wrong[end] ^= 1;
    none[end..].fill(0);
    assert_eq!(is_checked(&wrong, true), Err(end as u64));
    assert_eq!(is_checked(&wrong, false), Ok(false));
    assert_eq!(is_checked(&none, true), Ok(false));
    // Before version 5 there was none.
    let old = [b"REDIS0004", &bytes[9..end]].concat();
    assert_eq!(is_checked(&[&old, &[0; 8][..]].concat(), true), Err(end as u64));
    assert_eq!(is_checked(&old, true), Ok(false));
    assert_eq!(read_all(&world.keyspace, &old).unwrap().entries.len(), 1);
}

/// A file of a version with these records, and no checksum.
fn of_records(version: &str, records: &[u8]) -> Vec<u8> {
    let end: &[u8] = if version < "0005" { b"\xff" } else { b"\xff\0\0\0\0\0\0\0\0" };
    [b"REDIS", version.as_bytes(), records, end].concat()
}

#[test]
fn what_is_wrong_is_told_in_words() {
    let world = World::new();
    let told = |bytes: &[u8]| read_all(&world.keyspace, bytes).unwrap_err().to_string();
    assert_eq!(
        told(b"*1\r\n$4\r\nPING\r\n"),
        "at byte 0: this is no RDB file: it does not begin with REDIS or VALKEY and a version"
    );
    assert_eq!(
        told(b"REDIS00+9"),
        "at byte 0: this is no RDB file: it does not begin with REDIS or VALKEY and a version"
    );
    for version in ["REDIS0000", "REDIS0081", "REDIS9999", "VALKEY000", "VALKEY079"] {
        let number: u16 = version.trim_start_matches(|c: char| c.is_ascii_alphabetic()).parse().unwrap();
        let at = version.len() - if version.starts_with('R') { 4 } else { 3 };
        assert_eq!(
            told(&[version.as_bytes(), b"\xff\0\0\0\0\0\0\0\0"].concat()),
            format!(
                "at byte {at}: the format's version is {number}; versions 1 to 79 of Redis, and from 80 on of Valkey, are read"
            )
        );
    }
    let of = |records: &[u8]| told(&of_records("0012", records));
    assert_eq!(
        of(b"\x07\x01k\x81\x20\x20\0\0\0\0\0\0"),
        "at byte 9, key 'k': it holds data of the module 'ICAAAAAAA', and modules are not supported: \
         'rdb-skip-module-data yes' leaves such data out"
    );
    assert_eq!(
        of(b"\xf7\x00\x02\x01\x05\x01a\x00"),
        "at byte 9: it holds data of the module 'AAAAAAAAA', and modules are not supported: \
         'rdb-skip-module-data yes' leaves such data out"
    );
    assert_eq!(
        of(b"\xf6\x01a\x01b\x00\x01c"),
        "at byte 9: functions of a release candidate of Redis 7.0 are not supported"
    );
    assert_eq!(
        of(b"\x22\x03k\n\x01"),
        "at byte 9, key 'k\\n\\x01': values of type 34 are not known to this version"
    );
    assert_eq!(of(b"\x00\x01k\xc4"), "at byte 9, key 'k': a length or string is not well formed");
    assert_eq!(of(b"\xfa\xc4"), "at byte 11: a length or string is not well formed");
    assert_eq!(
        of(b"\xfa\x20ab"),
        "at byte 11: the file ends in the middle of a record: it was cut off, or a length in it is wrong"
    );
}

#[test]
fn a_value_that_makes_no_sense_says_what_and_where() {
    let world = World::new();
    let told =
        |records: &[u8]| read_all(&world.keyspace, &of_records("0012", records)).unwrap_err().to_string();
    assert_eq!(
        told(b"\x00\x01a\x01v\x02\x01k\x02\x01m\x01m"),
        "at byte 14: the value is not well formed: Duplicate set members detected, at byte 3 of the value"
    );
    assert_eq!(
        told(b"\x10\x01k\x0a\x0a\0\0\0\x01\0\x81a\x02\xff"),
        "at byte 9: the value is not well formed: Hash listpack integrity check failed, at byte 0 of the value"
    );
}

/// Redis has written such values, and skips them when it loads a file.
#[test]
fn values_without_elements_are_known_for_what_they_are() {
    let world = World::new();
    let (listpack, ziplist) = (b"\x07\x07\0\0\0\0\0\xff", b"\x0b\x0b\0\0\0\x0a\0\0\0\0\0\xff");
    let of = |value_type: u8, value: &[u8]| {
        let raw = RawEntry {
            key: b"k".as_slice().into(),
            deadline: None,
            recency: None,
            value_type,
            value,
            apart: &[],
            is_part: false,
            n_left: 0,
            offset: 0,
        };
        matches!(raw.build(&world.keyspace, NOW, None), Ok(Made::Empty))
    };
    for value_type in [
        types::LIST,
        types::SET,
        types::HASH,
        types::SORTED_SET,
        types::LIST_OF_ZIPLISTS,
        types::LIST_OF_LISTPACKS,
    ] {
        assert!(of(value_type, b"\0"), "{value_type}");
    }
    for value_type in [types::HASH_LISTPACK, types::SORTED_SET_LISTPACK, types::SET_LISTPACK] {
        assert!(of(value_type, listpack), "{value_type}");
    }
    for value_type in [types::HASH_ZIPLIST, types::SORTED_SET_ZIPLIST, types::LIST_ZIPLIST] {
        assert!(of(value_type, ziplist), "{value_type}");
    }
    assert!(of(types::LIST_OF_ZIPLISTS, &[b"\x02", &ziplist[..], ziplist].concat()));
    assert!(!of(types::LIST, b"\x01\x01a"));
    // Values that are made after one are not harmed by it.
    assert!(read_all(&world.keyspace, &of_records("0012", b"\x02\x01e\0\x02\x01k\x01\x01m")).is_ok());
}

#[test]
fn records_of_all_versions_are_read() {
    let world = World::new();
    let read =
        |version: &str, records: &[u8]| read_all(&world.keyspace, &of_records(version, records)).unwrap();
    // A deadline in seconds, slots of a cluster, and modules with nothing to say.
    let contents = read("0012", b"\xfd\xff\xff\xff\xff\x00\x01k\x01v\xf4\x01\x02\x00\xf7\x00\x02\x01\x00");
    assert_eq!(contents.entries[&b"k"[..]].2, Some(Deadline::at(u64::from(u32::MAX) * 1000)));
    let module = r#"ModuleRecord { module: "AAAAAAAAA", is_empty: true }"#;
    assert_eq!(contents.others, ["Other", module]);
    assert_eq!(
        read("0080", b"\xfe\x09\xf9\x05\x00\x01k\x01v").entries[&b"k"[..]].3,
        Some(Recency::Frequency(5))
    );
    assert_eq!(read("0001", b"\x00\x01k\x01v").entries.len(), 1);
}

/// Whatever a file announces, no more is allocated than a few times its length.
#[test]
fn announced_lengths_are_not_believed() {
    let world = World::new();
    for records in [
        &b"\x00\x01k\x81\x00\xff\xff\xff\xff\xff\xff\xff"[..],
        b"\x00\x01k\x80\xff\xff\xff\xff",
        b"\x01\x01k\x81\xff\xff\xff\xff\xff\xff\xff\xff\x01a",
        b"\x00\x81\x7f\xff\xff\xff\xff\xff\xff\xff",
    ] {
        for total in [None, Some(40)] {
            let bytes = of_records("0010", records);
            let mut reader = SnapshotReader::new(&bytes[..], total, true).unwrap();
            let error = reader.next_item().map(|_| ()).unwrap_err();
            assert!(matches!(error.problem, Problem::Ends | Problem::Length), "{error}");
            assert!(reader.allocated_bytes() <= 4 << 20);
        }
    }
    let bomb = of_records("0010", b"\x00\x01k\xc3\x03\xbf\xff\xff\xff\xe0\xff\x00");
    assert!(matches!(read_all(&world.keyspace, &bomb), Err(FileError { .. })));
}

/// Bytes that no compression makes shorter.
fn noise(n: usize) -> Vec<u8> {
    let mut random = 1u64;
    let mut byte = || {
        random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (random >> 56) as u8
    };
    (0..n).map(|_| byte()).collect()
}

/// Entries that are, or have, very long strings: plain ones and such as are compressed.
fn long_entries(world: &mut World, plain: &[u8], repeating: &[u8]) -> Vec<EntryBox> {
    let key = world.key();
    let mut entries = Vec::new();
    let mut make = |name: &[u8], make: &mut dyn FnMut(&mut Shard, &Key<'_>)| {
        make(&mut world.shard, &key);
        entries.push(world.shard.take(&key, Event::Del).expect("a value was made").with_key(name));
    };
    let elements = [b"a".to_vec(), plain.to_vec(), b"b".to_vec(), repeating.to_vec(), plain[1..].to_vec()];
    make(b"string", &mut |shard, key| put_string(plain)(shard, key));
    make(b"before", &mut |shard, key| put_string(b"1")(shard, key));
    make(b"hash", &mut |shard, key| {
        let mut hash = shard.value_or_create::<HashType>(key, Event::Made).unwrap();
        hash.set(b"plain", plain, Expiry::Clear);
        hash.set(b"repeating", repeating, Expiry::Clear);
        hash.set(repeating, b"short", Expiry::Clear);
    });
    make(b"list", &mut |shard, key| put_list(&elements)(shard, key));
    make(b"set", &mut |shard, key| put_set(&elements)(shard, key));
    make(b"zset", &mut |shard, key| put_sorted_set(&elements)(shard, key));
    make(repeating, &mut |shard, key| put_string(repeating)(shard, key));
    make(b"last", &mut |shard, key| put_string(b"2")(shard, key));
    entries
}

/// Very long strings are read to places of their own, which entries take over, and all else of the file is as
/// it would be without.
#[test]
fn very_long_strings_are_read_to_their_place() {
    let mut world = World::new();
    let plain = noise((3 << 20) + 17);
    let repeating: Vec<u8> = (0..200_000u32).flat_map(|n| format!("{} and ", n / 3).into_bytes()).collect();
    let entries = long_entries(&mut world, &plain, &repeating);
    for compress in [false, true] {
        let bytes = file(&entries, SnapshotOptions { compress, ..PLAIN }, None);
        let total = Some(bytes.len() as u64);
        let (mut reader, mut n_apart) = (SnapshotReader::new(&bytes[..], total, true).unwrap(), 0);
        loop {
            let raw = match reader.next_item().unwrap() {
                Item::Entry(raw) => raw,
                Item::End { is_checked } => break assert!(is_checked),
                _ => continue,
            };
            n_apart += raw.apart.len();
            assert!(raw.value.len() < 1 << 20, "{} bytes", raw.value.len());
            let written =
                entries.iter().find(|entry| entry.as_ref().key() == &*raw.key).expect("it was written");
            let entry = raw.build(&world.keyspace, NOW, None).unwrap().into_entry().unwrap();
            assert!(digest_of(entry.as_ref(), NOW) == digest_of(written.as_ref(), NOW));
            // It is no copy.
            let places: Vec<_> = raw.apart.iter().map(|apart| apart.text.as_ptr()).collect();
            let kept: Vec<_> = match raw.kind().expect("it was built") {
                Kind::String => entry.as_ref().bytes().into_iter().map(<[u8]>::as_ptr).collect(),
                Kind::Hash => {
                    let hash = ValueRef::<HashType>::known(entry.as_ref(), NOW);
                    let texts = hash.iter().filter_map(|field| match field.value {
                        Element::Text(text) => Some(text.as_ptr()),
                        Element::Integer(_) => None,
                    });
                    texts.collect()
                }
                _ => continue,
            };
            assert!(raw.apart.is_empty() || kept.iter().any(|place| places.contains(place)));
            assert!(reader.allocated_bytes() <= 4 << 20);
        }
        assert_eq!(n_apart, 15);
        // Of a pipe it is not known how long it is.
        let known = read_all(&world.keyspace, &bytes).unwrap();
        assert!(read(&world.keyspace, &bytes[..], None).unwrap() == known);

        // The end is missing, and is not where the file's length says.
        for parts in [1, 3, 7] {
            let cut = &bytes[..bytes.len() / 8 * parts];
            for total in [total, Some(cut.len() as u64), None] {
                let error = read(&world.keyspace, cut, total).unwrap_err();
                assert!(matches!(error.problem, Problem::Ends), "{error}");
                assert!(error.offset <= cut.len() as u64, "{error}");
            }
        }
        let mut flipped = bytes.clone();
        flipped[1 << 20] ^= 1;
        assert!(matches!(
            read(&world.keyspace, &flipped[..], total),
            Err(FileError { problem: Problem::Checksum { .. }, .. })
        ));
    }
}

/// The fingerprints of values, by their keys.
type Digests = BTreeMap<Vec<u8>, Digest>;

/// Reads a file whose large values are divided. Returns the values' digests, and the keys with several parts.
fn read_divided(keyspace: &Keyspace, bytes: &[u8]) -> Result<(Digests, BTreeSet<Vec<u8>>), FileError> {
    let mut reader = SnapshotReader::new(bytes, Some(bytes.len() as u64), true)?;
    reader.divide();
    let (mut digests, mut divided, mut so_far) = (Digests::new(), BTreeSet::new(), None);
    loop {
        match reader.next_item()? {
            Item::Entry(raw) => {
                let wrong =
                    |found| FileError { offset: raw.offset, key: None, problem: Problem::Value(found) };
                if raw.is_part {
                    divided.insert(raw.key.to_vec());
                }
                match raw.build(keyspace, NOW, so_far.take()).map_err(wrong)? {
                    Made::Part(part) => so_far = Some(part),
                    Made::Entry(entry) => {
                        assert_eq!(entry.as_ref().deadline(), raw.deadline);
                        digests.insert(raw.key.to_vec(), digest_of(entry.as_ref(), NOW));
                    }
                    Made::Over | Made::Empty => panic!("there are elements"),
                }
                assert!(reader.allocated_bytes() <= 24 << 20, "{}", reader.allocated_bytes());
            }
            Item::End { is_checked } => {
                assert!(is_checked && so_far.is_none());
                assert_eq!(reader.offset(), bytes.len() as u64);
                return Ok((digests, divided));
            }
            _ => {}
        }
    }
}

/// Large values are built part by part, and are the same as from whole bytes. Long elements are among the
/// others.
#[test]
fn large_values_are_read_in_parts() {
    let mut world = World::new();
    let key = world.key();
    let mut elements = texts(60_000, 200);
    elements.insert(20_000, noise(1 << 20));
    elements.push(noise((1 << 20) + 1));
    let mut entries = Vec::new();
    let mut make = |make: &mut dyn FnMut(&mut Shard, &Key<'_>)| {
        make(&mut world.shard, &key);
        let entry = world.shard.take(&key, Event::Del).expect("a value was made");
        let mut entry = entry.with_key(format!("key {}", entries.len()).as_bytes());
        entry.set_deadline(entries.len().is_multiple_of(2).then(|| Deadline::at(NOW.0 + 1)));
        entries.push(entry);
    };
    make(&mut |shard, key| put_hash(&elements)(shard, key));
    make(&mut |shard, key| put_string(b"short")(shard, key));
    make(&mut |shard, key| put_list(&elements)(shard, key));
    make(&mut |shard, key| put_set(&elements)(shard, key));
    make(&mut |shard, key| put_sorted_set(&elements)(shard, key));
    make(&mut |shard, key| {
        deadlines::put_hash(1000, 70)(shard, key);
        let mut hash = shard.value_or_create::<HashType>(key, Event::Made).unwrap();
        for name in &elements {
            hash.set(name, b"value", Expiry::Keep);
        }
    });
    make(&mut |shard, key| {
        streams::put_stream(1000)(shard, key);
        let mut stream = shard.value_or_create::<StreamType>(key, Event::Made).unwrap();
        for (nth, text) in elements.iter().enumerate() {
            let fields = [&b"field"[..], text].into_iter();
            stream.add(NewId::Given(StreamId::new(2000 + nth as u64, 0)), fields).unwrap();
        }
    });
    for compress in [false, true] {
        let bytes = file(&entries, SnapshotOptions { compress, has_field_deadlines: true, ..PLAIN }, None);
        let (read, divided) = read_divided(&world.keyspace, &bytes).unwrap();
        assert!(compress || divided.len() == 6, "{divided:?}");
        for entry in &entries {
            assert!(read[entry.as_ref().key()] == digest_of(entry.as_ref(), NOW));
        }
        for eighth in 1..8 {
            let error = read_divided(&world.keyspace, &bytes[..bytes.len() / 8 * eighth]).unwrap_err();
            assert!(matches!(error.problem, Problem::Ends), "{error}");
        }
    }
    // An element is noticed that an earlier part has.
    let string = |text: &[u8]| [&b"\x80"[..], &(text.len() as u32).to_be_bytes(), text].concat();
    let members = elements.iter().chain(&elements[..1]).map(|member| string(member)).collect::<Vec<_>>();
    let count = [&b"\x80"[..], &(members.len() as u32).to_be_bytes()].concat();
    let records = [&b"\x02\x01k"[..], &count, &members.concat()].concat();
    let error = read_divided(&world.keyspace, &of_records("0010", &records)).unwrap_err();
    assert!(error.to_string().contains("Duplicate set members detected"), "{error}");
}

/// No file has the code of a string that stands apart, even where such strings are.
#[test]
fn the_placeholder_of_a_string_is_refused_in_a_file() {
    let world = World::new();
    let long = noise(1 << 20);
    let string = |text: &[u8]| [&b"\x80"[..], &(text.len() as u32).to_be_bytes(), text].concat();
    let placeholder = b"\xc4\0\0\0\0".to_vec();
    for elements in [
        [string(&long), placeholder.clone()],
        [placeholder.clone(), string(&long)],
        [placeholder.clone(), placeholder],
    ] {
        let records = [&b"\x01\x01k\x02"[..], &elements.concat()].concat();
        let error = read_all(&world.keyspace, &of_records("0010", &records)).unwrap_err();
        assert!(matches!(error.problem, Problem::Length), "{error}");
    }
}

/// A compressed one is decompressed to its place, and one that cannot be as long as it says is refused before
/// there is room for it.
#[test]
fn very_long_compressed_strings_come_to_their_place() {
    let world = World::new();
    let text: Vec<u8> = (0..200_000u32).flat_map(|n| format!("{} and ", n / 3).into_bytes()).collect();
    let entries = [EntryBox::string(b"long", &text)];
    let bytes = file(&entries, SnapshotOptions { compress: true, ..PLAIN }, None);
    assert!(bytes.len() < text.len() * 2 / 3 && text.len() > 1 << 20);
    let contents = read_all(&world.keyspace, &bytes).unwrap();
    let expected = (0, digest_of(entries[0].as_ref(), NOW), None, None);
    assert_eq!(contents.entries[&b"long"[..]], expected);
    assert!(lzf::decompress_blob(b"\x00a\xe0\xff\x00", 1 << 30).is_none());
}
