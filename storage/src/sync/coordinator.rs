//! The coordinator: takes the shards of a job's route, runs the job, and releases the shards.
//!
//! **Guarantee.** A job runs when, and only when, all shards of its route are held for it. No other job sees
//! a state between its first and its last change. Every submitted job runs, as long as holders release and
//! threads turn.
//!
//! A command on one key, a transaction over many keys and a delegated command are one thing here: a [`Node`]
//! with a [`Route`] of one or more shards.
//!
//! # How a route is taken
//!
//! Every shard is *tried* first. A transaction that meets a held shard gives back all shards that it has, and
//! waits in that shard's queue with nothing. Nothing is written at that point. When the transaction is
//! granted the shard, it tries the rest. After [`PATIENT_ROUNDS`] such rounds it queues for the **lane**,
//! again with nothing. The lane is an executor without a shard, so its queue is served in order. Only the
//! lane's holder keeps the shards that it has and waits for the rest. It passes the lane on after its job has
//! run and its shards are released.
//!
//! Transactions that wait with nothing make sure that a slow command blocks no shard that it does not touch.
//! The lane makes the wait end. At most one transaction at a time waits while it holds shards, and so blocks
//! jobs that touch none of the shards it waits for.
//!
//! | state | has the lane | holds | lies |
//! |---|---|---|---|
//! | `Taking { taken: 0 }` | no | nothing | on the stack of a worker, or in the heavy queue |
//! | `Taking { taken }` | no | `shards[..taken]` | on the stack of a worker |
//! | `Waiting { at }` | no | nothing | in the queue of `shards[at]` |
//! | `Queuing` | no | nothing | in the queue of the lane |
//! | `Taking { taken }` | yes | `shards[..taken]` | on the stack of a worker, or, a heavy one, in its worker's own queue |
//! | `Waiting { at }` | yes | `shards[..at]` | in the queue of `shards[at]` |
//!
//! A waiting node in a queue is the *grant*. The worker that drains that queue comes to the grant in its
//! turn, passes the hold to the transaction and carries it on from there. The owner of the node's `Box` also
//! owns its state and route.
//!
//! The holder of the lane may find during its run that it needs further shards ([`Next::KeepAnd`]), lower
//! ones too. It keeps its shards and waits for the others; to other jobs, all of it is one step. A job gets
//! the lane through a route that [goes through the lane](Route::through_lane), or by a [try](Held::try_lane)
//! before it changes anything.
//!
//! # Heavy nodes
//!
//! A heavy node runs on heavy-work threads only. There may be only one such thread, and it may be busy for
//! seconds. So a heavy node holds nothing while it waits for a thread. The thread that runs it at once also
//! takes its first shard. Any other thread may be granted a shard for the node, or take the node out of a
//! queue. That thread leaves the shard to the next in line and sends the node to the heavy queue. This costs
//! a round of the node's patience, also where it needs one shard only.
//!
//! A node out of patience *reserves* its thread before it queues for the lane. That worker takes no other
//! work until the node has run, and the node returns to it through a queue of its own
//! ([`Worker::take_heavy`]).
//!
//! | field | written by | read by | woken through |
//! |---|---|---|---|
//! | `Node::reserved` | its heavy worker, before it links the node | the thread that grants it something | |
//! | `Worker::own` | that thread, with all that the node holds | the reserved worker | [`Job::heavy_waits`], after the push |
//! | `Worker::is_reserved` | its worker alone | its worker alone | |
//!
//! A node that becomes heavy on a light thread while it has the lane gives the lane back. It queues for it
//! again from its heavy-work thread, so the lane does not wait for unrelated work either.
//!
//! # Why there is no deadlock and no starvation
//!
//! Only one transaction at a time waits while it holds anything. The transactions that it waits for run, or
//! are about to be drained, and depend on no other node's wait. So waits form no cycle, in whatever order the
//! lane's holder takes its shards. A try waits for nothing. A hold that a thread has no time to drain goes to
//! the injector, from which any light thread takes it. A reserved heavy-work thread waits with nothing but
//! its node. The node is the lane's holder or in the lane's queue, and neither needs another heavy-work
//! thread.
//!
//! All queues are served in order, so every grant comes up. Patience ends after a fixed number of rounds. The
//! lane's holder keeps the shards that it is granted.
//!
//! # Why nothing is seen half done, nor out of order
//!
//! A job runs after the last of its shards is taken and before the first of them is released, also when it
//! panics. It is sent home (`finish`) before the first release. So a job that sees its effect sends home
//! later. Jobs that share several shards run in the same order on all of them. A transaction that waits with
//! nothing may be overtaken at other shards by later jobs. Jobs of an origin with one node, such as a
//! connection, are never reordered: the next is sent after the last is back.
//!
//! # Why a drain never recurses, and how it ends
//!
//! Running a granted transaction releases its shards, whose queues may hold further grants. The lane has a
//! queue, too. The worker lists the holds that it has yet to drain (`releasing`) and works through the list
//! in one loop, the lane last.
//!
//! A drain is work for others, and a thread has a budget for it. The code asks the thread whether time is
//! left before each node, and between the commands of a node that has several ([`Held::may_go_on`]). If no
//! time is left, the shard goes to the injector, with the node back in front of its queue. The next thread
//! goes on with the very next command. A thread without time takes nothing from the injector. The jobs that a
//! thread submits or runs in place are its own work and are in no budget.
//!
//! # Panics
//!
//! A panic of a job, or of work in place, is caught on its own. [`Job::caught`] is called with it under the
//! hold, and stops the process if a shard is torn. Then the node goes home, the shards and the lane are
//! released, and the nodes that wait there run.
//!
//! A panic of a *hook* is a bug of the server. It unwinds through the worker and loses the node in hand. All
//! that the worker held goes to the injector, so that nothing else waits for a thread that has ended. A node
//! for which that thread was reserved goes to another heavy-work thread.

#[cfg(all(test, loom))]
mod loom_tests;
#[cfg(all(test, not(loom)))]
mod tests;

