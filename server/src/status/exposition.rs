//! Metrics in the text format of Prometheus.
//!
//! The figures of INFO have the names that redis_exporter gives them, so that existing boards and alerts fit.
//! Names that Prometheus's own rules reject are left out, or have no type. Braid's own figures begin with
//! `braid_`.

use std::{collections::HashMap, fmt::Write as _, sync::atomic::Ordering};

use braid_storage::{DatabaseCounts, Db};

use crate::{
    catalog::Group,
    command::{TABLE, info_text},
    shared::server::{BRAID_VERSION, Peer, Server},
    telemetry::{command_log::LogOf, split::Phase, stats::CommandCounts},
};

/// The metric types of Prometheus.
#[derive(Clone, Copy)]
enum Type {
    /// A level.
    Gauge,
    /// A number that only grows.
    Counter,
    /// A counter whose name does not say so.
    Untyped,
    Summary,
    Histogram,
}

impl Type {
    fn word(self) -> &'static str {
        match self {
            Type::Gauge => "gauge",
            Type::Counter => "counter",
            Type::Untyped => "untyped",
            Type::Summary => "summary",
            Type::Histogram => "histogram",
        }
    }
}

use Type::{Counter, Gauge, Histogram, Summary, Untyped};

/// A field of INFO, with its metric's name, type and help text.
type Row = (&'static str, Type, &'static str, &'static str);

const FROM_INFO: &[Row] = &[
    ("uptime_in_seconds", Gauge, "redis_uptime_in_seconds", "For how long the server has run."),
    ("process_id", Gauge, "redis_process_id", "The number of the process."),
    ("io_threads_active", Gauge, "redis_io_threads_active", "Whether several threads have connections."),
    ("connected_clients", Gauge, "redis_connected_clients", "Clients."),
    ("blocked_clients", Gauge, "redis_blocked_clients", "Clients that wait for a key."),
    ("tracking_clients", Gauge, "redis_tracking_clients", "Clients that keep copies of keys."),
    ("pubsub_clients", Gauge, "redis_pubsub_clients", "Clients that are subscribed to a channel or pattern."),
    ("watching_clients", Gauge, "redis_watching_clients", "Clients that watch keys."),
    ("total_watched_keys", Gauge, "redis_total_watched_keys", "Keys that are watched."),
    ("total_blocking_keys", Gauge, "redis_total_blocking_keys", "Keys for which clients wait."),
    ("cluster_connections", Gauge, "redis_cluster_connections", "Connections within a cluster."),
    (
        "clients_in_timeout_table",
        Gauge,
        "redis_clients_in_timeout_table",
        "Always 0: there is no such table.",
    ),
    (
        "client_recent_max_input_buffer",
        Gauge,
        "redis_client_recent_max_input_buffer_bytes",
        "The most that a client has sent and not been answered.",
    ),
    (
        "client_recent_max_output_buffer",
        Gauge,
        "redis_client_recent_max_output_buffer_bytes",
        "The most that waits to be sent to a client.",
    ),
    ("used_memory", Gauge, "redis_memory_used_bytes", "Memory in use."),
    ("used_memory_rss", Gauge, "redis_memory_used_rss_bytes", "Memory that the process occupies."),
    ("used_memory_peak", Gauge, "redis_memory_used_peak_bytes", "The most memory that was in use."),
    (
        "used_memory_overhead",
        Gauge,
        "redis_memory_used_overhead_bytes",
        "Memory in use that is no key or value.",
    ),
    (
        "used_memory_startup",
        Gauge,
        "redis_memory_used_startup_bytes",
        "Memory that the process occupied when it began to serve.",
    ),
    ("used_memory_dataset", Gauge, "redis_memory_used_dataset_bytes", "Memory of keys and values."),
    ("used_memory_lua", Gauge, "redis_memory_used_lua_bytes", "Memory that scripts have in Lua."),
    (
        "used_memory_scripts",
        Gauge,
        "redis_memory_used_scripts_bytes",
        "Memory of the texts of scripts and libraries.",
    ),
    ("number_of_cached_scripts", Gauge, "redis_number_of_cached_scripts", "Scripts that are known."),
    ("total_system_memory", Gauge, "redis_total_system_memory_bytes", "Memory of the machine."),
    ("maxmemory", Gauge, "redis_memory_max_bytes", "How much memory may be in use; 0 is any."),
    ("maxmemory", Gauge, "redis_config_maxmemory", "The directive maxmemory."),
    ("maxclients", Gauge, "redis_config_maxclients", "The directive maxclients."),
    ("io_threads", Gauge, "redis_config_io_threads", "The directive io-threads."),
    ("allocator_active", Gauge, "redis_allocator_active_bytes", "Memory that the allocator has."),
    (
        "allocator_allocated",
        Gauge,
        "redis_allocator_allocated_bytes",
        "Memory that the allocator has handed out.",
    ),
    ("allocator_resident", Gauge, "redis_allocator_resident_bytes", "Memory that the allocator occupies."),
    (
        "allocator_frag_bytes",
        Gauge,
        "redis_allocator_frag_bytes",
        "Memory that the allocator has and has not handed out.",
    ),
    (
        "allocator_frag_ratio",
        Gauge,
        "redis_allocator_frag_ratio",
        "Memory that the allocator has, by what it has handed out.",
    ),
    (
        "allocator_rss_bytes",
        Gauge,
        "redis_allocator_rss_bytes",
        "Memory that the allocator occupies beyond what it has.",
    ),
    (
        "allocator_rss_ratio",
        Gauge,
        "redis_allocator_rss_ratio",
        "Memory that the allocator occupies, by what it has.",
    ),
    (
        "rss_overhead_bytes",
        Gauge,
        "redis_rss_overhead_bytes",
        "Memory of the process beyond the allocator's.",
    ),
    ("rss_overhead_ratio", Gauge, "redis_rss_overhead_ratio", "Memory of the process, by the allocator's."),
    (
        "mem_fragmentation_bytes",
        Gauge,
        "redis_mem_fragmentation_bytes",
        "Memory of the process beyond what is in use.",
    ),
    (
        "mem_fragmentation_ratio",
        Gauge,
        "redis_mem_fragmentation_ratio",
        "Memory of the process, by what is in use.",
    ),
    (
        "mem_clients_normal",
        Gauge,
        "redis_mem_clients_normal",
        "Memory of what clients have sent, and of what waits to be sent to them.",
    ),
    ("mem_clients_slaves", Gauge, "redis_mem_clients_slaves", "The same of replicas."),
    (
        "mem_not_counted_for_evict",
        Gauge,
        "redis_mem_not_counted_for_eviction_bytes",
        "Memory that maxmemory does not bound.",
    ),
    (
        "mem_notifications",
        Gauge,
        "braid_notification_bytes",
        "Memory of what waits for clients that subscribe, monitor or track.",
    ),
    ("active_defrag_running", Gauge, "redis_active_defrag_running", "Whether memory is being compacted."),
    (
        "lazyfree_pending_objects",
        Gauge,
        "redis_lazyfree_pending_objects",
        "Values that are still to be freed.",
    ),
    (
        "lazyfreed_objects",
        Counter,
        "redis_lazyfreed_objects_total",
        "Values that were freed after their command.",
    ),
    ("loading", Gauge, "redis_loading_dump_file", "Whether data is being loaded."),
    (
        "rdb_changes_since_last_save",
        Gauge,
        "redis_rdb_changes_since_last_save",
        "Changes since data was last saved.",
    ),
    ("rdb_bgsave_in_progress", Gauge, "redis_rdb_bgsave_in_progress", "Whether data is being saved."),
    (
        "rdb_last_save_time",
        Gauge,
        "redis_rdb_last_save_timestamp_seconds",
        "When data was last saved, or the server began.",
    ),
    (
        "rdb_current_bgsave_time_sec",
        Gauge,
        "braid_rdb_current_save_duration_seconds",
        "For how long data is being saved; -1 if it is not.",
    ),
    (
        "rdb_last_bgsave_time_sec",
        Gauge,
        "braid_rdb_last_save_duration_seconds",
        "How long it took to save data the last time; -1 before the first.",
    ),
    ("rdb_saves", Counter, "braid_rdb_saves_total", "How often data was saved."),
    ("aof_enabled", Gauge, "redis_aof_enabled", "Whether changes are logged to a file."),
    (
        "aof_rewrite_in_progress",
        Gauge,
        "redis_aof_rewrite_in_progress",
        "Whether the append-only file is being rewritten.",
    ),
    (
        "aof_rewrite_scheduled",
        Gauge,
        "redis_aof_rewrite_scheduled",
        "Whether it will be once a snapshot has been taken.",
    ),
    (
        "aof_current_rewrite_time_sec",
        Gauge,
        "braid_aof_current_rewrite_duration_seconds",
        "For how long it is being rewritten; -1 if it is not.",
    ),
    (
        "aof_last_rewrite_time_sec",
        Gauge,
        "braid_aof_last_rewrite_duration_seconds",
        "How long it took to rewrite it the last time; -1 before the first.",
    ),
    ("aof_rewrites", Counter, "braid_aof_rewrites_total", "How often it was rewritten."),
    (
        "aof_rewrites_consecutive_failures",
        Gauge,
        "braid_aof_rewrites_failed_in_a_row",
        "How often rewriting it has failed since it last succeeded.",
    ),
    ("aof_current_size", Gauge, "redis_aof_current_size_bytes", "How long the append-only file is."),
    (
        "aof_base_size",
        Gauge,
        "redis_aof_base_size_bytes",
        "How long it was when it was last rewritten, or at the start.",
    ),
    ("aof_buffer_length", Gauge, "redis_aof_buffer_length", "Bytes that wait to be written to it."),
    ("aof_pending_bio_fsync", Gauge, "redis_aof_pending_bio_fsync", "Whether a sync of it is under way."),
    (
        "aof_delayed_fsync",
        Untyped,
        "redis_aof_delayed_fsync",
        "How often a sync of it has kept writes waiting for seconds.",
    ),
    ("total_connections_received", Counter, "redis_connections_received_total", "Connections accepted."),
    ("total_commands_processed", Counter, "redis_commands_processed_total", "Commands that have run."),
    ("total_net_input_bytes", Counter, "redis_net_input_bytes_total", "Bytes received."),
    ("total_net_output_bytes", Counter, "redis_net_output_bytes_total", "Bytes sent."),
    ("total_reads_processed", Untyped, "redis_total_reads_processed", "Reads from sockets."),
    ("total_writes_processed", Untyped, "redis_total_writes_processed", "Writes to sockets."),
    (
        "io_threaded_reads_processed",
        Untyped,
        "redis_io_threaded_reads_processed",
        "Reads by threads other than the first.",
    ),
    (
        "io_threaded_writes_processed",
        Untyped,
        "redis_io_threaded_writes_processed",
        "Writes by threads other than the first.",
    ),
    ("rejected_connections", Counter, "redis_rejected_connections_total", "Connections that were refused."),
    ("expired_keys", Counter, "redis_expired_keys_total", "Keys whose time was over."),
    ("expired_subkeys", Counter, "redis_expired_subkeys_total", "Fields of hashes whose time was over."),
    (
        "expired_stale_perc",
        Gauge,
        "redis_expired_stale_percentage",
        "Of the keys with a time to live, how many are estimated to be over it, in percent.",
    ),
    (
        "expired_time_cap_reached_count",
        Counter,
        "redis_expired_time_cap_reached_total",
        "How often the search for such keys has left off.",
    ),
    ("evicted_keys", Counter, "redis_evicted_keys_total", "Keys removed to make room."),
    ("evicted_clients", Counter, "redis_evicted_clients_total", "Clients closed to make room."),
    ("keyspace_hits", Counter, "redis_keyspace_hits_total", "Keys that were looked up and found."),
    ("keyspace_misses", Counter, "redis_keyspace_misses_total", "Keys that were looked up in vain."),
    ("pubsub_channels", Gauge, "redis_pubsub_channels", "Channels with subscribers."),
    ("pubsub_patterns", Gauge, "redis_pubsub_patterns", "Patterns with subscribers."),
    ("pubsubshard_channels", Gauge, "redis_pubsubshard_channels", "Shard channels with subscribers."),
    ("tracking_total_keys", Gauge, "redis_tracking_total_keys", "Keys that clients keep copies of."),
    ("tracking_total_items", Gauge, "redis_tracking_total_items", "Copies that clients keep."),
    ("tracking_total_prefixes", Gauge, "redis_tracking_total_prefixes", "Prefixes that clients track."),
    ("total_error_replies", Untyped, "redis_total_error_replies", "Error replies."),
    (
        "unexpected_error_replies",
        Untyped,
        "redis_unexpected_error_replies",
        "Error replies that nobody should get.",
    ),
    ("acl_access_denied_auth", Counter, "redis_acl_access_denied_auth_total", "Passwords that did not fit."),
    (
        "acl_access_denied_cmd",
        Counter,
        "redis_acl_access_denied_cmd_total",
        "Commands that their users may not run.",
    ),
    (
        "acl_access_denied_key",
        Counter,
        "redis_acl_access_denied_key_total",
        "Commands on keys that their users may not use.",
    ),
    (
        "acl_access_denied_channel",
        Counter,
        "redis_acl_access_denied_channel_total",
        "Commands on channels that their users may not use.",
    ),
    (
        "client_query_buffer_limit_disconnections",
        Counter,
        "braid_query_buffer_limit_disconnections_total",
        "Clients closed because they sent too much.",
    ),
    (
        "client_output_buffer_limit_disconnections",
        Counter,
        "braid_output_buffer_limit_disconnections_total",
        "Clients closed because they read too little.",
    ),
    ("connected_slaves", Gauge, "redis_connected_slaves", "Replicas."),
    ("master_repl_offset", Gauge, "redis_master_repl_offset", "How far replication has come."),
    (
        "repl_backlog_active",
        Gauge,
        "redis_repl_backlog_is_active",
        "Whether replicas can go on where they left off.",
    ),
    ("used_cpu_sys", Counter, "redis_cpu_sys_seconds_total", "Processor time in the system."),
    ("used_cpu_user", Counter, "redis_cpu_user_seconds_total", "Processor time in the program."),
    (
        "used_cpu_sys_children",
        Counter,
        "redis_cpu_sys_children_seconds_total",
        "Processor time of children in the system.",
    ),
    (
        "used_cpu_user_children",
        Counter,
        "redis_cpu_user_children_seconds_total",
        "Processor time of children.",
    ),
    (
        "used_cpu_sys_main_thread",
        Counter,
        "redis_cpu_sys_main_thread_seconds_total",
        "Processor time of the first thread in the system.",
    ),
    (
        "used_cpu_user_main_thread",
        Counter,
        "redis_cpu_user_main_thread_seconds_total",
        "Processor time of the first thread in the program.",
    ),
    ("cluster_enabled", Gauge, "redis_cluster_enabled", "Whether the server is part of a cluster."),
    // Braid's own.
    ("shards", Gauge, "braid_shards", "Parts of the keyspace."),
    ("io_threads_in_use", Gauge, "braid_io_threads_in_use", "Threads that new connections are given to."),
    ("heavy_threads", Gauge, "braid_heavy_threads", "Threads for long work."),
    ("lane_runs", Counter, "braid_lane_runs_total", "Transactions over contended shards that took the lane."),
    (
        "commands_delegated",
        Counter,
        "braid_commands_delegated_total",
        "Commands that found their shard held, and were left with its holder.",
    ),
    (
        "commands_postponed",
        Counter,
        "braid_commands_postponed_total",
        "Commands kept until the end of a pause.",
    ),
    (
        "commands_offloaded",
        Counter,
        "braid_commands_offloaded_total",
        "Commands that ran on threads for long work.",
    ),
    ("offloaded_waiting", Gauge, "braid_offloaded_waiting", "Commands that wait for such a thread."),
    (
        "connections_handed_over",
        Counter,
        "braid_connections_handed_over_total",
        "Connections that went on with another thread.",
    ),
    ("tls_handshakes", Counter, "braid_tls_handshakes_total", "TLS handshakes."),
    (
        "tls_handshakes_failed",
        Counter,
        "braid_tls_handshakes_failed_total",
        "TLS handshakes that did not succeed.",
    ),
];

/// Returns all metrics.
pub fn text(server: &Server) -> String {
    let names: [&[u8]; 2] = [b"default", b"debug"];
    let info = info_text(&TABLE, server, names.into_iter());
    let fields: HashMap<&str, &str> = info.lines().filter_map(|line| line.split_once(':')).collect();
    let mut text = Exposition::default();
    text.family("redis_up", Gauge, "Whether the server answers.");
    text.sample("redis_up", &[], 1);
    for &(field, kind, name, help) in FROM_INFO {
        // Values with units have metrics of their own. Values that are not numbers are labels.
        if let Some(value) = fields.get(field) {
            text.family(name, kind, help);
            text.sample(name, &[], value.trim_end_matches('%'));
        }
    }
    statuses(&fields, &mut text);
    let name = "braid_aof_rewrites_failed_total";
    text.family(name, Counter, "How often rewriting the append-only file has failed.");
    text.sample(name, &[], server.saves.n_rewrites_failed_ever.load(Ordering::Relaxed));
    instance(server, &fields, &mut text);
    keyspace(server, &mut text);
    commands(server, &mut text);
    errors(&fields, &mut text);
    slow_log(server, &mut text);
    latencies(server, &mut text);
    split(server, &mut text);
    threads(server, &mut text);
    text.0
}

/// Families of metrics, with their samples.
#[derive(Default)]
struct Exposition(String);

impl Exposition {
    fn family(&mut self, name: &str, kind: Type, help: &str) {
        write!(self.0, "# HELP {name} {help}\n# TYPE {name} {}\n", kind.word())
            .expect("a string takes whatever is written");
    }

    fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: impl std::fmt::Display) {
        self.0.push_str(name);
        for (nth, (label, text)) in labels.iter().enumerate() {
            self.0.push(if nth == 0 { '{' } else { ',' });
            self.0.push_str(label);
            self.0.push_str("=\"");
            for letter in text.chars() {
                match letter {
                    '\n' => self.0.push_str("\\n"),
                    '"' | '\\' => self.0.extend(['\\', letter]),
                    _ => self.0.push(letter),
                }
            }
            self.0.push('"');
        }
        if !labels.is_empty() {
            self.0.push('}');
        }
        writeln!(self.0, " {value}").expect("a string takes whatever is written");
    }
}

