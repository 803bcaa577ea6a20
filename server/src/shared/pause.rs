//! CLIENT PAUSE, and similar reasons to hold writes back.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::{
    catalog::Flags,
    clock::Steady,
    shared::{mail::Mail, server::Server, thread_state::ThreadState},
};

/// CLIENT PAUSE: its end and its scope in one word.
///
/// So a new pause and the end of an old one do not mix.
///
/// The word is zero if there is no pause, otherwise a [`PauseState`].
#[derive(Debug, Default)]
pub struct Pause(AtomicU64);

/// A pause: its end by the steady clock, shifted left by one. The lowest bit says that only writes wait.
#[derive(Clone, Copy, PartialEq, Eq)]
struct PauseState(u64);

impl PauseState {
    fn new(until: Steady, scope: PauseScope) -> Self {
        // The word is never zero, which means no pause.
        Self(until.0.clamp(1, u64::MAX >> 1) << 1 | u64::from(scope == PauseScope::Writes))
    }

    fn until(self) -> Steady {
        Steady(self.0 >> 1)
    }

    fn scope(self) -> PauseScope {
        if self.0 & 1 == 1 { PauseScope::Writes } else { PauseScope::All }
    }
}

/// The commands that a pause holds back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PauseScope {
    /// All.
    All,
    /// Commands that may write.
    Writes,
}

impl Server {
    /// Starts a pause of `millis` milliseconds. A pause under way gets longer, never shorter, and the
    /// stricter scope applies.
    pub fn pause(&self, millis: u64, scope: PauseScope) {
        let now = self.clock.steady();
        let until = now.after(millis);
        let change = |word| {
            let new = PauseState::new(until, scope);
            let old = Some(PauseState(word)).filter(|old| word != 0 && now < old.until());
            Some(old.map_or(new, |old| {
                let is_stricter = [old.scope(), scope].contains(&PauseScope::All);
                let scope = if is_stricter { PauseScope::All } else { PauseScope::Writes };
                PauseState::new(old.until().max(until), scope)
            }))
            .map(|pause| pause.0)
        };
        // SeqCst: pairs with the load of the word in `settle_expiry`.
        let old = self.pause.0.fetch_update(Ordering::SeqCst, Ordering::Relaxed, change);
        self.settle_expiry();
        if old == Ok(0) {
            self.attention.raise();
        }
    }

    /// Stops expiry during a pause and on a replica, and lets it continue afterwards.
    pub fn settle_expiry(&self) {
        // One pause may end while another begins, on two threads. Each changes the word, stores this flag,
        // and reads the word again. In the single order of these accesses, the thread that stores last has
        // read the last word. The same holds for the role.
        let access = self.keyspace.access();
        // SeqCst: pairs with the changes of the word in `pause`, `unpause` and `end_overdue`.
        let must_keep = || {
            self.pause.0.load(Ordering::SeqCst) != 0
                || self.replica.is_on()
                || self.replication.failover.is_on()
        };
        loop {
            let keeps = must_keep();
            access.keep_expired(keeps);
            if must_keep() == keeps {
                return;
            }
        }
    }

    /// Whether a pause is under way. Ends a pause whose time is over.
    pub fn is_paused(&self) -> bool {
        let Some(pause) = self.pause_under_way() else { return false };
        let is_over = self.clock.steady() >= pause.until();
        if is_over {
            self.end_overdue(pause);
        }
        !is_over
    }

    /// Ends a pause, and makes all threads run the commands that it held back.
    pub fn unpause(&self, thread: &ThreadState) {
        // SeqCst: pairs with the load of the word in `settle_expiry`.
        if self.pause.0.swap(0, Ordering::SeqCst) != 0 {
            self.resumes();
            (0..self.io_threads().len()).for_each(|to| thread.send_mail(to, Mail::Resume));
        }
    }

