//! The state that all threads share.

use std::{
    collections::BTreeMap,
    io,
    path::PathBuf,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU16, AtomicU32, AtomicU64, Ordering, fence},
    },
    time::Duration,
};

use arc_swap::{ArcSwap, ArcSwapOption};
use braid_storage::{
    entry::lru::AccessPolicy,
    keyspace::Keyspace,
    rdb::Checksums,
    sync::executor::{Inbox, Node},
};
use crossbeam_queue::SegQueue;
use crossbeam_utils::{CachePadded, sync::Unparker};
use mio::Waker;
use nix::sys::resource::UsageWho;

use crate::{
    catalog::{CommandId, Group},
    client::{
        id::ClientId,
        node::{Engine, Job},
        record::Clients,
        session::SaveOrder,
    },
    clock::{Clock, ClockStep, Instant, processor_micros},
    config::{Config, MaxmemoryPolicy, ShutdownOptions, Supervised},
    durability::Durability,
    log::{self, Level},
    notice,
    notify::{notifications::Notifications, publishing::PubSub, tracking_table::Trackers},
    process::title::Title,
    replication::{
        Replication,
        replica::role::ReplicaRole,
        replicas::{Replica, ReplicaState},
    },
    scripting::{functions::Functions, running_scripts::RunningScript, scripts::Scripts},
    shared::{
        attention::Attention,
        average_ttls::AverageTtls,
        debug_hooks::DebugHooks,
        loading::Loading,
        mail::Mail,
        memory::{Memory, resident_bytes},
        pause::Pause,
        saves::{AskedBy, PendingSave, Saves, WalkStep},
        thread_scaling::Spread,
        thread_state::ThreadState,
        user_table::Accounts,
    },
    sockets::{certificates::Certificates, listening::Listening},
    telemetry::{
        command_log::{self, CommandLog},
        hot_keys::{HotKeys, HotKeysOptions, Report, Totals},
        latency::Latencies,
        latency_monitor::LatencyMonitor,
        split::Phase,
        splits::Splits,
        stats::{CommandCounts, Count, RateSampler, Rates, ThreadStats},
    },
    warning,
};

/// The number of heavy-work threads that only stand in for others.
///
/// Where a script runs for long, later work would wait for it otherwise.
pub const SPARE_THREADS: usize = 6;

/// The version of Braid.
pub const BRAID_VERSION: &str = env!("CARGO_PKG_VERSION");

