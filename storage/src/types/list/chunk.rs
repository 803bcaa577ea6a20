//! Chunks: the pieces of a large list.

use std::ops::Range;

use super::{ListEnd, Part, outermost, remove_hits};
use crate::{
    entry::{Pinned, class_bytes},
    types::packed::{self, At, Element, Packed, Splice},
};

/// The bytes that packing adds to a text's length, as Redis estimates it before it adds one.
const PACKING_BYTES: usize = 8;

/// The most bytes of a chunk whose limit is a number of elements.
const COUNTED_MAX_BYTES: usize = 8192;

/// The limit of packing: `list-max-listpack-size`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ChunkLimit {
    /// A number of bytes.
    Bytes(usize),
    /// A number of elements.
    Elements(usize),
}

impl ChunkLimit {
    /// The limit of the setting: a number of elements, or a class from -1 (4 KiB) to -5 (64 KiB).
    pub fn of(setting: i64) -> Self {
        match usize::try_from(setting) {
            Ok(n) => ChunkLimit::Elements(n.max(1)),
            Err(_) => ChunkLimit::Bytes(4096 << (-1 - setting.max(-5))),
        }
    }

    /// Whether this number of elements, packed in this number of bytes, is within the limit.
    pub fn admits(self, n_bytes: usize, n_elements: usize) -> bool {
        match self {
            ChunkLimit::Bytes(max) => n_bytes <= max,
            ChunkLimit::Elements(max) => n_elements <= max && n_bytes <= COUNTED_MAX_BYTES,
        }
    }

    /// Whether they are within a part of the limit (2: half). This decides whether a chunk that is alone
    /// becomes a small list.
    pub fn admits_of(self, part: usize, n_bytes: usize, n_elements: usize) -> bool {
        match self {
            ChunkLimit::Bytes(max) => n_bytes <= max / part,
            ChunkLimit::Elements(max) => n_elements <= max / part,
        }
    }

    /// Whether a text is too long to lie among others.
    pub fn is_exceeded_by(self, text: &[u8]) -> bool {
        !self.admits(text.len(), 1)
    }

    /// Whether replaced elements have grown a chunk so far beyond the limit that it should be cut.
    pub fn is_far_exceeded(self, n_bytes: usize) -> bool {
        match self {
            ChunkLimit::Bytes(max) => n_bytes > 2 * max,
            ChunkLimit::Elements(_) => n_bytes > 2 * COUNTED_MAX_BYTES,
        }
    }
}

/// A piece of a large list. It is never empty but for a moment within an operation.
pub(super) enum Chunk {
    /// Elements one after the other.
    Packed(PackedChunk),
    /// The text of an element that is too long to be packed.
    Plain(Pinned),
}

impl Chunk {
    /// A chunk of one element.
    pub fn of(text: &[u8], limit: ChunkLimit) -> Self {
        if limit.is_exceeded_by(text) {
            return Chunk::Plain(Pinned::from_slice(text));
        }
        let capacity = (packed::EMPTY.len() + text.len() + PACKING_BYTES).next_power_of_two();
        let mut chunk = PackedChunk::with_capacity(capacity, packed::EMPTY, ListEnd::Right, 0);
        chunk.push(ListEnd::Right, text);
        Chunk::Packed(chunk)
    }

    /// The placeholder of a chunk that an operation has taken out, until it closes the gap.
    pub fn gap() -> Self {
        Chunk::Packed(PackedChunk { bytes: Vec::new(), start: 0, n_elements: 0 })
    }

    /// The number of elements.
    #[inline]
    pub fn len(&self) -> usize {
        match self {
            Chunk::Packed(packed) => packed.n_elements as usize,
            Chunk::Plain(_) => 1,
        }
    }

    /// The bytes that the chunk owns besides itself.
    #[inline]
    pub fn allocated_bytes(&self) -> usize {
        match self {
            Chunk::Packed(packed) => packed.allocated_bytes(),
            Chunk::Plain(text) => text.allocated_bytes(),
        }
    }

