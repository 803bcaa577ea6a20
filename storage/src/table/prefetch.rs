//! Prefetching in stages: what a thread does with a batch of keys before it runs their commands.
//!
//! Each stage reads what the one before it has asked the cache for, and asks for the next. Run stage by stage
//! over up to [`PREFETCH_MAX`] keys, the misses of all keys overlap. The stages need no hold: they read structure under an
//! epoch pin, see the table as it is or has just been, and never read an entry. What they ask for in vain costs
//! a little time and nothing else.

use crossbeam_epoch::Guard;

use super::{Table, directory::Root};
use crate::{hash::Place, prefetch};

/// So many keys are fetched together: about as many lines as a core has under way at once, twice.
pub const PREFETCH_MAX: usize = 32;

impl Table {
    /// Fetches what look-ups at these places touch, [`PREFETCH_MAX`] of them at most.
    pub fn prefetch(&self, places: &[Place]) {
        let places = &places[..places.len().min(PREFETCH_MAX)];
        let pinned = &crossbeam_epoch::pin();
        for &place in places {
            self.root().prefetch_directory(place, pinned);
        }
        for &place in places {
            self.root().prefetch_bucket(place, pinned);
        }
        for &place in places {
            self.root().prefetch_entries(place, pinned);
        }
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
    pub fn prefetch_directory(&self, place: Place, _pinned: &Guard) {
        if let Some(directory) = self.directory_acquire() {
            prefetch::for_read(directory.word(directory.index(place.position())));
        }
    }

    /// Stage 3: reads the directory, and asks for the bucket.
    #[inline]
    pub fn prefetch_bucket(&self, place: Place, _pinned: &Guard) {
        if let Some(directory) = self.directory_acquire() {
            let segment = directory.segment_acquire(directory.index(place.position())).segment();
            prefetch::for_read(segment.bucket(segment.home(place.position())));
        }
    }

    /// Stage 4: reads the bucket, and asks for the first two lines of the entries that may be the key's.
    ///
    /// It looks no further than the home bucket, where all but a few entries are.
    #[inline]
    pub fn prefetch_entries(&self, place: Place, _pinned: &Guard) {
        if let Some(directory) = self.directory_acquire() {
            let segment = directory.segment_acquire(directory.index(place.position())).segment();
            let bucket = segment.bucket(segment.home(place.position()));
            for slot in bucket.tags().matching(place.tag()) {
                let word = bucket.slot(slot);
                if word.agrees_with(place) {
                    prefetch::for_read(word.address());
                    prefetch::for_read(word.address().wrapping_add(64));
                }
            }
        }
    }
}
