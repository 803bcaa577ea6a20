//! Whole servers that run under a seed: threads, sockets, clients and time.
//!
//! One thread of the system takes all parts in turns. It runs a turn of an I/O thread that the system would
//! wake, or of a heavy-work thread. It lets a client send, receive, leave or connect. It holds shards while
//! others have their turns, hands connections over, and lets time pass. The seed decides each time, and what
//! is decided repeats.
//!
//! Each client knows which replies it must receive ([`clients`]). A thread that sleeps has its turn only when
//! its event queue is due or its time is up, so a lost wake-up leaves a client without its reply. When all
//! clients have left, nothing of them may be left in the server.

mod clients;

use std::{
    collections::BTreeSet,
    ffi::OsString,
    fmt::Write,
    io,
    net::{Ipv4Addr, SocketAddr},
    panic::{self, AssertUnwindSafe},
    process::Command,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use braid_storage::{
    glob::{Case, glob_match},
    observers::channels::ChannelKind,
    sync::coordinator::{Weight, Worker},
    table::hash::ShardId,
};

use self::clients::{Shared, SimulatedClient};
use super::IoThread;
use crate::{
    boot,
    client::{
        connection::Connection,
        id::Endpoint,
        node::Job,
        state::{ConnectionState, taken},
    },
    clock::{Instant, simulated},
    command::{self, TABLE},
    config::{Config, Host, Launch, Supervised, launch},
    net::{
        accept::welcome,
        heavy::{HeavyThread, Sleep},
    },
    random::{self, random_below},
    shared::{
        server::{Process, Server},
        thread_state::ThreadState,
    },
    sockets::{
        poller::Poller,
        simulated::{SimulatedPoll, pair},
        stream::{Accepted, Speaks, Stream},
    },
};

/// The I/O threads of a simulated server.
const N_THREADS: usize = 3;
/// The heavy-work threads that have turns.
const N_HEAVY: usize = 2;
/// The servers that a test starts. A server is never freed, nor are its descriptors.
const N_SERVERS: u64 = 20;
/// The clients that connect in one schedule at most.
const CLIENTS_MAX: usize = 5;
/// The time after which a client without its reply counts as forgotten.
const PATIENCE: Duration = Duration::from_secs(20);

/// An I/O thread, and its sleep.
struct Sleeper {
    thread: IoThread,
    /// The time at which it wakes by itself.
    wakes_at: Instant,
}

impl Sleeper {
    fn is_due(&mut self) -> bool {
        let Poller::Simulated(poll) = &mut self.thread.poller else { unreachable!("it is simulated") };
        poll.is_due() || Instant::now() >= self.wakes_at
    }

    fn turn(&mut self) {
        self.thread.turn(Duration::ZERO).expect("a simulated queue does not fail");
        let Poller::Simulated(poll) = &mut self.thread.poller else { unreachable!("it is simulated") };
        poll.forget_closed();
        self.wakes_at = Instant::now() + self.thread.prepare_to_wait();
    }
}

/// A server with its threads, and a thread that only holds shards.
struct World {
    server: &'static Server,
    threads: Vec<Sleeper>,
    heavy: Vec<HeavyThread>,
    holder: Option<Worker<Job>>,
    clients: Vec<SimulatedClient>,
    shared: Shared,
    /// The decisions of this schedule, to compare with a repetition.
    trace: String,
}

impl World {
    fn new(seed: u64) -> Self {
        random::seed(seed);
        simulated::begin();
        let config = config();
        let users = command::users_at_start(&config, &TABLE).expect("there are no users to declare");
        let (server, mut polls, _parkers) =
            boot::build(config, users, Vec::new(), None, own_process()).expect("the system has descriptors");
        polls.truncate(N_THREADS);
        let threads = polls.into_iter().enumerate().map(|(index, poll)| {
            let poller = Poller::Simulated(SimulatedPoll::new(poll));
            Sleeper { thread: IoThread::new(server, index, poller), wakes_at: Instant::now() }
        });
        let threads: Vec<Sleeper> = threads.collect();
        server.spread.use_all();
        let heavy = (0..N_HEAVY).map(|nth| HeavyThread::new(server, N_THREADS + nth)).collect();
        let last = server.threads.len() - 1;
        let holder = Worker::new(Arc::clone(&server.engine), Weight::Light, ThreadState::new(last, server));
        Self {
            server,
            threads,
            heavy,
            holder: Some(holder),
            clients: Vec::new(),
            shared: Shared::default(),
            trace: String::new(),
        }
    }

    /// Runs one schedule, from its clients' first bytes until nothing is left of them.
    fn run(&mut self, seed: u64) -> String {
        random::seed(seed);
        self.trace.clear();
        self.shared = Shared::new(seed);
        let n_steps = 40 + random_below(160);
        for _ in 0..n_steps {
            self.step();
        }
        self.finish();
        self.audit();
        self.part();
        std::mem::take(&mut self.trace)
    }

    /// Takes one decision.
    fn step(&mut self) {
        match random_below(21) {
            0 if self.clients.len() < CLIENTS_MAX => self.connect(),
            1 => self.hold_shards(),
            2 => self.hand_over(),
            3 => self.kill(),
            4 => simulated::pass(Duration::from_micros(1 << random_below(16))),
            5..9 => self.let_a_client_act(),
            _ => {
                self.let_a_thread_work();
            }
        }
    }

    fn note(&mut self, what: &str, which: usize) {
        let _ = write!(self.trace, "{what}{which} ");
    }

    /// Runs a turn of a thread that the system would wake. Returns false if there is none.
    fn let_a_thread_work(&mut self) -> bool {
        let n_all = self.threads.len() + self.heavy.len();
        let first = random_below(n_all);
        for at in (first..n_all).chain(0..first) {
            if at >= self.threads.len() {
                let nth = at - self.threads.len();
                if self.heavy[nth].turn() == Sleep::No {
                    self.note("h", nth);
                    return true;
                }
            } else if self.threads[at].is_due() {
                self.note("t", at);
                self.threads[at].turn();
                return true;
            }
        }
        false
    }

    fn connect(&mut self) {
        let capacity = 16 << random_below(12);
        let (socket, end) = pair(capacity);
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 1));
        let accepted = Accepted {
            stream: Stream::Simulated(socket),
            speaks: Speaks::Plain,
            peer: Endpoint::Inet(address),
            local: Endpoint::Inet(address),
        };
        self.note("c", self.clients.len());
        welcome(self.server, &self.server.threads[0].stats, accepted);
        self.clients.push(SimulatedClient::new(end, &mut self.shared));
    }

    fn let_a_client_act(&mut self) {
        if self.clients.is_empty() {
            return;
        }
        let nth = random_below(self.clients.len());
        self.note("a", nth);
        self.clients[nth].act(&mut self.shared);
    }

    /// Holds some shards while others have their turns.
    fn hold_shards(&mut self) {
        let Some(mut holder) = self.holder.take() else { return };
        let n_shards = self.server.keyspace.router().n_shards();
        let chosen: BTreeSet<u16> = (0..=random_below(3)).map(|_| random_below(n_shards) as u16).collect();
        let shards: smallvec::SmallVec<[ShardId; 6]> = chosen.into_iter().map(ShardId).collect();
        self.note("H", shards.len());
        let n_steps = random_below(12);
        holder.with_shards(&shards, |_, _| {
            for _ in 0..n_steps {
                self.step();
            }
        });
        holder.take_injected();
        holder.thread.send_wakes();
        self.holder = Some(holder);
    }

    /// Makes a thread hand one of its connections over.
    fn hand_over(&mut self) {
        let from = random_below(self.threads.len());
        self.note("o", from);
        let server = self.server;
        self.threads[from].thread.hand_over(server, 1);
    }

    /// Kills a client whose input waits, or now and then another one.
    fn kill(&mut self) {
        let Some(mut holder) = self.holder.take() else { return };
        let connections = || self.threads.iter().flat_map(|sleeper| sleeper.thread.connections.iter());
        let waits = |connection: &Connection| {
            use ConnectionState::{InputAwaitsNotifications, InputAwaitsRoom};
            matches!(connection.state, InputAwaitsNotifications(_) | InputAwaitsRoom(_))
        };
        let waiting = connections().find(|(_, connection)| waits(connection));
        let other = connections().next().filter(|_| random_below(8) == 0);
        if let Some((_, connection)) = waiting.or(other) {
            let id = connection.record.id;
            self.server.kill(id, &holder.thread);
            holder.thread.send_wakes();
            self.shared.note_kill(id.0);
            self.note("k", id.0 as usize);
        }
        self.holder = Some(holder);
    }

    /// Lets the clients send and receive everything, and compares.
    fn finish(&mut self) {
        let began = Instant::now();
        loop {
            for client in &mut self.clients {
                client.finish(&mut self.shared);
            }
            if self.let_a_thread_work() {
                continue;
            }
            if self.clients.iter().all(SimulatedClient::is_satisfied) {
                return;
            }
            let waiting =
                || self.clients.iter().find(|client| !client.is_satisfied()).map(ToString::to_string);
            assert!(began.elapsed() < PATIENCE, "a client waits in vain: {:?}", waiting());
            self.let_time_pass();
        }
    }

    /// Compares what is in the shared keys with the replies.
    fn audit(&mut self) {
        self.connect();
        let mut client = self.clients.pop().expect("it has just connected");
        client.plan_audit(&self.shared);
        let began = Instant::now();
        let (counter, list) = loop {
            if let Some(found) = client.audit() {
                break found;
            }
            if !self.let_a_thread_work() {
                assert!(began.elapsed() < PATIENCE, "the audit waits in vain: {client}");
                self.let_time_pass();
            }
        };
        self.clients.push(client);
        self.shared.check(counter, &list);
    }

    /// Lets the time pass until the next thread wakes by itself.
    fn let_time_pass(&mut self) {
        let now = Instant::now();
        let next = self.threads.iter().map(|sleeper| sleeper.wakes_at).min().expect("there are threads");
        simulated::pass((next - now).max(Duration::from_micros(1)));
    }

    /// Makes all clients leave, and checks that nothing of them is left.
    fn part(&mut self) {
        for client in self.clients.drain(..) {
            client.leave();
        }
        let began = Instant::now();
        loop {
            if self.let_a_thread_work() {
                continue;
            }
            let left = self.describe();
            if left.is_empty() {
                return;
            }
            assert!(began.elapsed() < PATIENCE, "something is left: {left}");
            self.let_time_pass();
        }
    }

    /// The number of connections that the server still has.
    fn n_left(&self) -> usize {
        self.threads.iter().map(|sleeper| sleeper.thread.connections.iter().count()).sum::<usize>()
            + self.server.clients.all().len()
    }

    /// Says what is left in the server of its clients.
    fn describe(&self) -> String {
        let mut text = String::new();
        let mut note = |what: &str, n: u64| {
            if n != 0 {
                let _ = write!(text, "{n} {what}; ");
            }
        };
        note("connections", self.n_left() as u64);
        for sleeper in &self.threads {
            let thread = &sleeper.thread;
            let peer = &self.server.threads[thread.worker.thread.index];
            note("counted connections", peer.n_connections().into());
            note("counted bytes", peer.client_bytes.get());
            note("monitors", peer.n_monitors.load(Ordering::Relaxed).into());
            note("trackers", peer.n_trackers.load(Ordering::Relaxed).into());
            note("subscribers", (!thread.subscribers.is_empty()).into());
            note("waits", thread.waits.n_waiting() as u64);
            note("waits for the log", thread.log_waits.n_waiting() as u64);
            note("sweeps", thread.sweeps.len() as u64);
            note("finished nodes", thread.finished.len() as u64);
            note("connections that wait for notifications", thread.giving.turns.len() as u64);
            note("notifications", (!peer.notifications.is_empty()).into());
        }
        note("reasons for attention", self.server.attention.n_raised());
        note("channels", self.server.pubsub.n_channels(ChannelKind::Global));
        text
    }
}

