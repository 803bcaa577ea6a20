//! What `braid-bench` is made of, apart from its commands: workloads and the engine that offers them, and the models
//! and charts of what was measured, which know plain data only.

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

/// Measurements as people read them.
pub mod report {
    pub mod html;
}
