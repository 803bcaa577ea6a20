//! From a configuration to a running server, and back to the shell.

use std::{
    collections::BTreeSet,
    io,
    os::{
        linux::net::SocketAddrExt as _,
        unix::{
            ffi::OsStrExt as _,
            net::{SocketAddr, UnixDatagram},
        },
    },
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering},
        mpsc,
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use arc_swap::{ArcSwap, ArcSwapOption};
use braid_journal::disk::Folder;
use braid_storage::{
    entry::time::Millis,
    keyspace::Keyspace,
    observers::record,
    sync::coordinator::{Engine, Held, Weight, Worker},
    table::hash::{HashTags, Router},
};
use crossbeam_utils::{CachePadded, sync::Parker};
use mio::{Poll, Waker};
use signal_hook::{
    consts::{SIGINT, SIGTERM},
    iterator::Signals,
};

use crate::{
    access::Users,
    client::{node::Job, record::Clients},
    clock::{Clock, Instant},
    command::{self, TABLE},
    config::{Asker, Config, REDIS_VERSION, Supervised},
    durability::Durability,
    log::{
        self,
        syslog::{self, Syslog},
    },
    net::{IoThread, run_heavy},
    notice,
    notify::{publishing::PubSub, tracking_table::Trackers},
    persist::{self, litter},
    process::{descriptors::room_for_clients, oom_score, processors},
    random,
    replication::{
        Replication,
        replica::{link::run_link, role::ReplicaRole},
        spooler::run_spooler,
        turns::ResumePoint,
    },
    saving::{FoundAof, Then, replay, run_logger, run_saver},
    scripting::{functions::Functions, scripts::Scripts},
    shared::{
        debug_hooks::DebugHooks,
        loading::Loading,
        memory::{Memory, resident_bytes},
        pause::Pause,
        saves::Saves,
        server::{BRAID_VERSION, Peer, Process, SPARE_THREADS, Server, configure_keyspace},
        thread_scaling::Spread,
        thread_state::ThreadState,
        user_table::Accounts,
    },
    sockets::{
        certificates::{self, Certificates},
        listening::{self, Listener, Listening, bind_all},
        outgoing,
        poller::{Poller, WAKER},
    },
    status::MetricsEndpoint,
    telemetry::{
        command_log::{self, CommandLog},
        hot_keys::HotKeys,
        latency_monitor::LatencyMonitor,
        stats::ThreadStats,
    },
    warning,
};

/// Checks the parts of a configuration that concern commands, users, the log, sockets and certificates.
///
/// A start and `--check-config` both begin with this. Whether addresses are free is checked only at the
/// start, because a running server may have them until then.
///
/// # Errors
/// The reason why the server would not start, in words for the log.
pub fn check(config: &Config) -> Result<(), String> {
    log::check(config)?;
    command::rename(&config.renamed_commands)?;
    command::users_at_start(config, &TABLE)?;
    listening::check(config)?;
    processors::check(config)?;
    enter_dir(config)?;
    certificates(config).map(|_| ())
}

/// Changes to the folder of the data, where relative file names begin.
fn enter_dir(config: &Config) -> Result<(), String> {
    std::env::set_current_dir(&config.dir)
        .map_err(|error| format!("Can't chdir to '{}': {error}", config.dir.display()))
}

/// Reads the certificates, if any port uses them.
fn certificates(config: &Config) -> Result<Option<Arc<Certificates>>, String> {
    let failed = |why| format!("Failed to configure TLS: {why}");
    outgoing::check(config).map_err(failed)?;
    if config.tls_port == 0 && !config.metrics_tls {
        return Ok(None);
    }
    certificates::read(config).map(Some).map_err(failed)
}

