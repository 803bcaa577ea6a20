//! Arithmetic over measurements: no sockets, no clock, no files.
//!
//! Every interval here is at [`stats::LEVEL`], so that readers need only one level.

mod least_squares;
pub mod memory;
pub mod search;
pub mod stats;
pub mod usl;
