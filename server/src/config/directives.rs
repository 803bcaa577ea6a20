//! The table of directives: those of Redis 7.4, and Braid's own.
//!
//! Each row is the only description of its directive. Its setting follows `=>`: the
//! meaning, type and name of a field of [`Settings`], and the function that reads it from the directive's
//! value. No other code knows directives by name.
//!
//! A field is `live` if some code acts on it and `reserved` if none does yet. `tests/tidy.rs` checks each
//! row's word. A row says `.missing(…)` if an application that sets it at run time would wait for an effect
//! that never comes. It says `.never_without(…)` if a server with that setting must also refuse to start.

use std::path::PathBuf;
use std::sync::LazyLock;
use std::time::Duration;

use super::directive::{Directive, INT, LONG, UINT, ULONG, choice, integer, line, memory, row, text, yes_no};
use super::settings::{
    Access, AclPubsubDefault, Amount, AnnounceAs, AppendFsync, AuthClients, AuthClientsUser, BindAddress,
    DisklessLoad, KeyspaceEvents, LogFormat, LogLevel, LogTimestampFormat, MaxmemoryPolicy, OomScoreAdj,
    OutputLimits, PrimaryAddress, PropagationErrors, RdbWriteFormat, RenamedCommand, SavePoint,
    ShutdownOptions, Supervised, SyslogFacility, UserLine, Word,
};
use super::value::{Kind, Reason, Value};

/// The version of Redis that Braid's replies and defaults follow.
///
/// `INFO` reports it as `redis_version`.
pub const REDIS_VERSION: &str = "7.4.0";

const PORT: i128 = u16::MAX as i128;
const MEGABYTE: i128 = 1 << 20;
const ONE_CHANNEL: &str = "a replica gets its copy and the stream on one connection";
const NO_COMPRESSION: &str = "what a replica gets is not compressed";
const NO_MPTCP: &str = "connections use TCP alone";
const NO_CLUSTER: &str = "Redis Cluster is not supported yet";
const NO_DEFRAG: &str = "the allocator cannot move values together";
const NO_CHILDREN: &str = "snapshots and rewrites need no process of their own";
const NO_MIGRATION: &str = "slots cannot migrate without Redis Cluster";
const NO_RDMA: &str = "RDMA is not supported";
const NO_TEMPLATES: &str = "hashes do not share their field names";
const NO_ARRAYS: &str = "there are no arrays";
const NO_IDEMPOTENCE: &str = "XADD takes no identifiers of producers";
const NO_BACKUP: &str = "there is no BACKUP";
const ACCEPTS_ALL: &str = "a turn of the event loop accepts up to 64 connections";
const OWN_PACE: &str = "threads pace background work by their load";
const FREES_LARGE: &str = "values of 64 KiB or more are always freed in the background";
const SYNCS_ONCE: &str = "files are synced when they are complete";
const REPLIES_COPIED: &str = "the server decides by size alone which replies are copied";
const FOR_TESTS: &str = "it serves tests of Redis's own code";
const LONG_AGO: &str = "Redis itself has ignored it since 7.0";
/// One more than the highest processor that a list may name, which is the limit of Linux's mask.
const MAX_CPUS: usize = 1024;
/// The longest host name that a cluster node announces, as in Redis.
const MAX_HOSTNAME_BYTES: usize = 255;

