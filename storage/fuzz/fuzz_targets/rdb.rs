//! Whatever RESTORE takes, DUMP writes, and RESTORE takes that again for the same value.
#![no_main]

use braid_storage::{
    entry::{EntryBox, Kind, db::Db, key::Key, time::Millis},
    keyspace::{Keyspace, shard::Shard},
    observers::event::Event,
    rdb,
    table::hash::{HashTags, KeyHasher, Router},
    types::{
        hashes::HashType,
        list::ListType,
        set::SetType,
        sorted_set::SortedSetType,
        stream::{Stream, StreamId, StreamType},
    },
};
use libfuzzer_sys::fuzz_target;

const NOW: Millis = Millis(1000);

/// What a value holds, in words, and in order if it has none.
fn contents(shard: &mut Shard, key: &Key<'_>) -> Vec<String> {
    match shard.read(key).expect("it is there").kind() {
        Kind::String => vec![format!("{:?}", shard.read(key).expect("it is there").bytes())],
        Kind::List => {
            let list = shard.value::<ListType>(key).expect("a list").expect("it is there");
            list.elements_from(0).map(|element| format!("{:?}", element.to_vec())).collect()
        }
        Kind::Set => {
            let set = shard.value::<SetType>(key).expect("a set").expect("it is there");
            sorted(set.iter().map(|member| format!("{:?}", member.to_vec())))
        }
        Kind::Hash => {
            let hash = shard.value::<HashType>(key).expect("a hash").expect("it is there");
            let shown = |(name, value, deadline)| format!("{name:?} {value:?} {deadline:?}");
            let fields = hash.iter().map(|field| (field.name.to_vec(), field.value.to_vec(), field.deadline));
            sorted(fields.map(shown))
        }
        Kind::SortedSet => {
            let set = shard.value::<SortedSetType>(key).expect("a sorted set").expect("it is there");
            let shown = |(member, bits): (Vec<u8>, u64)| format!("{member:?} {bits}");
            set.iter(0..set.len())
                .map(|scored| shown((scored.member.to_vec(), scored.score().to_bits())))
                .collect()
        }
        Kind::Stream => {
            let stream = shard.value::<StreamType>(key).expect("a stream").expect("it is there");
            of_stream(stream.stream())
        }
    }
}

fn sorted(shown: impl Iterator<Item = String>) -> Vec<String> {
    let mut all: Vec<_> = shown.collect();
    all.sort_unstable();
    all
}

fn of_stream(stream: &Stream) -> Vec<String> {
    let entries = stream.entries();
    let (first, last, max_deleted) = (entries.first_id(), entries.last_id(), entries.max_deleted_id());
    let mut all = vec![format!("{first:?} {last:?} {max_deleted:?} {} {}", entries.len(), entries.n_added())];
    for entry in entries.range(StreamId::MIN, StreamId::MAX) {
        let fields: Vec<_> = entry.fields().map(|(name, value)| (name.to_vec(), value.to_vec())).collect();
        all.push(format!("{:?} {fields:?}", entry.id()));
    }
    assert_eq!(all.len() as u64, entries.len() + 1);
    for (name, group) in stream.groups() {
        all.push(format!(
            "{name:?} {:?} {:?} {:?}",
            group.last_delivered_id(),
            group.n_read(),
            stream.lag(group)
        ));
        all.extend(group.pending(StreamId::MIN, StreamId::MAX).map(|pending| format!("{pending:?}")));
        for consumer in group.consumers() {
            let pending = group.pending_of(consumer, StreamId::MIN, StreamId::MAX);
            let ids: Vec<_> = pending.map(|pending| pending.id).collect();
            all.push(format!("{:?} {:?} {ids:?}", consumer.name(), consumer.seen_at()));
        }
    }
    all
}

/// The versions of payloads: Redis's and Valkey's, in which numbers of types differ.
const VERSIONS: [(u16, rdb::WriteFormat); 2] =
    [(12, rdb::WriteFormat::Redis74), (80, rdb::WriteFormat::Valkey9)];

fuzz_target!(|value: &[u8]| {
    for (version, format) in VERSIONS {
        try_version(value, version, format);
    }
});

fn try_version(value: &[u8], version: u16, format: rdb::WriteFormat) {
    let router = Router::new(KeyHasher::with_key(1, 2), 0, HashTags::Ignored);
    let (keyspace, mut shards) = Keyspace::new(router, 1);
    let thresholds = keyspace.thresholds();
    thresholds.hash_max_listpack_entries.set(8);
    thresholds.hash_max_listpack_value.set(30);
    thresholds.set_max_intset_entries.set(8);
    thresholds.zset_max_listpack_entries.set(8);
    let key = Key { bytes: b"k", routed: router.route(b"k") };
    let restore = |payload: &[u8]| rdb::restore(payload, &key, &keyspace, NOW, rdb::Checksums::Compared);
    let mut payload = value.to_vec();
    rdb::add_footer(&mut payload, version);
    let Ok(Some(entry)) = restore(&payload) else { return };
    let shard = &mut shards[0];
    shard.start();
    shard.begin(Db(0), NOW);
    let mut held = |entry: EntryBox| {
        shard.put(&key, entry, Event::Made);
        let entry = shard.read(&key).expect("it is there");
        let again = rdb::dump_in(format, entry, NOW).expect("the format has all values");
        (contents(shard, &key), again)
    };
    let (before, again) = held(entry);
    let back = restore(&again).expect("what was dumped is restored").expect("nothing in it has expired");
    let (after, _) = held(back);
    assert_eq!(before, after);
}
