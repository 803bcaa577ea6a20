//! The rows of the sections Server, Replication, CPU, Cluster and Debug.

use std::{borrow::Cow, fs, path::Path, sync::atomic::Ordering};

use braid_journal::history::ReplicationId;
use braid_storage::table::hash::KeyHasher;

use super::{
    metric::{
        Figure::{self, Micros},
        Metric,
        MetricType::{Counter, Gauge},
        figure, fixed, sum, unlisted,
    },
    readings::Readings,
};
use crate::{
    config::Supervised,
    replication::replica::role::{CopyProgress, LinkState, ReplicaRole},
    shared::{
        announced::AnnouncedServer,
        server::{BRAID_VERSION, SPARE_THREADS},
    },
    sockets::{certificate_facts::CertificateFacts, certificates::Certificates},
};

/// The process and its configuration.
pub const SERVER: &[Metric] = &[
    figure("redis_version", |now| AnnouncedServer::of(&now.config).redis_version.into()),
    figure("server_name", |now| AnnouncedServer::of(&now.config).valkey_version.map(|_| "valkey").into()),
    figure("valkey_version", |now| AnnouncedServer::of(&now.config).valkey_version.into()),
    figure("valkey_release_stage", |now| {
        AnnouncedServer::of(&now.config).valkey_version.map(|_| "ga").into()
    }),
    fixed("braid_version", BRAID_VERSION),
    fixed("redis_git_sha1", "00000000"),
    fixed("redis_git_dirty", "0"),
    figure("redis_build_id", |_| {
        let build = KeyHasher::with_key(0, 0).hash(BRAID_VERSION.as_bytes());
        format!("{:016x}", build.0).into()
    }),
    figure("redis_mode", |now| (!is_plain_valkey(now)).then_some("standalone").into()),
    figure("server_mode", |now| is_plain_valkey(now).then_some("standalone").into()),
    figure("os", |_| operating_system().into()),
    figure("arch_bits", |_| usize::BITS.into()),
    fixed("monotonic_clock", "POSIX clock_gettime"),
    fixed("multiplexing_api", "epoll"),
    fixed("atomicvar_api", "rust-core"),
    // Redis says so where it was not compiled by GCC.
    fixed("gcc_version", "0.0.0"),
    figure("process_id", |_| std::process::id().into())
        .shown(Gauge, "redis_process_id", "The number of the process.")
        .after("redis_uptime_in_seconds"),
    figure("process_supervised", |now| match now.server.process.supervisor {
        Supervised::Systemd => "systemd".into(),
        _ => "no".into(),
    }),
    figure("run_id", |now| now.server.run_id.clone().into()),
    figure("tcp_port", |now| now.config.main_port().into()),
    figure("server_time_usec", |now| now.unix_micros.into()),
    figure("uptime_in_seconds", |now| now.uptime.as_secs().into()).shown(
        Gauge,
        "redis_uptime_in_seconds",
        "For how long the server has run.",
    ),
    figure("uptime_in_days", |now| (now.uptime.as_secs() / 86_400).into()),
    figure("hz", |now| now.config.hz.into()),
    figure("configured_hz", |now| now.config.hz.into()),
    figure("lru_clock", |now| ((now.unix_micros / 1_000_000) & 0xff_ffff).into()),
    figure("executable", |_| {
        let executable = std::env::current_exe().unwrap_or_default();
        executable.display().to_string().into()
    }),
    figure("config_file", |now| now.config.file().unwrap_or(Path::new("")).display().to_string().into()),
    figure("io_threads", |now| now.config.io_threads.into())
        .shown(Gauge, "redis_config_io_threads", "The directive io-threads.")
        .after("redis_config_maxclients"),
    figure("io_threads_active", |now| (now.server.spread.n_in_use() > 1).into()).shown(
        Gauge,
        "redis_io_threads_active",
        "Whether several threads have connections.",
    ),
    figure("shutdown_in_milliseconds", |now| {
        let ends_at = now.server.replication.replicas.ends_at();
        ends_at.map(|at| at.saturating_sub(now.server.clock.uptime_millis())).into()
    }),
    figure("listener0", |now| now.server.listening.shown("tcp").into()),
    figure("listener1", |now| now.server.listening.shown("unix").into()),
    figure("listener2", |now| now.server.listening.shown("tls").into()),
    figure("availability_zone", |now| {
        let is_told = AnnouncedServer::of(&now.config).valkey_version.is_some();
        let zone = now.config.availability_zone.as_deref().map(|zone| String::from_utf8_lossy(zone));
        zone.map(Cow::into_owned).or_else(|| is_told.then(String::new)).into()
    }),
];

