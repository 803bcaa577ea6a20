//! The directory of a table's segments, and the roots from which directories are found.

use std::alloc::{Layout, alloc_zeroed, handle_alloc_error};
use std::hint::cold_path;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU32, AtomicUsize, Ordering::Acquire, Ordering::Relaxed, Ordering::Release,
};

use crossbeam_epoch::Guard;

use super::bucket::Bucket;
use super::retired::retire;
use super::segment::{Fill, Segment};
use crate::entry::ADDRESS_BITS;
use crate::memory::allocator::count_data;
use crate::table::hash::Router;

/// The deepest directory: 2²⁸ segments are some 10¹¹ entries.
pub(super) const DEPTH_MAX: u32 = 28;

const DEPTH_SHIFT: u32 = ADDRESS_BITS;
const COUNT_SHIFT: u32 = 54;
const N_BUCKETS_MASK: usize = 0x3f;

/// The header of a directory; 2^depth words follow in the same allocation.
#[repr(C)]
pub(super) struct Directory {
    depth: u32,
    /// The number of segments as deep as the directory; at none, it can halve. For the holder only.
    n_deepest: AtomicU32,
}

/// A pointer to a directory, of the holder or of a pinned prefetcher.
#[derive(Clone, Copy)]
pub(super) struct DirectoryRef(NonNull<Directory>);

impl DirectoryRef {
    pub(super) fn allocate(depth: u32) -> Self {
        assert!(depth <= DEPTH_MAX, "keyed hashes do not collide in {DEPTH_MAX} bits by the hundreds");
        let layout = Self::layout(depth);
        // SAFETY: the layout is not of size 0.
        let start =
            NonNull::new(unsafe { alloc_zeroed(layout) }).unwrap_or_else(|| handle_alloc_error(layout));
        let directory = start.cast::<Directory>();
        // SAFETY: the allocation is new, large enough, and aligned for the header; zero words are valid
        // atomics.
        unsafe { directory.write(Directory { depth, n_deepest: AtomicU32::new(0) }) };
        DirectoryRef(directory)
    }

    /// Frees the directory, though not its segments, when no prefetcher can read it any more.
    ///
    /// # Safety
    /// No root points to the directory, and the holder is done with it.
    pub(super) unsafe fn retire(self) {
        // SAFETY: the directory is from `allocate`, with this layout; the rest is the caller's promise.
        unsafe { retire(self.0.cast(), Self::layout(self.depth())) };
    }

    fn layout(depth: u32) -> Layout {
        let words = Layout::array::<AtomicPtr<Bucket>>(1 << depth).expect("2^28 words are 2 GiB");
        Layout::new::<Directory>().extend(words).expect("2^28 words are 2 GiB").0
    }

    pub(super) fn allocated_bytes(self) -> usize {
        Self::layout(self.depth()).size()
    }

    #[inline]
    pub(super) fn depth(self) -> u32 {
        self.header().depth
    }

    #[inline]
    pub(super) fn n_deepest(&self) -> &AtomicU32 {
        &self.header().n_deepest
    }

    #[inline]
    fn header(&self) -> &Directory {
        // SAFETY: the directory lives while the owner of `self` holds or is pinned, and only its atomics
        // change.
        unsafe { self.0.as_ref() }
    }

    #[inline]
    pub(super) fn n_words(self) -> usize {
        1 << self.depth()
    }

    /// Returns the index of the word that leads to a position.
    #[inline]
    pub(super) fn index(self, position: u64) -> usize {
        // A shift by 64, for depth 0, overflows, so it is made in two steps.
        ((position >> 1) >> (63 - self.depth())) as usize
    }

    #[inline]
    pub(super) fn word(&self, index: usize) -> &AtomicPtr<Bucket> {
        debug_assert!(index < self.n_words());
        // SAFETY: `index` comes from `index` or a loop over `n_words`, so the word is within the allocation,
        // which lives while the owner of `self` holds or is pinned.
        unsafe { self.0.add(1).cast::<AtomicPtr<Bucket>>().add(index).as_ref() }
    }

