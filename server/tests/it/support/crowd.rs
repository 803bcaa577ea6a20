//! Many clients at once, and waiting for their effects.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::{Client, PATIENCE, Reply, Server};

/// Runs `part` for `n_clients` clients at the same time. Returns their results in the order of the clients.
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

/// Calls `holds` again and again until it returns true.
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

/// A point where `size` threads wait for each other, any number of times. Unlike a [`std::sync::Barrier`] it
/// gives up on a thread that has panicked.
pub struct Meeting {
    size: usize,
    n_arrived: AtomicUsize,
}

impl Meeting {
    /// Makes a meeting of `size` threads.
    pub fn of(size: usize) -> Meeting {
        Meeting { size, n_arrived: AtomicUsize::new(0) }
    }

    /// Waits until all threads have arrived.
    ///
    /// # Panics
    /// When a thread does not arrive.
    pub fn wait(&self) {
        let turn = self.n_arrived.fetch_add(1, Ordering::SeqCst) / self.size;
        let deadline = Instant::now() + PATIENCE;
        while self.n_arrived.load(Ordering::SeqCst) < (turn + 1) * self.size {
            assert!(Instant::now() < deadline, "someone has not come");
            thread::yield_now();
        }
    }
}

/// Sends a command in one line of words. Returns its reply in the notation of the transcripts.
pub fn ask(client: &mut Client, line: &str) -> String {
    client.command(&words(line)).to_string()
}

/// Sends a command in one line of words.
pub fn tell(client: &mut Client, line: &str) {
    client.send(&words(line));
}

fn words(line: &str) -> Vec<&str> {
    line.split(' ').collect()
}

/// Returns a number of any section of INFO, including those of DEBUG.
pub fn figure(client: &mut Client, name: &str) -> usize {
    let info = client.command(&["INFO", "everything", "debug"]).text().expect("INFO answers text");
    let line = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.and_then(|number| number.parse().ok()).unwrap_or_else(|| panic!("no {name} in {info}"))
}

/// Moves connections to one thread and to `n_threads` in turn. Ends when some have moved or it `is_over`.
pub fn move_connections(client: &mut Client, n_threads: usize, is_over: impl Fn() -> bool) {
    let n_moved = figure(client, "connections_handed_over");
    let mut turns = [1, n_threads].into_iter().cycle();
    until("connections move", || {
        let n_in_use = turns.next().expect("it goes on for ever");
        assert_eq!(ask(client, &format!("DEBUG IO-THREADS-IN-USE {n_in_use}")), "+OK");
        is_over() || figure(client, "connections_handed_over") > n_moved
    });
}

/// Runs `part` while connections move between threads. Repeats it until a connection has moved meanwhile.
pub fn while_connections_move(server: &Server, n_threads: usize, mut part: impl FnMut()) {
    let is_over = AtomicBool::new(false);
    let (mut mover, mut control) = (server.connect(), server.connect());
    let n_moved = figure(&mut control, "connections_handed_over");
    thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                move_connections(&mut mover, n_threads, || is_over.load(Ordering::Relaxed));
            }
        });
        let _over = AtEnd(&is_over);
        loop {
            part();
            if figure(&mut control, "connections_handed_over") > n_moved {
                return;
            }
        }
    });
}

/// Adds members to a set: `member-0` and so on.
pub fn fill_set(client: &mut Client, key: &str, n_members: usize) {
    for first in (0..n_members).step_by(1000) {
        let members = (first..n_members.min(first + 1000)).map(|member| format!("member-{member}"));
        let argv: Vec<String> = ["SADD".to_owned(), key.to_owned()].into_iter().chain(members).collect();
        client.command(&argv);
    }
}

/// Returns the number of elements of an array or a set.
///
/// # Panics
/// When the reply is neither.
pub fn n_elements(reply: &Reply) -> usize {
    match reply {
        Reply::Array(elements) | Reply::Set(elements) => elements.len(),
        other => panic!("neither an array nor a set: {other}"),
    }
}

/// Sets a flag when dropped, also by a panic.
pub struct AtEnd<'a>(pub &'a AtomicBool);

impl Drop for AtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Waits until `n` clients are connected, including `client`.
pub fn await_clients(client: &mut Client, n: usize) {
    let mut list = String::new();
    until(&format!("{n} clients are connected"), || {
        list = client.command(&["CLIENT", "LIST"]).text().expect("CLIENT LIST answers text");
        list.lines().count() == n
    });
}

/// Numbers of threads and shards to try: one, few, and more than the machine has.
pub const LAYOUTS: [(usize, usize); 9] =
    [(1, 1), (1, 16), (1, 1024), (2, 1), (2, 16), (2, 1024), (8, 1), (8, 16), (8, 1024)];

/// Starts a server with these numbers of threads and shards.
pub fn laid_out((io_threads, shards): (usize, usize)) -> Server {
    println!("{io_threads} threads, {shards} shards");
    Server::start(&["--io-threads", &io_threads.to_string(), "--shards", &shards.to_string()])
}

/// Plays a scenario on a new server of each layout.
pub fn everywhere(scenario: impl Fn(&Server)) {
    LAYOUTS.into_iter().for_each(|layout| scenario(&laid_out(layout)));
}
