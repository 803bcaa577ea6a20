//! Snapshots on disk: the orders, and the results of the last ones.
//!
//! One thread takes all snapshots, the saver. Other threads leave [orders](Saves::order) or
//! [schedule](Saves::schedule) one, and read its progress here. The saver alone writes the figures.

use std::{
    sync::atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize, Ordering},
    time::Duration,
};

use crate::clock::Instant;

use braid_storage::{
    entry::db::Db,
    observers::snapshot::{Parts, SaveStep},
    sync::{
        coordinator::{Panic, Worker},
        executor::Node,
    },
    table::hash::ShardId,
};
use crossbeam_queue::SegQueue;

use crate::client::{node::Job, session::SaveOrder};

/// An ordered snapshot with a waiting client or thread.
pub struct PendingSave {
    /// The purpose of the snapshot.
    pub what: SaveOrder,
    /// If the server will end: the [round](Ending::ask) in which this was requested.
    pub round: u64,
    /// The node of the ordering command, if any, and whether its client wants the reply.
    pub node: Option<(Box<Node<Job>>, bool)>,
}

/// A step of a snapshot's walk: a shard gives part of its data.
///
/// It goes from the saver to a thread that serves sockets, and back.
pub struct WalkStep {
    /// The giving shard.
    pub shard: ShardId,
    /// Whether the shard gives nothing, and its marks are cleared.
    pub gives_up: bool,
    /// The data that it has given.
    pub parts: Parts,
    /// The thread that takes the step.
    pub thread: usize,
    /// The result of the step; `None` if another thread holds the shard.
    pub ended: Option<Result<SaveStep, Panic>>,
}

impl WalkStep {
    /// The time for which it may hold a shard.
    const TIME: Duration = Duration::from_micros(50);
    /// The amount that it may give, in bytes.
    const N_BYTES: usize = 256 << 10;

    /// Creates a step that has given nothing yet.
    pub fn new() -> Box<Self> {
        Box::new(Self { shard: ShardId(0), gives_up: false, parts: Parts::default(), thread: 0, ended: None })
    }

    /// Takes the step.
    pub fn take(&mut self, worker: &mut Worker<Job>) {
        let Self { shard, gives_up, ref mut parts, ref mut ended, .. } = *self;
        *ended = worker.with_shards(&[shard], |held, thread| {
            let server = thread.server();
            let shard = held.shard(shard);
            shard.start_at(server.clock.now(), || server.clock.now());
            shard.go_to(Db::default());
            if gives_up {
                shard.give_up_snapshot();
                server.panic_while_saving();
            }
            let began = Instant::now();
            shard.save_some(parts, |parts| {
                if !gives_up {
                    server.panic_while_saving();
                }
                began.elapsed() < Self::TIME && parts.n_bytes() < Self::N_BYTES
            })
        });
    }
}

/// The progress of a server's end that the saver was asked for.
///
/// The saver decides on the end, and other threads may abort it. Both agree on which was first.
///
/// ```text
///           ask                decide
/// NOBODY ─────────▶ WANTED ─────────────▶ DECIDED
///    ▲                │
///    └────────────────┘ refused; or aborted, which begins the next round
/// ```
///
/// An abort calls off everything that was requested in an earlier round.
#[derive(Default)]
pub struct Ending(AtomicU64);

/// The origin of a request to end.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum AskedBy {
    /// A client, by SHUTDOWN.
    Client,
    /// A signal.
    Signal,
}

impl Ending {
    /// A word is one of these and a round.
    const NOBODY: u64 = 0;
    const WANTED: u64 = 1;
    const WANTED_BY_SIGNAL: u64 = 2;
    const DECIDED: u64 = 3;
    const STATES: u64 = 4;

    fn load(&self) -> (u64, u64) {
        let word = self.0.load(Ordering::Relaxed);
        (word / Self::STATES, word % Self::STATES)
    }

