//! The links of replicas: each is fed with its copy, and then with the change stream.

use std::sync::Arc;

use braid_journal::intake::Ticket;
use bytes::Bytes;

use super::IoThread;
use crate::{
    catalog::Flags,
    client::{
        connection::{BacklogPiece, Closing, Connection, TURN_BYTES},
        id::ClientId,
    },
    command::{self, TABLE},
    replication::{
        full_copy::FullCopy, replica_link::LinkOutput, replicas::ReplicaState, spooler::most_in_memory,
    },
    shared::server::Server,
    warning,
};

/// The interval of empty lines to replicas that wait for data, in milliseconds.
const NEWLINE_MILLIS: u64 = 1000;

impl IoThread {
    /// Makes a connection a replica's, as its command has asked.
    #[cold]
    pub(super) fn follow(&mut self, connection: &mut Connection) {
        let Some(node) = connection.state.node_mut() else { return };
        if self.own.config.repl_disable_tcp_nodelay {
            // Without it more packets are sent, and the link works as well.
            let _ = connection.stream.set_nodelay(false);
        }
        connection.link = node.job.session.link.take();
        self.links.push((node.job.session.origin.slot, connection.record.id));
    }

    /// Begins a copy for the links of this thread that wait for it.
    pub(super) fn begin_copies(&mut self, copy: &Arc<FullCopy>) {
        for &(slot, id) in &self.links {
            if let Some(connection) = self.connections.of_client(slot, id)
                && let Some(link) = &mut connection.link
            {
                link.begin_copy(copy);
            }
        }
    }

    /// Whether a link has something to send that its socket would take.
    pub(super) fn may_feed_replicas(&self) -> bool {
        if self.links.is_empty() {
            return false;
        }
        let reached = self.server().durability.aof.reached();
        self.links.iter().any(|&(slot, id)| {
            self.connections
                .get(slot)
                .is_some_and(|connection| connection.record.id == id && may_feed(connection, reached))
        })
    }

    /// Sends to replicas what they can take, a share of the turn each.
    #[inline(always)]
    pub(super) fn feed_replicas(&mut self) {
        if !self.links.is_empty() {
            self.feed_links();
        }
    }

    #[cold]
    fn feed_links(&mut self) {
        let reached = self.server().durability.aof.reached();
        self.relieve_links();
        let mut links = std::mem::take(&mut self.links);
        links.retain(|&(slot, id)| self.feed(slot, id, reached));
        self.links.append(&mut links);
        // Others have left the stream's end to this thread while a link took its place.
        if self.server().durability.aof.advance() {
            self.server().wake_who_awaits_log();
        }
    }

    /// Moves links that are far behind to the spool, so that the stream is not kept in memory for them.
    fn relieve_links(&mut self) {
        let server = self.worker.thread.server();
        let most_bytes = most_in_memory(&self.own.config);
        let end = server.durability.aof.stream().merged_end().1;
        let mut has_moved = false;
        for &(slot, id) in &self.links {
            if let Some(connection) = self.connections.of_client(slot, id)
                && let Some(link) = &mut connection.link
            {
                has_moved |= link.relieve(&server.replication.spools, end, most_bytes);
            }
        }
        if has_moved {
            server.spooler.unpark();
        }
    }

    /// Feeds a link. Returns whether it is still there.
    fn feed(&mut self, slot: usize, id: ClientId, reached: Ticket) -> bool {
        let Some(connection) = self.connections.of_client(slot, id) else { return false };
        if !may_feed(connection, reached) {
            return true;
        }
        let server = self.worker.thread.server();
        let (mut has_failed, mut is_fed) = (false, false);
        while connection.backlog.n_bytes < TURN_BYTES
            && let Some(link) = &mut connection.link
        {
            link.resume(server.durability.aof.stream(), &server.replication.spools);
            match link.next(reached) {
                LinkOutput::Bytes(bytes) => {
                    if !bytes.is_empty() {
                        connection.backlog.push_piece(BacklogPiece::Stream(bytes));
                    }
                    is_fed = true;
                }
                LinkOutput::Later => break,
                LinkOutput::End => {
                    connection.close(Closing::AfterReplies);
                    break;
                }
                LinkOutput::Failed => {
                    has_failed = true;
                    break;
                }
                LinkOutput::Unknown(name) => {
                    warning!(
                        "Replica {} cannot know {name}: its link is closed",
                        command::name_of_replica(&link.replica)
                    );
                    has_failed = true;
                    break;
                }
            }
        }
        if is_fed && let Some(link) = &connection.link {
            link.replica.was_fed(server.clock.uptime_millis());
        }
        if has_failed {
            self.drop_connection(slot);
            return false;
        }
        self.go_on(slot);
        true
    }

