//! Replies that wait for the log. A client must not lose a change that was confirmed to it.

use std::sync::atomic::Ordering;

use braid_journal::intake::Ticket;
use braid_protocol::reply::Reply;
use braid_storage::sync::executor::Node;

use super::{IoThread, parts::SyncWaiting};
use crate::{
    catalog::CommandError,
    client::{
        connection::Connection,
        node::Job,
        record::SyncWait,
        session::{AwaitSync, SyncAnswer},
    },
    command,
    durability::ROOM,
};

impl IoThread {
    /// Makes replies wait until the log has their records.
    ///
    /// They are the `n_bytes` of replies to a connection's last commands.
    pub(super) fn await_log(&mut self, slot: usize, connection: &mut Connection, n_bytes: usize) {
        let durability = &self.server().durability;
        let ticket = self.worker.thread.ticket.get();
        connection.last_ticket = connection.last_ticket.max(ticket);
        if connection.ticket == 0 && connection.incoming_bytes() > 0 && durability.is_full() {
            return self.await_room_in_log(slot, connection);
        }
        // A client without replies waits too, once much is unwritten.
        if connection.ticket != 0 || n_bytes == 0 && !durability.aof.is_far_behind() {
            return;
        }
        if ticket > durability.aof.reached() {
            connection.ticket = ticket;
            self.log_waits.replies.push(slot);
        }
    }

    /// Stops reading and serving a connection until long commands may begin.
    #[cold]
    pub(super) fn await_room_in_log(&mut self, slot: usize, connection: &mut Connection) {
        connection.ticket = ROOM;
        self.log_waits.replies.push(slot);
    }

    /// Ends a turn: publishes its records, and releases replies.
    ///
    /// It writes all published records if no other thread does.
    pub(super) fn step_log(&mut self) {
        let server = self.server();
        if !server.durability.fills_stream()
            && self.log_waits.is_empty()
            && !self.worker.thread.has_unpublished()
        {
            return;
        }
        self.worker.thread.publish_log();
        if server.durability.aof.advance() {
            server.wake_who_awaits_log();
        }
        self.release_replies();
        self.answer_synced();
        self.feed_replicas();
        let awaits = !self.log_waits.is_empty() || !self.links.is_empty();
        server.threads[self.worker.thread.index].awaits_log.store(awaits, Ordering::Relaxed);
    }

    /// Makes WAIT or WAITAOF wait until a ticket is synced.
    pub(super) fn await_sync(
        &mut self,
        connection: &mut Connection,
        node: Box<Node<Job>>,
        wanted: AwaitSync,
        ticket: Ticket,
    ) {
        let slot = node.job.session.origin.slot;
        connection.begin_sync_wait(node);
        let record = &connection.record;
        record.blocked.store(true, Ordering::Relaxed);
        record.begin_sync_wait();
        let until = self.server().clock.uptime_millis().saturating_add(wanted.millis);
        let list = match wanted.n_replicas {
            0 => {
                // The ticket may be synced already.
                self.log_waits.synced_seen = None;
                &mut self.log_waits.syncs
            }
            _ => {
                self.log_waits.acks_seen = u64::MAX;
                &mut self.log_waits.replicas
            }
        };
        list.push(SyncWaiting { slot, ticket, target: None, wanted, until });
    }

    /// Answers WAIT and WAITAOF where nothing is left to wait for.
    ///
    /// There may be thousands of them. When more is on disk the thread checks those that it may concern, and
    /// ten times a second all of them.
    fn answer_synced(&mut self) {
        if self.log_waits.syncs.is_empty() && self.log_waits.replicas.is_empty() {
            return;
        }
        let server = self.server();
        let (now, synced) = (server.clock.uptime_millis(), server.durability.aof.synced());
        let is_due = std::mem::take(&mut self.log_waits.must_check_all);
        let has_changed =
            std::mem::replace(&mut self.log_waits.synced_seen, synced) != synced || synced.is_none();
        let is_acked = self.find_targets();
        if !is_due && !has_changed && !is_acked {
            return;
        }
        let connections = &self.connections;
        let replicas = &server.replication.replicas;
        let is_over = |awaiting: &mut SyncWaiting| {
            let is_synced = synced.is_some_and(|synced| awaiting.ticket <= synced);
            let is_vain = awaiting.wanted.is_local && synced.is_none();
            let n_replicas = if awaiting.wanted.n_replicas == 0 { 0 } else { awaiting.n_replicas(replicas) };
            awaiting.wanted.is_over(is_synced, n_replicas)
                || is_vain
                || awaiting.until <= now
                || connections.get(awaiting.slot).is_some_and(|one| one.record.is_sync_wait_over())
                || connections.has_left(awaiting.slot)
        };
        let mut over: Vec<SyncWaiting> = self.log_waits.syncs.extract_if(.., is_over).collect();
        if is_due || is_acked || has_changed && !self.log_waits.replicas.is_empty() {
            over.extend(self.log_waits.replicas.extract_if(.., is_over));
        }
        for awaiting in over {
            self.answer_sync(awaiting, synced);
        }
    }

