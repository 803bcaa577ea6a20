//! The allocator that entries are cut for.

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

/// mimalloc as a program's global allocator: its [size classes](crate::class_bytes) fit entries closely, and
/// threads free each other's memory without a lock.
///
/// ```
/// #[global_allocator]
/// static ALLOCATOR: braid_storage::Allocator = braid_storage::Allocator;
/// # fn main() {}
/// ```
///
/// Not the type of the crate `mimalloc`: that one asks for an alignment in every call, and mimalloc 3 then
/// takes a block of the next class wherever a class is no power of two. 192 bytes would take 224, and 48
/// would take 64.
#[derive(Debug)]
pub struct Allocator;

/// Blocks of so many bytes and more are aligned to it, whatever their class.
const NATURAL_ALIGN: usize = 16;

impl Allocator {
    /// Gives pages that have been free for a while back to the system.
    ///
    /// That happens in the course of allocations only, so a server that is idle after a load, or a flush,
    /// would keep them. Only the calling thread's own heap is walked, and what all threads' heaps have given
    /// up.
    pub fn return_freed_memory() {
        // SAFETY: the call has no precondition: what it walks is made by the first allocation, or by itself.
        unsafe { mimalloc::mi_collect(false) };
    }

    /// What the allocator tells of itself, as JSON.
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

/// So many bytes a thread allocates, or frees, before all know; less under a small limit.
const SETTLED_MAX_BYTES: u64 = 64 * 1024;
/// The part of a limit that each thread may be off by.
const SETTLED_PART: u64 = 4096;

/// And so many if it sleeps.
const SETTLED_ASLEEP_BYTES: u64 = 4 * 1024;

/// The bytes that all threads have allocated and not freed, as far as they have settled; and the most there
/// were since somebody asked. Who settles uses both.
static ALLOCATED: CachePadded<[AtomicI64; 2]> = CachePadded::new([AtomicI64::new(0), AtomicI64::new(0)]);

/// The bytes of the data set, likewise: of all tables, their entries, and what belongs to them. This is what
/// eviction can free.
static DATA: CachePadded<AtomicI64> = CachePadded::new(AtomicI64::new(0));

/// From so many bytes of data on there is too much. Who settles looks at it.
static LIMIT: CachePadded<AtomicI64> = CachePadded::new(AtomicI64::new(i64::MAX));

/// How many bytes a thread may keep to itself.
static SETTLED_BYTES: CachePadded<AtomicU64> = CachePadded::new(AtomicU64::new(SETTLED_MAX_BYTES));

/// Whether there is a limit, as far as the allocator knows.
static HAS_LIMIT: AtomicBool = AtomicBool::new(false);

/// Whether somebody has found that there is. A line of its own: whoever runs commands reads it.
static IS_ABOVE_LIMIT: CachePadded<AtomicBool> = CachePadded::new(AtomicBool::new(false));

thread_local! {
    /// The bytes that the thread has allocated, less those that it has freed, and how much of that is
    /// settled.
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

/// Counts what has been added to the data set, or has left it.
///
/// An allocation does not tell what it is for. Tables know the bytes of their entries, whoever allocates and
/// frees them, so the data is the sum of what tables count, and everything else is the rest.
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

/// Has all know what the calling thread has allocated and freed, but for a little: it is going to sleep, or
/// to end.
pub fn settle_before_sleep() {
    if (COUNTED.get() - SETTLED.get()).unsigned_abs() >= SETTLED_ASLEEP_BYTES {
        settle();
    }
    if UNSETTLED_DATA.get().unsigned_abs() >= SETTLED_ASLEEP_BYTES {
        settle_data();
    }
}

/// The bytes that the calling thread has allocated, less those that it has freed: two calls tell what lies
/// between them.
pub(crate) fn counted_bytes() -> i64 {
    COUNTED.get()
}

/// The bytes that are allocated, as they were asked for: what the allocator adds is not in it. Each thread
/// may have 64 KiB more or less than it has told, or 4 KiB if it sleeps.
pub fn allocated_bytes() -> u64 {
    settle();
    u64::try_from(ALLOCATED[0].load(Relaxed)).unwrap_or(0)
}

/// The most that was allocated since this was last asked, likewise. A thread that asks at the same time may
/// be told less.
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

/// What it is where memory has no limit: any number of pages.
const ALL_PAGES: c_long = -1;

/// What it is under a limit.
const PAGES_OF_A_CLASS: c_long = 8;

/// Has threads take back as many pages with free blocks as are good for speed, or, under a limit, only a few
/// of each class.
///
/// Where keys are evicted, each page is full of holes soon. A thread fills only the holes of pages that are
/// its own, and unless it is told otherwise it takes every page back of which it frees a block. So when
/// another thread began to write it took new pages for all that it wrote, and the process grew by as much as
/// all holes. Pages beyond a few of a class stay with nobody: whoever needs one takes it.
fn share_pages(has_limit: bool) {
    let n_pages = if has_limit { PAGES_OF_A_CLASS } else { ALL_PAGES };
    if HAS_LIMIT.swap(has_limit, Relaxed) != has_limit {
        // SAFETY: the call takes any option and any value, from any thread.
        unsafe { mimalloc::mi_option_set(PAGE_MAX_RECLAIM, n_pages) };
    }
}

/// Has [`is_above_limit`] say so from so many bytes of data on, where `maxmemory` is `limit`.
pub fn set_limit(limit: Option<u64>, data_bytes: i64) {
    share_pages(limit.is_some());
    LIMIT.store(data_bytes, Relaxed);
    let part = limit.map_or(u64::MAX, |limit| limit / SETTLED_PART);
    SETTLED_BYTES.store(part.min(SETTLED_MAX_BYTES), Relaxed);
    heed_limit();
}

/// Whether there was more data than may be when a thread last settled, or when somebody last looked.
#[inline(always)]
pub fn is_above_limit() -> bool {
    IS_ABOVE_LIMIT.load(Relaxed)
}

/// Looks whether it still is so.
pub fn heed_limit() {
    IS_ABOVE_LIMIT.store(DATA.load(Relaxed) > LIMIT.load(Relaxed), Relaxed);
}

/// Blocks of so many bytes and more are worth a call of the system each.
const RETURNED_BYTES: usize = 16 << 10;

/// Whether the memory of those is given back as soon as they are freed. A line that is hardly ever written.
static RETURNS_BLOCKS: CachePadded<AtomicBool> = CachePadded::new(AtomicBool::new(false));

/// Has the memory of large blocks be given back to the system as soon as they are freed, or be kept for the
/// next.
///
/// Blocks of one class lie in pages of up to 4 MiB, and the allocator gives a page back when all of it is
/// free. Where keys of all sizes are evicted that is hardly ever so: with 200 MiB of values of up to 150 KB,
/// 95 MiB were holes. Whoever takes such a block next pays for it, as the system has to clear its memory: so
/// it is done only while the holes are too many.
pub fn return_large_blocks(returns: bool) {
    if RETURNS_BLOCKS.load(Relaxed) != returns {
        RETURNS_BLOCKS.store(returns, Relaxed);
    }
}

/// Blocks of so many bytes are given back in any case under a limit: what a request of megabytes has taken
/// would look like holes.
const ALWAYS_RETURNED_BYTES: usize = 4 << 20;

fn returns_block(size: usize) -> bool {
    RETURNS_BLOCKS.load(Relaxed) || size >= ALWAYS_RETURNED_BYTES && HAS_LIMIT.load(Relaxed)
}

/// Gives the whole pages of a block back, but for the first, which the allocator will write.
///
/// # Safety
/// The block has so many bytes, and nobody reads them again.
#[cold]
unsafe fn return_pages(block: *mut u8, size: usize) {
    let page = rustix::param::page_size();
    let first = (block.addr() + 1).next_multiple_of(page);
    let n_bytes = (block.addr() + size).saturating_sub(first) / page * page;
    if n_bytes > 0 {
        // SAFETY: these are whole pages within the block, whose bytes nobody reads before they are written
        // again. If the system refuses, they stay as they are.
        let _ = unsafe {
            rustix::mm::madvise(block.with_addr(first).cast(), n_bytes, rustix::mm::Advice::LinuxDontNeed)
        };
    }
}

/// `madvise`'s advice to put a range into huge pages at once, of Linux 6.1. The C library's headers have no
/// name for it yet.
const MADV_COLLAPSE: i32 = 25;

/// Has the system put what lies at these addresses into huge pages, where it lies. The first one is that of a
/// page.
///
/// # Errors
/// The system's: it may know no such call, have no memory in one piece, or have nothing there.
pub fn collapse(addresses: Range<usize>) -> Result<(), Error> {
    let start = ptr::without_provenance_mut(addresses.start);
    // SAFETY: the call changes in which memory bytes lie, and none of them, whoever uses them meanwhile.
    match unsafe { libc::madvise(start, addresses.len(), MADV_COLLAPSE) } {
        0 => Ok(()),
        _ => Err(Error::last_os_error()),
    }
}

/// Whether every block that fits is aligned as the layout wants. A smaller block than the alignment need not
/// be.
#[inline]
fn is_natural(size: usize, align: usize) -> bool {
    align <= NATURAL_ALIGN && align <= size
}

// SAFETY: mimalloc keeps the contract of malloc, and its blocks of 16 bytes and more lie at multiples of 16,
// smaller ones at multiples of 8; for every other alignment it is asked. `mi_free` takes blocks of all these
// calls alike.
unsafe impl GlobalAlloc for Allocator {
    /// # Safety
    /// This one and the others ask for what [`GlobalAlloc`] does.
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

    /// Options have only numbers here: these are the values that mimalloc 3 gives this one and those beside
    /// it at the start.
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
