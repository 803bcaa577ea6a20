//! The current users, and the rights denied to them.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arc_swap::{ArcSwap, Guard};

use crate::access::{Denials, Users};

/// The users, and the rights denied to them.
///
/// Users are replaced whole, so that no reader waits.
pub struct Accounts {
    users: ArcSwap<Users>,
    writer: Mutex<()>,
    denials: Mutex<Denials>,
}

impl Accounts {
    /// Creates a table of these users.
    pub fn new(users: Users) -> Self {
        Self { users: ArcSwap::from_pointee(users), writer: Mutex::new(()), denials: Mutex::default() }
    }

    /// The current users.
    pub fn users(&self) -> Guard<Arc<Users>> {
        self.users.load()
    }

    /// Changes the users, one change at a time.
    ///
    /// `change` edits a copy, which replaces the users unless it fails. `changed` is then called with the old
    /// and the new users, before another change begins.
    ///
    /// # Errors
    /// The error of `change`. Then nothing has changed.
    pub fn change<T, E>(
        &self,
        change: impl FnOnce(&mut Users) -> Result<T, E>,
        changed: impl FnOnce(&Users, &Users),
    ) -> Result<T, E> {
        let _writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        let before = self.users.load_full();
        let mut users = Users::clone(&before);
        let done = change(&mut users)?;
        let after = Arc::new(users);
        self.users.store(Arc::clone(&after));
        changed(&before, &after);
        Ok(done)
    }

    /// The denied rights.
    pub fn denials(&self) -> MutexGuard<'_, Denials> {
        self.denials.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
