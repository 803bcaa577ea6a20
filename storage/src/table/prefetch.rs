//! Prefetching in stages: what a thread does with a batch of keys before it runs their commands.
//!
//! Each stage reads what the one before it has asked the cache for, and asks for the next. Run stage by stage
//! over up to [`PREFETCH_MAX`] keys, the misses of all keys overlap. The stages need no hold: they read structure under an
//! epoch pin, see the table as it is or has just been, and never read an entry. What they ask for in vain costs
//! a little time and nothing else.

use crossbeam_epoch::Guard;

use super::{Table, bucket::Bucket, directory::Root};
use crate::{hash::Place, prefetch};

/// So many keys are fetched together: about as many lines as a core has under way at once, twice.
pub const PREFETCH_MAX: usize = 32;

impl Table {
    /// Fetches what look-ups at these places touch, [`PREFETCH_MAX`] of them at most.
    pub fn prefetch(&self, places: &[Place]) {
        let places = &places[..places.len().min(PREFETCH_MAX)];
        prefetch_behind_roots(places.len(), |index| (self.root(), places[index]));
    }
}

/// Runs the stages that follow the first for so many places, [`PREFETCH_MAX`] at most, each with its table's root.
#[inline(always)]
pub fn prefetch_behind_roots<'r>(n: usize, at: impl Fn(usize) -> (&'r Root, Place)) {
    debug_assert!(n <= PREFETCH_MAX);
    let pinned = &crossbeam_epoch::pin();
    for (root, place) in (0..n).map(&at) {
        root.prefetch_directory(place, pinned);
    }
    for (root, place) in (0..n).map(&at) {
        root.prefetch_bucket(place, pinned);
    }
    // One bit each of those that must be looked for behind their home.
    let mut further = 0u32;
    for index in 0..n {
        let (root, place) = at(index);
        further |= (root.prefetch_entries(place, pinned) as u32) << index;
    }
    while further != 0 {
        let (root, place) = at(further.trailing_zeros() as usize);
        root.prefetch_displaced(place, pinned);
        further &= further - 1;
    }
}

impl Root {
    /// Stage 1: asks for the root itself.
    #[inline]
    pub fn prefetch(&self) {
        prefetch::for_read(self.address());
    }

    /// Stage 2: reads the root, and asks for the directory's head and the word of the place.
    #[inline]
    fn prefetch_directory(&self, place: Place, _pinned: &Guard) {
        if let Some(directory) = self.directory_acquire() {
            prefetch::for_read(directory.word(directory.index(place.position())));
        }
    }

    /// Stage 3: reads the directory, and asks for the bucket.
    #[inline]
    fn prefetch_bucket(&self, place: Place, _pinned: &Guard) {
        if let Some(directory) = self.directory_acquire() {
            let segment = directory.segment_acquire(directory.index(place.position())).segment();
            prefetch::for_read(segment.bucket(segment.home(place.position())));
        }
    }

    /// Stage 4: reads the bucket, and asks for the first two lines of the entries that may be the key's. If there is none and
    /// the bucket has overflowed, asks for the next bucket, where a new entry may go to as well, and says so.
    #[inline]
    fn prefetch_entries(&self, place: Place, _pinned: &Guard) -> bool {
        let Some(directory) = self.directory_acquire() else { return false };
        let segment = directory.segment_acquire(directory.index(place.position())).segment();
        let home = segment.home(place.position());
        let bucket = segment.bucket(home);
        let is_further = !prefetch_matching(bucket, place) && bucket.tags().is_overflowed();
        if is_further {
            prefetch::for_read(segment.bucket(segment.next(home)));
        }
        is_further
    }

    /// Stage 5: reads the bucket next to home, for the tenth or so of the entries that are there.
    #[inline]
    fn prefetch_displaced(&self, place: Place, _pinned: &Guard) {
        if let Some(directory) = self.directory_acquire() {
            let segment = directory.segment_acquire(directory.index(place.position())).segment();
            prefetch_matching(segment.bucket(segment.next(segment.home(place.position()))), place);
        }
    }
}

/// Asks for the first two lines of a bucket's entries that may be at this place, and says whether there are any.
#[inline]
fn prefetch_matching(bucket: &Bucket, place: Place) -> bool {
    let mut any = false;
    for slot in bucket.tags().matching(place.tag()) {
        let word = bucket.slot(slot);
        if word.agrees_with(place) {
            prefetch::for_read(word.address());
            prefetch::for_read(word.address().wrapping_add(64));
            any = true;
        }
    }
    any
}
