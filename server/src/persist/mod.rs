//! Data in files.

mod check;
mod heading;
mod load;

pub use check::check;
pub use heading::{Purpose, write_facts};
pub use load::{LoadError, Loaded, load};
