//! Lists: packed elements, or a deque of chunks.
//!
//! A small list is one [`Packed`] in its entry (`listpack` in OBJECT ENCODING's words), a large one an object
//! (`quicklist`). `list-max-listpack-size` is the limit of both, of a small list and of a chunk, and a list
//! changes its form exactly when it does in Redis since 7.2:
//!
//! - before an element is added or written, a small list that would exceed the limit by the bare length of
//!   the texts becomes large (`grow`). It does so even if the command has no effect because there is no such
//!   pivot or index;
//! - after an element was removed or replaced, a large list that is left with one chunk within *half* of the
//!   limit becomes small (`shrink`);
//! - a list that was restored piece by piece begins large, and becomes small if it is one chunk within the
//!   limit (`settle`).

mod chunk;
mod chunks;

use std::{
    collections::vec_deque,
    ops::{ControlFlow, Range},
};

use self::{
    chunk::{Chunk, ChunkLimit},
    chunks::Chunks,
};
use crate::{
    entry::{Encoding, EntryBox, EntryRef, Kind},
    types::{
        packed::{self, At, Element, Packed, Splice},
        value::{ValueMut, ValueRef, ValueType},
    },
};

/// The type of lists.
pub struct ListType;

/// A live list, for reading.
pub type ListRef<'a> = ValueRef<'a, ListType>;

/// A live list of a shard, for changes.
pub type ListMut<'a> = ValueMut<'a, ListType>;

const PACKED: Encoding = Encoding::new(0);
const CHUNKED: Encoding = Encoding::new(1);

impl ValueType for ListType {
    const KIND: Kind = Kind::List;

    fn empty(key: &[u8]) -> EntryBox {
        EntryBox::with_bytes(Kind::List, PACKED, key, packed::EMPTY, None)
    }

    fn is_empty(entry: EntryRef<'_>) -> bool {
        match ListForm::of(entry) {
            ListForm::Packed(packed) => packed.is_empty(),
            ListForm::Chunked(chunks) => chunks.len() == 0,
        }
    }
}

/// An end of a list. The first element is at the left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListEnd {
    /// Where the first element is.
    Left,
    /// Where the last element is.
    Right,
}

/// A side of an element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// To the left.
    Before,
    /// To the right.
    After,
}

/// A piece of a list as it is stored: DUMP writes it as a node.
#[derive(Clone, Copy, Debug)]
pub enum Part<'a> {
    /// Elements one after the other.
    Packed(Packed<'a>),
    /// One element by itself: its text.
    Plain(&'a [u8]),
}

impl<'a> Part<'a> {
    /// The elements from an index on, which may be that of the end.
    #[inline]
    fn elements_from(self, index: usize) -> PartElements<'a> {
        match self {
            Part::Packed(packed) => {
                PartElements::Packed(packed.iter_from(packed.nth(index as i64).unwrap_or(packed.end())))
            }
            Part::Plain(text) => PartElements::Plain((index == 0).then_some(text)),
        }
    }
}

/// The elements of a part, from both ends.
#[derive(Clone)]
enum PartElements<'a> {
    Packed(packed::Iter<'a>),
    Plain(Option<&'a [u8]>),
}

impl<'a> Iterator for PartElements<'a> {
    type Item = Element<'a>;

    #[inline]
    fn next(&mut self) -> Option<Element<'a>> {
        match self {
            PartElements::Packed(elements) => elements.next(),
            PartElements::Plain(text) => text.take().map(Element::of),
        }
    }
}

impl DoubleEndedIterator for PartElements<'_> {
    #[inline]
    fn next_back(&mut self) -> Option<Self::Item> {
        match self {
            PartElements::Packed(elements) => elements.next_back(),
            PartElements::Plain(text) => text.take().map(Element::of),
        }
    }
}

