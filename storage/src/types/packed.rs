//! Packed elements: short texts and integers one after the other in one piece of memory, readable from either
//! end.
//!
//! The layout is Redis's listpack, byte for byte, so that DUMP and RESTORE copy it:
//!
//! ```text
//! total bytes u32 | elements u16 | element* | 0xff        element: code and payload | length of those, readable backwards
//! ```
//!
//! All numbers are little-endian. A code says an integer of 7, 13, 16, 24, 32 or 64 bits, or the length of a
//! text in 6, 12 or 32 bits. The length after an element is 1 to 5 groups of 7 bits, the last group first
//! seen from the right. The count stays at 65535 from there on, which means "count them".
//!
//! Reading is done through [`Packed`], a borrowed view; editing through functions on anything whose middle
//! can be [spliced](Splice): an entry's value, or a `Vec<u8>`. A view of bytes that a client sent is made by
//! [`Packed::check`] only.

use std::ops::Range;

use braid_protocol::number;

/// Bytes before the first element.
const HEADER_BYTES: usize = 6;
/// The byte after the last element.
const END: u8 = 0xff;
/// The count that says nothing.
const UNCOUNTED: u16 = u16::MAX;
/// The largest packed value, as in Redis: lengths must fit 32 bits with much to spare.
pub const PACKED_MAX_BYTES: usize = 1 << 30;

/// No elements.
pub const EMPTY: &[u8] = &[7, 0, 0, 0, 0, 0, END];

/// Bytes whose middle can be replaced.
pub trait Splice {
    /// All bytes.
    fn bytes(&self) -> &[u8];
    /// All bytes, mutable.
    fn bytes_mut(&mut self) -> &mut [u8];
    /// Replaces the bytes at `range` by `len` bytes of any content, which the caller writes at once.
    fn splice(&mut self, range: Range<usize>, len: usize);
}

impl Splice for Vec<u8> {
    fn bytes(&self) -> &[u8] {
        self
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        self
    }

    fn splice(&mut self, range: Range<usize>, len: usize) {
        let (old_len, tail) = (self.len(), range.end);
        if len > range.len() {
            self.resize(old_len + len - range.len(), 0);
        }
        self.copy_within(tail..old_len, range.start + len);
        self.truncate(old_len - range.len() + len);
    }
}

/// An element.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Element<'a> {
    /// A text that is the canonical form of a 64-bit integer.
    Integer(i64),
    /// Any other text.
    Text(&'a [u8]),
}

impl<'a> Element<'a> {
    /// How a text is stored.
    pub fn of(text: &'a [u8]) -> Self {
        match number::parse_i64(text) {
            Some(integer) => Element::Integer(integer),
            None => Element::Text(text),
        }
    }

    /// The integer, if it is one.
    pub fn integer(self) -> Option<i64> {
        match self {
            Element::Integer(integer) => Some(integer),
            Element::Text(_) => None,
        }
    }

    /// Calls `with` with the text.
    pub fn with_text<R>(self, with: impl FnOnce(&[u8]) -> R) -> R {
        match self {
            Element::Integer(integer) => number::format_i64(integer, with),
            Element::Text(text) => with(text),
        }
    }

    /// The text.
    pub fn to_vec(self) -> Vec<u8> {
        self.with_text(<[u8]>::to_vec)
    }

    /// The length of the text, in bytes.
    pub fn text_len(self) -> usize {
        self.with_text(<[u8]>::len)
    }

    /// Bytes of the code and the payload.
    fn body_bytes(self) -> usize {
        match self {
            Element::Integer(0..=127) => 1,
            Element::Integer(-4096..=4095) => 2,
            Element::Integer(integer) if i16::try_from(integer).is_ok() => 3,
            Element::Integer(-0x80_0000..=0x7f_ffff) => 4,
            Element::Integer(integer) if i32::try_from(integer).is_ok() => 5,
            Element::Integer(_) => 9,
            Element::Text(text) => text.len() + text_header_bytes(text.len()),
        }
    }

