//! The types and records that only one of Redis and Valkey has, and files of both.

use super::{
    file::{FileError, Item, SnapshotOptions, SnapshotReader, SnapshotWriter, encode_entry},
    files::read_all,
    *,
};
use crate::{
    entry::time::Deadline,
    types::stream::{Claimable, HandBack, HandBackMode, StreamId},
};

/// Small files with every type in two databases: deadlines of keys and fields, a stream with a group and
/// pending entries, and functions. The programs in their names have written them.
const FILES: [(&str, &[u8]); 3] = [
    ("redis-7", include_bytes!("files/redis-7.snapshot")),
    ("redis-8", include_bytes!("files/redis-8.snapshot")),
    ("valkey-9", include_bytes!("files/valkey-9.snapshot")),
];

/// The latest of the deadlines in these files, but for the number of the database.
const FAR: u64 = 4_102_444_800_000;

/// A stream without entries, of which Redis 8.8 says: one group with a consumer and nothing that was handed
/// back, and a producer with one entry.
pub const STREAM_WITH_PRODUCERS: [u8; 49] = *b"\x00\x00\x05\x00\x00\x00\x00\x00\x00\
\x01\x01g\x05\x00\x00\x00\x01\x01c\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x00\x00\
\x0a\x0b\x01\x01p\x01\x01i\x05\x00\x01\x02";

/// A payload of a hash as Valkey writes it.
pub fn hash_of_valkey(fields: &[(&str, i64)]) -> Vec<u8> {
    let mut out = vec![types::HASH_OF_VALKEY_STATED];
    writer::number_of(&mut out, fields.len());
    for (name, deadline) in fields {
        writer::string(&mut out, name.as_bytes());
        writer::string(&mut out, b"12");
        out.extend_from_slice(&deadline.to_le_bytes());
    }
    add_footer(&mut out, 80);
    out
}

#[test]
fn files_of_each_program_are_read() {
    let world = World::new();
    let mut held = Vec::new();
    for (name, bytes) in FILES {
        let contents = read_all(&world.keyspace, bytes).unwrap_or_else(|error| panic!("{name}: {error}"));
        let has_fields = name != "redis-7";
        assert_eq!(contents.entries.len(), if has_fields { 11 } else { 10 }, "{name}");
        // The last database hides the first, which has the same keys.
        assert_eq!(contents.entries[&b"mortal"[..]].2, Some(Deadline::at(FAR + 9)), "{name}");
        assert!(contents.others.iter().any(|other| other.starts_with("Library")), "{name}");
        held.push(contents.entries);
    }
    let [redis_7, redis_8, valkey_9] = &held[..] else { unreachable!("there are three files") };
    let is_same = |key: &[u8]| redis_8[key].1 == valkey_9[key].1;
    assert!(redis_8.keys().all(|key| is_same(key)));
    assert!(redis_7.iter().all(|(key, known)| redis_8[key].1 == known.1));
}

/// The file has a checksum, so a wrong byte is found wherever it is.
#[test]
fn a_file_of_valkey_with_a_wrong_byte_or_cut_off_is_refused() {
    let world = World::new();
    let bytes = FILES[2].1;
    for at in 0..bytes.len() {
        assert!(read_all(&world.keyspace, &bytes[..at]).is_err(), "cut off at {at}");
        for flip in [1, 2, 0x10, 0x40, 0x80, 0xff] {
            let mut wrong = bytes.to_vec();
            wrong[at] ^= flip;
            assert!(read_all(&world.keyspace, &wrong).is_err(), "byte {at} is wrong");
            // Without a checksum, the result may be wrong, and does no harm.
            let n = wrong.len();
            wrong[n - 8..].fill(0);
            let _ = read_all(&world.keyspace, &wrong);
        }
    }
}