    /// Updates the word's round and state with `to`. Returns false if `to` returns none.
    fn update(&self, to: impl Fn(u64, u64) -> Option<(u64, u64)>) -> bool {
        let to = |word| {
            to(word / Self::STATES, word % Self::STATES).map(|(round, state)| round * Self::STATES + state)
        };
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, to).is_ok()
    }

    /// Requests an end, and returns the round of the request.
    pub fn ask(&self, by: AskedBy) -> u64 {
        self.update(|round, state| match (state, by) {
            (Self::NOBODY, AskedBy::Client) => Some((round, Self::WANTED)),
            (Self::NOBODY | Self::WANTED, AskedBy::Signal) => Some((round, Self::WANTED_BY_SIGNAL)),
            _ => None,
        });
        self.load().0
    }

    /// Requests the end again, if it was requested in this round. Another request may have been refused just
    /// then.
    pub fn ask_still(&self, round: u64) {
        self.update(|now, state| (now == round && state == Self::NOBODY).then_some((round, Self::WANTED)));
    }

    /// Whether an end is requested.
    pub fn is_wanted(&self) -> bool {
        matches!(self.load().1, Self::WANTED | Self::WANTED_BY_SIGNAL)
    }

    /// Whether a signal has requested it, too.
    pub fn is_wanted_by_signal(&self) -> bool {
        self.load().1 == Self::WANTED_BY_SIGNAL
    }

    /// Aborts the end. Returns false if none is requested, or if it is too late.
    pub fn abort(&self) -> bool {
        self.update(|round, state| {
            matches!(state, Self::WANTED | Self::WANTED_BY_SIGNAL).then_some((round + 1, Self::NOBODY))
        })
    }

    /// Whether the requests of this round were called off.
    pub fn is_called_off(&self, round: u64) -> bool {
        self.load().0 != round
    }

    /// Decides on the end. No thread can call off the requests of this round any more. Returns false if one
    /// has.
    pub fn decide(&self, round: u64) -> bool {
        self.update(|now, _| (now == round).then_some((round, Self::DECIDED)))
    }

    /// Records that the end was refused to all requests of this round.
    pub fn refused(&self, round: u64) {
        self.update(|now, state| (now == round && state != Self::DECIDED).then_some((round, Self::NOBODY)));
    }
}

/// The snapshot that BGSAVE CANCEL has cancelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cancelled {
    /// The one in progress.
    UnderWay,
    /// One that had not begun.
    Scheduled,
}

/// The results of the last snapshots, and the progress of the current one.
///
/// All accesses are relaxed: each figure stands for itself.
pub struct Saves {
    /// The orders, in order.
    orders: SegQueue<PendingSave>,
    /// The number of orders that are not fulfilled, including those that the saver has taken.
    n_unfulfilled: AtomicUsize,
    /// Steps that were taken for the saver.
    pub taken: SegQueue<Box<WalkStep>>,
    /// Whether a snapshot is being taken, or about to be.
    pub is_under_way: AtomicBool,
    /// Whether a copy for replicas is being made.
    pub is_copying: AtomicBool,
    /// Whether a snapshot will be taken as soon as possible.
    is_scheduled: AtomicBool,
    /// Whether all data was flushed since the current snapshot was requested.
    is_flushed: AtomicBool,
    /// Whether a client has cancelled the background snapshot.
    is_cancelled: AtomicBool,
    /// Whether a client or thread waits for the current snapshot, which cannot be cancelled then.
    is_awaited: AtomicBool,
    /// The time of the last success, in seconds of Unix time. Before the first one it is the server's start.
    pub saved_at: AtomicU64,
    /// The same in milliseconds of the steady clock, which save points use.
    pub saved_steady: AtomicU64,
    /// The start of the last attempt, by the same clock.
    pub tried_steady: AtomicU64,
    /// Whether the last snapshot failed.
    pub has_failed: AtomicBool,
    /// The duration of the last snapshot in seconds; -1 if there was none.
    pub took_seconds: AtomicI64,
    /// The start of the current snapshot, in milliseconds of uptime.
    pub began_at: AtomicU64,
    /// Whether the append-only file will be rewritten as soon as possible.
    pub is_rewrite_scheduled: AtomicBool,
    /// Whether the append-only file is being rewritten.
    pub is_rewriting: AtomicBool,
    /// Whether the last rewrite failed.
    pub has_rewrite_failed: AtomicBool,
    /// The number of rewrites that succeeded.
    pub n_rewritten: AtomicU64,
    /// The number of rewrites that failed since the last success.
    pub n_rewrites_failed: AtomicU64,
    /// The number of rewrites that failed since the start.
    pub n_rewrites_failed_ever: AtomicU64,
    /// The duration of the last rewrite in seconds; -1 if there was none.
    pub rewrite_took_seconds: AtomicI64,
    /// The start of the current rewrite, in milliseconds of uptime.
    pub rewrite_began_at: AtomicU64,
    /// Whether the current work is given up, as if it had failed. Tests check the consequences.
    pub is_given_up: AtomicBool,
    /// The number of snapshots that succeeded.
    pub n_saved: AtomicU64,
    /// The threads' count of changes to keys at the cut of the last successful snapshot.
    pub n_changes_saved: AtomicU64,
    /// Whether writes are held back because too much waits to be written.
    pub holds_writes: AtomicBool,
    /// Whether the snapshot with which the server ends has been cut.
    has_last_cut: AtomicBool,
    /// The progress of the server's end.
    pub ending: Ending,
    /// The number of keys that the current snapshot has to write.
    pub n_keys: AtomicU64,
    /// The number of keys that it has written.
    pub n_keys_written: AtomicU64,
}

