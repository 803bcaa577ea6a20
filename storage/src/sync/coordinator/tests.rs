//! Many real threads on many shards: the properties that loom proves of a few steps, over hundreds of
//! thousands.

use std::{
    panic::resume_unwind,
    sync::{
        Barrier, Mutex,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    thread::{self, Thread},
    time::{Duration, Instant},
};

use super::*;
use crate::sync::executor::Inbox;

const N_THREADS: usize = 4;
const N_HEAVY: usize = 2;
const N_SHARDS: usize = 12;
const CONNECTIONS_PER_THREAD: usize = 8;
const N_CONNECTIONS: usize = N_THREADS * CONNECTIONS_PER_THREAD;
/// The time without any returned node after which one counts as lost: a loaded machine needs milliseconds.
const STANDSTILL: Duration = Duration::from_secs(120);

/// The mix of events besides transfers and audits.
#[derive(Clone, Copy)]
struct Mix {
    /// One job in `n` panics; 0: none.
    panic_every: u64,
    /// One question in `n` is answered with no time left; 0: none.
    hand_off_every: u64,
    /// One job in `n` is heavy; 0: none.
    heavy_every: u64,
    /// One job in `n` finds out, when it has begun, that it needs more shards, and takes the lane for that;
    /// 0: none.
    reach_every: u64,
    n_rounds: u64,
}

/// A shard.
struct Account {
    balance: i64,
    /// Whether a thread is at work here. A plain flag, because the executor keeps other threads out.
    busy: bool,
    /// The last command of each connection that ran here.
    last: [u64; N_CONNECTIONS],
}

/// The work of a connection and its state.
struct Errand {
    thread: usize,
    connection: usize,
    command: u64,
    kind: Kind,
    heavy: bool,
    /// The shards that the command turns out to need, until it has asked for them.
    found_out: Option<SmallVec<[ShardId; 6]>>,
    /// The shards that the command reaches for as the lane's holder, until it has asked for them.
    reaches_for: Option<SmallVec<[ShardId; 6]>>,
    /// The shards in which it has begun, and left its mark, while it waits for those.
    begun: Vec<ShardId>,
    n_runs: u32,
    panicked: bool,
    random: Random,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// From the first shard of the route to the last.
    Transfer(i64),
    /// Over all shards.
    Audit,
    Panic,
}

/// The panic that tests throw.
struct Deliberate;

/// xorshift64*.
#[derive(Clone)]
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    fn one_in(&mut self, n: u64) -> bool {
        n != 0 && self.below(n) == 0
    }
}

/// The state that all threads share.
struct Bank {
    inboxes: Vec<Inbox<Errand>>,
    threads: std::sync::OnceLock<Vec<Thread>>,
    /// Connections that have something left to run.
    n_open: AtomicUsize,
    /// Nodes that have come back.
    n_back: AtomicUsize,
    /// The thread that waits for the others.
    watchdog: Thread,
    mix: Mix,
}

impl Bank {
    fn new(mix: Mix) -> Self {
        Self {
            inboxes: (0..N_THREADS).map(|_| Inbox::default()).collect(),
            threads: std::sync::OnceLock::new(),
            n_open: AtomicUsize::new(N_CONNECTIONS),
            n_back: AtomicUsize::new(0),
            watchdog: thread::current(),
            mix,
        }
    }

    fn unpark(&self, thread: usize) {
        self.threads.get().expect("set before anything runs")[thread].unpark();
    }

    fn wake(&self, thread: usize) -> bool {
        let must = self.inboxes[thread].must_wake();
        if must {
            self.unpark(thread);
        }
        must
    }

    fn wake_heavy(&self) {
        (N_THREADS..N_THREADS + N_HEAVY).for_each(|thread| self.unpark(thread));
    }

    /// Makes all threads end.
    fn close(&self) {
        self.n_open.store(0, SeqCst);
        (0..N_THREADS + N_HEAVY).for_each(|thread| self.unpark(thread));
        self.watchdog.unpark();
    }

    /// Waits until all is done, and fails if nodes stop coming back.
    fn watch(&self) {
        let mut seen = (self.n_back.load(SeqCst), Instant::now());
        while self.n_open.load(SeqCst) > 0 {
            thread::park_timeout(STANDSTILL);
            let n_back = self.n_back.load(SeqCst);
            if n_back != seen.0 {
                seen = (n_back, Instant::now());
            }
            assert!(seen.1.elapsed() < STANDSTILL, "nothing comes back: a node is lost after {n_back}");
        }
    }
}

/// Makes the other threads end when one has found a fault, so that the test fails instead of waiting for it.
struct FailTogether<'a>(&'a Bank);

impl Drop for FailTogether<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.close();
        }
    }
}

/// A thread.
struct Teller {
    index: usize,
    bank: Arc<Bank>,
    random: Random,
    wakes: [bool; N_THREADS],
    wake_someone: bool,
    wake_heavy: bool,
}

impl Teller {
    fn new(index: usize, bank: &Arc<Bank>, seed: u64) -> Self {
        let random = Random(seed ^ (index as u64 + 1) << 40 | 1);
        Self {
            index,
            bank: Arc::clone(bank),
            random,
            wakes: [false; N_THREADS],
            wake_someone: false,
            wake_heavy: false,
        }
    }
}

impl Job for Errand {
    type Shard = Account;
    type Thread = Teller;

