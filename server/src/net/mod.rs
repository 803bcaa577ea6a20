//! The threads that serve sockets, each one event loop with its share of the connections; and those that do heavy work.

mod accept;
mod certificate_watch;
mod chunks;
mod eviction;
mod expiry;
mod heavy;
mod logger;
mod replay;
mod saver;
mod thread;

pub use accept::welcome;
pub use heavy::run_heavy;
pub use logger::run_logger;
pub use replay::{FoundAof, Then, replay};
pub use saver::run_saver;
pub use thread::{IoThread, WAKER};
