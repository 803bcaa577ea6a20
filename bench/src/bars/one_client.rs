//! The waits of GETs during requests about very many keys, databases or replies.
//!
//! The GETs are of another key. One client sends these requests, or many clients together.

use std::{net::SocketAddr, thread, time::Duration};

use braid_protocol::{Value, request::write_request};

use super::{
    contest::Contest,
    long_work::{longest_get, longest_get_of_any, make_getter_keys},
};
use crate::{
    bars::measures::{Measure, Target, Unit},
    client::{Client, wrong_reply},
    error::BenchError,
};

/// The number of databases with keys.
const N_DATABASES: usize = 10_000;
/// The number of keys in each of these databases.
const N_KEYS_EACH: usize = 10;
/// The number of clients that wait for the same keys.
const N_WAITING: usize = 300;
/// The number of keys for which they wait.
const N_AWAITED: usize = 1000;
/// The number of replies that the client does not read.
const N_UNREAD: usize = 2000;
/// The time for which such replies are produced while another client's GETs are measured.
const UNREAD_FOR: Duration = Duration::from_secs(2);

type Work = fn(SocketAddr) -> Result<Duration, BenchError>;

/// The rows. Each prepares its data, and its clients have left at its end.
const ROWS: [(&str, Work); 10] = [
    ("WATCH of 50,000 keys", watch),
    ("300 clients begin to wait for 1000 keys", begin_to_wait),
    ("MSET of 1000 keys that 300 clients wait for", write_awaited),
    ("EXEC of 1900 pushes that 2000 clients wait for", push_awaited),
    ("3000 XADDs beside 2000 XREADs of later entries", add_entries),
    ("a client with 200,000 channels leaves", leave_channels),
    ("2000 GETs of 1 MiB that nobody reads", unread),
    ("BGSAVE of 10,000 databases", |address| beside(address, &[b"BGSAVE"])),
    ("INFO with 10,000 databases", |address| beside(address, &[b"INFO", b"everything"])),
    ("FLUSHALL of 10,000 databases", |address| beside(address, &[b"FLUSHALL"])),
];

/// Runs every row on both servers.
pub(super) fn run(contest: &Contest, bar: &str) -> Result<Vec<Measure>, BenchError> {
    let databases = N_DATABASES.to_string();
    let servers = contest.start_both(&["--databases", &databases, "--maxclients", "3000"])?;
    let target = Target::value(15.0);
    let measures = ROWS.iter().map(|(name, _)| Measure::new(*name, Unit::Millis, target)).collect();
    contest.rounds(bar, contest.few_rounds(), measures, |side| {
        let address = side.of(&servers).address();
        let mut client = Client::connect(address)?;
        make_getter_keys(&mut client)?;
        fill_databases(&mut client)?;
        let wait = |(name, work): &(&str, Work)| {
            let millis = work(address)?.as_secs_f64() * 1e3;
            eprintln!("  {name}: {millis:.1} ms");
            Ok(millis)
        };
        ROWS.iter().map(wait).collect()
    })
}

/// Makes the keys of all databases.
fn fill_databases(client: &mut Client) -> Result<(), BenchError> {
    for db in 0..N_DATABASES {
        let mut requests = Vec::new();
        write_request(&mut requests, &["SELECT", &db.to_string()]);
        (0..N_KEYS_EACH)
            .for_each(|key| write_request(&mut requests, &["SET", &format!("key:{key}"), "value"]));
        client.call_encoded("SELECT and SET", &requests, 1 + N_KEYS_EACH)?;
    }
    Ok(())
}

fn awaited(nth: usize) -> Vec<u8> {
    format!("awaited:{nth}").into_bytes()
}