/// The certificates in use.
pub const TLS: &[Metric] = &[
    figure("tls_server_cert_serial", |now| serial_of(now, |certificates| certificates.server.as_ref())),
    figure("tls_server_cert_expires_in_seconds", |now| {
        left_of(now, |certificates| certificates.server.as_ref())
    })
    .shown(Gauge, "redis_tls_server_cert_expires_in_seconds", "The time until the certificate expires."),
    // No connection of the server has one.
    fixed("tls_client_cert_serial", "none"),
    fixed("tls_client_cert_expires_in_seconds", "0"),
    figure("tls_ca_cert_serial", |now| serial_of(now, |certificates| certificates.authority.as_ref())),
    figure("tls_ca_cert_expires_in_seconds", |now| {
        left_of(now, |certificates| certificates.authority.as_ref())
    })
    .shown(
        Gauge,
        "redis_tls_ca_cert_expires_in_seconds",
        "The time until the authority's certificate expires.",
    ),
];

/// A certificate among those in use.
type OfCertificates = fn(&Certificates) -> Option<&CertificateFacts>;

fn serial_of(now: &Readings<'_>, of: OfCertificates) -> Figure {
    let certificates = now.server.tls.load();
    let facts = certificates.as_deref().and_then(of);
    facts.map_or("none".to_owned(), |facts| facts.serial.clone()).into()
}

fn left_of(now: &Readings<'_>, of: OfCertificates) -> Figure {
    let certificates = now.server.tls.load();
    let facts = certificates.as_deref().and_then(of);
    let unix_seconds = now.unix_micros / 1_000_000;
    facts.map_or(0, |facts| facts.not_after.saturating_sub(unix_seconds)).into()
}

/// Whether the server is announced as Valkey, and not under the old name of its mode.
fn is_plain_valkey(now: &Readings<'_>) -> bool {
    AnnouncedServer::of(&now.config).server == "valkey"
}

fn operating_system() -> String {
    let kernel = |name: &str| {
        let text = fs::read_to_string(format!("/proc/sys/kernel/{name}")).unwrap_or_default();
        text.trim().to_owned()
    };
    format!("{} {} {}", kernel("ostype"), kernel("osrelease"), std::env::consts::ARCH)
}

/// The head of the section Replication. Most of its rows are those of a replica.
pub const REPLICATION: &[Metric] = &[
    figure("role", |now| if now.server.replica.is_on() { "slave" } else { "master" }.into()),
    figure("master_host", |now| {
        let primary = now.server.replica.primary();
        primary.map(|primary| String::from_utf8_lossy(&primary.host).into_owned()).into()
    }),
    figure("master_port", |now| now.server.replica.primary().map(|primary| primary.port).into()),
    figure("master_link_status", |now| {
        on_replica(now, |replica| if replica.state() == LinkState::Connected { "up" } else { "down" })
    }),
    unlisted(|now| on_replica(now, |replica| replica.state() == LinkState::Connected))
        .shown(Gauge, "redis_master_link_up", "Whether a replica has its link to the primary.")
        .naming_primary(),
    figure("master_last_io_seconds_ago", |now| {
        on_replica(now, |replica| match replica.state() {
            LinkState::Connected => seconds_ago(now, replica.last_io()),
            _ => -1,
        })
    })
    .shown(Gauge, "redis_master_last_io_seconds_ago", "Seconds since the primary last sent something.")
    .naming_primary(),
    figure("master_sync_in_progress", |now| on_replica(now, |replica| replica.copy().is_some()))
        .shown(
            Gauge,
            "redis_master_sync_in_progress",
            "Whether a replica receives a copy of the primary's data.",
        )
        .naming_primary(),
    figure("slave_read_repl_offset", |now| on_replica(now, |replica| so_far(replica, replica.read()))),
    figure("slave_repl_offset", |now| on_replica(now, |replica| so_far(replica, replica.applied())))
        .shown(Gauge, "redis_slave_repl_offset", "How far a replica has applied its primary's stream.")
        .naming_primary(),
    figure("master_sync_total_bytes", |now| of_copy(now, |copy| copy.total_bytes)),
    figure("master_sync_read_bytes", |now| of_copy(now, |copy| copy.read_bytes)),
    figure("master_sync_left_bytes", |now| {
        of_copy(now, |copy| copy.total_bytes as i64 - copy.read_bytes as i64)
    }),
    figure("master_sync_perc", |now| {
        of_copy(now, |copy| Figure::Decimal(100.0 * copy.read_bytes as f64 / copy.total_bytes.max(1) as f64))
    }),
    figure("master_sync_last_io_seconds_ago", |now| of_copy(now, |copy| seconds_ago(now, copy.last_io))),
    figure("master_link_down_since_seconds", |now| {
        on_replica(now, |replica| match (replica.state(), replica.down_since()) {
            (LinkState::Connected, _) => None,
            (_, Some(since)) => Some(seconds_ago(now, since)),
            (_, None) => Some(-1),
        })
    }),
    figure("slave_priority", |now| on_replica(now, ReplicaRole::priority)).shown(
        Gauge,
        "redis_slave_priority",
        "The order in which Sentinel promotes replicas.",
    ),
    figure("slave_read_only", |now| on_replica(now, ReplicaRole::refuses_writes)),
    figure("replica_announced", |now| on_replica(now, ReplicaRole::is_announced)),
    figure("connected_slaves", |now| now.server.replication.replicas.all().len().into()).shown(
        Gauge,
        "redis_connected_slaves",
        "Replicas.",
    ),
    figure("min_slaves_good_slaves", |now| match now.config.min_replicas_to_write {
        0 => Figure::Absent,
        _ => now.server.n_well_replicas().into(),
    }),
];

