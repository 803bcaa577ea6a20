//! Connections whose commands wait for keys, for the end of a pause, or for a time.

use std::sync::{Arc, atomic::Ordering};

use braid_storage::sync::executor::Node;

use super::{IoThread, parts::Rest};
use crate::{
    client::{
        connection::Connection,
        node::{Job, Parked, Task},
        state::ConnectionState,
        waits::WaitEnd,
    },
    clock::Instant,
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
        let connection = self.connections.parked(slot);
        if let Some(deadline) = parked.deadline() {
            self.waits.deadlines.insert((deadline, slot));
        }
        connection.record.blocked.store(parked.is_visible(), Ordering::Relaxed);
        connection.record.waiting.store(Some(Arc::clone(&parked)));
        let has_left = connection.peer_closed && parked.is_visible();
        connection.state.await_keys(parked);
        // No reply is due now, so notifications need not follow one.
        if let Some(held_back) = connection.held_back.take() {
            connection.send_held_back(&held_back, connection.version());
            self.again.push(slot);
        }
        if connection.is_closing() || has_left || connection.record.is_killed() {
            self.end_wait(slot, WaitEnd::Left);
        }
    }

    /// Ends the wait of a connection's command, unless it is being served.
    pub(super) fn end_wait(&mut self, slot: usize, why: WaitEnd) {
        let waiting =
            self.connections.get(slot).and_then(|connection| connection.state.awaits_keys().cloned());
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
        if self.waits.deadlines.is_empty() {
            return;
        }
        let now = self.server().clock.steady();
        while let Some(&(deadline, slot)) = self.waits.deadlines.first()
            && deadline <= now
        {
            self.waits.deadlines.pop_first();
            let connection = self.connections.get(slot);
            let parked = connection.and_then(|connection| connection.state.awaits_keys());
            let why = parked.map_or(WaitEnd::TimedOut, |parked| parked.end_at_deadline(now));
            self.end_wait(slot, why);
        }
    }

    /// Forgets that a command of a connection waited, because its node is back.
    pub(super) fn forget_wait(&mut self, slot: usize) {
        let Some(connection) = self.connections.get_mut(slot) else { return };
        let Some(parked) = connection.state.leave_keys() else { return };
        connection.record.waiting.store(None);
        if let Some(deadline) = parked.deadline() {
            self.waits.deadlines.remove(&(deadline, slot));
        }
    }

    /// Closes a connection whose client left, or was killed, while a pause held its command.
    ///
    /// As in Redis, the command does not run.
    pub(super) fn close_postponed(&mut self, slot: usize) {
        let Some(connection) = self.connections.get(slot) else { return };
        if let ConnectionState::Postponed { .. } = connection.state {
            self.drop_connection(slot);
        }
    }

    /// Holds the commands of a connection back until the end of a pause.
    pub(super) fn postpone(&mut self, connection: &mut Connection, node: Box<Node<Job>>) {
        self.worker.thread.stats().postponed.add(1);
        connection.record.blocked.store(true, Ordering::Relaxed);
        self.waits.n_postponed += 1;
        self.waits.postponed.insert(self.waits.n_postponed, node.job.session.origin.slot);
        connection.state.postpone(node, self.waits.n_postponed);
    }

    /// Holds a connection back for `millis` milliseconds.
    pub(super) fn rest(
        &mut self,
        connection: &mut Connection,
        node: Box<Node<Job>>,
        millis: u64,
        works_on: Option<&'static Registered>,
    ) {
        connection.record.blocked.store(true, Ordering::Relaxed);
        let until = self.server().clock.uptime_millis().saturating_add(millis);
        let slot = node.job.session.origin.slot;
        connection.state.rest(node);
        self.waits.resting.push(Rest { slot, until, began: Instant::now(), works_on });
    }

    /// Runs the commands that a pause held back. Each may be held back again.
    pub(super) fn resume_postponed(&mut self) {
        for slot in std::mem::take(&mut self.waits.postponed).into_values() {
            let connection = self.connections.parked(slot);
            if connection.record.is_killed() {
                self.drop_connection(slot);
            } else {
                let node = connection.state.depart();
                self.submit_commands(node);
            }
        }
    }

    /// Continues connections whose rest is over, and those whose client is gone.
    pub(super) fn wake_resting(&mut self, server: &Server) {
        let now = server.clock.uptime_millis();
        let is_over = |rest: &mut Rest| rest.until <= now || self.connections.has_left(rest.slot);
        let over: Vec<Rest> = self.waits.resting.extract_if(.., is_over).collect();
        for Rest { slot, began, works_on, .. } in over {
            if let Some(command) = works_on {
                self.worker.thread.stats().took(command.id, began.elapsed().as_nanos() as u64, 1);
            }
            let node = self.connections.parked(slot).state.depart();
            self.take_back(node);
        }
    }
}