/// Serves until SHUTDOWN or a signal.
///
/// # Errors
/// The reason why the server did not start, in words for the log.
pub fn serve(mut config: Config, mut process: Process) -> Result<(), String> {
    process.supervisor = supervisor(config.supervised);
    let supervisor = process.supervisor;
    // This precedes the start of threads, which a fork would not copy.
    let pidfile = go_to_background(&config, supervisor)?;
    begin_log(&config, &process);
    introduce(&config, supervisor);
    command::rename(&config.renamed_commands)?;
    let users = command::users_at_start(&config, &TABLE)?;
    name_disabled(&users);
    adjust_oom_score(&config);
    fit_to_descriptors(&mut config)?;
    enter_dir(&config)?;
    let tls = certificates(&config)?;
    let listeners = bind_all(&config)?;
    let endpoint = MetricsEndpoint::bind(&config)?;
    let kinds = kinds_of(&listeners);
    let source = Source::of(&config)?;
    remove_litter(&config);
    write_pidfile(pidfile.as_deref());
    let unixsocket = config.unixsocket.clone();

    let fail = |what: &str, error: io::Error| format!("{what}: {error}");
    let mut signals = Signals::new([SIGTERM, SIGINT]).map_err(|error| fail("Watching signals", error))?;
    let (server, mut polls, mut parkers) = build(config, users, listeners, tls, process)
        .map_err(|error| fail("Starting the event loops", error))?;
    let handle = signals.handle();
    *server.on_stop.lock().expect("nobody has had it yet") = Some(Box::new(move || handle.close()));

    let saver_poll = polls.pop().expect("the last one is the saver's");
    let io_threads: Vec<_> = polls
        .into_iter()
        .enumerate()
        .map(|(index, poll)| IoThread::new(server, index, Poller::new(poll)))
        .collect();
    notice!("Server initialized");
    match &source {
        Some(source) => source.begin(server),
        None => {
            // No other thread runs yet.
            server.begin_stream(None);
            log_ready(&kinds);
        }
    }
    let spool_parker = parkers.pop().expect("the last one is the spool's");
    let link_parker = parkers.pop().expect("the one before is the link's");
    let log_parker = parkers.pop().expect("the one before is the log's");
    // This precedes the first client, which could see the previous title or set its own.
    server.show_title();
    server.memory.begin(resident_bytes());
    server.warn_of_small_limit(server.config.load().maxmemory);
    log::write_held_back();
    let mut threads = Vec::new();
    if let Some(endpoint) = endpoint {
        spawn_metrics(server, endpoint)?;
    }
    let is_loading = source.is_some();
    let (fail_loading, failure) = mpsc::channel();
    let load = source.map(|source| move |index| load(server, source, index, &kinds, &fail_loading));
    spawn_heavy(server, parkers, load, &mut threads)?;
    let saver = server.threads.len() - 1;
    threads.push(spawn_aside(server, "saver".to_owned(), move || run_saver(server, saver, saver_poll))?);
    threads.push(spawn_aside(server, "log".to_owned(), move || run_logger(server, &log_parker))?);
    threads.push(spawn_aside(server, "spool".to_owned(), move || run_spooler(server, &spool_parker))?);
    let link = saver - 1;
    threads.push(spawn_aside(server, "link".to_owned(), move || run_link(server, link, &link_parker))?);
    begin_to_serve(server, io_threads, &mut threads)?;
    if !is_loading {
        tell(supervisor, Notice::Ready, "Ready to accept connections");
    }

    let insists = heed_signals(server, &mut signals);
    tell(supervisor, Notice::Stopping, "Stopping");
    end(server, threads, &[pidfile, unixsocket]);
    if let Ok(why) = failure.try_recv() {
        return Err(why);
    }
    if insists {
        return Err("Braid ends without its last snapshot".to_owned());
    }
    warning!("Braid is now ready to exit, bye bye...");
    Ok(())
}

/// Loads the data on a thread, and stops the server if that fails.
fn load(
    server: &'static Server,
    source: Source,
    thread: usize,
    kinds: &[String],
    failed: &mpsc::Sender<String>,
) {
    match source.load(server, thread) {
        Ok(()) => end_loading(server, kinds, server.process.supervisor),
        Err(why) => {
            // The receiver waits for the end of this thread.
            let _ = failed.send(why);
            server.stop();
        }
    }
}

/// Waits for the threads, closes the AOF, and removes files that last as long as the process.
fn end(server: &'static Server, threads: Vec<JoinHandle<()>>, files: &[Option<PathBuf>]) {
    join(server, threads);
    if !server.durability.aof.close() {
        warning!("The append-only file may lack the last writes");
    }
    for path in files.iter().flatten() {
        // It may have been removed by hand.
        let _ = std::fs::remove_file(path);
    }
}