/// The configuration of a simulated server.
fn config() -> Config {
    // A subscriber that reads too little is closed.
    let args = "--shards 4 --io-threads 3 --io-threads-always-active yes --enable-debug-command yes \
                --client-output-buffer-limit pubsub 30000 0 0 --save";
    let args: Vec<OsString> = args.split_whitespace().chain([""]).map(OsString::from).collect();
    let mut host = Host {
        program: "braid-server".into(),
        dir: "/".into(),
        n_cores: N_THREADS,
        stdin: &mut io::empty(),
        glob: |pattern, text| glob_match(pattern, text, Case::Insensitive),
        check: |_| Ok(()),
    };
    match launch(&args, &mut host) {
        Launch::Serve(config) => *config,
        other => panic!("{other:?}"),
    }
}

/// A process without an allocator of its own.
fn own_process() -> Process {
    Process {
        return_freed_memory: || {},
        allocator_stats: String::new,
        report_faults: || Ok(()),
        supervisor: Supervised::No,
        title: None,
    }
}

/// Returns how many schedules are tried: `BRAID_SCHEDULES`, or ten thousand.
fn n_schedules() -> u64 {
    std::env::var("BRAID_SCHEDULES").map_or(10_000, |n| n.parse().expect("BRAID_SCHEDULES is a number"))
}

