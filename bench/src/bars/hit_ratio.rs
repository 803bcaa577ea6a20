//! The share of a cache's requests that find their key, for each policy of eviction.

use std::sync::Arc;

use braid_protocol::request::write_request;

use super::contest::{Contest, Side};
use crate::bars::measures::{Measure, Target, Unit};
use crate::bars::preload;
use crate::client::{Client, wrong_reply};
use crate::error::BenchError;
use crate::reply_counter::Kind;
use crate::workload::{Command, Compiled, Generator, Keys, Moment, Pattern, Workload};

const POLICIES: [&str; 2] = ["allkeys-lru", "allkeys-lfu"];
/// The number of keys, of 16 bytes each.
///
/// With values of 1000 bytes they take 200 MB and the server's overhead.
const N_KEYS: u64 = 200_000;
const VALUE_BYTES: usize = 1000;
/// The memory limit: a quarter of the values.
const LIMIT: &str = "50mb";
const PATTERN: Pattern = Pattern::Zipf { exponent: 0.9 };
/// Requests before the count begins. The cache is full long before its end.
const N_WARMING: u64 = 200_000;
const N_COUNTED: u64 = 300_000;

/// Runs the same trace on both servers.
///
/// Each request is a GET, and a SET of the key if the GET finds none. Requests are sent one at a time.
/// redis-server distinguishes times of access only by the second, and a trace of a few seconds would contain
/// few of them.
pub(super) fn run(contest: &Contest, bar: &str) -> Result<Vec<Measure>, BenchError> {
    let measure = |policy| Measure::new(format!("misses, {policy}"), Unit::Percent, Target::difference(0.3));
    let measures = POLICIES.into_iter().map(measure).collect();
    contest.rounds(bar, contest.few_rounds(), measures, |side| {
        POLICIES.into_iter().map(|policy| missed_percent(contest, side, policy)).collect()
    })
}

fn missed_percent(contest: &Contest, side: Side, policy: &str) -> Result<f64, BenchError> {
    let server = contest.start(side, &["--maxmemory", LIMIT, "--maxmemory-policy", policy])?;
    let mut cache = Cache::connect(Client::connect(server.address())?)?;
    cache.ask(N_WARMING)?;
    let n_evicted = cache.client.info_figure("evicted_keys")?;
    if n_evicted == 0.0 {
        return Err(wrong_reply(&["INFO"], &"no key was evicted"));
    }
    let n_missed = cache.ask(N_COUNTED)?;
    Ok(100.0 * n_missed as f64 / N_COUNTED as f64)
}

/// A client that uses the server as a cache.
struct Cache {
    client: Client,
    trace: Generator,
    request: Vec<u8>,
    value: Vec<u8>,
}

impl Cache {
    fn connect(client: Client) -> Result<Self, BenchError> {
        let workload = Workload {
            keys: Keys { count: N_KEYS, pattern: PATTERN, ..Keys::default() },
            commands: vec![Command::of(&["GET", "{key}"])],
            ..Workload::default()
        };
        let trace = Generator::new(&Arc::new(Compiled::new(&workload)?), 0, 1);
        Ok(Self { client, trace, request: Vec::new(), value: vec![b'v'; VALUE_BYTES] })
    }

    /// Continues the trace, and returns how many of the requests found nothing.
    fn ask(&mut self, n_requests: u64) -> Result<u64, BenchError> {
        let mut n_missed = 0;
        for _ in 0..n_requests {
            self.request.clear();
            let key = self.trace.append(Moment::default(), &mut self.request).key;
            self.client.send(&self.request)?;
            match self.client.receive_outline()?.kind {
                Kind::Bulk => {}
                Kind::Null => {
                    n_missed += 1;
                    self.set(&preload::name(key))?;
                }
                other => return Err(wrong_reply(&["GET"], &other)),
            }
        }
        Ok(n_missed)
    }

    fn set(&mut self, key: &str) -> Result<(), BenchError> {
        self.request.clear();
        write_request(&mut self.request, &[b"SET", key.as_bytes(), &self.value]);
        self.client.call_encoded("SET", &self.request, 1)
    }
}