#[test]
fn hashes_of_valkey_have_deadlines_of_fields() {
    let world = World::new();
    let restored = |fields: &[(&str, i64)]| world.restore(&hash_of_valkey(fields));
    let entry = restored(&[("a", FAR as i64), ("b", -1), ("gone", 5)]).unwrap();
    let of = |deadline: u64| [&b"12"[..], &deadline.to_le_bytes()].concat();
    assert_eq!(contents(entry.as_ref()), [(b"a".to_vec(), of(FAR)), (b"b".to_vec(), of(0))]);
    let flaw = |fields: &[(&str, i64)]| restored(fields).err().map(|malformed| malformed.flaw);
    assert_eq!(flaw(&[("a", 7), ("a", 8)]), Some(Flaw::Twice("hash fields")));
    for wrong in [-2, i64::MIN, 1 << 48] {
        assert_eq!(flaw(&[("a", wrong)]), Some(Flaw::Deadline));
    }
    // The number means something else to Redis.
    let mut redis = hash_of_valkey(&[("a", 2000)]);
    redis.truncate(redis.len() - FOOTER_BYTES);
    add_footer(&mut redis, 12);
    assert!(world.restore(&redis).is_err());
    // Types of Redis that Valkey lacks.
    let mut valkey = vec![types::HASH_TRIPLES, 0];
    add_footer(&mut valkey, 80);
    let refused = world.restore(&valkey).unwrap_err().to_string();
    assert_eq!(refused, "values of type 25 of Valkey are not known to this version, at byte 1");
}

/// A file of these records, without a checksum.
fn of_records(head: &str, records: &[u8]) -> Vec<u8> {
    [head.as_bytes(), records, b"\xff\0\0\0\0\0\0\0\0"].concat()
}

/// Reads a file and passes over data of modules.
fn skip_modules(bytes: &[u8]) -> Result<(Vec<String>, u64), FileError> {
    let mut reader = SnapshotReader::new(bytes, Some(bytes.len() as u64), true)?;
    reader.skip_modules();
    let mut items = Vec::new();
    loop {
        match reader.next_item()? {
            Item::End { .. } => return Ok((items, reader.n_metadata())),
            Item::Entry(raw) => items.push(raw.key.escape_ascii().to_string()),
            item => items.push(format!("{item:?}")),
        }
    }
}

#[test]
fn slots_that_arrive_are_read_over_in_files_of_valkey() {
    let world = World::new();
    let job = [b"\xf3\x28", &[b'j'; 40][..], b"\x02\x00\x05\x40\x64\x40\xc8\x00\x01k\x01v"].concat();
    let contents = read_all(&world.keyspace, &of_records("VALKEY080", &job)).unwrap();
    assert_eq!((contents.entries.len(), &contents.others[..]), (1, &["Other".to_owned()][..]));
    let told = read_all(&world.keyspace, &of_records("VALKEY090", b"\x19\x01k\x01v")).unwrap_err();
    assert_eq!(
        told.to_string(),
        "at byte 9, key 'k': values of type 25 of Valkey are not known to this version"
    );
}

#[test]
fn later_versions_of_redis_are_read_by_type() {
    let world = World::new();
    let read = |records: &[u8]| read_all(&world.keyspace, &of_records("REDIS0015", records));
    let told = |records: &[u8]| read(records).unwrap_err().to_string();
    assert_eq!(
        told(b"\x1c\x01k\x01"),
        "at byte 9, key 'k': values of type 28 (arrays of Redis 8.8) are not supported"
    );
    assert_eq!(
        told(b"\x21\x01k\x01"),
        "at byte 9, key 'k': values of type 33 (rate limiters of Redis 8.8) are not supported"
    );
    let mut stream = [b"\x1b\x01s", &STREAM_WITH_PRODUCERS[..]].concat();
    assert_eq!(read(&stream).unwrap().entries.len(), 1);
    // One pending entry that was handed back, and so has no consumer.
    let id = [0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0];
    let group = [&b"\x01"[..], &id, &[0; 8], b"\x01\x00\x01", &id].concat();
    stream.splice(18..40, group);
    assert_eq!(read(&stream).unwrap().entries.len(), 1);
    // One that was handed back and is not pending.
    stream[61] ^= 1;
    let refused = told(&stream);
    assert!(refused.contains("is not pending without a consumer"), "{refused}");
}

