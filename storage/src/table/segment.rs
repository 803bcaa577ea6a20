//! Segments: up to 63 buckets that cover one interval of positions in order.
//!
//! A bucket is *home* to an equal part of the interval. If it is full, an entry goes to the next bucket with
//! room, wrapping at the segment's end, and sets the overflow bit in every bucket that it passed. Two things
//! hold at any time, for every bucket:
//! - If an entry passed it, the overflow bit is set, so that a look-up may stop at the first bucket without
//!   the bit.
//! - If the overflow bit is set, the bucket is full, because a removal fetches back an entry that passed, and
//!   clears the bit if there is none. So there are no tombstones, and misses are as short as if removed
//!   entries had never been there.

use std::alloc::{Layout, alloc_zeroed, handle_alloc_error};
use std::ptr::NonNull;

use braid_protocol::bytes::is_same;
use crossbeam_epoch::Guard;

use super::bucket::{Bucket, Content, KNOWN_POSITION_BITS, SLOTS};
use super::retired::retire;
use crate::entry::{ADDRESS_BITS, EntryBox, EntryRef};
use crate::table::hash::{Place, Router};
use crate::table::prefetch;

/// The most buckets of a segment; see [`Fill::more_buckets`].
pub(super) const BUCKETS_MAX: usize = 63;

/// Position bits after a segment's prefix that choose the home: enough that the homes' shares differ by 6 %
/// at most.
const HOME_BITS: u32 = 10;

/// Position bits that are taken from buckets. In unit tests there are fewer than buckets know, so that small
/// tables have segments whose keys must be read, too.
const POSITION_BITS: u32 = if cfg!(test) { 14 } else { KNOWN_POSITION_BITS };

/// The number of buckets ahead of which keys are fetched that will be hashed: some 25 cache lines.
const BUCKETS_AHEAD: usize = 4;

/// The fill limit of a table's segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fill {
    /// For keys. At 1.7 bytes a key more than in a dense table, far fewer entries are away from home, and
    /// GETs of a million keys in pipelines are 5 % cheaper.
    Roomy,
    /// For the members of a value, where memory comes first.
    Dense,
}

/// Percent of a segment's slots that are taken.
struct Percent {
    /// The fill above which it grows.
    full: usize,
    /// The fill below which it shrinks.
    sparse: usize,
    /// The fill of a new segment at most, so that it neither grows nor shrinks soon.
    fresh: usize,
}

impl Fill {
    const fn percent(self) -> Percent {
        match self {
            Fill::Roomy => Percent { full: 80, sparse: 25, fresh: 72 },
            Fill::Dense => Percent { full: 94, sparse: 40, fresh: 85 },
        }
    }

    /// The number of entries from which `n_buckets` buckets must become more.
    #[inline]
    pub(super) fn full_count(self, n_buckets: usize) -> usize {
        if n_buckets == 1 { SLOTS } else { n_buckets * SLOTS * self.percent().full / 100 }
    }

    /// The number of entries below which `n_buckets` buckets should become fewer.
    #[inline]
    pub(super) fn sparse_count(self, n_buckets: usize) -> usize {
        if n_buckets == 1 { 1 } else { n_buckets * SLOTS * self.percent().sparse / 100 }
    }

    /// The number of buckets for some entries that move to a new segment.
    pub(super) fn fitting_buckets(self, count: usize) -> usize {
        let mut n_buckets = 1;
        while n_buckets < BUCKETS_MAX && n_buckets * SLOTS * self.percent().fresh / 100 < count {
            n_buckets = self.more_buckets(n_buckets);
        }
        n_buckets
    }

    /// Returns the next larger number of buckets. In dense tables there are four steps a doubling, since
    /// large segments that only doubled would be a quarter emptier on average. In roomy ones, copying costs
    /// more than the room: small segments double, and large ones take two steps. A table that grows then
    /// copies each entry 1.7 times, and with four steps 3.2 times.
    ///
    /// The numbers are one less than mimalloc's size classes have lines (8, 10, 12, 14, 16, 20 …), because it
    /// aligns larger blocks to lines by asking itself for one more.
    pub(super) fn more_buckets(self, n_buckets: usize) -> usize {
        let lines = n_buckets + 1;
        let power = 1 << lines.ilog2();
        let more = match self {
            Fill::Roomy if n_buckets < BUCKETS_MAX / 2 => lines,
            Fill::Roomy => power / 2,
            Fill::Dense => (power / 4).max(1),
        };
        n_buckets + more
    }
}

