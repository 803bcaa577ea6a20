//! Cache prefetches: hints without effect on the results of a program.

/// Fetches the line that `target` starts on, to be read.
#[inline(always)]
pub fn for_read<T: ?Sized>(target: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch reads nothing architecturally and faults on no address.
    unsafe {
        use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(target.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = target;
}

/// Fetches the line that `target` starts on, to be written.
#[inline(always)]
pub fn for_write<T: ?Sized>(target: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: as in `for_read`.
    unsafe {
        use core::arch::x86_64::{_MM_HINT_ET0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_ET0>(target.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = target;
}