    /// A word, for prefetchers.
    #[inline]
    pub(super) fn word_for(self, index: usize, _pinned: &Guard) -> &AtomicPtr<Bucket> {
        debug_assert!(index < self.n_words());
        // SAFETY: `index` comes from `index`, so the word is within the allocation, which is not freed while
        // a thread that saw it is pinned.
        unsafe { self.0.add(1).cast::<AtomicPtr<Bucket>>().add(index).as_ref() }
    }

    /// Returns the segment to which a word leads. For the holder, which needs no ordering.
    #[inline]
    pub(super) fn segment(self, index: usize) -> SegmentWord {
        SegmentWord(self.word(index).load(Relaxed))
    }

    #[inline]
    pub(super) fn set_segment(self, index: usize, segment: SegmentWord) {
        // Release pairs with the Acquire in `SegmentWord::acquire`, also when only the count changes.
        // Otherwise a store in between would cut prefetchers off from the one that published the segment.
        self.word(index).store(segment.0, Release);
    }

    /// Returns the first of the words that lead to a segment of this depth; its count is kept.
    #[inline]
    pub(super) fn first_index(self, index: usize, depth: u32) -> usize {
        let words_log2 = self.depth() - depth;
        index >> words_log2 << words_log2
    }

    /// Makes all words of a segment's interval lead to it; `index` is any of them.
    pub(super) fn publish(self, index: usize, segment: Segment, count: usize) {
        let first = self.first_index(index, segment.depth());
        for index in first..first + (1 << (self.depth() - segment.depth())) {
            self.set_segment(index, SegmentWord::new(segment, count));
        }
    }

    /// The segments, each once, by the index of its first word.
    pub(super) fn segments(self) -> impl Iterator<Item = (usize, SegmentWord)> {
        let mut index = 0;
        std::iter::from_fn(move || {
            (index < self.n_words()).then(|| {
                let (first, word) = (index, self.segment(index));
                index += 1 << (self.depth() - word.segment().depth());
                (first, word)
            })
        })
    }
}

/// The content of a word of a directory, in one word so that prefetchers see it consistent. It is the
/// segment's address (a multiple of 64 below 2⁴⁸) and three numbers. The low 6 bits are the number of buckets
/// less one. Above the address are the segment's depth (6 bits) and its count of entries (10 bits, kept only
/// in the first word of the segment).
#[derive(Clone, Copy)]
pub(super) struct SegmentWord(*mut Bucket);

impl SegmentWord {
    #[inline]
    pub(super) fn new(segment: Segment, count: usize) -> Self {
        debug_assert!(count < 1 << 10);
        SegmentWord(segment.start().as_ptr().map_addr(|address| {
            address
                | (segment.n_buckets() - 1)
                | (segment.depth() as usize) << DEPTH_SHIFT
                | count << COUNT_SHIFT
        }))
    }

    /// Reads a word, for prefetchers.
    #[inline]
    pub(super) fn acquire(word: &AtomicPtr<Bucket>) -> Self {
        // Acquire pairs with the Release in `set_segment`: the segment is seen zeroed at least.
        SegmentWord(word.load(Acquire))
    }

    #[inline]
    pub(super) fn segment(self) -> Segment {
        let word = self.0.addr();
        let start = self.0.map_addr(|word| word & ((1 << ADDRESS_BITS) - 1) & !N_BUCKETS_MASK);
        let depth = (word >> DEPTH_SHIFT) as u32 & 0x3f;
        // SAFETY: words are only made by `new`, of live segments, whose address is not null. Code that
        // replaces a word retires its segment.
        unsafe { Segment::from_raw(NonNull::new_unchecked(start), (word & N_BUCKETS_MASK) + 1, depth) }
    }

    #[inline]
    pub(super) fn count(self) -> usize {
        self.0.addr() >> COUNT_SHIFT
    }
}

