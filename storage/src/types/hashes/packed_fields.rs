//! Packed hashes: pairs, or triples in the order of their deadlines.
//!
//! The bytes are Redis's listpack and listpackex, so that DUMP and RESTORE copy them. Edits work on anything
//! that can be [spliced](Splice), like those of [`crate::types::packed`].

use super::{Field, Found, Inserted, deadline_after};
use crate::{
    entry::time::{Deadline, Expiry, Millis},
    types::packed::{self, At, Element, Packed, Splice},
};

/// The elements of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Layout {
    /// Name and value.
    Pairs,
    /// Name, value and deadline.
    Triples,
}

impl Layout {
    /// Elements a field.
    const fn width(self) -> usize {
        match self {
            Layout::Pairs => 2,
            Layout::Triples => 3,
        }
    }
}

/// A deadline as it is stored: 0 stands for none.
fn deadline_element(deadline: Option<Deadline>) -> Element<'static> {
    Element::Integer(deadline.map_or(0, |deadline| deadline.0.0 as i64))
}

fn element_deadline(element: Element<'_>) -> Option<Deadline> {
    match element {
        Element::Integer(millis @ 1..) => Some(Deadline::at(millis as u64)),
        _ => None,
    }
}

/// The fields of a packed hash.
#[derive(Clone, Copy)]
pub(super) struct PackedFields<'a> {
    elements: Packed<'a>,
    layout: Layout,
}

impl<'a> PackedFields<'a> {
    #[inline]
    pub fn new(bytes: &'a [u8], layout: Layout) -> Self {
        Self { elements: Packed::new(bytes), layout }
    }

    pub fn len(self) -> usize {
        self.elements.len() / self.layout.width()
    }

    #[inline]
    pub fn is_empty(self) -> bool {
        self.elements.is_empty()
    }

    /// Whether texts of `text_bytes` in all can be added.
    pub fn has_room(self, text_bytes: usize) -> bool {
        packed::has_room(self.elements, text_bytes)
    }

    /// A field, expired or not, and where it begins.
    #[inline]
    pub fn find(self, name: &[u8]) -> Option<(At, Field<'a>)> {
        let at = self.elements.find(self.elements.first()?, name, self.layout.width())?;
        Some((at, self.get(at)))
    }

    /// All fields, expired ones included.
    pub fn iter(self) -> impl Iterator<Item = Field<'a>> {
        let first = self.elements.first().unwrap_or(self.elements.end());
        let mut elements = self.elements.iter_from(first);
        std::iter::from_fn(move || {
            let (name, value) = (elements.next()?, elements.next()?);
            let deadline = match self.layout {
                Layout::Pairs => None,
                Layout::Triples => element_deadline(elements.next()?),
            };
            Some(Field { name, value, deadline })
        })
    }

    /// The earliest deadline.
    #[inline]
    pub fn first_deadline(self) -> Option<Deadline> {
        match self.layout {
            Layout::Pairs => None,
            Layout::Triples => self.get(self.elements.first()?).deadline,
        }
    }

    /// The latest deadline, unless there is a field without one.
    pub fn last_deadline(self) -> Option<Deadline> {
        match self.layout {
            Layout::Pairs => None,
            Layout::Triples => element_deadline(self.elements.get(self.elements.last()?)),
        }
    }

    /// The number of expired fields; takes time in proportion to that.
    pub fn n_expired(self, now: Millis) -> usize {
        match self.layout {
            Layout::Pairs => 0,
            Layout::Triples => self.iter().take_while(|field| field.has_expired(now)).count(),
        }
    }

    /// The field that begins here.
    fn get(self, at: At) -> Field<'a> {
        let value = self.value_at(at);
        let deadline = match self.layout {
            Layout::Pairs => None,
            Layout::Triples => {
                let deadline = self.elements.next(value).expect("a value has a deadline behind it");
                element_deadline(self.elements.get(deadline))
            }
        };
        Field { name: self.elements.get(at), value: self.elements.get(value), deadline }
    }

    fn value_at(self, at: At) -> At {
        self.elements.next(at).expect("a name has a value behind it")
    }

    /// The place of a field with this deadline: after those that expire no later.
    fn place_for(self, deadline: Option<Deadline>) -> At {
        let end = self.elements.end();
        let (Some(deadline), Some(mut at)) = (deadline, self.elements.first()) else { return end };
        loop {
            if self.get(at).deadline.is_none_or(|other| other > deadline) {
                return at;
            }
            let last = (1..self.layout.width())
                .try_fold(at, |at, _| self.elements.next(at))
                .expect("a field is whole");
            match self.elements.next(last) {
                Some(next) => at = next,
                None => return end,
            }
        }
    }
}

