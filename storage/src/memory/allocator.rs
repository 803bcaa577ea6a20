//! The allocator whose size classes fit entries.

use std::{
    alloc::{GlobalAlloc, Layout},
    cell::Cell,
    ffi::{CStr, c_long},
    io::Error,
    ops::Range,
    ptr::{self, NonNull},
    sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering::Relaxed},
};

use crossbeam_utils::CachePadded;
use libmimalloc_sys as mimalloc;

/// mimalloc as a program's global allocator: its [size classes](crate::entry::class_bytes) fit entries
/// closely, and threads free each other's memory without a lock.
///
/// ```
/// use braid_storage::memory::allocator::Allocator;
///
/// #[global_allocator]
/// static ALLOCATOR: Allocator = Allocator;
/// # fn main() {}
/// ```
///
/// Not the type of the crate `mimalloc`, which asks for an alignment in every call. mimalloc 3 then takes a
/// block of the next class wherever a class is no power of two. 192 bytes would take 224, and 48 would take
/// 64.
#[derive(Debug)]
pub struct Allocator;

/// Blocks of this size and more are aligned to it, whatever their class.
const NATURAL_ALIGN: usize = 16;

impl Allocator {
    /// Returns pages that have been free for a while to the system.
    ///
    /// That happens in the course of allocations only, so a server that is idle after a load, or a flush,
    /// would keep them. Only the calling thread's own heap is walked, and the pages that all threads' heaps
    /// have given up.
    pub fn return_freed_memory() {
        // SAFETY: the call has no precondition: the heap that it walks is made by the first allocation, or by
        // itself.
        unsafe { mimalloc::mi_collect(false) };
    }

    /// The statistics of the allocator, as JSON.
    pub fn stats() -> String {
        // SAFETY: without a buffer the call makes one, a text that ends with a zero, which is freed after it
        // has been copied.
        unsafe {
            let text = mimalloc::mi_stats_get_json(0, ptr::null_mut());
            let Some(text) = NonNull::new(text) else { return String::new() };
            let copy = CStr::from_ptr(text.as_ptr()).to_string_lossy().into_owned();
            mimalloc::mi_free(text.as_ptr().cast());
            copy
        }
    }
}

/// The bytes that a thread allocates, or frees, before it settles them; less under a small limit.
const SETTLED_MAX_BYTES: u64 = 64 * 1024;
/// The part of a limit that each thread may be off by.
const SETTLED_PART: u64 = 4096;

/// The bytes that a sleeping thread may have unsettled.
const SETTLED_ASLEEP_BYTES: u64 = 4 * 1024;

/// The bytes that all threads have allocated and not freed, as far as they have settled; and their maximum
/// since it was last asked. Settling uses both.
static ALLOCATED: CachePadded<[AtomicI64; 2]> = CachePadded::new([AtomicI64::new(0), AtomicI64::new(0)]);

/// The bytes of the data set, as far as they have settled: of all tables, their entries, and all that belongs
/// to them. Eviction can free these.
static DATA: CachePadded<AtomicI64> = CachePadded::new(AtomicI64::new(0));

/// The bytes of data above which there is too much. A thread that settles reads it.
static LIMIT: CachePadded<AtomicI64> = CachePadded::new(AtomicI64::new(i64::MAX));

/// The bytes that a thread may have unsettled.
static SETTLED_BYTES: CachePadded<AtomicU64> = CachePadded::new(AtomicU64::new(SETTLED_MAX_BYTES));

/// Whether there is a limit that the allocator has been told of.
static HAS_LIMIT: AtomicBool = AtomicBool::new(false);

/// Whether a thread has found too much data. A cache line of its own, because every thread that runs commands
/// reads it.
static IS_ABOVE_LIMIT: CachePadded<AtomicBool> = CachePadded::new(AtomicBool::new(false));

