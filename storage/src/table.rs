//! The table: an index of entries by key. It grows and shrinks in small steps while other threads read its
//! structure.
//!
//! ```text
//! Root ─▶ Directory (2^depth words) ─▶ Segment (1 to 63 buckets) ─▶ Bucket (one line, 7 entries) ─▶ entry
//! ```
//!
//! A key's [`Place`] is 64 bits of hash. Read from the top, it is the key's *position*. Its first bits choose
//! the directory's word, and the next ones the bucket within the segment. So positions ascend through
//! directory, segments and buckets. A byte further down is the tag by which a bucket tells its entries apart
//! without reading them. So a look-up touches one cache line for the bucket and one for the entry, once root
//! and directory are in the cache.
//!
//! - **Growing**: a segment that is 94 % full is replaced by one with a quarter more buckets, up to 63, and
//!   then by two (extendible hashing). A directory too shallow for that doubles.
//! - **Shrinking**: a segment below 40 % is replaced by one that is 85 % full, or merged with its sibling
//!   where both together are small. A directory halves when no segment needs its depth.
//! - So no insert or removal moves more than a segment's entries. (The directory's own doubling copies 8
//!   bytes a segment: 20 KiB for a million keys in *one* table.)
//! - Slots keep the top 19 bits of the position. So none of this touches an entry as long as a table is below
//!   about 200,000 keys. In larger tables, moving an entry hashes its key anew.
//! - **Memory**: 64 bytes for 7 slots that are 86 % full on average: 10.6 bytes a key.
//!
//! # Who may read and write what
//!
//! | | holder of the shard | prefetchers (pinned, any number) |
//! |---|---|---|
//! | root, directory words | loads Relaxed, stores Release | load Acquire |
//! | bucket words | loads and stores Relaxed, whole | load Relaxed |
//! | entries | all | nothing: they only prefetch the address |
//! | [`Counts`] | loads and stores Relaxed | nothing (others: loads Relaxed) |
//!
//! The holder may change everything, and each holder sees the writes of the one before, because the hand-over
//! synchronises: that is the meaning of `&mut Table`. Structure is reached through raw pointers and its words
//! are atomics, so no `&mut` to them ever exists.
//!
//! A directory or segment that is replaced is freed through crossbeam-epoch, also when a table is emptied or
//! dropped. It is freed after all threads that were pinned when it was unlinked have unpinned. Entries are
//! freed at once, since only the holder reads them.

mod bucket;
pub(crate) mod deadline_index;
mod detached;
mod directory;
pub mod hash;
mod lookahead;
mod numbered;
pub mod prefetch;
mod retired;
mod scan;
mod segment;
mod siphash;

use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::atomic::Ordering::Relaxed;

use self::bucket::{SLOTS, SlotWord};
pub use self::detached::Detached;
use self::directory::{Bytes, DirectoryRef, SegmentWord};
pub use self::directory::{Counts, Root, Roots};
use self::hash::{Place, Router};
pub use self::lookahead::{PREFETCH_MAX, prefetch_behind_roots};
pub use self::numbered::{Known, NumberedTables, TakenTables};
pub use self::retired::flush_retired;
pub(crate) use self::retired::retired_bytes;
pub use self::scan::{Cursor, Position};
pub use self::segment::Fill;
use self::segment::{BUCKETS_MAX, Segment};
use crate::entry::time::{Deadline, Millis};
use crate::entry::{Encoding, EntryBox, EntryRef, Object};

/// Siblings with at most this many entries together merge. It is well below the size at which a segment
/// splits.
const MERGE_MAX: usize = 256;

/// The tries of a sample before it walks.
const SAMPLE_TRIES: usize = 128;

/// Entries by key.
///
/// Its [`Root`] leads to its entries; prefetchers can read it without touching the table. Its [`Counts`],
/// which any thread can read, say how many they are and how large.
#[repr(C)]
pub struct Table {
    /// First, so that a look-up needs one line of the table's owner.
    root: NonNull<Root>,
    counts: NonNull<Counts>,
    /// Keeps the root and the counts alive, unless they lie apart, and has the router.
    roots: Roots,
}

// SAFETY: a table owns its entries and its structure. No other table writes its root (roots are claimed), and
// other threads read it as an atomic.
unsafe impl Send for Table {}
// SAFETY: `&Table` only reads: entries, which change only through `&mut Table`, and structure, whose words
// are atomics.
unsafe impl Sync for Table {}

impl Roots {
    /// Makes the table of a root. Dropping the table makes the root free for another.
    ///
    /// # Panics
    /// If the root has a table already, or there is no such root.
    pub fn table(&self, index: usize) -> Table {
        let (root, counts) = self.claim(index);
        Table { roots: self.clone(), root, counts }
    }

