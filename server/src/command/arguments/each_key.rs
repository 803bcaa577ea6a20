//! Commands on many keys, whose look-ups overlap.

use braid_storage::{entry::key::Key, keyspace::shard::Shard, table::hash::Routed};
use smallvec::SmallVec;

use crate::command::Call;

/// Keys that are prefetched together.
///
/// They are enough to keep the memory busy, and few enough for the first-level cache.
const CHUNK: usize = 32;

/// Calls `each` with every key in turn, its shard, and its companion value.
///
/// A chunk of keys is routed and prefetched before the first one is looked up. Each key is hashed once.
///
/// # Panics
/// If the command's row does not declare a key.
pub(in crate::command) fn for_each_key<'k, T: Copy>(
    call: &mut Call<'_, '_>,
    mut keys: impl Iterator<Item = (&'k [u8], T)>,
    mut each: impl FnMut(&mut Shard, &Key<'k>, T),
) {
    let server = call.server;
    let router = server.keyspace.router();
    let mut known = call.routed.iter();
    let mut chunk: SmallVec<[(Key<'k>, T); CHUNK]> = SmallVec::new();
    loop {
        chunk.clear();
        for (bytes, with) in keys.by_ref().take(CHUNK) {
            let routed = known.next().copied().unwrap_or_else(|| router.route(bytes));
            debug_assert_eq!(routed, router.route(bytes), "the keys come in the order of the command's row");
            chunk.push((Key { bytes, routed }, with));
        }
        if chunk.len() > 1 && !call.is_fetched {
            let routed: SmallVec<[Routed; CHUNK]> = chunk.iter().map(|(key, _)| key.routed).collect();
            for &key in &routed {
                server.engine.prefetch(key.shard);
                server.keyspace.prefetch_root(call.session.db, key);
            }
            server.keyspace.prefetch(call.session.db, &routed);
        }
        for (key, with) in &chunk {
            each(call.shard_of(key), key, *with);
        }
        if chunk.len() < CHUNK {
            return;
        }
    }
}
