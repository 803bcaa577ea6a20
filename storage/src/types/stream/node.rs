//! Nodes: neighbouring entries of a stream, packed together.
//!
//! The layout is Redis's, so that DUMP and RESTORE copy it. These are the elements of a node (see
//! [packed](crate::types::packed)):
//!
//! ```text
//! head     live | deleted | n | name × n | 0
//! entry    flags | ms | seq | n | (name | value) × n | 4 + 2n
//! entry    flags with SAME_FIELDS | ms | seq | value × n | 3 + n
//! ```
//!
//! The head counts entries and has the names of the first entry's fields, which entries with the same names
//! leave out. Times and numbers are stored as differences from the identity under which the tree keeps the
//! node: the first entry's. The last element of an entry is the number of elements before it, so that entries
//! can be read backwards; the head ends with 0. A deleted entry stays, with a flag, until the whole node
//! goes.

use super::StreamId;
use crate::types::packed::{self, At, Element, Packed};

/// The entry is gone.
const DELETED: i64 = 1;
/// The entry's names are those of the head.
const SAME_FIELDS: i64 = 2;

/// Some neighbouring entries.
#[derive(Clone)]
pub struct PackedNode {
    bytes: Vec<u8>,
}

/// The decision about an entry in [`PackedNode::sift`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It stays.
    Stays,
    /// It is deleted.
    Goes,
    /// It stays, and so do all after it.
    Ends,
}

impl PackedNode {
    /// Makes a node with one entry of these names and values in turn. The entry's identity is the node's key
    /// in the tree.
    pub fn new(fields: &[Element<'_>]) -> Self {
        let names = fields.iter().step_by(2).copied();
        let mut elements =
            vec![Element::Integer(1), Element::Integer(0), Element::Integer((fields.len() / 2) as i64)];
        elements.extend(names);
        elements.push(Element::Integer(0));
        push_entry(&mut elements, StreamId::MIN, fields, SAME_FIELDS);
        let mut bytes = packed::EMPTY.to_vec();
        let end = Packed::new(&bytes).end();
        packed::insert_all(&mut bytes, end, &elements);
        PackedNode { bytes }
    }

    /// A node from bytes that come from elsewhere, if they are one that can be kept under `id`.
    pub fn check(bytes: Vec<u8>, id: StreamId) -> Option<Self> {
        Checker::new(Packed::check(&bytes)?, id)?.run()?;
        Some(PackedNode { bytes })
    }

    /// The packed elements.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The bytes that are allocated.
    pub fn capacity(&self) -> usize {
        self.bytes.capacity()
    }

    /// Frees the room that the node has for more.
    pub fn shrink(&mut self) {
        self.bytes.shrink_to_fit();
    }

    /// The number of live entries.
    pub fn n_live(&self) -> usize {
        self.head_count(self.first())
    }

    /// The number of deleted entries.
    pub fn n_deleted(&self) -> usize {
        self.head_count(self.packed().behind(self.first()))
    }

    /// Adds an entry at the end. `id` is its own, `node_id` that of the node.
    pub fn push(&mut self, node_id: StreamId, id: StreamId, fields: &[Element<'_>]) {
        let head = Head::of(self.packed(), node_id);
        let names = self.packed().iter_from(head.names).take(head.n_fields);
        let same = fields.len() == 2 * head.n_fields && fields.iter().step_by(2).copied().eq(names);
        let mut elements = smallvec::SmallVec::<[Element<'_>; 16]>::new();
        let beyond = StreamId::new(id.ms.wrapping_sub(node_id.ms), id.seq.wrapping_sub(node_id.seq));
        push_entry(&mut elements, beyond, fields, if same { SAME_FIELDS } else { 0 });
        let end = self.packed().end();
        packed::insert_all(&mut self.bytes, end, &elements);
        self.set_head_count(self.first(), self.n_live() + 1);
    }

    /// Goes through the live entries in order, and deletes those whose fate it is; says how many there were.
    pub fn sift(&mut self, node_id: StreamId, mut judge: impl FnMut(StreamId) -> Fate) -> usize {
        let head = Head::of(self.packed(), node_id);
        let (mut at, mut n_gone) = (head.entries, 0);
        while at != self.packed().end() {
            let (entry, mut behind) = head.entry(self.packed(), at);
            if !entry.is_deleted {
                match judge(entry.id) {
                    Fate::Stays => {}
                    Fate::Ends => break,
                    Fate::Goes => {
                        let flags = self.packed().get(at).integer().unwrap_or_default();
                        packed::replace_element(&mut self.bytes, at, Element::Integer(flags | DELETED));
                        // The flags of a node from elsewhere may have been wider than they had to be.
                        behind = head.entry(self.packed(), at).1;
                        n_gone += 1;
                    }
                }
            }
            at = behind;
        }
        if n_gone > 0 {
            let n_deleted = self.n_deleted();
            self.set_head_count(self.first(), self.n_live() - n_gone);
            self.set_head_count(self.packed().behind(self.first()), n_deleted + n_gone);
        }
        n_gone
    }

    /// All entries, deleted ones included, from the first on.
    pub fn entries(&self, node_id: StreamId) -> Forwards<'_> {
        let head = Head::of(self.packed(), node_id);
        Forwards { packed: self.packed(), at: head.entries, head }
    }

    /// All entries, deleted ones included, from the last on.
    pub fn entries_backwards(&self, node_id: StreamId) -> Backwards<'_> {
        let packed = self.packed();
        Backwards { packed, head: Head::of(packed, node_id), behind: packed.end() }
    }

    fn packed(&self) -> Packed<'_> {
        Packed::new(&self.bytes)
    }

