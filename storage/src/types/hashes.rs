//! Hashes: fields and their values; a field may have a deadline of its own.
//!
//! A hash is stored in one of three forms, and only ever goes down this list:
//!
//! | form | OBJECT ENCODING | is |
//! |---|---|---|
//! | pairs | `listpack` | packed name, value, name, value … |
//! | triples | `listpackex` | packed name, value, deadline … by deadline; 0 stands for none, and those come last |
//! | table | `hashtable` | a table from names to values, and a deadline index of the deadlines |
//!
//! Pairs become triples when a command first asks for a deadline in the hash, and either becomes a table when
//! there are more than `hash-max-listpack-entries` fields or a text is longer than `hash-max-listpack-value`.
//!
//! **A field whose deadline has passed is not there**, for any operation of this file: it is not read, not
//! counted, and setting it adds a new field. It may still be stored, until an operation writes to it or
//! expiry removes it. That matters only for memory. A hash in which all fields have expired is no key any
//! more.

mod field_table;
mod packed_fields;
#[cfg(test)]
mod tests;

use std::borrow::Cow;

use self::field_table::FieldTable;
use self::packed_fields::{Layout, PackedFields};
use crate::{
    entry::{
        Encoding, EntryBox, EntryRef, Kind,
        time::{Deadline, Expiry, Millis},
    },
    table::{Position, Table},
    types::{
        packed::{self as elements, Element},
        value::{ValueMut, ValueRef, ValueType},
    },
};

/// The type of hashes.
pub struct HashType;

/// A live hash, for reading.
pub type HashRef<'a> = ValueRef<'a, HashType>;

/// A live hash of a shard, for changes.
pub type HashMut<'a> = ValueMut<'a, HashType>;

/// A field of a hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field<'a> {
    /// The name of the field.
    pub name: Element<'a>,
    /// The value of the field.
    pub value: Element<'a>,
    /// The deadline of the field, if it has one.
    pub deadline: Option<Deadline>,
}

impl<'a> Field<'a> {
    fn of_entry(entry: EntryRef<'a>) -> Self {
        let value = entry.bytes().expect("the entries of a hash are strings");
        Self { name: Element::Text(entry.key()), value: Element::Text(value), deadline: entry.deadline() }
    }

    fn has_expired(&self, now: Millis) -> bool {
        self.deadline.is_some_and(|deadline| deadline.has_passed(now))
    }
}

/// Whether a field was there before it was set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inserted {
    /// It was not.
    New,
    /// It was, with the same value or another.
    Replaced,
}

/// The state in which a field was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    Live,
    Expired,
}

impl Found {
    fn of(deadline: Option<Deadline>, now: Millis) -> Self {
        if deadline.is_some_and(|deadline| deadline.has_passed(now)) { Found::Expired } else { Found::Live }
    }

    fn inserted(self) -> Inserted {
        match self {
            Found::Live => Inserted::Replaced,
            Found::Expired => Inserted::New,
        }
    }
}

/// The deadline of a field after a write, if it had `before` and still lives.
fn deadline_after(expiry: Expiry, before: Option<Deadline>) -> Option<Deadline> {
    match expiry {
        Expiry::Keep => before,
        Expiry::Clear => None,
        Expiry::At(deadline) => Some(deadline),
    }
}

/// The storage of a hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HashForm {
    Packed(Layout),
    Table,
}

impl HashForm {
    const fn encoding(self) -> Encoding {
        Encoding::new(match self {
            HashForm::Packed(Layout::Pairs) => 0,
            HashForm::Packed(Layout::Triples) => 1,
            HashForm::Table => 2,
        })
    }

    #[inline]
    fn of(entry: EntryRef<'_>) -> Self {
        match entry.encoding().nibble() {
            0 => HashForm::Packed(Layout::Pairs),
            1 => HashForm::Packed(Layout::Triples),
            _ => HashForm::Table,
        }
    }
}

/// The contents of a hash.
#[derive(Clone, Copy)]
enum Contents<'a> {
    Packed(PackedFields<'a>),
    Table(&'a FieldTable),
}

impl<'a> Contents<'a> {
    #[inline]
    fn of(entry: EntryRef<'a>) -> Self {
        match HashForm::of(entry) {
            HashForm::Packed(layout) => {
                Contents::Packed(PackedFields::new(entry.bytes().expect("a packed hash is bytes"), layout))
            }
            HashForm::Table => Contents::Table(entry.object().expect("a large hash is a table")),
        }
    }

    fn len(self) -> usize {
        match self {
            Contents::Packed(fields) => fields.len(),
            Contents::Table(fields) => fields.len(),
        }
    }

    fn n_expired(self, now: Millis) -> usize {
        match self {
            Contents::Packed(fields) => fields.n_expired(now),
            Contents::Table(fields) => fields.n_expired(now),
        }
    }

    /// All fields, expired ones included.
    fn iter(self) -> impl Iterator<Item = Field<'a>> {
        let (packed, table) = match self {
            Contents::Packed(fields) => (Some(fields), None),
            Contents::Table(fields) => (None, Some(fields)),
        };
        let packed = packed.into_iter().flat_map(PackedFields::iter);
        packed.chain(table.into_iter().flat_map(FieldTable::iter))
    }
}