    /// Bytes of the whole element.
    #[inline]
    fn stored_bytes(self) -> usize {
        let body = self.body_bytes();
        body + back_bytes(body)
    }

    /// Writes the element over exactly its stored bytes.
    #[inline]
    fn write(self, to: &mut [u8]) {
        let body = self.body_bytes();
        match self {
            Element::Integer(integer) => write_integer(integer, &mut to[..body]),
            Element::Text(text) => {
                let header = text_header_bytes(text.len());
                let len = text.len() as u32;
                match header {
                    1 => to[0] = 0x80 | len as u8,
                    2 => to[..2].copy_from_slice(&[0xe0 | (len >> 8) as u8, len as u8]),
                    _ => {
                        to[0] = 0xf0;
                        to[1..5].copy_from_slice(&len.to_le_bytes());
                    }
                }
                to[header..body].copy_from_slice(text);
            }
        }
        write_back(body, &mut to[body..]);
    }
}

fn text_header_bytes(len: usize) -> usize {
    match len {
        0..64 => 1,
        64..4096 => 2,
        _ => 5,
    }
}

fn write_integer(integer: i64, to: &mut [u8]) {
    let little = integer.to_le_bytes();
    match to.len() {
        1 => to[0] = little[0],
        2 => to.copy_from_slice(&[0xc0 | (little[1] & 0x1f), little[0]]),
        n => {
            to[0] = match n {
                3 => 0xf1,
                4 => 0xf2,
                5 => 0xf3,
                _ => 0xf4,
            };
            to[1..].copy_from_slice(&little[..n - 1]);
        }
    }
}

/// Bytes of the length after a body of `body` bytes.
fn back_bytes(body: usize) -> usize {
    match body {
        0..128 => 1,
        128..0x3fff => 2,
        0x3fff..0x1f_ffff => 3,
        0x1f_ffff..0xfff_ffff => 4,
        _ => 5,
    }
}

fn write_back(body: usize, to: &mut [u8]) {
    let groups = to.len();
    for (nth, byte) in to.iter_mut().enumerate() {
        let group = (body >> (7 * (groups - 1 - nth))) as u8 & 0x7f;
        *byte = if nth == 0 { group } else { group | 0x80 };
    }
}

/// Where an element begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct At(usize);

/// Packed elements, for reading.
#[derive(Clone, Copy)]
pub struct Packed<'a>(&'a [u8]);

impl<'a> Packed<'a> {
    /// A view of bytes that were written by this module, or have been [checked](Self::check).
    pub fn new(bytes: &'a [u8]) -> Self {
        debug_assert!(bytes.len() > HEADER_BYTES && bytes[bytes.len() - 1] == END);
        Packed(bytes)
    }

    /// A view of bytes from elsewhere, unless they are not well formed in every byte.
    pub fn check(bytes: &'a [u8]) -> Option<Self> {
        let total = u32::from_le_bytes(*bytes.first_chunk()?) as usize;
        if total != bytes.len() || total <= HEADER_BYTES || bytes[total - 1] != END {
            return None;
        }
        let (mut at, mut count) = (HEADER_BYTES, 0usize);
        while at < total - 1 {
            let body = checked_body_bytes(&bytes[at..total - 1])?;
            let end = at.checked_add(body)?.checked_add(back_bytes(body))?;
            if end > total - 1 {
                return None;
            }
            let mut back = [0; 5];
            let back = &mut back[..back_bytes(body)];
            write_back(body, back);
            if bytes[at + body..end] != *back {
                return None;
            }
            (at, count) = (end, count + 1);
        }
        let stated = u16::from_le_bytes([bytes[4], bytes[5]]);
        (stated == UNCOUNTED || usize::from(stated) == count).then_some(Packed(bytes))
    }