/// Writes the fields of INFO that say in words whether the last attempt has succeeded.
fn statuses(fields: &HashMap<&str, &str>, text: &mut Exposition) {
    for (field, name, help) in [
        (
            "rdb_last_bgsave_status",
            "redis_rdb_last_bgsave_status",
            "Whether data could be saved the last time.",
        ),
        (
            "aof_last_bgrewrite_status",
            "redis_aof_last_bgrewrite_status",
            "Whether the append-only file could be rewritten the last time.",
        ),
        (
            "aof_last_write_status",
            "redis_aof_last_write_status",
            "Whether the append-only file can be written and synced: if not, writes are refused.",
        ),
    ] {
        text.family(name, Gauge, help);
        text.sample(name, &[], u8::from(fields.get(field) == Some(&"ok")));
    }
}

fn instance(server: &Server, fields: &HashMap<&str, &str>, text: &mut Exposition) {
    let names = [
        "maxmemory_policy",
        "os",
        "process_id",
        "redis_build_id",
        "redis_mode",
        "redis_version",
        "role",
        "run_id",
        "tcp_port",
    ];
    let labels = names.map(|name| (name, fields.get(name).copied().unwrap_or_default()));
    text.family("redis_instance_info", Gauge, "What the server is.");
    text.sample("redis_instance_info", &labels, 1);
    text.family("braid_build_info", Gauge, "Braid's version.");
    text.sample("braid_build_info", &[("version", BRAID_VERSION)], 1);
    text.family("redis_start_time_seconds", Gauge, "When the server began, in Unix time.");
    text.sample("redis_start_time_seconds", &[], server.clock.started().0 / 1000);
}

