//! The process in the operating system: descriptors, huge pages, figures and the title.

pub mod descriptors;
pub mod huge_pages;
pub mod oom_score;
pub mod processors;
pub mod system;
pub mod title;
