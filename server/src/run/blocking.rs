//! Commands that wait for keys: BLPOP and its kin.
//!
//! A blocking command that finds nothing says what it waits for ([`Call::wait_for`]). Its node is [`Parked`]: it stands, as the
//! same reference, in the line of every key it waits for. One thread *claims* it, and that one alone answers the client. It may be
//! claimed by
//! - the holder of a shard, after a command there wrote a key with a line ([`serve_ready`]): the blocked command runs right
//!   then, under the hold, so nobody sees the element before the client that waited for it;
//! - the client's own thread, when the time is up or the client leaves or is killed; and CLIENT UNBLOCK.
//!
//! A command that must not write a [pinned](offload) key yet waits in the key's line in the same way.
//!
//! Before a node is claimed the code checks whether the key holds what the command waits for, so that a claim is never given back
//! while a holder elsewhere has passed it over. The places in the lines of keys whose shards are not held are given up
//! afterwards, before the client hears anything ([`Task::Withdraw`]).
//!
//! # Commands that write elsewhere
//!
//! BLMOVE writes to a second key, whose shard the command that serves it may not hold, and may not take either, if it is lower
//! than one that is held. So a command that writes a key with a line finds out *before it runs* which further shards serving
//! needs ([`further_shards`]), and is run again, as a transaction over those, too. The look-out is bounded: a command serves hardly
//! more nodes than it has words. One that does serves the others through their own nodes, which take the shards they lack.
//!
//! # Order
//!
//! Keys are served in the order in which they were written, and the clients of a key first come first served, once the command
//! or the transaction that wrote them is over.

use std::{
    collections::{HashSet, VecDeque},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use braid_protocol::reply::Reply;
use braid_storage::{
    Awaits, Db, Key, Shard, ShardId, Ticket, Waiter,
    coordinator::{Held, Job as _, Route},
    entry::Kind,
    executor::Node,
    shard::WatchedKey,
    time::Millis,
};
use crossbeam_utils::atomic::AtomicCell;
use smallvec::SmallVec;

use crate::{
    command::{Args, Call, CommandError, Flags, Outcome, Registered, Words},
    io::ThreadState,
    run::{
        node::{Job, Task},
        offload, step, unit,
    },
    server::Server,
    session::{Origin, Session},
    stats::ThreadStats,
};

/// What a command waits for.
pub struct Wait {
    /// Any of these.
    keys: Vec<WaitedKey>,
    /// A key that the command writes when it is served.
    destination: Option<Box<[u8]>>,
    /// When it gives up; `None`: never.
    deadline: Option<Millis>,
    /// What it answers where it may not wait.
    nothing: Nothing,
    /// The command's last words, where others take their place when it is served.
    last_words: Vec<Option<Vec<u8>>>,
    cause: Cause,
}

/// Why a command waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cause {
    /// It is a blocking command and found nothing.
    Nothing,
    /// It must not write a key yet that is [pinned](offload).
    Pinned,
}

impl Wait {
    /// A wait for any of some keys until the deadline; `nothing` is the answer where the command may not wait.
    pub fn new(keys: Vec<WaitedKey>, deadline: Option<Millis>, nothing: Nothing) -> Self {
        Self { keys, destination: None, deadline, nothing, last_words: Vec::new(), cause: Cause::Nothing }
    }

    /// The same for a command that writes another key when it is served.
    pub fn with_destination(mut self, key: &[u8]) -> Self {
        self.destination = Some(key.into());
        self
    }

    /// The same for a command whose last words mean something else now than when it is served: it is then run with these.
    pub fn with_last_words(mut self, words: Vec<Option<Vec<u8>>>) -> Self {
        self.last_words = words;
        self
    }

    /// Whether the command has begun for its client: it is a blocking command that found nothing.
    pub fn is_visible(&self) -> bool {
        self.cause == Cause::Nothing
    }

    /// A wait until a key may be written.
    pub fn for_unpinning(key: WaitedKey) -> Self {
        Self { cause: Cause::Pinned, ..Self::new(vec![key], None, Nothing::Null) }
    }
}

/// A key that a command waits for.
pub struct WaitedKey {
    /// Which.
    pub key: WatchedKey,
    /// What it must hold.
    pub awaited: Awaited,
}

/// What a key must hold for a command to be served.
pub enum Awaited {
    /// A value of this type.
    Kind(Kind),
    /// Whatever passes the test.
    Test(Test),
    /// Whatever it holds, if it is not [pinned](offload).
    Unpinned,
}

