//! Replies that wait for the log: what a client was told must not be lost.

use super::IoThread;
use crate::client::connection::Connection;

impl IoThread {
    /// Has the replies to what was just run of a connection wait until the log has it.
    pub(super) fn await_log(&mut self, slot: usize, connection: &mut Connection) {
        if connection.ticket != 0 {
            return;
        }
        let journal = &self.server().journal;
        let ticket = self.worker.thread.ticket.get();
        if ticket > journal.reached() {
            connection.ticket = ticket;
            self.awaiting_log.push(slot);
        }
    }

    /// Ends a turn: publishes what it has logged, writes what all have published if nobody else does, and lets replies go.
    pub(super) fn step_log(&mut self) {
        let server = self.server();
        if !server.journal.is_writing()
            && self.awaiting_log.is_empty()
            && !self.worker.thread.has_unpublished()
        {
            return;
        }
        self.worker.thread.publish_log();
        if server.journal.advance() {
            server.wake_who_awaits_log();
        }
        self.release_replies();
        let awaits = !self.awaiting_log.is_empty();
        server.threads[self.worker.thread.index]
            .awaits_log
            .store(awaits, std::sync::atomic::Ordering::Relaxed);
    }

    /// Whether replies wait that need not any more.
    pub(super) fn may_release_replies(&self) -> bool {
        if self.awaiting_log.is_empty() {
            return false;
        }
        let reached = self.server().journal.reached();
        let mut waiting = self.awaiting_log.iter().map(|&slot| self.connections.get(slot));
        waiting.any(|place| matches!(place, Some(Some(connection)) if connection.ticket <= reached))
    }

    fn release_replies(&mut self) {
        if self.awaiting_log.is_empty() {
            return;
        }
        let reached = self.server().journal.reached();
        for slot in std::mem::take(&mut self.awaiting_log) {
            // It may have closed, and its place may be another's.
            let Some(Some(connection)) = self.connections.get_mut(slot) else { continue };
            if connection.ticket > reached {
                self.awaiting_log.push(slot);
            } else if connection.ticket != 0 {
                connection.ticket = 0;
                self.go_on(slot);
            }
        }
    }
}
