//! The state that a thread has at hand while it runs commands.

use std::{
    cell::{Cell, RefCell},
    collections::VecDeque,
    hint::cold_path,
    time::Duration,
};

use braid_journal::intake::{Kind, Received, Ticket, Writer};
use braid_protocol::request::write_words;
use braid_storage::{entry::db::Db, observers::ledger::Change, sync::executor::Node};

use crate::{
    client::{
        node::{Job, Offload},
        session::{Session, SessionRequest},
    },
    clock::Instant,
    log,
    notify::notifications::Notification,
    scripting::{functions, running_scripts::RunningScript, scripts},
    shared::{mail::Mail, server::Server},
    telemetry::stats::ThreadStats,
};

/// The time for others' work before a thread returns to its own sockets.
const DRAIN_BUDGET: Duration = Duration::from_micros(50);

/// The number of others' fast commands after which the clock is read: some microseconds.
const FAST_COMMANDS_PER_LOOK: u32 = 8;

/// The state that a thread has at hand while it runs commands.
pub struct ThreadState {
    /// Its number. The numbers of heavy-work threads follow those of the I/O threads.
    pub index: usize,
    server: &'static Server,
    /// The thread's statistics.
    stats: &'static ThreadStats,
    /// The threads that were sent nodes since the last `send_wakes`, one bit each.
    wakes: Cell<u128>,
    /// The threads whose queues were too full for this thread's notifications, one bit each. They count since
    /// the last `charge`.
    flooded: Cell<u128>,
    /// Whether a held shard, or the lane, is in the injector for other threads.
    wake_someone: bool,
    /// Whether one is there that this thread will take itself.
    pub keeps_one: bool,
    /// See [`Self::comes_back`].
    comes_back: bool,
    /// Whether a job waits for a heavy-work thread.
    pub wake_heavy: bool,
    /// Nodes that have pinned their values. A heavy-work thread continues them when it holds nothing.
    pub offloaded: VecDeque<Box<Node<Job>>>,
    /// The remains of offloaded work, to be freed when nothing is held.
    pub spent: Vec<Box<Offload>>,
    /// The time of commands that is accounted for, in nanoseconds, since the thread began. It is work within
    /// a longer piece of work whose time is taken as a whole.
    pub accounted_nanos: Cell<u64>,
    /// Space for the changes of a unit.
    pub changes: Cell<Vec<Change>>,
    /// Space for the name of a channel of keyspace events.
    pub channel_name: Cell<Vec<u8>>,
    /// The records that it has not published yet.
    pub log: RefCell<Writer>,
    /// The part of the primary's stream that is the unit under way.
    pub received: RefCell<ReceivedPart>,
    /// Messages that the unit under way has published, as commands for replicas.
    messages: RefCell<Vec<u8>>,
    /// The notifications that it keeps back until the running scripts are over, if any.
    kept_back: RefCell<Option<Vec<(usize, Notification)>>>,
    /// The last ticket of the work under way, or of a record that it has read. It is 0 without one.
    pub ticket: Cell<Ticket>,
    /// Whether its Lua states must be collected.
    pub owes_collection: Cell<bool>,
    /// This turn's time for others' work.
    drain: Drain,
}

/// A part of the primary's stream that is not in this server's stream yet.
#[derive(Default)]
pub struct ReceivedPart {
    bytes: Vec<u8>,
    /// The database that the stream has selected after it.
    db: Option<Db>,
}

impl ReceivedPart {
    /// Begins a part.
    pub fn set(&mut self, bytes: &[u8], db: Db) {
        // If a unit has panicked, its part is still here, and comes again.
        self.bytes.clear();
        self.bytes.extend_from_slice(bytes);
        self.db = Some(db);
    }

    /// Passes the part to `add`, if there is one. Then there is none.
    pub fn take<R>(&mut self, add: impl FnOnce(Received<'_>) -> R) -> Option<R> {
        let db = self.db.take()?;
        let added = add(Received { bytes: &self.bytes, db: db.0 });
        self.bytes.clear();
        // It may have been long, and the next one may be far away.
        self.bytes.shrink_to(KEPT_PART_BYTES);
        Some(added)
    }
}

/// The room for such parts that is kept, in bytes.
const KEPT_PART_BYTES: usize = 64 << 10;

/// The time spent on others' work.
#[derive(Default)]
struct Drain {
    spent: Duration,
    /// The start of the drain under way.
    began: Option<Instant>,
    /// The number of checks since the clock was read.
    n_asked: u32,
    /// Whether the work since the clock was read may have taken long.
    was_long: bool,
    /// Whether nothing is left for this turn.
    is_spent: bool,
}

impl ThreadState {
    /// Creates the state of a thread that has run nothing yet.
    pub fn new(index: usize, server: &'static Server) -> Self {
        Self {
            index,
            server,
            stats: &server.threads[index].stats,
            wakes: Cell::new(0),
            flooded: Cell::new(0),
            wake_someone: false,
            keeps_one: false,
            comes_back: false,
            wake_heavy: false,
            offloaded: VecDeque::new(),
            spent: Vec::new(),
            accounted_nanos: Cell::new(0),
            changes: Cell::default(),
            channel_name: Cell::default(),
            log: RefCell::new(Writer::new(index)),
            received: RefCell::default(),
            messages: RefCell::default(),
            kept_back: RefCell::new(None),
            ticket: Cell::new(0),
            owes_collection: Cell::new(false),
            drain: Drain::default(),
        }
    }

