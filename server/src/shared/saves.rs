//! Snapshots on disk: what is asked for, and what has become of the last.
//!
//! One thread takes all of them, the saver. Others leave it [orders](Saves::orders) or
//! [schedule](Saves::schedule) one, and read here how it goes; it alone writes the figures.

use std::{
    sync::atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize, Ordering},
    time::{Duration, Instant},
};

use braid_storage::{
    Db, Parts, SaveStep, ShardId,
    coordinator::{Panic, Worker},
    executor::Node,
};
use crossbeam_queue::SegQueue;

use crate::client::{node::Job, session::SaveOrder};

/// A snapshot that is waited for.
pub struct Order {
    /// What for.
    pub what: SaveOrder,
    /// If the server is to end: the [round](Ending::ask) in which that was asked for.
    pub round: u64,
    /// By whom, if it was a command, and whether its client wants the reply.
    pub node: Option<(Box<Node<Job>>, bool)>,
}

/// A step of a snapshot's walk: a shard gives some of what it holds. It goes from the saver to a thread that
/// serves sockets, and back.
pub struct WalkStep {
    /// Who gives.
    pub shard: ShardId,
    /// It gives nothing, and its marks are cleared.
    pub gives_up: bool,
    /// What it has given.
    pub parts: Parts,
    /// Who takes it.
    pub thread: usize,
    /// What has come of it; `None` if somebody else has the shard.
    pub ended: Option<Result<SaveStep, Panic>>,
}

impl WalkStep {
    /// How long it may hold a shard.
    const TIME: Duration = Duration::from_micros(50);
    /// How much it may give, in bytes.
    const N_BYTES: usize = 256 << 10;

    /// One that has nothing to give yet.
    pub fn new() -> Box<Self> {
        Box::new(Self { shard: ShardId(0), gives_up: false, parts: Parts::default(), thread: 0, ended: None })
    }

    /// Takes it.
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

/// How far an end has come that is asked of the saver. Whoever calls it off and whoever decides on it agree
/// on who was first.
///
/// ```text
///           ask                decide
/// NOBODY ─────────▶ WANTED ─────────────▶ DECIDED
///    ▲                │
///    └────────────────┘ refused; or aborted, which begins the next round: what was asked for in an earlier one is called off
/// ```
#[derive(Default)]
pub struct Ending(AtomicU64);

/// The side from which an end is asked for.
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

    /// Has the word become what is said of its round and state; returns false if that says nothing.
    fn update(&self, to: impl Fn(u64, u64) -> Option<(u64, u64)>) -> bool {
        let to = |word| {
            to(word / Self::STATES, word % Self::STATES).map(|(round, state)| round * Self::STATES + state)
        };
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, to).is_ok()
    }

    /// Somebody wants it. Returns the round in which that was.
    pub fn ask(&self, by: AskedBy) -> u64 {
        self.update(|round, state| match (state, by) {
            (Self::NOBODY, AskedBy::Client) => Some((round, Self::WANTED)),
            (Self::NOBODY | Self::WANTED, AskedBy::Signal) => Some((round, Self::WANTED_BY_SIGNAL)),
            _ => None,
        });
        self.load().0
    }

    /// It is wanted still, if it was asked for in this round: somebody else may have been refused just then.
    pub fn ask_still(&self, round: u64) {
        self.update(|now, state| (now == round && state == Self::NOBODY).then_some((round, Self::WANTED)));
    }

    /// Whether somebody wants it.
    pub fn is_wanted(&self) -> bool {
        matches!(self.load().1, Self::WANTED | Self::WANTED_BY_SIGNAL)
    }

    /// Whether a signal has asked for it, too.
    pub fn is_wanted_by_signal(&self) -> bool {
        self.load().1 == Self::WANTED_BY_SIGNAL
    }

    /// Calls it off; returns false if nobody wants it, or it is too late.
    pub fn abort(&self) -> bool {
        self.update(|round, state| {
            matches!(state, Self::WANTED | Self::WANTED_BY_SIGNAL).then_some((round + 1, Self::NOBODY))
        })
    }

    /// Whether what was asked for in this round was called off.
    pub fn is_called_off(&self, round: u64) -> bool {
        self.load().0 != round
    }

    /// Nobody can call off from now on what was asked for in this round; returns false if somebody has.
    pub fn decide(&self, round: u64) -> bool {
        self.update(|now, _| (now == round).then_some((round, Self::DECIDED)))
    }

    /// It has been refused to all who wanted it in this round.
    pub fn refused(&self, round: u64) {
        self.update(|now, state| (now == round && state != Self::DECIDED).then_some((round, Self::NOBODY)));
    }
}