impl Awaited {
    /// What the shard is to know of it.
    fn awaits(&self) -> Awaits {
        match self {
            Awaited::Kind(kind) => Awaits::Kind(*kind),
            Awaited::Test(_) => Awaits::Other,
            Awaited::Unpinned => Awaits::Unpinning,
        }
    }
}

/// Looks at a key under its shard's hold.
pub type Test = Box<dyn Fn(&mut Shard, &Key<'_>) -> bool + Send + Sync>;

/// The answer of a command that got nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Nothing {
    /// A null.
    Null,
    /// A null where an array would be.
    NullArray,
}

impl Nothing {
    /// Writes the answer.
    pub fn write(self, reply: &mut Reply<'_>) {
        match self {
            Nothing::Null => reply.null(),
            Nothing::NullArray => reply.null_array(),
        }
    }
}

/// Whether a command may wait, and whether it does.
pub enum Waiting {
    /// It may not: it runs between MULTI and EXEC, or is no blocking command.
    MayNot,
    /// It may.
    May,
    /// It has to.
    Asked(Box<Wait>),
}

/// Why a wait ends without having been served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GaveUp {
    /// Its time is up, or CLIENT UNBLOCK wants it to look so.
    TimedOut,
    /// CLIENT UNBLOCK … ERROR.
    Unblocked,
    /// The client has left.
    Left,
}

/// A command that waits.
pub struct Parked {
    /// The command's node, until it is claimed. Whoever takes it answers the client.
    node: AtomicCell<Option<Box<Node<Job>>>>,
    is_claimed: AtomicBool,
    wait: Wait,
    /// Its places in the lines.
    ticket: Ticket,
    /// Where the client is served.
    pub origin: Origin,
}

impl std::fmt::Debug for Parked {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Parked").field("origin", &self.origin).finish_non_exhaustive()
    }
}

impl Parked {
    /// Puts a job in the lines of the keys it waits for. Its node follows with [`Parked::hand_in`], under the same hold.
    fn enter(origin: Origin, wait: Wait, held: &mut Held<'_, Job>, now: Millis) -> Arc<Self> {
        let parked = Arc::new(Self {
            node: AtomicCell::new(None),
            is_claimed: AtomicBool::new(false),
            wait,
            // Under the holds of all its keys' shards: whoever came first has the lower ticket in each line.
            ticket: Ticket::next(),
            origin,
        });
        for WaitedKey { key, awaited } in &parked.wait.keys {
            let shard = held.shard(key.routed.shard);
            shard.begin(key.db, now);
            shard.enter_line(&key.bytes, awaited.awaits(), parked.ticket, Arc::clone(&parked) as Waiter);
        }
        parked
    }

    /// Takes the node in, until it is claimed.
    pub fn hand_in(&self, node: Box<Node<Job>>) {
        self.node.store(Some(node));
    }

    /// Takes the node out, if nobody has before.
    pub fn claim(&self) -> Option<Box<Node<Job>>> {
        let node = self.node.take()?;
        self.is_claimed.store(true, Ordering::Relaxed);
        Some(node)
    }

    /// Whether somebody has claimed the node already, as far as is known here.
    pub fn is_claimed(&self) -> bool {
        self.is_claimed.load(Ordering::Relaxed)
    }

    /// Whether the client is blocked by a command that asked for it.
    pub fn is_visible(&self) -> bool {
        self.wait.is_visible()
    }

    /// When it gives up.
    pub fn deadline(&self) -> Option<Millis> {
        self.wait.deadline
    }

    /// Ends the wait of a node that was claimed; its places in the lines are still to be given up.
    pub fn give_up(&self, node: &mut Node<Job>, why: GaveUp, stats: &ThreadStats) {
        let counts = &stats.commands[node.job.next_command().0.id];
        let Job { session, commands, n_run, reply, .. } = &mut node.job;
        let start = reply.len();
        match why {
            GaveUp::TimedOut if self.is_visible() => {
                counts.calls.add(1);
                // Whatever it would have answered, as in Redis.
                Reply::new(reply, session.resp).null_array();
            }
            // A command that only waits until it may write has no answer for a time-out.
            GaveUp::TimedOut | GaveUp::Unblocked => {
                let error = CommandError::text("UNBLOCKED client unblocked via CLIENT UNBLOCK");
                if commands[*n_run].command.has(Flags::RUNS_QUEUE) {
                    // It is run again, to end the transaction and to let go of what is watched.
                    session.exec_refusal = Some(error);
                    return;
                }
                counts.calls.add(1);
                counts.failed.add(1);
                stats.error(&error.wire_text());
                error.write(&mut Reply::new(reply, session.resp));
            }
            GaveUp::Left => {
                session.closing = true;
                *n_run = commands.len();
                return;
            }
        }
        step::drop_unwanted(session, start, reply);
        *n_run += 1;
    }