/// The word that leads to a table's directory: null if the table is empty.
///
/// It changes only when a table's directory is replaced. It lies apart from the tables, whose counts change
/// with each insert. So the cache lines of an array of roots can be in the caches of all cores.
#[repr(transparent)]
pub struct Root(AtomicPtr<Directory>);

/// The root of no table. It is no directory's address, since directories are aligned to 8.
const UNCLAIMED: usize = 1;

impl Root {
    /// The root of an empty table.
    pub(super) const fn empty() -> Self {
        Root(AtomicPtr::new(std::ptr::null_mut()))
    }

    /// The directory, for the holder.
    #[inline]
    pub(super) fn directory(&self) -> Option<DirectoryRef> {
        NonNull::new(self.0.load(Relaxed)).map(DirectoryRef)
    }

    /// The directory, for prefetchers.
    #[inline]
    pub(super) fn directory_acquire(&self) -> Option<DirectoryRef> {
        // Acquire pairs with the Release in `publish`: depth and words are seen as they were written before.
        let directory = self.0.load(Acquire);
        if directory.addr() == UNCLAIMED {
            cold_path();
            return None;
        }
        NonNull::new(directory).map(DirectoryRef)
    }

    #[inline]
    pub(super) fn publish(&self, directory: Option<DirectoryRef>) {
        let directory = directory.map_or(std::ptr::null_mut(), |directory| directory.0.as_ptr());
        // Release pairs with the Acquire in `directory_acquire`.
        self.0.store(directory, Release);
    }

    fn claim(&self) -> bool {
        let unclaimed = std::ptr::without_provenance_mut(UNCLAIMED);
        // Acquire pairs with the Release in `unclaim`: nothing is left of the former table.
        self.0.compare_exchange(unclaimed, std::ptr::null_mut(), Acquire, Relaxed).is_ok()
    }

    pub(super) fn unclaim(&self) {
        // Release pairs with the Acquire in `claim`.
        self.0.store(std::ptr::without_provenance_mut(UNCLAIMED), Release);
    }

    #[inline]
    pub(super) fn address(&self) -> *const u8 {
        (&raw const self.0).cast()
    }
}

/// The counts of a table. Its holder writes, and any thread may read. Each number is read at its own moment,
/// also in the middle of a command.
///
/// The counts of two tables share no cache line: their holders may be two.
#[derive(Default)]
#[repr(align(64))]
pub struct Counts {
    pub(super) len: Count,
    pub(super) n_deadlines: Count,
    pub(super) allocated_bytes: Bytes,
    pub(super) n_partly: Count,
}

impl Counts {
    /// The number of entries with parts that have deadlines of their own.
    #[inline]
    pub fn n_partly(&self) -> usize {
        self.n_partly.get()
    }

    /// Records that an entry now has parts with deadlines of their own, or has none any more.
    pub(crate) fn count_partly(&self, before: bool, after: bool) {
        match (before, after) {
            (false, true) => self.n_partly.add(1),
            // A table that has become empty starts its counts anew, before its last entry is reported gone.
            (true, false) => self.n_partly.set(self.n_partly.get().saturating_sub(1)),
            _ => {}
        }
    }

    /// The number of entries.
    #[inline]
    pub fn len(&self) -> usize {
        self.len.get()
    }

    /// Whether there are no entries.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The number of entries with a deadline.
    #[inline]
    pub fn n_deadlines(&self) -> usize {
        self.n_deadlines.get()
    }

    /// The bytes of all entries and of the structure.
    #[inline]
    pub fn allocated_bytes(&self) -> usize {
        self.allocated_bytes.get()
    }
}

/// A number with one writer, which therefore needs no read-modify-write.
#[derive(Default)]
pub(super) struct Count(AtomicUsize);

impl Count {
    #[inline]
    pub(super) fn get(&self) -> usize {
        self.0.load(Relaxed)
    }

    #[inline]
    pub(super) fn set(&self, n: usize) {
        self.0.store(n, Relaxed);
    }

    #[inline]
    pub(super) fn add(&self, n: usize) {
        self.set(self.get() + n);
    }

