//! FAILOVER: the end of the old primary's writes, the choice of the new one, and the end of the change.
//!
//! ```text
//! FAILOVER        holds all shards: no unit writes after that
//! link's thread   waits until a replica has acknowledged the whole stream, and makes this server its replica
//! PSYNC FAILOVER  makes the target a primary, if it has the same history
//! +CONTINUE       ends the failover: writes go on, and are refused here
//! ```

use std::sync::Arc;

use crate::{
    config::PrimaryAddress,
    notice,
    replication::{
        failover::{FailoverPlan, FailoverStep},
        replicas::{Replica, ReplicaState},
    },
    shared::{mail::Mail, server::Server, thread_state::ThreadState},
};

/// The next step of a failover that waits.
pub enum FailoverMove {
    /// Nothing yet.
    Wait,
    /// The time is over.
    GiveUp,
    /// This server becomes the replica of this one.
    Follow(PrimaryAddress),
}

impl Server {
    /// Begins a failover. All shards are held, so no write is under way.
    pub fn begin_failover(&self, plan: FailoverPlan) {
        let failover = &self.replication.failover;
        *failover.plan() = plan;
        failover.set_step(FailoverStep::WaitsForSync);
        self.attention.raise();
        self.settle_expiry();
        self.replica.wake_link();
    }

    /// Ends a failover, whatever has become of it. The writes that it has held back go on.
    pub fn end_failover(&self, thread: &ThreadState) {
        let failover = &self.replication.failover;
        if !failover.is_on() {
            return;
        }
        failover.set_step(FailoverStep::None);
        self.attention.lower();
        self.settle_expiry();
        (0..self.io_threads().len()).for_each(|to| thread.send_mail(to, Mail::Resume));
    }

    /// The replica that serves clients at an address.
    pub fn replica_at(&self, address: &PrimaryAddress) -> Option<Arc<Replica>> {
        let is_it = |replica: &&Arc<Replica>| {
            replica.said().port == address.port && replica.host().as_bytes() == address.host
        };
        self.replication.replicas.all().iter().find(is_it).cloned()
    }

    /// The next step of a failover that waits until a replica has the whole stream.
    pub fn next_of_failover(&self) -> FailoverMove {
        let plan = self.replication.failover.plan().clone();
        let (merged, end) = self.durability.aof.stream().merged_end();
        let has_all = |replica: &&Arc<Replica>| {
            replica.state() == ReplicaState::Online && merged >= plan.last && replica.acked() == end.0
        };
        let found = match &plan.target {
            Some(target) => self.replica_at(target).filter(|replica| has_all(&replica)),
            None => self.replication.replicas.all().iter().find(has_all).cloned(),
        };
        if let Some(replica) = found {
            let port = replica.said().port;
            let address = PrimaryAddress { host: replica.host().into_bytes(), port };
            notice!("Failover target {address} is synced, failing over.");
            return FailoverMove::Follow(address);
        }
        if plan.deadline.is_none_or(|deadline| self.clock.uptime_millis() < deadline) {
            return FailoverMove::Wait;
        }
        match plan.target.filter(|_| plan.is_forced) {
            Some(target) => {
                notice!("Failover to {target} time out exceeded, failing over.");
                FailoverMove::Follow(target)
            }
            None => FailoverMove::GiveUp,
        }
    }

    /// Tells the server log why a failover ends without success.
    pub fn tell_aborted_failover(&self, why: &str) {
        let failover = &self.replication.failover;
        let target =
            failover.plan().target.as_ref().map_or_else(String::new, |target| format!(" to {target}"));
        notice!("Aborting failover{target} while {}: {why}", failover.step().word());
    }

    /// Notes that a replica has acknowledged something.
    pub fn note_ack(&self) {
        self.replication.replicas.count_ack();
        if self.replication.failover.step() == FailoverStep::WaitsForSync {
            self.replica.wake_link();
        }
    }
}