thread_local! {
    /// The bytes that the thread has allocated, less those that it has freed, and the settled part of that.
    static COUNTED: Cell<i64> = const { Cell::new(0) };
    static SETTLED: Cell<i64> = const { Cell::new(0) };
    /// The bytes of data that the thread has added, less those that it has removed, and that have not
    /// settled.
    static UNSETTLED_DATA: Cell<i64> = const { Cell::new(0) };
}

#[inline(always)]
fn count(bytes: i64) {
    let counted = COUNTED.get() + bytes;
    COUNTED.set(counted);
    if (counted - SETTLED.get()).unsigned_abs() >= SETTLED_BYTES.load(Relaxed) {
        settle();
    }
}

#[cold]
fn settle() {
    let counted = COUNTED.get();
    let news = counted - SETTLED.replace(counted);
    let [now, most] = &*ALLOCATED;
    let now = now.fetch_add(news, Relaxed) + news;
    if now > most.load(Relaxed) {
        most.fetch_max(now, Relaxed);
    }
}

/// Counts bytes that were added to the data set, or have left it.
///
/// An allocation does not tell its purpose. Tables know the bytes of their entries, whichever thread
/// allocates and frees them. So the data is the sum of the tables' counts, and everything else is the rest.
#[inline(always)]
pub(crate) fn count_data(bytes: i64) {
    let news = UNSETTLED_DATA.get() + bytes;
    UNSETTLED_DATA.set(news);
    if news.unsigned_abs() >= SETTLED_BYTES.load(Relaxed) {
        settle_data();
    }
}

#[cold]
fn settle_data() {
    let news = UNSETTLED_DATA.replace(0);
    let all = DATA.fetch_add(news, Relaxed) + news;
    if all > LIMIT.load(Relaxed) {
        IS_ABOVE_LIMIT.store(true, Relaxed);
    }
}

/// Settles the allocations of the calling thread, but for a few bytes, before it sleeps or ends.
pub fn settle_before_sleep() {
    if (COUNTED.get() - SETTLED.get()).unsigned_abs() >= SETTLED_ASLEEP_BYTES {
        settle();
    }
    if UNSETTLED_DATA.get().unsigned_abs() >= SETTLED_ASLEEP_BYTES {
        settle_data();
    }
}

/// The bytes that the calling thread has allocated, less those that it has freed. The difference of two calls
/// is the change between them.
pub(crate) fn counted_bytes() -> i64 {
    COUNTED.get()
}

/// The bytes that are allocated, by the requested sizes, without the allocator's overhead. Each thread may
/// have 64 KiB more or less that are not settled, or 4 KiB if it sleeps.
pub fn allocated_bytes() -> u64 {
    settle();
    u64::try_from(ALLOCATED[0].load(Relaxed)).unwrap_or(0)
}

/// The maximum of [`allocated_bytes`] since the last call. A thread that asks at the same time may get a
/// lower number.
pub fn take_most_allocated() -> u64 {
    settle();
    let [now, most] = &*ALLOCATED;
    let now = now.load(Relaxed);
    u64::try_from(most.swap(now, Relaxed).max(now)).unwrap_or(0)
}

/// The bytes of the data set, as far as they have settled: see [`allocated_bytes`].
pub fn data_bytes() -> u64 {
    settle_data();
    u64::try_from(DATA.load(Relaxed)).unwrap_or(0)
}

/// mimalloc 3's `page_max_reclaim`, by its number among the options: the crate does not name those that are
/// new.
const PAGE_MAX_RECLAIM: mimalloc::mi_option_t = 41;

/// The option's value where memory has no limit: any number of pages.
const ALL_PAGES: c_long = -1;

/// The option's value under a limit.
const PAGES_OF_A_CLASS: c_long = 8;