/// The form of a list, for reading.
#[derive(Clone, Copy)]
enum ListForm<'a> {
    Packed(Packed<'a>),
    Chunked(&'a Chunks),
}

impl<'a> ListForm<'a> {
    #[inline]
    fn of(entry: EntryRef<'a>) -> Self {
        match entry.object() {
            Some(chunks) => ListForm::Chunked(chunks),
            None => ListForm::Packed(Packed::new(entry.bytes().expect("a list that is no object is packed"))),
        }
    }
}

/// The form of a list, for changes.
enum FormMut<'a> {
    Packed(&'a mut EntryBox),
    Chunked(&'a mut Chunks),
}

impl<'a> FormMut<'a> {
    #[inline]
    fn of(entry: &'a mut EntryBox) -> Self {
        if entry.as_ref().encoding() == CHUNKED {
            FormMut::Chunked(entry.object_mut().expect("what is encoded in chunks is an object"))
        } else {
            FormMut::Packed(entry)
        }
    }
}

/// How Redis would store a list, in OBJECT ENCODING's words.
pub(crate) fn encoding_name(entry: EntryRef<'_>) -> &'static str {
    match ListForm::of(entry) {
        ListForm::Packed(_) => "listpack",
        ListForm::Chunked(_) => "quicklist",
    }
}

impl<'a> ListRef<'a> {
    /// The number of elements.
    #[inline]
    pub fn len(self) -> usize {
        match ListForm::of(self.entry()) {
            ListForm::Packed(packed) => packed.len(),
            ListForm::Chunked(chunks) => chunks.len(),
        }
    }

    /// The number of pieces that the list consists of.
    pub fn n_parts(self) -> usize {
        match ListForm::of(self.entry()) {
            ListForm::Packed(_) => 1,
            ListForm::Chunked(chunks) => chunks.iter().len(),
        }
    }

    /// Whether there are none: only while a list is being made.
    pub fn is_empty(self) -> bool {
        ListType::is_empty(self.entry())
    }

    /// The element at an index; a negative one counts from the right, -1 being the last.
    pub fn get(self, index: i64) -> Option<Element<'a>> {
        self.elements_from(position(index, self.len())?).next()
    }

    /// The element at an end.
    #[inline]
    pub fn outermost(self, end: ListEnd) -> Option<Element<'a>> {
        let part = match ListForm::of(self.entry()) {
            ListForm::Packed(packed) => Part::Packed(packed),
            ListForm::Chunked(chunks) => chunks.end(end)?.part(),
        };
        let mut elements = part.elements_from(0);
        match end {
            ListEnd::Left => elements.next(),
            ListEnd::Right => elements.next_back(),
        }
    }

    /// The elements from an index on, from both ends.
    #[inline]
    pub fn elements_from(self, index: usize) -> impl DoubleEndedIterator<Item = Element<'a>> {
        let (first, behind) = match ListForm::of(self.entry()) {
            ListForm::Packed(packed) => {
                (Part::Packed(packed).elements_from(index), vec_deque::Iter::default())
            }
            ListForm::Chunked(chunks) => chunks.from(index),
        };
        first.chain(behind.flat_map(|chunk| chunk.part().elements_from(0)))
    }

    /// The pieces that the list consists of.
    pub fn parts(self) -> impl DoubleEndedIterator<Item = Part<'a>> {
        let (only, chunks) = match ListForm::of(self.entry()) {
            ListForm::Packed(packed) => (Some(Part::Packed(packed)), vec_deque::Iter::default()),
            ListForm::Chunked(chunks) => (None, chunks.iter()),
        };
        only.into_iter().chain(chunks.map(Chunk::part))
    }

    /// Calls `found` with the index of each element with this text, in the order from an end on, as long as
    /// it wants more. Looks at no more than `n_compared` elements.
    pub fn find(
        self,
        text: &[u8],
        from: ListEnd,
        n_compared: usize,
        mut found: impl FnMut(usize) -> ControlFlow<()>,
    ) {
        let (wanted, len, mut n_before) = (Element::of(text), self.len(), 0);
        self.walk(from, n_compared, |element| {
            let index = match from {
                ListEnd::Left => n_before,
                ListEnd::Right => len - 1 - n_before,
            };
            n_before += 1;
            if element == wanted { found(index) } else { ControlFlow::Continue(()) }
        });
    }

    /// Calls `each` with up to `n` elements, from an end on, as long as it wants more.
    #[inline]
    fn walk(self, from: ListEnd, n: usize, each: impl FnMut(Element<'a>) -> ControlFlow<()>) {
        let elements = self.elements_from(0);
        let _ = match from {
            ListEnd::Left => elements.take(n).try_for_each(each),
            ListEnd::Right => elements.rev().take(n).try_for_each(each),
        };
    }
}

