//! Every interleaving of a few threads on a few shards, on the real executor and coordinator.
//!
//! All tests check that each node comes back exactly once, whichever thread ran it. loom's cells in shards
//! and jobs report any two accesses that no ordering keeps apart. At the end every shard is idle and every
//! node is freed. A panic that a test has not thrown itself (an assertion, a finding of loom's) is passed on,
//! not taken for a command's.
//!
//! Run with `RUSTFLAGS="--cfg loom" cargo test -p braid-storage --release --lib loom_tests`. Tests that say
//! so bound the number of preemptions: five with two threads, four with three. Without a bound they would run
//! for hours.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::Relaxed},
};

use loom::{cell::UnsafeCell, model::Builder, thread};
use smallvec::SmallVec;

use super::*;
use crate::sync::executor::Inbox;

/// A shard: the ids of the jobs that ran on it, and an account.
struct Ledger {
    ran: UnsafeCell<Vec<u32>>,
    account: UnsafeCell<i64>,
}

impl Ledger {
    fn note(&self, id: u32) {
        // SAFETY: the shard is held, and loom checks that here.
        self.ran.with_mut(|ran| unsafe { (*ran).push(id) });
    }

    fn add(&self, amount: i64) {
        // SAFETY: as above.
        self.account.with_mut(|account| unsafe { *account += amount });
    }

    fn balance(&self) -> i64 {
        // SAFETY: as above.
        self.account.with_mut(|account| unsafe { *account })
    }

    fn order(&self) -> Vec<u32> {
        // SAFETY: as above.
        self.ran.with_mut(|ran| unsafe { (*ran).clone() })
    }
}

/// The work of a job besides noting that it ran.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Work {
    Nothing,
    Panic,
    /// Moves one from the first shard of its route to the last; the sum must be zero before and after.
    Transfer,
    /// Finds out that it needs shards 0 and 1, and transfers between those.
    Grow,
    /// Takes one from its shard, as the lane's holder, and then finds out that it needs shard 0, to which it
    /// adds one. Where it does not have the lane it tries to take it, and otherwise queues for it.
    Reach,
    /// Has reached, and left this balance in its own shard.
    Reached(i64),
    /// Reaches, and panics when it has the shard that it reached for.
    ReachAndPanic,
    /// As `Reach`, but in one run: it waits for shard 0 on its thread.
    Stay,
}

/// Moves one from a shard to shard 0, for which the thread waits while the former is held.
fn stay(held: &mut Held<'_, Probe>, own: ShardId) {
    held.shard(own).add(-1);
    let own_balance = held.shard(own).balance();
    let pause = || {
        thread::yield_now();
        true
    };
    assert!(held.wait_for(ShardId(0), pause));
    assert_eq!(held.shard(own).balance(), own_balance, "interrupted");
    held.shard(ShardId(0)).add(1);
}

struct Probe {
    id: u32,
    work: Work,
    needs: Weight,
    panicked: bool,
    /// Whether another job had the lane when it tried.
    was_refused: bool,
    /// Written by each owner of the node: a later owner must be ordered after an earlier one.
    touched: UnsafeCell<u32>,
    _freed: Freed,
}

/// Counts the nodes that exist.
struct Freed(Arc<AtomicUsize>);

impl Drop for Freed {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

impl Probe {
    fn touch(&self) -> u32 {
        // SAFETY: the owner of the node has it alone, and loom checks that here.
        self.touched.with_mut(|touched| unsafe {
            *touched += 1;
            *touched
        })
    }
}

/// The panic that tests throw.
struct DeliberatePanic;

/// A thread's state.
struct Desk {
    home: Arc<Home>,
    /// The number of nodes that it may drain; then it must hand on.
    budget: usize,
    runs: Weight,
    finished: bool,
    wakes_heavy: bool,
}

/// The inboxes of finished nodes, on which threads may sleep, and the threads that wait for heavy work.
#[derive(Default)]
struct Home {
    inbox: Inbox<Probe>,
    sleeper: std::sync::Mutex<Option<thread::Thread>>,
    heavy: std::sync::Mutex<Option<thread::Thread>>,
}

impl Job for Probe {
    type Shard = Ledger;
    type Thread = Desk;

