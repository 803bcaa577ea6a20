//! Braid's log of changes: from many threads to one stream, and from there to files. It knows bytes and files, not commands or keys.

pub mod intake;