impl ValueType for HashType {
    const KIND: Kind = Kind::Hash;

    fn empty(key: &[u8]) -> EntryBox {
        EntryBox::with_bytes(
            Kind::Hash,
            HashForm::Packed(Layout::Pairs).encoding(),
            key,
            elements::EMPTY,
            None,
        )
    }

    #[inline]
    fn is_empty(entry: EntryRef<'_>) -> bool {
        match Contents::of(entry) {
            Contents::Packed(fields) => fields.is_empty(),
            Contents::Table(fields) => fields.len() == 0,
        }
    }

    #[inline]
    fn next_deadline(entry: EntryRef<'_>) -> Option<Deadline> {
        match Contents::of(entry) {
            Contents::Packed(fields) => fields.first_deadline(),
            Contents::Table(fields) => fields.first_deadline(),
        }
    }
}

/// The table of a large hash's fields.
pub(crate) fn member_table(entry: EntryRef<'_>) -> Option<&Table> {
    match Contents::of(entry) {
        Contents::Table(fields) => Some(fields.entries()),
        Contents::Packed(_) => None,
    }
}

/// The earliest deadline of a field, of an entry of any kind.
#[inline]
pub(crate) fn next_deadline(entry: EntryRef<'_>) -> Option<Deadline> {
    if entry.kind() == Kind::Hash { HashType::next_deadline(entry) } else { None }
}

/// Whether an entry of any kind is a hash in which all fields have expired.
#[inline]
pub(crate) fn is_over(entry: EntryRef<'_>, now: Millis) -> bool {
    entry.kind() == Kind::Hash && is_hash_over(entry, now)
}

/// Whether all fields of a hash have expired. Apart, because most entries are none.
fn is_hash_over(entry: EntryRef<'_>, now: Millis) -> bool {
    if HashForm::of(entry) == HashForm::Packed(Layout::Pairs) {
        return false;
    }
    let last = match Contents::of(entry) {
        Contents::Packed(fields) => fields.last_deadline(),
        Contents::Table(fields) => fields.last_deadline(),
    };
    last.is_some_and(|last| last.has_passed(now))
}

