//! The waits of GETs while a million keys expire at once, and the duration of their removal.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::contest::{Contest, N_CONNECTIONS, N_KEYS, VALUE, load_keys};
use crate::bars::measures::{Measure, Target, Unit};
use crate::bars::preload;
use crate::bars::requests::{Misses, Request, RequestLoad};
use crate::client::Client;
use crate::engine::Limit;
use crate::error::BenchError;
use crate::spawn::Server;

/// The time from setting the first deadline to that deadline. Setting all of them takes less.
const TIME_TO_LIVE: Duration = Duration::from_secs(5);
/// The longest wait for a server to remove all keys. At that limit, the figure means "or longer".
const PATIENCE: Duration = Duration::from_secs(30);
const POLL_EVERY: Duration = Duration::from_millis(20);

/// Measures the expiry of a million keys with one deadline.
pub(super) fn run(contest: &Contest, bar: &str) -> Result<Vec<Measure>, BenchError> {
    let measures = vec![
        Measure::new("GET p99.9", Unit::Millis, Target::NONE),
        Measure::new("GET max", Unit::Millis, Target::NONE),
        Measure::new("until DBSIZE is 0", Unit::Seconds, Target::NONE),
    ];
    contest.rounds(bar, contest.few_rounds(), measures, |side| expire_once(&contest.start(side, &[])?))
}

fn expire_once(server: &Server) -> Result<Vec<f64>, BenchError> {
    load_keys(server, VALUE)?;
    let deadline = SystemTime::now() + TIME_TO_LIVE;
    preload::expire_at(server.address(), N_KEYS, epoch_millis(deadline))?;
    let Ok(ahead) = deadline.duration_since(SystemTime::now()) else {
        let why = format!("setting {N_KEYS} deadlines took longer than the {TIME_TO_LIVE:?} until they pass");
        return Err(BenchError::Machine(why));
    };
    thread::sleep(ahead);
    get_until_empty(server)
}

/// Sends GETs of the expiring keys until DBSIZE is 0, and for at least a second.
fn get_until_empty(server: &Server) -> Result<Vec<f64>, BenchError> {
    let load = RequestLoad {
        request: Request::Get,
        rate: None,
        n_connections: N_CONNECTIONS,
        n_keys: N_KEYS,
        value_bytes: VALUE.len(),
        misses: Misses::Allowed,
    };
    let stop = Arc::new(AtomicBool::new(false));
    let told = Limit::Told(Arc::clone(&stop));
    thread::scope(|scope| {
        let getting = scope.spawn(|| load.run(server.address(), told));
        let began = Instant::now();
        let emptied = wait_until_empty(server);
        thread::sleep(Duration::from_secs(1).saturating_sub(began.elapsed()));
        stop.store(true, Ordering::Relaxed);
        let latencies = getting.join().expect("a load does not panic")?;
        Ok(vec![latencies.percentile_millis(99.9), latencies.max_millis(), emptied?.as_secs_f64()])
    })
}

fn wait_until_empty(server: &Server) -> Result<Duration, BenchError> {
    let began = Instant::now();
    let mut client = Client::connect(server.address())?;
    while client.dbsize()? > 0 && began.elapsed() < PATIENCE {
        thread::sleep(POLL_EVERY);
    }
    Ok(began.elapsed())
}

fn epoch_millis(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}