    /// Ends a pause whose time is over, unless another has begun.
    ///
    /// The caller may be under a hold, so no thread is woken. Each continues in the next round of its cron.
    fn end_overdue(&self, pause: PauseState) {
        // SeqCst: pairs with the load of the word in `settle_expiry`.
        if self.pause.0.compare_exchange(pause.0, 0, Ordering::SeqCst, Ordering::Relaxed).is_ok() {
            self.resumes();
        }
    }

    fn resumes(&self) {
        self.settle_expiry();
        self.attention.lower();
    }

    fn pause_under_way(&self) -> Option<PauseState> {
        match self.pause.0.load(Ordering::Relaxed) {
            0 => None,
            word => Some(PauseState(word)),
        }
    }

    /// The pause's scope in the words of INFO.
    pub fn pause_reason(&self) -> &'static str {
        match self.pause_under_way().map(PauseState::scope) {
            _ if self.replication.failover.is_on() => "failover_in_progress",
            None => "none",
            Some(PauseScope::Writes) => "client_pause_write",
            Some(PauseScope::All) => "client_pause_all",
        }
    }

    /// The commands that the pause holds back, in the words of Valkey's INFO.
    pub fn paused_actions(&self) -> &'static str {
        match self.pause_under_way().map(PauseState::scope) {
            None if self.replication.failover.is_on() => "write",
            None => "none",
            Some(PauseScope::Writes) => "write",
            Some(PauseScope::All) => "all",
        }
    }

    /// The time until the pause ends, in milliseconds; 0 without a pause.
    pub fn paused_millis(&self) -> u64 {
        self.pause_under_way().map_or(0, |pause| pause.until().0.saturating_sub(self.clock.steady().0))
    }

    /// Whether a pause holds back a command with these flags.
    ///
    /// `may_write` says whether the command may write. A command that can end a pause is never held back.
    #[cold]
    pub fn holds_back(&self, flags: Flags, may_write: impl FnOnce() -> bool) -> bool {
        if flags.has(Flags::ENDS_PAUSES) {
            return false;
        }
        let pause = self.pause_under_way().filter(|_| self.is_paused());
        let saves = &self.saves;
        let holds_writes = pause.is_some()
            || saves.holds_writes.load(Ordering::Relaxed)
            || saves.has_last_cut()
            || self.replication.failover.is_on();
        pause.is_some_and(|pause| pause.scope() == PauseScope::All) || holds_writes && may_write()
    }

    /// Holds writes back until [`Server::let_writes_go`].
    ///
    /// Early values of a snapshot arrive faster than it writes them.
    ///
    /// Units under way end normally. This may be called under a hold.
    pub fn hold_writes(&self) {
        if !self.saves.holds_writes.swap(true, Ordering::Relaxed) {
            self.attention.raise();
        }
    }

    /// Holds writes back from the cut of the last snapshot on, with all shards held.
    ///
    /// The snapshot would lack these writes, so no client may see a reply to them or their effects. Only
    /// [`Server::let_writes_go_on`] ends this.
    pub fn hold_writes_for_end(&self) {
        if !self.saves.set_last_cut(true) {
            self.functions.freeze();
            self.attention.raise();
        }
    }

    /// Lets writes continue, because the last snapshot was not the last.
    pub fn let_writes_go_on(&self, thread: &mut ThreadState) {
        if self.saves.set_last_cut(false) {
            self.functions.thaw();
            self.attention.lower();
            (0..self.io_threads().len()).for_each(|to| thread.send_mail(to, Mail::Resume));
            thread.send_wakes();
        }
    }

    /// Whether nothing may change on its own, such as by eviction.
    pub fn keeps_all(&self) -> bool {
        self.is_paused() || self.saves.has_last_cut()
    }

    /// Lets writes continue that were held back for a snapshot.
    pub fn let_writes_go(&self, thread: &mut ThreadState) {
        let holds_writes = &self.saves.holds_writes;
        if holds_writes.load(Ordering::Relaxed) && holds_writes.swap(false, Ordering::Relaxed) {
            self.attention.lower();
            (0..self.io_threads().len()).for_each(|to| thread.send_mail(to, Mail::Resume));
            thread.send_wakes();
        }
    }
}