    #[inline]
    pub(super) fn sub(&self, n: usize) {
        self.set(self.get() - n);
    }

    pub(super) fn swap(&self, other: &Count) {
        let ours = self.get();
        self.set(other.get());
        other.set(ours);
    }
}

/// The bytes of a table. Changes of the data set's tables are added up for `maxmemory`.
#[derive(Default)]
pub(super) struct Bytes {
    n: Count,
    /// Whether the table is part of a value: its bytes are among those of its entry, which are counted.
    is_part: AtomicBool,
}

impl Bytes {
    #[inline]
    pub(super) fn get(&self) -> usize {
        self.n.get()
    }

    #[inline]
    pub(super) fn add(&self, n: usize) {
        self.replace(0, n);
    }

    #[inline]
    pub(super) fn sub(&self, n: usize) {
        self.replace(n, 0);
    }

    /// Replaces `before` bytes in the count by `after`.
    #[inline]
    pub(super) fn replace(&self, before: usize, after: usize) {
        self.n.set(self.n.get() + after - before);
        if !self.is_part.load(Relaxed) {
            count_data(after as i64 - before as i64);
        }
    }

    /// Counts a table that has been emptied.
    pub(super) fn clear(&self) {
        self.sub(self.get());
    }

    /// Exchanges two tables' bytes. Both are of the data set, or neither is.
    pub(super) fn swap(&self, other: &Bytes) {
        self.n.swap(&other.n);
    }

    /// Marks the table as part of a value.
    pub(super) fn be_part(&self) {
        self.is_part.store(true, Relaxed);
    }
}

/// The roots of many tables, side by side, with their counts and the router that computes the places of their
/// keys.
///
/// A keyspace has one for the tables of its first database, one table a shard. For the tables of other
/// databases see `numbered.rs`.
#[derive(Clone)]
pub struct Roots {
    shared: Arc<Shared>,
}

struct Shared {
    router: Router,
    fill: Fill,
    roots: Box<[Root]>,
    counts: Box<[Counts]>,
}

impl Roots {
    /// Makes roots for `n_tables` tables, which do not exist yet.
    pub fn new(n_tables: usize, router: Router, fill: Fill) -> Self {
        let unclaimed = || Root(AtomicPtr::new(std::ptr::without_provenance_mut(UNCLAIMED)));
        let roots = (0..n_tables).map(|_| unclaimed()).collect();
        // SAFETY: counts are atomics, and zeros are valid.
        let counts = unsafe { Box::new_zeroed_slice(n_tables).assume_init() };
        Roots { shared: Arc::new(Shared { router, fill, roots, counts }) }
    }

    /// Claims a root, and its counts, for a table that is about to be made.
    ///
    /// # Panics
    /// If the root has a table already, or there is no such root.
    pub(super) fn claim(&self, index: usize) -> (NonNull<Root>, NonNull<Counts>) {
        let root = &self.shared.roots[index];
        assert!(root.claim(), "root {index} has a table already");
        (NonNull::from(root), NonNull::from(&self.shared.counts[index]))
    }

    /// A root, to prefetch from.
    #[inline]
    pub fn get(&self, index: usize) -> &Root {
        &self.shared.roots[index]
    }

    /// A table's counts.
    #[inline]
    pub fn counts(&self, index: usize) -> &Counts {
        &self.shared.counts[index]
    }

    /// The router that computes the places of the tables' keys.
    #[inline]
    pub fn router(&self) -> &Router {
        &self.shared.router
    }

    /// The fill limit of the tables' segments.
    #[inline]
    pub(super) fn fill(&self) -> Fill {
        self.shared.fill
    }

    pub(super) fn are_like(&self, other: &Roots) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
            || (self.shared.router == other.shared.router && self.shared.fill == other.shared.fill)
    }
}

impl std::fmt::Debug for Roots {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Roots").field("n_tables", &self.shared.roots.len()).finish_non_exhaustive()
    }
}