    /// Makes a table whose root and counts lie elsewhere, and live as long as it does.
    fn table_apart(&self, root: &Root, counts: &Counts) -> Table {
        Table { roots: self.clone(), root: NonNull::from(root), counts: NonNull::from(counts) }
    }
}

impl Table {
    /// Makes a table by itself, such as that of a large set.
    pub fn alone(router: Router) -> Self {
        let table = Roots::new(1, router, Fill::Dense).table(0);
        table.counts().allocated_bytes.be_part();
        table
    }

    /// The number of entries.
    #[inline]
    pub fn len(&self) -> usize {
        self.counts().len()
    }

    /// Whether there are no entries.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The number of entries with a deadline.
    #[inline]
    pub fn n_deadlines(&self) -> usize {
        self.counts().n_deadlines()
    }

    /// The bytes of all entries and of the structure.
    #[inline]
    pub fn allocated_bytes(&self) -> usize {
        self.counts().allocated_bytes()
    }

    /// The router that computes the places of the table's keys.
    #[inline]
    pub fn router(&self) -> &Router {
        self.roots.router()
    }

    /// Finds an entry to read. `place` is the place of the key by the table's router.
    #[inline(always)]
    pub fn find(&self, key: &[u8], place: Place) -> Option<EntryRef<'_>> {
        let segment = self.segment_at(place.position())?;
        let (at, slot) = segment.find(key, place)?;
        // SAFETY: the slot is occupied, and changing the entry takes the table mutably.
        Some(unsafe { segment.bucket(at).slot(slot).entry() })
    }

    /// Finds an entry to change or to remove. `place` is the place of the key by the table's router.
    #[inline]
    pub fn find_mut(&mut self, key: &[u8], place: Place) -> Option<SlotMut<'_>> {
        let segment = self.segment_at(place.position())?;
        let (at, slot) = segment.find(key, place)?;
        Some(SlotMut { table: self, segment, at, slot, place })
    }

    /// [`find_mut`](Self::find_mut) that first looks at the last entry's slot, because commands on one key
    /// often follow each other.
    #[inline(always)]
    pub fn find_mut_near(&mut self, key: &[u8], place: Place, hint: &mut Hint) -> Option<SlotMut<'_>> {
        let (segment, at, slot) = self.locate_near(key, place, hint)?;
        Some(SlotMut { table: self, segment, at, slot, place })
    }

    /// Finds an entry to change, or adds the one that `make` makes; returns whether it did. `place` is the
    /// place of the key by the table's router.
    #[inline]
    pub fn find_or_insert(
        &mut self,
        key: &[u8],
        place: Place,
        hint: &mut Hint,
        make: impl FnOnce() -> EntryBox,
    ) -> (SlotMut<'_>, bool) {
        match self.locate_near(key, place, hint) {
            Some((segment, at, slot)) => (SlotMut { table: self, segment, at, slot, place }, false),
            None => (self.insert(make(), place), true),
        }
    }

    /// [`find`](Self::find) that first looks at the last entry's slot.
    #[inline]
    pub fn find_near(&self, key: &[u8], place: Place, hint: &mut Hint) -> Option<EntryRef<'_>> {
        let (segment, at, slot) = self.locate_near(key, place, hint)?;
        // SAFETY: the slot is occupied, and changing the entry takes the table mutably.
        Some(unsafe { segment.bucket(at).slot(slot).entry() })
    }

    #[inline(always)]
    fn locate_near(&self, key: &[u8], place: Place, hint: &mut Hint) -> Option<(Segment, usize, usize)> {
        let segment = self.segment_at(place.position())?;
        let (at, slot) = (hint.at as usize, hint.slot as usize);
        if segment.is_at(at, slot, key, place) {
            return Some((segment, at, slot));
        }
        let (at, slot) = segment.find(key, place)?;
        *hint = Hint { at: at as u8, slot: slot as u8 };
        Some((segment, at, slot))
    }

    /// Finds an entry at a place that `accept` accepts, whatever its key.
    pub(crate) fn find_mut_at(
        &mut self,
        place: Place,
        accept: impl Fn(EntryRef<'_>) -> bool,
    ) -> Option<SlotMut<'_>> {
        let segment = self.segment_at(place.position())?;
        let router = self.router();
        let (at, slot) =
            segment.find_where(place, |entry| accept(entry) && router.place(entry.key()) == place)?;
        Some(SlotMut { table: self, segment, at, slot, place })
    }

    /// Adds an entry whose key is not in the table. `place` is the place of the key by the table's router.
    pub fn insert(&mut self, entry: EntryBox, place: Place) -> SlotMut<'_> {
        debug_assert_eq!(self.router().place(entry.as_ref().key()), place);
        debug_assert!(self.find(entry.as_ref().key(), place).is_none(), "the key is in the table already");
        let position = place.position();
        let spot = self.spot_with_room(position);
        let has_deadline = entry.as_ref().has_deadline();
        let counts = self.counts();
        counts.len.add(1);
        counts.allocated_bytes.add(entry.as_ref().allocated_bytes());
        if has_deadline {
            counts.n_deadlines.add(1);
        }
        spot.set_count(spot.count + 1);
        let content =
            bucket::Content { word: SlotWord::new(entry, position), tag: place.tag(), has_deadline };
        let (at, slot) = spot.segment.place(content, position);
        SlotMut { table: self, segment: spot.segment, at, slot, place }
    }

    /// Takes all entries out at once, to be freed later; in constant time.
    pub fn detach(&mut self) -> Detached {
        let directory = self.root().directory();
        self.root().publish(None);
        let counts = self.counts();
        let detached = Detached::new(directory, counts.len());
        for count in [&counts.len, &counts.n_deadlines, &counts.n_partly] {
            count.set(0);
        }
        counts.allocated_bytes.clear();
        detached
    }

    /// Fetches the memory that look-ups at these places touch, [`PREFETCH_MAX`] of them at most.
    pub fn prefetch(&self, places: &[Place]) {
        let places = &places[..places.len().min(PREFETCH_MAX)];
        prefetch_behind_roots(places.len(), |index| (self.root(), places[index]));
    }

    /// Swaps all entries with another table of the same [`Roots`], or of roots made alike; in constant time.
    ///
    /// # Panics
    /// If places have another meaning in the other table.
    pub fn swap_contents(&mut self, other: &mut Table) {
        assert!(self.roots.are_like(&other.roots), "places must mean the same in both tables");
        let (ours, theirs) = (self.root().directory(), other.root().directory());
        self.root().publish(theirs);
        other.root().publish(ours);
        let (ours, theirs) = (self.counts(), other.counts());
        ours.len.swap(&theirs.len);
        ours.n_deadlines.swap(&theirs.n_deadlines);
        ours.allocated_bytes.swap(&theirs.allocated_bytes);
        ours.n_partly.swap(&theirs.n_partly);
    }

    /// Returns a random entry, each nearly as likely as any other, chosen by `random`.
    ///
    /// It draws a directory word and a slot until it meets an entry. It takes segments only by their first
    /// word, so that a segment to which several words lead is not drawn more often. In a table that has just
    /// shrunk much, most draws fail. Then it takes the next entry from a random position on, so entries after
    /// gaps are likelier.
    pub fn sample(&self, random: u64) -> Option<EntryRef<'_>> {
        self.sample_where(random, |_, _| true, usize::MAX).map(|spot| spot.entry(self))
    }

    /// Fetches the entries that these random numbers will draw, or most of them.
    pub fn prefetch_samples(&self, randoms: &[u64]) {
        let Some(directory) = self.root().directory() else { return };
        for &random in randoms {
            if let Some(Sampled { segment, at, .. }) = Sampled::draw(directory, &mut SplitMix(random)) {
                prefetch::for_read(segment.bucket(at));
            }
        }
        for &random in randoms {
            if let Some(Sampled { segment, at, slot }) = self.sample_where(random, |_, _| true, 0) {
                prefetch::for_read(segment.bucket(at).slot(slot).address());
            }
        }
    }

    /// Takes a random entry out; see [`sample`](Self::sample).
    pub fn remove_sample(&mut self, random: u64) -> Option<EntryBox> {
        let Sampled { segment, at, slot } = self.sample_where(random, |_, _| true, usize::MAX)?;
        let position = segment.position(segment.bucket(at).content(slot), self.roots.router());
        Some(self.remove_at(segment, at, slot, position))
    }

    /// Takes an entry out. `position` is exact enough to find its segment.
    fn remove_at(&mut self, segment: Segment, at: usize, slot: usize, position: u64) -> EntryBox {
        let spot = self.spot(position).expect("a table with entries has structure");
        let entry = segment.remove(at, slot, self.roots.router());
        let counts = self.counts();
        counts.len.sub(1);
        counts.allocated_bytes.sub(entry.as_ref().allocated_bytes());
        if entry.as_ref().has_deadline() {
            counts.n_deadlines.sub(1);
        }
        spot.set_count(spot.count - 1);
        if spot.count - 1 < self.fill().sparse_count(segment.n_buckets()) {
            self.shrink(position);
        }
        entry
    }

    /// Returns a random entry with a deadline; see [`sample`](Self::sample). `None` if there is none, or if
    /// they are so rare that none was found near a random position.
    pub fn sample_deadline(&self, random: u64) -> Option<EntryRef<'_>> {
        if self.n_deadlines() == 0 {
            return None;
        }
        self.sample_where(random, |tags, slot| tags.has_deadline(slot), 4 * BUCKETS_MAX)
            .map(|spot| spot.entry(self))
    }

    fn sample_where(
        &self,
        random: u64,
        accept: impl Fn(bucket::Tags, usize) -> bool,
        max_walk: usize,
    ) -> Option<Sampled> {
        let directory = self.root().directory()?;
        let mut random = SplitMix(random);
        for _ in 0..SAMPLE_TRIES {
            if let Some(drawn) = Sampled::draw(directory, &mut random)
                && let tags = drawn.segment.bucket(drawn.at).tags()
                && tags.tag(drawn.slot) != 0
                && accept(tags, drawn.slot)
            {
                return Some(drawn);
            }
        }
        let start = directory.index(random.next());
        let buckets = (0..directory.n_words()).flat_map(|step| {
            let index = (start + step) & (directory.n_words() - 1);
            let segment = directory.segment(index).segment();
            (0..segment.n_buckets()).map(move |at| (segment, at))
        });
        for (segment, at) in buckets.take(max_walk) {
            let tags = segment.bucket(at).tags();
            if let Some(slot) = tags.occupied().find(|&slot| accept(tags, slot)) {
                return Some(Sampled { segment, at, slot });
            }
        }
        None
    }

    /// All entries, in the order of their buckets.
    pub fn iter(&self) -> impl Iterator<Item = EntryRef<'_>> {
        self.root().directory().into_iter().flat_map(DirectoryRef::segments).flat_map(|(_, word)| {
            let segment = word.segment();
            (0..segment.n_buckets()).flat_map(move |at| {
                let occupied = segment.bucket(at).tags().occupied();
                // SAFETY: the slots are occupied, and changing the entries takes the table mutably.
                occupied.map(move |slot| unsafe { segment.bucket(at).slot(slot).entry() })
            })
        })
    }

    /// Removes expired entries, from a position on through at most `max_buckets` buckets. Hands them out so
    /// that they are freed outside the hold. Returns the position to go on from, or `None` at the end.
    ///
    /// It only touches entries that have a deadline. An entry that lies before its home, because its segment
    /// wraps, may be passed over until the next round.
    pub fn expire_step(
        &mut self,
        from: Position,
        now: Millis,
        max_buckets: usize,
        expired: &mut Vec<EntryBox>,
        lasting: &mut Lasting,
    ) -> Option<Position> {
        let mut position = from.0;
        let mut left = max_buckets.max(1);
        while let Some(spot) = self.spot(position) {
            let segment = spot.segment;
            let first = segment.home(position);
            let last = segment.n_buckets().min(first.saturating_add(left));
            let before = expired.len();
            for at in first..last {
                while let Some(slot) = expired_slot(segment.bucket(at), now) {
                    expired.push(segment.remove(at, slot, self.roots.router()));
                }
                lasting.add(segment.bucket(at), now);
            }
            let next = segment.start_of(last, position);
            let removed = &expired[before..];
            if !removed.is_empty() {
                let counts = self.counts();
                counts.len.sub(removed.len());
                counts.n_deadlines.sub(removed.len());
                counts
                    .allocated_bytes
                    .sub(removed.iter().map(|entry| entry.as_ref().allocated_bytes()).sum::<usize>());
                spot.set_count(spot.count - removed.len());
                self.shrink(position);
            }
            left -= last - first;
            position = next?;
            if left == 0 {
                return Some(Position(position));
            }
        }
        None
    }

    /// Panics unless all invariants of the structure hold; for tests.
    #[doc(hidden)]
    pub fn check_invariants(&self) {
        let router = self.router();
        let (mut len, mut n_deadlines, mut bytes, mut n_deepest, mut indexes) = (0, 0, 0, 0, 0);
        if let Some(directory) = self.root().directory() {
            bytes += directory.allocated_bytes();
            for (first, word) in directory.segments() {
                let segment = word.segment();
                bytes += segment.allocated_bytes();
                n_deepest += (segment.depth() == directory.depth()) as u32;
                let words = 1 << (directory.depth() - segment.depth());
                assert_eq!(first % words, 0, "a segment's words are aligned");
                for index in first..first + words {
                    assert_eq!(directory.segment(index).segment().start(), segment.start());
                }
                indexes += words;
                let mut count = 0;
                let mut passed = vec![false; segment.n_buckets()];
                for at in 0..segment.n_buckets() {
                    let tags = segment.bucket(at).tags();
                    assert!(!tags.is_overflowed() || tags.is_full(), "an overflowed bucket is full");
                    for slot in 0..SLOTS {
                        if tags.tag(slot) == 0 {
                            assert!(!tags.has_deadline(slot), "an empty slot has no deadline");
                            assert!(segment.bucket(at).slot(slot).address().is_null());
                            continue;
                        }
                        let word = segment.bucket(at).slot(slot);
                        // SAFETY: the slot is occupied, and `self` is borrowed.
                        let entry = unsafe { word.entry() };
                        let place = router.place(entry.key());
                        assert_eq!(tags.tag(slot), place.tag());
                        assert!(word.agrees_with(place));
                        assert_eq!(tags.has_deadline(slot), entry.has_deadline());
                        assert_eq!(
                            directory.first_index(directory.index(place.position()), segment.depth()),
                            first
                        );
                        let mut on_the_way = segment.home(place.position());
                        while on_the_way != at {
                            assert!(segment.bucket(on_the_way).tags().is_overflowed());
                            passed[on_the_way] = true;
                            on_the_way = segment.next(on_the_way);
                        }
                        count += 1;
                        n_deadlines += entry.has_deadline() as usize;
                        bytes += entry.allocated_bytes();
                    }
                }
                assert_eq!(word.count(), count);
                assert!(count <= self.fill().full_count(segment.n_buckets()));
                len += count;
            }
            assert_eq!(indexes, directory.n_words());
            assert!(directory.depth() == 0 || n_deepest > 0, "the directory is no deeper than it must be");
            assert!(directory.depth() == 0 || n_deepest == directory.n_deepest().load(Relaxed));
            assert!(len > 0, "an empty table has no structure");
        }
        assert_eq!((self.len(), self.n_deadlines(), self.allocated_bytes()), (len, n_deadlines, bytes));
        assert_eq!(self.root().structure_bytes(), self.structure_bytes());
    }

    /// Returns the bytes of the structure alone; walks the directory.
    #[doc(hidden)]
    pub fn structure_bytes(&self) -> usize {
        self.root().directory().map_or(0, |directory| {
            let segments = directory.segments().map(|(_, word)| word.segment().allocated_bytes());
            directory.allocated_bytes() + segments.sum::<usize>()
        })
    }

    #[inline]
    fn root(&self) -> &Root {
        // SAFETY: the root is one of `self.roots`, which keeps it, or lives as long as the table.
        unsafe { self.root.as_ref() }
    }

    #[inline]
    fn fill(&self) -> Fill {
        self.roots.fill()
    }

    /// The table's counts.
    #[inline]
    pub fn counts(&self) -> &Counts {
        // SAFETY: the counts are among those of `self.roots`, which keeps them, or live as long as the table.
        unsafe { self.counts.as_ref() }
    }

    #[inline]
    fn segment_at(&self, position: u64) -> Option<Segment> {
        let directory = self.root().directory()?;
        Some(directory.segment(directory.index(position)).segment())
    }

    fn spot(&self, position: u64) -> Option<Spot> {
        let directory = self.root().directory()?;
        let segment = directory.segment(directory.index(position)).segment();
        let first = directory.first_index(directory.index(position), segment.depth());
        Some(Spot { directory, first, segment, count: directory.segment(first).count() })
    }

    /// Finds the segment of this position, after growing as much as the entry needs.
    fn spot_with_room(&mut self, position: u64) -> Spot {
        loop {
            let Some(spot) = self.spot(position) else {
                let directory = DirectoryRef::allocate(0);
                let segment = Segment::allocate(1, 0);
                directory.publish(0, segment, 0);
                self.root().publish(Some(directory));
                self.counts().allocated_bytes.add(directory.allocated_bytes() + segment.allocated_bytes());
                continue;
            };
            let n_buckets = spot.segment.n_buckets();
            if spot.count < self.fill().full_count(n_buckets) {
                return spot;
            } else if n_buckets < BUCKETS_MAX {
                self.resize(spot, self.fill().more_buckets(n_buckets));
            } else {
                self.split(spot);
            }
        }
    }

    fn resize(&mut self, spot: Spot, n_buckets: usize) {
        let new = Segment::allocate(n_buckets, spot.segment.depth());
        spot.segment.copy_into(&new, self.roots.router());
        spot.directory.publish(spot.first, new, spot.count);
        self.counts().allocated_bytes.add(new.allocated_bytes());
        self.retire_segment(spot.segment);
    }

    fn split(&mut self, spot: Spot) {
        let depth = spot.segment.depth();
        if depth == spot.directory.depth() {
            self.double_directory(spot.directory);
            let directory = self.root().directory().expect("a doubled directory is published");
            return self.split(Spot { directory, first: spot.first * 2, ..spot });
        }
        let directory = spot.directory;
        let n_high = spot.segment.count_high(self.roots.router());
        let n_low = spot.count - n_high;
        let low = Segment::allocate(self.fill().fitting_buckets(n_low), depth + 1);
        let high = Segment::allocate(self.fill().fitting_buckets(n_high), depth + 1);
        spot.segment.split_into(&low, &high, self.roots.router());
        directory.publish(spot.first, low, n_low);
        directory.publish(spot.first + (1 << (directory.depth() - depth - 1)), high, n_high);
        if depth + 1 == directory.depth() {
            let n_deepest = directory.n_deepest();
            n_deepest.store(n_deepest.load(Relaxed) + 2, Relaxed);
        }
        self.counts().allocated_bytes.add(low.allocated_bytes() + high.allocated_bytes());
        self.retire_segment(spot.segment);
    }

    fn double_directory(&mut self, old: DirectoryRef) {
        let new = DirectoryRef::allocate(old.depth() + 1);
        for (first, word) in old.segments() {
            new.publish(2 * first, word.segment(), word.count());
        }
        self.replace_directory(old, new);
    }

    fn halve_directory(&mut self, old: DirectoryRef) {
        let new = DirectoryRef::allocate(old.depth() - 1);
        let mut n_deepest = 0;
        for (first, word) in old.segments() {
            new.publish(first / 2, word.segment(), word.count());
            n_deepest += (word.segment().depth() == new.depth()) as u32;
        }
        new.n_deepest().store(n_deepest, Relaxed);
        self.replace_directory(old, new);
    }

    fn replace_directory(&mut self, old: DirectoryRef, new: DirectoryRef) {
        self.root().publish(Some(new));
        self.counts().allocated_bytes.add(new.allocated_bytes());
        self.counts().allocated_bytes.sub(old.allocated_bytes());
        // SAFETY: the root has just been turned away from it.
        unsafe { old.retire() };
    }

    fn retire_segment(&mut self, segment: Segment) {
        self.counts().allocated_bytes.sub(segment.allocated_bytes());
        // SAFETY: callers have published other segments for all its words, and moved its entries there.
        unsafe { segment.retire() };
    }

    /// Merges, shrinks or frees sparse structure after a removal at this position, but moves no more than
    /// about a segment's entries.
    fn shrink(&mut self, position: u64) {
        if self.is_empty() {
            return drop(self.detach());
        }
        let mut n_moved = 0;
        while n_moved < MERGE_MAX {
            let spot = self.spot(position).expect("a table with entries has structure");
            if n_moved == 0 && spot.count >= self.fill().sparse_count(spot.segment.n_buckets()) {
                return;
            }
            let Some(sibling) = self.sibling(spot).filter(|sibling| spot.count + sibling.count <= MERGE_MAX)
            else {
                let n_buckets = self.fill().fitting_buckets(spot.count);
                if n_moved == 0 && n_buckets < spot.segment.n_buckets() {
                    self.resize(spot, n_buckets);
                }
                return;
            };
            n_moved += (spot.count + sibling.count).max(1);
            self.merge(spot, sibling);
        }
    }

    /// The segment with the other half of the interval that this segment shares, if there is one.
    fn sibling(&self, spot: Spot) -> Option<Spot> {
        let depth = spot.segment.depth();
        if depth == 0 {
            return None;
        }
        let first = spot.first ^ (1 << (spot.directory.depth() - depth));
        let word = spot.directory.segment(first);
        let segment = word.segment();
        (segment.depth() == depth).then_some(Spot { first, segment, count: word.count(), ..spot })
    }

    fn merge(&mut self, one: Spot, other: Spot) {
        let directory = one.directory;
        let depth = one.segment.depth();
        let count = one.count + other.count;
        let merged = Segment::allocate(self.fill().fitting_buckets(count), depth - 1);
        for spot in [one, other] {
            spot.segment.copy_into(&merged, self.roots.router());
        }
        directory.publish(one.first.min(other.first), merged, count);
        self.counts().allocated_bytes.add(merged.allocated_bytes());
        self.retire_segment(one.segment);
        self.retire_segment(other.segment);
        if depth == directory.depth() {
            let n_deepest = directory.n_deepest().load(Relaxed) - 2;
            directory.n_deepest().store(n_deepest, Relaxed);
            if n_deepest == 0 {
                self.halve_directory(directory);
            }
        }
    }
}

