//! The rows of the section Memory.

use braid_storage::memory::reclaim;

use super::metric::{
    Figure::{Bytes, Decimal, Percent},
    Metric,
    MetricType::{Counter, Gauge},
    figure, fixed, unlisted,
};
use super::readings::Readings;
use crate::process::system::kilobytes_of;

/// Memory by its use.
pub const MEMORY: &[Metric] = &[
    figure("used_memory", |now| Bytes(now.memory().used)).shown(
        Gauge,
        "redis_memory_used_bytes",
        "Memory in use.",
    ),
    figure("used_memory_rss", |now| Bytes(now.memory().resident)).shown(
        Gauge,
        "redis_memory_used_rss_bytes",
        "Memory that the process occupies.",
    ),
    figure("used_memory_peak", |now| Bytes(now.memory().peak)).shown(
        Gauge,
        "redis_memory_used_peak_bytes",
        "The most memory that was in use.",
    ),
    figure("used_memory_peak_time", |now| now.memory().peak_unix_seconds.into()),
    figure("used_memory_peak_perc", |now| Percent(now.memory().peak_percent())),
    figure("used_memory_overhead", |now| now.memory().overhead().into()).shown(
        Gauge,
        "redis_memory_used_overhead_bytes",
        "Memory in use that is no key or value.",
    ),
    figure("used_memory_startup", |now| now.memory().startup.into()).shown(
        Gauge,
        "redis_memory_used_startup_bytes",
        "Memory that the process occupied when it began to serve.",
    ),
    figure("used_memory_dataset", |now| now.memory().dataset.into()).shown(
        Gauge,
        "redis_memory_used_dataset_bytes",
        "Memory of keys and values.",
    ),
    figure("used_memory_dataset_perc", |now| Percent(now.memory().dataset_percent())),
    figure("allocator_allocated", |now| now.memory().used.into())
        .shown(Gauge, "redis_allocator_allocated_bytes", "Memory that the allocator has handed out.")
        .after("redis_allocator_active_bytes"),
    figure("allocator_active", |now| now.memory().own.into())
        .shown(Gauge, "redis_allocator_active_bytes", "Memory that the allocator has.")
        .after("redis_config_io_threads"),
    figure("allocator_resident", |now| now.memory().own.into())
        .shown(Gauge, "redis_allocator_resident_bytes", "Memory that the allocator occupies.")
        .after("redis_allocator_allocated_bytes"),
    // The allocator gives pages back at once, or keeps them: none is only marked as free.
    fixed("allocator_muzzy", "0"),
    figure("total_system_memory", |_| Bytes(kilobytes_of("/proc/meminfo", "MemTotal:") * 1024))
        .shown(Gauge, "redis_total_system_memory_bytes", "Memory of the machine.")
        .after("redis_number_of_cached_scripts"),
    figure("used_memory_lua", |now| Bytes(now.memory().in_lua[0])).shown(
        Gauge,
        "redis_memory_used_lua_bytes",
        "Memory that scripts have in Lua.",
    ),
    figure("used_memory_vm_eval", |now| now.memory().in_lua[0].into()),
    figure("used_memory_scripts_eval", |now| now.memory().scripts.into()),
    figure("number_of_cached_scripts", |now| now.server.scripts.known().len().into())
        .shown(Gauge, "redis_number_of_cached_scripts", "Scripts that are known.")
        .after("redis_memory_used_scripts_bytes"),
    figure("number_of_functions", |now| now.server.functions.known().n_functions().into()),
    figure("number_of_libraries", |now| now.server.functions.known().libraries().len().into()),
    figure("used_memory_vm_functions", |now| now.memory().in_lua[1].into()),
    figure("used_memory_vm_total", |now| Bytes(now.memory().in_lua.iter().sum())),
    figure("used_memory_functions", |now| now.memory().functions.into()),
    figure("used_memory_scripts", |now| Bytes(now.memory().scripts + now.memory().functions)).shown(
        Gauge,
        "redis_memory_used_scripts_bytes",
        "Memory of the texts of scripts and libraries.",
    ),
    figure("maxmemory", |now| Bytes(now.config.maxmemory.unwrap_or_default())).shown(
        Gauge,
        "redis_memory_max_bytes",
        "How much memory may be in use; 0 is any.",
    ),
    unlisted(|now| now.config.maxmemory.unwrap_or_default().into()).shown(
        Gauge,
        "redis_config_maxmemory",
        "The directive maxmemory.",
    ),
    figure("maxmemory_policy", |now| now.setting("maxmemory-policy").into()),
    figure("allocator_frag_ratio", |now| Decimal(now.memory().in_allocator().ratio()))
        .shown(
            Gauge,
            "redis_allocator_frag_ratio",
            "Memory that the allocator has, by what it has handed out.",
        )
        .after("redis_allocator_frag_bytes"),
    figure("allocator_frag_bytes", |now| now.memory().in_allocator().bytes().into()).shown(
        Gauge,
        "redis_allocator_frag_bytes",
        "Memory that the allocator has and has not handed out.",
    ),
    // How much of the allocator's pages is in use is unknown.
    figure("allocator_rss_ratio", |now| Decimal(now.memory().in_pages().ratio()))
        .shown(Gauge, "redis_allocator_rss_ratio", "Memory that the allocator occupies, by what it has.")
        .after("redis_allocator_rss_bytes"),
    figure("allocator_rss_bytes", |now| now.memory().in_pages().bytes().into()).shown(
        Gauge,
        "redis_allocator_rss_bytes",
        "Memory that the allocator occupies beyond what it has.",
    ),
    figure("rss_overhead_ratio", |now| Decimal(now.memory().outside().ratio()))
        .shown(Gauge, "redis_rss_overhead_ratio", "Memory of the process, by the allocator's.")
        .after("redis_rss_overhead_bytes"),
    figure("rss_overhead_bytes", |now| now.memory().outside().bytes().into()).shown(
        Gauge,
        "redis_rss_overhead_bytes",
        "Memory of the process beyond the allocator's.",
    ),
    figure("mem_fragmentation_ratio", |now| Decimal(now.memory().in_all().ratio()))
        .shown(Gauge, "redis_mem_fragmentation_ratio", "Memory of the process, by what is in use.")
        .after("redis_mem_fragmentation_bytes"),
    figure("mem_fragmentation_bytes", |now| now.memory().in_all().bytes().into()).shown(
        Gauge,
        "redis_mem_fragmentation_bytes",
        "Memory of the process beyond what is in use.",
    ),
    figure("used_memory_of_data", |now| now.memory().data.into()),
    figure("used_memory_of_clients", |now| now.memory().of_clients.into()),
    figure("used_memory_of_server", |now| now.memory().of_server().into()),
    figure("mem_not_counted_for_evict", |now| now.memory().uncounted.into())
        .shown(Gauge, "redis_mem_not_counted_for_eviction_bytes", "Memory that maxmemory does not bound.")
        .after("redis_mem_clients_slaves"),
    figure("mem_replication_backlog", |now| kept_for_replicas(now).into()),
    figure("mem_total_replication_buffers", |now| {
        kept_for_replicas(now).max(now.server.bytes_unsent_to_replicas()).into()
    })
    .shown(
        Gauge,
        "redis_mem_total_replication_buffers_bytes",
        "Memory of the change stream that is kept for replicas.",
    ),
    figure("mem_clients_slaves", |now| now.server.bytes_unsent_to_replicas().into())
        .shown(Gauge, "redis_mem_clients_slaves", "The same of replicas.")
        .after("redis_mem_clients_normal"),
    figure("mem_clients_normal", |now| now.memory().of_clients.into()).shown(
        Gauge,
        "redis_mem_clients_normal",
        "Memory of what clients have sent, and of what waits to be sent to them.",
    ),
    figure("mem_notifications", |now| now.memory().notifications.into()).shown(
        Gauge,
        "braid_notification_bytes",
        "Memory of what waits for clients that subscribe, monitor or track.",
    ),
    fixed("mem_cluster_links", "0"),
    figure("mem_aof_buffer", |now| now.memory().unwritten.into()),
    // Tables grow a segment at a time, without a second table.
    fixed("mem_overhead_db_hashtable_rehashing", "0"),
    fixed("mem_allocator", "mimalloc"),
    fixed("active_defrag_running", "0").shown(
        Gauge,
        "redis_active_defrag_running",
        "Whether memory is being compacted.",
    ),
    figure("lazyfree_pending_objects", |_| reclaim::n_garbage().into()).shown(
        Gauge,
        "redis_lazyfree_pending_objects",
        "Values that are still to be freed.",
    ),
    figure("lazyfreed_objects", |_| reclaim::n_reclaimed().into()).shown(
        Counter,
        "redis_lazyfreed_objects_total",
        "Values that were freed after their command.",
    ),
];

/// The bytes of the change stream that are kept for replicas that come back.
fn kept_for_replicas(now: &Readings<'_>) -> u64 {
    now.server.durability.aof.stream().history().map_or(0, |(_, n_bytes)| n_bytes)
}
