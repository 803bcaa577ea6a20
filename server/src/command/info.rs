//! The text of INFO.
//!
//! Fields have the names and the order of Redis 7.4. Fields of missing features are omitted, unless
//! monitoring agents read them. Their values are then those of a server without the feature.

use std::{
    collections::{BTreeMap, HashSet},
    fmt::{Display, Write},
    fs,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use braid_storage::{ChannelKind, hash::KeyHasher};
use nix::sys::resource::UsageWho;

use crate::{
    catalog::Group,
    client::{footprint::Part, node::Parked, record::Listens},
    clock::processor_micros,
    command::{CommandTable, memory_reports::Figures},
    config::{REDIS_VERSION, Supervised, short_decimal},
    process::system::kilobytes_of,
    shared::server::{BRAID_VERSION, SPARE_THREADS, Server},
    telemetry::split::Phase,
};

/// The requests that show a section.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shown {
    /// `INFO` without arguments.
    ByDefault,
    /// `INFO all`.
    WithAll,
    /// `INFO everything`, and by default, because any client may read about modules.
    WithModules,
    /// Its name only.
    ByName,
}

struct Section {
    name: &'static str,
    title: &'static str,
    shown: Shown,
    write: fn(&Server, &mut Text<'_>),
}

const SECTIONS: &[Section] = &[
    section("server", "Server", Shown::ByDefault, server_section),
    section("clients", "Clients", Shown::ByDefault, clients_section),
    section("memory", "Memory", Shown::ByDefault, memory_section),
    section("persistence", "Persistence", Shown::ByDefault, persistence_section),
    section("stats", "Stats", Shown::ByDefault, stats_section),
    section("replication", "Replication", Shown::ByDefault, replication_section),
    section("cpu", "CPU", Shown::ByDefault, cpu_section),
    section("modules", "Modules", Shown::WithModules, |_, _| {}),
    section("commandstats", "Commandstats", Shown::WithAll, commandstats_section),
    section("errorstats", "Errorstats", Shown::ByDefault, errorstats_section),
    section("latencystats", "Latencystats", Shown::WithAll, latencystats_section),
    section("cluster", "Cluster", Shown::ByDefault, cluster_section),
    section("keyspace", "Keyspace", Shown::ByDefault, keyspace_section),
    section("latencysplit", "Latencysplit", Shown::ByName, latencysplit_section),
    section("debug", "Debug", Shown::ByName, debug_section),
];

const fn section(
    name: &'static str,
    title: &'static str,
    shown: Shown,
    write: fn(&Server, &mut Text<'_>),
) -> Section {
    Section { name, title, shown, write }
}

/// Returns the named sections in a fixed order; without names, the default ones.
pub fn text<'a>(
    table: &CommandTable,
    server: &Server,
    asked: impl ExactSizeIterator<Item = &'a [u8]> + Clone,
) -> String {
    let mut text = Text { table, written: String::with_capacity(4096) };
    for section in SECTIONS {
        let wanted = if asked.len() == 0 {
            asks_for(b"default", section)
        } else {
            asked.clone().any(|name| asks_for(name, section))
        };
        if wanted {
            text.begin(section.title);
            (section.write)(server, &mut text);
        }
    }
    text.written
}

fn asks_for(name: &[u8], section: &Section) -> bool {
    match &name.to_ascii_lowercase()[..] {
        b"default" => matches!(section.shown, Shown::ByDefault | Shown::WithModules),
        b"all" => matches!(section.shown, Shown::ByDefault | Shown::WithAll),
        b"everything" => section.shown != Shown::ByName,
        name => name == section.name.as_bytes(),
    }
}

/// Writes sections and fields.
struct Text<'t> {
    table: &'t CommandTable,
    written: String,
}

impl Text<'_> {
    fn begin(&mut self, title: &str) {
        if !self.written.is_empty() {
            self.written.push_str("\r\n");
        }
        self.line(format_args!("# {title}"));
    }

    fn field(&mut self, name: &str, value: impl Display) {
        self.line(format_args!("{name}:{value}"));
    }

    /// Writes a number of bytes, and the same in readable form.
    fn bytes(&mut self, name: &str, bytes: u64) {
        self.field(name, bytes);
        self.line(format_args!("{name}_human:{}", human(bytes)));
    }

    /// Writes memory beyond the memory in use, as a ratio and in bytes.
    fn overhead(&mut self, name: &str, (ratio, bytes): (f64, i64)) {
        self.line(format_args!("{name}_ratio:{ratio:.2}"));
        self.field(&format!("{name}_bytes"), bytes);
    }

    fn line(&mut self, line: std::fmt::Arguments<'_>) {
        write!(self.written, "{line}\r\n").expect("a string takes whatever is written");
    }
}