    /// Does a client's work, and returns its last ticket.
    ///
    /// That is the last ticket of its records and of those that it has read, or 0.
    pub fn ticket_of<R>(&mut self, work: impl FnOnce(&mut Self) -> R) -> (Ticket, R) {
        let before = self.ticket.replace(0);
        let done = work(self);
        let ticket = self.ticket.get();
        self.ticket.set(ticket.max(before));
        (ticket, done)
    }

    /// Makes the current reply wait until the log has reached a ticket.
    pub fn await_ticket(&self, ticket: Ticket) {
        self.ticket.set(self.ticket.get().max(ticket));
    }

    /// Whether it has records that it has not published.
    pub fn has_unpublished(&self) -> bool {
        self.log.borrow().unpublished_bytes() > 0
    }

    /// Publishes this thread's records to the threads that merge the log.
    pub fn publish_log(&self) {
        self.log_messages();
        let mut log = self.log.borrow_mut();
        if log.unpublished_bytes() > 0 {
            self.server.durability.publish(&mut log);
        }
    }

    /// Adds a command to the stream that only replicas get, if there are any.
    pub fn log_for_replicas(&self, words: &[&[u8]]) {
        if self.server.durability.is_followed() {
            self.server.durability.add(&mut self.log.borrow_mut(), |to| {
                write_words(to, words.len(), words.iter().copied());
                Kind::ForFollowers
            });
        }
    }

    /// Notes a message that the unit under way publishes, for replicas.
    ///
    /// It follows the unit's own record, so that a subscriber of a replica finds there what was written
    /// before.
    pub fn note_message(&self, words: [&[u8]; 3]) {
        if self.server.durability.is_followed() && !self.server.replica.is_on() {
            write_words(&mut self.messages.borrow_mut(), 3, words.into_iter());
        }
    }

    /// Adds the noted messages to the log.
    pub fn log_messages(&self) {
        let mut messages = self.messages.borrow_mut();
        if messages.is_empty() {
            return;
        }
        self.server.durability.add(&mut self.log.borrow_mut(), |to| {
            to.append(&mut messages);
            Kind::ForFollowers
        });
    }

    /// Keeps space for the changes of the next unit. It is small: it is swapped from shard to shard, and each
    /// may keep some.
    pub fn keep_room(&self, mut changes: Vec<Change>) {
        const N_CHANGES_MAX: usize = 16;
        changes.clear();
        if changes.capacity() <= N_CHANGES_MAX {
            self.changes.set(changes);
        }
    }

    /// The server. It lives as long as the process, so there is no reference count, which all threads would
    /// write.
    #[inline(always)]
    pub fn server(&self) -> &'static Server {
        self.server
    }