    fn run(&mut self, held: &mut Held<'_, Self>, thread: &mut Desk) -> Next {
        assert!(self.needs == Weight::Light || thread.runs == Weight::Heavy, "a heavy job on a light thread");
        if self.work == Work::Grow {
            self.work = Work::Transfer;
            return Next::Again(Route::new(SmallVec::from_slice(&[ShardId(0), ShardId(1)])));
        }
        if matches!(self.work, Work::Reach | Work::ReachAndPanic) && !held.has(ShardId(0)) {
            let own = held.ids()[0];
            if !held.try_lane() {
                self.was_refused = true;
                return Next::Again(Route::one(own).through_lane());
            }
            if self.work == Work::Reach {
                held.shard(own).add(-1);
                self.work = Work::Reached(held.shard(own).balance());
            }
            return Next::KeepAnd(SmallVec::from_slice(&[ShardId(0)]));
        }
        if self.work == Work::Stay && !held.try_lane() {
            self.was_refused = true;
            return Next::Again(Route::one(held.ids()[0]).through_lane());
        }
        assert_eq!(self.touch(), 2, "a job runs once");
        if self.work == Work::Stay {
            stay(held, held.ids()[0]);
        }
        if let Work::Reached(own_balance) = self.work {
            assert!(held.has_lane(), "it keeps what it has");
            assert_eq!(held.shard(held.ids()[1]).balance(), own_balance, "interrupted");
            held.shard(ShardId(0)).add(1);
        }
        if matches!(self.work, Work::Panic | Work::ReachAndPanic) {
            // Without the hook, which would print the panic of every interleaving.
            std::panic::resume_unwind(Box::new(DeliberatePanic));
        }
        let ids: SmallVec<[ShardId; 6]> = held.ids().into();
        if self.work == Work::Transfer {
            assert_eq!(ids.iter().map(|&id| held.shard(id).balance()).sum::<i64>(), 0, "seen half done");
            held.shard(ids[0]).add(-1);
            held.shard(ids[ids.len() - 1]).add(1);
        }
        for id in ids {
            held.shard(id).note(self.id);
        }
        Next::Home
    }

    fn caught(_: &mut Held<'_, Self>, panic: &Panic) {
        assert!(panic.is::<DeliberatePanic>(), "a finding inside of a job");
    }

    fn panicked(&mut self, _: &mut Desk) {
        self.touch();
        self.panicked = true;
    }

    fn finish(node: Box<Node<Self>>, thread: &mut Desk) {
        node.job.touch();
        thread.home.inbox.push(node);
        thread.finished = true;
    }

    fn may_drain(thread: &mut Desk) -> bool {
        thread.budget = thread.budget.saturating_sub(1);
        thread.budget > 0
    }

    fn handed_off(_: &mut Desk) {}

    fn heavy_waits(thread: &mut Desk) {
        thread.wakes_heavy = true;
    }

    fn released(thread: &mut Desk) {
        if std::mem::take(&mut thread.wakes_heavy) {
            let heavy = thread.home.heavy.lock().unwrap().clone();
            heavy.iter().for_each(thread::Thread::unpark);
        }
        if std::mem::take(&mut thread.finished) && thread.home.inbox.must_wake() {
            let sleeper = thread.home.sleeper.lock().unwrap().clone();
            sleeper.expect("who sleeps has said who it is").unpark();
        }
    }
}

/// A budget that no test uses up.
const PLENTY: usize = 1000;

/// A few shards, and the shared state of a test's threads.
#[derive(Clone)]
struct Fixture {
    engine: Arc<Engine<Probe>>,
    home: Arc<Home>,
    n_nodes: Arc<AtomicUsize>,
    n_submitted: Arc<AtomicUsize>,
}

impl Fixture {
    fn new(n_shards: usize) -> Self {
        let ledger = || Ledger { ran: UnsafeCell::new(Vec::new()), account: UnsafeCell::new(0) };
        Self {
            engine: Engine::new((0..n_shards).map(|_| ledger())),
            home: Arc::default(),
            n_nodes: Arc::default(),
            n_submitted: Arc::default(),
        }
    }

    fn worker_with(&self, runs: Weight, budget: usize) -> Worker<Probe> {
        let desk = Desk { home: Arc::clone(&self.home), budget, runs, finished: false, wakes_heavy: false };
        Worker::new(Arc::clone(&self.engine), runs, desk)
    }

    fn worker(&self) -> Worker<Probe> {
        self.worker_with(Weight::Light, PLENTY)
    }

    fn node(&self, id: u32, work: Work, shards: &[u16]) -> Box<Node<Probe>> {
        self.n_nodes.fetch_add(1, Relaxed);
        self.n_submitted.fetch_add(1, Relaxed);
        let mut node = Node::new(Probe {
            id,
            work,
            needs: Weight::Light,
            panicked: false,
            was_refused: false,
            touched: UnsafeCell::new(0),
            _freed: Freed(Arc::clone(&self.n_nodes)),
        });
        node.set_route(Route::new(shards.iter().map(|&id| ShardId(id)).collect()));
        node.job.touch();
        node
    }

    fn heavy_node(&self, id: u32, shards: &[u16]) -> Box<Node<Probe>> {
        let mut node = self.node(id, Work::Nothing, shards);
        node.job.needs = Weight::Heavy;
        node.route.weight = Weight::Heavy;
        node
    }

    /// A node that has used up its patience.
    fn impatient(&self, mut node: Box<Node<Probe>>) -> Box<Node<Probe>> {
        node.route.rounds = PATIENT_ROUNDS;
        node
    }

    /// A node that queues for the lane at once.
    fn through_lane(&self, mut node: Box<Node<Probe>>) -> Box<Node<Probe>> {
        node.route.is_through_lane = true;
        node
    }

    /// Runs a part of the test on another thread.
    fn elsewhere<T: 'static>(&self, part: impl FnOnce(&Fixture) -> T + 'static) -> thread::JoinHandle<T> {
        let bench = self.clone();
        thread::spawn(move || part(&bench))
    }

    /// Takes a shard for `worker`, as if it were in the middle of something there.
    fn hold(&self, worker: &mut Worker<Probe>, id: u16) {
        assert!(self.engine.executor(ShardId(id)).try_hold());
        worker.releasing.push(Hold::Shard(ShardId(id)));
    }

