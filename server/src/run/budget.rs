//! The amount of work that a thread with sockets does for a client's current input.

use std::cell::Cell;

use braid_protocol::number::parse_i64;
use braid_storage::{
    entry::db::Db,
    sync::work::{WORK_MAX, WORK_MAX_BYTES},
    table::hash::{Routed, Router},
};

use crate::{
    catalog::{Flags, Words},
    client::session::Queue,
    command::{Look, Registered, Work},
    run::command_lookup,
};

/// The work of one pipeline after which a thread with sockets offloads commands. More would delay its other
/// clients.
const BATCH_WORK_MAX: usize = 4 * WORK_MAX;

/// The work that a thread with sockets still does for a client's current input.
pub struct Budget {
    left: Cell<usize>,
    left_for_woken: Cell<usize>,
}

impl Budget {
    /// The budget for one pipeline.
    pub fn of_batch() -> Self {
        Budget { left: Cell::new(BATCH_WORK_MAX), left_for_woken: Cell::new(BATCH_WORK_MAX) }
    }

    /// Restores the part for the client's own commands.
    pub fn renew(&self) {
        self.left.set(BATCH_WORK_MAX);
    }

    /// Subtracts the expected work of a command that will run with its shards held. Returns whether the
    /// budget suffices.
    ///
    /// For EXEC the commands of the transaction count. Rows whose work is bounded need no check.
    pub fn admits(
        &self,
        look: &mut Look<'_, '_>,
        router: &Router,
        queue: Option<&Queue>,
        command: &Registered,
        words: Words<'_>,
        first: Option<Routed>,
    ) -> bool {
        let expected = match (command.spec.work, queue) {
            (Work::Grows { estimate, .. }, _) => estimate(look, command.args(words, router, first)),
            (_, Some(queue)) if command.runs_queue() => expected_of(look, router, queue),
            _ => return true,
        };
        let left = self.left.get().checked_sub(expected).filter(|_| expected <= WORK_MAX);
        self.left.set(left.unwrap_or(self.left.get()));
        left.is_some()
    }

    /// Subtracts work for clients that waited for the keys of a command. It cannot be estimated before the
    /// command.
    pub fn charge_for_woken(&self, work: usize) {
        self.left_for_woken.set(self.left_for_woken.get().saturating_sub(work));
    }

    /// Whether nothing is left for waiting clients. Then the client's next commands run after the turns of
    /// other clients.
    pub fn is_spent(&self) -> bool {
        self.left_for_woken.get() == 0
    }
}

impl Budget {
    /// Whether a command of a script is short enough to run within it.
    pub fn is_short_in_script(
        look: &mut Look<'_, '_>,
        router: &Router,
        command: &Registered,
        words: Words<'_>,
        first: Option<Routed>,
    ) -> bool {
        look.be_final();
        match command.spec.work {
            Work::Grows { estimate, .. } => estimate(look, command.args(words, router, first)) <= WORK_MAX,
            Work::Bounded | Work::Refused { .. } | Work::Carries { .. } | Work::Selects => true,
        }
    }
}

/// Estimates the work of a transaction's commands before the first one runs.
///
/// Their shards are held.
///
/// Stops counting above [`WORK_MAX`].
fn expected_of(look: &mut Look<'_, '_>, router: &Router, queue: &Queue) -> usize {
    let (n_words, n_bytes) = (queue.n_words(), queue.n_bytes());
    if n_words > 2 * WORK_MAX || n_bytes > WORK_MAX_BYTES {
        return usize::MAX;
    }
    let (mut total, mut made) = (0usize, 0usize);
    look.be_final();
    for (command, words) in command_lookup::queued(queue) {
        let args = command.args(words, router, None);
        let own = match command.spec.work {
            Work::Bounded => 0,
            Work::Selects => {
                let db = args.peek().and_then(parse_i64).and_then(|db| u32::try_from(db).ok());
                look.db = db.map_or(look.db, Db);
                0
            }
            Work::Carries { estimate } => {
                made = made.saturating_add(estimate(look, args));
                0
            }
            Work::Grows { estimate, .. } | Work::Refused { estimate } => {
                estimate(look, args).saturating_add(made)
            }
        };
        total = total.saturating_add(own);
        if total > WORK_MAX {
            break;
        }
        if command.has(Flags::WRITE) {
            made = made.saturating_add(own).saturating_add(words.len());
        }
    }
    total
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_for_waiting_clients_ends_the_turn_over_several_batches() {
        let budget = Budget::of_batch();
        for _ in 0..3 {
            budget.charge_for_woken(BATCH_WORK_MAX / 4);
            budget.renew();
            assert!(!budget.is_spent());
        }
        budget.charge_for_woken(BATCH_WORK_MAX);
        budget.renew();
        assert!(budget.is_spent(), "the next batch gets nothing for them");
    }
}
