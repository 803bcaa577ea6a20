//! The operators' view over HTTP: metrics for Prometheus, a health check and a status page.
//!
//! One thread does all of this. It serves no client and holds no shard. It reads counts that other threads
//! write independently of it.

mod endpoint;
mod exposition;
mod http;
mod login;
mod peers;
mod site;
mod snapshot;

pub use endpoint::MetricsEndpoint;