impl Drop for Table {
    /// Frees all entries, however many. Call [`detach`](Self::detach) first to free them in steps.
    fn drop(&mut self) {
        drop(self.detach());
        self.root().unclaim();
    }
}

impl std::fmt::Debug for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Table")
            .field("len", &self.len())
            .field("n_deadlines", &self.n_deadlines())
            .finish_non_exhaustive()
    }
}

/// The slot in which an entry was found. A wrong one does no harm: it is only looked at first.
#[derive(Clone, Copy, Debug, Default)]
pub struct Hint {
    at: u8,
    slot: u8,
}

/// An entry in its table, to read, change, replace or remove.
pub struct SlotMut<'t> {
    table: &'t mut Table,
    segment: Segment,
    at: usize,
    slot: usize,
    place: Place,
}

impl<'t> SlotMut<'t> {
    /// The counts of the table.
    pub(crate) fn counts(&self) -> &Counts {
        self.table.counts()
    }

    /// The entry, to read.
    #[inline]
    pub fn entry(&self) -> EntryRef<'_> {
        // SAFETY: the slot is occupied, and changing the entry takes `self` mutably.
        unsafe { self.word().entry() }
    }

    /// The entry, to read for as long as the table is borrowed.
    #[inline]
    pub fn into_entry(self) -> EntryRef<'t> {
        // SAFETY: the slot is occupied, and the table stays borrowed mutably during 't, unused.
        unsafe { self.word().entry() }
    }

    /// Changes the entry, which may move. Bytes, deadline bit and counts follow, also if `change` panics.
    ///
    /// The key must stay the same.
    #[inline]
    pub fn modify<R>(&mut self, change: impl FnOnce(&mut EntryBox) -> R) -> R {
        // SAFETY: the slot is occupied. `WriteBack`'s drop overwrites it before the next read.
        let entry = ManuallyDrop::new(unsafe { self.word().into_entry() });
        let bytes_before = entry.as_ref().allocated_bytes();
        let mut out = WriteBack { slot: self, entry, bytes_before };
        change(&mut out.entry)
    }

    /// Changes the object that is the entry's value, if it is a `T`. The entry stays in place and only its
    /// bytes can change, so there is less to do than in [`modify`](Self::modify). The bytes follow also if
    /// `change` panics.
    #[inline]
    pub fn modify_object<T: Object, R>(&mut self, change: impl FnOnce(&mut T) -> R) -> Option<R> {
        // SAFETY: the slot is occupied, and as changing an object does not move its entry, it stays right.
        let mut entry = ManuallyDrop::new(unsafe { self.word().into_entry() });
        let bytes_before = entry.as_ref().object::<T>()?.allocated_bytes();
        let object = entry.object_mut::<T>()?;
        let recount = Recount { table_bytes: &self.table.counts().allocated_bytes, object, bytes_before };
        Some(change(recount.object))
    }

    /// Writes an inline string over an inline string, if it fits in place; returns whether it did. No count
    /// changes and nothing moves, so there is less to do than in [`modify`](Self::modify).
    #[inline]
    pub fn try_overwrite(&mut self, encoding: Encoding, value: &[u8]) -> bool {
        // SAFETY: the slot is occupied, and as overwriting does not move the entry, it stays right.
        let mut entry = ManuallyDrop::new(unsafe { self.word().into_entry() });
        entry.try_overwrite(encoding, value)
    }

    /// Replaces the entry by another with the same key. Hands the old one out so that it can be freed outside
    /// the hold.
    #[inline]
    pub fn replace(&mut self, entry: EntryBox) -> EntryBox {
        debug_assert_eq!(self.entry().key(), entry.as_ref().key());
        self.modify(|old| std::mem::replace(old, entry))
    }

    /// Sets or removes the deadline.
    pub fn set_deadline(&mut self, deadline: Option<Deadline>) {
        self.modify(|entry| entry.set_deadline(deadline));
    }

    /// The place of the entry.
    #[inline]
    pub(crate) fn place(&self) -> Place {
        self.place
    }

    /// The table, to read.
    #[inline]
    pub fn table(&self) -> &Table {
        self.table
    }

    /// Takes the entry out of the table.
    pub fn remove(self) -> EntryBox {
        let SlotMut { table, segment, at, slot, place } = self;
        table.remove_at(segment, at, slot, place.position())
    }

    #[inline]
    fn word(&self) -> SlotWord {
        self.segment.bucket(self.at).slot(self.slot)
    }
}