/// How the last snapshots went, and how the one under way goes. Relaxed throughout: each is a figure for
/// itself.
pub struct Saves {
    /// What is waited for, in order.
    orders: SegQueue<Order>,
    /// The number of orders that are not fulfilled, those included that the saver has taken.
    n_unfulfilled: AtomicUsize,
    /// Steps that were taken for the saver.
    pub taken: SegQueue<Box<WalkStep>>,
    /// One is being taken, or about to be.
    pub is_under_way: AtomicBool,
    /// One is to be taken as soon as may be.
    is_scheduled: AtomicBool,
    /// All was flushed since the one under way was asked for.
    is_flushed: AtomicBool,
    /// When the last that succeeded did, in seconds of Unix time; before the first, when the server started.
    pub saved_at: AtomicU64,
    /// The same in milliseconds by the clock that nobody sets: save points go by it.
    pub saved_steady: AtomicU64,
    /// Begin of the last attempt, by the same clock.
    pub tried_steady: AtomicU64,
    /// Whether the last one failed.
    pub has_failed: AtomicBool,
    /// How many seconds the last one took; -1 if there was none.
    pub took_seconds: AtomicI64,
    /// When the one under way began, in milliseconds of uptime.
    pub began_at: AtomicU64,
    /// The append-only file is to be rewritten as soon as may be.
    pub is_rewrite_scheduled: AtomicBool,
    /// It is being rewritten.
    pub is_rewriting: AtomicBool,
    /// Whether the last rewrite failed.
    pub has_rewrite_failed: AtomicBool,
    /// How many have succeeded.
    pub n_rewritten: AtomicU64,
    /// How many have failed since the last that succeeded.
    pub n_rewrites_failed: AtomicU64,
    /// How many have failed since the start.
    pub n_rewrites_failed_ever: AtomicU64,
    /// How many seconds the last one took; -1 if there was none.
    pub rewrite_took_seconds: AtomicI64,
    /// When the one under way began, in milliseconds of uptime.
    pub rewrite_began_at: AtomicU64,
    /// What is under way is given up, as if it had failed: tests look at what comes of that.
    pub is_given_up: AtomicBool,
    /// How many have succeeded.
    pub n_saved: AtomicU64,
    /// How many changes of keys the threads had counted at the cut of the last that succeeded.
    pub n_changes_saved: AtomicU64,
    /// Writes are held back: so much waits to be written.
    pub holds_writes: AtomicBool,
    /// The snapshot that the server ends with has been cut.
    has_last_cut: AtomicBool,
    /// How far the end has come that the saver was asked for.
    pub ending: Ending,
    /// How many keys the one under way has to write.
    pub n_keys: AtomicU64,
    /// How many of them it has written.
    pub n_keys_written: AtomicU64,
}

