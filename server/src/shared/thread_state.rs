//! What a thread has at hand while it runs commands.

use std::{
    cell::{Cell, RefCell},
    collections::VecDeque,
    hint::cold_path,
    time::{Duration, Instant},
};

use braid_journal::intake::{Ticket, Writer};
use braid_storage::{Change, executor::Node};

use crate::{
    client::{
        node::{Job, Offload},
        session::{Request, Session},
    },
    log,
    notify::notifications::Notification,
    scripting::{functions, running_scripts::Running, scripts},
    shared::{mail::Mail, server::Server},
    telemetry::stats::ThreadStats,
};

/// How long a thread drains others' work before it turns to its own sockets again.
const DRAIN_BUDGET: Duration = Duration::from_micros(50);

/// The clock is read after so many of others' fast commands: some microseconds.
const FAST_COMMANDS_PER_LOOK: u32 = 8;

/// What a thread has at hand while it runs commands.
pub struct ThreadState {
    /// Its number. Heavy-work threads count on behind the I/O threads.
    pub index: usize,
    server: &'static Server,
    /// Where it counts.
    stats: &'static ThreadStats,
    /// The threads that were sent nodes since the last `send_wakes`, a bit each.
    wakes: Cell<u128>,
    /// The threads whose queues were too full when something was sent to them since the last `charge`, a bit
    /// each.
    flooded: Cell<u128>,
    /// A held shard, or the lane, lies in the injector for others.
    wake_someone: bool,
    /// One lies there that this thread comes back to.
    pub keeps_one: bool,
    /// See [`Self::comes_back`].
    comes_back: bool,
    /// A job waits for a heavy-work thread.
    pub wake_heavy: bool,
    /// Nodes that have pinned their values: a heavy-work thread goes on with them when it holds nothing.
    pub offloaded: VecDeque<Box<Node<Job>>>,
    /// What offloaded work has left, to be freed when nothing is held.
    pub spent: Vec<Box<Offload>>,
    /// The time of commands that is accounted for, in nanoseconds, since the thread began: what was done
    /// within a longer piece of work whose time is taken as a whole.
    pub accounted_nanos: Cell<u64>,
    /// Room for the changes of a unit.
    pub changes: Cell<Vec<Change>>,
    /// Room for the name of a channel of keyspace events.
    pub channel_name: Cell<Vec<u8>>,
    /// What it has logged and not published yet.
    pub log: RefCell<Writer>,
    /// What it sends once the scripts that run are over, if it keeps that back.
    kept_back: RefCell<Option<Vec<(usize, Notification)>>>,
    /// The last ticket that the log has given to what is under way, or to what that has read; 0 if none.
    pub ticket: Cell<Ticket>,
    /// Its Lua states must be collected.
    pub owes_collection: Cell<bool>,
    /// What this turn has spent on others' work.
    drain: Drain,
}

/// Time spent on others' work.
#[derive(Default)]
struct Drain {
    spent: Duration,
    /// When the drain that is under way began.
    began: Option<Instant>,
    /// How often it was asked whether time is left since the clock was read.
    n_asked: u32,
    /// What was done since the clock was read may have taken long.
    was_long: bool,
    /// Nothing is left for this turn.
    is_spent: bool,
}

