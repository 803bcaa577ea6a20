//! Scripts and functions that clients have loaded, and those that run.

pub mod definitions;
pub mod functions;
pub mod programs;
pub mod scripts;
