//! Prefetching in stages: the work on a batch of keys before their commands run.
//!
//! Each stage reads the memory that the one before it has requested, and requests the next. Run stage by
//! stage over up to [`PREFETCH_MAX`] keys, the misses of all keys overlap. The stages need no hold. They read
//! structure under an epoch pin, see the table as it is or has just been, and never read an entry. A request
//! in vain costs a little time and nothing else.

use std::sync::atomic::AtomicPtr;

use crossbeam_epoch::Guard;

use super::{
    bucket::Bucket,
    directory::{Root, SegmentWord},
};
use crate::table::{hash::Place, prefetch};

/// The number of keys that are fetched together: about twice the cache lines that a core has under way at
/// once.
pub const PREFETCH_MAX: usize = 32;

/// Runs the stages that follow the first for `n` places, [`PREFETCH_MAX`] at most, each with its table's
/// root.
#[inline(always)]
pub fn prefetch_behind_roots<'r>(n: usize, at: impl Fn(usize) -> (&'r Root, Place)) {
    debug_assert!(n <= PREFETCH_MAX);
    // A stage's findings for the next one may be read as long as the thread is pinned.
    let pinned = &crossbeam_epoch::pin();
    let (mut words, mut buckets) = ([None; PREFETCH_MAX], [None; PREFETCH_MAX]);
    let (words, buckets) = (&mut words[..n], &mut buckets[..n]);
    for (index, word) in words.iter_mut().enumerate() {
        let (root, place) = at(index);
        *word = root.prefetch_word(place, pinned);
    }
    for (index, (bucket, word)) in buckets.iter_mut().zip(&*words).enumerate() {
        *bucket = word.map(|word| prefetch_home(word, at(index).1, pinned));
    }
    // One bit for each place that must be searched past its home.
    let mut further = 0u32;
    for (index, home) in buckets.iter().enumerate() {
        further |= (home.is_some_and(|home| prefetch_entries(home, at(index).1)) as u32) << index;
    }
    for index in bits(further) {
        buckets[index] = words[index].map(|word| prefetch_neighbour(word, at(index).1, pinned));
    }
    for index in bits(further) {
        if let Some(neighbour) = buckets[index] {
            prefetch_matching(neighbour, at(index).1);
        }
    }
}

/// The numbers of the bits that are set.
#[inline(always)]
fn bits(mut set: u32) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let lowest = (set != 0).then(|| set.trailing_zeros() as usize);
        set &= set.wrapping_sub(1);
        lowest
    })
}

impl Root {
    /// Stage 1: asks for the root itself.
    #[inline]
    pub fn prefetch(&self) {
        prefetch::for_read(self.address());
    }

    /// The bytes of the table's structure as it is or has just been. Walks the directory, and needs no hold.
    pub fn structure_bytes(&self) -> usize {
        let pinned = &crossbeam_epoch::pin();
        let Some(directory) = self.directory_acquire() else { return 0 };
        let (mut bytes, mut index) = (directory.allocated_bytes(), 0);
        while index < directory.n_words() {
            let segment = SegmentWord::acquire(directory.word_for(index, pinned)).segment();
            bytes += segment.allocated_bytes();
            // A segment that was split meanwhile is as deep as the next directory.
            index += 1 << directory.depth().saturating_sub(segment.depth());
        }
        bytes
    }

    /// Stage 2: reads the root, and asks for the directory's word of the place.
    #[inline(always)]
    fn prefetch_word<'g>(&self, place: Place, pinned: &'g Guard) -> Option<&'g AtomicPtr<Bucket>> {
        let directory = self.directory_acquire()?;
        let word = directory.word_for(directory.index(place.position()), pinned);
        prefetch::for_read(word);
        Some(word)
    }
}

/// Stage 3: reads a word of a directory, and asks for the place's home.
#[inline(always)]
fn prefetch_home<'g>(word: &AtomicPtr<Bucket>, place: Place, pinned: &'g Guard) -> &'g Bucket {
    let segment = SegmentWord::acquire(word).segment();
    let home = segment.bucket_for(segment.home(place.position()), pinned);
    prefetch::for_read(home);
    home
}

/// Stage 4: reads the home, and requests the first one or two cache lines of the entries that may be the
/// key's. Returns whether there is none and the bucket has overflowed.
#[inline(always)]
fn prefetch_entries(home: &Bucket, place: Place) -> bool {
    !prefetch_matching(home, place) && home.tags().is_overflowed()
}

/// Stage 5: requests the bucket next to the home, which has about a tenth of the entries, old or new. After
/// it that bucket is read like the home.
#[inline(always)]
fn prefetch_neighbour<'g>(word: &AtomicPtr<Bucket>, place: Place, pinned: &'g Guard) -> &'g Bucket {
    let segment = SegmentWord::acquire(word).segment();
    let neighbour = segment.bucket_for(segment.next(segment.home(place.position())), pinned);
    prefetch::for_read(neighbour);
    neighbour
}

/// Requests the first one or two cache lines of a bucket's entries that may be at this place. Returns whether
/// there are any.
#[inline]
fn prefetch_matching(bucket: &Bucket, place: Place) -> bool {
    let mut any = false;
    for slot in bucket.tags().matching(place.tag()) {
        let word = bucket.slot(slot);
        if word.agrees_with(place) {
            prefetch::for_read(word.address());
            if word.spans_lines() {
                prefetch::for_read(word.address().wrapping_add(64));
            }
            any = true;
        }
    }
    any
}