    /// Hands the shards that `worker` holds to a worker of another thread.
    fn pass_holds(&self, from: &mut Worker<Probe>, runs: Weight, budget: usize) -> Worker<Probe> {
        let mut to = self.worker_with(runs, budget);
        to.releasing = mem::take(&mut from.releasing);
        to
    }

    /// Does the remaining work, as threads do in their next turn, and checks that nothing is lost, stuck or
    /// leaked.
    fn settle_up(self) -> Settled {
        let mut light = self.worker();
        let mut heavy = self.worker_with(Weight::Heavy, PLENTY);
        while !self.engine.injector_is_empty() || !self.engine.heavy_is_empty() || heavy.is_reserved() {
            light.take_injected();
            heavy.take_heavy();
        }
        assert!(self.engine.lane.try_hold(), "the lane is held by nobody");
        // SAFETY: held just now.
        assert!(unsafe { self.engine.lane.release_if_unwanted() });
        let mut back = Vec::new();
        for node in self.home.inbox.take() {
            assert_eq!(
                node.job.touch(),
                if node.job.panicked { 5 } else { 4 },
                "submitted, run, finished, back"
            );
            back.push((node.job.id, node.job.panicked));
        }
        let n_back = back.len();
        back.sort_unstable();
        back.dedup();
        assert_eq!(n_back, back.len(), "a node came back twice");
        assert_eq!(n_back, self.n_submitted.load(Relaxed), "a node was lost");
        let mut logs = Vec::new();
        let mut sum = 0;
        for executor in &self.engine.executors {
            assert!(executor.try_hold(), "a shard is held by nobody");
            // SAFETY: held just now.
            let shard = unsafe { executor.shard() };
            logs.push(shard.order());
            sum += shard.balance();
            // SAFETY: as above.
            assert!(unsafe { executor.release_if_unwanted() });
        }
        assert_eq!(sum, 0);
        drop((light, heavy));
        let n_nodes = Arc::clone(&self.n_nodes);
        drop(self);
        assert_eq!(n_nodes.load(Relaxed), 0, "a node leaked");
        Settled { logs, back }
    }
}

struct Settled {
    /// The jobs that ran on each shard, in order.
    logs: Vec<Vec<u32>>,
    /// The jobs that came back, in order of id, and whether they panicked.
    back: Vec<(u32, bool)>,
}

impl Settled {
    fn in_order(&self, shard: usize, ids: &[u32]) {
        let log = self.logs[shard].iter().filter(|id| ids.contains(id));
        assert!(log.eq(ids), "shard {shard}: {:?}, not in the order {ids:?}", self.logs[shard]);
    }
}

fn bounded(n_preemptions: usize, test: impl Fn() + Send + Sync + 'static) {
    let mut builder = Builder::new();
    builder.preemption_bound = Some(n_preemptions);
    builder.check(test);
}

/// Whether an exploration has met a case at all. Outside of the model.
#[derive(Clone, Default)]
struct Met(Arc<AtomicUsize>);

impl Met {
    fn note(&self, case: bool) {
        self.0.fetch_add(case as usize, Relaxed);
    }

    fn check(&self) {
        assert_ne!(self.0.load(Relaxed), 0, "no interleaving has met the case");
    }
}

#[test]
fn two_commands_on_one_shard_both_run() {
    loom::model(|| {
        let bench = Fixture::new(1);
        let other = bench.elsewhere(move |bench| bench.worker().submit(bench.node(1, Work::Nothing, &[0])));
        bench.worker().submit(bench.node(2, Work::Nothing, &[0]));
        other.join().unwrap();
        bench.settle_up();
    });
}

#[test]
fn what_is_linked_runs_in_the_order_of_arrival() {
    loom::model(|| {
        let bench = Fixture::new(1);
        let mut holder = bench.worker();
        bench.hold(&mut holder, 0);
        let other = bench.elsewhere(move |bench| {
            let mut worker = bench.worker();
            for id in 1..=3 {
                worker.submit(bench.node(id, Work::Nothing, &[0]));
            }
        });
        // SAFETY: held above.
        match unsafe { bench.engine.executor(ShardId(0)).next_or_release() } {
            // It stays in front of nodes that have arrived meanwhile.
            // SAFETY: still held: a node came.
            Some(node) => unsafe { bench.engine.executor(ShardId(0)).put_back(node) },
            None => holder.releasing.clear(),
        }
        holder.settle();
        other.join().unwrap();
        drop(holder);
        bench.settle_up().in_order(0, &[1, 2, 3]);
    });
}

#[test]
fn three_threads_on_one_shard() {
    bounded(4, || {
        let bench = Fixture::new(1);
        let others = [10, 20].map(|first| {
            bench.elsewhere(move |bench| {
                let mut worker = bench.worker();
                worker.submit(bench.node(first, Work::Nothing, &[0]));
                worker.submit(bench.node(first + 1, Work::Nothing, &[0]));
            })
        });
        bench.worker().submit(bench.node(1, Work::Nothing, &[0]));
        for other in others {
            other.join().unwrap();
        }
        let settled = bench.settle_up();
        settled.in_order(0, &[10, 11]);
        settled.in_order(0, &[20, 21]);
    });
}

