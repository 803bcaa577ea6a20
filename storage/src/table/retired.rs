//! Structure that a table has given up, freed once nobody can be reading it.

use std::{
    alloc::{Layout, dealloc},
    ptr::NonNull,
};

/// Helps to free what tables have given up, for threads that are about to sleep.
pub fn flush_retired() {
    crossbeam_epoch::pin().flush();
}

/// Frees structure once nobody who is pinned now can be reading it.
///
/// # Safety
/// `start` is an allocation with this layout, to which no pointer leads that is loaded from now on.
pub(super) unsafe fn retire(start: NonNull<u8>, layout: Layout) {
    let start = start.as_ptr();
    // SAFETY: who was pinned before the pointers to it were overwritten may still read it, nobody else; the
    // epoch waits for them. The layout is that of the allocation, as the caller promises.
    unsafe { crossbeam_epoch::pin().defer_unchecked(move || dealloc(start, layout)) };
}
