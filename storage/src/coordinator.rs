//! The coordinator: takes the shards that a piece of work touches, runs it, and lets them go.
//!
//! **Guarantee.** A job runs when, and only when, all shards of its route are held for it; no other job sees
//! a state between its first and its last change; and as long as holders release and threads turn, every
//! submitted job runs.
//!
//! A command on one key, a transaction over many and a command delegated to a busy shard are the same thing
//! here: a [`Node`] with a [`Route`] of one or more shards in ascending order.
//!
//! # How a route is taken
//!
//! | state | the transaction holds | and lies |
//! |---|---|---|
//! | `Taking { taken }` | `shards[..taken]` | on the stack of a worker, or in the queue for heavy-work threads |
//! | `Waiting { at, Alone::No }` | `shards[..at]` | in the queue of `shards[at]` |
//! | `Waiting { at, Alone::Yes }` | nothing | in the queue of `shards[at]` |
//!
//! A waiting node in a shard's queue is the *grant*. Whoever drains that shard comes to the grant in its turn, passes the
//! hold to the transaction and carries it on from there. The state and the route are part of the node and belong, like its
//! job, to whoever has it.
//!
//! At the first shard that is taken by someone else, a transaction frees what it has (nothing is written
//! yet) and waits with empty hands; granted, it *tries* the lower shards, and frees the one it was granted if one of them
//! is taken. Only after [`PATIENT_ROUNDS`] such rounds does it begin again from the lowest and wait while holding, so that it
//! ends. Without this, one slow command blocks, through the transactions that wait for it, shards it never touches.
//!
//! # Why there is no deadlock and no starvation
//!
//! Who waits while holding waits for a higher shard than all it holds, so waits form no cycle; who waits with
//! empty hands is in no cycle; a try waits for nothing; and heavy-work threads, for which a transaction may wait while it
//! holds, never wait for a shard themselves. A queue is served in order, so every grant comes up. Patience ends after a
//! fixed number of rounds, and a transaction that waits while holding keeps what it is granted.
//!
//! # Why nothing is seen half done, nor out of order
//!
//! A job runs between the last of its shards being taken and the first of them being let go, also when it panics. It is
//! sent home (`finish`) before the first is let go, so whoever sees its effect sends home later. Jobs that share a shard run in
//! the same order on all shards they share. A transaction that waits with empty hands may be overtaken at its lower shards by jobs
//! that came later; jobs of one origin that has one node, like a connection, are never reordered, because the next is sent when
//! the last is back.
//!
//! # Why a drain never recurses
//!
//! Running a granted transaction frees its shards, on whose queues there may be grants, and so on. The
//! worker keeps the shards it has yet to drain in a list (`releasing`) and works it off in one loop.
//!
//! # Panics
//!
//! A panic of a job, or of work in place, is caught for itself: [`Job::caught`] hears of it under the hold (and stops the process if
//! a shard is torn), the node goes home, the shards are released, and what waits there runs. A panic of a *hook* is a bug of
//! the server's; it unwinds through the worker and loses the node in hand, but every shard that the worker held goes to the
//! injector, so that nothing else waits for a thread that has ended.

#[cfg(all(test, loom))]
mod loom_tests;
#[cfg(all(test, not(loom)))]
mod tests;