    /// Finds out which offsets replicas must have for the clients that wait for them, and asks replicas how
    /// far they are. Returns whether any replica may be further than before.
    fn find_targets(&mut self) -> bool {
        if self.log_waits.replicas.is_empty() {
            return false;
        }
        let server = self.server();
        let (merged, end) = server.durability.aof.stream().merged_end();
        let mut asks = false;
        for awaiting in self.log_waits.replicas.iter_mut().filter(|one| one.target.is_none()) {
            if awaiting.ticket == 0 {
                // It has written nothing, so any replica will do.
                awaiting.target = Some(0);
            } else if awaiting.ticket <= merged {
                awaiting.target = Some(end.0);
                asks = true;
            }
        }
        if asks {
            self.ask_for_acks();
        }
        let n_acks = server.replication.replicas.n_acks();
        std::mem::replace(&mut self.log_waits.acks_seen, n_acks) != n_acks
    }

    fn answer_sync(&mut self, awaiting: SyncWaiting, synced: Option<Ticket>) {
        let n_replicas = awaiting.n_replicas(&self.server().replication.replicas);
        let SyncWaiting { slot, ticket, wanted, .. } = awaiting;
        let mut node = self.connections.parked(slot).state.depart();
        let Job { session, reply: out, .. } = &mut node.job;
        let start = out.len();
        let mut reply = Reply::new(out, session.resp);
        let refusal = match session.record.end_sync_wait() {
            SyncWait::Fails => Some(command::UNBLOCKED),
            SyncWait::RoleChanged => {
                session.leave();
                Some(command::ROLE_CHANGED)
            }
            _ if synced.is_none() && wanted.is_local => Some(CommandError::text(command::NOT_LOGGED)),
            _ => None,
        };
        match (refusal, wanted.answers) {
            (Some(error), _) => {
                self.worker.thread.stats().error(&error.wire_text());
                error.write(&mut reply);
            }
            (None, SyncAnswer::Replicas) => reply.integer(n_replicas as i64),
            (None, SyncAnswer::Disks) => {
                let is_synced = synced.is_some_and(|synced| ticket <= synced);
                command::write_synced(&mut reply, is_synced, n_replicas);
            }
        }
        if !wanted.is_answered {
            out.truncate(start);
        }
        self.take_back(node);
    }

    /// Whether replicas have acknowledged something for which clients wait.
    pub(super) fn has_new_acks(&self) -> bool {
        !self.log_waits.replicas.is_empty()
            && self.server().replication.replicas.n_acks() != self.log_waits.acks_seen
    }

    /// Whether replies wait that need not wait any longer.
    pub(super) fn may_release_replies(&self) -> bool {
        let durability = &self.server().durability;
        if !self.log_waits.syncs.is_empty() && durability.aof.synced() != self.log_waits.synced_seen {
            return true;
        }
        if self.log_waits.replies.is_empty() {
            return false;
        }
        let reached = durability.aof.reached();
        let mut waiting = self.log_waits.replies.iter().map(|&slot| self.connections.get(slot));
        waiting
            .any(|place| matches!(place, Some(connection) if durability.is_over(connection.ticket, reached)))
    }

    fn release_replies(&mut self) {
        if self.log_waits.replies.is_empty() {
            return;
        }
        let durability = &self.server().durability;
        let reached = durability.aof.reached();
        for slot in std::mem::take(&mut self.log_waits.replies) {
            // The connection may have closed, and its slot may belong to another one.
            let Some(connection) = self.connections.get_mut(slot) else { continue };
            if !durability.is_over(connection.ticket, reached) {
                self.log_waits.replies.push(slot);
            } else if connection.ticket != 0 {
                connection.ticket = 0;
                self.go_on(slot);
            }
        }
    }
}