use std::{
    any::Any,
    hint::cold_path,
    mem,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use smallvec::SmallVec;

use crate::{
    sync::{
        atomics::{AtomicU32, InjectorQueue},
        executor::{Inbox, Linked, Node, ShardExecutor},
    },
    table::hash::ShardId,
};

/// The rounds after which a transaction queues for the lane. In each it gives back its shards and waits.
const PATIENT_ROUNDS: u8 = 3;

/// The contended shards of one transaction that its worker drains itself. The rest go to the injector, so
/// that one thread does not end up with a thousand queues.
const DRAINED_BY_ITS_WORKER: usize = 4;

/// The payload of a caught panic.
pub type Panic = Box<dyn Any + Send>;

/// The work that a server runs on shards, and the hooks that report on it.
///
/// All but `prepare` and `released` are called while shards are held: they must not block, lock or make
/// system calls. None but `run` may panic.
pub trait Job: Sized + Send + 'static {
    /// The value that an executor guards.
    type Shard: Send;
    /// The state of one thread: its clocks, its statistics, and the threads that it must wake.
    type Thread;

    /// Sets the route of a node that came to a heavy-work thread without one. A command with much to do may
    /// also need much time to find its route. Nothing is held for the node yet.
    fn prepare(_node: &mut Node<Self>, _thread: &mut Self::Thread) {}
    /// Does the work, with all shards of the route held, and returns the next step.
    fn run(&mut self, held: &mut Held<'_, Self>, thread: &mut Self::Thread) -> Next;
    /// Is called with a panic of any work on shards, while they are still held. This is the place to stop the
    /// process before other jobs see a torn shard.
    fn caught(held: &mut Held<'_, Self>, panic: &Panic);
    /// Is called after `caught` when `run` has panicked.
    fn panicked(&mut self, thread: &mut Self::Thread);
    /// Is called when the work on a shard is done, while it is still held. This is the time to take over the
    /// counts of the shard.
    fn leave(_shard: &mut Self::Shard, _thread: &mut Self::Thread) {}
    /// Takes the node back after `run`. The shards are still held, so messages that are sent from here keep
    /// the order of the holds.
    fn finish(node: Box<Node<Self>>, thread: &mut Self::Thread);
    /// Returns whether the thread may go on with work for others. Asked before each node of a drain, and by
    /// the node between two of its commands ([`Held::may_go_on`]). Each series of questions ends with
    /// `released`.
    fn may_drain(thread: &mut Self::Thread) -> bool;
    /// Is called when a hold (of a shard, or of the lane) went to the injector. Some thread should take it
    /// soon.
    fn handed_off(thread: &mut Self::Thread);
    /// Is called when a node waits for a heavy-work thread: all of them must look. The node may be the lane's
    /// holder and hold shards; then it waits for a thread that does nothing else.
    fn heavy_waits(thread: &mut Self::Thread);
    /// Is called when all holds are released or passed on. This is the time to wake the threads that were
    /// sent something. Not called where nothing can have been sent.
    fn released(thread: &mut Self::Thread);
}

/// The next step of a job after a run.
#[derive(Debug)]
pub enum Next {
    /// Nothing: the node goes home.
    Home,
    /// To run again on this route. Only the lane is held meanwhile, if the job has it. So the run has made no
    /// change that other jobs can see.
    Again(Route),
    /// To go on with other work on this route, with nothing held meanwhile. The run has taken effect.
    GoOn(Route),
    /// To run again with these shards as well, in any order, and to keep those that are held. For the holder
    /// of the lane only.
    KeepAnd(SmallVec<[ShardId; 6]>),
    /// To run again on the same route, before anything that waits for its first shard: [`Held::may_go_on`]
    /// said no, and the job stopped between two of its commands.
    Yield,
}

/// The progress of a transaction. It determines the held shards, together with whether it has the lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    /// Under way, with `shards[..taken]`.
    Taking { taken: usize },
    /// In the queue of `shards[at]`: the lane's holder with `shards[..at]`, any other node with nothing.
    Waiting { at: usize },
    /// In the queue of the lane, with nothing.
    Queuing,
}

/// The threads on which a job may run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Weight {
    /// Short: on any thread.
    #[default]
    Light,
    /// Long: only on a heavy-work thread, so that no socket waits for it.
    Heavy,
}

/// The shards a job needs, and how far taking them has come.
#[derive(Debug)]
pub struct Route {
    /// In the order in which they are taken: ascending at first.
    shards: SmallVec<[ShardId; 6]>,
    progress: Progress,
    /// The number of times that it has given back its shards. [`PATIENT_ROUNDS`] at most.
    rounds: u8,
    weight: Weight,
    /// Whether the lane is taken before the first shard.
    is_through_lane: bool,
    has_lane: bool,
}

impl Default for Route {
    fn default() -> Self {
        Self::new(SmallVec::new())
    }
}

impl Route {
    /// Makes the route over `shards`, given in any order and with repetitions.
    pub fn new(mut shards: SmallVec<[ShardId; 6]>) -> Self {
        put_in_order(&mut shards);
        Self {
            shards,
            progress: Progress::Taking { taken: 0 },
            rounds: 0,
            weight: Weight::Light,
            is_through_lane: false,
            has_lane: false,
        }
    }

    /// Makes the route of one shard.
    pub fn one(shard: ShardId) -> Self {
        Self::new(SmallVec::from_slice(&[shard]))
    }

    /// Limits the job to threads of a weight: heavy jobs run on heavy-work threads only.
    pub fn with_weight(mut self, weight: Weight) -> Self {
        self.weight = weight;
        self
    }

    /// Makes the job run as the holder of the lane. It may then ask for further shards and keep those it has
    /// ([`Next::KeepAnd`]).
    pub fn through_lane(mut self) -> Self {
        self.is_through_lane = true;
        self
    }

    /// The shards: ascending, until some of them are taken.
    pub fn shards(&self) -> &[ShardId] {
        &self.shards
    }

