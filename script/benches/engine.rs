//! Timings of one run, with a host that does nothing.

use std::hint::black_box;

use braid_protocol::{Reply, Resp, Words};
use braid_script::{Engine, Flavour, Host, LogLevel, Settings, Stop, UnknownCommand, Version};
use criterion::{Criterion, criterion_group, criterion_main};

struct Trivial;

impl Host for Trivial {
    fn call(&mut self, _: Words<'_>, _: Resp, reply: &mut Vec<u8>) -> Result<(), Stop> {
        reply.extend_from_slice(b"$5\r\nvalue\r\n");
        Ok(())
    }

    fn log(&mut self, _: LogLevel, _: &[u8]) {}

    fn acl_check(&mut self, _: Words<'_>) -> Result<bool, UnknownCommand> {
        Ok(true)
    }

    fn set_replication(&mut self, _: u8) {}

    fn interrupt(&mut self) -> Result<(), Stop> {
        Ok(())
    }
}

fn runs(criterion: &mut Criterion) {
    let version = Version { text: "7.4.0".into(), number: 0x0007_0400 };
    let mut engine =
        Engine::new(&Settings { flavour: Flavour::Scripts, memory_limit: 1 << 30, seed: None, version });
    for (name, source) in [
        ("return 1", "return 1"),
        ("one GET", "return redis.call('GET', KEYS[1])"),
        ("five GETs", "local a for i = 1, 5 do a = redis.call('GET', KEYS[1]) end return a"),
        ("ten elements", "return {1,2,3,4,5,6,7,8,9,10}"),
        ("loop of 10,000", "local a = 0 for i = 1, 10000 do a = a + i end return a"),
        ("insert 100", "local a = {} for i = 1, 100 do table.insert(a, i) end return #a"),
    ] {
        let handle = engine.compile(source.as_bytes(), "sha").expect("it is Lua");
        let mut out = Vec::new();
        criterion.bench_function(name, |bencher| {
            bencher.iter(|| {
                out.clear();
                let mut reply = Reply::new(&mut out, Resp::V2);
                let ended = engine.run(handle, &[b"key:000000001"], &[b"value"], &mut Trivial, &mut reply);
                black_box(ended).expect("nothing stops it");
            });
        });
    }
}

criterion_group!(benches, runs);
criterion_main!(benches);
