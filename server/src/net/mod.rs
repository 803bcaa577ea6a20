//! The threads that serve sockets, and the heavy-work threads.
//!
//! Each of the first is an event loop with its share of the connections.

mod accept;
mod certificate_watch;
mod eviction;
mod expiry;
mod heavy;
mod own_expiry;
mod thread;

pub use accept::welcome;
pub use heavy::run_heavy;
pub use thread::IoThread;