/// Abbreviates bytes as Redis does.
fn human(bytes: u64) -> String {
    if bytes < 1024 {
        return format!("{bytes}B");
    }
    let mut value = bytes as f64 / 1024.0;
    let mut units = "KMGTPE".chars();
    let mut unit = units.next().unwrap_or_default();
    while value >= 1024.0 {
        value /= 1024.0;
        unit = units.next().unwrap_or_default();
    }
    format!("{value:.2}{unit}")
}

fn server_section(server: &Server, text: &mut Text<'_>) {
    let config = server.config.load();
    let uptime = server.uptime().as_secs();
    let micros = server.clock.unix_micros();
    text.field("redis_version", REDIS_VERSION);
    text.field("braid_version", BRAID_VERSION);
    text.field("redis_git_sha1", "00000000");
    text.field("redis_git_dirty", 0);
    let build = KeyHasher::with_key(0, 0).hash(BRAID_VERSION.as_bytes());
    text.line(format_args!("redis_build_id:{:016x}", build.0));
    text.field("redis_mode", "standalone");
    text.field("os", operating_system());
    text.field("arch_bits", usize::BITS);
    text.field("monotonic_clock", "POSIX clock_gettime");
    text.field("multiplexing_api", "epoll");
    text.field("atomicvar_api", "rust-core");
    // Redis's value if the compiler was not GCC.
    text.field("gcc_version", "0.0.0");
    text.field("process_id", std::process::id());
    let is_supervised = server.process.supervisor == Supervised::Systemd;
    text.field("process_supervised", if is_supervised { "systemd" } else { "no" });
    text.field("run_id", &server.run_id);
    text.field("tcp_port", config.main_port());
    text.field("server_time_usec", micros);
    text.field("uptime_in_seconds", uptime);
    text.field("uptime_in_days", uptime / 86_400);
    text.field("hz", config.hz);
    text.field("configured_hz", config.hz);
    text.field("lru_clock", (micros / 1_000_000) & 0xff_ffff);
    let executable = std::env::current_exe().unwrap_or_default();
    text.field("executable", executable.display());
    text.field("config_file", config.file().unwrap_or(std::path::Path::new("")).display());
    text.field("io_threads", config.io_threads);
    text.field("io_threads_active", i32::from(server.spread.n_in_use() > 1));
}

fn operating_system() -> String {
    let kernel = |name: &str| {
        let text = fs::read_to_string(format!("/proc/sys/kernel/{name}")).unwrap_or_default();
        text.trim().to_owned()
    };
    format!("{} {} {}", kernel("ostype"), kernel("osrelease"), std::env::consts::ARCH)
}

fn clients_section(server: &Server, text: &mut Text<'_>) {
    let clients = server.clients.all();
    let most = |part: Part| clients.iter().map(|client| client.footprint.of(part)).max().unwrap_or_default();
    let n_watching = clients.iter().filter(|client| client.watched.load(Ordering::Relaxed) > 0).count();
    text.field("connected_clients", server.clients.count());
    text.field("cluster_connections", 0);
    text.field("maxclients", server.config.load().maxclients);
    text.field("client_recent_max_input_buffer", most(Part::Input));
    text.field("client_recent_max_output_buffer", most(Part::Output));
    text.field(
        "blocked_clients",
        clients.iter().filter(|client| client.blocked.load(Ordering::Relaxed)).count(),
    );
    text.field(
        "tracking_clients",
        clients.iter().filter(|client| client.listens(Listens::ToChanges)).count(),
    );
    text.field("pubsub_clients", clients.iter().filter(|client| client.listens(Listens::ToTopics)).count());
    text.field("watching_clients", n_watching);
    text.field("clients_in_timeout_table", 0);
    text.field("total_watched_keys", server.keyspace.n_watched());
    let waits: Vec<Arc<Parked>> = clients.iter().filter_map(|client| client.waiting.load_full()).collect();
    text.field("total_blocking_keys", n_awaited(&waits, |_| true));
    text.field("total_blocking_keys_on_nokey", n_awaited(&waits, Parked::hears_of_removal));
    text.field("paused_reason", server.pause_reason());
}