    fn is_heavy(&self) -> bool {
        self.weight == Weight::Heavy
    }
}

/// A hold that a worker must release: a shard, or the lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Hold {
    Shard(ShardId),
    Lane,
}

/// The value of [`Engine::wanted`] when the lane's holder does not wait on its thread.
const NOTHING_WANTED: u32 = u32::MAX;

/// The value of [`Engine::wanted`] when the lane's holder waits for a shard.
fn wanted(id: ShardId) -> u32 {
    u32::from(id.0)
}

/// The value of [`Engine::wanted`] when the hold of that shard has passed to the lane's holder.
fn granted(id: ShardId) -> u32 {
    wanted(id) | 1 << 16
}

/// Sorts shards and removes repetitions; of many in linear time.
pub fn put_in_order(shards: &mut SmallVec<[ShardId; 6]>) {
    const FEW: usize = 64;
    if shards.len() <= FEW {
        shards.sort_unstable();
        shards.dedup();
        return;
    }
    let highest = shards.iter().max().map_or(0, |id| id.index());
    let mut wanted = vec![false; highest + 1];
    shards.iter().for_each(|id| wanted[id.index()] = true);
    shards.clear();
    shards.extend((0..=highest).filter(|&index| wanted[index]).map(|index| ShardId(index as u16)));
}

/// The shards, their queues and the lane, shared by all threads.
pub struct Engine<J: Job> {
    executors: Box<[ShardExecutor<J::Shard, J>]>,
    /// The right to wait for a shard while holding others.
    lane: ShardExecutor<(), J>,
    /// The shard for which the lane's holder [waits on its thread](Held::wait_for), and whether it has been
    /// passed on to it.
    wanted: AtomicU32,
    n_lane_runs: AtomicU64,
    /// Holds whose holder had no time to drain them. Any light worker takes them.
    injector: InjectorQueue<Hold>,
    /// Nodes that hold nothing and wait for a heavy-work thread.
    heavy: InjectorQueue<Box<Node<J>>>,
}

impl<J: Job> Engine<J> {
    /// Makes an engine of idle shards.
    pub fn new(shards: impl IntoIterator<Item = J::Shard>) -> Arc<Self> {
        Arc::new(Self {
            executors: shards.into_iter().map(ShardExecutor::new).collect(),
            lane: ShardExecutor::new(()),
            wanted: AtomicU32::new(NOTHING_WANTED),
            n_lane_runs: AtomicU64::new(0),
            injector: InjectorQueue::new(),
            heavy: InjectorQueue::new(),
        })
    }

    /// The number of shards.
    pub fn n_shards(&self) -> usize {
        self.executors.len()
    }

    /// All shards, for a route over everything.
    pub fn all_shards(&self) -> SmallVec<[ShardId; 6]> {
        (0..self.n_shards()).map(|index| ShardId(index as u16)).collect()
    }

    /// How often the lane was taken.
    pub fn n_lane_runs(&self) -> u64 {
        self.n_lane_runs.load(Ordering::Relaxed)
    }

    /// Whether no hold waits for a thread to drain it.
    pub fn injector_is_empty(&self) -> bool {
        self.injector.is_empty()
    }

    /// Whether no job waits for a heavy-work thread.
    pub fn heavy_is_empty(&self) -> bool {
        self.heavy.is_empty()
    }

    #[inline(always)]
    fn executor(&self, id: ShardId) -> &ShardExecutor<J::Shard, J> {
        &self.executors[id.index()]
    }

    /// Announces that the lane's holder waits for a shard on its thread.
    fn want(&self, id: ShardId) {
        // Relaxed: a thread that misses it grants nothing yet.
        self.wanted.swap(wanted(id), Ordering::Relaxed);
    }

    /// Whether the hold of a wanted shard has passed to the lane's holder.
    fn has_granted(&self, id: ShardId) -> bool {
        // Acquire pairs with the Release of `grant`. The last holder's changes to the shard come before those
        // of the new one.
        self.wanted.load(Ordering::Acquire) == granted(id)
    }

    /// Takes the announcement back. Returns whether the hold had passed on by then.
    fn want_nothing(&self, id: ShardId) -> bool {
        // Acquire pairs with the Release of `grant`, as in `has_granted`.
        self.wanted.swap(NOTHING_WANTED, Ordering::Acquire) == granted(id)
    }

    /// Passes the hold of a shard to the lane's holder, if it waits for that shard on its thread. On `true`
    /// the caller, who held the shard, no longer does.
    #[inline]
    fn grant(&self, id: ShardId) -> bool {
        // Release pairs with the Acquire of `has_granted` and `want_nothing`.
        self.wanted.load(Ordering::Relaxed) == wanted(id)
            && self
                .wanted
                .compare_exchange(wanted(id), granted(id), Ordering::Release, Ordering::Relaxed)
                .is_ok()
    }

    /// Puts a hold into the injector. If the lane's holder waits for the shard on its thread, passes it on
    /// instead.
    fn inject(&self, hold: Hold) {
        if !matches!(hold, Hold::Shard(id) if self.grant(id)) {
            self.injector.push(hold);
        }
    }

    fn try_lane(&self) -> bool {
        let is_ours = self.lane.try_hold();
        self.n_lane_runs.fetch_add(u64::from(is_ours), Ordering::Relaxed);
        is_ours
    }

    /// Fetches the line of a shard's word and the first lines of the shard for writing, ahead of a hold.
    #[inline(always)]
    pub fn prefetch(&self, id: ShardId) {
        self.executor(id).prefetch();
    }
}

/// The shards held for a running job, and the lane.
pub struct Held<'a, J: Job> {
    engine: &'a Engine<J>,
    /// The route: ascending.
    shards: &'a [ShardId],
    /// The route and the shards that have [joined](Held::try_join) it: ascending, or empty if none has.
    extended: Vec<ShardId>,
    lane: LaneHold,
    /// The holds of the worker apart from the job's shards, which it has yet to drain.
    listed: &'a mut Vec<Hold>,
    runs: Weight,
    /// Whether the job runs while a thread drains work for others.
    is_drained: bool,
}

