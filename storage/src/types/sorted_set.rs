//! Sorted sets: members with scores, in the order of the scores and, where these are equal, of the members.
//!
//! Small ones are packed, members and scores by turns. Past `zset-max-listpack-entries` members or a member
//! past `zset-max-listpack-value` bytes they become, for good, a table with a tree beside it; OBJECT ENCODING
//! calls that `skiplist`, as Redis does.
//!
//! Whatever asks for a range (of ranks, scores or members) has it turned into a range of ranks first, which
//! are counted from 0 at the lowest score: one kind of range is read, counted and removed.

mod bulk_builder;
mod large;
mod members;
mod order;
mod small;
mod tree;

use std::ops::Range;

pub(crate) use self::small::ZeroSign;
pub use self::{
    bulk_builder::{Gathered, Sorted},
    order::Limit,
};
use self::{
    large::Large,
    order::{Cut, Point, Ranked},
    small::Pair,
};
use crate::{
    entry::{Encoding, EntryBox, EntryRef, Kind},
    table::{PREFETCH_MAX, Position, Table},
    types::{
        packed::{self, Element, Packed},
        value::{ValueMut, ValueRef, ValueType},
    },
};

/// The type of sorted sets.
pub struct SortedSetType;

/// A live sorted set, for reading.
pub type SortedSetRef<'a> = ValueRef<'a, SortedSetType>;

/// A live sorted set of a shard, for changes.
pub type SortedSetMut<'a> = ValueMut<'a, SortedSetType>;

const PACKED: Encoding = Encoding::new(0);
const LARGE: Encoding = Encoding::new(1);

impl ValueType for SortedSetType {
    const KIND: Kind = Kind::SortedSet;

    fn empty(key: &[u8]) -> EntryBox {
        EntryBox::with_bytes(Kind::SortedSet, PACKED, key, packed::EMPTY, None)
    }

    fn is_empty(entry: EntryRef<'_>) -> bool {
        match Stored::of(entry) {
            Stored::Packed(packed) => packed.is_empty(),
            Stored::Large(large) => large.len() == 0,
        }
    }
}

/// The two forms of a sorted set.
enum Stored<'a> {
    Packed(Packed<'a>),
    Large(&'a Large),
}

impl<'a> Stored<'a> {
    #[inline]
    fn of(entry: EntryRef<'a>) -> Self {
        match entry.bytes() {
            Some(bytes) => Stored::Packed(Packed::new(bytes)),
            None => Stored::Large(entry.object().expect("a sorted set is bytes or a `Large`")),
        }
    }
}

/// The form of a sorted set, in OBJECT ENCODING's words.
pub(crate) fn encoding_name(entry: EntryRef<'_>) -> &'static str {
    match entry.encoding() {
        PACKED => "listpack",
        _ => "skiplist",
    }
}

/// The table of a large sorted set's members.
pub(crate) fn member_table(entry: EntryRef<'_>) -> Option<&Table> {
    match Stored::of(entry) {
        Stored::Large(large) => Some(large.table()),
        Stored::Packed(_) => None,
    }
}

/// Fetches what removing members from an end touches, if the value is a large sorted set. More than
/// [`PREFETCH_MAX`] are of no use.
pub fn prefetch_end(entry: EntryRef<'_>, end: End, n: usize) {
    if entry.kind() == Kind::SortedSet
        && let Stored::Large(large) = Stored::of(entry)
    {
        large.prefetch(end.ranks(large.len(), n.min(PREFETCH_MAX)));
    }
}

/// A member and its score.
#[derive(Clone, Copy)]
pub struct Scored<'a> {
    /// The member.
    pub member: Element<'a>,
    score: StoredScore<'a>,
}

/// A packed score is only read when somebody wants it.
#[derive(Clone, Copy)]
enum StoredScore<'a> {
    Packed(Element<'a>),
    Double(f64),
}

impl Scored<'_> {
    /// The score.
    #[inline]
    pub fn score(&self) -> f64 {
        match self.score {
            StoredScore::Packed(element) => small::to_score(element),
            StoredScore::Double(score) => score,
        }
    }
}