impl std::fmt::Debug for SlotMut<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.entry().fmt(f)
    }
}

/// An entry that is taken out of its slot for a change; its drop puts it back.
struct WriteBack<'a, 't> {
    slot: &'a mut SlotMut<'t>,
    entry: ManuallyDrop<EntryBox>,
    bytes_before: usize,
}

impl Drop for WriteBack<'_, '_> {
    #[inline(always)]
    fn drop(&mut self) {
        let SlotMut { table, segment, at, slot, place } = &mut *self.slot;
        // SAFETY: the entry is not used after this, its last use.
        let entry = unsafe { ManuallyDrop::take(&mut self.entry) };
        let (counts, bytes) = (table.counts(), entry.as_ref().allocated_bytes());
        if bytes != self.bytes_before {
            counts.allocated_bytes.replace(self.bytes_before, bytes);
        }
        let has_deadline = entry.as_ref().has_deadline();
        let bucket = segment.bucket(*at);
        let tags = bucket.tags();
        if tags.has_deadline(*slot) != has_deadline {
            bucket.set_tags(tags.with_deadline(*slot, has_deadline));
            if has_deadline {
                counts.n_deadlines.add(1);
            } else {
                counts.n_deadlines.sub(1);
            }
        }
        bucket.set_slot(*slot, SlotWord::new(entry, place.position()));
    }
}

