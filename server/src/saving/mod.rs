//! Snapshots and the append-only file: the saver, the loader, and the thread that syncs.

mod chunks;
mod copies;
mod logger;
mod replay;
mod saver;
mod snapshot_output;

pub use logger::run_logger;
pub use replay::{FoundAof, Then, replay};
pub use saver::run_saver;