/// Whether a running job holds the lane.
#[derive(Clone, Copy, PartialEq, Eq)]
enum LaneHold {
    Taken,
    NotTaken,
}

impl<'a, J: Job> Held<'a, J> {
    fn of_worker(
        engine: &'a Engine<J>,
        listed: &'a mut Vec<Hold>,
        shards: &'a [ShardId],
        runs: Weight,
    ) -> Self {
        let lane = LaneHold::NotTaken;
        Held { engine, shards, extended: Vec::new(), lane, listed, runs, is_drained: false }
    }

    /// The ids of the held shards, ascending.
    #[inline]
    pub fn ids(&self) -> &[ShardId] {
        if self.extended.is_empty() { self.shards } else { &self.extended }
    }

    /// Whether `id` is held.
    pub fn has(&self, id: ShardId) -> bool {
        match self.ids() {
            [only] => *only == id,
            all if all.len() == self.engine.n_shards() => true,
            some => some.binary_search(&id).is_ok(),
        }
    }

    /// A held shard.
    ///
    /// # Panics
    /// If the shard is not in the route: a command that reaches for a key it did not declare.
    #[inline]
    pub fn shard(&mut self, id: ShardId) -> &mut J::Shard {
        assert!(self.has(id), "a job may only reach the shards of its route");
        // SAFETY: the shard is held for this job (checked above), and `&mut self` lets out one reference at
        // a time.
        unsafe { self.engine.executor(id).shard() }
    }

    /// Calls `each` with every held shard, ascending.
    #[inline]
    pub fn each_shard(&mut self, mut each: impl FnMut(&mut J::Shard)) {
        self.any_shard(|shard| {
            each(shard);
            false
        });
    }

    /// Whether `is` returns true for a held shard. It is called in ascending order and stops at the first.
    #[inline]
    pub fn any_shard(&mut self, mut is: impl FnMut(&mut J::Shard) -> bool) -> bool {
        let engine = self.engine;
        // SAFETY: `ids` names shards that are held for this job and no others, and `is` gets one reference at
        // a time, while `&mut self` lets out none.
        self.ids().iter().any(|&id| is(unsafe { engine.executor(id).shard() }))
    }

    /// Whether the job holds the lane, and so may ask for [`Next::KeepAnd`].
    pub fn has_lane(&self) -> bool {
        self.lane == LaneHold::Taken
    }

    /// Takes a further shard if it is idle. A try waits for nothing, so the order does not matter.
    pub fn try_join(&mut self, id: ShardId) -> bool {
        if self.has(id) {
            return true;
        }
        let is_ours = self.take_listed(id) || self.engine.executor(id).try_hold();
        if is_ours {
            self.join(id);
        }
        is_ours
    }

    /// Takes a shard that the worker already holds and was going to drain.
    fn take_listed(&mut self, id: ShardId) -> bool {
        let at = self.listed.iter().position(|hold| *hold == Hold::Shard(id));
        at.map(|at| self.listed.remove(at)).is_some()
    }

    fn join(&mut self, id: ShardId) {
        if self.extended.is_empty() {
            self.extended = self.shards.to_vec();
        }
        let at = self.extended.partition_point(|held| *held < id);
        self.extended.insert(at, id);
    }

    /// Takes a further shard, and waits for it on this thread, which does nothing else meanwhile. For a job
    /// that has changed something and cannot run again. Calls `pause` repeatedly, which lets some time pass
    /// and returns whether to go on waiting. If it returns false, it stops.
    ///
    /// # Panics
    /// If the job does not hold the lane: two jobs that wait while they hold could wait for each other.
    pub fn wait_for(&mut self, id: ShardId, mut pause: impl FnMut() -> bool) -> bool {
        assert!(self.has_lane(), "only the lane's holder may wait while it holds");
        if self.try_join(id) {
            return true;
        }
        self.engine.want(id);
        let is_ours = loop {
            if self.engine.executor(id).try_hold() || self.engine.has_granted(id) || self.take_injected(id) {
                break true;
            }
            if !pause() {
                break false;
            }
        };
        // A shard that was granted at the last moment is held, whether it is still wanted or not.
        let was_granted = self.engine.want_nothing(id);
        if is_ours || was_granted {
            self.join(id);
        }
        is_ours || was_granted
    }

    /// Takes a shard that lies in the injector. This thread may be the only one that takes anything from
    /// there.
    fn take_injected(&self, id: ShardId) -> bool {
        if self.runs == Weight::Heavy {
            return false;
        }
        match self.engine.injector.pop() {
            Some(hold) if hold == Hold::Shard(id) => true,
            Some(other) => {
                self.engine.injector.push(other);
                false
            }
            None => false,
        }
    }

    /// Ends the wait of nodes in the queues of the held shards, and of the lane if the job has it. Ends it
    /// for the nodes for which `end` returns true, which have nothing left to wait for. All others keep their
    /// places. For work that takes so long that waiting nodes must learn of it. The holds of an ended node go
    /// to the injector.
    pub fn end_waiting(&mut self, mut end: impl FnMut(&mut J) -> bool) -> EndedWaits<J> {
        let mut ended = EndedWaits { home: Vec::new(), has_handed_off: false, has_heavy: false };
        for index in 0..self.ids().len() {
            // SAFETY: the shard is held for the running job.
            unsafe {
                end_waiting_at(self.engine.executor(self.ids()[index]), self.engine, &mut end, &mut ended)
            }
        }
        if self.has_lane() {
            // SAFETY: the running job has the lane.
            unsafe { end_waiting_at(&self.engine.lane, self.engine, &mut end, &mut ended) }
        }
        ended
    }

    /// Takes the lane if it is free, for a job that is about to write and does not know all its shards. On
    /// `false` the job asks to run again on a route [through the lane](Route::through_lane).
    pub fn try_lane(&mut self) -> bool {
        if self.lane == LaneHold::NotTaken && self.engine.try_lane() {
            self.lane = LaneHold::Taken;
        }
        self.has_lane()
    }