/// Becomes a daemon if this is configured and no supervisor waits. As in Redis, the working directory stays.
///
/// Returns the path of the PID file.
fn go_to_background(config: &Config, supervisor: Supervised) -> Result<Option<PathBuf>, String> {
    let is_daemon = config.daemonize && supervisor == Supervised::No;
    if is_daemon {
        nix::unistd::daemon(true, false).map_err(|error| format!("Going to the background: {error}"))?;
    }
    Ok(config.pidfile.clone().or_else(|| is_daemon.then(|| DAEMON_PIDFILE.into())))
}

/// Opens the server log, and reports faults of the program there.
fn begin_log(config: &Config, process: &Process) {
    log::configure(config);
    log::set_file(config);
    if config.syslog_enabled {
        open_syslog(config);
    }
    if let Err(error) = (process.report_faults)() {
        warning!("Faults of the program will not be reported: {error}");
    }
}

/// Writes the number of the process. As in Redis, a path where only the administrator may write prevents no
/// start.
fn write_pidfile(path: Option<&Path>) {
    if let Some(path) = path
        && let Err(error) = std::fs::write(path, format!("{}\n", std::process::id()))
    {
        warning!("Failed to write PID file {}: {error}", path.display());
    }
}

/// Starts the thread of the metrics port. It ends with the process.
fn spawn_metrics(server: &'static Server, endpoint: MetricsEndpoint) -> Result<(), String> {
    spawn_aside(server, "metrics".to_owned(), move || {
        if let Err(error) = endpoint.run(server) {
            warning!("The metrics port's event loop has failed, and it is closed: {error}");
        }
    })?;
    Ok(())
}

/// Starts the heavy-work threads. One of them loads the data first: there is no heavy work before that is
/// done.
fn spawn_heavy(
    server: &'static Server,
    parkers: Vec<Parker>,
    mut load: Option<impl FnOnce(usize) + Send + 'static>,
    threads: &mut Vec<JoinHandle<()>>,
) -> Result<(), String> {
    for (nth, parker) in parkers.into_iter().enumerate() {
        let index = server.io_threads().len() + nth;
        let load = load.take();
        threads.push(spawn_aside(server, format!("heavy-{nth}"), move || {
            if let Some(load) = load {
                load(index);
            }
            run_heavy(server, index, &parker);
        })?);
    }
    Ok(())
}

/// The kinds of listeners, each once, for the log.
fn kinds_of(listeners: &[Listener]) -> Vec<String> {
    let kinds: BTreeSet<String> = listeners.iter().map(|listener| listener.kind().to_string()).collect();
    kinds.into_iter().collect()
}

/// The time for which a script may continue when the server stops.
///
/// It applies if the configuration does not bound scripts (`busy-reply-threshold`).
const SCRIPT_MAX: Duration = Duration::from_secs(5);

/// Waits for the threads to end, except for one whose script takes too long.
///
/// That thread ends with the process. Nothing of its script is logged, because it has not finished.
fn join(server: &Server, mut threads: Vec<JoinHandle<()>>) {
    let longest = server.config.load().busy_reply_threshold.unwrap_or(SCRIPT_MAX).as_millis() as u64;
    let is_stuck = |peer: &Peer| {
        peer.program.runs_for(server.clock.uptime_millis()).is_some_and(|millis| millis >= longest)
    };
    loop {
        for thread in threads.extract_if(.., |thread| thread.is_finished()) {
            thread.join().expect("a thread that panics ends the process");
        }
        if threads.is_empty() || server.threads.iter().filter(|peer| is_stuck(peer)).count() >= threads.len()
        {
            return;
        }
        thread::sleep(Duration::from_millis(1));
    }
}

/// Logs the start of the server, and advice about its configuration.
fn introduce(config: &Config, supervisor: Supervised) {
    let pid = std::process::id();
    notice!("Braid is starting");
    notice!(
        "Braid version={BRAID_VERSION} (compatible with Redis {REDIS_VERSION}), bits={}, pid={pid}, just started",
        usize::BITS
    );
    for note in config.notices() {
        warning!("{note}");
    }
    if config.supervised != Supervised::No && supervisor == Supervised::No {
        notice!(
            "supervised: no systemd waits for this process (there is no NOTIFY_SOCKET in its environment)"
        );
    }
}