    /// The bytes.
    pub fn bytes(self) -> &'a [u8] {
        self.0
    }

    /// The number of elements. Above 65534 they are counted.
    pub fn len(self) -> usize {
        match u16::from_le_bytes([self.0[4], self.0[5]]) {
            UNCOUNTED => self.iter().count(),
            count => count as usize,
        }
    }

    /// Whether there are none.
    pub fn is_empty(self) -> bool {
        self.0.len() == EMPTY.len()
    }

    /// The first element.
    pub fn first(self) -> Option<At> {
        (!self.is_empty()).then_some(At(HEADER_BYTES))
    }

    /// The last element.
    pub fn last(self) -> Option<At> {
        self.before(self.end())
    }

    /// The place where the next element would be added at the end.
    pub fn end(self) -> At {
        At(self.0.len() - 1)
    }

    /// The element after this one.
    #[inline]
    pub fn next(self, at: At) -> Option<At> {
        let next = self.behind(at);
        (next != self.end()).then_some(next)
    }

    /// The element before this one, or before the end.
    #[inline]
    pub fn before(self, at: At) -> Option<At> {
        if at.0 == HEADER_BYTES {
            return None;
        }
        let (mut body, mut n_groups) = (0usize, 0);
        loop {
            let byte = self.0[at.0 - 1 - n_groups];
            body |= ((byte & 0x7f) as usize) << (7 * n_groups);
            n_groups += 1;
            if byte & 0x80 == 0 {
                return Some(At(at.0 - n_groups - body));
            }
        }
    }

    /// The element at an index; a negative one counts from the end, -1 being the last. Walks from the nearer
    /// end.
    pub fn nth(self, index: i64) -> Option<At> {
        let n = self.len() as i64;
        let index = if index < 0 { index + n } else { index };
        if !(0..n).contains(&index) {
            return None;
        }
        if index <= n / 2 {
            (0..index).try_fold(self.first()?, |at, _| self.next(at))
        } else {
            (index..n).try_fold(self.end(), |at, _| self.before(at))
        }
    }

    /// An element.
    #[inline]
    pub fn get(self, at: At) -> Element<'a> {
        let bytes = &self.0[at.0..];
        let text = |header: usize, len: usize| Element::Text(&bytes[header..header + len]);
        match bytes[0] {
            code @ 0..=0x7f => Element::Integer(code.into()),
            code @ 0x80..=0xbf => text(1, (code & 0x3f).into()),
            code @ 0xc0..=0xdf => {
                let bits = u16::from(code & 0x1f) << 8 | u16::from(bytes[1]);
                // Bit 12 is the sign.
                Element::Integer((((bits << 3) as i16) >> 3).into())
            }
            code @ 0xe0..=0xef => text(2, usize::from(code & 0xf) << 8 | usize::from(bytes[1])),
            0xf0 => text(5, u32::from_le_bytes([bytes[1], bytes[2], bytes[3], bytes[4]]) as usize),
            0xf1 => Element::Integer(i16::from_le_bytes([bytes[1], bytes[2]]).into()),
            0xf2 => Element::Integer((i32::from_le_bytes([0, bytes[1], bytes[2], bytes[3]]) >> 8).into()),
            0xf3 => Element::Integer(i32::from_le_bytes([bytes[1], bytes[2], bytes[3], bytes[4]]).into()),
            _ => Element::Integer(i64::from_le_bytes(bytes[1..9].try_into().expect("the slice has 8 bytes"))),
        }
    }

    /// All elements, from the first on.
    pub fn iter(self) -> Iter<'a> {
        self.iter_from(At(HEADER_BYTES))
    }

    /// The elements from this one on.
    pub fn iter_from(self, at: At) -> Iter<'a> {
        Iter { packed: self, front: at, back: self.end() }
    }

    /// The first element, from `from` on in steps of `step` elements, whose text this is.
    pub fn find(self, from: At, text: &[u8], step: usize) -> Option<At> {
        let wanted = Element::of(text);
        let mut at = from;
        while at != self.end() {
            let body = body_bytes(&self.0[at.0..]);
            if self.is_at(at, body, wanted) {
                return Some(at);
            }
            at = At(at.0 + body + back_bytes(body));
            for _ in 1..step {
                if at == self.end() {
                    return None;
                }
                at = self.behind(at);
            }
        }
        None
    }

    /// Whether this element is at `at`, whose body has `body` bytes. The last bytes are compared first: texts
    /// of one set often begin alike.
    #[inline]
    fn is_at(self, at: At, body: usize, wanted: Element<'_>) -> bool {
        if let Element::Text(text) = wanted {
            let bytes = &self.0[at.0..at.0 + body];
            if body <= text.len() || bytes.last_chunk::<8>() != text.last_chunk() && text.len() >= 8 {
                return false;
            }
        }
        self.get(at) == wanted
    }

    /// Where the next element begins, or the end.
    #[inline]
    pub fn behind(self, at: At) -> At {
        let body = body_bytes(&self.0[at.0..]);
        At(at.0 + body + back_bytes(body))
    }
}

