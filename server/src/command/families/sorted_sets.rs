//! Commands on sorted sets.

mod combine;
mod range;

use std::collections::HashSet;

use braid_protocol::{number::format_f64, reply::Reply};
use braid_storage::{
    entry::{Kind, key::Key},
    error::StorageError,
    keyspace::shard::Shard,
    observers::event::Event,
    table::Position,
    types::sorted_set::{
        AddRule, Added, End, Presence, Replacing, Scored, Sorted, SortedSetMut, SortedSetRef, SortedSetType,
    },
};
use smallvec::SmallVec;

use super::{
    keys::parse_cursor,
    pops::{PopEnd, pop_first, pop_first_or_wait, pop_one_or_wait},
};
use crate::{
    catalog::{
        ALL_BUT_LAST, Args, Arity, CommandError, Deprecation, Flags, Group, KeySpec, KeyUse, Keys, KeysAt,
        MembersAt, Outcome,
    },
    command::{
        Call, CommandSpec, Log, Run, Work,
        arguments::collection_args::{ScanOptions, read_count, write_element, write_samples, write_scanned},
        log_rewrite, work,
    },
    random::random_below,
};

pub(in crate::command) const COMMANDS: &[CommandSpec] = &[
    CommandSpec {
        name: "zadd",
        arity: Arity::AtLeast(4),
        flags: Flags::WRITE.and(Flags::DENYOOM).and(Flags::FAST),
        keys: Keys::UPDATE,
        members: MembersAt::WITH_SCORES,
        run: Run::Shard(zadd),
        since: "1.2.0",
        group: Group::SortedSet,
        syntax: "key [NX | XX] [GT | LT] [CH] [INCR] score member [score member ...]",
        summary: "Adds members to a sorted set, or updates the scores of those that are there.",
        complexity: "O(log(N)) for each member given, where N is the number of members",
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "zincrby",
        arity: Arity::Exactly(4),
        flags: Flags::WRITE.and(Flags::DENYOOM).and(Flags::FAST),
        keys: Keys::UPDATE_AND_READ,
        members: MembersAt::WITH_SCORES,
        run: Run::Shard(zincrby),
        since: "1.2.0",
        group: Group::SortedSet,
        syntax: "key increment member",
        summary: "Adds to the score of a member; that of a missing one counts as 0.",
        complexity: "O(log(N)) where N is the number of members",
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "zrem",
        arity: Arity::AtLeast(3),
        flags: Flags::WRITE.and(Flags::FAST),
        keys: Keys::REMOVE,
        members: MembersAt::ALL,
        run: Run::Shard(zrem),
        since: "1.2.0",
        group: Group::SortedSet,
        syntax: "key member [member ...]",
        summary: "Removes members from a sorted set.",
        complexity: "O(M*log(N)) where N is the number of members and M that of those to be removed",
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "zscore",
        arity: Arity::Exactly(3),
        flags: Flags::READONLY.and(Flags::FAST),
        keys: Keys::READ,
        members: MembersAt::ONE,
        run: Run::Shard(zscore),
        since: "1.2.0",
        group: Group::SortedSet,
        syntax: "key member",
        summary: "Returns the score of a member.",
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "zmscore",
        arity: Arity::AtLeast(3),
        flags: Flags::READONLY.and(Flags::FAST),
        keys: Keys::READ,
        members: MembersAt::ALL,
        run: Run::Shard(zmscore),
        since: "6.2.0",
        group: Group::SortedSet,
        syntax: "key member [member ...]",
        summary: "Returns the scores of several members.",
        complexity: "O(N) where N is the number of members asked for",
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "zcard",
        arity: Arity::Exactly(2),
        flags: Flags::READONLY.and(Flags::FAST),
        keys: Keys::LOOK,
        run: Run::Shard(zcard),
        since: "1.2.0",
        group: Group::SortedSet,
        syntax: "key",
        summary: "Returns the number of members of a sorted set.",
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "zcount",
        arity: Arity::Exactly(4),
        flags: Flags::READONLY.and(Flags::FAST),
        keys: Keys::READ,
        run: Run::Shard(range::zcount),
        since: "2.0.0",
        group: Group::SortedSet,
        syntax: "key min max",
        summary: "Counts the members whose scores are in a range.",
        complexity: "O(log(N)) where N is the number of members",
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "zlexcount",
        arity: Arity::Exactly(4),
        flags: Flags::READONLY.and(Flags::FAST),
        keys: Keys::READ,
        run: Run::Shard(range::zlexcount),
        since: "2.8.9",
        group: Group::SortedSet,
        syntax: "key min max",
        summary: "Counts the members that are in a range of texts, all scores being equal.",
        complexity: "O(log(N)) where N is the number of members",
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "zrank",
        arity: Arity::AtLeast(3),
        flags: Flags::READONLY.and(Flags::FAST),
        keys: Keys::READ,
        members: MembersAt::ONE,
        run: Run::Shard(zrank),
        since: "2.0.0",
        group: Group::SortedSet,
        syntax: "key member [WITHSCORE]",
        summary: "Returns how many members have lower places than this one.",
        complexity: "O(log(N)) where N is the number of members",
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "zrevrank",
        arity: Arity::AtLeast(3),
        flags: Flags::READONLY.and(Flags::FAST),
        keys: Keys::READ,
        members: MembersAt::ONE,
        run: Run::Shard(zrevrank),
        since: "2.0.0",
        group: Group::SortedSet,
        syntax: "key member [WITHSCORE]",
        summary: "Returns how many members have higher places than this one.",
        complexity: "O(log(N)) where N is the number of members",
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "zrange",
        arity: Arity::AtLeast(4),
        flags: Flags::READONLY,
        keys: Keys::READ,
        run: Run::Shard(range::zrange),
        work: Work::pinned(range::zrange_work),
        since: "1.2.0",
        group: Group::SortedSet,
        syntax: "key start stop [BYSCORE | BYLEX] [REV] [LIMIT offset count] [WITHSCORES]",
        summary: "Returns the members in a range of places, scores or texts.",
        complexity: "O(log(N)+M) where N is the number of members and M that of the members in the reply",
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "zrangebyscore",
        arity: Arity::AtLeast(4),
        flags: Flags::READONLY.and(Flags::DEPRECATED),
        keys: Keys::READ,
        run: Run::Shard(range::zrangebyscore),
        work: Work::pinned(range::zrangebyscore_work),
        since: "1.0.5",
        group: Group::SortedSet,
        syntax: "key min max [WITHSCORES] [LIMIT offset count]",
        summary: "Returns the members whose scores are in a range.",
        complexity: "O(log(N)+M) where N is the number of members and M that of the members in the reply",
        deprecated: Some(Deprecation { since: "6.2.0", replaced_by: "`ZRANGE` with the `BYSCORE` argument" }),
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "zrangebylex",
        arity: Arity::AtLeast(4),
        flags: Flags::READONLY.and(Flags::DEPRECATED),
        keys: Keys::READ,
        run: Run::Shard(range::zrangebylex),
        work: Work::pinned(range::zrangebylex_work),
        since: "2.8.9",
        group: Group::SortedSet,
        syntax: "key min max [LIMIT offset count]",
        summary: "Returns the members that are in a range of texts, all scores being equal.",
        complexity: "O(log(N)+M) where N is the number of members and M that of the members in the reply",
        deprecated: Some(Deprecation { since: "6.2.0", replaced_by: "`ZRANGE` with the `BYLEX` argument" }),
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "zrevrange",
        arity: Arity::AtLeast(4),
        flags: Flags::READONLY.and(Flags::DEPRECATED),
        keys: Keys::READ,
        run: Run::Shard(range::zrevrange),
        work: Work::pinned(range::zrevrange_work),
        since: "1.2.0",
        group: Group::SortedSet,
        syntax: "key start stop [WITHSCORES]",
        summary: "Returns the members in a range of places, which count from the highest score.",
        complexity: "O(log(N)+M) where N is the number of members and M that of the members in the reply",
        deprecated: Some(Deprecation { since: "6.2.0", replaced_by: "`ZRANGE` with the `REV` argument" }),
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "zrevrangebyscore",
        arity: Arity::AtLeast(4),
        flags: Flags::READONLY.and(Flags::DEPRECATED),
        keys: Keys::READ,
        run: Run::Shard(range::zrevrangebyscore),
        work: Work::pinned(range::zrevrangebyscore_work),
        since: "2.2.0",
        group: Group::SortedSet,
        syntax: "key max min [WITHSCORES] [LIMIT offset count]",
        summary: "Returns the members whose scores are in a range, the highest first.",
        complexity: "O(log(N)+M) where N is the number of members and M that of the members in the reply",
        deprecated: Some(Deprecation {
            since: "6.2.0",
            replaced_by: "`ZRANGE` with the `REV` and `BYSCORE` arguments",
        }),
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "zrevrangebylex",
        arity: Arity::AtLeast(4),
        flags: Flags::READONLY.and(Flags::DEPRECATED),
        keys: Keys::READ,
        run: Run::Shard(range::zrevrangebylex),
        work: Work::pinned(range::zrevrangebylex_work),
        since: "2.8.9",
        group: Group::SortedSet,
        syntax: "key max min [LIMIT offset count]",
        summary: "Returns the members that are in a range of texts, the last first, all scores being equal.",
        complexity: "O(log(N)+M) where N is the number of members and M that of the members in the reply",
        deprecated: Some(Deprecation {
            since: "6.2.0",
            replaced_by: "`ZRANGE` with the `REV` and `BYLEX` arguments",
        }),
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "zrangestore",
        arity: Arity::AtLeast(5),
        flags: Flags::WRITE.and(Flags::DENYOOM),
        keys: STORED_FROM_ANOTHER,
        run: Run::Transaction(range::zrangestore),
        work: Work::pinned(range::zrangestore_work),
        since: "6.2.0",
        group: Group::SortedSet,
        syntax: "dst src min max [BYSCORE | BYLEX] [REV] [LIMIT offset count]",
        summary: "Stores the members in a range of places, scores or texts under another key.",
        complexity: "O(log(N)+M) where N is the number of members and M that of those stored",
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "zremrangebyrank",
        arity: Arity::Exactly(4),
        flags: Flags::WRITE,
        keys: Keys::REMOVE,
        run: Run::Shard(range::zremrangebyrank),
        work: Work::held(range::zremrangebyrank_work),
        since: "2.0.0",
        group: Group::SortedSet,
        syntax: "key start stop",
        summary: "Removes the members in a range of places.",
        complexity: "O(M*log(N)) where N is the number of members and M that of those removed",
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "zremrangebyscore",
        arity: Arity::Exactly(4),
        flags: Flags::WRITE,
        keys: Keys::REMOVE,
        run: Run::Shard(range::zremrangebyscore),
        work: Work::held(range::zremrangebyscore_work),
        since: "1.2.0",
        group: Group::SortedSet,
        syntax: "key min max",
        summary: "Removes the members whose scores are in a range.",
        complexity: "O(M*log(N)) where N is the number of members and M that of those removed",
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "zremrangebylex",
        arity: Arity::Exactly(4),
        flags: Flags::WRITE,
        keys: Keys::REMOVE,
        run: Run::Shard(range::zremrangebylex),
        work: Work::held(range::zremrangebylex_work),
        since: "2.8.9",
        group: Group::SortedSet,
        syntax: "key min max",
        summary: "Removes the members that are in a range of texts, all scores being equal.",
        complexity: "O(M*log(N)) where N is the number of members and M that of those removed",
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "zpopmin",
        arity: Arity::AtLeast(2),
        flags: Flags::WRITE.and(Flags::FAST),
        keys: Keys::READ_AND_DELETE,
        members: Some(MembersAt::Lowest),
        run: Run::Shard(zpopmin),
        work: Work::held(work::taken),
        since: "5.0.0",
        group: Group::SortedSet,
        syntax: "key [count]",
        summary: "Removes the members with the lowest scores and gives them.",
        complexity: "O(M*log(N)) where N is the number of members and M that of those removed",
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "zpopmax",
        arity: Arity::AtLeast(2),
        flags: Flags::WRITE.and(Flags::FAST),
        keys: Keys::READ_AND_DELETE,
        members: Some(MembersAt::Highest),
        run: Run::Shard(zpopmax),
        work: Work::held(work::taken),
        since: "5.0.0",
        group: Group::SortedSet,
        syntax: "key [count]",
        summary: "Removes the members with the highest scores and gives them.",
        complexity: "O(M*log(N)) where N is the number of members and M that of those removed",
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "zmpop",
        arity: Arity::AtLeast(4),
        flags: Flags::WRITE.and(Flags::MOVABLE_KEYS),
        keys: COUNTED_POPPED,
        log: Log::Given,
        run: Run::Transaction(pop_first::<End>),
        work: Work::held(work::taken_from_any),
        since: "7.0.0",
        group: Group::SortedSet,
        syntax: "numkeys key [key ...] <MIN | MAX> [COUNT count]",
        summary: "Removes members from the first of several sorted sets that has any, and gives them.",
        complexity: "O(K)+O(M*log(N)) where K is the number of keys, N that of the members and M that of \
                     those removed",
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "bzpopmin",
        arity: Arity::AtLeast(3),
        flags: Flags::WRITE.and(Flags::FAST).and(Flags::BLOCKING),
        keys: ALL_BUT_LAST,
        log: Log::Given,
        run: Run::Transaction(bzpopmin),
        work: Work::held(work::one_taken_from_any_in_time),
        since: "5.0.0",
        group: Group::SortedSet,
        syntax: "key [key ...] timeout",
        summary: "Removes the member with the lowest score from the first of several sorted sets that has any, and gives it; \
                  waits for one.",
        complexity: "O(log(N)) where N is the number of members",
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "bzpopmax",
        arity: Arity::AtLeast(3),
        flags: Flags::WRITE.and(Flags::FAST).and(Flags::BLOCKING),
        keys: ALL_BUT_LAST,
        log: Log::Given,
        run: Run::Transaction(bzpopmax),
        work: Work::held(work::one_taken_from_any_in_time),
        since: "5.0.0",
        group: Group::SortedSet,
        syntax: "key [key ...] timeout",
        summary: "Removes the member with the highest score from the first of several sorted sets that has any, and gives it; \
                  waits for one.",
        complexity: "O(log(N)) where N is the number of members",
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "bzmpop",
        arity: Arity::AtLeast(5),
        flags: Flags::WRITE.and(Flags::BLOCKING).and(Flags::MOVABLE_KEYS),
        keys: Keys(&[KeySpec { at: KeysAt::Counted { count: 2, step: 1 }, used: KeyUse::ReadAndDelete }]),
        log: Log::Given,
        run: Run::Transaction(pop_first_or_wait::<End>),
        work: Work::held(work::taken_from_any_in_time),
        since: "7.0.0",
        group: Group::SortedSet,
        syntax: "timeout numkeys key [key ...] <MIN | MAX> [COUNT count]",
        summary: "Removes members from the first of several sorted sets that has any, and gives them; waits for some.",
        complexity: "O(K)+O(M*log(N)) where K is the number of keys, N that of the members and M that of \
                     those removed",
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "zunion",
        arity: Arity::AtLeast(3),
        flags: Flags::READONLY.and(Flags::MOVABLE_KEYS),
        keys: COUNTED_READ,
        run: Run::Transaction(combine::zunion),
        work: Work::pinned(work::counted_keys),
        since: "6.2.0",
        group: Group::SortedSet,
        syntax: "numkeys key [key ...] [WEIGHTS weight [weight ...]] [AGGREGATE <SUM | MIN | MAX | COUNT>] \
                 [WITHSCORES]",
        summary: "Returns the members of any of several sorted sets.",
        complexity: "O(N)+O(M*log(M)) where N is the number of all members and M that of the members in \
                     the reply",
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "zinter",
        arity: Arity::AtLeast(3),
        flags: Flags::READONLY.and(Flags::MOVABLE_KEYS),
        keys: COUNTED_READ,
        run: Run::Transaction(combine::zinter),
        work: Work::pinned(work::least_of_counted_keys),
        since: "6.2.0",
        group: Group::SortedSet,
        syntax: "numkeys key [key ...] [WEIGHTS weight [weight ...]] [AGGREGATE <SUM | MIN | MAX | COUNT>] \
                 [WITHSCORES]",
        summary: "Returns the members that several sorted sets have in common.",
        complexity: "O(N*K)+O(M*log(M)) where N is the number of members of the smallest set, K that of \
                     the sets and M that of the members in the reply",
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "zdiff",
        arity: Arity::AtLeast(3),
        flags: Flags::READONLY.and(Flags::MOVABLE_KEYS),
        keys: COUNTED_READ,
        run: Run::Transaction(combine::zdiff),
        work: Work::pinned(work::counted_keys),
        since: "6.2.0",
        group: Group::SortedSet,
        syntax: "numkeys key [key ...] [WITHSCORES]",
        summary: "Returns the members of a sorted set that others do not have.",
        complexity: "O(N*K)+O(M*log(M)) where N is the number of members of the first set, K that of the \
                     sets and M that of the members in the reply",
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "zunionstore",
        arity: Arity::AtLeast(4),
        flags: Flags::WRITE.and(Flags::DENYOOM).and(Flags::MOVABLE_KEYS),
        keys: STORED_FROM_COUNTED,
        log: Log::As(log_rewrite::combined_sets),
        run: Run::Transaction(combine::zunionstore),
        work: Work::pinned(work::counted_sources),
        since: "2.0.0",
        group: Group::SortedSet,
        syntax: "destination numkeys key [key ...] [WEIGHTS weight [weight ...]] [AGGREGATE <SUM | MIN | MAX | COUNT>]",
        summary: "Stores the members of any of several sorted sets under a key.",
        complexity: "O(N)+O(M*log(M)) where N is the number of all members and M that of those stored",
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "zinterstore",
        arity: Arity::AtLeast(4),
        flags: Flags::WRITE.and(Flags::DENYOOM).and(Flags::MOVABLE_KEYS),
        keys: STORED_FROM_COUNTED,
        log: Log::As(log_rewrite::combined_sets),
        run: Run::Transaction(combine::zinterstore),
        work: Work::pinned(work::least_of_counted_sources),
        since: "2.0.0",
        group: Group::SortedSet,
        syntax: "destination numkeys key [key ...] [WEIGHTS weight [weight ...]] [AGGREGATE <SUM | MIN | MAX | COUNT>]",
        summary: "Stores the members that several sorted sets have in common under a key.",
        complexity: "O(N*K)+O(M*log(M)) where N is the number of members of the smallest set, K that of \
                     the sets and M that of those stored",
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "zdiffstore",
        arity: Arity::AtLeast(4),
        flags: Flags::WRITE.and(Flags::DENYOOM).and(Flags::MOVABLE_KEYS),
        keys: STORED_FROM_COUNTED,
        run: Run::Transaction(combine::zdiffstore),
        work: Work::pinned(work::counted_sources),
        since: "6.2.0",
        group: Group::SortedSet,
        syntax: "destination numkeys key [key ...]",
        summary: "Stores the members of a sorted set that others do not have under a key.",
        complexity: "O(N*K)+O(M*log(M)) where N is the number of members of the first set, K that of the \
                     sets and M that of those stored",
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "zintercard",
        arity: Arity::AtLeast(3),
        flags: Flags::READONLY.and(Flags::MOVABLE_KEYS),
        keys: COUNTED_READ,
        run: Run::Transaction(combine::zintercard),
        work: Work::pinned(work::least_of_counted_keys),
        since: "7.0.0",
        group: Group::SortedSet,
        syntax: "numkeys key [key ...] [LIMIT limit]",
        summary: "Counts the members that several sorted sets have in common.",
        complexity: "O(N*K) where N is the number of members of the smallest set and K that of the sets",
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "zrandmember",
        arity: Arity::AtLeast(2),
        flags: Flags::READONLY,
        keys: Keys::READ,
        run: Run::Shard(zrandmember),
        work: Work::pinned(work::drawn),
        since: "6.2.0",
        group: Group::SortedSet,
        syntax: "key [count [WITHSCORES]]",
        summary: "Returns random members of a sorted set.",
        complexity: "O(M*log(N)) where N is the number of members and M that of the members in the reply",
        tips: &["nondeterministic_output"],
        ..CommandSpec::ROW
    },
    CommandSpec {
        name: "zscan",
        arity: Arity::AtLeast(3),
        flags: Flags::READONLY,
        keys: Keys::READ,
        run: Run::Shard(zscan),
        work: Work::pinned(work::scanned),
        since: "2.8.0",
        group: Group::SortedSet,
        syntax: "key cursor [MATCH pattern] [COUNT count] [NOSCORES]",
        summary: "Goes through the members of a sorted set, some at a time.",
        complexity: "O(1) for a call, O(N) for all of them, where N is the number of members",
        tips: &["nondeterministic_output"],
        ..CommandSpec::ROW
    },
];