/// Counts the keys that clients wait for, in the waits for which `meant` returns true.
fn n_awaited(waits: &[Arc<Parked>], meant: impl Fn(&Parked) -> bool) -> usize {
    let waits = waits.iter().filter(|wait| wait.is_visible() && !wait.is_claimed() && meant(wait));
    waits.flat_map(|wait| wait.keys()).map(|key| (key.db, &key.bytes)).collect::<HashSet<_>>().len()
}

fn memory_section(server: &Server, text: &mut Text<'_>) {
    let config = server.config.load();
    let figures = Figures::read(server);
    let [in_allocator, paged, outside, total] = figures.overheads();
    text.bytes("used_memory", figures.used());
    text.bytes("used_memory_rss", figures.resident);
    text.bytes("used_memory_peak", figures.peak);
    text.line(format_args!("used_memory_peak_perc:{:.2}%", figures.peak_percent()));
    text.field("used_memory_overhead", figures.overhead());
    text.field("used_memory_startup", figures.startup);
    text.field("used_memory_dataset", figures.dataset);
    text.line(format_args!("used_memory_dataset_perc:{:.2}%", figures.dataset_percent()));
    text.field("allocator_allocated", figures.used());
    text.field("allocator_active", figures.own);
    text.field("allocator_resident", figures.own);
    text.bytes("total_system_memory", kilobytes_of("/proc/meminfo", "MemTotal:") * 1024);
    let (scripts, functions) = (server.scripts.known(), server.functions.known());
    let [lua_of_scripts, lua_of_functions] = figures.in_lua;
    text.bytes("used_memory_lua", lua_of_scripts);
    text.field("used_memory_vm_eval", lua_of_scripts);
    text.field("used_memory_scripts_eval", figures.scripts);
    text.field("number_of_cached_scripts", scripts.len());
    text.field("number_of_functions", functions.n_functions());
    text.field("number_of_libraries", functions.libraries().len());
    text.field("used_memory_vm_functions", lua_of_functions);
    text.bytes("used_memory_vm_total", lua_of_scripts + lua_of_functions);
    text.field("used_memory_functions", figures.functions);
    text.bytes("used_memory_scripts", figures.scripts + figures.functions);
    text.bytes("maxmemory", config.maxmemory.unwrap_or_default());
    text.field("maxmemory_policy", setting(server, "maxmemory-policy"));
    text.overhead("allocator_frag", in_allocator);
    text.overhead("allocator_rss", paged);
    text.overhead("rss_overhead", outside);
    text.overhead("mem_fragmentation", total);
    text.field("used_memory_of_data", figures.data);
    text.field("used_memory_of_clients", figures.of_clients);
    text.field("used_memory_of_server", figures.of_server());
    text.field("mem_not_counted_for_evict", figures.uncounted);
    text.field("mem_replication_backlog", 0);
    text.field("mem_total_replication_buffers", 0);
    text.field("mem_clients_slaves", 0);
    text.field("mem_clients_normal", figures.of_clients);
    text.field("mem_notifications", figures.notifications);
    text.field("mem_cluster_links", 0);
    text.field("mem_aof_buffer", figures.unwritten);
    text.field("mem_allocator", "mimalloc");
    text.field("active_defrag_running", 0);
    text.field("lazyfree_pending_objects", braid_storage::n_garbage());
    text.field("lazyfreed_objects", braid_storage::n_reclaimed());
}

/// Returns a setting as CONFIG GET prints it.
fn setting(server: &Server, name: &str) -> String {
    let is = |pattern: &[u8], text: &[u8]| pattern == text;
    let found = server.config.load().get(&[name.as_bytes()], is);
    found.first().map(|(_, value)| String::from_utf8_lossy(value).into_owned()).unwrap_or_default()
}

