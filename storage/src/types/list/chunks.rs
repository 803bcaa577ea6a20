//! The large form of a list: a deque of chunks.
//!
//! An element at an end is reached at once, one in the middle by the chunks' counts, from the nearer end. A
//! chunk holds the elements of one node of Redis's list, whatever was done before, because the number of
//! nodes decides when a list becomes small again.

use std::{
    collections::{VecDeque, vec_deque},
    ops::Range,
};

use super::{
    ListEnd, Part, PartElements, Side,
    chunk::{Chunk, ChunkLimit, PackedChunk},
};
use crate::{
    entry::Object,
    memory::{
        reclaim,
        teardown::{Pieces, Rubble},
    },
    types::packed::{self, Element, Packed, Splice},
};

/// The elements of a large list.
pub(super) struct Chunks {
    chunks: VecDeque<Chunk>,
    n_elements: usize,
    /// The bytes that the chunks own besides themselves.
    chunk_bytes: usize,
    /// The setting at the time when the list became large; a change of it is for the lists that do so later.
    limit: ChunkLimit,
}

impl Object for Chunks {
    fn allocated_bytes(&self) -> usize {
        self.chunks.capacity() * size_of::<Chunk>() + self.chunk_bytes
    }

    fn duplicate(&self) -> Self {
        Self::of(self.chunks.iter().map(Chunk::duplicate).collect(), self.limit)
    }

    fn demolish(self) -> Box<dyn Rubble> {
        Pieces::boxed(self.chunks.into_iter(), |chunk| {
            let bytes = chunk.allocated_bytes();
            reclaim::free_piece(chunk, bytes)
        })
    }
}

impl Chunks {
    /// The large form of a packed list.
    pub fn of_packed(packed: Packed<'_>, limit: ChunkLimit) -> Self {
        let chunk = (!packed.is_empty()).then(|| Chunk::Packed(PackedChunk::copy_of(packed)));
        Self::of(chunk.into_iter().collect(), limit)
    }

    fn of(chunks: VecDeque<Chunk>, limit: ChunkLimit) -> Self {
        let n_elements = chunks.iter().map(Chunk::len).sum();
        let chunk_bytes = chunks.iter().map(Chunk::allocated_bytes).sum();
        Self { chunks, n_elements, chunk_bytes, limit }
    }

    /// The number of elements.
    #[inline]
    pub fn len(&self) -> usize {
        self.n_elements
    }