const DESTINATION: KeySpec =
    KeySpec { at: KeysAt::Range { first: 1, last: 1, step: 1 }, used: KeyUse::Overwrite };
pub(super) const STORED_FROM_ANOTHER: Keys =
    Keys(&[DESTINATION, KeySpec { at: KeysAt::Range { first: 2, last: 2, step: 1 }, used: KeyUse::Read }]);
const STORED_FROM_COUNTED: Keys =
    Keys(&[DESTINATION, KeySpec { at: KeysAt::Counted { count: 2, step: 1 }, used: KeyUse::Read }]);
const COUNTED_READ: Keys = Keys(&[KeySpec { at: KeysAt::Counted { count: 1, step: 1 }, used: KeyUse::Read }]);
const COUNTED_POPPED: Keys =
    Keys(&[KeySpec { at: KeysAt::Counted { count: 1, step: 1 }, used: KeyUse::ReadAndDelete }]);

const NOT_POSITIVE: CommandError = CommandError::text("ERR value is out of range, must be positive");

fn zadd(shard: &mut Shard, args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    read_and_add(shard, args, AddOptions::default(), reply)
}

fn zincrby(shard: &mut Shard, args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let rule = AddRule { increments: true, ..AddRule::default() };
    read_and_add(shard, args, AddOptions { rule, ..AddOptions::default() }, reply)
}

