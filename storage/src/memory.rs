//! Memory: the allocator, and large values that are freed in steps.

pub mod allocator;
pub mod reclaim;
pub mod teardown;
