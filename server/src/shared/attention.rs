//! The one word by which commands learn that something is to be looked at before they run.

use std::sync::atomic::{AtomicU64, Ordering};

/// How many reasons there are to look, in the lower half, and how often the rights of users have changed, in
/// the upper half.
///
/// Commands compare it with [`Session::rights_as_of`](crate::client::session::Session): it is equal if there
/// is no reason and the rights that the session knows are those that hold. It is read on the data path, and
/// written only by CLIENT PAUSE, CLIENT KILL, MONITOR and what changes users.
#[derive(Debug, Default)]
pub struct Attention(AtomicU64);

const ONE_CHANGE: u64 = 1 << 32;

impl Attention {
    /// There is one more reason to look.
    pub fn raise(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// There is one less.
    pub fn lower(&self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }

    /// The rights of users have changed; they are where [`Attention::rights`] is followed by a look.
    pub fn change_rights(&self) {
        // Release pairs with the Acquire in `rights`: who sees the number sees the users.
        self.0.fetch_add(ONE_CHANGE, Ordering::Release);
    }

    /// As of when the rights are that are looked up next.
    pub fn rights(&self) -> u64 {
        // Acquire pairs with the Release in `change_rights`.
        self.0.load(Ordering::Acquire) & !(ONE_CHANGE - 1)
    }

    /// Whether there is nothing to look at for whoever knows the rights as of a moment.
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