fn keyspace(server: &Server, text: &mut Exposition) {
    let mut shown = server.keyspace.databases();
    if shown.first().is_none_or(|(db, _)| db.0 > 0) {
        shown.insert(0, (Db(0), DatabaseCounts::default()));
    }
    text.family("redis_db_keys", Gauge, "Keys of a database.");
    for (db, counts) in &shown {
        text.sample("redis_db_keys", &[("db", &format!("db{}", db.0))], counts.n_keys);
    }
    text.family("redis_db_keys_expiring", Gauge, "Keys of a database that have a time to live.");
    for (db, counts) in &shown {
        text.sample("redis_db_keys_expiring", &[("db", &format!("db{}", db.0))], counts.n_deadlines);
    }
}

/// A metric of each command: its name, its help text, its count and its unit.
type CommandRow = (&'static str, &'static str, fn(&CommandCounts) -> u64, f64);

const OF_COMMANDS: [CommandRow; 4] = [
    ("redis_commands_total", "How often a command has run.", |counts| counts.calls.get(), 1.0),
    (
        "redis_commands_duration_seconds_total",
        "For how long a command has run.",
        |counts| counts.nanos.get(),
        1e-9,
    ),
    (
        "redis_commands_failed_calls_total",
        "How often a command has ended in an error.",
        |counts| counts.failed.get(),
        1.0,
    ),
    (
        "redis_commands_rejected_calls_total",
        "How often a command was refused before it ran.",
        |counts| counts.rejected.get(),
        1.0,
    ),
];

