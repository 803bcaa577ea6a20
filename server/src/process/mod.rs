//! The process to the operating system: descriptors, huge pages, figures, the title.

pub mod descriptors;
pub mod huge_pages;
pub mod system;
pub mod title;