/// A pointer to a segment, with its attributes from the directory.
///
/// It comes from a directory's word. Its owner either holds the shard or, for the address of a bucket alone,
/// is pinned.
#[derive(Clone, Copy)]
pub(super) struct Segment {
    buckets: NonNull<Bucket>,
    n_buckets: usize,
    /// The number of position bits that all entries have in common.
    depth: u32,
}

/// The slot of a bucket whose entry may be at this place, by the slot's bits, and is accepted.
#[inline(always)]
fn slot_where(bucket: &Bucket, place: Place, accept: impl Fn(EntryRef<'_>) -> bool) -> Option<usize> {
    for slot in bucket.tags().matching(place.tag()) {
        let word = bucket.slot(slot);
        // SAFETY: the slot is occupied, and the holder reads the entry only while it is in this function.
        if word.agrees_with(place) && accept(unsafe { word.entry() }) {
            return Some(slot);
        }
    }
    None
}

impl Segment {
    /// # Safety
    /// `buckets` is the first of `n_buckets` that are freed no earlier than the last use of the segment.
    #[inline]
    pub(super) unsafe fn from_raw(buckets: NonNull<Bucket>, n_buckets: usize, depth: u32) -> Self {
        Segment { buckets, n_buckets, depth }
    }

    pub(super) fn allocate(n_buckets: usize, depth: u32) -> Self {
        debug_assert!((1..=BUCKETS_MAX).contains(&n_buckets));
        let layout = Self::layout(n_buckets);
        // SAFETY: the layout is not of size 0.
        let start =
            NonNull::new(unsafe { alloc_zeroed(layout) }).unwrap_or_else(|| handle_alloc_error(layout));
        assert!(start.addr().get() >> ADDRESS_BITS == 0, "the allocator hands out addresses below 2^48");
        // All-zero buckets are valid, and empty.
        Segment { buckets: start.cast(), n_buckets, depth }
    }

    /// Frees the segment when no prefetcher can read it any more.
    ///
    /// # Safety
    /// No directory that new prefetchers can find points to the segment, and the holder is done with it.
    pub(super) unsafe fn retire(self) {
        // SAFETY: the segment is from `allocate`, with this layout; the rest is the caller's promise.
        unsafe { retire(self.buckets.cast(), Self::layout(self.n_buckets)) };
    }

    fn layout(n_buckets: usize) -> Layout {
        Layout::array::<Bucket>(n_buckets).expect("63 buckets are 4 KiB")
    }

    #[inline]
    pub(super) fn n_buckets(&self) -> usize {
        self.n_buckets
    }

    #[inline]
    pub(super) fn depth(&self) -> u32 {
        self.depth
    }

    #[inline]
    pub(super) fn allocated_bytes(&self) -> usize {
        self.n_buckets * size_of::<Bucket>()
    }

    #[inline]
    pub(super) fn start(&self) -> NonNull<Bucket> {
        self.buckets
    }

    #[inline]
    pub(super) fn bucket(&self, at: usize) -> &Bucket {
        debug_assert!(at < self.n_buckets);
        // SAFETY: `at` comes from `home`, `next` or a loop over `n_buckets`, so it is within the segment. The
        // segment lives while the owner of `self` holds or is pinned. Buckets are atomics, so shared
        // references are right while other threads write.
        unsafe { self.buckets.add(at).as_ref() }
    }

    /// A bucket, for prefetchers.
    #[inline]
    pub(super) fn bucket_for<'g>(&self, at: usize, _pinned: &'g Guard) -> &'g Bucket {
        debug_assert!(at < self.n_buckets);
        // SAFETY: as in `bucket`, but the segment is not freed while a thread that saw it is pinned.
        unsafe { self.buckets.add(at).as_ref() }
    }

    /// The home of an entry at this position.
    #[inline]
    pub(super) fn home(&self, position: u64) -> usize {
        let part = ((position << self.depth) >> (64 - HOME_BITS)) as usize;
        (part * self.n_buckets) >> HOME_BITS
    }

    /// The first position whose home is this bucket, or the end of the interval if `at` is the number of
    /// buckets; `position` is any within the segment. `None` stands for the end of all positions.
    #[inline]
    pub(super) fn start_of(&self, at: usize, position: u64) -> Option<u64> {
        let part = (at << HOME_BITS).div_ceil(self.n_buckets) as u128;
        let prefix = ((position as u128) << self.depth >> 64 << 64 >> self.depth) as u64;
        u64::try_from(prefix as u128 + (part << (64 - HOME_BITS - self.depth))).ok()
    }

    /// The number of buckets from `from` on to `to`, going round.
    #[inline]
    fn distance(&self, from: usize, to: usize) -> usize {
        if to >= from { to - from } else { to + self.n_buckets - from }
    }

    #[inline]
    pub(super) fn next(&self, at: usize) -> usize {
        if at + 1 == self.n_buckets { 0 } else { at + 1 }
    }

    /// Whether a key's entry is in this bucket and slot, if they exist.
    #[inline]
    pub(super) fn is_at(&self, at: usize, slot: usize, key: &[u8], place: Place) -> bool {
        if at >= self.n_buckets || slot >= SLOTS {
            return false;
        }
        let bucket = self.bucket(at);
        let word = bucket.slot(slot);
        // SAFETY: no tag is 0, so the slot is occupied, and the holder reads the entry only while it is in
        // this function.
        bucket.tags().tag(slot) == place.tag()
            && word.agrees_with(place)
            && is_same(unsafe { word.entry() }.key(), key)
    }

    /// Finds a key's bucket and slot.
    #[inline(always)]
    pub(super) fn find(&self, key: &[u8], place: Place) -> Option<(usize, usize)> {
        self.find_where(place, |entry| is_same(entry.key(), key))
    }

    /// Finds the bucket and slot of an entry that may be at this place, by its slot's bits, and is accepted.
    #[inline(always)]
    pub(super) fn find_where(
        &self,
        place: Place,
        accept: impl Fn(EntryRef<'_>) -> bool,
    ) -> Option<(usize, usize)> {
        let home = self.home(place.position());
        match slot_where(self.bucket(home), place, &accept) {
            Some(slot) => Some((home, slot)),
            None if self.bucket(home).tags().is_overflowed() => self.find_behind(home, place, accept),
            None => None,
        }
    }

    /// Continues [`Segment::find_where`] past the home. Apart, because most entries are at home.
    #[inline(never)]
    fn find_behind(
        &self,
        home: usize,
        place: Place,
        accept: impl Fn(EntryRef<'_>) -> bool,
    ) -> Option<(usize, usize)> {
        let mut at = self.next(home);
        while at != home {
            if let Some(slot) = slot_where(self.bucket(at), place, &accept) {
                return Some((at, slot));
            }
            if !self.bucket(at).tags().is_overflowed() {
                return None;
            }
            at = self.next(at);
        }
        None
    }

    /// Puts an entry into the first bucket with room from its home on. There must be room.
    #[inline]
    pub(super) fn place(&self, content: Content, position: u64) -> (usize, usize) {
        let mut at = self.home(position);
        loop {
            let bucket = self.bucket(at);
            if let Some(slot) = bucket.tags().empty().next() {
                bucket.fill(slot, content);
                return (at, slot);
            }
            bucket.set_tags(bucket.tags().with_overflowed(true));
            at = self.next(at);
        }
    }

    /// Takes an entry out. Fetches back one that passed its bucket, and repeats this where that one was.
    pub(super) fn remove(&self, at: usize, slot: usize, router: &Router) -> EntryBox {
        let removed = self.bucket(at).empty(slot);
        let (mut hole, mut hole_slot) = (at, slot);
        while self.bucket(hole).tags().is_overflowed() {
            let bucket = self.bucket(hole);
            let Some((from, from_slot)) = self.find_passer(hole, router) else {
                bucket.set_tags(bucket.tags().with_overflowed(false));
                break;
            };
            bucket.fill(hole_slot, self.bucket(from).empty(from_slot));
            (hole, hole_slot) = (from, from_slot);
        }
        // SAFETY: the slot was occupied, and has been emptied.
        unsafe { removed.word.into_entry() }
    }

    /// An entry that passed this bucket on its way from home.
    fn find_passer(&self, passed: usize, router: &Router) -> Option<(usize, usize)> {
        let mut at = self.next(passed);
        while at != passed {
            let bucket = self.bucket(at);
            let tags = bucket.tags();
            for slot in tags.occupied() {
                let home = self.home(self.position(bucket.content(slot), router));
                if self.distance(home, at) >= self.distance(passed, at) {
                    return Some((at, slot));
                }
            }
            if !tags.is_overflowed() {
                return None;
            }
            at = self.next(at);
        }
        None
    }

    /// An entry's position, exact enough to find its home in this segment.
    #[inline]
    pub(super) fn position(&self, content: Content, router: &Router) -> u64 {
        if self.has_positions() {
            content.position_top()
        } else {
            // SAFETY: contents are those of occupied slots, and the holder reads the key only while it is in
            // this function.
            router.place(unsafe { content.word.entry() }.key()).position()
        }
    }

    /// Moves all entries of this segment into two others, by the position bit after this segment's prefix.
    pub(super) fn split_into(&self, low: &Segment, high: &Segment, router: &Router) {
        // The others know the positions that they need; the bit is among them.
        self.visit_positions(low, router, |content, position| {
            let into = if self.bit_behind_prefix(position) { high } else { low };
            into.place(content, position);
        });
    }

    /// Puts all entries of this segment into another that covers its interval.
    pub(super) fn copy_into(&self, into: &Segment, router: &Router) {
        self.visit_positions(into, router, |content, position| {
            into.place(content, position);
        });
    }

    /// Visits all entries with their positions, exact enough to find their homes in segment `of`.
    ///
    /// If that takes their keys, those are fetched some buckets ahead, because they are scattered over the
    /// memory.
    fn visit_positions(&self, of: &Segment, router: &Router, mut visit: impl FnMut(Content, u64)) {
        let takes_keys = !of.has_positions();
        let fetch = |at: usize| {
            if takes_keys && at < self.n_buckets {
                self.bucket(at).contents().for_each(|content| prefetch::for_read(content.word.address()));
            }
        };
        (0..BUCKETS_AHEAD).for_each(fetch);
        for at in 0..self.n_buckets {
            fetch(at + BUCKETS_AHEAD);
            for content in self.bucket(at).contents() {
                visit(content, of.position(content, router));
            }
        }
    }

    /// Whether the buckets know enough of the positions for this segment. Otherwise keys are read, which are
    /// scattered over the memory.
    #[inline]
    fn has_positions(&self) -> bool {
        self.depth + HOME_BITS <= POSITION_BITS
    }

    /// The number of entries that would go into the upper half if this segment split.
    pub(super) fn count_high(&self, router: &Router) -> usize {
        let mut n_high = 0;
        self.visit_positions(self, router, |_, position| n_high += self.bit_behind_prefix(position) as usize);
        n_high
    }

    #[inline]
    fn bit_behind_prefix(&self, position: u64) -> bool {
        position << self.depth >> 63 != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sizes(next: impl Fn(usize) -> usize) -> impl Iterator<Item = usize> {
        std::iter::successors(Some(1), move |&n_buckets| Some(next(n_buckets)))
            .take_while(|n| *n <= BUCKETS_MAX)
    }

    #[test]
    fn segments_grow_by_about_a_quarter_and_roomy_ones_faster() {
        assert!(sizes(|n| Fill::Roomy.more_buckets(n)).eq([1, 3, 7, 15, 31, 47, 63]));
        let dense = [1, 2, 3, 4, 5, 6, 7, 9, 11, 13, 15, 19, 23, 27, 31, 39, 47, 55, 63];
        assert!(sizes(|n| Fill::Dense.more_buckets(n)).eq(dense));
    }

    #[test]
    fn homes_begin_where_start_of_says() {
        for depth in [0, 1, 7, 28] {
            for n_buckets in [1, 2, 3, 7, 10, 55, 63] {
                // SAFETY: only the arithmetic is used.
                let segment = unsafe { Segment::from_raw(NonNull::dangling(), n_buckets, depth) };
                let inside = 0x5ead_beef_dead_beef;
                for at in 0..n_buckets {
                    let start = segment.start_of(at, inside).expect("only the end can be the end");
                    assert_eq!(segment.home(start), at);
                    assert!(start.trailing_zeros() >= 64 - HOME_BITS - depth);
                    if at > 0 {
                        assert_eq!(segment.home(start - 1), at - 1);
                    }
                }
                let end = segment.start_of(n_buckets, inside);
                match depth {
                    0 => assert_eq!(end, None),
                    _ => assert_eq!(end, Some(((inside >> (64 - depth)) + 1) << (64 - depth))),
                }
            }
        }
    }

    #[test]
    fn thresholds_leave_room_between_them() {
        for fill in [Fill::Roomy, Fill::Dense] {
            for n_buckets in sizes(|n| fill.more_buckets(n)) {
                let sparse = fill.sparse_count(n_buckets);
                assert!(fill.fitting_buckets(sparse.saturating_sub(1)) < n_buckets || n_buckets == 1);
                let grown = fill.more_buckets(n_buckets);
                assert!(fill.full_count(n_buckets) >= fill.sparse_count(grown) + 2);
            }
        }
    }
}