#[test]
fn running_in_place_races_with_submitting() {
    let here = Met::default();
    let there = Met::default();
    let (met_here, met_there) = (here.clone(), there.clone());
    loom::model(move || {
        let bench = Fixture::new(1);
        let other = bench.elsewhere(move |bench| {
            let mut worker = bench.worker();
            worker.submit(bench.node(1, Work::Nothing, &[0]));
            worker.submit(bench.node(2, Work::Nothing, &[0]));
        });
        let mut worker = bench.worker();
        let ran = worker.with_shard(ShardId(0), |shard, _| shard.note(3));
        met_here.note(ran.is_some());
        met_there.note(ran.is_none());
        if ran.is_none() {
            worker.submit(bench.node(3, Work::Nothing, &[0]));
        }
        drop(worker);
        other.join().unwrap();
        let settled = bench.settle_up();
        settled.in_order(0, &[1, 2]);
        settled.in_order(0, &[3]);
    });
    here.check();
    there.check();
}

#[test]
fn several_shards_in_place_race_with_a_transaction() {
    bounded(5, || {
        let bench = Fixture::new(2);
        let other =
            bench.elsewhere(move |bench| bench.worker().submit(bench.node(1, Work::Transfer, &[1, 0])));
        let mut worker = bench.worker();
        let ids = [ShardId(0), ShardId(1)];
        let ran = worker.with_shards(&ids, |held, _| {
            assert_eq!(held.shard(ids[0]).balance() + held.shard(ids[1]).balance(), 0, "seen half done");
            held.shard(ids[0]).add(1);
            held.shard(ids[1]).add(-1);
        });
        if ran.is_none() {
            worker.submit(bench.node(2, Work::Transfer, &[0, 1]));
        }
        drop(worker);
        other.join().unwrap();
        bench.settle_up();
    });
}

#[test]
fn a_panic_in_place_releases_the_shard() {
    loom::model(|| {
        let bench = Fixture::new(1);
        let other = bench.elsewhere(move |bench| bench.worker().submit(bench.node(1, Work::Nothing, &[0])));
        let mut worker = bench.worker();
        let ran = worker.with_shard(ShardId(0), |_, _| std::panic::resume_unwind(Box::new(DeliberatePanic)));
        assert!(!matches!(ran, Some(Ok(()))));
        drop(worker);
        other.join().unwrap();
        assert_eq!(bench.settle_up().logs[0], [1]);
    });
}

#[test]
fn a_panic_in_the_middle_of_a_drain_strands_nobody() {
    bounded(4, || {
        let bench = Fixture::new(1);
        let mut holder = bench.worker();
        bench.hold(&mut holder, 0);
        let mut here = bench.worker();
        here.submit(bench.node(1, Work::Nothing, &[0]));
        here.submit(bench.node(2, Work::Panic, &[0]));
        here.submit(bench.node(3, Work::Nothing, &[0]));
        let mut drainer = bench.pass_holds(&mut holder, Weight::Light, PLENTY);
        let other = thread::spawn(move || drainer.settle());
        here.submit(bench.node(4, Work::Nothing, &[0]));
        other.join().unwrap();
        drop((here, holder));
        let settled = bench.settle_up();
        settled.in_order(0, &[1, 3, 4]);
        assert_eq!(settled.back, [(1, false), (2, true), (3, false), (4, false)]);
    });
}

#[test]
fn a_transaction_that_panics_releases_all_its_shards() {
    bounded(5, || {
        let bench = Fixture::new(2);
        let other = bench.elsewhere(move |bench| bench.worker().submit(bench.node(1, Work::Panic, &[0, 1])));
        let mut worker = bench.worker();
        worker.submit(bench.node(2, Work::Nothing, &[1]));
        worker.submit(bench.node(3, Work::Transfer, &[0, 1]));
        drop(worker);
        other.join().unwrap();
        bench.settle_up().in_order(1, &[2, 3]);
    });
}

/// Whether a transaction has the lane.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Comes {
    Patient,
    ThroughLane,
}

/// A grant between two commands. The drainer has time for `budget` nodes only, so the still-held shard goes
/// through the injector before the grant, with it, or after it.
fn hand_off_with_a_grant(budget: usize, comes: Comes) {
    bounded(5, move || {
        let bench = Fixture::new(2);
        let mut holder = bench.worker();
        bench.hold(&mut holder, 0);
        let mut here = bench.worker();
        here.submit(bench.node(1, Work::Nothing, &[0]));
        let mut transaction = bench.node(2, Work::Transfer, &[0, 1]);
        transaction.route.is_through_lane = comes == Comes::ThroughLane;
        here.submit(transaction);
        here.submit(bench.node(3, Work::Nothing, &[0]));
        let mut drainer = bench.pass_holds(&mut holder, Weight::Light, budget);
        let other = thread::spawn(move || drainer.settle());
        here.submit(bench.node(4, Work::Nothing, &[1]));
        here.take_injected();
        other.join().unwrap();
        drop((here, holder));
        let settled = bench.settle_up();
        settled.in_order(0, &[1, 3]);
        if comes == Comes::ThroughLane {
            // It does not let go of its first shard, so nothing overtakes it there.
            settled.in_order(0, &[1, 2, 3]);
        }
    });
}