impl ListMut<'_> {
    /// Adds elements at an end, one after the other; returns the new length of the list.
    #[inline(always)]
    pub fn push<'t>(&mut self, end: ListEnd, texts: impl Iterator<Item = &'t [u8]> + Clone) -> usize {
        let push_chunked = |chunks: &mut Chunks| {
            let n_before = chunks.len();
            texts.clone().for_each(|text| chunks.push(end, text));
            (n_before, chunks.len())
        };
        let (n_before, len) =
            self.arrange_object(push_chunked).unwrap_or_else(|| self.push_small(end, texts));
        self.mark_all_changed(len - n_before);
        len
    }

    /// Returns the lengths before and after.
    fn push_small<'t>(
        &mut self,
        end: ListEnd,
        texts: impl Iterator<Item = &'t [u8]> + Clone,
    ) -> (usize, usize) {
        let (limit, n_before) = (self.limit(), self.as_ref().len());
        self.arrange(|entry| {
            grow(entry, limit, texts.clone());
            match FormMut::of(entry) {
                FormMut::Packed(entry) => {
                    texts.for_each(|text| push_packed(entry, end, text));
                    (n_before, Packed::new(entry.bytes()).len())
                }
                FormMut::Chunked(chunks) => {
                    texts.for_each(|text| chunks.push(end, text));
                    (n_before, chunks.len())
                }
            }
        })
    }

    /// Removes up to `n` elements at an end; `each` sees them before, the outermost first.
    pub fn pop(&mut self, end: ListEnd, n: usize, mut each: impl FnMut(Element<'_>)) {
        if n == 0 {
            return;
        }
        if n == 1 {
            // Most callers want elements that need no walk.
            self.as_ref().outermost(end).into_iter().for_each(each);
        } else {
            self.as_ref().walk(end, n, |element| {
                each(element);
                ControlFlow::Continue(())
            });
        }
        let n_popped = n.min(self.as_ref().len());
        let cut_chunked = |chunks: &mut Chunks| {
            chunks.remove_at_end(end, n);
            chunks.only().is_some()
        };
        match self.arrange_object(cut_chunked) {
            None => self.arrange(|entry| cut(entry, end, n)),
            Some(false) => {}
            Some(true) => {
                let limit = self.limit();
                self.arrange(|entry| shrink(entry, limit));
            }
        }
        self.mark_all_changed(n_popped);
    }

    /// Moves the element at an end to an end. `text` is the element's text.
    pub fn rotate(&mut self, from: ListEnd, to: ListEnd, text: &[u8]) {
        let limit = self.limit();
        self.change(|entry| {
            cut(entry, from, 1);
            grow(entry, limit, [text].into_iter());
            match FormMut::of(entry) {
                FormMut::Packed(entry) => push_packed(entry, to, text),
                FormMut::Chunked(chunks) => chunks.push(to, text),
            }
            shrink(entry, limit);
        });
    }

    /// Removes all elements but those with an index in `kept`.
    pub fn trim(&mut self, kept: Range<usize>) {
        let (limit, len) = (self.limit(), self.as_ref().len());
        let kept = if kept.is_empty() { len..len } else { kept };
        // As in Redis, to trim is a change, although nothing is beyond the ends.
        let n_behind = len.saturating_sub(kept.end);
        self.mark_all_changed((kept.start + n_behind).max(1));
        self.arrange(|entry| {
            cut(entry, ListEnd::Right, n_behind);
            cut(entry, ListEnd::Left, kept.start);
            shrink(entry, limit);
        });
    }

    /// Writes another text in place of the element at an index (a negative one counts from the right).
    /// Returns whether there is one.
    pub fn set(&mut self, index: i64, text: &[u8]) -> bool {
        let (limit, index) = (self.limit(), position(index, self.as_ref().len()));
        self.arrange(|entry| {
            grow(entry, limit, [text].into_iter());
            let Some(index) = index else { return };
            match FormMut::of(entry) {
                FormMut::Packed(entry) => {
                    let at = Packed::new(entry.bytes()).nth(index as i64).expect("the index is in range");
                    packed::replace(entry, at, text);
                }
                FormMut::Chunked(chunks) => chunks.set(index, text),
            }
            shrink(entry, limit);
        });
        self.mark_changed_if(index.is_some())
    }

    /// Adds an element beside the first one that is equal to `pivot`; returns the new length of the list, if
    /// there is one.
    pub fn insert(&mut self, side: Side, pivot: &[u8], text: &[u8]) -> Option<usize> {
        let limit = self.limit();
        let inserted = self.arrange(|entry| {
            grow(entry, limit, [text].into_iter());
            match FormMut::of(entry) {
                FormMut::Packed(entry) => insert_packed(entry, side, pivot, text),
                FormMut::Chunked(chunks) => chunks.insert(side, pivot, text),
            }
        });
        self.mark_changed_if(inserted).then(|| self.as_ref().len())
    }

    /// Removes up to `max` elements with a text, from an end on; returns their number.
    pub fn remove(&mut self, text: &[u8], from: ListEnd, max: usize) -> usize {
        let (limit, wanted) = (self.limit(), Element::of(text));
        let n_removed = self.arrange(|entry| {
            let n_removed = match FormMut::of(entry) {
                FormMut::Packed(entry) => remove_hits(entry, wanted, from, max),
                FormMut::Chunked(chunks) => chunks.remove_hits(wanted, from, max),
            };
            if n_removed > 0 {
                shrink(entry, limit);
            }
            n_removed
        });
        self.mark_all_changed(n_removed);
        n_removed
    }

    /// Adds a piece of another list at the right end. The list becomes large.
    pub(crate) fn append(&mut self, part: Part<'_>) {
        let limit = self.limit();
        self.change(|entry| {
            enlarge(entry, limit);
            if let FormMut::Chunked(chunks) = FormMut::of(entry) {
                chunks.append(part);
            }
        });
    }

    /// Makes a large list small if it is one chunk within the limit.
    pub(crate) fn settle(&mut self) {
        let limit = self.limit();
        self.arrange(|entry| shrink_to(entry, |n_bytes, n| limit.admits_of(1, n_bytes, n)));
    }

    fn mark_changed_if(&mut self, is_changed: bool) -> bool {
        if is_changed {
            self.mark_changed();
        }
        is_changed
    }

    fn limit(&self) -> ChunkLimit {
        ChunkLimit::of(self.thresholds().list_max_listpack_size())
    }
}

