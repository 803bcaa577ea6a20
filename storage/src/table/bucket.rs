//! Buckets: one cache line of seven entries.

use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering::Relaxed};

use crate::entry::{EntryBox, EntryHandle, EntryRef, SPARE_BITS};
use crate::table::hash::{Place, TAG_BEGINS_AT};

/// Entries a bucket.
pub(super) const SLOTS: usize = 7;

/// Position bits that a slot keeps besides the address of its entry: the top ones.
const SLOT_POSITION_BITS: u32 = SPARE_BITS - 1;

const _: () = assert!(SLOT_POSITION_BITS == TAG_BEGINS_AT, "the tag is what follows in the position");

/// Position bits of an entry that its bucket knows: those, and all of the tag's but the last, which is set
/// where the tag would be 0.
pub(super) const KNOWN_POSITION_BITS: u32 = SLOT_POSITION_BITS + 7;

/// The last spare bit of a slot: whether its entry extends into a second cache line. So no prefetch of that
/// line is in vain. With many small entries such a prefetch takes as long as one that is needed.
const SPANS_LINES: u64 = 1 << (64 - SPARE_BITS);

const EVERY_BYTE: u64 = 0x0101_0101_0101_0101;
const SLOT_HIGH_BITS: u64 = 0x0080_8080_8080_8080;
const LOW_BITS: u64 = 0x7f7f_7f7f_7f7f_7f7f;
const FIRST_DEADLINE: u32 = 56;
const OVERFLOWED: u64 = 1 << 63;

/// One line: a word of tags and marks, and seven slots.
///
/// Words are only ever read and written whole, as relaxed atomics, because prefetchers read them while the
/// holder writes. Word and slots need not agree for them: all that they do with a slot is to prefetch an
/// address.
#[repr(C, align(64))]
pub(super) struct Bucket {
    tags: AtomicU64,
    slots: [AtomicPtr<u8>; SLOTS],
}

/// The first word of a bucket: for each slot a byte that is 0 if the slot is empty and its entry's tag
/// otherwise; then a bit for each slot that says whether its entry has a deadline; then the overflow bit.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Tags(u64);

impl Tags {
    /// The slots with this tag, exactly.
    #[inline]
    pub(super) fn matching(self, tag: u8) -> SlotSet {
        let difference = self.0 ^ (EVERY_BYTE * tag as u64);
        // The sum has no carry between bytes, so a byte's high bit stays clear exactly if the byte is 0.
        let nonzero = ((difference & LOW_BITS) + LOW_BITS) | difference;
        SlotSet(!nonzero & SLOT_HIGH_BITS)
    }

    #[inline]
    pub(super) fn occupied(self) -> SlotSet {
        SlotSet((((self.0 & LOW_BITS) + LOW_BITS) | self.0) & SLOT_HIGH_BITS)
    }

    #[inline]
    pub(super) fn empty(self) -> SlotSet {
        self.matching(0)
    }

    #[inline]
    pub(super) fn is_full(self) -> bool {
        self.empty().0 == 0
    }

    #[inline]
    pub(super) fn tag(self, slot: usize) -> u8 {
        (self.0 >> (8 * slot)) as u8
    }

    #[inline]
    pub(super) fn has_deadline(self, slot: usize) -> bool {
        self.0 >> (FIRST_DEADLINE + slot as u32) & 1 != 0
    }

    #[inline]
    pub(super) fn has_deadlines(self) -> bool {
        (self.0 & !OVERFLOWED) >> FIRST_DEADLINE != 0
    }

    #[inline]
    pub(super) fn with_deadline(self, slot: usize, has: bool) -> Tags {
        let bit = 1 << (FIRST_DEADLINE + slot as u32);
        Tags(if has { self.0 | bit } else { self.0 & !bit })
    }

    /// Whether an entry whose home is here, or that passed by, is further on.
    #[inline]
    pub(super) fn is_overflowed(self) -> bool {
        self.0 & OVERFLOWED != 0
    }

    #[inline]
    pub(super) fn with_overflowed(self, overflowed: bool) -> Tags {
        Tags(if overflowed { self.0 | OVERFLOWED } else { self.0 & !OVERFLOWED })
    }