#[test]
fn hashes_of_templates_are_read_as_hashes() {
    let world = World::new();
    let read = |records: &[u8]| read_all(&world.keyspace, &of_records("REDIS0015", records));
    let template = b"\xf2\x07\x02\x01a\x02bc";
    let packed = {
        let mut packed = crate::types::packed::EMPTY.to_vec();
        ["7", "12", "text"].iter().for_each(|text| crate::types::packed::push(&mut packed, text.as_bytes()));
        packed
    };
    let mut records = template.to_vec();
    records.extend_from_slice(b"\x20\x01k\x07\xc0\x0c\x04text");
    records.extend_from_slice(&[b"\x1e\x01p", &[packed.len() as u8][..], &packed].concat());
    records.extend_from_slice(b"\x1f\x01s\x02\x01a\xc0\x0c\x02bc\x04text");
    records.extend_from_slice(b"\x04\x01h\x02\x01a\xc0\x0c\x02bc\x04text");
    let held = read(&records).unwrap().entries;
    assert_eq!(held.len(), 4);
    assert!(held.values().all(|known| known.1 == held[&b"h"[..]].1));
    assert_eq!(
        read(b"\x20\x01k\x07\xc0\x0c").unwrap_err().to_string(),
        "at byte 9, key 'k': the hash refers to template 7, which does not stand before it"
    );
    // One value is missing.
    records[template.len() + 3] = 8;
    assert!(read(&records).is_err());
}

#[test]
fn data_of_modules_is_refused_or_passed_over() {
    let world = World::new();
    // A record with numbers only, one with a text, a value, and a key with metadata.
    let empty = b"\xf7\x01\x02\x02\x02\x00\x02\x05\x00";
    let record = b"\xf7\x01\x02\x02\x05\x04name\x03\0\0\0\0\x00";
    let value = b"\x07\x01m\x01\x01\x05\x04\0\0\0\0\0\0\0\0\x05\x02ab\x00";
    let metadata = b"\xf3\x01\0\0\0\0\x02\x07\x00\x00\x01k\x01v";
    let all = of_records("REDIS0013", &[&empty[..], record, value, metadata].concat());
    let (items, n_metadata) = skip_modules(&all).unwrap();
    assert_eq!(
        items,
        [
            r#"ModuleRecord { module: "AAAAAAAAA", is_empty: true }"#,
            r#"ModuleRecord { module: "AAAAAAAAA", is_empty: false }"#,
            r#"ModuleValue { key: [109], module: "AAAAAAAAA" }"#,
            "k"
        ]
    );
    assert_eq!(n_metadata, 1);
    for (records, told) in [
        (&record[..], "at byte 9: it holds data of the module 'AAAAAAAAA'"),
        (value, "at byte 9, key 'm': it holds data of the module 'AAAAAAAAA'"),
        (metadata, "at byte 9, key 'k': it has metadata of modules"),
    ] {
        let refused = read_all(&world.keyspace, &of_records("REDIS0013", records)).unwrap_err().to_string();
        assert!(refused.starts_with(told), "{refused}");
    }
    // Cut off or of a form that is not known, it is refused in any case.
    for len in 0..value.len() {
        assert!(skip_modules(&[b"REDIS0013", &value[..len]].concat()).is_err(), "cut off at {len}");
    }
    assert!(skip_modules(&of_records("REDIS0013", b"\x07\x01m\x01\x06\x00")).is_err());
    let early = skip_modules(&of_records("REDIS0008", b"\x06\x01m\x01\x00")).unwrap_err().to_string();
    assert!(early.contains("in the form before Redis 4.0"), "{early}");
}

/// The type and the version of what DUMP gives of a value in a format.
fn dumped(entry: &EntryBox, format: WriteFormat) -> Result<(u8, u16), String> {
    let payload = dump_in(format, entry.as_ref(), NOW).map_err(|why| why.to_string())?;
    let version = u16::from_le_bytes([payload[payload.len() - 10], payload[payload.len() - 9]]);
    Ok((payload[0], version))
}

#[test]
fn values_are_written_in_each_format() {
    let mut world = World::new();
    let key = world.key();
    for (n, len, redis) in [
        (3, 1, types::HASH_TRIPLES),
        (700, 1, types::HASH_WITH_DEADLINES),
        (3, 70, types::HASH_WITH_DEADLINES),
    ] {
        deadlines::put_hash(n, len)(&mut world.shard, &key);
        let entry = world.shard.take(&key, Event::Del).unwrap();
        assert_eq!(dumped(&entry, WriteFormat::Auto), Ok((redis, 12)));
        assert_eq!(dumped(&entry, WriteFormat::Redis74), Ok((redis, 12)));
        assert_eq!(dumped(&entry, WriteFormat::Valkey9), Ok((types::HASH_OF_VALKEY_STATED, 80)));
        assert_eq!(
            dumped(&entry, WriteFormat::Redis70).unwrap_err(),
            "fields of the hash have deadlines, which the format redis-7.0 cannot hold"
        );
        let payload = dump_in(WriteFormat::Valkey9, entry.as_ref(), NOW).unwrap();
        assert_eq!(contents(world.restore(&payload).unwrap().as_ref()), contents(entry.as_ref()));
    }
    let text = EntryBox::string(b"k", b"v");
    let versions = WriteFormat::NAMED.map(|(_, format)| dumped(&text, format).unwrap());
    assert_eq!(versions, [(0, 10), (0, 10), (0, 12), (0, 80)]);
}

