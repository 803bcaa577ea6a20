//! Expiry of the keys that clients have written on a writable replica.

use braid_storage::{entry::key::Key, sync::coordinator::Worker};

use crate::{client::node::Job, replication::own_keys::OwnKey, run::unit, shared::server::Server};

/// The keys that one cycle looks at.
const KEYS_A_CYCLE: usize = 400;

/// Removes the own keys of a replica whose deadlines have passed, and forgets those without a deadline.
pub fn expire_own_keys(server: &Server, worker: &mut Worker<Job>) {
    let own_keys = &server.replication.own_keys;
    if own_keys.is_empty() {
        return;
    }
    if !server.replica.is_on() {
        // A primary expires all keys.
        return own_keys.clear();
    }
    let taken = own_keys.take(KEYS_A_CYCLE);
    let kept: Vec<OwnKey> = taken.into_iter().filter(|key| keeps_deadline(server, worker, key)).collect();
    own_keys.add(kept);
}

/// Removes a key if its deadline has passed. Returns whether it must be looked at again.
fn keeps_deadline(server: &Server, worker: &mut Worker<Job>, (db, bytes): &OwnKey) -> bool {
    let key = Key { bytes, routed: server.keyspace.router().route(bytes) };
    let looked = worker.with_shards(&[key.routed.shard], |held, thread| {
        let shard = held.shard(key.routed.shard);
        let now = shard.start_at(server.clock.now(), || server.clock.now());
        shard.go_to(*db);
        // This removes an expired key.
        let keeps = shard.peek(&key).is_some_and(|entry| entry.has_deadline());
        unit::end(held, thread, now);
        keeps
    });
    // A shard that is held has its turn in the next cycle.
    looked.is_none_or(|looked| looked.unwrap_or(false))
}
