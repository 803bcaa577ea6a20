//! The rows of the section Persistence.

use std::sync::atomic::Ordering;

use super::{
    metric::{
        Figure::{Decimal, Status},
        Metric,
        MetricType::{Counter, Gauge, Untyped},
        figure, fixed, unlisted,
    },
    readings::seconds_since,
};

/// Snapshots, the AOF, and loading.
pub const PERSISTENCE: &[Metric] = &[
    figure("loading", |now| now.loading().is_some().into()).shown(
        Gauge,
        "redis_loading_dump_file",
        "Whether data is being loaded.",
    ),
    figure("async_loading", |now| now.server.replica.is_loading_aside().into()).shown(
        Gauge,
        "redis_async_loading",
        "Whether a copy of the primary's data is loaded while the old data is served.",
    ),
    fixed("current_cow_peak", "0"),
    fixed("current_cow_size", "0"),
    fixed("current_cow_size_age", "0"),
    fixed("current_fork_perc", "0.00"),
    figure("current_save_keys_processed", |now| {
        now.saving().of_current(&now.server.saves.n_keys_written).into()
    }),
    figure("current_save_keys_total", |now| now.saving().of_current(&now.server.saves.n_keys).into()),
    figure("rdb_changes_since_last_save", |now| now.server.n_unsaved_changes().into()).shown(
        Gauge,
        "redis_rdb_changes_since_last_save",
        "Changes since data was last saved.",
    ),
    figure("rdb_bgsave_in_progress", |now| {
        // As in Redis, a copy for replicas counts, too.
        (now.saving().is_under_way || now.server.saves.is_copying.load(Ordering::Relaxed)).into()
    })
    .shown(Gauge, "redis_rdb_bgsave_in_progress", "Whether data is being saved."),
    figure("rdb_last_save_time", |now| now.server.saves.saved_at.load(Ordering::Relaxed).into()).shown(
        Gauge,
        "redis_rdb_last_save_timestamp_seconds",
        "When data was last saved, or the server began.",
    ),
    figure("rdb_last_bgsave_status", |now| Status(!now.server.saves.has_failed.load(Ordering::Relaxed)))
        .shown(Gauge, "redis_rdb_last_bgsave_status", "Whether data could be saved the last time.")
        .after("braid_tls_handshakes_failed_total"),
    figure("rdb_last_bgsave_time_sec", |now| now.server.saves.took_seconds.load(Ordering::Relaxed).into())
        .shown(
            Gauge,
            "braid_rdb_last_save_duration_seconds",
            "How long it took to save data the last time; -1 before the first.",
        )
        .after("braid_rdb_current_save_duration_seconds"),
    figure("rdb_current_bgsave_time_sec", |now| {
        seconds_since(now, now.saving().is_under_way, &now.server.saves.began_at).into()
    })
    .shown(
        Gauge,
        "braid_rdb_current_save_duration_seconds",
        "For how long data is being saved; -1 if it is not.",
    ),
    figure("rdb_saves", |now| now.server.saves.n_saved.load(Ordering::Relaxed).into()).shown(
        Counter,
        "braid_rdb_saves_total",
        "How often data was saved.",
    ),
    fixed("rdb_last_cow_size", "0"),
    figure("rdb_last_load_keys_expired", |now| now.server.loading.last().1.into()),
    figure("rdb_last_load_keys_loaded", |now| now.server.loading.last().0.into()),
    figure("rdb_last_load_module_data_skipped", |now| now.server.loading.module_data_skipped().into()).shown(
        Gauge,
        "braid_rdb_last_load_module_data_skipped",
        "Values, records and metadata of modules that the last loading left out.",
    ),
    figure("aof_enabled", |now| now.config.appendonly.into()).shown(
        Gauge,
        "redis_aof_enabled",
        "Whether changes are logged to a file.",
    ),
    figure("aof_rewrite_in_progress", |now| now.saving().is_rewriting.into()).shown(
        Gauge,
        "redis_aof_rewrite_in_progress",
        "Whether the append-only file is being rewritten.",
    ),
    figure("aof_rewrite_scheduled", |now| now.saving().is_rewrite_scheduled.into()).shown(
        Gauge,
        "redis_aof_rewrite_scheduled",
        "Whether it will be once a snapshot has been taken.",
    ),
    figure("aof_last_rewrite_time_sec", |now| {
        now.server.saves.rewrite_took_seconds.load(Ordering::Relaxed).into()
    })
    .shown(
        Gauge,
        "braid_aof_last_rewrite_duration_seconds",
        "How long it took to rewrite it the last time; -1 before the first.",
    )
    .after("braid_aof_current_rewrite_duration_seconds"),
    figure("aof_current_rewrite_time_sec", |now| {
        seconds_since(now, now.saving().is_rewriting, &now.server.saves.rewrite_began_at).into()
    })
    .shown(
        Gauge,
        "braid_aof_current_rewrite_duration_seconds",
        "For how long it is being rewritten; -1 if it is not.",
    ),
    figure("aof_last_bgrewrite_status", |now| {
        Status(!now.server.saves.has_rewrite_failed.load(Ordering::Relaxed))
    })
    .shown(
        Gauge,
        "redis_aof_last_bgrewrite_status",
        "Whether the append-only file could be rewritten the last time.",
    )
    .after("redis_rdb_last_bgsave_status"),
    figure("aof_rewrites", |now| now.server.saves.n_rewritten.load(Ordering::Relaxed).into()).shown(
        Counter,
        "braid_aof_rewrites_total",
        "How often it was rewritten.",
    ),
    figure("aof_rewrites_consecutive_failures", |now| {
        now.server.saves.n_rewrites_failed.load(Ordering::Relaxed).into()
    })
    .shown(
        Gauge,
        "braid_aof_rewrites_failed_in_a_row",
        "How often rewriting it has failed since it last succeeded.",
    ),
    unlisted(|now| now.server.saves.n_rewrites_failed_ever.load(Ordering::Relaxed).into())
        .shown(
            Counter,
            "braid_aof_rewrites_failed_total",
            "How often rewriting the append-only file has failed.",
        )
        .after("redis_aof_last_write_status"),
    figure("aof_last_write_status", |now| Status(!now.server.durability.aof.has_failed()))
        .shown(
            Gauge,
            "redis_aof_last_write_status",
            "Whether the append-only file can be written and synced: if not, writes are refused.",
        )
        .after("redis_aof_last_bgrewrite_status"),
    fixed("aof_last_cow_size", "0"),
    fixed("module_fork_in_progress", "0"),
    fixed("module_fork_last_cow_size", "0"),
    figure("aof_current_size", |now| now.of_aof_file(|aof| aof.sizes().0)).shown(
        Gauge,
        "redis_aof_current_size_bytes",
        "How long the append-only file is.",
    ),
    figure("aof_base_size", |now| now.of_aof_file(|aof| aof.sizes().1)).shown(
        Gauge,
        "redis_aof_base_size_bytes",
        "How long it was when it was last rewritten, or at the start.",
    ),
    figure("aof_pending_rewrite", |now| now.of_aof_file(|_| 0_u64)),
    figure("aof_buffer_length", |now| now.of_aof_file(|aof| aof.unwritten_bytes())).shown(
        Gauge,
        "redis_aof_buffer_length",
        "Bytes that wait to be written to it.",
    ),
    figure("aof_pending_bio_fsync", |now| now.of_aof_file(|aof| aof.is_syncing())).shown(
        Gauge,
        "redis_aof_pending_bio_fsync",
        "Whether a sync of it is under way.",
    ),
    figure("aof_delayed_fsync", |now| now.of_aof_file(|aof| aof.n_delayed())).shown(
        Untyped,
        "redis_aof_delayed_fsync",
        "How often a sync of it has kept writes waiting for seconds.",
    ),
    figure("loading_start_time", |now| now.loading().map(|loading| loading.began).into()),
    figure("loading_total_bytes", |now| now.loading().map(|loading| loading.total_bytes).into()),
    figure("loading_rdb_used_mem", |now| now.loading().map(|_| 0_u64).into()),
    figure("loading_loaded_bytes", |now| now.loading().map(|loading| loading.loaded_bytes).into()),
    figure("loading_loaded_perc", |now| now.loading().map(|loading| Decimal(loading.percent)).into()),
    figure("loading_eta_seconds", |now| now.loading().map(|loading| loading.eta_seconds).into()),
];