/// The server, as all threads see it.
pub struct Server {
    /// The time.
    pub clock: Clock,
    /// The shards' executors.
    pub engine: Engine,
    /// The map from keys to shards, and the shards' facts that are published without a hold.
    pub keyspace: Keyspace,
    /// The connected clients.
    pub clients: Clients,
    /// The subscribed patterns, and the number of subscribed channels.
    pub pubsub: PubSub,
    /// The known scripts.
    pub scripts: Scripts,
    /// The known libraries.
    pub functions: Functions,
    /// The keys of tracking clients.
    pub trackers: Trackers,
    /// The listening sockets.
    pub listening: Listening,
    /// The certificates and rules of TLS handshakes; none without TLS.
    pub tls: ArcSwapOption<Certificates>,
    /// The number of threads that serve connections.
    pub spread: Spread,
    /// The threads that serve sockets.
    pub threads: Box<[CachePadded<Peer>]>,
    /// The heavy-work threads' unparkers. Those of the [spare](SPARE_THREADS) threads come last.
    pub heavy: Vec<Unparker>,
    /// That of the thread that writes the spool for slow replicas.
    pub spooler: Unparker,
    /// The configuration. Threads keep their parts of it and read it again when `config_changes` moves.
    pub config: ArcSwap<Config>,
    /// The number of changes to the configuration.
    pub config_changes: AtomicU64,
    /// Serialises CONFIG SET and REWRITE.
    pub config_writer: Mutex<()>,
    /// The users, and the rights denied to them.
    pub accounts: Accounts,
    /// Whether commands must check [`Server::holds_back`] or their client's `killed` under the hold. It is
    /// also raised while commands are [observed](crate::observe::monitor), are timed alone, or must look
    /// their user's rights up again.
    pub attention: CachePadded<Attention>,
    /// CLIENT PAUSE.
    pub pause: Pause,
    /// The loading of a data set.
    pub loading: Loading,
    /// Whose replica this server is.
    pub replica: ReplicaRole,
    /// The memory in use, and its limit.
    pub memory: Memory,
    /// Serialises the closing of clients that use too much memory.
    pub limiting_clients: Mutex<()>,
    /// The memory of clients that were closed for it and have not left yet.
    pub leaving_bytes: AtomicU64,
    /// The commands that were slow, or had a large request or reply.
    pub command_log: CommandLog,
    /// The folder of the append-only file. CONFIG SET dir does not move it.
    pub log_folder: PathBuf,
    /// The events that took long.
    pub latency_monitor: Arc<LatencyMonitor>,
    /// The keys with the highest cost.
    pub hot_keys: HotKeys,
    /// Whether each command is timed alone.
    pub times_each: AtomicBool,
    /// The average lifetimes of keys with a deadline.
    pub average_ttls: AverageTtls,
    /// The number of wrong passwords at the metrics port, whose thread has no statistics.
    pub failed_logins: AtomicU64,
    /// The records of units, and the AOF.
    pub durability: Durability,
    /// Its replicas.
    pub replication: Replication,
    /// The state of saving.
    pub saves: Saves,
    /// Recent rates, for INFO.
    pub rate_sampler: Mutex<RateSampler>,
    /// How often all threads were asked to return memory (MEMORY PURGE).
    pub purges: AtomicU64,
    /// The switches of DEBUG.
    pub debug: DebugHooks,
    /// The keyspace events that are configured and have a subscriber. They are the bits of
    /// [`KeyspaceEvents`](crate::config::KeyspaceEvents). Written with all shards held.
    pub published_events: AtomicU16,
    /// Set once, by SHUTDOWN or a signal.
    pub stopping: AtomicBool,
    /// Ends the thread that waits for signals, and with it the process.
    pub on_stop: Mutex<Option<Box<dyn FnOnce() + Send>>>,
    /// The run ID: 40 hexadecimal digits, new with every start.
    pub run_id: String,
    /// The operations that it may use on its process.
    pub process: Process,
    /// The process's start.
    pub started: Instant,
}

/// Operations on the server's process that the library cannot do by itself.
pub struct Process {
    /// Makes the allocator return the freed memory of the calling thread and of all threads.
    ///
    /// It is called once in a while, off the data path.
    pub return_freed_memory: fn(),
    /// The allocator's own report.
    pub allocator_stats: fn() -> String,
    /// Makes the log report faults that end the process. It is called once the process is in the background,
    /// if it goes there.
    pub report_faults: fn() -> io::Result<()>,
    /// The supervisor that has started it and waits until it is ready.
    pub supervisor: Supervised,
    /// Its title, where there is space for one.
    pub title: Option<Title>,
}

/// The part of a thread that other threads may use.
pub struct Peer {
    /// Its finished nodes.
    pub inbox: Inbox<Job>,
    /// The requests to it.
    pub mail: SegQueue<Mail>,
    /// The notifications for its subscribers.
    pub notifications: Notifications,
    /// The number of its monitoring connections (MONITOR).
    pub n_monitors: AtomicU32,
    /// The number of its tracking clients (CLIENT TRACKING).
    pub n_trackers: AtomicU32,
    /// The script or function that it runs.
    pub program: RunningScript,
    /// Whether some of its replies wait for the log.
    pub awaits_log: AtomicBool,
    /// Wakes it.
    pub waker: Waker,
    /// Its statistics.
    pub stats: CachePadded<ThreadStats>,
    /// The number of its connections, with those on their way to it.
    pub n_connections: AtomicU32,
    /// The memory of its connections.
    pub client_bytes: Count,
    /// The processor time that it had used at its last report, in nanoseconds.
    pub nanos_had: AtomicU64,
    /// The processor time that it could have used.
    pub nanos_wanted: AtomicU64,
    /// The parts of it in user mode and in system mode, in microseconds. They are as of the last cron. Only
    /// the first thread has them.
    pub micros_by_mode: [AtomicU64; 2],
}

