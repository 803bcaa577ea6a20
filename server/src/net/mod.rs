//! The threads that serve sockets, each an event loop with its share of the connections, and the heavy-work
//! threads.

mod accept;
mod certificate_watch;
mod eviction;
mod expiry;
mod heavy;
mod thread;

pub use accept::welcome;
pub use heavy::run_heavy;
pub use thread::{IoThread, WAKER};