/// Makes threads take back as many pages with free blocks as are good for speed, or, under a limit, only a
/// few of each class.
///
/// Where keys are evicted, each page is soon full of holes. A thread fills only the holes of its own pages.
/// By default it takes back every page of which it frees a block. So a second thread that began to write took
/// new pages for all that it wrote, and the process grew by as much as all holes. With the option, pages
/// beyond a few of a class have no owner, and any thread that needs one takes it.
fn share_pages(has_limit: bool) {
    let n_pages = if has_limit { PAGES_OF_A_CLASS } else { ALL_PAGES };
    if HAS_LIMIT.swap(has_limit, Relaxed) != has_limit {
        // SAFETY: the call takes any option and any value, from any thread.
        unsafe { mimalloc::mi_option_set(PAGE_MAX_RECLAIM, n_pages) };
    }
}

/// Makes [`is_above_limit`] true above `data_bytes` of data, where `maxmemory` is `limit`.
pub fn set_limit(limit: Option<u64>, data_bytes: i64) {
    share_pages(limit.is_some());
    LIMIT.store(data_bytes, Relaxed);
    let part = limit.map_or(u64::MAX, |limit| limit / SETTLED_PART);
    SETTLED_BYTES.store(part.min(SETTLED_MAX_BYTES), Relaxed);
    heed_limit();
}

/// Whether there was too much data when a thread last settled, or when [`heed_limit`] was last called.
#[inline(always)]
pub fn is_above_limit() -> bool {
    IS_ABOVE_LIMIT.load(Relaxed)
}

/// Checks again whether there is too much data.
pub fn heed_limit() {
    IS_ABOVE_LIMIT.store(DATA.load(Relaxed) > LIMIT.load(Relaxed), Relaxed);
}

/// Blocks of this size and more are worth a system call each.
const RETURNED_BYTES: usize = 16 << 10;

/// Whether the memory of those is returned as soon as they are freed. The cache line is hardly ever written.
static RETURNS_BLOCKS: CachePadded<AtomicBool> = CachePadded::new(AtomicBool::new(false));

/// Makes the memory of large blocks return to the system as soon as they are freed, or stay for the next.
///
/// Blocks of one class lie in pages of up to 4 MiB, and the allocator returns a page when all of it is free.
/// Where keys of all sizes are evicted, that is hardly ever so. With 200 MiB of values of up to 150 KB, 95
/// MiB were holes. The next allocation of such a block is slower, as the system has to clear its memory. So
/// this is done only while the holes are too many.
pub fn return_large_blocks(returns: bool) {
    if RETURNS_BLOCKS.load(Relaxed) != returns {
        RETURNS_BLOCKS.store(returns, Relaxed);
    }
}

/// Blocks of this size are returned in any case under a limit. Otherwise the memory of a request of megabytes
/// would look like holes.
const ALWAYS_RETURNED_BYTES: usize = 4 << 20;

fn returns_block(size: usize) -> bool {
    RETURNS_BLOCKS.load(Relaxed) || size >= ALWAYS_RETURNED_BYTES && HAS_LIMIT.load(Relaxed)
}

/// Returns the whole pages of a block to the system, except the first, which the allocator will write.
///
/// # Safety
/// The block has `size` bytes, and nothing reads them again.
#[cold]
unsafe fn return_pages(block: *mut u8, size: usize) {
    let page = rustix::param::page_size();
    let first = (block.addr() + 1).next_multiple_of(page);
    let n_bytes = (block.addr() + size).saturating_sub(first) / page * page;
    if n_bytes > 0 {
        // SAFETY: these are whole pages within the block, whose bytes are written before the next read. If
        // the system refuses, they stay as they are.
        let _ = unsafe {
            rustix::mm::madvise(block.with_addr(first).cast(), n_bytes, rustix::mm::Advice::LinuxDontNeed)
        };
    }
}

/// `madvise`'s advice to put a range into huge pages at once, of Linux 6.1. The C library's headers have no
/// name for it yet.
const MADV_COLLAPSE: i32 = 25;