impl Peer {
    /// Creates the peer of a thread that has done nothing yet.
    pub fn new(waker: Waker, stats: ThreadStats) -> Self {
        Self {
            inbox: Inbox::default(),
            mail: SegQueue::new(),
            notifications: Notifications::default(),
            n_monitors: AtomicU32::new(0),
            n_trackers: AtomicU32::new(0),
            program: RunningScript::default(),
            awaits_log: AtomicBool::new(false),
            waker,
            stats: CachePadded::new(stats),
            n_connections: AtomicU32::new(0),
            client_bytes: Count::default(),
            nanos_had: AtomicU64::new(0),
            nanos_wanted: AtomicU64::new(0),
            micros_by_mode: Default::default(),
        }
    }

    /// The number of its connections.
    pub fn n_connections(&self) -> u32 {
        self.n_connections.load(Ordering::Relaxed)
    }

    /// Sends mail to the thread, and wakes it.
    pub fn send(&self, mail: Mail) {
        self.mail.push(mail);
        self.wake_if_asleep();
    }

    /// Wakes the thread if it sleeps, and returns whether it did.
    pub fn wake_if_asleep(&self) -> bool {
        let asleep = self.inbox.must_wake();
        if asleep {
            // It fails only if the eventfd's counter is full, and then the thread is being woken anyway.
            let _ = self.waker.wake();
        }
        asleep
    }
}

impl Server {
    /// Closes a client's connection. Its commands that have not begun do not run, and it receives nothing
    /// more.
    ///
    /// Returns false if there is no such client.
    pub fn kill(&self, id: ClientId, thread: &ThreadState) -> bool {
        let Some(record) = self.clients.get(id) else { return false };
        if !record.killed.swap(true, Ordering::Relaxed) {
            self.attention.raise();
            self.clients.remove(id);
            let to = record.thread.load(Ordering::Relaxed);
            // The link to a primary reads no mail, but looks at its record.
            if to < self.io_threads().len() {
                thread.send_mail(to, Mail::Close(record));
            }
        }
        true
    }

    /// Panics if this step of a snapshot must panic.
    ///
    /// # Panics
    /// If `panics_while_saving` is not zero.
    pub fn panic_while_saving(&self) {
        let panics = self.debug.panics_while_saving.load(Ordering::Relaxed);
        if panics > 0 {
            self.debug.panics_while_saving.store(panics - 1, Ordering::Relaxed);
            panic!("DEBUG PANIC-WHILE-SAVING");
        }
    }

    /// Whether the checksums of payloads are compared.
    pub fn payload_checksums(&self) -> Checksums {
        match self.debug.skips_checksums.load(Ordering::Relaxed) {
            true => Checksums::Ignored,
            false => Checksums::Compared,
        }
    }

    /// Handles the end of a killed client.
    ///
    /// The caller is the thread that finds `killed` set when the client leaves. A leaving client sets it,
    /// too, so that no other thread kills it then.
    pub fn killed_client_left(&self) {
        self.attention.lower();
    }

    /// Returns how many heavy-work threads are stuck in one script.
    ///
    /// Other work should not wait for them.
    pub fn n_stuck_heavy(&self) -> usize {
        const STUCK_MILLIS: u64 = 100;
        let now = self.clock.uptime_millis();
        let heavy = &self.threads[self.io_threads().len()..][..self.heavy.len()];
        heavy
            .iter()
            .filter(|peer| peer.program.runs_for(now).is_some_and(|millis| millis >= STUCK_MILLIS))
            .count()
    }