    fn run(&mut self, held: &mut Held<'_, Self>, teller: &mut Teller) -> Next {
        assert!(!self.heavy || teller.index >= N_THREADS);
        if let Some(all) = self.found_out.take() {
            return Next::Again(Route::new(all));
        }
        if let Some(all) = self.reaches_for.take() {
            if !held.try_lane() {
                self.reaches_for = Some(all);
                return Next::Again(Route::new(held.ids().into()).through_lane());
            }
            self.begun = held.ids().to_vec();
            for &id in &self.begun {
                assert!(!mem::replace(&mut held.shard(id).busy, true), "two at work on one shard");
            }
            return Next::KeepAnd(all);
        }
        for id in self.begun.drain(..) {
            assert!(held.has_lane() && mem::replace(&mut held.shard(id).busy, false), "interrupted");
        }
        self.n_runs += 1;
        if self.kind == Kind::Panic {
            // Without the hook, which would print a thousand panics.
            resume_unwind(Box::new(Deliberate));
        }
        let ids: SmallVec<[ShardId; 6]> = held.ids().into();
        let mut sum = 0;
        for &id in &ids {
            let account = held.shard(id);
            assert!(!mem::replace(&mut account.busy, true), "two at work on one shard");
            let last = mem::replace(&mut account.last[self.connection], self.command);
            assert!(last < self.command, "a connection's command overtaken by a later one");
            sum += account.balance;
        }
        match self.kind {
            Kind::Transfer(amount) => {
                held.shard(ids[0]).balance -= amount;
                held.shard(ids[ids.len() - 1]).balance += amount;
            }
            Kind::Audit => assert_eq!(sum, 0, "a transfer seen half done"),
            Kind::Panic => unreachable!("thrown above"),
        }
        for &id in &ids {
            held.shard(id).busy = false;
        }
        Next::Home
    }

    fn caught(_: &mut Held<'_, Self>, panic: &Panic) {
        assert!(panic.is::<Deliberate>(), "a finding inside of a job");
    }

    fn panicked(&mut self, _: &mut Teller) {
        assert!(self.kind == Kind::Panic);
        self.panicked = true;
    }

    fn finish(node: Box<Node<Self>>, teller: &mut Teller) {
        let home = node.job.thread;
        teller.bank.inboxes[home].push(node);
        teller.wakes[home] |= home != teller.index;
    }

    fn may_drain(teller: &mut Teller) -> bool {
        !teller.random.one_in(teller.bank.mix.hand_off_every)
    }

    fn handed_off(teller: &mut Teller) {
        teller.wake_someone = true;
    }

    fn heavy_waits(teller: &mut Teller) {
        teller.wake_heavy = true;
    }

    fn released(teller: &mut Teller) {
        for thread in 0..N_THREADS {
            if mem::take(&mut teller.wakes[thread]) {
                teller.bank.wake(thread);
            }
        }
        if mem::take(&mut teller.wake_someone) {
            let _: bool = (0..N_THREADS).any(|thread| thread != teller.index && teller.bank.wake(thread));
        }
        if mem::take(&mut teller.wake_heavy) {
            teller.bank.wake_heavy();
        }
    }
}

impl Errand {
    /// Goes on to the connection's next command.
    fn next(node: &mut Node<Self>, mix: Mix) {
        let job = &mut node.job;
        job.command += 1;
        job.n_runs = 0;
        job.panicked = false;
        let random = &mut job.random;
        let mut shards = SmallVec::new();
        if random.one_in(50) {
            job.kind = Kind::Audit;
            shards.extend((0..N_SHARDS).map(|id| ShardId(id as u16)));
        } else {
            job.kind = Kind::Transfer(random.below(100) as i64);
            // Mostly one shard, in any order, and some twice.
            let n = if random.one_in(3) { 1 + random.below(4) } else { 1 };
            shards.extend((0..n).map(|_| ShardId(random.below(N_SHARDS as u64) as u16)));
        }
        if random.one_in(mix.panic_every) {
            job.kind = Kind::Panic;
        }
        if random.one_in(mix.reach_every) {
            job.reaches_for = Some(shards.iter().rev().copied().collect());
            shards.drain(..shards.len() / 2);
        } else if random.one_in(4) {
            job.found_out = Some(shards.clone());
            shards.truncate(1);
        }
        let weight = if random.one_in(mix.heavy_every) { Weight::Heavy } else { Weight::Light };
        job.heavy = weight == Weight::Heavy;
        node.set_route(Route::new(shards).with_weight(weight));
    }
}

/// One thread's life: sends its connections' commands one by one, and helps out.
fn serve(worker: &mut Worker<Errand>, seed: u64) {
    let bank = Arc::clone(&worker.thread.bank);
    let index = worker.thread.index;
    for nth in 0..CONNECTIONS_PER_THREAD {
        let connection = index * CONNECTIONS_PER_THREAD + nth;
        let mut node = Node::new(Errand {
            thread: index,
            connection,
            command: 0,
            kind: Kind::Audit,
            heavy: false,
            found_out: None,
            reaches_for: None,
            begun: Vec::new(),
            n_runs: 0,
            panicked: false,
            random: Random(seed.wrapping_mul(connection as u64 + 1) | 1),
        });
        Errand::next(&mut node, bank.mix);
        worker.submit(node);
    }
    while bank.n_open.load(SeqCst) > 0 {
        for mut node in bank.inboxes[index].take() {
            bank.n_back.fetch_add(1, SeqCst);
            assert_eq!(node.job.n_runs, 1, "a command runs once");
            assert_eq!(node.job.panicked, node.job.kind == Kind::Panic);
            if node.job.command < bank.mix.n_rounds {
                Errand::next(&mut node, bank.mix);
                worker.submit(node);
            } else if bank.n_open.fetch_sub(1, SeqCst) == 1 {
                bank.close();
            }
        }
        let id = ShardId(worker.thread.random.below(N_SHARDS as u64) as u16);
        let in_place = worker.with_shard(id, |account, _| {
            assert!(!mem::replace(&mut account.busy, true), "two at work on one shard");
            account.busy = false;
        });
        assert!(in_place.is_none_or(|ran| ran.is_ok()));
        worker.take_injected();
        let nothing_else = || worker.engine().injector_is_empty() && bank.n_open.load(SeqCst) > 0;
        if bank.inboxes[index].may_sleep(nothing_else) {
            thread::park();
            bank.inboxes[index].awake();
        }
    }
}