fn persistence_section(server: &Server, text: &mut Text<'_>) {
    let loading = server.loading.progress(&server.clock);
    let (keys_loaded, keys_expired) = server.loading.last();
    text.field("loading", i32::from(loading.is_some()));
    text.field("async_loading", 0);
    text.field("current_cow_peak", 0);
    text.field("current_cow_size", 0);
    text.field("current_cow_size_age", 0);
    text.field("current_fork_perc", "0.00");
    let saves = &server.saves;
    let is_under_way = saves.is_under_way.load(Ordering::Relaxed);
    let while_under_way = |count: &AtomicU64| if is_under_way { count.load(Ordering::Relaxed) } else { 0 };
    text.field("current_save_keys_processed", while_under_way(&saves.n_keys_written));
    text.field("current_save_keys_total", while_under_way(&saves.n_keys));
    text.field("rdb_changes_since_last_save", server.n_unsaved_changes());
    text.field("rdb_bgsave_in_progress", u8::from(is_under_way));
    text.field("rdb_last_save_time", saves.saved_at.load(Ordering::Relaxed));
    let has_failed = saves.has_failed.load(Ordering::Relaxed);
    text.field("rdb_last_bgsave_status", if has_failed { "err" } else { "ok" });
    text.field("rdb_last_bgsave_time_sec", saves.took_seconds.load(Ordering::Relaxed));
    let began_at = saves.began_at.load(Ordering::Relaxed);
    let so_far = server.clock.uptime_millis().saturating_sub(began_at) / 1000;
    text.field("rdb_current_bgsave_time_sec", if is_under_way { so_far as i64 } else { -1 });
    text.field("rdb_saves", saves.n_saved.load(Ordering::Relaxed));
    text.field("rdb_last_cow_size", 0);
    text.field("rdb_last_load_keys_expired", keys_expired);
    text.field("rdb_last_load_keys_loaded", keys_loaded);
    let is_on = server.durability.aof.is_writing();
    let (is_wanted, is_scheduled) =
        (server.config.load().appendonly, saves.is_rewrite_scheduled.load(Ordering::Relaxed));
    // A requested rewrite begins soon, unless a snapshot comes first.
    let has_failed = saves.has_rewrite_failed.load(Ordering::Relaxed);
    let will_begin = is_wanted && !is_on && !has_failed && !server.loading.is_on();
    // The AOF was turned on but has no base yet, so the rewrite is tried again.
    let is_put_off = is_wanted && !is_on && has_failed && !server.loading.is_on();
    let is_scheduled = is_scheduled || will_begin;
    let begins = is_scheduled && !is_under_way;
    let is_rewriting = saves.is_rewriting.load(Ordering::Relaxed) || begins;
    let seconds = &saves.rewrite_took_seconds;
    let began_at = saves.rewrite_began_at.load(Ordering::Relaxed);
    let so_far = server.clock.uptime_millis().saturating_sub(began_at) / 1000;
    let status = |has_failed: bool| if has_failed { "err" } else { "ok" };
    text.field("aof_enabled", u8::from(is_wanted));
    text.field("aof_rewrite_in_progress", u8::from(is_rewriting));
    text.field("aof_rewrite_scheduled", u8::from(is_scheduled && is_under_way || is_put_off));
    text.field("aof_last_rewrite_time_sec", seconds.load(Ordering::Relaxed));
    text.field("aof_current_rewrite_time_sec", if is_rewriting { so_far as i64 } else { -1 });
    text.field("aof_last_bgrewrite_status", status(has_failed));
    text.field("aof_rewrites", saves.n_rewritten.load(Ordering::Relaxed));
    text.field("aof_rewrites_consecutive_failures", saves.n_rewrites_failed.load(Ordering::Relaxed));
    text.field("aof_last_write_status", status(server.durability.aof.has_failed()));
    text.field("aof_last_cow_size", 0);
    text.field("module_fork_in_progress", 0);
    text.field("module_fork_last_cow_size", 0);
    if server.durability.aof.has_file() {
        let (n_bytes, n_bytes_rewritten) = server.durability.aof.sizes();
        text.field("aof_current_size", n_bytes);
        text.field("aof_base_size", n_bytes_rewritten);
        text.field("aof_pending_rewrite", 0);
        text.field("aof_buffer_length", server.durability.aof.unwritten_bytes());
        text.field("aof_pending_bio_fsync", u8::from(server.durability.aof.is_syncing()));
        text.field("aof_delayed_fsync", server.durability.aof.n_delayed());
    }
    if let Some(loading) = loading {
        text.field("loading_start_time", loading.began);
        text.field("loading_total_bytes", loading.total_bytes);
        text.field("loading_rdb_used_mem", 0);
        text.field("loading_loaded_bytes", loading.loaded_bytes);
        text.field("loading_loaded_perc", format_args!("{:.2}", loading.percent));
        text.field("loading_eta_seconds", loading.eta_seconds);
    }
}