    /// Warns the operator if the limit is below the memory in use.
    ///
    /// Keys will be evicted then, or writes refused.
    pub fn warn_of_small_limit(&self, maxmemory: Option<u64>) {
        let Some(limit) = maxmemory else { return };
        let (used, startup) = (Memory::used(), self.memory.startup.load(Ordering::Relaxed));
        if limit < startup {
            // CONFIG SET may hold shards.
            log::line_later(
                Level::Warning,
                format_args!(
                    "maxmemory is {limit} bytes, and the server takes {startup} without any data: no key fits in"
                ),
            );
        } else if limit < used {
            log::line_later(
                Level::Warning,
                format_args!(
                    "maxmemory is {limit} bytes, and {used} are in use: keys are evicted, or writes refused, as maxmemory-policy says"
                ),
            );
        }
    }

    /// Replaces the configuration.
    pub fn set_config(&self, config: Config) {
        if config.maxmemory != self.config.load().maxmemory {
            self.warn_of_small_limit(config.maxmemory);
        }
        configure_keyspace(&self.keyspace, &config);
        self.trackers.set_max_keys(config.tracking_table_max_keys);
        for peer in &self.threads {
            peer.stats.configure(&config);
        }
        self.time_each(command_log::times_each(&config));
        self.durability.configure(&config);
        self.replica.configure(&config);
        self.memory.set_limit(self.memory_limit(&config));
        self.config.store(Arc::new(config));
        // New limits of replicas apply to the next write.
        self.count_well_replicas();
        // The saver may have to start a log, or to end it.
        self.saver().wake_if_asleep();
        // A new `maxmemory` applies from now on.
        self.measure_memory();
        // Release pairs with the Acquire in `IoThread::heed_config`: a thread that sees the change sees the
        // configuration.
        self.config_changes.fetch_add(1, Ordering::Release);
        self.show_title();
    }

    /// Starts or stops timing each command alone.
    pub fn time_each(&self, times_each: bool) {
        match (self.times_each.swap(times_each, Ordering::Relaxed), times_each) {
            (false, true) => self.attention.raise(),
            (true, false) => self.attention.lower(),
            _ => {}
        }
    }

    /// Makes the clock follow the system's clock. Part of a cron.
    pub fn follow_clock(&self) {
        if let Some(ClockStep(micros)) = self.clock.follow() {
            let which = if micros < 0 { "back" } else { "forward" };
            warning!("The system's clock was set {which} by {:.3} seconds.", micros.abs() as f64 / 1e6);
        }
    }

    /// Starts tracking the cost of keys. Returns false if that is already on.
    pub fn track_hot_keys(&self, asked: HotKeysOptions) -> bool {
        let starts = self.hot_keys.start(asked, self.totals()).is_ok();
        if starts {
            self.attention.raise();
        }
        starts
    }

    /// Ends the tracking. Returns false if it was off.
    pub fn end_hot_keys(&self) -> bool {
        let ends = self.hot_keys.stop(self.totals());
        if ends {
            self.attention.lower();
        }
        ends
    }

    /// Ends the tracking if its time is over. Part of a cron, and called before its results are reported.
    pub fn end_hot_keys_in_time(&self) {
        if self.hot_keys.is_over(self.clock.steady()) && self.hot_keys.stop_if_over(self.totals()) {
            self.attention.lower();
        }
    }

    /// Returns the keys with the highest cost, if they are known.
    pub fn hot_key_report(&self) -> Option<Report> {
        self.hot_keys.report(self.totals())
    }

    fn totals(&self) -> Totals {
        let commands = self.threads.iter().flat_map(|peer| &peer.stats.commands);
        Totals {
            unix_millis: self.clock.unix_micros() / 1000,
            steady: self.clock.steady(),
            command_micros: commands.map(|counts| counts.nanos.get()).sum::<u64>() / 1000,
            net_bytes: self.sum(|stats| &stats.bytes_in) + self.sum(|stats| &stats.bytes_out),
            processor_micros: processor_micros(UsageWho::RUSAGE_SELF),
        }
    }

    /// Updates the process's title from the configuration.
    pub fn show_title(&self) {
        if let Some(title) = &self.process.title {
            title.show(&self.config.load());
        }
    }