    #[inline]
    fn with_tag(self, slot: usize, tag: u8) -> Tags {
        Tags(self.0 & !(0xff << (8 * slot)) | (tag as u64) << (8 * slot))
    }
}

/// Some of a bucket's slots; iterates over their numbers.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct SlotSet(u64);

impl Iterator for SlotSet {
    type Item = usize;

    #[inline]
    fn next(&mut self) -> Option<usize> {
        if self.0 == 0 {
            return None;
        }
        let slot = self.0.trailing_zeros() as usize / 8;
        self.0 &= self.0 - 1;
        Some(slot)
    }
}

/// The content of a slot: the entry's address, the top 19 bits of its position at the place that they have in
/// a position, and whether it spans cache lines.
#[derive(Clone, Copy)]
pub(super) struct SlotWord(EntryHandle);

impl SlotWord {
    #[inline]
    pub(super) fn new(entry: EntryBox, position: u64) -> Self {
        let spans_lines = if entry.as_ref().spans_lines() { SPANS_LINES } else { 0 };
        SlotWord(EntryHandle::new(entry.into_raw(), position & !SPANS_LINES | spans_lines))
    }

    /// The address of the entry, to prefetch or, for the holder, to read.
    #[inline]
    pub(super) fn address(self) -> *mut u8 {
        self.0.address()
    }

    /// Whether the entry extends into the cache line after the one where it starts.
    #[inline]
    pub(super) fn spans_lines(self) -> bool {
        self.0.spare() & SPANS_LINES != 0
    }

    /// The position, cut to its top 19 bits.
    #[inline]
    fn position_top(self) -> u64 {
        self.0.spare() & !SPANS_LINES
    }

    /// Whether the entry may be at this place, as far as the slot knows.
    #[inline]
    pub(super) fn agrees_with(self, place: Place) -> bool {
        (self.0.word().addr() as u64 ^ place.position()) >> (64 - SLOT_POSITION_BITS) == 0
    }

    /// # Safety
    /// The slot is an occupied one of a live table, whose holder gives it out for as long as nothing changes
    /// the entry.
    #[inline]
    pub(super) unsafe fn entry<'a>(self) -> EntryRef<'a> {
        // SAFETY: an occupied slot has the address of a live entry, and the caller answers for 'a.
        unsafe { self.0.entry() }
    }

    /// Takes ownership of the entry.
    ///
    /// # Safety
    /// The slot was an occupied one of a live table. It is empty or overwritten now, or before the next read
    /// of it.
    #[inline]
    pub(super) unsafe fn into_entry(self) -> EntryBox {
        // SAFETY: an occupied slot owns its entry, and has given it up.
        unsafe { self.0.into_entry() }
    }
}

impl Bucket {
    #[inline]
    pub(super) fn tags(&self) -> Tags {
        Tags(self.tags.load(Relaxed))
    }

    #[inline]
    pub(super) fn set_tags(&self, tags: Tags) {
        self.tags.store(tags.0, Relaxed);
    }

    #[inline]
    pub(super) fn slot(&self, slot: usize) -> SlotWord {
        SlotWord(EntryHandle::from_word(self.slots[slot].load(Relaxed)))
    }

    /// Puts another entry of the same place into an occupied slot.
    #[inline]
    pub(super) fn set_slot(&self, slot: usize, word: SlotWord) {
        self.slots[slot].store(word.0.word(), Relaxed);
    }

    /// Fills an empty slot.
    #[inline]
    pub(super) fn fill(&self, slot: usize, content: Content) {
        debug_assert!(self.tags().tag(slot) == 0 && content.tag != 0);
        self.slots[slot].store(content.word.0.word(), Relaxed);
        self.set_tags(self.tags().with_tag(slot, content.tag).with_deadline(slot, content.has_deadline));
    }

    /// Empties an occupied slot.
    #[inline]
    pub(super) fn empty(&self, slot: usize) -> Content {
        let content = self.content(slot);
        self.set_tags(self.tags().with_tag(slot, 0).with_deadline(slot, false));
        self.slots[slot].store(std::ptr::null_mut(), Relaxed);
        content
    }

