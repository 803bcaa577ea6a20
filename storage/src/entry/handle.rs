//! Handles: the address of an entry, and 20 bits of the handle's keeper, in one word.
//!
//! Entries lie at multiples of 16 below 2⁴⁸, so an address takes 44 bits of a word. A table's slots keep the
//! top of a position in the other bits, the tree of a sorted set a mark of a score.

use std::ptr::NonNull;

use super::{ADDRESS_BITS, ALIGN, EntryBox, EntryRef};

/// Bits of a handle that its keeper has to itself: the top ones.
pub(crate) const SPARE_BITS: u32 = 64 - ADDRESS_BITS + ALIGN.ilog2();

const ADDRESS_MASK: usize = (1 << (64 - SPARE_BITS)) - 1;

/// An entry's address and 20 bits. Having one is no right to read the entry: its reader must make sure of
/// that.
#[derive(Clone, Copy)]
pub(crate) struct EntryHandle(*mut u8);

// SAFETY: a handle is an address and some bits; only unsafe methods reach the memory at the address.
unsafe impl Send for EntryHandle {}
// SAFETY: as above.
unsafe impl Sync for EntryHandle {}

impl EntryHandle {
    /// A handle that keeps the top 20 bits of `spare`. `start` is an entry's.
    #[inline]
    pub(crate) fn new(start: NonNull<u8>, spare: u64) -> Self {
        EntryHandle(start.as_ptr().map_addr(|address| (address / ALIGN) | (spare as usize & !ADDRESS_MASK)))
    }

    /// A handle of a borrowed entry.
    #[inline]
    pub(crate) fn of(entry: EntryRef<'_>, spare: u64) -> Self {
        Self::new(entry.start, spare)
    }

    /// A handle from its word.
    #[inline]
    pub(crate) fn from_word(word: *mut u8) -> Self {
        EntryHandle(word)
    }

    /// The word, to be stored whole.
    #[inline]
    pub(crate) fn word(self) -> *mut u8 {
        self.0
    }

    /// Where the entry is.
    #[inline]
    pub(crate) fn address(self) -> *mut u8 {
        self.0.map_addr(|word| (word & ADDRESS_MASK) * ALIGN)
    }

    /// The 20 bits, as the top ones of a number that is 0 below.
    #[inline]
    pub(crate) fn spare(self) -> u64 {
        (self.0.addr() & !ADDRESS_MASK) as u64
    }

    /// The same entry's handle with the top 20 bits of another number.
    #[inline]
    pub(crate) fn with_spare(self, spare: u64) -> Self {
        EntryHandle(self.0.map_addr(|word| (word & ADDRESS_MASK) | (spare as usize & !ADDRESS_MASK)))
    }

    /// Whether both are of one entry.
    #[inline]
    pub(crate) fn is_of_entry_of(self, other: Self) -> bool {
        (self.0.addr() ^ other.0.addr()) & ADDRESS_MASK == 0
    }

    /// The entry, to be read.
    ///
    /// # Safety
    /// The entry is live, and nothing changes or frees it during 'a.
    #[inline]
    pub(crate) unsafe fn entry<'a>(self) -> EntryRef<'a> {
        debug_assert!(!self.address().is_null());
        // SAFETY: the handle has the address of an entry, which is never null, and the caller answers for 'a.
        unsafe { EntryRef::from_raw(NonNull::new_unchecked(self.address())) }
    }

    /// The entry, to be owned.
    ///
    /// # Safety
    /// The owner of the entry has given it up, and it is read through no other handle from now on.
    #[inline]
    pub(crate) unsafe fn into_entry(self) -> EntryBox {
        debug_assert!(!self.address().is_null());
        // SAFETY: the handle has the address of an entry, which is never null, and the caller hands it over.
        unsafe { EntryBox::from_raw(NonNull::new_unchecked(self.address())) }
    }
}
