//! Options of a load: the workload as the command line changes it, and its plan.

use std::sync::Arc;
use std::time::Duration;

use clap::Args;

use crate::engine::{self, Arrivals, Limit, LoadTarget, Outcome, Plan, Shape, Slice};
use crate::error::BenchError;
use crate::null_server::NullServer;
use crate::workload::{Compiled, Workload};

/// The time for which the client's own ceiling is measured.
const CALIBRATION: Duration = Duration::from_millis(400);
/// The unmeasured time before that.
const CALIBRATION_WARMUP: Duration = Duration::from_millis(100);

/// Options that describe a load.
#[derive(Debug, Clone, Args)]
pub struct LoadOptions {
    /// A named workload, or a file: see `braid-bench workloads`.
    #[arg(short, long, value_name = "NAME|FILE", default_value = "cache")]
    workload: String,
    /// How requests of a rate are spread: constant, poisson, or bursty:ON/OFF.
    #[arg(long, value_name = "SHAPE")]
    arrivals: Option<Shape>,
    /// Connections.
    #[arg(short, long, value_name = "N")]
    connections: Option<usize>,
    /// Requests in a pipeline on each connection.
    #[arg(short = 'P', long, value_name = "N")]
    pipeline: Option<usize>,
    /// Keys.
    #[arg(long, value_name = "N")]
    keys: Option<u64>,
    /// Version of RESP.
    #[arg(long, value_name = "2|3")]
    protocol: Option<u8>,
    /// Seed of random choices.
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Worker threads of the client.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
    threads: u16,
    /// Cores that the client's threads are kept on.
    #[arg(long, value_name = "N,N", value_delimiter = ',')]
    client_cpus: Vec<usize>,
    /// Cores that the server is kept on, if it runs on this machine.
    #[arg(long, value_name = "N,N", value_delimiter = ',')]
    pub server_cpus: Vec<usize>,
    /// Does not load the workload's keys first.
    #[arg(long)]
    no_preload: bool,
}

/// Options for the rate and the duration of a load. Tasks that find their own rate do not take them.
#[derive(Debug, Clone, Default, Args)]
pub struct PaceOptions {
    /// Requests a second over all connections; without it a connection sends its next request when the last
    /// is answered.
    #[arg(short, long, value_name = "RATE")]
    rate: Option<f64>,
    /// How long to measure.
    #[arg(short, long, value_name = "TIME", value_parser = humantime::parse_duration)]
    duration: Option<Duration>,
    /// How long to run before measuring.
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    warmup: Option<Duration>,
}

/// A load that is ready to run, any number of times.
#[derive(Debug, Clone)]
pub struct Load {
    /// The requests of the run.
    pub compiled: Arc<Compiled>,
    /// The requests sent once for each key before the run, one entry for each population.
    pub preload: Vec<Arc<Compiled>>,
    /// The plan by which requests are sent.
    pub plan: Plan,
    /// The spread of requests where there is a rate.
    shape: Shape,
}

/// The client's own limit.
#[derive(Debug, Clone, Copy)]
pub struct Ceiling {
    /// Requests a second that its threads could send if each had a core.
    pub rate: f64,
}

impl LoadOptions {
    /// Reads the workload and applies the options to it.
    ///
    /// # Errors
    /// When the workload makes no sense.
    pub fn load(&self, pace: &PaceOptions) -> Result<Load, BenchError> {
        self.load_of(Workload::named_or_file(&self.workload)?, pace)
    }

    /// Reads the workload for a task that measures many short windows.
    ///
    /// The times are those of the options, or else these. They are never the workload's.
    ///
    /// # Errors
    /// As [`LoadOptions::load`].
    pub fn windows(
        &self,
        pace: &PaceOptions,
        warmup: Duration,
        measured: Duration,
    ) -> Result<Load, BenchError> {
        let workload = Workload::named_or_file(&self.workload)?;
        self.load_of(Workload { warmup, duration: measured, ..workload }, pace)
    }

