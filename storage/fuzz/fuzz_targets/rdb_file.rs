//! Whatever file is read, there is an end or an error, and what is built of it is written and read again.
#![no_main]

use std::collections::BTreeMap;

use braid_storage::{
    entry::{db::Db, time::Millis},
    keyspace::Keyspace,
    rdb::{
        WriteFormat,
        file::{Item, SnapshotOptions, SnapshotReader, SnapshotWriter, encode_entry},
    },
    table::hash::{HashTags, KeyHasher, Router},
    types::kinds::digest_of,
};
use libfuzzer_sys::fuzz_target;

const NOW: Millis = Millis(1000);

/// The fingerprints of the values in a file, and the file written again in a format, compressed. Nothing if
/// there is something wrong with it.
fn read(
    bytes: &[u8],
    keyspace: &Keyspace,
    format: WriteFormat,
) -> Option<(BTreeMap<Vec<u8>, String>, Vec<u8>)> {
    // The checksum is not compared: otherwise hardly anything would come further.
    let mut reader = SnapshotReader::new(bytes, Some(bytes.len() as u64), false).ok()?;
    let options = SnapshotOptions { format, has_field_deadlines: true, checksum: true, compress: true };
    let mut writer = SnapshotWriter::new(Vec::new(), options);
    writer.select(Db(0)).expect("a vector takes all");
    let mut digests = BTreeMap::new();
    loop {
        match reader.next_item().ok()? {
            Item::Entry(raw) => {
                let Some(entry) = raw.build(keyspace, NOW, None).ok()?.into_entry() else { continue };
                let mut encoded = Vec::new();
                assert!(encode_entry(&mut encoded, entry.as_ref(), raw.recency, NOW));
                writer.entries(&encoded).expect("a vector takes all");
                digests.insert(raw.key.to_vec(), digest_of(entry.as_ref(), NOW).to_string());
            }
            Item::End { .. } => return Some((digests, writer.finish().expect("a vector takes all").0)),
            _ => {}
        }
    }
}

fuzz_target!(|bytes: &[u8]| {
    let router = Router::new(KeyHasher::with_key(1, 2), 0, HashTags::Ignored);
    let (keyspace, _) = Keyspace::new(router, 1);
    for format in [WriteFormat::Redis74, WriteFormat::Valkey9] {
        let Some((digests, again)) = read(bytes, &keyspace, format) else { return };
        let (back, _) = read(&again, &keyspace, format).expect("what is written is read");
        assert_eq!(back, digests);
    }
});