    /// Stops the server: every thread ends its loop.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::Relaxed);
        // Heavy-work threads have no connections, and read no mail.
        for peer in self.io_threads() {
            peer.send(Mail::Resume);
        }
        for heavy in &self.heavy {
            heavy.unpark();
        }
        self.saver().wake_if_asleep();
        self.durability.wake_syncer();
        self.spooler.unpark();
        self.replica.wake_link();
        let on_stop = self.on_stop.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).take();
        if let Some(on_stop) = on_stop {
            on_stop();
        }
    }

    /// Wakes the threads whose replies wait for the log, which has advanced.
    pub fn wake_who_awaits_log(&self) {
        // Pairs with the fence of `Inbox::may_sleep`: either a thread has seen the log's position, or it is
        // seen to wait here.
        fence(Ordering::SeqCst);
        for peer in self.io_threads() {
            if peer.awaits_log.load(Ordering::Relaxed) {
                peer.wake_if_asleep();
            }
        }
    }

    /// The offset of the end of the change stream. On a replica, that of the last unit that was applied.
    pub fn replication_offset(&self) -> u64 {
        match self.replica.is_on() {
            true => self.replica.applied() as u64,
            false => self.durability.aof.stream().merged_end().1.0,
        }
    }

    /// The number of replicas that have acknowledged something within `min-replicas-max-lag`.
    pub fn n_well_replicas(&self) -> u64 {
        let most = self.config.load().min_replicas_max_lag.as_secs();
        let now = self.clock.uptime_millis();
        let is_well = |replica: &&Arc<Replica>| {
            replica.state() == ReplicaState::Online && replica.silent_for(now) / 1000 <= most
        };
        self.replication.replicas.all().iter().filter(is_well).count() as u64
    }

    /// Counts the replicas that are well, and lets writes notice if they are too few.
    pub fn count_well_replicas(&self) {
        loop {
            let config = self.config.load_full();
            let wants_any = config.min_replicas_to_write > 0 && !config.min_replicas_max_lag.is_zero();
            let is_short = wants_any && self.n_well_replicas() < config.min_replicas_to_write;
            match (self.replication.replicas.set_short(is_short), is_short) {
                (true, true) => self.attention.raise(),
                (true, false) => self.attention.lower(),
                (false, _) => {}
            }
            // CONFIG SET may have counted meanwhile, by the new limits.
            if Arc::ptr_eq(&config, &self.config.load()) {
                return;
            }
        }
    }

    /// Whether a replica is online and has not acknowledged the whole change stream. Records that are on
    /// their way to it count: their clients may have their replies.
    pub fn has_replica_behind(&self) -> bool {
        let stream = self.durability.aof.stream();
        let is_growing = stream.merged_end().0 < stream.intake().last_ticket();
        let end = self.replication_offset();
        let is_behind = |replica: &Arc<Replica>| {
            replica.state() >= ReplicaState::MustAck && (is_growing || replica.acked() < end)
        };
        self.replication.replicas.all().iter().any(is_behind)
    }

    /// Whether the server, which is about to end, waits for replicas before.
    pub fn awaits_replicas_at_end(&self) -> bool {
        let is_patient = !self.config.load().shutdown_timeout.is_zero();
        is_patient && self.replication.replicas.are_awaited_at_end() && self.has_replica_behind()
    }

    /// Tells the server log, which is about to end, how far the replicas are.
    pub fn tell_of_replicas_at_end(&self) {
        let (end, now) = (self.replication_offset(), self.clock.uptime_millis());
        let replicas = self.replication.replicas.all();
        let mut n_lagging = 0;
        for replica in replicas.iter().filter(|replica| replica.acked() != end) {
            n_lagging += 1;
            let state = replica.state();
            warning!(
                "Lagging replica {} reported offset {} behind master, lag={}, state={}.",
                replica.name(),
                end as i64 - replica.acked() as i64,
                if state == ReplicaState::Online { replica.silent_for(now) / 1000 } else { 0 },
                state.word()
            );
        }
        if !replicas.is_empty() {
            let n = replicas.len();
            notice!("{} of {n} replicas are in sync when shutting down.", n - n_lagging);
        }
    }

    /// The number of replicas that have the whole change stream, or have it on their disks.
    pub fn n_replicas_with_all(&self, on_disk: bool) -> u64 {
        self.replication.replicas.n_with(self.replication_offset(), on_disk)
    }

    /// Makes all heavy-work threads look for work.
    pub fn wake_heavy(&self) {
        self.heavy.iter().for_each(Unparker::unpark);
    }

    /// The threads that serve sockets. The heavy-work threads' peers follow them, then those of the link to a
    /// primary and of the saver.
    pub fn io_threads(&self) -> &[CachePadded<Peer>] {
        &self.threads[..self.threads.len() - self.heavy.len() - 2]
    }

    /// The thread that takes snapshots.
    pub fn saver(&self) -> &Peer {
        self.threads.last().expect("it is one of them")
    }

    /// Orders a snapshot from the saver on behalf of a waiting command or thread.
    ///
    /// If a command waits, its node is given, with whether its client wants the reply.
    pub fn order_save(&self, what: SaveOrder, node: Option<(Box<Node<Job>>, bool)>) {
        if what.is_shutdown()
            && let Some((node, _)) = &node
        {
            // It may wait for replicas, as a blocked client does.
            node.job.session.record.blocked.store(true, Ordering::Relaxed);
        }
        self.order_of(AskedBy::Client, what, node);
    }

    fn order_of(&self, by: AskedBy, what: SaveOrder, node: Option<(Box<Node<Job>>, bool)>) {
        let round = if what.is_shutdown() { self.saves.ending.ask(by) } else { 0 };
        self.saves.order(PendingSave { what, round, node });
        self.saver().wake_if_asleep();
    }

    /// Returns the number of changes to keys that no snapshot contains.
    pub fn n_unsaved_changes(&self) -> u64 {
        self.sum(|stats| &stats.changes).saturating_sub(self.saves.n_changes_saved.load(Ordering::Relaxed))
    }

    /// Records whether a snapshot has been saved. While the last one has failed, commands check whether they
    /// may write.
    pub fn note_saved(&self, is_saved: bool) {
        match (self.saves.has_failed.swap(!is_saved, Ordering::Relaxed), !is_saved) {
            (false, true) => self.attention.raise(),
            (true, false) => self.attention.lower(),
            _ => {}
        }
    }

    /// Whether writes are refused because the last snapshot has failed.
    pub fn must_save_first(&self) -> bool {
        let config = self.config.load();
        self.saves.has_failed.load(Ordering::Relaxed)
            && config.stop_writes_on_bgsave_error
            && !config.save.is_empty()
    }

    /// Stops the server because of a signal. Saves its data first if that is requested.
    pub fn shut_down(&self, options: ShutdownOptions) {
        if !self.may_stop(options.force) {
            return;
        }
        match self.order_at_shutdown(options) {
            // As in Redis, a repeated request is not a request for another attempt if the first one fails.
            Some(_) if self.saves.ending.is_wanted() => drop(self.saves.ending.ask(AskedBy::Signal)),
            Some(order) => self.order_of(AskedBy::Signal, order, None),
            None => self.stop(),
        }
    }

    /// Whether the server may stop.
    ///
    /// It may not while the append-only file has no base, unless forced, because all data would be lost.
    pub fn may_stop(&self, is_forced: bool) -> bool {
        let has_base = !self.durability.aof.needs_base();
        match (has_base, is_forced) {
            (true, _) => {}
            (false, true) => warning!("Writing initial AOF. Exit anyway."),
            (false, false) => {
                warning!("Writing initial AOF, can't exit.");
                warning!("Errors trying to shut down the server. Check the logs for more information.");
            }
        }
        has_base || is_forced
    }

    /// Returns a step to the saver with its result.
    pub fn give_step_back(&self, step: Box<WalkStep>) {
        self.saves.taken.push(step);
        self.saver().wake_if_asleep();
    }

    /// Returns the order for the saver before the server stops, if there is one.
    ///
    /// A save with a waiting client comes first in any case.
    pub fn order_at_shutdown(&self, options: ShutdownOptions) -> Option<SaveOrder> {
        let ShutdownOptions { save, nosave, now, force } = options;
        self.replication.replicas.await_at_end(!now);
        // Data that is only partly loaded must not replace the complete file.
        if self.loading.is_on() {
            return None;
        }
        if !save && (nosave || self.config.load().save.is_empty()) {
            let is_waiting = self.awaits_replicas_at_end();
            return (is_waiting || self.saves.has_unfulfilled()).then_some(SaveOrder::Stop);
        }
        Some(if force { SaveOrder::ForcedShutdown } else { SaveOrder::Shutdown })
    }

    /// The I/O threads that should have connections.
    pub fn threads_in_use(&self) -> &[CachePadded<Peer>] {
        &self.io_threads()[..self.spread.n_in_use()]
    }

    /// Returns the thread for one more connection.
    ///
    /// It is the one with the fewest, unless a script occupies it.
    pub fn thread_for_another(&self) -> usize {
        let n_in_use = self.threads_in_use().len();
        let fewest = self.io_threads().iter().enumerate().min_by_key(|(index, peer)| {
            (self.is_kept_by_script(*index), *index >= n_in_use, peer.n_connections())
        });
        fewest.map_or(0, |(index, _)| index)
    }

    /// Whether a thread has run one script for so long that its connections wait. Another connection must be
    /// able to end the script.
    pub fn is_kept_by_script(&self, index: usize) -> bool {
        const LONG_MILLIS: u64 = 100;
        let runs_for = self.threads[index].program.runs_for(self.clock.uptime_millis());
        runs_for.is_some_and(|millis| millis >= LONG_MILLIS)
    }

    /// Measures the memory in use, for INFO and for `maxmemory`.
    pub fn measure_memory(&self) {
        let of_clients = self.client_bytes() + self.notification_bytes() + self.bytes_unsent_to_replicas();
        self.memory.measure(of_clients, resident_bytes, self.uptime());
        if self.memory.room() >= 0 {
            self.memory.note_exceeding(false, self.started);
        }
    }

    /// The bytes of the change stream that are in memory because a replica has not been sent them.
    pub fn bytes_unsent_to_replicas(&self) -> u64 {
        let kept_from = self.replication.replicas.kept_from();
        let kept_from = kept_from.into_iter().chain(self.replication.spools.memory_from()).min();
        kept_from.map_or(0, |place| self.durability.aof.stream().merged_end().1.0.saturating_sub(place.0))
    }

    /// Records the processor time of the calling thread, which is the first one.
    pub fn measure_first_thread(&self) {
        let first = &self.threads[0].micros_by_mode;
        for (mode, micros) in first.iter().zip(processor_micros(UsageWho::RUSAGE_THREAD)) {
            mode.store(micros, Ordering::Relaxed);
        }
    }

    /// The memory of queued notifications to subscribers, monitoring clients and tracking clients.
    pub fn notification_bytes(&self) -> u64 {
        self.threads.iter().map(|peer| peer.notifications.n_bytes()).sum()
    }

    /// The number of bytes written to replicas and to the primary.
    pub fn replica_bytes_out(&self) -> u64 {
        self.sum(|stats| &stats.replica_bytes_out) + self.replica.link_bytes_out.load(Ordering::Relaxed)
    }

    /// Samples the threads' statistics. Part of one thread's cron.
    pub fn sample_rates(&self) {
        let totals = Rates {
            commands: self.n_calls(),
            bytes_in: self.sum(|stats| &stats.bytes_in),
            bytes_out: self.sum(|stats| &stats.bytes_out),
            replica_bytes_in: self.replica.link_bytes_in.load(Ordering::Relaxed),
            replica_bytes_out: self.replica_bytes_out(),
            turns: self.sum(|stats| &stats.turns),
            busy_nanos: self.sum(|stats| &stats.busy_nanos),
        };
        let mut sampler = self.rate_sampler.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        sampler.note(self.clock.uptime_millis(), totals);
    }

    /// The rates per second.
    pub fn rates(&self) -> Rates {
        self.rate_sampler.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).rates()
    }

    /// The number of commands that have run.
    pub fn n_calls(&self) -> u64 {
        let commands = self.threads.iter().flat_map(|peer| &peer.stats.commands);
        commands.map(|counts| counts.calls.get()).sum()
    }

    /// Each thread's statistics of a command.
    pub fn counts_of(&self, command: CommandId) -> impl Iterator<Item = &CommandCounts> {
        self.threads.iter().map(move |peer| &peer.stats.commands[command.index()])
    }

    /// The number of error replies by their first word.
    pub fn error_counts(&self) -> BTreeMap<String, u64> {
        let mut by_code: BTreeMap<String, u64> = BTreeMap::new();
        for peer in &self.threads {
            for (code, count) in peer.stats.by_error.load().iter() {
                *by_code.entry(code.to_string()).or_default() += count.get();
            }
        }
        by_code.retain(|_, count| *count > 0);
        by_code
    }

    /// The latencies of commands, if they were recorded.
    pub fn latencies(&self, of: impl Iterator<Item = CommandId>) -> Option<Latencies> {
        let recorders = of.flat_map(|id| {
            self.threads.iter().filter_map(move |peer| peer.stats.latencies[id.index()].get())
        });
        Latencies::sum(recorders)
    }

    /// The latencies of one phase of a family of commands, if they were requested.
    pub fn split(&self, family: Group, phase: Phase) -> Option<Latencies> {
        Splits::sum(self.io_threads().iter().map(|peer| &peer.stats.splits), family, phase)
    }

    /// The configured percentiles, with their values in microseconds.
    pub fn percentiles(&self, latencies: &Latencies) -> Vec<(f64, f64)> {
        let percents = self.config.load().latency_tracking_info_percentiles.clone();
        let micros = |percent| latencies.percentile_nanos(percent) as f64 / 1000.0;
        percents.into_iter().map(|percent| (percent, micros(percent))).collect()
    }

    /// The sum of one number of all threads' statistics.
    pub fn sum(&self, count: impl Fn(&ThreadStats) -> &Count) -> u64 {
        self.threads.iter().map(|peer| count(&peer.stats).get()).sum()
    }

    /// The time for which commands have run on threads that serve sockets, in nanoseconds.
    pub fn command_nanos(&self) -> u64 {
        let commands = self.io_threads().iter().flat_map(|peer| &peer.stats.commands);
        commands.map(|counts| counts.nanos.get()).sum()
    }

    /// The time for which the server has run.
    pub fn uptime(&self) -> Duration {
        self.started.elapsed()
    }
}