/// Adjusts the score for the out-of-memory killer. As in Redis, a refusal does not prevent the start.
fn adjust_oom_score(config: &Config) {
    if let Err(error) = oom_score::adjust(config) {
        warning!("The score for the out-of-memory killer cannot be adjusted (oom-score-adj): {error}");
    }
}

/// Logs the users that are disabled.
fn name_disabled(users: &Users) {
    for user in users.all().filter(|user| !user.is_on()) {
        let name = log::shown(user.name());
        notice!(
            "The user '{name}' is disabled (there is no 'on' modifier in the user description). Make sure this is not a \
             configuration error."
        );
    }
}

/// Starts the threads that serve clients. Clients that have connected before wait.
///
/// As in Redis, a small data set is loaded before any client is told that it is not.
fn begin_to_serve(
    server: &'static Server,
    io_threads: Vec<IoThread>,
    threads: &mut Vec<JoinHandle<()>>,
) -> Result<(), String> {
    while server.loading.is_brief(server.clock.uptime_millis()) && !server.stopping.load(Ordering::Relaxed) {
        thread::sleep(Duration::from_millis(1));
    }
    for (index, mut io_thread) in io_threads.into_iter().enumerate() {
        threads.push(spawn(format!("io-{index}"), move || {
            processors::stay_on(&server.config.load().server_cpulist);
            if let Err(error) = io_thread.run() {
                warning!("An event loop has failed: {error}");
                server.stop();
            }
        })?);
    }
    Ok(())
}

/// Lets clients use the data, which has just been loaded.
fn end_loading(server: &Server, kinds: &[String], supervisor: Supervised) {
    log_ready(kinds);
    server.loading.end(&server.attention);
    tell(supervisor, Notice::Ready, "Ready to accept connections");
}

/// Makes signals end the server, until it has ended. Returns whether it ends before its data is saved.
///
/// As in Redis, SIGINT after another signal has that effect. SIGTERM does not, because a supervisor may send
/// it twice.
fn heed_signals(server: &Server, signals: &mut Signals) -> bool {
    let mut insists = false;
    for signal in signals.forever() {
        let name = if signal == SIGINT { "SIGINT" } else { "SIGTERM" };
        if signal == SIGINT && server.saves.ending.is_wanted_by_signal() {
            warning!("You insist... exiting now.");
            insists = true;
            server.stop();
            continue;
        }
        warning!("Received {name} scheduling shutdown...");
        let config = server.config.load_full();
        let options = if signal == SIGINT { config.shutdown_on_sigint } else { config.shutdown_on_sigterm };
        server.shut_down(options);
    }
    insists
}

/// The path where a daemon writes its process number by default, as in Redis.
const DAEMON_PIDFILE: &str = "/var/run/redis.pid";

/// Returns the supervisor to notify. As in Redis, there is none if the environment does not say how to reach
/// it.
fn supervisor(asked: Supervised) -> Supervised {
    let waits = std::env::var_os("NOTIFY_SOCKET").is_some();
    match asked {
        Supervised::Systemd | Supervised::Auto if waits => Supervised::Systemd,
        _ => Supervised::No,
    }
}

/// A state of the process that is reported to its supervisor.
#[derive(Clone, Copy)]
enum Notice {
    Ready,
    Stopping,
}

/// Reports the state of the process to the supervisor, if there is one.
fn tell(supervisor: Supervised, what: Notice, status: &str) {
    let line = match what {
        Notice::Ready => "READY=1",
        Notice::Stopping => "STOPPING=1",
    };
    if supervisor == Supervised::Systemd
        && let Err(error) = notify(&format!("{line}\nSTATUS={status}\n"))
    {
        warning!("Telling systemd '{status}': {error}");
    }
}

/// Sends a message to the address in the environment, as sd_notify(3) does.
///
/// The address is a file's name, or, after an `@`, an abstract name.
fn notify(message: &str) -> io::Result<()> {
    let Some(place) = std::env::var_os("NOTIFY_SOCKET") else { return Ok(()) };
    let address = match place.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
        _ => SocketAddr::from_pathname(&place)?,
    };
    UnixDatagram::unbound()?.send_to_addr(message.as_bytes(), &address).map(|_| ())
}

