//! Prefetching in stages: what a thread does with a batch of keys before it runs their commands.
//!
//! Each stage reads what the one before it has asked the cache for, and asks for the next. Run stage by stage
//! over up to 32 keys, the misses of all keys overlap. The stages need no hold: they read structure under an
//! epoch pin, see the table as it is or has just been, and never read an entry. What they ask for in vain costs
//! a little time and nothing else.

use crossbeam_epoch::Guard;

use super::directory::Root;
use crate::hash::Place;

impl Root {
    /// Stage 1: asks for the root itself.
    #[inline]
    pub fn prefetch(&self) {
        prefetch_line(self.address());
    }

    /// Stage 2: reads the root, and asks for the directory's head and the word of the place.
    #[inline]
    pub fn prefetch_directory(&self, place: Place, _pinned: &Guard) {
        if let Some(directory) = self.directory_acquire() {
            prefetch_line(directory.word(directory.index(place.position())));
        }
    }

    /// Stage 3: reads the directory, and asks for the bucket.
    #[inline]
    pub fn prefetch_bucket(&self, place: Place, _pinned: &Guard) {
        if let Some(directory) = self.directory_acquire() {
            let segment = directory.segment_acquire(directory.index(place.position())).segment();
            prefetch_line(segment.bucket(segment.home(place.position())));
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
                    prefetch_line(word.address());
                    prefetch_line(word.address().wrapping_add(64));
                }
            }
        }
    }
}

/// Asks for the line at an address, which need not be valid.
#[inline]
fn prefetch_line<T>(address: *const T) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: prefetching has no effect but on caches, whatever the address; SSE is part of x86-64.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) };
    }
    // Elsewhere the intrinsics are not stable yet.
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}
