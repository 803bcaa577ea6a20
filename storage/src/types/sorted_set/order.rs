//! The order of a sorted set: by score, then by member, byte for byte; and places in it.

use std::cmp::Ordering;

/// A member and its score.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Ranked<'a> {
    pub(super) score: f64,
    pub(super) member: &'a [u8],
}

impl Ranked<'_> {
    pub(super) fn order(self, other: Ranked<'_>) -> Ordering {
        score_order(self.score, other.score).then_with(|| self.member.cmp(other.member))
    }
}

/// Compares scores, of which none is NaN. Both zeros are equal.
#[inline]
pub(super) fn score_order(one: f64, other: f64) -> Ordering {
    if one < other {
        Ordering::Less
    } else if one > other {
        Ordering::Greater
    } else {
        Ordering::Equal
    }
}

/// One end of a range.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Limit<T> {
    /// Before everything.
    First,
    /// After everything.
    Last,
    /// At this, which is in the range.
    Including(T),
    /// At this, which is not in the range.
    Excluding(T),
}

impl<T> Limit<T> {
    /// The place where a range with this lower limit begins.
    pub(super) fn lower<'a>(self, point: impl FnOnce(T) -> Point<'a>) -> Cut<'a> {
        match self {
            Limit::First => Cut::First,
            Limit::Last => Cut::Last,
            Limit::Including(at) => Cut::Before(point(at)),
            Limit::Excluding(at) => Cut::Behind(point(at)),
        }
    }

    /// The place where a range with this upper limit ends.
    pub(super) fn upper<'a>(self, point: impl FnOnce(T) -> Point<'a>) -> Cut<'a> {
        match self {
            Limit::First => Cut::First,
            Limit::Last => Cut::Last,
            Limit::Including(at) => Cut::Behind(point(at)),
            Limit::Excluding(at) => Cut::Before(point(at)),
        }
    }
}

/// The point with which elements are compared.
#[derive(Clone, Copy, Debug)]
pub(super) enum Point<'a> {
    /// All that have this score.
    Score(f64),
    /// This member, whatever the scores: for sets whose scores are all the same.
    Member(&'a [u8]),
    /// This one.
    Element(Ranked<'a>),
}

/// A place between elements.
#[derive(Clone, Copy, Debug)]
pub(super) enum Cut<'a> {
    /// Before the first one.
    First,
    /// After the last one.
    Last,
    /// Before those that are equal to the point.
    Before(Point<'a>),
    /// After those that are equal to the point.
    Behind(Point<'a>),
}

impl Cut<'_> {
    /// Whether the place is after an element of this score. `compare` compares its member with another; it is
    /// called where the scores do not decide.
    #[inline]
    pub(super) fn is_behind(
        self,
        score: impl FnOnce() -> f64,
        compare: impl FnOnce(&[u8]) -> Ordering,
    ) -> bool {
        let order = |point| match point {
            Point::Score(at) => score_order(score(), at),
            Point::Member(at) => compare(at),
            Point::Element(at) => score_order(score(), at.score).then_with(|| compare(at.member)),
        };
        match self {
            Cut::First => false,
            Cut::Last => true,
            Cut::Before(point) => order(point).is_lt(),
            Cut::Behind(point) => order(point).is_le(),
        }
    }

    /// The score at which the place is, if scores decide about it.
    #[inline]
    pub(super) fn score(self) -> Option<f64> {
        match self {
            Cut::Before(point) | Cut::Behind(point) => match point {
                Point::Score(score) => Some(score),
                Point::Element(at) => Some(at.score),
                Point::Member(_) => None,
            },
            Cut::First | Cut::Last => None,
        }
    }
}
