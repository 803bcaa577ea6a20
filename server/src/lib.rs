//! Braid's server, as a library its tests and its binary share.

#![forbid(unsafe_code)]

pub mod audiences;
pub mod boot;
pub mod clients;
pub mod clock;
pub mod command;
pub mod config;
pub mod info;
pub mod io;
pub mod latency;
pub mod log;
pub mod monitor;
pub mod notifications;
pub mod observe;
pub mod pubsub;
pub mod random;
pub mod run;
pub mod server;
pub mod session;
pub mod stats;
pub mod title;
pub mod tracking;
