//! Sets: integers in ascending order, packed members, or a table.
//!
//! | encoding | stored as | as long as |
//! |---|---|---|
//! | intset | [`intset`], the entry's bytes | all members are integers, `set-max-intset-entries` at most |
//! | listpack | [`packed`], the entry's bytes | there are `set-max-listpack-entries` at most, none longer than `set-max-listpack-value` |
//! | hashtable | a [`Table`] of entries without a value, one allocation a member | |
//!
//! A set is created in the form that its first members need ([`SetMut::make_ready_for`]) and moves down this
//! list as it grows. Removing members does not move it up again, unless nearly all of many are popped at once
//! ([`SetMut::pop_many`]).
//!
//! # Members
//!
//! A member is an [`Element`]: its storage decides whether a text that spells an integer is read as `Text` or
//! as `Integer`. All functions that take an element take both for the same member.
//!
//! # Reading
//!
//! Other types need [`SetRef::len`], [`SetRef::contains`] and [`SetRef::iter`] of a set: sorted sets are
//! united with sets, too. `SetRef::of(entry, now)` makes the reference of any set's entry, also of one that
//! was [shared](crate::entry::EntryRef::share). So several sources can be read at once, wherever they live,
//! and their references are `Copy`. A share is dropped before a set that may be its source is written.

mod algebra;
mod builder;
pub mod intset;
mod random_members;

use braid_protocol::number;

pub use self::{algebra::Operation, builder::SetBuilder};
pub use crate::types::packed::Element;

use self::intset::{INTSET_MAX_LEN, IntSet};
use crate::{
    entry::{Encoding, EntryBox, EntryRef, Kind, Object},
    memory::{reclaim, teardown::Rubble},
    table::{Position, Table},
    types::{
        packed::{self, At, PACKED_MAX_BYTES, Packed},
        thresholds::Thresholds,
        value::{ValueMut, ValueRef, ValueType},
    },
};

/// The type of sets.
pub struct SetType;

/// A live set, for reading.
pub type SetRef<'a> = ValueRef<'a, SetType>;

/// A live set of a shard, for changes.
pub type SetMut<'a> = ValueMut<'a, SetType>;

const INTSET: Encoding = Encoding::new(0);
const LISTPACK: Encoding = Encoding::new(1);
const HASHTABLE: Encoding = Encoding::new(2);

/// The most bytes that an integer takes in a packed set: code, payload and the length after them.
const PACKED_INTEGER_MAX_BYTES: usize = 10;

impl ValueType for SetType {
    const KIND: Kind = Kind::Set;

    fn empty(key: &[u8]) -> EntryBox {
        EntryBox::with_bytes(Kind::Set, INTSET, key, intset::EMPTY, None)
    }

    fn is_empty(entry: EntryRef<'_>) -> bool {
        View::of(entry).is_empty()
    }
}

