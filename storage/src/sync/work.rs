//! How much work may be done while a shard is held.

/// So many elements are some 200 µs of work: more than others should have to wait.
pub const WORK_MAX: usize = 4096;

/// So many bytes to be copied are as much work as one element.
pub const BYTES_PER_ELEMENT: usize = 256;

/// So many bytes to be copied are as much work as [`WORK_MAX`] elements.
pub const WORK_MAX_BYTES: usize = WORK_MAX * BYTES_PER_ELEMENT;
