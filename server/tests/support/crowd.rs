//! Many clients at once, and waiting for what they bring about.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::{Client, PATIENCE, Server};

/// Runs `part` for each of so many clients at the same time, and gives what they return, in their order.
pub fn crowd<T: Send>(
    server: &Server,
    n_clients: usize,
    part: impl Fn(usize, &mut Client) -> T + Sync,
) -> Vec<T> {
    let part = &part;
    thread::scope(|scope| {
        let parts: Vec<_> = (0..n_clients)
            .map(|id| {
                let mut client = server.connect();
                scope.spawn(move || part(id, &mut client))
            })
            .collect();
        parts
            .into_iter()
            .map(|part| part.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect()
    })
}

/// Asks again and again until `holds` says yes.
///
/// # Panics
/// When it never does.
pub fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < deadline, "this has not come about: {what}");
        thread::sleep(Duration::from_millis(2));
    }
}

/// Where so many threads wait for each other, again and again. Unlike a [`std::sync::Barrier`] it gives up on one that
/// has panicked.
pub struct Meeting {
    size: usize,
    n_arrived: AtomicUsize,
}

impl Meeting {
    /// A meeting of `size` threads.
    pub fn of(size: usize) -> Meeting {
        Meeting { size, n_arrived: AtomicUsize::new(0) }
    }

    /// Waits until all are here.
    ///
    /// # Panics
    /// When someone does not come.
    pub fn wait(&self) {
        let turn = self.n_arrived.fetch_add(1, Ordering::SeqCst) / self.size;
        let deadline = Instant::now() + PATIENCE;
        while self.n_arrived.load(Ordering::SeqCst) < (turn + 1) * self.size {
            assert!(Instant::now() < deadline, "someone has not come");
            thread::yield_now();
        }
    }
}

/// Sends a command given as one line of words, and gives its reply in the notation of the transcripts.
pub fn ask(client: &mut Client, line: &str) -> String {
    client.command(&words(line)).to_string()
}

/// Sends a command given as one line of words.
pub fn tell(client: &mut Client, line: &str) {
    client.send(&words(line));
}

fn words(line: &str) -> Vec<&str> {
    line.split(' ').collect()
}

/// A number of INFO debug.
pub fn figure(client: &mut Client, name: &str) -> usize {
    let info = client.command(&["INFO", "debug"]).text().expect("INFO answers text");
    let line = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.and_then(|number| number.parse().ok()).unwrap_or_else(|| panic!("no {name} in {info}"))
}

/// Has connections go to other threads, by turns to one and to so many, until some have gone or it `is_over`.
pub fn move_connections(client: &mut Client, n_threads: usize, is_over: impl Fn() -> bool) {
    let n_moved = figure(client, "connections_handed_over");
    let mut turns = [1, n_threads].into_iter().cycle();
    until("connections move", || {
        let n_in_use = turns.next().expect("it goes on for ever");
        assert_eq!(ask(client, &format!("DEBUG IO-THREADS-IN-USE {n_in_use}")), "+OK");
        is_over() || figure(client, "connections_handed_over") > n_moved
    });
}

/// Sets a flag when it is dropped, also by a panic.
pub struct AtEnd<'a>(pub &'a AtomicBool);

impl Drop for AtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Waits until so many clients are connected, the asker included.
pub fn await_clients(client: &mut Client, n: usize) {
    let mut list = String::new();
    until(&format!("{n} clients are connected"), || {
        list = client.command(&["CLIENT", "LIST"]).text().expect("CLIENT LIST answers text");
        list.lines().count() == n
    });
}

/// Threads and shards to try: one, few, and more than the machine has.
pub const LAYOUTS: [(usize, usize); 9] =
    [(1, 1), (1, 16), (1, 1024), (2, 1), (2, 16), (2, 1024), (8, 1), (8, 16), (8, 1024)];

/// A server of so many threads and shards.
pub fn laid_out((io_threads, shards): (usize, usize)) -> Server {
    println!("{io_threads} threads, {shards} shards");
    Server::start(&["--io-threads", &io_threads.to_string(), "--shards", &shards.to_string()])
}