/// Passes the keyspace its part of the configuration.
pub fn configure_keyspace(keyspace: &Keyspace, config: &Config) {
    keyspace.access().set_policy(access_policy(config));
    let thresholds = keyspace.thresholds();
    thresholds.hash_max_listpack_entries.set(config.hash_max_listpack_entries);
    thresholds.hash_max_listpack_value.set(config.hash_max_listpack_value);
    thresholds.list_max_listpack_size.set(config.list_max_listpack_size.into());
    thresholds.set_max_intset_entries.set(config.set_max_intset_entries);
    thresholds.set_max_listpack_entries.set(config.set_max_listpack_entries);
    thresholds.set_max_listpack_value.set(config.set_max_listpack_value);
    thresholds.zset_max_listpack_entries.set(config.zset_max_listpack_entries);
    thresholds.zset_max_listpack_value.set(config.zset_max_listpack_value);
    thresholds.stream_node_max_bytes.set(config.stream_node_max_bytes);
    thresholds.stream_node_max_entries.set(config.stream_node_max_entries);
    thresholds.hll_sparse_max_bytes.set(config.hll_sparse_max_bytes);
}

/// How keys record their use, by the needs of the eviction policy.
fn access_policy(config: &Config) -> AccessPolicy {
    match config.maxmemory_policy {
        MaxmemoryPolicy::VolatileLfu | MaxmemoryPolicy::AllkeysLfu => {
            AccessPolicy::Lfu { log_factor: config.lfu_log_factor, decay_minutes: config.lfu_decay_time }
        }
        MaxmemoryPolicy::VolatileLrm | MaxmemoryPolicy::AllkeysLrm => AccessPolicy::Lrm,
        _ => AccessPolicy::Lru,
    }
}