/// How Redis would store a hash, in OBJECT ENCODING's words.
pub(crate) fn encoding_name(entry: EntryRef<'_>) -> &'static str {
    match HashForm::of(entry) {
        HashForm::Packed(Layout::Pairs) => "listpack",
        HashForm::Packed(Layout::Triples) => "listpackex",
        HashForm::Table => "hashtable",
    }
}

impl<'a> HashRef<'a> {
    /// The packed triples of a small hash whose fields have deadlines, without those that have expired.
    pub(crate) fn live_triples(self) -> Option<Cow<'a, [u8]>> {
        if HashForm::of(self.entry()) != HashForm::Packed(Layout::Triples) {
            return None;
        }
        let bytes = self.entry().bytes().expect("a packed hash is bytes");
        let mut triples = Cow::Borrowed(bytes);
        if PackedFields::new(bytes, Layout::Triples).n_expired(self.now()) > 0 {
            packed_fields::expire(triples.to_mut(), self.now(), usize::MAX, |_| {});
        }
        Some(triples)
    }

    fn contents(self) -> Contents<'a> {
        Contents::of(self.entry())
    }

    /// The number of fields. If deadlines have passed, takes time in proportion to the fields that are not
    /// removed yet.
    #[inline]
    pub fn len(self) -> usize {
        let contents = self.contents();
        contents.len() - contents.n_expired(self.now())
    }

    /// The number of stored fields, with expired ones that are not removed yet. Constant in time.
    pub fn n_stored(self) -> usize {
        self.contents().len()
    }

    /// Whether there may be expired fields that are not removed yet.
    pub fn has_expired_fields(self) -> bool {
        next_deadline(self.entry()).is_some_and(|deadline| deadline.has_passed(self.now()))
    }

    /// Whether there are no fields.
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// A field.
    #[inline]
    pub fn field(self, name: &[u8]) -> Option<Field<'a>> {
        let field = match self.contents() {
            Contents::Packed(fields) => fields.find(name).map(|(_, field)| field),
            Contents::Table(fields) => fields.find(name),
        };
        field.filter(|field| !field.has_expired(self.now()))
    }

    /// The value of a field.
    #[inline]
    pub fn get(self, name: &[u8]) -> Option<Element<'a>> {
        self.field(name).map(|field| field.value)
    }

    /// All fields.
    pub fn iter(self) -> impl Iterator<Item = Field<'a>> {
        let now = self.now();
        self.contents().iter().filter(move |field| !field.has_expired(now))
    }

    /// Visits fields from a position on, through at most `n_buckets` buckets, and all of a packed hash.
    /// Returns the position to go on from, or `None` at the end.
    pub fn scan(
        self,
        from: Position,
        n_buckets: usize,
        visit: &mut dyn FnMut(Field<'_>),
    ) -> Option<Position> {
        let now = self.now();
        match self.contents() {
            Contents::Packed(_) => {
                self.iter().for_each(visit);
                None
            }
            Contents::Table(fields) => fields.scan(from, n_buckets, &mut |field| {
                if !field.has_expired(now) {
                    visit(field);
                }
            }),
        }
    }

    /// A random field, nearly as likely as any other.
    pub fn random_field(self, random: u64) -> Option<Field<'a>> {
        match self.contents() {
            Contents::Table(fields) if fields.n_expired(self.now()) == 0 => fields.sample(random),
            _ => {
                let index = random.checked_rem(self.len() as u64)?;
                self.iter().nth(index as usize)
            }
        }
    }

    /// Prepares to draw many random fields.
    pub fn random_fields(self) -> RandomFields<'a> {
        match self.contents() {
            Contents::Table(fields) if fields.n_expired(self.now()) == 0 => {
                RandomFields(Drawn::Table(fields))
            }
            _ => RandomFields(Drawn::Listed(self.iter().collect())),
        }
    }

    /// Visits `n` different fields, or all if there are no more, each nearly as likely as any other.
    pub fn choose(self, n: usize, random: &mut dyn FnMut() -> u64, visit: &mut dyn FnMut(Field<'a>)) {
        let len = self.len();
        if let Contents::Table(fields) = self.contents()
            && fields.len() == len
            && n < len / SPARSE_CHOICE
        {
            return fields.choose_few(n, random, visit);
        }
        let (mut n_wanted, mut n_left) = (n as u64, len as u64);
        for field in self.iter() {
            if n_wanted == 0 {
                return;
            }
            // Knuth's selection sampling: the chance of each is the number still wanted, divided by the
            // number left.
            if random() % n_left < n_wanted {
                visit(field);
                n_wanted -= 1;
            }
            n_left -= 1;
        }
    }
}

/// Where less than one field in this many is wanted, drawing until they differ is faster than a walk through
/// all.
const SPARSE_CHOICE: usize = 3;

/// A hash's fields, to be drawn by chance again and again.
pub struct RandomFields<'a>(Drawn<'a>);

enum Drawn<'a> {
    Listed(Vec<Field<'a>>),
    Table(&'a FieldTable),
}

impl<'a> RandomFields<'a> {
    /// A field, nearly as likely as any other.
    pub fn draw(&self, random: u64) -> Option<Field<'a>> {
        match &self.0 {
            Drawn::Listed(fields) => {
                let index = random.checked_rem(fields.len() as u64)?;
                Some(fields[index as usize])
            }
            Drawn::Table(fields) => fields.sample(random),
        }
    }
}