/// An object during a change; its drop counts its bytes.
struct Recount<'a, T: Object> {
    object: &'a mut T,
    bytes_before: usize,
    table_bytes: &'a Bytes,
}

impl<T: Object> Drop for Recount<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        let bytes = self.object.allocated_bytes();
        if bytes != self.bytes_before {
            self.table_bytes.replace(self.bytes_before, bytes);
        }
    }
}

/// A segment and its position in the directory; valid until either changes.
#[derive(Clone, Copy)]
struct Spot {
    directory: DirectoryRef,
    /// The first of the segment's words.
    first: usize,
    segment: Segment,
    count: usize,
}

impl Spot {
    #[inline]
    fn set_count(&self, count: usize) {
        self.directory.set_segment(self.first, SegmentWord::new(self.segment, count));
    }
}

/// An occupied slot that was drawn at random; valid until the table changes.
struct Sampled {
    segment: Segment,
    at: usize,
    slot: usize,
}

impl Sampled {
    /// Draws a slot, occupied or not. None if it hits a further word of a segment, or a bucket that only a
    /// larger segment would have.
    fn draw(directory: DirectoryRef, random: &mut SplitMix) -> Option<Sampled> {
        // A single segment may have few buckets; of several, all are judged against the largest size.
        let n_buckets =
            if directory.depth() == 0 { directory.segment(0).segment().n_buckets() } else { BUCKETS_MAX };
        let index = directory.index(random.next());
        let segment = directory.segment(index).segment();
        let cell = random.below(n_buckets * SLOTS);
        let (at, slot) = (cell / SLOTS, cell % SLOTS);
        let is_there = directory.first_index(index, segment.depth()) == index && at < segment.n_buckets();
        is_there.then_some(Sampled { segment, at, slot })
    }