/// Returns the first seed: `BRAID_SEED`, or a constant.
fn first_seed() -> u64 {
    std::env::var("BRAID_SEED").map_or(1, |seed| seed.parse().expect("BRAID_SEED is a number"))
}

/// Runs the schedules that one server lives through, and returns their decisions.
fn live(seed: u64, n: u64) -> Vec<String> {
    let mut world = World::new(seed);
    let run = |nth: u64| {
        let ran = panic::catch_unwind(AssertUnwindSafe(|| world.run(seed.wrapping_add(nth))));
        ran.unwrap_or_else(|panicked| {
            let trace = std::mem::take(&mut world.trace);
            let n = trace.split(' ').count();
            eprintln!("BRAID_SEED={seed} BRAID_SCHEDULES={}, the last one, {n} decisions: {trace}", nth + 1);
            panic::resume_unwind(panicked)
        })
    };
    (0..n).map(run).collect()
}

#[test]
fn every_client_is_answered_in_order_and_leaves_nothing() {
    let n_all = n_schedules();
    let seed = first_seed();
    let n_per_server = n_all.div_ceil(N_SERVERS);
    for begun in (0..n_all).step_by(n_per_server as usize) {
        live(seed.wrapping_add(begun), n_per_server.min(n_all - begun));
    }
    let missing = taken::missing();
    assert!(missing.is_empty() || n_all < 1000, "the schedules never take these changes: {missing:?}");
}

/// Other tests of the process leave garbage, and servers take turns to free it. So each repetition has a
/// process of its own.
#[test]
fn a_seed_repeats_every_decision() {
    let name = "net::thread::simulation::decisions_are_printed";
    let decisions = || {
        let program = std::env::current_exe().expect("the test has a file");
        let mut run = Command::new(program);
        run.args(["--exact", name, "--nocapture"]);
        let output = run.output().expect("the test can be started");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let line = text.lines().find(|line| line.starts_with("decisions")).map(str::to_owned);
        line.unwrap_or_else(|| panic!("{text}"))
    };
    let first = decisions();
    assert!(first.len() > 1000, "{first}");
    assert_eq!(first, decisions());
}

#[test]
fn decisions_are_printed() {
    let decisions = live(7, 20);
    assert_eq!(decisions.iter().filter(|decisions| decisions.is_empty()).count(), 0);
    println!("\ndecisions {}", decisions.concat());
}
