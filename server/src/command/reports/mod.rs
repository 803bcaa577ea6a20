//! Reports on the server: INFO, memory, latencies, slow commands and hot keys.

pub(super) mod hotkeys;
pub(super) mod info;
pub(super) mod latency_reports;
pub(super) mod memory_reports;
pub(super) mod slowlog;
