//! The cost of a hold: on an idle shard, on one that two threads contend for, and over many shards at once.

use std::{
    hint::black_box,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
    time::Duration,
};

use braid_storage::{
    sync::{
        coordinator::{Engine, Held, Job, Next, Panic, Route, Weight, Worker},
        executor::{Inbox, Node},
    },
    table::hash::ShardId,
};
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};

/// Adds one to each shard of its route.
struct Add {
    home: Arc<Inbox<Add>>,
}

impl Job for Add {
    type Shard = u64;
    type Thread = ();

    fn run(&mut self, held: &mut Held<'_, Self>, _: &mut ()) -> Next {
        for index in 0..held.ids().len() {
            let id = held.ids()[index];
            *held.shard(id) += 1;
        }
        Next::Home
    }

    fn caught(_: &mut Held<'_, Self>, _: &Panic) {}

    fn panicked(&mut self, _: &mut ()) {}

    fn finish(node: Box<Node<Self>>, _: &mut ()) {
        let home = Arc::clone(&node.job.home);
        home.push(node);
    }

    fn may_drain(_: &mut ()) -> bool {
        true
    }

    fn handed_off(_: &mut ()) {}

    fn heavy_waits(_: &mut ()) {}

    fn released(_: &mut ()) {}
}

fn worker(engine: &Arc<Engine<Add>>) -> Worker<Add> {
    Worker::new(Arc::clone(engine), Weight::Light, ())
}

fn new_node() -> (Arc<Inbox<Add>>, Box<Node<Add>>) {
    let home = Arc::<Inbox<Add>>::default();
    (Arc::clone(&home), Node::new(Add { home }))
}

/// Runs a node where its route leads, and waits until it is back.
fn run(worker: &mut Worker<Add>, home: &Inbox<Add>, node: Box<Node<Add>>) -> Box<Node<Add>> {
    worker.submit(node);
    loop {
        if let Some(node) = home.take().next() {
            return node;
        }
        // Hand-offs are the other worker's or ours.
        worker.take_injected();
        std::hint::spin_loop();
    }
}

/// One command: in place if the shard is idle, else through its holder.
fn command(worker: &mut Worker<Add>, home: &Inbox<Add>, node: &mut Option<Box<Node<Add>>>, id: ShardId) {
    let in_place = worker.with_shard(id, |shard, _| {
        *shard += 1;
        black_box(*shard);
    });
    if in_place.is_none() {
        let mut away = node.take().expect("back from the last command");
        away.set_route(Route::one(id));
        *node = Some(run(worker, home, away));
    }
}

fn one_shard(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("executor");
    group.throughput(Throughput::Elements(1));
    let engine = Engine::new([0; 1024]);

    group.bench_function("idle, in place", |bencher| {
        let mut worker = worker(&engine);
        let mut id = 0;
        bencher.iter(|| {
            id = (id + 7) % 1024;
            worker.with_shard(ShardId(id), |shard, _| *shard += 1)
        });
    });

    group.bench_function("idle, by node", |bencher| {
        let mut worker = worker(&engine);
        let (home, node) = new_node();
        let mut node = Some(node);
        bencher.iter(|| {
            let mut away = node.take().expect("back from the last command");
            away.set_route(Route::one(ShardId(0)));
            node = Some(run(&mut worker, &home, away));
        });
    });

    group.bench_function("two threads on one shard", |bencher| {
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                let mut worker = worker(&engine);
                let (home, node) = new_node();
                let mut node = Some(node);
                while !stop.load(Relaxed) {
                    command(&mut worker, &home, &mut node, ShardId(0));
                }
            });
            let mut worker = worker(&engine);
            let (home, node) = new_node();
            let mut node = Some(node);
            bencher.iter(|| command(&mut worker, &home, &mut node, ShardId(0)));
            stop.store(true, Relaxed);
        });
    });
    group.finish();
}

fn many_shards(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("coordinator");
    let engine = Engine::new([0; 1024]);
    for n_shards in [2_u16, 16, 1024] {
        let stride = 1024 / n_shards;
        let ids: Vec<ShardId> = (0..n_shards).map(|nth| ShardId(nth * stride)).collect();
        group.throughput(Throughput::Elements(u64::from(n_shards)));

        group.bench_function(BenchmarkId::new("in place", n_shards), |bencher| {
            let mut worker = worker(&engine);
            bencher.iter(|| {
                worker.with_shards(&ids, |held, _| {
                    for &id in &ids {
                        *held.shard(id) += 1;
                    }
                })
            });
        });

        group.bench_function(BenchmarkId::new("by node", n_shards), |bencher| {
            let mut worker = worker(&engine);
            let (home, node) = new_node();
            let mut node = Some(node);
            bencher.iter(|| {
                let mut away = node.take().expect("back from the last transaction");
                away.set_route(Route::new(ids.iter().copied().collect()));
                node = Some(run(&mut worker, &home, away));
            });
        });
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default().warm_up_time(Duration::from_millis(500)).measurement_time(Duration::from_secs(2));
    targets = one_shard, many_shards
}
criterion_main!(benches);