    /// The content of an occupied slot.
    #[inline]
    pub(super) fn content(&self, slot: usize) -> Content {
        let tags = self.tags();
        debug_assert!(tags.tag(slot) != 0);
        Content { word: self.slot(slot), tag: tags.tag(slot), has_deadline: tags.has_deadline(slot) }
    }

    #[inline]
    pub(super) fn contents(&self) -> impl Iterator<Item = Content> {
        self.tags().occupied().map(|slot| self.content(slot))
    }
}

/// An occupied slot with its tag and marks; moves between buckets unchanged.
#[derive(Clone, Copy)]
pub(super) struct Content {
    pub(super) word: SlotWord,
    pub(super) tag: u8,
    pub(super) has_deadline: bool,
}

impl Content {
    /// The entry's position, cut to its top [`KNOWN_POSITION_BITS`].
    #[inline]
    pub(super) fn position_top(self) -> u64 {
        self.word.position_top() | u64::from(self.tag >> 1) << (64 - KNOWN_POSITION_BITS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_match_exactly() {
        let mut state = 1u64;
        for _ in 0..20_000 {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            // Few different bytes, so that neighbours are often equal or off by one.
            let word = state & 0xff01_0281_8000_ff01 | (state >> 32) & 0x0080_0000_017f;
            let tags = Tags(word);
            for tag in [0, 1, 2, 0x7f, 0x80, 0x81, 0xff] {
                let expected: Vec<_> = (0..SLOTS).filter(|&slot| tags.tag(slot) == tag).collect();
                assert_eq!(tags.matching(tag).collect::<Vec<_>>(), expected);
            }
            let expected: Vec<_> = (0..SLOTS).filter(|&slot| tags.tag(slot) != 0).collect();
            assert_eq!(tags.occupied().collect::<Vec<_>>(), expected);
            let any = (0..SLOTS).any(|slot| tags.has_deadline(slot));
            assert_eq!(tags.has_deadlines(), any);
        }
    }

    #[test]
    fn a_bucket_is_one_line() {
        assert_eq!((size_of::<Bucket>(), align_of::<Bucket>(), SLOT_POSITION_BITS), (64, 64, 19));
    }

    #[test]
    fn a_slot_keeps_the_address_and_the_top_of_the_position() {
        let entry = EntryBox::string(b"key", b"value");
        let word = SlotWord::new(entry, 0xabcd_f123_4567_89ab);
        assert_eq!(word.position_top(), 0xabcd_e000_0000_0000);
        assert!(word.agrees_with(Place(0xabcd_efff_ffff_ffff)));
        assert!(!word.agrees_with(Place(0xabcd_d123_4567_89ab)));
        // SAFETY: the slot owns the entry just made, and is not used again.
        let entry = unsafe { word.into_entry() };
        assert_eq!(entry.as_ref().key(), b"key");
    }

    #[test]
    fn word_and_tag_tell_the_top_of_the_position() {
        // With every tag, that which stands for 0 among them.
        for bits in 0..256 {
            let place = Place(0xabcd_e000_0000_0000 | bits << (64 - TAG_BEGINS_AT - 8) | 0x1f_ffff_ffff);
            let entry = EntryBox::string(b"key", b"value");
            let word = SlotWord::new(entry, place.position());
            let content = Content { word, tag: place.tag(), has_deadline: false };
            assert_ne!(content.tag, 0);
            assert_eq!(
                content.position_top(),
                place.position() & !(u64::MAX >> KNOWN_POSITION_BITS),
                "{bits}"
            );
            // SAFETY: the slot owns the entry just made, and is not used again.
            drop(unsafe { word.into_entry() });
        }
    }

    #[test]
    fn a_slot_knows_the_entries_that_span_lines() {
        for len in 0..300 {
            let entry = EntryBox::string(b"key", &vec![b'v'; len]);
            let n_bytes = entry.as_ref().allocated_bytes();
            let word = SlotWord::new(entry, 0);
            let first_line = word.address().addr() / 64;
            let last_line = (word.address().addr() + n_bytes - 1) / 64;
            assert_eq!(word.spans_lines(), first_line != last_line, "{len} bytes");
            // SAFETY: the slot owns the entry just made, and is not used again.
            drop(unsafe { word.into_entry() });
        }
    }
}
