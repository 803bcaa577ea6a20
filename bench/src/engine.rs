//! The load itself: worker threads, each with its connections, its schedule and its histograms.
//!
//! **Closed loop**: a connection sends its next batch of requests when the last one is answered. **Open
//! loop**: each connection has a schedule of its own that ignores replies. A batch may fall due while the one
//! before is unanswered. It then waits in the client, and its *response time* counts from the time it was
//! due. So a stalling server cannot hide the requests that it kept from being sent (Tene, "How NOT to Measure
//! Latency").
//!
//! | figure | from | to |
//! |---|---|---|
//! | response time | when the request was due (closed loop: sent) | its last reply |
//! | service time | when it was sent | its last reply |
//! | schedule slip | when it was due and its connection free | when it was sent: the generator's lateness |
//! | delivery time | when the message was due | its arrival at a consumer |

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use crate::error::BenchError;
use crate::workload::Compiled;

mod arrivals;
mod connection;
mod consumer;
mod outcome;
mod recorder;
mod settings;
mod worker;

pub use self::arrivals::{Arrivals, Shape};
pub use self::outcome::{Outcome, Slice, WorkerUse};
pub use self::recorder::{CommandRecord, Record};
pub use self::settings::{Limit, LoadTarget, Plan};

use self::consumer::{Consumers, Deliveries};
use self::worker::Worker;

/// The time from the last connection to the first request. Workers have reached their loops by then.
const LEAD: Duration = Duration::from_millis(5);

/// Runs a load to its end. `watch` sees each second once all workers have finished it.
///
/// # Errors
/// When the server cannot be reached, refuses the greeting, sends malformed replies, or closes connection
/// after connection.
pub fn run(
    target: &LoadTarget,
    compiled: &Arc<Compiled>,
    plan: &Plan,
    watch: &mut dyn FnMut(&Slice),
) -> Result<Outcome, BenchError> {
    let n_connections = compiled.workload().connections;
    let n_workers = plan.n_threads.clamp(1, n_connections);
    let mut workers = (0..n_workers)
        .map(|index| Worker::connect(target, compiled, plan, index, n_workers))
        .collect::<Result<Vec<_>, _>>()?;
    let mut consumers = Consumers::connect(target, compiled)?;
    let start = Instant::now() + LEAD;
    let ended = OnceLock::new();
    let (slices, sliced) = mpsc::channel();
    thread::scope(|scope| {
        let running: Vec<_> = workers
            .iter_mut()
            .map(|worker| {
                let slices = slices.clone();
                scope.spawn(move || worker.run(start, slices))
            })
            .collect();
        drop(slices);
        let listening = scope.spawn(|| consumers.run(start, &ended, &plan.limit));
        let slices = gather(&sliced, n_workers, watch);
        let finished: Result<Vec<_>, BenchError> = running.into_iter().map(join).collect();
        let n_answered = finished.iter().flatten().map(|worker| worker.record.n_answered).sum();
        ended.set(n_answered).expect("the load ends once");
        let deliveries = join(listening)?;
        Ok(outcome(plan, finished?, deliveries, slices))
    })
}

