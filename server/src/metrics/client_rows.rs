//! The rows of the section Clients.

use std::sync::atomic::Ordering;

use super::metric::{Metric, MetricType::Gauge, figure, fixed};
use crate::client::{footprint::Part, node::Parked, record::Listens};

/// Connections and their state.
pub const CLIENTS: &[Metric] = &[
    // As in Redis, replicas have a figure of their own.
    figure("connected_clients", |now| {
        let n_replicas = now.n_clients(|client| client.listens(Listens::ToStream));
        now.server.clients.count().saturating_sub(n_replicas as u64).into()
    })
    .shown(Gauge, "redis_connected_clients", "Clients that are no replicas."),
    fixed("cluster_connections", "0")
        .shown(Gauge, "redis_cluster_connections", "Connections within a cluster.")
        .after("redis_total_blocking_keys"),
    figure("maxclients", |now| now.config.maxclients.into())
        .shown(Gauge, "redis_config_maxclients", "The directive maxclients.")
        .after("redis_config_maxmemory"),
    figure("client_recent_max_input_buffer", |now| now.most_of_a_client(Part::Input).into())
        .shown(
            Gauge,
            "redis_client_recent_max_input_buffer_bytes",
            "The most that a client has sent and not been answered.",
        )
        .after("redis_clients_in_timeout_table"),
    figure("client_recent_max_output_buffer", |now| now.most_of_a_client(Part::Output).into())
        .shown(
            Gauge,
            "redis_client_recent_max_output_buffer_bytes",
            "The most that waits to be sent to a client.",
        )
        .after("redis_client_recent_max_input_buffer_bytes"),
    figure("blocked_clients", |now| now.n_clients(|client| client.blocked.load(Ordering::Relaxed)).into())
        .shown(Gauge, "redis_blocked_clients", "Clients that wait for a key."),
    figure("tracking_clients", |now| now.n_clients(|client| client.listens(Listens::ToChanges)).into())
        .shown(Gauge, "redis_tracking_clients", "Clients that keep copies of keys."),
    figure("pubsub_clients", |now| now.n_clients(|client| client.listens(Listens::ToTopics)).into()).shown(
        Gauge,
        "redis_pubsub_clients",
        "Clients that are subscribed to a channel or pattern.",
    ),
    figure("watching_clients", |now| {
        now.n_clients(|client| client.watched.load(Ordering::Relaxed) > 0).into()
    })
    .shown(Gauge, "redis_watching_clients", "Clients that watch keys."),
    figure("clients_in_timeout_table", |now| now.n_with_timeout().into())
        .shown(Gauge, "redis_clients_in_timeout_table", "Clients that wait for a key up to a timeout.")
        .after("redis_cluster_connections"),
    figure("total_watched_keys", |now| now.server.keyspace.n_watched().into()).shown(
        Gauge,
        "redis_total_watched_keys",
        "Keys that are watched.",
    ),
    figure("total_blocking_keys", |now| now.n_awaited(|_| true).into()).shown(
        Gauge,
        "redis_total_blocking_keys",
        "Keys for which clients wait.",
    ),
    figure("total_blocking_keys_on_nokey", |now| now.n_awaited(Parked::hears_of_removal).into()),
    figure("paused_reason", |now| now.server.pause_reason().into()),
    figure("paused_actions", |now| now.server.paused_actions().into()),
    figure("paused_timeout_milliseconds", |now| now.server.paused_millis().into()),
];
