//! The workloads that ship.

/// The text of each workload as TOML, by its name.
pub const NAMED: &[(&str, &str)] = &[
    ("big-values", include_str!("../../workloads/big-values.toml")),
    ("blocking-queue", include_str!("../../workloads/blocking-queue.toml")),
    ("cache", include_str!("../../workloads/cache.toml")),
    ("churn", include_str!("../../workloads/churn.toml")),
    ("counter", include_str!("../../workloads/counter.toml")),
    ("hot-key", include_str!("../../workloads/hot-key.toml")),
    ("latest", include_str!("../../workloads/latest.toml")),
    ("leaderboard", include_str!("../../workloads/leaderboard.toml")),
    ("lock", include_str!("../../workloads/lock.toml")),
    ("optimistic", include_str!("../../workloads/optimistic.toml")),
    ("pubsub", include_str!("../../workloads/pubsub.toml")),
    ("queue", include_str!("../../workloads/queue.toml")),
    ("rate-limiter", include_str!("../../workloads/rate-limiter.toml")),
    ("session-store", include_str!("../../workloads/session-store.toml")),
    ("social", include_str!("../../workloads/social.toml")),
    ("stream", include_str!("../../workloads/stream.toml")),
];
