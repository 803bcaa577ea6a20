//! The waits of GETs while one client sends commands whose work grows with their data.
//!
//! The GETs are of other keys. Every row runs alone, a few times, over values of a million elements or
//! hundreds of megabytes. The figure is the longest wait of any GET. It covers the time from sending the
//! command until a while after its reply, when the memory that it freed is gone as well.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use braid_protocol::Value;
use braid_protocol::request::write_request;

use super::contest::{Contest, on_both};
use crate::bars::measures::{Measure, Target, Unit};
use crate::bars::preload;
use crate::bars::values::{self, Filling, ValueType};
use crate::client::Client;
use crate::engine;
use crate::error::BenchError;
use crate::prober::Prober;
use crate::spawn::Server;

/// Elements of a large value.
const N_MEMBERS: u64 = 1_000_000;
/// The number of times that each row's commands are sent.
const N_TIMES: usize = 2;
/// Connections that send GET in turn.
///
/// A server that distributes connections over several threads has some on each.
const N_GETTERS: usize = 4;
/// The number of keys that GETs request in turn.
const N_KEYS: usize = 64;
/// The pause between two GETs.
const PACE: Duration = Duration::from_micros(300);
/// The time for which GETs run before the commands and after the last reply.
const MARGIN: Duration = Duration::from_millis(20);

/// Commands that are sent at once, and their preparation. All are written as words.
struct Row {
    name: &'static str,
    /// Commands that are answered before the GETs begin.
    prepare: &'static [&'static str],
    commands: &'static [&'static str],
    /// The number of repetitions of the commands in the pipeline.
    n_repeated: usize,
    target: Target,
}

const TARGET: Target = Target::value(15.0).and_ratio(0.3);

const fn alone(name: &'static str, commands: &'static [&'static str]) -> Row {
    Row { name, prepare: &[], commands, n_repeated: 1, target: TARGET }
}

const fn piped(name: &'static str, commands: &'static [&'static str]) -> Row {
    Row { n_repeated: 32, ..alone(name, commands) }
}

/// Makes a row for a command that uses up a value. It works on a copy.
const fn after(
    name: &'static str,
    prepare: &'static [&'static str],
    commands: &'static [&'static str],
) -> Row {
    Row { prepare, ..alone(name, commands) }
}

const ROWS: &[Row] = &[
    // The waits of a GET without a slow command, caused by the machine itself.
    Row { target: Target::NONE, ..alone("PING", &["PING"]) },
    alone("LCS", &["LCS text text2 LEN"]),
    alone("ZUNIONSTORE in MULTI", &["MULTI", "ZUNIONSTORE stored 2 zset:0 zset:1", "EXEC"]),
    alone("COPY", &["COPY set stored REPLACE"]),
    alone("COPY, keys of its shard", &["COPY set {other}stored REPLACE"]),
    after("SPOP", &["COPY set spent REPLACE"], &["SPOP spent 900000"]),
    alone("BITOP", &["BITOP NOT stored bytes"]),
    alone("GET 200 MB", &["GET bytes"]),
    alone("GET 512 MB", &["GET gigantic"]),
    alone("SUBSTR", &["SUBSTR bytes 0 -1"]),
    after("ZREMRANGEBYRANK", &["COPY zset:0 spent REPLACE"], &["ZREMRANGEBYRANK spent 0 -1"]),
    alone("SORT", &["SORT list"]),
    alone("SORT in MULTI", &["MULTI", "SORT list", "EXEC"]),
    alone("XREVRANGE", &["XREVRANGE stream + -"]),
    alone("GEOSEARCH", &["GEOSEARCH geo FROMLONLAT 0 0 BYRADIUS 20000 KM"]),
    alone("LREM", &["LREM list 0 missing"]),
    alone("LPOS", &["LPOS list missing"]),
    piped("LPOS, 32 in a pipeline", &["LPOS list missing"]),
    alone("LINSERT", &["LINSERT list BEFORE missing x"]),
    alone("DUMP", &["DUMP set"]),
    // The command is short on both servers, so the other's wait is too short for a ratio.
    Row { target: Target::value(15.0), ..after("LTRIM", &["COPY list spent REPLACE"], &["LTRIM spent 0 0"]) },
    alone("SINTERCARD", &["SINTERCARD 2 set set"]),
    alone("ZDIFF", &["ZDIFF 2 zset:0 zset:1"]),
    alone("HRANDFIELD", &["HRANDFIELD hash 900000"]),
    alone("XINFO FULL", &["XINFO STREAM stream FULL COUNT 0"]),
    alone("XAUTOCLAIM", &["XAUTOCLAIM stream group other 0 0 COUNT 1000000"]),
    // This command is short as well.
    Row { target: Target::value(15.0), ..piped("OBJECT, 32 in a pipeline", &["OBJECT ENCODING set"]) },
    after("DEL", &["COPY zset:0 spent REPLACE"], &["DEL spent"]),
    alone("LINDEX 100 MB", &["LINDEX long-elements 0"]),
    alone("HGET 100 MB", &["HGET long-fields field"]),
];

