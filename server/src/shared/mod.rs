//! What all threads share, and what each has at hand.

pub mod accounts;
pub mod attention;
pub mod certificates;
pub mod ciphers;
pub mod command_log;
pub mod descriptors;
pub mod functions;
pub mod hot_keys;
pub mod latency;
pub mod latency_monitor;
pub mod listening;
pub mod mail;
pub mod memory;
pub mod pause;
pub mod programs;
pub mod recorded;
pub mod rights;
pub mod scripts;
pub mod server;
pub mod splits;
pub mod spread;
pub mod stats;
pub mod system;
pub mod thread_state;
pub mod title;
pub mod top_keys;