    /// Whether a job of several commands may go on with the next. Otherwise it runs on a thread that drains
    /// for others and has no time left, and the job [yields](Next::Yield).
    pub fn may_go_on(&self, thread: &mut J::Thread) -> bool {
        !self.is_drained || J::may_drain(thread)
    }
}

/// The nodes that wait no longer, and the notices that their end requires.
#[must_use]
pub struct EndedWaits<J> {
    /// They hold nothing: the caller has to send them home.
    pub home: Vec<Box<Node<J>>>,
    /// A hold of theirs went to the injector: some thread should take it soon.
    pub has_handed_off: bool,
    /// Some had a heavy-work thread reserved, which goes on with them. All heavy-work threads must look.
    pub has_heavy: bool,
}

/// Ends the wait of nodes in an executor's queue.
///
/// # Safety
///
/// The executor is held.
unsafe fn end_waiting_at<S, J: Job>(
    executor: &ShardExecutor<S, J>,
    engine: &Engine<J>,
    end: &mut impl FnMut(&mut J) -> bool,
    ended: &mut EndedWaits<J>,
) {
    let mut kept = Vec::new();
    // SAFETY: the caller's promise.
    while let Some(mut node) = unsafe { executor.next_waiting() } {
        if !end(&mut node.job) {
            kept.push(node);
            continue;
        }
        let Route { shards, progress, weight, has_lane, .. } = mem::take(&mut node.route);
        if has_lane {
            let Progress::Waiting { at } = progress else { unreachable!("it waits for a shard") };
            let holds = shards[..at].iter().map(|id| Hold::Shard(*id)).chain([Hold::Lane]);
            holds.for_each(|hold| engine.inject(hold));
            ended.has_handed_off = true;
        }
        match node.reserved.take() {
            Some(own) => {
                // There it finds its route anew, over the work that is left.
                node.route.weight = weight;
                own.push(node);
                if own.must_wake() {
                    leave_to_others(engine, &own);
                }
                ended.has_heavy = true;
            }
            None => ended.home.push(node),
        }
    }
    // SAFETY: as above.
    kept.into_iter().rev().for_each(|node| unsafe { executor.put_back(node) });
}

/// A thread's end of the engine: runs jobs and drains queues.
pub struct Worker<J: Job> {
    engine: Arc<Engine<J>>,
    /// Holds of this worker that it must drain and release. The last is first.
    releasing: Vec<Hold>,
    is_draining: bool,
    runs: Weight,
    /// The queue through which a reserved worker's heavy node returns when it is granted its shard or the
    /// lane.
    own: Arc<Inbox<J>>,
    is_reserved: bool,
    /// The state of the thread.
    pub thread: J::Thread,
}

impl<J: Job> Worker<J> {
    /// Makes the worker of a thread that runs jobs up to the weight `runs`.
    pub fn new(engine: Arc<Engine<J>>, runs: Weight, thread: J::Thread) -> Self {
        Self {
            engine,
            releasing: Vec::new(),
            is_draining: false,
            runs,
            own: Arc::default(),
            is_reserved: false,
            thread,
        }
    }

    /// The engine that this worker belongs to.
    pub fn engine(&self) -> &Arc<Engine<J>> {
        &self.engine
    }

    /// Whether the worker is reserved for a heavy node that waits for the lane or holds it. Its thread does
    /// nothing else until [`take_heavy`](Self::take_heavy) has carried on that node, which may hold shards.
    pub fn is_reserved(&self) -> bool {
        self.is_reserved
    }

    /// Runs `work` on a shard right here, if the shard is idle.
    ///
    /// This is the data path: one compare-and-swap before and one after. Commands that were delegated
    /// meanwhile run before the shard is released. A panic of `work` comes back as `Some(Err)`, with the
    /// shard released.
    #[inline(always)]
    pub fn with_shard<R>(
        &mut self,
        id: ShardId,
        work: impl FnOnce(&mut J::Shard, &mut J::Thread) -> R,
    ) -> Option<Result<R, Panic>> {
        let executor = &self.engine.executors[id.index()];
        if !executor.try_hold() {
            cold_path();
            return None;
        }
        // SAFETY: held just now; the reference ends with the closure, before the release.
        let shard = unsafe { executor.shard() };
        let thread = &mut self.thread;
        let result = catch_unwind(AssertUnwindSafe(|| work(shard, thread)));
        if let Err(panic) = &result {
            cold_path();
            hear_of(panic, &mut Held::of_worker(&self.engine, &mut self.releasing, &[id], self.runs));
        }
        // SAFETY: held above, and the closure's reference to the shard is gone.
        J::leave(unsafe { executor.shard() }, &mut self.thread);
        // SAFETY: held above, and no reference to the shard is left.
        if !unsafe { executor.release_if_unwanted() } {
            cold_path();
            self.releasing.push(Hold::Shard(id));
            self.settle();
        }
        Some(result)
    }

