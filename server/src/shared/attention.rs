//! The one word that tells commands to check something before they run.

use std::sync::atomic::{AtomicU64, Ordering};

/// The reasons to check, and the changes of users' rights, in one word.
///
/// The lower half counts the reasons, and the upper half the changes.
///
/// Commands compare it with [`Session::rights_as_of`](crate::client::session::Session). It is equal if there
/// is no reason and the session knows the current rights. It is read on the data path, and written only by
/// CLIENT PAUSE, CLIENT KILL, MONITOR and changes of users.
#[derive(Debug, Default)]
pub struct Attention(AtomicU64);

const ONE_CHANGE: u64 = 1 << 32;

impl Attention {
    /// Adds a reason to check.
    pub fn raise(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// Removes a reason to check.
    pub fn lower(&self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }

    /// The number of reasons to check.
    #[cfg(test)]
    pub fn n_raised(&self) -> u64 {
        self.0.load(Ordering::Relaxed) % ONE_CHANGE
    }

    /// Records that the rights of users have changed. A reader calls [`Attention::rights`] before it looks
    /// them up.
    pub fn change_rights(&self) {
        // Release pairs with the Acquire in `rights`: a thread that sees the number sees the users.
        self.0.fetch_add(ONE_CHANGE, Ordering::Release);
    }

    /// The version of the rights that are looked up next.
    pub fn rights(&self) -> u64 {
        // Acquire pairs with the Release in `change_rights`.
        self.0.load(Ordering::Acquire) & !(ONE_CHANGE - 1)
    }

    /// Whether a session with a version of the rights has nothing to check.
    #[inline(always)]
    pub fn is_idle(&self, rights_as_of: u64) -> bool {
        self.0.load(Ordering::Relaxed) == rights_as_of
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_idle_for_those_who_know_the_rights_while_there_is_no_reason() {
        let attention = Attention::default();
        let before = attention.rights();
        assert!(attention.is_idle(before));
        attention.raise();
        assert!(!attention.is_idle(before));
        attention.change_rights();
        attention.lower();
        assert!(!attention.is_idle(before));
        assert!(attention.is_idle(attention.rights()));
        attention.raise();
        assert!(!attention.is_idle(attention.rights()));
    }
}