fn commands(server: &Server, text: &mut Exposition) {
    let rows = TABLE.all().iter().filter_map(|command| {
        let sums = OF_COMMANDS.map(|(_, _, count, _)| {
            command.counted().flat_map(|row| server.counts_of(row.id)).map(count).sum::<u64>()
        });
        (sums[0] + sums[2] + sums[3] > 0).then_some((command.full_name, sums))
    });
    let rows: Vec<_> = rows.collect();
    for (nth, (name, help, _, unit)) in OF_COMMANDS.into_iter().enumerate() {
        text.family(name, Counter, help);
        for (command, sums) in &rows {
            text.sample(name, &[("cmd", command)], sums[nth] as f64 * unit);
        }
    }
}

fn errors(fields: &HashMap<&str, &str>, text: &mut Exposition) {
    text.family("redis_errors_total", Counter, "Error replies by their first word.");
    let mut errors: Vec<(&str, &str)> = fields
        .iter()
        .filter_map(|(field, value)| Some((field.strip_prefix("errorstat_")?, value.strip_prefix("count=")?)))
        .collect();
    errors.sort_unstable();
    for (code, count) in errors {
        text.sample("redis_errors_total", &[("err", code)], count);
    }
}

fn slow_log(server: &Server, text: &mut Exposition) {
    text.family("redis_slowlog_length", Gauge, "Entries of the slow log.");
    text.sample("redis_slowlog_length", &[], server.command_log.len(LogOf::Slow));
    let last = server.command_log.newest(LogOf::Slow, 1);
    let last = last.first().map(|entry| (entry.id, entry.what.amount)).unwrap_or_default();
    text.family("redis_slowlog_last_id", Gauge, "The number of the newest entry of the slow log.");
    text.sample("redis_slowlog_last_id", &[], last.0);
    let name = "redis_last_slow_execution_duration_seconds";
    text.family(name, Gauge, "How long the newest command of the slow log took.");
    text.sample(name, &[], last.1 as f64 / 1e6);
}

