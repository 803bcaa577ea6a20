//! The clients and keys of CLIENT TRACKING that shards forget, a little in each turn.

use std::time::Duration;

use braid_storage::{observers::read_tracking::Remembered, table::hash::ShardId};

use super::IoThread;
use crate::{clock::Instant, observe::hearers, shared::server::Server};

/// The time for forgetting readers of keys in one turn of the loop.
const EVICTION_BUDGET: Duration = Duration::from_micros(500);

/// The number of keys whose readers are forgotten under one hold.
const EVICTION_KEYS: usize = 64;

/// The time for forgetting clients that no longer track, in one turn of the loop.
const FORGETTING_BUDGET: Duration = Duration::from_micros(100);

/// The number of keys at which a client is forgotten under one hold.
const FORGETTING_KEYS: usize = 64;

impl IoThread {
    /// Forgets the readers of keys while more keys are remembered than `tracking-table-max-keys`. The readers
    /// are told to read again.
    ///
    /// A shard that remembers a key keeps the limit with its own remembered keys. Here all shards have their
    /// turns.
    pub(super) fn limit_tracking(&mut self, server: &Server) {
        let Some(limit) = server.trackers.max_keys() else { return };
        if server.trackers.n_keys() <= limit {
            return;
        }
        let began = Instant::now();
        let n_shards = server.keyspace.router().n_shards();
        for _ in 0..n_shards {
            let n_over = server.trackers.n_keys().saturating_sub(limit) as usize;
            if n_over == 0 || began.elapsed() > EVICTION_BUDGET {
                return;
            }
            self.forgetting.limited_at = (self.forgetting.limited_at + 1) % n_shards;
            let shard = ShardId(self.forgetting.limited_at as u16);
            // A held shard has its turn in the next round. The readers of a key are told when the shard is
            // released.
            let _ = self.worker.with_shard(shard, |shard, _| {
                let n_most = n_over.min(EVICTION_KEYS);
                (0..n_most).take_while(|_| shard.evict_readers()).count()
            });
        }
    }

    /// Makes shards forget clients that no longer track, for a share of this turn.
    pub(super) fn step_forgetting(&mut self) {
        self.forgetting.gets_on = false;
        if self.forgetting.queue.is_empty() {
            return;
        }
        let server = self.server();
        let began = Instant::now();
        let mut gets_on = false;
        for _ in 0..self.forgetting.queue.len() {
            let Some(leftover) = self.forgetting.queue.pop_front() else { return };
            let mut from = 0;
            while let Some(id) = leftover.shards.first_from(from) {
                let forgotten = self.worker.with_shard(id, |shard, _| match leftover.reader {
                    Some(reader) => shard.forget_reader(reader, FORGETTING_KEYS),
                    None => {
                        // A client that begins to track prefixes holds all shards.
                        if server.trackers.n_prefixes() == 0 {
                            shard.hear_all(hearers::PREFIXES, false);
                        }
                        (Remembered::default(), true)
                    }
                });
                match forgotten {
                    Some(Ok((forgotten, was_all))) => {
                        server.trackers.forgot(forgotten);
                        gets_on = true;
                        if was_all {
                            leftover.shards.remove(id);
                        }
                    }
                    // It is held, so the others come first.
                    Some(Err(_)) | None => from = usize::from(id.0) + 1,
                }
                if began.elapsed() > FORGETTING_BUDGET {
                    self.forgetting.queue.push_front(leftover);
                    self.forgetting.gets_on = gets_on;
                    return;
                }
            }
            if leftover.shards.first_from(0).is_some() {
                self.forgetting.queue.push_back(leftover);
            }
        }
        self.forgetting.gets_on = gets_on && !self.forgetting.queue.is_empty();
    }
}
