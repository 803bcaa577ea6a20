//! Figures about the server: counters, latencies, the slow log, hot keys.

pub mod command_log;
pub mod hot_keys;
pub mod latency;
pub mod latency_monitor;
pub mod split;
pub mod splits;
pub mod stats;
pub mod top_keys;