#[test]
fn a_shard_is_handed_off_with_everything_in_its_queue() {
    hand_off_with_a_grant(1, Comes::ThroughLane);
}

#[test]
fn a_shard_is_handed_off_with_a_grant_in_front() {
    hand_off_with_a_grant(2, Comes::Patient);
    hand_off_with_a_grant(2, Comes::ThroughLane);
}

#[test]
fn a_shard_is_handed_off_after_a_grant() {
    hand_off_with_a_grant(3, Comes::Patient);
    hand_off_with_a_grant(3, Comes::ThroughLane);
}

#[test]
fn two_transactions_in_opposite_key_order() {
    loom::model(|| {
        let bench = Fixture::new(2);
        let other =
            bench.elsewhere(move |bench| bench.worker().submit(bench.node(1, Work::Transfer, &[1, 0])));
        bench.worker().submit(bench.node(2, Work::Transfer, &[0, 1]));
        other.join().unwrap();
        let settled = bench.settle_up();
        assert_eq!(settled.logs[0], settled.logs[1], "one before the other, everywhere");
    });
}

#[test]
fn a_job_that_needs_a_lower_shard_gets_it() {
    bounded(4, || {
        let bench = Fixture::new(2);
        let other = bench.elsewhere(move |bench| {
            let mut worker = bench.worker();
            worker.submit(bench.node(1, Work::Transfer, &[0, 1]));
            worker.submit(bench.node(2, Work::Nothing, &[1]));
        });
        bench.worker().submit(bench.node(3, Work::Grow, &[1]));
        other.join().unwrap();
        bench.settle_up();
    });
}

#[test]
fn three_transactions_around_a_circle() {
    bounded(4, || {
        let bench = Fixture::new(3);
        let others = [(1, [0, 1]), (2, [2, 1])].map(|(id, shards)| {
            bench.elsewhere(move |bench| bench.worker().submit(bench.node(id, Work::Nothing, &shards)))
        });
        bench.worker().submit(bench.node(3, Work::Nothing, &[2, 0]));
        for other in others {
            other.join().unwrap();
        }
        let settled = bench.settle_up();
        // Each two share one shard. Taken all the way round, their orders must not bite their tail.
        let before = |shard: usize, first: u32| settled.logs[shard][0] == first;
        let (one_two, two_three, three_one) = (before(1, 1), before(2, 2), before(0, 3));
        assert!(!(one_two && two_three && three_one), "no order explains {:?}", settled.logs);
        assert!(one_two || two_three || three_one, "no order explains {:?}", settled.logs);
    });
}

/// A transaction that begins with `rounds` of its patience used up, against commands on all its shards.
fn rounds_of(rounds: u8) -> Met {
    let met = Met::default();
    let took_lane = met.clone();
    bounded(5, move || {
        let bench = Fixture::new(3);
        let other = bench.elsewhere(move |bench| {
            let mut worker = bench.worker();
            worker.submit(bench.node(10, Work::Nothing, &[1]));
            worker.submit(bench.node(11, Work::Nothing, &[0]));
            worker.submit(bench.node(12, Work::Nothing, &[2]));
        });
        let mut node = bench.node(1, Work::Nothing, &[0, 1, 2]);
        node.route.rounds = rounds;
        bench.worker().submit(node);
        other.join().unwrap();
        took_lane.note(bench.engine.n_lane_runs() == 1);
        bench.settle_up();
    });
    met
}

#[test]
fn a_patient_transaction_waits_with_empty_hands() {
    let met = rounds_of(0);
    assert_eq!(met.0.load(Relaxed), 0, "three commands do not exhaust it");
}

#[test]
fn a_transaction_out_of_patience_takes_the_lane() {
    rounds_of(PATIENT_ROUNDS).check();
}

#[test]
fn two_transactions_out_of_patience_do_not_deadlock() {
    let both = Met::default();
    let met = both.clone();
    bounded(5, move || {
        let bench = Fixture::new(3);
        let other = bench.elsewhere(move |bench| {
            let mut worker = bench.worker();
            worker.submit(bench.impatient(bench.node(1, Work::Transfer, &[2, 0])));
            worker.submit(bench.node(2, Work::Nothing, &[1]));
        });
        let mut worker = bench.worker();
        worker.submit(bench.impatient(bench.node(3, Work::Transfer, &[0, 1, 2])));
        worker.submit(bench.node(4, Work::Nothing, &[2]));
        drop(worker);
        other.join().unwrap();
        met.note(bench.engine.n_lane_runs() > 0);
        bench.settle_up();
    });
    both.check();
}

/// Both have the lane in turn, in either order; the second waits for it with nothing held.
#[test]
fn the_lane_goes_from_one_to_the_next() {
    bounded(5, || {
        let bench = Fixture::new(3);
        let submit = |bench: &Fixture, id, shards: &[u16]| {
            let node = bench.through_lane(bench.node(id, Work::Nothing, shards));
            bench.worker().submit(node);
        };
        let other = bench.elsewhere(move |bench| submit(&bench, 1, &[0, 2]));
        submit(&bench, 2, &[1, 2]);
        other.join().unwrap();
        assert_eq!(bench.engine.n_lane_runs(), 2);
        bench.settle_up();
    });
}