impl std::fmt::Debug for Packed<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

/// Bytes of the code and the payload at the start of `bytes`.
#[inline]
fn body_bytes(bytes: &[u8]) -> usize {
    match bytes[0] {
        0..=0x7f => 1,
        code @ 0x80..=0xbf => 1 + usize::from(code & 0x3f),
        0xc0..=0xdf => 2,
        code @ 0xe0..=0xef => 2 + (usize::from(code & 0xf) << 8 | usize::from(bytes[1])),
        0xf0 => 5 + u32::from_le_bytes([bytes[1], bytes[2], bytes[3], bytes[4]]) as usize,
        0xf1 => 3,
        0xf2 => 4,
        0xf3 => 5,
        _ => 9,
    }
}

/// The same of bytes that may be anything.
fn checked_body_bytes(bytes: &[u8]) -> Option<usize> {
    let n_header = match *bytes.first()? {
        0..=0xbf => 1,
        0xc0..=0xef => 2,
        0xf0..=0xf4 => 5,
        _ => return None,
    };
    if bytes.len() < n_header && bytes[0] < 0xf1 {
        return None;
    }
    let body = body_bytes(bytes);
    (body <= bytes.len()).then_some(body)
}

/// The elements of a [`Packed`], from both ends.
#[derive(Clone)]
pub struct Iter<'a> {
    packed: Packed<'a>,
    front: At,
    back: At,
}

impl<'a> Iterator for Iter<'a> {
    type Item = Element<'a>;

    #[inline]
    fn next(&mut self) -> Option<Element<'a>> {
        if self.front == self.back {
            return None;
        }
        let element = self.packed.get(self.front);
        self.front = self.packed.behind(self.front);
        Some(element)
    }
}

impl DoubleEndedIterator for Iter<'_> {
    fn next_back(&mut self) -> Option<Self::Item> {
        if self.front == self.back {
            return None;
        }
        self.back = self.packed.before(self.back).expect("there is an element in between");
        Some(self.packed.get(self.back))
    }
}

/// Whether a text can be added without the whole becoming too large.
pub fn has_room(packed: Packed<'_>, text_bytes: usize) -> bool {
    packed.0.len() + text_bytes + 16 <= PACKED_MAX_BYTES
}

/// Adds an element before the one at `at`, or at the end. `at` is where it is then.
pub fn insert(buffer: &mut impl Splice, at: At, text: &[u8]) {
    insert_element(buffer, at, Element::of(text));
}

/// Adds an element before the one at `at`, or at the end, without looking at whether a text is an integer.
pub fn insert_element(buffer: &mut impl Splice, at: At, element: Element<'_>) {
    let n_bytes = element.stored_bytes();
    buffer.splice(at.0..at.0, n_bytes);
    element.write(&mut buffer.bytes_mut()[at.0..at.0 + n_bytes]);
    write_total(buffer);
    count(buffer, 1);
}