/// Only Redis 8.8 has pending entries without a consumer.
#[test]
fn entries_that_were_handed_back_are_written_as_by_redis_8_8_or_refused() {
    let mut world = World::new();
    let key = world.key();
    streams::put_stream(3)(&mut world.shard, &key);
    let handed_back = |shard: &mut Shard| {
        let mut stream = shard.value_mut::<StreamType>(&key, Event::Claimed).unwrap().unwrap();
        let id = stream.stream().entries().last_id();
        stream.create_group(b"handed back to", StreamId::MIN, None);
        let hand_back = HandBack {
            group: b"handed back to",
            mode: HandBackMode::Fatal,
            n_deliveries: None,
            claimable: Claimable::Any,
        };
        assert_eq!(stream.hand_back(&hand_back, &[id]), 1);
    };
    handed_back(&mut world.shard);
    let entry = world.shard.take(&key, Event::Del).unwrap();
    assert_eq!(dumped(&entry, WriteFormat::Auto), Ok((types::STREAM_5, 14)));
    for format in [WriteFormat::Redis70, WriteFormat::Redis74, WriteFormat::Valkey9] {
        let refused = dumped(&entry, format).unwrap_err();
        assert!(
            refused.contains("(XNACK), which the format") && refused.contains(format.name()),
            "{refused}"
        );
    }
    let payload = dump_in(WriteFormat::Auto, entry.as_ref(), NOW).unwrap();
    let restored = world.restore(&payload).unwrap();
    assert_eq!(contents(restored.as_ref()), contents(entry.as_ref()));
    assert_eq!(dump_in(WriteFormat::Auto, restored.as_ref(), NOW).unwrap(), payload);
}

/// Converts a file as `--convert-rdb` does.
fn converted(bytes: &[u8], format: WriteFormat) -> Result<Vec<u8>, String> {
    let mut reader = SnapshotReader::new(bytes, Some(bytes.len() as u64), true).unwrap();
    reader.divide();
    reader.keep_long();
    let options = SnapshotOptions { format, has_field_deadlines: true, checksum: true, compress: true };
    let mut writer = SnapshotWriter::new(Vec::new(), options);
    loop {
        match reader.next_item().map_err(|error| error.to_string())? {
            Item::End { .. } => return Ok(writer.finish().unwrap().0),
            Item::Entry(raw) => writer.converted(&raw).map_err(|error| error.to_string())?,
            Item::Select(db) => writer.select(Db(db as u32)).unwrap(),
            Item::Library(code) => writer.write_library(&code).unwrap(),
            _ => {}
        }
    }
}

#[test]
fn files_are_converted_into_each_format() {
    let world = World::new();
    for (name, bytes) in FILES {
        let before = read_all(&world.keyspace, bytes).unwrap().entries;
        for (format, magic) in [(WriteFormat::Redis74, "REDIS0012"), (WriteFormat::Valkey9, "VALKEY080")] {
            let there = converted(bytes, format).unwrap();
            assert!(there.starts_with(magic.as_bytes()));
            assert_eq!(read_all(&world.keyspace, &there).unwrap().entries, before, "{name} {magic}");
            // And back again.
            let back = converted(&there, WriteFormat::Redis74).unwrap();
            assert_eq!(read_all(&world.keyspace, &back).unwrap().entries, before, "{name} {magic}");
        }
        let old = converted(bytes, WriteFormat::Redis70);
        if name == "redis-7" {
            assert_eq!(read_all(&world.keyspace, &old.unwrap()).unwrap().entries, before);
        } else {
            let told = old.unwrap_err();
            assert!(told.contains("deadlines, which the format redis-7.0 cannot hold"), "{told}");
        }
    }
}

