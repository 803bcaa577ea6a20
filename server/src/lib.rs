//! Braid's server, as a library that its tests and its binary share.
//!
//! The modules are layers: each uses those above it in this list and none below.
//!
//! Terms: see `docs/glossary.md`.

#![forbid(unsafe_code)]

pub mod clock;
pub mod config;
pub mod log;
pub mod random;

pub mod catalog;

pub mod access;

pub mod client;
pub mod notify;
pub mod sockets;
pub mod telemetry;

pub mod durability;
pub mod metrics;
pub mod process;
pub mod scripting;
pub mod shared;

pub mod observe;

pub mod persist;

pub mod command;

pub mod run;

pub mod net;
pub mod saving;

/// Copies of one server's data on others. Its parts lie on several layers.
pub mod replication;

pub mod status;

pub mod boot;
