//! Data in files.

mod check;
mod load;

pub use check::check;
pub use load::{LoadError, Loaded, load};
