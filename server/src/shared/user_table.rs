//! The users that hold, and what was denied to them.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arc_swap::{ArcSwap, Guard};

use crate::access::{Denials, Users};

/// The users, and what was denied to them.
///
/// Users are replaced whole, so that nobody waits to read them.
pub struct Accounts {
    users: ArcSwap<Users>,
    writer: Mutex<()>,
    denials: Mutex<Denials>,
}

impl Accounts {
    /// These users.
    pub fn new(users: Users) -> Self {
        Self { users: ArcSwap::from_pointee(users), writer: Mutex::new(()), denials: Mutex::default() }
    }

    /// The users that hold.
    pub fn users(&self) -> Guard<Arc<Users>> {
        self.users.load()
    }

    /// Changes the users, one change at a time. What `change` makes of a copy holds from here on, unless it
    /// fails; `changed` is then told what held before and what holds now, before another change begins.
    ///
    /// # Errors
    /// What `change` returns. Then nothing has changed.
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

    /// What was denied.
    pub fn denials(&self) -> MutexGuard<'_, Denials> {
        self.denials.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