/// Adds the arguments' members, with options that the command implies.
fn read_and_add(
    shard: &mut Shard,
    mut args: Args<'_>,
    mut options: AddOptions,
    reply: &mut Reply<'_>,
) -> Outcome {
    let key = args.key()?;
    options.read(&mut args)?;
    let mut members: Members<'_> = SmallVec::new();
    while !args.is_empty() {
        let score = args.float()?;
        members.push((score, args.next()?));
    }
    add_members(shard, &key, options, &members, reply)
}

/// Scores and their members.
pub(super) type Members<'a> = SmallVec<[(f64, &'a [u8]); 4]>;

/// The options of ZADD before the scores.
#[derive(Clone, Copy, Default)]
pub(super) struct AddOptions {
    /// NX, XX, GT, LT and INCR.
    pub rule: AddRule,
    /// CH: counts members with a changed score, and not only new ones.
    pub counts_changed: bool,
}

impl AddOptions {
    fn read(&mut self, args: &mut Args<'_>) -> Outcome {
        let (mut missing, mut present, mut greater, mut less) = (false, false, false, false);
        loop {
            let AddOptions { rule, counts_changed } = self;
            let options = [
                ("NX", &mut missing),
                ("XX", &mut present),
                ("CH", counts_changed),
                ("INCR", &mut rule.increments),
                ("GT", &mut greater),
                ("LT", &mut less),
            ];
            let Some((_, wanted)) = options.into_iter().find(|(tag, _)| args.tag(tag)) else { break };
            *wanted = true;
        }
        let n_words = args.remaining();
        if n_words == 0 || !n_words.is_multiple_of(2) {
            return Err(CommandError::Syntax);
        }
        if missing && present {
            return Err(CommandError::text("ERR XX and NX options at the same time are not compatible"));
        }
        if (greater || less) && missing || greater && less {
            return Err(CommandError::text(
                "ERR GT, LT, and/or NX options at the same time are not compatible",
            ));
        }
        if self.rule.increments && n_words > 2 {
            return Err(CommandError::text("ERR INCR option supports a single increment-element pair"));
        }
        self.rule.presence = match (missing, present) {
            (true, _) => Presence::Missing,
            (_, true) => Presence::Present,
            _ => Presence::Any,
        };
        self.rule.replacing = match (greater, less) {
            (true, _) => Replacing::Greater,
            (_, true) => Replacing::Less,
            _ => Replacing::Any,
        };
        Ok(())
    }
}

