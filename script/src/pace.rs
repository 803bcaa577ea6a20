//! The pace at which a running script asks the host whether it may continue.

use std::cell::Cell;
use std::time::{Duration, Instant};

use crate::host::INSTRUCTIONS_PER_INTERRUPT;

/// The instructions between two of Lua's hooks. An instruction that copies a long string takes milliseconds.
pub(crate) const INSTRUCTIONS_PER_HOOK: u32 = INSTRUCTIONS_PER_INTERRUPT / 10;
/// The longest time between two questions, however few instructions have run.
const TIME_PER_INTERRUPT: Duration = Duration::from_millis(2);

/// The times of the questions: every [`INSTRUCTIONS_PER_INTERRUPT`], or sooner if those take long.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    n_hooks: Cell<u32>,
    asked_at: Cell<Option<Instant>>,
}

impl Pace {
    /// Notes that a run begins.
    pub fn begin(&self) {
        self.asked_at.set(None);
    }

    /// Notes a hook. Returns whether the host must be asked.
    pub fn is_due(&self) -> bool {
        let n_hooks = self.n_hooks.get() + 1;
        self.n_hooks.set(n_hooks);
        let now = Instant::now();
        let asked_at = self.asked_at.get().unwrap_or(now);
        let is_due = n_hooks.is_multiple_of(INSTRUCTIONS_PER_INTERRUPT / INSTRUCTIONS_PER_HOOK)
            || now - asked_at >= TIME_PER_INTERRUPT;
        if is_due || self.asked_at.get().is_none() {
            self.asked_at.set(Some(now));
        }
        is_due
    }
}