fn serve_heavy(worker: &mut Worker<Errand>) {
    let bank = Arc::clone(&worker.thread.bank);
    while bank.n_open.load(SeqCst) > 0 {
        if !worker.take_heavy() {
            thread::park();
        }
    }
}

fn new_account() -> Account {
    Account { balance: 0, busy: false, last: [0; N_CONNECTIONS] }
}

/// The seed of the connections' commands: `BRAID_SEED`, or a fixed one.
fn seed() -> u64 {
    std::env::var("BRAID_SEED").map_or(1, |seed| seed.parse().expect("BRAID_SEED is a number"))
}

fn stress(mix: Mix) {
    let seed = seed();
    println!("seed {seed}: BRAID_SEED={seed} repeats these choices, not their timing");
    let engine = Engine::new((0..N_SHARDS).map(|_| new_account()));
    let bank = Arc::new(Bank::new(mix));
    let ready = Barrier::new(N_THREADS + N_HEAVY + 1);
    thread::scope(|scope| {
        let threads: Vec<_> = (0..N_THREADS + N_HEAVY)
            .map(|index| {
                let (bank, engine, ready) = (&bank, &engine, &ready);
                scope.spawn(move || {
                    ready.wait();
                    let _fail_together = FailTogether(bank);
                    let runs = if index < N_THREADS { Weight::Light } else { Weight::Heavy };
                    let mut worker = Worker::new(Arc::clone(engine), runs, Teller::new(index, bank, seed));
                    match runs {
                        Weight::Light => serve(&mut worker, seed),
                        Weight::Heavy => serve_heavy(&mut worker),
                    }
                })
            })
            .collect();
        let handles = threads.iter().map(|thread| thread.thread().clone()).collect();
        bank.threads.set(handles).expect("set once");
        ready.wait();
        let _fail_together = FailTogether(&bank);
        bank.watch();
    });
    // The last of the threads may have left a shard to the others when they were gone.
    let mut worker = Worker::new(Arc::clone(&engine), Weight::Light, Teller::new(0, &bank, seed));
    while !engine.injector_is_empty() {
        worker.take_injected();
    }
    let mut sum = 0;
    for id in 0..N_SHARDS {
        let balance = worker.with_shard(ShardId(id as u16), |account, _| account.balance);
        sum += balance.expect("a shard is held by nobody").expect("it does not panic");
    }
    assert_eq!(sum, 0);
    assert!(engine.heavy_is_empty() && engine.try_lane(), "the lane is held by nobody");
}

const CALM: Mix = Mix { panic_every: 0, hand_off_every: 0, heavy_every: 0, reach_every: 0, n_rounds: 10_000 };

#[test]
fn transfers_and_audits() {
    stress(CALM);
}

#[test]
fn transfers_and_audits_with_panics() {
    stress(Mix { panic_every: 20, ..CALM });
}

#[test]
fn transfers_and_audits_with_hand_offs() {
    stress(Mix { hand_off_every: 3, ..CALM });
}

#[test]
fn transfers_and_audits_with_heavy_jobs() {
    stress(Mix { heavy_every: 3, n_rounds: 4_000, ..CALM });
}

#[test]
fn transfers_and_audits_through_the_lane() {
    stress(Mix { reach_every: 4, ..CALM });
}

#[test]
fn transfers_and_audits_with_everything() {
    stress(Mix { panic_every: 20, hand_off_every: 5, heavy_every: 10, reach_every: 10, ..CALM });
}