impl<'a> From<Pair<'a>> for Scored<'a> {
    #[inline]
    fn from(pair: Pair<'a>) -> Self {
        Scored { member: pair.member, score: StoredScore::Packed(pair.score) }
    }
}

impl<'a> From<Ranked<'a>> for Scored<'a> {
    #[inline]
    fn from(element: Ranked<'a>) -> Self {
        Scored { member: Element::Text(element.member), score: StoredScore::Double(element.score) }
    }
}

/// A member's place in the order, and its score.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rank {
    /// How many members are before it.
    pub from_lowest: usize,
    /// Its score.
    pub score: f64,
}

impl<'a> SortedSetRef<'a> {
    #[inline]
    fn stored(&self) -> Stored<'a> {
        Stored::of(self.entry())
    }

    /// The number of members.
    #[inline]
    pub fn len(self) -> usize {
        match self.stored() {
            Stored::Packed(packed) => small::len(packed),
            Stored::Large(large) => large.len(),
        }
    }

    /// Whether there are no members. A set that a key holds has some.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The score of a member.
    pub fn score(&self, member: &[u8]) -> Option<f64> {
        match self.stored() {
            Stored::Packed(packed) => small::find(packed, member).map(|at| small::score_at(packed, at)),
            Stored::Large(large) => large.score(member),
        }
    }

    /// The rank of a member.
    pub fn rank(&self, member: &[u8]) -> Option<Rank> {
        let found = match self.stored() {
            Stored::Packed(packed) => small::rank(packed, member),
            Stored::Large(large) => large.rank(member),
        };
        found.map(|(from_lowest, score)| Rank { from_lowest, score })
    }

    /// The ranks of the members whose scores are within limits.
    pub fn score_range(&self, min: Limit<f64>, max: Limit<f64>) -> Range<usize> {
        self.range(min.lower(Point::Score), max.upper(Point::Score))
    }

    /// The ranks of the members that are themselves within limits, byte for byte. This has a meaning only if
    /// all scores are equal.
    pub fn member_range(&self, min: Limit<&[u8]>, max: Limit<&[u8]>) -> Range<usize> {
        self.range(min.lower(Point::Member), max.upper(Point::Member))
    }

    fn range(&self, from: Cut<'_>, to: Cut<'_>) -> Range<usize> {
        let start = self.rank_of(from);
        start..self.rank_of(to).max(start)
    }

    /// The number of members before a place.
    fn rank_of(&self, cut: Cut<'_>) -> usize {
        match self.stored() {
            Stored::Packed(packed) => small::rank_of(packed, cut),
            Stored::Large(large) => large.rank_of(cut),
        }
    }

    /// The members of some ranks, in order or, from the back, against it.
    ///
    /// # Panics
    /// If there are fewer members.
    pub fn iter(&self, ranks: Range<usize>) -> Iter<'a> {
        match self.stored() {
            Stored::Packed(packed) => Iter(IterForm::Packed(small::pairs(packed, ranks))),
            Stored::Large(large) => Iter::of_large(large, ranks),
        }
    }

    /// The members of ranks that ascend.
    ///
    /// # Panics
    /// If there are fewer members.
    pub fn at_ranks(&self, ranks: impl Iterator<Item = usize>) -> impl Iterator<Item = Scored<'a>> {
        let set = *self;
        let mut rest = set.iter(0..set.len());
        let mut next_rank = 0;
        ranks.map(move |rank| match set.stored() {
            Stored::Large(large) => large.get(rank).into(),
            Stored::Packed(_) => {
                let found = rest.nth(rank - next_rank).expect("there are more members");
                next_rank = rank + 1;
                found
            }
        })
    }

    /// Visits members in the order of their places in the table, from a position on, through at most
    /// `n_buckets` buckets. Returns the position to go on from, or `None` at the end. All of a small set's
    /// are visited at once.
    pub fn scan(
        &self,
        from: Position,
        n_buckets: usize,
        visit: &mut dyn FnMut(Scored<'_>),
    ) -> Option<Position> {
        match self.stored() {
            Stored::Packed(packed) => {
                small::pairs(packed, 0..small::len(packed)).for_each(|pair| visit(pair.into()));
                None
            }
            Stored::Large(large) => large.scan(from, n_buckets, &mut |element| visit(element.into())),
        }
    }
}