fn latencies(server: &Server, text: &mut Exposition) {
    let name = "redis_latency_percentiles_usec";
    text.family(name, Summary, "How long a command takes, in microseconds, by percentiles since the start.");
    for command in TABLE.all() {
        let Some(latencies) = server.latencies(command.counted().map(|row| row.id)) else { continue };
        let full_name = command.full_name;
        for (percent, micros) in server.percentiles(&latencies) {
            text.sample(name, &[("cmd", full_name), ("quantile", &(percent / 100.0).to_string())], micros);
        }
        let counts = || command.counted().flat_map(|row| server.counts_of(row.id));
        let micros: u64 = counts().map(|counts| counts.nanos.get()).sum::<u64>() / 1000;
        text.sample(&format!("{name}_sum"), &[("cmd", full_name)], micros);
        text.sample(&format!("{name}_count"), &[("cmd", full_name)], latencies.n_calls());
    }
    let name = "braid_command_duration_seconds";
    text.family(name, Histogram, "How long commands take, of all kinds.");
    let all = server.latencies(TABLE.all().iter().map(|command| command.id));
    let n_calls = all.as_ref().map_or(0, |all| all.n_calls());
    for (seconds, n_calls) in all.iter().flat_map(|all| all.in_octaves()) {
        text.sample(&format!("{name}_bucket"), &[("le", &seconds.to_string())], n_calls);
    }
    text.sample(&format!("{name}_bucket"), &[("le", "+Inf")], n_calls);
    let nanos = server.threads.iter().flat_map(|peer| &peer.stats.commands).map(|counts| counts.nanos.get());
    text.sample(&format!("{name}_sum"), &[], nanos.sum::<u64>() as f64 / 1e9);
    text.sample(&format!("{name}_count"), &[], n_calls);
}