impl Saves {
    /// Creates the state of a server that has saved nothing.
    ///
    /// It starts at `now`, in seconds of Unix time.
    pub fn new(now: u64) -> Self {
        Self {
            orders: SegQueue::new(),
            n_unfulfilled: AtomicUsize::new(0),
            taken: SegQueue::new(),
            is_under_way: AtomicBool::new(false),
            is_copying: AtomicBool::new(false),
            is_scheduled: AtomicBool::new(false),
            is_flushed: AtomicBool::new(false),
            is_cancelled: AtomicBool::new(false),
            is_awaited: AtomicBool::new(false),
            saved_at: AtomicU64::new(now),
            saved_steady: AtomicU64::new(0),
            tried_steady: AtomicU64::new(0),
            has_failed: AtomicBool::new(false),
            took_seconds: AtomicI64::new(-1),
            began_at: AtomicU64::new(0),
            is_rewrite_scheduled: AtomicBool::new(false),
            is_rewriting: AtomicBool::new(false),
            has_rewrite_failed: AtomicBool::new(false),
            n_rewritten: AtomicU64::new(0),
            n_rewrites_failed: AtomicU64::new(0),
            n_rewrites_failed_ever: AtomicU64::new(0),
            rewrite_took_seconds: AtomicI64::new(-1),
            rewrite_began_at: AtomicU64::new(0),
            is_given_up: AtomicBool::new(false),
            n_saved: AtomicU64::new(0),
            n_changes_saved: AtomicU64::new(0),
            holds_writes: AtomicBool::new(false),
            has_last_cut: AtomicBool::new(false),
            ending: Ending::default(),
            n_keys: AtomicU64::new(0),
            n_keys_written: AtomicU64::new(0),
        }
    }

    /// Leaves an order. The caller must wake the saver.
    pub fn order(&self, order: PendingSave) {
        self.n_unfulfilled.fetch_add(1, Ordering::Relaxed);
        self.orders.push(order);
    }

    /// The next order, for the saver.
    pub fn next_order(&self) -> Option<PendingSave> {
        self.orders.pop()
    }

    /// Whether there is a next order.
    pub fn has_next_order(&self) -> bool {
        !self.orders.is_empty()
    }

    /// Whether an order with a waiting client or thread is not fulfilled.
    pub fn has_unfulfilled(&self) -> bool {
        self.n_unfulfilled.load(Ordering::Relaxed) > 0
    }

    /// Records that an order has been fulfilled or refused.
    pub fn note_fulfilled(&self) {
        self.n_unfulfilled.fetch_sub(1, Ordering::Relaxed);
    }

    /// Starts a snapshot in the background. Returns false if one is under way already. The caller must wake
    /// the saver.
    pub fn begin(&self) -> bool {
        let begins = self.enter();
        if begins {
            self.schedule();
        }
        begins
    }

    /// Marks a snapshot as under way. Returns false if one was under way before.
    pub fn enter(&self) -> bool {
        let enters = !self.is_under_way.swap(true, Ordering::Relaxed);
        if enters {
            self.is_flushed.store(false, Ordering::Relaxed);
            self.is_cancelled.store(false, Ordering::Relaxed);
        }
        enters
    }

    /// Cancels the background snapshot under way, or else the scheduled one. The caller must wake the saver.
    pub fn cancel(&self) -> Option<Cancelled> {
        if self.is_under_way.load(Ordering::Relaxed) && !self.is_awaited.load(Ordering::Relaxed) {
            self.is_cancelled.store(true, Ordering::Relaxed);
            return Some(Cancelled::UnderWay);
        }
        self.take_scheduled().then_some(Cancelled::Scheduled)
    }

    /// Whether the background snapshot was cancelled.
    pub fn is_cancelled(&self) -> bool {
        self.is_cancelled.load(Ordering::Relaxed)
    }

    /// Notes whether a client or thread waits for the snapshot under way.
    pub fn set_awaited(&self, is_awaited: bool) {
        self.is_awaited.store(is_awaited, Ordering::Relaxed);
    }

    /// Notes that no snapshot is under way any more.
    pub fn leave(&self) {
        self.is_given_up.store(false, Ordering::Relaxed);
        self.is_cancelled.store(false, Ordering::Relaxed);
        self.is_under_way.store(false, Ordering::Relaxed);
    }

    /// Cancels the current background snapshot, if there is one. It would bring the flushed data back.
    pub fn note_flush(&self) {
        self.is_flushed.store(true, Ordering::Relaxed);
    }