/// Members with their scores, from both ends.
#[derive(Clone)]
pub struct Iter<'a>(IterForm<'a>);

#[derive(Clone)]
enum IterForm<'a> {
    Packed(small::Pairs<'a>),
    Large(large::Iter<'a>),
}

impl<'a> Iter<'a> {
    fn of_large(large: &'a Large, ranks: Range<usize>) -> Self {
        Iter(IterForm::Large(large.iter(ranks)))
    }
}

impl<'a> Iterator for Iter<'a> {
    type Item = Scored<'a>;

    #[inline]
    fn next(&mut self) -> Option<Scored<'a>> {
        match &mut self.0 {
            IterForm::Packed(pairs) => pairs.next().map(Scored::from),
            IterForm::Large(elements) => elements.next().map(Scored::from),
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        match &self.0 {
            IterForm::Packed(pairs) => pairs.size_hint(),
            IterForm::Large(elements) => elements.size_hint(),
        }
    }
}

impl DoubleEndedIterator for Iter<'_> {
    #[inline]
    fn next_back(&mut self) -> Option<Self::Item> {
        match &mut self.0 {
            IterForm::Packed(pairs) => pairs.next_back().map(Scored::from),
            IterForm::Large(elements) => elements.next_back().map(Scored::from),
        }
    }
}

impl ExactSizeIterator for Iter<'_> {}

/// The members to which a score is given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Presence {
    /// Any.
    #[default]
    Any,
    /// Those that are not there yet.
    Missing,
    /// Those that are there.
    Present,
}

/// The new scores that replace an old one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Replacing {
    /// Any.
    #[default]
    Any,
    /// Greater ones.
    Greater,
    /// Lesser ones.
    Less,
}

/// The conditions and the way in which a member is given a score.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AddRule {
    /// Whether the member may, or must, be there.
    pub presence: Presence,
    /// How the new score must compare with the old one.
    pub replacing: Replacing,
    /// The score is added to the old one, if there is one.
    pub increments: bool,
}

/// The result of giving a member a score.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Added {
    /// It is new, with this score.
    New(f64),
    /// It has this score now.
    Updated(f64),
    /// It has had this score before.
    Same(f64),
    /// The rule forbids it.
    Refused,
    /// The sum would be no number, so nothing was done.
    NotANumber,
}

impl AddRule {
    /// Decides the result for a member that has the score `old` and is given `score`.
    fn judge(self, old: Option<f64>, score: f64) -> Added {
        let Some(old) = old else {
            return if self.presence == Presence::Present { Added::Refused } else { Added::New(score) };
        };
        if self.presence == Presence::Missing {
            return Added::Refused;
        }
        let score = if self.increments { old + score } else { score };
        if score.is_nan() {
            return Added::NotANumber;
        }
        match self.replacing {
            Replacing::Greater if score <= old => Added::Refused,
            Replacing::Less if score >= old => Added::Refused,
            _ if score == old => Added::Same(score),
            _ => Added::Updated(score),
        }
    }
}

/// An end of a sorted set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Where the lowest scores are.
    Lowest,
    /// Where the highest scores are.
    Highest,
}

impl End {
    /// The ranks of up to `n` members of `len` at this end.
    fn ranks(self, len: usize, n: usize) -> Range<usize> {
        let n = n.min(len);
        match self {
            End::Lowest => 0..n,
            End::Highest => len - n..len,
        }
    }
}