    /// All chunks.
    pub fn iter(&self) -> vec_deque::Iter<'_, Chunk> {
        self.chunks.iter()
    }

    /// The elements from an index on: those of the chunk that contains it, and the chunks after it.
    pub fn from(&self, index: usize) -> (PartElements<'_>, vec_deque::Iter<'_, Chunk>) {
        match self.locate(index) {
            Some((at, within)) => (self.chunks[at].part().elements_from(within), self.chunks.range(at + 1..)),
            None => (PartElements::Plain(None), vec_deque::Iter::default()),
        }
    }

    /// The packed elements, if they are a single chunk.
    pub fn only(&self) -> Option<Packed<'_>> {
        match self.chunks.front() {
            Some(Chunk::Packed(only)) if self.chunks.len() == 1 => Some(only.view()),
            _ => None,
        }
    }

    /// The chunk at an end.
    #[inline]
    pub fn end(&self, end: ListEnd) -> Option<&Chunk> {
        self.outermost(end).map(|at| &self.chunks[at])
    }

    /// Adds an element at an end.
    #[inline]
    pub fn push(&mut self, end: ListEnd, text: &[u8]) {
        let outermost = match end {
            ListEnd::Left => self.chunks.front_mut(),
            ListEnd::Right => self.chunks.back_mut(),
        };
        match outermost {
            Some(Chunk::Packed(chunk)) if chunk.admits(text, self.limit) => {
                let n_bytes = chunk.allocated_bytes();
                chunk.push(end, text);
                self.n_elements += 1;
                self.chunk_bytes = self.chunk_bytes + chunk.allocated_bytes() - n_bytes;
            }
            _ => self.push_chunk(end, text),
        }
    }

    /// Adds a chunk of one element at an end, where there may be a full one.
    #[cold]
    fn push_chunk(&mut self, end: ListEnd, text: &[u8]) {
        if let Some(at) = self.outermost(end) {
            self.fit(at);
        }
        let at = match end {
            ListEnd::Left => 0,
            ListEnd::Right => self.chunks.len(),
        };
        self.insert_chunk(at, Chunk::of(text, self.limit));
    }

    /// Adds a piece of another list at the right end: a chunk by itself, unless it is far too large for one.
    pub fn append(&mut self, part: Part<'_>) {
        let at = self.chunks.len();
        match part {
            Part::Packed(packed) if packed.is_empty() => {}
            Part::Packed(packed) if self.limit.is_far_exceeded(packed.bytes().len()) => {
                packed.iter().for_each(|element| element.with_text(|text| self.push(ListEnd::Right, text)))
            }
            Part::Packed(packed) => self.insert_chunk(at, Chunk::Packed(PackedChunk::copy_of(packed))),
            Part::Plain(text) => self.insert_chunk(at, Chunk::of(text, self.limit)),
        }
    }

    /// Removes `n` elements, or as many as there are, at an end.
    pub fn remove_at_end(&mut self, end: ListEnd, n: usize) {
        let (mut n_chunks, mut n_left) = (0, n);
        while n_chunks < self.chunks.len() {
            let at = match end {
                ListEnd::Left => n_chunks,
                ListEnd::Right => self.chunks.len() - 1 - n_chunks,
            };
            let len = self.chunks[at].len();
            if len > n_left {
                break;
            }
            (n_chunks, n_left) = (n_chunks + 1, n_left - len);
        }
        if n_chunks > 0 {
            self.remove_chunks(match end {
                ListEnd::Left => 0..n_chunks,
                ListEnd::Right => self.chunks.len() - n_chunks..self.chunks.len(),
            });
        }
        if let Some(at) = self.outermost(end)
            && n_left > 0
        {
            self.edit(at, |chunk| chunk.remove_at_end(end, n_left));
        }
    }

    /// Removes up to `max` elements that are equal to `wanted`, from an end on; returns how many.
    pub fn remove_hits(&mut self, wanted: Element<'_>, from: ListEnd, max: usize) -> usize {
        let (mut n_removed, mut any_gap) = (0, false);
        for nth in 0..self.chunks.len() {
            let at = match from {
                ListEnd::Left => nth,
                ListEnd::Right => self.chunks.len() - 1 - nth,
            };
            let n_left = max - n_removed;
            if n_left == 0 {
                break;
            }
            n_removed += match &self.chunks[at] {
                Chunk::Packed(_) => self.edit(at, |chunk| chunk.remove_hits(wanted, from, n_left)),
                Chunk::Plain(text) if Element::of(text) == wanted => {
                    self.replace_chunk(at, Chunk::gap());
                    1
                }
                Chunk::Plain(_) => 0,
            };
            any_gap |= self.chunks[at].len() == 0;
        }
        if any_gap {
            self.close_gaps();
        }
        n_removed
    }

    /// Writes another text in place of the element at an index.
    ///
    /// # Panics
    /// If there is no such element.
    pub fn set(&mut self, index: usize, text: &[u8]) {
        let (at, within) = self.locate(index).expect("the caller has seen that there is such an element");
        let is_large = self.limit.is_exceeded_by(text);
        match &self.chunks[at] {
            Chunk::Packed(_) if is_large => self.set_apart(at, within, text),
            Chunk::Packed(_) => self.set_among(at, within, text),
            Chunk::Plain(_) => {
                // A short text does not stand alone if the next chunk takes it.
                if self.chunks.get(at + 1).is_some_and(|next| next.admits(text, self.limit)) {
                    self.edit(at + 1, |next| next.push(ListEnd::Left, text));
                    self.remove_chunks(at..at + 1);
                } else {
                    self.replace_chunk(at, Chunk::of(text, self.limit));
                }
            }
        }
    }

    /// Writes another text over an element that stays among others, which may take the chunk over its limit.
    fn set_among(&mut self, at: usize, within: usize, text: &[u8]) {
        let n_bytes = self.edit(at, |chunk| {
            let place = chunk.view().nth(within as i64).expect("the chunk has such an element");
            chunk.replace(place, text);
            chunk.bytes().len()
        });
        let n = self.chunks[at].len();
        if n > 1 && self.limit.is_far_exceeded(n_bytes) {
            self.split(at, n / 2);
        }
    }

    /// Writes a text that is too long for company in place of an element of a packed chunk.
    fn set_apart(&mut self, at: usize, within: usize, text: &[u8]) {
        if within + 1 < self.chunks[at].len() {
            self.split(at, within + 1);
        }
        // The element is the last of its chunk now.
        let apart = Chunk::of(text, self.limit);
        if within == 0 {
            self.replace_chunk(at, apart);
        } else {
            self.edit(at, |chunk| chunk.remove_at_end(ListEnd::Right, 1));
            self.insert_chunk(at + 1, apart);
            self.merge_around(at + 1);
        }
    }

    /// Adds an element beside the first one that is equal to `pivot`; returns whether there is one.
    pub fn insert(&mut self, side: Side, pivot: &[u8], text: &[u8]) -> bool {
        let Some((at, within)) = self.find(pivot) else { return false };
        let len = self.chunks[at].len();
        // How many of the chunk's elements come before the new one.
        let n_before = match side {
            Side::Before => within,
            Side::After => within + 1,
        };
        if self.chunks[at].admits(text, self.limit) {
            self.edit(at, |chunk| {
                let place = chunk.view().nth(n_before as i64).unwrap_or(chunk.view().end());
                chunk.insert(place, text);
            });
        } else if n_before == 0 && side == Side::Before {
            self.insert_between(at, at.checked_sub(1), ListEnd::Right, text);
        } else if n_before == len && side == Side::After {
            let next = (at + 1 < self.chunks.len()).then_some(at + 1);
            self.insert_between(at + 1, next, ListEnd::Left, text);
        } else {
            self.insert_within(at, n_before, side, text);
        }
        true
    }

    /// Adds an element between two chunks: to the neighbour of the one that is full, at its near end, or in a
    /// new chunk.
    fn insert_between(&mut self, at: usize, neighbour: Option<usize>, near: ListEnd, text: &[u8]) {
        match neighbour.filter(|&neighbour| self.chunks[neighbour].admits(text, self.limit)) {
            Some(neighbour) => self.edit(neighbour, |chunk| chunk.push(near, text)),
            None => self.insert_chunk(at, Chunk::of(text, self.limit)),
        }
    }

    /// Adds an element in the middle of a chunk that does not take it.
    fn insert_within(&mut self, at: usize, n_before: usize, side: Side, text: &[u8]) {
        self.split(at, n_before);
        if self.limit.is_exceeded_by(text) {
            return self.insert_chunk(at + 1, Chunk::of(text, self.limit));
        }
        // It goes to the half without the pivot, and the neighbours of the pivot's half are merged.
        match side {
            Side::Before => {
                self.edit(at, |left| left.push(ListEnd::Right, text));
                self.merge_around(at + 1);
            }
            Side::After => {
                self.edit(at + 1, |right| right.push(ListEnd::Left, text));
                self.merge_around(at);
            }
        }
    }

    /// The chunk that has the element at an index, and the element's index within it.
    fn locate(&self, index: usize) -> Option<(usize, usize)> {
        if index >= self.n_elements {
            return None;
        }
        if index < self.n_elements / 2 {
            let mut before = 0;
            for (at, chunk) in self.chunks.iter().enumerate() {
                if index < before + chunk.len() {
                    return Some((at, index - before));
                }
                before += chunk.len();
            }
        } else {
            let mut start = self.n_elements;
            for (at, chunk) in self.chunks.iter().enumerate().rev() {
                start -= chunk.len();
                if index >= start {
                    return Some((at, index - start));
                }
            }
        }
        unreachable!("the chunks have as many elements as the list")
    }

    /// The chunk of the first element with a text, and the element's index within it.
    fn find(&self, text: &[u8]) -> Option<(usize, usize)> {
        let wanted = Element::of(text);
        self.chunks.iter().enumerate().find_map(|(at, chunk)| {
            let within = chunk.part().elements_from(0).position(|element| element == wanted)?;
            Some((at, within))
        })
    }

    /// Panics unless all invariants of the chunks hold.
    #[cfg(test)]
    pub fn check_invariants(&self) {
        let n_elements: usize = self.chunks.iter().map(Chunk::len).sum();
        let chunk_bytes: usize = self.chunks.iter().map(Chunk::allocated_bytes).sum();
        assert_eq!((self.n_elements, self.chunk_bytes), (n_elements, chunk_bytes));
        for chunk in &self.chunks {
            assert!(chunk.len() > 0, "no chunk is empty");
            match chunk {
                Chunk::Packed(packed) => packed.check_invariants(),
                Chunk::Plain(text) => assert!(self.limit.is_exceeded_by(text), "a short text stands alone"),
            }
        }
    }

    /// Where the chunk at an end is.
    #[inline]
    fn outermost(&self, end: ListEnd) -> Option<usize> {
        match end {
            ListEnd::Left => (!self.chunks.is_empty()).then_some(0),
            ListEnd::Right => self.chunks.len().checked_sub(1),
        }
    }

    /// Cuts a packed chunk in two, the first with `n` elements.
    fn split(&mut self, at: usize, n: usize) {
        let behind = self.edit(at, |chunk| {
            let place = chunk.view().nth(n as i64).expect("no half is empty");
            chunk.split_off(place)
        });
        self.insert_chunk(at + 1, Chunk::Packed(behind));
    }

    /// Merges the neighbours of a chunk after a cut, as far as the limit admits it. First the two chunks
    /// before it, then the two after it, then it with the previous one, and with the next one.
    fn merge_around(&mut self, mut at: usize) {
        if at >= 2 && self.merge(at - 2) {
            at -= 1;
        }
        if at + 2 < self.chunks.len() {
            self.merge(at + 1);
        }
        if at >= 1 && self.merge(at - 1) {
            at -= 1;
        }
        if at + 1 < self.chunks.len() {
            self.merge(at);
        }
    }

    /// Merges a chunk with the next one, if the limit admits it; returns whether it did.
    fn merge(&mut self, at: usize) -> bool {
        let (Chunk::Packed(first), Chunk::Packed(second)) = (&self.chunks[at], &self.chunks[at + 1]) else {
            return false;
        };
        let n_bytes = first.bytes().len() + second.bytes().len() - packed::EMPTY.len();
        if !self.limit.admits(n_bytes, self.chunks[at].len() + self.chunks[at + 1].len()) {
            return false;
        }
        let Chunk::Packed(second) = self.take_chunk(at + 1) else { unreachable!("it is packed") };
        self.edit(at, |first| first.absorb(&second));
        true
    }

    /// Changes a packed chunk, and keeps the counts. A chunk at neither end, where nothing is pushed, keeps
    /// no room to grow.
    #[inline]
    fn edit<R>(&mut self, at: usize, edit: impl FnOnce(&mut PackedChunk) -> R) -> R {
        let is_inner = at > 0 && at + 1 < self.chunks.len();
        let chunk = &mut self.chunks[at];
        let (len, n_bytes) = (chunk.len(), chunk.allocated_bytes());
        let Chunk::Packed(packed) = chunk else { unreachable!("a plain chunk has no parts to change") };
        let result = edit(packed);
        if is_inner {
            packed.fit();
        }
        self.n_elements = self.n_elements + chunk.len() - len;
        self.chunk_bytes = self.chunk_bytes + chunk.allocated_bytes() - n_bytes;
        result
    }

    /// Frees a chunk's room to grow.
    fn fit(&mut self, at: usize) {
        if let Chunk::Packed(_) = self.chunks[at] {
            self.edit(at, PackedChunk::fit);
        }
    }

    fn insert_chunk(&mut self, at: usize, chunk: Chunk) {
        self.n_elements += chunk.len();
        self.chunk_bytes += chunk.allocated_bytes();
        self.chunks.insert(at, chunk);
    }

    fn replace_chunk(&mut self, at: usize, chunk: Chunk) {
        let old = std::mem::replace(&mut self.chunks[at], chunk);
        self.n_elements = self.n_elements + self.chunks[at].len() - old.len();
        self.chunk_bytes = self.chunk_bytes + self.chunks[at].allocated_bytes() - old.allocated_bytes();
        self.discard(old);
    }

    fn take_chunk(&mut self, at: usize) -> Chunk {
        let chunk = self.chunks.remove(at).expect("there is such a chunk");
        self.n_elements -= chunk.len();
        self.chunk_bytes -= chunk.allocated_bytes();
        chunk
    }

    /// Removes chunks with all that is in them.
    fn remove_chunks(&mut self, range: Range<usize>) {
        if range.len() == 1 {
            let chunk = self.take_chunk(range.start);
            return self.discard(chunk);
        }
        let removed = Chunks::of(self.chunks.drain(range).collect(), self.limit);
        self.n_elements -= removed.n_elements;
        self.chunk_bytes -= removed.chunk_bytes;
        self.give_room_back();
        discard_all(removed);
    }

    /// Removes the chunks that an operation has left empty.
    fn close_gaps(&mut self) {
        let empty_bytes: usize =
            self.chunks.iter().filter(|chunk| chunk.len() == 0).map(Chunk::allocated_bytes).sum();
        self.chunk_bytes -= empty_bytes;
        self.chunks.retain(|chunk| chunk.len() > 0);
        self.give_room_back();
    }

    /// Frees a chunk that has been taken out, later if it is large.
    fn discard(&self, chunk: Chunk) {
        if chunk.allocated_bytes() >= reclaim::LARGE_BYTES {
            discard_all(Chunks::of(VecDeque::from([chunk]), self.limit));
        }
    }

    /// Frees the deque's room when it is far more than is in use.
    fn give_room_back(&mut self) {
        if self.chunks.len() < self.chunks.capacity() / 4 {
            self.chunks.shrink_to(2 * self.chunks.len());
        }
    }
}

/// Frees chunks, later if they are large together.
fn discard_all(chunks: Chunks) {
    let bytes = chunks.allocated_bytes();
    reclaim::free_part(chunks, bytes, Chunks::demolish);
}
