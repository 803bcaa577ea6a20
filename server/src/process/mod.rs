//! What the operating system gives the process: descriptors, memory pages, the title.

pub mod descriptors;
pub mod huge_pages;
pub mod system;
pub mod title;
