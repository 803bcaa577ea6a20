//! Timings of the parser, the writer and the reply parser. Throughput counts requests or replies.

use std::hint::black_box;

use braid_protocol::number::{LongDouble, parse_i64, write_f64};
use braid_protocol::request::write_request;
use braid_protocol::{Parse, Reply, RequestParser, Resp, parse_reply, skip_reply};
use criterion::{Criterion, Throughput, criterion_group, criterion_main};

/// The requests of a pipeline: as many as a batch of the server.
const N_REQUESTS: u64 = 32;

fn pipeline(args: impl Fn(u64) -> Vec<Vec<u8>>) -> Vec<u8> {
    let mut out = Vec::new();
    for i in 0..N_REQUESTS {
        write_request(&mut out, &args(i));
    }
    out
}

fn key(i: u64) -> Vec<u8> {
    format!("key:{i:012}").into_bytes()
}

fn requests(criterion: &mut Criterion) {
    let pipelines = [
        ("set 16 B key, 32 B value", pipeline(|i| vec![b"SET".to_vec(), key(i), vec![b'v'; 32]])),
        ("get 16 B key", pipeline(|i| vec![b"GET".to_vec(), key(i)])),
        (
            "set of varying lengths",
            pipeline(|i| {
                let value_bytes = (i * 2_654_435_761 % 997 * 3) as usize;
                vec![b"SET".to_vec(), key(i)[..1 + i as usize % 16].to_vec(), vec![b'v'; value_bytes]]
            }),
        ),
        ("inline get", b"GET key:000000000001\r\n".repeat(N_REQUESTS as usize)),
    ];
    let mut group = criterion.benchmark_group("request");
    group.throughput(Throughput::Elements(N_REQUESTS));
    for (name, mut input) in pipelines {
        let mut parser = RequestParser::default();
        let mut args = Vec::new();
        group.bench_function(name, |bencher| {
            bencher.iter(|| {
                args.clear();
                let mut at = 0;
                while let Ok(Parse::Request { consumed }) = parser.parse(&mut input[at..], &mut args) {
                    at += consumed;
                }
                assert_eq!(at, input.len());
                black_box(args.len())
            });
        });
    }
}

fn replies(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("reply");
    group.throughput(Throughput::Elements(N_REQUESTS));
    let mut write = |name: &str, one: fn(&mut Reply<'_>, u64)| {
        let mut out = Vec::new();
        group.bench_function(name, |bencher| {
            bencher.iter(|| {
                out.clear();
                let mut reply = Reply::new(&mut out, Resp::V2);
                for i in 0..N_REQUESTS {
                    one(&mut reply, black_box(i));
                }
                black_box(out.len())
            });
        });
    };
    write("ok", |reply, _| reply.ok());
    write("bulk 32 B", |reply, _| reply.bulk(black_box(&[b'v'; 32])));
    write("integer", |reply, i| reply.integer(i as i64 * 1_000_003));
    write("double", |reply, i| reply.double(i as f64 * 0.37));
}

fn values(criterion: &mut Criterion) {
    let mut out = Vec::new();
    let mut reply = Reply::new(&mut out, Resp::V2);
    reply.array(N_REQUESTS as usize);
    for _ in 0..N_REQUESTS {
        reply.bulk(&[b'v'; 32]);
    }
    let mut group = criterion.benchmark_group("value");
    group.throughput(Throughput::Elements(N_REQUESTS));
    group.bench_function("parse array of 32 B", |bencher| bencher.iter(|| parse_reply(black_box(&out))));
    group.bench_function("skip array of 32 B", |bencher| bencher.iter(|| skip_reply(black_box(&out))));
}

fn numbers(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("number");
    group.bench_function("parse_i64", |bencher| bencher.iter(|| parse_i64(black_box(b"1234567890"))));
    let mut out = Vec::new();
    group.bench_function("write_f64", |bencher| {
        bencher.iter(|| {
            out.clear();
            write_f64(&mut out, black_box(12.345678));
        });
    });
    group.bench_function("incrbyfloat", |bencher| {
        bencher.iter(|| {
            out.clear();
            let parse = |text| LongDouble::parse(black_box(text)).expect("a number");
            (parse(b"10.50") + parse(b"0.1")).write(&mut out);
        });
    });
    let largest = LongDouble::parse(b"1.1e4932").expect("a number");
    group.bench_function("print 1.1e4932", |bencher| {
        bencher.iter(|| {
            out.clear();
            black_box(largest).write(&mut out);
        });
    });
}

criterion_group!(benches, requests, replies, values, numbers);
criterion_main!(benches);