fn stats_section(server: &Server, text: &mut Text<'_>) {
    let rates = server.rates();
    let bytes_in = server.sum(|stats| &stats.bytes_in);
    let bytes_out = server.sum(|stats| &stats.bytes_out);
    text.field("total_connections_received", server.sum(|stats| &stats.connections));
    text.field("total_commands_processed", server.n_calls());
    text.field("instantaneous_ops_per_sec", rates.commands);
    text.field("total_net_input_bytes", bytes_in);
    text.field("total_net_output_bytes", bytes_out);
    text.field("total_net_repl_input_bytes", 0);
    text.field("total_net_repl_output_bytes", 0);
    text.line(format_args!("instantaneous_input_kbps:{:.2}", rates.bytes_in as f64 / 1024.0));
    text.line(format_args!("instantaneous_output_kbps:{:.2}", rates.bytes_out as f64 / 1024.0));
    text.field("instantaneous_input_repl_kbps", "0.00");
    text.field("instantaneous_output_repl_kbps", "0.00");
    text.field("rejected_connections", server.sum(|stats| &stats.refused));
    text.field("sync_full", 0);
    text.field("sync_partial_ok", 0);
    text.field("sync_partial_err", 0);
    text.field("expired_subkeys", server.keyspace.expired_fields());
    text.field("expired_keys", server.keyspace.expired());
    let stale: u64 =
        server.io_threads().iter().map(|peer| peer.stats.stale_millionths.load(Ordering::Relaxed)).sum();
    let stale_percent = stale as f64 / server.io_threads().len() as f64 / 10_000.0;
    text.line(format_args!("expired_stale_perc:{stale_percent:.2}"));
    text.field("expired_time_cap_reached_count", server.sum(|stats| &stats.expiry_caps));
    text.field("expire_cycle_cpu_milliseconds", server.sum(|stats| &stats.expiry_nanos) / 1_000_000);
    text.field("evicted_keys", server.sum(|stats| &stats.evicted));
    text.field("evicted_clients", server.sum(|stats| &stats.evicted_clients));
    let [exceeded_now, exceeded] = server.memory.exceeded(server.started);
    text.field("total_eviction_exceeded_time", exceeded.as_millis());
    text.field("current_eviction_exceeded_time", exceeded_now.as_millis());
    text.field("keyspace_hits", server.sum(|stats| &stats.hits));
    text.field("keyspace_misses", server.sum(|stats| &stats.misses));
    text.field("pubsub_channels", server.pubsub.n_channels(ChannelKind::Global));
    text.field("pubsub_patterns", server.pubsub.patterns.len());
    text.field("pubsubshard_channels", server.pubsub.n_channels(ChannelKind::Sharded));
    text.field("latest_fork_usec", 0);
    text.field("total_forks", 0);
    text.field("migrate_cached_sockets", 0);
    text.field("slave_expires_tracked_keys", 0);
    text.field("total_active_defrag_time", 0);
    text.field("current_active_defrag_time", 0);
    text.field("active_defrag_hits", 0);
    text.field("active_defrag_misses", 0);
    text.field("active_defrag_key_hits", 0);
    text.field("active_defrag_key_misses", 0);
    text.field("tracking_total_keys", server.trackers.n_keys());
    text.field("tracking_total_items", server.trackers.n_readers());
    text.field("tracking_total_prefixes", server.trackers.n_prefixes());
    text.field("unexpected_error_replies", 0);
    text.field("total_error_replies", server.sum(|stats| &stats.errors));
    text.field("dump_payload_sanitizations", 0);
    text.field("total_reads_processed", server.sum(|stats| &stats.reads));
    text.field("total_writes_processed", server.sum(|stats| &stats.writes));
    // Counts of all threads but the first.
    let others = || server.io_threads().iter().skip(1);
    text.field("io_threaded_reads_processed", others().map(|peer| peer.stats.reads.get()).sum::<u64>());
    text.field("io_threaded_writes_processed", others().map(|peer| peer.stats.writes.get()).sum::<u64>());
    text.field("reply_buffer_shrinks", 0);
    text.field("reply_buffer_expands", 0);
    text.field("client_query_buffer_limit_disconnections", server.sum(|stats| &stats.input_limit_closes));
    text.field("client_output_buffer_limit_disconnections", server.sum(|stats| &stats.output_limit_closes));
    text.field("eventloop_cycles", server.sum(|stats| &stats.turns));
    text.field("eventloop_duration_sum", server.sum(|stats| &stats.busy_nanos) / 1000);
    text.field("eventloop_duration_cmd_sum", server.command_nanos() / 1000);
    text.field("instantaneous_eventloop_cycles_per_sec", rates.turns);
    text.field("instantaneous_eventloop_duration_usec", rates.busy_nanos / 1000 / rates.turns.max(1));
    text.field(
        "acl_access_denied_auth",
        server.sum(|stats| &stats.failed_auths) + server.failed_logins.load(Ordering::Relaxed),
    );
    text.field("acl_access_denied_cmd", server.sum(|stats| &stats.denied_commands));
    text.field("acl_access_denied_key", server.sum(|stats| &stats.denied_keys));
    text.field("acl_access_denied_channel", server.sum(|stats| &stats.denied_channels));
    text.field("acl_access_denied_tls_cert", server.sum(|stats| &stats.denied_certificates));
    // Braid's own.
    text.field("lane_runs", server.engine.n_lane_runs());
}