/// The index that a possibly negative one means, if there is such an element.
fn position(index: i64, len: usize) -> Option<usize> {
    let index = if index < 0 { index.checked_add_unsigned(len as u64)? } else { index };
    usize::try_from(index).ok().filter(|&index| index < len)
}

/// Makes a small list large if these texts, which are about to be added or written, take it over the limit.
fn grow<'t>(entry: &mut EntryBox, limit: ChunkLimit, texts: impl Iterator<Item = &'t [u8]>) {
    if entry.as_ref().encoding() == CHUNKED {
        return;
    }
    let packed = Packed::new(entry.bytes());
    let (n_bytes, n) =
        texts.fold((packed.bytes().len(), packed.len()), |(n_bytes, n), text| (n_bytes + text.len(), n + 1));
    if !limit.admits(n_bytes, n) {
        enlarge(entry, limit);
    }
}

/// Makes a small list large.
fn enlarge(entry: &mut EntryBox, limit: ChunkLimit) {
    if entry.as_ref().encoding() != CHUNKED {
        let chunks = Chunks::of_packed(Packed::new(entry.bytes()), limit);
        entry.set_object(chunks);
        entry.set_encoding(CHUNKED);
    }
}

/// Makes a large list small if so little is left of it.
#[inline]
fn shrink(entry: &mut EntryBox, limit: ChunkLimit) {
    shrink_to(entry, |n_bytes, n| limit.admits_of(2, n_bytes, n));
}

