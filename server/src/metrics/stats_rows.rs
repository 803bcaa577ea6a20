//! The rows of the section Stats.

use std::sync::atomic::Ordering;

use braid_storage::observers::channels::ChannelKind;

use super::metric::{
    Figure::Decimal,
    Metric,
    MetricType::{Counter, Gauge, Untyped},
    figure, fixed, sum,
};
use super::readings::Readings;
use crate::telemetry::stats::{Count, ThreadStats};

/// Counts since the start or since CONFIG RESETSTAT, and recent rates.
pub const STATS: &[Metric] = &[
    sum("total_connections_received", |stats| &stats.connections).shown(
        Counter,
        "redis_connections_received_total",
        "Connections accepted.",
    ),
    figure("total_commands_processed", |now| now.server.n_calls().into()).shown(
        Counter,
        "redis_commands_processed_total",
        "Commands that have run.",
    ),
    figure("instantaneous_ops_per_sec", |now| now.rates().commands.into()),
    sum("total_net_input_bytes", |stats| &stats.bytes_in).shown(
        Counter,
        "redis_net_input_bytes_total",
        "Bytes received.",
    ),
    sum("total_net_output_bytes", |stats| &stats.bytes_out).shown(
        Counter,
        "redis_net_output_bytes_total",
        "Bytes sent.",
    ),
    figure("total_net_repl_input_bytes", |now| {
        now.server.replica.link_bytes_in.load(Ordering::Relaxed).into()
    })
    .shown(Counter, "redis_net_repl_input_bytes_total", "Bytes received from the primary."),
    figure("total_net_repl_output_bytes", |now| now.server.replica_bytes_out().into()).shown(
        Counter,
        "redis_net_repl_output_bytes_total",
        "Bytes sent to replicas, and to the primary.",
    ),
    figure("instantaneous_input_kbps", |now| Decimal(now.rates().bytes_in as f64 / 1024.0)),
    figure("instantaneous_output_kbps", |now| Decimal(now.rates().bytes_out as f64 / 1024.0)),
    figure("instantaneous_input_repl_kbps", |now| Decimal(now.rates().replica_bytes_in as f64 / 1024.0)),
    figure("instantaneous_output_repl_kbps", |now| Decimal(now.rates().replica_bytes_out as f64 / 1024.0)),
    sum("rejected_connections", |stats| &stats.refused).shown(
        Counter,
        "redis_rejected_connections_total",
        "Connections that were refused.",
    ),
    figure("sync_full", |now| now.server.replication.n_full.load(Ordering::Relaxed).into()).shown(
        Untyped,
        "redis_replica_resyncs_full",
        "Full copies for replicas.",
    ),
    figure("sync_partial_ok", |now| now.server.replication.n_partial.load(Ordering::Relaxed).into()).shown(
        Untyped,
        "redis_replica_partial_resync_accepted",
        "Replicas that went on where they were.",
    ),
    figure("sync_partial_err", |now| now.server.replication.n_partial_refused.load(Ordering::Relaxed).into())
        .shown(
            Untyped,
            "redis_replica_partial_resync_denied",
            "Replicas that wanted to go on, and could not.",
        ),
    figure("expired_subkeys", |now| now.server.keyspace.expired_fields().into())
        .shown(Counter, "redis_expired_subkeys_total", "Fields of hashes whose time was over.")
        .after("redis_expired_keys_total"),
    // The same, as Valkey calls it.
    figure("expired_fields", |now| now.server.keyspace.expired_fields().into()),
    figure("expired_keys", |now| now.server.keyspace.expired().into()).shown(
        Counter,
        "redis_expired_keys_total",
        "Keys whose time was over.",
    ),
    figure("expired_stale_perc", |now| {
        let threads = now.server.io_threads();
        let stale = threads.iter().map(|peer| peer.stats.stale_millionths.load(Ordering::Relaxed));
        Decimal(stale.sum::<u64>() as f64 / threads.len() as f64 / 10_000.0)
    })
    .shown(
        Gauge,
        "redis_expired_stale_percentage",
        "Of the keys with a time to live, how many are estimated to be over it, in percent.",
    ),
    sum("expired_time_cap_reached_count", |stats| &stats.expiry_caps).shown(
        Counter,
        "redis_expired_time_cap_reached_total",
        "How often the search for such keys has left off.",
    ),
    figure("expire_cycle_cpu_milliseconds", |now| {
        (now.server.sum(|stats| &stats.expiry_nanos) / 1_000_000).into()
    }),
    sum("evicted_keys", |stats| &stats.evicted).shown(
        Counter,
        "redis_evicted_keys_total",
        "Keys removed to make room.",
    ),
    sum("evicted_clients", |stats| &stats.evicted_clients).shown(
        Counter,
        "redis_evicted_clients_total",
        "Clients closed to make room.",
    ),
    figure("evicted_scripts", |now| now.server.scripts.n_evicted().into()).shown(
        Counter,
        "redis_evicted_scripts_total",
        "Scripts of EVAL that made way for newer ones.",
    ),
    figure("total_eviction_exceeded_time", |now| (now.exceeded()[1].as_millis() as u64).into()),
    figure("current_eviction_exceeded_time", |now| (now.exceeded()[0].as_millis() as u64).into()),
    sum("keyspace_hits", |stats| &stats.hits).shown(
        Counter,
        "redis_keyspace_hits_total",
        "Keys that were looked up and found.",
    ),
    sum("keyspace_misses", |stats| &stats.misses).shown(
        Counter,
        "redis_keyspace_misses_total",
        "Keys that were looked up in vain.",
    ),
    figure("pubsub_channels", |now| now.server.pubsub.n_channels(ChannelKind::Global).into()).shown(
        Gauge,
        "redis_pubsub_channels",
        "Channels with subscribers.",
    ),
    figure("pubsub_patterns", |now| now.server.pubsub.patterns.len().into()).shown(
        Gauge,
        "redis_pubsub_patterns",
        "Patterns with subscribers.",
    ),
    figure("pubsubshard_channels", |now| now.server.pubsub.n_channels(ChannelKind::Sharded).into()).shown(
        Gauge,
        "redis_pubsubshard_channels",
        "Shard channels with subscribers.",
    ),
    fixed("latest_fork_usec", "0"),
    fixed("total_forks", "0"),
    fixed("migrate_cached_sockets", "0"),
    figure("slave_expires_tracked_keys", |now| now.server.replication.own_keys.len().into()).shown(
        Gauge,
        "redis_slave_expires_tracked_keys",
        "Keys with deadlines that clients have written to a replica.",
    ),
    fixed("total_active_defrag_time", "0"),
    fixed("current_active_defrag_time", "0"),
    fixed("active_defrag_hits", "0"),
    fixed("active_defrag_misses", "0"),
    fixed("active_defrag_key_hits", "0"),
    fixed("active_defrag_key_misses", "0"),
    figure("tracking_total_keys", |now| now.server.trackers.n_keys().into()).shown(
        Gauge,
        "redis_tracking_total_keys",
        "Keys that clients keep copies of.",
    ),
    figure("tracking_total_items", |now| now.server.trackers.n_readers().into()).shown(
        Gauge,
        "redis_tracking_total_items",
        "Copies that clients keep.",
    ),
    figure("tracking_total_prefixes", |now| now.server.trackers.n_prefixes().into()).shown(
        Gauge,
        "redis_tracking_total_prefixes",
        "Prefixes that clients track.",
    ),
    figure("unexpected_error_replies", |now| {
        now.server.replica.n_unexpected_errors.load(Ordering::Relaxed).into()
    })
    .shown(Untyped, "redis_unexpected_error_replies", "Error replies that nobody should get.")
    .after("redis_total_error_replies"),
    sum("total_error_replies", |stats| &stats.errors).shown(
        Untyped,
        "redis_total_error_replies",
        "Error replies.",
    ),
    fixed("dump_payload_sanitizations", "0"),
    sum("total_reads_processed", |stats| &stats.reads)
        .shown(Untyped, "redis_total_reads_processed", "Reads from sockets.")
        .after("redis_net_output_bytes_total"),
    sum("total_writes_processed", |stats| &stats.writes)
        .shown(Untyped, "redis_total_writes_processed", "Writes to sockets.")
        .after("redis_total_reads_processed"),
    figure("io_threaded_reads_processed", |now| sum_of_others(now, |stats| &stats.reads).into())
        .shown(Untyped, "redis_io_threaded_reads_processed", "Reads by threads other than the first.")
        .after("redis_total_writes_processed"),
    figure("io_threaded_writes_processed", |now| sum_of_others(now, |stats| &stats.writes).into())
        .shown(Untyped, "redis_io_threaded_writes_processed", "Writes by threads other than the first.")
        .after("redis_io_threaded_reads_processed"),
    fixed("reply_buffer_shrinks", "0"),
    fixed("reply_buffer_expands", "0"),
    sum("client_query_buffer_limit_disconnections", |stats| &stats.input_limit_closes)
        .shown(
            Counter,
            "braid_query_buffer_limit_disconnections_total",
            "Clients closed because they sent too much.",
        )
        .after("redis_acl_access_denied_channel_total"),
    sum("client_output_buffer_limit_disconnections", |stats| &stats.output_limit_closes)
        .shown(
            Counter,
            "braid_output_buffer_limit_disconnections_total",
            "Clients closed because they read too little.",
        )
        .after("braid_query_buffer_limit_disconnections_total"),
    sum("eventloop_cycles", |stats| &stats.turns),
    figure("eventloop_duration_sum", |now| (now.server.sum(|stats| &stats.busy_nanos) / 1000).into()),
    figure("eventloop_duration_cmd_sum", |now| (now.server.command_nanos() / 1000).into()),
    figure("instantaneous_eventloop_cycles_per_sec", |now| now.rates().turns.into()),
    figure("instantaneous_eventloop_duration_usec", |now| {
        (now.rates().busy_nanos / 1000 / now.rates().turns.max(1)).into()
    }),
    figure("acl_access_denied_auth", |now| {
        let by_clients = now.server.sum(|stats| &stats.failed_auths);
        (by_clients + now.server.failed_logins.load(Ordering::Relaxed)).into()
    })
    .shown(Counter, "redis_acl_access_denied_auth_total", "Passwords that did not fit."),
    sum("acl_access_denied_cmd", |stats| &stats.denied_commands).shown(
        Counter,
        "redis_acl_access_denied_cmd_total",
        "Commands that their users may not run.",
    ),
    sum("acl_access_denied_key", |stats| &stats.denied_keys).shown(
        Counter,
        "redis_acl_access_denied_key_total",
        "Commands on keys that their users may not use.",
    ),
    sum("acl_access_denied_db", |stats| &stats.denied_databases).shown(
        Counter,
        "redis_acl_access_denied_db_total",
        "Commands on databases to which their user had no right.",
    ),
    sum("acl_access_denied_channel", |stats| &stats.denied_channels).shown(
        Counter,
        "redis_acl_access_denied_channel_total",
        "Commands on channels that their users may not use.",
    ),
    sum("acl_access_denied_tls_cert", |stats| &stats.denied_certificates),
    sum("slowlog_commands_count", |stats| &stats.slow_commands).shown(
        Counter,
        "redis_slowlog_commands_total",
        "Commands that the slow log has taken.",
    ),
    figure("slowlog_commands_time_ms_sum", |now| (now.server.sum(|stats| &stats.slow_micros) / 1000).into()),
    figure("slowlog_commands_time_ms_max", |now| {
        let longest = now.server.threads.iter().map(|peer| peer.stats.slow_micros_max.get()).max();
        (longest.unwrap_or_default() / 1000).into()
    }),
    // Braid's own.
    figure("lane_runs", |now| now.server.engine.n_lane_runs().into())
        .shown(Counter, "braid_lane_runs_total", "Transactions over contended shards that took the lane.")
        .after("braid_heavy_threads"),
];

/// The sum of a counter over the I/O threads other than the first.
fn sum_of_others(now: &Readings<'_>, count: fn(&ThreadStats) -> &Count) -> u64 {
    now.server.io_threads().iter().skip(1).map(|peer| count(&peer.stats).get()).sum()
}
