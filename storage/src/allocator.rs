//! The allocator that entries are cut for.

use std::alloc::{GlobalAlloc, Layout};

use libmimalloc_sys as mimalloc;

/// mimalloc as a program's global allocator: its [size classes](crate::class_bytes) fit entries closely, and threads free
/// each other's memory without a lock.
///
/// ```
/// #[global_allocator]
/// static ALLOCATOR: braid_storage::Allocator = braid_storage::Allocator;
/// # fn main() {}
/// ```
///
/// Not the type of the crate `mimalloc`: that one asks for an alignment in every call, and mimalloc 3 then takes a
/// block of the next class wherever a class is no power of two. 192 bytes would take 224, and 48 would take 64.
#[derive(Debug)]
pub struct Allocator;

/// Blocks of so many bytes and more are aligned to it, whatever their class.
const NATURAL_ALIGN: usize = 16;

impl Allocator {
    /// Gives pages that have been free for a while back to the system.
    ///
    /// That happens in the course of allocations only, so a server that is idle after a load, or a flush, would keep
    /// them. Only the calling thread's own heap is walked, and what all threads' heaps have given up.
    pub fn return_freed_memory() {
        // SAFETY: the call has no precondition: what it walks is made by the first allocation, or by itself.
        unsafe { mimalloc::mi_collect(false) };
    }
}

/// Whether every block that fits is aligned as the layout wants. A smaller block than the alignment need not be.
#[inline]
fn is_natural(size: usize, align: usize) -> bool {
    align <= NATURAL_ALIGN && align <= size
}

// SAFETY: mimalloc keeps the contract of malloc, and its blocks of 16 bytes and more lie at multiples of 16, smaller ones
// at multiples of 8; for every other alignment it is asked. `mi_free` takes blocks of all these calls alike.
unsafe impl GlobalAlloc for Allocator {
    /// # Safety
    /// This one and the others ask for what [`GlobalAlloc`] does.
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the calls take any size, and any power of two as alignment.
        unsafe {
            if is_natural(layout.size(), layout.align()) {
                mimalloc::mi_malloc(layout.size()).cast()
            } else {
                mimalloc::mi_malloc_aligned(layout.size(), layout.align()).cast()
            }
        }
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as in `alloc`.
        unsafe {
            if is_natural(layout.size(), layout.align()) {
                mimalloc::mi_zalloc(layout.size()).cast()
            } else {
                mimalloc::mi_zalloc_aligned(layout.size(), layout.align()).cast()
            }
        }
    }

    /// # Safety
    /// As above.
    #[inline]
    unsafe fn dealloc(&self, block: *mut u8, _: Layout) {
        // SAFETY: the block is from one of the other calls, as the caller promises.
        unsafe { mimalloc::mi_free(block.cast()) };
    }

    #[inline]
    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the block is from one of the other calls, as the caller promises, and the sizes are as in `alloc`.
        unsafe {
            if is_natural(size, layout.align()) {
                mimalloc::mi_realloc(block.cast(), size).cast()
            } else {
                mimalloc::mi_realloc_aligned(block.cast(), size, layout.align()).cast()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_aligned_and_of_their_class() {
        for size in (1..=2000).chain([4096, 10_000, 70_000, 1 << 20]) {
            for align in [1, 2, 4, 8, 16, 32, 64, 128] {
                let layout = Layout::from_size_align(size, align).expect("a power of two");
                // SAFETY: the layout is not empty; blocks are freed with the layout they have.
                unsafe {
                    let block = Allocator.alloc(layout);
                    assert!(block.addr().is_multiple_of(align), "{layout:?}");
                    if align <= NATURAL_ALIGN && (NATURAL_ALIGN..=64 << 10).contains(&size) {
                        assert_eq!(
                            mimalloc::mi_usable_size(block.cast()),
                            crate::class_bytes(size),
                            "{layout:?}"
                        );
                    }
                    let longer = Layout::from_size_align(size + 100, align).expect("a power of two");
                    let block = Allocator.realloc(block, layout, longer.size());
                    assert!(block.addr().is_multiple_of(align), "{longer:?}");
                    Allocator.dealloc(block, longer);
                    let zeroed = Allocator.alloc_zeroed(layout);
                    assert!(zeroed.addr().is_multiple_of(align) && *zeroed == 0, "{layout:?}");
                    Allocator.dealloc(zeroed, layout);
                }
            }
        }
    }
}