/// Asks the system to move the memory at these addresses into huge pages, at the same addresses. The first is
/// the address of a page.
///
/// # Errors
/// The system's: it may not know the call, have no memory in one piece, or have nothing there.
pub fn collapse(addresses: Range<usize>) -> Result<(), Error> {
    let start = ptr::without_provenance_mut(addresses.start);
    // SAFETY: the call changes the physical place of bytes and none of the bytes, whichever thread uses them
    // meanwhile.
    match unsafe { libc::madvise(start, addresses.len(), MADV_COLLAPSE) } {
        0 => Ok(()),
        _ => Err(Error::last_os_error()),
    }
}

/// Whether every block of this size is aligned as the layout demands. A block smaller than the alignment need
/// not be.
#[inline]
fn is_natural(size: usize, align: usize) -> bool {
    align <= NATURAL_ALIGN && align <= size
}

// SAFETY: mimalloc keeps the contract of malloc. Its blocks of 16 bytes and more lie at multiples of 16,
// smaller ones at multiples of 8; for every other alignment it is asked. `mi_free` takes blocks of all these
// calls alike.
unsafe impl GlobalAlloc for Allocator {
    /// # Safety
    /// This method and the others have the conditions of [`GlobalAlloc`].
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as i64);
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
        count(layout.size() as i64);
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
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        count(-(layout.size() as i64));
        if layout.size() >= RETURNED_BYTES && returns_block(layout.size()) {
            // SAFETY: as below, and it is freed next.
            unsafe { return_pages(block, layout.size()) };
        }
        // SAFETY: the block is from one of the other calls, as the caller promises.
        unsafe { mimalloc::mi_free(block.cast()) };
    }

    #[inline]
    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if size > layout.size()
            && layout.size() >= ALWAYS_RETURNED_BYTES
            && HAS_LIMIT.load(Relaxed)
            && let Ok(larger) = Layout::from_size_align(size, layout.align())
        {
            // SAFETY: the caller's promises are those of the three calls, and the new block has room for all
            // of the old one.
            unsafe {
                let to = self.alloc(larger);
                if !to.is_null() {
                    ptr::copy_nonoverlapping(block, to, layout.size());
                    self.dealloc(block, layout);
                }
                return to;
            }
        }
        count(size as i64 - layout.size() as i64);
        // SAFETY: the block is from one of the other calls, as the caller promises, and the sizes are as in
        // `alloc`.
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

    /// Options have only numbers here. These are the values that mimalloc 3 gives this one and its neighbours
    /// at the start.
    #[test]
    fn pages_are_shared_under_a_limit_only() {
        // SAFETY: the call takes any option.
        let option = |number| unsafe { mimalloc::mi_option_get(number) };
        assert_eq!([-1, 0, 1, 2].map(|beside| option(PAGE_MAX_RECLAIM + beside)), [0, ALL_PAGES, 32, 1]);
        share_pages(true);
        assert_eq!([0, 1].map(|beside| option(PAGE_MAX_RECLAIM + beside)), [PAGES_OF_A_CLASS, 32]);
        share_pages(false);
        assert_eq!(option(PAGE_MAX_RECLAIM), ALL_PAGES);
    }

    #[test]
    fn whole_pages_of_a_block_are_returned_and_nothing_beside() {
        let page = rustix::param::page_size();
        let layout = Layout::from_size_align(10 * page + 100, 16).expect("a power of two");
        // SAFETY: the layout is not empty, all of the block is written before it is read, and it is freed
        // with its layout.
        unsafe {
            let block = Allocator.alloc(layout);
            block.write_bytes(1, layout.size());
            let (from, to) = (100, 9 * page);
            return_pages(block.add(from), to - from);
            let bytes = std::slice::from_raw_parts(block, layout.size());
            let is_returned = |at: usize| bytes[at] == 0;
            assert!(!(0..=from).any(is_returned) && !(to..layout.size()).any(is_returned));
            let n_returned = (0..layout.size()).filter(|&at| is_returned(at)).count();
            assert!(
                n_returned.is_multiple_of(page) && (6..=8).contains(&(n_returned / page)),
                "{n_returned}"
            );
            return_pages(block, 10);
            Allocator.dealloc(block, layout);
        }
    }

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
                            crate::entry::class_bytes(size),
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