    /// The thread's statistics. Heavy-work threads count in peers of their own, next to those of the first
    /// I/O threads.
    #[inline(always)]
    pub fn stats(&self) -> &'static ThreadStats {
        self.stats
    }

    /// The script or function that it runs, as other threads see it.
    pub fn program(&self) -> &'static RunningScript {
        &self.server.threads[self.index].program
    }

    /// Collects the garbage of its Lua programs for a time, if there is much.
    ///
    /// Nothing is held.
    #[inline]
    pub fn collect_lua(&self, budget: Duration) {
        if !self.owes_collection.get() {
            return;
        }
        cold_path();
        let (began, seen) = (Instant::now(), self.program());
        let is_left = || scripts::collect_some(seen) | functions::collect_some(seen);
        while self.owes_collection.replace(is_left()) && began.elapsed() < budget {}
    }

    /// Whether it serves sockets, so that no command may work long.
    pub fn serves_sockets(&self) -> bool {
        self.index < self.server.io_threads().len()
    }

    /// Returns a finished node to its thread. The wake-up follows once the shards are released.
    pub fn send_home(&self, origin: usize, node: Box<Node<Job>>) {
        self.server.threads[origin].inbox.push(node);
        self.wake_later(origin);
    }

    /// Sends mail under a hold. The wake-up follows once the shards are released.
    pub fn send_mail(&self, thread: usize, mail: Mail) {
        self.server.threads[thread].mail.push(mail);
        self.wake_later(thread);
    }

    /// Sends a notification to a thread, under a hold in the same way.
    pub fn notify(&self, thread: usize, notification: Notification) {
        if let Some(kept_back) = &mut *self.kept_back.borrow_mut() {
            kept_back.push((thread, notification));
            return;
        }
        if self.server.threads[thread].notifications.add(notification) {
            self.flooded.set(self.flooded.get() | 1 << thread);
        }
        self.wake_later(thread);
    }

    /// Keeps back the notifications of this thread until the guard drops.
    ///
    /// A script may still continue to keys that are not held. A client that has its message must find the
    /// script's writes there.
    pub fn keep_back_notifications(&self) -> KeptBack<'_> {
        let mut kept_back = self.kept_back.borrow_mut();
        let begins = kept_back.is_none();
        if begins {
            *kept_back = Some(Vec::new());
        }
        KeptBack(begins.then_some(self))
    }

    /// Makes a client whose command has filled queues wait for them before its next command.
    pub fn charge(&self, session: &Session) {
        let flooded = self.flooded.take();
        if flooded != 0 {
            session.floods.set(session.floods.get() | flooded);
            session.ask(SessionRequest::AwaitRoom);
        }
    }

    /// Makes the next `send_wakes` wake a thread. The thread itself needs no waking.
    fn wake_later(&self, thread: usize) {
        if thread != self.index {
            self.wakes.set(self.wakes.get() | 1 << thread);
        }
    }

    /// Wakes the recipients of nodes and mail. Frees memory that must not be freed under a hold.
    pub fn send_wakes(&mut self) {
        self.flooded.set(0);
        if !self.serves_sockets() {
            // No other thread would write this. A thread that serves sockets does so at the end of its turn.
            self.publish_log();
            self.server.durability.aof.poke_if_behind();
        }
        if !self.spent.is_empty() {
            self.spent.clear();
        }
        log::write_held_back();
        let mut wakes = self.wakes.take();
        while wakes != 0 {
            let thread = wakes.trailing_zeros() as usize;
            wakes &= wakes - 1;
            self.server.threads[thread].wake_if_asleep();
        }
        if self.wake_someone {
            self.wake_someone = false;
            self.wake_another();
        }
        if self.wake_heavy {
            self.wake_heavy = false;
            self.server.wake_heavy();
        }
    }

    /// Sets whether this thread itself takes the next hold that goes to the injector.
    ///
    /// It takes the hold out in its next turn.
    ///
    /// Waking another thread for it, and sleeping until that one has no time either, costs more than the work
    /// under the hold. If the thread has other work to do before, it [leaves the hold to
    /// others](Self::leave_to_others).
    pub fn comes_back(&mut self, comes_back: bool) {
        self.comes_back = comes_back;
        if comes_back {
            self.keeps_one = false;
        }
    }

    /// Records that a hold went to the injector.
    pub fn handed_off(&mut self) {
        if self.comes_back && !self.keeps_one {
            self.keeps_one = true;
        } else {
            self.wake_someone = true;
        }
    }

    /// Makes another thread take the hold that this one would take itself.
    #[inline]
    pub fn leave_to_others(&mut self) {
        if self.keeps_one {
            cold_path();
            self.keeps_one = false;
            self.wake_another();
        }
    }

    /// Wakes an I/O thread, unless all others are awake.
    pub fn wake_another(&self) {
        let others = self.server.io_threads().iter().enumerate().filter(|(index, _)| *index != self.index);
        // The first sleeping one is enough.
        let _ = others.into_iter().any(|(_, peer)| peer.wake_if_asleep());
    }

    /// Whether there is time left for others' work.
    pub fn may_drain(&mut self) -> bool {
        let drain = &mut self.drain;
        if drain.is_spent {
            return false;
        }
        let began = *drain.began.get_or_insert_with(Instant::now);
        drain.n_asked += 1;
        if drain.was_long || drain.n_asked == FAST_COMMANDS_PER_LOOK {
            drain.was_long = false;
            drain.n_asked = 0;
            drain.is_spent = drain.spent + began.elapsed() >= DRAIN_BUDGET;
        }
        !drain.is_spent
    }

    /// Makes the next check read the clock, because the work was not one fast command.
    pub fn worked_long(&mut self) {
        self.drain.was_long = true;
    }

    /// Ends a drain, if one is under way, because the thread's own work follows.
    pub fn end_drain(&mut self) {
        if let Some(began) = self.drain.began.take() {
            self.drain.spent += began.elapsed();
        }
    }

    /// Starts a new budget for others' work, because the thread has served its own sockets.
    #[inline]
    pub fn renew_budget(&mut self) {
        self.drain = Drain::default();
    }
}

/// While this guard lives, its thread keeps back its notifications. An inner guard has no effect.
#[must_use]
pub struct KeptBack<'t>(Option<&'t ThreadState>);

impl Drop for KeptBack<'_> {
    fn drop(&mut self) {
        let Some(thread) = self.0 else { return };
        let kept_back = thread.kept_back.take();
        for (to, notification) in kept_back.into_iter().flatten() {
            thread.notify(to, notification);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_memory_of_a_long_received_part_is_given_back_when_it_is_taken() {
        let mut part = ReceivedPart::default();
        part.set(&vec![b'x'; 1 << 20], Db(3));
        assert_eq!(part.take(|received| (received.bytes.len(), received.db)), Some((1 << 20, 3)));
        assert!(part.bytes.capacity() <= KEPT_PART_BYTES);
        assert_eq!(part.take(|_| ()), None);
    }
}