    /// Whether a text may join the chunk.
    #[inline]
    pub fn admits(&self, text: &[u8], limit: ChunkLimit) -> bool {
        match self {
            Chunk::Packed(packed) => packed.admits(text, limit),
            Chunk::Plain(_) => false,
        }
    }

    /// The contents of the chunk.
    #[inline]
    pub fn part(&self) -> Part<'_> {
        match self {
            Chunk::Packed(packed) => Part::Packed(packed.view()),
            Chunk::Plain(text) => Part::Plain(text),
        }
    }

    /// An equal chunk without room to grow.
    pub fn duplicate(&self) -> Self {
        match self {
            Chunk::Packed(packed) => Chunk::Packed(PackedChunk::copy_of(packed.view())),
            Chunk::Plain(text) => Chunk::Plain(text.clone()),
        }
    }
}

/// Packed elements with room to grow at either end, so that additions and removals there do not move the
/// other elements.
///
/// The bytes in use are at any time those that Redis would have in the node.
pub(super) struct PackedChunk {
    /// In use from `start` on. The room at the left end is before that, the room at the right end is spare
    /// capacity.
    bytes: Vec<u8>,
    start: u32,
    n_elements: u32,
}

impl PackedChunk {
    /// A chunk of packed elements, without room to grow.
    pub fn copy_of(packed: Packed<'_>) -> Self {
        let capacity = class_bytes(packed.bytes().len());
        Self::with_capacity(capacity, packed.bytes(), ListEnd::Right, packed.len() as u32)
    }

    /// A chunk of `n_elements` packed elements in an allocation of `capacity` bytes, with all room at one
    /// end.
    fn with_capacity(capacity: usize, packed: &[u8], room_at: ListEnd, n_elements: u32) -> Self {
        let start = match room_at {
            ListEnd::Left => capacity - packed.len(),
            ListEnd::Right => 0,
        };
        let mut bytes = Vec::with_capacity(capacity);
        bytes.resize(start, 0);
        bytes.extend_from_slice(packed);
        let start = u32::try_from(start).expect("chunks are far smaller than 4 GiB");
        Self { bytes, start, n_elements }
    }

    /// The bytes that it owns besides itself.
    #[inline]
    pub fn allocated_bytes(&self) -> usize {
        self.bytes.capacity()
    }

    /// Whether a text may join the others.
    #[inline]
    pub fn admits(&self, text: &[u8], limit: ChunkLimit) -> bool {
        let n_bytes = self.bytes().len() + text.len() + PACKING_BYTES;
        !limit.is_exceeded_by(text) && limit.admits(n_bytes, self.n_elements as usize + 1)
    }