/// Sets the scores of members, and replies with the number of new ones.
///
/// With INCR it replies with the new score of the only member.
pub(super) fn add_members(
    shard: &mut Shard,
    key: &Key<'_>,
    options: AddOptions,
    members: &[(f64, &[u8])],
    reply: &mut Reply<'_>,
) -> Outcome {
    let AddOptions { rule, counts_changed } = options;
    let event = if rule.increments { Event::ZIncr } else { Event::ZAdd };
    let set = match rule.presence {
        Presence::Present => shard.value_mut::<SortedSetType>(key, event)?,
        _ => Some(shard.value_or_create::<SortedSetType>(key, event)?),
    };
    let (mut n_new, mut n_updated, mut last) = (0, 0, None);
    if let Some(mut set) = set {
        for &(score, member) in members {
            last = match set.add(member, score, rule) {
                Added::New(score) => {
                    n_new += 1;
                    Some(score)
                }
                Added::Updated(score) => {
                    n_updated += 1;
                    Some(score)
                }
                Added::Same(score) => Some(score),
                Added::Refused => None,
                Added::NotANumber => {
                    return Err(CommandError::text("ERR resulting score is not a number (NaN)"));
                }
            };
        }
    }
    if rule.increments {
        double_or_null(reply, last);
    } else {
        reply.integer(if counts_changed { n_new + n_updated } else { n_new });
    }
    Ok(())
}