/// The holder of the lane has 2 and then needs 0, while a transaction over both goes the other way.
#[test]
fn the_holder_of_the_lane_that_has_2_gets_0() {
    bounded(5, || {
        let bench = Fixture::new(3);
        let other = bench.elsewhere(move |bench| {
            let mut worker = bench.worker();
            worker.submit(bench.node(1, Work::Transfer, &[0, 2]));
            worker.submit(bench.node(2, Work::Nothing, &[0]));
        });
        let node = bench.through_lane(bench.node(3, Work::Reach, &[2]));
        bench.worker().submit(node);
        other.join().unwrap();
        bench.settle_up();
    });
}

/// Two jobs try the lane when they find out that they need it: one may be told to queue for it, having
/// changed nothing. One of them may run in a drain of the other's.
#[test]
fn two_jobs_try_the_lane() {
    let queued = Met::default();
    let met = queued.clone();
    bounded(5, move || {
        let bench = Fixture::new(3);
        let other = bench.elsewhere(move |bench| bench.worker().submit(bench.node(1, Work::Reach, &[2])));
        bench.worker().submit(bench.node(2, Work::Reach, &[1]));
        bench.worker().submit(bench.node(3, Work::Nothing, &[2]));
        other.join().unwrap();
        let back: Vec<_> = bench.home.inbox.take().collect();
        for node in back {
            met.note(node.job.was_refused);
            bench.home.inbox.push(node);
        }
        bench.settle_up();
    });
    queued.check();
}

/// A job in a drain takes the lane, and keeps the shard that is being drained.
#[test]
fn a_drained_job_that_takes_the_lane_keeps_its_shard() {
    bounded(5, || {
        let bench = Fixture::new(3);
        let mut holder = bench.worker();
        bench.hold(&mut holder, 2);
        let mut here = bench.worker();
        here.submit(bench.node(1, Work::Reach, &[2]));
        here.submit(bench.node(2, Work::Transfer, &[0, 2]));
        let mut drainer = bench.pass_holds(&mut holder, Weight::Light, PLENTY);
        let other = thread::spawn(move || drainer.settle());
        here.submit(bench.node(3, Work::Nothing, &[0]));
        other.join().unwrap();
        drop((here, holder));
        bench.settle_up();
    });
}

/// The lane's holder waits on its thread for a shard that another thread holds, or drains, or has no time to
/// drain.
#[test]
fn the_holder_of_the_lane_waits_on_its_thread() {
    for budget in [PLENTY, 1, 2] {
        bounded(4, move || {
            let bench = Fixture::new(3);
            let mut holder = bench.worker();
            bench.hold(&mut holder, 0);
            bench.worker().submit(bench.node(1, Work::Nothing, &[0]));
            let mut drainer = bench.pass_holds(&mut holder, Weight::Light, budget);
            let other = thread::spawn(move || drainer.settle());
            let mut here = bench.worker();
            here.submit(bench.node(2, Work::Stay, &[2]));
            here.submit(bench.node(3, Work::Transfer, &[0, 2]));
            other.join().unwrap();
            drop((here, holder));
            bench.settle_up();
        });
    }
}

/// A transaction wants both shards, and a second job wants to stay, too.
#[test]
fn who_stays_meets_a_transaction_and_another_that_stays() {
    bounded(4, || {
        let bench = Fixture::new(3);
        let other = bench.elsewhere(move |bench| {
            let mut worker = bench.worker();
            worker.submit(bench.node(1, Work::Nothing, &[0, 2]));
            worker.submit(bench.node(2, Work::Stay, &[1]));
        });
        let mut here = bench.worker();
        here.submit(bench.node(3, Work::Stay, &[2]));
        other.join().unwrap();
        drop(here);
        bench.settle_up();
    });
}

/// In place, too; and the lane goes to a job that queues for it meanwhile.
#[test]
fn work_in_place_waits_on_its_thread() {
    bounded(4, || {
        let bench = Fixture::new(3);
        let other = bench.elsewhere(move |bench| {
            let mut worker = bench.worker();
            let node = bench.through_lane(bench.node(1, Work::Transfer, &[0, 2]));
            worker.submit(node);
            worker.submit(bench.node(2, Work::Nothing, &[0]));
        });
        let mut here = bench.worker();
        let _: Option<_> = here.with_shards(&[ShardId(2)], |held, _| {
            if held.try_lane() {
                stay(held, ShardId(2));
            }
        });
        other.join().unwrap();
        drop(here);
        bench.settle_up();
    });
}

#[test]
fn a_panic_of_the_lanes_holder_releases_lane_and_shards() {
    bounded(5, || {
        let bench = Fixture::new(3);
        let other =
            bench.elsewhere(move |bench| bench.worker().submit(bench.node(1, Work::ReachAndPanic, &[2])));
        let mut worker = bench.worker();
        let node = bench.through_lane(bench.node(2, Work::Transfer, &[0, 2]));
        worker.submit(node);
        worker.submit(bench.node(3, Work::Nothing, &[2]));
        drop(worker);
        other.join().unwrap();
        let settled = bench.settle_up();
        assert_eq!(settled.back, [(1, true), (2, false), (3, false)]);
    });
}