    fn load_of(&self, mut workload: Workload, pace: &PaceOptions) -> Result<Load, BenchError> {
        replace(&mut workload.connections, self.connections);
        replace(&mut workload.pipeline, self.pipeline);
        replace(&mut workload.keys.count, self.keys);
        replace(&mut workload.protocol, self.protocol);
        replace(&mut workload.seed, self.seed);
        replace(&mut workload.duration, pace.duration);
        replace(&mut workload.warmup, pace.warmup);
        workload.rate = pace.rate.or(workload.rate);
        if self.no_preload {
            workload.preload.clear();
        }
        if let Some(shape) = self.arrivals {
            workload.arrivals = Some(shape.to_string());
        }
        Load::new(&workload, usize::from(self.threads), self.client_cpus.clone())
    }
}

fn replace<T>(field: &mut T, option: Option<T>) {
    if let Some(value) = option {
        *field = value;
    }
}

impl Load {
    /// Makes a workload ready to run for its own duration.
    ///
    /// # Errors
    /// When the workload makes no sense.
    pub fn new(workload: &Workload, n_threads: usize, cpus: Vec<usize>) -> Result<Self, BenchError> {
        let shape: Shape = workload.arrivals.as_deref().map(str::parse).transpose()?.unwrap_or_default();
        let arrivals = workload.rate.map_or(Arrivals::Closed, |rate| Arrivals::Open { rate, shape });
        let limit = Limit::Time { warmup: workload.warmup, measured: workload.duration };
        Ok(Self {
            compiled: Arc::new(Compiled::new(workload)?),
            preload: workload
                .preload
                .iter()
                .map(|population| {
                    let n_keys = population.count.unwrap_or(workload.keys.count);
                    Compiled::preload(workload, population, 0..n_keys).map(Arc::new)
                })
                .collect::<Result<_, _>>()?,
            plan: Plan { arrivals, limit, n_threads, cpus },
            shape,
        })
    }

    /// Returns the workload that is sent.
    pub fn workload(&self) -> &Workload {
        self.compiled.workload()
    }

    /// Loads the workload's keys, if it declares populations.
    ///
    /// # Errors
    /// When a connection fails or a request is answered by an error.
    pub fn preload(&self, target: &LoadTarget) -> Result<(), BenchError> {
        self.preload.iter().try_for_each(|population| self.load_population(target, population))
    }

    /// Loads the keys of one population.
    ///
    /// # Errors
    /// As [`Load::preload`].
    pub fn load_population(&self, target: &LoadTarget, population: &Arc<Compiled>) -> Result<(), BenchError> {
        send_sequence(target, population, self.plan.n_threads, &self.plan.cpus)
    }

    /// Runs the load once.
    ///
    /// # Errors
    /// As [`engine::run`].
    pub fn run(&self, target: &LoadTarget, watch: &mut dyn FnMut(&Slice)) -> Result<Outcome, BenchError> {
        engine::run(target, &self.compiled, &self.plan, watch)
    }

    /// Returns the same load at another rate, or in a closed loop.
    pub fn at_rate(&self, rate: Option<f64>) -> Self {
        let arrivals = rate.map_or(Arrivals::Closed, |rate| Arrivals::Open { rate, shape: self.shape });
        Self { plan: Plan { arrivals, ..self.plan.clone() }, ..self.clone() }
    }

    /// Returns the same load for another time.
    pub fn lasting(&self, warmup: Duration, measured: Duration) -> Self {
        self.until(Limit::Time { warmup, measured })
    }

    /// Returns the same load with another end.
    pub fn until(&self, limit: Limit) -> Self {
        Self { plan: Plan { limit, ..self.plan.clone() }, ..self.clone() }
    }

    /// Measures the client's cost of a request, against a server that does nothing.
    ///
    /// # Errors
    /// When loopback cannot be used.
    pub fn calibrate(&self) -> Result<Ceiling, BenchError> {
        let server = NullServer::start(None)?;
        let target = LoadTarget::plain(server.address());
        let mut workload = self.workload().clone();
        workload.consumers.clear();
        workload.rate = None;
        let load = Self::new(&workload, self.plan.n_threads, self.plan.cpus.clone())?;
        let outcome = load.lasting(CALIBRATION_WARMUP, CALIBRATION).run(&target, &mut |_| {})?;
        let cpu: Duration = outcome.workers.iter().map(|worker| worker.cpu).sum();
        let n_done = outcome.record.n_done_in_time() as f64;
        Ok(Ceiling { rate: outcome.workers.len() as f64 * n_done / cpu.as_secs_f64() })
    }
}

