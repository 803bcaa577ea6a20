//! A million keys of 16 bytes with values of 32, over 1024 tables: bytes a key, and nanoseconds a look-up,
//! insert and visit.

use std::hint::black_box;

use braid_storage::table::hash::{HashTags, KeyHasher, Routed, Router};
use braid_storage::table::{Fill, Position, Roots, Table, prefetch_behind_roots};
use braid_storage::{entry::EntryBox, memory::allocator::Allocator};
use criterion::{BatchSize, Criterion, Throughput};

#[global_allocator]
static ALLOCATOR: Allocator = Allocator;

const N_KEYS: usize = 1_000_000;
const SHARD_BITS: u32 = 10;
const BATCH: usize = 32;

type Key = [u8; 16];

fn key(i: usize) -> Key {
    format!("key:{i:012}").into_bytes().try_into().expect("16 bytes")
}

fn router() -> Router {
    Router::new(KeyHasher::with_key(1, 2), SHARD_BITS, HashTags::Honoured)
}

/// Empty tables for all shards.
fn keyspace() -> (Roots, Vec<Table>) {
    let roots = Roots::new(1 << SHARD_BITS, router(), Fill::Roomy);
    let tables = (0..1 << SHARD_BITS).map(|shard| roots.table(shard)).collect();
    (roots, tables)
}

fn fill(tables: &mut [Table], router: &Router, keys: impl Iterator<Item = usize>) {
    for i in keys {
        let key = key(i);
        let Routed { shard, place } = router.route(&key);
        tables[shard.index()].insert(EntryBox::string(&key, &[b'v'; 32]), place);
    }
}

fn resident_bytes() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    statm.split(' ').nth(1).and_then(|pages| pages.parse::<usize>().ok()).unwrap_or(0) * 4096
}

fn report_bytes_a_key() {
    println!("{:>10} {:>10} {:>10} {:>10}   bytes a key", "keys", "resident", "accounted", "structure");
    let before = resident_bytes();
    let (_roots, mut tables) = keyspace();
    let mut done = 0;
    for n_keys in [1_000, 10_000, 100_000, 500_000, 700_000, N_KEYS, 1_400_000, 2_000_000] {
        fill(&mut tables, &router(), done..n_keys);
        done = n_keys;
        (0..10).for_each(|_| braid_storage::table::flush_retired());
        let per_key = |bytes: usize| bytes as f64 / n_keys as f64;
        println!(
            "{n_keys:>10} {:>10.1} {:>10.1} {:>10.1}",
            per_key(resident_bytes() - before),
            per_key(tables.iter().map(Table::allocated_bytes).sum()),
            per_key(tables.iter().map(Table::structure_bytes).sum()),
        );
    }
}

/// Looks up a batch as a command loop would: route all, prefetch stage by stage or not, then find.
fn look_up(roots: &Roots, tables: &[Table], router: &Router, keys: &[Key], prefetch: bool) -> usize {
    let mut routed = [router.route(&keys[0]); BATCH];
    for (routed, key) in routed.iter_mut().zip(keys) {
        *routed = router.route(key);
    }
    if prefetch {
        for Routed { shard, .. } in &routed {
            roots.get(shard.index()).prefetch();
        }
        prefetch_behind_roots(routed.len(), |at| (roots.get(routed[at].shard.index()), routed[at].place));
    }
    let found = routed.iter().zip(keys).filter_map(|(Routed { shard, place }, key)| {
        let entry = tables[shard.index()].find(key, *place)?;
        entry.bytes().map(|value| value[31] as usize)
    });
    found.sum()
}

fn shuffled(n_keys: usize, first: usize) -> Vec<Key> {
    let mut keys: Vec<_> = (first..first + n_keys).map(key).collect();
    let mut state = 1u64;
    for i in (1..keys.len()).rev() {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        keys.swap(i, (state >> 33) as usize % (i + 1));
    }
    keys
}