fn double_or_null(reply: &mut Reply<'_>, score: Option<f64>) {
    match score {
        Some(score) => reply.double(score),
        None => reply.null(),
    }
}

fn zrem(shard: &mut Shard, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let key = args.key()?;
    let n_removed = match shard.value_mut::<SortedSetType>(&key, Event::ZRem)? {
        Some(mut set) => args.rest().filter(|member| set.remove(member)).count(),
        None => 0,
    };
    reply.integer(n_removed as i64);
    Ok(())
}

fn zscore(shard: &mut Shard, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let key = args.key()?;
    let set = shard.value::<SortedSetType>(&key)?;
    let member = args.next()?;
    double_or_null(reply, set.and_then(|set| set.score(member)));
    Ok(())
}

fn zmscore(shard: &mut Shard, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let key = args.key()?;
    let set = shard.value::<SortedSetType>(&key)?;
    reply.array(args.remaining());
    for member in args.rest() {
        double_or_null(reply, set.and_then(|set| set.score(member)));
    }
    Ok(())
}

fn zcard(shard: &mut Shard, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let key = args.key()?;
    reply.integer(shard.value::<SortedSetType>(&key)?.map_or(0, |set| set.len()) as i64);
    Ok(())
}

fn zrank(shard: &mut Shard, args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    tell_rank(shard, args, End::Lowest, "zrank", reply)
}