/// The rest of the section Replication, after the lines of the replicas.
pub const STREAM: &[Metric] = &[
    figure("master_failover_state", |now| now.server.replication.failover.step().word().into()),
    figure("master_replid", |now| now.server.replication.lineage().id().as_str().to_owned().into()),
    figure("master_replid2", |now| {
        let second = now.server.replication.lineage().second();
        second.map_or(ReplicationId::NONE, |(id, _)| id).as_str().to_owned().into()
    }),
    figure("master_repl_offset", |now| now.server.replication_offset().into()).shown(
        Gauge,
        "redis_master_repl_offset",
        "How far replication has come.",
    ),
    figure("second_repl_offset", |now| match now.server.replication.lineage().second() {
        Some((_, until)) => (until.0 as i64 + 1).into(),
        None => (-1_i64).into(),
    })
    .shown(
        Gauge,
        "redis_second_repl_offset",
        "The offset up to which replicas of the history before may go on; -1 is none.",
    ),
    figure("repl_backlog_active", |now| u64::from(now.server.durability.is_followed()).into()).shown(
        Gauge,
        "redis_repl_backlog_is_active",
        "Whether replicas can go on where they left off.",
    ),
    figure("repl_backlog_size", |now| now.setting("repl-backlog-size").into()).shown(
        Gauge,
        "redis_replication_backlog_bytes",
        "Bytes of the change stream that may be kept for replicas.",
    ),
    figure("repl_backlog_first_byte_offset", |now| match now.server.durability.aof.stream().history() {
        Some((first, _)) => (first.0 + 1).into(),
        None => 0_u64.into(),
    })
    .shown(
        Gauge,
        "redis_repl_backlog_first_byte_offset",
        "The first offset from which a replica may go on.",
    ),
    figure("repl_backlog_histlen", |now| {
        now.server.durability.aof.stream().history().map_or(0, |(_, n_bytes)| n_bytes).into()
    })
    .shown(
        Gauge,
        "redis_repl_backlog_history_bytes",
        "Bytes of the change stream that are kept for replicas.",
    ),
    figure("repl_spool_bytes", |now| now.server.replication.spools.n_bytes().into()).shown(
        Gauge,
        "braid_repl_spool_bytes",
        "Bytes of the change stream that are in files, for slow replicas.",
    ),
];

/// A figure that only a replica has.
fn on_replica<T: Into<Figure>>(now: &Readings<'_>, read: impl FnOnce(&ReplicaRole) -> T) -> Figure {
    now.server.replica.is_on().then(|| read(&now.server.replica)).into()
}

/// How far a replica is. As in Redis it is 1 before the first copy, and the first copy may be at 0.
fn so_far(replica: &ReplicaRole, offset: i64) -> i64 {
    if replica.has_history() { offset } else { 1 }
}