impl SortedSetMut<'_> {
    /// Sets a member's score. No score is NaN.
    pub fn add(&mut self, member: &[u8], score: f64, rule: AddRule) -> Added {
        let added = match self.entry().bytes() {
            Some(_) => self.add_packed(member, score, rule),
            None => self.add_large(member, score, rule),
        };
        if matches!(added, Added::New(_) | Added::Updated(_)) {
            self.mark_changed();
        }
        added
    }

    fn add_large(&mut self, member: &[u8], score: f64, rule: AddRule) -> Added {
        let added = self.arrange_object(|large: &mut Large| large.add(member, |old| rule.judge(old, score)));
        added.expect(NOT_PACKED)
    }

    fn add_packed(&mut self, member: &[u8], score: f64, rule: AddRule) -> Added {
        let packed = packed_of(self.entry());
        let found = small::find(packed, member);
        let added = rule.judge(found.map(|at| small::score_at(packed, at)), score);
        match (found, added) {
            (Some(at), Added::Updated(score)) => self.arrange(|entry| {
                small::remove(entry, at);
                small::insert(entry, member, score);
            }),
            (None, Added::New(score)) if self.has_packed_room_for(member) => {
                self.arrange(|entry| small::insert(entry, member, score));
            }
            (None, Added::New(_)) => {
                self.make_large();
                self.add_large(member, score, rule);
            }
            _ => {}
        }
        added
    }

    /// Whether a packed set may have one more member, `zset-max-listpack-entries` and
    /// `zset-max-listpack-value` willing.
    fn has_packed_room_for(&self, member: &[u8]) -> bool {
        let packed = packed_of(self.entry());
        let thresholds = self.thresholds();
        small::len(packed) < thresholds.zset_max_listpack_entries()
            && member.len() <= thresholds.zset_max_listpack_value()
            && packed::has_room(packed, member.len())
    }

    /// Turns a packed set into a large one.
    fn make_large(&mut self) {
        let mut gathered = Gathered::in_table(self.new_table());
        for pair in self.as_ref().iter(0..self.as_ref().len()) {
            pair.member.with_text(|member| gathered.put(member, |_| pair.score()));
        }
        self.arrange(|entry| {
            entry.set_object(gathered.into_large());
            entry.set_encoding(LARGE);
        });
    }

    /// Removes a member; returns whether it was there.
    pub fn remove(&mut self, member: &[u8]) -> bool {
        let is_gone = match self.entry().bytes() {
            Some(bytes) => {
                let found = small::find(Packed::new(bytes), member);
                found.map(|at| self.arrange(|entry| small::remove(entry, at))).is_some()
            }
            None => self.arrange_object(|large: &mut Large| large.remove(member)).expect(NOT_PACKED),
        };
        if is_gone {
            self.mark_changed();
        }
        is_gone
    }

    /// Removes the members of some ranks.
    ///
    /// # Panics
    /// If there are fewer members.
    pub fn remove_ranks(&mut self, ranks: Range<usize>) {
        if ranks.is_empty() {
            return;
        }
        let is_large = self.arrange_object(|large: &mut Large| large.remove_ranks(ranks.clone())).is_some();
        if !is_large {
            self.arrange(|entry| small::remove_ranks(entry, ranks.clone()));
        }
        self.mark_all_changed(ranks.len());
    }

    /// Removes up to `n` members from an end on, after it has shown each of them.
    pub fn pop(&mut self, end: End, n: usize, mut show: impl FnMut(Scored<'_>)) {
        let set = self.as_ref();
        let ranks = end.ranks(set.len(), n);
        let members = set.iter(ranks.clone());
        match end {
            End::Lowest => members.for_each(&mut show),
            End::Highest => members.rev().for_each(&mut show),
        }
        self.remove_ranks(ranks);
    }
}

fn packed_of(entry: EntryRef<'_>) -> Packed<'_> {
    Packed::new(entry.bytes().expect("the set is packed"))
}

const NOT_PACKED: &str = "a set that is not packed is a `Large`";

#[cfg(test)]
mod tests;
