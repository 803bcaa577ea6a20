//! The parts of `braid-bench` below its commands: workloads, the engine that sends them, models and charts.
//!
//! Models and charts know plain data only.
//!
//! Terms: see `docs/glossary.md`.

#![forbid(unsafe_code)]

pub mod address;
pub mod client;
pub mod engine;
pub mod error;
pub mod model;
pub mod null_server;
pub mod plot;
pub mod reply_counter;
pub mod workload;

/// Reports for people.
pub mod report {
    pub mod html;
}