/// Values that are read in parts become one value again.
#[test]
fn large_values_are_converted_in_parts() {
    let mut world = World::new();
    let key = world.key();
    let mut writer = SnapshotWriter::new(
        Vec::new(),
        SnapshotOptions {
            format: WriteFormat::Auto,
            has_field_deadlines: true,
            checksum: true,
            compress: false,
        },
    );
    writer.select(Db(0)).unwrap();
    let all = texts(150_000, 60);
    let mut add = |name: &[u8], put: &dyn Fn(&mut Shard)| {
        put(&mut world.shard);
        let entry = world.shard.take(&key, Event::Del).unwrap().with_key(name);
        let mut encoded = Vec::new();
        assert!(encode_entry(&mut encoded, entry.as_ref(), None, NOW));
        writer.entries(&encoded).unwrap();
    };
    add(b"set", &|shard| put_set(&all)(shard, &key));
    add(b"list", &|shard| put_list(&all)(shard, &key));
    add(b"sorted set", &|shard| put_sorted_set(&all)(shard, &key));
    add(b"hash", &|shard| deadlines::put_hash(150_000, 60)(shard, &key));
    add(b"stream", &|shard| streams::put_stream(300_000)(shard, &key));
    let bytes = writer.finish().unwrap().0;
    let before = read_all(&world.keyspace, &bytes).unwrap().entries;
    assert_eq!(before.len(), 5);
    let valkey = converted(&bytes, WriteFormat::Valkey9).unwrap();
    assert_eq!(read_all(&world.keyspace, &valkey).unwrap().entries, before);
    let redis = converted(&valkey, WriteFormat::Redis74).unwrap();
    assert_eq!(read_all(&world.keyspace, &redis).unwrap().entries, before);
}

/// Streams of later types are written as earlier ones, without the facts that those lack.
#[test]
fn types_that_a_format_lacks_are_rewritten() {
    let world = World::new();
    let set = {
        let mut packed = crate::types::packed::EMPTY.to_vec();
        ["7", "text"].iter().for_each(|text| crate::types::packed::push(&mut packed, text.as_bytes()));
        [b"\x14\x01p", &[packed.len() as u8][..], &packed].concat()
    };
    let stream = [b"\x1b\x01s", &STREAM_WITH_PRODUCERS[..]].concat();
    let bytes = of_records("REDIS0014", &[set, stream].concat());
    let before = read_all(&world.keyspace, &bytes).unwrap().entries;
    for format in [WriteFormat::Redis70, WriteFormat::Redis74, WriteFormat::Valkey9] {
        let there = converted(&bytes, format).unwrap();
        assert_eq!(read_all(&world.keyspace, &there).unwrap().entries, before, "{}", format.name());
    }
    // The first byte of a record is its type: that of the stream comes last.
    let types_of = |format| {
        let there = converted(&bytes, format).unwrap();
        let mut reader = SnapshotReader::new(&there[..], None, true).unwrap();
        let mut seen = Vec::new();
        while let Item::Entry(raw) = reader.next_item().unwrap() {
            seen.push(raw.value_type);
        }
        seen
    };
    assert_eq!(types_of(WriteFormat::Redis70), [types::SET, types::STREAM_2]);
    assert_eq!(types_of(WriteFormat::Valkey9), [types::SET_LISTPACK, types::STREAM_3]);
}

#[test]
fn a_snapshot_in_a_format_that_cannot_hold_a_key_names_it() {
    let mut world = World::new();
    let key = world.key();
    deadlines::put_hash(3, 1)(&mut world.shard, &key);
    let mut encoded = Vec::new();
    assert!(encode_entry(&mut encoded, world.shard.read(&key).unwrap(), None, NOW));
    for compress in [false, true] {
        let options =
            |format| SnapshotOptions { format, has_field_deadlines: true, checksum: true, compress };
        let mut writer = SnapshotWriter::new(Vec::new(), options(WriteFormat::Redis70));
        writer.select(Db(3)).unwrap();
        assert_eq!(
            writer.entries(&encoded).unwrap_err().to_string(),
            "the key 'key' of database 3: fields of the hash have deadlines, which the format redis-7.0 cannot hold"
        );
        let mut writer = SnapshotWriter::new(Vec::new(), options(WriteFormat::Valkey9));
        writer.entries(&encoded).unwrap();
        let bytes = writer.finish().unwrap().0;
        assert!(bytes.starts_with(b"VALKEY080\x16\x03key"));
        assert_eq!(read_all(&world.keyspace, &bytes).unwrap().entries.len(), 1);
    }
}