/// Writes the division of commands' time, if it is recorded.
fn split(server: &Server, text: &mut Exposition) {
    if !server.config.load().latency_split {
        return;
    }
    let name = "braid_latency_split_seconds";
    text.family(
        name,
        Summary,
        "Where the time of commands goes, by the family of the first of what is read at once, and by phase.",
    );
    for family in Group::ALL {
        for phase in Phase::ALL {
            let Some(latencies) = server.split(family, phase) else { continue };
            let labels = [("family", family.name()), ("phase", phase.name())];
            for (percent, micros) in server.percentiles(&latencies) {
                let quantile = (percent / 100.0).to_string();
                text.sample(name, &[labels[0], labels[1], ("quantile", &quantile)], micros / 1e6);
            }
            text.sample(&format!("{name}_count"), &labels, latencies.n_calls());
        }
    }
}

/// A metric of each I/O thread.
type ThreadRow = (&'static str, Type, &'static str, fn(&Peer) -> f64);

const OF_THREADS: [ThreadRow; 6] = [
    ("braid_thread_connections", Gauge, "Connections of a thread.", |peer| peer.n_connections().into()),
    ("braid_thread_busy_seconds_total", Counter, "For how long a thread had something to do.", |peer| {
        peer.stats.busy_nanos.get() as f64 / 1e9
    }),
    ("braid_thread_turns_total", Counter, "Turns of a thread's event loop.", |peer| {
        peer.stats.turns.get() as f64
    }),
    ("braid_thread_commands_total", Counter, "Commands that a thread has run.", |peer| {
        peer.stats.commands.iter().map(|counts| counts.calls.get()).sum::<u64>() as f64
    }),
    ("braid_thread_net_input_bytes_total", Counter, "Bytes that a thread has received.", |peer| {
        peer.stats.bytes_in.get() as f64
    }),
    ("braid_thread_net_output_bytes_total", Counter, "Bytes that a thread has sent.", |peer| {
        peer.stats.bytes_out.get() as f64
    }),
];

fn threads(server: &Server, text: &mut Exposition) {
    for (name, kind, help, read) in OF_THREADS {
        text.family(name, kind, help);
        for (nth, peer) in server.io_threads().iter().enumerate() {
            text.sample(name, &[("thread", &format!("io-{nth}"))], read(peer));
        }
    }
}
