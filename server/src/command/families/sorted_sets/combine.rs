//! Unions, intersections and differences of sorted sets.

use braid_protocol::{number, reply::Reply};
use braid_storage::{
    entry::{EntryRef, Kind, key::Key, time::Millis},
    error::StorageError,
    observers::event::Event,
    table::hash::Router,
    types::{
        packed::Element,
        set::SetRef,
        sorted_set::{Gathered, Sorted, SortedSetRef},
    },
};
use smallvec::SmallVec;

use super::{store, write_list};
use crate::{
    catalog::{Args, CommandError, Outcome},
    command::{
        Call,
        arguments::{
            collection_args::read_count,
            source_keys::{KeyRole, Sources},
        },
    },
};

/// The operation on several sets.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Operation {
    Union,
    Intersection,
    Difference,
}

/// The function that combines a member's scores in several sets.
#[derive(Clone, Copy, Default)]
enum Aggregate {
    #[default]
    Sum,
    Min,
    Max,
    /// The weights of the inputs that have the member; without weights their number (Redis 8.8).
    Count,
}

impl Aggregate {
    /// Returns the score with which a member of an input enters: a count disregards its own.
    fn entering(self, weight: f64, score: f64) -> f64 {
        if matches!(self, Aggregate::Count) { weight } else { weight * score }
    }

    /// Combines two scores. The sum of opposite infinities is 0.
    fn of(self, one: f64, other: f64) -> f64 {
        match self {
            Aggregate::Sum | Aggregate::Count => number_or_zero(one + other),
            Aggregate::Min if other < one => other,
            Aggregate::Max if other > one => other,
            Aggregate::Min | Aggregate::Max => one,
        }
    }
}

fn number_or_zero(value: f64) -> f64 {
    if value.is_nan() { 0.0 } else { value }
}

