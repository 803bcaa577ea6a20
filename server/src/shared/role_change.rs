//! Changes of this server's role, and the settings that depend on it.

use std::sync::Arc;

use braid_journal::stream::Lsn;
use braid_storage::{observers::record, sync::coordinator::Held};

use crate::{
    client::node::Job,
    config::{Config, PrimaryAddress},
    shared::{server::Server, thread_state::ThreadState},
};

impl Server {
    /// Makes this server a replica of another, or of none, and stores that in the configuration.
    ///
    /// All shards are held, so commands that begin after the caller's reply see the new role. The link's
    /// thread applies nothing for the old role after that.
    pub fn change_primary(
        &self,
        primary: Option<PrimaryAddress>,
        held: &mut Held<'_, Job>,
        thread: &ThreadState,
    ) {
        let _writer = self.config_writer.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let was_on = self.replica.is_on();
        self.change_history(primary.is_some(), held);
        self.replica.set_primary(primary.clone());
        self.tell_history(None, thread);
        if was_on && primary.is_none() {
            // They learn the new ID when they come back, which they can: it goes on from theirs.
            self.part_with_replicas(thread);
        }
        match (was_on, primary.is_some()) {
            (false, true) => self.attention.raise(),
            (true, false) => self.attention.lower(),
            _ => {}
        }
        let mut config = Config::clone(&self.config.load());
        config.set_primary(primary);
        // This also applies the limit of memory that belongs to the role.
        self.set_config(config);
        self.settle_expiry();
        self.replica.wake_link();
    }

    /// Changes the history as a change of the role demands it, and keeps the stream of the new role.
    fn change_history(&self, will_be_on: bool, held: &mut Held<'_, Job>) {
        let mut lineage = self.replication.lineage();
        match (self.replica.is_on(), will_be_on) {
            (false, true) => {
                // Nobody can go on from writes that no stream has. The earlier writes of a transaction, in
                // which this happens, are logged at its end, so for the new role.
                let has_written = record::with(|record| record.has_changes());
                let has_history = self.durability.is_followed() && !has_written;
                if !has_history {
                    lineage.begin_anew();
                }
                self.replica.set_has_history(has_history);
                self.durability.begin_following();
            }
            (true, false) => {
                match self.replica.has_history() {
                    true => lineage.branch(Lsn(self.replica.applied() as u64)),
                    false => lineage.begin_anew(),
                }
                for index in 0..held.ids().len() {
                    let id = held.ids()[index];
                    held.shard(id).hear_all(record::LOG, true);
                }
                self.durability.begin_following();
            }
            _ => {}
        }
    }

    /// Makes a replica ask for a copy: its data is replaced by an earlier state, after which it has applied
    /// more. All shards are held.
    pub fn forget_place(&self, thread: &ThreadState) {
        if !self.replica.is_on() {
            return;
        }
        self.replica.set_has_history(false);
        // The present link ends with its generation.
        self.replica.set_primary(self.replica.primary().map(Arc::unwrap_or_clone));
        self.tell_history(None, thread);
        self.part_with_replicas(thread);
        self.replica.wake_link();
    }

    /// Whether keys expire only when the primary says so, or not at all during a pause.
    pub fn holds_expiry(&self) -> bool {
        self.is_paused() || self.replica.is_on() || self.replication.failover.is_on()
    }

    /// The limit of memory that applies in the present role.
    pub fn memory_limit(&self, config: &Config) -> Option<u64> {
        if self.replica.is_on() && config.replica_ignore_maxmemory { None } else { config.maxmemory }
    }
}