/// Sends each request of a sequence once.
///
/// # Errors
/// When a connection fails, or a request is answered by an error or not at all.
pub fn send_sequence(
    target: &LoadTarget,
    sequence: &Arc<Compiled>,
    n_threads: usize,
    cpus: &[usize],
) -> Result<(), BenchError> {
    let limit = Limit::Requests(sequence.n_sequence());
    let plan = Plan { arrivals: Arrivals::Closed, limit, n_threads, cpus: cpus.to_vec() };
    let record = engine::run(target, sequence, &plan, &mut |_| {})?.record;
    let reply = match record.errors.into_keys().next() {
        Some(text) => text,
        None if record.n_unanswered > 0 => format!("{} requests had no reply", record.n_unanswered),
        None => return Ok(()),
    };
    Err(BenchError::WrongReply { request: String::from("a request of the preload"), reply })
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::TcpListener;
    use std::sync::{Mutex, mpsc};
    use std::thread;

    use braid_protocol::request::write_request;

    use super::*;

    #[test]
    fn a_written_sequence_sends_each_number_once() {
        let server = NullServer::start(None).expect("loopback can be listened on");
        let written = Arc::new(Mutex::new(Vec::new()));
        let numbers = Arc::clone(&written);
        let sequence = Compiled::written(3, 1000, move |number, out| {
            numbers.lock().expect("no writer panics").push(number);
            write_request(out, &["PING"]);
        });
        let sequence = Arc::new(sequence.expect("it makes sense"));
        send_sequence(&LoadTarget::plain(server.address()), &sequence, 2, &[])
            .expect("the null server answers");
        let mut numbers = written.lock().expect("no writer panics").clone();
        numbers.sort_unstable();
        assert_eq!(numbers, (0..1000).collect::<Vec<_>>());
    }

    #[test]
    fn a_sequence_that_is_answered_by_an_error_fails_with_its_text() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("loopback can be listened on");
        let target = LoadTarget::plain(listener.local_addr().expect("it listens"));
        let serving = thread::spawn(move || {
            let mut connection = listener.accept().expect("a load connects").0;
            assert!(connection.read(&mut [0; 4096]).expect("requests are sent") > 0);
            connection.write_all(b"+OK\r\n-ERR out of memory\r\n").expect("the load reads");
        });
        let sequence = Compiled::written(1, 2, |_, out| write_request(out, &["PING"]));
        let sequence = Arc::new(sequence.expect("it makes sense"));
        let error = send_sequence(&target, &sequence, 1, &[]).expect_err("the second reply is an error");
        assert!(error.to_string().contains("ERR out of memory"), "{error}");
        serving.join().expect("the server does not panic");
    }

    #[test]
    fn a_connection_that_closes_right_after_a_reply_fails_its_sequence() {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("loopback can be listened on");
        let target = LoadTarget::plain(listener.local_addr().expect("it listens"));
        let (closed, is_closed) = mpsc::channel();
        let is_closed = Mutex::new(is_closed);
        let serving = thread::spawn(move || {
            let accept = || listener.accept().expect("a load connects").0;
            let (mut first, mut second) = (accept(), accept());
            assert!(first.read(&mut [0; 4096]).expect("requests are sent") > 0);
            first.write_all(b"+OK\r\n").expect("the load reads");
            drop(first);
            closed.send(()).expect("the load waits for it");
            assert!(second.read(&mut [0; 4096]).expect("a request is sent") > 0);
            second.write_all(b"+OK\r\n").expect("the load reads");
            (listener, second)
        });
        // The first connection sends 64 requests. While the second makes its only one, the first gets a reply
        // and is closed. The load then finds both events at once.
        let sequence = Compiled::written(2, 65, move |number, out| {
            if number == 64 {
                is_closed.lock().expect("no writer panics").recv().expect("the server does not panic");
            }
            write_request(out, &["PING"]);
        });
        let sequence = Arc::new(sequence.expect("it makes sense"));
        let error = send_sequence(&target, &sequence, 1, &[]).expect_err("63 requests have no reply");
        assert!(error.to_string().contains("63 requests had no reply"), "{error}");
        serving.join().expect("the server does not panic");
    }
}