use std::{
    any::Any,
    hint::cold_path,
    mem,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use smallvec::SmallVec;

use crate::{
    executor::{Linked, Node, ShardExecutor},
    hash::ShardId,
    sync::InjectorQueue,
};

/// How often a transaction waits with empty hands before it waits while holding.
const PATIENT_ROUNDS: u8 = 3;

/// How many contended shards of one transaction its worker drains itself; the rest go to the injector, so
/// that one thread does not end up with a thousand queues.
const DRAINED_BY_ITS_WORKER: usize = 4;

/// The payload of a caught panic.
pub type Panic = Box<dyn Any + Send>;

/// What a server runs on shards, and what it wants to hear of it.
///
/// All but `prepare` and `released` are called while shards are held: they must not block, lock or make system
/// calls. None but `run` may panic.
pub trait Job: Sized + Send + 'static {
    /// What an executor guards.
    type Shard: Send;
    /// What belongs to a thread: clocks, statistics, whom to wake.
    type Thread;

    /// Sets the route of a node that came to a heavy-work thread without one: with much to do, finding it is much to do.
    /// Nothing is held for the node yet.
    fn prepare(_node: &mut Node<Self>, _thread: &mut Self::Thread) {}
    /// Does the work, with all shards of the route held. Or gives the route over more shards that it turns out to need, having
    /// changed nothing of which others hear: then it is run again when those are held.
    fn run(&mut self, held: &mut Held<'_, Self>, thread: &mut Self::Thread) -> Option<Route>;
    /// Hears of a panic of any work on shards while they are still held: the place to stop the process rather than
    /// let others see a torn shard.
    fn caught(held: &mut Held<'_, Self>, panic: &Panic);
    /// Hears, after `caught`, that `run` panicked.
    fn panicked(&mut self, thread: &mut Self::Thread);
    /// Hears that the work on a shard is done, while it is still held: the time to take over what the shard has counted.
    fn leave(_shard: &mut Self::Shard, _thread: &mut Self::Thread) {}
    /// Takes the node back after `run`. The shards are still held, so that what is sent from here keeps the
    /// order of the holds.
    fn finish(node: Box<Node<Self>>, thread: &mut Self::Thread);
    /// Says whether the thread may go on draining work that is not its own; asked before each node.
    fn may_drain(thread: &mut Self::Thread) -> bool;
    /// Hears that a held shard went to the injector: some thread should take it soon.
    fn handed_off(thread: &mut Self::Thread);
    /// Hears that a node waits for a heavy-work thread. It may hold shards.
    fn heavy_waits(thread: &mut Self::Thread);
    /// Hears that all holds are released or passed on: the time to wake the threads that were sent something. Not called
    /// where nothing can have been sent.
    fn released(thread: &mut Self::Thread);
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Alone {
    Yes,
    No,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    Taking { taken: usize },
    Waiting { at: usize, alone: Alone },
}

/// Where a job may run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Weight {
    /// Short: on any thread.
    #[default]
    Light,
    /// Long: only on a heavy-work thread, so that no socket waits behind it.
    Heavy,
}

/// The shards a job needs, ascending, and how far taking them has come.
#[derive(Debug)]
pub struct Route {
    shards: SmallVec<[ShardId; 6]>,
    progress: Progress,
    rounds: u8,
    weight: Weight,
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
        Self { shards, progress: Progress::Taking { taken: 0 }, rounds: 0, weight: Weight::Light }
    }

    /// Makes the route to one shard.
    pub fn one(shard: ShardId) -> Self {
        Self::new(SmallVec::from_slice(&[shard]))
    }

    /// Has the job run on a heavy-work thread only.
    pub fn with_weight(mut self, weight: Weight) -> Self {
        self.weight = weight;
        self
    }

    /// The shards, ascending.
    pub fn shards(&self) -> &[ShardId] {
        &self.shards
    }
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

/// The shards and what waits for them, shared by all threads.
pub struct Engine<J: Job> {
    executors: Box<[ShardExecutor<J::Shard, J>]>,
    /// Held shards that their holder had no more time for. Any worker takes them.
    injector: InjectorQueue<ShardId>,
    heavy: InjectorQueue<Box<Node<J>>>,
}

impl<J: Job> Engine<J> {
    /// Makes an engine of idle shards.
    pub fn new(shards: impl IntoIterator<Item = J::Shard>) -> Arc<Self> {
        Arc::new(Self {
            executors: shards.into_iter().map(ShardExecutor::new).collect(),
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

    /// Whether no held shard waits for a thread to drain it.
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

    /// Fetches the line of a shard's word and the first lines of the shard for writing, ahead of a hold.
    #[inline(always)]
    pub fn prefetch(&self, id: ShardId) {
        self.executor(id).prefetch();
    }
}

/// The shards held for a running job.
pub struct Held<'a, J: Job> {
    engine: &'a Engine<J>,
    /// Ascending.
    shards: &'a [ShardId],
}

impl<J: Job> Held<'_, J> {
    /// The ids of the held shards, ascending.
    pub fn ids(&self) -> &[ShardId] {
        self.shards
    }

    /// Whether `id` is held.
    pub fn has(&self, id: ShardId) -> bool {
        match self.shards {
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
}

/// A thread's end of the engine: runs jobs, drains queues.
pub struct Worker<J: Job> {
    engine: Arc<Engine<J>>,
    /// Held by this worker, to be drained and released.
    releasing: Vec<ShardId>,
    runs: Weight,
    /// What belongs to the thread.
    pub thread: J::Thread,
}

impl<J: Job> Worker<J> {
    /// Makes the worker of a thread that runs jobs up to the weight `runs`.
    pub fn new(engine: Arc<Engine<J>>, runs: Weight, thread: J::Thread) -> Self {
        Self { engine, releasing: Vec::new(), runs, thread }
    }

    /// The engine.
    pub fn engine(&self) -> &Arc<Engine<J>> {
        &self.engine
    }

    /// Runs `work` on a shard right here, if the shard is idle.
    ///
    /// This is the data path: one compare-and-swap before and one after. What others delegated meanwhile is
    /// run before the shard is released. A panic of `work` comes back as `Some(Err)`, with the shard released.
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
            hear_of(panic, &self.engine, &[id]);
        }
        // SAFETY: held above, and the closure's reference to the shard is gone.
        J::leave(unsafe { executor.shard() }, &mut self.thread);
        // SAFETY: held above, and no reference to the shard is left.
        if !unsafe { executor.release_if_unwanted() } {
            cold_path();
            self.releasing.push(id);
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
        let mut held = Held { engine: &self.engine, shards: ids };
        let thread = &mut self.thread;
        let result = catch_unwind(AssertUnwindSafe(|| work(&mut held, thread)));
        if let Err(panic) = &result {
            hear_of(panic, &self.engine, ids);
        }
        leave_all(&mut Held { engine: &self.engine, shards: ids }, &mut self.thread);
        self.let_go(ids);
        self.settle();
        Some(result)
    }

    /// Takes the node's route and runs its job, here and now if the shards are idle, otherwise wherever the
    /// last of them becomes free. Either way the node comes back through [`Job::finish`].
    pub fn submit(&mut self, node: Box<Node<J>>) {
        self.drive(node);
        self.settle();
    }

    /// Drains the held shards that other workers had no time for, until this one has none either.
    pub fn take_injected(&mut self) {
        while let Some(id) = self.engine.injector.pop() {
            self.releasing.push(id);
            // What was just handed on again is for others, or for another turn: at a shard that never empties, taking it
            // back would go on for ever.
            if !self.settle() || !J::may_drain(&mut self.thread) {
                return;
            }
        }
    }

    /// Carries on one job that waits for a heavy-work thread.
    pub fn take_heavy(&mut self) -> bool {
        let Some(mut node) = self.engine.heavy.pop() else { return false };
        if node.route.shards.is_empty() {
            J::prepare(&mut node, &mut self.thread);
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

    /// Takes shards until all are held (then the node comes back) or the node waits somewhere.
    fn advance(&mut self, mut node: Box<Node<J>>) -> Option<Box<Node<J>>> {
        loop {
            if node.route.weight == Weight::Heavy && self.runs == Weight::Light {
                self.engine.heavy.push(node);
                J::heavy_waits(&mut self.thread);
                return None;
            }
            let Progress::Taking { taken } = node.route.progress else {
                unreachable!("a waiting node is carried on by `granted` first")
            };
            let Some(&wanted) = node.route.shards.get(taken) else { return Some(node) };
            if self.engine.executor(wanted).try_hold() {
                node.route.progress = Progress::Taking { taken: taken + 1 };
                continue;
            }
            let alone = if taken > 0 && node.route.rounds < PATIENT_ROUNDS {
                node.route.rounds += 1;
                self.let_go(&node.route.shards[..taken]);
                Alone::Yes
            } else {
                Alone::No
            };
            node = self.wait_at(node, taken, alone)?;
        }
    }

    /// Leaves the node in a shard's queue; it comes back if the shard turned idle meanwhile.
    fn wait_at(&mut self, mut node: Box<Node<J>>, at: usize, alone: Alone) -> Option<Box<Node<J>>> {
        let mut at = at;
        let mut alone = alone;
        loop {
            node.route.progress = Progress::Waiting { at, alone };
            let wanted = node.route.shards[at];
            // Once linked the node is the other thread's: nothing of it may be read after this.
            match self.engine.executor(wanted).hold_or_link(node) {
                Linked::Waiting => return None,
                Linked::Held(ours) => node = ours,
            }
            match self.granted(&mut node) {
                None => return Some(node),
                Some(next) => (at, alone) = next,
            }
        }
    }

    /// Notes that the shard the node waited at is held for it now, and takes the lower shards where it came
    /// with empty hands. `Some` says where it has to wait next.
    fn granted(&mut self, node: &mut Node<J>) -> Option<(usize, Alone)> {
        let route = &mut node.route;
        let Progress::Waiting { at, alone } = route.progress else {
            unreachable!("only a waiting node is in a queue")
        };
        if alone == Alone::Yes
            && let Some(missing) =
                (0..at).find(|&lower| !self.engine.executor(route.shards[lower]).try_hold())
        {
            self.let_go(&route.shards[..missing]);
            self.let_go(&route.shards[at..=at]);
            if route.rounds < PATIENT_ROUNDS {
                route.rounds += 1;
                return Some((missing, Alone::Yes));
            }
            // Out of patience: from the lowest on, waiting while holding.
            route.progress = Progress::Taking { taken: 0 };
            return None;
        }
        route.progress = Progress::Taking { taken: at + 1 };
        None
    }

    /// Runs a job that has its shards, and lets go of them. The node comes back if it needs more.
    fn run(&mut self, mut node: Box<Node<J>>) -> Option<Box<Node<J>>> {
        let shards = mem::take(&mut node.route.shards);
        let again = self.run_held(node, &shards);
        self.let_go(&shards);
        again
    }

    fn run_held(&mut self, mut node: Box<Node<J>>, shards: &[ShardId]) -> Option<Box<Node<J>>> {
        let mut held = Held { engine: &self.engine, shards };
        let thread = &mut self.thread;
        let rescue = Rescue { engine: &self.engine, shards };
        let ran = catch_unwind(AssertUnwindSafe(|| node.job.run(&mut held, thread)));
        let wanted = ran.unwrap_or_else(|panic| {
            J::caught(&mut held, &panic);
            node.job.panicked(thread);
            None
        });
        leave_all(&mut held, thread);
        let again = match wanted {
            Some(route) => {
                let is_heavy = node.route.weight == Weight::Heavy;
                node.set_route(if is_heavy { route.with_weight(Weight::Heavy) } else { route });
                Some(node)
            }
            None => {
                J::finish(node, thread);
                None
            }
        };
        mem::forget(rescue);
        again
    }

    /// Releases the shards that nobody waits for and lists the others for draining.
    fn let_go(&mut self, shards: &[ShardId]) {
        let mut listed = 0;
        for &id in shards {
            // SAFETY: callers pass shards that are held by this worker or by the job it carries, and forget
            // them here.
            if unsafe { self.engine.executor(id).release_if_unwanted() } {
                continue;
            }
            if listed < DRAINED_BY_ITS_WORKER && self.runs == Weight::Light {
                self.releasing.push(id);
                listed += 1;
            } else {
                self.hand_off(id);
            }
        }
    }

    fn hand_off(&mut self, id: ShardId) {
        self.engine.injector.push(id);
        J::handed_off(&mut self.thread);
    }

    /// Drains and releases everything listed. Returns false if there was no time for some of it, which was handed off.
    fn settle(&mut self) -> bool {
        let mut in_time = true;
        while let Some(id) = self.releasing.pop() {
            in_time &= self.drain(id);
        }
        J::released(&mut self.thread);
        in_time
    }

    /// Runs what waits at a shard until it is released or passed to a transaction; or returns false, having handed it off.
    fn drain(&mut self, id: ShardId) -> bool {
        loop {
            // SAFETY: shards in `releasing` are held by this worker.
            let Some(mut node) = (unsafe { self.engine.executor(id).next_or_release() }) else { return true };
            if !J::may_drain(&mut self.thread) {
                // SAFETY: still held: `next_or_release` gave a node.
                unsafe { self.engine.executor(id).put_back(node) };
                self.hand_off(id);
                return false;
            }
            if node.route.shards.len() == 1 && node.route.weight == Weight::Light {
                // A delegated command: runs under the hold that is here already.
                if let Some(node) = self.run_held(node, &[id]) {
                    // Not from here, with the shard held: it waits in line for it once more.
                    self.drive(node);
                }
                continue;
            }
            // From here on the hold of `id` is the transaction's.
            let node = match self.granted(&mut node) {
                None => Some(node),
                Some((at, alone)) => self.wait_at(node, at, alone),
            };
            if let Some(node) = node {
                self.drive(node);
            }
            return true;
        }
    }
}

/// Tells the job's type of the end of the work on each held shard.
fn leave_all<J: Job>(held: &mut Held<'_, J>, thread: &mut J::Thread) {
    for index in 0..held.shards.len() {
        let id = held.shards[index];
        J::leave(held.shard(id), thread);
    }
}

impl<J: Job> Drop for Worker<J> {
    fn drop(&mut self) {
        // Between two jobs nothing is listed. Something is when a hook has panicked: those shards are held, and some other
        // worker has to drain them.
        if self.releasing.is_empty() {
            return;
        }
        for id in mem::take(&mut self.releasing) {
            self.hand_off(id);
        }
        J::released(&mut self.thread);
    }
}

/// Sends held shards to the injector when a hook of the job panics, so that its thread does not take them with it.
struct Rescue<'a, J: Job> {
    engine: &'a Engine<J>,
    shards: &'a [ShardId],
}

impl<J: Job> Drop for Rescue<'_, J> {
    fn drop(&mut self) {
        for &id in self.shards {
            self.engine.injector.push(id);
        }
    }
}

/// Tells of a panic of work that ran outside of a node.
#[cold]
fn hear_of<J: Job>(panic: &Panic, engine: &Engine<J>, shards: &[ShardId]) {
    let rescue = Rescue { engine, shards };
    J::caught(&mut Held { engine, shards }, panic);
    mem::forget(rescue);
}
