//! Connections whose commands wait for keys, for the end of a pause, or for a time.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Instant,
};

use braid_storage::executor::Node;

use super::{IoThread, Resting};
use crate::{
    client::{
        node::{Job, Parked, Task},
        waits::WaitEnd,
    },
    command::Registered,
    shared::server::Server,
};

impl IoThread {
    /// Records that a connection's command waits for keys, unless it has been claimed meanwhile.
    pub(super) fn note_wait(&mut self, parked: Arc<Parked>) {
        let slot = parked.origin.slot;
        if parked.is_claimed() {
            return;
        }
        let connection = self.connections[slot].as_mut().expect("a connection is in its place while parked");
        if let Some(deadline) = parked.deadline() {
            self.deadlines.insert((deadline, slot));
        }
        connection.record.blocked.store(parked.is_visible(), Ordering::Relaxed);
        connection.record.waiting.store(Some(Arc::clone(&parked)));
        let has_left = connection.peer_closed && parked.is_visible();
        connection.waiting = Some(parked);
        // No reply is due now, so notifications need not follow one.
        if let Some(held_back) = connection.held_back.take() {
            connection.send_held_back(&held_back, connection.version());
            self.again.push(slot);
        }
        if connection.closing || has_left || connection.record.is_killed() {
            self.end_wait(slot, WaitEnd::Left);
        }
    }

    /// Ends the wait of a connection's command, unless it is being served.
    pub(super) fn end_wait(&mut self, slot: usize, why: WaitEnd) {
        let waiting = self.connections[slot].as_ref().and_then(|connection| connection.waiting.clone());
        let claimed = waiting.and_then(|parked| Some((parked.claim()?, parked)));
        if let Some((mut node, parked)) = claimed {
            parked.give_up(&mut node, why, self.worker.thread.stats());
            self.withdraw(node, parked);
        }
    }

    /// Removes a command that has waited from its lines.
    pub(super) fn withdraw(&mut self, mut node: Box<Node<Job>>, parked: Arc<Parked>) {
        node.set_route(parked.route());
        node.job.task = Task::Withdraw(parked);
        self.worker.submit(node);
    }

    /// Ends the waits whose deadline has passed.
    pub(super) fn end_overdue_waits(&mut self) {
        if self.deadlines.is_empty() {
            return;
        }
        let now = self.server().clock.steady();
        while let Some(&(deadline, slot)) = self.deadlines.first()
            && deadline <= now
        {
            self.deadlines.pop_first();
            self.end_wait(slot, WaitEnd::TimedOut);
        }
    }

    /// Forgets that a command of a connection waited, because its node is back.
    pub(super) fn forget_wait(&mut self, slot: usize) {
        let Some(connection) = self.connections[slot].as_mut() else { return };
        let Some(parked) = connection.waiting.take() else { return };
        connection.record.waiting.store(None);
        if let Some(deadline) = parked.deadline() {
            self.deadlines.remove(&(deadline, slot));
        }
    }

    /// Closes a connection whose client left, or was killed, while a pause held its command.
    ///
    /// As in Redis, the command does not run.
    pub(super) fn close_postponed(&mut self, slot: usize) {
        let Some(Some(connection)) = self.connections.get_mut(slot) else { return };
        if let Some(node) = connection.postponed.take().and_then(|nth| self.postponed.remove(&nth)) {
            connection.node = Some(node);
            self.drop_connection(slot);
        }
    }

    /// Keeps a node until the end of a pause, and returns its number. The connection may be in its slot or be
    /// served.
    pub(super) fn postpone(&mut self, node: Box<Node<Job>>) -> u64 {
        self.worker.thread.stats().postponed.add(1);
        node.job.session.record.blocked.store(true, Ordering::Relaxed);
        self.n_postponed += 1;
        self.postponed.insert(self.n_postponed, node);
        self.n_postponed
    }

    /// Keeps a node for `millis` milliseconds.
    pub(super) fn rest(&mut self, node: Box<Node<Job>>, millis: u64, works_on: Option<&'static Registered>) {
        node.job.session.record.blocked.store(true, Ordering::Relaxed);
        let until = self.server().clock.uptime_millis().saturating_add(millis);
        self.resting.push(Resting { until, began: Instant::now(), works_on, node });
    }

    /// Runs the commands that a pause held back. Each may be held back again.
    pub(super) fn resume_postponed(&mut self) {
        for (_, node) in std::mem::take(&mut self.postponed) {
            let slot = node.job.session.origin.slot;
            if let Some(connection) = self.connections[slot].as_mut() {
                connection.postponed = None;
                if node.job.session.record.is_killed() {
                    connection.node = Some(node);
                    self.drop_connection(slot);
                    continue;
                }
            }
            self.submit_commands(node);
        }
    }

    /// Continues connections whose rest is over, and those whose client is gone.
    pub(super) fn wake_resting(&mut self, server: &Server) {
        let now = server.clock.uptime_millis();
        let is_gone = |node: &Node<Job>| {
            let connection = self.connections.get(node.job.session.origin.slot).and_then(Option::as_ref);
            connection.is_none_or(|connection| connection.closing || connection.peer_closed)
        };
        let is_over = |resting: &mut Resting| resting.until <= now || is_gone(&resting.node);
        let over: Vec<Resting> = self.resting.extract_if(.., is_over).collect();
        for Resting { began, works_on, node, .. } in over {
            if let Some(command) = works_on {
                self.worker.thread.stats().took(command.id, began.elapsed().as_nanos() as u64, 1);
            }
            self.take_back(node);
        }
    }
}
