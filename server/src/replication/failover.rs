//! The state of FAILOVER: the planned change of the primary.

use std::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicU8, Ordering},
};

use braid_journal::intake::Ticket;

use crate::config::PrimaryAddress;

/// How far a failover is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FailoverStep {
    /// There is none.
    #[default]
    None,
    /// Writes are held back until a replica has everything.
    WaitsForSync,
    /// This server is a replica of the target, which has not taken over yet.
    InProgress,
}

impl FailoverStep {
    /// The word for it in INFO.
    pub fn word(self) -> &'static str {
        match self {
            FailoverStep::None => "no-failover",
            FailoverStep::WaitsForSync => "waiting-for-sync",
            FailoverStep::InProgress => "failover-in-progress",
        }
    }
}

/// The change that FAILOVER has asked for.
#[derive(Clone, Debug, Default)]
pub struct FailoverPlan {
    /// The replica that takes over; any one if it is absent.
    pub target: Option<PrimaryAddress>,
    /// Whether the target takes over at the deadline even if it does not have everything.
    pub is_forced: bool,
    /// The end of the wait, in milliseconds of uptime.
    pub deadline: Option<u64>,
    /// The last ticket before writes were held back.
    pub last: Ticket,
}

/// A failover, if there is one.
#[derive(Default)]
pub struct Failover {
    step: AtomicU8,
    plan: Mutex<FailoverPlan>,
}

impl Failover {
    /// How far it is.
    pub fn step(&self) -> FailoverStep {
        // SeqCst: pairs with the store in `set_step`, for `Server::settle_expiry`.
        match self.step.load(Ordering::SeqCst) {
            0 => FailoverStep::None,
            1 => FailoverStep::WaitsForSync,
            _ => FailoverStep::InProgress,
        }
    }

    /// Whether there is one. Writes are held back then.
    pub fn is_on(&self) -> bool {
        self.step() != FailoverStep::None
    }

    /// Notes how far it is.
    pub fn set_step(&self, step: FailoverStep) {
        // SeqCst: pairs with the load in `step`.
        self.step.store(step as u8, Ordering::SeqCst);
    }

    /// The change that was asked for.
    pub fn plan(&self) -> MutexGuard<'_, FailoverPlan> {
        self.plan.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}
