//! Sets made of sets: intersections, unions and differences.
//!
//! The members of a result are found by probing sets, or by remembering members that were seen, without
//! copying any of them. Only a stored result is built. Sources may be the same set several times.

use std::{cmp::Reverse, collections::HashSet};

use smallvec::SmallVec;

use super::{Element, SetBuilder, SetRef, View, canonical};
use crate::entry::EntryBox;

/// Sources of a result.
type Sources<'a> = SmallVec<[SetRef<'a>; 8]>;

/// How sets are combined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// The members of all sets.
    Intersection,
    /// The members of any set.
    Union,
    /// The members of the first set that are in no other.
    Difference,
}

impl Operation {
    /// Calls `each` with every member of the result once. A missing set is an empty one.
    pub fn for_each(self, sources: &[Option<SetRef<'_>>], each: &mut dyn FnMut(Element<'_>)) {
        match self {
            Operation::Intersection => intersection(sources).for_each(each),
            Operation::Union => union(sources).for_each(each),
            Operation::Difference => difference(sources).for_each(each),
        }
    }

    /// Counts the members of the result, up to `limit`. A missing set is an empty one.
    pub fn count(self, sources: &[Option<SetRef<'_>>], limit: usize) -> usize {
        match self {
            Operation::Intersection => intersection(sources).take(limit).count(),
            Operation::Union => union(sources).take(limit).count(),
            Operation::Difference => difference(sources).take(limit).count(),
        }
    }

    /// Builds the result, encoded as Redis's would be; `None` if it is empty.
    pub fn store(self, sources: &[Option<SetRef<'_>>], mut result: SetBuilder<'_>) -> Option<EntryBox> {
        match self {
            Operation::Intersection => {
                let smallest = sources.iter().flatten().min_by_key(|set| set.len());
                if smallest.is_some_and(|set| !matches!(View::of(set.entry()), View::Integers(_))) {
                    result.start_packed();
                }
                intersection(sources).for_each(|member| result.insert(member));
                result.prefer_integers();
            }
            Operation::Union => {
                let members = sources.iter().flatten().flat_map(|set| set.iter());
                members.for_each(|member| result.insert(member));
            }
            Operation::Difference => store_difference(sources, &mut result),
        }
        result.build()
    }
}

/// The members that all sets have; none if there are no sets, or if one is missing.
fn intersection<'a>(sources: &[Option<SetRef<'a>>]) -> impl Iterator<Item = Element<'a>> + use<'a> {
    let mut sets: Sources<'a> = sources.iter().flatten().copied().collect();
    if sets.len() < sources.len() {
        sets.clear();
    }
    // The smallest has the fewest members to look for, and the next ones are the likeliest to lack them.
    sets.sort_by_key(|set| set.len());
    let smallest = sets.first().copied();
    let candidates = smallest.into_iter().flat_map(|set| set.iter());
    candidates.filter(move |&member| sets[1..].iter().all(|set| set.contains(member)))
}

/// The members that any set has.
fn union<'a>(sources: &[Option<SetRef<'a>>]) -> impl Iterator<Item = Element<'a>> + use<'a> {
    let mut sets: Sources<'a> = sources.iter().flatten().copied().collect();
    // The largest first: its members are all new, and if there is but another one, it is the one to probe.
    sets.sort_by_key(|set| Reverse(set.len()));
    let (largest, n_sets) = (sets.first().copied(), sets.len());
    let mut seen = HashSet::new();
    let members =
        sets.into_iter().enumerate().flat_map(|(nth, set)| set.iter().map(move |member| (nth, member)));
    let new_members = members.filter(move |&(nth, member)| match (nth, n_sets) {
        (0, 1 | 2) => true,
        (_, 2) => !largest.is_some_and(|set| set.contains(member)),
        // No set follows the last one that would need its members.
        _ if nth == n_sets - 1 => !seen.contains(&canonical(member)),
        _ => seen.insert(canonical(member)),
    });
    new_members.map(|(_, member)| member)
}

/// The members of the first set that no other has.
fn difference<'a>(sources: &[Option<SetRef<'a>>]) -> impl Iterator<Item = Element<'a>> + use<'a> {
    let first = sources.first().copied().flatten();
    let mut others: Sources<'a> = sources.iter().skip(1).flatten().copied().collect();
    // The largest is the likeliest to have a member.
    others.sort_by_key(|set| Reverse(set.len()));
    let excluded: Option<HashSet<Element<'a>>> = first
        .filter(|&first| !probes_are_cheap(first, &others))
        .map(|_| others.iter().flat_map(|set| set.iter()).map(canonical).collect());
    let members = first.into_iter().flat_map(|set| set.iter());
    members.filter(move |&member| match &excluded {
        Some(excluded) => !excluded.contains(&canonical(member)),
        None => !others.iter().any(|set| set.contains(member)),
    })
}

/// Whether looking each member of the first set up in all others is less work than going through all sets, by
/// Redis's estimate.
fn probes_are_cheap(first: SetRef<'_>, others: &[SetRef<'_>]) -> bool {
    let n_probes = first.len() * (1 + others.len());
    let n_members = first.len() + others.iter().map(|set| set.len()).sum::<usize>();
    n_probes / 2 <= n_members
}

/// Stores a difference. Where a walk through all sets is less work, Redis removes the others' members from a
/// copy of the first set; the copy's encoding shows in the result.
fn store_difference(sources: &[Option<SetRef<'_>>], result: &mut SetBuilder<'_>) {
    let Some((Some(first), others)) = sources.split_first() else { return };
    let others: Sources<'_> = others.iter().flatten().copied().collect();
    if probes_are_cheap(*first, &others) {
        return difference(sources).for_each(|member| result.insert(member));
    }
    first.iter().for_each(|member| result.insert(member));
    for member in others.iter().flat_map(|set| set.iter()) {
        if result.is_empty() {
            return;
        }
        result.remove(member);
    }
}
