//! Structure that a table has given up, freed once no thread can read it.

use std::{
    alloc::{Layout, dealloc},
    ptr::NonNull,
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
};

/// The bytes that wait to be freed.
static N_BYTES: AtomicUsize = AtomicUsize::new(0);

/// The bytes that tables have given up and that are not freed yet.
pub fn retired_bytes() -> usize {
    N_BYTES.load(Relaxed)
}

/// Helps to free retired structure, for threads that are about to sleep.
pub fn flush_retired() {
    crossbeam_epoch::pin().flush();
}

/// Frees structure once no thread that is pinned now can read it.
///
/// # Safety
/// `start` is an allocation with this layout, to which no pointer leads that is loaded from now on.
pub(super) unsafe fn retire(start: NonNull<u8>, layout: Layout) {
    let start = start.as_ptr();
    N_BYTES.fetch_add(layout.size(), Relaxed);
    let free = move || {
        N_BYTES.fetch_sub(layout.size(), Relaxed);
        // SAFETY: the layout is that of the allocation, as the caller promises, and no thread reads it any
        // more.
        unsafe { dealloc(start, layout) };
    };
    // SAFETY: only a thread that was pinned before the pointers to it were overwritten may still read it; the
    // epoch waits for those threads.
    unsafe { crossbeam_epoch::pin().defer_unchecked(free) };
}
