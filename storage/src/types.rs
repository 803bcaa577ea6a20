//! The types of values, with their encodings, and the operations on a value of any type.

pub(crate) mod as_commands;
pub mod bits;
pub mod digest;
pub mod geo;
pub mod hashes;
pub mod hll;
pub mod kinds;
pub mod list;
pub mod packed;
pub mod set;
pub mod sorted_set;
pub mod stream;
pub mod string;
pub mod thresholds;
pub mod value;