    /// The elements.
    #[inline]
    pub fn view(&self) -> Packed<'_> {
        Packed::new(self.bytes())
    }

    /// Adds an element at an end.
    #[inline]
    pub fn push(&mut self, end: ListEnd, text: &[u8]) {
        match end {
            ListEnd::Left => packed::push_front(self, text),
            ListEnd::Right => packed::push(self, text),
        }
        self.n_elements += 1;
    }

    /// Adds an element before the one at `at`, or at the end.
    pub fn insert(&mut self, at: At, text: &[u8]) {
        packed::insert(self, at, text);
        self.n_elements += 1;
    }

    /// Writes another text in place of the element at `at`.
    pub fn replace(&mut self, at: At, text: &[u8]) {
        packed::replace(self, at, text);
    }

    /// Removes up to `n` elements from the one at `at` on.
    #[inline]
    pub fn remove(&mut self, at: At, n: usize) {
        self.n_elements -= packed::remove(self, at, n) as u32;
    }

    /// Removes `n` of its elements, or fewer if it has fewer, at an end.
    #[inline]
    pub fn remove_at_end(&mut self, end: ListEnd, n: usize) {
        if let Some(at) = outermost(self.view(), end, n) {
            self.remove(at, n);
        }
    }

    /// Removes up to `max` elements that are equal to `wanted`, from an end on; returns how many.
    pub fn remove_hits(&mut self, wanted: Element<'_>, from: ListEnd, max: usize) -> usize {
        let n_removed = remove_hits(self, wanted, from, max);
        self.n_elements -= n_removed as u32;
        n_removed
    }

    /// Cuts the chunk in two: the elements from the one at `at` on are the other.
    pub fn split_off(&mut self, at: At) -> PackedChunk {
        let n_behind = self.view().iter_from(at).count();
        let mut behind = PackedChunk::copy_of(self.view());
        behind.remove_at_end(ListEnd::Left, self.n_elements as usize - n_behind);
        self.remove(at, n_behind);
        behind.fit();
        behind
    }

    /// Appends the elements of the next chunk.
    pub fn absorb(&mut self, behind: &PackedChunk) {
        packed::extend(self, behind.view());
        self.n_elements += behind.n_elements;
    }

    /// Frees the room to grow.
    pub fn fit(&mut self) {
        let capacity = class_bytes(self.bytes().len());
        if capacity < self.bytes.capacity() {
            self.relocate(capacity, ListEnd::Right);
        }
    }

    /// Panics unless the elements are well formed, their number is right, and they take no more memory than
    /// allowed.
    #[cfg(test)]
    pub fn check_invariants(&self) {
        let packed = Packed::check(self.bytes()).expect("the elements are well formed");
        assert_eq!(packed.iter().count(), self.n_elements as usize);
        let n_bytes = self.bytes().len();
        // A small list that becomes large may come from another setting.
        assert!(!ChunkLimit::of(-5).is_far_exceeded(n_bytes), "{n_bytes} bytes in a chunk");
        assert!(self.bytes.capacity() <= (4 * n_bytes).next_power_of_two(), "{n_bytes} bytes waste room");
    }

    /// Makes room for `more` bytes at an end.
    ///
    /// Capacities are powers of two, of which the limits of bytes are some: a chunk that fills up ends with
    /// the room that it needs.
    fn make_room(&mut self, end: ListEnd, more: usize) {
        let room = match end {
            ListEnd::Left => self.start as usize,
            ListEnd::Right => self.bytes.capacity() - self.bytes.len(),
        };
        if room < more {
            self.relocate((self.bytes().len() + more).next_power_of_two(), end);
        }
    }

    /// Frees most of the room when it is more than three times the bytes in use.
    fn give_room_back(&mut self) {
        let n_bytes = self.bytes().len();
        if n_bytes < self.bytes.capacity() / 4 {
            let behind = self.bytes.capacity() - self.bytes.len();
            let larger = if self.start as usize > behind { ListEnd::Left } else { ListEnd::Right };
            self.relocate((2 * n_bytes).next_power_of_two(), larger);
        }
    }

    fn relocate(&mut self, capacity: usize, room_at: ListEnd) {
        *self = Self::with_capacity(capacity, self.bytes(), room_at, self.n_elements);
    }
}

/// The shorter side of the replaced part moves.
impl Splice for PackedChunk {
    #[inline]
    fn bytes(&self) -> &[u8] {
        &self.bytes[self.start as usize..]
    }

    #[inline]
    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start as usize..]
    }

    #[inline]
    fn splice(&mut self, range: Range<usize>, len: usize) {
        let (n_before, n_behind) = (range.start, self.bytes().len() - range.end);
        let moving = if n_before < n_behind { ListEnd::Left } else { ListEnd::Right };
        if len > range.len() {
            let more = len - range.len();
            self.make_room(moving, more);
            let (start, end) = (self.start as usize, self.bytes.len());
            match moving {
                ListEnd::Left => {
                    self.bytes.copy_within(start..start + n_before, start - more);
                    self.start -= more as u32;
                }
                ListEnd::Right => {
                    self.bytes.resize(end + more, 0);
                    self.bytes.copy_within(end - n_behind..end, end - n_behind + more);
                }
            }
        } else if len < range.len() {
            let less = range.len() - len;
            let (start, end) = (self.start as usize, self.bytes.len());
            match moving {
                ListEnd::Left => {
                    self.bytes.copy_within(start..start + n_before, start + less);
                    self.start += less as u32;
                }
                ListEnd::Right => {
                    self.bytes.copy_within(end - n_behind..end, end - n_behind - less);
                    self.bytes.truncate(end - less);
                }
            }
            self.give_room_back();
        }
    }
}