/// How Redis would store a set, in OBJECT ENCODING's words.
pub(crate) fn encoding_name(entry: EntryRef<'_>) -> &'static str {
    match View::of(entry) {
        View::Integers(_) => "intset",
        View::Packed(_) => "listpack",
        View::Table(_) => "hashtable",
    }
}

/// The table of a large set's members.
pub(crate) fn member_table(entry: EntryRef<'_>) -> Option<&Table> {
    match View::of(entry) {
        View::Table(table) => Some(table),
        View::Integers(_) | View::Packed(_) => None,
    }
}

/// The members of a large set: entries without a value.
struct MemberTable(Table);

impl MemberTable {
    /// Adds a member, unless it is there.
    fn insert(&mut self, member: Element<'_>) -> bool {
        member.with_text(|text| {
            let place = self.0.router().place(text);
            let is_new = self.0.find(text, place).is_none();
            if is_new {
                self.0.insert(EntryBox::string(text, b""), place);
            }
            is_new
        })
    }

    fn remove(&mut self, member: Element<'_>) -> bool {
        member.with_text(|text| {
            let place = self.0.router().place(text);
            let Some(slot) = self.0.find_mut(text, place) else { return false };
            reclaim::free(slot.remove());
            true
        })
    }
}

impl Object for MemberTable {
    fn allocated_bytes(&self) -> usize {
        self.0.allocated_bytes()
    }

    fn duplicate(&self) -> Self {
        let mut table = Table::alone(*self.0.router());
        for member in self.0.iter() {
            let text = member.key();
            let place = table.router().place(text);
            table.insert(EntryBox::string(text, b""), place);
        }
        MemberTable(table)
    }

    fn demolish(mut self) -> Box<dyn Rubble> {
        Box::new(self.0.detach())
    }
}

/// The contents of a set's entry.
#[derive(Clone, Copy)]
enum View<'a> {
    Integers(IntSet<'a>),
    Packed(Packed<'a>),
    Table(&'a Table),
}

impl<'a> View<'a> {
    #[inline]
    fn of(entry: EntryRef<'a>) -> Self {
        match entry.encoding() {
            HASHTABLE => View::Table(&entry.object::<MemberTable>().expect("a large set has its members").0),
            LISTPACK => View::Packed(Packed::new(bytes_of(entry))),
            _ => View::Integers(IntSet::new(bytes_of(entry))),
        }
    }

    #[inline]
    fn len(self) -> usize {
        match self {
            View::Integers(ints) => ints.len(),
            View::Packed(packed) => packed.len(),
            View::Table(table) => table.len(),
        }
    }

    #[inline]
    fn is_empty(self) -> bool {
        match self {
            View::Integers(ints) => ints.is_empty(),
            View::Packed(packed) => packed.is_empty(),
            View::Table(table) => table.is_empty(),
        }
    }

    fn contains(self, member: Element<'_>) -> bool {
        match self {
            View::Integers(ints) => match canonical(member) {
                Element::Integer(value) => ints.find(value).is_ok(),
                Element::Text(_) => false,
            },
            View::Packed(packed) => find_packed(packed, canonical(member)).is_some(),
            View::Table(table) => {
                member.with_text(|text| table.find(text, table.router().place(text)).is_some())
            }
        }
    }

    #[inline]
    fn iter(self) -> impl Iterator<Item = Element<'a>> + use<'a> {
        match self {
            View::Integers(ints) => Iter::Integers(ints.iter()),
            View::Packed(packed) => Iter::Packed(packed.iter()),
            View::Table(table) => Iter::Table(table.iter()),
        }
    }
}

/// Finds a member that is given as it is stored.
fn find_packed(packed: Packed<'_>, member: Element<'_>) -> Option<At> {
    let mut at = packed.first();
    while let Some(here) = at
        && packed.get(here) != member
    {
        at = packed.next(here);
    }
    at
}

fn bytes_of(entry: EntryRef<'_>) -> &[u8] {
    entry.bytes().expect("a small set is bytes")
}

/// The members of a set, however they are stored.
enum Iter<I, P, T> {
    Integers(I),
    Packed(P),
    Table(T),
}

impl<'a, I, P, T> Iterator for Iter<I, P, T>
where
    I: Iterator<Item = i64>,
    P: Iterator<Item = Element<'a>>,
    T: Iterator<Item = EntryRef<'a>>,
{
    type Item = Element<'a>;

    #[inline]
    fn next(&mut self) -> Option<Element<'a>> {
        match self {
            Iter::Integers(ints) => ints.next().map(Element::Integer),
            Iter::Packed(elements) => elements.next(),
            Iter::Table(entries) => entries.next().map(|entry| Element::Text(entry.key())),
        }
    }
}

/// A member as it is stored in a small set: an integer if it spells one.
#[inline]
fn canonical(member: Element<'_>) -> Element<'_> {
    match member {
        Element::Text(text) => Element::of(text),
        integer => integer,
    }
}

impl<'a> SetRef<'a> {
    /// The number of members.
    #[inline]
    pub fn len(self) -> usize {
        View::of(self.entry()).len()
    }

    /// Whether there are none.
    pub fn is_empty(self) -> bool {
        View::of(self.entry()).is_empty()
    }

    /// Whether this is a member.
    pub fn contains(self, member: Element<'_>) -> bool {
        View::of(self.entry()).contains(member)
    }

    /// All members: integers ascending, packed ones as they were added, those of a table in no order.
    pub fn iter(self) -> impl Iterator<Item = Element<'a>> + use<'a> {
        View::of(self.entry()).iter()
    }

    /// Visits members from a position on, `n` of them or a few more, and fewer only at the end. Returns the
    /// position to go on from, or `None` at the end. Small sets are visited whole, whatever the position.
    ///
    /// A member that is in the set from the first call to the last is visited at least once.
    pub fn scan(self, from: Position, n: usize, visit: &mut dyn FnMut(Element<'_>)) -> Option<Position> {
        match View::of(self.entry()) {
            View::Table(table) => table.scan_entries(from, n, &mut |entry| visit(Element::Text(entry.key()))),
            small => {
                small.iter().for_each(visit);
                None
            }
        }
    }
}

impl SetMut<'_> {
    /// Prepares a set for `n` members, `first` the first of them. A new one gets its form, and another
    /// becomes a table at once if it has no room for that many. As in Redis, it does not matter whether they
    /// are there already.
    pub fn make_ready_for(&mut self, first: &[u8], n: usize) {
        let encoding = self.entry().encoding();
        if encoding == HASHTABLE {
            return;
        }
        let is_new = self.as_ref().is_empty();
        let thresholds = self.thresholds();
        let fits_packed = n <= thresholds.set_max_listpack_entries();
        let stays = match encoding {
            INTSET if is_new && number::parse_i64(first).is_none() => false,
            INTSET => n <= thresholds.set_max_intset_entries(),
            _ => fits_packed,
        };
        if stays {
            return;
        }
        if is_new && fits_packed {
            self.arrange(become_packed);
        } else {
            self.become_table();
        }
    }

    /// Adds a member; returns whether it was not there.
    pub fn insert(&mut self, member: &[u8]) -> bool {
        let (member, thresholds) = (Element::Text(member), self.thresholds());
        let is_new =
            self.arrange_object(|members: &mut MemberTable| members.insert(member)).unwrap_or_else(|| {
                self.arrange(|entry| insert(entry, member, thresholds)).unwrap_or_else(|Outgrown| {
                    self.become_table();
                    self.arrange(|entry| members_mut(entry).insert(member))
                })
            });
        if is_new {
            self.mark_changed();
        }
        is_new
    }

    /// Removes a member; returns whether it was there.
    pub fn remove(&mut self, member: &[u8]) -> bool {
        let member = Element::Text(member);
        let was_there = self
            .arrange_object(|members: &mut MemberTable| members.remove(member))
            .unwrap_or_else(|| self.arrange(|entry| remove(entry, member)));
        if was_there {
            self.mark_changed();
        }
        was_there
    }

    fn become_table(&mut self) {
        let table = self.new_table();
        self.arrange(|entry| become_table(entry, table));
    }
}

/// A member that is not there would take the set past its thresholds: the set has to become a table first.
struct Outgrown;

/// Adds a member; returns whether it was not there.
fn insert(entry: &mut EntryBox, member: Element<'_>, thresholds: &Thresholds) -> Result<bool, Outgrown> {
    match entry.as_ref().encoding() {
        HASHTABLE => Ok(members_mut(entry).insert(member)),
        LISTPACK => insert_packed(entry, canonical(member), thresholds),
        _ => insert_integer(entry, canonical(member), thresholds),
    }
}

fn insert_packed(
    entry: &mut EntryBox,
    member: Element<'_>,
    thresholds: &Thresholds,
) -> Result<bool, Outgrown> {
    let packed = Packed::new(bytes_of(entry.as_ref()));
    if find_packed(packed, member).is_some() {
        return Ok(false);
    }
    let text_bytes = member.text_len();
    if packed.len() >= thresholds.set_max_listpack_entries()
        || text_bytes > thresholds.set_max_listpack_value()
        || !packed::has_room(packed, text_bytes)
    {
        return Err(Outgrown);
    }
    let end = packed.end();
    packed::insert_element(entry, end, member);
    Ok(true)
}

/// Adds a member to integers, which become packed by one that is none.
fn insert_integer(
    entry: &mut EntryBox,
    member: Element<'_>,
    thresholds: &Thresholds,
) -> Result<bool, Outgrown> {
    let ints = IntSet::new(bytes_of(entry.as_ref()));
    match member {
        Element::Integer(value) => match ints.find(value) {
            Ok(_) => Ok(false),
            Err(_) if ints.len() >= intset_max_len(thresholds) => Err(Outgrown),
            Err(index) => {
                intset::insert(entry, index, value);
                Ok(true)
            }
        },
        Element::Text(text) => {
            let longest = text.len().max(ints.text_bytes_max());
            if ints.len() >= thresholds.set_max_listpack_entries()
                || longest > thresholds.set_max_listpack_value()
                || ints.len() * PACKED_INTEGER_MAX_BYTES + text.len() > PACKED_MAX_BYTES
            {
                return Err(Outgrown);
            }
            become_packed(entry);
            let end = Packed::new(bytes_of(entry.as_ref())).end();
            packed::insert_element(entry, end, member);
            Ok(true)
        }
    }
}

fn intset_max_len(thresholds: &Thresholds) -> usize {
    thresholds.set_max_intset_entries().min(INTSET_MAX_LEN)
}

/// Removes a member; returns whether it was there. The set keeps its form, however small.
fn remove(entry: &mut EntryBox, member: Element<'_>) -> bool {
    match View::of(entry.as_ref()) {
        View::Table(_) => members_mut(entry).remove(member),
        View::Packed(packed) => {
            let Some(at) = find_packed(packed, canonical(member)) else { return false };
            packed::remove(entry, at, 1) == 1
        }
        View::Integers(ints) => match canonical(member) {
            Element::Integer(value) => {
                ints.find(value).inspect(|&index| intset::remove(entry, index)).is_ok()
            }
            Element::Text(_) => false,
        },
    }
}

fn members_mut(entry: &mut EntryBox) -> &mut MemberTable {
    entry.object_mut().expect(IS_OBJECT)
}

const IS_OBJECT: &str = "a large set has its members";

/// Stores integers like other members.
fn become_packed(entry: &mut EntryBox) {
    let ints = IntSet::new(bytes_of(entry.as_ref()));
    let bytes = packed_bytes(ints.iter().map(Element::Integer));
    entry.set_bytes(&bytes);
    entry.set_encoding(LISTPACK);
}

/// Stores the members of a small set in a table, which is empty.
fn become_table(entry: &mut EntryBox, table: Table) {
    let mut members = MemberTable(table);
    for member in View::of(entry.as_ref()).iter() {
        members.insert(member);
    }
    entry.set_object(members);
    entry.set_encoding(HASHTABLE);
}

/// Members that differ, packed.
fn packed_bytes<'a>(members: impl Iterator<Item = Element<'a>>) -> Vec<u8> {
    let mut bytes = packed::EMPTY.to_vec();
    for member in members {
        let end = Packed::new(&bytes).end();
        packed::insert_element(&mut bytes, end, member);
    }
    bytes
}

#[cfg(test)]
mod tests;