/// The thread that lets go of the lane has no time to carry on the next holder: the lane goes through the
/// injector.
#[test]
fn the_lane_is_handed_off() {
    bounded(5, || {
        let bench = Fixture::new(2);
        let mut holder = bench.worker();
        bench.hold(&mut holder, 1);
        let mut here = bench.worker();
        for id in 1..=2 {
            let node = bench.through_lane(bench.node(id, Work::Transfer, &[0, 1]));
            here.submit(node);
        }
        let mut drainer = bench.pass_holds(&mut holder, Weight::Light, 2);
        let other = thread::spawn(move || drainer.settle());
        here.submit(bench.node(3, Work::Nothing, &[0]));
        here.take_injected();
        other.join().unwrap();
        drop((here, holder));
        bench.settle_up().in_order(1, &[1, 2]);
    });
}

/// A transaction waits with nothing at its higher shard, and its lower one is taken when the grant comes up.
/// It makes another round, and in the end holds both.
#[test]
fn a_grant_whose_lower_shard_is_held_goes_round() {
    bounded(5, || {
        let bench = Fixture::new(2);
        let mut here = bench.worker();
        let mut higher = bench.worker();
        bench.hold(&mut higher, 1);
        // Takes 0, finds 1 held, frees 0, waits at 1.
        here.submit(bench.node(1, Work::Transfer, &[0, 1]));
        let mut lower = bench.worker();
        bench.hold(&mut lower, 0);
        here.submit(bench.node(2, Work::Nothing, &[0]));
        let mut drainer = bench.pass_holds(&mut higher, Weight::Light, PLENTY);
        let other = thread::spawn(move || drainer.settle());
        lower.settle();
        other.join().unwrap();
        drop((here, higher, lower));
        bench.settle_up();
    });
}

#[test]
fn heavy_jobs_run_on_heavy_threads_only() {
    bounded(5, || {
        let bench = Fixture::new(2);
        let heavy = bench.elsewhere(move |bench| {
            let mut worker = bench.worker_with(Weight::Heavy, PLENTY);
            worker.take_heavy();
            worker.take_heavy();
        });
        let mut worker = bench.worker();
        worker.submit(bench.heavy_node(1, &[0, 1]));
        worker.submit(bench.node(2, Work::Nothing, &[0]));
        worker.submit(bench.node(3, Work::Nothing, &[1]));
        heavy.join().unwrap();
        drop(worker);
        bench.settle_up();
    });
}

/// A heavy job is granted its shard by a light thread: it does not keep the shard until a heavy thread has
/// time.
#[test]
fn a_heavy_job_that_waits_for_its_thread_holds_nothing() {
    bounded(5, || {
        let bench = Fixture::new(1);
        let mut holder = bench.worker();
        bench.hold(&mut holder, 0);
        let mut starter = bench.worker_with(Weight::Heavy, PLENTY);
        starter.submit(bench.heavy_node(1, &[0]));
        let mut here = bench.worker();
        here.submit(bench.node(2, Work::Nothing, &[0]));
        holder.settle();
        assert!(bench.engine.executor(ShardId(0)).try_hold(), "the others have run");
        // SAFETY: held just now.
        assert!(unsafe { bench.engine.executor(ShardId(0)).release_if_unwanted() });
        let heavy = thread::spawn(move || {
            starter.take_heavy();
        });
        here.submit(bench.node(3, Work::Nothing, &[0]));
        heavy.join().unwrap();
        drop((here, holder));
        bench.settle_up().in_order(0, &[2, 3]);
    });
}

/// A heavy job out of patience reserves its thread. The thread sleeps until the job has the lane and each of
/// its shards, whichever threads grant them.
#[test]
fn a_reserved_heavy_thread_is_woken_for_its_job() {
    let slept = Met::default();
    let met = slept.clone();
    bounded(4, move || {
        let bench = Fixture::new(2);
        let mut light = bench.worker();
        let mut holder = bench.worker();
        bench.hold(&mut holder, 1);
        // It has the lane, and waits for shard 1.
        let first = bench.through_lane(bench.node(1, Work::Transfer, &[0, 1]));
        light.submit(first);
        let heavy = bench.through_lane(bench.heavy_node(2, &[0, 1]));
        bench.engine.heavy.push(heavy);
        let mut drainer = bench.pass_holds(&mut holder, Weight::Light, PLENTY);
        let sleeper = thread::spawn({
            let (bench, met) = (bench.clone(), met.clone());
            move || {
                *bench.home.heavy.lock().unwrap() = Some(thread::current());
                let mut worker = bench.worker_with(Weight::Heavy, PLENTY);
                assert!(worker.take_heavy());
                while worker.is_reserved() {
                    met.note(true);
                    if !worker.take_heavy() {
                        thread::park();
                    }
                }
            }
        });
        drainer.settle();
        light.submit(bench.node(3, Work::Nothing, &[0]));
        light.take_injected();
        sleeper.join().unwrap();
        drop((light, holder, drainer));
        bench.settle_up().in_order(1, &[1, 2]);
    });
    slept.check();
}

