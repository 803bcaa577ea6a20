//! The cost of reading metrics ten times a second.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use super::contest::{Contest, Side, VALUE, load_keys};
use super::cpu_types::wait_for_rest;
use crate::bars::measures::{Measure, Target, Unit};
use crate::error::{BenchError, Doing};
use crate::process::CpuSample;
use crate::spawn;

const NAMES: [&str; 2] = ["scraped", "not scraped"];
const EVERY: Duration = Duration::from_millis(100);
/// The longest wait for an answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// Measures the processor time for reading the metrics of an idle server.
///
/// Both columns are Braid with a million keys and no load. Its metrics are read in the first column and not
/// in the second.
pub(super) fn run(contest: &Contest, bar: &str) -> Result<Vec<Measure>, BenchError> {
    let port = spawn::free_port()?;
    let server = contest.start_braid(contest.n_io_threads, &["--metrics-port", &port.to_string()])?;
    load_keys(&server, VALUE)?;
    let metrics = SocketAddr::from((server.address().ip(), port));
    let measures = vec![
        Measure::new("share of a core", Unit::Percent, Target::value(1.0)),
        Measure::new("answers", Unit::Count, Target::NONE),
    ];
    contest.rounds_named(NAMES, bar, contest.few_rounds(), measures, |side| {
        wait_for_rest(&server)?;
        let (before, began) = (CpuSample::of(server.pid())?, Instant::now());
        let mut n_answers = 0;
        for nth in 1.. {
            if side == Side::Braid {
                scrape(metrics)?;
                n_answers += 1;
            }
            thread::sleep((EVERY * nth).saturating_sub(began.elapsed()));
            if began.elapsed() >= contest.load_time() {
                break;
            }
        }
        let used = CpuSample::of(server.pid())?.since(before);
        let share = used.as_secs_f64() / began.elapsed().as_secs_f64();
        Ok(vec![100.0 * share, f64::from(n_answers)])
    })
}

/// Reads all metrics on a separate connection.
fn scrape(address: SocketAddr) -> Result<(), BenchError> {
    let mut answer = String::new();
    let mut ask = || {
        let mut connection = TcpStream::connect(address)?;
        connection.set_read_timeout(Some(PATIENCE))?;
        connection.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
        connection.read_to_string(&mut answer).map(drop)
    };
    ask().doing(format!("read metrics from {address}"))?;
    if answer.starts_with("HTTP/1.1 200") && answer.contains("\nredis_up 1\n") {
        return Ok(());
    }
    let reply = answer.lines().next().unwrap_or_default().to_owned();
    Err(BenchError::WrongReply { request: "GET /metrics".to_owned(), reply })
}
