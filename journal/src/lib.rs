//! The change stream of Braid: merges the records of threads and writes them to files.
//!
//! The crate knows bytes and files. It does not know commands or keys.
//!
//! Terms: see `docs/glossary.md`.
#![forbid(unsafe_code)]

pub mod aof_file;
pub mod baton;
pub mod check;
pub mod disk;
pub mod faults;
pub mod follower;
pub mod frame;
pub mod history;
pub mod intake;
pub mod manifest;
pub mod reader;
#[cfg(test)]
mod simulated;
pub mod spool;
pub mod store;
pub mod stream;
