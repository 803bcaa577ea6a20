//! The entries that a table held before it was flushed.

use super::directory::DirectoryRef;
use crate::entry::EntryBox;

/// All entries of a table that has been emptied at once, to be freed in steps. As an iterator it hands them
/// out. Its drop frees the rest.
pub struct Detached {
    directory: Option<DirectoryRef>,
    /// The first word of the segment that is being emptied, and its bucket.
    index: usize,
    at: usize,
    len: usize,
}

// SAFETY: only this leads to the structure, and it owns the entries in it. Prefetchers that still read the
// structure read atomics.
unsafe impl Send for Detached {}

impl Detached {
    pub(super) fn new(directory: Option<DirectoryRef>, len: usize) -> Self {
        Detached { directory, index: 0, at: 0, len }
    }
}

impl Iterator for Detached {
    type Item = EntryBox;

    fn next(&mut self) -> Option<EntryBox> {
        let directory = self.directory?;
        while self.index < directory.n_words() {
            let segment = directory.segment(self.index).segment();
            while self.at < segment.n_buckets() {
                let bucket = segment.bucket(self.at);
                if let Some(slot) = bucket.tags().occupied().next() {
                    self.len -= 1;
                    // SAFETY: the slot was occupied, and is emptied here.
                    return Some(unsafe { bucket.empty(slot).word.into_entry() });
                }
                self.at += 1;
            }
            self.index += 1 << (directory.depth() - segment.depth());
            self.at = 0;
            // SAFETY: no root leads to the directory any more, and we never come back to the segment.
            unsafe { segment.retire() };
        }
        self.directory = None;
        // SAFETY: no root leads to the directory any more, and it has just been forgotten here.
        unsafe { directory.retire() };
        None
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.len, Some(self.len))
    }
}

impl ExactSizeIterator for Detached {}

impl Drop for Detached {
    fn drop(&mut self) {
        self.for_each(drop);
    }
}

impl std::fmt::Debug for Detached {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Detached").field("len", &self.len).finish_non_exhaustive()
    }
}