/// Waits for a thread's result.
fn join<T>(thread: thread::ScopedJoinHandle<'_, T>) -> T {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Merges the workers' slices by their second, and shows the complete ones.
fn gather(sliced: &mpsc::Receiver<Slice>, n_workers: usize, watch: &mut dyn FnMut(&Slice)) -> Vec<Slice> {
    let mut seconds: BTreeMap<u64, (usize, Slice)> = BTreeMap::new();
    for slice in sliced {
        let second = slice.second;
        let (n_merged, merged) = match seconds.remove(&second) {
            None => (1, slice),
            Some((n_merged, mut merged)) => {
                merged.n_done += slice.n_done;
                merged.n_errors += slice.n_errors;
                merged.cpu += slice.cpu;
                merged.response.add(&slice.response).expect("all histograms have the same bounds");
                (n_merged + 1, merged)
            }
        };
        if n_merged == n_workers {
            watch(&merged);
        }
        seconds.insert(second, (n_merged, merged));
    }
    seconds.into_values().map(|(_, slice)| slice).collect()
}

fn outcome(
    plan: &Plan,
    finished: Vec<worker::Finished>,
    deliveries: Deliveries,
    slices: Vec<Slice>,
) -> Outcome {
    let elapsed = finished.iter().map(|worker| worker.used.wall).max().unwrap_or_default();
    let (measured, counted) = match plan.limit {
        Limit::Time { warmup, measured } => {
            (measured, warmup.as_secs_f64().ceil() as u64..(warmup + measured).as_secs())
        }
        Limit::Requests(_) | Limit::Told(_) => (elapsed, 0..u64::MAX),
    };
    let slices = slices.into_iter().filter(|slice| counted.contains(&slice.second)).collect();
    let workers = finished.iter().map(|worker| worker.used).collect();
    let record = finished.into_iter().map(|worker| worker.record).reduce(Record::merged);
    Outcome {
        offered: plan.arrivals.rate(),
        measured,
        record: record.expect("there is at least one worker"),
        delivery: deliveries.delivery,
        n_delivered: deliveries.n_counted,
        n_lost: deliveries.n_due.saturating_sub(deliveries.n_counted),
        slices,
        workers,
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::TcpListener;
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;
    use crate::null_server::{NullServer, Stall};
    use crate::workload::{Command, Consumer, NAMED, Workload};

    fn load(workload: &Workload, arrivals: Arrivals, limit: Limit, server: &NullServer) -> Outcome {
        let target = LoadTarget::plain(server.address());
        let plan = Plan { arrivals, limit, n_threads: 2, cpus: Vec::new() };
        let compiled = Arc::new(Compiled::new(workload).expect("the workload makes sense"));
        run(&target, &compiled, &plan, &mut |_| {}).expect("the null server answers")
    }

    fn null_server() -> NullServer {
        NullServer::start(None).expect("loopback can be listened on")
    }

    #[test]
    fn every_request_is_answered_and_counted_once() {
        let server = null_server();
        for pipeline in [1, 7] {
            let workload = Workload { pipeline, connections: 5, ..Workload::default() };
            let outcome = load(&workload, Arrivals::Closed, Limit::Requests(1000), &server);
            let record = &outcome.record;
            assert_eq!((record.n_sent, record.n_done(), record.n_done_in_time()), (1000, 1000, 1000));
            assert_eq!((record.n_errors(), record.n_unsent, record.n_unanswered), (0, 0, 0));
            assert_eq!(
                (record.response().len(), record.service.len(), record.slip.len()),
                (1000, 1000, 1000)
            );
            assert_eq!(outcome.slices.iter().map(|slice| slice.n_done).sum::<u64>(), 1000);
            // The default workload reads and writes, and the null server never has the key.
            assert_eq!(record.commands[0].n_nulls, record.commands[0].n_done);
            assert_eq!(record.commands[1].n_nulls, 0);
        }
    }

    #[test]
    fn named_workloads_without_consumers_run_without_errors() {
        let server = null_server();
        for (name, text) in NAMED {
            let mut workload = Workload::parse(name, text).expect("it is one of ours");
            workload.connections = 3;
            if !workload.consumers.is_empty() || *name == "big-values" {
                continue;
            }
            let outcome = load(&workload, Arrivals::Closed, Limit::Requests(200), &server);
            assert_eq!((outcome.record.n_done(), outcome.record.errors.len()), (200, 0), "{name}");
        }
    }

    #[test]
    fn an_open_loop_sends_what_is_due_and_counts_after_warming_up() {
        let arrivals = Arrivals::Open { rate: 2000.0, shape: Shape::Constant };
        let limit = Limit::Time { warmup: Duration::from_millis(100), measured: Duration::from_millis(500) };
        let outcome = load(&Workload::default(), arrivals, limit, &null_server());
        let Record { n_sent, n_unsent, .. } = outcome.record;
        assert_eq!((n_sent + n_unsent, outcome.record.n_done()), (1000, n_sent));
    }

    #[test]
    fn connections_are_opened_anew_after_so_many_requests() {
        let workload = Workload { connections: 2, reconnect_after: Some(10), ..Workload::default() };
        let outcome = load(&workload, Arrivals::Closed, Limit::Requests(200), &null_server());
        assert_eq!(outcome.record.n_done(), 200);
        assert_eq!(outcome.record.n_reconnects, 18);
    }

    #[test]
    fn a_greeting_comes_first_and_is_not_counted() {
        let server = null_server();
        let greeting = vec![vec![String::from("HELLO"), String::from("3")]];
        let target = LoadTarget { address: server.address().into(), greeting };
        let plan =
            Plan { arrivals: Arrivals::Closed, limit: Limit::Requests(50), n_threads: 1, cpus: Vec::new() };
        let workload = Workload { commands: vec![Command::of(&["GET", "{key}"])], ..Workload::default() };
        let compiled = Arc::new(Compiled::new(&workload).expect("the workload makes sense"));
        let outcome = run(&target, &compiled, &plan, &mut |_| {}).expect("the null server answers");
        assert_eq!((outcome.record.n_done(), outcome.record.commands[0].n_nulls), (50, 50));
    }

    #[test]
    fn an_open_loop_sees_a_stall_that_a_closed_loop_hides() {
        let stall = Stall { every: Duration::from_millis(500), lasts: Duration::from_millis(100) };
        let server = NullServer::start(Some(stall)).expect("loopback can be listened on");
        let limit = Limit::Time { warmup: Duration::ZERO, measured: Duration::from_secs(1) };
        let workload = Workload { connections: 5, ..Workload::default() };
        let record = |arrivals| load(&workload, arrivals, limit.clone(), &server).record;
        // A stall takes a fifth of the time, so a fifth of the requests wait up to 100 ms. A machine under
        // load makes them wait for longer, never for less.
        let open = record(Arrivals::Open { rate: 1000.0, shape: Shape::Constant });
        let p99_millis = open.response().value_at_percentile(99.0) as f64 / 1e6;
        assert!(p99_millis > 50.0, "{p99_millis}");
        // In a closed loop nothing is due before it is sent. Requests that a stall keeps from being sent are
        // never measured.
        let closed = record(Arrivals::Closed);
        assert_eq!((closed.slip.max(), closed.response().max()), (0, closed.service.max()));
    }

    #[test]
    fn what_is_published_is_delivered_to_each_consumer() {
        let (_, text) = NAMED.iter().find(|(name, _)| *name == "pubsub").expect("it is one of ours");
        let workload =
            Workload { connections: 2, ..Workload::parse("pubsub", text).expect("it is one of ours") };
        let n_consumers = workload.consumers[0].connections as u64;
        let arrivals = Arrivals::Open { rate: 200.0, shape: Shape::Poisson };
        let limit = Limit::Time { warmup: Duration::ZERO, measured: Duration::from_millis(500) };
        let outcome = load(&workload, arrivals, limit, &null_server());
        // The last message of each connection may still be on its way when the load ends.
        let n_published = outcome.record.n_done();
        assert!(n_published > 0 && outcome.delivery.len() <= n_published * n_consumers);
        assert!(
            outcome.delivery.len() + 2 * n_consumers >= n_published * n_consumers,
            "{}",
            outcome.delivery.len()
        );
    }

    /// PUBLISH to `n_consumers` subscribers of the null server, which count messages of `message_bytes`.
    fn published(n_requests: u64, message_bytes: u64, n_consumers: usize) -> Outcome {
        let subscribe = ["SUBSCRIBE", "c"].map(str::to_owned).to_vec();
        let message_bytes = Some(message_bytes);
        let consumer = Consumer { connections: n_consumers, args: subscribe, repeat: false, message_bytes };
        let workload = Workload {
            connections: 2,
            pipeline: 16,
            commands: vec![Command::of(&["PUBLISH", "c", "hello"])],
            consumers: vec![consumer],
            ..Workload::default()
        };
        load(&workload, Arrivals::Closed, Limit::Requests(n_requests), &null_server())
    }

    #[test]
    fn messages_of_one_size_are_all_waited_for_and_counted() {
        let message = "*3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$5\r\nhello\r\n";
        let outcome = published(1000, message.len() as u64, 3);
        assert_eq!((outcome.n_delivered, outcome.n_lost), (3000, 0));
    }

    #[test]
    fn messages_that_do_not_arrive_are_lost() {
        // Each message counts as half of one, as if half of the messages had not come.
        let message = "*3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$5\r\nhello\r\n";
        let outcome = published(10, 2 * message.len() as u64, 1);
        assert_eq!((outcome.n_delivered, outcome.n_lost), (5, 5));
    }

    #[test]
    fn a_load_ends_when_it_is_told_and_waits_for_its_last_replies() {
        let told = Arc::new(AtomicBool::new(false));
        let server = null_server();
        let compiled = Arc::new(Compiled::new(&Workload::default()).expect("it makes sense"));
        let limit = Limit::Told(Arc::clone(&told));
        let plan = Plan { arrivals: Arrivals::Closed, limit, n_threads: 1, cpus: Vec::new() };
        let target = LoadTarget::plain(server.address());
        let outcome = run(&target, &compiled, &plan, &mut |_| told.store(true, Ordering::Relaxed));
        let record = outcome.expect("the null server answers").record;
        assert!(record.n_done() > 0);
        assert_eq!((record.n_sent, record.n_unanswered), (record.n_done(), 0));
    }

    /// Answers one connection's batches by the script, one entry for each batch.
    fn scripted(script: &'static [&'static [u8]]) -> (LoadTarget, thread::JoinHandle<()>) {
        let listener = TcpListener::bind(("127.0.0.1", 0)).expect("loopback can be listened on");
        let address = listener.local_addr().expect("it listens").into();
        let serving = thread::spawn(move || {
            let mut connection = listener.accept().expect("a load connects").0;
            for reply in script {
                let n_bytes = connection.read(&mut [0; 4096]).expect("a batch is sent");
                assert!(n_bytes > 0, "a batch for each part of the script");
                connection.write_all(reply).expect("the load reads");
            }
        });
        (LoadTarget { address, greeting: Vec::new() }, serving)
    }

    /// Runs `command` over one connection, `n_requests` times.
    fn run_scripted(command: Command, n_requests: u64, script: &'static [&'static [u8]]) -> Record {
        let (target, serving) = scripted(script);
        let workload = Workload { connections: 1, commands: vec![command], ..Workload::default() };
        let compiled = Arc::new(Compiled::new(&workload).expect("the workload makes sense"));
        let limit = Limit::Requests(n_requests);
        let plan = Plan { arrivals: Arrivals::Closed, limit, n_threads: 1, cpus: Vec::new() };
        let outcome = run(&target, &compiled, &plan, &mut |_| {}).expect("the script answers");
        serving.join().expect("the script is played to its end");
        outcome.record
    }

    fn incr() -> Vec<String> {
        ["INCR", "{key}"].map(str::to_owned).to_vec()
    }

    #[test]
    fn an_error_inside_the_reply_of_exec_fails_the_transaction() {
        let command = Command { transaction: vec![incr(), incr()], ..Command::default() };
        let script: &[&[u8]] = &[
            b"+OK\r\n+QUEUED\r\n+QUEUED\r\n*2\r\n:1\r\n:2\r\n",
            b"+OK\r\n+QUEUED\r\n+QUEUED\r\n*2\r\n:3\r\n-WRONGTYPE no\r\n",
            b"+OK\r\n+QUEUED\r\n-ERR arity\r\n-EXECABORT no\r\n",
        ];
        let record = run_scripted(command, 3, script);
        assert_eq!((record.n_done(), record.n_errors(), record.n_answered), (1, 2, 3));
        let texts: Vec<_> = record.errors.iter().map(|(text, n_times)| (text.as_str(), *n_times)).collect();
        assert_eq!(texts, [("ERR arity", 1), ("EXECABORT no", 1), ("WRONGTYPE no", 1)]);
    }

    #[test]
    fn a_changed_watched_key_repeats_the_transaction_and_is_no_error() {
        let command =
            Command { watch: vec![String::from("{key}")], transaction: vec![incr()], ..Command::default() };
        let script: &[&[u8]] = &[
            b"+OK\r\n",
            b"+OK\r\n+QUEUED\r\n*-1\r\n",
            b"+OK\r\n",
            b"+OK\r\n+QUEUED\r\n*1\r\n:1\r\n",
            b"+OK\r\n",
            b"+OK\r\n+QUEUED\r\n*1\r\n-WRONGTYPE no\r\n",
        ];
        let record = run_scripted(command, 2, script);
        assert_eq!((record.n_conflicts, record.n_done(), record.n_errors()), (1, 1, 1));
    }

    #[test]
    fn a_server_that_is_not_there_is_an_error() {
        let address = null_server().address().into();
        let target = LoadTarget { address, greeting: Vec::new() };
        let plan =
            Plan { arrivals: Arrivals::Closed, limit: Limit::Requests(1), n_threads: 1, cpus: Vec::new() };
        let compiled = Arc::new(Compiled::new(&Workload::default()).expect("it makes sense"));
        assert!(run(&target, &compiled, &plan, &mut |_| {}).is_err());
    }
}
