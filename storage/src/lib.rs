//! Braid's keyspace: tables, entries, expiry and stamps, and the executors and the coordinator that run work
//! on them.
//!
//! Terms: see `docs/glossary.md`.

pub mod entry;
pub mod error;
pub mod glob;
pub mod keyspace;
pub mod memory;
pub mod observers;
pub mod rdb;
pub mod sync;
pub mod table;
pub mod types;