/// Adds elements in their order before the one at `at`, or at the end, without looking at whether texts are
/// integers. The first one is at `at` then.
pub fn insert_all(buffer: &mut impl Splice, at: At, elements: &[Element<'_>]) {
    let n_bytes = elements.iter().map(|element| element.stored_bytes()).sum();
    buffer.splice(at.0..at.0, n_bytes);
    let mut room = &mut buffer.bytes_mut()[at.0..at.0 + n_bytes];
    for element in elements {
        let (this, rest) = room.split_at_mut(element.stored_bytes());
        element.write(this);
        room = rest;
    }
    write_total(buffer);
    count(buffer, elements.len() as i64);
}

/// Adds an element at the end.
pub fn push(buffer: &mut impl Splice, text: &[u8]) {
    let end = At(buffer.bytes().len() - 1);
    insert(buffer, end, text);
}

/// Adds an element at the start.
pub fn push_front(buffer: &mut impl Splice, text: &[u8]) {
    insert(buffer, At(HEADER_BYTES), text);
}

/// Writes another text in place of the element at `at`.
pub fn replace(buffer: &mut impl Splice, at: At, text: &[u8]) {
    replace_element(buffer, at, Element::of(text));
}

/// Writes another element in place of the one at `at`, without looking at whether a text is an integer.
pub fn replace_element(buffer: &mut impl Splice, at: At, element: Element<'_>) {
    let end = Packed::new(buffer.bytes()).behind(at);
    put(buffer, at.0..end.0, element);
}

/// Removes up to `n` elements from the one at `at` on; returns how many.
pub fn remove(buffer: &mut impl Splice, at: At, n: usize) -> usize {
    let packed = Packed::new(buffer.bytes());
    let (mut end, mut n_removed) = (at, 0);
    while n_removed < n && end != packed.end() {
        end = packed.behind(end);
        n_removed += 1;
    }
    buffer.splice(at.0..end.0, 0);
    write_total(buffer);
    count(buffer, -(n_removed as i64));
    n_removed
}

/// Removes the elements that `keep` refuses, in one pass; returns how many.
pub fn retain(buffer: &mut impl Splice, mut keep: impl FnMut(Element<'_>) -> bool) -> usize {
    let bytes = buffer.bytes_mut();
    let end = bytes.len() - 1;
    let (mut from, mut to, mut n_removed) = (HEADER_BYTES, HEADER_BYTES, 0);
    while from < end {
        let packed = Packed::new(bytes);
        let behind = packed.behind(At(from)).0;
        if keep(packed.get(At(from))) {
            bytes.copy_within(from..behind, to);
            to += behind - from;
        } else {
            n_removed += 1;
        }
        from = behind;
    }
    if n_removed > 0 {
        buffer.splice(to..end, 0);
        write_total(buffer);
        count(buffer, -(n_removed as i64));
    }
    n_removed
}

/// Adds all elements of another packed value at the end.
pub fn extend(buffer: &mut impl Splice, other: Packed<'_>) {
    let end = buffer.bytes().len() - 1;
    let elements = &other.0[HEADER_BYTES..other.0.len() - 1];
    buffer.splice(end..end, elements.len());
    buffer.bytes_mut()[end..end + elements.len()].copy_from_slice(elements);
    write_total(buffer);
    count(buffer, other.len() as i64);
}

/// Writes an element in place of the bytes at `range`.
fn put(buffer: &mut impl Splice, range: Range<usize>, element: Element<'_>) {
    let n_bytes = element.stored_bytes();
    let start = range.start;
    if n_bytes != range.len() {
        buffer.splice(range, n_bytes);
        write_total(buffer);
    }
    element.write(&mut buffer.bytes_mut()[start..start + n_bytes]);
}

fn write_total(buffer: &mut impl Splice) {
    let bytes = buffer.bytes_mut();
    let total = u32::try_from(bytes.len()).expect("packed values stay below 1 GiB");
    bytes[..4].copy_from_slice(&total.to_le_bytes());
}

/// Adds `change` to the count of elements.
fn count(buffer: &mut impl Splice, change: i64) {
    let bytes = buffer.bytes_mut();
    let stated = u16::from_le_bytes([bytes[4], bytes[5]]);
    let count = if stated == UNCOUNTED {
        // The elements are counted on demand. Once they are few again, the number is right again.
        if change > 0 {
            return;
        }
        Packed::new(bytes).len() as i64
    } else {
        i64::from(stated) + change
    };
    let count = u16::try_from(count).unwrap_or(UNCOUNTED);
    bytes[4..6].copy_from_slice(&count.to_le_bytes());
}

#[cfg(test)]
mod tests;