    /// Runs `work` on several shards (ascending, without repetition) right here, if all are idle.
    pub fn with_shards<R>(
        &mut self,
        ids: &[ShardId],
        work: impl FnOnce(&mut Held<'_, J>, &mut J::Thread) -> R,
    ) -> Option<Result<R, Panic>> {
        debug_assert!(ids.is_sorted_by(|a, b| a < b), "shards are taken in ascending order");
        for (taken, &id) in ids.iter().enumerate() {
            if !self.engine.executor(id).try_hold() {
                self.let_go(&ids[..taken]);
                self.settle();
                return None;
            }
        }
        let mut held = Held::of_worker(&self.engine, &mut self.releasing, ids, self.runs);
        let thread = &mut self.thread;
        let result = catch_unwind(AssertUnwindSafe(|| work(&mut held, thread)));
        if let Err(panic) = &result {
            hear_of(panic, &mut held);
        }
        leave_all(&mut held, &mut self.thread);
        let Held { extended, lane, .. } = held;
        self.let_go(if extended.is_empty() { ids } else { &extended });
        if lane == LaneHold::Taken {
            cold_path();
            self.let_go_of_lane();
        }
        self.settle();
        Some(result)
    }

    /// Takes the node's route and runs its job. It runs here and now if the shards are idle, and otherwise
    /// wherever the last of them becomes free. Either way the node comes back through [`Job::finish`].
    pub fn submit(&mut self, node: Box<Node<J>>) {
        self.drive(node);
        self.settle();
    }

    /// Drains holds that other workers had no time for, until this one has no time either.
    pub fn take_injected(&mut self) {
        if self.engine.injector.is_empty() {
            return;
        }
        // A thread without time takes nothing: it would only hand it on again.
        while J::may_drain(&mut self.thread)
            && let Some(hold) = self.engine.injector.pop()
        {
            self.releasing.push(hold);
            if !self.settle() {
                return;
            }
        }
        // The last question to `may_drain` has begun a series, which this ends.
        J::released(&mut self.thread);
    }

    /// Carries on one job that waits for a heavy-work thread. A reserved worker has its own, and takes no
    /// other. Returns whether there was one.
    pub fn take_heavy(&mut self) -> bool {
        let node = if self.is_reserved { self.own.take().next() } else { self.engine.heavy.pop() };
        let Some(mut node) = node else { return false };
        self.is_reserved = false;
        if node.route.shards.is_empty() && !node.route.has_lane {
            let Route { is_through_lane, rounds, .. } = node.route;
            J::prepare(&mut node, &mut self.thread);
            node.route.is_through_lane |= is_through_lane;
            node.route.rounds = rounds;
        }
        self.submit(node);
        true
    }

    /// Takes shards until the job has run or waits.
    fn drive(&mut self, mut node: Box<Node<J>>) {
        while let Some(ready) = self.advance(node) {
            match self.run(ready) {
                Some(again) => node = again,
                None => return,
            }
        }
    }

    /// Takes shards until all are held (then the node comes back) or the node waits in a queue.
    fn advance(&mut self, mut node: Box<Node<J>>) -> Option<Box<Node<J>>> {
        loop {
            if node.route.is_heavy() && (self.runs == Weight::Light || self.is_reserved) {
                self.leave_to_heavy(node);
                return None;
            }
            let Progress::Taking { taken } = node.route.progress else {
                unreachable!("a waiting node is carried on by `granted` first")
            };
            if node.route.is_through_lane && !node.route.has_lane {
                node = self.queue_for_lane(node)?;
                continue;
            }
            let Some(&wanted) = node.route.shards.get(taken) else { return Some(node) };
            if self.engine.executor(wanted).try_hold() {
                node.route.progress = Progress::Taking { taken: taken + 1 };
                continue;
            }
            node = self.wait(node, taken)?;
        }
    }

    /// Leaves a node that met a held shard, at `at`, in the queue from which it is carried on. The node comes
    /// back if that shard or the lane turned idle meanwhile.
    fn wait(&mut self, mut node: Box<Node<J>>, at: usize) -> Option<Box<Node<J>>> {
        if !node.route.has_lane {
            self.let_go(&node.route.shards[..at]);
            // A light node keeps the first shard that it is granted, so waiting for that one costs no
            // patience. A heavy one does not keep it.
            if at > 0 || node.route.is_heavy() {
                if node.route.rounds == PATIENT_ROUNDS {
                    return self.queue_for_lane(node);
                }
                node.route.rounds += 1;
            }
        }
        node.route.progress = Progress::Waiting { at };
        let wanted = node.route.shards[at];
        if node.route.has_lane {
            self.reserve_for(&mut node);
        }
        // Once linked the node is the other thread's. Nothing of it may be read after this.
        match self.engine.executor(wanted).hold_or_link(node) {
            Linked::Waiting => None,
            Linked::Held(node) => Some(self.granted(node)),
        }
    }

    /// Leaves a node that holds nothing in the queue of the lane. The node comes back with the lane if the
    /// lane was free.
    fn queue_for_lane(&mut self, mut node: Box<Node<J>>) -> Option<Box<Node<J>>> {
        node.route.progress = Progress::Queuing;
        self.reserve_for(&mut node);
        match self.engine.lane.hold_or_link(node) {
            Linked::Waiting => None,
            Linked::Held(node) => Some(self.granted(node)),
        }
    }

    /// Reserves this worker for a heavy node that is about to wait for the lane, or with the lane.
    fn reserve_for(&mut self, node: &mut Node<J>) {
        if node.route.is_heavy() {
            debug_assert!(self.runs == Weight::Heavy && !self.is_reserved, "it is carried on here");
            node.reserved = Some(Arc::clone(&self.own));
            self.is_reserved = true;
        }
    }

    /// Records a grant: from here on the hold is the node's.
    fn granted(&mut self, mut node: Box<Node<J>>) -> Box<Node<J>> {
        let route = &mut node.route;
        let taken = match route.progress {
            Progress::Queuing => {
                route.has_lane = true;
                self.engine.n_lane_runs.fetch_add(1, Ordering::Relaxed);
                0
            }
            Progress::Waiting { at } if route.has_lane => at + 1,
            Progress::Waiting { at } => {
                // It has nothing else, so it may take the others in any order.
                route.shards.swap(0, at);
                1
            }
            Progress::Taking { .. } => unreachable!("only a waiting node is in a queue"),
        };
        route.progress = Progress::Taking { taken };
        if node.reserved.as_ref().is_some_and(|reserved| Arc::ptr_eq(reserved, &self.own)) {
            // Granted to the very thread that is reserved for it, which had not linked it yet.
            node.reserved = None;
            self.is_reserved = false;
        }
        node
    }

    /// Leaves a heavy node to its reserved heavy-work thread; or, with nothing held, to any.
    fn leave_to_heavy(&mut self, mut node: Box<Node<J>>) {
        match node.reserved.take() {
            Some(own) => {
                own.push(node);
                // A worker that is gone has announced that it sleeps, once and for all.
                if own.must_wake() {
                    leave_to_others(&self.engine, &own);
                }
            }
            None => {
                debug_assert_eq!(
                    node.route.progress,
                    Progress::Taking { taken: 0 },
                    "it would hold what others want"
                );
                if mem::take(&mut node.route.has_lane) {
                    node.route.rounds = PATIENT_ROUNDS;
                    self.let_go_of_lane();
                }
                self.engine.heavy.push(node);
            }
        }
        J::heavy_waits(&mut self.thread);
    }

    /// Runs a job that has its shards, and releases them. The node comes back if it must run again.
    fn run(&mut self, mut node: Box<Node<J>>) -> Option<Box<Node<J>>> {
        let mut shards = mem::take(&mut node.route.shards);
        if !shards.is_sorted() {
            shards.sort_unstable();
        }
        let ran = self.run_held(node, &mut shards);
        self.after_run(ran, &shards)
    }

    /// Releases the holds that a job no longer needs after its run. The node comes back if it must run again.
    fn after_run(&mut self, ran: Ran<J>, shards: &[ShardId]) -> Option<Box<Node<J>>> {
        match ran {
            Ran::Ended(lane) => {
                self.let_go(shards);
                if lane == LaneHold::Taken {
                    self.let_go_of_lane();
                }
                None
            }
            Ran::Again(node) => {
                self.let_go(shards);
                Some(node)
            }
            Ran::GoesOn(node, lane) => {
                self.let_go(shards);
                if lane == LaneHold::Taken {
                    self.let_go_of_lane();
                }
                Some(node)
            }
            Ran::Keeps(node) => Some(node),
            Ran::Yielded(node) => {
                // SAFETY: held for the job, which has ended its run.
                unsafe { self.engine.executor(shards[0]).put_back(node) };
                self.let_go(shards);
                None
            }
        }
    }

    /// Runs a job under its holds, which are still there afterwards. Adds the shards that joined to `shards`.
    fn run_held(&mut self, mut node: Box<Node<J>>, shards: &mut SmallVec<[ShardId; 6]>) -> Ran<J> {
        let lane = if node.route.has_lane { LaneHold::Taken } else { LaneHold::NotTaken };
        // A job without a shard has no queue to yield to, and a heavy job is where it should be.
        let is_drained = self.is_draining && !shards.is_empty() && !node.route.is_heavy();
        let held = Held::of_worker(&self.engine, &mut self.releasing, shards, self.runs);
        let mut own = Held { lane, is_drained, ..held };
        let rescue = Rescue(&mut own);
        let held = &mut *rescue.0;
        let thread = &mut self.thread;
        let ran = catch_unwind(AssertUnwindSafe(|| node.job.run(held, thread)));
        let next = ran.unwrap_or_else(|panic| {
            J::caught(held, &panic);
            node.job.panicked(thread);
            Next::Home
        });
        let lane = held.lane;
        let weight = node.route.weight;
        let has_lane = lane == LaneHold::Taken;
        let ran = match next {
            Next::Home => {
                leave_all(held, thread);
                // A node that goes home holds nothing.
                node.route.has_lane = false;
                J::finish(node, thread);
                Ran::Ended(lane)
            }
            Next::Again(mut route) => {
                leave_all(held, thread);
                if weight == Weight::Heavy {
                    route.weight = Weight::Heavy;
                }
                node.route = Route { has_lane, ..route };
                Ran::Again(node)
            }
            Next::GoOn(mut route) => {
                leave_all(held, thread);
                if weight == Weight::Heavy {
                    route.weight = Weight::Heavy;
                }
                node.route = route;
                Ran::GoesOn(node, lane)
            }
            Next::KeepAnd(more) => {
                assert!(has_lane, "only the lane's holder may wait while it holds");
                let taken = held.ids().len();
                let mut route = Route::new(more);
                route.shards.retain(|id| !held.has(*id));
                route.shards.insert_from_slice(0, held.ids());
                node.route = Route { progress: Progress::Taking { taken }, weight, has_lane, ..route };
                Ran::Keeps(node)
            }
            Next::Yield => {
                leave_all(held, thread);
                assert!(is_drained, "a job that may go on does");
                let rounds = node.route.rounds;
                let route = Route::new(held.ids().into());
                node.route =
                    Route { progress: Progress::Waiting { at: 0 }, weight, has_lane, rounds, ..route };
                Ran::Yielded(node)
            }
        };
        mem::forget(rescue);
        let extended = own.extended;
        if !extended.is_empty() {
            *shards = extended.into();
        }
        ran
    }

    /// Releases the shards that no node waits for, and lists the others for draining.
    fn let_go(&mut self, shards: &[ShardId]) {
        let mut listed = 0;
        for &id in shards {
            // SAFETY: callers pass shards that are held by this worker or by the job it carries, and forget
            // them here.
            if unsafe { self.engine.executor(id).release_if_unwanted() } {
                continue;
            }
            if listed < DRAINED_BY_ITS_WORKER && self.runs == Weight::Light {
                self.releasing.push(Hold::Shard(id));
                listed += 1;
            } else {
                self.hand_off(Hold::Shard(id));
            }
        }
    }

    /// Releases the lane, or makes sure that the next in its queue gets it.
    fn let_go_of_lane(&mut self) {
        // SAFETY: callers carry the job that holds the lane, and forget it here.
        if unsafe { self.engine.lane.release_if_unwanted() } {
            return;
        }
        if self.runs == Weight::Light {
            // Drained last: the next holder wants shards that are still listed, too.
            self.releasing.insert(0, Hold::Lane);
        } else {
            self.hand_off(Hold::Lane);
        }
    }

    fn hand_off(&mut self, hold: Hold) {
        self.engine.inject(hold);
        J::handed_off(&mut self.thread);
    }

    /// Drains and releases everything listed. Returns false if some of it was handed off for lack of time.
    fn settle(&mut self) -> bool {
        let mut in_time = true;
        self.is_draining = true;
        while let Some(hold) = self.releasing.pop() {
            in_time &= match hold {
                Hold::Shard(id) => self.drain(id),
                Hold::Lane => self.drain_lane(),
            };
        }
        self.is_draining = false;
        J::released(&mut self.thread);
        in_time
    }

    /// Runs the nodes that wait at a shard until it is released or passed to a transaction. Returns false if
    /// it handed the shard off.
    fn drain(&mut self, id: ShardId) -> bool {
        loop {
            if self.engine.grant(id) {
                return true;
            }
            // SAFETY: shards in `releasing` are held by this worker.
            let Some(mut node) = (unsafe { self.engine.executor(id).next_or_release() }) else { return true };
            if !J::may_drain(&mut self.thread) {
                // SAFETY: still held: `next_or_release` gave a node.
                unsafe { self.engine.executor(id).put_back(node) };
                self.hand_off(Hold::Shard(id));
                return false;
            }
            let route = &mut node.route;
            if route.is_heavy() && self.runs == Weight::Light && !route.has_lane {
                // No thread is ready to run it, so the shard is of no use to it yet.
                route.progress = Progress::Taking { taken: 0 };
                self.leave_to_heavy(node);
                continue;
            }
            if route.is_heavy() || route.has_lane || route.shards.len() > 1 {
                // From here on the hold of `id` is the transaction's.
                let node = self.granted(node);
                self.drive(node);
                return true;
            }
            // A delegated command: runs under the hold that is here already.
            let mut shards = SmallVec::from_slice(&[id]);
            let ran = self.run_held(node, &mut shards);
            if shards.len() > 1 {
                // From here on it is a transaction like others.
                if let Some(node) = self.after_run(ran, &shards) {
                    self.drive(node);
                }
                return true;
            }
            match ran {
                Ran::Ended(LaneHold::Taken) => self.let_go_of_lane(),
                Ran::Ended(_) => {}
                Ran::Again(node) => {
                    // Not from here. The work that it runs now may wait for this shard, and then finds it in
                    // the list.
                    self.releasing.push(Hold::Shard(id));
                    self.drive(node);
                    return true;
                }
                Ran::GoesOn(node, lane) => {
                    self.releasing.push(Hold::Shard(id));
                    if lane == LaneHold::Taken {
                        self.let_go_of_lane();
                    }
                    self.drive(node);
                    return true;
                }
                Ran::Keeps(node) => {
                    self.drive(node);
                    return true;
                }
                // SAFETY: still held, for the drain.
                Ran::Yielded(node) => unsafe { self.engine.executor(id).put_back(node) },
            }
        }
    }

    /// Passes the lane to the next in its queue, if there is one. Returns false if it handed the lane off.
    fn drain_lane(&mut self) -> bool {
        // SAFETY: the lane in `releasing` is held by this worker.
        let Some(node) = (unsafe { self.engine.lane.next_or_release() }) else { return true };
        if !J::may_drain(&mut self.thread) {
            // SAFETY: still held: `next_or_release` gave a node.
            unsafe { self.engine.lane.put_back(node) };
            self.hand_off(Hold::Lane);
            return false;
        }
        let node = self.granted(node);
        self.drive(node);
        true
    }
}

/// The state of a job that ran. Its shards are still held.
enum Ran<J> {
    /// Its node has gone home, and the lane must be released if the job has it.
    Ended(LaneHold),
    /// It runs again, with nothing held but the lane.
    Again(Box<Node<J>>),
    /// It goes on with nothing held, and the lane must be released if the job has it.
    GoesOn(Box<Node<J>>, LaneHold),
    /// It runs again, and keeps its shards and the lane.
    Keeps(Box<Node<J>>),
    /// It goes back in front of its first shard's queue.
    Yielded(Box<Node<J>>),
}

/// Leaves the nodes of a heavy worker that has ended to the other heavy workers.
fn leave_to_others<J: Job>(engine: &Engine<J>, own: &Inbox<J>) {
    own.take().for_each(|node| engine.heavy.push(node));
}

/// Calls [`Job::leave`] for each held shard.
fn leave_all<J: Job>(held: &mut Held<'_, J>, thread: &mut J::Thread) {
    for index in 0..held.ids().len() {
        let id = held.ids()[index];
        J::leave(held.shard(id), thread);
    }
}

impl<J: Job> Drop for Worker<J> {
    fn drop(&mut self) {
        // A heavy-work thread ends while its node waits. The node, which may hold shards then, goes to
        // another. The announcement of sleep stays: a thread that grants the node something sees it.
        // Otherwise the node is here already.
        if self.is_reserved && !self.own.may_sleep(|| true) {
            leave_to_others(&self.engine, &self.own);
            J::heavy_waits(&mut self.thread);
            J::released(&mut self.thread);
        }
        // Between two jobs nothing is listed, unless a hook has panicked. A listed hold is still held, and
        // some other worker has to drain it.
        if self.releasing.is_empty() {
            return;
        }
        for hold in mem::take(&mut self.releasing) {
            self.hand_off(hold);
        }
        J::released(&mut self.thread);
    }
}

/// Sends the holds to the injector when a hook of the job panics. Otherwise the thread would take them with
/// it.
struct Rescue<'h, 'a, J: Job>(&'h mut Held<'a, J>);

impl<J: Job> Drop for Rescue<'_, '_, J> {
    fn drop(&mut self) {
        let Self(held) = self;
        held.ids().iter().for_each(|&id| held.engine.injector.push(Hold::Shard(id)));
        if held.lane == LaneHold::Taken {
            held.engine.injector.push(Hold::Lane);
        }
    }
}

/// Calls [`Job::caught`] for a panic of work that ran outside of a node.
#[cold]
fn hear_of<J: Job>(panic: &Panic, held: &mut Held<'_, J>) {
    let rescue = Rescue(held);
    J::caught(rescue.0, panic);
    mem::forget(rescue);
}