    fn first(&self) -> At {
        self.packed().first().expect("a node has a head")
    }

    fn head_count(&self, at: At) -> usize {
        self.packed().get(at).integer().unwrap_or_default() as usize
    }

    fn set_head_count(&mut self, at: At, n: usize) {
        packed::replace_element(&mut self.bytes, at, Element::Integer(n as i64));
    }
}

/// Appends the elements of an entry.
fn push_entry<'e>(
    elements: &mut impl Extend<Element<'e>>,
    beyond: StreamId,
    fields: &[Element<'e>],
    flags: i64,
) {
    let n = (fields.len() / 2) as i64;
    elements.extend([flags, beyond.ms as i64, beyond.seq as i64].map(Element::Integer));
    if flags & SAME_FIELDS != 0 {
        elements.extend(fields.iter().skip(1).step_by(2).copied());
        elements.extend([Element::Integer(3 + n)]);
    } else {
        elements.extend([Element::Integer(n)]);
        elements.extend(fields.iter().copied());
        elements.extend([Element::Integer(4 + 2 * n)]);
    }
}

#[cfg(test)]
thread_local! {
    /// How many entries have been read from nodes.
    pub(super) static N_READ: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// Where things are in a node.
#[derive(Clone, Copy)]
struct Head {
    /// The key of the node in the tree.
    id: StreamId,
    n_fields: usize,
    /// The first name, or the closing 0 if there is none.
    names: At,
    /// The first entry.
    entries: At,
}

impl Head {
    #[inline]
    fn of(packed: Packed<'_>, id: StreamId) -> Self {
        let live = packed.first().expect("a node has a head");
        let n = packed.behind(packed.behind(live));
        let n_fields = packed.get(n).integer().unwrap_or_default() as usize;
        let names = packed.behind(n);
        let closing = (0..n_fields).fold(names, |at, _| packed.behind(at));
        Head { id, n_fields, names, entries: packed.behind(closing) }
    }

    /// The entry at `at`, and the place after it.
    #[inline]
    fn entry<'a>(&self, packed: Packed<'a>, at: At) -> (Entry<'a>, At) {
        #[cfg(test)]
        N_READ.set(N_READ.get() + 1);
        let mut next = at;
        let mut integer = || {
            let value = packed.get(next).integer().unwrap_or_default();
            next = packed.behind(next);
            value
        };
        let flags = integer();
        let (ms, seq) = (integer() as u64, integer() as u64);
        let same = flags & SAME_FIELDS != 0;
        let n_fields = if same { self.n_fields } else { integer() as usize };
        let own = next;
        let n_own = if same { n_fields } else { 2 * n_fields };
        let closing = (0..n_own).fold(own, |at, _| packed.behind(at));
        let entry = Entry {
            packed,
            id: StreamId::new(self.id.ms.wrapping_add(ms), self.id.seq.wrapping_add(seq)),
            n_fields,
            names: same.then_some(self.names),
            own,
            is_deleted: flags & DELETED != 0,
        };
        (entry, packed.behind(closing))
    }
}

/// An entry, as it lies in its node.
#[derive(Clone, Copy)]
pub struct Entry<'a> {
    packed: Packed<'a>,
    id: StreamId,
    n_fields: usize,
    /// Where its names are, if they are not among its own elements.
    names: Option<At>,
    /// Its names and values in turn, or its values.
    own: At,
    is_deleted: bool,
}

impl<'a> Entry<'a> {
    /// The entry's identity.
    pub fn id(&self) -> StreamId {
        self.id
    }

    /// The number of fields.
    pub fn n_fields(&self) -> usize {
        self.n_fields
    }

    /// Whether it is deleted.
    pub fn is_deleted(&self) -> bool {
        self.is_deleted
    }

