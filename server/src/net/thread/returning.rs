//! Nodes that come back to their connections after work elsewhere.

use std::sync::{Arc, atomic::Ordering};

use braid_storage::sync::executor::Node;

use super::{IoThread, replica_links, splitting};
use crate::{
    client::{
        connection::{BacklogPiece, Closing, Connection, TURN_BYTES},
        node::{Job, Task, empty},
        session::{Replies, SessionRequest},
    },
    run::{
        command_lookup,
        finish::{self, FinishedCommand, Times},
    },
    shared::server::Server,
};

impl IoThread {
    pub(super) fn take_back(&mut self, mut node: Box<Node<Job>>) {
        if node.job.reply.len() >= TURN_BYTES && node.job.n_run < node.job.commands.len() {
            self.send_ahead(&mut node.job);
        }
        match &mut node.job.task {
            Task::Goodbye(_) => return self.go_on_leaving(node),
            Task::MustWithdraw(parked) => {
                let parked = Arc::clone(parked);
                self.withdraw(node, parked);
                return;
            }
            Task::Withdraw(_) => {
                self.forget_wait(node.job.session.origin.slot);
                node.job.task = Task::Commands;
                if node.job.n_run < node.job.commands.len() && !node.job.session.record.is_killed() {
                    // The node could not be served where it was claimed.
                    self.submit_commands(node);
                    return;
                }
            }
            Task::Wait(_) | Task::Pin | Task::Offloaded(_) | Task::Unpin(_) | Task::Cut(_) => {
                unreachable!("the node is elsewhere until this is done")
            }
            Task::Sweep(sweep) if !sweep.is_complete() => {
                self.sweeps.push_back(node);
                return;
            }
            Task::Sweep(_) => self.conclude_sweep(&mut node),
            Task::Commands if node.job.n_run < node.job.commands.len() => {
                // A pause holds the rest back, a command has panicked, or a command was offloaded.
                let (next, words) = command_lookup::next(&node.job);
                let server = self.server();
                if server.holds_back(next.spec.flags, || {
                    command_lookup::may_write(server, &node.job.session, next, words)
                }) {
                    let slot = node.job.session.origin.slot;
                    self.in_hand(slot, |thread, connection| thread.postpone(connection, node));
                } else {
                    self.submit_commands(node);
                }
                return;
            }
            Task::MakeRoom(_) => self.take_room(&mut node),
            Task::Commands | Task::Barrier | Task::Idle => {}
        }
        self.comply(node);
    }

    /// Adds the reply of a sweep over all shards to the output of its connection.
    fn conclude_sweep(&mut self, node: &mut Node<Job>) {
        let Task::Sweep(sweep) = &mut node.job.task else { unreachable!("it is a sweep's node") };
        if sweep.is_over_limit() {
            node.job.session.exceed_limit();
        }
        let durability = &self.worker.thread.server().durability;
        if durability.aof.holds_back_reads() {
            // The sweep has read data that others have written meanwhile.
            node.job.ticket = node.job.ticket.max(durability.last_ticket());
        }
        let pieces = sweep.take_reply();
        let took = sweep.worked.as_nanos() as u64;
        self.worker.thread.stats().took(node.job.commands[0].command, took, 1);
        self.finish_sweep(node, took, pieces.iter().map(Vec::len).sum());
        let wanted = node.job.session.replies == Replies::On;
        node.job.session.drop_unwanted(0, &mut Vec::new());
        if let Some(connection) = self.connections.get_mut(node.job.session.origin.slot).filter(|_| wanted) {
            pieces.into_iter().for_each(|piece| connection.backlog.push_piece(BacklogPiece::Own(piece)));
        }
    }