impl HashMut<'_> {
    /// Gets ready for `n` fields that are about to be set: so many make a table, whether or not they differ.
    pub fn prepare(&mut self, n: usize) {
        if n > self.thresholds().hash_max_listpack_entries() && self.is_packed() {
            self.convert_to_table();
        }
    }

    /// Gets ready for deadlines that are about to be set, whether or not there are fields to set them for.
    pub fn admit_deadlines(&mut self) {
        if HashForm::of(self.entry()) == HashForm::Packed(Layout::Pairs) {
            self.convert_to_triples();
        }
    }

    /// Sets a field; `expiry` decides its deadline.
    pub fn set(&mut self, name: &[u8], value: &[u8], expiry: Expiry) -> Inserted {
        let now = self.now();
        if self.is_logged() {
            self.record_if_expired(name);
        }
        let set_large = |fields: &mut FieldTable| fields.set(name, value, expiry, now);
        if let Some(inserted) = self.arrange_object(set_large) {
            self.mark_changed();
            return inserted;
        }
        if !self.can_pack(name, value) {
            self.convert_to_table();
        }
        if let Expiry::At(_) = expiry {
            self.admit_deadlines();
        }
        self.mark_changed();
        let inserted = self.arrange(|entry| match HashForm::of(entry.as_ref()) {
            HashForm::Packed(layout) => packed_fields::set(entry, layout, name, value, expiry, now),
            HashForm::Table => table_mut(entry).set(name, value, expiry, now),
        });
        if inserted == Inserted::New && self.is_packed() {
            let n_fields = Contents::of(self.entry()).len();
            if n_fields > self.thresholds().hash_max_listpack_entries() {
                self.convert_to_table();
            }
        }
        inserted
    }

    /// Removes a field; returns whether there was one.
    pub fn remove(&mut self, name: &[u8]) -> bool {
        let now = self.now();
        if self.is_logged() {
            self.record_if_expired(name);
        }
        let found = self.arrange(|entry| match HashForm::of(entry.as_ref()) {
            HashForm::Packed(layout) => packed_fields::remove(entry, layout, name, now),
            HashForm::Table => table_mut(entry).remove(name, now),
        });
        match found {
            Some(Found::Live) => self.mark_changed(),
            Some(Found::Expired) => self.lose_expired_fields(1),
            None => {}
        }
        found == Some(Found::Live)
    }

    /// Sets another deadline for an existing field, or none.
    pub fn set_field_deadline(&mut self, name: &[u8], deadline: Option<Deadline>) {
        if deadline.is_some() {
            self.admit_deadlines();
        }
        self.mark_changed();
        self.arrange(|entry| match HashForm::of(entry.as_ref()) {
            HashForm::Packed(Layout::Pairs) => {}
            HashForm::Packed(Layout::Triples) => packed_fields::set_deadline(entry, name, deadline),
            HashForm::Table => table_mut(entry).set_deadline(name, deadline),
        });
    }

    /// Removes up to `n_max` fields whose deadline has passed, in the order of the deadlines; returns how
    /// many.
    pub fn expire(&mut self, n_max: usize) -> usize {
        let now = self.now();
        if !HashType::next_deadline(self.entry()).is_some_and(|deadline| deadline.has_passed(now)) {
            return 0;
        }
        let is_logged = self.is_logged();
        let mut names: Vec<Box<[u8]>> = Vec::new();
        let lost = |name: &[u8]| {
            if is_logged {
                names.push(name.into());
            }
        };
        let n_expired = self.arrange(|entry| match HashForm::of(entry.as_ref()) {
            HashForm::Packed(Layout::Pairs) => 0,
            HashForm::Packed(Layout::Triples) => packed_fields::expire(entry, now, n_max, lost),
            HashForm::Table => table_mut(entry).expire(now, n_max, lost),
        });
        self.record_lost_fields(names.iter().map(|name| &**name));
        self.lose_expired_fields(n_expired);
        n_expired
    }

    /// Removes a field that was given a deadline which has passed already: as in Redis, it counts as expired.
    pub fn remove_over(&mut self, name: &[u8]) {
        self.remove(name);
        self.count_expired_fields(1);
    }

    /// Records for the log that a field's deadline has passed, as the next command treats the field as
    /// missing.
    #[cold]
    fn record_if_expired(&self, name: &[u8]) {
        let now = self.now();
        let found = match Contents::of(self.entry()) {
            Contents::Packed(fields) => fields.find(name).map(|(_, field)| field),
            Contents::Table(fields) => fields.find(name),
        };
        if found.is_some_and(|field| field.has_expired(now)) {
            self.record_lost_fields(std::iter::once(name));
        }
    }

    fn is_packed(&self) -> bool {
        HashForm::of(self.entry()) != HashForm::Table
    }

    /// Whether the field may be set in the present form of the hash.
    fn can_pack(&self, name: &[u8], value: &[u8]) -> bool {
        match Contents::of(self.entry()) {
            Contents::Table(_) => true,
            Contents::Packed(fields) => {
                let longest = self.thresholds().hash_max_listpack_value();
                name.len() <= longest && value.len() <= longest && fields.has_room(name.len() + value.len())
            }
        }
    }

    fn convert_to_triples(&mut self) {
        let bytes = match Contents::of(self.entry()) {
            Contents::Packed(fields) => packed_fields::triples_of(fields),
            Contents::Table(_) => unreachable!("a table stays a table"),
        };
        self.arrange(|entry| {
            entry.set_bytes(&bytes);
            entry.set_encoding(HashForm::Packed(Layout::Triples).encoding());
        });
    }

    fn convert_to_table(&mut self) {
        let fields = FieldTable::of_fields(self.new_table(), Contents::of(self.entry()).iter());
        self.arrange(|entry| {
            entry.set_object(fields);
            entry.set_encoding(HashForm::Table.encoding());
        });
    }
}

fn table_mut(entry: &mut EntryBox) -> &mut FieldTable {
    entry.object_mut().expect("a large hash is a table")
}
