//! The changes that the connections of a thread have taken, for tests.

use std::{cell::RefCell, collections::BTreeSet};

use super::{StateChange, StateName};

thread_local! {
    static TAKEN: RefCell<BTreeSet<(StateName, StateChange)>> = const { RefCell::new(BTreeSet::new()) };
}

/// All states.
pub const STATES: [StateName; 10] = [
    StateName::Handshake,
    StateName::Ready,
    StateName::InputAwaitsNotifications,
    StateName::InputAwaitsRoom,
    StateName::Away,
    StateName::AwaitsKeys,
    StateName::Postponed,
    StateName::Resting,
    StateName::AwaitsSync,
    StateName::ReplyAwaitsNotifications,
];

/// All changes.
pub const CHANGES: [StateChange; 14] = [
    StateChange::Secured,
    StateChange::NotificationsCameFirst,
    StateChange::QueuesFilled,
    StateChange::QueuesEmptied,
    StateChange::Departed,
    StateChange::KeysAwaited,
    StateChange::KeysLeft,
    StateChange::PauseBegan,
    StateChange::RestBegan,
    StateChange::SyncAwaited,
    StateChange::NotificationsPrecede,
    StateChange::NotificationsRead,
    StateChange::Returned,
    StateChange::Closed,
];

/// Notes a change.
pub(super) fn note(from: StateName, change: StateChange) {
    TAKEN.with_borrow_mut(|taken| taken.insert((from, change)));
}

/// Returns the possible changes that no connection of this thread has taken, except those of handshakes.
pub fn missing() -> Vec<(StateName, StateChange)> {
    let possible = STATES.iter().flat_map(|&state| CHANGES.map(|change| (state, change)));
    let is_missing = |&(state, change): &(StateName, StateChange)| {
        state != StateName::Handshake
            && state.after(change).is_some()
            && TAKEN.with_borrow(|taken| !taken.contains(&(state, change)))
    };
    possible.filter(is_missing).collect()
}