    /// Whether the command can run with what is held. A blocking command passes over keys that are not.
    fn can_run_with(&self, job: &Job, held: &mut Held<'_, Job>, server: &Server) -> bool {
        match self.wait.cause {
            Cause::Nothing => {
                let destination = self.wait.destination.as_ref();
                destination.is_none_or(|key| held.has(server.keyspace.router().route(key).shard))
            }
            Cause::Pinned => {
                let (command, words) = job.next_command();
                offload::has_needs(job, held, server)
                    && offload::pinned_key(server, &job.session, command, words, held).is_none()
                    && further_shards(server, &job.session, command, words, held).is_none()
            }
        }
    }

    /// The shards of the keys it waits for.
    pub fn route(&self) -> Route {
        Route::new(self.wait.keys.iter().map(|waited| waited.key.routed.shard).collect())
    }

    /// Gives up the places in the lines of the shards that are held; says whether those were all.
    pub fn leave_lines(&self, held: &mut Held<'_, Job>, now: Millis) -> bool {
        let mut all = true;
        for WaitedKey { key, awaited } in &self.wait.keys {
            if !held.has(key.routed.shard) {
                all = false;
                continue;
            }
            let shard = held.shard(key.routed.shard);
            shard.begin(key.db, now);
            shard.leave_line(&key.bytes, awaited.awaits(), self.ticket);
        }
        all
    }

    /// Whether a key of a shard holds what the command waits for. `kind` is what it holds.
    fn can_be_served(&self, shard: &mut Shard, key: &Key<'_>, kind: Option<Kind>) -> bool {
        let db = shard.db();
        let mut waited = self.wait.keys.iter();
        waited.any(|waited| {
            waited.key.db == db
                && *waited.key.bytes == *key.bytes
                && match &waited.awaited {
                    Awaited::Kind(wanted) => kind == Some(*wanted),
                    Awaited::Test(test) => test(shard, key),
                    Awaited::Unpinned => !shard.is_pinned(db, key.bytes),
                }
        })
    }
}

impl Call<'_, '_> {
    /// Whether what has run is not done: it waits, or is to be run aside.
    pub fn must_run_again(&self) -> bool {
        self.is_too_much || matches!(self.waiting, Waiting::Asked(_))
    }

    /// Has the command wait; where it may not, answers as if it had waited in vain. A handler that has called this is done.
    pub fn wait_for(&mut self, wait: Wait, reply: &mut Reply<'_>) {
        match self.waiting {
            Waiting::MayNot => wait.nothing.write(reply),
            Waiting::May | Waiting::Asked(_) => self.waiting = Waiting::Asked(Box::new(wait)),
        }
    }

    /// Has the command wait until any of the `n_keys` keys that begin `args` holds a value of a type.
    pub fn wait_for_kind(
        &mut self,
        kind: Kind,
        mut args: Args<'_>,
        n_keys: usize,
        deadline: Option<Millis>,
        reply: &mut Reply<'_>,
    ) -> Outcome {
        let keys: Result<Vec<WaitedKey>, CommandError> =
            (0..n_keys).map(|_| Ok(self.waited_key(&args.key()?, Awaited::Kind(kind)))).collect();
        self.wait_for(Wait::new(keys?, deadline, Nothing::NullArray), reply);
        Ok(())
    }

    /// The shard where a key of the command lives, unless a blocked command is being served under a hold without it: then the
    /// key has not been written, and is passed over.
    pub fn shard_if_held(&mut self, key: &Key<'_>) -> Option<&mut Shard> {
        let is_held = self.held.as_ref().is_none_or(|held| held.has(key.routed.shard));
        is_held.then(|| self.shard_of(key))
    }

    /// A key of the command, to be waited for.
    pub fn waited_key(&self, key: &Key<'_>, awaited: Awaited) -> WaitedKey {
        WaitedKey {
            key: WatchedKey { db: self.session.db, bytes: key.bytes.into(), routed: key.routed },
            awaited,
        }
    }
}

/// Has a job wait, with the shards of the keys it waits for held.
pub fn park(job: &mut Job, mut wait: Wait, held: &mut Held<'_, Job>) {
    job.replace_last_words(std::mem::take(&mut wait.last_words));
    job.task = Task::Wait(Parked::enter(job.session.origin, wait, held, job.now));
}

/// Of how many nodes in a line the destinations are looked up ahead, at the least.
const LOOK_AHEAD: usize = 64;

