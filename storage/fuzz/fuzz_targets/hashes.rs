//! Operations on a hash, in all its forms, do what they do to a map.
#![no_main]

use std::collections::BTreeMap;

use braid_storage::{
    entry::{
        db::Db,
        key::Key,
        time::{Deadline, Expiry, Millis},
    },
    keyspace::Keyspace,
    observers::event::Event,
    table::hash::{HashTags, KeyHasher, Router},
    types::hashes::{HashType, Inserted},
};
use libfuzzer_sys::fuzz_target;

type Model = BTreeMap<Vec<u8>, (Vec<u8>, Option<u64>)>;

/// Takes a text of up to 40 bytes.
fn text<'a>(input: &mut &'a [u8]) -> Option<&'a [u8]> {
    let (&len, rest) = input.split_first()?;
    let (text, rest) = rest.split_at_checked(usize::from(len % 41))?;
    *input = rest;
    Some(text)
}

fn byte(input: &mut &[u8]) -> Option<u64> {
    let (&byte, rest) = input.split_first()?;
    *input = rest;
    Some(u64::from(byte))
}

fuzz_target!(|input: &[u8]| {
    let router = Router::new(KeyHasher::with_key(1, 2), 0, HashTags::Ignored);
    let (keyspace, mut shards) = Keyspace::new(router, 1);
    keyspace.thresholds().hash_max_listpack_entries.set(20);
    keyspace.thresholds().hash_max_listpack_value.set(30);
    let key = Key { bytes: b"h", routed: router.route(b"h") };
    let (mut input, mut now, mut model) = (input, 1, Model::new());
    while let (Some(operation), Some(name)) = (byte(&mut input), text(&mut input)) {
        let Some(argument) = byte(&mut input) else { return };
        let shard = &mut shards[0];
        shard.start();
        shard.begin(Db(0), Millis(now));
        model.retain(|_, (_, deadline)| deadline.is_none_or(|deadline| now <= deadline));
        let deadline = now + 1 + argument;
        let mut hash = shard.value_or_create::<HashType>(&key, Event::Made).expect("all are hashes");
        let before = model.get(name).cloned();
        match operation % 5 {
            0 => {
                let Some(value) = text(&mut input) else { return };
                let (expiry, after) = match argument % 3 {
                    0 => (Expiry::Keep, before.as_ref().and_then(|(_, deadline)| *deadline)),
                    1 => (Expiry::Clear, None),
                    _ => (Expiry::At(Deadline::at(deadline)), Some(deadline)),
                };
                assert_eq!(hash.set(name, value, expiry) == Inserted::New, before.is_none());
                model.insert(name.to_vec(), (value.to_vec(), after));
            }
            1 => assert_eq!(hash.remove(name), model.remove(name).is_some()),
            2 if before.is_some() => {
                let after = (argument > 20).then_some(deadline);
                hash.set_field_deadline(name, after.map(Deadline::at));
                model.entry(name.to_vec()).and_modify(|(_, deadline)| *deadline = after);
            }
            3 => assert!(hash.expire(argument as usize % 4) < 4),
            _ => now += argument / 8,
        }
        drop(hash);
        model.retain(|_, (_, deadline)| deadline.is_none_or(|deadline| now <= deadline));
        shard.begin(Db(0), Millis(now));
        let hash = shard.value::<HashType>(&key).expect("all are hashes");
        assert_eq!(hash.is_some(), !model.is_empty());
        let Some(hash) = hash else { continue };
        assert_eq!(hash.len(), model.len());
        for field in hash.iter() {
            let deadline = field.deadline.map(|deadline| deadline.0.0);
            assert_eq!(model.get(&field.name.to_vec()), Some(&(field.value.to_vec(), deadline)));
        }
    }
});