/// A figure of the copy that a replica receives.
fn of_copy<T: Into<Figure>>(now: &Readings<'_>, read: impl FnOnce(CopyProgress) -> T) -> Figure {
    now.server.replica.copy().map(read).into()
}

/// The seconds since a time in milliseconds of uptime.
fn seconds_ago(now: &Readings<'_>, since: u64) -> i64 {
    (now.server.clock.uptime_millis().saturating_sub(since) / 1000) as i64
}

/// Processor time.
pub const CPU: &[Metric] = &[
    figure("used_cpu_sys", |now| system(now.processor().process)).shown(
        Counter,
        "redis_cpu_sys_seconds_total",
        "Processor time in the system.",
    ),
    figure("used_cpu_user", |now| user(now.processor().process)).shown(
        Counter,
        "redis_cpu_user_seconds_total",
        "Processor time in the program.",
    ),
    figure("used_cpu_sys_children", |now| system(now.processor().children)).shown(
        Counter,
        "redis_cpu_sys_children_seconds_total",
        "Processor time of children in the system.",
    ),
    figure("used_cpu_user_children", |now| user(now.processor().children)).shown(
        Counter,
        "redis_cpu_user_children_seconds_total",
        "Processor time of children.",
    ),
    figure("used_cpu_sys_main_thread", |now| system(now.processor().first_thread)).shown(
        Counter,
        "redis_cpu_sys_main_thread_seconds_total",
        "Processor time of the first thread in the system.",
    ),
    figure("used_cpu_user_main_thread", |now| user(now.processor().first_thread)).shown(
        Counter,
        "redis_cpu_user_main_thread_seconds_total",
        "Processor time of the first thread in the program.",
    ),
    figure("used_active_time_main_thread", |now| Micros(now.server.threads[0].stats.busy_nanos.get() / 1000)),
];

fn user([user, _]: [u64; 2]) -> Figure {
    Micros(user)
}

fn system([_, system]: [u64; 2]) -> Figure {
    Micros(system)
}

/// The cluster, which does not exist.
pub const CLUSTER: &[Metric] = &[fixed("cluster_enabled", "0").shown(
    Gauge,
    "redis_cluster_enabled",
    "Whether the server is part of a cluster.",
)];

/// Braid's own figures.
pub const DEBUG: &[Metric] = &[
    figure("shards", |now| now.server.keyspace.router().n_shards().into()).shown(
        Gauge,
        "braid_shards",
        "Parts of the keyspace.",
    ),
    figure("heavy_threads", |now| (now.server.heavy.len() - SPARE_THREADS).into()).shown(
        Gauge,
        "braid_heavy_threads",
        "Threads for long work.",
    ),
    sum("commands_delegated", |stats| &stats.delegated).shown(
        Counter,
        "braid_commands_delegated_total",
        "Commands that found their shard held, and were left with its holder.",
    ),
    figure("io_threads_in_use", |now| now.server.spread.n_in_use().into())
        .shown(Gauge, "braid_io_threads_in_use", "Threads that new connections are given to.")
        .after("braid_shards"),
    sum("commands_postponed", |stats| &stats.postponed).shown(
        Counter,
        "braid_commands_postponed_total",
        "Commands kept until the end of a pause.",
    ),
    figure("offloaded_waiting", |now| {
        let threads = now.server.threads.iter();
        threads.map(|peer| peer.stats.offloaded_waiting.load(Ordering::Relaxed)).sum::<u64>().into()
    })
    .shown(Gauge, "braid_offloaded_waiting", "Commands that wait for such a thread.")
    .after("braid_commands_offloaded_total"),
    sum("commands_offloaded", |stats| &stats.offloaded).shown(
        Counter,
        "braid_commands_offloaded_total",
        "Commands that ran on threads for long work.",
    ),
    sum("connections_handed_over", |stats| &stats.handed_over).shown(
        Counter,
        "braid_connections_handed_over_total",
        "Connections that went on with another thread.",
    ),
    sum("tls_handshakes", |stats| &stats.handshakes).shown(
        Counter,
        "braid_tls_handshakes_total",
        "TLS handshakes.",
    ),
    sum("tls_handshakes_failed", |stats| &stats.failed_handshakes).shown(
        Counter,
        "braid_tls_handshakes_failed_total",
        "TLS handshakes that did not succeed.",
    ),
];