/// Rows whose request is one long argument.
const N_SET_BYTES: [(&str, usize); 2] = [("SET 200 MB", 200 << 20), ("SET 512 MB", 512 << 20)];

/// Runs every row on both servers.
pub(super) fn run(contest: &Contest, bar: &str) -> Result<Vec<Measure>, BenchError> {
    let servers = contest.start_both(&[])?;
    on_both(&servers, fill)?;
    let names = ROWS.iter().map(|row| (row.name, row.target));
    let names = names.chain(N_SET_BYTES.map(|(name, _)| (name, TARGET)));
    let measures = names.map(|(name, target)| Measure::new(name, Unit::Millis, target)).collect();
    contest.rounds(bar, contest.few_rounds(), measures, |side| {
        let address = side.of(&servers).address();
        let rows = ROWS.iter().map(|row| {
            let commands = row.commands.repeat(row.n_repeated);
            worst_get(address, row.name, row.prepare, &encoded(&commands), commands.len())
        });
        let long_arguments =
            N_SET_BYTES.into_iter().map(|(name, n_bytes)| worst_get(address, name, &[], &set_of(n_bytes), 1));
        rows.chain(long_arguments).collect()
    })
}

fn encoded(commands: &[&str]) -> Vec<u8> {
    let mut out = Vec::new();
    for command in commands {
        let argv: Vec<_> = command.split(' ').map(str::as_bytes).collect();
        write_request(&mut out, &argv);
    }
    out
}

fn set_of(n_bytes: usize) -> Vec<u8> {
    let mut out = Vec::new();
    write_request(&mut out, &[&b"SET"[..], b"stored", &vec![b'x'; n_bytes]]);
    out
}

/// Returns the name of a requested key.
///
/// The hash tag puts all of them into one shard of Braid's. A large value is therefore rarely in the same
/// shard as one of them. There a GET may wait as long as its shard is held.
fn getter_key(nth: usize) -> Vec<u8> {
    format!("{{other}}:{}", nth % N_KEYS).into_bytes()
}