    /// Names and values, in the order in which they were given.
    pub fn fields(&self) -> Fields<'a> {
        Fields {
            names: self.names.map(|at| self.packed.iter_from(at)),
            own: self.packed.iter_from(self.own),
            n_left: self.n_fields,
        }
    }
}

impl std::fmt::Debug for Entry<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Entry")
            .field("id", &self.id)
            .field("is_deleted", &self.is_deleted)
            .finish_non_exhaustive()
    }
}

/// The fields of an [`Entry`].
#[derive(Clone)]
pub struct Fields<'a> {
    names: Option<packed::Iter<'a>>,
    own: packed::Iter<'a>,
    n_left: usize,
}

impl<'a> Iterator for Fields<'a> {
    type Item = (Element<'a>, Element<'a>);

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        self.n_left = self.n_left.checked_sub(1)?;
        let name = match &mut self.names {
            Some(names) => names.next(),
            None => self.own.next(),
        };
        Some((name?, self.own.next()?))
    }
}

/// The entries of a [`PackedNode`], from the first on.
#[derive(Clone)]
pub struct Forwards<'a> {
    packed: Packed<'a>,
    head: Head,
    at: At,
}

impl<'a> Iterator for Forwards<'a> {
    type Item = Entry<'a>;

    #[inline]
    fn next(&mut self) -> Option<Entry<'a>> {
        if self.at == self.packed.end() {
            return None;
        }
        let (entry, behind) = self.head.entry(self.packed, self.at);
        self.at = behind;
        Some(entry)
    }
}

/// The entries of a [`PackedNode`], from the last on.
#[derive(Clone)]
pub struct Backwards<'a> {
    packed: Packed<'a>,
    head: Head,
    /// The end, or the entry that came last.
    behind: At,
}

impl<'a> Iterator for Backwards<'a> {
    type Item = Entry<'a>;

    #[inline]
    fn next(&mut self) -> Option<Entry<'a>> {
        if self.behind == self.head.entries {
            return None;
        }
        let closing = self.packed.before(self.behind)?;
        let n = self.packed.get(closing).integer().unwrap_or_default();
        self.behind = (0..n).try_fold(closing, |at, _| self.packed.before(at))?;
        Some(self.head.entry(self.packed, self.behind).0)
    }
}

/// Reads elements that may be anything.
struct Checker<'a> {
    elements: packed::Iter<'a>,
    id: StreamId,
    n_left: usize,
    n_head_fields: usize,
    n_live: i64,
    n_deleted: i64,
}

impl<'a> Checker<'a> {
    /// Reads the head.
    fn new(packed: Packed<'a>, id: StreamId) -> Option<Self> {
        let (elements, n_left) = (packed.iter(), packed.len());
        let mut checker = Checker { elements, id, n_left, n_head_fields: 0, n_live: 0, n_deleted: 0 };
        checker.n_live = checker.integer()?;
        checker.n_deleted = checker.integer()?;
        checker.n_head_fields = checker.n_fields()?;
        checker.skip(checker.n_head_fields)?;
        (checker.n_live >= 0 && checker.n_deleted >= 0 && checker.integer()? == 0).then_some(checker)
    }

    /// Reads the entries.
    fn run(mut self) -> Option<()> {
        let (mut n_live, mut n_deleted) = (0, 0);
        let mut least = Some(self.id);
        while self.n_left > 0 {
            let n_before = self.n_left;
            let flags = self.integer()?;
            let (ms, seq) = (self.integer()? as u64, self.integer()? as u64);
            let id = StreamId::new(self.id.ms.wrapping_add(ms), self.id.seq.wrapping_add(seq));
            match flags {
                0 | DELETED => {
                    let n_fields = self.n_fields()?;
                    self.skip(n_fields.checked_mul(2)?)?;
                }
                _ if flags & !DELETED == SAME_FIELDS => self.skip(self.n_head_fields)?,
                _ => return None,
            }
            let n_elements = (n_before - self.n_left) as i64;
            if self.integer()? != n_elements {
                return None;
            }
            if flags & DELETED != 0 {
                // XSETID may have gone back behind it, as it is nobody's any more.
                n_deleted += 1;
                continue;
            }
            if id < least? {
                return None;
            }
            least = id.next();
            n_live += 1;
        }
        (n_live == self.n_live && n_deleted == self.n_deleted && n_live + n_deleted > 0).then_some(())
    }

    fn integer(&mut self) -> Option<i64> {
        self.n_left = self.n_left.checked_sub(1)?;
        self.elements.next()?.integer()
    }

    fn n_fields(&mut self) -> Option<usize> {
        usize::try_from(self.integer()?).ok()
    }

    fn skip(&mut self, n: usize) -> Option<()> {
        self.n_left = self.n_left.checked_sub(n)?;
        (0..n).try_for_each(|_| self.elements.next().map(|_| ()))
    }
}