fn beside(address: SocketAddr, command: &[&[u8]]) -> Result<Duration, BenchError> {
    let mut client = Client::connect(address)?;
    longest_get_of_any(address, || {
        client.call(command)?;
        // A snapshot continues after its command has been answered.
        while client.info_figure("rdb_bgsave_in_progress")? > 0.0 {
            thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    })
}

fn watch(address: SocketAddr) -> Result<Duration, BenchError> {
    let mut client = Client::connect(address)?;
    let keys = (0..50_000).map(|nth| format!("watched:{nth}").into_bytes());
    let words: Vec<Vec<u8>> = [b"WATCH".to_vec()].into_iter().chain(keys).collect();
    longest_get(address, || {
        client.call(&words)?;
        client.call(&["UNWATCH"]).map(|_| ())
    })
}

/// Makes clients that wait for keys with BLPOP, and returns them.
fn waiting(address: SocketAddr, n_clients: usize, n_keys: usize) -> Result<Vec<Client>, BenchError> {
    let keys = (0..n_keys).map(awaited);
    let words: Vec<Vec<u8>> = [b"BLPOP".to_vec()].into_iter().chain(keys).chain([b"0".to_vec()]).collect();
    waiting_with(address, n_clients, &words)
}

/// Makes clients that wait with a command, and returns them.
fn waiting_with(
    address: SocketAddr,
    n_clients: usize,
    words: &[impl AsRef<[u8]>],
) -> Result<Vec<Client>, BenchError> {
    let mut control = Client::connect(address)?;
    let mut request = Vec::new();
    write_request(&mut request, words);
    let mut clients = Vec::new();
    for _ in 0..n_clients {
        let mut client = Client::connect(address)?;
        client.send(&request)?;
        clients.push(client);
    }
    while n_blocked(&mut control)? < n_clients {
        thread::sleep(Duration::from_millis(1));
    }
    Ok(clients)
}

/// Returns the number of blocked clients.
fn n_blocked(control: &mut Client) -> Result<usize, BenchError> {
    let argv = ["INFO", "clients"];
    let reply = control.call(&argv)?;
    let text = if let Value::Bulk(text) = &reply { String::from_utf8_lossy(text) } else { "".into() };
    let line = text.lines().find_map(|line| line.strip_prefix("blocked_clients:"));
    line.and_then(|number| number.parse().ok()).ok_or_else(|| wrong_reply(&argv, &reply))
}

/// Closes the waiting clients, and waits until the server counts none.
fn part(address: SocketAddr, clients: Vec<Client>) -> Result<(), BenchError> {
    drop(clients);
    let mut control = Client::connect(address)?;
    while n_blocked(&mut control)? > 0 {
        thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

fn begin_to_wait(address: SocketAddr) -> Result<Duration, BenchError> {
    let mut clients = Vec::new();
    let waited = longest_get(address, || {
        clients = waiting(address, N_WAITING, N_AWAITED)?;
        Ok(())
    });
    part(address, clients)?;
    waited
}

fn write_awaited(address: SocketAddr) -> Result<Duration, BenchError> {
    let clients = waiting(address, N_WAITING, N_AWAITED)?;
    let mut client = Client::connect(address)?;
    let pairs = (0..N_AWAITED).flat_map(|nth| [awaited(nth), b"value".to_vec()]);
    let words: Vec<Vec<u8>> = [b"MSET".to_vec()].into_iter().chain(pairs).collect();
    let waited = longest_get(address, || client.call(&words).map(|_| ()));
    part(address, clients)?;
    let keys = (0..N_AWAITED).map(awaited);
    client.call(&[b"DEL".to_vec()].into_iter().chain(keys).collect::<Vec<_>>())?;
    waited
}

fn push_awaited(address: SocketAddr) -> Result<Duration, BenchError> {
    let clients = waiting(address, 2000, 1)?;
    let mut client = Client::connect(address)?;
    let mut requests = Vec::new();
    write_request(&mut requests, &["MULTI"]);
    for _ in 0..1900 {
        write_request(&mut requests, &[&b"RPUSH"[..], &awaited(0), b"x"]);
    }
    write_request(&mut requests, &["EXEC"]);
    let waited = longest_get(address, || client.call_encoded("push", &requests, 1902));
    part(address, clients)?;
    waited
}

fn add_entries(address: SocketAddr) -> Result<Duration, BenchError> {
    const N_ENTRIES: usize = 3000;
    let clients =
        waiting_with(address, 2000, &["XREAD", "BLOCK", "0", "STREAMS", "stream", "99999999999999-0"])?;
    let mut client = Client::connect(address)?;
    let mut requests = Vec::new();
    (0..N_ENTRIES).for_each(|_| write_request(&mut requests, &["XADD", "stream", "*", "field", "value"]));
    let waited = longest_get(address, || client.call_encoded("XADD", &requests, N_ENTRIES));
    part(address, clients)?;
    client.call(&["DEL", "stream"])?;
    waited
}

fn leave_channels(address: SocketAddr) -> Result<Duration, BenchError> {
    const N_AT_ONCE: usize = 20_000;
    let mut control = Client::connect(address)?;
    let mut subscriber = Client::connect(address)?;
    for nth in 0..10 {
        let names = (0..N_AT_ONCE).map(|channel| format!("channel:{nth}:{channel}"));
        let words: Vec<String> = ["SUBSCRIBE".to_owned()].into_iter().chain(names).collect();
        let mut request = Vec::new();
        write_request(&mut request, &words);
        subscriber.call_encoded("SUBSCRIBE", &request, N_AT_ONCE)?;
    }
    longest_get(address, || {
        drop(subscriber);
        while control.info_figure("pubsub_channels")? > 0.0 {
            thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    })
}

fn unread(address: SocketAddr) -> Result<Duration, BenchError> {
    let mut client = Client::connect(address)?;
    client.call(&[&b"SET"[..], b"long", &vec![b'x'; 1 << 20]])?;
    let mut requests = Vec::new();
    (0..N_UNREAD).for_each(|_| write_request(&mut requests, &["GET", "long"]));
    longest_get(address, || {
        client.send(&requests)?;
        thread::sleep(UNREAD_FOR);
        Ok(())
    })
}
