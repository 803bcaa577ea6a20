//! Size classes of allocations.

/// Returns the size of the allocation for `bytes` bytes: multiples of 16 up to 128, then four sizes a
/// doubling, as mimalloc rounds.
///
/// Above 64 KiB, where a quarter is much, sizes are rounded to 4 KiB.
#[inline]
pub fn class_bytes(bytes: usize) -> usize {
    if bytes <= 128 {
        bytes.max(1).next_multiple_of(16)
    } else if bytes <= 64 << 10 {
        let doubling = (bytes - 1).ilog2();
        bytes.next_multiple_of(1 << (doubling - 2))
    } else {
        bytes.next_multiple_of(4096)
    }
}