/// Declares the rows and the fields of their settings.
///
/// A row with a setting gives the field's documentation, its meaning, name and type, and the function that
/// reads it from the directive's value.
macro_rules! directives {
    ($($row:expr $(=> $(#[$doc:meta])* $meaning:ident $field:ident: $type:ty = $read:expr)?;)*) => {
        /// Every setting that Braid acts on.
        ///
        /// A field has its directive's name. Outside of `config` the settings are read-only:
        /// [`Config`](super::Config) keeps them equal to the values that `CONFIG GET` shows.
        #[derive(Clone, Debug, Default, PartialEq)]
        pub struct Settings {
            $($($(#[$doc])* pub $field: $type,)?)*
        }

        /// All directives, in the order of the table.
        pub(super) const DIRECTIVES: &[Directive] = &[
            $($row $(.$meaning(|settings, value| settings.$field = $read(value)))?,)*
        ];
    };
}

directives! {
    // Braid's own.
    integer("shards", 1, 16_384, "1024").immutable().rule(power_of_two) =>
        /// Number of shards, a power of two.
        live shards: usize = Value::number;
    yes_no("hash-tags", "yes").immutable() =>
        /// Whether keys with the same `{tag}` are in one shard.
        live hash_tags: bool = Value::yes;
    yes_no("io-threads-always-active", "no") =>
        /// Whether all I/O threads serve connections, even under a small load.
        live io_threads_always_active: bool = Value::yes;
    choice("announce-as", AnnounceAs::WORDS, "redis-7.4").immutable() =>
        /// The server that HELLO, INFO and LATENCY LATEST describe.
        live announce_as: AnnounceAs = one_word;
    yes_no("extended-redis-compatibility", "no") =>
        /// Whether a server that is announced as Valkey calls itself Redis where clients look for that.
        live extended_redis_compatibility: bool = Value::yes;
    text("availability-zone", "") =>
        /// Place of the server, which HELLO and INFO tell; `None` tells nothing.
        live availability_zone: Option<Vec<u8>> = Value::nonempty;
    // Listening.
    integer("port", 0, PORT, "6379") =>
        /// TCP port; 0 listens on no TCP port.
        live port: u16 = Value::number;
    row("bind", Kind::Addresses, "127.0.0.1 -::1") =>
        /// Addresses for TCP. An empty list listens on no TCP port.
        live bind: Vec<BindAddress> = addresses;
    text("bind-source-addr", "") =>
        /// Address from which a replica connects to its primary; empty: the system chooses.
        live bind_source_addr: Vec<u8> = bytes;
    text("unixsocket", "").immutable() =>
        /// Path of the Unix socket.
        live unixsocket: Option<PathBuf> = Value::path;
    row("unixsocketperm", Kind::FileMode, "0").immutable() =>
        /// File mode of the Unix socket; `None` leaves the mode to the process's mask.
        live unixsocketperm: Option<u32> = Value::nonzero;
    text("unixsocketgroup", "").immutable() =>
        /// Group of the Unix socket; `None` leaves the process's group.
        live unixsocketgroup: Option<Vec<u8>> = Value::nonempty;
    integer("tcp-backlog", 0, INT, "511").immutable() =>
        /// Length of the queue of connections that wait to be accepted.
        live tcp_backlog: u32 = Value::number;
    yes_no("protected-mode", "yes") =>
        /// Whether connections from other machines are refused while there is no password.
        live protected_mode: bool = Value::yes;
    yes_no("mptcp", "no").immutable().idle("connections use one path");
    text("rdma-bind", "").idle(NO_RDMA);
    integer("rdma-port", 0, PORT, "0").never_without(NO_RDMA);
    integer("rdma-rx-size", 65_536, 16 << 20, "1048576").immutable().idle(NO_RDMA);
    integer("rdma-completion-vector", -1, 1_024, "-1").immutable().idle(NO_RDMA);
    integer("socket-mark-id", 0, UINT, "0").immutable().idle("sockets carry no mark");
    integer("max-new-connections-per-cycle", 1, 1_000, "10").idle(ACCEPTS_ALL);
    integer("max-new-tls-connections-per-cycle", 1, 1_000, "1").idle(ACCEPTS_ALL);
    // Clients.
    text("requirepass", "").sensitive() =>
        /// Password of the default user.
        live requirepass: Option<Vec<u8>> = Value::nonempty;
    line("user", 1, usize::MAX).sensitive() =>
        /// Users declared in the configuration.
        live users: Vec<UserLine> = users;
    text("aclfile", "").immutable() =>
        /// Path of the file that declares users.
        live aclfile: Option<PathBuf> = Value::path;
    choice("acl-pubsub-default", AclPubsubDefault::WORDS, "resetchannels") =>
        /// Channels of users without a rule about channels.
        live acl_pubsub_default: AclPubsubDefault = one_word;
    integer("acllog-max-len", 0, LONG, "128") =>
        /// Greatest number of entries that ACL LOG keeps.
        live acllog_max_len: usize = Value::number;
    line("lua-replicate-commands", 1, 1).stays().idle(LONG_AGO);
    line("rename-command", 2, 2).stays() =>
        /// Commands with another name, or without one.
        live renamed_commands: Vec<RenamedCommand> = renamed_commands;
    integer("maxclients", 1, UINT, "10000") =>
        /// Greatest number of connections at a time.
        live maxclients: u32 = Value::number;
    integer("timeout", 0, INT, "0") =>
        /// Time after which an idle client is disconnected; `None`: never.
        live timeout: Option<Duration> = nonzero_seconds;
    integer("tcp-keepalive", 0, INT, "300") =>
        /// Period of TCP keepalive probes; `None` sends none.
        live tcp_keepalive: Option<Duration> = nonzero_seconds;
    memory("proto-max-bulk-len", MEGABYTE, LONG, "512mb") =>
        /// Bytes of the longest argument.
        live proto_max_bulk_len: usize = Value::number;
    memory("lua-memory-limit", MEGABYTE, LONG, "1gb") =>
        /// Bytes of Lua's memory for the scripts of a thread.
        ///
        /// Its functions may use the same amount again.
        live lua_memory_limit: usize = Value::number;
    memory("client-query-buffer-limit", MEGABYTE, LONG, "1gb") =>
        /// Bytes of unparsed input that a client may have.
        live client_query_buffer_limit: usize = Value::number;
    row(
        "client-output-buffer-limit",
        Kind::OutputLimits,
        "normal 0 0 0 replica 256mb 64mb 60 pubsub 32mb 8mb 60",
    ) =>
        /// Bytes of replies that a client may leave unread, by class of client.
        live client_output_buffer_limit: OutputLimits = Value::output_limits;
    integer("tracking-table-max-keys", 0, LONG, "1000000") =>
        /// Greatest number of keys that client-side caching remembers; `None` sets no limit.
        live tracking_table_max_keys: Option<usize> = Value::nonzero;
    row("maxmemory-clients", Kind::MemoryOrPercent, "0") =>
        /// Memory that all clients may use together.
        live maxmemory_clients: Amount = Value::amount;
    // Threads and data. `Config::new` makes the number of cores the default of io-threads.
    integer("io-threads", 1, 128, "1").immutable() =>
        /// Threads that serve sockets and run commands.
        live io_threads: usize = Value::number;
    yes_no("io-threads-do-reads", "no").immutable().idle("every thread reads and writes its own sockets");
    integer("prefetch-batch-max-size", 0, 128, "16").idle("a thread fetches ahead for all commands that it has read");
    integer("lookahead", 1, INT, "16").idle("a thread fetches ahead for all commands that it has read");
    integer("min-io-threads-avoid-copy-reply", 0, 256, "7").hidden().idle(REPLIES_COPIED);
    integer("min-string-size-avoid-copy-reply", 0, INT, "16384").hidden().idle(REPLIES_COPIED);
    integer("min-string-size-avoid-copy-reply-threaded", 0, INT, "65536").hidden().idle(REPLIES_COPIED);
    text("hash-seed", "").immutable().idle("keys are placed by a secret that is new at each start");
    yes_no("import-mode", "no").never_without("keys that expire during an import cannot be kept");
    yes_no("vset-force-single-threaded-execution", "no").immutable().idle("there are no vector sets");
    integer("databases", 1, INT, "16").immutable() =>
        /// Number of databases that SELECT can reach.
        live databases: usize = Value::number;
    integer("hz", 0, INT, "10").rule(between_1_and_500).idle(OWN_PACE) =>
        /// Background rounds per second, 1 to 500.
        reserved hz: u32 = Value::number;
    yes_no("dynamic-hz", "yes").idle(OWN_PACE);
    yes_no("activerehashing", "yes").idle("tables grow with each write to them");
    memory("maxmemory", 0, ULONG, "0") =>
        /// Limit of the memory for data, in bytes; `None` sets no limit.
        live maxmemory: Option<u64> = Value::nonzero;
    choice("maxmemory-policy", MaxmemoryPolicy::WORDS, "noeviction") =>
        /// Choice of the keys that are evicted when `maxmemory` is reached.
        live maxmemory_policy: MaxmemoryPolicy = one_word;
    integer("maxmemory-samples", 1, INT, "5") =>
        /// Number of sampled keys for each eviction.
        live maxmemory_samples: usize = Value::number;
    integer("maxmemory-eviction-tenacity", 0, 100, "10") =>
        /// Time for which a thread evicts at once, from 0 to 100: see `net/eviction.rs`.
        live maxmemory_eviction_tenacity: u32 = Value::number;
    integer("lfu-log-factor", 0, INT, "10") =>
        /// Factor that slows the growth of the frequency counter.
        live lfu_log_factor: u32 = Value::number;
    integer("lfu-decay-time", 0, INT, "1") =>
        /// Minutes after which the frequency counter decays by one; 0: never.
        live lfu_decay_time: u32 = Value::number;
    integer("active-expire-effort", 1, 10, "1").idle(OWN_PACE) =>
        /// Effort to remove expired keys early, 1 to 10.
        reserved active_expire_effort: u32 = Value::number;
    row("notify-keyspace-events", Kind::Events, "") =>
        /// Classes of events that are published.
        live notify_keyspace_events: KeyspaceEvents = Value::events;
    yes_no("lazyfree-lazy-eviction", "no").idle(FREES_LARGE);
    yes_no("lazyfree-lazy-expire", "no").idle(FREES_LARGE);
    yes_no("lazyfree-lazy-server-del", "no").idle(FREES_LARGE);
    yes_no("lazyfree-lazy-user-del", "no").idle(FREES_LARGE);
    yes_no("lazyfree-lazy-user-flush", "no").idle(FREES_LARGE);
    yes_no("lazyexpire-nested-arbitrary-keys", "yes").idle("a key that expires within a transaction is always logged as part of it");
    text("locale-collate", "").rule(locale)
        .idle("SORT with ALPHA compares bytes, which is the order of the only locales that it takes");
    // Encodings.
    integer("hash-max-listpack-entries", 0, LONG, "512").alias("hash-max-ziplist-entries") =>
        /// Fields of the largest packed hash.
        live hash_max_listpack_entries: usize = Value::number;
    memory("hash-max-listpack-value", 0, LONG, "64").alias("hash-max-ziplist-value") =>
        /// Bytes of the longest field or value in a packed hash.
        live hash_max_listpack_value: usize = Value::number;
    integer("list-max-listpack-size", -INT - 1, INT, "-2").alias("list-max-ziplist-size") =>
        /// Size of a list's node.
        ///
        /// A positive number counts entries. A negative one is a class: -1 is 4 KiB, -5 is 64 KiB.
        live list_max_listpack_size: i32 = Value::number;
    line("list-max-ziplist-entries", 1, 1).stays().idle(LONG_AGO);
    line("list-max-ziplist-value", 1, 1).stays().idle(LONG_AGO);
    integer("list-compress-depth", 0, INT, "0").idle("lists are not compressed") =>
        /// Nodes at each end of a list that stay uncompressed; 0: all.
        reserved list_compress_depth: u32 = Value::number;
    integer("set-max-intset-entries", 0, LONG, "512") =>
        /// Members of the largest set encoded as an intset.
        live set_max_intset_entries: usize = Value::number;
    integer("set-max-listpack-entries", 0, LONG, "128") =>
        /// Members of the largest packed set.
        live set_max_listpack_entries: usize = Value::number;
    memory("set-max-listpack-value", 0, LONG, "64") =>
        /// Bytes of the longest member of a packed set.
        live set_max_listpack_value: usize = Value::number;
    integer("zset-max-listpack-entries", 0, LONG, "128").alias("zset-max-ziplist-entries") =>
        /// Members of the largest packed sorted set.
        live zset_max_listpack_entries: usize = Value::number;
    memory("zset-max-listpack-value", 0, LONG, "64").alias("zset-max-ziplist-value") =>
        /// Bytes of the longest member of a packed sorted set.
        live zset_max_listpack_value: usize = Value::number;
    memory("stream-node-max-bytes", 0, LONG, "4096") =>
        /// Bytes of a stream's node.
        live stream_node_max_bytes: usize = Value::number;
    integer("stream-node-max-entries", 0, LONG, "100") =>
        /// Entries of a stream's node.
        live stream_node_max_entries: usize = Value::number;
    memory("hll-sparse-max-bytes", 0, LONG, "3000") =>
        /// Bytes of the largest sparse HyperLogLog.
        live hll_sparse_max_bytes: usize = Value::number;
    integer("hash-min-template-entries", 0, LONG, "0").idle(NO_TEMPLATES);
    integer("hash-max-template-entries", 0, LONG, "0").idle(NO_TEMPLATES);
    integer("hash-rdb-load-min-template-entries", 0, LONG, "0").idle(NO_TEMPLATES);
    integer("hash-rdb-load-max-template-entries", 0, LONG, "0").idle(NO_TEMPLATES);
    integer("hash-rdb-load-template-disassembly-threshold", 0, LONG, "0").idle(NO_TEMPLATES);
    integer("array-slice-size", 1, UINT, "4096").idle(NO_ARRAYS);
    integer("array-sparse-kmax", 0, UINT, "10").idle(NO_ARRAYS);
    integer("array-sparse-kmin", 0, UINT, "5").idle(NO_ARRAYS);
    integer("stream-idmp-duration", 1, 86_400, "100").idle(NO_IDEMPOTENCE);
    integer("stream-idmp-maxsize", 1, 10_000, "100").idle(NO_IDEMPOTENCE);
    // Observability.
    choice("loglevel", LogLevel::WORDS, "notice") =>
        /// Least severe level that the server log contains.
        live loglevel: LogLevel = one_word;
    choice("log-format", LogFormat::WORDS, "legacy") =>
        /// Form of the server log's lines.
        live log_format: LogFormat = one_word;
    choice("log-timestamp-format", LogTimestampFormat::WORDS, "legacy") =>
        /// Form of the times in the server log.
        live log_timestamp_format: LogTimestampFormat = one_word;
    text("logfile", "").immutable() =>
        /// File of the server log; `None` is the standard output.
        live logfile: Option<PathBuf> = Value::path;
    yes_no("hide-user-data-from-log", "no") =>
        /// Whether names of keys and users are left out of the server log.
        live hide_user_data_from_log: bool = Value::yes;
    yes_no("always-show-logo", "no").immutable().idle("there is no logo") =>
        /// Whether the logo is shown even if the server log is no terminal.
        reserved always_show_logo: bool = Value::yes;
    integer("slowlog-log-slower-than", -1, LONG, "10000").alias("commandlog-execution-slower-than") =>
        /// Duration from which a command enters the slow log; `None` turns it off.
        live slowlog_log_slower_than: Option<Duration> = micros;
    integer("slowlog-max-len", 0, LONG, "128").alias("commandlog-slow-execution-max-len") =>
        /// Greatest number of entries in the slow log.
        live slowlog_max_len: usize = Value::number;
    integer("slowlog-entry-max-argc", 2, INT, "32") =>
        /// Greatest number of words that an entry of a log keeps of its command.
        live slowlog_entry_max_argc: usize = Value::number;
    integer("slowlog-entry-max-string-len", 1, LONG, "128") =>
        /// Greatest number of bytes that an entry of a log keeps of a word.
        live slowlog_entry_max_string_len: usize = Value::number;
    integer("commandlog-request-larger-than", -1, LONG, "1048576") =>
        /// Bytes of a request from which it is logged; `None` turns it off.
        live commandlog_request_larger_than: Option<usize> = not_negative;
    integer("commandlog-large-request-max-len", 0, LONG, "128") =>
        /// Greatest number of entries in the log of large requests.
        live commandlog_large_request_max_len: usize = Value::number;
    integer("commandlog-reply-larger-than", -1, LONG, "1048576") =>
        /// Bytes of a reply from which it is logged; `None` turns it off.
        live commandlog_reply_larger_than: Option<usize> = not_negative;
    integer("commandlog-large-reply-max-len", 0, LONG, "128") =>
        /// Greatest number of entries in the log of large replies.
        live commandlog_large_reply_max_len: usize = Value::number;
    yes_no("latency-tracking", "yes") =>
        /// Whether latencies of commands are collected.
        live latency_tracking: bool = Value::yes;
    yes_no("latency-split", "no") =>
        /// Whether INFO latencysplit measures how commands spend their time.
        live latency_split: bool = Value::yes;
    row("latency-tracking-info-percentiles", Kind::Percentiles, "50 99 99.9") =>
        /// Percentiles that INFO reports.
        live latency_tracking_info_percentiles: Vec<f64> = Value::percentiles;
    integer("latency-monitor-threshold", 0, LONG, "0") =>
        /// Duration from which LATENCY keeps an event; `None` turns it off.
        live latency_monitor_threshold: Option<Duration> = nonzero_millis;
    integer("busy-reply-threshold", 0, LONG, "5000").alias("lua-time-limit") =>
        /// Run time after which a script or function is busy; `None`: never.
        ///
        /// It can then be killed, and other clients get BUSY.
        live busy_reply_threshold: Option<Duration> = nonzero_millis;
    yes_no("syslog-enabled", "no").immutable() =>
        /// Whether the server log is also sent to syslog.
        live syslog_enabled: bool = Value::yes;
    text("syslog-ident", "redis").immutable() =>
        /// The program's name in syslog.
        live syslog_ident: Vec<u8> = bytes;
    choice("syslog-facility", SyslogFacility::WORDS, "local0").immutable() =>
        /// The facility in syslog.
        live syslog_facility: SyslogFacility = one_word;
    yes_no("crash-log-enabled", "yes") =>
        /// Whether a fatal fault logs the program's position.
        live crash_log_enabled: bool = Value::yes;
    yes_no("key-memory-histograms", "no").immutable().idle("INFO has no histograms of the memory of keys");
    text("debug-context", "").hidden().idle(FOR_TESTS);
    yes_no("crash-memcheck-enabled", "yes").idle("a fault does not start a memory test");
    integer("watchdog-period", 0, INT, "0").hidden().idle("there is no watchdog");
    yes_no("use-exit-on-panic", "no").hidden().idle(FOR_TESTS);
    yes_no("enable-debug-assert", "no").immutable().hidden().idle(FOR_TESTS);
    // The process.
    row("dir", Kind::Dir, "./").protected() =>
        /// Working directory, an absolute path that exists. Relative paths in other settings start here.
        live dir: PathBuf = Value::dir;
    yes_no("daemonize", "no").immutable() =>
        /// Whether the process runs in the background.
        live daemonize: bool = Value::yes;
    text("pidfile", "").immutable() =>
        /// File that receives the process's id.
        live pidfile: Option<PathBuf> = Value::path;
    choice("supervised", Supervised::WORDS, "no").immutable() =>
        /// Supervisor that the server reports to.
        live supervised: Supervised = one_word;
    yes_no("set-proc-title", "yes").immutable() =>
        /// Whether the server sets the process's title.
        live set_proc_title: bool = Value::yes;
    text("proc-title-template", "{title} {listen-addr} {server-mode}").rule(title_template) =>
        /// Template of the process's title.
        live proc_title_template: Vec<u8> = bytes;
    integer("shutdown-timeout", 0, INT, "10") =>
        /// Time that SHUTDOWN waits for replicas.
        live shutdown_timeout: Duration = seconds;
    row("shutdown-on-sigint", Kind::Choices(ShutdownOptions::WORDS), "default").rule(save_or_nosave) =>
        /// Options of the SHUTDOWN that SIGINT causes.
        live shutdown_on_sigint: ShutdownOptions = shutdown_options;
    row("shutdown-on-sigterm", Kind::Choices(ShutdownOptions::WORDS), "default").rule(save_or_nosave) =>
        /// Options of the SHUTDOWN that SIGTERM causes.
        live shutdown_on_sigterm: ShutdownOptions = shutdown_options;
    choice("enable-debug-command", Access::WORDS, "no").immutable() =>
        /// Clients that may use DEBUG.
        live enable_debug_command: Access = one_word;
    choice("enable-protected-configs", Access::WORDS, "no").immutable() =>
        /// Clients that may change protected settings.
        live enable_protected_configs: Access = one_word;
    choice("enable-module-command", Access::WORDS, "no").immutable() =>
        /// Clients that may use MODULE. They learn that there are no modules; others, that MODULE is not
        /// allowed.
        live enable_module_command: Access = one_word;
    line("loadmodule", 1, usize::MAX).never_without("modules are not supported");
    choice("oom-score-adj", OomScoreAdj::WORDS, "no").rule(relative_is_yes) =>
        /// How `oom-score-adj-values` change the process's score.
        live oom_score_adj: OomScoreAdj = one_word;
    row("oom-score-adj-values", Kind::OomScores, "0 200 800") =>
        /// Score adjustments of a primary, a replica and a child. The server is a primary without children.
        live oom_score_adj_values: [i16; 3] = Value::oom_scores;
    yes_no("disable-thp", "yes").immutable().idle("huge pages are requested for each part of memory");
    yes_no("jemalloc-bg-thread", "yes").idle("the allocator is mimalloc");
    text("server-cpulist", "").alias("server_cpulist").immutable().rule(cpu_list) =>
        /// Processors of the I/O threads; an empty list leaves the choice to the system.
        live server_cpulist: Vec<usize> = cpus;
    text("bio-cpulist", "").alias("bio_cpulist").immutable().rule(cpu_list) =>
        /// Processors of all other threads; an empty list leaves the choice to the system.
        live bio_cpulist: Vec<usize> = cpus;
    text("aof-rewrite-cpulist", "").alias("aof_rewrite_cpulist").immutable().idle(NO_CHILDREN);
    text("bgsave-cpulist", "").alias("bgsave_cpulist").immutable().idle(NO_CHILDREN);
    text("ignore-warnings", "").idle("no warning of the system ends the start");
    yes_no("lua-enable-deprecated-api", "no").alias("lua-enable-insecure-api").immutable().hidden().idle("scripts have no deprecated functions");
    yes_no("activedefrag", "no").missing(NO_DEFRAG);
    memory("active-defrag-ignore-bytes", 1, LONG, "100mb").idle(NO_DEFRAG);
    integer("active-defrag-threshold-lower", 0, 1_000, "10").idle(NO_DEFRAG);
    integer("active-defrag-threshold-upper", 0, 1_000, "100").idle(NO_DEFRAG);
    integer("active-defrag-cycle-min", 1, 99, "1").idle(NO_DEFRAG);
    integer("active-defrag-cycle-max", 1, 99, "25").idle(NO_DEFRAG);
    integer("active-defrag-cycle-us", 0, 100_000, "500").idle(NO_DEFRAG);
    integer("active-defrag-max-scan-fields", 1, LONG, "1000").idle(NO_DEFRAG);
    // Snapshots.
    row("save", Kind::Save, "3600 1 300 100 60 10000") =>
        /// Conditions for a background snapshot. With any, the server also saves when it stops; with none, it
        /// never does.
        live save: Vec<SavePoint> = Value::save_points;
    text("dbfilename", "dump.rdb").protected().rule(snapshot_name) =>
        /// File of snapshots, in the working directory. It is loaded at the start.
        live dbfilename: Option<PathBuf> = Value::path;
    yes_no("rdbcompression", "yes") =>
        /// Whether long strings are compressed in snapshots.
        live rdbcompression: bool = Value::yes;
    yes_no("rdbchecksum", "yes").immutable() =>
        /// Whether snapshots end with a checksum, which is verified at loading.
        live rdbchecksum: bool = Value::yes;
    choice("rdb-write-format", RdbWriteFormat::WORDS, "auto") =>
        /// Program that is to read snapshots, payloads of DUMP and the base of the AOF.
        live rdb_write_format: RdbWriteFormat = one_word;
    yes_no("rdb-skip-module-data", "no") =>
        /// Whether values, records and metadata of modules are left out when a snapshot is loaded, and only
        /// counted. Otherwise they end the loading.
        live rdb_skip_module_data: bool = Value::yes;
    text("preload-file", "").immutable().never_without("data is loaded from the working directory only");
    text("backupdirname", "backupdir").immutable().idle(NO_BACKUP);
    integer("backup-sealed-ttl", 0, LONG, "0").idle(NO_BACKUP);
    yes_no("rdb-del-sync-files", "no").idle("the files of a copy are always removed after its use");
    choice("rdb-version-check", &["strict", "relaxed"], "strict")
        .idle("whether a snapshot can be read follows from the types in it");
    yes_no("rdb-save-incremental-fsync", "yes").idle(SYNCS_ONCE);
    integer("rdb-key-save-delay", -INT - 1, INT, "0").hidden() =>
        /// Pause of a snapshot after each key, for tests that observe a running save.
        live rdb_key_save_delay: Option<Duration> = delay;
    integer("key-load-delay", -INT - 1, INT, "0").hidden() =>
        /// The time by which each key's load is delayed, in tests. Redis delays by the microsecond.
        live key_load_delay: Option<Duration> = delay;
    integer("loading-process-events-interval-bytes", 1_024, INT, "2097152").hidden().idle("other threads serve clients during loading");
    choice("sanitize-dump-payload", &["no", "yes", "clients"], "no").idle("every value is checked wholly");
    yes_no("stop-writes-on-bgsave-error", "yes") =>
        /// Whether writes are refused after a failed snapshot, if there are save points.
        live stop_writes_on_bgsave_error: bool = Value::yes;
    // The append-only file.
    yes_no("appendonly", "no") =>
        /// Whether changes are logged to the AOF. The AOF is then loaded at the start instead of the
        /// snapshot.
        live appendonly: bool = Value::yes;
    text("appendfilename", "appendonly.aof").immutable().rule(append_only_name) =>
        /// Prefix of the names of the AOF's files.
        live appendfilename: String = name;
    text("appenddirname", "appendonlydir").immutable().rule(append_only_directory) =>
        /// Directory of the AOF, in the working directory.
        live appenddirname: String = name;
    choice("appendfsync", AppendFsync::WORDS, "everysec") =>
        /// Time at which the AOF is synced.
        live appendfsync: AppendFsync = one_word;
    yes_no("no-appendfsync-on-rewrite", "no") =>
        /// Whether the AOF is not synced during a rewrite or a snapshot.
        live no_appendfsync_on_rewrite: bool = Value::yes;
    integer("auto-aof-rewrite-percentage", 0, INT, "100") =>
        /// Growth of the AOF that starts a rewrite, in percent; 0: never.
        live auto_aof_rewrite_percentage: u64 = Value::number;
    memory("auto-aof-rewrite-min-size", 0, LONG, "64mb") =>
        /// Least size of the AOF that starts a rewrite, in bytes.
        live auto_aof_rewrite_min_size: u64 = Value::number;
    yes_no("aof-load-truncated", "yes") =>
        /// Whether an AOF with an incomplete end is loaded up to there.
        live aof_load_truncated: bool = Value::yes;
    memory("aof-load-corrupt-tail-max-size", 0, LONG, "0")
        .idle("a damaged end is never cut at the start: --check-aof --fix does this");
    yes_no("aof-use-rdb-preamble", "yes") =>
        /// Whether the base of the AOF is a snapshot rather than commands.
        live aof_use_rdb_preamble: bool = Value::yes;
    yes_no("aof-timestamp-enabled", "no") =>
        /// Whether the AOF contains the times of its commands.
        live aof_timestamp_enabled: bool = Value::yes;
    yes_no("aof-rewrite-incremental-fsync", "yes").idle(SYNCS_ONCE);
    yes_no("aof-disable-auto-gc", "no") =>
        /// Whether files that a rewrite has made superfluous are kept.
        live aof_disable_auto_gc: bool = Value::yes;
    // Replication.
    row("replicaof", Kind::Primary, "").alias("slaveof").immutable() =>
        /// The server whose data this one copies; `None` for a server that is no replica.
        live replicaof: Option<PrimaryAddress> = Value::primary;
    text("masterauth", "").alias("primaryauth").sensitive() =>
        /// The password that a replica gives to its primary; `None` gives none.
        live masterauth: Option<Vec<u8>> = Value::nonempty;
    text("masteruser", "").alias("primaryuser").sensitive() =>
        /// The user as whom a replica logs in; `None` is the default user.
        live masteruser: Option<Vec<u8>> = Value::nonempty;
    yes_no("replica-serve-stale-data", "yes").alias("slave-serve-stale-data") =>
        /// Whether a replica answers commands while its link to the primary is down.
        live replica_serve_stale_data: bool = Value::yes;
    yes_no("replica-read-only", "yes").alias("slave-read-only") =>
        /// Whether a replica refuses the writes of clients.
        live replica_read_only: bool = Value::yes;
    yes_no("replica-ignore-maxmemory", "yes").alias("slave-ignore-maxmemory") =>
        /// Whether `maxmemory` has no effect on a replica.
        live replica_ignore_maxmemory: bool = Value::yes;
    yes_no("replica-ignore-disk-write-errors", "no").idle("a replica applies its primary's writes in any case");
    yes_no("replica-lazy-flush", "no").alias("slave-lazy-flush").idle(FREES_LARGE);
    integer("replica-priority", 0, INT, "100").alias("slave-priority") =>
        /// The order in which Sentinel promotes replicas; it never promotes one with 0.
        live replica_priority: u32 = Value::number;
    yes_no("replica-announced", "yes") =>
        /// Whether Sentinel lists this replica.
        live replica_announced: bool = Value::yes;
    text("replica-announce-ip", "").alias("slave-announce-ip") =>
        /// The address that a replica names to its primary; `None` leaves it to the connection.
        live replica_announce_ip: Option<Vec<u8>> = Value::nonempty;
    integer("replica-announce-port", 0, PORT, "0").alias("slave-announce-port") =>
        /// The port that a replica names to its primary; `None` is the one on which it listens.
        live replica_announce_port: Option<u16> = Value::nonzero;
    integer("min-replicas-to-write", 0, INT, "0").alias("min-slaves-to-write") =>
        /// Replicas without which writes are refused; 0 if they need none.
        live min_replicas_to_write: u64 = Value::number;
    integer("min-replicas-max-lag", 0, INT, "10").alias("min-slaves-max-lag") =>
        /// Time since its last acknowledgement after which a replica does not count.
        live min_replicas_max_lag: Duration = seconds;
    choice("propagation-error-behavior", PropagationErrors::WORDS, "ignore") =>
        /// The consequence of an error reply to the primary, or to the append-only file.
        live propagation_error_behavior: PropagationErrors = one_word;
    yes_no("repl-diskless-sync", "yes") =>
        /// Whether a copy is sent while it is made, to replicas that can do without its length.
        live repl_diskless_sync: bool = Value::yes;
    integer("repl-diskless-sync-delay", 0, INT, "5") =>
        /// Time for which a copy waits for more replicas.
        live repl_diskless_sync_delay: Duration = seconds;
    integer("repl-diskless-sync-max-replicas", 0, INT, "0") =>
        /// Replicas with which a copy waits no longer; 0 sets no such number.
        live repl_diskless_sync_max_replicas: usize = Value::number;
    choice("repl-diskless-load", DisklessLoad::WORDS, "disabled") =>
        /// How a replica loads the copy of its primary's data.
        live repl_diskless_load: DisklessLoad = one_word;
    integer("repl-ping-replica-period", 1, INT, "10").alias("repl-ping-slave-period") =>
        /// Interval of PINGs to replicas.
        live repl_ping_replica_period: Duration = seconds;
    integer("repl-timeout", 1, INT, "60") =>
        /// The silence after which a link of replication is closed, on either side.
        live repl_timeout: Duration = seconds;
    yes_no("repl-disable-tcp-nodelay", "no") =>
        /// Whether the system may collect what is sent to a replica into fewer packets, at the cost of time.
        live repl_disable_tcp_nodelay: bool = Value::yes;
    memory("repl-backlog-size", 1, LONG, "10mb").rule(at_least_16_kilobytes) =>
        /// Bytes of the change stream that are kept for replicas that come back.
        live repl_backlog_size: u64 = Value::number;
    integer("repl-backlog-ttl", 0, LONG, "3600") =>
        /// Time without replicas after which nothing is kept for them; 0 sets none.
        live repl_backlog_ttl: Duration = seconds;
    yes_no("repl-spool", "yes") =>
        /// Whether the change stream goes to files for slow replicas.
        live repl_spool: bool = Value::yes;
    memory("repl-spool-max", 0, LONG, "0") =>
        /// The most bytes of these files; 0 leaves a part of the disk free.
        live repl_spool_max: u64 = Value::number;
    yes_no("dual-channel-replication-enabled", "no").idle(ONE_CHANNEL);
    memory("replica-full-sync-buffer-limit", 0, LONG, "0").idle(ONE_CHANNEL);
    yes_no("repl-rdb-channel", "no").hidden().idle(ONE_CHANNEL);
    yes_no("repl-mptcp", "no").immutable().idle(NO_MPTCP);
    integer("repl-compression", 0, 22, "0").idle(NO_COMPRESSION);
    integer("repl-compression-max-latency", 0, INT, "100").idle(NO_COMPRESSION);
    // Cluster.
    yes_no("cluster-enabled", "no").immutable().never_without(NO_CLUSTER);
    text("cluster-config-file", "nodes.conf").immutable().idle(NO_CLUSTER);
    integer("cluster-node-timeout", 0, LONG, "15000").idle(NO_CLUSTER);
    integer("cluster-port", 0, PORT, "0").immutable().idle(NO_CLUSTER);
    integer("cluster-replica-validity-factor", 0, INT, "10").alias("cluster-slave-validity-factor").idle(NO_CLUSTER);
    integer("cluster-migration-barrier", 0, INT, "1").idle(NO_CLUSTER);
    yes_no("cluster-allow-replica-migration", "yes").idle(NO_CLUSTER);
    yes_no("cluster-require-full-coverage", "yes").idle(NO_CLUSTER);
    yes_no("cluster-replica-no-failover", "no").alias("cluster-slave-no-failover").idle(NO_CLUSTER);
    yes_no("cluster-allow-reads-when-down", "no").idle(NO_CLUSTER);
    yes_no("cluster-allow-pubsubshard-when-down", "yes").idle(NO_CLUSTER);
    memory("cluster-link-sendbuf-limit", 0, ULONG, "0").idle(NO_CLUSTER);
    text("cluster-announce-ip", "").idle(NO_CLUSTER);
    text("cluster-announce-hostname", "").rule(host_name).idle(NO_CLUSTER);
    text("cluster-announce-human-nodename", "").rule(node_name).idle(NO_CLUSTER);
    integer("cluster-announce-port", 0, PORT, "0").idle(NO_CLUSTER);
    integer("cluster-announce-tls-port", 0, PORT, "0").idle(NO_CLUSTER);
    integer("cluster-announce-bus-port", 0, PORT, "0").idle(NO_CLUSTER);
    choice("cluster-preferred-endpoint-type", &["ip", "hostname", "unknown-endpoint"], "ip").idle(NO_CLUSTER);
    text("cluster-announce-client-ipv4", "").idle(NO_CLUSTER);
    text("cluster-announce-client-ipv6", "").idle(NO_CLUSTER);
    integer("cluster-announce-client-port", 0, PORT, "0").idle(NO_CLUSTER);
    integer("cluster-announce-client-tls-port", 0, PORT, "0").idle(NO_CLUSTER);
    integer("cluster-blacklist-ttl", 0, ULONG, "60").idle(NO_CLUSTER);
    choice("cluster-config-save-behavior", &["sync", "best-effort"], "sync").idle(NO_CLUSTER);
    integer("cluster-databases", 1, INT, "1").immutable().idle(NO_CLUSTER);
    integer("cluster-manual-failover-timeout", 1, INT, "5000").idle(NO_CLUSTER);
    integer("cluster-message-gossip-perc", 1, 100, "10").hidden().idle(NO_CLUSTER);
    integer("cluster-ping-interval", 0, INT, "0").hidden().idle(NO_CLUSTER);
    integer("cluster-compatibility-sample-ratio", 0, 100, "0").idle(NO_CLUSTER);
    yes_no("cluster-slot-stats-enabled", "no").idle(NO_CLUSTER);
    integer("cluster-slot-migration-log-max-len", 0, LONG, "1000").idle(NO_MIGRATION);
    memory("cluster-slot-migration-handoff-max-lag-bytes", 0, LONG, "1mb").idle(NO_MIGRATION);
    integer("cluster-slot-migration-write-pause-timeout", 0, LONG, "10000").idle(NO_MIGRATION);
    memory("slot-migration-max-failover-repl-bytes", -1, LONG, "0").idle(NO_MIGRATION);
    // Metrics, Braid's own.
    integer("metrics-port", 0, PORT, "0").immutable() =>
        /// TCP port for HTTP with metrics and a status page; 0 listens on none.
        live metrics_port: u16 = Value::number;
    row("metrics-bind", Kind::Addresses, "127.0.0.1 -::1").immutable() =>
        /// Addresses for the metrics port.
        live metrics_bind: Vec<BindAddress> = addresses;
    row("metrics-hosts", Kind::Addresses, "") =>
        /// Host names that requests to the metrics port may use.
        ///
        /// The loopback's and those of `metrics-bind` are always allowed.
        live metrics_hosts: Vec<String> = names;
    yes_no("metrics-tls", "no").immutable() =>
        /// Whether the metrics port speaks TLS, with the certificate in `tls-cert-file`.
        live metrics_tls: bool = Value::yes;
    // TLS.
    integer("tls-port", 0, PORT, "0") =>
        /// TCP port for TLS; 0 listens on none.
        live tls_port: u16 = Value::number;
    text("tls-cert-file", "") =>
        /// File with the server's certificate, and those between it and an authority's.
        live tls_cert_file: Option<PathBuf> = Value::path;
    text("tls-key-file", "") =>
        /// File with the private key of the server's certificate.
        live tls_key_file: Option<PathBuf> = Value::path;
    text("tls-expected-peer-name", "") =>
        /// Name that the certificate of a primary must have; empty: any.
        live tls_expected_peer_name: Vec<u8> = bytes;
    text("tls-key-file-pass", "").sensitive().idle("the key must not be encrypted");
    text("tls-client-cert-file", "") =>
        /// File with the certificate that a replica shows to its primary, instead of the server's.
        live tls_client_cert_file: Option<PathBuf> = Value::path;
    text("tls-client-key-file", "") =>
        /// File with the private key of that certificate.
        live tls_client_key_file: Option<PathBuf> = Value::path;
    text("tls-client-key-file-pass", "").sensitive().idle("the key must not be encrypted");
    text("tls-dh-params-file", "").idle("key exchange uses elliptic curves only");
    text("tls-ca-cert-file", "") =>
        /// File with the authorities that may issue certificates of clients and of a primary.
        live tls_ca_cert_file: Option<PathBuf> = Value::path;
    text("tls-ca-cert-dir", "") =>
        /// Directory with files of such authorities.
        live tls_ca_cert_dir: Option<PathBuf> = Value::path;
    choice("tls-auth-clients", AuthClients::WORDS, "yes") =>
        /// Whether clients must have certificates.
        live tls_auth_clients: AuthClients = one_word;
    choice("tls-auth-clients-user", AuthClientsUser::WORDS, "off") =>
        /// Part of a client's certificate that names its user.
        live tls_auth_clients_user: AuthClientsUser = one_word;
    integer("tls-auto-reload-interval", 0, INT, "0") =>
        /// Period after which the files of certificates and keys are checked for changes; `None`: never.
        live tls_auto_reload_interval: Option<Duration> = nonzero_seconds;
    yes_no("tls-replication", "no") =>
        /// Whether a replica reaches its primary by TLS.
        live tls_replication: bool = Value::yes;
    yes_no("tls-cluster", "no").idle(NO_CLUSTER);
    text("tls-protocols", "") =>
        /// Versions of TLS. Empty means all that are safe.
        live tls_protocols: Vec<u8> = bytes;
    text("tls-ciphers", "") =>
        /// Cipher suites of TLS 1.2, as OpenSSL names them. Empty means all.
        live tls_ciphers: Vec<u8> = bytes;
    text("tls-ciphersuites", "") =>
        /// Cipher suites of TLS 1.3. Empty means all.
        live tls_ciphersuites: Vec<u8> = bytes;
    yes_no("tls-prefer-server-ciphers", "no") =>
        /// Whether the server's order of cipher suites is preferred to the client's.
        live tls_prefer_server_ciphers: bool = Value::yes;
    yes_no("tls-session-caching", "yes") =>
        /// Whether clients may resume sessions.
        live tls_session_caching: bool = Value::yes;
    integer("tls-session-cache-size", 0, INT, "20480").idle("sessions are kept by clients, in tickets");
    integer("tls-session-cache-timeout", 0, INT, "300") =>
        /// Time for which clients may resume a session; `None` sets no limit.
        live tls_session_cache_timeout: Option<Duration> = nonzero_seconds;
}

/// Variables that a title template may name.
const TITLE_VARIABLES: &[&[u8]] =
    &[b"title", b"listen-addr", b"server-mode", b"port", b"tls-port", b"unixsocket", b"config-file"];

/// Returns every directive, for code that describes them.
pub fn directives() -> &'static [Directive] {
    DIRECTIVES
}

/// Positions in the table by both names of each directive, sorted by name.
static BY_NAME: LazyLock<Vec<(&'static str, usize)>> = LazyLock::new(|| {
    let rows = DIRECTIVES.iter().enumerate();
    let mut names: Vec<_> =
        rows.flat_map(|(place, row)| row.names().map(move |name| (name, place))).collect();
    names.sort_unstable();
    names
});

/// Finds a directive by either name, in any case.
///
/// Returns the name as the table spells it, and the row's position.
pub(super) fn find(name: &[u8]) -> Option<(&'static str, usize)> {
    let name = name.to_ascii_lowercase();
    let place = BY_NAME.binary_search_by(|(known, _)| known.as_bytes().cmp(&name)).ok()?;
    Some(BY_NAME[place])
}

/// Finds the position of a directive that the caller knows to exist.
pub(super) fn place_of(name: &str) -> usize {
    match find(name.as_bytes()) {
        Some((_, place)) => place,
        None => unreachable!("{name} is a row of the table"),
    }
}

fn power_of_two(value: Value) -> Result<Value, Reason> {
    if value.number::<u32>().is_power_of_two() {
        Ok(value)
    } else {
        Err(Reason::Rule("argument must be a power of two between 1 and 16384"))
    }
}

/// Limits a frequency to 1 to 500. As in Redis, others are not refused.
fn between_1_and_500(value: Value) -> Result<Value, Reason> {
    Ok(Value::Number(value.number::<i128>().clamp(1, 500)))
}

/// Replaces `relative` with its shorter name `yes`.
fn relative_is_yes(value: Value) -> Result<Value, Reason> {
    Ok(if value.word() == "relative" { Value::Choice("yes") } else { value })
}

/// Raises a smaller backlog to 16 KiB. As in Redis, it is not refused.
fn at_least_16_kilobytes(value: Value) -> Result<Value, Reason> {
    Ok(Value::Number(value.number::<i128>().max(16 << 10)))
}

/// Accepts the lists of processors that [`cpus`] reads.
fn cpu_list(value: Value) -> Result<Value, Reason> {
    match cpus_of(value.text()) {
        Some(_) => Ok(value),
        None => Err(Reason::Rule("argument must be a list of processors such as 0,2-5 or 0-7:2")),
    }
}

fn cpus(value: &Value) -> Vec<usize> {
    cpus_of(value.text()).unwrap_or_default()
}

/// Reads a list of processors, as taskset takes it: numbers, ranges, and ranges with a step.
fn cpus_of(text: &[u8]) -> Option<Vec<usize>> {
    let text = std::str::from_utf8(text).ok()?.trim();
    let mut cpus = Vec::new();
    for part in text.split(',').filter(|_| !text.is_empty()) {
        let (range, step) = part.split_once(':').unwrap_or((part, "1"));
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let number = |word: &str| word.trim().parse::<usize>().ok().filter(|&number| number < MAX_CPUS);
        let (first, last, step) = (number(first)?, number(last)?, number(step)?);
        if first > last || step == 0 {
            return None;
        }
        cpus.extend((first..=last).step_by(step));
    }
    Some(cpus)
}

fn save_or_nosave(value: Value) -> Result<Value, Reason> {
    let options = ShutdownOptions::named(value.chosen());
    if options.save && options.nosave {
        return Err(Reason::Rule("shutdown options SAVE and NOSAVE can't be used simultaneously"));
    }
    Ok(value)
}

/// Accepts nonempty text in which every `{…}` is a known variable.
fn title_template(value: Value) -> Result<Value, Reason> {
    const REFUSED: Reason = Reason::Rule("template format is invalid or contains unknown variables");
    let mut rest = value.text();
    if rest.is_empty() {
        return Err(REFUSED);
    }
    while let Some(open) = rest.iter().position(|&byte| byte == b'{') {
        rest = &rest[open + 1..];
        let close = rest.iter().position(|&byte| byte == b'}').ok_or(REFUSED)?;
        if !TITLE_VARIABLES.contains(&&rest[..close]) {
            return Err(REFUSED);
        }
        rest = &rest[close + 1..];
    }
    Ok(value)
}

/// Accepts the locales whose order is that of bytes.
fn locale(value: Value) -> Result<Value, Reason> {
    let known: &[&[u8]] = &[b"", b"C", b"POSIX", b"C.UTF-8", b"C.utf8"];
    if known.contains(&value.text()) {
        return Ok(value);
    }
    Err(Reason::Rule("Invalid locale name: SORT with ALPHA knows the orders of C, POSIX and C.UTF-8 only"))
}

fn snapshot_name(value: Value) -> Result<Value, Reason> {
    if value.text().contains(&b'/') {
        return Err(Reason::Rule("dbfilename can't be a path, just a filename"));
    }
    Ok(value)
}

fn name(value: &Value) -> String {
    String::from_utf8_lossy(value.text()).into_owned()
}

fn append_only_name(value: Value) -> Result<Value, Reason> {
    match value.text() {
        b"" => Err(Reason::Rule("appendfilename can't be empty")),
        name if name.contains(&b'/') => Err(Reason::Rule("appendfilename can't be a path, just a filename")),
        _ => Ok(value),
    }
}

fn append_only_directory(value: Value) -> Result<Value, Reason> {
    match value.text() {
        b"" => Err(Reason::Rule("appenddirname can't be empty")),
        name if name.contains(&b'/') => Err(Reason::Rule("appenddirname can't be a path, just a dirname")),
        _ => Ok(value),
    }
}

fn host_name(value: Value) -> Result<Value, Reason> {
    let name = value.text();
    if name.len() > MAX_HOSTNAME_BYTES {
        return Err(Reason::Rule("Hostnames must be less than 256 characters"));
    }
    if !name.iter().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.')) {
        return Err(Reason::Rule("Hostnames may only contain alphanumeric characters, hyphens or dots"));
    }
    Ok(value)
}

/// Accepts names for the nodes file, whose fields are separated by spaces and commas.
fn node_name(value: Value) -> Result<Value, Reason> {
    let allowed = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
    if !value.text().iter().all(allowed) {
        return Err(Reason::Rule(
            "Announced human node name may only contain alphanumeric characters, hyphens, dots or underscores",
        ));
    }
    Ok(value)
}

fn addresses(value: &Value) -> Vec<BindAddress> {
    value.addresses().iter().map(|word| BindAddress::parse(word)).collect()
}

fn names(value: &Value) -> Vec<String> {
    value.addresses().iter().map(|word| String::from_utf8_lossy(word).into_owned()).collect()
}

fn one_word<T: Word>(value: &Value) -> T {
    T::named(value.word())
}

fn shutdown_options(value: &Value) -> ShutdownOptions {
    ShutdownOptions::named(value.chosen())
}

fn bytes(value: &Value) -> Vec<u8> {
    value.text().to_vec()
}

fn seconds(value: &Value) -> Duration {
    Duration::from_secs(value.number())
}

fn nonzero_seconds(value: &Value) -> Option<Duration> {
    value.nonzero().map(Duration::from_secs)
}

fn nonzero_millis(value: &Value) -> Option<Duration> {
    value.nonzero().map(Duration::from_millis)
}

/// Reads microseconds. A negative number turns the feature off.
fn micros(value: &Value) -> Option<Duration> {
    u64::try_from(value.number::<i64>()).ok().map(Duration::from_micros)
}

/// Reads a delay in microseconds. 0 turns it off.
fn delay(value: &Value) -> Option<Duration> {
    micros(value).filter(|delay| !delay.is_zero())
}

/// Reads a count. A negative number turns the feature off.
fn not_negative(value: &Value) -> Option<usize> {
    usize::try_from(value.number::<i64>()).ok()
}

fn users(value: &Value) -> Vec<UserLine> {
    let user = |words: &Vec<Vec<u8>>| {
        let (name, rules) = words.split_first()?;
        Some(UserLine { name: name.clone(), rules: rules.to_vec() })
    };
    value.lines().iter().filter_map(user).collect()
}

fn renamed_commands(value: &Value) -> Vec<RenamedCommand> {
    let renamed = |words: &Vec<Vec<u8>>| match words.as_slice() {
        [from, to] => RenamedCommand { from: from.clone(), to: (!to.is_empty()).then(|| to.clone()) },
        other => unreachable!("{other:?}: the row takes exactly two words"),
    };
    value.lines().iter().map(renamed).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::super::directive::{DirectiveFlags, Meaning};
    use super::*;

    /// `CONFIG GET *` of a redis-server 7.0 that was started without a file, as lines of `name=value`.
    const REDIS_7_0: &str = include_str!("defaults/redis-7.0.txt");

    /// The same of newer servers. That of Redis 8.10 is written from its documents.
    const NEWER: [(&str, &str); 3] = [
        ("Redis 8.2", include_str!("defaults/redis-8.2.txt")),
        ("Redis 8.10", include_str!("defaults/redis-8.10.txt")),
        ("Valkey 9.1", include_str!("defaults/valkey-9.1.txt")),
    ];

    /// Defaults that differ from Redis 7.0, each with its reason.
    const MEANT_TO_DIFFER: &[(&str, &str)] = &[
        ("bind", "Loopback only, as the redis.conf that Redis ships: reaching other machines is asked for"),
        ("io-threads", "Cores available: every thread runs commands"),
        ("dir", "Where the server is started"),
        ("repl-backlog-size", "As Valkey 8 and later: many threads write more in the same time"),
    ];

    #[test]
    fn defaults_are_those_of_redis() {
        let differ: Vec<&str> = MEANT_TO_DIFFER.iter().map(|(name, _)| *name).collect();
        for line in REDIS_7_0.lines() {
            let (name, expected) = line.split_once('=').unwrap();
            let (_, place) = find(name.as_bytes()).unwrap_or_else(|| panic!("{name} is not in the table"));
            let row = &DIRECTIVES[place];
            assert!(!row.flags.contains(DirectiveFlags::FILE_ONLY), "{name}");
            if differ.contains(&name) {
                continue;
            }
            let printed = String::from_utf8(row.kind.print(&row.default_value())).unwrap();
            assert_eq!(printed, expected, "{name}");
        }
    }

    #[test]
    fn every_directive_of_every_server_takes_its_default() {
        for (server, lines) in [("Redis 7.0", REDIS_7_0)].iter().chain(&NEWER) {
            let mut n_taken = 0;
            for (name, value) in lines.lines().map(|line| line.split_once('=').unwrap()) {
                let (_, place) =
                    find(name.as_bytes()).unwrap_or_else(|| panic!("{server}: {name} is unknown"));
                let row = &DIRECTIVES[place];
                assert!(!row.flags.contains(DirectiveFlags::FILE_ONLY), "{server}: {name}");
                // No server takes the empty value that it shows for this one.
                if matches!(row.kind, Kind::Primary | Kind::Dir) {
                    continue;
                }
                let taken = row.parse(&[value.as_bytes()], &row.default_value());
                let taken = taken.unwrap_or_else(|why| panic!("{server}: {name} {value}: {why}"));
                assert_eq!(row.kind.print(&taken), value.as_bytes(), "{server}: {name}");
                assert_eq!(row.refused_at_start(&taken), None, "{server}: {name}");
                assert_eq!(row.refused_at_run_time(&taken), None, "{server}: {name}");
                n_taken += 1;
            }
            assert!(n_taken > 180, "{server}: {n_taken}");
        }
    }

    #[test]
    fn a_directive_without_an_effect_says_why() {
        for row in DIRECTIVES {
            assert_eq!(row.has_effect(), row.idle.is_none(), "{}", row.name);
            assert!(row.why_idle().is_empty() == row.has_effect(), "{}", row.name);
            assert!(!row.why_idle().ends_with('.'), "{}: a sentence goes on after it", row.name);
        }
    }

    #[test]
    fn what_redis_7_0_shows_is_not_hidden_and_both_names_are_known() {
        let shown: HashSet<&str> = REDIS_7_0.lines().map(|line| line.split_once('=').unwrap().0).collect();
        for row in DIRECTIVES {
            let seen = row.names().filter(|name| shown.contains(name)).count();
            assert!(seen == 0 || !row.flags.contains(DirectiveFlags::HIDDEN), "{}", row.name);
        }
    }

    #[test]
    fn names_are_unique_and_lowercase() {
        let mut names = HashSet::new();
        for name in DIRECTIVES.iter().flat_map(Directive::names) {
            assert!(names.insert(name), "{name} stands twice");
            assert!(
                name.bytes()
                    .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-_".contains(&byte)),
                "{name}"
            );
            assert_eq!(find(name.to_ascii_uppercase().as_bytes()).unwrap().0, name);
        }
        assert_eq!(find(b"nonesuch"), None);
    }

    #[test]
    fn every_value_that_a_row_accepts_fits_its_setting() {
        for row in DIRECTIVES {
            let (Meaning::Live(apply) | Meaning::Reserved(apply)) = row.meaning else { continue };
            let accepted: Vec<String> = match row.kind {
                Kind::Bool => vec!["yes".into(), "no".into()],
                Kind::Integer { min, max } | Kind::Memory { min, max } => {
                    vec![min.to_string(), max.to_string()]
                }
                Kind::FileMode => vec!["0".into(), "777".into()],
                Kind::Primary => vec!["no one".into()],
                Kind::Choice(words) | Kind::Choices(words) => words.iter().map(|&word| word.into()).collect(),
                _ => vec![row.default.into()],
            };
            let mut settings = Settings::default();
            apply(&mut settings, &row.default_value());
            for text in accepted.iter().filter(|_| !matches!(row.kind, Kind::Dir | Kind::Line { .. })) {
                apply(&mut settings, &row.parse(&[text.as_bytes()], &row.default_value()).unwrap());
            }
        }
    }

    #[test]
    fn printed_values_are_read_back() {
        for row in
            DIRECTIVES.iter().filter(|row| !matches!(row.kind, Kind::Dir | Kind::Line { .. } | Kind::Primary))
        {
            let default = row.default_value();
            let printed = row.kind.print(&default);
            assert_eq!(row.parse(&[&printed], &default).unwrap(), default, "{}", row.name);
        }
    }

    #[test]
    fn rules_of_single_directives() {
        let refused = |name: &str, text: &str| {
            let row = &DIRECTIVES[place_of(name)];
            row.parse(&[text.as_bytes()], &row.default_value()).map_err(|reason| reason.to_string())
        };
        let cases = [
            ("shards", "3", "argument must be a power of two between 1 and 16384"),
            ("shards", "32768", "argument must be between 1 and 16384 inclusive"),
            ("io-threads", "0", "argument must be between 1 and 128 inclusive"),
            ("proc-title-template", "", "template format is invalid or contains unknown variables"),
            ("proc-title-template", "{x}", "template format is invalid or contains unknown variables"),
            ("proc-title-template", "{title", "template format is invalid or contains unknown variables"),
            ("dbfilename", "a/b", "dbfilename can't be a path, just a filename"),
            ("appendfilename", "", "appendfilename can't be empty"),
            ("appenddirname", "a/b", "appenddirname can't be a path, just a dirname"),
            (
                "cluster-announce-hostname",
                "*",
                "Hostnames may only contain alphanumeric characters, hyphens or dots",
            ),
            (
                "shutdown-on-sigint",
                "nosave save",
                "shutdown options SAVE and NOSAVE can't be used simultaneously",
            ),
            (
                "shutdown-on-sigterm",
                "",
                "argument(s) must be one of the following: default, save, nosave, now, force, safe, failover",
            ),
            (
                "loglevel",
                "zz",
                "argument(s) must be one of the following: debug, verbose, notice, warning, nothing",
            ),
            (
                "locale-collate",
                "de_DE.UTF-8",
                "Invalid locale name: SORT with ALPHA knows the orders of C, POSIX and C.UTF-8 only",
            ),
            ("server-cpulist", "3-1", "argument must be a list of processors such as 0,2-5 or 0-7:2"),
            ("bio-cpulist", "0-7:0", "argument must be a list of processors such as 0,2-5 or 0-7:2"),
            ("notify-keyspace-events", "Kg A", "Invalid event class character. Use 'Ag$lshzxeKEtmdnoc'."),
            ("oom-score-adj-values", "1 2", "wrong number of arguments"),
            (
                "oom-score-adj-values",
                "3 2 2001",
                "Invalid oom-score-adj-values, elements must be between -2000 and 2000.",
            ),
        ];
        for (name, text, why) in cases {
            assert_eq!(refused(name, text), Err(why.into()), "{name} {text}");
        }
        assert_eq!(cpus_of(b"0,2-5, 8-15:3"), Some(vec![0, 2, 3, 4, 5, 8, 11, 14]));
        assert_eq!(cpus_of(b""), Some(Vec::new()));
        assert_eq!(refused("hz", "0"), Ok(Value::Number(1)));
        assert_eq!(refused("hz", "1000"), Ok(Value::Number(500)));
        assert_eq!(refused("repl-backlog-size", "1"), Ok(Value::Number(16_384)));
        assert_eq!(refused("oom-score-adj", "RELATIVE"), Ok(Value::Choice("yes")));
        assert_eq!(
            refused("shutdown-on-sigint", "default SAVE force"),
            Ok(Value::Choices(vec!["save", "force"]))
        );
        assert!(refused("proc-title-template", "a {port}} b").is_ok());
    }
}