    /// Whether all data was flushed since the current snapshot was requested.
    pub fn is_flushed(&self) -> bool {
        self.is_flushed.load(Ordering::Relaxed)
    }

    /// Schedules a snapshot for the time when the current one is done.
    pub fn schedule(&self) {
        self.is_scheduled.store(true, Ordering::Relaxed);
    }

    /// Whether a snapshot is scheduled.
    pub fn is_scheduled(&self) -> bool {
        self.is_scheduled.load(Ordering::Relaxed)
    }

    /// Schedules a rewrite of the append-only file, after a snapshot or at once.
    ///
    /// Returns false if a rewrite is under way, or begins in a moment without waiting for a snapshot. The
    /// caller must wake the saver.
    pub fn schedule_rewrite(&self, waits_for_snapshot: bool) -> bool {
        if self.is_rewriting.load(Ordering::Relaxed) {
            return false;
        }
        let is_asked_for = self.is_rewrite_scheduled.swap(true, Ordering::Relaxed);
        waits_for_snapshot || !is_asked_for
    }

    /// Counts a failed rewrite of the append-only file.
    pub fn count_failed_rewrite(&self) {
        self.n_rewrites_failed.fetch_add(1, Ordering::Relaxed);
        self.n_rewrites_failed_ever.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the minutes between attempts to rewrite the append-only file after many failures.
    pub fn rewrite_limit(&self) -> Option<u64> {
        const N_AT_ONCE: u64 = 3;
        const MINUTES_MAX: u64 = 60;
        let n_more = self.n_rewrites_failed.load(Ordering::Relaxed).checked_sub(N_AT_ONCE)?;
        Some(1u64.checked_shl(n_more.min(MINUTES_MAX) as u32).map_or(MINUTES_MAX, |n| n.min(MINUTES_MAX)))
    }

    /// Whether the server's last snapshot has been cut and its result is unknown.
    ///
    /// A holder of a shard sees the state as of the time when the shard was taken, or a later one.
    pub fn has_last_cut(&self) -> bool {
        self.has_last_cut.load(Ordering::Relaxed)
    }

    /// Sets that state, and returns the previous one.
    pub fn set_last_cut(&self, has_last_cut: bool) -> bool {
        self.has_last_cut.swap(has_last_cut, Ordering::Relaxed)
    }

    /// Whether a snapshot must be taken now. Clears the schedule.
    pub fn take_scheduled(&self) -> bool {
        self.is_scheduled.swap(false, Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rewrite_is_asked_for_once_before_it_begins() {
        let saves = Saves::new(0);
        assert!(saves.schedule_rewrite(true) && saves.schedule_rewrite(true), "a snapshot comes first");
        assert!(!saves.schedule_rewrite(false), "the snapshot is done");
        saves.is_rewriting.store(true, Ordering::Relaxed);
        saves.is_rewrite_scheduled.store(false, Ordering::Relaxed);
        assert!(!saves.schedule_rewrite(false) && !saves.schedule_rewrite(true));
        assert!(!saves.is_rewrite_scheduled.load(Ordering::Relaxed), "there is no other behind it");
        saves.is_rewriting.store(false, Ordering::Relaxed);
        assert!(saves.schedule_rewrite(false) && !saves.schedule_rewrite(false));
    }

    #[test]
    fn what_is_asked_for_after_an_abort_is_not_called_off() {
        let ending = Ending::default();
        assert!(!ending.abort(), "nobody wants it");
        let first = ending.ask(AskedBy::Client);
        assert!(ending.abort() && !ending.abort());
        let second = ending.ask(AskedBy::Signal);
        assert!(ending.is_called_off(first) && !ending.is_called_off(second));
        assert!(!ending.decide(first) && ending.decide(second));
        assert!(!ending.abort(), "it is too late");
    }

    #[test]
    fn a_signal_counts_as_long_as_its_end_is_wanted() {
        let ending = Ending::default();
        let round = ending.ask(AskedBy::Signal);
        assert!(ending.is_wanted_by_signal());
        ending.refused(round);
        assert!(!ending.is_wanted());
        assert_eq!(ending.ask(AskedBy::Client), round);
        assert!(ending.is_wanted() && !ending.is_wanted_by_signal());
        ending.ask(AskedBy::Signal);
        assert!(ending.is_wanted_by_signal());
        assert!(ending.abort() && !ending.is_wanted());
    }

    #[test]
    fn an_order_that_comes_while_another_is_refused_is_wanted_still() {
        let ending = Ending::default();
        let round = ending.ask(AskedBy::Client);
        ending.refused(round);
        ending.ask_still(round);
        assert!(ending.is_wanted() && ending.decide(round));
        ending.refused(round);
        assert!(!ending.is_wanted() && !ending.abort(), "it is decided");
    }
}