/// Makes the log go to the system's log, too.
fn open_syslog(config: &Config) {
    let ident = String::from_utf8_lossy(&config.syslog_ident);
    match Syslog::new(Path::new(syslog::SOCKET), config.syslog_facility, &ident) {
        Ok(syslog) => log::set_syslog(syslog),
        Err(error) => warning!("syslog-enabled: {error}"),
    }
    if !Path::new(syslog::SOCKET).exists() {
        warning!("syslog-enabled: nobody is at {}: is a log service running?", syslog::SOCKET);
    }
}

fn log_ready(kinds: &[String]) {
    for kind in kinds {
        notice!("Ready to accept connections {kind}");
    }
}

/// Returns the snapshot to load, if there is one, with its size.
fn snapshot_to_load(config: &Config) -> Result<Option<(PathBuf, u64)>, String> {
    let Some(name) = &config.dbfilename else { return Ok(None) };
    let path = config.dir.join(name);
    match std::fs::metadata(&path) {
        Ok(metadata) => Ok(Some((path, metadata.len()))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(format!("Can't look for the snapshot {}: {error}", path.display())),
    }
}

/// The folder of the append-only file, from the start to the end.
fn log_folder(config: &Config) -> PathBuf {
    config.dir.join(&config.appenddirname)
}

/// Removes unfinished files of processes that ended while they wrote them.
///
/// If an append-only file is loaded, its own are removed after that. Until then they may help to find its
/// faults.
fn remove_litter(config: &Config) {
    let told = |path: &Path, removed: io::Result<()>| {
        if let Err(error) = removed {
            warning!("What is left over in {} cannot be removed: {error}", path.display());
        }
    };
    told(&config.dir, litter::remove_from_dir(&config.dir));
    let folder = log_folder(config);
    if config.appendonly || !folder.is_dir() {
        return;
    }
    // Another server may have it.
    if let Ok(_ours) = Folder::locked(folder.clone(), &config.appendfilename) {
        told(&folder, litter::remove_from_log(&folder, &config.appendfilename));
    }
}

/// The data from which the server starts.
enum Source {
    /// A snapshot, with its size in bytes.
    Snapshot(PathBuf, u64),
    /// An append-only file. A new one begins with a snapshot, if there is one, or with nothing.
    Aof(FoundAof, Option<PathBuf>),
}

impl Source {
    /// Returns the configured data, if there is any.
    fn of(config: &Config) -> Result<Option<Source>, String> {
        let snapshot = snapshot_to_load(config)?;
        if !config.appendonly {
            return Ok(snapshot.map(|(path, n_bytes)| Source::Snapshot(path, n_bytes)));
        }
        let found = FoundAof::look(&config.dir, &log_folder(config), &config.appendfilename);
        let found = found.map_err(|error| error.to_string())?;
        let snapshot = snapshot.map(|(path, _)| path).filter(|_| found.is_new());
        Ok(Some(Source::Aof(found, snapshot)))
    }

    fn n_bytes(&self) -> u64 {
        match self {
            Source::Snapshot(_, n_bytes) => *n_bytes,
            Source::Aof(found, _) => found.n_bytes(),
        }
    }

    /// Announces the load, so that clients are refused until it ends.
    fn begin(&self, server: &Server) {
        if let Source::Aof(..) = self {
            server.loading.begin_replay();
        }
        server.loading.begin(self.n_bytes(), &server.clock, &server.attention);
    }

    /// Loads the data. `index` is the number of the calling thread.
    fn load(self, server: &'static Server, index: usize) -> Result<(), String> {
        let state = ThreadState::new(index, server);
        let mut worker = Worker::new(Arc::clone(&server.engine), Weight::Heavy, state);
        let (mut found, snapshot) = match self {
            Source::Snapshot(path, _) => return load_snapshot(server, &mut worker, &path),
            Source::Aof(found, snapshot) => (found, snapshot),
        };
        found.tell_unread();
        if let Some(path) = snapshot {
            notice!("There is no append-only file yet: it begins with what {} holds", path.display());
            found.begin_from(&path).map_err(|error| error.to_string())?;
        }
        replay(server, &mut worker, found, Then::Begin).map_err(|error| error.to_string())
    }
}

/// The time by which a key must have expired to be left out. A replica keeps all: its primary removes them.
/// So does a server that may have replicas from before its start: they learn of each removal.
fn load_as_of(server: &Server) -> Millis {
    if server.replica.is_on() { Millis(0) } else { server.clock.now() }
}

/// Loads a snapshot.
fn load_snapshot(server: &'static Server, worker: &mut Worker<Job>, path: &Path) -> Result<(), String> {
    let began = Instant::now();
    let as_of = if persist::tells_place(path) { Millis(0) } else { load_as_of(server) };
    let mut loaded = match persist::load(server, path, as_of) {
        Ok(loaded) => loaded,
        // The server is stopping, so its work does not matter any more.
        Err(_) if server.stopping.load(Ordering::Relaxed) => return Ok(()),
        Err(error) => {
            let path = path.display();
            return Err(format!(
                "{error}. Nothing is served without this data. See what 'braid-server --check-rdb {path}' says; put another \
                 copy in its place, or move it away to start with no data. Terminating server after rdb file reading failure."
            ));
        }
    };
    command::replace_libraries(server, &loaded.libraries)
        .map_err(|why| format!("Loading the functions in {} failed: {why}", path.display()))?;
    let all = server.engine.all_shards();
    let mut install = |held: &mut Held<'_, Job>, _: &mut ThreadState| {
        loaded.install(held);
        let db = loaded.stream_db.unwrap_or_default();
        let place = loaded.place.map(|(id, lsn)| ResumePoint { id, lsn, db, recent: None });
        if place.is_some() && !server.replica.is_on() {
            for &id in all.iter() {
                held.shard(id).hear_all(record::LOG, true);
            }
        }
        server.begin_stream(place);
    };
    while worker.with_shards(&all, &mut install).is_none() {
        // Another thread searches expired keys, which takes it no longer than this.
        thread::sleep(Duration::from_millis(1));
    }
    server.loading.note_loaded(loaded.n_keys, loaded.n_expired, loaded.n_modules);
    loaded.tell();
    notice!("DB loaded from disk: {:.3} seconds, {} bytes", began.elapsed().as_secs_f64(), loaded.n_bytes);
    server.measure_memory();
    Ok(())
}