/// Sets a field. Pairs take no deadline.
pub(super) fn set(
    buffer: &mut impl Splice,
    layout: Layout,
    name: &[u8],
    value: &[u8],
    expiry: Expiry,
    now: Millis,
) -> Inserted {
    let fields = PackedFields::new(buffer.bytes(), layout);
    let (name_element, value_element) = (Element::of(name), Element::of(value));
    let Some((at, old)) = fields.find(name) else {
        insert(buffer, layout, name_element, value_element, deadline_after(expiry, None));
        return Inserted::New;
    };
    let found = Found::of(old.deadline, now);
    let before = old.deadline.filter(|_| found == Found::Live);
    let deadline = deadline_after(expiry, before);
    // A field that is given a deadline moves after those that have the same one already.
    let stays = deadline == old.deadline && !matches!(expiry, Expiry::At(_));
    if stays {
        let value_at = fields.value_at(at);
        packed::replace(buffer, value_at, value);
    } else {
        packed::remove(buffer, at, layout.width());
        insert(buffer, layout, name_element, value_element, deadline);
    }
    found.inserted()
}

/// Removes a field; returns the state in which it was, if it was there.
pub(super) fn remove(buffer: &mut impl Splice, layout: Layout, name: &[u8], now: Millis) -> Option<Found> {
    let (at, field) = PackedFields::new(buffer.bytes(), layout).find(name)?;
    let found = Found::of(field.deadline, now);
    packed::remove(buffer, at, layout.width());
    Some(found)
}

/// Sets another deadline for a field of triples, which also moves it.
pub(super) fn set_deadline(buffer: &mut impl Splice, name: &[u8], deadline: Option<Deadline>) {
    let Some((at, field)) = PackedFields::new(buffer.bytes(), Layout::Triples).find(name) else { return };
    // The text lies in the bytes that are about to move.
    let value = field.value.to_vec();
    packed::remove(buffer, at, Layout::Triples.width());
    insert(buffer, Layout::Triples, Element::of(name), Element::of(&value), deadline);
}

/// Removes up to `n_max` fields of triples whose deadline has passed, which are the first. Returns how many,
/// and calls `lost` with each name.
pub(super) fn expire(
    buffer: &mut impl Splice,
    now: Millis,
    n_max: usize,
    mut lost: impl FnMut(&[u8]),
) -> usize {
    let fields = PackedFields::new(buffer.bytes(), Layout::Triples);
    let expired = fields.iter().take(n_max).take_while(|field| field.has_expired(now));
    let n_expired = expired.inspect(|field| lost(&field.name.to_vec())).count();
    if let Some(first) = fields.elements.first() {
        packed::remove(buffer, first, n_expired * Layout::Triples.width());
    }
    n_expired
}

/// The same fields as triples.
pub(super) fn triples_of(fields: PackedFields<'_>) -> Vec<u8> {
    let mut triples = Vec::with_capacity(fields.elements.bytes().len() + 2 * fields.len());
    triples.extend_from_slice(packed::EMPTY);
    for field in fields.iter() {
        insert(&mut triples, Layout::Triples, field.name, field.value, field.deadline);
    }
    triples
}

/// Adds a field that is not there.
fn insert(
    buffer: &mut impl Splice,
    layout: Layout,
    name: Element<'_>,
    value: Element<'_>,
    deadline: Option<Deadline>,
) {
    debug_assert!(layout == Layout::Triples || deadline.is_none(), "pairs have no deadlines");
    let at = PackedFields::new(buffer.bytes(), layout).place_for(deadline);
    let triple = [name, value, deadline_element(deadline)];
    packed::insert_all(buffer, at, &triple[..layout.width()]);
}
