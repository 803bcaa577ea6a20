//! Data in files: snapshots and append-only files, loaded, written and checked.

mod check;
mod check_aof;
mod convert;
mod entries_writer;
mod heading;
pub mod litter;
mod load;

pub use check::check;
pub use check_aof::check_aof;
pub use convert::{Progress, convert};
pub use entries_writer::{CommandsWriter, EntriesWriter};
pub use heading::{Purpose, SnapshotPlace, write_facts};
pub use load::{LoadError, Loaded, load, load_from, tells_place};