/// Makes all values.
fn fill(server: &Server) -> Result<(), BenchError> {
    let address = server.address();
    let types = [
        (ValueType::Set, "set", 1),
        (ValueType::Hash, "hash", 1),
        (ValueType::List, "list", 1),
        (ValueType::SortedSet, "zset", 2),
    ];
    for (value_type, name, n_keys) in types {
        let member = move |index: u64| match value_type {
            ValueType::List => values::scrambled(index).to_string().into_bytes(),
            _ => values::eight_bytes(b'm', index).to_vec(),
        };
        let key = move |index| if n_keys == 1 { name.to_owned() } else { format!("{name}:{index}") };
        Filling { value_type, n_keys, n_members: N_MEMBERS, key, member }.fill(address)?;
    }
    preload::pipeline(address, N_MEMBERS, |index, out| {
        let degrees = |index| (values::scrambled(index) % 160) as i64 - 80;
        let [longitude, latitude] = [degrees(index), degrees(index + N_MEMBERS)].map(|n| n.to_string());
        let member = values::eight_bytes(b'm', index);
        write_request(out, &[b"GEOADD", &b"geo"[..], longitude.as_bytes(), latitude.as_bytes(), &member]);
    })?;
    preload::pipeline(address, N_MEMBERS, |_, out| {
        write_request(out, &[&b"XADD"[..], b"stream", b"*", b"field", b"value"]);
    })?;
    let mut client = Client::connect(address)?;
    for first in [b'a', b'b'] {
        let text: Vec<_> = (0..11_000).map(|nth| first + (values::scrambled(nth) % 4) as u8).collect();
        let key = if first == b'a' { &b"text"[..] } else { b"text2" };
        client.call(&[b"SET", key, &text])?;
    }
    let long = vec![b'x'; 100 << 20];
    client.call(&[&b"RPUSH"[..], b"long-elements", &long])?;
    client.call(&[&b"HSET"[..], b"long-fields", b"field", &long])?;
    make_getter_keys(&mut client)?;
    client.call_encoded(
        "make the values",
        &encoded(&[
            "SETRANGE bytes 209715199 x",
            "SETRANGE gigantic 536870911 x",
            "XGROUP CREATE stream group 0",
            "XREADGROUP GROUP group reader STREAMS stream >",
        ]),
        4,
    )
}

/// Makes the keys that GETs request.
pub(super) fn make_getter_keys(client: &mut Client) -> Result<(), BenchError> {
    for nth in 0..N_KEYS {
        client.call(&[&b"SET"[..], &getter_key(nth), b"value"])?;
    }
    Ok(())
}

/// Sends the commands a few times, and returns the longest wait of a GET meanwhile.
///
/// The wait is in milliseconds.
fn worst_get(
    address: SocketAddr,
    name: &str,
    prepare: &[&str],
    commands: &[u8],
    n_replies: usize,
) -> Result<f64, BenchError> {
    let mut client = Client::connect(address)?;
    let mut longest = Duration::ZERO;
    for _ in 0..N_TIMES {
        client.call_encoded(name, &encoded(prepare), prepare.len())?;
        longest =
            longest.max(longest_get(address, || client.call_encoded(name, commands, n_replies).map(|_| ()))?);
    }
    let millis = longest.as_secs_f64() * 1e3;
    eprintln!("  {name}: {millis:.1} ms");
    Ok(millis)
}

/// Runs a task, and returns the longest wait of a GET meanwhile.
///
/// [`make_getter_keys`] must have made the keys.
pub(super) fn longest_get(
    address: SocketAddr,
    work: impl FnOnce() -> Result<(), BenchError>,
) -> Result<Duration, BenchError> {
    longest_answer(address, |reply| matches!(reply, Value::Bulk(_)), work)
}

/// Runs a task that may remove the keys, and returns the longest wait of a GET.
pub(super) fn longest_get_of_any(
    address: SocketAddr,
    work: impl FnOnce() -> Result<(), BenchError>,
) -> Result<Duration, BenchError> {
    longest_answer(address, |reply| matches!(reply, Value::Bulk(_) | Value::NullBulk), work)
}

fn longest_answer(
    address: SocketAddr,
    is_answer: fn(&Value) -> bool,
    work: impl FnOnce() -> Result<(), BenchError>,
) -> Result<Duration, BenchError> {
    let target = engine::LoadTarget::plain(address);
    let question = |nth| vec![b"GET".to_vec(), getter_key(nth)];
    let prober = Prober { n_connections: N_GETTERS, pace: PACE, question: &question, is_answer };
    thread::sleep(MARGIN);
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let getting = scope.spawn(|| prober.longest_wait(&target, &is_over, || Ok(())));
        thread::sleep(MARGIN);
        let done = work();
        thread::sleep(MARGIN);
        is_over.store(true, Ordering::SeqCst);
        let waited = getting.join().expect("a getter does not panic");
        done.and(waited)
    })
}