    /// Closes links that are overdue or too far behind, and shows the others that the server is alive.
    pub(super) fn tend_replicas(&mut self) {
        let server = self.server();
        if self.worker.thread.index == 0 {
            self.ping_replicas();
            server.count_well_replicas();
        }
        self.relieve_links();
        for (slot, id) in self.links.clone() {
            let Some(connection) = self.connections.of_client(slot, id) else { continue };
            let Some(link) = &mut connection.link else { continue };
            let now = server.clock.uptime_millis();
            let silent = link.replica.silent_for(now);
            if link.may_send_newline() && link.replica.is_newline_due(now, NEWLINE_MILLIS) {
                connection.backlog.push_piece(BacklogPiece::Stream(Bytes::from_static(b"\n")));
                self.go_on(slot);
                continue;
            }
            let replica = Arc::clone(&link.replica);
            let is_waiting = replica.state() == ReplicaState::AwaitsCopy;
            if !is_waiting && silent > self.own.config.repl_timeout.as_millis() as u64 {
                let what = if replica.state() < ReplicaState::MustAck { "full" } else { "streaming" };
                warning!(
                    "Disconnecting timedout replica ({what} sync): {}",
                    command::name_of_replica(&replica)
                );
                self.drop_connection(slot);
            } else if self.is_too_far_behind(slot, id) {
                self.drop_connection(slot);
            }
        }
    }

    /// Whether the part of the stream that is kept for a link exceeds its output limit.
    fn is_too_far_behind(&mut self, slot: usize, id: ClientId) -> bool {
        let server = self.server();
        let mut limit = self.own.config.client_output_buffer_limit.replica;
        let Some(connection) = self.connections.of_client(slot, id) else { return false };
        let Some(link) = &mut connection.link else { return false };
        let Some(place) = link.memory_from() else { return false };
        let end = server.durability.aof.stream().merged_end().1;
        let n_behind = end.0.saturating_sub(place.0) + connection.backlog.n_bytes as u64;
        if link.may_wait(n_behind) {
            return false;
        }
        // The history keeps this much anyway, so it is no reason to close a link.
        let least = self.own.config.repl_backlog_size;
        for bytes in [&mut limit.hard_bytes, &mut limit.soft_bytes] {
            if *bytes != 0 {
                *bytes = (*bytes).max(least);
            }
        }
        if limit.hard_bytes != 0 && n_behind > limit.hard_bytes {
            self.report_link_over_limit(slot);
            return true;
        }
        if limit.soft_bytes == 0 || n_behind <= limit.soft_bytes {
            connection.over_soft_limit_since = None;
            return false;
        }
        let now = server.clock.uptime_millis();
        let since = *connection.over_soft_limit_since.get_or_insert(now);
        let is_overdue = now - since > limit.soft_time.as_millis() as u64;
        if is_overdue {
            self.report_link_over_limit(slot);
        }
        is_overdue
    }

    fn report_link_over_limit(&self, slot: usize) {
        let connection = self.connections.get(slot).expect("it was there");
        self.report_over_limit(connection);
        if !self.own.config.repl_spool {
            return;
        }
        match self.server().replication.spools.blocked() {
            Some(why) => warning!("The spool for slow replicas did not take its part of the stream: {why}"),
            None => warning!("The disk is too slow for the spool: the change stream grows faster"),
        }
    }

    /// Adds a PING to the stream when it is time, if there are replicas.
    fn ping_replicas(&mut self) {
        let server = self.server();
        let now = server.clock.uptime_millis();
        let period = self.own.config.repl_ping_replica_period.as_millis() as u64;
        // A replica hands on the PINGs of its primary. The last snapshot must have the end of the stream.
        // So must the target of a failover.
        let is_silent =
            server.replica.is_on() || server.saves.has_last_cut() || server.replication.failover.is_on();
        if !server.durability.is_followed() || is_silent {
            // A new primary sends its first one after a period.
            self.housekeeping.pinged_at = now;
            return;
        }
        if now < self.housekeeping.pinged_at + period {
            return;
        }
        self.housekeeping.pinged_at = now;
        if server.replication.replicas.all().iter().any(|replica| replica.state() >= ReplicaState::MustAck) {
            self.worker.thread.log_for_replicas(&[b"PING"]);
        }
    }

    /// Asks all replicas how far they are.
    pub(super) fn ask_for_acks(&mut self) {
        self.worker.thread.log_for_replicas(&[b"REPLCONF", b"GETACK", b"*"]);
    }
}

/// Closes the link of a replica whose command has a reply. The replica would take it for a part of the
/// stream.
#[cold]
pub(super) fn part_with_answered_replica(connection: &mut Connection, reply: &[u8], server: &Server) {
    let record = &connection.record;
    let command = record.last_command();
    let name = command.map_or("<unknown>", |id| TABLE.get(id).full_name);
    if let Some(error) = reply.strip_prefix(b"-") {
        let line = error.split(|&byte| byte == b'\r').next().unwrap_or_default();
        warning!(
            "== CRITICAL == This master is sending an error to its replica: '{}' after processing the command '{name}'",
            String::from_utf8_lossy(line)
        );
    }
    let line = command::describe_client(record, &TABLE, server.clock.uptime_millis());
    warning!("Replica generated a reply to command '{name}', disconnecting it: {}", line.trim_end());
    connection.close(Closing::Now);
}

/// Whether the last command of a replica's connection is the one that has made it such, and has a reply.
pub(super) fn has_just_begun(connection: &Connection) -> bool {
    let command = connection.record.last_command();
    command.is_some_and(|id| TABLE.get(id).has(Flags::MAKES_LINK))
}

fn may_feed(connection: &Connection, reached: Ticket) -> bool {
    !connection.is_closing()
        && connection.writable
        && connection.backlog.n_bytes < TURN_BYTES
        && connection.link.as_ref().is_some_and(|link| link.has_more(reached))
}