impl ThreadState {
    /// The state of a thread that has run nothing yet.
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
            kept_back: RefCell::new(None),
            ticket: Cell::new(0),
            owes_collection: Cell::new(false),
            drain: Drain::default(),
        }
    }

    /// Does a client's work; gives the last ticket of what it has logged or read, 0 if there is none.
    pub fn ticket_of<R>(&mut self, work: impl FnOnce(&mut Self) -> R) -> (Ticket, R) {
        let before = self.ticket.replace(0);
        let done = work(self);
        let ticket = self.ticket.get();
        self.ticket.set(ticket.max(before));
        (ticket, done)
    }

    /// Has the reply to what is under way wait until the log has come to a ticket.
    pub fn await_ticket(&self, ticket: Ticket) {
        self.ticket.set(self.ticket.get().max(ticket));
    }

    /// Whether it has logged something that it has not published.
    pub fn has_unpublished(&self) -> bool {
        self.log.borrow().unpublished_bytes() > 0
    }

    /// Has those who merge the log find what this thread has logged.
    pub fn publish_log(&self) {
        let mut log = self.log.borrow_mut();
        if log.unpublished_bytes() > 0 {
            self.server.durability.publish(&mut log);
        }
    }

    /// Keeps room for the changes of the next unit. It goes from shard to shard, and each may have some: it
    /// is little.
    pub fn keep_room(&self, mut changes: Vec<Change>) {
        const N_CHANGES_MAX: usize = 16;
        changes.clear();
        if changes.capacity() <= N_CHANGES_MAX {
            self.changes.set(changes);
        }
    }

    /// The server. It lives as long as the process, so nobody counts references to it: all threads would
    /// write that count.
    #[inline(always)]
    pub fn server(&self) -> &'static Server {
        self.server
    }

    /// Where the thread counts. Heavy-work threads count with the first I/O threads' neighbours: each has a
    /// peer of its own.
    #[inline(always)]
    pub fn stats(&self) -> &'static ThreadStats {
        self.stats
    }

    /// The script or function that it runs, as others see it.
    pub fn program(&self) -> &'static Running {
        &self.server.threads[self.index].program
    }

    /// Collects what programs have left in its Lua, for a while and with nothing held, if that is much.
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

    /// Whether sockets are served here, so that no command may work long.
    pub fn serves_sockets(&self) -> bool {
        self.index < self.server.io_threads().len()
    }

    /// Sends a finished node back to its thread; the wake-up follows once the shards are released.
    pub fn send_home(&self, origin: usize, node: Box<Node<Job>>) {
        self.server.threads[origin].inbox.push(node);
        self.wake_later(origin);
    }

    /// Sends a letter, under a hold; the wake-up follows once the shards are released.
    pub fn send_mail(&self, thread: usize, mail: Mail) {
        self.server.threads[thread].mail.push(mail);
        self.wake_later(thread);
    }

    /// Tells a thread of something, under a hold likewise.
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

    /// Keeps back what it sends until the guard drops: a script may yet come to keys that nobody holds, and
    /// who has its message is to find what it has written there.
    pub fn keep_back_notifications(&self) -> KeptBack<'_> {
        let mut kept_back = self.kept_back.borrow_mut();
        let begins = kept_back.is_none();
        if begins {
            *kept_back = Some(Vec::new());
        }
        KeptBack(begins.then_some(self))
    }

    /// Has a client whose command has just sent to queues that are too full wait for them before its next
    /// command.
    pub fn charge(&self, session: &Session) {
        let flooded = self.flooded.take();
        if flooded != 0 {
            session.floods.set(session.floods.get() | flooded);
            session.ask(Request::AwaitRoom);
        }
    }

    /// Has the next `send_wakes` wake a thread, which needs no waking if it is this one.
    fn wake_later(&self, thread: usize) {
        if thread != self.index {
            self.wakes.set(self.wakes.get() | 1 << thread);
        }
    }

    /// Wakes whom something was sent to, and frees what was not to be freed under a hold.
    pub fn send_wakes(&mut self) {
        self.flooded.set(0);
        if !self.serves_sockets() {
            // Nobody else would see to it that this is written. A thread that serves sockets does at the end
            // of its turn.
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

    /// Says that the first hold that goes to the injector from now on, or none any more, is taken out again
    /// by this thread at its next turn. To wake another for it, and to sleep until that one has no time
    /// either, costs more than what happens under it. If the thread has something of its own to do before, it
    /// [leaves it to others](Self::leave_to_others).
    pub fn comes_back(&mut self, comes_back: bool) {
        self.comes_back = comes_back;
        if comes_back {
            self.keeps_one = false;
        }
    }

    /// Notes that something held went to the injector.
    pub fn handed_off(&mut self) {
        if self.comes_back && !self.keeps_one {
            self.keeps_one = true;
        } else {
            self.wake_someone = true;
        }
    }

    /// Has another thread take what this one would come back to.
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
        // The first that sleeps is enough.
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

    /// Has the clock read at the next question: what was done, if it was others', was not one fast command.
    pub fn worked_long(&mut self) {
        self.drain.was_long = true;
    }

    /// Ends a drain, if one is under way: what follows is the thread's own work.
    pub fn end_drain(&mut self) {
        if let Some(began) = self.drain.began.take() {
            self.drain.spent += began.elapsed();
        }
    }

    /// Gives the thread a new budget for others' work: it has been at its own sockets.
    #[inline]
    pub fn renew_budget(&mut self) {
        self.drain = Drain::default();
    }
}

/// As long as this is there, its thread keeps back what it sends; nothing within another one.
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