impl Saves {
    /// Nothing has been saved by a server that starts now, in seconds of Unix time.
    pub fn new(now: u64) -> Self {
        Self {
            orders: SegQueue::new(),
            n_unfulfilled: AtomicUsize::new(0),
            taken: SegQueue::new(),
            is_under_way: AtomicBool::new(false),
            is_scheduled: AtomicBool::new(false),
            is_flushed: AtomicBool::new(false),
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

    /// Leaves an order. The saver is to be woken.
    pub fn order(&self, order: Order) {
        self.n_unfulfilled.fetch_add(1, Ordering::Relaxed);
        self.orders.push(order);
    }

    /// The next order, for the saver.
    pub fn next_order(&self) -> Option<Order> {
        self.orders.pop()
    }

    /// Whether there is a next order.
    pub fn has_next_order(&self) -> bool {
        !self.orders.is_empty()
    }

    /// Whether somebody waits for an order to be fulfilled.
    pub fn has_unfulfilled(&self) -> bool {
        self.n_unfulfilled.load(Ordering::Relaxed) > 0
    }

    /// Notes that an order has been fulfilled, or refused.
    pub fn note_fulfilled(&self) {
        self.n_unfulfilled.fetch_sub(1, Ordering::Relaxed);
    }

    /// Has a snapshot be taken in the background; returns false if one is under way already. The saver is to
    /// be woken.
    pub fn begin(&self) -> bool {
        let begins = self.enter();
        if begins {
            self.schedule();
        }
        begins
    }

    /// One is under way from now on; returns false if that was so before.
    pub fn enter(&self) -> bool {
        let enters = !self.is_under_way.swap(true, Ordering::Relaxed);
        if enters {
            self.is_flushed.store(false, Ordering::Relaxed);
        }
        enters
    }

    /// Has the one that is taken in the background, if there is one, be given up: it would bring back what
    /// was flushed.
    pub fn note_flush(&self) {
        self.is_flushed.store(true, Ordering::Relaxed);
    }

    /// Whether that has happened since the one under way was asked for.
    pub fn is_flushed(&self) -> bool {
        self.is_flushed.load(Ordering::Relaxed)
    }

    /// Has a snapshot be taken when the one under way is done.
    pub fn schedule(&self) {
        self.is_scheduled.store(true, Ordering::Relaxed);
    }

    /// Whether one is to be taken.
    pub fn is_scheduled(&self) -> bool {
        self.is_scheduled.load(Ordering::Relaxed)
    }

    /// Has the append-only file be rewritten, when a snapshot is done or at once; returns false if that is
    /// under way, or begins in a moment without waiting for one. The saver is to be woken.
    pub fn schedule_rewrite(&self, waits_for_snapshot: bool) -> bool {
        if self.is_rewriting.load(Ordering::Relaxed) {
            return false;
        }
        let is_asked_for = self.is_rewrite_scheduled.swap(true, Ordering::Relaxed);
        waits_for_snapshot || !is_asked_for
    }

    /// Notes that the append-only file could not be rewritten.
    pub fn count_failed_rewrite(&self) {
        self.n_rewrites_failed.fetch_add(1, Ordering::Relaxed);
        self.n_rewrites_failed_ever.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether the append-only file has failed to be rewritten so often that it is tried only now and then:
    /// how many minutes apart.
    pub fn rewrite_limit(&self) -> Option<u64> {
        const N_AT_ONCE: u64 = 3;
        const MINUTES_MAX: u64 = 60;
        let n_more = self.n_rewrites_failed.load(Ordering::Relaxed).checked_sub(N_AT_ONCE)?;
        Some(1u64.checked_shl(n_more.min(MINUTES_MAX) as u32).map_or(MINUTES_MAX, |n| n.min(MINUTES_MAX)))
    }

    /// Whether the snapshot that the server ends with has been cut, and what becomes of it is not known yet.
    /// Whoever holds a shard knows it as it was when the shard was taken, or later.
    pub fn has_last_cut(&self) -> bool {
        self.has_last_cut.load(Ordering::Relaxed)
    }

    /// Notes whether that is so; returns whether it was.
    pub fn set_last_cut(&self, has_last_cut: bool) -> bool {
        self.has_last_cut.swap(has_last_cut, Ordering::Relaxed)
    }

    /// Whether one is to be taken now; it is asked for once.
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
