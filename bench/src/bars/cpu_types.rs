//! The server's processor time for redis-benchmark's tests of lists, sets, hashes, sorted sets and MSET.

use std::thread;
use std::time::{Duration, Instant};

use super::contest::{Bar, Contest, N_KEYS};
use super::cpu;
use crate::bars::measures::{Measure, Target, Unit};
use crate::bars::values::{Filling, ValueType};
use crate::client::Client;
use crate::error::BenchError;
use crate::process::CpuSample;
use crate::spawn::Server;

/// The bars. Each runs redis-benchmark's own commands, 16 in a pipeline.
pub(super) const BARS: &[Bar] = &[
    Bar { name: "cpu-lpush", run: |contest, bar| run(contest, bar, &TypeTest::of("lpush")) },
    Bar { name: "cpu-rpush", run: |contest, bar| run(contest, bar, &TypeTest::of("rpush")) },
    Bar { name: "cpu-lpop", run: |contest, bar| run(contest, bar, &TypeTest::of("lpop").popping(LIST)) },
    Bar { name: "cpu-rpop", run: |contest, bar| run(contest, bar, &TypeTest::of("rpop").popping(LIST)) },
    Bar { name: "cpu-sadd", run: |contest, bar| run(contest, bar, &TypeTest::of("sadd")) },
    Bar { name: "cpu-hset", run: |contest, bar| run(contest, bar, &TypeTest::of("hset")) },
    Bar { name: "cpu-spop", run: |contest, bar| run(contest, bar, &TypeTest::of("spop").popping(SET)) },
    Bar { name: "cpu-zadd", run: |contest, bar| run(contest, bar, &TypeTest::of("zadd")) },
    Bar {
        name: "cpu-zpopmin",
        run: |contest, bar| run(contest, bar, &TypeTest::of("zpopmin").popping(SORTED_SET)),
    },
    Bar { name: "cpu-lrange_100", run: |contest, bar| run(contest, bar, &TypeTest::lrange("99", 10)) },
    Bar { name: "cpu-lrange_300", run: |contest, bar| run(contest, bar, &TypeTest::lrange("299", 20)) },
    Bar { name: "cpu-lrange_600", run: |contest, bar| run(contest, bar, &TypeTest::lrange("599", 40)) },
    Bar {
        name: "cpu-mset",
        run: |contest, bar| run(contest, bar, &TypeTest { cost: 10, at_most: 0.5, ..TypeTest::of("mset") }),
    },
];

const PIPELINE: u32 = 16;
/// Elements of the list whose head LRANGE reads.
const N_LRANGE_ELEMENTS: u64 = 100_000;
/// The processor time in [`REST`] below which a server has come to rest. Its timers use less.
const RESTING: Duration = Duration::from_millis(3);
const REST: Duration = Duration::from_millis(100);
/// The longest wait for a server to come to rest.
const PATIENCE: Duration = Duration::from_secs(10);

/// A value of redis-benchmark's tests: its type and its name.
type Value = (ValueType, &'static str);

const LIST: Value = (ValueType::List, "mylist");
const SET: Value = (ValueType::Set, "myset");
const SORTED_SET: Value = (ValueType::SortedSet, "myzset");

/// The data that a server is filled with before the measurement.
enum Preload {
    Nothing,
    /// A value with this many members.
    Members(Value, u64),
    /// A member for each request, each of which pops one.
    Popped(Value),
}

/// One of redis-benchmark's tests.
struct TypeTest {
    /// The arguments that select the test.
    arguments: Vec<&'static str>,
    preload: Preload,
    /// The test's cost as a multiple of a short command's. The number of requests is divided by it.
    cost: u64,
    /// The target ratio.
    at_most: f64,
}

impl TypeTest {
    fn of(name: &'static str) -> Self {
        Self { arguments: vec!["-t", name], preload: Preload::Nothing, cost: 1, at_most: 0.6 }
    }

    fn popping(self, value: Value) -> Self {
        Self { preload: Preload::Popped(value), ..self }
    }

    /// Makes the command of redis-benchmark's LRANGE tests.
    ///
    /// If they were selected by their names, they would push a list first, which must not be measured.
    fn lrange(last: &'static str, cost: u64) -> Self {
        let arguments = vec!["LRANGE", LIST.1, "0", last];
        Self { arguments, preload: Preload::Members(LIST, N_LRANGE_ELEMENTS), cost, at_most: 0.6 }
    }
}

fn run(contest: &Contest, bar: &str, test: &TypeTest) -> Result<Vec<Measure>, BenchError> {
    let servers = contest.start_both(&[])?;
    let measures = vec![
        Measure::new("CPU/command", Unit::Micros, Target::ratio(test.at_most)),
        Measure::new("commands", Unit::PerSecond, Target::NONE),
    ];
    contest.rounds(bar, contest.n_rounds, measures, |side| run_once(contest, side.of(&servers), test))
}

fn run_once(contest: &Contest, server: &Server, test: &TypeTest) -> Result<Vec<f64>, BenchError> {
    let n_requests = contest.n_requests(PIPELINE) / test.cost;
    let mut client = Client::connect(server.address())?;
    client.call(&[b"FLUSHALL"])?;
    match test.preload {
        Preload::Nothing => {}
        Preload::Members(value, n_members) => preload(server, value, n_members)?,
        Preload::Popped(value) => preload(server, value, n_requests)?,
    }
    wait_for_rest(server)?;
    let n_keys = N_KEYS.to_string();
    let arguments: Vec<_> = ["-r", &n_keys].into_iter().chain(test.arguments.iter().copied()).collect();
    let cost = cpu::per_command(&contest.redis_benchmark, server, PIPELINE, n_requests, &arguments)?;
    match (&test.preload, client.dbsize()?) {
        (Preload::Popped(_), 1..) => Err(BenchError::WrongReply {
            request: format!("{n_requests} pops from as many members"),
            reply: "some are left".to_owned(),
        }),
        _ => Ok(vec![cost.micros, cost.per_second]),
    }
}

/// Fills a value as redis-benchmark's own tests do.
///
/// Elements have three bytes, and members are named `element:000000000042`.
fn preload(server: &Server, (value_type, key): Value, n_members: u64) -> Result<(), BenchError> {
    let member = move |index| match value_type {
        ValueType::List => "xxx".to_owned(),
        _ => format!("element:{index:012}"),
    };
    Filling { value_type, n_keys: 1, n_members, key: move |_| key, member }.fill(server.address())
}

/// Waits until the server has finished earlier work, such as freeing flushed data.
pub(super) fn wait_for_rest(server: &Server) -> Result<(), BenchError> {
    let began = Instant::now();
    loop {
        let before = CpuSample::of(server.pid())?;
        thread::sleep(REST);
        if CpuSample::of(server.pid())?.since(before) < RESTING {
            return Ok(());
        }
        if began.elapsed() > PATIENCE {
            return Err(BenchError::Machine(format!("the server was not at rest after {PATIENCE:?}")));
        }
    }
}
