//! The append-only file as all threads share it, and the last write of each key.

pub mod journal;
pub mod last_writes;