/// One of the sets to combine.
#[derive(Clone, Copy)]
enum Input<'a> {
    /// A missing key.
    Missing,
    /// A sorted set: members with scores.
    Scored(SortedSetRef<'a>),
    /// A set, whose members have the score 1.
    Plain(SetRef<'a>),
}

impl<'a> Input<'a> {
    /// Returns a key's entry as an input.
    ///
    /// # Errors
    /// If the value is neither a set nor a sorted set.
    fn of(entry: Option<EntryRef<'a>>, now: Millis) -> Result<Self, StorageError> {
        let Some(entry) = entry else { return Ok(Input::Missing) };
        match entry.kind() {
            Kind::SortedSet => SortedSetRef::of(entry, now).map(Input::Scored),
            Kind::Set => SetRef::of(entry, now).map(Input::Plain),
            _ => Err(StorageError::WrongType),
        }
    }

    fn len(self) -> usize {
        match self {
            Input::Missing => 0,
            Input::Scored(set) => set.len(),
            Input::Plain(set) => set.len(),
        }
    }

    fn score(self, member: &[u8]) -> Option<f64> {
        match self {
            Input::Missing => None,
            Input::Scored(set) => set.score(member),
            Input::Plain(set) => set.contains(Element::of(member)).then_some(1.0),
        }
    }

    /// Calls `visit` with every member and its score, until it returns false.
    fn visit(self, mut visit: impl FnMut(&[u8], f64) -> bool) {
        match self {
            Input::Missing => {}
            Input::Scored(set) => {
                let mut members = set.iter(0..set.len());
                members.all(|scored| scored.member.with_text(|member| visit(member, scored.score())));
            }
            Input::Plain(set) => {
                set.iter().all(|member| member.with_text(|member| visit(member, 1.0)));
            }
        }
    }
}

/// The options after the keys.
#[derive(Default)]
struct Options {
    /// A weight for each source; empty if all are 1.
    weights: SmallVec<[f64; 4]>,
    aggregate: Aggregate,
    with_scores: bool,
    /// Greatest number of members; 0 sets no limit.
    limit: usize,
}

/// The result that a command needs, which decides about its options.
#[derive(Clone, Copy, PartialEq, Eq)]
enum NeededResult {
    Reply,
    Store,
    Count,
}

impl Options {
    fn read(
        mut args: Args<'_>,
        n_sources: usize,
        operation: Operation,
        purpose: NeededResult,
    ) -> Result<Self, CommandError> {
        let mut options = Options::default();
        let weighs = operation != Operation::Difference && purpose != NeededResult::Count;
        while !args.is_empty() {
            if weighs && args.remaining() > n_sources && args.tag("WEIGHTS") {
                options.weights.clear();
                for _ in 0..n_sources {
                    let weight = number::parse_f64(args.next()?);
                    options
                        .weights
                        .push(weight.ok_or(CommandError::text("ERR weight value is not a float"))?);
                }
            } else if weighs && args.remaining() > 1 && args.tag("AGGREGATE") {
                options.aggregate = if args.tag("SUM") {
                    Aggregate::Sum
                } else if args.tag("MIN") {
                    Aggregate::Min
                } else if args.tag("MAX") {
                    Aggregate::Max
                } else if args.tag("COUNT") {
                    Aggregate::Count
                } else {
                    return Err(CommandError::Syntax);
                };
            } else if purpose == NeededResult::Reply && args.tag("WITHSCORES") {
                options.with_scores = true;
            } else if purpose == NeededResult::Count && args.remaining() > 1 && args.tag("LIMIT") {
                let limit = read_count(args.next()?);
                options.limit = limit.ok_or(CommandError::text("ERR LIMIT can't be negative"))?;
            } else {
                return Err(CommandError::Syntax);
            }
        }
        Ok(options)
    }

    /// Returns each input with its weight, those with the fewest members first.
    ///
    /// Sums of doubles depend on their order, so it is Redis's.
    fn weighted<'a>(&self, inputs: &[Input<'a>]) -> SmallVec<[(Input<'a>, f64); 4]> {
        let weights = self.weights.iter().copied().chain(std::iter::repeat(1.0));
        let mut weighted: SmallVec<[(Input<'a>, f64); 4]> = inputs.iter().copied().zip(weights).collect();
        weighted.sort_by_key(|(input, _)| input.len());
        weighted
    }
}

/// The inputs, operation and options of a command.
struct Combination {
    sources: Sources,
    options: Options,
    operation: Operation,
}

impl Combination {
    /// Reads `numkeys`, the keys and the options.
    fn read(
        call: &mut Call<'_, '_>,
        mut args: Args<'_>,
        destination: Option<&Key<'_>>,
        operation: Operation,
        purpose: NeededResult,
        name: &str,
    ) -> Result<Self, CommandError> {
        let n_sources = args.int()?;
        if n_sources < 1 {
            let text = format!("ERR at least 1 input key is needed for '{name}' command");
            return Err(CommandError::owned(text));
        }
        let n_sources = usize::try_from(n_sources).ok().filter(|&n| n <= args.remaining());
        let n_sources = n_sources.ok_or(CommandError::Syntax)?;
        let destination = destination.map(|key| (key.bytes, KeyRole::Destination));
        let keys = args.rest().take(n_sources).map(|key| (key, KeyRole::Source));
        // Errors of keys come before errors of options.
        let sources = Sources::share(call, destination.into_iter().chain(keys), |entry, now| {
            Input::of(entry, now).map(drop)
        })?;
        for _ in 0..n_sources {
            args.next()?;
        }
        let options = Options::read(args, n_sources, operation, purpose)?;
        Ok(Combination { sources, options, operation })
    }

    fn gather(&self, router: &Router) -> Sorted {
        let mut gathered = Gathered::new(router);
        let inputs = self.sources.views(Input::of);
        match self.operation {
            Operation::Union => self.unite(&inputs, &mut gathered),
            Operation::Intersection => self.intersect(&inputs, |member, score| {
                gathered.put(member, |_| score);
                true
            }),
            Operation::Difference => subtract(&inputs, &mut gathered),
        }
        gathered.sort()
    }

    fn unite(&self, inputs: &[Input<'_>], gathered: &mut Gathered) {
        for (input, weight) in self.options.weighted(inputs) {
            input.visit(|member, score| {
                let aggregate = self.options.aggregate;
                let score = number_or_zero(aggregate.entering(weight, score));
                gathered.put(member, |old| old.map_or(score, |old| aggregate.of(old, score)));
                true
            });
        }
    }

    /// Calls `visit` with every member that is in all inputs, until it returns false.
    fn intersect(&self, inputs: &[Input<'_>], mut visit: impl FnMut(&[u8], f64) -> bool) {
        let weighted = self.options.weighted(inputs);
        let Some((&(smallest, weight), others)) = weighted.split_first() else { return };
        let aggregate = self.options.aggregate;
        smallest.visit(|member, score| {
            let first = number_or_zero(aggregate.entering(weight, score));
            let score = others.iter().try_fold(first, |score, (input, weight)| {
                Some(aggregate.of(score, aggregate.entering(*weight, input.score(member)?)))
            });
            score.is_none_or(|score| visit(member, score))
        });
    }
}

/// Gathers the members that are only in the first input.
fn subtract(inputs: &[Input<'_>], gathered: &mut Gathered) {
    let Some((first, others)) = inputs.split_first() else { return };
    first.visit(|member, score| {
        if others.iter().all(|other| other.score(member).is_none()) {
            gathered.put(member, |_| score);
        }
        true
    });
}

pub(super) fn zunion(call: &mut Call<'_, '_>, args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    give(call, args, Operation::Union, "zunion", reply)
}

pub(super) fn zinter(call: &mut Call<'_, '_>, args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    give(call, args, Operation::Intersection, "zinter", reply)
}

pub(super) fn zdiff(call: &mut Call<'_, '_>, args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    give(call, args, Operation::Difference, "zdiff", reply)
}

fn give(
    call: &mut Call<'_, '_>,
    args: Args<'_>,
    operation: Operation,
    name: &str,
    reply: &mut Reply<'_>,
) -> Outcome {
    let combination = Combination::read(call, args, None, operation, NeededResult::Reply, name)?;
    let sorted = combination.gather(call.server.keyspace.router());
    write_list(sorted.len(), sorted.iter(), combination.options.with_scores, reply);
    Ok(())
}

pub(super) fn zunionstore(call: &mut Call<'_, '_>, args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    combine_and_store(call, args, Operation::Union, Event::ZUnionStore, reply)
}

pub(super) fn zinterstore(call: &mut Call<'_, '_>, args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    combine_and_store(call, args, Operation::Intersection, Event::ZInterStore, reply)
}

pub(super) fn zdiffstore(call: &mut Call<'_, '_>, args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    combine_and_store(call, args, Operation::Difference, Event::ZDiffStore, reply)
}

fn combine_and_store(
    call: &mut Call<'_, '_>,
    mut args: Args<'_>,
    operation: Operation,
    event: Event,
    reply: &mut Reply<'_>,
) -> Outcome {
    // The event's name is the command's name.
    let name = event.name();
    let destination = args.key()?;
    let combination =
        Combination::read(call, args, Some(&destination), operation, NeededResult::Store, name)?;
    let sorted = combination.gather(call.server.keyspace.router());
    drop(combination);
    let n = store(call, &destination, sorted, event);
    reply.integer(n as i64);
    Ok(())
}

pub(super) fn zintercard(call: &mut Call<'_, '_>, args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let purpose = NeededResult::Count;
    let combination = Combination::read(call, args, None, Operation::Intersection, purpose, "zintercard")?;
    let mut n = 0;
    combination.intersect(&combination.sources.views(Input::of), |_, _| {
        n += 1;
        n != combination.options.limit
    });
    reply.integer(n as i64);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn opposite_infinities_cancel_out() {
        let infinity = f64::INFINITY;
        assert_eq!(Aggregate::Sum.of(infinity, -infinity), 0.0);
        assert_eq!(Aggregate::Sum.of(infinity, 1.0), infinity);
        assert_eq!(Aggregate::Min.of(infinity, -infinity), -infinity);
        assert_eq!(Aggregate::Max.of(1.0, 2.0), 2.0);
        assert_eq!(Aggregate::Count.of(Aggregate::Count.entering(2.0, f64::NAN), 3.0), 5.0);
        // NaN changes nothing.
        assert_eq!(Aggregate::Min.of(1.0, f64::NAN), 1.0);
        assert_eq!(Aggregate::Max.of(1.0, f64::NAN), 1.0);
    }
}