fn zrevrank(shard: &mut Shard, args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    tell_rank(shard, args, End::Highest, "zrevrank", reply)
}

/// Replies with the number of members between a member and an end.
fn tell_rank(
    shard: &mut Shard,
    mut args: Args<'_>,
    from: End,
    name: &'static str,
    reply: &mut Reply<'_>,
) -> Outcome {
    let (key, member) = (args.key()?, args.next()?);
    if args.remaining() > 1 {
        return Err(CommandError::Arity(name));
    }
    let with_score = args.tag("WITHSCORE");
    args.finish()?;
    let set = shard.value::<SortedSetType>(&key)?;
    let Some((set, found)) = set.and_then(|set| Some((set, set.rank(member)?))) else {
        if with_score {
            reply.null_array()
        } else {
            reply.null()
        };
        return Ok(());
    };
    let rank = match from {
        End::Lowest => found.from_lowest,
        End::Highest => set.len() - 1 - found.from_lowest,
    };
    if with_score {
        reply.array(2);
    }
    reply.integer(rank as i64);
    if with_score {
        reply.double(found.score);
    }
    Ok(())
}

fn zpopmin(shard: &mut Shard, args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    pop(shard, args, End::Lowest, reply)
}

fn zpopmax(shard: &mut Shard, args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    pop(shard, args, End::Highest, reply)
}