fn look_ups(criterion: &mut Criterion) {
    let router = router();
    let (roots, mut tables) = keyspace();
    let hits = shuffled(N_KEYS, 0);
    fill(&mut tables, &router, 0..N_KEYS);
    let misses = shuffled(N_KEYS, N_KEYS);
    let mut group = criterion.benchmark_group("look up");
    group.throughput(Throughput::Elements(BATCH as u64));
    for (name, keys) in [("hit", &hits), ("miss", &misses)] {
        for (how, prefetch) in [("one by one", false), ("prefetched", true)] {
            let mut batches = keys.chunks_exact(BATCH).cycle();
            group.bench_function(format!("{name}, {how}"), |bencher| {
                bencher.iter(|| {
                    let keys = batches.next().expect("it cycles");
                    black_box(look_up(&roots, &tables, &router, keys, prefetch))
                });
            });
        }
    }
    group.bench_function("route only", |bencher| {
        let mut batches = hits.chunks_exact(BATCH).cycle();
        bencher.iter(|| {
            for key in batches.next().expect("it cycles") {
                black_box(router.route(black_box(key)));
            }
        });
    });
    group.finish();
    let mut group = criterion.benchmark_group("scan");
    group.throughput(Throughput::Elements(N_KEYS as u64));
    group.sample_size(10).bench_function("all keys, 16 buckets a call", |bencher| {
        bencher.iter(|| {
            let mut n_bytes = 0;
            for table in &tables {
                let mut position = Some(Position::START);
                while let Some(from) = position {
                    position = table.scan(from, 16, &mut |entry| n_bytes += entry.key().len());
                }
            }
            black_box(n_bytes)
        });
    });
    group.finish();
    let mut group = criterion.benchmark_group("sample");
    group.throughput(Throughput::Elements(1));
    let mut i = 0u64;
    group.bench_function("one entry", |bencher| {
        bencher.iter(|| {
            i += 1;
            black_box(tables[i as usize % tables.len()].sample(i).map(|entry| entry.access_clock()))
        });
    });
    group.finish();
    let mut group = criterion.benchmark_group("change");
    group.throughput(Throughput::Elements(1));
    let mut order = hits.iter().cycle();
    group.bench_function("overwrite in place", |bencher| {
        bencher.iter(|| {
            let key = order.next().expect("it cycles");
            let Routed { shard, place } = router.route(key);
            let mut slot = tables[shard.index()].find_mut(key, place).expect("all are there");
            slot.modify(|entry| entry.set_bytes(&[b'w'; 32]))
        });
    });
    group.bench_function("remove and insert", |bencher| {
        bencher.iter(|| {
            let key = order.next().expect("it cycles");
            let Routed { shard, place } = router.route(key);
            let table = &mut tables[shard.index()];
            let entry = table.find_mut(key, place).expect("all are there").remove();
            table.insert(entry, place);
        });
    });
    group.finish();
}

fn inserts(criterion: &mut Criterion) {
    let router = router();
    let mut group = criterion.benchmark_group("grow");
    group.sample_size(10);
    for n_keys in [100_000, N_KEYS] {
        group.throughput(Throughput::Elements(n_keys as u64));
        let keys = shuffled(n_keys, 0);
        group.bench_function(format!("insert {n_keys} keys into empty tables"), |bencher| {
            bencher.iter_batched(
                keyspace,
                |(roots, mut tables)| {
                    for key in &keys {
                        let Routed { shard, place } = router.route(key);
                        tables[shard.index()].insert(EntryBox::string(key, &[b'v'; 32]), place);
                    }
                    (roots, tables)
                },
                BatchSize::PerIteration,
            );
        });
    }
    group.finish();
}

fn main() {
    // `cargo test` runs benches too, to see that they run.
    if std::env::args().any(|argument| argument == "--bench") {
        report_bytes_a_key();
    }
    let mut criterion = Criterion::default()
        .warm_up_time(std::time::Duration::from_millis(500))
        .measurement_time(std::time::Duration::from_secs(2))
        .configure_from_args();
    look_ups(&mut criterion);
    inserts(&mut criterion);
    criterion.final_summary();
}