    /// Serves the request of a node after its work, then returns it to its connection.
    fn comply(&mut self, mut node: Box<Node<Job>>) {
        let slot = node.job.session.origin.slot;
        if node.job.session.link.is_some() {
            let (link, id) = (node.job.session.link.take(), node.job.session.record.id);
            self.connections.parked(slot).link = link;
            self.links.push((slot, id));
        }
        match node.job.session.request.take() {
            Some(SessionRequest::Sleep { millis, .. }) => {
                // The command may have made this request as well.
                node.job.session.ask(SessionRequest::ReadNotifications);
                node.job.task = Task::Idle;
                self.in_hand(slot, |thread, connection| thread.rest(connection, node, millis, None));
            }
            Some(SessionRequest::AwaitSync(wanted)) => {
                node.job.session.ask(SessionRequest::ReadNotifications);
                node.job.task = Task::Idle;
                self.in_hand(slot, |thread, connection| {
                    let ticket = connection.last_ticket.max(node.job.ticket);
                    thread.await_sync(connection, node, wanted, ticket);
                });
                self.again.push(slot);
            }
            Some(SessionRequest::Save { order, is_answered }) => {
                node.job.session.ask(SessionRequest::ReadNotifications);
                node.job.task = Task::Idle;
                self.server().order_save(order, Some((node, is_answered)));
            }
            Some(SessionRequest::ReadNotifications) if !self.has_read_notifications() => {
                self.in_hand(slot, |thread, connection| {
                    thread.give_back_after_notifications(connection, node);
                });
            }
            Some(SessionRequest::ReadNotifications | SessionRequest::Follow | SessionRequest::AwaitRoom)
            | None => self.give_back(node),
        }
    }

    /// Does something with a parked connection, out of its slot.
    fn in_hand(&mut self, slot: usize, work: impl FnOnce(&mut Self, &mut Connection)) {
        let mut connection = self.connections.take(slot).expect("a connection is in its slot while parked");
        work(self, &mut connection);
        self.connections.put_back(slot, connection);
    }

    /// Sends a large part of the replies early, while more commands are under way.
    ///
    /// The client has these replies sooner. A client that has left is noticed before the rest is computed,
    /// which then does not run.
    fn send_ahead(&mut self, job: &mut Job) {
        let durability = &self.server().durability;
        if durability.aof.is_writing() && job.ticket > durability.aof.reached() {
            return;
        }
        let slot = job.session.origin.slot;
        std::mem::swap(&mut self.buffers.replies, &mut job.reply);
        empty(&mut job.reply);
        self.go_on(slot);
        if self.connections.parked(slot).is_lost() {
            job.n_run = job.commands.len();
        }
    }

    /// Returns a node to its connection, which continues with the replies in it.
    pub(super) fn give_back(&mut self, mut node: Box<Node<Job>>) {
        let slot = node.job.session.origin.slot;
        let mut replies = std::mem::take(&mut node.job.reply);
        let part = node.job.split.take();
        let ticket = node.job.ticket;
        node.job.clear();
        let connection = self.connections.parked(slot);
        connection.last_ticket = connection.last_ticket.max(ticket);
        if connection.split.is_some() {
            splitting::take_back(connection, part);
        }
        if node.job.session.closing {
            connection.close(Closing::AfterReplies);
        }
        if connection.record.blocked.load(Ordering::Relaxed) {
            connection.record.blocked.store(false, Ordering::Relaxed);
        }
        connection.parser.set_authenticated(node.job.session.authenticated);
        node.job.session.publish(None);
        node.job.session.log_begun = None;
        node.job.session.count_commands();
        connection.state.give_back(node);
        connection.n_under_way = 0;
        redeem(connection, self.worker.thread.server());
        if connection.link.is_some() && !replies.is_empty() {
            replica_links::part_with_answered_replica(connection, &replies, self.worker.thread.server());
            replies.clear();
        }
        let durability = &self.worker.thread.server().durability;
        // A sweep's replies are already in the backlog.
        let is_answered = !(replies.is_empty() && connection.backlog.is_empty());
        if durability.aof.is_writing() && is_answered && ticket > durability.aof.reached() {
            connection.ticket = ticket;
            self.log_waits.add_replies(slot);
        }
        if let Some(held_back) = connection.held_back.take() {
            let version = connection.version();
            held_back.in_dialect(version).for_each(|part| replies.extend_from_slice(part));
        }
        std::mem::swap(&mut self.buffers.replies, &mut replies);
        empty(&mut replies);
        self.await_room(slot);
        self.go_on(slot);
    }

    /// Ends a command that has visited the shards one after the other.
    fn finish_sweep(&self, node: &Node<Job>, nanos: u64, reply_bytes: usize) {
        let (command, words) = command_lookup::next(&node.job);
        // MONITOR showed the command when it began.
        let was_shown = true;
        let ran = FinishedCommand { command, words, session: &node.job.session, reply_bytes, was_shown };
        finish::tell(&ran, Times { alone: Some(nanos), ..Times::default() }, &self.worker.thread);
    }
}

/// Releases the room in the log that a long command of the connection was promised.
pub(super) fn redeem(connection: &mut Connection, server: &Server) {
    if connection.promised > 0 {
        server.durability.redeem(std::mem::take(&mut connection.promised));
        server.wake_who_awaits_log();
    }
}