fn pop(shard: &mut Shard, mut args: Args<'_>, end: End, reply: &mut Reply<'_>) -> Outcome {
    let key = args.key()?;
    let count = if args.is_empty() { None } else { Some(args.next()?) };
    args.finish()?;
    let count = count.map(|count| read_count(count).ok_or(NOT_POSITIVE)).transpose()?;
    match (shard.value_mut::<SortedSetType>(&key, pop_event(end))?, count) {
        (None, _) => reply.array(0),
        // Without a count, the reply is not a list of pairs.
        (Some(mut set), None) => {
            reply.array(2);
            pop_one(&mut set, end, reply);
        }
        (Some(mut set), Some(count)) => {
            reply.pairs(set.as_ref().len().min(count));
            set.pop(end, count, |scored| {
                reply.pair();
                write_scored(scored, reply);
            });
        }
    }
    Ok(())
}

/// Returns the event of removing a member from an end.
fn pop_event(end: End) -> Event {
    match end {
        End::Lowest => Event::ZPopMin,
        End::Highest => Event::ZPopMax,
    }
}

/// Removes one member, and writes it and its score.
fn pop_one(set: &mut SortedSetMut<'_>, end: End, reply: &mut Reply<'_>) {
    set.pop(end, 1, |scored| write_scored(scored, reply));
}

/// Removes members, and writes each one and its score as an array.
fn pop_nested(set: &mut SortedSetMut<'_>, end: End, count: usize, reply: &mut Reply<'_>) {
    reply.array(set.as_ref().len().min(count));
    set.pop(end, count, |scored| {
        reply.array(2);
        write_scored(scored, reply);
    });
}

fn bzpopmin(call: &mut Call<'_, '_>, args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    pop_one_or_wait(call, args, End::Lowest, reply)
}

fn bzpopmax(call: &mut Call<'_, '_>, args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    pop_one_or_wait(call, args, End::Highest, reply)
}

impl PopEnd for End {
    const KIND: Kind = Kind::SortedSet;

    fn read(args: &mut Args<'_>) -> Result<Self, CommandError> {
        if args.tag("MIN") {
            Ok(End::Lowest)
        } else if args.tag("MAX") {
            Ok(End::Highest)
        } else {
            Err(CommandError::Syntax)
        }
    }

    fn command_name(self) -> &'static [u8] {
        match self {
            End::Lowest => b"ZPOPMIN",
            End::Highest => b"ZPOPMAX",
        }
    }

    fn pop_one(self, shard: &mut Shard, key: &Key<'_>, reply: &mut Reply<'_>) -> Result<bool, StorageError> {
        let Some(mut set) = shard.value_mut::<SortedSetType>(key, pop_event(self))? else { return Ok(false) };
        reply.array(3);
        reply.bulk(key.bytes);
        pop_one(&mut set, self, reply);
        Ok(true)
    }

    fn pop(
        self,
        shard: &mut Shard,
        key: &Key<'_>,
        count: usize,
        reply: &mut Reply<'_>,
    ) -> Result<bool, StorageError> {
        let Some(mut set) = shard.value_mut::<SortedSetType>(key, pop_event(self))? else { return Ok(false) };
        reply.array(2);
        reply.bulk(key.bytes);
        pop_nested(&mut set, self, count, reply);
        Ok(true)
    }
}

fn zrandmember(shard: &mut Shard, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let key = args.key()?;
    if args.is_empty() {
        match shard.value::<SortedSetType>(&key)? {
            Some(set) => {
                let rank = random_below(set.len());
                set.iter(rank..rank + 1).for_each(|scored| write_element(scored.member, reply));
            }
            None => reply.null(),
        }
        return Ok(());
    }
    let count = args.int()?;
    if count == i64::MIN {
        return Err(CommandError::text(
            "ERR value is out of range, value must between -9223372036854775807 and 9223372036854775807",
        ));
    }
    let with_scores = args.tag("WITHSCORES");
    args.finish()?;
    if with_scores && !(-i64::MAX / 2..=i64::MAX / 2).contains(&count) {
        return Err(CommandError::text("ERR value is out of range"));
    }
    let Some(set) = shard.value::<SortedSetType>(&key)? else {
        reply.array(0);
        return Ok(());
    };
    if count < 0 {
        let write = |reply: &mut Reply<'_>| {
            let rank = random_below(set.len());
            set.iter(rank..rank + 1).for_each(|scored| write_listed(scored, with_scores, reply));
        };
        let n = count.unsigned_abs();
        return write_samples(n, reply, |reply| begin_list(n as usize, with_scores, reply), write);
    }
    let ranks = choose(set.len(), set.len().min(count as usize));
    write_list(ranks.len(), set.at_ranks(ranks.into_iter()), with_scores, reply);
    Ok(())
}