/// Lowers `maxclients` to the number for which the system allows descriptors, as Redis does.
fn fit_to_descriptors(config: &mut Config) -> Result<(), String> {
    let n_possible = room_for_clients(config.maxclients, config.io_threads + n_heavy_threads() + 1, config);
    if n_possible == 0 {
        return Err("The limit of open files leaves none for clients. Raise it: see 'ulimit -n'.".to_owned());
    }
    if n_possible < config.maxclients {
        warning!(
            "maxclients is {n_possible} and not {}: the process may not have more files open. See 'ulimit -n'.",
            config.maxclients
        );
        let n_possible = n_possible.to_string();
        config
            .set(&[(b"maxclients", n_possible.as_bytes())], Asker::Local)
            .map_err(|error| error.to_string())?;
    }
    Ok(())
}

/// Starts a thread.
///
/// A panic outside of any work on shards ends the process. No other thread could serve this thread's clients,
/// or release the shards that it holds.
/// Starts a thread that serves no sockets of clients.
fn spawn_aside(
    server: &'static Server,
    name: String,
    run: impl FnOnce() + Send + 'static,
) -> Result<JoinHandle<()>, String> {
    spawn(name, move || {
        processors::stay_on(&server.config.load().bio_cpulist);
        run();
    })
}

fn spawn(name: String, run: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, String> {
    let run = move || {
        if catch_unwind(AssertUnwindSafe(run)).is_err() {
            warning!(
                "A thread has panicked outside of any work on keys: stopping rather than leave its clients waiting"
            );
            std::process::abort();
        }
    };
    thread::Builder::new().name(name).spawn(run).map_err(|error| format!("Starting a thread: {error}"))
}

/// Returns half the number of cores, at least one, plus the spare threads.
fn n_heavy_threads() -> usize {
    thread::available_parallelism().map_or(1, |cores| (cores.get() / 2).max(1)) + SPARE_THREADS
}

/// Makes the shared state of all threads, and the polls of those that have one: I/O threads, and the saver.
fn peers(config: &Config, n_heavy: usize) -> io::Result<(Vec<CachePadded<Peer>>, Vec<Poll>)> {
    let (mut peers, mut polls) = (Vec::new(), Vec::new());
    // The link to a primary comes before the saver.
    let saver = config.io_threads + n_heavy + 1;
    for index in 0..=saver {
        let poll = Poll::new()?;
        let stats = ThreadStats::new(TABLE.all().len());
        stats.configure(config);
        peers.push(CachePadded::new(Peer::new(Waker::new(poll.registry(), WAKER)?, stats)));
        if index < config.io_threads || index == saver {
            polls.push(poll);
        }
    }
    Ok((peers, polls))
}

/// Creates the state of a server, with the event queues of its threads and the parkers of others.
///
/// # Errors
/// If the system has no descriptors left.
pub fn build(
    config: Config,
    users: Users,
    listeners: Vec<Listener>,
    tls: Option<Arc<Certificates>>,
    process: Process,
) -> io::Result<(&'static Server, Vec<Poll>, Vec<Parker>)> {
    let tags = if config.hash_tags { HashTags::Honoured } else { HashTags::Ignored };
    let router = Router::new(random::key_hasher(), config.shards.ilog2(), tags);
    let (keyspace, shards) = Keyspace::new(router, config.databases);
    configure_keyspace(&keyspace, &config);
    let mut parkers: Vec<Parker> = (0..n_heavy_threads()).map(|_| Parker::new()).collect();
    let (peers, polls) = peers(&config, parkers.len())?;
    let hasher = random::key_hasher();
    let run_id = (0u8..3).map(|part| format!("{:016x}", hasher.hash(&[part]).0)).collect::<String>();
    let trackers = Trackers::default();
    trackers.set_max_keys(config.tracking_table_max_keys);
    let times_each = command_log::times_each(&config);
    let command_log = CommandLog::new(peers.len());
    let hot_keys = HotKeys::new(peers.len());
    let clock = Clock::start();
    let (log_parker, link_parker, spool_parker) = (Parker::new(), Parker::new(), Parker::new());
    let replica = ReplicaRole::new(&config, link_parker.unparker().clone());
    let latency_monitor = Arc::new(LatencyMonitor::default());
    let durability =
        Durability::new(peers.len(), log_parker.unparker().clone(), Arc::clone(&latency_monitor));
    durability.configure(&config);
    let memory = Memory::default();
    let server: &'static Server = Box::leak(Box::new(Server {
        durability,
        log_folder: log_folder(&config),
        replication: Replication::new(),
        saves: Saves::new(clock.unix_seconds()),
        clock,
        engine: Engine::new(shards),
        keyspace,
        clients: Clients::default(),
        pubsub: PubSub::default(),
        scripts: Scripts::default(),
        functions: Functions::default(),
        trackers,
        // The first thread accepts connections.
        listening: Listening::new(polls[0].registry().try_clone()?, listeners)?,
        tls: ArcSwapOption::new(tls),
        spread: Spread::new(config.io_threads),
        threads: peers.into_boxed_slice(),
        heavy: parkers.iter().map(|parker| parker.unparker().clone()).collect(),
        spooler: spool_parker.unparker().clone(),
        config: ArcSwap::from_pointee(config),
        config_changes: AtomicU64::new(0),
        config_writer: Mutex::new(()),
        accounts: Accounts::new(users),
        attention: CachePadded::default(),
        pause: Pause::default(),
        loading: Loading::default(),
        replica,
        memory,
        limiting_clients: Mutex::default(),
        leaving_bytes: AtomicU64::new(0),
        purges: AtomicU64::new(0),
        command_log,
        hot_keys,
        latency_monitor,
        times_each: AtomicBool::new(false),
        average_ttls: Default::default(),
        failed_logins: AtomicU64::new(0),
        rate_sampler: Mutex::default(),
        debug: DebugHooks::default(),
        published_events: AtomicU16::new(0),
        stopping: AtomicBool::new(false),
        on_stop: Mutex::new(None),
        run_id: run_id[..40].to_owned(),
        process,
        started: Instant::now(),
    }));
    server.time_each(times_each);
    server.memory.set_limit(server.memory_limit(&server.config.load()));
    if server.replica.is_on() {
        server.attention.raise();
        server.settle_expiry();
    }
    parkers.push(log_parker);
    parkers.push(link_parker);
    parkers.push(spool_parker);
    Ok((server, polls, parkers))
}