fn replication_section(server: &Server, text: &mut Text<'_>) {
    text.field("role", "master");
    text.field("connected_slaves", 0);
    text.field("master_failover_state", "no-failover");
    text.field("master_replid", &server.run_id);
    text.field("master_replid2", "0".repeat(40));
    text.field("master_repl_offset", 0);
    text.field("second_repl_offset", -1);
    text.field("repl_backlog_active", 0);
    text.field("repl_backlog_size", setting(server, "repl-backlog-size"));
    text.field("repl_backlog_first_byte_offset", 0);
    text.field("repl_backlog_histlen", 0);
}

fn cpu_section(server: &Server, text: &mut Text<'_>) {
    let first_thread =
        server.threads[0].micros_by_mode.each_ref().map(|micros| micros.load(Ordering::Relaxed));
    for (suffix, [user, system]) in [
        ("", processor_micros(UsageWho::RUSAGE_SELF)),
        ("_children", processor_micros(UsageWho::RUSAGE_CHILDREN)),
        ("_main_thread", first_thread),
    ] {
        for (mode, micros) in [("sys", system), ("user", user)] {
            let (seconds, rest) = (micros / 1_000_000, micros % 1_000_000);
            text.line(format_args!("used_cpu_{mode}{suffix}:{seconds}.{rest:06}"));
        }
    }
}

fn commandstats_section(server: &Server, text: &mut Text<'_>) {
    for command in text.table.all() {
        let counts = || command.counted().flat_map(|row| server.counts_of(row.id));
        let calls: u64 = counts().map(|counts| counts.calls.get()).sum();
        let nanos: u64 = counts().map(|counts| counts.nanos.get()).sum();
        let rejected: u64 = counts().map(|counts| counts.rejected.get()).sum();
        let failed: u64 = counts().map(|counts| counts.failed.get()).sum();
        if calls + rejected + failed == 0 {
            continue;
        }
        let micros = nanos as f64 / 1000.0;
        text.line(format_args!(
            "cmdstat_{}:calls={calls},usec={micros:.0},usec_per_call={:.2},rejected_calls={rejected},failed_calls={failed}",
            command.full_name,
            micros / calls.max(1) as f64,
        ));
    }
}

