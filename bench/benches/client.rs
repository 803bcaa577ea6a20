//! Timings of the client's work for each request: making it, and recording its times.
//!
//! They bound the rate that one core of the client can offer. Throughput counts requests.

use std::hint::black_box;
use std::sync::Arc;

use braid_bench::engine::Record;
use braid_bench::workload::{Compiled, Generator, Moment, Workload};
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};

/// The number of requests that are made into one buffer.
const N_REQUESTS: u64 = 64;

fn generator(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("generator");
    group.throughput(Throughput::Elements(N_REQUESTS));
    for name in ["cache", "session-store", "hot-key", "leaderboard", "stream", "big-values"] {
        let workload = Workload::named_or_file(name).expect("the workload ships");
        let compiled = Arc::new(Compiled::new(&workload).expect("what ships is sound"));
        let mut generator = Generator::new(&compiled, 0, 1);
        let mut out = Vec::new();
        group.bench_function(BenchmarkId::from_parameter(name), |bencher| {
            bencher.iter(|| {
                out.clear();
                for connection in 0..N_REQUESTS as usize {
                    black_box(generator.append(Moment { due_nanos: 0, connection }, &mut out));
                }
                black_box(out.len())
            });
        });
    }
    group.finish();
}

fn recording(criterion: &mut Criterion) {
    let mut random = fastrand::Rng::with_seed(1);
    // Times from 20 µs to 2 ms, most of them short, like response times.
    let nanos: Vec<u64> =
        (0..4096).map(|_| (20_000.0 * 100.0_f64.powf(random.f64().powi(4))) as u64).collect();
    let mut group = criterion.benchmark_group("recording");
    let mut record = Record::new(["GET"].into_iter());
    group.throughput(Throughput::Elements(nanos.len() as u64));
    group.bench_function("response, service and slip", |bencher| {
        bencher.iter(|| {
            for &nanos in &nanos {
                record.commands[0].response.saturating_record(nanos);
                record.service.saturating_record(nanos - nanos / 8);
                record.slip.saturating_record(nanos / 64);
            }
        });
    });
    group.throughput(Throughput::Elements(1));
    group.bench_function("percentiles of a window", |bencher| {
        bencher.iter(|| {
            let response = record.response();
            [50.0, 90.0, 99.0, 99.9].map(|percentile| response.value_at_percentile(percentile))
        });
    });
    group.finish();
}

criterion_group!(benches, generator, recording);
criterion_main!(benches);
