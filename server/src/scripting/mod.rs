//! Scripts and functions that clients have loaded, and those that run.

pub mod functions;
pub mod running_scripts;
pub mod script_snapshot;
pub mod scripts;