/// The route over the shards that are held and those that serving needs, should the command write a key that is waited for; `None`
/// if all are held.
pub fn further_shards(
    server: &Server,
    session: &Session,
    command: &Registered,
    words: Words<'_>,
    held: &mut Held<'_, Job>,
) -> Option<Route> {
    let mut missing: SmallVec<[ShardId; 6]> = SmallVec::new();
    let mut destinations: VecDeque<Box<[u8]>> = VecDeque::new();
    let mut known: HashSet<Box<[u8]>> = HashSet::new();
    let n_words = words.len() + session.queue.as_ref().map_or(0, |queue| queue.n_words());
    let mut look = |key: &[u8], destinations: &mut VecDeque<Box<[u8]>>| {
        let routed = server.keyspace.router().route(key);
        if !held.has(routed.shard) {
            missing.push(routed.shard);
            return;
        }
        let waiters = held.shard(routed.shard).waiters_everywhere(key).take(n_words.max(LOOK_AHEAD));
        let named = waiters.filter_map(|waiter| waiter.downcast_ref::<Parked>()?.wait.destination.as_ref());
        for destination in named {
            if known.insert(destination.clone()) {
                destinations.push_back(destination.clone());
            }
        }
    };
    each_written_key(session, command, words, |key| look(key, &mut destinations));
    // What is moved on to a destination may serve those that wait there.
    while let Some(key) = destinations.pop_front() {
        look(&key, &mut destinations);
    }
    if missing.is_empty() {
        return None;
    }
    missing.extend_from_slice(held.ids());
    Some(Route::new(missing))
}

/// Calls `each` with the keys of a command that may write; for EXEC with those of all queued commands.
pub fn each_written_key(
    session: &Session,
    command: &Registered,
    words: Words<'_>,
    mut each: impl FnMut(&[u8]),
) {
    let mut of = |command: &Registered, words: Words<'_>| {
        if command.has(Flags::WRITE) {
            let get = |at| words.get(at);
            command.spec.keys.positions(words.len(), get, |at, _| each(words.get(at)));
        }
    };
    of(command, words);
    if let Some(queue) = session.queue.as_ref().filter(|_| command.has(Flags::RUNS_QUEUE)) {
        queue.iter().for_each(|(queued, words)| of(queued, words));
    }
}

/// A key that waiting nodes have to look at.
pub struct ReadyKey {
    /// Its database.
    pub db: Db,
    /// The key itself.
    pub bytes: Box<[u8]>,
}

/// Serves nodes that wait for keys that were written, in the order of the writes. The shards are held, and the unit that wrote is
/// over.
pub fn serve_ready(held: &mut Held<'_, Job>, thread: &mut ThreadState, now: Millis) {
    let mut ready = VecDeque::new();
    unit::tell_observers(held, thread, &mut ready);
    while let Some(key) = ready.pop_front() {
        serve_key(&key, held, thread, now, &mut ready);
    }
}

/// Serves the line of a key, as far as the key has something for those in it.
fn serve_key(
    ready: &ReadyKey,
    held: &mut Held<'_, Job>,
    thread: &mut ThreadState,
    now: Millis,
    further: &mut VecDeque<ReadyKey>,
) {
    let routed = thread.server().keyspace.router().route(&ready.bytes);
    let key = Key { bytes: &ready.bytes, routed };
    let mut after = None;
    loop {
        let shard = held.shard(routed.shard);
        shard.begin(ready.db, now);
        let kind = shard.peek(&key).map(|entry| entry.kind());
        // Those that wait for another kind of value are not even looked at.
        let Some((ticket, waiter)) = shard.next_waiter(key.bytes, kind, after) else { return };
        after = Some(ticket);
        let parked = Arc::downcast::<Parked>(waiter).expect("only parked commands wait");
        if parked.can_be_served(shard, &key, kind)
            && let Some(node) = parked.claim()
        {
            serve(node, parked, held, thread, now);
            unit::tell_observers(held, thread, further);
        }
    }
}

/// Runs a command that has waited, or has it run once more if it needs a shard that is not held.
fn serve(
    mut node: Box<Node<Job>>,
    parked: Arc<Parked>,
    held: &mut Held<'_, Job>,
    thread: &mut ThreadState,
    now: Millis,
) {
    let left_all = parked.leave_lines(held, now);
    if parked.can_run_with(&node.job, held, thread.server()) {
        node.job.now = node.job.now.max(now);
        let ran = catch_unwind(AssertUnwindSafe(|| node.job.run_served(held, thread)));
        if let Err(panic) = ran {
            Job::caught(held, &panic);
            node.job.panicked(thread);
        }
    }
    node.job.task = if left_all { Task::Withdraw(parked) } else { Task::MustWithdraw(parked) };
    thread.send_home(node.job.session.origin.thread, node);
}