    /// The entry in the slot. `table` is the one that was sampled, and keeps it as it is.
    fn entry(self, _table: &Table) -> EntryRef<'_> {
        // SAFETY: the slot was found occupied, and changing the entry takes the table mutably.
        unsafe { self.segment.bucket(self.at).slot(self.slot).entry() }
    }
}

/// The entries with a deadline that were visited and have not expired.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lasting {
    /// The number of entries.
    pub n: u64,
    /// The sum of their remaining times, in milliseconds.
    pub millis: u64,
}

impl Lasting {
    /// Adds the counts of others.
    pub fn join(&mut self, other: Lasting) {
        self.n += other.n;
        self.millis = self.millis.saturating_add(other.millis);
    }

    fn add(&mut self, bucket: &bucket::Bucket, now: Millis) {
        let tags = bucket.tags();
        if !tags.has_deadlines() {
            return;
        }
        for slot in tags.occupied().filter(|&slot| tags.has_deadline(slot)) {
            // SAFETY: the slot is occupied, and the entry is only read here, by the holder.
            if let Some(Deadline(at)) = unsafe { bucket.slot(slot).entry() }.deadline() {
                self.n += 1;
                self.millis = self.millis.saturating_add(at.0.saturating_sub(now.0));
            }
        }
    }
}

/// A slot of the bucket whose entry's deadline has passed.
fn expired_slot(bucket: &bucket::Bucket, now: Millis) -> Option<usize> {
    let tags = bucket.tags();
    if !tags.has_deadlines() {
        return None;
    }
    tags.occupied().filter(|&slot| tags.has_deadline(slot)).find(|&slot| {
        // SAFETY: the slot is occupied, and the entry is only read here, by the holder.
        let deadline = unsafe { bucket.slot(slot).entry() }.deadline();
        deadline.is_some_and(|deadline| deadline.has_passed(now))
    })
}

/// A short random sequence from a seed (Steele, Lea and Flood, "Fast splittable pseudorandom number
/// generators", 2014).
struct SplitMix(u64);

impl SplitMix {
    #[inline]
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    #[inline]
    fn below(&mut self, bound: usize) -> usize {
        ((self.next() as u128 * bound as u128) >> 64) as usize
    }
}