/// A heavy job and a light one, both out of patience.
#[test]
fn a_heavy_and_a_light_transaction_out_of_patience() {
    bounded(4, || {
        let bench = Fixture::new(3);
        bench.engine.heavy.push(bench.impatient(bench.heavy_node(1, &[0, 1, 2])));
        let heavy = bench.elsewhere(move |bench| {
            let mut worker = bench.worker_with(Weight::Heavy, PLENTY);
            worker.take_heavy();
            worker.take_heavy();
        });
        let mut worker = bench.worker();
        worker.submit(bench.impatient(bench.node(2, Work::Transfer, &[2, 0])));
        worker.submit(bench.node(3, Work::Nothing, &[1]));
        worker.take_injected();
        heavy.join().unwrap();
        drop(worker);
        bench.settle_up();
    });
}

/// The reserved thread ends while its job waits with a shard held: the job, granted the rest before or after,
/// goes to another.
#[test]
fn a_reserved_heavy_thread_that_ends_leaves_its_job_to_others() {
    bounded(5, || {
        let bench = Fixture::new(2);
        let mut holder = bench.worker();
        bench.hold(&mut holder, 1);
        let mut ending = bench.worker_with(Weight::Heavy, PLENTY);
        let node = bench.through_lane(bench.heavy_node(1, &[0, 1]));
        ending.submit(node);
        assert!(ending.is_reserved());
        let mut here = bench.worker();
        here.submit(bench.node(2, Work::Nothing, &[0]));
        let other = thread::spawn(move || drop(ending));
        holder.settle();
        other.join().unwrap();
        drop((here, holder));
        bench.settle_up().in_order(0, &[1, 2]);
    });
}

/// The thread of a connection sleeps until its node is back, and the connection is gone by then: the node is
/// freed there.
#[test]
fn a_sleeping_origin_is_woken_for_its_node() {
    loom::model(|| {
        let bench = Fixture::new(1);
        let mut holder = bench.worker();
        bench.hold(&mut holder, 0);
        let mut drainer = bench.pass_holds(&mut holder, Weight::Light, PLENTY);
        let other = thread::spawn(move || drainer.settle());
        *bench.home.sleeper.lock().unwrap() = Some(thread::current());
        bench.worker().submit(bench.node(1, Work::Nothing, &[0]));
        let node = loop {
            if let Some(node) = bench.home.inbox.take().next() {
                break node;
            }
            if bench.home.inbox.may_sleep(|| true) {
                // A lost wake-up is a deadlock here, which loom reports.
                thread::park();
                bench.home.inbox.awake();
            }
        };
        assert_eq!(node.job.touch(), 4);
        drop(node);
        bench.n_submitted.fetch_sub(1, Relaxed);
        other.join().unwrap();
        drop(holder);
        bench.settle_up();
    });
}

#[test]
fn two_nodes_wake_a_sleeper_until_it_has_both() {
    bounded(4, || {
        let bench = Fixture::new(0);
        *bench.home.sleeper.lock().unwrap() = Some(thread::current());
        let others = [1, 2].map(|id| {
            bench.elsewhere(move |bench| bench.worker().submit(bench.node(id, Work::Nothing, &[])))
        });
        let mut n_back = 0;
        while n_back < 2 {
            n_back += bench.home.inbox.take().count();
            if n_back < 2 && bench.home.inbox.may_sleep(|| true) {
                thread::park();
                bench.home.inbox.awake();
            }
        }
        for other in others {
            other.join().unwrap();
        }
    });
}

/// `may_sleep` looks at other queues, too, and a thread that fills one asks `must_wake`.
#[test]
fn what_is_put_elsewhere_wakes_the_sleeper() {
    use loom::sync::atomic::{AtomicBool, Ordering};
    loom::model(|| {
        let home = Arc::new(Home::default());
        // Relaxed: only the fences of the inbox bring the two sides together.
        let letter = Arc::new(AtomicBool::new(false));
        let sleeper = thread::current();
        let other = thread::spawn({
            let (home, letter) = (Arc::clone(&home), Arc::clone(&letter));
            move || {
                letter.store(true, Ordering::Relaxed);
                if home.inbox.must_wake() {
                    sleeper.unpark();
                }
            }
        });
        while !letter.load(Ordering::Relaxed) {
            if home.inbox.may_sleep(|| !letter.load(Ordering::Relaxed)) {
                thread::park();
                home.inbox.awake();
            }
        }
        other.join().unwrap();
    });
}

#[test]
fn what_still_waits_when_the_engine_goes_is_freed() {
    loom::model(|| {
        let bench = Fixture::new(2);
        let mut holder = bench.worker();
        bench.hold(&mut holder, 1);
        let others = [1, 2].map(|id| {
            bench.elsewhere(move |bench| bench.worker().submit(bench.node(id, Work::Nothing, &[1])))
        });
        for other in others {
            other.join().unwrap();
        }
        // The thread ends without having drained: the shard goes to the injector, and is never taken.
        drop(holder);
        assert!(!bench.engine.injector_is_empty());
        let n_nodes = Arc::clone(&bench.n_nodes);
        drop(bench);
        assert_eq!(n_nodes.load(Relaxed), 0);
    });
}