fn latencystats_section(server: &Server, text: &mut Text<'_>) {
    for command in text.table.all() {
        let Some(latencies) = server.latencies(command.counted().map(|row| row.id)) else { continue };
        let percentiles: Vec<String> = server
            .percentiles(&latencies)
            .into_iter()
            .map(|(percent, micros)| format!("p{}={micros:.3}", short_decimal(percent)))
            .collect();
        text.line(format_args!("latency_percentiles_usec_{}:{}", command.full_name, percentiles.join(",")));
    }
}

/// Writes how commands spend their time: a line for each group of commands and phase.
fn latencysplit_section(server: &Server, text: &mut Text<'_>) {
    text.field("latency_split", if server.config.load().latency_split { "yes" } else { "no" });
    for family in Group::ALL {
        for phase in Phase::ALL {
            let Some(latencies) = server.split(family, phase) else { continue };
            let percentiles: String = server
                .percentiles(&latencies)
                .into_iter()
                .map(|(percent, micros)| format!(",p{}={micros:.3}", short_decimal(percent)))
                .collect();
            let (family, phase) = (family.name(), phase.name());
            text.line(format_args!(
                "latency_split_usec_{family}_{phase}:reads={}{percentiles}",
                latencies.n_calls()
            ));
        }
    }
}

fn errorstats_section(server: &Server, text: &mut Text<'_>) {
    let mut by_code: BTreeMap<String, u64> = BTreeMap::new();
    for peer in &server.threads {
        for (code, count) in peer.stats.by_error.load().iter() {
            *by_code.entry(code.to_string()).or_default() += count.get();
        }
    }
    for (code, count) in by_code.into_iter().filter(|(_, count)| *count > 0) {
        text.line(format_args!("errorstat_{code}:count={count}"));
    }
}

fn cluster_section(_: &Server, text: &mut Text<'_>) {
    text.field("cluster_enabled", 0);
}

fn keyspace_section(server: &Server, text: &mut Text<'_>) {
    let databases = server.keyspace.databases();
    let average_ttls = server.average_ttls.of_those(|db| {
        let found = databases.binary_search_by_key(&db, |&(db, _)| db);
        found.is_ok_and(|at| databases[at].1.n_deadlines > 0)
    });
    for (db, counts) in databases {
        text.line(format_args!(
            "db{}:keys={},expires={},avg_ttl={},subexpiry={}",
            db.0,
            counts.n_keys,
            counts.n_deadlines,
            average_ttls.get(&db).unwrap_or(&0),
            counts.n_partly,
        ));
    }
}

fn debug_section(server: &Server, text: &mut Text<'_>) {
    text.field("shards", server.keyspace.router().n_shards());
    text.field("heavy_threads", server.heavy.len() - SPARE_THREADS);
    text.field("commands_delegated", server.sum(|stats| &stats.delegated));
    text.field("io_threads_in_use", server.spread.n_in_use());
    let waiting = server.threads.iter().map(|peer| peer.stats.offloaded_waiting.load(Ordering::Relaxed));
    text.field("commands_postponed", server.sum(|stats| &stats.postponed));
    text.field("offloaded_waiting", waiting.sum::<u64>());
    text.field("commands_offloaded", server.sum(|stats| &stats.offloaded));
    text.field("connections_handed_over", server.sum(|stats| &stats.handed_over));
    text.field("tls_handshakes", server.sum(|stats| &stats.handshakes));
    text.field("tls_handshakes_failed", server.sum(|stats| &stats.failed_handshakes));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_abbreviated_as_redis_does() {
        let cases =
            [(0, "0B"), (1023, "1023B"), (1024, "1.00K"), (1_064_512, "1.02M"), (25_274_793_984, "23.54G")];
        for (bytes, text) in cases {
            assert_eq!(human(bytes), text);
        }
    }

    #[test]
    fn words_stand_for_groups_of_sections() {
        let shown = |name: &str| {
            let asked = SECTIONS.iter().filter(|section| asks_for(name.as_bytes(), section));
            asked.map(|section| section.name).collect::<Vec<_>>()
        };
        assert_eq!(shown("SERVER"), ["server"]);
        assert_eq!(shown("nosuch"), [""; 0]);
        assert!(!shown("default").contains(&"commandstats") && shown("default").contains(&"modules"));
        assert!(shown("all").contains(&"commandstats") && !shown("all").contains(&"modules"));
        assert_eq!(shown("everything").len(), SECTIONS.len() - 2);
    }
}