/// Returns `count` different numbers below `n`, ascending. All choices are equally likely.
fn choose(n: usize, count: usize) -> Vec<usize> {
    if count > n / 3 {
        let mut n_wanted = count;
        let is_chosen = |rank: &usize| {
            let is_chosen = random_below(n - rank) < n_wanted;
            n_wanted -= is_chosen as usize;
            is_chosen
        };
        return (0..n).filter(is_chosen).collect();
    }
    // Floyd's algorithm ("A sample of brilliance", Communications of the ACM 30, 1987). A number that was
    // already drawn is replaced by the last possible one.
    let mut chosen = HashSet::with_capacity(count);
    for last in n - count..n {
        let drawn = random_below(last + 1);
        if !chosen.insert(drawn) {
            chosen.insert(last);
        }
    }
    let mut chosen: Vec<usize> = chosen.into_iter().collect();
    chosen.sort_unstable();
    chosen
}

fn zscan(shard: &mut Shard, mut args: Args<'_>, reply: &mut Reply<'_>) -> Outcome {
    let key = args.key()?;
    let cursor = parse_cursor(args.next()?).ok_or(CommandError::text("ERR invalid cursor"))?;
    let Some(set) = shard.value::<SortedSetType>(&key)? else {
        write_scanned(None, 0, &[], reply);
        return Ok(());
    };
    let mut with_scores = true;
    let options = ScanOptions::read_among(args, |args| {
        let is_other = args.tag("NOSCORES");
        with_scores &= !is_other;
        is_other
    })?;
    scan(set, cursor, &options, with_scores, reply);
    Ok(())
}

/// Writes the next cursor and then the members from a cursor onwards.
fn scan(
    set: SortedSetRef<'_>,
    cursor: u64,
    options: &ScanOptions<'_>,
    with_scores: bool,
    reply: &mut Reply<'_>,
) {
    let (mut found, mut n) = (Vec::new(), 0);
    let mut members = Reply::new(&mut found, reply.version());
    // An invalid cursor means the start.
    let from = Position::decode(cursor).unwrap_or_default();
    let mut visit = |scored: Scored<'_>| {
        if !options.wants(scored.member) {
            return;
        }
        write_element(scored.member, &mut members);
        n += 1;
        if with_scores {
            // ZSCAN replies with texts, in RESP3 too.
            format_f64(scored.score(), |text| members.bulk(text));
            n += 1;
        }
    };
    let next = options.visit(Some(from), |from, n_visited| {
        set.scan(from, 1, &mut |scored| {
            *n_visited += 1;
            visit(scored);
        })
    });
    write_scanned(next, n, &found, reply);
}

/// Writes a member and its score.
fn write_scored(scored: Scored<'_>, reply: &mut Reply<'_>) {
    write_element(scored.member, reply);
    reply.double(scored.score());
}

/// Begins a list of members, with or without their scores.
fn begin_list(n: usize, with_scores: bool, reply: &mut Reply<'_>) {
    if with_scores { reply.pairs(n) } else { reply.array(n) }
}

/// Writes a member of a list that [`begin_list`] began.
fn write_listed(scored: Scored<'_>, with_scores: bool, reply: &mut Reply<'_>) {
    if with_scores {
        reply.pair();
        write_scored(scored, reply);
    } else {
        write_element(scored.member, reply);
    }
}

/// Writes a list of `n` members.
fn write_list<'a>(
    n: usize,
    members: impl Iterator<Item = Scored<'a>>,
    with_scores: bool,
    reply: &mut Reply<'_>,
) {
    begin_list(n, with_scores, reply);
    members.for_each(|scored| write_listed(scored, with_scores, reply));
}

/// Stores a computed set under a key. An empty set removes the key.
///
/// Returns the number of members.
pub(super) fn store(call: &mut Call<'_, '_>, key: &Key<'_>, set: Sorted, event: Event) -> usize {
    let n = set.len();
    let entry = set.into_entry(key.bytes, call.server.keyspace.thresholds());
    let shard = call.shard_of(key);
    match entry {
        Some(entry) => shard.put(key, entry, event),
        None => {
            shard.remove(key, Event::Del);
        }
    }
    n
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_are_different_ascending_and_fair() {
        for (n, count) in [(0, 0), (1, 1), (10, 0), (10, 2), (10, 9), (10, 10), (1000, 7), (1000, 900)] {
            let mut hits = vec![0; n];
            for _ in 0..200 {
                let chosen = choose(n, count);
                assert_eq!(chosen.len(), count);
                assert!(chosen.is_sorted_by(|one, other| one < other), "{chosen:?}");
                chosen.into_iter().for_each(|rank| hits[rank] += 1);
            }
            if n == 10 && count == 2 {
                assert!(hits.iter().all(|&n_times| (10..80).contains(&n_times)), "{hits:?}");
            }
        }
    }
}
