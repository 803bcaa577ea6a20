//! Braid's log of changes: from many threads to one stream, and from there to files. It knows bytes and files, not commands or keys.
//!
//! Terms: see `docs/glossary.md`.
#![forbid(unsafe_code)]

pub mod baton;
pub mod check;
pub mod disk;
pub mod faults;
pub mod frame;
pub mod intake;
pub mod manifest;
pub mod reader;
pub mod store;