type Body = Box<dyn FnMut(&mut Held<'_, Closure>, &mut Heard) -> Next + Send>;

/// A job made of a closure, for tests without threads.
struct Closure {
    run: Body,
    finish_panics: bool,
}

/// The calls that a worker's hooks have had.
#[derive(Default)]
struct Heard {
    n_prepared: usize,
    n_caught: usize,
    n_finished: usize,
    n_handed_off: usize,
    n_asked: usize,
    /// There is no time at every `n`-th question; 0: always.
    no_time_every: usize,
    /// There is time for `n` more questions.
    n_in_time: Option<usize>,
    /// A clock, and the part of its time that was spent on others.
    now: u64,
    drains_since: Option<u64>,
    spent: u64,
}

impl Job for Closure {
    type Shard = u32;
    type Thread = Heard;

    fn prepare(node: &mut Node<Self>, heard: &mut Heard) {
        heard.n_prepared += 1;
        node.set_route(Route::one(ShardId(0)).with_weight(Weight::Heavy));
    }

    fn run(&mut self, held: &mut Held<'_, Self>, heard: &mut Heard) -> Next {
        (self.run)(held, heard)
    }

    fn caught(_: &mut Held<'_, Self>, _: &Panic) {}

    fn panicked(&mut self, heard: &mut Heard) {
        heard.n_caught += 1;
    }

    fn finish(node: Box<Node<Self>>, heard: &mut Heard) {
        heard.n_finished += 1;
        if node.job.finish_panics {
            resume_unwind(Box::new("a bug in a hook"));
        }
    }

    fn may_drain(heard: &mut Heard) -> bool {
        heard.n_asked += 1;
        heard.drains_since.get_or_insert(heard.now);
        if let Some(n_left) = &mut heard.n_in_time {
            *n_left = n_left.checked_sub(1).unwrap_or(usize::MAX);
            if *n_left == usize::MAX {
                *n_left = 0;
                return false;
            }
        }
        !heard.n_asked.is_multiple_of(heard.no_time_every)
    }

    fn handed_off(heard: &mut Heard) {
        heard.n_handed_off += 1;
    }

    fn heavy_waits(_: &mut Heard) {}

    fn released(heard: &mut Heard) {
        if let Some(since) = heard.drains_since.take() {
            heard.spent += heard.now - since;
        }
    }
}

fn closure(
    shards: &[u16],
    mut run: impl FnMut(&mut Held<'_, Closure>) + Send + 'static,
) -> Box<Node<Closure>> {
    stepwise(shards, move |held, _| {
        run(held);
        Next::Home
    })
}

fn stepwise(
    shards: &[u16],
    run: impl FnMut(&mut Held<'_, Closure>, &mut Heard) -> Next + Send + 'static,
) -> Box<Node<Closure>> {
    let mut node = Node::new(Closure { run: Box::new(run), finish_panics: false });
    node.set_route(Route::new(shards.iter().map(|&id| ShardId(id)).collect()));
    node
}

fn worker(engine: &Arc<Engine<Closure>>) -> Worker<Closure> {
    Worker::new(Arc::clone(engine), Weight::Light, Heard::default())
}

#[test]
fn a_route_is_ascending_and_names_no_shard_twice() {
    let route = Route::new(SmallVec::from_slice(&[ShardId(3), ShardId(1), ShardId(3), ShardId(2)]));
    assert_eq!(route.shards(), [ShardId(1), ShardId(2), ShardId(3)]);
}

#[test]
fn a_long_route_is_put_in_order_like_a_short_one() {
    let mut random = Random(1);
    for n in [1, 63, 64, 65, 1000] {
        let mut shards: SmallVec<[ShardId; 6]> = (0..n).map(|_| ShardId(random.below(300) as u16)).collect();
        let mut expected = shards.to_vec();
        expected.sort_unstable();
        expected.dedup();
        put_in_order(&mut shards);
        assert_eq!(shards.to_vec(), expected);
    }
}

fn heavy_worker(engine: &Arc<Engine<Closure>>) -> Worker<Closure> {
    Worker::new(Arc::clone(engine), Weight::Heavy, Heard::default())
}

/// Takes a shard for a worker, as if it were in the middle of something there.
fn hold(worker: &mut Worker<Closure>, id: u16) {
    assert!(worker.engine.executor(ShardId(id)).try_hold());
    worker.releasing.push(Hold::Shard(ShardId(id)));
}

fn is_idle(worker: &mut Worker<Closure>, id: u16) -> bool {
    worker.with_shard(ShardId(id), |_, _| ()).is_some()
}

/// A heavy job comes without a route and finds it on the heavy thread.
#[test]
fn a_heavy_job_finds_its_route_on_a_heavy_thread() {
    let engine = Engine::new([0]);
    let mut light = worker(&engine);
    let mut heavy = heavy_worker(&engine);
    let mut node = closure(&[], |held| *held.shard(ShardId(0)) += 1);
    node.set_route(Route::default().with_weight(Weight::Heavy));
    light.submit(node);
    assert!(heavy.take_heavy() && !heavy.take_heavy());
    assert_eq!((heavy.thread.n_prepared, heavy.thread.n_finished), (1, 1));
    assert!(matches!(light.with_shard(ShardId(0), |shard, _| *shard), Some(Ok(1))));
}

/// A heavy job stands in the queue for heavy-work threads, which are busy: commands on the shard that it was
/// granted run meanwhile.
#[test]
fn a_heavy_job_that_queues_for_a_thread_holds_no_shard() {
    let engine = Engine::new([0, 0]);
    let mut light = worker(&engine);
    let mut heavy = heavy_worker(&engine);
    hold(&mut light, 1);
    let mut node = closure(&[0, 1], |held| *held.shard(ShardId(0)) += 1);
    node.route.weight = Weight::Heavy;
    light.engine.heavy.push(node);
    assert!(heavy.take_heavy() && !heavy.take_heavy(), "it waits at shard 1");
    let mut after = worker(&engine);
    after.submit(closure(&[1], |held| *held.shard(ShardId(1)) += 1));
    light.settle();
    assert_eq!(light.thread.n_finished, 1, "what came after it does not wait for it");
    assert!(is_idle(&mut light, 0) && is_idle(&mut light, 1), "held for a job that no thread runs");
    assert!(heavy.take_heavy());
    assert_eq!(heavy.thread.n_finished, 1);
}

/// A heavy job that meets held shards time and again takes the lane, and its thread does nothing else until
/// it has run.
#[test]
fn a_heavy_job_out_of_patience_reserves_its_thread() {
    let engine = Engine::new([0]);
    let mut heavy = heavy_worker(&engine);
    let heavy_node = |run: fn(&mut Held<'_, Closure>)| {
        let mut node = closure(&[0], run);
        node.route.weight = Weight::Heavy;
        engine.heavy.push(node);
    };
    heavy_node(|held| *held.shard(ShardId(0)) += 1);
    heavy_node(|held| *held.shard(ShardId(0)) *= 10);
    let mut light = worker(&engine);
    for round in 0..PATIENT_ROUNDS {
        hold(&mut light, 0);
        // The two change places at each round.
        assert!(heavy.take_heavy() && heavy.take_heavy() && !heavy.is_reserved(), "round {round}");
        light.settle();
        assert!(is_idle(&mut light, 0));
    }
    hold(&mut light, 0);
    assert!(heavy.take_heavy());
    assert!(heavy.is_reserved() && !heavy.take_heavy(), "other work waits");
    light.settle();
    assert!(!is_idle(&mut light, 0), "the lane's holder keeps what it is granted");
    assert!(heavy.take_heavy() && !heavy.is_reserved());
    assert_eq!(heavy.thread.n_finished, 1);
    assert_eq!(engine.n_lane_runs(), 1);
    assert!(heavy.take_heavy());
    assert!(matches!(light.with_shard(ShardId(0), |shard, _| *shard), Some(Ok(10))));
}

/// A job with the lane turns out to be heavy: the lane does not wait for a heavy-work thread.
#[test]
fn the_lane_does_not_queue_for_a_heavy_thread() {
    let engine = Engine::new([0]);
    let mut light = worker(&engine);
    let mut heavy = heavy_worker(&engine);
    let mut node = stepwise(&[0], |held, heard| {
        if heard.n_prepared == 0 {
            assert!(held.has_lane());
            return Next::Again(Route::default().with_weight(Weight::Heavy));
        }
        Next::Home
    });
    node.route.is_through_lane = true;
    light.submit(node);
    assert!(engine.try_lane(), "free while the job waits for its thread");
    light.releasing.push(Hold::Lane);
    assert!(heavy.take_heavy());
    assert_eq!(heavy.thread.n_finished, 1);
    light.settle();
}

/// A job that keeps the lane from one run to the next releases it at the end. A shard that it names twice is
/// taken once.
#[test]
fn the_holder_of_the_lane_takes_shards_in_any_order() {
    let engine = Engine::new([0, 1, 2]);
    let mut worker = worker(&engine);
    let mut wanted = vec![0, 1];
    let mut node = stepwise(&[2], move |held, _| match wanted.pop() {
        Some(id) => Next::KeepAnd(SmallVec::from_slice(&[ShardId(2), ShardId(id), ShardId(id)])),
        None => {
            assert_eq!(held.ids(), [ShardId(0), ShardId(1), ShardId(2)]);
            assert!((0..3).all(|id| *held.shard(ShardId(id)) == u32::from(id)));
            Next::Home
        }
    });
    node.route.is_through_lane = true;
    worker.submit(node);
    assert_eq!((worker.thread.n_finished, worker.thread.n_caught), (1, 0));
    assert!((0..3).all(|id| is_idle(&mut worker, id)));
    assert!(engine.try_lane());
}

/// Work in place may take the lane, too, and lets go of it at its end.
#[test]
fn work_in_place_takes_the_lane_for_its_own_time() {
    let engine = Engine::new([0]);
    let mut worker = worker(&engine);
    let took = worker.with_shards(&[ShardId(0)], |held, _| held.try_lane() && !held.engine.try_lane());
    assert!(matches!(took, Some(Ok(true))));
    let panicked = worker.with_shards(&[ShardId(0)], |held, _| {
        assert!(held.try_lane());
        panic!("with the lane");
    });
    assert!(matches!(panicked, Some(Err(_))));
    assert!(engine.try_lane());
}

/// The shards that join a job are held until its end, in place and in a node, and released after it.
#[test]
fn shards_that_join_are_held_to_the_end() {
    let engine = Engine::new([0, 1, 2, 3]);
    let mut one = worker(&engine);
    let mut another = worker(&engine);
    let ran = one.with_shards(&[ShardId(2)], |held, _| {
        assert!(held.try_join(ShardId(0)) && held.try_join(ShardId(3)) && held.try_join(ShardId(2)));
        assert_eq!(held.ids(), [ShardId(0), ShardId(2), ShardId(3)]);
        assert!((0..4).map(|id| held.has(ShardId(id))).eq([true, false, true, true]));
        assert!(another.with_shard(ShardId(3), |_, _| ()).is_none());
        *held.shard(ShardId(3)) += 10;
    });
    assert!(matches!(ran, Some(Ok(()))));
    assert!((0..4).all(|id| is_idle(&mut one, id)));
    assert!(engine.executor(ShardId(1)).try_hold());
    one.submit(closure(&[2], |held| {
        assert!(!held.try_join(ShardId(1)), "somebody else has it");
        assert!(held.try_join(ShardId(3)));
        assert_eq!(*held.shard(ShardId(3)), 13);
    }));
    assert_eq!((one.thread.n_finished, one.thread.n_caught), (1, 0));
    assert!([0, 2, 3].into_iter().all(|id| is_idle(&mut one, id)));
}

/// A job that is drained takes over shards that its own worker has yet to drain, and shards that only this
/// worker could take.
#[test]
fn who_waits_finds_what_its_own_worker_holds() {
    let engine = Engine::new([0, 0, 0]);
    let mut worker = worker(&engine);
    assert!((0..2).all(|id| engine.executor(ShardId(id)).try_hold()));
    engine.injector.push(Hold::Shard(ShardId(1)));
    let mut node = closure(&[2], |held| {
        assert!(held.wait_for(ShardId(0), || true) && held.wait_for(ShardId(1), || true));
        assert_eq!(held.ids().len(), 3);
    });
    node.route.is_through_lane = true;
    worker.releasing.push(Hold::Shard(ShardId(0)));
    worker.submit(node);
    assert_eq!((worker.thread.n_finished, worker.thread.n_caught), (1, 0));
    assert!((0..3).all(|id| is_idle(&mut worker, id)));
    assert!(engine.try_lane());
}

/// A node of one shard that runs again from a drain, elsewhere, may wait for the shard whose drain it came
/// out of.
#[test]
fn who_runs_again_from_a_drain_finds_the_drained_shard() {
    let engine = Engine::new([0, 0]);
    let mut holder = worker(&engine);
    assert!(engine.executor(ShardId(0)).try_hold());
    let mut is_first = true;
    worker(&engine).submit(stepwise(&[0], move |held, _| {
        if std::mem::take(&mut is_first) {
            return Next::Again(Route::one(ShardId(1)).through_lane());
        }
        let mut n_asked = 0;
        assert!(held.wait_for(ShardId(0), || {
            n_asked += 1;
            n_asked < 100
        }));
        *held.shard(ShardId(0)) += 1;
        Next::Home
    }));
    holder.releasing.push(Hold::Shard(ShardId(0)));
    holder.settle();
    assert_eq!((holder.thread.n_finished, holder.thread.n_caught), (1, 0));
    assert!(matches!(holder.with_shard(ShardId(0), |shard, _| *shard), Some(Ok(1))));
    assert!(is_idle(&mut holder, 1) && engine.try_lane());
}

/// Between two steps a job holds nothing, not even the lane: the next node that waits for the lane gets it.
#[test]
fn who_goes_on_lets_go_of_the_lane() {
    let engine = Engine::new([0, 0]);
    let mut worker = worker(&engine);
    let mut n_steps = 0;
    let mut other = Some(closure(&[0], |held| *held.shard(ShardId(0)) += 10));
    if let Some(other) = &mut other {
        other.route.is_through_lane = true;
    }
    let waits = Arc::clone(&engine);
    worker.submit(stepwise(&[1], move |held, _| {
        n_steps += 1;
        assert!(held.try_lane() || n_steps == 2);
        if let Some(other) = other.take() {
            // It waits for the lane, and is not drained before this job goes on.
            self::worker(&waits).submit(other);
            return Next::GoOn(Route::one(ShardId(0)).through_lane());
        }
        assert_eq!(*held.shard(ShardId(0)), 10, "the other was first");
        Next::Home
    }));
    assert_eq!(worker.thread.n_caught, 0);
    assert!((0..2).all(|id| is_idle(&mut worker, id)) && engine.try_lane());
}

#[test]
fn who_waits_may_be_told_to_stop() {
    let engine = Engine::new([0, 0]);
    let mut worker = worker(&engine);
    assert!(engine.executor(ShardId(0)).try_hold());
    let mut n_asked = 0;
    let ran = worker.with_shards(&[ShardId(1)], |held, _| {
        assert!(held.try_lane());
        held.wait_for(ShardId(0), || {
            n_asked += 1;
            n_asked < 5
        })
    });
    assert!(matches!(ran, Some(Ok(false))));
    assert_eq!(n_asked, 5);
    assert!(is_idle(&mut worker, 1) && engine.try_lane());
}

/// A shard for which many nodes wait is never idle. The thread that drains it passes it to the lane's holder.
#[test]
fn a_shard_that_is_never_idle_is_granted_by_its_holder() {
    let engine = Engine::new([0, 0]);
    let mut holder = worker(&engine);
    assert!(engine.executor(ShardId(0)).try_hold());
    worker(&engine).submit(closure(&[0], |held| *held.shard(ShardId(0)) += 1));
    holder.releasing.push(Hold::Shard(ShardId(0)));
    let mut here = worker(&engine);
    let ran = here.with_shards(&[ShardId(1)], |held, _| {
        assert!(held.try_lane());
        assert!(held.wait_for(ShardId(0), || {
            holder.settle();
            true
        }));
        assert_eq!(*held.shard(ShardId(0)), 0, "the node behind it has not run");
    });
    assert!(matches!(ran, Some(Ok(()))));
    assert_eq!(here.thread.n_finished, 1, "the node is drained by whoever had the shard");
}

/// Nodes that wait for long work can be taken out of the queue; the rest runs in its order afterwards.
#[test]
fn nodes_that_wait_can_be_taken_out() {
    let engine = Engine::new([0]);
    let mut holder = worker(&engine);
    let mut other = worker(&engine);
    let ran = holder.with_shards(&[ShardId(0)], |held, _| {
        for id in 1..=4 {
            other.submit(closure(&[0], move |held| {
                let shard = held.shard(ShardId(0));
                *shard = *shard * 10 + id;
            }));
        }
        let mut n_seen = 0;
        let ended = held.end_waiting(|_| {
            n_seen += 1;
            n_seen % 2 == 0
        });
        (n_seen, ended.home.len())
    });
    assert!(matches!(ran, Some(Ok((4, 2)))));
    let left = holder.with_shard(ShardId(0), |shard, _| *shard);
    assert!(matches!(left, Some(Ok(13))));
}

/// The holder of the lane can take out nodes that wait for the lane.
#[test]
fn nodes_that_wait_for_the_lane_can_be_taken_out() {
    let engine = Engine::new([0, 0]);
    let mut holder = worker(&engine);
    let mut other = worker(&engine);
    let ran = holder.with_shards(&[ShardId(0)], |held, _| {
        assert!(held.try_lane());
        let mut node = closure(&[1], |_| {});
        node.route.is_through_lane = true;
        other.submit(node);
        held.end_waiting(|_| true).home.len()
    });
    assert!(matches!(ran, Some(Ok(1))));
    assert!(is_idle(&mut holder, 1) && engine.try_lane());
}

/// The lane's holder can be taken out, too: the shards that it holds are then free for others.
#[test]
fn the_lane_and_what_its_holder_has_are_free_when_it_waits_no_longer() {
    let engine = Engine::new([0, 0]);
    let mut holder = worker(&engine);
    let mut other = worker(&engine);
    let ran = holder.with_shards(&[ShardId(1)], |held, _| {
        let mut node = closure(&[0, 1], |_| unreachable!("it waits for the second shard"));
        node.route.is_through_lane = true;
        other.submit(node);
        assert!(
            !engine.executor(ShardId(0)).try_hold() && !engine.try_lane(),
            "it has the first, and the lane"
        );
        let ended = held.end_waiting(|_| true);
        (ended.home.len(), ended.has_handed_off, ended.has_heavy)
    });
    assert!(matches!(ran, Some(Ok((1, true, false)))));
    other.take_injected();
    assert!(is_idle(&mut other, 0) && is_idle(&mut other, 1) && engine.try_lane());
}

/// A heavy-work thread that is reserved for a node gets it back, and finds the route over the remaining work.
#[test]
fn a_reserved_thread_goes_on_with_what_waits_no_longer() {
    let engine = Engine::new([0]);
    let mut holder = worker(&engine);
    let mut heavy = heavy_worker(&engine);
    let ran = holder.with_shards(&[ShardId(0)], |held, _| {
        assert!(held.try_lane());
        let mut node = closure(&[0], |held| assert!(!held.has_lane()));
        node.route.is_through_lane = true;
        node.route.weight = Weight::Heavy;
        heavy.submit(node);
        assert!(heavy.is_reserved());
        let ended = held.end_waiting(|_| true);
        (ended.home.len(), ended.has_handed_off, ended.has_heavy)
    });
    assert!(matches!(ran, Some(Ok((0, false, true)))));
    assert!(heavy.take_heavy() && !heavy.is_reserved());
    assert_eq!((heavy.thread.n_finished, heavy.thread.n_caught), (1, 0));
    assert!(is_idle(&mut holder, 0) && engine.try_lane());
}

#[test]
fn a_job_without_shards_runs_at_once() {
    let engine = Engine::new([]);
    let mut worker = worker(&engine);
    worker.submit(closure(&[], |held| assert!(held.ids().is_empty())));
    assert_eq!((worker.thread.n_finished, worker.thread.n_caught), (1, 0));
}

#[test]
fn a_job_that_reaches_beyond_its_route_is_stopped() {
    let engine = Engine::new([1, 2, 3]);
    let mut worker = worker(&engine);
    worker.submit(closure(&[0, 2], |held| {
        assert!(held.has(ShardId(2)) && !held.has(ShardId(1)));
        *held.shard(ShardId(1)) += 1;
    }));
    assert_eq!((worker.thread.n_finished, worker.thread.n_caught), (1, 1));
    assert!((0..3).all(|id| worker.with_shard(ShardId(id), |_, _| ()).is_some()));
}

#[test]
fn shards_in_place_are_all_taken_or_none() {
    let engine = Engine::new([0, 0, 0]);
    let mut worker = worker(&engine);
    assert!(engine.executor(ShardId(2)).try_hold());
    let ids = [ShardId(0), ShardId(2)];
    assert!(worker.with_shards(&ids, |_, _| ()).is_none());
    assert!(worker.with_shard(ShardId(0), |_, _| ()).is_some(), "let go again");
    worker.releasing.push(Hold::Shard(ShardId(2)));
    worker.settle();
    let ran = worker.with_shards(&ids, |held, _| *held.shard(ids[1]) += 1);
    assert!(matches!(ran, Some(Ok(()))));
}

/// A hook panics with shards held: others drain them.
#[test]
fn a_panicking_hook_strands_no_shard() {
    let engine = Engine::new([0, 0]);
    let mut unlucky = worker(&engine);
    let mut node = closure(&[0, 1], |_| ());
    node.job.finish_panics = true;
    let unwound = catch_unwind(AssertUnwindSafe(|| {
        unlucky.submit(node);
    }));
    assert!(unwound.is_err());
    drop(unlucky);
    let mut other = worker(&engine);
    assert!(other.with_shard(ShardId(0), |_, _| ()).is_none(), "still held, for the next who looks");
    other.take_injected();
    assert!((0..2).all(|id| other.with_shard(ShardId(id), |_, _| ()).is_some()));
}

/// The hook of the lane's holder panics: others get the lane and the shards.
#[test]
fn a_panicking_hook_strands_no_lane() {
    let engine = Engine::new([0, 0]);
    let mut unlucky = worker(&engine);
    let mut other = worker(&engine);
    hold(&mut other, 1);
    let through_lane = |run: fn(&mut Held<'_, Closure>)| {
        let mut node = closure(&[0, 1], run);
        node.route.is_through_lane = true;
        node
    };
    let mut node = through_lane(|_| ());
    node.job.finish_panics = true;
    unlucky.submit(node);
    unlucky.submit(through_lane(|held| *held.shard(ShardId(0)) += 1));
    unlucky.releasing = mem::take(&mut other.releasing);
    assert!(catch_unwind(AssertUnwindSafe(|| unlucky.settle())).is_err());
    drop(unlucky);
    other.take_injected();
    assert_eq!(other.thread.n_finished, 1);
    assert!((0..2).all(|id| is_idle(&mut other, id)) && engine.try_lane());
}

/// A delegated node's hook panics: the next nodes of the queue still run, on another worker.
#[test]
fn a_panicking_hook_in_a_drain_strands_no_node() {
    let engine = Engine::new([0]);
    let mut unlucky = worker(&engine);
    assert!(engine.executor(ShardId(0)).try_hold());
    let mut other = worker(&engine);
    let mut node = closure(&[0], |_| ());
    node.job.finish_panics = true;
    other.submit(node);
    other.submit(closure(&[0], |held| *held.shard(ShardId(0)) += 1));
    unlucky.releasing.push(Hold::Shard(ShardId(0)));
    assert!(catch_unwind(AssertUnwindSafe(|| unlucky.settle())).is_err());
    drop(unlucky);
    other.take_injected();
    assert_eq!(other.thread.n_finished, 1);
    assert!(matches!(other.with_shard(ShardId(0), |shard, _| *shard), Some(Ok(1))));
}

#[test]
fn a_worker_that_ends_hands_on_what_it_has_not_drained() {
    let engine = Engine::new([0]);
    let mut ending = worker(&engine);
    assert!(engine.executor(ShardId(0)).try_hold());
    ending.releasing.push(Hold::Shard(ShardId(0)));
    drop(ending);
    let mut other = worker(&engine);
    other.submit(closure(&[0], |_| ()));
    assert_eq!(other.thread.n_finished, 0);
    other.take_injected();
    assert_eq!(other.thread.n_finished, 1);
}

/// The time between two drains is the thread's own, also where there was nothing left to drain.
#[test]
fn own_work_is_not_charged_to_the_budget_for_others() {
    let engine = Engine::new([0, 0]);
    let mut worker = worker(&engine);
    for _ in 0..3 {
        assert!(engine.executor(ShardId(0)).try_hold());
        engine.injector.push(Hold::Shard(ShardId(0)));
        worker.take_injected();
        worker.thread.now += 100;
        worker.submit(closure(&[1], |_| ()));
    }
    assert_eq!(worker.thread.spent, 0);
    hold(&mut worker, 0);
    let mut other = self::worker(&engine);
    other.submit(stepwise(&[0], |_, heard| {
        heard.now += 7;
        Next::Home
    }));
    worker.settle();
    assert_eq!(worker.thread.spent, 7, "others' work is");
}

/// A thread that has no time leaves handed-off shards in the injector, and does not hand them off once more.
#[test]
fn a_hot_shard_does_not_bounce_off_busy_threads() {
    let engine = Engine::new([0]);
    assert!(engine.executor(ShardId(0)).try_hold());
    let mut worker = worker(&engine);
    worker.submit(closure(&[0], |_| ()));
    engine.injector.push(Hold::Shard(ShardId(0)));
    worker.thread.n_in_time = Some(0);
    worker.take_injected();
    assert!(!engine.injector_is_empty());
    assert_eq!((worker.thread.n_handed_off, worker.thread.n_finished), (0, 0));
    worker.thread.n_in_time = None;
    worker.take_injected();
    assert_eq!(worker.thread.n_finished, 1);
}

/// A node of `n_commands` commands, each of which notes its number, that stops where the thread has no time.
fn batch(shards: &[u16], n_commands: u32, log: &Arc<Mutex<Vec<u32>>>) -> Box<Node<Closure>> {
    let log = Arc::clone(log);
    let mut nth = 0;
    stepwise(shards, move |held, heard| {
        loop {
            log.lock().expect("nobody panics").push(nth);
            nth += 1;
            if nth == n_commands {
                return Next::Home;
            }
            if !held.may_go_on(heard) {
                return Next::Yield;
            }
        }
    })
}

/// The notes of a test's jobs since the last call.
fn noted(log: &Mutex<Vec<u32>>) -> Vec<u32> {
    mem::take(&mut log.lock().expect("nobody panics"))
}

/// A connection's 32 commands wait at a shard. The thread that drains them stops where its time ends. The
/// next thread goes on with the next command, before later nodes.
#[test]
fn a_batch_of_others_ends_with_the_budget() {
    for shards in [&[0][..], &[0, 1]] {
        let engine = Engine::new([0, 0]);
        let mut busy = worker(&engine);
        let mut other = worker(&engine);
        let log = Arc::default();
        hold(&mut busy, 0);
        other.submit(batch(shards, 32, &log));
        let later = Arc::clone(&log);
        other.submit(closure(&[0], move |_| later.lock().expect("nobody panics").push(100)));
        busy.thread.n_in_time = Some(3);
        busy.settle();
        assert_eq!(noted(&log), [0, 1, 2]);
        assert_eq!((busy.thread.n_handed_off, busy.thread.n_finished), (1, 0));
        assert!(is_idle(&mut busy, 1), "it keeps nothing but its place");
        other.take_injected();
        assert_eq!(noted(&log), (3..32).chain([100]).collect::<Vec<_>>());
        assert_eq!(other.thread.n_finished, 2);
    }
}

/// The work of a thread for its own connections has no budget.
#[test]
fn an_own_batch_runs_to_its_end() {
    let engine = Engine::new([0]);
    let mut worker = worker(&engine);
    worker.thread.n_in_time = Some(0);
    let log = Arc::default();
    worker.submit(batch(&[0], 32, &log));
    assert_eq!(noted(&log), (0..32).collect::<Vec<_>>());
    assert_eq!(worker.thread.n_asked, 0);
}

/// Others delegate faster than one thread drains: it does its share, and leaves the shard to the injector.
#[test]
fn a_shard_that_never_empties_does_not_keep_a_worker() {
    fn endless(engine: &Arc<Engine<Closure>>, n_runs: &Arc<AtomicUsize>) -> Box<Node<Closure>> {
        let (engine, n_runs) = (Arc::clone(engine), Arc::clone(n_runs));
        closure(&[0], move |_| {
            if n_runs.fetch_add(1, SeqCst) < 1000 {
                worker(&engine).submit(endless(&engine, &n_runs));
            }
        })
    }
    let engine = Engine::new([0]);
    let n_runs = Arc::new(AtomicUsize::new(0));
    assert!(engine.executor(ShardId(0)).try_hold());
    worker(&engine).submit(endless(&engine, &n_runs));
    engine.injector.push(Hold::Shard(ShardId(0)));
    let mut busy = worker(&engine);
    busy.thread.no_time_every = 8;
    busy.take_injected();
    assert_eq!(n_runs.load(SeqCst), 6);
    assert!(!engine.injector_is_empty(), "the shard is there for the next turn");
    busy.take_injected();
    assert_eq!(n_runs.load(SeqCst), 12);
    worker(&engine).take_injected();
    assert_eq!(n_runs.load(SeqCst), 1001);
}

/// A light worker drains a few of a transaction's contended shards itself and leaves the others to the
/// injector.
#[test]
fn many_contended_shards_are_shared_out() {
    let n_shards = DRAINED_BY_ITS_WORKER as u16 + 3;
    let engine = Engine::new((0..n_shards).map(u32::from));
    let mut first = worker(&engine);
    let all = engine.all_shards();
    let mut second = worker(&engine);
    let ran = first.with_shards(&all, |_, _| {
        for id in 0..n_shards {
            second.submit(closure(&[id], move |held| assert_eq!(*held.shard(ShardId(id)), u32::from(id))));
        }
    });
    assert!(matches!(ran, Some(Ok(()))));
    assert_eq!(first.thread.n_handed_off, 3);
    assert_eq!(first.thread.n_finished, DRAINED_BY_ITS_WORKER);
    second.take_injected();
    assert_eq!(second.thread.n_finished, 3);
}