/// Makes a large list small if it is one packed chunk, of which `is_small` says so by its bytes and elements.
#[inline]
fn shrink_to(entry: &mut EntryBox, is_small: impl FnOnce(usize, usize) -> bool) {
    let only = match ListForm::of(entry.as_ref()) {
        ListForm::Chunked(chunks) => chunks.only(),
        ListForm::Packed(_) => None,
    };
    let small = only.filter(|packed| is_small(packed.bytes().len(), packed.len()));
    if let Some(packed) = small.map(|packed| packed.bytes().to_vec()) {
        entry.set_bytes(&packed);
        entry.set_encoding(PACKED);
    }
}

/// Removes `n` elements, or as many as there are, at an end.
#[inline]
fn cut(entry: &mut EntryBox, end: ListEnd, n: usize) {
    match FormMut::of(entry) {
        FormMut::Packed(entry) => {
            if let Some(at) = outermost(Packed::new(entry.bytes()), end, n) {
                packed::remove(entry, at, n);
            }
        }
        FormMut::Chunked(chunks) => chunks.remove_at_end(end, n),
    }
}

fn push_packed(entry: &mut EntryBox, end: ListEnd, text: &[u8]) {
    match end {
        ListEnd::Left => packed::push_front(entry, text),
        ListEnd::Right => packed::push(entry, text),
    }
}

fn insert_packed(entry: &mut EntryBox, side: Side, pivot: &[u8], text: &[u8]) -> bool {
    let packed = Packed::new(entry.bytes());
    let Some(found) = packed.first().and_then(|first| packed.find(first, pivot, 1)) else { return false };
    let at = match side {
        Side::Before => found,
        Side::After => packed.next(found).unwrap_or(packed.end()),
    };
    packed::insert(entry, at, text);
    true
}

/// Where the `n` elements at an end begin, or as many as there are.
#[inline]
fn outermost(packed: Packed<'_>, end: ListEnd, n: usize) -> Option<At> {
    match end {
        _ if n == 0 => None,
        ListEnd::Left => packed.first(),
        ListEnd::Right => packed.nth(-(n.min(packed.len()) as i64)),
    }
}

/// Removes up to `max` elements that are equal to `wanted`, from an end on; returns their number.
fn remove_hits(buffer: &mut impl Splice, wanted: Element<'_>, from: ListEnd, max: usize) -> usize {
    let n_hits = Packed::new(buffer.bytes()).iter().filter(|element| *element == wanted).count();
    let n_removed = n_hits.min(max);
    let n_passed = match from {
        ListEnd::Left => 0,
        ListEnd::Right => n_hits - n_removed,
    };
    if n_removed == 0 {
        return 0;
    }
    let mut n_met = 0;
    packed::retain(buffer, |element| {
        if element != wanted {
            return true;
        }
        n_met += 1;
        n_met <= n_passed || n_met > n_passed + n_removed
    })
}

#[cfg(test)]
mod tests;
