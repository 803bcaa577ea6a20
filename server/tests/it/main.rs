//! The integration tests, as one program: each would link the server anew.
//!
//! `cargo test -p braid-server --test it history::` runs the tests of one module. Tests that change limits of
//! their own process stay apart.

mod support;

mod access;
mod answers;
mod barriers;
mod blocking;
mod check_aof;
mod client_eviction;
mod clock;
mod command_facts;
mod configurations;
mod crash;
mod database_rights;
mod databases;
mod deadlines;
mod dialects;
mod differential;
mod digests;
mod disk_faults;
mod dumps;
mod durable;
mod endings;
mod events;
mod eviction;
mod examples;
mod fan_out;
mod heavy;
mod history;
mod hostile_scripts;
mod hot_keys;
mod huge_pages;
mod large;
mod latency_split;
mod litter;
mod locks;
mod logging;
mod long_work;
mod lookups;
mod memory;
mod metrics_port;
mod observers;
mod offload;
mod packaging;
mod panics;
mod pipelines;
mod predictions;
mod process;
mod properties;
mod pubsub;
mod redis_rs;
mod replaying;
mod replica;
mod replicas;
#[cfg(feature = "soak")]
mod replication_soak;
mod saving;
mod scripts;
mod slow_commands;
mod snapshots;
mod spreading;
mod statistics;
mod sums;
mod system_faults;
mod title;
mod tls;
mod tracking;
mod transcripts;
