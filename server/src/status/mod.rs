//! What operators see: metrics for Prometheus, a health check and a status page, over HTTP.
//!
//! All of it is one thread's business, which serves no client and holds no shard. What it tells is read from
//! counts that other threads write without it.

mod endpoint;
mod exposition;
mod http;
mod login;
mod peers;
mod site;
mod snapshot;

pub use endpoint::Endpoint;
