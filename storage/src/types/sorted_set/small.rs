//! Small sorted sets: packed members and scores by turns, in order; Redis's layout.

use std::{cmp::Ordering, ops::Range};

use braid_protocol::number;

use super::order::{Cut, Point, Ranked};
use crate::types::packed::{self, At, Element, Packed, Splice};

/// Elements of a pair.
const PAIR: usize = 2;

/// The treatment of the sign of zeros in a small set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ZeroSign {
    /// It is dropped, as by everything that adds members to a small set.
    Dropped,
    /// It is kept, as in a dump of a small set that has it: Redis 6 writes such dumps.
    Kept,
}

/// The number of members.
#[inline]
pub(super) fn len(packed: Packed<'_>) -> usize {
    packed.len() / PAIR
}

/// The place of a member.
#[inline]
pub(super) fn find(packed: Packed<'_>, member: &[u8]) -> Option<At> {
    packed.find(packed.first()?, member, PAIR)
}

/// The score of the member at `at`.
#[inline]
pub(super) fn score_at(packed: Packed<'_>, at: At) -> f64 {
    to_score(packed.get(packed.next(at).expect("a member has a score")))
}

/// Reads a score.
#[inline]
pub(super) fn to_score(element: Element<'_>) -> f64 {
    match element {
        Element::Integer(integer) => integer as f64,
        Element::Text(text) => number::parse_f64(text).expect("every second element is a score"),
    }
}

/// The number of members before a place.
pub(super) fn rank_of(packed: Packed<'_>, cut: Cut<'_>) -> usize {
    match cut {
        Cut::First => 0,
        Cut::Last => len(packed),
        cut => pairs(packed, 0..len(packed)).take_while(|pair| pair.is_before(cut)).count(),
    }
}

/// The rank and the score of a member.
pub(super) fn rank(packed: Packed<'_>, member: &[u8]) -> Option<(usize, f64)> {
    let wanted = Element::of(member);
    let mut pairs = pairs(packed, 0..len(packed)).enumerate();
    pairs.find(|(_, pair)| pair.member == wanted).map(|(rank, pair)| (rank, to_score(pair.score)))
}

/// A member and its score, as they are stored.
#[derive(Clone, Copy)]
pub(super) struct Pair<'a> {
    pub(super) member: Element<'a>,
    pub(super) score: Element<'a>,
}

impl Pair<'_> {
    fn is_before(&self, cut: Cut<'_>) -> bool {
        cut.is_behind(|| to_score(self.score), |other| compare(self.member, other))
    }
}

fn compare(member: Element<'_>, other: &[u8]) -> Ordering {
    member.with_text(|text| text.cmp(other))
}

/// The pairs of some ranks.
pub(super) fn pairs(packed: Packed<'_>, ranks: Range<usize>) -> Pairs<'_> {
    let start_of = |rank: usize| packed.nth((PAIR * rank) as i64).unwrap_or(packed.end());
    Pairs { packed, front: start_of(ranks.start), back: start_of(ranks.end), n: ranks.len() }
}

/// The pairs of some ranks, from both ends.
#[derive(Clone)]
pub(super) struct Pairs<'a> {
    packed: Packed<'a>,
    front: At,
    back: At,
    n: usize,
}

impl<'a> Iterator for Pairs<'a> {
    type Item = Pair<'a>;

    #[inline]
    fn next(&mut self) -> Option<Pair<'a>> {
        self.n = self.n.checked_sub(1)?;
        let at_score = self.packed.next(self.front).expect("a member has a score");
        let pair = Pair { member: self.packed.get(self.front), score: self.packed.get(at_score) };
        self.front = self.packed.next(at_score).unwrap_or(self.packed.end());
        Some(pair)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.n, Some(self.n))
    }
}

impl DoubleEndedIterator for Pairs<'_> {
    #[inline]
    fn next_back(&mut self) -> Option<Self::Item> {
        self.n = self.n.checked_sub(1)?;
        let at_score = self.packed.before(self.back).expect("there is a pair in between");
        self.back = self.packed.before(at_score).expect("a score has a member");
        Some(Pair { member: self.packed.get(self.back), score: self.packed.get(at_score) })
    }
}

impl ExactSizeIterator for Pairs<'_> {}

/// Adds a member that is not there.
pub(super) fn insert(buffer: &mut impl Splice, member: &[u8], score: f64) {
    let at = place_for(Packed::new(buffer.bytes()), Ranked { score, member });
    insert_pair(buffer, at, member, score, ZeroSign::Dropped);
}

/// Adds a member at the end, where it belongs.
pub(super) fn push(buffer: &mut impl Splice, member: &[u8], score: f64, zero_sign: ZeroSign) {
    let end = Packed::new(buffer.bytes()).end();
    insert_pair(buffer, end, member, score, zero_sign);
}

fn insert_pair(buffer: &mut impl Splice, at: At, member: &[u8], score: f64, zero_sign: ZeroSign) {
    format_score(score, zero_sign, |score| {
        packed::insert_all(buffer, at, &[Element::of(member), Element::of(score)]);
    });
}

/// Calls `with` with the text of a score. As in Redis, whole scores are packed as integers, so a zero that is
/// added loses its sign.
fn format_score(score: f64, zero_sign: ZeroSign, with: impl FnOnce(&[u8])) {
    let is_bare = score == 0.0 && zero_sign == ZeroSign::Dropped;
    number::format_f64(if is_bare { 0.0 } else { score }, with);
}

/// The place of a new element. Scores that grow with the clock have their place at the end, so that is tried
/// first.
fn place_for(packed: Packed<'_>, element: Ranked<'_>) -> At {
    let cut = Cut::Before(Point::Element(element));
    let n = len(packed);
    let is_last = pairs(packed, 0..n).next_back().is_none_or(|last| last.is_before(cut));
    if is_last {
        return packed.end();
    }
    let mut rest = pairs(packed, 0..n);
    let mut at = rest.front;
    while rest.next().is_some_and(|pair| pair.is_before(cut)) {
        at = rest.front;
    }
    at
}

/// Removes the members of some ranks.
pub(super) fn remove_ranks(buffer: &mut impl Splice, ranks: Range<usize>) {
    let packed = Packed::new(buffer.bytes());
    if let Some(at) = packed.nth((PAIR * ranks.start) as i64) {
        packed::remove(buffer, at, PAIR * ranks.len());
    }
}

/// Removes the member at `at`.
pub(super) fn remove(buffer: &mut impl Splice, at: At) {
    packed::remove(buffer, at, PAIR);
}
